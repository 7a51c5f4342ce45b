//! The bindings of one worker, in memory.

use hashbrown::HashTable;
use sip::{HashKey, Mono, Now};
use timers::Wheel;

use super::{Binding, Change, ChangeError, Found, Location, Revision, Saved};
use crate::{Aor, AorHash, AorKey};

/// Bindings expire with a resolution of one second.
const TICK_NS: u64 = 1_000_000_000;

/// How many bindings there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bindings of one address of record, with those that crashed phones have left behind. Default 10.
    pub per_user: usize,
    /// Bindings in all. Default 1,000,000.
    pub total: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            per_user: 10,
            total: 1_000_000,
        }
    }
}

/// Bindings in memory.
#[derive(Debug)]
pub struct MemoryLocation {
    limits: Limits,
    hash: AorHash,
    /// Indices of records, by the keys of their addresses.
    table: HashTable<u32>,
    records: Vec<Record>,
    /// Indices of records that are free.
    free: Vec<u32>,
    /// One timer for each record: the earliest expiry of its bindings.
    wheel: Wheel<TICK_NS>,
    bindings: usize,
    /// The revision of the latest change.
    revision: u64,
}

/// An address of record with at least one binding, or a free slot.
#[derive(Debug, Default)]
struct Record {
    /// The hash of the address ([`AorKey`]).
    key: u64,
    /// The revision of its latest change.
    revision: u64,
    aor: Box<[u8]>,
    bindings: Vec<Binding>,
}

/// What [`MemoryLocation::expire`] has removed.
#[derive(Debug)]
pub struct Removed {
    /// The address of record.
    pub aor: Aor,
    /// Its bindings that have ended; others may be left.
    pub bindings: Vec<Binding>,
}

impl MemoryLocation {
    /// A location without bindings. `key` must be the same for all workers and runs.
    #[must_use]
    pub fn new(key: HashKey, limits: Limits) -> MemoryLocation {
        MemoryLocation {
            limits,
            hash: AorHash::new(key),
            table: HashTable::new(),
            records: Vec::new(),
            free: Vec::new(),
            wheel: Wheel::new(),
            bindings: 0,
            revision: 0,
        }
    }

    /// Sets other limits. Existing bindings stay.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// The number of bindings. It includes expired ones that [`MemoryLocation::expire`] has not removed yet.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bindings
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bindings == 0
    }

    /// The number of addresses of record with bindings.
    #[must_use]
    pub fn addresses(&self) -> usize {
        self.table.len()
    }

    /// All addresses of record and their bindings, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[Binding])> {
        let used = self
            .records
            .iter()
            .filter(|record| !record.bindings.is_empty());
        used.map(|record| (&record.aor[..], &record.bindings[..]))
    }

    /// The addresses of record at the next `places` places from `first` on, with their bindings; `None` after the last
    /// place. An address of record keeps its place as long as it has a binding. One that is new between two calls may
    /// be missing.
    pub fn part(
        &self,
        first: usize,
        places: usize,
    ) -> Option<impl Iterator<Item = (&[u8], &[Binding])>> {
        let rest = self.records.get(first..).filter(|rest| !rest.is_empty())?;
        let part = rest.iter().take(places);
        let used = part.filter(|record| !record.bindings.is_empty());
        Some(used.map(|record| (&record.aor[..], &record.bindings[..])))
    }

    /// All bindings; none are left here.
    #[must_use]
    pub fn take(&mut self) -> MemoryLocation {
        let empty = MemoryLocation {
            limits: self.limits,
            hash: self.hash,
            table: HashTable::new(),
            records: Vec::new(),
            free: Vec::new(),
            wheel: Wheel::new(),
            bindings: 0,
            revision: self.revision,
        };
        std::mem::replace(self, empty)
    }

    /// When to call [`MemoryLocation::expire`] next. It may come before a binding ends.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Mono> {
        self.wheel.next_deadline()
    }

    /// Removes the ended bindings of one address of record. To be called until it returns `None`.
    pub fn expire(&mut self, now: Mono) -> Option<Removed> {
        loop {
            let index = self.wheel.pop_due(now)?;
            let record = self.records.get_mut(index as usize)?;
            let is_over = |binding: &mut Binding| binding.is_expired(now);
            let bindings: Vec<Binding> = record.bindings.extract_if(.., is_over).collect();
            let aor = Aor::from_canonical(&record.aor)?;
            self.bindings -= bindings.len();
            self.revision += 1;
            record.revision = self.revision;
            self.update_timer_or_free(index);
            if !bindings.is_empty() {
                return Some(Removed { aor, bindings });
            }
        }
    }

    /// Replaces the bindings of an address. The limits do not apply, because an earlier run has accepted the new
    /// bindings.
    pub fn restore(&mut self, aor: &Aor, bindings: Vec<Binding>) {
        let key = self.hash.of(aor);
        if bindings.is_empty() && self.index_of(key, aor.as_bytes()).is_none() {
            return;
        }
        let index = self.index_or_new(key, aor.as_bytes());
        self.revision += 1;
        let record = &mut self.records[index as usize];
        record.revision = self.revision;
        let before = std::mem::replace(&mut record.bindings, bindings);
        self.bindings = self.bindings + record.bindings.len() - before.len();
        self.update_timer_or_free(index);
    }

    /// Adds the bindings of an earlier run that were read late. A phone that has registered since then keeps its newer
    /// binding. There is no limit, as for [`MemoryLocation::restore`]. Returns whether there were newer bindings.
    pub fn merge(&mut self, aor: &Aor, mut earlier: Vec<Binding>) -> bool {
        let mut has_newer = false;
        if let Found::Bindings(_, newer) = self.find(aor) {
            has_newer = !newer.is_empty();
            earlier.retain(|binding| !newer.iter().any(|newer| newer.is_of_same_phone(binding)));
            earlier.extend_from_slice(newer);
        }
        self.restore(aor, earlier);
        has_newer
    }

    fn index_of(&self, key: AorKey, aor: &[u8]) -> Option<u32> {
        let records = &self.records;
        // The table has indexes of `records` only.
        let is_same = |index: &u32| *records[*index as usize].aor == *aor;
        self.table.find(key.0, is_same).copied()
    }

    /// The index of the record of an address. Adds an empty record if there is none.
    fn index_or_new(&mut self, key: AorKey, aor: &[u8]) -> u32 {
        if let Some(index) = self.index_of(key, aor) {
            return index;
        }
        let record = Record {
            key: key.0,
            revision: 0,
            aor: aor.into(),
            bindings: Vec::new(),
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.records[index as usize] = record;
                index
            }
            None => {
                self.records.push(record);
                (self.records.len() - 1) as u32
            }
        };
        let records = &self.records;
        self.table
            .insert_unique(key.0, index, |index| records[*index as usize].key);
        index
    }

    /// Sets the timer of a changed record to the first expiry of its bindings. Frees the record if it has no binding.
    fn update_timer_or_free(&mut self, index: u32) {
        let record = &mut self.records[index as usize];
        let earliest = record.bindings.iter().map(Binding::expires).min();
        if let Some(earliest) = earliest {
            self.wheel.set(index, earliest);
            return;
        }
        self.wheel.remove(index);
        let key = record.key;
        *record = Record::default();
        self.free.push(index);
        if let Ok(entry) = self.table.find_entry(key, |other| *other == index) {
            entry.remove();
        }
    }

    /// Checks whether the changes fit `before` and the limits. Returns how many bindings the address has then.
    fn check(&self, before: &[Binding], changes: &[Change]) -> Result<usize, ChangeError> {
        let (mut removed, mut added) = (0, 0);
        for change in changes {
            match change {
                Change::Add(_) => added += 1,
                Change::Remove(place) => {
                    removed += 1;
                    check_index(before, *place)?;
                }
                Change::Replace(place, _) | Change::SetGruu(place, _) => {
                    check_index(before, *place)?;
                }
            }
        }
        let after = (before.len() + added)
            .checked_sub(removed)
            .ok_or(ChangeError::Conflict)?;
        // If the limit was lowered, a user above it may still refresh and remove bindings.
        if added > 0 && after > self.limits.per_user {
            return Err(ChangeError::UserFull);
        }
        if added > removed && self.bindings + added - removed > self.limits.total {
            return Err(ChangeError::Full);
        }
        Ok(after)
    }
}

fn check_index(before: &[Binding], place: usize) -> Result<(), ChangeError> {
    match place < before.len() {
        true => Ok(()),
        false => Err(ChangeError::Conflict),
    }
}

/// Makes changes that have been checked.
fn apply(bindings: &mut Vec<Binding>, changes: &mut Vec<Change>) {
    let mut is_removed = false;
    let old = bindings.len();
    // Exactly as much room as is needed: most addresses have one binding for as long as they have any.
    let added = changes
        .iter()
        .filter(|change| matches!(change, Change::Add(_)));
    bindings.reserve_exact(added.count());
    let mut gone = vec![];
    for change in changes.drain(..) {
        match change {
            Change::Add(binding) => bindings.push(binding),
            // The places are those of the bindings that the changes were made from.
            Change::Replace(place, binding) => bindings[place] = binding,
            Change::SetGruu(place, gruu) => bindings[place].gruu = gruu,
            Change::Remove(place) => {
                is_removed = true;
                gone.push(place);
            }
        }
    }
    if is_removed {
        let mut place = 0;
        bindings.retain(|_| {
            place += 1;
            place > old || !gone.contains(&(place - 1))
        });
    }
}

impl Location for MemoryLocation {
    fn find(&mut self, aor: &Aor) -> Found<'_> {
        let index = self.index_of(self.hash.of(aor), aor.as_bytes());
        match index.and_then(|index| self.records.get(index as usize)) {
            Some(record) => Found::Bindings(Revision(record.revision), &record.bindings),
            None => Found::Bindings(Revision::default(), &[]),
        }
    }

    fn find_gruu(&mut self, key: AorKey, gruu: u64) -> Option<Aor> {
        let records = &self.records;
        let mut candidates = self.table.iter_hash(key.0);
        candidates.find_map(|index| {
            // The table has indexes of `records` only.
            let record = &records[*index as usize];
            let is_it = record.key == key.0
                && gruu != 0
                && record.bindings.iter().any(|binding| binding.gruu == gruu);
            is_it.then(|| Aor::from_canonical(&record.aor))?
        })
    }

    fn find_key(&mut self, key: AorKey) -> Option<Aor> {
        let records = &self.records;
        let same = self.table.iter_hash(key.0);
        let mut same = same.filter_map(|index| {
            let record = &records[*index as usize];
            (record.key == key.0).then_some(&record.aor)
        });
        // Two addresses can have the same key. Then the key does not say which of them is meant.
        match (same.next(), same.next()) {
            (Some(aor), None) => Aor::from_canonical(aor),
            _ => None,
        }
    }

    fn change(
        &mut self,
        _now: Now,
        aor: &Aor,
        basis: Revision,
        changes: &mut Vec<Change>,
    ) -> Result<Saved, ChangeError> {
        let key = self.hash.of(aor);
        let index = self.index_of(key, aor.as_bytes());
        let record = index.map(|index| &self.records[index as usize]);
        let (revision, before) = match record {
            Some(record) => (record.revision, &record.bindings[..]),
            None => (0, &[][..]),
        };
        let checked = match revision == basis.0 {
            true => self.check(before, changes),
            false => Err(ChangeError::Conflict),
        };
        let before = before.len();
        let after = match checked {
            Ok(after) => after,
            Err(error) => {
                changes.clear();
                return Err(error);
            }
        };
        if before == 0 && after == 0 {
            changes.clear();
            return Ok(Saved::Now);
        }
        let index = self.index_or_new(key, aor.as_bytes());
        self.revision += 1;
        let record = &mut self.records[index as usize];
        record.revision = self.revision;
        apply(&mut record.bindings, changes);
        self.bindings = self.bindings + record.bindings.len() - before;
        self.update_timer_or_free(index);
        Ok(Saved::Now)
    }
}
