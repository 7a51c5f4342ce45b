//! What servers did in an overload: medians over the rounds, as text, table and curves.

use std::fmt::Write as _;

use serde::Serialize;

use super::{Outcome, Report, Row};
use crate::bench::scenario::Scenario;
use crate::bench::sip::Overload;
use crate::bench::stats::Summary;
use crate::report::SweepStep;
use crate::report::chart::{Series, escape, lines, thousands};

/// One server in an overload, over all rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OverloadRow {
    /// The highest load that it held, in units of work per second.
    pub peak: Summary,
    /// From the lowest load to the highest.
    pub loads: Vec<OverloadStep>,
    /// Seconds from the fall of the load until the server had recovered; `None` if it never did.
    pub recovery_s: Option<Summary>,
    /// Rounds in which it had not recovered when the harness stopped looking.
    pub not_recovered: usize,
}

/// One load, medians over all rounds. Rates are per second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OverloadStep {
    /// Multiple of the peak.
    pub multiple: f64,
    /// Units of work that were to begin.
    pub offered: f64,
    /// That did begin: less if the generator is the limit.
    pub begun: f64,
    /// That succeeded.
    pub goodput: f64,
    /// The same as a share of the best goodput at the peak in the same round.
    pub kept: f64,
    /// Responses 503.
    pub unavailable: f64,
    /// Retransmissions of the clients.
    pub retransmissions: f64,
    /// p99 of what succeeded, in microseconds since it was meant to begin; `None` if too little succeeded.
    pub p99_us: Option<f64>,
    /// The same since the last try left.
    pub last_try_p99_us: Option<f64>,
    /// Share of its processor that the server's processes used.
    pub busy: f64,
    /// Processor time of the server's processes for each unit that succeeded, in microseconds; `None` if none did.
    pub cost_us: Option<f64>,
    /// Resident memory of the server's processes at the end, in bytes.
    pub resident: f64,
}

impl OverloadRow {
    fn of(all: &[&Overload]) -> Option<OverloadRow> {
        let steps = || {
            all.iter().flat_map(|overload| {
                let base = overload.base();
                overload.sweep.steps.iter().map(move |step| (base, step))
            })
        };
        let mut multiples: Vec<f64> = steps().map(|(_, step)| step.multiple).collect();
        multiples.sort_by(f64::total_cmp);
        multiples.dedup();
        let load = |multiple: f64| {
            let own: Vec<(f64, &SweepStep)> = steps()
                .filter(|(_, step)| step.multiple.total_cmp(&multiple).is_eq())
                .collect();
            OverloadStep::of(multiple, &own)
        };
        let recoveries = all.iter().filter_map(|one| one.sweep.recovery.as_ref());
        let seconds = recoveries.map(|recovery| recovery.seconds);
        Some(OverloadRow {
            peak: Summary::of(all.iter().map(|one| one.best.delivered))?,
            loads: multiples.into_iter().map(load).collect(),
            recovery_s: Summary::of(seconds.clone().flatten()),
            not_recovered: seconds.filter(Option::is_none).count(),
        })
    }

    /// A line for each load.
    pub(super) fn to_text(&self, indent: &str) -> String {
        let mut text = format!("{indent}best goodput {}/s\n", thousands(self.peak.median));
        for load in &self.loads {
            // Writing to a string cannot fail, here and below.
            let _ = writeln!(
                text,
                "{indent}{:>5}x: began {}/s, goodput {}/s ({:.0} %), 503 {}/s, retransmissions {}/s, p99 {} (last try {}), CPU {:.0} %, {} per unit, {:.0} MB",
                load.multiple,
                thousands(load.begun),
                thousands(load.goodput),
                load.kept * 100.0,
                thousands(load.unavailable),
                thousands(load.retransmissions),
                ms(load.p99_us),
                ms(load.last_try_p99_us),
                load.busy * 100.0,
                load.cost_us
                    .map_or_else(|| "-".to_owned(), |us| format!("{us:.1} us")),
                load.resident / 1e6,
            );
        }
        let _ = writeln!(text, "{indent}{}", self.recovery());
        text
    }

    fn recovery(&self) -> String {
        let late = match self.not_recovered {
            0 => String::new(),
            rounds => {
                format!(
                    "; not recovered in {rounds} of the rounds when the harness stopped looking"
                )
            }
        };
        match self.recovery_s {
            Some(seconds) => format!(
                "recovered {:.1} s after the load fell ({:.1} to {:.1}){late}",
                seconds.median, seconds.min, seconds.max
            ),
            None => format!("no recovery was seen{late}"),
        }
    }
}

impl OverloadStep {
    /// Of steps with the best goodput at the peak of their rounds.
    fn of(multiple: f64, steps: &[(f64, &SweepStep)]) -> OverloadStep {
        let some = |value: &dyn Fn(&SweepStep) -> Option<f64>| {
            let values = steps.iter().filter_map(|(_, step)| value(step));
            Summary::of(values).map(|summary| summary.median)
        };
        let median = |value: fn(&SweepStep) -> f64| some(&|step| Some(value(step))).unwrap_or(0.0);
        // If too little succeeded in any round, a median of the others would be too good.
        let all = |value: fn(&SweepStep) -> Option<f64>| {
            let complete = steps.iter().all(|(_, step)| value(step).is_some());
            complete.then(|| some(&value)).flatten()
        };
        let kept = steps.iter().map(|(base, step)| step.goodput / base);
        OverloadStep {
            multiple,
            offered: median(|step| step.offered),
            begun: median(|step| step.begun),
            goodput: median(|step| step.goodput),
            kept: Summary::of(kept).map_or(0.0, |summary| summary.median),
            unavailable: median(|step| step.unavailable),
            retransmissions: median(|step| step.retransmissions),
            p99_us: all(|step| step.latency.p99_us),
            last_try_p99_us: all(|step| step.last_try.p99_us),
            busy: median(|step| step.server_cpu.unwrap_or(0.0)),
            cost_us: all(|step| {
                let spent = step.server_cpu? * 1e6;
                (step.goodput > 0.0).then_some(spent / step.goodput)
            }),
            resident: median(|step| step.server_memory.unwrap_or(0) as f64),
        }
    }
}

fn ms(us: Option<f64>) -> String {
    us.map_or_else(|| "-".to_owned(), |us| format!("{:.1} ms", us / 1e3))
}

impl Report {
    pub(super) fn overload(&self, scenario: &Scenario, side: usize) -> Option<OverloadRow> {
        let all: Vec<&Overload> = self
            .cells(scenario, side)
            .filter_map(|cell| match &cell.outcome {
                Outcome::Overload(overload) => Some(&**overload),
                _ => None,
            })
            .collect();
        OverloadRow::of(&all)
    }

    /// Curves and a table for the page.
    pub(super) fn overload_html(&self, rows: &[&Row]) -> String {
        let found: Vec<(&str, &OverloadRow)> = rows
            .iter()
            .filter_map(|row| {
                let name = self.sides[row.side].name.as_str();
                Some((name, row.overload.as_ref()?))
            })
            .collect();
        if found.is_empty() {
            return String::new();
        }
        let series = |value: fn(&OverloadStep) -> Option<f64>| -> Vec<Series> {
            let of = |(name, row): &(&str, &OverloadRow)| Series {
                name: (*name).to_owned(),
                points: row
                    .loads
                    .iter()
                    .filter_map(|load| Some((load.multiple, value(load)?)))
                    .collect(),
            };
            found.iter().map(of).collect()
        };
        let x = "offered load, multiples of each server's own peak";
        let kept = series(|load| Some(load.kept * 100.0));
        let p99 = series(|load| load.p99_us.map(|us| us / 1e3));
        let mut text = lines("Goodput", x, "% of the best at the peak", &kept);
        text += &lines(
            "p99 of what succeeded, since it was meant to begin",
            x,
            "ms",
            &p99,
        );
        text += "<table><tr><th>server<th>load<th>offered/s<th>began/s<th>goodput/s<th>of the best at 1x<th>503/s<th>retransmissions/s\
                 <th>p99<th>p99, last try<th>CPU<th>CPU us per unit<th>memory, MB</tr>";
        for (name, row) in &found {
            for load in &row.loads {
                let _ = write!(
                    text,
                    "<tr><td>{}<td>{}x<td>{:.0}<td>{:.0}<td>{:.0}<td>{:.0} %<td>{:.0}<td>{:.0}<td>{}<td>{}<td>{:.0} %<td>{}<td>{:.0}</tr>",
                    escape(name),
                    load.multiple,
                    load.offered,
                    load.begun,
                    load.goodput,
                    load.kept * 100.0,
                    load.unavailable,
                    load.retransmissions,
                    ms(load.p99_us),
                    ms(load.last_try_p99_us),
                    load.busy * 100.0,
                    load.cost_us
                        .map_or_else(|| "-".to_owned(), |us| format!("{us:.1}")),
                    load.resident / 1e6,
                );
            }
        }
        text += "</table>";
        for (name, row) in &found {
            let _ = write!(text, "<p>{}: {}</p>", escape(name), row.recovery());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cell, tests::report};
    use super::*;
    use crate::bench::scenario::SipWork;
    use crate::bench::sip::tests::{overload, step};
    use crate::report::Recovery;

    const SCENARIO: Scenario = Scenario::SipOverload {
        work: SipWork::Call,
        service_us: 50,
    };

    /// Two rounds of the first server, and one of the second, which serves nobody at ten times its peak.
    fn overloaded() -> Report {
        let cell = |side, round, goodput: f64, p99_us, seconds| {
            let mut found = overload(vec![
                step(1.0, 100.0, Some(1_000.0)),
                step(1.0, 90.0, Some(1_000.0)),
                step(10.0, goodput, p99_us),
            ]);
            found.sweep.recovery = Some(Recovery {
                seconds,
                ..Recovery::default()
            });
            Cell {
                scenario: SCENARIO,
                side,
                round,
                repeated: false,
                outcome: Outcome::Overload(Box::new(found)),
            }
        };
        let mut report = report();
        report.scenarios = vec![SCENARIO];
        report.cells = vec![
            cell(0, 0, 90.0, Some(20_000.0), Some(0.4)),
            cell(0, 1, 80.0, Some(30_000.0), Some(0.6)),
            cell(1, 0, 0.0, None, None),
        ];
        report
    }

    #[test]
    fn rounds_are_summarised_load_by_load() {
        let report = overloaded();
        let row = report.row(&SCENARIO, 0).unwrap();
        let found = row.overload.unwrap();
        assert_eq!(found.loads.len(), 2);
        let most = &found.loads[1];
        assert_eq!(
            (most.multiple, most.goodput, most.p99_us),
            (10.0, 85.0, Some(25_000.0))
        );
        assert!((most.kept - 0.85).abs() < 1e-9);
        assert_eq!(found.recovery_s.map(|seconds| seconds.median), Some(0.5));
        assert_eq!(row.main.map(|kept| kept.min), Some(0.8));
        assert_eq!(row.cost.map(|p99| p99.max), Some(30e6));
        let other = report.row(&SCENARIO, 1).unwrap();
        assert_eq!(other.main.map(|kept| kept.median), Some(0.0));
        assert_eq!((other.cost, other.cost_ratio), (None, None));
        let other = other.overload.unwrap();
        assert_eq!((other.recovery_s, other.not_recovered), (None, 1));
        assert_eq!(
            (other.loads[1].p99_us, other.loads[1].cost_us),
            (None, None)
        );
    }

    #[test]
    fn every_form_of_the_report_has_every_load() {
        let report = overloaded();
        let table = report.to_table();
        assert!(
            table.contains("10x: began 1.0k/s, goodput 85/s (85 %)"),
            "{table}"
        );
        assert!(
            table.contains("recovered 0.5 s after the load fell (0.4 to 0.6)"),
            "{table}"
        );
        assert!(
            table.contains("no recovery was seen; not recovered in 1 of the rounds"),
            "{table}"
        );
        let page = report.to_html();
        assert!(
            page.contains("<td>10x<td>1000<td>1000<td>85<td>85 %"),
            "{page}"
        );
        assert!(
            page.matches("<polyline").count() >= 4,
            "two curves of two servers"
        );
        assert!(!page.contains(" src=") && !page.contains("http://"));
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["summary"][0]["overload"]["loads"][1]["goodput"], 85.0);
        assert_eq!(json["cells"][0]["outcome"]["outcome"], "overload");
    }
}
