//! Two sides, each of one run or of several rounds: each difference, its direction, and whether it is larger than the
//! spread.

use std::fmt;

use super::{LoadReport, Second, shown};

/// Two sides: what differs in how they were made, and each figure with a verdict.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Comparison {
    /// Settings that are not the same in both, with both values: figures beside different settings mislead.
    pub differences: Vec<(String, String, String)>,
    /// Every figure.
    pub figures: Vec<Figure>,
    /// What the rounds are, in words.
    pub rounds: String,
}

/// One figure of both sides.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Figure {
    /// As reports name it.
    pub name: &'static str,
    /// The first side's, the median of its runs; `None` if it has none.
    pub a: Option<f64>,
    /// The second side's.
    pub b: Option<f64>,
    /// The larger of the two sides' spreads: highest less lowest of its rounds. `None` if there are fewer than two
    /// rounds.
    pub spread: Option<f64>,
    /// The verdict.
    pub verdict: Judgement,
}

/// Whether the second side is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Judgement {
    /// By more than the spread.
    Better,
    /// By more than the spread.
    Worse,
    /// By more than the spread, and neither direction is the good one.
    Different,
    /// No more than the rounds differ among themselves.
    Same,
    /// There are too few rounds to judge.
    Unknown,
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Judgement::Better => "better",
            Judgement::Worse => "worse",
            Judgement::Different => "different",
            Judgement::Same => "same",
            Judgement::Unknown => "one round",
        })
    }
}

/// The good direction of a figure.
#[derive(Clone, Copy)]
enum BetterDirection {
    Up,
    Down,
    Neither,
}

/// A figure before it has values.
struct Kind {
    name: &'static str,
    good: BetterDirection,
    of_run: fn(&LoadReport) -> Option<f64>,
    of_second: fn(&Second) -> Option<f64>,
}

const NO_SECOND: fn(&Second) -> Option<f64> = |_| None;

const KINDS: [Kind; 11] = [
    Kind {
        name: "send_pps",
        good: BetterDirection::Neither,
        of_run: |run| Some(run.send_pps()),
        of_second: |second| Some(second.send_pps),
    },
    Kind {
        name: "recv_pps",
        good: BetterDirection::Up,
        of_run: |run| Some(run.recv_pps()),
        of_second: |second| Some(second.recv_pps),
    },
    Kind {
        name: "loss_percent",
        good: BetterDirection::Down,
        of_run: |run| Some(run.total.loss() * 100.0),
        of_second: NO_SECOND,
    },
    Kind {
        name: "duplicates",
        good: BetterDirection::Down,
        of_run: |run| Some(run.total.duplicates as f64),
        of_second: NO_SECOND,
    },
    Kind {
        name: "p50_us",
        good: BetterDirection::Down,
        of_run: |run| run.latency.p50_us,
        of_second: |second| second.p50_us,
    },
    Kind {
        name: "p90_us",
        good: BetterDirection::Down,
        of_run: |run| run.latency.p90_us,
        of_second: NO_SECOND,
    },
    Kind {
        name: "p99_us",
        good: BetterDirection::Down,
        of_run: |run| run.latency.p99_us,
        of_second: |second| second.p99_us,
    },
    Kind {
        name: "p99.9_us",
        good: BetterDirection::Down,
        of_run: |run| run.latency.p999_us,
        of_second: NO_SECOND,
    },
    Kind {
        name: "p99.99_us",
        good: BetterDirection::Down,
        of_run: |run| run.latency.p9999_us,
        of_second: NO_SECOND,
    },
    Kind {
        name: "max_us",
        good: BetterDirection::Down,
        of_run: |run| (run.latency.count > 0).then_some(run.latency.max_us),
        of_second: NO_SECOND,
    },
    Kind {
        name: "jitter_us",
        good: BetterDirection::Down,
        of_run: |run| Some(run.jitter_us),
        of_second: NO_SECOND,
    },
];

/// Holds side `b` against side `a`; each is one run or several rounds of the same.
///
/// With several runs on both sides, they are the rounds; else the measured seconds of each run are.
#[must_use]
pub fn compare(a: &[LoadReport], b: &[LoadReport]) -> Comparison {
    let by_runs = a.len() > 1 && b.len() > 1;
    let figure = |kind: &Kind| {
        let value = |side: &[LoadReport]| median(side.iter().filter_map(kind.of_run).collect());
        let rounds = |side: &[LoadReport]| -> Vec<f64> {
            match by_runs {
                true => side.iter().filter_map(kind.of_run).collect(),
                false => {
                    let seconds = side.iter().flat_map(|run| &run.seconds);
                    let measured = seconds.filter(|second| !second.warm_up);
                    measured.filter_map(kind.of_second).collect()
                }
            }
        };
        judge(kind, (value(a), value(b)), (rounds(a), rounds(b)))
    };
    let differences = match (a.first(), b.first()) {
        (Some(a), Some(b)) => differences(a, b),
        _ => Vec::new(),
    };
    let (what, counts) = match by_runs {
        true => ("runs", (a.len(), b.len())),
        false => {
            let seconds = |side: &[LoadReport]| {
                let all = side.iter().flat_map(|run| &run.seconds);
                all.filter(|second| !second.warm_up).count()
            };
            ("measured seconds", (seconds(a), seconds(b)))
        }
    };
    Comparison {
        differences,
        figures: KINDS.iter().map(figure).collect(),
        rounds: format!("{} and {} {what}", counts.0, counts.1),
    }
}

fn judge(kind: &Kind, (a, b): (Option<f64>, Option<f64>), rounds: (Vec<f64>, Vec<f64>)) -> Figure {
    let spreads = (spread(&rounds.0), spread(&rounds.1));
    let spread = match spreads {
        (Some(a), Some(b)) => Some(a.max(b)),
        _ => None,
    };
    let middles = (median(rounds.0), median(rounds.1));
    let verdict = match (spread, middles) {
        (Some(spread), (Some(a), Some(b))) if (b - a).abs() > spread => match kind.good {
            BetterDirection::Neither => Judgement::Different,
            BetterDirection::Up if b > a => Judgement::Better,
            BetterDirection::Down if b < a => Judgement::Better,
            BetterDirection::Up | BetterDirection::Down => Judgement::Worse,
        },
        (Some(_), (Some(_), Some(_))) => Judgement::Same,
        _ => Judgement::Unknown,
    };
    Figure {
        name: kind.name,
        a,
        b,
        spread,
        verdict,
    }
}

/// Highest less lowest.
fn spread(rounds: &[f64]) -> Option<f64> {
    let most = rounds.iter().copied().fold(f64::MIN, f64::max);
    let least = rounds.iter().copied().fold(f64::MAX, f64::min);
    (rounds.len() > 1).then_some(most - least)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

fn differences(a: &LoadReport, b: &LoadReport) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    let mut note = |name: &str, left: String, right: String| {
        if left != right {
            found.push((name.to_owned(), left, right));
        }
    };
    let (left, right) = (&a.run, &b.run);
    note("target", left.target.clone(), right.target.clone());
    note("workload", left.workload.clone(), right.workload.clone());
    note("kernel", left.kernel.clone(), right.kernel.clone());
    note("version", left.version.clone(), right.version.clone());
    note(
        "pace",
        format!("{:?}", left.pace),
        format!("{:?}", right.pace),
    );
    note(
        "offered_rate",
        format!("{:?}", left.offered_rate),
        format!("{:?}", right.offered_rate),
    );
    let names: std::collections::BTreeSet<_> =
        left.settings.keys().chain(right.settings.keys()).collect();
    for name in names {
        let value = |run: &super::RunInfo| run.settings.get(name).cloned().unwrap_or_default();
        note(name, value(left), value(right));
    }
    found
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, left, right) in &self.differences {
            writeln!(f, "differs: {name}: {left} | {right}")?;
        }
        writeln!(
            f,
            "{:<14}{:>14}{:>14}{:>10}{:>12}  b is",
            "", "a", "b", "b/a", "spread"
        )?;
        for figure in &self.figures {
            let ratio = match (figure.a, figure.b) {
                (Some(a), Some(b)) if a != 0.0 => format!("{:.3}", b / a),
                _ => "-".to_owned(),
            };
            writeln!(
                f,
                "{:<14}{:>14}{:>14}{ratio:>10}{:>12}  {}",
                figure.name,
                shown(figure.a),
                shown(figure.b),
                shown(figure.spread),
                figure.verdict,
            )?;
        }
        writeln!(
            f,
            "rounds: {}. b is better or worse where the medians of the rounds differ by more than the spread: highest less lowest round, the larger of both sides",
            self.rounds
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    fn verdict(comparison: &Comparison, name: &str) -> Judgement {
        let figure = comparison.figures.iter().find(|one| one.name == name);
        figure.unwrap().verdict
    }

    #[test]
    fn figures_are_paired_and_differences_named() {
        let (a, mut b) = (sample(100.0), sample(150.0));
        b.run.target = "turn:127.0.0.1:3479".into();
        b.run.settings.insert("size".into(), "120".into());
        let comparison = compare(&[a], &[b]);
        let names: Vec<_> = comparison
            .differences
            .iter()
            .map(|d| d.0.as_str())
            .collect();
        assert_eq!(names, ["target", "size"]);
        // The seconds of each are alike, so that any difference is more than their spread.
        assert_eq!(verdict(&comparison, "p99_us"), Judgement::Worse);
        assert_eq!(verdict(&comparison, "p50_us"), Judgement::Same);
        assert_eq!(verdict(&comparison, "max_us"), Judgement::Unknown);
        let text = comparison.to_string();
        assert!(
            text.contains("1.500") && text.contains("10 and 10 measured seconds"),
            "{text}"
        );
    }

    #[test]
    fn a_difference_within_the_spread_of_the_rounds_is_none() {
        let side = |values: [f64; 3]| values.map(sample);
        let calm = compare(&side([100.0, 101.0, 102.0]), &side([90.0, 91.0, 92.0]));
        assert_eq!(verdict(&calm, "p99_us"), Judgement::Better);
        let noisy = compare(&side([100.0, 101.0, 120.0]), &side([90.0, 91.0, 92.0]));
        assert_eq!(verdict(&noisy, "p99_us"), Judgement::Same);
        assert!(noisy.to_string().contains("3 and 3 runs"));
        let mut more = side([100.0; 3]);
        for run in &mut more {
            run.total.received = 5_000;
        }
        let fewer = compare(&side([100.0; 3]), &more);
        assert_eq!(verdict(&fewer, "recv_pps"), Judgement::Worse);
        assert_eq!(
            verdict(&compare(&more, &side([100.0; 3])), "recv_pps"),
            Judgement::Better
        );
    }
}
