//! The average time that a message takes. It averages over messages, not over time: an idle worker learns nothing.

use std::time::Duration;

/// Messages after which the average has moved by two thirds. Batches of 16 mix messages of different cost; 64 of them
/// smooth that.
const SPAN: f64 = 1024.0;
/// The same as time. The shorter one applies. An application that needs 2 ms handles 100 requests in that.
const SPAN_TIME_NS: f64 = 200e6;
/// A sample counts for at most this many times the average: where the processor is taken away from the worker, the
/// clock goes on.
const OUTLIER: f64 = 4.0;
/// If so many consecutive samples are larger, and took together so long, the work has changed. One stall of the
/// processor is one sample, however long it is.
const CHANGED_SAMPLES: u32 = 8;
const CHANGED_TIME: Duration = Duration::from_millis(80);

/// The moving average.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServiceTime {
    average_ns: f64,
    /// Consecutive samples above the limit, their messages and their time.
    outlying: (u32, f64, Duration),
}

impl ServiceTime {
    /// An average that begins with a guess.
    pub(super) const fn new(guess_ns: f64) -> ServiceTime {
        ServiceTime {
            average_ns: guess_ns,
            outlying: (0, 0.0, Duration::ZERO),
        }
    }

    /// Adds the total time of some messages.
    pub(super) fn observe(&mut self, messages: u32, busy: Duration) {
        if messages == 0 {
            return;
        }
        let messages = f64::from(messages);
        let mut sample = busy.as_nanos() as f64 / messages;
        let most = self.average_ns * OUTLIER;
        if sample <= most {
            self.outlying = (0, 0.0, Duration::ZERO);
        } else {
            self.outlying.0 += 1;
            self.outlying.1 += messages;
            self.outlying.2 += busy;
            if self.outlying.0 >= CHANGED_SAMPLES && self.outlying.2 >= CHANGED_TIME {
                let (_, messages, busy) = std::mem::take(&mut self.outlying);
                self.average_ns = busy.as_nanos() as f64 / messages;
                return;
            }
            sample = most;
        }
        let busy_ns = sample * messages;
        let weight = (messages / (messages + SPAN)).max(busy_ns / (busy_ns + SPAN_TIME_NS));
        self.average_ns = (self.average_ns + (sample - self.average_ns) * weight).max(1.0);
    }

    /// Halves the average: nothing was accepted for long, so nothing else can correct it.
    pub(super) fn halve(&mut self) {
        self.average_ns = (self.average_ns / 2.0).max(1.0);
    }

    /// The average.
    pub(super) fn average(&self) -> Duration {
        Duration::from_nanos(self.average_ns as u64)
    }

    /// How many fit into a second.
    pub(super) fn per_second(&self) -> f64 {
        1e9 / self.average_ns
    }

    /// The expected time for this number of messages.
    pub(super) fn wait(&self, messages: u64) -> Duration {
        // A float too large for the type becomes its largest value.
        Duration::from_nanos((self.average_ns * messages as f64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time() -> ServiceTime {
        ServiceTime::new(10_000.0)
    }

    #[test]
    fn a_fixed_service_time_is_found_and_multiplied() {
        let mut time = time();
        for _ in 0..200 {
            time.observe(32, Duration::from_micros(50 * 32));
        }
        let off = time.average().abs_diff(Duration::from_micros(50));
        assert!(off <= Duration::from_micros(1), "{off:?}");
        let wait = time.wait(1000);
        assert!(wait.abs_diff(Duration::from_millis(50)) <= Duration::from_millis(1));
    }

    #[test]
    fn one_stall_does_not_count_for_a_change() {
        let mut time = time();
        time.observe(16, Duration::from_micros(160));
        time.observe(1, Duration::from_millis(20));
        time.observe(16, Duration::from_millis(20));
        assert!(time.average() < Duration::from_micros(12));
        assert!(time.wait(10_000) < Duration::from_millis(120));
    }

    #[test]
    fn a_stall_in_one_message_counts_like_four_messages_however_long_it_is() {
        let mut time = time();
        for stall_ms in [100, 300, 2_000] {
            time.observe(1, Duration::from_millis(stall_ms));
        }
        // Each such sample has the weight of a sample of four times the average.
        assert!(
            time.average() < Duration::from_micros(11),
            "{:?}",
            time.average()
        );
    }

    #[test]
    fn work_that_takes_a_tenth_of_a_second_is_known_after_eight_messages() {
        let mut time = time();
        for _ in 0..8 {
            time.observe(1, Duration::from_millis(100));
        }
        assert!(time.average() >= Duration::from_millis(99));
    }

    #[test]
    fn the_first_message_finds_everything_cold() {
        let mut time = time();
        time.observe(1, Duration::from_millis(1));
        assert!(time.average() < Duration::from_micros(12));
    }

    #[test]
    fn a_tenfold_service_time_is_known_after_some_hundred_messages() {
        let mut time = ServiceTime::new(5_000.0);
        for _ in 0..64 {
            time.observe(16, Duration::from_micros(16 * 50));
        }
        assert!(time.average() > Duration::from_micros(30));
    }

    #[test]
    fn no_backlog_overflows_it() {
        let mut time = time();
        time.observe(1, Duration::from_secs(1));
        assert!(time.wait(u64::MAX) > Duration::from_secs(1 << 30));
    }
}
