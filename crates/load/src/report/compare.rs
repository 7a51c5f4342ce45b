//! Two runs side by side.

use std::fmt;

use super::LoadReport;

/// Two runs side by side: what differs in how they were made, and each figure with its ratio.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Comparison {
    /// Settings that are not the same in both, with both values: figures beside different settings mislead.
    pub differences: Vec<(String, String, String)>,
    /// Name, first value, second value.
    pub figures: Vec<(&'static str, f64, f64)>,
}

/// Holds run `b` against run `a`.
#[must_use]
pub fn compare(a: &LoadReport, b: &LoadReport) -> Comparison {
    Comparison {
        differences: differences(a, b),
        figures: figures(a)
            .into_iter()
            .zip(figures(b))
            .map(|((name, left), (_, right))| (name, left, right))
            .collect(),
    }
}

fn figures(report: &LoadReport) -> [(&'static str, f64); 10] {
    [
        ("send_pps", report.send_pps()),
        ("recv_pps", report.recv_pps()),
        ("loss_percent", report.total.loss() * 100.0),
        ("p50_us", report.latency.p50_us),
        ("p90_us", report.latency.p90_us),
        ("p99_us", report.latency.p99_us),
        ("p99.9_us", report.latency.p999_us),
        ("p99.99_us", report.latency.p9999_us),
        ("max_us", report.latency.max_us),
        ("jitter_us", report.jitter_us),
    ]
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
        writeln!(f, "{:<14}{:>14}{:>14}{:>10}", "", "a", "b", "b/a")?;
        for &(name, left, right) in &self.figures {
            let ratio = if left == 0.0 {
                "-".to_owned()
            } else {
                format!("{:.3}", right / left)
            };
            writeln!(f, "{name:<14}{left:>14.2}{right:>14.2}{ratio:>10}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn figures_are_paired_and_differences_named() {
        let (a, mut b) = (sample(100.0), sample(150.0));
        b.run.target = "turn:127.0.0.1:3479".into();
        b.run.settings.insert("size".into(), "120".into());
        let comparison = compare(&a, &b);
        let names: Vec<_> = comparison
            .differences
            .iter()
            .map(|d| d.0.as_str())
            .collect();
        assert_eq!(names, ["target", "size"]);
        assert!(comparison.figures.contains(&("p99_us", 100.0, 150.0)));
        assert!(comparison.to_string().contains("1.500"));
    }
}
