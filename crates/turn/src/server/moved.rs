//! Allocate requests that the embedder moved to another engine, and where their further datagrams go.
//!
//! After the embedder has steered a 5-tuple to another worker, nothing from it arrives here, with two exceptions.
//! These are datagrams that had already arrived, and a late retransmission after the end of the allocation. Without
//! this memory, each of them would make another allocation for the 5-tuple.

use std::time::Duration;

use hashbrown::HashTable;
use stun::TransactionId;

use super::hash::KeyedHash;
use crate::{FiveTuple, Mono};

/// How long a retransmission is known by its transaction: as long as a response is kept (RFC 8489 §6.3.1).
const KEPT_TIME: Duration = Duration::from_secs(40);

/// How long any request from the 5-tuple follows: longer than a datagram waits in a receive buffer. After that the
/// client has a response from the other engine and makes a new start.
const MAX_QUEUED_TIME: Duration = Duration::from_secs(1);

/// How many are remembered, at about 100 bytes each. When there are more, the older ones give way: all that happens is
/// that a late retransmission is taken for a new request.
const MAX_ENTRIES: usize = 4096;

#[derive(Debug)]
struct Entry {
    five_tuple: FiveTuple,
    transaction_id: TransactionId,
    /// The embedder's name for the other engine.
    to: u16,
    at: Mono,
}

/// All moved requests, at most one per 5-tuple.
#[derive(Debug)]
pub(super) struct Moved {
    table: HashTable<Entry>,
    hash: KeyedHash,
    /// When the last one was added.
    newest: Mono,
}

impl Moved {
    pub(super) fn new(hash: KeyedHash) -> Moved {
        Moved {
            table: HashTable::new(),
            hash,
            newest: Mono(0),
        }
    }

    /// Which server a request belongs to, if not to this one.
    pub(super) fn find(
        &self,
        five_tuple: &FiveTuple,
        transaction_id: TransactionId,
        now: Mono,
    ) -> Option<u16> {
        let hash = self.hash.five_tuple(five_tuple);
        let entry = self
            .table
            .find(hash, |entry| entry.five_tuple == *five_tuple)?;
        let follows = if entry.transaction_id == transaction_id {
            KEPT_TIME
        } else {
            MAX_QUEUED_TIME
        };
        (now.since(entry.at) < follows).then_some(entry.to)
    }

    /// Remembers that a request went to another engine.
    pub(super) fn remember(
        &mut self,
        five_tuple: &FiveTuple,
        transaction_id: TransactionId,
        to: u16,
        now: Mono,
    ) {
        if self.table.len() >= MAX_ENTRIES {
            self.make_room(now);
        }
        let entry = Entry {
            five_tuple: *five_tuple,
            transaction_id,
            to,
            at: now,
        };
        self.newest = now;
        let hash = self.hash.five_tuple(five_tuple);
        match self
            .table
            .find_mut(hash, |known| known.five_tuple == *five_tuple)
        {
            Some(known) => *known = entry,
            None => {
                let hasher = &self.hash;
                self.table
                    .insert_unique(hash, entry, |known| hasher.five_tuple(&known.five_tuple));
            }
        }
    }

    /// Forgets the older half of the window; all, if that is not enough.
    fn make_room(&mut self, now: Mono) {
        self.table
            .retain(|entry| now.since(entry.at) < KEPT_TIME / 2);
        if self.table.len() >= MAX_ENTRIES {
            self.table.clear();
        }
    }

    /// When all of them are old; `None` if there are none.
    pub(super) fn all_old_at(&self) -> Option<Mono> {
        (!self.table.is_empty()).then(|| self.newest.plus(KEPT_TIME))
    }

    /// Forgets everything, and the memory it took.
    pub(super) fn clear(&mut self) {
        self.table = HashTable::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Transport;

    #[test]
    fn more_than_are_remembered_cost_no_more_memory() {
        let mut moved = Moved::new(KeyedHash::new(1, 2));
        let id = TransactionId([1; 12]);
        let five_tuple = |number: u32| FiveTuple {
            transport: Transport::Udp,
            local: ([192, 0, 2, 1], 3478).into(),
            remote: (number.to_be_bytes(), 4000).into(),
        };
        for number in 0..3 * MAX_ENTRIES as u32 {
            // A millisecond between them: all within one window.
            let now = Mono(u64::from(number) * 1_000_000);
            moved.remember(&five_tuple(number), id, 7, now);
            assert_eq!(moved.find(&five_tuple(number), id, now), Some(7));
            assert!(moved.table.len() <= MAX_ENTRIES);
        }
    }
}
