//! What was found out.

use std::net::SocketAddr;
use std::time::Duration;

/// On what a NAT's mapping or filtering depends (RFC 4787 §4.1 and §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Behaviour {
    /// On nothing: the same for all peers.
    EndpointIndependent,
    /// On the peer's IP address.
    AddressDependent,
    /// On the peer's IP address and port.
    AddressAndPortDependent,
}

impl Behaviour {
    /// The term of RFC 4787, for programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Behaviour::EndpointIndependent => "endpoint-independent",
            Behaviour::AddressDependent => "address-dependent",
            Behaviour::AddressAndPortDependent => "address-and-port-dependent",
        }
    }
}

/// Whether two sockets behind the NAT reach each other at their mapped addresses (RFC 4787 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Hairpinning {
    /// There is no NAT.
    NotNeeded,
    /// The two sockets reach each other.
    Works,
    /// The two sockets do not reach each other.
    Fails,
    /// Over TCP and TLS it is not tested.
    NotTested,
}

/// How long a binding lasts without traffic (RFC 5780 §4.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lifetime {
    /// It was there after `idle`, the longest time that was tested.
    AtLeast(Duration),
    /// It was there after the first time and gone after the second. The first one may be zero.
    Between(Duration, Duration),
    /// The server does not support RESPONSE-PORT.
    Unsupported,
}

/// How the NAT on the way to a server behaves. NATs may become more restrictive under load (RFC 5780 §4).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NatReport {
    /// The server asked.
    pub server: SocketAddr,
    /// Its other address and port.
    pub other: SocketAddr,
    /// Where the server says that its response came from, if that is not `server`: then there is a NAT in front of it
    /// as well.
    pub origin: Option<SocketAddr>,
    /// Where the requests left this machine.
    pub local: SocketAddr,
    /// Where they came from, as the server saw it.
    pub mapped: SocketAddr,
    /// The mapped addresses of one socket, for each address and port of the server that it had to ask.
    pub mappings: Vec<(SocketAddr, SocketAddr)>,
    /// Which peers see the same mapped address.
    pub mapping: Behaviour,
    /// Which peers may send to a mapped address; `None` over TCP and TLS, where CHANGE-REQUEST does not exist.
    pub filtering: Option<Behaviour>,
    /// Whether hairpinning works.
    pub hairpinning: Hairpinning,
    /// How long a binding lasts; `None` if that was not tested.
    pub lifetime: Option<Lifetime>,
    /// What the server says it is.
    pub software: Option<String>,
}

impl NatReport {
    /// Whether there is a NAT.
    #[must_use]
    pub fn has_nat(&self) -> bool {
        self.mapped != self.local
    }

    /// Whether the NAT keeps the port of the socket.
    #[must_use]
    pub fn preserves_port(&self) -> bool {
        self.mapped.port() == self.local.port()
    }
}
