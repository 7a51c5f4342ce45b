//! A log as it was read.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use sip::{HashKey, Now};

use super::journal::Persistent;
use super::record::{State, claimed_len, split};
use super::{HEADER_LEN, StateError, header};
use crate::location::{Binding, Found, Location as _, MemoryLocation};
use crate::{Aor, AorHash};

/// What was found in a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Whole records.
    pub records: u64,
    /// Records within the log whose checksum is wrong, and what cannot be understood. They are left out.
    pub damaged: u64,
    /// Bytes at the end that are no whole record. They are cut off.
    pub cut: u64,
}

/// The place of the last record of each address. A keyed hash of 128 bits identifies the address, so that addresses are
/// neither stored nor compared.
#[derive(Debug)]
pub(super) struct LatestRecords {
    keys: [HashKey; 2],
    places: HashTable<(u128, u64)>,
}

impl LatestRecords {
    pub(super) fn new(key: HashKey) -> LatestRecords {
        LatestRecords {
            keys: [key.derive(1), key.derive(2)],
            places: HashTable::new(),
        }
    }

    fn key(&self, aor: &[u8]) -> u128 {
        let [high, low] = self.keys.map(|key| u128::from(key.mac(aor)));
        high << 64 | low
    }

    /// Notes that a later record of the address is at this place.
    pub(super) fn note(&mut self, aor: &[u8], place: u64) {
        let key = self.key(aor);
        let is_same = |(other, _): &(u128, u64)| *other == key;
        match self
            .places
            .entry(key as u64, is_same, |(key, _)| *key as u64)
        {
            Entry::Occupied(mut entry) => entry.get_mut().1 = place,
            Entry::Vacant(entry) => {
                entry.insert((key, place));
            }
        }
    }

    /// Whether the record at this place is the last one of the address.
    pub(super) fn is_last(&self, aor: &[u8], place: u64) -> bool {
        let key = self.key(aor);
        let found = self.places.find(key as u64, |(other, _)| *other == key);
        found.is_some_and(|(_, last)| *last == place)
    }
}

/// What comes next in a log.
#[derive(Clone, Copy, Debug)]
pub(super) enum LogPiece<'a> {
    /// A record of this many bytes with this state.
    Record(&'a [u8], usize),
    /// This many bytes that are damaged, with a good record behind.
    Damaged(usize),
    /// No good record, as far as there are bytes.
    Torn,
}

/// The first piece of `bytes`.
pub(super) fn piece(bytes: &[u8]) -> LogPiece<'_> {
    if let Some((state, len)) = split(bytes) {
        return LogPiece::Record(state, len);
    }
    // The end of a log that was being written is torn. Behind damage within, the next record is whole.
    let behind = claimed_len(bytes).and_then(|len| Some((len, bytes.get(len..)?)));
    match behind {
        Some((len, rest)) if split(rest).is_some() => LogPiece::Damaged(len),
        _ => LogPiece::Torn,
    }
}

/// A log in memory, to be loaded from by any number of workers.
#[derive(Debug)]
pub struct Image {
    bytes: Vec<u8>,
    latest: LatestRecords,
    report: Report,
}

impl Image {
    /// Makes an image of records without a header, as a [`Journal`](super::Journal) has them.
    #[must_use]
    pub fn of_records(records: &[u8], key: HashKey) -> Image {
        Image::new([&header()[..], records].concat(), key)
    }

    /// Finds the last record of each address in a log that begins with its header. `key` is a secret of any value.
    #[must_use]
    pub(super) fn new(bytes: Vec<u8>, key: HashKey) -> Image {
        let mut latest = LatestRecords::new(key);
        let mut report = Report::default();
        let mut at = HEADER_LEN.min(bytes.len());
        loop {
            match piece(&bytes[at..]) {
                LogPiece::Record(state, len) => {
                    match State::read(state) {
                        Ok(state) => latest.note(state.aor, at as u64),
                        Err(StateError) => report.damaged += 1,
                    }
                    report.records += 1;
                    at += len;
                }
                LogPiece::Damaged(len) => {
                    report.damaged += 1;
                    at += len;
                }
                LogPiece::Torn => break,
            }
        }
        report.cut = (bytes.len() - at) as u64;
        Image {
            bytes,
            latest,
            report,
        }
    }

    /// About how many bytes the log would have if it had only the last record of each address.
    pub(super) fn compact_len(&self) -> u64 {
        let addresses = self.latest.places.len() as u64;
        let share = u128::from(self.len()) * u128::from(addresses);
        (share / u128::from(self.report.records.max(1))) as u64
    }

    /// What was found.
    #[must_use]
    pub const fn report(&self) -> Report {
        self.report
    }

    /// Bytes of the log without its torn end.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64 - self.report.cut
    }

    /// All records, without the header of the log and its torn end.
    #[must_use]
    pub fn records(&self) -> &[u8] {
        self.bytes
            .get(HEADER_LEN..self.len() as usize)
            .unwrap_or_default()
    }

    /// Whether there is no record.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.report.records == 0
    }

    /// Loads the bindings of the addresses that `hash` gives to one worker. `place` is the number of this worker, and
    /// the number of all workers. Expired bindings are left out. Returns how many of their records had malformed
    /// bindings. Other damage is in the [`Report`].
    pub fn load(
        &self,
        now: Now,
        hash: &AorHash,
        place: (u16, u16),
        location: &mut MemoryLocation,
    ) -> u64 {
        self.for_each(now, hash, place, |aor, bindings| {
            location.restore(aor, bindings);
        })
    }

    /// Adds bindings that were read late to a location that has newer ones: see [`MemoryLocation::merge`]. Records the
    /// addresses that have both. The arguments and the result are those of [`Image::load`].
    pub fn merge(
        &self,
        now: Now,
        hash: &AorHash,
        place: (u16, u16),
        location: &mut Persistent,
    ) -> u64 {
        self.for_each(now, hash, place, |aor, bindings| {
            let Persistent { memory, journal } = location;
            let has_newer = memory.merge(aor, bindings);
            if let Found::Bindings(_, bindings) = memory.find(aor)
                && has_newer
            {
                // If the journal is full, the next change of the address saves both.
                let _ = journal.record(now, aor, bindings);
            }
        })
    }

    /// Calls `take` with each address of the worker, and with the bindings in its last record. Returns how many of
    /// these records had malformed bindings.
    fn for_each(
        &self,
        now: Now,
        hash: &AorHash,
        (worker, workers): (u16, u16),
        mut take: impl FnMut(&Aor, Vec<Binding>),
    ) -> u64 {
        let mut failures = 0;
        let mut at = HEADER_LEN;
        while let Some(rest) = self.bytes.get(at..self.len() as usize) {
            let (state, len) = match piece(rest) {
                LogPiece::Record(state, len) => (state, len),
                LogPiece::Damaged(len) => {
                    at += len;
                    continue;
                }
                LogPiece::Torn => break,
            };
            let place = at;
            at += len;
            let Ok(state) = State::read(state) else {
                continue;
            };
            let Some(aor) = Aor::from_canonical(state.aor) else {
                continue;
            };
            let is_ours = hash.of(&aor).worker(workers) == worker;
            if !is_ours || !self.latest.is_last(state.aor, place as u64) {
                continue;
            }
            match state.bindings(now) {
                Ok(bindings) => take(&aor, bindings),
                Err(StateError) => failures += 1,
            }
        }
        failures
    }
}
