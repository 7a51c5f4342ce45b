//! What an endpoint does for sources that have proven nothing, and how it bounds those that have.

#![allow(clippy::unwrap_used, reason = "a test says no more")]

mod support;

use hairpin_dtls::{ClientEvent, CloseReason, DropReason, Endpoint, Event, Limits, Path};
use support::*;
use timers::Mono;

/// A ClientHello in one datagram, and the same with its cookie.
fn hellos(authority: &Authority, endpoint: &mut Endpoint, client: u16) -> (Vec<u8>, Vec<u8>) {
    let mut side = authority.client(Mono(0));
    let first = client_transmits(&mut side).remove(0);
    give(endpoint, Mono(0), &path(client), &first);
    let (_, request) = transmits(endpoint).remove(0);
    give_client(&mut side, Mono(0), &request);
    (first, client_transmits(&mut side).remove(0))
}

#[test]
fn a_hello_without_a_cookie_leaves_nothing_behind_and_gets_less_than_it_sent() {
    let authority = Authority::ecdsa();
    let mut endpoint = authority.endpoint(Limits::default());
    let first = client_transmits(&mut authority.client(Mono(0))).remove(0);
    for client in 0..2000 {
        give(&mut endpoint, Mono(0), &path(client), &first);
        let answers = transmits(&mut endpoint);
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].0, path(client));
        assert!(answers[0].1.len() <= first.len(), "amplified");
    }
    assert_eq!(
        (
            endpoint.connections(),
            endpoint.half_open(),
            endpoint.poll_timeout()
        ),
        (0, 0, None)
    );
    assert!(!endpoint.has_work());
    assert_eq!(endpoint.counters().hello_verify_requests, 2000);
}

#[test]
fn many_hellos_in_a_datagram_get_one_answer() {
    let authority = Authority::ecdsa();
    let mut endpoint = authority.endpoint(Limits::default());
    let first = client_transmits(&mut authority.client(Mono(0))).remove(0);
    give(&mut endpoint, Mono(0), &path(1), &first.repeat(5));
    assert_eq!(transmits(&mut endpoint).len(), 1);
}

#[test]
fn a_hello_that_is_shorter_than_the_answer_gets_none() {
    let authority = Authority::ecdsa();
    let mut endpoint = authority.endpoint(Limits::default());
    // A first fragment with the shortest lists is longer than the answer: none can be shorter.
    let mut body = vec![0xfe, 0xfd];
    body.extend_from_slice(&[1; 32]);
    body.extend_from_slice(&[0, 0, 0, 2, 0xc0, 0x2b, 1, 0]);
    let length = body.len() as u8;
    let mut datagram = vec![22, 0xfe, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, length + 12];
    datagram.extend_from_slice(&[1, 0, 0, length, 0, 0, 0, 0, 0, 0, 0, length]);
    datagram.extend_from_slice(&body);
    give(&mut endpoint, Mono(0), &path(1), &datagram);
    let answers = transmits(&mut endpoint);
    assert_eq!(answers.len(), 1);
    assert!(
        answers[0].1.len() <= datagram.len(),
        "{} for {}",
        answers[0].1.len(),
        datagram.len()
    );
}

#[test]
fn a_cookie_is_of_no_use_from_another_address_or_later() {
    let authority = Authority::ecdsa();
    let mut endpoint = authority.endpoint(Limits::default());
    let (_, second) = hellos(&authority, &mut endpoint, 1);
    let seconds = |seconds: u64| Mono(seconds * 1000 * MS);
    for (now, from) in [(seconds(0), path(2)), (seconds(60), path(1))] {
        give(&mut endpoint, now, &from, &second);
        let answers = transmits(&mut endpoint);
        assert_eq!((answers.len(), endpoint.connections()), (1, 0));
        assert!(answers[0].1.len() <= second.len());
    }
    assert_eq!(endpoint.counters().bad_cookies, 2);
    give(&mut endpoint, seconds(31), &path(1), &second);
    assert_eq!(endpoint.connections(), 1);
}

#[test]
fn records_from_unknown_sources_are_dropped_and_counted() {
    let authority = Authority::ecdsa();
    let (_, mut client) = connected(&authority, Limits::default());
    let mut endpoint = authority.endpoint(Limits::default());
    let mut sealed = vec![0; 100];
    let length = client.seal(&[b"hello"], &mut sealed).unwrap();
    give(&mut endpoint, Mono(0), &path(1), &sealed[..length]);
    give(&mut endpoint, Mono(0), &path(1), &[22, 0xfe, 0xfd, 0, 0]);
    give(&mut endpoint, Mono(0), &path(1), b"GET / HTTP/1.1\r\n\r\n");
    give(
        &mut endpoint,
        Mono(0),
        &path(1),
        &[21, 0xfe, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 40],
    );
    assert_eq!(endpoint.counters().drops(DropReason::UnknownSource), 2);
    assert_eq!(endpoint.counters().drops(DropReason::MalformedRecord), 2);
    assert!(transmits(&mut endpoint).is_empty());
    assert_eq!(endpoint.connections(), 0);
}

/// The client cuts its ClientHello into records of at most 120 bytes.
#[test]
fn a_fragmented_hello_is_answered_by_its_first_fragment() {
    let authority = Authority::ecdsa();
    let mut endpoint = authority.endpoint(Limits::default());
    let mut config = authority.client_config();
    config.mtu = 120;
    let mut client = client_of(config, "turn.example", Mono(0));
    let first = client_transmits(&mut client);
    assert!(first.len() > 1);
    let mut answers = Vec::new();
    for datagram in &first {
        give(&mut endpoint, Mono(0), &path(1), datagram);
        answers.extend(transmits(&mut endpoint));
    }
    assert_eq!(answers.len(), 1, "the first fragment alone is answered");
    assert_eq!(
        endpoint.counters().drops(DropReason::FragmentedHello),
        first.len() as u64 - 1
    );
    assert_eq!(endpoint.connections(), 0);
    give_client(&mut client, Mono(0), &answers[0].1);
    exchange(&mut endpoint, &mut client, Mono(0), &path(1));
    assert!(client.is_established());
}

#[test]
fn handshakes_are_bounded_per_prefix_and_in_all_and_the_oldest_ends() {
    let authority = Authority::ecdsa();
    let limits = Limits {
        half_open: 5,
        half_open_per_prefix: 3,
        ..Limits::default()
    };
    let mut endpoint = authority.endpoint(limits);
    let mut ended = Vec::new();
    // Of 198.51.0.0/24 and of 198.51.1.0/24.
    for client in [1, 2, 3, 4, 256, 257, 258] {
        let (_, second) = hellos(&authority, &mut endpoint, client);
        give(&mut endpoint, Mono(0), &path(client), &second);
        transmits(&mut endpoint);
        for event in events(&mut endpoint) {
            let Event::Closed {
                path,
                reason,
                established,
                ..
            } = event
            else {
                panic!("{event:?}");
            };
            assert_eq!(
                (reason, established),
                (CloseReason::TooManyHandshakes, false)
            );
            ended.push(path.remote.port() - 1000);
        }
    }
    assert_eq!(ended, [1, 2]);
    assert_eq!((endpoint.half_open(), endpoint.connections()), (5, 5));
}

#[test]
fn connections_are_bounded() {
    let authority = Authority::ecdsa();
    let limits = Limits {
        connections: 2,
        ..Limits::default()
    };
    let mut endpoint = authority.endpoint(limits);
    for number in 1..=3 {
        let mut client = authority.client(Mono(0));
        exchange(&mut endpoint, &mut client, Mono(0), &path(number));
        assert_eq!(client.is_established(), number < 3);
    }
    assert_eq!(endpoint.counters().drops(DropReason::TooManyConnections), 1);
}

#[test]
fn connections_of_a_source_are_bounded_and_other_sources_are_not() {
    let authority = Authority::ecdsa();
    let limits = Limits {
        connections_per_source: 2,
        ..Limits::default()
    };
    let mut endpoint = authority.endpoint(limits);
    let from = |remote: &str| Path {
        remote: remote.parse().unwrap(),
        ..path(1)
    };
    let connect = |endpoint: &mut Endpoint, remote: &str| {
        let mut client = authority.client(Mono(0));
        exchange(endpoint, &mut client, Mono(0), &from(remote));
        client.is_established()
    };
    for (remote, admitted) in [
        ("203.0.113.1:1", true),
        ("203.0.113.1:2", true),
        ("203.0.113.1:3", false),
        ("203.0.113.2:1", true),
        ("[2001:db8::1]:1", true),
        ("[2001:db8::2]:1", true),
        ("[2001:db8::3]:1", false),
        ("[2001:db8:0:1::3]:1", true),
    ] {
        assert_eq!(connect(&mut endpoint, remote), admitted, "{remote}");
    }
    assert_eq!(endpoint.counters().drops(DropReason::TooManyOfSource), 2);
    // A client that begins again on the same path takes the place of its own connection.
    assert!(connect(&mut endpoint, "203.0.113.1:2"));
    let ended = endpoint.find(&from("203.0.113.1:1")).unwrap();
    endpoint.close(Mono(0), ended);
    transmits(&mut endpoint);
    assert!(connect(&mut endpoint, "203.0.113.1:3"));
}

#[test]
fn a_handshake_that_stops_ends_in_time_after_its_flight_was_sent_again() {
    let authority = Authority::ecdsa();
    let mut endpoint = authority.endpoint(Limits::default());
    let (_, second) = hellos(&authority, &mut endpoint, 1);
    give(&mut endpoint, Mono(0), &path(1), &second);
    let mut sent = Vec::new();
    let mut now = Mono(0);
    while endpoint.connections() > 0 {
        if !transmits(&mut endpoint).is_empty() {
            sent.push(now.0 / (1000 * MS));
        }
        now = endpoint.poll_timeout().unwrap();
        endpoint.handle_timeout(now);
    }
    assert_eq!(sent, [0, 1, 3, 7, 15]);
    assert_eq!(now.0 / (1000 * MS), 20);
    assert!(matches!(
        events(&mut endpoint)[..],
        [Event::Closed {
            reason: CloseReason::HandshakeTimeout,
            ..
        }]
    ));
    assert_eq!((endpoint.half_open(), endpoint.poll_timeout()), (0, None));
}

#[test]
fn an_idle_connection_ends_and_one_with_data_does_not() {
    let authority = Authority::ecdsa();
    let (mut endpoint, mut client) = connected(&authority, Limits::default());
    events(&mut endpoint);
    let idle = 3660 * 1000 * MS;
    let mut sealed = vec![0; 100];
    let length = client.seal(&[b"hello"], &mut sealed).unwrap();
    assert_eq!(
        give(&mut endpoint, Mono(idle - 1), &path(1), &sealed[..length]).len(),
        1
    );
    endpoint.handle_timeout(Mono(idle));
    assert_eq!(endpoint.connections(), 1);
    // A replayed record is not authentic: it keeps nothing alive.
    give(&mut endpoint, Mono(idle + 5), &path(1), &sealed[..length]);
    endpoint.handle_timeout(Mono(2 * idle));
    assert_eq!(endpoint.connections(), 0);
    assert!(matches!(
        events(&mut endpoint)[..],
        [Event::Closed {
            reason: CloseReason::Idle,
            established: true,
            ..
        }]
    ));
    exchange(&mut endpoint, &mut client, Mono(2 * idle), &path(1));
    assert_eq!(
        client_events(&mut client).pop(),
        Some(ClientEvent::Closed(CloseReason::Peer))
    );
}

/// RFC 6347 §4.2.8.
#[test]
fn a_client_that_lost_its_state_replaces_its_connection_and_nobody_else_can() {
    let authority = Authority::ecdsa();
    let (mut endpoint, mut old) = connected(&authority, Limits::default());
    events(&mut endpoint);
    // Somebody with the client's address, but without its datagrams.
    let forged = client_transmits(&mut authority.client(Mono(0))).remove(0);
    give(&mut endpoint, Mono(0), &path(1), &forged);
    transmits(&mut endpoint);
    let mut sealed = vec![0; 100];
    let length = old.seal(&[b"still here"], &mut sealed).unwrap();
    assert_eq!(
        give(&mut endpoint, Mono(0), &path(1), &sealed[..length]),
        [b"still here"]
    );
    // The client itself, started again.
    let mut client = authority.client(Mono(0));
    exchange(&mut endpoint, &mut client, Mono(0), &path(1));
    assert!(client.is_established());
    let events = events(&mut endpoint);
    assert!(
        matches!(
            events[..],
            [
                Event::Closed {
                    reason: CloseReason::Replaced,
                    established: true,
                    ..
                },
                Event::Connected { .. }
            ]
        ),
        "{events:?}"
    );
    assert_eq!(endpoint.connections(), 1);
}

#[test]
fn costly_steps_wait_until_they_are_asked_for_and_are_done_in_order() {
    let authority = Authority::ecdsa();
    let mut endpoint = authority.endpoint(Limits::default());
    let seconds: Vec<Vec<u8>> = (0..3)
        .map(|client| hellos(&authority, &mut endpoint, client).1)
        .collect();
    for (client, second) in seconds.iter().enumerate() {
        for _ in 0..2 {
            endpoint.handle_datagram(Mono(0), &path(client as u16), &mut second.clone());
        }
    }
    assert!(endpoint.has_work() && transmits(&mut endpoint).is_empty());
    for client in 0..3 {
        assert!(endpoint.step(Mono(0)));
        let sent = transmits(&mut endpoint);
        assert!(!sent.is_empty() && sent.iter().all(|(to, _)| *to == path(client)));
    }
    assert!(!endpoint.step(Mono(0)) && !endpoint.has_work());
}

#[test]
fn an_idle_connection_in_use_stays() {
    let (mut endpoint, _client) = connected(&Authority::ecdsa(), Limits::default());
    let idle = 3660 * 1000 * MS;
    endpoint.handle_timeout_unless(Mono(idle), |at| at.remote == path(1).remote);
    assert_eq!(endpoint.connections(), 1);
    endpoint.handle_timeout(Mono(2 * idle - 1));
    assert_eq!(endpoint.connections(), 1);
    endpoint.handle_timeout_unless(Mono(2 * idle), |_| false);
    assert_eq!(endpoint.connections(), 0);
}
