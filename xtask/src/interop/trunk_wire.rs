//! What trunks ask of the proxy, as the trunks see it: SIPp is the trunk, and its log has each message with its time.
//!
//! Calls come from SIPp, too. Trunk `a` asks for something: a pause (Retry-After), or fewer requests (RFC 7339). Or it
//! is absent at first, and comes back (`c`). Trunk `b` takes all other calls. All trunks are busy, so a call is one
//! INVITE.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::domain::Domain;
use super::sip::free_port;
use super::trunk_states::TrunkStates;
use crate::process::{self, Ended, Process};
use crate::tally::Tally;

/// The addresses of the trunks, which are SIPp, and of the caller.
const TRUNK_A_IP: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 4);
const TRUNK_B_IP: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);
const TRUNK_C_IP: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 7);
const CALLER_IP: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 5);

/// The Retry-After of the trunk, in seconds.
const RETRY_AFTER_S: f64 = 3.0;
/// The setting `slow_start` of the trunks.
const SLOW_START_S: f64 = 6.0;
/// How long the trunk requests fewer calls (`oc-validity`).
const OC_VALIDITY: Duration = Duration::from_secs(4);
/// How long the calls of a case may take.
const CASE_TIMEOUT: Duration = Duration::from_secs(90);

/// A number that trunk `a` refuses with 503 and Retry-After.
const PAUSED_NUMBER: &str = "49503";
const NUMBER: &str = "+4930123";
/// The route of this number leads to `c`, then to `b`.
const NUMBER_OF_C: &str = "+4340123";

/// The parameters that a trunk sets in the topmost Via of a 486.
#[derive(Clone, Copy)]
enum ViaParameters {
    /// Those of the request.
    Unchanged,
    /// RFC 7339 §5.1: the trunk requests a loss of one half. A request without the offer of the proxy gets no response.
    Half,
}

impl ViaParameters {
    /// The texts for the placeholders of the scenario: the action, and the header fields.
    fn texts(self) -> [String; 2] {
        match self {
            ViaParameters::Unchanged => [String::new(), "[last_Via:]".to_owned()],
            ViaParameters::Half => [
                "<ereg regexp=\"(.*);oc;oc-algo=&quot;loss&quot;(.*)\" search_in=\"hdr\" header=\"Via:\" \
                 occurrence=\"1\" check_it=\"true\" assign_to=\"all,front,back\"/>\n\
                 <ereg regexp=\".*\" search_in=\"hdr\" header=\"Via:\" occurrence=\"2\" check_it=\"true\" \
                 assign_to=\"second\"/>\n"
                    .to_owned(),
                format!(
                    "Via:[$front];oc=50;oc-algo=\"loss\";oc-validity={};oc-seq=1.[call_number][$back]\nVia:[$second]",
                    OC_VALIDITY.as_millis()
                ),
            ],
        }
    }
}

/// A message in the log of SIPp.
pub(super) struct LoggedMessage {
    /// Seconds since midnight.
    pub(super) at: f64,
    pub(super) is_received: bool,
    pub(super) start_line: String,
    pub(super) call_id: String,
    pub(super) via: String,
    pub(super) to: String,
    pub(super) cseq: String,
}

impl LoggedMessage {
    fn is_invite(&self) -> bool {
        self.is_received && self.start_line.starts_with("INVITE ")
    }

    /// It is a response of the trunk with this code, to this method.
    fn is_answer(&self, code: &str) -> bool {
        !self.is_received && self.start_line.starts_with(&format!("SIP/2.0 {code} "))
    }
}

/// The messages in a log of SIPp, in order.
pub(super) fn read(log: &Path) -> Result<Vec<LoggedMessage>> {
    let text = std::fs::read_to_string(log).with_context(|| log.display().to_string())?;
    let mut all: Vec<LoggedMessage> = Vec::new();
    let mut at = None;
    for line in text.lines() {
        let line = line.trim_end();
        if line.starts_with("------") {
            at = line.split_whitespace().find_map(time_of_day);
        } else if let Some(time) = at
            && (line.contains(" message received") || line.contains(" message sent"))
        {
            at = None;
            all.push(LoggedMessage {
                at: time,
                is_received: line.contains(" message received"),
                start_line: String::new(),
                call_id: String::new(),
                via: String::new(),
                to: String::new(),
                cseq: String::new(),
            });
        } else if let Some(message) = all.last_mut() {
            let value = |name: &str| line.strip_prefix(name).map(|value| value.trim().to_owned());
            if message.start_line.is_empty() {
                line.clone_into(&mut message.start_line);
            } else if let Some(value) = value("Call-ID:") {
                message.call_id = value;
            } else if let Some(value) = value("To:") {
                message.to = value;
            } else if let Some(value) = value("CSeq:") {
                message.cseq = value;
            } else if let Some(value) = value("Via:").filter(|_| message.via.is_empty()) {
                message.via = value;
            }
        }
    }
    Ok(all)
}

/// `04:40:13.123456` in seconds.
fn time_of_day(word: &str) -> Option<f64> {
    let parts: Vec<f64> = word
        .split(':')
        .map(|part| part.parse().ok())
        .collect::<Option<_>>()?;
    match parts[..] {
        [hours, minutes, seconds] => Some(hours * 3600.0 + minutes * 60.0 + seconds),
        _ => None,
    }
}

/// The seconds from one time to another, which may be after midnight.
pub(super) fn seconds_between(from: f64, to: f64) -> f64 {
    let difference = (to - from).rem_euclid(86_400.0);
    if difference > 43_200.0 {
        difference - 86_400.0
    } else {
        difference
    }
}

/// A trunk that is SIPp.
struct SippTrunk {
    process: Process,
    log: PathBuf,
}

impl SippTrunk {
    /// Ends it, and returns its messages.
    fn finish(mut self) -> Result<Vec<LoggedMessage>> {
        self.process.assert_running()?;
        self.process.stop(Duration::from_secs(5))?;
        let messages = read(&self.log)?;
        ensure!(!messages.is_empty(), "{} is empty", self.log.display());
        Ok(messages)
    }
}

struct TrunkTest<'a> {
    sources: PathBuf,
    logs: &'a Path,
    states: TrunkStates<'a>,
    domain: Domain,
    /// The port of all trunks.
    port: u16,
    /// The port of the caller. One socket is one client, so that one worker has all its calls.
    caller: u16,
}

/// Runs all cases.
pub(crate) fn run(binary: &Path, root: &Path, logs: &Path) -> Result<Tally> {
    let (port, caller) = (free_port()?, free_port()?);
    let socket = logs.join("trunk-wire.sock");
    let first = format!("[server]\ncontrol_socket = {socket:?}\n");
    let trunk = |name: &str, ip: Ipv4Addr, probes: &str| {
        format!(
            "[[sip.trunk]]\nname = \"{name}\"\nto = [\"sip:{ip}:{port}\"]\nprobe_interval = \"{probes}\"\n\
             probe_failures = 2\nprobe_successes = 3\nslow_start = \"{SLOW_START_S}s\"\n"
        )
    };
    let route = |prefix: &str, trunks: &str| {
        format!(
            "[[sip.route]]\nprefixes = [\"{prefix}\"]\ntrunks = [{trunks}]\nfrom_trunks = [\"caller\"]\n"
        )
    };
    let more = [
        trunk("a", TRUNK_A_IP, "0s"),
        trunk("b", TRUNK_B_IP, "0s"),
        trunk("c", TRUNK_C_IP, "1s"),
        format!("[[sip.trunk]]\nname = \"caller\"\naddresses = [\"{CALLER_IP}\"]\n"),
        route("+49", "\"a\", \"b\""),
        route("+43", "\"c\", \"b\""),
    ]
    .concat();
    let domain = Domain::start(
        binary,
        logs,
        "trunk-wire",
        &["alice".to_owned()],
        [&first, &more],
    )?;
    let mut test = TrunkTest {
        sources: root.join("interop/sip-proxy"),
        logs,
        states: TrunkStates { binary, socket },
        domain,
        port,
        caller,
    };
    let mut tally = Tally::default();
    for (name, outcome) in [
        (
            "SIPp as a trunk sees no call within its Retry-After, then a growing share",
            test.pauses(),
        ),
        (
            "SIPp as a trunk sees probes until it is available, then a growing share of the calls",
            test.comes_back(),
        ),
        (
            "SIPp as a trunk asks for half of the calls (RFC 7339), and gets half",
            test.reduces(),
        ),
    ] {
        tally.record(name, &outcome);
    }
    let finished = test.domain.finish();
    tally.record("the SIP proxy of these trunks stops when asked", &finished);
    Ok(tally)
}

impl TrunkTest<'_> {
    fn trunk(&self, name: &str, ip: Ipv4Addr, via: ViaParameters) -> Result<SippTrunk> {
        let template = self.sources.join("trunk-wire.xml");
        let [keep, vias] = via.texts();
        let paused = if ip == TRUNK_A_IP {
            PAUSED_NUMBER
        } else {
            "none"
        };
        let text = std::fs::read_to_string(&template)
            .with_context(|| format!("cannot read {}", template.display()))?
            .replace("KEEP_VIAS", &keep)
            .replace("VIAS", &vias)
            .replace("PAUSED", paused)
            .replace("PAUSE", &RETRY_AFTER_S.to_string());
        // SIPp refuses variables that are used once.
        let text = match via {
            ViaParameters::Unchanged => text,
            ViaParameters::Half => {
                text.replace("</scenario>", "<Reference variables=\"all\"/>\n</scenario>")
            }
        };
        let file = self.logs.join(format!("trunk-wire-{name}.xml"));
        std::fs::write(&file, text)?;
        let log = self.logs.join(format!("trunk-wire-{name}-messages.log"));
        let _ = std::fs::remove_file(&log);
        let mut command = process::command("sipp");
        command.args(["-i", &ip.to_string(), "-p", &self.port.to_string()]);
        command.arg("-sf").arg(&file);
        command.args(["-t", "u1", "-nostdin", "-default_behaviors", "none"]);
        command.arg("-trace_msg").arg("-message_file").arg(&log);
        command.current_dir(self.logs);
        let output = self.logs.join(format!("trunk-wire-{name}.log"));
        let process = Process::start("SIPp as a trunk", command, output)?;
        Ok(SippTrunk { process, log })
    }

    /// Makes calls, this many per second.
    fn call(&self, name: &str, number: &str, calls: u32, per_second: u32) -> Result<()> {
        let template = self.sources.join("caller-of-trunks.xml");
        let text = std::fs::read_to_string(&template)
            .with_context(|| format!("cannot read {}", template.display()))?
            .replace("TARGET", &format!("sip:{number}@example.org"));
        let file = self.logs.join(format!("trunk-wire-{name}.xml"));
        std::fs::write(&file, text)?;
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, self.domain.port));
        let mut command = process::command("sipp");
        command.arg(server.to_string()).arg("-sf").arg(&file);
        command.args(["-i", &CALLER_IP.to_string(), "-p", &self.caller.to_string()]);
        command.args(["-m", &calls.to_string(), "-r", &per_second.to_string()]);
        command.args(["-t", "u1", "-nostdin", "-l", "1000"]);
        command.args(["-timeout", "80", "-timeout_error"]);
        command.current_dir(self.logs);
        let log = self.logs.join(format!("trunk-wire-{name}.log"));
        let mut caller = Process::start("SIPp as a caller", command, log)?;
        match caller.wait(CASE_TIMEOUT)? {
            Ended::Exited(status) if status.success() => Ok(()),
            ended => anyhow::bail!("the caller: {ended:?}: {}", caller.tail()),
        }
    }

    /// The trunk answers a call with 503 and Retry-After.
    fn pauses(&mut self) -> Result<String> {
        let a = self.trunk("paused-a", TRUNK_A_IP, ViaParameters::Unchanged)?;
        let b = self.trunk("paused-b", TRUNK_B_IP, ViaParameters::Unchanged)?;
        self.call("paused", &format!("+{PAUSED_NUMBER}"), 1, 1)?;
        self.call("after-a-pause", NUMBER, 600, 50)?;
        let (a, b) = (a.finish()?, b.finish()?);
        let refused = a.iter().find(|message| message.is_answer("503"));
        let refused = refused.context("no call was refused with 503")?.at;
        let calls = |of: &[LoggedMessage]| of.iter().filter(|it| it.is_invite()).count();
        ensure!(calls(&a) > 1, "no call came after the pause");
        let first = a.iter().filter(|it| it.is_invite()).nth(1);
        let first = first.map_or(0.0, |it| seconds_between(refused, it.at));
        ensure!(
            first >= RETRY_AFTER_S,
            "Retry-After is {RETRY_AFTER_S} s, and a call came after {first:.3} s"
        );
        let told = shares(&a, &b, refused + RETRY_AFTER_S)?;
        Ok(format!("first call after {first:.1} s; {told}"))
    }

    /// The trunk was absent. It gets calls after three probes.
    fn comes_back(&mut self) -> Result<String> {
        self.states.states_until("c", "down")?;
        let b = self.trunk("back-b", TRUNK_B_IP, ViaParameters::Unchanged)?;
        let c = self.trunk("back-c", TRUNK_C_IP, ViaParameters::Unchanged)?;
        self.call("back", NUMBER_OF_C, 650, 50)?;
        let (b, c) = (b.finish()?, c.finish()?);
        let probes = c.iter().filter(|it| it.is_answer("200"));
        let third = probes.map(|it| it.at).nth(2);
        let third = third.context("less than three probes")?;
        let early = c.iter().filter(|it| it.is_invite());
        let early = early.filter(|it| seconds_between(it.at, third) > 0.0);
        ensure!(early.count() == 0, "a call came before three probes");
        shares(&c, &b, third)
    }

    /// The trunk asks for half of the calls.
    fn reduces(&mut self) -> Result<String> {
        self.states.states_until("a", "up")?;
        let a = self.trunk("half-a", TRUNK_A_IP, ViaParameters::Half)?;
        let b = self.trunk("half-b", TRUNK_B_IP, ViaParameters::Unchanged)?;
        // RFC 7339 §7.2: the proxy learns the mix of requests for 5 s. The last 300 calls count.
        self.call("half", NUMBER, 800, 80)?;
        let (a, b) = (a.finish()?, b.finish()?);
        let offer = |it: &&LoggedMessage| !it.via.contains(";oc;") || it.via.contains("oc=");
        let other = a.iter().filter(|it| it.is_invite()).find(offer);
        ensure!(
            other.is_none(),
            "a Via without the offer: {}",
            other.map_or("", |it| &it.via)
        );
        let (to_a, to_b) = (late_calls(&a, 500), late_calls(&b, 500));
        ensure!(
            to_a + to_b == 300,
            "{to_a} and {to_b} of 300 calls: a call was lost, or came twice"
        );
        // Five standard deviations.
        ensure!((107..=193).contains(&to_a), "{to_a} of 300 calls");
        // The wish ends with its validity.
        let a = self.trunk("whole-a", TRUNK_A_IP, ViaParameters::Unchanged)?;
        let b = self.trunk("whole-b", TRUNK_B_IP, ViaParameters::Unchanged)?;
        sleep(OC_VALIDITY + Duration::from_millis(500));
        self.call("whole", NUMBER, 50, 50)?;
        let whole = late_calls(&a.finish()?, 0);
        // Without a call, its log is empty.
        drop(b);
        ensure!(whole == 50, "{whole} of 50 calls after the validity");
        Ok(format!("{to_a} of 300 calls, then {whole} of 50"))
    }
}

/// The calls with a number above this. SIPp numbers its calls in the Call-ID: `7-1234@127.0.0.5`.
fn late_calls(messages: &[LoggedMessage], above: u32) -> usize {
    let invites = messages.iter().filter(|it| it.is_invite());
    let calls: BTreeSet<u32> = invites
        .filter_map(|it| it.call_id.split('-').next()?.parse().ok())
        .collect();
    calls.range(above + 1..).count()
}

/// Checks the slow start of the first trunk, which becomes available at `since`: its share grows from none to all. The
/// second trunk gets the other calls.
fn shares(first: &[LoggedMessage], second: &[LoggedMessage], since: f64) -> Result<String> {
    let half = SLOW_START_S / 2.0;
    let share = |from: f64, to: f64| {
        let count = |of: &[LoggedMessage]| {
            let times = of.iter().filter(|it| it.is_invite());
            let times = times.map(|it| seconds_between(since, it.at));
            times.filter(|at| (from..to).contains(at)).count()
        };
        let (to_first, to_second) = (count(first), count(second));
        ensure!(
            to_first + to_second >= 50,
            "too few calls from {from} to {to} s: {to_first} and {to_second}"
        );
        Ok(100 * to_first / (to_first + to_second))
    };
    let early = share(0.0, half)?;
    let late = share(half, SLOW_START_S)?;
    let after = share(SLOW_START_S + 0.5, 60.0)?;
    let told = format!("{early} %, {late} % and {after} % of the calls");
    // A quarter and three quarters, four standard deviations.
    ensure!(
        (8..=42).contains(&early) && (58..=92).contains(&late) && after == 100,
        "{told}"
    );
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_sipp_are_read_and_compared_across_midnight() {
        assert_eq!(time_of_day("04:40:13.5"), Some(16_813.5));
        assert_eq!(time_of_day("2026-11-27"), None);
        assert!((seconds_between(86_399.0, 1.0) - 2.0).abs() < 1e-9);
        assert!((seconds_between(1.0, 86_399.0) + 2.0).abs() < 1e-9);
    }
}
