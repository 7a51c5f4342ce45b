//! Every spelling of every special network, rules in every order, and the server's own addresses.

use super::*;
use crate::addresses::RelayAddress;
use crate::ports::{Owner, PortRange};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("test addresses are well formed")
}

fn at(text: &str) -> SocketAddr {
    text.parse().expect("test addresses are well formed")
}

#[test]
fn rules_for_one_transport_hold_for_that_one() {
    let network = |text: &str| PeerRule::all_ports(text.parse().expect("a network"));
    let rules = PeerRules {
        allow: vec![
            network("10.0.0.0/8"),
            network("127.0.0.0/8").over(RelayTransport::Udp),
        ],
        deny: vec![network("192.0.2.0/24").over(RelayTransport::Tcp)],
    };
    assert!(rules.depend_on_transport());
    let udp = rules.over(RelayTransport::Udp);
    assert_eq!((udp.allow.len(), udp.deny.len()), (2, 0));
    let tcp = rules.over(RelayTransport::Tcp);
    assert_eq!((tcp.allow.len(), tcp.deny.len()), (1, 1));
}

fn rules(lines: &[&str]) -> PeerRules {
    let mut rules = PeerRules::default();
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let ports = words.get(2).map_or(ALL_PORTS, |text| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            first.parse().expect("a port")..=last.parse().expect("a port")
        });
        let rule = PeerRule {
            network: words[1].parse().expect("a network"),
            ports,
            transport: None,
        };
        match words[0] {
            "allow" => rules.allow.push(rule),
            "deny" => rules.deny.push(rule),
            other => panic!("{other} is no rule"),
        }
    }
    rules
}

fn relays() -> Arc<RelayAddresses> {
    let list = [
        RelayAddress {
            local: ip("10.0.0.5"),
            advertised: ip("198.51.100.5"),
        },
        RelayAddress::direct(ip("2001:db8:5::5")),
        RelayAddress::direct(ip("127.0.0.1")),
    ];
    Arc::new(RelayAddresses::new(&list, PortRange::DYNAMIC, 1))
}

fn policy_with(lines: &[&str], own: OwnAddresses) -> Policy {
    Policy::new(&rules(lines), own, relays())
}

fn policy(lines: &[&str]) -> Policy {
    policy_with(lines, OwnAddresses::default())
}

fn assert_both(policy: &Policy, address: &str, expected: PeerClass) {
    let address = ip(address);
    assert_eq!(
        policy.class_of_address(address),
        expected,
        "classify {address}"
    );
    for port in [1, 53, 3_478, 49_152, 65_535] {
        let peer = SocketAddr::new(address, port);
        assert_eq!(policy.class_of_peer(peer), expected, "permits {peer}");
    }
}

/// First, some middle and last address of each IPv4 network that is refused.
const REFUSED_V4: &[&str] = &[
    "0.0.0.0",
    "0.1.2.3",
    "0.255.255.255",
    "10.0.0.0",
    "10.1.2.3",
    "10.255.255.255",
    "100.64.0.0",
    "100.100.1.2",
    "100.127.255.255",
    "127.0.0.0",
    "127.0.0.2",
    "127.255.255.255",
    "169.254.0.0",
    "169.254.169.254",
    "169.254.255.255",
    "172.16.0.0",
    "172.20.1.2",
    "172.31.255.255",
    "192.0.0.0",
    "192.0.0.170",
    "192.0.0.255",
    "192.88.99.1",
    "192.168.0.0",
    "192.168.1.1",
    "192.168.255.255",
    "198.18.0.0",
    "198.19.255.255",
    "224.0.0.0",
    "224.0.0.251",
    "239.255.255.255",
    "240.0.0.0",
    "250.1.2.3",
    "255.255.255.254",
    "255.255.255.255",
];

/// The neighbours of those networks, documentation networks, and a few well-known servers.
const ADMITTED_V4: &[&str] = &[
    "1.0.0.0",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "191.255.255.255",
    "192.0.1.0",
    "192.0.2.2",
    "192.88.98.255",
    "192.88.100.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "198.51.100.7",
    "203.0.113.7",
    "223.255.255.255",
];

/// Every way to write an IPv4 address as IPv6, as text.
fn spellings(v4: &str) -> Vec<String> {
    let IpAddr::V4(address) = ip(v4) else {
        panic!("{v4} is not IPv4")
    };
    let [a, b, c, d] = address.octets();
    let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let mut all = vec![
        format!("::ffff:{v4}"),
        format!("::ffff:0:{v4}"),
        format!("64:ff9b::{v4}"),
        format!("64:ff9b:1::{v4}"),
        format!("2002:{high:x}:{low:x}::1"),
        format!("2002:{high:x}:{low:x}:1:2:3:4:5"),
        format!(
            "2001:0:{high:x}:{low:x}:8000:63bf:{:x}:{:x}",
            !0x0808_u16, !0x0808_u16
        ),
        format!("2001:0:808:808:0:63bf:{:x}:{:x}", !high, !low),
        format!("2001:db8:1:2:0:5efe:{v4}"),
        format!("2001:db8:1:2:200:5efe:{v4}"),
    ];
    // `::` and `::1` are IPv6 addresses of their own; 0.0.0.0/8 has no other compatible spelling worth telling apart.
    if a != 0 {
        all.push(format!("::{v4}"));
    }
    all
}

#[test]
fn special_ipv4_networks_are_refused_in_every_spelling() {
    let policy = policy(&[]);
    for v4 in REFUSED_V4 {
        assert_both(&policy, v4, PeerClass::Denied);
        for spelling in spellings(v4) {
            assert_both(&policy, &spelling, PeerClass::Denied);
        }
    }
}

#[test]
fn a_short_local_use_nat64_prefix_is_judged_at_every_position() {
    let policy = policy(&[]);
    for (refused, why) in [
        ("64:ff9b:1:a00:0:100::", "10.0.0.1 behind a /48"),
        ("64:ff9b:1:a:0:1::", "10.0.0.1 behind a /56"),
        ("64:ff9b:1:0:a:0:100::", "10.0.0.1 behind a /64"),
        (
            "64:ff9b:1:808:8:800:a00:1",
            "10.0.0.1 behind a /96 that looks like 8.8.8.8 behind a /48",
        ),
        ("64:ff9b:1::", "0.0.0.0"),
    ] {
        assert_eq!(
            policy.class_of_address(ip(refused)),
            PeerClass::Denied,
            "{why}"
        );
    }
    assert_both(&policy, "64:ff9b:1:808:8:800::", PeerClass::Peer);
}

#[test]
fn public_ipv4_addresses_are_admitted_in_every_spelling() {
    let policy = policy(&[]);
    for v4 in ADMITTED_V4 {
        assert_both(&policy, v4, PeerClass::Peer);
        for spelling in spellings(v4) {
            assert_both(&policy, &spelling, PeerClass::Peer);
        }
    }
}

#[test]
fn every_ipv4_network_boundary_agrees_with_the_list() {
    let policy = policy(&[]);
    let own = ["10.0.0.5", "198.51.100.5", "127.0.0.1"].map(ip);
    for high in 0..=u16::MAX {
        for low in [0_u16, 0x00ff, 0x0100, 0x6300, 0xffff] {
            let address = IpAddr::from((u32::from(high) << 16 | u32::from(low)).to_be_bytes());
            if own.contains(&address) {
                continue;
            }
            let refused = special_network(address).is_some();
            assert_eq!(
                policy.class_of_address(address) == PeerClass::Denied,
                refused,
                "{address}"
            );
        }
    }
}

#[test]
fn special_ipv6_networks_are_refused_and_their_neighbours_are_not() {
    let policy = policy(&[]);
    for refused in [
        "::",
        "::1",
        "fc00::",
        "fd00::2",
        "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        "fe80::1",
        "febf:ffff::1",
        "fec0::1",
        "feff:ffff::1",
        "ff00::",
        "ff02::1",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        "100::1",
        "2001:2::1",
        "2001:10::1",
        "2001:20::1",
        "5f00::1",
    ] {
        assert_both(&policy, refused, PeerClass::Denied);
    }
    for admitted in [
        "2606:4700:4700::1111",
        "2001:4860:4860::8888",
        "2001:db8::1",
        "3fff::1",
        "2003::1",
        "fbff::1",
        "2001:1::1",
    ] {
        assert_both(&policy, admitted, PeerClass::Peer);
    }
}

#[test]
fn port_zero_is_never_admitted() {
    let policy = policy(&["allow 8.8.8.8/32", "allow 8.8.4.4/32 0"]);
    assert_eq!(policy.class_of_peer(at("8.8.8.8:0")), PeerClass::Denied);
    assert_eq!(policy.class_of_peer(at("8.8.4.4:0")), PeerClass::Denied);
    assert_eq!(
        policy.class_of_peer(at("[2606:4700::1]:0")),
        PeerClass::Denied
    );
}

#[test]
fn an_operator_re_admits_a_network_or_a_part_of_it() {
    let policy = policy(&[
        "allow 192.168.0.0/16",
        "allow 10.1.0.0/16",
        "allow fd00::/8",
        "allow 169.254.169.254/32 80",
    ]);
    assert_both(&policy, "192.168.7.7", PeerClass::Peer);
    assert_both(&policy, "::ffff:192.168.7.7", PeerClass::Peer);
    assert_both(&policy, "10.1.9.9", PeerClass::Peer);
    assert_both(&policy, "10.2.0.1", PeerClass::Denied);
    assert_both(&policy, "fd12::1", PeerClass::Peer);
    assert_both(&policy, "fc00::1", PeerClass::Denied);
    assert_eq!(
        policy.class_of_address(ip("169.254.169.254")),
        PeerClass::Peer
    );
    assert_eq!(
        policy.class_of_peer(at("169.254.169.254:80")),
        PeerClass::Peer
    );
    assert_eq!(
        policy.class_of_peer(at("169.254.169.254:81")),
        PeerClass::Denied
    );
}

#[test]
fn allowing_everything_does_not_open_special_networks() {
    let policy = policy(&["allow 0.0.0.0/0", "allow ::/0"]);
    for refused in [
        "10.0.0.1",
        "127.0.0.2",
        "169.254.169.254",
        "::1",
        "fd00::1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:2",
    ] {
        assert_both(&policy, refused, PeerClass::Denied);
    }
}

#[test]
fn denying_everything_makes_an_admit_list() {
    let policy = policy(&[
        "deny 0.0.0.0/0",
        "deny ::/0",
        "allow 203.0.113.0/24",
        "deny 203.0.113.128/25",
        "allow 203.0.113.200/32 5000-5009",
    ]);
    assert_both(&policy, "8.8.8.8", PeerClass::Denied);
    assert_both(&policy, "2606:4700::1", PeerClass::Denied);
    assert_both(&policy, "203.0.113.1", PeerClass::Peer);
    assert_both(&policy, "203.0.113.129", PeerClass::Denied);
    assert_eq!(
        policy.class_of_address(ip("203.0.113.200")),
        PeerClass::Peer
    );
    assert_eq!(
        policy.class_of_peer(at("203.0.113.200:5009")),
        PeerClass::Peer
    );
    assert_eq!(
        policy.class_of_peer(at("203.0.113.200:5010")),
        PeerClass::Denied
    );
    // As IPv6 it is refused by ::/0 before its IPv4 part is asked.
    assert_both(&policy, "64:ff9b::203.0.113.1", PeerClass::Denied);
}

#[test]
fn deny_beats_allow_for_the_same_network_whatever_the_order() {
    let policy = policy(&[
        "deny 203.0.113.0/24 22",
        "allow 203.0.113.0/24",
        "deny 10.0.0.0/8",
        "allow 10.0.0.0/8",
    ]);
    assert_eq!(
        policy.class_of_peer(at("203.0.113.1:22")),
        PeerClass::Denied
    );
    assert_eq!(policy.class_of_peer(at("203.0.113.1:23")), PeerClass::Peer);
    assert_both(&policy, "10.0.0.1", PeerClass::Denied);
}

#[test]
fn an_address_denied_at_every_port_gets_no_permission() {
    let policy = policy(&[
        "deny 203.0.113.9/32 1-30000",
        "deny 203.0.113.9/32 30001-65535",
        "deny 203.0.113.8/32 1-65534",
    ]);
    assert_eq!(
        policy.class_of_address(ip("203.0.113.9")),
        PeerClass::Denied
    );
    assert_eq!(policy.class_of_address(ip("203.0.113.8")), PeerClass::Peer);
    assert_eq!(
        policy.class_of_peer(at("203.0.113.8:65535")),
        PeerClass::Peer
    );
}

#[test]
fn deny_rules_reach_ipv4_inside_ipv6() {
    let policy = policy(&["deny 8.8.8.0/24", "deny 9.9.9.9/32 53"]);
    for spelling in spellings("8.8.8.8") {
        assert_both(&policy, &spelling, PeerClass::Denied);
    }
    assert_eq!(
        policy.class_of_peer(at("[64:ff9b::909:909]:53")),
        PeerClass::Denied
    );
    assert_eq!(
        policy.class_of_peer(at("[64:ff9b::909:909]:54")),
        PeerClass::Peer
    );
    assert_eq!(
        policy.class_of_address(ip("64:ff9b::909:909")),
        PeerClass::Peer
    );
}

#[test]
fn own_relay_addresses_are_reached_at_live_ports_only() {
    let policy = policy(&[]);
    for address in ["10.0.0.5", "198.51.100.5", "2001:db8:5::5"] {
        let address = ip(address);
        assert_eq!(policy.class_of_address(address), PeerClass::OwnRelay);
        let peer = SocketAddr::new(address, 50_000);
        assert_eq!(
            policy.class_of_peer(peer),
            PeerClass::Denied,
            "{peer} is not live"
        );
        let relay = policy.relays.find(address).expect("a relay address");
        policy
            .relays
            .owners(relay)
            .set(50_000, Owner { worker: 0, slot: 3 });
        assert_eq!(
            policy.class_of_peer(peer),
            PeerClass::OwnRelay,
            "{peer} is live"
        );
        assert_eq!(
            policy.class_of_peer(SocketAddr::new(address, 50_001)),
            PeerClass::Denied
        );
        assert_eq!(
            policy.class_of_peer(SocketAddr::new(address, 22)),
            PeerClass::Denied
        );
        policy.relays.owners(relay).clear(50_000);
        assert_eq!(
            policy.class_of_peer(peer),
            PeerClass::Denied,
            "{peer} is not live any more"
        );
    }
}

#[test]
fn no_second_spelling_of_an_own_address_is_admitted() {
    let host = OwnAddresses {
        listeners: vec![at("203.0.113.80:3478")],
        host: vec![ip("203.0.113.90")],
    };
    let policy = policy_with(&["allow 10.0.0.0/8"], host);
    for own in ["10.0.0.5", "198.51.100.5", "203.0.113.80", "203.0.113.90"] {
        for spelling in spellings(own) {
            assert_both(&policy, &spelling, PeerClass::Denied);
        }
    }
}

#[test]
fn a_wide_allow_does_not_open_own_addresses_but_their_own_rule_does() {
    let host = || OwnAddresses {
        listeners: Vec::new(),
        host: vec![ip("10.0.0.6"), ip("203.0.113.90")],
    };
    let wide = policy_with(&["allow 10.0.0.0/8"], host());
    assert_both(&wide, "10.0.0.7", PeerClass::Peer);
    assert_both(&wide, "10.0.0.6", PeerClass::Denied);
    assert_both(&wide, "203.0.113.90", PeerClass::Denied);
    assert_eq!(wide.class_of_peer(at("10.0.0.5:9000")), PeerClass::Denied);
    let exact = policy_with(&["allow 10.0.0.6/32", "allow 10.0.0.5/32 9000"], host());
    assert_both(&exact, "10.0.0.6", PeerClass::Peer);
    assert_eq!(exact.class_of_peer(at("10.0.0.5:9000")), PeerClass::Peer);
    assert_eq!(exact.class_of_peer(at("10.0.0.5:9001")), PeerClass::Denied);
}

#[test]
fn a_loopback_relay_lets_other_loopback_ports_through_once_loopback_is_re_admitted() {
    let policy = policy(&["allow 127.0.0.0/8"]);
    assert_eq!(
        policy.class_of_address(ip("127.0.0.1")),
        PeerClass::OwnRelay
    );
    assert_eq!(policy.class_of_peer(at("127.0.0.1:50000")), PeerClass::Peer);
    let relay = policy
        .relays
        .find(ip("127.0.0.1"))
        .expect("a relay address");
    policy
        .relays
        .owners(relay)
        .set(50_000, Owner { worker: 0, slot: 1 });
    assert_eq!(
        policy.class_of_peer(at("127.0.0.1:50000")),
        PeerClass::OwnRelay
    );
}

#[test]
fn an_explicit_deny_closes_even_own_relays() {
    let policy = policy(&["deny 198.51.100.5/32", "deny 2001:db8:5::5/128 50000"]);
    for address in ["198.51.100.5", "2001:db8:5::5"] {
        let relay = policy.relays.find(ip(address)).expect("a relay address");
        policy
            .relays
            .owners(relay)
            .set(50_000, Owner { worker: 0, slot: 1 });
        assert_eq!(
            policy.class_of_peer(SocketAddr::new(ip(address), 50_000)),
            PeerClass::Denied
        );
    }
    assert_eq!(
        policy.class_of_address(ip("198.51.100.5")),
        PeerClass::Denied
    );
    assert_eq!(
        policy.class_of_address(ip("2001:db8:5::5")),
        PeerClass::OwnRelay
    );
}

#[test]
fn own_listeners_are_refused_whatever_the_rules_say() {
    let own = OwnAddresses {
        listeners: vec![at("203.0.113.80:3478"), at("0.0.0.0:3479"), at("[::]:3480")],
        host: vec![ip("203.0.113.90"), ip("2001:db8:9::9")],
    };
    let lines = [
        "allow 203.0.113.80/32",
        "allow 203.0.113.90/32",
        "allow 2001:db8:9::9/128",
        "allow 127.0.0.0/8",
        "allow ::1/128",
    ];
    let policy = policy_with(&lines, own);
    for refused in [
        "203.0.113.80:3478",
        "203.0.113.90:3479",
        "127.0.0.1:3479",
        "127.8.8.8:3479",
        "[2001:db8:9::9]:3480",
        "[::1]:3480",
    ] {
        assert_eq!(
            policy.class_of_peer(at(refused)),
            PeerClass::Denied,
            "{refused}"
        );
    }
    for admitted in [
        "203.0.113.80:3477",
        "203.0.113.90:3478",
        "127.0.0.1:3478",
        "[::1]:3479",
        "8.8.8.8:3478",
        "8.8.8.8:3479",
    ] {
        assert_eq!(
            policy.class_of_peer(at(admitted)),
            PeerClass::Peer,
            "{admitted}"
        );
    }
}

#[test]
fn the_development_list_is_loopback_and_private_and_no_more() {
    let allow = loopback_and_private()
        .into_iter()
        .map(PeerRule::all_ports)
        .collect();
    let policy = Policy::new(
        &PeerRules {
            allow,
            deny: Vec::new(),
        },
        OwnAddresses::default(),
        relays(),
    );
    for admitted in [
        "127.0.0.2",
        "10.1.1.1",
        "172.16.1.1",
        "192.168.1.1",
        "100.64.1.1",
        "::1",
        "fd00::2",
    ] {
        assert_eq!(
            policy.class_of_peer(SocketAddr::new(ip(admitted), 5_000)),
            PeerClass::Peer,
            "{admitted}"
        );
    }
    for refused in [
        "169.254.169.254",
        "0.0.0.0",
        "::",
        "fe80::1",
        "224.0.0.1",
        "255.255.255.255",
        "192.0.0.1",
    ] {
        assert_both(&policy, refused, PeerClass::Denied);
    }
}
