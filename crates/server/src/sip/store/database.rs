//! Bindings in a database instead of a log.

use super::SaveError;
use sip::{HashKey, Mono};
use sip_server::log::{AddressState, Disk, Image, Log, latest_states};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The time between two writes. Changes of one address within this time are one write of its row. A worker collects
/// changes for 200 ms before. So the end of the process loses less than 1 s of changes.
const WRITE_INTERVAL: Duration = Duration::from_millis(500);

/// The maximum of bytes of the batches in one write: about 10,000 changes of 400 bytes. A longer batch is a write of
/// its own.
const MAX_WRITE_BYTES: usize = 4 << 20;

/// A database that saves the registration bindings of one server. `load` and `save` may block: the server calls them on
/// the thread that writes bindings. `id` must not block.
pub trait BindingDatabase: Debug + Send + Sync {
    /// Identifies the database, and the rows of this server in it. In an upgrade, the old process sends its bindings
    /// only if the new process has another number.
    fn id(&self) -> u64;

    /// Reads the records of all addresses ([`AddressState::record`]). They follow each other in any order.
    ///
    /// # Errors
    /// If the database does not respond, or refuses. The server retries after a second.
    fn load(&self) -> Result<Vec<u8>, SaveError>;

    /// Replaces the saved states of these addresses. It must remove addresses without contacts.
    ///
    /// # Errors
    /// As for [`BindingDatabase::load`]. Even if some addresses were written, the server saves all of them again.
    fn save(&self, states: &[AddressState<'_>]) -> Result<(), SaveError>;
}

/// The bindings that were read from the database, until all workers have taken them.
#[derive(Debug, Default)]
pub(super) struct LoadedBindings {
    is_loaded: AtomicBool,
    /// The bindings, and how many workers have taken them.
    image: Mutex<Option<(Arc<Image>, u16)>>,
}

impl LoadedBindings {
    fn set(&self, image: Image) {
        *self.lock() = Some((Arc::new(image), 0));
        self.is_loaded.store(true, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Arc<Image>, u16)>> {
        self.image.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bindings, for one of `workers` workers; `None` if they are not read yet. A worker must not call it again
    /// after it has got them: the last of the workers removes them.
    pub(super) fn take(&self, workers: u16) -> Option<Arc<Image>> {
        if !self.is_loaded.load(Ordering::Acquire) {
            return None;
        }
        let mut slot = self.lock();
        let (image, taken) = slot.as_mut()?;
        let image = Arc::clone(image);
        *taken += 1;
        if *taken >= workers {
            *slot = None;
        }
        Some(image)
    }
}

/// The database, for the writing thread.
pub(super) struct SavedInDatabase {
    pub(super) database: Arc<dyn BindingDatabase>,
    pub(super) key: HashKey,
    pub(super) loaded: Arc<LoadedBindings>,
    /// Gets the outcome of each attempt to read the bindings: `true` if they were read.
    pub(super) load_outcomes: Sender<bool>,
    /// The log in the state directory, which stays empty. Its lock is that of the state directory.
    pub(super) log: Log<Disk>,
    /// The records of the log at the start. A server without a database has written them.
    pub(super) log_records: Vec<u8>,
}

impl SavedInDatabase {
    pub(super) fn is_loaded(&self) -> bool {
        self.loaded.is_loaded.load(Ordering::Acquire)
    }

    /// Reads the bindings, unless they were read. Call it before the first write, which would replace rows that were
    /// not read.
    pub(super) fn load(&mut self) -> Result<(), SaveError> {
        if self.is_loaded() {
            return Ok(());
        }
        let records = self.read();
        let outcome = records.map(|records| {
            let image = Image::of_records(&records, self.key);
            self.loaded.set(image);
        });
        // The start may have stopped waiting.
        let _ = self.load_outcomes.send(outcome.is_ok());
        outcome
    }

    /// The records of the database and of the log. Moves those of the log to the database.
    fn read(&mut self) -> Result<Vec<u8>, SaveError> {
        let mut records = self.database.load()?;
        if !self.log_records.is_empty() {
            self.database.save(&latest_states(&self.log_records))?;
            self.log.clear()?;
            // The last record of an address counts.
            records.append(&mut self.log_records);
        }
        Ok(records)
    }

    /// Writes the first batches. Returns how many batches it has written.
    pub(super) fn write(&mut self, batches: &VecDeque<Vec<u8>>) -> Result<usize, SaveError> {
        let mut records = Vec::new();
        let mut count = 0;
        for batch in batches {
            if count > 0 && records.len() + batch.len() > MAX_WRITE_BYTES {
                break;
            }
            records.extend_from_slice(batch);
            count += 1;
        }
        self.database.save(&latest_states(&records))?;
        Ok(count)
    }

    /// When to write again.
    pub(super) fn next_write(now: Mono) -> Mono {
        now.plus(WRITE_INTERVAL)
    }
}
