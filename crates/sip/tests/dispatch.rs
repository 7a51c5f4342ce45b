//! Requests are sent to URIs: the servers that the DNS names are tried until one answers (RFC 3263 §4.3).

use hairpin_sip::congestion::Class;
use hairpin_sip::dispatch::{
    AllowedDestination, Config, DispatchError, DispatchFailure, Dispatcher, Failure,
    OutgoingRequest, RequestKey, Source,
};
use hairpin_sip::engine::{
    self, ConnectKey, Engine, Event, Mark, Origin, Output, Received, RequestError, SendTo,
};
use hairpin_sip::flow::{ConnectionKey, Flow, ListenerKey, Transport};
use hairpin_sip::routing::{DnsFailed, DnsName, DnsRecords, Naptr, Query, Srv};
use hairpin_sip::{HashKey, Now, Spans};
use std::net::SocketAddr;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

/// What was sent, and on whose behalf.
struct Sent {
    to: SocketAddr,
    origin: Origin,
    text: String,
}

impl Sent {
    fn branch(&self) -> &str {
        let from = self.text.find("branch=").expect("a branch") + 7;
        self.text[from..]
            .split([';', '\r'])
            .next()
            .expect("it ends")
    }
}

struct World {
    engine: Engine,
    dispatcher: Dispatcher,
    now: Now,
    sent: Vec<Sent>,
    connects: Vec<ConnectKey>,
    /// Of the requests.
    class: Class,
}

fn name(text: &str) -> DnsName {
    DnsName::new(text.as_bytes()).expect("a name")
}

impl World {
    fn new() -> World {
        World::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Config)) -> World {
        World::of(false, change)
    }

    fn of(overload_control: bool, change: impl FnOnce(&mut Config)) -> World {
        let key = HashKey::new([7; 16]);
        let mut of_engine = engine::Config::new(0, key);
        of_engine.overload_control = overload_control;
        let transports = [Transport::Udp, Transport::Tcp];
        of_engine.sent_by = transports
            .map(|transport| engine::SentBy::new(ListenerKey(0), transport, "192.0.2.1", 5060))
            .to_vec();
        let sources = transports.map(|transport| Source {
            listener: ListenerKey(0),
            transport,
            is_v4: true,
        });
        let mut config = Config::new(sources.to_vec());
        change(&mut config);
        World {
            engine: Engine::new(of_engine, 1),
            dispatcher: Dispatcher::new(config, key, 1),
            now: Now::default(),
            sent: Vec::new(),
            connects: Vec::new(),
            class: Class::New,
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.engine.poll_output() {
            let mut event: Option<Event> = None;
            match output {
                Output::Send { to, origin, bytes } => self.sent.push(Sent {
                    to: match to {
                        SendTo::Datagram { remote, .. } => remote,
                        SendTo::Stream(_) => ([0, 0, 0, 0], 0).into(),
                    },
                    origin,
                    text: String::from_utf8_lossy(bytes).into_owned(),
                }),
                Output::Connect { key, .. } => self.connects.push(key),
                Output::Event(told) => event = Some(told),
                _ => {}
            }
            if let Some(event) = event {
                self.dispatcher
                    .event(self.now.mono, &mut self.engine, &event);
            }
        }
    }

    fn order(
        &mut self,
        method: &str,
        uri: &str,
        reach: AllowedDestination,
        body: usize,
    ) -> Result<RequestKey, DispatchError> {
        let head = format!(
            "{method} {uri} SIP/2.0\r\nFrom: <sip:a@192.0.2.1>;tag=1\r\nTo: <{uri}>\r\n\
             Call-ID: 1@192.0.2.1\r\nCSeq: 1 {method}\r\nMax-Forwards: 70\r\nContent-Length: {body}\r\n\r\n"
        );
        let body = vec![b'x'; body];
        let order = OutgoingRequest {
            target: uri.as_bytes(),
            pieces: &[head.as_bytes(), &body],
            class: self.class,
            mark: Mark(77),
            reach,
            flow: None,
            from: None,
            loop_check: None,
        };
        let sent = self
            .dispatcher
            .send(self.now.mono, &mut self.engine, &order);
        self.drain();
        sent
    }

    fn send(&mut self, method: &str, uri: &str) -> RequestKey {
        self.order(method, uri, AllowedDestination::Anywhere, 0)
            .expect("it is sent")
    }

    fn answer(&mut self, query: Query, result: Result<DnsRecords, DnsFailed>) {
        let result = result.map(|answer| (answer, HOUR));
        self.dispatcher
            .answered(self.now.mono, &mut self.engine, query, result);
        self.drain();
    }

    /// Answers every question by a zone of two servers, 192.0.2.10 before 192.0.2.20.
    fn resolve(&mut self) {
        while let Some(query) = self.dispatcher.poll_query() {
            let answer = match &query {
                Query::Naptr(_) => DnsRecords::Naptr(vec![Naptr {
                    order: 1,
                    preference: 1,
                    service: "SIP+D2U".into(),
                    replacement: name("_sip._udp.example.org"),
                }]),
                Query::Srv(_) => DnsRecords::Srv(
                    [(1, "one"), (2, "two")]
                        .map(|(priority, host)| Srv {
                            priority,
                            weight: 0,
                            port: 5070,
                            target: name(host),
                        })
                        .to_vec(),
                ),
                Query::Addresses(host) if host.as_str() == "one" => {
                    DnsRecords::Addresses(vec![[192, 0, 2, 10].into()])
                }
                Query::Addresses(_) => DnsRecords::Addresses(vec![[192, 0, 2, 20].into()]),
            };
            self.answer(query, Ok(answer));
        }
    }

    fn last(&self) -> &Sent {
        self.sent.last().expect("something was sent")
    }

    /// The server that the last request went to answers it; returns the mark if the answer is for the TU.
    fn respond(&mut self, code: u16, more: &str) -> Option<Mark> {
        let request = self.last().text.clone();
        self.respond_to(&request, code, more)
    }

    fn respond_to(&mut self, request: &str, code: u16, more: &str) -> Option<Mark> {
        let copied = ["Via:", "From:", "To:", "Call-ID:", "CSeq:"];
        let lines = request
            .lines()
            .filter(|line| copied.iter().any(|kind| line.starts_with(kind)));
        let lines: Vec<&str> = lines.collect();
        let text = format!(
            "SIP/2.0 {code} X\r\n{}\r\n{more}Content-Length: 0\r\n\r\n",
            lines.join("\r\n")
        );
        let flow = Flow {
            transport: Transport::Udp,
            listener: ListenerKey(0),
            connection: None,
            local: ([192, 0, 2, 1], 5060).into(),
            remote: self.last().to,
        };
        let mut spans = Spans::new();
        let received = self
            .engine
            .handle_message(self.now, &flow, text.as_bytes(), &mut spans);
        let told = match received {
            Received::Response {
                client,
                mark,
                message,
            } => self.dispatcher.response(
                self.now.mono,
                &mut self.engine,
                client,
                mark.expect("the dispatcher's"),
                &message,
            ),
            _ => None,
        };
        self.drain();
        told
    }

    /// Lets time pass, timers and all.
    fn pass(&mut self, seconds: u64) {
        let until = self.now.mono.plus_secs(seconds);
        for _ in 0..10_000 {
            let next = [self.engine.poll_timeout(), self.dispatcher.poll_timeout()];
            let Some(at) = next.into_iter().flatten().min().filter(|at| *at <= until) else {
                break;
            };
            self.now.mono = at.max(self.now.mono);
            self.engine.handle_timeout(self.now);
            self.drain();
            self.dispatcher
                .handle_timeout(self.now.mono, &mut self.engine);
            self.drain();
        }
        self.now.mono = until;
    }

    fn told(&mut self) -> Option<Failure> {
        let told = self.dispatcher.poll_failure();
        assert!(told.is_none_or(|told| told.mark == Mark(77)));
        told.map(|DispatchFailure { failure, .. }| failure)
    }

    fn is_empty(&self) -> bool {
        let (engine, stats) = (self.engine.stats(), self.dispatcher.stats());
        (engine.clients, stats.alive, stats.queries) == (0, 0, 0)
    }
}

#[test]
fn a_request_finds_its_server_by_naptr_srv_and_address_rfc3263_4() {
    let mut world = World::new();
    world.send("OPTIONS", "sip:example.org");
    assert!(world.sent.is_empty());
    world.resolve();
    assert_eq!(world.last().to, ([192, 0, 2, 10], 5070).into());
    assert_eq!(world.respond(200, ""), Some(Mark(77)));
    assert_eq!(world.told(), None);
    world.pass(10);
    assert!(world.is_empty());
    // The next one needs no question.
    world.send("OPTIONS", "sip:example.org");
    assert_eq!(world.dispatcher.poll_query(), None);
    assert_eq!(world.sent.len(), 2);
}

#[test]
fn a_503_leads_to_the_next_server_with_another_branch_rfc3263_4_3() {
    let mut world = World::new();
    world.send("REGISTER", "sip:example.org");
    world.resolve();
    let first = world.last().branch().to_owned();
    assert_eq!(
        world.respond(503, "Retry-After: 60\r\n"),
        None,
        "the TU hears nothing of it"
    );
    assert_eq!(world.last().to, ([192, 0, 2, 20], 5070).into());
    assert_ne!(world.last().branch(), first);
    assert_eq!(world.respond(200, ""), Some(Mark(77)));
    assert_eq!(world.dispatcher.stats().failed_over, 1);
    // The first one is left alone for a minute.
    world.send("REGISTER", "sip:example.org");
    assert_eq!(world.last().to, ([192, 0, 2, 20], 5070).into());
    assert_eq!(world.respond(200, ""), Some(Mark(77)));
    world.pass(61);
    world.send("REGISTER", "sip:example.org");
    assert_eq!(world.last().to, ([192, 0, 2, 10], 5070).into());
}

#[test]
fn the_only_server_is_left_alone_as_long_as_it_asks_rfc3261_21_5_4() {
    let mut world = World::new();
    world.send("REGISTER", "sip:192.0.2.10");
    assert_eq!(
        world.respond(503, "Retry-After: 60\r\n"),
        Some(Mark(77)),
        "there is no other"
    );
    world.pass(59);
    let sent = world.sent.len();
    world.send("REGISTER", "sip:192.0.2.10");
    assert_eq!(world.told(), Some(Failure::AskedToWait));
    assert_eq!(world.sent.len(), sent);
    // What belongs to a dialog is sent all the same, and its answer ends nothing.
    world.class = Class::Finishing;
    world.send("BYE", "sip:192.0.2.10");
    assert_eq!(world.respond(200, ""), Some(Mark(77)));
    world.class = Class::New;
    world.send("REGISTER", "sip:192.0.2.10");
    assert_eq!(world.told(), Some(Failure::AskedToWait));
    world.pass(2);
    world.send("REGISTER", "sip:192.0.2.10");
    assert_eq!(world.respond(200, ""), Some(Mark(77)));
}

#[test]
fn the_503_of_the_last_server_is_for_the_tu() {
    let mut world = World::new();
    world.send("OPTIONS", "sip:example.org");
    world.resolve();
    assert_eq!(world.respond(503, ""), None);
    assert_eq!(world.respond(503, ""), Some(Mark(77)));
    assert_eq!(world.told(), None);
}

#[test]
fn a_server_that_cannot_be_reached_or_is_silent_is_passed_over_rfc3263_4_3() {
    let mut world = World::new();
    world.send("OPTIONS", "sip:example.org");
    world.resolve();
    let origin = world.last().origin;
    // An ICMP error, says the embedder.
    world.engine.send_failed(world.now.mono, origin);
    world.drain();
    assert_eq!(world.last().to, ([192, 0, 2, 20], 5070).into());
    let second = world.last().text.clone();
    world.pass(33);
    assert_eq!(world.told(), Some(Failure::TimedOut));
    assert_eq!(world.respond_to(&second, 200, ""), None, "too late");
    assert!(world.is_empty());

    let mut world = World::new();
    world.send("INVITE", "sip:example.org");
    world.resolve();
    world.pass(33);
    assert_eq!(world.last().to, ([192, 0, 2, 20], 5070).into(), "timer B");
    world.pass(33);
    assert_eq!(world.told(), Some(Failure::TimedOut));
    assert!(world.is_empty());
}

#[test]
fn a_throttled_request_goes_to_the_next_server_or_fails_rfc7339_5_10() {
    let mut world = World::of(true, |_| {});
    world.send("OPTIONS", "sip:example.org");
    world.resolve();
    let (offer, report) = (
        ";oc;oc-algo=\"loss,rate\"",
        ";oc=100;oc-algo=\"loss\";oc-validity=500",
    );
    let asked = world.last().text.replace(offer, report);
    assert!(asked.contains(report), "{asked}");
    assert_eq!(world.respond_to(&asked, 200, ""), Some(Mark(77)));
    world.send("OPTIONS", "sip:example.org");
    assert_eq!(world.last().to, ([192, 0, 2, 20], 5070).into());
    let sent = world.sent.len();
    world.send("OPTIONS", "sip:192.0.2.10:5070");
    let held_back = Failure::Refused(RequestError::HeldBack);
    assert_eq!(world.told(), Some(held_back));
    assert_eq!(world.sent.len(), sent);
    world.pass(1);
    world.send("OPTIONS", "sip:192.0.2.10:5070");
    assert_eq!(world.last().to, ([192, 0, 2, 10], 5070).into());
}

#[test]
fn a_silent_server_is_the_reason_although_the_next_one_is_throttled_rfc7339_5_10() {
    let mut world = World::of(true, |_| {});
    // The second server asks for no requests at all.
    world.send("OPTIONS", "sip:192.0.2.20:5070");
    let (offer, report) = (
        ";oc;oc-algo=\"loss,rate\"",
        ";oc=100;oc-algo=\"loss\";oc-validity=500000",
    );
    let asked = world.last().text.replace(offer, report);
    assert!(asked.contains(report), "{asked}");
    assert_eq!(world.respond_to(&asked, 200, ""), Some(Mark(77)));
    world.send("OPTIONS", "sip:example.org");
    world.resolve();
    assert_eq!(world.last().to, ([192, 0, 2, 10], 5070).into());
    world.pass(33);
    assert_eq!(world.told(), Some(Failure::TimedOut));
    assert!(world.is_empty());
}

#[test]
fn a_server_that_handles_the_request_is_not_skipped_rfc3263_4_3() {
    let mut world = World::new();
    world.send("OPTIONS", "sip:example.org");
    world.resolve();
    assert_eq!(world.respond(100, ""), Some(Mark(77)));
    world.pass(33);
    assert_eq!(world.told(), Some(Failure::TimedOut));
    assert!(
        world
            .sent
            .iter()
            .all(|sent| sent.to == ([192, 0, 2, 10], 5070).into())
    );
}

#[test]
fn every_2xx_of_an_invite_is_for_the_tu_until_its_transaction_ends() {
    let mut world = World::new();
    world.send("INVITE", "sip:example.org");
    world.resolve();
    let invite = world.last().text.clone();
    for code in [180, 200, 200] {
        assert_eq!(world.respond_to(&invite, code, ""), Some(Mark(77)));
    }
    world.pass(33);
    assert_eq!(world.respond_to(&invite, 200, ""), None);
    assert!(world.is_empty());
    assert_eq!(world.told(), None);
}

#[test]
fn a_request_with_a_target_of_the_caller_goes_only_to_the_caller() {
    let near = AllowedDestination::Near([192, 0, 2, 20].into());
    let mut world = World::new();
    world
        .order("BYE", "sip:example.org", near, 0)
        .expect("it is looked up");
    world.resolve();
    assert_eq!(world.sent.len(), 1);
    assert_eq!(world.last().to, ([192, 0, 2, 20], 5070).into());
    world
        .order("BYE", "sip:203.0.113.5", near, 0)
        .expect("an address");
    world
        .order("BYE", "sip:[2001:db8::1]", AllowedDestination::Anywhere, 0)
        .expect("an address");
    for _ in 0..2 {
        assert_eq!(world.told(), Some(Failure::Forbidden));
    }
    assert_eq!(
        (world.sent.len(), world.dispatcher.stats().forbidden),
        (1, 2)
    );

    let mut world = World::with(|config| {
        config.allowed = Box::new(|to, _| to == ([203, 0, 113, 5], 5060).into());
    });
    world
        .order("BYE", "sip:203.0.113.5", near, 0)
        .expect("an address");
    assert_eq!(world.last().to, ([203, 0, 113, 5], 5060).into());
}

#[test]
fn many_requests_share_a_dns_query_and_all_fail_without_a_response() {
    let mut world = World::with(|config| config.max_queries = 2);
    for _ in 0..5 {
        world.send("OPTIONS", "sip:a.example:5060");
    }
    world.send("OPTIONS", "sip:b.example:5060");
    world.send("OPTIONS", "sip:c.example:5060");
    assert_eq!(world.told(), Some(Failure::TooManyQueries));
    let query = world.dispatcher.poll_query().expect("one");
    world.answer(query, Err(DnsFailed));
    for _ in 0..5 {
        assert_eq!(world.told(), Some(Failure::NoDns));
    }
    // Nobody answers the other one.
    assert_eq!(world.told(), None);
    world.pass(16);
    assert_eq!(world.told(), Some(Failure::NoDns));
    let nothing = Query::Addresses(name("d.example"));
    world.send("OPTIONS", "sip:d.example:5060");
    world.answer(nothing, Ok(DnsRecords::Addresses(Vec::new())));
    assert_eq!(world.told(), Some(Failure::Nowhere));
    assert!(world.is_empty());
}

#[test]
fn unroutable_and_excess_requests_are_refused_at_once() {
    let mut world = World::with(|config| config.most = 1);
    let refused = world.order("OPTIONS", "tel:+1", AllowedDestination::Anywhere, 0);
    assert!(matches!(refused, Err(DispatchError::Target(_))));
    world.send("OPTIONS", "sip:example.org");
    let refused = world.order(
        "OPTIONS",
        "sip:example.org",
        AllowedDestination::Anywhere,
        0,
    );
    assert_eq!(refused, Err(DispatchError::Full));
}

#[test]
fn a_long_request_goes_over_tcp_and_over_udp_where_there_is_none_rfc3261_18_1_1() {
    let mut world = World::new();
    let uri = "sip:192.0.2.10:5070";
    world
        .order("OPTIONS", uri, AllowedDestination::Anywhere, 1400)
        .expect("an address");
    let connect = world.connects.pop().expect("a connection is asked for");
    let flow = Flow {
        transport: Transport::Tcp,
        listener: ListenerKey(0),
        connection: Some(ConnectionKey(3)),
        local: ([192, 0, 2, 1], 40_000).into(),
        remote: ([192, 0, 2, 10], 5070).into(),
    };
    world.engine.connected(world.now.mono, connect, &flow);
    world.drain();
    assert!(world.last().text.contains("Via: SIP/2.0/TCP"));
    // The connection is used again.
    world
        .order("OPTIONS", uri, AllowedDestination::Anywhere, 1400)
        .expect("an address");
    assert_eq!((world.sent.len(), world.connects.len()), (2, 0));

    let mut world = World::new();
    world
        .order("OPTIONS", uri, AllowedDestination::Anywhere, 1400)
        .expect("an address");
    let connect = world.connects.pop().expect("a connection is asked for");
    world.engine.connect_failed(world.now.mono, connect);
    world.drain();
    assert!(world.last().text.contains("Via: SIP/2.0/UDP"));
    assert_eq!(world.last().to, ([192, 0, 2, 10], 5070).into());
    assert_eq!(world.respond(200, ""), Some(Mark(77)));
}

#[test]
fn a_call_is_cancelled_before_and_after_it_is_sent() {
    let mut world = World::new();
    let key = world.send("INVITE", "sip:example.org");
    world
        .dispatcher
        .cancel(world.now.mono, &mut world.engine, key);
    assert_eq!(world.told(), Some(Failure::Cancelled));
    world.resolve();
    assert!(world.sent.is_empty());

    let key = world.send("INVITE", "sip:example.org");
    world.resolve();
    let invite = world.last().text.clone();
    assert_eq!(world.respond_to(&invite, 180, ""), Some(Mark(77)));
    world
        .dispatcher
        .cancel(world.now.mono, &mut world.engine, key);
    world.drain();
    assert!(world.last().text.starts_with("CANCEL "));
    assert_eq!(
        world.respond_to(&invite, 487, ""),
        Some(Mark(77)),
        "and nobody else is called"
    );
    world.pass(40);
    assert!(world.is_empty());
}
