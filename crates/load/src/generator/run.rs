//! A run: the threads of a plan, watched second by second, summed up at the end.

use std::io as stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use io::{Offloads, clock};

use super::plan::{Plan, PlanError, deal};
use super::receiver::{Receiver, ReceiverEnd};
use super::sender::{Sender, SenderEnd};
use super::warnings;
use crate::measure::{Counter, Counters, Latency, Snapshot};
use crate::report::{LoadReport, Second, Sending, ThreadUse};

/// What every thread of a run reads. Written once, but for the two flags.
#[derive(Debug)]
pub(super) struct Shared {
    /// Time zero of the schedule.
    pub(super) origin_ns: u64,
    /// The measured part: from here ..
    pub(super) measure_ns: u64,
    /// .. to here, where the senders stop.
    pub(super) end_ns: u64,
    pub(super) stop_sending: AtomicBool,
    pub(super) stop_receiving: AtomicBool,
}

impl Shared {
    pub(super) fn measured(&self, intended_ns: u64) -> bool {
        (self.measure_ns..self.end_ns).contains(&intended_ns)
    }
}

/// Why a run could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The plan makes no sense.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// No epoll instance or no thread.
    #[error("cannot start a thread of the generator: {0}")]
    Thread(#[from] stdio::Error),
}

/// Ends a run early, from any thread or a signal's.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// No datagram leaves after this; what is on its way is still counted.
    pub fn stop(&self) {
        self.0.stop_sending.store(true, Ordering::Relaxed);
    }
}

/// A run under way.
#[derive(Debug)]
pub struct Run {
    report: LoadReport,
    shared: Arc<Shared>,
    linger: Duration,
    counters: Arc<[Counters]>,
    live: Arc<[Mutex<Latency>]>,
    senders: Vec<JoinHandle<SenderEnd>>,
    receivers: Vec<JoinHandle<ReceiverEnd>>,
    last: Snapshot,
    last_ns: u64,
}

/// Between starting the threads and time zero of the schedule.
const HEAD_START_NS: u64 = 20_000_000;

impl Run {
    /// Starts the threads of `plan`.
    ///
    /// # Errors
    /// [`RunError`]; nothing was sent then.
    pub fn start(plan: Plan) -> Result<Run, RunError> {
        plan.check()?;
        let offloads = Offloads::probe();
        let gso = (plan.gso && offloads.gso).then_some(offloads.max_segments);
        let origin_ns = clock::monotonic_ns() + HEAD_START_NS;
        let measure_ns = origin_ns + plan.warm_up.as_nanos() as u64;
        let shared = Arc::new(Shared {
            origin_ns,
            measure_ns,
            end_ns: measure_ns + plan.duration.as_nanos() as u64,
            stop_sending: AtomicBool::new(false),
            stop_receiving: AtomicBool::new(false),
        });
        let threads = plan.senders + plan.receivers;
        let mut run = Run {
            report: head(&plan),
            shared,
            linger: plan.linger,
            counters: (0..threads).map(|_| Counters::new()).collect(),
            live: (0..plan.receivers).map(|_| Mutex::default()).collect(),
            senders: Vec::new(),
            receivers: Vec::new(),
            last: Snapshot::default(),
            last_ns: origin_ns,
        };
        run.spawn(plan, gso)?;
        Ok(run)
    }

    fn spawn(&mut self, plan: Plan, gso: Option<usize>) -> stdio::Result<()> {
        let senders = plan.senders;
        for (index, taps) in deal(plan.taps, plan.receivers).into_iter().enumerate() {
            let receiver = Receiver::new(taps, plan.flows, true)?;
            let (shared, counters, live) = (
                self.shared.clone(),
                self.counters.clone(),
                self.live.clone(),
            );
            let thread = thread("receiver", index)
                .spawn(move || receiver.run(&shared, &counters[senders + index], &live[index]))?;
            self.receivers.push(thread);
        }
        for (index, lanes) in deal(plan.lanes, senders).into_iter().enumerate() {
            if lanes.is_empty() {
                continue;
            }
            let schedule = plan
                .schedule
                .as_ref()
                .map(|schedule| schedule.shard(senders));
            let sender = Sender::new(lanes, schedule, plan.train, gso);
            let (shared, counters) = (self.shared.clone(), self.counters.clone());
            let thread =
                thread("sender", index).spawn(move || sender.run(&shared, &counters[index]))?;
            self.senders.push(thread);
        }
        Ok(())
    }

    /// A handle that ends the run early.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(self.shared.clone())
    }

    /// Waits for the end of the current second and says what happened in it; `None` when the senders are done.
    pub fn next_second(&mut self) -> Option<Second> {
        let until = self.last_ns + 1_000_000_000;
        loop {
            if self.senders.iter().all(JoinHandle::is_finished) {
                return None;
            }
            let now = clock::monotonic_ns();
            if now >= until {
                break;
            }
            std::thread::sleep(Duration::from_nanos((until - now).min(50_000_000)));
        }
        let second = self.sample(until);
        self.report.seconds.push(second);
        Some(second)
    }

    fn sample(&mut self, at_ns: u64) -> Second {
        let now = Snapshot::of(self.counters.iter());
        let change = now.since(&self.last);
        let seconds = (at_ns - self.last_ns) as f64 / 1e9;
        let mut latency = Latency::new();
        for live in self.live.iter() {
            if let Ok(mut live) = live.lock() {
                latency.merge(&live);
                live.clear();
            }
        }
        (self.last, self.last_ns) = (now, at_ns);
        let (sent, received) = (change.get(Counter::Sent), change.get(Counter::Received));
        Second {
            at_s: (at_ns - self.shared.origin_ns) as f64 / 1e9,
            send_pps: sent as f64 / seconds,
            recv_pps: received as f64 / seconds,
            missing: sent as i64 - received as i64,
            p50_us: latency.percentile_us(50.0),
            p99_us: latency.percentile_us(99.0),
            warm_up: at_ns <= self.shared.measure_ns,
        }
    }

    /// Waits for the senders, lingers, stops the receivers and sums up.
    #[must_use]
    pub fn finish(mut self) -> LoadReport {
        while self.next_second().is_some() {}
        let stopped = self.shared.stop_sending.load(Ordering::Relaxed);
        let senders: Vec<SenderEnd> = join(std::mem::take(&mut self.senders));
        let ended_ns = clock::monotonic_ns().min(self.shared.end_ns);
        std::thread::sleep(self.linger);
        self.shared.stop_receiving.store(true, Ordering::Relaxed);
        let receivers: Vec<ReceiverEnd> = join(std::mem::take(&mut self.receivers));
        if stopped {
            self.report.ended_early = Some("stopped by the user".to_owned());
        }
        let measured_ns = ended_ns.saturating_sub(self.shared.measure_ns);
        self.report.run.measured_s = measured_ns as f64 / 1e9;
        self.sum(&senders, &receivers);
        self.report.warnings = warnings::of(&self.report);
        self.report
    }

    fn sum(&mut self, senders: &[SenderEnd], receivers: &[ReceiverEnd]) {
        let all = Snapshot::of(self.counters.iter());
        let total = &mut self.report.total;
        for end in senders {
            total.sent += end.measured;
            total.sent_bytes += end.measured_bytes;
            total.late += end.late;
            total.not_sent += end.not_sent;
        }
        let mut latency = Latency::new();
        let mut jitter = (0.0, 0u32);
        for end in receivers {
            total.received += end.measured.received;
            total.received_bytes += end.measured.received_bytes;
            total.reordered += end.measured.reordered;
            total.duplicates += end.measured.duplicates;
            latency.merge(&end.measured.latency);
            for (&code, &count) in &end.measured.errors {
                *self.report.errors.entry(code).or_default() += count;
            }
            jitter.0 += end.jitter_ns.iter().sum::<f64>();
            jitter.1 += end.jitter_ns.len() as u32;
        }
        total.corrupt = all.get(Counter::Corrupt);
        total.overflow = all.get(Counter::Overflow);
        total.lost = total.sent.saturating_sub(total.received);
        self.report.latency = latency.report().into();
        self.report.jitter_us = jitter.0 / f64::from(jitter.1.max(1)) / 1e3;
        self.report.sending = sending(&all);
        self.report.threads = self.threads(senders, receivers);
    }

    fn threads(&self, senders: &[SenderEnd], receivers: &[ReceiverEnd]) -> Vec<ThreadUse> {
        let cpu = |cpu_ns: u64, wall_ns: u64| cpu_ns as f64 / wall_ns.max(1) as f64;
        let one = |name: &str, index: usize, place: usize, share: f64| ThreadUse {
            name: format!("{name}-{index}"),
            sent: self.counters[place].get(Counter::Sent),
            received: self.counters[place].get(Counter::Received),
            cpu: share,
        };
        let first_receiver = self.counters.len() - receivers.len();
        let senders = senders
            .iter()
            .enumerate()
            .map(|(index, end)| one("sender", index, index, cpu(end.cpu_ns, end.wall_ns)));
        let receivers = receivers.iter().enumerate().map(|(index, end)| {
            one(
                "receiver",
                index,
                first_receiver + index,
                cpu(end.cpu_ns, end.wall_ns),
            )
        });
        senders.chain(receivers).collect()
    }
}

fn head(plan: &Plan) -> LoadReport {
    let mut report = LoadReport::empty();
    report.run.argv = std::env::args().collect();
    report.run.version = env!("CARGO_PKG_VERSION").to_owned();
    report.run.kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default();
    report.run.cpus = std::thread::available_parallelism().map_or(1, usize::from);
    report.run.started_unix_s = clock::unix_s();
    report.run.target.clone_from(&plan.target);
    report.run.workload.clone_from(&plan.workload);
    report.run.settings.clone_from(&plan.settings);
    report.run.latency_is.clone_from(&plan.latency_is);
    report.run.warm_up_s = plan.warm_up.as_secs_f64();
    report.run.offered_rate = plan.schedule.as_ref().map(|schedule| {
        let (from, to) = (plan.warm_up, plan.warm_up + plan.duration);
        (schedule.due(to) - schedule.due(from)) as f64 / plan.duration.as_secs_f64().max(1e-9)
    });
    report
}

fn sending(all: &Snapshot) -> Sending {
    let (calls, sent) = (all.get(Counter::SendCalls), all.get(Counter::Sent));
    let segments = all.get(Counter::GsoSegments);
    let method = match () {
        () if segments > 0 => "UDP_SEGMENT",
        () if calls < sent => "sendmmsg",
        () => "sendto",
    };
    Sending {
        method: method.to_owned(),
        calls,
        gso_runs: all.get(Counter::GsoRuns),
        gso_segments: segments,
    }
}

fn thread(name: &str, index: usize) -> std::thread::Builder {
    std::thread::Builder::new().name(format!("{name}-{index}"))
}

/// The ends of all threads; one that panicked has said why on stderr and counts as nothing.
fn join<T: Default>(threads: Vec<JoinHandle<T>>) -> Vec<T> {
    threads
        .into_iter()
        .map(|thread| thread.join().unwrap_or_default())
        .collect()
}
