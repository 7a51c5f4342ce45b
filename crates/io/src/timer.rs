//! A hierarchical timer wheel.

use std::marker::PhantomData;

/// Names a timer of a [`TimerWheel`]; goes stale when the timer fires or is cancelled, and is then simply not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerKey {
    index: u32,
    generation: u32,
}

/// Deadlines in nanoseconds (of any monotonic clock) with a value each.
///
/// Insert, cancel and reschedule cost the same however many timers there are. A timer never fires early, and fires at
/// the latest in the first [`TimerWheel::advance`] one tick after its deadline.
#[derive(Debug)]
pub struct TimerWheel<T> {
    values: PhantomData<T>,
}

impl<T> TimerWheel<T> {
    /// An empty wheel whose hands stand at `now_ns`. `tick_ns` is its resolution, at least 1 (a worker uses 1,000,000).
    #[must_use]
    pub fn new(tick_ns: u64, now_ns: u64) -> TimerWheel<T> {
        let _ = (tick_ns, now_ns);
        TimerWheel {
            values: PhantomData,
        }
    }

    /// Adds a timer. One whose deadline has passed fires in the next [`TimerWheel::advance`].
    ///
    /// # Panics
    /// If 2^32 - 1 timers are pending.
    pub fn insert(&mut self, deadline_ns: u64, value: T) -> TimerKey {
        let _ = (deadline_ns, value);
        TimerKey {
            index: 0,
            generation: 0,
        }
    }

    /// Removes a timer and returns its value; `None` if it has fired or was cancelled.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let _ = (key.index, key.generation);
        None
    }

    /// Moves a timer to another deadline and keeps its key valid; `false` if it has fired or was cancelled.
    pub fn reschedule(&mut self, key: TimerKey, deadline_ns: u64) -> bool {
        let _ = (key, deadline_ns);
        false
    }

    /// Fires every timer that is due, in the order of its deadline's tick.
    pub fn advance(&mut self, now_ns: u64, fired: &mut impl FnMut(T)) {
        while let Some(value) = self.pop_due(now_ns) {
            fired(value);
        }
    }

    /// Takes one timer that is due, the earliest; `None` when there is none. Between two calls the wheel may be changed.
    pub fn pop_due(&mut self, now_ns: u64) -> Option<T> {
        let _ = now_ns;
        None
    }

    /// When to call [`TimerWheel::advance`] next: no timer is due before it. It may come before the earliest deadline
    /// (by the width of a slot, for timers that are far away), and `advance` then merely sorts some timers more finely.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        None
    }

    /// How many timers are pending.
    #[must_use]
    pub fn len(&self) -> usize {
        0
    }

    /// No timer is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        true
    }
}
