//! Server transactions, by what messages of other branches have in common with them.
//!
//! Those that a TU is at, and INVITEs, are all found. It has the latest of the requests that were answered at once.
//! There are many of them, and a retransmission follows soon or never. Each request has one place in the table, and a
//! later request with the same place replaces it.

use hashbrown::HashTable;

use super::key::{RelatedKey, answered_at_once, is_answered_at_once, is_within_dialog};
use super::servers::Server;
use super::slab::Slab;

/// Places for requests that were answered at once, four bytes each.
const PLACE_COUNT: usize = 32_768;
/// Marks an unused place.
const NOBODY: u32 = u32::MAX;

/// The tables.
#[derive(Debug)]
pub(super) struct Related {
    exact: HashTable<u32>,
    /// How many of these are INVITEs within a dialog.
    within_dialogs: usize,
    /// Empty until there is one.
    latest: Box<[u32]>,
    /// Transactions that may be among the latest.
    answered_at_once: usize,
}

impl Related {
    pub(super) fn new() -> Related {
        Related {
            exact: HashTable::new(),
            within_dialogs: 0,
            latest: Box::default(),
            answered_at_once: 0,
        }
    }

    /// Whether there are any to be found.
    pub(super) fn has_any(&self) -> bool {
        self.answered_at_once > 0 || !self.exact.is_empty()
    }

    /// Whether any of them is an INVITE within a dialog.
    pub(super) const fn has_within_dialogs(&self) -> bool {
        self.within_dialogs > 0
    }

    /// The transaction that has this in common with a message of another branch.
    pub(super) fn find(&self, slab: &Slab<Server>, related: RelatedKey) -> Option<u32> {
        let is = |slot: u32, related| of(slab, slot) == Some(related);
        let exact = self.exact.find(related.get(), |slot| is(*slot, related));
        exact.copied().or_else(|| {
            let slot = *self.latest.get(place(related))?;
            is(slot, answered_at_once(related)).then_some(slot)
        })
    }

    pub(super) fn insert(&mut self, slab: &Slab<Server>, related: RelatedKey, slot: u32) {
        if is_answered_at_once(related) {
            if self.latest.is_empty() {
                self.latest = vec![NOBODY; PLACE_COUNT].into();
            }
            if let Some(place) = self.latest.get_mut(place(related)) {
                *place = slot;
            }
            self.answered_at_once += 1;
            return;
        }
        let rehash = |slot: &u32| of(slab, *slot).map_or(0, RelatedKey::get);
        self.exact.insert_unique(related.get(), slot, rehash);
        self.within_dialogs += usize::from(is_within_dialog(related));
    }

    /// Removes the entry of the transaction in this slot, which was inserted with this key.
    pub(super) fn remove(&mut self, related: RelatedKey, slot: u32) {
        if is_answered_at_once(related) {
            self.answered_at_once -= 1;
        } else if let Ok(entry) = self.exact.find_entry(related.get(), |other| *other == slot) {
            entry.remove();
            self.within_dialogs -= usize::from(is_within_dialog(related));
        }
    }

    /// Makes tables smaller that are much too large. Returns the number of released bytes.
    pub(super) fn release_memory(&mut self, slab: &Slab<Server>) -> usize {
        super::servers::shrink(&mut self.exact, |slot| {
            of(slab, *slot).map_or(0, RelatedKey::get)
        })
    }
}

fn of(slab: &Slab<Server>, slot: u32) -> Option<RelatedKey> {
    slab.peek(slot)?.related
}

fn place(related: RelatedKey) -> usize {
    (related.get() >> 2) as usize % PLACE_COUNT
}
