//! The results of look-ups, for all workers: known users and unknown names, each with its own limit.
//!
//! A known user stays until its slot is necessary, also after its lifetime. After its lifetime, the entry is used only
//! if the query fails or the store is down. If there is no free slot, the cache removes a user that was not used since
//! the last pass (the second-chance algorithm).

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::keys::Keys;

/// A keyed hash of realm and name, so that nobody can choose names with the same hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(u128);

/// The cache entry of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cached {
    /// These keys are valid for this time.
    Known(Keys, Duration),
    /// There is no such user.
    Unknown,
    /// These keys were valid; a query is necessary.
    Stale(Keys),
    /// There is no entry.
    Missing,
}

/// Parts with a lock of their own, so that workers rarely wait for each other.
const SHARDS: usize = 16;

/// The results of look-ups.
#[derive(Debug)]
pub struct Cache {
    parts: Box<[Mutex<Shard>]>,
    first: RandomState,
    second: RandomState,
    /// Entries of an earlier generation are stale.
    generation: AtomicU64,
    known_per_part: usize,
    unknown_per_part: usize,
}

#[derive(Debug, Default)]
struct Shard {
    index: HashMap<Id, usize>,
    slots: Vec<Slot>,
    /// The slot that the second-chance algorithm examines next.
    hand: usize,
    /// The time until which each of these names counts as unknown.
    unknown: HashMap<Id, Instant>,
    /// The same in the order of insertion.
    order: VecDeque<(Id, Instant)>,
}

#[derive(Debug)]
struct Slot {
    id: Id,
    keys: Keys,
    until: Instant,
    generation: u64,
    was_used: bool,
}

impl Shard {
    fn put(&mut self, slot: Slot, most: usize) {
        self.unknown.remove(&slot.id);
        if let Some(place) = self.index.get(&slot.id) {
            self.slots[*place] = slot;
        } else if self.slots.len() < most {
            self.index.insert(slot.id, self.slots.len());
            self.slots.push(slot);
        } else {
            // This loop ends: after one pass, no slot is marked as used.
            while std::mem::take(&mut self.slots[self.hand].was_used) {
                self.hand = (self.hand + 1) % self.slots.len();
            }
            let place = self.hand;
            self.index.remove(&self.slots[place].id);
            self.index.insert(slot.id, place);
            self.slots[place] = slot;
            self.hand = (place + 1) % self.slots.len();
        }
    }

    fn remove(&mut self, id: Id) {
        self.unknown.remove(&id);
        let Some(place) = self.index.remove(&id) else {
            return;
        };
        self.slots.swap_remove(place);
        if let Some(moved) = self.slots.get(place) {
            self.index.insert(moved.id, place);
        }
        self.hand = self.hand.min(self.slots.len().saturating_sub(1));
    }

    fn put_unknown(&mut self, id: Id, until: Instant, most: usize) {
        while self.order.len() >= most {
            let Some((oldest, noted)) = self.order.pop_front() else {
                break;
            };
            // It may have been inserted again since.
            if self.unknown.get(&oldest) == Some(&noted) {
                self.unknown.remove(&oldest);
            }
        }
        self.unknown.insert(id, until);
        self.order.push_back((id, until));
    }
}

impl Cache {
    /// For at most this many users, and this many unknown names.
    #[must_use]
    pub fn new(known: usize, unknown: usize) -> Cache {
        Cache {
            parts: (0..SHARDS).map(|_| Mutex::default()).collect(),
            first: RandomState::new(),
            second: RandomState::new(),
            generation: AtomicU64::new(0),
            known_per_part: known.div_ceil(SHARDS).max(1),
            unknown_per_part: unknown.div_ceil(SHARDS).max(1),
        }
    }

    /// The identity of a user.
    #[must_use]
    pub fn id(&self, realm: &str, name: &str) -> Id {
        let user = (realm, name);
        let halves = [self.first.hash_one(user), self.second.hash_one(user)];
        Id(u128::from(halves[0]) << 64 | u128::from(halves[1]))
    }

    fn part(&self, id: Id) -> MutexGuard<'_, Shard> {
        let part = &self.parts[(id.0 >> 124) as usize % SHARDS];
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry of a user.
    #[must_use]
    pub fn get(&self, id: Id, now: Instant) -> Cached {
        let mut part = self.part(id);
        if let Some(place) = part.index.get(&id).copied() {
            let slot = &mut part.slots[place];
            slot.was_used = true;
            let is_current = slot.generation == self.generation.load(Ordering::Relaxed);
            return match is_current && now < slot.until {
                true => Cached::Known(slot.keys, slot.until - now),
                false => Cached::Stale(slot.keys),
            };
        }
        match part.unknown.get(&id) {
            Some(until) if now < *until => Cached::Unknown,
            _ => Cached::Missing,
        }
    }

    /// Stores the keys of a user.
    pub fn put(&self, id: Id, keys: Keys, until: Instant) {
        let slot = Slot {
            id,
            keys,
            until,
            generation: self.generation.load(Ordering::Relaxed),
            was_used: false,
        };
        self.part(id).put(slot, self.known_per_part);
    }

    /// Stores that there is no such user.
    pub fn put_unknown(&self, id: Id, until: Instant) {
        let mut part = self.part(id);
        part.remove(id);
        part.put_unknown(id, until, self.unknown_per_part);
    }

    /// Removes the entry of a user that has changed.
    pub fn forget(&self, id: Id) {
        self.part(id).remove(id);
    }

    /// Makes all entries stale.
    pub fn expire_all(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        for part in &self.parts {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            part.unknown.clear();
            part.order.clear();
        }
    }

    /// The number of known users.
    #[must_use]
    pub fn len(&self) -> usize {
        let lock = |part: &Mutex<Shard>| {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            part.slots.len()
        };
        self.parts.iter().map(lock).sum()
    }

    /// Whether there is no known user.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn keys(byte: u8) -> Keys {
        Keys {
            md5: Some([byte; 16]),
            sha256: None,
        }
    }

    #[test]
    fn a_user_is_known_for_its_time_and_stale_afterwards() {
        let (cache, now) = (Cache::new(100, 100), Instant::now());
        let (ann, eve) = (cache.id("a", "ann"), cache.id("a", "eve"));
        assert_ne!(ann, cache.id("aa", "nn"));
        assert_eq!(cache.get(ann, now), Cached::Missing);
        cache.put(ann, keys(1), now + MINUTE);
        cache.put_unknown(eve, now + MINUTE);
        assert_eq!(cache.get(ann, now), Cached::Known(keys(1), MINUTE));
        assert_eq!(cache.get(eve, now), Cached::Unknown);
        assert_eq!(cache.get(ann, now + MINUTE), Cached::Stale(keys(1)));
        assert_eq!(cache.get(eve, now + MINUTE), Cached::Missing);
        cache.expire_all();
        assert_eq!(cache.get(ann, now), Cached::Stale(keys(1)));
        assert_eq!(cache.get(eve, now), Cached::Missing);
        cache.forget(ann);
        assert_eq!(cache.get(ann, now), Cached::Missing);
        assert!(cache.is_empty());
    }

    #[test]
    fn a_user_that_is_added_or_deleted_is_no_longer_the_other() {
        let (cache, now) = (Cache::new(100, 100), Instant::now());
        let ann = cache.id("a", "ann");
        cache.put_unknown(ann, now + MINUTE);
        cache.put(ann, keys(1), now + MINUTE);
        assert_eq!(cache.get(ann, now), Cached::Known(keys(1), MINUTE));
        cache.put_unknown(ann, now + MINUTE);
        assert_eq!(cache.get(ann, now), Cached::Unknown);
    }

    #[test]
    fn unknown_names_evict_no_user_and_there_is_a_limit_on_both() {
        let (cache, now) = (Cache::new(160, 160), Instant::now());
        let id = |n: usize| cache.id("a", &n.to_string());
        (0..100).for_each(|n| cache.put(id(n), keys(1), now + MINUTE));
        let before = cache.len();
        (1_000..50_000).for_each(|n| cache.put_unknown(id(n), now + MINUTE));
        assert_eq!(cache.len(), before);
        let noted = (1_000..50_000).filter(|n| cache.get(id(*n), now) == Cached::Unknown);
        assert_eq!(noted.count(), 160);
        for n in 1_000..5_000 {
            // Who is asked for again and again stays.
            cache.put(id(n), keys(2), now + MINUTE);
            cache.put(cache.id("a", "ann"), keys(3), now + MINUTE);
            assert!(matches!(
                cache.get(cache.id("a", "ann"), now),
                Cached::Known(..)
            ));
        }
        assert!(cache.len() <= 160, "{}", cache.len());
        let parts = cache.parts.iter().map(|part| part.lock().unwrap());
        for part in parts {
            assert_eq!(part.index.len(), part.slots.len());
            assert!(
                part.slots
                    .iter()
                    .enumerate()
                    .all(|(n, slot)| part.index[&slot.id] == n)
            );
        }
    }
}
