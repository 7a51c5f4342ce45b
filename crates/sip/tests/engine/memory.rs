//! What a transaction costs, and that a refusal costs nothing.

use std::time::Duration;

use allocation_counter::measure;
use hairpin_sip::congestion::Backlog;
use hairpin_sip::engine::{Engine, Received, Reply};
use hairpin_sip::flow::{Flow, ListenerKey, Transport};
use hairpin_sip::{HashKey, Mono, Now, Spans};

use crate::world::{address, config, text};

const NOW: Now = Now {
    mono: Mono(1_000_000_000),
    unix_s: 1_700_000_000,
};
const COUNT: u64 = 4_000;

fn flow(transport: Transport) -> Flow {
    Flow {
        transport,
        listener: ListenerKey(0),
        connection: None,
        local: address(1),
        remote: address(0),
    }
}

/// A REGISTER or INVITE as a phone sends it.
fn message(method: &str, number: u64) -> Vec<u8> {
    format!(
        "{method} sip:example.org SIP/2.0\r\n\
         Via: SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bK-524287-1---{number:016x};rport\r\n\
         Max-Forwards: 70\r\nContact: <sip:alice{number}@192.0.2.1:5060;transport=udp>\r\n\
         To: \"Alice\" <sip:alice{number}@example.org>\r\n\
         From: \"Alice\" <sip:alice{number}@example.org>;tag={number:08x}\r\n\
         Call-ID: {number:032x}@192.0.2.1\r\nCSeq: 1 {method}\r\nExpires: 3600\r\n\
         User-Agent: A telephone 1.2.3\r\nContent-Length: 0\r\n\r\n"
    )
    .into_bytes()
}

/// Bytes allocated per transaction, in an engine that had none.
fn bytes_each(engine: &mut Engine, method: &str, reply: &Reply<'_>) -> u64 {
    let messages: Vec<Vec<u8>> = (0..COUNT).map(|number| message(method, number)).collect();
    let mut spans = Spans::new();
    let info = measure(|| {
        for bytes in &messages {
            answer(engine, &mut spans, bytes, reply);
        }
    });
    assert_eq!(engine.stats().servers as u64, COUNT);
    // Vectors that double were allocated twice over: what counts is what is held in the end.
    info.bytes_current as u64 / COUNT
}

fn answer(engine: &mut Engine, spans: &mut Spans, bytes: &[u8], reply: &Reply<'_>) {
    match engine.handle_message(NOW, &flow(Transport::Udp), bytes, spans) {
        Received::Request(request) => {
            engine.answer(NOW.mono, request, reply).unwrap();
        }
        other => panic!("{other:?}"),
    }
    while engine.poll_output().is_some() {}
}

const CONTACT: &[u8] = b"Contact: <sip:alice@192.0.2.1:5060;transport=udp>;expires=3600\r\n\
      Date: Sat, 13 Nov 2026 23:29:00 GMT\r\nServer: a registrar\r\n";

#[test]
fn a_completed_request_over_udp_takes_a_kilobyte_at_most() {
    let mut engine = Engine::new(config(1), 1);
    let reply = Reply::new(200).headers(CONTACT);
    let bytes = bytes_each(&mut engine, "REGISTER", &reply);
    assert!(bytes <= 1024, "{bytes} bytes");
    println!("completed REGISTER over UDP: {bytes} bytes");
}

#[test]
fn a_refused_invite_takes_two_kilobytes_at_most_until_its_ack_and_less_than_one_afterwards() {
    let mut engine = Engine::new(config(1), 1);
    let reply = Reply::new(486).headers(CONTACT);
    let bytes = bytes_each(&mut engine, "INVITE", &reply);
    assert!(bytes <= 2048, "{bytes} bytes");
    println!("refused INVITE before its ACK: {bytes} bytes");
    let mut spans = Spans::new();
    for number in 0..COUNT {
        let ack = text(&message("INVITE", number)).replace("INVITE", "ACK");
        let _ = engine.handle_message(NOW, &flow(Transport::Udp), ack.as_bytes(), &mut spans);
    }
    assert_eq!(engine.stats().message_bytes, 0, "only the key");
}

#[test]
fn an_answered_invite_takes_two_kilobytes_at_most() {
    let mut engine = Engine::new(config(1), 1);
    let body = [b'x'; 400];
    let target = b"sip:alice@[2001:db8:1234:5678::9abc]:5060;transport=tcp";
    let reply = Reply::new(200)
        .headers(CONTACT)
        .body(&body)
        .until_ack_from(target);
    let bytes = bytes_each(&mut engine, "INVITE", &reply);
    assert!(bytes <= 2048, "{bytes} bytes");
    println!("answered INVITE before its ACK: {bytes} bytes");
}

#[test]
fn in_steady_state_transactions_allocate_nothing() {
    let mut engine = Engine::new(config(1), 1);
    let mut spans = Spans::new();
    let reply = Reply::new(200).headers(CONTACT);
    let messages: Vec<Vec<u8>> = (0..COUNT).map(|n| message("OPTIONS", n)).collect();
    let mut round = |engine: &mut Engine| {
        for bytes in &messages {
            answer(engine, &mut spans, bytes, &reply);
        }
        let later = Now {
            mono: NOW.mono.plus_secs(40),
            ..NOW
        };
        while engine.poll_timeout().is_some_and(|at| at <= later.mono) {
            engine.handle_timeout(later);
        }
        assert_eq!(engine.stats().servers, 0);
    };
    round(&mut engine);
    // The second round is like any other.
    let info = measure(|| round(&mut engine));
    // The pool gives back all but a chunk when it is empty, and takes it again.
    let per_message = info.count_total as f64 / COUNT as f64;
    assert!(
        per_message < 0.05,
        "{per_message} allocations a transaction"
    );
}

#[test]
fn a_refusal_by_congestion_control_allocates_nothing() {
    let mut config = config(1);
    config.overload_control = true;
    config.congestion.refusal_permille = 1000;
    config.key = HashKey::new([3; 16]);
    let mut engine = Engine::new(config, 1);
    for _ in 0..500 {
        engine.observe_service(16, Duration::from_micros(16 * 50));
    }
    let backlog = Backlog {
        messages: 10_000,
        ..Backlog::default()
    };
    engine.observe_backlog(Now::default(), backlog);
    engine.observe_backlog(NOW, backlog);
    assert_eq!(engine.overload_state(), 2);
    let messages: Vec<Vec<u8>> = (0..200).map(|n| message("INVITE", n)).collect();
    let mut spans = Spans::new();
    let mut round = |engine: &mut Engine| {
        for bytes in &messages {
            match engine.handle_message(NOW, &flow(Transport::Udp), bytes, &mut spans) {
                Received::Refused(503) => {}
                other => panic!("{other:?}"),
            }
            while engine.poll_output().is_some() {}
        }
    };
    round(&mut engine);
    let info = measure(|| round(&mut engine));
    assert_eq!(info.count_total, 0);
    assert_eq!(engine.stats().servers, 0);
}
