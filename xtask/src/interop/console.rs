//! Programs that read commands and print events, a line each, until they are stopped.

use std::collections::VecDeque;
use std::io::{PipeWriter, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::process::Process;

/// How long an event may take to come.
const LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);

/// A running program.
pub(super) struct Console {
    process: Process,
    input: PipeWriter,
    /// How many bytes of its output were looked at.
    read: usize,
    /// Lines that [`Console::take`] has not returned yet.
    kept: VecDeque<String>,
}

impl Console {
    /// Starts it. What it prints goes to `log`.
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

    /// Has it do something.
    pub(super) fn command(&mut self, line: &str) -> Result<()> {
        writeln!(self.input, "{line}")?;
        Ok(())
    }

    /// Waits for a line that begins like this. Returns the rest of it. Lines before it are forgotten.
    pub(super) fn wait(&mut self, start: &str) -> Result<String> {
        let deadline = Instant::now() + LIMIT;
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
            sleep(POLL);
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

    /// Waits for a line that begins like this, and removes it. Returns the rest of it. Other lines stay for later calls.
    pub(super) fn take(&mut self, start: &str) -> Result<String> {
        let deadline = Instant::now() + LIMIT;
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
            sleep(POLL);
        }
    }

    /// Forgets the events of the past.
    pub(super) fn forget(&mut self) {
        self.read = self.process.output().len();
        self.kept.clear();
    }
}
