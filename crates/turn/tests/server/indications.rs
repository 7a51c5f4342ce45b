//! Send indications (RFC 8656 §11.2).

use std::net::SocketAddr;

use hairpin_turn::Transport;
use hairpin_turn::server::{ClientVerdict, DropReason};
use stun::{
    AddressFamily, AttributeType, Data, DontFragment, RequestedAddressFamily, XorPeerAddress,
};

use crate::world::{Client, RELAY_IP, World, address, drop_of, path_on};

const REMOTE: &str = "198.51.100.1:4000";
const PEER: &str = "198.51.100.200:700";

#[test]
fn the_payload_is_where_the_verdict_says() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (relay, _) = client.allocate(&mut world);
    client.permit(&mut world, &[PEER]);
    for payload in [&b""[..], b"1", b"12", b"123", b"1234", &[7; 1200]] {
        let indication = client.send_indication(|builder| {
            builder
                .push(&Data(payload))
                .unwrap()
                .push(&XorPeerAddress(address(PEER)))
                .unwrap();
            builder.push_raw(AttributeType::SOFTWARE, b"test").unwrap();
        });
        let verdict = world.client(&client.path, &indication);
        let ClientVerdict::ToPeer {
            covers: 1,
            relay: from,
            peer,
            payload: range,
            dont_fragment: false,
        } = verdict
        else {
            panic!("{verdict:?}")
        };
        assert_eq!((from, peer), (relay, address(PEER)));
        assert_eq!(&indication[range], payload);
    }
    world.finish();
}

#[test]
fn dont_fragment_is_passed_on() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    client.permit(&mut world, &[PEER]);
    let indication = client.send_indication(|builder| {
        builder
            .push(&XorPeerAddress(address(PEER)))
            .unwrap()
            .push(&Data(b"x"))
            .unwrap()
            .push(&DontFragment)
            .unwrap();
    });
    assert!(matches!(
        world.client(&client.path, &indication),
        ClientVerdict::ToPeer {
            dont_fragment: true,
            ..
        }
    ));
    world.reconfigure(|config| config.dont_fragment = false);
    assert_eq!(
        world.dropped(&client.path, &indication),
        DropReason::DontFragmentUnsupported
    );
    world.finish();
}

/// RFC 8656 §13: a datagram that is translated from or to IPv6 does not heed it; §15: unless the client uses TCP.
#[test]
fn dont_fragment_is_ignored_where_ipv6_is_involved() {
    const V6: &str = "[2001:db8::1]:4000";
    const PEER_V6: &str = "[2001:db8::200]:700";
    for (transport, remote, peer, heeded) in [
        (Transport::Udp, REMOTE, PEER, true),
        (Transport::Udp, REMOTE, PEER_V6, false),
        (Transport::Udp, V6, PEER, false),
        (Transport::Dtls, V6, PEER_V6, false),
        (Transport::Tcp, V6, PEER_V6, true),
        (Transport::Tls, REMOTE, PEER_V6, true),
    ] {
        let mut world = World::new();
        let mut client = Client::on(&mut world, "alice", path_on(transport, remote));
        let family = match address(peer) {
            SocketAddr::V4(_) => AddressFamily::V4,
            SocketAddr::V6(_) => AddressFamily::V6,
        };
        let allocate = client.allocate_request(|request| {
            request.push(&RequestedAddressFamily(family)).unwrap();
        });
        assert_eq!(world.ask(&client.path, &allocate).code(), 0);
        world.expect_opened();
        client.permit(&mut world, &[peer]);
        let indication = client.send_indication(|builder| {
            builder.push(&XorPeerAddress(address(peer))).unwrap();
            builder.push(&Data(b"x")).unwrap();
            builder.push(&DontFragment).unwrap();
        });
        let verdict = world.client(&client.path, &indication);
        assert!(
            matches!(verdict, ClientVerdict::ToPeer { dont_fragment, .. } if dont_fragment == heeded),
            "{transport:?} {remote} {peer}: {verdict:?}"
        );
        world.finish();
    }
}

#[test]
fn a_malformed_indication_is_dropped_in_silence() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    client.permit(&mut world, &[PEER]);
    type Build = fn(&mut stun::Builder<'_>) -> Result<(), stun::BuildError>;
    const DATA: Data<'_> = Data(b"x");
    let cases: [(Build, DropReason); 4] = [
        (
            |builder| builder.push(&XorPeerAddress(address(PEER))).map(|_| ()),
            DropReason::MalformedIndication,
        ),
        (
            |builder| builder.push(&DATA).map(|_| ()),
            DropReason::MalformedIndication,
        ),
        (
            |builder| {
                builder
                    .push(&DATA)?
                    .push_raw(AttributeType::XOR_PEER_ADDRESS, &[0, 1])
                    .map(|_| ())
            },
            DropReason::MalformedIndication,
        ),
        (
            |builder| {
                builder.push(&XorPeerAddress(address(PEER)))?.push(&DATA)?;
                builder.push_raw(AttributeType(0x7001), b"").map(|_| ())
            },
            DropReason::UnknownAttribute,
        ),
    ];
    for (build, reason) in cases {
        let indication = client.send_indication(|builder| build(builder).unwrap());
        assert_eq!(world.dropped(&client.path, &indication), reason);
    }
    world.finish();
}

#[test]
fn an_indication_without_permission_is_dropped_without_a_response() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    client.permit(&mut world, &[PEER]);
    for (peer, reason) in [
        ("198.51.100.201:1", DropReason::NoPermission),
        ("[2001:db8::9]:1", DropReason::PeerFamilyMismatch),
        ("198.51.100.200:25", DropReason::PeerNotAllowed),
        ("198.51.100.200:0", DropReason::PeerNotAllowed),
    ] {
        assert_eq!(
            client.send(&mut world, peer, b"x"),
            ClientVerdict::Drop { covers: 1, reason },
            "{peer}"
        );
    }
    let mut stranger = Client::new(&mut world, "alice", "198.51.100.1:4001");
    let verdict = stranger.send(&mut world, PEER, b"x");
    assert_eq!(verdict, drop_of(DropReason::NoAllocation));
    world.finish();
}

#[test]
fn a_fingerprint_is_checked() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    client.permit(&mut world, &[PEER]);
    let mut indication = client.send_indication(|builder| {
        builder
            .push(&XorPeerAddress(address(PEER)))
            .unwrap()
            .push(&Data(b"x"))
            .unwrap()
            .fingerprint()
            .unwrap();
    });
    assert!(matches!(
        world.client(&client.path, &indication),
        ClientVerdict::ToPeer { .. }
    ));
    *indication.last_mut().unwrap() ^= 1;
    assert_eq!(
        world.dropped(&client.path, &indication),
        DropReason::WrongFingerprint
    );
    world.finish();
}

#[test]
fn our_own_relays_are_reached_inside_and_only_while_they_live() {
    let mut world = World::new();
    let mut one = Client::new(&mut world, "alice", REMOTE);
    let mut two = Client::new(&mut world, "bob", "198.51.100.1:4001");
    let (_, from) = one.allocate(&mut world);
    let (_, peer) = two.allocate(&mut world);
    one.permit(&mut world, &[&format!("{RELAY_IP}:1")]);
    let verdict = one.send(&mut world, &peer.to_string(), b"x");
    assert_eq!(verdict, drop_of(DropReason::PeerNotAllowed));
    world.policy.live.lock().unwrap().insert(peer);
    let verdict = one.send(&mut world, &peer.to_string(), b"x");
    assert!(
        matches!(verdict, ClientVerdict::ToRelay { from: it, peer: to, .. } if (it, to) == (from, peer))
    );
    world.finish();
}

#[test]
fn an_allocation_that_has_expired_unnoticed_sends_nothing() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (relay, _) = client.allocate(&mut world);
    client.bind(&mut world, 0x4000, PEER);
    world.oversleep_s(600);
    for verdict in [
        client.send(&mut world, PEER, b"x"),
        client.channel_data(&mut world, 0x4000, b"x"),
    ] {
        assert_eq!(verdict, drop_of(DropReason::AllocationExpired));
    }
    let verdict = world.peer(relay, PEER, b"x");
    assert_eq!(verdict, drop_of(DropReason::AllocationExpired));
    world.pass(0);
    world.expect_closed(1, hairpin_turn::server::CloseReason::Expired);
    world.finish();
}
