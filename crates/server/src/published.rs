//! The published counters of each worker: atomics that only this worker writes, and all threads read.
//!
//! While it works, a worker counts in plain fields of its own. At most 200 times per second, it copies them to its
//! published counters with plain stores. It needs no lock, no read-modify-write, and no cache line that another worker
//! writes. It publishes when it is awake for other work. If no work follows, it wakes up once to publish the last
//! counts. The reader adds the copies up. The counts of one worker may be slightly old, and two of its counts may come
//! from different copies. But each count only grows.

use crate::stats::WorkerStats;
use crate::words::Words;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use turn::Mono;

/// Age up to which published counters of a worker that is awake stay as they are.
const FRESH_AGE: Duration = Duration::from_millis(5);

/// Age of published counters at which a sleeping worker wakes up to publish. Datagrams that come more often cost no
/// extra wake-up.
const MAX_AGE: Duration = Duration::from_millis(50);

/// How long a worker sleeps at most, so that it can be distinguished from one that hangs.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// Words that share a pair of cache lines, which the prefetcher fetches together.
const LINE_WORDS: usize = 16;

#[derive(Debug, Default)]
#[repr(align(128))]
struct Line([AtomicU64; LINE_WORDS]);

/// Whether the worker's thread runs, and when its loop last turned.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ThreadLiveness {
    /// When its loop turned last, or its thread began, in nanoseconds of the monotonic clock; 0 before that.
    turned_ns: AtomicU64,
    /// The number of its thread; 0 before it runs.
    thread: AtomicU32,
    ended: AtomicBool,
}

/// The published counters of one worker.
#[derive(Debug)]
pub(crate) struct PublishedCounters {
    pulse: ThreadLiveness,
    lines: Box<[Line]>,
}

impl PublishedCounters {
    /// Published counters that are all 0.
    pub(crate) fn new() -> PublishedCounters {
        let mut words = 0_usize;
        WorkerStats::default().each(&mut |_| words += 1);
        PublishedCounters {
            pulse: ThreadLiveness::default(),
            lines: (0..words.div_ceil(LINE_WORDS))
                .map(|_| Line::default())
                .collect(),
        }
    }

    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.lines.iter().flat_map(|line| &line.0)
    }

    /// The counts that were published last.
    pub(crate) fn read(&self) -> WorkerStats {
        let mut words = self.words();
        let mut stats = WorkerStats::default();
        // There is a word for each: `new` has counted them.
        stats.fill(&mut || words.next().map_or(0, |word| word.load(Ordering::Relaxed)));
        stats
    }

    fn write(&self, stats: &WorkerStats) {
        let mut at = 0;
        stats.each(&mut |value| {
            // There is a word for each: `new` has counted them. By index, as a chain of iterators costs three times as
            // much.
            if let Some(line) = self.lines.get(at / LINE_WORDS) {
                line.0[at % LINE_WORDS].store(value, Ordering::Relaxed);
            }
            at += 1;
        });
    }

    /// How long ago the worker's loop turned, or its thread began; `None` before that.
    pub(crate) fn since_turn(&self, now: Mono) -> Option<Duration> {
        let turned = self.pulse.turned_ns.load(Ordering::Relaxed);
        (turned != 0).then(|| now.since(Mono(turned)))
    }

    /// The number of the worker's thread; `None` before it runs.
    pub(crate) fn thread(&self) -> Option<u32> {
        Some(self.pulse.thread.load(Ordering::Relaxed)).filter(|&thread| thread != 0)
    }

    /// The worker's thread begins; the guard, when dropped, says that it has ended, be it by a panic. From now on its
    /// loop is to turn, so that one that hangs in its first turn is noticed.
    pub(crate) fn begin(&self, now: Mono) -> ThreadEndGuard<'_> {
        self.pulse.turned_ns.store(now.0, Ordering::Relaxed);
        self.pulse
            .thread
            .store(io::tasks::current(), Ordering::Relaxed);
        ThreadEndGuard(self)
    }

    /// Whether the worker's thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.pulse.ended.load(Ordering::Relaxed)
    }
}

/// The life of a worker's thread.
#[derive(Debug)]
pub(crate) struct ThreadEndGuard<'a>(&'a PublishedCounters);

impl Drop for ThreadEndGuard<'_> {
    fn drop(&mut self) {
        self.0.pulse.ended.store(true, Ordering::Relaxed);
    }
}

/// Publishes the counters of one worker.
#[derive(Debug)]
pub(crate) struct Publisher {
    published_counters: Arc<[PublishedCounters]>,
    worker: usize,
    /// When the counters were last published.
    written: Mono,
    /// Something may have been counted since.
    behind: bool,
}

impl Publisher {
    pub(crate) fn new(published_counters: Arc<[PublishedCounters]>, worker: usize) -> Publisher {
        Publisher {
            published_counters,
            worker,
            written: Mono(0),
            behind: false,
        }
    }

    /// The worker's loop turns.
    pub(crate) fn turn(&mut self, now: Mono) {
        self.behind = true;
        self.published_counters[self.worker]
            .pulse
            .turned_ns
            .store(now.0, Ordering::Relaxed);
    }

    /// Whether the counters must be published now.
    pub(crate) fn is_due(&self, now: Mono) -> bool {
        self.behind && now.since(self.written) >= FRESH_AGE
    }

    /// Publishes the counters.
    pub(crate) fn publish(&mut self, now: Mono, stats: &WorkerStats) {
        self.published_counters[self.worker].write(stats);
        self.written = now;
        self.behind = false;
    }

    /// How long the worker may sleep.
    pub(crate) fn poll_timeout(&self, now: Mono) -> Duration {
        if self.behind {
            MAX_AGE.saturating_sub(now.since(self.written))
        } else {
            HEARTBEAT_INTERVAL
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Mono {
        Mono(milliseconds * 1_000_000)
    }

    #[test]
    fn written_values_are_read() {
        let published_counters: Arc<[PublishedCounters]> =
            Arc::new([PublishedCounters::new(), PublishedCounters::new()]);
        let mut stats = WorkerStats::default();
        stats.counters.wake_ups = 3;
        stats.sends.sent = 5;
        stats.relays_open = 7;
        Publisher::new(Arc::clone(&published_counters), 1).publish(ms(1), &stats);
        assert_eq!(published_counters[1].read(), stats);
        assert_eq!(published_counters[0].read(), WorkerStats::default());
    }

    #[test]
    fn a_busy_worker_writes_now_and_then_and_an_idle_one_owes_nothing() {
        let mut publisher = Publisher::new(Arc::new([PublishedCounters::new()]), 0);
        assert!(!publisher.is_due(ms(1000)), "nothing was counted");
        assert_eq!(publisher.poll_timeout(ms(1000)), HEARTBEAT_INTERVAL);
        publisher.turn(ms(1000));
        assert!(publisher.is_due(ms(1000)));
        publisher.publish(ms(1000), &WorkerStats::default());
        publisher.turn(ms(1002));
        assert!(!publisher.is_due(ms(1002)));
        assert_eq!(publisher.poll_timeout(ms(1002)), Duration::from_millis(48));
        assert!(publisher.is_due(ms(1005)));
        publisher.publish(ms(1005), &WorkerStats::default());
        assert_eq!(publisher.poll_timeout(ms(1005)), HEARTBEAT_INTERVAL);
    }

    #[test]
    fn a_thread_that_panics_has_ended() {
        let counters = PublishedCounters::new();
        assert_eq!(
            (counters.thread(), counters.since_turn(ms(5))),
            (None, None)
        );
        let thread = std::thread::scope(|scope| {
            let body = || {
                let _running = counters.begin(ms(2));
                panic!("as it were");
            };
            scope.spawn(body).join()
        });
        assert!(thread.is_err() && counters.has_ended() && counters.thread().is_some());
        assert_eq!(counters.since_turn(ms(5)), Some(Duration::from_millis(3)));
    }
}
