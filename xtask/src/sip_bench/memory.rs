//! What a server's memory grows by for each unit of work that is over: over UDP RFC 3261 has it remember for 32 s.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::servers::Server;
use super::{Bench, GENERATOR_CPU};

/// Units of work of each kind: less than 32 s of them.
const RUNS: &str = "200000";

/// What is measured.
const CASES: [(&str, &str); 4] = [
    ("register", "udp"),
    ("call", "udp"),
    ("register", "tcp"),
    ("call", "tcp"),
];

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    workload: &'static str,
    transport: &'static str,
    completed: f64,
    before: f64,
    after: f64,
}

impl Row {
    fn each(&self) -> f64 {
        (self.after - self.before) / self.completed.max(1.0)
    }
}

impl Memory {
    /// Each with a server of its own.
    pub(crate) fn measure(&mut self, bench: &Bench<'_>) -> Result<()> {
        let server = &Server::for_cost(&bench.binary)[0];
        for (workload, transport) in CASES {
            let running = server.start(&bench.folder)?;
            let arguments = ["--workload", workload, "--transport", transport];
            let runs = ["--runs", RUNS, "--closed", "256", "--warm-up", "0s"];
            let arguments = [&arguments[..], &runs[..], &["--duration", "30s"]].concat();
            let report = bench.load(server, &running, GENERATOR_CPU, &arguments)?;
            let sip = &report["sip"];
            let number = |value: &Value| value.as_f64().context("the report has no such figure");
            self.rows.push(Row {
                workload,
                transport,
                completed: number(&sip["completed"])?,
                before: number(&sip["server"]["resident_before"])?,
                after: number(&sip["server"]["resident_after"])?,
            });
        }
        Ok(())
    }

    /// Bytes of the whole process for each.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from(
            "\n| workload | over | how many | resident before, after | for each |\n| --- | --- | --- | --- | --- |\n",
        );
        for row in &self.rows {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "| {} | {} | {:.0} | {:.1}, {:.1} MB | {:.0} B |",
                row.workload,
                row.transport,
                row.completed,
                row.before / 1e6,
                row.after / 1e6,
                row.each()
            );
        }
        text
    }

    pub(crate) fn to_json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "workload": row.workload,
                "transport": row.transport,
                "completed": row.completed,
                "resident_before": row.before,
                "resident_after": row.after,
                "bytes_each": row.each(),
            })
        };
        self.rows.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_by_what_was_done() {
        let rows = vec![Row {
            workload: "call",
            transport: "udp",
            completed: 1000.0,
            before: 5e6,
            after: 7e6,
        }];
        let memory = Memory { rows };
        assert!(memory.table().contains("| 5.0, 7.0 MB | 2000 B |"));
        assert_eq!(memory.to_json()[0]["bytes_each"], 2000.0);
    }
}
