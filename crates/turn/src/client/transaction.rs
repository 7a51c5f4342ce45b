//! One request and the wait for its response.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use stun::{AddressFamily, ChannelNumber, ConnectionId, Method, TransactionId};

use super::allocation::AllocateOptions;
use super::config::Retransmission;
use super::error::{Discarded, Timing};
use crate::Mono;

/// What a request is for; enough to build it again with another nonce.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Binding,
    Allocate(AllocateOptions),
    Refresh {
        lifetime_s: Option<u32>,
        family: Option<AddressFamily>,
    },
    /// A Refresh request with the allocation's ticket (RFC 8016).
    Move,
    /// One to [`MAX_PERMITTED_AT_ONCE`](super::permission::MAX_PERMITTED_AT_ONCE) addresses.
    CreatePermission(Vec<IpAddr>),
    ChannelBind {
        channel: ChannelNumber,
        peer: SocketAddr,
    },
    Connect {
        peer: SocketAddr,
    },
    ConnectionBind {
        id: ConnectionId,
    },
}

impl Operation {
    pub(super) fn method(&self) -> Method {
        match self {
            Operation::Binding => Method::BINDING,
            Operation::Allocate(_) => Method::ALLOCATE,
            Operation::Refresh { .. } | Operation::Move => Method::REFRESH,
            Operation::CreatePermission(_) => Method::CREATE_PERMISSION,
            Operation::ChannelBind { .. } => Method::CHANNEL_BIND,
            Operation::Connect { .. } => Method::CONNECT,
            Operation::ConnectionBind { .. } => Method::CONNECTION_BIND,
        }
    }
}

/// A request that waits for its response.
#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) id: TransactionId,
    pub(super) operation: Operation,
    /// The request's bytes: a retransmission is the same message.
    pub(super) request: Box<[u8]>,
    /// Whether the request carries credentials, so that its response must prove knowledge of them.
    pub(super) signed: bool,
    /// Whether the request shall be sent at the next opportunity.
    pub(super) due: bool,
    /// How many 401 and 438 responses this operation has had.
    pub(super) challenges: u8,
    /// The last response that was discarded as if it had never come.
    pub(super) discarded: Option<Discarded>,
    pub(super) started: Mono,
    pub(super) deadline: Mono,
    transmissions: u8,
    wait: Duration,
    last_wait: Duration,
    max_transmissions: u8,
}

/// What the end of a transaction's deadline means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TimeoutAction {
    /// The request was marked for another transmission.
    Repeated,
    /// The transaction has failed.
    TimedOut,
}

/// When a transaction is repeated: [`Retransmission`] with the timeout that fits the path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    first: Duration,
    last: Duration,
    transmissions: u8,
}

impl Schedule {
    pub(super) fn new(settings: &Retransmission, timeout: Duration, reliable: bool) -> Schedule {
        if reliable {
            // RFC 8489 §6.2.2: no retransmissions, one timeout.
            let wait = settings.reliable_timeout;
            return Schedule {
                first: wait,
                last: wait,
                transmissions: 1,
            };
        }
        Schedule {
            first: timeout,
            last: timeout * u32::from(settings.last_wait),
            transmissions: settings.transmissions.max(1),
        }
    }
}

impl Transaction {
    /// A transaction whose request is due at once.
    pub(super) fn start(
        now: Mono,
        id: TransactionId,
        operation: Operation,
        request: Box<[u8]>,
        schedule: Schedule,
    ) -> Transaction {
        let wait = if schedule.transmissions == 1 {
            schedule.last
        } else {
            schedule.first
        };
        Transaction {
            id,
            operation,
            request,
            signed: false,
            due: true,
            challenges: 0,
            discarded: None,
            started: now,
            deadline: now.plus(wait),
            transmissions: 1,
            wait: schedule.first,
            last_wait: schedule.last,
            max_transmissions: schedule.transmissions,
        }
    }

    /// RFC 8489 §6.2.1: the wait doubles after each retransmission; after the last it is Rm times the first timeout.
    pub(super) fn retransmit_or_time_out(&mut self, now: Mono) -> TimeoutAction {
        if self.transmissions >= self.max_transmissions {
            return TimeoutAction::TimedOut;
        }
        self.transmissions += 1;
        self.due = true;
        self.wait = self.wait.saturating_mul(2);
        let last = self.transmissions == self.max_transmissions;
        // From now, not from the deadline: after the embedder has stalled, there must be no burst.
        self.deadline = now.plus(if last { self.last_wait } else { self.wait });
        TimeoutAction::Repeated
    }

    /// How long it has taken until `now`.
    pub(super) fn timing(&self, now: Mono) -> Timing {
        Timing {
            elapsed: now.since(self.started),
            transmissions: self.transmissions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transaction(settings: Retransmission, reliable: bool) -> Transaction {
        let schedule = Schedule::new(&settings, settings.timeout, reliable);
        let id = TransactionId([1; 12]);
        Transaction::start(Mono(0), id, Operation::Binding, Box::default(), schedule)
    }

    fn run(mut transaction: Transaction) -> (Vec<u64>, u64) {
        let mut sent_ms = vec![0];
        loop {
            let now = transaction.deadline;
            match transaction.retransmit_or_time_out(now) {
                TimeoutAction::Repeated => sent_ms.push(now.0 / 1_000_000),
                TimeoutAction::TimedOut => return (sent_ms, now.0 / 1_000_000),
            }
        }
    }

    #[test]
    fn requests_leave_at_the_times_of_rfc_8489() {
        let (sent, failed) = run(transaction(Retransmission::default(), false));
        assert_eq!(sent, [0, 500, 1500, 3500, 7500, 15_500, 31_500]);
        assert_eq!(failed, 39_500);
    }

    #[test]
    fn a_reliable_transport_sends_once() {
        assert_eq!(
            run(transaction(Retransmission::default(), true)),
            (vec![0], 39_500)
        );
    }

    #[test]
    fn a_single_transmission_waits_the_last_wait() {
        let settings = Retransmission {
            transmissions: 1,
            last_wait: 4,
            ..Retransmission::default()
        };
        assert_eq!(run(transaction(settings, false)), (vec![0], 2000));
    }

    #[test]
    fn a_late_timer_does_not_cause_a_burst() {
        let mut late = transaction(Retransmission::default(), false);
        let now = Mono::default().plus_secs(20);
        assert_eq!(late.retransmit_or_time_out(now), TimeoutAction::Repeated);
        assert_eq!(late.deadline, now.plus_secs(1));
    }
}
