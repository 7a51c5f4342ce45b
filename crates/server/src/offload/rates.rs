//! The rate limits of one worker's allocations, in memory that the kernel's programs charge, too.

use super::chunks::Chunks;
use bpf::relay::Buckets;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use turn::Mono;
use turn::server::{RATE_BURST_NS, SharedBuckets};

/// A chunk of allocations that has no buckets yet.
const NONE: u32 = u32::MAX;

/// Which bucket an allocation has, by its place in the worker's engine. A chunk of places gets a chunk of buckets when an
/// allocation begins at the first of them, as long as there are any.
#[derive(Debug)]
pub(crate) struct Places {
    pool: Arc<Chunks>,
    /// The first bucket of each chunk of places.
    firsts: Box<[AtomicU32]>,
}

impl Places {
    /// For one worker.
    pub(crate) fn new(pool: Arc<Chunks>) -> Places {
        let firsts = (0..pool.count()).map(|_| AtomicU32::new(NONE)).collect();
        Places { pool, firsts }
    }

    /// The index of an allocation's bucket, if it has one.
    pub(crate) fn bucket(&self, allocation: u32) -> Option<u32> {
        let first = self.firsts.get((allocation / Chunks::SIZE) as usize)?;
        let first = first.load(Ordering::Relaxed);
        (first != NONE).then(|| first + allocation % Chunks::SIZE)
    }

    /// The same, and takes a chunk if need be. For the worker's own thread.
    fn bucket_from_now_on(&self, allocation: u32) -> Option<u32> {
        if self.bucket(allocation).is_none() {
            let first = self.firsts.get((allocation / Chunks::SIZE) as usize)?;
            first.store(self.pool.take()?, Ordering::Relaxed);
        }
        self.bucket(allocation)
    }
}

/// The buckets of one worker's allocations.
#[derive(Debug)]
pub(crate) struct Rates {
    buckets: Buckets,
    places: Arc<Places>,
}

impl Rates {
    pub(crate) fn new(buckets: Buckets, places: Arc<Places>) -> Rates {
        Rates { buckets, places }
    }
}

impl SharedBuckets for Rates {
    fn set(&self, allocation: u32, scale: u32) -> bool {
        let index = self.places.bucket_from_now_on(allocation);
        let Some(bucket) = index.and_then(|index| self.buckets.get(index)) else {
            return false;
        };
        // A second is a million microseconds.
        bucket.set(scale, (RATE_BURST_NS / 1000) as u32);
        true
    }

    fn charge(&self, allocation: u32, now: Mono, bytes: u64) -> Option<bool> {
        let bucket = self.buckets.get(self.places.bucket(allocation)?)?;
        Some(bucket.charge(now.0, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_get_buckets_by_the_chunk_while_there_are_any() {
        let pool = Arc::new(Chunks::new(2 * Chunks::SIZE));
        let (one, two) = (Places::new(Arc::clone(&pool)), Places::new(pool));
        assert_eq!(one.bucket(5), None, "nothing began there");
        assert_eq!(one.bucket_from_now_on(5), Some(5));
        assert_eq!(two.bucket_from_now_on(5), Some(Chunks::SIZE + 5));
        assert_eq!(one.bucket_from_now_on(6), Some(6));
        assert_eq!(one.bucket(Chunks::SIZE - 1), Some(Chunks::SIZE - 1));
        assert_eq!(one.bucket_from_now_on(Chunks::SIZE), None, "all are taken");
        assert_eq!(one.bucket_from_now_on(1_000_000), None);
    }
}
