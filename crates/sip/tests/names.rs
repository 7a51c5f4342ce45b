//! TLS connections to names that are verified (RFC 5922), and requests over connections of peers that have proved
//! theirs (RFC 5923).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hairpin_sip::congestion::Class;
use hairpin_sip::dispatch::{
    self, AllowedDestination, Dispatcher, Failure, OutgoingRequest, SendFrom, Source,
};
use hairpin_sip::engine::{
    self, ConnectKey, Engine, Mark, Outgoing, Output, Received, Reply, SendTo, SentBy,
};
use hairpin_sip::flow::{ConnectionKey, Destination, Flow, ListenerKey, PeerName, Transport};
use hairpin_sip::routing::{DnsName, DnsRecords, Query, Srv};
use hairpin_sip::{HashKey, Now, Spans};

const NOW: Now = Now {
    mono: hairpin_sip::Mono(1_000_000_000),
    unix_s: 1_800_000_000,
};

const TLS: ListenerKey = ListenerKey(1);

fn address(port: u16) -> SocketAddr {
    ([192, 0, 2, 9], port).into()
}

fn local() -> SocketAddr {
    ([192, 0, 2, 1], 5061).into()
}

fn key() -> HashKey {
    HashKey::new([7; 16])
}

fn engine() -> Engine {
    let mut config = engine::Config::new(0, key());
    config.redirects_responses = true;
    config.overload_control = false;
    config.sent_by = [
        (ListenerKey(0), Transport::Udp, 5060),
        (TLS, Transport::Tls, 5061),
    ]
    .map(|(listener, transport, port)| SentBy::new(listener, transport, "192.0.2.1", port))
    .to_vec();
    Engine::new(config, 1)
}

fn flow(connection: u64, remote: SocketAddr) -> Flow {
    Flow {
        transport: Transport::Tls,
        listener: TLS,
        connection: Some(ConnectionKey(connection)),
        local: local(),
        remote,
    }
}

fn to(name: Option<&str>) -> Destination {
    Destination {
        name: name.map(PeerName::new),
        ..Destination::new(Transport::Tls, address(5061), TLS)
    }
}

const OPTIONS: &[u8] = b"OPTIONS sips:example.org SIP/2.0\r\nFrom: <sips:a@192.0.2.1>;tag=1\r\nTo: <sips:example.org>\r\n\
    Call-ID: 1@192.0.2.1\r\nCSeq: 2 OPTIONS\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n";

/// What the engine does with a request.
#[derive(Debug, PartialEq)]
enum Does {
    Nothing,
    Sends(u64),
    Connects(ConnectKey, Destination),
}

impl Does {
    fn key(&self) -> ConnectKey {
        match self {
            Does::Connects(key, _) => *key,
            other => panic!("{other:?}"),
        }
    }
}

fn next(engine: &mut Engine) -> Does {
    match engine.poll_output() {
        None => Does::Nothing,
        Some(Output::Send {
            to: SendTo::Stream(ConnectionKey(key)),
            ..
        }) => Does::Sends(key),
        Some(Output::Connect { key, to }) => Does::Connects(key, to.clone()),
        other => panic!("{other:?}"),
    }
}

fn request(engine: &mut Engine, to: Destination) -> Does {
    let out = Outgoing {
        to,
        connection: None,
        pieces: &[OPTIONS],
        class: Class::New,
        mark: None,
        loop_check: None,
    };
    engine.request(NOW.mono, &out).expect("there is room");
    next(engine)
}

// RFC 5922 §7.3: without a name nobody is authenticated.
#[test]
fn nothing_is_connected_to_over_tls_without_a_name() {
    assert_eq!(request(&mut engine(), to(None)), Does::Nothing);
}

// RFC 5923 §9.3.
#[test]
fn a_connection_is_reused_for_its_name_and_for_no_other() {
    let mut engine = engine();
    let first = request(&mut engine, to(Some("example.org")));
    let waits = request(&mut engine, to(Some("Example.ORG.")));
    assert_eq!(waits, Does::Nothing, "it waits for the first connection");
    let other = request(&mut engine, to(Some("example.net")));
    assert_ne!(first.key(), other.key());
    engine.connected(NOW.mono, first.key(), &flow(1, address(5061)));
    assert_eq!(next(&mut engine), Does::Sends(1));
    assert_eq!(next(&mut engine), Does::Sends(1));
    engine.connected(NOW.mono, other.key(), &flow(2, address(5061)));
    assert_eq!(next(&mut engine), Does::Sends(2));
    assert_eq!(
        request(&mut engine, to(Some("example.org"))),
        Does::Sends(1)
    );
    assert_eq!(
        request(&mut engine, to(Some("example.net"))),
        Does::Sends(2)
    );
    engine.disconnected(NOW.mono, ConnectionKey(1));
    while engine.poll_output().is_some() {}
    let again = request(&mut engine, to(Some("example.org")));
    assert!(matches!(again, Does::Connects(..)), "{again:?}");
    assert_eq!(
        request(&mut engine, to(Some("example.net"))),
        Does::Sends(2)
    );
}

/// A request of a client, accepted from a port of no consequence.
fn brings(engine: &mut Engine, flow: &Flow, via: &str) {
    let text = format!(
        "OPTIONS sip:b@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/TLS {via}\r\nFrom: <sip:a@example.org>;tag=1\r\n\
         To: <sip:b@192.0.2.1>\r\nCall-ID: 1\r\nCSeq: 1 OPTIONS\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
    );
    let mut spans = Spans::default();
    let received = engine.handle_message(NOW, flow, text.as_bytes(), &mut spans);
    let Received::Request(request) = received else {
        panic!("{received:?}");
    };
    let reply = Reply::new(200);
    engine.answer_statelessly(request, &reply).expect("room");
    while engine.poll_output().is_some() {}
}

/// Where a request for `name` goes after a client with these names has asked for an alias.
fn after_alias(names: &[&str], via: &str, name: &str) -> Does {
    let mut engine = engine();
    let flow = flow(5, address(40_000));
    engine.accepted(NOW.mono, &flow);
    if !names.is_empty() {
        let names: Arc<[PeerName]> = names.iter().map(|name| PeerName::new(name)).collect();
        engine.authenticated(ConnectionKey(5), &names);
        assert_eq!(engine.client_names(ConnectionKey(5)), Some(&names));
    }
    brings(&mut engine, &flow, via);
    request(&mut engine, to(Some(name)))
}

// RFC 5923 §8.2, §9.2.
#[test]
fn a_peer_with_a_certificate_may_have_requests_by_its_own_connection() {
    let via = "proxy.example.org:5061;branch=z9hG4bK1;alias";
    let names = ["example.org", "example.com"];
    for name in names {
        assert_eq!(after_alias(&names, via, name), Does::Sends(5));
    }
    // Without a port, the default counts.
    let default = "proxy.example.org;branch=z9hG4bK1;alias";
    assert_eq!(after_alias(&names, default, "example.org"), Does::Sends(5));
    for (names, via, name) in [
        (&names[..], via, "example.net"),
        (
            &names[..],
            "proxy.example.org:5061;branch=z9hG4bK1",
            "example.org",
        ),
        (
            &names[..],
            "proxy.example.org:5071;branch=z9hG4bK1;alias",
            "example.org",
        ),
        // No certificate, no alias.
        (&[], via, "example.org"),
    ] {
        let does = after_alias(names, via, name);
        assert!(matches!(does, Does::Connects(..)), "{does:?}");
    }
}

#[test]
fn an_alias_ends_with_its_connection_and_there_are_few_of_one() {
    let mut engine = engine();
    let by = flow(5, address(40_000));
    engine.accepted(NOW.mono, &by);
    let names: Arc<[PeerName]> = [PeerName::new("example.org")].into();
    engine.authenticated(ConnectionKey(5), &names);
    for port in 5061..5161 {
        brings(
            &mut engine,
            &by,
            &format!("h.example:{port};branch=z9hG4bK{port};alias"),
        );
    }
    let at = |port| Destination {
        remote: address(port),
        ..to(Some("example.org"))
    };
    assert_eq!(request(&mut engine, at(5061)), Does::Sends(5));
    assert!(matches!(request(&mut engine, at(5160)), Does::Connects(..)));
    engine.disconnected(NOW.mono, ConnectionKey(5));
    while engine.poll_output().is_some() {}
    assert!(matches!(request(&mut engine, at(5061)), Does::Connects(..)));
}

/// A dispatcher over UDP and TLS.
fn dispatcher() -> Dispatcher {
    let sources = [(ListenerKey(0), Transport::Udp), (TLS, Transport::Tls)];
    let sources = sources.map(|(listener, transport)| Source {
        listener,
        transport,
        is_v4: true,
    });
    Dispatcher::new(dispatch::Config::new(sources.to_vec()), key(), 1)
}

fn order(target: &[u8]) -> OutgoingRequest<'_> {
    OutgoingRequest {
        target,
        pieces: &[OPTIONS],
        class: Class::New,
        mark: Mark(3),
        reach: AllowedDestination::Anywhere,
        flow: None,
        from: Some(SendFrom {
            listener: TLS,
            local: Some(local()),
        }),
        loop_check: None,
    }
}

fn answer(dispatcher: &mut Dispatcher, engine: &mut Engine, answer: DnsRecords) -> Query {
    let query = dispatcher.poll_query().expect("a question");
    let ttl = Duration::from_secs(60);
    dispatcher.answered(NOW.mono, engine, query.clone(), Ok((answer, ttl)));
    query
}

// RFC 5922 §7.3, RFC 5630 §4.1.
#[test]
fn the_name_to_verify_is_the_one_before_the_dns_and_sips_goes_over_tls_alone() {
    let (mut engine, mut dispatcher) = (engine(), dispatcher());
    dispatcher
        .send(NOW.mono, &mut engine, &order(b"sips:bob@Example.org"))
        .expect("it is begun");
    answer(&mut dispatcher, &mut engine, DnsRecords::Naptr(Vec::new()));
    let srv = Srv {
        priority: 0,
        weight: 0,
        port: 5071,
        target: DnsName::new(b"host.example.net").expect("a name"),
    };
    let asked = answer(&mut dispatcher, &mut engine, DnsRecords::Srv(vec![srv]));
    assert_eq!(
        asked,
        Query::Srv(DnsName::new(b"_sips._tcp.example.org").expect("a name"))
    );
    answer(
        &mut dispatcher,
        &mut engine,
        DnsRecords::Addresses(vec![[192, 0, 2, 9].into()]),
    );
    let Does::Connects(_, to) = next(&mut engine) else {
        panic!("it connects");
    };
    assert_eq!(to.transport, Transport::Tls);
    assert_eq!((to.remote, to.local), (address(5071), Some(local())));
    assert_eq!(to.name, Some(PeerName::new("example.org")));
}

#[test]
fn sips_goes_nowhere_without_tls() {
    let source = Source {
        listener: ListenerKey(0),
        transport: Transport::Udp,
        is_v4: true,
    };
    let mut engine = engine();
    let mut dispatcher = Dispatcher::new(dispatch::Config::new(vec![source]), key(), 1);
    for target in [
        &b"sips:bob@192.0.2.9"[..],
        b"sips:bob@192.0.2.9;transport=udp",
    ] {
        dispatcher
            .send(NOW.mono, &mut engine, &order(target))
            .expect("it is begun");
        let told = dispatcher.poll_failure().map(|told| told.failure);
        assert_eq!(told, Some(Failure::Nowhere));
        assert_eq!(next(&mut engine), Does::Nothing);
    }
}

#[test]
fn maddr_does_not_change_whom_the_uri_names() {
    for (uri, name) in [
        ("sips:a@Example.org;maddr=192.0.2.7", "example.org"),
        ("sips:[2001:DB8::1]:5061", "2001:db8::1"),
        ("sip:example.org.;transport=tls", "example.org"),
    ] {
        let found = hairpin_sip::routing::Locate::peer_name(uri.as_bytes());
        assert_eq!(found, Some(PeerName::new(name)), "{uri}");
    }
}

#[test]
fn a_response_whose_connection_is_gone_goes_to_whom_its_sent_by_names() {
    let (mut engine, mut dispatcher) = (engine(), dispatcher());
    let flow = flow(5, address(40_000));
    engine.accepted(NOW.mono, &flow);
    let invite = "INVITE sip:b@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/TLS phone.example.org;branch=z9hG4bKx\r\n\
         From: <sip:a@example.org>;tag=1\r\nTo: <sip:b@192.0.2.1>\r\nCall-ID: 1\r\nCSeq: 1 INVITE\r\nMax-Forwards: 70\r\n\
         Contact: <sip:a@phone.example.org>\r\nContent-Length: 0\r\n\r\n";
    let mut spans = Spans::default();
    let received = engine.handle_message(NOW, &flow, invite.as_bytes(), &mut spans);
    let Received::Request(request) = received else {
        panic!("{received:?}");
    };
    let server = engine.accept(NOW.mono, request, None).expect("room");
    engine.disconnected(NOW.mono, ConnectionKey(5));
    engine
        .respond(NOW.mono, server, &Reply::new(486))
        .expect("an INVITE has responses");
    let (of, tried, bytes) = match engine.poll_output() {
        Some(Output::Undelivered { server, to, bytes }) => (server, to.clone(), bytes.to_vec()),
        other => panic!("{other:?}"),
    };
    dispatcher.undelivered(NOW.mono, &mut engine, of, tried, &bytes);
    answer(&mut dispatcher, &mut engine, DnsRecords::Srv(Vec::new()));
    let addresses = DnsRecords::Addresses(vec![[192, 0, 2, 9].into()]);
    answer(&mut dispatcher, &mut engine, addresses);
    let Does::Connects(attempt, to) = next(&mut engine) else {
        panic!("it connects");
    };
    assert_eq!(to.name, Some(PeerName::new("phone.example.org")));
    assert_eq!((to.remote, to.local), (address(5061), Some(local())));
    let back = Flow {
        connection: Some(ConnectionKey(6)),
        remote: address(5061),
        ..flow
    };
    engine.connected(NOW.mono, attempt, &back);
    assert_eq!(next(&mut engine), Does::Sends(6));
}
