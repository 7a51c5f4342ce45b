//! The four transaction machines of RFC 3261 §17, one a file, as corrected by RFC 6026 and RFC 4320.
//!
//! A machine has states and times and nothing else: no bytes, no addresses, no table. The input is an event, the output
//! a [`Step`]. The engine carries it out in this order: it sends messages, informs the transaction user (TU), and ends
//! the transaction. A machine has two points in time: the next retransmission and the end of its state. The engine
//! keeps one timer per transaction, at the earlier of the two. So the number of timers equals the number of
//! transactions.

mod invite_client;
mod invite_server;
mod non_invite_client;
mod non_invite_server;

pub(crate) use invite_client::InviteClient;
pub(crate) use invite_server::InviteServer;
pub(crate) use non_invite_client::NonInviteClient;
pub(crate) use non_invite_server::NonInviteServer;

use crate::Mono;
use crate::timer::Timers;

/// What a transition asks of the engine, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct Step {
    pub(crate) send: Option<Sending>,
    pub(crate) tu_event: Option<TuEvent>,
    /// The engine releases the stored message, because only the key is needed from now on.
    pub(crate) discards: bool,
    /// The transaction is over.
    pub(crate) end: bool,
}

/// What to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// The request, as before.
    Request,
    /// The ACK for the final response just received. From then on it is what is stored.
    NewAck,
    /// The stored ACK again.
    Ack,
    /// A CANCEL for the request, as a transaction of its own.
    Cancel,
    /// A 100, built now.
    Trying,
    /// The response given by the TU; a later retransmission sends the stored one.
    Response,
}

/// An event for the TU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TuEvent {
    /// The response that was received.
    Response,
    /// Nobody answered in time: for the TU a 408.
    Timeout,
    /// The request or response could not be sent: for the TU of a client transaction a 503.
    TransportFailed,
    /// The final response to an INVITE was never acknowledged.
    NoAck,
    /// The ACK that was received belongs to a 2xx, which is the TU's.
    Ack,
    /// The TU did not respond in time.
    Abandoned,
}

impl Step {
    pub(crate) const NOTHING: Step = Step {
        send: None,
        tu_event: None,
        discards: false,
        end: false,
    };

    const fn send(sending: Sending) -> Step {
        Step {
            send: Some(sending),
            ..Step::NOTHING
        }
    }

    const fn tu_event(telling: TuEvent) -> Step {
        Step {
            tu_event: Some(telling),
            ..Step::NOTHING
        }
    }

    const fn end() -> Step {
        Step {
            end: true,
            ..Step::NOTHING
        }
    }

    const fn and_send(mut self, sending: Sending) -> Step {
        self.send = Some(sending);
        self
    }

    const fn and_discard(mut self) -> Step {
        self.discards = true;
        self
    }

    const fn and_end(mut self) -> Step {
        self.end = true;
        self
    }
}

/// The two points in time of a machine.
#[derive(Clone, Copy, Debug)]
struct Clocks {
    /// Send again: timers A, E and G, and the 100 of a server transaction.
    again: Mono,
    /// The state ends: all the other timers.
    end: Mono,
}

impl Clocks {
    const fn ending(end: Mono) -> Clocks {
        Clocks {
            again: Mono::NEVER,
            end,
        }
    }

    /// A request has been sent: timers A and B, or E and F. The first only over unreliable transports, the second over
    /// any (RFC 3261 §17.1.1.2, §17.1.2.2).
    fn requesting(now: Mono, timers: &Timers, reliable: bool) -> Clocks {
        let again = if reliable {
            Mono::NEVER
        } else {
            now.plus(timers.t1)
        };
        Clocks {
            again,
            end: now.plus(timers.give_up()),
        }
    }

    fn next(&self) -> Mono {
        self.again.min(self.end)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A point this many milliseconds after the start of a test.
    pub(super) fn at(ms: u64) -> Mono {
        Mono(0).plus(Duration::from_millis(ms))
    }

    /// Fires the timers of a state machine until it has terminated, or until `until`. Returns each step with its time
    /// in milliseconds.
    pub(super) fn run(
        until: u64,
        mut next: impl FnMut() -> Mono,
        mut fire: impl FnMut(Mono) -> Step,
    ) -> Vec<(u64, Step)> {
        // Both closures need the machine: callers pass it in a RefCell.
        let mut log = Vec::new();
        loop {
            let due = next();
            if due == Mono::NEVER || due > at(until) {
                return log;
            }
            let step = fire(due);
            log.push((due.0 / 1_000_000, step));
            if step.end {
                return log;
            }
        }
    }
}
