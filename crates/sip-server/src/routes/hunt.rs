//! The order in which the trunks of a route are tried.

use sip::HashKey;

use super::config::Hunt;

/// A trunk that may be tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) trunk: u16,
    pub(super) priority: u16,
    pub(super) weight: u16,
    /// A hash of its name.
    pub(super) name: u64,
}

/// Every server must compute the same hash, so the key is not secret. A caller can choose a trunk by its Call-ID, but
/// only among the trunks of a route that it may use.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    HashKey::new(*b"hairpin trunks 1").mac(bytes)
}

/// Spreads the bits of a number: the finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
pub(super) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// An exponentially distributed value with the weight as its rate (weighted rendezvous hashing). Each of several values
/// is the smallest with a probability in proportion to its weight.
fn waiting_time(number: u64, weight: u16) -> f64 {
    let uniform = ((number >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    -uniform.ln() / f64::from(weight.max(1))
}

/// Sorts candidates by priority, then as the route hunts. They must be in the order of the route.
pub(super) fn sort(candidates: &mut [Candidate], hunt: Hunt, draw: u64, call: u64) {
    let number = |candidate: &Candidate| match hunt {
        Hunt::Order => None,
        Hunt::Weight => Some(mix(draw ^ candidate.name)),
        Hunt::Hash => Some(mix(call ^ candidate.name)),
    };
    let key = |candidate: &Candidate| {
        number(candidate).map_or(0.0, |number| waiting_time(number, candidate.weight))
    };
    // A stable sort keeps the order of the route for equal candidates.
    candidates.sort_by(|one, other| {
        let by_priority = one.priority.cmp(&other.priority);
        by_priority.then_with(|| key(one).total_cmp(&key(other)))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(weights: &[u16]) -> Vec<Candidate> {
        let of = |(trunk, weight): (u16, &u16)| Candidate {
            trunk,
            priority: 0,
            weight: *weight,
            name: hash(format!("trunk {trunk}").as_bytes()),
        };
        (0..).zip(weights).map(of).collect()
    }

    fn order(mut candidates: Vec<Candidate>, hunt: Hunt, draw: u64, call: u64) -> Vec<u16> {
        sort(&mut candidates, hunt, draw, call);
        candidates.iter().map(|it| it.trunk).collect()
    }

    #[test]
    fn each_comes_first_as_often_as_its_weight_says() {
        let weights = [1, 2, 5];
        for hunt in [Hunt::Weight, Hunt::Hash] {
            let mut firsts = [0_u32; 3];
            for number in 0..80_000 {
                let first = order(candidates(&weights), hunt, mix(number), mix(number))[0];
                firsts[usize::from(first)] += 1;
            }
            for (first, weight) in firsts.iter().zip(weights) {
                let expected = 10_000 * u32::from(weight);
                assert!(first.abs_diff(expected) < 500, "{hunt:?}: {firsts:?}");
            }
        }
    }

    #[test]
    fn only_the_calls_of_a_removed_trunk_move() {
        for number in 0..10_000 {
            let call = mix(number);
            let all = order(candidates(&[1, 1, 1, 1]), Hunt::Hash, 0, call);
            let mut fewer = candidates(&[1, 1, 1, 1]);
            fewer.remove(2);
            let left = order(fewer, Hunt::Hash, 7, call);
            let expected: Vec<u16> = all.into_iter().filter(|it| *it != 2).collect();
            assert_eq!(left, expected);
        }
    }

    #[test]
    fn priority_comes_before_weight_and_order_is_that_of_the_route() {
        let mut all = candidates(&[1, 1000, 1]);
        all[0].priority = 1;
        assert_eq!(order(all.clone(), Hunt::Order, 3, 4), [1, 2, 0]);
        for draw in 0..100 {
            let order = order(all.clone(), Hunt::Weight, mix(draw), 0);
            assert_eq!(order[2], 0, "{order:?}");
        }
    }
}
