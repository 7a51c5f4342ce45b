//! STUN and TURN over DTLS, as clients see it.

use crate::common::dtls::{DtlsLink, configs};
use crate::common::{Client, Got, PASSWORD, USER, at, eventually, ip, socket, start};
use dtls::ClientConfig;
use hairpin_server::connections::StreamSettings;
use hairpin_server::dtls::{CloseReason, DropReason};
use hairpin_server::{Builder, Running, Server, StartError};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use stun::{Class, Message, Method, TransactionId, XorMappedAddress};

fn builder(workers: usize) -> (Builder, Arc<ClientConfig>) {
    let (certificate, client) = configs();
    let builder = Server::builder()
        .listen_dtls(at("127.0.0.1:0"))
        .certificates(certificate)
        .relay_address(ip("127.0.0.1"))
        .user(USER, PASSWORD)
        .allow_peers("127.0.0.0/8".parse().expect("a network"))
        .workers(workers);
    (builder, client)
}

fn connect(server: SocketAddr, config: &Arc<ClientConfig>) -> Client {
    Client::dtls(DtlsLink::new(socket("127.0.0.1:0"), server, config))
}

fn binding() -> [u8; 20] {
    let mut buffer = [0; 20];
    let id = TransactionId([7; 12]);
    let builder = stun::Builder::new(&mut buffer, Class::Request, Method::BINDING, &id);
    assert_eq!(builder.expect("room").finish().len(), 20);
    buffer
}

fn assert_relays(client: &mut Client) {
    let relayed = client.allocate();
    let peer = socket("127.0.0.1:0");
    let to = peer.local_addr().expect("bound");
    assert_eq!(client.permit(to), 0);
    let mut buffer = [0; 2048];
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
}

fn ended(server: &Running, reason: CloseReason) -> u64 {
    server.stats().dtls().ended_for(reason)
}

#[test]
fn data_passes_both_ways_and_the_end_of_a_connection_ends_its_allocation() {
    let (builder, config) = builder(2);
    let server = start(builder);
    let at = server.dtls_listeners()[0];
    assert!(server.listeners().is_empty());
    let mut clients: Vec<Client> = (0..4).map(|_| connect(at, &config)).collect();
    clients.iter_mut().for_each(assert_relays);
    eventually("all are counted", || {
        server.stats().dtls().connections_now == 4 && server.stats().allocations() == 4
    });
    for client in &clients {
        client.dtls_link().close();
    }
    eventually("the allocations end", || {
        ended(&server, CloseReason::Peer) == 4 && server.stats().allocations() == 0
    });
    let dtls = server.stats().dtls();
    assert_eq!((dtls.connections_now, dtls.handshakes_now), (0, 0));
    assert_eq!((dtls.cookies_sent, dtls.established), (4, 4));
}

#[test]
fn a_port_may_serve_plain_udp_and_dtls_even_to_one_client() {
    let (certificate, config) = configs();
    let port = socket("127.0.0.1:0").local_addr().expect("bound");
    let server = start(
        Server::builder()
            .listen(port)
            .listen_dtls(port)
            .certificates(certificate)
            .relay_address(ip("127.0.0.1"))
            .user(USER, PASSWORD)
            .allow_peers("127.0.0.0/8".parse().expect("a network"))
            .workers(1),
    );
    assert_eq!(
        (server.listeners(), server.dtls_listeners()),
        (&[port][..], &[port][..])
    );
    let shared = socket("127.0.0.1:0");
    let mut plain = Client::over(shared.try_clone().expect("a socket"), port);
    let plain_relay = plain.allocate();
    let mut secure = Client::dtls(DtlsLink::new(shared, port, &config));
    assert_ne!(secure.allocate(), plain_relay, "two 5-tuples");
    eventually("two allocations", || server.stats().allocations() == 2);
    assert_eq!(plain.permit(at("127.0.0.1:9")), 0);
    assert_relays(&mut connect(port, &config));
}

#[test]
fn the_mapped_address_is_that_of_the_client() {
    let (builder, config) = builder(1);
    let server = start(builder);
    let client = connect(server.dtls_listeners()[0], &config);
    client.transmit(&binding());
    let bytes = client.receive();
    let response = Message::parse(&bytes).expect("a response");
    let mapped: Option<XorMappedAddress> = response.get().expect("well formed");
    assert_eq!(mapped, Some(XorMappedAddress(client.local())));
}

/// RFC 7350 §3: without DTLS the port gives no answer.
#[test]
fn a_dtls_port_answers_nothing_else() {
    let (builder, config) = builder(1);
    let server = start(builder);
    let port = server.dtls_listeners()[0];
    let other = socket("127.0.0.1:0");
    other
        .set_read_timeout(Some(Duration::from_millis(200)))
        .expect("not zero");
    for datagram in [
        &binding()[..],
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        &[22, 254, 253, 0, 0],
    ] {
        other.send_to(datagram, port).expect("sent");
    }
    assert!(other.recv_from(&mut [0; 100]).is_err());
    let dropped = |reason| server.stats().dtls().dropped(reason);
    eventually("they are counted", || {
        dropped(DropReason::MalformedRecord) == 3
    });
    // A replayed and a forged record.
    let client = connect(port, &config);
    let sealed = client.dtls_link().sealed(&binding());
    let mut forged = client.dtls_link().sealed(&binding());
    *forged.last_mut().expect("bytes") ^= 1;
    for datagram in [&sealed, &sealed, &forged] {
        client
            .dtls_link()
            .socket
            .send_to(datagram, port)
            .expect("sent");
    }
    eventually("they are counted", || {
        dropped(DropReason::Replayed) == 1 && dropped(DropReason::Forged) == 1
    });
}

#[test]
fn an_idle_connection_ends_unless_it_has_an_allocation() {
    let (builder, config) = builder(1);
    let mut settings = StreamSettings::default();
    settings.idle = Duration::from_millis(300);
    let server = start(builder.streams(settings));
    let port = server.dtls_listeners()[0];
    let mut busy = connect(port, &config);
    busy.allocate();
    let idle = connect(port, &config);
    let mut link = idle.dtls_link();
    while link.read() {}
    assert_eq!(link.closed, Some(CloseReason::Peer), "close_notify came");
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(ended(&server, CloseReason::Idle), 1);
    assert_eq!(busy.permit(at("127.0.0.1:9")), 0);
}

#[test]
fn a_server_that_ends_says_so() {
    let (builder, config) = builder(2);
    let server = start(builder);
    let client = connect(server.dtls_listeners()[0], &config);
    server.shutdown().expect("it ends");
    let mut link = client.dtls_link();
    while link.read() {}
    assert_eq!(link.closed, Some(CloseReason::Peer));
}

#[test]
fn a_dtls_listener_requires_a_certificate() {
    let builder = Server::builder()
        .listen_dtls(at("127.0.0.1:0"))
        .relay_address(ip("127.0.0.1"));
    assert!(matches!(builder.start(), Err(StartError::NoCertificate(_))));
}

#[test]
fn connections_of_a_source_are_bounded_and_others_are_admitted() {
    let (builder, config) = builder(1);
    let mut settings = StreamSettings::default();
    settings.connections_per_source = 2;
    let server = start(builder.streams(settings));
    let port = server.dtls_listeners()[0];
    let link = |from: &str| DtlsLink::new(socket(from), port, &config);
    let (mut first, _second) = (link("127.0.0.1:0"), link("127.0.0.1:0"));
    let mut third = DtlsLink::begin(socket("127.0.0.1:0"), port, &config);
    // The cookie, which it returns.
    assert!(third.read());
    eventually("the third is refused", || {
        server.stats().dtls().dropped(DropReason::TooManyOfSource) == 1
    });
    let _other = link("127.0.0.2:0");
    first.close();
    eventually("one has ended", || {
        server.stats().dtls().connections_now == 2
    });
    let _next = link("127.0.0.1:0");
    server.shutdown().expect("no panic");
}
