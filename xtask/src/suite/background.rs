//! Stages that run beside others: each in a process of its own, one after the other, most of them at idle priority.
//!
//! A process, so that the output of a stage goes to a file and does not mix with that of the foreground. At idle
//! priority (`SCHED_IDLE`) it uses only processor time that nothing in the foreground wants.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::times::Times;
use super::{Stage, report};
use crate::process::{self, Ended, Process};
use crate::scratch;
use crate::tally::Tally;

/// Longest run of one stage: it gets little processor time while the foreground is busy, but must not hang.
const STAGE_TIMEOUT: Duration = Duration::from_secs(45 * 60);
/// How often a running stage is checked for its end and for a request to stop.
const POLL: Duration = Duration::from_millis(200);

/// A stage that has ended.
struct FinishedStage {
    name: String,
    seconds: f32,
    output: String,
    outcome: Result<Tally>,
}

/// The stages in the background, and the thread that runs them.
pub(super) struct Background {
    root: PathBuf,
    stages: Vec<Stage>,
    /// Whether they run at idle priority.
    is_idle: bool,
    running: Option<(JoinHandle<()>, Receiver<FinishedStage>)>,
    stop: Arc<AtomicBool>,
}

impl Background {
    pub(super) fn new(root: &Path, stages: Vec<Stage>, is_idle: bool) -> Background {
        Background {
            root: root.to_path_buf(),
            stages,
            is_idle,
            running: None,
            stop: Arc::default(),
        }
    }

    /// Starts the first stage, unless that has happened already.
    pub(super) fn start(&mut self) {
        if self.running.is_some() || self.stages.is_empty() {
            return;
        }
        let names: Vec<String> = self.stages.iter().map(|stage| stage.name()).collect();
        println!("=== in the background from now on: {}", names.join(", "));
        let (sender, receiver) = channel();
        let (root, stop) = (self.root.clone(), Arc::clone(&self.stop));
        let (stages, is_idle) = (std::mem::take(&mut self.stages), self.is_idle);
        let thread = std::thread::spawn(move || run_all(&root, (&stages, is_idle), &stop, &sender));
        self.running = Some((thread, receiver));
    }

    /// Prints and counts the stages that have ended since the last call.
    pub(super) fn collect(&mut self, times: &mut Times) -> Tally {
        let finished = self
            .running
            .iter()
            .flat_map(|(_, receiver)| receiver.try_iter());
        print_all(finished, times)
    }

    /// Waits for the last stage; prints and counts all that [`Background::collect`] has not.
    pub(super) fn finish(&mut self, times: &mut Times) -> Tally {
        self.start();
        let finished = self
            .running
            .iter()
            .flat_map(|(_, receiver)| receiver.iter());
        let mut tally = print_all(finished, times);
        tally.add(self.join());
        tally
    }

    /// Kills the running stage and starts no other.
    pub(super) fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Something has failed already, so one failure more changes nothing.
        let _ = self.join();
    }

    /// Waits for the thread. Its panic is a failure: it may have left stages that nobody counted.
    fn join(&mut self) -> Tally {
        match self.running.take().map(|(thread, _)| thread.join()) {
            Some(Err(_)) => Tally::FAILURE,
            _ => Tally::default(),
        }
    }
}

/// Prints the output and the result of each stage. Returns the sum of their tallies.
fn print_all(finished: impl Iterator<Item = FinishedStage>, times: &mut Times) -> Tally {
    let mut total = Tally::default();
    for stage in finished {
        println!("=== {} (was in the background)", stage.name);
        print!("{}", stage.output);
        let tally = stage.outcome.unwrap_or_else(|error| {
            println!("  FAIL  {}: {error:#}", stage.name);
            Tally::FAILURE
        });
        report(&stage.name, tally, stage.seconds, times);
        total.add(tally);
    }
    total
}

/// Runs the stages one after the other, until `stop` is set. Sends each result to `sender`.
fn run_all(
    root: &Path,
    (stages, is_idle): (&[Stage], bool),
    stop: &AtomicBool,
    sender: &Sender<FinishedStage>,
) {
    for &stage in stages {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let started = Instant::now();
        let (output, outcome) = match run_one(root, (stage, is_idle), stop) {
            Ok((output, outcome)) => (output, outcome),
            Err(error) => (String::new(), Err(error)),
        };
        let finished = FinishedStage {
            name: stage.name(),
            seconds: started.elapsed().as_secs_f32(),
            output,
            outcome,
        };
        if sender.send(finished).is_err() {
            return;
        }
    }
}

/// Runs `cargo xtask stage NAME`. Returns its output and its tally, which is the last line of the output. Fails if the
/// stage cannot be started, or is killed.
fn run_one(
    root: &Path,
    (stage, is_idle): (Stage, bool),
    stop: &AtomicBool,
) -> Result<(String, Result<Tally>)> {
    let name = stage.name();
    let this = std::env::current_exe().context("cannot tell where this program is")?;
    let mut command = match is_idle {
        true => {
            let mut command = process::command("chrt");
            command.args(["--idle", "0"]).arg(this);
            command
        }
        false => process::command(this),
    };
    command.args(["stage", &name]).current_dir(root);
    let log = scratch(root, "stages")?.join(format!("{name}.log"));
    let mut process = Process::start(&name, command, log)?;
    let deadline = Instant::now() + STAGE_TIMEOUT;
    loop {
        if let Some(ended) = process.poll(POLL)? {
            return Ok(split_tally(&process.output(), ended));
        }
        if stop.load(Ordering::Relaxed) || Instant::now() >= deadline {
            bail!("killed while it ran; its output: {}", process.tail());
        }
    }
}

/// Splits the output into the text before the tally and the tally. A process without a tally has failed. So has a
/// process that failed although its tally has no failure.
fn split_tally(output: &str, ended: Ended) -> (String, Result<Tally>) {
    let trimmed = output.trim_end();
    let (before, last) = trimmed.rsplit_once('\n').unwrap_or(("", trimmed));
    let Some(tally) = Tally::parse(last) else {
        let outcome = Err(anyhow::anyhow!("it ended without a result: {ended:?}"));
        return (output.to_owned(), outcome);
    };
    let succeeded = matches!(ended, Ended::Exited(status) if status.success());
    let outcome = if succeeded || tally.failed > 0 {
        Ok(tally)
    } else {
        Err(anyhow::anyhow!("it ended with {ended:?}"))
    };
    let before = if before.is_empty() {
        String::new()
    } else {
        format!("{before}\n")
    };
    (before, outcome)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    fn exited(code: i32) -> Ended {
        Ended::Exited(ExitStatus::from_raw(code << 8))
    }

    #[test]
    fn the_last_line_is_the_tally() {
        let (before, outcome) =
            split_tally("  ok    a: b\n2 passed, 0 failed, 1 skipped\n", exited(0));
        assert_eq!(before, "  ok    a: b\n");
        let tally = outcome.unwrap();
        assert_eq!((tally.passed, tally.failed, tally.skipped), (2, 0, 1));
    }

    #[test]
    fn a_process_that_ends_without_a_tally_or_badly_has_failed() {
        assert!(
            split_tally("thread main panicked\n", exited(101))
                .1
                .is_err()
        );
        assert!(split_tally("1 passed, 0 failed\n", exited(1)).1.is_err());
        assert!(
            split_tally("1 passed, 0 failed\n", Ended::Killed)
                .1
                .is_err()
        );
        assert_eq!(
            split_tally("0 passed, 1 failed\n", exited(1)).1.unwrap(),
            Tally::FAILURE
        );
    }
}
