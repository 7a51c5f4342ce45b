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

/// A fault, and the gates that must fail with it.
struct Proof {
    switch: Switch,
    gates: &'static [(&'static str, Violation)],
}

/// A fault that makes gates fail.
#[derive(Clone, Copy, Debug)]
enum Switch {
    /// An option of hairpin that disables a mechanism.
    Option(&'static str),
    /// A program that runs hairpin, and an option of hairpin.
    Within(&'static str, &'static str),
    /// The servers `floor-damage` and `floor-repeat` instead of hairpin.
    FaultyRelays,
    /// A test of the stage `unit` with this name. It has a server with the fault.
    Test(&'static str),
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Switch::Option(text) | Switch::Within(text, "") => write!(f, "`{text}`"),
            Switch::Within(program, option) => write!(f, "`{program}` and `{option}`"),
            Switch::FaultyRelays => f.write_str("`floor-damage`, `floor-repeat`"),
            Switch::Test(name) => write!(f, "test `{name}`"),
        }
    }
}

/// The kind of violation that a gate reports when its mechanism is disabled. If the server does not start, or a figure
/// was not measured, every gate fails. Such a failure does not show that a gate detects its mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Violation {
    Goodput,
    SystemCalls,
    Damage,
    Cycles,
    CycleCost,
    Spread,
    UserMemory,
}

/// With their names in `hairpin bench --quick --list`.
const VIOLATIONS: [(&str, Violation); 7] = [
    ("goodput", Violation::Goodput),
    ("system-calls", Violation::SystemCalls),
    ("damage", Violation::Damage),
    ("cycles", Violation::Cycles),
    ("cycle-cost", Violation::CycleCost),
    ("spread", Violation::Spread),
    ("user-memory", Violation::UserMemory),
];

impl Violation {
    /// Its words in `hairpin bench` (crates/load/src/bench/report/gate.rs).
    fn words(self) -> &'static str {
        match self {
            Violation::Goodput => "% of the floor's ",
            Violation::SystemCalls => " system calls for each datagram are more than ",
            Violation::Damage => " datagrams arrived changed or in the wrong place, ",
            Violation::Cycles => " cycles failed",
            Violation::CycleCost => "a cycle takes ",
            Violation::Spread => "the two workers differed by ",
            Violation::UserMemory => " bytes of user memory for each are more than ",
        }
    }

    fn name(self) -> &'static str {
        let found = VIOLATIONS.iter().find(|(_, kind)| *kind == self);
        found.map_or("", |(name, _)| name)
    }
}

/// A program in valgrind is several times slower.
const VALGRIND: &str = "valgrind -q --tool=none";

/// As docs/benchmarking.md lists them.
const PROOFS: [Proof; 9] = [
    Proof {
        switch: Switch::Option("--set=server.offloads=false"),
        gates: &[
            ("relay-1x1-c2p-120B", Violation::Goodput),
            ("relay-1x1-c2p-1200B", Violation::Goodput),
            ("relay-64x8-c2p-120B", Violation::Goodput),
            ("binding-1", Violation::Goodput),
        ],
    },
    Proof {
        switch: Switch::Option("--batch-limit=64"),
        gates: &[
            ("relay-64x1-c2p-120B", Violation::SystemCalls),
            ("relay-64x1-c2p-1200B", Violation::SystemCalls),
            ("relay-1000x1-c2p-120B", Violation::SystemCalls),
        ],
    },
    Proof {
        switch: Switch::Option("--batch-limit=1"),
        gates: &[
            ("relay-64x1-p2c-120B", Violation::SystemCalls),
            ("relay-64x1-both-120B", Violation::SystemCalls),
            ("binding-1000", Violation::SystemCalls),
            ("relay-64x1-c2p-120B", Violation::Goodput),
            ("relay-64x1-c2p-1200B", Violation::Goodput),
            ("relay-64x1-p2c-120B", Violation::Goodput),
            ("relay-64x1-both-120B", Violation::Goodput),
        ],
    },
    // The loss of batches alone is near these gates: hairpin then makes three system calls for the two of the floor.
    Proof {
        switch: Switch::Within(VALGRIND, "--batch-limit=1"),
        gates: &[
            ("relay-1000x1-c2p-120B", Violation::Goodput),
            ("binding-1000", Violation::Goodput),
        ],
    },
    Proof {
        switch: Switch::Option("--set=server.steering=hash"),
        gates: &[("spread-4", Violation::Spread)],
    },
    Proof {
        switch: Switch::Option("--set=limits.allocations_per_user=1"),
        gates: &[("churn-64", Violation::Cycles)],
    },
    // In valgrind, each instruction takes several times as long, and translated code uses memory.
    Proof {
        switch: Switch::Within(VALGRIND, ""),
        gates: &[
            ("memory-1000", Violation::UserMemory),
            ("churn-64", Violation::CycleCost),
        ],
    },
    Proof {
        switch: Switch::FaultyRelays,
        gates: &[
            ("relay-1x1-c2p-120B", Violation::Damage),
            ("relay-1x1-c2p-1200B", Violation::Damage),
            ("relay-64x1-c2p-120B", Violation::Damage),
            ("relay-64x1-c2p-1200B", Violation::Damage),
            ("relay-64x1-p2c-120B", Violation::Damage),
            ("relay-64x1-both-120B", Violation::Damage),
            ("relay-64x8-c2p-120B", Violation::Damage),
            ("relay-1000x1-c2p-120B", Violation::Damage),
            ("binding-1", Violation::Damage),
            ("binding-1000", Violation::Damage),
        ],
    },
    Proof {
        switch: Switch::Test("dropped_requests_and_malformed_messages_of_a_churn_are_counted"),
        gates: &[("churn-64", Violation::Damage)],
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
        let found = match proof.switch {
            Switch::Test(_) => Vec::new(),
            switch => without(switch, proof.gates, &binary, &folder)?,
        };
        for &(scenario, kind) in proof.gates {
            let outcome = match proof.switch {
                Switch::Test(name) if has_test(&sources, name) => {
                    Ok(format!("the stage unit runs {name}"))
                }
                Switch::Test(name) => Err(anyhow::anyhow!("there is no test {name}")),
                switch => violation(&found, scenario, kind, switch),
            };
            let name = format!("{scenario}, {}, with {}", kind.name(), proof.switch);
            tally.record(&name, &outcome);
            let said = outcome.unwrap_or_else(|error| format!("**{error:#}**"));
            rows.push((scenario, kind, proof.switch, said));
        }
    }
    let rules = rules(&binary)?;
    for (scenario, kind, demand) in &rules {
        let is_proved = rows.iter().any(|row| row.0 == scenario && row.1 == *kind);
        if !is_proved {
            let missing = Err(anyhow::anyhow!("nothing makes it fail ({demand})"));
            tally.record(&format!("{scenario}, {}", kind.name()), &missing);
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

/// The gates of the quick mode: scenario, kind, and what it demands.
fn rules(binary: &Path) -> Result<Vec<(String, Violation, String)>> {
    let mut command = process::command(binary);
    command.args(["bench", "--quick", "--list"]);
    let output = command.output().context("cannot run hairpin bench")?;
    ensure!(output.status.success(), "hairpin bench: {}", output.status);
    parse_rules(&String::from_utf8(output.stdout)?)
}

fn parse_rules(text: &str) -> Result<Vec<(String, Violation, String)>> {
    let rules = text.lines().map(|line| {
        let mut words = line.split_whitespace();
        let (scenario, name) = words.next().zip(words.next()).context("an empty line")?;
        let known = VIOLATIONS.iter().find(|(known, _)| *known == name);
        let (_, kind) = known.with_context(|| format!("`{name}` is no kind of gate"))?;
        let demand: Vec<&str> = words.collect();
        Ok((scenario.to_owned(), *kind, demand.join(" ")))
    });
    let rules: Vec<_> = rules.collect::<Result<_>>()?;
    ensure!(!rules.is_empty(), "there are no gates");
    Ok(rules)
}

/// A table in Markdown: each gate, what it demands, what makes it fail, and what `hairpin bench` then said.
fn table(
    rules: &[(String, Violation, String)],
    rows: &[(&str, Violation, Switch, String)],
) -> String {
    let mut text = String::from(
        "\n| scenario | gate | demands | what makes it fail | what hairpin bench said |\n| --- | --- | --- | --- | --- |\n",
    );
    for (scenario, kind, demand) in rules {
        let of_gate =
            |row: &&(&str, Violation, Switch, String)| row.0 == scenario && row.1 == *kind;
        let name = kind.name();
        for (_, _, switch, said) in rows.iter().filter(of_gate) {
            let said = said.replace('|', "\\|");
            let _ = writeln!(
                text,
                "| {scenario} | {name} | {demand} | {switch} | {said} |"
            );
        }
        if !rows.iter().any(|row| of_gate(&row)) {
            let _ = writeln!(text, "| {scenario} | {name} | {demand} | **nothing** | |");
        }
    }
    text
}

/// The violation of this kind in this scenario. If there is none, the error lists the other violations of the scenario.
fn violation(found: &[String], scenario: &str, kind: Violation, switch: Switch) -> Result<String> {
    let place = format!(" {scenario}: ");
    let sides: &[&str] = match switch {
        Switch::FaultyRelays => &["floor-damage ", "floor-repeat "],
        _ => &["hairpin"],
    };
    let mut said = Vec::new();
    for side in sides {
        let of_it: Vec<&str> = found
            .iter()
            .filter(|line| line.starts_with(side) && line.contains(&place))
            .map(String::as_str)
            .collect();
        let of_kind = of_it.iter().find(|line| line.contains(kind.words()));
        match of_kind {
            Some(line) => said.push(*line),
            None if of_it.is_empty() => bail!("the gate holds"),
            None => bail!(
                "no violation with `{}`, only: {}",
                kind.words().trim(),
                of_it.join("; ")
            ),
        }
    }
    Ok(said.join("; "))
}

/// The violations that a benchmark finds with this fault.
fn without(
    switch: Switch,
    gates: &[(&str, Violation)],
    binary: &Path,
    folder: &Path,
) -> Result<Vec<String>> {
    let mut command = process::command(binary);
    let scenarios: BTreeSet<&str> = gates.iter().map(|(name, _)| *name).collect();
    let scenarios = scenarios.into_iter().collect::<Vec<_>>().join(",");
    command.args(["bench", "--scenarios", &scenarios]);
    match switch {
        Switch::FaultyRelays => {
            command
                .args(["--a", "floor", "--b", "floor-damage", "--c", "floor-repeat"])
                .args(["--rounds", "1", "--step", "120ms", "--hold", "250ms"]);
        }
        _ => {
            // A cycle is compared with datagrams of the floor, which a relay scenario measures.
            let with_datagrams = match gates.iter().any(|(_, kind)| *kind == Violation::CycleCost) {
                true => format!("{scenarios},relay-64x1-c2p-120B"),
                false => scenarios,
            };
            let script = script(switch, binary, folder)?;
            command = process::command(binary);
            command
                .args(["bench", "--quick", "--a", "hairpin", "--b", "floor"])
                .args(["--c", "hairpin-spread", "--scenarios", &with_datagrams])
                .arg("--hairpin")
                .arg(&script);
        }
    }
    let mut bench = Process::start("hairpin bench", command, folder.join("bench.log"))?;
    if bench.wait(LIMIT)? == Ended::Killed {
        bail!("not finished within {LIMIT:?}: {}", bench.tail());
    }
    let output = bench.output();
    let prefix = match switch {
        Switch::FaultyRelays => "damage: ",
        _ => "gate: ",
    };
    let found = output.lines().filter_map(|line| line.strip_prefix(prefix));
    Ok(found.map(str::to_owned).collect())
}

/// A program that runs hairpin without the mechanism.
fn script(switch: Switch, binary: &Path, folder: &Path) -> Result<PathBuf> {
    let (before, after) = match switch {
        Switch::Within(program, option) => (program, option),
        Switch::Option(option) => ("", option),
        Switch::FaultyRelays | Switch::Test(_) => ("", ""),
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
            if let Switch::Test(name) = proof.switch {
                assert!(has_test(&sources, name), "{name}");
            }
        }
        assert!(!has_test(&sources, "has_test"), "it is no test");
    }

    const OPTION: Switch = Switch::Option("--batch-limit=1");

    #[test]
    fn the_table_has_each_gate_and_says_which_nothing_makes_fail() {
        let text = "binding-1   goodput   at least 180 %\nchurn-64  cycles  none fails\n";
        let rules = parse_rules(text).unwrap();
        assert_eq!(rules[1].1, Violation::Cycles);
        assert!(parse_rules("binding-1 speed\n").is_err() && parse_rules("").is_err());
        let said = "hairpin: 10 | 20".to_owned();
        let table = table(&rules, &[("churn-64", Violation::Cycles, OPTION, said)]);
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
        let proved = |found: &[String]| {
            violation(found, "binding-1", Violation::Damage, Switch::FaultyRelays).is_ok()
        };
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
            let outcome = violation(&found, scenario, kind, OPTION);
            assert!(outcome.is_ok(), "{scenario}: {outcome:?}");
        }
        let failed = |scenario, kind| {
            violation(&found, scenario, kind, OPTION)
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
