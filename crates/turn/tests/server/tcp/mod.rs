//! TCP allocations (RFC 6062): the requests, the connections and their timers.

mod connections;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hairpin_turn::server::{
    ClientIdentity, ClientVerdict, CloseReason, ConnectError, DropReason, OpenError, PeerClass,
    PeerPolicy, RealmConfig, RelayTransport,
};
use hairpin_turn::{ClientPath, ConnectionKey, RelayKey, Transport};
use stun::{
    AddressFamily, AttributeType, Builder, Class, ConnectionId, DontFragment, EvenPort, Method,
    Origin, RequestedAddressFamily, RequestedTransport, ReservationToken, XorPeerAddress,
};

use crate::world::{Client, Event, Reply, World, address, drop_of, path_on};

const REMOTE: &str = "198.51.100.1:4000";
const DATA: &str = "198.51.100.1:4001";
const PEER: &str = "198.51.100.200:700";
const OTHER_PEER: &str = "198.51.100.200:701";
const FORBIDDEN: &str = "10.0.0.1:700";

type Attributes = fn(&mut Builder<'_>);

fn world() -> World {
    World::with(|config| config.tcp_relay = true)
}

fn client(world: &mut World, name: &str, remote: &str) -> Client {
    Client::on(world, name, path_on(Transport::Tcp, remote))
}

fn ask_for_tcp(client: &mut Client, world: &mut World, attributes: Attributes) -> Reply {
    client.ask(world, Method::ALLOCATE, |request| {
        request.push(&RequestedTransport::TCP).unwrap();
        attributes(request);
    })
}

/// A client with a TCP allocation.
fn allocated(world: &mut World) -> (Client, RelayKey) {
    let mut client = client(world, "alice", REMOTE);
    let reply = ask_for_tcp(&mut client, world, |_| {});
    assert_eq!(reply.code(), 0);
    world.expect_opened();
    let relay = world.relay_at(reply.relayed()[0]);
    (client, relay)
}

fn connect_request(client: &mut Client, peer: &str) -> Vec<u8> {
    client.request(Method::CONNECT, |request| {
        request.push(&XorPeerAddress(address(peer))).unwrap();
    })
}

/// Begins to connect. The embedder dials.
fn dial(client: &mut Client, world: &mut World, peer: &str) -> ConnectionKey {
    let request = connect_request(client, peer);
    assert_eq!(
        world.client(&client.path, &request),
        ClientVerdict::Handled { covers: 1 }
    );
    match world.event() {
        Event::Connect(connection, _, dialled) => {
            assert_eq!(dialled, address(peer));
            connection
        }
        other => panic!("not dialled: {other:?}"),
    }
}

/// What the embedder says, and the response that follows.
fn answer(world: &mut World, client: &Client, connection: ConnectionKey, works: bool) -> Reply {
    let result = works.then_some(()).ok_or(ConnectError);
    assert!(world.server.connected(world.now, connection, result));
    world.drain();
    world.reply(&client.path)
}

fn connect(client: &mut Client, world: &mut World, peer: &str) -> (ConnectionKey, u32) {
    let connection = dial(client, world, peer);
    let reply = answer(world, client, connection, true);
    assert_eq!(reply.code(), 0);
    assert!(reply.is_signed_with(client.key()));
    (connection, reply.get::<ConnectionId>().unwrap().0)
}

fn refused_connect(client: &mut Client, world: &mut World, peer: &str) -> u16 {
    let request = connect_request(client, peer);
    world.ask(&client.path, &request).code()
}

fn ask_to_bind(client: &mut Client, world: &mut World, id: u32) -> Reply {
    client.ask(world, Method::CONNECTION_BIND, |request| {
        request.push(&ConnectionId(id)).unwrap();
    })
}

/// Binds a data connection of its own to a connection.
fn bind(world: &mut World, connection: ConnectionKey, id: u32) -> ClientPath {
    let mut data = client(world, "alice", DATA);
    let reply = ask_to_bind(&mut data, world, id);
    assert_eq!((reply.code(), reply.method()), (0, Method::CONNECTION_BIND));
    assert!(reply.is_signed_with(data.key()));
    assert_eq!(
        world.event(),
        Event::BindConnection(connection, data.path),
        "after the response"
    );
    data.path
}

/// ConnectionBind requests that were counted.
fn binds(world: &World) -> u64 {
    let requests = world.server.stats().requests(Method::CONNECTION_BIND);
    requests.packets
}

/// Takes the indication that tells of a connection of a peer.
fn attempt(world: &mut World, client: &Client, peer: &str) -> u32 {
    let Event::Sent { path, bytes } = world.event() else {
        panic!("no indication")
    };
    assert_eq!(path, client.path);
    let indication = Reply(bytes);
    assert_eq!(
        (indication.method(), indication.message().class()),
        (Method::CONNECTION_ATTEMPT, Class::Indication)
    );
    let from = indication.get::<XorPeerAddress>().unwrap();
    assert_eq!(from.0, address(peer));
    indication.get::<ConnectionId>().unwrap().0
}

fn close(world: &mut World, connections: &[ConnectionKey]) {
    for connection in connections {
        assert_eq!(world.event(), Event::CloseConnection(*connection));
    }
    world.expect_closed(1, CloseReason::Refreshed);
    assert_eq!(world.events.len(), 0);
}

#[test]
fn tcp_is_442_unless_configured_rfc6062_5_1() {
    let mut world = World::new();
    let mut client = client(&mut world, "alice", REMOTE);
    assert_eq!(ask_for_tcp(&mut client, &mut world, |_| {}).code(), 442);
    for method in [Method::CONNECT, Method::CONNECTION_BIND] {
        let request = client.request(method, |_| {});
        let reason = world.dropped(&client.path, &request);
        assert_eq!(reason, DropReason::UnsupportedMethod);
    }
    world.finish();
}

#[test]
fn a_tcp_allocation_has_a_tcp_relay_rfc6062_5_1() {
    let mut world = world();
    let mut client = client(&mut world, "alice", REMOTE);
    world.auto_open = false;
    let request = client.request(Method::ALLOCATE, |request| {
        request.push(&RequestedTransport::TCP).unwrap();
    });
    world.client(&client.path, &request);
    let Event::OpenRelays {
        request, relays, ..
    } = world.event()
    else {
        panic!("no relay wanted")
    };
    assert_eq!(relays.len(), 1);
    assert_eq!(relays[0].transport, RelayTransport::Tcp);
    let results = world.open(&relays);
    world.server.relays_opened(world.now, request, &results);
    world.drain();
    let reply = world.reply(&client.path);
    assert_eq!((reply.code(), reply.relayed().len()), (0, 1));
    assert_eq!(reply.get::<ReservationToken>(), None);
    world.expect_opened();
    client.refresh(&mut world, 0);
    world.expect_closed(1, CloseReason::Refreshed);
    world.finish();
}

#[test]
fn unsupported_attributes_of_tcp_allocations_get_400_rfc6062_5_1() {
    let wrong: [Attributes; 4] = [
        |request| {
            request.push(&DontFragment).unwrap();
        },
        |request| {
            request.push(&EvenPort { reserve: false }).unwrap();
        },
        |request| {
            request.push(&EvenPort { reserve: true }).unwrap();
        },
        |request| {
            request.push(&ReservationToken([7; 8])).unwrap();
        },
    ];
    for can_set_df in [true, false] {
        let mut world = World::with(|config| {
            config.tcp_relay = true;
            config.dont_fragment = can_set_df;
        });
        let mut client = client(&mut world, "alice", REMOTE);
        for attributes in wrong {
            assert_eq!(ask_for_tcp(&mut client, &mut world, attributes).code(), 400);
        }
        world.finish();
    }
}

#[test]
fn a_client_without_a_connection_gets_400_rfc6062_5_1() {
    let mut world = world();
    for transport in [Transport::Udp, Transport::Dtls] {
        let mut client = Client::on(&mut world, "alice", path_on(transport, REMOTE));
        assert_eq!(ask_for_tcp(&mut client, &mut world, |_| {}).code(), 400);
        assert_eq!(ask_to_bind(&mut client, &mut world, 1).code(), 400);
    }
    let mut client = Client::on(&mut world, "alice", path_on(Transport::Tls, REMOTE));
    assert_eq!(ask_for_tcp(&mut client, &mut world, |_| {}).code(), 0);
    world.expect_opened();
    client.refresh(&mut world, 0);
    world.expect_closed(1, CloseReason::Refreshed);
    world.finish();
}

#[test]
fn tcp_relays_have_families() {
    let mut world = World::with(|config| {
        config.tcp_relay = true;
        config.relay_v6 = false;
    });
    let mut client = client(&mut world, "alice", REMOTE);
    let v6: Attributes = |request| {
        request
            .push(&RequestedAddressFamily(AddressFamily::V6))
            .unwrap();
    };
    assert_eq!(ask_for_tcp(&mut client, &mut world, v6).code(), 440);
    world.reconfigure(|config| config.relay_v6 = true);
    world.refuse_v6 = Some(OpenError::NoPort);
    assert_eq!(ask_for_tcp(&mut client, &mut world, v6).code(), 508);
    world.refuse_v6 = None;
    let both: Attributes = |request| {
        request
            .push_raw(AttributeType::ADDITIONAL_ADDRESS_FAMILY, &[2, 0, 0, 0])
            .unwrap();
    };
    let reply = ask_for_tcp(&mut client, &mut world, both);
    assert_eq!((reply.code(), reply.relayed().len()), (0, 2));
    world.expect_opened();
    let (_, first) = connect(&mut client, &mut world, PEER);
    let (_, second) = connect(&mut client, &mut world, "[2001:db8:2::1]:700");
    assert_ne!(first, second);
    client.refresh(&mut world, 0);
    for event in ["connection", "relay", "connection", "relay"] {
        let found = world.event();
        let is_it = match event {
            "relay" => matches!(found, Event::CloseRelay(_)),
            _ => matches!(found, Event::CloseConnection(_)),
        };
        assert!(is_it, "{event}: {found:?}");
    }
    world.expect_closed(0, CloseReason::Refreshed);
    world.finish();
}
