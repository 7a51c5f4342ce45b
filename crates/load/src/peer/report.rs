//! What a peer did, for people and for programs.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::measure::{Counter, Counters, Snapshot};

/// What a [`Peer`](super::Peer) did from start to stop.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerReport {
    /// Where it listened.
    pub addresses: Vec<SocketAddr>,
    /// From start to stop.
    pub elapsed: Duration,
    /// All threads together.
    pub total: Snapshot,
    /// Each thread by itself.
    pub threads: Vec<Snapshot>,
}

/// The counters of the report under the names of its JSON.
const FIELDS: [(&str, Counter); 15] = [
    ("received", Counter::Received),
    ("received_bytes", Counter::ReceivedBytes),
    ("sent", Counter::Sent),
    ("sent_bytes", Counter::SentBytes),
    ("not_sent", Counter::NotSent),
    ("corrupt", Counter::Corrupt),
    ("damaged", Counter::Damaged),
    ("truncated", Counter::Truncated),
    ("late", Counter::TooLate),
    ("duplicate", Counter::Duplicate),
    ("reordered", Counter::Reordered),
    ("foreign", Counter::Foreign),
    ("other_run", Counter::OtherRun),
    ("overflow", Counter::Overflow),
    ("gso_segments", Counter::GsoSegments),
];

impl PeerReport {
    pub(super) fn new(
        addresses: &[SocketAddr],
        counters: &[Counters],
        elapsed: Duration,
    ) -> PeerReport {
        PeerReport {
            addresses: addresses.to_vec(),
            elapsed,
            total: Snapshot::of(counters),
            threads: counters.iter().map(|one| Snapshot::of([one])).collect(),
        }
    }

    /// The report as JSON, `schema_version` 1.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "schema_version": 1,
            "addresses": self.addresses,
            "elapsed_s": self.elapsed.as_secs_f64(),
            "total": fields(&self.total),
            "threads": self.threads.iter().map(fields).collect::<Vec<_>>(),
        })
    }
}

fn fields(snapshot: &Snapshot) -> Value {
    FIELDS
        .iter()
        .map(|&(name, counter)| (name.to_owned(), json!(snapshot.get(counter))))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

impl fmt::Display for PeerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64().max(1e-9);
        let received = self.total.get(Counter::Received);
        let sent = self.total.get(Counter::Sent);
        write!(
            f,
            "received {received} ({:.0}/s), sent {sent} ({:.0}/s), corrupt {}, damaged {}, truncated {}, duplicate {}, reordered {}, late {}, of another run {}, foreign {}, not sent {}, overflow {}",
            received as f64 / seconds,
            sent as f64 / seconds,
            self.total.get(Counter::Corrupt),
            self.total.get(Counter::Damaged),
            self.total.get(Counter::Truncated),
            self.total.get(Counter::Duplicate),
            self.total.get(Counter::Reordered),
            self.total.get(Counter::TooLate),
            self.total.get(Counter::OtherRun),
            self.total.get(Counter::Foreign),
            self.total.get(Counter::NotSent),
            self.total.get(Counter::Overflow),
        )
    }
}
