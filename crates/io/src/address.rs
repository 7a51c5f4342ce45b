//! Socket addresses as the kernel spells them.

use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

/// Room for a `sockaddr_in` or a `sockaddr_in6`, which share everything but their use of the middle:
///
/// ```text
///          0        2        4                8               24          28
/// in       | family |  port  |    address     |  zero
/// in6      | family |  port  |   flow info    |    address     |  scope id |
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawAddress {
    family: u16,
    port: [u8; 2],
    v4_or_flow: [u8; 4],
    v6: [u8; 16],
    scope_id: u32,
}

const _: () = {
    assert!(size_of::<RawAddress>() == size_of::<sockaddr_in6>());
    assert!(align_of::<RawAddress>() == align_of::<sockaddr_in6>());
    assert!(offset_of!(RawAddress, port) == offset_of!(sockaddr_in, sin_port));
    assert!(offset_of!(RawAddress, v4_or_flow) == offset_of!(sockaddr_in, sin_addr));
    assert!(offset_of!(RawAddress, v6) == offset_of!(sockaddr_in6, sin6_addr));
    assert!(offset_of!(RawAddress, scope_id) == offset_of!(sockaddr_in6, sin6_scope_id));
};

impl RawAddress {
    /// The size that the kernel gets when it is to write one.
    pub(crate) const CAPACITY: socklen_t = size_of::<RawAddress>() as socklen_t;

    pub(crate) fn new(address: SocketAddr) -> RawAddress {
        match address {
            SocketAddr::V4(v4) => RawAddress {
                family: libc::AF_INET as u16,
                port: v4.port().to_be_bytes(),
                v4_or_flow: v4.ip().octets(),
                v6: [0; 16],
                scope_id: 0,
            },
            SocketAddr::V6(v6) => RawAddress {
                family: libc::AF_INET6 as u16,
                port: v6.port().to_be_bytes(),
                v4_or_flow: [0; 4],
                v6: v6.ip().octets(),
                scope_id: v6.scope_id(),
            },
        }
    }

    /// As a destination on an IPv6 socket, where an IPv4 address has to be spelled ::ffff:a.b.c.d.
    pub(crate) fn new_on_v6(address: SocketAddr) -> RawAddress {
        match address {
            SocketAddr::V4(v4) => RawAddress::new(SocketAddr::new(
                IpAddr::V6(v4.ip().to_ipv6_mapped()),
                v4.port(),
            )),
            SocketAddr::V6(_) => RawAddress::new(address),
        }
    }

    /// The address; `0.0.0.0:0` if it is of no family known here, which no UDP socket reports.
    pub(crate) fn get(&self) -> SocketAddr {
        let port = u16::from_be_bytes(self.port);
        match i32::from(self.family) {
            libc::AF_INET => SocketAddrV4::new(Ipv4Addr::from(self.v4_or_flow), port).into(),
            libc::AF_INET6 => {
                SocketAddrV6::new(Ipv6Addr::from(self.v6), port, 0, self.scope_id).into()
            }
            _ => SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0).into(),
        }
    }

    pub(crate) fn len(&self) -> socklen_t {
        if i32::from(self.family) == libc::AF_INET {
            size_of::<sockaddr_in>() as socklen_t
        } else {
            Self::CAPACITY
        }
    }

    pub(crate) fn as_ptr(&self) -> *const sockaddr {
        (&raw const *self).cast()
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut sockaddr {
        (&raw mut *self).cast()
    }
}

/// Converts ::ffff:a.b.c.d, which a dual-stack socket reports, to IPv4. All other addresses stay the same, with their
/// scope.
pub(crate) fn unmap(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_kernels_spelling() {
        for text in [
            "192.0.2.1:3478",
            "[2001:db8::1]:65535",
            "[fe80::1%7]:0",
            "0.0.0.0:0",
        ] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(RawAddress::new(address).get(), address);
        }
    }

    #[test]
    fn ipv4_is_mapped_on_dual_stack_sockets_and_back() {
        let address: SocketAddr = "192.0.2.1:3478".parse().unwrap();
        let raw = RawAddress::new_on_v6(address);
        assert_eq!(raw.get().to_string(), "[::ffff:192.0.2.1]:3478");
        assert_eq!(unmap(raw.get()), address);
        assert_eq!(raw.len(), RawAddress::CAPACITY);
        for text in ["[fe80::1%7]:5060", "[2001:db8::1]:9", "192.0.2.1:3478"] {
            assert_eq!(unmap(text.parse().unwrap()).to_string(), text);
        }
    }

    #[test]
    fn lengths_are_those_of_the_family() {
        assert_eq!(RawAddress::new("1.2.3.4:5".parse().unwrap()).len(), 16);
        assert_eq!(RawAddress::new("[::1]:5".parse().unwrap()).len(), 28);
    }
}
