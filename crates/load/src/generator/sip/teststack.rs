//! The runs of reSIProcate's `testStack`: a number of runs, a window of them in flight, both sides in one process.
//!
//! The threads of testStack become threads of this generator. A transport of its own thread (`--tf 32`) is a second
//! thread of the answering side. A stack of several threads (`-t multithreadedstack`) is two threads that send.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::options::{SipOptions, SipWorkload};
use crate::generator::{Run, RunError, SetupError, Stopper, Target, TargetError};
use crate::report::{Percentiles, shown};
use crate::sip::{Transport, Uas, UasError, UasOptions};
use ::io::clock;

/// A run of testStack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TestStack {
    /// As its regression script calls it.
    pub name: &'static str,
    /// What carries it.
    pub transport: Transport,
    /// REGISTER or calls.
    pub workload: SipWorkload,
    /// Ports, and as many sockets or connections.
    pub ports: u32,
    /// Threads that send, and threads that answer.
    pub threads: (usize, usize),
}

/// The outcome of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TestStackReport {
    /// Which run.
    pub name: String,
    /// `registrations` or `calls`.
    pub unit: String,
    /// How many there were to be.
    pub runs: u64,
    /// Under way at once.
    pub window: u32,
    /// That succeeded.
    pub completed: u64,
    /// How long all of them took, milliseconds.
    pub elapsed_ms: f64,
    /// Per second.
    pub rate: f64,
    /// Runs that were refused or not answered, and begun anew.
    pub anew: u64,
    /// Requests that left again.
    pub retransmissions: u64,
    /// Round trip, or INVITE to 200.
    pub latency: Percentiles,
    /// Processor time of the process for each run, microseconds: both sides, unless a server elsewhere answered.
    pub cpu_us: f64,
    /// By how much the resident memory of the process grew at most, bytes for each run.
    pub bytes: f64,
    /// Highest resident memory, bytes.
    pub peak_resident: u64,
}

/// Why a run did not come about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestStackError {
    /// The answering side.
    #[error(transparent)]
    Uas(#[from] UasError),
    /// The sending side.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// Its threads or sockets.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The server is not there to be loaded.
    #[error(transparent)]
    Target(#[from] TargetError),
}

/// A run that takes longer is given up.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

impl TestStack {
    /// The seven runs of `testStackStd.sh`, and INVITE over UDP.
    #[must_use]
    pub fn all() -> [TestStack; 8] {
        let tcp = TestStack {
            name: "TCP",
            transport: Transport::Tcp,
            workload: SipWorkload::Register,
            ports: 1,
            threads: (1, 1),
        };
        let named = |name, threads| TestStack {
            name,
            threads,
            ..tcp
        };
        let udp = |name, workload| TestStack {
            name,
            workload,
            transport: Transport::Udp,
            ..tcp
        };
        [
            tcp,
            named("TCP tf=32", (1, 2)),
            named("TCP multithreadedstack", (2, 1)),
            named("TCP multithreadedstack tf=32", (2, 2)),
            udp("UDP", SipWorkload::Register),
            TestStack {
                name: "TCP 50 ports",
                ports: 50,
                ..tcp
            },
            TestStack {
                name: "TCP INVITE",
                workload: SipWorkload::Call,
                ..tcp
            },
            udp("UDP INVITE", SipWorkload::Call),
        ]
    }

    /// Runs it with `runs` runs, `window` at a time, against `servers` in turn, or against a local answering side if
    /// there are none.
    ///
    /// # Errors
    /// [`TestStackError`].
    pub fn carry_out(
        &self,
        runs: u64,
        window: u32,
        servers: &[Target],
        stopper: &Stopper,
    ) -> Result<TestStackReport, TestStackError> {
        let uas = match servers {
            [] => Some(self.answerer()?),
            _ => None,
        };
        let targets = match &uas {
            Some(uas) => {
                let all = uas.addresses().iter();
                all.map(|&address| Target::admit(address, false))
                    .collect::<Result<Vec<_>, _>>()?
            }
            None => servers.to_vec(),
        };
        let mut plan = super::sip(&self.options(targets, runs), stopper)?;
        plan.warm_up = Duration::ZERO;
        plan.duration = RUN_TIMEOUT;
        plan.linger = Duration::ZERO;
        plan.senders = self.threads.0;
        plan.close_loop(window);
        let before = forget_peak();
        let cpu_ns = clock::process_cpu_ns();
        let report = Run::start(plan)?.finish();
        let cpu_ns = clock::process_cpu_ns() - cpu_ns;
        let peak_resident = peak_resident();
        let sip = report.sip.as_deref().cloned().unwrap_or_default();
        let done = sip.completed.max(1) as f64;
        Ok(TestStackReport {
            name: self.name.to_owned(),
            unit: match self.workload {
                SipWorkload::Call => "calls".to_owned(),
                _ => "registrations".to_owned(),
            },
            runs,
            window,
            completed: sip.completed,
            elapsed_ms: report.run.measured_s * 1e3,
            rate: sip.goodput,
            anew: report.errors.values().sum(),
            retransmissions: sip.retransmissions,
            latency: report.latency,
            cpu_us: cpu_ns as f64 / 1e3 / done,
            bytes: peak_resident.saturating_sub(before) as f64 / done,
            peak_resident,
        })
    }

    fn answerer(&self) -> Result<Uas, UasError> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut options = UasOptions::new(vec![any; self.ports as usize]);
        options.threads = self.threads.1;
        Uas::start(&options)
    }

    fn options(&self, targets: Vec<Target>, runs: u64) -> SipOptions {
        // There is a target: the answering side has a port, or the server was given.
        let mut options = SipOptions::new(targets[0]);
        options.targets = targets;
        options.transport = self.transport;
        options.workload = self.workload;
        // A thread that sends needs a link of its own.
        options.links = self.ports.max(self.threads.0 as u32);
        options.runs = Some(runs);
        options.anew = true;
        options.obey = false;
        options
    }
}

impl std::fmt::Display for TestStackReport {
    /// testStack's own line, and what it does not say.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rate_of = match self.unit.as_str() {
            "calls" => "calls",
            _ => "transactions",
        };
        writeln!(f, "{} (window {})", self.name, self.window)?;
        writeln!(
            f,
            "{} {} performed in {:.0} ms, a rate of {:.0} {rate_of} per second.",
            self.completed, self.unit, self.elapsed_ms, self.rate
        )?;
        writeln!(
            f,
            "  completed {:.2} %, begun anew {}, retransmissions {} ({:.3} %), p50 {} us, p99 {} us, p99.9 {} us, cpu {:.2} us each, memory {:.0} B each, at most {:.1} MB",
            100.0 * self.completed as f64 / self.runs.max(1) as f64,
            self.anew,
            self.retransmissions,
            100.0 * self.retransmissions as f64 / self.runs.max(1) as f64,
            shown(self.latency.p50_us),
            shown(self.latency.p99_us),
            shown(self.latency.p999_us),
            self.cpu_us,
            self.bytes,
            self.peak_resident as f64 / 1e6,
        )
    }
}

/// Lets the kernel's note of the highest resident memory begin anew, where it may, and returns what it is now.
fn forget_peak() -> u64 {
    // Where it cannot be reset, the memory of a run is only seen if it is more than that of the runs before.
    let _ = fs::write("/proc/self/clear_refs", "5");
    peak_resident()
}

fn peak_resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_completes() {
        for test in TestStack::all() {
            for window in [20, 300] {
                let report = test.carry_out(300, window, &[], &Stopper::new()).unwrap();
                assert_eq!(report.completed, 300, "{report}");
                assert!(report.to_string().contains("performed in"), "{report}");
            }
        }
    }
}
