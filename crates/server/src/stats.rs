//! What a running server has done, worker by worker.

use crate::connections::StreamCounters;
use crate::counters::Counters;
use crate::dtls::DtlsCounters;
use crate::sip::SipCounters;

pub use io::{BatchSizes, Flushed, Received};
pub use turn::server::{
    AuthFailure, CloseReason, DropReason, ERROR_CODES, METHODS, Stats as EngineStats, Traffic,
};

/// The counts of one worker at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStats {
    /// What the worker itself counts.
    pub counters: Counters,
    /// What its engine counts: allocations, responses by code, discarded datagrams by reason, relayed bytes.
    pub engine: turn::server::Stats,
    /// What the worker counts of connections over TCP and TLS.
    pub streams: StreamCounters,
    /// What the worker counts of DTLS; all 0 where it is not listened on.
    pub dtls: DtlsCounters,
    /// What became of datagrams that were sent.
    pub sends: Flushed,
    /// What was received, and how much of it at once.
    pub received: Received,
    /// Relay sockets that are open.
    pub relays_open: u64,
    /// Clients of this worker whom the kernel's hash would send to another: each has an entry in the table of steered
    /// flows.
    pub flows_steered: u64,
    /// Channels that the kernel may relay: each has an entry per direction in its table.
    pub channels_offloaded: u64,
    /// What the worker counts of SIP; all 0 where it is not served.
    pub sip: SipCounters,
}

/// The counts of a server at one moment.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Stats {
    /// One entry per worker, in the order of their numbers.
    pub workers: Vec<WorkerStats>,
}

impl Stats {
    /// The sum of one number over all workers.
    pub fn sum(&self, number: impl Fn(&WorkerStats) -> u64) -> u64 {
        self.workers.iter().map(number).sum()
    }

    /// Allocations that exist.
    #[must_use]
    pub fn allocations(&self) -> u64 {
        self.sum(|worker| worker.engine.allocations)
    }

    /// Error responses with this code.
    #[must_use]
    pub fn errors_with(&self, code: u16) -> u64 {
        self.sum(|worker| worker.engine.errors_with(code))
    }

    /// Datagrams that an engine discarded for this reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.sum(|worker| worker.engine.dropped(reason))
    }

    /// The workers' own counters, added up.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.workers
            .iter()
            .for_each(|worker| sum += &worker.counters);
        sum
    }

    /// What the workers count of SIP, added up.
    #[must_use]
    pub fn sip(&self) -> SipCounters {
        let mut sum = SipCounters::default();
        self.workers.iter().for_each(|worker| sum += &worker.sip);
        sum
    }

    /// What the workers count of connections over TCP and TLS, added up.
    #[must_use]
    pub fn streams(&self) -> StreamCounters {
        let mut sum = StreamCounters::default();
        self.workers
            .iter()
            .for_each(|worker| sum += &worker.streams);
        sum
    }

    /// What the workers count of DTLS, added up.
    #[must_use]
    pub fn dtls(&self) -> DtlsCounters {
        let mut sum = DtlsCounters::default();
        self.workers.iter().for_each(|worker| sum += &worker.dtls);
        sum
    }

    /// What was received at once, added up.
    #[must_use]
    pub fn received(&self) -> Received {
        let mut sum = Received::default();
        self.workers
            .iter()
            .for_each(|worker| sum += &worker.received);
        sum
    }

    /// What became of datagrams that were sent, added up.
    #[must_use]
    pub fn sends(&self) -> Flushed {
        let mut sum = Flushed::default();
        self.workers.iter().for_each(|worker| sum += worker.sends);
        sum
    }
}
