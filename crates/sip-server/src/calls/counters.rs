//! The number of calls that a key has in progress, and the rate at which it begins new ones.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sip::Mono;

/// Parts with a lock of their own, so that workers rarely wait for each other.
const SHARDS: usize = 16;
/// Accounts of one part below which accounts without a call are not removed: they use little memory.
const FEW_ACCOUNTS: usize = 64;
const SECOND_NS: u64 = 1_000_000_000;

/// Limits of one key. Zero means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Calls at the same time, those that ring included.
    pub concurrent: u32,
    /// Calls that begin per second. As many may begin at once.
    pub per_second: u32,
}

impl Limit {
    /// Whether there is a limit.
    #[must_use]
    pub const fn is_set(&self) -> bool {
        self.concurrent != 0 || self.per_second != 0
    }
}

/// Which limit a call would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exceeded {
    /// [`Limit::concurrent`].
    Concurrent,
    /// [`Limit::per_second`].
    Rate,
}

/// A limit of calls per second. The calls of a second may begin at once.
#[derive(Debug, Default)]
pub struct CallRate {
    /// When the next call may begin, if calls begin evenly (the generic cell rate algorithm): nanoseconds.
    next_ns: AtomicU64,
}

impl CallRate {
    /// Whether a call may begin now; if so, it is noted. 0 means no limit.
    #[must_use]
    pub fn may_begin(&self, now: Mono, per_second: u32) -> bool {
        if per_second == 0 {
            return true;
        }
        let interval = SECOND_NS / u64::from(per_second);
        // A second's calls may come at once, so the next one may be due almost a second ahead.
        let ahead = SECOND_NS - interval;
        let noted = |next: u64| (next <= now.0 + ahead).then(|| next.max(now.0) + interval);
        let next = &self.next_ns;
        next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, noted)
            .is_ok()
    }
}

/// The calls of one key.
#[derive(Debug, Default)]
struct Account {
    calls: AtomicU32,
    rate: CallRate,
}

impl Account {
    /// Counts one more concurrent call, if the limit allows it; 0 means no limit.
    fn enter(&self, places: u32) -> bool {
        let more = |calls: u32| (places == 0 || calls < places).then_some(calls + 1);
        let entered = self
            .calls
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        entered.is_ok()
    }
}

/// The calls of one account: a trunk, or another group that the embedder counts. It lives as long as its calls.
#[derive(Debug, Default)]
pub struct CallCounter(Arc<Account>);

impl CallCounter {
    /// A call begins. `None` if there are `most` already; 0 means no limit.
    #[must_use]
    pub fn begin(&self, most: u32) -> Option<Ticket> {
        self.0.enter(most).then(|| Ticket(self.0.clone()))
    }

    /// Calls in progress.
    #[must_use]
    pub fn calls(&self) -> u32 {
        self.0.calls.load(Ordering::Relaxed)
    }
}

/// One call of one key. The call ends when this is dropped.
#[derive(Debug)]
pub struct Ticket(Arc<Account>);

impl Ticket {
    /// The account that the call counts for.
    #[must_use]
    pub fn account(&self) -> CallAccount {
        CallAccount(self.0.clone())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The key of a call, which does not count as one.
#[derive(Debug)]
pub struct CallAccount(Arc<Account>);

impl CallAccount {
    /// Another call of the same key, regardless of the limit: a second dialog of a request that was forked.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        Ticket(self.0.clone())
    }
}

/// The calls of all keys of one kind: users, domains, trunks. Shared by all workers. Keys must come from the
/// configuration or from those who have authenticated, as each with a call takes memory.
#[derive(Debug)]
pub struct Counters<K> {
    parts: Box<[Shard<K>]>,
}

/// A part of the accounts.
type Shard<K> = Mutex<BTreeMap<K, Arc<Account>>>;

impl<K> Default for Counters<K> {
    fn default() -> Counters<K> {
        Counters {
            parts: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl<K: Ord + Hash + Clone> Counters<K> {
    /// A call of this key begins.
    ///
    /// # Errors
    /// The limit that it would exceed. It does not count then.
    pub fn begin(&self, now: Mono, key: &K, limit: Limit) -> Result<Ticket, Exceeded> {
        let account = self.account(now, key);
        if !account.enter(limit.concurrent) {
            return Err(Exceeded::Concurrent);
        }
        let ticket = Ticket(account);
        match ticket.0.rate.may_begin(now, limit.per_second) {
            true => Ok(ticket),
            false => Err(Exceeded::Rate),
        }
    }

    /// Calls of this key in progress.
    #[must_use]
    pub fn calls(&self, key: &K) -> u32 {
        let part = self.part(key).lock();
        let part = part.unwrap_or_else(PoisonError::into_inner);
        let account = part.get(key);
        account.map_or(0, |account| account.calls.load(Ordering::Relaxed))
    }

    /// Keys that take memory.
    #[must_use]
    pub fn keys(&self) -> usize {
        let parts = self.parts.iter();
        let lens = parts.map(|part| part.lock().unwrap_or_else(PoisonError::into_inner).len());
        lens.sum()
    }

    fn part(&self, key: &K) -> &Shard<K> {
        // Not for attackers to choose: keys are configured. So no secret is needed.
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        &self.parts[hasher.finish() as usize % SHARDS]
    }

    fn account(&self, now: Mono, key: &K) -> Arc<Account> {
        let part = self.part(key).lock();
        let mut part = part.unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = part.get(key) {
            return account.clone();
        }
        // Each time that the part has doubled, those without a call go, so that each insertion costs a constant on
        // average.
        if part.len() >= FEW_ACCOUNTS && part.len().is_power_of_two() {
            part.retain(|_, account| {
                Arc::strong_count(account) > 1
                    || account.rate.next_ns.load(Ordering::Relaxed) > now.0
            });
        }
        let account = Arc::<Account>::default();
        part.insert(key.clone(), account.clone());
        account
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(ms: u64) -> Mono {
        Mono(SECOND_NS).plus(Duration::from_millis(ms))
    }

    #[test]
    fn a_place_is_free_again_when_its_call_ends() {
        let counters = Counters::default();
        let limit = Limit {
            concurrent: 2,
            per_second: 0,
        };
        let begin = |key: &'static str| counters.begin(at(0), &key, limit);
        let first = begin("alice").unwrap();
        let second = begin("alice").unwrap();
        assert_eq!(begin("alice").unwrap_err(), Exceeded::Concurrent);
        assert_eq!(counters.calls(&"alice"), 2);
        let _other = begin("bob").unwrap();
        drop(first);
        let third = begin("alice").unwrap();
        assert_eq!(begin("alice").unwrap_err(), Exceeded::Concurrent);
        let forked = third.account().ticket();
        drop((second, third));
        assert_eq!(counters.calls(&"alice"), 1);
        drop(forked);
        assert_eq!(counters.calls(&"alice"), 0);
    }

    #[test]
    fn a_seconds_calls_may_come_at_once_and_then_evenly() {
        let counters = Counters::default();
        let limit = Limit {
            concurrent: 0,
            per_second: 4,
        };
        let begin = |ms| counters.begin(at(ms), &1, limit).map(drop);
        for _ in 0..4 {
            begin(0).unwrap();
        }
        assert_eq!(begin(0), Err(Exceeded::Rate));
        assert_eq!(counters.calls(&1), 0, "a refused call does not count");
        assert_eq!(begin(249), Err(Exceeded::Rate));
        begin(250).unwrap();
        assert_eq!(begin(499), Err(Exceeded::Rate));
        begin(500).unwrap();
        // Refusals do not put the next call off.
        (0..4).for_each(|_| begin(5000).unwrap());
        assert_eq!(begin(5000), Err(Exceeded::Rate));
    }

    #[test]
    fn keys_without_a_call_do_not_take_memory_for_ever() {
        let counters = Counters::default();
        let limit = Limit {
            concurrent: 1,
            per_second: 0,
        };
        let kept: Vec<Ticket> = (0..10)
            .map(|key| counters.begin(at(0), &key, limit).unwrap())
            .collect();
        for key in 10..100_000 {
            drop(counters.begin(at(0), &key, limit).unwrap());
        }
        assert!(
            counters.keys() <= 2 * FEW_ACCOUNTS * SHARDS,
            "{}",
            counters.keys()
        );
        assert!((0..10).all(|key| counters.calls(&key) == 1));
        drop(kept);
    }
}
