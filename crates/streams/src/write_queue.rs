//! The write queue of one connection.
//!
//! The queue stores messages in chunks of up to [`CHUNK`] bytes. Over TLS each chunk becomes one record. The queue
//! drops application data that is too old, except in a partly written chunk. So a client that reads too slowly gets the
//! newest data. Other messages (STUN, SIP) are never dropped.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::time::Duration;

use timers::Mono;

/// Messages share a chunk up to this length in bytes: the longest plaintext of one TLS record (RFC 8446 §5.1).
pub const CHUNK: usize = 16 << 10;

/// Chunks that a [`ChunkPool`] keeps. 64 chunks serve 64 connections per wake-up without a memory allocation.
const MAX_SPARE_CHUNKS: usize = 64;

/// A [`ChunkPool`] does not keep a chunk with more capacity than this.
const MAX_SPARE: usize = 2 * CHUNK;

/// A [`ChunkPool`] does not keep a queue with more capacity than this number of chunks.
const MAX_SPARE_QUEUE: usize = 16;

/// Whether the queue may drop a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A message that is never dropped.
    Message,
    /// Relayed application data, which may be dropped.
    Data,
}

/// Limits of the write queue of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteLimits {
    /// The longest time that application data waits. The queue drops it afterwards.
    pub age: Duration,
    /// Bytes of all messages. Above this limit, the queue drops the oldest application data.
    pub bytes: usize,
    /// Bytes of messages that cannot be dropped. Above this limit, close the connection.
    pub messages: usize,
}

/// The messages that cannot be dropped exceed [`WriteLimits::messages`]: close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer does not read its messages: close the connection")]
pub struct Unread;

/// Empty chunks that all connections of a worker share.
#[derive(Debug, Default)]
pub struct ChunkPool {
    chunks: Vec<Chunk>,
    /// Empty queues with their capacity. A connection that has something to write for a moment must not allocate one.
    queues: Vec<VecDeque<Chunk>>,
}

impl ChunkPool {
    fn take(&mut self, at: Mono) -> Chunk {
        let mut chunk = self.chunks.pop().unwrap_or_default();
        chunk.at = at;
        chunk
    }

    /// An empty queue, with capacity if there is one.
    fn take_queue(&mut self) -> VecDeque<Chunk> {
        self.queues.pop().unwrap_or_default()
    }

    fn put_queue(&mut self, queue: VecDeque<Chunk>) {
        if self.queues.len() < MAX_SPARE_CHUNKS && (1..=MAX_SPARE_QUEUE).contains(&queue.capacity())
        {
            self.queues.push(queue);
        }
    }

    fn put(&mut self, mut chunk: Chunk) {
        if self.chunks.len() < MAX_SPARE_CHUNKS && chunk.bytes.capacity() <= MAX_SPARE {
            chunk.bytes.clear();
            chunk.messages.clear();
            chunk.data = 0;
            self.chunks.push(chunk);
        }
    }
}

#[derive(Debug, Default)]
struct Chunk {
    /// Time at which its first message was queued.
    at: Mono,
    bytes: Vec<u8>,
    /// The ranges in `bytes` of messages that cannot be dropped.
    messages: Vec<Range<usize>>,
    /// Number of messages of application data.
    data: u32,
}

/// The write queue of one connection. An empty queue holds no memory.
#[derive(Debug, Default)]
pub struct WriteQueue {
    chunks: VecDeque<Chunk>,
    /// Bytes of the first chunk that were written.
    written: usize,
    /// Bytes in all chunks, including written bytes.
    bytes: usize,
    /// Bytes of messages that cannot be dropped, including written bytes.
    message_bytes: usize,
}

impl WriteQueue {
    /// Whether the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Bytes that are not written.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes - self.written
    }

    /// Bytes of queued messages that cannot be dropped.
    #[must_use]
    pub const fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// Queues one message, given in parts. Returns how many messages of application data the queue dropped to stay
    /// within its limit, perhaps including this one.
    ///
    /// # Errors
    /// [`Unread`] if messages that cannot be dropped exceed their limit. The message is not queued.
    pub fn push(
        &mut self,
        parts: &[&[u8]],
        content: Content,
        now: Mono,
        limits: &WriteLimits,
        spare: &mut ChunkPool,
    ) -> Result<u64, Unread> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if content == Content::Message && self.message_bytes + length > limits.messages {
            return Err(Unread);
        }
        let mut dropped = 0;
        if self.len() + length > limits.bytes {
            dropped = self.make_room(length, limits.bytes, spare);
            if content == Content::Data && self.len() + length > limits.bytes {
                return Ok(dropped + 1);
            }
        }
        let chunk = self.chunk_for(length, now, spare);
        let start = chunk.bytes.len();
        parts
            .iter()
            .for_each(|part| chunk.bytes.extend_from_slice(part));
        match content {
            Content::Data => chunk.data += 1,
            Content::Message => {
                chunk.messages.push(start..start + length);
                self.message_bytes += length;
            }
        }
        self.bytes += length;
        Ok(dropped)
    }

    /// The last chunk, if it is of the same wake-up and has room for the message; otherwise a new one.
    fn chunk_for(&mut self, length: usize, now: Mono, spare: &mut ChunkPool) -> &mut Chunk {
        let has_room = self
            .chunks
            .back()
            .is_some_and(|last| last.at == now && last.bytes.len() + length <= CHUNK);
        // Bytes of this chunk were written: a message added now could not be dropped any more.
        let is_begun = self.chunks.len() == 1 && self.written > 0;
        if self.chunks.capacity() == 0 {
            self.chunks = spare.take_queue();
        }
        if !has_room || is_begun {
            self.chunks.push_back(spare.take(now));
        }
        // There is a chunk: it had room, or a new one was added.
        let last = self.chunks.len() - 1;
        &mut self.chunks[last]
    }

    /// Drops application data that is older than `age`. Returns the number of dropped messages.
    pub fn expire(&mut self, now: Mono, age: Duration, spare: &mut ChunkPool) -> u64 {
        let mut dropped = 0;
        for at in self.first_droppable()..self.chunks.len() {
            // Chunks are sorted by time.
            if now.since(self.chunks[at].at) <= age {
                break;
            }
            dropped += self.drop_data(at);
        }
        self.remove_empty(spare);
        dropped
    }

    /// Drops the oldest application data until there is room for `length` bytes within `most`, or no application data
    /// is left.
    fn make_room(&mut self, length: usize, most: usize, spare: &mut ChunkPool) -> u64 {
        let mut dropped = 0;
        for at in self.first_droppable()..self.chunks.len() {
            if self.len() + length <= most {
                break;
            }
            dropped += self.drop_data(at);
        }
        self.remove_empty(spare);
        dropped
    }

    /// Index of the first chunk of which no byte was written.
    const fn first_droppable(&self) -> usize {
        if self.written > 0 { 1 } else { 0 }
    }

    /// Removes the application data from a chunk. Returns the number of removed messages.
    fn drop_data(&mut self, at: usize) -> u64 {
        let Some(chunk) = self.chunks.get_mut(at).filter(|chunk| chunk.data > 0) else {
            return 0;
        };
        let before = chunk.bytes.len();
        let mut kept = 0;
        for message in &mut chunk.messages {
            let length = message.len();
            chunk.bytes.copy_within(message.clone(), kept);
            *message = kept..kept + length;
            kept += length;
        }
        chunk.bytes.truncate(kept);
        self.bytes -= before - kept;
        u64::from(std::mem::take(&mut chunk.data))
    }

    fn remove_empty(&mut self, spare: &mut ChunkPool) {
        let mut at = 0;
        while at < self.chunks.len() {
            if !self.chunks[at].bytes.is_empty() {
                at += 1;
            } else if let Some(chunk) = self.chunks.remove(at) {
                spare.put(chunk);
            }
        }
        self.release_memory(spare);
    }

    /// Fills `parts` with the queued bytes, for one vectored write. Returns the number of parts.
    pub fn parts<'a>(&'a self, parts: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        let mut skip = self.written;
        for (part, chunk) in parts.iter_mut().zip(&self.chunks) {
            *part = IoSlice::new(chunk.bytes.get(skip..).unwrap_or_default());
            skip = 0;
            count += 1;
        }
        count
    }

    /// Removes bytes that were written.
    pub fn advance(&mut self, bytes: usize, spare: &mut ChunkPool) {
        self.written += bytes;
        while let Some(first) = self.chunks.front() {
            if self.written < first.bytes.len() {
                return;
            }
            self.written -= first.bytes.len();
            self.remove_first(spare);
        }
        self.written = 0;
        self.release_memory(spare);
    }

    /// The unwritten bytes of the first chunk. Over TLS they become one record. After use, call [`WriteQueue::advance`]
    /// with their length.
    #[must_use]
    pub fn first(&self) -> Option<&[u8]> {
        let chunk = self.chunks.front()?;
        chunk.bytes.get(self.written..)
    }

    fn remove_first(&mut self, spare: &mut ChunkPool) {
        if let Some(chunk) = self.chunks.pop_front() {
            self.bytes -= chunk.bytes.len();
            let messages: usize = chunk.messages.iter().map(Range::len).sum();
            self.message_bytes -= messages;
            spare.put(chunk);
        }
    }

    /// An empty queue keeps no memory, because most connections have nothing to write most of the time.
    fn release_memory(&mut self, spare: &mut ChunkPool) {
        if self.chunks.is_empty() {
            spare.put_queue(std::mem::take(&mut self.chunks));
        }
    }

    /// Removes everything when the connection is closed.
    pub fn clear(&mut self, spare: &mut ChunkPool) {
        while !self.chunks.is_empty() {
            self.remove_first(spare);
        }
        self.written = 0;
        self.release_memory(spare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: WriteLimits = WriteLimits {
        age: Duration::from_millis(500),
        bytes: 1 << 20,
        messages: 1 << 16,
    };

    fn ms(milliseconds: u64) -> Mono {
        Mono(milliseconds * 1_000_000)
    }

    fn take(queue: &mut WriteQueue, most: usize, spare: &mut ChunkPool) -> Vec<u8> {
        let mut parts = [IoSlice::new(&[]); 8];
        let count = queue.parts(&mut parts);
        let bytes: Vec<u8> = parts[..count]
            .iter()
            .flat_map(|part| part.to_vec())
            .collect();
        let taken = bytes[..most.min(bytes.len())].to_vec();
        queue.advance(taken.len(), spare);
        taken
    }

    #[test]
    fn messages_of_one_wake_up_share_a_chunk() {
        let (mut queue, mut spare) = (WriteQueue::default(), ChunkPool::default());
        for _ in 0..3 {
            let parts: [&[u8]; 2] = [b"ab", b"c"];
            assert_eq!(
                queue.push(&parts, Content::Data, ms(1), &LIMITS, &mut spare),
                Ok(0)
            );
        }
        assert_eq!((queue.first(), queue.len()), (Some(&b"abcabcabc"[..]), 9));
        queue
            .push(&[b"d"], Content::Data, ms(2), &LIMITS, &mut spare)
            .unwrap();
        assert_eq!(take(&mut queue, 99, &mut spare), b"abcabcabcd");
        assert!(queue.is_empty());
        assert_eq!(queue.bytes, queue.written);
        assert_eq!(spare.chunks.len(), 2);
    }

    #[test]
    fn old_data_is_dropped_and_messages_are_not() {
        let (mut queue, mut spare) = (WriteQueue::default(), ChunkPool::default());
        for (bytes, content) in [
            (b"data1", Content::Data),
            (b"mess1", Content::Message),
            (b"data2", Content::Data),
            (b"mess2", Content::Message),
        ] {
            queue
                .push(&[bytes], content, ms(0), &LIMITS, &mut spare)
                .unwrap();
        }
        queue
            .push(&[b"new"], Content::Data, ms(300), &LIMITS, &mut spare)
            .unwrap();
        assert_eq!(queue.expire(ms(500), LIMITS.age, &mut spare), 0);
        assert_eq!(queue.expire(ms(501), LIMITS.age, &mut spare), 2);
        assert_eq!((queue.len(), queue.message_bytes()), (13, 10));
        assert_eq!(take(&mut queue, 99, &mut spare), b"mess1mess2new");
        assert_eq!(queue.message_bytes(), 0);
    }

    #[test]
    fn a_begun_message_is_written_completely() {
        let (mut queue, mut spare) = (WriteQueue::default(), ChunkPool::default());
        queue
            .push(&[b"first"], Content::Data, ms(0), &LIMITS, &mut spare)
            .unwrap();
        assert_eq!(take(&mut queue, 2, &mut spare), b"fi");
        queue
            .push(&[b"second"], Content::Data, ms(0), &LIMITS, &mut spare)
            .unwrap();
        assert_eq!(queue.expire(ms(9_000), LIMITS.age, &mut spare), 1);
        assert_eq!(take(&mut queue, 99, &mut spare), b"rst");
        assert!(queue.is_empty());
    }

    #[test]
    fn beyond_the_limit_the_oldest_data_goes_first_and_too_many_messages_are_an_error() {
        let (mut queue, mut spare) = (WriteQueue::default(), ChunkPool::default());
        let limits = WriteLimits {
            bytes: 10,
            messages: 8,
            ..LIMITS
        };
        let mut push = |queue: &mut WriteQueue, bytes: &[u8], content, at| {
            queue.push(&[bytes], content, ms(at), &limits, &mut spare)
        };
        assert_eq!(push(&mut queue, b"old..", Content::Data, 1), Ok(0));
        assert_eq!(push(&mut queue, b"mid..", Content::Data, 2), Ok(0));
        assert_eq!(push(&mut queue, b"new", Content::Data, 3), Ok(1));
        assert_eq!(push(&mut queue, b"message1", Content::Message, 4), Ok(2));
        assert_eq!(push(&mut queue, b"m", Content::Message, 5), Err(Unread));
        assert_eq!(
            push(&mut queue, b"too long", Content::Data, 6),
            Ok(1),
            "there is no room for it"
        );
        assert_eq!(queue.first(), Some(&b"message1"[..]));
    }

    #[test]
    fn a_message_of_any_length_is_one_chunk() {
        let (mut queue, mut spare) = (WriteQueue::default(), ChunkPool::default());
        let long = vec![7; 65_540];
        queue
            .push(&[&long], Content::Data, ms(0), &LIMITS, &mut spare)
            .unwrap();
        queue
            .push(&[b"x"], Content::Data, ms(0), &LIMITS, &mut spare)
            .unwrap();
        assert_eq!(queue.first().map(<[u8]>::len), Some(65_540));
        queue.advance(65_540, &mut spare);
        assert_eq!(queue.first(), Some(&b"x"[..]));
        queue.clear(&mut spare);
        assert_eq!((queue.len(), queue.is_empty()), (0, true));
        assert_eq!(spare.chunks.len(), 1, "a large chunk is not kept");
    }

    proptest! {
        /// Whatever is queued, dropped and written: messages arrive whole, all of them, in order; data arrives whole or
        /// not at all.
        #[test]
        fn the_bytes_written_are_whole_messages_in_order(
            steps in prop::collection::vec((0..4_u8, 1..600_usize, 0..400_u64), 1..200)
        ) {
            let (mut queue, mut spare) = (WriteQueue::default(), ChunkPool::default());
            let limits = WriteLimits { bytes: 4_000, messages: 1 << 20, ..LIMITS };
            let (mut now, mut number, mut dropped) = (0, 0_u32, 0);
            let (mut queued, mut written) = (Vec::new(), Vec::new());
            for (what, amount, pause) in steps {
                now += pause;
                match what {
                    0 | 1 => {
                        let content = if what == 0 { Content::Message } else { Content::Data };
                        let body = vec![what; amount];
                        let head = [number.to_be_bytes(), (amount as u32).to_be_bytes()].concat();
                        dropped += queue.push(&[&head, &body], content, ms(now), &limits, &mut spare).unwrap();
                        queued.push((number, content));
                        number += 1;
                    }
                    2 => written.extend(take(&mut queue, amount, &mut spare)),
                    _ => dropped += queue.expire(ms(now), limits.age, &mut spare),
                }
            }
            while !queue.is_empty() {
                written.extend(take(&mut queue, 1_000, &mut spare));
            }
            let mut arrived = Vec::new();
            let mut rest = &written[..];
            while let Some((head, body)) = rest.split_first_chunk::<8>() {
                let length = u32::from_be_bytes([head[4], head[5], head[6], head[7]]) as usize;
                prop_assert!(body.len() >= length);
                arrived.push(u32::from_be_bytes([head[0], head[1], head[2], head[3]]));
                rest = &body[length..];
            }
            prop_assert!(rest.is_empty());
            prop_assert!(arrived.is_sorted());
            prop_assert_eq!(arrived.len() as u64 + dropped, queued.len() as u64);
            for (number, content) in queued {
                prop_assert!(content == Content::Data || arrived.contains(&number));
            }
            prop_assert_eq!((queue.len(), queue.message_bytes()), (0, 0));
        }
    }
}
