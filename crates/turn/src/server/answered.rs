//! Answers already given, for requests that come again.
//!
//! RFC 8489 §6.3.1: a server remembers the transactions of the last 40 seconds and answers a retransmission
//! as it answered the request, but keeps no such state for requests that are not authenticated. The number of
//! answers is bounded: the oldest give way, and a retransmission that finds none is processed as if it were
//! new.

use std::collections::VecDeque;

use hashbrown::HashTable;
use stun::TransactionId;

use super::hash::KeyedHash;
use crate::{FiveTuple, Mono};

/// RFC 8489 §6.3.1: "in the last 40 seconds".
const WINDOW_S: u64 = 40;

#[derive(Debug)]
struct Answer {
    five_tuple: FiveTuple,
    transaction_id: TransactionId,
    expires: Mono,
    message: Box<[u8]>,
}

/// The answers, oldest first, and an index over them.
#[derive(Debug)]
pub(super) struct Answered {
    answers: VecDeque<Answer>,
    /// Number of the oldest answer. An answer's number never changes; its place is the difference.
    first: u64,
    index: HashTable<u64>,
    hash: KeyedHash,
}

impl Answered {
    pub(super) fn new(hash: KeyedHash) -> Answered {
        Answered {
            answers: VecDeque::new(),
            first: 0,
            index: HashTable::new(),
            hash,
        }
    }

    /// The answer that this request got, if it came before.
    pub(super) fn find(
        &self,
        five_tuple: &FiveTuple,
        transaction_id: TransactionId,
        now: Mono,
    ) -> Option<&[u8]> {
        let hash = self.hash.transaction(five_tuple, transaction_id);
        let number = self.index.find(hash, |number| {
            self.answers
                .get((*number - self.first) as usize)
                .is_some_and(|answer| {
                    answer.transaction_id == transaction_id && answer.five_tuple == *five_tuple
                })
        })?;
        let answer = self.answers.get((*number - self.first) as usize)?;
        (answer.expires > now).then_some(&*answer.message)
    }

    /// Remembers the answer to a request, and forgets what is old or above the limit.
    pub(super) fn remember(
        &mut self,
        five_tuple: &FiveTuple,
        transaction_id: TransactionId,
        message: &[u8],
        limit: usize,
        now: Mono,
    ) {
        while self.answers.len() >= limit
            || self
                .answers
                .front()
                .is_some_and(|oldest| oldest.expires <= now)
        {
            if !self.forget_oldest() {
                return;
            }
        }
        let number = self.first + self.answers.len() as u64;
        self.answers.push_back(Answer {
            five_tuple: *five_tuple,
            transaction_id,
            expires: now.plus_secs(WINDOW_S),
            message: message.into(),
        });
        let (answers, first, hasher) = (&self.answers, self.first, &self.hash);
        let hash = hasher.transaction(five_tuple, transaction_id);
        self.index.insert_unique(hash, number, |number| {
            let answer = &answers[(*number - first) as usize];
            hasher.transaction(&answer.five_tuple, answer.transaction_id)
        });
    }

    fn forget_oldest(&mut self) -> bool {
        let Some(oldest) = self.answers.pop_front() else {
            return false;
        };
        let hash = self
            .hash
            .transaction(&oldest.five_tuple, oldest.transaction_id);
        let number = self.first;
        if let Ok(entry) = self
            .index
            .find_entry(hash, |candidate| *candidate == number)
        {
            entry.remove();
        }
        self.first += 1;
        true
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.answers.len()
    }

    /// When all of them are old. There is no earlier deadline: until then each new answer forgets the old
    /// ones.
    pub(super) fn all_old_at(&self) -> Option<Mono> {
        self.answers.back().map(|newest| newest.expires)
    }

    /// Forgets everything, and the memory it took.
    pub(super) fn clear(&mut self) {
        self.first += self.answers.len() as u64;
        self.answers = VecDeque::new();
        self.index = HashTable::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Transport;

    fn five_tuple(port: u16) -> FiveTuple {
        FiveTuple {
            transport: Transport::Udp,
            local: ([192, 0, 2, 1], 3478).into(),
            remote: ([198, 51, 100, 1], port).into(),
        }
    }

    #[test]
    fn an_answer_is_found_for_40_seconds_by_5_tuple_and_transaction() {
        let mut answered = Answered::new(KeyedHash::new(1, 2));
        let id = TransactionId([1; 12]);
        answered.remember(&five_tuple(1), id, b"one", 10, Mono(0));
        answered.remember(&five_tuple(2), id, b"two", 10, Mono(1));
        assert_eq!(
            answered.find(&five_tuple(1), id, Mono(39_999_999_999)),
            Some(&b"one"[..])
        );
        assert_eq!(
            answered.find(&five_tuple(2), id, Mono(39_999_999_999)),
            Some(&b"two"[..])
        );
        assert_eq!(answered.find(&five_tuple(3), id, Mono(2)), None);
        assert_eq!(
            answered.find(&five_tuple(1), TransactionId([2; 12]), Mono(2)),
            None
        );
        assert_eq!(
            answered.find(&five_tuple(1), id, Mono(40_000_000_000)),
            None
        );
        assert_eq!(answered.all_old_at(), Some(Mono(40_000_000_001)));
    }

    #[test]
    fn the_oldest_give_way() {
        let mut answered = Answered::new(KeyedHash::new(1, 2));
        for number in 0..1000u16 {
            answered.remember(
                &five_tuple(number),
                TransactionId([1; 12]),
                &number.to_be_bytes(),
                16,
                Mono(7),
            );
        }
        assert_eq!((answered.len(), answered.index.len()), (16, 16));
        let found = |port| answered.find(&five_tuple(port), TransactionId([1; 12]), Mono(8));
        assert!(found(983).is_none());
        assert_eq!(found(984), Some(&984u16.to_be_bytes()[..]));
        assert_eq!(found(999), Some(&999u16.to_be_bytes()[..]));
    }

    #[test]
    fn without_room_nothing_is_kept() {
        let mut answered = Answered::new(KeyedHash::new(1, 2));
        answered.remember(&five_tuple(1), TransactionId([1; 12]), b"one", 0, Mono(0));
        assert_eq!(answered.len(), 0);
    }
}
