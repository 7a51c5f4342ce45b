//! What registrations cost the engine: the real code that publishes, writes and looks up, on virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hairpin_stores::StoreError;
use hairpin_stores::cluster::bindings::KnownBindings;
use hairpin_stores::cluster::engine::{BindOutcome, BindRequest};
use hairpin_stores::cluster::{ClusterBindings, Seal, SharedBinding, Writer};

/// Virtual time moves by this.
const TICK_MS: u64 = 10;
/// A phone refreshes its binding after this time, half of the usual 3600 s.
const REFRESH_S: u64 = 1_800;
/// In the busy hour, each phone is called this often.
const CALLS_PER_HOUR: u64 = 1;
/// A node publishes all of its bindings in parts, as `server::sip::nodes` does.
const PART: u64 = 512;
const PART_MS: u64 = 20;
/// A connection to the engine has failed if it does not respond for this time.
const TIMEOUT_MS: u64 = 1_000;
/// A node exchanges this often, so it notices that the engine has lost its data.
const INTERVAL_MS: u64 = 1_000;
/// When phones of a dead node register again: between half of the upper bound of RFC 5626 §4.5 (`max-time` 1800 s
/// begins with 30 s) and the whole.
const AGAIN_MS: [u64; 2] = [15_000, 30_000];
const UNIX_MS: u64 = 1_800_000_000_000;

/// An engine that does so many commands per second, one after the other.
struct Engine {
    per_ms: f64,
    free_ms: f64,
    commands: u64,
}

impl Engine {
    /// Returns when the last one is done.
    fn ask(&mut self, now_ms: u64, commands: usize) -> u64 {
        self.commands += commands as u64;
        self.free_ms = self.free_ms.max(now_ms as f64) + commands as f64 / self.per_ms;
        self.free_ms.ceil() as u64
    }
}

/// What a node has asked the engine.
struct Asked {
    requests: Vec<BindRequest>,
    since_ms: u64,
    until_ms: u64,
    is_good: bool,
}

struct Node {
    bindings: Arc<ClusterBindings>,
    writer: Writer,
    asked: Option<Asked>,
    /// When it asks again.
    at_ms: u64,
    generation: u64,
    /// The next of its phones that it publishes again.
    next: Option<u64>,
}

pub(crate) struct World {
    clock: Arc<AtomicU64>,
    engine: Engine,
    /// Of leases and exchanges.
    other_commands_per_s: u64,
    nodes: Vec<Node>,
    phones: u64,
    /// Whether the engine has the binding of each phone.
    is_known: Vec<bool>,
    unknown: u64,
    look_ups: u64,
    writes: u64,
    repeated: u64,
    seed: u64,
}

fn aor(phone: u64) -> Vec<u8> {
    format!("u{phone}@example.com").into_bytes()
}

fn phone(aor: &[u8]) -> usize {
    let digits = aor[1..].iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + usize::from(digit - b'0'))
}

fn binding(phone: u64) -> SharedBinding {
    SharedBinding {
        id: phone,
        has_reg_id: false,
        phone: 0,
        call: phone,
        cseq: 1,
        q: 1_000,
        age_ms: 0,
        ttl_ms: 2 * REFRESH_S * 1_000,
    }
}

impl World {
    pub(crate) fn new(nodes: u64, phones: u64, per_s: u64, other_commands_per_s: u64) -> World {
        let clock = Arc::new(AtomicU64::new(1_000));
        let node = |number: u64| {
            let bindings = Arc::new(ClusterBindings::on_virtual_time(Arc::clone(&clock)));
            let seal = Seal::new(&[7; 32]);
            Node {
                writer: Writer::new(format!("node-{number}"), seal, Arc::clone(&bindings)),
                generation: bindings.generation(),
                bindings,
                asked: None,
                at_ms: 0,
                next: None,
            }
        };
        World {
            nodes: (0..nodes).map(node).collect(),
            clock,
            engine: Engine {
                per_ms: per_s as f64 / 1_000.0,
                free_ms: 0.0,
                commands: 0,
            },
            other_commands_per_s,
            phones,
            is_known: vec![true; usize::try_from(phones).expect("a 64-bit machine")],
            unknown: 0,
            look_ups: 0,
            writes: 0,
            repeated: 0,
            seed: 0x9E37_79B9_7F4A_7C15,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed >> 12;
        self.seed ^= self.seed << 25;
        self.seed ^= self.seed >> 27;
        (self.seed.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % below
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// How many of so many per second are due in this tick.
    fn due(&self, per_s: u64) -> u64 {
        let ticks = self.now() / TICK_MS;
        let per_1000 = per_s * TICK_MS;
        (ticks + 1) * per_1000 / 1_000 - ticks * per_1000 / 1_000
    }

    /// A phone registers at its node, or at another one.
    fn register(&mut self, phone: u64, node: u64) {
        let node = usize::try_from(node).expect("a 64-bit machine");
        self.nodes[node]
            .bindings
            .publish(&aor(phone), vec![binding(phone)]);
    }

    /// A node is asked for a phone.
    fn call(&mut self) {
        let aor = aor(self.random(self.phones));
        let node = self.random(self.nodes.len() as u64);
        let node = usize::try_from(node).expect("a 64-bit machine");
        let bindings = Arc::clone(&self.nodes[node].bindings);
        if bindings.find(&aor) == KnownBindings::Ask {
            bindings.begin_find(&aor, Box::new(|_| {}));
            let asked = bindings.take_asked(256);
            self.engine.ask(self.now(), asked.len());
            self.look_ups += asked.len() as u64;
            asked
                .iter()
                .for_each(|aor| bindings.finish_find(aor, &Some(Arc::default())));
        }
    }

    fn publish_again(&mut self, number: usize) {
        let (count, now) = (self.nodes.len() as u64, self.now());
        let node = &mut self.nodes[number];
        let generation = node.bindings.generation();
        if generation != node.generation {
            (node.generation, node.next) = (generation, Some(0));
        }
        let Some(first) = node.next.filter(|_| now.is_multiple_of(PART_MS)) else {
            return;
        };
        if node.bindings.is_busy() {
            return;
        }
        let phones = (first..first + PART).map(|place| place * count + number as u64);
        let phones = phones.take_while(|phone| *phone < self.phones);
        for phone in phones {
            node.bindings.publish(&aor(phone), vec![binding(phone)]);
        }
        let next = first + PART;
        node.next = (next * count < self.phones).then_some(next);
    }

    fn write(&mut self, number: usize) {
        let now = self.now();
        let node = &mut self.nodes[number];
        if let Some(asked) = node.asked.take_if(|asked| asked.until_ms <= now) {
            let outcome = match asked.is_good {
                true => Ok(asked
                    .requests
                    .iter()
                    .map(|_| Ok(BindOutcome::default()))
                    .collect()),
                false => Err(StoreError::Timeout(Duration::from_millis(TIMEOUT_MS))),
            };
            self.repeated += u64::from(!asked.is_good) * asked.requests.len() as u64;
            for request in asked.requests.iter().filter(|_| asked.is_good) {
                let is_known = &mut self.is_known[phone(&request.aor)];
                self.unknown -= u64::from(!*is_known);
                *is_known = true;
            }
            let took = Duration::from_millis(asked.until_ms - asked.since_ms);
            let pause = node.writer.end(asked.requests, outcome, took);
            node.at_ms = now + u64::try_from(pause.as_millis()).expect("a short pause");
        }
        if node.asked.is_some() || node.at_ms > now {
            return;
        }
        let requests = node.writer.begin(UNIX_MS + now);
        if requests.is_empty() {
            node.at_ms = now + 50;
            return;
        }
        self.writes += requests.len() as u64;
        let done_ms = self.engine.ask(now, requests.len());
        node.asked = Some(Asked {
            requests,
            since_ms: now,
            until_ms: done_ms.min(now + TIMEOUT_MS),
            is_good: done_ms <= now + TIMEOUT_MS,
        });
    }

    fn tick(&mut self) {
        self.clock.fetch_add(TICK_MS, Ordering::Relaxed);
        let other = self.due(self.other_commands_per_s);
        self.engine
            .ask(self.now(), usize::try_from(other).expect("few"));
        for _ in 0..self.due(self.phones / REFRESH_S) {
            let phone = self.random(self.phones);
            self.register(phone, phone % self.nodes.len() as u64);
        }
        (0..self.due(self.phones * CALLS_PER_HOUR / 3_600)).for_each(|_| self.call());
        for number in 0..self.nodes.len() {
            self.publish_again(number);
            self.write(number);
        }
    }

    /// A second. Returns the commands of the engine.
    fn second(&mut self) -> u64 {
        let before = self.engine.commands;
        (0..1_000 / TICK_MS).for_each(|_| self.tick());
        self.engine.commands - before
    }

    /// Prints what a minute costs, and what faults cost. Returns how many registrations are still missing after a restart
    /// of the engine, and how many seconds passed until then.
    pub(crate) fn run(&mut self) -> (u64, u64) {
        let seconds = 60;
        (0..10).for_each(|_| {
            self.second();
        });
        (self.writes, self.look_ups) = (0, 0);
        let all: Vec<u64> = (0..seconds).map(|_| self.second()).collect();
        println!(
            "registrations, steady: {} phones, {} writes and {} look-ups per second; {} commands per second in all, at most {}",
            self.phones,
            self.writes / seconds,
            self.look_ups / seconds,
            all.iter().sum::<u64>() / seconds,
            all.iter().max().unwrap_or(&0)
        );
        let restarted = self.restart();
        self.end_a_node();
        restarted
    }

    /// The engine is started empty. Each node notices it at its next exchange. Returns how many registrations are missing
    /// at the end, and how many seconds passed.
    fn restart(&mut self) -> (u64, u64) {
        self.is_known.fill(false);
        (self.unknown, self.writes, self.repeated) = (self.phones, 0, 0);
        let begun = self.now();
        let (mut most, mut of_second) = (0, self.engine.commands);
        let mut longest_ms = 0.0f64;
        while self.unknown > 0 && self.now() < begun + 3_600_000 {
            let passed = self.now() - begun;
            for number in 0..self.nodes.len() {
                let notices = (number as u64 * 37 * TICK_MS) % INTERVAL_MS;
                if notices / TICK_MS * TICK_MS == passed {
                    self.nodes[number].bindings.publish_all();
                }
            }
            self.tick();
            longest_ms = longest_ms.max(self.engine.free_ms - self.now() as f64);
            if (self.now() - begun).is_multiple_of(1_000) {
                most = most.max(self.engine.commands - of_second);
                of_second = self.engine.commands;
            }
        }
        println!(
            "engine restarted empty: {} registrations are back after {} s, {} unknown; {} writes, {} of them repeated; at most {most} commands per second, and {longest_ms:.0} ms of waiting",
            self.phones - self.unknown,
            (self.now() - begun) / 1_000,
            self.unknown,
            self.writes,
            self.repeated
        );
        (self.unknown, (self.now() - begun) / 1_000)
    }

    /// A node dies, and its phones register at others.
    fn end_a_node(&mut self) {
        (self.writes, self.repeated) = (0, 0);
        let count = self.nodes.len() as u64;
        let [first, last] = AGAIN_MS;
        let begun = self.now();
        let moved = (0..self.phones / count).map(|place| place * count);
        let moved: Vec<u64> = moved.collect();
        let mut due: Vec<(u64, u64)> = Vec::new();
        for phone in moved {
            due.push((begun + first + self.random(last - first), phone));
        }
        due.sort_unstable();
        let size = due.len();
        let mut due = due.into_iter().peekable();
        let (mut registers, mut most_registers, mut most) = (0u64, 0, 0);
        for _ in 0..last / 1_000 + 1 {
            let before = (self.engine.commands, registers);
            for _ in 0..1_000 / TICK_MS {
                while let Some((_, phone)) = due.next_if(|(at_ms, _)| *at_ms <= self.now()) {
                    let node = 1 + self.random(count - 1);
                    self.register(phone, node);
                    registers += 1;
                }
                self.tick();
            }
            most = most.max(self.engine.commands - before.0);
            most_registers = most_registers.max(registers - before.1);
        }
        println!(
            "a node dies: its {size} phones register at others, at most {most_registers} per second; the engine gets at most {most} commands per second, {} writes repeated",
            self.repeated
        );
    }
}
