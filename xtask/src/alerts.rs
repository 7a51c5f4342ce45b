//! Each alert has a test that fires it, and a section of the runbook.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};

const FILES: [&str; 3] = [
    "deploy/prometheus/alerts.yml",
    "deploy/prometheus/alerts_test.yml",
    "docs/runbook.md",
];

/// Compares the three files.
pub(crate) fn check(root: &Path) -> Result<String> {
    let mut texts = Vec::new();
    for name in FILES {
        let text = std::fs::read_to_string(root.join(name));
        texts.push(text.with_context(|| format!("cannot read {name}"))?);
    }
    compare(&texts[0], &texts[1], &texts[2])
}

fn compare(rules: &str, tests: &str, runbook: &str) -> Result<String> {
    let alerts = after(rules, "- alert: ");
    // Only `exp_alerts` with labels says that an alert fires.
    let fired = tests
        .split("alertname: ")
        .skip(1)
        .filter(|test| test.contains("exp_labels:"))
        .filter_map(|test| test.lines().next())
        .collect();
    let sections = after(runbook, "## ");
    for (file, names) in [(FILES[1], &fired), (FILES[2], &sections)] {
        let missing: Vec<_> = alerts.difference(names).collect();
        ensure!(missing.is_empty(), "{file} lacks {missing:?}");
        let old: Vec<_> = names
            .difference(&alerts)
            .filter(|name| name.starts_with("Hairpin"))
            .collect();
        ensure!(
            old.is_empty(),
            "{} has no alert {old:?} of {file}",
            FILES[0]
        );
    }
    for alert in &alerts {
        let link = format!("runbook: 'docs/runbook.md#{}'", alert.to_lowercase());
        ensure!(rules.contains(&link), "{} lacks {link}", FILES[0]);
    }
    Ok(format!(
        "{} with a test and a section of the runbook",
        alerts.len()
    ))
}

/// What follows the start of lines.
fn after<'t>(text: &'t str, start: &str) -> BTreeSet<&'t str> {
    text.lines()
        .filter_map(|line| line.trim_start().strip_prefix(start))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "  - alert: HairpinA\n    runbook: 'docs/runbook.md#hairpina'\n";
    const TESTS: &str = "  - alertname: HairpinA\n    exp_labels:\n";
    const RUNBOOK: &str = "# Runbook\n## HairpinA\n";

    #[test]
    fn an_alert_without_a_test_or_a_section_is_an_error() {
        assert!(compare(RULES, TESTS, RUNBOOK).is_ok());
        assert!(compare(RULES, "", RUNBOOK).is_err());
        assert!(compare(RULES, "  - alertname: HairpinA\n", RUNBOOK).is_err());
        assert!(compare(RULES, TESTS, "# Runbook\n").is_err());
        assert!(compare("", TESTS, "").is_err());
        assert!(compare(&RULES.replace("#hairpina", "#other"), TESTS, RUNBOOK).is_err());
    }
}
