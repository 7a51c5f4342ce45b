//! Calls between phones on UDP, TCP, TLS, WS and WSS, each pair of them, through the proxy.

use crate::sip_client::link::{Link, start};
use crate::sip_client::phone::{PASSWORD, Phone, value, values};
use crate::sip_client::status;
use hairpin_server::Running;
use hairpin_server::rustls::ClientConfig;
use hairpin_server::sip::{Domain, SipSettings};
use sip::Method;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const TRANSPORTS: [&str; 5] = ["UDP", "TCP", "TLS", "WS", "WSS"];

fn serve(workers: usize) -> (Running, Arc<ClientConfig>) {
    let mut settings = SipSettings::default();
    settings.domains = vec![Domain {
        name: "example.com".to_owned(),
        ..Domain::default()
    }];
    settings.t1 = Duration::from_millis(200);
    // A busy machine must not look like an overload.
    settings.tolerance = Duration::ZERO;
    start(settings, workers, |mut builder| {
        for number in 0..50 {
            builder = builder.user(&format!("user{number}"), PASSWORD);
        }
        builder
    })
}

fn phone(transport: &'static str, server: &(Running, Arc<ClientConfig>), number: usize) -> Phone {
    let user = format!("user{number}");
    let mut phone = match transport {
        "UDP" => Phone::udp(&server.0, &user),
        _ => {
            let link = Link::of(transport, &server.0, &server.1);
            let port = link.socket.local_addr().expect("an address").port();
            // Nobody listens there: the phone is reached by its connection alone.
            let nobody = SocketAddr::from(([127, 0, 0, 9], port));
            Phone::other(Box::new(link), transport, nobody, &user)
        }
    };
    phone.register();
    phone
}

/// Each pair, with a phone for each end.
fn pairs(server: &(Running, Arc<ClientConfig>), test: impl Fn(&mut Phone, &mut Phone, &str)) {
    for (place, from) in TRANSPORTS.into_iter().enumerate() {
        for (to_place, to) in TRANSPORTS.into_iter().enumerate() {
            let number = 2 * (5 * place + to_place);
            let mut caller = phone(from, server, number);
            let mut callee = phone(to, server, number + 1);
            test(&mut caller, &mut callee, &format!("{from}to{to}"));
        }
    }
}

fn answered(caller: &mut Phone, callee: &mut Phone, id: &str) -> (String, String) {
    let uri = format!("sip:{}@example.com", callee.user);
    caller.ask(Method::Invite, &uri, id);
    let invite = callee.expect("INVITE ");
    callee.respond(&invite, "180 Ringing");
    caller.expect("SIP/2.0 180");
    callee.respond(&invite, "200 OK");
    let ok = caller.expect("SIP/2.0 200");
    caller.in_dialog(&ok, "ACK");
    callee.expect("ACK ");
    (invite, ok)
}

#[test]
fn calls_pass_between_each_two_transports_and_either_side_ends_them() {
    let server = serve(2);
    pairs(&server, |caller, callee, id| {
        let (invite, _) = answered(caller, callee, &format!("{id}a"));
        // RFC 5658 §4.2: a value for each side, the one of the callee's on top.
        let routes = values(&invite, "Record-Route");
        let routes: Vec<&str> = routes.iter().flat_map(|it| it.split(", ")).collect();
        assert_eq!(routes.len(), 2, "{id}: {routes:?}");
        for (route, side) in routes.iter().zip([&*callee, &*caller]) {
            assert!(route.contains(";lr"), "{id}: {route}");
            let transport = route.split(";transport=").nth(1).map(|rest| {
                let end = rest.find([';', '>']).unwrap_or(rest.len());
                rest[..end].to_ascii_uppercase()
            });
            // RFC 7118 §5.2: `ws` stands for both.
            let is_web = |transport: &str| transport.starts_with("WS");
            match (side.transport(), transport.as_deref()) {
                ("UDP", None) => {}
                (own, Some(found)) if own == found || (is_web(own) && is_web(found)) => {}
                (own, found) => panic!("{id}: {found:?} in {route} for {own}"),
            }
        }
        callee.hang_up(&invite);
        let bye = caller.expect("BYE ");
        assert!(value(&bye, "Via").starts_with(&format!("SIP/2.0/{} ", caller.transport())));
        caller.respond(&bye, "200 OK");
        callee.expect("SIP/2.0 200");
        let (_, ok) = answered(caller, callee, &format!("{id}b"));
        caller.in_dialog(&ok, "BYE");
        let bye = callee.expect("BYE ");
        callee.respond(&bye, "200 OK");
        caller.expect("SIP/2.0 200");
    });
    assert_eq!(server.0.stats().sip().unsent, 0);
}

#[test]
fn a_caller_may_give_up_on_each_two_transports() {
    let server = serve(2);
    pairs(&server, |caller, callee, id| {
        let uri = format!("sip:{}@example.com", callee.user);
        let asked = caller.ask(Method::Invite, &uri, id);
        let invite = callee.expect("INVITE ");
        callee.respond(&invite, "180 Ringing");
        caller.expect("SIP/2.0 180");
        let cancel = asked
            .replacen("INVITE ", "CANCEL ", 1)
            .replace(" INVITE\r\n", " CANCEL\r\n");
        caller.send(&cancel);
        let cancel = callee.expect("CANCEL ");
        callee.respond(&cancel, "200 OK");
        callee.respond(&invite, "487 Request Terminated");
        callee.expect("ACK ");
        let mut codes: Vec<u16> = (0..2).map(|_| status(&caller.receive())).collect();
        codes.sort_unstable();
        assert_eq!(codes, [200, 487], "{id}: of the CANCEL and of the INVITE");
    });
}

#[test]
fn a_connection_that_dies_within_a_call_is_430_for_the_other_side() {
    let server = serve(2);
    for (place, transport) in ["TCP", "TLS", "WS", "WSS"].into_iter().enumerate() {
        let mut caller = phone("UDP", &server, 2 * place);
        let mut callee = phone(transport, &server, 2 * place + 1);
        let (_, ok) = answered(&mut caller, &mut callee, &format!("dies{place}"));
        drop(callee);
        std::thread::sleep(Duration::from_millis(300));
        caller.in_dialog(&ok, "BYE");
        // RFC 5626 §5.3.1: the flow is gone, and nobody connects to the phone in its place.
        caller.expect("SIP/2.0 430");
    }
}
