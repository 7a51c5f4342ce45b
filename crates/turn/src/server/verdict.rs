//! What to do with the datagrams just handed in: the return values of the hot path.

use std::net::SocketAddr;
use std::ops::Range;

use stun::ChannelNumber;

use super::drop_reason::DropReason;
use crate::{ClientPath, RelayKey};

/// What to do with the first `covers` datagrams of a client's [`Run`](crate::Run). Hand in the rest again.
///
/// `payload` is a range of every covered datagram. If the last one is shorter than the others, its payload
/// ends with it: use `&datagram[payload.start..payload.end.min(datagram.len())]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientVerdict {
    /// Send the payloads from the relay's socket to the peer.
    ToPeer {
        /// Number of datagrams, at least 1.
        covers: usize,
        /// The relay whose socket sends.
        relay: RelayKey,
        /// The destination.
        peer: SocketAddr,
        /// The bytes of each datagram to send.
        payload: Range<usize>,
        /// Whether the client requires the DF bit (RFC 8656 §14).
        dont_fragment: bool,
    },
    /// The peer is a relayed transport address of this server. Do not send the payloads: hand them to the server that
    /// owns `peer`, by [`handle_peer`](super::Server::handle_peer) with `from`.
    ToRelay {
        /// Number of datagrams, at least 1.
        covers: usize,
        /// The sending allocation's relayed transport address, as its client knows it.
        from: SocketAddr,
        /// The relayed transport address that receives.
        peer: SocketAddr,
        /// The bytes of each datagram to hand over.
        payload: Range<usize>,
    },
    /// A message for the server itself. Its effects, if any, are outputs.
    Handled {
        /// Number of datagrams, at least 1.
        covers: usize,
    },
    /// Discard.
    Drop {
        /// Number of datagrams, at least 1.
        covers: usize,
        /// Why. Counted in [`Stats`](super::Stats).
        reason: DropReason,
    },
}

impl ClientVerdict {
    /// The number of datagrams of the run that this verdict is for; at least 1.
    #[must_use]
    pub const fn covers(&self) -> usize {
        match *self {
            ClientVerdict::ToPeer { covers, .. }
            | ClientVerdict::ToRelay { covers, .. }
            | ClientVerdict::Handled { covers }
            | ClientVerdict::Drop { covers, .. } => covers,
        }
    }

    /// For [`ClientVerdict::ToPeer`]: the relay whose socket sends, the destination, and the bytes of each datagram to
    /// send.
    #[must_use]
    pub fn to_peer(&self) -> Option<(RelayKey, SocketAddr, Range<usize>)> {
        match self {
            ClientVerdict::ToPeer {
                relay,
                peer,
                payload,
                ..
            } => Some((*relay, *peer, payload.clone())),
            _ => None,
        }
    }
}

/// What to do with the first `covers` datagrams of a peer's [`Run`](crate::Run). Hand in the rest again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerVerdict {
    /// Send each datagram to the client behind a ChannelData header.
    ChannelData {
        /// Number of datagrams, at least 1.
        covers: usize,
        /// The client.
        path: ClientPath,
        /// The channel that the peer is bound to.
        channel: ChannelNumber,
    },
    /// Send each datagram to the client in a Data indication. Its header comes from
    /// [`write_data_indication`](super::Server::write_data_indication).
    DataIndication {
        /// Number of datagrams, at least 1.
        covers: usize,
        /// The client.
        path: ClientPath,
    },
    /// Discard.
    Drop {
        /// Number of datagrams, at least 1.
        covers: usize,
        /// Why. Counted in [`Stats`](super::Stats).
        reason: DropReason,
    },
}

impl PeerVerdict {
    /// The number of datagrams of the run that this verdict is for; at least 1.
    #[must_use]
    pub const fn covers(&self) -> usize {
        match *self {
            PeerVerdict::ChannelData { covers, .. }
            | PeerVerdict::DataIndication { covers, .. }
            | PeerVerdict::Drop { covers, .. } => covers,
        }
    }
}
