//! STUN and TURN over TCP and TLS, as clients see it.

use crate::common::stream::{StreamLink, configs};
use crate::common::{Client, Got, PASSWORD, USER, at, eventually, ip, socket, start};
use hairpin_server::connections::{EndReason, StreamSettings, TlsFailure};
use hairpin_server::rustls::ClientConfig;
use hairpin_server::{Builder, Running, Server};
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stun::{Class, Message, Method, TransactionId, XorMappedAddress};

fn settings(change: impl FnOnce(&mut StreamSettings)) -> StreamSettings {
    let mut settings = StreamSettings::default();
    change(&mut settings);
    settings
}

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

fn tcp(server: &Running) -> StreamLink {
    StreamLink::tcp(server.tcp_listeners()[0])
}

/// A client over each transport.
fn clients(server: &Running, config: &Arc<ClientConfig>) -> [Client; 2] {
    let tls = StreamLink::tls(server.tls_listeners()[0], config);
    [tcp(server), tls].map(Client::stream)
}

fn binding(number: u8) -> [u8; 20] {
    let mut buffer = [0; 20];
    let id = TransactionId([number; 12]);
    let builder = stun::Builder::new(&mut buffer, Class::Request, Method::BINDING, &id);
    let length = builder.expect("room").finish().len();
    assert_eq!(length, buffer.len());
    buffer
}

fn channel_data(number: u16, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).expect("a datagram");
    let head = stun::channel_data::header(crate::common::channel(number), length);
    let padding = &[0; 3][..stun::padding(data.len())];
    [&head, data, padding].concat()
}

fn ended(server: &Running, reason: EndReason) -> u64 {
    server.stats().streams().ended(reason)
}

#[test]
fn data_passes_both_ways_over_tcp_and_tls() {
    let (builder, config) = builder(2);
    let server = start(builder);
    for mut client in clients(&server, &config) {
        let relayed = client.allocate();
        let peer = socket("127.0.0.1:0");
        let to = peer.local_addr().expect("bound");
        assert_eq!(client.permit(to), 0);
        let mut buffer = [0; 2048];
        // Of every length modulo four, so that padding matters.
        for length in 0..9 {
            let data = vec![length; length.into()];
            client.indicate(to, &data);
            let (received, from) = peer.recv_from(&mut buffer).expect("data");
            assert_eq!((&buffer[..received], from), (&data[..], relayed));
            peer.send_to(&data, relayed).expect("sent");
            assert_eq!(client.got(), Got::Data(to, data));
        }
        assert_eq!(client.bind(0x4001, to), 0);
        for length in [0, 1, 2, 3, 4, 5, 1199, 1200] {
            let data = vec![7; length];
            client.send(0x4001, &data);
            let (received, _) = peer.recv_from(&mut buffer).expect("data");
            assert_eq!(&buffer[..received], data);
            peer.send_to(&data, relayed).expect("sent");
            assert_eq!(client.got(), Got::Channel(0x4001, data));
        }
        client.release();
        drop(client);
    }
    eventually("the connections end", || {
        ended(&server, EndReason::Client) == 2
    });
    let streams = server.stats().streams();
    assert_eq!((streams.tcp_now, streams.tls_now), (0, 0));
    assert_eq!((streams.unproven_now, streams.queued_bytes_now), (0, 0));
    assert_eq!(streams.handshakes_tls13, 1);
}

#[test]
fn the_mapped_address_is_that_of_the_connection() {
    let (builder, config) = builder(1);
    let server = start(builder);
    for client in clients(&server, &config) {
        client.transmit(&binding(1));
        let bytes = client.receive();
        let response = Message::parse(&bytes).expect("a response");
        let mapped: Option<XorMappedAddress> = response.get().expect("well formed");
        assert_eq!(mapped, Some(XorMappedAddress(client.local())));
    }
}

#[test]
fn every_split_of_a_stream_means_the_same() {
    let (builder, _) = builder(1);
    let server = start(builder);
    let mut client = Client::stream(tcp(&server));
    client.allocate();
    let peer = socket("127.0.0.1:0");
    assert_eq!(client.bind(0x4000, peer.local_addr().expect("bound")), 0);
    let stream = [
        &channel_data(0x4000, b"12345")[..],
        &binding(3),
        &channel_data(0x4000, b"12345"),
        &channel_data(0x4000, b"abcdef"),
        &binding(4),
    ]
    .concat();
    let mut buffer = [0; 64];
    for at in 1..stream.len() {
        for part in [&stream[..at], &stream[at..]] {
            client.connection().send(part);
            // So that the parts are read apart, most of the time.
            std::thread::sleep(Duration::from_micros(300));
        }
        for expected in [&b"12345"[..], b"12345", b"abcdef"] {
            let length = peer.recv(&mut buffer).expect("data");
            assert_eq!(&buffer[..length], expected, "split at {at}");
        }
        for number in [3, 4] {
            let bytes = client.receive();
            let response = Message::parse(&bytes).expect("a response");
            assert_eq!(response.transaction_id(), TransactionId([number; 12]));
        }
    }
    for byte in &stream {
        client.connection().send(std::slice::from_ref(byte));
    }
    for _ in 0..3 {
        peer.recv(&mut buffer).expect("data");
    }
    assert_eq!(client.receive().len(), client.receive().len());
}

#[test]
fn another_protocol_ends_the_connection_and_is_counted() {
    let (builder, config) = builder(1);
    let server = start(builder);
    let (tcp, tls) = (server.tcp_listeners()[0], server.tls_listeners()[0]);
    for (to, bytes, reason) in [
        (tcp, &b"GET / HTTP/1.1\r\n\r\n"[..], EndReason::Text),
        (tcp, &[22, 3, 1, 0, 5, 1], EndReason::TlsOnTcp),
        (tls, &binding(1), EndReason::TcpOnTls),
        (tls, b"OPTIONS sip:a SIP/2.0\r\n", EndReason::Text),
        (tcp, &[0x40, 0, 0, 4, 1, 2, 3, 4], EndReason::NotStun),
        (
            tcp,
            &[0, 1, 0, 3, 0x21, 0x12, 0xa4, 0x42],
            EndReason::NotStun,
        ),
        (
            tcp,
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c",
            EndReason::ProxyHeader,
        ),
    ] {
        let before = ended(&server, reason);
        let mut link = StreamLink::tcp(to);
        link.socket.write_all(bytes).expect("room");
        assert!(link.is_ended(), "{reason:?}");
        eventually("the reason is counted", || {
            ended(&server, reason) == before + 1
        });
    }
    let mut broken = StreamLink::tcp(tls);
    broken
        .socket
        .write_all(&[22, 3, 1, 0, 4, 1, 0, 0, 9])
        .and_then(|()| broken.socket.write_all(&[0xff; 64]))
        .expect("room");
    assert!(broken.is_ended());
    eventually("the failure is counted", || {
        ended(&server, EndReason::Tls) == 1
    });
    // Garbage inside TLS.
    let mut link = StreamLink::tls(tls, &config);
    link.send(b"GET / HTTP/1.1\r\n\r\n");
    assert!(link.is_ended());
    eventually("it is counted", || ended(&server, EndReason::Text) == 3);
    let streams = server.stats().streams();
    let failures: u64 = [TlsFailure::NotTls, TlsFailure::Misbehaved]
        .map(|failure| streams.tls_failed(failure))
        .iter()
        .sum();
    assert_eq!(failures, 1);
}

#[test]
fn one_port_serves_plain_and_tls() {
    let (tls, config) = configs();
    let address = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        free.local_addr().expect("bound")
    };
    let server = Server::builder()
        .listen_tcp(address)
        .listen_tls(address)
        .tls(tls)
        .relay_address(ip("127.0.0.1"))
        .user(USER, PASSWORD);
    let server = start(server.workers(1));
    assert_eq!(server.tcp_listeners(), server.tls_listeners());
    let links = [StreamLink::tcp(address), StreamLink::tls(address, &config)];
    for mut client in links.map(Client::stream) {
        client.allocate();
    }
}

#[test]
fn silence_and_slowness_end_a_connection_in_time_and_an_allocation_keeps_one() {
    let (builder, config) = builder(1);
    let server = start(builder.streams(settings(|limits| {
        limits.message_deadline = Duration::from_millis(400);
        limits.idle = Duration::from_millis(800);
    })));
    let mut served = Client::stream(tcp(&server));
    served.allocate();
    let mut silent = tcp(&server);
    let mut handshake = StreamLink::tcp(server.tls_listeners()[0]);
    handshake.socket.write_all(&[22, 3, 1]).expect("room");
    let mut idle = StreamLink::tls(server.tls_listeners()[0], &config);
    idle.send(&binding(1));
    assert!(idle.receive().is_some());
    // 64 KiB announced, and a byte now and then.
    let mut dripping = tcp(&server);
    dripping
        .socket
        .write_all(&[0, 1, 0xff, 0xfc, 0x21, 0x12, 0xa4, 0x42])
        .expect("room");
    let began = Instant::now();
    while ended(&server, EndReason::MessageDeadline) < 3 {
        assert!(began.elapsed() < Duration::from_secs(5));
        // It may be closed by now.
        let _ = dripping.socket.write_all(&[0]);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(silent.is_ended() && handshake.is_ended() && idle.is_ended());
    assert_eq!(ended(&server, EndReason::Idle), 1);
    assert!(began.elapsed() >= Duration::from_millis(350));
    // Longer than the idle timeout has passed for it, too.
    std::thread::sleep(Duration::from_millis(800));
    served.transmit(&binding(2));
    assert!(!served.receive().is_empty());
}

#[test]
fn each_message_has_a_deadline_that_slowness_does_not_prolong() {
    let deadline = Duration::from_secs(1);
    let (builder, config) = builder(1);
    let server = start(builder.streams(settings(|limits| limits.message_deadline = deadline)));
    for is_tls in [false, true] {
        let mut link = if is_tls {
            StreamLink::tls(server.tls_listeners()[0], &config)
        } else {
            tcp(&server)
        };
        // The connection is established: the idle timeout of 60 s applies between messages.
        link.send(&binding(1));
        assert!(link.receive().is_some());
        let before = ended(&server, EndReason::MessageDeadline);
        // The first byte of a message, later its header, then its attributes: the server parses it several times.
        let header = [
            0, 1, 0xff, 0xfc, 0x21, 0x12, 0xa4, 0x42, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
        ];
        let began = Instant::now();
        for part in [&header[..1], &header[1..5], &header[5..]] {
            link.send(part);
            std::thread::sleep(deadline / 4);
        }
        eventually("it ends", || {
            ended(&server, EndReason::MessageDeadline) > before
        });
        assert!(began.elapsed() >= deadline * 9 / 10);
        assert!(link.is_ended());
    }
}

#[test]
fn an_incomplete_tls_record_does_not_prolong_the_idle_timeout() {
    let (builder, config) = builder(1);
    let server = start(builder.streams(settings(|limits| {
        limits.idle = Duration::from_secs(1);
    })));
    let mut link = StreamLink::tls(server.tls_listeners()[0], &config);
    link.send(&binding(1));
    assert!(link.receive().is_some());
    // A record of 16 KiB is announced, and a byte now and then.
    let began = Instant::now();
    link.socket.write_all(&[23, 3, 3, 0x40, 0]).expect("room");
    while ended(&server, EndReason::Idle) == 0 {
        assert!(began.elapsed() < Duration::from_secs(20));
        // It may be closed by now.
        let _ = link.socket.write_all(&[0]);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_source_has_its_share_and_unproven_connections_make_room() {
    let (builder, _) = builder(1);
    let server = start(builder.streams(settings(|limits| {
        limits.connections = 80;
        limits.connections_per_source = 15;
    })));
    let address = server.tcp_listeners()[0];
    let mut first: Vec<_> = (0..16).map(|_| StreamLink::tcp(address)).collect();
    assert!(first[15].is_ended(), "one more than the source may have");
    eventually("it is counted", || {
        server.stats().streams().refused_source == 1
    });
    // 20 may be unproven: other sources find room all the same, and the one with the most loses some.
    let other = |last: u8| {
        let any = SocketAddr::from(([127, 0, 1, last], 0));
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.expect("a socket");
        socket.bind(&any.into()).expect("loopback");
        socket.connect(&address.into()).expect("accepted");
        TcpStream::from(socket)
    };
    let others: Vec<_> = (1..=12).map(other).collect();
    eventually("some made room", || ended(&server, EndReason::Evicted) == 7);
    assert_eq!(server.stats().streams().unproven_now, 20);
    drop(others);
}

#[test]
fn requests_that_nobody_answers_for_keep_nothing() {
    let (builder, _) = builder(1);
    let server = start(builder);
    let mut flood = Client::stream(tcp(&server));
    // 3,000 Allocates without credentials at once: each gets its 401.
    let mut requests = Vec::new();
    for number in 0..3_000_u16 {
        let mut buffer = [0; 64];
        let mut id = [5; 12];
        id[..2].copy_from_slice(&number.to_be_bytes());
        let id = TransactionId(id);
        let request = stun::Builder::new(&mut buffer, Class::Request, Method::ALLOCATE, &id);
        let mut request = request.expect("room");
        request
            .push(&stun::RequestedTransport(stun::RequestedTransport::UDP.0))
            .expect("room");
        requests.extend_from_slice(request.finish());
    }
    let mut honest = Client::stream(tcp(&server));
    let writer = flood.connection().socket.try_clone().expect("a copy");
    let writing = std::thread::spawn(move || (&writer).write_all(&requests));
    honest.allocate();
    for _ in 0..3_000 {
        assert_eq!(flood.next_answer().code(), 401);
    }
    writing.join().expect("no panic").expect("all written");
    assert_eq!(flood.try_allocate().code(), 0);
    assert_eq!(server.stats().streams().queued_bytes_now, 0);
}

#[test]
fn a_client_that_does_not_read_its_responses_stops_being_read() {
    let (builder, _) = builder(1);
    let server = start(builder.streams(settings(|limits| {
        limits.message_deadline = Duration::from_millis(100);
        limits.idle = Duration::from_secs(4);
    })));
    let lazy = tcp(&server);
    let (mut written, request) = (0_usize, binding(9).repeat(50));
    lazy.socket.set_nonblocking(true).expect("a socket");
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        match (&lazy.socket).write(&request) {
            Ok(bytes) => written += bytes,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    let streams = server.stats().streams();
    assert!(streams.queued_bytes_now < 64 << 10, "{streams:?}");
    assert!(written > 1 << 20, "its own buffers take some: {written}");
    let mut honest = Client::stream(tcp(&server));
    honest.allocate();
    eventually("it ends", || ended(&server, EndReason::Unread) == 1);
    assert_eq!(ended(&server, EndReason::MessageDeadline), 0);
}

#[test]
fn a_slow_reader_gets_whole_messages_and_the_newest_data() {
    let (builder, _) = builder(1);
    let server = start(builder.streams(settings(|limits| {
        limits.queue_bytes = 256 << 10;
        limits.queue_age = Duration::from_millis(200);
    })));
    let mut slow = Client::stream(tcp(&server));
    let relayed = slow.allocate();
    let peer = socket("127.0.0.1:0");
    let to = peer.local_addr().expect("bound");
    assert_eq!(slow.bind(0x4000, to), 0);
    let mut data = [0; 1200];
    let mut last = 0_u32;
    let began = Instant::now();
    while server.stats().streams().dropped_age + server.stats().streams().dropped_bytes < 5_000 {
        assert!(began.elapsed() < Duration::from_secs(20));
        for _ in 0..64 {
            last += 1;
            data[..4].copy_from_slice(&last.to_be_bytes());
            peer.send_to(&data, relayed).expect("sent");
        }
        std::thread::sleep(Duration::from_millis(1));
        let queued = server.stats().streams().queued_bytes_now;
        assert!(queued <= (256 << 10) + 1204, "{queued}");
    }
    // What comes is in order, and whole; in the end the newest.
    let mut newest = 0;
    loop {
        let Got::Channel(0x4000, got) = slow.got() else {
            panic!("ChannelData");
        };
        assert_eq!(got.len(), 1200);
        let number = u32::from_be_bytes([got[0], got[1], got[2], got[3]]);
        assert!(number > newest);
        newest = number;
        if newest > last - 50 {
            break;
        }
        if server.stats().streams().queued_bytes_now == 0 && newest + 2_000 > last {
            last += 1;
            data[..4].copy_from_slice(&last.to_be_bytes());
            peer.send_to(&data, relayed).expect("sent");
        }
    }
}

#[test]
fn a_burst_arrives_whole_after_a_pause() {
    let (builder, config) = builder(1);
    // Sending takes longer than a burst does, because the relay's receive buffer must not overflow.
    let server = start(builder.streams(settings(|limits| {
        limits.queue_age = Duration::from_secs(3);
    })));
    let received = || server.stats().counters().peer_datagrams;
    for mut client in clients(&server, &config) {
        let relayed = client.allocate();
        let peer = socket("127.0.0.1:0");
        assert_eq!(client.bind(0x4000, peer.local_addr().expect("bound")), 0);
        let before = received();
        // 1 MiB.
        for number in 0..1_024_u16 {
            let mut data = [3; 1_024];
            data[..2].copy_from_slice(&number.to_be_bytes());
            peer.send_to(&data, relayed).expect("sent");
            if number % 64 == 63 {
                let sent = u64::from(number) + 1;
                eventually("the relay reads", || received() - before == sent);
            }
        }
        std::thread::sleep(Duration::from_millis(100));
        for number in 0..1_024_u16 {
            let Got::Channel(_, data) = client.got() else {
                panic!("ChannelData");
            };
            assert_eq!(data[..2], number.to_be_bytes());
        }
    }
    let streams = server.stats().streams();
    assert_eq!((streams.dropped_age, streams.dropped_bytes), (0, 0));
}

#[test]
fn data_that_arrives_with_the_end_is_relayed() {
    let (builder, config) = builder(1);
    let server = start(builder);
    for mut client in clients(&server, &config) {
        let relayed = client.allocate();
        let peer = socket("127.0.0.1:0");
        assert_eq!(client.bind(0x4000, peer.local_addr().expect("bound")), 0);
        let last = channel_data(0x4000, b"the last words");
        client.connection().send_and_close(&last);
        let mut buffer = [0; 64];
        let (length, from) = peer.recv_from(&mut buffer).expect("data");
        assert_eq!((&buffer[..length], from), (&b"the last words"[..], relayed));
        eventually("the allocation ends", || server.stats().allocations() == 0);
    }
    assert_eq!(ended(&server, EndReason::Client), 2);
}

#[test]
fn a_connection_that_breaks_ends_its_allocation() {
    let (builder, config) = builder(2);
    let server = start(builder);
    let mut all: Vec<_> = (0..10).flat_map(|_| clients(&server, &config)).collect();
    for client in &mut all {
        client.allocate();
    }
    assert_eq!(server.stats().allocations(), 20);
    drop(all);
    eventually("all end", || server.stats().allocations() == 0);
    assert_eq!(server.stats().streams().unproven_now, 0);
}

/// A PROXY header of version 2 for TCP over IPv4 (the specification of HAProxy, section 2.2).
fn proxy_header(client: [u8; 4]) -> Vec<u8> {
    let rest = [198, 51, 100, 2, 0x12, 0x34, 0x0d, 0x96];
    [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..], &client, &rest].concat()
}

#[test]
fn a_client_behind_a_load_balancer_has_its_own_share() {
    let (builder, _) = builder(1);
    let builder = builder.streams(settings(|limits| limits.connections_per_source = 3));
    let server = start(builder.proxy_protocol_from("127.0.0.1/32".parse().expect("a network")));
    let connect = |client: u8| {
        let mut link = tcp(&server);
        let bytes = [proxy_header([192, 0, 2, client]), binding(1).to_vec()].concat();
        link.socket.write_all(&bytes).expect("room");
        link
    };
    let mut first: Vec<_> = (0..3).map(|_| connect(1)).collect();
    assert!(first.iter_mut().all(|link| link.receive().is_some()));
    assert!(connect(1).is_ended(), "one more than the client may have");
    assert_eq!(ended(&server, EndReason::SourceLimit), 1);
    assert!(connect(2).receive().is_some(), "another client has its own");
    drop(first);
    eventually("they end", || server.stats().streams().tcp_now == 0);
    assert!(connect(1).receive().is_some(), "its share is free again");
}

#[test]
fn a_load_balancer_says_whose_a_connection_is() {
    let (builder, _) = builder(1);
    let server = start(builder.proxy_protocol_from("127.0.0.1/32".parse().expect("a network")));
    let mut link = tcp(&server);
    let header = [proxy_header([192, 0, 2, 7]), binding(1).to_vec()].concat();
    for byte in header.chunks(5) {
        link.socket.write_all(byte).expect("room");
        std::thread::sleep(Duration::from_millis(1));
    }
    let bytes = link.receive().expect("a response");
    let response = Message::parse(&bytes).expect("a response");
    let mapped: Option<XorMappedAddress> = response.get().expect("well formed");
    assert_eq!(mapped, Some(XorMappedAddress(at("192.0.2.7:4660"))));
    let mut plain = tcp(&server);
    plain.socket.write_all(&binding(1)).expect("room");
    assert!(plain.is_ended(), "a header is required");
}
