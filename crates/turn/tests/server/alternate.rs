//! Clients that go to another server: 300 (RFC 8489 §10).

use std::net::SocketAddr;
use std::sync::Arc;

use hairpin_turn::Transport;
use hairpin_turn::server::{Alternate, Alternates, ClientIdentity};
use stun::{
    AlternateDomain, AlternateServer, Decode, EvenPort, Message, RequestedTransport,
    ReservationToken,
};

use crate::world::{Client, Reply, World, address, path};

const REMOTE: &str = "198.51.100.1:4000";
const OTHER: &str = "192.0.2.7:3478";
const OTHER_V6: &str = "[2001:db8::7]:3478";

/// Sends everybody but bob away.
#[derive(Debug)]
struct Elsewhere {
    both_families: bool,
}

impl Alternates for Elsewhere {
    fn alternate(&self, client: &ClientIdentity<'_>, _: u32) -> Option<Alternate> {
        let (v4, v6) = (address(OTHER), address(OTHER_V6));
        let is_v4 = client.five_tuple.remote.is_ipv4();
        let (server, other) = if is_v4 { (v4, v6) } else { (v6, v4) };
        (client.user != "bob").then(|| Alternate {
            server,
            other_family: self.both_families.then_some(other),
            domain: Some(Arc::from("b.example.org")),
        })
    }
}

fn world(both_families: bool) -> World {
    World::with(|config| config.alternates = Some(Arc::new(Elsewhere { both_families })))
}

/// The addresses of a 300 response, in their order.
fn servers(reply: &Reply) -> Vec<SocketAddr> {
    let message = Message::parse(&reply.0).unwrap();
    let id = message.transaction_id();
    let found = message
        .attributes()
        .filter(|found| found.attribute_type == AlternateServer::TYPE);
    found
        .map(|found| AlternateServer::decode(found.value, &id).unwrap().0)
        .collect()
}

#[test]
fn an_allocate_request_is_sent_elsewhere_with_an_authenticated_response() {
    let mut world = world(true);
    let mut alice = Client::new(&mut world, "alice", REMOTE);
    let reply = alice.try_allocate(&mut world, |_| {});
    assert_eq!(reply.code(), 300);
    assert_eq!(servers(&reply), [address(OTHER), address(OTHER_V6)]);
    assert!(reply.is_signed_with(alice.key()));
    assert!(reply.get::<AlternateDomain<'_>>().is_none(), "plain UDP");
    // The client's family comes first.
    let mut v6 = Client::new(&mut world, "alice", "[2001:db8::100]:4000");
    let reply = v6.try_allocate(&mut world, |_| {});
    assert_eq!(servers(&reply), [address(OTHER_V6), address(OTHER)]);
    // Nothing was acquired, and who may stay does.
    Client::new(&mut world, "bob", "198.51.100.2:4000").allocate(&mut world);
    assert_eq!(world.server.stats().errors(stun::Method::ALLOCATE, 300), 2);
    world.finish();
}

#[test]
fn over_tls_and_dtls_the_response_names_the_certificate() {
    for transport in [
        Transport::Udp,
        Transport::Tcp,
        Transport::Tls,
        Transport::Dtls,
    ] {
        let mut world = world(false);
        let mut path = path(REMOTE);
        path.five_tuple.transport = transport;
        let mut alice = Client::on(&mut world, "alice", path);
        let reply = alice.try_allocate(&mut world, |_| {});
        assert_eq!((reply.code(), servers(&reply).len()), (300, 1));
        let has_certificate = matches!(transport, Transport::Tls | Transport::Dtls);
        let domain = reply.get::<AlternateDomain<'_>>();
        let expected = has_certificate.then_some(AlternateDomain("b.example.org"));
        assert_eq!(domain, expected, "{transport:?}");
        world.finish();
    }
}

#[test]
fn unauthenticated_and_bad_requests_and_reservations_are_not_redirected() {
    let mut world = World::new();
    let mut alice = Client::new(&mut world, "alice", REMOTE);
    let reply = alice.try_allocate(&mut world, |request| {
        request.push(&EvenPort { reserve: true }).unwrap();
    });
    world.expect_opened();
    let token = reply.get::<ReservationToken>().unwrap();
    world.reconfigure(|config| {
        config.alternates = Some(Arc::new(Elsewhere {
            both_families: false,
        }));
    });
    // RFC 8489 §12: a Binding request is not sent elsewhere, nor is one of RFC 5780, whose response names other
    // addresses.
    let stranger = path("198.51.100.9:3");
    let binding = crate::world::bare(stun::Method::BINDING);
    assert_eq!(world.ask(&stranger, &binding).code(), 0);
    // 401 and 400 come first.
    let mut eve = Client::new(&mut world, "eve", "198.51.100.9:1");
    assert_eq!(eve.try_allocate(&mut world, |_| {}).code(), 401);
    let mut other = Client::new(&mut world, "alice", "198.51.100.9:2");
    let reply = other.ask(&mut world, stun::Method::ALLOCATE, |_| {});
    assert_eq!(reply.code(), 400, "no REQUESTED-TRANSPORT");
    let reply = other.ask(&mut world, stun::Method::ALLOCATE, |request| {
        request.push(&RequestedTransport(77)).unwrap();
    });
    assert_eq!(reply.code(), 442);
    // Whoever has an allocation keeps it, and its reservation can be claimed here.
    assert_eq!(alice.refresh(&mut world, 600).granted(), 600);
    assert_eq!(alice.try_allocate(&mut world, |_| {}).code(), 437);
    let reply = other.try_allocate(&mut world, |request| {
        request.push(&token).unwrap();
    });
    assert_eq!(reply.code(), 0);
    world.expect_opened();
    world.finish();
}
