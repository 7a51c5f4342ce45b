//! The controller: from a backlog to a behaviour, from a request to an admission.

use std::net::IpAddr;
use std::time::Duration;

use super::classes::Class;
use super::fairness::Fairness;
use super::service_time::ServiceTime;
use super::sieve::{Pressure, Sieve};
use crate::{HashKey, Mono};

/// What the operator chooses; may be changed at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Off: nothing is ever refused.
    pub enabled: bool,
    /// The longest wait that is of use; 200 ms by default.
    pub tolerance: Duration,
    /// Which part of the processor's time may go into 503s, in thousandths; 50 by default, and for a moment twice that.
    /// Beyond it messages are dropped in silence, which callers over UDP answer with
    /// repetition: a 503 is dearer than one drop and cheaper than four.
    pub rejecting_permille: u16,
    /// What building and sending a 503 costs; 4 us by default.
    pub rejection_cost: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            enabled: true,
            tolerance: Duration::from_millis(200),
            rejecting_permille: 50,
            rejection_cost: Duration::from_micros(4),
        }
    }
}

/// What waits to be handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Messages, in the sockets and in the worker.
    pub messages: u64,
    /// How full the fullest socket buffer is, in percent.
    pub fill_percent: u8,
    /// Datagrams that the kernel has dropped since the last report, for want of room.
    pub lost: u64,
}

/// How the controller behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Behaviour {
    /// Everything is accepted.
    #[default]
    Normal,
    /// What begins something is refused.
    RejectingNewWork,
    /// What is not essential is refused.
    RejectingNonEssential,
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
    /// Drop it: there is no time even for refusals.
    Drop,
}

/// What was shed, by place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShedCounts {
    /// Refused with a 503.
    pub refused: u64,
    /// Dropped in silence.
    pub dropped: u64,
    /// Held back by [`Controller::holds_back`].
    pub held_back: u64,
    /// Requests of the TU that were not sent.
    pub from_tu: u64,
    /// Retransmissions put off.
    pub deferred: u64,
}

/// Shares of the tolerance, in percent: above the first the behaviour begins, below the second it ends.
const NEW_WORK: (u64, u64) = (80, 60);
/// While the sieve is closed, what gets through it comes evenly, and need not wait so long: from the first of these on more and more
/// of it is refused, and all of it above the second.
const SIEVED_NEW_WORK: (u64, u64) = (20, 60);
const NON_ESSENTIAL: (u64, u64) = (100, 85);
/// Above this even priority calls are refused: they would wait too long to be of use, and hold up those before them.
const HOPELESS: u64 = 200;
/// What a full buffer counts for: the kernel drops blindly, so refusing is better.
const LOSING: u64 = 90;
/// A buffer this full is about to overflow, in percent.
const NEARLY_FULL: u8 = 80;
/// Which part of the cost of a 503 is not charged where it goes by a stream.
const STREAM_DISCOUNT: u64 = 2;
/// How long 503s may be saved up for a burst.
const SAVED: Duration = Duration::from_millis(50);
/// How the share of refused requests is averaged, for RFC 7339: over windows of this length.
const SHARE_WINDOW: Duration = Duration::from_millis(100);
/// How much of the average one window is.
const AVERAGING: f64 = 0.3;

/// The controller of one worker.
#[derive(Debug)]
pub struct Controller {
    config: Config,
    service_time: ServiceTime,
    fairness: Fairness,
    sieve: Sieve,
    behaviour: Behaviour,
    percent: u64,
    wait: Duration,
    /// Time for 503s, in nanoseconds, and when it was last added to.
    rejecting_ns: u64,
    rejecting_at: Mono,
    random: u64,
    offered: u32,
    shed: u32,
    window_at: Mono,
    shed_percent: f64,
    counts: ShedCounts,
}

impl Controller {
    /// A controller that has measured nothing yet. The key decides the jitter and the places of sources.
    #[must_use]
    pub fn new(config: Config, key: HashKey) -> Controller {
        Controller {
            config,
            service_time: ServiceTime::new(),
            fairness: Fairness::new(key.derive(u64::from_le_bytes(*b"fairness"))),
            sieve: Sieve::new(key.derive(u64::from_le_bytes(*b"thesieve"))),
            behaviour: Behaviour::Normal,
            percent: 0,
            wait: Duration::ZERO,
            rejecting_ns: 0,
            rejecting_at: Mono::default(),
            random: key.mac(b"jitter") | 1,
            offered: 0,
            shed: 0,
            window_at: Mono::default(),
            shed_percent: 0.0,
            counts: ShedCounts::default(),
        }
    }

    /// Changes the configuration while running.
    pub fn configure(&mut self, config: Config) {
        self.config = config;
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> Config {
        self.config
    }

    /// So many accepted messages took so long together, refusals not counted.
    pub fn observe_service(&mut self, messages: u32, busy: Duration) {
        self.service_time.observe(messages, busy);
    }

    /// For so long the worker has slept, or refused and dropped what had been read: it could have accepted more.
    pub fn observe_spare(&mut self, spare: Duration) {
        self.sieve.note_spare(spare);
    }

    /// The embedder holds back for the sieve: so many in all, and so much of its memory of that is taken, in percent.
    pub fn observe_held_back(&mut self, now: Mono, total: u64, fill_percent: u64) {
        self.sieve.note_held_back(now, total, fill_percent);
    }

    /// So much waits. To be called before each batch.
    pub fn observe_backlog(&mut self, now: Mono, backlog: Backlog) {
        self.turn_window(now);
        self.save_up(now);
        self.wait = self.service_time.wait(backlog.messages);
        let tolerance = self.config.tolerance.as_nanos().max(1);
        let percent = self.wait.as_nanos().saturating_mul(100) / tolerance;
        self.percent = u64::try_from(percent).unwrap_or(u64::MAX);
        if backlog.lost > 0 || backlog.fill_percent > NEARLY_FULL {
            self.percent = self.percent.max(LOSING);
        }
        self.behaviour = if self.config.enabled {
            self.next_behaviour()
        } else {
            Behaviour::Normal
        };
        self.turn_sieve(now);
    }

    fn turn_sieve(&mut self, now: Mono) {
        if !self.config.enabled {
            return self.sieve.open();
        }
        let cost = self.config.rejection_cost.as_secs_f64().max(1e-9);
        let share = f64::from(self.config.rejecting_permille) / 1000.0;
        let pressure = Pressure {
            wait: self.wait,
            percent: self.percent,
            refusals: share / cost,
            share,
            capacity: 1.0 / self.service_time.average().as_secs_f64().max(1e-9),
        };
        self.sieve.turn(now, pressure);
    }

    /// What is held back before it is read.
    #[must_use]
    pub fn sieve(&self) -> &Sieve {
        &self.sieve
    }

    /// Whether a datagram is held back.
    pub fn holds_back(&mut self, source: IpAddr, datagram: &[u8]) -> bool {
        let held = self.sieve.holds_back(source, datagram);
        self.counts.held_back += u64::from(held);
        held
    }

    /// When to call [`Controller::pass_time`] next; `None` if there is no need.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        self.sieve.next_turn()
    }

    /// Time has passed, whether or not anything has come: the sieve opens.
    pub fn pass_time(&mut self, now: Mono) {
        if self.poll_timeout().is_some_and(|at| at <= now) {
            self.wait = Duration::ZERO;
            self.percent = 0;
            self.turn_sieve(now);
        }
    }

    /// New work that came in a datagram, so that the sieve could have held it back, was looked at.
    pub fn note_datagram(&mut self, source: IpAddr, admission: Admission) {
        self.sieve.note(source, admission);
    }

    fn next_behaviour(&self) -> Behaviour {
        let new_work = match self.sieve.is_closed() {
            true => (SIEVED_NEW_WORK.0, SIEVED_NEW_WORK.0),
            false => NEW_WORK,
        };
        let stays = |behaviour, (begins, ends)| {
            self.percent > begins || (self.behaviour >= behaviour && self.percent >= ends)
        };
        if stays(Behaviour::RejectingNonEssential, NON_ESSENTIAL) {
            Behaviour::RejectingNonEssential
        } else if stays(Behaviour::RejectingNewWork, new_work) {
            Behaviour::RejectingNewWork
        } else {
            Behaviour::Normal
        }
    }

    /// How it behaves now.
    #[must_use]
    pub fn behaviour(&self) -> Behaviour {
        self.behaviour
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
        if self.behaviour == Behaviour::Normal && self.shed_percent < 1.0 {
            return 0;
        }
        // Of what the sieve lets through.
        let served = (1.0 - self.shed_percent / 100.0) * self.sieve.share();
        (100.0 - 100.0 * served).round().clamp(0.0, 100.0) as u8
    }

    /// What to do with a request from the network that belongs to no transaction.
    pub fn admit(&mut self, now: Mono, class: Class, source: IpAddr) -> Admission {
        self.offered = self.offered.saturating_add(1);
        if self.behaviour == Behaviour::Normal
            || !self.sheds(class)
            || !self.has_to_shed()
            || self.is_below_share(now, class, source)
        {
            if self.config.enabled {
                self.fairness.count(now, source);
            }
            return Admission::Accept;
        }
        self.shed = self.shed.saturating_add(1);
        let cost = self.rejection_ns();
        if self.rejecting_ns < cost {
            self.counts.dropped += 1;
            return Admission::Drop;
        }
        self.rejecting_ns -= cost;
        self.counts.refused += 1;
        Admission::Refuse {
            retry_after_s: self.retry_after(),
        }
    }

    /// The same for a request that came by a stream, where nothing is dropped in silence: it would not come again, and whoever sent it
    /// would wait for half a minute (RFC 3261 §17.1.2.2, timer F). More of the time goes to refusals, and when that is used up, requests
    /// are accepted: they take as long as they take, the worker always has work that counts, and the stream's flow control holds back
    /// those who send too much.
    pub fn admit_from_stream(&mut self, now: Mono, class: Class, source: IpAddr) -> Admission {
        match self.admit(now, class, source) {
            Admission::Drop => {
                self.counts.dropped -= 1;
                self.shed = self.shed.saturating_sub(1);
                self.fairness.count(now, source);
                Admission::Accept
            }
            Admission::Refuse { retry_after_s } => {
                self.rejecting_ns += self.rejection_ns() / STREAM_DISCOUNT;
                Admission::Refuse { retry_after_s }
            }
            Admission::Accept => Admission::Accept,
        }
    }

    fn rejection_ns(&self) -> u64 {
        u64::try_from(self.config.rejection_cost.as_nanos()).unwrap_or(u64::MAX)
    }

    /// A request was accepted without being asked about, since there is no congestion: its source is counted all the same.
    pub fn count_accepted(&mut self, now: Mono, source: IpAddr) {
        self.offered = self.offered.saturating_add(1);
        if self.config.enabled {
            self.fairness.count(now, source);
        }
    }

    /// Behind the sieve not all new work is shed at once.
    fn has_to_shed(&mut self) -> bool {
        let (some, all) = SIEVED_NEW_WORK;
        if !self.sieve.is_closed() || self.behaviour != Behaviour::RejectingNewWork {
            return true;
        }
        let share = self.percent.saturating_sub(some);
        (u64::from(self.random()) * (all - some)) >> 32 < share
    }

    fn random(&mut self) -> u32 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32
    }

    fn is_below_share(&mut self, now: Mono, class: Class, source: IpAddr) -> bool {
        let served = match self.behaviour {
            Behaviour::Normal => true,
            Behaviour::RejectingNewWork => true,
            // Shares of new work are over; those in dialogs are looked at once more.
            Behaviour::RejectingNonEssential => class > Class::New && self.percent < HOPELESS,
        };
        served
            && self
                .fairness
                .is_below_share(now, source, self.service_time.average())
    }

    fn sheds(&self, class: Class) -> bool {
        match class {
            Class::New => true,
            Class::Continuing => self.behaviour == Behaviour::RejectingNonEssential,
            Class::Priority => self.percent > HOPELESS,
            Class::Finishing => false,
        }
    }

    /// Whether a request of the TU may be sent. One that may not is answered with a 503 to the TU.
    pub fn admit_from_tu(&mut self, class: Class) -> bool {
        let admitted = self.behaviour == Behaviour::Normal || !self.sheds(class);
        if !admitted {
            self.counts.from_tu += 1;
        }
        admitted
    }

    /// Whether retransmissions are put off: the peer may well have answered, and its answer waits here.
    pub fn defers_retransmission(&mut self) -> bool {
        let defers = self.behaviour == Behaviour::RejectingNonEssential;
        if defers {
            self.counts.deferred += 1;
        }
        defers
    }

    /// Seconds: the wait rounded up and a jitter as long again, so that the refused do not all come back at once.
    fn retry_after(&mut self) -> u32 {
        let seconds = u32::try_from(self.wait.as_nanos().div_ceil(1_000_000_000)).unwrap_or(60);
        let base = seconds.clamp(1, 60);
        base + self.random() % (2 * base + 1)
    }

    fn save_up(&mut self, now: Mono) {
        let passed = now.since(self.rejecting_at).as_nanos();
        self.rejecting_at = now;
        let share = u128::from(self.config.rejecting_permille);
        // A sieve that is closed sees to it that this is not exceeded for long, and who is refused does not come again.
        let earned = passed * share * if self.sieve.is_closed() { 2 } else { 1 } / 1000;
        let earned = u64::try_from(earned).unwrap_or(u64::MAX);
        self.rejecting_ns = self
            .rejecting_ns
            .saturating_add(earned)
            .min(SAVED.as_nanos() as u64);
    }

    fn turn_window(&mut self, now: Mono) {
        let passed = now.since(self.window_at);
        if passed < SHARE_WINDOW {
            return;
        }
        self.window_at = now;
        let share = 100.0 * f64::from(self.shed) / f64::from(self.offered.max(1));
        self.shed_percent += (share - self.shed_percent) * AVERAGING;
        self.offered = 0;
        self.shed = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    /// A controller with a service time of 50 us, at which 4,000 messages are the tolerance.
    fn controller() -> Controller {
        let mut controller = Controller::new(Config::default(), HashKey::new([3; 16]));
        controller.observe_service(1000, Duration::from_millis(50));
        controller
    }

    fn waiting(messages: u64) -> Backlog {
        Backlog {
            messages,
            ..Backlog::default()
        }
    }

    #[test]
    fn behaviours_begin_above_their_thresholds_and_end_below_lower_ones() {
        let mut controller = controller();
        let mut behaviour = |messages| {
            controller.observe_backlog(Mono(0), waiting(messages));
            controller.behaviour()
        };
        assert_eq!(behaviour(3200), Behaviour::Normal);
        assert_eq!(behaviour(3240), Behaviour::RejectingNewWork);
        assert_eq!(behaviour(2400), Behaviour::RejectingNewWork);
        assert_eq!(behaviour(2399), Behaviour::Normal);
        assert_eq!(behaviour(4040), Behaviour::RejectingNonEssential);
        assert_eq!(behaviour(3400), Behaviour::RejectingNonEssential);
        assert_eq!(behaviour(3399), Behaviour::RejectingNewWork);
        assert_eq!(behaviour(u64::MAX), Behaviour::RejectingNonEssential);
        assert_eq!(behaviour(0), Behaviour::Normal);
    }

    #[test]
    fn a_tolerance_changed_live_counts_from_the_next_backlog_on() {
        let mut controller = controller();
        controller.observe_backlog(Mono(0), waiting(2000));
        assert_eq!(controller.behaviour(), Behaviour::Normal);
        controller.configure(Config {
            tolerance: Duration::from_millis(50),
            ..controller.config()
        });
        controller.observe_backlog(Mono(0), waiting(2000));
        assert_eq!(controller.behaviour(), Behaviour::RejectingNonEssential);
        controller.configure(Config {
            enabled: false,
            ..controller.config()
        });
        controller.observe_backlog(Mono(0), waiting(u64::MAX));
        assert_eq!(controller.behaviour(), Behaviour::Normal);
    }

    #[test]
    fn a_buffer_that_overflows_is_congestion_whatever_the_estimate() {
        let mut controller = controller();
        let lost = Backlog {
            lost: 1,
            ..waiting(10)
        };
        controller.observe_backlog(Mono(0), lost);
        assert_eq!(controller.behaviour(), Behaviour::RejectingNewWork);
    }

    /// Lets the source have its share, so that what follows is decided by class.
    fn beyond_share(controller: &mut Controller, now: Mono) {
        for _ in 0..5000 {
            controller.fairness.count(now, SOURCE);
        }
    }

    #[test]
    fn what_was_begun_is_protected_and_what_finishes_is_never_refused() {
        let mut controller = controller();
        let now = Mono::default().plus_secs(1);
        beyond_share(&mut controller, now);
        let accepted = |controller: &mut Controller, messages| {
            controller.observe_backlog(now, waiting(messages));
            [
                Class::New,
                Class::Continuing,
                Class::Priority,
                Class::Finishing,
            ]
            .map(|class| controller.admit(now, class, SOURCE) == Admission::Accept)
        };
        assert_eq!(accepted(&mut controller, 100), [true; 4]);
        assert_eq!(accepted(&mut controller, 3600), [false, true, true, true]);
        assert_eq!(accepted(&mut controller, 5000), [false, false, true, true]);
        assert_eq!(accepted(&mut controller, 9000), [false, false, false, true]);
    }

    #[test]
    fn a_source_below_its_share_is_served_while_new_work_is_refused() {
        let mut controller = controller();
        let now = Mono::default().plus_secs(1);
        beyond_share(&mut controller, now);
        controller.observe_backlog(now, waiting(3600));
        let quiet = [198, 51, 100, 9].into();
        assert_eq!(controller.admit(now, Class::New, quiet), Admission::Accept);
        assert_ne!(controller.admit(now, Class::New, SOURCE), Admission::Accept);
    }

    #[test]
    fn retry_after_is_rounded_up_never_zero_and_not_the_same_for_all() {
        let mut controller = controller();
        let now = Mono::default().plus_secs(1);
        beyond_share(&mut controller, now);
        controller.observe_backlog(now, waiting(3600));
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..50 {
            if let Admission::Refuse { retry_after_s } = controller.admit(now, Class::New, SOURCE) {
                seen.insert(retry_after_s);
            }
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn refusals_stay_within_their_share_of_time() {
        let mut controller = controller();
        let mut refused = 0;
        for ms in 1000..2000u64 {
            let now = Mono(ms * 1_000_000);
            beyond_share(&mut controller, now);
            controller.observe_backlog(now, waiting(3600));
            for _ in 0..200 {
                refused += u32::from(controller.admit(now, Class::New, SOURCE) != Admission::Drop);
            }
        }
        // 5 % of a second in pieces of 3 us, and what was saved up.
        assert!((16_000..26_000).contains(&refused), "{refused}");
        assert_eq!(controller.counts().dropped, 200_000 - u64::from(refused));
    }

    #[test]
    fn what_comes_by_a_stream_is_refused_or_accepted_but_never_dropped() {
        let mut controller = controller();
        let (mut refused, mut accepted) = (0, 0);
        for ms in 1000..2000u64 {
            let now = Mono(ms * 1_000_000);
            beyond_share(&mut controller, now);
            controller.observe_backlog(now, waiting(3600));
            for _ in 0..200 {
                match controller.admit_from_stream(now, Class::New, SOURCE) {
                    Admission::Accept => accepted += 1,
                    Admission::Refuse { .. } => refused += 1,
                    Admission::Drop => panic!("dropped"),
                }
            }
        }
        let counts = controller.counts();
        assert_eq!((counts.refused, counts.dropped), (refused, 0));
        assert_eq!(refused + accepted, 200_000);
        // 10 % of a second in pieces of 4 us, as much again behind a sieve, and what was saved up.
        assert!((25_000..60_000).contains(&refused), "{refused}");
    }

    #[test]
    fn the_tus_own_requests_and_retransmissions_wait_too() {
        let mut controller = controller();
        assert!(controller.admit_from_tu(Class::New));
        assert!(!controller.defers_retransmission());
        controller.observe_backlog(Mono(0), waiting(3600));
        assert!(!controller.admit_from_tu(Class::New));
        assert!(controller.admit_from_tu(Class::Continuing));
        assert!(!controller.defers_retransmission());
        controller.observe_backlog(Mono(0), waiting(4800));
        assert!(!controller.admit_from_tu(Class::Continuing));
        assert!(controller.admit_from_tu(Class::Finishing));
        assert!(controller.defers_retransmission());
        assert_eq!(controller.counts().from_tu, 2);
        assert_eq!(controller.counts().deferred, 1);
    }
}
