//! Numbers of rate limits, handed out to workers by the chunk.

use std::sync::atomic::{AtomicU32, Ordering};

/// The numbers from 0 up to an end, in chunks; a worker that has got one keeps it. So the workers share what there is
/// as they need it, and meet once per chunk.
#[derive(Debug)]
pub(crate) struct Chunks {
    next: AtomicU32,
    end: u32,
}

impl Chunks {
    /// Numbers per chunk.
    pub(crate) const SIZE: u32 = 64;

    /// The numbers below `count`, rounded down to whole chunks.
    pub(crate) fn new(count: u32) -> Chunks {
        Chunks {
            next: AtomicU32::new(0),
            end: count / Self::SIZE,
        }
    }

    /// How many chunks there are, taken or not.
    pub(crate) fn count(&self) -> u32 {
        self.end
    }

    /// The first number of a chunk that is the caller's from now on; `None` if all are taken.
    pub(crate) fn take(&self) -> Option<u32> {
        let next = |next: u32| (next < self.end).then_some(next + 1);
        let taken = self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        taken.ok().map(|chunk| chunk * Self::SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_is_handed_out_once() {
        let chunks = Chunks::new(3 * Chunks::SIZE + 1);
        let taken: Vec<_> = (0..5).map(|_| chunks.take()).collect();
        let size = Chunks::SIZE;
        assert_eq!(taken, [Some(0), Some(size), Some(2 * size), None, None]);
    }
}
