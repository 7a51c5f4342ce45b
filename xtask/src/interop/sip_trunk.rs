//! Kamailio as a trunk of the proxy: calls of users go to it. SIPp is at both ends. Both proxies record their routes.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::domain::Domain;
use super::sip::{START_TIMEOUT, free_port};
use super::sip_proxy::{CALLER_USER, CallTransports, ScenarioRole, SippCall, SippRunner};
use crate::process::{self, Process};
use crate::tally::Tally;

/// The address of the trunk. No other program uses it.
pub(super) const TRUNK_IP: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

const CASES: [(&str, ScenarioRole, ScenarioRole); 3] = [
    (
        "calls with a second INVITE",
        ("caller-hangs-up", 0),
        ("callee-answers", 0),
    ),
    (
        "calls with a BYE of the callee",
        ("caller-is-hung-up", 0),
        ("callee-hangs-up", 0),
    ),
    (
        "calls to who is busy",
        ("caller-is-refused", 486),
        ("callee-refuses", 486),
    ),
];

const TRANSPORT_CASES: [CallTransports; 2] = [
    CallTransports {
        name: "UDP",
        caller: "udp",
        callee: "udp",
        loses: false,
        calls: 30,
        cases: CASES.len(),
    },
    CallTransports {
        name: "TCP",
        caller: "tcp",
        callee: "tcp",
        loses: false,
        calls: 30,
        cases: CASES.len(),
    },
];

/// Runs all cases.
pub(crate) fn run(binary: &Path, root: &Path, logs: &Path) -> Result<Tally> {
    let callees = (0..TRANSPORT_CASES.len())
        .flat_map(|transports| (0..CASES.len()).map(move |case| user(transports, case)));
    let users: Vec<String> = std::iter::once(CALLER_USER.to_owned())
        .chain(callees)
        .collect();
    let last =
        format!("digest_algorithms = [\"MD5\"]\n[[sip.trunk]]\naddresses = [\"{TRUNK_IP}\"]\n");
    let mut domain = Domain::start(binary, logs, "sip-trunk", &users, ["", &last])?;
    let sipp_runner = SippRunner {
        registrar: domain.address(),
        sources: root.join("interop/sip-proxy"),
        logs,
    };
    let mut tally = Tally::default();
    for (number, transports) in TRANSPORT_CASES.iter().enumerate() {
        for (place, (name, caller, callee)) in CASES.iter().enumerate() {
            let user = user(number, place);
            let to = goes_to_kamailio(&sipp_runner, transports, &user, *caller, *callee);
            tally.record(
                &format!("to Kamailio: {name} over {}", transports.name),
                &to,
            );
        }
    }
    tally.record(
        "the SIP proxy with a trunk stops when asked",
        &domain.finish(),
    );
    Ok(tally)
}

fn user(transports: usize, case: usize) -> String {
    format!("t{transports}{case}")
}

/// SIPp calls somebody behind Kamailio through the proxy.
fn goes_to_kamailio(
    sipp_runner: &SippRunner<'_>,
    transports: &CallTransports,
    user: &str,
    caller: ScenarioRole,
    callee: ScenarioRole,
) -> Result<String> {
    let name = format!("{user}-to");
    let port = free_port()?;
    let next = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let here = free_port()?;
    let _kamailio = start_kamailio(sipp_runner, &name, transports, (here, next))?;
    let trunk = SocketAddr::from((TRUNK_IP, here));
    let transport = transports.callee;
    let call = SippCall {
        name: &name,
        target: &format!("sip:{user}@{trunk};transport={transport}"),
        to: sipp_runner.registrar,
    };
    let callees =
        vec![sipp_runner.callee(&call, callee, &format!("{name}-0"), transports, port)?];
    sipp_runner.caller(&call, caller, callees, transports)
}

/// Starts Kamailio on this port, which sends all requests outside of dialogs to `next`. It asks for a digest unless
/// `next` is behind it.
pub(super) fn start_kamailio(
    sipp_runner: &SippRunner<'_>,
    name: &str,
    transports: &CallTransports,
    (port, next): (u16, SocketAddr),
) -> Result<Process> {
    let template = sipp_runner.sources.join("kamailio.cfg");
    let mut text = std::fs::read_to_string(&template)
        .with_context(|| format!("cannot read {}", template.display()))?;
    for (place, value) in [
        ("HERE", format!("{TRUNK_IP}:{port}")),
        ("NEXT", next.to_string()),
        ("TRANSPORT", transports.callee.to_owned()),
    ] {
        text = text.replace(place, &value);
    }
    run_kamailio(sipp_runner.logs, name, &text, port)
}

/// Starts Kamailio with this configuration, which listens on this port of [`TRUNK_IP`].
pub(super) fn run_kamailio(logs: &Path, name: &str, config: &str, port: u16) -> Result<Process> {
    let file = logs.join(format!("kamailio-{name}.cfg"));
    std::fs::write(&file, config)?;
    let run = logs.join(format!("kamailio-{name}-run"));
    std::fs::create_dir_all(&run)?;
    let mut command = process::command("kamailio");
    command.args(["-DD", "-E", "-m", "32", "-M", "4", "-f"]);
    command.arg(&file).arg("-Y").arg(&run);
    let log = logs.join(format!("kamailio-{name}.log"));
    let mut kamailio = Process::start("Kamailio", command, log)?;
    // It listens over TCP when all its children are there.
    let deadline = Instant::now() + START_TIMEOUT;
    while TcpStream::connect((TRUNK_IP, port)).is_err() {
        kamailio.assert_running()?;
        ensure!(Instant::now() < deadline, "it is deaf: {}", kamailio.tail());
        sleep(Duration::from_millis(50));
    }
    Ok(kamailio)
}
