//! Gates: `p99>5ms`, `loss>0.1%`, `recv_pps<50k`.

use std::fmt;
use std::str::FromStr;

use super::{LoadReport, SipReport, ratio};
use crate::measure::{parse_duration, parse_number};

/// A condition under which a run has failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    text: String,
    metric: Metric,
    fails_above: bool,
    limit: f64,
}

/// Why a threshold could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ThresholdError {
    /// No `<` or `>` in it.
    #[error("'{0}' needs a comparison: write p99>5ms or recv_pps<50k")]
    NoComparison(String),
    /// The name before the comparison is none of ours.
    #[error("'{name}' is not a metric; these are: {known}")]
    UnknownMetric {
        /// What was written.
        name: String,
        /// All names.
        known: String,
    },
    /// The value has the wrong unit for the metric, or is no number.
    #[error("'{value}' is not {unit}")]
    Value {
        /// What was written.
        value: String,
        /// What was expected.
        unit: &'static str,
    },
}

/// What became of a threshold.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The threshold as it was written.
    pub text: String,
    /// The value found, in the metric's own unit.
    pub found: String,
    /// The condition holds: the run has failed.
    pub failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Time,
    Share,
    Number,
}

#[derive(Clone, Copy, Debug)]
struct Metric {
    name: &'static str,
    unit: Unit,
    /// Microseconds, shares of 1, or plain numbers.
    read: fn(&LoadReport) -> Option<f64>,
}

impl PartialEq for Metric {
    fn eq(&self, other: &Metric) -> bool {
        self.name == other.name
    }
}

const fn metric(name: &'static str, unit: Unit, read: fn(&LoadReport) -> Option<f64>) -> Metric {
    Metric { name, unit, read }
}

const METRICS: [Metric; 31] = [
    metric("p50", Unit::Time, |r| r.latency.p50_us),
    metric("p90", Unit::Time, |r| r.latency.p90_us),
    metric("p99", Unit::Time, |r| r.latency.p99_us),
    metric("p99.9", Unit::Time, |r| r.latency.p999_us),
    metric("p99.99", Unit::Time, |r| r.latency.p9999_us),
    metric("max", Unit::Time, |r| Some(r.latency.max_us)),
    metric("mean", Unit::Time, |r| Some(r.latency.mean_us)),
    metric("jitter", Unit::Time, |r| Some(r.jitter_us)),
    metric("loss", Unit::Share, |r| Some(r.total.loss())),
    metric("sent-late", Unit::Share, |r| {
        Some(ratio(r.total.sent_late, r.total.sent))
    }),
    metric("late", Unit::Number, |r| count(r.total.late)),
    metric("reordered", Unit::Number, |r| count(r.total.reordered)),
    metric("duplicates", Unit::Number, |r| count(r.total.duplicates)),
    metric("truncated", Unit::Number, |r| count(r.total.truncated)),
    metric("corrupt", Unit::Number, |r| count(r.total.corrupt)),
    metric("damaged", Unit::Number, |r| count(r.total.damaged)),
    metric("other-run", Unit::Number, |r| count(r.total.other_run)),
    metric("misdelivered", Unit::Number, |r| {
        count(r.total.misdelivered)
    }),
    metric("foreign", Unit::Number, |r| count(r.total.foreign)),
    metric("unknown-ids", Unit::Number, |r| count(r.total.unknown_ids)),
    metric("untrusted", Unit::Number, |r| count(r.total.untrusted)),
    metric("unbound", Unit::Number, |r| count(r.total.unbound)),
    metric("wrong-addresses", Unit::Number, |r| {
        count(r.total.wrong_addresses)
    }),
    metric("overflow", Unit::Number, |r| count(r.total.overflow)),
    metric("failed", Unit::Number, |r| count(r.total.failed)),
    metric("errors", Unit::Number, |r| count(r.errors.values().sum())),
    metric("goodput", Unit::Number, |r| of_sip(r, |sip| sip.goodput)),
    metric("retransmissions", Unit::Number, |r| {
        of_sip(r, |sip| sip.retransmissions as f64)
    }),
    metric("503", Unit::Number, |r| {
        of_sip(r, |sip| sip.unavailable as f64)
    }),
    metric("send_pps", Unit::Number, |r| Some(r.send_pps())),
    metric("recv_pps", Unit::Number, |r| Some(r.recv_pps())),
];

fn count(value: u64) -> Option<f64> {
    Some(value as f64)
}

/// A figure that only runs of SIP have; else 0.
fn of_sip(report: &LoadReport, read: fn(&SipReport) -> f64) -> Option<f64> {
    Some(report.sip.as_deref().map_or(0.0, read))
}

impl FromStr for Threshold {
    type Err = ThresholdError;

    fn from_str(text: &str) -> Result<Threshold, ThresholdError> {
        let at = text
            .find(['<', '>'])
            .ok_or_else(|| ThresholdError::NoComparison(text.to_owned()))?;
        let (name, value) = (text[..at].trim(), text[at + 1..].trim());
        let metric = METRICS
            .into_iter()
            .find(|metric| metric.name == name)
            .ok_or_else(|| unknown(name))?;
        Ok(Threshold {
            text: text.to_owned(),
            metric,
            fails_above: text.as_bytes()[at] == b'>',
            limit: parse(value, metric.unit)?,
        })
    }
}

fn unknown(name: &str) -> ThresholdError {
    let names: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
    ThresholdError::UnknownMetric {
        name: name.to_owned(),
        known: names.join(", "),
    }
}

fn parse(value: &str, unit: Unit) -> Result<f64, ThresholdError> {
    let share = |text: &str| {
        let (number, scale) = match text.strip_suffix('%') {
            Some(number) => (number, 0.01),
            None => (text, 1.0),
        };
        let number: f64 = number.trim().parse().ok()?;
        (number.is_finite() && number >= 0.0).then_some(number * scale)
    };
    let (found, expected) = match unit {
        Unit::Time => {
            // A bare number is seconds everywhere; here it would be a slip.
            let time = parse_duration(value).ok();
            let time = time.filter(|_| !value.ends_with(|end: char| end.is_ascii_digit()));
            let us = time.map(|time| time.as_secs_f64() * 1e6);
            (us, "a time such as 200us, 5ms or 1s")
        }
        Unit::Share => (share(value), "a share such as 0.1% or 0.001"),
        Unit::Number => (parse_number(value), "a number such as 0, 50k or 2M"),
    };
    found.ok_or_else(|| ThresholdError::Value {
        value: value.to_owned(),
        unit: expected,
    })
}

impl Threshold {
    /// Holds the threshold against a report. A run that measured no time at all fails every threshold of a time: a dead
    /// server is not a fast one.
    #[must_use]
    pub fn judge(&self, report: &LoadReport) -> Verdict {
        if self.metric.unit == Unit::Time && report.latency.count == 0 {
            return Verdict {
                text: self.text.clone(),
                found: "nothing was measured".to_owned(),
                failed: true,
            };
        }
        let Some(value) = (self.metric.read)(report) else {
            // The largest of all is at least as large as any percentile.
            let most = report.latency.max_us;
            let is_certain = self.fails_above && most <= self.limit;
            return Verdict {
                text: self.text.clone(),
                found: format!(
                    "too few for this percentile ({} measured), max {}",
                    report.latency.count,
                    self.metric.format_value(most)
                ),
                failed: !is_certain,
            };
        };
        Verdict {
            text: self.text.clone(),
            found: self.metric.format_value(value),
            failed: if self.fails_above {
                value > self.limit
            } else {
                value < self.limit
            },
        }
    }
}

impl Metric {
    fn format_value(&self, value: f64) -> String {
        match self.unit {
            Unit::Time if value >= 10_000.0 => format!("{:.1}ms", value / 1e3),
            Unit::Time => format!("{value:.1}us"),
            Unit::Share => format!("{:.4}%", value * 100.0),
            Unit::Number => format!("{value:.0}"),
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    fn fails(text: &str) -> bool {
        text.parse::<Threshold>()
            .unwrap()
            .judge(&sample(6_000.0))
            .failed
    }

    #[test]
    fn a_threshold_is_judged_in_its_own_unit() {
        assert!(fails("p99>5ms") && fails("p99 > 5999us") && !fails("p99>1s"));
        assert!(fails("loss>0.05%") && fails("loss>0.0005") && !fails("loss>0.1%"));
        assert!(fails("recv_pps<1k") && !fails("recv_pps<900"));
        assert!(!fails("corrupt>0"));
    }

    #[test]
    fn missing_measurements_fail_a_threshold() {
        let verdict = |text: &str| {
            text.parse::<Threshold>()
                .unwrap()
                .judge(&LoadReport::empty())
        };
        assert!(verdict("p99>5ms").failed && verdict("p50<1us").failed);
        assert!(!verdict("loss>0.1%").failed);
    }

    #[test]
    fn a_percentile_of_few_passes_only_if_the_largest_does() {
        let mut report = sample(1.0);
        report.latency.p99_us = None;
        report.latency.max_us = 4_000.0;
        let failed = |text: &str| text.parse::<Threshold>().unwrap().judge(&report).failed;
        assert!(!failed("p99>4ms") && failed("p99>3.9ms") && failed("p99<1us"));
    }

    #[test]
    fn nonsense_is_explained() {
        for (text, part) in [
            ("p99", "comparison"),
            ("p98>5ms", "p99.9"),
            ("p99>5", "5ms"),
            ("loss>x", "0.1%"),
            ("recv_pps<-1", "number"),
        ] {
            let error = text.parse::<Threshold>().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
