//! A table whose entries keep their place: an index finds an entry, a generation tells its tenants apart.
//!
//! The entries lie in chunks of fixed size, so that growing copies nothing and the memory of an entry is the
//! entry.

/// Entries per chunk.
const CHUNK: usize = 64;

/// No next free slot.
const END: u32 = u32::MAX;

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    content: Content<T>,
}

#[derive(Debug)]
enum Content<T> {
    /// The next free slot, or [`END`].
    Free(u32),
    Used(T),
}

/// The table.
#[derive(Debug)]
pub(super) struct Slab<T> {
    chunks: Vec<Vec<Slot<T>>>,
    first_free: u32,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Slab<T> {
        Slab {
            chunks: Vec::new(),
            first_free: END,
        }
    }

    /// Puts an entry in and returns where: its index and generation.
    pub(super) fn insert(&mut self, value: T) -> (u32, u32) {
        if self.first_free == END {
            self.add_slot();
        }
        let index = self.first_free;
        let slot = &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK];
        if let Content::Free(next) = slot.content {
            self.first_free = next;
        }
        slot.content = Content::Used(value);
        (index, slot.generation)
    }

    /// Adds one free slot.
    fn add_slot(&mut self) {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let index = (self.chunks.len() - 1) * CHUNK;
        if let Some(chunk) = self.chunks.last_mut() {
            self.first_free = (index + chunk.len()) as u32;
            chunk.push(Slot {
                generation: 0,
                content: Content::Free(END),
            });
        }
    }

    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        self.chunks
            .get(index as usize / CHUNK)?
            .get(index as usize % CHUNK)
    }

    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<T>> {
        self.chunks
            .get_mut(index as usize / CHUNK)?
            .get_mut(index as usize % CHUNK)
    }

    /// The entry at this index, whichever tenant it is.
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        match &self.slot(index)?.content {
            Content::Used(value) => Some(value),
            Content::Free(_) => None,
        }
    }

    /// The entry at this index, whichever tenant it is.
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match &mut self.slot_mut(index)?.content {
            Content::Used(value) => Some(value),
            Content::Free(_) => None,
        }
    }

    /// The entry at this index, if it is this tenant.
    pub(super) fn get_tenant(&mut self, index: u32, generation: u32) -> Option<&mut T> {
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

    /// The generation of the tenant at this index, or of the next one.
    pub(super) fn generation(&self, index: u32) -> u32 {
        self.slot(index).map_or(0, |slot| slot.generation)
    }

    /// Takes the entry out. Keys to it find nothing from now on.
    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        let next = self.first_free;
        let slot = self.slot_mut(index)?;
        if matches!(slot.content, Content::Free(_)) {
            return None;
        }
        let content = std::mem::replace(&mut slot.content, Content::Free(next));
        slot.generation = slot.generation.wrapping_add(1);
        self.first_free = index;
        match content {
            Content::Used(value) => Some(value),
            Content::Free(_) => None,
        }
    }

    /// All indices that were ever in use are below this.
    pub(super) fn bound(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    /// The indices in use.
    pub(super) fn indices(&self) -> impl Iterator<Item = u32> + '_ {
        let slots = self.chunks.iter().flatten().enumerate();
        slots
            .filter(|(_, slot)| matches!(slot.content, Content::Used(_)))
            .map(|(index, _)| index as u32)
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
        assert_eq!(slab.get_tenant(index, first), None);
        assert_eq!(slab.get_tenant(index, second), Some(&mut 'b'));
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
        assert_eq!(slab.indices().count(), 666);
        assert!(slab.get(5000).is_none());
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
}
