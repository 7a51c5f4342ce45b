//! The highest rate that a server sustains.
//!
//! Doubles the rate until a step fails, then halves the distance between the highest rate that passed and the lowest
//! that failed. The clients are set up once. A step fails by loss, by a threshold of the caller, or because the
//! generator could not keep the schedule. The cause decides whether the result is about the server or the generator.

mod search;

use std::fmt;
use std::time::Duration;

use super::{Plan, Run, RunError};
use crate::measure::{Rate, Schedule};
use crate::report::{LoadReport, Second, Step, Threshold};
use search::Search;

/// How to search.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FindMaxOptions {
    /// The first rate to try.
    pub from: Rate,
    /// The highest.
    pub to: Rate,
    /// Sends that share one intended time, as [`Schedule::with_burst`] says.
    pub burst: u64,
    /// Loss, 0 to 1, that still passes.
    pub max_loss: f64,
    /// Conditions under which a step fails as well.
    pub fail_if: Vec<Threshold>,
    /// The search ends when the lowest failed rate is at most this much above the highest that passed: 0.05 is 5 %.
    pub precision: f64,
    /// Steps at most, repetitions included.
    pub max_steps: u32,
    /// Measured part of each step, and its warm-up.
    pub step: Duration,
    /// Sent before each step is measured.
    pub warm_up: Duration,
}

impl Default for FindMaxOptions {
    /// From 1,000/s to 10 million/s, at most 0.1 % of loss, within 5 %, at most 24 steps of two seconds.
    fn default() -> FindMaxOptions {
        FindMaxOptions {
            from: Rate(1_000.0),
            to: Rate(10e6),
            burst: 1,
            max_loss: 0.001,
            fail_if: Vec::new(),
            precision: 0.05,
            max_steps: 24,
            step: Duration::from_secs(2),
            warm_up: Duration::from_millis(300),
        }
    }
}

/// What a search is doing.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// A step begins.
    Begin {
        /// From 1.
        number: u32,
        /// What it tries.
        rate: Rate,
    },
    /// A second of it is over.
    Second(&'a Second),
    /// It is over.
    End(&'a Step),
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Failure {
    /// More was lost than may be.
    #[error("loss of {0}")]
    Loss(String),
    /// A condition of the caller holds.
    #[error("{threshold}: {found}")]
    Threshold {
        /// As it was written.
        threshold: String,
        /// What was found.
        found: String,
    },
    /// The generator did not keep the schedule.
    #[error("the generator sent {0} of it only")]
    Generator(String),
    /// The generator's own buffers overflowed.
    #[error("the generator's receive buffers dropped {0} datagrams")]
    Overflow(u64),
    /// An interface of the generator's machine did not take all of it.
    #[error("the interface queue of this machine dropped {0} datagrams")]
    Queue(u64),
    /// The run ended before its time.
    #[error("{0}")]
    Ended(String),
}

impl Failure {
    /// The generator's fault, not the server's.
    fn is_generator(&self) -> bool {
        matches!(
            self,
            Failure::Generator(_) | Failure::Overflow(_) | Failure::Queue(_)
        )
    }
}

/// What keeps a search from a higher rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// The server, or the path to it: it was found within the precision asked for.
    Server,
    /// The generator: the server may be capable of more.
    Generator,
    /// The highest rate that was to be tried passed.
    Ceiling,
    /// Even the lowest rate that was tried failed.
    Floor,
    /// There were not enough steps; the limit is somewhere above.
    Steps,
    /// A caller stopped the search, or the server ended.
    Stopped,
}

/// What a search found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Found {
    /// The highest rate that passed, per second; `None` if none did.
    pub best: Option<f64>,
    /// What keeps it from being higher.
    pub limit: Limit,
    /// All steps in the order they were made.
    pub steps: Vec<Step>,
    /// The whole report of the best step, or of the last if none passed.
    pub report: LoadReport,
}

/// Searches for the highest rate of `plan`, whose own schedule is forgotten, and releases its allocations at the end.
/// Without a channel, the frames are indications.
///
/// # Errors
/// [`RunError`]: the plan makes no sense, or a thread cannot be started.
pub fn find_max(
    mut plan: Plan,
    options: &FindMaxOptions,
    mut watch: impl FnMut(Progress<'_>),
) -> Result<Found, RunError> {
    let stopper = plan.stopper.clone();
    plan.duration = options.step;
    plan.warm_up = options.warm_up;
    let mut search = Search::new(options, stopper);
    while let Some(rate) = search.next_rate() {
        let number = search.steps.len() as u32 + 1;
        watch(Progress::Begin {
            number,
            rate: Rate(rate),
        });
        plan.set_schedule(&Schedule::constant(Rate(rate)).with_burst(options.burst));
        let mut run = Run::start(plan)?;
        while let Some(second) = run.next_second() {
            watch(Progress::Second(&second));
        }
        let Some((report, next)) = run.finish_and_keep() else {
            return Ok(search.end());
        };
        plan = next;
        search.judge(rate, report);
        if let Some(step) = search.steps.last() {
            watch(Progress::End(step));
        }
    }
    Ok(search.end())
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", Step::HEADER)?;
        for step in &self.steps {
            writeln!(f, "{step}")?;
        }
        let limit = match self.limit {
            Limit::Server => "the server's limit",
            Limit::Generator => "the generator's limit: the server may be capable of more",
            Limit::Ceiling => "the highest that was to be tried",
            Limit::Floor => "not even the lowest passed",
            Limit::Steps => "the steps ran out: the limit is higher",
            Limit::Stopped => "the search was cut short",
        };
        match self.best {
            Some(rate) => writeln!(f, "highest rate: {rate:.0}/s ({limit})"),
            None => writeln!(f, "no rate passed ({limit})"),
        }
    }
}
