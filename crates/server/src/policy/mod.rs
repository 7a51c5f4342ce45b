//! Which peers clients may talk to: none that an attacker would gain from, unless an operator says so.
//!
//! Four questions, in this order, for a peer address and port:
//!
//! 1. **A listener of this server?** Refused, regardless of the rules: a client must not make the server talk to
//!    itself.
//! 2. **A relay address of this server, and a live allocation owns the port?** Then it is [`PeerClass::OwnRelay`]. The
//!    process reaches it without the network, also if the address is private. An explicit `deny` has precedence.
//! 3. **A rule?** The longest prefix whose ports match decides. At equal length a `deny` beats an `allow`, and an
//!    `allow` beats the built-in list ([`SPECIAL_NETWORKS`] and the addresses of this host). So `allow 0.0.0.0/0` does
//!    not open `10.0.0.0/8`, while `allow 10.0.0.0/8` or anything inside it does; and `deny 0.0.0.0/0` makes an
//!    admit-list of the rest.
//! 4. Otherwise the peer is admitted.
//!
//! An IPv6 address that contains an IPv4 address ([`Embedded`]) must be allowed as IPv6 *and* as each IPv4 address in
//! it. Other notations of this server's own addresses are always denied.

mod embedded;
mod special;
mod table;

pub use embedded::Embedded;
pub use special::{SPECIAL_NETWORKS, SpecialNetwork, loopback_and_private, special_network};

use crate::addresses::RelayAddresses;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use table::{RuleTable, RuleVerdict};
use turn::server::{ClientIdentity, PeerClass, PeerPolicy, RelayTransport};

/// Every port.
pub const ALL_PORTS: RangeInclusive<u16> = 0..=u16::MAX;

/// One `allow` or `deny`: a network and the ports in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerRule {
    /// The network; host bits are ignored.
    pub network: IpNet,
    /// The ports, both ends included.
    pub ports: RangeInclusive<u16>,
    /// For data over UDP or for TCP connections (RFC 6062) only; `None` for both.
    pub transport: Option<RelayTransport>,
}

impl PeerRule {
    /// A rule for every port of `network`.
    #[must_use]
    pub fn all_ports(network: IpNet) -> PeerRule {
        PeerRule {
            network,
            ports: ALL_PORTS,
            transport: None,
        }
    }

    /// The same rule for this transport only.
    #[must_use]
    pub fn over(mut self, transport: RelayTransport) -> PeerRule {
        self.transport = Some(transport);
        self
    }
}

/// The operator's part of the policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerRules {
    /// Networks that are re-admitted although the built-in list refuses them, or admitted in spite of a wider `deny`.
    pub allow: Vec<PeerRule>,
    /// Networks that are refused.
    pub deny: Vec<PeerRule>,
}

impl PeerRules {
    /// The rules for this transport.
    #[must_use]
    pub fn over(&self, transport: RelayTransport) -> PeerRules {
        let of = |rules: &[PeerRule]| -> Vec<PeerRule> {
            let holds = |rule: &&PeerRule| rule.transport.is_none_or(|only| only == transport);
            rules.iter().filter(holds).cloned().collect()
        };
        PeerRules {
            allow: of(&self.allow),
            deny: of(&self.deny),
        }
    }

    /// Whether a rule is for one transport only.
    pub(crate) fn depend_on_transport(&self) -> bool {
        let mut all = self.allow.iter().chain(&self.deny);
        all.any(|rule| rule.transport.is_some())
    }
}

/// The addresses of this machine that the policy denies.
#[derive(Debug, Clone, Default)]
pub struct OwnAddresses {
    /// The server's listeners; an unspecified address means the port on every address of this host.
    pub listeners: Vec<SocketAddr>,
    /// Every address of this host is denied as a peer, because services behind a firewall trust it like loopback.
    /// A rule for exactly that address allows it again.
    pub host: Vec<IpAddr>,
}

/// The peer policy of a running server: immutable, shared by all workers, replaced as a whole on reload.
#[derive(Debug)]
pub struct Policy {
    v4: RuleTable,
    v6: RuleTable,
    own: OwnAddresses,
    relays: Arc<RelayAddresses>,
}

impl Policy {
    /// Builds the policy for a server with these addresses. Rules for either transport alone count like all others: see
    /// [`PeerRules::over`].
    #[must_use]
    pub fn new(rules: &PeerRules, own: OwnAddresses, relays: Arc<RelayAddresses>) -> Policy {
        let mut policy = Policy {
            v4: RuleTable::new(32),
            v6: RuleTable::new(128),
            own,
            relays,
        };
        for special in SPECIAL_NETWORKS {
            policy.insert(special.network, ALL_PORTS, RuleVerdict::BuiltinDeny);
        }
        let relay_sides = policy.relays.all_sides();
        let ours: Vec<IpAddr> = policy.own.host.iter().copied().chain(relay_sides).collect();
        // Loopback is on the built-in list as a whole: there, re-admitting the network re-admits its addresses.
        for ip in ours.into_iter().filter(|ip| !ip.is_loopback()) {
            policy.insert(IpNet::from(ip), ALL_PORTS, RuleVerdict::BuiltinDeny);
        }
        for (list, ruling) in [
            (&rules.allow, RuleVerdict::Allow),
            (&rules.deny, RuleVerdict::Deny),
        ] {
            list.iter()
                .for_each(|rule| policy.insert(rule.network, rule.ports.clone(), ruling));
        }
        policy
    }

    fn insert(&mut self, network: IpNet, ports: RangeInclusive<u16>, ruling: RuleVerdict) {
        let (table, bits) = match network.addr() {
            IpAddr::V4(ip) => (&mut self.v4, u128::from(ip.to_bits())),
            IpAddr::V6(ip) => (&mut self.v6, ip.to_bits()),
        };
        table.insert(bits, network.prefix_len(), ports, ruling);
    }

    fn table(&self, ip: IpAddr) -> (&RuleTable, u128) {
        match ip {
            IpAddr::V4(ip) => (&self.v4, u128::from(ip.to_bits())),
            IpAddr::V6(ip) => (&self.v6, ip.to_bits()),
        }
    }

    fn is_listener(&self, ip: IpAddr, port: u16) -> bool {
        self.own.listeners.iter().any(|listener| {
            let same_family = listener.is_ipv4() == ip.is_ipv4();
            listener.port() == port
                && same_family
                && (listener.ip() == ip || (listener.ip().is_unspecified() && self.is_host(ip)))
        })
    }

    fn is_host(&self, ip: IpAddr) -> bool {
        self.own.host.contains(&ip) || ip.is_loopback() || ip.is_unspecified()
    }

    fn is_ours(&self, ip: IpAddr) -> bool {
        self.own.host.contains(&ip)
            || self.relays.find(ip).is_some()
            || self
                .own
                .listeners
                .iter()
                .any(|listener| listener.ip() == ip)
    }

    fn ruling(&self, ip: IpAddr, port: u16) -> Option<RuleVerdict> {
        let (table, bits) = self.table(ip);
        table.ruling(bits, port)
    }

    /// Whether the rules admit the address and everything it spells.
    fn admits(&self, ip: IpAddr, port: u16) -> bool {
        self.admits_ruled(ip, port, self.ruling(ip, port))
    }

    /// The same, where the ruling for the address as it is written is known.
    fn admits_ruled(&self, ip: IpAddr, port: u16, ruling: Option<RuleVerdict>) -> bool {
        let spelled_admitted = |v4: &Ipv4Addr| {
            let v4 = IpAddr::V4(*v4);
            !self.is_ours(v4) && is_admission(self.ruling(v4, port))
        };
        port != 0
            && is_admission(ruling)
            && match ip {
                IpAddr::V4(_) => true,
                IpAddr::V6(v6) => Embedded::of(v6).as_slice().iter().all(spelled_admitted),
            }
    }

    /// Whether there is a port at which the rules admit `ip`.
    fn admits_some_port(&self, ip: IpAddr) -> bool {
        let at_a_change = |written: IpAddr| {
            let (table, bits) = self.table(written);
            table.any_port(bits, |port| self.admits(ip, port))
        };
        at_a_change(ip)
            || match ip {
                IpAddr::V4(_) => false,
                IpAddr::V6(v6) => Embedded::of(v6)
                    .as_slice()
                    .iter()
                    .any(|&v4| at_a_change(IpAddr::V4(v4))),
            }
    }
}

impl PeerPolicy for Policy {
    fn classify(&self, _: &ClientIdentity<'_>, peer: IpAddr) -> PeerClass {
        self.class_of_address(peer)
    }

    fn permits(&self, _: &ClientIdentity<'_>, peer: SocketAddr) -> PeerClass {
        self.class_of_peer(peer)
    }

    fn permits_connection(&self, _: &ClientIdentity<'_>, peer: SocketAddr) -> PeerClass {
        let is_relay = self.relays.listens(peer).is_some();
        self.class_of_address_and_port(peer, is_relay)
    }
}

impl Policy {
    /// CreatePermission has no port: an address is a peer if some port of it may be reached.
    fn class_of_address(&self, peer: IpAddr) -> PeerClass {
        let (table, bits) = self.table(peer);
        let not_denied = |port| table.ruling(bits, port) != Some(RuleVerdict::Deny);
        if self.relays.find(peer).is_some() && table.any_port(bits, not_denied) {
            PeerClass::OwnRelay
        } else if self.admits_some_port(peer) {
            PeerClass::Peer
        } else {
            PeerClass::Denied
        }
    }

    fn class_of_peer(&self, peer: SocketAddr) -> PeerClass {
        let is_relay =
            self.relays.owner_of(peer).is_some() || self.relays.relay_of_other(peer).is_some();
        self.class_of_address_and_port(peer, is_relay)
    }

    /// `is_relay`: a live allocation of this server has it.
    #[inline]
    fn class_of_address_and_port(&self, peer: SocketAddr, is_relay: bool) -> PeerClass {
        if self.is_listener(peer.ip(), peer.port()) {
            return PeerClass::Denied;
        }
        // Looked up once: this runs for every Send indication.
        let ruling = self.ruling(peer.ip(), peer.port());
        if ruling != Some(RuleVerdict::Deny) && is_relay {
            return PeerClass::OwnRelay;
        }
        match self.admits_ruled(peer.ip(), peer.port(), ruling) {
            true => PeerClass::Peer,
            false => PeerClass::Denied,
        }
    }
}

/// An address without a rule is allowed.
fn is_admission(ruling: Option<RuleVerdict>) -> bool {
    matches!(ruling, None | Some(RuleVerdict::Allow))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
