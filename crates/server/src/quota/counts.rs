//! Counts by key, shared by all workers.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counts by key, in shards so that workers seldom meet at a lock.
pub(super) struct Counts<K: ToOwned + ?Sized> {
    hasher: RandomState,
    shards: [Mutex<HashMap<K::Owned, u32>>; SHARDS],
}

impl<K: ToOwned + ?Sized> std::fmt::Debug for Counts<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counts").finish_non_exhaustive()
    }
}

const SHARDS: usize = 64;

impl<K> Counts<K>
where
    K: ?Sized + Hash + Eq + ToOwned,
    K::Owned: Hash + Eq,
{
    pub(super) fn new() -> Self {
        Counts {
            hasher: RandomState::new(),
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }

    fn shard(&self, key: &K) -> MutexGuard<'_, HashMap<K::Owned, u32>> {
        let number = self.hasher.hash_one(key) % SHARDS as u64;
        self.shards[usize::try_from(number).unwrap_or(0)]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn acquire(&self, key: &K, limit: u32) -> bool {
        let mut shard = self.shard(key);
        match shard.get_mut(key) {
            Some(count) if *count >= limit => false,
            Some(count) => {
                *count += 1;
                true
            }
            None if limit == 0 => false,
            None => {
                shard.insert(key.to_owned(), 1);
                true
            }
        }
    }

    pub(super) fn release(&self, key: &K) {
        let mut shard = self.shard(key);
        match shard.get_mut(key) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => {
                shard.remove(key);
            }
            None => debug_assert!(false, "a unit was released that nobody held"),
        }
    }

    /// Visits each key with its count.
    pub(super) fn for_each(&self, mut visit: impl FnMut(&K, u32)) {
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for (key, count) in &*shard {
                visit(key.borrow(), *count);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn keys(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).len())
            .sum()
    }
}
