//! The file of budgets: sections with lines `"name" = number`, comments kept when it is written anew.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use super::counting::Cost;

/// The line that says how much above its budget a cost may be, in percent.
const TOLERANCE: &str = "tolerance-percent";

/// The section of heap allocations.
pub(super) const ALLOCATIONS: &str = "allocations";

/// A budget this far above the cost hides what is added later.
const LAX: f64 = 1.15;

/// What the file says.
#[derive(Debug)]
pub(super) struct Budgets {
    tolerance_percent: f64,
    lines: Vec<(String, String, f64)>,
}

/// How a cost compares with its budget.
#[derive(Debug, PartialEq)]
pub(super) enum Judgement {
    Kept { budget: f64 },
    Lax { budget: f64 },
    Exceeded { budget: f64 },
    Unknown,
}

impl Budgets {
    pub(super) fn parse(text: &str) -> Result<Budgets> {
        let mut budgets = Budgets {
            tolerance_percent: 0.0,
            lines: Vec::new(),
        };
        let mut section = String::new();
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            if let Some(name) = header(line) {
                section = name.to_owned();
            } else if !line.is_empty() && !line.starts_with('#') {
                let (name, value) = entry(line)
                    .with_context(|| format!("line {number} is not `\"name\" = number`"))?;
                if name == TOLERANCE {
                    budgets.tolerance_percent = value;
                } else {
                    budgets
                        .lines
                        .push((section.clone(), name.to_owned(), value));
                }
            }
        }
        Ok(budgets)
    }

    pub(super) fn judge(&self, section: &str, name: &str, cost: f64) -> Judgement {
        let known = self
            .lines
            .iter()
            .find(|(s, n, _)| s == section && n == name);
        let Some(&(.., budget)) = known else {
            return Judgement::Unknown;
        };
        // Half a unit, so that a budget of 0 is one, and rounding in the file is not held against anybody. Of
        // allocations one more: when a table with entries that come and go makes room is a matter of chance.
        let slack = if section == ALLOCATIONS { 1.5 } else { 0.5 };
        let limit = budget * (1.0 + self.tolerance_percent / 100.0) + slack;
        if cost > limit {
            Judgement::Exceeded { budget }
        } else if cost * LAX + 1.0 < budget {
            Judgement::Lax { budget }
        } else {
            Judgement::Kept { budget }
        }
    }

    /// Budgets of things that nobody measures any more.
    pub(super) fn without_cost<'a>(
        &'a self,
        section: &'a str,
        costs: &'a [Cost],
    ) -> impl Iterator<Item = &'a str> {
        self.lines
            .iter()
            .filter(move |(s, name, _)| s == section && costs.iter().all(|cost| cost.name != *name))
            .map(|(_, name, _)| name.as_str())
    }
}

/// The text with the budgets of each section replaced by what was measured; everything before the first section, and
/// comments that follow a section's header, stay.
pub(super) fn rewritten<'a>(
    text: &str,
    sections: impl IntoIterator<Item = (&'a str, &'a [Cost])>,
) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let head = lines
        .iter()
        .take_while(|line| header(line.trim()).is_none());
    let mut out: String = head.map(|line| format!("{line}\n")).collect();
    for (section, costs) in sections {
        if !out.ends_with("\n\n") {
            out.push('\n');
        }
        let _ = writeln!(out, "[{section}]");
        let after = lines
            .iter()
            .skip_while(|line| header(line.trim()) != Some(section))
            .skip(1);
        after
            .take_while(|line| line.starts_with('#'))
            .for_each(|line| {
                let _ = writeln!(out, "{line}");
            });
        for Cost { name, value, .. } in costs {
            let _ = writeln!(out, "\"{name}\" = {value:.1}");
        }
    }
    out
}

fn header(line: &str) -> Option<&str> {
    line.strip_prefix('[')?.strip_suffix(']')
}

fn entry(line: &str) -> Option<(&str, f64)> {
    let (name, value) = line.rsplit_once('=')?;
    Some((name.trim().trim_matches('"'), value.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Why.\ntolerance-percent = 10\n\n[instructions]\n# Counted.\n\"a = b\" = 100.0\n\"gone\" = 5\n[allocations]\n\"a\" = 0.0\n";

    fn cost(name: &str, value: f64) -> Cost {
        Cost {
            name: name.to_owned(),
            value,
            hot: Vec::new(),
        }
    }

    #[test]
    fn costs_are_held_against_their_budgets() {
        let budgets = Budgets::parse(TEXT).unwrap();
        let budget = 100.0;
        let judge = |cost| budgets.judge("instructions", "a = b", cost);
        assert_eq!(judge(110.4), Judgement::Kept { budget });
        assert_eq!(judge(110.6), Judgement::Exceeded { budget });
        assert_eq!(judge(90.0), Judgement::Kept { budget });
        assert_eq!(judge(60.0), Judgement::Lax { budget });
        assert_eq!(
            budgets.judge("system-calls", "a = b", 1.0),
            Judgement::Unknown
        );
        let judge = |cost| budgets.judge("allocations", "a", cost);
        assert_eq!(judge(1.4), Judgement::Kept { budget: 0.0 });
        assert_eq!(judge(1.6), Judgement::Exceeded { budget: 0.0 });
        let costs = [cost("a = b", 1.0)];
        let gone: Vec<_> = budgets.without_cost("instructions", &costs).collect();
        assert_eq!(gone, ["gone"]);
        assert!(Budgets::parse("[x]\n\"a\" = much").is_err());
    }

    #[test]
    fn writing_keeps_the_comments_and_drops_what_is_not_measured() {
        let (costs, calls) = ([cost("a = b", 42.04)], [cost("c", 3.0)]);
        let sections = [
            ("instructions", costs.as_slice()),
            ("system-calls", calls.as_slice()),
        ];
        let written = rewritten(TEXT, sections);
        let expected = "# Why.\ntolerance-percent = 10\n\n[instructions]\n# Counted.\n\"a = b\" = 42.0\n\n[system-calls]\n\"c\" = 3.0\n";
        assert_eq!(written, expected);
        assert_eq!(rewritten(&written, sections), expected);
    }
}
