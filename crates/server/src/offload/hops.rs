//! Next hops: converts routes and neighbours to entries of the program's table, and keeps the entries current.
//!
//! An entry is valid for [`ENTRY_LIFETIME_NS`] only and is renewed in time. So no program sends by an outdated route or
//! link-layer address. A hop without a route, or with an unknown neighbour, has no entry. User space relays its
//! datagrams, which also makes the kernel resolve the neighbour.

use super::cells::Cells;
use super::next_hops::Path;
use bpf::relay::NextHop;
use io::netlink::{Mac, Neighbour, NeighbourState, Route, RouteTo};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// How long an entry is valid, in nanoseconds: the default of the kernel's base reachable time.
pub(super) const ENTRY_LIFETIME_NS: u64 = 30_000_000_000;

/// An entry with less than this left is renewed.
const RENEWAL_NS: u64 = ENTRY_LIFETIME_NS * 2 / 3;

/// Where entries are written to.
pub(super) trait Entries {
    /// Makes the hop usable.
    fn set(&mut self, index: u32, hop: &NextHop);
    /// Makes it unusable.
    fn clear(&mut self, index: u32);
}

/// An interface that packets may leave by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) mac: Mac,
    pub(super) mtu: u32,
    pub(super) loopback: bool,
    /// It takes frames that the XDP program redirects from another interface.
    pub(super) xdp: bool,
    /// The XDP program is attached, and may send back what came by this interface.
    pub(super) xdp_tx: bool,
    /// It takes packets from the classifier.
    pub(super) tc: bool,
}

/// All hops in use.
#[derive(Debug, Default)]
pub(super) struct Hops {
    hops: HashMap<u32, HopEntry>,
    neighbours: HashMap<HopKey, KnownNeighbour>,
    cells: Arc<Cells>,
    exits: HashMap<u32, Exit>,
}

/// An address behind an interface.
type HopKey = (u32, IpAddr);

#[derive(Debug)]
struct HopEntry {
    path: Path,
    peer_path: Option<PeerPath>,
    /// What the table has.
    written: Option<NextHop>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PeerPath {
    place: HopKey,
    mtu: Option<u32>,
    local: bool,
}

#[derive(Debug)]
struct KnownNeighbour {
    mac: Option<Mac>,
    state: NeighbourState,
    hops: Vec<u32>,
}

impl Default for KnownNeighbour {
    fn default() -> KnownNeighbour {
        KnownNeighbour {
            mac: None,
            state: NeighbourState::Unknown,
            hops: Vec::new(),
        }
    }
}

impl Hops {
    /// The interfaces as they are now.
    pub(super) fn set_exits(&mut self, exits: HashMap<u32, Exit>) {
        self.exits = exits;
    }

    /// Which destinations are routed alike, now. Returns whether that has changed.
    pub(super) fn set_cells(&mut self, cells: &Arc<Cells>) -> bool {
        let changed = self.cells != *cells;
        self.cells = Arc::clone(cells);
        changed
    }

    /// Whether the route of a path's destination is that of all its cell's. It may have got another cell.
    pub(super) fn has_route_of_its_cell(&self, path: &Path) -> bool {
        !path.cell.is_shared() || self.cells.of(path.to) == path.cell
    }

    /// The path of every hop, to be routed anew.
    pub(super) fn paths(&self) -> Vec<(u32, Path)> {
        let hops = self.hops.iter();
        hops.map(|(index, hop)| (*index, hop.path)).collect()
    }

    /// How many hops are usable.
    pub(super) fn usable(&self) -> usize {
        self.hops
            .values()
            .filter(|hop| hop.written.is_some())
            .count()
    }

    /// A path has this route now, or none. Returns the neighbour to ask about, if it is not known.
    pub(super) fn route(
        &mut self,
        index: u32,
        path: Path,
        route: Option<Route>,
        now_ns: u64,
        entries: &mut impl Entries,
    ) -> Option<HopKey> {
        let peer_path = route.and_then(|route| peer_path(path, &route));
        let hop = self.hops.entry(index).or_insert(HopEntry {
            path,
            peer_path: None,
            written: None,
        });
        let before = std::mem::replace(&mut hop.peer_path, peer_path);
        hop.path = path;
        if before != peer_path {
            if let Some(before) = before {
                self.leave(before.place, index);
            }
            if let Some(peer_path) = peer_path.filter(|peer_path| !peer_path.local) {
                self.neighbours
                    .entry(peer_path.place)
                    .or_default()
                    .hops
                    .push(index);
            }
        }
        self.write(index, now_ns, entries);
        let place = peer_path.filter(|peer_path| !peer_path.local)?.place;
        let known = self.neighbours.get(&place)?;
        // A stale one is to be confirmed, too: the kernel does so only when it sends there itself.
        (known.mac.is_none() || known.state == NeighbourState::Stale).then_some(place)
    }

    /// Stores the state of a neighbour. Returns whether it is used and should be confirmed.
    pub(super) fn neighbour(
        &mut self,
        seen: &Neighbour,
        now_ns: u64,
        entries: &mut impl Entries,
    ) -> bool {
        let place = (seen.index, seen.address);
        if seen.mac.is_none() && !self.neighbours.contains_key(&place) {
            return false;
        }
        let known = self.neighbours.entry(place).or_default();
        let changed = known.mac != seen.mac;
        (known.mac, known.state) = (seen.mac, seen.state);
        if known.hops.is_empty() {
            // The kernel's own table has a limit, and so has this one: remove what the kernel has removed.
            if seen.mac.is_none() {
                self.neighbours.remove(&place);
            }
            return false;
        }
        if changed {
            for index in known.hops.clone() {
                self.write(index, now_ns, entries);
            }
        }
        seen.state == NeighbourState::Stale
    }

    /// All neighbours as they are now: those not listed are unknown. Returns those in use that should be confirmed.
    pub(super) fn all_neighbours(
        &mut self,
        all: &[Neighbour],
        now_ns: u64,
        entries: &mut impl Entries,
    ) -> Vec<HopKey> {
        let listed: std::collections::HashSet<HopKey> =
            all.iter().map(|one| (one.index, one.address)).collect();
        let gone: Vec<HopKey> = self
            .neighbours
            .keys()
            .filter(|place| !listed.contains(place))
            .copied()
            .collect();
        for (index, address) in gone {
            let unknown = Neighbour {
                index,
                address,
                mac: None,
                state: NeighbourState::Unknown,
            };
            self.neighbour(&unknown, now_ns, entries);
        }
        all.iter()
            .filter(|one| self.neighbour(one, now_ns, entries))
            .map(|one| (one.index, one.address))
            .collect()
    }

    /// Renews entries that would soon expire. Returns the neighbours in use that are stale.
    pub(super) fn renew(&mut self, now_ns: u64, entries: &mut impl Entries) -> Vec<HopKey> {
        self.write_all(now_ns, entries);
        let used = self.neighbours.iter();
        used.filter(|(_, known)| !known.hops.is_empty() && known.state == NeighbourState::Stale)
            .map(|(place, _)| *place)
            .collect()
    }

    /// No entry uses this hop any more.
    pub(super) fn forget(&mut self, index: u32, entries: &mut impl Entries) {
        entries.clear(index);
        if let Some(hop) = self.hops.remove(&index)
            && let Some(peer_path) = hop.peer_path
        {
            self.leave(peer_path.place, index);
        }
    }

    /// Updates every entry to the current state, and renews entries that would soon expire.
    pub(super) fn write_all(&mut self, now_ns: u64, entries: &mut impl Entries) {
        let all: Vec<u32> = self.hops.keys().copied().collect();
        for index in all {
            self.write(index, now_ns, entries);
        }
    }

    fn leave(&mut self, place: HopKey, index: u32) {
        let Some(known) = self.neighbours.get_mut(&place) else {
            return;
        };
        known.hops.retain(|one| *one != index);
        if known.hops.is_empty() && known.mac.is_none() {
            self.neighbours.remove(&place);
        }
    }

    /// Writes what a hop's entry should be, if it is something else.
    fn write(&mut self, index: u32, now_ns: u64, entries: &mut impl Entries) {
        let Some(hop) = self.hops.get(&index) else {
            return;
        };
        let wanted = hop
            .peer_path
            .and_then(|peer_path| self.entry(&peer_path, now_ns));
        let lasts = |old: NextHop, new: NextHop| {
            let renewed = NextHop {
                good_until_ns: new.good_until_ns,
                ..old
            };
            renewed == new && old.good_until_ns >= now_ns.saturating_add(RENEWAL_NS)
        };
        match (hop.written, wanted) {
            (None, None) => return,
            (Some(old), Some(new)) if lasts(old, new) => return,
            (_, Some(new)) => entries.set(index, &new),
            (Some(_), None) => entries.clear(index),
        }
        if let Some(hop) = self.hops.get_mut(&index) {
            hop.written = wanted;
        }
    }

    fn entry(&self, peer_path: &PeerPath, now_ns: u64) -> Option<NextHop> {
        let exit = self.exits.get(&peer_path.place.0)?;
        let mtu = peer_path.mtu.unwrap_or(exit.mtu).min(exit.mtu);
        let entry = NextHop {
            good_until_ns: now_ns.saturating_add(ENTRY_LIFETIME_NS),
            interface: peer_path.place.0,
            mtu: u16::try_from(mtu).unwrap_or(u16::MAX),
            usable_xdp: exit.xdp && !peer_path.local,
            usable_xdp_tx: exit.xdp_tx && !peer_path.local,
            usable_tc: exit.tc,
            destination: [0; 6],
            source: [0; 6],
        };
        if !entry.usable_xdp && !entry.usable_xdp_tx && !entry.usable_tc {
            return None;
        }
        if peer_path.local {
            return exit.loopback.then_some(entry);
        }
        Some(NextHop {
            destination: self.neighbours.get(&peer_path.place)?.mac?,
            source: exit.mac,
            ..entry
        })
    }
}

/// What a route means for a path; `None` if it is nothing for a program.
fn peer_path(path: Path, route: &Route) -> Option<PeerPath> {
    if route.wrapped {
        return None;
    }
    let local = match route.to {
        RouteTo::Host => false,
        RouteTo::Local => true,
        RouteTo::Other => return None,
    };
    Some(PeerPath {
        place: (route.index, route.gateway.unwrap_or(path.to.to_canonical())),
        mtu: route.mtu,
        local,
    })
}
