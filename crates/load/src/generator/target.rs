//! Whom load may be sent to.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// A server that may be put under load: one on this machine, in a private network, or one that its owner has vouched
/// for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target(SocketAddr);

/// Why a server may not be put under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The target may belong to others.
    #[error(
        "{0} is on the public internet: load against a server that is not yours is an attack. If it is yours, say so and ask again"
    )]
    NotYours(SocketAddr),
    /// No server can have this address.
    #[error(
        "{0} is not the address of a server: it is unspecified, multicast or broadcast, or its port is 0"
    )]
    Nowhere(SocketAddr),
}

impl Target {
    /// Admits `server` if it is this machine's, loopback, private or link-local, or if the user has `confirmed` that it
    /// is theirs.
    ///
    /// # Errors
    /// [`TargetError`].
    pub fn admit(server: SocketAddr, confirmed: bool) -> Result<Target, TargetError> {
        let ip = server.ip().to_canonical();
        let broadcast = IpAddr::V4(Ipv4Addr::BROADCAST);
        if ip.is_unspecified() || ip.is_multicast() || ip == broadcast || server.port() == 0 {
            return Err(TargetError::Nowhere(server));
        }
        if confirmed || is_private(ip) || is_own(ip) {
            Ok(Target(server))
        } else {
            Err(TargetError::NotYours(server))
        }
    }

    /// Where it is.
    #[must_use]
    pub fn address(self) -> SocketAddr {
        self.0
    }
}

/// Loopback, RFC 1918, RFC 4193, link-local, and the networks RFC 2544 and RFC 5180 set aside for benchmarks.
fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => {
            let benchmarking = v4.octets()[0] == 198 && v4.octets()[1] & 0xFE == 18;
            v4.is_loopback() || v4.is_private() || v4.is_link_local() || benchmarking
        }
        IpAddr::V6(v6) => {
            let benchmarking = v6.segments()[..3] == [0x2001, 2, 0];
            v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local() || benchmarking
        }
    }
}

/// An address of this machine, in any network.
fn is_own(ip: IpAddr) -> bool {
    io::interfaces::addresses().is_ok_and(|all| all.iter().any(|own| own.ip == ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(text: &str, confirmed: bool) -> Result<Target, TargetError> {
        Target::admit(text.parse().unwrap(), confirmed)
    }

    #[test]
    fn near_targets_are_admitted_and_far_ones_need_confirmation() {
        for near in [
            "127.0.0.1:3478",
            "[::1]:3478",
            "10.1.2.3:3478",
            "172.16.0.1:3478",
            "192.168.1.1:3478",
            "169.254.1.1:3478",
            "198.19.0.1:3478",
            "[fd00::1]:3478",
            "[fe80::1]:3478",
            "[::ffff:10.0.0.1]:3478",
        ] {
            assert!(admit(near, false).is_ok(), "{near}");
        }
        for far in [
            "8.8.8.8:3478",
            "100.64.0.1:3478",
            "172.32.0.1:3478",
            "198.20.0.1:3478",
            "[2001:db8::1]:3478",
            "[::ffff:8.8.8.8]:3478",
        ] {
            assert!(
                matches!(admit(far, false), Err(TargetError::NotYours(_))),
                "{far}"
            );
            assert!(admit(far, true).is_ok(), "{far}");
        }
    }

    #[test]
    fn nobody_is_nowhere() {
        for nowhere in [
            "0.0.0.0:3478",
            "[::]:3478",
            "239.1.2.3:3478",
            "255.255.255.255:1",
            "127.0.0.1:0",
        ] {
            assert!(
                matches!(admit(nowhere, true), Err(TargetError::Nowhere(_))),
                "{nowhere}"
            );
        }
    }
}
