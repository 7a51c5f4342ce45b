//! A table whose entries keep their slot: an index finds an entry, and a generation distinguishes successive entries of
//! a slot.
//!
//! The entries lie in chunks of fixed size, so that growing copies nothing. A new entry goes to the lowest chunk with
//! room, and a chunk without entries releases its memory. So memory shrinks when the number of entries falls.

use std::collections::BTreeSet;

/// Entries per chunk.
const CHUNK_ENTRIES: usize = 64;

/// No next free slot.
const END_OF_LIST: u32 = u32::MAX;

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    content: Content<T>,
}

#[derive(Debug)]
enum Content<T> {
    /// The number of the next free slot in the chunk, or [`END_OF_LIST`].
    Free(u32),
    Used(T),
}

#[derive(Debug)]
struct Chunk<T> {
    slots: Vec<Slot<T>>,
    used: usize,
    first_free: u32,
    /// The generation of new slots. It is later than that of any entry in slots whose memory was released.
    generation: u32,
}

impl<T> Chunk<T> {
    const fn new() -> Chunk<T> {
        Chunk {
            slots: Vec::new(),
            used: 0,
            first_free: END_OF_LIST,
            generation: 0,
        }
    }

    const fn has_room(&self) -> bool {
        self.used < CHUNK_ENTRIES
    }

    /// Puts an entry into a free or a new slot. Returns the slot's number and generation. The chunk must have room.
    fn insert(&mut self, value: T) -> (usize, u32) {
        if self.first_free == END_OF_LIST {
            return self.add_slot(value);
        }
        let number = self.first_free as usize;
        // `first_free` is a slot of this chunk.
        let slot = &mut self.slots[number];
        if let Content::Free(next) = slot.content {
            self.first_free = next;
        }
        slot.content = Content::Used(value);
        self.used += 1;
        (number, slot.generation)
    }

    /// Adds a slot at the end of the chunk. Returns its number and its generation.
    fn add_slot(&mut self, value: T) -> (usize, u32) {
        if self.slots.is_empty() {
            self.slots.reserve_exact(CHUNK_ENTRIES);
        }
        self.slots.push(Slot {
            generation: self.generation,
            content: Content::Used(value),
        });
        self.used += 1;
        (self.slots.len() - 1, self.generation)
    }

    /// Takes an entry out. The slot gets the next generation, so that keys to the entry find nothing.
    fn remove(&mut self, number: usize) -> Option<T> {
        let slot = self.slots.get_mut(number)?;
        if matches!(slot.content, Content::Free(_)) {
            return None;
        }
        let content = std::mem::replace(&mut slot.content, Content::Free(self.first_free));
        slot.generation = slot.generation.wrapping_add(1);
        self.first_free = number as u32;
        self.used -= 1;
        match content {
            Content::Used(value) => Some(value),
            Content::Free(_) => None,
        }
    }

    /// Releases the memory of a chunk without entries.
    fn release_memory(&mut self) {
        let latest = self.slots.iter().map(|slot| slot.generation).max();
        *self = Chunk {
            generation: latest.unwrap_or(self.generation),
            ..Chunk::new()
        };
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    /// The chunks that have room.
    with_room: BTreeSet<u32>,
    /// A chunk without entries that keeps its memory, so that one entry that comes and goes allocates nothing.
    spare: Option<u32>,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Slab<T> {
        Slab {
            chunks: Vec::new(),
            with_room: BTreeSet::new(),
            spare: None,
        }
    }

    /// Adds an entry. Returns its index and generation.
    pub(super) fn insert(&mut self, value: T) -> (u32, u32) {
        let place = self.chunk_with_room();
        let chunk = &mut self.chunks[place as usize];
        let (number, generation) = chunk.insert(value);
        if !chunk.has_room() {
            self.with_room.remove(&place);
        }
        if self.spare == Some(place) {
            self.spare = None;
        }
        (place * CHUNK_ENTRIES as u32 + number as u32, generation)
    }

    /// The number of the lowest chunk that has room; a new chunk if there is none.
    fn chunk_with_room(&mut self) -> u32 {
        if let Some(place) = self.with_room.first() {
            return *place;
        }
        let place = self.chunks.len() as u32;
        self.chunks.push(Chunk::new());
        self.with_room.insert(place);
        place
    }

    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        self.chunks
            .get(index as usize / CHUNK_ENTRIES)?
            .slots
            .get(index as usize % CHUNK_ENTRIES)
    }

    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<T>> {
        self.chunks
            .get_mut(index as usize / CHUNK_ENTRIES)?
            .slots
            .get_mut(index as usize % CHUNK_ENTRIES)
    }

    /// The entry at this index, of any generation.
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        match &self.slot(index)?.content {
            Content::Used(value) => Some(value),
            Content::Free(_) => None,
        }
    }

    /// The entry at this index, of any generation.
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match &mut self.slot_mut(index)?.content {
            Content::Used(value) => Some(value),
            Content::Free(_) => None,
        }
    }

    /// The entry at this index, if it has this generation.
    pub(super) fn get_of_generation(&mut self, index: u32, generation: u32) -> Option<&mut T> {
        match self.slot_mut(index)? {
            Slot {
                generation: current,
                content: Content::Used(value),
            } if *current == generation => Some(value),
            _ => None,
        }
    }

    /// The entry at this index and its generation.
    pub(super) fn entry_mut(&mut self, index: u32) -> Option<(u32, &mut T)> {
        match self.slot_mut(index)? {
            Slot {
                generation,
                content: Content::Used(value),
            } => Some((*generation, value)),
            _ => None,
        }
    }

    /// The generation of the entry at this index. If there is none, that of the next entry there.
    pub(super) fn generation(&self, index: u32) -> u32 {
        let chunk = self.chunks.get(index as usize / CHUNK_ENTRIES);
        let slot = chunk.and_then(|chunk| chunk.slots.get(index as usize % CHUNK_ENTRIES));
        slot.map_or_else(
            || chunk.map_or(0, |chunk| chunk.generation),
            |slot| slot.generation,
        )
    }

    /// Takes the entry out. Keys to it find nothing from now on.
    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        let place = index / CHUNK_ENTRIES as u32;
        let chunk = self.chunks.get_mut(place as usize)?;
        let had_room = chunk.has_room();
        let value = chunk.remove(index as usize % CHUNK_ENTRIES)?;
        let is_empty = chunk.used == 0;
        if !had_room {
            self.with_room.insert(place);
        }
        if is_empty {
            self.keep_one_spare(place);
        }
        Some(value)
    }

    /// Called when the chunk at `place` has no entries any more. One such chunk, the lowest, keeps its memory as a
    /// spare.
    fn keep_one_spare(&mut self, place: u32) {
        let (kept, other) = match self.spare {
            Some(spare) => (spare.min(place), Some(spare.max(place))),
            None => (place, None),
        };
        self.spare = Some(kept);
        if let Some(chunk) = other.and_then(|other| self.chunks.get_mut(other as usize)) {
            chunk.release_memory();
        }
    }

    /// All indices that were ever in use are below this.
    pub(super) fn slots_end(&self) -> usize {
        self.chunks.len() * CHUNK_ENTRIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_used_again_under_another_generation() {
        let mut slab = Slab::new();
        let (index, first) = slab.insert('a');
        assert_eq!(slab.remove(index), Some('a'));
        let (again, second) = slab.insert('b');
        assert_eq!(again, index);
        assert_ne!(first, second);
        assert_eq!(slab.get_of_generation(index, first), None);
        assert_eq!(slab.get_of_generation(index, second), Some(&mut 'b'));
    }

    #[test]
    fn entries_survive_growth_and_gaps() {
        let mut slab = Slab::new();
        let indices: Vec<u32> = (0..1000).map(|value| slab.insert(value).0).collect();
        for index in indices.iter().step_by(3) {
            assert!(slab.remove(*index).is_some());
            assert!(slab.remove(*index).is_none());
        }
        for value in 0..1000 {
            assert_eq!(slab.get(value).copied(), (value % 3 != 0).then_some(value));
        }
        assert!(slab.get(5000).is_none());
        let used: usize = slab.chunks.iter().map(|chunk| chunk.used).sum();
        assert_eq!(used, 666);
        let chunks = slab.chunks.len();
        for value in 0..334 {
            slab.insert(value);
        }
        assert_eq!(
            slab.chunks.len(),
            chunks,
            "freed slots are used before new ones are made"
        );
    }
    #[test]
    fn chunks_without_entries_return_their_memory_and_no_key_comes_back() {
        let mut slab = Slab::new();
        let keys: Vec<(u32, u32)> = (0..1000).map(|value| slab.insert(value)).collect();
        for (index, _) in &keys {
            slab.remove(*index);
        }
        let with_memory = slab
            .chunks
            .iter()
            .filter(|chunk| chunk.slots.capacity() > 0);
        assert_eq!(with_memory.count(), 1);
        for _ in 0..1000 {
            slab.insert(7);
        }
        for (index, generation) in keys {
            assert_eq!(slab.get_of_generation(index, generation), None);
            assert_eq!(slab.get(index), Some(&7));
        }
    }

    #[test]
    fn an_entry_that_comes_and_goes_keeps_its_chunk() {
        let mut slab = Slab::new();
        let (index, _) = slab.insert(1);
        for round in 1..10 {
            slab.remove(index);
            assert_eq!(slab.insert(2), (index, round));
        }
    }
}
