//! The state of a trunk: which of its addresses may get requests now, its limits, and which responses it sent.
//!
//! All workers write here, once or twice per call. Each value is an independent number, so no lock is necessary.

mod address;
mod counters;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use sip::{Method, Mono};

use self::address::AddressHealth;
pub use self::address::{AddressError, AddressState, AddressStatus};
pub use self::counters::{CODE_METHODS, CodeCounts, RESPONSE_CLASSES, TrunkCounts};
use self::counters::{CodeCounters, Counters};
use super::config::{ProbeConfig, Trunk};
use crate::calls::{CallCounter, CallRate, Exceeded, Limit, Ticket};

/// Calls may come this much before they are due, so that an even flow with some jitter passes.
const BURST_NS: u64 = 100_000_000;

/// All calls, in thousandths.
pub(super) const FULL_SHARE: u32 = 1000;

/// The outcome of a request to an address of a trunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A response with this code. A Retry-After in seconds counts with 503 alone.
    Response(u16, Option<u32>),
    /// No response in time.
    Silent,
    /// It could not be sent.
    NotSent,
}

/// The state of a trunk.
#[derive(Debug)]
pub struct Health {
    probe: ProbeConfig,
    addresses: Box<[AddressHealth]>,
    /// When the next call is due by the limit, in nanoseconds.
    next_call: AtomicU64,
    counters: Counters,
    calls: CallCounter,
    /// The calls that it has sent.
    calls_from: CallCounter,
    /// The limit of calls per second from it.
    rate_from: CallRate,
    codes: CodeCounters,
    is_registered: AtomicBool,
}

impl Health {
    /// The state of a trunk whose addresses are all available.
    pub(super) fn new(trunk: &Trunk) -> Health {
        Health {
            probe: trunk.probe,
            addresses: trunk.to.iter().map(|_| AddressHealth::default()).collect(),
            next_call: AtomicU64::new(0),
            counters: Counters::default(),
            calls: CallCounter::default(),
            calls_from: CallCounter::default(),
            rate_from: CallRate::default(),
            codes: CodeCounters::default(),
            is_registered: AtomicBool::new(false),
        }
    }

    /// Whether the trunk accepts the registration of this server.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.is_registered.load(Relaxed)
    }

    /// The trunk has begun or ended to accept the registration.
    pub fn set_registered(&self, is_registered: bool) {
        self.is_registered.store(is_registered, Relaxed);
    }

    fn address(&self, hop: u16) -> Option<&AddressHealth> {
        self.addresses.get(usize::from(hop))
    }

    /// Whether an address may be tried now.
    pub(super) fn is_available(&self, hop: u16, now: Mono) -> bool {
        let address = self.address(hop);
        address.is_some_and(|address| address.is_available(now))
    }

    /// The status of each address, in the order of the configuration.
    #[must_use]
    pub fn addresses(&self, now: Mono) -> Vec<AddressStatus> {
        let all = self.addresses.iter();
        all.map(|address| address.status(&self.probe, now))
            .collect()
    }

    /// How many of a thousand calls an address takes during its slow start.
    pub(super) fn share(&self, hop: u16, now: Mono) -> u32 {
        let address = self.address(hop);
        address.map_or(0, |address| address.share(&self.probe, now))
    }

    /// Whether the limit admits another call. If so, the call counts.
    pub fn admit(&self, calls_per_second: u32, now: Mono) -> bool {
        let is_admitted = calls_per_second == 0 || {
            let step = 1_000_000_000 / u64::from(calls_per_second);
            // The generic cell rate algorithm: one number says when the next call is due.
            let taken = self.next_call.fetch_update(Relaxed, Relaxed, |next| {
                let is_early = next > now.0.saturating_add(BURST_NS.max(step) - step);
                (!is_early).then(|| next.max(now.0).saturating_add(step))
            });
            taken.is_ok()
        };
        let counter = match is_admitted {
            true => &self.counters.calls,
            false => &self.counters.limited,
        };
        counter.fetch_add(1, Relaxed);
        is_admitted
    }

    /// A call to the trunk begins, in addition to [`Health::admit`]. `None` if there are `most` calls already; 0 means
    /// no limit. The call ends when the ticket is dropped.
    pub fn begin_call(&self, most: u32) -> Option<Ticket> {
        let ticket = self.calls.begin(most);
        if ticket.is_none() {
            self.counters.limited.fetch_add(1, Relaxed);
        }
        ticket
    }

    /// The trunk has sent an INVITE outside of dialogs. `counts`: the policy counts calls, so the result has a ticket.
    /// The call ends when the ticket is dropped.
    ///
    /// # Errors
    /// The limit of calls from the trunk that the call exceeds. The call must be refused then.
    pub fn admit_from(
        &self,
        limit: Limit,
        counts: bool,
        now: Mono,
    ) -> Result<Option<Ticket>, Exceeded> {
        let admitted = self.calls_from.begin(limit.concurrent);
        let admitted = admitted.ok_or(Exceeded::Concurrent).and_then(|ticket| {
            match self.rate_from.may_begin(now, limit.per_second) {
                true => Ok(ticket),
                false => Err(Exceeded::Rate),
            }
        });
        let counter = match admitted {
            Ok(_) => &self.counters.calls_from,
            Err(_) => &self.counters.limited_from,
        };
        counter.fetch_add(1, Relaxed);
        Ok(Some(admitted?).filter(|_| counts))
    }

    /// The trunk has sent this final response.
    pub fn responded(&self, method: Method<'_>, code: u16) {
        self.codes.count(method, code);
    }

    /// Final responses by method and code: those with a count above 0, and 200 to INVITE.
    #[must_use]
    pub fn codes(&self) -> CodeCounts {
        self.codes.read()
    }

    /// The outcome of a request outside of dialogs.
    pub fn concluded(&self, hop: u16, now: Mono, outcome: Outcome) {
        match outcome {
            Outcome::Response(code, _) => self.counters.count_response(code),
            Outcome::Silent | Outcome::NotSent => {
                self.counters.silent.fetch_add(1, Relaxed);
            }
        }
        let Some(address) = self.address(hop) else {
            return;
        };
        address.note_error(now, outcome);
        match outcome {
            Outcome::Response(503, Some(seconds @ 1..)) => {
                address.pause(now, Duration::from_secs(seconds.into()));
            }
            Outcome::Response(..) => address.clear_failures(),
            Outcome::Silent | Outcome::NotSent => {
                address.failed(&self.probe, now);
            }
        }
    }

    /// The outcome of a probe. Returns whether it made the address available or unavailable.
    pub fn probed(&self, hop: u16, now: Mono, outcome: Outcome) -> bool {
        let is_good = matches!(outcome, Outcome::Response(code, _) if code != 503);
        let count = match is_good {
            true => &self.counters.probes_answered,
            false => &self.counters.probes_failed,
        };
        count.fetch_add(1, Relaxed);
        let Some(address) = self.address(hop) else {
            return false;
        };
        if is_good {
            return address.succeeded(&self.probe, now);
        }
        address.note_error(now, outcome);
        if let Outcome::Response(503, Some(seconds @ 1..)) = outcome {
            address.pause(now, Duration::from_secs(seconds.into()));
        }
        address.failed(&self.probe, now)
    }

    /// A request goes on to the next address, trunk or route.
    pub fn moved_on(&self) {
        self.counters.moved_on.fetch_add(1, Relaxed);
    }

    /// An INVITE has rung and failed, and no other trunk gets it.
    pub fn rung_and_failed(&self) {
        self.counters.rung_and_failed.fetch_add(1, Relaxed);
    }

    /// What was counted, and how many addresses are available.
    #[must_use]
    pub fn counts(&self, now: Mono) -> TrunkCounts {
        let available = self.addresses.iter();
        let available = available.filter(|address| address.is_available(now));
        TrunkCounts {
            in_progress: self.calls.calls().into(),
            in_progress_from: self.calls_from.calls().into(),
            available: available.count() as u64,
            addresses: self.addresses.len() as u64,
            ..self.counters.read()
        }
    }
}

#[cfg(test)]
mod tests;
