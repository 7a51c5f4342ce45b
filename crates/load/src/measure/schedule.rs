//! When each datagram of an open-loop run is due.
//!
//! A schedule is fixed before the run: a line of stages between which the rate changes linearly. The nth send has an
//! intended time whether or not the server, or this machine, keeps up; latency is measured from it.

use std::str::FromStr;
use std::time::Duration;

use super::text::{parse_duration, parse_number};

/// Sends per second: `1000`, `50k`, `50k/s`, `2.5M/s`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

/// Why a rate or a ramp could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseRateError {
    /// Not a number with an optional k, M or G and an optional /s.
    #[error("'{0}' is not a rate: write 1000, 50k/s or 2.5M/s")]
    Rate(String),
    /// Not stages of `time:rate` in rising order of time.
    #[error("'{0}' is not a ramp: write times and rates in rising order, such as 0:1k,30s:50k")]
    Ramp(String),
}

impl FromStr for Rate {
    type Err = ParseRateError;

    fn from_str(text: &str) -> Result<Rate, ParseRateError> {
        let error = || ParseRateError::Rate(text.to_owned());
        let number = text.strip_suffix("/s").unwrap_or(text);
        let value = parse_number(number).filter(|value| *value <= MAX_RATE);
        value.map(Rate).ok_or_else(error)
    }
}

/// More per second than any machine sends.
const MAX_RATE: f64 = 1e10;

/// From this time on, the rate moves linearly to that of the next stage; after the last one it stays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    /// Since the start of the run.
    pub at: Duration,
    /// The rate at that moment.
    pub rate: Rate,
}

/// When each send is due, and how many of them belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    stages: Vec<Stage>,
    /// Sends before each stage.
    before: Vec<f64>,
    burst: u64,
}

impl Schedule {
    /// The same rate forever.
    #[must_use]
    pub fn constant(rate: Rate) -> Schedule {
        Schedule::from_stages(vec![Stage {
            at: Duration::ZERO,
            rate,
        }])
    }

    /// Reads `0:1k,30s:50k,60s:50k`: times as [`parse_duration`] reads them, rates as [`Rate`].
    ///
    /// # Errors
    /// [`ParseRateError`].
    pub fn ramp(text: &str) -> Result<Schedule, ParseRateError> {
        let error = || ParseRateError::Ramp(text.to_owned());
        let mut stages: Vec<Stage> = Vec::new();
        for part in text.split(',') {
            let (at, rate) = part.trim().split_once(':').ok_or_else(error)?;
            let at = parse_duration(at).map_err(|_| error())?;
            let rate = rate.parse()?;
            if stages.last().is_some_and(|last| last.at >= at) {
                return Err(error());
            }
            stages.push(Stage { at, rate });
        }
        if stages.first().is_none_or(|first| !first.at.is_zero()) {
            return Err(error());
        }
        Ok(Schedule::from_stages(stages))
    }

    fn from_stages(stages: Vec<Stage>) -> Schedule {
        let mut before = vec![0.0];
        for pair in stages.windows(2) {
            let length = (pair[1].at - pair[0].at).as_secs_f64();
            let sends = (pair[0].rate.0 + pair[1].rate.0) / 2.0 * length;
            before.push(before[before.len() - 1] + sends);
        }
        Schedule {
            stages,
            before,
            burst: 1,
        }
    }

    /// Lets `burst` sends share one intended time, at the same average rate.
    #[must_use]
    pub fn with_burst(mut self, burst: u64) -> Schedule {
        self.burst = burst.max(1);
        self
    }

    /// How many sends share one intended time.
    #[must_use]
    pub fn burst(&self) -> u64 {
        self.burst
    }

    /// The same shape at `scale` times the rate.
    #[must_use]
    pub fn scaled(&self, scale: f64) -> Schedule {
        let stages = self
            .stages
            .iter()
            .map(|stage| Stage {
                at: stage.at,
                rate: Rate(stage.rate.0 * scale),
            })
            .collect();
        Schedule::from_stages(stages).with_burst(self.burst)
    }

    /// How many sends are due by `elapsed`: whole bursts.
    #[must_use]
    pub fn due(&self, elapsed: Duration) -> u64 {
        let time = elapsed.as_secs_f64();
        let stage = self.stages.partition_point(|stage| stage.at <= elapsed) - 1;
        let since = time - self.stages[stage].at.as_secs_f64();
        let (rate, slope) = self.line(stage);
        let sends = self.before[stage] + rate * since + slope * since * since / 2.0;
        // The first burst is due at time zero. The small addition makes whole numbers whole again after rounding.
        let bursts = (sends / self.burst as f64 + 1e-6).floor() as u64 + 1;
        if rate == 0.0 && slope == 0.0 && sends == 0.0 {
            return 0;
        }
        bursts * self.burst
    }

    /// When send `n` (from 0) is due; `None` if the rate is zero forever before that.
    #[must_use]
    pub fn intended(&self, n: u64) -> Option<Duration> {
        let sends = (n / self.burst * self.burst) as f64;
        let stage = self.before.partition_point(|&before| before <= sends) - 1;
        let (rate, slope) = self.line(stage);
        let more = sends - self.before[stage];
        let since = solve(rate, slope, more)?;
        Some(self.stages[stage].at + Duration::from_secs_f64(since))
    }

    /// Rate at the start of a stage, and its change per second.
    fn line(&self, stage: usize) -> (f64, f64) {
        let from = &self.stages[stage];
        match self.stages.get(stage + 1) {
            Some(to) => {
                let length = (to.at - from.at).as_secs_f64();
                (from.rate.0, (to.rate.0 - from.rate.0) / length)
            }
            None => (from.rate.0, 0.0),
        }
    }
}

/// The time after which `rate * t + slope * t^2 / 2` reaches `sends`.
fn solve(rate: f64, slope: f64, sends: f64) -> Option<f64> {
    if slope == 0.0 && rate > 0.0 {
        return Some(sends / rate);
    }
    if sends == 0.0 && (rate > 0.0 || slope > 0.0) {
        return Some(0.0);
    }
    let root = (rate * rate + 2.0 * slope * sends).max(0.0).sqrt();
    let time = 2.0 * sends / (rate + root);
    time.is_finite().then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rates_are_read_as_people_write_them() {
        for (text, value) in [("50k/s", 50e3), ("2.5M", 2.5e6), ("7", 7.0), ("0", 0.0)] {
            assert_eq!(text.parse(), Ok(Rate(value)));
        }
        for text in ["", "k", "-1", "fast", "1e99", "5 k m", "é"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_constant_rate_is_evenly_spaced() {
        let schedule = Schedule::constant(Rate(1000.0));
        assert_eq!(schedule.intended(0), Some(Duration::ZERO));
        assert_eq!(schedule.intended(1500), Some(Duration::from_millis(1500)));
        assert_eq!(schedule.due(Duration::ZERO), 1);
        assert_eq!(schedule.due(Duration::from_millis(10)), 11);
    }

    #[test]
    fn a_burst_shares_one_time() {
        let schedule = Schedule::constant(Rate(1000.0)).with_burst(10);
        assert_eq!(schedule.intended(9), Some(Duration::ZERO));
        assert_eq!(schedule.intended(10), Some(Duration::from_millis(10)));
        assert_eq!(schedule.due(Duration::from_millis(9)), 10);
        assert_eq!(schedule.due(Duration::from_millis(10)), 20);
    }

    #[test]
    fn a_ramp_is_read_and_followed() {
        let schedule = Schedule::ramp("0:0,10s:1k,20:1k").unwrap();
        // A triangle of 10 s up to 1,000/s holds 5,000 sends.
        let at = schedule.intended(5000).unwrap().as_secs_f64();
        assert!((at - 10.0).abs() < 1e-6, "{at}");
        assert!((schedule.intended(6000).unwrap().as_secs_f64() - 11.0).abs() < 1e-6);
        for text in ["", "5:1k", "0:1k,0:2k", "0:1k;1:2k", "0:x"] {
            assert!(Schedule::ramp(text).is_err(), "{text}");
        }
    }

    #[test]
    fn nothing_is_due_at_rate_zero() {
        let schedule = Schedule::constant(Rate(0.0));
        assert_eq!(schedule.due(Duration::from_secs(100)), 0);
        assert_eq!(schedule.intended(0), None);
    }

    proptest! {
        #[test]
        fn due_sends_were_intended_earlier(rate in 1.0f64..1e6, end in 0.0f64..1e6, burst in 1u64..100, ms in 1u64..100_000) {
            let schedule = Schedule::ramp(&format!("0:{rate},20s:{end}")).unwrap().with_burst(burst);
            let elapsed = Duration::from_millis(ms);
            let due = schedule.due(elapsed);
            let slack = Duration::from_micros(5);
            prop_assert!(schedule.intended(due - 1).unwrap() <= elapsed + slack);
            if let Some(next) = schedule.intended(due) {
                prop_assert!(next + slack >= elapsed, "{next:?} {elapsed:?}");
            }
        }
    }
}
