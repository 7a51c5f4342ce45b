//! The search for the highest rate that a server holds with little loss.

use super::error::SideError;
use super::packets::Point;

/// The greatest loss with which a rate counts as held.
pub(crate) const MAX_LOSS: f64 = 0.01;
/// A rate counts as held only if the goodput is at least this share of it. Without loss it is lower if the generator
/// fell behind its schedule, or if the server handled much after the last send. For example, calls were offered at 9,274/s.
/// All were answered, but only 6,810 per second. At 8,347/s, all were answered in time.
pub(crate) const MIN_DELIVERED: f64 = 0.9;
/// The maximum number of rates until one is held, including the first. Each is at most `LOWER_FACTOR` of the one before, and at
/// least half of it.
const LOWER_TRIES: u32 = 16;
const LOWER_FACTOR: f64 = 0.97;
/// Rates that are tried above the first one, if that was held. Each is `HIGHER_FACTOR` of the best one so far.
const HIGHER_TRIES: u32 = 3;
const HIGHER_FACTOR: f64 = 1.04;
/// The search ends if the lowest rate that was not held is at most this factor above the best. Otherwise it tries their
/// geometric mean. Three tries reduce a factor of 2 to 1.09; one more is spare. Without this, a short overload lowered
/// the result for REGISTER from about 23k/s to 14k/s.
const MAX_GAP: f64 = 1.1;
const GAP_TRIES: u32 = 4;

/// What a search found.
#[derive(Debug)]
pub(super) enum Held {
    /// The measurement at the highest rate that was held.
    Best(Point),
    /// No rate was held. This was the lowest one that was tried.
    Nothing { lowest: f64 },
}

/// The highest rate near `from` that is held. `measure` offers a rate for as long as the server must hold it.
pub(super) fn search(
    from: f64,
    measure: &mut impl FnMut(f64) -> Result<Point, SideError>,
) -> Result<Held, SideError> {
    let mut rate = from;
    let mut not_held = from;
    for tries in 0..LOWER_TRIES {
        let point = measure(rate)?;
        if is_held(&point) {
            let best = match tries {
                0 => raise(point, measure),
                _ => close_gap(point, not_held, measure),
            };
            return best.map(Held::Best);
        }
        not_held = rate;
        // The goodput shows how far to lower the rate.
        rate = (rate * LOWER_FACTOR).min(point.delivered).max(rate / 2.0);
    }
    Ok(Held::Nothing { lowest: not_held })
}

fn is_held(point: &Point) -> bool {
    point.loss <= MAX_LOSS && point.delivered >= point.offered * MIN_DELIVERED
}

/// Tries up to `HIGHER_TRIES` higher rates. Stops when one is not held or has no more goodput.
fn raise(
    mut best: Point,
    measure: &mut impl FnMut(f64) -> Result<Point, SideError>,
) -> Result<Point, SideError> {
    for _ in 0..HIGHER_TRIES {
        let point = measure(best.offered * HIGHER_FACTOR)?;
        if !is_held(&point) || point.delivered <= best.delivered {
            break;
        }
        best = point;
    }
    Ok(best)
}

/// Tries at most `GAP_TRIES` rates between `best` and `upper`, until they differ by at most [`MAX_GAP`]. A rate without
/// more goodput becomes the new `upper`.
fn close_gap(
    mut best: Point,
    mut upper: f64,
    measure: &mut impl FnMut(f64) -> Result<Point, SideError>,
) -> Result<Point, SideError> {
    for _ in 0..GAP_TRIES {
        if upper <= best.offered * MAX_GAP {
            break;
        }
        let rate = (upper * best.offered).sqrt();
        let point = measure(rate)?;
        if is_held(&point) && point.delivered > best.delivered {
            best = point;
        } else {
            upper = rate;
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches from a rate. `goodput` returns what the server delivers at an offered rate. Returns the result, or the
    /// lowest rate that was tried, and all rates that were tried.
    fn run(from: f64, mut goodput: impl FnMut(f64) -> f64) -> (Result<f64, f64>, Vec<f64>) {
        let mut tried = Vec::new();
        let mut measure = |rate: f64| {
            tried.push(rate.round());
            let delivered = goodput(rate);
            Ok(Point {
                offered: rate,
                delivered,
                loss: 1.0 - delivered / rate,
                ..Point::default()
            })
        };
        let best = match search(from, &mut measure).expect("a result") {
            Held::Best(point) => Ok(point.offered.round()),
            Held::Nothing { lowest } => Err(lowest.round()),
        };
        (best, tried)
    }

    #[test]
    fn a_rate_that_is_held_is_raised_by_three_steps_at_most() {
        let (best, tried) = run(100.0, |rate| rate);
        assert_eq!((best, tried), (Ok(112.0), vec![100.0, 104.0, 108.0, 112.0]));
        let (best, tried) = run(100.0, |rate| rate.min(105.0));
        assert_eq!((best, tried), (Ok(104.0), vec![100.0, 104.0, 108.0]));
    }

    #[test]
    fn a_rate_that_is_not_held_is_lowered_to_its_goodput() {
        let (best, tried) = run(120.0, |rate| rate.min(115.0));
        assert_eq!((best, tried), (Ok(115.0), vec![120.0, 115.0]));
        let (best, tried) = run(100.0, |rate| rate * 0.9);
        assert_eq!(
            (best, tried.len()),
            (Err(*tried.last().expect("a try")), 16)
        );
    }

    #[test]
    fn a_short_overload_does_not_lower_the_result() {
        let mut attempts = 0;
        let (best, tried) = run(240.0, |rate| {
            attempts += 1;
            if attempts == 1 {
                100.0
            } else {
                rate.min(230.0)
            }
        });
        // 240 was not held. The result is at most a tenth below it.
        assert_eq!(
            (best, tried),
            (Ok(220.0), vec![240.0, 120.0, 170.0, 202.0, 220.0])
        );
    }

    #[test]
    fn the_gap_is_closed_from_both_sides() {
        let goodput = |rate: f64| if rate > 150.0 { 90.0 } else { rate };
        let (best, tried) = run(200.0, goodput);
        assert_eq!(
            (best, tried),
            (Ok(141.0), vec![200.0, 100.0, 141.0, 168.0, 154.0])
        );
    }

    #[test]
    fn a_rate_is_not_held_if_what_was_sent_arrives_much_later() {
        let late = |offered: f64, delivered: f64| Point {
            offered,
            delivered,
            ..Point::default()
        };
        assert!(is_held(&late(100.0, 91.0)));
        assert!(!is_held(&late(9_274.0, 6_810.0)));
    }
}
