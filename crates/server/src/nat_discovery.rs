//! NAT behaviour discovery (RFC 5780): the other address and port of listeners.

use crate::error::NatDiscoveryError;
use std::net::{IpAddr, SocketAddr};
use turn::server::DiscoveryListeners;
use turn::{ListenerKey, Transport};

/// What a server needs for NAT behaviour discovery (RFC 5780): two IP addresses, and two ports on each.
///
/// Each address here is the *other* address and port of the first listener of its transport and family. With the
/// listener 192.0.2.1:3478 and the other address 192.0.2.2:3479, the server also listens on 192.0.2.1:3479,
/// 192.0.2.2:3478 and 192.0.2.2:3479.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NatDiscovery {
    /// Of [`Builder::listen`](crate::Builder::listen), at most one per family.
    pub udp: Vec<SocketAddr>,
    /// Of [`Builder::listen_tcp`](crate::Builder::listen_tcp), at most one per family.
    pub tcp: Vec<SocketAddr>,
    /// Of [`Builder::listen_tls`](crate::Builder::listen_tls), at most one per family. RFC 5780 §6: other ports than
    /// those of TCP.
    pub tls: Vec<SocketAddr>,
    /// Behind a 1:1 NAT: the public address that clients see, and the local one that it stands for.
    pub external: Vec<(IpAddr, IpAddr)>,
    /// Whether PADDING is answered with PADDING, which makes large responses. They are never longer than their requests
    /// by more than a few addresses, and each source prefix has a budget of them.
    pub padding: bool,
}

impl NatDiscovery {
    /// Whether nothing is to be done.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.udp.is_empty() && self.tcp.is_empty() && self.tls.is_empty()
    }

    /// Whether a server with these listeners could serve it.
    ///
    /// # Errors
    /// Names the first address that does not fit, and why.
    pub fn check(
        &self,
        udp: &[SocketAddr],
        tcp: &[SocketAddr],
        tls: &[SocketAddr],
    ) -> Result<(), NatDiscoveryError> {
        let [mut udp, mut tcp, mut tls] = [udp, tcp, tls].map(<[SocketAddr]>::to_vec);
        self.add_listeners(&mut udp, &mut tcp, &mut tls).map(drop)
    }

    /// The listeners that the other address and port `other` adds to `listeners`: at most three. `other` belongs to the
    /// first listener of its IP family. Together they have two addresses and two ports, which make four listeners.
    /// Those that the list lacks are the result. It is empty if the list has no listener of that family.
    #[must_use]
    pub fn added_listeners(other: SocketAddr, listeners: &[SocketAddr]) -> Vec<SocketAddr> {
        let first = listeners
            .iter()
            .find(|first| first.is_ipv4() == other.is_ipv4());
        let Some(first) = first else {
            return Vec::new();
        };
        let four = [first.ip(), other.ip()].map(|ip| {
            let ports = [first.port(), other.port()];
            ports.map(|port| SocketAddr::new(ip, port))
        });
        let mut added = four.concat();
        added.retain(|address| !listeners.contains(address));
        added
    }

    /// Adds the listeners that each list lacks, and says which four belong together.
    pub(crate) fn add_listeners(
        &self,
        udp: &mut Vec<SocketAddr>,
        tcp: &mut Vec<SocketAddr>,
        tls: &mut Vec<SocketAddr>,
    ) -> Result<Vec<DiscoveryListeners>, NatDiscoveryError> {
        let mut all = Vec::new();
        let lists = [
            (Transport::Udp, &self.udp, udp),
            (Transport::Tcp, &self.tcp, &mut *tcp),
            (Transport::Tls, &self.tls, tls),
        ];
        for (transport, others, listeners) in lists {
            for &other in others {
                let four = self.four(transport, other, listeners)?;
                let is_of_family = |before: &DiscoveryListeners| {
                    before.transport == transport && before.ips[0].is_ipv4() == other.is_ipv4()
                };
                if all.iter().any(is_of_family) {
                    return Err(NatDiscoveryError::TwoOfOneFamily(other));
                }
                all.push(four);
            }
        }
        shared_port(&all, tcp)?;
        Ok(all)
    }

    fn four(
        &self,
        transport: Transport,
        other: SocketAddr,
        listeners: &mut Vec<SocketAddr>,
    ) -> Result<DiscoveryListeners, NatDiscoveryError> {
        let first = listeners
            .iter()
            .find(|first| first.is_ipv4() == other.is_ipv4());
        let first = *first.ok_or(NatDiscoveryError::NoListener(other))?;
        check_pair(first, other)?;
        let (ips, ports) = ([first.ip(), other.ip()], [first.port(), other.port()]);
        let mut key = |ip: IpAddr, port: u16| {
            let address = SocketAddr::new(ip, port);
            let is_same = |at: &SocketAddr| (at.ip(), at.port()) == (address.ip(), address.port());
            let at = listeners.iter().position(is_same).unwrap_or_else(|| {
                listeners.push(address);
                listeners.len() - 1
            });
            ListenerKey(u32::try_from(at).unwrap_or(u32::MAX))
        };
        Ok(DiscoveryListeners {
            transport,
            ips,
            external: ips.map(|ip| self.seen_as(ip)),
            ports,
            listeners: ips.map(|ip| ports.map(|port| key(ip, port))),
        })
    }

    fn seen_as(&self, ip: IpAddr) -> IpAddr {
        let mapped = self.external.iter().find(|(_, private)| *private == ip);
        mapped.map_or(ip, |(public, _)| *public)
    }
}

/// A response has to leave from one address and port that its client can name.
fn check_pair(first: SocketAddr, other: SocketAddr) -> Result<(), NatDiscoveryError> {
    for address in [first, other] {
        let ip = address.ip();
        if ip.is_unspecified() || ip.is_multicast() || address.port() == 0 {
            return Err(NatDiscoveryError::Unspecific(address));
        }
    }
    if first.ip() == other.ip() || first.port() == other.port() {
        return Err(NatDiscoveryError::NotOther { first, other });
    }
    Ok(())
}

/// RFC 5780 §6: "TCP and TCP/TLS MUST use different ports".
fn shared_port(all: &[DiscoveryListeners], tcp: &[SocketAddr]) -> Result<(), NatDiscoveryError> {
    let of = |transport| all.iter().filter(move |of| of.transport == transport);
    for tls in of(Transport::Tls) {
        let of_discovery = of(Transport::Tcp).flat_map(|tcp| tcp.ports);
        let others = tcp.iter().filter(|tcp| tls.ips.contains(&tcp.ip()));
        let mut used = of_discovery.chain(others.map(SocketAddr::port));
        if let Some(port) = used.find(|port| tls.ports.contains(port)) {
            return Err(NatDiscoveryError::SharedPort(port));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(list: &[&str]) -> Vec<SocketAddr> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn add(
        wanted: &NatDiscovery,
        udp: &[&str],
    ) -> Result<(Vec<SocketAddr>, Vec<DiscoveryListeners>), NatDiscoveryError> {
        let mut udp = at(udp);
        let four = wanted.add_listeners(&mut udp, &mut Vec::new(), &mut Vec::new())?;
        Ok((udp, four))
    }

    fn udp(others: &[&str]) -> NatDiscovery {
        NatDiscovery {
            udp: at(others),
            ..NatDiscovery::default()
        }
    }

    #[test]
    fn the_listeners_that_are_missing_are_added_and_the_four_have_their_numbers() {
        let wanted = NatDiscovery {
            external: vec![("203.0.113.2".parse().unwrap(), "10.0.0.2".parse().unwrap())],
            ..udp(&["10.0.0.2:3479"])
        };
        let given = ["[2001:db8::1]:3478", "10.0.0.1:3478", "10.0.0.2:3479"];
        let (listeners, four) = add(&wanted, &given).unwrap();
        let expected = [&given[..], &["10.0.0.1:3479", "10.0.0.2:3478"]].concat();
        assert_eq!(listeners, at(&expected));
        assert_eq!(four[0].ports, [3478, 3479]);
        assert_eq!(
            four[0].listeners.map(|ports| ports.map(|key| key.0)),
            [[1, 3], [4, 2]]
        );
        let external: Vec<String> = four[0].external.iter().map(ToString::to_string).collect();
        assert_eq!(external, ["10.0.0.1", "203.0.113.2"]);
    }

    #[test]
    fn the_other_address_adds_at_most_three_listeners() {
        let added = |other: &str, listeners: &[&str]| {
            NatDiscovery::added_listeners(other.parse().unwrap(), &at(listeners))
        };
        let given = ["[2001:db8::1]:5349", "10.0.0.1:5349", "10.0.0.2:5350"];
        let expected = ["10.0.0.1:5350", "10.0.0.2:5349"];
        assert_eq!(added("10.0.0.2:5350", &given), at(&expected));
        let expected = ["10.0.0.1:5350", "10.0.0.2:5349", "10.0.0.2:5350"];
        assert_eq!(added("10.0.0.2:5350", &given[..2]), at(&expected));
        assert_eq!(added("10.0.0.2:5350", &given[..1]), []);
    }

    #[test]
    fn discovery_requires_two_addresses_and_two_ports() {
        use NatDiscoveryError as E;
        let first = ["192.0.2.1:3478"];
        let error = |others: &[&str], udp_listeners: &[&str]| add(&udp(others), udp_listeners);
        let twice = ["192.0.2.2:3479", "192.0.2.3:3480"];
        assert!(matches!(
            error(&["[::2]:3479"], &first),
            Err(E::NoListener(_))
        ));
        assert!(matches!(
            error(&["192.0.2.2:3478"], &first),
            Err(E::NotOther { .. })
        ));
        assert!(matches!(
            error(&["192.0.2.1:3479"], &first),
            Err(E::NotOther { .. })
        ));
        assert!(matches!(
            error(&["192.0.2.2:0"], &first),
            Err(E::Unspecific(_))
        ));
        assert!(matches!(error(&twice, &first), Err(E::TwoOfOneFamily(_))));
        let wildcard = error(&["192.0.2.2:3479"], &["0.0.0.0:3478"]);
        assert!(matches!(wildcard, Err(E::Unspecific(_))));
    }

    #[test]
    fn tcp_and_tls_use_different_ports() {
        let wanted = NatDiscovery {
            tcp: at(&["192.0.2.2:3479"]),
            tls: at(&["192.0.2.2:3478"]),
            ..NatDiscovery::default()
        };
        let (mut tcp, mut tls) = (at(&["192.0.2.1:3478"]), at(&["192.0.2.1:5349"]));
        let refused = wanted.add_listeners(&mut Vec::new(), &mut tcp, &mut tls);
        assert_eq!(refused, Err(NatDiscoveryError::SharedPort(3478)));
        let only_tls = NatDiscovery {
            tls: at(&["192.0.2.2:5350"]),
            ..NatDiscovery::default()
        };
        let tls = at(&["192.0.2.1:5349"]);
        assert_eq!(only_tls.check(&[], &at(&["192.0.2.1:3478"]), &tls), Ok(()));
        let beside = only_tls.check(&[], &at(&["192.0.2.1:5349"]), &tls);
        assert_eq!(beside, Err(NatDiscoveryError::SharedPort(5349)));
    }
}
