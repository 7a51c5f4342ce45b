//! Two workers beside one, on two processors that the generator has to share with them.
//!
//! Where a request takes hardly longer than the generator needs to make it, what two workers gain is what the generator leaves them.
//! So the application is given something to do for each request, as it would have in earnest, until the generator's share is small.
//! What handing messages over costs is seen at a rate that one worker could do alone, with an application that does nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Value, json};

use super::report::{Outcome, spread};
use super::servers::Server;
use super::{ALL_CPUS, Bench};

/// What the application does for each REGISTER, microseconds.
const SERVICE_TIME_US: u32 = 200;
/// A rate that one worker does alone, without such an application.
const RATE: &str = "150k/s";
/// Units of work under way in the closed loop.
const WINDOW: &str = "256";
/// Sockets of the generator: one is a trunk, which the kernel gives to one worker; many are spread by it.
const UPSTREAMS: [&str; 2] = ["1", "500"];

/// What is measured, by how much the application has to do, the number of upstreams, and the server.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    found: BTreeMap<(u32, &'static str, &'static str), Vec<Outcome>>,
    /// Of one worker and two in the same round, by the same.
    pairs: BTreeMap<(u32, &'static str), Vec<(Outcome, Outcome)>>,
}

impl Workers {
    /// One round of it.
    pub(crate) fn round(&mut self, bench: &Bench<'_>, round: u32) -> Result<()> {
        let duration = format!("{}s", bench.options.seconds);
        let loads: [(u32, &[&str]); 2] = [
            (SERVICE_TIME_US, &["--closed", WINDOW]),
            (0, &["--rate", RATE]),
        ];
        for (service_time_us, pace) in loads {
            let servers = Server::for_workers(&bench.binary, service_time_us);
            for upstreams in UPSTREAMS {
                let mut outcomes = Vec::new();
                for turn in 0..servers.len() {
                    let at = (turn + round as usize) % servers.len();
                    let running = servers[at].start(&bench.folder)?;
                    let mut arguments = vec!["--workload", "register", "--clients", upstreams];
                    arguments.extend(["--duration", &duration]);
                    arguments.extend(pace);
                    let report = bench.load(&servers[at], &running, ALL_CPUS, &arguments)?;
                    let outcome = Outcome::of(&report)?;
                    eprintln!(
                        "round {round} {}, {service_time_us} us, {upstreams} upstreams: {outcome}",
                        servers[at].name
                    );
                    outcomes.push((at, outcome));
                }
                outcomes.sort_by_key(|(at, _)| *at);
                if round > 0 {
                    self.add(service_time_us, upstreams, &servers, &outcomes);
                }
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        service_time_us: u32,
        upstreams: &'static str,
        servers: &[Server],
        outcomes: &[(usize, Outcome)],
    ) {
        for &(at, outcome) in outcomes {
            let key = (service_time_us, upstreams, servers[at].name);
            self.found.entry(key).or_default().push(outcome);
        }
        if let [(_, one), (_, two)] = *outcomes {
            let pairs = self.pairs.entry((service_time_us, upstreams)).or_default();
            pairs.push((one, two));
        }
    }

    /// Rates, costs, and what two workers are worth.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from(
            "\n| application | upstreams | workers | per second (min .. max) | us of processor each (min .. max) | processors of server, generator | two workers: rate, cost (min .. max) |\n\
             | --- | --- | --- | --- | --- | --- | --- |\n",
        );
        for ((service_us, upstreams, server), outcomes) in &self.found {
            let (rate, rate_low, rate_high) = spread(outcomes, |one| one.goodput);
            let (cpu, cpu_low, cpu_high) = spread(outcomes, |one| one.cpu_us);
            let (busy, ..) = spread(outcomes, |one| one.server);
            let (generator, ..) = spread(outcomes, |one| one.generator);
            let ratios = match *server {
                "two workers" => self.ratios(*service_us, upstreams),
                _ => String::new(),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "| {service_us} us | {upstreams} | {server} | {rate:.0} ({rate_low:.0} .. {rate_high:.0}) | {cpu:.2} ({cpu_low:.2} .. {cpu_high:.2}) | {busy:.2}, {generator:.2} | {ratios} |"
            );
        }
        text
    }

    fn ratios(&self, service_us: u32, upstreams: &'static str) -> String {
        let none = Vec::new();
        let pairs = self.pairs.get(&(service_us, upstreams)).unwrap_or(&none);
        let (rate, low, high) = spread(pairs, |(one, two)| two.goodput / one.goodput);
        let (cost, cheap, dear) = spread(pairs, |(one, two)| two.cpu_us / one.cpu_us);
        format!("{rate:.2} ({low:.2} .. {high:.2}), {cost:.2} ({cheap:.2} .. {dear:.2})")
    }

    pub(crate) fn to_json(&self) -> Value {
        let rows = self.found.iter().map(|((service_us, upstreams, server), outcomes)| {
            let rounds: Vec<Value> = outcomes.iter().map(|one| one.to_json()).collect();
            json!({ "service_time_us": service_us, "upstreams": upstreams, "server": server, "rounds": rounds })
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_workers_are_compared_with_one_of_the_same_round() {
        let outcome = |goodput: f64| {
            let report = json!({
                "sip": { "requests": 10, "retransmissions": 0, "goodput": goodput, "server": { "cpu_us_per_unit": 2.0, "cpu": 1.0 } },
                "latency": { "p99_us": 7.0 },
                "threads": [{ "cpu": 0.25 }, { "cpu": 0.5 }],
            });
            Outcome::of(&report).unwrap()
        };
        let servers = Server::for_workers(std::path::Path::new("hairpin"), 200);
        let mut workers = Workers::default();
        for (one, two) in [(100.0, 190.0), (200.0, 400.0), (100.0, 180.0)] {
            let outcomes = [(0, outcome(one)), (1, outcome(two))];
            workers.add(200, "1", &servers, &outcomes);
        }
        let table = workers.table();
        assert!(
            table.contains("| 1.00, 0.75 | 1.90 (1.80 .. 2.00), 1.00 (1.00 .. 1.00) |"),
            "{table}"
        );
        assert_eq!(workers.to_json().as_array().map(Vec::len), Some(2));
    }
}
