//! Where a search goes next.

use super::{Failure, FindMaxOptions, Found, Limit};
use crate::generator::Stopper;
use crate::report::{Ending, LoadReport, Step};

/// The generator keeps a schedule if it sends at least this share of it.
const MIN_SENT_SHARE: f64 = 0.99;
/// A step that loses less than this multiple of the limit is repeated before it counts, because one disturbance may be
/// chance.
const NEAR_FACTOR: f64 = 20.0;

/// A search: what passed, what failed, what to try next. Knows nothing of networks.
pub(super) struct Search<'a> {
    options: &'a FindMaxOptions,
    stopper: Stopper,
    pub(super) steps: Vec<Step>,
    /// Highest that passed, lowest that failed.
    passed: Option<f64>,
    failed: Option<(f64, Failure)>,
    /// The lowest rate that failed did so only once. Before it ends the search, it is tried again. A short pause of the
    /// machine must not decide the result.
    doubted: bool,
    /// This rate failed once, but not by much.
    again: Option<f64>,
    dead: bool,
    report: LoadReport,
}

impl<'a> Search<'a> {
    pub(super) fn new(options: &'a FindMaxOptions, stopper: Stopper) -> Search<'a> {
        Search {
            options,
            stopper,
            steps: Vec::new(),
            passed: None,
            failed: None,
            doubted: false,
            again: None,
            dead: false,
            report: LoadReport::empty(),
        }
    }

    fn converged(&self) -> bool {
        match (&self.failed, self.passed) {
            (Some((failed, _)), Some(passed)) => *failed <= passed * (1.0 + self.options.precision),
            // Below a hundredth of where it began there is nothing worth finding.
            (Some((failed, _)), None) => *failed <= self.options.from.0 / 100.0,
            (None, Some(passed)) => passed >= self.options.to.0,
            (None, None) => false,
        }
    }

    /// What to try next; `None` when the search is over.
    pub(super) fn next_rate(&self) -> Option<f64> {
        let enough = self.steps.len() as u32 >= self.options.max_steps;
        if enough || self.dead || self.stopper.is_stopped() {
            return None;
        }
        if let Some(rate) = self.again {
            return Some(rate);
        }
        if self.converged() {
            let failed = self.failed.as_ref().filter(|_| self.passed.is_some());
            return failed.filter(|_| self.doubted).map(|(rate, _)| *rate);
        }
        Some(match (self.passed, &self.failed) {
            (None, None) => self.options.from.0.min(self.options.to.0),
            (Some(passed), None) => (passed * 2.0).min(self.options.to.0),
            (None, Some((failed, _))) => failed / 4.0,
            (Some(passed), Some((failed, _))) => (passed + failed) / 2.0,
        })
    }

    pub(super) fn judge(&mut self, rate: f64, report: LoadReport) {
        let failure = self.failure(&report);
        self.steps.push(Step {
            rate,
            achieved: report.send_pps(),
            loss: report.total.loss(),
            p99_us: report.latency.p99_us,
            failure: failure.as_ref().map(ToString::to_string),
        });
        self.dead = report.ended != Ending::Complete;
        match failure {
            None => {
                self.again = None;
                self.passed = Some(rate);
                self.failed.take_if(|(failed, _)| *failed <= rate);
                self.report = report;
            }
            Some(failure) => {
                let near = report.total.loss() <= self.options.max_loss * NEAR_FACTOR;
                if self.passed.is_none() {
                    self.report = report;
                }
                let twice = self.again.is_some()
                    || self
                        .failed
                        .as_ref()
                        .is_some_and(|(failed, _)| *failed <= rate);
                if near && !twice {
                    self.again = Some(rate);
                } else {
                    (self.again, self.doubted) = (None, !twice);
                    self.failed = Some((rate, failure));
                }
            }
        }
    }

    fn failure(&self, report: &LoadReport) -> Option<Failure> {
        let total = &report.total;
        if let Some(reason) = &report.ended_early {
            return Some(Failure::Ended(reason.clone()));
        }
        let offered = report.run.offered_rate.unwrap_or(0.0);
        if report.send_pps() < offered * MIN_SENT_SHARE {
            let share = 100.0 * report.send_pps() / offered;
            return Some(Failure::Generator(format!("{share:.1} %")));
        }
        if total.loss() > self.options.max_loss {
            // What was dropped here was not lost there.
            if total.overflow * 2 > total.lost {
                return Some(Failure::Overflow(total.overflow));
            }
            if report.kernel.send * 2 > total.lost {
                return Some(Failure::Queue(report.kernel.send));
            }
            return Some(Failure::Loss(format!("{:.3} %", total.loss() * 100.0)));
        }
        let verdicts = self.options.fail_if.iter();
        let verdict = verdicts
            .map(|threshold| threshold.judge(report))
            .find(|verdict| verdict.failed)?;
        Some(Failure::Threshold {
            threshold: verdict.text,
            found: verdict.found,
        })
    }

    pub(super) fn end(self) -> Found {
        let limit = match (&self.failed, self.passed) {
            _ if self.dead || self.stopper.is_stopped() => Limit::Stopped,
            (_, None) => Limit::Floor,
            (None, Some(passed)) if passed >= self.options.to.0 => Limit::Ceiling,
            _ if !self.converged() => Limit::Steps,
            (Some((_, failure)), _) if failure.is_generator() => Limit::Generator,
            _ => Limit::Server,
        };
        let mut report = self.report;
        report.search.clone_from(&self.steps);
        Found {
            best: self.passed,
            limit,
            steps: self.steps,
            report,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Rate;

    /// What a server reports that loses all above `capacity`, asked by a generator that sends at most `speed`.
    fn report(rate: f64, capacity: f64, speed: f64) -> LoadReport {
        let mut report = LoadReport::empty();
        report.run.measured_s = 1.0;
        report.run.offered_rate = Some(rate);
        report.total.sent = rate.min(speed) as u64;
        report.total.received = rate.min(speed).min(capacity) as u64;
        report.total.lost = report.total.sent - report.total.received;
        report.latency.count = report.total.received;
        report
    }

    fn search(options: &FindMaxOptions, play: impl Fn(f64, usize) -> LoadReport) -> Found {
        let mut search = Search::new(options, Stopper::new());
        while let Some(rate) = search.next_rate() {
            let report = play(rate, search.steps.len());
            search.judge(rate, report);
        }
        search.end()
    }

    #[test]
    fn finds_any_capacity_within_the_precision_and_a_bounded_number_of_steps() {
        let options = FindMaxOptions::default();
        for capacity in [120.0, 3_000.0, 50_000.0, 777_777.0, 9e6] {
            let found = search(&options, |rate, _| report(rate, capacity, 1e9));
            let best = found.best.unwrap();
            assert_eq!(found.limit, Limit::Server, "{found}");
            // A loss of 0.1 % passes, so a little above the capacity does.
            assert!(best <= capacity * 1.002, "{capacity}: {found}");
            assert!(best >= capacity * 0.95, "{capacity}: {found}");
            assert!(found.steps.len() <= 22, "{capacity}: {found}");
        }
    }

    #[test]
    fn a_generator_that_is_too_slow_is_not_taken_for_the_server() {
        let found = search(&FindMaxOptions::default(), |rate, _| {
            report(rate, 1e9, 30_000.0)
        });
        assert_eq!(found.limit, Limit::Generator, "{found}");
        assert!(
            (28_000.0..31_000.0).contains(&found.best.unwrap()),
            "{found}"
        );
    }

    #[test]
    fn one_stumble_does_not_count() {
        let found = search(&FindMaxOptions::default(), |rate, step| {
            let mut report = report(rate, 64_000.0, 1e9);
            if step == 2 {
                report.total.lost = report.total.sent / 100;
            }
            report
        });
        assert!(found.best.unwrap() > 60_000.0, "{found}");
        assert_eq!(found.steps[2].rate, found.steps[3].rate);
    }

    #[test]
    fn a_bad_fall_is_tried_again_before_it_ends_the_search() {
        let found = search(&FindMaxOptions::default(), |rate, step| {
            let mut report = report(rate, 64_000.0, 1e9);
            if step == 2 {
                report.total.lost = report.total.sent / 2;
            }
            report
        });
        assert!(found.best.unwrap() > 60_000.0, "{found}");
        assert_eq!(found.limit, Limit::Server, "{found}");
    }

    #[test]
    fn the_ceiling_the_floor_and_the_steps_are_named() {
        let mut options = FindMaxOptions {
            to: Rate(8_000.0),
            ..FindMaxOptions::default()
        };
        let ceiling = search(&options, |rate, _| report(rate, 1e9, 1e9));
        assert_eq!(
            (ceiling.limit, ceiling.best),
            (Limit::Ceiling, Some(8_000.0))
        );
        let floor = search(&options, |rate, _| report(rate, 0.0, 1e9));
        assert_eq!((floor.limit, floor.best), (Limit::Floor, None));
        options.max_steps = 3;
        options.to = Rate(1e6);
        let steps = search(&options, |rate, _| report(rate, 1e9, 1e9));
        assert_eq!((steps.limit, steps.best), (Limit::Steps, Some(4_000.0)));
    }

    #[test]
    fn a_threshold_fails_a_step_and_a_dead_server_ends_the_search() {
        let options = FindMaxOptions {
            fail_if: vec!["p99>5ms".parse().unwrap()],
            ..FindMaxOptions::default()
        };
        let found = search(&options, |rate, _| {
            let mut report = report(rate, 1e9, 1e9);
            report.latency.p99_us = Some(rate);
            report.latency.max_us = rate;
            report
        });
        assert!(
            (4_700.0..=5_000.0).contains(&found.best.unwrap()),
            "{found}"
        );
        let found = search(&options, |rate, step| {
            let mut report = report(rate, 1e9, 1e9);
            if step == 1 {
                report.ended = Ending::ServerSilent;
                report.ended_early = Some("silent".to_owned());
            }
            report
        });
        assert_eq!((found.limit, found.steps.len()), (Limit::Stopped, 2));
    }
}
