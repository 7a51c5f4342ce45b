//! The search for the highest rate that a server holds with little loss.

use super::error::SideError;
use super::packets::Point;

/// The greatest loss with which a rate counts as held.
pub(crate) const MAX_LOSS: f64 = 0.01;
/// Rates that are tried below the first one that was not held. Each is at most `LOWER_FACTOR` of the one before, and at
/// least half of it.
const LOWER_TRIES: u32 = 16;
const LOWER_FACTOR: f64 = 0.97;
/// Rates that are tried above the first one, if that was held. Each is `HIGHER_FACTOR` of the best one so far.
const HIGHER_TRIES: u32 = 3;
const HIGHER_FACTOR: f64 = 1.04;
/// A rate that was held and the lowest one that was not may differ by this factor. A short overload can lower the rate
/// to half: the result for REGISTER was 14k/s once, and 24k/s in the next round. Then the rates between them are tried,
/// each the geometric mean of both. Four tries reduce a factor of 2 to 1.05.
const MAX_GAP: f64 = 1.1;
const GAP_TRIES: u32 = 4;

/// What a search found.
#[derive(Debug)]
pub(super) enum Held {
    /// The measurement at the highest rate that was held.
    Best(Point),
    /// No rate was held, down to this one.
    Nothing { lowest: f64 },
}

/// The highest rate near `from` that is held. `measure` offers a rate for as long as the server must hold it.
pub(super) fn search(
    from: f64,
    measure: &mut impl FnMut(f64) -> Result<Point, SideError>,
) -> Result<Held, SideError> {
    let mut rate = from;
    let mut lowest_lost = None;
    for _ in 0..LOWER_TRIES {
        let point = measure(rate)?;
        if is_held(&point) {
            let best = match lowest_lost {
                None => raise(point, measure),
                Some(lost) => close_gap(point, lost, measure),
            };
            return best.map(Held::Best);
        }
        lowest_lost = Some(rate);
        // The goodput shows how far to lower the rate.
        rate = (rate * LOWER_FACTOR).min(point.delivered).max(rate / 2.0);
    }
    Ok(Held::Nothing { lowest: rate })
}

fn is_held(point: &Point) -> bool {
    point.loss <= MAX_LOSS
}

/// Tries a little more, as long as that is held, too.
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

/// Tries rates between `best` and `lost`, a rate that was not held, until they differ little.
fn close_gap(
    mut best: Point,
    mut lost: f64,
    measure: &mut impl FnMut(f64) -> Result<Point, SideError>,
) -> Result<Point, SideError> {
    for _ in 0..GAP_TRIES {
        if lost <= best.offered * MAX_GAP {
            break;
        }
        let rate = (lost * best.offered).sqrt();
        let point = measure(rate)?;
        if is_held(&point) && point.delivered > best.delivered {
            best = point;
        } else {
            lost = rate;
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches from a rate, in thousands. `goodput` is the server: offered to delivered. Returns the result and the
    /// rates that were tried.
    fn run(from: f64, mut goodput: impl FnMut(f64) -> f64) -> (Option<f64>, Vec<f64>) {
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
        let best = match search(from, &mut measure) {
            Ok(Held::Best(point)) => Some(point.offered.round()),
            _ => None,
        };
        (best, tried)
    }

    #[test]
    fn a_rate_that_is_held_is_raised_by_three_steps_at_most() {
        let (best, tried) = run(100.0, |rate| rate);
        assert_eq!(
            (best, tried),
            (Some(112.0), vec![100.0, 104.0, 108.0, 112.0])
        );
        let (best, tried) = run(100.0, |rate| rate.min(105.0));
        assert_eq!((best, tried), (Some(104.0), vec![100.0, 104.0, 108.0]));
    }

    #[test]
    fn a_rate_that_is_not_held_is_lowered_to_its_goodput() {
        let (best, tried) = run(120.0, |rate| rate.min(115.0));
        assert_eq!((best, tried), (Some(115.0), vec![120.0, 115.0]));
        let (best, tried) = run(100.0, |rate| rate * 0.9);
        assert_eq!((best, tried.len()), (None, 16));
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
            (Some(220.0), vec![240.0, 120.0, 170.0, 202.0, 220.0])
        );
    }

    #[test]
    fn the_gap_is_closed_from_both_sides() {
        let goodput = |rate: f64| if rate > 150.0 { 90.0 } else { rate };
        let (best, tried) = run(200.0, goodput);
        assert_eq!(
            (best, tried),
            (Some(141.0), vec![200.0, 100.0, 141.0, 168.0, 154.0])
        );
    }
}
