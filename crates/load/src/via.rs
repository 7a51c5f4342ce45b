//! What carries messages between clients and their server.

use std::fmt;
use std::net::SocketAddr;

use client::{Stream, StreamError, Tls};
use turn::Transport;

/// What carries messages between clients and their server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Via {
    /// UDP.
    #[default]
    Udp,
    /// TCP.
    Tcp,
    /// TLS over TCP, and whom to expect there. Connections share its memory of sessions: all but the first ones are
    /// resumed.
    Tls(Tls),
    /// DTLS over UDP, and whom to expect there.
    Dtls(Tls),
}

impl Via {
    /// The transport protocol.
    #[must_use]
    pub const fn transport(&self) -> Transport {
        match self {
            Via::Udp => Transport::Udp,
            Via::Tcp => Transport::Tcp,
            Via::Tls(_) => Transport::Tls,
            Via::Dtls(_) => Transport::Dtls,
        }
    }

    /// Whether each client has a connection: over TCP, TLS and DTLS.
    #[must_use]
    pub const fn has_connections(&self) -> bool {
        !matches!(self, Via::Udp)
    }

    /// The state of a new TCP or TLS connection; `None` over UDP and DTLS.
    pub(crate) fn stream(&self) -> Option<Result<Stream, StreamError>> {
        match self {
            Via::Udp | Via::Dtls(_) => None,
            Via::Tcp => Some(Ok(Stream::tcp())),
            Via::Tls(tls) => Some(Stream::tls(tls)),
        }
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Via::Udp => "UDP",
            Via::Tcp => "TCP",
            Via::Tls(_) => "TLS",
            Via::Dtls(_) => "DTLS",
        })
    }
}

/// A server's address and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// Address and port.
    pub address: SocketAddr,
    /// How it is reached.
    pub via: Via,
}

impl From<SocketAddr> for ServerAddress {
    /// Over UDP.
    fn from(address: SocketAddr) -> ServerAddress {
        ServerAddress {
            address,
            via: Via::Udp,
        }
    }
}
