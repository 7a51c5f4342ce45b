//! What netlink tells of interfaces, routes, neighbours and drivers, against namespaces made for it. Needs root.

#![allow(clippy::unwrap_used)] // a test may fail this way

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use hairpin_io::netlink::{
    Drivers, NeighbourState, Netlink, NetworkChange, NetworkChanges, RouteTo, VethEnd,
    interface_index,
};
use hairpin_io::{NetNs, ethtool};

fn rooted<T>(result: io::Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("this test needs root: {error}"))
}

/// Runs in a thread of its own, because it changes namespaces.
fn in_thread(test: impl FnOnce() + Send + 'static) {
    std::thread::spawn(test).join().unwrap();
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

const HERE: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THERE: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// `veth-l` (192.0.2.1, 2001:db8::1) in the namespace that is returned and entered; its other end has .2, in the other.
fn pair() -> (NetNs, NetNs) {
    let here = rooted(NetNs::unshare());
    let mut netlink = Netlink::open().unwrap();
    let there = rooted(NetNs::unshare());
    let end = |name, mac, namespace| VethEnd {
        name,
        mac,
        namespace,
    };
    netlink
        .create_veth(&end("veth-l", HERE, &here), &end("veth-r", THERE, &there))
        .unwrap();
    for (namespace, name, last) in [(&there, "veth-r", 2), (&here, "veth-l", 1)] {
        namespace.enter().unwrap();
        std::fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").unwrap();
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_dad"), "0").unwrap();
        let mut netlink = Netlink::open().unwrap();
        let index = interface_index(name).unwrap();
        netlink.set_up(interface_index("lo").unwrap()).unwrap();
        netlink.set_up(index).unwrap();
        let v4 = IpAddr::from([192, 0, 2, last]);
        netlink.add_address(index, v4, 24).unwrap();
        let v6 = ip(&format!("2001:db8::{last}"));
        netlink.add_address(index, v6, 64).unwrap();
        // The kernel makes an IPv6 address its own a moment later.
        until("the address is in use", || {
            let route = netlink.route(v6, v6).ok();
            route.filter(|route| route.to == RouteTo::Local)
        });
    }
    (here, there)
}

/// Tries for a few seconds.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("in vain: {what}");
}

#[test]
fn links_are_described_as_they_are() {
    in_thread(|| {
        let _spaces = pair();
        let mut netlink = Netlink::open().unwrap();
        let veth = interface_index("veth-l").unwrap();
        netlink.create_link("bridge0", "bridge").unwrap();
        // Not every kernel has VLANs.
        let vlan = netlink.create_vlan("veth-l.5", veth, 5).is_ok();
        let interfaces = netlink.interfaces().unwrap();
        let find = |name: &str| {
            interfaces
                .iter()
                .find(|interface| interface.name == name)
                .unwrap()
        };
        let lo = find("lo");
        assert!(lo.loopback && !lo.ethernet && lo.kind.is_none() && lo.up);
        let left = find("veth-l");
        assert_eq!(left.kind.as_deref(), Some("veth"));
        assert_eq!((left.mac, left.mtu, left.index), (Some(HERE), 1500, veth));
        assert!(left.ethernet && left.up && left.xdp.is_none() && !left.loopback);
        if vlan {
            let vlan = find("veth-l.5");
            let kind = vlan.kind.as_deref();
            assert_eq!((kind, vlan.below), (Some("vlan"), Some(veth)));
        }
        assert_eq!(find("bridge0").kind.as_deref(), Some("bridge"));
        netlink.delete_link(veth).unwrap();
        assert!(
            netlink
                .interfaces()
                .unwrap()
                .iter()
                .all(|interface| interface.index != veth)
        );
    });
}

#[test]
fn a_route_is_on_link_by_a_gateway_or_local() {
    in_thread(|| {
        let _spaces = pair();
        let mut netlink = Netlink::open().unwrap();
        let veth = interface_index("veth-l").unwrap();
        let lo = interface_index("lo").unwrap();
        for (near, far, gateway, own) in [
            ("192.0.2.9", "198.51.100.1", "192.0.2.2", "192.0.2.1"),
            ("2001:db8::9", "2001:db8:1::1", "2001:db8::2", "2001:db8::1"),
        ] {
            let (near, far, gateway, own) = (ip(near), ip(far), ip(gateway), ip(own));
            let route = netlink.route(own, near).unwrap();
            assert_eq!(
                (route.to, route.index, route.gateway),
                (RouteTo::Host, veth, None)
            );
            assert!(!route.wrapped);
            assert!(
                netlink
                    .route(own, far)
                    .map_or(true, |route| route.to != RouteTo::Host),
                "there is no default route"
            );
            netlink.add_default_route(gateway).unwrap();
            let route = netlink.route(own, far).unwrap();
            assert_eq!((route.index, route.gateway), (veth, Some(gateway)));
            let route = netlink.route(own, own).unwrap();
            assert_eq!((route.to, route.index), (RouteTo::Local, lo));
        }
        let foreign = netlink.route(ip("203.0.113.1"), ip("192.0.2.9"));
        assert!(foreign.is_err(), "not an address of this host: {foreign:?}");
        let many = netlink.route(ip("192.0.2.1"), ip("224.0.0.5")).unwrap();
        assert_eq!(many.to, RouteTo::Other);
    });
}

#[test]
fn a_neighbour_is_found_when_used_and_changes_are_reported() {
    in_thread(|| {
        let _spaces = pair();
        let mut netlink = Netlink::open().unwrap();
        let mut changes = NetworkChanges::open().unwrap();
        let veth = interface_index("veth-l").unwrap();
        for there in [ip("192.0.2.2"), ip("2001:db8::2")] {
            // A fresh interface loses what is sent before the kernel has noticed its carrier.
            let found = until("the neighbour answers", || {
                netlink.use_neighbour(veth, there).unwrap();
                let mut found = None;
                changes
                    .read(|change| {
                        if let NetworkChange::Neighbour(neighbour) = change
                            && neighbour.address == there
                            && neighbour.mac.is_some()
                        {
                            found = Some(neighbour);
                        }
                    })
                    .unwrap();
                found
            });
            assert_eq!((found.mac, found.index), (Some(THERE), veth));
            let listed = netlink.neighbours().unwrap();
            let listed = listed.iter().find(|one| one.address == there).unwrap();
            assert_eq!(listed.mac, Some(THERE));
            netlink.delete_neighbour(veth, there).unwrap();
            let gone = until("its end is told", || {
                let mut gone = None;
                changes
                    .read(|change| {
                        if let NetworkChange::Neighbour(one) = change
                            && one.address == there
                            && one.state == NeighbourState::Unknown
                        {
                            gone = Some(one);
                        }
                    })
                    .unwrap();
                gone
            });
            assert_eq!(gone.mac, None);
        }
        let mut kinds = Vec::new();
        netlink.create_link("bridge0", "bridge").unwrap();
        netlink.add_default_route(ip("192.0.2.2")).unwrap();
        changes.read(|change| kinds.push(change)).unwrap();
        assert!(kinds.contains(&NetworkChange::Interface) && kinds.contains(&NetworkChange::Route));
    });
}

#[test]
fn drivers_report_their_xdp_features() {
    in_thread(|| {
        let _spaces = pair();
        let mut drivers = match Drivers::open() {
            Ok(drivers) => drivers,
            // Before Linux 6.3.
            Err(error) => return assert_eq!(error.raw_os_error(), Some(2)),
        };
        let veth = interface_index("veth-l").unwrap();
        let features = drivers.xdp(veth).unwrap();
        assert!(features.native && features.redirect);
        assert!(!features.target, "its other end does not poll");
        let lo = drivers.xdp(interface_index("lo").unwrap()).unwrap();
        assert!(!lo.native);
        assert!(drivers.xdp(4000).is_err());
    });
}

#[test]
fn whether_tags_are_stripped_is_known() {
    in_thread(|| {
        let (_here, _there) = pair();
        assert!(ethtool::strips_vlan_tags("lo").is_ok_and(|strips| !strips));
        assert!(ethtool::strips_vlan_tags("veth-l").is_ok());
        assert!(ethtool::strips_vlan_tags("nosuch").is_err());
    });
}
