//! A worker of a churn: begins cycles by its part of the schedule and carries them to their end.

use std::io as stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use timers::{Mono, Wheel};

use ::io::{Events, Interest, Poller, RecvBatch, UdpOptions, UdpSocket, clock};
use client::Input;
use turn::Now;

use super::CycleSettings;
use super::cycle::{Cycle, Step, Stepped};
use super::ports::Ports;
use crate::generator::end::{End, ReceiveStats, SendStats};
use crate::generator::live::{LatencyFeed, LiveSecond};
use crate::generator::receiver::now;
use crate::generator::share::Share;
use crate::generator::shared::Shared;
use crate::generator::unexpected::UnexpectedDatagram;
use crate::measure::{Arrival, Counter, Counters, Schedule};
use crate::socket::{Connection, MAX_READ_BYTES, Socket};

/// Resolution of the timers: the shortest is 500 ms.
const TICK_NS: u64 = 5_000_000;
/// Longest wait, so that a stop is noticed.
const NAP_NS: u64 = 20_000_000;
/// Cycles begun before answers are looked at again.
const MAX_BURST: u64 = 32;
/// A cycle that begins so much later than intended counts as late.
const LATE_NS: u64 = 1_000_000;
/// How long to wait at the end for cycles to be over; what hangs then is not deleted.
const DRAIN_NS: u64 = 2_000_000_000;

/// A worker before it starts.
pub(in crate::generator) struct Worker {
    recipe: CycleSettings,
    schedule: Option<Schedule>,
    share: Share,
    /// Cycles in flight at once.
    limit: usize,
    ports: Ports,
    poller: Poller,
    batch: RecvBatch,
    /// What is read from connections; empty over UDP.
    chunk: Box<[u8]>,
    wheel: Wheel<TICK_NS>,
    cycles: Vec<Option<Box<Cycle>>>,
    free: Vec<usize>,
    in_flight: usize,
    random: Seeds,
    next: u64,
    left: SendStats,
    came: ReceiveStats,
    live: LatencyFeed,
}

/// Seeds for clients: one from the system, the others counted up from it.
struct Seeds([u8; 32]);

impl Seeds {
    fn new() -> stdio::Result<Seeds> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| stdio::Error::other(error.to_string()))?;
        Ok(Seeds(seed))
    }

    fn next(&mut self) -> [u8; 32] {
        let (counter, _) = self.0.split_at_mut(8);
        let mut bytes = [0; 8];
        bytes.copy_from_slice(counter);
        let next = u64::from_le_bytes(bytes).wrapping_add(1);
        counter.copy_from_slice(&next.to_le_bytes());
        self.0
    }
}

/// Why a cycle did not begin, in words for the report.
fn reason(error: &stdio::Error) -> &'static str {
    match error.kind() {
        stdio::ErrorKind::QuotaExceeded => "too many cycles in flight",
        stdio::ErrorKind::AddrInUse => "no free port",
        stdio::ErrorKind::AddrNotAvailable => "no such local address",
        _ => "no socket",
    }
}

/// Why a client cannot use a datagram; `None` if it can.
fn unexpected(input: &Input, datagram: &[u8]) -> Option<UnexpectedDatagram> {
    match *input {
        Input::Handled => None,
        Input::Ignored(why) => Some(UnexpectedDatagram::of_ignored(why, datagram)),
        // No client of a churn has a channel or a permission.
        Input::Data { .. } => Some(UnexpectedDatagram::Unbound),
        Input::NotMine | Input::UnknownSource => Some(UnexpectedDatagram::Foreign),
    }
}

impl Worker {
    /// Worker `index` of `count`, with `limit` cycles at once; without a schedule it begins one as another ends.
    pub(super) fn new(
        recipe: CycleSettings,
        schedule: Option<Schedule>,
        (index, count): (usize, usize),
        limit: u32,
        ports: Ports,
    ) -> stdio::Result<Worker> {
        let chunk = if recipe.turn.via.has_connections() {
            MAX_READ_BYTES
        } else {
            0
        };
        let parts = recipe.kind.steps().len();
        Ok(Worker {
            chunk: vec![0; chunk].into(),
            recipe,
            schedule,
            share: Share::new(index, count, count, 1),
            limit: limit as usize,
            ports,
            poller: Poller::new()?,
            batch: RecvBatch::new(4, RecvBatch::SMALL),
            wheel: Wheel::new(),
            cycles: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            random: Seeds::new()?,
            next: 0,
            left: SendStats::default(),
            came: ReceiveStats::of_parts(parts),
            live: LatencyFeed::default(),
        })
    }

    pub(in crate::generator) fn run(
        mut self,
        shared: &Shared,
        counters: &Counters,
        live: &Mutex<LiveSecond>,
    ) -> End {
        clock::sleep_precisely();
        let (started, cpu) = (clock::monotonic_ns(), clock::thread_cpu_ns());
        let mut events = Events::with_capacity(256);
        while !shared.stopping() && clock::monotonic_ns() < shared.end_ns {
            let wait_ns = self.begin_due(shared, counters);
            if !self.turn(&mut events, wait_ns, shared, counters) {
                break;
            }
            self.live.hand_over(live, shared, false);
        }
        self.live.hand_over(live, shared, true);
        let stopped_ns = clock::monotonic_ns();
        self.drain(&mut events, shared, counters);
        End {
            left: self.left,
            came: self.came,
            stopped_ns,
            cpu_ns: clock::thread_cpu_ns() - cpu,
            wall_ns: clock::monotonic_ns() - started,
            ..End::default()
        }
    }

    /// Begins the cycles that are due and returns how long until the next is.
    fn begin_due(&mut self, shared: &Shared, counters: &Counters) -> u64 {
        let now_ns = clock::monotonic_ns();
        if now_ns < shared.origin_ns {
            return shared.origin_ns - now_ns;
        }
        let Some(schedule) = self.schedule.clone() else {
            while self.in_flight < self.limit && self.begin(now_ns, shared, counters) {}
            return NAP_NS;
        };
        let elapsed = Duration::from_nanos(now_ns - shared.origin_ns);
        let due = self.share.count(schedule.due(elapsed));
        let end = due.min(self.next + MAX_BURST);
        let at = |n: u64| {
            let since = schedule.intended(self.share.global(n));
            since.map(|since| shared.origin_ns + since.as_nanos() as u64)
        };
        let intended: Vec<u64> = (self.next..end).filter_map(at).collect();
        self.next = end.max(self.next);
        let next_ns = at(self.next);
        for intended_ns in intended {
            self.begin(intended_ns, shared, counters);
        }
        next_ns.map_or(NAP_NS, |next_ns| {
            next_ns.saturating_sub(clock::monotonic_ns()).min(NAP_NS)
        })
    }

    /// Begins a cycle; false if there is no room or no socket for it.
    fn begin(&mut self, intended_ns: u64, shared: &Shared, counters: &Counters) -> bool {
        let measured = shared.measured(intended_ns);
        let now = now();
        let opened = if self.in_flight < self.limit {
            self.open(intended_ns, now)
        } else {
            Err(stdio::ErrorKind::QuotaExceeded.into())
        };
        let late = u64::from(now.mono.0.saturating_sub(intended_ns) > LATE_NS);
        counters.add(Counter::Late, late);
        if let Err(error) = opened {
            counters.add(Counter::NotSent, 1);
            if measured {
                self.left.not_sent += 1;
                *self.left.not_begun.entry(reason(&error)).or_default() += 1;
            }
            return false;
        }
        counters.add(Counter::Sent, 1);
        if measured {
            self.left.measured += 1;
            self.left.late += late;
            let delay_ns = now.mono.0.saturating_sub(intended_ns);
            self.left.delay.record_ns(delay_ns);
        }
        true
    }

    /// Opens a socket and begins a cycle on it. `intended_ns` is the scheduled start, from which its latency counts.
    fn open(&mut self, intended_ns: u64, now: Now) -> stdio::Result<()> {
        let options = UdpOptions {
            tos: false,
            ..UdpOptions::default()
        };
        let turn = &self.recipe.turn;
        let (server, via) = (turn.server.address(), &turn.via);
        let socket = if via.has_connections() {
            let connection = self
                .ports
                .open(|local| Connection::open(server, local, via))?;
            Socket::Connection(Arc::new(connection))
        } else {
            let socket = self.ports.open(|local| UdpSocket::bind(local, &options))?;
            Socket::Udp(Arc::new(socket))
        };
        let place = self.free.pop().unwrap_or_else(|| {
            self.cycles.push(None);
            self.cycles.len() - 1
        });
        if let Err(error) = self.poller.add(&socket, place as u64, Interest::Read) {
            self.free.push(place);
            return Err(error);
        }
        let seed = self.random.next();
        let cycle = Cycle::begin(&self.recipe, socket, seed, intended_ns, now);
        self.cycles[place] = Some(Box::new(cycle));
        self.in_flight += 1;
        self.service(place);
        Ok(())
    }

    /// Waits for answers and time-outs and deals with them. False if waiting is impossible.
    fn turn(
        &mut self,
        events: &mut Events,
        wait_ns: u64,
        shared: &Shared,
        counters: &Counters,
    ) -> bool {
        let wait = Duration::from_nanos(wait_ns);
        if self.poller.wait(events, Some(wait)).is_err() {
            return false;
        }
        for event in events.iter() {
            self.read(event.token as usize, shared, counters);
        }
        let now = now();
        while let Some(place) = self.wheel.pop_due(now.mono) {
            let place = place as usize;
            if let Some(cycle) = &mut self.cycles[place] {
                cycle.endpoint.timeout(now);
                self.advance(place, now, shared, counters);
            }
        }
        true
    }

    fn read(&mut self, place: usize, shared: &Shared, counters: &Counters) {
        let Some(Some(cycle)) = self.cycles.get_mut(place) else {
            return;
        };
        let now = now();
        let socket = match cycle.socket.clone() {
            Socket::Udp(socket) => socket,
            Socket::Connection(connection) => {
                let server = cycle.endpoint.server();
                let endpoint = &mut cycle.endpoint;
                let came = &mut self.came;
                let read = connection.read(&mut self.chunk, |message| {
                    let input = endpoint.input(now, server, message);
                    if let Some(odd) = unexpected(&input, message) {
                        came.note_unexpected(odd, now.mono.0, shared, counters);
                    }
                });
                let done = read.and_then(|()| connection.advance(&self.poller, place as u64));
                return match done {
                    Ok(()) => self.advance(place, now, shared, counters),
                    Err(_) => self.disconnected(place, now, shared, counters),
                };
            }
        };
        self.batch.clear();
        if socket.recv(0, &mut self.batch).is_err() {
            return;
        }
        for answer in self.batch.iter() {
            let input = cycle.endpoint.input(now, answer.from, answer.bytes);
            let odd = match answer.truncated {
                true => Some(UnexpectedDatagram::Truncated),
                false => unexpected(&input, answer.bytes),
            };
            if let Some(odd) = odd {
                self.came.note_unexpected(odd, now.mono.0, shared, counters);
            }
        }
        self.advance(place, now, shared, counters);
    }

    /// The connection of a cycle is lost, or never came about.
    fn disconnected(&mut self, place: usize, now: Now, shared: &Shared, counters: &Counters) {
        // What it said before that counts.
        self.advance(place, now, shared, counters);
        if let Some(cycle) = &self.cycles[place] {
            let (stepped, intended_ns) = (cycle.disconnected(now), cycle.intended_ns);
            self.note(&stepped, intended_ns, now, shared, counters);
            self.close(place);
        }
    }

    /// Carries a cycle on after its client was touched.
    fn advance(&mut self, place: usize, now: Now, shared: &Shared, counters: &Counters) {
        while let Some(cycle) = &mut self.cycles[place] {
            let Some(stepped) = cycle.poll(&self.recipe, now) else {
                break;
            };
            let (intended_ns, end) = (cycle.intended_ns, stepped.end);
            self.note(&stepped, intended_ns, now, shared, counters);
            if end {
                self.close(place);
                return;
            }
        }
        self.service(place);
    }

    fn note(
        &mut self,
        stepped: &Stepped,
        intended_ns: u64,
        now: Now,
        shared: &Shared,
        counters: &Counters,
    ) {
        let measured = shared.measured(intended_ns);
        match stepped.failed {
            None => counters.add(Counter::Succeeded, 1),
            Some(0) => {}
            Some(_) => counters.add(Counter::Failed, 1),
        }
        if measured {
            match stepped.failed {
                None => {
                    self.came.succeeded += 1;
                    self.came
                        .record_part(stepped.step.part(), stepped.latency_ns);
                }
                Some(code) => {
                    self.came.failed += 1;
                    *self.came.errors.entry(code).or_default() += 1;
                }
            }
        }
        let last = matches!(stepped.step, Step::Release | Step::Binding);
        if stepped.failed.is_none() && last {
            let latency_ns = now.mono.0.saturating_sub(intended_ns);
            counters.add(Counter::Received, 1);
            self.live.record_ns(latency_ns);
            if measured {
                // The steps have their own parts; this is the whole.
                self.came
                    .note(Arrival::InOrder, 0, now.mono.0, latency_ns, usize::MAX);
            }
        }
    }

    /// Sends what a client wants sent and sets its timer.
    fn service(&mut self, place: usize) {
        let Some(cycle) = &mut self.cycles[place] else {
            return;
        };
        cycle.transmit(&mut self.left.flushed);
        if let Some(connection) = cycle.socket.connection() {
            // If it fails, the next event of the connection says why.
            let _ = connection.advance(&self.poller, place as u64);
        }
        let deadline = cycle.endpoint.deadline().unwrap_or(Mono::NEVER);
        self.wheel.set(place as u32, deadline);
    }

    fn close(&mut self, place: usize) {
        if self.cycles[place].take().is_none() {
            return;
        }
        self.wheel.remove(place as u32);
        // Closing the socket takes it from the poller as well; an event that waits finds an empty place.
        self.free.push(place);
        self.in_flight -= 1;
    }

    /// Lets the cycles in flight come to their end, without their Refreshes.
    fn drain(&mut self, events: &mut Events, shared: &Shared, counters: &Counters) {
        let now = now();
        for place in 0..self.cycles.len() {
            if let Some(cycle) = &mut self.cycles[place]
                && cycle.endpoint.client().relayed().is_some()
                && shared.stopping()
            {
                cycle.abandon(now);
                self.service(place);
            }
        }
        let end_ns = clock::monotonic_ns() + DRAIN_NS;
        while self.in_flight > 0 && clock::monotonic_ns() < end_ns {
            if !self.turn(events, NAP_NS, shared, counters) {
                return;
            }
        }
    }
}
