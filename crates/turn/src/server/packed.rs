//! Addresses as they are kept, without what the standard types spend on alignment and on IPv6 flow labels.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use crate::{ClientPath, FiveTuple, ListenerKey, Transport};

/// A transport address in 20 bytes. Without scope: relayed addresses and peers have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    ip: IpAddr,
    port: u16,
}

const _: () = assert!(size_of::<Endpoint>() == 20);

impl Endpoint {
    pub(super) const fn of(address: &SocketAddr) -> Endpoint {
        Endpoint {
            ip: address.ip(),
            port: address.port(),
        }
    }

    pub(super) const fn address(self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }

    /// With a scope, where it is a link-local address.
    const fn scoped(self, scope: u32) -> SocketAddr {
        match self.ip {
            IpAddr::V6(ip) => SocketAddr::V6(SocketAddrV6::new(ip, self.port, 0, scope)),
            IpAddr::V4(_) => self.address(),
        }
    }
}

/// A [`ClientPath`] in 56 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedPath {
    remote: Endpoint,
    local: Endpoint,
    remote_scope: u32,
    local_scope: u32,
    listener: ListenerKey,
    transport: Transport,
}

const _: () = assert!(size_of::<PackedPath>() == 56);

impl PackedPath {
    pub(super) const fn of(path: &ClientPath) -> PackedPath {
        let FiveTuple {
            transport,
            local,
            remote,
        } = path.five_tuple;
        PackedPath {
            remote: Endpoint::of(&remote),
            local: Endpoint::of(&local),
            remote_scope: scope(&remote),
            local_scope: scope(&local),
            listener: path.listener,
            transport,
        }
    }

    pub(super) const fn path(&self) -> ClientPath {
        ClientPath {
            five_tuple: self.five_tuple(),
            listener: self.listener,
        }
    }

    pub(super) const fn five_tuple(&self) -> FiveTuple {
        FiveTuple {
            transport: self.transport,
            local: self.local.scoped(self.local_scope),
            remote: self.remote.scoped(self.remote_scope),
        }
    }

    /// The client's port.
    pub(super) const fn port(&self) -> u16 {
        self.remote.port
    }

    /// Whether this is the path of that 5-tuple.
    pub(super) fn is_of(&self, five_tuple: &FiveTuple) -> bool {
        self.remote == Endpoint::of(&five_tuple.remote)
            && self.local == Endpoint::of(&five_tuple.local)
            && self.transport == five_tuple.transport
            && self.remote_scope == scope(&five_tuple.remote)
            && self.local_scope == scope(&five_tuple.local)
    }
}

const fn scope(address: &SocketAddr) -> u32 {
    match address {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_comes_back_as_it_was() {
        for (local, remote) in [
            ("192.0.2.1:3478", "198.51.100.1:4000"),
            ("[2001:db8::1]:3478", "[2001:db8::2]:4000"),
            ("[fe80::1%3]:3478", "[fe80::2%3]:4000"),
        ] {
            let five_tuple = FiveTuple {
                transport: Transport::Dtls,
                local: local.parse().unwrap(),
                remote: remote.parse().unwrap(),
            };
            let path = ClientPath {
                five_tuple,
                listener: ListenerKey(9),
            };
            let packed = PackedPath::of(&path);
            assert_eq!(packed.path(), path);
            assert!(packed.is_of(&five_tuple));
            let other = FiveTuple {
                transport: Transport::Udp,
                ..five_tuple
            };
            assert!(!packed.is_of(&other));
        }
    }

    #[test]
    fn one_link_local_address_on_two_links_is_two_clients() {
        let five_tuple = |remote: &str| FiveTuple {
            transport: Transport::Udp,
            local: "[2001:db8::1]:3478".parse().unwrap(),
            remote: remote.parse().unwrap(),
        };
        let path = ClientPath {
            five_tuple: five_tuple("[fe80::2%3]:4000"),
            listener: ListenerKey(9),
        };
        assert!(!PackedPath::of(&path).is_of(&five_tuple("[fe80::2%4]:4000")));
    }
}
