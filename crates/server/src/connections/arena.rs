//! The buffer for the data that a worker has received from its connections.

use super::Slot;
use std::ops::Range;

/// When the arena holds this number of bytes, the worker handles its messages before it reads more.
const FULL_BYTES: usize = 256 << 10;

/// The maximum number of bytes per read from a connection.
const MAX_READ_BYTES: usize = 64 << 10;

/// Plaintext of several connections. It does not move while a session borrows it.
#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) bytes: Vec<u8>,
    pub(crate) items: Vec<(Slot, Range<usize>)>,
    /// The receive buffer for reads from a socket.
    pub(super) received: Vec<u8>,
}

impl Arena {
    /// `used` says whether the worker has listeners for connections. If not, no memory is allocated.
    pub(crate) fn new(used: bool) -> Arena {
        Arena {
            bytes: Vec::new(),
            items: Vec::new(),
            received: vec![0; if used { MAX_READ_BYTES } else { 0 }],
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= FULL_BYTES
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.items.clear();
    }

    /// Adds bytes that a connection has sent.
    pub(super) fn push(&mut self, slot: Slot, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.name(slot, start);
    }

    /// Records that the bytes from `start` on belong to this connection.
    pub(super) fn name(&mut self, slot: Slot, start: usize) {
        if self.bytes.len() > start {
            self.items.push((slot, start..self.bytes.len()));
        }
    }
}
