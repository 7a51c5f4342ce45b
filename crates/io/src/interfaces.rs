//! The machine's own addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use libc::c_uint;

use crate::sys::ifaddrs::getifaddrs;

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
    let mut found = Vec::new();
    getifaddrs(|name, flags, address| {
        let address = address.get();
        found.push(InterfaceAddress {
            name: name.to_string_lossy().into_owned(),
            ip: address.ip(),
            scope_id: if let SocketAddr::V6(v6) = address {
                v6.scope_id()
            } else {
                0
            },
            up: flags & libc::IFF_UP as c_uint != 0,
            loopback: flags & libc::IFF_LOOPBACK as c_uint != 0,
        });
    })?;
    Ok(found)
}

/// The address that packets to the IPv4 internet would leave from; `None` without a default route. Sends nothing.
#[must_use]
pub fn default_source_v4() -> Option<Ipv4Addr> {
    match source_towards(FAR_V4.into(), Ipv4Addr::UNSPECIFIED.into())? {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    }
}

/// The address that packets to the IPv6 internet would leave from; `None` without a default route. Sends nothing.
#[must_use]
pub fn default_source_v6() -> Option<Ipv6Addr> {
    match source_towards(FAR_V6.into(), Ipv6Addr::UNSPECIFIED.into())? {
        IpAddr::V6(ip) => Some(ip),
        IpAddr::V4(_) => None,
    }
}

/// The address that packets to this one would leave from; `None` without a route. An address of this machine is its own
/// source. Sends nothing.
#[must_use]
pub fn source_to(remote: IpAddr) -> Option<IpAddr> {
    match remote {
        IpAddr::V4(_) => source_towards(remote, Ipv4Addr::UNSPECIFIED.into()),
        IpAddr::V6(_) => source_towards(remote, Ipv6Addr::UNSPECIFIED.into()),
    }
}

/// A root name server: an address that only a default route leads to. Nothing is sent there.
const FAR_V4: Ipv4Addr = Ipv4Addr::new(198, 41, 0, 4);
const FAR_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0x503, 0xba3e, 0, 0, 0, 2, 0x30);

/// Connecting a UDP socket only looks up the route and picks the source address.
fn source_towards(far: IpAddr, any: IpAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((far, 53)).ok()?;
    let source = socket.local_addr().ok()?.ip();
    (!source.is_unspecified()).then_some(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_listed() {
        let all = addresses().unwrap();
        let lo = all
            .iter()
            .find(|a| a.ip == IpAddr::V4(Ipv4Addr::LOCALHOST))
            .unwrap();
        assert!(lo.loopback && lo.up && lo.scope_id == 0);
    }

    #[test]
    fn default_sources_are_addresses_of_this_machine() {
        let all = addresses().unwrap();
        if let Some(ip) = default_source_v4() {
            assert!(all.iter().any(|a| a.ip == ip && a.up));
        }
        if let Some(ip) = default_source_v6() {
            assert!(all.iter().any(|a| a.ip == ip && a.up));
        }
        for ip in all.iter().filter(|a| a.up).map(|a| a.ip) {
            // A link-local address has no route without its interface.
            let source = source_to(ip);
            assert!(source.is_none() || source == Some(ip), "{ip}: {source:?}");
        }
        let loopback = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(source_to(loopback), Some(loopback));
    }
}
