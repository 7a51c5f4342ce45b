//! The latest messages of one worker, in two buffers of fixed size.

use super::MessagePath;
use std::collections::VecDeque;

/// One part in this many of the memory is for entries, the rest is for bytes. With messages of 700 bytes, both are full
/// at the same time.
const ENTRIES_DIVISOR: usize = 8;

#[derive(Debug, Clone, Copy)]
struct RingEntry {
    path: MessagePath,
    /// The position of its first byte, counted from the first byte that the ring had.
    at: u64,
    length: u32,
}

/// Removes the oldest messages when there is no room for a new one. Allocates nothing after `new`.
#[derive(Debug)]
pub(super) struct Ring {
    entries: VecDeque<RingEntry>,
    most_entries: usize,
    /// The number of the first entry.
    first: u64,
    bytes: VecDeque<u8>,
    most_bytes: usize,
    /// Bytes that were removed.
    removed: u64,
}

impl Ring {
    /// A ring with `memory` bytes.
    pub(super) fn new(memory: usize) -> Ring {
        let most_entries = (memory / ENTRIES_DIVISOR / size_of::<RingEntry>()).max(1);
        let most_bytes = memory - memory / ENTRIES_DIVISOR;
        Ring {
            entries: VecDeque::with_capacity(most_entries),
            most_entries,
            first: 0,
            bytes: VecDeque::with_capacity(most_bytes),
            most_bytes,
            removed: 0,
        }
    }

    /// The number of the oldest message, or of the next one if there is none.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Adds a message. One that is larger than the ring is cut.
    pub(super) fn push(&mut self, path: MessagePath, message: &[u8]) {
        let message = message.get(..self.most_bytes).unwrap_or(message);
        while self.entries.len() >= self.most_entries
            || self.bytes.len() + message.len() > self.most_bytes
        {
            let Some(oldest) = self.entries.pop_front() else {
                break;
            };
            let length = oldest.length as usize;
            self.bytes.drain(..length.min(self.bytes.len()));
            self.removed += u64::from(oldest.length);
            self.first += 1;
        }
        self.entries.push_back(RingEntry {
            path,
            at: self.removed + self.bytes.len() as u64,
            // A message has at most some megabytes.
            length: message.len() as u32,
        });
        self.bytes.extend(message);
    }

    /// Copies a message into `into`. `None` if there is none with this number any more, or yet.
    pub(super) fn get(&self, number: u64, into: &mut Vec<u8>) -> Option<MessagePath> {
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let entry = self.entries.get(place)?;
        let at = usize::try_from(entry.at - self.removed).ok()?;
        into.clear();
        into.extend(self.bytes.range(at..at + entry.length as usize));
        Some(entry.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sip::flow::Transport;

    fn path(unix_ns: u64) -> MessagePath {
        MessagePath {
            unix_ns,
            is_sent: false,
            transport: Transport::Udp,
            local: ([127, 0, 0, 1], 5060).into(),
            remote: ([127, 0, 0, 1], 5062).into(),
        }
    }

    fn message(number: u64) -> Vec<u8> {
        let length = (number * 37 % 700) as usize;
        vec![number as u8; length]
    }

    #[test]
    fn it_keeps_the_latest_messages_in_the_memory_it_has() {
        let mut ring = Ring::new(16 << 10);
        let capacities = (ring.entries.capacity(), ring.bytes.capacity());
        let mut bytes = Vec::new();
        for number in 0..1000 {
            ring.push(path(number), &message(number));
            assert_eq!(ring.get(number, &mut bytes), Some(path(number)));
            assert_eq!(ring.get(number + 1, &mut bytes), None);
        }
        assert_eq!(capacities, (ring.entries.capacity(), ring.bytes.capacity()));
        assert!(ring.first() > 900 && ring.first() < 990, "{}", ring.first());
        assert_eq!(ring.get(ring.first() - 1, &mut bytes), None);
        for number in ring.first()..1000 {
            assert_eq!(ring.get(number, &mut bytes), Some(path(number)));
            assert_eq!(bytes, message(number));
        }
    }

    #[test]
    fn a_message_larger_than_the_ring_is_cut() {
        let mut ring = Ring::new(4 << 10);
        let mut bytes = Vec::new();
        ring.push(path(0), &[1; 100]);
        ring.push(path(1), &[7; 8 << 10]);
        assert_eq!(ring.get(0, &mut bytes), None);
        assert_eq!(ring.get(1, &mut bytes), Some(path(1)));
        assert_eq!(bytes, [7; 3584]);
    }
}
