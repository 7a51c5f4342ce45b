//! Counts by key in memory that another process of this server reads during an upgrade.
//!
//! ```text
//!  key of the hash, 2 words | slot | slot | ...     a slot: 40 bits of the key's hash, 24 bits of the count; 0: free
//! ```
//! Each process writes its own counts and reads the other one's. So when one is killed, its counts end with it.

use io::SharedWords;
use sip::HashKey;
use std::io::{Error, ErrorKind};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Words before the first slot.
const HEAD_WORDS: usize = 2;

/// A key is in one of this many slots, beginning with the slot of its hash: four cache lines.
const WINDOW_SLOTS: usize = 32;

/// The bits of a slot that are the count.
const COUNT_MASK: u64 = (1 << 24) - 1;

/// At most 32 MiB; the kernel allocates only the pages that are used.
const MAX_SLOTS: usize = 1 << 22;

/// The key of a count.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CountKey<'a> {
    /// The whole server.
    All,
    Realm(&'a str),
    User {
        realm: &'a str,
        name: &'a str,
    },
    /// A source prefix.
    Source(IpAddr),
}

impl CountKey<'_> {
    fn hash(self, key: HashKey) -> u64 {
        let mut bytes = Vec::with_capacity(64);
        match self {
            CountKey::All => bytes.push(0),
            CountKey::Realm(realm) => {
                bytes.push(1);
                bytes.extend_from_slice(realm.as_bytes());
            }
            CountKey::User { realm, name } => {
                bytes.push(2);
                // A realm has at most 128 characters.
                bytes.extend_from_slice(&(realm.len() as u64).to_le_bytes());
                bytes.extend_from_slice(realm.as_bytes());
                bytes.extend_from_slice(name.as_bytes());
            }
            CountKey::Source(IpAddr::V4(v4)) => {
                bytes.push(4);
                bytes.extend_from_slice(&v4.octets());
            }
            CountKey::Source(IpAddr::V6(v6)) => {
                bytes.push(6);
                bytes.extend_from_slice(&v6.octets());
            }
        }
        key.mac(&bytes)
    }
}

/// The slots that may hold a key's count.
fn window(words: &[AtomicU64], hash: u64) -> impl Iterator<Item = &AtomicU64> {
    let slots = &words[HEAD_WORDS..];
    let first = usize::try_from(hash & COUNT_MASK).unwrap_or(0);
    (first..first + WINDOW_SLOTS).map(move |at| &slots[at & (slots.len() - 1)])
}

fn is_of(word: u64, hash: u64) -> bool {
    word != 0 && word & !COUNT_MASK == hash & !COUNT_MASK
}

/// The counts of this process, which another process reads.
#[derive(Debug)]
pub(crate) struct SharedCounts {
    words: SharedWords,
    key: HashKey,
    /// One thread at a time writes.
    writer: Mutex<()>,
}

impl SharedCounts {
    /// Counts for about this many keys, all 0.
    ///
    /// # Errors
    /// When the system has no memory, no descriptor or no randomness.
    pub(crate) fn new(keys: usize) -> std::io::Result<SharedCounts> {
        let slots = keys.saturating_mul(4).clamp(1 << 12, MAX_SLOTS);
        let words = SharedWords::new(HEAD_WORDS + slots.next_power_of_two())?;
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(Error::other)?;
        let (halves, _) = key.as_chunks::<8>();
        for (word, half) in words.words().iter().zip(halves) {
            word.store(u64::from_le_bytes(*half), Ordering::Release);
        }
        Ok(SharedCounts {
            key: HashKey::new(key),
            words,
            writer: Mutex::new(()),
        })
    }

    /// A descriptor for [`OtherCounts::of`].
    ///
    /// # Errors
    /// The process has no free file descriptor.
    pub(crate) fn descriptor(&self) -> std::io::Result<OwnedFd> {
        self.words.as_fd().try_clone_to_owned()
    }

    /// Adds units. A key without a free slot is not counted, which four slots per key make very unlikely.
    pub(crate) fn add(&self, key: CountKey<'_>, units: u32) {
        self.change(key, |count| (count + u64::from(units)).min(COUNT_MASK));
    }

    /// Removes a unit.
    pub(crate) fn subtract(&self, key: CountKey<'_>) {
        self.change(key, |count| count.saturating_sub(1));
    }

    fn change(&self, key: CountKey<'_>, change: impl Fn(u64) -> u64) {
        let hash = key.hash(self.key);
        let _writes = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = None;
        for slot in window(self.words.words(), hash) {
            let word = slot.load(Ordering::Relaxed);
            if is_of(word, hash) {
                let count = change(word & COUNT_MASK);
                let left = if count == 0 {
                    0
                } else {
                    hash & !COUNT_MASK | count
                };
                return slot.store(left, Ordering::Release);
            }
            if word == 0 {
                free = free.or(Some(slot));
            }
        }
        let count = change(0);
        if let Some(slot) = free.filter(|_| count > 0) {
            slot.store(hash & !COUNT_MASK | count, Ordering::Release);
        }
    }
}

/// The counts of another process.
#[derive(Debug)]
pub(crate) struct OtherCounts {
    words: SharedWords,
    key: HashKey,
}

impl OtherCounts {
    /// Maps what another process has sent.
    ///
    /// # Errors
    /// If the descriptor is not memory of this format.
    pub(crate) fn of(fd: OwnedFd) -> std::io::Result<OtherCounts> {
        let words = SharedWords::of(fd)?;
        let slots = words.words().len().saturating_sub(HEAD_WORDS);
        if !slots.is_power_of_two() || slots < WINDOW_SLOTS {
            return Err(ErrorKind::InvalidInput.into());
        }
        let mut key = [0; 16];
        for (half, word) in key.chunks_exact_mut(8).zip(words.words()) {
            half.copy_from_slice(&word.load(Ordering::Acquire).to_le_bytes());
        }
        Ok(OtherCounts {
            key: HashKey::new(key),
            words,
        })
    }

    /// How many units the other process counts for this key.
    pub(crate) fn get(&self, key: CountKey<'_>) -> u32 {
        let hash = key.hash(self.key);
        let words = window(self.words.words(), hash).map(|slot| slot.load(Ordering::Acquire));
        let found = words.into_iter().find(|word| is_of(*word, hash));
        // 24 bits.
        found.map_or(0, |word| (word & COUNT_MASK) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(keys: usize) -> (SharedCounts, OtherCounts) {
        let own = SharedCounts::new(keys).expect("memory");
        let other = OtherCounts::of(own.descriptor().expect("a descriptor")).expect("the same");
        (own, other)
    }

    #[test]
    fn another_process_sees_each_count_and_each_end() {
        let (own, other) = pair(100);
        let user = |realm, name| CountKey::User { realm, name };
        let source = CountKey::Source("192.0.2.1".parse().expect("an address"));
        for key in [user("a", "bc"), source, CountKey::Realm("a"), CountKey::All] {
            assert_eq!(other.get(key), 0);
            own.add(key, 2);
            own.add(key, 1);
            assert_eq!(other.get(key), 3);
        }
        assert_eq!(other.get(user("ab", "c")), 0, "another user");
        for left in [2, 1, 0, 0] {
            own.subtract(source);
            assert_eq!(other.get(source), left);
        }
        assert_eq!(other.get(user("a", "bc")), 3);
    }

    #[test]
    fn users_may_come_and_go_for_ever() {
        let (own, other) = pair(1);
        let names: Vec<String> = (0..100_000).map(|number| number.to_string()).collect();
        let user = |name| CountKey::User { realm: "r", name };
        for window in names.windows(1_000).step_by(500) {
            window.iter().for_each(|name| own.add(user(name), 1));
            assert!(window.iter().all(|name| other.get(user(name)) == 1));
            window.iter().for_each(|name| own.subtract(user(name)));
        }
        assert!(
            own.words.words()[HEAD_WORDS..]
                .iter()
                .all(|word| word.load(Ordering::Relaxed) == 0)
        );
    }

    #[test]
    fn memory_of_another_shape_is_refused() {
        let words = SharedWords::new(1000).expect("memory");
        let copy = words.as_fd().try_clone_to_owned().expect("a descriptor");
        assert!(OtherCounts::of(copy).is_err());
    }
}
