//! The performance gate: hairpin against the bare relay of its own benchmark, in one run of `hairpin bench --quick`.
//!
//! Only ratios within a round count, so the speed of the machine does not matter. The benchmark itself repeats a
//! measurement below the gate. Where it cannot be measured (no root, one processor), this fails: a gate that is
//! skipped is none.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::process::{self, Ended, Process};
use crate::tally::Tally;
use crate::{cargo, scratch};

/// The quick mode takes four minutes; what is measured again comes on top.
const LIMIT: Duration = Duration::from_secs(480);

/// Builds hairpin and measures it. Each scenario is one check.
pub(crate) fn run(root: &Path) -> Result<Tally> {
    let binary = cargo::release(root)?;
    let folder = scratch(root, "bench")?;
    let report = folder.join("quick.json");
    // What an earlier run left must not pass for this one's.
    let _ = std::fs::remove_file(&report);
    let mut command = process::command(&binary);
    command
        .args(["bench", "--quick", "--a", "hairpin", "--b", "floor"])
        .args(["--c", "hairpin-spread"])
        .arg("--json")
        .arg(&report);
    let mut bench = Process::start("hairpin bench", command, folder.join("quick.log"))?;
    let ended = bench.wait(LIMIT)?;
    let Ended::Exited(status) = ended else {
        bail!(
            "not finished within {LIMIT:?}; its output: {}",
            bench.tail()
        );
    };
    let text = std::fs::read_to_string(&report).unwrap_or_default();
    ensure!(
        !text.is_empty(),
        "nothing was measured ({status}); its output: {}",
        bench.tail()
    );
    let report = serde_json::from_str(&text).context("the report is not JSON")?;
    judge(&report, status, &bench)
}

fn judge(report: &Value, status: ExitStatus, bench: &Process) -> Result<Tally> {
    let lowest = lowest_ratios(report);
    ensure!(
        !lowest.is_empty(),
        "no scenario was measured for both servers"
    );
    let mut tally = Tally::default();
    for (scenario, ratio) in lowest {
        tally.record(
            &format!("bench {scenario}"),
            &Ok(format!("at least {ratio:.2} of the bare relay")),
        );
    }
    if !status.success() {
        let output = bench.output();
        let gates: Vec<&str> = output
            .lines()
            .filter(|line| line.starts_with("gate: "))
            .collect();
        bail!(
            "{status}\n    {}\n    (all of it: {})",
            gates.join("\n    "),
            bench.log().display()
        );
    }
    Ok(tally)
}

/// Of each scenario that both servers took part in, how much of the second server's rate the first one reached in
/// the worst round.
fn lowest_ratios(report: &Value) -> BTreeMap<String, f64> {
    let rows = report["summary"].as_array().map_or(&[][..], Vec::as_slice);
    rows.iter()
        .filter(|row| row["side"] == 1)
        .filter_map(|row| {
            // The ratio is the second server's to the first's.
            let most = row["main_ratio"]["max"].as_f64()?;
            Some((row["name"].as_str()?.to_owned(), 1.0 / most))
        })
        .collect()
}

/// An option that disables a mechanism of hairpin, and the gates that then must fail.
struct Removal {
    option: &'static str,
    gates: &'static [(&'static str, Violation)],
}

/// The kind of violation that a gate reports when its mechanism is disabled. If the server does not start, or a figure
/// was not measured, every gate fails. Such a failure does not show that a gate detects its mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Violation {
    Goodput,
    SystemCalls,
    Spread,
    Cycles,
}

impl Violation {
    /// Its words in `hairpin bench` (crates/load/src/bench/report/gate.rs).
    fn words(self) -> &'static str {
        match self {
            Violation::Goodput => "% of the floor's ",
            Violation::SystemCalls => " system calls for each datagram are more than ",
            Violation::Spread => "the two workers differed by ",
            Violation::Cycles => " cycles failed",
        }
    }
}

/// As docs/benchmarking.md lists them.
const REMOVALS: [Removal; 5] = [
    Removal {
        option: "--set=server.offloads=false",
        gates: &[
            ("relay-1x1-c2p-120B", Violation::Goodput),
            ("relay-1x1-c2p-1200B", Violation::Goodput),
            ("relay-64x8-c2p-120B", Violation::Goodput),
            ("binding-1", Violation::Goodput),
        ],
    },
    Removal {
        option: "--batch-limit=64",
        gates: &[
            ("relay-64x1-c2p-120B", Violation::SystemCalls),
            ("relay-1000x1-c2p-120B", Violation::SystemCalls),
        ],
    },
    Removal {
        option: "--batch-limit=1",
        gates: &[
            ("relay-64x1-p2c-120B", Violation::SystemCalls),
            ("relay-64x1-both-120B", Violation::SystemCalls),
            ("binding-1000", Violation::SystemCalls),
        ],
    },
    Removal {
        option: "--set=server.steering=hash",
        gates: &[("spread-4", Violation::Spread)],
    },
    Removal {
        option: "--set=limits.allocations_per_user=1",
        gates: &[("churn-64", Violation::Cycles)],
    },
];

/// Shows that each gate fails when hairpin lacks what the gate is for. Each gate is one check.
pub(crate) fn prove(root: &Path) -> Result<Tally> {
    let binary = cargo::release(root)?;
    let folder = scratch(root, "gates")?;
    let mut tally = Tally::default();
    for removal in &REMOVALS {
        let found = without(removal, &binary, &folder)?;
        for &(scenario, kind) in removal.gates {
            let outcome = proof(&found, scenario, kind);
            tally.record(&format!("{scenario} with {}", removal.option), &outcome);
        }
    }
    Ok(tally)
}

/// The violation of this kind in this scenario. If there is none, the error lists the other violations of the scenario.
fn proof(found: &[String], scenario: &str, kind: Violation) -> Result<String> {
    let place = format!(" {scenario}: ");
    let of_it: Vec<&str> = found
        .iter()
        .filter(|line| line.starts_with("hairpin") && line.contains(&place))
        .map(String::as_str)
        .collect();
    let of_kind = of_it.iter().find(|line| line.contains(kind.words()));
    match of_kind {
        Some(line) => Ok((*line).to_owned()),
        None if of_it.is_empty() => bail!("the gate holds"),
        None => bail!(
            "no violation with `{}`, only: {}",
            kind.words().trim(),
            of_it.join("; ")
        ),
    }
}

/// The violations that a quick benchmark finds in a hairpin with the option.
fn without(removal: &Removal, binary: &Path, folder: &Path) -> Result<Vec<String>> {
    let script = folder.join("hairpin");
    let text = format!(
        "#!/bin/sh\nexec {} \"$@\" {}\n",
        binary.display(),
        removal.option
    );
    std::fs::write(&script, text)?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    let mut command = process::command(binary);
    let scenarios: Vec<&str> = removal.gates.iter().map(|(name, _)| *name).collect();
    command
        .args(["bench", "--quick", "--a", "hairpin", "--b", "floor"])
        .args(["--c", "hairpin-spread", "--scenarios"])
        .arg(scenarios.join(","))
        .arg("--hairpin")
        .arg(&script);
    let mut bench = Process::start("hairpin bench", command, folder.join("bench.log"))?;
    if bench.wait(LIMIT)? == Ended::Killed {
        bail!("not finished within {LIMIT:?}: {}", bench.tail());
    }
    let output = bench.output();
    let gates = output
        .lines()
        .filter_map(|line| line.strip_prefix("gate: "));
    Ok(gates.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_worst_round_of_each_scenario_counts() {
        let row = |name, side, most: f64| json!({ "name": name, "side": side, "main_ratio": { "max": most, "median": 1.0 } });
        let report = json!({ "summary": [row("relay", 0, 1.0), row("relay", 1, 1.25), row("binding", 1, 0.5),
            json!({ "name": "churn", "side": 0, "main_ratio": null })] });
        let lowest: Vec<(String, f64)> = lowest_ratios(&report).into_iter().collect();
        assert_eq!(
            lowest,
            [("binding".to_owned(), 2.0), ("relay".to_owned(), 0.8)]
        );
        assert!(lowest_ratios(&json!({})).is_empty());
    }

    #[test]
    fn only_the_violation_of_the_mechanism_proves_a_gate() {
        let lines = |lines: &[&str]| {
            lines
                .iter()
                .map(|line| (*line).to_owned())
                .collect::<Vec<_>>()
        };
        let found = lines(&[
            "floor in round 1, binding-1: 10/s is less than 180 % of the floor's 20/s",
            "hairpin in round 1, relay-1x1-c2p-120B: hairpin ended at once: unknown option",
            "hairpin in round 1, relay-64x1-c2p-120B: cannot count the server's system calls: refused",
            "hairpin in round 1, relay-1x1-c2p-1200B: 10/s is less than 140 % of the floor's 20/s, twice",
            "hairpin in round 1, churn-64: 7 cycles failed",
            "hairpin-spread in round 2, spread-4: the two workers differed by 9 allocations, more than 5",
            "hairpin in round 2, binding-1000: 1.030 system calls for each datagram are more than 0.3",
        ]);
        for (scenario, kind) in [
            ("relay-1x1-c2p-1200B", Violation::Goodput),
            ("churn-64", Violation::Cycles),
            ("spread-4", Violation::Spread),
            ("binding-1000", Violation::SystemCalls),
        ] {
            let outcome = proof(&found, scenario, kind);
            assert!(outcome.is_ok(), "{scenario}: {outcome:?}");
        }
        let failed = |scenario, kind| {
            proof(&found, scenario, kind)
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default()
        };
        assert!(failed("relay-1x1-c2p-120B", Violation::Goodput).contains("unknown option"));
        assert!(failed("relay-64x1-c2p-120B", Violation::SystemCalls).contains("refused"));
        assert_eq!(failed("binding-1", Violation::Goodput), "the gate holds");
        assert!(failed("churn-64", Violation::SystemCalls).contains("7 cycles failed"));
    }
}
