//! reSIProcate's testStack at its own window and at one of 10,000, both sides in one process on all processors.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::report::spread;
use super::{ALL_CPUS, Bench};

/// testStack's own window, and the wide one.
const WINDOWS: [&str; 2] = ["100", "10000"];
/// testStack's own number is 10,000, which takes 20 ms: too short to measure.
const RUNS: &str = "100000";

/// Reports of each run, in the order of the runs, of the narrow window and of the wide one.
#[derive(Debug, Default)]
pub(crate) struct TestStack {
    names: Vec<String>,
    found: BTreeMap<String, Vec<[Value; 2]>>,
}

impl TestStack {
    /// One round: all runs at both windows.
    pub(crate) fn round(&mut self, bench: &Bench<'_>, round: u32) -> Result<()> {
        let mut both = Vec::new();
        for window in WINDOWS {
            let arguments = ["--teststack", "--runs", RUNS, "--closed", window];
            let reports = bench.generate(ALL_CPUS, &arguments)?;
            eprintln!("round {round} testStack, window {window}");
            both.push(reports.as_array().context("no list of runs")?.clone());
        }
        if let ([narrow, wide], true) = (&both[..], round > 0) {
            narrow
                .iter()
                .zip(wide)
                .for_each(|(narrow, wide)| self.add(narrow, wide));
        }
        Ok(())
    }

    fn add(&mut self, narrow: &Value, wide: &Value) {
        let name = narrow["name"].as_str().unwrap_or_default().to_owned();
        if !self.found.contains_key(&name) {
            self.names.push(name.clone());
        }
        let pairs = self.found.entry(name).or_default();
        pairs.push([narrow.clone(), wide.clone()]);
    }

    /// Rates at both windows and what else matters, of the worst round where that says more than the median.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from(
            "\n| run | per second at window 100 (min .. max) | at 10,000 (min .. max) | ratio of the best; of the medians | completed, worst | begun anew, most | sent again, worst | us of processor each: 100, 10,000 | memory each: 100, 10,000 |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        );
        for name in &self.names {
            let pairs = &self.found[name];
            // The kernel may give both connections to one of two workers, at one window and not at the other: best meets best.
            let rates = [0, 1].map(|at| spread(pairs, |pair| number(&pair[at], "rate")));
            let best = rates[1].2 / rates[0].2.max(1.0);
            let median = rates[1].0 / rates[0].0.max(1.0);
            let all: Vec<&Value> = pairs.iter().flatten().collect();
            let per_run = |what| {
                spread(&all, move |one| {
                    number(one, what) / number(one, "runs").max(1.0)
                })
            };
            let (_, completed, _) = per_run("completed");
            let (_, _, again) = per_run("retransmissions");
            let (_, _, anew) = spread(&all, |one| number(one, "anew"));
            let of =
                |what: &'static str, at: usize| spread(pairs, |pair| number(&pair[at], what)).0;
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "| {name} | {} | {} | {best:.2}; {median:.2} | {:.2} % | {anew:.0} | {:.3} % | {:.1}, {:.1} | {:.0}, {:.0} B |",
                range(rates[0]),
                range(rates[1]),
                completed * 100.0,
                again * 100.0,
                of("cpu_us", 0),
                of("cpu_us", 1),
                of("bytes", 0),
                of("bytes", 1),
            );
        }
        text
    }

    pub(crate) fn to_json(&self) -> Value {
        let rows = self.names.iter();
        rows.map(|name| json!({ "name": name, "rounds": self.found[name] }))
            .collect()
    }
}

fn range((median, low, high): (f64, f64, f64)) -> String {
    format!("{median:.0} ({low:.0} .. {high:.0})")
}

fn number(report: &Value, what: &str) -> f64 {
    report[what].as_f64().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_round_decides_what_must_not_happen() {
        let mut found = TestStack::default();
        for (rate, completed) in [(100.0, 1000), (120.0, 999), (90.0, 1000)] {
            let narrow = json!({ "name": "UDP", "runs": 1000, "rate": 100.0, "completed": 1000 });
            let wide = json!({ "name": "UDP", "runs": 1000, "rate": rate, "completed": completed, "retransmissions": 5 });
            found.add(&narrow, &wide);
        }
        let table = found.table();
        assert!(
            table.contains("| 1.20; 1.00 | 99.90 % | 0 | 0.500 % |"),
            "{table}"
        );
    }
}
