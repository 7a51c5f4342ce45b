//! A trunk whose address is a name: RFC 3263 finds its servers, and TLS verifies the name (RFC 5922).

use crate::dns_server::{DnsServer, Zone};
use crate::sip_client::phone::{PASSWORD, Phone, value};
use crate::tls_peer::{Authority, Link, Peer, TEST_TIMEOUT};
use hairpin_server::sip::routes::{
    Action, AddressError, AddressState, NextHop, ProbeConfig, Route,
};
use hairpin_server::sip::{Domain, SipSettings, Trunk, client_verifier};
use hairpin_server::{Running, Server};
use sip::Method;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut log = self.0.lock().expect("no writer panics");
        log.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn trunk(name: &str, to: &str) -> Trunk {
    Trunk {
        name: name.to_owned(),
        addresses: vec![IpAddr::from([192, 0, 2, 7]).into()],
        to: vec![NextHop::new(to).expect("a next hop")],
        probe: ProbeConfig {
            interval: Duration::ZERO,
            failures: 1,
            ..ProbeConfig::default()
        },
        ..Trunk::default()
    }
}

/// A server with these trunks in the order in which a call tries them.
fn start(authority: &Authority, zone: Zone, trunks: Vec<Trunk>) -> (Running, DnsServer) {
    let dns = DnsServer::new(zone);
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let mut settings = SipSettings::default();
    settings.resolvers = vec![dns.address()];
    settings.domains = vec![Domain {
        name: "example.com".to_owned(),
        ..Domain::default()
    }];
    settings.routes = vec![Route {
        name: "out".to_owned(),
        prefixes: vec!["+49".to_owned()],
        action: Action::Trunks(trunks.iter().map(|trunk| trunk.name.clone()).collect()),
        ..Route::default()
    }];
    settings.trunks = trunks;
    let server = Server::builder()
        .listen(any)
        .relay_address(any.ip())
        .sip_listen(any)
        .sip_listen_tls(any)
        .sip_next_hops(authority.roots(), None)
        .certificates(authority.issue(&["sip.example.com"]).certificates())
        .sip(settings)
        .user("user1", PASSWORD)
        .workers(1);
    (server.start().expect("the server starts"), dns)
}

fn zone(domain: &str, port: u16) -> Zone {
    Zone::new()
        .srv(
            &format!("_sips._tcp.{domain}"),
            [1, 0, port],
            "sbc.example.net",
        )
        .host("sbc.example.net", "127.0.0.1")
}

#[test]
fn calls_to_a_named_trunk_go_to_the_server_that_proves_the_name_rfc3263_4_rfc5922_7_3() {
    let authority = Authority::new();
    // The certificate has the name in the configuration, not that of the server to which SRV leads.
    let peer = Peer::new(&authority.issue(&["carrier.example"]), None);
    for to in ["sip:carrier.example;transport=tls", "sips:carrier.example"] {
        let (server, _dns) = start(
            &authority,
            zone("carrier.example", peer.port()),
            vec![trunk("named", to)],
        );
        let mut phone = Phone::udp(&server, "user1");
        phone.ask(Method::Invite, "sip:+49301234@example.com", "named");
        let mut link = peer.accept().expect("TLS");
        assert_eq!(link.asked_for().as_deref(), Some("carrier.example"));
        let invite = link.request();
        let line = invite.lines().next().expect("a line");
        assert!(line.contains("+49301234@carrier.example"), "{line}");
        let via = format!("SIP/2.0/TLS {};", server.sip_tls_listeners()[0]);
        assert!(value(&invite, "Via").starts_with(&via), "{invite}");
        link.answer(&invite);
        phone.expect("SIP/2.0 200");
        assert_eq!(server.stats().sip().next_hop_tls_failed, 0);
    }
}

#[test]
fn a_trunk_with_a_wrong_certificate_gets_no_call_and_is_counted_and_logged() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    let authority = Authority::new();
    // By the right issuer for the name of the server, and by a wrong one for the name of the trunk.
    let wrong = [
        authority.issue(&["sbc.example.net"]),
        Authority::new().issue(&["carrier.example"]),
    ];
    let other = Peer::new(&authority.issue(&["other.example"]), None);
    for (round, pair) in wrong.iter().enumerate() {
        let peer = Peer::new(pair, None);
        let zone = zone("carrier.example", peer.port()).srv(
            "_sips._tcp.other.example",
            [1, 0, other.port()],
            "sbc.example.net",
        );
        let trunks = vec![
            trunk("wrong", "sip:carrier.example;transport=tls"),
            trunk("right", "sip:other.example;transport=tls"),
        ];
        let (server, _dns) = start(&authority, zone, trunks);
        let mut phone = Phone::udp(&server, "user1");
        phone.ask(Method::Invite, "sip:+49301234@example.com", "wrong");
        let heard = peer.accept().ok().and_then(|mut link| link.next());
        assert_eq!(heard, None, "round {round}");
        let mut link = other.accept().expect("TLS");
        let invite = link.request();
        link.answer(&invite);
        phone.expect("SIP/2.0 200");
        let begun = Instant::now();
        while server.stats().sip().next_hop_tls_failed != 1 {
            assert!(begun.elapsed() < TEST_TIMEOUT, "it is not counted");
            std::thread::sleep(Duration::from_millis(5));
        }
        let trunks = server.sip_inspector().expect("SIP").trunks();
        let status = &trunks[0].addresses[0].status;
        assert_eq!(
            status.last_error.map(|(error, _)| error),
            Some(AddressError::NotSent)
        );
        assert_eq!(status.state, AddressState::Paused);
        assert_eq!((trunks[0].counts.moved_on, trunks[1].counts.calls), (1, 1));
    }
    let bytes = log.0.lock().expect("no writer panics").clone();
    let text = String::from_utf8(bytes).expect("UTF-8");
    let lines = text.lines().filter(|line| {
        line.contains("TLS with a SIP server failed") && line.contains("carrier.example")
    });
    assert_eq!(lines.count(), 2, "{text}");
}

/// A server whose trunk is known by its client certificate. Clients may have one.
fn known_by_certificate(authority: &Authority) -> Running {
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let mut settings = SipSettings::default();
    settings.domains = vec![Domain {
        name: "example.com".to_owned(),
        ..Domain::default()
    }];
    settings.calls.log = true;
    settings.trunks = vec![Trunk {
        // The address alone is not enough.
        addresses: vec![any.ip().into()],
        certificates: vec!["carrier.example".to_owned()],
        max_calls_from: 1,
        ..trunk("carrier", "sip:carrier.example;transport=tls")
    }];
    let certificates = authority.issue(&["sip.example.com"]).certificates();
    let verifier = client_verifier(authority.roots(), false).expect("roots");
    let server = Server::builder()
        .listen(any)
        .relay_address(any.ip())
        .sip_listen(any)
        .sip_listen_tls(any)
        .sip_tls(certificates.server_config_for_clients(false, verifier))
        .certificates(certificates)
        .sip(settings)
        .user("user1", PASSWORD)
        .workers(2);
    server.start().expect("the server starts")
}

fn invite(id: &str) -> String {
    format!(
        "INVITE sip:user1@example.com SIP/2.0\r\nVia: SIP/2.0/TLS carrier.example;branch=z9hG4bK{id}\r\n\
         From: <sip:+4930@carrier.example>;tag=1\r\nTo: <sip:user1@example.com>\r\nCall-ID: {id}@test\r\n\
         CSeq: 7 INVITE\r\nMax-Forwards: 70\r\nContact: <sip:+4930@carrier.example;transport=tls>\r\n\
         P-Asserted-Identity: <sip:+4930@carrier.example>\r\nContent-Length: 0\r\n\r\n"
    )
}

/// The final response to the next request.
fn answer(link: &mut Link) -> String {
    loop {
        let text = link.next().expect("an answer");
        if !text.starts_with("SIP/2.0 1") {
            return text;
        }
    }
}

#[test]
fn a_trunk_is_known_by_the_domain_in_its_client_certificate_rfc5922_7() {
    let authority = Authority::new();
    let server = known_by_certificate(&authority);
    let at = server.sip_tls_listeners()[0];
    let mut phone = Phone::udp(&server, "user1");
    phone.register();
    let connect = |own: Option<&[&str]>| {
        let own = own.map(|names| authority.issue(names));
        let roots = authority.roots();
        Link::connect(at, "sip.example.com", roots, own.as_ref()).expect("TLS")
    };
    // Others of the same address and issuer are asked for credentials. RFC 5922 §7.1: DNS names do not count beside a
    // SIP URI. §7.2: a wildcard names no host.
    let others: [Option<&[&str]>; 4] = [
        None,
        Some(&["other.example"]),
        Some(&["*.example"]),
        Some(&["sip:other.example", "carrier.example"]),
    ];
    for (number, own) in others.into_iter().enumerate() {
        let mut link = connect(own);
        link.send(&invite(&format!("other{number}")));
        let text = answer(&mut link);
        assert!(text.starts_with("SIP/2.0 407 "), "{own:?}: {text}");
    }
    for (number, name) in ["carrier.example", "sip:carrier.example"]
        .into_iter()
        .enumerate()
    {
        let mut link = connect(Some(&[name]));
        link.send(&invite(&format!("trunk{number}")));
        let got = phone.expect("INVITE ");
        assert!(value(&got, "P-Asserted-Identity").contains("+4930@carrier.example"));
        // The limit of calls from the trunk counts over all its connections.
        link.send(&invite(&format!("more{number}")));
        let text = answer(&mut link);
        assert!(text.starts_with("SIP/2.0 486 Too Many Calls"), "{text}");
        phone.respond(&got, "480 Temporarily Unavailable");
        let text = answer(&mut link);
        assert!(text.starts_with("SIP/2.0 480 "), "{text}");
    }
    let trunks = server.sip_inspector().expect("SIP").trunks();
    let counts = trunks[0].counts;
    assert_eq!((counts.calls_from, counts.limited_from), (2, 2));
    assert_eq!(counts.in_progress_from, 0);
    assert_eq!(server.stats().sip().calls_refused, [0, 0, 0, 0, 0, 2, 0]);
}

#[test]
fn a_trunk_is_also_known_on_a_connection_that_the_server_has_opened_to_it() {
    let authority = Authority::new();
    let peer = Peer::new(&authority.issue(&["carrier.example"]), None);
    for (certificate, start_line) in [
        ("carrier.example", "INVITE "),
        ("other.example", "SIP/2.0 407 "),
    ] {
        let named = Trunk {
            certificates: vec![certificate.to_owned()],
            ..trunk("named", "sip:carrier.example;transport=tls")
        };
        let zone = zone("carrier.example", peer.port());
        let (server, _dns) = start(&authority, zone, vec![named]);
        let mut phone = Phone::udp(&server, "user1");
        phone.register();
        phone.ask(Method::Invite, "sip:+49301234@example.com", "out");
        let mut link = peer.accept().expect("TLS");
        let call = link.request();
        link.answer(&call);
        phone.expect("SIP/2.0 200");
        link.send(&invite("back"));
        let got = match start_line {
            "INVITE " => phone.expect("INVITE "),
            _ => answer(&mut link),
        };
        assert!(got.starts_with(start_line), "{certificate}: {got}");
    }
}
