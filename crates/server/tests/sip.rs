//! SIP as a client sees it: over UDP and over TCP, one message or many, whole or in pieces.

mod sip_client;

use hairpin_server::sip::SipSettings;
use hairpin_server::{Running, Server, Settings};
use sip_client::{Client, Stream, options, status};
use std::io::Read;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

fn server(settings: SipSettings) -> Running {
    Server::builder()
        .listen("127.0.0.1:0".parse().expect("works"))
        .relay_address("127.0.0.1".parse().expect("works"))
        .sip_listen("127.0.0.1:0".parse().expect("works"))
        .sip(settings)
        .workers(1)
        .start()
        .expect("the server starts")
}

fn plain() -> Running {
    server(SipSettings::default())
}

fn address(server: &Running) -> SocketAddr {
    server.sip_listeners()[0]
}

#[test]
fn options_is_answered_with_what_is_served_rfc3261_11_2() {
    let server = plain();
    let client = Client::new(address(&server));
    let answer = client.ask(&options("a", "UDP", ""));
    assert!(answer.starts_with("SIP/2.0 200 OK\r\n"), "{answer}");
    for line in [
        "Allow: OPTIONS\r\n",
        "Accept: application/sdp\r\n",
        "Accept-Encoding: identity\r\n",
        "Call-ID: a@test\r\n",
        "CSeq: 1 OPTIONS\r\n",
    ] {
        assert!(answer.contains(line), "{line} is not in {answer}");
    }
    let via = answer
        .lines()
        .find(|line| line.starts_with("Via: "))
        .expect("works");
    let port = client.local().port();
    assert!(
        via.contains(&format!("rport={port}")) && via.contains("received=127.0.0.1"),
        "{via}"
    );
    assert!(answer.contains(";tag="), "{answer}");
    assert_eq!(
        client.ask(&options("a", "UDP", "")),
        answer,
        "statelessly the same"
    );
    assert_eq!(server.stats().sip().responses_sent[1], 2);
}

#[test]
fn what_is_not_served_is_refused_and_said_so() {
    let server = plain();
    let client = Client::new(address(&server));
    let asked = |method: &str| client.ask(&options("b", "UDP", "").replace("OPTIONS", method));
    let register = asked("REGISTER");
    assert_eq!(status(&register), 405);
    assert!(register.contains("Allow: OPTIONS\r\n"), "{register}");
    assert_eq!(status(&asked("NEWMETHOD")), 501);
    let unknown = client.ask(&options("c", "UDP", "Require: nothing, else\r\n"));
    assert_eq!(status(&unknown), 420);
    assert!(
        unknown.contains("nothing") && unknown.contains("else"),
        "{unknown}"
    );
}

#[test]
fn answers_go_to_the_port_of_sent_by_unless_rport_asks_otherwise() {
    let server = plain();
    let told = UdpSocket::bind("127.0.0.1:0").expect("works");
    told.set_read_timeout(Some(Duration::from_secs(5)))
        .expect("works");
    let client = UdpSocket::bind("127.0.0.1:0").expect("works");
    let port = told.local_addr().expect("works").port();
    let request =
        options("d", "UDP", "").replace("192.0.2.1:5060;rport", &format!("127.0.0.1:{port}"));
    client
        .send_to(request.as_bytes(), address(&server))
        .expect("works");
    let mut buffer = [0; 2048];
    let length = told.recv(&mut buffer).expect("an answer");
    assert!(buffer[..length].starts_with(b"SIP/2.0 200"));
}

#[test]
fn a_stream_carries_many_messages_and_pieces_of_them() {
    let server = plain();
    let mut stream = Stream::new(address(&server));
    let many: String = (0..40)
        .map(|n| options(&format!("m{n}"), "TCP", ""))
        .collect();
    stream.send(many.as_bytes());
    for number in 0..40 {
        let answer = stream.answer();
        assert_eq!(status(&answer), 200);
        assert!(
            answer.contains(&format!("Call-ID: m{number}@test\r\n")),
            "{answer}"
        );
    }
    for byte in options("slow", "TCP", "").as_bytes().chunks(7) {
        stream.send(byte);
    }
    assert_eq!(status(&stream.answer()), 200);
    let sip = server.stats().sip();
    assert_eq!(
        (sip.tcp_messages, sip.connections, sip.connections_accepted),
        (41, 1, 1)
    );
}

#[test]
fn a_ping_is_answered_with_a_pong_rfc5626_3_5_1() {
    let server = plain();
    let mut stream = Stream::new(address(&server));
    stream.send(b"\r\n\r\n");
    assert_eq!(stream.bytes(2), b"\r\n");
    stream.send(options("p", "TCP", "").as_bytes());
    assert_eq!(status(&stream.answer()), 200);
}

#[test]
fn stun_is_answered_on_the_port_of_sip_rfc7983_7() {
    let server = plain();
    let client = Client::new(address(&server));
    let mut request = vec![0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42];
    request.extend([7; 12]);
    let answer = client.exchange(&request);
    assert_eq!((&answer[..2], &answer[8..20]), (&[1, 1][..], &[7; 12][..]));
    assert_eq!(server.stats().sip().stun_answers, 1);
}

#[test]
fn a_stream_that_is_no_sip_is_closed() {
    let server = plain();
    let mut stream = Stream::new(address(&server));
    stream.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(stream.ended());
    // What has a Via is told why.
    let mut stream = Stream::new(address(&server));
    stream.send(
        options("x", "TCP", "")
            .replace("Content-Length: 0\r\n", "")
            .as_bytes(),
    );
    assert_eq!(status(&stream.answer()), 400);
    assert!(stream.ended());
    assert_eq!(server.stats().sip().closed_malformed, 2);
}

#[test]
fn those_who_only_connect_are_closed_and_leave_room_for_others() {
    let mut settings = SipSettings::default();
    settings.connections = 8;
    settings.patience = Duration::from_secs(1);
    let server = server(settings);
    let mut silent: Vec<Stream> = (0..3).map(|_| Stream::new(address(&server))).collect();
    // A quarter may be half-open: the third was not let in.
    assert!(silent[2].ended());
    // A byte now and then does not help.
    silent[0].send(b"O");
    assert!(silent[0].ended() && silent[1].ended());
    let sip = server.stats().sip();
    assert_eq!(
        (sip.closed_slow, sip.connections_refused, sip.connections),
        (2, 1, 0)
    );
}

#[test]
fn a_source_has_no_more_connections_than_its_share() {
    let mut settings = SipSettings::default();
    settings.connections_per_source = 2;
    let server = server(settings);
    let mut streams: Vec<Stream> = (0..3).map(|_| Stream::new(address(&server))).collect();
    assert!(streams[2].ended());
    for stream in &mut streams[..2] {
        stream.send(options("q", "TCP", "").as_bytes());
        assert_eq!(status(&stream.answer()), 200);
    }
    drop(streams.remove(0));
    std::thread::sleep(Duration::from_millis(50));
    let mut next = Stream::new(address(&server));
    next.send(options("r", "TCP", "").as_bytes());
    assert_eq!(status(&next.answer()), 200);
}

#[test]
fn who_does_not_read_its_answers_is_given_up() {
    let server = plain();
    let stream = Stream::new(address(&server));
    let request = options("u", "TCP", "");
    let many: String = std::iter::repeat_n(request.as_str(), 500).collect();
    let mut stream = stream.into_inner();
    stream
        .set_write_timeout(Some(Duration::from_secs(2)))
        .expect("works");
    // It is read until its answers back up; then its own sends do.
    for _ in 0..1000 {
        if std::io::Write::write_all(&mut stream, many.as_bytes()).is_err() {
            break;
        }
    }
    let sip = server.stats().sip();
    assert!(sip.tcp_messages < 400_000, "{}", sip.tcp_messages);
    // Those that were asked for are still there to be read.
    let mut buffer = [0; 65536];
    assert!(stream.read(&mut buffer).expect("works") > 0);
}

#[test]
fn malformed_datagrams_are_counted_and_answered_only_if_they_can_be() {
    let server = plain();
    let client = Client::new(address(&server));
    client.send(b"\x80\x81\x82");
    client.send(b"\r\n\r\n");
    client.send(b"SIP/2.0 200 OK\r\n\r\n");
    let wrong = options("w", "UDP", "").replace("CSeq: 1 OPTIONS", "CSeq: 1 INVITE");
    assert_eq!(status(&client.ask(&wrong)), 400);
    let answer = client.ask(&options("v", "UDP", "").replace("SIP/2.0\r\n", "SIP/7.0\r\n"));
    assert_eq!(status(&answer), 505);
    assert_eq!(server.stats().sip().pings, 1);
}

#[test]
fn settings_are_replaced_while_it_runs() {
    let server = plain();
    let client = Client::new(address(&server));
    let register = options("s", "UDP", "").replace("OPTIONS", "REGISTER");
    assert_eq!(status(&client.ask(&register)), 405);
    let mut settings = Settings::default();
    settings.sip.test_uas = true;
    server.reload(settings).expect("new settings");
    assert_eq!(status(&client.ask(&register)), 200);
}
