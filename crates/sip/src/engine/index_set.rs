//! The chunks that have room: a set of small numbers with a fast minimum.
//!
//! New entries go to the first chunk with room. So the last chunks become empty when the number of entries falls, and
//! their memory can be released.

/// The set.
#[derive(Debug)]
pub(crate) struct IndexSet {
    words: Vec<u64>,
    /// All words before this one are empty.
    from: usize,
}

impl IndexSet {
    pub(crate) const fn new() -> IndexSet {
        IndexSet {
            words: Vec::new(),
            from: 0,
        }
    }

    /// The least number.
    #[inline]
    pub(crate) fn first(&mut self) -> Option<usize> {
        while let Some(word) = self.words.get(self.from) {
            if *word != 0 {
                return Some(self.from * 64 + word.trailing_zeros() as usize);
            }
            self.from += 1;
        }
        None
    }

    #[inline]
    pub(crate) fn insert(&mut self, number: usize) {
        let place = number / 64;
        if place >= self.words.len() {
            self.words.resize(place + 1, 0);
        }
        if let Some(word) = self.words.get_mut(place) {
            *word |= 1 << (number % 64);
        }
        self.from = self.from.min(place);
    }

    #[inline]
    pub(crate) fn remove(&mut self, number: usize) {
        if let Some(word) = self.words.get_mut(number / 64) {
            *word &= !(1 << (number % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set_that_knows_its_least(changes in prop::collection::vec((0usize..300, any::<bool>()), 1..200)) {
            let (mut ours, mut model) = (IndexSet::new(), BTreeSet::new());
            for (number, inserts) in changes {
                if inserts {
                    ours.insert(number);
                    model.insert(number);
                } else {
                    ours.remove(number);
                    model.remove(&number);
                }
                prop_assert_eq!(ours.first(), model.first().copied());
            }
        }
    }
}
