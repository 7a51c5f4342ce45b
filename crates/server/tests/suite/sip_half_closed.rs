//! Clients that shut down their sending side behind the last request, as SIPp and `nc -q` do: they get their responses,
//! within bounds.

use crate::sip_client::phone::{PASSWORD, Phone};
use crate::sip_client::{Stream, status};
use crate::tls_peer::{Authority, Link};
use hairpin_server::sip::{Domain, Inbound, SipSettings};
use hairpin_server::{Running, Server};
use std::net::Shutdown;
use std::time::{Duration, Instant};

fn settings() -> SipSettings {
    let mut settings = SipSettings::default();
    settings.domains = vec![Domain {
        name: "example.com".to_owned(),
        inbound: Inbound::Anyone,
        ..Domain::default()
    }];
    settings.t1 = Duration::from_millis(100);
    settings
}

fn serve(settings: SipSettings, authority: &Authority, workers: usize) -> Running {
    let any = || "127.0.0.1:0".parse().expect("an address");
    let pair = authority.issue(&["sip.example.com"]);
    Server::builder()
        .listen(any())
        .relay_address("127.0.0.1".parse().expect("an address"))
        .sip_listen(any())
        .sip_listen_tls(any())
        .certificates(pair.certificates())
        .sip(settings)
        .workers(workers)
        .user("user1", PASSWORD)
        .start()
        .expect("the server starts")
}

fn request(method: &str, transport: &str, call: &str) -> String {
    format!(
        "{method} sip:user1@example.com SIP/2.0\r\nVia: SIP/2.0/{transport} 192.0.2.1:9;rport;branch=z9hG4bK{call}\r\n\
         From: <sip:eve@elsewhere.example>;tag=1\r\nTo: <sip:user1@example.com>\r\nCall-ID: {call}@test\r\n\
         CSeq: 1 {method}\r\nMax-Forwards: 70\r\nContact: <sip:eve@192.0.2.1:9>\r\nContent-Length: 0\r\n\r\n"
    )
}

/// Longer than an end of the stream takes to get to the server.
const LATER: Duration = Duration::from_millis(300);

#[test]
fn a_half_closed_tcp_client_gets_the_final_response_and_then_the_end() {
    let authority = Authority::new();
    for workers in [1, 3] {
        let server = serve(settings(), &authority, workers);
        let mut phone = Phone::udp(&server, "user1");
        phone.register();
        for (method, code) in [("MESSAGE", "200 OK"), ("INVITE", "486 Busy Here")] {
            let socket = Stream::new(server.sip_listeners()[0]).into_inner();
            let mut writer = socket.try_clone().expect("a descriptor");
            let text = request(method, "TCP", &format!("{method}{workers}"));
            std::io::Write::write_all(&mut writer, text.as_bytes()).expect("written");
            socket
                .shutdown(Shutdown::Write)
                .expect("an open connection");
            let forwarded = phone.expect(method);
            std::thread::sleep(LATER);
            phone.respond(&forwarded, code);
            let mut all = String::new();
            std::io::Read::read_to_string(&mut writer, &mut all).expect("the end in time");
            assert!(all.contains(&format!("SIP/2.0 {code}\r\n")), "{all}");
        }
        let end = Instant::now() + Duration::from_secs(5);
        while server.stats().sip().connections > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        let sip = server.stats().sip();
        assert_eq!((sip.connections, sip.closed_by_peer, sip.unsent), (0, 2, 0));
    }
}

#[test]
fn a_half_closed_tls_client_gets_the_final_response_and_then_the_end() {
    let authority = Authority::new();
    let server = serve(settings(), &authority, 2);
    let mut phone = Phone::udp(&server, "user1");
    phone.register();
    let to = server.sip_tls_listeners()[0];
    let mut link = Link::connect(to, "sip.example.com", authority.roots(), None).expect("TLS");
    link.send(&request("INVITE", "TLS", "tls"));
    link.stop_sending();
    let forwarded = phone.expect("INVITE ");
    std::thread::sleep(LATER);
    phone.respond(&forwarded, "603 Decline");
    let mut codes = Vec::new();
    while let Some(message) = link.next() {
        // Line ends in front of a message are ignored (RFC 3261 §7.5).
        codes.push(status(message.trim_start()));
    }
    assert_eq!(codes.last(), Some(&603), "{codes:?}");
}

#[test]
fn a_phone_that_sends_nothing_more_is_not_called() {
    let authority = Authority::new();
    let server = serve(settings(), &authority, 1);
    let mut phone = Phone::tcp(&server, "user1");
    phone.register();
    let crate::sip_client::phone::Line::Tcp(stream, _) = phone.line else {
        panic!("a phone on TCP");
    };
    let socket = stream.into_inner();
    socket
        .shutdown(Shutdown::Write)
        .expect("an open connection");
    std::thread::sleep(LATER);
    let mut caller = Stream::new(server.sip_listeners()[0]);
    caller.send(request("MESSAGE", "TCP", "gone").as_bytes());
    let answer = caller.answer();
    assert!(status(&answer) >= 400, "{answer}");
    assert_eq!(server.stats().sip().connections, 1, "the caller's");
}

#[test]
fn a_response_that_never_comes_keeps_the_connection_for_a_bounded_time() {
    let authority = Authority::new();
    let mut settings = settings();
    settings.idle = Duration::from_secs(2);
    let server = serve(settings, &authority, 1);
    let mut phone = Phone::udp(&server, "user1");
    phone.register();
    let mut caller = Stream::new(server.sip_listeners()[0]);
    caller.send(request("INVITE", "TCP", "never").as_bytes());
    let forwarded = phone.expect("INVITE ");
    phone.respond(&forwarded, "180 Ringing");
    while status(&caller.answer()) != 180 {}
    let socket = caller.into_inner();
    socket
        .shutdown(Shutdown::Write)
        .expect("an open connection");
    let begun = Instant::now();
    let mut rest = Vec::new();
    let mut reader = &socket;
    std::io::Read::read_to_end(&mut reader, &mut rest).expect("the end in time");
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_millis(1500), "after {waited:?}");
}
