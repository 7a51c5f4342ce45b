//! Where messages come from and go to.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::Host;

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// Datagrams.
    Udp,
    /// A TCP connection.
    Tcp,
    /// A TLS connection over TCP.
    Tls,
    /// A WebSocket over TCP (RFC 7118).
    Ws,
    /// A WebSocket over TLS (RFC 7118).
    Wss,
}

impl Transport {
    /// Nothing is lost or out of order while the connection lives: transactions need not retransmit.
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        !matches!(self, Transport::Udp)
    }

    /// A WebSocket: each of its messages is one SIP message (RFC 7118 §5), and only the client can open one.
    #[must_use]
    pub const fn is_websocket(self) -> bool {
        matches!(self, Transport::Ws | Transport::Wss)
    }

    /// Whether a connection that a peer has opened may carry requests to the address that it came from (RFC 3261 §18).
    /// Over TLS that requires an alias (RFC 5923 §4), because nobody has verified the address. The address of a
    /// WebSocket client is of no use to others (RFC 7118 §7).
    #[must_use]
    pub const fn is_reused(self) -> bool {
        matches!(self, Transport::Tcp)
    }

    /// Fit for a SIPS URI.
    #[must_use]
    pub const fn is_secure(self) -> bool {
        matches!(self, Transport::Tls | Transport::Wss)
    }

    /// The port where none is named (RFC 3261 §19.1.2, RFC 7118 §5.1).
    #[must_use]
    pub const fn default_port(self) -> u16 {
        match self {
            Transport::Udp | Transport::Tcp => 5060,
            Transport::Tls => 5061,
            Transport::Ws => 80,
            Transport::Wss => 443,
        }
    }

    /// The transport of a Via (RFC 3261 §20.42).
    #[must_use]
    pub const fn via_name(self) -> &'static str {
        match self {
            Transport::Udp => "UDP",
            Transport::Tcp => "TCP",
            Transport::Tls => "TLS",
            Transport::Ws => "WS",
            Transport::Wss => "WSS",
        }
    }
}

/// The embedder's name of a socket that listens. Requests over UDP are sent from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ListenerKey(pub u16);

/// The embedder's name of a connection; it is never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionKey(pub u64);

/// The path of a received message. The response uses the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// How it travels.
    pub transport: Transport,
    /// The socket it came to, or from which the connection was accepted.
    pub listener: ListenerKey,
    /// The connection; `None` for datagrams.
    pub connection: Option<ConnectionKey>,
    /// Our address, from which an answer is sent (RFC 3581 §4).
    pub local: SocketAddr,
    /// The peer's address.
    pub remote: SocketAddr,
}

/// The name that the other end of a TLS connection proves by its certificate (RFC 5922). It is a domain in lower case
/// without a final dot, or an IP address without brackets.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerName(Arc<str>);

impl PeerName {
    /// The name of a domain or an address.
    #[must_use]
    pub fn new(name: &str) -> PeerName {
        let name = name.strip_suffix('.').unwrap_or(name);
        PeerName(name.to_ascii_lowercase().into())
    }

    /// The host of a URI or of a Via.
    #[must_use]
    pub fn of(host: Host<'_>) -> PeerName {
        match host.ip() {
            Some(ip) => PeerName(ip.to_string().into()),
            None => PeerName::new(&String::from_utf8_lossy(host.as_bytes())),
        }
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Where a request is to go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// How.
    pub transport: Transport,
    /// The address and port.
    pub remote: SocketAddr,
    /// The socket to send from, which also names the sent-by of the Via.
    pub listener: ListenerKey,
    /// Our address to send from, where the socket has several; `None` leaves it to the kernel. A connection has a port
    /// of its own.
    pub local: Option<SocketAddr>,
    /// The name that the other end must prove over TLS: the host of the URI, not a name from the DNS (RFC 5922 §7.3).
    /// Without one, no TLS connection is opened.
    pub name: Option<PeerName>,
}

impl Destination {
    /// An address, with nothing said of our own or of a name.
    #[must_use]
    pub const fn new(
        transport: Transport,
        remote: SocketAddr,
        listener: ListenerKey,
    ) -> Destination {
        Destination {
            transport,
            remote,
            listener,
            local: None,
            name: None,
        }
    }
}
