//! Listeners on sockets that are open already.

use crate::common::{Client, at, eventually, loopback, start};
use hairpin_server::{OpenSocketError, Server, StartError};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

/// A UDP socket with SO_REUSEPORT on this address.
fn shared(address: SocketAddr) -> Socket {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )
    .expect("a socket");
    socket.set_reuse_port(true).expect("SO_REUSEPORT");
    socket.bind(&address.into()).expect("bound");
    socket
}

fn address(socket: &Socket) -> SocketAddr {
    let address: SockAddr = socket.local_addr().expect("bound");
    address.as_socket().expect("an IP address")
}

/// So many sockets on one port of loopback.
fn group(count: usize) -> Vec<Socket> {
    let first = shared(at("127.0.0.1:0"));
    let address = address(&first);
    let more = (1..count).map(|_| shared(address));
    std::iter::once(first).chain(more).collect()
}

/// What a server says of these sockets.
fn refusal<S: Into<OwnedFd>>(workers: usize, sockets: Vec<S>) -> OpenSocketError {
    let builder = Server::builder().workers(workers).listen_sockets(sockets);
    match builder.start() {
        Err(StartError::OpenSocket(error)) => error,
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("the server starts"),
    }
}

#[test]
fn every_worker_serves_its_socket() {
    let sockets = group(3);
    let listener = address(&sockets[0]);
    let server = start(
        Server::builder()
            .listen_sockets(sockets)
            .listen(at("127.0.0.1:0"))
            .relay_address(crate::common::ip("127.0.0.1"))
            .user(crate::common::USER, crate::common::PASSWORD)
            .steering(hairpin_server::Steering::Hash),
    );
    assert_eq!(server.listeners()[1], listener);
    assert_eq!(
        server.stats().workers.len(),
        3,
        "as many workers as sockets"
    );
    let mut clients: Vec<Client> = (0..64).map(|_| Client::new(listener)).collect();
    for client in &mut clients {
        client.allocate();
    }
    eventually("every worker has some of 64 clients", || {
        let stats = server.stats();
        stats
            .workers
            .iter()
            .all(|worker| worker.engine.allocations_opened > 0)
    });
    server.shutdown().expect("no worker failed");
    UdpSocket::bind(listener).expect("the sockets are closed");
}

#[test]
fn one_worker_needs_no_reuse_port() {
    let socket = UdpSocket::bind("[::1]:0").expect("a socket");
    let listener = socket.local_addr().expect("bound");
    let server = start(loopback(1).listen_sockets([socket]));
    let mut client = Client::new(listener);
    client.allocate();
    server.shutdown().expect("no worker failed");
}

#[test]
fn a_wildcard_socket_answers_from_the_address_that_was_asked() {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    let port = socket.local_addr().expect("bound").port();
    let _server = start(loopback(1).listen_sockets([socket]));
    // A test's client is connected, so it gets responses from this address only.
    let mut client = Client::new(SocketAddr::from(([127, 0, 0, 9], port)));
    client.allocate();
}

#[test]
fn the_number_of_sockets_is_the_number_of_workers() {
    assert!(matches!(
        refusal(2, group(3)),
        OpenSocketError::Count {
            sockets: 3,
            workers: 2
        }
    ));
    assert!(matches!(
        refusal(1, Vec::<OwnedFd>::new()),
        OpenSocketError::Count {
            sockets: 0,
            workers: 1
        }
    ));
}

#[test]
fn sockets_of_one_listener_have_one_address() {
    let [one, other] = [(); 2].map(|()| shared(at("127.0.0.1:0")));
    let (first, second) = (address(&one), address(&other));
    assert!(matches!(
        refusal(2, vec![one, other]),
        OpenSocketError::Addresses(a, b) if (a, b) == (first, second)
    ));
}

#[test]
fn two_descriptors_of_one_socket_are_refused() {
    let socket = shared(at("127.0.0.1:0"));
    let again = socket.try_clone().expect("a second descriptor");
    assert!(matches!(
        refusal(2, vec![socket, again]),
        OpenSocketError::Duplicate(_)
    ));
}

#[test]
fn workers_share_an_address_by_reuse_port_only() {
    let sockets = group(2);
    // SO_REUSEADDR would let both bind as well, and one of them would get everything.
    sockets[1].set_reuse_port(false).expect("an option");
    assert!(matches!(
        refusal(2, sockets),
        OpenSocketError::NoReusePort(_)
    ));
}

#[test]
fn a_socket_of_both_families_is_refused() {
    let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP)).expect("a socket");
    socket.set_only_v6(false).expect("an option");
    socket.bind(&at("[::]:0").into()).expect("bound");
    assert!(matches!(
        refusal(1, vec![socket]),
        OpenSocketError::BothFamilies(_)
    ));
}

#[test]
fn only_bound_and_unconnected_udp_sockets_are_taken() {
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
    let unbound = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).expect("a socket");
    let connected = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    connected.connect("127.0.0.1:9").expect("connected");
    let cases: [(OwnedFd, &str); 3] = [
        (tcp.into(), "no UDP socket"),
        (unbound.into(), "not bound"),
        (connected.into(), "is connected"),
    ];
    for (socket, text) in cases {
        let error = refusal(1, vec![socket]).to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn one_address_is_one_listener() {
    let [one, other] = [(); 2].map(|()| group(1));
    let socket = one[0].try_clone().expect("a second descriptor");
    let builder = Server::builder()
        .listen_sockets(one)
        .listen_sockets(other)
        .listen_sockets([socket]);
    assert!(matches!(
        builder.start(),
        Err(StartError::DuplicateListener(_))
    ));
}
