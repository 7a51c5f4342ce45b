//! A worker: begins units of work by its part of the schedule, and lets its [`Core`] and its sockets meet.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::io::{Events, Flushed, Poller, clock};

use super::core::{BeginOutcome, Core, LinkEnds, Setting, WorkContext};
use super::runs::Runs;
use super::tally::Tally;
use super::tcp::Connections;
use super::udp::{Datagrams, MAX_QUEUED_MESSAGES};
use crate::generator::end::{End, SendStats};
use crate::generator::live::LiveSecond;
use crate::generator::share::Share;
use crate::generator::shared::Shared;
use crate::generator::warnings::WITHHELD;
use crate::generator::watched::Watched;
use crate::measure::{Counter, Counters, Schedule};
use crate::report::{Callees, ServerUse};
use crate::sip::uas::Answerer;

/// Longest wait, so that a stop is noticed.
const NAP_NS: u64 = 20_000_000;
/// Units of work begun before answers are looked at again.
const MAX_BURST: u64 = 64;
/// How long the generator waits for the responses to the last BYEs and CANCELs.
const CLOSE_NS: u64 = 2_000_000_000;
/// How long callees may take to end their registrations.
const MAX_LEAVE_TIME: Duration = Duration::from_secs(5);
/// What begins so much later than intended counts as late.
const LATE_NS: u64 = 1_000_000;

/// Sockets of either kind.
#[derive(Debug)]
pub(super) enum Wire {
    Udp(Box<Datagrams>),
    Tcp(Connections),
}

/// A worker before it starts.
#[derive(Debug)]
pub(in crate::generator) struct Worker {
    pub(super) core: Core,
    pub(super) wire: Wire,
    pub(super) poller: Poller,
    schedule: Option<Schedule>,
    share: Share,
    /// Units in flight that a closed loop keeps.
    window: usize,
    runs: Runs,
    server: Server,
    next: u64,
    left: SendStats,
    overflow: u64,
    /// ICMP errors that say that nothing listens, since the worker began.
    unreachable: u64,
}

/// The server's process, watched while the measured part lasts.
#[derive(Debug, Default)]
struct Server {
    process: Option<u32>,
    watched: Option<(u64, Watched)>,
}

impl Server {
    fn watch(&mut self, now_ns: u64, shared: &Shared) {
        if let (Some(process), None, true) =
            (self.process, &self.watched, now_ns >= shared.measure_ns)
        {
            self.watched = Some((now_ns, Watched::begin(process)));
        }
    }

    fn end(&self, units: u64, now_ns: u64) -> Option<ServerUse> {
        let (since_ns, watched) = self.watched.as_ref()?;
        Some(watched.end(units, now_ns.saturating_sub(*since_ns)))
    }
}

/// What a worker is given to begin with.
pub(super) struct Start {
    pub(super) setting: Setting,
    pub(super) wire: Wire,
    pub(super) poller: Poller,
    /// Of each link: those to the first server, then those to the second and so on.
    pub(super) targets: Vec<SocketAddr>,
    pub(super) per_server: usize,
    pub(super) schedule: Option<Schedule>,
    pub(super) window: usize,
    pub(super) runs: Runs,
    pub(super) server: Option<u32>,
}

impl Worker {
    pub(super) fn new(start: Start) -> Worker {
        let locals = match &start.wire {
            Wire::Udp(datagrams) => datagrams.local_addrs(),
            Wire::Tcp(connections) => connections.local_addrs(),
        };
        let wires = locals.len();
        let links: Vec<_> = start
            .targets
            .iter()
            .enumerate()
            .map(|(index, &target)| LinkEnds {
                wire: (index % wires) as u32,
                local: locals[index % wires],
                target,
            })
            .collect();
        let count = start.setting.count as usize;
        let share = Share::new(start.setting.index as usize, count, count, 1);
        Worker {
            core: Core::new(start.setting, &links, start.per_server, Tally::default()),
            wire: start.wire,
            poller: start.poller,
            schedule: start.schedule,
            share,
            window: start.window,
            runs: start.runs,
            server: Server {
                process: start.server,
                ..Server::default()
            },
            next: 0,
            left: SendStats::default(),
            overflow: 0,
            unreachable: 0,
        }
    }

    /// Registers the callees of this worker, if it has any, or ends their registrations. Returns how many were to be
    /// registered, what failed, and whether anybody listens there.
    pub(super) fn enrol(
        &mut self,
        ends: bool,
        limit: Duration,
        shared: &Shared,
    ) -> EnrolmentCounts {
        if self.core.answerer.is_none() {
            return EnrolmentCounts::default();
        }
        let counters = Counters::new();
        let mut events = Events::with_capacity(256);
        let until_ns = clock::monotonic_ns() + limit.as_nanos() as u64;
        self.core.enrol_all(ends, clock::monotonic_ns());
        loop {
            let now_ns = clock::monotonic_ns();
            let around = WorkContext {
                shared,
                counters: &counters,
                now_ns,
            };
            let goes_on = self.core.enrol_some(around);
            if !goes_on || now_ns >= until_ns || shared.stopping() && !ends {
                break;
            }
            if !self.turn(&mut events, NAP_NS, shared, &counters) {
                break;
            }
        }
        EnrolmentCounts {
            wanted: self.core.setting.own_aors().into(),
            succeeded: self.core.enrolment.succeeded,
            failed: std::mem::take(&mut self.core.enrolment.failed),
            unreachable: std::mem::take(&mut self.unreachable),
        }
    }

    pub(in crate::generator) fn run(
        mut self,
        shared: &Shared,
        counters: &Counters,
        live: &Mutex<LiveSecond>,
    ) -> End {
        clock::sleep_precisely();
        let (started, cpu) = (clock::monotonic_ns(), clock::thread_cpu_ns());
        self.core.tally = Tally::new(shared.origin_ns, shared.end_ns);
        self.core.tally.report.callees = self.callees();
        let mut events = Events::with_capacity(256);
        let mut stopped_ns = started;
        while !shared.stopping() && stopped_ns < shared.end_ns {
            let wait_ns = self.begin_due(shared, counters);
            if !self.turn(&mut events, wait_ns, shared, counters) {
                break;
            }
            self.core.live.hand_over(live, shared, false);
            stopped_ns = clock::monotonic_ns();
            self.server.watch(stopped_ns, shared);
            self.runs.put_back(std::mem::take(&mut self.core.anew));
            if self.runs.note(self.core.over) {
                shared.quit();
                break;
            }
        }
        let completed = self.core.tally.report.completed;
        let server = self.server.end(completed, stopped_ns);
        self.core.live.hand_over(live, shared, true);
        self.drain(&mut events, stopped_ns, shared, counters);
        self.core.tally.report.unfinished = self.core.slots.measured as u64;
        self.leave(shared);
        let Core {
            tally,
            came,
            answerer,
            ..
        } = self.core;
        let mut sip = tally.finish();
        sip.server = server;
        if let (Some(callees), Some(answerer)) = (&mut sip.callees, answerer) {
            callees.answered = answerer.report();
        }
        End {
            left: self.left,
            came,
            sip: Some(Box::new(sip)),
            stopped_ns,
            cpu_ns: clock::thread_cpu_ns() - cpu,
            wall_ns: clock::monotonic_ns() - started,
            ..End::default()
        }
    }

    fn callees(&self) -> Option<Callees> {
        self.core.answerer.as_ref()?;
        Some(Callees {
            registered: self.core.enrolment.succeeded,
            ..Callees::default()
        })
    }

    /// Ends the registrations of its callees. What the report counts is over.
    fn leave(&mut self, shared: &Shared) {
        let report = self.core.tally.report.clone();
        let answerer = self.core.answerer.take();
        if answerer.is_some() {
            self.core.answerer = Some(Box::new(Answerer::new(Duration::ZERO)));
            let gone = self.enrol(true, MAX_LEAVE_TIME, shared);
            self.core.tally.report = report;
            if let Some(callees) = &mut self.core.tally.report.callees {
                callees.left = gone.succeeded;
            }
        }
        self.core.answerer = answerer;
    }

    /// Begins what is due and returns how long until the next is.
    fn begin_due(&mut self, shared: &Shared, counters: &Counters) -> u64 {
        let now_ns = clock::monotonic_ns();
        if now_ns < shared.origin_ns {
            return (shared.origin_ns - now_ns).min(NAP_NS);
        }
        let around = WorkContext {
            shared,
            counters,
            now_ns,
        };
        if self.schedule.is_none() {
            return self.fill_window(around);
        }
        let elapsed = Duration::from_nanos(now_ns - shared.origin_ns);
        let due = self.schedule.as_ref().map_or(0, |all| all.due(elapsed));
        let end = self.share.count(due).min(self.next + MAX_BURST);
        while self.next < end {
            let Some(intended_ns) = self.intended(shared) else {
                break;
            };
            self.next += 1;
            self.begin(intended_ns, around);
        }
        self.intended(shared).map_or(NAP_NS, |next_ns| {
            next_ns.saturating_sub(clock::monotonic_ns()).min(NAP_NS)
        })
    }

    /// When the next unit of work is to begin.
    fn intended(&self, shared: &Shared) -> Option<u64> {
        let since = self
            .schedule
            .as_ref()?
            .intended(self.share.global(self.next));
        since.map(|since| shared.origin_ns + since.as_nanos() as u64)
    }

    /// A window that exceeds the buffers of the sockets must not be sent at once. If responses wait, they are read
    /// first.
    fn fill_window(&mut self, around: WorkContext<'_>) -> u64 {
        // What the warm-up does is not one of the runs.
        let counts = around.shared.measured(around.now_ns);
        let behind = match &mut self.wire {
            Wire::Udp(datagrams) => datagrams.take_has_more(),
            // A connection holds back by itself.
            Wire::Tcp(_) => false,
        };
        if behind {
            return 0;
        }
        let mut room = MAX_BURST;
        while room > 0 && self.core.slots.in_flight < self.window && (!counts || self.runs.take()) {
            room -= 1;
            if self.core.begin(around.now_ns, around) == BeginOutcome::Yes {
                self.note_begun(around.now_ns, around);
                continue;
            }
            if counts {
                self.runs.put_back(1);
            }
            if self.core.earliest_retry() > around.now_ns {
                // All servers have sent Retry-After: a window has nothing to do until then.
                return (self.core.earliest_retry() - around.now_ns).min(NAP_NS);
            }
        }
        if room == 0 { 0 } else { NAP_NS }
    }

    fn begin(&mut self, intended_ns: u64, around: WorkContext<'_>) {
        let reason = match self.core.begin(intended_ns, around) {
            BeginOutcome::Yes => return self.note_begun(intended_ns, around),
            BeginOutcome::Full => "too many in flight",
            BeginOutcome::Withheld => WITHHELD,
        };
        around.counters.add(Counter::NotSent, 1);
        if around.shared.measured(intended_ns) {
            self.left.not_sent += 1;
            *self.left.not_begun.entry(reason).or_default() += 1;
        }
    }

    fn note_begun(&mut self, intended_ns: u64, around: WorkContext<'_>) {
        let measured = around.shared.measured(intended_ns);
        let late = u64::from(around.now_ns.saturating_sub(intended_ns) > LATE_NS);
        around.counters.add(Counter::Late, late);
        if measured {
            let delay_ns = around.now_ns.saturating_sub(intended_ns);
            self.left.delay.record_ns(delay_ns);
            self.left.measured += 1;
            self.left.late += late;
        }
    }

    /// Sends, waits, receives, fires timers. False if waiting is impossible.
    pub(super) fn turn(
        &mut self,
        events: &mut Events,
        wait_ns: u64,
        shared: &Shared,
        counters: &Counters,
    ) -> bool {
        self.flush(counters);
        let now_ns = clock::monotonic_ns();
        let timer = self.core.next_deadline();
        let timer_ns = timer.map_or(NAP_NS, |at| at.saturating_sub(now_ns));
        let wait = Duration::from_nanos(wait_ns.min(timer_ns));
        if self.poller.wait(events, Some(wait)).is_err() {
            return false;
        }
        for event in events.iter() {
            // Each socket's batch has its own time of arrival.
            let around = WorkContext {
                shared,
                counters,
                now_ns: clock::monotonic_ns(),
            };
            let core = &mut self.core;
            let mut take = |origin, message: &[u8]| core.take(origin, message, around);
            match &mut self.wire {
                Wire::Udp(datagrams) => {
                    let refused = datagrams.receive(event, &mut take);
                    // Callees register before the warm-up, and their errors are not the run's.
                    if around.now_ns >= shared.measure_ns {
                        core.tally.report.unreachable += refused;
                    }
                    self.unreachable += refused;
                }
                Wire::Tcp(connections) => {
                    connections.receive(event, around.now_ns, &mut take);
                }
            }
            if self.core.out.len() >= MAX_QUEUED_MESSAGES {
                self.flush(counters);
            }
        }
        let around = WorkContext {
            shared,
            counters,
            now_ns: clock::monotonic_ns(),
        };
        self.core.fire(MAX_QUEUED_MESSAGES, around);
        if self.core.answerer.is_some() {
            self.core.renew_enrolment(around);
        }
        if let Wire::Tcp(connections) = &mut self.wire {
            for link in connections.take_lost() {
                self.core.link_lost(link, around);
            }
        }
        true
    }

    fn flush(&mut self, counters: &Counters) {
        let flushed = match &mut self.wire {
            Wire::Udp(datagrams) => {
                let overflow = datagrams.overflow();
                counters.add(Counter::Overflow, overflow - self.overflow);
                self.overflow = overflow;
                if self.core.out.len() == 0 {
                    return;
                }
                datagrams.send(&self.core.out)
            }
            Wire::Tcp(connections) => {
                connections.send(&self.core.out, clock::monotonic_ns(), &self.poller)
            }
        };
        self.core.out.clear();
        counters.add(Counter::SendCalls, flushed.syscalls);
        self.note(&flushed);
    }

    fn note(&mut self, flushed: &Flushed) {
        self.left.flushed += *flushed;
    }

    /// Waits for what is in flight and was measured.
    fn drain(&mut self, events: &mut Events, from_ns: u64, shared: &Shared, counters: &Counters) {
        let end_ns = from_ns + shared.linger.as_nanos() as u64;
        while self.core.slots.measured > 0 && clock::monotonic_ns() < end_ns {
            if !self.turn(events, NAP_NS, shared, counters) {
                return;
            }
        }
        // Calls must not stay at the server when the generator has ended.
        self.core.close(WorkContext {
            shared,
            counters,
            now_ns: clock::monotonic_ns(),
        });
        let end_ns = clock::monotonic_ns() + CLOSE_NS;
        while self.core.is_closing() && clock::monotonic_ns() < end_ns {
            if !self.turn(events, NAP_NS, shared, counters) {
                return;
            }
        }
        // The last answers and ACKs.
        self.flush(counters);
    }
}

/// What came of registering callees.
#[derive(Debug, Default)]
pub(super) struct EnrolmentCounts {
    pub(super) wanted: u64,
    pub(super) succeeded: u64,
    /// By code; 1 is no answer.
    pub(super) failed: BTreeMap<u16, u64>,
    /// ICMP errors that say that nothing listens.
    pub(super) unreachable: u64,
}

impl Runs {
    /// Takes note of what is over in this thread; true if all runs of all threads are.
    fn note(&mut self, over: u64) -> bool {
        let Some(limit) = self.limit else {
            return false;
        };
        let new = over - std::mem::replace(&mut self.seen, over);
        if new == 0 {
            return false;
        }
        self.over.fetch_add(new, Ordering::Relaxed) + new >= limit
    }

    /// One more run may begin.
    fn take(&mut self) -> bool {
        let Some(limit) = self.limit else {
            return true;
        };
        let next = |begun: u64| (begun < limit).then_some(begun + 1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.begun.fetch_update(set, fetch, next).is_ok()
    }

    /// Runs that are to begin anew.
    fn put_back(&mut self, count: u64) {
        if count > 0 {
            self.begun.fetch_sub(count, Ordering::Relaxed);
        }
    }
}
