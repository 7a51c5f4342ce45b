//! The benchmark's course: rounds, in each of which every server is started afresh and takes every
//! load in turn.
//!
//! ```text
//! round 0   start a, b, c    scenario 1: a b c    scenario 2: a b c   ...   stop all    memory: a b c
//! round 1   start a, b, c    scenario 1: c b a    scenario 2: c b a   ...   stop all    memory: c b a
//! ```
//! All servers of a round run side by side, each in a network of its own, and idle while
//! another is measured. So two measurements that are compared lie seconds apart.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::bed::TestBed;
use super::certificate::Certificate;
use super::error::{BenchError, IoContext, SideError};
use super::fairness;
use super::layout;
use super::napi::Cpus;
use super::options::{BenchOptions, LoadKind};
use super::packets::Lengths;
use super::procfs;
use super::report::{Cell, Outcome, Report, SideReport};
use super::running::Running;
use super::scenario::{Scenario, SipWork};
use super::side::{Role, Side};
use super::sip;
use super::spinner::Spinner;
use super::spread;
use super::stats;
use super::topology::new_namespace;
use super::upkeep;

/// Runs a benchmark. Moves the calling thread to the generator's processor, where it stays.
///
/// What fails for one server is in the report ([`Outcome::Failed`]); the others go on.
///
/// # Errors
/// [`BenchError`] when there is nothing to report: wrong options, no privileges, no network to
/// measure in.
pub fn run(mut options: BenchOptions) -> Result<Report, BenchError> {
    options.validate()?;
    if options.ipv6 {
        layout::use_ipv6();
    }
    let scenarios = std::mem::take(&mut options.scenarios);
    options.scenarios = scenarios
        .into_iter()
        .filter(|scenario| options.can_load(scenario))
        .collect();
    // Before the lock, so that a user without the permission gets the error at once.
    drop(new_namespace().network("make a network namespace")?);
    let _alone = lock()?;
    let _ = ::io::rlimit::raise_open_files();
    ::io::affinity::pin_current_thread(options.generator_cpu).network("pin the generator")?;
    if options.preferred {
        ::io::tasks::make_preferred(0).network("raise the generator's priority")?;
    }
    Bench::new(&options)?.run()
}

struct Bench<'a> {
    options: &'a BenchOptions,
    beds: Vec<TestBed>,
    spinner: Spinner,
    started: Instant,
    report: Report,
}

impl<'a> Bench<'a> {
    fn new(options: &'a BenchOptions) -> Result<Bench<'a>, BenchError> {
        let cpus = Cpus {
            generator: options.generator_cpu,
            server: options.server_cpu,
            second: None,
            preferred: options.preferred,
        };
        let certificate = Certificate::make().network("make a certificate")?;
        let certificate = Arc::new(certificate);
        let beds = options
            .sides
            .iter()
            .map(|side| {
                let cpus = Cpus {
                    second: options.second_cpu(side),
                    ..cpus
                };
                let mut bed = TestBed::build(cpus, side.sink, counted_flows(options, side))?;
                bed.topology.set_certificate(Arc::clone(&certificate));
                Ok(bed)
            })
            .collect::<Result<_, BenchError>>()?;
        let spinner =
            Spinner::start(cpus.server).network("start a spinner on the server's processor")?;
        let report = empty_report(options);
        Ok(Bench {
            options,
            beds,
            spinner,
            started: Instant::now(),
            report,
        })
    }

    fn run(mut self) -> Result<Report, BenchError> {
        let (alone, together): (Vec<Scenario>, Vec<Scenario>) =
            self.options.scenarios.iter().partition(|scenario| {
                matches!(
                    scenario,
                    Scenario::Memory { .. }
                        | Scenario::Sip { .. }
                        | Scenario::SipOverload { .. }
                        | Scenario::SipMemory { .. }
                        | Scenario::Spread { .. }
                )
            });
        for round in 0..self.options.rounds {
            if !together.is_empty() {
                self.round(round, &together);
            }
            for scenario in &alone {
                let turns = stats::order(self.options.sides.len(), round);
                self.in_turn(round, scenario, &turns, |bench, side| match *scenario {
                    Scenario::Spread { at_once } => bench.spread(side, at_once),
                    Scenario::Sip { .. } | Scenario::SipOverload { .. } => {
                        bench.sip(side, scenario)
                    }
                    Scenario::SipMemory { work, count } => {
                        bench.sip_memory(side, scenario, (work, count))
                    }
                    _ => bench.memory(side, scenario),
                });
            }
        }
        self.report.stopped = self.stopped();
        self.report.elapsed_s = self.started.elapsed().as_secs_f64();
        Ok(self.report)
    }

    /// Starts all sides, and measures each in all scenarios.
    fn round(&mut self, round: u32, scenarios: &[Scenario]) {
        if self.stopped() {
            return;
        }
        let mut running: Vec<Result<Running, Outcome>> = Vec::new();
        for (side, bed) in self.options.sides.iter().zip(&mut self.beds) {
            self.report.say(
                self.options,
                self.started,
                &format!("round {}: start {}", round + 1, side.name),
            );
            let flows = relayed_flows(self.options, side);
            let sockets = self.options.load == LoadKind::Sockets;
            let started = Running::start(side, bed, flows, sockets);
            running.push(started.map_err(|error| Outcome::failed(&error)));
        }
        self.warm_up(&mut running);
        for scenario in scenarios {
            let turns = stats::order(self.options.sides.len(), round);
            self.measure_in_turn(round, scenario, &turns, &mut running);
            let doubtful = self.report.remove_doubtful(scenario, round);
            if !doubtful.is_empty() {
                self.report.say(
                    self.options,
                    self.started,
                    &format!(
                        "round {}: {scenario}: below the gate, so once more",
                        round + 1
                    ),
                );
                self.measure_in_turn(round, scenario, &doubtful, &mut running);
                self.report.mark_repeated(scenario, round, &doubtful);
            }
        }
    }

    /// Measures the servers of `turns` that run, one after the other.
    fn measure_in_turn(
        &mut self,
        round: u32,
        scenario: &Scenario,
        turns: &[usize],
        running: &mut [Result<Running, Outcome>],
    ) {
        self.in_turn(round, scenario, turns, |bench, side| {
            match &mut running[side] {
                Ok(running) => bench.measure(running, side, scenario),
                Err(reason) => reason.clone(),
            }
        });
    }

    /// The first run after a start, thrown away.
    fn warm_up(&mut self, running: &mut [Result<Running, Outcome>]) {
        for (side, running) in running.iter_mut().enumerate() {
            let first = self.options.scenarios.iter().find(|scenario| {
                matches!(
                    scenario,
                    Scenario::Relay { .. }
                        | Scenario::Connections { .. }
                        | Scenario::Binding { .. }
                ) && self.options.sides[side].runs(scenario)
            });
            if let (Ok(running), Some(scenario)) = (running, first) {
                let meter = running.meter(scenario, &mut self.beds[side], &self.spinner, false);
                // If it fails, it will fail again where it is reported.
                let faults = meter.map(|mut meter| {
                    let _ = meter.estimate(self.options.step);
                    meter.faults
                });
                running.faults.add(faults.unwrap_or_default());
            }
        }
    }

    /// Lets each side of `turns` take its turn in a scenario, if it can.
    fn in_turn(
        &mut self,
        round: u32,
        scenario: &Scenario,
        turns: &[usize],
        mut measure: impl FnMut(&mut Self, usize) -> Outcome,
    ) {
        for &side in turns {
            if self.stopped() || !self.options.sides[side].runs(scenario) {
                continue;
            }
            let outcome = measure(self, side);
            let name = &self.options.sides[side].name;
            let line = format!("round {}: {scenario} {name}: {outcome}", round + 1);
            self.report.say(self.options, self.started, &line);
            self.report.cells.push(Cell {
                scenario: *scenario,
                side,
                round,
                repeated: false,
                outcome,
            });
        }
    }

    fn measure(&mut self, running: &mut Running, side: usize, scenario: &Scenario) -> Outcome {
        let result = match scenario {
            Scenario::Churn { in_flight } => self.churn(running, side, *in_flight),
            Scenario::Handshakes { resumed, in_flight } => {
                self.handshakes(running, side, (*resumed, *in_flight))
            }
            Scenario::SipOverload { work, service_us } => {
                let multiples = sip::multiples(*work, *service_us);
                self.overload(running, side, scenario, multiples)
            }
            _ => self.packets(running, side, scenario),
        };
        // A server that died says more than what could not be measured because of it.
        match (result, running.check_alive()) {
            (Ok(outcome), Ok(())) => outcome,
            (_, Err(death)) => Outcome::failed(&death),
            (Err(error), Ok(())) => Outcome::failed(&error),
        }
    }

    fn packets(
        &mut self,
        running: &mut Running,
        side: usize,
        scenario: &Scenario,
    ) -> Result<Outcome, SideError> {
        let hint = self.report.last_rate(scenario, side);
        let sockets = self.options.load == LoadKind::Sockets;
        let is_gated = self.report.sides[side].role == Role::Gated;
        let limit = self
            .report
            .gate
            .and_then(|gate| gate.system_calls(scenario));
        let count_calls = is_gated && limit.is_some();
        let lengths = self.lengths();
        let mut meter = running.meter(scenario, &mut self.beds[side], &self.spinner, sockets)?;
        let packets = meter.search(lengths, hint, count_calls)?;
        Ok(Outcome::Packets(Box::new(packets)))
    }

    fn churn(
        &mut self,
        running: &mut Running,
        side: usize,
        in_flight: u16,
    ) -> Result<Outcome, SideError> {
        running.check_alive()?;
        self.beds[side].open()?;
        let duration = self.options.step * 4;
        upkeep::churn(
            &self.beds[side].topology,
            &self.spinner,
            in_flight,
            duration,
        )
        .map(Outcome::Churn)
    }

    fn handshakes(
        &mut self,
        running: &mut Running,
        side: usize,
        load: (bool, u16),
    ) -> Result<Outcome, SideError> {
        running.check_alive()?;
        self.beds[side].open()?;
        let duration = self.options.step * 4;
        let topology = &self.beds[side].topology;
        upkeep::handshakes(topology, &self.spinner, load, duration).map(Outcome::Churn)
    }

    fn memory(&mut self, side: usize, scenario: &Scenario) -> Outcome {
        let bed = &mut self.beds[side];
        let result = bed.open().and_then(|()| {
            upkeep::memory(
                &self.options.sides[side],
                &mut bed.topology,
                scenario.flows(),
            )
        });
        result.map_or_else(|error| Outcome::failed(&error), Outcome::Memory)
    }

    /// Starts a new server for each load, because a call leaves state for half a minute that the next load must not
    /// find.
    fn sip(&mut self, side: usize, scenario: &Scenario) -> Outcome {
        let own = sip::side_for(&self.options.sides[side], scenario);
        let started = Running::start(&own, &mut self.beds[side], 0, false);
        started.map_or_else(
            |error| Outcome::failed(&error),
            |mut running| self.measure(&mut running, side, scenario),
        )
    }

    fn overload(
        &mut self,
        running: &mut Running,
        side: usize,
        scenario: &Scenario,
        multiples: [f64; 6],
    ) -> Result<Outcome, SideError> {
        let hint = self.report.last_rate(scenario, side);
        let lengths = self.lengths();
        let mut meter = running.meter(scenario, &mut self.beds[side], &self.spinner, false)?;
        let overload = meter.overload(lengths, hint, multiples)?;
        Ok(Outcome::Overload(Box::new(overload)))
    }

    fn lengths(&self) -> Lengths {
        Lengths {
            step: self.options.step,
            hold: self.options.hold,
        }
    }

    fn sip_memory(&mut self, side: usize, scenario: &Scenario, what: (SipWork, u16)) -> Outcome {
        let bed = &mut self.beds[side];
        let side = sip::side_for(&self.options.sides[side], scenario);
        let result = bed
            .open()
            .and_then(|()| sip::memory(&side, &mut bed.topology, what));
        result.map_or_else(|error| Outcome::failed(&error), Outcome::Memory)
    }

    fn spread(&mut self, side: usize, at_once: u16) -> Outcome {
        let bed = &mut self.beds[side];
        let side = &self.options.sides[side];
        let result = bed
            .open()
            .and_then(|()| spread::measure(side, &mut bed.topology, at_once));
        result.map_or_else(|error| Outcome::failed(&error), Outcome::Spread)
    }

    fn stopped(&self) -> bool {
        self.options.stop.load(Ordering::Relaxed)
    }
}

/// The circumstances, before anything is measured.
fn empty_report(options: &BenchOptions) -> Report {
    Report {
        schema_version: Report::SCHEMA_VERSION,
        argv: without_folder(&options.argv),
        hairpin: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: procfs::kernel(),
        processor: procfs::processor(),
        generator_cpu: options.generator_cpu,
        server_cpu: options.server_cpu,
        load: options.load,
        ipv6: options.ipv6,
        preferred: options.preferred,
        step_ms: u64::try_from(options.step.as_millis()).unwrap_or(u64::MAX),
        hold_ms: u64::try_from(options.hold.as_millis()).unwrap_or(u64::MAX),
        rounds: options.rounds,
        fairness: fairness::settings(),
        gate: options.gate,
        stopped: false,
        started_unix_s: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        elapsed_s: 0.0,
        sides: options
            .sides
            .iter()
            .map(|side| describe(options, side))
            .collect(),
        scenarios: options.scenarios.clone(),
        cells: Vec::new(),
    }
}

/// A command line with the bare name of its program: in which folder of whose machine that lies is not part of a
/// result.
fn without_folder(words: &[String]) -> Vec<String> {
    let mut words = words.to_vec();
    if let Some(program) = words.first_mut()
        && let Some(name) = Path::new(program).file_name()
    {
        *program = name.to_string_lossy().into_owned();
    }
    words
}

/// Allocations (or static flows) that a side needs.
fn relayed_flows(options: &BenchOptions, side: &Side) -> u16 {
    most_flows(options, side, |scenario| {
        matches!(scenario, Scenario::Relay { .. })
    })
}

/// Flows that are sent and counted at once.
fn counted_flows(options: &BenchOptions, side: &Side) -> u16 {
    most_flows(options, side, |scenario| {
        matches!(scenario, Scenario::Relay { .. } | Scenario::Binding { .. })
    })
}

fn most_flows(options: &BenchOptions, side: &Side, counts: impl Fn(&Scenario) -> bool) -> u16 {
    let scenarios = options
        .scenarios
        .iter()
        .filter(|scenario| side.runs(scenario) && counts(scenario));
    scenarios.map(Scenario::flows).max().unwrap_or(0)
}

/// One benchmark per machine: an abstract socket name, which is free again when this process ends.
pub(super) fn lock() -> Result<UnixListener, BenchError> {
    let name =
        SocketAddr::from_abstract_name("hairpin-bench").network("make the benchmark's lock")?;
    UnixListener::bind_addr(&name).map_err(|_| BenchError::Busy)
}

fn describe(options: &BenchOptions, side: &Side) -> SideReport {
    let sink = match side.sink {
        bpf::count::Hook::Tc => "tc ingress",
        bpf::count::Hook::Xdp => "xdp",
    };
    SideReport {
        name: side.name.clone(),
        command: without_folder(&side.command_line(0)),
        version: version(side),
        sink: sink.to_owned(),
        role: side.role,
        processors: std::iter::once(options.server_cpu)
            .chain(options.second_cpu(side))
            .collect(),
    }
}

/// The first line that the program prints when asked for its version; empty if it does not
/// understand.
fn version(side: &Side) -> String {
    let understands = ["hairpin", "turnserver"];
    let Some(program) = side
        .command
        .first()
        .filter(|program| understands.iter().any(|name| program.ends_with(name)))
    else {
        return String::new();
    };
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    let text = output
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    text.lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or_default()
        .trim()
        .to_owned()
}
