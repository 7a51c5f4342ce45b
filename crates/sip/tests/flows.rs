//! Which connections are used again, and which are never opened: TLS without a verified name, and WebSocket (RFC 7118).

use std::net::SocketAddr;
use std::time::Duration;

use hairpin_sip::congestion::Class;
use hairpin_sip::dispatch::{
    self, AllowedDestination, Dispatcher, Failure, OutgoingRequest, Source,
};
use hairpin_sip::engine::{
    self, Engine, Event, Mark, Outgoing, Output, Received, Reply, SendTo, SentBy, ServerFailure,
};
use hairpin_sip::flow::{ConnectionKey, Destination, Flow, ListenerKey, Transport};
use hairpin_sip::{HashKey, Mono, Now, Spans};

fn key() -> HashKey {
    HashKey::new([7; 16])
}
const CONNECTION: ConnectionKey = ConnectionKey(9);
const NOW: Now = Now {
    mono: Mono(1_000_000_000),
    unix_s: 1_800_000_000,
};

fn remote() -> SocketAddr {
    ([192, 0, 2, 9], 40_000).into()
}

fn flow(transport: Transport) -> Flow {
    Flow {
        transport,
        listener: ListenerKey(0),
        connection: Some(CONNECTION),
        local: ([192, 0, 2, 1], transport.default_port()).into(),
        remote: remote(),
    }
}

fn engine(transport: Transport) -> Engine {
    let mut config = engine::Config::new(0, key());
    config.redirects_responses = true;
    config.sent_by = vec![SentBy::new(
        ListenerKey(0),
        transport,
        "192.0.2.1",
        transport.default_port(),
    )];
    let mut engine = Engine::new(config, 1);
    engine.accepted(NOW.mono, &flow(transport));
    engine
}

const BYE: &[u8] = b"BYE sip:x@a1b2.invalid;transport=ws SIP/2.0\r\nFrom: <sip:a@192.0.2.1>;tag=1\r\nTo: <sip:x@192.0.2.9>;tag=2\r\n\
    Call-ID: 1@192.0.2.1\r\nCSeq: 2 BYE\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n";

/// What the engine does with a request for the address that a connection came from.
fn request_to_the_source(transport: Transport) -> &'static str {
    let mut engine = engine(transport);
    let out = Outgoing {
        to: Destination::new(transport, remote(), ListenerKey(0)),
        connection: None,
        pieces: &[BYE],
        class: Class::New,
        mark: None,
        loop_check: None,
    };
    engine.request(NOW.mono, &out).expect("there is room");
    match engine.poll_output() {
        Some(Output::Send { to, .. }) if to == SendTo::Stream(CONNECTION) => "sends",
        Some(Output::Connect { .. }) => "connects",
        None => "nothing",
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_connection_of_a_peer_is_used_for_requests_over_tcp_only() {
    assert_eq!(request_to_the_source(Transport::Tcp), "sends");
    assert_eq!(request_to_the_source(Transport::Ws), "connects");
    // Over TLS there must be somebody to verify.
    assert_eq!(request_to_the_source(Transport::Tls), "nothing");
    assert_eq!(request_to_the_source(Transport::Wss), "nothing");
}

/// What a TU hears whose response comes after the connection has gone.
fn answer_after_the_end(transport: Transport) -> &'static str {
    let mut engine = engine(transport);
    let via = transport.via_name();
    let invite = format!(
        "INVITE sip:b@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/{via} a1b2.invalid;branch=z9hG4bKx\r\nFrom: <sip:a@example.org>;tag=1\r\n\
         To: <sip:b@192.0.2.1>\r\nCall-ID: 1\r\nCSeq: 1 INVITE\r\nMax-Forwards: 70\r\nContact: <sip:x@a1b2.invalid;transport=ws>\r\n{}\r\n",
        if transport.is_websocket() {
            ""
        } else {
            "Content-Length: 0\r\n"
        }
    );
    let mut spans = Spans::default();
    let received = engine.handle_message(NOW, &flow(transport), invite.as_bytes(), &mut spans);
    let Received::Request(request) = received else {
        panic!("{received:?}");
    };
    let key = engine
        .accept(NOW.mono, request, Some(Mark(5)))
        .expect("room");
    engine.disconnected(NOW.mono, CONNECTION);
    engine
        .respond(NOW.mono, key, &Reply::new(486))
        .expect("an INVITE has responses");
    let mut heard = "nothing";
    while let Some(output) = engine.poll_output() {
        match output {
            Output::Connect { .. } => heard = "connects",
            Output::Undelivered { .. } => heard = "asks where sent-by is",
            Output::Event(Event::ServerFailed {
                failure: ServerFailure::TransportFailed,
                ..
            }) => heard = "fails",
            Output::Send { to, .. } => assert_ne!(to, SendTo::Stream(CONNECTION)),
            _ => {}
        }
    }
    heard
}

#[test]
fn nobody_connects_to_a_websocket_client_rfc7118_7() {
    assert_eq!(answer_after_the_end(Transport::Tcp), "connects");
    assert_eq!(
        answer_after_the_end(Transport::Tls),
        "asks where sent-by is"
    );
    assert_eq!(answer_after_the_end(Transport::Ws), "fails");
    assert_eq!(answer_after_the_end(Transport::Wss), "fails");
}

/// Where a request goes that names a flow, and what is told of it.
fn by_flow(transport: Transport, is_open: bool) -> (Option<SendTo>, Option<Failure>, bool) {
    let mut engine = engine(transport);
    if !is_open {
        engine.disconnected(NOW.mono, CONNECTION);
    }
    let source = Source {
        listener: ListenerKey(0),
        transport,
        is_v4: true,
    };
    let mut dispatcher = Dispatcher::new(dispatch::Config::new(vec![source]), key(), 1);
    let order = OutgoingRequest {
        target: b"sip:x@example.org;transport=tcp",
        pieces: &[BYE],
        class: Class::Finishing,
        mark: Mark(3),
        reach: AllowedDestination::Anywhere,
        flow: Some(flow(transport)),
        from: None,
        loop_check: None,
    };
    dispatcher
        .send(NOW.mono, &mut engine, &order)
        .expect("it is begun");
    let to = match engine.poll_output() {
        Some(Output::Send { to, bytes, .. }) => {
            let via = format!(
                "BYE sip:x@a1b2.invalid;transport=ws SIP/2.0\r\nVia: SIP/2.0/{}",
                transport.via_name()
            );
            assert!(bytes.starts_with(via.as_bytes()));
            Some(to)
        }
        None => None,
        other => panic!("{other:?}"),
    };
    let told = dispatcher.poll_failure().map(|told| told.failure);
    (to, told, dispatcher.poll_query().is_some())
}

#[test]
fn a_request_may_name_the_flow_that_it_goes_by() {
    let by = Some(SendTo::Stream(CONNECTION));
    for transport in [
        Transport::Tcp,
        Transport::Tls,
        Transport::Ws,
        Transport::Wss,
    ] {
        assert_eq!(by_flow(transport, true), (by, None, false), "{transport:?}");
    }
    // Without the flow the target says where to, but never for a WebSocket.
    assert_eq!(by_flow(Transport::Tcp, false), (None, None, true));
    let failed = (None, Some(Failure::TransportFailed), false);
    assert_eq!(by_flow(Transport::Ws, false), failed);
    assert_eq!(by_flow(Transport::Wss, false), failed);
}

#[test]
fn a_flow_that_ends_before_the_response_fails_its_request() {
    let mut engine = engine(Transport::Wss);
    let mut dispatcher = Dispatcher::new(dispatch::Config::new(Vec::new()), key(), 1);
    let order = OutgoingRequest {
        target: b"sip:x@a1b2.invalid;transport=ws",
        pieces: &[BYE],
        class: Class::Finishing,
        mark: Mark(3),
        reach: AllowedDestination::Anywhere,
        flow: Some(flow(Transport::Wss)),
        from: None,
        loop_check: None,
    };
    dispatcher
        .send(NOW.mono, &mut engine, &order)
        .expect("it is begun");
    while engine.poll_output().is_some() {}
    let later = NOW.mono.plus(Duration::from_secs(1));
    engine.disconnected(later, CONNECTION);
    while let Some(output) = engine.poll_output() {
        if let Output::Event(event) = output {
            dispatcher.event(later, &mut engine, &event);
        }
    }
    let told = dispatcher
        .poll_failure()
        .map(|told| (told.mark, told.failure));
    assert_eq!(told, Some((Mark(3), Failure::TransportFailed)));
    assert!(!dispatcher.has_requests());
}
