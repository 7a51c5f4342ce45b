//! The few statistics that a benchmark of ratios needs.
//!
//! Absolute rates move by 10 to 25 % with what else a machine does; the ratio of two servers
//! measured seconds apart moves much less. So ratios are taken within a round, and the rounds are
//! summarised by median and spread.

use serde::Serialize;

/// Median and spread of one quantity over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The middle value (the mean of the two middle ones).
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// How many rounds.
    pub rounds: usize,
}

impl Summary {
    /// Summarises values; `None` without any. Values that are not numbers are left out.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Summary> {
        let mut sorted: Vec<f64> = values
            .into_iter()
            .filter(|value| value.is_finite())
            .collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        };
        Some(Summary {
            median,
            min,
            max,
            rounds: sorted.len(),
        })
    }

    /// Spread as a fraction of the median: (max - min) / median; 0 for a median of 0.
    pub fn spread(&self) -> f64 {
        if self.median == 0.0 {
            0.0
        } else {
            (self.max - self.min) / self.median
        }
    }
}

/// Ratios of two series, round by round; rounds that either lacks are left out. Both are `(round,
/// value)`.
pub fn ratios(numerators: &[(u32, f64)], denominators: &[(u32, f64)]) -> Vec<f64> {
    let denominator = |round| denominators.iter().find(|(other, _)| *other == round);
    numerators
        .iter()
        .filter_map(|(round, value)| denominator(*round).map(|(_, other)| value / other))
        .filter(|ratio| ratio.is_finite())
        .collect()
}

/// The order of `sides` in a round: forwards, then backwards, and so on, starting one further each
/// second round. So no side always follows the same side or always comes first.
pub fn order(sides: usize, round: u32) -> Vec<usize> {
    let shift = usize::try_from(round / 2).unwrap_or(0);
    let mut order: Vec<usize> = (0..sides)
        .map(|side| (side + shift) % sides.max(1))
        .collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_ones() {
        let summary = Summary::of([4.0, 1.0, 3.0, 2.0]).expect("values");
        assert_eq!(
            (summary.median, summary.min, summary.max, summary.rounds),
            (2.5, 1.0, 4.0, 4)
        );
        assert!((summary.spread() - 1.2).abs() < 1e-9);
        assert_eq!(
            Summary::of([7.0]).map(|one| (one.median, one.spread())),
            Some((7.0, 0.0))
        );
    }

    #[test]
    fn nan_does_not_count() {
        assert_eq!(Summary::of([]), None);
        assert_eq!(Summary::of([f64::NAN, f64::INFINITY]), None);
        assert_eq!(Summary::of([f64::NAN, 2.0]).map(|one| one.rounds), Some(1));
        assert_eq!(Summary::of([0.0, 0.0]).map(|one| one.spread()), Some(0.0));
    }

    #[test]
    fn ratios_pair_the_rounds_and_skip_what_is_missing() {
        let a = [(0, 10.0), (1, 20.0), (3, 5.0)];
        let b = [(0, 5.0), (2, 1.0), (3, 0.0), (1, 10.0)];
        assert_eq!(ratios(&a, &b), [2.0, 2.0]);
        assert_eq!(ratios(&a, &[]), [0.0; 0]);
    }

    #[test]
    fn everybody_has_a_turn_and_the_order_is_swapped_each_round() {
        assert_eq!(order(2, 0), [0, 1]);
        assert_eq!(order(2, 1), [1, 0]);
        assert_eq!(order(3, 2), [1, 2, 0]);
        assert_eq!(order(3, 3), [0, 2, 1]);
        for round in 0..8 {
            let mut all = order(5, round);
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4]);
        }
        let first: Vec<usize> = (0..4).map(|round| order(2, round)[0]).collect();
        assert_eq!(first, [0, 1, 1, 0]);
    }
}
