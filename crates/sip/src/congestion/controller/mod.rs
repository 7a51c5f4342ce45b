//! Admission control of one worker: from a backlog to a load, from a request to an admission.

use std::net::IpAddr;
use std::time::Duration;

use super::classes::Class;
use super::filter::{Filter, TICK, Tick};
use super::service_time::ServiceTime;
use super::sources::{Fairness, SourceCounts, WeightedSource, WeightedSources};
use super::tu_queue::TuQueue;
use crate::{HashKey, Mono};

#[cfg(test)]
mod tests;

/// What the operator chooses; may be changed at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Off: nothing is ever refused.
    pub enabled: bool,
    /// The longest wait that is of use; 200 ms by default. A caller sends its request again after 500 ms (RFC 3261
    /// §17.1.1.1).
    pub tolerance: Duration,
    /// Which part of the processor's time may go into 503s and their ACKs, in thousandths; 80 by default. Beyond it
    /// requests are dropped.
    pub refusal_permille: u16,
    /// Sources with a share of their own; the first [`MAX_PEERS`](super::MAX_PEERS) count.
    pub peers: Vec<WeightedSource>,
    /// Requests per second of one IPv4 address or IPv6 /64 that is no peer, in each 250 ms a quarter of it. 0, the
    /// default: any number.
    pub per_source: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            enabled: true,
            tolerance: Duration::from_millis(200),
            refusal_permille: 80,
            peers: Vec::new(),
            per_source: 0,
        }
    }
}

/// What waits to be handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Messages, in the sockets and in the worker.
    pub messages: u64,
    /// Datagrams that the kernel has dropped since the last report, for want of room.
    pub lost: u64,
    /// Requests that wait in the transaction user for a slow back end to begin with them. Those that the back end works
    /// on are not among them: its latency is no overload.
    pub tu_waiting: u64,
    /// Requests that the back end has begun with since the last report.
    pub tu_begun: u32,
}

/// What to do with a request that belongs to no transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Handle it.
    Accept,
    /// Refuse it with a 503 and this Retry-After in seconds, at least 1.
    Refuse {
        /// The value of Retry-After.
        retry_after_s: u32,
    },
    /// Drop it: there is no time for more 503s.
    Drop,
}

/// What the controller has shed, by the point where it was shed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShedCounts {
    /// Refused with a 503.
    pub refused: u64,
    /// Dropped after they were read.
    pub dropped: u64,
    /// Dropped by [`Controller::filters_out`].
    pub filtered: u64,
    /// Requests of the TU that were refused instead of sent.
    pub from_tu: u64,
    /// Retransmissions put off.
    pub deferred: u64,
    /// Requests among `refused` and `dropped` whose source was at its limit of requests.
    pub over_limit: u64,
}

/// From the first of these waits on (in percent of the tolerance), the server refuses some requests of a class. From
/// the second on, it refuses all. The last class has no entry. New requests wait for at most 75 %, so they get their
/// response within the tolerance. In the simulation, the 99th percentile is at most 90 of 200 ms.
const RAMPS: [(u64, u64); 3] = [(25, 75), (75, 125), (125, 200)];
/// A burst may use so much time for 503s and their ACKs at once. By that it delays accepted work.
const REFUSAL_BURST: Duration = Duration::from_millis(20);
/// What one 503 and its ACK cost, until one was measured.
const FIRST_REFUSAL_NS: f64 = 4_000.0;
/// What a message costs, until one was measured: about that of a call without an application (docs/sip.md).
const FIRST_SERVICE_NS: f64 = 10_000.0;
/// If all requests of so many ticks, one second, were refused, the estimate of the time per message may be wrong. Only
/// accepted messages correct it.
const REFUSED_TICKS: u32 = 20;
/// The weight of one tick in the share that RFC 7339 reports. The report follows the load within 0.3 s, and is valid
/// for 0.5 s (§4.3).
const AVERAGING: f64 = 0.15;

/// The controller of one worker.
#[derive(Debug)]
pub struct Controller {
    config: Config,
    peers: WeightedSources,
    service_time: ServiceTime,
    refusal_time: ServiceTime,
    tu: TuQueue,
    fairness: Fairness,
    filter: Filter,
    percent: u64,
    wait: Duration,
    /// Time for 503s, in nanoseconds, and when it was last added to.
    refusal_ns: u64,
    observed_at: Mono,
    random: u64,
    /// Since the last tick; and the greatest load, `None` if nothing has come.
    tick: Tick,
    most_percent: Option<u64>,
    offered: u32,
    shed: u32,
    /// Retransmissions of dropped requests that were refused or dropped, since the last tick.
    retransmissions: u32,
    /// How many requests the worker accepts per second in an overload; 0 before the first one. These are fewer than the
    /// messages that it can serve, because responses, ACKs and 503s take time, too.
    requests_per_second: f64,
    /// Ticks with requests since one was accepted.
    refused_ticks: u32,
    ticked_at: Mono,
    shed_share: f64,
    counts: ShedCounts,
}

impl Controller {
    /// A controller that has measured nothing yet. The key decides the jitter and the places of sources.
    #[must_use]
    pub fn new(config: Config, key: HashKey) -> Controller {
        Controller {
            peers: WeightedSources::new(&config.peers),
            config,
            service_time: ServiceTime::new(FIRST_SERVICE_NS),
            refusal_time: ServiceTime::new(FIRST_REFUSAL_NS),
            tu: TuQueue::new(FIRST_SERVICE_NS),
            fairness: Fairness::new(SourceCounts::new(key)),
            filter: Filter::new(key.derive(u64::from_le_bytes(*b"adfilter"))),
            percent: 0,
            wait: Duration::ZERO,
            refusal_ns: 0,
            observed_at: Mono::default(),
            random: key.mac(b"jitter") | 1,
            tick: Tick::default(),
            most_percent: None,
            offered: 0,
            shed: 0,
            requests_per_second: 0.0,
            retransmissions: 0,
            refused_ticks: 0,
            ticked_at: Mono::default(),
            shed_share: 0.0,
            counts: ShedCounts::default(),
        }
    }

    /// Changes the configuration while running.
    pub fn configure(&mut self, config: Config) {
        if config.peers != self.config.peers {
            self.peers = WeightedSources::new(&config.peers);
            self.filter.end();
        }
        self.config = config;
    }

    /// Counts the requests of each source together with other workers, from now on.
    pub fn share_counts(&mut self, counts: SourceCounts) {
        self.fairness = Fairness::new(counts);
    }

    /// The peers, by place behind the hashed ones.
    #[must_use]
    pub fn peers(&self) -> &[WeightedSource] {
        self.peers.all()
    }

    /// Reports the total time of `messages` accepted messages, without refusals.
    pub fn observe_service(&mut self, messages: u32, busy: Duration) {
        self.service_time.observe(messages, busy);
    }

    /// Reports `refusals` 503s. `took` is their time, and that of ACKs for 503s since the last report.
    pub fn observe_refusals(&mut self, refusals: u32, took: Duration) {
        self.refusal_time.observe(refusals, took);
    }

    /// Reports time in which the worker could have accepted more: it slept, refused or dropped.
    pub fn observe_spare(&mut self, spare: Duration) {
        self.tick.spare += spare;
    }

    /// Reports the backlog. To be called before each batch.
    pub fn observe_backlog(&mut self, now: Mono, backlog: Backlog) {
        let passed = now.since(self.observed_at);
        self.observed_at = now;
        self.save_for_refusals(passed);
        self.wait = self.service_time.wait(backlog.messages) + self.tu.wait(passed, backlog);
        let tolerance = self.config.tolerance.as_nanos().max(1);
        let percent = self.wait.as_nanos().saturating_mul(100) / tolerance;
        self.percent = u64::try_from(percent).unwrap_or(u64::MAX);
        if backlog.lost > 0 {
            // The kernel drops blindly, so refusing is better.
            self.percent = self.percent.max(RAMPS[0].1);
            let lost = u32::try_from(backlog.lost).unwrap_or(u32::MAX);
            self.tick.dropped = self.tick.dropped.saturating_add(lost);
        }
        if !self.config.enabled {
            self.percent = 0;
            self.filter.end();
        }
        self.most_percent = self.most_percent.max(Some(self.percent));
        if now.since(self.ticked_at) >= TICK {
            self.tick(now);
        }
    }

    fn tick(&mut self, now: Mono) {
        let passed = now.since(self.ticked_at);
        self.ticked_at = now;
        let share = f64::from(self.shed) / f64::from(self.offered.max(1));
        self.shed_share += (share - self.shed_share) * AVERAGING;
        self.measure_requests(passed);
        self.doubt_service_time();
        (self.offered, self.shed) = (0, 0);
        let mut tick = std::mem::take(&mut self.tick);
        tick.refusal_part = f64::from(self.config.refusal_permille) / 1000.0;
        tick.refusals = tick.refusal_part * self.refusal_time.per_second();
        tick.refuses = self.most_percent.take() >= Some(RAMPS[0].0);
        self.filter.tick(now, &self.peers, tick);
    }

    /// Averages how many requests are accepted per second. A tick without refusals says nothing: there was room for
    /// more.
    fn measure_requests(&mut self, passed: Duration) {
        if self.shed > 0 && passed < 4 * TICK {
            let accepted = f64::from(self.offered.saturating_sub(self.shed));
            let per_second = accepted / passed.as_secs_f64();
            if self.requests_per_second == 0.0 {
                self.requests_per_second = per_second;
            }
            self.requests_per_second += (per_second - self.requests_per_second) * AVERAGING;
        }
    }

    /// Halves the average time of a message in each tick that refuses all, if nothing was accepted for a second.
    fn doubt_service_time(&mut self) {
        let retransmissions = std::mem::take(&mut self.retransmissions);
        // If nothing waits, refused retransmissions say nothing about the service time.
        let is_waiting = self.most_percent >= Some(RAMPS[0].0);
        let has_refused = self.shed > 0 || (is_waiting && retransmissions > 0);
        match (self.offered > self.shed, has_refused) {
            (true, _) => self.refused_ticks = 0,
            (false, true) => self.refused_ticks = self.refused_ticks.saturating_add(1),
            (false, false) => return,
        }
        if self.refused_ticks > REFUSED_TICKS {
            self.service_time.halve();
        }
    }

    /// The filter before the queue.
    #[must_use]
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// The filter, for an embedder that has it in the kernel and reports what that counts.
    pub fn filter_mut(&mut self) -> &mut Filter {
        &mut self.filter
    }

    /// Whether the filter drops a datagram, where the kernel does not do that.
    pub fn filters_out(&mut self, source: IpAddr, datagram: &[u8]) -> bool {
        let drops = self.filter.drops(&self.peers, source, datagram);
        self.counts.filtered += u64::from(drops);
        drops
    }

    /// When to call [`Controller::pass_time`] next; `None` if there is no need.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        let is_active = self.filter.is_active();
        is_active.then(|| self.ticked_at.plus(TICK))
    }

    /// Time has passed, whether or not anything has come: the filter ends by itself.
    pub fn pass_time(&mut self, now: Mono) {
        if self.poll_timeout().is_some_and(|at| at <= now) {
            if self.most_percent.is_none() {
                self.wait = Duration::ZERO;
                self.percent = 0;
            }
            self.tick(now);
        }
    }

    /// Whether requests may have to be refused: then each that belongs to no transaction has to be admitted.
    #[must_use]
    pub fn is_overloaded(&self) -> bool {
        self.percent >= RAMPS[0].0 || self.filter.is_active()
    }

    /// 0: all is accepted; 1: some new work is refused; 2: all of it, and some that was begun.
    #[must_use]
    pub fn state(&self) -> u8 {
        u8::from(self.percent >= RAMPS[0].0) + u8::from(self.percent >= RAMPS[1].0)
    }

    /// How long a message that arrives now will wait.
    #[must_use]
    pub fn expected_wait(&self) -> Duration {
        self.wait
    }

    /// How long a message takes.
    #[must_use]
    pub fn service_time(&self) -> Duration {
        self.service_time.average()
    }

    /// What was shed so far.
    #[must_use]
    pub fn counts(&self) -> ShedCounts {
        self.counts
    }

    /// Which part of the requests had to be refused lately, in percent: what RFC 7339 asks senders to hold back.
    #[must_use]
    pub fn shed_percent(&self) -> u8 {
        let served = (1.0 - self.shed_share) * self.filter.share();
        (100.0 - 100.0 * served).round().clamp(0.0, 100.0) as u8
    }

    /// Whether a request that belongs to no transaction is accepted whatever its class: there is no overload, and its
    /// source is below its limit. If so, the request is counted.
    pub fn accepts_all(&mut self, now: Mono, source: IpAddr) -> bool {
        if self.is_overloaded() {
            return false;
        }
        if self.config.enabled {
            let place = self.fairness.place(now, &self.peers, source);
            if self.is_at_limit(place) {
                return false;
            }
            self.count_at(place);
        }
        self.offered = self.offered.saturating_add(1);
        true
    }

    /// A request that was accepted goes to another worker, which counts it again.
    pub fn pass_on(&mut self, now: Mono, source: IpAddr) {
        if self.config.per_source > 0 && self.config.enabled {
            self.fairness.uncount_for_limit(now, &self.peers, source);
        }
    }

    fn is_at_limit(&self, place: usize) -> bool {
        let per_second = self.config.per_source;
        per_second > 0 && self.fairness.is_at_limit(place, per_second)
    }

    /// Whether a request is refused because its source is at its limit. Requests of the upper two classes are not:
    /// these classes have bounds of their own in an overload. `is_exempt` is called only if the source is at its limit.
    pub fn exceeds_limit(
        &mut self,
        now: Mono,
        class: Class,
        source: IpAddr,
        is_exempt: impl FnOnce() -> bool,
    ) -> bool {
        if class >= Class::Priority || !self.config.enabled || self.config.per_source == 0 {
            return false;
        }
        let place = self.fairness.place(now, &self.peers, source);
        self.is_at_limit(place) && !is_exempt()
    }

    /// What to do with a request whose source is at its limit. `None`: accept it, because requests that come by a
    /// stream are never dropped. The share that RFC 7339 reports does not include it, because other senders need not
    /// send less.
    pub fn shed_over_limit(&mut self, is_stream: bool) -> Option<Admission> {
        let admission = self.refusal();
        if admission == Admission::Drop && is_stream {
            return None;
        }
        self.counts.over_limit += 1;
        Some(self.count_refusal_or_drop(admission))
    }

    /// Whether there is time for a 503.
    fn can_refuse(&self) -> bool {
        self.refusal_ns >= self.refusal_cost()
    }

    /// Counts a 503 or a drop. Returns the decision unchanged.
    fn count_refusal_or_drop(&mut self, admission: Admission) -> Admission {
        match admission {
            Admission::Accept => {}
            Admission::Refuse { .. } => {
                self.counts.refused += 1;
                self.refusal_ns = self.refusal_ns.saturating_sub(self.refusal_cost());
            }
            Admission::Drop => self.counts.dropped += 1,
        }
        admission
    }

    /// What to do with a datagram's request that belongs to no transaction.
    pub fn admit(&mut self, now: Mono, class: Class, source: IpAddr) -> Admission {
        let admission = self.decide(now, class, source);
        self.shed = self
            .shed
            .saturating_add(u32::from(admission != Admission::Accept));
        self.count_refusal_or_drop(admission)
    }

    /// What to do with a datagram of [`Class::New`] that the filter could have dropped. If the request was dropped before
    /// and there is no unused time for retransmissions, it is refused or dropped. If it were accepted, its response would
    /// come too late. The share that RFC 7339 reports does not include it, because new requests may all be accepted.
    pub fn admit_filterable(&mut self, now: Mono, source: IpAddr, datagram: &[u8]) -> Admission {
        if !self.filter.may_accept(&self.peers, source, datagram) {
            let refusal = self.refusal();
            if refusal == Admission::Drop {
                self.filter.remember(now, &self.peers, source, datagram);
            }
            self.retransmissions = self.retransmissions.saturating_add(1);
            return self.count_refusal_or_drop(refusal);
        }
        let admission = self.admit(now, Class::New, source);
        match admission {
            Admission::Accept => self.tick.accepted = self.tick.accepted.saturating_add(1),
            Admission::Refuse { .. } => {}
            Admission::Drop => {
                self.tick.dropped = self.tick.dropped.saturating_add(1);
                self.filter.remember(now, &self.peers, source, datagram);
            }
        }
        admission
    }

    /// What to do with a request that came by a stream. It would not come again, and its sender would wait for half a
    /// minute (RFC 3261 §17.1.2.2, timer F): what cannot be refused is accepted. The stream's flow control holds back
    /// those who send too much.
    pub fn admit_from_stream(&mut self, now: Mono, class: Class, source: IpAddr) -> Admission {
        if !self.can_refuse() {
            self.count_accepted(now, source);
            return Admission::Accept;
        }
        self.admit(now, class, source)
    }

    fn decide(&mut self, now: Mono, class: Class, source: IpAddr) -> Admission {
        self.offered = self.offered.saturating_add(1);
        let per_second = self.service_time.per_second();
        let requests_per_second = match self.requests_per_second > 0.0 {
            true => self.requests_per_second,
            false => per_second,
        };
        let place = self.fairness.place(now, &self.peers, source);
        let Some(class) = self.fairness.bounded_class(now, class, place, per_second) else {
            // It displaces nothing, because it is refused before anything else.
            return match self.percent > RAMPS[0].0 {
                true => self.refusal(),
                false => Admission::Accept,
            };
        };
        // A source below its share is treated like the next class.
        if self.is_on_ramp(class as usize)
            && (!self
                .fairness
                .is_below_share(now, &self.peers, place, requests_per_second)
                || self.is_on_ramp(class as usize + 1))
        {
            return self.refusal();
        }
        self.fairness.count_class(class, place);
        // Otherwise forged sources of emergency calls would make the shares of others smaller.
        if class != Class::Priority {
            self.count_at(place);
        }
        Admission::Accept
    }

    fn refusal(&mut self) -> Admission {
        match self.can_refuse() {
            true => Admission::Refuse {
                retry_after_s: self.retry_after(),
            },
            false => Admission::Drop,
        }
    }

    /// A request was accepted: its source is counted.
    pub fn count_accepted(&mut self, now: Mono, source: IpAddr) {
        self.offered = self.offered.saturating_add(1);
        let place = self.fairness.place(now, &self.peers, source);
        self.count_at(place);
    }

    fn count_at(&mut self, place: usize) {
        if self.config.enabled {
            let has_limit = self.config.per_source > 0;
            self.fairness.count(&self.peers, place, has_limit);
        }
    }

    /// Decides at random whether to refuse a request of a class. The probability rises with the wait ([`RAMPS`]).
    fn is_on_ramp(&mut self, class: usize) -> bool {
        let Some(&(begins, all)) = RAMPS.get(class) else {
            return false;
        };
        let above = self.percent.saturating_sub(begins);
        above > 0 && (u64::from(self.random()) * (all - begins)) >> 32 < above
    }

    fn refusal_cost(&self) -> u64 {
        self.refusal_time.average().as_nanos() as u64
    }

    fn random(&mut self) -> u32 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32
    }

    /// Whether a request of the TU may be sent. One that may not is answered with a 503 to the TU.
    pub fn admit_from_tu(&mut self, class: Class) -> bool {
        let is_refused = self.is_on_ramp(class as usize);
        self.counts.from_tu += u64::from(is_refused);
        !is_refused
    }

    /// Whether retransmissions are put off: the peer may well have answered, and its answer waits here.
    pub fn defers_retransmission(&mut self) -> bool {
        let defers = self.percent >= RAMPS[1].0;
        self.counts.deferred += u64::from(defers);
        defers
    }

    /// Seconds: the wait rounded up and a jitter of up to twice that, so that not all who were refused come back at
    /// once.
    fn retry_after(&mut self) -> u32 {
        let seconds = u32::try_from(self.wait.as_nanos().div_ceil(1_000_000_000)).unwrap_or(60);
        let base = seconds.clamp(1, 60);
        base + self.random() % (2 * base + 1)
    }

    fn save_for_refusals(&mut self, passed: Duration) {
        let earned = passed.as_nanos() * u128::from(self.config.refusal_permille) / 1000;
        let earned = u64::try_from(earned).unwrap_or(u64::MAX);
        let most = REFUSAL_BURST.as_nanos() as u64;
        self.refusal_ns = self.refusal_ns.saturating_add(earned).min(most);
    }
}
