//! Next hops as routes and neighbours come and go, with a table made of memory.

use super::cells::Cell;
use super::hops::{ENTRY_LIFETIME_NS, Entries, Exit, Hops};
use super::next_hops::Path;
use bpf::relay::NextHop;
use io::netlink::{Neighbour, NeighbourState, Route, RouteTo};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

#[derive(Default)]
struct Table(BTreeMap<u32, NextHop>, usize);

impl Entries for Table {
    fn set(&mut self, index: u32, hop: &NextHop) {
        self.0.insert(index, *hop);
        self.1 += 1;
    }

    fn clear(&mut self, index: u32) {
        self.0.remove(&index);
        self.1 += 1;
    }
}

const HERE: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THERE: [u8; 6] = [2, 0, 0, 0, 0, 9];

fn ip(last: u8) -> IpAddr {
    [192, 0, 2, last].into()
}

fn path(to: u8) -> Path {
    Path {
        local: ip(1),
        to: ip(to),
        cell: Cell::of_one(ip(to)),
    }
}

fn by(gateway: Option<u8>) -> Option<Route> {
    Some(Route {
        to: RouteTo::Host,
        index: 2,
        gateway: gateway.map(ip),
        mtu: None,
        wrapped: false,
    })
}

fn neighbour(last: u8, state: NeighbourState) -> Neighbour {
    Neighbour {
        index: 2,
        address: ip(last),
        mac: (state != NeighbourState::Unknown).then_some(THERE),
        state,
    }
}

/// Hops with an interface (2) and loopback (1).
fn hops() -> Hops {
    let exit = |loopback: bool| Exit {
        mac: if loopback { [0; 6] } else { HERE },
        mtu: if loopback { 65_536 } else { 1500 },
        loopback,
        xdp: !loopback,
        xdp_tx: !loopback,
        tc: true,
    };
    let mut hops = Hops::default();
    hops.set_exits(HashMap::from([(1, exit(true)), (2, exit(false))]));
    hops
}

#[test]
fn a_hop_is_usable_when_both_route_and_neighbour_are_known() {
    let (mut hops, mut table) = (hops(), Table::default());
    let ask = hops.route(5, path(7), by(None), 100, &mut table);
    assert_eq!(ask, Some((2, ip(7))), "nobody knows it yet");
    assert!(table.0.is_empty());
    hops.neighbour(&neighbour(7, NeighbourState::Sure), 200, &mut table);
    let entry = table.0[&5];
    assert_eq!((entry.source, entry.destination), (HERE, THERE));
    assert_eq!((entry.interface, entry.mtu), (2, 1500));
    assert_eq!(entry.good_until_ns, 200 + ENTRY_LIFETIME_NS);
    assert!(entry.usable_xdp && entry.usable_tc);
    assert_eq!(hops.usable(), 1);
}

#[test]
fn all_paths_behind_a_gateway_fail_and_come_back_with_it() {
    let (mut hops, mut table) = (hops(), Table::default());
    for to in 10..20 {
        hops.route(to.into(), path(to), by(Some(254)), 0, &mut table);
    }
    hops.neighbour(&neighbour(254, NeighbourState::Sure), 0, &mut table);
    assert_eq!(table.0.len(), 10);
    hops.neighbour(&neighbour(254, NeighbourState::Unknown), 0, &mut table);
    assert!(table.0.is_empty(), "user space takes over");
    hops.neighbour(&neighbour(254, NeighbourState::Probing), 0, &mut table);
    assert_eq!(table.0.len(), 10);
    let all = hops.all_neighbours(&[], 0, &mut table);
    assert!(
        all.is_empty() && table.0.is_empty(),
        "not listed is unknown"
    );
}

#[test]
fn a_stale_neighbour_in_use_is_to_be_confirmed_and_stays_usable_meanwhile() {
    let (mut hops, mut table) = (hops(), Table::default());
    let stale = neighbour(7, NeighbourState::Stale);
    assert!(!hops.neighbour(&stale, 0, &mut table), "nobody uses it");
    assert_eq!(
        hops.route(5, path(7), by(None), 0, &mut table),
        Some((2, ip(7)))
    );
    assert_eq!(table.0.len(), 1);
    assert_eq!(hops.renew(0, &mut table), [(2, ip(7))]);
    assert!(hops.neighbour(&stale, 0, &mut table));
    hops.neighbour(&neighbour(7, NeighbourState::Sure), 0, &mut table);
    assert_eq!(hops.renew(0, &mut table), []);
}

#[test]
fn entries_are_renewed_before_they_end_and_never_written_in_vain() {
    let (mut hops, mut table) = (hops(), Table::default());
    hops.neighbour(&neighbour(7, NeighbourState::Sure), 0, &mut table);
    hops.route(5, path(7), by(None), 0, &mut table);
    assert_eq!(table.1, 1);
    hops.route(5, path(7), by(None), 1, &mut table);
    hops.write_all(2, &mut table);
    hops.renew(ENTRY_LIFETIME_NS / 4, &mut table);
    assert_eq!(table.1, 1, "nothing has changed");
    hops.renew(ENTRY_LIFETIME_NS / 2, &mut table);
    assert_eq!(
        table.0[&5].good_until_ns,
        ENTRY_LIFETIME_NS / 2 + ENTRY_LIFETIME_NS
    );
}

#[test]
fn a_changed_route_moves_the_hop_and_a_lost_one_ends_it() {
    let (mut hops, mut table) = (hops(), Table::default());
    hops.neighbour(&neighbour(7, NeighbourState::Sure), 0, &mut table);
    hops.route(5, path(7), by(None), 0, &mut table);
    hops.route(5, path(7), by(Some(254)), 0, &mut table);
    assert!(table.0.is_empty(), "the gateway is not known");
    hops.neighbour(&neighbour(7, NeighbourState::Unknown), 0, &mut table);
    hops.neighbour(&neighbour(254, NeighbourState::Sure), 0, &mut table);
    assert_eq!(table.0.len(), 1);
    hops.route(5, path(7), None, 0, &mut table);
    assert!(table.0.is_empty());
    hops.route(5, path(7), by(Some(254)), 0, &mut table);
    hops.forget(5, &mut table);
    assert!(table.0.is_empty() && hops.paths().is_empty());
    hops.neighbour(&neighbour(254, NeighbourState::Probing), 0, &mut table);
    assert!(table.0.is_empty());
}

#[test]
fn missing_special_and_tunnel_routes_stay_in_user_space() {
    let (mut hops, mut table) = (hops(), Table::default());
    hops.neighbour(&neighbour(7, NeighbourState::Sure), 0, &mut table);
    let changed = |change: fn(&mut Route)| {
        by(None).map(|mut route| {
            change(&mut route);
            route
        })
    };
    for route in [
        None,
        changed(|route| route.to = RouteTo::Other),
        changed(|route| route.wrapped = true),
        changed(|route| route.index = 3),
    ] {
        hops.route(5, path(7), route, 0, &mut table);
        assert!(table.0.is_empty(), "{route:?}");
    }
}

#[test]
fn this_host_is_reached_over_loopback_and_only_by_the_classifier() {
    let (mut hops, mut table) = (hops(), Table::default());
    let route = Route {
        to: RouteTo::Local,
        index: 1,
        gateway: None,
        mtu: None,
        wrapped: false,
    };
    assert_eq!(hops.route(5, path(1), Some(route), 0, &mut table), None);
    let entry = table.0[&5];
    assert!(entry.usable_tc && !entry.usable_xdp && !entry.usable_xdp_tx);
    assert_eq!((entry.source, entry.destination), ([0; 6], [0; 6]));
    assert_eq!(entry.mtu, u16::MAX);
}

#[test]
fn an_interface_that_goes_takes_its_hops_along() {
    let (mut hops, mut table) = (hops(), Table::default());
    hops.neighbour(&neighbour(7, NeighbourState::Sure), 0, &mut table);
    hops.route(5, path(7), by(None), 0, &mut table);
    hops.set_exits(HashMap::new());
    hops.write_all(0, &mut table);
    assert!(table.0.is_empty());
}
