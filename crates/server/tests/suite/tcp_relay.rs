//! TCP allocations (RFC 6062), as clients and peers see them.

use crate::common::stream::{StreamLink, configs};
use crate::common::{Answer, Client, PASSWORD, USER, at, eventually, ip, start};
use hairpin_server::policy::PeerRule;
use hairpin_server::rustls::ClientConfig;
use hairpin_server::{Builder, Running, Server, Settings};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stun::{ConnectionId, Message, Method, RequestedTransport, XorPeerAddress};
use turn::server::RelayTransport;

/// Longer than anything takes on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

fn builder(workers: usize) -> (Builder, Arc<ClientConfig>) {
    let (server, client) = configs();
    let builder = Server::builder()
        .listen_tcp(at("127.0.0.1:0"))
        .listen_tls(at("127.0.0.1:0"))
        .tls(server)
        .relay_address(ip("127.0.0.1"))
        .user(USER, PASSWORD)
        .allow_peers("127.0.0.0/8".parse().expect("a network"))
        .workers(workers);
    (builder, client)
}

/// What [`builder`] sets, to be changed.
fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.users.push((USER.to_owned(), PASSWORD.to_owned()));
    let loopback = "127.0.0.0/8".parse().expect("a network");
    settings.peers.allow.push(PeerRule::all_ports(loopback));
    settings
}

/// How clients reach the server.
struct Access {
    server: SocketAddr,
    tls: Option<Arc<ClientConfig>>,
}

impl Access {
    /// Over TCP, and over TLS.
    fn both(server: &Running, config: &Arc<ClientConfig>) -> [Access; 2] {
        let plain = Access {
            server: server.tcp_listeners()[0],
            tls: None,
        };
        let tls = Access {
            server: server.tls_listeners()[0],
            tls: Some(Arc::clone(config)),
        };
        [plain, tls]
    }

    fn client(&self) -> Client {
        Client::stream(match &self.tls {
            None => StreamLink::tcp(self.server),
            Some(config) => StreamLink::tls(self.server, config),
        })
    }

    /// A client with a TCP allocation, and its relayed transport address.
    fn allocated(&self) -> (Client, SocketAddr) {
        let mut client = self.client();
        let answer = allocate(&mut client);
        assert_eq!(answer.code(), 0);
        let relayed = answer.relayed();
        (client, relayed)
    }

    /// A data connection.
    fn bound(&self, id: u32) -> Client {
        let mut data = self.client();
        assert_eq!(bind(&mut data, id).code(), 0);
        data
    }
}

fn allocate(client: &mut Client) -> Answer {
    client.request(Method::ALLOCATE, &|request| {
        request.push(&RequestedTransport::TCP).map(drop)
    })
}

fn connect(client: &mut Client, peer: SocketAddr) -> Answer {
    client.request(Method::CONNECT, &|request| {
        request.push(&XorPeerAddress(peer)).map(drop)
    })
}

fn connected(client: &mut Client, peer: SocketAddr) -> u32 {
    let answer = connect(client, peer);
    assert_eq!(answer.code(), 0);
    let id: Option<ConnectionId> = answer.message().get().expect("well formed");
    id.expect("an ID").0
}

fn bind(data: &mut Client, id: u32) -> Answer {
    data.request(Method::CONNECTION_BIND, &|request| {
        request.push(&ConnectionId(id)).map(drop)
    })
}

/// The indication that tells of a peer's connection.
fn attempt(client: &Client) -> (u32, SocketAddr) {
    let bytes = client.receive();
    let message = Message::parse(&bytes).expect("a message");
    assert_eq!(message.method(), Method::CONNECTION_ATTEMPT);
    let id: Option<ConnectionId> = message.get().expect("well formed");
    let peer: Option<XorPeerAddress> = message.get().expect("well formed");
    (id.expect("an ID").0, peer.expect("a peer").0)
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("loopback has free ports")
}

fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    let (stream, from) = listener.accept().expect("a connection");
    stream
        .set_read_timeout(Some(TEST_TIMEOUT))
        .expect("a timeout");
    (stream, from)
}

fn address(listener: &TcpListener) -> SocketAddr {
    listener.local_addr().expect("bound")
}

fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut received = vec![0; bytes.len()];
    stream.read_exact(&mut received).expect("bytes");
    assert_eq!(received, bytes);
}

fn expect_end(stream: &mut TcpStream) {
    let read = stream.read(&mut [0; 1]);
    let is_end = match &read {
        Ok(bytes) => *bytes == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    };
    assert!(is_end, "{read:?}");
}

fn expect_all_gone(server: &Running) {
    eventually("the server holds nothing more", || {
        let stats = server.stats();
        let held = [
            stats.sum(|worker| worker.engine.peer_connections),
            stats.sum(|worker| worker.engine.data_connections),
            stats.sum(|worker| worker.relays_open),
            stats.streams().tcp_now,
            stats.streams().tls_now,
            stats.streams().unproven_now,
            stats.streams().queued_bytes_now,
        ];
        held == [0; 7]
    });
}

/// Bytes that differ from place to place.
fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

#[test]
fn a_client_connects_to_a_peer_and_relays_rfc6062_5_2() {
    let (builder, config) = builder(1);
    let server = start(builder);
    for access in Access::both(&server, &config) {
        let (mut client, relayed) = access.allocated();
        let peer = listener();
        let id = connected(&mut client, address(&peer));
        let (mut far, from) = accept(&peer);
        assert_eq!(from, relayed);
        // What the peer sends before the data connection is there is not lost.
        far.write_all(b"early").expect("room");
        assert_eq!(connect(&mut client, address(&peer)).code(), 446);
        let data = access.bound(id);
        assert_eq!(data.connection().exactly(5), b"early");
        data.connection().send(b"to the peer");
        expect(&mut far, b"to the peer");
        far.write_all(b"to the client").expect("room");
        assert_eq!(data.connection().exactly(13), b"to the client");
        assert_eq!(connect(&mut client, address(&peer)).code(), 446);
        drop(data);
        expect_end(&mut far);
        drop(far);
        client.release();
    }
    let counters = server.stats().counters();
    assert_eq!(counters.stream_bytes_spliced, 5 + 11 + 13);
    assert_eq!(counters.stream_bytes_copied, 5 + 11 + 13);
    let stats = server.stats();
    assert_eq!(stats.sum(|worker| worker.engine.to_peers.bytes), 22);
    assert_eq!(stats.sum(|worker| worker.engine.to_clients.bytes), 36);
    expect_all_gone(&server);
}

#[test]
fn a_peer_connects_to_a_client_rfc6062_5_3() {
    let (builder, config) = builder(1);
    let server = start(builder);
    for access in Access::both(&server, &config) {
        let (mut client, relayed) = access.allocated();
        let mut stranger = TcpStream::connect(relayed).expect("the relay listens");
        stranger
            .set_read_timeout(Some(TEST_TIMEOUT))
            .expect("a timeout");
        expect_end(&mut stranger);
        assert_eq!(client.permit(at("127.0.0.1:9")), 0);
        let mut peer = TcpStream::connect(relayed).expect("the relay listens");
        peer.set_read_timeout(Some(TEST_TIMEOUT))
            .expect("a timeout");
        peer.write_all(b"hello").expect("room");
        let (id, from) = attempt(&client);
        assert_eq!(from, peer.local_addr().expect("connected"));
        let data = access.bound(id);
        assert_eq!(data.connection().exactly(5), b"hello");
        data.connection().send(b"world");
        expect(&mut peer, b"world");
        drop(peer);
        assert!(data.connection().is_ended());
        drop(data);
        client.release();
        assert!(TcpStream::connect(relayed).is_err(), "the relay is closed");
    }
    expect_all_gone(&server);
}

#[test]
fn data_after_a_bind_request_reaches_the_peer() {
    let (builder, config) = builder(3);
    let server = start(builder);
    for access in Access::both(&server, &config) {
        let (mut client, _) = access.allocated();
        for _ in 0..6 {
            let peer = listener();
            let id = connected(&mut client, address(&peer));
            let (mut far, _) = accept(&peer);
            let mut data = access.client();
            let request = data.signed(Method::CONNECTION_BIND, &|request| {
                request.push(&ConnectionId(id)).map(drop)
            });
            let padded = request.len().next_multiple_of(4) - request.len();
            let bytes = [&request[..], &[0; 3][..padded], b"at once"].concat();
            data.connection().send(&bytes);
            assert_eq!(data.next_answer().code(), 0);
            expect(&mut far, b"at once");
        }
        client.release();
    }
    expect_all_gone(&server);
}

#[test]
fn a_data_connection_may_come_to_any_worker() {
    let (builder, config) = builder(4);
    let server = start(builder);
    for access in Access::both(&server, &config) {
        let (mut client, _) = access.allocated();
        let peer = listener();
        let mut pairs = Vec::new();
        for number in 0..12_u8 {
            // One address each: a relayed address has one connection with a peer.
            let peer = match number {
                0 => peer.try_clone().expect("a copy"),
                _ => listener(),
            };
            let id = connected(&mut client, address(&peer));
            pairs.push((access.bound(id), accept(&peer).0, number));
        }
        for (data, far, number) in &mut pairs {
            data.connection().send(&[*number; 100]);
            expect(far, &[*number; 100]);
            far.write_all(&[!*number; 100]).expect("room");
            assert_eq!(data.connection().exactly(100), [!*number; 100]);
        }
        // Another worker's answer to a wrong ID is 400, and the connection is still good.
        for worker in 0..=255_u32 {
            if worker < 6 || worker == 255 {
                let mut data = access.client();
                assert_eq!(bind(&mut data, worker << 24 | 0x12_3456).code(), 400);
                assert_eq!(bind(&mut data, worker << 24 | 0x12_3456).code(), 400);
            }
        }
        let mut other = access.client();
        let held = server.stats().streams().tcp_now + server.stats().streams().tls_now;
        assert!(held >= 13, "{held}");
        assert_eq!(allocate(&mut other).code(), 0, "no trace of the detour");
        other.release();
        client.release();
        for (_, far, _) in &mut pairs {
            expect_end(far);
        }
    }
    expect_all_gone(&server);
}

#[test]
fn connections_that_cannot_be_made_have_their_codes_rfc6062_5_2() {
    let (builder, config) = builder(1);
    let server = start(builder);
    let [access, _] = Access::both(&server, &config);
    let peer = listener();
    assert_eq!(connect(&mut access.client(), address(&peer)).code(), 437);
    let (mut client, relayed) = access.allocated();
    // The port of a connection: nobody listens there, and no other test gets it.
    let held = TcpStream::connect(address(&peer)).expect("a connection");
    let closed = held.local_addr().expect("connected");
    assert_eq!(connect(&mut client, closed).code(), 447);
    assert_eq!(
        connect(&mut client, closed).code(),
        447,
        "it may be tried again"
    );
    for forbidden in [access.server, at("10.0.0.1:80"), at("169.254.169.254:80")] {
        assert_eq!(connect(&mut client, forbidden).code(), 403, "{forbidden}");
    }
    assert_eq!(connect(&mut client, relayed).code(), 447, "its own address");
    assert_eq!(connect(&mut client, at("[::1]:80")).code(), 443);
    assert_eq!(bind(&mut client, 1).code(), 400);
    client.release();
    drop(client);
    expect_all_gone(&server);
}

#[test]
fn clients_of_one_server_connect_to_each_other() {
    let (builder, config) = builder(2);
    let server = start(builder);
    let [plain, tls] = Access::both(&server, &config);
    let (mut one, of_one) = plain.allocated();
    let (mut other, of_other) = tls.allocated();
    assert_eq!(
        connect(&mut one, of_other).code(),
        0,
        "refused only when accepted"
    );
    eventually("it is refused", || {
        server
            .stats()
            .sum(|worker| worker.engine.peer_connections_refused)
            == 1
    });
    assert_eq!(other.permit(of_one), 0);
    let (mut third, of_third) = plain.allocated();
    let id = connected(&mut third, of_other);
    let (of_peer, from) = attempt(&other);
    assert_eq!(from, of_third);
    let (near, far) = (plain.bound(id), tls.bound(of_peer));
    near.connection().send(b"there");
    assert_eq!(far.connection().exactly(5), b"there");
    far.connection().send(b"and back");
    assert_eq!(near.connection().exactly(8), b"and back");
    for client in [&mut one, &mut other, &mut third] {
        client.release();
    }
    drop((one, other, third, near, far));
    expect_all_gone(&server);
}

#[test]
fn the_end_of_one_direction_is_passed_on_and_the_other_goes_on() {
    let (builder, config) = builder(2);
    let server = start(builder);
    for access in Access::both(&server, &config) {
        for client_first in [true, false] {
            let (mut client, _) = access.allocated();
            let peer = listener();
            let id = connected(&mut client, address(&peer));
            let (mut far, _) = accept(&peer);
            let data = access.bound(id);
            let bytes = pattern(300_000);
            if client_first {
                data.connection().send(b"request");
                data.connection().finish();
                expect(&mut far, b"request");
                expect_end(&mut far);
                let sender = std::thread::spawn({
                    let bytes = bytes.clone();
                    move || {
                        far.write_all(&bytes).expect("room");
                    }
                });
                assert!(data.connection().exactly(bytes.len()) == bytes);
                sender.join().expect("the peer");
                assert!(data.connection().is_ended());
            } else {
                far.write_all(b"greeting").expect("room");
                far.shutdown(Shutdown::Write).expect("open");
                assert_eq!(data.connection().exactly(8), b"greeting");
                let reader = std::thread::spawn({
                    let length = bytes.len();
                    move || {
                        let mut received = vec![0; length];
                        far.read_exact(&mut received).expect("bytes");
                        expect_end(&mut far);
                        received
                    }
                });
                data.connection().send(&bytes);
                data.connection().finish();
                assert!(reader.join().expect("the peer") == bytes);
            }
            drop(data);
            client.release();
        }
    }
    expect_all_gone(&server);
}

#[test]
fn a_side_that_reads_slowly_slows_the_other_and_no_byte_is_lost() {
    const LENGTH: usize = 24 << 20;
    let (builder, config) = builder(1);
    let server = start(builder);
    for access in Access::both(&server, &config) {
        let (mut client, _) = access.allocated();
        let peer = listener();
        let id = connected(&mut client, address(&peer));
        let (mut far, _) = accept(&peer);
        let data = access.bound(id);
        let bytes = Arc::new(pattern(LENGTH));
        // Both ways at once. Each side lets the other wait before it reads.
        let sending = {
            let (mut far, bytes) = (far.try_clone().expect("a copy"), Arc::clone(&bytes));
            std::thread::spawn(move || far.write_all(&bytes).expect("room"))
        };
        eventually("the sender is held up", || {
            let relayed = server.stats().sum(|worker| worker.engine.to_clients.bytes);
            relayed > 100_000
        });
        let received = data.connection().exactly(LENGTH);
        assert!(received == *bytes, "what the client receives");
        sending.join().expect("the peer");
        let reading = std::thread::spawn(move || {
            let mut received = vec![0; LENGTH];
            // The client is blocked meanwhile: more is sent than all buffers hold.
            std::thread::sleep(Duration::from_millis(200));
            far.read_exact(&mut received).expect("bytes");
            received
        });
        data.connection().send(&bytes);
        assert!(
            reading.join().expect("the peer") == *bytes,
            "what the peer receives"
        );
        drop(data);
        client.release();
    }
    expect_all_gone(&server);
}

#[test]
fn a_rate_slows_a_stream_down() {
    let (builder, config) = builder(1);
    let mut settings = settings();
    settings.allocation_rate = 200_000;
    let server = start(builder.settings(settings));
    let [access, _] = Access::both(&server, &config);
    let (mut client, _) = access.allocated();
    let peer = listener();
    let id = connected(&mut client, address(&peer));
    let (mut far, _) = accept(&peer);
    let data = access.bound(id);
    let bytes = pattern(500_000);
    let begun = Instant::now();
    let sender = std::thread::spawn({
        let bytes = bytes.clone();
        move || {
            far.write_all(&bytes).expect("room");
            far
        }
    });
    assert!(data.connection().exactly(bytes.len()) == bytes);
    // A burst of a second's worth is free: 300 kB remain.
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(1200), "{took:?}");
    drop(sender.join().expect("the peer"));
    client.release();
    drop((client, data));
    expect_all_gone(&server);
}

#[test]
fn each_direction_of_a_stream_has_its_own_rate_if_rates_are_apart() {
    let (builder, config) = builder(1);
    let mut settings = settings();
    settings.allocation_rate = 100_000;
    settings.rates.directions_apart = true;
    let server = start(builder.settings(settings));
    let [access, _] = Access::both(&server, &config);
    let (mut client, _) = access.allocated();
    let peer = listener();
    let id = connected(&mut client, address(&peer));
    let (mut far, _) = accept(&peer);
    let data = access.bound(id);
    // This direction has more than its rate allows in half a minute.
    let mut writer = data.connection().socket.try_clone().expect("a descriptor");
    let sender = std::thread::spawn(move || writer.write_all(&pattern(4_000_000)));
    let mut reader = far.try_clone().expect("a descriptor");
    let receiver = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    std::thread::sleep(Duration::from_secs(2));
    // The burst of the other one.
    let bytes = pattern(80_000);
    far.write_all(&bytes).expect("room");
    assert!(data.connection().exactly(bytes.len()) == bytes);
    client.release();
    drop((client, data));
    let _ = sender.join().expect("the client");
    let _ = receiver.join().expect("the peer");
    expect_all_gone(&server);
}

#[test]
fn data_connections_end_with_their_allocation_rfc6062_5_5() {
    let (builder, config) = builder(2);
    let server = start(builder);
    for access in Access::both(&server, &config) {
        for by_refresh in [true, false] {
            let (mut client, _) = access.allocated();
            let peer = listener();
            let id = connected(&mut client, address(&peer));
            let (mut far, _) = accept(&peer);
            let data = access.bound(id);
            data.connection().send(b"x");
            expect(&mut far, b"x");
            if by_refresh {
                client.release();
            }
            drop(client);
            expect_end(&mut far);
            assert!(data.connection().is_ended());
        }
    }
    expect_all_gone(&server);
}

#[test]
fn a_reset_of_one_connection_ends_the_other() {
    let (builder, config) = builder(2);
    let server = start(builder);
    for access in Access::both(&server, &config) {
        let (mut client, _) = access.allocated();
        let peer = listener();
        let id = connected(&mut client, address(&peer));
        let (far, _) = accept(&peer);
        let data = access.bound(id);
        let before = server.stats().sum(|worker| worker.engine.to_peers.bytes);
        data.connection().send(&pattern(10_000));
        // Bytes that nobody has read: closing resets the connection.
        eventually("the bytes are there", || {
            server.stats().sum(|worker| worker.engine.to_peers.bytes) == before + 10_000
        });
        drop(far);
        assert!(data.connection().is_ended());
        // An unbound one ends, too, and its ID is unknown then.
        let peer = listener();
        let id = connected(&mut client, address(&peer));
        let (mut far, _) = accept(&peer);
        far.write_all(b"unread").expect("room");
        drop(far);
        let data = access.bound(id);
        assert_eq!(data.connection().exactly(6), b"unread");
        assert!(data.connection().is_ended());
        client.release();
    }
    expect_all_gone(&server);
}

#[test]
fn a_rule_for_tcp_leaves_datagrams_alone() {
    let (builder, _) = builder(1);
    let server = start(builder.listen(at("127.0.0.1:0")));
    let listening = listener();
    let peer = address(&listening);
    let mut changed = settings();
    let host = PeerRule::all_ports(peer.ip().into()).over(RelayTransport::Tcp);
    changed.peers.deny.push(host);
    server.reload(changed).expect("it is in order");
    let mut over_tcp = Client::stream(StreamLink::tcp(server.tcp_listeners()[0]));
    assert_eq!(allocate(&mut over_tcp).code(), 0);
    eventually("the rule reaches the worker", || {
        connect(&mut over_tcp, peer).code() == 403
    });
    let mut over_udp = Client::new(server.listeners()[0]);
    over_udp.allocate();
    assert_eq!(over_udp.bind(0x4000, peer), 0);
    server.shutdown().expect("it ends");
}

#[test]
fn tcp_relays_can_be_turned_off() {
    let (builder, config) = builder(1);
    let mut settings = settings();
    settings.tcp_relay = false;
    let server = start(builder.settings(settings));
    for access in Access::both(&server, &config) {
        assert_eq!(allocate(&mut access.client()).code(), 442);
    }
}
