//! SIP: the configurations of the servers, what clients do, and memory.
//!
//! Clients and callees are those of `hairpin load sip`, in the client's namespace, over UDP. A unit of work counts as a datagram does in other
//! scenarios: it is sent when it begins, and delivered when it has succeeded.

use std::io::{self, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

use super::error::{IoContext, SideError};
use super::layout::{client_ip, server_ip, sip_address};
use super::procfs;
use super::running::start_server;
use super::scenario::{Scenario, SipWork};
use super::side::{PASSWORD, REALM, Side, USERNAME};
use super::topology::Topology;
use super::upkeep::{Memory, settled_slab};
use crate::generator::{Plan, Run, SipCredentials, SipOptions, SipWorkload, Stopper, Target, sip};
use crate::measure::{Rate, Schedule};

/// The domain that has a registrar and a proxy.
const DOMAIN: &str = "bench.test";
/// Users that register, and users that call each other. The latter register before each load, so they are few.
const REGISTERED: u32 = 10_000;
const CALLING: u32 = 20;
/// Sockets of the clients.
const SOCKETS: u32 = 10;
/// How long the harness waits for calls and registrations that are under way at the end of a load.
pub(super) const LINGER: Duration = Duration::from_millis(200);
/// The load from which the search estimates what a server can do, in units per second.
pub(super) const FIRST_RATE: f64 = 2_000.0;
/// Units per second while memory is filled.
const FILL_RATE: f64 = 2_000.0;

/// The configuration files of the servers. Dropping them deletes the files.
#[derive(Debug)]
pub(super) struct Configs {
    hairpin: NamedTempFile,
    hairpin_uas: NamedTempFile,
    kamailio: NamedTempFile,
}

impl Configs {
    pub(super) fn make() -> io::Result<Configs> {
        Ok(Configs {
            hairpin: file(&hairpin())?,
            hairpin_uas: file(&hairpin_uas())?,
            kamailio: file(&kamailio())?,
        })
    }

    /// Replaces `{hairpin-sip}`, `{hairpin-uas}` and `{kamailio-sip}` by the paths of the files.
    pub(super) fn fill(&self, word: &str) -> String {
        word.replace("{hairpin-sip}", &self.hairpin.path().to_string_lossy())
            .replace("{hairpin-uas}", &self.hairpin_uas.path().to_string_lossy())
            .replace("{kamailio-sip}", &self.kamailio.path().to_string_lossy())
    }
}

fn file(text: &str) -> io::Result<NamedTempFile> {
    let mut file = NamedTempFile::with_prefix("hairpin-bench-")?;
    file.write_all(text.as_bytes())?;
    Ok(file)
}

/// The server of a side as a scenario needs it: hairpin is either a user agent server or a registrar and proxy.
pub(super) fn side_for(side: &Side, scenario: &Scenario) -> Side {
    let mut side = side.clone();
    if let Scenario::Sip {
        work: SipWork::Options | SipWork::Call,
    } = scenario
    {
        for word in &mut side.command {
            *word = word.replace("{hairpin-sip}", "{hairpin-uas}");
        }
    }
    side
}

/// A user agent server.
fn hairpin_uas() -> String {
    format!("{}{}", hairpin_head(""), "test_uas = true\n")
}

/// The part that both configurations share, up to the section `sip`.
fn hairpin_head(users: &str) -> String {
    let (server, sip) = (server_ip(), sip_address());
    format!(
        "[server]\nworkers = 1\n[listen]\nudp = [\"{server}:3478\"]\n[admin]\nlisten = \"off\"\n[log]\nlevel = \"warn\"\n\
         [auth]\nrealm = \"{REALM}\"\nusers = [{{ name = \"{USERNAME}\", password = \"{PASSWORD}\" }}{users}]\n\
         [sip]\nlisten = [\"{sip}\"]\ntransactions = 2000000\nbindings_per_user = 30\n"
    )
}

/// A registrar and proxy for the domain. The callers are a trunk: their calls need no digest, as in Kamailio's script.
fn hairpin() -> String {
    let names = (0..CALLING).map(|n| format!("u{n:02}"));
    let names = names.chain((0..REGISTERED).map(|n| format!("u{n:04}")));
    let users: Vec<String> = names
        .map(|name| format!(", {{ name = \"{name}\", password = \"{PASSWORD}\" }}"))
        .collect();
    format!(
        "{}[[sip.domain]]\nname = \"{DOMAIN}\"\n[[sip.trunk]]\naddresses = [\"{}\"]\n",
        hairpin_head(&users.concat()),
        client_ip()
    )
}

/// The same as a script: stateless answers for the server itself, a registrar in memory behind a digest, a stateful proxy that looks
/// callees up and records its route.
fn kamailio() -> String {
    KAMAILIO
        .replace("DOMAIN", DOMAIN)
        .replace("REALM", REALM)
        .replace("PASSWORD", PASSWORD)
        .replace("SERVER", &sip_address().to_string())
}

const KAMAILIO: &str = r#"#!KAMAILIO
debug=0
log_stderror=yes
children=1
disable_tcp=yes
auto_aliases=no
maxbuffer=8388608
loadmodule "tm.so"
loadmodule "sl.so"
loadmodule "rr.so"
loadmodule "pv.so"
loadmodule "kex.so"
loadmodule "textops.so"
loadmodule "siputils.so"
loadmodule "maxfwd.so"
loadmodule "usrloc.so"
loadmodule "registrar.so"
loadmodule "auth.so"
modparam("usrloc", "db_mode", 0)
modparam("usrloc", "hash_size", 16)
modparam("auth", "nonce_count", 1)
modparam("auth", "qop", "auth")
request_route {
    if (!mf_process_maxfwd_header("70")) { sl_send_reply("483", "Too Many Hops"); exit; }
    if (is_method("REGISTER")) {
        if (!pv_www_authenticate("REALM", "PASSWORD", "0")) { www_challenge("REALM", "1"); exit; }
        save("location");
        exit;
    }
    if (has_totag() && loose_route()) { t_relay(); exit; }
    if (is_method("CANCEL")) { if (t_check_trans()) t_relay(); exit; }
    if ($rd == "DOMAIN") {
        if (is_method("ACK")) { if (t_check_trans()) t_relay(); exit; }
        record_route();
        if (!lookup("location")) { sl_send_reply("404", "Not Found"); exit; }
        if (!t_relay()) sl_reply_error();
        exit;
    }
    if (is_method("INVITE")) {
        sl_send_reply("180", "Ringing");
        append_to_reply("Contact: <sip:uas@SERVER>\r\n");
        sl_send_reply("200", "OK");
        exit;
    }
    if (is_method("ACK")) exit;
    sl_send_reply("200", "OK");
}
"#;

fn failed(error: impl std::error::Error) -> SideError {
    SideError::Connections(error.to_string())
}

/// The generator's options: the workload, and for REGISTER and proxied calls also domain, users and credentials.
fn options(work: SipWork) -> Result<SipOptions, SideError> {
    let target = Target::admit(sip_address(), true).map_err(failed)?;
    let mut options = SipOptions::new(target);
    options.links = SOCKETS;
    options.local = Some(client_ip());
    options.obey = false;
    options.workload = match work {
        SipWork::Options => SipWorkload::Options,
        SipWork::Call => SipWorkload::Call,
        SipWork::Register => SipWorkload::Register,
        SipWork::ProxiedCall => SipWorkload::Proxy,
    };
    if matches!(work, SipWork::Register | SipWork::ProxiedCall) {
        options.domain = Some(DOMAIN.to_owned());
        options.aors = match work {
            SipWork::Register => REGISTERED,
            _ => CALLING,
        };
        options.credentials = Some(SipCredentials {
            user: "u{n}".to_owned(),
            password: PASSWORD.to_owned(),
        });
    }
    Ok(options)
}

/// The load of a scenario.
pub(super) fn plan(work: SipWork) -> Result<Plan, SideError> {
    let mut plan = sip(&options(work)?, &Stopper::default()).map_err(failed)?;
    // The load does not stop early for a server that drops everything.
    plan.silence = Duration::ZERO;
    Ok(plan)
}

/// Sends OPTIONS requests until a datagram arrives. Returns `false` if none arrives within `limit`.
pub(super) fn wait_for_answer(
    topology: &Topology,
    limit: Duration,
    mut alive: impl FnMut() -> Result<(), SideError>,
) -> Result<bool, SideError> {
    const POLL: Duration = Duration::from_millis(100);
    let open = || UdpSocket::bind(SocketAddr::new(client_ip(), 0));
    let socket = topology.in_client(open).doing("open a client socket")?;
    socket.set_read_timeout(Some(POLL)).doing("set a timeout")?;
    let server = sip_address();
    let here = socket.local_addr().doing("read an address")?;
    let deadline = Instant::now() + limit;
    let mut tries = 0;
    while Instant::now() < deadline {
        alive()?;
        tries += 1;
        let request = format!(
            "OPTIONS sip:{server} SIP/2.0\r\nVia: SIP/2.0/UDP {here};branch=z9hG4bKready{tries};rport\r\nMax-Forwards: 70\r\n\
             From: <sip:x@{here}>;tag=1\r\nTo: <sip:{server}>\r\nCall-ID: ready@{here}\r\nCSeq: {tries} OPTIONS\r\nContent-Length: 0\r\n\r\n"
        );
        // Before the server listens, both calls may fail with ECONNREFUSED.
        let sent = socket.send_to(request.as_bytes(), server);
        if sent.and_then(|_| socket.recv(&mut [0; 2048])).is_ok() {
            return Ok(true);
        }
        std::thread::sleep(POLL);
    }
    Ok(false)
}

/// Starts a server of its own and fills it with registration bindings, or with calls in progress.
pub(super) fn memory(
    side: &Side,
    topology: &mut Topology,
    (work, count): (SipWork, u16),
) -> Result<Memory, SideError> {
    let mut server = start_server(side, topology, 0)?;
    let mut options = options(work)?;
    // Longer than the measurement: none ends before it.
    options.hold = Duration::from_secs(30);
    let mut plan = sip(&options, &Stopper::default()).map_err(failed)?;
    plan.set_schedule(&Schedule::constant(Rate(FILL_RATE)));
    plan.silence = Duration::ZERO;
    let filled = Duration::from_secs_f64(f64::from(count) / FILL_RATE);
    (plan.warm_up, plan.duration, plan.linger) = (Duration::ZERO, filled, LINGER);
    let stopper = plan.stopper.clone();
    let idle = topology.server_memory().doing("read the server's memory")?;
    let slab = settled_slab();
    let run = topology.in_client(|| Ok(Run::start(plan)));
    let run = run.doing("run the generator")?.map_err(failed)?;
    std::thread::sleep(filled + LINGER);
    server.check_alive()?;
    let full = topology.server_memory().doing("read the server's memory")?;
    let full_slab = procfs::slab_bytes();
    stopper.stop();
    let report = run.finish();
    let held = report.total.sent.max(1) as f64;
    let each = |before: u64, after: u64| (after as f64 - before as f64) / held;
    Ok(Memory {
        user: each(idle, full),
        kernel: each(slab, full_slab),
        idle: idle as f64,
        rate: FILL_RATE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_servers_have_the_same_task() {
        let (hairpin, kamailio) = (hairpin(), kamailio());
        for text in [&hairpin, &kamailio] {
            assert!(text.contains(DOMAIN) && text.contains(PASSWORD), "{text}");
            assert!(text.contains(&sip_address().to_string()), "{text}");
        }
        assert!(hairpin.contains("\"u19\"") && hairpin.contains("\"u9999\""));
        assert!(!kamailio.contains("REALM"));
        assert!(hairpin_uas().contains("test_uas = true") && !hairpin.contains("test_uas"));
    }
}
