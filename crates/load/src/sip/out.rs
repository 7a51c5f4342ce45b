//! Messages on their way out, written one after the other into one buffer that is used again and again.

use std::net::SocketAddr;
use std::ops::Range;

/// A message and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Socket or connection.
    pub(crate) link: u32,
    /// Destination of a datagram.
    pub(crate) to: SocketAddr,
    /// Where it lies in [`Out::bytes`].
    pub(crate) range: Range<usize>,
}

/// Where a message came from, and over what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Socket or connection.
    pub(crate) link: u32,
    /// Its sender.
    pub(crate) from: SocketAddr,
}

/// What waits to be sent.
#[derive(Debug, Default)]
pub(crate) struct Out {
    pub(crate) bytes: Vec<u8>,
    pub(crate) entries: Vec<Entry>,
}

impl Out {
    /// Writes a message by `write`, which appends to the buffer.
    pub(crate) fn write(&mut self, link: u32, to: SocketAddr, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        write(&mut self.bytes);
        let range = start..self.bytes.len();
        self.entries.push(Entry { link, to, range });
    }

    /// Messages that wait.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Forgets all of them and keeps the room.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }
}
