//! Places for new server transactions when the table is full.
//!
//! **Finished transactions end early.** A transaction that only absorbs retransmissions (timers J and L) lives for
//! 64*T1. Under load, nearly all transactions are of this kind. If the table is full, the oldest of them end early, and
//! new requests are accepted. A list has them in the order in which they finished.
//!
//! **Each source has a fair share.** A source may have at most [`SHARE`] times as many open transactions as there are
//! free places. One source alone gets four fifths, two get four ninths each, and there is always room for another. They
//! are counted in an array of fixed size by a keyed hash of the source's prefix.

use std::net::IpAddr;

use super::servers::Server;
use super::slab::Slab;
use crate::{HashKey, Mono};

/// A source may have at most this multiple of the free places.
const SHARE: usize = 4;
/// Bytes that the messages of a transaction take, on average, when there are as many as may be. An INVITE of a
/// telephone and its 200 take less; who sends long messages leaves room for fewer.
const BYTES: usize = 2048;
/// Finished transactions that end for a new one: its messages may be long, and theirs are already released.
const AT_ONCE: usize = 16;
/// Counters: some sources share one, which matters only while few places are free.
const PLACES: usize = 1024;
/// The end of the list.
const END: u32 = u32::MAX;

/// Where a transaction is counted, or between which others it hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransactionLink {
    /// Not finished: counted for this place.
    Unfinished(u16),
    /// Finished; the one before and the one after.
    Finished(u32, u32),
}

/// The list and the counters.
#[derive(Debug)]
pub(super) struct TransactionQuota {
    key: HashKey,
    open: Box<[u32; PLACES]>,
    total: usize,
    oldest: u32,
    newest: u32,
}

impl TransactionQuota {
    pub(super) fn new(key: HashKey) -> TransactionQuota {
        TransactionQuota {
            key: key.derive(u64::from_le_bytes(*b"sources.")),
            open: Box::new([0; PLACES]),
            total: 0,
            oldest: END,
            newest: END,
        }
    }

    /// Whether a source counted at this place may have one more of `most`.
    pub(super) fn has_share(&self, place: u16, most: usize) -> bool {
        let free = most.saturating_sub(self.total);
        let has = self.open.get(usize::from(place));
        (has.copied().unwrap_or_default() as usize) < free.saturating_mul(SHARE)
    }

    /// A transaction of a source counted at this place begins.
    pub(super) fn begin(&mut self, place: u16) -> TransactionLink {
        if let Some(count) = self.open.get_mut(usize::from(place)) {
            *count += 1;
        }
        self.total += 1;
        TransactionLink::Unfinished(place)
    }

    /// The transaction at `slot` is finished, and the newest of these.
    pub(super) fn finish(&mut self, slab: &mut Slab<Server>, slot: u32) {
        let Some((_, server)) = slab.at(slot) else {
            return;
        };
        if let TransactionLink::Unfinished(place) = server.position {
            server.position = TransactionLink::Finished(self.newest, END);
            self.decrement(place);
            match slab.at(self.newest).map(|(_, server)| &mut server.position) {
                Some(TransactionLink::Finished(_, next)) => *next = slot,
                _ => self.oldest = slot,
            }
            self.newest = slot;
        }
    }

    /// A transaction has ended, and is no longer in the table.
    pub(super) fn end(&mut self, slab: &mut Slab<Server>, position: TransactionLink) {
        let (before, after) = match position {
            TransactionLink::Unfinished(place) => return self.decrement(place),
            TransactionLink::Finished(before, after) => (before, after),
        };
        match slab.at(before).map(|(_, server)| &mut server.position) {
            Some(TransactionLink::Finished(_, next)) => *next = after,
            _ => self.oldest = after,
        }
        match slab.at(after).map(|(_, server)| &mut server.position) {
            Some(TransactionLink::Finished(previous, _)) => *previous = before,
            _ => self.newest = before,
        }
    }

    /// The one that finished first.
    pub(super) const fn oldest(&self) -> u32 {
        self.oldest
    }

    fn decrement(&mut self, place: u16) {
        if let Some(count) = self.open.get_mut(usize::from(place)) {
            *count = count.saturating_sub(1);
        }
        self.total = self.total.saturating_sub(1);
    }

    /// Where a source is counted.
    pub(super) fn place(&self, source: IpAddr) -> u16 {
        let mac = match source.to_canonical() {
            IpAddr::V4(v4) => self.key.mac(&v4.octets()),
            // A network has a /64 at the least: its single addresses are free to choose.
            IpAddr::V6(v6) => self.key.mac(&v6.octets()[..8]),
        };
        (mac % PLACES as u64) as u16
    }
}

impl super::Engine {
    /// Whether there is room for one more server transaction of a source counted at this place; perhaps some that have
    /// finished give way.
    pub(super) fn ensure_room(&mut self, now: Mono, place: u16) -> bool {
        let most = self.config.most_servers;
        if !self.servers.room.has_share(place, most) {
            return false;
        }
        for _ in 0..AT_ONCE {
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
        self.servers.slab.len() >= most || self.store.bytes() > most.saturating_mul(BYTES)
    }

    /// Ends the oldest finished transaction, if no repetition of it is likely.
    fn end_oldest_finished(&mut self, now: Mono) -> bool {
        let timers = self.config.timers;
        let Some((key, server)) = self.servers.oldest_finished() else {
            return false;
        };
        // It ends 64*T1 after its answer. If that was lost, a repetition comes within T1: that must still find it.
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
            let place = room.place(source(last));
            while room.has_share(place, 1000) {
                let _ = room.begin(place);
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
        let [one, two] = [1, 2].map(|last| room.place(source(last)));
        let position = room.begin(one);
        assert!(!room.has_share(one, 1) && !room.has_share(two, 1));
        room.end(&mut none, position);
        assert!(room.has_share(one, 1));
    }

    #[test]
    fn an_ipv6_network_is_one_source() {
        let room = TransactionQuota::new(HashKey::new([3; 16]));
        let place = |text: &str| room.place(text.parse().expect("an address"));
        assert_eq!(place("2001:db8:0:7::1"), place("2001:db8:0:7:ffff::2"));
        assert_ne!(place("2001:db8:0:7::1"), place("2001:db8:0:8::1"));
        assert_eq!(place("::ffff:192.0.2.1"), place("192.0.2.1"));
    }
}
