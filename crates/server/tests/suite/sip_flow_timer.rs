//! Flows that a phone keeps open (RFC 5626 §4.4): keep-alives both ways, and what becomes of a flow without any.

use crate::sip_client::link::Link;
use crate::sip_client::phone::{Line, PASSWORD, Phone, credentials, value, values};
use crate::sip_client::status;
use hairpin_server::sip::{Domain, SipSettings};
use hairpin_server::{Running, Server};
use sip::{HeaderKind, Method};
use std::time::{Duration, Instant};

/// A server that expects a keep-alive each second.
fn serve(workers: usize) -> Running {
    let mut settings = SipSettings::default();
    settings.domains = vec![Domain {
        name: "example.com".to_owned(),
        ..Domain::default()
    }];
    settings.registrar.flow_timer = Some(1);
    Server::builder()
        .listen("127.0.0.1:0".parse().expect("an address"))
        .relay_address("127.0.0.1".parse().expect("an address"))
        .sip_listen("127.0.0.1:0".parse().expect("an address"))
        .sip_listen_ws("127.0.0.1:0".parse().expect("an address"))
        .user("ann", PASSWORD)
        .user("bob", PASSWORD)
        .sip(settings)
        .workers(workers)
        .start()
        .expect("the server starts")
}

/// Registers with Outbound, or without. Returns the 200.
fn register(phone: &mut Phone, reg_id: Option<u32>) -> String {
    let uri = "sip:example.com";
    let contact = phone.contact();
    let params = match reg_id {
        Some(reg_id) => format!(
            "{contact};reg-id={reg_id};+sip.instance=\"<urn:uuid:00000000-0000-1000-8000-00000000000a>\""
        ),
        None => contact.clone(),
    };
    let call = format!("r{}", contact.len());
    let ask = |phone: &mut Phone, cseq, lines: &str| {
        let lines = format!("Supported: outbound, path\r\n{lines}");
        let text = phone.request("REGISTER", uri, &call, cseq, &lines);
        let old = format!("Contact: {contact}\r\n");
        phone.send(&text.replace(&old, &format!("Contact: {params}\r\n")));
    };
    ask(phone, 1, "");
    let challenge = phone.expect("SIP/2.0 401");
    let kind = HeaderKind::Authorization;
    let line = credentials(&challenge, kind, &phone.user, Method::Register, uri);
    ask(phone, 2, &line);
    phone.expect("SIP/2.0 200")
}

fn wait(server: &Running, bindings: u64) {
    let end = Instant::now() + Duration::from_secs(8);
    while server.stats().sip().bindings != bindings {
        assert!(Instant::now() < end, "{}", server.stats().sip().bindings);
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn stream(phone: &mut Phone) -> &mut crate::sip_client::Stream {
    match &mut phone.line {
        Line::Tcp(stream, _) => stream,
        _ => panic!("a phone over TCP"),
    }
}

#[test]
fn a_flow_lives_as_long_as_keep_alives_come_and_its_bindings_end_with_it_rfc5626_4_4() {
    for workers in [1, 4] {
        let server = serve(workers);
        let mut phone = Phone::tcp(&server, "bob");
        let ok = register(&mut phone, Some(1));
        assert_eq!(value(&ok, "Flow-Timer"), "1");
        assert_eq!(value(&ok, "Require"), "outbound");
        wait(&server, 1);
        // Three times as long as nothing may come.
        for _ in 0..15 {
            stream(&mut phone).send(b"\r\n\r\n");
            assert_eq!(stream(&mut phone).bytes(2), b"\r\n");
            std::thread::sleep(Duration::from_millis(400));
        }
        assert_eq!(server.stats().sip().bindings, 1);
        let silent = Instant::now();
        assert!(stream(&mut phone).ended(), "the flow has failed");
        assert!(silent.elapsed() > Duration::from_millis(1_500));
        wait(&server, 0);
        let mut ann = Phone::udp(&server, "ann");
        ann.ask(Method::Message, "sip:bob@example.com", "gone");
        let answer = ann.expect("SIP/2.0 4");
        assert_eq!(status(&answer), 480, "{answer}");
    }
}

/// Browsers cannot send pings, so the server does.
#[test]
fn a_websocket_lives_as_long_as_it_answers_pings_rfc7118_6() {
    for workers in [1, 4] {
        let server = serve(workers);
        let address = server.sip_ws_listeners()[0];
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let phone = std::thread::spawn(move || {
            let link = Link::tcp(address).web();
            let nobody = "127.0.0.9:9".parse().expect("an address");
            let mut bob = Phone::other(Box::new(link), "WS", nobody, "bob");
            let ok = register(&mut bob, Some(1));
            assert_eq!(value(&ok, "Flow-Timer"), "1");
            let incoming = bob.expect("MESSAGE ");
            bob.respond(&incoming, "200 OK");
            // Now it reads nothing, so it sends no Pong.
            let _ = ended.recv();
        });
        wait(&server, 1);
        std::thread::sleep(Duration::from_secs(5));
        assert_eq!(server.stats().sip().bindings, 1);
        let mut ann = Phone::udp(&server, "ann");
        ann.ask(Method::Message, "sip:bob@example.com", "there");
        ann.expect("SIP/2.0 200");
        wait(&server, 0);
        drop(end);
        phone.join().expect("the phone");
    }
}

#[test]
fn a_phone_without_outbound_or_by_udp_has_no_flow_timer() {
    let server = serve(2);
    let mut plain = Phone::tcp(&server, "bob");
    let mut datagrams = Phone::udp(&server, "ann");
    for (phone, reg_id) in [(&mut plain, None), (&mut datagrams, Some(1))] {
        let ok = register(phone, reg_id);
        assert!(values(&ok, "Flow-Timer").is_empty(), "{ok}");
    }
    wait(&server, 2);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(server.stats().sip().bindings, 2);
    plain.ask(Method::Message, "sip:ann@example.com", "still");
    let incoming = datagrams.expect("MESSAGE ");
    datagrams.respond(&incoming, "200 OK");
    plain.expect("SIP/2.0 200");
}

/// The phone has two flows. The first one fails, so the proxy uses the other (RFC 5626 §7).
#[test]
fn when_the_first_flow_of_an_instance_fails_the_other_one_is_used() {
    for workers in [1, 4] {
        let server = serve(workers);
        let mut first = Phone::tcp(&server, "bob");
        register(&mut first, Some(1));
        let mut second = Phone::udp(&server, "bob");
        register(&mut second, Some(2));
        wait(&server, 2);
        drop(first);
        wait(&server, 1);
        let mut ann = Phone::udp(&server, "ann");
        ann.ask(Method::Message, "sip:bob@example.com", "two");
        let incoming = second.expect("MESSAGE ");
        second.respond(&incoming, "200 OK");
        ann.expect("SIP/2.0 200");
    }
}
