//! Recent deletions. A retransmitted Refresh with lifetime 0 gets the same response again.
//!
//! RFC 8489 §6.3.1: a retransmission must leave client and server as if it had not been. Binding, CreatePermission,
//! ChannelBind and a Refresh to more than zero are idempotent and simply processed again (RFC 8656 §8.2, §10.2, §12.2).
//! A retransmission of Allocate is recognized by the allocation that the request made. A Refresh with lifetime 0 leaves
//! no such state. If its retransmission were processed again, it would end a newer allocation of the client on the same
//! 5-tuple. So the server remembers this Refresh for as long as it may be retransmitted. It also remembers the Allocate
//! request of the deleted allocation if that is less than 40 seconds old: processed again, it would make another
//! allocation. The same applies to an allocation whose client has moved to another 5-tuple (RFC 8016).
//!
//! An entry stays 40 seconds. If the table or the share of a prefix is full, a new deletion is not remembered. Its
//! retransmission then gets 437, which clients treat as a success (RFC 8656 §8.3).

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashTable;
use stun::TransactionId;

use super::hash::KeyedHash;
use super::packed::PackedPath;
use super::request_context::RequestContext;
use super::shares::{Prefix, PrefixCounts};
use super::user::User;
use crate::{ClientPath, FiveTuple, Mono};

/// RFC 8489 §6.3.1: "in the last 40 seconds".
pub(super) const WINDOW_S: u64 = 40;

/// The divisor for the share of one address prefix: at most an eighth of the table.
const PREFIX_SHARE: usize = 8;

/// A request that must not be processed again: a Refresh with lifetime 0, or the Allocate of a deleted allocation.
#[derive(Debug)]
struct Deletion {
    path: PackedPath,
    transaction_id: TransactionId,
    /// The user who sent the request. The response has the integrity of this user's key.
    user: Arc<User>,
    expires: Mono,
}

impl Deletion {
    fn hash(&self, hash: &KeyedHash) -> u64 {
        hash.transaction(&self.path.five_tuple(), &self.transaction_id)
    }

    fn is_of(&self, five_tuple: &FiveTuple, transaction_id: TransactionId) -> bool {
        self.transaction_id == transaction_id && self.path.is_of(five_tuple)
    }
}

/// All deletions, oldest first, and an index over them.
#[derive(Debug)]
pub(super) struct Deletions {
    queue: VecDeque<Deletion>,
    /// The number of the oldest deletion.
    first: u32,
    /// The numbers of the deletions, by 5-tuple and transaction.
    index: HashTable<u32>,
    shares: PrefixCounts,
    hash: KeyedHash,
}

impl Deletions {
    pub(super) fn new(hash: KeyedHash) -> Deletions {
        Deletions {
            queue: VecDeque::new(),
            first: 0,
            index: HashTable::new(),
            shares: PrefixCounts::new(hash.clone()),
            hash,
        }
    }

    /// The user of the request with this transaction, if the request is remembered.
    pub(super) fn find(&self, context: &RequestContext, now: Mono) -> Option<&Arc<User>> {
        if self.queue.is_empty() {
            return None;
        }
        let five_tuple = &context.path.five_tuple;
        let number = self.index.find(
            self.hash.transaction(five_tuple, &context.transaction_id),
            |number| {
                let deletion = self.at(*number);
                deletion.is_some_and(|deletion| deletion.is_of(five_tuple, context.transaction_id))
            },
        )?;
        let deletion = self.at(*number)?;
        (deletion.expires > now).then_some(&deletion.user)
    }

    /// The deletion with this number.
    fn at(&self, number: u32) -> Option<&Deletion> {
        self.queue.get(number.wrapping_sub(self.first) as usize)
    }

    /// Remembers the transaction of an authenticated request, if there is room for it. First forgets those that have
    /// expired. `limit` is the maximum number of entries.
    pub(super) fn remember(
        &mut self,
        (path, transaction_id, user): (&ClientPath, TransactionId, Arc<User>),
        limit: usize,
        now: Mono,
    ) {
        while self
            .queue
            .front()
            .is_some_and(|oldest| oldest.expires <= now)
        {
            self.forget_oldest();
        }
        let five_tuple = &path.five_tuple;
        let prefix = Prefix::of(five_tuple.remote.ip());
        let is_full =
            self.queue.len() >= limit || self.shares.count(prefix) >= limit.div_ceil(PREFIX_SHARE);
        if is_full {
            return;
        }
        let number = self.first.wrapping_add(self.queue.len() as u32);
        self.queue.push_back(Deletion {
            path: PackedPath::of(path),
            transaction_id,
            user,
            expires: now.plus_secs(WINDOW_S),
        });
        self.shares.add(prefix);
        let (queue, first, hasher) = (&self.queue, self.first, &self.hash);
        let hash_at = |number: &u32| {
            let deletion = queue.get(number.wrapping_sub(first) as usize);
            deletion.map_or(0, |deletion| deletion.hash(hasher))
        };
        let hash = hasher.transaction(five_tuple, &transaction_id);
        self.index.insert_unique(hash, number, hash_at);
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.queue.pop_front() else {
            return;
        };
        let number = self.first;
        self.first = number.wrapping_add(1);
        let five_tuple = oldest.path.five_tuple();
        self.shares.remove(Prefix::of(five_tuple.remote.ip()));
        let hash = oldest.hash(&self.hash);
        if let Ok(entry) = self.index.find_entry(hash, |other| *other == number) {
            entry.remove();
        }
    }

    /// How many deletions are remembered.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// When the last of them expires. There is no earlier deadline: until then, [`remember`](Self::remember) forgets
    /// those that have expired.
    pub(super) fn all_old_at(&self) -> Option<Mono> {
        self.queue.back().map(|newest| newest.expires)
    }

    /// Forgets all deletions, and releases their memory.
    pub(super) fn clear(&mut self) {
        *self = Deletions::new(self.hash.clone());
    }
}
