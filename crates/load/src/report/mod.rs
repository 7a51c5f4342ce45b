//! What a load run found: for the terminal, for programs (JSON, CSV), for people (HTML), for gates (`--fail-if`), and
//! beside another run ([`compare`]).

pub mod chart;
mod compare;
mod csv;
mod html;
mod pace;
mod sip;
mod step;
mod summary;
mod threshold;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::measure::LatencyReport;

pub use compare::{Comparison, Figure, Judgement, compare};
pub use csv::to_csv;
pub use html::to_html;
pub use pace::{OwnDelay, Pace};
pub use sip::{
    Callees, Recovery, RetryAfter, ServerUse, SipReport, Sweep, SweepStep, TenthOfSecond,
};
pub use step::Step;
pub use threshold::{Threshold, ThresholdError, Verdict};

/// Version of the JSON; raised when a field changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 2;

/// A whole run. Times are in seconds unless the name says otherwise; rates are per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LoadReport {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// What ran, and where.
    pub run: RunInfo,
    /// What happened after the warm-up, all threads and flows together.
    pub total: Totals,
    /// One-way or round-trip times, as `run.latency_is` says: in an open loop from the intended time of each send, else
    /// from when it left.
    pub latency: Percentiles,
    /// The same by part, where there are several: the directions `up` and `down`, `audio` and `video`, or the steps of
    /// an allocation's life.
    #[serde(default)]
    pub parts: BTreeMap<String, Percentiles>,
    /// How much later than intended the generator itself sent; of an open loop only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_delay: Option<OwnDelay>,
    /// How long datagrams lay in the generator's own sockets until it woke up, where the kernel stamped them
    /// (SO_TIMESTAMPING): the latencies do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_wake_up: Option<OwnDelay>,
    /// Mean interarrival jitter over the flows (RFC 3550 §6.4.1), microseconds.
    pub jitter_us: f64,
    /// Error responses by code; 0 means time-outs.
    pub errors: BTreeMap<u16, u64>,
    /// How datagrams left.
    pub sending: Sending,
    /// What the kernel of the generator's machine dropped.
    #[serde(default)]
    pub kernel: KernelDrops,
    /// What the server spent, if its process on this machine is known; a unit is what was delivered. SIP has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerUse>,
    /// Each thread of the generator.
    pub threads: Vec<ThreadUse>,
    /// The run second by second, warm-up included.
    pub seconds: Vec<Second>,
    /// The steps of the search that found the rate, if there was one.
    #[serde(default)]
    pub search: Vec<Step>,
    /// What a run of SIP has besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sip: Option<Box<SipReport>>,
    /// What makes the figures less than they seem, the generator being the bottleneck for instance.
    pub warnings: Vec<String>,
    /// How the run ended.
    #[serde(default)]
    pub ended: Ending,
    /// Why the run ended before its time, in words, if it did.
    pub ended_early: Option<String>,
}

/// How a run ended. In every case the report holds what was measured until then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Ending {
    /// Its time was up.
    #[default]
    Complete,
    /// The user stopped it.
    Stopped,
    /// No more responses came.
    ServerSilent,
    /// No more could be sent.
    CannotSend,
}

/// What ran, and where.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunInfo {
    /// The command line.
    pub argv: Vec<String>,
    /// Version of the generator.
    pub version: String,
    /// Kernel release of its machine.
    pub kernel: String,
    /// Processors it could use.
    pub cpus: usize,
    /// Start, in seconds since 1970 (UTC).
    pub started_unix_s: u64,
    /// The server under test.
    pub target: String,
    /// `relay`, `binding`, ...
    pub workload: String,
    /// Clients, payload size, directions and the like, in words.
    pub settings: BTreeMap<String, String>,
    /// Intended rate after the warm-up; `None` in a closed loop.
    pub offered_rate: Option<f64>,
    /// Length of the measured part.
    pub measured_s: f64,
    /// Length of the warm-up before it.
    pub warm_up_s: f64,
    /// Time from the start of the measured part to the last arrival that counts as received. It is greater than
    /// `measured_s` if that arrival came after the end of the measured part, and 0 if nothing was received.
    #[serde(default)]
    pub last_arrival_s: f64,
    /// `one way` or `round trip`.
    pub latency_is: String,
    /// What decided when each send was due.
    #[serde(default)]
    pub pace: Pace,
}

/// Counts of the measured part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Totals {
    /// Datagrams, or requests, that left.
    pub sent: u64,
    /// Their payload bytes.
    pub sent_bytes: u64,
    /// Arrived, each counted once, of those sent in the measured part.
    pub received: u64,
    /// Their payload bytes.
    pub received_bytes: u64,
    /// Sent and never received: sent is the sum of received, lost and late.
    pub lost: u64,
    /// Arrived after their numbers were forgotten: neither received nor lost.
    pub late: u64,
    /// Arrived after a later one.
    pub reordered: u64,
    /// Arrived again.
    pub duplicates: u64,
    /// Arrived shorter or longer than they were sent.
    pub truncated: u64,
    /// Arrived changed behind the head; answers that are no messages.
    pub corrupt: u64,
    /// Arrived with a changed head: magic, run, flow, sequence or time. It is unknown which datagrams they were.
    pub damaged: u64,
    /// Whole payloads of another run.
    pub other_run: u64,
    /// Whole payloads of another client.
    pub misdelivered: u64,
    /// From an address that is not the server, or nothing that was ever sent.
    pub foreign: u64,
    /// Answers with a transaction ID that no open request had.
    pub unknown_ids: u64,
    /// Answers to TURN clients that cannot be trusted: MESSAGE-INTEGRITY is wrong or missing.
    #[serde(default)]
    pub untrusted: u64,
    /// Data for TURN clients on a channel that is not bound, or from a peer without a permission.
    #[serde(default)]
    pub unbound: u64,
    /// Answers with another mapped address, or none.
    pub wrong_addresses: u64,
    /// Left more than a millisecond after the intended time.
    pub sent_late: u64,
    /// Could not leave.
    pub not_sent: u64,
    /// Dropped by the generator's own kernel buffers.
    pub overflow: u64,
    /// Transactions that succeeded.
    pub succeeded: u64,
    /// Transactions that failed.
    pub failed: u64,
}

impl Totals {
    /// Share of what left that was lost, 0 to 1.
    #[must_use]
    pub fn loss(&self) -> f64 {
        ratio(self.lost, self.sent)
    }
}

/// Percentiles in microseconds; `None` where fewer than ten measurements lie beyond one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Percentiles {
    /// Measurements.
    pub count: u64,
    /// Smallest.
    pub min_us: f64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: Option<f64>,
    /// 90 %.
    pub p90_us: Option<f64>,
    /// 99 %.
    pub p99_us: Option<f64>,
    /// 99.9 %.
    pub p999_us: Option<f64>,
    /// 99.99 %.
    pub p9999_us: Option<f64>,
    /// Largest.
    pub max_us: f64,
}

impl From<LatencyReport> for Percentiles {
    fn from(report: LatencyReport) -> Percentiles {
        Percentiles {
            count: report.count,
            min_us: report.min_us,
            mean_us: report.mean_us,
            p50_us: report.p50_us,
            p90_us: report.p90_us,
            p99_us: report.p99_us,
            p999_us: report.p999_us,
            p9999_us: report.p9999_us,
            max_us: report.max_us,
        }
    }
}

/// How datagrams left, warm-up included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Sending {
    /// `UDP_SEGMENT`, `sendmmsg` or `sendto`: the best that was really used.
    pub method: String,
    /// Datagrams that left.
    #[serde(default)]
    pub datagrams: u64,
    /// System calls made.
    pub calls: u64,
    /// Sends of more than one datagram, by UDP_SEGMENT.
    pub gso_runs: u64,
    /// Datagrams in them; the others left one by one.
    pub gso_segments: u64,
    /// UDP_SEGMENT was asked for.
    #[serde(default)]
    pub gso_asked: bool,
    /// Runs that kernel or device refused to send by UDP_SEGMENT, and which left as single datagrams.
    #[serde(default)]
    pub gso_refused: u64,
    /// Datagrams that did not leave, by reason.
    #[serde(default)]
    pub not_sent: BTreeMap<String, u64>,
}

/// Datagrams that the kernel of the generator's machine dropped during the run, warm-up included. They are those of all
/// programs in its network namespace, except those that the generator's sockets were informed of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct KernelDrops {
    /// On their way out: the queue of an interface was full. They count as sent, because senders do not see it.
    pub send: u64,
    /// On their way in: a receive buffer was full that is not the generator's.
    pub receive: u64,
}

impl KernelDrops {
    /// What has come since `earlier`.
    #[must_use]
    pub(crate) fn since(self, earlier: KernelDrops) -> KernelDrops {
        KernelDrops {
            send: self.send.saturating_sub(earlier.send),
            receive: self.receive.saturating_sub(earlier.receive),
        }
    }
}

/// What one thread did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ThreadUse {
    /// `sender-0`, `receiver-1`, ...
    pub name: String,
    /// Datagrams it sent.
    pub sent: u64,
    /// Datagrams it received.
    pub received: u64,
    /// Datagrams it sent per second of its life.
    #[serde(default)]
    pub send_pps: f64,
    /// Datagrams it received per second of its life.
    #[serde(default)]
    pub recv_pps: f64,
    /// Share of one processor it used, 0 to 1.
    pub cpu: f64,
}

/// One second of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Second {
    /// End of the second, since the start of the run.
    pub at_s: f64,
    /// Datagrams sent per second.
    pub send_pps: f64,
    /// Datagrams received per second.
    pub recv_pps: f64,
    /// Sent and not received within this second, by the counters; in-flight datagrams make it noisy.
    pub missing: i64,
    /// Median of this second, microseconds; `None` if fewer than 20 arrived.
    pub p50_us: Option<f64>,
    /// 99 % of this second, microseconds; `None` if fewer than 1,000 arrived.
    pub p99_us: Option<f64>,
    /// Part of the warm-up.
    pub warm_up: bool,
}

/// A percentile as it is printed: `12.3`, or `-` if there is none.
#[must_use]
pub fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

impl LoadReport {
    /// A report of this version with nothing in it.
    #[must_use]
    pub fn empty() -> LoadReport {
        LoadReport {
            schema_version: SCHEMA_VERSION,
            ..LoadReport::default()
        }
    }

    /// Datagrams received per second of the measured part.
    #[must_use]
    pub fn recv_pps(&self) -> f64 {
        self.total.received as f64 / self.run.measured_s.max(1e-9)
    }

    /// Datagrams sent per second of the measured part.
    #[must_use]
    pub fn send_pps(&self) -> f64 {
        self.total.sent as f64 / self.run.measured_s.max(1e-9)
    }

    /// Pretty JSON.
    ///
    /// # Errors
    /// None in practice: every field has a JSON form.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self)
    }

    /// Reads what [`LoadReport::to_json`] wrote.
    ///
    /// # Errors
    /// What is wrong with the JSON, with line and column.
    pub fn from_json(text: &str) -> Result<LoadReport, serde_json::Error> {
        serde_json::from_str(text)
    }
}

#[cfg(test)]
pub(crate) fn sample(p99_us: f64) -> LoadReport {
    let mut report = LoadReport::empty();
    report.run.target = "turn:127.0.0.1:3478".into();
    report.run.workload = "relay".into();
    report.run.measured_s = 10.0;
    report.run.offered_rate = Some(1000.0);
    report.run.latency_is = "one way".into();
    report.total.sent = 10_000;
    report.total.received = 9_990;
    report.total.lost = 10;
    report.latency.count = 9_990;
    report.latency.p50_us = Some(50.0);
    report.latency.max_us = p99_us;
    report.latency.p99_us = Some(p99_us);
    report.seconds = (1..=10)
        .map(|second| Second {
            at_s: f64::from(second),
            send_pps: 1000.0,
            recv_pps: 999.0,
            p50_us: Some(50.0),
            p99_us: Some(p99_us),
            ..Second::default()
        })
        .collect();
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_there_and_back_is_the_same() {
        let report = sample(120.0);
        let text = report.to_json().unwrap();
        assert_eq!(LoadReport::from_json(&text).unwrap(), report);
    }
}
