//! The thread that writes the changes of bindings.

use super::database::SavedInDatabase;
use super::{SaveError, SharedCounts};
use sip::{Mono, Now};
use sip_server::log::{Disk, Log};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

/// How long the thread waits after an error before it retries.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A job for the thread.
pub(super) enum WriterJob {
    Write(Vec<u8>),
    /// Write and synchronize everything, then report whether that was possible.
    Flush(Sender<bool>),
}

/// Where bindings are saved.
pub(super) enum Target {
    /// In the log of the state directory.
    Log(Log<Disk>),
    Database(SavedInDatabase),
}

impl Target {
    /// When to call [`Writer::write`] even if no batch waits.
    fn next_deadline(&self, now: Mono) -> Option<Mono> {
        match self {
            Target::Log(log) => log.next_deadline(),
            Target::Database(database) => (!database.is_loaded()).then_some(now),
        }
    }

    /// When to write next after a write at `now`; `None` if at once.
    fn next_write(&self, now: Mono) -> Option<Mono> {
        match self {
            Target::Log(_) => None,
            Target::Database(_) => Some(SavedInDatabase::next_write(now)),
        }
    }

    /// Writes the first batches. Returns how many batches it has written.
    fn write(&mut self, now: Mono, batches: &VecDeque<Vec<u8>>) -> Result<usize, SaveError> {
        match (self, batches.front()) {
            (_, None) => Ok(0),
            (Target::Log(log), Some(batch)) => {
                log.write(now, batch)?;
                Ok(1)
            }
            (Target::Database(database), Some(_)) => database.write(batches),
        }
    }

    /// After the batches: synchronizes the log if `writes_all`, else does its due work. A database requires neither.
    fn finish(&mut self, now: Now, writes_all: bool) -> Result<(), SaveError> {
        if let Target::Log(log) = self {
            if writes_all {
                log.sync()?;
            } else if log.next_deadline().is_some_and(|at| at <= now.mono) {
                log.run(now)?;
            }
        }
        Ok(())
    }

    pub(super) fn log_bytes(&self) -> u64 {
        match self {
            Target::Log(log) => log.len(),
            Target::Database(_) => 0,
        }
    }
}

/// The step that failed, and that the thread will retry.
enum Failure {
    Load(SaveError),
    Save(SaveError),
}

/// The state of the thread.
pub(super) struct Writer {
    pub(super) target: Target,
    /// Batches that wait to be written, in their order.
    pub(super) queue: VecDeque<Vec<u8>>,
    pub(super) counts: Arc<SharedCounts>,
    pub(super) failing: bool,
}

impl Writer {
    /// Writes the batches of the workers, until the last sender of jobs is dropped.
    pub(super) fn run(mut self, jobs: &Receiver<WriterJob>) {
        let mut not_before = None;
        let mut flushes = Vec::new();
        loop {
            let now = crate::sip::now();
            let wanted = self.target.next_deadline(now.mono);
            let wanted = wanted.or((!self.queue.is_empty()).then_some(now.mono));
            let at = not_before.max(wanted).filter(|_| wanted.is_some());
            let received = match at {
                Some(at) => jobs.recv_timeout(at.since(now.mono)),
                None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let is_over = matches!(received, Err(RecvTimeoutError::Disconnected));
            for job in received.into_iter().chain(jobs.try_iter()) {
                match job {
                    WriterJob::Write(batch) => self.queue.push_back(batch),
                    WriterJob::Flush(done) => flushes.push(done),
                }
            }
            let writes_all = is_over || !flushes.is_empty();
            let now = crate::sip::now();
            let is_paused = not_before.is_some_and(|at| at > now.mono);
            if is_paused && !writes_all {
                continue;
            }
            let done = self.write(now, writes_all);
            for flush in flushes.drain(..) {
                // The caller may not wait any more.
                let _ = flush.send(done.is_ok());
            }
            not_before = match done {
                Ok(()) => self.target.next_write(now.mono),
                Err(_) => Some(now.mono.plus(RETRY_INTERVAL)),
            };
            self.report(done);
            if is_over {
                return;
            }
        }
    }

    fn write(&mut self, now: Now, writes_all: bool) -> Result<(), Failure> {
        if let Target::Database(database) = &mut self.target {
            database.load().map_err(Failure::Load)?;
        }
        while !self.queue.is_empty() {
            let written = self.target.write(now.mono, &self.queue);
            let written = written.map_err(Failure::Save)?;
            let len: usize = self.queue.drain(..written).map(|batch| batch.len()).sum();
            self.counts.waiting.fetch_sub(len as u64, Ordering::Relaxed);
        }
        self.target.finish(now, writes_all).map_err(Failure::Save)?;
        self.counts
            .log_bytes
            .store(self.target.log_bytes(), Ordering::Relaxed);
        Ok(())
    }

    /// Logs one line when writes begin to fail, and one when they succeed again.
    fn report(&mut self, done: Result<(), Failure>) {
        let Err(failure) = done else {
            if std::mem::replace(&mut self.failing, false) {
                tracing::info!("registration bindings are saved again");
            }
            return;
        };
        self.counts.failures.fetch_add(1, Ordering::Relaxed);
        if std::mem::replace(&mut self.failing, true) {
            return;
        }
        match (failure, &self.target) {
            (Failure::Load(error), _) => {
                tracing::error!(%error, "cannot read registration bindings: the server tries again every second; check the database of sip.binding_database");
            }
            (Failure::Save(error), Target::Log(_)) => {
                tracing::error!(%error, "cannot save registration bindings: they are in use, but a restart loses them; check the disk of server.state_dir");
            }
            (Failure::Save(error), Target::Database(_)) => {
                tracing::error!(%error, "cannot save registration bindings: they are in use, but a restart loses them; check the database of sip.binding_database");
            }
        }
    }
}
