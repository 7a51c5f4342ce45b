//! The address and the transport of a client.

use std::net::SocketAddr;

/// The transport protocol between client and server. The one between server and peers is UDP, or TCP (RFC 6062).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// UDP: requests may be retransmitted.
    Udp,
    /// TCP.
    Tcp,
    /// TLS over TCP.
    Tls,
    /// DTLS over UDP: requests may be retransmitted.
    Dtls,
}

impl Transport {
    /// Whether it is a stream of messages, on which nothing is lost and no request is retransmitted (RFC 8489
    /// §6.2.2).
    #[must_use]
    pub const fn is_stream(self) -> bool {
        matches!(self, Transport::Tcp | Transport::Tls)
    }
}

/// What identifies an allocation (RFC 8656 §6): the communication path between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FiveTuple {
    /// The transport protocol.
    pub transport: Transport,
    /// The server's address and port, as the client addressed it (never a wildcard).
    pub local: SocketAddr,
    /// The client's address and port as the server sees it: its server-reflexive transport address.
    pub remote: SocketAddr,
}

/// The embedder's name for a listener socket or a connection. It is kept with the allocation and returned with
/// everything that is to be sent to the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerKey(pub u32);

/// A 5-tuple and the socket on which the embedder serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientPath {
    /// Identifies the allocation.
    pub five_tuple: FiveTuple,
    /// Where to send; not part of the identity.
    pub listener: ListenerKey,
}

impl ClientPath {
    /// The path of a client over UDP, from its address and that of the listener socket 0.
    #[must_use]
    pub const fn udp(local: SocketAddr, remote: SocketAddr) -> ClientPath {
        ClientPath {
            five_tuple: FiveTuple {
                transport: Transport::Udp,
                local,
                remote,
            },
            listener: ListenerKey(0),
        }
    }
}
