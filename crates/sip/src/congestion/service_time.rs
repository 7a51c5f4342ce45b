//! How long a message takes: a moving average over messages, not over time, so that idleness does not count.

use std::time::Duration;

/// After how many messages the average has moved by two thirds (1 - 1/e).
const SPAN: f64 = 1024.0;
/// No average moves further than this at once: one stall must not look like a change of the load.
const LARGEST_WEIGHT: f64 = 0.25;
/// Nor by a sample that is more than so many times the average, unless there has been nothing else for so long: a worker that was not
/// given its processor for a while was not working, and schedulers move those that share one.
const OUTLIER: f64 = 4.0;
const PATIENCE: Duration = Duration::from_millis(80);
/// So many messages at once tell what one takes though nothing was measured before; the first few find everything cold.
const TELLING: u32 = 256;
/// The same for what the expected wait goes by, while the average falls. What is accepted comes in turns: first requests that
/// begin something, then, while those are refused, only what is cheaper; and behind that wait the next that begin something.
const SLOW_SPAN: f64 = 32.0 * SPAN;
/// Before anything was measured.
const FIRST_GUESS_NS: f64 = 10_000.0;

/// The moving average.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServiceTime {
    average_ns: f64,
    /// The average, or what it was lately if that was more.
    lately_ns: f64,
    measured: bool,
    /// How long the samples in a row took that were far above the average.
    outlying: Duration,
}

impl ServiceTime {
    pub(super) const fn new() -> ServiceTime {
        ServiceTime {
            average_ns: FIRST_GUESS_NS,
            lately_ns: FIRST_GUESS_NS,
            measured: false,
            outlying: Duration::ZERO,
        }
    }

    /// So many messages took so long together.
    pub(super) fn observe(&mut self, messages: u32, busy: Duration) {
        if messages == 0 {
            return;
        }
        let is_first = !self.measured && messages >= TELLING;
        let messages = f64::from(messages);
        let sample = busy.as_nanos() as f64 / messages;
        if !is_first {
            let most = self.average_ns * OUTLIER;
            self.outlying = match sample > most {
                true => self.outlying + busy,
                false => Duration::ZERO,
            };
            let weight = (messages / (messages + SPAN)).min(LARGEST_WEIGHT);
            let (sample, weight) = match self.outlying < PATIENCE {
                true => (sample.min(most), weight),
                false => (sample, LARGEST_WEIGHT),
            };
            self.average_ns += (sample - self.average_ns) * weight;
            let slowly = (messages / (messages + SLOW_SPAN)).min(LARGEST_WEIGHT);
            self.lately_ns += (self.average_ns - self.lately_ns) * slowly;
            self.lately_ns = self.lately_ns.max(self.average_ns);
        } else {
            self.average_ns = sample;
            self.lately_ns = sample;
        }
        self.measured = true;
    }

    /// The average.
    pub(super) fn average(&self) -> Duration {
        Duration::from_nanos(self.average_ns as u64)
    }

    /// How long so many messages will take, if they are like those that took longest lately.
    pub(super) fn wait(&self, messages: u64) -> Duration {
        let ns = self.lately_ns * messages as f64;
        Duration::from_nanos(if ns < u64::MAX as f64 {
            ns as u64
        } else {
            u64::MAX
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_service_time_is_found_and_multiplied() {
        let mut time = ServiceTime::new();
        for _ in 0..200 {
            time.observe(32, Duration::from_micros(50 * 32));
        }
        let off = time.average().abs_diff(Duration::from_micros(50));
        assert!(off <= Duration::from_micros(1), "{off:?}");
        let wait = time.wait(1000);
        assert!(wait.abs_diff(Duration::from_millis(50)) <= Duration::from_millis(1));
    }

    #[test]
    fn what_waits_is_not_taken_for_cheap_since_the_last_was() {
        let mut time = ServiceTime::new();
        let mut observe = |each: u64, messages: u32| {
            for _ in 0..messages / 16 {
                time.observe(16, Duration::from_micros(16 * each));
            }
            time.wait(1000)
        };
        assert!(observe(50, 8192) >= Duration::from_millis(49));
        assert!(observe(5, 4096) >= Duration::from_millis(40));
        assert!(observe(50, 16) >= Duration::from_millis(40), "more at once");
        assert!(observe(5, 250_000) < Duration::from_millis(6), "in the end");
    }

    #[test]
    fn one_stall_does_not_count_for_a_change() {
        let mut time = ServiceTime::new();
        time.observe(16, Duration::from_micros(160));
        time.observe(1, Duration::from_millis(20));
        time.observe(16, Duration::from_millis(20));
        assert!(time.average() < Duration::from_micros(12));
        assert!(time.wait(10_000) < Duration::from_millis(120));
    }

    #[test]
    fn the_first_message_finds_everything_cold() {
        let mut time = ServiceTime::new();
        time.observe(1, Duration::from_millis(1));
        assert!(time.average() < Duration::from_micros(12));
    }

    #[test]
    fn what_takes_ten_times_as_long_is_known_after_some_hundred_messages() {
        let mut time = ServiceTime::new();
        time.observe(1000, Duration::from_millis(5));
        for _ in 0..64 {
            time.observe(16, Duration::from_micros(16 * 50));
        }
        assert!(time.average() > Duration::from_micros(30));
    }

    #[test]
    fn no_backlog_overflows_it() {
        let mut time = ServiceTime::new();
        time.observe(1, Duration::from_secs(1));
        assert!(time.wait(u64::MAX) > Duration::from_secs(1 << 30));
    }
}
