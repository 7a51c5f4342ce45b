//! The addresses of this machine: which to relay from, which to advertise, which are its own.

mod advertised;

use crate::error::ReloadError;
use crate::ports::{ForeignPorts, Owner, OwnerTable, PortPool, PortRange, PortSet, SharedPorts};
use advertised::Advertised;
use arc_swap::ArcSwapOption;
use io::interfaces;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stun::AddressFamily;

/// An address that relay sockets are bound to, and the one that clients and peers get.
///
/// They differ behind a one-to-one NAT, as in most clouds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RelayAddress {
    /// Bound to; must be an address of this machine.
    pub local: IpAddr,
    /// Sent in XOR-RELAYED-ADDRESS; of the same family.
    pub advertised: IpAddr,
}

impl RelayAddress {
    /// An address that is advertised as it is.
    #[must_use]
    pub fn direct(ip: IpAddr) -> RelayAddress {
        RelayAddress {
            local: ip,
            advertised: ip,
        }
    }

    /// The family of both addresses.
    #[must_use]
    pub fn family(self) -> AddressFamily {
        family_of(self.local)
    }
}

/// The family of `ip`.
#[must_use]
pub fn family_of(ip: IpAddr) -> AddressFamily {
    match ip {
        IpAddr::V4(_) => AddressFamily::V4,
        IpAddr::V6(_) => AddressFamily::V6,
    }
}

/// The address that packets to the Internet leave from; `None` without a default route of that family.
#[must_use]
pub fn default_route(family: AddressFamily) -> Option<IpAddr> {
    match family {
        AddressFamily::V4 => interfaces::default_source_v4().map(IpAddr::V4),
        AddressFamily::V6 => interfaces::default_source_v6().map(IpAddr::V6),
    }
}

/// Every address of this machine's interfaces that are up. Empty if the kernel does not say.
#[must_use]
pub fn host_addresses() -> Vec<IpAddr> {
    let all = interfaces::addresses().unwrap_or_default();
    all.into_iter()
        .filter(|address| address.up)
        .map(|address| address.ip)
        .collect()
}

/// The relay addresses if none are set: the address of the default route of each family, or loopback on a machine
/// without a default route.
#[must_use]
pub fn default_relay_addresses() -> Vec<RelayAddress> {
    let routed: Vec<RelayAddress> = [AddressFamily::V4, AddressFamily::V6]
        .into_iter()
        .filter_map(default_route)
        .map(RelayAddress::direct)
        .collect();
    if !routed.is_empty() {
        return routed;
    }
    let host = host_addresses();
    [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ]
    .into_iter()
    .filter(|ip| host.contains(ip))
    .map(RelayAddress::direct)
    .collect()
}

/// Names one relay address of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RelayIndex(u8);

/// The relay addresses of a server, each with its ports and their owners. Shared by all workers for the server's life.
#[derive(Debug)]
pub struct RelayAddresses {
    entries: Box<[Entry]>,
    /// The relay ports of another process on the same addresses, during an upgrade.
    foreign: ArcSwapOption<ForeignPorts>,
    /// Whether there are any: this is asked for every Send indication.
    has_foreign: AtomicBool,
}

#[derive(Debug)]
struct Entry {
    local: IpAddr,
    advertised: Advertised,
    pool: PortPool,
    owners: OwnerTable,
    /// Where TCP relays listen. They have no owner: they are reached by the network.
    listening: PortSet,
}

impl RelayAddresses {
    /// Most relay addresses a server has: each port table is half a megabyte if it covers every port.
    pub const MAX: usize = 64;

    /// Tables for `addresses` (at most [`RelayAddresses::MAX`] are used), each with the ports of `range`.
    #[must_use]
    pub fn new(addresses: &[RelayAddress], range: PortRange, workers: usize) -> RelayAddresses {
        let entry = |address: &RelayAddress| Entry {
            local: address.local,
            advertised: Advertised::new(address.advertised),
            pool: PortPool::new(range, workers),
            owners: OwnerTable::new(range),
            listening: PortSet::new(range),
        };
        RelayAddresses {
            entries: addresses.iter().take(Self::MAX).map(entry).collect(),
            foreign: ArcSwapOption::empty(),
            has_foreign: AtomicBool::new(false),
        }
    }

    /// What another process needs to see which ports are live here.
    pub(crate) fn shared_ports(&self, first: u16) -> Vec<SharedPorts> {
        let shared = |entry: &Entry| {
            Some(SharedPorts {
                local: entry.local,
                first,
                words: entry.owners.descriptor()?,
            })
        };
        self.entries.iter().filter_map(shared).collect()
    }

    /// Another process has relay ports on these addresses from now on, or has none any more.
    pub(crate) fn set_foreign(&self, foreign: Option<ForeignPorts>) {
        self.has_foreign.store(foreign.is_some(), Ordering::Release);
        self.foreign.store(foreign.map(Arc::new));
    }

    /// The relayed transport address, as it is bound, if an allocation of the other process has it.
    pub(crate) fn relay_of_other(&self, peer: SocketAddr) -> Option<SocketAddr> {
        if !self.has_foreign.load(Ordering::Acquire) {
            return None;
        }
        let foreign = self.foreign.load();
        let foreign = foreign.as_ref()?;
        let local = self.entry(self.find(peer.ip())?).local;
        let bound = SocketAddr::new(local, peer.port());
        foreign.is_live(bound).then_some(bound)
    }

    /// All of them, in the order given.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = RelayAddress> + '_ {
        self.entries.iter().map(Entry::address)
    }

    /// All local addresses, those advertised now, and those that were advertised before.
    pub(crate) fn all_sides(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.entries.iter().flat_map(|entry| {
            let [local, now] = [entry.local, entry.advertised.now()];
            [local, now].into_iter().chain(entry.advertised.before())
        })
    }

    /// Advertises another address for this local one from now on. Returns whether it differs from the one before.
    ///
    /// # Errors
    /// If there is no such local address, or the other address is of another family, belongs to another relay address
    /// or cannot be sent to.
    pub(crate) fn advertise(&self, local: IpAddr, advertised: IpAddr) -> Result<bool, ReloadError> {
        let mut others = self.entries.iter().filter(|entry| entry.local != local);
        let is_taken =
            others.any(|entry| [entry.local, entry.advertised.now()].contains(&advertised));
        let is_usable = !advertised.is_unspecified() && !advertised.is_multicast();
        let is_same_family = advertised.is_ipv4() == local.is_ipv4();
        let entry = self.entries.iter().find(|entry| entry.local == local);
        match entry {
            Some(entry) if is_usable && is_same_family && !is_taken => {
                Ok(entry.advertised.replace(advertised))
            }
            _ => Err(ReloadError::ExternalAddress { local, advertised }),
        }
    }

    /// The relay address that has `ip` on either side of its mapping.
    #[must_use]
    pub fn find(&self, ip: IpAddr) -> Option<RelayIndex> {
        let position = |is_it: &dyn Fn(&Entry) -> bool| self.entries.iter().position(is_it);
        let at = position(&|entry| entry.local == ip || entry.advertised.now() == ip)
            .or_else(|| position(&|entry| entry.advertised.was(ip)))?;
        u8::try_from(at).ok().map(RelayIndex)
    }

    /// An address of this host, as peers see it if relays are bound to it.
    pub(crate) fn advertised(&self, address: SocketAddr) -> SocketAddr {
        let entry = self
            .entries
            .iter()
            .find(|entry| entry.local == address.ip());
        entry.map_or(address, |entry| {
            SocketAddr::new(entry.advertised.now(), address.port())
        })
    }

    /// The relay addresses of `family`, in the order given.
    pub fn of_family(
        &self,
        family: AddressFamily,
    ) -> impl Iterator<Item = RelayIndex> + Clone + '_ {
        (0_u8..)
            .zip(self.entries.iter())
            .filter(move |(_, entry)| family_of(entry.local) == family)
            .map(|(at, _)| RelayIndex(at))
    }

    /// Whether any relay address is of `family`.
    #[must_use]
    pub fn has(&self, family: AddressFamily) -> bool {
        self.iter().any(|address| address.family() == family)
    }

    /// The two sides of a relay address.
    #[must_use]
    pub fn address(&self, relay: RelayIndex) -> RelayAddress {
        self.entry(relay).address()
    }

    /// The free ports of a relay address.
    #[must_use]
    pub fn pool(&self, relay: RelayIndex) -> &PortPool {
        &self.entry(relay).pool
    }

    /// The owners of a relay address' ports.
    #[must_use]
    pub fn owners(&self, relay: RelayIndex) -> &OwnerTable {
        &self.entry(relay).owners
    }

    /// The owner of a relayed transport address, written with either side of the mapping.
    #[must_use]
    pub fn owner_of(&self, relayed: SocketAddr) -> Option<(RelayIndex, Owner)> {
        let relay = self.find(relayed.ip())?;
        Some((relay, self.owners(relay).get(relayed.port())?))
    }

    /// The ports of a relay address on which TCP relays listen (RFC 6062).
    #[must_use]
    pub fn listening(&self, relay: RelayIndex) -> &PortSet {
        &self.entry(relay).listening
    }

    /// The relay address of a TCP relay. `relayed` is its external or its internal address.
    #[must_use]
    pub fn listens(&self, relayed: SocketAddr) -> Option<RelayAddress> {
        let relay = self.find(relayed.ip())?;
        self.listening(relay)
            .contains(relayed.port())
            .then(|| self.address(relay))
    }

    fn entry(&self, relay: RelayIndex) -> &Entry {
        // A RelayIndex is only made by `find` and `of_family`, from positions in this list.
        &self.entries[usize::from(relay.0)]
    }
}

impl Entry {
    fn address(&self) -> RelayAddress {
        RelayAddress {
            local: self.local,
            advertised: self.advertised.now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("test addresses are well formed")
    }

    #[test]
    fn an_advertised_address_can_change_and_the_old_one_stays_known() {
        let relays = addresses();
        let [local, old, new] = ["10.0.0.5", "203.0.113.5", "203.0.113.9"].map(ip);
        assert!(relays.advertise(local, new).expect("it is fine"));
        assert!(!relays.advertise(local, new).expect("it is the same"));
        let relay = relays.find(new).expect("it is known");
        assert_eq!(relays.address(relay).advertised, new);
        assert_eq!(
            (relays.find(old), relays.find(local)),
            (Some(relay), Some(relay))
        );
        assert!(relays.all_sides().any(|side| side == old));
        for (local, advertised) in [
            ("10.0.0.5", "10.0.0.6"),
            ("10.0.0.5", "2001:db8::7"),
            ("10.0.0.5", "0.0.0.0"),
            ("10.0.0.99", "203.0.113.9"),
        ] {
            let refused = relays.advertise(ip(local), ip(advertised));
            assert!(refused.is_err(), "{local} as {advertised}");
        }
        let [v6, new_v6] = ["2001:db8::5", "2001:db8::9"].map(ip);
        assert!(relays.advertise(v6, new_v6).expect("it is fine"));
        assert_eq!(relays.find(new_v6), relays.find(v6));
    }

    fn addresses() -> RelayAddresses {
        let list = [
            RelayAddress {
                local: ip("10.0.0.5"),
                advertised: ip("203.0.113.5"),
            },
            RelayAddress::direct(ip("2001:db8::5")),
            RelayAddress::direct(ip("10.0.0.6")),
        ];
        RelayAddresses::new(&list, PortRange::DYNAMIC, 2)
    }

    #[test]
    fn both_sides_of_a_mapping_find_it() {
        let relays = addresses();
        assert_eq!(relays.find(ip("10.0.0.5")), Some(RelayIndex(0)));
        assert_eq!(relays.find(ip("203.0.113.5")), Some(RelayIndex(0)));
        assert_eq!(relays.find(ip("203.0.113.6")), None);
        let owner = Owner { worker: 1, slot: 9 };
        relays.owners(RelayIndex(0)).set(50_000, owner);
        assert_eq!(
            relays.owner_of("203.0.113.5:50000".parse().expect("an address")),
            Some((RelayIndex(0), owner))
        );
        assert_eq!(
            relays.owner_of("10.0.0.6:50000".parse().expect("an address")),
            None
        );
    }

    #[test]
    fn families_are_kept_apart() {
        let relays = addresses();
        assert_eq!(
            relays.of_family(AddressFamily::V4).collect::<Vec<_>>(),
            [RelayIndex(0), RelayIndex(2)]
        );
        assert_eq!(
            relays.of_family(AddressFamily::V6).collect::<Vec<_>>(),
            [RelayIndex(1)]
        );
        assert!(relays.has(AddressFamily::V6));
    }
}
