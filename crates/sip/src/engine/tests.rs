//! What a step of the engine costs: how many transactions it looks at, which is the same in each run.

use super::{Config, Engine, Event, Mark, Outgoing, Output, SentBy};
use crate::congestion::Class;
use crate::flow::{ConnectionKey, Destination, Flow, ListenerKey, Transport};
use crate::{HashKey, Mono};

/// Requests that go over the connection that ends.
const OWN: u64 = 3;
/// Requests over each of the others.
const EACH: u64 = 100;

struct TestBed {
    engine: Engine,
    requests: u64,
}

impl TestBed {
    fn new() -> TestBed {
        let mut config = Config::new(0, HashKey::new([1; 16]));
        let sent_by = SentBy::new(ListenerKey(0), Transport::Tcp, "192.0.2.1", 5060);
        config.sent_by.push(sent_by);
        TestBed {
            engine: Engine::new(config, 1),
            requests: 0,
        }
    }

    /// Accepts a connection with this number.
    fn accept(&mut self, number: u64) {
        let flow = Flow {
            transport: Transport::Tcp,
            listener: ListenerKey(0),
            connection: Some(ConnectionKey(number)),
            local: ([192, 0, 2, 1], 5060).into(),
            remote: ([192, 0, 2, 2], 10_000 + number as u16).into(),
        };
        self.engine.accepted(Mono(1), &flow);
    }

    /// Sends a request over it.
    fn send(&mut self, number: u64) {
        self.requests += 1;
        let request = format!(
            "OPTIONS sip:bob@192.0.2.2 SIP/2.0\r\nFrom: <sip:alice@192.0.2.1>;tag=1\r\nTo: <sip:bob@192.0.2.2>\r\n\
             Call-ID: {}@192.0.2.1\r\nCSeq: 1 OPTIONS\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n",
            self.requests
        );
        let remote = ([192, 0, 2, 2], 10_000 + number as u16).into();
        let out = Outgoing {
            to: Destination::new(Transport::Tcp, remote, ListenerKey(0)),
            connection: Some(ConnectionKey(number)),
            pieces: &[request.as_bytes()],
            class: Class::New,
            mark: Some(Mark(1)),
            loop_check: None,
        };
        self.engine.request(Mono(1), &out).expect("it is sent");
        while self.engine.poll_output().is_some() {}
    }

    /// How many slots of transactions were looked at so far.
    fn visits(&self) -> u64 {
        self.engine.clients.slab.visits() + self.engine.servers.slab.visits()
    }
}

/// How many slots the engine looks at if `end` ends a connection with [`OWN`] requests. `others`: how many other
/// connections there are, with [`EACH`] requests each. Checks that only the requests of the ended connection fail.
fn visits(others: u64, end: fn(&mut Engine, ConnectionKey)) -> u64 {
    let mut bed = TestBed::new();
    bed.accept(0);
    for other in 1..=others {
        bed.accept(other);
    }
    // Its requests are the first, one in the middle, and the last ones.
    bed.send(0);
    for other in 1..=others {
        (0..EACH).for_each(|_| bed.send(other));
        if other == others / 2 {
            bed.send(0);
        }
    }
    while bed.requests < OWN + others * EACH {
        bed.send(0);
    }
    let before = bed.visits();
    end(&mut bed.engine, ConnectionKey(0));
    let visits = bed.visits() - before;
    let mut failed = 0;
    while let Some(output) = bed.engine.poll_output() {
        failed += u64::from(matches!(output, Output::Event(Event::ClientFailed { .. })));
    }
    assert_eq!(failed, OWN);
    assert_eq!(bed.engine.stats().clients as u64, others * EACH);
    visits
}

#[test]
fn the_end_of_a_connection_costs_in_proportion_to_its_own_transactions() {
    let ends: [fn(&mut Engine, ConnectionKey); 2] = [
        |engine, key| engine.disconnected(Mono(2), key),
        |engine, key| _ = engine.half_closed(Mono(2), key),
    ];
    for end in ends {
        let alone = visits(0, end);
        assert!(alone >= OWN, "{alone}");
        let beside_others = visits(100, end);
        assert_eq!(beside_others, alone, "beside 10,000 other transactions");
    }
}
