//! Registration bindings that survive a restart: each worker sends its changes to one thread, which writes them to a
//! log in the state directory, or to a database.
//!
//! A worker collects changes and sends them in one batch. The thread writes batches to the log at once, and synchronizes
//! the file every two seconds. So the end of the process loses less than 1 s of accepted changes, and a power cut less
//! than 5 s. It writes to a database twice per second.
//!
//! If the disk or the database fails, the server continues. Batches then wait, up to [`MAX_WAITING_BYTES`], and the
//! thread retries every second. Batches that do not fit are counted and lost. The next start does not have their
//! bindings, unless the phones register again before. If the database does not respond at the start, the server starts
//! without its bindings, and adds them when it responds.
//!
//! A lock prevents other processes from using the log, or the database with the same state directory. For an upgrade,
//! [`SharedLog`] writes everything and releases the lock. If the new process ends, the old process opens the log again.

mod database;
mod file;
mod worker_bindings;
mod writer;

use crate::state_dir::{StateDir, StateError};
pub use database::BindingDatabase;
use database::{LoadedBindings, SavedInDatabase};
use sip::{HashKey, Now};
use sip_server::AorHash;
use sip_server::location::{Limits, MemoryLocation};
use sip_server::log::Image;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use worker_bindings::LateLoad;
pub(crate) use worker_bindings::WorkerBindings;
use writer::{Target, Writer, WriterJob};

/// Why bindings cannot be read or saved.
pub type SaveError = Box<dyn std::error::Error + Send + Sync>;

/// The maximum of bytes in batches that wait to be written: about 200,000 changes of 300 bytes.
const MAX_WAITING_BYTES: u64 = 64 << 20;

/// How long the start waits for the bindings of a database.
const LOAD_TIMEOUT: Duration = Duration::from_secs(5);

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

/// The writing thread as the workers see it. The last one that drops it waits until everything is written.
#[derive(Debug)]
pub(crate) struct Store {
    sender: Option<Sender<WriterJob>>,
    thread: Option<JoinHandle<()>>,
    counts: Arc<SharedCounts>,
    loaded: Arc<LoadedBindings>,
}

/// Where a server saves its bindings.
#[derive(Debug)]
pub(crate) struct SavePlace {
    pub(crate) directory: StateDir,
    /// If it is set, bindings are there, and the directory only has the lock.
    pub(crate) database: Option<Arc<dyn BindingDatabase>>,
}

/// The number of the place without a database, for an upgrade. 0 means that bindings are not saved.
const LOG_ID: u64 = 1;

/// The number of a place: two processes with the same number have the same bindings.
pub(crate) fn place_id(has_directory: bool, database: Option<&dyn BindingDatabase>) -> u64 {
    match (has_directory, database) {
        (false, _) => 0,
        (true, None) => LOG_ID,
        (true, Some(database)) => database.id().max(LOG_ID + 1),
    }
}

impl Store {
    /// Opens the log or the database, and loads each worker's bindings.
    ///
    /// # Errors
    /// [`StateError`] if another process has the lock, or the log cannot be read.
    fn open(
        place: &SavePlace,
        key: HashKey,
        workers: u16,
        now: Now,
    ) -> Result<Vec<WorkerBindings>, StateError> {
        let image_key = key.derive(u64::from_le_bytes(*b"bindings"));
        let Some(database) = &place.database else {
            let (log, image) = file::open(&place.directory, image_key)?;
            let path = file::path(&place.directory).display().to_string();
            let loaded = load(&image, key, workers, now, &path);
            let store = Arc::new(Store::start(Target::Log(log), Arc::default())?);
            return Ok(saved(loaded, &store, None));
        };
        let (starter, started) = mpsc::channel();
        let loaded = Arc::default();
        let target = Target::Database(SavedInDatabase {
            database: Arc::clone(database),
            key: image_key,
            loaded: Arc::clone(&loaded),
            starter,
            _lock: file::lock(&place.directory)?,
        });
        let store = Arc::new(Store::start(target, loaded)?);
        wait_until_loaded(&started);
        let Some(image) = store.loaded.take(1) else {
            let empty = |_| MemoryLocation::new(key, Limits::default());
            let late = Some((AorHash::new(key), now));
            return Ok(saved((0..workers).map(empty).collect(), &store, late));
        };
        let loaded = load(&image, key, workers, now, "database");
        Ok(saved(loaded, &store, None))
    }

    fn start(target: Target, loaded: Arc<LoadedBindings>) -> Result<Store, StateError> {
        let (sender, receiver) = mpsc::channel();
        let counts = Arc::new(SharedCounts::default());
        counts
            .log_bytes
            .store(target.log_bytes(), Ordering::Relaxed);
        let writer = Writer {
            target,
            queue: VecDeque::new(),
            counts: counts.clone(),
            failing: false,
        };
        let thread = std::thread::Builder::new()
            .name("hairpin-store".to_owned())
            .spawn(move || writer.run(&receiver))
            .map_err(StateError::Thread)?;
        Ok(Store {
            sender: Some(sender),
            thread: Some(thread),
            counts,
            loaded,
        })
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

/// Loads the bindings of all workers, each on a thread.
fn load(image: &Image, key: HashKey, workers: u16, now: Now, path: &str) -> Vec<MemoryLocation> {
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
        tracing::warn!(
            cut,
            damaged,
            path,
            "the log of bindings was damaged: cut bytes from its end and ignored damaged records"
        );
    }
    tracing::info!(bindings, bytes = image.len(), path, "bindings loaded");
    loaded.into_iter().map(|(location, _)| location).collect()
}

/// The bindings of all workers. `late`: the database has not responded yet.
fn saved(
    loaded: Vec<MemoryLocation>,
    store: &Arc<Store>,
    late: Option<(AorHash, Now)>,
) -> Vec<WorkerBindings> {
    let workers = u16::try_from(loaded.len()).unwrap_or(u16::MAX);
    let bindings = (0..).zip(loaded).map(|(worker, location)| {
        let late = late.map(|(hash, now)| LateLoad {
            hash,
            place: (worker, workers),
            at: now.mono,
        });
        WorkerBindings::saved(location, Arc::clone(store), late)
    });
    bindings.collect()
}

/// Waits until the writing thread has read the bindings of the database, but not for long.
fn wait_until_loaded(started: &Receiver<bool>) {
    let until = Instant::now() + LOAD_TIMEOUT;
    while let Ok(false) = started.recv_timeout(until.saturating_duration_since(Instant::now())) {}
}

/// The log of a server, or its database. The server can release it for a process that takes over.
#[derive(Debug)]
pub(crate) struct SharedLog {
    place: SavePlace,
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
        place: SavePlace,
        key: HashKey,
        workers: u16,
        now: Now,
    ) -> Result<(SharedLog, Vec<WorkerBindings>), StateError> {
        let log = SharedLog {
            place,
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
        let kept = Store::open(&self.place, self.key, self.workers, now)?;
        *self.store() = kept.first().and_then(WorkerBindings::store).cloned();
        Ok(kept)
    }

    /// The number of its place: see [`place_id`].
    pub(crate) fn place_id(&self) -> u64 {
        place_id(true, self.place.database.as_deref())
    }
}
