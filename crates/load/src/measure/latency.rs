//! Latencies by percentile.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Latencies of one thread: an HDR histogram from 100 ns to a minute, three significant digits.
#[derive(Clone, Debug)]
pub struct Latency {
    histogram: Histogram<u64>,
}

/// Percentiles in microseconds; `None` where fewer than ten measurements lie beyond one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LatencyReport {
    /// Measurements taken.
    pub count: u64,
    /// Smallest.
    pub min_us: f64,
    /// Arithmetic mean.
    pub mean_us: f64,
    /// Half of all are at or below it.
    pub p50_us: Option<f64>,
    /// 90 %.
    pub p90_us: Option<f64>,
    /// 99 %.
    pub p99_us: Option<f64>,
    /// 99.9 %.
    pub p999_us: Option<f64>,
    /// 99.99 %.
    pub p9999_us: Option<f64>,
    /// Largest.
    pub max_us: f64,
}

/// Measurements that must lie beyond a percentile.
const MIN_BEYOND: f64 = 10.0;

impl Latency {
    const LOWEST_NS: u64 = 100;
    const HIGHEST_NS: u64 = 60_000_000_000;

    /// Empty. Allocates all it will ever need (about 240 KiB).
    #[must_use]
    pub fn new() -> Latency {
        let histogram = Histogram::new_with_bounds(Latency::LOWEST_NS, Latency::HIGHEST_NS, 3)
            .expect("the bounds are constants that the histogram accepts");
        Latency { histogram }
    }

    /// Takes one measurement; beyond a minute it counts as a minute.
    pub fn record_ns(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
    }

    /// Adds the measurements of another thread.
    pub fn merge(&mut self, other: &Latency) {
        self.histogram
            .add(&other.histogram)
            .expect("histograms with the same bounds add up");
    }

    /// Forgets everything, for the end of a warm-up.
    pub fn clear(&mut self) {
        self.histogram.clear();
    }

    /// The value in microseconds that `percentile` (0 to 100) of all measurements do not exceed. `None` if fewer than
    /// ten measurements exceed it, because the percentile would then be random.
    #[must_use]
    pub fn percentile_us(&self, percentile: f64) -> Option<f64> {
        let beyond = self.histogram.len() as f64 * (100.0 - percentile) / 100.0;
        // The small addition makes whole numbers whole again after rounding.
        (beyond + 1e-6 >= MIN_BEYOND)
            .then(|| self.histogram.value_at_percentile(percentile) as f64 / 1e3)
    }

    /// Measurements up to this many nanoseconds.
    #[must_use]
    pub fn count_up_to(&self, ns: u64) -> u64 {
        self.histogram.count_between(0, ns)
    }

    /// Share of measurements, 0 to 1, above `limit`.
    #[must_use]
    pub fn share_above(&self, limit: Duration) -> f64 {
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let all = self.histogram.len();
        if all == 0 || limit >= Latency::HIGHEST_NS {
            return 0.0;
        }
        1.0 - self.histogram.count_between(0, limit) as f64 / all as f64
    }

    /// All percentiles at once.
    #[must_use]
    pub fn report(&self) -> LatencyReport {
        if self.histogram.is_empty() {
            return LatencyReport::default();
        }
        LatencyReport {
            count: self.histogram.len(),
            min_us: self.histogram.min() as f64 / 1e3,
            mean_us: self.histogram.mean() / 1e3,
            p50_us: self.percentile_us(50.0),
            p90_us: self.percentile_us(90.0),
            p99_us: self.percentile_us(99.0),
            p999_us: self.percentile_us(99.9),
            p9999_us: self.percentile_us(99.99),
            max_us: self.histogram.max() as f64 / 1e3,
        }
    }
}

impl Default for Latency {
    fn default() -> Latency {
        Latency::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_thousandth() {
        let mut latency = Latency::new();
        for us in 1..=10_000u64 {
            latency.record_ns(us * 1000);
        }
        let report = latency.report();
        for (value, expected) in [
            (report.p50_us.unwrap(), 5000.0),
            (report.p99_us.unwrap(), 9900.0),
            (report.p999_us.unwrap(), 9990.0),
            (report.max_us, 10_000.0),
        ] {
            assert!((value / expected - 1.0).abs() < 2e-3, "{value} {expected}");
        }
        assert_eq!(report.p9999_us, None);
    }

    #[test]
    fn a_percentile_has_ten_measurements_beyond_it_or_is_none() {
        for (count, percentile) in [
            (20, 50.0),
            (100, 90.0),
            (1000, 99.0),
            (10_000, 99.9),
            (100_000, 99.99),
        ] {
            let mut latency = Latency::new();
            for _ in 1..count {
                latency.record_ns(5_000);
            }
            assert_eq!(latency.percentile_us(percentile), None, "{count}");
            latency.record_ns(5_000);
            assert!(latency.percentile_us(percentile).is_some(), "{count}");
        }
    }

    #[test]
    fn threads_add_up() {
        let (mut a, mut b) = (Latency::new(), Latency::new());
        a.record_ns(1_000);
        b.record_ns(3_000);
        a.merge(&b);
        assert_eq!(a.report().count, 2);
        assert!((a.share_above(Duration::from_micros(2)) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn nothing_measured_is_all_zero() {
        assert_eq!(Latency::new().report(), LatencyReport::default());
    }
}
