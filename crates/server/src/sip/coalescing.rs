//! Receive coalescing: under load, the worker reads a UDP socket at intervals, and not when a datagram comes.
//!
//! Network cards coalesce interrupts for the same reason: a wake-up, `epoll_wait` and `recvmmsg` cost more than a small
//! message. At 10,000 registrations per second over loopback, with digest, each took 56 us of processor time without
//! coalescing. With intervals of 100, 250 and 500 us it took 46, 39 and 35 us.
//!
//! Only sockets of SIP over UDP are coalesced, so media never waits. While a socket is coalesced, the poller does not
//! watch it.

use sip::Mono;
use std::time::Duration;

/// The time between two reads of a coalesced socket. A message waits for this time at most, and for the precision of
/// the timer (50 us). SIP's own timers begin at 500 ms (RFC 3261 §17.1.1.1).
const READ_INTERVAL: Duration = Duration::from_micros(250);

/// The rate is measured over at least this time: 40 intervals.
const MEASURED_TIME: Duration = Duration::from_millis(10);

/// Coalescing begins at this number of datagrams per interval: then it halves the number of wake-ups.
const MIN_TO_BEGIN: u64 = 2;

/// Below this number it ends: then it would only add wake-ups.
const MIN_TO_CONTINUE: u64 = 1;

/// One UDP socket.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Coalescing {
    is_on: bool,
    /// When the socket is read again.
    due: Mono,
    /// The rate is measured since this time, and has this many datagrams so far.
    since: Mono,
    datagrams: u64,
}

/// One read of a socket.
#[derive(Debug, Clone, Copy)]
pub(super) struct SocketRead {
    /// The start of the read.
    pub(super) at: Mono,
    pub(super) datagrams: u64,
    /// No datagram is left.
    pub(super) is_empty: bool,
    /// The worker is overloaded. Then it must not leave messages in the socket.
    pub(super) is_overloaded: bool,
}

impl Coalescing {
    /// When to read the socket, if it is coalesced.
    pub(super) fn deadline(&self) -> Option<Mono> {
        self.is_on.then_some(self.due)
    }

    /// Notes that the socket was read. Returns whether to begin (`true`) or to end (`false`) coalescing.
    pub(super) fn was_read(&mut self, read: &SocketRead) -> Option<bool> {
        self.due = if read.is_empty {
            read.at.plus(READ_INTERVAL)
        } else {
            read.at
        };
        self.datagrams += read.datagrams;
        let measured = read.at.since(self.since);
        if measured < MEASURED_TIME && !(self.is_on && read.is_overloaded) {
            return None;
        }
        let intervals = (measured.as_nanos() / READ_INTERVAL.as_nanos()) as u64;
        let least = if self.is_on {
            MIN_TO_CONTINUE
        } else {
            MIN_TO_BEGIN
        };
        let was_on = self.is_on;
        self.is_on = self.datagrams >= least * intervals && !read.is_overloaded;
        (self.since, self.datagrams) = (read.at, 0);
        (self.is_on != was_on).then_some(self.is_on)
    }

    /// Ends coalescing.
    pub(super) fn reset(&mut self) {
        *self = Coalescing::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A read that empties the socket, without an overload.
    fn read(at: Mono, datagrams: u64) -> SocketRead {
        SocketRead {
            at,
            datagrams,
            is_empty: true,
            is_overloaded: false,
        }
    }

    /// Reads every `period` for 100 ms, and gets `datagrams` each time. Returns what changed, and when.
    fn run(
        coalescing: &mut Coalescing,
        start: Mono,
        (period, datagrams): (Duration, u64),
    ) -> Vec<(Duration, bool)> {
        let mut changes = Vec::new();
        let mut now = start;
        while now.since(start) < Duration::from_millis(100) {
            now = now.plus(period);
            if let Some(is_on) = coalescing.was_read(&read(now, datagrams)) {
                changes.push((now.since(start), is_on));
            }
        }
        changes
    }

    #[test]
    fn it_begins_at_8_000_datagrams_per_second_and_ends_below_4_000() {
        let mut coalescing = Coalescing::default();
        let start = Mono(1_000_000_000);
        let calm = run(&mut coalescing, start, (Duration::from_micros(130), 1));
        assert_eq!((calm, coalescing.deadline()), (Vec::new(), None));
        let start = start.plus(Duration::from_millis(100));
        let loaded = run(&mut coalescing, start, (Duration::from_micros(120), 1));
        assert!(matches!(loaded[..], [(after, true)] if after <= MEASURED_TIME * 2));
        // Now the worker reads when the socket is due.
        let start = start.plus(Duration::from_millis(100));
        let coalesced = run(&mut coalescing, start, (READ_INTERVAL, 1));
        assert_eq!(coalesced, []);
        let start = start.plus(Duration::from_millis(100));
        let below = run(&mut coalescing, start, (READ_INTERVAL * 2, 1));
        assert!(matches!(below[..], [(after, false)] if after <= MEASURED_TIME * 2));
        assert_eq!(coalescing.deadline(), None);
    }

    #[test]
    fn a_burst_after_silence_does_not_begin_it() {
        let mut coalescing = Coalescing::default();
        let burst = read(Mono(3_600_000_000_000), 64);
        assert_eq!(coalescing.was_read(&burst), None);
    }

    #[test]
    fn a_socket_with_more_datagrams_is_read_again_at_once() {
        let mut coalescing = Coalescing::default();
        run(&mut coalescing, Mono(0), (READ_INTERVAL, 16));
        let now = Mono(100_100_000);
        coalescing.was_read(&SocketRead {
            is_empty: false,
            ..read(now, 64)
        });
        assert_eq!(coalescing.deadline(), Some(now));
        coalescing.was_read(&read(now, 3));
        assert_eq!(coalescing.deadline(), Some(now.plus(READ_INTERVAL)));
        coalescing.reset();
        assert_eq!(coalescing.deadline(), None);
    }

    #[test]
    fn an_overload_ends_it_at_once() {
        let mut coalescing = Coalescing::default();
        let begun = run(&mut coalescing, Mono(0), (READ_INTERVAL, 16));
        assert!(matches!(begun[..], [(_, true)]));
        let now = Mono(100_100_000);
        let overloaded = SocketRead {
            is_overloaded: true,
            ..read(now, 16)
        };
        assert_eq!(coalescing.was_read(&overloaded), Some(false));
        assert_eq!(coalescing.was_read(&overloaded), None);
        let again = run(&mut coalescing, now, (READ_INTERVAL, 16));
        assert!(matches!(again[..], [(after, true)] if after <= MEASURED_TIME * 2));
    }
}
