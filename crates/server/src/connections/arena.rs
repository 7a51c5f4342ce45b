//! The memory in which a worker handles what connections have sent: messages of many connections, one after the other.

use super::Slot;
use std::ops::Range;

/// From here on the messages at hand are handled before more is read.
const ENOUGH: usize = 256 << 10;

/// Bytes read from one connection at a time.
const READ: usize = 64 << 10;

/// Plaintext of several connections. Nothing in it moves while a session uses it.
#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) bytes: Vec<u8>,
    pub(crate) items: Vec<(Slot, Range<usize>)>,
    /// What is read from a socket goes here first.
    pub(super) received: Vec<u8>,
}

impl Arena {
    /// `used`: whether there are connections at all.
    pub(crate) fn new(used: bool) -> Arena {
        Arena {
            bytes: Vec::new(),
            items: Vec::new(),
            received: vec![0; if used { READ } else { 0 }],
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= ENOUGH
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.items.clear();
    }

    /// Adds what a connection has sent.
    pub(super) fn push(&mut self, slot: Slot, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.name(slot, start);
    }

    /// What was added from `start` on is of this connection.
    pub(super) fn name(&mut self, slot: Slot, start: usize) {
        if self.bytes.len() > start {
            self.items.push((slot, start..self.bytes.len()));
        }
    }
}
