//! The proxy as phones and trunks see it (RFC 3261 §16), over real sockets and on several workers.

use crate::sip_client::phone::{Line, Phone, credentials, value, values};
use crate::sip_client::{LOOPBACK, example_com, status, with_users};
use hairpin_server::Running;
use hairpin_server::sip::{Forking, Inbound, SipSettings, Trunk};
use sip::{HeaderKind, Method};
use std::net::UdpSocket;
use std::time::Duration;

const USERS: usize = 8;

fn settings() -> SipSettings {
    let mut settings = example_com();
    settings.t1 = Duration::from_millis(100);
    settings
}

fn serve(settings: SipSettings, workers: usize) -> Running {
    let server = with_users(LOOPBACK, settings, USERS).workers(workers);
    server.start().expect("the server starts")
}

/// A whole call, which the callee ends.
fn call(caller: &mut Phone, callee: &mut Phone, id: &str) {
    let uri = format!("sip:{}@example.com", callee.user);
    caller.ask(Method::Invite, &uri, id);
    let invite = callee.expect("INVITE ");
    assert!(invite.starts_with(&format!(
        "INVITE {} ",
        callee.contact().trim_matches(['<', '>'])
    )));
    assert!(!invite.contains("Proxy-Authorization"), "{invite}");
    let identity = format!("<sip:{}@example.com>", caller.user);
    assert_eq!(value(&invite, "P-Asserted-Identity"), identity);
    callee.respond(&invite, "180 Ringing");
    assert_eq!(
        value(&caller.expect("SIP/2.0 180"), "Call-ID"),
        format!("{id}@test")
    );
    callee.respond(&invite, "200 OK");
    let ok = caller.expect("SIP/2.0 200");
    caller.in_dialog(&ok, "ACK");
    let ack = callee.expect("ACK ");
    assert!(values(&ack, "Route").is_empty(), "{ack}");
    caller.in_dialog(&ok, "INFO");
    let info = callee.expect("INFO ");
    callee.respond(&info, "200 OK");
    caller.expect("SIP/2.0 200");
    callee.hang_up(&invite);
    let bye = caller.expect("BYE ");
    caller.respond(&bye, "200 OK");
    callee.expect("SIP/2.0 200");
}

#[test]
fn phones_call_each_other_over_udp_and_tcp() {
    for workers in [1, 4] {
        let server = serve(settings(), workers);
        let lines: [fn(&Running, &str) -> Phone; 2] = [Phone::udp, Phone::tcp];
        for (place, (from, to)) in [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().enumerate() {
            let mut caller = lines[from](&server, &format!("user{}", 2 * place));
            let mut callee = lines[to](&server, &format!("user{}", 2 * place + 1));
            caller.register();
            callee.register();
            call(&mut caller, &mut callee, &format!("call{place}"));
        }
        let sip = server.stats().sip();
        // INVITE, INFO and BYE of each.
        assert_eq!(sip.forwarded, 4 * 3);
        assert_eq!(sip.forwarding_challenged, 4);
        assert_eq!(sip.unsent, 0);
    }
}

#[test]
fn a_busy_phone_says_so_and_a_caller_may_give_up() {
    let server = serve(settings(), 2);
    let mut caller = Phone::udp(&server, "user0");
    let mut callee = Phone::tcp(&server, "user1");
    caller.register();
    callee.register();
    let asked = caller.ask(Method::Invite, "sip:user1@example.com", "busy");
    let invite = callee.expect("INVITE ");
    callee.respond(&invite, "486 Busy Here");
    callee.expect("ACK ");
    let busy = caller.expect("SIP/2.0 486");
    caller.acknowledge(&asked, &busy);
    let asked = caller.ask(Method::Invite, "sip:user1@example.com", "cancelled");
    let invite = callee.expect("INVITE ");
    callee.respond(&invite, "180 Ringing");
    caller.expect("SIP/2.0 180");
    let cancel: String = asked
        .replacen("INVITE ", "CANCEL ", 1)
        .replace(" INVITE\r\n", " CANCEL\r\n");
    caller.send(&cancel);
    let cancel = callee.expect("CANCEL ");
    callee.respond(&cancel, "200 OK");
    callee.respond(&invite, "487 Request Terminated");
    callee.expect("ACK ");
    let mut codes: Vec<u16> = (0..2).map(|_| status(&caller.receive())).collect();
    codes.sort_unstable();
    assert_eq!(codes, [200, 487], "of the CANCEL and of the INVITE");
}

#[test]
fn all_phones_of_a_user_ring_also_beside_a_dead_connection() {
    let server = serve(settings(), 2);
    let mut caller = Phone::udp(&server, "user0");
    caller.register();
    let mut dead = Phone::tcp(&server, "user1");
    dead.register();
    drop(dead);
    let mut first = Phone::udp(&server, "user1");
    let mut second = Phone::tcp(&server, "user1");
    first.register();
    second.register();
    caller.ask(Method::Invite, "sip:user1@example.com", "fork");
    let invite = first.expect("INVITE ");
    let other = second.expect("INVITE ");
    first.respond(&invite, "180 Ringing");
    second.respond(&other, "180 Ringing");
    caller.expect("SIP/2.0 180");
    second.respond(&other, "200 OK");
    let cancel = first.expect("CANCEL ");
    first.respond(&cancel, "200 OK");
    first.respond(&invite, "487 Request Terminated");
    let ok = caller.expect("SIP/2.0 200");
    caller.in_dialog(&ok, "ACK");
    second.expect("ACK ");
}

#[test]
fn unauthenticated_clients_are_challenged_and_nothing_is_relayed_for_them() {
    let server = serve(settings(), 2);
    let mut callee = Phone::udp(&server, "user1");
    callee.register();
    let elsewhere = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let foreign = format!("sip:x@{}", elsewhere.local_addr().expect("an address"));
    let mut stranger = Phone::udp(&server, "user0");
    for (place, uri) in ["sip:user1@example.com", "sip:nobody@example.com", &foreign]
        .into_iter()
        .enumerate()
    {
        let text = stranger.request("MESSAGE", uri, &format!("s{place}"), 1, "");
        stranger.send(&text);
        let answer = stranger.receive();
        assert_eq!(status(&answer), 407, "{answer}");
        // The answer is no larger than what an amplifier would want.
        assert!(
            answer.len() < 5 * text.len() / 2,
            "{} of {}",
            answer.len(),
            text.len()
        );
    }
    // With a password: who is not there, and who is elsewhere at an address that a caller has but nobody allowed.
    stranger.ask(Method::Message, "sip:nobody@example.com", "p0");
    stranger.expect("SIP/2.0 404");
    stranger.ask(Method::Message, "sip:user2@example.com", "p1");
    stranger.expect("SIP/2.0 480");
    stranger.ask(Method::Message, "sip:x@192.0.2.1", "p2");
    stranger.expect("SIP/2.0 403");
    let mut other = Phone::udp(&server, "user0");
    let text = other.request("MESSAGE", "sip:user1@example.com", "p3", 1, "");
    other.send(&text);
    let challenge = other.expect("SIP/2.0 407");
    let kind = HeaderKind::ProxyAuthorization;
    let line = credentials(
        &challenge,
        kind,
        "user0",
        Method::Message,
        "sip:user1@example.com",
    );
    let as_another = other
        .request("MESSAGE", "sip:user1@example.com", "p3", 2, &line)
        .replace("From: <sip:user0@", "From: <sip:user2@");
    other.send(&as_another);
    other.expect("SIP/2.0 403");
    elsewhere.set_nonblocking(true).expect("an option");
    assert!(elsewhere.recv(&mut [0; 16]).is_err(), "nothing came");
    let Line::Udp(client) = &callee.line else {
        panic!("a phone on UDP");
    };
    assert!(client.hears_nothing(Duration::from_millis(100)));
}

#[test]
fn a_domain_that_is_open_takes_requests_of_all() {
    let mut settings = settings();
    settings.domains[0].inbound = Inbound::Anyone;
    let server = serve(settings, 2);
    let mut callee = Phone::udp(&server, "user1");
    callee.register();
    let mut stranger = Phone::udp(&server, "eve");
    let text = stranger.request("MESSAGE", "sip:user1@example.com", "o1", 1, "");
    // As a user of the domain: not without a password.
    stranger.send(&text.replace("sip:eve@", "sip:user2@"));
    assert_eq!(status(&stranger.receive()), 407);
    let text = stranger.request("MESSAGE", "sip:user1@example.com", "o2", 1, "");
    stranger.send(&text.replace("sip:eve@example.com", "sip:eve@elsewhere.example"));
    let message = callee.expect("MESSAGE ");
    callee.respond(&message, "200 OK");
    stranger.expect("SIP/2.0 200");
}

#[test]
fn a_trunk_calls_users_and_users_call_the_trunk() {
    let mut settings = settings();
    settings.trunks = vec![Trunk {
        addresses: vec!["127.0.0.7/32".parse().expect("a network")],
        ..Trunk::default()
    }];
    let server = serve(settings, 2);
    let trunk = UdpSocket::bind("127.0.0.7:0").expect("a socket");
    let timeout = Some(Duration::from_secs(10));
    trunk.set_read_timeout(timeout).expect("an option");
    trunk.connect(server.sip_listeners()[0]).expect("a route");
    let at = trunk.local_addr().expect("an address");
    let mut phone = Phone::udp(&server, "user1");
    phone.register();
    let receive = |start: &str| {
        let mut buffer = vec![0; 65_536];
        loop {
            let len = trunk.recv(&mut buffer).expect("a message in time");
            let text = String::from_utf8_lossy(&buffer[..len]).into_owned();
            if text.starts_with(start) {
                return text;
            }
        }
    };
    let request = |method: &str, uri: &str, call: &str| {
        format!(
            "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/UDP {at};rport;branch=z9hG4bK{call}\r\n\
             From: <sip:+4930123@carrier.example>;tag=1\r\nTo: <{uri}>\r\nCall-ID: {call}@test\r\n\
             CSeq: 1 {method}\r\nMax-Forwards: 70\r\nContact: <sip:{at}>\r\n\
             P-Asserted-Identity: <sip:+4930123@carrier.example>\r\nContent-Length: 0\r\n\r\n"
        )
    };
    trunk
        .send(request("INVITE", "sip:user1@example.com", "in").as_bytes())
        .expect("sent");
    let invite = phone.expect("INVITE ");
    assert_eq!(
        value(&invite, "P-Asserted-Identity"),
        "<sip:+4930123@carrier.example>"
    );
    phone.respond(&invite, "486 Busy Here");
    receive("SIP/2.0 486");
    // Not to another trunk, not to anybody else.
    for uri in ["sip:x@127.0.0.7:9", "sip:x@127.0.0.1:9"] {
        let call = format!("out{}", uri.len());
        trunk
            .send(request("MESSAGE", uri, &call).as_bytes())
            .expect("sent");
        receive("SIP/2.0 403");
    }
    // From a user to the trunk, as it is among what users may reach.
    phone.ask(Method::Message, &format!("sip:+49@{at}"), "to-trunk");
    let message = receive("MESSAGE ");
    assert_eq!(
        value(&message, "P-Asserted-Identity"),
        "<sip:user1@example.com>"
    );
}

#[test]
fn phones_ring_one_after_the_other_if_that_is_configured() {
    let mut settings = settings();
    settings.forking = Forking::Sequential;
    let server = serve(settings, 2);
    let mut caller = Phone::udp(&server, "user0");
    caller.register();
    let mut phones = [Phone::udp(&server, "user1"), Phone::tcp(&server, "user1")];
    phones.iter_mut().for_each(Phone::register);
    caller.ask(Method::Invite, "sip:user1@example.com", "sequence");
    // The latest registration comes first among equals.
    let [last, first] = &mut phones;
    let invite = first.expect("INVITE ");
    let Line::Udp(client) = &last.line else {
        panic!("a phone on UDP");
    };
    assert!(client.hears_nothing(Duration::from_millis(300)));
    first.respond(&invite, "486 Busy Here");
    let invite = last.expect("INVITE ");
    last.respond(&invite, "200 OK");
    caller.expect("SIP/2.0 200");
}

#[test]
fn the_proxy_follows_a_redirection_if_that_is_configured_rfc3261_16_7() {
    for recurse in [false, true] {
        let mut settings = settings();
        settings.recurse = recurse;
        let server = serve(settings, 2);
        let mut caller = Phone::udp(&server, "user0");
        caller.register();
        let mut away = Phone::udp(&server, "user1");
        away.register();
        let mut desk = Phone::udp(&server, "user2");
        let elsewhere = desk.contact();
        caller.ask(Method::Invite, "sip:user1@example.com", "moved");
        let invite = away.expect("INVITE ");
        let contact = away.contact();
        let (old, new) = (contact, elsewhere);
        respond_with(&mut away, &invite, "302 Moved Temporarily", (&old, &new));
        match recurse {
            true => {
                let invite = desk.expect("INVITE ");
                desk.respond(&invite, "603 Decline");
                caller.expect("SIP/2.0 603");
            }
            false => {
                let moved = caller.expect("SIP/2.0 302");
                assert_eq!(value(&moved, "Contact"), new);
            }
        }
        // A contact of a user here is the caller's to call.
        let asked = caller.ask(Method::Message, "sip:user1@example.com", "local");
        assert!(asked.starts_with("MESSAGE "));
        let message = away.expect("MESSAGE ");
        let local = "<sip:user2@example.com>";
        respond_with(&mut away, &message, "302 Moved Temporarily", (&old, local));
        let moved = caller.expect("SIP/2.0 302");
        assert_eq!(value(&moved, "Contact"), local);
    }
}

/// A response with another Contact than the phone's.
fn respond_with(phone: &mut Phone, request: &str, code: &str, (old, new): (&str, &str)) {
    let text = phone.response(request, code).replace(
        &format!("Contact: {old}\r\n"),
        &format!("Contact: {new}\r\n"),
    );
    phone.send(&text);
}
