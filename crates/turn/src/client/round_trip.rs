//! The retransmission timeout, from measured round trips.

use std::time::Duration;

use crate::Mono;

/// RFC 8489 §6.2.1: an estimate is stale when no transaction completed for ten minutes.
const STALE_AFTER_S: u64 = 600;
/// RFC 6298 §2.4 allows an upper bound of at least 60 seconds.
const MAX_RTO: Duration = Duration::from_secs(60);

/// A smoothed round trip time to one server, as RFC 6298 §2 computes it, without its rounding to whole seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundTrip {
    smoothed_ns: u64,
    variation_ns: u64,
    measured: Option<Mono>,
}

impl RoundTrip {
    /// Updates the estimate with the round trip of a transaction. Karn's algorithm: call it only for a transaction
    /// without retransmissions.
    pub(super) fn sample(&mut self, now: Mono, round_trip: Duration) {
        let sample = u64::try_from(round_trip.as_nanos())
            .unwrap_or(u64::MAX / 8)
            .min(u64::MAX / 8);
        if self.is_fresh(now) {
            // RFC 6298 §2.3: beta = 1/4 first, with the old average, then alpha = 1/8.
            let deviation = self.smoothed_ns.abs_diff(sample);
            self.variation_ns = (3 * self.variation_ns + deviation) / 4;
            self.smoothed_ns = (7 * self.smoothed_ns + sample) / 8;
        } else {
            self.smoothed_ns = sample;
            self.variation_ns = sample / 2;
        }
        self.measured = Some(now);
    }

    /// The timeout of a transaction that starts now: never below `floor`.
    pub(super) fn timeout(&self, now: Mono, floor: Duration) -> Duration {
        if !self.is_fresh(now) {
            return floor;
        }
        let estimate = self.smoothed_ns.saturating_add(4 * self.variation_ns);
        Duration::from_nanos(estimate).clamp(floor, MAX_RTO.max(floor))
    }

    fn is_fresh(&self, now: Mono) -> bool {
        self.measured
            .is_some_and(|at| now.since(at) <= Duration::from_secs(STALE_AFTER_S))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN_RTO: Duration = Duration::from_millis(500);

    fn at_s(seconds: u64) -> Mono {
        Mono::default().plus_secs(seconds)
    }

    #[test]
    fn a_short_path_keeps_the_configured_timeout() {
        let mut path = RoundTrip::default();
        assert_eq!(path.timeout(at_s(0), MIN_RTO), MIN_RTO);
        path.sample(at_s(1), Duration::from_millis(20));
        assert_eq!(path.timeout(at_s(1), MIN_RTO), MIN_RTO);
    }

    #[test]
    fn a_long_path_raises_the_timeout() {
        let mut path = RoundTrip::default();
        path.sample(at_s(1), Duration::from_millis(600));
        // RFC 6298 §2.2: R + 4 * R/2.
        assert_eq!(path.timeout(at_s(1), MIN_RTO), Duration::from_millis(1800));
        path.sample(at_s(2), Duration::from_millis(600));
        assert!(path.timeout(at_s(2), MIN_RTO) < Duration::from_millis(1800));
    }

    #[test]
    fn an_old_estimate_is_forgotten() {
        let mut path = RoundTrip::default();
        path.sample(at_s(1), Duration::from_millis(600));
        assert_eq!(path.timeout(at_s(602), MIN_RTO), MIN_RTO);
    }

    #[test]
    fn an_absurd_round_trip_does_not_overflow() {
        let mut path = RoundTrip::default();
        path.sample(at_s(1), Duration::MAX);
        path.sample(at_s(2), Duration::MAX);
        assert_eq!(path.timeout(at_s(2), MIN_RTO), MAX_RTO);
    }
}
