//! How full batches are: a histogram that costs an increment.

use std::ops::AddAssign;

/// A histogram of batch sizes by powers of two: 1, 2-3, 4-7, .., 64-127, 128 and more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchSizes {
    /// Batches by size class.
    pub buckets: [u64; BatchSizes::CLASSES],
    /// All their sizes added up.
    pub sum: u64,
}

impl BatchSizes {
    /// How many size classes there are.
    pub const CLASSES: usize = 8;

    /// Counts a batch of `size` datagrams; an empty one is not a batch.
    #[inline]
    pub fn count(&mut self, size: u64) {
        // By far the most frequent with many flows, and free of the search for the highest bit.
        if size == 1 {
            self.buckets[0] += 1;
            self.sum += 1;
        } else if let Some(class) = size.checked_ilog2() {
            self.buckets[(class as usize).min(Self::CLASSES - 1)] += 1;
            self.sum += size;
        }
    }

    /// The largest size of a class; `None` for the last, which has no end.
    #[must_use]
    pub fn largest(class: usize) -> Option<u64> {
        (class + 1 < Self::CLASSES).then(|| (2 << class) - 1)
    }
}

impl AddAssign<&BatchSizes> for BatchSizes {
    fn add_assign(&mut self, other: &BatchSizes) {
        self.buckets
            .iter_mut()
            .zip(other.buckets)
            .for_each(|(sum, more)| *sum += more);
        self.sum += other.sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fall_into_powers_of_two() {
        let mut sizes = BatchSizes::default();
        for size in [0, 1, 2, 3, 4, 7, 64, 127, 128, 5_000] {
            sizes.count(size);
        }
        assert_eq!(sizes.buckets, [1, 2, 2, 0, 0, 0, 2, 2]);
        assert_eq!(sizes.sum, 5_336);
    }

    #[test]
    fn every_class_ends_where_the_next_begins() {
        for class in 0..BatchSizes::CLASSES - 1 {
            let largest = BatchSizes::largest(class).unwrap();
            let mut sizes = BatchSizes::default();
            sizes.count(largest);
            sizes.count(largest + 1);
            assert_eq!((sizes.buckets[class], sizes.buckets[class + 1]), (1, 1));
        }
        assert_eq!(BatchSizes::largest(BatchSizes::CLASSES - 1), None);
    }
}
