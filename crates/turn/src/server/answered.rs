//! Answers already given, for requests that come again.
//!
//! RFC 8489 §6.3.1: a server remembers the transactions of the last 40 seconds and answers a retransmission
//! as it answered the request, but keeps no such state for requests that are not authenticated. The number of
//! answers is bounded: the oldest give way, and a retransmission that finds none is processed as if it were
//! new.
//!
//! When many clients come at once, these answers are a good part of what each of them costs. So they lie
//! one behind the other in chunks, which are freed from the oldest on:
//!
//! ```text
//!  0        2         10           11      ..                           ..
//!  | length | expires | key length | transaction ID, 5-tuple (the key) | type, length | attributes |
//! ```
//! What an answer's header says beside its type and length is in the key, or always the same.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use hashbrown::HashTable;
use stun::{HEADER_LEN, MAGIC_COOKIE, Method, TransactionId};

use super::answer::RESPONSE_MAX;
use super::hash::KeyedHash;
use crate::{FiveTuple, Mono};

/// RFC 8489 §6.3.1: "in the last 40 seconds".
const WINDOW_S: u64 = 40;

/// Bytes of a chunk, a power of two: a place is the chunk's number and the offset in it, in 32 bits.
const CHUNK: usize = 1 << 13;
const OFFSET_BITS: u32 = CHUNK.trailing_zeros();

const HEAD: usize = 2 + 8 + 1;

const _: () = assert!(HEAD + Key::MOST + RESPONSE_MAX <= CHUNK);

/// The answers, oldest first, and an index over them.
#[derive(Debug)]
pub(super) struct Answered {
    chunks: VecDeque<Vec<u8>>,
    /// Number of the oldest chunk, as far as places have room for it.
    first: u32,
    /// Where in the oldest chunk the oldest answer is.
    oldest: usize,
    count: usize,
    /// When the newest one is old.
    all_old_at: Mono,
    /// Places by the hash of their keys.
    index: HashTable<u32>,
    hash: KeyedHash,
}

/// The header of a STUN message (RFC 8489 §5).
pub(super) type Header = [u8; HEADER_LEN];

fn header(head: [u8; 4], transaction_id: TransactionId) -> Header {
    let mut header = [0; HEADER_LEN];
    header[..4].copy_from_slice(&head);
    header[4..8].copy_from_slice(&MAGIC_COOKIE.to_be_bytes());
    header[8..].copy_from_slice(&transaction_id.0);
    header
}

/// One answer as it is kept.
#[derive(Clone, Copy)]
struct Record<'a> {
    bytes: &'a [u8],
}

/// A transaction and its 5-tuple, in as few bytes as tell them from all others.
struct Key {
    bytes: [u8; Key::MOST],
    length: usize,
}

impl Answered {
    pub(super) fn new(hash: KeyedHash) -> Answered {
        Answered {
            chunks: VecDeque::new(),
            first: 0,
            oldest: 0,
            count: 0,
            all_old_at: Mono(0),
            index: HashTable::new(),
            hash,
        }
    }

    /// The answer that this request got, if it came before: its header, and its attributes. One of another method is
    /// another request, even if its client has used a transaction ID twice.
    pub(super) fn find(
        &self,
        five_tuple: &FiveTuple,
        (method, transaction_id): (Method, TransactionId),
        now: Mono,
    ) -> Option<(Header, &[u8])> {
        if self.count == 0 {
            return None;
        }
        let key = Key::of(five_tuple, transaction_id);
        let is_it = |place: &u32| {
            let record = self.record(*place);
            record.key() == key.as_bytes() && record.method() == Some(method)
        };
        let place = self.index.find(self.hash.bytes(key.as_bytes()), is_it)?;
        let record = self.record(*place);
        let (head, attributes) = record.answer().split_first_chunk::<4>()?;
        (record.expires() > now).then(|| (header(*head, transaction_id), attributes))
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
        while self.count > 0 && (self.count >= limit || self.oldest().expires() <= now) {
            self.forget_oldest();
        }
        // No answer is longer; if one were, its request would be processed anew.
        let whole = message.split_first_chunk::<HEADER_LEN>();
        let Some((whole, attributes)) = whole.filter(|_| message.len() <= RESPONSE_MAX) else {
            return;
        };
        if limit == 0 {
            return;
        }
        let key = Key::of(five_tuple, transaction_id);
        let expires = now.plus_secs(WINDOW_S);
        let place = self.append(&key, expires, &whole[..4], attributes);
        self.all_old_at = expires;
        self.count += 1;
        let (chunks, first, hasher) = (&self.chunks, self.first, &self.hash);
        let hash_at = |place: &u32| hasher.bytes(Record::at(chunks, first, *place).key());
        self.index
            .insert_unique(hasher.bytes(key.as_bytes()), place, hash_at);
    }

    /// Writes a record and returns its place.
    fn append(&mut self, key: &Key, expires: Mono, head: &[u8], attributes: &[u8]) -> u32 {
        let length = HEAD + key.length + head.len() + attributes.len();
        let is_full = |chunk: &Vec<u8>| chunk.len() + length > CHUNK;
        if self.chunks.back().is_none_or(is_full) {
            self.chunks.push_back(Vec::with_capacity(CHUNK));
        }
        let number = self.first.wrapping_add(self.chunks.len() as u32 - 1);
        let Some(chunk) = self.chunks.back_mut() else {
            return 0;
        };
        let place = number << OFFSET_BITS | chunk.len() as u32;
        chunk.extend_from_slice(&(length as u16).to_ne_bytes());
        chunk.extend_from_slice(&expires.0.to_ne_bytes());
        chunk.push(key.length as u8);
        chunk.extend_from_slice(key.as_bytes());
        chunk.extend_from_slice(head);
        chunk.extend_from_slice(attributes);
        place
    }

    fn record(&self, place: u32) -> Record<'_> {
        Record::at(&self.chunks, self.first, place)
    }

    /// The oldest answer. There must be one.
    fn oldest(&self) -> Record<'_> {
        self.record(self.oldest_place())
    }

    fn oldest_place(&self) -> u32 {
        self.first << OFFSET_BITS | self.oldest as u32
    }

    fn forget_oldest(&mut self) {
        let (place, record) = (self.oldest_place(), self.oldest());
        let (hash, length) = (self.hash.bytes(record.key()), record.bytes.len());
        if let Ok(entry) = self.index.find_entry(hash, |candidate| *candidate == place) {
            entry.remove();
        }
        self.count -= 1;
        self.oldest += length;
        if self
            .chunks
            .front()
            .is_some_and(|chunk| self.oldest >= chunk.len())
        {
            self.chunks.pop_front();
            self.first = self.first.wrapping_add(1);
            self.oldest = 0;
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// When all of them are old. There is no earlier deadline: until then each new answer forgets the old
    /// ones.
    pub(super) fn all_old_at(&self) -> Option<Mono> {
        (self.count > 0).then_some(self.all_old_at)
    }

    /// Forgets everything, and the memory it took.
    pub(super) fn clear(&mut self) {
        self.first = self.first.wrapping_add(self.chunks.len() as u32);
        self.chunks = VecDeque::new();
        self.oldest = 0;
        self.count = 0;
        self.index = HashTable::new();
    }
}

impl<'a> Record<'a> {
    /// The record at a place; an empty one if there is none.
    fn at(chunks: &'a VecDeque<Vec<u8>>, first: u32, place: u32) -> Record<'a> {
        // Both numbers are known only as far as a place has room for them.
        let chunk = (place >> OFFSET_BITS).wrapping_sub(first) & (u32::MAX >> OFFSET_BITS);
        let offset = place as usize % CHUNK;
        let rest = chunks
            .get(chunk as usize)
            .and_then(|chunk| chunk.get(offset..));
        let rest = rest.unwrap_or_default();
        let length = rest
            .first_chunk()
            .map_or(0, |length| u16::from_ne_bytes(*length));
        Record {
            bytes: rest.get(..length.into()).unwrap_or_default(),
        }
    }

    fn expires(self) -> Mono {
        let bytes = self.bytes.get(2..).and_then(|rest| rest.first_chunk());
        Mono(bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes)))
    }

    fn parts(self) -> Option<(&'a [u8], &'a [u8])> {
        let length = usize::from(*self.bytes.get(HEAD - 1)?);
        self.bytes.get(HEAD..)?.split_at_checked(length)
    }

    fn key(self) -> &'a [u8] {
        self.parts().unwrap_or_default().0
    }

    fn method(self) -> Option<Method> {
        let first = self.answer().first_chunk()?;
        Some(Method::of_message(*first))
    }

    fn answer(self) -> &'a [u8] {
        self.parts().unwrap_or_default().1
    }
}

impl Key {
    /// The transaction ID, the transport, two IPv6 addresses with their ports and scopes.
    const MOST: usize = 12 + 1 + 2 * (16 + 2 + 4);

    fn of(five_tuple: &FiveTuple, transaction_id: TransactionId) -> Key {
        let FiveTuple {
            transport,
            local,
            remote,
        } = five_tuple;
        let mut key = Key {
            bytes: [0; Key::MOST],
            length: 0,
        };
        key.push(&transaction_id.0);
        // How long each address is follows from this, so no two keys are alike by chance.
        let families = u8::from(local.is_ipv6()) << 4 | u8::from(remote.is_ipv6()) << 5;
        key.push(&[*transport as u8 | families]);
        key.push_address(local);
        key.push_address(remote);
        key
    }

    fn push_address(&mut self, address: &SocketAddr) {
        match address.ip() {
            IpAddr::V4(ip) => self.push(&ip.octets()),
            IpAddr::V6(ip) => self.push(&ip.octets()),
        }
        self.push(&address.port().to_ne_bytes());
        if let SocketAddr::V6(v6) = address {
            self.push(&v6.scope_id().to_ne_bytes());
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.length..][..bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
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

    fn id(number: u32) -> TransactionId {
        let mut id = [0; 12];
        id[..4].copy_from_slice(&number.to_be_bytes());
        TransactionId(id)
    }

    fn answer(id: TransactionId, attributes: &[u8]) -> Vec<u8> {
        [&header([1, 3, 0, attributes.len() as u8], id), attributes].concat()
    }

    /// Remembers an answer with these attributes.
    fn remember(
        answered: &mut Answered,
        (five_tuple, id): (FiveTuple, TransactionId),
        attributes: &[u8],
        limit: usize,
        now: u64,
    ) {
        answered.remember(&five_tuple, id, &answer(id, attributes), limit, Mono(now));
    }

    /// The attributes of an answer that is found, and as it was.
    fn found(
        answered: &Answered,
        (five_tuple, id): (FiveTuple, TransactionId),
        now: u64,
    ) -> Option<Vec<u8>> {
        let (header, attributes) = answered.find(&five_tuple, (Method::ALLOCATE, id), Mono(now))?;
        assert_eq!([&header, attributes].concat(), answer(id, attributes));
        Some(attributes.to_vec())
    }

    #[test]
    fn an_answer_is_found_for_40_seconds_by_5_tuple_and_transaction() {
        let mut answered = Answered::new(KeyedHash::new(1, 2));
        let (one, two) = ((five_tuple(1), id(1)), (five_tuple(2), id(1)));
        remember(&mut answered, one, b"one", 10, 0);
        remember(&mut answered, two, b"two", 10, 1);
        let found = |wanted, now| found(&answered, wanted, now);
        assert_eq!(found(one, 39_999_999_999).as_deref(), Some(&b"one"[..]));
        assert_eq!(found(two, 39_999_999_999).as_deref(), Some(&b"two"[..]));
        assert_eq!(found((five_tuple(3), id(1)), 2), None);
        assert_eq!(found((five_tuple(1), id(2)), 2), None);
        assert_eq!(found(one, 40_000_000_000), None);
        assert_eq!(answered.all_old_at(), Some(Mono(40_000_000_001)));
    }

    #[test]
    fn the_oldest_give_way() {
        let mut answered = Answered::new(KeyedHash::new(1, 2));
        for number in 0..1000u16 {
            let (which, text) = ((five_tuple(number), id(1)), number.to_be_bytes());
            remember(&mut answered, which, &text, 16, 7);
        }
        assert_eq!((answered.len(), answered.index.len()), (16, 16));
        let found = |port| found(&answered, (five_tuple(port), id(1)), 8);
        assert!(found(983).is_none());
        assert_eq!(found(984), Some(984u16.to_be_bytes().to_vec()));
        assert_eq!(found(999), Some(999u16.to_be_bytes().to_vec()));
    }

    #[test]
    fn without_room_nothing_is_kept() {
        let mut answered = Answered::new(KeyedHash::new(1, 2));
        remember(&mut answered, (five_tuple(1), id(1)), b"one", 0, 0);
        assert_eq!(answered.len(), 0);
    }

    #[test]
    fn answers_outlive_the_chunks_around_them() {
        let mut answered = Answered::new(KeyedHash::new(1, 2));
        // Begin shortly before the chunks' numbers outgrow a place.
        answered.first = (u32::MAX >> OFFSET_BITS) - 3;
        let v6 = FiveTuple {
            remote: "[2001:db8::1%7]:9".parse().unwrap(),
            ..five_tuple(0)
        };
        let text = |number: u32| vec![number as u8; (number % 200) as usize];
        let which = |number: u32| match number % 3 {
            0 => (v6, id(number)),
            _ => (five_tuple(1), id(number)),
        };
        for number in 0..6000 {
            remember(&mut answered, which(number), &text(number), 500, 7);
            for (back, known) in [(1, true), (499, true), (500, false)] {
                if let Some(before) = number.checked_sub(back) {
                    let expected = known.then(|| text(before));
                    assert_eq!(
                        found(&answered, which(before), 8),
                        expected,
                        "{number} {back}"
                    );
                }
            }
        }
        assert_eq!((answered.len(), answered.index.len()), (500, 500));
        assert!(answered.chunks.len() <= 12, "{}", answered.chunks.len());
        answered.clear();
        assert_eq!(found(&answered, which(5997), 8), None);
        remember(&mut answered, which(1), b"one", 1, 9);
        assert_eq!(found(&answered, which(1), 9), Some(b"one".to_vec()));
    }
}
