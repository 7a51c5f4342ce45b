//! Calls beyond what a worker can serve, in virtual time: the engine, a queue in front of it, and callers that repeat what
//! is not answered.
//!
//! Costs are those of a processor ten times slower than ours, so that the test is ten times faster.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hairpin_sip::congestion::Backlog;
use hairpin_sip::engine::{Engine, Output, Received, Reply};
use hairpin_sip::flow::{Carrier, Flow, ListenerKey};
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

/// Where the sieve is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sieve {
    /// Before the queue, at the kernel's expense.
    Kernel,
    /// The first look at what was received.
    Worker,
}

struct Sim {
    engine: Engine,
    sieve: Sieve,
    now: u64,
    queue: VecDeque<(u64, Vec<u8>)>,
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
}

impl Sim {
    fn new(enabled: bool) -> Sim {
        let mut config = config(1);
        config.congestion.enabled = enabled;
        config.congestion.rejection_cost = Duration::from_nanos(REFUSE);
        Sim {
            engine: Engine::new(config, 3),
            sieve: Sieve::Kernel,
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
        if self.sieve == Sieve::Kernel && self.holds_back(&message) {
            // Nothing of it is seen.
        } else if self.queue.len() < BUFFER {
            self.queue.push_back((at, message));
        } else {
            self.lost += 1;
        }
    }

    fn holds_back(&mut self, message: &[u8]) -> bool {
        self.engine.holds_back(address(0).ip(), message)
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
            self.answered(&code, call, invite, tag);
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
            fill_percent: (self.queue.len() * 100 / BUFFER) as u8,
            lost: std::mem::take(&mut self.lost),
        };
        self.engine.handle_timeout(self.time());
        self.engine.observe_backlog(self.time(), backlog);
        let begun = self.now;
        let mut served = 0;
        let mut refused = 0;
        for _ in 0..16 {
            let Some((arrived, bytes)) = self.queue.pop_front() else {
                break;
            };
            if self.sieve == Sieve::Worker && self.holds_back(&bytes) {
                self.now += RECEIVE;
                refused += RECEIVE;
                continue;
            }
            let cost = self.handle(&bytes);
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
            }
            self.drain();
        }
        let busy = self.now - begun - refused;
        self.engine
            .observe_service(served, Duration::from_nanos(busy));
        self.drain();
    }

    fn handle(&mut self, bytes: &[u8]) -> u64 {
        let mut spans = Spans::new();
        let flow = Flow {
            carrier: Carrier::Udp,
            listener: ListenerKey(0),
            connection: None,
            local: address(1),
            remote: address(0),
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
                self.now = self.now.max(next.min(event).min(timer));
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
    fn sieved_share(&self) -> f64 {
        match self.sieve {
            Sieve::Kernel => 0.0,
            Sieve::Worker => (self.engine.stats().shed.held_back * RECEIVE) as f64 / LOAD as f64,
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

    /// The share of the calls begun in the second and the third second after the load fell that were answered within 200 ms.
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
    for (sieve, factor) in [
        (Sieve::Kernel, 2.0),
        (Sieve::Kernel, 5.0),
        (Sieve::Kernel, 10.0),
        (Sieve::Worker, 2.0),
        (Sieve::Worker, 5.0),
        (Sieve::Worker, 10.0),
    ] {
        let mut sim = Sim::new(true);
        sim.sieve = sieve;
        sim.run(factor);
        let goodput = sim.goodput();
        let p99 = sim.p99();
        let what = format!(
            "{factor}x, {sieve:?}: goodput {goodput:.3}, p99 {p99:?}, {:?}",
            sim.engine.stats().shed
        );
        assert!(goodput >= 0.9 - sim.sieved_share(), "{what}");
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
fn without_congestion_control_calls_collapse() {
    let mut sim = Sim::new(false);
    sim.run(5.0);
    let goodput = sim.goodput();
    assert!(goodput < 0.6, "{goodput:.3}");
}
