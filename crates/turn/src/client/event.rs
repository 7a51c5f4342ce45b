//! The events of a client for its owner.

use std::net::{IpAddr, SocketAddr};

use stun::{AddressFamily, ChannelNumber, ConnectionId};

use super::error::{Advice, RequestError, Timing};

/// What an Allocate request obtained.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Allocated {
    /// The relayed transport address.
    pub relayed: SocketAddr,
    /// The second one, of the other family, after ADDITIONAL-ADDRESS-FAMILY.
    pub additional: Option<SocketAddr>,
    /// Why there is no second one though it was asked for: the family and 440 or 508 (ADDRESS-ERROR-CODE).
    pub refused_family: Option<(AddressFamily, u16)>,
    /// This client's address as the server sees it: its server-reflexive transport address.
    pub mapped: SocketAddr,
    /// How long the allocation lasts unless refreshed, in seconds.
    pub lifetime_s: u32,
    /// Claims the reserved next higher port, after EVEN-PORT with the R bit.
    pub reservation: Option<[u8; 8]>,
    /// What the server says it is.
    pub software: Option<Box<str>>,
    /// Time since the last (usually the second) request.
    pub timing: Timing,
}

/// What a Binding request found out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mapped {
    /// This client's address as the server sees it.
    pub address: SocketAddr,
    /// What the server says it is.
    pub software: Option<Box<str>>,
    /// The round trip.
    pub timing: Timing,
}

/// Why an allocation has ended without a release.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocationLoss {
    /// The server does not have it any more (437).
    Forgotten,
    /// Its time ran out.
    Expired,
    /// The server refuses to keep it, and its time will run out.
    Refused(RequestError),
}

/// An ICMP error that the server received from the path to a peer (RFC 8656 §11.6). Type and code are those of ICMP or
/// ICMPv6, as the peer's address family says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerError {
    /// The peer; port 0 if the server has not reported it.
    pub peer: SocketAddr,
    /// ICMP type.
    pub icmp_type: u8,
    /// ICMP code.
    pub icmp_code: u8,
    /// The next hop's MTU in bytes if a datagram was too big, otherwise 0.
    pub mtu: u32,
}

/// An event. Events come in the order in which they happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A Binding request was answered.
    Mapped(Box<Mapped>),
    /// A Binding request failed.
    BindingFailed(RequestError),
    /// There is an allocation.
    Allocated(Box<Allocated>),
    /// The Allocate request failed.
    AllocateFailed {
        /// Why.
        error: RequestError,
        /// What to do now.
        advice: Advice,
    },
    /// The allocation lives on; sent for every Refresh that succeeds.
    Refreshed {
        /// From now, in seconds.
        lifetime_s: u32,
        /// The round trip.
        timing: Timing,
    },
    /// The server has the client's new address ([`Client::moved`](super::Client::moved)). Send data, so that it sends
    /// data there, too.
    Moved {
        /// From now, in seconds.
        lifetime_s: u32,
        /// The round trip.
        timing: Timing,
    },
    /// The server has not accepted the new address. If the old address still works, the client can continue there.
    MoveFailed(RequestError),
    /// A Refresh failed. The allocation lasts until its time runs out; a transient failure is repeated before that.
    RefreshFailed(RequestError),
    /// The allocation is deleted, as asked; of a dual allocation perhaps only one family.
    Released {
        /// Which address; `None` means all.
        family: Option<AddressFamily>,
        /// The round trip.
        timing: Timing,
    },
    /// The allocation does not exist any more. Permissions and channels end with it.
    Lost(AllocationLoss),
    /// A peer may send now. Not repeated when the permission is refreshed.
    Permitted {
        /// The peer's address.
        peer: IpAddr,
        /// The round trip.
        timing: Timing,
    },
    /// A permission was refused, or lapses because its refresh failed.
    PermissionFailed {
        /// The peer's address.
        peer: IpAddr,
        /// Why.
        error: RequestError,
    },
    /// A channel carries data now. Not repeated when it is refreshed.
    ChannelBound {
        /// Its number.
        channel: ChannelNumber,
        /// The peer at its end.
        peer: SocketAddr,
        /// The round trip.
        timing: Timing,
    },
    /// A channel was refused, or lapses because its refresh failed. After 400 the RFC advises to start over with a new
    /// allocation (§12.3).
    ChannelFailed {
        /// Its number.
        channel: ChannelNumber,
        /// The peer at its end.
        peer: SocketAddr,
        /// Why.
        error: RequestError,
    },
    /// The server could not reach a peer.
    PeerUnreachable(PeerError),
    /// The server has connected to a peer over TCP (RFC 6062 §4.3): bind a data connection within 30 seconds.
    Connected {
        /// The peer.
        peer: SocketAddr,
        /// Names the connection.
        id: ConnectionId,
        /// How long it took.
        timing: Timing,
    },
    /// The server could not connect to the peer. After 447 the RFC allows another attempt, but not before 10 seconds.
    ConnectFailed {
        /// The peer.
        peer: SocketAddr,
        /// Why.
        error: RequestError,
    },
    /// A peer has connected over TCP (RFC 6062 §4.4): bind a data connection within 30 seconds.
    PeerConnected {
        /// The peer.
        peer: SocketAddr,
        /// Names the connection.
        id: ConnectionId,
    },
    /// This client's connection is a data connection: what it carries from now on are the peer's bytes.
    ConnectionBound {
        /// Names the connection with the peer.
        id: ConnectionId,
        /// The round trip.
        timing: Timing,
    },
    /// The connection did not become a data connection.
    ConnectionBindFailed {
        /// Names the connection with the peer.
        id: ConnectionId,
        /// Why.
        error: RequestError,
    },
}
