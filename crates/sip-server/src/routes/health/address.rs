//! The state of one address of a trunk: available, down, paused, or in its slow start.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use sip::Mono;

use super::{FULL_SHARE, Outcome};
use crate::routes::config::ProbeConfig;

/// The longest Retry-After that counts: after an hour, the address gets requests again.
const MAX_PAUSE: Duration = Duration::from_secs(3600);

/// Without probes, an address that has failed too often gets no request for this time.
const UNPROBED_PAUSE: Duration = Duration::from_secs(32);

/// The last failure of an address of a trunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressError {
    /// The address did not respond in time.
    Silent,
    /// The server could not send the request to it.
    NotSent,
    /// The address sent this 5xx response.
    Code(u16),
}

impl AddressError {
    const SILENT: u32 = 1;
    const NOT_SENT: u32 = 2;

    /// `None` if the outcome is not a failure of the address. A 4xx or 6xx is none, because the called party may have
    /// caused it.
    fn of(outcome: Outcome) -> Option<AddressError> {
        match outcome {
            Outcome::Silent => Some(AddressError::Silent),
            Outcome::NotSent => Some(AddressError::NotSent),
            Outcome::Response(code @ 500..=599, _) => Some(AddressError::Code(code)),
            Outcome::Response(..) => None,
        }
    }

    fn number(self) -> u32 {
        match self {
            AddressError::Silent => AddressError::SILENT,
            AddressError::NotSent => AddressError::NOT_SENT,
            AddressError::Code(code) => code.into(),
        }
    }

    fn read(number: u32) -> Option<AddressError> {
        match number {
            0 => None,
            AddressError::SILENT => Some(AddressError::Silent),
            AddressError::NOT_SENT => Some(AddressError::NotSent),
            code => Some(AddressError::Code(code as u16)),
        }
    }
}

/// Whether an address of a trunk gets calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressState {
    /// It gets its share of the calls.
    Up,
    /// It is available again. Its share of the calls grows until it is complete.
    SlowStart,
    /// Probes fail: it gets no calls.
    Down,
    /// It is down, and the last probe succeeded. It gets calls again after `probe_successes` successful probes in a
    /// row.
    Probing,
    /// It gets no calls for some time. Either a response had Retry-After, or the address failed too often and the trunk
    /// has no probes.
    Paused,
}

impl AddressState {
    /// Its name in the output of programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            AddressState::Up => "up",
            AddressState::SlowStart => "slow_start",
            AddressState::Down => "down",
            AddressState::Probing => "probing",
            AddressState::Paused => "paused",
        }
    }
}

/// An address of a trunk at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressStatus {
    /// Whether it gets calls.
    pub state: AddressState,
    /// Its share of calls, in thousandths of the share that the routes give it.
    pub share: u32,
    /// Failures in a row.
    pub failures: u32,
    /// The time until the end of a pause; zero without a pause.
    pub pause: Duration,
    /// The last failure, and how long ago it was.
    pub last_error: Option<(AddressError, Duration)>,
}

/// The state of one address.
#[derive(Debug, Default)]
pub(super) struct AddressHealth {
    is_down: AtomicBool,
    failures: AtomicU32,
    successes: AtomicU32,
    /// When it became available again; 0 if it was always available.
    up_since: AtomicU64,
    paused_until: AtomicU64,
    /// The last failure as a number ([`AddressError`]), and its time; 0 if there was none.
    last_error: AtomicU32,
    last_error_at: AtomicU64,
}

impl AddressHealth {
    /// Whether it may be tried now.
    pub(super) fn is_available(&self, now: Mono) -> bool {
        !self.is_down.load(Relaxed) && self.paused_until.load(Relaxed) <= now.0
    }

    pub(super) fn status(&self, probe: &ProbeConfig, now: Mono) -> AddressStatus {
        let pause = Mono(self.paused_until.load(Relaxed)).since(now);
        let share = self.share(probe, now);
        let state = match self.is_down.load(Relaxed) {
            true if self.successes.load(Relaxed) > 0 => AddressState::Probing,
            true => AddressState::Down,
            false if !pause.is_zero() => AddressState::Paused,
            false if share < FULL_SHARE => AddressState::SlowStart,
            false => AddressState::Up,
        };
        let error = AddressError::read(self.last_error.load(Relaxed));
        let at = Mono(self.last_error_at.load(Relaxed));
        AddressStatus {
            state,
            share: match state {
                AddressState::Up | AddressState::SlowStart => share,
                _ => 0,
            },
            failures: self.failures.load(Relaxed),
            pause,
            last_error: error.map(|error| (error, now.since(at))),
        }
    }

    /// How many of a thousand calls it takes during its slow start.
    pub(super) fn share(&self, probe: &ProbeConfig, now: Mono) -> u32 {
        let up_since = self.up_since.load(Relaxed);
        let since = up_since.max(self.paused_until.load(Relaxed));
        let whole = probe.slow_start.as_nanos();
        if since == 0 || whole == 0 {
            return FULL_SHARE;
        }
        let passed = u128::from(now.0.saturating_sub(since));
        (passed * u128::from(FULL_SHARE) / whole).min(FULL_SHARE.into()) as u32
    }

    /// Keeps the failure for [`AddressHealth::status`], if the outcome is one.
    pub(super) fn note_error(&self, now: Mono, outcome: Outcome) {
        if let Some(error) = AddressError::of(outcome) {
            self.last_error.store(error.number(), Relaxed);
            self.last_error_at.store(now.0, Relaxed);
        }
    }

    pub(super) fn clear_failures(&self) {
        self.failures.store(0, Relaxed);
    }

    /// A probe has succeeded. Returns whether that made the address available.
    pub(super) fn succeeded(&self, probe: &ProbeConfig, now: Mono) -> bool {
        self.clear_failures();
        if !self.is_down.load(Relaxed) {
            return false;
        }
        let successes = self.successes.fetch_add(1, Relaxed) + 1;
        if successes < probe.successes {
            return false;
        }
        self.up_since.store(now.0.max(1), Relaxed);
        self.is_down.store(false, Relaxed);
        self.successes.store(0, Relaxed);
        true
    }

    /// A request or a probe has failed. Returns whether that made the address unavailable.
    pub(super) fn failed(&self, probe: &ProbeConfig, now: Mono) -> bool {
        self.successes.store(0, Relaxed);
        let failures = self.failures.fetch_add(1, Relaxed) + 1;
        if failures < probe.failures {
            return false;
        }
        if probe.interval.is_zero() {
            self.clear_failures();
            self.pause(now, UNPROBED_PAUSE);
            return true;
        }
        !self.is_down.swap(true, Relaxed)
    }

    /// It gets no requests for this time, at most [`MAX_PAUSE`].
    pub(super) fn pause(&self, now: Mono, time: Duration) {
        let until = now.plus(time.min(MAX_PAUSE));
        self.paused_until.fetch_max(until.0, Relaxed);
    }
}
