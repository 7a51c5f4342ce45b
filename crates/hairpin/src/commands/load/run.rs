//! One run, or a search of many steps, from arguments to status.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use load::generator::{
    self, FindMaxOptions, Found, Limit, Plan, Progress, Run, Stopper, SweepOptions, SweepProgress,
};
use load::measure::{Rate, Schedule};
use load::report::{LoadReport, SweepStep};

use super::Fault;
use super::conclude::conclude;
use super::live::{self, LiveDisplay, Title};
use crate::cli::load::course::How;
use crate::commands::reports::Destinations;
use crate::commands::stop;

/// Sent before a run is measured, unless said otherwise.
pub(super) const WARM_UP: Duration = Duration::from_secs(1);

/// How long stragglers are waited for, unless said otherwise.
pub(super) const DEFAULT_DRAIN_TIME: Duration = Duration::from_millis(500);

/// What is to be done.
#[derive(Debug)]
pub(super) struct LoadRun<'a> {
    /// Workload and server.
    pub(super) title: String,
    /// Sends per second unless said otherwise; `None` if the workload brings its own.
    pub(super) default_rate: Option<Rate>,
    /// What is not answered is not lost.
    pub(super) one_sided: bool,
    /// How long stragglers are waited for, unless said otherwise.
    pub(super) linger: Duration,
    /// Sent before a run is measured, unless said otherwise.
    pub(super) warm_up: Duration,
    /// Carry out a sweep instead of one run.
    pub(super) sweep: Option<SweepOptions>,
    /// When, how long, by which threads, and where the results go.
    pub(super) how: &'a How,
}

impl LoadRun<'_> {
    /// Makes the plan with `make`, runs it, shows its progress, and reports the result.
    pub(super) fn carry_out(
        &self,
        make: impl FnOnce(&Stopper) -> Result<Plan, Fault>,
    ) -> Result<ExitCode, Fault> {
        self.check()?;
        let results = &self.how.results;
        let places = Destinations::new(&[
            ("--json", results.json.as_deref()),
            ("--csv", results.csv.as_deref()),
            ("--html", results.html.as_deref()),
        ])?;
        let stopper = Stopper::new();
        let stop_run = stopper.clone();
        stop::on_signals(move || stop_run.stop(), live::restore_terminal)?;
        eprintln!("{}", self.title);
        let mut plan = make(&stopper)?;
        self.shape(&mut plan);
        let report = if let Some(options) = &self.sweep {
            self.sweep(plan, options, &stopper)?
        } else if self.how.pace.find_max {
            self.search(plan, &stopper, &places)?
        } else {
            self.run_once(plan, &stopper)?
        };
        Ok(conclude(report, results, &places)?)
    }

    /// Checks what clap cannot check.
    fn check(&self) -> Result<(), Fault> {
        let pace = &self.how.pace;
        let mistake = if pace.rate.is_some_and(|rate| rate.0 <= 0.0) {
            "--rate: the rate must be above 0"
        } else if pace.find_max && (pace.find_from.0 <= 0.0 || pace.find_from.0 > pace.find_to.0) {
            "--find-from: more than nothing, and not above --find-to"
        } else if pace.find_max && pace.precision <= 0.0 {
            "--precision: more than 0"
        } else if pace.burst > 1 && self.schedule().is_none() && !pace.find_max {
            "--burst: give a --rate too"
        } else {
            return Ok(());
        };
        Err(Fault::Usage(anyhow!(mistake)))
    }

    /// When each datagram leaves, unless that is up to the answers, the machine or the workload.
    fn schedule(&self) -> Option<Schedule> {
        let pace = &self.how.pace;
        if let Some(ramp) = &pace.ramp {
            return Some(ramp.clone().with_burst(pace.burst));
        }
        let rate = pace.rate.or(self.default_rate)?;
        Some(Schedule::constant(rate).with_burst(pace.burst))
    }

    /// Gives the plan its course.
    fn shape(&self, plan: &mut Plan) {
        let (pace, course) = (&self.how.pace, &self.how.course);
        plan.duration = course.duration;
        plan.warm_up = course.warm_up.unwrap_or(self.warm_up);
        plan.linger = course.linger.unwrap_or(self.linger);
        plan.silence = course.silence;
        plan.senders = course.senders.into();
        plan.receivers = course.receivers.into();
        plan.gso = course.gso;
        if let Some(train) = course.train {
            plan.set_train(train);
        }
        match (pace.closed, self.schedule()) {
            (Some(window), _) => plan.close_loop(window),
            (None, _) if pace.flat_out => plan.flat_out(),
            (None, Some(schedule)) => plan.set_schedule(&schedule),
            (None, None) => {}
        }
    }

    fn run_once(&self, plan: Plan, stopper: &Stopper) -> Result<LoadReport, Fault> {
        let title = self.live_title(plan.warm_up + plan.duration);
        let mut run = Run::start(plan)?;
        let mut live = LiveDisplay::start(title, self.how.results.no_tui, stopper);
        while let Some(second) = run.next_second() {
            live.second(&second);
        }
        let report = run.finish();
        drop(live);
        Ok(report)
    }

    fn search(
        &self,
        plan: Plan,
        stopper: &Stopper,
        places: &Destinations<'_>,
    ) -> Result<LoadReport, Fault> {
        let options = self.search_options();
        let title = self.live_title(options.warm_up + options.step);
        let mut live = LiveDisplay::start(title, self.how.results.no_tui, stopper);
        let found = generator::find_max(plan, &options, |progress| match progress {
            Progress::Begin { number, rate } => {
                live.begin_step(number, rate);
            }
            Progress::Second(second) => live.second_of_step(second),
            Progress::End(step) => live.step(step),
            _ => {}
        });
        drop(live);
        let found = found?;
        places.summary(&found.to_string())?;
        judge(found, stopper)
    }

    fn sweep(
        &self,
        plan: Plan,
        options: &SweepOptions,
        stopper: &Stopper,
    ) -> Result<LoadReport, Fault> {
        let title = self.live_title(options.warm_up + options.step);
        let mut live = LiveDisplay::start(title, self.how.results.no_tui, stopper);
        let mut begun = false;
        let report = generator::sweep(plan, options, |progress| match progress {
            SweepProgress::Peak => live.say("measuring the peak by a closed loop"),
            SweepProgress::Begin(_) if !std::mem::replace(&mut begun, true) => {
                live.say(SweepStep::HEADER);
            }
            SweepProgress::Second(second) => live.second_of_step(second),
            SweepProgress::End(step) => live.say(&step.to_string()),
            _ => {}
        });
        drop(live);
        Ok(report?)
    }

    fn search_options(&self) -> FindMaxOptions {
        let (pace, mut options) = (&self.how.pace, FindMaxOptions::default());
        options.from = pace.find_from;
        options.to = pace.find_to;
        options.burst = pace.burst;
        options.max_loss = pace.max_loss;
        options.fail_if.clone_from(&pace.slo);
        options.precision = pace.precision;
        options.step = pace.step;
        options.warm_up = self.how.course.warm_up.unwrap_or(options.warm_up);
        options
    }

    fn live_title(&self, length: Duration) -> Title {
        Title {
            what: self.title.clone(),
            length_s: length.as_secs_f64(),
            one_sided: self.one_sided,
        }
    }
}

/// The report of the best step, which says what was found; an error if there is none.
fn judge(found: Found, stopper: &Stopper) -> Result<LoadReport, Fault> {
    let summary = found.to_string();
    let summary = summary.lines().last().unwrap_or_default().to_owned();
    let last = found.steps.last().and_then(|step| step.failure.clone());
    let reason = last.unwrap_or_default();
    let died = found.limit == Limit::Stopped && !stopper.is_stopped();
    let mut report = found.report;
    report
        .run
        .settings
        .insert("search".to_owned(), summary.clone());
    if died {
        report.ended_early = Some(format!("the search was cut short: {reason}"));
        report.ended = load::report::Ending::ServerSilent;
    } else if found.best.is_none() && !stopper.is_stopped() {
        return Err(Fault::Run(anyhow!(
            "{summary}: {reason}; begin lower (--find-from), or allow more (--max-loss, --slo)"
        )));
    }
    Ok(report)
}
