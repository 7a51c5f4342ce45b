//! Several allocations on one relay port, told apart by their peers.

use hairpin_turn::RelayKey;
use hairpin_turn::server::{
    ClientVerdict, CloseReason, DropReason, OpenError, OpenedRelay, PeerVerdict,
};
use stun::EvenPort;

use crate::world::{Client, World, address, drop_of};

const PORT: u16 = 3;
const RELAYED: &str = "203.0.113.1:50000";
const ONE: &str = "192.0.2.200:7000";
const OTHER: &str = "192.0.2.201:7000";
/// Another port of [`ONE`]'s address.
const NEXT: &str = "192.0.2.200:7001";

/// A client with an allocation on the shared port.
fn allocate(world: &mut World, remote: &str) -> (Client, RelayKey) {
    let mut client = Client::new(world, "alice", remote);
    let (_, request, relays) = client.wait_for_relays(world, |_| {});
    let key = relays[0].key;
    world.server.share_port(key, PORT);
    let opened = Ok(OpenedRelay::at(address(RELAYED)));
    assert!(world.server.relays_opened(world.now, request, &[opened]));
    world.drain();
    world.expect_opened();
    assert_eq!(world.reply(&client.path).code(), 0);
    (client, key)
}

fn relay_for(world: &World, peer: &str) -> Option<RelayKey> {
    world.server.relay_for(PORT, address(peer))
}

fn is_relayed(verdict: &ClientVerdict) -> bool {
    matches!(verdict, ClientVerdict::ToPeer { .. })
}

#[test]
fn each_client_has_its_own_peers() {
    let mut world = World::new();
    let (mut a, of_a) = allocate(&mut world, "198.51.100.1:4000");
    let (mut b, of_b) = allocate(&mut world, "198.51.100.2:4000");
    assert_eq!(relay_for(&world, ONE), None);
    assert_eq!(a.bind(&mut world, 0x4000, ONE), 0);
    assert_eq!(b.bind(&mut world, 0x4000, OTHER), 0);
    for (client, relay, peer) in [(&a, of_a, ONE), (&b, of_b, OTHER)] {
        assert_eq!(relay_for(&world, peer), Some(relay));
        assert!(is_relayed(&client.channel_data(&mut world, 0x4000, b"up")));
        let verdict = world.peer(relay, peer, b"down");
        assert!(matches!(verdict, PeerVerdict::ChannelData { path, .. } if path == client.path));
    }
    assert_eq!(world.server.relay_for(PORT + 1, address(ONE)), None);
    world.finish();
}

#[test]
fn a_peer_that_another_client_has_claimed_is_508() {
    let mut world = World::new();
    let (mut a, of_a) = allocate(&mut world, "198.51.100.1:4000");
    let (mut b, of_b) = allocate(&mut world, "198.51.100.2:4000");
    assert_eq!(a.bind(&mut world, 0x4000, ONE), 0);
    assert_eq!(b.bind(&mut world, 0x4000, ONE), 508);
    assert_eq!(a.bind(&mut world, 0x4000, ONE), 0, "a refresh");
    // Another port of the same address is another peer.
    assert_eq!(b.bind(&mut world, 0x4000, NEXT), 0);
    assert_eq!(relay_for(&world, ONE), Some(of_a));
    assert_eq!(relay_for(&world, NEXT), Some(of_b));
    assert_eq!(a.refresh(&mut world, 0).code(), 0);
    world.expect_closed(1, CloseReason::Refreshed);
    assert_eq!(b.bind(&mut world, 0x4001, ONE), 0);
    assert_eq!(relay_for(&world, ONE), Some(of_b));
    world.finish();
}

#[test]
fn data_of_an_unclaimed_peer_goes_to_the_only_client_with_a_permission() {
    let mut world = World::new();
    let (mut a, of_a) = allocate(&mut world, "198.51.100.1:4000");
    let (mut b, of_b) = allocate(&mut world, "198.51.100.2:4000");
    assert_eq!(a.permit(&mut world, &[ONE]), 0);
    assert_eq!(relay_for(&world, ONE), Some(of_a));
    assert_eq!(b.permit(&mut world, &[ONE]), 0);
    assert_eq!(relay_for(&world, ONE), None, "for whom?");
    assert!(is_relayed(&b.send(&mut world, ONE, b"mine")));
    assert_eq!(relay_for(&world, ONE), Some(of_b));
    let claimed = drop_of(DropReason::PeerClaimed);
    assert_eq!(a.send(&mut world, ONE, b"mine, too"), claimed);
    assert!(is_relayed(&a.send(&mut world, NEXT, b"then this")));
    assert_eq!(relay_for(&world, NEXT), Some(of_a));
    world.finish();
}

#[test]
fn a_claim_lasts_as_long_as_a_permission_or_a_channel() {
    let mut world = World::new();
    let (mut a, of_a) = allocate(&mut world, "198.51.100.1:4000");
    let (mut b, of_b) = allocate(&mut world, "198.51.100.2:4000");
    assert_eq!(a.permit(&mut world, &[ONE]), 0);
    assert!(is_relayed(&a.send(&mut world, ONE, b"data")));
    assert_eq!(a.bind(&mut world, 0x4000, NEXT), 0);
    world.pass_s(299);
    assert_eq!(b.bind(&mut world, 0x4000, ONE), 508);
    // The permission ends, and with it what was claimed by a Send indication. The channel lasts longer.
    world.pass_s(1);
    assert_eq!(b.bind(&mut world, 0x4000, NEXT), 508);
    assert_eq!(b.bind(&mut world, 0x4000, ONE), 0);
    assert_eq!(relay_for(&world, NEXT), Some(of_a));
    assert_eq!(relay_for(&world, ONE), Some(of_b));
    assert_eq!(a.refresh(&mut world, 1200).code(), 0);
    assert_eq!(b.refresh(&mut world, 1200).code(), 0);
    world.pass_s(301);
    assert_eq!(b.bind(&mut world, 0x4001, NEXT), 0);
    assert_eq!(relay_for(&world, NEXT), Some(of_b));
    world.events.clear();
    world.finish();
}

#[test]
fn a_client_claims_a_bounded_number_of_peers() {
    let mut world = World::new();
    let (mut a, _) = allocate(&mut world, "198.51.100.1:4000");
    assert_eq!(a.permit(&mut world, &[ONE]), 0);
    for port in 1..=1024 {
        let verdict = a.send(&mut world, &format!("192.0.2.200:{port}"), b"data");
        assert_eq!(is_relayed(&verdict), port != 25, "{port}");
    }
    assert!(is_relayed(&a.send(&mut world, "192.0.2.200:2000", b"data")));
    let refused = a.send(&mut world, "192.0.2.200:2001", b"data");
    assert_eq!(refused, drop_of(DropReason::PeerClaimed));
    assert!(is_relayed(&a.send(&mut world, "192.0.2.200:1", b"data")));
    world.finish();
}

#[test]
fn a_request_that_fails_leaves_no_share() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    let (_, request, relays) = client.wait_for_relays(&mut world, |request| {
        request.push(&EvenPort { reserve: false }).unwrap();
    });
    world.server.share_port(relays[0].key, PORT);
    let refused = Err(OpenError::NoPort);
    assert!(world.server.relays_opened(world.now, request, &[refused]));
    world.drain();
    assert_eq!(world.reply(&client.path).code(), 508);
    world.finish();
}
