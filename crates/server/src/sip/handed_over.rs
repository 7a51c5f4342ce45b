//! The worker that a request was handed to, so that retransmissions, CANCEL and ACK of its transaction go there, too
//! (RFC 3261 §17.2.3). The reason for handing it over may have ended by then: the workers are equally busy again, or a
//! binding has expired.
//!
//! Anybody can send requests, so the memory is bounded, and new entries replace old ones. For a request without an
//! entry, the worker decides again.

use sip::engine::TransactionId;

/// Places for transactions per worker, 16 bytes each. A busy worker fills them in several seconds.
const PLACE_COUNT: usize = 1 << 14;

/// The transactions that a worker has handed over last.
#[derive(Debug, Default)]
pub(super) struct HandedOverTransactions {
    /// Empty before the first transaction.
    places: Box<[(u64, u16)]>,
}

impl HandedOverTransactions {
    /// Whether no transaction was handed over.
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Notes that a request of this transaction goes to a worker.
    pub(super) fn note(&mut self, id: TransactionId, worker: u16) {
        if self.places.is_empty() {
            self.places = vec![(0, 0); PLACE_COUNT].into();
        }
        self.places[id.0 as usize % PLACE_COUNT] = (id.0, worker);
    }

    /// The worker that requests of this transaction went to.
    pub(super) fn find(&self, id: TransactionId) -> Option<u16> {
        let (known, worker) = *self.places.get(id.0 as usize % PLACE_COUNT)?;
        (known == id.0 && known != 0).then_some(worker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_at_a_place_is_known_and_others_are_not() {
        let mut handed = HandedOverTransactions::default();
        assert_eq!(handed.find(TransactionId(7)), None);
        handed.note(TransactionId(7), 3);
        assert_eq!(handed.find(TransactionId(7)), Some(3));
        assert_eq!(handed.find(TransactionId(8)), None);
        assert_eq!(handed.find(TransactionId(0)), None, "an empty place");
        let other = TransactionId(7 + PLACE_COUNT as u64);
        assert_eq!(handed.find(other), None);
        handed.note(other, 1);
        assert_eq!(
            (handed.find(TransactionId(7)), handed.find(other)),
            (None, Some(1))
        );
    }
}
