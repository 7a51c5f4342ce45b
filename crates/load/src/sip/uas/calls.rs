//! INVITEs that were answered and not acknowledged yet.

use std::collections::HashMap;
use std::net::SocketAddr;

use timers::{Mono, Wheel};

use crate::sip::timers::{GIVE_UP_NS, T1_NS, T2_NS};

/// Resolution of the timers.
const TICK_NS: u64 = 1_000_000;

/// A call that waits for its ACK. Its buffers are used again for another.
#[derive(Debug)]
struct Call {
    key: u64,
    link: u32,
    to: SocketAddr,
    /// The 180, until the 200 has left.
    early: Vec<u8>,
    answer: Vec<u8>,
    answered: bool,
    interval_ns: u64,
    give_up_ns: u64,
}

/// What is to be sent for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DueMessage<'a> {
    pub(super) link: u32,
    pub(super) to: SocketAddr,
    pub(super) message: &'a [u8],
    /// It left before.
    pub(super) again: bool,
}

/// All calls of a worker, by a hash of what an INVITE and its ACK have in common.
#[derive(Debug)]
pub(super) struct Calls {
    places: HashMap<u64, u32>,
    calls: Vec<Call>,
    free: Vec<u32>,
    wheel: Wheel<TICK_NS>,
    /// Given up since it was last asked.
    pub(super) unacknowledged: u64,
}

impl Calls {
    pub(super) fn new() -> Calls {
        Calls {
            places: HashMap::new(),
            calls: Vec::new(),
            free: Vec::new(),
            wheel: Wheel::new(),
            unacknowledged: 0,
        }
    }

    /// What was last sent for this INVITE, if it is known.
    pub(super) fn repeat(&self, key: u64) -> Option<DueMessage<'_>> {
        let call = &self.calls[*self.places.get(&key)? as usize];
        let message = if call.answered {
            &call.answer
        } else {
            &call.early
        };
        Some(DueMessage {
            link: call.link,
            to: call.to,
            message,
            again: true,
        })
    }

    /// Remembers a call whose 180 has just left, and whose 200 leaves at `answer_ns`: 0 if it has left as well.
    pub(super) fn open(
        &mut self,
        key: u64,
        (link, to): (u32, SocketAddr),
        (early, answer): (&[u8], &[u8]),
        answer_ns: u64,
        now_ns: u64,
    ) {
        let place = self.allocate_slot(to);
        let call = &mut self.calls[place as usize];
        (call.key, call.link, call.to) = (key, link, to);
        call.early.clear();
        call.early.extend_from_slice(early);
        call.answer.clear();
        call.answer.extend_from_slice(answer);
        call.answered = answer_ns == 0;
        call.interval_ns = T1_NS;
        call.give_up_ns = now_ns.max(answer_ns) + GIVE_UP_NS;
        let first = if call.answered {
            now_ns + T1_NS
        } else {
            answer_ns
        };
        self.wheel.set(place, Mono(first));
        self.places.insert(key, place);
    }

    fn allocate_slot(&mut self, to: SocketAddr) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.calls.push(Call {
                key: 0,
                link: 0,
                to,
                early: Vec::new(),
                answer: Vec::new(),
                answered: false,
                interval_ns: 0,
                give_up_ns: 0,
            });
            self.calls.len() as u32 - 1
        })
    }

    /// Ends a call that rings: its INVITE is answered with 487, until the ACK comes. `None` if it does not ring.
    pub(super) fn cancel(&mut self, key: u64, now_ns: u64) -> Option<DueMessage<'_>> {
        let place = *self.places.get(&key)?;
        let call = &mut self.calls[place as usize];
        if call.answered {
            return None;
        }
        call.answered = true;
        // The refusal has the lines of the 180, whose start line ends at the first line end.
        let lines = memchr::memchr(b'\n', &call.early).map_or(0, |end| end + 1);
        call.answer.clear();
        call.answer
            .extend_from_slice(b"SIP/2.0 487 Request Terminated\r\n");
        call.answer.extend_from_slice(&call.early[lines..]);
        call.give_up_ns = now_ns + GIVE_UP_NS;
        // RFC 3261 §17.2.1: timer G doubles from T1 up to T2.
        call.interval_ns = 2 * T1_NS;
        self.wheel.set(place, Mono(now_ns + T1_NS));
        let call = &self.calls[place as usize];
        Some(DueMessage {
            link: call.link,
            to: call.to,
            message: &call.answer,
            again: false,
        })
    }

    /// Its ACK came.
    pub(super) fn close(&mut self, key: u64) {
        let Some(place) = self.places.remove(&key) else {
            return;
        };
        self.wheel.remove(place);
        self.free.push(place);
    }

    /// The next response that is due by now.
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<DueMessage<'_>> {
        while let Some(place) = self.wheel.pop_due(Mono(now_ns)) {
            let call = &mut self.calls[place as usize];
            if now_ns >= call.give_up_ns {
                let key = call.key;
                self.unacknowledged += 1;
                self.close(key);
                continue;
            }
            let again = std::mem::replace(&mut call.answered, true);
            self.wheel.set(place, Mono(now_ns + call.interval_ns));
            call.interval_ns = (call.interval_ns * 2).min(T2_NS);
            let call = &self.calls[place as usize];
            return Some(DueMessage {
                link: call.link,
                to: call.to,
                message: &call.answer,
                again,
            });
        }
        None
    }

    /// When [`Calls::pop_due`] has something to do.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.wheel.next_deadline().map(|at| at.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn to() -> (u32, SocketAddr) {
        (3, "127.0.0.1:5060".parse().unwrap())
    }

    #[test]
    fn an_answer_is_repeated_until_its_ack_comes() {
        let mut calls = Calls::new();
        calls.open(7, to(), (b"180", b"200"), 0, 0);
        assert!(calls.pop_due(499 * MS).is_none());
        let mut at = 500;
        for step in [1000, 2000, 4000, 4000] {
            let due = calls.pop_due(at * MS).unwrap();
            assert!(due.again && due.message == b"200", "{at}");
            assert!(calls.pop_due(at * MS).is_none());
            at += step;
        }
        calls.close(7);
        assert!(calls.repeat(7).is_none() && calls.pop_due(60_000 * MS).is_none());
        assert!(calls.wheel.is_empty());
    }

    #[test]
    fn it_rings_first_if_it_is_to() {
        let mut calls = Calls::new();
        calls.open(7, to(), (b"180", b"200"), 100 * MS, 0);
        assert_eq!(calls.repeat(7).unwrap().message, b"180");
        let due = calls.pop_due(100 * MS).unwrap();
        assert!(!due.again && due.message == b"200");
        assert_eq!(calls.repeat(7).unwrap().message, b"200");
    }

    #[test]
    fn a_call_that_rings_is_ended_by_a_cancel_rfc3261_9_2() {
        let mut calls = Calls::new();
        let early = b"SIP/2.0 180 Ringing\r\nTo: x\r\n\r\n";
        calls.open(7, to(), (early, b"200"), 10_000 * MS, 0);
        let refusal = b"SIP/2.0 487 Request Terminated\r\nTo: x\r\n\r\n";
        assert_eq!(calls.cancel(7, 5 * MS).unwrap().message, refusal);
        assert!(calls.cancel(7, 6 * MS).is_none() && calls.cancel(8, 6 * MS).is_none());
        let due = calls.pop_due(505 * MS).unwrap();
        assert!(due.again && due.message == refusal);
        calls.close(7);
        assert!(calls.pop_due(60_000 * MS).is_none());
    }

    #[test]
    fn a_call_without_an_ack_ends_after_64_t1() {
        let mut calls = Calls::new();
        calls.open(7, to(), (b"180", b"200"), 0, 0);
        let mut now = 0;
        while calls.next_deadline().is_some() {
            now += 100 * MS;
            while calls.pop_due(now).is_some() {}
        }
        assert!((32_000..=36_100).contains(&(now / MS)), "{now}");
        assert_eq!(calls.unacknowledged, 1);
    }
}
