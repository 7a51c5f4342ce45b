//! A receiver thread: reads its taps, checks every datagram, keeps its clients alive.

use std::io as stdio;
use std::sync::Mutex;
use std::time::Duration;

use io::{Events, Interest, Poller, RecvBatch, UdpSocket, clock};
use timers::Wheel;
use turn::{Mono, Now};

use super::ReceiveSocket;
use super::end::{End, ReceiveStats};
use super::expected::{self, ExpectedFlows};
use super::live::{LatencyFeed, LiveSecond};
use super::receive_socket::{ClientErrors, Decoded};
use super::shared::Shared;
use super::stamps::{IdStamp, SEQUENCE_BITS};
use super::unexpected::UnexpectedDatagram;
use crate::measure::{Arrival, Counter, Counters, FlowTracker, Payload};
use crate::socket::{Connection, MAX_READ_BYTES, Socket};

/// How soon a stop is noticed.
const MAX_SLEEP: Duration = Duration::from_millis(20);
/// No receiver leaves a datagram for longer.
const MAX_UNREAD_NS: u64 = 10_000_000_000;
/// Resolution of the clients' timers: their shortest is 500 ms.
const TICK_NS: u64 = 5_000_000;

/// A receiver before it starts.
pub(super) struct Receiver {
    receive_sockets: Vec<ReceiveSocket>,
    wheel: Wheel<TICK_NS>,
    poller: Poller,
    batch: RecvBatch,
    /// What is read from connections; empty if there are none.
    chunk: Box<[u8]>,
    /// Taps whose clients have something to send, and no room for it.
    full: Vec<usize>,
    book: ReceiveLog,
    client_errors: ClientErrors,
    /// The same of the warm-up.
    warm_up_errors: ClientErrors,
    measure_ns: u64,
}

/// What has arrived.
pub(super) struct ReceiveLog {
    payload: Payload,
    flows: Vec<FlowTracker>,
    /// What each flow's datagrams are to look like, and where.
    ledger: ExpectedFlows,
    /// The first flow of each part.
    starts: Vec<u32>,
    pub(super) came: ReceiveStats,
    live: LatencyFeed,
}

impl Receiver {
    pub(super) fn new(
        receive_sockets: Vec<ReceiveSocket>,
        ledger: ExpectedFlows,
        starts: Vec<u32>,
        memory: Option<usize>,
    ) -> stdio::Result<Receiver> {
        let poller = Poller::new()?;
        for (index, receive_socket) in receive_sockets.iter().enumerate() {
            poller.add(&receive_socket.socket, index as u64, Interest::Read)?;
        }
        let gro = receive_sockets.iter().any(
            |receive_socket| matches!(&receive_socket.socket, Socket::Udp(socket) if socket.gro()),
        );
        let streams = receive_sockets
            .iter()
            .any(|receive_socket| receive_socket.socket.connection().is_some());
        let slot = if gro {
            RecvBatch::LARGE
        } else {
            RecvBatch::SMALL
        };
        Ok(Receiver {
            wheel: Wheel::new(),
            receive_sockets,
            poller,
            batch: RecvBatch::new(64, slot),
            chunk: vec![0; if streams { MAX_READ_BYTES } else { 0 }].into(),
            full: Vec::new(),
            book: ReceiveLog::new(ledger, starts, memory),
            client_errors: ClientErrors::default(),
            warm_up_errors: ClientErrors::default(),
            measure_ns: 0,
        })
    }

    pub(super) fn run(
        mut self,
        shared: &Shared,
        counters: &Counters,
        live: &Mutex<LiveSecond>,
    ) -> End {
        let (started, cpu) = (clock::monotonic_ns(), clock::thread_cpu_ns());
        let mut events = Events::with_capacity(256);
        self.begin(shared);
        while !shared.receivers_off() {
            if !self.receive(&mut events, MAX_SLEEP, shared, counters, |_, _| ()) {
                break;
            }
            self.hand_over(live, shared, false);
        }
        self.hand_over(live, shared, true);
        End {
            cpu_ns: clock::thread_cpu_ns() - cpu,
            wall_ns: clock::monotonic_ns() - started,
            ..self.end()
        }
    }

    /// Sets the clients' timers. If the delay on the server's side must be distinguished from ours, makes the kernel
    /// add timestamps.
    pub(super) fn begin(&mut self, shared: &Shared) {
        self.measure_ns = shared.measure_ns;
        for receive_socket in &self.receive_sockets {
            if let Socket::Udp(socket) = &receive_socket.socket {
                // Without stamps a datagram has come when it is read.
                let _ = socket.stamp_arrivals(shared.stamp_arrivals);
            }
        }
        for index in 0..self.receive_sockets.len() {
            self.schedule(index);
        }
    }

    /// Waits for `nap` at most, reads what has come, and tells `arrived` about each response to what was measured
    /// (flow and sequence). False if waiting is impossible.
    pub(super) fn receive(
        &mut self,
        events: &mut Events,
        nap: Duration,
        shared: &Shared,
        counters: &Counters,
        mut arrived: impl FnMut(u32, u64),
    ) -> bool {
        if self.poller.wait(events, Some(nap)).is_err() {
            return false;
        }
        for event in events.iter() {
            let index = event.token as usize;
            match self.receive_sockets[index].socket.clone() {
                Socket::Udp(socket) => self.read(index, &socket, shared, counters, &mut arrived),
                Socket::Connection(connection) => {
                    self.read_stream(index, &connection, shared, counters, &mut arrived);
                }
            }
        }
        let receive_sockets = &self.receive_sockets;
        self.full.retain(|&index| receive_sockets[index].is_full());
        self.turn_timers();
        true
    }

    /// What came, and the taps for another run.
    pub(super) fn end(self) -> End {
        End {
            jitter_ns: self.book.flows.iter().filter_map(jitter).collect(),
            came: self.book.came,
            client_errors: self.client_errors,
            warm_up_errors: self.warm_up_errors,
            receive_sockets: self.receive_sockets,
            ..End::default()
        }
    }

    fn read(
        &mut self,
        index: usize,
        socket: &UdpSocket,
        shared: &Shared,
        counters: &Counters,
        arrived: &mut impl FnMut(u32, u64),
    ) {
        self.batch.clear();
        let receive_socket = &mut self.receive_sockets[index];
        if socket.recv(0, &mut self.batch).is_err() {
            return;
        }
        let (now, unix_ns) = match shared.stamp_arrivals {
            true => both_clocks(),
            false => (now(), None),
        };
        if now.mono.0 >= shared.measure_ns {
            counters.add(Counter::Overflow, self.batch.overflow());
        }
        let mut control = false;
        let identity = receive_socket.socket.identity();
        for run in self.batch.iter() {
            // A stamp in the future or long ago means that the clock was set meanwhile.
            let unread_ns = unix_ns
                .zip(run.arrived_ns)
                .and_then(|(unix_ns, arrived_ns)| unix_ns.checked_sub(arrived_ns))
                .filter(|unread_ns| *unread_ns < MAX_UNREAD_NS);
            for datagram in run.segments() {
                let mut decoded = receive_socket.decode(
                    &self.book.payload,
                    &shared.stamps,
                    now,
                    run.from,
                    datagram,
                );
                if run.truncated {
                    decoded = Decoded::Odd(UnexpectedDatagram::Truncated);
                }
                control |= decoded.may_change_client();
                let here = ArrivalInfo {
                    identity,
                    now_ns: now.mono.0 - unread_ns.unwrap_or(0),
                    read_ns: now.mono.0,
                    unread_ns,
                };
                if let Some((flow, sequence)) = self.book.note(decoded, here, shared, counters) {
                    arrived(flow, sequence);
                }
            }
        }
        if control {
            self.serve(index, now);
            self.schedule(index);
        }
    }

    fn read_stream(
        &mut self,
        index: usize,
        connection: &Connection,
        shared: &Shared,
        counters: &Counters,
        arrived: &mut impl FnMut(u32, u64),
    ) {
        let receive_socket = &mut self.receive_sockets[index];
        let (mut came_at, identity) = (None, receive_socket.socket.identity());
        let (book, mut control) = (&mut self.book, false);
        let read = connection.read(&mut self.chunk, |message| {
            // The time after the read, one for all messages that it brought.
            let now = *came_at.get_or_insert_with(now);
            let decoded =
                receive_socket.decode_message(&book.payload, &shared.stamps, now, message);
            control |= decoded.may_change_client();
            let here = ArrivalInfo {
                identity,
                now_ns: now.mono.0,
                read_ns: now.mono.0,
                unread_ns: None,
            };
            if let Some((flow, sequence)) = book.note(decoded, here, shared, counters) {
                arrived(flow, sequence);
            }
        });
        if let Err(error) = read {
            let errors = match clock::monotonic_ns() < self.measure_ns {
                true => &mut self.warm_up_errors,
                false => &mut self.client_errors,
            };
            errors.disconnected(&error);
            // It is watched, so this can only fail for lack of memory; its next event then says the same.
            let _ = self.poller.remove(connection);
        }
        if control {
            self.serve(index, now());
            self.schedule(index);
        }
    }

    /// Sends what the client of a tap wants sent, later if there is no room for it.
    fn serve(&mut self, index: usize, now: Now) {
        let errors = match now.mono.0 < self.measure_ns {
            true => &mut self.warm_up_errors,
            false => &mut self.client_errors,
        };
        let receive_socket = &mut self.receive_sockets[index];
        receive_socket.service(errors);
        if receive_socket.socket.connection().is_some()
            && receive_socket.is_full()
            && !self.full.contains(&index)
        {
            self.full.push(index);
        }
    }

    fn turn_timers(&mut self) {
        if self.wheel.is_empty() {
            return;
        }
        let now = now();
        while let Some(index) = self.wheel.pop_due(now.mono) {
            let index = index as usize;
            self.receive_sockets[index].handle_timeout(now);
            self.serve(index, now);
            self.schedule(index);
        }
    }

    /// Sets the timer of a tap to the next deadline of its client.
    fn schedule(&mut self, index: usize) {
        let deadline = self.receive_sockets[index]
            .deadline()
            .unwrap_or(Mono::NEVER);
        self.wheel.set(index as u32, deadline);
    }

    /// Gives latencies to the live display.
    pub(super) fn hand_over(&mut self, live: &Mutex<LiveSecond>, shared: &Shared, last: bool) {
        self.book.live.hand_over(live, shared, last);
    }
}

/// Where and when something arrived.
#[derive(Clone, Copy)]
struct ArrivalInfo {
    /// Of the socket.
    identity: usize,
    now_ns: u64,
    /// When it was read.
    read_ns: u64,
    /// How long it lay in the socket, if the kernel said so.
    unread_ns: Option<u64>,
}

impl ReceiveLog {
    fn new(ledger: ExpectedFlows, starts: Vec<u32>, memory: Option<usize>) -> ReceiveLog {
        let memory = memory.unwrap_or_else(|| expected::memory(ledger.len()));
        let tracker = FlowTracker::with_memory(memory);
        ReceiveLog {
            payload: Payload::new(),
            flows: vec![tracker; ledger.len()],
            ledger,
            came: ReceiveStats::of_parts(starts.len()),
            starts,
            live: LatencyFeed::default(),
        }
    }

    /// Enters a datagram; returns flow and sequence of what it answers, once.
    #[inline]
    fn note(
        &mut self,
        decoded: Decoded,
        here: ArrivalInfo,
        shared: &Shared,
        counters: &Counters,
    ) -> Option<(u32, u64)> {
        match decoded {
            Decoded::Payload {
                stamp,
                bytes,
                intact,
            } => {
                let expected = self.ledger.get(stamp.flow as usize);
                let expected = expected.copied().unwrap_or_default();
                let odd = match () {
                    () if stamp.run != shared.stamps.run.number => UnexpectedDatagram::OtherRun,
                    () if expected.arrives != here.identity => UnexpectedDatagram::Misdelivered,
                    () if bytes != expected.length || bytes != stamp.length => {
                        UnexpectedDatagram::Truncated
                    }
                    () if !intact => UnexpectedDatagram::Corrupt,
                    () => {
                        let id = (stamp.flow, stamp.sequence, stamp.intended_ns);
                        return self.arrived(id, bytes, here, shared, counters);
                    }
                };
                // The time of another run says nothing.
                let at_ns = match odd {
                    UnexpectedDatagram::OtherRun => here.now_ns,
                    _ => stamp.intended_ns,
                };
                self.came.note_unexpected(odd, at_ns, shared, counters);
            }
            Decoded::Bound { stamp, bytes } => match self.answers(stamp, here) {
                Some(id) => return self.arrived(id, bytes, here, shared, counters),
                None => self.came.note_unexpected(
                    UnexpectedDatagram::UnknownId,
                    here.now_ns,
                    shared,
                    counters,
                ),
            },
            Decoded::Refused { stamp, code } => {
                let Some((flow, sequence, intended_ns)) = self.answers(stamp, here) else {
                    self.came.note_unexpected(
                        UnexpectedDatagram::UnknownId,
                        here.now_ns,
                        shared,
                        counters,
                    );
                    return None;
                };
                counters.add(Counter::Failed, 1);
                if shared.measured(intended_ns) {
                    *self.came.errors.entry(code).or_default() += 1;
                }
                return Some((flow, sequence));
            }
            Decoded::Answer(bytes) => {
                counters.add(Counter::Received, 1);
                counters.add(Counter::ReceivedBytes, bytes as u64);
                if (shared.measure_ns..shared.end_ns).contains(&here.now_ns) {
                    self.came.answers += 1;
                    self.came.answer_bytes += bytes as u64;
                    self.came.last_arrival_ns = self.came.last_arrival_ns.max(here.now_ns);
                }
            }
            Decoded::Control => {}
            Decoded::Odd(odd) => self
                .came
                .note_unexpected(odd, here.now_ns, shared, counters),
        }
        None
    }

    /// The request that a stamp names, if this socket has made it.
    fn answers(&self, stamp: IdStamp, here: ArrivalInfo) -> Option<(u32, u64, u64)> {
        let expected = self.ledger.get(stamp.flow as usize)?;
        let tracker = self.flows.get(stamp.flow as usize)?;
        let sequence = tracker.nearest(stamp.sequence, SEQUENCE_BITS);
        let is_ours = expected.arrives == here.identity && stamp.intended_ns <= here.read_ns;
        is_ours.then_some((stamp.flow, sequence, stamp.intended_ns))
    }

    fn arrived(
        &mut self,
        (flow, sequence, intended_ns): (u32, u64, u64),
        bytes: usize,
        here: ArrivalInfo,
        shared: &Shared,
        counters: &Counters,
    ) -> Option<(u32, u64)> {
        let tracker = self.flows.get_mut(flow as usize)?;
        let arrival = tracker.arrived(sequence, intended_ns, here.now_ns);
        if arrival == Arrival::Late {
            if shared.measured(intended_ns) {
                self.came
                    .note_unexpected(UnexpectedDatagram::Late, intended_ns, shared, counters);
            }
            return None;
        }
        counters.add(counter(arrival), 1);
        let latency_ns = here.now_ns.saturating_sub(intended_ns);
        if shared.measured(intended_ns) {
            if let Some(unread_ns) = here.unread_ns {
                self.came.unread.record_ns(unread_ns);
            }
            let part = self.starts.partition_point(|&start| start <= flow) - 1;
            self.came
                .note(arrival, bytes, here.now_ns, latency_ns, part);
        }
        if arrival == Arrival::Duplicate {
            return None;
        }
        self.live.record_ns(latency_ns);
        counters.add(Counter::ReceivedBytes, bytes as u64);
        Some((flow, sequence))
    }
}

fn counter(arrival: Arrival) -> Counter {
    match arrival {
        Arrival::Duplicate | Arrival::Late => Counter::Duplicate,
        Arrival::InOrder | Arrival::Reordered => Counter::Received,
    }
}

fn jitter(flow: &FlowTracker) -> Option<f64> {
    let report = flow.report();
    (report.received > 1).then_some(report.jitter_ns)
}

/// The monotonic clock, and the one of the kernel's stamps at the same moment; `None` if the thread was interrupted
/// between the two each time.
fn both_clocks() -> (Now, Option<u64>) {
    const MAX_ATTEMPTS: usize = 3;
    const APART_NS: u64 = 5_000;
    let mut before = now();
    for _ in 0..MAX_ATTEMPTS {
        let unix_ns = clock::realtime_ns();
        let after = now();
        if after.mono.0 - before.mono.0 < APART_NS {
            return (before, Some(unix_ns));
        }
        before = after;
    }
    (before, None)
}

pub(super) fn now() -> Now {
    Now {
        mono: Mono(clock::monotonic_ns()),
        unix_s: clock::unix_s(),
    }
}
