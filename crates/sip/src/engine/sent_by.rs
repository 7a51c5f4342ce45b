//! The host and port of this server in its messages: in the topmost Via of requests (RFC 3261 §18.1.1), and in its
//! Record-Route, Path and Contact values.

use std::net::{IpAddr, SocketAddr};

use crate::Host;
use crate::build::Part;
use crate::flow::{Destination, Flow, ListenerKey, Transport};

/// What stands in the Via of requests sent from a listener (RFC 3261 §18.1.1). The first of
/// [`Config::sent_by`](super::Config::sent_by) that fits a request is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentBy {
    /// The listener.
    pub listener: ListenerKey,
    /// The transport; a listener may have UDP and TCP.
    pub transport: Transport,
    /// The name or address.
    pub host: SentByHost,
    /// The port.
    pub port: u16,
    /// Only for requests that leave from this address of the listener; `None`: from any.
    pub local: Option<IpAddr>,
    /// Only for requests to this network, an address and the length of its prefix; `None`: to any.
    pub network: Option<(IpAddr, u8)>,
}

/// The host of a [`SentBy`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SentByHost {
    /// A name or address, an IPv6 address in brackets.
    Named(Box<str>),
    /// The address that the request leaves from: for a listener on all addresses.
    Local,
}

impl SentBy {
    /// The sent-by of all requests of this listener and transport. `host`: an IPv6 address has brackets.
    #[must_use]
    pub fn new(listener: ListenerKey, transport: Transport, host: &str, port: u16) -> SentBy {
        SentBy {
            listener,
            transport,
            host: SentByHost::Named(host.into()),
            port,
            local: None,
            network: None,
        }
    }

    /// Whether a host and port of a Via can be what this has written.
    pub(super) fn is(&self, host: Host<'_>, port: u16) -> bool {
        self.port == port
            && match &self.host {
                SentByHost::Named(name) => {
                    Host::new(name.as_bytes()).is_some_and(|ours| ours == host)
                }
                // Which addresses the host has changes while the server runs. The branch has a MAC.
                SentByHost::Local => host.ip().is_some(),
            }
    }

    /// Whether it is for requests of this hop from this address.
    fn is_for(&self, hop: &Hop, local: Option<IpAddr>) -> bool {
        self.listener == hop.listener
            && self.transport == hop.transport
            && self.local.is_none_or(|own| local == Some(own))
            && self
                .network
                .is_none_or(|network| contains(network, hop.remote))
    }
}

fn contains((network, prefix): (IpAddr, u8), ip: IpAddr) -> bool {
    let same = |one: u128, other: u128, bits: u32| match bits.saturating_sub(prefix.into()) {
        // A prefix of no bits has every address.
        128.. => true,
        shift => one >> shift == other >> shift,
    };
    match (network.to_canonical(), ip) {
        (IpAddr::V4(network), IpAddr::V4(ip)) => {
            same(network.to_bits().into(), ip.to_bits().into(), 32)
        }
        (IpAddr::V6(network), IpAddr::V6(ip)) => same(network.to_bits(), ip.to_bits(), 128),
        _ => false,
    }
}

/// Between which ends a request travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The socket.
    pub listener: ListenerKey,
    /// The transport.
    pub transport: Transport,
    /// The address that it leaves from, if that is known.
    pub local: Option<IpAddr>,
    /// The address that it goes to.
    pub remote: IpAddr,
}

impl From<&Destination> for Hop {
    fn from(to: &Destination) -> Hop {
        Hop::new(to.listener, to.transport, to.local, to.remote)
    }
}

impl From<&Flow> for Hop {
    /// The way back to where a message came from.
    fn from(flow: &Flow) -> Hop {
        Hop::new(flow.listener, flow.transport, Some(flow.local), flow.remote)
    }
}

impl Hop {
    fn new(
        listener: ListenerKey,
        transport: Transport,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Hop {
        let local = local.map(|local| local.ip().to_canonical());
        Hop {
            listener,
            transport,
            local: local.filter(|ip| !ip.is_unspecified()),
            remote: remote.ip().to_canonical(),
        }
    }
}

/// Says which address of this host packets to another address leave from.
pub type SourceAddress = fn(IpAddr) -> Option<IpAddr>;

/// What this server calls itself on a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature<'a> {
    /// The transport.
    pub transport: Transport,
    /// The host.
    pub host: SignatureHost<'a>,
    /// The port.
    pub port: u16,
}

/// The host of a [`Signature`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureHost<'a> {
    /// A name or address as it is written.
    Named(&'a str),
    /// An address of this host.
    Ip(IpAddr),
}

impl Signature<'_> {
    /// The host as it is written, an IPv6 address in brackets.
    #[must_use]
    pub const fn host_part(&self) -> Part<'_> {
        match self.host {
            SignatureHost::Named(name) => Part::Bytes(name.as_bytes()),
            SignatureHost::Ip(ip) => Part::Ip(ip),
        }
    }
}

/// The signature for a hop: the first of these that fits.
pub(super) fn signature<'a>(
    all: &'a [SentBy],
    hop: &Hop,
    source_address: Option<SourceAddress>,
) -> Option<Signature<'a>> {
    let mut of_listener = all
        .iter()
        .filter(|one| one.listener == hop.listener && one.transport == hop.transport);
    // Only a listener on all addresses leaves open which one a request leaves from.
    let is_open = |one: &SentBy| one.local.is_some() || one.host == SentByHost::Local;
    let local = match hop.local {
        None if of_listener.clone().any(is_open) => {
            source_address.and_then(|source_of| source_of(hop.remote))
        }
        known => known,
    };
    of_listener.find_map(|one| {
        let host = match &one.host {
            SentByHost::Named(name) => SignatureHost::Named(name),
            SentByHost::Local => SignatureHost::Ip(local?),
        };
        one.is_for(hop, local).then_some(Signature {
            transport: one.transport,
            host,
            port: one.port,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn hop(local: Option<&str>, remote: &str) -> Hop {
        Hop {
            listener: ListenerKey(1),
            transport: Transport::Udp,
            local: local.map(ip),
            remote: ip(remote),
        }
    }

    fn named(host: &str) -> SentBy {
        SentBy::new(ListenerKey(1), Transport::Udp, host, 5060)
    }

    fn host_of(all: &[SentBy], hop: &Hop) -> Option<String> {
        let signature = signature(all, hop, Some(|_| Some(ip("10.0.0.9"))))?;
        Some(match signature.host {
            SignatureHost::Named(name) => name.to_owned(),
            SignatureHost::Ip(ip) => ip.to_string(),
        })
    }

    #[test]
    fn a_listener_on_all_addresses_signs_with_the_one_that_a_request_leaves_from() {
        let all = [SentBy {
            host: SentByHost::Local,
            ..named("")
        }];
        let known = hop(Some("192.0.2.1"), "192.0.2.7");
        assert_eq!(host_of(&all, &known).as_deref(), Some("192.0.2.1"));
        let routed = hop(None, "192.0.2.7");
        assert_eq!(host_of(&all, &routed).as_deref(), Some("10.0.0.9"));
        assert_eq!(signature(&all, &routed, None), None, "nobody knows");
        let other = Hop {
            listener: ListenerKey(2),
            ..known
        };
        assert_eq!(host_of(&all, &other), None);
        let is = |host: &str, port| all[0].is(Host::new(host.as_bytes()).unwrap(), port);
        assert!(is("192.0.2.1", 5060) && is("[2001:db8::1]", 5060));
        assert!(!is("192.0.2.1", 5061) && !is("example.org", 5060));
    }

    #[test]
    fn networks_inside_see_another_name_than_those_outside() {
        let inside = SentBy {
            network: Some((ip("10.0.0.0"), 8)),
            ..named("10.0.0.5")
        };
        let all = [inside, named("203.0.113.5")];
        for (remote, host) in [
            ("10.255.0.1", "10.0.0.5"),
            ("11.0.0.1", "203.0.113.5"),
            ("2001:db8::1", "203.0.113.5"),
        ] {
            let host_there = host_of(&all, &hop(None, remote));
            assert_eq!(host_there.as_deref(), Some(host), "{remote}");
        }
    }

    #[test]
    fn each_address_of_a_listener_may_have_a_name_of_its_own() {
        let of = |local: &str, host: &str| SentBy {
            local: Some(ip(local)),
            ..named(host)
        };
        let all = [
            of("10.0.0.9", "a.example.org"),
            of("10.0.0.8", "b.example.org"),
        ];
        let remote = "192.0.2.7";
        for (local, host) in [
            (Some("10.0.0.8"), Some("b.example.org")),
            (None, Some("a.example.org")),
            (Some("10.0.0.7"), None),
        ] {
            assert_eq!(
                host_of(&all, &hop(local, remote)).as_deref(),
                host,
                "{local:?}"
            );
        }
    }

    #[test]
    fn a_network_has_the_addresses_of_its_prefix_alone() {
        for (network, prefix, address, is_in) in [
            ("10.0.0.0", 8, "10.1.2.3", true),
            ("10.0.0.0", 8, "11.1.2.3", false),
            ("0.0.0.0", 0, "192.0.2.1", true),
            ("192.0.2.1", 32, "192.0.2.1", true),
            ("192.0.2.1", 32, "192.0.2.0", false),
            ("2001:db8::", 32, "2001:db8:1::1", true),
            ("2001:db8::", 32, "2001:db9::1", false),
            ("::", 0, "2001:db9::1", true),
            ("::", 0, "192.0.2.1", false),
        ] {
            let found = contains((ip(network), prefix), ip(address));
            assert_eq!(found, is_in, "{address} in {network}/{prefix}");
        }
    }
}
