//! Where everything is in the measured network.
//!
//! ```text
//!   client                        server                          peer
//!   c0 10.99.1.2 <-- veth --> s0 10.99.1.1   s1 10.99.2.1 <-- veth --> p0 10.99.2.2
//!      :40000 + flow             :3478          :relayed               :9000 + flow
//! ```
//! Over IPv6, `fd99:1::1` and `fd99:1::2` stand for 10.99.1.1 and 10.99.1.2, `fd99:2::1` and `fd99:2::2` for 10.99.2.1
//! and 10.99.2.2. The addresses exist only inside the namespaces. A statically configured server (a bare relay without
//! allocations) finds flow `f` here. ChannelData on channel 0x4000 from client port 40000 + f leaves from relay port
//! 20000 + f to peer port 9000 + f, and back.
//!
//! Behind the client are the sources of Binding requests that do not come from it: 10.128.0.0/9, or fd9a::/16.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use bpf::frame::{Mac, Path};

use crate::sip::Transport;

/// Whether the network has IPv6 addresses instead of IPv4 ones. One process measures in one family.
static IS_IPV6: AtomicBool = AtomicBool::new(false);

/// Gives the network IPv6 addresses. Before anything is started.
pub(crate) fn use_ipv6() {
    IS_IPV6.store(true, Ordering::Relaxed);
}

pub(crate) fn is_ipv6() -> bool {
    IS_IPV6.load(Ordering::Relaxed)
}

/// A host of one of the two networks.
const fn address(network: u8, host: u8, is_ipv6: bool) -> IpAddr {
    match is_ipv6 {
        true => IpAddr::V6(Ipv6Addr::new(
            0xfd99,
            network as u16,
            0,
            0,
            0,
            0,
            0,
            host as u16,
        )),
        false => IpAddr::V4(Ipv4Addr::new(10, 99, network, host)),
    }
}

pub(crate) fn client_ip() -> IpAddr {
    CLIENT.ip()
}

pub(crate) fn server_ip() -> IpAddr {
    SERVER.ip()
}

pub(crate) fn relay_ip() -> IpAddr {
    RELAY.ip()
}

pub(crate) fn peer_ip() -> IpAddr {
    PEER.ip()
}

/// Length of the prefix that the two ends of a wire share.
pub(crate) fn prefix() -> u8 {
    if is_ipv6() { 64 } else { 24 }
}

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
    network: u8,
    host: u8,
    pub(crate) mac: Mac,
}

impl Port {
    pub(crate) fn ip(&self) -> IpAddr {
        address(self.network, self.host, is_ipv6())
    }
}

pub(crate) const CLIENT: Port = Port {
    device: CLIENT_DEVICE,
    network: 1,
    host: 2,
    mac: CLIENT_MAC,
};
pub(crate) const SERVER: Port = Port {
    device: SERVER_DEVICE,
    network: 1,
    host: 1,
    mac: SERVER_MAC,
};
pub(crate) const RELAY: Port = Port {
    device: RELAY_DEVICE,
    network: 2,
    host: 1,
    mac: RELAY_MAC,
};
pub(crate) const PEER: Port = Port {
    device: PEER_DEVICE,
    network: 2,
    host: 2,
    mac: PEER_MAC,
};

/// Where clients find the server.
pub(crate) fn server_address() -> SocketAddr {
    SocketAddr::new(server_ip(), SERVER_PORT)
}

/// Where SIP clients find the server.
pub(crate) fn sip_address() -> SocketAddr {
    sip_address_over(Transport::Udp)
}

/// The same for a transport. UDP and TCP share a port.
pub(crate) fn sip_address_over(transport: Transport) -> SocketAddr {
    let port = match transport {
        Transport::Udp | Transport::Tcp => 5060,
        Transport::Tls => 5061,
        Transport::Ws | Transport::Wss => 5062,
    };
    SocketAddr::new(server_ip(), port)
}

/// Where the server's metrics are.
pub(crate) fn metrics_address() -> SocketAddr {
    SocketAddr::new(server_ip(), 9641)
}

/// The address family, as the bare relays take it on their command line.
pub(crate) fn family() -> &'static str {
    if is_ipv6() { "ipv6" } else { "ipv4" }
}

/// The client of a flow.
pub(crate) fn client(flow: u16) -> SocketAddr {
    SocketAddr::new(client_ip(), FIRST_CLIENT_PORT + flow)
}

/// A client in a prefix of its own: a /24, or a /48.
pub(crate) fn client_in_own_prefix(number: u16) -> SocketAddr {
    let [high, low] = (0x8000 | number).to_be_bytes();
    let ip = match is_ipv6() {
        true => Ipv6Addr::new(0xfd9a, number, 0, 0, 0, 0, 0, 2).into(),
        false => Ipv4Addr::new(10, high, low, 2).into(),
    };
    SocketAddr::new(ip, client(number).port())
}

/// A client whose source address is scattered over 10.128.0.0/9. There is no such one over IPv6.
pub(crate) fn scattered_client(number: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(10, 128, 0, 2).into(), client(number).port())
}

/// The peer of a flow.
pub(crate) fn peer(flow: u16) -> SocketAddr {
    SocketAddr::new(peer_ip(), FIRST_PEER_PORT + flow)
}

/// The relayed transport address of a flow in a statically configured server.
pub(crate) fn static_relay(flow: u16) -> SocketAddr {
    SocketAddr::new(relay_ip(), FIRST_RELAY_PORT + flow)
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
        destination: server_address(),
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
