//! What a run of SIP has beyond what every run has.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Percentiles;
use crate::sip::UasReport;

/// A run of SIP. Units of work are transactions (OPTIONS), registrations or calls; counts of messages are of the
/// measured time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SipReport {
    /// Units of work that succeeded within the measured time, whenever they were meant to begin.
    pub completed: u64,
    /// The same per second: the goodput.
    pub goodput: f64,
    /// Requests that left for the first time, ACKs not among them.
    pub requests: u64,
    /// Requests that left again (timers A and E of RFC 3261 §17).
    pub retransmissions: u64,
    /// Units of work that ended without a final response (timers B and F).
    pub timed_out: u64,
    /// Responses by class: 1xx to 6xx.
    pub responses: [u64; 6],
    /// 503 responses.
    pub unavailable: u64,
    /// What they said in Retry-After.
    pub retry_after: Option<RetryAfter>,
    /// Challenges that were answered.
    pub challenges: u64,
    /// Those of them that said that the nonce was too old (`stale=true`).
    pub stale: u64,
    /// Responses to what never was: another branch, another run.
    pub stray: u64,
    /// Responses to what is over or was answered already.
    pub second: u64,
    /// Responses with our branch and another CSeq.
    pub wrong_cseq: u64,
    /// Requests of the server that are in none of our calls.
    pub foreign_requests: u64,
    /// Calls that the other side ended; its BYE was answered.
    pub hung_up: u64,
    /// Calls that still rang at the end, or after three minutes, and were cancelled.
    pub cancelled: u64,
    /// Requests that went on to another server after a 503 or silence.
    pub failovers: u64,
    /// Units of work that did not begin because every server had said Retry-After.
    pub withheld: u64,
    /// The callees of workload proxy.
    pub callees: Option<Callees>,
    /// Messages that make no sense.
    pub broken: u64,
    /// ICMP errors that say that nothing listens.
    pub unreachable: u64,
    /// Connections that were lost.
    pub connections_lost: u64,
    /// Units of work that were neither over nor given up at the end.
    pub unfinished: u64,
    /// By intended time, a tenth of a second each, warm-up included.
    pub timeline: Vec<TenthOfSecond>,
    /// What the server spent within the measured time, if its process is known.
    pub server: Option<ServerUse>,
    /// What an overload sweep found.
    pub sweep: Option<Sweep>,
}

/// The other end of calls through a proxy, warm-up included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Callees {
    /// Users that were registered before the run.
    pub registered: u64,
    /// Users whose registration was ended after it.
    pub left: u64,
    /// What reached them.
    pub answered: UasReport,
}

impl SipReport {
    /// Messages that no correct server sends: broken ones, and responses with another CSeq.
    #[must_use]
    pub fn wrong(&self) -> u64 {
        self.broken + self.wrong_cseq
    }
}

impl fmt::Display for Callees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let came = &self.answered;
        write!(
            f,
            "  callees   {:>12} registered; INVITE {} (again {}), ACK {}, BYE {}, CANCEL {}, others {}; 200 again {}, no ACK {}, not understood {}",
            self.registered,
            came.invite,
            came.repeated,
            came.ack,
            came.bye,
            came.cancel,
            came.other + came.options + came.register,
            came.retransmissions,
            came.unacknowledged,
            came.ignored,
        )
    }
}

/// What a server on this machine spent: its process and all that this started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ServerUse {
    /// Processes.
    pub processes: u64,
    /// Processor time, as a share of one processor.
    pub cpu: f64,
    /// Processor time for each unit of work that succeeded, microseconds.
    pub cpu_us_per_unit: f64,
    /// Resident memory at the begin of the measured time, bytes; pages that processes share count for each.
    pub resident_before: u64,
    /// The same at its end.
    pub resident_after: u64,
}

impl fmt::Display for ServerUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "  server    {:>12.2} us of processor each ({:.0} % of one), resident {:.1} to {:.1} MB in {} processes",
            self.cpu_us_per_unit,
            self.cpu * 100.0,
            self.resident_before as f64 / 1e6,
            self.resident_after as f64 / 1e6,
            self.processes,
        )
    }
}

/// Values of Retry-After.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RetryAfter {
    /// Responses that had one.
    pub count: u64,
    /// Smallest, seconds.
    pub least_s: u64,
    /// Largest, seconds.
    pub most_s: u64,
}

/// A tenth of a second: what was meant to begin in it, and what became of that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TenthOfSecond {
    /// Its start, since the start of the run.
    pub at_ms: u64,
    /// Units of work that began.
    pub begun: u64,
    /// Units that succeeded.
    pub succeeded: u64,
    /// Units that succeeded within 200 ms.
    #[serde(default)]
    pub soon: u64,
    /// The slowest of these, microseconds.
    pub worst_us: u64,
}

/// An overload sweep: the same workload at multiples of a rate, and what happened when the load fell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Sweep {
    /// Units of work per second that multiples are of.
    pub peak: f64,
    /// From the lowest to the highest load.
    pub steps: Vec<SweepStep>,
    /// After the highest.
    pub recovery: Option<Recovery>,
}

/// One load of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SweepStep {
    /// Multiple of the peak that was to be offered.
    pub multiple: f64,
    /// Units of work per second that were to begin.
    pub offered: f64,
    /// That did begin: less if the generator is the limit.
    pub begun: f64,
    /// Messages that no correct server sends.
    #[serde(default)]
    pub wrong: u64,
    /// Messages per second that left, retransmissions among them.
    pub messages: f64,
    /// Units of work per second that succeeded within the step.
    pub goodput: f64,
    /// 503 responses per second.
    pub unavailable: f64,
    /// Retransmissions per second.
    pub retransmissions: f64,
    /// Share of what began that was not answered at all when the step was over, 0 to 1.
    pub unanswered: f64,
    /// Datagrams that full receive buffers of other programs on this machine dropped, per second.
    pub dropped: f64,
    /// Of what succeeded, since it was meant to begin, retransmissions included.
    pub latency: Percentiles,
    /// Of what succeeded, since the request that was answered left.
    pub last_try: Percentiles,
    /// Processor time of the server, as a share of one processor; `None` if its process is not known.
    pub server_cpu: Option<f64>,
    /// Resident memory of the server at the beginning and at the end of the step, bytes.
    pub server_memory_before: Option<u64>,
    /// See above.
    pub server_memory: Option<u64>,
}

/// How soon all was well again after a drop of the load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Recovery {
    /// Multiples of the peak: before the drop, and after.
    pub from: f64,
    /// After it.
    pub to: f64,
    /// The time from the drop until 99 % of the requests of 0.1 s succeed within 200 ms, and continue to do so. `None`
    /// if this did not happen within the measured time.
    pub seconds: Option<f64>,
    /// When the load fell, since the start of the run that `timeline` is of.
    #[serde(default)]
    pub fell_at_ms: u64,
    /// The highest load for a while, and the lower one.
    #[serde(default)]
    pub timeline: Vec<TenthOfSecond>,
}

impl SipReport {
    /// Adds what another thread counted.
    pub(crate) fn add(&mut self, other: &SipReport) {
        self.completed += other.completed;
        self.requests += other.requests;
        self.retransmissions += other.retransmissions;
        self.timed_out += other.timed_out;
        for (mine, theirs) in self.responses.iter_mut().zip(other.responses) {
            *mine += theirs;
        }
        self.unavailable += other.unavailable;
        if let Some(theirs) = other.retry_after {
            let mine = self.retry_after.get_or_insert(RetryAfter {
                least_s: theirs.least_s,
                ..RetryAfter::default()
            });
            mine.count += theirs.count;
            mine.least_s = mine.least_s.min(theirs.least_s);
            mine.most_s = mine.most_s.max(theirs.most_s);
        }
        self.challenges += other.challenges;
        self.stale += other.stale;
        self.stray += other.stray;
        self.second += other.second;
        self.wrong_cseq += other.wrong_cseq;
        self.hung_up += other.hung_up;
        self.cancelled += other.cancelled;
        self.failovers += other.failovers;
        self.withheld += other.withheld;
        if let Some(theirs) = &other.callees {
            let mine = self.callees.get_or_insert_default();
            mine.registered += theirs.registered;
            mine.left += theirs.left;
            mine.answered.add(&theirs.answered);
        }
        self.foreign_requests += other.foreign_requests;
        self.broken += other.broken;
        self.unreachable += other.unreachable;
        self.connections_lost += other.connections_lost;
        self.unfinished += other.unfinished;
        if let Some(server) = other.server {
            self.server = Some(server);
        }
        if self.timeline.len() < other.timeline.len() {
            self.timeline
                .resize(other.timeline.len(), TenthOfSecond::default());
        }
        for (mine, theirs) in self.timeline.iter_mut().zip(&other.timeline) {
            mine.at_ms = theirs.at_ms;
            mine.begun += theirs.begun;
            mine.succeeded += theirs.succeeded;
            mine.soon += theirs.soon;
            mine.worst_us = mine.worst_us.max(theirs.worst_us);
        }
    }
}

impl SweepStep {
    /// What stands above a table of steps.
    pub const HEADER: &str = "     load    offered/s      begun/s    goodput/s      503/s     retx/s  unanswered     p99 ms    try ms  server      MB";
}

impl fmt::Display for SweepStep {
    /// A row below [`SweepStep::HEADER`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>8.2}x{:>13.0}{:>13.0}{:>13.0}{:>11.0}{:>11.0}{:>10.2} %{:>11}{:>10}",
            self.multiple,
            self.offered,
            self.begun,
            self.goodput,
            self.unavailable,
            self.retransmissions,
            self.unanswered * 100.0,
            ms(self.latency.p99_us),
            ms(self.last_try.p99_us),
        )?;
        match self.server_cpu {
            Some(cpu) => write!(f, "{:>6.0} %", cpu * 100.0)?,
            None => write!(f, "{:>8}", "-")?,
        }
        match self.server_memory {
            Some(bytes) => write!(f, "{:>8.0}", bytes as f64 / 1e6),
            None => write!(f, "{:>8}", "-"),
        }
    }
}

/// Milliseconds, or `-`.
fn ms(us: Option<f64>) -> String {
    us.map_or_else(|| "-".to_owned(), |us| format!("{:.2}", us / 1e3))
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  sweep: multiples of {:.0}/s", self.peak)?;
        writeln!(f, "  {}", SweepStep::HEADER)?;
        for step in &self.steps {
            writeln!(f, "  {step}")?;
        }
        let Some(recovery) = &self.recovery else {
            return Ok(());
        };
        let (from, to) = (recovery.from, recovery.to);
        match recovery.seconds {
            Some(seconds) => writeln!(
                f,
                "  recovered {seconds:.1} s after the load fell from {from}x to {to}x"
            ),
            None => writeln!(
                f,
                "  had not recovered when it was looked at, after the load fell from {from}x to {to}x"
            ),
        }
    }
}

impl fmt::Display for SipReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  goodput   {:>12.0}/s   requests {}, again {} ({:.3} %), given up {}, unfinished {}",
            self.goodput,
            self.requests,
            self.retransmissions,
            100.0 * self.retransmissions as f64 / self.requests.max(1) as f64,
            self.timed_out,
            self.unfinished,
        )?;
        let [r1, r2, r3, r4, r5, r6] = self.responses;
        write!(
            f,
            "  responses          1xx {r1}, 2xx {r2}, 3xx {r3}, 4xx {r4}, 5xx {r5}, 6xx {r6}"
        )?;
        if self.challenges > 0 {
            write!(f, "; challenges {}", self.challenges)?;
        }
        if self.stale > 0 {
            write!(f, " (nonce too old: {})", self.stale)?;
        }
        if self.unavailable > 0 {
            write!(f, "; 503 {}", self.unavailable)?;
        }
        if let Some(after) = self.retry_after {
            let RetryAfter {
                count,
                least_s,
                most_s,
            } = after;
            write!(f, ", {count} with Retry-After {least_s} to {most_s} s")?;
        }
        writeln!(f)?;
        let odd = [
            ("ended by the other side", self.hung_up),
            ("cancelled while they rang", self.cancelled),
            ("went on to another server", self.failovers),
            ("withheld, as Retry-After asked", self.withheld),
            ("stray responses", self.stray),
            ("repeated and late responses", self.second),
            ("responses with another CSeq", self.wrong_cseq),
            ("requests outside our calls", self.foreign_requests),
            ("not understood", self.broken),
            ("port unreachable", self.unreachable),
            ("connections lost", self.connections_lost),
        ];
        for (name, count) in odd.into_iter().filter(|(_, count)| *count > 0) {
            writeln!(f, "  {name} {count}")?;
        }
        if let Some(callees) = &self.callees {
            writeln!(f, "{callees}")?;
        }
        if let Some(server) = &self.server {
            writeln!(f, "{server}")?;
        }
        match &self.sweep {
            Some(sweep) => write!(f, "{sweep}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_a_sweep_stands_below_its_header() {
        let step = SweepStep {
            multiple: 10.0,
            offered: 1_500_000.0,
            goodput: 99_000.0,
            unanswered: 0.5,
            ..SweepStep::default()
        };
        let row = step.to_string();
        let end = |text: &str, part: &str| text.find(part).map(|at| at + part.len());
        for (name, value) in [
            ("load", "10.00x"),
            ("offered/s", "1500000"),
            ("goodput/s", "99000"),
            ("unanswered", "50.00 %"),
        ] {
            assert_eq!(
                end(SweepStep::HEADER, name),
                end(&row, value),
                "{name}: {row}"
            );
        }
    }

    #[test]
    fn threads_add_up() {
        let after = |least_s, most_s| RetryAfter {
            count: 1,
            least_s,
            most_s,
        };
        let part = |bins: usize| SipReport {
            completed: 3,
            timeline: vec![
                TenthOfSecond {
                    begun: 2,
                    ..TenthOfSecond::default()
                };
                bins
            ],
            retry_after: Some(after(bins as u64, 9)),
            ..SipReport::default()
        };
        let mut sum = part(1);
        sum.add(&part(2));
        assert_eq!(
            (sum.completed, sum.timeline.len(), sum.timeline[0].begun),
            (6, 2, 4)
        );
        assert_eq!(
            sum.retry_after,
            Some(RetryAfter {
                count: 2,
                ..after(1, 9)
            })
        );
    }
}
