//! Which peers an allocation may talk to. The decision is the embedder's.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};

use super::allocate::is_tunnelled;
use super::output::RelayTransport;
use crate::FiveTuple;

/// The client that policy and quota decide about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientIdentity<'a> {
    /// The path between client and server. The source address is `five_tuple.remote`.
    pub five_tuple: FiveTuple,
    /// The realm of the user (RFC 8489 §14.9). The same user name in two realms means two users.
    pub realm: &'a str,
    /// The authenticated user name; of an access token, its kid and the end of its tag.
    pub user: &'a str,
    /// How its relayed transport address talks to peers.
    pub relay: RelayTransport,
    /// Whether the client has proven an access token (RFC 7635). It names nobody, and the client replaces it.
    pub by_token: bool,
}

impl<'a> ClientIdentity<'a> {
    /// A client with this 5-tuple, realm and user name, whose relayed transport address is one of UDP.
    #[must_use]
    pub const fn new(five_tuple: FiveTuple, realm: &'a str, user: &'a str) -> ClientIdentity<'a> {
        ClientIdentity {
            five_tuple,
            realm,
            user,
            relay: RelayTransport::Udp,
            by_token: false,
        }
    }
}

impl ClientIdentity<'_> {
    /// The same client with other texts.
    #[must_use]
    pub const fn with_names<'b>(&self, realm: &'b str, user: &'b str) -> ClientIdentity<'b> {
        ClientIdentity {
            five_tuple: self.five_tuple,
            realm,
            user,
            relay: self.relay,
            by_token: self.by_token,
        }
    }

    /// The same client, whose relayed transport address is one of TCP (RFC 6062).
    #[must_use]
    pub const fn over_tcp(mut self) -> Self {
        self.relay = RelayTransport::Tcp;
        self
    }
}

/// A [`ClientIdentity`] that owns its texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedClientIdentity {
    five_tuple: FiveTuple,
    realm: Box<str>,
    user: Box<str>,
    relay: RelayTransport,
    by_token: bool,
}

impl ClientIdentity<'_> {
    /// The same client, with its own texts.
    #[must_use]
    pub fn to_owned(&self) -> OwnedClientIdentity {
        OwnedClientIdentity {
            five_tuple: self.five_tuple,
            realm: self.realm.into(),
            user: self.user.into(),
            relay: self.relay,
            by_token: self.by_token,
        }
    }
}

impl OwnedClientIdentity {
    /// The client.
    #[must_use]
    pub fn identity(&self) -> ClientIdentity<'_> {
        ClientIdentity {
            relay: self.relay,
            by_token: self.by_token,
            ..ClientIdentity::new(self.five_tuple, &self.realm, &self.user)
        }
    }
}

/// What a peer's address is to this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerClass {
    /// A peer that the client may talk to.
    Peer,
    /// A relayed transport address of this server: the client may talk to it, and the data stays inside the process.
    OwnRelay,
    /// The client may not talk to it: 403 (RFC 8656 §10.2, §12.2; RFC 6062 §5.2), a discarded datagram, or a closed
    /// connection.
    Denied,
}

/// Which peers are allowed. The engine asks for each CreatePermission and ChannelBind request, each Send indication and
/// each Connect request. After [`Server::set_config`](super::Server::set_config) it asks once for each permission,
/// channel and connection with a peer.
///
/// The engine itself denies Teredo and 6to4 addresses (RFC 8656 §21.4) and port 0.
pub trait PeerPolicy: Debug + Send + Sync {
    /// Whether the client may have a permission for this address. Permissions are per address, so ports do not matter
    /// (RFC 8656 §9).
    fn classify(&self, client: &ClientIdentity<'_>, peer: IpAddr) -> PeerClass;

    /// Whether the client may send to this port of this address. [`PeerClass::OwnRelay`] only for a port that an active
    /// allocation of this server owns at this moment.
    fn permits(&self, client: &ClientIdentity<'_>, peer: SocketAddr) -> PeerClass;

    /// Whether the client may connect to this port of this address over TCP (RFC 6062). [`PeerClass::OwnRelay`] only
    /// for a port on which an active TCP allocation of this server listens. Default: the result
    /// of `permits`, but relays of this server are denied.
    fn permits_connection(&self, client: &ClientIdentity<'_>, peer: SocketAddr) -> PeerClass {
        match self.permits(client, peer) {
            PeerClass::Peer => PeerClass::Peer,
            PeerClass::OwnRelay | PeerClass::Denied => PeerClass::Denied,
        }
    }
}

/// Allows every peer. For tests, and for networks without anything to protect: clients reach what the server's host
/// reaches.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllowEveryPeer;

impl PeerPolicy for AllowEveryPeer {
    fn classify(&self, _: &ClientIdentity<'_>, _: IpAddr) -> PeerClass {
        PeerClass::Peer
    }

    fn permits(&self, _: &ClientIdentity<'_>, _: SocketAddr) -> PeerClass {
        PeerClass::Peer
    }
}

/// The class of a peer that a client wants to connect to.
pub(super) fn class_of_connection(
    policy: &dyn PeerPolicy,
    client: &ClientIdentity<'_>,
    peer: SocketAddr,
) -> PeerClass {
    if is_tunnelled(peer.ip()) || peer.port() == 0 {
        return PeerClass::Denied;
    }
    policy.permits_connection(client, peer)
}

/// The class of an address for which a permission is wanted.
pub(super) fn class_of_address(
    policy: &dyn PeerPolicy,
    client: &ClientIdentity<'_>,
    peer: IpAddr,
) -> PeerClass {
    if is_tunnelled(peer) {
        return PeerClass::Denied;
    }
    policy.classify(client, peer)
}

/// The class of a peer that data would be sent to.
pub(super) fn class_of_peer(
    policy: &dyn PeerPolicy,
    client: &ClientIdentity<'_>,
    peer: SocketAddr,
) -> PeerClass {
    // A datagram to port 0 could not even be sent.
    if is_tunnelled(peer.ip()) || peer.port() == 0 {
        return PeerClass::Denied;
    }
    policy.permits(client, peer)
}
