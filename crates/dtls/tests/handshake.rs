//! Handshakes between the two halves: every suite of certificates, what is negotiated, and how they fail.

#![allow(clippy::unwrap_used, reason = "a test says no more")]

mod support;

use std::sync::Arc;

use hairpin_dtls::{
    ClientEvent, CloseReason, Config, CookieKey, Endpoint, Event, HandshakeError, Limits,
    SendError, check_certificate,
};
use support::*;
use timers::Mono;

fn pair_of(algorithm: &'static rcgen::SignatureAlgorithm) -> &'static str {
    let authority = Authority::new(algorithm);
    assert_eq!(check_certificate(&authority.key), Ok(()));
    let (mut endpoint, mut client) = connected(&authority, Limits::default());
    let [
        ClientEvent::Connected {
            cipher_suite,
            protocol,
        },
    ] = &client_events(&mut client)[..]
    else {
        panic!("no event");
    };
    assert_eq!(protocol.as_deref(), Some(&b"stun.turn"[..]));
    let server_events = events(&mut endpoint);
    let [
        Event::Connected {
            cipher_suite: other,
            path: at,
            protocol,
            server_name,
            ..
        },
    ] = &server_events[..]
    else {
        panic!("{server_events:?}");
    };
    assert_eq!(server_name.as_deref(), Some("turn.example"));
    assert_eq!(
        (other, *at, protocol.as_deref()),
        (cipher_suite, path(1), Some(&b"stun.turn"[..]))
    );
    cipher_suite
}

#[test]
fn ecdsa_rsa_and_ed25519_chains_are_served_and_verified() {
    assert_eq!(
        pair_of(&rcgen::PKCS_ECDSA_P256_SHA256),
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    );
    assert_eq!(
        pair_of(&rcgen::PKCS_ECDSA_P384_SHA384),
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    );
    assert_eq!(
        pair_of(&rcgen::PKCS_ED25519),
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    );
    assert_eq!(
        pair_of(&rcgen::PKCS_RSA_SHA256),
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
    );
}

#[test]
fn messages_pass_both_ways_as_they_were_sent() {
    let (mut endpoint, mut client) = connected(&Authority::ecdsa(), Limits::default());
    let key = endpoint.find(&path(1)).unwrap();
    let mut buffer = vec![0; 20_000];
    for length in [0, 1, 4, 1200, 16_384] {
        let message: Vec<u8> = (0..length).map(|at| at as u8).collect();
        let sealed = client.seal(&[&message], &mut buffer).unwrap();
        assert!(sealed <= length + hairpin_dtls::OVERHEAD);
        assert_eq!(
            give(&mut endpoint, Mono(0), &path(1), &buffer[..sealed]),
            [&message[..]]
        );
        assert!(
            give(&mut endpoint, Mono(0), &path(1), &buffer[..sealed]).is_empty(),
            "replayed"
        );
        let (head, tail) = message.split_at(length / 3);
        let sealed = endpoint.seal(key, &[head, tail], &mut buffer).unwrap();
        assert_eq!(
            give_client(&mut client, Mono(0), &buffer[..sealed]),
            [&message[..]]
        );
        assert!(
            give_client(&mut client, Mono(0), &buffer[..sealed]).is_empty(),
            "replayed"
        );
    }
    assert_eq!(
        client.seal(&[&[0; 16_385]], &mut buffer),
        Err(SendError::TooLong)
    );
}

#[test]
fn several_records_of_a_datagram_are_several_messages() {
    let (mut endpoint, mut client) = connected(&Authority::ecdsa(), Limits::default());
    let mut buffer = vec![0; 200];
    let one = client.seal(&[b"one"], &mut buffer).unwrap();
    let two = client.seal(&[b"two"], &mut buffer[one..]).unwrap();
    let messages = give(&mut endpoint, Mono(0), &path(1), &buffer[..one + two]);
    assert_eq!(messages, [b"one", b"two"]);
}

#[test]
fn close_notify_ends_both_sides() {
    let authority = Authority::ecdsa();
    let (mut endpoint, mut client) = connected(&authority, Limits::default());
    events(&mut endpoint);
    client_events(&mut client);
    client.close();
    exchange(&mut endpoint, &mut client, Mono(5), &path(1));
    assert_eq!(
        client_events(&mut client),
        [ClientEvent::Closed(CloseReason::Local)]
    );
    assert!(matches!(
        events(&mut endpoint)[..],
        [Event::Closed {
            reason: CloseReason::Peer,
            established: true,
            ..
        }]
    ));
    assert_eq!((endpoint.connections(), endpoint.poll_timeout()), (0, None));

    let (mut endpoint, mut client) = connected(&authority, Limits::default());
    client_events(&mut client);
    endpoint.close_all(Mono(5));
    exchange(&mut endpoint, &mut client, Mono(5), &path(1));
    assert_eq!(
        client_events(&mut client),
        [ClientEvent::Closed(CloseReason::Peer)]
    );
    assert_eq!(
        client.seal(&[b"late"], &mut [0; 100]),
        Err(SendError::NotConnected)
    );
}

#[test]
fn the_server_refuses_what_it_cannot_serve_and_says_why() {
    let authority = Authority::ecdsa();
    let refused = |config: Arc<Config>, expected: HandshakeError, alert: u8| {
        let mut endpoint = Endpoint::new(config, CookieKey::new(&[9; 32]), [1, 2]);
        let mut client = authority.client(Mono(0));
        exchange(&mut endpoint, &mut client, Mono(0), &path(1));
        assert_eq!(
            client_events(&mut client),
            [ClientEvent::Closed(CloseReason::Alert(alert))]
        );
        let events = events(&mut endpoint);
        let [
            Event::Closed {
                reason,
                established: false,
                ..
            },
        ] = events[..]
        else {
            panic!("{events:?}");
        };
        assert_eq!(reason, CloseReason::Handshake(expected));
        assert_eq!((endpoint.connections(), endpoint.half_open()), (0, 0));
    };
    let config = |change: &dyn Fn(&mut Config)| {
        let mut config = (*authority.config(Limits::default())).clone();
        change(&mut config);
        Arc::new(config)
    };
    refused(
        config(&|config| config.certificates = Arc::new(NoCertificates)),
        HandshakeError::NoCertificate,
        112,
    );
    refused(
        config(&|config| config.protocols = vec![b"other".to_vec()]),
        HandshakeError::NoProtocol,
        120,
    );
}

#[test]
fn the_client_refuses_a_certificate_that_is_not_the_servers() {
    let authority = Authority::ecdsa();
    let other = Authority::ecdsa();
    for (config, name) in [
        (other.client_config(), "turn.example"),
        (authority.client_config(), "other.example"),
    ] {
        let mut endpoint = authority.endpoint(Limits::default());
        let mut client = client_of(config, name, Mono(0));
        exchange(&mut endpoint, &mut client, Mono(0), &path(1));
        let expected = CloseReason::Handshake(HandshakeError::Certificate);
        assert_eq!(client_events(&mut client), [ClientEvent::Closed(expected)]);
        // bad_certificate
        assert!(matches!(
            events(&mut endpoint)[..],
            [Event::Closed {
                reason: CloseReason::Alert(42),
                ..
            }]
        ));
    }
}

/// Flips a bit at `at` of the fragment of a record of handshake messages. `number` counts these over all datagrams of a
/// direction. (The sequence number of a record without protection, and ChangeCipherSpec, are nobody's concern.)
fn change(datagram: &mut [u8], count: &mut usize, number: usize, at: usize) -> bool {
    let mut start = 0;
    let mut changed = false;
    while start + 13 <= datagram.len() {
        let length = usize::from(u16::from_be_bytes([
            datagram[start + 11],
            datagram[start + 12],
        ]));
        if datagram[start] == 22 && *count == number && at < length {
            datagram[start + 13 + at] ^= 0x01;
            changed = true;
        }
        *count += usize::from(datagram[start] == 22);
        start += 13 + length;
    }
    changed
}

/// Whether the handshake ends, and whether the record was there to be changed.
fn run_with_change(
    authority: &Authority,
    of_server: bool,
    number: usize,
    at: usize,
) -> (bool, bool) {
    let mut endpoint = authority.endpoint(Limits::default());
    let mut client = authority.client(Mono(0));
    let (mut server_records, mut client_records) = (0, 0);
    let mut changed = false;
    for _ in 0..8 {
        for mut datagram in client_transmits(&mut client) {
            changed |= !of_server && change(&mut datagram, &mut client_records, number, at);
            give(&mut endpoint, Mono(0), &path(1), &datagram);
        }
        for (_, mut datagram) in transmits(&mut endpoint) {
            changed |= of_server && change(&mut datagram, &mut server_records, number, at);
            give_client(&mut client, Mono(0), &datagram);
        }
    }
    (client.is_established(), changed)
}

/// Somebody on the path changes a byte of a handshake message. The client must not come to believe in the connection.
#[test]
fn a_changed_handshake_never_ends_in_a_connection() {
    let authority = Authority::ecdsa();
    assert_eq!(run_with_change(&authority, true, 99, 0), (true, false));
    let mut changes = 0;
    // Record 0 of the server asks for the cookie, and is no part of the handshake. Nor are the client's first two, once
    // changed: the hello has no cookie, or not the right one, and is asked for again.
    for (of_server, number) in [
        (true, 1),
        (true, 2),
        (true, 3),
        (true, 4),
        (true, 5),
        (false, 2),
        (false, 3),
    ] {
        for at in [
            0, 3, 5, 8, 11, 12, 13, 14, 20, 30, 40, 50, 60, 70, 80, 100, 200, 300, 400,
        ] {
            let (established, changed) = run_with_change(&authority, of_server, number, at);
            assert!(
                !(changed && established),
                "server {of_server}, record {number}, byte {at}"
            );
            changes += u32::from(changed);
        }
    }
    assert!(changes > 50, "{changes}");
}
