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
        assert!(
            Tally {
                passed: 1,
                failed: 0,
                skipped: 0,
            }
            .is_clean()
        );
        assert!(
            !Tally {
                passed: 1,
                failed: 1,
                skipped: 0,
            }
            .is_clean()
        );
    }

    #[test]
    fn what_was_skipped_is_said() {
        let tally = Tally {
            passed: 12,
            failed: 0,
            skipped: 3,
        };
        assert_eq!(tally.to_string(), "12 passed, 0 failed, 3 skipped");
    }

    #[test]
    fn the_closing_line_stands_alone() {
        assert_eq!(
            Tally {
                passed: 12,
                failed: 0,
                skipped: 0,
            }
            .to_string(),
            "12 passed, 0 failed"
        );
    }
}
