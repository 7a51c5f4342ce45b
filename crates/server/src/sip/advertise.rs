//! The address that SIP listeners write into Via, Record-Route, Path and Contact. An entry of `sip.advertise` comes
//! first. Otherwise, it is the address that the listener is bound to. For a listener on all addresses, it is the one
//! that a message came to or leaves from.

use super::settings::SipSettings;
use io::interfaces;
use sip::engine::{SentBy, SentByHost};
use sip::flow::{ListenerKey, Transport};
use sip::{Host, Mono};
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The public name or address of listeners, for example behind a NAT.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Advertised {
    /// A DNS name, or an IP address without brackets. An address is for listeners of its family, a name for all.
    pub host: String,
    /// The public port; `None`: that of the listener.
    pub port: Option<u16>,
    /// Only for listeners at this address, or for messages that a listener on all addresses receives there; `None`: for
    /// all.
    pub of: Option<IpAddr>,
    /// Only for listeners with this port; `None`: with any.
    pub of_port: Option<u16>,
}

/// The signatures of the requests of one listener, those for special cases first.
pub(super) fn signatures(
    settings: &SipSettings,
    listener: ListenerKey,
    transport: Transport,
    bound: SocketAddr,
) -> Vec<SentBy> {
    let own = SentBy {
        host: match bound.ip().is_unspecified() {
            true => SentByHost::Local,
            false => SentByHost::Named(host_text(bound.ip()).into()),
        },
        ..SentBy::new(listener, transport, "", bound.port())
    };
    let mut advertised: Vec<SentBy> = settings
        .advertise
        .iter()
        .filter_map(|advertised| advertised.signature(&own, bound))
        .collect();
    // An entry for one address of a listener comes before an entry for the whole listener.
    advertised.sort_by_key(|one| one.local.is_none());
    let inside = settings.local_networks.iter().map(|network| SentBy {
        network: Some((network.addr(), network.prefix_len())),
        ..own.clone()
    });
    // Without an entry, local networks see the same address as all others.
    let inside = inside.filter(|_| !advertised.is_empty());
    let inside: Vec<SentBy> = inside.collect();
    inside.into_iter().chain(advertised).chain([own]).collect()
}

impl Advertised {
    /// The public address of the listener bound there by this entry, if the entry applies.
    fn signature(&self, own: &SentBy, bound: SocketAddr) -> Option<SentBy> {
        let host = match self.host.parse::<IpAddr>() {
            Ok(ip) if ip.is_ipv4() != bound.is_ipv4() => return None,
            Ok(ip) => host_text(ip),
            Err(_) => self.host.clone(),
        };
        if self.of_port.is_some_and(|port| port != bound.port()) {
            return None;
        }
        let local = match self.of {
            Some(of) if of.is_ipv4() != bound.is_ipv4() => return None,
            Some(of) if bound.ip().is_unspecified() && !of.is_unspecified() => Some(of),
            Some(of) if of != bound.ip() => return None,
            _ => None,
        };
        Some(SentBy {
            host: SentByHost::Named(host.into()),
            port: self.port.unwrap_or(bound.port()),
            local,
            ..own.clone()
        })
    }

    /// Whether a host and port of a URI name this server by it. Without a port, a name may have another one in the DNS.
    pub(super) fn matches(
        &self,
        host: Host<'_>,
        port: Option<u16>,
        listeners: &[SocketAddr],
    ) -> bool {
        let own = match self.host.parse::<IpAddr>() {
            Ok(ip) => host_text(ip),
            Err(_) => self.host.clone(),
        };
        let is_same = Host::new(own.as_bytes()).is_some_and(|own| own == host);
        let is_port = |listener: &SocketAddr| {
            let theirs = self.port.unwrap_or(listener.port());
            let is_of = self.of_port.is_none_or(|of| of == listener.port());
            is_of
                && match port {
                    Some(port) => theirs == port,
                    None => host.ip().is_none() || matches!(theirs, 5060 | 5061),
                }
        };
        is_same && listeners.iter().any(is_port)
    }
}

/// An address as a host of a URI.
fn host_text(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("[{v6}]"),
    }
}

/// How long a source address from the kernel stays in the cache. Routes change rarely.
const CACHE_LIFETIME: Duration = Duration::from_secs(1);

/// Slots for cached source addresses, per worker.
const CACHE_SLOTS: usize = 64;

/// The source address of packets to one remote address, as the kernel has selected it.
#[derive(Debug, Clone, Copy)]
struct CachedSource {
    remote: IpAddr,
    local: Option<IpAddr>,
    asked: Mono,
}

thread_local! {
    /// The latest source addresses from the kernel, each in the slot of its remote address.
    static CACHED_SOURCES: RefCell<[Option<CachedSource>; CACHE_SLOTS]> = const { RefCell::new([None; CACHE_SLOTS]) };
}

/// The address of this host that packets to another address leave from. It is looked up at most once per second and
/// address: a look-up takes four system calls.
pub(super) fn source_address(remote: IpAddr) -> Option<IpAddr> {
    let remote = remote.to_canonical();
    let place = match remote {
        IpAddr::V4(v4) => v4.to_bits() as usize,
        IpAddr::V6(v6) => (v6.to_bits() ^ v6.to_bits() >> 64) as usize,
    } % CACHE_SLOTS;
    let now = super::reading::now().mono;
    CACHED_SOURCES.with_borrow_mut(|sources| {
        let known =
            sources[place].filter(|it| it.remote == remote && now.since(it.asked) < CACHE_LIFETIME);
        let source = known.unwrap_or_else(|| CachedSource {
            remote,
            local: interfaces::source_to(remote),
            asked: now,
        });
        sources[place] = Some(source);
        source.local
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advertised(host: &str, of: Option<&str>) -> Advertised {
        Advertised {
            host: host.to_owned(),
            port: None,
            of: of.map(|of| of.parse().unwrap()),
            of_port: None,
        }
    }

    fn names(advertise: Vec<Advertised>, networks: &[&str], bound: &str) -> Vec<String> {
        let settings = SipSettings {
            advertise,
            local_networks: networks.iter().map(|net| net.parse().unwrap()).collect(),
            ..SipSettings::default()
        };
        let bound = bound.parse().unwrap();
        let all = signatures(&settings, ListenerKey(0), Transport::Udp, bound);
        let name = |one: SentBy| {
            let host = match one.host {
                SentByHost::Named(name) => name.into_string(),
                SentByHost::Local => "*".to_owned(),
            };
            let local = one.local.map_or(String::new(), |ip| format!(" from {ip}"));
            let network = one.network.map(|(ip, len)| format!(" to {ip}/{len}"));
            format!("{host}:{}{local}{}", one.port, network.unwrap_or_default())
        };
        all.into_iter().map(name).collect()
    }

    #[test]
    fn a_listener_uses_its_bound_address_unless_another_is_advertised() {
        assert_eq!(names(vec![], &[], "10.0.0.5:5060"), ["10.0.0.5:5060"]);
        assert_eq!(
            names(vec![], &[], "[2001:db8::1]:5070"),
            ["[2001:db8::1]:5070"]
        );
        assert_eq!(names(vec![], &["10.0.0.0/8"], "0.0.0.0:5060"), ["*:5060"]);
        let outside = || vec![advertised("203.0.113.5", None)];
        assert_eq!(
            names(outside(), &["10.0.0.0/8"], "10.0.0.5:5060"),
            [
                "10.0.0.5:5060 to 10.0.0.0/8",
                "203.0.113.5:5060",
                "10.0.0.5:5060"
            ]
        );
        assert_eq!(
            names(outside(), &[], "[::1]:5060"),
            ["[::1]:5060"],
            "of its family"
        );
    }

    #[test]
    fn inside_and_outside_interfaces_have_names_of_their_own() {
        let both = || {
            vec![
                advertised("sip.example.org", None),
                advertised("203.0.113.5", Some("10.0.0.5")),
            ]
        };
        assert_eq!(
            names(both(), &[], "0.0.0.0:5060"),
            [
                "203.0.113.5:5060 from 10.0.0.5",
                "sip.example.org:5060",
                "*:5060"
            ]
        );
        assert_eq!(
            names(both(), &[], "10.0.0.5:5060")[..2],
            ["sip.example.org:5060", "203.0.113.5:5060"]
        );
        assert_eq!(
            names(both(), &[], "10.0.0.6:5060"),
            ["sip.example.org:5060", "10.0.0.6:5060"]
        );
        let port = Advertised {
            port: Some(15060),
            of_port: Some(5060),
            ..advertised("203.0.113.5", None)
        };
        assert_eq!(
            names(vec![port.clone()], &[], "10.0.0.5:5060")[0],
            "203.0.113.5:15060"
        );
        assert_eq!(names(vec![port], &[], "10.0.0.5:5061"), ["10.0.0.5:5061"]);
    }

    #[test]
    fn an_advertised_address_is_this_server() {
        let listeners = [
            "10.0.0.5:5060".parse().unwrap(),
            "10.0.0.5:5071".parse().unwrap(),
        ];
        let is = |one: &Advertised, host: &str, port| {
            one.matches(Host::new(host.as_bytes()).unwrap(), port, &listeners)
        };
        let ip = advertised("203.0.113.5", None);
        assert!(is(&ip, "203.0.113.5", None) && is(&ip, "203.0.113.5", Some(5071)));
        assert!(!is(&ip, "203.0.113.5", Some(5072)) && !is(&ip, "203.0.113.6", None));
        let name = advertised("sip.example.org", None);
        assert!(is(&name, "SIP.example.org", None) && is(&name, "sip.example.org", Some(5060)));
        assert!(!is(&name, "sip.example.org", Some(5099)));
    }
}
