//! Room for new server transactions when the table is full.
//!
//! **Finished transactions end early.** A transaction that only absorbs retransmissions (timers J and L) stays for
//! 64*T1. Under load, nearly all transactions are of this kind. If the table is full, the oldest of them end early, and
//! new requests are accepted. A list has them in the order in which they finished.
//!
//! **A quarter is reserved for proven sources.** The source address of a UDP datagram may be forged. An unproven request
//! is refused if open transactions use three quarters of the table. Valid credentials prove the source. A request whose
//! credentials are still being looked up is unproven.
//!
//! **Each source has a fair share.** A source may have at most [`SHARE`] times as many open transactions as there are
//! free slots. One source alone gets four fifths, two get four ninths each, and there is always room for another. An
//! array of fixed size counts the open transactions, by a keyed hash of the source's prefix. A request counts as one
//! transaction, and as one more for each full [`REQUEST_BYTES`] of its length: otherwise a source with few long requests
//! could take all memory.

use std::net::IpAddr;

use super::servers::Server;
use super::slab::Slab;
use crate::{HashKey, Mono};

/// A source may have at most this multiple of the free slots.
const SHARE: usize = 4;
/// One slot in this many is for proven sources only. Measured: without this limit, requests from 500 forged addresses
/// fill the table.
const RESERVED_DIVISOR: usize = 4;
/// Average bytes of the messages of a transaction, if the table is full. An INVITE of a telephone and its 200 have
/// fewer. If the messages are longer, fewer transactions fit.
const MEAN_BYTES: usize = 2048;
/// A request with fewer bytes counts as one transaction: a proxy stores it and its copy.
const REQUEST_BYTES: usize = MEAN_BYTES / 2;
/// Finished transactions that end for a new one. Several may be necessary: its messages may be long, and the messages
/// of finished transactions are already released.
const ENDED_AT_ONCE: usize = 16;
/// Counters of open transactions. Some sources share one, which matters only while few slots are free.
const COUNTERS: usize = 1024;
/// No slot: the end of the list.
const END: u32 = u32::MAX;

/// What the quota stores in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuotaState {
    /// The transaction is open. It counts in the counter with this index.
    Open {
        /// Index of the counter of its source.
        counter: u16,
        /// How many transactions it counts as.
        weight: u16,
    },
    /// The transaction is finished, and is in the list of finished ones. Both are slots of the table; [`END`] if there
    /// is none.
    Finished {
        /// The transaction that finished before it.
        older: u32,
        /// The transaction that finished after it.
        newer: u32,
    },
}

/// The list and the counters.
#[derive(Debug)]
pub(super) struct TransactionQuota {
    key: HashKey,
    open: Box<[u32; COUNTERS]>,
    total: usize,
    oldest: u32,
    newest: u32,
}

impl TransactionQuota {
    pub(super) fn new(key: HashKey) -> TransactionQuota {
        TransactionQuota {
            key: key.derive(u64::from_le_bytes(*b"sources.")),
            open: Box::new([0; COUNTERS]),
            total: 0,
            oldest: END,
            newest: END,
        }
    }

    /// Whether the sources of this counter may have one more open transaction. The table has `limit` slots.
    pub(super) fn has_share(&self, counter: u16, limit: usize) -> bool {
        let free = limit.saturating_sub(self.total);
        let has = self.open.get(usize::from(counter));
        (has.copied().unwrap_or_default() as usize) < free.saturating_mul(SHARE)
    }

    /// A transaction of a source with this counter begins. Its request has `length` bytes.
    pub(super) fn begin(&mut self, counter: u16, length: usize) -> QuotaState {
        let weight = 1 + (length / REQUEST_BYTES).min(usize::from(u16::MAX - 1)) as u16;
        if let Some(count) = self.open.get_mut(usize::from(counter)) {
            *count += u32::from(weight);
        }
        self.total += usize::from(weight);
        QuotaState::Open { counter, weight }
    }

    /// The transaction at `slot` is finished: it is now the newest of the list.
    pub(super) fn finish(&mut self, slab: &mut Slab<Server>, slot: u32) {
        let Some((_, server)) = slab.at(slot) else {
            return;
        };
        if let QuotaState::Open { counter, weight } = server.quota_state {
            server.quota_state = QuotaState::Finished {
                older: self.newest,
                newer: END,
            };
            self.decrement(counter, weight);
            match slab
                .at(self.newest)
                .map(|(_, server)| &mut server.quota_state)
            {
                Some(QuotaState::Finished { newer, .. }) => *newer = slot,
                _ => self.oldest = slot,
            }
            self.newest = slot;
        }
    }

    /// A transaction with this state has left the table.
    pub(super) fn end(&mut self, slab: &mut Slab<Server>, state: QuotaState) {
        let (older, newer) = match state {
            QuotaState::Open { counter, weight } => return self.decrement(counter, weight),
            QuotaState::Finished { older, newer } => (older, newer),
        };
        match slab.at(older).map(|(_, server)| &mut server.quota_state) {
            Some(QuotaState::Finished { newer: next, .. }) => *next = newer,
            _ => self.oldest = newer,
        }
        match slab.at(newer).map(|(_, server)| &mut server.quota_state) {
            Some(QuotaState::Finished {
                older: previous, ..
            }) => *previous = older,
            _ => self.newest = older,
        }
    }

    /// The slot of the transaction that finished first.
    pub(super) const fn oldest(&self) -> u32 {
        self.oldest
    }

    fn decrement(&mut self, counter: u16, weight: u16) {
        if let Some(count) = self.open.get_mut(usize::from(counter)) {
            *count = count.saturating_sub(weight.into());
        }
        self.total = self.total.saturating_sub(weight.into());
    }

    /// The index of the counter of a source.
    pub(super) fn counter(&self, source: IpAddr) -> u16 {
        let mac = match source.to_canonical() {
            IpAddr::V4(v4) => self.key.mac(&v4.octets()),
            // A network has a /64 at the least: its single addresses are free to choose.
            IpAddr::V6(v6) => self.key.mac(&v6.octets()[..8]),
        };
        (mac % COUNTERS as u64) as u16
    }
}

impl super::Engine {
    /// Whether there is room for one more server transaction of a source with this counter. `is_proven`: its address
    /// cannot be forged. If necessary, ends finished transactions.
    pub(super) fn ensure_room(&mut self, now: Mono, counter: u16, is_proven: bool) -> bool {
        let most = self.config.most_servers;
        let limit = match is_proven {
            true => most,
            false => most - most / RESERVED_DIVISOR,
        };
        if !self.servers.quota.has_share(counter, limit) {
            return false;
        }
        for _ in 0..ENDED_AT_ONCE {
            if !self.is_full() {
                return true;
            }
            if !self.end_oldest_finished(now) {
                return false;
            }
        }
        !self.is_full()
    }

    fn is_full(&self) -> bool {
        let most = self.config.most_servers;
        self.servers.slab.len() >= most || self.store.bytes() > most.saturating_mul(MEAN_BYTES)
    }

    /// Ends the oldest finished transaction, if no repetition of it is likely.
    fn end_oldest_finished(&mut self, now: Mono) -> bool {
        let timers = self.config.timers;
        let Some((key, server)) = self.servers.oldest_finished() else {
            return false;
        };
        // It ends 64*T1 after its response. If the response was lost, the request is repeated within T1, and must still
        // find the transaction.
        let left = server.machine.deadline().since(now);
        if left + 2 * timers.t1 > timers.give_up() {
            return false;
        }
        self.stats.cut_short += 1;
        self.end_server(key);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn one_source_gets_four_fifths_and_another_most_of_the_rest() {
        let mut room = TransactionQuota::new(HashKey::new([3; 16]));
        let mut take = |last| {
            let mut taken = 0;
            let counter = room.counter(source(last));
            while room.has_share(counter, 1000) {
                let _ = room.begin(counter, REQUEST_BYTES - 1);
                taken += 1;
            }
            taken
        };
        assert_eq!(take(1), 800);
        assert_eq!(take(2), 160);
        assert_eq!(take(1), 0);
        assert_eq!(take(3), 32);
    }

    #[test]
    fn ended_transactions_no_longer_count() {
        let mut room = TransactionQuota::new(HashKey::new([3; 16]));
        let mut none = Slab::new();
        let [one, two] = [1, 2].map(|last| room.counter(source(last)));
        let state = room.begin(one, 10 * MEAN_BYTES);
        assert!(!room.has_share(one, 1) && !room.has_share(two, 1));
        room.end(&mut none, state);
        assert!(room.has_share(one, 1));
    }

    #[test]
    fn long_requests_count_as_several() {
        let mut room = TransactionQuota::new(HashKey::new([3; 16]));
        let [one, two] = [1, 2].map(|last| room.counter(source(last)));
        let mut taken = 0;
        while room.has_share(one, 1000) {
            let _ = room.begin(one, 60_000);
            taken += 1;
        }
        // Each counts as 59.
        assert_eq!(taken, 14);
        assert!(room.has_share(two, 1000));
    }

    #[test]
    fn an_ipv6_network_is_one_source() {
        let room = TransactionQuota::new(HashKey::new([3; 16]));
        let counter = |text: &str| room.counter(text.parse().expect("an address"));
        assert_eq!(counter("2001:db8:0:7::1"), counter("2001:db8:0:7:ffff::2"));
        assert_ne!(counter("2001:db8:0:7::1"), counter("2001:db8:0:8::1"));
        assert_eq!(counter("::ffff:192.0.2.1"), counter("192.0.2.1"));
    }
}
