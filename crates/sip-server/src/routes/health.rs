//! The state of the addresses of trunks: which of them may get requests now, and which responses they sent.
//!
//! All workers write here, once or twice per call. Each value is an independent number, so no lock is necessary.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use sip::{Method, Mono};

use super::config::{ProbeConfig, Trunk};
use crate::calls::{CallCounter, CallRate, Exceeded, Limit, Ticket};

/// The longest Retry-After that counts: after an hour, the address gets requests again.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// Without probes, an address that has failed too often gets no request for this time.
const UNPROBED_PAUSE: Duration = Duration::from_secs(32);

/// Calls may come this much before they are due, so that an even flow with some jitter passes.
const BURST_NS: u64 = 100_000_000;

/// All calls, in thousandths.
pub(super) const FULL_SHARE: u32 = 1000;

/// Classes of responses, in the order of [`TrunkCounts::responses`].
pub const RESPONSE_CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "6xx"];

/// Methods whose responses have a count per code; the last name stands for all others.
pub const CODE_METHODS: [&str; 4] = ["INVITE", "MESSAGE", "OPTIONS", "other"];

/// Final responses: the method, the code and their number.
pub type CodeCounts = Vec<(&'static str, u16, u64)>;

/// Final codes, from 200 to 699.
const FIRST_CODE: u16 = 200;
const CODES: usize = 500;

/// What a request to an address of a trunk came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A response with this code. A Retry-After in seconds counts with 503 alone.
    Response(u16, Option<u32>),
    /// No response in time.
    Silent,
    /// It could not be sent.
    NotSent,
}

/// One address.
#[derive(Debug, Default)]
struct Hop {
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

#[derive(Debug, Default)]
struct Counts {
    calls: AtomicU64,
    responses: [AtomicU64; RESPONSE_CLASSES.len()],
    silent: AtomicU64,
    moved_on: AtomicU64,
    rung_and_failed: AtomicU64,
    limited: AtomicU64,
    calls_from: AtomicU64,
    limited_from: AtomicU64,
    probes_answered: AtomicU64,
    probes_failed: AtomicU64,
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

/// Final responses by method and code. A method has memory from its first response on.
#[derive(Debug, Default)]
struct Codes([OnceLock<Box<[AtomicU64]>>; CODE_METHODS.len()]);

/// The state of a trunk.
#[derive(Debug)]
pub struct Health {
    probe: ProbeConfig,
    hops: Box<[Hop]>,
    /// When the next call is due by the limit, in nanoseconds.
    next_call: AtomicU64,
    counts: Counts,
    calls: CallCounter,
    /// The calls that it has sent.
    calls_from: CallCounter,
    /// The limit of calls per second from it.
    rate_from: CallRate,
    codes: Codes,
    is_registered: AtomicBool,
}

impl Health {
    /// Of a trunk whose addresses are all available.
    pub(super) fn new(trunk: &Trunk) -> Health {
        Health {
            probe: trunk.probe,
            hops: trunk.to.iter().map(|_| Hop::default()).collect(),
            next_call: AtomicU64::new(0),
            counts: Counts::default(),
            calls: CallCounter::default(),
            calls_from: CallCounter::default(),
            rate_from: CallRate::default(),
            codes: Codes::default(),
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

    /// Whether an address may be tried now.
    pub(super) fn is_available(&self, hop: u16, now: Mono) -> bool {
        let hop = self.hops.get(usize::from(hop));
        hop.is_some_and(|hop| !hop.is_down.load(Relaxed) && hop.paused_until.load(Relaxed) <= now.0)
    }

    /// The status of each address, in the order of the configuration.
    #[must_use]
    pub fn addresses(&self, now: Mono) -> Vec<AddressStatus> {
        let hops = (0..).zip(&self.hops);
        hops.map(|(number, hop)| self.status(number, hop, now))
            .collect()
    }

    fn status(&self, number: u16, hop: &Hop, now: Mono) -> AddressStatus {
        let pause = Mono(hop.paused_until.load(Relaxed)).since(now);
        let share = self.share(number, now);
        let state = match hop.is_down.load(Relaxed) {
            true if hop.successes.load(Relaxed) > 0 => AddressState::Probing,
            true => AddressState::Down,
            false if !pause.is_zero() => AddressState::Paused,
            false if share < FULL_SHARE => AddressState::SlowStart,
            false => AddressState::Up,
        };
        let error = AddressError::read(hop.last_error.load(Relaxed));
        let at = Mono(hop.last_error_at.load(Relaxed));
        AddressStatus {
            state,
            share: match state {
                AddressState::Up | AddressState::SlowStart => share,
                _ => 0,
            },
            failures: hop.failures.load(Relaxed),
            pause,
            last_error: error.map(|error| (error, now.since(at))),
        }
    }

    fn note_error(&self, hop: u16, now: Mono, outcome: Outcome) {
        if let (Some(error), Some(hop)) =
            (AddressError::of(outcome), self.hops.get(usize::from(hop)))
        {
            hop.last_error.store(error.number(), Relaxed);
            hop.last_error_at.store(now.0, Relaxed);
        }
    }

    /// How many of a thousand calls an address takes during its slow start.
    pub(super) fn share(&self, hop: u16, now: Mono) -> u32 {
        let Some(hop) = self.hops.get(usize::from(hop)) else {
            return 0;
        };
        let since = hop
            .up_since
            .load(Relaxed)
            .max(hop.paused_until.load(Relaxed));
        let whole = self.probe.slow_start.as_nanos();
        if since == 0 || whole == 0 {
            return FULL_SHARE;
        }
        let passed = u128::from(now.0.saturating_sub(since));
        (passed * u128::from(FULL_SHARE) / whole).min(FULL_SHARE.into()) as u32
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
            true => &self.counts.calls,
            false => &self.counts.limited,
        };
        counter.fetch_add(1, Relaxed);
        is_admitted
    }

    /// A call to the trunk begins, in addition to [`Health::admit`]. `None` if there are `most` calls already; 0 means
    /// no limit. The call ends when the ticket is dropped.
    pub fn begin_call(&self, most: u32) -> Option<Ticket> {
        let ticket = self.calls.begin(most);
        if ticket.is_none() {
            self.counts.limited.fetch_add(1, Relaxed);
        }
        ticket
    }

    /// The trunk has sent an INVITE outside of dialogs. `counts`: the policy counts calls, so the result has a ticket. The
    /// call ends when the ticket is dropped.
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
            Ok(_) => &self.counts.calls_from,
            Err(_) => &self.counts.limited_from,
        };
        counter.fetch_add(1, Relaxed);
        Ok(Some(admitted?).filter(|_| counts))
    }

    /// The trunk has sent this final response.
    pub fn responded(&self, method: Method<'_>, code: u16) {
        let name = method.as_bytes();
        let is_it = |known: &&str| known.as_bytes() == name;
        let known = CODE_METHODS.iter().position(is_it);
        let row = self.codes.0.get(known.unwrap_or(CODE_METHODS.len() - 1));
        let new = || (0..CODES).map(|_| AtomicU64::new(0)).collect();
        let place = code.checked_sub(FIRST_CODE).map(usize::from);
        if let Some(row) = row
            && let Some(place) = place
            && let Some(count) = row.get_or_init(new).get(place)
        {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Final responses by method and code: those with a count above 0, and 200 to INVITE.
    #[must_use]
    pub fn codes(&self) -> CodeCounts {
        let mut counts = Vec::new();
        for (method, row) in CODE_METHODS.into_iter().zip(&self.codes.0) {
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

    /// The outcome of a request outside of dialogs.
    pub fn concluded(&self, hop: u16, now: Mono, outcome: Outcome) {
        self.note_error(hop, now, outcome);
        match outcome {
            Outcome::Response(code, retry_after_s) => {
                let class = usize::from(code / 100).clamp(1, RESPONSE_CLASSES.len()) - 1;
                if let Some(count) = self.counts.responses.get(class) {
                    count.fetch_add(1, Relaxed);
                }
                match retry_after_s.filter(|_| code == 503) {
                    Some(seconds @ 1..) => {
                        self.pause(hop, now, Duration::from_secs(seconds.into()));
                    }
                    _ => self.clear_failures(hop),
                }
            }
            Outcome::Silent | Outcome::NotSent => {
                self.counts.silent.fetch_add(1, Relaxed);
                self.failed(hop, now);
            }
        }
    }

    /// The outcome of a probe. Returns whether it made the address available or unavailable.
    pub fn probed(&self, hop: u16, now: Mono, outcome: Outcome) -> bool {
        let is_good = matches!(outcome, Outcome::Response(code, _) if code != 503);
        if !is_good {
            self.note_error(hop, now, outcome);
        }
        let count = match is_good {
            true => &self.counts.probes_answered,
            false => &self.counts.probes_failed,
        };
        count.fetch_add(1, Relaxed);
        if let Outcome::Response(503, Some(seconds @ 1..)) = outcome {
            self.pause(hop, now, Duration::from_secs(seconds.into()));
        }
        match is_good {
            true => self.succeeded(hop, now),
            false => self.failed(hop, now),
        }
    }

    /// A request goes on to the next address, trunk or route.
    pub fn moved_on(&self) {
        self.counts.moved_on.fetch_add(1, Relaxed);
    }

    /// An INVITE has rung and failed, and no other trunk gets it.
    pub fn rung_and_failed(&self) {
        self.counts.rung_and_failed.fetch_add(1, Relaxed);
    }

    /// What was counted, and how many addresses are available.
    #[must_use]
    pub fn counts(&self, now: Mono) -> TrunkCounts {
        let counts = &self.counts;
        let available = (0..).zip(&self.hops);
        let available = available.filter(|(hop, _)| self.is_available(*hop, now));
        TrunkCounts {
            calls: counts.calls.load(Relaxed),
            responses: std::array::from_fn(|class| {
                counts
                    .responses
                    .get(class)
                    .map_or(0, |count| count.load(Relaxed))
            }),
            silent: counts.silent.load(Relaxed),
            moved_on: counts.moved_on.load(Relaxed),
            rung_and_failed: counts.rung_and_failed.load(Relaxed),
            limited: counts.limited.load(Relaxed),
            calls_from: counts.calls_from.load(Relaxed),
            limited_from: counts.limited_from.load(Relaxed),
            probes_answered: counts.probes_answered.load(Relaxed),
            probes_failed: counts.probes_failed.load(Relaxed),
            in_progress: self.calls.calls().into(),
            in_progress_from: self.calls_from.calls().into(),
            available: available.count() as u64,
            addresses: self.hops.len() as u64,
        }
    }

    fn clear_failures(&self, hop: u16) {
        if let Some(hop) = self.hops.get(usize::from(hop)) {
            hop.failures.store(0, Relaxed);
        }
    }

    fn succeeded(&self, hop: u16, now: Mono) -> bool {
        self.clear_failures(hop);
        let Some(hop) = self.hops.get(usize::from(hop)) else {
            return false;
        };
        if !hop.is_down.load(Relaxed) {
            return false;
        }
        let successes = hop.successes.fetch_add(1, Relaxed) + 1;
        if successes < self.probe.successes {
            return false;
        }
        hop.up_since.store(now.0.max(1), Relaxed);
        hop.is_down.store(false, Relaxed);
        hop.successes.store(0, Relaxed);
        true
    }

    fn failed(&self, number: u16, now: Mono) -> bool {
        let Some(hop) = self.hops.get(usize::from(number)) else {
            return false;
        };
        hop.successes.store(0, Relaxed);
        let failures = hop.failures.fetch_add(1, Relaxed) + 1;
        if failures < self.probe.failures {
            return false;
        }
        if self.probe.interval.is_zero() {
            hop.failures.store(0, Relaxed);
            self.pause(number, now, UNPROBED_PAUSE);
            return true;
        }
        !hop.is_down.swap(true, Relaxed)
    }

    fn pause(&self, hop: u16, now: Mono, time: Duration) {
        if let Some(hop) = self.hops.get(usize::from(hop)) {
            let until = now.plus(time.min(LONGEST_PAUSE));
            hop.paused_until.fetch_max(until.0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::config::NextHop;

    const GOOD: Outcome = Outcome::Response(200, None);

    fn at(ms: u64) -> Mono {
        Mono(1_000_000_000_000 + ms * 1_000_000)
    }

    fn health(probe: ProbeConfig) -> Health {
        Health::new(&Trunk {
            to: vec![NextHop::new("sip:192.0.2.7").unwrap()],
            probe,
            ..Trunk::default()
        })
    }

    #[test]
    fn calls_from_a_trunk_have_limits_of_their_own() {
        let trunk = Trunk::default();
        let health = Health::new(&trunk);
        let at = |ms: u64| {
            Mono::default()
                .plus_secs(1_000)
                .plus(Duration::from_millis(ms))
        };
        let limit = Limit {
            concurrent: 2,
            per_second: 2,
        };
        let first = health.admit_from(limit, true, at(0)).unwrap();
        let second = health.admit_from(limit, true, at(0)).unwrap();
        assert!(first.is_some() && second.is_some());
        let more = health.admit_from(limit, true, at(5_000));
        assert_eq!(more.unwrap_err(), Exceeded::Concurrent);
        drop(first);
        // The rate is that of calls that begin: two at once, then one each 500 ms.
        drop(health.admit_from(limit, true, at(5_000)).unwrap());
        drop(health.admit_from(limit, true, at(5_000)).unwrap());
        let more = health.admit_from(limit, true, at(5_499));
        assert_eq!(more.unwrap_err(), Exceeded::Rate);
        assert!(health.admit_from(limit, true, at(5_500)).is_ok());
        // Calls to the trunk do not count there.
        let to = health.begin_call(1);
        let counts = health.counts(at(6_000));
        assert_eq!((counts.calls_from, counts.limited_from), (5, 2));
        assert_eq!((counts.in_progress, counts.in_progress_from), (1, 1));
        drop((to, second));
        // Without a limit and without a policy that counts, nothing is kept.
        assert!(
            health
                .admit_from(Limit::default(), false, at(6_000))
                .unwrap()
                .is_none()
        );
        assert_eq!(health.counts(at(6_000)).in_progress_from, 0);
    }

    #[test]
    fn probes_have_hysteresis() {
        let health = health(ProbeConfig::default());
        assert!(!health.probed(0, at(0), Outcome::Silent));
        assert!(!health.probed(0, at(1), Outcome::Silent));
        // A success in between begins the count anew.
        assert!(!health.probed(0, at(2), GOOD));
        assert!(!health.probed(0, at(3), Outcome::Silent));
        assert!(!health.probed(0, at(4), Outcome::NotSent));
        assert!(health.is_available(0, at(4)));
        assert!(health.probed(0, at(5), Outcome::Response(503, None)));
        assert!(!health.is_available(0, at(5)));
        assert!(!health.probed(0, at(6), GOOD));
        assert!(
            !health.probed(0, at(7), Outcome::Silent),
            "it is down already"
        );
        assert!(!health.probed(0, at(8), GOOD));
        assert!(!health.is_available(0, at(8)));
        // 404 to OPTIONS: somebody is there.
        assert!(health.probed(0, at(9), Outcome::Response(404, None)));
        assert!(health.is_available(0, at(9)));
        let counts = health.counts(at(9));
        assert_eq!((counts.probes_answered, counts.probes_failed), (4, 6));
    }

    #[test]
    fn an_address_that_has_come_back_starts_slowly() {
        let health = health(ProbeConfig::default());
        assert_eq!(health.share(0, at(0)), FULL_SHARE);
        for ms in 0..3 {
            health.probed(0, at(ms), Outcome::Silent);
        }
        health.probed(0, at(1000), GOOD);
        health.probed(0, at(2000), GOOD);
        assert_eq!(health.share(0, at(2000)), 0);
        assert_eq!(health.share(0, at(2000 + 15_000)), FULL_SHARE / 2);
        assert_eq!(health.share(0, at(2000 + 30_000)), FULL_SHARE);
    }

    #[test]
    fn the_status_of_an_address_says_why_it_gets_no_calls() {
        let health = health(ProbeConfig::default());
        let status = |ms| health.addresses(at(ms))[0];
        assert_eq!(
            (status(0).state, status(0).last_error),
            (AddressState::Up, None)
        );
        health.concluded(0, at(0), Outcome::Response(503, Some(20)));
        let paused = status(1_000);
        assert_eq!(
            (paused.state, paused.share, paused.pause),
            (AddressState::Paused, 0, Duration::from_secs(19))
        );
        let error = (AddressError::Code(503), Duration::from_secs(1));
        assert_eq!(paused.last_error, Some(error));
        assert_eq!(status(35_000).state, AddressState::SlowStart);
        assert_eq!(status(35_000).share, 500);
        for ms in 0..3 {
            health.probed(0, at(60_000 + ms), Outcome::Silent);
        }
        let down = status(60_002);
        assert_eq!((down.state, down.failures), (AddressState::Down, 3));
        let error = (AddressError::Silent, Duration::ZERO);
        assert_eq!(down.last_error, Some(error));
        // A 404 to a call is no failure of the address.
        health.concluded(0, at(60_003), Outcome::Response(404, None));
        assert_eq!(
            status(60_003).last_error.map(|(error, _)| error),
            Some(AddressError::Silent)
        );
        health.probed(0, at(61_000), GOOD);
        assert_eq!(status(61_000).state, AddressState::Probing);
        health.probed(0, at(62_000), GOOD);
        assert_eq!(status(62_000).state, AddressState::SlowStart);
        assert_eq!(status(92_000).state, AddressState::Up);
    }

    #[test]
    fn retry_after_is_heeded_and_bounded() {
        let health = health(ProbeConfig::default());
        health.concluded(0, at(0), Outcome::Response(503, None));
        health.concluded(0, at(0), Outcome::Response(503, Some(0)));
        health.concluded(0, at(0), Outcome::Response(486, Some(9)));
        assert!(health.is_available(0, at(0)));
        health.concluded(0, at(0), Outcome::Response(503, Some(20)));
        assert!(!health.is_available(0, at(19_999)));
        assert!(health.is_available(0, at(20_000)));
        assert_eq!(health.share(0, at(20_000)), 0, "it starts slowly");
        health.concluded(0, at(0), Outcome::Response(503, Some(u32::MAX)));
        assert!(health.is_available(0, at(3_600_000)));
        assert_eq!(health.counts(at(0)).responses, [0, 0, 0, 1, 4, 0]);
    }

    #[test]
    fn calls_without_a_response_count_like_probes() {
        let probed = health(ProbeConfig::default());
        probed.concluded(0, at(0), Outcome::Silent);
        probed.concluded(0, at(0), Outcome::Response(404, None));
        for _ in 0..2 {
            probed.concluded(0, at(0), Outcome::Silent);
        }
        assert!(
            probed.is_available(0, at(0)),
            "a response began the count anew"
        );
        probed.concluded(0, at(0), Outcome::Silent);
        assert!(!probed.is_available(0, at(0)));
        assert!(
            !probed.is_available(0, at(10_000_000)),
            "only probes bring it back"
        );
        let unprobed = health(ProbeConfig {
            interval: Duration::ZERO,
            ..ProbeConfig::default()
        });
        for _ in 0..3 {
            unprobed.concluded(0, at(0), Outcome::Silent);
        }
        assert!(!unprobed.is_available(0, at(31_999)));
        assert!(unprobed.is_available(0, at(32_000)));
    }

    #[test]
    fn the_limit_holds_for_each_second_and_lets_jitter_pass() {
        let health = health(ProbeConfig::default());
        let passed = |second: u64| {
            (0..1000)
                .filter(|ms| health.admit(50, at(second * 1000 + ms)))
                .count()
        };
        let first = passed(0);
        assert!((50..=56).contains(&first), "{first}");
        assert_eq!(passed(1), 50);
        assert_eq!(passed(100), first, "what was not used is not saved up");
        assert!((0..1000).all(|_| health.admit(0, at(0))));
    }
}
