//! The leases of one node, without I/O: how much of each limit this node may use without a question.
//!
//! ```text
//!  acquire ──> used < granted ──────────────────────────> yes
//!                 └─ the engine has said: nothing is left ─> no, and ask again
//!                 └─ otherwise ──> yes, at most one block more than granted, and ask
//!  collect ──> Request ──> engine ──> answer
//! ```
//!
//! A lease is valid for its time to live, counted from the moment when this node asked. The engine forgets it no
//! earlier. Without an engine, a lease that has ended limits nobody: the limits of the node itself still apply.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

/// Most units beyond those in use that a node leases at a time.
const LARGEST_BLOCK: u32 = 1_024;
/// A block is this part of the limit.
const BLOCK_PART: u32 = 8;
/// No block is smaller, unless the limit is: a client with several interfaces and transports opens so many allocations
/// at once.
const SMALLEST_BLOCK: u32 = 8;
/// A node that uses little leases this part of the limit at a time.
const SMALLEST_PART: u32 = 128;
/// A lease of at most this part of the limit is renewed seldom: if its node dies, the user has most of the limit
/// elsewhere.
const SMALL_PART: u32 = 4;
/// Time to live of a lease. The engine counts the lease of a node that has died for this long.
const TTL_MS: u64 = 8_000;
/// The same for a small lease. Most users have one: they cause most of the load of the engine.
const SMALL_TTL_MS: u64 = 60_000;
/// When nothing is left, requests of the same key have this distance.
const FULL_MS: u64 = 400;

/// What a limit applies to: a user of a realm, or a realm.
pub type LeaseKey = Arc<str>;

/// A request for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The limit.
    pub key: LeaseKey,
    /// Units in use on this node. The engine grants at least these.
    pub used: u32,
    /// Units wanted beyond those; zero to return the lease, if nothing is in use either.
    pub block: u32,
    /// How many units all nodes together may use.
    pub limit: u32,
    /// Time to live.
    pub ttl_ms: u64,
}

/// One lease.
#[derive(Debug, Default)]
struct Lease {
    used: u32,
    granted: u32,
    limit: u32,
    /// Until when the engine counts it; 0 if it has never responded.
    until_ms: u64,
    /// When the request was sent that is in progress.
    asked_ms: Option<u64>,
    /// Units in use when that request was sent.
    asked_used: u32,
    /// The last response granted nothing beyond what was in use.
    is_full: bool,
    /// The last request has failed.
    has_failed: bool,
    is_dirty: bool,
    /// No request before.
    not_before_ms: u64,
    /// When to renew: the entry of the heap with another time is obsolete.
    renew_ms: u64,
}

/// What became of an attempt to acquire a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// Within the lease.
    Leased,
    /// Beyond the lease: a request is in progress.
    Ahead,
    /// Beyond the lease, because the engine is away.
    Blind,
    /// The limit is reached.
    Refused,
}

/// The leases of some keys.
#[derive(Debug, Default)]
pub struct Leases {
    all: HashMap<LeaseKey, Lease>,
    dirty: Vec<LeaseKey>,
    renewals: BinaryHeap<Reverse<(u64, LeaseKey)>>,
}

/// A block: the most units that a node gives beyond its lease, and that it leases beyond those in use.
#[must_use]
pub fn block(limit: u32) -> u32 {
    let smallest = SMALLEST_BLOCK.min(limit).max(1);
    (limit / BLOCK_PART).clamp(smallest, LARGEST_BLOCK)
}

/// Units that a node leases beyond those in use: as many again, within bounds.
fn reserve(limit: u32, used: u32) -> u32 {
    used.max(limit / SMALLEST_PART).clamp(1, block(limit))
}

fn ttl_ms(units: u32, limit: u32) -> u64 {
    match units <= limit / SMALL_PART {
        true => SMALL_TTL_MS,
        false => TTL_MS,
    }
}

impl Lease {
    fn is_known(&self, now_ms: u64) -> bool {
        now_ms < self.until_ms
    }

    /// Decides whether this node may use one more unit now. It does not wait for the engine.
    fn decide(&self, now_ms: u64, is_engine_up: bool) -> Acquired {
        // The engine may reject one key only, for example with NOPERM.
        let is_engine_up = is_engine_up && !self.has_failed;
        let is_known = self.is_known(now_ms);
        let granted = if is_known { self.granted } else { 0 };
        if self.used < granted {
            Acquired::Leased
        } else if !is_known && !is_engine_up {
            Acquired::Blind
        } else if is_known && self.is_full {
            Acquired::Refused
        } else if self.used - granted < block(self.limit) {
            Acquired::Ahead
        } else if is_engine_up {
            Acquired::Refused
        } else {
            // Without the engine, no response can extend this lease. It can last a minute, so refuse nobody meanwhile.
            Acquired::Blind
        }
    }
}

impl Leases {
    /// Acquires a unit, if all nodes together have fewer than `limit`. `u32::MAX` is no limit: then units are only
    /// counted, because a limit may come while they are held.
    pub fn acquire(&mut self, key: &str, limit: u32, now_ms: u64, is_engine_up: bool) -> Acquired {
        let own = match self.all.get_key_value(key) {
            Some((own, _)) => Arc::clone(own),
            None => key.into(),
        };
        let lease = self.all.entry(Arc::clone(&own)).or_default();
        lease.limit = limit;
        if limit == u32::MAX {
            lease.used += 1;
            return Acquired::Leased;
        }
        let acquired = lease.decide(now_ms, is_engine_up);
        if acquired != Acquired::Refused {
            lease.used += 1;
        }
        let left = lease.granted.saturating_sub(lease.used);
        // In time: the next attempt may be the one that the limit refuses.
        let is_little = left < (reserve(limit, lease.used) / 2).max(1);
        if acquired != Acquired::Leased || is_little && !lease.is_full {
            self.touch(&own);
        }
        acquired
    }

    /// Releases a unit.
    pub fn release(&mut self, key: &str) {
        let Some((own, lease)) = self.all.get_key_value(key) else {
            return debug_assert!(false, "a unit was released that nobody held");
        };
        let own = Arc::clone(own);
        let too_many = lease.granted
            > lease
                .used
                .saturating_add(2 * reserve(lease.limit, lease.used));
        let is_last = lease.used <= 1;
        // Others may wait for it.
        let is_wanted = lease.is_full;
        if let Some(lease) = self.all.get_mut(key) {
            lease.used = lease.used.saturating_sub(1);
        }
        if is_last || too_many || is_wanted {
            self.touch(&own);
        }
    }

    /// Units of the key in use on this node.
    #[must_use]
    pub fn used(&self, key: &str) -> u32 {
        self.all.get(key).map_or(0, |lease| lease.used)
    }

    /// Keys that this node keeps an entry for, with or without a granted lease.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether this node keeps no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether there may be something to collect before any renewal is due.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    fn touch(&mut self, key: &LeaseKey) {
        if let Some(lease) = self.all.get_mut(key)
            && !lease.is_dirty
        {
            lease.is_dirty = true;
            self.dirty.push(Arc::clone(key));
        }
    }

    /// Adds at most `most` requests that are due now, and removes leases that have ended and of which nothing is in
    /// use.
    pub fn collect(&mut self, now_ms: u64, most: usize, requests: &mut Vec<Request>) {
        while let Some(Reverse((due, _))) = self.renewals.peek()
            && *due <= now_ms
        {
            let Some(Reverse((due, key))) = self.renewals.pop() else {
                break;
            };
            let is_due = self.all.get(&key).is_some_and(|it| it.renew_ms == due);
            if is_due {
                self.touch(&key);
            }
        }
        let mut later = Vec::new();
        for key in std::mem::take(&mut self.dirty) {
            let Some(lease) = self.all.get_mut(&key) else {
                continue;
            };
            if lease.used == 0 && lease.asked_ms.is_none() && !lease.is_known(now_ms) {
                // The engine forgets it without a request. Else they pile up while the engine is away.
                self.all.remove(&key);
                continue;
            }
            let may = lease.asked_ms.is_none() && lease.not_before_ms <= now_ms;
            if !may || requests.len() >= most {
                later.push(key);
                continue;
            }
            lease.is_dirty = false;
            if lease.limit == u32::MAX && lease.granted == 0 {
                if lease.used == 0 {
                    self.all.remove(&key);
                }
                continue;
            }
            lease.asked_ms = Some(now_ms);
            lease.asked_used = lease.used;
            let is_wanted = lease.used > 0 && lease.limit != u32::MAX;
            let block = match is_wanted {
                true => reserve(lease.limit, lease.used),
                false => 0,
            };
            requests.push(Request {
                ttl_ms: ttl_ms(lease.used + block, lease.limit),
                key,
                used: lease.used,
                block,
                limit: lease.limit,
            });
        }
        self.dirty = later;
    }

    /// The engine has granted so many units in all, for the time to live of the request.
    pub fn granted(&mut self, request: &Request, granted: u32, now_ms: u64) {
        let Some(lease) = self.all.get_mut(&request.key) else {
            return;
        };
        let asked_ms = lease.asked_ms.take().unwrap_or(now_ms);
        if lease.used == 0 && granted == 0 {
            self.all.remove(&request.key);
            return;
        }
        lease.granted = granted;
        lease.has_failed = false;
        lease.is_full = request.block > 0 && granted <= request.used;
        // If the engine goes away, its last refusal lasts no longer than `TTL_MS`.
        let ttl_ms = match lease.is_full {
            true => request.ttl_ms.min(TTL_MS),
            false => request.ttl_ms,
        };
        lease.until_ms = asked_ms + ttl_ms;
        lease.not_before_ms = if lease.is_full { now_ms + FULL_MS } else { 0 };
        lease.renew_ms = asked_ms + ttl_ms / 2;
        let due = (lease.renew_ms, Arc::clone(&request.key));
        let is_ahead = lease.used > granted || lease.used == 0;
        self.renewals.push(Reverse(due));
        if is_ahead {
            self.touch(&request.key);
        }
    }

    /// The engine has not responded, or with an error. Nothing is asked for this key before `retry_ms`.
    pub fn failed(&mut self, request: &Request, retry_ms: u64) {
        if let Some(lease) = self.all.get_mut(&request.key) {
            lease.asked_ms = None;
            lease.has_failed = true;
            lease.not_before_ms = retry_ms;
        }
        self.touch(&request.key);
    }

    /// The engine has lost what it knew: everything is to be leased again.
    pub fn renew_all(&mut self) {
        let keys: Vec<_> = self.all.keys().cloned().collect();
        for key in keys {
            if let Some(lease) = self.all.get_mut(&key) {
                lease.not_before_ms = 0;
            }
            self.touch(&key);
        }
    }
}

#[cfg(test)]
mod tests;
