//! Calls to phones whose connection ends while the INVITE is in progress (RFC 5626 §5.3, §7).

use crate::sip_client::link::{Link, start};
use crate::sip_client::phone::{PASSWORD, Phone, credentials};
use crate::sip_client::status;
use hairpin_server::Running;
use hairpin_server::sip::{Domain, SipSettings};
use sip::{HeaderKind, Method};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

fn settings() -> SipSettings {
    let mut settings = SipSettings::default();
    settings.domains = vec![Domain {
        name: "example.com".to_owned(),
        ..Domain::default()
    }];
    settings
}

/// Registers with Outbound, or without.
fn register(phone: &mut Phone, call: &str, is_outbound: bool) {
    let uri = "sip:example.com";
    let contact = phone.contact();
    let params = match is_outbound {
        true => format!(
            "{contact};reg-id=1;+sip.instance=\"<urn:uuid:00000000-0000-1000-8000-00000000000a>\""
        ),
        false => contact.clone(),
    };
    let ask = |phone: &mut Phone, cseq, lines: &str| {
        let lines = format!("Supported: outbound, path\r\n{lines}");
        let text = phone.request("REGISTER", uri, call, cseq, &lines);
        let old = format!("Contact: {contact}\r\n");
        phone.send(&text.replace(&old, &format!("Contact: {params}\r\n")));
    };
    ask(phone, 1, "");
    let challenge = phone.expect("SIP/2.0 401");
    let kind = HeaderKind::Authorization;
    let line = credentials(&challenge, kind, &phone.user, Method::Register, uri);
    ask(phone, 2, &line);
    phone.expect("SIP/2.0 200");
}

fn wait_for_no_binding(server: &Running) {
    let end = Instant::now() + Duration::from_secs(20);
    while server.stats().sip().bindings != 0 {
        assert!(Instant::now() < end, "{}", server.stats().sip().bindings);
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_caller_gets_480_at_once_if_the_connection_of_the_phone_ends_rfc5626_5_3_1() {
    for workers in [1, 4] {
        let (server, config) = start(settings(), workers, |it| it.user("bob", PASSWORD));
        let mut number = 0;
        for transport in ["TCP", "TLS", "WS", "WSS"] {
            for (rings, is_outbound) in [(false, true), (true, true), (false, false), (true, false)]
            {
                number += 1;
                let case = format!("{workers} {transport} {rings} {is_outbound}");
                let link = Link::of(transport, &server, &config);
                let port = link.socket.local_addr().expect("an address").port();
                // Nobody listens there, as at the private address of a phone behind a NAT.
                let nobody = SocketAddr::from(([127, 0, 0, 9], port));
                let mut bob = Phone::other(Box::new(link), transport, nobody, "bob");
                register(&mut bob, &format!("r{number}"), is_outbound);
                let mut ann = Phone::udp(&server, "ann");
                let call = format!("call{number}");
                let invite = ann.ask(Method::Invite, "sip:bob@example.com", &call);
                let incoming = bob.expect("INVITE ");
                if rings {
                    bob.respond(&incoming, "180 Ringing");
                    ann.expect("SIP/2.0 180");
                }
                let begun = Instant::now();
                drop(bob);
                let answer = ann.expect("SIP/2.0 4");
                assert_eq!(status(&answer), 480, "{case}: {answer}");
                // Timer B is 32 s.
                assert!(begun.elapsed() < Duration::from_secs(9), "{case}");
                ann.acknowledge(&invite, &answer);
                wait_for_no_binding(&server);
            }
        }
    }
}

#[test]
fn another_phone_of_the_user_still_rings_when_a_connection_ends() {
    for workers in [1, 4] {
        let (server, config) = start(settings(), workers, |it| it.user("bob", PASSWORD));
        let link = Link::of("WS", &server, &config);
        let nobody = SocketAddr::from(([127, 0, 0, 9], 9));
        let mut web = Phone::other(Box::new(link), "WS", nobody, "bob");
        register(&mut web, "web", true);
        let mut desk = Phone::udp(&server, "bob");
        desk.register();
        let mut ann = Phone::udp(&server, "ann");
        ann.ask(Method::Invite, "sip:bob@example.com", "fork");
        let incoming = desk.expect("INVITE ");
        desk.respond(&incoming, "180 Ringing");
        ann.expect("SIP/2.0 180");
        web.expect("INVITE ");
        drop(web);
        let end = Instant::now() + Duration::from_secs(20);
        while server.stats().sip().bindings != 1 {
            assert!(Instant::now() < end, "the binding of the browser stays");
            std::thread::sleep(Duration::from_millis(10));
        }
        desk.respond(&incoming, "200 OK");
        let ok = ann.expect("SIP/2.0 200");
        ann.in_dialog(&ok, "ACK");
        desk.expect("ACK ");
    }
}

#[test]
fn all_bindings_of_a_connection_end_with_it_for_every_address_rfc5626_7() {
    for workers in [1, 4] {
        let (server, config) = start(settings(), workers, |it| it.user("bob", PASSWORD));
        let link = Link::of("TCP", &server, &config);
        let nobody = SocketAddr::from(([127, 0, 0, 9], 9));
        let mut phone = Phone::other(Box::new(link), "TCP", nobody, "bob");
        register(&mut phone, "first", true);
        phone.user = "ann".to_owned();
        register(&mut phone, "second", true);
        let end = Instant::now() + Duration::from_secs(20);
        while server.stats().sip().bindings != 2 {
            assert!(Instant::now() < end, "{}", server.stats().sip().bindings);
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(phone);
        wait_for_no_binding(&server);
    }
}

/// RFC 7118 §2.1: the client opens the WebSocket.
#[test]
fn the_binding_of_a_websocket_without_outbound_ends_with_its_connection() {
    for workers in [1, 4] {
        let (server, config) = start(settings(), workers, |it| it.user("bob", PASSWORD));
        for (transport, stays) in [("WS", 0), ("WSS", 0), ("TCP", 1)] {
            let link = Link::of(transport, &server, &config);
            let nobody = SocketAddr::from(([127, 0, 0, 9], 9));
            let mut phone = Phone::other(Box::new(link), transport, nobody, "bob");
            register(&mut phone, transport, false);
            assert_eq!(server.stats().sip().bindings, 1, "{transport}");
            drop(phone);
            match stays {
                0 => wait_for_no_binding(&server),
                _ => {
                    std::thread::sleep(Duration::from_millis(500));
                    assert_eq!(server.stats().sip().bindings, stays, "{transport}");
                }
            }
        }
    }
}
