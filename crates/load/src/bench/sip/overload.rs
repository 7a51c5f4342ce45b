//! What a SIP server does with several times the load that it can hold.

use std::time::Duration;

use serde::Serialize;

use super::failed;
use crate::bench::error::{IoContext, SideError};
use crate::bench::packets::{Lengths, Meter, Point};
use crate::bench::scenario::SipWork;
use crate::generator::{SweepOptions, sweep};
use crate::report::{Sweep, SweepStep};

/// Multiples of the best goodput that are offered, in this order. The best comes again before each higher load, because
/// how fast a processor is changes within a minute. A generator on one processor can offer 10 times the load only if
/// each request costs the server CPU time (`service_us`). Otherwise the multiples are smaller.
pub(in crate::bench) fn multiples(work: SipWork, service_us: u16) -> [f64; 6] {
    match work {
        _ if service_us > 0 => [1.0, 2.0, 1.0, 5.0, 1.0, 10.0],
        SipWork::ProxiedCall => [1.0, 1.5, 1.0, 2.0, 1.0, 3.0],
        _ => [1.0, 1.25, 1.0, 1.5, 1.0, 2.0],
    }
}

/// How long the harness looks for the recovery after the load has fallen.
const MAX_RECOVERY_TIME: Duration = Duration::from_secs(5);

/// What became of a server's goodput in an overload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overload {
    /// The highest load that it held: loads are multiples of this.
    pub best: Point,
    /// Messages that arrived changed, in the wrong place, or with no request of ours, while the best load was searched
    /// and in the overload.
    pub wrong: u64,
    /// Responses that arrived again without a request that was sent again, while the best load was searched.
    pub duplicated: u64,
    /// All loads, and the recovery from the highest.
    pub sweep: Sweep,
}

impl Overload {
    fn beyond(&self) -> impl Iterator<Item = &SweepStep> {
        self.sweep.steps.iter().filter(|step| step.multiple > 1.0)
    }

    /// The best goodput at multiples of at most 1.
    pub fn base(&self) -> f64 {
        let held = self.sweep.steps.iter().filter(|step| step.multiple <= 1.0);
        held.map(|step| step.goodput).fold(0.0, f64::max)
    }

    /// The least share of that goodput that was left at a higher load; `None` if none was offered.
    pub fn kept(&self) -> Option<f64> {
        let least = self.beyond().map(|step| step.goodput).reduce(f64::min)?;
        let base = self.base();
        (base > 0.0).then_some(least / base)
    }

    /// The longest p99 of what succeeded at a higher load, in nanoseconds since it was meant to begin. `None` if too
    /// little succeeded at one of them.
    pub fn slowest_ns(&self) -> Option<f64> {
        let mut slowest = None;
        for step in self.beyond() {
            let p99 = step.latency.p99_us? * 1e3;
            slowest = Some(p99.max(slowest.unwrap_or(0.0)));
        }
        slowest
    }

    /// Whether the generator could not begin what it was to offer.
    pub fn generator_was_the_limit(&self) -> bool {
        const LITTLE: f64 = 0.03;
        let short = |step: &SweepStep| step.begun < step.offered * (1.0 - LITTLE);
        self.sweep.steps.iter().any(short)
    }
}

impl Meter<'_> {
    /// Finds the best goodput, and offers multiples of it.
    pub(in crate::bench) fn overload(
        &mut self,
        lengths: Lengths,
        hint: Option<f64>,
        multiples: [f64; 6],
    ) -> Result<Overload, SideError> {
        let best = self.best(lengths, hint)?;
        let plan = self.plan.take();
        let plan = plan.ok_or_else(|| SideError::Connections("there are no SIP clients".into()))?;
        let options = SweepOptions {
            multiples: multiples.into(),
            peak: Some(best.offered),
            step: lengths.hold,
            warm_up: lengths.hold / 2,
            recovery: MAX_RECOVERY_TIME,
            ..SweepOptions::default()
        };
        let report = self
            .bed
            .topology
            .in_client(|| Ok(sweep(plan, &options, |_| ())))
            .doing("run the generator")?
            .map_err(failed)?;
        let sweep = report.sip.and_then(|sip| sip.sweep);
        let sweep = sweep.ok_or_else(|| SideError::Connections("no load was offered".into()))?;
        let wrong = sweep.steps.iter().map(|step| step.wrong).sum::<u64>();
        Ok(Overload {
            best,
            wrong: self.faults.wrong + wrong,
            duplicated: self.faults.duplicated,
            sweep,
        })
    }
}

#[cfg(test)]
pub(in crate::bench) mod tests {
    use super::*;
    use crate::report::Percentiles;

    pub(in crate::bench) fn step(multiple: f64, goodput: f64, p99_us: Option<f64>) -> SweepStep {
        let latency = Percentiles {
            p99_us,
            ..Percentiles::default()
        };
        SweepStep {
            multiple,
            offered: multiple * 100.0,
            begun: multiple * 100.0,
            goodput,
            latency,
            last_try: latency,
            server_cpu: Some(0.5),
            server_memory: Some(2_000_000),
            ..SweepStep::default()
        }
    }

    pub(in crate::bench) fn overload(steps: Vec<SweepStep>) -> Overload {
        let sweep = Sweep {
            peak: 100.0,
            steps,
            recovery: None,
        };
        let best = Point {
            offered: 100.0,
            delivered: 100.0,
            ..Point::default()
        };
        Overload {
            best,
            wrong: 0,
            duplicated: 0,
            sweep,
        }
    }

    #[test]
    fn each_higher_load_follows_the_peak() {
        for (work, service_us, most) in [
            (SipWork::Options, 0, 2.0),
            (SipWork::ProxiedCall, 0, 3.0),
            (SipWork::Call, 50, 10.0),
        ] {
            let all = multiples(work, service_us);
            assert!(all.iter().step_by(2).all(|multiple| *multiple <= 1.0));
            let higher: Vec<f64> = all.iter().skip(1).step_by(2).copied().collect();
            assert!(higher.is_sorted() && higher[0] > 1.0 && higher[2] >= most);
        }
    }

    #[test]
    fn goodput_is_held_against_the_best_at_the_peak() {
        let mut found = overload(vec![
            step(1.0, 90.0, Some(10.0)),
            step(2.0, 80.0, Some(30.0)),
            step(1.0, 100.0, Some(10.0)),
            step(10.0, 60.0, Some(20.0)),
        ]);
        assert_eq!(found.base(), 100.0);
        assert_eq!(found.kept(), Some(0.6));
        assert_eq!(found.slowest_ns(), Some(30e3));
        assert!(!found.generator_was_the_limit());
        found.sweep.steps[3].begun = 900.0;
        assert!(found.generator_was_the_limit());
    }

    #[test]
    fn what_was_not_measured_has_no_figure() {
        let silent = overload(vec![step(1.0, 100.0, Some(1.0)), step(5.0, 0.0, None)]);
        assert_eq!((silent.kept(), silent.slowest_ns()), (Some(0.0), None));
        let stopped = overload(vec![step(1.0, 100.0, Some(1.0))]);
        assert_eq!((stopped.kept(), stopped.slowest_ns()), (None, None));
        let dead = overload(vec![step(1.0, 0.0, None), step(2.0, 0.0, None)]);
        assert_eq!(dead.kept(), None);
    }
}
