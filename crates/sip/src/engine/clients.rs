//! The client transactions: what each holds, and where they are.

use super::key::ClientKey;
use super::output::Mark;
use super::slab::Slab;
use super::store::Cell;
use crate::flow::{ConnectionKey, Destination};
use crate::timer::{Timers, Wheel};
use crate::transaction::{InviteClient, NonInviteClient, Step};
use crate::{Method, Mono};

#[derive(Debug)]
pub(super) enum Machine {
    Invite(InviteClient),
    Other(NonInviteClient),
}

/// A client transaction.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) machine: Machine,
    /// A hash of the request's method. A response must have the same method in CSeq.
    pub(super) method: u32,
    pub(super) to: Destination,
    /// The connection the request went over, or must go over.
    pub(super) connection: Option<ConnectionKey>,
    /// The TU has named the connection, so no other connection is used.
    pub(super) is_named: bool,
    /// It fails with its connection, also after a provisional response: its other side is reached by no other way.
    pub(super) ends_with_connection: bool,
    /// The connection counts this transaction.
    pub(super) is_counted: bool,
    /// The neighbours, by slot, in the list of the transactions whose request went over the same connection.
    pub(super) older: Option<u32>,
    pub(super) newer: Option<u32>,
    pub(super) mark: Option<Mark>,
    /// The request, later the ACK. It is kept as long as it may be retransmitted, or a CANCEL may be made from it.
    pub(super) message: Option<Cell>,
    /// In an INVITE's transaction, the slot of its CANCEL's transaction. In a CANCEL's, the slot of the INVITE's.
    pub(super) partner: Option<ClientKey>,
    pub(super) is_cancel: bool,
    /// The request has the Via of another element below ours, so its responses have it, too.
    pub(super) is_forwarded: bool,
    /// It went over TCP for its size alone, and may go over UDP where there is no TCP (RFC 3261 §18.1.1).
    pub(super) may_be_udp: bool,
}

/// All client transactions.
#[derive(Debug)]
pub(super) struct Clients {
    pub(super) slab: Slab<Client>,
    pub(super) wheel: Wheel,
}

impl Clients {
    pub(super) const fn new() -> Clients {
        Clients {
            slab: Slab::new(),
            wheel: Wheel::new(),
        }
    }

    /// As [`Servers::release_memory`](super::servers::Servers::release_memory).
    pub(super) fn release_memory(&mut self, most: usize) -> usize {
        self.slab.release_memory(most) + self.wheel.release_memory(self.slab.end())
    }
}

impl Machine {
    pub(super) fn start(now: Mono, timers: &Timers, method: Method<'_>, reliable: bool) -> Machine {
        match method {
            Method::Invite => Machine::Invite(InviteClient::start(now, timers, reliable)),
            _ => Machine::Other(NonInviteClient::start(now, timers, reliable)),
        }
    }

    pub(super) fn deadline(&self) -> Mono {
        match self {
            Machine::Invite(machine) => machine.deadline(),
            Machine::Other(machine) => machine.deadline(),
        }
    }

    pub(super) fn response(&mut self, now: Mono, timers: &Timers, code: u16) -> Step {
        match self {
            Machine::Invite(machine) => machine.response(now, timers, code),
            Machine::Other(machine) => machine.response(now, timers, code),
        }
    }

    pub(super) fn fire(&mut self, now: Mono, timers: &Timers) -> Step {
        match self {
            Machine::Invite(machine) => machine.fire(now, timers),
            Machine::Other(machine) => machine.fire(now, timers),
        }
    }

    pub(super) fn transport_failed(&mut self) -> Step {
        match self {
            Machine::Invite(machine) => machine.transport_failed(),
            Machine::Other(machine) => machine.transport_failed(),
        }
    }

    pub(super) fn flow_failed(&mut self) -> Step {
        match self {
            Machine::Invite(machine) => machine.flow_failed(),
            Machine::Other(machine) => machine.transport_failed(),
        }
    }
}
