//! A table whose entries keep their slot: an index finds an entry, and a generation distinguishes successive entries of
//! a slot.
//!
//! Entries lie in chunks of fixed size, so that growing moves nothing. The first chunk with room is taken, and those
//! that have become empty are returned in [`Slab::release_memory`].

use super::index_set::IndexSet;

/// Entries per chunk.
const CHUNK_ENTRIES: usize = 256;
/// No next free slot.
const END_OF_LIST: u32 = u32::MAX;
/// Of empty chunks, one is kept for each this many chunks in use.
const CHUNKS_PER_SPARE: usize = 4;

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    content: Content<T>,
}

#[derive(Debug)]
enum Content<T> {
    /// The next free slot of the chunk, or [`END_OF_LIST`].
    Free(u32),
    Used(T),
}

#[derive(Debug)]
struct Chunk<T> {
    /// Without memory while it is returned.
    slots: Vec<Slot<T>>,
    /// Within the chunk.
    first_free: u32,
    used: u32,
    /// Slots begin with this: higher than any that they had before they were returned.
    generation: u32,
}

impl<T> Chunk<T> {
    const fn new() -> Chunk<T> {
        Chunk {
            slots: Vec::new(),
            first_free: END_OF_LIST,
            used: 0,
            generation: 0,
        }
    }

    const fn is_full(&self) -> bool {
        self.first_free == END_OF_LIST && self.slots.len() == CHUNK_ENTRIES
    }

    /// A free slot, made if there is none.
    fn free_slot(&mut self) -> u32 {
        if self.first_free == END_OF_LIST {
            if self.slots.is_empty() {
                self.slots.reserve_exact(CHUNK_ENTRIES);
            }
            self.first_free = self.slots.len() as u32;
            self.slots.push(Slot {
                generation: self.generation,
                content: Content::Free(END_OF_LIST),
            });
        }
        self.first_free
    }

    fn release_memory(&mut self) -> usize {
        let bytes = self.slots.capacity() * size_of::<Slot<T>>();
        let generations = self.slots.iter().map(|slot| slot.generation);
        self.generation = generations.max().unwrap_or(self.generation);
        self.slots = Vec::new();
        self.first_free = END_OF_LIST;
        bytes
    }
}

/// The table.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    room: IndexSet,
    len: usize,
    /// Chunks that hold entries, and that have memory.
    in_use: usize,
    with_memory: usize,
    /// Slots that were looked at, for tests of what a step costs.
    #[cfg(test)]
    visits: std::cell::Cell<u64>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Slab<T> {
        Slab {
            chunks: Vec::new(),
            room: IndexSet::new(),
            len: 0,
            in_use: 0,
            with_memory: 0,
            #[cfg(test)]
            visits: std::cell::Cell::new(0),
        }
    }

    /// How many entries there are.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// All entries have lower indices.
    pub(crate) fn end(&self) -> usize {
        let last = self.chunks.iter().rposition(|chunk| chunk.used > 0);
        last.map_or(0, |last| (last + 1) * CHUNK_ENTRIES)
    }

    /// The place that [`Slab::insert`] will use: its index and generation.
    pub(crate) fn vacant(&mut self) -> (u32, u32) {
        let number = match self.room.first() {
            Some(number) => number,
            None => {
                self.chunks.push(Chunk::new());
                self.room.insert(self.chunks.len() - 1);
                self.chunks.len() - 1
            }
        };
        let Some(chunk) = self.chunks.get_mut(number) else {
            return (END_OF_LIST, 0);
        };
        self.with_memory += usize::from(chunk.slots.is_empty());
        let place = chunk.free_slot();
        let slot = chunk.slots.get(place as usize);
        let generation = slot.map_or(0, |slot| slot.generation);
        ((number * CHUNK_ENTRIES) as u32 + place, generation)
    }

    /// Puts an entry in and returns where.
    pub(crate) fn insert(&mut self, value: T) -> (u32, u32) {
        let (index, generation) = self.vacant();
        let number = index as usize / CHUNK_ENTRIES;
        if let Some(chunk) = self.chunks.get_mut(number)
            && let Some(slot) = chunk.slots.get_mut(index as usize % CHUNK_ENTRIES)
            && let Content::Free(next) = std::mem::replace(&mut slot.content, Content::Used(value))
        {
            chunk.first_free = next;
            self.in_use += usize::from(chunk.used == 0);
            chunk.used += 1;
            self.len += 1;
            if chunk.is_full() {
                self.room.remove(number);
            }
        }
        (index, generation)
    }

    /// How many slots were looked at so far.
    #[cfg(test)]
    pub(super) fn visits(&self) -> u64 {
        self.visits.get()
    }

    /// In tests, counts a slot that is looked at.
    fn visit(&self) {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
    }

    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        self.visit();
        let chunk = self.chunks.get(index as usize / CHUNK_ENTRIES)?;
        chunk.slots.get(index as usize % CHUNK_ENTRIES)
    }

    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<T>> {
        self.visit();
        let chunk = self.chunks.get_mut(index as usize / CHUNK_ENTRIES)?;
        chunk.slots.get_mut(index as usize % CHUNK_ENTRIES)
    }

    /// The entry at this index and its generation.
    pub(crate) fn at(&mut self, index: u32) -> Option<(u32, &mut T)> {
        let slot = self.slot_mut(index)?;
        match &mut slot.content {
            Content::Used(value) => Some((slot.generation, value)),
            Content::Free(_) => None,
        }
    }

    /// The entry at this index, regardless of its generation.
    pub(crate) fn peek(&self, index: u32) -> Option<&T> {
        match &self.slot(index)?.content {
            Content::Used(value) => Some(value),
            Content::Free(_) => None,
        }
    }

    /// The entry at this index, if it still has this generation.
    pub(crate) fn get(&mut self, index: u32, generation: u32) -> Option<&mut T> {
        let (current, value) = self.at(index)?;
        (current == generation).then_some(value)
    }

    /// All entries with their index and generation.
    pub(crate) fn iter(&self) -> impl Iterator<Item = ((u32, u32), &T)> {
        let slots = self.chunks.iter().zip((0..).step_by(CHUNK_ENTRIES));
        let slots = slots.flat_map(|(chunk, first)| (first..).zip(&chunk.slots));
        slots.filter_map(|(index, slot)| {
            self.visit();
            match &slot.content {
                Content::Used(value) => Some(((index, slot.generation), value)),
                Content::Free(_) => None,
            }
        })
    }

    /// Takes the entry out. Keys to it find nothing from now on.
    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        self.visit();
        let number = index as usize / CHUNK_ENTRIES;
        let chunk = self.chunks.get_mut(number)?;
        let place = index as usize % CHUNK_ENTRIES;
        let slot = chunk.slots.get_mut(place)?;
        if matches!(slot.content, Content::Free(_)) {
            return None;
        }
        let content = std::mem::replace(&mut slot.content, Content::Free(chunk.first_free));
        slot.generation = slot.generation.wrapping_add(1);
        chunk.first_free = place as u32;
        chunk.used -= 1;
        self.in_use -= usize::from(chunk.used == 0);
        self.len -= 1;
        self.room.insert(number);
        match content {
            Content::Used(value) => Some(value),
            Content::Free(_) => None,
        }
    }

    /// Whether [`Slab::release_memory`] would give anything back.
    pub(crate) const fn has_slack(&self) -> bool {
        self.with_memory - self.in_use > 1 + self.in_use / CHUNKS_PER_SPARE
    }

    /// Gives empty chunks back, the last ones first, but for some that are kept for what comes: not much more than this
    /// many bytes. Returns how many it were.
    pub(crate) fn release_memory(&mut self, most: usize) -> usize {
        let mut bytes = 0;
        for chunk in self.chunks.iter_mut().rev() {
            let keeps = self.with_memory - self.in_use <= 1 + self.in_use / CHUNKS_PER_SPARE;
            if keeps || bytes >= most {
                break;
            }
            if chunk.used == 0 && !chunk.slots.is_empty() {
                bytes += chunk.release_memory();
                self.with_memory -= 1;
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_used_again_under_another_generation() {
        let mut slab = Slab::new();
        let vacant = slab.vacant();
        let (index, first) = slab.insert('a');
        assert_eq!(vacant, (index, first));
        assert_eq!(slab.remove(index), Some('a'));
        assert_eq!(slab.remove(index), None);
        let (again, second) = slab.insert('b');
        assert_eq!(again, index);
        assert_eq!(slab.get(index, first), None);
        assert_eq!(slab.get(index, second), Some(&mut 'b'));
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn entries_survive_growth_and_gaps() {
        let mut slab = Slab::new();
        for value in 0..1000u32 {
            assert_eq!(slab.insert(value).0, value);
        }
        for index in (0..1000).step_by(3) {
            assert_eq!(slab.remove(index), Some(index));
        }
        for value in 0..1000 {
            assert_eq!(slab.peek(value).copied(), (value % 3 != 0).then_some(value));
        }
        assert_eq!(slab.len(), 666);
        assert!(slab.peek(5000).is_none());
    }

    #[test]
    fn empty_chunks_are_given_back_and_no_key_of_theirs_finds_what_comes_after() {
        let mut slab = Slab::new();
        let keys: Vec<_> = (0..10_000u32).map(|value| slab.insert(value)).collect();
        assert!(!slab.has_slack());
        for (index, _) in &keys[100..] {
            slab.remove(*index);
        }
        assert!(slab.has_slack() && slab.end() == CHUNK_ENTRIES);
        let chunk = CHUNK_ENTRIES * size_of::<Slot<u32>>();
        assert_eq!(slab.release_memory(1), chunk, "as much as may be");
        // One is in use, one is kept.
        let chunks = 10_000usize.div_ceil(CHUNK_ENTRIES);
        assert_eq!(slab.release_memory(usize::MAX), (chunks - 3) * chunk);
        assert!(!slab.has_slack() && slab.release_memory(usize::MAX) == 0);
        assert_eq!(slab.iter().map(|(_, value)| *value).sum::<u32>(), 4_950);
        for value in 0..10_000 {
            let (index, generation) = slab.insert(value);
            assert_eq!(slab.get(index, generation), Some(&mut { value }));
        }
        for (index, generation) in &keys[100..] {
            assert_eq!(slab.get(*index, *generation), None);
        }
        assert_eq!((slab.len(), slab.iter().count()), (10_100, 10_100));
    }
}
