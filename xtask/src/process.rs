//! Child processes that are bounded in time and never outlive their owner.
//!
//! A driver starts servers, peers and browsers, any of which may hang. Each child is killed by its process ID
//! when its [`Process`] is dropped, also during unwinding. If this program itself is killed, the kernel kills the
//! children (`PR_SET_PDEATHSIG`, which setpriv sets because this crate has no unsafe code). What they print goes
//! to a file, which can be read while they run and by a person afterwards.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How often a waiting driver looks again. Short beside what it waits for, long beside a system call.
const POLL: Duration = Duration::from_millis(10);

/// A command whose process dies with the thread that starts it. The child keeps the id of the process started.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// How a bounded process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Exited(ExitStatus),
    /// It was still running at its limit, and was killed.
    Killed,
}

/// A running child, its output in a file.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`, made by [`command`], with both outputs going to `log`.
    pub(crate) fn start(name: &str, command: Command, log: PathBuf) -> Result<Process> {
        Process::start_with_input(name, command, log, Stdio::null())
    }

    /// The same, for a process that reads.
    pub(crate) fn start_with_input(
        name: &str,
        mut command: Command,
        log: PathBuf,
        input: Stdio,
    ) -> Result<Process> {
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = command
            .stdin(input)
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Process {
            name: name.to_owned(),
            child,
            log,
        })
    }

    /// Waits for the process to end by itself; kills it at `limit`.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<Ended> {
        if let Some(ended) = self.poll(limit)? {
            return Ok(ended);
        }
        self.kill();
        Ok(Ended::Killed)
    }

    /// Waits for the process to end by itself; `None` if it still runs at `limit`.
    pub(crate) fn poll(&mut self, limit: Duration) -> Result<Option<Ended>> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(Ended::Exited(status)));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            sleep(POLL);
        }
    }

    /// Waits until `ready` finds what it looks for in the output so far.
    pub(crate) fn wait_for<T>(
        &mut self,
        limit: Duration,
        ready: impl Fn(&str) -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(found) = ready(&self.output()) {
                return Ok(found);
            }
            self.assert_running()?;
            if Instant::now() >= deadline {
                bail!(
                    "{} was not ready within {limit:?}; its output: {}",
                    self.name,
                    self.tail()
                );
            }
            sleep(POLL);
        }
    }

    /// Waits until the output so far, which need not be text, is what `ready` looks for.
    pub(crate) fn wait_for_bytes(
        &mut self,
        limit: Duration,
        ready: impl Fn(&[u8]) -> bool,
    ) -> Result<()> {
        let log = self.log.clone();
        self.wait_for(limit, |_| {
            std::fs::read(&log)
                .is_ok_and(|bytes| ready(&bytes))
                .then_some(())
        })
    }

    /// Fails if the process has ended.
    pub(crate) fn assert_running(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!(
                "{} ended early with {status}; its output: {}",
                self.name,
                self.tail()
            ),
        }
    }

    /// Asks the process to end, and waits for it to do so; `Killed` if it took longer than `limit`.
    pub(crate) fn stop(&mut self, limit: Duration) -> Result<Ended> {
        send(Signal::SIGTERM, self.child.id());
        self.wait(limit)
    }

    /// Sends a signal to the process alone.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(
            Pid::from_raw(i32::try_from(self.child.id())?),
            signal,
        )?)
    }

    /// The process's number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How many file descriptors the process has open.
    pub(crate) fn descriptors(&self) -> Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))?.count())
    }

    /// Everything printed so far.
    pub(crate) fn output(&self) -> String {
        std::fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// The last lines printed, for an error text, and where the rest is.
    pub(crate) fn tail(&self) -> String {
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        let last = lines[lines.len().saturating_sub(12)..].join("\n    ");
        format!("\n    {last}\n    (all of it: {})", self.log.display())
    }

    /// Kills the process and everything it has started: a driver killed alone would leave its browser running.
    fn kill(&mut self) {
        for id in descendants(self.child.id()) {
            send(Signal::SIGKILL, id);
        }
        // Both fail only if it has already been waited for, which is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Every process that `id` has started, directly or not, and that still runs.
fn descendants(id: u32) -> Vec<u32> {
    let mut found = vec![id];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        next += 1;
        let Ok(threads) = std::fs::read_dir(format!("/proc/{parent}/task")) else {
            continue;
        };
        for thread in threads.flatten() {
            let children =
                std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            found.extend(
                children
                    .split_whitespace()
                    .filter_map(|child| child.parse::<u32>().ok()),
            );
        }
    }
    found.split_off(1)
}

/// Sends a signal to one process. A process that has already ended is no error.
fn send(signal: Signal, id: u32) {
    if let Ok(id) = i32::try_from(id) {
        let _ = kill(Pid::from_raw(id), signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("xtask-{}-{name}.log", std::process::id()))
    }

    #[test]
    fn a_process_over_its_limit_is_killed() {
        let mut sleeper = command("sleep");
        sleeper.arg("60");
        let mut process = Process::start("sleep", sleeper, log("limit")).unwrap();
        assert_eq!(
            process.wait(Duration::from_millis(50)).unwrap(),
            Ended::Killed
        );
        assert!(process.assert_running().is_err());
        std::fs::remove_file(process.log()).unwrap();
    }

    #[test]
    fn a_kill_reaches_child_processes() {
        let mut shell = command("sh");
        shell.args(["-c", "sleep 60 & echo child $!; wait"]);
        let mut process = Process::start("sh", shell, log("family")).unwrap();
        let child = process.wait_for(Duration::from_secs(10), |output| {
            output
                .strip_prefix("child ")?
                .strip_suffix('\n')?
                .parse::<u32>()
                .ok()
        });
        let child = PathBuf::from(format!("/proc/{}", child.unwrap()));
        assert!(child.exists());
        std::fs::remove_file(process.log()).unwrap();
        drop(process);
        // Killed at once, but gone only when its new parent has taken note.
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::fs::read_to_string(child.join("stat")).is_ok_and(|stat| !stat.contains(") Z")) {
            assert!(Instant::now() < deadline, "the grandchild still runs");
            sleep(POLL);
        }
    }

    #[test]
    fn output_is_seen_while_the_process_runs() {
        let mut shell = command("sh");
        shell.args(["-c", "echo on port 4242; sleep 60"]);
        let mut process = Process::start("sh", shell, log("output")).unwrap();
        let port = process.wait_for(Duration::from_secs(10), |output| {
            output
                .split_once("on port ")
                .map(|(_, rest)| rest.trim().to_owned())
        });
        assert_eq!(port.unwrap(), "4242");
        assert!(matches!(
            process.stop(Duration::from_secs(10)).unwrap(),
            Ended::Exited(_)
        ));
        std::fs::remove_file(process.log()).unwrap();
    }

    #[test]
    fn a_process_that_ends_early_is_reported_with_its_output() {
        let mut shell = command("sh");
        shell.args(["-c", "echo no such flag; exit 3"]);
        let mut process = Process::start("sh", shell, log("early")).unwrap();
        let error = process
            .wait_for(Duration::from_secs(10), |_| None::<()>)
            .unwrap_err();
        assert!(format!("{error:#}").contains("no such flag"), "{error:#}");
        std::fs::remove_file(process.log()).unwrap();
    }
}
