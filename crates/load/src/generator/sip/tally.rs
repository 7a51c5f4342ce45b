//! What a worker counts beyond what every workload does, and when.

use crate::report::{RetryAfter, SipReport, TenthOfSecond};

/// Width of a bin of the timeline.
pub(super) const BIN_NS: u64 = 100_000_000;
/// What succeeds within this time does so soon.
const SOON_NS: u64 = 200_000_000;
/// Bins of a run of an hour; what is later is not entered.
const MAX_BINS: u64 = 36_000;

/// Counts of a worker. Those of units of work are of the measured ones, those of messages of the measured time.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) report: SipReport,
    /// By intended time.
    timeline: Vec<TenthOfSecond>,
    origin_ns: u64,
}

impl Tally {
    /// For a run from `origin_ns` to `end_ns`.
    pub(super) fn new(origin_ns: u64, end_ns: u64) -> Tally {
        let bins = (end_ns.saturating_sub(origin_ns) / BIN_NS + 1).min(MAX_BINS);
        let moment = |bin: u64| TenthOfSecond {
            at_ms: bin * BIN_NS / 1_000_000,
            ..TenthOfSecond::default()
        };
        Tally {
            timeline: (0..bins).map(moment).collect(),
            origin_ns,
            report: SipReport::default(),
        }
    }

    fn bin(&mut self, intended_ns: u64) -> Option<&mut TenthOfSecond> {
        let bin = intended_ns.saturating_sub(self.origin_ns) / BIN_NS;
        self.timeline.get_mut(bin as usize)
    }

    /// A unit of work began.
    pub(super) fn began(&mut self, intended_ns: u64) {
        if let Some(moment) = self.bin(intended_ns) {
            moment.begun += 1;
        }
    }

    /// A unit of work succeeded; `within` says whether that was in the measured time.
    pub(super) fn succeeded(&mut self, intended_ns: u64, latency_ns: u64, within: bool) {
        self.report.completed += u64::from(within);
        if let Some(moment) = self.bin(intended_ns) {
            moment.succeeded += 1;
            moment.soon += u64::from(latency_ns <= SOON_NS);
            moment.worst_us = moment.worst_us.max(latency_ns / 1000);
        }
    }

    /// A final response that is not a success.
    pub(super) fn refused(&mut self, status: u16, retry_after: Option<u64>, within: bool) {
        self.report.unavailable += u64::from(status == 503 && within);
        if let Some(seconds) = retry_after.filter(|_| within) {
            let all = self.report.retry_after.get_or_insert(RetryAfter {
                least_s: seconds,
                ..RetryAfter::default()
            });
            all.count += 1;
            all.least_s = all.least_s.min(seconds);
            all.most_s = all.most_s.max(seconds);
        }
    }

    /// The whole report.
    pub(super) fn finish(self) -> SipReport {
        SipReport {
            timeline: self.timeline,
            ..self.report
        }
    }
}
