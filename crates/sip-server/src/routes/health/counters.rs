//! What a trunk got and sent: counters that all workers share.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use sip::Method;

/// Classes of responses, in the order of [`TrunkCounts::responses`].
pub const RESPONSE_CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "6xx"];

/// Methods whose responses have a count per code; the last name stands for all others.
pub const CODE_METHODS: [&str; 4] = ["INVITE", "MESSAGE", "OPTIONS", "other"];

/// Final responses: the method, the code and their number.
pub type CodeCounts = Vec<(&'static str, u16, u64)>;

/// Final codes, from 200 to 699.
const FIRST_CODE: u16 = 200;
const CODE_COUNT: usize = 500;

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) calls: AtomicU64,
    pub(super) responses: [AtomicU64; RESPONSE_CLASSES.len()],
    pub(super) silent: AtomicU64,
    pub(super) moved_on: AtomicU64,
    pub(super) rung_and_failed: AtomicU64,
    pub(super) limited: AtomicU64,
    pub(super) calls_from: AtomicU64,
    pub(super) limited_from: AtomicU64,
    pub(super) probes_answered: AtomicU64,
    pub(super) probes_failed: AtomicU64,
}

/// Requests to a trunk and its responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrunkCounts {
    /// INVITEs and other requests that begin something, sent to it by a route.
    pub calls: u64,
    /// Final responses to these, by class.
    pub responses: [u64; RESPONSE_CLASSES.len()],
    /// Requests that it has not responded to in time, or that could not be sent.
    pub silent: u64,
    /// Requests that went on to another address, trunk or route.
    pub moved_on: u64,
    /// INVITEs that rang and then failed: with 500, 502, 503 or 504, or without a final response.
    pub rung_and_failed: u64,
    /// Requests that it did not get because of its limit of calls.
    pub limited: u64,
    /// INVITEs outside of dialogs that it has sent and that its own limits have admitted.
    pub calls_from: u64,
    /// INVITEs outside of dialogs that were refused because of its own limits.
    pub limited_from: u64,
    /// OPTIONS that it has responded to.
    pub probes_answered: u64,
    /// OPTIONS that it has not responded to, or with 503.
    pub probes_failed: u64,
    /// Calls that routes have sent to it and that are in progress, if the policy counts calls.
    pub in_progress: u64,
    /// Calls that it has sent and that are in progress, if the policy counts calls.
    pub in_progress_from: u64,
    /// Addresses of it that are available now.
    pub available: u64,
    /// Addresses of it.
    pub addresses: u64,
}

impl Counters {
    /// Their values now. What else [`TrunkCounts`] has is 0.
    pub(super) fn read(&self) -> TrunkCounts {
        let mut responses = [0; RESPONSE_CLASSES.len()];
        for (value, count) in responses.iter_mut().zip(&self.responses) {
            *value = count.load(Relaxed);
        }
        TrunkCounts {
            calls: self.calls.load(Relaxed),
            responses,
            silent: self.silent.load(Relaxed),
            moved_on: self.moved_on.load(Relaxed),
            rung_and_failed: self.rung_and_failed.load(Relaxed),
            limited: self.limited.load(Relaxed),
            calls_from: self.calls_from.load(Relaxed),
            limited_from: self.limited_from.load(Relaxed),
            probes_answered: self.probes_answered.load(Relaxed),
            probes_failed: self.probes_failed.load(Relaxed),
            ..TrunkCounts::default()
        }
    }

    /// Counts a final response by its class.
    pub(super) fn count_response(&self, code: u16) {
        let class = usize::from(code / 100).clamp(1, RESPONSE_CLASSES.len()) - 1;
        if let Some(count) = self.responses.get(class) {
            count.fetch_add(1, Relaxed);
        }
    }
}

/// Final responses by method and code. A method has memory from its first response on.
#[derive(Debug, Default)]
pub(super) struct CodeCounters([OnceLock<Box<[AtomicU64]>>; CODE_METHODS.len()]);

impl CodeCounters {
    pub(super) fn count(&self, method: Method<'_>, code: u16) {
        let name = method.as_bytes();
        let is_it = |known: &&str| known.as_bytes() == name;
        let known = CODE_METHODS.iter().position(is_it);
        let row = self.0.get(known.unwrap_or(CODE_METHODS.len() - 1));
        let new = || (0..CODE_COUNT).map(|_| AtomicU64::new(0)).collect();
        let place = code.checked_sub(FIRST_CODE).map(usize::from);
        if let Some(row) = row
            && let Some(place) = place
            && let Some(count) = row.get_or_init(new).get(place)
        {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Those with a count above 0, and 200 to INVITE.
    pub(super) fn read(&self) -> CodeCounts {
        let mut counts = Vec::new();
        for (method, row) in CODE_METHODS.into_iter().zip(&self.0) {
            let row = row.get().map_or(&[][..], |row| row);
            let row = row.iter().map(|count| count.load(Relaxed));
            let some = (FIRST_CODE..).zip(row).filter(|(_, count)| *count > 0);
            counts.extend(some.map(|(code, count)| (method, code, count)));
        }
        let first = ("INVITE", FIRST_CODE);
        if counts.first().map(|it| (it.0, it.1)) != Some(first) {
            counts.insert(0, (first.0, first.1, 0));
        }
        counts
    }
}
