//! A worker in virtual time: clients, a filter, a queue, and admission control. The clients retransmit without a
//! response (RFC 3261 §17.1.2: T1 = 500 ms, T2 = 4 s, Timer F = 32 s). A 503 ends a request.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use super::*;
use crate::{HashKey, Mono};

mod scenarios;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const BATCH: usize = 16;
/// How long the load lasts. The first second is not counted.
const LOAD: u64 = 4 * SECOND;
/// How long half of the capacity is offered after the load.
const CALM: u64 = 3 * SECOND;

/// What a request costs.
#[derive(Clone, Copy, Debug)]
struct Costs {
    /// To read it; part of the next two.
    receive: u64,
    serve: u64,
    refuse: u64,
    /// For the filter to drop it, if the worker pays for that.
    filter: u64,
    /// For the kernel to receive it, if the worker's processor does that.
    arrive: u64,
    /// Requests that the socket's buffer holds.
    buffer: usize,
}

impl Costs {
    fn of(&self, admission: Admission, step: Step) -> u64 {
        match admission {
            Admission::Accept if step == Step::AckOfRefusal => self.receive,
            Admission::Accept => self.serve,
            Admission::Refuse { .. } => self.refuse,
            Admission::Drop => self.receive,
        }
    }
}

/// Requests of 100 us; a filter in the kernel, on another processor.
const WORK: Costs = Costs {
    receive: US,
    serve: 100 * US,
    refuse: 4 * US,
    filter: 0,
    arrive: 0,
    buffer: 4_000,
};
/// Requests that cost nothing but SIP, of a processor ten times slower than ours, so that the test is ten times faster.
const CHEAP: Costs = Costs {
    receive: 6 * US,
    serve: 30 * US,
    refuse: 15 * US,
    filter: 0,
    arrive: 0,
    buffer: 20_000,
};

/// Messages of a call through a proxy. A request that is no call has the first one only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Request,
    Ringing,
    Answer,
    Ack,
    Bye,
    ByeAnswer,
    /// The ACK to a 503.
    AckOfRefusal,
}

/// Messages of a call that is accepted.
const CALL_MESSAGES: u64 = 6;

/// A request.
struct Request {
    begun: u64,
    source: IpAddr,
    is_over: bool,
}

/// Senders, and their offered load as a multiple of the capacity.
#[derive(Clone, Copy)]
struct Group {
    factor: f64,
    source: fn(usize) -> IpAddr,
}

/// What became of the requests of a group while the load lasted.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    begun: u64,
    served: u64,
    refused: u64,
}

struct World {
    controller: Controller,
    costs: Costs,
    /// Of the requests of each group; that of a group that is not here is [`Class::New`].
    classes: Vec<Class>,
    now: u64,
    queue: VecDeque<(u64, usize, Step)>,
    /// The requests are calls through a proxy.
    calls: bool,
    /// Time that the kernel has used to receive since the last batch.
    stolen: u64,
    /// The time of ACKs for 503s that is not reported yet.
    refusing: u64,
    lost: u64,
    requests: Vec<Request>,
    groups: Vec<u8>,
    outcomes: Vec<Outcome>,
    /// When which request comes next, for which time.
    next: BinaryHeap<Reverse<(u64, usize, u32, Step)>>,
    /// Of what was served under load: in the queue, and since the first try.
    waits: Vec<u64>,
    since_first: Vec<u64>,
    /// Of what was begun a second after the load has fallen or later: all, and those served within 200 ms.
    calm: (u64, u64),
    /// Dropped by the filter under load, and all that was in the end answered by nobody.
    filtered: u64,
    /// Requests of calls that had begun and were refused or dropped.
    failed: u64,
}

impl World {
    fn new(costs: Costs, config: Config) -> World {
        World {
            controller: Controller::new(config, HashKey::new([4; 16])),
            costs,
            classes: Vec::new(),
            now: SECOND,
            queue: VecDeque::new(),
            calls: false,
            stolen: 0,
            refusing: 0,
            lost: 0,
            requests: Vec::new(),
            groups: Vec::new(),
            outcomes: Vec::new(),
            next: BinaryHeap::new(),
            waits: Vec::new(),
            since_first: Vec::new(),
            calm: (0, 0),
            filtered: 0,
            failed: 0,
        }
    }

    fn class(&self, number: usize) -> Class {
        let group = usize::from(self.groups[number]);
        self.classes.get(group).copied().unwrap_or(Class::New)
    }

    fn message(&self, number: usize) -> Vec<u8> {
        let (start, field) = match self.class(number) {
            Class::Priority => ("INVITE urn:service:sos", ""),
            Class::Continuing => ("OPTIONS sip:b@192.0.2.2", "Authorization: Digest x\r\n"),
            _ => ("OPTIONS sip:b@192.0.2.2", ""),
        };
        format!(
            "{start} SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK{number};rport\r\n{field}\
             From: <sip:a@192.0.2.1>;tag=f{number}\r\nTo: <sip:b@192.0.2.2>\r\nCall-ID: {number}@192.0.2.1\r\nCSeq: 1 X\r\n\r\n"
        )
        .into_bytes()
    }

    fn is_measured(at: u64) -> bool {
        (2 * SECOND..SECOND + LOAD).contains(&at)
    }

    /// A request is sent for the `tries`th time.
    fn send(&mut self, at: u64, number: usize, tries: u32) {
        let request = &self.requests[number];
        if request.is_over {
            return;
        }
        if tries < 10 {
            let interval = (SECOND / 2) << tries.min(3);
            self.next
                .push(Reverse((at + interval, number, tries + 1, Step::Request)));
        }
        let source = request.source;
        let message = self.message(number);
        self.receive();
        if self.controller.filters_out(source, &message) {
            self.filtered += u64::from(World::is_measured(at));
            self.now += self.costs.filter;
        } else if self.queue.len() < self.costs.buffer {
            self.queue.push_back((at, number, Step::Request));
        } else {
            self.lost += 1;
        }
    }

    fn receive(&mut self) {
        self.now += self.costs.arrive;
        self.stolen += self.costs.arrive;
    }

    /// Another message of a call arrives.
    fn arrive(&mut self, at: u64, number: usize, step: Step) {
        self.receive();
        match self.queue.len() < self.costs.buffer {
            true => self.queue.push_back((at, number, step)),
            false => self.lost += 1,
        }
    }

    /// The next message of a call comes a millisecond later.
    fn follow(&mut self, number: usize, step: Step) {
        self.next.push(Reverse((self.now + MS, number, 0, step)));
    }

    /// A message of a call that has begun was handled.
    fn go_on(&mut self, number: usize, step: Step) {
        match step {
            Step::Request => {
                self.follow(number, Step::Ringing);
                self.follow(number, Step::Answer);
            }
            Step::Answer => {
                self.follow(number, Step::Ack);
                self.follow(number, Step::Bye);
                let took = self.now - self.requests[number].begun;
                if World::is_measured(self.now) {
                    self.since_first.push(took);
                }
                let calm = 2 * SECOND + LOAD..SECOND + LOAD + CALM - SECOND / 5;
                let begun = self.requests[number].begun;
                self.calm.1 += u64::from(calm.contains(&begun) && took < SECOND / 5);
            }
            Step::Bye => self.follow(number, Step::ByeAnswer),
            Step::ByeAnswer if World::is_measured(self.now) => {
                self.outcomes[usize::from(self.groups[number])].served += 1;
            }
            _ => {}
        }
    }

    fn turn(&mut self) {
        let backlog = Backlog {
            messages: self.queue.len() as u64,
            lost: std::mem::take(&mut self.lost),
            ..Backlog::default()
        };
        self.controller.observe_backlog(Mono(self.now), backlog);
        let (mut served, mut busy, mut refused, mut acks, mut shed) = (0, 0, 0, 0, 0);
        for _ in 0..BATCH {
            let Some((arrived, number, step)) = self.queue.pop_front() else {
                break;
            };
            let now = Mono(self.now);
            let source = self.requests[number].source;
            let class = match step {
                Step::Ack | Step::Bye => Class::Finishing,
                _ => self.class(number),
            };
            let mut admission = Admission::Accept;
            let is_of_transaction = matches!(
                step,
                Step::Ringing | Step::Answer | Step::ByeAnswer | Step::AckOfRefusal
            );
            if !is_of_transaction && !self.controller.accepts_all(now, source) {
                admission = match class {
                    Class::New => {
                        let message = self.message(number);
                        self.controller.admit_filterable(now, source, &message)
                    }
                    _ => self.controller.admit(now, class, source),
                };
            }
            let cost = self.costs.of(admission, step);
            self.now += cost;
            match admission {
                Admission::Accept if step == Step::AckOfRefusal => {
                    acks += 1;
                    shed += cost;
                }
                Admission::Accept => {
                    served += 1;
                    busy += cost;
                    match self.calls {
                        true => self.serve_call(number, arrived, step),
                        false => self.serve(number, arrived),
                    }
                }
                Admission::Refuse { .. } => {
                    refused += 1;
                    shed += cost;
                    match step {
                        Step::Request => self.refuse(number),
                        _ => self.failed += 1,
                    }
                }
                Admission::Drop => {
                    shed += cost;
                    self.failed += u64::from(step != Step::Request);
                }
            }
        }
        // The clock of a batch goes on while the kernel receives.
        let handled = u64::from(served + refused).max(1);
        busy += std::mem::take(&mut self.stolen) * u64::from(served) / handled;
        let controller = &mut self.controller;
        controller.observe_service(served, Duration::from_nanos(busy));
        self.refusing += u64::from(refused) * self.costs.refuse + acks * self.costs.receive;
        if refused > 0 {
            let refusing = std::mem::take(&mut self.refusing);
            controller.observe_refusals(refused, Duration::from_nanos(refusing));
        }
        controller.observe_spare(Duration::from_nanos(shed));
    }

    fn serve(&mut self, number: usize, arrived: u64) {
        let request = &mut self.requests[number];
        if std::mem::replace(&mut request.is_over, true) {
            return;
        }
        let took = self.now - request.begun;
        if World::is_measured(self.now) {
            self.outcomes[usize::from(self.groups[number])].served += 1;
            self.waits.push(self.now - arrived);
            self.since_first.push(took);
        }
        let calm = 2 * SECOND + LOAD..SECOND + LOAD + CALM - SECOND / 5;
        self.calm.1 += u64::from(calm.contains(&request.begun) && took < SECOND / 5);
    }

    /// The INVITE of a call may come again, although it was accepted.
    fn serve_call(&mut self, number: usize, arrived: u64, step: Step) {
        let is_first = match step {
            Step::Request => !std::mem::replace(&mut self.requests[number].is_over, true),
            _ => true,
        };
        if is_first {
            if World::is_measured(self.now) {
                self.waits.push(self.now - arrived);
            }
            self.go_on(number, step);
        }
    }

    fn refuse(&mut self, number: usize) {
        if self.calls {
            self.follow(number, Step::AckOfRefusal);
        }
        let was_over = std::mem::replace(&mut self.requests[number].is_over, true);
        let counts = World::is_measured(self.now) && !was_over;
        self.outcomes[usize::from(self.groups[number])].refused += u64::from(counts);
    }

    fn begin(&mut self, at: u64, group: usize, source: IpAddr) {
        self.requests.push(Request {
            begun: at,
            source,
            is_over: false,
        });
        self.groups.push(group as u8);
        self.outcomes[group].begun += u64::from(World::is_measured(at));
        let calm = 2 * SECOND + LOAD..SECOND + LOAD + CALM - SECOND / 5;
        self.calm.0 += u64::from(calm.contains(&at));
        self.send(at, self.requests.len() - 1, 0);
    }

    /// The load of the groups, then half of what can be served by the first of them.
    fn run(&mut self, groups: &[Group]) {
        self.outcomes = vec![Outcome::default(); groups.len()];
        let (end, calm) = (SECOND + LOAD, SECOND + LOAD + CALM);
        let mut due: Vec<f64> = groups.iter().map(|_| SECOND as f64).collect();
        let mut numbers = vec![0; groups.len()];
        while self.now < calm {
            for (at, group) in groups.iter().enumerate() {
                while due[at] as u64 <= self.now {
                    let factor = match due[at] < end as f64 {
                        true => group.factor,
                        false if at == 0 => 0.5,
                        false => break,
                    };
                    self.begin(due[at] as u64, at, (group.source)(numbers[at]));
                    numbers[at] += 1;
                    due[at] += self.cost() / factor;
                }
            }
            while let Some(&Reverse((at, number, tries, step))) = self.next.peek() {
                if at > self.now {
                    break;
                }
                self.next.pop();
                match step {
                    Step::Request => self.send(at, number, tries),
                    _ => self.arrive(at, number, step),
                }
            }
            match self.queue.is_empty() {
                true => self.sleep(due[0] as u64),
                false => self.turn(),
            }
        }
    }

    fn sleep(&mut self, due: u64) {
        let first = self.next.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
        let timer = self.controller.poll_timeout().map_or(u64::MAX, |at| at.0);
        let until = first.min(due).min(timer).max(self.now);
        let slept = Duration::from_nanos(until - self.now);
        self.controller.observe_spare(slept);
        self.now = until;
        self.controller.pass_time(Mono(self.now));
    }

    /// Served, as a share of what can be.
    fn goodput(&self) -> f64 {
        let served: u64 = self.outcomes.iter().map(|outcome| outcome.served).sum();
        served as f64 * self.cost() / (LOAD - SECOND) as f64
    }

    /// What a request or a call costs.
    fn cost(&self) -> f64 {
        let each = self.costs.serve + self.costs.arrive;
        (each * if self.calls { CALL_MESSAGES } else { 1 }) as f64
    }

    /// What is left of the time when the filter has been paid for.
    fn left(&self) -> f64 {
        1.0 - (self.filtered * self.costs.filter) as f64 / (LOAD - SECOND) as f64
    }

    /// In the queue, and since the first try, 99th percentiles.
    fn p99(&mut self) -> [Duration; 2] {
        [&mut self.waits, &mut self.since_first].map(|times| {
            times.sort_unstable();
            let place = times.len() * 99 / 100;
            Duration::from_nanos(times.get(place).copied().unwrap_or(0))
        })
    }

    fn recovered(&self) -> f64 {
        self.calm.1 as f64 / self.calm.0 as f64
    }

    fn summary(&mut self) -> String {
        let (goodput, p99, recovered) = (self.goodput(), self.p99(), self.recovered());
        format!(
            "goodput {goodput:.3} of {:.3}, p99 {p99:?}, recovered {recovered:.4}, filtered {}, failed {}, {:?}, {:?}",
            self.left(),
            self.filtered,
            self.failed,
            self.controller.counts(),
            self.outcomes
        )
    }
}
