//! The performance gate: hairpin against the bare relay of its own benchmark, in one run of `hairpin bench --quick`.
//!
//! Only ratios within a round count, so the speed of the machine does not matter. The benchmark itself repeats a
//! measurement below the gate. Where it cannot be measured (no root, one processor), this fails: a gate that is
//! skipped is none.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::process::{self, Ended, Process};
use crate::tally::Tally;
use crate::{cargo, rfc, scratch, workspace};

/// The quick mode takes four minutes; what is measured again comes on top.
const BENCH_TIMEOUT: Duration = Duration::from_secs(480);

/// Builds hairpin and measures it. Each scenario is one check.
pub(crate) fn run(root: &Path) -> Result<Tally> {
    let binary = cargo::release(root)?;
    let folder = scratch(root, "bench")?;
    let report = folder.join("quick.json");
    // The report of an earlier run must not be taken for the report of this run.
    let _ = std::fs::remove_file(&report);
    let mut command = process::command(&binary);
    command
        .args(["bench", "--quick", "--a", "hairpin", "--b", "floor"])
        .args(["--c", "hairpin-spread"])
        .arg("--json")
        .arg(&report);
    let mut bench = Process::start("hairpin bench", command, folder.join("quick.log"))?;
    let ended = bench.wait(BENCH_TIMEOUT)?;
    let Ended::Exited(status) = ended else {
        bail!(
            "not finished within {BENCH_TIMEOUT:?}; its output: {}",
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

/// A fault, and the gates that must fail with it.
struct Proof {
    fault: Fault,
    gates: &'static [(&'static str, &'static str)],
}

/// A fault that makes gates fail.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// An option of hairpin that disables a mechanism.
    Option(&'static str),
    /// A program that runs hairpin, and an option of hairpin.
    Within(&'static str, &'static str),
    /// The servers `floor-damage` and `floor-repeat` instead of hairpin.
    FaultyRelays,
    /// A test of the stage `unit` with this name. It has a server with the fault.
    Test(&'static str),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Option(text) | Fault::Within(text, "") => write!(f, "`{text}`"),
            Fault::Within(program, option) => write!(f, "`{program}` and `{option}`"),
            Fault::FaultyRelays => f.write_str("`floor-damage`, `floor-repeat`"),
            Fault::Test(name) => write!(f, "test `{name}`"),
        }
    }
}

/// The kinds of gates, as `hairpin bench` names them. If the server does not start, or a figure was not measured, the
/// violation has no kind: such a failure does not show that a gate detects the fault.
const GOODPUT: &str = "goodput";
const SYSTEM_CALLS: &str = "system-calls";
const DAMAGE: &str = "damage";
const CYCLES: &str = "cycles";
const CYCLE_COST: &str = "cycle-cost";
const SPREAD: &str = "spread";
const USER_MEMORY: &str = "user-memory";

/// What `hairpin bench` says of a relay that damages or repeats datagrams.
const DAMAGED: &str = " datagrams arrived changed or in the wrong place, ";

/// A program in valgrind is several times slower.
const VALGRIND: &str = "valgrind -q --tool=none";

/// As docs/benchmarking.md lists them.
const PROOFS: [Proof; 9] = [
    Proof {
        fault: Fault::Option("--set=server.offloads=false"),
        gates: &[
            ("relay-1x1-c2p-120B", GOODPUT),
            ("relay-1x1-c2p-1200B", GOODPUT),
            ("relay-64x8-c2p-120B", GOODPUT),
            ("binding-1", GOODPUT),
        ],
    },
    Proof {
        fault: Fault::Option("--batch-limit=64"),
        gates: &[
            ("relay-64x1-c2p-120B", SYSTEM_CALLS),
            ("relay-64x1-c2p-1200B", SYSTEM_CALLS),
            ("relay-1000x1-c2p-120B", SYSTEM_CALLS),
        ],
    },
    Proof {
        fault: Fault::Option("--batch-limit=1"),
        gates: &[
            ("relay-64x1-p2c-120B", SYSTEM_CALLS),
            ("relay-64x1-both-120B", SYSTEM_CALLS),
            ("binding-1000", SYSTEM_CALLS),
        ],
    },
    // The loss of batches alone is near these gates: hairpin then makes three system calls for the two of the floor.
    Proof {
        fault: Fault::Within(VALGRIND, "--batch-limit=1"),
        gates: &[
            ("relay-64x1-c2p-120B", GOODPUT),
            ("relay-64x1-c2p-1200B", GOODPUT),
            ("relay-64x1-p2c-120B", GOODPUT),
            ("relay-64x1-both-120B", GOODPUT),
            ("relay-1000x1-c2p-120B", GOODPUT),
            ("binding-1000", GOODPUT),
        ],
    },
    Proof {
        fault: Fault::Option("--set=server.steering=hash"),
        gates: &[("spread-4", SPREAD)],
    },
    Proof {
        fault: Fault::Option("--set=limits.allocations_per_user=1"),
        gates: &[("churn-64", CYCLES)],
    },
    // In valgrind, each instruction takes several times as long, and translated code uses memory.
    Proof {
        fault: Fault::Within(VALGRIND, ""),
        gates: &[("memory-1000", USER_MEMORY), ("churn-64", CYCLE_COST)],
    },
    Proof {
        fault: Fault::FaultyRelays,
        gates: &[
            ("relay-1x1-c2p-120B", DAMAGE),
            ("relay-1x1-c2p-1200B", DAMAGE),
            ("relay-64x1-c2p-120B", DAMAGE),
            ("relay-64x1-c2p-1200B", DAMAGE),
            ("relay-64x1-p2c-120B", DAMAGE),
            ("relay-64x1-both-120B", DAMAGE),
            ("relay-64x8-c2p-120B", DAMAGE),
            ("relay-1000x1-c2p-120B", DAMAGE),
            ("binding-1", DAMAGE),
            ("binding-1000", DAMAGE),
        ],
    },
    Proof {
        fault: Fault::Test("dropped_requests_and_malformed_messages_of_a_churn_are_counted"),
        gates: &[("churn-64", DAMAGE)],
    },
];

/// Shows that each gate fails when hairpin lacks what the gate is for. Each gate is one check. At the end, a table has
/// them all.
pub(crate) fn prove(root: &Path) -> Result<Tally> {
    let sources = workspace::rust_files(root)?;
    let binary = cargo::release(root)?;
    let folder = scratch(root, "gates")?;
    let mut tally = Tally::default();
    let mut rows = Vec::new();
    for proof in &PROOFS {
        let found = match proof.fault {
            Fault::Test(_) => Vec::new(),
            fault => violations_with(fault, proof.gates, &binary, &folder)?,
        };
        for &(scenario, kind) in proof.gates {
            let outcome = match proof.fault {
                Fault::Test(name) if has_test(&sources, name) => {
                    Ok(format!("the stage unit runs {name}"))
                }
                Fault::Test(name) => Err(anyhow::anyhow!("there is no test {name}")),
                fault => violation(&found, scenario, kind, fault),
            };
            let name = format!("{scenario}, {kind}, with {}", proof.fault);
            tally.record(&name, &outcome);
            let said = outcome.unwrap_or_else(|error| format!("**{error:#}**"));
            rows.push((scenario, kind, proof.fault, said));
        }
    }
    let rules = rules(&binary)?;
    for (scenario, kind, demand) in &rules {
        let is_proved = rows.iter().any(|row| row.0 == scenario && row.1 == kind);
        if !is_proved {
            let missing = Err(anyhow::anyhow!("nothing makes it fail ({demand})"));
            tally.record(&format!("{scenario}, {kind}"), &missing);
        }
    }
    print!("{}", table(&rules, &rows));
    Ok(tally)
}

/// Whether one of these files has a test of this name.
fn has_test(sources: &[(PathBuf, String)], name: &str) -> bool {
    let mut texts = sources.iter().map(|(_, text)| text);
    texts.any(|text| rfc::test_functions(text).any(|test| test == name))
}

/// A gate of the quick mode: scenario, kind, and what it demands.
type Rule = (String, String, String);

/// The gates of the quick mode.
fn rules(binary: &Path) -> Result<Vec<Rule>> {
    let mut command = process::command(binary);
    command.args(["bench", "--quick", "--list"]);
    let output = command.output().context("cannot run hairpin bench")?;
    ensure!(output.status.success(), "hairpin bench: {}", output.status);
    parse_rules(&String::from_utf8(output.stdout)?)
}

fn parse_rules(text: &str) -> Result<Vec<Rule>> {
    let rules = text.lines().map(|line| {
        let mut words = line.split_whitespace();
        let names = words.next().zip(words.next());
        let (scenario, kind) = names.context("a gate without a kind")?;
        let demand: Vec<&str> = words.collect();
        Ok((scenario.to_owned(), kind.to_owned(), demand.join(" ")))
    });
    let rules: Vec<_> = rules.collect::<Result<_>>()?;
    ensure!(!rules.is_empty(), "there are no gates");
    Ok(rules)
}

/// A table in Markdown: each gate, what it demands, what makes it fail, and what `hairpin bench` then said.
fn table(rules: &[Rule], rows: &[(&str, &str, Fault, String)]) -> String {
    let mut text = String::from(
        "\n| scenario | gate | demands | what makes it fail | what hairpin bench said |\n| --- | --- | --- | --- | --- |\n",
    );
    for (scenario, kind, demand) in rules {
        let of_gate = |row: &&(&str, &str, Fault, String)| row.0 == scenario && row.1 == kind;
        for (_, _, fault, said) in rows.iter().filter(of_gate) {
            let said = said.replace('|', "\\|");
            let _ = writeln!(
                text,
                "| {scenario} | {kind} | {demand} | {fault} | {said} |"
            );
        }
        if !rows.iter().any(|row| of_gate(&row)) {
            let _ = writeln!(text, "| {scenario} | {kind} | {demand} | **nothing** | |");
        }
    }
    text
}

/// The violation of this kind in this scenario. If there is none, the error lists the other violations of the scenario.
fn violation(found: &[String], scenario: &str, kind: &str, fault: Fault) -> Result<String> {
    let place = format!(" {scenario}: ");
    let of_this_kind = format!("{place}{kind}: ");
    let (sides, mark): (&[&str], &str) = match fault {
        Fault::FaultyRelays => (&["floor-damage ", "floor-repeat "], DAMAGED),
        _ => (&["hairpin"], &of_this_kind),
    };
    let mut said = Vec::new();
    for side in sides {
        let of_it: Vec<&str> = found
            .iter()
            .filter(|line| line.starts_with(side) && line.contains(&place))
            .map(String::as_str)
            .collect();
        let of_kind = of_it.iter().find(|line| line.contains(mark));
        match of_kind {
            Some(line) => said.push(*line),
            None if of_it.is_empty() => bail!("the gate holds"),
            None => bail!(
                "no violation with `{}`, only: {}",
                mark.trim(),
                of_it.join("; ")
            ),
        }
    }
    Ok(said.join("; "))
}

/// The violations that a benchmark finds with this fault.
fn violations_with(
    fault: Fault,
    gates: &[(&str, &str)],
    binary: &Path,
    folder: &Path,
) -> Result<Vec<String>> {
    let mut command = process::command(binary);
    let scenarios: BTreeSet<&str> = gates.iter().map(|(name, _)| *name).collect();
    let scenarios = scenarios.into_iter().collect::<Vec<_>>().join(",");
    command.args(["bench", "--scenarios", &scenarios]);
    match fault {
        Fault::FaultyRelays => {
            command
                .args(["--a", "floor", "--b", "floor-damage", "--c", "floor-repeat"])
                .args(["--rounds", "1", "--step", "120ms", "--hold", "250ms"]);
        }
        _ => {
            // A cycle is compared with datagrams of the floor, which a relay scenario measures.
            let with_datagrams = match gates.iter().any(|(_, kind)| *kind == CYCLE_COST) {
                true => format!("{scenarios},relay-64x1-c2p-120B"),
                false => scenarios,
            };
            let script = script(fault, binary, folder)?;
            command = process::command(binary);
            command
                .args(["bench", "--quick", "--a", "hairpin", "--b", "floor"])
                .args(["--c", "hairpin-spread", "--scenarios", &with_datagrams])
                .arg("--hairpin")
                .arg(&script);
        }
    }
    let mut bench = Process::start("hairpin bench", command, folder.join("bench.log"))?;
    if bench.wait(BENCH_TIMEOUT)? == Ended::Killed {
        bail!("not finished within {BENCH_TIMEOUT:?}: {}", bench.tail());
    }
    let output = bench.output();
    let prefix = match fault {
        Fault::FaultyRelays => "damage: ",
        _ => "gate: ",
    };
    let found = output.lines().filter_map(|line| line.strip_prefix(prefix));
    Ok(found.map(str::to_owned).collect())
}

/// A program that runs hairpin without the mechanism.
fn script(fault: Fault, binary: &Path, folder: &Path) -> Result<PathBuf> {
    let (before, after) = match fault {
        Fault::Within(program, option) => (program, option),
        Fault::Option(option) => ("", option),
        Fault::FaultyRelays | Fault::Test(_) => ("", ""),
    };
    let script = folder.join("hairpin");
    let text = format!(
        "#!/bin/sh\nexec {before} {} \"$@\" {after}\n",
        binary.display()
    );
    std::fs::write(&script, text)?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    Ok(script)
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
    fn the_tests_that_prove_gates_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let sources = workspace::rust_files(root).unwrap();
        for proof in &PROOFS {
            if let Fault::Test(name) = proof.fault {
                assert!(has_test(&sources, name), "{name}");
            }
        }
        assert!(!has_test(&sources, "has_test"), "it is no test");
    }

    const OPTION: Fault = Fault::Option("--batch-limit=1");

    #[test]
    fn the_table_has_each_gate_and_says_which_nothing_makes_fail() {
        let text = "binding-1   goodput   at least 180 %\nchurn-64  cycles  none fails\n";
        let rules = parse_rules(text).unwrap();
        assert_eq!(rules[1].1, CYCLES);
        assert!(parse_rules("binding-1\n").is_err() && parse_rules("").is_err());
        let said = "hairpin: 10 | 20".to_owned();
        let table = table(&rules, &[("churn-64", CYCLES, OPTION, said)]);
        let lines: Vec<&str> = table.lines().skip(3).collect();
        assert_eq!(
            lines,
            [
                "| binding-1 | goodput | at least 180 % | **nothing** | |",
                "| churn-64 | cycles | none fails | `--batch-limit=1` | hairpin: 10 \\| 20 |",
            ]
        );
    }

    #[test]
    fn damage_is_proved_by_both_relays() {
        let line = |side: &str| {
            format!(
                "{side} in round 1, binding-1: 7 datagrams arrived changed or in the wrong place, 8 arrived again"
            )
        };
        let both = [line("floor-damage"), line("floor-repeat")];
        let proved =
            |found: &[String]| violation(found, "binding-1", DAMAGE, Fault::FaultyRelays).is_ok();
        assert!(proved(&both));
        assert!(!proved(&both[..1]) && !proved(&[line("floor")]));
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
            "floor in round 1, binding-1: goodput: 10/s is less than 180 % of the floor's 20/s",
            "hairpin in round 1, relay-1x1-c2p-120B: hairpin ended at once: unknown option",
            "hairpin in round 1, relay-64x1-c2p-120B: cannot count the server's system calls: refused",
            "hairpin in round 1, relay-1x1-c2p-1200B: goodput: 10/s is less than 140 % of the floor's 20/s, twice",
            "hairpin in round 1, churn-64: cycles: 7 cycles failed",
            "hairpin-spread in round 2, spread-4: spread: the two workers differed by 9 allocations, more than 5",
            "hairpin in round 2, binding-1000: system-calls: 1.030 system calls for each datagram are more than 0.3",
        ]);
        for (scenario, kind) in [
            ("relay-1x1-c2p-1200B", GOODPUT),
            ("churn-64", CYCLES),
            ("spread-4", SPREAD),
            ("binding-1000", SYSTEM_CALLS),
        ] {
            let outcome = violation(&found, scenario, kind, OPTION);
            assert!(outcome.is_ok(), "{scenario}: {outcome:?}");
        }
        let failed = |scenario, kind| {
            violation(&found, scenario, kind, OPTION)
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default()
        };
        assert!(failed("relay-1x1-c2p-120B", GOODPUT).contains("unknown option"));
        assert!(failed("relay-64x1-c2p-120B", SYSTEM_CALLS).contains("refused"));
        assert_eq!(failed("binding-1", GOODPUT), "the gate holds");
        assert!(failed("churn-64", SYSTEM_CALLS).contains("7 cycles failed"));
    }
}
