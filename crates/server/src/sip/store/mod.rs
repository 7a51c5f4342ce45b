//! Registration bindings that survive a restart: each worker sends its changes to one thread, which writes them to a
//! log in the state directory, or to a database.
//!
//! A worker collects changes and sends them in one batch. The thread writes batches to the log at once, and
//! synchronizes the file every two seconds. So the end of the process loses less than 1 s of accepted changes, and a
//! power cut less than 5 s. The thread writes to a database at most twice per second.
//!
//! If the disk or the database fails, the server continues. Batches then wait, up to [`MAX_WAITING_BYTES`], and the
//! thread retries every second. Batches that do not fit are counted and lost. The next start does not have their
//! bindings, unless the phones register again before. If the bindings of a database cannot be read at
//! the start, the server starts without them, and adds them later.
//!
//! The lock of the state directory prevents a second process from using the log or the database. For an upgrade,
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
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
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

/// How long the start waits for a database that does not respond.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the start waits until the bindings of a database are read.
const LOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// The counters of the thread and of the workers.
#[derive(Debug, Default)]
struct SharedCounts {
    /// Bytes of batches that wait to be written.
    waiting: AtomicU64,
    failures: AtomicU64,
    lost: AtomicU64,
    log_bytes: AtomicU64,
}

/// The counters of the log or the database.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StoreCounts {
    /// Failed attempts to read a database, to write or to synchronize.
    pub(super) failures: u64,
    /// Batches that were lost.
    pub(super) lost: u64,
    /// Bytes of the log; 0 with a database.
    pub(super) log_bytes: u64,
}

/// The workers' connection to the writing thread. Dropping it waits until the thread ends. Before its end, the thread
/// tries once more to write everything.
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
    /// If it is set, it has the bindings. The directory then has only the key and the lock.
    pub(crate) database: Option<Arc<dyn BindingDatabase>>,
}

/// Identifies where a process saves bindings; 0 if it does not save them. In an upgrade, a new process with the same
/// number reads the bindings there. The old process sends them to a new process with another number.
pub(crate) fn place_id(directory: Option<&Path>, database: Option<&dyn BindingDatabase>) -> u64 {
    let Some(directory) = directory else {
        return 0;
    };
    let mut hasher = DefaultHasher::new();
    match database {
        Some(database) => (1u8, database.id()).hash(&mut hasher),
        None => (0u8, directory).hash(&mut hasher),
    }
    hasher.finish().max(1)
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
            return Ok(attach_store(loaded, &store, None));
        };
        let (log, image) = file::open(&place.directory, image_key)?;
        let (load_outcomes, outcomes) = mpsc::channel();
        let loaded = Arc::default();
        let target = Target::Database(SavedInDatabase {
            database: Arc::clone(database),
            key: image_key,
            loaded: Arc::clone(&loaded),
            load_outcomes,
            log,
            log_records: image.records().to_vec(),
        });
        let store = Arc::new(Store::start(target, loaded)?);
        wait_until_loaded(&outcomes);
        let Some(image) = store.loaded.take(1) else {
            let empty = |_| MemoryLocation::new(key, Limits::default());
            let late = Some((AorHash::new(key), now));
            let empty = (0..workers).map(empty).collect();
            return Ok(attach_store(empty, &store, late));
        };
        let loaded = load(&image, key, workers, now, "database");
        Ok(attach_store(loaded, &store, None))
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
        let waiting = self.counts.waiting.load(Ordering::Relaxed);
        match waiting + batch.len() as u64 <= MAX_WAITING_BYTES {
            true => self.save_without_limit(batch),
            false => self.count_lost(),
        }
    }

    /// The same for a batch of any length.
    fn save_without_limit(&self, batch: Vec<u8>) {
        if batch.is_empty() {
            return;
        }
        let len = batch.len() as u64;
        self.counts.waiting.fetch_add(len, Ordering::Relaxed);
        let sender = self.sender.as_ref();
        if sender.is_none_or(|sender| sender.send(WriterJob::Write(batch)).is_err()) {
            self.count_lost();
        }
    }

    fn count_lost(&self) {
        self.counts.lost.fetch_add(1, Ordering::Relaxed);
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

/// The bindings of all workers, whose changes `store` saves. `late` is set if the database has not been read yet.
fn attach_store(
    loaded: Vec<MemoryLocation>,
    store: &Arc<Store>,
    late: Option<(AorHash, Now)>,
) -> Vec<WorkerBindings> {
    let workers = u16::try_from(loaded.len()).unwrap_or(u16::MAX);
    let bindings = (0..).zip(loaded).map(|(worker, location)| {
        let late = late.map(|(hash, now)| LateLoad {
            hash,
            place: (worker, workers),
            next_check: now.mono,
        });
        WorkerBindings::saved(location, Arc::clone(store), late)
    });
    bindings.collect()
}

/// Waits until the writing thread has read the bindings of the database. Does not wait longer than
/// [`DATABASE_TIMEOUT`] if attempts fail.
fn wait_until_loaded(outcomes: &Receiver<bool>) {
    let begun = Instant::now();
    loop {
        let left = LOAD_TIMEOUT.saturating_sub(begun.elapsed());
        match outcomes.recv_timeout(left) {
            Ok(true) => return,
            Ok(false) if begun.elapsed() < DATABASE_TIMEOUT => {}
            Ok(false) | Err(_) => break,
        }
    }
    tracing::warn!(
        "the server starts without the saved registration bindings: it adds them as soon as it has read them"
    );
}

/// The log or the database of a server. The server can release it for a process that takes over.
#[derive(Debug)]
pub(crate) struct SharedLog {
    place: SavePlace,
    key: HashKey,
    workers: u16,
    /// `None` while another process has the log.
    store: Mutex<Option<Arc<Store>>>,
}

impl SharedLog {
    /// Opens the log or the database, and loads each worker's bindings from it.
    ///
    /// # Errors
    /// [`StateError`] if another process has the lock, or the log cannot be read.
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

    /// Opens the log or the database again, with the changes that another process has written.
    ///
    /// # Errors
    /// [`StateError`] if another process has the lock, or the log cannot be read.
    pub(crate) fn reopen(&self, now: Now) -> Result<Vec<WorkerBindings>, StateError> {
        let kept = Store::open(&self.place, self.key, self.workers, now)?;
        *self.store() = kept.first().and_then(WorkerBindings::store).cloned();
        Ok(kept)
    }

    /// Identifies where this server saves bindings: see [`place_id`].
    pub(crate) fn place_id(&self) -> u64 {
        let directory = self.place.directory.path();
        place_id(Some(directory), self.place.database.as_deref())
    }
}
