//! SIP as a client sees it: over UDP and over TCP, one message or many, whole or in pieces.

use crate::sip_client::{Client, Stream, options, serve, status, test_uas};
use hairpin_server::sip::SipSettings;
use hairpin_server::{Running, Settings};
use std::io::Read;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

fn server(settings: SipSettings) -> Running {
    serve(settings, 1)
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
fn unsupported_requests_are_refused_with_a_reason() {
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

/// A Binding request with these attributes, and a right fingerprint.
fn binding(attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let id = stun::TransactionId([7; 12]);
    let mut buffer = [0; 512];
    let (class, method) = (stun::Class::Request, stun::Method::BINDING);
    let mut request = stun::Builder::new(&mut buffer, class, method, &id).expect("room");
    for &(kind, value) in attributes {
        let kind = stun::AttributeType(kind);
        request.push_raw(kind, value).expect("room");
    }
    request.fingerprint().expect("room");
    request.finish().to_vec()
}

#[test]
fn stun_that_is_not_understood_gets_420_on_the_port_of_sip_rfc8489_6_3_1() {
    let server = plain();
    let client = Client::new(address(&server));
    // CHANGE-REQUEST of RFC 5780, and one that nobody knows; the last may be ignored.
    let asked = binding(&[(0x0003, &[0; 4]), (0x7f00, &[]), (0x8fff, &[1, 2])]);
    let answer = client.exchange(&asked);
    let answer = stun::Message::parse(&answer).expect("STUN");
    assert_eq!(answer.class(), stun::Class::Error);
    assert_eq!(answer.fingerprint(), stun::FingerprintState::Valid);
    let error = answer.get::<stun::ErrorCode<'_>>().expect("whole");
    assert_eq!(error.expect("there").code, 420);
    let unknown = answer.get::<stun::UnknownAttributes>().expect("whole");
    let unknown = unknown.expect("there");
    let listed: Vec<u16> = unknown.as_slice().iter().map(|kind| kind.0).collect();
    assert_eq!(listed, [0x0003, 0x7f00]);
    // What only may be understood does not matter.
    let answer = client.exchange(&binding(&[(0x8fff, &[1, 2])]));
    assert_eq!(&answer[..2], &[1, 1]);
}

#[test]
fn stun_with_a_wrong_fingerprint_is_dropped_on_the_port_of_sip_rfc8489_6_3() {
    let server = plain();
    let client = Client::new(address(&server));
    let mut wrong = binding(&[]);
    *wrong.last_mut().expect("bytes") ^= 1;
    client.send(&wrong);
    // RFC 7983 §7: 128 to 191 are no STUN either, and 20 to 63 are DTLS.
    client.send(&[22; 40]);
    let answer = client.exchange(&binding(&[]));
    assert_eq!(&answer[..2], &[1, 1], "the first that is answered");
    let sip = server.stats().sip();
    assert_eq!(
        (sip.stun_answers, sip.stun_dropped, sip.malformed),
        (1, 1, 1)
    );
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
    settings.message_deadline = Duration::from_secs(1);
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
fn a_client_that_does_not_read_responses_is_closed() {
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

/// A server with the user agent server for tests.
fn uas() -> Running {
    server(test_uas())
}

/// A request with this method, CSeq and tags, in the call `id`.
fn request(id: &str, method: &str, cseq: u32, to_tag: &str) -> String {
    options(id, "UDP", "")
        .replace("1 OPTIONS", &format!("{cseq} {method}"))
        .replace("OPTIONS", method)
        .replace(&format!("z9hG4bK{id}"), &format!("z9hG4bK{id}{method}"))
        .replace(
            "To: <sip:test@127.0.0.1>",
            &format!("To: <sip:test@127.0.0.1>{to_tag}"),
        )
}

/// `;tag=..` of To.
fn to_tag(answer: &str) -> String {
    let to = answer.lines().find(|line| line.starts_with("To: "));
    let tag = to.and_then(|to| to.find(";tag=").map(|at| to[at..].to_owned()));
    tag.expect("a tag")
}

#[test]
fn a_registration_lists_its_bindings_and_is_repeated_from_memory_rfc3261_10_3() {
    let server = uas();
    let client = Client::new(address(&server));
    let asked =
        request("r", "REGISTER", 1, "").replace("192.0.2.1>\r\n", "192.0.2.1>;expires=60\r\n");
    let answer = client.ask(&asked);
    assert!(answer.starts_with("SIP/2.0 200"), "{answer}");
    assert!(
        answer.contains("Contact: <sip:a@192.0.2.1>;expires=60\r\n"),
        "{answer}"
    );
    assert_eq!(client.ask(&asked), answer);
    let sip = server.stats().sip();
    assert_eq!((sip.requests[0], sip.request_retransmissions), (1, 1));
    assert_eq!((sip.transactions, sip.timers), (1, 1));
    assert!((1..=1024).contains(&sip.state_bytes), "{}", sip.state_bytes);
    let star = asked
        .replace("<sip:a@192.0.2.1>;expires=60", "*")
        .replace("z9hG4bKr", "z9hG4bKs")
        .replace("CSeq: 1 ", "CSeq: 2 ");
    assert_eq!(status(&client.ask(&star)), 400);
}

#[test]
fn a_call_rings_is_taken_and_ended_rfc3261_13_15() {
    let server = uas();
    let client = Client::new(address(&server));
    client.send(request("c", "INVITE", 1, "").as_bytes());
    let ringing = client.answer();
    assert_eq!(status(&ringing), 180);
    let taken = client.answer();
    assert_eq!(status(&taken), 200);
    assert_eq!(to_tag(&taken), to_tag(&ringing), "one dialog");
    for part in [
        "Contact: <sip:127.0.0.1:",
        "Content-Type: application/sdp",
        "v=0\r\n",
    ] {
        assert!(taken.contains(part), "{part} is not in {taken}");
    }
    // Until the ACK comes, the 200 comes again (§13.3.1.4).
    assert_eq!(client.answer(), taken);
    client.send(request("c", "ACK", 1, &to_tag(&taken)).as_bytes());
    assert!(
        client.hears_nothing(Duration::from_millis(1500)),
        "it was acknowledged"
    );
    assert_eq!(
        status(&client.ask(&request("c", "BYE", 2, &to_tag(&taken)))),
        200
    );
    let made_up = request("d", "BYE", 2, ";tag=made-up");
    assert_eq!(status(&client.ask(&made_up)), 481);
    assert_eq!(server.stats().sip().stray_acks, 0);
}

#[test]
fn a_call_that_comes_by_two_ways_rings_once_rfc3261_8_2_2_2() {
    let server = uas();
    let client = Client::new(address(&server));
    let invite = request("m", "INVITE", 1, "").replace("INVITE sip:test@", "INVITE sip:ring@");
    assert_eq!(status(&client.ask(&invite)), 180);
    // A proxy has forked it, and another has brought the branches together.
    let other_way = Client::new(address(&server));
    let forked = invite.replace("z9hG4bKmINVITE", "z9hG4bKforked");
    assert_eq!(status(&other_way.ask(&forked)), 482);
    let ack = forked
        .replace("INVITE sip", "ACK sip")
        .replace("1 INVITE", "1 ACK");
    other_way.send(ack.as_bytes());
    assert!(
        other_way.hears_nothing(Duration::from_millis(1200)),
        "acknowledged"
    );
    assert_eq!(server.stats().sip().stray_acks, 0);
}

#[test]
fn a_call_that_rings_can_be_cancelled_rfc3261_9_2() {
    let server = uas();
    let client = Client::new(address(&server));
    let invite = request("k", "INVITE", 1, "").replace("INVITE sip:test@", "INVITE sip:ring@");
    assert_eq!(status(&client.ask(&invite)), 180);
    let cancel = request("k", "CANCEL", 1, "")
        .replace("CANCEL sip:test@", "CANCEL sip:ring@")
        .replace("z9hG4bKkCANCEL", "z9hG4bKkINVITE");
    let mut codes = [status(&client.ask(&cancel)), status(&client.answer())];
    codes.sort_unstable();
    assert_eq!(codes, [200, 487]);
    let nothing = cancel.replace("z9hG4bKkINVITE", "z9hG4bKother");
    assert_eq!(status(&client.ask(&nothing)), 481);
    let busy = request("b", "INVITE", 1, "").replace("INVITE sip:test@", "INVITE sip:busy@");
    assert_eq!(status(&client.ask(&busy)), 486);
}

#[test]
fn an_early_dialog_ends_with_a_bye_and_takes_no_second_invite_rfc3261_14_2_and_15_1_2() {
    let server = uas();
    let client = Client::new(address(&server));
    let invite = request("e", "INVITE", 1, "").replace("INVITE sip:test@", "INVITE sip:ring@");
    let ringing = client.ask(&invite);
    assert_eq!(status(&ringing), 180);
    let tag = to_tag(&ringing);
    let again = request("e", "INVITE", 2, &tag).replace("z9hG4bKe", "z9hG4bKf");
    let refused = client.ask(&again);
    assert_eq!(status(&refused), 500);
    assert!(refused.contains("\r\nRetry-After: "), "{refused}");
    let ack = again
        .replace("INVITE sip", "ACK sip")
        .replace("2 INVITE", "2 ACK");
    client.send(ack.as_bytes());
    let bye = request("e", "BYE", 3, &tag);
    let mut ended = [client.ask(&bye), client.answer()].map(|answer| status(&answer));
    ended.sort_unstable();
    assert_eq!(ended, [200, 487]);
}

#[test]
fn over_a_stream_a_finished_request_leaves_nothing_behind() {
    let server = uas();
    let mut stream = Stream::new(address(&server));
    for number in 0..20 {
        let id = format!("t{number}");
        stream.send(
            request(&id, "REGISTER", 1, "")
                .replace("/UDP", "/TCP")
                .as_bytes(),
        );
        assert_eq!(status(&stream.answer()), 200);
    }
    let sip = server.stats().sip();
    assert_eq!((sip.transactions, sip.timers, sip.state_bytes), (0, 0, 0));
}

#[test]
fn beyond_the_limit_of_transactions_requests_get_503() {
    let mut settings = test_uas();
    settings.transactions = 3;
    let server = server(settings);
    let client = Client::new(address(&server));
    let ask = |number: u32| status(&client.ask(&request(&format!("l{number}"), "REGISTER", 1, "")));
    assert_eq!([ask(0), ask(1), ask(2), ask(3)], [200, 200, 200, 503]);
    assert_eq!(server.stats().sip().shed_transactions, 1);
}

#[test]
fn an_answer_finds_another_connection_when_its_own_is_gone_rfc3261_18_2_2() {
    let server = uas();
    let told = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = told.local_addr().expect("an address").port();
    let mut stream = Stream::new(address(&server));
    // It rings; the call is cancelled over another connection once the first is gone.
    let invite = request("g", "INVITE", 1, "")
        .replace("/UDP", "/TCP")
        .replace("192.0.2.1:5060", &format!("127.0.0.1:{port}"))
        .replace("INVITE sip:test@", "INVITE sip:ring@");
    stream.send(invite.as_bytes());
    assert_eq!(status(&stream.answer()), 180);
    drop(stream);
    std::thread::sleep(Duration::from_millis(50));
    let mut other = Stream::new(address(&server));
    let cancel = invite
        .replace("INVITE sip", "CANCEL sip")
        .replace("1 INVITE", "1 CANCEL");
    other.send(cancel.as_bytes());
    assert_eq!(status(&other.answer()), 200);
    let (mut connection, _) = told.accept().expect("a connection");
    let mut buffer = [0; 2048];
    let length = connection.read(&mut buffer).expect("an answer");
    assert!(buffer[..length].starts_with(b"SIP/2.0 487"));
    assert_eq!(server.stats().sip().connections_made, 1);
}

/// A server of two workers.
fn two_workers() -> Running {
    serve(test_uas(), 2)
}

#[test]
fn one_upstream_is_served_by_all_workers() {
    let mut settings = test_uas();
    // It keeps a worker busy.
    settings.service_time = Duration::from_micros(500);
    let server = serve(settings, 2);
    // One 5-tuple: the kernel gives all of it to one worker.
    let client = Client::new(address(&server));
    let started = std::time::Instant::now();
    let mut number = 0;
    while server.stats().sip().handed_over < 200 {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "nothing is handed over"
        );
        for _ in 0..200 {
            number += 1;
            let answer = client.ask(&request(&format!("u{number}"), "REGISTER", 1, ""));
            assert_eq!(status(&answer), 200);
        }
    }
    let stats = server.stats();
    let [one, other] = [0, 1].map(|worker| stats.workers[worker].sip);
    assert_eq!(
        one.handed_over + other.handed_over,
        one.taken_over + other.taken_over
    );
    assert!(one.transactions > 0 && other.transactions > 0, "both work");
    // What came before is still known where it was, and is not begun anew elsewhere.
    let before = stats.sip().request_retransmissions;
    for number in 1..=50 {
        let again = request(&format!("u{number}"), "REGISTER", 1, "");
        assert_eq!(status(&client.ask(&again)), 200);
    }
    assert_eq!(server.stats().sip().request_retransmissions, before + 50);
    // A call stays in one place from INVITE to BYE.
    for number in 0..20 {
        let id = format!("call{number}");
        assert_eq!(status(&client.ask(&request(&id, "INVITE", 1, ""))), 180);
        let taken = client.answer();
        assert_eq!(status(&taken), 200);
        client.send(request(&id, "ACK", 1, &to_tag(&taken)).as_bytes());
        assert_eq!(
            status(&client.ask(&request(&id, "BYE", 2, &to_tag(&taken)))),
            200
        );
    }
    assert_eq!(server.stats().sip().stray_acks, 0);
}

#[test]
fn an_ack_that_comes_by_another_connection_finds_its_worker() {
    let server = two_workers();
    let over_tcp = |text: String| text.replace("/UDP", "/TCP");
    // One in two finds another worker: that none does is for nobody to see.
    for number in 0..24 {
        let id = format!("x{number}");
        let mut stream = Stream::new(address(&server));
        stream.send(over_tcp(request(&id, "INVITE", 1, "")).as_bytes());
        assert_eq!(status(&stream.answer()), 180);
        let tag = to_tag(&stream.answer());
        // Every connection is given to some worker.
        let mut other = Stream::new(address(&server));
        other.send(over_tcp(request(&id, "ACK", 1, &tag)).as_bytes());
        other.send(over_tcp(options(&format!("y{number}"), "TCP", "")).as_bytes());
        assert_eq!(status(&other.answer()), 200);
    }
    std::thread::sleep(Duration::from_millis(100));
    let sip = server.stats().sip();
    assert_eq!(sip.stray_acks, 0);
    assert!(sip.handed_over > 0, "of so many, one is on another worker");
    std::thread::sleep(Duration::from_millis(900));
    assert_eq!(
        server.stats().sip().response_retransmissions,
        0,
        "all are acknowledged"
    );
}
