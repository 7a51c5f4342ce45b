//! A sender thread: follows its part of the schedule, whatever comes back.

use std::sync::atomic::Ordering;
use std::time::Duration;

use io::{Flushed, SendOptions, SendQueue, SendTo, clock};

use super::Lane;
use super::run::Shared;
use crate::measure::{Counter, Counters, Schedule};

/// Datagrams stamped and handed over together, at most.
const BURST: u64 = 256;
/// A send that leaves so much later than intended counts as late.
const LATE_NS: u64 = 1_000_000;
/// Sleeping is precise to about this much; what is nearer is waited for awake.
const SLEEP_SLACK_NS: u64 = 60_000;
/// Longest sleep, so that a stop is noticed.
const NAP_NS: u64 = 50_000_000;

/// A sender before it starts.
pub(super) struct Sender {
    lanes: Vec<Lane>,
    schedule: Option<Schedule>,
    train: u64,
    queue: SendQueue,
    /// Lane and slot of each datagram of a burst.
    burst: Vec<(usize, usize)>,
}

/// What a sender says at its end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SenderEnd {
    /// Datagrams that left within the measured part, and their payload bytes.
    pub(super) measured: u64,
    pub(super) measured_bytes: u64,
    pub(super) late: u64,
    pub(super) not_sent: u64,
    pub(super) cpu_ns: u64,
    pub(super) wall_ns: u64,
}

impl Sender {
    pub(super) fn new(
        mut lanes: Vec<Lane>,
        schedule: Option<Schedule>,
        train: u64,
        gso: Option<usize>,
    ) -> Sender {
        let train = train.max(1);
        let slots = slots(lanes.len() as u64, train);
        for lane in &mut lanes {
            lane.prepare(slots);
        }
        let queue = SendQueue::new(&SendOptions {
            gso: gso.is_some(),
            max_segments: gso.unwrap_or(1).max(1),
            capacity: BURST as usize,
        });
        Sender {
            lanes,
            schedule,
            train,
            queue,
            burst: Vec::with_capacity(BURST as usize),
        }
    }

    pub(super) fn run(mut self, shared: &Shared, counters: &Counters) -> SenderEnd {
        let mut end = SenderEnd::default();
        let (started, cpu) = (clock::monotonic_ns(), clock::thread_cpu_ns());
        let mut next = 0u64;
        while !shared.stop_sending.load(Ordering::Relaxed) {
            let now = clock::monotonic_ns();
            if now >= shared.end_ns {
                break;
            }
            let due = self.due(next, now.saturating_sub(shared.origin_ns), shared);
            if due <= next {
                self.wait(next, now, shared);
                continue;
            }
            self.send(next..due, now, shared, counters, &mut end);
            next = due;
        }
        end.cpu_ns = clock::thread_cpu_ns() - cpu;
        end.wall_ns = clock::monotonic_ns() - started;
        end
    }

    /// The end of the burst that starts at `next`: what is due, at most BURST, not across an edge of the measured part.
    fn due(&self, next: u64, elapsed_ns: u64, shared: &Shared) -> u64 {
        let Some(schedule) = &self.schedule else {
            return next + BURST;
        };
        let due = schedule
            .due(Duration::from_nanos(elapsed_ns))
            .min(next + BURST);
        let edge = Duration::from_nanos(shared.measure_ns - shared.origin_ns);
        let edge = schedule.due(edge).saturating_sub(1);
        if next < edge && edge < due { edge } else { due }
    }

    fn intended(&self, n: u64, now: u64, shared: &Shared) -> u64 {
        match &self.schedule {
            None => now,
            Some(schedule) => schedule
                .intended(n)
                .map_or(now, |since| shared.origin_ns + since.as_nanos() as u64),
        }
    }

    fn wait(&self, next: u64, now: u64, shared: &Shared) {
        let until = self
            .schedule
            .as_ref()
            .and_then(|schedule| schedule.intended(next))
            .map_or(now + NAP_NS, |since| {
                shared.origin_ns + since.as_nanos() as u64
            });
        let rest = until.saturating_sub(now).min(NAP_NS);
        if rest > SLEEP_SLACK_NS {
            std::thread::sleep(Duration::from_nanos(rest - SLEEP_SLACK_NS));
        } else {
            std::hint::spin_loop();
        }
    }

    fn send(
        &mut self,
        numbers: std::ops::Range<u64>,
        now: u64,
        shared: &Shared,
        counters: &Counters,
        end: &mut SenderEnd,
    ) {
        let first_intended = self.intended(numbers.start, now, shared);
        let mut late = 0;
        self.burst.clear();
        for n in numbers {
            let intended = self.intended(n, now, shared);
            late += u64::from(now.saturating_sub(intended) > LATE_NS);
            let lane = (n / self.train % self.lanes.len() as u64) as usize;
            let slot = self.lanes[lane].stamp(shared.origin_ns, intended);
            self.burst.push((lane, slot));
        }
        let mut out = self.queue.start();
        for &(lane, slot) in &self.burst {
            let lane = &self.lanes[lane];
            out.push(&SendTo::new(&lane.socket, lane.to), lane.frame(slot));
        }
        let flushed = out.flush();
        drop(out);
        count(&flushed, late, counters);
        if shared.measured(first_intended) {
            end.measured += flushed.sent;
            end.measured_bytes += flushed.sent * self.lanes[0].payload_len() as u64;
            end.late += late;
            end.not_sent += flushed.dropped();
        }
    }
}

/// Frames a lane needs so that no burst uses one twice.
fn slots(lanes: u64, train: u64) -> usize {
    let turns = BURST / (train * lanes.max(1)) + 2;
    (turns * train).min(BURST) as usize
}

fn count(flushed: &Flushed, late: u64, counters: &Counters) {
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
