//! Latencies for a live display of a run.

use std::sync::Mutex;

use io::clock;

use crate::measure::Latency;

/// How often latencies are handed over: often enough for a display, seldom enough not to matter.
const EVERY_NS: u64 = 200_000_000;

/// What a thread has measured and not yet handed over.
#[derive(Debug, Default)]
pub(super) struct LatencyFeed {
    recent: Latency,
    next_ns: u64,
}

impl LatencyFeed {
    pub(super) fn record_ns(&mut self, latency_ns: u64) {
        self.recent.record_ns(latency_ns);
    }

    /// Hands over what there is, if it is time or if this is the `last` time.
    pub(super) fn hand_over(&mut self, to: &Mutex<Latency>, last: bool) {
        let now = clock::monotonic_ns();
        if now < self.next_ns && !last {
            return;
        }
        self.next_ns = now + EVERY_NS;
        if let Ok(mut latency) = to.lock() {
            latency.merge(&self.recent);
            self.recent.clear();
        }
    }
}
