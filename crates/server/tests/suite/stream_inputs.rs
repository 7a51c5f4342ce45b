//! What clients may send over TCP and TLS, in order and out of order: it means the same however it is cut, the end is
//! named in one counter, and nobody else waits for it.

use crate::common::stream::{StreamLink, configs};
use crate::common::{PASSWORD, StopAtEnd, USER, at, ip, start};
use hairpin_server::connections::{EndReason, StreamCounters, StreamSettings};
use hairpin_server::rustls::ClientConfig;
use hairpin_server::rustls::pki_types::ServerName;
use hairpin_server::{Running, Server};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use stun::{Class, Message, Method, TransactionId};

/// A generous limit for what takes milliseconds.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// The message deadline of the server under test: cases that depend on it must not take long.
const DEADLINE: Duration = Duration::from_secs(2);

/// Where a case is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Port {
    /// To the TCP port.
    Tcp,
    /// To the TLS port, without TLS.
    BareTls,
    /// Inside a TLS connection; each part is a record.
    InTls,
}

struct Case {
    name: &'static str,
    port: Port,
    bytes: Vec<u8>,
    /// Transactions that are answered.
    answered: &'static [u8],
    /// Why the connection ends; `None`: it stays open.
    end: Option<EndReason>,
}

/// How the bytes of a case are cut.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Whole,
    At(usize),
    Bytes,
}

impl Cut {
    fn parts(self, bytes: &[u8]) -> Vec<&[u8]> {
        match self {
            Cut::Whole => vec![bytes],
            Cut::At(at) => vec![&bytes[..at], &bytes[at..]],
            Cut::Bytes => bytes.chunks(1).collect(),
        }
    }
}

fn binding(number: u8) -> Vec<u8> {
    let mut buffer = [0; 20];
    let id = TransactionId([number; 12]);
    let builder = stun::Builder::new(&mut buffer, Class::Request, Method::BINDING, &id);
    builder.expect("room").finish().to_vec()
}

/// A Binding request of 64 KiB: an attribute that the server may ignore fills it.
fn long_binding(number: u8) -> Vec<u8> {
    let mut message = binding(number);
    let value = 65_528_u16;
    message[2..4].copy_from_slice(&(value + 4).to_be_bytes());
    message.extend_from_slice(&[0xc0, 0x01]);
    message.extend_from_slice(&value.to_be_bytes());
    message.resize(20 + 4 + usize::from(value), 7);
    message
}

fn with(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// The first bytes of a real client: a ClientHello.
fn client_hello() -> Vec<u8> {
    let (_, config) = configs();
    let name = ServerName::try_from(crate::common::stream::NAME).expect("a name");
    let mut tls = streams::Tls::client(config, name).expect("a configuration");
    let (mut plain, mut out) = (Vec::new(), Vec::new());
    tls.received(&[], &mut plain, &mut out).expect("a start");
    out
}

/// Data of a channel that does not exist, one byte long, without its padding.
const UNPADDED: [u8; 5] = [0x40, 0, 0, 1, b'a'];

/// Messages that are in order, or nearly.
fn in_step(port: Port) -> Vec<Case> {
    let one = binding(1);
    let requests = with(&[&one, &binding(2), &binding(3)]);
    let padded = with(&[&one, &UNPADDED, &[0; 3], &binding(2)]);
    let odd = with(&[&one, &UNPADDED, &[9; 3], &binding(2)]);
    let case = |name, bytes, answered| Case {
        name,
        port,
        bytes,
        answered,
        end: None,
    };
    vec![
        case("requests", requests, &[1, 2, 3]),
        case("a channel without an allocation", padded, &[1, 2]),
        case("padding that is not zero", odd, &[1, 2]),
    ]
}

/// Bytes that are no message.
fn out_of_step(port: Port) -> Vec<Case> {
    let one = binding(1);
    let mut bad_length = binding(2);
    bad_length[3] = 3;
    let mut bad_cookie = binding(2);
    bad_cookie[4..8].copy_from_slice(b"none");
    let http = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let unpadded = with(&[&one, &UNPADDED, &binding(2)]);
    let case = |name, bytes, answered, end| Case {
        name,
        port,
        bytes,
        answered,
        end: Some(end),
    };
    let not_stun = EndReason::NotStun;
    let first = with(&[&UNPADDED, &[0; 3]]);
    let bad_length = with(&[&one, &bad_length, &[0; 3]]);
    let late_garbage = with(&[&one, &[0xff; 32]]);
    let sip = b"OPTIONS sip:a SIP/2.0\r\n\r\n".to_vec();
    vec![
        case("missing padding", unpadded, &[1], not_stun),
        case("ChannelData first", first, &[], not_stun),
        case(
            "a length that is no multiple of four",
            bad_length,
            &[1],
            not_stun,
        ),
        case("another magic cookie", bad_cookie, &[], not_stun),
        case("garbage", vec![0x9f; 32], &[], not_stun),
        case("garbage after a request", late_garbage, &[1], not_stun),
        case("HTTP", http.to_vec(), &[], EndReason::Text),
        case("SIP", sip, &[], EndReason::Text),
    ]
}

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    // Messages mean the same inside TLS.
    for port in [Port::Tcp, Port::InTls] {
        all.extend(in_step(port));
        all.extend(out_of_step(port));
    }
    for (name, port, bytes, end) in [
        (
            "TLS to the TCP port",
            Port::Tcp,
            client_hello(),
            EndReason::TlsOnTcp,
        ),
        (
            "STUN to the TLS port",
            Port::BareTls,
            binding(1),
            EndReason::TcpOnTls,
        ),
        (
            "HTTP to the TLS port",
            Port::BareTls,
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            EndReason::Text,
        ),
        (
            "garbage to the TLS port",
            Port::BareTls,
            vec![0x9f; 32],
            EndReason::NotStun,
        ),
        (
            "a TLS record of garbage",
            Port::BareTls,
            with(&[&[22, 3, 1, 0, 4, 1, 0, 0, 9], &[0xff; 32]]),
            EndReason::Tls,
        ),
        (
            "a PROXY header that nobody asked for",
            Port::Tcp,
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec(),
            EndReason::ProxyHeader,
        ),
    ] {
        all.push(Case {
            name,
            port,
            bytes,
            answered: &[],
            end: Some(end),
        });
    }
    all
}

fn server() -> (Running, Arc<ClientConfig>) {
    let (tls, client) = configs();
    let mut settings = StreamSettings::default();
    settings.message_deadline = DEADLINE;
    let builder = Server::builder()
        .listen_tcp(at("127.0.0.1:0"))
        .listen_tls(at("127.0.0.1:0"))
        .tls(tls)
        .relay_address(ip("127.0.0.1"))
        .user(USER, PASSWORD)
        .streams(settings)
        .workers(1);
    (start(builder), client)
}

fn link(server: &Running, port: Port, config: &Arc<ClientConfig>) -> StreamLink {
    match port {
        Port::Tcp => StreamLink::tcp(server.tcp_listeners()[0]),
        Port::BareTls => StreamLink::tcp(server.tls_listeners()[0]),
        Port::InTls => StreamLink::tls(server.tls_listeners()[0], config),
    }
}

/// How many connections have ended, by reason.
fn ends(server: &Running) -> Vec<u64> {
    let streams: StreamCounters = server.stats().streams();
    let all = EndReason::ALL.iter();
    all.map(|&reason| streams.ended(reason)).collect()
}

/// Waits until one more connection has ended, and says why.
fn next_end(server: &Running, before: &[u64]) -> EndReason {
    let start = Instant::now();
    loop {
        let now = ends(server);
        let more: Vec<(EndReason, u64)> = EndReason::ALL
            .iter()
            .zip(now.iter().zip(before))
            .filter(|(_, (now, before))| now > before)
            .map(|(&reason, (now, before))| (reason, now - before))
            .collect();
        match more[..] {
            [(reason, 1)] => return reason,
            [] => assert!(start.elapsed() < MAX_WAIT, "the end is not counted"),
            _ => panic!("one connection ended more than once: {more:?}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn answered(link: &mut StreamLink) -> Option<TransactionId> {
    let bytes = link.receive()?;
    let response = Message::parse(&bytes).expect("a response");
    assert_eq!(response.class(), Class::Success);
    Some(response.transaction_id())
}

/// One connection that sends a case, cut in this way.
fn attempt(server: &Running, config: &Arc<ClientConfig>, case: &Case, cut: Cut) {
    let what = format!("{} ({:?}, {cut:?})", case.name, case.port);
    let before = ends(server);
    let mut link = link(server, case.port, config);
    for part in cut.parts(&case.bytes) {
        if !link.try_send(part) {
            // The server has ended the connection before it read everything.
            assert!(case.end.is_some(), "{what}: it was closed");
            break;
        }
    }
    for &number in case.answered {
        let id = answered(&mut link);
        assert_eq!(id, Some(TransactionId([number; 12])), "{what}");
    }
    if case.end.is_some() {
        assert!(link.is_ended(), "{what}: it stays open");
    } else {
        // The stream is in step: one more request is answered.
        link.send(&binding(99));
        let id = answered(&mut link);
        assert_eq!(id, Some(TransactionId([99; 12])), "{what}");
    }
    drop(link);
    let reason = next_end(server, &before);
    assert_eq!(reason, case.end.unwrap_or(EndReason::Client), "{what}");
}

/// Positions to cut a case at: all of a short one, some of a long one.
fn cuts(length: usize) -> Vec<usize> {
    let step = length.div_ceil(80).max(1);
    (1..length).step_by(step).collect()
}

#[test]
fn bytes_mean_the_same_however_they_are_cut() {
    let (server, config) = server();
    for case in &cases() {
        attempt(&server, &config, case, Cut::Whole);
        attempt(&server, &config, case, Cut::Bytes);
        for position in cuts(case.bytes.len()) {
            attempt(&server, &config, case, Cut::At(position));
        }
    }
    let streams = server.stats().streams();
    assert_eq!((streams.tcp_now, streams.tls_now), (0, 0));
    server.shutdown().expect("no panic");
}

#[test]
fn a_message_of_64_kib_is_answered_if_it_is_complete_and_dripping_ends_in_time() {
    let (server, config) = server();
    let long = long_binding(5);
    for port in [Port::Tcp, Port::InTls] {
        let mut link = link(&server, port, &config);
        for part in long.chunks(1000) {
            link.send(part);
        }
        assert_eq!(
            answered(&mut link),
            Some(TransactionId([5; 12])),
            "{port:?}"
        );
    }
    let before = ends(&server);
    let mut dripping = link(&server, Port::Tcp, &config);
    let began = Instant::now();
    for part in long.chunks(1) {
        if !dripping.try_send(part) {
            break;
        }
        assert!(began.elapsed() < MAX_WAIT, "it goes on for ever");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(dripping.is_ended());
    let after = ends(&server);
    let late = EndReason::ALL
        .iter()
        .position(|&reason| reason == EndReason::MessageDeadline)
        .expect("a reason");
    assert!(began.elapsed() >= DEADLINE * 9 / 10, "too soon");
    assert_eq!(after[late], before[late] + 1);
    server.shutdown().expect("no panic");
}

/// Round trips at a steady pace, until told to stop.
fn ping(stop: &AtomicBool, mut exchange: impl FnMut()) -> Vec<Duration> {
    let mut trips = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        exchange();
        trips.push(start.elapsed());
        std::thread::sleep(Duration::from_millis(2));
    }
    trips.sort();
    trips
}

/// A program that only sends back what comes: its round trips show what the machine itself delays.
fn echo(stop: &AtomicBool) -> Vec<Duration> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a connection");
        let mut buffer = [0; 20];
        while socket.read_exact(&mut buffer).is_ok() && socket.write_all(&buffer).is_ok() {}
    });
    let mut socket = TcpStream::connect(address).expect("it accepts");
    socket.set_nodelay(true).expect("TCP_NODELAY");
    ping(stop, || {
        let mut buffer = [0; 20];
        socket.write_all(&buffer).expect("room");
        socket.read_exact(&mut buffer).expect("an echo");
    })
}

fn share(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() - 1) * percent / 100]
}

/// Others wait at most 5 ms longer than for a program that has nothing to do, at the same time on the same machine.
#[test]
fn nobody_else_waits_for_a_client_that_sends_nonsense() {
    const ALLOWED: Duration = Duration::from_millis(5);
    let (server, config) = server();
    let stop = AtomicBool::new(false);
    let pinger = |port| {
        let mut link = link(&server, port, &config);
        let (stop, request) = (&stop, binding(7));
        move || {
            ping(stop, || {
                link.send(&request);
                assert!(link.receive().is_some());
            })
        }
    };
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        let served = [Port::Tcp, Port::InTls].map(|port| scope.spawn(pinger(port)));
        let machine = scope.spawn(|| echo(&stop));
        let long = long_binding(5);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(2) {
            // They announce 64 KiB, and stay.
            let mut waiting: Vec<StreamLink> =
                (0..20).map(|_| link(&server, Port::Tcp, &config)).collect();
            for link in &mut waiting {
                link.send(&long[..long.len() / 2]);
            }
            for case in &cases() {
                for part in case.bytes.chunks(1) {
                    let mut link = link(&server, case.port, &config);
                    // A part of the case, all of it, and part by part; whatever becomes of them.
                    let _ = link.try_send(part) && link.try_send(&case.bytes);
                    if begun.elapsed() > Duration::from_secs(4) {
                        break;
                    }
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        let machine = machine.join().expect("no panic");
        for served in served.map(|thread| thread.join().expect("no panic")) {
            let numbers = |trips: &[Duration]| [50, 75, 99].map(|percent| share(trips, percent));
            let (ours, theirs) = (numbers(&served), numbers(&machine));
            println!(
                "{} round trips {ours:?}, the machine {theirs:?}",
                served.len()
            );
            assert!(served.len() >= 50, "too few: {}", served.len());
            assert!(ours[0] <= theirs[0] + ALLOWED, "{ours:?} {theirs:?}");
            // Above that, a busy machine shows its scheduler: a thread that works waits longer than one that sleeps.
            assert!(ours[1] <= theirs[2] + ALLOWED, "{ours:?} {theirs:?}");
        }
    });
    server.shutdown().expect("no panic");
}
