//! What was let through since the last change, and what should have been.

use std::time::Duration;

use super::Pressure;
use crate::Mono;
use crate::congestion::Admission;

/// After how long all that was counted is judged; before that only what is far off.
const WINDOW: Duration = Duration::from_millis(250);
/// What is wanted differs by so much from what was let through that a change is worth it: at once, and, less and less, after
/// [`WINDOW`].
const AT_ONCE: f64 = 1.25;
const IN_THE_END: f64 = 1.03;
/// While the wait is above this, in percent of the tolerance, nothing more is let through.
const LONG: u64 = 30;
/// The most that is let through at once, in multiples of what was.
const MOST: f64 = 2.0;
/// A worker that has more than this share of the time to spare says nothing about what it could do.
const MOST_SPARE: f64 = 0.95;

/// What is to become of the thresholds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    /// It is too early to tell.
    Wait,
    /// They are right.
    Keep,
    /// Less is to be let through: so many a second.
    Less(f64),
    /// So many times as many are.
    More(f64),
}

/// The counts.
#[derive(Debug, Default)]
pub(super) struct Meter {
    since: Mono,
    accepted: u32,
    refused: u32,
    dropped: u32,
    /// The worker slept, or shed what had been read.
    spare: Duration,
    /// The greatest wait, in percent of the tolerance.
    percent: u64,
}

impl Meter {
    pub(super) fn new(since: Mono) -> Meter {
        Meter {
            since,
            ..Meter::default()
        }
    }

    /// New work was let through, and this became of it.
    pub(super) fn note(&mut self, admission: Admission) {
        let count = match admission {
            Admission::Accept => &mut self.accepted,
            Admission::Refuse { .. } => &mut self.refused,
            Admission::Drop => &mut self.dropped,
        };
        *count = count.saturating_add(1);
    }

    pub(super) fn note_wait(&mut self, percent: u64) {
        self.percent = self.percent.max(percent);
    }

    pub(super) fn note_spare(&mut self, spare: Duration) {
        self.spare += spare;
    }

    /// Seconds since the last change.
    pub(super) fn passed(&self, now: Mono) -> f64 {
        now.since(self.since).as_secs_f64()
    }

    pub(super) fn is_over(&self, now: Mono) -> bool {
        now.since(self.since) >= WINDOW
    }

    pub(super) fn percent(&self) -> u64 {
        self.percent
    }

    /// The share of the time that was not needed for what was accepted.
    pub(super) fn spare(&self, now: Mono) -> f64 {
        (self.spare.as_secs_f64() / self.passed(now).max(1e-9)).min(MOST_SPARE)
    }

    fn all(&self) -> f64 {
        f64::from(self.accepted) + f64::from(self.refused) + f64::from(self.dropped)
    }

    /// What was let through in a second.
    pub(super) fn rate(&self, now: Mono) -> f64 {
        self.all() / self.passed(now).max(1e-3)
    }

    /// Whether more is dropped than comes to nothing: who is dropped comes again and is served late, and a few in a hundred of
    /// those served are many.
    fn drops_too_many(&self, is_over: bool) -> bool {
        self.dropped > self.accepted / if is_over { 128 } else { 16 } + 8
    }

    /// What to do. Wanted is what the worker could accept in all its time, and half of the 503s that there is time for.
    pub(super) fn judge(&self, now: Mono, is_closed: bool, pressure: Pressure) -> Verdict {
        let is_over = self.is_over(now);
        let passed = self.passed(now);
        let refusals = pressure.refusals * passed;
        let could =
            f64::from(self.accepted) / (1.0 - self.spare(now)) * (1.0 - pressure.share / 2.0);
        let wanted = could + refusals / 2.0;
        let all = self.all();
        let refuses_too_many = is_closed && is_over && f64::from(self.refused) > refusals;
        if self.drops_too_many(is_over) || refuses_too_many {
            return Verdict::Less(wanted.min(all * 0.9) / passed.max(1e-3));
        }
        let left = 1.0 - (passed / WINDOW.as_secs_f64()).min(1.0);
        let far = IN_THE_END + (AT_ONCE - IN_THE_END) * left;
        if is_closed && self.percent < LONG && wanted > all * far {
            return Verdict::More((wanted / all.max(1.0)).clamp(IN_THE_END, MOST));
        }
        match is_over {
            true => Verdict::Keep,
            false => Verdict::Wait,
        }
    }
}
