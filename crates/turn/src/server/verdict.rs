//! What to do with the datagrams just handed in: the answer of the hot path.

use std::net::SocketAddr;
use std::ops::Range;

use stun::ChannelNumber;

use super::drop_reason::DropReason;
use crate::{ClientPath, RelayKey};

/// What to do with the first `covers` datagrams of a [`Run`](crate::Run); hand the rest in again.
///
/// `payload` is a range of every covered datagram. Where the last one is shorter than the others, its payload
/// ends with it: take `&datagram[payload.start..payload.end.min(datagram.len())]`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Send the payloads from the relay's socket to the peer.
    ToPeer {
        /// How many datagrams, at least 1.
        covers: usize,
        /// Whose socket to send from.
        relay: RelayKey,
        /// Where to.
        peer: SocketAddr,
        /// Which bytes of each datagram.
        payload: Range<usize>,
        /// Whether the client asked for the DF bit (RFC 8656 §14).
        dont_fragment: bool,
    },
    /// The peer is a relayed transport address of this very server: hand the payloads to the server that owns
    /// `peer` ([`handle_peer`](super::Server::handle_peer) with `from`), instead of sending them.
    ToRelay {
        /// How many datagrams, at least 1.
        covers: usize,
        /// The sending allocation's relayed transport address, as its client knows it.
        from: SocketAddr,
        /// The relayed transport address they are for.
        peer: SocketAddr,
        /// Which bytes of each datagram.
        payload: Range<usize>,
    },
    /// Send each datagram to the client behind a ChannelData header.
    ToClient {
        /// How many datagrams, at least 1.
        covers: usize,
        /// Where to.
        path: ClientPath,
        /// The channel that the peer is bound to.
        channel: ChannelNumber,
    },
    /// Send each datagram to the client in a Data indication; its header comes from
    /// [`write_data_indication`](super::Server::write_data_indication).
    Indicate {
        /// How many datagrams, at least 1.
        covers: usize,
        /// Where to.
        path: ClientPath,
    },
    /// It was a message for the server itself; what follows from it, if anything, is in the queue of outputs.
    Handled {
        /// How many datagrams, at least 1.
        covers: usize,
    },
    /// Discard.
    Drop {
        /// How many datagrams, at least 1.
        covers: usize,
        /// Why. Counted in [`Stats`](super::Stats).
        reason: DropReason,
    },
}

impl Verdict {
    /// How many datagrams of the run this speaks for; at least 1.
    #[must_use]
    pub const fn covers(&self) -> usize {
        match *self {
            Verdict::ToPeer { covers, .. }
            | Verdict::ToRelay { covers, .. }
            | Verdict::ToClient { covers, .. }
            | Verdict::Indicate { covers, .. }
            | Verdict::Handled { covers }
            | Verdict::Drop { covers, .. } => covers,
        }
    }
}
