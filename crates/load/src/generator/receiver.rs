//! A receiver thread: reads its taps, checks every datagram, keeps its clients alive.

use std::collections::BTreeMap;
use std::io as stdio;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use io::{Events, Interest, Poller, RecvBatch, TimerKey, TimerWheel, clock};
use turn::{Mono, Now};

use super::Tap;
use super::run::Shared;
use super::tap::Decoded;
use crate::measure::{Arrival, Counter, Counters, FlowTracker, Latency, Payload};

/// How soon a stop is noticed.
const NAP: Duration = Duration::from_millis(20);
/// Resolution of the clients' timers: their shortest is 500 ms.
const TICK_NS: u64 = 5_000_000;

/// A receiver before it starts.
pub(super) struct Receiver {
    taps: Vec<Tap>,
    timers: Vec<Option<(TimerKey, Mono)>>,
    wheel: TimerWheel<usize>,
    poller: Poller,
    batch: RecvBatch,
    payload: Payload,
    flows: Vec<FlowTracker>,
    measured: Measured,
    /// Latencies of the current second, not yet handed over.
    second: Latency,
    hand_over_ns: u64,
}

/// What a receiver says at its end.
#[derive(Debug, Default)]
pub(super) struct ReceiverEnd {
    pub(super) measured: Measured,
    pub(super) jitter_ns: Vec<f64>,
    pub(super) cpu_ns: u64,
    pub(super) wall_ns: u64,
}

/// What arrived of that which was meant to leave in the measured part.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    pub(super) reordered: u64,
    pub(super) duplicates: u64,
    pub(super) latency: Latency,
    pub(super) errors: BTreeMap<u16, u64>,
}

impl Receiver {
    pub(super) fn new(taps: Vec<Tap>, flows: u32, gro: bool) -> stdio::Result<Receiver> {
        let poller = Poller::new()?;
        for (index, tap) in taps.iter().enumerate() {
            poller.add(&*tap.socket, index as u64, Interest::Read)?;
        }
        let slot = if gro {
            RecvBatch::LARGE
        } else {
            RecvBatch::SMALL
        };
        Ok(Receiver {
            timers: vec![None; taps.len()],
            wheel: TimerWheel::new(TICK_NS, clock::monotonic_ns()),
            taps,
            poller,
            batch: RecvBatch::new(64, slot),
            payload: Payload::new(),
            flows: vec![FlowTracker::default(); flows as usize],
            measured: Measured::default(),
            second: Latency::new(),
            hand_over_ns: 0,
        })
    }

    pub(super) fn run(
        mut self,
        shared: &Shared,
        counters: &Counters,
        live: &Mutex<Latency>,
    ) -> ReceiverEnd {
        let (started, cpu) = (clock::monotonic_ns(), clock::thread_cpu_ns());
        let mut events = Events::with_capacity(256);
        for index in 0..self.taps.len() {
            self.schedule(index);
        }
        while !shared.stop_receiving.load(Ordering::Relaxed) {
            if self.poller.wait(&mut events, Some(NAP)).is_err() {
                break;
            }
            for event in events.iter() {
                self.read(event.token as usize, shared, counters);
            }
            self.turn_timers();
            self.hand_over(live);
        }
        self.hand_over_ns = 0;
        self.hand_over(live);
        ReceiverEnd {
            jitter_ns: self.flows.iter().filter_map(jitter).collect(),
            measured: self.measured,
            cpu_ns: clock::thread_cpu_ns() - cpu,
            wall_ns: clock::monotonic_ns() - started,
        }
    }

    fn read(&mut self, index: usize, shared: &Shared, counters: &Counters) {
        self.batch.clear();
        if self.taps[index].socket.recv(0, &mut self.batch).is_err() {
            return;
        }
        counters.add(Counter::Overflow, self.batch.overflow());
        let now = now();
        let mut control = false;
        for run in self.batch.iter() {
            for datagram in run.segments() {
                match self.taps[index].decode(&self.payload, shared.origin_ns, now, datagram) {
                    Decoded::Measured {
                        flow,
                        sequence,
                        intended_ns,
                        bytes,
                    } => {
                        let Some(tracker) = self.flows.get_mut(flow as usize) else {
                            counters.add(Counter::Foreign, 1);
                            continue;
                        };
                        let arrival = tracker.arrived(sequence, intended_ns, now.mono.0);
                        counters.add(counter(arrival), 1);
                        if arrival != Arrival::Duplicate {
                            let latency = now.mono.0.saturating_sub(intended_ns);
                            self.second.record_ns(latency);
                            counters.add(Counter::ReceivedBytes, bytes as u64);
                        }
                        if shared.measured(intended_ns) {
                            self.measured.note(
                                arrival,
                                bytes,
                                now.mono.0.saturating_sub(intended_ns),
                            );
                        }
                    }
                    Decoded::Refused(code) => {
                        *self.measured.errors.entry(code).or_default() += 1;
                    }
                    Decoded::Control => control = true,
                    Decoded::Corrupt => counters.add(Counter::Corrupt, 1),
                    Decoded::Foreign => counters.add(Counter::Foreign, 1),
                }
            }
        }
        if control {
            self.taps[index].service();
            self.schedule(index);
        }
    }

    fn turn_timers(&mut self) {
        let now = now();
        while let Some(index) = self.wheel.pop_due(now.mono.0) {
            self.timers[index] = None;
            self.taps[index].handle_timeout(now);
            self.schedule(index);
        }
    }

    /// Puts the timer of a tap where its client wants it.
    fn schedule(&mut self, index: usize) {
        let wanted = self.taps[index].deadline();
        match (self.timers[index], wanted) {
            (Some((_, at)), Some(deadline)) if at == deadline => {}
            (timer, wanted) => {
                if let Some((key, _)) = timer {
                    self.wheel.cancel(key);
                }
                self.timers[index] = wanted.map(|at| (self.wheel.insert(at.0, index), at));
            }
        }
    }

    /// Gives the latencies of the last second to whoever shows them.
    fn hand_over(&mut self, live: &Mutex<Latency>) {
        let now = clock::monotonic_ns();
        if now < self.hand_over_ns {
            return;
        }
        self.hand_over_ns = now + 200_000_000;
        if let Ok(mut live) = live.lock() {
            live.merge(&self.second);
            self.second.clear();
        }
    }
}

impl Measured {
    fn note(&mut self, arrival: Arrival, bytes: usize, latency_ns: u64) {
        if arrival == Arrival::Duplicate {
            self.duplicates += 1;
            return;
        }
        self.received += 1;
        self.received_bytes += bytes as u64;
        self.reordered += u64::from(arrival == Arrival::Reordered);
        self.latency.record_ns(latency_ns);
    }
}

fn counter(arrival: Arrival) -> Counter {
    match arrival {
        Arrival::Duplicate => Counter::Duplicate,
        Arrival::InOrder | Arrival::Reordered => Counter::Received,
    }
}

fn jitter(flow: &FlowTracker) -> Option<f64> {
    let report = flow.report();
    (report.received > 1).then_some(report.jitter_ns)
}

fn now() -> Now {
    Now {
        mono: Mono(clock::monotonic_ns()),
        unix_s: clock::unix_s(),
    }
}
