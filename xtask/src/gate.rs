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

/// An option that takes a mechanism away from hairpin, and the scenarios whose gates then fail.
struct Removal {
    option: &'static str,
    scenarios: &'static [&'static str],
}

/// As docs/benchmarking.md lists them.
const REMOVALS: [Removal; 5] = [
    Removal {
        option: "--set=server.offloads=false",
        scenarios: &["relay-1x1-c2p-120B", "relay-64x8-c2p-120B", "binding-1"],
    },
    Removal {
        option: "--batch-limit=64",
        scenarios: &["relay-64x1-c2p-120B", "relay-1000x1-c2p-120B"],
    },
    Removal {
        option: "--batch-limit=1",
        scenarios: &["relay-64x1-p2c-120B", "binding-1000"],
    },
    Removal {
        option: "--set=server.steering=hash",
        scenarios: &["spread-4"],
    },
    Removal {
        option: "--set=limits.allocations_per_user=1",
        scenarios: &["churn-64"],
    },
];

/// Shows that each gate fails when hairpin lacks what the gate is for. Each gate is one check.
pub(crate) fn prove(root: &Path) -> Result<Tally> {
    let binary = cargo::release(root)?;
    let folder = scratch(root, "gates")?;
    let mut tally = Tally::default();
    for removal in &REMOVALS {
        let violations = without(removal, &binary, &folder)?;
        for scenario in removal.scenarios {
            let of_it = |line: &&String| line.contains(&format!(" {scenario}:"));
            let outcome = violations.iter().find(of_it).cloned();
            let outcome = outcome.context("the gate holds");
            tally.record(&format!("{scenario} with {}", removal.option), &outcome);
        }
    }
    Ok(tally)
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
    command
        .args(["bench", "--quick", "--a", "hairpin", "--b", "floor"])
        .args(["--c", "hairpin-spread", "--scenarios"])
        .arg(removal.scenarios.join(","))
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
}
