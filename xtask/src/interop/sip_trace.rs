//! Checks the messages of a call with other programs: sngrep receives the server's HEP packets, and tshark reads the
//! file of `hairpin sip trace --pcap`. Both must say the same.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::domain::Domain;
use super::sip::free_port;
use super::sip_proxy::{CALLER_USER, CallTransports, SippCall, SippRunner};
use crate::process::{self, Process};
use crate::tally::Tally;

const CALLED_USER: &str = "bob";
const START_TIMEOUT: Duration = Duration::from_secs(10);

const TRANSPORTS: CallTransports = CallTransports {
    name: "UDP and TCP",
    caller: "udp",
    callee: "tcp",
    loses: false,
    calls: 1,
    cases: 1,
};

/// The fields of each message that tshark prints.
const TSHARK_FIELDS: [&str; 6] = [
    "sip.Call-ID",
    "sip.CSeq",
    "sip.Method",
    "sip.Status-Code",
    "udp.srcport",
    "udp.dstport",
];

/// Runs the case.
pub(crate) fn run(binary: &Path, root: &Path, logs: &Path) -> Result<Tally> {
    let mut tally = Tally::default();
    let (collector, socket) = (free_port()?, logs.join("sip-trace.sock"));
    let captured = logs.join("sip-trace-hep.pcap");
    let _ = std::fs::remove_file(&captured);
    let mut command = process::command("sngrep");
    command.args([
        "-N",
        "-q",
        "-L",
        &format!("udp:127.0.0.1:{collector}"),
        "-O",
    ]);
    command.arg(&captured);
    let mut sngrep = Process::start("sngrep", command, logs.join("sip-trace-sngrep.log"))?;
    let first = format!("[server]\ncontrol_socket = {socket:?}\n");
    let more = format!(
        "digest_algorithms = [\"MD5\"]\ntrace_memory = \"4MiB\"\ntrace_hep = [\"127.0.0.1:{collector}\"]\n"
    );
    let users = [CALLER_USER, CALLED_USER].map(str::to_owned);
    let mut domain = Domain::start(binary, logs, "sip-trace", &users, [&first, &more])?;
    let sipp_runner = SippRunner {
        registrar: domain.address(),
        sources: root.join("interop/sip-proxy"),
        logs,
    };
    let outcome = call(&sipp_runner).and_then(|()| {
        sngrep.assert_running()?;
        agree(binary, &socket, &captured, logs)
    });
    tally.record(
        "a call as sngrep and tshark see it, by HEP and pcap",
        &outcome,
    );
    tally.record("the traced SIP proxy stops when asked", &domain.finish());
    Ok(tally)
}

/// One call from SIPp to SIPp.
fn call(sipp_runner: &SippRunner<'_>) -> Result<()> {
    let port = free_port()?;
    let call = SippCall {
        name: "sip-trace",
        target: &format!("sip:{CALLED_USER}@example.org"),
        to: sipp_runner.registrar,
    };
    let callee = sipp_runner.callee(
        &call,
        ("callee-answers", 0),
        "sip-trace-0",
        &TRANSPORTS,
        port,
    )?;
    sipp_runner.register(CALLED_USER, "sip-trace-0", &TRANSPORTS, port)?;
    sipp_runner.caller(&call, ("caller-hangs-up", 0), vec![callee], &TRANSPORTS)?;
    Ok(())
}

/// Checks that both captures have the same messages of the call.
fn agree(binary: &Path, socket: &Path, captured: &Path, logs: &Path) -> Result<String> {
    let mut by_hep = BTreeSet::new();
    let mut call_id = String::new();
    let deadline = std::time::Instant::now() + START_TIMEOUT;
    // sngrep writes the file a little later.
    while !by_hep.iter().any(|line: &String| line.contains("\tBYE\t")) {
        ensure!(
            std::time::Instant::now() < deadline,
            "sngrep has captured no BYE: {by_hep:?}"
        );
        std::thread::sleep(Duration::from_millis(200));
        let messages = messages(captured)?;
        let invite = messages.iter().find(|line| line.contains("\tINVITE\t"));
        call_id = invite.map_or(String::new(), |line| {
            line.split('\t').next().unwrap_or_default().to_owned()
        });
        let of_call = |line: &String| !call_id.is_empty() && line.starts_with(&call_id);
        by_hep = messages.into_iter().filter(of_call).collect();
    }
    // The responses to the last BYE.
    std::thread::sleep(Duration::from_secs(1));
    let of_call = |line: &String| line.starts_with(&call_id);
    by_hep = messages(captured)?.into_iter().filter(of_call).collect();
    let file = logs.join("sip-trace.pcap");
    let _ = std::fs::remove_file(&file);
    let mut command = Command::new(binary);
    command
        .args(["sip", "trace", &call_id, "--pcap"])
        .arg(&file);
    let output = command.arg("--socket").arg(socket).output()?;
    ensure!(
        output.status.success(),
        "hairpin sip trace: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let by_pcap: BTreeSet<String> = messages(&file)?.into_iter().collect();
    ensure!(
        by_hep == by_pcap,
        "by HEP only: {:#?}, by pcap only: {:#?}",
        by_hep.difference(&by_pcap).collect::<Vec<_>>(),
        by_pcap.difference(&by_hep).collect::<Vec<_>>()
    );
    // On both sides of the proxy: INVITE, 180, 200, ACK, BYE and 200, and the challenge at the caller.
    for (what, least) in [("\tINVITE\t", 5), ("\tACK\t", 5), ("\tBYE\t", 2)] {
        let found = by_hep.iter().filter(|line| line.contains(what)).count();
        ensure!(found >= least, "{found} of{what}: {by_hep:#?}");
    }
    for code in ["407", "180", "200"] {
        let has = |line: &&String| line.split('\t').nth(3) == Some(code);
        ensure!(
            by_hep.iter().any(|line| has(&line)),
            "no {code}: {by_hep:#?}"
        );
    }
    Ok(format!("{} messages", by_hep.len()))
}

/// The SIP messages in a file: the fields of each, with tabs between.
fn messages(file: &Path) -> Result<Vec<String>> {
    if !file.exists() {
        return Ok(Vec::new());
    }
    let mut command = process::command("tshark");
    // tshark decodes some ports as other protocols (27950 as Quake III). The ports here are random, so any can occur.
    command
        .arg("-r")
        .arg(file)
        .args(["-d", "udp.port==1024-65535,sip"])
        .args(["-Y", "sip", "-T", "fields"]);
    for field in TSHARK_FIELDS {
        command.args(["-e", field]);
    }
    let output = command.output().context("cannot run tshark")?;
    // The file may be cut in the middle of a packet, as it is still being written.
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().map(str::to_owned).collect())
}
