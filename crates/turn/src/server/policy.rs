//! Which peers an allocation may talk to. The decision is the embedder's.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};

/// What a peer's address is to this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerClass {
    /// A peer that may be talked to.
    Peer,
    /// A relayed transport address of this very server: talked to, but inside the process.
    OwnRelay,
    /// Not to be talked to: 403 (RFC 8656 §10.2, §12.2), or a discarded datagram.
    Denied,
}

/// Which peers are allowed. Asked when a permission or a channel is made, for every Send indication, and once
/// per channel and permission after [`Server::set_config`](super::Server::set_config).
pub trait PeerPolicy: Debug + Send + Sync {
    /// Whether a permission towards this address may be made. Ports play no part: permissions are per address
    /// (RFC 8656 §9).
    fn classify(&self, peer: IpAddr) -> PeerClass;

    /// Whether this port of this address may be sent to. [`PeerClass::OwnRelay`] only for a port that a live
    /// allocation of this server owns at this moment.
    fn permits(&self, peer: SocketAddr) -> PeerClass;
}
