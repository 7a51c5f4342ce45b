//! Where freed ports rest: a few generations, oldest first.
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

/// How many bits are set.
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
    generations: [Words; GENERATIONS],
    current: AtomicUsize,
    /// Ports returned since the current generation was opened.
    given: AtomicU32,
    /// How many make it full.
    full: u32,
    /// When the next generation is due, in seconds.
    due_s: AtomicU64,
    closed: Mutex<Closed>,
}

/// The closed generations, oldest first.
#[derive(Debug, Default)]
pub(super) struct Closed {
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
    /// 30 s is the time after which ICE consent expires (RFC 7675 §5.1). By then, a peer that still sends to the old
    /// owner has noticed.
    pub(super) const REST: Duration = Duration::from_secs(30);

    pub(super) fn new(words: usize, ports: usize) -> PortQuarantine {
        PortQuarantine {
            generations: std::array::from_fn(|_| Words::empty(words)),
            current: AtomicUsize::new(0),
            given: AtomicU32::new(0),
            full: u32::try_from(ports / GENERATIONS)
                .unwrap_or(u32::MAX)
                .max(1),
            due_s: AtomicU64::new(0),
            closed: Mutex::default(),
        }
    }

    /// Puts a freed port into quarantine.
    pub(super) fn give(&self, word: usize, bit: u64) {
        let current = self.current.load(Ordering::Acquire) % GENERATIONS;
        self.generations[current][word].fetch_or(bit, Ordering::AcqRel);
        self.given.fetch_add(1, Ordering::Relaxed);
    }

    /// How many ports rest.
    pub(super) fn count(&self) -> usize {
        self.generations.iter().map(count_ports).sum()
    }

    /// Whether [`PortQuarantine::turn`] has something to do.
    pub(super) fn is_due(&self, now_s: u64) -> bool {
        now_s >= self.due_s.load(Ordering::Relaxed)
            || self.given.load(Ordering::Relaxed) >= self.full
    }

    /// Closes the current generation and releases to `free` what has rested long enough.
    pub(super) fn turn(&self, now_s: u64, free: &Words) {
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

    /// Takes the lock under which nothing moves between generations.
    pub(super) fn lock(&self) -> MutexGuard<'_, Closed> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the oldest generation although it has not rested enough. `false` if none was left.
    pub(super) fn release_early(&self, closed: &mut Closed, free: &Words) -> bool {
        if closed.count == 0 {
            self.close_current(closed, 0);
        }
        self.release_oldest(closed, free)
    }

    /// Releases what overtaken givers have left in generations that are not in use.
    pub(super) fn release_stragglers(&self, free: &Words) {
        self.generations
            .iter()
            .for_each(|generation| move_all(generation, free));
    }

    fn release_oldest(&self, closed: &mut Closed, free: &Words) -> bool {
        closed
            .pop()
            .map(|(generation, _)| move_all(&self.generations[generation], free))
            .is_some()
    }

    /// Closes the current generation at `now_s`, unless it is empty, and opens an unused one.
    fn close_current(&self, closed: &mut Closed, now_s: u64) {
        if self.given.swap(0, Ordering::Relaxed) == 0 {
            return;
        }
        let current = self.current.load(Ordering::Relaxed) % GENERATIONS;
        if closed.count == GENERATIONS - 1 {
            // All generations are in use: the two oldest become one, which rests as long as the younger of them.
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
