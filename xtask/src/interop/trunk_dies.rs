//! A trunk that dies under 200 calls per second. SIPp is the caller and each trunk.
//!
//! The trunk dies in two ways: its process is killed, so that its host sends ICMP errors; or it is stopped (SIGSTOP),
//! so that nothing comes from its address. Then an INVITE moves on to the second trunk after `answer_timeout`. Only
//! calls that rang or were answered at the dead trunk may be lost. The tags in To have the process id of the trunk.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use super::domain::Domain;
use super::sip::{START_TIMEOUT, free_port};
use super::trunk_wire::{LoggedMessage, read, seconds_between};
use crate::process::{self, Ended, Process};
use crate::tally::Tally;

/// The names and addresses of the trunks. The first one is killed, the second one is stopped. The third one gets the
/// calls that move on.
const TRUNKS: [(&str, Ipv4Addr); 3] = [
    ("killed", Ipv4Addr::new(127, 0, 0, 4)),
    ("stopped", Ipv4Addr::new(127, 0, 0, 6)),
    ("other", Ipv4Addr::new(127, 0, 0, 7)),
];
const CALLER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 5);

const CALLS: u32 = 600;
const PER_SECOND: u32 = 200;
/// When the trunk dies.
const DIES: Duration = Duration::from_secs(1);
/// The setting `answer_timeout` of the trunks, in seconds.
const ANSWER_TIMEOUT_S: f64 = 2.0;
/// The time limit for all calls of a case.
const LIMIT: Duration = Duration::from_secs(60);

/// A call as the caller sees it.
#[derive(Debug, Default)]
struct Call {
    begun: Option<f64>,
    /// The trunks (process ids) that have sent a 180.
    rang: Vec<u32>,
    /// The time of the first 200, and the trunk (process id) that has sent it.
    answered: Option<(f64, u32)>,
    /// Another final response.
    refused: Option<String>,
    /// The BYE has its 200.
    is_ended: bool,
}

/// What became of all calls.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    /// Without a 200, after a 180 of the dead trunk.
    lost_ringing: usize,
    /// Answered by the dead trunk, which did not answer the BYE.
    lost_answered: usize,
    /// By the other trunk, from begin to end.
    by_other: usize,
    /// Among them, those that waited for `answer_timeout` first.
    waited: usize,
    /// The longest time from an INVITE to its 200.
    slowest: f64,
}

/// Runs all cases.
pub(crate) fn run(binary: &Path, root: &Path, logs: &Path) -> Result<Tally> {
    let (port, caller) = (free_port()?, free_port()?);
    let trunks = TRUNKS.map(|(name, ip)| {
        format!(
            "[[sip.trunk]]\nname = \"{name}\"\nto = [\"sip:{ip}:{port}\"]\nprobe_interval = \"0s\"\n\
             answer_timeout = \"{ANSWER_TIMEOUT_S}s\"\n"
        )
    });
    let route = |prefix: &str, first: &str| {
        format!(
            "[[sip.route]]\nprefixes = [\"{prefix}\"]\ntrunks = [\"{first}\", \"other\"]\nfrom_trunks = [\"caller\"]\n"
        )
    };
    let more = [
        trunks.concat(),
        format!("[[sip.trunk]]\nname = \"caller\"\naddresses = [\"{CALLER}\"]\n"),
        route("+49", "killed"),
        route("+43", "stopped"),
    ]
    .concat();
    let users = ["alice".to_owned()];
    let mut bench = Bench {
        sources: root.join("interop/sip-proxy"),
        logs,
        domain: Domain::start(binary, logs, "trunk-dies", &users, ["", &more])?,
        port,
        caller,
    };
    let mut tally = Tally::default();
    for (name, outcome) in [
        (
            "SIPp as a trunk is killed under 200 calls/s: only calls that it had are lost",
            bench.dies(0, "+4930123", Signal::SIGKILL),
        ),
        (
            "SIPp as a trunk is stopped under 200 calls/s: the others move on after 2 s",
            bench.dies(1, "+4340123", Signal::SIGSTOP),
        ),
    ] {
        tally.record(name, &outcome);
    }
    let finished = bench.domain.finish();
    tally.record("the SIP proxy of dead trunks stops when asked", &finished);
    Ok(tally)
}

struct Bench<'a> {
    sources: PathBuf,
    logs: &'a Path,
    domain: Domain,
    /// The port of all trunks.
    port: u16,
    /// The port of the caller. One socket is one client, so that one worker has all its calls.
    caller: u16,
}

impl Bench<'_> {
    /// Starts a trunk, and waits until it listens.
    fn trunk(&self, (name, ip): (&str, Ipv4Addr), case: &str) -> Result<Process> {
        let mut command = process::command("sipp");
        command.args(["-i", &ip.to_string(), "-p", &self.port.to_string()]);
        command
            .arg("-sf")
            .arg(self.sources.join("trunk-answers.xml"));
        command.args(["-t", "u1", "-nostdin", "-default_behaviors", "none"]);
        command.current_dir(self.logs);
        let log = self.logs.join(format!("trunk-dies-{case}-{name}.log"));
        let mut trunk = Process::start("SIPp as a trunk", command, log)?;
        let deadline = Instant::now() + START_TIMEOUT;
        while UdpSocket::bind((ip, self.port)).is_ok() {
            trunk.assert_running()?;
            ensure!(Instant::now() < deadline, "{name} does not listen");
            sleep(Duration::from_millis(20));
        }
        Ok(trunk)
    }

    /// Begins to call. Returns the caller and its log of messages.
    fn call(&self, case: &str, number: &str) -> Result<(Process, PathBuf)> {
        let template = self.sources.join("caller-of-dying-trunk.xml");
        let text = std::fs::read_to_string(&template)
            .with_context(|| format!("cannot read {}", template.display()))?
            .replace("TARGET is the URI", "The target is the URI")
            .replace("TARGET", &format!("sip:{number}@example.org"));
        let file = self.logs.join(format!("trunk-dies-{case}.xml"));
        std::fs::write(&file, text)?;
        let messages = self.logs.join(format!("trunk-dies-{case}-messages.log"));
        let _ = std::fs::remove_file(&messages);
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, self.domain.port));
        let mut command = process::command("sipp");
        command.arg(server.to_string()).arg("-sf").arg(&file);
        command.args(["-i", &CALLER.to_string(), "-p", &self.caller.to_string()]);
        command.args(["-m", &CALLS.to_string(), "-r", &PER_SECOND.to_string()]);
        command.args(["-t", "u1", "-nostdin", "-l", "2000"]);
        command.args(["-default_behaviors", "none", "-timeout", "50"]);
        command
            .arg("-trace_msg")
            .arg("-message_file")
            .arg(&messages);
        command.current_dir(self.logs);
        let log = self.logs.join(format!("trunk-dies-{case}.log"));
        let caller = Process::start("SIPp as a caller", command, log)?;
        Ok((caller, messages))
    }

    /// Calls a number whose route leads to this trunk, then to the other one. The trunk gets the signal.
    fn dies(&self, trunk: usize, number: &str, signal: Signal) -> Result<String> {
        let (name, _) = TRUNKS[trunk];
        let dying = self.trunk(TRUNKS[trunk], name)?;
        let other = self.trunk(TRUNKS[2], name)?;
        let (mut caller, messages) = self.call(name, number)?;
        sleep(DIES);
        caller.assert_running()?;
        dying.signal(signal)?;
        let ended = caller.wait(LIMIT)?;
        ensure!(ended != Ended::Killed, "it hung: {}", caller.tail());
        let outcome = judge(&read(&messages)?, [dying.id(), other.id()])?;
        let is_silent = signal == Signal::SIGSTOP;
        ensure!(
            outcome.waited > 0 || !is_silent,
            "no call has waited: {outcome:?}"
        );
        Ok(format!(
            "{} rang and {} were answered at it, {} of the others waited, the slowest took {:.1} s",
            outcome.lost_ringing, outcome.lost_answered, outcome.waited, outcome.slowest
        ))
    }
}

/// The trunk that has sent a response, by the tag in To: `7s8` is call 8 of process 7.
fn trunk_of(to: &str) -> Option<u32> {
    let (_, tag) = to.split_once(";tag=")?;
    tag.split('s').next()?.parse().ok()
}

/// Reads what became of each call.
fn calls_of(messages: &[LoggedMessage]) -> Result<BTreeMap<&str, Call>> {
    let mut calls: BTreeMap<&str, Call> = BTreeMap::new();
    for message in messages {
        let call = calls.entry(&message.call_id).or_default();
        let start = &*message.start_line;
        if !message.is_received {
            if start.starts_with("INVITE ") {
                call.begun.get_or_insert(message.at);
            }
            continue;
        }
        let code = start.strip_prefix("SIP/2.0 ").and_then(|it| it.get(..3));
        let method = message.cseq.split_whitespace().nth(1);
        match (code, method) {
            (Some("100"), _) => {}
            (Some("180"), Some("INVITE")) => {
                call.rang
                    .push(trunk_of(&message.to).context("a 180 of nobody")?);
            }
            (Some("200"), Some("INVITE")) => {
                let trunk = trunk_of(&message.to).context("a 200 of nobody")?;
                call.answered.get_or_insert((message.at, trunk));
            }
            (Some("200"), Some("BYE")) => call.is_ended = true,
            (Some(_), Some("INVITE")) => call.refused = Some(start.to_owned()),
            // A BYE to the dead trunk.
            (Some(_), Some("BYE")) => {}
            _ => anyhow::bail!("an unexpected message: {start}"),
        }
    }
    Ok(calls)
}

/// Checks each call. `trunks` are the process ids of the dead trunk and of the other one.
fn judge(messages: &[LoggedMessage], [dead, other]: [u32; 2]) -> Result<Outcome> {
    let calls = calls_of(messages)?;
    let count = calls.len();
    ensure!(count == CALLS as usize, "{count} of {CALLS} calls");
    let mut outcome = Outcome::default();
    for (id, call) in &calls {
        let begun = call.begun.context("a call without an INVITE")?;
        match call.answered {
            None => {
                ensure!(
                    call.rang == [dead],
                    "call {id} was lost ({:?}), and rang at {:?}; {dead} died",
                    call.refused,
                    call.rang
                );
                outcome.lost_ringing += 1;
            }
            Some((_, trunk)) if !call.is_ended => {
                ensure!(trunk == dead, "the BYE of call {id} at {trunk} was lost");
                outcome.lost_answered += 1;
            }
            Some((at, trunk)) => {
                let took = seconds_between(begun, at);
                outcome.slowest = outcome.slowest.max(took);
                outcome.by_other += usize::from(trunk == other);
                outcome.waited += usize::from(trunk == other && took >= ANSWER_TIMEOUT_S);
            }
        }
    }
    ensure!(outcome.lost_ringing > 0, "no call rang when the trunk died");
    // 200 calls per second: 300 ms of ringing, 200 ms until the BYE, and some more on a busy machine.
    let lost = outcome.lost_ringing + outcome.lost_answered;
    ensure!(lost <= 200, "{lost} calls were lost");
    // The calls of the last two seconds, without those that the machine has delayed.
    ensure!(outcome.by_other >= 200, "{outcome:?}");
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(
        call: u32,
        at: f64,
        is_received: bool,
        start_line: &str,
        more: [&str; 2],
    ) -> LoggedMessage {
        LoggedMessage {
            at,
            is_received,
            start_line: start_line.to_owned(),
            call_id: format!("{call}-1@127.0.0.5"),
            via: String::new(),
            to: more[0].to_owned(),
            cseq: more[1].to_owned(),
        }
    }

    /// Process 7 dies after 100 calls, the last 20 of which ring. All others have process 8.
    fn good() -> Vec<LoggedMessage> {
        let mut all = Vec::new();
        for call in 0..CALLS {
            let trunk = if call < 100 { 7 } else { 8 };
            let to = &format!("<sip:+4930123@example.org>;tag={trunk}s{call}");
            let at = f64::from(call);
            all.push(message(
                call,
                at,
                false,
                "INVITE sip:a SIP/2.0",
                ["", "1 INVITE"],
            ));
            all.push(message(
                call,
                at,
                true,
                "SIP/2.0 180 Ringing",
                [to, "1 INVITE"],
            ));
            if !(80..100).contains(&call) {
                let took = if call == 100 { 2.5 } else { 0.3 };
                all.push(message(
                    call,
                    at + took,
                    true,
                    "SIP/2.0 200 OK",
                    [to, "1 INVITE"],
                ));
                all.push(message(
                    call,
                    at + 3.0,
                    true,
                    "SIP/2.0 200 OK",
                    [to, "2 BYE"],
                ));
            }
        }
        all
    }

    #[test]
    fn only_calls_of_the_dead_trunk_may_be_lost() {
        let outcome = judge(&good(), [7, 8]).unwrap();
        assert_eq!((outcome.lost_ringing, outcome.lost_answered), (20, 0));
        assert_eq!((outcome.by_other, outcome.waited), (500, 1));
        assert!((outcome.slowest - 2.5).abs() < 1e-9);
        let without = |index: usize| {
            let mut all = good();
            let removed = all.remove(index);
            (judge(&all, [7, 8]), removed)
        };
        let place = |call: u32, start: &str, cseq: &str| {
            let id = format!("{call}-1@127.0.0.5");
            let is_it = |it: &LoggedMessage| {
                it.call_id == id && it.start_line.starts_with(start) && it.cseq == cseq
            };
            good().iter().position(is_it).unwrap()
        };
        // Without the BYE's response: at the dead trunk, and at the other one.
        assert_eq!(
            without(place(3, "SIP/2.0 200", "2 BYE"))
                .0
                .unwrap()
                .lost_answered,
            1
        );
        assert!(without(place(300, "SIP/2.0 200", "2 BYE")).0.is_err());
        // Lost before it rang, and lost at the other trunk.
        assert!(without(place(90, "SIP/2.0 180", "1 INVITE")).0.is_err());
        assert!(without(place(300, "SIP/2.0 200", "1 INVITE")).0.is_err());
    }
}
