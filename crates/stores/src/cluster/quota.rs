//! The quota of all nodes: what workers ask when an allocation opens or closes. It never waits for the engine.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use tokio::sync::Notify;
use turn::server::{ClientIdentity, Quota, QuotaExceeded};

use super::leases::{Acquired, Leases, Request};

/// Parts with a lock of their own, so that workers rarely wait for each other.
const SHARDS: usize = 64;
/// No limit.
const UNLIMITED: u32 = u32::MAX;

/// The limits of one realm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealmLimits {
    /// Relayed addresses of one user; `u32::MAX` is no limit.
    pub per_user: u32,
    /// Relayed addresses of all users; `u32::MAX` is no limit.
    pub total: u32,
}

/// The limits that all nodes share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The limits of each realm. Realms that are not here have no limit.
    pub realms: HashMap<String, RealmLimits>,
}

/// How attempts ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// Within a lease.
    pub leased: u64,
    /// Ahead of the lease.
    pub ahead: u64,
    /// Without the engine.
    pub blind: u64,
    /// Refused.
    pub refused: u64,
}

/// The quota of all nodes.
#[derive(Debug)]
pub struct ClusterQuota {
    hasher: RandomState,
    shards: Vec<Mutex<Leases>>,
    /// Where the next batch of requests begins: each shard has its turn.
    next_shard: AtomicUsize,
    limits: RwLock<Arc<Limits>>,
    is_engine_up: AtomicBool,
    started: Instant,
    /// Wakes the control thread.
    wanted: Notify,
    attempts: [AtomicU64; 4],
}

impl Default for ClusterQuota {
    fn default() -> ClusterQuota {
        ClusterQuota {
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            next_shard: AtomicUsize::new(0),
            limits: RwLock::default(),
            is_engine_up: AtomicBool::new(true),
            started: Instant::now(),
            wanted: Notify::new(),
            attempts: Default::default(),
        }
    }
}

impl ClusterQuota {
    /// Replaces the limits.
    pub fn set_limits(&self, limits: Limits) {
        let mut now = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        *now = Arc::new(limits);
    }

    /// How attempts ended.
    #[must_use]
    pub fn attempts(&self) -> Attempts {
        let [leased, ahead, blind, refused] = &self.attempts;
        let [leased, ahead, blind, refused] =
            [leased, ahead, blind, refused].map(|count| count.load(Ordering::Relaxed));
        Attempts {
            leased,
            ahead,
            blind,
            refused,
        }
    }

    /// Keys with a lease.
    #[must_use]
    pub fn leases(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    pub(super) fn now_ms(&self) -> u64 {
        // 0 is "never" in a lease.
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX) + 1
    }

    pub(super) fn set_engine_up(&self, is_up: bool) {
        self.is_engine_up.store(is_up, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn is_engine_up(&self) -> bool {
        self.is_engine_up.load(Ordering::Relaxed)
    }

    /// Waits until a worker wants something of the engine.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// At most `most` requests that are due.
    pub(super) fn collect(&self, most: usize) -> Vec<Request> {
        let now = self.now_ms();
        let mut requests = Vec::new();
        let first = self.next_shard.load(Ordering::Relaxed);
        for number in (first..first + SHARDS).map(|number| number % SHARDS) {
            if requests.len() >= most {
                break;
            }
            lock(&self.shards[number]).collect(now, most, &mut requests);
            self.next_shard
                .store((number + 1) % SHARDS, Ordering::Relaxed);
        }
        requests
    }

    pub(super) fn granted(&self, request: &Request, granted: u32) {
        let now = self.now_ms();
        self.shard(&request.key).granted(request, granted, now);
    }

    pub(super) fn failed(&self, request: &Request, retry_ms: u64) {
        self.shard(&request.key).failed(request, retry_ms);
    }

    pub(super) fn renew_all(&self) {
        self.shards.iter().for_each(|shard| lock(shard).renew_all());
    }

    fn shard(&self, key: &str) -> MutexGuard<'_, Leases> {
        let number = self.hasher.hash_one(key) % SHARDS as u64;
        lock(&self.shards[usize::try_from(number).unwrap_or(0)])
    }

    fn limits(&self, realm: &str) -> RealmLimits {
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        let unlimited = RealmLimits {
            per_user: UNLIMITED,
            total: UNLIMITED,
        };
        limits.realms.get(realm).copied().unwrap_or(unlimited)
    }

    fn acquire(&self, key: &str, limit: u32) -> bool {
        let is_up = self.is_engine_up.load(Ordering::Relaxed);
        let now = self.now_ms();
        let mut shard = self.shard(key);
        let was_dirty = shard.is_dirty();
        let acquired = shard.acquire(key, limit, now, is_up);
        let is_dirty = shard.is_dirty();
        drop(shard);
        let place = match acquired {
            Acquired::Leased => 0,
            Acquired::Ahead => 1,
            Acquired::Blind => 2,
            Acquired::Refused => 3,
        };
        self.attempts[place].fetch_add(1, Ordering::Relaxed);
        if is_dirty && !was_dirty {
            self.wanted.notify_one();
        }
        acquired != Acquired::Refused
    }

    fn release_key(&self, key: &str) {
        // The control thread looks several times per second: nobody waits for this.
        self.shard(key).release(key);
    }
}

fn lock(shard: &Mutex<Leases>) -> MutexGuard<'_, Leases> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn realm_key(realm: &str) -> String {
    format!("r:{realm}")
}

/// No realm has a line feed.
fn user_key(realm: &str, user: &str) -> String {
    format!("u:{realm}\n{user}")
}

impl Quota for ClusterQuota {
    fn try_acquire(&self, client: &ClientIdentity<'_>) -> Result<(), QuotaExceeded> {
        let limits = self.limits(client.realm);
        let of_user = user_key(client.realm, client.user);
        if !self.acquire(&of_user, limits.per_user) {
            return Err(QuotaExceeded::User);
        }
        if !self.acquire(&realm_key(client.realm), limits.total) {
            self.release_key(&of_user);
            return Err(QuotaExceeded::Realm);
        }
        Ok(())
    }

    fn release(&self, client: &ClientIdentity<'_>) {
        self.release_key(&user_key(client.realm, client.user));
        self.release_key(&realm_key(client.realm));
    }

    fn transfer(
        &self,
        from: &ClientIdentity<'_>,
        to: &ClientIdentity<'_>,
    ) -> Result<(), QuotaExceeded> {
        if from.user != to.user {
            let limits = self.limits(to.realm);
            if !self.acquire(&user_key(to.realm, to.user), limits.per_user) {
                return Err(QuotaExceeded::User);
            }
            self.release_key(&user_key(from.realm, from.user));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turn::{FiveTuple, Transport};

    fn client<'a>(realm: &'a str, user: &'a str) -> ClientIdentity<'a> {
        let at = |text: &str| text.parse().unwrap();
        let five_tuple = FiveTuple {
            transport: Transport::Udp,
            local: at("192.0.2.1:3478"),
            remote: at("198.51.100.1:1"),
        };
        ClientIdentity::new(five_tuple, realm, user)
    }

    fn quota() -> ClusterQuota {
        let quota = ClusterQuota::default();
        let limits = RealmLimits {
            per_user: 2,
            total: 3,
        };
        let realms = HashMap::from([("r".to_owned(), limits)]);
        quota.set_limits(Limits { realms });
        quota
    }

    #[test]
    fn users_of_each_shard_have_their_turn() {
        let quota = quota();
        let client = |number: u32| format!("user-{number}");
        for number in 0..500 {
            quota.acquire(&client(number), 2);
        }
        let mut seen = std::collections::HashSet::new();
        for _ in 0..2_000 {
            // The same requests are due again at once.
            for request in quota.collect(10) {
                quota.failed(&request, 0);
                seen.insert(request.key);
            }
        }
        assert_eq!(seen.len(), 500);
    }

    /// An engine that grants all that is asked for, up to the limit.
    fn respond(quota: &ClusterQuota) -> usize {
        let requests = quota.collect(100);
        for request in &requests {
            let granted = (request.used + request.block).min(request.limit.max(request.used));
            quota.granted(request, granted);
        }
        requests.len()
    }

    /// All leases are returned: where nothing was left, after a moment.
    fn expect_none(quota: &ClusterQuota) {
        let deadline = Instant::now() + std::time::Duration::from_secs(5);
        while quota.leases() > 0 {
            respond(quota);
            assert!(
                Instant::now() < deadline,
                "{} leases are left",
                quota.leases()
            );
        }
    }

    #[test]
    fn users_and_realms_have_limits_and_others_cause_no_request() {
        let quota = quota();
        for _ in 0..2 {
            quota.try_acquire(&client("r", "ann")).unwrap();
            assert_eq!(respond(&quota), 2, "the user and the realm");
        }
        let refused = quota.try_acquire(&client("r", "ann"));
        assert_eq!(refused, Err(QuotaExceeded::User));
        quota.try_acquire(&client("r", "bob")).unwrap();
        respond(&quota);
        let refused = quota.try_acquire(&client("r", "cid"));
        assert_eq!(refused, Err(QuotaExceeded::Realm));
        quota.try_acquire(&client("unlimited", "ann")).unwrap();
        while respond(&quota) > 0 {}
        let attempts = quota.attempts();
        assert_eq!((attempts.refused, attempts.blind), (2, 0));
        quota.release(&client("unlimited", "ann"));
        quota
            .transfer(&client("r", "bob"), &client("r", "dan"))
            .unwrap();
        for user in ["ann", "ann", "dan"] {
            quota.release(&client("r", user));
        }
        expect_none(&quota);
    }

    #[test]
    fn a_limit_can_appear_and_go_while_units_are_held() {
        let quota = quota();
        quota.try_acquire(&client("r", "ann")).unwrap();
        quota.set_limits(Limits::default());
        for _ in 0..9 {
            quota.try_acquire(&client("r", "ann")).unwrap();
        }
        quota.set_limits(
            super::tests::quota()
                .limits
                .into_inner()
                .unwrap()
                .as_ref()
                .clone(),
        );
        while respond(&quota) > 0 {}
        assert!(quota.try_acquire(&client("r", "ann")).is_err());
        for _ in 0..10 {
            quota.release(&client("r", "ann"));
        }
        expect_none(&quota);
    }
}
