//! The servers that have a name: their commands and abilities.

use std::path::Path;

use bpf::count::Hook;

use super::{Abilities, Programs, Role, Side};

impl Side {
    pub(super) fn preset(name: &str, programs: &Programs) -> Option<Side> {
        let floor =
            |words: &[&str]| [&programs.floor[..], &owned(words), &owned(&["{family}"])].concat();
        let coturn = || [program(&programs.coturn), owned(COTURN)].concat();
        let hairpin =
            |more: &[&str]| [program(&programs.hairpin), owned(HAIRPIN), owned(more)].concat();
        let hairpin_sip =
            |more: &[&str]| [program(&programs.hairpin), owned(HAIRPIN_SIP), owned(more)].concat();
        let (command, abilities) = match name {
            "hairpin" => (hairpin(&["--offload=off"]), Abilities::TURN_CONNECTIONS),
            "hairpin-2" => {
                let two = |word: String| word.replace("--workers=1", "--workers=2");
                let command = hairpin(&["--offload=off"]);
                (command.into_iter().map(two).collect(), Abilities::TURN)
            }
            "hairpin-spread" => {
                let two = |word: String| word.replace("--workers=1", "--workers=2");
                let command = hairpin(&["--offload=off", METRICS, "--set=admin.allow_remote=true"]);
                (command.into_iter().map(two).collect(), Abilities::SPREAD)
            }
            "hairpin-xdp" => (hairpin(&["--offload=xdp", RATE_LIMIT]), Abilities::TURN),
            "hairpin-tc" => (hairpin(&["--offload=tc", RATE_LIMIT]), Abilities::TURN),
            "hairpin-xdp-miss" => (hairpin(&["--offload=xdp", NO_ROOM]), Abilities::MISS),
            "hairpin-tc-miss" => (hairpin(&["--offload=tc", NO_ROOM]), Abilities::MISS),
            "coturn" => (coturn(), Abilities::TURN_CONNECTIONS),
            "floor" => (floor(&["plain", "{flows}"]), Abilities::FLOOR),
            "floor-gro" => (floor(&["gro", "{flows}"]), Abilities::FLOOR),
            "floor-damage" => (floor(&["damage", "{flows}"]), Abilities::FLOOR),
            "floor-repeat" => (floor(&["repeat", "{flows}"]), Abilities::FLOOR),
            "floor-tcp" => (floor(&["tcp", "0"]), Abilities::TCP),
            "floor-tls" => (floor(&["tls", "0"]), Abilities::TLS),
            "floor-stun" => (floor(&["batch", "0"]), Abilities::BINDING),
            "floor-xdp" => (floor(&["xdp", "{flows}"]), Abilities::BOTH_WAYS),
            "floor-tc" => (floor(&["tc", "{flows}"]), Abilities::BOTH_WAYS),
            "program-xdp" => (floor(&["program-xdp", "{flows}"]), Abilities::BOTH_WAYS),
            "program-tc" => (floor(&["program-tc", "{flows}"]), Abilities::BOTH_WAYS),
            "hairpin-sip" => (hairpin_sip(&[]), Abilities::SIP_ALL),
            "hairpin-sip-2" => (hairpin_sip(&["--workers=2"]), Abilities::SIP_ALL),
            "hairpin-sip-uncontrolled" => {
                (hairpin_sip(&["--set=sip.tolerance=0s"]), Abilities::SIP_ALL)
            }
            "kamailio" => (
                [program(&programs.kamailio), owned(KAMAILIO)].concat(),
                Abilities::SIP_CONNECTIONS,
            ),
            "floor-sip" => (floor(&["sip", "0"]), Abilities::SIP_CHALLENGES),
            "floor-stun-xdp" => (floor(&["stun-xdp", "0"]), Abilities::BINDING),
            _ => return None,
        };
        let role = match name {
            "hairpin" | "hairpin-spread" => Role::Gated,
            "floor" => Role::Floor,
            _ => Role::Other,
        };
        Some(Side {
            name: name.to_owned(),
            command,
            abilities,
            // What is redirected in XDP stays a frame only as long as XDP takes it.
            sink: if name.ends_with("-xdp") {
                Hook::Xdp
            } else {
                Hook::Tc
            },
            role,
            two_processors: matches!(name, "hairpin-2" | "hairpin-sip-2"),
        })
    }
}

/// One worker, the peer admitted, room for every allocation. Ports from 20000: 18,000 allocations
/// fit.
const HAIRPIN: &[&str] = &[
    "serve",
    "--workers=1",
    "--listen={listen}",
    "--relay-address={relay-ip}",
    "--port-range=20000-65535",
    "--user={user}:{password}",
    "--realm={realm}",
    "--allow-peer={peer-ip}",
    "--allow-peer={client-ip}",
    "--set=limits.allocations_per_user=100000",
    "--set=limits.allocations_per_source=100000",
    "--set=listen.tls={listen}",
    "--set=listen.dtls=",
    "--set=tls.certificates={certificate}:{key}",
    "--log-level=warn",
];

/// The address of its metrics, which show the allocations of each worker.
const METRICS: &str = "--admin={metrics}";

/// Far above what any load reaches: every datagram is charged, and none is dropped.
const RATE_LIMIT: &str = "--set=limits.rate_per_allocation=1GiB/s";

/// The least room for channels in the kernel: those of a load of thousands are looked up there, not found, and relayed
/// in user space.
const NO_ROOM: &str = "--set=offload.channels=1";

/// The same: one relay thread, no other listeners, no log, no files.
const COTURN: &[&str] = &[
    "-n",
    "--lt-cred-mech",
    "--user={user}:{password}",
    "--realm={realm}",
    "--listening-ip={listen-ip}",
    "--listening-port={port}",
    "--relay-ip={relay-ip}",
    "--min-port=20000",
    "--max-port=65535",
    "--relay-threads=1",
    "--no-cli",
    "--cert={certificate}",
    "--pkey={key}",
    "--no-dtls",
    "--no-stdout-log",
    "--log-file=/dev/null",
    "--pidfile=/dev/null",
    "--userdb=:memory:",
];

const HAIRPIN_SIP: &[&str] = &["serve", "--config={hairpin-sip}"];

/// One worker, and the fast allocator: the default allocator is for debugging, and would use most of the processor
/// time.
const KAMAILIO: &[&str] = &[
    "-DD",
    "-E",
    "-x",
    "fm",
    "-X",
    "fm",
    "-m",
    "1024",
    "-M",
    "64",
    "-n",
    "1",
    "-l",
    "udp:{sip-listen}",
    "-f",
    "{kamailio-sip}",
];

fn program(path: &Path) -> Vec<String> {
    vec![path.to_string_lossy().into_owned()]
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
