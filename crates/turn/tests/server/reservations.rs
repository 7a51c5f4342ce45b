//! EVEN-PORT with the R bit, and RESERVATION-TOKEN (RFC 8656 §7.2).

use hairpin_turn::RelayKey;
use hairpin_turn::server::{
    ClaimError, ClientIdentity, ClientVerdict, CloseReason, DropReason, PeerVerdict,
};
use stun::{
    AdditionalAddressFamily, AddressFamily, AttributeType, EvenPort, RequestedAddressFamily,
    ReservationToken,
};

use crate::world::{Client, Event, REALM, Reply, SECOND, World, drop_of};

const ONE: &str = "198.51.100.1:4000";
const TWO: &str = "198.51.100.1:4001";

/// Allocates an even port and reserves the next one.
fn reserve(client: &mut Client, world: &mut World) -> Reply {
    client.try_allocate(world, |request| {
        request.push(&EvenPort { reserve: true }).unwrap();
    })
}

fn claim(client: &mut Client, world: &mut World, token: ReservationToken) -> Reply {
    client.try_allocate(world, |request| {
        request.push(&token).unwrap();
    })
}

fn reserved(world: &mut World) -> (Client, u16, ReservationToken) {
    let mut client = Client::new(world, "alice", ONE);
    let reply = reserve(&mut client, world);
    assert_eq!(reply.code(), 0);
    world.expect_opened();
    let port = reply.relayed()[0].port();
    assert_eq!((port % 2, reply.relayed().len()), (0, 1));
    (client, port, reply.get().unwrap())
}

/// The relay that holds the port above this one.
fn held_above(world: &World, port: u16) -> RelayKey {
    let (key, _) = world
        .sockets
        .iter()
        .find(|(_, open)| open.port() == port + 1)
        .unwrap();
    *key
}

#[test]
fn the_next_port_is_held_and_claimed_by_its_token() {
    let mut world = World::new();
    let (_, port, token) = reserved(&mut world);
    assert_eq!(
        (
            world.server.stats().reservations,
            world.server.stats().relays
        ),
        (1, 1)
    );
    assert_eq!(world.quota.held(), 2, "a reserved port counts");
    let mut two = Client::new(&mut world, "alice", TWO);
    let reply = claim(&mut two, &mut world, token);
    assert_eq!(reply.code(), 0);
    assert_eq!(reply.relayed()[0].port(), port + 1);
    assert!(reply.get::<ReservationToken>().is_none());
    world.expect_opened();
    assert_eq!(
        (
            world.server.stats().reservations,
            world.server.stats().relays,
            world.quota.held()
        ),
        (0, 2, 2)
    );
    // Once.
    let mut three = Client::new(&mut world, "alice", "198.51.100.1:4002");
    assert_eq!(claim(&mut three, &mut world, token).code(), 508);
    // And what was claimed relays.
    let relay = world.relay_at(reply.relayed()[0]);
    assert_eq!(two.permit(&mut world, &["198.51.100.9:1"]), 0);
    assert!(
        matches!(world.peer(relay, "198.51.100.9:1", b"x"), PeerVerdict::DataIndication { path, .. } if path == two.path)
    );
    world.finish();
}

#[test]
fn a_reserved_port_relays_nothing_before_it_is_claimed() {
    let mut world = World::new();
    let (_, port, _) = reserved(&mut world);
    let relay = held_above(&world, port);
    let verdict = world.peer(relay, "198.51.100.9:1", b"x");
    assert_eq!(verdict, drop_of(DropReason::RelayNotInUse));
    world.finish();
}

#[test]
fn a_reservation_is_held_for_30_seconds_and_then_closed() {
    let mut world = World::new();
    let (_, port, token) = reserved(&mut world);
    let relay = held_above(&world, port);
    world.pass(30 * SECOND - 1);
    assert!(world.events.is_empty());
    world.pass(1);
    assert_eq!(world.event(), Event::CloseRelay(relay));
    assert_eq!(
        (world.server.stats().reservations, world.quota.held()),
        (0, 1)
    );
    let mut two = Client::new(&mut world, "alice", TWO);
    assert_eq!(claim(&mut two, &mut world, token).code(), 508);
    world.finish();
}

#[test]
fn a_reservation_expires_though_nobody_sweeps() {
    let mut world = World::new();
    let (_, _, token) = reserved(&mut world);
    world.oversleep_s(30);
    let mut two = Client::new(&mut world, "alice", TWO);
    assert_eq!(claim(&mut two, &mut world, token).code(), 508);
    world.pass(0);
    assert!(matches!(world.event(), Event::CloseRelay(_)));
    world.finish();
}

#[test]
fn a_reservation_outlives_the_allocation_it_came_with() {
    let mut world = World::new();
    let (mut one, port, token) = reserved(&mut world);
    one.refresh(&mut world, 0);
    world.expect_closed(1, CloseReason::Refreshed);
    // Even on the same 5-tuple.
    let reply = claim(&mut one, &mut world, token);
    assert_eq!((reply.code(), reply.relayed()[0].port()), (0, port + 1));
    world.expect_opened();
    world.finish();
}

#[test]
fn nobody_else_can_claim_it_and_no_other_token_does() {
    let mut world = World::new();
    let (_, _, token) = reserved(&mut world);
    let mut bob = Client::new(&mut world, "bob", TWO);
    assert_eq!(claim(&mut bob, &mut world, token).code(), 508);
    let mut alice = Client::new(&mut world, "alice", TWO);
    for byte in 1..8 {
        let mut other = token;
        other.0[byte] ^= 1;
        assert_eq!(
            claim(&mut alice, &mut world, other).code(),
            508,
            "byte {byte}"
        );
    }
    assert_eq!(
        claim(&mut alice, &mut world, token).code(),
        0,
        "and all that did it no harm"
    );
    world.expect_opened();
    world.finish();
}

#[test]
fn a_token_tolerates_no_other_wish() {
    let mut world = World::new();
    let (_, _, token) = reserved(&mut world);
    let mut two = Client::new(&mut world, "alice", TWO);
    let even = two.try_allocate(&mut world, |request| {
        request
            .push(&token)
            .unwrap()
            .push(&EvenPort { reserve: false })
            .unwrap();
    });
    let family = two.try_allocate(&mut world, |request| {
        request
            .push(&token)
            .unwrap()
            .push(&RequestedAddressFamily(AddressFamily::V4))
            .unwrap();
    });
    let additional = two.try_allocate(&mut world, |request| {
        request
            .push(&token)
            .unwrap()
            .push(&AdditionalAddressFamily(AddressFamily::V6))
            .unwrap();
    });
    let short = two.try_allocate(&mut world, |request| {
        request
            .push_raw(AttributeType::RESERVATION_TOKEN, &token.0[..7])
            .unwrap();
    });
    let even_malformed = two.try_allocate(&mut world, |request| {
        request.push_raw(AttributeType::EVEN_PORT, &[]).unwrap();
    });
    for reply in [even, family, additional, short, even_malformed] {
        assert_eq!(reply.code(), 400);
    }
    world.finish();
}

#[test]
fn without_the_next_port_there_is_nothing_at_all() {
    let mut world = World::new();
    world.next_port_taken = true;
    let mut client = Client::new(&mut world, "alice", ONE);
    assert_eq!(reserve(&mut client, &mut world).code(), 508);
    assert!(
        matches!(world.event(), Event::CloseRelay(_)),
        "the even port is given back"
    );
    assert_eq!(
        (
            world.quota.held(),
            world.server.stats().relays,
            world.sockets.len()
        ),
        (0, 0, 0)
    );
    world.finish();
}

#[test]
fn there_are_only_so_many_reservations() {
    let mut world = World::with(|config| config.max_reservations = 1);
    let (_, _, token) = reserved(&mut world);
    let mut two = Client::new(&mut world, "alice", TWO);
    assert_eq!(reserve(&mut two, &mut world).code(), 508);
    assert_eq!(claim(&mut two, &mut world, token).code(), 0);
    world.expect_opened();
    let mut three = Client::new(&mut world, "alice", "198.51.100.1:4002");
    assert_eq!(reserve(&mut three, &mut world).code(), 0);
    world.expect_opened();
    world.finish();
}

/// Sends a claim for a port of another worker. Returns what the embedder is asked.
fn send_claim(world: &mut World, client: &mut Client, token: ReservationToken) -> (Vec<u8>, Event) {
    let request = client.allocate_request(|request| {
        request.push(&token).unwrap();
    });
    assert_eq!(
        world.client(&client.path, &request),
        ClientVerdict::Handled { covers: 1 }
    );
    let event = world.event();
    assert!(matches!(event, Event::Claim { .. }), "{event:?}");
    (request, event)
}

/// Claims a token of `other` at `world`, and lets the embedder carry the relay over.
fn claim_across(
    world: &mut World,
    other: &mut World,
    client: &mut Client,
    token: ReservationToken,
) -> Reply {
    let (request, event) = send_claim(world, client, token);
    assert_eq!(
        world.dropped(&client.path, &request),
        DropReason::RequestPending
    );
    let Event::Claim {
        request,
        token,
        user,
        five_tuple,
        key,
    } = event
    else {
        panic!()
    };
    let claimant = ClientIdentity::new(five_tuple, REALM, &user);
    let claimed = other.server.claim_reservation(other.now, token, &claimant);
    other.drain();
    if let Ok(claimed) = &claimed {
        other.sockets.retain(|(open, _)| *open != claimed.relay);
        world.sockets.push((key, claimed.opened.advertised));
    }
    assert!(
        world
            .server
            .reservation_claimed(world.now, request, claimed)
    );
    world.drain();
    world.reply(&client.path)
}

/// Two workers; the first is number 7, the second number 8.
fn workers() -> (World, World) {
    let one = World::new();
    let mut two = World::new();
    two.quota = std::sync::Arc::clone(&one.quota);
    two.config.quota = std::sync::Arc::clone(&one.quota) as _;
    two.server =
        hairpin_turn::server::Server::new(two.config.clone().validate().unwrap(), 8, [9; 32]);
    (one, two)
}

#[test]
fn a_token_of_another_worker_is_claimed_there() {
    let (mut one, mut two) = workers();
    let (_, port, token) = reserved(&mut one);
    assert_eq!(token.0[0], 7);
    let mut client = Client::new(&mut two, "alice", TWO);
    let reply = claim_across(&mut two, &mut one, &mut client, token);
    assert_eq!((reply.code(), reply.relayed()[0].port()), (0, port + 1));
    two.expect_opened();
    assert_eq!(one.quota.held(), 2, "the unit has moved");
    assert_eq!(one.server.stats().reservations, 0);
    let relay = two.relay_at(reply.relayed()[0]);
    client.permit(&mut two, &["198.51.100.9:1"]);
    assert!(matches!(
        two.peer(relay, "198.51.100.9:1", b"x"),
        PeerVerdict::DataIndication { .. }
    ));
    // Once.
    let mut again = Client::new(&mut two, "alice", "198.51.100.1:4002");
    assert_eq!(
        claim_across(&mut two, &mut one, &mut again, token).code(),
        508
    );
    one.finish_both(two);
}

#[test]
fn another_worker_gives_a_reservation_to_its_owner_only() {
    let (mut one, mut two) = workers();
    let (_, _, token) = reserved(&mut one);
    let mut bob = Client::new(&mut two, "bob", TWO);
    assert_eq!(
        claim_across(&mut two, &mut one, &mut bob, token).code(),
        508
    );
    assert_eq!(one.server.stats().reservations, 1);
    one.finish_both(two);
}

#[test]
fn a_claim_beyond_the_quota_leaves_the_reservation() {
    let (mut one, mut two) = workers();
    let (_, _, token) = reserved(&mut one);
    let mut client = Client::new(&mut two, "alice", "198.51.100.77:4000");
    *two.quota.per_source.lock().unwrap() = 0;
    assert_eq!(
        claim_across(&mut two, &mut one, &mut client, token).code(),
        486
    );
    assert_eq!(one.server.stats().reservations, 1);
    *two.quota.per_source.lock().unwrap() = usize::MAX;
    let reply = claim_across(&mut two, &mut one, &mut client, token);
    assert_eq!(reply.code(), 0);
    two.expect_opened();
    one.finish_both(two);
}

#[test]
fn a_claim_that_is_never_answered_fails_after_5_seconds() {
    let (mut one, mut two) = workers();
    let (_, _, token) = reserved(&mut one);
    let mut client = Client::new(&mut two, "alice", TWO);
    let (_, event) = send_claim(&mut two, &mut client, token);
    let Event::Claim {
        request: key,
        key: relay,
        ..
    } = event
    else {
        panic!()
    };
    two.pass_s(5);
    assert_eq!(two.event(), Event::CloseRelay(relay));
    assert_eq!(two.reply(&client.path).code(), 508);
    assert!(
        !two.server
            .reservation_claimed(two.now, key, Err(ClaimError::Unknown))
    );
    one.finish_both(two);
}

#[test]
fn opening_and_claiming_are_not_mixed_up() {
    let (mut one, mut two) = workers();
    let (_, _, token) = reserved(&mut one);
    let mut client = Client::new(&mut two, "alice", TWO);
    let (_, event) = send_claim(&mut two, &mut client, token);
    let Event::Claim { request: key, .. } = event else {
        panic!()
    };
    assert!(!two.server.relays_opened(two.now, key, &[]));
    assert!(
        two.server
            .reservation_claimed(two.now, key, Err(ClaimError::Unknown))
    );
    two.drain();
    assert_eq!(two.reply(&client.path).code(), 508);
    one.finish_both(two);
}
