//! SIPp on both sides of the proxy, which is their registrar as well.
//!
//! Each case registers one user with one or more contacts, at each of which a SIPp answers. Then another SIPp calls the
//! user, with its digest. Both sides must end all calls as their scenarios (`interop/sip-proxy`) say. Over UDP both
//! lose 10 % of the messages that they send or get. Debian's SIPp has no TLS.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::domain::{Domain, PASSWORD};
use super::sip::{START_TIMEOUT, free_port, is_taken};
use crate::process::{self, Ended, Process};
use crate::tally::Tally;

/// How long the calls of a case may take.
const CASE_TIMEOUT: Duration = Duration::from_secs(75);
/// SIPp fails after this many seconds. The longest case with loss has retransmissions of the 200 for 32 s and of BYE
/// for 8 s, then [`TIMEWAIT_MS`].
const SIPP_TIMEOUT_S: &str = "70";
/// For how many milliseconds a side retransmits its last response. The other side repeats a BYE 0.5, 1.5, 3.5, 7.5,
/// 11.5, 15.5 and 19.5 s after the first one. If a side ended after 9 s, all responses would be lost in one run of a
/// hundred. The port would then be closed, and the proxy would respond to the next BYE with 430.
const TIMEWAIT_MS: &str = "20000";
pub(super) const CALLER_USER: &str = "alice";

/// Texts for the placeholders of the 200 to a BYE. If messages are lost, an ACK may arrive after the BYE. SIPp would
/// copy the Via and CSeq of the ACK into the repeated 200, so the scenario stores those of the BYE.
const BYE_TEXTS_WITH_LOSS: [(&str, &str); 3] = [
    (
        "KEEP_BYE",
        r#"<action>
<ereg regexp=".*" search_in="hdr" header="Via:" occurrence="1" check_it="true" assign_to="7"/>
<ereg regexp=".*" search_in="hdr" header="Via:" occurrence="2" check_it="true" assign_to="8"/>
<ereg regexp="[0-9]+ [A-Z]+" search_in="hdr" header="CSeq:" check_it="true" assign_to="9"/>
</action>"#,
    ),
    ("BYE_VIAS", "Via:[$7]\nVia:[$8]"),
    ("BYE_CSEQ", "CSeq: [$9]"),
];
const BYE_TEXTS: [(&str, &str); 3] = [
    ("KEEP_BYE", ""),
    ("BYE_VIAS", "[last_Via:]"),
    ("BYE_CSEQ", "[last_CSeq:]"),
];

/// The scenarios of a call, which runs many times.
struct Case {
    name: &'static str,
    caller: ScenarioRole,
    callees: &'static [ScenarioRole],
}

const fn case(name: &'static str, caller: ScenarioRole, callees: &'static [ScenarioRole]) -> Case {
    Case {
        name,
        caller,
        callees,
    }
}

const CASES: [Case; 8] = [
    case(
        "calls with a second INVITE, BYE of the caller",
        ("caller-hangs-up", 0),
        &[("callee-answers", 0)],
    ),
    case(
        "calls with a BYE of the callee",
        ("caller-is-hung-up", 0),
        &[("callee-hangs-up", 0)],
    ),
    case(
        "calls that are cancelled",
        ("caller-cancels", 0),
        &[("callee-rings", 0)],
    ),
    case(
        "calls to who is busy",
        ("caller-is-refused", 486),
        &[("callee-refuses", 486)],
    ),
    case(
        "calls that are redirected",
        ("caller-is-refused", 302),
        &[("callee-refuses", 302)],
    ),
    case(
        "calls to two phones, one of which is busy",
        ("caller-hangs-up", 0),
        &[("callee-refuses", 486), ("callee-answers", 0)],
    ),
    case(
        "calls that ring at two phones, and one answers",
        ("caller-hangs-up", 0),
        &[("callee-answers", 0), ("callee-rings", 0)],
    ),
    case(
        "calls that ring at two phones and are cancelled",
        ("caller-cancels", 0),
        &[("callee-rings", 0), ("callee-rings", 0)],
    ),
];

/// A call with a reliable provisional response, over the transports of [`PRACK_TRANSPORTS`].
const PRACK_CASE: Case = case(
    "calls with a reliable 183 and PRACK",
    ("caller-pracks", 0),
    &[("callee-pracked", 0)],
);

const PRACK_TRANSPORTS: [(&str, &str); 3] = [("udp", "udp"), ("tcp", "tcp"), ("udp", "tcp")];

/// The transports of the two sides of a call.
#[derive(Clone, Copy)]
pub(super) struct CallTransports {
    pub(super) name: &'static str,
    /// The caller's transport.
    pub(super) caller: &'static str,
    pub(super) callee: &'static str,
    /// Whether SIPp loses messages.
    pub(super) loses: bool,
    pub(super) calls: u32,
    /// How many of [`CASES`] run.
    pub(super) cases: usize,
}

const TRANSPORT_CASES: [CallTransports; 5] = [
    CallTransports {
        name: "UDP",
        caller: "udp",
        callee: "udp",
        loses: false,
        calls: 40,
        cases: 1,
    },
    CallTransports {
        name: "UDP with loss",
        caller: "udp",
        callee: "udp",
        loses: true,
        calls: 40,
        // SIPp repeats nothing that is lost after a second 180, so the last two cases would hang.
        cases: CASES.len() - 2,
    },
    CallTransports {
        name: "TCP",
        caller: "tcp",
        callee: "tcp",
        loses: false,
        calls: 40,
        cases: CASES.len(),
    },
    // The transport changes at the proxy in the dialogs of the first two cases.
    CallTransports {
        name: "UDP to TCP",
        caller: "udp",
        callee: "tcp",
        loses: false,
        calls: 40,
        cases: 2,
    },
    CallTransports {
        name: "TCP to UDP",
        caller: "tcp",
        callee: "udp",
        loses: false,
        calls: 40,
        cases: 2,
    },
];

/// Runs all cases.
pub(crate) fn run(binary: &Path, root: &Path, logs: &Path) -> Result<Tally> {
    let callees = TRANSPORT_CASES
        .iter()
        .enumerate()
        .flat_map(|(transports, w)| (0..w.cases).map(move |case| user(transports, case)));
    let pracked = (0..PRACK_TRANSPORTS.len()).map(|transports| user(transports, CASES.len()));
    let users = std::iter::once(CALLER_USER.to_owned())
        .chain(callees)
        .chain(pracked);
    let users: Vec<String> = users.collect();
    // SIPp 3.6 answers the first challenge, and knows MD5 alone.
    let more = "digest_algorithms = [\"MD5\"]\n";
    let mut domain = Domain::start(binary, logs, "sip-proxy", &users, ["", more])?;
    let sipp_runner = SippRunner {
        registrar: domain.address(),
        sources: root.join("interop/sip-proxy"),
        logs,
    };
    let mut tally = Tally::default();
    for (number, transports) in TRANSPORT_CASES.iter().enumerate() {
        let sipp_runner = &sipp_runner;
        // At once, as the times of retransmissions are most of what they take.
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = CASES[..transports.cases]
                .iter()
                .enumerate()
                .map(|(place, case)| {
                    scope.spawn(move || sipp_runner.case(case, transports, &user(number, place)))
                })
                .collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<String>>| {
                let outcome = thread.join();
                outcome.unwrap_or_else(|_| Err(anyhow::anyhow!("it panicked")))
            };
            threads.into_iter().map(join).collect()
        });
        for (case, outcome) in CASES.iter().zip(&outcomes) {
            tally.record(
                &format!("SIPp: {} over {}", case.name, transports.name),
                outcome,
            );
        }
    }
    for (number, (caller, callee)) in PRACK_TRANSPORTS.into_iter().enumerate() {
        let transports = CallTransports {
            name: "",
            caller,
            callee,
            loses: false,
            calls: 40,
            cases: 1,
        };
        let outcome = sipp_runner.case(&PRACK_CASE, &transports, &user(number, CASES.len()));
        let name = format!("SIPp: {} from {caller} to {callee}", PRACK_CASE.name);
        tally.record(&name, &outcome);
    }
    tally.record("the SIP proxy stops when asked", &domain.finish());
    Ok(tally)
}

/// The user that a case calls.
fn user(transports: usize, case: usize) -> String {
    format!("u{transports}{case}")
}

/// A scenario, and the status code in it; 0 for none.
pub(super) type ScenarioRole = (&'static str, u16);

/// The called user, and the next hop of the caller.
pub(super) struct SippCall<'a> {
    pub(super) name: &'a str,
    /// The URI that is called.
    pub(super) target: &'a str,
    /// The address to which the caller sends its requests.
    pub(super) to: SocketAddr,
}

pub(super) struct SippRunner<'a> {
    pub(super) registrar: SocketAddr,
    /// The folder of the scenarios.
    pub(super) sources: PathBuf,
    pub(super) logs: &'a Path,
}

impl SippRunner<'_> {
    /// Registers the contacts of a user, and calls the user.
    fn case(&self, case: &Case, transports: &CallTransports, user: &str) -> Result<String> {
        let call = SippCall {
            name: user,
            target: &format!("sip:{user}@example.org"),
            to: self.registrar,
        };
        let mut callees = Vec::new();
        for (place, callee) in case.callees.iter().enumerate() {
            let name = format!("{user}-{place}");
            let port = free_port()?;
            callees.push(self.callee(&call, *callee, &name, transports, port)?);
            self.register(user, &name, transports, port)?;
        }
        self.caller(&call, case.caller, callees, transports)
    }

    /// Starts the called side.
    pub(super) fn callee(
        &self,
        call: &SippCall<'_>,
        (scenario, code): ScenarioRole,
        name: &str,
        transports: &CallTransports,
        port: u16,
    ) -> Result<Process> {
        let fill = [
            ("TARGET", call.target.to_owned()),
            ("CODE", code.to_string()),
        ];
        let file = self.scenario(scenario, name, transports, &fill)?;
        let command = self.command(&file, transports.callee, transports, (call.to, port));
        let log = self.logs.join(format!("sip-proxy-{name}.log"));
        let mut callee = Process::start("SIPp", command, log)?;
        wait_until_taken(&mut callee, port, transports.callee)?;
        Ok(callee)
    }

    /// Starts the caller, and waits for the end of both sides.
    pub(super) fn caller(
        &self,
        call: &SippCall<'_>,
        (scenario, code): ScenarioRole,
        mut callees: Vec<Process>,
        transports: &CallTransports,
    ) -> Result<String> {
        let name = format!("{}-caller", call.name);
        let fill = [
            ("TARGET", call.target.to_owned()),
            ("CODE", code.to_string()),
        ];
        let file = self.scenario(scenario, &name, transports, &fill)?;
        let mut command = self.command(
            &file,
            transports.caller,
            transports,
            (call.to, free_port()?),
        );
        command.args(["-auth_uri", call.target.trim_start_matches("sip:")]);
        let log = self.logs.join(format!("sip-proxy-{name}.log"));
        let mut caller = Process::start("SIPp", command, log)?;
        ended_well("the caller", &mut caller)?;
        for callee in &mut callees {
            ended_well("a callee", callee)?;
        }
        Ok(format!("{} calls", transports.calls))
    }

    /// Registers a contact of the user.
    pub(super) fn register(
        &self,
        user: &str,
        name: &str,
        transports: &CallTransports,
        port: u16,
    ) -> Result<()> {
        let transport = transports.callee;
        // With `transport=udp` the proxy would use the flow of the registration, which is another SIPp's.
        let parameter = if transport == "tcp" {
            ";transport=tcp"
        } else {
            ""
        };
        let contact = format!("sip:{user}@127.0.0.1:{port}{parameter}");
        let name = format!("{name}-register");
        let clean = CallTransports {
            loses: false,
            calls: 1,
            ..*transports
        };
        let file = self.scenario("register", &name, transports, &[("CONTACT", contact)])?;
        let mut command = self.command(&file, transport, &clean, (self.registrar, free_port()?));
        command.args(["-s", user, "-au", user, "-ap", PASSWORD]);
        // SIPp's own choice is the address of the server.
        command.args(["-auth_uri", "example.org"]);
        let log = self.logs.join(format!("{name}.log"));
        let mut process = Process::start("SIPp", command, log)?;
        ended_well("the registration", &mut process)
    }

    /// Writes a scenario in which the placeholders of this module are replaced. Returns the file.
    fn scenario(
        &self,
        scenario: &str,
        name: &str,
        transports: &CallTransports,
        fill: &[(&str, String)],
    ) -> Result<PathBuf> {
        let read = |name: &str| {
            let file = self.sources.join(format!("{name}.xml"));
            std::fs::read_to_string(&file).with_context(|| file.display().to_string())
        };
        let mut text = read(scenario)?.replace("<!-- INVITE -->", &read("invite")?);
        // If messages are lost, a BYE may arrive before the ACK, and retransmissions after the end.
        let lossy = [
            (
                "ACK_IS_OPTIONAL",
                // Not `global`: with it, an ACK after the BYE would end the timeout of the next `recv`.
                if transports.loses { "true" } else { "false" },
            ),
            (
                "TIMEWAIT",
                if transports.loses { TIMEWAIT_MS } else { "100" },
            ),
        ];
        // SIPp would take a retransmission of the first INVITE for the second INVITE.
        if transports.loses
            && let Some((before, rest)) = text.split_once("<!-- SECOND -->")
        {
            let (_, behind) = rest.split_once("<!-- END -->").context("no END")?;
            text = [before, behind].concat();
        }
        let bye = if transports.loses {
            BYE_TEXTS_WITH_LOSS
        } else {
            BYE_TEXTS
        };
        for (place, value) in lossy.into_iter().chain(bye) {
            text = text.replace(place, value);
        }
        for (place, value) in fill {
            text = text.replace(place, value);
        }
        let file = self.logs.join(format!("sip-proxy-{name}.xml"));
        std::fs::write(&file, text).with_context(|| file.display().to_string())?;
        Ok(file)
    }

    fn command(
        &self,
        file: &Path,
        transport: &str,
        transports: &CallTransports,
        (to, port): (SocketAddr, u16),
    ) -> std::process::Command {
        let mut command = process::command("sipp");
        command.arg(to.to_string()).args(["-p", &port.to_string()]);
        command.arg("-sf").arg(file);
        let transport = if transport == "tcp" { "t1" } else { "u1" };
        command.args(["-t", transport, "-i", "127.0.0.1", "-nostdin"]);
        command.args(["-m", &transports.calls.to_string(), "-r", "40", "-l", "40"]);
        command.args(["-max_retrans", "10", "-max_invite_retrans", "10"]);
        command.args(["-timeout", SIPP_TIMEOUT_S, "-timeout_error"]);
        // So a second 180 and late retransmissions end no call.
        command.args(["-default_behaviors", "none"]);
        if transports.loses {
            command.args(["-lost", "10"]);
        }
        command.current_dir(self.logs);
        command
    }
}

/// Waits until SIPp listens. It prints nothing, so this checks whether the port is in use.
pub(super) fn wait_until_taken(process: &mut Process, port: u16, transport: &str) -> Result<()> {
    let deadline = Instant::now() + START_TIMEOUT;
    while !is_taken(port, transport) {
        process.assert_running()?;
        ensure!(Instant::now() < deadline, "it is deaf: {}", process.tail());
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Checks the exit status of SIPp, which is 0 if no call has failed.
pub(super) fn ended_well(who: &str, process: &mut Process) -> Result<()> {
    match process.wait(CASE_TIMEOUT)? {
        Ended::Exited(status) if status.success() => Ok(()),
        Ended::Exited(status) => anyhow::bail!("{who} ended with {status}: {}", process.tail()),
        Ended::Killed => anyhow::bail!("{who} hung: {}", process.tail()),
    }
}
