//! A table whose entries keep their place: an index finds an entry, a generation tells its tenants apart.
//!
//! Entries lie in chunks of fixed size, so that growing moves nothing.

/// Entries per chunk.
const CHUNK: usize = 256;
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
pub(crate) struct Slab<T> {
    chunks: Vec<Vec<Slot<T>>>,
    first_free: u32,
    len: usize,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Slab<T> {
        Slab {
            chunks: Vec::new(),
            first_free: END,
            len: 0,
        }
    }

    /// How many entries there are.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The place that [`Slab::insert`] will use: its index and generation.
    pub(crate) fn vacant(&mut self) -> (u32, u32) {
        if self.first_free == END {
            self.add_slot();
        }
        let index = self.first_free;
        (index, self.slot(index).map_or(0, |slot| slot.generation))
    }

    /// Puts an entry in and returns where.
    pub(crate) fn insert(&mut self, value: T) -> (u32, u32) {
        let (index, generation) = self.vacant();
        if let Some(slot) = self.slot_mut(index)
            && let Content::Free(next) = std::mem::replace(&mut slot.content, Content::Used(value))
        {
            self.first_free = next;
            self.len += 1;
        }
        (index, generation)
    }

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
        let chunk = self.chunks.get(index as usize / CHUNK)?;
        chunk.get(index as usize % CHUNK)
    }

    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<T>> {
        let chunk = self.chunks.get_mut(index as usize / CHUNK)?;
        chunk.get_mut(index as usize % CHUNK)
    }

    /// The entry at this index and its generation, whichever tenant it is.
    pub(crate) fn at(&mut self, index: u32) -> Option<(u32, &mut T)> {
        let slot = self.slot_mut(index)?;
        match &mut slot.content {
            Content::Used(value) => Some((slot.generation, value)),
            Content::Free(_) => None,
        }
    }

    /// The entry at this index, whichever tenant it is.
    pub(crate) fn peek(&self, index: u32) -> Option<&T> {
        match &self.slot(index)?.content {
            Content::Used(value) => Some(value),
            Content::Free(_) => None,
        }
    }

    /// The entry at this index, if it is this tenant.
    pub(crate) fn get(&mut self, index: u32, generation: u32) -> Option<&mut T> {
        let (current, value) = self.at(index)?;
        (current == generation).then_some(value)
    }

    /// All entries with their index and generation.
    pub(crate) fn iter(&self) -> impl Iterator<Item = ((u32, u32), &T)> {
        let slots = self.chunks.iter().flatten().enumerate();
        slots.filter_map(|(index, slot)| match &slot.content {
            Content::Used(value) => Some(((index as u32, slot.generation), value)),
            Content::Free(_) => None,
        })
    }

    /// Takes the entry out. Keys to it find nothing from now on.
    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let next = self.first_free;
        let slot = self.slot_mut(index)?;
        if matches!(slot.content, Content::Free(_)) {
            return None;
        }
        let content = std::mem::replace(&mut slot.content, Content::Free(next));
        slot.generation = slot.generation.wrapping_add(1);
        self.first_free = index;
        self.len -= 1;
        match content {
            Content::Used(value) => Some(value),
            Content::Free(_) => None,
        }
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
}
