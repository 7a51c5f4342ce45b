//! Where answers go (RFC 3261 §18.2.2, RFC 3581 §4): what leaves the server, byte by byte, and to which address and
//! port.

use crate::sip_client::phone::{Phone, credentials_of};
use crate::sip_client::{Stream, serve, status, test_uas};
use hairpin_server::sip::{Domain, SipSettings};
use hairpin_server::{Running, Server};
use sip::{HeaderKind, Method};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

fn server() -> Running {
    serve(test_uas(), 2)
}

/// A socket on this loopback address; port 0 takes a free one.
fn socket(ip: &str, port: u16) -> UdpSocket {
    let socket = UdpSocket::bind((ip, port)).expect("a socket");
    let timeout = Duration::from_secs(10);
    socket.set_read_timeout(Some(timeout)).expect("a timeout");
    socket
}

fn port(socket: &UdpSocket) -> u16 {
    socket.local_addr().expect("an address").port()
}

fn options(via: &str) -> String {
    format!(
        "OPTIONS sip:test@127.0.0.1 SIP/2.0\r\nVia: SIP/2.0/UDP {via};branch=z9hG4bK1\r\n\
         From: <sip:a@example.org>;tag=1\r\nTo: <sip:test@127.0.0.1>\r\n\
         Call-ID: r@test\r\nCSeq: 1 OPTIONS\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
    )
}

/// What comes, from the server's own port.
fn receive(socket: &UdpSocket, server: SocketAddr) -> String {
    let mut buffer = [0; 4096];
    let (length, from) = socket.recv_from(&mut buffer).expect("an answer in time");
    assert_eq!(from, server, "RFC 3581 §4: from where the request went");
    let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
    assert_eq!(status(&text), 200);
    text
}

/// Sends with this Via, and has `to` receive the answer; returns the Via of that.
fn via_of_answer(server: &Running, from: &UdpSocket, to: &UdpSocket, via: &str) -> String {
    let address = server.sip_listeners()[0];
    from.send_to(options(via).as_bytes(), address)
        .expect("sent");
    let answer = receive(to, address);
    let line = answer
        .lines()
        .find_map(|line| line.strip_prefix("Via: SIP/2.0/UDP "));
    line.expect("a Via").to_owned()
}

#[test]
fn with_rport_it_goes_to_the_source_and_says_so_rfc3581_4() {
    let server = server();
    let client = socket("127.0.0.1", 0);
    for (via, sent_by) in [
        ("192.0.2.1:5070;rport", "192.0.2.1:5070"),
        ("client.example;rport", "client.example"),
        ("[2001:db8::9]:5070;rport", "[2001:db8::9]:5070"),
    ] {
        let line = via_of_answer(&server, &client, &client, via);
        assert!(line.starts_with(sent_by), "{line}");
        assert!(
            line.contains(&format!(";rport={}", port(&client))),
            "{line}"
        );
        assert!(line.contains(";received=127.0.0.1"), "{line}");
    }
    // Even where sent-by is right, received is there: that is how a client knows that it was understood.
    let via = format!("127.0.0.1:{};rport", port(&client));
    let line = via_of_answer(&server, &client, &client, &via);
    assert!(line.contains(";received=127.0.0.1"), "{line}");
}

#[test]
fn without_rport_it_goes_to_the_port_of_sent_by_at_the_source_rfc3261_18_2_2() {
    let server = server();
    let (client, told) = (socket("127.0.0.77", 0), socket("127.0.0.77", 0));
    for host in ["192.0.2.1", "client.example", "[2001:db8::9]"] {
        let via = format!("{host}:{}", port(&told));
        let line = via_of_answer(&server, &client, &told, &via);
        assert!(
            line.contains(";received=127.0.0.77") && !line.contains("rport"),
            "{line}"
        );
    }
    let via = format!("127.0.0.77:{}", port(&told));
    let line = via_of_answer(&server, &client, &told, &via);
    assert!(!line.contains("received"), "sent-by says it all: {line}");
    // No port is 5060, which something else on this machine may have.
    if UdpSocket::bind("127.0.0.77:5060").is_ok() {
        let usual = socket("127.0.0.77", 5060);
        let _ = via_of_answer(&server, &client, &usual, "client.example");
    }
}

#[test]
fn maddr_is_obeyed_unless_it_reaches_many_or_further_in_than_its_sender_rfc3261_18_2_2() {
    let server = server();
    let (client, told) = (socket("127.0.0.1", 0), socket("127.0.0.78", 0));
    let via = format!("192.0.2.1:{};maddr=127.0.0.78", port(&told));
    let _ = via_of_answer(&server, &client, &told, &via);
    for many in ["224.0.1.75", "255.255.255.255", "0.0.0.0", "sip.mcast.net"] {
        let via = format!("192.0.2.1;rport;maddr={many}");
        let _ = via_of_answer(&server, &client, &client, &via);
    }
}

#[test]
fn ipv6_has_its_brackets_where_it_must_and_none_where_it_may_not() {
    let server = Server::builder()
        .listen("127.0.0.1:0".parse().expect("an address"))
        .relay_address("127.0.0.1".parse().expect("an address"))
        .user("ann", "secret")
        .sip_listen("[::1]:0".parse().expect("an address"))
        .sip(test_uas())
        .workers(2)
        .start()
        .expect("the server starts");
    let (client, told) = (socket("::1", 0), socket("::1", 0));
    let line = via_of_answer(&server, &client, &client, "[2001:db8::1];rport");
    assert!(
        line.contains(&format!(";rport={}", port(&client))),
        "{line}"
    );
    assert!(
        line.contains(";received=::1"),
        "via-received has no brackets: {line}"
    );
    let via = format!("[::1]:{}", port(&told));
    let line = via_of_answer(&server, &client, &told, &via);
    assert!(!line.contains("received"), "{line}");
    let via = format!("client.example:{};maddr=[ff02::1]", port(&told));
    let _ = via_of_answer(&server, &client, &told, &via);
}

#[test]
fn over_a_stream_it_goes_by_the_connection_for_every_via_rfc3261_18_2_2() {
    let server = server();
    let mut stream = Stream::new(server.sip_listeners()[0]);
    for via in [
        "192.0.2.1:9",
        "client.example;rport",
        "192.0.2.1;maddr=127.0.0.79",
        "[2001:db8::1]",
    ] {
        stream.send(options(via).replace("/UDP", "/TCP").as_bytes());
        assert_eq!(status(&stream.answer()), 200, "{via}");
    }
}

#[test]
fn with_a_domain_only_who_has_credentials_steers_a_response_by_maddr() {
    let mut settings = SipSettings::default();
    settings.domains = vec![Domain {
        name: "example.com".to_owned(),
        ..Domain::default()
    }];
    let server = serve(settings, 2);
    let mut phone = Phone::udp(&server, "ann");
    let told = socket("127.0.0.78", 0);
    let via = format!("127.0.0.1:{};maddr=127.0.0.78", port(&told));
    let uri = "sip:example.com";
    for (cseq, password, code) in [(1, "wrong", 401), (3, "secret", 200)] {
        let steered = |text: String| text.replace("192.0.2.1:5060;rport", &via);
        let text = steered(phone.request("REGISTER", uri, "steer", cseq, ""));
        phone.send(&text);
        let challenge = phone.expect("SIP/2.0 401");
        let user = ("ann", password);
        let kind = HeaderKind::Authorization;
        let line = credentials_of(&challenge, kind, user, Method::Register, uri);
        let text = steered(phone.request("REGISTER", uri, "steer", cseq + 1, &line));
        phone.send(&text);
        if code == 401 {
            phone.expect("SIP/2.0 401");
            continue;
        }
        let mut buffer = [0; 4096];
        let length = told.recv(&mut buffer).expect("the response comes here");
        let answer = String::from_utf8_lossy(&buffer[..length]);
        assert_eq!(status(&answer), code, "{answer}");
    }
}
