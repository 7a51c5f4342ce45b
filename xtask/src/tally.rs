//! Counting what passed and what failed.

use std::fmt;

/// How many tests, cases and checks passed and failed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) struct Tally {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    /// What could not be tried here, for want of privileges or programs.
    pub(crate) skipped: u32,
}

impl Tally {
    /// One check that passed.
    pub(crate) const ONE: Tally = Tally {
        passed: 1,
        failed: 0,
        skipped: 0,
    };

    /// One check that failed.
    pub(crate) const FAILURE: Tally = Tally {
        passed: 0,
        failed: 1,
        skipped: 0,
    };

    /// Reads the line that a tally prints.
    pub(crate) fn parse(line: &str) -> Option<Tally> {
        let mut tally = Tally::default();
        for part in line.trim().split(", ") {
            let (count, word) = part.split_once(' ')?;
            let count = count.parse().ok()?;
            match word {
                "passed" => tally.passed = count,
                "failed" => tally.failed = count,
                "skipped" => tally.skipped = count,
                _ => return None,
            }
        }
        Some(tally)
    }

    /// Counts one check that could not be made here, and prints why.
    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        self.skipped += 1;
        println!("  SKIP  {name}: {reason}");
    }

    /// Counts one check and prints it. What it found is the detail of an `Ok`, or why it failed.
    pub(crate) fn record(&mut self, name: &str, outcome: &anyhow::Result<String>) {
        match outcome {
            Ok(detail) => {
                self.passed += 1;
                println!("  ok    {name}: {detail}");
            }
            Err(error) => {
                self.failed += 1;
                println!("  FAIL  {name}: {error:#}");
            }
        }
    }

    pub(crate) fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Nothing failed, and something was tested at all.
    pub(crate) fn is_clean(&self) -> bool {
        self.failed == 0 && self.passed > 0
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        match self.skipped {
            0 => Ok(()),
            skipped => write!(f, ", {skipped} skipped"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Tally;

    #[test]
    fn nothing_tested_is_not_a_success() {
        assert!(!Tally::default().is_clean());
        assert!(Tally::ONE.is_clean());
        let both = Tally {
            passed: 1,
            ..Tally::FAILURE
        };
        assert!(!both.is_clean());
    }

    #[test]
    fn the_closing_line_says_what_was_skipped_and_is_read_back() {
        let mut tally = Tally {
            passed: 12,
            failed: 0,
            skipped: 3,
        };
        assert_eq!(tally.to_string(), "12 passed, 0 failed, 3 skipped");
        assert_eq!(Tally::parse(&tally.to_string()), Some(tally));
        tally.skipped = 0;
        assert_eq!(tally.to_string(), "12 passed, 0 failed");
        assert_eq!(Tally::parse(&tally.to_string()), Some(tally));
        assert_eq!(Tally::parse("error: 12 passed"), None);
    }
}
