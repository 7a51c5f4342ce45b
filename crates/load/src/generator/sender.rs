//! A sender thread: follows its part of the schedules, regardless of responses.

use std::ops::{AddAssign, Range};
use std::time::Duration;

use io::{Flushed, SendOptions, SendQueue, clock};

use super::Lane;
use super::end::{End, SendStats};
use super::share::Share;
use super::shared::Shared;
use super::train::Trains;
use crate::gather::Gather;
use crate::measure::{Counter, Counters, Schedule};

/// Datagrams stamped and handed over together, at most.
pub(super) const MAX_BURST: u64 = 256;
/// A send that leaves so much later than intended counts as late.
const LATE_NS: u64 = 1_000_000;
/// Longest sleep, so that a stop is noticed.
const NAP_NS: u64 = 20_000_000;
/// How soon a full socket of a connection is tried again.
const RETRY_NS: u64 = 200_000;
/// How long to let a full send buffer drain when there is no schedule to keep.
const DRAIN_TIME: Duration = Duration::from_micros(50);

/// A sender before it starts.
pub(super) struct Sender {
    tracks: Vec<SenderStream>,
    streams: usize,
    queue: SendQueue,
    trains: Option<Trains>,
    gather: Gather,
    runs: Vec<Run>,
    /// When each datagram of the burst was meant to leave.
    meant: Vec<u64>,
    /// Bursts so far.
    bursts: u64,
}

/// One sender's part of one stream.
pub(super) struct SenderStream {
    /// Which stream.
    stream: usize,
    lanes: Vec<Lane>,
    schedule: Option<Schedule>,
    share: Share,
    /// The next of this sender's sends.
    next: u64,
    /// The first of them in the measured part, which a burst does not straddle.
    edge: u64,
}

/// Datagrams of a burst that are one lane's, one after the other.
#[derive(Clone, Copy)]
pub(super) struct Run {
    lane: usize,
    pub(super) place: usize,
    pub(super) count: usize,
}

/// What has been stamped for one burst.
#[derive(Clone, Copy, Default)]
struct StampedBurst {
    late: u64,
    frame_bytes: u64,
    payload_bytes: u64,
}

impl AddAssign for StampedBurst {
    fn add_assign(&mut self, more: StampedBurst) {
        self.late += more.late;
        self.frame_bytes += more.frame_bytes;
        self.payload_bytes += more.payload_bytes;
    }
}

impl SenderStream {
    pub(super) fn new(
        stream: usize,
        lanes: Vec<Lane>,
        schedule: Option<Schedule>,
        share: Share,
    ) -> SenderStream {
        SenderStream {
            stream,
            lanes,
            schedule,
            share,
            next: 0,
            edge: 0,
        }
    }

    fn prepare(&mut self, shared: &Shared) {
        let slots = slots(self.lanes.len() as u64, self.share.train());
        for lane in &mut self.lanes {
            lane.prepare(slots);
        }
        if let Some(schedule) = &self.schedule {
            // The last send due just before the measured part still belongs to the warm-up.
            let before = schedule.due(shared.warm_up().saturating_sub(Duration::from_nanos(1)));
            self.edge = self.exactly(self.share.count(before), shared);
        }
    }

    /// The first send of the measured part, near `guess`. The number of due sends and the due time of a send may differ
    /// by rounding; receivers use the due time.
    fn exactly(&self, guess: u64, shared: &Shared) -> u64 {
        let meant_for_it = |n: u64| {
            let intended = self.intended(n, shared);
            intended.is_some_and(|intended_ns| intended_ns >= shared.measure_ns)
        };
        let mut first = guess;
        while first > 0 && meant_for_it(first - 1) {
            first -= 1;
        }
        first
    }

    /// What is to be sent by now: at most a burst, not across the edge of the measured part.
    fn due(&self, now: u64, shared: &Shared) -> Range<u64> {
        let most = self.next + MAX_BURST;
        let Some(schedule) = &self.schedule else {
            return self.next..most;
        };
        let elapsed = Duration::from_nanos(now.saturating_sub(shared.origin_ns));
        let due = self.share.count(schedule.due(elapsed)).min(most);
        let end = if self.next < self.edge {
            due.min(self.edge)
        } else {
            due
        };
        self.next..end.max(self.next)
    }

    /// When send `n` is due; `None` is never.
    fn intended(&self, n: u64, shared: &Shared) -> Option<u64> {
        self.schedule
            .as_ref()
            .and_then(|schedule| at(schedule, self.share.global(n), shared))
    }

    /// Stamps the sends `numbers` for burst number `burst`, and notes them run by run.
    fn stamp(
        &mut self,
        numbers: Range<u64>,
        burst: u64,
        now: u64,
        shared: &Shared,
        (runs, meant): (&mut Vec<Run>, &mut Vec<u64>),
    ) -> StampedBurst {
        let mut stamped = StampedBurst::default();
        let train = self.share.train();
        let mut n = numbers.start;
        while n < numbers.end {
            let (turn, within) = (n / train, n % train);
            let count = (train - within).min(numbers.end - n);
            let index = (turn % self.lanes.len() as u64) as usize;
            let first = self.share.global(n);
            let schedule = self.schedule.as_ref();
            let mut late = 0;
            let intended = |more| {
                let due = schedule.and_then(|schedule| at(schedule, first + more, shared));
                let due = due.unwrap_or(now);
                late += u64::from(now.saturating_sub(due) > LATE_NS);
                meant.push(due);
                due
            };
            let lane = &mut self.lanes[index];
            lane.begin(burst);
            let place = lane.stamp(count as usize, &shared.stamps, intended);
            let (frame_bytes, payload_bytes) = lane.bytes(place, count as usize);
            stamped.late += late;
            stamped.frame_bytes += frame_bytes;
            stamped.payload_bytes += payload_bytes;
            runs.push(Run {
                lane: index,
                place,
                count: count as usize,
            });
            n += count;
        }
        stamped
    }
}

impl Sender {
    pub(super) fn new(tracks: Vec<SenderStream>, streams: usize, gso: Option<usize>) -> Sender {
        Sender {
            tracks,
            streams,
            queue: queue(gso),
            trains: gso.map(Trains::new),
            gather: Gather::default(),
            runs: Vec::with_capacity(MAX_BURST as usize),
            meant: Vec::with_capacity(MAX_BURST as usize),
            bursts: 0,
        }
    }

    pub(super) fn run(mut self, shared: &Shared, counters: &Counters) -> End {
        clock::sleep_precisely();
        let (started, cpu) = (clock::monotonic_ns(), clock::thread_cpu_ns());
        for track in &mut self.tracks {
            // Here and not before: memory that a thread writes should be its own, down to the cache line.
            track.prepare(shared);
        }
        let mut left = SendStats::default();
        while !shared.stopping() {
            let now = clock::monotonic_ns();
            if now >= shared.end_ns {
                break;
            }
            let mut idle = true;
            if now >= shared.origin_ns {
                for index in 0..self.tracks.len() {
                    idle &= !self.turn(index, now, shared, counters, &mut left);
                }
            }
            if idle {
                self.wait(shared);
            }
        }
        let stopped_ns = clock::monotonic_ns();
        self.drain(stopped_ns + shared.linger.as_nanos() as u64);
        let end = self.end(left, started, cpu);
        End { stopped_ns, ..end }
    }

    /// Writes what waits for full sockets, until `until_ns` at the latest.
    fn drain(&mut self, until_ns: u64) {
        while self.gather.is_waiting() && clock::monotonic_ns() < until_ns {
            std::thread::sleep(Duration::from_nanos(RETRY_NS));
            self.gather.flush();
        }
    }

    fn end(self, left: SendStats, started: u64, cpu: u64) -> End {
        let mut lanes: Vec<Vec<Lane>> = (0..self.streams).map(|_| Vec::new()).collect();
        for track in self.tracks {
            lanes[track.stream] = track.lanes;
        }
        let now = clock::monotonic_ns();
        End {
            left,
            lanes,
            cpu_ns: clock::thread_cpu_ns() - cpu,
            wall_ns: now - started,
            ..End::default()
        }
    }

    /// Sends what is due of one stream; false if nothing was.
    fn turn(
        &mut self,
        index: usize,
        now: u64,
        shared: &Shared,
        counters: &Counters,
        left: &mut SendStats,
    ) -> bool {
        let track = &mut self.tracks[index];
        let numbers = track.due(now, shared);
        if numbers.is_empty() {
            return false;
        }
        track.next = numbers.end;
        let first = track.intended(numbers.start, shared).unwrap_or(now);
        let mut stamped = StampedBurst::default();
        let mut flushed = Flushed::default();
        let mut n = numbers.start;
        while n < numbers.end {
            // A train leaves at once, and the next one takes its place in memory that is still warm.
            let end = match self.trains {
                Some(_) => track.share.end_of_train(n).min(numbers.end),
                None => numbers.end,
            };
            self.bursts += 1;
            self.runs.clear();
            let room = (&mut self.runs, &mut self.meant);
            stamped += track.stamp(n..end, self.bursts, now, shared, room);
            let (queue, gather) = (&mut self.queue, &mut self.gather);
            flushed += send(queue, gather, self.trains.as_mut(), track, &self.runs);
            n = end;
        }
        count(&flushed, stamped.late, counters);
        left.flushed += flushed;
        if shared.measured(first) {
            let gone_ns = clock::monotonic_ns();
            for meant_ns in self.meant.drain(..) {
                left.delay.record_ns(gone_ns.saturating_sub(meant_ns));
            }
            left.note(&flushed, stamped.payload_bytes, stamped.frame_bytes);
            left.late += stamped.late;
            if track.lanes[0].is_measured() {
                left.requests += flushed.sent;
            }
        }
        self.meant.clear();
        if flushed.would_block > 0 && track.schedule.is_none() {
            std::thread::sleep(DRAIN_TIME);
        }
        true
    }

    /// Sleeps until the next send of any stream is due.
    fn wait(&mut self, shared: &Shared) {
        let now = clock::monotonic_ns();
        let nap_ns = if self.gather.is_waiting() {
            // What waits for a full socket leaves soon after there is room.
            self.gather.flush();
            RETRY_NS
        } else {
            NAP_NS
        };
        let next = |track: &SenderStream| match &track.schedule {
            Some(_) => track.intended(track.next, shared),
            None => Some(shared.origin_ns),
        };
        let until = self.tracks.iter().filter_map(next).min();
        let until = until.unwrap_or(u64::MAX).min(shared.end_ns);
        let rest = until.saturating_sub(now).min(nap_ns);
        if rest > 0 {
            std::thread::sleep(Duration::from_nanos(rest));
        }
    }
}

/// When the global send `n` of a schedule is due; `None` is never.
fn at(schedule: &Schedule, n: u64, shared: &Shared) -> Option<u64> {
    let since = schedule.intended(n)?;
    Some(shared.origin_ns + since.as_nanos() as u64)
}

/// Sends what was stamped: each run as a train where that is wanted and possible, the rest through the queue.
fn send(
    queue: &mut SendQueue,
    gather: &mut Gather,
    mut trains: Option<&mut Trains>,
    track: &SenderStream,
    runs: &[Run],
) -> Flushed {
    let mut sent = Flushed::default();
    let mut out = queue.start();
    for run in runs {
        let lane = &track.lanes[run.lane];
        let mut rest = run.place..run.place + run.count;
        if let Some(connection) = lane.socket.connection() {
            gather.queue_all(connection, rest.map(|place| lane.frame(place)));
            continue;
        }
        if let Some(trains) = &mut trains {
            rest.start += trains.send(lane, run, &mut sent);
        }
        for place in rest {
            if let Some(to) = lane.destination(place) {
                out.push(&to, lane.frame(place));
            }
        }
    }
    sent += out.flush();
    sent += gather.flush();
    sent
}

pub(super) fn queue(gso: Option<usize>) -> SendQueue {
    SendQueue::new(&SendOptions {
        gso: gso.is_some(),
        max_segments: gso.unwrap_or(1).max(1),
        capacity: MAX_BURST as usize,
    })
}

/// Frames a lane needs so that no burst uses one twice.
fn slots(lanes: u64, train: u64) -> usize {
    let turns = MAX_BURST / (train * lanes.max(1)) + 2;
    (turns * train).min(MAX_BURST) as usize
}

pub(super) fn count(flushed: &Flushed, late: u64, counters: &Counters) {
    counters.add(Counter::Sent, flushed.sent);
    counters.add(Counter::SentBytes, flushed.sent_bytes);
    counters.add(Counter::NotSent, flushed.dropped());
    counters.add(Counter::Late, late);
    counters.add(Counter::SendCalls, flushed.syscalls);
    counters.add(Counter::GsoRuns, flushed.gso_runs);
    counters.add(Counter::GsoSegments, flushed.gso_segments);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_burst_uses_a_frame_twice() {
        for (lanes, train) in [
            (1, 1),
            (3, 1),
            (64, 1),
            (64, 8),
            (1000, 1),
            (5, 300),
            (255, 1),
            (7, 40),
        ] {
            let slots = slots(lanes, train);
            for start in [0, 1, train / 2, train * lanes - 1] {
                let mut used = vec![0usize; lanes as usize];
                for n in start..start + MAX_BURST {
                    used[(n / train % lanes) as usize] += 1;
                }
                let most = used.iter().max().copied().unwrap_or(0);
                assert!(
                    most <= slots,
                    "{lanes} lanes, trains of {train}: {most} > {slots}"
                );
            }
        }
    }
    #[test]
    fn the_measured_part_begins_with_the_first_send_meant_for_it() {
        let ramps = ["0:100,1s:2k", "0:1k", "0:48k", "0:333,3s:7777"];
        for (ramp, milliseconds) in ramps
            .into_iter()
            .flat_map(|ramp| [(ramp, 200), (ramp, 1000)])
        {
            let mut plan = crate::generator::Plan::of_flows("test", "nobody", vec![], vec![]);
            plan.warm_up = Duration::from_millis(milliseconds);
            let shared = Shared::new(&plan);
            let schedule = Schedule::ramp(ramp).unwrap();
            for burst in [1, 7] {
                let schedule = schedule.clone().with_burst(burst);
                let mut track =
                    SenderStream::new(0, vec![], Some(schedule), Share::new(0, 1, 1, 1));
                track.prepare(&shared);
                let intended = |n| track.intended(n, &shared).unwrap();
                assert!(intended(track.edge) >= shared.measure_ns, "{ramp} {burst}");
                let last = track.edge.checked_sub(1).map(intended);
                assert!(last < Some(shared.measure_ns), "{ramp} {burst}");
            }
        }
    }
}
