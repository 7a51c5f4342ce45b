//! Requests that wait for their user's keys, because a source of credentials responds later.
//!
//! Such a client has proven its address with a nonce of this server, but not its name. So the number and the size of
//! waiting requests are limited, in total and per address prefix. Random names from one prefix fill only its own share.
//!
//! Many users can be behind one NAT, and all of them come at once after its link was down. So while more than half of
//! the table is free, a prefix may use half as many slots as are free. A single prefix gets a third of the table.
//! Otherwise, a prefix may have `max_lookups_per_prefix`. With the defaults, ten prefixes can fill the table.

use std::sync::Arc;

use hashbrown::HashTable;
use stun::{ErrorCode, Message, Method};

use super::auth::Unauthenticated;
use super::credentials::{KeyLookup, KeyQuery};
use super::deadlines::Deadlines;
use super::hash::KeyedHash;
use super::outputs::QueuedAuth;
use super::request::RequestOrigin;
use super::request_context::RequestContext;
use super::shares::{Prefix, PrefixCounts};
use super::slab::Slab;
use super::{DropReason, Server};
use crate::{ClientPath, FiveTuple, LookupKey, Mono, Now};

/// Bytes of the longest request that is kept: names, realm and nonce at their longest, and as much again.
const REQUEST_MAX: usize = 4096;

/// Requests that one call of `handle_timeout` gives up.
const PER_CALL: usize = 64;

/// A request as it came.
#[derive(Debug)]
struct SuspendedRequest {
    path: ClientPath,
    bytes: Box<[u8]>,
    /// The state of the credentials when the look-up began.
    epoch: u32,
    /// Whether it may go to another engine.
    may_move: bool,
}

/// All look-ups, found by 5-tuple.
#[derive(Debug)]
pub(super) struct Lookups {
    suspended: Slab<SuspendedRequest>,
    index: HashTable<u32>,
    deadlines: Deadlines,
    shares: PrefixCounts,
    hash: KeyedHash,
}

impl Lookups {
    pub(super) fn new(hash: KeyedHash) -> Lookups {
        Lookups {
            suspended: Slab::new(),
            index: HashTable::new(),
            deadlines: Deadlines::default(),
            shares: PrefixCounts::new(hash.clone()),
            hash,
        }
    }

    fn len(&self) -> usize {
        self.index.len()
    }

    /// A request of this 5-tuple for which `is_it` returns true.
    fn find(
        &self,
        five_tuple: &FiveTuple,
        is_it: impl Fn(&SuspendedRequest) -> bool,
    ) -> Option<u32> {
        if self.index.is_empty() {
            return None;
        }
        let found = self.index.find(self.hash.five_tuple(five_tuple), |place| {
            let suspended = self.suspended.get(*place);
            suspended.is_some_and(|suspended| {
                suspended.path.five_tuple == *five_tuple && is_it(suspended)
            })
        });
        found.copied()
    }

    fn insert(&mut self, suspended: SuspendedRequest, deadline: Mono) -> LookupKey {
        let five_tuple = suspended.path.five_tuple;
        self.shares.add(Prefix::of(five_tuple.remote.ip()));
        let (index, generation) = self.suspended.insert(suspended);
        let (slab, hasher) = (&self.suspended, &self.hash);
        self.index
            .insert_unique(hasher.five_tuple(&five_tuple), index, |other| {
                let suspended = slab.get(*other);
                suspended.map_or(0, |suspended| hasher.five_tuple(&suspended.path.five_tuple))
            });
        self.deadlines.set(index, deadline);
        LookupKey { index, generation }
    }

    fn remove(&mut self, index: u32) -> Option<SuspendedRequest> {
        let suspended = self.suspended.remove(index)?;
        self.deadlines.remove(index);
        let five_tuple = &suspended.path.five_tuple;
        self.shares.remove(Prefix::of(five_tuple.remote.ip()));
        let hash = self.hash.five_tuple(five_tuple);
        if let Ok(entry) = self.index.find_entry(hash, |other| *other == index) {
            entry.remove();
        }
        if self.index.is_empty() {
            // Gives the memory of a burst back; keys of before find nothing, as generations are not returned.
            self.index = HashTable::new();
        }
        Some(suspended)
    }

    /// When the next request is given up.
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        self.deadlines.first().map(|(at, _)| at)
    }
}

impl Server {
    /// Whether this very request waits for its user's keys.
    pub(super) fn is_looked_up(&self, context: &RequestContext) -> bool {
        let same = |suspended: &SuspendedRequest| {
            suspended.bytes.get(8..20) == Some(&context.transaction_id.0[..])
                && suspended
                    .bytes
                    .first_chunk()
                    .map(|start| Method::of_message(*start))
                    == Some(context.method)
        };
        self.lookups.find(&context.path.five_tuple, same).is_some()
    }

    /// Keeps a request, and asks the embedder for its user's keys.
    pub(super) fn suspend(
        &mut self,
        now: Now,
        context: &RequestContext,
        query: &KeyQuery<'_>,
        message: &Message<'_>,
    ) -> Unauthenticated {
        let config = &self.config;
        let path = query.client;
        let bytes = message.as_bytes();
        let room = config.max_lookups.saturating_sub(self.lookups.len());
        if room == 0 || bytes.len() > REQUEST_MAX {
            return Unauthenticated::NoRoom(DropReason::Lookups);
        }
        let prefix = Prefix::of(path.five_tuple.remote.ip());
        let minimum = config.max_lookups_per_prefix;
        let share = match room > config.max_lookups / 2 {
            true => minimum.max(room / 2),
            false => minimum,
        };
        if self.lookups.shares.count(prefix) >= share {
            return Unauthenticated::NoRoom(DropReason::LookupsOfPrefix);
        }
        let suspended = SuspendedRequest {
            path,
            bytes: bytes.into(),
            epoch: self.credentials_epoch,
            may_move: context.may_move,
        };
        let deadline = now.mono.plus_secs(u64::from(config.lookup_timeout_s));
        let lookup = self.lookups.insert(suspended, deadline);
        self.stats.lookups_begun += 1;
        self.stats.lookups = self.lookups.len() as u64;
        // What a stream brings next waits in order.
        if path.five_tuple.transport.is_stream() {
            self.outputs.push_auth(QueuedAuth::PauseReading(path));
        }
        self.outputs.push_auth(QueuedAuth::FindKeys {
            lookup,
            query: Box::new(query.to_owned()),
            credentials: Arc::clone(self.config.credentials_of(context.realm)),
        });
        Unauthenticated::Pending
    }

    /// The result to [`Output::FindKeys`](super::Output::FindKeys): the request goes on as if it came now. Returns
    /// `false` if it is not known (any more).
    pub fn keys_found(&mut self, now: Now, lookup: LookupKey, found: KeyLookup) -> bool {
        let suspended = &mut self.lookups.suspended;
        if suspended
            .get_of_generation(lookup.index, lookup.generation)
            .is_none()
        {
            return false;
        }
        let Some(suspended) = self.take_suspended(lookup.index) else {
            return false;
        };
        let found = match found {
            KeyLookup::Pending => KeyLookup::Unavailable,
            told => told,
        };
        // What was true before users were forgotten is asked again.
        let is_current = suspended.epoch == self.credentials_epoch;
        let origin = RequestOrigin {
            may_move: suspended.may_move,
            found: is_current.then(|| Box::new(found)),
            user: None,
        };
        if let Ok(message) = Message::parse(&suspended.bytes)
            && let Err(reason) = self.resume(now, &suspended.path, &message, origin)
        {
            self.stats.count_drops(reason, 1);
        }
        true
    }

    /// Takes a request out.
    fn take_suspended(&mut self, index: u32) -> Option<SuspendedRequest> {
        let suspended = self.lookups.remove(index)?;
        self.stats.lookups = self.lookups.len() as u64;
        if suspended.path.five_tuple.transport.is_stream() {
            self.outputs
                .push_auth(QueuedAuth::ResumeReading(suspended.path));
        }
        Some(suspended)
    }

    /// Gives up requests whose source has not answered in time.
    pub(super) fn expire_lookups(&mut self, now: Now) {
        for _ in 0..PER_CALL {
            match self.lookups.deadlines.first() {
                Some((at, index)) if at <= now.mono => {
                    self.stats.lookups_timed_out += 1;
                    self.give_up_lookup(index);
                }
                _ => break,
            }
        }
    }

    /// Responds 500. Clients that apply RFC 8489 §9.2.5 over UDP discard an error without integrity and continue to
    /// wait. All other clients try another server at once.
    fn give_up_lookup(&mut self, index: u32) {
        let Some(suspended) = self.take_suspended(index) else {
            return;
        };
        if let Ok(message) = Message::parse(&suspended.bytes) {
            let context = RequestContext::unauthenticated(&suspended.path, &message);
            self.refuse(&context, &ErrorCode::SERVER_ERROR.into());
        }
    }

    /// Drops the requests of a client whose connection is closed.
    pub(super) fn forget_lookups_of(&mut self, five_tuple: &FiveTuple) {
        while let Some(index) = self.lookups.find(five_tuple, |_| true) {
            self.lookups.remove(index);
        }
        self.stats.lookups = self.lookups.len() as u64;
    }

    /// Drops all requests without a response.
    pub(super) fn forget_lookups(&mut self) {
        while let Some((_, index)) = self.lookups.deadlines.first() {
            self.lookups.remove(index);
        }
        self.stats.lookups = 0;
    }
}
