//! The networks that no peer may be in unless an operator says so, and the one list that re-admits them for
//! development.
//!
//! The documentation networks (192.0.2.0/24, 198.51.100.0/24, 203.0.113.0/24, 2001:db8::/32, 3fff::/20) are
//! deliberately not here. On the Internet they have no hosts, and in a laboratory they replace public addresses.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A network refused by default, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecialNetwork {
    /// The network.
    pub network: IpNet,
    /// What it is, in the words of the IANA special-purpose registries.
    pub name: &'static str,
}

const fn v4(a: u8, b: u8, c: u8, length: u8, name: &'static str) -> SpecialNetwork {
    let net = Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, 0), length);
    SpecialNetwork {
        network: IpNet::V4(net),
        name,
    }
}

const fn v6(
    s0: u16,
    s1: u16,
    s2: u16,
    last: u16,
    length: u8,
    name: &'static str,
) -> SpecialNetwork {
    let net = Ipv6Net::new_assert(Ipv6Addr::new(s0, s1, s2, 0, 0, 0, 0, last), length);
    SpecialNetwork {
        network: IpNet::V6(net),
        name,
    }
}

/// Every network that is refused by default. IPv4 spelled inside IPv6 is judged by the IPv4 rows.
pub const SPECIAL_NETWORKS: &[SpecialNetwork] = &[
    v4(0, 0, 0, 8, "this network"),
    v4(10, 0, 0, 8, "private use"),
    v4(100, 64, 0, 10, "shared address space (CGNAT)"),
    v4(127, 0, 0, 8, "loopback"),
    v4(169, 254, 0, 16, "link local (cloud metadata lives here)"),
    v4(172, 16, 0, 12, "private use"),
    v4(192, 0, 0, 24, "protocol assignments"),
    v4(192, 88, 99, 24, "6to4 relay anycast"),
    v4(192, 168, 0, 16, "private use"),
    v4(198, 18, 0, 15, "benchmarking"),
    v4(224, 0, 0, 4, "multicast"),
    v4(240, 0, 0, 4, "reserved and broadcast"),
    v6(0, 0, 0, 0, 128, "unspecified"),
    v6(0, 0, 0, 1, 128, "loopback"),
    v6(0x100, 0, 0, 0, 64, "discard only"),
    v6(0x2001, 2, 0, 0, 48, "benchmarking"),
    v6(0x2001, 0x10, 0, 0, 28, "ORCHID"),
    v6(0x2001, 0x20, 0, 0, 28, "ORCHIDv2"),
    v6(0x5f00, 0, 0, 0, 16, "segment routing identifiers"),
    v6(0xfc00, 0, 0, 0, 7, "unique local"),
    v6(0xfe80, 0, 0, 0, 10, "link local"),
    v6(0xfec0, 0, 0, 0, 10, "site local"),
    v6(0xff00, 0, 0, 0, 8, "multicast"),
];

/// Loopback and private networks: what a development server re-admits. Link-local, multicast and reserved space stay
/// refused.
#[must_use]
pub fn loopback_and_private() -> Vec<IpNet> {
    const DEVELOPMENT: [&str; 4] = [
        "loopback",
        "private use",
        "shared address space (CGNAT)",
        "unique local",
    ];
    SPECIAL_NETWORKS
        .iter()
        .filter(|special| DEVELOPMENT.contains(&special.name))
        .map(|special| special.network)
        .collect()
}

/// The special network that `address` itself is in, if any (embedded IPv4 addresses are not looked at).
#[must_use]
pub fn special_network(address: IpAddr) -> Option<SpecialNetwork> {
    SPECIAL_NETWORKS
        .iter()
        .copied()
        .find(|special| special.network.contains(&address))
}
