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
use super::sip::{START, free_port, is_taken};
use crate::process::{self, Ended, Process};
use crate::tally::Tally;

/// How long the calls of a case may take.
const LIMIT: Duration = Duration::from_secs(75);
/// After this many seconds SIPp gives up. The longest case with loss: 200 repeated for 32 s, BYE for 8 s, then
/// [`TIMEWAIT`].
const SIPP_TIMEOUT: &str = "70";
/// How many milliseconds a side repeats its last response. The other side repeats a BYE 0.5, 1.5, 3.5, 7.5, 11.5, 15.5
/// and 19.5 s after the first one. If a side ended after 9 s, all responses would be lost in one run of a hundred. The
/// port would then be closed, and the proxy would respond to the next BYE with 430.
const TIMEWAIT: &str = "20000";
pub(super) const CALLER: &str = "alice";

/// Texts for the placeholders of the 200 to a BYE. If messages are lost, an ACK may arrive after the BYE. SIPp would
/// copy the Via and CSeq of the ACK into the repeated 200, so the scenario stores those of the BYE.
const BYE_WITH_LOSS: [(&str, &str); 3] = [
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
const BYE: [(&str, &str); 3] = [
    ("KEEP_BYE", ""),
    ("BYE_VIAS", "[last_Via:]"),
    ("BYE_CSEQ", "[last_CSeq:]"),
];

/// One call, many times.
struct Case {
    name: &'static str,
    caller: Role,
    callees: &'static [Role],
}

const fn case(name: &'static str, caller: Role, callees: &'static [Role]) -> Case {
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

/// A call with a reliable provisional response, over the transports of [`PRACK_WAYS`].
const PRACK: Case = case(
    "calls with a reliable 183 and PRACK",
    ("caller-pracks", 0),
    &[("callee-pracked", 0)],
);

const PRACK_WAYS: [(&str, &str); 3] = [("udp", "udp"), ("tcp", "tcp"), ("udp", "tcp")];

/// How the two sides reach the proxy.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub(super) name: &'static str,
    /// The caller's transport.
    pub(super) caller: &'static str,
    pub(super) callee: &'static str,
    /// Whether SIPp loses messages.
    pub(super) loses: bool,
    pub(super) calls: u32,
    /// How many of [`CASES`] there are.
    pub(super) cases: usize,
}

const WAYS: [Way; 5] = [
    Way {
        name: "UDP",
        caller: "udp",
        callee: "udp",
        loses: false,
        calls: 40,
        cases: 1,
    },
    Way {
        name: "UDP with loss",
        caller: "udp",
        callee: "udp",
        loses: true,
        calls: 40,
        // SIPp repeats nothing that is lost after a second 180, so the last two cases would hang.
        cases: CASES.len() - 2,
    },
    Way {
        name: "TCP",
        caller: "tcp",
        callee: "tcp",
        loses: false,
        calls: 40,
        cases: CASES.len(),
    },
    // The transport changes at the proxy in the dialogs of the first two cases.
    Way {
        name: "UDP to TCP",
        caller: "udp",
        callee: "tcp",
        loses: false,
        calls: 40,
        cases: 2,
    },
    Way {
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
    let callees = WAYS
        .iter()
        .enumerate()
        .flat_map(|(way, w)| (0..w.cases).map(move |case| user(way, case)));
    let pracked = (0..PRACK_WAYS.len()).map(|way| user(way, CASES.len()));
    let users = std::iter::once(CALLER.to_owned())
        .chain(callees)
        .chain(pracked);
    let users: Vec<String> = users.collect();
    // SIPp 3.6 answers the first challenge, and knows MD5 alone.
    let more = "digest_algorithms = [\"MD5\"]\n";
    let mut domain = Domain::start(binary, logs, "sip-proxy", &users, ["", more])?;
    let bench = Bench {
        registrar: domain.address(),
        sources: root.join("interop/sip-proxy"),
        logs,
    };
    let mut tally = Tally::default();
    for (number, way) in WAYS.iter().enumerate() {
        let bench = &bench;
        // At once, as the times of retransmissions are most of what they take.
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = CASES[..way.cases]
                .iter()
                .enumerate()
                .map(|(place, case)| {
                    scope.spawn(move || bench.case(case, way, &user(number, place)))
                })
                .collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<String>>| {
                let outcome = thread.join();
                outcome.unwrap_or_else(|_| Err(anyhow::anyhow!("it panicked")))
            };
            threads.into_iter().map(join).collect()
        });
        for (case, outcome) in CASES.iter().zip(&outcomes) {
            tally.record(&format!("SIPp: {} over {}", case.name, way.name), outcome);
        }
    }
    for (number, (caller, callee)) in PRACK_WAYS.into_iter().enumerate() {
        let way = Way {
            name: "",
            caller,
            callee,
            loses: false,
            calls: 40,
            cases: 1,
        };
        let outcome = bench.case(&PRACK, &way, &user(number, CASES.len()));
        let name = format!("SIPp: {} from {caller} to {callee}", PRACK.name);
        tally.record(&name, &outcome);
    }
    tally.record("the SIP proxy stops when asked", &domain.finish());
    Ok(tally)
}

/// Who is called in a case.
fn user(way: usize, case: usize) -> String {
    format!("u{way}{case}")
}

/// A scenario, and the code that it is about, if it is about one.
pub(super) type Role = (&'static str, u16);

/// Who is called, and by way of whom.
pub(super) struct Call<'a> {
    pub(super) name: &'a str,
    /// The URI that is called.
    pub(super) target: &'a str,
    /// Where the caller sends its requests.
    pub(super) to: SocketAddr,
}

pub(super) struct Bench<'a> {
    pub(super) registrar: SocketAddr,
    /// The folder of the scenarios.
    pub(super) sources: PathBuf,
    pub(super) logs: &'a Path,
}

impl Bench<'_> {
    /// Calls a user at all contacts, each of which is bound first.
    fn case(&self, case: &Case, way: &Way, user: &str) -> Result<String> {
        let call = Call {
            name: user,
            target: &format!("sip:{user}@example.org"),
            to: self.registrar,
        };
        let mut callees = Vec::new();
        for (place, callee) in case.callees.iter().enumerate() {
            let name = format!("{user}-{place}");
            let port = free_port()?;
            callees.push(self.callee(&call, *callee, &name, way, port)?);
            self.register(user, &name, way, port)?;
        }
        self.caller(&call, case.caller, callees, way)
    }

    /// Starts who answers.
    pub(super) fn callee(
        &self,
        call: &Call<'_>,
        (scenario, code): Role,
        name: &str,
        way: &Way,
        port: u16,
    ) -> Result<Process> {
        let fill = [
            ("TARGET", call.target.to_owned()),
            ("CODE", code.to_string()),
        ];
        let file = self.scenario(scenario, name, way, &fill)?;
        let command = self.command(&file, way.callee, way, (call.to, port));
        let log = self.logs.join(format!("sip-proxy-{name}.log"));
        let mut callee = Process::start("SIPp", command, log)?;
        wait_until_taken(&mut callee, port, way.callee)?;
        Ok(callee)
    }

    /// Calls, and waits until all have ended.
    pub(super) fn caller(
        &self,
        call: &Call<'_>,
        (scenario, code): Role,
        mut callees: Vec<Process>,
        way: &Way,
    ) -> Result<String> {
        let name = format!("{}-caller", call.name);
        let fill = [
            ("TARGET", call.target.to_owned()),
            ("CODE", code.to_string()),
        ];
        let file = self.scenario(scenario, &name, way, &fill)?;
        let mut command = self.command(&file, way.caller, way, (call.to, free_port()?));
        command.args(["-auth_uri", call.target.trim_start_matches("sip:")]);
        let log = self.logs.join(format!("sip-proxy-{name}.log"));
        let mut caller = Process::start("SIPp", command, log)?;
        ended_well("the caller", &mut caller)?;
        for callee in &mut callees {
            ended_well("a callee", callee)?;
        }
        Ok(format!("{} calls", way.calls))
    }

    /// Binds a contact to the user.
    pub(super) fn register(&self, user: &str, name: &str, way: &Way, port: u16) -> Result<()> {
        let transport = way.callee;
        // With `transport=udp` the proxy would use the flow of the registration, which is another SIPp's.
        let parameter = if transport == "tcp" {
            ";transport=tcp"
        } else {
            ""
        };
        let contact = format!("sip:{user}@127.0.0.1:{port}{parameter}");
        let name = format!("{name}-register");
        let clean = Way {
            loses: false,
            calls: 1,
            ..*way
        };
        let file = self.scenario("register", &name, way, &[("CONTACT", contact)])?;
        let mut command = self.command(&file, transport, &clean, (self.registrar, free_port()?));
        command.args(["-s", user, "-au", user, "-ap", PASSWORD]);
        // SIPp's own choice is the address of the server.
        command.args(["-auth_uri", "example.org"]);
        let log = self.logs.join(format!("{name}.log"));
        let mut process = Process::start("SIPp", command, log)?;
        ended_well("the registration", &mut process)
    }

    /// A scenario with the places filled in that are not SIPp's to fill. Returns the file.
    fn scenario(
        &self,
        scenario: &str,
        name: &str,
        way: &Way,
        fill: &[(&str, String)],
    ) -> Result<PathBuf> {
        let read = |name: &str| {
            let file = self.sources.join(format!("{name}.xml"));
            std::fs::read_to_string(&file).with_context(|| file.display().to_string())
        };
        let mut text = read(scenario)?.replace("<!-- INVITE -->", &read("invite")?);
        // Where messages are lost, a BYE may come before its ACK, and repetitions after the end.
        let lossy = [
            (
                "ACK_IS_OPTIONAL",
                // Not `global`: with it, an ACK after the BYE would end the timeout of the next `recv`.
                if way.loses { "true" } else { "false" },
            ),
            ("TIMEWAIT", if way.loses { TIMEWAIT } else { "100" }),
        ];
        // A repetition of the first INVITE would be taken for the second.
        if way.loses
            && let Some((before, rest)) = text.split_once("<!-- SECOND -->")
        {
            let (_, behind) = rest.split_once("<!-- END -->").context("no END")?;
            text = [before, behind].concat();
        }
        let bye = if way.loses { BYE_WITH_LOSS } else { BYE };
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
        way: &Way,
        (to, port): (SocketAddr, u16),
    ) -> std::process::Command {
        let mut command = process::command("sipp");
        command.arg(to.to_string()).args(["-p", &port.to_string()]);
        command.arg("-sf").arg(file);
        let transport = if transport == "tcp" { "t1" } else { "u1" };
        command.args(["-t", transport, "-i", "127.0.0.1", "-nostdin"]);
        command.args(["-m", &way.calls.to_string(), "-r", "40", "-l", "40"]);
        command.args(["-max_retrans", "10", "-max_invite_retrans", "10"]);
        command.args(["-timeout", SIPP_TIMEOUT, "-timeout_error"]);
        // A second 180, and what comes again too late for the scenario, ends no call.
        command.args(["-default_behaviors", "none"]);
        if way.loses {
            command.args(["-lost", "10"]);
        }
        command.current_dir(self.logs);
        command
    }
}

/// SIPp says nothing that could be waited for; the port is taken when it listens.
pub(super) fn wait_until_taken(process: &mut Process, port: u16, transport: &str) -> Result<()> {
    let deadline = Instant::now() + START;
    while !is_taken(port, transport) {
        process.assert_running()?;
        ensure!(Instant::now() < deadline, "it is deaf: {}", process.tail());
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// SIPp's exit status is 0 if no call has failed.
pub(super) fn ended_well(who: &str, process: &mut Process) -> Result<()> {
    match process.wait(LIMIT)? {
        Ended::Exited(status) if status.success() => Ok(()),
        Ended::Exited(status) => anyhow::bail!("{who} ended with {status}: {}", process.tail()),
        Ended::Killed => anyhow::bail!("{who} hung: {}", process.tail()),
    }
}
