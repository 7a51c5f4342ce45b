//! What a registration costs over connections: TCP, TLS and WebSocket over TLS, Kamailio beside hairpin over the first two.
//!
//! One worker on one processor. All connections are open before the measured time, so handshakes are no part of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use super::report::{Outcome, spread};
use super::servers::Server;
use super::{Bench, GENERATOR_CPU, WINDOW};
use crate::interop::certificate::Certificate;

/// Connections of the generator.
const CONNECTIONS: &str = "64";

/// By transport and server.
#[derive(Debug, Default)]
pub(crate) struct Transports {
    found: BTreeMap<(&'static str, &'static str), Vec<Outcome>>,
}

impl Transports {
    /// One round of it.
    pub(crate) fn round(&mut self, bench: &Bench<'_>, round: u32) -> Result<()> {
        let folder = bench.folder.join("certificate");
        let certificate = Certificate::make(&folder)?;
        let servers = Server::for_transports(&bench.binary, &certificate);
        for turn in 0..servers.len() {
            let secured = &servers[(turn + round as usize) % servers.len()];
            let running = secured.server.start(&bench.folder)?;
            for (transport, port) in &secured.ports {
                let target = format!("127.0.0.1:{port}");
                let arguments = arguments(bench, transport, &certificate.authority);
                let process = running.id().to_string();
                let about = [&target, "--no-tui", "--server-pid", &process];
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                let report = bench.generate(GENERATOR_CPU, &[&about[..], &arguments].concat())?;
                let outcome = Outcome::of(&report)?;
                let name = secured.server.name;
                eprintln!("round {round} {name} register over {transport}: {outcome}");
                if round > 0 {
                    let all = self.found.entry((transport, name)).or_default();
                    all.push(outcome);
                }
            }
        }
        Ok(())
    }

    /// Medians with their spread.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from(
            "\n| register over | server | us of processor (min .. max) | per second (min .. max) |\n| --- | --- | --- | --- |\n",
        );
        for ((transport, server), outcomes) in &self.found {
            let (cpu, cpu_low, cpu_high) = spread(outcomes, |one| one.cpu_us);
            let (rate, rate_low, rate_high) = spread(outcomes, |one| one.goodput);
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "| {transport} | {server} | {cpu:.2} ({cpu_low:.2} .. {cpu_high:.2}) | {rate:.0} ({rate_low:.0} .. {rate_high:.0}) |"
            );
        }
        text
    }

    pub(crate) fn to_json(&self) -> Value {
        let found = self.found.iter().map(|((transport, server), outcomes)| {
            let rounds: Vec<Value> = outcomes.iter().map(|one| one.to_json()).collect();
            json!({ "transport": transport, "server": server, "rounds": rounds })
        });
        found.collect()
    }
}

fn arguments(bench: &Bench<'_>, transport: &str, authority: &Path) -> Vec<String> {
    let duration = format!("{}s", bench.options.seconds);
    let mut all = vec!["--workload", "register", "--closed", WINDOW];
    all.extend(["--clients", CONNECTIONS, "--transport", transport]);
    all.extend(["--duration", &duration]);
    let authority = authority.display().to_string();
    if transport != "tcp" {
        all.extend(["--ca", &authority]);
    }
    all.into_iter().map(str::to_owned).collect()
}
