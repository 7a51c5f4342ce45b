//! How many relayed addresses a user, a source prefix and everybody together may hold, counted across all workers.
//!
//! Only authenticated requests are counted, so the tables hold no more entries than there are live allocations. The locks
//! are touched when an allocation opens or closes, never for a datagram.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use turn::server::{ClientIdentity, Quota, QuotaExceeded};

/// The limits; one unit is one relayed transport address, so a dual allocation takes two. `u32::MAX` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuotaLimits {
    /// Held by one user name at once.
    pub per_user: u32,
    /// Held by one source prefix at once.
    pub per_source: u32,
    /// Held by everybody at once.
    pub total: u32,
}

impl Default for QuotaLimits {
    fn default() -> Self {
        QuotaLimits {
            per_user: Self::PER_USER,
            per_source: Self::PER_SOURCE,
            total: Self::TOTAL,
        }
    }
}

impl QuotaLimits {
    /// The same with this many for one user name.
    #[must_use]
    pub const fn per_user(mut self, limit: u32) -> QuotaLimits {
        self.per_user = limit;
        self
    }

    /// The same with this many for one source prefix.
    #[must_use]
    pub const fn per_source(mut self, limit: u32) -> QuotaLimits {
        self.per_source = limit;
        self
    }

    /// The same with this many for everybody.
    #[must_use]
    pub const fn total(mut self, limit: u32) -> QuotaLimits {
        self.total = limit;
        self
    }

    /// Enough for a large conference bridge behind one user name, not for one leaked password to take every port.
    pub const PER_USER: u32 = 1_000;
    /// Enough for an office or a carrier's NAT behind one address.
    pub const PER_SOURCE: u32 = 4_000;
    /// More than the ports of a few relay addresses: ports and open files usually run out first.
    pub const TOTAL: u32 = 100_000;
    /// No limit.
    pub const UNLIMITED: u32 = u32::MAX;
}

/// What counts as one source: the leading bits of the client's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourcePrefix {
    /// Bits of an IPv4 address, at most 32.
    pub v4: u8,
    /// Bits of an IPv6 address, at most 128. A subscriber usually gets at least a /64.
    pub v6: u8,
}

impl Default for SourcePrefix {
    fn default() -> Self {
        SourcePrefix { v4: 32, v6: 64 }
    }
}

impl SourcePrefix {
    fn of(self, ip: IpAddr) -> IpAddr {
        match ip {
            IpAddr::V4(ip) => {
                let mask = u32::MAX
                    .checked_shl(32 - u32::from(self.v4.min(32)))
                    .unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits() & mask))
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.v6.min(128)))
                    .unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & mask))
            }
        }
    }
}

/// The counts of a running server.
#[derive(Debug)]
pub struct Quotas {
    prefix: SourcePrefix,
    per_user: AtomicU32,
    per_source: AtomicU32,
    limit_total: AtomicU32,
    held: AtomicU32,
    users: Counts<str>,
    sources: Counts<IpAddr>,
}

impl Quotas {
    /// Counts that start at zero. The prefix lengths stay for the server's life.
    #[must_use]
    pub fn new(limits: QuotaLimits, prefix: SourcePrefix) -> Quotas {
        let quotas = Quotas {
            prefix,
            per_user: AtomicU32::new(0),
            per_source: AtomicU32::new(0),
            limit_total: AtomicU32::new(0),
            held: AtomicU32::new(0),
            users: Counts::new(),
            sources: Counts::new(),
        };
        quotas.set_limits(limits);
        quotas
    }

    /// Changes the limits. Who holds more than a new limit keeps it, and gets nothing further.
    pub fn set_limits(&self, limits: QuotaLimits) {
        self.per_user.store(limits.per_user, Ordering::Relaxed);
        self.per_source.store(limits.per_source, Ordering::Relaxed);
        self.limit_total.store(limits.total, Ordering::Relaxed);
    }

    /// How many units are held now.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held.load(Ordering::Relaxed)
    }

    /// How many units may be held in all.
    #[must_use]
    pub fn total_limit(&self) -> u32 {
        self.limit_total.load(Ordering::Relaxed)
    }

    fn acquire_total(&self) -> bool {
        let limit = self.limit_total.load(Ordering::Relaxed);
        self.held
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |held| {
                (held < limit).then(|| held + 1)
            })
            .is_ok()
    }

    fn release_total(&self) {
        let before = self.held.fetch_sub(1, Ordering::AcqRel);
        debug_assert_ne!(before, 0, "a unit was released that nobody held");
    }
}

impl Quotas {
    fn acquire(&self, user: &str, source: IpAddr) -> Result<(), QuotaExceeded> {
        if !self.acquire_total() {
            return Err(QuotaExceeded::Total);
        }
        if !self
            .users
            .acquire(user, self.per_user.load(Ordering::Relaxed))
        {
            self.release_total();
            return Err(QuotaExceeded::User);
        }
        if let Err(exceeded) = self.acquire_source(source) {
            self.users.release(user);
            self.release_total();
            return Err(exceeded);
        }
        Ok(())
    }

    fn acquire_source(&self, source: IpAddr) -> Result<(), QuotaExceeded> {
        let limit = self.per_source.load(Ordering::Relaxed);
        if self.sources.acquire(&self.prefix.of(source), limit) {
            Ok(())
        } else {
            Err(QuotaExceeded::Source)
        }
    }

    fn release_unit(&self, user: &str, source: IpAddr) {
        self.sources.release(&self.prefix.of(source));
        self.users.release(user);
        self.release_total();
    }

    /// Moves one unit to another source.
    fn change_source(&self, from: IpAddr, to: IpAddr) -> Result<(), QuotaExceeded> {
        if self.prefix.of(from) != self.prefix.of(to) {
            self.acquire_source(to)?;
            self.sources.release(&self.prefix.of(from));
        }
        Ok(())
    }

    /// Moves one unit to another user: each access token counts as one.
    fn change_user(&self, from: &str, to: &str) -> Result<(), QuotaExceeded> {
        if from != to {
            let limit = self.per_user.load(Ordering::Relaxed);
            if !self.users.acquire(to, limit) {
                return Err(QuotaExceeded::User);
            }
            self.users.release(from);
        }
        Ok(())
    }
}

impl Quota for Quotas {
    fn try_acquire(&self, client: &ClientIdentity<'_>) -> Result<(), QuotaExceeded> {
        self.acquire(client.user, client.five_tuple.remote.ip())
    }

    fn release(&self, client: &ClientIdentity<'_>) {
        self.release_unit(client.user, client.five_tuple.remote.ip());
    }

    fn transfer(
        &self,
        from: &ClientIdentity<'_>,
        to: &ClientIdentity<'_>,
    ) -> Result<(), QuotaExceeded> {
        let address = |client: &ClientIdentity<'_>| client.five_tuple.remote.ip();
        self.change_user(from.user, to.user)?;
        let moved = self.change_source(address(from), address(to));
        if moved.is_err() && from.user != to.user {
            // Nobody's limit applies to a unit that returns.
            self.users.acquire(from.user, u32::MAX);
            self.users.release(to.user);
        }
        moved
    }
}

/// Counts by key, in shards so that workers seldom meet at a lock.
struct Counts<K: ToOwned + ?Sized> {
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
    fn new() -> Self {
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

    fn acquire(&self, key: &K, limit: u32) -> bool {
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

    fn release(&self, key: &K) {
        let mut shard = self.shard(key);
        match shard.get_mut(key) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => {
                shard.remove(key);
            }
            None => debug_assert!(false, "a unit was released that nobody held"),
        }
    }

    #[cfg(test)]
    fn keys(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).len())
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("test addresses are well formed")
    }

    fn quotas(per_user: u32, per_source: u32, total: u32) -> Quotas {
        Quotas::new(
            QuotaLimits {
                per_user,
                per_source,
                total,
            },
            SourcePrefix::default(),
        )
    }

    #[test]
    fn each_limit_is_reported_by_name_and_takes_nothing() {
        let quotas = quotas(2, 3, 4);
        let (a, b, c) = (ip("192.0.2.1"), ip("192.0.2.2"), ip("2001:db8::1"));
        assert_eq!(quotas.acquire("ann", a), Ok(()));
        assert_eq!(quotas.acquire("ann", a), Ok(()));
        assert_eq!(quotas.acquire("ann", b), Err(QuotaExceeded::User));
        assert_eq!(quotas.acquire("bob", a), Ok(()));
        assert_eq!(quotas.acquire("bob", a), Err(QuotaExceeded::Source));
        assert_eq!(quotas.held(), 3);
        assert_eq!(quotas.acquire("bob", c), Ok(()));
        assert_eq!(quotas.acquire("eve", c), Err(QuotaExceeded::Total));
        quotas.release_unit("ann", a);
        assert_eq!(quotas.acquire("eve", c), Ok(()));
    }

    #[test]
    fn an_ipv6_source_is_its_64() {
        let quotas = quotas(100, 2, 100);
        assert_eq!(quotas.acquire("a", ip("2001:db8:0:1::1")), Ok(()));
        assert_eq!(quotas.acquire("b", ip("2001:db8:0:1:ffff::2")), Ok(()));
        assert_eq!(
            quotas.acquire("c", ip("2001:db8:0:1::3")),
            Err(QuotaExceeded::Source)
        );
        assert_eq!(quotas.acquire("c", ip("2001:db8:0:2::3")), Ok(()));
    }

    #[test]
    fn prefixes_of_every_length_mask_what_they_say() {
        let all = SourcePrefix { v4: 0, v6: 0 };
        assert_eq!(all.of(ip("192.0.2.1")), ip("0.0.0.0"));
        assert_eq!(all.of(ip("2001:db8::1")), ip("::"));
        let none = SourcePrefix { v4: 32, v6: 128 };
        assert_eq!(none.of(ip("192.0.2.1")), ip("192.0.2.1"));
        assert_eq!(none.of(ip("2001:db8::1")), ip("2001:db8::1"));
        assert_eq!(
            SourcePrefix { v4: 24, v6: 48 }.of(ip("192.0.2.1")),
            ip("192.0.2.0")
        );
    }

    #[test]
    fn a_unit_moves_to_another_source_and_user_or_stays() {
        let quotas = quotas(1, 1, 10);
        let at = |user, remote: &str| {
            let five_tuple = turn::FiveTuple {
                transport: turn::Transport::Udp,
                local: "192.0.2.9:3478".parse().expect("an address"),
                remote: remote.parse().expect("an address"),
            };
            ClientIdentity::new(five_tuple, "r", user)
        };
        let (ann, bob) = (at("ann", "192.0.2.1:1"), at("bob", "192.0.2.2:1"));
        let free = at("eve", "192.0.2.3:1");
        quotas.try_acquire(&ann).expect("the first");
        quotas.try_acquire(&bob).expect("the second");
        // Bob may hold no more, and neither may his source.
        let to_bob = quotas.transfer(&ann, &at("bob", "192.0.2.3:1"));
        assert_eq!(to_bob, Err(QuotaExceeded::User));
        let to_source = quotas.transfer(&ann, &at("eve", "192.0.2.2:1"));
        assert_eq!(to_source, Err(QuotaExceeded::Source));
        assert_eq!(quotas.transfer(&ann, &free), Ok(()));
        quotas.release(&free);
        quotas.release(&bob);
        assert_eq!((quotas.held(), quotas.users.keys()), (0, 0));
        assert_eq!(quotas.sources.keys(), 0);
    }

    #[test]
    fn what_is_released_leaves_no_entry() {
        let quotas = quotas(10, 10, 10);
        for name in ["a", "b", "a"] {
            quotas
                .acquire(name, ip("192.0.2.1"))
                .expect("below every limit");
        }
        for name in ["a", "b", "a"] {
            quotas.release_unit(name, ip("192.0.2.1"));
        }
        assert_eq!(
            (quotas.held(), quotas.users.keys(), quotas.sources.keys()),
            (0, 0, 0)
        );
    }

    #[test]
    fn lowered_limits_take_nothing_away() {
        let quotas = quotas(10, 10, 10);
        quotas
            .acquire("a", ip("192.0.2.1"))
            .expect("below every limit");
        quotas.set_limits(QuotaLimits {
            per_user: 0,
            per_source: 0,
            total: 0,
        });
        assert_eq!(
            quotas.acquire("a", ip("192.0.2.1")),
            Err(QuotaExceeded::Total)
        );
        quotas.release_unit("a", ip("192.0.2.1"));
        assert_eq!(quotas.held(), 0);
    }

    #[test]
    fn workers_count_together() {
        let quotas = Arc::new(quotas(100, u32::MAX, u32::MAX));
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let quotas = Arc::clone(&quotas);
                std::thread::spawn(move || {
                    (0..100)
                        .filter(|_| quotas.acquire("ann", ip("192.0.2.1")).is_ok())
                        .count()
                })
            })
            .collect();
        let taken: usize = workers
            .into_iter()
            .map(|worker| worker.join().expect("no worker panics"))
            .sum();
        assert_eq!(taken, 100);
    }
}
