//! What the embedder is to do: the queue of the cold path.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use stun::{AddressFamily, ChannelNumber, Method};

use super::auth_failure::AuthFailure;
use super::credentials::{Credentials, KeyQuery};
use super::policy::ClientIdentity;
use super::user::VerifiedUser;
use crate::{AllocationKey, ClientPath, ConnectionKey, LookupKey, Mono, RelayKey, RequestKey};

/// Something for the embedder to do, in this order.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Output<'a> {
    /// Send one datagram (or one message, on a stream) to a client.
    Send {
        /// Where to.
        path: ClientPath,
        /// A complete STUN message.
        bytes: &'a [u8],
    },
    /// Open sockets, all of them or those that can be opened, and call
    /// [`relays_opened`](super::Server::relays_opened). Or move the request to an engine with a lower load, by its
    /// [`handle_moved`](super::Server::handle_moved), and call [`request_moved`](super::Server::request_moved) here.
    OpenRelays {
        /// Hand this back.
        request: RequestKey,
        /// The client.
        path: ClientPath,
        /// One or two sockets.
        relays: &'a [RelayRequest],
        /// The request, byte for byte. `None` if it may not be moved, because it came from another engine.
        message: Option<&'a [u8]>,
        /// Who has made the request: hand it over with the request.
        user: &'a VerifiedUser,
    },
    /// An authenticated request from a 5-tuple whose Allocate request was [moved](super::Server::request_moved) a
    /// moment ago: hand it to the same engine's [`handle_moved`](super::Server::handle_moved).
    MoveRequest {
        /// The embedder's number of that engine.
        to: u16,
        /// The client.
        path: ClientPath,
        /// The request, byte for byte.
        message: &'a [u8],
        /// Who has made the request: hand it over with the request.
        user: &'a VerifiedUser,
    },
    /// A Refresh request over UDP whose genuine ticket (RFC 8016) names another engine. From now on, have the
    /// datagrams of this 5-tuple delivered to that engine, and hand it the request by
    /// [`handle_moved`](super::Server::handle_moved). If it has no [allocation](super::Server::has_allocation) for the
    /// 5-tuple then, or if that is impossible, change nothing: the request is lost.
    MoveClient {
        /// The number of that engine.
        to: u16,
        /// The client.
        path: ClientPath,
        /// The request, byte for byte.
        message: &'a [u8],
        /// Who has made the request: hand it over with the request. `None` if the other engine must authenticate the
        /// request. It has the session key of the allocation, even without the key of the access token (RFC 7635).
        user: Option<&'a VerifiedUser>,
    },
    /// An allocation has this 5-tuple, too (RFC 8016).
    PathAdded {
        /// The client's new path.
        path: ClientPath,
    },
    /// An allocation no longer has this 5-tuple, which was its second one.
    PathRemoved {
        /// The path.
        path: ClientPath,
    },
    /// A client has moved: data goes to and comes from its second 5-tuple only. Write the log line.
    ClientMoved {
        /// The user, and the 5-tuple that the allocation has now.
        client: ClientIdentity<'a>,
        /// The path that it had.
        from: ClientPath,
    },
    /// A request on a stream that belongs to another engine: ConnectionBind (RFC 6062 §5.4), by its CONNECTION-ID, or
    /// Refresh, by its ticket (RFC 8016). Move the client's connection there, and call its
    /// [`connection_moved`](super::Server::connection_moved). If there is no such engine, call it here: the client gets
    /// an error. If that engine accepts no connection at the moment, call
    /// [`connection_not_moved`](super::Server::connection_not_moved) here.
    MoveConnection {
        /// The number of that engine.
        to: u16,
        /// The client.
        path: ClientPath,
        /// The request, byte for byte. It is not authenticated yet.
        message: &'a [u8],
    },
    /// The reservation token names another worker: ask its engine with
    /// [`claim_reservation`](super::Server::claim_reservation), move the socket here under `key`, and call
    /// [`reservation_claimed`](super::Server::reservation_claimed).
    ClaimReservation {
        /// Hand this back.
        request: RequestKey,
        /// The token as received; the first byte is the number of the worker that made it.
        token: [u8; 8],
        /// The claiming client. Its user must own the reservation.
        client: ClientIdentity<'a>,
        /// The key under which the relay will be known here.
        key: RelayKey,
    },
    /// A source of credentials responds later: call [`Credentials::begin_find`] with this query, and hand what comes
    /// back to [`keys_found`](super::Server::keys_found), on this thread, at any time.
    FindKeys {
        /// Hand this back.
        lookup: LookupKey,
        /// What is wanted.
        query: KeyQuery<'a>,
        /// Whom to ask.
        credentials: &'a Arc<dyn Credentials>,
    },
    /// The request that came last on this stream waits: read nothing more from it until
    /// [`ResumeReading`](Output::ResumeReading).
    PauseReading {
        /// The client.
        path: ClientPath,
    },
    /// The request that waited has been handled: read on.
    ResumeReading {
        /// The client.
        path: ClientPath,
    },
    /// A request was not believed: write the log line. At most one per second and reason.
    AuthenticationFailed {
        /// The client.
        path: ClientPath,
        /// Whom it claims to be: a user name that anybody can have written, or the hash of one in hexadecimal digits.
        user: &'a str,
        /// Why.
        reason: AuthFailure,
        /// How many of this reason were left out since the last one.
        omitted: u64,
    },
    /// Close the relay's socket, after everything queued on it was sent. There may be none: opening may have
    /// failed.
    CloseRelay {
        /// The relay of the socket.
        relay: RelayKey,
    },
    /// Dial a TCP connection from the relay's address to the peer (RFC 6062 §5.2), and call
    /// [`connected`](super::Server::connected). The policy has allowed the peer. Read nothing from the connection
    /// before it is bound.
    Connect {
        /// The key of the connection.
        connection: ConnectionKey,
        /// The relay whose address and port the connection comes from.
        relay: RelayKey,
        /// The peer.
        peer: SocketAddr,
    },
    /// Relay bytes between the connection to the peer and the data connection, both ways (RFC 6062 §5.4). First send
    /// the response that was queued before this output. When either connection ends, call
    /// [`connection_closed`](super::Server::connection_closed).
    BindConnection {
        /// The connection to the peer.
        connection: ConnectionKey,
        /// The client's data connection.
        path: ClientPath,
    },
    /// Close the connection to the peer and its data connection, if one is bound. If the connection is still being
    /// established, cancel that.
    CloseConnection {
        /// The connection to the peer.
        connection: ConnectionKey,
    },
    /// The kernel may relay the channel's datagrams, both ways, until `deadline`. Queued before the response with the
    /// channel, and again when the deadline changes. An embedder that cannot offload the channel ignores this output:
    /// the engine relays every datagram that it gets. Only with [`Config::offload`](super::Config::offload), and only
    /// for UDP clients.
    Offload {
        /// Which.
        channel: OffloadedChannel,
        /// Whether the peer is a relayed transport address of this server, so that its client's permission counts as
        /// well.
        own_relay: bool,
        /// The earliest expiry of the channel, its permission and the allocation. The kernel must stop by itself then,
        /// unless a later deadline came before.
        deadline: Mono,
    },
    /// The kernel may no longer relay this channel. Report what it relayed by
    /// [`add_offloaded_traffic`](super::Server::add_offloaded_traffic) before the next output is fetched.
    StopOffload {
        /// Which.
        channel: OffloadedChannel,
    },
    /// An allocation began: write the log line.
    AllocationOpened {
        /// The realm of the user it belongs to.
        realm: &'a str,
        /// The user it belongs to.
        user: &'a str,
        /// The client.
        path: ClientPath,
        /// The relayed transport addresses that the client has.
        relayed: RelayedAddresses,
        /// Seconds until it expires, unless refreshed.
        lifetime_s: u32,
    },
    /// An allocation, or one family of it, was refreshed. Only with
    /// [`Config::report_changes`](super::Config::report_changes), as are the next five.
    AllocationRefreshed {
        /// The client of the allocation.
        client: ClientIdentity<'a>,
        /// Seconds until it expires.
        lifetime_s: u32,
    },
    /// A permission was installed or refreshed.
    PermissionInstalled {
        /// The client of the allocation.
        client: ClientIdentity<'a>,
        /// The address that it is for.
        peer: IpAddr,
    },
    /// A channel was bound or refreshed, and its permission with it.
    ChannelBound {
        /// The client of the allocation.
        client: ClientIdentity<'a>,
        /// Its number.
        number: ChannelNumber,
        /// The peer.
        peer: SocketAddr,
    },
    /// A permission has expired, or its relayed transport address has ended before the allocation. With the allocation,
    /// all its permissions and channels end: there is no output for each.
    PermissionEnded {
        /// The client of the allocation.
        client: ClientIdentity<'a>,
        /// The address that it was for.
        peer: IpAddr,
    },
    /// A channel has expired, or its relayed transport address has ended before the allocation.
    ChannelEnded {
        /// The client of the allocation.
        client: ClientIdentity<'a>,
        /// Its number.
        number: ChannelNumber,
        /// The peer.
        peer: SocketAddr,
    },
    /// A request has proven its user's key. Reported by the engine that has received the request, not by the one it is
    /// moved to.
    Authenticated {
        /// The client of the allocation.
        client: ClientIdentity<'a>,
        /// What it asks for.
        method: Method,
    },
    /// An allocation ended: write the log line.
    AllocationClosed {
        /// The realm of the user it belonged to.
        realm: &'a str,
        /// The user it belonged to.
        user: &'a str,
        /// The client.
        path: ClientPath,
        /// The relayed transport addresses it had when it ended.
        relayed: RelayedAddresses,
        /// What went from the client to peers.
        to_peers: Traffic,
        /// What went from peers to the client.
        to_client: Traffic,
        /// How long it lived.
        duration: Duration,
        /// Why it ended.
        reason: CloseReason,
    },
}

/// A channel that the kernel may relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadedChannel {
    /// The allocation of the channel. The embedder returns it with the counts.
    pub allocation: AllocationKey,
    /// The client.
    pub path: ClientPath,
    /// The relayed transport address that the client has.
    pub relayed: SocketAddr,
    /// What the channel is bound to.
    pub peer: SocketAddr,
    /// The channel's number, which no other channel of the allocation has.
    pub number: ChannelNumber,
}

/// The relayed transport addresses of one allocation: one, or one of each family (RFC 8656 §6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayedAddresses {
    /// The IPv4 one.
    pub v4: Option<SocketAddr>,
    /// The IPv6 one.
    pub v6: Option<SocketAddr>,
}

/// Relayed datagrams and the application data in them, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Datagrams.
    pub packets: u64,
    /// Application data without any TURN framing, in bytes.
    pub bytes: u64,
}

impl Traffic {
    /// Counts this many datagrams with this many bytes in all.
    pub(super) const fn add(&mut self, packets: usize, bytes: usize) {
        self.packets += packets as u64;
        self.bytes += bytes as u64;
    }

    /// Adds what was counted elsewhere.
    pub(super) const fn merge(&mut self, other: Traffic) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// The transport protocol between the server and its peers (REQUESTED-TRANSPORT, RFC 8656 §18.8; TCP: RFC 6062 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RelayTransport {
    /// UDP.
    Udp,
    /// TCP (RFC 6062): the socket listens for connections from peers. Only with
    /// [`Config::tcp_relay`](super::Config::tcp_relay).
    Tcp,
}

/// One socket to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayRequest {
    /// The key of the relay. An epoll token can be made from it.
    pub key: RelayKey,
    /// UDP, or TCP for an allocation of RFC 6062.
    pub transport: RelayTransport,
    /// IPv4 or IPv6.
    pub family: AddressFamily,
    /// Which port.
    pub port: PortRequest,
}

/// Which port a relayed transport address is to have (RFC 8656 §7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortRequest {
    /// Any.
    Any,
    /// An even one.
    Even,
    /// The port above that of the entry before, which was `Even`, on the same address.
    Next,
}

/// A relay's socket is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedRelay {
    /// The address the socket is bound to.
    pub local: SocketAddr,
    /// The address that peers reach it at; the client gets this one.
    pub advertised: SocketAddr,
}

impl OpenedRelay {
    /// A socket that peers reach at the address that it is bound to.
    #[must_use]
    pub const fn at(address: SocketAddr) -> OpenedRelay {
        OpenedRelay {
            local: address,
            advertised: address,
        }
    }
}

/// Why a relay's socket could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No port with the requested properties is free: 508.
    #[error("no free relay port; widen the port range")]
    NoPort,
    /// The process may not open another file: 508.
    #[error("too many open files; raise the limit")]
    NoDescriptor,
    /// There is no relay address of this family: 440.
    #[error("no relay address of this family")]
    FamilyUnsupported,
    /// Any other error of the system: 508.
    #[error("the socket could not be opened")]
    Other,
}

/// Why an allocation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CloseReason {
    /// The client refreshed it to a lifetime of zero.
    Refreshed,
    /// It was not refreshed in time.
    Expired,
    /// The client's connection is closed.
    ClientClosed,
    /// The server shuts down.
    ServerShutdown,
    /// The operator ended it.
    Operator,
}

impl CloseReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: &'static [CloseReason] = &[
        CloseReason::Refreshed,
        CloseReason::Expired,
        CloseReason::ClientClosed,
        CloseReason::ServerShutdown,
        CloseReason::Operator,
    ];

    /// How many reasons there are.
    pub(crate) const COUNT: usize = Self::ALL.len();

    /// The reason's name in metrics and logs, in snake case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            CloseReason::Refreshed => "refreshed_to_zero",
            CloseReason::Expired => "expired",
            CloseReason::ClientClosed => "client_closed",
            CloseReason::ServerShutdown => "server_shutdown",
            CloseReason::Operator => "operator",
        }
    }
}
