//! Where `maddr` of a Via may have responses sent (RFC 3261 §18.2.2).

use hairpin_sip::congestion::WeightedSource;
use hairpin_sip::engine::{Config, Engine, Output, Received, Reply, SendTo};
use hairpin_sip::flow::{Flow, ListenerKey, Transport};
use hairpin_sip::{HashKey, Now, Spans};
use std::net::SocketAddr;

/// Where the answers to a request and to a malformed one go, and what the Via of the first says.
fn answered_at(source: &str, of_peers_only: bool) -> [(SocketAddr, String); 2] {
    let mut config = Config::new(0, HashKey::new([7; 16]));
    config.trusts_peers_only = of_peers_only;
    config.congestion.peers = vec![WeightedSource {
        address: [192, 0, 2, 0].into(),
        prefix: 24,
        weight: 1,
    }];
    let mut engine = Engine::new(config, 1);
    let flow = Flow {
        transport: Transport::Udp,
        listener: ListenerKey(0),
        connection: None,
        local: "192.0.2.1:5060".parse().unwrap(),
        remote: source.parse().unwrap(),
    };
    ["sip:x@example.com", "mailto:x@example.com"].map(|uri| {
        let request = format!(
            "OPTIONS {uri} SIP/2.0\r\nVia: SIP/2.0/UDP 10.0.0.1;maddr=198.51.100.9;branch=z9hG4bK7;rport\r\n\
             From: <sip:a@example.com>;tag=1\r\nTo: <sip:x@example.com>\r\nCall-ID: 1@a\r\n\
             CSeq: 1 OPTIONS\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
        );
        let mut spans = Spans::new();
        let now = Now::default();
        let received = engine.handle_message(now, &flow, request.as_bytes(), &mut spans);
        if let Received::Request(request) = received {
            engine.answer(now.mono, request, &Reply::new(200)).unwrap();
        }
        let Some(Output::Send { to, bytes, .. }) = engine.poll_output() else {
            panic!("an answer");
        };
        let SendTo::Datagram { remote, .. } = to else {
            panic!("a datagram");
        };
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        while engine.poll_output().is_some() {}
        (remote, text)
    })
}

#[test]
fn maddr_steers_responses_for_peers_alone_if_configured_so() {
    let third: SocketAddr = "198.51.100.9:5060".parse().unwrap();
    for (source, of_peers_only, is_steered) in [
        ("203.0.113.5:40000", false, true),
        ("203.0.113.5:40000", true, false),
        ("192.0.2.77:40000", true, true),
    ] {
        for (to, text) in answered_at(source, of_peers_only) {
            let wanted = if is_steered {
                third
            } else {
                source.parse().unwrap()
            };
            assert_eq!(to, wanted, "{source}: {text}");
            // What the client wrote comes back to it all the same.
            assert!(text.contains(";maddr=198.51.100.9;"), "{text}");
        }
    }
}

/// Where the answer to a request with this Via goes, if its sender has proved who it is (`is_trusted`) or not.
fn one_answered_at(source: &str, via: &str, is_trusted: bool) -> SocketAddr {
    let mut config = Config::new(0, HashKey::new([7; 16]));
    config.trusts_peers_only = true;
    config.congestion.peers = vec![WeightedSource {
        address: [192, 0, 2, 0].into(),
        prefix: 24,
        weight: 1,
    }];
    let mut engine = Engine::new(config, 1);
    let flow = Flow {
        transport: Transport::Udp,
        listener: ListenerKey(0),
        connection: None,
        local: "192.0.2.1:5060".parse().unwrap(),
        remote: source.parse().unwrap(),
    };
    let request = format!(
        "OPTIONS sip:x@example.com SIP/2.0\r\nVia: SIP/2.0/UDP {via};branch=z9hG4bK7\r\n\
         From: <sip:a@example.com>;tag=1\r\nTo: <sip:x@example.com>\r\nCall-ID: 1@a\r\n\
         CSeq: 1 OPTIONS\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
    );
    let mut spans = Spans::new();
    let now = Now::default();
    let received = engine.handle_message(now, &flow, request.as_bytes(), &mut spans);
    let Received::Request(mut request) = received else {
        panic!("a request");
    };
    if is_trusted {
        request.trust();
    }
    engine.answer(now.mono, request, &Reply::new(200)).unwrap();
    let Some(Output::Send { to, bytes, .. }) = engine.poll_output() else {
        panic!("an answer");
    };
    let SendTo::Datagram { remote, .. } = to else {
        panic!("a datagram");
    };
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    assert!(text.contains(via), "the Via stays: {text}");
    remote
}

#[test]
fn an_unauthenticated_response_goes_to_the_source_port_and_others_to_the_port_of_sent_by_rfc3261_18_2_2()
 {
    let (stranger, peer) = ("203.0.113.5:40000", "192.0.2.77:40000");
    for (via, steered) in [
        ("10.0.0.1:53;maddr=198.51.100.9", "198.51.100.9:53"),
        ("10.0.0.1;maddr=198.51.100.9", "198.51.100.9:5060"),
        ("10.0.0.1:53;ttl=1;maddr=198.51.100.9", "198.51.100.9:53"),
    ] {
        assert_eq!(
            one_answered_at(stranger, via, false),
            stranger.parse().unwrap()
        );
        assert_eq!(
            one_answered_at(stranger, via, true),
            steered.parse().unwrap()
        );
        assert_eq!(one_answered_at(peer, via, false), steered.parse().unwrap());
    }
    // To whom nobody may steer, trust steers nothing either: the port is that of sent-by, as without `maddr`.
    let many = "10.0.0.1:53;maddr=224.0.1.75";
    assert_eq!(
        one_answered_at(stranger, many, false),
        stranger.parse().unwrap()
    );
    let with_port = "203.0.113.5:53".parse().unwrap();
    assert_eq!(one_answered_at(stranger, many, true), with_port);
    // Without `maddr` sent-by has the port, whoever has sent it.
    assert_eq!(one_answered_at(stranger, "10.0.0.1:53", false), with_port);
}
