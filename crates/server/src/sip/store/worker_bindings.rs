//! The bindings of one worker.

use super::{Store, StoreCounts};
use sip::{Mono, Now};
use sip_server::location::{
    Binding, Change, ChangeError, Found, Limits, Location, MemoryLocation, Revision, Saved,
};
use sip_server::log::{Image, Journal, Persistent};
use sip_server::{Aor, AorHash, AorKey};
use std::sync::Arc;
use std::time::Duration;

/// How long a worker collects changes.
const COLLECT_TIME: Duration = Duration::from_millis(200);

/// How often a worker checks whether the bindings of the database have been read.
const LOAD_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The bindings of one worker, in memory or also saved.
#[derive(Debug)]
pub(crate) enum WorkerBindings {
    /// Bindings that end with the process.
    InMemory(MemoryLocation),
    /// Bindings that are saved, too. The last part is set if those of the previous run have not been read yet.
    Saved(Persistent, Arc<Store>, Option<LateLoad>),
}

/// A worker waits for the bindings of the previous run, because the database was not read in time at the start.
#[derive(Debug)]
pub(crate) struct LateLoad {
    /// Selects the worker of an address of record.
    pub(super) hash: AorHash,
    /// The number of the worker, and how many workers there are.
    pub(super) place: (u16, u16),
    /// When to check next whether they have been read.
    pub(super) next_check: Mono,
}

impl WorkerBindings {
    /// Bindings whose changes are saved.
    pub(super) fn saved(
        memory: MemoryLocation,
        store: Arc<Store>,
        late: Option<LateLoad>,
    ) -> WorkerBindings {
        let journal = Journal::new(COLLECT_TIME);
        WorkerBindings::Saved(Persistent { memory, journal }, store, late)
    }

    /// The handle of the thread that writes the bindings; `None` if they are not saved.
    pub(super) fn store(&self) -> Option<&Arc<Store>> {
        match self {
            WorkerBindings::InMemory(_) => None,
            WorkerBindings::Saved(_, store, _) => Some(store),
        }
    }

    fn memory(&self) -> &MemoryLocation {
        match self {
            WorkerBindings::InMemory(memory) => memory,
            WorkerBindings::Saved(persistent, ..) => &persistent.memory,
        }
    }

    fn memory_mut(&mut self) -> &mut MemoryLocation {
        match self {
            WorkerBindings::InMemory(memory) => memory,
            WorkerBindings::Saved(persistent, ..) => &mut persistent.memory,
        }
    }

    /// Saves the records that another process has handed over. They are those of all workers, so one worker saves them.
    pub(in crate::sip) fn save_records(&self, records: &[u8]) {
        if let WorkerBindings::Saved(_, store, _) = self {
            store.save_without_limit(records.to_vec());
        }
    }

    /// Loads the bindings that another process has handed over and that `hash` assigns to this worker. `place` has the
    /// number of this worker, and how many workers there are.
    pub(in crate::sip) fn take_records(
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

    /// Sends all changes to the writing thread without delay, because another process is about to write the log.
    pub(in crate::sip) fn flush(&mut self) {
        if let WorkerBindings::Saved(persistent, store, _) = self {
            store.save(persistent.journal.take_all());
        }
    }

    /// Stops saving changes. The bindings stay in memory.
    pub(in crate::sip) fn release(&mut self) {
        if let WorkerBindings::Saved(persistent, ..) = self {
            *self = WorkerBindings::InMemory(persistent.memory.take());
        }
    }

    /// Removes all bindings from memory, because another process saves them now.
    pub(in crate::sip) fn clear(&mut self) {
        drop(self.memory_mut().take());
    }

    /// The bindings in `places` slots from `first` on, as records of a log; `None` after the last slot.
    pub(in crate::sip) fn records(&self, now: Now, first: usize, places: usize) -> Option<Vec<u8>> {
        let mut journal = Journal::new(Duration::ZERO);
        for (aor, bindings) in self.memory().part(first, places)? {
            // A record that cannot be made is left out. It was not saved before either.
            if let Some(aor) = Aor::from_canonical(aor) {
                let _ = journal.record(now, &aor, bindings);
            }
        }
        Some(journal.take_all())
    }

    /// The addresses of record in `places` slots from `first` on, with their bindings; `None` after the last slot. An
    /// address of record keeps its slot as long as it has a binding.
    pub(in crate::sip) fn part(
        &self,
        first: usize,
        places: usize,
    ) -> Option<impl Iterator<Item = (&[u8], &[Binding])>> {
        self.memory().part(first, places)
    }

    /// Sets other limits. Existing bindings stay.
    pub(in crate::sip) fn set_limits(&mut self, limits: Limits) {
        self.memory_mut().set_limits(limits);
    }

    /// The number of bindings.
    pub(in crate::sip) fn len(&self) -> usize {
        self.memory().len()
    }

    /// When the next binding ends, changes are to be saved, or late bindings are to be checked for.
    pub(in crate::sip) fn next_deadline(&self) -> Option<Mono> {
        let (journal, late) = match self {
            WorkerBindings::InMemory(_) => (None, None),
            WorkerBindings::Saved(persistent, _, late) => {
                (persistent.journal.next_deadline(), late.as_ref())
            }
        };
        let ends = self.memory().next_deadline();
        let late = late.map(|late| late.next_check);
        [journal, ends, late].into_iter().flatten().min()
    }

    /// Removes the expired bindings of one address. Returns the address; `None` if no binding has expired.
    pub(in crate::sip) fn expire(&mut self, now: Mono) -> Option<Aor> {
        // That is not saved: each saved binding has its expiry.
        self.memory_mut().expire(now).map(|removed| removed.aor)
    }

    /// Adds the bindings of the previous run, if they have been read late and were not added before. Returns whether it
    /// has added them.
    pub(in crate::sip) fn load_late(&mut self, now: Mono) -> bool {
        let WorkerBindings::Saved(persistent, store, late) = self else {
            return false;
        };
        let Some(waiting) = late.as_mut().filter(|late| late.next_check <= now) else {
            return false;
        };
        let Some(image) = store.loaded.take(waiting.place.1) else {
            waiting.next_check = now.plus(LOAD_CHECK_INTERVAL);
            return false;
        };
        let (hash, place) = (waiting.hash, waiting.place);
        let now = crate::sip::now();
        let failures = image.merge(now, &hash, place, persistent) + image.report().damaged;
        let (worker, bindings) = (place.0, persistent.memory.len());
        tracing::info!(
            worker,
            bindings,
            failures,
            "bindings of the previous run loaded late"
        );
        *late = None;
        true
    }

    /// Keeps the bindings of `before` until those of the database are read. Otherwise `self` has them, and newer ones.
    pub(in crate::sip) fn keep_until_loaded(&mut self, before: &mut WorkerBindings) {
        if let WorkerBindings::Saved(persistent, _, Some(_)) = self {
            persistent.memory = before.memory_mut().take();
        }
    }

    /// Sends the changes that have waited for [`COLLECT_TIME`] to the writing thread.
    pub(in crate::sip) fn save(&mut self, now: Mono) {
        if let WorkerBindings::Saved(persistent, store, _) = self
            && let Some(batch) = persistent.journal.take(now)
        {
            store.save(batch);
        }
    }

    /// The counters of the log or the database, for all workers.
    pub(in crate::sip) fn counts(&self) -> StoreCounts {
        match self {
            WorkerBindings::InMemory(_) => StoreCounts::default(),
            WorkerBindings::Saved(_, store, _) => store.counts(),
        }
    }

    fn location(&mut self) -> &mut dyn Location {
        match self {
            WorkerBindings::InMemory(memory) => memory,
            WorkerBindings::Saved(persistent, ..) => persistent,
        }
    }
}

impl Drop for WorkerBindings {
    fn drop(&mut self) {
        if let WorkerBindings::Saved(persistent, store, _) = self {
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
