//! A hash index that `clear` empties in constant time: each entry has the stamp of its batch.

/// Finds small numbers (indexes into some vector) by the hash of what they stand for.
#[derive(Debug)]
pub(crate) struct Index {
    slots: Vec<Slot>,
    mask: usize,
    stamp: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Empty unless equal to the index's own.
    stamp: u32,
    value: u32,
}

/// Where a value that was not found is to be put.
#[derive(Debug)]
pub(crate) struct InsertPlace(usize);

impl Index {
    /// At most `capacity` values between two `clear`s.
    pub(crate) fn new(capacity: usize) -> Index {
        // At most half full, so that probing is short.
        let size = (capacity * 2).next_power_of_two();
        Index {
            slots: vec![Slot { stamp: 0, value: 0 }; size],
            mask: size - 1,
            stamp: 1,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            // After 2^32 batches stamps repeat.
            self.slots.fill(Slot { stamp: 0, value: 0 });
            self.stamp = 1;
        }
    }

    /// The value with this hash for which `matches` holds, or the place for it.
    #[inline]
    pub(crate) fn find(
        &self,
        hash: u64,
        matches: impl Fn(u32) -> bool,
    ) -> Result<u32, InsertPlace> {
        let mut at = hash as usize & self.mask;
        loop {
            let slot = self.slots[at];
            if slot.stamp != self.stamp {
                return Err(InsertPlace(at));
            }
            if matches(slot.value) {
                return Ok(slot.value);
            }
            at = (at + 1) & self.mask;
        }
    }

    #[inline]
    pub(crate) fn fill(&mut self, place: InsertPlace, value: u32) {
        self.slots[place.0] = Slot {
            stamp: self.stamp,
            value,
        };
    }
}

/// Folded multiplication: both halves of the product, so that every input bit reaches the low bits.
#[inline]
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intern(index: &mut Index, names: &mut Vec<u64>, name: u64) -> u32 {
        match index.find(name, |value| names[value as usize] == name) {
            Ok(value) => value,
            Err(place) => {
                names.push(name);
                let value = names.len() as u32 - 1;
                index.fill(place, value);
                value
            }
        }
    }

    #[test]
    fn colliding_names_are_distinguished_until_cleared() {
        let mut index = Index::new(4);
        let mut names = Vec::new();
        let values: Vec<u32> = [8, 16, 8, 24, 16]
            .map(|n| intern(&mut index, &mut names, n))
            .into();
        assert_eq!(values, [0, 1, 0, 2, 1]);
        index.clear();
        names.clear();
        assert_eq!(intern(&mut index, &mut names, 24), 0);
    }

    #[test]
    fn old_stamps_stay_dead_when_the_counter_wraps() {
        let mut index = Index::new(1);
        let place = index.find(0, |_| true).unwrap_err();
        index.fill(place, 7);
        index.stamp = u32::MAX;
        index.clear();
        assert_eq!(index.stamp, 1);
        assert!(index.find(0, |_| true).is_err());
    }
}
