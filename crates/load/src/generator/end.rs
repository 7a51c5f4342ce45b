//! What the threads of a run say when they end.

use std::collections::BTreeMap;

use io::Flushed;

use super::receive_socket::ClientErrors;
use super::shared::Shared;
use super::unexpected::{UnexpectedCounts, UnexpectedDatagram};
use super::{Lane, ReceiveSocket};
use crate::measure::{Arrival, Counter, Counters, Latency};
use crate::report::SipReport;

/// What one thread did.
#[derive(Debug, Default)]
pub(super) struct End {
    /// `sender-0` or the like, and the index of its counters.
    pub(super) name: String,
    pub(super) place: usize,
    pub(super) left: SendStats,
    pub(super) came: ReceiveStats,
    pub(super) client_errors: ClientErrors,
    pub(super) warm_up_errors: ClientErrors,
    /// Mean deviation of each flow, RFC 3550 §6.4.1.
    pub(super) jitter_ns: Vec<f64>,
    pub(super) cpu_ns: u64,
    pub(super) wall_ns: u64,
    /// When it stopped sending.
    pub(super) stopped_ns: u64,
    /// What a SIP worker counted besides.
    pub(super) sip: Option<Box<SipReport>>,
    /// The lanes it had, by stream, and the taps, for another run.
    pub(super) lanes: Vec<Vec<Lane>>,
    pub(super) receive_sockets: Vec<ReceiveSocket>,
}

/// What a thread sent.
#[derive(Clone, Debug, Default)]
pub(super) struct SendStats {
    /// Datagrams that left and were meant to leave within the measured part, and their payload bytes.
    pub(super) measured: u64,
    pub(super) measured_bytes: u64,
    /// Requests that should get a response: no garbage.
    pub(super) requests: u64,
    pub(super) late: u64,
    /// How long after its intended time each of them left.
    pub(super) delay: Latency,
    pub(super) not_sent: u64,
    /// What became of all, warm-up included.
    pub(super) flushed: Flushed,
    /// What was not even tried, by reason.
    pub(super) not_begun: BTreeMap<&'static str, u64>,
}

/// What a thread received of that which was meant to leave in the measured part.
#[derive(Debug, Default)]
pub(super) struct ReceiveStats {
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    /// When the last one arrived that counts in `received` or `answers`; 0 if there was none.
    pub(super) last_arrival_ns: u64,
    pub(super) reordered: u64,
    pub(super) duplicates: u64,
    /// Received datagrams that no sender of this run has sent.
    pub(super) odd: UnexpectedCounts,
    /// How long datagrams lay in our sockets, where the kernel has said so.
    pub(super) unread: Latency,
    /// Answers to what is not measured.
    pub(super) answers: u64,
    pub(super) answer_bytes: u64,
    /// Transactions and how they ended.
    pub(super) succeeded: u64,
    pub(super) failed: u64,
    pub(super) latency: Latency,
    /// By part; empty if there is but one.
    pub(super) parts: Vec<Latency>,
    /// Error responses by code; 0 for no response.
    pub(super) errors: BTreeMap<u16, u64>,
}

impl ReceiveStats {
    /// With a histogram for each of `parts`, unless there is only one.
    pub(super) fn of_parts(parts: usize) -> ReceiveStats {
        ReceiveStats {
            parts: (0..parts)
                .filter(|_| parts > 1)
                .map(|_| Latency::new())
                .collect(),
            ..ReceiveStats::default()
        }
    }

    /// Something arrived at `at_ns`. `latency_ns` is recorded for it.
    pub(super) fn note(
        &mut self,
        arrival: Arrival,
        bytes: usize,
        at_ns: u64,
        latency_ns: u64,
        part: usize,
    ) {
        if arrival == Arrival::Duplicate {
            self.duplicates += 1;
            return;
        }
        self.received += 1;
        self.received_bytes += bytes as u64;
        self.last_arrival_ns = self.last_arrival_ns.max(at_ns);
        self.reordered += u64::from(arrival == Arrival::Reordered);
        self.latency.record_ns(latency_ns);
        self.record_part(part, latency_ns);
    }

    pub(super) fn record_part(&mut self, part: usize, latency_ns: u64) {
        if let Some(latency) = self.parts.get_mut(part) {
            latency.record_ns(latency_ns);
        }
    }

    /// A datagram arrived that does not count as received. `at_ns` is its intended time, if that is known, or else the
    /// time of its arrival.
    pub(super) fn note_unexpected(
        &mut self,
        odd: UnexpectedDatagram,
        at_ns: u64,
        shared: &Shared,
        counters: &Counters,
    ) {
        // A malformed message also shows that the server is there.
        counters.add(Counter::Heard, 1);
        if at_ns >= shared.measure_ns {
            self.odd.add(odd);
        }
    }

    pub(super) fn add(&mut self, other: &ReceiveStats) {
        self.received += other.received;
        self.received_bytes += other.received_bytes;
        self.last_arrival_ns = self.last_arrival_ns.max(other.last_arrival_ns);
        self.reordered += other.reordered;
        self.duplicates += other.duplicates;
        self.odd += other.odd;
        self.unread.merge(&other.unread);
        self.answers += other.answers;
        self.answer_bytes += other.answer_bytes;
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.latency.merge(&other.latency);
        while self.parts.len() < other.parts.len() {
            self.parts.push(Latency::new());
        }
        for (mine, theirs) in self.parts.iter_mut().zip(&other.parts) {
            mine.merge(theirs);
        }
        for (&code, count) in &other.errors {
            *self.errors.entry(code).or_default() += count;
        }
    }
}

impl SendStats {
    /// Takes note of a burst of the measured part with this many bytes of payload in this many bytes of frames.
    pub(super) fn note(&mut self, flushed: &Flushed, payload_bytes: u64, frame_bytes: u64) {
        self.measured += flushed.sent;
        self.not_sent += flushed.dropped();
        // Exact unless something did not leave.
        let share = u128::from(flushed.sent_bytes) * u128::from(payload_bytes);
        self.measured_bytes += (share / u128::from(frame_bytes.max(1))) as u64;
    }

    pub(super) fn add(&mut self, other: &SendStats) {
        self.measured += other.measured;
        self.measured_bytes += other.measured_bytes;
        self.requests += other.requests;
        self.late += other.late;
        self.delay.merge(&other.delay);
        self.not_sent += other.not_sent;
        self.flushed += other.flushed;
        for (reason, count) in &other.not_begun {
            *self.not_begun.entry(reason).or_default() += count;
        }
    }
}
