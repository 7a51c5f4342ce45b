//! Goodput and cost: the measurements of a load of datagrams.
//!
//! A *point* offers one rate for a while and looks at what was delivered and what the server spent on it. The *search*
//! raises the rate until goodput no longer grows. Then it looks for the highest rate that the server *holds* for two
//! seconds ([`hold`](super::hold)). That is its best goodput. Cost is measured at 30, 60 and 90 % of it. The goodput
//! at twice that load shows whether the server collapses in an overload.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use ::io::SystemCallCounter;
use bpf::count::Totals;
use bpf::inject::{Injected, Pace};
use serde::Serialize;

use super::bed::TestBed;
use super::error::{IoContext, SideError};
use super::hold::{self, Held};
use super::sockets;
use super::spinner::Spinner;
use super::topology::ServerCpu;
use crate::generator::Plan;

/// Frames that leave together: what interrupt coalescing makes of steady traffic.
pub(super) const BURST: u32 = 32;
/// A point is repeated when others had more than this share of one of the two processors.
pub(super) const FOREIGN_SHARE: f64 = 0.05;
pub(super) const MAX_TRIES: u32 = 3;
/// The load that lets each flow settle, in datagrams per second.
pub(super) const FLOW_WARM_UP_RATE: f64 = 100_000.0;
/// Where the search begins when nothing is known, in datagrams per second.
pub(super) const FIRST_RATE: f64 = 50_000.0;
/// One processor cannot generate so much. At this rate and above, the generator sends without pacing.
const HIGHEST_RATE: f64 = 6_000_000.0;

/// One measured load. Costs are processor time in nanoseconds per delivered datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Point {
    /// Datagrams sent per second.
    pub offered: f64,
    /// Datagrams delivered unharmed per second.
    pub delivered: f64,
    /// Share of the sent datagrams that was not.
    pub loss: f64,
    /// Server processes and receive softirq of their interfaces together.
    pub cost_ns: f64,
    /// Server processes alone.
    pub process_ns: f64,
    /// Softirq alone.
    pub softirq_ns: f64,
    /// Share of the server's processor that both used.
    pub busy: f64,
    /// The share of the server's or of the generator's processor that other processes used; the larger of both. Of
    /// repeated measurements the one with the least is kept.
    pub foreign: f64,
    /// Share of the schedule that the generator had to give up.
    pub skipped: f64,
    /// Datagrams per packet where they were counted: above 1 the sender used segmentation offload.
    pub per_packet: f64,
    /// Datagrams that arrived changed or in the wrong place. They are not delivered.
    pub wrong: u64,
    /// Datagrams that arrived again. They are not delivered.
    pub duplicated: u64,
    /// Datagrams that arrived after a later one of their flow.
    pub reordered: u64,
    /// Datagrams whose whole payload was compared.
    pub verified: u64,
    /// Measurements it took.
    pub tries: u32,
}

/// Datagrams that arrived as none should, in all measurements of a scenario: those of the search, those that were
/// repeated, and those that warm up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    pub(crate) wrong: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
}

impl Faults {
    pub(crate) fn add(&mut self, more: Faults) {
        self.wrong += more.wrong;
        self.duplicated += more.duplicated;
        self.reordered += more.reordered;
    }

    fn of(got: &Totals) -> Faults {
        Faults {
            wrong: got.wrong(),
            duplicated: got.duplicated,
            reordered: got.reordered,
        }
    }
}

/// How long the points of a search last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lengths {
    /// A step upwards; cost is measured for twice as long.
    pub(crate) step: Duration,
    /// How long a rate must be held.
    pub(crate) hold: Duration,
}

/// What the search for the best goodput found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Packets {
    /// The highest load that the server held ([`BenchOptions::hold`](super::BenchOptions::hold)).
    pub best: Point,
    /// The load at 30 % of that.
    pub at_30: Point,
    /// The load at 60 % of that.
    pub at_60: Point,
    /// The load at 90 % of that.
    pub at_90: Point,
    /// Twice that load, or as much of it as the generator makes.
    pub at_double: Point,
    /// System calls of the server for each datagram that it delivered at twice the best load. They are counted for the
    /// gates only, in a point of their own, because the counting makes them slower.
    pub system_calls: Option<f64>,
    /// Datagrams that arrived changed or in the wrong place, in all points together.
    pub wrong: u64,
    /// Datagrams that arrived again, in all points together.
    pub duplicated: u64,
    /// Datagrams that arrived after a later one of their flow, in all points together.
    pub reordered: u64,
    /// Offered and delivered rate of every point, in the order they were taken.
    pub ramp: Vec<(f64, f64)>,
}

impl Packets {
    /// Whether the generator or the counter reached its limit before the server did. They share a processor. One of
    /// three signs is enough. The generator skipped datagrams at the best load. It offered hardly more than the best
    /// load when it tried twice as much. Or the server's processor was still partly idle at that offered load.
    pub fn generator_was_the_limit(&self) -> bool {
        const SMALL_SHARE: f64 = 0.03;
        const BUSY_SHARE: f64 = 0.9;
        self.best.skipped > SMALL_SHARE
            || self.at_double.offered < self.best.offered * (1.0 + SMALL_SHARE)
            || self.at_double.busy < BUSY_SHARE
    }

    /// The share of the best goodput that is delivered at twice the offered load.
    pub fn kept_at_double(&self) -> f64 {
        self.at_double.delivered / self.best.delivered.max(1.0)
    }

    /// The load that was offered instead of twice the best, if the generator could not make that.
    pub fn offered_at_double(&self) -> f64 {
        self.at_double.offered / self.best.offered.max(1.0)
    }
}

/// Sends a prepared scenario's load at chosen rates and measures.
pub(crate) struct Meter<'a> {
    pub(crate) bed: &'a mut TestBed,
    pub(crate) spinner: &'a Spinner,
    /// Datagrams of one flow in a row.
    pub(crate) train: u32,
    /// Whether flows may need a moment of little load before they are relayed in the kernel.
    pub(crate) settles: bool,
    /// Client sockets to send with, instead of frames.
    pub(crate) senders: Option<Senders<'a>>,
    /// Connections to send over, instead of frames.
    pub(crate) plan: Option<Plan>,
    /// Where the search begins when nothing is known, per second.
    pub(crate) first_rate: f64,
    /// How long the harness waits for datagrams that are in transit after the last send.
    pub(crate) linger: Duration,
    /// What all its measurements found, and those before it that have no report of their own.
    pub(crate) faults: Faults,
}

/// The sockets of a socket load, and their payload's length.
pub(crate) struct Senders<'a> {
    pub(crate) sockets: Vec<&'a UdpSocket>,
    pub(crate) payload: usize,
    /// Without ChannelData.
    pub(crate) raw: bool,
    /// The mask of flow numbers of the test bed.
    pub(crate) flow_mask: u32,
}

/// The points of a search.
#[derive(Default)]
struct Ramp {
    steps: Vec<(f64, f64)>,
}

impl Meter<'_> {
    /// Finds the best goodput, and what it costs at less. `hint`: the best goodput of an earlier round, which has to be
    /// held again before anything else is tried. `count_calls`: whether to count the server's system calls, too.
    pub(crate) fn search(
        &mut self,
        lengths: Lengths,
        hint: Option<f64>,
        count_calls: bool,
    ) -> Result<Packets, SideError> {
        let step = lengths.step;
        self.warm_up_flows()?;
        let mut ramp = Ramp::default();
        let best = self.find(lengths, hint, &mut ramp)?;
        let mut at = |share: f64| self.record(best.offered * share, step * 2, &mut ramp);
        let (at_90, at_60, at_30, at_double) = (at(0.9)?, at(0.6)?, at(0.3)?, at(2.0)?);
        let system_calls = match count_calls {
            true => Some(self.system_calls(best.offered * 2.0, step)?),
            false => None,
        };
        Ok(Packets {
            best,
            system_calls,
            at_30,
            at_60,
            at_90,
            at_double,
            wrong: self.faults.wrong,
            duplicated: self.faults.duplicated,
            reordered: self.faults.reordered,
            ramp: ramp.steps,
        })
    }

    /// The best goodput alone.
    pub(super) fn best(&mut self, lengths: Lengths, hint: Option<f64>) -> Result<Point, SideError> {
        self.find(lengths, hint, &mut Ramp::default())
    }

    fn find(
        &mut self,
        Lengths { step, hold }: Lengths,
        hint: Option<f64>,
        ramp: &mut Ramp,
    ) -> Result<Point, SideError> {
        let from = match hint {
            Some(hint) => hint,
            None => {
                let center = self.estimate(step)?;
                self.raise_rate(center, step, ramp)?.delivered
            }
        };
        self.hold(from, hold, ramp)
    }

    /// The highest rate near `from` that is held for `length` with little loss.
    fn hold(&mut self, from: f64, length: Duration, ramp: &mut Ramp) -> Result<Point, SideError> {
        match hold::search(from, &mut |rate| self.record(rate, length, ramp))? {
            Held::Best(point) => Ok(point),
            Held::Nothing { lowest } => Err(SideError::NotHeld {
                from,
                to: lowest,
                wrong: self.faults.wrong,
                duplicated: self.faults.duplicated,
            }),
        }
    }

    /// A server that relays in the kernel relays the first datagrams of a new flow in user space, so that none is
    /// overtaken. So each flow slowly sends a few first.
    fn warm_up_flows(&mut self) -> Result<(), SideError> {
        const LENGTH: Duration = Duration::from_millis(300);
        if self.settles {
            let before = self.bed.delivered()?;
            self.send(Some(FLOW_WARM_UP_RATE), LENGTH)?;
            self.wait_until_quiet()?;
            let got = self.bed.delivered()? - before;
            self.faults.add(Faults::of(&got));
        }
        Ok(())
    }

    /// What one processor should manage, from the cost of a small load. Also the run that is thrown
    /// away after a start.
    pub(crate) fn estimate(&mut self, step: Duration) -> Result<f64, SideError> {
        let point = self.point(Some(self.first_rate), step)?;
        let manages = 1e9 / point.cost_ns;
        Ok(
            if manages.is_finite() && point.delivered > self.first_rate / 50.0 {
                manages
            } else {
                self.first_rate
            },
        )
    }

    /// Raises the rate until it has not helped twice; begins lower if the first step was the best.
    fn raise_rate(
        &mut self,
        center: f64,
        step: Duration,
        ramp: &mut Ramp,
    ) -> Result<Point, SideError> {
        const FIRST: f64 = 0.75;
        const FACTOR: f64 = 1.28;
        let mut rate = center * FIRST;
        let mut best = self.record(rate, step, ramp)?;
        // A server that cannot deliver what is offered at the first step was estimated too high: go
        // down before going up.
        while best.loss > 0.2 && best.offered > self.first_rate / 4.0 {
            let lower = self.record(best.offered / 1.6, step, ramp)?;
            if lower.delivered < best.delivered {
                break;
            }
            best = lower;
        }
        let mut worse = 0;
        while worse < 2 && rate < HIGHEST_RATE {
            rate *= FACTOR;
            let point = self.record(rate, step, ramp)?;
            if point.delivered > best.delivered {
                best = point;
                worse = 0;
            } else {
                worse += 1;
            }
        }
        Ok(best)
    }

    /// The server's system calls for each datagram that it delivers while this rate is offered.
    fn system_calls(&mut self, rate: f64, step: Duration) -> Result<f64, SideError> {
        let threads = self.bed.topology.server_threads();
        let threads = threads.doing("find the server's threads")?;
        let before = self.bed.delivered()?;
        let counter =
            SystemCallCounter::start(&threads).doing("count the server's system calls")?;
        self.send((rate < HIGHEST_RATE).then_some(rate), step)?;
        self.wait_until_quiet()?;
        let calls = counter.total().doing("count the server's system calls")?;
        let got = self.bed.delivered()? - before;
        self.faults.add(Faults::of(&got));
        Ok(rounded(calls as f64 / got.datagrams.max(1) as f64, 4))
    }

    fn record(&mut self, rate: f64, step: Duration, ramp: &mut Ramp) -> Result<Point, SideError> {
        let point = self.point((rate < HIGHEST_RATE).then_some(rate), step)?;
        ramp.steps.push((point.offered, point.delivered));
        Ok(point)
    }

    /// One point; repeated while others disturb it.
    fn point(&mut self, rate: Option<f64>, duration: Duration) -> Result<Point, SideError> {
        let mut best: Option<Point> = None;
        for tries in 1..=MAX_TRIES {
            let point = Point {
                tries,
                ..self.measure_point(rate, duration)?
            };
            // Only one try is kept, but no fault of the others is forgotten.
            self.faults.add(Faults {
                wrong: point.wrong,
                duplicated: point.duplicated,
                reordered: point.reordered,
            });
            if best.is_none_or(|best| point.foreign < best.foreign) {
                best = Some(point);
            }
            // When server and generator are preferred, others have only what these leave; and when the two share a
            // processor, each is the other's disturbance.
            let cpus = self.bed.topology.cpus();
            if point.foreign < FOREIGN_SHARE || cpus.preferred || cpus.shared() {
                break;
            }
        }
        Ok(best.unwrap_or_default())
    }

    fn measure_point(&mut self, rate: Option<f64>, duration: Duration) -> Result<Point, SideError> {
        if let Some(plan) = self.plan.take() {
            return self.measure_point_over_connections(plan, rate, duration);
        }
        let before = self.read()?;
        let sent = self.send(rate, duration)?;
        let generator = self.generator_ns() - before.generator;
        self.wait_until_quiet()?;
        let after = self.read()?;
        Ok(Point::new(&before, &after, &sent, generator))
    }

    pub(super) fn read(&mut self) -> Result<Reading, SideError> {
        Ok(Reading {
            at: Instant::now(),
            cpu: self
                .bed
                .topology
                .server_cpu()
                .doing("read processor times")?,
            spun: self.spinner.cpu_ns(),
            delivered: self.bed.delivered()?,
            generator: self.generator_ns(),
        })
    }

    /// Waits until the server has relayed the contents of its receive buffers. A large buffer holds
    /// more than the datagrams of one step, and the next step would count them as its goodput.
    fn wait_until_quiet(&mut self) -> Result<(), SideError> {
        const POLL_INTERVAL: Duration = Duration::from_millis(20);
        const MAX_POLLS: u32 = 50;
        let mut last = self.bed.delivered()?.datagrams;
        for _ in 0..MAX_POLLS {
            std::thread::sleep(POLL_INTERVAL);
            let now = self.bed.delivered()?.datagrams;
            if now == last {
                break;
            }
            last = now;
        }
        Ok(())
    }

    /// Processor time of the generator, which is this thread, and of the receive softirq beside it.
    fn generator_ns(&self) -> u64 {
        ::io::clock::thread_cpu_ns() + self.bed.topology.generator_softirq_ns()
    }

    fn send(&mut self, rate: Option<f64>, duration: Duration) -> Result<Injected, SideError> {
        match &self.senders {
            Some(senders) => {
                let first = self.bed.injector.next_sequence();
                let sent = sockets::send(senders, self.train, (first, rate), duration);
                // Sequences are 32 bits and wrap.
                self.bed.injector.skip_sequences(sent.frames as u32);
                Ok(sent)
            }
            None => Ok(self.bed.injector.run(&Pace {
                rate,
                duration,
                train: self.train,
                burst: BURST,
            })?),
        }
    }
}

/// All counters and clocks at one moment.
pub(super) struct Reading {
    at: Instant,
    cpu: ServerCpu,
    spun: u64,
    pub(super) delivered: Totals,
    generator: u64,
}

impl Reading {
    /// With these counts instead of those of frames.
    pub(super) fn counting(self, delivered: Totals) -> Reading {
        Reading { delivered, ..self }
    }
}

impl Point {
    /// A point from the readings before and after it. `generator` is the processor time that
    /// sending took.
    pub(super) fn new(before: &Reading, after: &Reading, sent: &Injected, generator: u64) -> Point {
        let got = after.delivered - before.delivered;
        let offered_s = sent.elapsed.as_secs_f64().max(1e-9);
        // An overloaded server goes on delivering what it has buffered: that takes time too.
        let until_last_s = got.last_ns.saturating_sub(sent.start_ns) as f64 / 1e9;
        let delivered_s = offered_s.max(until_last_s);
        let process = after.cpu.processes.saturating_sub(before.cpu.processes) as f64;
        let softirq = after.cpu.softirq.saturating_sub(before.cpu.softirq) as f64;
        let spun = (after.spun - before.spun) as f64;
        let wall = after.at.duration_since(before.at).as_nanos() as f64;
        let server_foreign = 1.0 - (process + softirq + spun) / wall;
        // The generator's thread is busy from the first datagram to the last.
        let generator_foreign = 1.0 - generator as f64 / (offered_s * 1e9);
        let per_datagram = |nanoseconds: f64| nanoseconds / (got.datagrams.max(1) as f64);
        Point {
            offered: rounded(sent.frames as f64 / offered_s, 0),
            delivered: rounded(got.datagrams as f64 / delivered_s, 0),
            loss: rounded(1.0 - got.datagrams as f64 / (sent.frames.max(1) as f64), 5),
            cost_ns: rounded(per_datagram(process + softirq), 1),
            process_ns: rounded(per_datagram(process), 1),
            softirq_ns: rounded(per_datagram(softirq), 1),
            busy: rounded((process + softirq) / (delivered_s * 1e9), 3),
            foreign: rounded(server_foreign.max(generator_foreign).max(0.0), 3),
            skipped: rounded(sent.skipped.as_secs_f64() / offered_s, 3),
            per_packet: rounded(got.datagrams as f64 / (got.packets.max(1) as f64), 2),
            wrong: got.wrong(),
            duplicated: got.duplicated,
            reordered: got.reordered,
            verified: got.verified,
            tries: 1,
        }
    }
}

/// Without the digits that mean nothing and fill the report.
fn rounded(value: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generator_that_is_the_limit_is_reported() {
        let packets = |double: f64, busy, skipped| Packets {
            system_calls: None,
            best: Point {
                offered: 100e3,
                delivered: 99e3,
                skipped,
                ..Point::default()
            },
            at_double: Point {
                offered: double,
                delivered: 49.5e3,
                busy,
                ..Point::default()
            },
            at_30: Point::default(),
            at_60: Point::default(),
            at_90: Point::default(),
            wrong: 0,
            duplicated: 0,
            reordered: 0,
            ramp: Vec::new(),
        };
        assert!(packets(101e3, 1.0, 0.0).generator_was_the_limit());
        assert!(
            packets(200e3, 1.0, 0.2).generator_was_the_limit(),
            "it could not keep its schedule"
        );
        assert!(
            packets(200e3, 0.7, 0.0).generator_was_the_limit(),
            "the server had time left"
        );
        let fine = packets(200e3, 1.0, 0.0);
        assert!(!fine.generator_was_the_limit());
        assert_eq!(
            (fine.kept_at_double(), fine.offered_at_double()),
            (0.5, 2.0)
        );
    }

    fn reading(at: Instant, processes: u64, datagrams: u64, last_ns: u64) -> Reading {
        let delivered = Totals {
            datagrams,
            packets: datagrams / 2,
            last_ns,
            ..Totals::default()
        };
        Reading {
            at,
            cpu: ServerCpu {
                processes,
                softirq: processes / 4,
            },
            spun: 0,
            delivered,
            generator: 0,
        }
    }

    #[test]
    fn late_deliveries_count_over_their_real_time() {
        let start = Instant::now();
        let end = start + Duration::from_secs(2);
        let sent = Injected {
            frames: 4000,
            start_ns: 1_000_000_000,
            elapsed: Duration::from_secs(1),
            skipped: Duration::ZERO,
        };
        let before = reading(start, 0, 100, 0);
        let in_time = reading(end, 800_000_000, 2100, 1_900_000_000);
        let point = Point::new(&before, &in_time, &sent, 1_000_000_000);
        assert_eq!((point.offered, point.delivered), (4000.0, 2000.0));
        assert!((point.loss - 0.5).abs() < 1e-9);
        assert_eq!((point.cost_ns, point.process_ns), (500_000.0, 400_000.0));
        assert!((point.busy - 1.0).abs() < 1e-9 && (point.foreign - 0.5).abs() < 1e-9);
        // Frames of an earlier scenario do not count.
        let start_at_0 = Injected {
            start_ns: 0,
            ..sent
        };
        let received = Totals {
            datagrams: 2000,
            last_ns: 900_000_000,
            ..Totals::default()
        };
        let of_frames = |at| reading(at, 0, 100, 1 << 60);
        let before_connections = of_frames(start).counting(Totals::default());
        let after_connections = of_frames(end).counting(received);
        let point = Point::new(&before_connections, &after_connections, &start_at_0, 0);
        assert_eq!((point.offered, point.delivered), (4000.0, 2000.0));
        let late = reading(end, 800_000_000, 2100, 2_600_000_000);
        let point = Point::new(&before, &late, &sent, 1_000_000_000);
        assert_eq!(point.delivered, 1250.0);
    }
}
