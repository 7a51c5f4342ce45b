//! What a run is going to do.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Lane, Tap};
use crate::measure::Schedule;

/// Everything a [`Run`](super::Run) needs. Built by a workload, such as [`binding`](super::binding).
#[derive(Debug)]
#[non_exhaustive]
pub struct Plan {
    /// `binding`, `relay`, ...
    pub workload: String,
    /// The server under test.
    pub target: String,
    /// `one way` or `round trip`.
    pub latency_is: String,
    /// Clients, sizes and the like, for the report.
    pub settings: BTreeMap<String, String>,
    /// What to send.
    pub lanes: Vec<Lane>,
    /// Where it arrives.
    pub taps: Vec<Tap>,
    /// Flows in all: the highest flow number and one.
    pub flows: u32,
    /// When to send; `None` is as fast as it leaves.
    pub schedule: Option<Schedule>,
    /// Datagrams of one lane in a row before the next lane's turn, at least 1.
    pub train: u64,
    /// Sent before anything is measured.
    pub warm_up: Duration,
    /// The measured part.
    pub duration: Duration,
    /// How long to wait for what is on its way when the last datagram has left.
    pub linger: Duration,
    /// Sender threads, at least 1.
    pub senders: usize,
    /// Receiver threads, at least 1.
    pub receivers: usize,
    /// Send trains by UDP_SEGMENT. Off, single datagrams leave, as real clients send them.
    pub gso: bool,
}

/// Why a plan cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Nothing to send or nowhere to listen.
    #[error("the plan has nothing to send, or nowhere to receive")]
    Empty,
    /// No sender or no receiver thread.
    #[error("at least one sender and one receiver thread, please")]
    NoThreads,
    /// More flows than a stamp can number.
    #[error("{0} flows are more than 16777216")]
    TooManyFlows(u32),
}

impl Plan {
    /// A plan of one sender, one receiver, ten seconds after one of warm-up, and nothing in it yet.
    #[must_use]
    pub fn new(workload: &str, target: &str) -> Plan {
        Plan {
            workload: workload.to_owned(),
            target: target.to_owned(),
            latency_is: "one way".to_owned(),
            settings: BTreeMap::new(),
            lanes: Vec::new(),
            taps: Vec::new(),
            flows: 0,
            schedule: None,
            train: 1,
            warm_up: Duration::from_secs(1),
            duration: Duration::from_secs(10),
            linger: Duration::from_millis(500),
            senders: 1,
            receivers: 1,
            gso: false,
        }
    }

    pub(super) fn check(&self) -> Result<(), PlanError> {
        if self.lanes.is_empty() || self.taps.is_empty() {
            return Err(PlanError::Empty);
        }
        if self.senders == 0 || self.receivers == 0 {
            return Err(PlanError::NoThreads);
        }
        if self.flows > 1 << 24 {
            return Err(PlanError::TooManyFlows(self.flows));
        }
        Ok(())
    }
}

/// Deals `items` out to `count` hands, one after the other.
pub(super) fn deal<T>(items: Vec<T>, count: usize) -> Vec<Vec<T>> {
    let mut hands: Vec<Vec<T>> = (0..count).map(|_| Vec::new()).collect();
    for (index, item) in items.into_iter().enumerate() {
        hands[index % count].push(item);
    }
    hands
}
