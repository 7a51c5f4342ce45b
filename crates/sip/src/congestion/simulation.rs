//! A worker in virtual time: a queue, a service time and a load that grows beyond it.

use std::collections::VecDeque;
use std::time::Duration;

use super::*;
use crate::{HashKey, Mono};

/// What a message costs, in nanoseconds.
const RECEIVE: u64 = 250;
const SERVE: u64 = 50_000;
const REFUSE: u64 = 3_000;
const BATCH: usize = 16;
/// Messages that a socket buffer holds; a 4 MiB buffer holds about 5,000 of 830 bytes.
const BUFFER: usize = 8_000;

struct Outcome {
    /// Served in a second.
    goodput: f64,
    /// The wait of what was served, 99th percentile.
    p99: Duration,
    /// When the wait was last above 20 ms, after the load had dropped.
    recovery: Duration,
}

/// `factor` times what can be served, for 3 s, then half of it for 4 s; with `sources` senders of equal load.
fn overload(factor: f64, enabled: bool, sources: u8) -> Outcome {
    let mut worker = Worker::new(enabled);
    let capacity = 1e9 / (SERVE + RECEIVE) as f64;
    let seconds = |s: u64| s * 1_000_000_000;
    let mut waits = Vec::new();
    let mut calm_at = seconds(3);
    let mut served = 0u64;
    let mut next = 0f64;
    let mut random = 99u64;
    let mut sent = 0u64;
    while worker.now < seconds(7) {
        let load = if worker.now < seconds(3) { factor } else { 0.5 };
        while (next as u64) <= worker.now {
            sent += 1;
            worker.arrive(next as u64, (sent % u64::from(sources)) as u8);
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let uniform = ((random >> 33) as f64 + 1.0) / 2_147_483_649.0;
            let rate = if (next as u64) < seconds(3) {
                factor
            } else {
                load
            };
            next += -uniform.ln() * 1e9 / (capacity * rate);
        }
        for (arrived, done) in worker.turn(next as u64) {
            let wait = done - arrived;
            if (seconds(1)..seconds(3)).contains(&done) {
                served += 1;
                waits.push(wait);
            }
            if done > seconds(3) && wait > 20_000_000 {
                calm_at = done;
            }
        }
    }
    waits.sort_unstable();
    let p99 = waits.get(waits.len() * 99 / 100).copied().unwrap_or(0);
    Outcome {
        goodput: served as f64 / 2.0 / capacity,
        p99: Duration::from_nanos(p99),
        recovery: Duration::from_nanos(calm_at - seconds(3)),
    }
}

struct Worker {
    now: u64,
    queue: VecDeque<(u64, u8)>,
    lost: u64,
    /// Served messages of sources but the first.
    others: u64,
    controller: Controller,
}

impl Worker {
    fn new(enabled: bool) -> Worker {
        let config = Config {
            enabled,
            ..Config::default()
        };
        Worker {
            now: 0,
            queue: VecDeque::new(),
            lost: 0,
            others: 0,
            controller: Controller::new(config, HashKey::new([4; 16])),
        }
    }

    fn arrive(&mut self, at: u64, source: u8) {
        if self.queue.len() < BUFFER {
            self.queue.push_back((at, source));
        } else {
            self.lost += 1;
        }
    }

    /// One batch; how many of sources but the first were served, after the first second.
    fn turn_for_others(&mut self, next: u64) -> u64 {
        let done = self.turn(next);
        let others = self.others;
        self.others = 0;
        let is_late = done
            .last()
            .is_some_and(|(arrived, _)| *arrived > 1_000_000_000);
        if is_late { others } else { 0 }
    }

    /// One batch; or idles until the next arrival.
    fn turn(&mut self, next: u64) -> Vec<(u64, u64)> {
        let mut done = Vec::new();
        if self.queue.is_empty() {
            self.now = self.now.max(next);
            return done;
        }
        let backlog = Backlog {
            messages: self.queue.len() as u64,
            fill_percent: (self.queue.len() * 100 / BUFFER) as u8,
            lost: std::mem::take(&mut self.lost),
        };
        self.controller.observe_backlog(Mono(self.now), backlog);
        let mut busy = 0;
        for _ in 0..BATCH {
            let Some((arrived, source)) = self.queue.pop_front() else {
                break;
            };
            self.now += RECEIVE;
            let is_other = source > 0;
            let source = [192, 0, 2, source].into();
            match self.controller.admit(Mono(self.now), Class::New, source) {
                Admission::Accept => {
                    self.others += u64::from(is_other);
                    self.now += SERVE;
                    busy += RECEIVE + SERVE;
                    done.push((arrived, self.now));
                }
                Admission::Refuse { .. } => self.now += REFUSE,
                Admission::Drop => {}
            }
        }
        self.controller
            .observe_service(done.len() as u32, Duration::from_nanos(busy));
        done
    }
}

#[test]
fn goodput_holds_at_2_5_and_10_times_the_load_and_waits_stay_bounded() {
    for factor in [2.0, 5.0, 10.0] {
        for sources in [1, 100] {
            let outcome = overload(factor, true, sources);
            let what = format!(
                "{factor}x of {sources}: goodput {:.3}, p99 {:?}, recovery {:?}",
                outcome.goodput, outcome.p99, outcome.recovery
            );
            assert!(outcome.goodput >= 0.9, "{what}");
            assert!(outcome.p99 < Duration::from_millis(200), "{what}");
            assert!(outcome.recovery < Duration::from_secs(2), "{what}");
        }
    }
}

#[test]
fn without_overload_nothing_is_refused() {
    let outcome = overload(0.8, true, 10);
    assert!((0.78..0.82).contains(&outcome.goodput));
    assert!(outcome.p99 < Duration::from_millis(5), "{:?}", outcome.p99);
}

#[test]
fn without_the_controller_everything_waits_as_long_as_the_buffer_is() {
    let outcome = overload(2.0, false, 10);
    assert!(
        outcome.p99 > Duration::from_millis(390),
        "{:?}",
        outcome.p99
    );
}

#[test]
fn a_flooder_takes_nothing_from_those_who_ask_for_little() {
    let mut worker = Worker::new(true);
    let capacity = 1e9 / (SERVE + RECEIVE) as f64;
    let mut random = 5u64;
    let (mut asked, mut served) = (0u64, 0u64);
    let mut next = 0f64;
    // Ten times what can be served from one source, four tenths of it from forty others.
    let (flood, others) = (10.0, 0.4);
    while worker.now < 4_000_000_000 {
        while next as u64 <= worker.now {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let dice = (random >> 33) as f64 / 2_147_483_648.0 * (flood + others);
            let source = if dice < flood {
                0
            } else {
                1 + ((dice - flood) / others * 40.0) as u8
            };
            asked += u64::from(source > 0 && next > 1e9);
            worker.arrive(next as u64, source);
            next += 1e9 / (capacity * (flood + others));
        }
        served += worker.turn_for_others(next as u64);
    }
    let share = served as f64 / asked as f64;
    assert!(
        share > 0.9,
        "{share:.3} of those who ask for little were served"
    );
}
