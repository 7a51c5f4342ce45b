//! Writes a log, and keeps it short.

use std::io;
use std::time::Duration;

use sip::{HashKey, Mono, Now};

use super::compaction::{Compaction, Step};
use super::{FileHeader, HEADER_LEN, Image, beginning, header};

/// Where a log is kept. While the log is compacted, there is a second one beside it: its copy.
pub trait Storage {
    /// All bytes, for the start.
    ///
    /// # Errors
    /// Those of the storage, as for all functions here.
    fn read(&mut self) -> io::Result<Vec<u8>>;
    /// Reads this many bytes from a place on.
    fn read_at(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()>;
    /// Adds bytes at the end. After an error, some of them may be there.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Cuts off what is behind this length.
    fn truncate(&mut self, len: u64) -> io::Result<()>;
    /// Returns once all that was appended would survive a power cut.
    fn sync(&mut self) -> io::Result<()>;
    /// Begins an empty copy, and deletes an earlier one.
    fn begin_copy(&mut self) -> io::Result<()>;
    /// Adds bytes to the copy.
    fn append_to_copy(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// As [`Storage::sync`], of the copy.
    fn sync_copy(&mut self) -> io::Result<()>;
    /// Puts the copy in place of the log. A power cut before the next [`Storage::sync`] leaves one of the two. The copy
    /// has been synchronized.
    fn install_copy(&mut self) -> io::Result<()>;
}

/// How a log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What was written is synchronized after this time at the latest: a power cut loses no more. Default 2 s.
    pub sync_after: Duration,
    /// A log up to this length is not compacted. Default 16 MiB.
    pub min_len: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            sync_after: Duration::from_secs(2),
            min_len: 16 << 20,
        }
    }
}

/// Why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The storage failed.
    #[error("cannot read or write the location log: {0}")]
    Io(#[from] io::Error),
    /// Another version of the program wrote it.
    #[error("the location log has version {0}, which this program cannot read")]
    Version(u32),
    /// It is no log.
    #[error("the file is not a location log; move it away, or name another one")]
    Other,
}

/// A log that is written.
#[derive(Debug)]
pub struct Log<S> {
    storage: S,
    settings: Settings,
    key: HashKey,
    len: u64,
    /// The length after the last compaction. Before the first one: the length that a compaction at the start would have
    /// given.
    compact_len: u64,
    /// There may be bytes behind `len`, of a batch that could not be written.
    is_torn: bool,
    unsynced_since: Option<Mono>,
    compaction: Option<Compaction>,
}

impl<S: Storage> Log<S> {
    /// Opens a log, or begins one where there is none; cuts a torn end off. The image is what workers load from. `key`
    /// is a secret of any value.
    ///
    /// # Errors
    /// [`OpenError`] if the storage fails or has something else.
    pub fn open(
        mut storage: S,
        settings: Settings,
        key: HashKey,
    ) -> Result<(Log<S>, Image), OpenError> {
        let mut bytes = storage.read()?;
        match beginning(&bytes) {
            FileHeader::Ours => {}
            FileHeader::Unfinished => {
                storage.truncate(0)?;
                storage.append(&header())?;
                bytes = header().to_vec();
            }
            FileHeader::Version(version) => return Err(OpenError::Version(version)),
            FileHeader::Other => return Err(OpenError::Other),
        }
        let image = Image::new(bytes, key);
        if image.report().cut > 0 {
            storage.truncate(image.len())?;
        }
        storage.sync()?;
        let log = Log {
            storage,
            settings,
            key,
            len: image.len(),
            compact_len: image.compact_len(),
            is_torn: false,
            unsynced_since: None,
            compaction: None,
        };
        Ok((log, image))
    }

    /// Bytes of the log.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no record.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len <= HEADER_LEN as u64
    }

    /// The storage.
    #[must_use]
    pub const fn storage(&self) -> &S {
        &self.storage
    }

    /// The storage. What is written to it by hand is not part of the log.
    pub const fn storage_mut(&mut self) -> &mut S {
        &mut self.storage
    }

    /// Writes a batch. From then on the end of the process loses nothing of it.
    ///
    /// # Errors
    /// Those of the storage. Nothing of the batch is in the log then; it is to be written again later.
    pub fn write(&mut self, now: Mono, batch: &[u8]) -> io::Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        self.repair()?;
        if let Err(error) = self.storage.append(batch) {
            self.is_torn = true;
            // If this fails, too, it is tried again before the next batch.
            let _ = self.repair();
            return Err(error);
        }
        self.len += batch.len() as u64;
        self.unsynced_since = self.unsynced_since.or(Some(now));
        Ok(())
    }

    /// Removes what a failed write has left: a record behind it would never be found.
    fn repair(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.storage.truncate(self.len)?;
            self.is_torn = false;
        }
        Ok(())
    }

    /// Removes all records: they are saved elsewhere.
    ///
    /// # Errors
    /// Those of the storage. The records are still there then.
    pub fn clear(&mut self) -> io::Result<()> {
        self.storage.truncate(HEADER_LEN as u64)?;
        self.len = HEADER_LEN as u64;
        self.compact_len = self.len;
        self.is_torn = false;
        self.compaction = None;
        self.sync()
    }

    /// When to call [`Log::run`] next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Mono> {
        if self.compaction.is_some() || self.is_long() {
            return Some(Mono(0));
        }
        Some(self.unsynced_since?.plus(self.settings.sync_after))
    }

    /// Whether the log is longer than `min_len`, and more than twice as long as after the last compaction.
    const fn is_long(&self) -> bool {
        self.len > self.settings.min_len && self.len > 2 * self.compact_len
    }

    /// Does what is due: synchronizes, and compacts for some milliseconds. Batches can be written in between.
    ///
    /// # Errors
    /// Those of the storage. The log is as good as before, and a compaction begins anew.
    pub fn run(&mut self, now: Now) -> io::Result<()> {
        let due = self
            .unsynced_since
            .map(|since| since.plus(self.settings.sync_after));
        if due.is_some_and(|due| due <= now.mono) {
            self.sync()?;
        }
        let mut compaction = match self.compaction.take() {
            Some(compaction) => compaction,
            None if self.is_long() => {
                // A reader stops at a torn record, so what follows it would be lost.
                self.repair()?;
                self.storage.begin_copy()?;
                self.storage.append_to_copy(&header())?;
                Compaction::new(self.len, self.key)
            }
            None => return Ok(()),
        };
        match compaction.step(&mut self.storage, self.len, now) {
            Ok(Step::More) => {
                self.compaction = Some(compaction);
                Ok(())
            }
            Ok(Step::Done { len }) => {
                self.storage.install_copy()?;
                (self.len, self.compact_len) = (len, len);
                // From now on, records go to the copy. So a power cut must not bring the old file back.
                self.sync()
            }
            Err(error) => {
                // The error is likely to stay. So the next attempt waits until the log has doubled in length.
                self.compact_len = self.len;
                Err(error)
            }
        }
    }

    /// Synchronizes now: the process ends.
    ///
    /// # Errors
    /// Those of the storage.
    pub fn sync(&mut self) -> io::Result<()> {
        self.storage.sync()?;
        self.unsynced_since = None;
        Ok(())
    }
}
