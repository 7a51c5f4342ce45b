//! Which run a peer counts.
//!
//! A peer counts one run at a time: payloads of an earlier run that arrive again do not belong to this one. It counts
//! the first run of which a payload arrives. When no payload of it has arrived for a second, it counts the next run. It
//! never counts an earlier run again.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A run is over when no payload of it has arrived for this long.
const OVER_NS: u64 = 1_000_000_000;
/// Precision of the time of the last payload. All threads share that time, so no thread writes it for each batch.
const EXACT_NS: u64 = 50_000_000;
/// A number that no run has: they have 32 bits.
const NO_RUN: u64 = u64::MAX;
/// Runs that are remembered as over.
const MAX_OVER: usize = 65_536;

/// What the threads of a peer share.
#[derive(Debug)]
pub(super) struct Runs {
    current: AtomicU64,
    heard_ns: AtomicU64,
    over: Mutex<Vec<u32>>,
}

/// A thread's copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct CurrentRun {
    run: u64,
    heard_ns: u64,
}

impl Default for Runs {
    fn default() -> Runs {
        Runs {
            current: AtomicU64::new(NO_RUN),
            heard_ns: AtomicU64::new(0),
            over: Mutex::default(),
        }
    }
}

impl Default for CurrentRun {
    fn default() -> CurrentRun {
        CurrentRun {
            run: NO_RUN,
            heard_ns: 0,
        }
    }
}

impl CurrentRun {
    /// Whether a payload of `run` counts.
    #[inline]
    pub(super) fn admits(&mut self, run: u32, now_ns: u64, runs: &Runs) -> bool {
        if self.run != u64::from(run) {
            if !runs.admits(run, now_ns) {
                return false;
            }
            *self = CurrentRun {
                run: run.into(),
                heard_ns: now_ns,
            };
        } else if now_ns.saturating_sub(self.heard_ns) > EXACT_NS {
            // Another thread may already count the next run.
            if !runs.admits(run, now_ns) {
                self.run = NO_RUN;
                return false;
            }
            self.heard_ns = now_ns;
        }
        true
    }
}

impl Runs {
    #[cold]
    fn admits(&self, run: u32, now_ns: u64) -> bool {
        let is_current = || self.current.load(Ordering::Acquire) == u64::from(run);
        if is_current() {
            self.heard_ns.fetch_max(now_ns, Ordering::Relaxed);
            return true;
        }
        let is_over = || {
            let silent_ns = now_ns.saturating_sub(self.heard_ns.load(Ordering::Relaxed));
            self.current.load(Ordering::Acquire) == NO_RUN || silent_ns > OVER_NS
        };
        if !is_over() {
            return false;
        }
        let Ok(mut over) = self.over.lock() else {
            return false;
        };
        if is_current() {
            return true;
        }
        if !is_over() || over.contains(&run) || over.len() >= MAX_OVER {
            return false;
        }
        if let Ok(before) = u32::try_from(self.current.load(Ordering::Acquire)) {
            over.push(before);
        }
        self.heard_ns.fetch_max(now_ns, Ordering::Relaxed);
        self.current.store(run.into(), Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_run_counts_until_it_is_over_and_never_again() {
        let runs = Runs::default();
        let (mut one, mut two) = (CurrentRun::default(), CurrentRun::default());
        assert!(one.admits(7, 1_000, &runs));
        assert!(!two.admits(8, 2_000, &runs), "7 goes on, on another thread");
        assert!(two.admits(7, OVER_NS, &runs));
        assert!(!one.admits(8, OVER_NS + 2_000, &runs), "heard by the other");
        let later = 3 * OVER_NS;
        assert!(one.admits(8, later, &runs));
        assert!(
            !two.admits(7, later, &runs),
            "a replay, on the other thread"
        );
        assert!(two.admits(8, later, &runs));
        assert!(
            !one.admits(7, later + 3 * OVER_NS, &runs),
            "it is over for good"
        );
        assert!(one.admits(u32::MAX, later + 3 * OVER_NS, &runs));
    }
}
