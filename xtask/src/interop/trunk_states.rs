//! Trunks that come and go: SIPp and Kamailio, probed by the proxy. `hairpin sip trunks` tells what the proxy makes of
//! them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::domain::Domain;
use super::sip::free_port;
use super::sip_proxy::{CALLER_USER, CallTransports, SippCall, SippRunner};
use super::sip_trunk::{TRUNK_IP, start_kamailio};
use crate::process::{self, Process};
use crate::tally::Tally;

/// The address of the trunk that is a SIPp.
const SIPP_IP: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 4);
/// How long a change of a state may take.
const STATE_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How many calls a case makes.
const CALL_COUNT: u32 = 10;

const TRANSPORTS: CallTransports = CallTransports {
    name: "UDP",
    caller: "udp",
    callee: "udp",
    loses: false,
    calls: CALL_COUNT,
    cases: 1,
};

/// The responses of SIPp as a trunk.
struct TrunkResponses {
    code: u16,
    /// Header lines of the response to an INVITE.
    lines: &'static str,
}

const PLAIN_RESPONSES: TrunkResponses = TrunkResponses {
    code: 503,
    lines: "Server: SIPp",
};

/// Reads the states of trunks with `hairpin sip trunks`.
pub(super) struct TrunkStates<'a> {
    pub(super) binary: &'a Path,
    pub(super) socket: PathBuf,
}

/// A server with the two trunks, in this order.
struct TwoTrunks<'a> {
    sipp_runner: SippRunner<'a>,
    states: TrunkStates<'a>,
    domain: Domain,
    sipp: u16,
    kamailio: u16,
}

/// Runs all cases.
pub(crate) fn run(binary: &Path, root: &Path, logs: &Path) -> Result<Tally> {
    let (sipp, kamailio) = (free_port()?, free_port()?);
    let socket = logs.join("trunk-states.sock");
    let first = format!("[server]\ncontrol_socket = {socket:?}\n");
    let trunk = |name: &str, at: SocketAddr| {
        format!(
            "[[sip.trunk]]\nname = \"{name}\"\nto = [\"sip:{at}\"]\nprobe_interval = \"1s\"\nprobe_failures = 2\n\
             probe_successes = 3\nslow_start = \"2s\"\n"
        )
    };
    let more = format!(
        "digest_algorithms = [\"MD5\"]\n{}{}[[sip.route]]\nprefixes = [\"+49\"]\ntrunks = [\"sipp\", \"kamailio\"]\n",
        trunk("sipp", (SIPP_IP, sipp).into()),
        trunk("kamailio", (TRUNK_IP, kamailio).into()),
    );
    let users = [CALLER_USER.to_owned()];
    let domain = Domain::start(binary, logs, "trunk-states", &users, [&first, &more])?;
    let mut trunks = TwoTrunks {
        sipp_runner: SippRunner {
            registrar: domain.address(),
            sources: root.join("interop/sip-proxy"),
            logs,
        },
        states: TrunkStates { binary, socket },
        domain,
        sipp,
        kamailio,
    };
    let mut tally = Tally::default();
    for (name, outcome) in [
        (
            "SIPp as a trunk: probes with hysteresis, then slow start",
            trunks.comes_and_goes(),
        ),
        (
            "Kamailio as a trunk: the same",
            trunks.kamailio_comes_and_goes(),
        ),
        ("SIPp as a trunk: 503 with Retry-After", trunks.pauses()),
    ] {
        tally.record(name, &outcome);
    }
    let finished = trunks.domain.finish();
    tally.record("the SIP proxy with two trunks stops when asked", &finished);
    Ok(tally)
}

impl TrunkStates<'_> {
    /// A trunk as `hairpin sip trunks` shows it.
    pub(super) fn trunk(&self, name: &str) -> Result<Value> {
        let mut command = Command::new(self.binary);
        command.args(["sip", "trunks", "--json", "--socket"]);
        let output = command.arg(&self.socket).output()?;
        let text = String::from_utf8(output.stdout)?;
        let trunks: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
        let mut trunks = trunks?.into_iter();
        let found = trunks.find(|trunk| trunk["name"] == name);
        found.with_context(|| format!("no trunk {name} in {text}"))
    }

    pub(super) fn state(&self, name: &str) -> Result<String> {
        let trunk = self.trunk(name)?;
        let state = trunk["addresses"][0]["state"].as_str();
        Ok(state.context("a trunk without a state")?.to_owned())
    }

    /// Waits for this state, and returns the states before it, each once.
    pub(super) fn states_until(&self, name: &str, last: &str) -> Result<Vec<String>> {
        let deadline = Instant::now() + STATE_TIMEOUT;
        let mut states: Vec<String> = Vec::new();
        loop {
            let state = self.state(name)?;
            if state == last {
                return Ok(states);
            }
            if states.last() != Some(&state) {
                states.push(state);
            }
            ensure!(
                Instant::now() < deadline,
                "{name} is not {last}: {states:?}"
            );
            sleep(POLL_INTERVAL);
        }
    }
}

impl TwoTrunks<'_> {
    fn start_sipp(&self, name: &str, answers: &TrunkResponses) -> Result<Process> {
        let template = self.sipp_runner.sources.join("trunk.xml");
        let text = std::fs::read_to_string(&template)
            .with_context(|| format!("cannot read {}", template.display()))?
            .replace("CODE and LINES are those", "Code and lines are those")
            .replace("CODE", &answers.code.to_string())
            .replace("LINES", answers.lines);
        let file = self
            .sipp_runner
            .logs
            .join(format!("trunk-states-{name}.xml"));
        std::fs::write(&file, text)?;
        let mut command = process::command("sipp");
        command.args(["-i", &SIPP_IP.to_string(), "-p", &self.sipp.to_string()]);
        command.arg("-sf").arg(&file);
        command.args(["-t", "u1", "-nostdin", "-default_behaviors", "none"]);
        command.current_dir(self.sipp_runner.logs);
        let log = self
            .sipp_runner
            .logs
            .join(format!("trunk-states-{name}.log"));
        Process::start("SIPp as a trunk", command, log)
    }

    fn start_kamailio(&self, name: &str, next: u16) -> Result<Process> {
        let next = SocketAddr::from((Ipv4Addr::LOCALHOST, next));
        start_kamailio(&self.sipp_runner, name, &TRANSPORTS, (self.kamailio, next))
    }

    /// Stops a trunk that is up, and starts it again.
    fn restarted(
        &self,
        name: &str,
        mut trunk: Process,
        start: impl Fn() -> Result<Process>,
    ) -> Result<String> {
        self.states.states_until(name, "up")?;
        let begun = Instant::now();
        trunk.stop(Duration::from_secs(2))?;
        drop(trunk);
        let before = self.states.states_until(name, "down")?;
        let down = begun.elapsed();
        ensure!(before == ["up"], "before it was down, it was {before:?}");
        // Two probes, of which the first may come at once.
        ensure!(
            down > Duration::from_millis(700),
            "down after {down:?}: one failure was enough"
        );
        let begun = Instant::now();
        let _trunk = start()?;
        let slow = self.states.states_until(name, "slow_start")?;
        let back = begun.elapsed();
        ensure!(
            slow == ["down", "probing"],
            "before it was available, it was {slow:?}"
        );
        // Three probes.
        ensure!(back > Duration::from_millis(1_700), "back after {back:?}");
        let share = self.states.trunk(name)?["addresses"][0]["share"].as_f64();
        ensure!(
            share.is_some_and(|share| share < 1.0),
            "its share is {share:?}"
        );
        let begun = Instant::now();
        let up = self.states.states_until(name, "up")?;
        ensure!(up == ["slow_start"], "before it was up, it was {up:?}");
        let grown = begun.elapsed();
        ensure!(grown > Duration::from_secs(1), "slow start took {grown:?}");
        Ok(format!(
            "down after {:.1} s, back after {:.1} s, up {:.1} s later",
            down.as_secs_f64(),
            back.as_secs_f64(),
            grown.as_secs_f64()
        ))
    }

    fn comes_and_goes(&self) -> Result<String> {
        let start = || self.start_sipp("sipp", &PLAIN_RESPONSES);
        self.restarted("sipp", start()?, start)
    }

    fn kamailio_comes_and_goes(&self) -> Result<String> {
        let nobody = free_port()?;
        let start = || self.start_kamailio("trunk-states", nobody);
        self.restarted("kamailio", start()?, start)
    }

    /// Calls a number, and returns how many requests each trunk has got. Behind Kamailio, somebody answers at this
    /// port.
    fn call(&self, name: &str, port: u16) -> Result<BTreeMap<&'static str, u64>> {
        let target = "sip:+4930123@example.org".to_owned();
        let call = SippCall {
            name,
            target: &target,
            to: self.sipp_runner.registrar,
        };
        let before = self.requests()?;
        let callee = ("callee-answers", 0);
        let callees = vec![self.sipp_runner.callee(
            &call,
            callee,
            &format!("{name}-0"),
            &TRANSPORTS,
            port,
        )?];
        self.sipp_runner
            .caller(&call, ("caller-hangs-up", 0), callees, &TRANSPORTS)?;
        let after = self.requests()?;
        Ok(after
            .into_iter()
            .map(|(trunk, count)| (trunk, count - before[trunk]))
            .collect())
    }

    fn requests(&self) -> Result<BTreeMap<&'static str, u64>> {
        let count = |name| {
            Ok((
                name,
                self.states.trunk(name)?["requests"].as_u64().unwrap_or(0),
            ))
        };
        ["sipp", "kamailio"].into_iter().map(count).collect()
    }

    /// SIPp refuses the first calls and asks for a pause. In the pause it gets no call, and afterwards it starts
    /// slowly.
    fn pauses(&self) -> Result<String> {
        let answers = TrunkResponses {
            code: 503,
            lines: "Retry-After: 10",
        };
        let port = free_port()?;
        let _sipp = self.start_sipp("retry-after", &answers)?;
        let _kamailio = self.start_kamailio("retry-after", port)?;
        for trunk in ["sipp", "kamailio"] {
            self.states.states_until(trunk, "up")?;
        }
        // A probe has told what there is to tell.
        sleep(Duration::from_millis(1_500));
        let begun = Instant::now();
        let first = self.call("retry-after", port)?;
        ensure!(first["sipp"] >= 1, "nothing was refused: {first:?}");
        ensure!(first["kamailio"] >= u64::from(CALL_COUNT), "{first:?}");
        let error = self.states.trunk("sipp")?["addresses"][0]["last_error"].clone();
        ensure!(error == "503", "the last error is {error}");
        let state = self.states.state("sipp")?;
        ensure!(state == "paused", "after the 503 it is {state}");
        let second = self.call("retry-after-again", port)?;
        let state = self.states.state("sipp")?;
        ensure!(
            state == "paused",
            "it is {state} after {:?}: the calls took longer than the pause",
            begun.elapsed()
        );
        ensure!(
            second["sipp"] == 0,
            "calls came in the pause: {second:?} after {first:?}"
        );
        ensure!(second["kamailio"] >= u64::from(CALL_COUNT), "{second:?}");
        let states = self.states.states_until("sipp", "up")?;
        ensure!(
            states == ["paused", "slow_start"],
            "before it was up, it was {states:?}"
        );
        ensure!(
            begun.elapsed() > Duration::from_secs(10),
            "the pause took {:?}",
            begun.elapsed()
        );
        Ok(format!(
            "{} of {CALL_COUNT} calls were refused, and then none came for {:.1} s",
            first["sipp"],
            begun.elapsed().as_secs_f64()
        ))
    }
}
