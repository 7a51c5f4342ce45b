//! RFC 7339 as a client: sends a next hop no more requests than its overload reports permit.
//!
//! Few next hops send reports. They are in a table of fixed size; if it is full, the hop whose report expires first is
//! removed. The loss algorithm (RFC 7339 §7) sends all but a share of the requests. The rate algorithm (RFC 7415 §3.5)
//! sends a number per second.

use std::net::SocketAddr;
use std::time::Duration;

use super::classes::Class;
use crate::Mono;

/// The maximum number of next hops in the table.
const MAX_HOPS: usize = 64;
/// RFC 7339 §4.3: the validity of a report without oc-validity.
const DEFAULT_VALIDITY: Duration = Duration::from_millis(500);
/// The longest validity of a report. So a server that ends, or a forged report, cannot throttle requests for longer. A
/// running server reports in each response.
const LONGEST_VALIDITY: Duration = Duration::from_secs(60);
/// The most tokens of the rate algorithm, so that small bursts pass. Here tokens count down from 4. In RFC 7415 §3.5.2
/// the bucket fills up with each request. Its limits TAU1 and TAU2 (requests with priority) are 1 and -4 tokens here.
const RATE_BURST: f64 = 4.0;
/// The bucket also holds the tokens of this time, because a fast sender sends in batches.
const RATE_BURST_S: f64 = 0.02;
/// The most tokens that requests with priority may borrow, in seconds of the rate. Other requests pay them back.
const RATE_DEBT_S: f64 = 10.0;
/// RFC 7339 §7.2: how often the mix of requests is measured again.
const MIX_PERIOD: Duration = Duration::from_secs(5);
/// The mix that is assumed before the first measurement: 80 % new requests, and 20 % others.
const FIRST_MIX: [u32; 2] = [80, 20];
/// RFC 7339 §4.4: a sequence number that is lower by more than this is not a late report. Its server has restarted. If
/// the number is a time in seconds, this is an hour.
const RESTART_GAP: u64 = 3600;

/// The overload report in the top Via of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Feedback {
    /// The value of `oc`: percent to throttle, or requests per second.
    pub oc: Option<u32>,
    /// `oc-algo` is `rate`.
    pub rate: bool,
    /// `oc-algo` is neither that nor `loss`: what `oc` means is not known.
    pub foreign: bool,
    /// `oc-validity`.
    pub validity: Option<Duration>,
    /// `oc-seq`: the part before the point and the part behind it.
    pub sequence: Option<(u64, u64)>,
}

impl Feedback {
    /// Reads a parameter of the top Via; call it for each. Malformed values count as absent.
    pub fn note(&mut self, name: &[u8], value: Option<&[u8]>) {
        let Some(value) = value else { return };
        if name.eq_ignore_ascii_case(b"oc") {
            self.oc = number(value).and_then(|number| u32::try_from(number).ok());
        } else if name.eq_ignore_ascii_case(b"oc-algo") {
            let quoted = value.trim_ascii();
            let name = quoted.strip_prefix(b"\"").unwrap_or(quoted);
            let name = name.strip_suffix(b"\"").unwrap_or(name).trim_ascii();
            self.rate = name.eq_ignore_ascii_case(b"rate");
            self.foreign = !self.rate && !name.eq_ignore_ascii_case(b"loss");
        } else if name.eq_ignore_ascii_case(b"oc-validity") {
            self.validity = number(value).map(Duration::from_millis);
        } else if name.eq_ignore_ascii_case(b"oc-seq") {
            let mut parts = value.splitn(2, |byte| *byte == b'.');
            let whole = parts.next().and_then(number);
            self.sequence = whole.zip(parts.next().and_then(number).or(Some(0)));
        }
    }
}

/// The maximum number of tokens in the bucket of the rate algorithm.
fn burst(per_second: f64) -> f64 {
    RATE_BURST.max(RATE_BURST_S * per_second)
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 12 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |sum: u64, digit: &u8| sum * 10 + u64::from(digit - b'0');
    Some(digits.iter().fold(0, add))
}

#[derive(Clone, Copy, Debug)]
struct Hop {
    address: SocketAddr,
    /// When the report expires.
    until: Mono,
    /// `oc-seq` of the report.
    sequence: (u64, u64),
    limit: Limit,
    mix: Mix,
}

/// How many requests to a next hop are new, and how many are of other classes: the two categories of RFC 7339 §7.2.
#[derive(Clone, Copy, Debug)]
struct Mix {
    /// The counts of the last complete period with requests. The throttled share is computed from them.
    applied: [u32; 2],
    /// The counts of the current period.
    counted: [u32; 2],
    /// The start of the current period.
    since: Mono,
}

impl Mix {
    fn new(now: Mono) -> Mix {
        Mix {
            applied: FIRST_MIX,
            counted: [0; 2],
            since: now,
        }
    }

    /// Counts a request. If the period is over, its counts become the applied ones, and a new period starts.
    fn count(&mut self, now: Mono, class: Class) {
        if now.since(self.since) >= MIX_PERIOD {
            if self.counted.iter().any(|count| *count > 0) {
                self.applied = self.counted;
            }
            self.counted = [0; 2];
            self.since = now;
        }
        let [new, others] = &mut self.counted;
        let count = if class == Class::New { new } else { others };
        *count = count.saturating_add(1);
    }

    /// How many of 10,000 requests of this class are throttled, so that `percent` of all requests are (RFC 7339 §7.2).
    /// Requests that begin a dialog are throttled first, the others only if that is not enough.
    fn throttled_share(&self, percent: u32, class: Class) -> u32 {
        let [new, others] = self.applied.map(u64::from);
        let wanted = u64::from(percent) * (new + others);
        let share =
            |of: u64, wanted: u64| wanted.saturating_mul(100).div_ceil(of.max(1)).min(10_000);
        let throttled = match class {
            Class::New => share(new, wanted),
            _ => share(others, wanted.saturating_sub(100 * new)),
        };
        throttled as u32
    }
}

#[derive(Clone, Copy, Debug)]
enum Limit {
    /// Percent of the requests to throttle.
    Loss(u32),
    /// A token bucket.
    Rate {
        per_second: f64,
        /// The tokens in the bucket, negative if requests have borrowed tokens.
        saved: f64,
        /// When the tokens were counted last.
        at: Mono,
    },
}

/// The limits that next hops have reported.
#[derive(Debug)]
pub struct Downstream {
    hops: Vec<Hop>,
    random: u64,
}

impl Downstream {
    /// A table without limits. The seed decides which requests are throttled.
    #[must_use]
    pub fn new(seed: u64) -> Downstream {
        Downstream {
            hops: Vec::new(),
            random: seed | 1,
        }
    }

    /// Applies the overload report of a response from this next hop.
    pub fn learn(&mut self, now: Mono, hop: SocketAddr, feedback: Feedback) {
        // RFC 7339 §4.3: `oc-validity` without `oc` has no meaning, except zero, which ends the throttling.
        let ends = feedback.validity.is_some_and(|validity| validity.is_zero());
        let Some(oc) = feedback.oc.or(ends.then_some(0)) else {
            return;
        };
        if feedback.foreign && !ends {
            return;
        }
        let place = self.hops.iter().position(|known| known.address == hop);
        let sequence = feedback.sequence.unwrap_or((0, 0));
        if let Some(known) = place.and_then(|place| self.hops.get(place)) {
            // RFC 7339 §5.4: what is not newer is out of order.
            let is_late = sequence <= known.sequence
                && sequence.0.saturating_add(RESTART_GAP) >= known.sequence.0;
            if known.until > now && feedback.sequence.is_some() && is_late {
                return;
            }
        }
        let validity = feedback.validity.unwrap_or(DEFAULT_VALIDITY);
        let validity = validity.min(LONGEST_VALIDITY);
        if validity.is_zero() {
            // RFC 7339 §4.3: zero ends the throttling. The hop stays in the table for a moment, to recognise old
            // reports. A hop without a limit gets no place in the table.
            if place.is_some() {
                let until = now.plus(DEFAULT_VALIDITY);
                self.put(now, place, hop, (until, sequence), Limit::Loss(0));
            }
            return;
        }
        let limit = if feedback.rate {
            Limit::Rate {
                per_second: f64::from(oc),
                saved: burst(f64::from(oc)).min(f64::from(oc)),
                at: now,
            }
        } else if oc <= 100 {
            Limit::Loss(oc)
        } else {
            // RFC 7339 §5.5: this is no percentage, so the report is ignored.
            return;
        };
        self.put(now, place, hop, (now.plus(validity), sequence), limit);
    }

    /// Stores the limit that a next hop reports. `until` is its end; `sequence` orders the reports (`oc-seq`).
    fn put(
        &mut self,
        now: Mono,
        place: Option<usize>,
        address: SocketAddr,
        (until, sequence): (Mono, (u64, u64)),
        mut limit: Limit,
    ) {
        let place = place.or_else(|| self.first_to_expire_if_full());
        let known = place.and_then(|place| self.hops.get_mut(place));
        if let (
            Limit::Rate { saved, at, .. },
            Some(Hop {
                address: same,
                limit: Limit::Rate {
                    saved: s, at: a, ..
                },
                ..
            }),
        ) = (&mut limit, &known)
            && *same == address
        {
            // A new report does not fill the bucket again.
            (*saved, *at) = (*s, *a);
        }
        let same = known.as_ref().filter(|known| known.address == address);
        let hop = Hop {
            address,
            until,
            sequence,
            limit,
            mix: same.map_or(Mix::new(now), |known| known.mix),
        };
        match known {
            Some(known) => *known = hop,
            None => self.hops.push(hop),
        }
    }

    /// The place of the hop whose report expires first, if the table is full: a new hop replaces it.
    fn first_to_expire_if_full(&self) -> Option<usize> {
        if self.hops.len() < MAX_HOPS {
            return None;
        }
        let hops = self.hops.iter().enumerate();
        hops.min_by_key(|(_, hop)| hop.until)
            .map(|(place, _)| place)
    }

    /// Whether a request of this class may be sent to the next hop. RFC 7339 §5.10.1: requests of a dialog and urgent
    /// requests have priority. New requests are throttled first, the others only if that is not enough. A request
    /// of [`Class::Finishing`] is never throttled, because it frees more than it costs.
    pub fn admit(&mut self, now: Mono, hop: SocketAddr, class: Class) -> bool {
        let Some(place) = self.hops.iter().position(|known| known.address == hop) else {
            return true;
        };
        if self.hops[place].until <= now {
            self.hops.swap_remove(place);
            return true;
        }
        let drawn = self.next_random();
        let Hop { limit, mix, .. } = &mut self.hops[place];
        mix.count(now, class);
        match limit {
            Limit::Loss(percent) => {
                class == Class::Finishing || drawn >= mix.throttled_share(*percent, class)
            }
            Limit::Rate {
                per_second,
                saved,
                at,
            } => {
                let earned = now.since(*at).as_secs_f64() * *per_second;
                let burst = burst(*per_second);
                *saved = (*saved + earned).min(burst);
                *at = now;
                let floor = match class {
                    // RFC 7339 §5.1: a rate of 0 means none at all.
                    _ if *per_second == 0.0 => f64::INFINITY,
                    Class::New => 1.0,
                    _ => -burst,
                };
                let passes = class == Class::Finishing || *saved >= floor;
                if passes {
                    // RFC 7415 §3.5.3: so that throttled clients do not send at the same time.
                    let is_full = *saved >= burst;
                    let cost = if is_full {
                        0.5 + f64::from(drawn) / 10_000.0
                    } else {
                        1.0
                    };
                    // Exempt requests use tokens too, so other requests get fewer, and the rate holds in the long run.
                    let debt = burst.max(RATE_DEBT_S * *per_second);
                    *saved = (*saved - cost).max(-debt);
                }
                passes
            }
        }
    }

    /// How many next hops have a limit, expired limits included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.hops.len()
    }

    /// Whether no next hop has a limit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hops.is_empty()
    }

    /// A random number from 0 to 9999.
    fn next_random(&mut self) -> u32 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        ((self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % 10_000) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(port: u16) -> SocketAddr {
        ([192, 0, 2, 1], port).into()
    }

    fn asks(oc: u32, sequence: u64) -> Feedback {
        Feedback {
            oc: Some(oc),
            sequence: Some((sequence, 0)),
            ..Feedback::default()
        }
    }

    fn passing(downstream: &mut Downstream, now: Mono, class: Class) -> usize {
        (0..1000)
            .filter(|_| downstream.admit(now, hop(1), class))
            .count()
    }

    #[test]
    fn a_share_is_throttled_until_the_report_expires() {
        let mut downstream = Downstream::new(7);
        let now = Mono(0);
        downstream.learn(now, hop(1), asks(30, 1));
        // Until the mix is known, four in five may be throttled: 30 of 80.
        let new = passing(&mut downstream, now, Class::New);
        assert!((580..670).contains(&new), "{new}");
        assert_eq!(passing(&mut downstream, now, Class::Continuing), 1000);
        assert!(downstream.admit(now, hop(2), Class::New), "another hop");
        let later = now.plus(Duration::from_millis(500));
        assert_eq!(passing(&mut downstream, later, Class::New), 1000);
        assert!(downstream.is_empty());
    }

    #[test]
    fn a_report_is_valid_for_a_minute_at_most() {
        let mut downstream = Downstream::new(7);
        let report = Feedback {
            validity: Some(Duration::from_secs(1_000_000)),
            ..asks(100, 1)
        };
        downstream.learn(Mono(0), hop(1), report);
        let in_the_minute = Mono(0).plus_secs(59);
        assert_eq!(passing(&mut downstream, in_the_minute, Class::New), 0);
        let later = Mono(0).plus_secs(60);
        assert_eq!(passing(&mut downstream, later, Class::New), 1000);
    }

    /// The share of all requests, regardless of their classes.
    #[test]
    fn the_throttled_share_is_that_of_the_whole_mix_rfc7339_7_2() {
        for (in_a_hundred, oc, expected) in [
            (100, 30, [700, 0]),
            (50, 30, [200, 500]),
            (20, 30, [0, 700]),
            (50, 100, [0, 0]),
            (90, 0, [900, 100]),
        ] {
            let mut downstream = Downstream::new(7);
            let mut passed = [0, 0];
            // Ten seconds to learn the mix, then one to count.
            for number in 0..11_000_u64 {
                let now = Mono(number * 1_000_000);
                if number % 400 == 0 {
                    downstream.learn(now, hop(1), asks(oc, number + 1));
                }
                let is_new = number % 100 < in_a_hundred;
                let class = [Class::Continuing, Class::New][usize::from(is_new)];
                let passes = downstream.admit(now, hop(1), class);
                if number >= 10_000 {
                    passed[usize::from(!is_new)] += i32::from(passes);
                }
            }
            for (passed, expected) in passed.into_iter().zip(expected) {
                let off: i32 = passed - expected;
                assert!(off.abs() <= 60, "{in_a_hundred} {oc}: {passed} {expected}");
            }
        }
    }

    #[test]
    fn all_means_all_but_what_finishes() {
        let mut downstream = Downstream::new(7);
        downstream.learn(Mono(0), hop(1), asks(100, 1));
        assert_eq!(passing(&mut downstream, Mono(0), Class::New), 0);
        assert_eq!(passing(&mut downstream, Mono(0), Class::Priority), 0);
        assert_eq!(passing(&mut downstream, Mono(0), Class::Finishing), 1000);
    }

    #[test]
    fn old_reports_are_ignored_and_a_validity_of_zero_ends_it() {
        let mut downstream = Downstream::new(7);
        downstream.learn(Mono(0), hop(1), asks(100, 5));
        downstream.learn(Mono(1), hop(1), asks(0, 4));
        downstream.learn(Mono(1), hop(1), asks(0, 5));
        assert_eq!(passing(&mut downstream, Mono(1), Class::New), 0);
        let over = Feedback {
            validity: Some(Duration::ZERO),
            ..asks(0, 6)
        };
        downstream.learn(Mono(2), hop(1), over);
        assert_eq!(passing(&mut downstream, Mono(2), Class::New), 1000);
        downstream.learn(Mono(3), hop(1), asks(100, 5));
        assert_eq!(passing(&mut downstream, Mono(3), Class::New), 1000);
    }

    #[test]
    fn a_server_that_begins_anew_is_believed_and_a_validity_alone_is_not_rfc7339_4_4() {
        let mut downstream = Downstream::new(7);
        downstream.learn(Mono(0), hop(1), asks(0, 1_700_000_000));
        downstream.learn(Mono(1), hop(1), asks(100, 1_699_999_999));
        assert!(downstream.admit(Mono(2), hop(1), Class::New), "it is late");
        downstream.learn(Mono(3), hop(1), asks(100, 1));
        assert!(
            !downstream.admit(Mono(4), hop(1), Class::New),
            "it has begun anew"
        );
        let alone = Feedback {
            oc: None,
            validity: Some(Duration::from_secs(60)),
            ..asks(0, 2)
        };
        downstream.learn(Mono(5), hop(1), alone);
        let later = Mono(0).plus(Duration::from_millis(600));
        assert!(
            downstream.admit(later, hop(1), Class::New),
            "§4.3: discarded"
        );
        // A report that throttles nothing gets no place in the table.
        let calm = Feedback {
            validity: Some(Duration::ZERO),
            ..asks(0, 3)
        };
        downstream.learn(later, hop(9), calm);
        assert!(downstream.is_empty());
    }

    #[test]
    fn a_rate_of_zero_lets_nothing_pass_rfc7339_5_1() {
        let mut downstream = Downstream::new(7);
        let none = Feedback {
            rate: true,
            ..asks(0, 1)
        };
        downstream.learn(Mono(0), hop(1), none);
        for class in [Class::New, Class::Continuing, Class::Priority] {
            assert_eq!(passing(&mut downstream, Mono(1), class), 0);
        }
    }

    #[test]
    fn a_share_above_100_means_nothing() {
        let mut downstream = Downstream::new(7);
        downstream.learn(Mono(0), hop(1), asks(101, 1));
        assert_eq!(passing(&mut downstream, Mono(0), Class::New), 1000);
    }

    #[test]
    fn the_rate_algorithm_lets_so_many_a_second_pass() {
        let mut downstream = Downstream::new(7);
        let mut passed = 0;
        for ms in 0..2000u64 {
            let now = Mono(ms * 1_000_000);
            if ms % 400 == 0 {
                let report = Feedback {
                    rate: true,
                    ..asks(100, ms + 1)
                };
                downstream.learn(now, hop(1), report);
            }
            passed += usize::from(downstream.admit(now, hop(1), Class::New));
        }
        assert!((195..=206).contains(&passed), "{passed}");
    }

    #[test]
    fn protected_requests_pass_at_the_expense_of_others_rfc7415_3_5_2() {
        let mut downstream = Downstream::new(7);
        let mut passed = [0, 0, 0];
        for ms in 0..10_000_u64 {
            let now = Mono(ms * 1_000_000);
            if ms % 400 == 0 {
                let report = Feedback {
                    rate: true,
                    ..asks(100, ms + 1)
                };
                downstream.learn(now, hop(1), report);
            }
            // 1000 a second begin something, 50 continue it, 40 finish it.
            passed[0] += u32::from(downstream.admit(now, hop(1), Class::New));
            if ms % 20 == 0 {
                passed[1] += u32::from(downstream.admit(now, hop(1), Class::Continuing));
            }
            if ms % 25 == 0 {
                passed[2] += u32::from(downstream.admit(now, hop(1), Class::Finishing));
            }
        }
        assert_eq!(passed[1..], [500, 400], "none of these was held back");
        let all: u32 = passed.iter().sum();
        assert!((990..=1010).contains(&all), "{all} in ten seconds");
    }

    #[test]
    fn final_requests_may_exceed_the_rate_and_reduce_it_later() {
        let mut downstream = Downstream::new(7);
        let report = Feedback {
            rate: true,
            validity: Some(Duration::from_secs(60)),
            ..asks(10, 1)
        };
        downstream.learn(Mono(0), hop(1), report);
        // Three seconds' worth at once, of which four requests were saved up.
        let finishing = (0..34).filter(|_| downstream.admit(Mono(0), hop(1), Class::Finishing));
        assert_eq!(finishing.count(), 34);
        assert!(!downstream.admit(Mono(0).plus_secs(2), hop(1), Class::New));
        assert!(downstream.admit(Mono(0).plus_secs(4), hop(1), Class::New));
    }

    #[test]
    fn an_algorithm_that_is_not_known_asks_for_nothing() {
        let mut downstream = Downstream::new(7);
        let mut feedback = asks(100, 1);
        feedback.note(b"oc-algo", Some(b"\"window\""));
        downstream.learn(Mono(0), hop(1), feedback);
        assert!(downstream.is_empty());
        feedback.note(b"oc-algo", Some(b"rate"));
        assert!(
            feedback.rate && !feedback.foreign,
            "without quotes it is understood"
        );
    }

    #[test]
    fn the_table_is_bounded() {
        let mut downstream = Downstream::new(7);
        for port in 1..5000 {
            downstream.learn(Mono(u64::from(port)), hop(port), asks(50, 1));
        }
        assert_eq!(downstream.len(), MAX_HOPS);
    }

    #[test]
    fn parameters_are_read_and_malformed_ones_are_absent() {
        let mut feedback = Feedback::default();
        feedback.note(b"oc", Some(b"20"));
        feedback.note(b"OC-Algo", Some(b"\"loss\""));
        feedback.note(b"oc-validity", Some(b"1000"));
        feedback.note(b"oc-seq", Some(b"1282321615.782"));
        let expected = Feedback {
            oc: Some(20),
            rate: false,
            foreign: false,
            validity: Some(Duration::from_secs(1)),
            sequence: Some((1_282_321_615, 782)),
        };
        assert_eq!(feedback, expected);
        feedback.note(b"oc", Some(b"-1"));
        feedback.note(b"oc-seq", Some(b"9999999999999999999999"));
        assert_eq!((feedback.oc, feedback.sequence), (None, None));
    }
}
