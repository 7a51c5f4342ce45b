//! Returns memory to the system that engines free after a wave of transactions.
//!
//! The allocator cannot return freed memory that lies between used blocks unless it is asked to. The request concerns
//! all threads, so workers that free memory at the same time ask once.

use sip::Mono;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The minimum of freed bytes for which the worker asks the allocator.
const MIN_FREED_BYTES: usize = 1 << 20;

/// How long a worker waits, so that other workers can free memory, too.
const GATHER_TIME: Duration = Duration::from_millis(300);

/// When the process has last asked the allocator, in nanoseconds.
static RELEASED_AT_NS: AtomicU64 = AtomicU64::new(0);

/// What one worker has returned to the allocator.
#[derive(Debug, Default)]
pub(super) struct FreedMemory {
    bytes: usize,
    last: Mono,
    ask_at: Option<Mono>,
}

impl FreedMemory {
    /// Adds freed bytes.
    pub(super) fn add(&mut self, now: Mono, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.bytes += bytes;
        self.last = now;
        if self.bytes >= MIN_FREED_BYTES {
            self.ask_at.get_or_insert(now.plus(GATHER_TIME));
        }
    }

    /// When to call [`FreedMemory::expire`].
    pub(super) const fn deadline(&self) -> Option<Mono> {
        self.ask_at
    }

    /// Asks the allocator, if it is time to and no other worker has done so since.
    pub(super) fn expire(&mut self, now: Mono) {
        if self.ask_at.is_none_or(|at| at > now) {
            return;
        }
        self.ask_at = None;
        self.bytes = 0;
        let asked_at = RELEASED_AT_NS.fetch_max(now.0, Ordering::Relaxed);
        if asked_at <= self.last.0 {
            io::memory::release_free();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_kept_and_much_is_waited_for_and_asked_about_once() {
        let mut slack = FreedMemory::default();
        slack.add(Mono(1), MIN_FREED_BYTES - 1);
        assert_eq!(slack.deadline(), None);
        slack.add(Mono(2), 1);
        slack.add(Mono(3), MIN_FREED_BYTES);
        let at = Mono(2).plus(GATHER_TIME);
        assert_eq!(slack.deadline(), Some(at));
        slack.expire(Mono(4));
        assert_eq!(slack.deadline(), Some(at), "not yet");
        slack.expire(at);
        assert_eq!((slack.deadline(), slack.bytes), (None, 0));
    }
}
