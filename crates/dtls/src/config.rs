//! What an endpoint is told.

use std::sync::Arc;
use std::time::Duration;

use crate::Certificates;

/// The settings of an [`crate::Endpoint`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Where certificates come from.
    pub certificates: Arc<dyn Certificates>,
    /// Application protocols, the preferred first (RFC 7443: `stun.turn`). A client that offers others only is refused; a
    /// client that offers none is served. Empty: what clients offer is ignored.
    pub protocols: Vec<Vec<u8>>,
    /// Bounds.
    pub limits: Limits,
}

/// Bounds of an [`crate::Endpoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections in all, handshakes included. A client beyond that is not answered once its cookie is back.
    pub connections: usize,
    /// Handshakes at a time. One more ends the oldest.
    pub half_open: usize,
    /// Handshakes at a time from one /24 (IPv4) or /48 (IPv6). One more ends the oldest of that prefix.
    pub half_open_per_prefix: usize,
    /// How long a handshake may last.
    pub handshake_timeout: Duration,
    /// When the first flight is sent again; each time after twice as long (RFC 6347 §4.2.4.1).
    pub first_retransmission: Duration,
    /// A connection on which nothing authentic came for so long ends. Connections in use may be spared:
    /// [`crate::Endpoint::handle_timeout_unless`].
    pub idle_timeout: Duration,
    /// The longest datagram of a handshake, without IP and UDP headers.
    pub mtu: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 65_536,
            half_open: 1024,
            half_open_per_prefix: 128,
            handshake_timeout: Duration::from_secs(20),
            first_retransmission: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(3660),
            mtu: 1200,
        }
    }
}
