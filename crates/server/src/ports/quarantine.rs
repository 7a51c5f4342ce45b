//! The quarantine, where freed ports rest before they are used again: a few generations, oldest first.
//!
//! ```text
//!   release ────> current ──closed──> [ oldest | .. | newest ] ──> free
//!                    '── after an eighth of all ports or a quarter of the rest time, whichever comes first
//!                                        '── when it has rested long enough, or earlier when nothing else is free
//! ```
//!
//! Bits are set without a lock. A generation is closed and released under a lock, at most every few seconds or every
//! few thousand ports. If the generation changes during `release`, the port goes to the older generation. Then it
//! becomes free a little earlier, or one cycle later, and is never lost.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Words in a cache line.
pub(super) const LINE: usize = 8;

/// A cache line of words.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU64; LINE]);

const _: () = assert!(size_of::<Line>() == 64);

/// One bit per port, in words of 64. Word 0 starts a cache line.
#[derive(Debug)]
pub(super) struct Words {
    lines: Box<[Line]>,
    count: usize,
}

impl Words {
    /// Makes `count` words of zeros.
    pub(super) fn empty(count: usize) -> Words {
        Words {
            lines: (0..count.div_ceil(LINE)).map(|_| Line::default()).collect(),
            count,
        }
    }
}

impl Words {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn get(&self, word: usize) -> Option<&AtomicU64> {
        let inside = (word < self.count).then_some(word)?;
        Some(&self.lines[inside / LINE].0[inside % LINE])
    }

    fn iter(&self) -> impl Iterator<Item = &AtomicU64> {
        // Behind the last word no bit is ever set.
        self.lines.iter().flat_map(|line| &line.0)
    }
}

impl std::ops::Index<usize> for Words {
    type Output = AtomicU64;

    fn index(&self, word: usize) -> &AtomicU64 {
        &self.lines[word / LINE].0[word % LINE]
    }
}

/// How many ports have their bit set.
pub(super) fn count_ports(words: &Words) -> usize {
    words
        .iter()
        .map(|word| word.load(Ordering::Relaxed).count_ones() as usize)
        .sum()
}

/// Moves every port of `from` to `to`.
pub(super) fn move_all(from: &Words, to: &Words) {
    for (from, to) in from.iter().zip(to.iter()) {
        if from.load(Ordering::Relaxed) != 0 {
            to.fetch_or(from.swap(0, Ordering::AcqRel), Ordering::AcqRel);
        }
    }
}

/// How many generations there are, the current one included.
const GENERATIONS: usize = 8;

#[derive(Debug)]
pub(super) struct PortQuarantine {
    /// A bit is set for each port that rests.
    generations: [Words; GENERATIONS],
    /// The index of the generation that freed ports go to.
    current: AtomicUsize,
    /// Ports added since the current generation was opened.
    added: AtomicU32,
    /// The number of ports with which the current generation is full, so that it is closed.
    full: u32,
    /// When the current generation is closed even if it is not full, in seconds.
    due_s: AtomicU64,
    closed: Mutex<Closed>,
}

/// The closed generations, oldest first.
#[derive(Debug, Default)]
pub(super) struct Closed {
    /// The index of each generation, and when it was closed, in seconds.
    queue: [(usize, u64); GENERATIONS],
    count: usize,
}

impl Closed {
    fn oldest(&self) -> Option<(usize, u64)> {
        (self.count > 0).then(|| self.queue[0])
    }

    fn pop(&mut self) -> Option<(usize, u64)> {
        let oldest = self.oldest()?;
        self.queue.copy_within(1..self.count, 0);
        self.count -= 1;
        Some(oldest)
    }

    fn push(&mut self, generation: usize, now_s: u64) {
        self.queue[self.count] = (generation, now_s);
        self.count += 1;
    }
}

impl PortQuarantine {
    /// How long a freed port rests. ICE consent expires after 30 s (RFC 7675 §5.1): by then, a peer no longer sends to
    /// the previous owner of the port.
    pub(super) const REST: Duration = Duration::from_secs(30);

    pub(super) fn new(words: usize, ports: usize) -> PortQuarantine {
        PortQuarantine {
            generations: std::array::from_fn(|_| Words::empty(words)),
            current: AtomicUsize::new(0),
            added: AtomicU32::new(0),
            full: u32::try_from(ports / GENERATIONS)
                .unwrap_or(u32::MAX)
                .max(1),
            due_s: AtomicU64::new(0),
            closed: Mutex::default(),
        }
    }

    /// Puts a freed port into quarantine.
    pub(super) fn add(&self, word: usize, bit: u64) {
        let current = self.current.load(Ordering::Acquire) % GENERATIONS;
        self.generations[current][word].fetch_or(bit, Ordering::AcqRel);
        self.added.fetch_add(1, Ordering::Relaxed);
    }

    /// How many ports rest.
    pub(super) fn count(&self) -> usize {
        self.generations.iter().map(count_ports).sum()
    }

    /// Whether [`PortQuarantine::rotate`] has something to do.
    pub(super) fn is_due(&self, now_s: u64) -> bool {
        now_s >= self.due_s.load(Ordering::Relaxed)
            || self.added.load(Ordering::Relaxed) >= self.full
    }

    /// If it is due, closes the current generation, and moves the ports that have rested long enough to `free`. Does
    /// nothing while another thread holds the lock.
    pub(super) fn rotate(&self, now_s: u64, free: &Words) {
        let Ok(mut closed) = self.closed.try_lock() else {
            return;
        };
        if !self.is_due(now_s) {
            return;
        }
        self.due_s
            .store(now_s + Self::REST.as_secs() / 4, Ordering::Relaxed);
        self.close_current(&mut closed, now_s);
        while closed
            .oldest()
            .is_some_and(|(_, since_s)| since_s + Self::REST.as_secs() <= now_s)
        {
            self.release_oldest(&mut closed, free);
        }
    }

    /// Takes the lock. While a thread holds it, no other thread closes or releases a generation.
    pub(super) fn lock(&self) -> MutexGuard<'_, Closed> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the ports of the oldest generation to `free`, although they have not rested long enough. `false` if there
    /// was no generation to release.
    pub(super) fn release_early(&self, closed: &mut Closed, free: &Words) -> bool {
        if closed.count == 0 {
            self.close_current(closed, 0);
        }
        self.release_oldest(closed, free)
    }

    /// Moves all ports of all generations to `free`. A thread may have added a port to a generation that another thread
    /// has just released. Otherwise, that port would stay there until the generation is used again.
    pub(super) fn release_stragglers(&self, free: &Words) {
        self.generations
            .iter()
            .for_each(|generation| move_all(generation, free));
    }

    /// Moves the ports of the oldest closed generation to `free`. `false` if there is none.
    fn release_oldest(&self, closed: &mut Closed, free: &Words) -> bool {
        closed
            .pop()
            .map(|(generation, _)| move_all(&self.generations[generation], free))
            .is_some()
    }

    /// Closes the current generation at `now_s`, unless it is empty, and opens an unused one.
    fn close_current(&self, closed: &mut Closed, now_s: u64) {
        if self.added.swap(0, Ordering::Relaxed) == 0 {
            return;
        }
        let current = self.current.load(Ordering::Relaxed) % GENERATIONS;
        if closed.count == GENERATIONS - 1 {
            // All generations are in use. So the oldest joins the next one, and rests until that one is released.
            if let Some((oldest, _)) = closed.pop() {
                move_all(
                    &self.generations[oldest],
                    &self.generations[closed.queue[0].0],
                );
            }
        }
        closed.push(current, now_s);
        let in_use = |generation: usize| {
            closed.queue[..closed.count]
                .iter()
                .any(|&(used, _)| used == generation)
        };
        let next = (0..GENERATIONS).find(|&generation| !in_use(generation));
        self.current
            .store(next.unwrap_or(current), Ordering::Release);
    }
}
