//! A TCP allocation (RFC 6062) from end to end: the client's control connection, its data connections, and the server.

use std::net::SocketAddr;
use std::sync::Arc;

use stun::ConnectionId;
use stun::nonce::NonceKeys;
use turn::client::{
    AllocateOptions, CallError, Client, ClientConfig, Event, Received, RequestedRelays,
};
use turn::server::credentials::StaticCredentials;
use turn::server::{AllowEveryPeer, Config, ConnectError, OpenedRelay, Output, Server};
use turn::{
    ClientPath, ConnectionKey, FiveTuple, ListenerKey, Mono, Now, RelayKey, Run, Transport,
};

use crate::pair::{PASSWORD, REALM, USER};

/// A server whose embedder opens a relay at this address, and dials as a test says.
struct World {
    server: Server,
    now: Now,
    relay: Option<RelayKey>,
    dialled: Vec<(ConnectionKey, SocketAddr)>,
    bound: Vec<(ConnectionKey, ClientPath)>,
    closed: Vec<ConnectionKey>,
}

/// One of the client's connections.
struct Connection {
    client: Client,
    path: ClientPath,
    events: Vec<Event>,
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn relayed() -> SocketAddr {
    address("203.0.113.1:50000")
}

fn path(port: u16) -> ClientPath {
    ClientPath {
        five_tuple: FiveTuple {
            transport: Transport::Tcp,
            local: address("192.0.2.1:3478"),
            remote: SocketAddr::new(address("198.51.100.1:0").ip(), port),
        },
        listener: ListenerKey(u32::from(port)),
    }
}

fn config() -> ClientConfig {
    let mut config = ClientConfig::with_credentials(USER, PASSWORD);
    config.transport = Transport::Tcp;
    config
}

impl World {
    fn new() -> World {
        let mut users = StaticCredentials::new(REALM);
        users.add_password(USER, PASSWORD).expect("plain ASCII");
        let keys = NonceKeys::new(&[1; 32]);
        let mut config = Config::new(REALM, keys, Arc::new(users), Arc::new(AllowEveryPeer));
        config.tcp_relay = true;
        World {
            server: Server::new(config.validate().expect("valid"), 0, [9; 32]),
            now: Now {
                mono: Mono(5_000_000_000),
                unix_s: 1_700_000_000,
            },
            relay: None,
            dialled: Vec::new(),
            bound: Vec::new(),
            closed: Vec::new(),
        }
    }

    /// Carries messages between this connection and the server until both are silent.
    fn exchange_all(&mut self, connection: &mut Connection) {
        loop {
            while let Some(request) = connection.client.poll_transmit().map(<[u8]>::to_vec) {
                let run = Run::single(&request);
                let _ = self.server.handle_client(self.now, &connection.path, run);
            }
            if !self.outputs(connection) {
                break;
            }
        }
        let events = std::iter::from_fn(|| connection.client.poll_event());
        connection.events.extend(events);
    }

    /// Returns whether there were any.
    fn outputs(&mut self, connection: &mut Connection) -> bool {
        let mut requests = Vec::new();
        let mut any = false;
        while let Some(output) = self.server.poll_output() {
            any = true;
            match output {
                Output::Send { path, bytes } => {
                    assert_eq!(path, connection.path);
                    let received = connection.client.handle_input(self.now, bytes);
                    assert_eq!(received, Received::Handled);
                }
                Output::OpenRelays {
                    request, relays, ..
                } => {
                    self.relay = Some(relays[0].key);
                    requests.push(request);
                }
                Output::Connect {
                    connection, peer, ..
                } => self.dialled.push((connection, peer)),
                Output::BindConnection { connection, path } => self.bound.push((connection, path)),
                Output::CloseConnection { connection } => self.closed.push(connection),
                _ => {}
            }
        }
        for request in requests {
            let opened = [Ok(OpenedRelay::at(relayed()))];
            assert!(self.server.relays_opened(self.now, request, &opened));
        }
        any
    }

    fn connected(&mut self, works: bool) -> ConnectionKey {
        let (connection, _) = self.dialled.pop().expect("dialled");
        let result = works.then_some(()).ok_or(ConnectError);
        assert!(self.server.connected(self.now, connection, result));
        connection
    }
}

impl Connection {
    fn new(client: Client, port: u16) -> Connection {
        Connection {
            client,
            path: path(port),
            events: Vec::new(),
        }
    }

    fn event(&mut self) -> Event {
        assert_eq!(self.events.len(), 1, "{:?}", self.events);
        self.events.remove(0)
    }
}

/// A client with a TCP allocation.
fn allocated(world: &mut World) -> Connection {
    let client = Client::new(Arc::new(config()), [7; 32]);
    let mut control = Connection::new(client, 4000);
    let options = AllocateOptions {
        relay: RequestedRelays::Tcp { family: None },
        dont_fragment: true,
        ..AllocateOptions::default()
    };
    let peer = address("198.51.100.200:700");
    let early = control.client.connect_peer(world.now, peer);
    assert_eq!(early, Err(CallError::NoAllocation));
    control.client.allocate(world.now, options).expect("once");
    world.exchange_all(&mut control);
    match control.event() {
        Event::Allocated(allocated) => assert_eq!(allocated.relayed, relayed()),
        other => panic!("not allocated: {other:?}"),
    }
    control
}

/// Binds a data connection of its own.
fn bind(world: &mut World, control: &Connection, port: u16, id: ConnectionId) -> Connection {
    let mut data = Connection::new(control.client.data_client([8; 32]), port);
    data.client.bind_connection(world.now, id);
    // One request: the nonce of the control connection serves this one, too.
    let request = data.client.poll_transmit().map(<[u8]>::to_vec);
    let request = request.expect("a request");
    let run = Run::single(&request);
    let _ = world.server.handle_client(world.now, &data.path, run);
    world.exchange_all(&mut data);
    data
}

#[test]
fn a_client_connects_to_a_peer_and_binds_a_data_connection_rfc6062_4_3() {
    let mut world = World::new();
    let mut control = allocated(&mut world);
    let peer = address("198.51.100.200:700");
    let now = world.now;
    control.client.connect_peer(now, peer).expect("allocated");
    let again = control.client.connect_peer(now, peer);
    assert_eq!(again, Err(CallError::Connecting));
    world.exchange_all(&mut control);
    let key = world.connected(true);
    world.exchange_all(&mut control);
    let id = match control.event() {
        Event::Connected { peer: to, id, .. } if to == peer => id,
        other => panic!("not connected: {other:?}"),
    };
    let mut data = bind(&mut world, &control, 4001, id);
    assert!(matches!(data.event(), Event::ConnectionBound { id: bound, .. } if bound == id));
    assert_eq!(world.bound, [(key, path(4001))]);
    let mut late = bind(&mut world, &control, 4002, id);
    match late.event() {
        Event::ConnectionBindFailed { id: failed, error } => {
            assert_eq!((failed, error.code()), (id, Some(400)));
        }
        other => panic!("bound twice: {other:?}"),
    }
    control.client.connect_peer(now, peer).expect("allocated");
    world.exchange_all(&mut control);
    match control.event() {
        Event::ConnectFailed { error, .. } => assert_eq!(error.code(), Some(446)),
        other => panic!("connected twice: {other:?}"),
    }
    control.client.release(world.now, None).expect("allocated");
    world.exchange_all(&mut control);
    assert!(matches!(control.event(), Event::Released { .. }));
    assert_eq!(world.closed, [key]);
}

#[test]
fn a_peer_that_cannot_be_reached_is_reported() {
    let mut world = World::new();
    let mut control = allocated(&mut world);
    let peer = address("198.51.100.200:700");
    for _ in 0..2 {
        let now = world.now;
        control.client.connect_peer(now, peer).expect("allocated");
        world.exchange_all(&mut control);
        world.connected(false);
        world.exchange_all(&mut control);
        match control.event() {
            Event::ConnectFailed { peer: to, error } => {
                assert_eq!((to, error.code()), (peer, Some(447)));
            }
            other => panic!("connected: {other:?}"),
        }
    }
}

#[test]
fn a_peer_that_connects_is_reported_with_its_connection_rfc6062_4_4() {
    let mut world = World::new();
    let mut control = allocated(&mut world);
    let peer = address("198.51.100.200:700");
    let now = world.now;
    control.client.permit(now, &[peer.ip()]).expect("allocated");
    world.exchange_all(&mut control);
    assert!(matches!(control.event(), Event::Permitted { .. }));
    let relay = world.relay.expect("open");
    let key = world.server.peer_connected(world.now, relay, peer);
    world.exchange_all(&mut control);
    let id = match control.event() {
        Event::PeerConnected { peer: from, id } if from == peer => id,
        other => panic!("not told: {other:?}"),
    };
    let mut data = bind(&mut world, &control, 4001, id);
    assert!(matches!(data.event(), Event::ConnectionBound { .. }));
    assert_eq!(world.bound, [(key.expect("admitted"), path(4001))]);
}

#[test]
fn an_allocation_of_datagrams_connects_to_nobody() {
    let mut world = World::new();
    let client = Client::new(Arc::new(config()), [7; 32]);
    let mut control = Connection::new(client, 4000);
    let options = AllocateOptions::default();
    control.client.allocate(world.now, options).expect("once");
    world.exchange_all(&mut control);
    let peer = address("198.51.100.200:700");
    let connected = control.client.connect_peer(world.now, peer);
    assert_eq!(connected, Err(CallError::NotTcp));
}
