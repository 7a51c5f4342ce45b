//! A trunk that wants a registration and a digest: hairpin registers at Kamailio, as a PBX does at its carrier. SIPp
//! calls in both directions. Kamailio grants 4 s, so calls after that time show that hairpin refreshes.

use std::net::SocketAddr;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::domain::{Domain, PASSWORD};
use super::sip::free_port;
use super::sip_proxy::{CALLER_USER, CallTransports, SippCall, SippRunner};
use super::sip_trunk::{TRUNK_IP, run_kamailio};
use super::trunk_states::TrunkStates;
use crate::process::Process;
use crate::tally::Tally;

/// The user of hairpin that the carrier knows.
const OFFICE_USER: &str = "office";
/// How long a change of the registration may take.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(60);
/// Longer than the registration that Kamailio grants.
const AFTER_EXPIRY: Duration = Duration::from_secs(6);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

const TRANSPORTS: CallTransports = CallTransports {
    name: "UDP",
    caller: "udp",
    callee: "udp",
    loses: false,
    calls: 10,
    cases: 1,
};

struct TrunkLine<'a> {
    sipp_runner: SippRunner<'a>,
    states: TrunkStates<'a>,
    carrier: SocketAddr,
    /// The port to which Kamailio sends calls for other users than the office.
    next: u16,
    domain: Domain,
    _kamailio: Process,
}

/// Runs all cases.
pub(crate) fn run(binary: &Path, root: &Path, logs: &Path) -> Result<Tally> {
    let mut line = start(binary, root, logs)?;
    let mut tally = Tally::default();
    for (name, outcome) in [
        (
            "hairpin registers at Kamailio with a digest",
            line.registers(),
        ),
        (
            "Kamailio calls hairpin by the registration, also when it has been refreshed",
            line.is_called(),
        ),
        (
            "calls to Kamailio: hairpin answers 407 for its callers",
            line.calls(),
        ),
        (
            "hairpin has a wrong password: Kamailio refuses it",
            line.is_refused(),
        ),
    ] {
        tally.record(name, &outcome);
    }
    let finished = line.domain.finish();
    tally.record("the customer of Kamailio stops when asked", &finished);
    Ok(tally)
}

fn start<'a>(binary: &'a Path, root: &Path, logs: &'a Path) -> Result<TrunkLine<'a>> {
    let (carrier, next) = (SocketAddr::from((TRUNK_IP, free_port()?)), free_port()?);
    let template = root.join("interop/sip-proxy/kamailio-line.cfg");
    let mut config = std::fs::read_to_string(&template)
        .with_context(|| format!("cannot read {}", template.display()))?;
    for (place, value) in [
        ("NEXT", format!("127.0.0.1:{next}")),
        ("ADDRESS", TRUNK_IP.to_string()),
        ("PORT", carrier.port().to_string()),
    ] {
        config = config.replace(place, &value);
    }
    let kamailio = run_kamailio(logs, "trunk-line", &config, carrier.port())?;
    let socket = logs.join("trunk-line.sock");
    let first = format!("[server]\ncontrol_socket = {socket:?}\n");
    let trunk = |name: &str, user: &str, password: &str| {
        format!(
            "[[sip.trunk]]\nname = \"{name}\"\nto = [\"sip:{carrier}\"]\nprobe_interval = \"0s\"\n\
             domain = \"carrier.example\"\nuser = \"{OFFICE_USER}\"\npassword = \"{password}\"\nrealm = \"carrier.example\"\n\
             register = \"sip:{user}@carrier.example\"\n\
             register_contact = \"sip:{user}@127.0.0.1:OWN_PORT\"\n"
        )
    };
    // The second one never registers: its password is wrong.
    let more = format!(
        "digest_algorithms = [\"MD5\"]\n{}{}[[sip.route]]\ndomains = [\"carrier.example\"]\ntrunks = [\"line\"]\n",
        trunk("line", OFFICE_USER, PASSWORD),
        trunk("wrong", OFFICE_USER, "guessed"),
    );
    let users = [CALLER_USER, OFFICE_USER].map(str::to_owned);
    let domain = Domain::start(binary, logs, "trunk-line", &users, [&first, &more])?;
    Ok(TrunkLine {
        sipp_runner: SippRunner {
            registrar: domain.address(),
            sources: root.join("interop/sip-proxy"),
            logs,
        },
        states: TrunkStates { binary, socket },
        carrier,
        next,
        domain,
        _kamailio: kamailio,
    })
}

impl TrunkLine<'_> {
    fn registers(&mut self) -> Result<String> {
        let begun = Instant::now();
        while self.states.trunk("line")?["registered"] != true {
            ensure!(
                begun.elapsed() < REGISTRATION_TIMEOUT,
                "it is not registered"
            );
            sleep(POLL_INTERVAL);
        }
        Ok(format!("after {:.1} s", begun.elapsed().as_secs_f64()))
    }

    /// SIPp calls the office at Kamailio, at once and after the time that Kamailio has granted.
    fn is_called(&mut self) -> Result<String> {
        let mut told = String::new();
        let port = free_port()?;
        for (number, pause) in [Duration::ZERO, AFTER_EXPIRY].into_iter().enumerate() {
            sleep(pause);
            let name = format!("line-in-{number}");
            let call = SippCall {
                name: &name,
                target: &format!("sip:{OFFICE_USER}@carrier.example"),
                to: self.carrier,
            };
            let role = ("callee-answers", 0);
            let callee =
                self.sipp_runner
                    .callee(&call, role, &format!("{name}-0"), &TRANSPORTS, port)?;
            if number == 0 {
                self.sipp_runner
                    .register(OFFICE_USER, "line-in", &TRANSPORTS, port)?;
            }
            let calls = self.sipp_runner.caller(
                &call,
                ("caller-hangs-up", 0),
                vec![callee],
                &TRANSPORTS,
            )?;
            told = format!("twice {calls}, {} s apart", AFTER_EXPIRY.as_secs());
        }
        Ok(told)
    }

    /// A user of hairpin calls somebody behind Kamailio, and knows no password of Kamailio.
    fn calls(&mut self) -> Result<String> {
        let call = SippCall {
            name: "line-out",
            target: "sip:kim@carrier.example",
            to: self.sipp_runner.registrar,
        };
        let role = ("callee-answers", 0);
        let callee = self
            .sipp_runner
            .callee(&call, role, "line-out-0", &TRANSPORTS, self.next)?;
        self.sipp_runner
            .caller(&call, ("caller-hangs-up", 0), vec![callee], &TRANSPORTS)
    }

    fn is_refused(&mut self) -> Result<String> {
        let is_registered = self.states.trunk("wrong")?["registered"].clone();
        ensure!(is_registered == false, "registered: {is_registered}");
        let output = self.domain.output();
        let line = output
            .lines()
            .find(|line| line.contains("wrong") && line.contains("401"));
        let line = line.context("no line in the log says why")?;
        Ok(line.trim().chars().take(160).collect())
    }
}
