//! `cargo xtask bench-report`: makes the benchmark reports in docs/benchmarks anew, and the tables in the pages that
//! quote them.
//!
//! Each report is one run of `hairpin bench`, which writes `report-NAME.json` and `report-NAME.html`. (The book makes
//! `NAME.html` of the page `NAME.md`.) `figures.md` has all their tables. In other pages, a table stands between
//! `<!-- table NAME -->` and `<!-- end -->`, and is written from the JSON: nobody copies figures by hand.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{cargo, process};

/// A committed report.
struct CommittedReport {
    name: &'static str,
    /// Arguments of `hairpin bench` between blanks.
    arguments: &'static str,
    /// Whether the servers of `--rival` take part.
    rivals: bool,
}

const REPORTS: [CommittedReport; 8] = [
    CommittedReport {
        name: "relay",
        arguments: "--a hairpin --b coturn --b floor --b floor-gro --b floor-stun --step 200ms",
        rivals: true,
    },
    CommittedReport {
        name: "in-kernel",
        arguments: "--a hairpin-xdp --b hairpin-tc --b hairpin --b hairpin-xdp-miss --b floor-xdp --b floor-tc --b floor --b floor-stun-xdp --b coturn \
                    --scenarios relay-64x1-c2p,relay-64x1-p2c,relay-1000x1,relay-16000x1,random-16000x1,binding-1000,binding-one,binding-spoofed --step 100ms",
        rivals: false,
    },
    CommittedReport {
        name: "two-workers",
        arguments: "--a hairpin --b hairpin-2 --b hairpin-spread --scenarios relay-64x1-both,spread --sizes 120",
        rivals: false,
    },
    CommittedReport {
        name: "tcp",
        arguments: "--a hairpin --b coturn --b floor-tcp --scenarios tcp- --rounds 3 --step 100ms",
        rivals: false,
    },
    CommittedReport {
        name: "tls",
        arguments: "--a hairpin --b coturn --b floor-tls --scenarios tls- --rounds 3 --step 100ms",
        rivals: false,
    },
    CommittedReport {
        name: "sip",
        arguments: "--sip --a hairpin-sip --b kamailio --b floor-sip --b hairpin-sip-2 --step 500ms",
        rivals: false,
    },
    CommittedReport {
        name: "sip-connections",
        arguments: "--sip --a hairpin-sip --b kamailio --scenarios sip-register-tcp,sip-register-tls,sip-register-wss,sip-proxied-call-tls,sip-proxied-call-wss,sip-memory-call --rounds 3 --step 500ms",
        rivals: false,
    },
    CommittedReport {
        name: "sip-overload",
        arguments: "--sip --a hairpin-sip --b hairpin-sip-uncontrolled --b kamailio --scenarios sip-overload --rounds 2 --step 500ms --hold 3s",
        rivals: false,
    },
];

/// The options of `cargo xtask bench-report`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Only these reports (repeatable): relay, in-kernel, two-workers, tcp, tls, sip, sip-connections or sip-overload
    #[arg(long, value_name = "NAME", value_parser = REPORTS.map(|made| made.name))]
    only: Vec<String>,
    /// Measure nothing; write the tables of the pages from the reports that are there
    #[arg(long, conflicts_with_all = ["rival", "extra"])]
    tables: bool,
    /// One more server for the report `relay`, in the form of `hairpin bench --b` (repeatable)
    #[arg(long, value_name = "SERVER")]
    rival: Vec<String>,
    /// One more argument for `hairpin bench`, such as --rounds=3 (repeatable)
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    extra: Vec<String>,
    /// A hairpin that is built already
    #[arg(long, value_name = "FILE")]
    hairpin: Option<PathBuf>,
}

/// Measures, and writes reports and tables.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let folder = root.join("docs/benchmarks");
    if !options.tables {
        let binary = match &options.hairpin {
            Some(binary) => binary.clone(),
            None => cargo::release(root)?,
        };
        let wanted = |made: &&CommittedReport| {
            options.only.is_empty() || options.only.iter().any(|name| name == made.name)
        };
        for made in REPORTS.iter().filter(wanted) {
            measure(&binary, &folder, made, options)?;
        }
    }
    let figures = folder.join("figures.md");
    std::fs::write(&figures, page_of_figures(&folder)?)
        .with_context(|| format!("cannot write {}", figures.display()))?;
    let mut pages = markdown(&folder)?;
    pages.push(root.join("README.md"));
    for page in pages {
        let text = std::fs::read_to_string(&page)
            .with_context(|| format!("cannot read {}", page.display()))?;
        let new = with_tables(&text, |name| {
            let file = folder.join(format!("report-{name}.json"));
            let json = std::fs::read_to_string(&file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            table(&serde_json::from_str(&json)?)
        })
        .with_context(|| format!("in {}", page.display()))?;
        if new != text {
            std::fs::write(&page, new)
                .with_context(|| format!("cannot write {}", page.display()))?;
            println!("wrote {}", page.display());
        }
    }
    Ok(())
}

fn measure(binary: &Path, folder: &Path, made: &CommittedReport, options: &Options) -> Result<()> {
    let mut command = process::command(binary);
    command.arg("bench").args(made.arguments.split_whitespace());
    if made.rivals {
        for rival in &options.rival {
            command.args(["--b", rival]);
        }
    }
    command.args(&options.extra);
    for (flag, ending) in [("--json", "json"), ("--html", "html")] {
        command.arg(flag);
        command.arg(folder.join(format!("report-{}.{ending}", made.name)));
    }
    let status = command.status().context("cannot run hairpin bench")?;
    ensure!(
        status.success(),
        "`hairpin bench` of the report {} ended with {status}: no server may change or repeat datagrams",
        made.name
    );
    Ok(())
}

/// A page with the table of every report that is there.
fn page_of_figures(folder: &Path) -> Result<String> {
    let mut page = String::from(
        "# All figures\n\nWritten by `cargo xtask bench-report`. How they are measured: [benchmarking](../benchmarking.md).\n",
    );
    for CommittedReport { name, .. } in &REPORTS {
        let file = folder.join(format!("report-{name}.json"));
        if file.exists() {
            // Writing to a string cannot fail.
            let _ = write!(
                page,
                "\n## {name}\n\n[report-{name}.html](report-{name}.html) has the plots,\n[report-{name}.json](report-{name}.json) every measurement.\n\n\
                 <!-- table {name} -->\n<!-- end -->\n"
            );
        }
    }
    Ok(page)
}

fn markdown(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "md") {
            pages.push(path);
        }
    }
    pages.sort();
    Ok(pages)
}

/// A page with each of its tables made anew.
fn with_tables(page: &str, mut table: impl FnMut(&str) -> Result<String>) -> Result<String> {
    const BEGIN: &str = "<!-- table ";
    const END: &str = "<!-- end -->";
    let mut new = String::new();
    let mut rest = page;
    while let Some(at) = rest.find(BEGIN) {
        let (before, from) = rest.split_at(at);
        let line = from.lines().next().unwrap_or_default();
        let name = line
            .strip_prefix(BEGIN)
            .and_then(|name| name.strip_suffix(" -->"))
            .with_context(|| format!("`{line}` is not <!-- table NAME -->"))?;
        let end = from
            .find(END)
            .with_context(|| format!("no {END} follows {line}"))?;
        // Writing to a string cannot fail.
        let _ = write!(new, "{before}{line}\n{}", table(name)?);
        rest = &from[end..];
    }
    Ok(new + rest)
}

/// The tables of a report: all servers in all scenarios. The rounds, the machine and the command line follow.
fn table(report: &Value) -> Result<String> {
    let rows = report["summary"].as_array().context("no summary")?;
    let (overloads, loads): (Vec<&Value>, Vec<&Value>) =
        rows.iter().partition(|row| row["overload"].is_object());
    let mut text = String::new();
    if !loads.is_empty() {
        text += &table_of_loads(report, &loads)?;
    }
    if !overloads.is_empty() {
        text += &table_of_overloads(report, &overloads)?;
    }
    let rounds = report["rounds"].as_u64().unwrap_or_default();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "\nMedians of {rounds} rounds; {}, Linux {}:\n\n```sh\n{}\n```\n",
        report["processor"].as_str().unwrap_or_default().trim(),
        report["kernel"].as_str().unwrap_or_default(),
        command(report)
    );
    Ok(text)
}

/// The server and the scenario of a row.
fn names(report: &Value, row: &Value) -> Result<[String; 2]> {
    let side = row["side"].as_u64().context("a row without a server")?;
    let name = &report["sides"][side as usize]["name"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok([text(&row["name"]), text(name)])
}

/// What servers did with several times the load that they hold.
fn table_of_overloads(report: &Value, rows: &[&Value]) -> Result<String> {
    let mut text = String::from(
        "\n| scenario | server | load | offered | began | goodput | of the best at 1x | 503/s | again/s | p99 | p99 of the last try | busy | us each | memory |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    let mut recoveries = String::new();
    for row in rows {
        let [scenario, server] = names(report, row)?;
        let overload = &row["overload"];
        for load in overload["loads"].as_array().into_iter().flatten() {
            let number = |name: &str| load[name].as_f64().unwrap_or_default();
            let some = |name: &str, show: fn(f64) -> String| {
                load[name].as_f64().map_or_else(|| "-".to_owned(), show)
            };
            let ms = |us: f64| format!("{:.1} ms", us / 1e3);
            let cells = [
                scenario.clone(),
                server.clone(),
                format!("{}x", number("multiple")),
                format!("{:.0}/s", number("offered")),
                format!("{:.0}/s", number("begun")),
                format!("{:.0}/s", number("goodput")),
                format!("{:.0} %", number("kept") * 100.0),
                format!("{:.0}", number("unavailable")),
                format!("{:.0}", number("retransmissions")),
                some("p99_us", ms),
                some("last_try_p99_us", ms),
                format!("{:.0} %", number("busy") * 100.0),
                some("cost_us", |us| format!("{us:.1}")),
                format!("{:.0} MB", number("resident") / 1e6),
            ];
            // Writing to a string cannot fail, here and below.
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        let late = overload["not_recovered"].as_u64().unwrap_or_default();
        let _ = match median(&overload["recovery_s"]) {
            Some(seconds) => writeln!(
                recoveries,
                "- {server}, {scenario}: recovered {seconds:.1} s after the load fell; not within 5 s in {late} rounds"
            ),
            None => writeln!(
                recoveries,
                "- {server}, {scenario}: not recovered 5 s after the load fell"
            ),
        };
    }
    Ok(format!("{text}\n{recoveries}"))
}

fn table_of_loads(report: &Value, rows: &[&Value]) -> Result<String> {
    let mut text = String::from(
        "\n| load | server | best | times the first | ns each at 30 / 60 / 90 / 100 % | kept at twice the load | lost, duplicated, reordered, damaged |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in rows {
        let [scenario, server] = names(report, row)?;
        let cells = [
            scenario,
            server,
            best(row),
            ratio(&row["main_ratio"]),
            costs(row),
            kept(&row["delivery"]),
            delivery_text(&row["delivery"]),
        ];
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    Ok(text)
}

/// The command line without the files that it wrote.
fn command(report: &Value) -> String {
    let words = report["argv"].as_array().map_or(&[][..], Vec::as_slice);
    let mut shown = Vec::new();
    let mut words = words.iter().filter_map(Value::as_str);
    while let Some(word) = words.next() {
        match word {
            "--json" | "--html" | "--hairpin" => drop(words.next()),
            word => shown.push(word),
        }
    }
    shown.join(" ")
}

fn median(summary: &Value) -> Option<f64> {
    summary["median"].as_f64()
}

fn best(row: &Value) -> String {
    let Some(value) = median(&row["main"]) else {
        return "failed".to_owned();
    };
    let kind = row["scenario"]["kind"].as_str().unwrap_or_default();
    let (low, high) = (row["main"]["min"].as_f64(), row["main"]["max"].as_f64());
    let range = |show: fn(f64) -> String| {
        let ends = [low.unwrap_or(value), high.unwrap_or(value)].map(show);
        format!("{} ({} to {})", show(value), ends[0], ends[1])
    };
    match kind {
        "memory" | "sip-memory" => range(|bytes| format!("{:.2} kB", bytes / 1e3)),
        "spread" => range(|apart| format!("{apart:.0} apart")),
        _ => range(|rate| match rate {
            rate if rate < 1e4 => format!("{:.1}k/s", rate / 1e3),
            rate => format!("{:.0}k/s", rate / 1e3),
        }),
    }
}

fn ratio(ratio: &Value) -> String {
    match (median(ratio), ratio["min"].as_f64(), ratio["max"].as_f64()) {
        (Some(median), Some(low), Some(high)) => format!("{median:.2} ({low:.2} to {high:.2})"),
        _ => String::new(),
    }
}

fn costs(row: &Value) -> String {
    let show = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.0}"));
    match &row["delivery"] {
        Value::Null => show(median(&row["cost"])),
        delivery => {
            let at = [
                median(&delivery["cost_at_30"]),
                median(&row["cost"]),
                median(&delivery["cost_at_90"]),
                median(&delivery["cost_at_best"]),
            ];
            at.map(show).join(" / ")
        }
    }
}

fn kept(delivery: &Value) -> String {
    match (
        median(&delivery["at_double"]),
        median(&delivery["offered_at_double"]),
    ) {
        (Some(kept), Some(offered)) if offered < 1.9 => {
            format!("{:.0} % (at {offered:.1} times)", kept * 100.0)
        }
        (Some(kept), _) => format!("{:.0} %", kept * 100.0),
        _ => String::new(),
    }
}

fn delivery_text(delivery: &Value) -> String {
    let Some(loss) = median(&delivery["loss"]) else {
        return String::new();
    };
    let count = |name: &str| delivery[name].as_u64().unwrap_or_default();
    format!(
        "{:.2} %, {}, {}, {}",
        loss * 100.0,
        count("duplicated"),
        count("reordered"),
        count("wrong")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tables_are_replaced_and_the_rest_stays() {
        let page =
            "a\n<!-- table one -->\nold\n<!-- end -->\nb\n<!-- table two -->\n<!-- end -->\n";
        let new = with_tables(page, |name| Ok(format!("new {name}\n"))).unwrap();
        assert_eq!(
            new,
            "a\n<!-- table one -->\nnew one\n<!-- end -->\nb\n<!-- table two -->\nnew two\n<!-- end -->\n"
        );
        assert_eq!(
            with_tables(&new, |name| Ok(format!("new {name}\n"))).unwrap(),
            new
        );
        assert!(with_tables("<!-- table one -->\n", |_| Ok(String::new())).is_err());
    }

    #[test]
    fn a_table_has_a_line_for_each_server_in_each_scenario() {
        let summary = |value: f64| json!({ "median": value, "min": value, "max": value * 2.0 });
        let report = json!({
            "rounds": 6, "processor": "a processor", "kernel": "6.18",
            "argv": ["hairpin", "bench", "--a", "hairpin", "--json", "/some/where.json"],
            "sides": [{ "name": "hairpin" }, { "name": "floor" }],
            "summary": [
                { "name": "relay-1x1", "scenario": { "kind": "relay" }, "side": 1, "main": summary(500e3), "cost": summary(1500.0),
                  "main_ratio": summary(0.5), "delivery": { "loss": summary(0.004), "cost_at_30": summary(1600.0),
                  "cost_at_90": summary(1400.0), "cost_at_best": summary(1350.0), "at_double": summary(0.9), "offered_at_double": summary(2.0),
                  "duplicated": 0, "reordered": 1, "wrong": 0 } },
                { "name": "memory-1000", "scenario": { "kind": "memory" }, "side": 0, "main": summary(3000.0), "cost": summary(900.0),
                  "main_ratio": summary(1.0), "delivery": null },
            ],
        });
        let table = table(&report).unwrap();
        assert!(
            table.contains("| relay-1x1 | floor | 500k/s (500k/s to 1000k/s) | 0.50 (0.50 to 1.00) | 1600 / 1500 / 1400 / 1350 | 90 % | 0.40 %, 0, 1, 0 |"),
            "{table}"
        );
        assert!(
            table.contains("| memory-1000 | hairpin | 3.00 kB (3.00 kB to 6.00 kB)"),
            "{table}"
        );
        assert!(
            table.contains("```sh\nhairpin bench --a hairpin\n```") && !table.contains("where"),
            "{table}"
        );
    }
    #[test]
    fn an_overload_has_a_line_for_each_load_and_the_recovery() {
        let load = |multiple: f64, p99: Value| {
            json!({ "multiple": multiple, "offered": 100.0 * multiple, "begun": 99.0 * multiple, "goodput": 90.0, "kept": 0.9,
                    "unavailable": 5.0, "retransmissions": 7.0, "p99_us": p99, "last_try_p99_us": 2000.0, "busy": 1.0, "cost_us": 11.1,
                    "resident": 3e6 })
        };
        let report = json!({
            "rounds": 2, "processor": "a processor", "kernel": "6.18", "argv": ["hairpin", "bench", "--sip"],
            "sides": [{ "name": "hairpin-sip" }, { "name": "kamailio" }],
            "summary": [
                { "name": "sip-overload-call-50us", "side": 0, "overload": {
                    "loads": [load(1.0, json!(1500.0)), load(10.0, Value::Null)], "recovery_s": { "median": 0.4 }, "not_recovered": 0 } },
                { "name": "sip-overload-call-50us", "side": 1, "overload": { "loads": [], "recovery_s": null, "not_recovered": 2 } },
            ],
        });
        let table = table(&report).unwrap();
        assert!(
            table.contains("| sip-overload-call-50us | hairpin-sip | 10x | 1000/s | 990/s | 90/s | 90 % | 5 | 7 | - | 2.0 ms | 100 % | 11.1 | 3 MB |"),
            "{table}"
        );
        assert!(
            table.contains("| 1x |") && table.contains("| 1.5 ms |"),
            "{table}"
        );
        assert!(
            table.contains("- hairpin-sip, sip-overload-call-50us: recovered 0.4 s"),
            "{table}"
        );
        assert!(
            table.contains("- kamailio, sip-overload-call-50us: not recovered"),
            "{table}"
        );
        assert!(!table.contains("| best |"), "{table}");
    }
}
