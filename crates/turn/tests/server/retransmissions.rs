//! Requests that come again (RFC 8489 §6.3.1): the same answer, byte for byte, and nothing done twice.

use hairpin_turn::Transport;
use hairpin_turn::server::{CloseReason, DropReason, OpenError, PeerVerdict};
use stun::{
    AdditionalAddressFamily, AddressFamily, AttributeType, Builder, EvenPort, Lifetime, Method,
    RequestedAddressFamily, ReservationToken, XorPeerAddress,
};

use crate::world::{Client, Event, SECOND, World, address, path_on};

const REMOTE: &str = "198.51.100.1:4000";
const PEER: &str = "198.51.100.200:700";

fn allocate_request(client: &mut Client) -> Vec<u8> {
    client.allocate_request(|request| {
        request.push(&EvenPort { reserve: true }).unwrap();
    })
}

#[test]
fn a_retransmitted_allocate_makes_no_second_allocation() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let request = allocate_request(&mut client);
    let first = world.ask(&client.path, &request);
    assert_eq!(first.code(), 0);
    world.expect_opened();
    for _ in 0..3 {
        world.pass_s(9);
        assert_eq!(world.ask(&client.path, &request), first, "token and all");
    }
    assert_eq!(
        (
            world.server.stats().allocations_opened,
            world.server.stats().retransmissions
        ),
        (1, 3)
    );
    world.pass(13 * SECOND);
    world.events.clear();
    assert_eq!(
        world.ask(&client.path, &request).code(),
        437,
        "40 seconds are over"
    );
    world.finish();
}

#[test]
fn a_retransmitted_refresh_to_zero_is_a_success_again() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    let request = client.request(Method::REFRESH, |request| {
        request.push(&Lifetime(0)).unwrap();
    });
    let first = world.ask(&client.path, &request);
    world.expect_closed(1, CloseReason::Refreshed);
    assert_eq!(first.code(), 0);
    world.pass_s(39);
    assert_eq!(world.ask(&client.path, &request), first);
    // Even if the 5-tuple has a new allocation by now: the old request must not end it.
    client.allocate(&mut world);
    assert_eq!(world.ask(&client.path, &request), first);
    assert_eq!(world.server.stats().allocations, 1);
    world.finish();
}

#[test]
fn a_retransmitted_allocate_makes_nothing_once_its_allocation_is_deleted() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let request = client.allocate_request(|_| {});
    assert_eq!(world.ask(&client.path, &request).code(), 0);
    world.expect_opened();
    client.refresh(&mut world, 0);
    world.expect_closed(1, CloseReason::Refreshed);
    for _ in 0..39 {
        world.pass_s(1);
        let dropped = world.dropped(&client.path, &request);
        assert_eq!(dropped, DropReason::AllocationDeleted);
    }
    assert_eq!(world.server.stats().allocations_opened, 1);
    // A new request on the same 5-tuple is served.
    client.allocate(&mut world);
    world.finish();
}

#[test]
fn a_retransmitted_refresh_to_zero_of_one_family_is_a_success_again() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let reply = client.try_allocate(&mut world, |request| {
        request
            .push(&AdditionalAddressFamily(AddressFamily::V6))
            .unwrap();
    });
    assert_eq!(reply.relayed().len(), 2);
    world.expect_opened();
    let request = client.request(Method::REFRESH, |request| {
        request.push(&Lifetime(0)).unwrap();
        request
            .push(&RequestedAddressFamily(AddressFamily::V6))
            .unwrap();
    });
    let first = world.ask(&client.path, &request);
    assert_eq!(first.code(), 0);
    assert!(matches!(world.event(), Event::CloseRelay(_)));
    assert_eq!(world.ask(&client.path, &request), first);
    assert_eq!(world.server.stats().relays, 1);
    world.finish();
}

#[test]
fn every_kind_of_allocation_is_recognised_by_its_transaction() {
    let mut world = World::new();
    world.refuse_v6 = Some(OpenError::NoPort);
    let attributes: [fn(&mut Builder<'_>); 4] = [
        |_| {},
        |request| {
            request.push(&EvenPort { reserve: true }).unwrap();
        },
        |request| {
            request
                .push(&AdditionalAddressFamily(AddressFamily::V6))
                .unwrap();
        },
        |request| {
            request.push(&Lifetime(3000)).unwrap();
        },
    ];
    for (number, attributes) in attributes.into_iter().enumerate() {
        let remote = format!("203.0.113.{number}:4000");
        let mut client = Client::modern(&mut world, "alice", &remote);
        let request = client.allocate_request(attributes);
        let first = world.ask(&client.path, &request);
        assert_eq!(first.code(), 0);
        world.expect_opened();
        world.pass_s(20);
        world.events.clear();
        assert_eq!(world.ask(&client.path, &request), first);
        // The same transaction ID on another 5-tuple is another request.
        let mut other = client.clone();
        other.path.five_tuple.remote.set_port(4001);
        assert_eq!(world.ask(&other.path, &request).code(), 438);
    }
    // One that claims a reservation.
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let reply = client.try_allocate(&mut world, |request| {
        request.push(&EvenPort { reserve: true }).unwrap();
    });
    let token: ReservationToken = reply.get().unwrap();
    let mut claimant = Client::new(&mut world, "alice", "198.51.100.1:4009");
    let request = claimant.allocate_request(|request| {
        request.push(&token).unwrap();
    });
    let first = world.ask(&claimant.path, &request);
    assert_eq!(first.code(), 0);
    assert_eq!(world.ask(&claimant.path, &request), first);
    world.events.clear();
    world.finish();
}

#[test]
fn a_retransmitted_allocate_is_answered_alike_after_50_000_requests_of_others() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let request = allocate_request(&mut client);
    let first = world.ask(&client.path, &request);
    world.expect_opened();
    let mut deleter = Client::new(&mut world, "alice", "203.0.113.200:4000");
    deleter.allocate(&mut world);
    let deletion = deleter.request(Method::REFRESH, |request| {
        request.push(&Lifetime(0)).unwrap();
    });
    let deleted = world.ask(&deleter.path, &deletion);
    world.events.clear();
    let mut requests = 0;
    'others: for number in 0_u32.. {
        let [_, _, high, low] = number.to_be_bytes();
        let remote = format!("100.{high}.{low}.1:4000");
        let mut other = Client::new(&mut world, "bob", &remote);
        other.allocate(&mut world);
        for _ in 0..3 {
            assert_eq!(other.refresh(&mut world, 600).code(), 0);
            assert_eq!(other.permit(&mut world, &[PEER]), 0);
        }
        assert_eq!(other.refresh(&mut world, 0).code(), 0);
        world.events.clear();
        requests += 8;
        if requests >= 50_000 {
            break 'others;
        }
    }
    world.pass_s(30);
    world.events.clear();
    assert_eq!(world.ask(&client.path, &request), first);
    assert_eq!(
        world.ask(&deleter.path, &deletion),
        deleted,
        "nor is this forgotten"
    );
    world.finish();
}

#[test]
fn one_prefix_remembers_its_share_of_deletions_and_flushes_nobody_s() {
    let mut world = World::with(|config| config.max_deletions = 80);
    let delete = |world: &mut World, remote: &str| {
        let mut client = Client::new(world, "alice", remote);
        client.allocate(world);
        let request = client.request(Method::REFRESH, |request| {
            request.push(&Lifetime(0)).unwrap();
        });
        let reply = world.ask(&client.path, &request);
        world.events.clear();
        (client, request, reply)
    };
    let (first, request, reply) = delete(&mut world, "203.0.113.1:4000");
    let others: Vec<_> = (0..200)
        .map(|number| delete(&mut world, &format!("198.51.100.{number}:4000")))
        .collect();
    // Each deletion is two: the Refresh and the Allocate request. A prefix has an eighth of 80.
    assert_eq!(world.server.stats().deletions, 12);
    assert_eq!(world.ask(&first.path, &request), reply);
    for (number, (client, request, reply)) in others.iter().enumerate() {
        let again = world.ask(&client.path, request);
        if number < 5 {
            assert_eq!(again, *reply);
        } else {
            assert_eq!(again.code(), 437, "success for the client: RFC 8656 §8.3");
        }
    }
    for number in 0..20 {
        delete(&mut world, &format!("192.0.{number}.1:4000"));
    }
    let before: Vec<_> = (0..80)
        .map(|number| delete(&mut world, &format!("192.1.{number}.1:4000")))
        .collect();
    assert_eq!(world.server.stats().deletions, 80, "the table is full");
    assert_eq!(world.ask(&first.path, &request), reply, "and loses none");
    drop(before);
    world.finish();
}

#[test]
fn a_refused_allocate_is_evaluated_again() {
    // RFC 8656 §7.2: "For the case where the original request was unsuccessful [..] the server may choose to do nothing
    // special".
    let mut world = World::new();
    *world.quota.per_user.lock().unwrap() = 0;
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let request = allocate_request(&mut client);
    assert_eq!(world.ask(&client.path, &request).code(), 486);
    *world.quota.per_user.lock().unwrap() = 10;
    assert_eq!(world.ask(&client.path, &request).code(), 0);
    world.expect_opened();
    world.finish();
}

#[test]
fn a_retransmitted_permission_or_channel_is_processed_again() {
    // RFC 8656 §10.2, §12.2: it refreshes what it has made.
    let mut world = World::with(|config| config.channel_keeps_permission = false);
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (relay, _) = client.allocate(&mut world);
    let bind = client.request(Method::CHANNEL_BIND, |request| {
        request
            .push_raw(AttributeType::CHANNEL_NUMBER, &[0x40, 0, 0, 0])
            .unwrap();
        request.push(&XorPeerAddress(address(PEER))).unwrap();
    });
    let first = world.ask(&client.path, &bind);
    world.pass_s(30);
    assert_eq!(world.ask(&client.path, &bind), first);
    world.pass(300 * SECOND - 1);
    assert!(matches!(
        world.peer(relay, PEER, b"x"),
        PeerVerdict::ChannelData { .. }
    ));
    world.pass(1);
    assert!(matches!(
        world.peer(relay, PEER, b"x"),
        PeerVerdict::Drop { .. }
    ));
    world.finish();
}

#[test]
fn the_answer_is_the_same_though_the_nonce_has_grown_stale() {
    let mut world = World::with(|config| config.nonce_lifetime_s = 10);
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let request = allocate_request(&mut client);
    let first = world.ask(&client.path, &request);
    world.expect_opened();
    world.pass_s(20);
    assert_eq!(world.ask(&client.path, &request), first);
    assert_eq!(client.refresh(&mut world, 600).code(), 438);
    world.finish();
}

#[test]
fn a_transaction_belongs_to_its_5_tuple() {
    let mut world = World::new();
    let mut one = Client::new(&mut world, "alice", REMOTE);
    let mut two = Client::new(&mut world, "alice", "198.51.100.1:4001");
    two.next_id = one.next_id;
    one.allocate(&mut world);
    two.allocate(&mut world);
    assert_eq!(world.server.stats().allocations, 2);
    world.finish();
}

#[test]
fn a_transaction_id_used_twice_is_no_retransmission_of_another_method() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let id = client.next_id;
    client.allocate(&mut world);
    client.next_id = id;
    let refresh = client.request(Method::REFRESH, |request| {
        request.push(&Lifetime(0)).unwrap();
    });
    let first = world.ask(&client.path, &refresh);
    world.expect_closed(1, CloseReason::Refreshed);
    assert_eq!((first.method(), first.code()), (Method::REFRESH, 0));
    assert_eq!(world.ask(&client.path, &refresh), first);
    world.finish();
}

#[test]
fn nothing_is_kept_for_streams() {
    let mut world = World::new();
    let mut delete = |transport, deletions| {
        let mut client = Client::on(&mut world, "alice", path_on(transport, REMOTE));
        client.allocate(&mut world);
        assert_eq!(client.refresh(&mut world, 0).code(), 0);
        world.events.clear();
        assert_eq!(world.server.stats().deletions, deletions, "{transport:?}");
    };
    delete(Transport::Tcp, 0);
    // The Refresh and the Allocate request.
    delete(Transport::Dtls, 2);
    world.finish();
}
