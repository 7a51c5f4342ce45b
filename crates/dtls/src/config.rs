//! The settings of an endpoint.

use std::sync::Arc;
use std::time::Duration;

use crate::Certificates;

/// The settings of an [`crate::Endpoint`].
#[derive(Clone, Debug)]
pub struct Config {
    /// The source of certificates.
    pub certificates: Arc<dyn Certificates>,
    /// Application protocols, the preferred first (RFC 7443: `stun.turn`). The endpoint rejects a client that offers
    /// only others, and accepts a client that offers none. If empty, the endpoint ignores the protocols that clients
    /// offer.
    pub protocols: Vec<Vec<u8>>,
    /// Limits on connections and handshakes.
    pub limits: Limits,
}

/// Limits of an [`crate::Endpoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of connections, handshakes included. Above it, the endpoint drops a ClientHello with a valid
    /// cookie.
    pub connections: usize,
    /// The maximum number of connections of one IPv4 address or IPv6 /64, handshakes included. Above it, the endpoint
    /// drops a ClientHello with a valid cookie.
    pub connections_per_source: usize,
    /// The maximum number of handshakes at a time. A further one ends the oldest.
    pub half_open: usize,
    /// The maximum number of handshakes at a time from one /24 (IPv4) or /48 (IPv6). A further one ends the oldest of
    /// that prefix.
    pub half_open_per_prefix: usize,
    /// The longest duration of a handshake.
    pub handshake_timeout: Duration,
    /// Time until the first retransmission of a flight. It doubles with each retransmission (RFC 6347 §4.2.4.1).
    pub first_retransmission: Duration,
    /// A connection ends if no authenticated record arrives for this time. [`crate::Endpoint::handle_timeout_unless`]
    /// makes exceptions for connections in use.
    pub idle_timeout: Duration,
    /// The longest datagram of a handshake in bytes, without IP and UDP headers.
    pub mtu: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 65_536,
            connections_per_source: 65_536,
            half_open: 1024,
            half_open_per_prefix: 128,
            handshake_timeout: Duration::from_secs(20),
            first_retransmission: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(3660),
            mtu: 1200,
        }
    }
}
