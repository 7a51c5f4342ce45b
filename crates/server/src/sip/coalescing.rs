//! Receive coalescing: under load, the worker reads a UDP socket at intervals, and not when a datagram comes.
//!
//! Network cards coalesce interrupts for the same reason: a wake-up, `epoll_wait` and `recvmmsg` cost more than a small
//! message. At 10,000 registrations per second over loopback, with digest, each took 56 us of processor time without
//! coalescing. With pauses of 100, 250 and 500 us it took 46, 39 and 35 us.
//!
//! Only sockets of SIP over UDP are coalesced. While a socket is coalesced, epoll reports only its errors, and not its
//! datagrams.

use sip::Mono;
use std::time::Duration;

/// The worker pauses for this time before it reads a coalesced socket again. A message waits for the pause, for the
/// precision of the timer (50 us) and for the messages before it. Without `epoll_pwait2` (before Linux 5.11) the pause
/// is 1 ms. SIP's own timers begin at 500 ms (RFC 3261 §17.1.1.1).
const READ_PAUSE: Duration = Duration::from_micros(250);

/// The rate is measured over at least this time: 40 pauses.
const MIN_WINDOW: Duration = Duration::from_millis(10);

/// Coalescing begins at this many datagrams per pause. It then at least halves the number of wake-ups.
const MIN_TO_BEGIN: u64 = 2;

/// Coalescing ends below this many datagrams per pause, because it would add wake-ups.
const MIN_TO_CONTINUE: u64 = 1;

/// The state of one UDP socket.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Coalescing {
    is_on: bool,
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
    /// The start of the wake-up.
    pub(super) started: Mono,
    pub(super) datagrams: u64,
    /// The last receive call returned less than a full batch.
    pub(super) is_empty: bool,
    /// The worker refuses requests because messages wait too long.
    pub(super) is_overloaded: bool,
}

impl Coalescing {
    /// When to read the socket, if it is coalesced.
    pub(super) fn deadline(&self) -> Option<Mono> {
        self.is_on.then_some(self.due)
    }

    /// Records a read. Returns `Some(true)` to begin coalescing, `Some(false)` to end it, and `None` for no change.
    pub(super) fn note_read(&mut self, read: &SocketRead) -> Option<bool> {
        self.due = if read.is_empty {
            read.started.plus(READ_PAUSE)
        } else {
            read.started
        };
        self.window_datagrams += read.datagrams;
        let window = read.started.since(self.window_start);
        if window < MIN_WINDOW && !(self.is_on && read.is_overloaded) {
            return None;
        }
        let pauses = (window.as_nanos() / READ_PAUSE.as_nanos()) as u64;
        let per_pause = if self.is_on {
            MIN_TO_CONTINUE
        } else {
            MIN_TO_BEGIN
        };
        let was_on = self.is_on;
        self.is_on = self.window_datagrams >= per_pause * pauses && !read.is_overloaded;
        (self.window_start, self.window_datagrams) = (read.started, 0);
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
    fn read(started: Mono, datagrams: u64) -> SocketRead {
        SocketRead {
            started,
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
            if let Some(is_on) = coalescing.note_read(&read(now, datagrams)) {
                changes.push((now.since(start), is_on));
            }
        }
        changes
    }

    #[test]
    fn it_begins_at_8_000_datagrams_per_second_and_ends_at_2_000() {
        let mut coalescing = Coalescing::default();
        let start = Mono(1_000_000_000);
        let calm = run(&mut coalescing, start, (Duration::from_micros(130), 1));
        assert_eq!((calm, coalescing.deadline()), (Vec::new(), None));
        let start = start.plus(Duration::from_millis(100));
        let loaded = run(&mut coalescing, start, (Duration::from_micros(120), 1));
        assert!(matches!(loaded[..], [(after, true)] if after <= MIN_WINDOW * 2));
        // Now the worker reads when the socket is due.
        let start = start.plus(Duration::from_millis(100));
        let coalesced = run(&mut coalescing, start, (READ_PAUSE, 1));
        assert_eq!(coalesced, []);
        let start = start.plus(Duration::from_millis(100));
        let below = run(&mut coalescing, start, (READ_PAUSE * 2, 1));
        assert!(matches!(below[..], [(after, false)] if after <= MIN_WINDOW * 2));
        assert_eq!(coalescing.deadline(), None);
    }

    #[test]
    fn a_burst_after_silence_does_not_begin_it() {
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
            is_empty: false,
            ..read(now, 64)
        });
        assert_eq!(coalescing.deadline(), Some(now));
        coalescing.note_read(&read(now, 3));
        assert_eq!(coalescing.deadline(), Some(now.plus(READ_PAUSE)));
        coalescing.reset();
        assert_eq!(coalescing.deadline(), None);
    }

    #[test]
    fn an_overload_ends_it_at_once() {
        let mut coalescing = Coalescing::default();
        let begun = run(&mut coalescing, Mono(0), (READ_PAUSE, 16));
        assert!(matches!(begun[..], [(_, true)]));
        let now = Mono(100_100_000);
        let overloaded = SocketRead {
            is_overloaded: true,
            ..read(now, 16)
        };
        assert_eq!(coalescing.note_read(&overloaded), Some(false));
        assert_eq!(coalescing.note_read(&overloaded), None);
        let again = run(&mut coalescing, now, (READ_PAUSE, 16));
        assert!(matches!(again[..], [(after, true)] if after <= MIN_WINDOW * 2));
    }
}
