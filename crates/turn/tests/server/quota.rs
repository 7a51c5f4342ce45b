//! Quotas (RFC 8656 §7.2, 10): each unit that is taken is given back once, whatever becomes of the request.

use hairpin_turn::server::{CloseReason, OpenError};
use stun::{AdditionalAddressFamily, AddressFamily, EvenPort, ReservationToken};

use crate::world::{Client, Event, World};

const REMOTE: &str = "198.51.100.1:4000";

fn client(world: &mut World, user: &str, number: u16) -> Client {
    Client::new(world, user, &format!("198.51.100.1:{}", 4000 + number))
}

#[test]
fn a_users_quota_is_reached_and_freed_again() {
    let mut world = World::new();
    *world.quota.per_user.lock().unwrap() = 2;
    let mut first = client(&mut world, "alice", 0);
    first.allocate(&mut world);
    client(&mut world, "alice", 1).allocate(&mut world);
    let mut third = client(&mut world, "alice", 2);
    let reply = third.try_allocate(&mut world, |_| {});
    assert_eq!(reply.code(), 486);
    assert!(reply.is_signed_with(third.key()));
    client(&mut world, "bob", 3).allocate(&mut world);
    first.refresh(&mut world, 0);
    world.expect_closed(1, CloseReason::Refreshed);
    third.allocate(&mut world);
    world.finish();
}

#[test]
fn the_sources_quota_is_486_and_the_servers_508() {
    let mut world = World::new();
    *world.quota.per_source.lock().unwrap() = 1;
    client(&mut world, "alice", 0).allocate(&mut world);
    assert_eq!(
        client(&mut world, "bob", 1)
            .try_allocate(&mut world, |_| {})
            .code(),
        486
    );
    *world.quota.per_source.lock().unwrap() = 9;
    *world.quota.total.lock().unwrap() = 1;
    assert_eq!(
        client(&mut world, "bob", 2)
            .try_allocate(&mut world, |_| {})
            .code(),
        508
    );
    world.finish();
}

#[test]
fn a_dual_allocation_and_a_reservation_take_two_units_or_none() {
    let mut world = World::new();
    *world.quota.per_user.lock().unwrap() = 1;
    let dual = client(&mut world, "alice", 0).try_allocate(&mut world, |request| {
        request
            .push(&AdditionalAddressFamily(AddressFamily::V6))
            .unwrap();
    });
    let pair = client(&mut world, "alice", 1).try_allocate(&mut world, |request| {
        request.push(&EvenPort { reserve: true }).unwrap();
    });
    assert_eq!([dual.code(), pair.code()], [486, 486]);
    assert_eq!(world.quota.held(), 0);
    client(&mut world, "alice", 2).allocate(&mut world);
    world.finish();
}

#[test]
fn every_end_gives_the_units_back() {
    let mut world = World::new();
    let mut held = Vec::new();
    // Expiry.
    client(&mut world, "alice", 0).allocate(&mut world);
    world.pass_s(600);
    world.expect_closed(1, CloseReason::Expired);
    held.push(world.quota.held());
    // The embedder cannot, or does not, open the socket.
    world.refuse_v4 = Some(OpenError::NoPort);
    client(&mut world, "alice", 1).try_allocate(&mut world, |_| {});
    world.refuse_v4 = None;
    held.push(world.quota.held());
    world.auto_open = false;
    let mut waiting = client(&mut world, "alice", 2);
    let request = waiting.allocate_request(|request| {
        request.push(&EvenPort { reserve: true }).unwrap();
    });
    world.client(&waiting.path, &request);
    assert_eq!(world.quota.held(), 2);
    world.pass_s(5);
    world.events.clear();
    held.push(world.quota.held());
    // The connection breaks, while waiting and later.
    let request = waiting.allocate_request(|_| {});
    world.client(&waiting.path, &request);
    world
        .server
        .client_closed(world.now, &waiting.path.five_tuple);
    world.drain();
    assert!(matches!(world.event(), Event::OpenRelays { .. }));
    assert!(matches!(world.event(), Event::CloseRelay(_)));
    held.push(world.quota.held());
    world.auto_open = true;
    let mut connected = client(&mut world, "alice", 3);
    connected.allocate(&mut world);
    world
        .server
        .client_closed(world.now, &connected.path.five_tuple);
    world.drain();
    world.expect_closed(1, CloseReason::ClientClosed);
    held.push(world.quota.held());
    // Shutdown, with a reservation open.
    client(&mut world, "bob", 4).try_allocate(&mut world, |request| {
        request.push(&EvenPort { reserve: true }).unwrap();
    });
    world.expect_opened();
    assert_eq!(world.quota.held(), 2);
    world
        .server
        .close_all(world.now, CloseReason::ServerShutdown);
    world.catch_up();
    world.expect_closed(1, CloseReason::ServerShutdown);
    assert!(matches!(world.event(), Event::CloseRelay(_)));
    held.push(world.quota.held());
    assert_eq!(held, [0; 6]);
    world.finish();
}

/// Allocates an even port, and returns the token of the next one.
fn reserve(world: &mut World) -> ReservationToken {
    let mut client = Client::new(world, "alice", REMOTE);
    let reply = client.try_allocate(world, |request| {
        request.push(&EvenPort { reserve: true }).unwrap();
    });
    world.expect_opened();
    reply.get().unwrap()
}

#[test]
fn a_claimed_reservation_is_charged_to_whoever_claims_it() {
    let mut world = World::new();
    *world.quota.per_user.lock().unwrap() = 2;
    let token = reserve(&mut world);
    // From another address, with the user's quota exhausted by the reservation itself.
    let mut two = Client::new(&mut world, "alice", "198.51.100.2:4000");
    let reply = two.try_allocate(&mut world, |request| {
        request.push(&token).unwrap();
    });
    assert_eq!(reply.code(), 0);
    world.expect_opened();
    assert_eq!(world.quota.held(), 2);
    two.refresh(&mut world, 0);
    world.expect_closed(1, CloseReason::Refreshed);
    assert_eq!(world.quota.held(), 1);
    world.finish();
}

#[test]
fn a_claim_that_its_source_may_not_make_leaves_the_reservation() {
    let mut world = World::new();
    let token = reserve(&mut world);
    *world.quota.per_source.lock().unwrap() = 0;
    let mut two = Client::new(&mut world, "alice", "198.51.100.2:4000");
    let reply = two.try_allocate(&mut world, |request| {
        request.push(&token).unwrap();
    });
    assert_eq!(reply.code(), 486);
    assert_eq!(
        (world.quota.held(), world.server.stats().reservations),
        (2, 1)
    );
    *world.quota.per_source.lock().unwrap() = usize::MAX;
    let reply = two.try_allocate(&mut world, |request| {
        request.push(&token).unwrap();
    });
    assert_eq!(reply.code(), 0);
    world.expect_opened();
    world.finish();
}
