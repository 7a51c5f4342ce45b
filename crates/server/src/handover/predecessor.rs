//! Messages from a worker of the new process to a worker of the old one: rare requests that name an allocation of the
//! old process.

use crate::steering::Numbering;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc::SyncSender;
use turn::{FiveTuple, Transport};

/// Most bytes of a [`ForeignMessage`].
pub const MAX_FOREIGN_BYTES: usize = 64 << 10;

/// A request that a client has sent to the new process, for a worker of the old one.
#[derive(Debug)]
pub struct ForeignMessage {
    /// The worker's number.
    pub worker: u16,
    /// Where the client sent it.
    pub local: SocketAddr,
    /// The client.
    pub remote: SocketAddr,
    /// A datagram, or all bytes that the client has sent over its connection so far: at most [`MAX_FOREIGN_BYTES`].
    pub bytes: Vec<u8>,
    /// The client's TCP connection; `None` for a datagram.
    pub connection: Option<OwnedFd>,
}

/// The process that this one has taken over from, as its workers see it.
#[derive(Debug)]
pub(crate) struct Predecessor {
    numbering: Numbering,
    sender: SyncSender<ForeignMessage>,
}

impl Predecessor {
    pub(crate) const fn new(
        numbering: Numbering,
        sender: SyncSender<ForeignMessage>,
    ) -> Predecessor {
        Predecessor { numbering, sender }
    }

    /// Whether the worker with this number is there.
    pub(crate) fn has_worker(&self, worker: u16) -> bool {
        self.numbering.index(worker).is_some()
    }

    /// Sends a datagram to a worker. Returns whether it will get there.
    pub(crate) fn send_datagram(&self, worker: u16, from: &FiveTuple, bytes: &[u8]) -> bool {
        from.transport == Transport::Udp
            && self.send(ForeignMessage {
                worker,
                local: from.local,
                remote: from.remote,
                bytes: bytes.to_vec(),
                connection: None,
            })
    }

    /// Sends a message. Returns whether it will get there.
    pub(crate) fn send(&self, message: ForeignMessage) -> bool {
        message.bytes.len() <= MAX_FOREIGN_BYTES && self.sender.try_send(message).is_ok()
    }
}
