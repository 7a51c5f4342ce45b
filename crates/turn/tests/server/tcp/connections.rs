//! Connections of TCP allocations (RFC 6062 §4.3, §5.2 to §5.5), their timers and their bytes.

use super::*;
use crate::world::SECOND;
use hairpin_turn::server::{RelayDirection, SessionFilter};

#[test]
fn a_connect_request_dials_and_its_connection_is_bound_rfc6062_5_2() {
    let mut world = world();
    let (mut client, relay) = allocated(&mut world);
    let request = connect_request(&mut client, PEER);
    world.client(&client.path, &request);
    let event = world.event();
    let Event::Connect(connection, from, _) = event else {
        panic!("not dialled: {event:?}")
    };
    assert_eq!(from, relay);
    assert_eq!(world.events.len(), 0, "no response before the connection");
    let reply = answer(&mut world, &client, connection, true);
    let id = reply.get::<ConnectionId>().unwrap().0;
    assert_eq!(id.to_be_bytes()[0], 7, "the worker's number");
    assert_eq!(world.server.stats().peer_connections, 1);
    bind(&mut world, connection, id);
    assert_eq!(world.server.stats().data_connections, 1);
    client.refresh(&mut world, 0);
    close(&mut world, &[connection]);
    world.finish();
}

/// What can be wrong with a Connect request, in the order of its checks.
#[test]
fn connect_requests_are_checked_in_order_rfc6062_5_2() {
    let mut world = World::with(|config| {
        config.tcp_relay = true;
        config.max_peer_connections = 2;
    });
    let mut stranger = client(&mut world, "alice", DATA);
    assert_eq!(refused_connect(&mut stranger, &mut world, PEER), 437);
    let (mut client, _) = allocated(&mut world);
    client.signing =
        crate::world::Signing::legacy("bob", "bob's password", &nonce(&client.signing));
    assert_eq!(refused_connect(&mut client, &mut world, PEER), 441);
    world.failures.clear();
    client.signing =
        crate::world::Signing::legacy("alice", "alice's password", &nonce(&client.signing));
    let reply = client.ask(&mut world, Method::CONNECT, |_| {});
    assert_eq!(reply.code(), 400);
    let reply = client.ask(&mut world, Method::CONNECT, |request| {
        request
            .push_raw(AttributeType::XOR_PEER_ADDRESS, &[0, 1, 2, 3])
            .unwrap();
    });
    assert_eq!(reply.code(), 400);
    let (first, _) = connect(&mut client, &mut world, PEER);
    for (peer, code) in [
        ("[2001:db8:2::1]:700", 443),
        (PEER, 446),
        (FORBIDDEN, 403),
        ("198.51.100.200:25", 403),
        ("198.51.100.200:0", 403),
    ] {
        assert_eq!(
            refused_connect(&mut client, &mut world, peer),
            code,
            "{peer}"
        );
    }
    let second = dial(&mut client, &mut world, OTHER_PEER);
    for (peer, code) in [
        (OTHER_PEER, 446),
        (FORBIDDEN, 403),
        ("198.51.100.200:702", 508),
    ] {
        assert_eq!(
            refused_connect(&mut client, &mut world, peer),
            code,
            "{peer}"
        );
    }
    assert_eq!(answer(&mut world, &client, second, false).code(), 447);
    client.refresh(&mut world, 0);
    close(&mut world, &[first]);
    world.finish();
}

fn nonce(signing: &crate::world::Signing) -> Vec<u8> {
    signing.nonce.clone().unwrap()
}

#[test]
fn a_udp_allocation_has_no_connections() {
    let mut world = world();
    let mut client = client(&mut world, "alice", REMOTE);
    client.allocate(&mut world);
    assert_eq!(refused_connect(&mut client, &mut world, PEER), 437);
    client.refresh(&mut world, 0);
    world.expect_closed(1, CloseReason::Refreshed);
    world.finish();
}

#[test]
fn a_tcp_allocation_relays_no_datagrams() {
    let mut world = world();
    let (mut client, _) = allocated(&mut world);
    assert_eq!(client.permit(&mut world, &[PEER]), 0);
    assert_eq!(client.bind(&mut world, 0x4000, PEER), 403);
    let verdict = client.send(&mut world, PEER, b"data");
    assert_eq!(verdict, drop_of(DropReason::NotUdp));
    client.refresh(&mut world, 0);
    close(&mut world, &[]);
    world.finish();
}

#[test]
fn a_connection_that_fails_is_447_and_may_be_made_again_rfc6062_5_2() {
    let mut world = world();
    let (mut client, _) = allocated(&mut world);
    let connection = dial(&mut client, &mut world, PEER);
    let reply = answer(&mut world, &client, connection, false);
    assert_eq!(reply.code(), 447);
    assert!(reply.is_signed_with(client.key()));
    assert!(
        !world.server.connected(world.now, connection, Ok(())),
        "it is forgotten"
    );
    let (connection, _) = connect(&mut client, &mut world, PEER);
    client.refresh(&mut world, 0);
    close(&mut world, &[connection]);
    world.finish();
}

#[test]
fn a_dial_is_given_up_after_30_seconds_rfc6062_5_2() {
    let mut world = world();
    let (mut client, _) = allocated(&mut world);
    let connection = dial(&mut client, &mut world, PEER);
    world.pass(30 * crate::world::SECOND - 1);
    assert_eq!(world.events.len(), 0);
    world.pass(1);
    assert_eq!(world.event(), Event::CloseConnection(connection));
    assert_eq!(world.reply(&client.path).code(), 447);
    assert!(!world.server.connected(world.now, connection, Ok(())));
    client.refresh(&mut world, 0);
    close(&mut world, &[]);
    world.finish();
}

#[test]
fn a_connection_that_nobody_binds_is_closed_after_30_seconds_rfc6062_5_2() {
    let mut world = world();
    let (mut client, relay) = allocated(&mut world);
    client.permit(&mut world, &[PEER]);
    let (dialled, id) = connect(&mut client, &mut world, PEER);
    world.pass_s(10);
    let (now, other) = (world.now, address(OTHER_PEER));
    let accepted = world.server.peer_connected(now, relay, other).unwrap();
    world.drain();
    let accepted_id = attempt(&mut world, &client, OTHER_PEER);
    world.pass(20 * crate::world::SECOND - 1);
    assert_eq!(world.events.len(), 0);
    world.pass(1);
    assert_eq!(world.event(), Event::CloseConnection(dialled));
    world.pass_s(10);
    assert_eq!(world.event(), Event::CloseConnection(accepted));
    let mut data = self::client(&mut world, "alice", DATA);
    for id in [id, accepted_id] {
        assert_eq!(ask_to_bind(&mut data, &mut world, id).code(), 400);
    }
    client.refresh(&mut world, 0);
    close(&mut world, &[]);
    world.finish();
}

#[test]
fn a_peer_that_connects_is_reported_to_the_client_rfc6062_5_3() {
    let mut world = world();
    let (mut client, relay) = allocated(&mut world);
    let (now, peer) = (world.now, address(PEER));
    assert_eq!(world.server.peer_connected(now, relay, peer), None);
    assert_eq!(world.server.stats().peer_connections_refused, 1);
    client.permit(&mut world, &[PEER]);
    let connection = world.server.peer_connected(now, relay, peer).unwrap();
    world.drain();
    let id = attempt(&mut world, &client, PEER);
    // RFC 6062 §5.2: the same peer cannot be connected to meanwhile.
    assert_eq!(refused_connect(&mut client, &mut world, PEER), 446);
    bind(&mut world, connection, id);
    world.pass_s(301);
    client.refresh(&mut world, 600);
    let now = world.now;
    let after = world.server.peer_connected(now, relay, address(OTHER_PEER));
    assert_eq!(after, None, "the permission has expired");
    client.refresh(&mut world, 0);
    close(&mut world, &[connection]);
    assert_eq!(
        world.server.peer_connected(now, relay, peer),
        None,
        "the relay is closed"
    );
    world.finish();
}

#[test]
fn peers_make_no_more_connections_than_an_allocation_may_have() {
    let mut world = World::with(|config| {
        config.tcp_relay = true;
        config.max_peer_connections = 2;
    });
    let (mut client, relay) = allocated(&mut world);
    client.permit(&mut world, &[PEER]);
    let mut connections = Vec::new();
    for port in 1000..1003 {
        let peer = (address(PEER).ip(), port).into();
        connections.extend(world.server.peer_connected(world.now, relay, peer));
        world.drain();
    }
    assert_eq!(connections.len(), 2);
    world.events.clear();
    client.refresh(&mut world, 0);
    close(&mut world, &connections);
    world.finish();
}

#[test]
fn connection_bind_requests_are_checked_in_order_rfc6062_5_4() {
    let mut world = world();
    let (mut client, _) = allocated(&mut world);
    let (connection, id) = connect(&mut client, &mut world, PEER);
    let dialling = dial(&mut client, &mut world, OTHER_PEER);
    // On the control connection.
    assert_eq!(ask_to_bind(&mut client, &mut world, id).code(), 400);
    let mut data = self::client(&mut world, "alice", DATA);
    let reply = data.ask(&mut world, Method::CONNECTION_BIND, |_| {});
    assert_eq!(reply.code(), 400);
    let reply = data.ask(&mut world, Method::CONNECTION_BIND, |request| {
        request
            .push_raw(AttributeType::CONNECTION_ID, &[0, 1])
            .unwrap();
    });
    assert_eq!(reply.code(), 400);
    assert_eq!(ask_to_bind(&mut data, &mut world, id ^ 1).code(), 400);
    let mut other = self::client(&mut world, "bob", "198.51.100.2:4000");
    assert_eq!(ask_to_bind(&mut other, &mut world, id).code(), 441);
    assert_eq!(world.failures.len(), 1);
    world.failures.clear();
    bind(&mut world, connection, id);
    // Only once.
    assert_eq!(ask_to_bind(&mut data, &mut world, id).code(), 400);
    client.refresh(&mut world, 0);
    close(&mut world, &[connection, dialling]);
    world.finish();
}

#[test]
fn a_connection_bind_for_another_worker_is_moved() {
    let mut world = world();
    let (mut client, _) = allocated(&mut world);
    let (connection, id) = connect(&mut client, &mut world, PEER);
    let mut data = self::client(&mut world, "alice", DATA);
    let bind_to = |data: &mut Client, id| {
        data.request(Method::CONNECTION_BIND, |request| {
            request.push(&ConnectionId(id)).unwrap();
        })
    };
    // Also one that nobody has proven: the other worker does.
    let elsewhere = id ^ (1 << 24);
    let request = bind_to(&mut data, elsewhere);
    world.client(&data.path, &request);
    let moved = Event::MovedConnection {
        to: 6,
        path: data.path,
        message: request.clone(),
    };
    assert_eq!(world.event(), moved);
    // What the embedder could not move, and what it moved here, is answered here.
    world
        .server
        .connection_moved(world.now, &data.path, &request);
    world.drain();
    assert_eq!(world.reply(&data.path).code(), 400);
    // A server that is there, but takes nothing now: the client is to try again.
    world
        .server
        .connection_not_moved(world.now, &data.path, &request);
    world.drain();
    assert_eq!(world.reply(&data.path).code(), 500);
    let request = bind_to(&mut data, id);
    let before = binds(&world);
    world
        .server
        .connection_moved(world.now, &data.path, &request);
    world.drain();
    assert_eq!(world.reply(&data.path).code(), 0);
    assert_eq!(
        binds(&world),
        before + 1,
        "it is counted where it is handled"
    );
    assert_eq!(world.event(), Event::BindConnection(connection, data.path));
    // The control connection and datagrams stay.
    for transport in [Transport::Tcp, Transport::Udp] {
        client.path.five_tuple.transport = transport;
        let mut client = Client {
            path: client.path,
            ..client.clone()
        };
        let reply = ask_to_bind(&mut client, &mut world, elsewhere);
        assert_eq!(reply.code(), 400, "{transport:?}");
    }
    client.path.five_tuple.transport = Transport::Tcp;
    client.refresh(&mut world, 0);
    close(&mut world, &[connection]);
    world.finish();
}

#[test]
fn the_nonce_of_the_control_connection_serves_its_data_connections_rfc6062_4_3() {
    let mut world = world();
    let (mut client, _) = allocated(&mut world);
    let (connection, id) = connect(&mut client, &mut world, PEER);
    let mut data = self::client(&mut world, "alice", DATA);
    let own = nonce(&data.signing);
    data.signing.nonce = client.signing.nonce.clone();
    // For nothing else, and for no other connection.
    assert_eq!(ask_for_tcp(&mut data, &mut world, |_| {}).code(), 438);
    assert_eq!(ask_to_bind(&mut data, &mut world, id ^ 1).code(), 438);
    let forged = own.len() - 1;
    data.signing.nonce.as_mut().unwrap()[forged] ^= 1;
    assert_eq!(ask_to_bind(&mut data, &mut world, id).code(), 438);
    world.failures.clear();
    data.signing.nonce = client.signing.nonce.clone();
    assert_eq!(ask_to_bind(&mut data, &mut world, id).code(), 0);
    assert_eq!(world.event(), Event::BindConnection(connection, data.path));
    client.refresh(&mut world, 0);
    close(&mut world, &[connection]);
    world.finish();
}

#[test]
fn connections_end_before_their_relay_rfc6062_5_5() {
    let mut world = world();
    let (mut client, relay) = allocated(&mut world);
    let (bound, id) = connect(&mut client, &mut world, PEER);
    bind(&mut world, bound, id);
    let dialling = dial(&mut client, &mut world, OTHER_PEER);
    world.pass_s(29);
    client.permit(&mut world, &[PEER]);
    let (now, third) = (world.now, address("198.51.100.200:800"));
    let unbound = world.server.peer_connected(now, relay, third).unwrap();
    world.drain();
    attempt(&mut world, &client, "198.51.100.200:800");
    world
        .server
        .client_closed(world.now, &client.path.five_tuple);
    world.drain();
    for connection in [bound, dialling, unbound] {
        assert_eq!(world.event(), Event::CloseConnection(connection));
    }
    world.expect_closed(1, CloseReason::ClientClosed);
    world.finish();
}

#[test]
fn a_connection_that_has_ended_makes_room_for_another() {
    let mut world = world();
    let (mut client, _) = allocated(&mut world);
    let (connection, id) = connect(&mut client, &mut world, PEER);
    bind(&mut world, connection, id);
    assert!(world.server.connection_closed(connection));
    assert!(!world.server.connection_closed(connection));
    assert_eq!(world.server.stats().peer_connections, 0);
    let (again, _) = connect(&mut client, &mut world, PEER);
    client.refresh(&mut world, 0);
    close(&mut world, &[again]);
    world.finish();
}

#[test]
fn a_change_of_the_policy_ends_connections_with_denied_peers() {
    let mut world = world();
    let (mut client, relay) = allocated(&mut world);
    client.permit(&mut world, &[PEER]);
    let (stays, _) = connect(&mut client, &mut world, "198.51.100.201:700");
    let (bound, id) = connect(&mut client, &mut world, PEER);
    bind(&mut world, bound, id);
    let dialling = dial(&mut client, &mut world, OTHER_PEER);
    let (now, third) = (world.now, address("198.51.100.200:800"));
    let accepted = world.server.peer_connected(now, relay, third).unwrap();
    world.drain();
    attempt(&mut world, &client, "198.51.100.200:800");
    let denied = address(PEER).ip();
    world.policy.denied.lock().unwrap().insert(denied);
    world.reconfigure(|_| {});
    for connection in [bound, dialling] {
        assert_eq!(world.event(), Event::CloseConnection(connection));
    }
    assert_eq!(world.reply(&client.path).code(), 447);
    assert_eq!(world.event(), Event::CloseConnection(accepted));
    let again = world.server.peer_connected(world.now, relay, third);
    assert_eq!(again, None, "a permission of before does not help");
    client.refresh(&mut world, 0);
    close(&mut world, &[stays]);
    world.finish();
}

#[test]
fn allocations_stay_tcp_when_no_new_ones_can_be_had() {
    let mut world = world();
    let (mut client, _) = allocated(&mut world);
    world.reconfigure(|config| config.tcp_relay = false);
    let (connection, id) = connect(&mut client, &mut world, PEER);
    bind(&mut world, connection, id);
    let mut other = self::client(&mut world, "bob", "198.51.100.2:4000");
    assert_eq!(ask_for_tcp(&mut other, &mut world, |_| {}).code(), 442);
    client.refresh(&mut world, 0);
    close(&mut world, &[connection]);
    world.finish();
}

/// RFC 8489 §6.3: a method that the server does not support is discarded. All workers support the same ones.
#[test]
fn a_connection_bind_gets_one_answer_whichever_worker_it_names_while_tcp_is_off_rfc6062_5_4() {
    let bind_to = |data: &mut Client, worker: u32| {
        data.request(Method::CONNECTION_BIND, |request| {
            request.push(&ConnectionId(worker << 24 | 77)).unwrap();
        })
    };
    // Another worker has the TCP allocation that is left: this one has none.
    let mut world = world();
    world.reconfigure(|config| config.tcp_relay = false);
    let mut data = self::client(&mut world, "alice", DATA);
    let path = data.path;
    let request = bind_to(&mut data, 6);
    world.client(&path, &request);
    assert!(matches!(
        world.event(),
        Event::MovedConnection { to: 6, .. }
    ));
    world.server.connection_moved(world.now, &path, &request);
    world.drain();
    assert_eq!(world.reply(&path).code(), 400, "moved here");
    let request = bind_to(&mut data, 7);
    assert_eq!(world.ask(&path, &request).code(), 400, "named here");
    let unproven = world.ask(&path, &crate::world::bare(Method::CONNECTION_BIND));
    assert_eq!(unproven.code(), 401);
    world.finish();
    // A server that has never had TCP allocations does not know the method, whichever worker is named.
    let mut world = World::new();
    let mut data = self::client(&mut world, "alice", DATA);
    for worker in [0, 6, 7] {
        let request = bind_to(&mut data, worker);
        let dropped = world.dropped(&data.path, &request);
        assert_eq!(dropped, DropReason::UnsupportedMethod);
    }
    world.finish();
}

const UP: RelayDirection = RelayDirection::ToPeer;

#[test]
fn bytes_of_streams_are_counted_and_slowed_but_never_refused() {
    let mut world = World::with(|config| {
        config.tcp_relay = true;
        config.allocation_rate = 10_000;
    });
    let (mut client, _) = allocated(&mut world);
    let (connection, id) = connect(&mut client, &mut world, PEER);
    bind(&mut world, connection, id);
    let start = world.now.mono.0;
    let (mut relayed, mut waits) = (0, 0);
    while world.now.mono.0 < start + 10 * crate::world::SECOND {
        let now = world.now;
        match world.server.stream_allowance(now, connection, UP) {
            Ok(bytes) => {
                assert!((1..=10_000).contains(&bytes));
                let (up, down) = (bytes / 2, bytes - bytes / 2);
                world.server.add_stream_traffic(now, connection, up, down);
                relayed += bytes;
            }
            Err(at) => {
                assert!(at > world.now.mono);
                waits += 1;
                world.pass(at.0 - world.now.mono.0);
            }
        }
    }
    // The rate for ten seconds, and a burst of one second's worth.
    assert!((100_000..=120_000).contains(&relayed), "{relayed}");
    assert!(waits > 50);
    let stats = world.server.stats();
    assert_eq!(
        stats.to_peers.bytes + stats.to_clients.bytes,
        relayed as u64
    );
    client.refresh(&mut world, 0);
    assert_eq!(world.event(), Event::CloseConnection(connection));
    assert!(matches!(world.event(), Event::CloseRelay(_)));
    match world.event() {
        Event::Closed {
            to_peers,
            to_client,
            ..
        } => assert_eq!(to_peers.bytes + to_client.bytes, relayed as u64),
        other => panic!("not closed: {other:?}"),
    }
    world.finish();
}

/// An operator sees the bytes and the idle time of each data connection.
#[test]
fn sessions_show_data_connections_with_bytes_and_idle_time() {
    let mut world = world();
    let (mut client, _) = allocated(&mut world);
    let (connection, id) = connect(&mut client, &mut world, PEER);
    let (unbound, _) = connect(&mut client, &mut world, OTHER_PEER);
    let peer = address(PEER).ip();
    assert!(shown(&world, None).is_empty(), "none is bound");
    assert!(!is_found(&world, peer));
    world.pass(3 * SECOND);
    bind(&mut world, connection, id);
    assert!(is_found(&world, peer));
    assert!(!is_found(&world, address(FORBIDDEN).ip()));
    let seen = |world: &World| shown(world, Some(peer));
    assert_eq!(seen(&world), [(address(PEER), 0, 0, 0)]);
    world.pass(7 * SECOND);
    assert_eq!(seen(&world), [(address(PEER), 0, 0, 7)], "since the bind");
    let now = world.now;
    world.server.add_stream_traffic(now, connection, 500, 0);
    assert_eq!(seen(&world), [(address(PEER), 500, 0, 0)]);
    world.pass(2 * SECOND);
    let now = world.now;
    world.server.add_stream_traffic(now, connection, 0, 40);
    // Not bound, so nothing is counted for it.
    world.server.add_stream_traffic(now, unbound, 1, 1);
    world.pass(4 * SECOND);
    assert_eq!(seen(&world), [(address(PEER), 500, 40, 4)]);
    assert!(world.server.connection_closed(connection));
    assert!(shown(&world, None).is_empty());
    client.refresh(&mut world, 0);
    close(&mut world, &[unbound]);
    world.finish();
}

/// A list has a limited length, whatever a client does, and says how much it omits.
#[test]
fn sessions_show_at_most_sixteen_data_connections() {
    let mut world = World::with(|config| {
        config.tcp_relay = true;
        config.max_peer_connections = 20;
    });
    let (mut client, _) = allocated(&mut world);
    let connections: Vec<_> = (0..20)
        .map(|number| {
            let peer = format!("198.51.100.200:{}", 700 + number);
            let (connection, id) = connect(&mut client, &mut world, &peer);
            let data = format!("198.51.100.1:{}", 5000 + number);
            let mut data = crate::tcp::client(&mut world, "alice", &data);
            assert_eq!(ask_to_bind(&mut data, &mut world, id).code(), 0);
            assert!(matches!(world.event(), Event::BindConnection(..)));
            connection
        })
        .collect();
    let permitted: Vec<_> = (1..=18).map(|n| format!("198.51.100.{n}:1")).collect();
    let permitted: Vec<_> = permitted.iter().map(String::as_str).collect();
    assert_eq!(client.permit(&mut world, &permitted), 0);
    assert_eq!(shown(&world, None).len(), 16);
    assert_eq!(omitted(&world), [(2, 4)], "permissions and connections");
    client.refresh(&mut world, 0);
    close(&mut world, &connections);
    world.finish();
}

/// Peer, bytes to the peer, bytes to the client, and idle seconds of the data connections.
fn shown(world: &World, peer: Option<IpAddr>) -> Vec<(SocketAddr, u64, u64, u64)> {
    let filter = SessionFilter { user: None, peer };
    let (sessions, _) = world.server.sessions(world.now, 0, 100, &filter);
    let connections = sessions.into_iter().flat_map(|it| it.data_connections);
    connections
        .map(|it| (it.peer, it.to_peer, it.to_client, it.idle.as_secs()))
        .collect()
}

/// How many peers and data connections each session has beyond those that are shown.
fn omitted(world: &World) -> Vec<(usize, usize)> {
    let (sessions, _) = world
        .server
        .sessions(world.now, 0, 100, &SessionFilter::default());
    let sessions = sessions.iter();
    sessions
        .map(|it| (it.peers_omitted, it.data_connections_omitted))
        .collect()
}

/// Whether a session is found by the address of a peer.
fn is_found(world: &World, peer: IpAddr) -> bool {
    let filter = SessionFilter {
        user: None,
        peer: Some(peer),
    };
    !world
        .server
        .sessions(world.now, 0, 100, &filter)
        .0
        .is_empty()
}

#[test]
fn without_a_rate_a_stream_is_not_slowed() {
    let mut world = world();
    let (mut client, _) = allocated(&mut world);
    let (connection, _) = connect(&mut client, &mut world, PEER);
    let allowance = world.server.stream_allowance(world.now, connection, UP);
    assert_eq!(allowance, Ok(usize::MAX));
    client.refresh(&mut world, 0);
    close(&mut world, &[connection]);
    world.finish();
}

#[test]
fn the_policy_gets_the_transport_to_the_peer() {
    #[derive(Debug)]
    struct NoTcp;
    impl PeerPolicy for NoTcp {
        fn classify(&self, client: &ClientIdentity<'_>, _: IpAddr) -> PeerClass {
            match client.relay {
                RelayTransport::Tcp => PeerClass::Denied,
                _ => PeerClass::Peer,
            }
        }
        fn permits(&self, client: &ClientIdentity<'_>, peer: SocketAddr) -> PeerClass {
            self.classify(client, peer.ip())
        }
    }
    let mut world = World::with(|config| {
        config.tcp_relay = true;
        config.policy = Arc::new(NoTcp);
    });
    let (mut over_tcp, _) = allocated(&mut world);
    assert_eq!(refused_connect(&mut over_tcp, &mut world, PEER), 403);
    assert_eq!(over_tcp.permit(&mut world, &[PEER]), 403);
    let mut over_udp = Client::new(&mut world, "bob", "198.51.100.2:1");
    over_udp.allocate(&mut world);
    assert_eq!(over_udp.permit(&mut world, &[PEER]), 0);
    assert_eq!(over_udp.bind(&mut world, 0x4000, PEER), 0);
    world.finish();
}

#[test]
fn a_data_connection_is_of_the_realm_of_its_control_connection() {
    let mut world = World::with(|config| {
        config.tcp_relay = true;
        let users = Arc::clone(&config.credentials);
        let mut realm = RealmConfig::new("shop.example", users);
        realm.origins = vec!["https://shop.example".to_owned()];
        config.realms = vec![realm];
    });
    // The keys of these users are made for the default realm, whatever the realm is called.
    let mut client = client(&mut world, "alice", REMOTE);
    client.signing.realm = Some("shop.example".to_owned());
    let made = ask_for_tcp(&mut client, &mut world, |request| {
        request.push(&Origin("https://shop.example")).unwrap();
    });
    assert_eq!(made.code(), 0);
    world.expect_opened();
    let (connection, id) = connect(&mut client, &mut world, PEER);
    let mut data = client.clone();
    data.path = path_on(Transport::Tcp, DATA);
    assert_eq!(ask_to_bind(&mut data, &mut world, id).code(), 0);
    assert_eq!(world.event(), Event::BindConnection(connection, data.path));
    assert_eq!(client.refresh(&mut world, 0).code(), 0);
    close(&mut world, &[connection]);
    world.finish();
}
