//! RFC 7415 as a server: how many requests a second each sender may send.
//!
//! What can be served is shared out so that whoever asks for little gets it, and all others get the same: the *level*. It is the
//! same number for everybody (RFC 7415 §3.4), so nothing has to be kept about the single sender but how much it asks
//! for; that is counted in an array of fixed size by a keyed hash of its prefix, for all senders, whether they know the rate
//! algorithm or not, and only while one does.

use std::net::IpAddr;
use std::time::Duration;

use super::controller::{Behaviour, Controller};
use crate::{HashKey, Mono};

const PLACES: usize = 1024;
/// How often the level is set anew.
const WINDOW: Duration = Duration::from_millis(200);
/// How much of an average one window is.
const AVERAGING: f64 = 0.3;
/// For how long senders are counted after one of them was told a rate.
const COUNTING: Duration = Duration::from_secs(60);
/// For how long senders are held to a rate after the congestion is over, and after somebody was last held back by it: let go all at
/// once they would bring it back.
const HOLD: Duration = Duration::from_secs(2);
/// Who asks for less than this part of the level does not feel it.
const CONTENT: f64 = 0.8;
/// Half as many requests a second do not count for a sender.
const ASKING: f64 = 0.5;
/// Within what time a wait that is longer than wanted is to be worked off.
const WORKED_OFF: Duration = Duration::from_secs(1);
/// By how much the rate exceeds what can be served if nobody waits, and what part of it is left at the least.
const MORE: f64 = 1.1;
const LESS: f64 = 0.1;
/// How much more is tried in each window in which hardly anybody waits, how much less in one of congestion, and how much at most. What
/// a message takes is less the more there are of them, so that what can be served is found by trying only.
const TRYING: f64 = 1.05;
const TIRING: f64 = 0.8;
const TRIED: f64 = 100.0;
/// Messages for each request that is counted: ACKs and responses come with them.
const MESSAGES: (f64, f64) = (1.0, 8.0);
/// How much of their numbers is forgotten in a window: what waits is not served when it is counted.
const FORGETTING: f64 = 0.05;
/// How long a rate is valid, in milliseconds, at least and at most: it should outlast the pause between two requests.
const VALIDITY_MS: (f64, f64) = (1000.0, 5000.0);
/// Requests whose pauses it outlasts.
const PAUSES: f64 = 4.0;

/// What came from one place.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// In this window.
    came: u32,
    /// A second, on average.
    rate: f32,
}

/// Who asks for how much, and what follows.
#[derive(Debug)]
pub(super) struct Rates {
    key: HashKey,
    /// Empty until somebody is told a rate.
    places: Box<[Place]>,
    spoken: bool,
    counting_until: Mono,
    held_until: Mono,
    window_at: Mono,
    /// In this window.
    accepted: u32,
    messages: u32,
    /// Lately, both.
    served: (f64, f64),
    /// What part of what can be served, by the time it takes, is tried.
    tried: f64,
    /// Requests a second for each sender; 0 if there is no limit.
    level: f64,
}

impl Rates {
    pub(super) fn new(key: HashKey) -> Rates {
        Rates {
            key: key.derive(u64::from_le_bytes(*b"rfc 7415")),
            places: Box::default(),
            spoken: false,
            counting_until: Mono::default(),
            held_until: Mono::default(),
            window_at: Mono::default(),
            accepted: 0,
            messages: 0,
            served: (0.0, 0.0),
            tried: 1.0,
            level: 0.0,
        }
    }

    /// Somebody is told what comes of this.
    pub(super) fn note_speaker(&mut self) {
        self.spoken = true;
    }

    #[inline]
    pub(super) fn count(&mut self, source: IpAddr, is_accepted: bool) {
        if !self.places.is_empty() {
            self.count_at(source, is_accepted);
        }
    }

    fn count_at(&mut self, source: IpAddr, is_accepted: bool) {
        let mac = match source.to_canonical() {
            IpAddr::V4(v4) => self.key.mac(&v4.octets()),
            // A network has a /64 at the least: its single addresses are free to choose.
            IpAddr::V6(v6) => self.key.mac(&v6.octets()[..8]),
        };
        if let Some(place) = self.places.get_mut(mac as usize % PLACES) {
            place.came = place.came.saturating_add(1);
        }
        self.accepted = self.accepted.saturating_add(u32::from(is_accepted));
    }

    pub(super) fn observe_service(&mut self, messages: u32) {
        self.messages = self.messages.saturating_add(messages);
    }

    /// What everybody may send at most, in requests a second, and for how many milliseconds that holds. Never 0, which would
    /// have senders stop and hear no more.
    pub(super) fn limit(&self) -> Option<(u32, u32)> {
        (self.level > 0.0).then(|| {
            let rate = self.level.floor().max(1.0);
            let validity = (1000.0 * PAUSES / rate).clamp(VALIDITY_MS.0, VALIDITY_MS.1);
            (rate.min(f64::from(u32::MAX)) as u32, validity as u32)
        })
    }

    /// Sets the level if it is time to, and says whether it did.
    pub(super) fn turn(&mut self, now: Mono, controller: &Controller) -> bool {
        let passed = now.since(self.window_at);
        if passed < WINDOW {
            return false;
        }
        self.window_at = now;
        if std::mem::take(&mut self.spoken) {
            self.counting_until = now.plus(COUNTING);
            if self.places.is_empty() {
                self.places = vec![Place::default(); PLACES].into();
            }
        }
        if now >= self.counting_until {
            self.places = Box::default();
            self.level = 0.0;
            return true;
        }
        self.average(passed);
        let wanted = controller.config().tolerance / 2;
        let is_congested = controller.behaviour() != Behaviour::Normal;
        if is_congested {
            self.tried = (self.tried * TIRING).max(1.0);
        } else if controller.expected_wait() < wanted / 2 {
            self.tried = (self.tried * TRYING).min(TRIED);
        }
        if is_congested || self.holds_back() {
            self.held_until = now.plus(HOLD);
        }
        self.level = if now < self.held_until {
            self.share(self.capacity(controller, wanted))
        } else {
            self.tried = 1.0;
            0.0
        };
        true
    }

    /// Whether anybody sends as much as is let.
    fn holds_back(&self) -> bool {
        let enough = CONTENT * self.level;
        enough > 0.0 && self.rates().any(|rate| rate >= enough)
    }

    /// Of all who ask for anything.
    fn rates(&self) -> impl Iterator<Item = f64> {
        let rates = self.places.iter().map(|place| f64::from(place.rate));
        rates.filter(|rate| *rate >= ASKING)
    }

    /// Moves all averages.
    fn average(&mut self, passed: Duration) {
        let seconds = passed.as_secs_f64();
        for place in &mut self.places {
            let came = f64::from(std::mem::take(&mut place.came)) / seconds;
            let rate = f64::from(place.rate);
            place.rate = (rate + (came - rate) * AVERAGING) as f32;
        }
        let (messages, requests) = &mut self.served;
        *messages += f64::from(std::mem::take(&mut self.messages)) - *messages * FORGETTING;
        *requests += f64::from(std::mem::take(&mut self.accepted)) - *requests * FORGETTING;
    }

    /// Requests a second that can be served: a little more while few wait, less while many do.
    fn capacity(&self, controller: &Controller, wanted: Duration) -> f64 {
        let (messages, requests) = self.served;
        let messages_each = (messages / requests.max(1.0)).clamp(MESSAGES.0, MESSAGES.1);
        let each = controller.service_time().as_secs_f64().max(1e-9) * messages_each;
        let excess = controller.expected_wait().as_secs_f64() - wanted.as_secs_f64();
        let part = (1.0 - excess / WORKED_OFF.as_secs_f64()).clamp(LESS, MORE);
        self.tried * part / each
    }

    /// What each may have: all that is there is given to those who ask for more than that, once those are content who do not.
    fn share(&self, capacity: f64) -> f64 {
        let mut level = capacity / self.rates().count().max(1) as f64;
        // Each round makes some more content; after a few there is little left to give.
        for _ in 0..16 {
            let (mut taken, mut wanting) = (0.0, 0_usize);
            for rate in self.rates() {
                if rate < CONTENT * level {
                    taken += rate;
                } else {
                    wanting += 1;
                }
            }
            let next = (capacity - taken) / wanting.max(1) as f64;
            if next <= level * 1.01 {
                break;
            }
            level = next;
        }
        level
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::{Backlog, Config};

    /// A controller with a service time of 1 ms, behind which so much waits.
    fn controller(waiting: u64) -> Controller {
        let mut controller = Controller::new(Config::default(), HashKey::new([3; 16]));
        controller.observe_service(1000, Duration::from_secs(1));
        let backlog = Backlog {
            messages: waiting,
            ..Backlog::default()
        };
        controller.observe_backlog(Mono(0), backlog);
        controller
    }

    fn rates() -> Rates {
        Rates::new(HashKey::new([5; 16]))
    }

    fn source(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    /// Runs so many windows, in each of which senders ask for so much a second.
    fn run(rates: &mut Rates, windows: u64, waiting: u64, asked: &[u32]) {
        let (controller, begin) = (controller(waiting), rates.window_at);
        for window in 1..=windows {
            for (last, a_second) in asked.iter().enumerate() {
                for _ in 0..a_second / 5 {
                    rates.count(source(last as u8), true);
                    rates.observe_service(1);
                }
            }
            rates.note_speaker();
            let now = begin.plus(WINDOW * u32::try_from(window).unwrap());
            assert!(rates.turn(now, &controller));
        }
    }

    #[test]
    fn who_asks_for_little_gets_it_and_the_others_share_the_rest_rfc7415_3_4() {
        let mut rates = rates();
        // A thousand a second can be served, and 100 ms of waiting are as wanted.
        run(&mut rates, 40, 170, &[50, 100, 5000, 900]);
        let (rate, validity_ms) = rates.limit().expect("congested");
        // (1000 - 150) / 2, and a little less for the 70 ms too many.
        assert!((380..=400).contains(&rate), "{rate}");
        assert_eq!(validity_ms, 1000);
        // What they are told is what they ask for from then on: that changes nothing.
        run(&mut rates, 40, 170, &[50, 100, rate, rate]);
        let (again, _) = rates.limit().expect("congested");
        assert!(again.abs_diff(rate) <= 12, "{again} after {rate}");
        // One wants less: the other gets more.
        run(&mut rates, 40, 170, &[50, 100, rate, 100]);
        let (more, _) = rates.limit().expect("congested");
        assert!((640..=690).contains(&more), "{more}");
    }

    #[test]
    fn the_limit_outlives_the_congestion_for_a_moment_and_then_ends() {
        let mut rates = rates();
        run(&mut rates, 10, 170, &[5000]);
        assert!(rates.limit().is_some());
        run(&mut rates, 9, 10, &[900]);
        let (rate, _) = rates.limit().expect("held");
        assert!(rate > 1200, "{rate}: nobody waits, so more is tried");
        run(&mut rates, 16, 10, &[900]);
        assert_eq!(rates.limit(), None, "it held nobody back any more");
    }

    #[test]
    fn what_is_taken_for_what_can_be_served_does_not_stay_too_little() {
        let mut rates = rates();
        run(&mut rates, 10, 170, &[5000]);
        let mut before = 0;
        // A sender does what it is told, and nobody waits at all.
        for _ in 0..100 {
            let Some((rate, _)) = rates.limit() else {
                break;
            };
            run(&mut rates, 1, 0, &[rate]);
            before = rate;
        }
        assert!(before > 50_000, "{before}");
    }

    #[test]
    fn a_long_wait_leaves_little_and_a_low_rate_holds_longer() {
        let mut rates = rates();
        let all = [1000; 100];
        run(&mut rates, 20, 3000, &all);
        assert_eq!(
            rates.limit(),
            Some((1, 4000)),
            "1000 a second, a tenth, a hundred senders"
        );
    }

    #[test]
    fn messages_that_come_with_requests_count_as_well() {
        let limit = |messages: u32| {
            let (mut rates, controller) = (rates(), controller(170));
            for window in 1..=40 {
                for _ in 0..200 {
                    rates.count(source(0), true);
                }
                rates.observe_service(200 * messages / 2);
                rates.note_speaker();
                let _ = rates.turn(Mono(0).plus(WINDOW * window), &controller);
            }
            rates.limit().expect("congested").0
        };
        // INVITE, ACK and BYE are two requests.
        let (two, three) = (limit(2), limit(3));
        assert!((915..=930).contains(&two), "{two}");
        assert!(three.abs_diff(two * 2 / 3) <= 2, "{three} of {two}");
    }

    #[test]
    fn nothing_is_kept_and_nobody_counted_where_no_rate_is_spoken() {
        let mut rates = rates();
        rates.count(source(1), true);
        assert!(rates.turn(Mono(0).plus(WINDOW), &controller(500)));
        assert!(rates.places.is_empty() && rates.limit().is_none());
        run(&mut rates, 1, 500, &[]);
        assert_eq!(rates.places.len(), PLACES);
        let later = rates.window_at.plus(COUNTING);
        assert!(rates.turn(later, &controller(500)));
        assert!(rates.places.is_empty() && rates.limit().is_none());
    }
}
