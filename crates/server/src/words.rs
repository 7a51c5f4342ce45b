//! Counters as a sequence of words, so that an array of atomics can hold any of them.
//!
//! Each type is listed with all its fields: a field that is added and forgotten here does not compile.

use crate::stats::WorkerStats;
use io::{BatchSizes, Flushed, Received};
use turn::server::{Stats, Traffic};

/// What consists of words, always as many and in the same order.
pub(crate) trait Words {
    /// Shows each word.
    fn each(&self, show: &mut impl FnMut(u64));
    /// Fills each word in.
    fn fill(&mut self, next: &mut impl FnMut() -> u64);
}

impl Words for u64 {
    fn each(&self, show: &mut impl FnMut(u64)) {
        show(*self);
    }

    fn fill(&mut self, next: &mut impl FnMut() -> u64) {
        *self = next();
    }
}

impl<T: Words, const N: usize> Words for [T; N] {
    fn each(&self, show: &mut impl FnMut(u64)) {
        self.iter().for_each(|item| item.each(show));
    }

    fn fill(&mut self, next: &mut impl FnMut() -> u64) {
        self.iter_mut().for_each(|item| item.fill(next));
    }
}

/// Implements [`Words`] for a struct, field by field.
macro_rules! words {
    ($type:ident { $($field:ident),+ $(,)? }) => {
        impl $crate::words::Words for $type {
            fn each(&self, show: &mut impl FnMut(u64)) {
                let $type { $($field),+ } = self;
                $($crate::words::Words::each($field, show);)+
            }

            fn fill(&mut self, next: &mut impl FnMut() -> u64) {
                let $type { $($field),+ } = self;
                $($crate::words::Words::fill($field, next);)+
            }
        }
    };
}
pub(crate) use words;

words!(WorkerStats {
    counters,
    engine,
    streams,
    dtls,
    sends,
    received,
    relays_open,
    flows_steered,
    channels_offloaded,
    sip
});
words!(Traffic { packets, bytes });
words!(BatchSizes { buckets, sum });
words!(Received {
    datagrams,
    gro_trains,
    gro_segments,
    per_call
});
words!(Flushed {
    sent,
    sent_bytes,
    would_block,
    too_big,
    unreachable,
    denied,
    no_buffers,
    other_errors,
    syscalls,
    gso_runs,
    gso_segments,
    gso_refused,
    gso_unsupported,
    gso_wrong_size,
    per_call,
});
impl Words for Stats {
    fn each(&self, show: &mut impl FnMut(u64)) {
        self.each_number(show);
    }

    fn fill(&mut self, next: &mut impl FnMut() -> u64) {
        self.set_numbers(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_in_the_order_in_which_they_are_written() {
        let mut stats = WorkerStats::default();
        let mut number = 0;
        stats.fill(&mut || {
            number += 1;
            number
        });
        assert!(number > 100);
        let mut words = Vec::new();
        stats.each(&mut |word| words.push(word));
        assert_eq!(words, (1..=number).collect::<Vec<u64>>());
        assert_eq!(stats.counters.wake_ups, 1);
        assert_eq!(stats.sip.mailbox_full, number);
    }
}
