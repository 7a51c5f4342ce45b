//! A limit of error responses for each source address over UDP that is not verified.
//!
//! An attacker with a forged source address makes the server send its error responses to the victim. So each source
//! gets a limited number per second. An authenticated request gives its source one back, because the nonce in it has
//! verified the address: many clients behind one NAT are served.
//!
//! The counts are in two rows of cells, under a key that changes every second. So memory is bounded, and an attacker
//! cannot choose addresses that collide. The smaller of the two cells counts. A source is limited at the configured
//! number plus four times the average of all cells. In a flood from random sources all cells fill evenly, so other
//! sources are still served.

use std::net::IpAddr;

use super::hash::KeyedHash;
use super::{DropReason, Server};
use crate::random::Random;
use crate::{ClientPath, Mono, Transport};

/// Cells of a row: 64 KiB for both rows.
const CELLS: usize = 8192;

/// The average count of a cell is added to the limit this many times.
const OVER_AVERAGE: u32 = 4;

/// The counts of one second.
#[derive(Debug)]
pub(super) struct Unverified {
    second: u64,
    /// Under the key of this second.
    hash: KeyedHash,
    /// Of all sources together.
    total: u32,
    /// Both rows. Empty until there is something to count.
    cells: Box<[u32]>,
}

impl Default for Unverified {
    fn default() -> Unverified {
        Unverified {
            second: 0,
            hash: KeyedHash::new(0, 0),
            total: 0,
            cells: Box::default(),
        }
    }
}

impl Unverified {
    /// Takes one response out of a source's budget. `false` if nothing is left of it.
    fn take(&mut self, source: IpAddr, budget: u32, now: Mono, random: &mut Random) -> bool {
        self.begin(now, random);
        // Places are below CELLS, the number of cells.
        let places = self.places(source);
        let used = places.map(|place| self.cells[place]);
        let average = self.total / CELLS as u32;
        if used[0].min(used[1]) >= budget.saturating_add(average.saturating_mul(OVER_AVERAGE)) {
            return false;
        }
        self.total = self.total.saturating_add(1);
        for place in places {
            self.cells[place] = self.cells[place].saturating_add(1);
        }
        true
    }

    /// The source has proven that it gets responses.
    fn refund(&mut self, source: IpAddr, now: Mono) {
        if self.second != second_of(now) || self.cells.is_empty() {
            return;
        }
        self.total = self.total.saturating_sub(1);
        for place in self.places(source) {
            self.cells[place] = self.cells[place].saturating_sub(1);
        }
    }

    /// Begins to count again if a second has passed.
    fn begin(&mut self, now: Mono, random: &mut Random) {
        if self.cells.is_empty() {
            self.cells = vec![0; 2 * CELLS].into();
        } else if self.second == second_of(now) {
            return;
        } else {
            self.cells.fill(0);
        }
        self.second = second_of(now);
        self.hash = KeyedHash::new(random.word(), random.word());
        self.total = 0;
    }

    /// The cells of a source: one in each row.
    fn places(&self, source: IpAddr) -> [usize; 2] {
        // A subscriber of IPv6 has a /64 (RFC 6177 §2).
        let source = match source {
            IpAddr::V4(v4) => 1 << 63 | u64::from(v4.to_bits()),
            IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64,
        };
        let hash = self.hash.bytes(&source.to_ne_bytes());
        let (low, high) = (hash as usize, (hash >> 32) as usize);
        [low % CELLS, CELLS + high % CELLS]
    }
}

const fn second_of(now: Mono) -> u64 {
    now.0 / 1_000_000_000
}

impl Server {
    /// Takes an error response, or a move to another engine, out of the budget of a client that has proven nothing.
    ///
    /// # Errors
    /// The budget of this second is used.
    pub(super) fn take_unverified(
        &mut self,
        now: Mono,
        path: &ClientPath,
    ) -> Result<(), DropReason> {
        let budget = self.config.unverified_responses;
        let source = path.five_tuple.remote.ip();
        // Nobody else is at a loopback address, and every other transport has proven the address.
        if path.five_tuple.transport != Transport::Udp || source.is_loopback() {
            return Ok(());
        }
        let is_left = self.unverified.take(source, budget, now, &mut self.random);
        is_left.then_some(()).ok_or(DropReason::UnverifiedOverLimit)
    }

    /// The client has proven its address.
    pub(super) fn refund_unverified(&mut self, now: Mono, path: &ClientPath) {
        if path.five_tuple.transport == Transport::Udp {
            self.unverified.refund(path.five_tuple.remote.ip(), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn ip(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn a_source_has_its_budget_each_second_and_its_64_is_one_source() {
        let (mut unverified, mut random) = (Unverified::default(), Random::new([7; 32]));
        let mut passes = |source: &str, at: u64, times: usize| {
            let source = source.parse().unwrap();
            let took = (0..times).filter(|_| unverified.take(source, 10, Mono(at), &mut random));
            took.count()
        };
        assert_eq!(passes("192.0.2.1", 5 * SECOND, 30), 10);
        assert_eq!(passes("192.0.2.2", 5 * SECOND, 30), 10);
        assert_eq!(passes("192.0.2.1", 6 * SECOND - 1, 30), 0);
        assert_eq!(passes("192.0.2.1", 6 * SECOND, 30), 10);
        assert_eq!(passes("2001:db8::1", 6 * SECOND, 6), 6);
        assert_eq!(passes("2001:db8::2", 6 * SECOND, 30), 4);
        assert_eq!(passes("2001:db8:0:1::2", 6 * SECOND, 30), 10);
    }

    #[test]
    fn a_source_that_proves_its_address_gets_one_response_back() {
        let (mut unverified, mut random) = (Unverified::default(), Random::new([7; 32]));
        for _ in 0..1000 {
            assert!(unverified.take(ip(1), 10, Mono(SECOND), &mut random));
            unverified.refund(ip(1), Mono(SECOND));
        }
        unverified.refund(ip(1), Mono(SECOND));
        let all = (0..30).filter(|_| unverified.take(ip(1), 10, Mono(SECOND), &mut random));
        assert_eq!(all.count(), 10, "nobody gets more than it took");
    }

    #[test]
    fn a_flood_with_random_sources_leaves_others_their_budget() {
        let (mut unverified, mut random) = (Unverified::default(), Random::new([7; 32]));
        let mut served = 0;
        for number in 0..1_000_000 {
            let now = Mono(SECOND + number * 5_000);
            unverified.take(ip(0x0a00_0000 + number as u32), 10, now, &mut random);
            if number % 1000 == 999 {
                let honest = ip(0xc000_0200 + number as u32 / 1000);
                served += usize::from(unverified.take(honest, 10, now, &mut random));
            }
        }
        assert!(served >= 990, "{served} of 1000");
        // One of them sends more than its part.
        let late = Mono(SECOND + 4_999_000_000);
        let one = (0..100_000).filter(|_| unverified.take(ip(9), 10, late, &mut random));
        let one = one.count();
        assert!(one < 1000, "{one}");
    }
}
