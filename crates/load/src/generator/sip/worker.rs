//! A worker: begins units of work by its part of the schedule, and lets its [`Core`] and its sockets meet.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::io::{Events, Flushed, Poller, clock};

use super::core::{Around, Core, Setting};
use super::runs::Runs;
use super::tally::Tally;
use super::tcp::Connections;
use super::udp::{BURST, Datagrams};
use crate::generator::end::{End, Left};
use crate::generator::share::Share;
use crate::generator::shared::Shared;
use crate::generator::watched::Watched;
use crate::measure::{Counter, Counters, Latency, Schedule};
use crate::report::ServerUse;

/// Longest wait, so that a stop is noticed.
const NAP_NS: u64 = 20_000_000;
/// Units of work begun before answers are looked at again.
const BEGIN: u64 = 64;
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
    /// Units under way that a closed loop keeps.
    window: usize,
    runs: Runs,
    server: Server,
    next: u64,
    left: Left,
    overflow: u64,
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
    pub(super) targets: Vec<SocketAddr>,
    pub(super) schedule: Option<Schedule>,
    pub(super) window: usize,
    pub(super) runs: Runs,
    pub(super) server: Option<u32>,
}

impl Worker {
    pub(super) fn new(start: Start, tally: Tally) -> Worker {
        let locals = match &start.wire {
            Wire::Udp(datagrams) => datagrams.local_addrs(),
            Wire::Tcp(connections) => connections.local_addrs(),
        };
        let links: Vec<_> = locals.into_iter().zip(start.targets).collect();
        let count = start.setting.count as usize;
        let share = Share::new(start.setting.index as usize, count, count, 1);
        Worker {
            core: Core::new(start.setting, &links, tally),
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
            left: Left::default(),
            overflow: 0,
        }
    }

    pub(in crate::generator) fn run(
        mut self,
        shared: &Shared,
        counters: &Counters,
        live: &Mutex<Latency>,
    ) -> End {
        clock::sleep_precisely();
        let (started, cpu) = (clock::monotonic_ns(), clock::thread_cpu_ns());
        let mut events = Events::with_capacity(256);
        let mut stopped_ns = started;
        while !shared.stopping() && stopped_ns < shared.end_ns {
            let wait_ns = self.begin_due(shared, counters);
            if !self.turn(&mut events, wait_ns, shared, counters) {
                break;
            }
            self.core.live.hand_over(live, false);
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
        self.drain(&mut events, stopped_ns, shared, counters);
        self.core.live.hand_over(live, true);
        let Core {
            tally, came, slots, ..
        } = self.core;
        let mut sip = tally.finish();
        sip.unfinished = slots.measured as u64;
        sip.server = server;
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

    /// Begins what is due and returns how long until the next is.
    fn begin_due(&mut self, shared: &Shared, counters: &Counters) -> u64 {
        let now_ns = clock::monotonic_ns();
        if now_ns < shared.origin_ns {
            return (shared.origin_ns - now_ns).min(NAP_NS);
        }
        let around = Around {
            shared,
            counters,
            now_ns,
        };
        if self.schedule.is_none() {
            return self.fill_window(around);
        }
        let elapsed = Duration::from_nanos(now_ns - shared.origin_ns);
        let due = self.schedule.as_ref().map_or(0, |all| all.due(elapsed));
        let end = self.share.count(due).min(self.next + BEGIN);
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

    /// A window that is wider than what the sockets hold must not be sent in one go: as long as answers wait, they are read first.
    fn fill_window(&mut self, around: Around<'_>) -> u64 {
        let behind = match &mut self.wire {
            Wire::Udp(datagrams) => datagrams.take_behind(),
            // A connection holds back by itself.
            Wire::Tcp(_) => false,
        };
        if behind {
            return 0;
        }
        let mut room = BEGIN;
        while room > 0 && self.core.slots.under_way < self.window && self.runs.take() {
            room -= 1;
            self.begin(around.now_ns, around);
        }
        if room == 0 { 0 } else { NAP_NS }
    }

    fn begin(&mut self, intended_ns: u64, around: Around<'_>) {
        let measured = around.shared.measured(intended_ns);
        if !self.core.begin(intended_ns, around) {
            around.counters.add(Counter::NotSent, 1);
            self.left.not_sent += u64::from(measured);
            let reason = "too many under way";
            *self.left.not_begun.entry(reason).or_default() += 1;
            return;
        }
        let late = u64::from(around.now_ns.saturating_sub(intended_ns) > LATE_NS);
        around.counters.add(Counter::Late, late);
        if measured {
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
            let around = Around {
                shared,
                counters,
                now_ns: clock::monotonic_ns(),
            };
            let core = &mut self.core;
            let mut take = |message: &[u8]| core.take(message, around);
            match &mut self.wire {
                Wire::Udp(datagrams) => {
                    let refused = datagrams.receive(event, &mut take);
                    core.tally.report.unreachable += refused;
                }
                Wire::Tcp(connections) => {
                    connections.receive(event, around.now_ns, &mut take);
                }
            }
            if self.core.out.len() >= BURST {
                self.flush(counters);
            }
        }
        let around = Around {
            shared,
            counters,
            now_ns: clock::monotonic_ns(),
        };
        self.core.fire(BURST, around);
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

    /// Waits for what is under way and was measured.
    fn drain(&mut self, events: &mut Events, from_ns: u64, shared: &Shared, counters: &Counters) {
        let end_ns = from_ns + shared.linger.as_nanos() as u64;
        while self.core.slots.measured > 0 && clock::monotonic_ns() < end_ns {
            if !self.turn(events, NAP_NS, shared, counters) {
                return;
            }
        }
    }
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
