//! Requests that the embedder takes to another server: nothing of them stays, and what comes late follows them.

use hairpin_turn::Transport;
use hairpin_turn::server::{ClaimError, ClientVerdict, DropReason};
use stun::{EvenPort, Lifetime, Method};

use crate::world::{Client, Event, Reply, SECOND, World, path_on};

const REMOTE: &str = "198.51.100.1:4000";
/// What the embedder calls the other server.
const OTHER: u16 = 3;

/// A server whose embedder looks at each `OpenRelays`.
fn asked_world() -> World {
    let mut world = World::new();
    world.auto_open = false;
    world
}

/// Sends a request, and takes it elsewhere.
fn take(world: &mut World, client: &Client, request: &[u8]) {
    assert_eq!(
        world.client(&client.path, request),
        ClientVerdict::Handled { covers: 1 }
    );
    let Event::OpenRelays { request, .. } = world.event() else {
        panic!("sockets are asked for")
    };
    assert!(world.server.request_moved(world.now, request, OTHER));
    assert!(!world.server.request_moved(world.now, request, OTHER));
    assert!(!world.server.relays_opened(world.now, request, &[]));
    world.drain();
}

fn is_forwarded(world: &mut World, client: &Client, request: &[u8]) -> bool {
    let verdict = world.client(&client.path, request);
    assert_eq!(verdict, ClientVerdict::Handled { covers: 1 });
    let moved = Event::Moved {
        to: OTHER,
        path: client.path,
        message: request.to_vec(),
    };
    let is_moved = world.events.contains(&moved);
    if is_moved {
        assert_eq!(world.event(), moved);
    }
    is_moved
}

/// How many allocations, requests, units of quota and stored answers there are.
fn held(world: &World) -> [u64; 4] {
    let stats = world.server.stats();
    [
        stats.allocations,
        stats.pending,
        world.quota.held() as u64,
        stats.deletions,
    ]
}

#[test]
fn a_request_that_is_taken_leaves_nothing_and_the_other_server_grants_it() {
    let (mut here, mut there) = (asked_world(), World::new());
    let mut client = Client::new(&mut here, "alice", REMOTE);
    for reserve in [false, true] {
        let request = client.allocate_request(|request| {
            request.push(&EvenPort { reserve }).unwrap();
        });
        take(&mut here, &client, &request);
        assert_eq!(held(&here), [0; 4]);
        // The nonce is nobody's in particular.
        assert_eq!(there.ask(&client.path, &request).code(), 0);
        assert!(there.server.has_allocation(&client.path.five_tuple));
        assert!(!here.server.has_allocation(&client.path.five_tuple));
        there.expect_opened();
        client.refresh(&mut there, 0);
        there.events.clear();
        here.pass_s(1);
    }
    assert!(!there.server.has_allocation(&client.path.five_tuple));
    here.finish();
    there.finish();
}

#[test]
fn a_retransmission_follows_for_40_seconds() {
    let mut world = asked_world();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let request = client.allocate_request(|_| {});
    take(&mut world, &client, &request);
    for _ in 0..39 {
        assert!(is_forwarded(&mut world, &client, &request));
        world.pass_s(1);
    }
    world.pass(SECOND - 1);
    assert!(is_forwarded(&mut world, &client, &request));
    assert_eq!(held(&world), [0; 4]);
    world.pass(1);
    assert!(
        !is_forwarded(&mut world, &client, &request),
        "a new request"
    );
    assert!(matches!(world.event(), Event::OpenRelays { .. }));
    world.finish();
}

#[test]
fn requests_that_arrive_meanwhile_are_forwarded_too() {
    let mut world = asked_world();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let request = client.allocate_request(|_| {});
    take(&mut world, &client, &request);
    let second = client.allocate_request(|_| {});
    let refresh = client.request(Method::REFRESH, |request| {
        request.push(&Lifetime(0)).unwrap();
    });
    world.pass(SECOND - 1);
    assert!(is_forwarded(&mut world, &client, &second));
    assert!(is_forwarded(&mut world, &client, &refresh));
    world.pass(1);
    assert!(!is_forwarded(&mut world, &client, &refresh));
    assert_eq!(world.reply(&client.path).code(), 437);
    // The client makes a new start, and its request is what is followed from now on.
    take(&mut world, &client, &second);
    world.pass_s(2);
    assert!(is_forwarded(&mut world, &client, &second));
    assert!(!is_forwarded(&mut world, &client, &request));
    assert!(matches!(world.event(), Event::OpenRelays { .. }));
    world.finish();
}

#[test]
fn only_the_clients_own_requests_follow() {
    let mut world = asked_world();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let request = client.allocate_request(|_| {});
    take(&mut world, &client, &request);
    // Somebody who forges the client's address, and data, which no allocation here is for.
    let mut forger = client.clone();
    forger.signing.keys.clear();
    let forged = forger.allocate_request(|_| {});
    let reply: Reply = world.ask(&client.path, &forged);
    assert_eq!(reply.code(), 401);
    assert_eq!(
        world.dropped(&client.path, &[0x40, 0, 0, 1, 9]),
        DropReason::NoAllocation
    );
    // Another client, and the same address over another transport.
    let mut neighbour = Client::new(&mut world, "alice", "198.51.100.1:4001");
    let mut on_tcp = Client::on(&mut world, "alice", path_on(Transport::Tcp, REMOTE));
    for other in [&mut neighbour, &mut on_tcp] {
        let request = other.allocate_request(|_| {});
        assert!(!is_forwarded(&mut world, other, &request));
        assert!(matches!(world.event(), Event::OpenRelays { .. }));
    }
    world.finish();
}

#[test]
fn a_claim_of_a_reservation_stays_where_it_is() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let request = client.allocate_request(|request| {
        // A token of worker 200.
        let token = stun::ReservationToken([200, 0, 0, 0, 1, 2, 3, 4]);
        request.push(&token).unwrap();
    });
    world.client(&client.path, &request);
    let Event::Claim { request, .. } = world.event() else {
        panic!("the other server is asked")
    };
    assert!(!world.server.request_moved(world.now, request, OTHER));
    assert!(
        world
            .server
            .reservation_claimed(world.now, request, Err(ClaimError::Unknown))
    );
    world.drain();
    assert_eq!(world.reply(&client.path).code(), 508);
    world.finish();
}
