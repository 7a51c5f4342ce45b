//! A step of a search for the highest rate, as a row of a table.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::shown;

/// One step of a search.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Step {
    /// What it tried, per second.
    pub rate: f64,
    /// What left, per second.
    pub achieved: f64,
    /// Share of that which was lost, 0 to 1.
    pub loss: f64,
    /// 99 % were at least as fast, microseconds.
    pub p99_us: Option<f64>,
    /// Why it failed; `None` if it passed.
    pub failure: Option<String>,
}

impl Step {
    /// What stands above a table of steps.
    pub const HEADER: &str = "        rate/s    achieved/s      loss      p99 us  verdict";
}

impl fmt::Display for Step {
    /// A row below [`Step::HEADER`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>14.0}{:>14.0}{:>9.3}%{:>12}  {}",
            self.rate,
            self.achieved,
            self.loss * 100.0,
            shown(self.p99_us),
            self.failure.as_deref().unwrap_or("passed"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_below_their_headers() {
        let step = Step {
            rate: 1000.0,
            achieved: 999.5,
            loss: 0.001,
            p99_us: Some(12.34),
            failure: Some("loss of 9 %".to_owned()),
        };
        let row = step.to_string();
        for (name, value) in [
            ("achieved/s", "1000"),
            ("loss", "0.100%"),
            ("p99 us", "12.3"),
        ] {
            let end = |text: &str, part: &str| text.rfind(part).map(|at| at + part.len());
            assert_eq!(end(Step::HEADER, name), end(&row, value), "{name}: {row}");
        }
        assert!(row.ends_with("  loss of 9 %") && Step::default().to_string().ends_with("passed"));
    }
}
