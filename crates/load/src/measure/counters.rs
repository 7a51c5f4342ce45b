//! Live counters: written by one thread, read by any, and no two threads on one cache line.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted while a run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Counter {
    /// Datagrams the kernel took.
    Sent,
    /// Their payload bytes.
    SentBytes,
    /// Datagrams that could not be sent.
    NotSent,
    /// Datagrams that left later than one millisecond after their intended time.
    Late,
    /// Measured datagrams received, each counted once.
    Received,
    /// Their payload bytes.
    ReceivedBytes,
    /// Datagrams received whose payload was changed on its way.
    Corrupt,
    /// Datagrams received again.
    Duplicate,
    /// Datagrams received after a later one.
    Reordered,
    /// Received datagrams that no sender of this run has sent.
    Foreign,
    /// Datagrams that the kernel dropped because a receive buffer was full.
    Overflow,
    /// System calls made to send.
    SendCalls,
    /// Sends that carried more than one datagram.
    GsoRuns,
    /// Datagrams they carried.
    GsoSegments,
    /// Transactions (allocations, bindings, refreshes) that succeeded.
    Succeeded,
    /// Transactions that failed or timed out.
    Failed,
    /// Messages from the server that are no final responses: provisional responses and requests.
    Heard,
    /// Datagrams received that were cut short.
    Truncated,
    /// Datagrams received whose head was changed on its way.
    Damaged,
    /// Datagrams that arrived after their numbers were forgotten.
    TooLate,
    /// Whole payloads of another run.
    OtherRun,
}

const COUNT: usize = Counter::OtherRun as usize + 1;

/// The counters of one thread. Aligned so that a neighbour's are never on the same cache line, nor on the line the
/// prefetcher brings along with it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    values: [AtomicU64; COUNT],
}

impl Counters {
    /// All zero.
    #[must_use]
    pub fn new() -> Counters {
        Counters::default()
    }

    /// Adds `amount` to a counter. Only the owning thread may call it, because it is a load and a store, not an atomic
    /// addition.
    pub fn add(&self, counter: Counter, amount: u64) {
        let value = &self.values[counter as usize];
        value.store(
            value.load(Ordering::Relaxed).wrapping_add(amount),
            Ordering::Relaxed,
        );
    }

    /// Reads a counter.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize].load(Ordering::Relaxed)
    }
}

/// The sum over threads at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    values: [u64; COUNT],
}

impl Snapshot {
    /// Adds up the counters of all threads.
    #[must_use]
    pub fn of<'a>(threads: impl IntoIterator<Item = &'a Counters>) -> Snapshot {
        let mut sum = Snapshot::default();
        for thread in threads {
            for (total, value) in sum.values.iter_mut().zip(&thread.values) {
                *total = total.wrapping_add(value.load(Ordering::Relaxed));
            }
        }
        sum
    }

    /// The value of a counter.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let mut difference = *self;
        for (value, before) in difference.values.iter_mut().zip(&earlier.values) {
            *value = value.wrapping_sub(*before);
        }
        difference
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const _: () =
        assert!(align_of::<Counters>() == 128 && size_of::<Counters>().is_multiple_of(128));

    #[test]
    fn threads_are_summed_and_differences_taken() {
        let (a, b) = (Counters::new(), Counters::new());
        a.add(Counter::Sent, 3);
        let before = Snapshot::of([&a, &b]);
        b.add(Counter::Sent, 4);
        let now = Snapshot::of([&a, &b]);
        assert_eq!(now.get(Counter::Sent), 7);
        assert_eq!(now.since(&before).get(Counter::Sent), 4);
    }
}
