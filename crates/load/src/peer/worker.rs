//! One thread of a peer.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::io::{
    Datagrams, Events, Interest, Offloads, Poller, RecvBatch, SendOptions, SendQueue, SendTo,
    UdpSocket, clock,
};

use super::runs::{CurrentRun, Runs};
use super::{Mode, PeerOptions};
use crate::measure::{
    Arrival, Counter, Counters, FlowTracker, Payload, PayloadError, RunStamp, Schedule,
};

/// Limit of blocks (4,096 numbers) with gaps per flow of a sink.
const MAX_BLOCKS_PER_FLOW: usize = 256;
/// The same for all flows of a thread: at most 68 MB. At this limit, each flow keeps only two at its next arrival.
const ALL_MEMORY: usize = 1 << 17;
/// Flows a sink follows by number, and addresses a source serves: 65,536 trackers are 8 MB, and their last two blocks
/// another 68 MB.
const MAX_FLOWS: usize = 65_536;
/// A source stops sending to an address that has been silent for this long.
const SILENCE_NS: u64 = 10_000_000_000;
/// How soon a thread notices that it is to stop.
const STOP_CHECK: Duration = Duration::from_millis(50);
/// Datagrams a source sends to one address before it looks at the next.
const SOURCE_BURST: u64 = 64;

/// A thread of a peer, not yet running.
#[derive(Debug)]
pub(super) struct Worker {
    sockets: Vec<UdpSocket>,
    poller: Poller,
    mode: Mode,
    send_options: SendOptions,
    offload: bool,
    runs: Arc<Runs>,
    payload_key: u64,
}

/// What a thread learns while it runs.
struct State {
    payload: Payload,
    current: CurrentRun,
    /// By run and flow.
    flows: HashMap<(u32, u32), FlowTracker>,
    /// Pieces with gaps that they remember.
    pieces: usize,
    streams: HashMap<(usize, SocketAddr), Stream>,
    buffer: Vec<u8>,
    /// The stamp of payloads that a source sends. A sink uses only its key.
    run: RunStamp,
}

/// What a source sends to one address.
struct Stream {
    from_ip: Option<IpAddr>,
    flow: u32,
    started_ns: u64,
    heard_ns: u64,
    sent: u64,
}

impl Worker {
    pub(super) fn new(
        sockets: Vec<UdpSocket>,
        options: &PeerOptions,
        runs: Arc<Runs>,
    ) -> io::Result<Worker> {
        let poller = Poller::new()?;
        for (index, socket) in sockets.iter().enumerate() {
            poller.add(socket, index as u64, Interest::Read)?;
        }
        let offloads = Offloads::probe();
        Ok(Worker {
            sockets,
            poller,
            mode: options.mode,
            send_options: SendOptions {
                gso: options.offload && offloads.gso,
                max_segments: offloads.max_segments.max(1),
                ..SendOptions::default()
            },
            offload: options.offload,
            runs,
            payload_key: options.payload_key,
        })
    }

    pub(super) fn run(self, counters: &Counters, stop: &AtomicBool) {
        let slot = if self.offload {
            RecvBatch::LARGE
        } else {
            RecvBatch::SMALL
        };
        let mut batch = RecvBatch::new(64, slot);
        let mut queue = SendQueue::new(&self.send_options);
        let mut events = Events::with_capacity(64);
        let mut state = State {
            payload: Payload::new(),
            current: CurrentRun::default(),
            flows: HashMap::new(),
            pieces: 0,
            streams: HashMap::new(),
            buffer: Vec::new(),
            run: RunStamp {
                number: run_number(),
                key: self.payload_key,
            },
        };
        while !stop.load(Ordering::Relaxed) {
            let wait = self.source_wait(&state).min(STOP_CHECK);
            if self.poller.wait(&mut events, Some(wait)).is_err() {
                return;
            }
            for event in events.iter() {
                batch.clear();
                let index = event.token as usize;
                if self.sockets[index].recv(event.token, &mut batch).is_ok() {
                    self.handle(&batch, &mut queue, &mut state, counters);
                }
                counters.add(Counter::Overflow, batch.overflow());
            }
            self.send_streams(&mut queue, &mut state, counters);
        }
    }

    fn handle(
        &self,
        batch: &RecvBatch,
        queue: &mut SendQueue,
        state: &mut State,
        counters: &Counters,
    ) {
        let mut out = queue.start();
        for run in batch.iter() {
            let socket = run.tag as usize;
            match self.mode {
                Mode::Echo => {
                    count_received(&run, counters);
                    let mut to = SendTo::new(&self.sockets[socket], run.from);
                    to.from_ip = run.local_ip;
                    to.tos = run.tos;
                    out.push_strided(&to, run.bytes, run.stride, 0..usize::MAX);
                }
                Mode::Sink => state.examine(&run, &self.runs, counters),
                Mode::Source { .. } => {
                    state.examine(&run, &self.runs, counters);
                    state.remember(socket, &run);
                }
            }
        }
        note_sent(&out.flush(), counters);
    }

    /// Sends to every address what is due by now.
    fn send_streams(&self, queue: &mut SendQueue, state: &mut State, counters: &Counters) {
        let Mode::Source { rate, size } = self.mode else {
            return;
        };
        let now = clock::monotonic_ns();
        state
            .streams
            .retain(|_, stream| now.saturating_sub(stream.heard_ns) < SILENCE_NS);
        let schedule = Schedule::constant(rate);
        state.buffer.resize(size, 0);
        let mut out = queue.start();
        for (&(socket, to), stream) in &mut state.streams {
            let elapsed = Duration::from_nanos(now.saturating_sub(stream.started_ns));
            let due = schedule.due(elapsed).min(stream.sent + SOURCE_BURST);
            let mut send = SendTo::new(&self.sockets[socket], to);
            send.from_ip = stream.from_ip;
            state.payload.fill(&mut state.buffer, stream.flow);
            while stream.sent < due {
                let intended = schedule.intended(stream.sent).unwrap_or_default();
                let at = stream.started_ns + intended.as_nanos() as u64;
                Payload::stamp(&mut state.buffer, state.run, stream.sent, at);
                out.push_copied(&send, &state.buffer);
                stream.sent += 1;
            }
        }
        note_sent(&out.flush(), counters);
    }

    /// How long a source may sleep: a millisecond while it has anybody to send to.
    fn source_wait(&self, state: &State) -> Duration {
        if state.streams.is_empty() {
            STOP_CHECK
        } else {
            Duration::from_millis(1)
        }
    }
}

impl State {
    fn examine(&mut self, run: &Datagrams<'_>, runs: &Runs, counters: &Counters) {
        let now = clock::monotonic_ns();
        if run.truncated {
            // The rest was longer than the slot: no payload that can be measured is.
            counters.add(Counter::Truncated, run.segments().count() as u64);
            return;
        }
        for datagram in run.segments() {
            let stamp = match self.payload.check(datagram, self.run.key, now) {
                Ok(stamp) => stamp,
                Err(error) => {
                    counters.add(kind(error), 1);
                    continue;
                }
            };
            if !self.current.admits(stamp.run, now, runs) {
                counters.add(Counter::OtherRun, 1);
                continue;
            }
            let flow = (stamp.run, stamp.flow);
            if self.flows.len() >= MAX_FLOWS && !self.flows.contains_key(&flow) {
                counters.add(Counter::Foreign, 1);
                continue;
            }
            let tracker = || FlowTracker::with_memory(MAX_BLOCKS_PER_FLOW);
            let flow = self.flows.entry(flow).or_insert_with(tracker);
            flow.limit(match self.pieces < ALL_MEMORY {
                true => MAX_BLOCKS_PER_FLOW,
                false => 2,
            });
            let before = flow.held();
            let arrival = flow.arrived(stamp.sequence, stamp.intended_ns, now);
            self.pieces = self.pieces + flow.held() - before;
            match arrival {
                Arrival::Duplicate => counters.add(Counter::Duplicate, 1),
                Arrival::Late => counters.add(Counter::TooLate, 1),
                arrival => {
                    counters.add(Counter::Reordered, u64::from(arrival == Arrival::Reordered));
                    counters.add(Counter::Received, 1);
                    counters.add(Counter::ReceivedBytes, datagram.len() as u64);
                }
            }
        }
    }

    fn remember(&mut self, socket: usize, run: &Datagrams<'_>) {
        let now = clock::monotonic_ns();
        let flow = self.streams.len() as u32;
        if flow as usize >= MAX_FLOWS && !self.streams.contains_key(&(socket, run.from)) {
            return;
        }
        let stream = self
            .streams
            .entry((socket, run.from))
            .or_insert_with(|| Stream {
                from_ip: run.local_ip,
                flow,
                started_ns: now,
                heard_ns: now,
                sent: 0,
            });
        stream.heard_ns = now;
    }
}

/// How what cannot be read is counted.
fn kind(error: PayloadError) -> Counter {
    match error {
        PayloadError::Foreign => Counter::Foreign,
        PayloadError::Truncated => Counter::Truncated,
        PayloadError::Damaged => Counter::Damaged,
        PayloadError::Corrupt => Counter::Corrupt,
    }
}

/// A number that other runs do not have.
fn run_number() -> u32 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u32::from_ne_bytes(bytes),
        Err(_) => clock::monotonic_ns() as u32,
    }
}

fn count_received(run: &Datagrams<'_>, counters: &Counters) {
    let count = run.bytes.len().div_ceil(run.stride.max(1)).max(1);
    counters.add(Counter::Received, count as u64);
    counters.add(Counter::ReceivedBytes, run.bytes.len() as u64);
}

fn note_sent(flushed: &::io::Flushed, counters: &Counters) {
    counters.add(Counter::Sent, flushed.sent);
    counters.add(Counter::SentBytes, flushed.sent_bytes);
    counters.add(Counter::NotSent, flushed.dropped());
    counters.add(Counter::SendCalls, flushed.syscalls);
    counters.add(Counter::GsoRuns, flushed.gso_runs);
    counters.add(Counter::GsoSegments, flushed.gso_segments);
}
