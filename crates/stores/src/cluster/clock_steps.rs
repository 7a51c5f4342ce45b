//! Steps of the clock. The monotonic clock of the kernel stands still while a machine sleeps or a virtual machine is
//! paused, and the wall clock is set afterwards. What was measured by the monotonic clock is then older than it says.

/// A greater difference is a step. A clock that is slewed changes by less within a minute.
const STEP_MS: u64 = 1_000;
/// Steps that are remembered.
const MAX_STEPS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    /// What is from before is older.
    at_ms: u64,
    by_ms: i64,
}

/// The last [`MAX_STEPS`] steps. Earlier ones are added to the oldest of them.
#[derive(Clone, Debug, Default)]
pub(super) struct ClockSteps {
    /// The monotonic and the wall clock.
    last: Option<(u64, u64)>,
    steps: Vec<Step>,
}

impl ClockSteps {
    /// The clocks now. Returns by how many milliseconds the wall clock has stepped since the last call, or 0.
    pub(super) fn note(&mut self, now_ms: u64, unix_ms: u64) -> i64 {
        let Some((last_ms, last_unix_ms)) = self.last.replace((now_ms, unix_ms)) else {
            return 0;
        };
        let difference = |late: u64, early: u64| {
            let more = i64::try_from(late.saturating_sub(early)).unwrap_or(i64::MAX);
            let less = i64::try_from(early.saturating_sub(late)).unwrap_or(i64::MAX);
            more - less
        };
        let elapsed = difference(now_ms, last_ms);
        let by_ms = difference(unix_ms, last_unix_ms).saturating_sub(elapsed);
        if by_ms.unsigned_abs() <= STEP_MS {
            return 0;
        }
        self.add(Step {
            at_ms: last_ms,
            by_ms,
        });
        by_ms
    }

    fn add(&mut self, step: Step) {
        self.steps.push(step);
        if self.steps.len() > MAX_STEPS {
            let oldest = self.steps.remove(0);
            let next = &mut self.steps[0];
            next.by_ms = next.by_ms.saturating_add(oldest.by_ms);
        }
    }

    /// How much older something is whose monotonic time is this one: the sum of later steps, or 0 if the clock was set
    /// back on the whole.
    pub(super) fn missed_ms(&self, monotonic_ms: u64) -> u64 {
        let later = self.steps.iter().filter(|step| monotonic_ms < step.at_ms);
        let sum = later.fold(0i64, |sum, step| sum.saturating_add(step.by_ms));
        u64::try_from(sum).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIX_MS: u64 = 1_000_000_000;

    #[test]
    fn what_is_from_before_a_step_is_older() {
        let mut steps = ClockSteps::default();
        assert_eq!(steps.note(5_000, UNIX_MS), 0);
        // Slewed, or read late.
        assert_eq!(steps.note(6_000, UNIX_MS + 2_000), 0);
        assert_eq!(steps.note(7_000, UNIX_MS + 2_500), 0);
        assert_eq!(steps.missed_ms(0), 0);
        // The machine has slept for an hour.
        assert_eq!(steps.note(8_000, UNIX_MS + 3_603_500), 3_600_000);
        assert_eq!(steps.missed_ms(6_999), 3_600_000);
        assert_eq!(steps.missed_ms(7_000), 0);
        assert_eq!(steps.note(9_000, UNIX_MS + 3_604_500), 0);
        // And for a minute.
        assert_eq!(steps.note(10_000, UNIX_MS + 3_665_500), 60_000);
        assert_eq!(steps.missed_ms(6_999), 3_660_000);
        assert_eq!(steps.missed_ms(7_000), 60_000);
    }

    #[test]
    fn a_clock_that_is_set_back_makes_nothing_younger() {
        let mut steps = ClockSteps::default();
        steps.note(5_000, UNIX_MS);
        assert_eq!(steps.note(6_000, UNIX_MS - 59_000), -60_000);
        assert_eq!(steps.missed_ms(0), 0);
        // It was wrong for a moment.
        assert_eq!(steps.note(7_000, UNIX_MS + 2_000), 60_000);
        assert_eq!(steps.missed_ms(0), 0);
        assert_eq!(steps.missed_ms(5_500), 60_000);
        // Whatever the clock says.
        assert!(steps.note(8_000, u64::MAX) > 0);
        assert!(steps.note(9_000, 0) < 0);
    }

    #[test]
    fn a_clock_that_steps_again_and_again_needs_bounded_memory() {
        let mut steps = ClockSteps::default();
        for number in 0..100 {
            steps.note(number * 1_000, UNIX_MS + number * 3_000);
        }
        assert_eq!(steps.steps.len(), MAX_STEPS);
        assert_eq!(steps.missed_ms(0), 99 * 2_000);
    }
}
