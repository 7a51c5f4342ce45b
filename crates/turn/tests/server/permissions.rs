//! CreatePermission requests and what permissions do (RFC 8656 §9, §10.2).

use hairpin_turn::server::{ClientVerdict, DropReason, PeerVerdict};
use stun::{AttributeType, Method, XorPeerAddress};

use crate::world::{Client, RELAY_IP, SECOND, World, address, drop_of};

const REMOTE: &str = "198.51.100.1:4000";
const PEER: &str = "198.51.100.200:700";

#[test]
fn permissions_are_for_all_ports_of_an_address() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (relay, _) = client.allocate(&mut world);
    assert_eq!(client.permit(&mut world, &["198.51.100.200:0"]), 0);
    assert!(matches!(
        world.peer(relay, "198.51.100.200:1", b"x"),
        PeerVerdict::DataIndication { covers: 1, .. }
    ));
    assert!(matches!(
        world.peer(relay, "198.51.100.200:65535", b"x"),
        PeerVerdict::DataIndication { covers: 1, .. }
    ));
    let other = world.peer(relay, "198.51.100.201:1", b"x");
    assert_eq!(other, drop_of(DropReason::PeerWithoutPermission));
    assert!(matches!(
        client.send(&mut world, "198.51.100.200:9", b"x"),
        ClientVerdict::ToPeer { .. }
    ));
    let other = client.send(&mut world, "198.51.100.201:9", b"x");
    assert_eq!(other, drop_of(DropReason::NoPermission));
    world.finish();
}

#[test]
fn several_peers_in_one_request_are_all_permitted_or_none() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    assert_eq!(
        client.permit(&mut world, &["198.51.100.3:1", "10.0.0.1:1"]),
        403
    );
    assert_eq!(
        client.permit(&mut world, &["198.51.100.3:1", "[2001:db8::7]:1"]),
        443
    );
    assert_eq!(world.server.stats().permissions, 0);
    assert_eq!(
        client.permit(
            &mut world,
            &["198.51.100.3:1", "198.51.100.2:1", "198.51.100.3:2"]
        ),
        0
    );
    assert_eq!(
        world.server.stats().permissions,
        2,
        "the same address counts once"
    );
    world.finish();
}

#[test]
fn no_peer_or_a_malformed_one_is_a_bad_request() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    assert_eq!(client.permit(&mut world, &[]), 400);
    for bytes in [&[0u8, 1, 0, 0][..], &[0, 3, 0, 0, 1, 2, 3, 4], &[]] {
        let reply = client.ask(&mut world, Method::CREATE_PERMISSION, |request| {
            request.push(&XorPeerAddress(address(PEER))).unwrap();
            request
                .push_raw(AttributeType::XOR_PEER_ADDRESS, bytes)
                .unwrap();
        });
        assert_eq!(reply.code(), 400, "{bytes:?}");
    }
    assert_eq!(world.server.stats().permissions, 0);
    world.finish();
}

#[test]
fn a_permission_lasts_300_seconds_from_its_last_refresh() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (relay, _) = client.allocate(&mut world);
    assert_eq!(client.refresh(&mut world, 3600).code(), 0);
    client.permit(&mut world, &[PEER]);
    world.pass_s(200);
    client.permit(&mut world, &[PEER]);
    world.pass(300 * SECOND - 1);
    assert!(matches!(
        world.peer(relay, PEER, b"x"),
        PeerVerdict::DataIndication { .. }
    ));
    assert!(matches!(
        client.send(&mut world, PEER, b"x"),
        ClientVerdict::ToPeer { .. }
    ));
    world.pass(1);
    assert_eq!(world.server.stats().permissions, 0, "swept at its moment");
    let dropped = world.peer(relay, PEER, b"x");
    assert_eq!(dropped, drop_of(DropReason::PeerWithoutPermission));
    world.finish();
}

#[test]
fn a_permission_lapses_though_nobody_sweeps() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (relay, _) = client.allocate(&mut world);
    client.permit(&mut world, &[PEER]);
    world.oversleep_s(300);
    let dropped = world.peer(relay, PEER, b"x");
    assert_eq!(dropped, drop_of(DropReason::PeerWithoutPermission));
    let dropped = client.send(&mut world, PEER, b"x");
    assert_eq!(dropped, drop_of(DropReason::NoPermission));
    world.finish();
}

#[test]
fn data_does_not_refresh_a_permission() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (relay, _) = client.allocate(&mut world);
    client.permit(&mut world, &[PEER]);
    for _ in 0..3 {
        world.pass_s(99);
        assert!(matches!(
            client.send(&mut world, PEER, b"x"),
            ClientVerdict::ToPeer { .. }
        ));
        assert!(matches!(
            world.peer(relay, PEER, b"x"),
            PeerVerdict::DataIndication { .. }
        ));
    }
    world.pass_s(3);
    assert!(matches!(
        client.send(&mut world, PEER, b"x"),
        ClientVerdict::Drop { .. }
    ));
    world.finish();
}

#[test]
fn there_are_only_so_many_permissions() {
    let mut world = World::with(|config| config.max_permissions = 3);
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    assert_eq!(
        client.permit(&mut world, &["198.51.100.1:1", "198.51.100.2:1"]),
        0
    );
    assert_eq!(
        client.permit(&mut world, &["198.51.100.3:1", "198.51.100.4:1"]),
        508
    );
    assert_eq!(world.server.stats().permissions, 2, "none of them");
    assert_eq!(
        client.permit(&mut world, &["198.51.100.3:1", "198.51.100.2:1"]),
        0
    );
    assert_eq!(
        client.permit(
            &mut world,
            &["198.51.100.1:1", "198.51.100.2:1", "198.51.100.3:1"]
        ),
        0
    );
    assert_eq!(client.permit(&mut world, &["198.51.100.4:1"]), 508);
    // What has lapsed makes room, swept or not.
    client.refresh(&mut world, 3600);
    world.oversleep_s(300);
    assert_eq!(client.permit(&mut world, &["198.51.100.4:1"]), 0);
    assert_eq!(world.server.stats().permissions, 1);
    world.finish();
}

#[test]
fn our_own_relay_address_can_be_permitted() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    assert_eq!(client.permit(&mut world, &[&format!("{RELAY_IP}:1")]), 0);
    world.finish();
}

#[test]
fn permissions_of_one_allocation_are_nothing_to_another() {
    let mut world = World::new();
    let mut one = Client::new(&mut world, "alice", REMOTE);
    let mut two = Client::new(&mut world, "alice", "198.51.100.1:4001");
    let (relay_one, _) = one.allocate(&mut world);
    let (relay_two, _) = two.allocate(&mut world);
    one.permit(&mut world, &[PEER]);
    assert!(
        matches!(world.peer(relay_one, PEER, b"x"), PeerVerdict::DataIndication { path, .. } if path == one.path)
    );
    assert!(matches!(
        world.peer(relay_two, PEER, b"x"),
        PeerVerdict::Drop { .. }
    ));
    assert!(matches!(
        two.send(&mut world, PEER, b"x"),
        ClientVerdict::Drop { .. }
    ));
    world.finish();
}
