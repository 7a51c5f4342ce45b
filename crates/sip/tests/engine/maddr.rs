//! Where `maddr` of a Via may have responses sent (RFC 3261 §18.2.2).

use hairpin_sip::congestion::Peer;
use hairpin_sip::engine::{Config, Engine, Output, Received, Reply, SendTo};
use hairpin_sip::flow::{Carrier, Flow, ListenerKey};
use hairpin_sip::{HashKey, Now, Spans};
use std::net::SocketAddr;

/// Where the answers to a request and to a malformed one go, and what the Via of the first says.
fn answered_at(source: &str, of_peers_only: bool) -> [(SocketAddr, String); 2] {
    let mut config = Config::new(0, HashKey::new([7; 16]));
    config.maddr_of_peers_only = of_peers_only;
    config.congestion.peers = vec![Peer {
        address: [192, 0, 2, 0].into(),
        prefix: 24,
        weight: 1,
    }];
    let mut engine = Engine::new(config, 1);
    let flow = Flow {
        carrier: Carrier::Udp,
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
