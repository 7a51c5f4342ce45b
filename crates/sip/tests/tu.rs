//! The seam between transactions and applications: answers come later, once, and their ACKs end where they should.

use hairpin_sip::dispatch::{Config as DispatchConfig, Dispatcher, Failure};
use hairpin_sip::engine::{
    Ack, Config, Engine, Event, Mark, NewRequest, Output, Received, Reply, ServerKey,
};
use hairpin_sip::flow::{Flow, ListenerKey, Transport};
use hairpin_sip::tu::{RequestOwner, TransactionUser, Transactions, dispatch_event};
use hairpin_sip::{HashKey, Message, Mono, Now, Spans};
use std::time::Duration;

const KEY: [u8; 16] = [7; 16];

fn flow() -> Flow {
    Flow {
        transport: Transport::Udp,
        listener: ListenerKey(0),
        connection: None,
        local: ([192, 0, 2, 1], 5060).into(),
        remote: ([192, 0, 2, 2], 5060).into(),
    }
}

fn request(method: &str, branch: &str, to_tag: &str) -> String {
    format!(
        "{method} sip:bob@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.2:5060;branch=z9hG4bK{branch}\r\n\
         From: <sip:a@h>;tag=1\r\nTo: <sip:b@h>{to_tag}\r\nCall-ID: {branch}\r\nCSeq: 1 {method}\r\n\
         Max-Forwards: 70\r\nContact: <sip:a@192.0.2.2>\r\nContent-Length: 0\r\n\r\n"
    )
}

/// Asks a database about each request, and gives up after ten seconds.
#[derive(Default)]
struct Asking {
    waiting: Vec<(ServerKey, Mono)>,
    ended: Vec<Mark>,
    cancelled: usize,
}

impl TransactionUser for Asking {
    type QueryResult = (usize, u16);

    fn request(
        &mut self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
    ) -> RequestOwner {
        if request.message.call_id() == Ok(b"elsewhere") {
            return RequestOwner::Elsewhere(3);
        }
        let mark = Mark::of(2, self.waiting.len() as u64);
        if let Ok(key) = transactions.accept(request, Some(mark)) {
            let until = transactions.now.mono.plus(Duration::from_secs(10));
            self.waiting.push((key, until));
        }
        RequestOwner::Here
    }

    fn ack(&mut self, _: &mut Transactions<'_>, _: &Ack<'_>) -> RequestOwner {
        RequestOwner::Here
    }

    fn cancel(
        &mut self,
        transactions: &mut Transactions<'_>,
        (invite, _): (ServerKey, Option<Mark>),
        _: &Message<'_>,
    ) {
        self.cancelled += 1;
        self.waiting.retain(|(key, _)| *key != invite);
        transactions
            .respond(invite, &Reply::new(487))
            .expect("it waits");
    }

    fn response(&mut self, _: &mut Transactions<'_>, _: Mark, _: (&Message<'_>, &Flow)) {}

    fn failed(&mut self, _: &mut Transactions<'_>, _: Mark, _: Failure) {}

    fn server_ended(&mut self, _: &mut Transactions<'_>, (_, mark): (ServerKey, Mark)) {
        self.ended.push(mark);
    }

    fn answered(&mut self, transactions: &mut Transactions<'_>, (place, code): (usize, u16)) {
        let (key, _) = self.waiting.remove(place);
        transactions
            .respond(key, &Reply::new(code))
            .expect("it waits");
    }

    fn poll_timeout(&self) -> Option<Mono> {
        self.waiting.iter().map(|(_, until)| *until).min()
    }

    fn handle_timeout(&mut self, transactions: &mut Transactions<'_>) {
        let now = transactions.now.mono;
        while let Some(place) = self.waiting.iter().position(|(_, until)| *until <= now) {
            self.answered(transactions, (place, 504));
        }
    }

    fn backlog(&self) -> u64 {
        self.waiting.len() as u64
    }
}

struct World {
    engine: Engine,
    dispatcher: Dispatcher,
    user: Asking,
    now: Now,
    sent: Vec<String>,
}

impl World {
    fn with(change: impl FnOnce(&mut Config)) -> World {
        let key = HashKey::new(KEY);
        let mut config = Config::new(0, key);
        change(&mut config);
        World {
            engine: Engine::new(config, 1),
            dispatcher: Dispatcher::new(DispatchConfig::new(Vec::new()), key, 1),
            user: Asking::default(),
            now: Now::default(),
            sent: Vec::new(),
        }
    }

    fn with_user<T>(&mut self, run: impl FnOnce(&mut Asking, &mut Transactions<'_>) -> T) -> T {
        let mut transactions = Transactions {
            now: self.now,
            engine: &mut self.engine,
            dispatcher: &mut self.dispatcher,
            owner_of: |_| 0,
        };
        let result = run(&mut self.user, &mut transactions);
        self.drain();
        result
    }

    fn drain(&mut self) {
        let mut events: Vec<Event> = Vec::new();
        while let Some(output) = self.engine.poll_output() {
            match output {
                Output::Send { bytes, .. } => {
                    self.sent.push(String::from_utf8_lossy(bytes).into_owned());
                }
                Output::Event(event) => events.push(event),
                other => panic!("{other:?}"),
            }
        }
        for event in events {
            self.with_user(|user, transactions| dispatch_event(user, transactions, &event));
        }
    }

    /// What becomes of a message.
    fn receive(&mut self, text: &str) -> Option<RequestOwner> {
        let mut spans = Spans::new();
        let received = self
            .engine
            .handle_message(self.now, &flow(), text.as_bytes(), &mut spans);
        let taken = match received {
            Received::Request(request) => {
                let mut transactions = Transactions {
                    now: self.now,
                    engine: &mut self.engine,
                    dispatcher: &mut self.dispatcher,
                    owner_of: |_| 0,
                };
                Some(self.user.request(&mut transactions, request))
            }
            Received::Cancel {
                invite,
                mark,
                message,
            } => {
                let mut transactions = Transactions {
                    now: self.now,
                    engine: &mut self.engine,
                    dispatcher: &mut self.dispatcher,
                    owner_of: |_| 0,
                };
                self.user
                    .cancel(&mut transactions, (invite, mark), &message);
                None
            }
            Received::Ack(ack) => panic!("a stray ACK: {ack:?}"),
            _ => None,
        };
        self.drain();
        taken
    }

    fn pass(&mut self, seconds: u64) {
        self.now.mono = self.now.mono.plus(Duration::from_secs(seconds));
        while self
            .engine
            .poll_timeout()
            .is_some_and(|at| at <= self.now.mono)
        {
            self.engine.handle_timeout(self.now);
            self.drain();
        }
        self.with_user(|user, transactions| user.handle_timeout(transactions));
    }

    fn codes(&mut self) -> Vec<u16> {
        let sent = std::mem::take(&mut self.sent);
        let code = |text: &String| text.split(' ').nth(1).and_then(|code| code.parse().ok());
        sent.iter().filter_map(code).collect()
    }
}

/// The line of To in a response.
fn to_tag(response: &str) -> String {
    let to = response.lines().find(|line| line.starts_with("To: "));
    to.expect("a To")
        .trim_start_matches("To: <sip:b@h>")
        .to_owned()
}

#[test]
fn an_answer_may_come_later_from_elsewhere_or_by_a_timer_of_the_user() {
    let mut world = World::with(|_| {});
    assert_eq!(
        world.receive(&request("OPTIONS", "1", "")),
        Some(RequestOwner::Here)
    );
    assert_eq!(
        world.receive(&request("OPTIONS", "2", "")),
        Some(RequestOwner::Here)
    );
    assert_eq!(world.receive(&request("OPTIONS", "1", "")), None, "again");
    assert_eq!((world.codes(), world.user.backlog()), (vec![], 2));
    world.with_user(|user, transactions| user.answered(transactions, (0, 200)));
    assert_eq!(world.codes(), [200]);
    world.pass(10);
    assert_eq!(
        (world.codes().last(), world.user.backlog()),
        (Some(&504), 0)
    );
    world.pass(64);
    assert_eq!(world.user.ended.len(), 2, "{:?}", world.user.ended);
    assert!(world.user.ended.iter().all(|mark| mark.user() == 2));
}

#[test]
fn a_cancel_ends_what_waits_and_elsewhere_keeps_nothing() {
    let mut world = World::with(|_| {});
    let elsewhere = world.receive(&request("INVITE", "elsewhere", ""));
    assert_eq!(elsewhere, Some(RequestOwner::Elsewhere(3)));
    assert_eq!(world.engine.stats().servers, 0);
    world.receive(&request("INVITE", "1", ""));
    world.receive(&request("CANCEL", "1", ""));
    assert_eq!((world.codes(), world.user.cancelled), (vec![200, 487], 1));
}

#[test]
fn without_room_the_engine_answers_itself_and_absorbs_the_ack_rfc3261_8_2_7() {
    let mut world = World::with(|config| config.most_servers = 1);
    world.receive(&request("INVITE", "1", ""));
    world.receive(&request("INVITE", "2", ""));
    let refusal = world.sent.pop().expect("an answer");
    assert!(refusal.starts_with("SIP/2.0 503 "), "{refusal}");
    assert!(refusal.contains("\r\nRetry-After: 1\r\n"), "{refusal}");
    assert_eq!(world.engine.stats().without_room, 1);
    // Its ACK ends here; one with another tag would be the user's, as that of a 2xx.
    let ack = request("ACK", "2", &to_tag(&refusal));
    assert_eq!(world.receive(&ack), None);
    assert_eq!(world.engine.stats().acks, 1);
    let mut spans = Spans::new();
    let other = request("ACK", "3", &to_tag(&refusal));
    let received = world
        .engine
        .handle_message(world.now, &flow(), other.as_bytes(), &mut spans);
    assert!(matches!(received, Received::Ack(Ack { invite: None, .. })));
}

#[test]
fn the_ack_to_a_refusal_for_its_form_is_absorbed_as_well() {
    let mut world = World::with(|_| {});
    let invite = request("INVITE", "1", "").replace("1 INVITE", "1 BYE");
    world.receive(&invite);
    let refusal = world.sent.pop().expect("an answer");
    assert!(refusal.starts_with("SIP/2.0 400 "), "{refusal}");
    assert_eq!(world.receive(&request("ACK", "1", &to_tag(&refusal))), None);
    assert_eq!(world.engine.stats().acks, 1);
}
