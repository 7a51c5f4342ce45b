//! Latencies for a live display of a run, second by second.
//!
//! The thread that watches a run counts its seconds ([`Shared::second`]). A thread that measures looks at that number
//! once per wake-up. When it has changed, the thread hands over its latencies for the second that is over. So the
//! percentiles of a second belong to the datagrams that arrived in that second. A second without arrivals has none.

use std::sync::Mutex;
use std::time::Duration;

use io::clock;

use super::shared::Shared;
use crate::measure::Latency;

/// How long the watching thread waits for the measuring threads at the end of a second. They wake up within 20 ms.
const MAX_WAIT_NS: u64 = 200_000_000;
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// What a thread has handed over last.
#[derive(Debug)]
pub(super) struct LiveSecond {
    /// The last even second and the last odd one: the watching thread may be late.
    parts: [(u64, Latency); 2],
    /// Seconds below this have been handed over; all of them if no thread measures here.
    complete: u64,
}

impl Default for LiveSecond {
    fn default() -> LiveSecond {
        LiveSecond {
            parts: [(0, Latency::new()), (1, Latency::new())],
            complete: u64::MAX,
        }
    }
}

/// What a thread has measured and not yet handed over.
#[derive(Debug, Default)]
pub(super) struct LatencyFeed {
    recent: Latency,
    second: u64,
    has_begun: bool,
}

impl LatencyFeed {
    pub(super) fn record_ns(&mut self, latency_ns: u64) {
        self.recent.record_ns(latency_ns);
    }

    /// Hands over what there is, if a second is over or if this is the `last` time.
    pub(super) fn hand_over(&mut self, to: &Mutex<LiveSecond>, shared: &Shared, last: bool) {
        let second = shared.second();
        if !self.has_begun {
            self.has_begun = true;
            if let Ok(mut live) = to.lock() {
                live.complete = self.second;
            }
        }
        if second == self.second && !last {
            return;
        }
        if let Ok(mut live) = to.lock() {
            let (of, latency) = &mut live.parts[place(self.second)];
            *of = self.second;
            latency.clear();
            latency.merge(&self.recent);
            live.complete = if last { u64::MAX } else { second };
        }
        self.recent.clear();
        self.second = second;
    }
}

fn place(second: u64) -> usize {
    (second % 2) as usize
}

/// The latencies of `second`, which is over. Waits until each thread has handed over its own.
pub(super) fn collect(threads: &[Mutex<LiveSecond>], second: u64) -> Latency {
    let end_ns = clock::monotonic_ns() + MAX_WAIT_NS;
    let mut all = Latency::new();
    for thread in threads {
        loop {
            let Ok(live) = thread.lock() else {
                break;
            };
            let is_complete = live.complete > second;
            let (of, latency) = &live.parts[place(second)];
            if is_complete && *of == second {
                all.merge(latency);
            }
            drop(live);
            if is_complete || clock::monotonic_ns() >= end_ns {
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::Stopper;
    use super::super::shared::RunTiming;
    use super::*;

    fn record(feed: &mut LatencyFeed, count: u32) {
        for _ in 0..count {
            feed.record_ns(5_000);
        }
    }

    #[test]
    fn latencies_belong_to_the_second_in_which_they_were_measured() {
        let shared = Shared::of(&RunTiming::sample(Stopper::new()));
        let live = [Mutex::default()];
        let mut feed = LatencyFeed::default();
        record(&mut feed, 30);
        feed.hand_over(&live[0], &shared, false);
        // At the edge of the second, after the last look of the thread.
        record(&mut feed, 10);
        shared.end_second();
        feed.hand_over(&live[0], &shared, false);
        let first = collect(&live, 0);
        assert_eq!(first.report().count, 40);
        // A silent second, and one in which the thread ends.
        shared.end_second();
        feed.hand_over(&live[0], &shared, false);
        assert_eq!(collect(&live, 1).report().count, 0);
        record(&mut feed, 7);
        feed.hand_over(&live[0], &shared, true);
        shared.end_second();
        assert_eq!(collect(&live, 2).report().count, 7);
        shared.end_second();
        assert_eq!(collect(&live, 3).report().count, 0);
    }

    #[test]
    fn a_thread_that_hangs_holds_up_no_display() {
        let shared = Shared::of(&RunTiming::sample(Stopper::new()));
        let live = [Mutex::default(), Mutex::default()];
        let mut feeds = [LatencyFeed::default(), LatencyFeed::default()];
        for (feed, live) in feeds.iter_mut().zip(&live) {
            feed.hand_over(live, &shared, false);
            record(feed, 3);
        }
        shared.end_second();
        feeds[1].hand_over(&live[1], &shared, false);
        assert_eq!(collect(&live, 0).report().count, 3);
    }
}
