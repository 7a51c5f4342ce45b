//! A sender thread: follows its part of the schedules, whatever comes back.

use std::ops::Range;
use std::time::Duration;

use io::{Flushed, SendOptions, SendQueue, clock};

use super::Lane;
use super::end::{End, Left};
use super::share::Share;
use super::shared::Shared;
use crate::measure::{Counter, Counters, Schedule};

/// Datagrams stamped and handed over together, at most.
pub(super) const BURST: u64 = 256;
/// A send that leaves so much later than intended counts as late.
const LATE_NS: u64 = 1_000_000;
/// Longest sleep, so that a stop is noticed.
const NAP_NS: u64 = 20_000_000;
/// How long to let a full send buffer drain when there is no schedule to keep.
const DRAIN: Duration = Duration::from_micros(50);

/// A sender before it starts.
pub(super) struct Sender {
    tracks: Vec<Track>,
    streams: usize,
    queue: SendQueue,
    /// Lane and place of each datagram of a burst.
    burst: Vec<(u32, usize)>,
}

/// One sender's part of one stream.
pub(super) struct Track {
    /// Which stream.
    pub(super) stream: usize,
    pub(super) lanes: Vec<Lane>,
    pub(super) schedule: Option<Schedule>,
    pub(super) share: Share,
    /// The next of this sender's sends.
    next: u64,
    /// The first of them in the measured part, which a burst does not straddle.
    edge: u64,
}

/// What has been stamped for one burst.
#[derive(Clone, Copy, Default)]
struct Stamped {
    late: u64,
    payload_bytes: u64,
    frame_bytes: u64,
}

impl Track {
    pub(super) fn new(
        stream: usize,
        lanes: Vec<Lane>,
        schedule: Option<Schedule>,
        share: Share,
    ) -> Track {
        Track {
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
            self.edge = self.share.count(before);
        }
    }

    /// What is to be sent by now: at most a burst, not across the edge of the measured part.
    fn due(&self, now: u64, shared: &Shared) -> Range<u64> {
        let most = self.next + BURST;
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
        let since = self.schedule.as_ref()?.intended(self.share.global(n))?;
        Some(shared.origin_ns + since.as_nanos() as u64)
    }

    /// Stamps the sends `numbers` and notes lane and place of each.
    fn stamp(
        &mut self,
        numbers: Range<u64>,
        now: u64,
        shared: &Shared,
        burst: &mut Vec<(u32, usize)>,
    ) -> Stamped {
        let mut stamped = Stamped::default();
        let train = self.share.train();
        let (mut turn, mut within) = (numbers.start / train, numbers.start % train);
        let mut lane = (turn % self.lanes.len() as u64) as usize;
        for n in numbers {
            let intended = self.intended(n, shared).unwrap_or(now);
            stamped.late += u64::from(now.saturating_sub(intended) > LATE_NS);
            let sending = &mut self.lanes[lane];
            let place = sending.stamp(shared.origin_ns, intended);
            stamped.payload_bytes += sending.payload_len(place) as u64;
            stamped.frame_bytes += sending.frame(place).len() as u64;
            burst.push((lane as u32, place));
            within += 1;
            if within == train {
                (turn, within) = (turn + 1, 0);
                lane = (turn % self.lanes.len() as u64) as usize;
            }
        }
        stamped
    }
}

impl Sender {
    pub(super) fn new(tracks: Vec<Track>, streams: usize, gso: Option<usize>) -> Sender {
        Sender {
            tracks,
            streams,
            queue: queue(gso),
            burst: Vec::with_capacity(BURST as usize),
        }
    }

    pub(super) fn run(mut self, shared: &Shared, counters: &Counters) -> End {
        clock::sleep_precisely();
        let (started, cpu) = (clock::monotonic_ns(), clock::thread_cpu_ns());
        for track in &mut self.tracks {
            // Here and not before: memory that a thread writes should be its own, down to the cache line.
            track.prepare(shared);
        }
        let mut left = Left::default();
        while !shared.stopping() {
            let now = clock::monotonic_ns();
            if now >= shared.end_ns {
                break;
            }
            let mut idle = now >= shared.origin_ns;
            if idle {
                for index in 0..self.tracks.len() {
                    idle &= !self.turn(index, now, shared, counters, &mut left);
                }
            } else {
                idle = true;
            }
            if idle {
                self.wait(shared);
            }
        }
        self.end(left, started, cpu)
    }

    fn end(self, left: Left, started: u64, cpu: u64) -> End {
        let mut lanes: Vec<Vec<Lane>> = (0..self.streams).map(|_| Vec::new()).collect();
        for track in self.tracks {
            lanes[track.stream] = track.lanes;
        }
        End {
            left,
            lanes,
            cpu_ns: clock::thread_cpu_ns() - cpu,
            wall_ns: clock::monotonic_ns() - started,
            stopped_ns: clock::monotonic_ns(),
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
        left: &mut Left,
    ) -> bool {
        let track = &mut self.tracks[index];
        let numbers = track.due(now, shared);
        if numbers.is_empty() {
            return false;
        }
        track.next = numbers.end;
        let first = track.intended(numbers.start, shared).unwrap_or(now);
        self.burst.clear();
        let stamped = track.stamp(numbers, now, shared, &mut self.burst);
        let mut out = self.queue.start();
        for &(lane, place) in &self.burst {
            let lane = &track.lanes[lane as usize];
            out.push(&lane.destination(place), lane.frame(place));
        }
        let flushed = out.flush();
        drop(out);
        count(&flushed, stamped.late, counters);
        left.flushed += flushed;
        if shared.measured(first) {
            left.measured += flushed.sent;
            left.requests += if track.lanes[0].is_measured() {
                flushed.sent
            } else {
                0
            };
            // Exact unless something did not leave.
            left.measured_bytes += (u128::from(flushed.sent_bytes)
                * u128::from(stamped.payload_bytes)
                / u128::from(stamped.frame_bytes.max(1))) as u64;
            left.late += stamped.late;
            left.not_sent += flushed.dropped();
        }
        if flushed.would_block > 0 && track.schedule.is_none() {
            std::thread::sleep(DRAIN);
        }
        true
    }

    /// Sleeps until the next send of any stream is due.
    fn wait(&self, shared: &Shared) {
        let now = clock::monotonic_ns();
        let next = |track: &Track| match &track.schedule {
            Some(_) => track.intended(track.next, shared),
            None => Some(shared.origin_ns),
        };
        let until = self.tracks.iter().filter_map(next).min();
        let until = until.unwrap_or(u64::MAX).min(shared.end_ns);
        let rest = until.saturating_sub(now).min(NAP_NS);
        if rest > 0 {
            std::thread::sleep(Duration::from_nanos(rest));
        }
    }
}

pub(super) fn queue(gso: Option<usize>) -> SendQueue {
    SendQueue::new(&SendOptions {
        gso: gso.is_some(),
        max_segments: gso.unwrap_or(1).max(1),
        capacity: BURST as usize,
    })
}

/// Frames a lane needs so that no burst uses one twice.
fn slots(lanes: u64, train: u64) -> usize {
    let turns = BURST / (train * lanes.max(1)) + 2;
    (turns * train).min(BURST) as usize
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
                for n in start..start + BURST {
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
}
