//! Responses whose connection is gone, and whose client cannot be reached where it was: sent-by leads on (RFC 3263 §5).

use hairpin_sip::dispatch::{Config, Dispatcher, Source};
use hairpin_sip::engine::{
    self, ConnectKey, Engine, Event, Mark, Origin, Output, Received, Reply, SendTo, ServerFailure,
};
use hairpin_sip::flow::{ConnectionKey, Flow, ListenerKey, Transport};
use hairpin_sip::routing::{DnsFailed, DnsName, DnsRecords, Query, Srv};
use hairpin_sip::{HashKey, Now, Spans};
use std::net::SocketAddr;
use std::time::Duration;

struct World {
    engine: Engine,
    dispatcher: Dispatcher,
    now: Now,
    connects: Vec<(ConnectKey, SocketAddr)>,
    /// Over which connection, and what.
    sent: Vec<(u64, String)>,
    failed: usize,
}

fn name(text: &str) -> DnsName {
    DnsName::new(text.as_bytes()).expect("a name")
}

fn client() -> SocketAddr {
    ([192, 0, 2, 9], 40_000).into()
}

fn flow(connection: u64, remote: SocketAddr) -> Flow {
    Flow {
        transport: Transport::Tcp,
        listener: ListenerKey(0),
        connection: Some(ConnectionKey(connection)),
        local: ([192, 0, 2, 1], 5060).into(),
        remote,
    }
}

impl World {
    /// A call by connection 1, which is gone then.
    fn ringing(sent_by: &str) -> (World, engine::ServerKey) {
        let (mut world, server) = World::called(sent_by);
        world.engine.disconnected(world.now.mono, ConnectionKey(1));
        world.drain();
        (world, server)
    }

    /// A call by connection 1. The other addresses at which its client may be are in 198.51.100.0/24.
    fn called(sent_by: &str) -> (World, engine::ServerKey) {
        let key = HashKey::new([7; 16]);
        let mut of_engine = engine::Config::new(0, key);
        of_engine.overload_control = false;
        of_engine.redirects_responses = true;
        let tcp = Source {
            listener: ListenerKey(0),
            transport: Transport::Tcp,
            is_v4: true,
        };
        let mut config = Config::new(vec![tcp]);
        config.allowed = Box::new(|to, _| to.ip().to_string().starts_with("198.51.100."));
        let mut world = World {
            engine: Engine::new(of_engine, 1),
            dispatcher: Dispatcher::new(config, key, 1),
            now: Now::default(),
            connects: Vec::new(),
            sent: Vec::new(),
            failed: 0,
        };
        let invite = format!(
            "INVITE sip:bob@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/TCP {sent_by};branch=z9hG4bK1\r\n\
             From: <sip:a@b>;tag=1\r\nTo: <sip:bob@192.0.2.1>\r\nCall-ID: 1\r\nCSeq: 1 INVITE\r\n\
             Max-Forwards: 70\r\nContact: <sip:a@b>\r\nContent-Length: 0\r\n\r\n"
        );
        let by = flow(1, client());
        let mono = world.now.mono;
        world.engine.accepted(mono, &by);
        let mut spans = Spans::new();
        let received = world
            .engine
            .handle_message(world.now, &by, invite.as_bytes(), &mut spans);
        let Received::Request(request) = received else {
            panic!("{received:?}");
        };
        let server = world.engine.accept(mono, request, Some(Mark(5)));
        (world, server.expect("room"))
    }

    fn respond(&mut self, server: engine::ServerKey, code: u16) {
        let mono = self.now.mono;
        let responded = self.engine.respond(mono, server, &Reply::new(code));
        responded.expect("in place");
        self.drain();
    }

    fn drain(&mut self) {
        let mono = self.now.mono;
        while let Some(output) = self.engine.poll_output() {
            match output {
                Output::Send { to, bytes, .. } => {
                    let SendTo::Stream(ConnectionKey(number)) = to else {
                        panic!("{to:?}");
                    };
                    let text = String::from_utf8_lossy(bytes).into_owned();
                    self.sent.push((number, text));
                }
                Output::Connect { key, to } => self.connects.push((key, to.remote)),
                Output::Undelivered { server, to, bytes } => {
                    let (to, bytes) = (to.clone(), bytes.to_vec());
                    self.dispatcher
                        .undelivered(mono, &mut self.engine, server, to, &bytes);
                }
                Output::Event(event) => {
                    if let Event::ServerFailed { failure, .. } = event {
                        assert_eq!(failure, ServerFailure::TransportFailed);
                        self.failed += 1;
                    }
                    self.dispatcher.event(mono, &mut self.engine, &event);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// The one connection that is asked for now.
    fn connect(&mut self) -> (ConnectKey, String) {
        let (key, remote) = self.connects.pop().expect("a connection is asked for");
        assert!(self.connects.is_empty());
        (key, remote.to_string())
    }

    /// It goes here, and nobody listens.
    fn nobody_at(&mut self, address: &str) {
        let (key, remote) = self.connect();
        assert_eq!(remote, address);
        self.engine.connect_failed(self.now.mono, key);
        self.drain();
    }

    fn asked(&mut self) -> Option<Query> {
        self.dispatcher.poll_query()
    }

    fn answer(&mut self, query: Query, answer: DnsRecords) {
        let answer = Ok((answer, Duration::from_secs(60)));
        self.dispatcher
            .answered(self.now.mono, &mut self.engine, query, answer);
        self.drain();
    }
}

#[test]
fn a_response_goes_on_to_the_servers_that_sent_by_names_rfc3263_5() {
    let (mut world, server) = World::ringing("client.example");
    world.respond(server, 180);
    // RFC 3261 §18.2.2: first to where the request came from, and the port of sent-by.
    world.nobody_at("192.0.2.9:5060");
    let srv = Query::Srv(name("_sip._tcp.client.example"));
    assert_eq!(world.asked(), Some(srv.clone()));
    let record = |priority, target: &str| Srv {
        priority,
        weight: 0,
        port: 5070,
        target: name(target),
    };
    let records = vec![record(2, "b.client.example"), record(1, "a.client.example")];
    world.answer(srv, DnsRecords::Srv(records));
    for (host, last) in [("a.client.example", 1), ("b.client.example", 2)] {
        let addresses = Query::Addresses(name(host));
        assert_eq!(world.asked(), Some(addresses.clone()));
        let found = vec![[198, 51, 100, last].into()];
        world.answer(addresses, DnsRecords::Addresses(found));
    }
    world.nobody_at("198.51.100.1:5070");
    let (key, remote) = world.connect();
    assert_eq!(remote, "198.51.100.2:5070");
    let by = flow(2, remote.parse().expect("an address"));
    world.engine.connected(world.now.mono, key, &by);
    world.drain();
    let [(2, sent)] = &world.sent[..] else {
        panic!("{:?}", world.sent);
    };
    assert!(sent.starts_with("SIP/2.0 180 "), "{sent}");
    assert_eq!((world.failed, world.dispatcher.stats().redirected), (0, 1));
}

#[test]
fn an_unreachable_client_is_reported_and_the_next_response_tries_again() {
    let (mut world, server) = World::ringing("client.example:5070");
    world.respond(server, 180);
    world.nobody_at("192.0.2.9:5070");
    let query = Query::Addresses(name("client.example"));
    assert_eq!(world.asked(), Some(query.clone()));
    // What comes meanwhile does not ask as well.
    world.respond(server, 183);
    world.nobody_at("192.0.2.9:5070");
    assert_eq!((world.asked(), world.failed), (None, 1));
    let mono = world.now.mono;
    let failed = Err(DnsFailed);
    world
        .dispatcher
        .answered(mono, &mut world.engine, query, failed);
    world.drain();
    assert_eq!(world.failed, 2);
    world.respond(server, 486);
    world.nobody_at("192.0.2.9:5070");
    assert_eq!(world.failed, 3, "that there is no answer is remembered");
}

#[test]
fn a_client_chooses_no_victim() {
    let (mut world, server) = World::ringing("victim.example:25");
    world.respond(server, 486);
    world.nobody_at("192.0.2.9:25");
    let query = world.asked().expect("a question");
    let found = vec![[203, 0, 113, 1].into(), [192, 0, 2, 9].into()];
    world.answer(query, DnsRecords::Addresses(found));
    assert!(
        world.connects.is_empty(),
        "one is not the client's, one was tried"
    );
    assert_eq!(world.failed, 1);
}

#[test]
fn an_address_in_sent_by_is_tried_without_a_question_rfc3263_5() {
    let (mut world, server) = World::ringing("198.51.100.7:5080");
    world.respond(server, 486);
    world.nobody_at("192.0.2.9:5080");
    assert_eq!(world.asked(), None);
    world.nobody_at("198.51.100.7:5080");
    assert_eq!(world.failed, 1);
    let (mut world, server) = World::ringing("192.0.2.9:5080");
    world.respond(server, 486);
    world.nobody_at("192.0.2.9:5080");
    assert!(world.connects.is_empty(), "it is the same");
    assert_eq!(world.failed, 1);
}

#[test]
fn a_response_whose_connection_goes_as_it_is_sent_is_sent_by_a_new_one_rfc3261_18_2_2() {
    let (mut world, server) = World::called("192.0.2.9:5070");
    world.respond(server, 486);
    let [(1, first)] = &world.sent[..] else {
        panic!("{:?}", world.sent);
    };
    let first = first.clone();
    world
        .engine
        .send_failed(world.now.mono, Origin::Server(server));
    world.drain();
    let (key, remote) = world.connect();
    let by = flow(2, remote.parse().expect("an address"));
    world.engine.connected(world.now.mono, key, &by);
    world.drain();
    assert_eq!(world.sent.last(), Some(&(2, first)));
    // The new one is no better: that is told, and nothing goes round in circles.
    world
        .engine
        .send_failed(world.now.mono, Origin::Server(server));
    world.drain();
    assert_eq!((world.failed, world.connects.len()), (1, 0));
}
