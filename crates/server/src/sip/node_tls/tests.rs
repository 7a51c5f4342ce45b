//! Handshakes between nodes, in memory.

use super::*;
use crate::sip::NoFingerprint;
use crate::sip::layers::{Layers, NodeFailure, NodeSide};
use streams::tls::{Failure, TlsError};

const EPOCH_S: u64 = 30 * 86_400;
const NOW_S: u64 = 700 * EPOCH_S + 10 * 86_400;

fn keys(secret: &[u8; 32]) -> ClusterKeys {
    ClusterKeys::new(secret).expect("it is long enough")
}

fn node(name: &str, unix_s: u64) -> NodeTls {
    let keys = keys(b"a secret of 32 bytes for a test.");
    NodeTls::new(keys, name, unix_s).expect("a certificate")
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], port))
}

/// What a node publishes at this time.
fn published(node: &NodeTls, port: u16, unix_s: u64) -> NodeFingerprints {
    NodeFingerprints {
        addresses: vec![at(port)],
        fingerprints: node.renew(unix_s).expect("a certificate"),
    }
}

/// Both sides of a handshake, and what each says at its end.
type Ends = (Result<bool, TlsError>, Result<bool, TlsError>);

fn handshake(mut client: Tls, mut server: Tls) -> Ends {
    let (mut to_server, mut to_client, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    let mut of_client = client.received(&[], &mut plain, &mut to_server);
    let mut of_server = Ok(false);
    while !to_server.is_empty() || !to_client.is_empty() {
        let bytes = std::mem::take(&mut to_server);
        if of_server.is_ok() {
            of_server = server.received(&bytes, &mut plain, &mut to_client);
        }
        let bytes = std::mem::take(&mut to_client);
        if of_client.is_ok() {
            of_client = client.received(&bytes, &mut plain, &mut to_server);
        }
    }
    if of_client.is_ok() && of_server.is_ok() {
        assert!(!client.is_handshaking() && !server.is_handshaking());
        assert!(!client.is_resumed());
    }
    (of_client, of_server)
}

fn connect(from: &NodeTls, to: &NodeTls, port: u16) -> Ends {
    let client = from.connecting(at(port)).expect("a node is known there");
    handshake(client, to.accepted().expect("TLS"))
}

fn is_refused(result: &Result<bool, TlsError>, failure: Failure) -> bool {
    result.as_ref().is_err_and(|error| error.failure == failure)
}

#[test]
fn two_nodes_accept_the_certificates_that_the_other_one_publishes() {
    let [a, b] = ["a", "b"].map(|name| node(name, NOW_S));
    let now = Instant::now();
    a.set_nodes(&[published(&b, 2, NOW_S)], now);
    b.set_nodes(&[published(&a, 1, NOW_S)], now);
    for _ in 0..2 {
        assert_eq!(connect(&b, &a, 1), (Ok(false), Ok(false)));
    }
    assert_eq!(connect(&a, &b, 2), (Ok(false), Ok(false)));
    assert!(b.has(Transport::Tls, at(1)) && !b.has(Transport::Tls, at(2)));
    assert!(!b.has(Transport::Udp, at(1)));
    assert!(b.connecting(at(3)).is_none());
    assert!(!format!("{a:?}").contains("secret"));
}

#[test]
fn a_node_with_another_certificate_than_it_publishes_is_refused() {
    let [a, b, other] = ["a", "b", "c"].map(|name| node(name, NOW_S));
    let now = Instant::now();
    a.set_nodes(&[published(&b, 2, NOW_S)], now);
    // The other node is known, but not at this address.
    b.set_nodes(&[published(&other, 1, NOW_S), published(&a, 3, NOW_S)], now);
    let (client, server) = connect(&b, &a, 1);
    assert!(is_refused(&client, Failure::Certificate), "{client:?}");
    assert!(is_refused(&server, Failure::Alert), "{server:?}");
    assert_eq!(connect(&b, &a, 3), (Ok(false), Ok(false)));
}

#[test]
fn two_nodes_that_publish_one_address_are_both_accepted_there() {
    let [a, b, renamed] = ["a", "b", "z"].map(|name| node(name, NOW_S));
    let now = Instant::now();
    let all = [published(&a, 1, NOW_S), published(&renamed, 1, NOW_S)];
    for all in [all.clone(), [all[1].clone(), all[0].clone()]] {
        b.set_nodes(&all, now);
        for other in [&a, &renamed] {
            other.set_nodes(&[published(&b, 2, NOW_S)], now);
            assert_eq!(connect(&b, other, 1), (Ok(false), Ok(false)));
            assert_eq!(connect(other, &b, 2), (Ok(false), Ok(false)));
        }
    }
    // The earlier name is published no longer.
    b.set_nodes(&all[1..], now);
    assert_eq!(connect(&b, &renamed, 1), (Ok(false), Ok(false)));
    let (client, _) = connect(&b, &a, 1);
    assert!(is_refused(&client, Failure::Certificate), "{client:?}");
}

#[test]
fn a_client_whose_certificate_no_node_publishes_is_refused_and_one_without_any() {
    let [a, b, other] = ["a", "b", "c"].map(|name| node(name, NOW_S));
    let now = Instant::now();
    a.set_nodes(&[published(&b, 2, NOW_S)], now);
    other.set_nodes(&[published(&a, 1, NOW_S)], now);
    let (client, server) = connect(&other, &a, 1);
    assert!(is_refused(&server, Failure::Certificate), "{server:?}");
    // TLS 1.3: the client's handshake was over before.
    assert!(is_refused(&client, Failure::Alert), "{client:?}");
    let provider = Arc::new(aws_lc_rs::default_provider());
    let own = a.own.current.load().fingerprints.clone();
    let verifier = AddressVerifier {
        fingerprints: own.into(),
        signatures: NodeSignatures(Arc::clone(&provider)),
    };
    let without = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    let name = ServerName::IpAddress(at(1).ip().into());
    let client = Tls::client(Arc::new(without), name).expect("a client");
    let (_, server) = handshake(client, a.accepted().expect("TLS"));
    assert!(is_refused(&server, Failure::Certificate), "{server:?}");
}

#[test]
fn a_renewal_loses_no_connection_also_if_clocks_differ_or_a_node_learns_it_late() {
    let end = 701 * EPOCH_S;
    let [a, b] = ["a", "b"].map(|name| node(name, end - 10 * 86_400));
    assert_eq!(published(&a, 1, end - 10 * 86_400).fingerprints.len(), 1);
    // What each knows of the other was published two days before the end.
    let early = end - 2 * 86_400;
    let now = Instant::now();
    a.set_nodes(&[published(&b, 2, early)], now);
    b.set_nodes(&[published(&a, 1, early)], now);
    let before = a.own.current.load().certificate.cert.clone();
    assert_eq!(connect(&b, &a, 1), (Ok(false), Ok(false)));
    // A has a new certificate, and the clock of B is an hour behind.
    assert_eq!(published(&a, 1, end).fingerprints.len(), 2);
    assert_eq!(published(&b, 2, end - 3_600).fingerprints.len(), 2);
    assert_ne!(a.own.current.load().certificate.cert, before);
    assert_eq!(connect(&b, &a, 1), (Ok(false), Ok(false)));
    assert_eq!(connect(&a, &b, 2), (Ok(false), Ok(false)));
    // B knows what A publishes now, and A does not know yet that B has a new one, too.
    b.set_nodes(&[published(&a, 1, end + 60)], now);
    b.renew(end + 60).expect("a certificate");
    assert_eq!(connect(&b, &a, 1), (Ok(false), Ok(false)));
    // After the overlap, the certificate of before is refused.
    let late = end + 5 * 86_400;
    let old = node("a", early);
    old.set_nodes(&[published(&b, 2, late)], now);
    b.set_nodes(&[published(&a, 1, late)], now);
    let (client, _) = connect(&b, &old, 1);
    assert!(is_refused(&client, Failure::Certificate), "{client:?}");
}

#[test]
fn a_node_has_the_same_certificate_after_a_restart_and_another_one_in_each_epoch() {
    let of = |secret, name, unix_s| {
        let tls = NodeTls::new(keys(secret), name, unix_s).expect("a certificate");
        let own = tls.own.current.load();
        Fingerprint::of(&own.certificate.cert[0]).to_string()
    };
    let secret = b"a secret of 32 bytes for a test.";
    let one = of(secret, "a", NOW_S);
    // Both processes of an upgrade must make the same certificate, in all versions.
    let expected = "b6b8e09e34d9734396809992b3dd6288f85b835af2f77497f9929eddea0e8fa0";
    assert_eq!(one, expected);
    assert_eq!(of(secret, "a", NOW_S + 86_400), one);
    assert_ne!(of(secret, "b", NOW_S), one);
    assert_ne!(of(secret, "a", NOW_S + EPOCH_S), one);
    assert_ne!(of(b"another secret of 32 bytes......", "a", NOW_S), one);
}

#[test]
fn a_node_that_is_not_seen_any_more_is_known_for_a_week() {
    let [a, b] = ["a", "b"].map(|name| node(name, NOW_S));
    let start = Instant::now();
    b.set_nodes(&[published(&a, 1, NOW_S)], start);
    b.set_nodes(&[], start + FINGERPRINTS_KEPT_TIME / 2);
    assert!(b.has(Transport::Tls, at(1)));
    b.set_nodes(&[], start + FINGERPRINTS_KEPT_TIME);
    assert!(!b.has(Transport::Tls, at(1)) && b.known.load().all.is_empty());
    // However many come and go, the latest are kept.
    let fingerprints = published(&a, 1, NOW_S).fingerprints;
    for round in 0..3 {
        let addresses = (0..2_000).map(|number| at(10_000 + round * 2_000 + number));
        let nodes = NodeFingerprints {
            addresses: addresses.collect(),
            fingerprints: fingerprints.clone(),
        };
        let later = start + FINGERPRINTS_KEPT_TIME * 2 + Duration::from_secs(u64::from(round));
        b.set_nodes(&[nodes], later);
    }
    assert_eq!(b.known.load().by_address.len(), MAX_ADDRESSES);
    assert!(b.has(Transport::Tls, at(15_999)) && !b.has(Transport::Tls, at(10_000)));
}

#[test]
fn a_fingerprint_is_64_hexadecimal_digits() {
    let one = Fingerprint::of(b"abc");
    let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(one.to_string(), text);
    assert_eq!(text.parse(), Ok(one));
    for bad in [
        "",
        "00",
        &text[1..],
        &format!("+{}", &text[1..]),
        &"ä".repeat(32),
    ] {
        assert_eq!(bad.parse::<Fingerprint>(), Err(NoFingerprint), "{bad}");
    }
}

/// Why a side of a handshake that failed counts as failed.
fn counted(side: NodeSide, result: &Result<bool, TlsError>) -> NodeFailure {
    let error = result.as_ref().expect_err("it has failed");
    NodeFailure::of(side, error, false)
}

#[test]
fn only_an_alert_about_the_certificate_counts_as_refused_by_the_other_node_rfc8446_6_2() {
    let [a, b] = ["a", "b"].map(|name| node(name, NOW_S));
    b.set_nodes(&[published(&a, 1, NOW_S)], Instant::now());
    // A does not know B.
    let (client, server) = connect(&b, &a, 1);
    let refused = counted(NodeSide::Connected, &client);
    assert_eq!(refused, NodeFailure::RefusedByOther, "{client:?}");
    assert_eq!(counted(NodeSide::Accepted, &server), NodeFailure::Refused);
    // The same alert of somebody who connects, or of a node that has accepted the certificate before.
    let error = client.expect_err("it is refused");
    let of = |side, is_accepted| NodeFailure::of(side, &error, is_accepted);
    assert_eq!(of(NodeSide::Accepted, false), NodeFailure::Other);
    assert_eq!(of(NodeSide::Connected, true), NodeFailure::Other);
    // Another alert: the server requires an application protocol.
    let mut config = ServerConfig::clone(&a.accept);
    config.alpn_protocols = vec![b"other".to_vec()];
    let mut client = b.connect.clone();
    client.alpn_protocols = vec![b"sip".to_vec()];
    let name = ServerName::IpAddress(at(1).ip().into());
    let client = Tls::client(Arc::new(client), name).expect("a client");
    let (client, _) = handshake(client, Tls::server(Arc::new(config)).expect("TLS"));
    assert!(is_refused(&client, Failure::Alert), "{client:?}");
    assert_eq!(counted(NodeSide::Connected, &client), NodeFailure::Other);
}

#[test]
fn a_connection_is_complete_when_both_nodes_have_accepted_it_and_only_once() {
    let [a, b] = ["a", "b"].map(|name| node(name, NOW_S));
    b.set_nodes(&[published(&a, 1, NOW_S)], Instant::now());
    // The handshake of the client is complete before the server refuses its certificate.
    let run = |a: &NodeTls| {
        let client = b.connecting(at(1)).expect("a node is known there");
        let mut client = Layers::with_node(NodeSide::Connected, client);
        let server = a.accepted().expect("TLS");
        let mut server = Layers::with_node(NodeSide::Accepted, server);
        let (mut to_server, mut to_client, mut counted) = (Vec::new(), Vec::new(), Vec::new());
        let _ = receive(&mut client, &[], &mut to_server);
        while !to_server.is_empty() || !to_client.is_empty() {
            let bytes = std::mem::take(&mut to_server);
            let (is_first, _) = receive(&mut server, &bytes, &mut to_client);
            if is_first {
                counted.push(NodeSide::Accepted);
                for _ in 0..2 {
                    let tls = server.tls.as_mut().expect("TLS");
                    tls.encrypt(b"SIP/2.0 100 Trying", &mut to_client)
                        .expect("the handshake is complete");
                }
            }
            let bytes = std::mem::take(&mut to_client);
            let (is_first, _) = receive(&mut client, &bytes, &mut to_server);
            counted.extend(is_first.then_some(NodeSide::Connected));
        }
        assert!(!client.is_handshaking());
        counted
    };
    assert!(run(&a).is_empty());
    a.set_nodes(&[published(&b, 2, NOW_S)], Instant::now());
    assert_eq!(run(&a), [NodeSide::Accepted, NodeSide::Connected]);
}

/// Returns whether the connection counts as complete now, and whether it goes on.
fn receive(layers: &mut Layers, bytes: &[u8], out: &mut Vec<u8>) -> (bool, bool) {
    let mut plain = Vec::new();
    let tls = layers.tls.as_mut().expect("TLS");
    let result = tls.received(bytes, &mut plain, out);
    (layers.node_accepted(!plain.is_empty()), result.is_ok())
}
