//! A closed loop: one thread sends and receives, so that each response lets the next request leave.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use io::{Events, SendQueue, clock};

use super::Lane;
use super::end::{End, SendStats};
use super::live::LiveSecond;
use super::plan::Closed;
use super::receiver::Receiver;
use super::sender::{self, MAX_BURST};
use super::shared::Shared;
use crate::gather::Gather;
use crate::measure::Counters;

/// How often requests are given up that were not answered in time.
const SWEEP_INTERVAL: Duration = Duration::from_millis(10);
/// No lane has this flow.
const NO_LANE: u32 = u32::MAX;

/// A worker of a closed loop before it starts.
pub(super) struct Loop {
    receiver: Receiver,
    lanes: Vec<Window>,
    streams: usize,
    /// Which lane a flow is, by flow.
    by_flow: Vec<u32>,
    queue: SendQueue,
    gather: Gather,
    /// Lane and place of each datagram of a burst.
    burst: Vec<(u32, usize)>,
    /// Bursts so far.
    bursts: u64,
    settings: Closed,
    /// Requests that wait for a response.
    in_flight: u32,
    /// The lane whose turn it is.
    turn: usize,
}

/// A lane and its requests that wait for a response: sequence, and when they left.
struct Window {
    stream: usize,
    lane: Lane,
    waiting: VecDeque<(u64, u64)>,
}

impl Loop {
    /// `lanes` with their streams; the answers of each arrive at a tap of `receiver`. `settings.window` is this
    /// worker's own.
    pub(super) fn new(
        receiver: Receiver,
        lanes: Vec<(usize, Lane)>,
        streams: usize,
        flows: u32,
        settings: Closed,
    ) -> Loop {
        let mut by_flow = vec![NO_LANE; flows as usize];
        for (index, (_, lane)) in lanes.iter().enumerate() {
            by_flow[lane.flow as usize] = index as u32;
        }
        let window = |(stream, lane)| Window {
            stream,
            lane,
            waiting: VecDeque::new(),
        };
        Loop {
            receiver,
            lanes: lanes.into_iter().map(window).collect(),
            streams,
            by_flow,
            queue: sender::queue(None),
            gather: Gather::default(),
            burst: Vec::with_capacity(MAX_BURST as usize),
            bursts: 0,
            settings,
            in_flight: 0,
            turn: 0,
        }
    }

    pub(super) fn run(
        mut self,
        shared: &Shared,
        counters: &Counters,
        live: &Mutex<LiveSecond>,
    ) -> End {
        let (started, cpu) = (clock::monotonic_ns(), clock::thread_cpu_ns());
        let slots = MAX_BURST as usize / self.lanes.len().max(1) + 2;
        for window in &mut self.lanes {
            window.lane.prepare(slots);
        }
        self.receiver.begin(shared);
        std::thread::sleep(Duration::from_nanos(
            shared.origin_ns.saturating_sub(started),
        ));
        let mut events = Events::with_capacity(256);
        let mut left = SendStats::default();
        let mut sweep_ns = 0;
        while !shared.stopping() && clock::monotonic_ns() < shared.end_ns {
            self.fill(shared, counters, &mut left);
            if !self.receive(&mut events, shared, counters, &mut sweep_ns) {
                break;
            }
            self.receiver.hand_over(live, shared, false);
        }
        self.receiver.hand_over(live, shared, true);
        let stopped_ns = clock::monotonic_ns();
        let linger_ns = stopped_ns + shared.linger.as_nanos() as u64;
        while self.in_flight > 0 && clock::monotonic_ns() < linger_ns {
            if !self.receive(&mut events, shared, counters, &mut sweep_ns) {
                break;
            }
        }
        End {
            left,
            stopped_ns,
            cpu_ns: clock::thread_cpu_ns() - cpu,
            wall_ns: clock::monotonic_ns() - started,
            ..self.end()
        }
    }

    fn end(self) -> End {
        let mut lanes: Vec<Vec<Lane>> = (0..self.streams).map(|_| Vec::new()).collect();
        for window in self.lanes {
            lanes[window.stream].push(window.lane);
        }
        End {
            lanes,
            ..self.receiver.end()
        }
    }

    /// Sends until the window is full.
    fn fill(&mut self, shared: &Shared, counters: &Counters, left: &mut SendStats) {
        while self.in_flight < self.settings.window {
            let now = clock::monotonic_ns();
            let room = u64::from(self.settings.window - self.in_flight).min(MAX_BURST);
            let mut payload_bytes = 0;
            self.burst.clear();
            self.bursts += 1;
            for _ in 0..room {
                let window = &mut self.lanes[self.turn];
                window.waiting.push_back((window.lane.next_sequence(), now));
                window.lane.begin(self.bursts);
                let place = window.lane.stamp(1, &shared.stamps, |_| now);
                payload_bytes += window.lane.bytes(place, 1).1;
                self.burst.push((self.turn as u32, place));
                self.turn = (self.turn + 1) % self.lanes.len();
            }
            self.in_flight += room as u32;
            let mut out = self.queue.start();
            for &(lane, place) in &self.burst {
                let lane = &self.lanes[lane as usize].lane;
                match (lane.destination(place), lane.socket.connection()) {
                    (Some(to), _) => out.push(&to, lane.frame(place)),
                    (None, Some(connection)) => {
                        self.gather.queue(connection, &[lane.frame(place)]);
                    }
                    (None, None) => {}
                }
            }
            let mut flushed = out.flush();
            drop(out);
            flushed += self.gather.flush();
            sender::count(&flushed, 0, counters);
            left.flushed += flushed;
            if shared.measured(now) {
                left.measured += flushed.sent;
                left.measured_bytes += payload_bytes * flushed.sent / room;
                left.not_sent += flushed.dropped();
            }
            if flushed.dropped() > 0 {
                // What did not leave is given up like what is not answered: at a pace that the machine can follow.
                break;
            }
        }
    }

    /// Takes answers, and gives up on those that do not come. False if waiting is impossible.
    fn receive(
        &mut self,
        events: &mut Events,
        shared: &Shared,
        counters: &Counters,
        sweep_ns: &mut u64,
    ) -> bool {
        let (lanes, by_flow, in_flight) = (&mut self.lanes, &self.by_flow, &mut self.in_flight);
        let answered = |flow: u32, sequence: u64| {
            let lane = by_flow.get(flow as usize).copied().unwrap_or(NO_LANE);
            let Some(window) = lanes.get_mut(lane as usize) else {
                return;
            };
            let found = window
                .waiting
                .iter()
                .position(|&(sent, _)| sent == sequence);
            if let Some(place) = found {
                window.waiting.remove(place);
                *in_flight -= 1;
            }
        };
        let alive = self
            .receiver
            .receive(events, SWEEP_INTERVAL, shared, counters, answered);
        let now = clock::monotonic_ns();
        if self.gather.is_waiting() {
            self.gather.flush();
        }
        if now >= *sweep_ns {
            *sweep_ns = now + SWEEP_INTERVAL.as_nanos() as u64;
            self.give_up(now);
        }
        alive
    }

    fn give_up(&mut self, now_ns: u64) {
        let timeout_ns = self.settings.timeout.as_nanos() as u64;
        for window in &mut self.lanes {
            while let Some(&(_, left_ns)) = window.waiting.front() {
                if now_ns.saturating_sub(left_ns) < timeout_ns {
                    break;
                }
                window.waiting.pop_front();
                self.in_flight -= 1;
            }
        }
    }
}
