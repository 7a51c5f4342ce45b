//! Calls beyond what a worker can serve, in virtual time: the engine, a queue in front of it, and callers that repeat
//! what is not answered.
//!
//! Costs are those of a processor ten times slower than ours, so that the test is ten times faster.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hairpin_sip::congestion::Backlog;
use hairpin_sip::engine::{Engine, Output, Received, Reply};
use hairpin_sip::flow::{Flow, ListenerKey, Transport};
use hairpin_sip::verdict::Rules;
use hairpin_sip::{Method, Mono, Now, Spans};

use crate::world::{address, config, request, text};

const US: u64 = 1_000;
const SECOND: u64 = 1_000_000_000;
const RECEIVE: u64 = 5 * US;
const REFUSE: u64 = 15 * US;
/// What the TU and the transaction take.
const INVITE: u64 = 500 * US;
const BYE: u64 = 200 * US;
const ACK: u64 = 50 * US;
/// A call, in all.
const CALL: u64 = INVITE + BYE + ACK + 3 * RECEIVE;
const BUFFER: usize = 2_000;
/// The load lasts so long; the first second is not counted.
const LOAD: u64 = 5 * SECOND;

#[derive(Clone, Copy, PartialEq)]
enum Call {
    Inviting(u32),
    Talking,
    Ending(u32),
    Over,
}

/// Where the admission filter is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// Before the queue, at the kernel's expense.
    Kernel,
    /// The first look at what was received.
    Worker,
}

struct Sim {
    engine: Engine,
    filter: Place,
    now: u64,
    /// When each came, from which node.
    queue: VecDeque<(u64, usize, Vec<u8>)>,
    lost: u64,
    calls: Vec<Call>,
    tags: Vec<String>,
    /// When which caller does something next.
    events: BTreeMap<(u64, usize), ()>,
    completed: u64,
    waits: Vec<u64>,
    /// When each call began, and how long those that were answered took from then on.
    begun: Vec<u64>,
    answered_after: Vec<Option<u64>>,
    /// When a wait was last above a tenth of the tolerance.
    slow_at: u64,
    /// Requests of this method come from elsewhere as well, for dialogs that nobody has, so often; and when the next
    /// one does.
    flood: (&'static str, u64),
    flood_at: u64,
    flooded: u32,
}

impl Sim {
    fn new(enabled: bool) -> Sim {
        let mut config = config(1);
        config.congestion.enabled = enabled;
        config.rules = Rules::USER_AGENT;
        Sim {
            engine: Engine::new(config, 3),
            filter: Place::Kernel,
            now: SECOND,
            queue: VecDeque::new(),
            lost: 0,
            calls: Vec::new(),
            tags: Vec::new(),
            events: BTreeMap::new(),
            completed: 0,
            waits: Vec::new(),
            begun: Vec::new(),
            answered_after: Vec::new(),
            slow_at: 0,
            flood: ("", 0),
            flood_at: u64::MAX,
            flooded: 0,
        }
    }

    fn message(&self, method: &str, call: usize) -> Vec<u8> {
        let via = format!("Via: SIP/2.0/UDP c.example;branch=z9hG4bK{method}{call};rport\r\n");
        let message = text(&request(method, call as u32, &via));
        let to = format!("To: <sip:bob@192.0.2.2>{}\r\n", self.tags[call]);
        message
            .replacen("To: <sip:bob@192.0.2.2>\r\n", &to, 1)
            .into_bytes()
    }

    fn send(&mut self, at: u64, method: &str, call: usize) {
        let message = self.message(method, call);
        let from = self.caller_node(call);
        if self.filter == Place::Kernel && self.filters_out(from, &message) {
            // Nothing of it is seen.
        } else if self.queue.len() < BUFFER {
            self.queue.push_back((at, from, message));
        } else {
            self.lost += 1;
        }
    }

    /// Callers have one address, or twenty where somebody else floods.
    fn caller_node(&self, call: usize) -> usize {
        match self.flood.1 {
            0 => 0,
            _ => 10 + call % 20,
        }
    }

    fn filters_out(&mut self, from: usize, message: &[u8]) -> bool {
        self.engine.filters_out(address(from).ip(), message)
    }

    /// A caller's timer: it repeats what is not answered, and hangs up.
    fn caller(&mut self, at: u64, call: usize) {
        match self.calls[call] {
            Call::Inviting(sent) if sent < 7 => {
                self.send(at, "INVITE", call);
                self.calls[call] = Call::Inviting(sent + 1);
                self.events.insert((at + ((SECOND / 2) << sent), call), ());
            }
            Call::Ending(sent) if sent < 11 => {
                self.send(at, "BYE", call);
                self.calls[call] = Call::Ending(sent + 1);
                let interval = ((SECOND / 2) << sent.min(3)).min(4 * SECOND);
                self.events.insert((at + interval, call), ());
            }
            Call::Talking => {
                self.calls[call] = Call::Ending(0);
                self.caller(at, call);
            }
            _ => self.calls[call] = Call::Over,
        }
    }

    fn answered(&mut self, code: &str, call: usize, invite: bool, tag: String) {
        match (self.calls[call], invite) {
            (Call::Inviting(_), true) if code == "200" => {
                self.tags[call] = tag;
                self.calls[call] = Call::Talking;
                self.answered_after[call] = Some(self.now - self.begun[call]);
                self.send(self.now, "ACK", call);
                self.events.insert((self.now + SECOND / 10, call), ());
            }
            (Call::Talking | Call::Ending(_), true) if code == "200" => {
                self.send(self.now, "ACK", call);
            }
            (Call::Inviting(_), true) if code != "100" => self.calls[call] = Call::Over,
            (Call::Ending(_), false) => {
                self.calls[call] = Call::Over;
                self.completed += u64::from((2 * SECOND..SECOND + LOAD).contains(&self.now));
            }
            _ => {}
        }
    }

    fn drain(&mut self) {
        let mut answers = Vec::new();
        while let Some(output) = self.engine.poll_output() {
            if let Output::Send { bytes, .. } = output {
                let message = text(bytes);
                let code = message[8..11].to_owned();
                let call = message.split("CSeq: ").nth(1).unwrap();
                let (number, rest) = call.split_once(' ').unwrap();
                let tag = message.split("192.0.2.2>").nth(1).unwrap();
                let tag = tag.split('\r').next().unwrap().to_owned();
                answers.push((
                    code,
                    number.parse().unwrap(),
                    rest.starts_with("INVITE"),
                    tag,
                ));
            }
        }
        for (code, call, invite, tag) in answers {
            if call < self.calls.len() {
                self.answered(&code, call, invite, tag);
            }
        }
    }

    fn time(&self) -> Now {
        Now {
            mono: Mono(self.now),
            unix_s: 1,
        }
    }

    /// One batch of the worker.
    fn turn(&mut self) {
        let backlog = Backlog {
            messages: self.queue.len() as u64,
            lost: std::mem::take(&mut self.lost),
            ..Backlog::default()
        };
        self.engine.handle_timeout(self.time());
        self.engine.observe_backlog(self.time(), backlog);
        let begun = self.now;
        let mut served = 0;
        let (mut refused, mut refusals) = (0, 0);
        for _ in 0..16 {
            let Some((arrived, from, bytes)) = self.queue.pop_front() else {
                break;
            };
            if self.filter == Place::Worker && self.filters_out(from, &bytes) {
                self.now += RECEIVE;
                refused += RECEIVE;
                continue;
            }
            let cost = self.handle(from, &bytes);
            self.now += RECEIVE + cost;
            if cost >= ACK {
                served += 1;
                let wait = self.now - arrived;
                if self.now < SECOND + LOAD {
                    self.waits.push(wait);
                } else if wait > SECOND / 50 {
                    self.slow_at = self.now;
                }
            } else {
                refused += RECEIVE + cost;
                refusals += u32::from(cost == REFUSE);
            }
            self.drain();
        }
        let busy = self.now - begun - refused;
        let engine = &mut self.engine;
        engine.observe_service(served, Duration::from_nanos(busy));
        let refusing = (RECEIVE + REFUSE) * u64::from(refusals);
        engine.observe_refusals(refusals, Duration::from_nanos(refusing));
        engine.observe_spare(Duration::from_nanos(refused));
        self.drain();
    }

    /// A request of the flood, with a To tag or credentials of its own making.
    fn flood_one(&mut self) {
        let (method, per_second) = self.flood;
        self.flooded += 1;
        let via = format!(
            "Via: SIP/2.0/UDP f.example;branch=z9hG4bKflood{};rport\r\n",
            self.flooded
        );
        let (place, made_up) = match method {
            "BYE" => ("192.0.2.2>\r\n", "192.0.2.2>;tag=made-up\r\n"),
            "REGISTER" => (
                "Max-Forwards",
                "Authorization: Digest nonce=\"0\"\r\nMax-Forwards",
            ),
            _ => ("", ""),
        };
        let message = text(&request(method, 1_000_000 + self.flooded, &via));
        let message = message.replacen(place, made_up, 1);
        if self.queue.len() < BUFFER {
            let message = message.into_bytes();
            self.queue.push_back((self.flood_at, 6, message));
        } else {
            self.lost += 1;
        }
        self.flood_at += SECOND / per_second;
    }

    fn handle(&mut self, from: usize, bytes: &[u8]) -> u64 {
        let mut spans = Spans::new();
        let flow = Flow {
            transport: Transport::Udp,
            listener: ListenerKey(0),
            connection: None,
            local: address(1),
            remote: address(from),
        };
        let now = self.time();
        match self.engine.handle_message(now, &flow, bytes, &mut spans) {
            Received::Request(request) => {
                let invite = request.message.method() == Some(Method::Invite);
                let mut reply = Reply::new(200);
                if invite {
                    reply = reply.until_ack();
                }
                self.engine.answer(now.mono, request, &reply).unwrap();
                if invite { INVITE } else { BYE }
            }
            Received::Ack { .. } => ACK,
            Received::Refused(_) => REFUSE,
            _ => 0,
        }
    }

    /// So many times what can be served, then a tenth of it for three seconds.
    fn run(&mut self, factor: f64) {
        let mut next = SECOND;
        let end = SECOND + LOAD;
        while self.now < end + 3 * SECOND {
            let rate = if next < end { factor } else { 0.1 };
            while next <= self.now {
                self.calls.push(Call::Inviting(0));
                self.tags.push(String::new());
                self.begun.push(next);
                self.answered_after.push(None);
                self.events.insert((next, self.calls.len() - 1), ());
                next += (CALL as f64 / rate) as u64;
            }
            while self.flood_at <= self.now && self.flood_at < end {
                self.flood_one();
            }
            if self.flood_at >= end {
                self.flood_at = u64::MAX;
            }
            while let Some(((at, call), ())) = self.events.first_key_value() {
                let (at, call) = (*at, *call);
                if at > self.now {
                    break;
                }
                self.events.remove(&(at, call));
                self.caller(at, call);
            }
            if self.queue.is_empty() {
                let event = self
                    .events
                    .first_key_value()
                    .map_or(next, |((at, _), ())| *at);
                let timer = self.engine.poll_timeout().map_or(next, |at| at.0);
                let until = next.min(event).min(timer).min(self.flood_at);
                let until = self.now.max(until);
                let slept = Duration::from_nanos(until - self.now);
                self.engine.observe_spare(slept);
                self.now = until;
                self.engine.handle_timeout(self.time());
                self.drain();
            } else {
                self.turn();
            }
        }
    }

    /// Completed calls as a share of what could be served.
    fn goodput(&self) -> f64 {
        self.completed as f64 * CALL as f64 / (LOAD - SECOND) as f64
    }

    /// The part of the time that went into reading what was held back then.
    fn filter_share(&self) -> f64 {
        match self.filter {
            Place::Kernel => 0.0,
            Place::Worker => (self.engine.stats().shed.filtered * RECEIVE) as f64 / LOAD as f64,
        }
    }

    /// Of the waits of what was served, and of the times from a call's first try to its answer, while the load lasted.
    fn p99(&mut self) -> [Duration; 2] {
        let load = 2 * SECOND..SECOND + LOAD;
        let calls = self.begun.iter().zip(&self.answered_after);
        let of_load = calls.filter_map(|(begun, after)| {
            let after = (*after)?;
            (load.contains(begun) && load.contains(&(begun + after))).then_some(after)
        });
        let mut after: Vec<u64> = of_load.collect();
        [&mut self.waits, &mut after].map(|times| {
            times.sort_unstable();
            let place = times.len() * 99 / 100;
            Duration::from_nanos(times.get(place).copied().unwrap_or(0))
        })
    }

    /// The share of the calls begun in the second and the third second after the load fell that were answered within
    /// 200 ms.
    fn recovered(&self) -> f64 {
        let calm = 2 * SECOND + LOAD..3 * SECOND + LOAD + SECOND / 2;
        let calls = self.begun.iter().zip(&self.answered_after);
        let mut of_calm = calls.filter(|(begun, _)| calm.contains(begun));
        let (mut all, mut soon) = (0, 0);
        for (_, after) in &mut of_calm {
            all += 1;
            soon += u32::from(after.is_some_and(|after| after < SECOND / 5));
        }
        f64::from(soon) / f64::from(all)
    }
}

#[test]
fn calls_are_completed_at_two_five_and_ten_times_the_load() {
    for (place, factor) in [
        (Place::Kernel, 2.0),
        (Place::Kernel, 5.0),
        (Place::Kernel, 10.0),
        (Place::Worker, 2.0),
        (Place::Worker, 5.0),
        (Place::Worker, 10.0),
    ] {
        let mut sim = Sim::new(true);
        sim.filter = place;
        sim.run(factor);
        let goodput = sim.goodput();
        let p99 = sim.p99();
        let what = format!(
            "{factor}x, {place:?}: goodput {goodput:.3}, p99 {p99:?}, {:?}",
            sim.engine.stats().shed
        );
        println!("{what}");
        assert!(goodput >= 0.9 - sim.filter_share(), "{what}");
        let recovered = sim.recovered();
        assert!(recovered >= 0.97, "{recovered:.4}, {what}");
        // Also from the first try on: hardly anybody is served who was not at once.
        assert!(
            p99.iter().all(|p99| *p99 < Duration::from_millis(200)),
            "{what}"
        );
    }
}

#[test]
fn floods_of_requests_that_prove_nothing_take_little_of_the_calls() {
    for method in ["BYE", "CANCEL", "REGISTER"] {
        let mut sim = Sim::new(true);
        // Ten for each call that can be served, which they would end if they could.
        sim.flood = (method, 10 * SECOND / CALL);
        sim.flood_at = SECOND;
        sim.run(0.7);
        let goodput = sim.goodput();
        let p99 = sim.p99();
        let what = format!(
            "{method}: goodput {goodput:.3}, p99 {p99:?}, {:?}",
            sim.engine.stats().shed
        );
        println!("{what}");
        assert!(goodput >= 0.9 * 0.7, "{what}");
        assert!(p99[0] < Duration::from_millis(200), "{what}");
    }
}

#[test]
fn without_congestion_control_calls_collapse() {
    let mut sim = Sim::new(false);
    sim.run(5.0);
    let goodput = sim.goodput();
    assert!(goodput < 0.6, "{goodput:.3}");
}
