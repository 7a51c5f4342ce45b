//! An overload sweep: the same workload at multiples of a rate, then a drop of the load.

use std::time::Duration;

use super::LAST_TRY;
use super::tally::BIN_NS;
use crate::generator::{Plan, Run, RunError};
use crate::measure::{Rate, Schedule};
use crate::report::{LoadReport, Recovery, Second, SipReport, Sweep, SweepStep, TenthOfSecond};

/// What a sweep offers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SweepOptions {
    /// Multiples of the peak, in the order in which they are tried.
    pub multiples: Vec<f64>,
    /// Units of work per second. `None` searches for it: a closed loop gives the first value, and the load grows in
    /// steps of a tenth while goodput increases.
    pub peak: Option<f64>,
    /// Units of work in flight while the peak is measured.
    pub window: u32,
    /// How long each load is measured.
    pub step: Duration,
    /// Before each.
    pub warm_up: Duration,
    /// How long recovery is looked at; zero leaves it out.
    pub recovery: Duration,
}

impl Default for SweepOptions {
    /// 0.5 to 10 times what a closed loop of 128 reaches, four seconds each.
    fn default() -> SweepOptions {
        SweepOptions {
            multiples: vec![0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0],
            peak: None,
            window: 128,
            step: Duration::from_secs(4),
            warm_up: Duration::from_secs(1),
            recovery: Duration::from_secs(5),
        }
    }
}

/// What a sweep says while it goes on.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum SweepProgress<'a> {
    /// The peak is being measured.
    Peak,
    /// A load begins: units of work per second.
    Begin(Rate),
    /// A second of it.
    Second(&'a Second),
    /// It is over.
    End(&'a SweepStep),
}

/// The load after the highest one, as a multiple of the peak.
const FINAL_LOAD: f64 = 0.5;
/// How long the highest load lasts before it falls.
const HIGHEST_LOAD_TIME: Duration = Duration::from_secs(3);
/// All is well if this share of what began succeeded soon: within 200 ms.
const MIN_SUCCESS_SHARE: f64 = 0.99;
/// How long a load is waited for: accepted work ends by then, and no refused request is served in the pause that
/// follows.
const DRAIN_TIME: Duration = Duration::from_millis(200);
/// How the load grows in search of the peak, how often at most, and which part of it must succeed to go on.
const GROWTH: (f64, usize, f64) = (1.1, 16, 0.97);
/// How long each of these loads is measured.
const SEARCH_STEP_TIME: Duration = Duration::from_secs(1);

/// Carries a sweep out. The report is that of the last step, with all steps in [`SipReport::sweep`].
///
/// # Errors
/// [`RunError`]: the plan makes no sense, or a thread cannot be started.
pub fn sweep(
    mut plan: Plan,
    options: &SweepOptions,
    mut watch: impl FnMut(SweepProgress<'_>),
) -> Result<LoadReport, RunError> {
    let stopper = plan.stopper.clone();
    plan.linger = DRAIN_TIME;
    let mut last = LoadReport::empty();
    let peak = match options.peak {
        Some(peak) => peak,
        None => {
            watch(SweepProgress::Peak);
            let (peak, report, next) = find_peak(plan, options, &mut watch)?;
            (plan, last) = (next, report);
            peak
        }
    };
    plan.duration = options.step;
    plan.warm_up = options.warm_up;
    let mut found = Sweep {
        peak,
        ..Sweep::default()
    };
    for &multiple in &options.multiples {
        let rate = found.peak * multiple;
        if stopper.is_stopped() || rate <= 0.0 {
            break;
        }
        watch(SweepProgress::Begin(Rate(rate)));
        plan.set_schedule(&Schedule::constant(Rate(rate)));
        let (report, next) = carry_out(plan, &mut watch)?;
        plan = next;
        let step = step(multiple, rate, &report);
        watch(SweepProgress::End(&step));
        found.steps.push(step);
        last = report;
    }
    let most = options.multiples.iter().copied().fold(0.0, f64::max);
    if !stopper.is_stopped() && !options.recovery.is_zero() && most > FINAL_LOAD && found.peak > 0.0
    {
        found.recovery = Some(recover(plan, options, found.peak, most, &mut watch)?);
    }
    last.sip.get_or_insert_default().sweep = Some(found);
    Ok(last)
}

/// Something is begun within this many milliseconds of the end, or nothing was seen of it.
const LAST_MS: u64 = 500;

/// The greatest goodput of a load that grows until not all of it succeeds.
fn find_peak(
    mut plan: Plan,
    options: &SweepOptions,
    watch: &mut impl FnMut(SweepProgress<'_>),
) -> Result<(f64, LoadReport, Plan), RunError> {
    let goodput = |report: &LoadReport| report.sip.as_ref().map_or(0.0, |sip| sip.goodput);
    let (growth, most, enough) = GROWTH;
    plan.duration = SEARCH_STEP_TIME;
    plan.warm_up = SEARCH_STEP_TIME / 2;
    plan.close_loop(options.window);
    let (mut last, mut plan) = carry_out(plan, watch)?;
    let mut peak = goodput(&last);
    let mut rate = peak;
    for _ in 0..most {
        if plan.stopper.is_stopped() || rate <= 0.0 {
            break;
        }
        plan.set_schedule(&Schedule::constant(Rate(rate)));
        let (report, next) = carry_out(plan, watch)?;
        (plan, last) = (next, report);
        let reached = goodput(&last);
        peak = peak.max(reached);
        if reached < enough * rate {
            break;
        }
        rate *= growth;
    }
    Ok((peak, last, plan))
}

/// One run of `plan`, which comes back.
fn carry_out(
    plan: Plan,
    watch: &mut impl FnMut(SweepProgress<'_>),
) -> Result<(LoadReport, Plan), RunError> {
    let mut run = Run::start(plan)?;
    while let Some(second) = run.next_second() {
        watch(SweepProgress::Second(&second));
    }
    // A run that is not over has its plan.
    run.finish_and_keep().ok_or(RunError::Over)
}

fn step(multiple: f64, offered: f64, report: &LoadReport) -> SweepStep {
    let seconds = report.run.measured_s.max(1e-9);
    let sip = report.sip.as_deref().cloned().unwrap_or_default();
    let total = &report.total;
    let answered = total.received + total.failed - sip.timed_out.min(total.failed);
    let whole = seconds + report.run.warm_up_s;
    SweepStep {
        multiple,
        offered,
        begun: total.sent as f64 / seconds,
        messages: report.sending.datagrams as f64 / whole,
        goodput: sip.goodput,
        wrong: sip.wrong(),
        unavailable: sip.unavailable as f64 / seconds,
        retransmissions: sip.retransmissions as f64 / seconds,
        unanswered: 1.0 - answered as f64 / total.sent.max(1) as f64,
        dropped: report.kernel.receive as f64 / whole,
        latency: report.latency,
        last_try: report.parts.get(LAST_TRY).copied().unwrap_or_default(),
        server_memory_before: sip.server.map(|used| used.resident_before),
        server_cpu: sip.server.map(|used| used.cpu),
        server_memory: sip.server.map(|used| used.resident_after),
    }
}

/// Measures the recovery from overload in one run: first `from` times the peak, then [`FINAL_LOAD`] times the peak.
/// Clients still retransmit requests of the first load that have no response.
fn recover(
    mut plan: Plan,
    options: &SweepOptions,
    peak: f64,
    from: f64,
    watch: &mut impl FnMut(SweepProgress<'_>),
) -> Result<Recovery, RunError> {
    let (high, low) = (peak * from, peak * FINAL_LOAD);
    let fall_ms = HIGHEST_LOAD_TIME.as_millis();
    let text = format!(
        "0:{high:.0},{fall_ms}ms:{high:.0},{}ms:{low:.0}",
        fall_ms + 1
    );
    // The text above is a valid ramp. Otherwise, the load would be the lower one for the whole run.
    let schedule = Schedule::ramp(&text).unwrap_or_else(|_| Schedule::constant(Rate(low)));
    plan.set_schedule(&schedule);
    plan.warm_up = Duration::ZERO;
    plan.duration = HIGHEST_LOAD_TIME + options.recovery;
    watch(SweepProgress::Begin(Rate(low)));
    let (report, _) = carry_out(plan, watch)?;
    let sip: SipReport = report.sip.map(|sip| *sip).unwrap_or_default();
    Ok(Recovery {
        from,
        to: FINAL_LOAD,
        seconds: recovered(
            &sip.timeline,
            fall_ms as u64,
            (fall_ms as u64) + options.recovery.as_millis() as u64,
        ),
        fell_at_ms: fall_ms as u64,
        timeline: sip.timeline,
    })
}

/// Seconds from `fall_ms` to the moment from which on all was well until `end_ms`.
fn recovered(timeline: &[TenthOfSecond], fall_ms: u64, end_ms: u64) -> Option<f64> {
    let well =
        |moment: &&TenthOfSecond| moment.soon as f64 >= MIN_SUCCESS_SHARE * moment.begun as f64;
    let after = timeline
        .iter()
        .filter(|moment| (fall_ms..end_ms).contains(&moment.at_ms));
    let sick = after.clone().rfind(|moment| !well(moment));
    let since = sick.map_or(fall_ms, |moment| moment.at_ms + BIN_NS / 1_000_000);
    // A generator that has given up on a server that answers nothing has not seen it recover.
    let lasts = after
        .clone()
        .any(|moment| moment.begun > 0 && moment.at_ms + LAST_MS >= end_ms);
    (lasts && since < end_ms).then_some((since - fall_ms) as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(soon: &[u64]) -> Vec<TenthOfSecond> {
        let moment = |(bin, &soon): (usize, &u64)| TenthOfSecond {
            at_ms: bin as u64 * 100,
            begun: 100,
            succeeded: 100,
            soon,
            ..TenthOfSecond::default()
        };
        soon.iter().enumerate().map(moment).collect()
    }

    #[test]
    fn recovery_lasts_until_the_last_slow_moment() {
        assert_eq!(recovered(&timeline(&[98, 0, 99, 100]), 200, 400), Some(0.0));
        assert_eq!(recovered(&timeline(&[0, 0, 98, 99]), 200, 400), Some(0.1));
        assert_eq!(recovered(&timeline(&[100, 100, 100, 98]), 200, 400), None);
        assert_eq!(recovered(&timeline(&[100, 100]), 200, 400), None);
        assert_eq!(recovered(&timeline(&[100, 0, 100]), 100, 900), None);
    }
}
