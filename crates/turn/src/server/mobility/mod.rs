//! Mobility (RFC 8016): an allocation that follows its client to another 5-tuple.
//!
//! ```text
//!  Allocate with an empty MOBILITY-TICKET     ──▶ the response has a ticket
//!  Refresh with the ticket, from a new 5-tuple ──▶ the response has the next ticket; the new 5-tuple is the allocation's second one
//!  ChannelData or Send from the second 5-tuple ──▶ it is the only one
//! ```
//!
//! Requests may come from both 5-tuples. The first 5-tuple carries the data, until the client sends data from the
//! second one, or closes the connection of the first one. An allocation with a ticket whose only connection is closed
//! waits for its client until it expires. The closed connection shows the client that its address has changed.

mod refresh;
mod switch;
mod ticket;

use std::collections::BTreeMap;

use hashbrown::HashTable;
use stun::{AttributeType, ErrorCode, Message, Method, TransactionId};

use super::Server;
use super::hash::KeyedHash;
use crate::{ClientPath, FiveTuple, Mono};

pub use ticket::TicketKeys;
pub(super) use ticket::{LEN, Ticket};

/// What is kept of an allocation that has tickets.
#[derive(Debug, Default)]
struct Mobile {
    /// The serial number of the ticket that is valid now.
    serial: u32,
    /// The last Refresh request that used a ticket.
    last: Option<LastRefresh>,
    second: Option<ClientPath>,
    /// The connection of the first 5-tuple is closed. The allocation waits for its client.
    is_disconnected: bool,
    /// Where the client was when its quota was last counted; `None`: at its first 5-tuple.
    counted_at: Option<ClientPath>,
}

/// A Refresh request whose retransmissions get the same response.
#[derive(Clone, Copy, Debug)]
struct LastRefresh {
    five_tuple: FiveTuple,
    transaction_id: TransactionId,
    /// What was granted, in seconds.
    lifetime_s: u32,
    at: Mono,
}

/// All allocations that have tickets, by the index of their client.
#[derive(Debug)]
pub(super) struct Mobility {
    mobile: BTreeMap<u32, Mobile>,
    /// The second 5-tuples, and whose they are.
    second: HashTable<(FiveTuple, u32)>,
    hash: KeyedHash,
}

impl Mobility {
    pub(super) const fn new(hash: KeyedHash) -> Mobility {
        Mobility {
            mobile: BTreeMap::new(),
            second: HashTable::new(),
            hash,
        }
    }

    /// The index of the client whose second 5-tuple this is.
    #[inline]
    pub(super) fn find(&self, five_tuple: &FiveTuple) -> Option<u32> {
        if self.second.is_empty() {
            return None;
        }
        let hash = self.hash.five_tuple(five_tuple);
        let found = self.second.find(hash, |(of, _)| of == five_tuple);
        found.map(|(_, index)| *index)
    }

    /// The allocation of this client has tickets from now on.
    pub(super) fn begin(&mut self, index: u32) {
        self.mobile.insert(index, Mobile::default());
    }

    /// The second paths of all clients that have one.
    pub(super) fn second_paths(&self) -> impl Iterator<Item = ClientPath> {
        self.mobile.values().filter_map(|mobile| mobile.second)
    }

    /// The client was removed. Returns its second path.
    pub(super) fn forget(&mut self, index: u32) -> Option<ClientPath> {
        let second = self.mobile.remove(&index)?.second?;
        self.unlist(&second.five_tuple);
        Some(second)
    }

    /// Where the client was when its quota was last counted, if not at its first 5-tuple.
    pub(super) fn counted_at(&self, index: u32) -> Option<ClientPath> {
        self.mobile.get(&index)?.counted_at
    }

    /// Gives the client this second path. Returns the one that it had.
    fn set_second(&mut self, index: u32, path: ClientPath) -> Option<ClientPath> {
        let before = self.mobile.get_mut(&index)?.second.replace(path);
        if let Some(before) = before {
            self.unlist(&before.five_tuple);
        }
        let hash = self.hash.five_tuple(&path.five_tuple);
        let hasher = &self.hash;
        self.second
            .insert_unique(hash, (path.five_tuple, index), |(of, _)| {
                hasher.five_tuple(of)
            });
        before
    }

    /// The client has no second path any more.
    fn take_second(&mut self, index: u32) -> Option<ClientPath> {
        let second = self.mobile.get_mut(&index)?.second.take()?;
        self.unlist(&second.five_tuple);
        Some(second)
    }

    fn unlist(&mut self, five_tuple: &FiveTuple) {
        let hash = self.hash.five_tuple(five_tuple);
        if let Ok(entry) = self.second.find_entry(hash, |(of, _)| of == five_tuple) {
            entry.remove();
        }
        if self.second.is_empty() {
            self.second = HashTable::new();
        }
    }
}

/// Whether a message is a Refresh request with a ticket.
pub(super) fn has_ticket(message: &Message<'_>) -> bool {
    message.method() == Method::REFRESH && message.contains(AttributeType::MOBILITY_TICKET)
}

impl Server {
    /// What is wrong with the MOBILITY-TICKET of an Allocate request (RFC 8016 §3.1.2).
    pub(super) fn check_requested_ticket(
        &self,
        message: &Message<'_>,
    ) -> Result<(), ErrorCode<'static>> {
        match message.find(AttributeType::MOBILITY_TICKET) {
            Some(ticket) if !ticket.value.is_empty() => Err(ErrorCode::BAD_REQUEST),
            Some(_) if self.config.mobility.is_none() => Err(ErrorCode::MOBILITY_FORBIDDEN),
            _ => Ok(()),
        }
    }

    /// The ticket with this serial number, if the allocation has tickets.
    pub(super) fn ticket(&self, index: u32, serial: u32) -> Option<[u8; LEN]> {
        self.mobility.mobile.get(&index)?;
        let ticket = Ticket {
            worker: self.tokens.worker(),
            index,
            generation: self.clients.generation(index),
            serial,
        };
        Some(self.config.mobility.as_ref()?.seal(&ticket))
    }

    /// The client that has this 5-tuple, as its first or its second one.
    pub(super) fn holder_of(&self, five_tuple: &FiveTuple) -> Option<u32> {
        let first = self.clients.find(five_tuple);
        first.or_else(|| self.mobility.find(five_tuple))
    }
}
