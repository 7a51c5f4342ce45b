//! Receive coalescing: under load, the worker reads a UDP socket with pauses, and not when a datagram comes.
//!
//! Network cards coalesce interrupts for the same reason: a wake-up, `epoll_wait` and `recvmmsg` cost more than a small
//! message. A prototype was measured at 10,000 registrations per second over loopback, with digest. Each took 56 us of
//! processor time without coalescing, and 46, 39 and 35 us with pauses of 100, 250 and 500 us.
//!
//! Only sockets of SIP over UDP are coalesced. While a socket is coalesced, epoll reports only its errors, and not its
//! datagrams.

use sip::Mono;
use std::time::Duration;

/// How long the worker sleeps before it reads a coalesced socket again. The timeout is computed from the time of the last
/// wake-up. It begins to run after the worker has handled its messages. If the last read did not empty the socket, there
/// is no pause. If something else wakes the worker, the time counts from the start of the read.
///
/// A message waits for the pause, for the precision of the timer (50 us) and for the messages before it. If the kernel or
/// a filter of system calls has no `epoll_pwait2`, the pause is 1 ms. SIP's own timers begin at 500 ms
/// (RFC 3261 §17.1.1.1).
const READ_PAUSE: Duration = Duration::from_micros(250);

/// The rate is measured over at least this time: 40 pauses.
const MIN_WINDOW: Duration = Duration::from_millis(10);

/// Coalescing begins at this many datagrams per pause. If each of them woke the worker, coalescing then halves the number
/// of wake-ups.
const MIN_TO_BEGIN: u64 = 2;

/// Coalescing ends below this many datagrams per pause, because it would add wake-ups.
const MIN_TO_CONTINUE: u64 = 1;

/// The state of one UDP socket.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Coalescing {
    is_active: bool,
    /// When the socket is read again.
    due: Mono,
    /// The start of the current measurement window.
    window_start: Mono,
    /// Datagrams received in this window.
    window_datagrams: u64,
}

/// One read of a socket.
#[derive(Debug, Clone, Copy)]
pub(super) struct SocketRead {
    /// When the worker began to read the socket.
    pub(super) started: Mono,
    pub(super) datagrams: u64,
    /// The last receive call returned less than a full batch.
    pub(super) has_read_all: bool,
    /// The worker refuses requests because messages wait too long.
    pub(super) is_overloaded: bool,
}

/// What changes for a socket after a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Begin,
    End,
}

impl Coalescing {
    /// When to read the socket, if it is coalesced.
    pub(super) fn deadline(&self) -> Option<Mono> {
        self.is_active.then_some(self.due)
    }

    /// Records a read. Returns whether coalescing begins or ends; `None` if nothing changes.
    pub(super) fn note_read(&mut self, read: &SocketRead) -> Option<Change> {
        self.due = if read.has_read_all {
            read.started.plus(READ_PAUSE)
        } else {
            read.started
        };
        self.window_datagrams += read.datagrams;
        let window = read.started.since(self.window_start);
        if window < MIN_WINDOW && !(self.is_active && read.is_overloaded) {
            return None;
        }
        let pauses = (window.as_nanos() / READ_PAUSE.as_nanos()) as u64;
        let per_pause = if self.is_active {
            MIN_TO_CONTINUE
        } else {
            MIN_TO_BEGIN
        };
        let was_active = self.is_active;
        self.is_active = self.window_datagrams >= per_pause * pauses && !read.is_overloaded;
        (self.window_start, self.window_datagrams) = (read.started, 0);
        match (was_active, self.is_active) {
            (false, true) => Some(Change::Begin),
            (true, false) => Some(Change::End),
            _ => None,
        }
    }

    /// Ends coalescing.
    pub(super) fn reset(&mut self) {
        *self = Coalescing::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A read of all datagrams, without an overload.
    fn read(started: Mono, datagrams: u64) -> SocketRead {
        SocketRead {
            started,
            datagrams,
            has_read_all: true,
            is_overloaded: false,
        }
    }

    /// Reads every `period` for 100 ms, and gets `datagrams` each time. Returns what changed, and when.
    fn run(
        coalescing: &mut Coalescing,
        start: Mono,
        (period, datagrams): (Duration, u64),
    ) -> Vec<(Duration, Change)> {
        let mut changes = Vec::new();
        let mut now = start;
        while now.since(start) < Duration::from_millis(100) {
            now = now.plus(period);
            if let Some(change) = coalescing.note_read(&read(now, datagrams)) {
                changes.push((now.since(start), change));
            }
        }
        changes
    }

    #[test]
    fn coalescing_begins_at_8000_datagrams_per_second_and_ends_below_4000() {
        let mut coalescing = Coalescing::default();
        let start = Mono(1_000_000_000);
        let calm = run(&mut coalescing, start, (Duration::from_micros(130), 1));
        assert_eq!((calm, coalescing.deadline()), (Vec::new(), None));
        let start = start.plus(Duration::from_millis(100));
        let loaded = run(&mut coalescing, start, (Duration::from_micros(120), 1));
        assert!(matches!(loaded[..], [(after, Change::Begin)] if after <= MIN_WINDOW * 2));
        // Now the worker reads when the socket is due.
        let start = start.plus(Duration::from_millis(100));
        let coalesced = run(&mut coalescing, start, (READ_PAUSE, 1));
        assert_eq!(coalesced, []);
        let start = start.plus(Duration::from_millis(100));
        let below = run(&mut coalescing, start, (Duration::from_micros(260), 1));
        assert!(matches!(below[..], [(after, Change::End)] if after <= MIN_WINDOW * 2));
        assert_eq!(coalescing.deadline(), None);
    }

    #[test]
    fn coalescing_does_not_begin_with_a_burst_after_silence() {
        let mut coalescing = Coalescing::default();
        let burst = read(Mono(3_600_000_000_000), 64);
        assert_eq!(coalescing.note_read(&burst), None);
    }

    #[test]
    fn a_socket_with_more_datagrams_is_read_again_at_once() {
        let mut coalescing = Coalescing::default();
        run(&mut coalescing, Mono(0), (READ_PAUSE, 16));
        let now = Mono(100_100_000);
        coalescing.note_read(&SocketRead {
            has_read_all: false,
            ..read(now, 64)
        });
        assert_eq!(coalescing.deadline(), Some(now));
        coalescing.note_read(&read(now, 3));
        assert_eq!(coalescing.deadline(), Some(now.plus(READ_PAUSE)));
        coalescing.reset();
        assert_eq!(coalescing.deadline(), None);
    }

    #[test]
    fn an_overload_ends_coalescing_at_once() {
        let mut coalescing = Coalescing::default();
        let begun = run(&mut coalescing, Mono(0), (READ_PAUSE, 16));
        assert!(matches!(begun[..], [(_, Change::Begin)]));
        let now = Mono(100_100_000);
        let overloaded = SocketRead {
            is_overloaded: true,
            ..read(now, 16)
        };
        assert_eq!(coalescing.note_read(&overloaded), Some(Change::End));
        assert_eq!(coalescing.note_read(&overloaded), None);
        let again = run(&mut coalescing, now, (READ_PAUSE, 16));
        assert!(matches!(again[..], [(after, Change::Begin)] if after <= MIN_WINDOW * 2));
    }
}
