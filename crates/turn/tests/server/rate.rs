//! The rate limit of an allocation: both directions together, whichever way data takes.

use hairpin_turn::server::{ClientVerdict, DropReason, IcmpError, PeerVerdict};

use crate::world::{Client, World, address, drop_of};

const REMOTE: &str = "198.51.100.1:4000";
const PEER: &str = "198.51.100.200:700";
const UNBOUND: &str = "198.51.100.200:701";

fn limited() -> World {
    World::with(|config| config.allocation_rate = 1000)
}

#[test]
fn both_directions_draw_on_one_bucket() {
    let mut world = limited();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (relay, _) = client.allocate(&mut world);
    client.bind(&mut world, 0x4000, PEER);
    let payload = [0; 500];
    // A burst of a second's worth, and one datagram that overdraws it.
    assert!(matches!(
        client.channel_data(&mut world, 0x4000, &payload),
        ClientVerdict::ToPeer { .. }
    ));
    assert!(matches!(
        world.peer(relay, PEER, &payload),
        PeerVerdict::ChannelData { .. }
    ));
    assert!(matches!(
        client.send(&mut world, UNBOUND, &payload),
        ClientVerdict::ToPeer { .. }
    ));
    for verdict in [
        client.channel_data(&mut world, 0x4000, &payload),
        client.send(&mut world, UNBOUND, b"x"),
    ] {
        assert_eq!(verdict, drop_of(DropReason::OverRate));
    }
    for peer in [PEER, UNBOUND] {
        let verdict = world.peer(relay, peer, b"x");
        assert_eq!(verdict, drop_of(DropReason::OverRate));
    }
    assert_eq!(world.server.stats().dropped(DropReason::OverRate), 4);
    world.pass_s(1);
    assert!(matches!(
        world.peer(relay, UNBOUND, &payload),
        PeerVerdict::DataIndication { .. }
    ));
    world.finish();
}

#[test]
fn refused_data_is_neither_counted_nor_charged() {
    let mut world = limited();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    client.bind(&mut world, 0x4000, PEER);
    let payload = [0; 1001];
    for _ in 0..10 {
        client.channel_data(&mut world, 0x4000, &payload);
    }
    assert_eq!(world.server.stats().to_peers.packets, 1);
    world.pass_s(1);
    client.channel_data(&mut world, 0x4000, &payload);
    assert_eq!(world.server.stats().to_peers.packets, 2);
    world.finish();
}

#[test]
fn requests_and_other_allocations_are_not_slowed_down() {
    let mut world = limited();
    let mut one = Client::new(&mut world, "alice", REMOTE);
    let mut two = Client::new(&mut world, "bob", "198.51.100.1:4001");
    for client in [&mut one, &mut two] {
        client.allocate(&mut world);
        client.bind(&mut world, 0x4000, PEER);
    }
    one.channel_data(&mut world, 0x4000, &[0; 5000]);
    assert_eq!(
        one.channel_data(&mut world, 0x4000, b"x"),
        drop_of(DropReason::OverRate)
    );
    assert_eq!(one.refresh(&mut world, 600).code(), 0);
    assert!(matches!(
        two.channel_data(&mut world, 0x4000, b"x"),
        ClientVerdict::ToPeer { .. }
    ));
    world.finish();
}

#[test]
fn a_new_allocation_in_an_old_place_begins_without_debt() {
    let mut world = limited();
    let mut one = Client::new(&mut world, "alice", REMOTE);
    one.allocate(&mut world);
    one.bind(&mut world, 0x4000, PEER);
    one.channel_data(&mut world, 0x4000, &[0; 60_000]);
    one.refresh(&mut world, 0);
    let mut two = Client::new(&mut world, "bob", "198.51.100.1:4001");
    world.events.clear();
    two.allocate(&mut world);
    two.bind(&mut world, 0x4000, PEER);
    assert!(matches!(
        two.channel_data(&mut world, 0x4000, b"x"),
        ClientVerdict::ToPeer { .. }
    ));
    world.finish();
}

#[test]
fn a_limit_can_come_change_and_go_while_allocations_live() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    client.bind(&mut world, 0x4000, PEER);
    let relayed = |world: &mut World| {
        let sent = (0..10).map(|_| client.channel_data(world, 0x4000, &[0; 1000]));
        sent.filter(|verdict| matches!(verdict, ClientVerdict::ToPeer { .. }))
            .count()
    };
    assert_eq!(relayed(&mut world), 10);
    world.reconfigure(|config| config.allocation_rate = 3000);
    assert_eq!(relayed(&mut world), 4);
    world.pass_s(10);
    world.reconfigure(|config| config.allocation_rate = 1000);
    assert_eq!(relayed(&mut world), 2);
    world.reconfigure(|config| config.allocation_rate = 0);
    assert_eq!(relayed(&mut world), 10);
    world.finish();
}

#[test]
fn rates_that_cannot_be_kept_are_refused() {
    let mut config = World::new().config;
    for (rate, valid) in [
        (0, true),
        (999, false),
        (1000, true),
        (10_000_000_000, true),
        (10_000_000_001, false),
    ] {
        config.allocation_rate = rate;
        assert_eq!(config.clone().validate().is_ok(), valid, "{rate}");
    }
}

#[test]
fn icmp_indications_draw_on_the_same_bucket() {
    let mut world = limited();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (relay, _) = client.allocate(&mut world);
    client.permit(&mut world, &[PEER]);
    let unreachable = IcmpError {
        kind: 3,
        code: 3,
        mtu: 0,
    };
    let mut told = 0;
    for _ in 0..1000 {
        let outcome = world
            .server
            .handle_icmp(world.now, relay, address(PEER), unreachable);
        told += usize::from(outcome.is_ok());
        world.drain();
    }
    // A second's worth at 8 bytes each, and one more that overdraws.
    assert_eq!(told, 1000 / 8 + 1);
    let dropped = world.server.stats().dropped(DropReason::OverRate);
    assert_eq!(dropped, 1000 - told as u64);
    world.events.clear();
    world.finish();
}
