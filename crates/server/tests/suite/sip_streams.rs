//! SIP over TLS, WebSocket and both, as a client sees it.

use crate::sip_client::link::{Link, find, serve, start};
use crate::sip_client::{options, status, test_uas};
use hairpin_server::rustls::ClientConfig;
use hairpin_server::sip::SipSettings;
use hairpin_server::{Running, Server};
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use streams::websocket::{End, Kind, ProtocolError};

/// Waits until the counters say so.
fn wait(server: &Running, what: &str, is: impl Fn(&hairpin_server::sip::SipCounters) -> bool) {
    let begun = Instant::now();
    while !is(&server.stats().sip()) {
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "{what}: {:?}",
            server.stats().sip()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

const SECURE: [&str; 3] = ["TLS", "WS", "WSS"];

#[test]
fn requests_are_answered_over_tls_and_websockets_rfc7118_5() {
    let (server, config) = serve(SipSettings::default(), 1);
    for transport in SECURE {
        let mut link = Link::of(transport, &server, &config);
        // RFC 7118 §5: over a WebSocket no Content-Length is needed.
        let request = options(transport, transport, "");
        let request = match link.web {
            Some(_) => request.replace("Content-Length: 0\r\n", ""),
            None => request,
        };
        for number in 0..40 {
            link.send(&request.replace("@test", &format!("{number}@test")));
        }
        for number in 0..40 {
            let answer = link.receive();
            assert_eq!(status(&answer), 200, "{answer}");
            let call_id = format!("Call-ID: {transport}{number}@test\r\n");
            assert!(answer.contains(&call_id), "{answer}");
            assert!(
                answer.contains(&format!("Via: SIP/2.0/{transport} ")),
                "{answer}"
            );
        }
    }
    let sip = server.stats().sip();
    let seen = (
        sip.tcp_messages,
        sip.connections_accepted,
        sip.tls_handshakes,
        sip.websockets,
    );
    assert_eq!(seen, (120, 3, 2, 2));
}

#[test]
fn bytes_one_by_one_are_the_same_messages() {
    let (server, config) = serve(SipSettings::default(), 1);
    for transport in SECURE {
        let mut link = Link::of(transport, &server, &config);
        let bytes = link.framed(&options(transport, transport, ""));
        let mut out = Vec::new();
        match &mut link.tls {
            None => out.extend_from_slice(&bytes),
            // One record for each byte, and each in two pieces.
            Some(tls) => bytes
                .iter()
                .for_each(|byte| tls.encrypt(&[*byte], &mut out).expect("open")),
        }
        for piece in out.chunks(11) {
            link.socket.write_all(piece).expect("room");
        }
        assert_eq!(status(&link.receive()), 200);
    }
}

#[test]
fn a_call_is_set_up_and_ended_over_each_transport() {
    let (server, config) = serve(test_uas(), 2);
    for (transport, contact) in [
        ("TLS", ";transport=tls>"),
        ("WS", ";transport=ws>"),
        ("WSS", ";transport=ws>"),
    ] {
        let mut link = Link::of(transport, &server, &config);
        let request = |method: &str, cseq: u32, to_tag: &str, branch: &str| {
            options(transport, transport, "")
                .replace("OPTIONS", method)
                .replace("CSeq: 1", &format!("CSeq: {cseq}"))
                .replace(
                    "To: <sip:test@127.0.0.1>",
                    &format!("To: <sip:test@127.0.0.1>{to_tag}"),
                )
                .replace("branch=z9hG4bK", &format!("branch=z9hG4bK{branch}"))
        };
        link.send(&request("INVITE", 1, "", "i"));
        let mut answer = link.receive();
        while status(&answer) < 200 {
            answer = link.receive();
        }
        assert_eq!(status(&answer), 200, "{answer}");
        assert!(answer.contains(contact), "{answer}");
        let to = answer
            .lines()
            .find(|line| line.starts_with("To: "))
            .expect("a To");
        let tag = &to[to.find(";tag=").expect("a tag")..];
        link.send(&request("ACK", 1, tag, "a"));
        link.send(&request("BYE", 2, tag, "b"));
        let answer = link.receive();
        assert!(
            status(&answer) == 200 && answer.contains("CSeq: 2 BYE"),
            "{answer}"
        );
    }
}

#[test]
fn a_sips_request_gets_a_sips_contact_rfc3261_12_1_1() {
    let (server, config) = serve(test_uas(), 1);
    let mut link = Link::of("TLS", &server, &config);
    let invite = options("s", "TLS", "")
        .replace("OPTIONS sip:", "INVITE sips:")
        .replace("<sip:a@192.0.2.1>", "<sips:a@192.0.2.1>");
    link.send(&invite.replace("1 OPTIONS", "1 INVITE"));
    let answer = link.receive();
    let contact = format!(
        "Contact: <sips:{};transport=tcp>",
        server.sip_tls_listeners()[0]
    );
    assert!(answer.contains(&contact), "{answer}");
}

#[test]
fn a_call_without_an_ack_is_ended_over_its_websocket() {
    let mut settings = test_uas();
    settings.t1 = Duration::from_millis(20);
    let (server, config) = serve(settings, 2);
    for transport in ["WSS", "TLS"] {
        let mut link = Link::of(transport, &server, &config);
        let invite = options(transport, transport, "").replace("OPTIONS", "INVITE");
        link.send(&invite.replace("sip:a@192.0.2.1>", "sip:a@x7y8.invalid;transport=ws>"));
        let bye = loop {
            let message = link.receive();
            if message.starts_with("BYE ") {
                break message;
            }
        };
        assert!(
            bye.starts_with("BYE sip:a@x7y8.invalid;transport=ws SIP/2.0\r\n"),
            "{bye}"
        );
        assert!(
            bye.contains(&format!("\r\nVia: SIP/2.0/{transport} 127.0.0.1:")),
            "{bye}"
        );
    }
}

#[test]
fn pings_of_every_kind_are_answered() {
    let (server, config) = serve(SipSettings::default(), 1);
    let mut link = Link::of("WSS", &server, &config);
    link.send("\r\n\r\n");
    assert_eq!(link.receive(), "\r\n");
    let mut out = Vec::new();
    link.web.as_mut().expect("a WebSocket").ping(&mut out);
    link.send_raw(&out);
    link.send(&options("p", "WSS", ""));
    assert_eq!(status(&link.receive()), 200);
    let mut link = Link::of("TLS", &server, &config);
    link.send_raw(b"\r\n\r\n");
    while link.unread.is_empty() {
        assert!(link.read(), "a pong comes");
    }
    assert_eq!(link.unread, b"\r\n");
    wait(&server, "three pings", |sip| sip.pings == 3);
}

#[test]
fn a_handshake_that_is_none_is_refused_in_http() {
    let mut settings = SipSettings::default();
    settings.websocket_paths = vec!["/ws".to_owned()];
    settings.websocket_origins = vec!["https://phone.example.org".to_owned()];
    let (server, config) = serve(settings, 1);
    let rest = "Host: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: sip\r\n";
    for (request, expected) in [
        (
            format!("GET /ws HTTP/1.1\r\n{rest}Origin: https://evil.example\r\n\r\n"),
            "403",
        ),
        (format!("GET / HTTP/1.1\r\n{rest}\r\n"), "404"),
        ("GET /ws HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "426"),
        (options("x", "WS", ""), "400"),
        (
            format!("GET /ws HTTP/1.1\r\n{rest}Origin: https://phone.example.org\r\n\r\n"),
            "101",
        ),
    ] {
        let mut link = Link::tls(server.sip_wss_listeners()[0], &config);
        link.send_raw(request.as_bytes());
        while find(&link.unread, b"\r\n\r\n").is_none() {
            assert!(link.read(), "an answer comes");
        }
        let answer = String::from_utf8_lossy(&link.unread).into_owned();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {expected} ")),
            "{answer}"
        );
        assert!(expected == "101" || link.ended());
    }
    let sip = server.stats().sip();
    assert_eq!((sip.websockets, sip.websockets_refused), (1, 4));
}

#[test]
fn protocol_violations_get_a_close_frame_and_end() {
    let (server, config) = serve(SipSettings::default(), 1);
    let mut link = Link::of("WSS", &server, &config);
    // A frame without a mask.
    link.send_raw(&[0x81, 1, b'x']);
    assert_eq!(link.next(), Err(End::Closed(Some(1002))));
    assert!(link.ended());
    let mut link = Link::of("WS", &server, &config);
    link.send("\u{1}no SIP at all");
    assert_eq!(link.next(), Err(End::Closed(Some(1003))));
    assert!(link.ended());
    let mut link = Link::of("WS", &server, &config);
    link.send(&"x".repeat(100_000));
    assert_eq!(link.next(), Err(End::Closed(Some(1009))));
    assert!(link.ended());
    // What is no TLS.
    for listener in [server.sip_tls_listeners()[0], server.sip_wss_listeners()[0]] {
        let mut link = Link::tcp(listener);
        link.socket
            .write_all(options("x", "TCP", "").as_bytes())
            .expect("room");
        assert!(link.ended());
    }
    let mut link = Link::of("TLS", &server, &config);
    link.socket.write_all(&[23, 3, 3, 0, 20]).expect("room");
    link.socket.write_all(&[0; 20]).expect("room");
    assert!(link.ended());
    wait(&server, "all are closed", |sip| sip.connections == 0);
    let sip = server.stats().sip();
    assert_eq!((sip.websockets_failed, sip.tls_failed), (2, 3));
    assert!(ProtocolError::ALL.len() > 2);
}

#[test]
fn slow_and_silent_connections_end_in_time() {
    let mut settings = SipSettings::default();
    settings.message_deadline = Duration::from_millis(300);
    settings.idle = Duration::from_millis(900);
    let (server, config) = serve(settings, 1);
    // Nothing at all, half a handshake of either kind, half a frame, and half a record.
    let mut silent = Link::tcp(server.sip_tls_listeners()[0]);
    let mut half_tls = Link::tcp(server.sip_wss_listeners()[0]);
    half_tls.socket.write_all(&[22, 3, 1]).expect("room");
    let mut half_web = Link::tls(server.sip_wss_listeners()[0], &config);
    half_web.send_raw(b"GET / HTTP/1.1\r\n");
    let mut unused = Link::of("WSS", &server, &config);
    let mut half_frame = Link::of("WS", &server, &config);
    half_frame.send(&options("f", "WS", ""));
    half_frame.receive();
    half_frame.send_raw(&[0x81, 0xfe, 1]);
    let mut half_record = Link::of("TLS", &server, &config);
    half_record.send(&options("r", "TLS", ""));
    half_record.receive();
    half_record.socket.write_all(&[23, 3, 3, 1]).expect("room");
    for link in [
        &mut silent,
        &mut half_tls,
        &mut half_web,
        &mut unused,
        &mut half_frame,
        &mut half_record,
    ] {
        assert!(link.ended());
    }
    assert_eq!(server.stats().sip().closed_slow, 6);
    // One that has spoken may be silent for longer, and is told why it ends.
    let mut idle = Link::of("WSS", &server, &config);
    idle.send(&options("i", "WSS", ""));
    idle.receive();
    assert_eq!(idle.next(), Err(End::Closed(Some(1001))));
    assert_eq!(server.stats().sip().closed_idle, 1);
}

#[test]
fn limits_per_source_hold_for_every_transport() {
    let mut settings = SipSettings::default();
    settings.connections_per_source = 3;
    let (server, config) = serve(settings, 1);
    let mut links: Vec<Link> = SECURE
        .iter()
        .map(|of| Link::of(of, &server, &config))
        .collect();
    for listener in [
        server.sip_tls_listeners()[0],
        server.sip_ws_listeners()[0],
        server.sip_wss_listeners()[0],
    ] {
        assert!(Link::tcp(listener).ended());
    }
    for (link, transport) in links.iter_mut().zip(SECURE) {
        link.send(&options(transport, transport, ""));
        assert_eq!(status(&link.receive()), 200);
    }
    assert_eq!(server.stats().sip().connections_refused, 3);
}

#[test]
fn an_answer_to_a_websocket_that_is_gone_opens_no_connection() {
    let (server, config) = serve(test_uas(), 1);
    let mut link = Link::of("WSS", &server, &config);
    let invite = options("g", "WSS", "").replace("OPTIONS", "INVITE");
    link.send(&invite.replace("sip:test@", "sip:ring@"));
    assert_eq!(status(&link.receive()), 180);
    drop(link);
    wait(&server, "the connection is gone", |sip| {
        sip.connections == 0
    });
    // The CANCEL by another way has the call answered with 487.
    let client = crate::sip_client::Client::new(server.sip_listeners()[0]);
    client.send(
        options("g", "WSS", "")
            .replace("OPTIONS", "CANCEL")
            .replace("sip:test@", "sip:ring@")
            .as_bytes(),
    );
    assert_eq!(status(&client.answer()), 200);
    std::thread::sleep(Duration::from_millis(200));
    let sip = server.stats().sip();
    assert_eq!((sip.connections_made, sip.connections), (0, 0));
}

#[test]
fn text_and_binary_frames_are_read_and_what_is_no_utf8_is_binary_rfc7118_4_2() {
    let (server, config) = serve(SipSettings::default(), 1);
    for transport in ["WS", "WSS"] {
        let mut link = Link::of(transport, &server, &config);
        for (number, (name, is_binary)) in [
            (&b"Zo\xc3\xab"[..], false),
            (b"Zo\xc3\xab", true),
            (b"Zo\xeb", true),
        ]
        .into_iter()
        .enumerate()
        {
            let text = options(&format!("{transport}{number}"), transport, "");
            let text = text.replace("From: <", "From: \"NAME\" <").into_bytes();
            let at = find(&text, b"NAME").expect("a name");
            let message = [&text[..at], name, &text[at + 4..]].concat();
            let kind = if is_binary { Kind::Binary } else { Kind::Text };
            let mut out = Vec::new();
            let web = link.web.as_mut().expect("a WebSocket");
            assert!(web.send(kind, &message, &mut out));
            link.send_raw(&out);
            // A response is whole in one frame.
            while find(&link.unread, b"Content-Length: 0\r\n").is_none() {
                assert!(link.read(), "there is more");
            }
            let is_utf8 = std::str::from_utf8(name).is_ok();
            let first = if is_utf8 { 0x81 } else { 0x82 };
            assert_eq!(link.unread.first(), Some(&first), "{transport} {number}");
            let same = [b"From: \"", name, b"\""].concat();
            assert!(find(&link.unread, &same).is_some(), "{transport} {number}");
            assert_eq!(status(&link.receive()), 200);
        }
    }
}

#[test]
fn a_certificate_is_required() {
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let error = Server::builder()
        .listen(any)
        .sip_listen_tls(any)
        .start()
        .expect_err("there is no certificate");
    assert!(error.to_string().contains("certificate"), "{error}");
}

/// What an INVITE or REGISTER with these URIs is answered with.
fn answer_to(link: &mut Link, id: &str, transport: &str, request: &str, contact: &str) -> String {
    let (method, uri) = request.split_once(' ').expect("method and URI");
    let text = options(id, transport, "")
        .replace("OPTIONS sip:test@127.0.0.1", &format!("{method} {uri}"))
        .replace("1 OPTIONS", &format!("1 {method}"))
        .replace("sip:a@192.0.2.1>", &format!("{contact}>"));
    link.send(&text);
    loop {
        let answer = link.receive();
        if status(&answer) >= 200 {
            return answer;
        }
    }
}

#[test]
fn sips_uris_are_consistent_and_secure_all_the_way_rfc5630_5() {
    let (server, config) = serve(test_uas(), 1);
    let mut links = ["TLS", "WSS", "TCP", "WS"].map(|of| (of, Link::of(of, &server, &config)));
    for (transport, link) in &mut links {
        let is_secure = matches!(*transport, "TLS" | "WSS");
        for (id, request, contact, expected) in [
            ("i1", "INVITE sip:test@127.0.0.1", "sip:a@192.0.2.1", 200),
            // §5.1.2: the URIs are used inconsistently.
            ("i2", "INVITE sips:test@127.0.0.1", "sip:a@192.0.2.1", 400),
            // RFC 3261 §12.1.1: our Contact would have to be a SIPS URI.
            (
                "i3",
                "INVITE sips:test@127.0.0.1",
                "sips:a@192.0.2.1",
                if is_secure { 200 } else { 480 },
            ),
            (
                "i4",
                "INVITE sip:test@127.0.0.1",
                "sips:a@192.0.2.1",
                if is_secure { 200 } else { 480 },
            ),
            // §5.2: a SIPS Contact is bound to a SIPS address of record.
            ("r1", "REGISTER sip:127.0.0.1", "sip:a@192.0.2.1", 200),
            ("r2", "REGISTER sip:127.0.0.1", "sips:a@192.0.2.1", 400),
            ("r3", "REGISTER sips:127.0.0.1", "sips:a@192.0.2.1", 200),
            (
                "r4",
                "REGISTER sips:127.0.0.1",
                "sips:a@192.0.2.1>, <sip:b@192.0.2.1",
                400,
            ),
            ("r5", "REGISTER sips:127.0.0.1", "sip:a@192.0.2.1", 200),
        ] {
            let id = format!("{transport}{id}");
            let answer = answer_to(link, &id, transport, request, contact);
            assert_eq!(status(&answer), expected, "{id}: {answer}");
            if expected == 480 {
                assert!(
                    answer.contains("Warning: 380 hairpin \"SIPS Not Allowed\""),
                    "{answer}"
                );
            }
            if request.starts_with("INVITE") && expected == 200 {
                let scheme = contact.split(':').next().expect("a scheme");
                assert!(
                    answer.contains(&format!("\r\nContact: <{scheme}:")),
                    "{answer}"
                );
            }
        }
    }
}

#[test]
fn a_drain_ends_connections_when_nothing_is_under_way_and_tells_websockets_why() {
    let mut settings = test_uas();
    settings.t1 = Duration::from_millis(10);
    let (server, config) = serve(settings, 2);
    let mut links = ["TLS", "TCP", "WS", "WSS"].map(|of| (of, Link::of(of, &server, &config)));
    for (transport, link) in &mut links {
        link.send(&options(&format!("o{transport}"), transport, ""));
        assert_eq!(status(&link.receive()), 200);
    }
    let mut calling = Link::of("WSS", &server, &config);
    let invite = options("ring", "WSS", "").replace("OPTIONS sip:test", "INVITE sip:ring");
    calling.send(&invite.replace("1 OPTIONS", "1 INVITE"));
    assert_eq!(status(&calling.receive()), 180);
    assert_eq!(server.drain(Duration::from_millis(10)), Ok(false));
    for (transport, link) in &mut links {
        if transport.starts_with('W') {
            // RFC 6455 §7.4.1: going away.
            assert_eq!(link.next(), Err(End::Closed(Some(1001))), "{transport}");
        }
        assert!(link.ended(), "{transport}");
    }
    wait(&server, "one is left", |sip| {
        (sip.connections, sip.closed_drained) == (1, 4)
    });
    let cancel = options("ring", "WSS", "").replace("OPTIONS sip:test", "CANCEL sip:ring");
    calling.send(&cancel.replace("1 OPTIONS", "1 CANCEL"));
    let mut codes = [status(&calling.receive()), status(&calling.receive())];
    codes.sort_unstable();
    assert_eq!(codes, [200, 487]);
    assert_eq!(server.drain(Duration::from_secs(20)), Ok(true));
    assert_eq!(calling.next(), Err(End::Closed(Some(1001))));
    assert_eq!(server.stats().sip().connections, 0);
}

#[test]
fn a_source_with_many_silent_connections_makes_room_for_another() {
    let mut settings = SipSettings::default();
    // One in four may be silent.
    settings.connections = 16;
    settings.message_deadline = Duration::from_secs(100);
    let (server, _) = serve(settings, 1);
    let listener = server.sip_tls_listeners()[0];
    let mut silent: Vec<Link> = (0..4).map(|_| Link::tcp(listener)).collect();
    wait(&server, "four", |sip| sip.connections == 4);
    // The same source makes no room for itself.
    assert!(Link::tcp(listener).ended());
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let socket = socket.expect("a socket");
    let other: SocketAddr = "127.0.0.2:0".parse().expect("an address");
    socket.bind(&other.into()).expect("loopback");
    let to = server.sip_listeners()[0];
    socket.connect(&to.into()).expect("the server accepts");
    let mut link = Link {
        socket: socket.into(),
        tls: None,
        web: None,
        unread: Vec::new(),
    };
    link.send(&options("other", "TCP", ""));
    assert_eq!(status(&link.receive()), 200);
    wait(&server, "one was evicted", |sip| sip.closed_evicted == 1);
    let timeout = Some(Duration::from_millis(50));
    let gone = silent.iter_mut().filter_map(|link| {
        link.socket.set_read_timeout(timeout).expect("a timeout");
        link.ended().then_some(())
    });
    assert_eq!(gone.count(), 1);
}

#[test]
fn a_client_that_reads_no_responses_is_closed_and_others_are_served() {
    let mut settings = SipSettings::default();
    (settings.message_deadline, settings.idle) = (Duration::from_secs(5), Duration::from_secs(5));
    let (server, config) = serve(settings, 1);
    for (number, transport) in (1..).zip(["TLS", "WS", "WSS"]) {
        let mut deaf = Link::of(transport, &server, &config);
        let request = options(transport, transport, "");
        let bytes: Vec<u8> = (0..64).flat_map(|_| deaf.framed(&request)).collect();
        let begun = Instant::now();
        // Nothing of it is read: it ends when the buffers on the way and the server's are full.
        let timeout = Some(Duration::from_millis(20));
        deaf.socket.set_write_timeout(timeout).expect("a timeout");
        let mut waiting = Vec::new();
        while server.stats().sip().closed_unread < number {
            assert!(begun.elapsed() < Duration::from_secs(60), "{transport}");
            if waiting.is_empty() {
                match &mut deaf.tls {
                    None => waiting.extend_from_slice(&bytes),
                    Some(tls) => tls
                        .encrypt(&bytes, &mut waiting)
                        .expect("an open connection"),
                }
            }
            match deaf.socket.write(&waiting) {
                Ok(written) => drop(waiting.drain(..written)),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        let mut other = Link::of(transport, &server, &config);
        other.send(&request);
        assert_eq!(status(&other.receive()), 200);
        wait(&server, "it was given up", |sip| {
            sip.closed_unread == number
        });
    }
}

/// A PROXY header of version 2 for TCP over IPv4 (the specification of HAProxy, section 2.2).
fn proxy_header(client: [u8; 4]) -> Vec<u8> {
    let rest = [198, 51, 100, 2, 0x12, 0x34, 0x13, 0xc4];
    [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..], &client, &rest].concat()
}

/// A server behind a load balancer at 127.0.0.1.
fn behind_a_load_balancer(settings: SipSettings) -> (Running, Arc<ClientConfig>) {
    let network = "127.0.0.1/32".parse().expect("a network");
    start(settings, 1, |builder| builder.proxy_protocol_from(network))
}

#[test]
fn a_load_balancer_says_whose_a_connection_is() {
    let (server, config) = behind_a_load_balancer(SipSettings::default());
    for (transport, address) in [
        ("TCP", server.sip_listeners()[0]),
        ("TLS", server.sip_tls_listeners()[0]),
        ("WS", server.sip_ws_listeners()[0]),
        ("WSS", server.sip_wss_listeners()[0]),
    ] {
        let mut link = Link::tcp(address);
        for byte in proxy_header([192, 0, 2, 7]).chunks(5) {
            link.socket.write_all(byte).expect("room");
            std::thread::sleep(Duration::from_millis(1));
        }
        if transport.ends_with('S') && transport != "WS" {
            link = link.with_tls(&config);
        }
        if transport.starts_with('W') {
            link = link.web();
        }
        link.send(&options(transport, transport, ""));
        let answer = link.receive();
        assert_eq!(status(&answer), 200, "{answer}");
        assert!(answer.contains(";received=192.0.2.7"), "{answer}");
        assert!(answer.contains(";rport=4660"), "{answer}");
    }
}

#[test]
fn a_header_and_a_request_may_come_together() {
    let (server, _) = behind_a_load_balancer(SipSettings::default());
    let mut link = Link::tcp(server.sip_listeners()[0]);
    let request = options("together", "TCP", "");
    let bytes = [&proxy_header([192, 0, 2, 8])[..], request.as_bytes()].concat();
    link.socket.write_all(&bytes).expect("room");
    let answer = link.receive();
    assert!(answer.contains(";received=192.0.2.8"), "{answer}");
}

#[test]
fn a_load_balancer_must_send_a_header_and_others_must_not() {
    let (server, _) = behind_a_load_balancer(SipSettings::default());
    let mut link = Link::tcp(server.sip_listeners()[0]);
    link.send(&options("plain", "TCP", ""));
    assert!(link.ended(), "a header is required");
    wait(&server, "it is counted", |sip| sip.closed_malformed == 1);
    let (direct, _) = serve(SipSettings::default(), 1);
    let mut link = Link::tcp(direct.sip_listeners()[0]);
    let request = options("claimed", "TCP", "");
    let bytes = [&proxy_header([192, 0, 2, 9])[..], request.as_bytes()].concat();
    link.socket.write_all(&bytes).expect("room");
    assert!(link.ended(), "nobody else may name an address");
    assert_eq!(direct.stats().sip().responses_sent[1], 0, "no 2xx");
}

#[test]
fn each_client_of_a_load_balancer_has_its_own_limit() {
    let mut settings = SipSettings::default();
    settings.connections_per_source = 2;
    let (server, _) = behind_a_load_balancer(settings);
    let connect = |client: u8| {
        let mut link = Link::tcp(server.sip_listeners()[0]);
        let header = proxy_header([192, 0, 2, client]);
        link.socket.write_all(&header).expect("room");
        link
    };
    let answered = |link: &mut Link, id: &str| {
        link.send(&options(id, "TCP", ""));
        assert_eq!(status(&link.receive()), 200);
    };
    let mut first = [connect(1), connect(1)];
    for (number, link) in first.iter_mut().enumerate() {
        answered(link, &format!("one{number}"));
    }
    assert!(connect(1).ended(), "one more than the client may have");
    wait(&server, "it is counted", |sip| sip.closed_source_limit == 1);
    answered(&mut connect(2), "two");
    drop(first);
    wait(&server, "they end", |sip| sip.connections == 0);
    answered(&mut connect(1), "again");
}
