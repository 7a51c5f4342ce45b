//! Programs that read commands and print events, one per line, until they are stopped.

use std::collections::VecDeque;
use std::io::{PipeWriter, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::process::Process;

/// How long a call waits for an event.
const EVENT_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A running program.
pub(super) struct Console {
    process: Process,
    input: PipeWriter,
    /// How many bytes of its output were read.
    read: usize,
    /// Lines that [`Console::take`] has not returned yet.
    kept: VecDeque<String>,
}

impl Console {
    /// Starts it. Its output goes to `log`.
    pub(super) fn start(name: &str, command: Command, log: PathBuf) -> Result<Console> {
        let (theirs, input) = std::io::pipe()?;
        let process = Process::start_with_input(name, command, log, Stdio::from(theirs))?;
        Ok(Console {
            process,
            input,
            read: 0,
            kept: VecDeque::new(),
        })
    }

    /// Runs a command.
    pub(super) fn command(&mut self, line: &str) -> Result<()> {
        writeln!(self.input, "{line}")?;
        Ok(())
    }

    /// Waits for a line that begins like this. Returns its rest. Drops the lines before it.
    pub(super) fn wait(&mut self, start: &str) -> Result<String> {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        loop {
            let output = self.process.output();
            let new = output.get(self.read..).unwrap_or_default();
            for line in new
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'))
            {
                self.read += line.len();
                if let Some(rest) = line.strip_prefix(start) {
                    return Ok(rest.trim().to_owned());
                }
            }
            self.process.assert_running()?;
            ensure!(
                Instant::now() < deadline,
                "no `{start}`: {}",
                self.process.tail()
            );
            sleep(POLL_INTERVAL);
        }
    }

    /// The lines that it has printed since they were last read.
    pub(super) fn new_lines(&mut self) -> Result<Vec<String>> {
        let output = self.process.output();
        let new = output.get(self.read..).unwrap_or_default();
        let lines = new.split_inclusive('\n');
        let whole: Vec<&str> = lines.filter(|line| line.ends_with('\n')).collect();
        self.read += whole.iter().map(|line| line.len()).sum::<usize>();
        self.process.assert_running()?;
        Ok(whole.into_iter().map(str::to_owned).collect())
    }

    /// Waits for a line that begins like this, and removes it. Returns its rest. Other lines stay for later calls.
    pub(super) fn take(&mut self, start: &str) -> Result<String> {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        loop {
            let new = self.new_lines()?;
            self.kept.extend(new);
            let place = self.kept.iter().position(|line| line.starts_with(start));
            if let Some(line) = place.and_then(|place| self.kept.remove(place)) {
                return Ok(line[start.len()..].trim().to_owned());
            }
            ensure!(
                Instant::now() < deadline,
                "no `{start}` but {:?}: {}",
                self.kept,
                self.process.tail()
            );
            sleep(POLL_INTERVAL);
        }
    }

    /// Drops all events up to now.
    pub(super) fn forget(&mut self) {
        self.read = self.process.output().len();
        self.kept.clear();
    }
}
