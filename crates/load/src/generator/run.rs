//! A run: the threads of a plan, watched second by second, summed up at the end.

use std::io as stdio;
use std::thread::JoinHandle;
use std::time::Duration;

use io::clock;

use super::end::End;
use super::plan::{Plan, PlanError, Work};
use super::release::release;
use super::run_threads::RunThreads;
use super::watch::Watch;
use super::watched::Watched;
use super::{ReceiveSocket, Stopper, kernel, live, sum};
use crate::measure::{Counter, Snapshot};
use crate::report::{Ending, KernelDrops, LoadReport, Second};

/// Why a run could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The plan makes no sense.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// It was over already.
    #[error("the run is over")]
    Over,
    /// No epoll instance, no thread, no connection, or callees that are not registered.
    #[error("cannot begin: {0}")]
    Thread(#[from] stdio::Error),
}

/// A run in progress. Dropping it ends it and releases its allocations.
#[derive(Debug)]
pub struct Run {
    report: LoadReport,
    /// What its threads have not taken; `None` when all is over.
    plan: Option<Plan>,
    threads: RunThreads,
    watch: Watch,
    /// What the server had spent when the measured part began, and when that was.
    watched: Option<(Watched, u64)>,
    ending: Ending,
    /// What the plan's own peers had dropped before.
    peer_drops: u64,
    /// What the kernel had dropped before, and until the last second.
    kernel_drops: KernelDrops,
    kernel_last: KernelDrops,
    last: Snapshot,
    last_ns: u64,
}

/// A server that has not confirmed any release for this long will not confirm the others either.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// The same for one that is known to be silent.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(200);
/// Longest sleep between two looks at the threads.
const NAP_NS: u64 = 50_000_000;
const SECOND_NS: u64 = 1_000_000_000;

impl Run {
    /// Starts the threads of `plan`.
    ///
    /// # Errors
    /// [`RunError`]; nothing was sent then.
    pub fn start(mut plan: Plan) -> Result<Run, RunError> {
        plan.check()?;
        let report = sum::head(&plan);
        let mut threads = RunThreads::new(&plan);
        let started = threads.start(&mut plan);
        // What was set up before has moved the beginning.
        let origin_ns = threads.shared.origin_ns;
        let kernel_drops = kernel::drops();
        let answers = !matches!(&plan.work, Work::Flows(flows) if flows.one_sided);
        let run = Run {
            report,
            watch: Watch::new(plan.silence, answers, origin_ns),
            peer_drops: plan.dropped_by_peers(),
            kernel_drops,
            kernel_last: kernel_drops,
            plan: Some(plan),
            threads,
            watched: None,
            ending: Ending::Complete,
            last: Snapshot::default(),
            last_ns: origin_ns,
        };
        // If not all threads started, dropping the run ends those that did.
        started?;
        Ok(run)
    }

    /// A handle that ends the run early.
    ///
    /// All clones belong to the same plan. A clone made before the start ends the run, too.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.plan
            .as_ref()
            .map(|plan| plan.stopper.clone())
            .unwrap_or_default()
    }

    /// Waits for the end of the current second and says what happened in it; `None` when the senders are done. Notices
    /// when there is no point in going on: it has to be called again and again.
    pub fn next_second(&mut self) -> Option<Second> {
        let until = self.last_ns + SECOND_NS;
        loop {
            // A second that ends with the run belongs to it, although the senders may be done a moment before.
            let within = until <= self.threads.shared.end_ns && !self.threads.shared.stopping();
            if !within && self.threads.senders.iter().all(JoinHandle::is_finished) {
                return None;
            }
            let now = clock::monotonic_ns();
            self.watch_server(now);
            if now >= until {
                break;
            }
            std::thread::sleep(Duration::from_nanos((until - now).min(NAP_NS)));
        }
        let second = self.sample(until);
        self.report.seconds.push(second);
        Some(second)
    }

    /// Reads what the server has spent when the measured part begins.
    fn watch_server(&mut self, now_ns: u64) {
        let process = self.plan.as_ref().and_then(|plan| plan.server_pid);
        if let (Some(process), None) = (process, &self.watched)
            && now_ns >= self.threads.shared.measure_ns
        {
            self.watched = Some((Watched::begin(process), now_ns));
        }
    }

    fn sample(&mut self, at_ns: u64) -> Second {
        let now = Snapshot::of(self.threads.counters.iter());
        let over = self.threads.shared.end_second();
        let change = now.since(&self.last);
        let seconds = (at_ns - self.last_ns) as f64 / 1e9;
        let latency = live::collect(&self.threads.live, over);
        (self.last, self.last_ns) = (now, at_ns);
        let kernel_now = kernel::drops();
        let dropped = kernel_now.since(self.kernel_last).send;
        self.kernel_last = kernel_now;
        if let Some(ending) = self.watch.note(&change, dropped, at_ns) {
            self.ending = ending;
            self.threads.shared.quit();
        }
        let (sent, received) = (change.get(Counter::Sent), change.get(Counter::Received));
        // What arrived between the counters and the end of the second belongs to the next one.
        let percentile = |percentile| {
            let value = latency.percentile_us(percentile);
            value.filter(|_| received > 0)
        };
        Second {
            at_s: (at_ns - self.threads.shared.origin_ns) as f64 / 1e9,
            send_pps: sent as f64 / seconds,
            recv_pps: received as f64 / seconds,
            missing: sent as i64 - received as i64,
            p50_us: percentile(50.0),
            p99_us: percentile(99.0),
            warm_up: at_ns <= self.threads.shared.measure_ns,
        }
    }

    /// Waits for the senders, lingers, stops the receivers, releases the allocations and sums up.
    #[must_use]
    pub fn finish(mut self) -> LoadReport {
        let Some((mut report, mut plan)) = self.conclude() else {
            return LoadReport::empty();
        };
        let timeout = match report.ended {
            Ending::ServerSilent | Ending::CannotSend => SILENCE_TIMEOUT,
            _ => RELEASE_TIMEOUT,
        };
        let unconfirmed = release(plan.take_receive_sockets(), timeout);
        if unconfirmed > 0 {
            report.warnings.push(format!(
                "{unconfirmed} allocations were not confirmed as deleted: they lapse within their lifetime, ten minutes mostly"
            ));
        }
        report
    }

    /// Like [`finish`](Run::finish), but keeps the allocations: the plan can run again.
    #[must_use]
    pub(crate) fn finish_and_keep(mut self) -> Option<(LoadReport, Plan)> {
        self.conclude()
    }

    fn conclude(&mut self) -> Option<(LoadReport, Plan)> {
        while self.next_second().is_some() {}
        let mut plan = self.plan.take()?;
        let shared = self.threads.shared.clone();
        let mut ends = join(std::mem::take(&mut self.threads.senders));
        let stopped_ns = ends.iter().map(|end| end.stopped_ns).max();
        let ended_ns = stopped_ns.unwrap_or(shared.end_ns).min(shared.end_ns);
        if !self.threads.receivers.is_empty() {
            std::thread::sleep(plan.linger);
        }
        // What the server still works on when the last message has left belongs to what it delivers.
        let server = self.watched.take();
        let server = server.map(|(watched, since_ns)| {
            // How much was delivered is not known yet.
            watched.end(1, clock::monotonic_ns().saturating_sub(since_ns))
        });
        shared.turn_receivers_off();
        ends.extend(join(std::mem::take(&mut self.threads.receivers)));
        if self.ending == Ending::Complete && shared.stopped_by_user() {
            self.ending = Ending::Stopped;
        }
        let measured_ns = ended_ns.saturating_sub(shared.measure_ns);
        let mut report = std::mem::take(&mut self.report);
        report.run.measured_s = measured_ns as f64 / 1e9;
        let last_ns = ends.iter().map(|end| end.came.last_arrival_ns).max();
        let until_last_ns = last_ns.unwrap_or(0).saturating_sub(shared.measure_ns);
        report.run.last_arrival_s = until_last_ns as f64 / 1e9;
        report.ended = self.ending;
        report.kernel = kernel::drops().since(self.kernel_drops);
        report.total.overflow = plan.dropped_by_peers() - self.peer_drops;
        sum::sum(&mut report, &plan, &self.threads.counters, &ends);
        report.server = server.map(|mut server| {
            // Until the last send: while stragglers are waited for, it has little to do.
            server.cpu = server.cpu_us_per_unit / (report.run.measured_s * 1e6).max(1e-9);
            server.cpu_us_per_unit /= report.total.received.max(1) as f64;
            server
        });
        for end in ends {
            plan.take_back(end.lanes, end.receive_sockets);
        }
        Some((report, plan))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.plan.is_none() {
            return;
        }
        self.threads.shared.quit();
        if let Some(plan) = self.plan.as_mut() {
            plan.linger = Duration::ZERO;
        }
        // With the plan goes what was allocated for it.
        drop(self.conclude());
    }
}

impl Plan {
    fn take_receive_sockets(&mut self) -> Vec<ReceiveSocket> {
        match &mut self.work {
            Work::Flows(flows) => std::mem::take(&mut flows.receive_sockets),
            Work::Churn(_) | Work::Sip(_) => Vec::new(),
        }
    }
}

impl Drop for Plan {
    /// What was allocated for it is released.
    fn drop(&mut self) {
        release(self.take_receive_sockets(), RELEASE_TIMEOUT);
    }
}

/// The ends of all threads; one that panicked has said why on stderr and counts as nothing.
fn join(threads: Vec<JoinHandle<End>>) -> Vec<End> {
    threads
        .into_iter()
        .filter_map(|thread| thread.join().ok())
        .collect()
}
