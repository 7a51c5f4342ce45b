//! Error responses for sources that have proven nothing: so many per second, whatever else happens.

use std::net::{Ipv4Addr, SocketAddr};

use hairpin_turn::server::{ClientVerdict, DropReason};
use hairpin_turn::{ClientPath, Transport};
use stun::{AttributeType, Builder, Class, Method, RequestedTransport, TransactionId};

use crate::world::{Client, World, bare, path, path_on};

const SECOND: u64 = 1_000_000_000;

fn world(budget: u32) -> World {
    World::with(|config| config.unverified_responses = budget)
}

fn is_answered(world: &mut World, path: &ClientPath, request: &[u8]) -> bool {
    let is_handled = world.client(path, request) == ClientVerdict::Handled { covers: 1 };
    if is_handled {
        world.reply(path);
    }
    is_handled
}

/// How many of so many Allocate requests without credentials are answered.
fn answered(world: &mut World, path: &ClientPath, requests: usize) -> usize {
    let request = bare(Method::ALLOCATE);
    let sent = (0..requests).filter(|_| is_answered(world, path, &request));
    sent.count()
}

#[test]
fn beyond_the_budget_of_a_source_nothing_is_answered_until_the_next_second() {
    let mut world = world(5);
    let one = path("198.51.100.1:4000");
    assert_eq!(answered(&mut world, &one, 20), 5);
    let request = bare(Method::ALLOCATE);
    let other_port = path("198.51.100.1:4001");
    let reason = world.dropped(&other_port, &request);
    assert_eq!(reason, DropReason::UnverifiedOverLimit);
    assert_eq!(answered(&mut world, &path("198.51.100.2:4000"), 20), 5);
    world.pass(SECOND);
    assert_eq!(answered(&mut world, &one, 20), 5);
    world.finish();
}

#[test]
fn streams_dtls_and_loopback_have_no_such_budget() {
    let mut world = world(5);
    for transport in [Transport::Tcp, Transport::Tls, Transport::Dtls] {
        let path = path_on(transport, "198.51.100.1:4000");
        assert_eq!(answered(&mut world, &path, 20), 20);
    }
    assert_eq!(answered(&mut world, &path("127.0.0.1:4000"), 20), 20);
    world.finish();
}

#[test]
fn authenticated_requests_do_not_use_up_the_limit() {
    let mut world = world(5);
    for port in 1..100 {
        let remote = format!("198.51.100.1:{port}");
        let mut client = Client::new(&mut world, "alice", &remote);
        client.allocate(&mut world);
    }
    world.finish();
}

#[test]
fn every_error_response_counts_and_binding_responses_do_not() {
    let mut world = world(3);
    let at = path("198.51.100.1:4000");
    // 438 for a nonce of nobody, 400 for a missing one.
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    client.signing.nonce = Some(vec![7; 40]);
    assert_eq!(client.try_allocate(&mut world, |_| {}).code(), 438);
    client.signing.nonce = None;
    assert_eq!(client.try_allocate(&mut world, |_| {}).code(), 400);
    let request = client.allocate_request(|_| {});
    let reason = world.dropped(&at, &request);
    assert_eq!(reason, DropReason::UnverifiedOverLimit);
    for _ in 0..20 {
        assert_eq!(world.ask(&at, &bare(Method::BINDING)).code(), 0);
    }
    let mut buffer = [0; 64];
    let id = TransactionId([1; 12]);
    let mut odd = Builder::new(&mut buffer, Class::Request, Method::BINDING, &id).unwrap();
    odd.push_raw(AttributeType(0x7777), &[]).unwrap();
    assert_eq!(world.ask(&at, odd.finish()).code(), 420);
    world.failures.clear();
    world.finish();
}

/// Of a million sources that somebody else writes into requests, none silences an honest client.
#[test]
fn honest_clients_allocate_in_a_flood_from_a_million_sources() {
    let mut world = world(10);
    let mut request = [0; 64];
    let id = TransactionId([2; 12]);
    let mut made = Builder::new(&mut request, Class::Request, Method::ALLOCATE, &id).unwrap();
    made.push(&RequestedTransport::UDP).unwrap();
    let flood = made.finish().to_vec();
    let mut honest = 0;
    for number in 0..1_000_000_u32 {
        let source = SocketAddr::from((Ipv4Addr::from_bits(0x0a00_0000 + number), 4000));
        let from = ClientPath::udp(path("198.51.100.1:1").five_tuple.local, source);
        is_answered(&mut world, &from, &flood);
        // 200,000 requests per second.
        world.pass(5_000);
        if number % 10_000 == 9_999 {
            let remote = format!("198.51.100.{}:4000", number / 10_000);
            let is_served = is_answered(&mut world, &path(&remote), &bare(Method::ALLOCATE));
            honest += usize::from(is_served);
        }
    }
    assert!(honest >= 95, "{honest} of 100");
    world.finish();
}
