//! The limit of unknown names that sources may ask a store for.
//!
//! Each query takes one unit from its source. The unit is returned if the user exists or the query fails. So known
//! users do not count, and a source that guesses names has [`PER_SOURCE`] per second. All sources share
//! [`TOTAL_PER_S`]: above it, only sources with no units taken are served. The table has a fixed size; sources with the
//! same table entry share their units.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::Instant;

/// Unknown names per second that one source may ask for: an IPv4 address or an IPv6 /64.
pub const PER_SOURCE: u32 = 20;
/// Unknown names that one source may ask for at once. Look-ups that are in progress for users behind this address also
/// count until they have a result.
pub const PER_SOURCE_BURST: u32 = 512;
/// Unknown names per second of all sources.
pub const TOTAL_PER_S: u32 = 1_000;

const PLACE_COUNT: usize = 4_096;

/// Units taken, in thousandths, and the time of this value.
#[derive(Clone, Copy, Debug)]
struct TakenUnits {
    thousandths: u64,
    at: Instant,
}

impl TakenUnits {
    fn at(&mut self, now: Instant, per_second: u32) -> u64 {
        let passed = now.saturating_duration_since(self.at).as_millis();
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        if passed > 0 {
            let gone = passed.saturating_mul(u64::from(per_second));
            self.thousandths = self.thousandths.saturating_sub(gone);
            self.at = now;
        }
        self.thousandths
    }
}

/// The units of all sources.
#[derive(Debug)]
pub struct Budget {
    places: Box<[TakenUnits]>,
    all: TakenUnits,
    hash: RandomState,
}

impl Budget {
    /// Without units taken.
    #[must_use]
    pub fn new(now: Instant) -> Budget {
        let none = TakenUnits {
            thousandths: 0,
            at: now,
        };
        Budget {
            places: vec![none; PLACE_COUNT].into(),
            all: none,
            hash: RandomState::new(),
        }
    }

    fn place(&self, source: IpAddr) -> usize {
        let prefix = match source.to_canonical() {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            // The /64, and a bit that no IPv4 address has.
            IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64 | 1 << 63,
        };
        self.hash.hash_one(prefix) as usize % PLACE_COUNT
    }

    /// Takes one unit; returns `false` if none is left.
    pub fn spend(&mut self, source: IpAddr, now: Instant) -> bool {
        let all = self.all.at(now, TOTAL_PER_S);
        let place = self.place(source);
        let own = &mut self.places[place];
        let spent = own.at(now, PER_SOURCE);
        let is_exhausted = all + 1_000 > u64::from(TOTAL_PER_S) * 1_000;
        if spent + 1_000 > u64::from(PER_SOURCE_BURST) * 1_000 || is_exhausted && spent > 0 {
            return false;
        }
        own.thousandths += 1_000;
        self.all.thousandths += 1_000;
        true
    }

    /// Gives one unit back: the name was known.
    pub fn refund(&mut self, source: IpAddr) {
        let place = self.place(source);
        let own = &mut self.places[place].thousandths;
        *own = own.saturating_sub(1_000);
        self.all.thousandths = self.all.thousandths.saturating_sub(1_000);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_source_that_guesses_has_a_limit_and_one_with_users_has_none() {
        let now = Instant::now();
        let mut budget = Budget::new(now);
        let (eve, ann) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let spent = (0..10_000).filter(|_| budget.spend(eve, now)).count();
        assert_eq!(spent, PER_SOURCE_BURST as usize);
        let second = now + Duration::from_secs(1);
        let spent = (0..10_000).filter(|_| budget.spend(eve, second)).count();
        assert_eq!(spent, PER_SOURCE as usize);
        for _ in 0..10_000 {
            assert!(budget.spend(ann, second));
            budget.refund(ann);
        }
    }

    #[test]
    fn when_all_have_guessed_too_much_who_has_not_is_served() {
        let now = Instant::now();
        let mut budget = Budget::new(now);
        let source = |n: u32| IpAddr::from(n.to_be_bytes());
        let spent = (0..4_000)
            .filter(|n| budget.spend(source(n % 4), now))
            .count();
        assert_eq!(spent, TOTAL_PER_S as usize);
        // All but those few whose place another source has.
        let served = (100..200).filter(|n| budget.spend(source(*n), now)).count();
        assert!(served >= 95, "{served}");
        let place = |ip: &str, budget: &Budget| budget.place(ip.parse().unwrap());
        assert_eq!(
            place("2001:db8::1", &budget),
            place("2001:db8::2:1", &budget)
        );
        assert_eq!(
            place("::ffff:192.0.2.1", &budget),
            place("192.0.2.1", &budget)
        );
    }
}
