//! The next deadline of each relay: a heap with the position of each relay's entry. So a refreshed deadline moves in
//! place and leaves no old entry.
//!
//! There is one deadline per relay: the earliest of its own, its permissions' and its channels'.

use crate::Mono;

/// Children per node: a wide heap is flat, and its siblings share cache lines.
const ARITY: usize = 4;

/// The relay has no entry.
const NO_ENTRY: u32 = u32::MAX;

/// Tables for so few relays are not worth shrinking.
const MIN_SHRUNK_ENTRIES: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Mono,
    relay: u32,
}

/// The deadlines of all relays, by slab index.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    heap: Vec<Entry>,
    /// For each relay, the index of its entry in the heap; [`NO_ENTRY`] without a deadline.
    places: Vec<u32>,
}

impl Deadlines {
    /// The earliest deadline, and the relay that has it.
    pub(super) fn first(&self) -> Option<(Mono, u32)> {
        self.heap.first().map(|entry| (entry.at, entry.relay))
    }

    /// Sets or moves a relay's deadline.
    pub(super) fn set(&mut self, relay: u32, at: Mono) {
        let slot = relay as usize;
        if slot >= self.places.len() {
            self.places.resize(slot + 1, NO_ENTRY);
        }
        let entry = Entry { at, relay };
        let place = self.places[slot];
        if place == NO_ENTRY {
            self.heap.push(entry);
            self.rise(self.heap.len() - 1, entry);
        } else {
            self.sift(place as usize, entry);
        }
    }

    /// Removes a relay's deadline, if it has one. The last entry of the heap fills the hole.
    pub(super) fn remove(&mut self, relay: u32) {
        let Some(place) = self
            .places
            .get_mut(relay as usize)
            .filter(|place| **place != NO_ENTRY)
        else {
            return;
        };
        let hole = std::mem::replace(place, NO_ENTRY) as usize;
        let Some(last) = self.heap.pop() else { return };
        if hole < self.heap.len() {
            self.sift(hole, last);
        }
        self.shrink();
    }

    /// Frees memory if more than seven eighths of it are unused. `places` can lose only its last entries. They become
    /// unused first, because new relays get low indices.
    fn shrink(&mut self) {
        let most = 8 * self.heap.len().max(MIN_SHRUNK_ENTRIES);
        if self.heap.capacity() > most {
            self.heap.shrink_to(most / 4);
        }
        if self.places.len() > most {
            while self.places.last() == Some(&NO_ENTRY) {
                self.places.pop();
            }
            if self.places.capacity() > 4 * self.places.len() {
                self.places.shrink_to(2 * self.places.len());
            }
        }
    }

    /// Moves `entry` from `place` towards the root or away from it, as its deadline requires. Overwrites the old
    /// content of `place`.
    fn sift(&mut self, place: usize, entry: Entry) {
        if place > 0 && entry.at < self.heap[(place - 1) / ARITY].at {
            self.rise(place, entry);
        } else {
            self.sink(place, entry);
        }
    }

    /// Moves `entry` from `place` towards the root, while its parent has a later deadline.
    fn rise(&mut self, mut place: usize, entry: Entry) {
        while place > 0 {
            let parent = (place - 1) / ARITY;
            // `place` is an index of the heap, and a parent has a lower one.
            if self.heap[parent].at <= entry.at {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, entry);
    }

    /// Moves `entry` from `place` away from the root, while one of its children has an earlier deadline.
    fn sink(&mut self, mut place: usize, entry: Entry) {
        loop {
            let children = place * ARITY + 1..(place * ARITY + 1 + ARITY).min(self.heap.len());
            // Children end with the heap.
            let Some(earliest) = children.min_by_key(|child| self.heap[*child].at) else {
                break;
            };
            if entry.at <= self.heap[earliest].at {
                break;
            }
            self.put(place, self.heap[earliest]);
            place = earliest;
        }
        self.put(place, entry);
    }

    /// Writes `entry` at `place` of the heap, and notes the place.
    fn put(&mut self, place: usize, entry: Entry) {
        self.heap[place] = entry;
        self.places[entry.relay as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_heap_agrees_with_a_sorted_map(ops in prop::collection::vec((0u32..20, prop::option::of(0u64..50)), 0..300)) {
            let mut deadlines = Deadlines::default();
            let mut model = BTreeMap::new();
            for (relay, at) in ops {
                match at {
                    Some(at) => {
                        deadlines.set(relay, Mono(at));
                        model.insert(relay, Mono(at));
                    }
                    None => {
                        deadlines.remove(relay);
                        model.remove(&relay);
                    }
                }
                prop_assert_eq!(deadlines.first().map(|(at, _)| at), model.values().min().copied());
                prop_assert_eq!(deadlines.heap.len(), model.len(), "moving a deadline leaves nothing behind");
                for (place, entry) in deadlines.heap.iter().enumerate() {
                    prop_assert_eq!(deadlines.places[entry.relay as usize] as usize, place);
                    prop_assert_eq!(model.get(&entry.relay), Some(&entry.at));
                }
            }
        }
    }
}
