//! Bindings in a database instead of a log.

use super::SaveError;
use sip::{HashKey, Mono};
use sip_server::log::{AddressState, Disk, Image, latest_states};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Between two writes. Changes of one address within this time are one row. With the time that a worker collects
/// changes, the end of the process loses less than 1 s.
const WRITE_INTERVAL: Duration = Duration::from_millis(500);

/// Batches of up to so many bytes together are one write: about 10,000 changes of 400 bytes.
const MAX_WRITE_BYTES: usize = 4 << 20;

/// A database that has the registration bindings of one server. Its functions may block: they run on a thread of the
/// server that does nothing else.
pub trait BindingDatabase: Debug + Send + Sync {
    /// Which database and which rows these are. Two servers with the same number have the same bindings, which decides
    /// what an upgrade hands over.
    fn id(&self) -> u64;

    /// The records of all bindings in any order, as [`AddressState::record`] has them.
    ///
    /// # Errors
    /// If the database does not answer, or refuses. The server tries again after a second.
    fn load(&self) -> Result<Vec<u8>, SaveError>;

    /// Replaces what the database has of these addresses. It must remove those without contacts.
    ///
    /// # Errors
    /// As for [`BindingDatabase::load`]. Some of the addresses may have been written then: they come again.
    fn save(&self, states: &[AddressState<'_>]) -> Result<(), SaveError>;
}

/// What was read from the database, until all workers have it.
#[derive(Debug, Default)]
pub(super) struct LoadedBindings {
    is_loaded: AtomicBool,
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

    /// The bindings for one of so many workers; `None` if they are not read yet. Each worker may ask once.
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

/// The database as the writing thread has it.
pub(super) struct SavedInDatabase {
    pub(super) database: Arc<dyn BindingDatabase>,
    pub(super) key: HashKey,
    pub(super) loaded: Arc<LoadedBindings>,
    /// Hears after each attempt whether the bindings were read.
    pub(super) starter: Sender<bool>,
    /// Other processes with this state directory wait.
    pub(super) _lock: Disk,
}

impl SavedInDatabase {
    pub(super) fn is_loaded(&self) -> bool {
        self.loaded.is_loaded.load(Ordering::Acquire)
    }

    /// Reads the bindings, if that was not done. Nothing is written before: it would replace rows that were not read.
    pub(super) fn load(&mut self) -> Result<(), SaveError> {
        if self.is_loaded() {
            return Ok(());
        }
        let loaded = self.database.load();
        let outcome = loaded.map(|records| {
            let image = Image::of_records(&records, self.key);
            self.loaded.set(image);
        });
        // The starter may not wait any more.
        let _ = self.starter.send(outcome.is_ok());
        outcome
    }

    /// Writes the first batches. Returns how many.
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
