//! What was found, as tables and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// One closed loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// Units of work that succeeded per second.
    pub(crate) goodput: f64,
    /// Processor time of the server for each, microseconds.
    pub(crate) cpu_us: f64,
    p99_us: f64,
    /// Share of requests that left again.
    again: f64,
    /// Processors that the server kept busy, and the generator.
    pub(crate) server: f64,
    pub(crate) generator: f64,
}

impl Outcome {
    /// Of a report of the generator.
    pub(crate) fn of(report: &Value) -> Result<Outcome> {
        let sip = &report["sip"];
        let number = |value: &Value| value.as_f64().context("the report has no such figure");
        let requests = number(&sip["requests"])?.max(1.0);
        Ok(Outcome {
            goodput: number(&sip["goodput"])?,
            cpu_us: number(&sip["server"]["cpu_us_per_unit"])?,
            p99_us: number(&report["latency"]["p99_us"])?,
            again: number(&sip["retransmissions"])? / requests,
            server: number(&sip["server"]["cpu"])?,
            generator: report["threads"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|thread| thread["cpu"].as_f64())
                .sum(),
        })
    }

    pub(crate) fn to_json(self) -> Value {
        json!({
            "goodput": self.goodput,
            "cpu_us": self.cpu_us,
            "p99_us": self.p99_us,
            "again": self.again,
            "server_processors": self.server,
            "generator_processors": self.generator,
        })
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.0}/s, {:.2} us, p99 {:.0} us, again {:.3} %",
            self.goodput,
            self.cpu_us,
            self.p99_us,
            self.again * 100.0
        )
    }
}

/// Everything.
#[derive(Debug, Default)]
pub(crate) struct Results {
    loops: BTreeMap<(String, String), Vec<Outcome>>,
    sweeps: Vec<(String, String, Value)>,
}

/// Median, smallest and largest.
pub(crate) fn spread<T>(outcomes: &[T], read: impl Fn(&T) -> f64) -> (f64, f64, f64) {
    let mut all: Vec<f64> = outcomes.iter().map(read).collect();
    all.sort_by(f64::total_cmp);
    let pick = |at: usize| all.get(at).copied().unwrap_or(0.0);
    (
        pick(all.len() / 2),
        pick(0),
        pick(all.len().saturating_sub(1)),
    )
}

impl Results {
    pub(crate) fn add(&mut self, server: &str, workload: &str, outcome: Outcome) {
        let key = (workload.to_owned(), server.to_owned());
        self.loops.entry(key).or_default().push(outcome);
    }

    pub(crate) fn add_sweep(&mut self, server: &str, workload: &str, sweep: &Value) {
        self.sweeps
            .push((server.to_owned(), workload.to_owned(), sweep.clone()));
    }

    /// Servers, workloads and what became of them.
    pub(crate) fn sweeps(&self) -> &[(String, String, Value)] {
        &self.sweeps
    }

    /// Costs and rates, medians with their spread.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from(
            "| workload | server | us of processor (min .. max) | per second (min .. max) | p99 us |\n| --- | --- | --- | --- | --- |\n",
        );
        for ((workload, server), outcomes) in &self.loops {
            let (cpu, cpu_low, cpu_high) = spread(outcomes, |one| one.cpu_us);
            let (rate, rate_low, rate_high) = spread(outcomes, |one| one.goodput);
            let (p99, ..) = spread(outcomes, |one| one.p99_us);
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "| {workload} | {server} | {cpu:.2} ({cpu_low:.2} .. {cpu_high:.2}) | {rate:.0} ({rate_low:.0} .. {rate_high:.0}) | {p99:.0} |"
            );
        }
        text
    }

    /// Goodput under overload.
    pub(crate) fn curves(&self) -> String {
        let mut text = String::new();
        for (server, workload, sweep) in &self.sweeps {
            let peak = sweep["peak"].as_f64().unwrap_or(0.0);
            let _ = writeln!(
                text,
                "\n{server}, {workload}, multiples of {peak:.0}/s\n\n| load | offered/s | begun/s | goodput/s | of the best at 1x | 503/s | again/s | p99 ms | p99 ms, last try | server | us each | MB |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
            );
            let steps = || sweep["steps"].as_array().into_iter().flatten();
            let at_peak = steps().filter(|step| step["multiple"] == 1.0);
            let at_peak = at_peak.filter_map(|step| step["goodput"].as_f64());
            let base = at_peak.reduce(f64::max).unwrap_or(peak);
            for step in steps() {
                let number = |name: &str| step[name].as_f64().unwrap_or(0.0);
                let goodput = number("goodput");
                let _ = writeln!(
                    text,
                    "| {}x | {:.0} | {:.0} | {goodput:.0} | {:.0} % | {:.0} | {:.0} | {:.1} | {:.1} | {:.0} % | {:.2} | {:.0} |",
                    number("multiple"),
                    number("offered"),
                    number("begun"),
                    100.0 * goodput / base.max(1.0),
                    number("unavailable"),
                    number("retransmissions"),
                    step["latency"]["p99_us"].as_f64().unwrap_or(0.0) / 1e3,
                    step["last_try"]["p99_us"].as_f64().unwrap_or(0.0) / 1e3,
                    100.0 * number("server_cpu"),
                    1e6 * number("server_cpu") / goodput.max(1.0),
                    number("server_memory") / 1e6,
                );
            }
            let recovery = match sweep["recovery"]["seconds"].as_f64() {
                Some(seconds) => format!("recovered {seconds:.1} s after the load fell"),
                None => "had not recovered when it was looked at".to_owned(),
            };
            let _ = writeln!(text, "\n{recovery}");
        }
        text
    }

    /// Closed loops and sweeps.
    pub(crate) fn to_json(&self) -> Value {
        let loops: Vec<Value> = self
            .loops
            .iter()
            .map(|((workload, server), outcomes)| {
                let rounds: Vec<Value> = outcomes.iter().map(|one| one.to_json()).collect();
                json!({ "workload": workload, "server": server, "rounds": rounds })
            })
            .collect();
        let sweeps: Vec<Value> = self
            .sweeps
            .iter()
            .map(|(server, workload, sweep)| {
                json!({ "server": server, "workload": workload, "sweep": sweep })
            })
            .collect();
        json!({ "loops": loops, "sweeps": sweeps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_curves_are_tables() {
        let mut results = Results::default();
        for cpu_us in [3.0, 1.0, 2.0] {
            let report = json!({
                "sip": { "requests": 10, "retransmissions": 1, "goodput": 5.0, "server": { "cpu_us_per_unit": cpu_us, "cpu": 1.0 } },
                "latency": { "p99_us": 7.0 },
            });
            results.add("a", "call", Outcome::of(&report).unwrap());
        }
        assert!(
            results
                .table()
                .contains("| call | a | 2.00 (1.00 .. 3.00) |")
        );
        let sweep = json!({ "peak": 100.0, "steps": [
            { "multiple": 1.0, "goodput": 50.0 }, { "multiple": 2.0, "goodput": 45.0 }, { "multiple": 1.0, "goodput": 40.0 },
        ] });
        results.add_sweep("a", "call", &sweep);
        assert!(results.curves().contains("| 2x | 0 | 0 | 45 | 90 % |"));
        assert_eq!(results.to_json()["loops"][0]["rounds"][1]["cpu_us"], 1.0);
    }
}
