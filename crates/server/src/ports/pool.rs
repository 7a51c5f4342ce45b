//! The free ports of one relay address, shared by all workers without a lock on the ordinary path.
//!
//! ```text
//!  line (8 words):    0                    1                 ..      leased to worker  line % workers
//!  word (64 ports):   0  1  ..  7          8  9  ..  15
//!      free         [1101.. 0111.. 1111.. ....                       taken from here, at random
//!      resting      [0010.. 1000.. ....                              freed a short while ago, in generations
//!      foreign      [0000.. ....                                     held by another process when we tried
//! ```
//!
//! A cache line of 512 ports, which starts at a multiple of 64, is a lease. Its worker prefers it, so workers rarely
//! write to the same cache line. But other workers may use it, too. Where there are more workers than lines, some share
//! one. A worker whose own lines are empty takes from those of others, so no client gets a 508 while any worker has a
//! port.
//!
//! A freed port rests for [`PortPool::REST`] so that late datagrams do not reach a new owner. When nothing else is
//! free, what has rested longest comes back early: a shorter rest is better than a 508.

use super::quarantine::{LINE, PortQuarantine, Words, count_ports, move_all};
use crate::random::Entropy;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// An inclusive range of relay ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

/// Why a port range was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortRangeError {
    /// The first port is above the last.
    #[error("the first relay port is above the last: swap them")]
    Reversed,
    /// RFC 8656 §7.2: a server should not allocate well-known ports.
    #[error("relay ports below 1024 are reserved for well-known services: start at 1024 or above")]
    WellKnown,
}

impl PortRange {
    /// RFC 8656 §7.2: the dynamic ports, 49152 to 65535.
    pub const DYNAMIC: PortRange = PortRange {
        first: 49_152,
        last: 65_535,
    };

    /// A range from `first` to `last`, both included.
    ///
    /// # Errors
    /// If the range is empty or reaches below port 1024.
    pub fn new(first: u16, last: u16) -> Result<PortRange, PortRangeError> {
        if first > last {
            return Err(PortRangeError::Reversed);
        }
        if first < 1024 {
            return Err(PortRangeError::WellKnown);
        }
        Ok(PortRange { first, last })
    }

    /// The lowest port.
    #[must_use]
    pub const fn first(self) -> u16 {
        self.first
    }

    /// The highest port.
    #[must_use]
    pub const fn last(self) -> u16 {
        self.last
    }

    /// How many ports there are.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub const fn len(self) -> usize {
        (self.last - self.first) as usize + 1
    }

    /// Whether `port` is one of them.
    #[must_use]
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }
}

/// What a client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortSelection {
    /// Any port.
    Any,
    /// An even port (EVEN-PORT with R = 0).
    Even,
    /// An even port and the odd one above it (EVEN-PORT with R = 1).
    Pair,
}

impl PortSelection {
    /// The bits of a word of free ports at which a choice may start.
    fn candidates(self, free: u64) -> u64 {
        // Words start at multiples of 64, so an even bit is an even port.
        const EVEN: u64 = 0x5555_5555_5555_5555;
        match self {
            PortSelection::Any => free,
            PortSelection::Even => free & EVEN,
            PortSelection::Pair => free & (free >> 1) & EVEN,
        }
    }

    fn bits(self, at: u32) -> u64 {
        match self {
            PortSelection::Any | PortSelection::Even => 1 << at,
            PortSelection::Pair => 3 << at,
        }
    }
}

/// What has become of the ports of a [`PortPool`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortCounts {
    /// Held by relays, or about to be.
    pub in_use: usize,
    /// Free to be taken.
    pub free: usize,
    /// Freed a short while ago; taken again once they have rested, or when nothing else is left.
    pub resting: usize,
    /// Held by another process; tried again later.
    pub foreign: usize,
}

impl std::ops::AddAssign for PortCounts {
    fn add_assign(&mut self, other: PortCounts) {
        self.in_use += other.in_use;
        self.free += other.free;
        self.resting += other.resting;
        self.foreign += other.foreign;
    }
}

/// The free ports of one relay address.
#[derive(Debug)]
pub struct PortPool {
    range: PortRange,
    workers: usize,
    free: Words,
    resting: PortQuarantine,
    foreign: Words,
    /// When foreign ports are due to be tried again, in seconds.
    foreign_due_s: AtomicU64,
}

impl PortPool {
    /// How long a freed port rests, unless ports run out first.
    pub const REST: Duration = PortQuarantine::REST;

    /// A port that another process held is tried again after this many seconds, at most twice as many.
    const FOREIGN_S: u64 = 60;

    /// How many random words a worker looks into before it searches in order.
    const MAX_GUESSES: usize = 4;

    /// A pool with every port of `range` free, leased out to `workers` workers.
    #[must_use]
    pub fn new(range: PortRange, workers: usize) -> PortPool {
        let first_word = usize::from(range.first) / 64;
        let words = usize::from(range.last) / 64 - first_word + 1;
        let pool = PortPool {
            range,
            workers: workers.max(1),
            free: Words::empty(words),
            resting: PortQuarantine::new(words, range.len()),
            foreign: Words::empty(words),
            foreign_due_s: AtomicU64::new(0),
        };
        for port in range.first..=range.last {
            pool.give_back_unused(port);
        }
        pool
    }

    /// The ports that this pool was made with.
    #[must_use]
    pub fn range(&self) -> PortRange {
        self.range
    }

    /// How many ports are where; a moment's view, which changes while it is taken.
    #[must_use]
    pub fn counts(&self) -> PortCounts {
        let (free, foreign) = (count_ports(&self.free), count_ports(&self.foreign));
        let resting = self.resting.count();
        PortCounts {
            in_use: self.range.len().saturating_sub(free + resting + foreign),
            free,
            resting,
            foreign,
        }
    }

    /// Takes a port for `worker`; for [`PortSelection::Pair`] it returns the even one of the two. `None`: no port is
    /// left.
    ///
    /// `now_s` is any clock that counts seconds; it decides which freed ports have rested.
    pub fn take(
        &self,
        worker: usize,
        want: PortSelection,
        now_s: u64,
        entropy: &mut Entropy,
    ) -> Option<u16> {
        if self.resting.is_due(now_s) {
            self.resting.rotate(now_s, &self.free);
            self.retry_foreign(now_s);
        }
        self.take_leased(worker, want, entropy)
            .or_else(|| self.take_in_order(want, entropy))
            .or_else(|| self.take_quarantined(want, entropy))
    }

    /// Gives a port back after use. It rests before it is used again.
    pub fn release(&self, port: u16) {
        if let Some((word, bit)) = self.place(port) {
            self.resting.add(word, bit);
        }
    }

    /// Gives a port back that was never used (its twin of a pair could not be opened).
    pub fn give_back_unused(&self, port: u16) {
        if let Some((word, bit)) = self.place(port) {
            self.free[word].fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// Gives a port back that another process holds: it is not tried again for a minute or two.
    pub fn give_back_foreign(&self, port: u16) {
        if let Some((word, bit)) = self.place(port) {
            self.foreign[word].fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// The word and the bit of a port; `None` for a port that is not ours.
    fn place(&self, port: u16) -> Option<(usize, u64)> {
        debug_assert!(self.range.contains(port), "port {port} is not ours");
        self.range.contains(port).then(|| {
            (
                usize::from(port) / 64 - usize::from(self.range.first) / 64,
                1 << (port % 64),
            )
        })
    }

    fn take_leased(
        &self,
        worker: usize,
        want: PortSelection,
        entropy: &mut Entropy,
    ) -> Option<u16> {
        let lines = self.free.len().div_ceil(LINE);
        let workers = self.workers.min(lines);
        let own = worker % workers;
        // Words of this worker's lines, as if they were side by side; the last line may be shorter.
        let words = (lines - own).div_ceil(workers) * LINE;
        let word_at = |at: usize| (own + at / LINE * workers) * LINE + at % LINE;
        let guessed = (0..Self::MAX_GUESSES)
            .find_map(|_| self.take_from(word_at(entropy.below(words)), want, entropy));
        guessed.or_else(|| {
            let first = entropy.below(words);
            (0..words).find_map(|at| self.take_from(word_at((first + at) % words), want, entropy))
        })
    }

    /// Searches all words in order, beginning at a random one of them.
    fn take_in_order(&self, want: PortSelection, entropy: &mut Entropy) -> Option<u16> {
        let count = self.free.len();
        let first = entropy.below(count);
        (0..count).find_map(|at| self.take_from((first + at) % count, want, entropy))
    }

    fn take_from(&self, word: usize, want: PortSelection, entropy: &mut Entropy) -> Option<u16> {
        let cell = self.free.get(word)?;
        let mut free = cell.load(Ordering::Relaxed);
        loop {
            let candidates = want.candidates(free);
            if candidates == 0 {
                return None;
            }
            let spin = entropy.next_u32() % 64;
            let at = (candidates.rotate_right(spin).trailing_zeros() + spin) % 64;
            let bits = want.bits(at);
            match cell.compare_exchange_weak(
                free,
                free & !bits,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    return u16::try_from(
                        (usize::from(self.range.first) / 64 + word) * 64 + at as usize,
                    )
                    .ok();
                }
                Err(changed) => free = changed,
            }
        }
    }

    /// Nothing is free: what has rested longest comes back early.
    ///
    /// Under the lock nothing moves between generations, so a port that is not found was taken, or was never there.
    fn take_quarantined(&self, want: PortSelection, entropy: &mut Entropy) -> Option<u16> {
        let mut closed = self.resting.lock();
        loop {
            if let Some(port) = self.take_in_order(want, entropy) {
                return Some(port);
            }
            if !self.resting.release_early(&mut closed, &self.free) {
                self.resting.release_stragglers(&self.free);
                return self.take_in_order(want, entropy);
            }
        }
    }

    fn retry_foreign(&self, now_s: u64) {
        let due = self.foreign_due_s.load(Ordering::Relaxed);
        let next = now_s + Self::FOREIGN_S;
        if now_s >= due
            && self
                .foreign_due_s
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            move_all(&self.foreign, &self.free);
        }
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
