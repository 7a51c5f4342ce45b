//! Where everything is in the measured network.
//!
//! ```text
//!   client                        server                          peer
//!   c0 10.99.1.2 <-- veth --> s0 10.99.1.1   s1 10.99.2.1 <-- veth --> p0 10.99.2.2
//!      :40000 + flow             :3478          :relayed               :9000 + flow
//! ```
//! The addresses exist only inside the namespaces. A server that is configured statically (a
//! bare relay, with nothing to allocate) finds flow `f` here: ChannelData on channel 0x4000
//! from client port 40000 + f goes out of relay port 20000 + f to peer port 9000 + f, and back.
//!
//! Behind the client are the sources of Binding requests that do not come from it: 10.128.0.0/9.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use bpf::frame::{Mac, Path};

pub(crate) const CLIENT_IP: Ipv4Addr = Ipv4Addr::new(10, 99, 1, 2);
pub(crate) const SERVER_IP: Ipv4Addr = Ipv4Addr::new(10, 99, 1, 1);
pub(crate) const RELAY_IP: Ipv4Addr = Ipv4Addr::new(10, 99, 2, 1);
pub(crate) const PEER_IP: Ipv4Addr = Ipv4Addr::new(10, 99, 2, 2);
pub(crate) const PREFIX: u8 = 24;

pub(crate) const SERVER_PORT: u16 = 3478;
pub(crate) const FIRST_CLIENT_PORT: u16 = 40_000;
pub(crate) const FIRST_PEER_PORT: u16 = 9_000;
pub(crate) const FIRST_RELAY_PORT: u16 = 20_000;
/// The channel of each flow. Channels belong to allocations, and clients begin with the first number (RFC 8656 §12).
pub(crate) const CHANNEL: u16 = 0x4000;

/// Flows that fit between the first client port and the last one.
pub(crate) const MAX_FLOWS: u16 = 25_000;
/// The same for a statically configured server: a socket for each fits into what one process may open.
pub(crate) const MAX_STATIC_FLOWS: u16 = 18_000;

pub(crate) const CLIENT_DEVICE: &str = "c0";
pub(crate) const SERVER_DEVICE: &str = "s0";
pub(crate) const RELAY_DEVICE: &str = "s1";
pub(crate) const PEER_DEVICE: &str = "p0";

const CLIENT_MAC: Mac = [2, 0, 0, 0, 1, 2];
const SERVER_MAC: Mac = [2, 0, 0, 0, 1, 1];
const RELAY_MAC: Mac = [2, 0, 0, 0, 2, 1];
const PEER_MAC: Mac = [2, 0, 0, 0, 2, 2];

/// One interface of the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    pub(crate) device: &'static str,
    pub(crate) ip: Ipv4Addr,
    pub(crate) mac: Mac,
}

pub(crate) const CLIENT: Port = Port {
    device: CLIENT_DEVICE,
    ip: CLIENT_IP,
    mac: CLIENT_MAC,
};
pub(crate) const SERVER: Port = Port {
    device: SERVER_DEVICE,
    ip: SERVER_IP,
    mac: SERVER_MAC,
};
pub(crate) const RELAY: Port = Port {
    device: RELAY_DEVICE,
    ip: RELAY_IP,
    mac: RELAY_MAC,
};
pub(crate) const PEER: Port = Port {
    device: PEER_DEVICE,
    ip: PEER_IP,
    mac: PEER_MAC,
};

/// Where clients find the server.
pub(crate) const SERVER_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER_IP), SERVER_PORT);

/// Where SIP clients find the server.
pub(crate) const SIP_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER_IP), 5060);

/// The client of a flow.
pub(crate) fn client(flow: u16) -> SocketAddr {
    SocketAddr::new(CLIENT_IP.into(), FIRST_CLIENT_PORT + flow)
}

/// A client in a /24 of its own.
pub(crate) fn client_in_own_prefix(number: u16) -> SocketAddr {
    let [high, low] = (0x8000 | number).to_be_bytes();
    SocketAddr::new(
        Ipv4Addr::new(10, high, low, 2).into(),
        client(number).port(),
    )
}

/// A client whose source address is scattered over 10.128.0.0/9.
pub(crate) fn scattered_client(number: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(10, 128, 0, 2).into(), client(number).port())
}

/// The peer of a flow.
pub(crate) fn peer(flow: u16) -> SocketAddr {
    SocketAddr::new(PEER_IP.into(), FIRST_PEER_PORT + flow)
}

/// The relayed transport address of a flow in a statically configured server.
pub(crate) fn static_relay(flow: u16) -> SocketAddr {
    SocketAddr::new(RELAY_IP.into(), FIRST_RELAY_PORT + flow)
}

/// What the client of a flow puts on its wire towards the server.
pub(crate) fn path_to_server(flow: u16) -> Path {
    path_from(client(flow))
}

/// What arrives at the server's interface from a source, which may be behind the client.
pub(crate) fn path_from(source: SocketAddr) -> Path {
    Path {
        source_mac: CLIENT_MAC,
        destination_mac: SERVER_MAC,
        source,
        destination: SERVER_ADDRESS,
    }
}

/// What the peer of a flow puts on its wire towards a relayed transport address.
pub(crate) fn path_to_relay(flow: u16, relay: SocketAddr) -> Path {
    Path {
        source_mac: PEER_MAC,
        destination_mac: RELAY_MAC,
        source: peer(flow),
        destination: relay,
    }
}
