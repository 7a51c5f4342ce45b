//! Registration bindings that survive a restart: each worker sends its changes to one thread, which writes them to a
//! log in the state directory.
//!
//! A worker collects changes for [`COLLECT_TIME`] and sends them in one batch. The thread writes batches at once, and
//! synchronizes the file every two seconds. So the end of the process loses less than 1 s of accepted changes, and a
//! power cut less than 5 s.
//!
//! If the disk is full or fails, the server continues. Batches then wait, up to [`MAX_WAITING_BYTES`], and the thread
//! retries every second. Batches that do not fit are counted and lost. The next start does not have their bindings,
//! unless the phones register again before.
//!
//! A lock prevents other processes from using the log. For an upgrade, [`SharedLog`] writes everything and releases the
//! lock. If the new process ends, the old process opens the log again.

use crate::state_dir::{StateDir, StateError};
use sip::{HashKey, Mono, Now};
use sip_server::Aor;
use sip_server::AorHash;
use sip_server::AorKey;
use sip_server::location::{
    Binding, Change, ChangeError, Found, Limits, Location, MemoryLocation, Revision, Saved,
};
use sip_server::log::{Disk, Image, Journal, Log, OpenError, Persistent, Settings};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The log in the state directory.
const LOG_FILE: &str = "bindings.log";

/// How long a worker collects changes.
const COLLECT_TIME: Duration = Duration::from_millis(200);

/// The maximum of bytes in batches that wait to be written: about 200,000 changes of 300 bytes.
const MAX_WAITING_BYTES: u64 = 64 << 20;

/// How long the thread waits after an error before it retries.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How long the start waits for the lock of the previous process, and how often it tries the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The counters of the thread and of the workers.
#[derive(Debug, Default)]
struct SharedCounts {
    /// Bytes of batches that wait to be written.
    waiting: AtomicU64,
    failures: AtomicU64,
    lost: AtomicU64,
    log_bytes: AtomicU64,
}

/// The counters of the log.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StoreCounts {
    /// Attempts to write or synchronize that failed.
    pub(super) failures: u64,
    /// Batches that were lost.
    pub(super) lost: u64,
    /// Bytes of the log.
    pub(super) log_bytes: u64,
}

/// A job for the thread.
enum WriterJob {
    Write(Vec<u8>),
    /// Write and synchronize everything, then report whether that was possible.
    Flush(Sender<bool>),
}

/// The log of all workers. The last one that drops it waits until everything is written.
#[derive(Debug)]
pub(crate) struct Store {
    sender: Option<Sender<WriterJob>>,
    thread: Option<JoinHandle<()>>,
    counts: Arc<SharedCounts>,
}

impl Store {
    /// Opens the log, and loads each worker's bindings from it.
    ///
    /// # Errors
    /// [`StateError`] if another process has it, or it cannot be read.
    pub(crate) fn open(
        directory: &StateDir,
        key: HashKey,
        workers: u16,
        now: Now,
    ) -> Result<(Arc<Store>, Vec<MemoryLocation>), StateError> {
        let path = directory.file(LOG_FILE);
        let disk = open_disk(directory)?;
        let opened = Log::open(
            disk,
            Settings::default(),
            key.derive(u64::from_le_bytes(*b"bindings")),
        );
        let (log, image) = opened.map_err(|source| StateError::Log {
            path: path.clone(),
            source,
        })?;
        let hash = AorHash::new(key);
        let load = |worker| {
            let mut location = MemoryLocation::new(key, Limits::default());
            let failures = image.load(now, &hash, (worker, workers), &mut location);
            (location, failures)
        };
        let loaded: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..workers)
                .map(|worker| scope.spawn(move || load(worker)))
                .collect();
            let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            // A panic in a loading thread is a panic of the start.
            joined
                .map(|loaded| loaded.expect("loading does not panic"))
                .collect()
        });
        let report = image.report();
        let bindings: usize = loaded.iter().map(|(location, _)| location.len()).sum();
        let damaged = report.damaged + loaded.iter().map(|(_, failures)| failures).sum::<u64>();
        if report.cut > 0 || damaged > 0 {
            let cut = report.cut;
            tracing::warn!(cut, damaged, path = %path.display(), "the log of bindings was damaged: cut bytes from its end and ignored damaged records");
        }
        tracing::info!(bindings, bytes = image.len(), path = %path.display(), "bindings loaded");
        let (sender, receiver) = mpsc::channel();
        let counts = Arc::new(SharedCounts::default());
        counts.log_bytes.store(log.len(), Ordering::Relaxed);
        let writer = Writer {
            log,
            queue: VecDeque::new(),
            counts: counts.clone(),
            failing: false,
        };
        let thread = std::thread::Builder::new()
            .name("hairpin-store".to_owned())
            .spawn(move || writer.run(&receiver))
            .map_err(StateError::Thread)?;
        let store = Store {
            sender: Some(sender),
            thread: Some(thread),
            counts,
        };
        let locations = loaded.into_iter().map(|(location, _)| location);
        Ok((Arc::new(store), locations.collect()))
    }

    /// Sends a batch to the thread. A batch that does not fit is lost.
    fn save(&self, batch: Vec<u8>) {
        if batch.is_empty() {
            return;
        }
        let len = batch.len() as u64;
        let has_room = self.counts.waiting.load(Ordering::Relaxed) + len <= MAX_WAITING_BYTES;
        let sent = has_room && {
            self.counts.waiting.fetch_add(len, Ordering::Relaxed);
            let sender = self.sender.as_ref();
            sender.is_some_and(|sender| sender.send(WriterJob::Write(batch)).is_ok())
        };
        if !sent {
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes and synchronizes everything that was handed over before. Returns whether that was possible.
    fn flush(&self) -> bool {
        let (done, outcome) = mpsc::channel();
        let sender = self.sender.as_ref();
        let sent = sender.is_some_and(|sender| sender.send(WriterJob::Flush(done)).is_ok());
        sent && outcome.recv().unwrap_or(false)
    }

    fn counts(&self) -> StoreCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        StoreCounts {
            failures: of(&self.counts.failures),
            lost: of(&self.counts.lost),
            log_bytes: of(&self.counts.log_bytes),
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported there.
            let _ = thread.join();
        }
    }
}

/// The log of a server, which can release it for a process that takes over.
#[derive(Debug)]
pub(crate) struct SharedLog {
    directory: StateDir,
    key: HashKey,
    workers: u16,
    /// `None` while another process has the log.
    store: Mutex<Option<Arc<Store>>>,
}

impl SharedLog {
    /// Opens the log, and loads each worker's bindings from it.
    ///
    /// # Errors
    /// [`StateError`] if another process has it, or it cannot be read.
    pub(crate) fn open(
        directory: StateDir,
        key: HashKey,
        workers: u16,
        now: Now,
    ) -> Result<(SharedLog, Vec<WorkerBindings>), StateError> {
        let log = SharedLog {
            directory,
            key,
            workers,
            store: Mutex::new(None),
        };
        let kept = log.reopen(now)?;
        Ok((log, kept))
    }

    fn store(&self) -> MutexGuard<'_, Option<Arc<Store>>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another process may have the log.
    pub(crate) fn is_released(&self) -> bool {
        self.store().is_none()
    }

    /// Writes and synchronizes everything that workers have handed over. Returns whether that was possible.
    pub(crate) fn flush(&self) -> bool {
        self.store().as_ref().is_none_or(|store| store.flush())
    }

    /// Releases the log. No worker has it any more, so no write follows.
    pub(crate) fn release(&self) {
        drop(self.store().take());
    }

    /// Opens the log again, with the changes that another process has written.
    ///
    /// # Errors
    /// [`StateError`] if another process has it, or it cannot be read.
    pub(crate) fn reopen(&self, now: Now) -> Result<Vec<WorkerBindings>, StateError> {
        let (store, locations) = Store::open(&self.directory, self.key, self.workers, now)?;
        *self.store() = Some(Arc::clone(&store));
        let kept = locations.into_iter();
        Ok(kept
            .map(|location| WorkerBindings::saved(location, Arc::clone(&store)))
            .collect())
    }
}

/// Opens the file of the log. Waits for the lock, because the previous process may be about to end.
fn open_disk(directory: &StateDir) -> Result<Disk, StateError> {
    let path = directory.file(LOG_FILE);
    let until = Instant::now() + LOCK_TIMEOUT;
    loop {
        match Disk::open(&path) {
            Ok(disk) => return Ok(disk),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() >= until {
                    return Err(StateError::InUse {
                        path: directory.path().to_owned(),
                    });
                }
                std::thread::sleep(LOCK_RETRY_INTERVAL);
            }
            Err(source) => {
                return Err(StateError::Log {
                    path,
                    source: OpenError::Io(source),
                });
            }
        }
    }
}

/// The state of the thread that writes the log.
struct Writer {
    log: Log<Disk>,
    /// Batches that wait to be written, in their order.
    queue: VecDeque<Vec<u8>>,
    counts: Arc<SharedCounts>,
    failing: bool,
}

impl Writer {
    /// Writes the batches of the workers, until the last sender of jobs is dropped.
    fn run(mut self, jobs: &Receiver<WriterJob>) {
        let mut not_before = None;
        let mut flushes = Vec::new();
        loop {
            let now = super::reading::now();
            let wanted = self.log.next_deadline();
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
            let now = super::reading::now();
            let is_paused = not_before.is_some_and(|at| at > now.mono);
            if is_paused && !writes_all {
                continue;
            }
            let done = self.write(now, writes_all);
            for flush in flushes.drain(..) {
                // The caller may not wait any more.
                let _ = flush.send(done.is_ok());
            }
            not_before = done.is_err().then(|| now.mono.plus(RETRY_INTERVAL));
            self.report(done);
            if is_over {
                return;
            }
        }
    }

    fn write(&mut self, now: Now, writes_all: bool) -> io::Result<()> {
        while let Some(batch) = self.queue.front() {
            self.log.write(now.mono, batch)?;
            let len = batch.len() as u64;
            self.counts.waiting.fetch_sub(len, Ordering::Relaxed);
            self.queue.pop_front();
        }
        if writes_all {
            self.log.sync()?;
        } else if self.log.next_deadline().is_some_and(|at| at <= now.mono) {
            self.log.run(now)?;
        }
        self.counts
            .log_bytes
            .store(self.log.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Logs one line when writes begin to fail, and one when they succeed again.
    fn report(&mut self, done: io::Result<()>) {
        match done {
            Err(error) => {
                self.counts.failures.fetch_add(1, Ordering::Relaxed);
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::error!(%error, "cannot save registration bindings: they are in use, but a restart loses them; check the disk of server.state_dir");
                }
            }
            Ok(()) => {
                if std::mem::replace(&mut self.failing, false) {
                    tracing::info!("registration bindings are saved again");
                }
            }
        }
    }
}

/// The bindings of one worker, in memory or also in the log.
#[derive(Debug)]
pub(crate) enum WorkerBindings {
    /// Bindings that end with the process.
    InMemory(MemoryLocation),
    /// Bindings that are in the log, too.
    Saved(Persistent, Arc<Store>),
}

impl WorkerBindings {
    /// Bindings whose changes are saved.
    pub(crate) fn saved(memory: MemoryLocation, store: Arc<Store>) -> WorkerBindings {
        let journal = Journal::new(COLLECT_TIME);
        WorkerBindings::Saved(Persistent { memory, journal }, store)
    }

    fn memory(&self) -> &MemoryLocation {
        match self {
            WorkerBindings::InMemory(memory) => memory,
            WorkerBindings::Saved(persistent, _) => &persistent.memory,
        }
    }

    fn memory_mut(&mut self) -> &mut MemoryLocation {
        match self {
            WorkerBindings::InMemory(memory) => memory,
            WorkerBindings::Saved(persistent, _) => &mut persistent.memory,
        }
    }

    /// Takes those bindings of another process's records that `hash` gives to this worker.
    pub(super) fn take_records(
        &mut self,
        now: Now,
        image: &Image,
        hash: &AorHash,
        place: (u16, u16),
    ) {
        let failures = image.load(now, hash, place, self.memory_mut());
        if failures > 0 {
            tracing::warn!(failures, "some bindings from the old process were damaged");
        }
    }

    /// Sends all changes to the thread at once, because another process gets the log.
    pub(super) fn flush(&mut self) {
        if let WorkerBindings::Saved(persistent, store) = self {
            store.save(persistent.journal.take_all());
        }
    }

    /// Stops saving changes. The bindings stay in memory.
    pub(super) fn release(&mut self) {
        if let WorkerBindings::Saved(persistent, _) = self {
            *self = WorkerBindings::InMemory(persistent.memory.take());
        }
    }

    /// Removes bindings that another process has in its log.
    pub(super) fn clear(&mut self) {
        drop(self.memory_mut().take());
    }

    /// The bindings in `places` slots from `first` on, as records of a log; `None` behind the last slot.
    pub(super) fn records(&self, now: Now, first: usize, places: usize) -> Option<Vec<u8>> {
        let mut journal = Journal::new(Duration::ZERO);
        for (aor, bindings) in self.memory().part(first, places)? {
            // An address that does not fit into a record was not saved before.
            if let Some(aor) = Aor::from_canonical(aor) {
                let _ = journal.record(now, &aor, bindings);
            }
        }
        Some(journal.take_all())
    }

    /// The addresses of record at the next `places` places from `first` on, with their bindings; `None` after the last
    /// place. An address of record keeps its place as long as it has a binding.
    pub(super) fn part(
        &self,
        first: usize,
        places: usize,
    ) -> Option<impl Iterator<Item = (&[u8], &[Binding])>> {
        self.memory().part(first, places)
    }

    /// Sets other limits. Existing bindings stay.
    pub(super) fn set_limits(&mut self, limits: Limits) {
        self.memory_mut().set_limits(limits);
    }

    /// The number of bindings.
    pub(super) fn len(&self) -> usize {
        self.memory().len()
    }

    /// The time at which the next binding ends, or changes are to be saved.
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        let journal = match self {
            WorkerBindings::InMemory(_) => None,
            WorkerBindings::Saved(persistent, _) => persistent.journal.next_deadline(),
        };
        let ends = self.memory().next_deadline();
        [journal, ends].into_iter().flatten().min()
    }

    /// Removes the ended bindings of one address. Returns whether there were any.
    pub(super) fn expire(&mut self, now: Mono) -> Option<Aor> {
        // The log needs no record of that: each binding in it has its expiry.
        self.memory_mut().expire(now).map(|removed| removed.aor)
    }

    /// Sends the changes that are due to the thread.
    pub(super) fn save(&mut self, now: Mono) {
        if let WorkerBindings::Saved(persistent, store) = self
            && let Some(batch) = persistent.journal.take(now)
        {
            store.save(batch);
        }
    }

    /// The counters of the log, for all workers.
    pub(super) fn counts(&self) -> StoreCounts {
        match self {
            WorkerBindings::InMemory(_) => StoreCounts::default(),
            WorkerBindings::Saved(_, store) => store.counts(),
        }
    }

    fn location(&mut self) -> &mut dyn Location {
        match self {
            WorkerBindings::InMemory(memory) => memory,
            WorkerBindings::Saved(persistent, _) => persistent,
        }
    }
}

impl Drop for WorkerBindings {
    fn drop(&mut self) {
        if let WorkerBindings::Saved(persistent, store) = self {
            store.save(persistent.journal.take_all());
        }
    }
}

impl Location for WorkerBindings {
    fn find(&mut self, aor: &Aor) -> Found<'_> {
        self.location().find(aor)
    }

    fn find_gruu(&mut self, key: AorKey, gruu: u64) -> Option<Aor> {
        self.location().find_gruu(key, gruu)
    }

    fn find_key(&mut self, key: AorKey) -> Option<Aor> {
        self.location().find_key(key)
    }

    fn change(
        &mut self,
        now: Now,
        aor: &Aor,
        basis: Revision,
        changes: &mut Vec<Change>,
    ) -> Result<Saved, ChangeError> {
        self.location().change(now, aor, basis, changes)
    }
}
