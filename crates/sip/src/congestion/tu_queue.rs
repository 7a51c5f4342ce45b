//! How long requests wait in the transaction user for a slow back end.

use std::time::Duration;

use super::controller::Backlog;
use super::service_time::ServiceTime;

/// What waits in the transaction user, by how fast a back end takes it.
#[derive(Debug)]
pub(super) struct TuQueue {
    /// Between two that it begins with, while others wait.
    interval: ServiceTime,
    /// Since it has begun with one.
    pending: Duration,
    was_waiting: bool,
}

impl TuQueue {
    /// A queue whose back end takes this many nanoseconds for a request, until that was measured.
    pub(super) const fn new(guess_ns: f64) -> TuQueue {
        TuQueue {
            interval: ServiceTime::new(guess_ns),
            pending: Duration::ZERO,
            was_waiting: false,
        }
    }

    /// How long what comes now will wait. A back end that has stopped is as slow as it has been silent.
    pub(super) fn wait(&mut self, passed: Duration, backlog: Backlog) -> Duration {
        if std::mem::replace(&mut self.was_waiting, backlog.tu_waiting > 0) {
            self.pending += passed;
        }
        if backlog.tu_begun > 0 {
            let pending = std::mem::take(&mut self.pending);
            self.interval.observe(backlog.tu_begun, pending);
        }
        match backlog.tu_waiting {
            0 => {
                self.pending = Duration::ZERO;
                Duration::ZERO
            }
            waiting => self.interval.wait(waiting).max(self.pending),
        }
    }
}
