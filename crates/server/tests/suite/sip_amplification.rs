//! What a stranger gets out of a datagram whose source address is forged: at most 2.5 times its bytes, IP and UDP
//! headers included.

use crate::sip_client::Client;
use crate::sip_client::phone::{PASSWORD, Phone};
use hairpin_server::sip::{Domain, Inbound, SipSettings};
use hairpin_server::{Running, Server};
use sip::digest::Algorithm;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Bytes of IP and UDP headers.
fn headers(client: &Client) -> usize {
    match client.local().is_ipv4() {
        true => 28,
        false => 48,
    }
}

const METHODS: [&str; 9] = [
    "OPTIONS",
    "REGISTER",
    "INVITE",
    "MESSAGE",
    "BYE",
    "CANCEL",
    "SUBSCRIBE",
    "UPDATE",
    "XYZ",
];

fn serve(inbound: Inbound, realm: &str) -> Running {
    serve_at("127.0.0.1:0", inbound, realm, &DEFAULT_ALGORITHMS)
}

const DEFAULT_ALGORITHMS: [Algorithm; 2] = [Algorithm::Sha256, Algorithm::Md5];

fn serve_at(address: &str, inbound: Inbound, realm: &str, algorithms: &[Algorithm]) -> Running {
    let mut settings = SipSettings::default();
    settings.digest_algorithms = algorithms.to_vec();
    settings.domains = vec![Domain {
        name: "example.com".to_owned(),
        inbound,
        ..Domain::default()
    }];
    Server::builder()
        .listen("127.0.0.1:0".parse().expect("an address"))
        .relay_address("127.0.0.1".parse().expect("an address"))
        .sip_listen(address.parse().expect("an address"))
        .realm(realm)
        .user("alice", PASSWORD)
        .sip(settings)
        .workers(1)
        .start()
        .expect("the server starts")
}

/// A client of this server.
fn client(server: &Running) -> Client {
    let address = server.sip_listeners()[0];
    let local = match address.is_ipv4() {
        true => "127.0.0.1:0",
        false => "[::1]:0",
    };
    Client::of(UdpSocket::bind(local).expect("a socket"), address)
}

/// Requests that anybody can make up, the shortest in front.
fn requests(method: &str) -> Vec<String> {
    let with = |uri: &str, via: &str, more: &str| {
        format!(
            "{method} {uri} SIP/2.0\r\nv:{via};branch=z9hG4bK{}\r\nf:<sip:a@b>;tag=1\r\nt:<{uri}>\r\ni:1\r\n\
             CSeq:1 {method}\r\n{more}\r\n",
            uri.len() + more.len()
        )
    };
    let pad = format!("Subject:{}\r\n", "x".repeat(200));
    let unknown: String = (0..20).map(|n| format!("Require:a{n}\r\n")).collect();
    let mut all = Vec::new();
    for uri in [
        "sip:example.com",
        "sip:alice@example.com",
        "sip:nobody@example.com",
        "sip:a@192.0.2.1",
        "tel:1",
        "x:1",
    ] {
        for more in [
            "",
            "Max-Forwards:70\r\n",
            "m:<sip:a@b>\r\n",
            "Max-Forwards:0\r\n",
            &unknown,
            &pad,
            "CSeq:2 X\r\n",
            "Route:<sip:x\r\n",
        ] {
            all.push(with(uri, "SIP/2.0/UDP a", more));
        }
    }
    all.push(with(
        "sip:example.com",
        "SIP/2.0/UDP a;oc;oc-algo=\"loss\"",
        "",
    ));
    all.push(format!(
        "{method} x SIP/2.0\r\nv:SIP/2.0/UDP a;branch=z9hG4bK9\r\n\r\n"
    ));
    all.push(format!(
        "{method} sip:x SIP/7.0\r\nv:SIP/2.0/UDP a;branch=z9hG4bK9\r\n\r\n"
    ));
    all
}

/// The bytes of all responses to a request, headers included, and how many there are.
fn answers(client: &Client, request: &str) -> (usize, usize) {
    client.send(request.as_bytes());
    // A second request that is surely answered marks the end of the first one's answers.
    let marker = crate::sip_client::options("marker", "UDP", "Subject: marker\r\n");
    client.send(marker.as_bytes());
    let (mut bytes, mut count) = (0, 0);
    loop {
        let answer = client.answer();
        if answer.contains("marker@test") {
            return (bytes, count);
        }
        bytes += answer.len() + headers(client);
        count += 1;
    }
}

#[test]
fn a_request_gets_at_most_two_and_a_half_times_its_bytes() {
    for (address, inbound, algorithms) in [
        ("127.0.0.1:0", Inbound::Known, &DEFAULT_ALGORITHMS[..]),
        ("127.0.0.1:0", Inbound::Anyone, &DEFAULT_ALGORITHMS[..]),
        ("[::1]:0", Inbound::Known, &Algorithm::ALL[..]),
        ("[::1]:0", Inbound::Anyone, &Algorithm::ALL[..1]),
    ] {
        let server = serve_at(address, inbound, "example.com", algorithms);
        let client = client(&server);
        let (mut worst, mut answered) = (0.0f64, 0);
        for request in METHODS.into_iter().flat_map(requests) {
            // What the server sends must come here: to the port of the Via, or to the source.
            let own = format!("SIP/2.0/UDP {}", client.local());
            let vias = [
                &own[..],
                "SIP/2.0/UDP a;rport",
                "SIP/2.0/UDP a:9;maddr=127.0.0.9",
            ];
            for (number, via) in vias.into_iter().enumerate() {
                let request = request.replace("SIP/2.0/UDP a", via);
                let request = request.replace("z9hG4bK", &format!("z9hG4bK{number}"));
                let (bytes, count) = answers(&client, &request);
                answered += count;
                let factor = bytes as f64 / (request.len() + headers(&client)) as f64;
                worst = worst.max(factor);
                assert!(factor <= 2.5, "{factor:.2} times as large: {request}");
            }
        }
        println!("{address} {inbound:?}: {answered} responses, at most {worst:.2} times");
        assert!(answered > 150, "{answered}");
        assert!(
            client.hears_nothing(std::time::Duration::from_millis(700)),
            "nothing is sent again"
        );
    }
}

/// The phone of an open domain refuses the call of a stranger. The refusal is repeated until an ACK comes, but no more
/// than the INVITE allows.
#[test]
fn an_unauthenticated_call_gets_at_most_two_and_a_half_times_its_bytes() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let server = serve_at(address, Inbound::Anyone, "example.com", &DEFAULT_ALGORITHMS);
        let mut alice = Phone::of(client(&server), "alice");
        alice.register();
        for pad in [0, 600] {
            let stranger = client(&server);
            let invite = format!(
                "INVITE sip:alice@example.com SIP/2.0\r\nVia: SIP/2.0/UDP a;rport;branch=z9hG4bKs{pad}\r\n\
                 From: <sip:a@b>;tag=1\r\nTo: <sip:alice@example.com>\r\nCall-ID: s{pad}\r\n\
                 CSeq: 1 INVITE\r\nContact: <sip:a@b>\r\nSubject: {}\r\n\r\n",
                "x".repeat(pad)
            );
            stranger.send(invite.as_bytes());
            let incoming = alice.expect("INVITE ");
            let long = format!("Busy Here\r\nX-Long: {}", "x".repeat(1_000));
            for code in [
                "180 Ringing",
                "183 Progress",
                "183 Progress",
                &format!("486 {long}"),
            ] {
                alice.respond(&incoming, code);
            }
            let mut bytes = 0;
            let mut codes = Vec::new();
            // T1 is half a second: the first repetitions are over.
            let end = Instant::now() + Duration::from_secs(4);
            while Instant::now() < end {
                if let Some(answer) = stranger.answer_within(Duration::from_millis(200)) {
                    bytes += answer.len() + headers(&stranger);
                    codes.push(crate::sip_client::status(&answer));
                }
            }
            let most = (invite.len() + headers(&stranger)) * 5 / 2;
            assert!(bytes <= most, "{bytes} of {most} bytes: {codes:?}");
            assert!(codes.contains(&486), "{codes:?}");
        }
        assert!(server.stats().sip().amplification > 0);
    }
}

#[test]
fn a_challenge_that_does_not_fit_offers_fewer_algorithms() {
    let server = serve(Inbound::Known, "example.com");
    let client = Client::new(server.sip_listeners()[0]);
    let offered = |pad| {
        let answer = client.ask(&register(pad));
        assert!(answer.starts_with("SIP/2.0 401 "), "{answer}");
        let lines = answer
            .lines()
            .filter(|line| line.starts_with("WWW-Authenticate"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let all = offered(200);
    assert_eq!(all.len(), 2, "{all:?}");
    let few = offered(0);
    assert_eq!(few.len(), 1);
    // The best stays.
    assert!(few[0].contains("algorithm=SHA-256"), "{few:?}");
}

fn register(pad: usize) -> String {
    format!(
        "REGISTER sip:example.com SIP/2.0\r\nv:SIP/2.0/UDP 127.0.0.1;rport;branch=z9hG4bK{pad}\r\n\
         f:<sip:alice@example.com>;tag=1\r\nt:<sip:alice@example.com>\r\ni:1\r\nCSeq:1 REGISTER\r\n\
         s:{}\r\n\r\n",
        "x".repeat(pad)
    )
}

#[test]
fn a_request_that_no_challenge_fits_is_dropped_and_counted() {
    let server = serve(Inbound::Known, &"r".repeat(40));
    let client = Client::new(server.sip_listeners()[0]);
    let short = "REGISTER sip:example.com SIP/2.0\r\nv:SIP/2.0/UDP a;rport;branch=z9hG4bK1\r\nf:a:b;tag=1\r\nt:a:b\r\n\
                 i:1\r\nCSeq:1 REGISTER\r\n\r\n";
    client.send(short.as_bytes());
    assert!(client.hears_nothing(std::time::Duration::from_millis(200)));
    assert!(client.ask(&register(200)).starts_with("SIP/2.0 401 "));
    assert_eq!(server.stats().sip().amplification, 1);
    assert_eq!(server.stats().sip().responses_sent[3], 1);
}
