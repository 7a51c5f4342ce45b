//! Records of changes, until they are written.

use std::time::Duration;

use sip::{Mono, Now};

use super::record::{MAX_RECORD, append, record_len};
use crate::location::{
    Binding, Change, ChangeError, Found, Location, MemoryLocation, Revision, Saved,
};
use crate::{Aor, AorKey, MAX_AOR};

/// A batch of this size is not waited with.
const FULL_BATCH_BYTES: usize = 256 << 10;
/// If nobody takes the batches, changes are refused from here on: they would be lost.
const MAX_PENDING_BYTES: usize = 64 << 20;

/// The records of one worker's changes that have not been taken yet.
#[derive(Debug)]
pub struct Journal {
    pending: Vec<u8>,
    /// When the first of them came.
    since: Option<Mono>,
    delay: Duration,
}

impl Journal {
    /// With batches that wait for this long. What was not taken is lost with the process.
    #[must_use]
    pub const fn new(delay: Duration) -> Journal {
        Journal {
            pending: Vec::new(),
            since: None,
            delay,
        }
    }

    /// Adds the record of an address that has these bindings now.
    ///
    /// # Errors
    /// [`ChangeError::Failed`] if nobody takes the batches, or the bindings are too many for a record.
    pub fn record(&mut self, now: Now, aor: &Aor, bindings: &[Binding]) -> Result<(), ChangeError> {
        let has_room = !self.is_full() && append(&mut self.pending, now, aor.as_bytes(), bindings);
        if !has_room {
            return Err(ChangeError::Failed);
        }
        self.since = self.since.or(Some(now.mono));
        Ok(())
    }

    /// Whether changes are refused.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.pending.len() >= MAX_PENDING_BYTES
    }

    /// When to take the batch.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Mono> {
        let since = self.since?;
        match self.pending.len() >= FULL_BATCH_BYTES {
            true => Some(since),
            false => Some(since.plus(self.delay)),
        }
    }

    /// The batch that is due. It is to be written by [`Log::write`](super::Log::write), after those that were taken
    /// before.
    pub fn take(&mut self, now: Mono) -> Option<Vec<u8>> {
        let is_due = self.next_deadline().is_some_and(|due| due <= now);
        is_due.then(|| self.take_all())
    }

    /// All records, due or not: the worker ends.
    pub fn take_all(&mut self) -> Vec<u8> {
        self.since = None;
        let room = self.pending.len();
        std::mem::replace(&mut self.pending, Vec::with_capacity(room))
    }
}

/// Bindings in memory whose changes go to a journal.
#[derive(Debug)]
pub struct Persistent {
    /// The bindings.
    pub memory: MemoryLocation,
    /// Their changes.
    pub journal: Journal,
}

impl Persistent {
    /// Whether the bindings fit into a record once they are changed so.
    fn fits(&mut self, aor: &Aor, changes: &[Change]) -> bool {
        let new = changes.iter().filter_map(|change| match change {
            Change::Add(binding) | Change::Replace(_, binding) => Some(binding),
            Change::Remove(_) | Change::SetGruu(..) => None,
        });
        let new: usize = new.map(record_len).sum();
        let Found::Bindings(_, bindings) = self.memory.find(aor) else {
            return false;
        };
        let old: usize = bindings.iter().map(record_len).sum();
        MAX_AOR + old + new <= MAX_RECORD && bindings.len() + changes.len() <= u16::MAX.into()
    }
}

impl Location for Persistent {
    fn find(&mut self, aor: &Aor) -> Found<'_> {
        self.memory.find(aor)
    }

    fn find_gruu(&mut self, key: AorKey, gruu: u64) -> Option<Aor> {
        self.memory.find_gruu(key, gruu)
    }

    fn find_key(&mut self, key: AorKey) -> Option<Aor> {
        self.memory.find_key(key)
    }

    fn change(
        &mut self,
        now: Now,
        aor: &Aor,
        basis: Revision,
        changes: &mut Vec<Change>,
    ) -> Result<Saved, ChangeError> {
        // What could not be recorded must not be changed.
        let error = match (self.journal.is_full(), self.fits(aor, changes)) {
            (true, _) => Some(ChangeError::Failed),
            (false, false) => Some(ChangeError::UserFull),
            (false, true) => None,
        };
        if let Some(error) = error {
            changes.clear();
            return Err(error);
        }
        let saved = self.memory.change(now, aor, basis, changes)?;
        if let Found::Bindings(_, bindings) = self.memory.find(aor) {
            self.journal.record(now, aor, bindings)?;
        }
        Ok(saved)
    }
}
