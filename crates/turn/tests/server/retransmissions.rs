//! Requests that come again (RFC 8489 §6.3.1): the same answer, byte for byte, and nothing done twice.

use hairpin_turn::Transport;
use hairpin_turn::server::{CloseReason, PeerVerdict};
use stun::{AttributeType, EvenPort, Lifetime, Method, XorPeerAddress};

use crate::world::{Client, SECOND, World, address, path_on};

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
fn a_failure_stays_a_failure() {
    let mut world = World::new();
    *world.quota.per_user.lock().unwrap() = 0;
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let request = allocate_request(&mut client);
    let first = world.ask(&client.path, &request);
    assert_eq!(first.code(), 486);
    *world.quota.per_user.lock().unwrap() = 10;
    assert_eq!(
        world.ask(&client.path, &request),
        first,
        "the client has seen the failure"
    );
    assert_eq!(world.server.stats().allocations, 0);
    client.allocate(&mut world);
    world.finish();
}

#[test]
fn a_retransmitted_permission_or_channel_is_not_refreshed() {
    let mut world = World::new();
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
    world.pass(270 * SECOND - 1);
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
    client.allocate(&mut world);
    let request = client.request(Method::REFRESH, |_| {});
    let first = world.ask(&client.path, &request);
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
fn nothing_is_kept_for_challenges_and_streams() {
    let mut world = World::new();
    let mut stranger = Client::new(&mut world, "alice", REMOTE);
    stranger.signing.keys.clear();
    stranger.refresh(&mut world, 600);
    stranger.refresh(&mut world, 600);
    assert_eq!(world.server.stats().answers, 0);
    let mut on_tcp = Client::on(&mut world, "alice", path_on(Transport::Tcp, REMOTE));
    on_tcp.allocate(&mut world);
    assert_eq!(
        world.server.stats().answers,
        0,
        "nothing is retransmitted over TCP"
    );
    let mut on_dtls = Client::on(&mut world, "alice", path_on(Transport::Dtls, REMOTE));
    on_dtls.allocate(&mut world);
    assert_eq!(world.server.stats().answers, 1);
    world.finish();
}

#[test]
fn the_number_of_answers_is_bounded_and_the_oldest_give_way() {
    let mut world = World::with(|config| config.max_answers = 4);
    let mut client = Client::new(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    let requests: Vec<Vec<u8>> = (0..6)
        .map(|_| client.request(Method::REFRESH, |_| {}))
        .collect();
    for request in &requests {
        world.ask(&client.path, request);
    }
    assert_eq!(world.server.stats().answers, 4);
    let before = world.server.stats().retransmissions;
    for request in requests[2..].iter().rev() {
        world.ask(&client.path, request);
    }
    assert_eq!(world.server.stats().retransmissions, before + 4);
    world.ask(&client.path, &requests[0]);
    assert_eq!(
        world.server.stats().retransmissions,
        before + 4,
        "forgotten, and done again"
    );
    world.finish();
}
