//! The server transactions: what each holds, and where they are.

use std::net::SocketAddr;

use hashbrown::HashTable;

use super::allowance::Allowance;
use super::compose::Layout;
use super::key::{Fingerprint, RelatedKey, ServerKey};
use super::output::Mark;
use super::related::Related;
use super::slab::Slab;
use super::store::Cell;
use super::transaction_quota::{QuotaState, TransactionQuota};
use crate::flow::Flow;
use crate::timer::{Timers, Wheel};
use crate::transaction::{InviteServer, NonInviteServer, Step};
use crate::{HashKey, Method, Mono};

#[derive(Debug)]
pub(super) enum Machine {
    Invite(InviteServer),
    Other(NonInviteServer),
}

/// A server transaction.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) fingerprint: Fingerprint,
    pub(super) machine: Machine,
    pub(super) flow: Flow,
    /// Where responses go; for a stream, where to connect when the request's connection is closed.
    pub(super) reply_to: SocketAddr,
    pub(super) mark: Option<Mark>,
    /// What responses copy from the request, until its final one.
    pub(super) request: Option<Cell>,
    /// Where things are in that.
    pub(super) layout: Layout,
    /// The last response, as long as it may have to be sent again; with the remote target of its dialog behind it.
    pub(super) response: Option<Cell>,
    /// Bytes of that remote target.
    pub(super) target_len: u16,
    /// The client supports overload control (RFC 7339 §5.1): the responses of a TU need not say so any more.
    pub(super) reports_load: bool,
    /// The dialog that its To tag is bound to; 0 if it begins none.
    pub(super) dialog: u64,
    /// The key by which a message with another branch finds the transaction. This is the ACK for the 2xx of an INVITE
    /// within a dialog, or the same request over another path.
    pub(super) related: Option<RelatedKey>,
    /// What may still be sent to its source.
    pub(super) allowance: Allowance,
    /// How [`TransactionQuota`] counts it.
    pub(super) quota_state: QuotaState,
}

/// All server transactions, by place and by fingerprint.
#[derive(Debug)]
pub(super) struct Servers {
    pub(super) slab: Slab<Server>,
    index: HashTable<u32>,
    /// Transactions that messages with other branches may look up.
    related: Related,
    pub(super) wheel: Wheel,
    pub(super) quota: TransactionQuota,
}

impl Servers {
    pub(super) fn new(key: HashKey) -> Servers {
        Servers {
            slab: Slab::new(),
            index: HashTable::new(),
            related: Related::new(),
            wheel: Wheel::new(),
            quota: TransactionQuota::new(key),
        }
    }

    /// The transaction of a request.
    pub(super) fn find(&self, fingerprint: Fingerprint) -> Option<u32> {
        let is_it = |slot: &u32| {
            let server = self.slab.peek(*slot);
            server.is_some_and(|server| server.fingerprint == fingerprint)
        };
        self.index.find(hash(fingerprint), is_it).copied()
    }

    /// The transaction that has this in common with a message of another branch.
    pub(super) fn find_related(&self, related: RelatedKey) -> Option<u32> {
        self.related.find(&self.slab, related)
    }

    /// Whether there are any that could be found so.
    pub(super) fn has_related(&self) -> bool {
        self.related.has_any()
    }

    /// Whether any of those is an INVITE within a dialog.
    pub(super) fn has_invites_within_dialogs(&self) -> bool {
        self.related.has_within_dialogs()
    }

    pub(super) fn insert(&mut self, server: Server) -> ServerKey {
        let fingerprint = server.fingerprint;
        let related = server.related;
        let deadline = server.machine.deadline();
        let (slot, generation) = self.slab.insert(server);
        let slab = &self.slab;
        let rehash = |slot: &u32| {
            slab.peek(*slot)
                .map_or(0, |server| hash(server.fingerprint))
        };
        self.index.insert_unique(hash(fingerprint), slot, rehash);
        if let Some(related) = related {
            self.related.insert(&self.slab, related, slot);
        }
        self.wheel.set(slot, deadline);
        ServerKey { slot, generation }
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<Server> {
        let server = self.slab.remove(slot)?;
        self.wheel.remove(slot);
        self.quota.end(&mut self.slab, server.quota_state);
        let entry = self
            .index
            .find_entry(hash(server.fingerprint), |other| *other == slot);
        if let Ok(entry) = entry {
            entry.remove();
        }
        if let Some(related) = server.related {
            self.related.remove(related, slot);
        }
        Some(server)
    }

    /// Sets the timer of a transaction whose machine has moved.
    pub(super) fn moved(&mut self, slot: u32) {
        let Some(server) = self.slab.peek(slot) else {
            return;
        };
        self.wheel.set(slot, server.machine.deadline());
        if server.machine.is_finished() {
            self.quota.finish(&mut self.slab, slot);
        }
    }

    /// Whether [`Servers::release_memory`] would give anything back that is worth it.
    pub(super) const fn has_slack(&self) -> bool {
        self.slab.has_slack()
    }

    /// Releases unused memory, and the memory of tables that are much too large and have few entries to move. It
    /// releases about `most` bytes of the slab. Returns how many it were.
    pub(super) fn release_memory(&mut self, most: usize) -> usize {
        let mut bytes = self.slab.release_memory(most);
        bytes += self.wheel.release_memory(self.slab.end());
        let slab = &self.slab;
        bytes += shrink(&mut self.index, |slot| {
            slab.peek(*slot)
                .map_or(0, |server| hash(server.fingerprint))
        });
        bytes += self.related.release_memory(slab);
        bytes
    }

    /// The transaction that finished first.
    pub(super) fn oldest_finished(&mut self) -> Option<(ServerKey, &Server)> {
        let slot = self.quota.oldest();
        let (generation, server) = self.slab.at(slot)?;
        Some((ServerKey { slot, generation }, server))
    }
}

/// Tables with room for this many entries keep their size. So do tables with more entries than that, because all
/// entries would have to be moved at once.
const KEPT: usize = 8192;

/// Makes a table smaller that has become eight times too large. Returns how many bytes that returns.
pub(super) fn shrink(table: &mut HashTable<u32>, hash: impl Fn(&u32) -> u64) -> usize {
    let before = table.capacity();
    if table.len() > KEPT || before < 8 * table.len().max(KEPT / 4) {
        return 0;
    }
    table.shrink_to(2 * table.len(), hash);
    // An entry, and what the table notes of it.
    (before - table.capacity()) * (size_of::<u32>() + 1)
}

fn hash(fingerprint: Fingerprint) -> u64 {
    fingerprint.0 as u64
}

impl Machine {
    pub(super) fn start(now: Mono, timers: &Timers, method: Method<'_>, reliable: bool) -> Machine {
        match method {
            Method::Invite => Machine::Invite(InviteServer::start(now, timers, reliable)),
            _ => Machine::Other(NonInviteServer::start(now, timers, reliable)),
        }
    }

    pub(super) const fn is_invite(&self) -> bool {
        matches!(self, Machine::Invite(_))
    }

    pub(super) fn deadline(&self) -> Mono {
        match self {
            Machine::Invite(machine) => machine.deadline(),
            Machine::Other(machine) => machine.deadline(),
        }
    }

    /// Only repetitions are absorbed from now on.
    fn is_finished(&self) -> bool {
        match self {
            Machine::Invite(machine) => machine.is_finished(),
            Machine::Other(machine) => machine.is_finished(),
        }
    }

    pub(super) fn respond(&mut self, now: Mono, timers: &Timers, code: u16) -> Option<Step> {
        match self {
            Machine::Invite(machine) => machine.respond(now, timers, code),
            Machine::Other(machine) => machine.respond(now, timers, code),
        }
    }

    pub(super) fn fire(&mut self, now: Mono, timers: &Timers) -> Step {
        match self {
            Machine::Invite(machine) => machine.fire(now, timers),
            Machine::Other(machine) => machine.fire(now),
        }
    }
}
