//! What a worker of the answering side has counted, readable from any thread.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    Options,
    Register,
    Invite,
    Ack,
    Bye,
    Cancel,
    /// Calls that a CANCEL ended.
    Cancelled,
    Other,
    /// INVITEs that came again.
    Repeated,
    /// Responses that left, those again included.
    Responses,
    /// Those that left again because no ACK came.
    Retransmissions,
    /// What could not be answered: not a request, or cut short.
    Ignored,
    /// Datagrams the kernel dropped because the receive buffer was full.
    Overflow,
    /// Calls whose ACK never came.
    Unacknowledged,
}

const COUNTS: usize = Count::Unacknowledged as usize + 1;

/// The counters of one worker.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct WorkerCounts([AtomicU64; COUNTS]);

impl WorkerCounts {
    /// Only the worker itself adds: a plain load and store.
    pub(super) fn add(&self, count: Count, amount: u64) {
        let value = &self.0[count as usize];
        value.store(value.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
    }

    pub(super) fn add_to(&self, report: &mut UasReport) {
        let get = |count: Count| self.0[count as usize].load(Ordering::Relaxed);
        report.options += get(Count::Options);
        report.register += get(Count::Register);
        report.invite += get(Count::Invite);
        report.ack += get(Count::Ack);
        report.bye += get(Count::Bye);
        report.cancel += get(Count::Cancel);
        report.cancelled += get(Count::Cancelled);
        report.other += get(Count::Other);
        report.repeated += get(Count::Repeated);
        report.responses += get(Count::Responses);
        report.retransmissions += get(Count::Retransmissions);
        report.ignored += get(Count::Ignored);
        report.overflow += get(Count::Overflow);
        report.unacknowledged += get(Count::Unacknowledged);
    }
}

/// What an answering side has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UasReport {
    /// OPTIONS requests.
    pub options: u64,
    /// REGISTER requests.
    pub register: u64,
    /// INVITE requests, each counted once.
    pub invite: u64,
    /// ACK requests.
    pub ack: u64,
    /// BYE requests.
    pub bye: u64,
    /// CANCEL requests.
    #[serde(default)]
    pub cancel: u64,
    /// Calls that rang and that a CANCEL ended.
    #[serde(default)]
    pub cancelled: u64,
    /// Requests of other methods.
    pub other: u64,
    /// INVITEs that came again while they were in progress.
    pub repeated: u64,
    /// Responses that left.
    pub responses: u64,
    /// Those of them that left again, because no ACK came.
    pub retransmissions: u64,
    /// What could not be answered: responses, and what is not SIP.
    pub ignored: u64,
    /// Datagrams that the kernel dropped because a receive buffer was full.
    pub overflow: u64,
    /// Calls whose ACK never came.
    pub unacknowledged: u64,
}

impl UasReport {
    /// Adds what another thread counted.
    pub(crate) fn add(&mut self, other: &UasReport) {
        self.options += other.options;
        self.register += other.register;
        self.invite += other.invite;
        self.ack += other.ack;
        self.bye += other.bye;
        self.cancel += other.cancel;
        self.cancelled += other.cancelled;
        self.other += other.other;
        self.repeated += other.repeated;
        self.responses += other.responses;
        self.retransmissions += other.retransmissions;
        self.ignored += other.ignored;
        self.overflow += other.overflow;
        self.unacknowledged += other.unacknowledged;
    }

    /// Requests that were answered or acknowledge an answer.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.options + self.register + self.invite + self.ack + self.bye + self.cancel + self.other
    }
}
