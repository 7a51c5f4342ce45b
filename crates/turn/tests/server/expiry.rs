//! Deadlines: exact, in order, and in bounded portions.

use hairpin_turn::Mono;
use hairpin_turn::server::{CloseReason, IcmpError, Server};
use stun::{EvenPort, Method, XorPeerAddress};

use crate::world::{Client, Event, SECOND, World, address};

const PEER: &str = "198.51.100.200:700";

#[test]
fn the_next_timeout_is_the_earliest_deadline_of_all() {
    let mut world = World::new();
    assert_eq!(world.server.poll_timeout(), None);
    let start = world.now.mono.0;
    let at = |seconds: u64| Some(Mono(start + seconds * SECOND));
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    assert_eq!(
        world.server.poll_timeout(),
        None,
        "strangers leave nothing behind"
    );
    client.allocate(&mut world);
    assert_eq!(world.server.poll_timeout(), at(600));
    world.pass_s(40);
    client.bind(&mut world, 0x4000, PEER);
    world.pass_s(41);
    assert_eq!(world.server.poll_timeout(), at(340), "the permission");
    world.pass_s(259);
    assert_eq!(world.server.poll_timeout(), at(600), "the allocation");
    client.refresh(&mut world, 3600);
    world.pass_s(41);
    assert_eq!(world.server.poll_timeout(), at(640), "the channel");
    world.pass_s(259);
    assert_eq!(world.server.poll_timeout(), at(3940));
    world.finish();
}

#[test]
fn a_refreshed_deadline_leaves_no_wake_up_behind() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    client.allocate(&mut world);
    for _ in 0..10 {
        client.refresh(&mut world, 3600);
        client.permit(&mut world, &[PEER]);
        world.pass_s(50);
        assert_eq!(
            world.server.poll_timeout(),
            Some(Mono(world.now.mono.0 + 250 * SECOND))
        );
    }
    world.finish();
}

#[test]
fn many_expiries_come_in_portions() {
    let mut world = World::new();
    for number in 0..200 {
        Client::new(
            &mut world,
            "alice",
            &format!("198.51.100.1:{}", 4000 + number),
        )
        .allocate(&mut world);
    }
    world.oversleep_s(600);
    let mut left = vec![200];
    while world
        .server
        .poll_timeout()
        .is_some_and(|at| at <= world.now.mono)
    {
        world.server.handle_timeout(world.now);
        world.drain();
        left.push(world.server.stats().allocations);
    }
    assert_eq!(left, [200, 136, 72, 8, 0]);
    let closed = world.events.iter().filter(|event| {
        matches!(
            event,
            Event::Closed {
                reason: CloseReason::Expired,
                ..
            }
        )
    });
    assert_eq!(closed.count(), 200);
    world.events.clear();
    world.finish();
}

#[test]
fn an_expired_5_tuple_can_allocate_at_once_though_nobody_swept() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    client.allocate(&mut world);
    world.oversleep_s(600);
    let reply = client.try_allocate(&mut world, |_| {});
    assert_eq!(reply.code(), 0);
    world.expect_closed(1, CloseReason::Expired);
    world.expect_opened();
    world.finish();
}

#[test]
fn a_timeout_with_nothing_due_changes_nothing() {
    let mut world = World::new();
    world.server.handle_timeout(world.now);
    Client::new(&mut world, "alice", "198.51.100.1:4000").allocate(&mut world);
    let stats = world.server.stats().clone();
    world.server.handle_timeout(world.now);
    assert_eq!(*world.server.stats(), stats);
    world.finish();
}

/// Everything that a server says in a short life.
fn life(seed: u8) -> Vec<Event> {
    let mut world = World::new();
    world.server = Server::new(world.config.clone().validate().unwrap(), 7, [seed; 32]);
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    client.next_id = 0;
    let request = client.allocate_request(|request| {
        request.push(&EvenPort { reserve: true }).unwrap();
    });
    world.client(&client.path, &request);
    client.next_id = 1;
    let permit = client.request(Method::CREATE_PERMISSION, |request| {
        request.push(&XorPeerAddress(address(PEER))).unwrap();
    });
    world.client(&client.path, &permit);
    let relay = world.sockets[0].0;
    let unreachable = IcmpError {
        kind: 3,
        code: 3,
        mtu: 0,
    };
    let told = world
        .server
        .handle_icmp(world.now, relay, address(PEER), unreachable);
    told.unwrap();
    world.pass_s(601);
    world.events.into()
}

#[test]
fn the_same_seed_gives_the_same_life_and_another_seed_other_tokens() {
    assert_eq!(life(1), life(1));
    assert_ne!(life(1), life(2));
    let kinds = |events: Vec<Event>| {
        events
            .iter()
            .map(std::mem::discriminant)
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds(life(1)), kinds(life(2)));
}
