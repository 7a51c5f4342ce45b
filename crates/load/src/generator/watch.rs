//! Detects that a run should end early, because nothing comes back or nothing can be sent.

use std::time::Duration;

use crate::measure::{Counter, Snapshot};
use crate::report::Ending;

/// Silence means something only after this many sends: at one a second nothing may come back for seconds.
const MIN_SENDS: u64 = 10;

/// Watches a run from second to second.
#[derive(Debug)]
pub(super) struct Watch {
    timeout_ns: u64,
    answers_expected: bool,
    /// When something last came back, or left.
    heard_ns: u64,
    spoken_ns: u64,
    /// Sent since something came back; not sent since something was.
    unheard: u64,
    unspoken: u64,
}

impl Watch {
    /// Before `start_ns` nothing is watched; a `timeout` of 0 has no end.
    pub(super) fn new(timeout: Duration, answers_expected: bool, start_ns: u64) -> Watch {
        let timeout_ns = match timeout.as_nanos() as u64 {
            0 => u64::MAX,
            timeout_ns => timeout_ns,
        };
        Watch {
            timeout_ns,
            answers_expected,
            heard_ns: start_ns,
            spoken_ns: start_ns,
            unheard: 0,
            unspoken: 0,
        }
    }

    /// Records the events until `now_ns`, and how many of the sent datagrams the kernel `dropped`. Returns how the run
    /// has ended, if it has.
    pub(super) fn note(&mut self, change: &Snapshot, dropped: u64, now_ns: u64) -> Option<Ending> {
        let answers = [
            Counter::Received,
            Counter::Duplicate,
            Counter::Failed,
            Counter::Heard,
        ];
        let sent = change.get(Counter::Sent).saturating_sub(dropped);
        self.unheard += sent;
        self.unspoken += change.get(Counter::NotSent) + dropped;
        if answers.iter().any(|&counter| change.get(counter) > 0) {
            (self.heard_ns, self.unheard) = (now_ns, 0);
        }
        if sent > 0 {
            (self.spoken_ns, self.unspoken) = (now_ns, 0);
        }
        let long_ago = |since_ns: u64| now_ns.saturating_sub(since_ns) >= self.timeout_ns;
        if long_ago(self.spoken_ns) && self.unspoken >= MIN_SENDS {
            return Some(Ending::CannotSend);
        }
        let silent = long_ago(self.heard_ns) && self.unheard >= MIN_SENDS;
        (self.answers_expected && silent).then_some(Ending::ServerSilent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Counters;

    const SECOND: u64 = 1_000_000_000;

    /// Plays one change a second and returns the second in which the run ended.
    fn ends(watch: &mut Watch, changes: &[(Counter, u64)], seconds: u64) -> Option<(u64, Ending)> {
        ends_with_drops(watch, changes, 0, seconds)
    }

    fn ends_with_drops(
        watch: &mut Watch,
        changes: &[(Counter, u64)],
        dropped: u64,
        seconds: u64,
    ) -> Option<(u64, Ending)> {
        (1..=seconds).find_map(|second| {
            let counters = Counters::new();
            for &(counter, amount) in changes {
                counters.add(counter, amount);
            }
            let ending = watch.note(&Snapshot::of([&counters]), dropped, second * SECOND)?;
            Some((second, ending))
        })
    }

    fn watch(answers: bool) -> Watch {
        Watch::new(Duration::from_secs(3), answers, 0)
    }

    #[test]
    fn a_silent_server_is_noticed_after_three_seconds() {
        let silent = [(Counter::Sent, 100)];
        assert_eq!(
            ends(&mut watch(true), &silent, 9),
            Some((3, Ending::ServerSilent))
        );
        assert_eq!(ends(&mut watch(false), &silent, 9), None);
    }

    #[test]
    fn a_server_that_answers_anything_at_all_is_not_silent() {
        for counter in [
            Counter::Received,
            Counter::Failed,
            Counter::Duplicate,
            Counter::Heard,
        ] {
            let changes = [(Counter::Sent, 100), (counter, 1)];
            assert_eq!(ends(&mut watch(true), &changes, 9), None);
        }
    }

    #[test]
    fn a_slow_schedule_is_no_silence() {
        let slow = [(Counter::Sent, 1)];
        assert_eq!(
            ends(&mut watch(true), &slow, 30),
            Some((10, Ending::ServerSilent))
        );
    }

    #[test]
    fn a_machine_that_cannot_send_is_noticed() {
        let stuck = [(Counter::NotSent, 100)];
        assert_eq!(
            ends(&mut watch(false), &stuck, 9),
            Some((3, Ending::CannotSend))
        );
    }

    #[test]
    fn datagrams_dropped_by_the_kernel_count_as_not_sent() {
        let sent = [(Counter::Sent, 100)];
        assert_eq!(
            ends_with_drops(&mut watch(true), &sent, 100, 9),
            Some((3, Ending::CannotSend))
        );
        assert_eq!(
            ends_with_drops(&mut watch(true), &sent, 50, 9),
            Some((3, Ending::ServerSilent))
        );
    }
}
