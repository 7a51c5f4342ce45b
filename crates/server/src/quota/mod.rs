//! How many relayed addresses a user, a realm, a source prefix, and all users together may hold, counted across all
//! workers.
//!
//! Only authenticated requests are counted, so the tables hold no more entries than there are live allocations. The
//! locks are touched when an allocation opens or closes, never for a datagram. During an upgrade, what the other
//! process of this server holds counts as well (`shared`).

mod counts;
mod realm;
mod shared;

pub(crate) use shared::{CountKey, OtherCounts, SharedCounts};

use counts::Counts;
use realm::RealmCounts;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use turn::server::{ClientIdentity, Quota, QuotaExceeded};

/// The limits; one unit is one relayed transport address, so a dual allocation takes two. `u32::MAX` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuotaLimits {
    /// Held by one user name at once.
    pub per_user: u32,
    /// Held by one source prefix at once.
    pub per_source: u32,
    /// Held by all users together.
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

    /// The same with this limit for all users together.
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
    pub(crate) fn of(self, ip: IpAddr) -> IpAddr {
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

/// The limits of a realm beside the default one. Sources, and all users together, have the server's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RealmLimits {
    pub(crate) per_user: u32,
    /// Held by all users of the realm at once.
    pub(crate) total: u32,
}

/// The counts of a running server.
#[derive(Debug)]
pub struct Quotas {
    prefix: SourcePrefix,
    per_source: AtomicU32,
    sources: Counts<IpAddr>,
    /// Of all realms; the limit of all users together.
    all: Counter,
    /// Users of the default realm.
    default: RealmCounts,
    /// The counts of all realms since the start. Removed realms stay, because their clients may still hold units.
    realms: RwLock<HashMap<Box<str>, Arc<RealmCounts>>>,
    /// Held for reading while a count changes.
    upgrade: RwLock<Upgrade>,
}

/// The counts of the two processes of this server.
#[derive(Debug, Default)]
struct Upgrade {
    /// The counts of this process.
    own: Option<SharedCounts>,
    /// The counts of the other process.
    other: Option<OtherCounts>,
}

/// The keys of one unit. The default realm has no name here; realms without their own limits count as the default
/// realm.
fn keys<'a>(realm: &'a str, name: &'a str) -> [CountKey<'a>; 3] {
    let user = CountKey::User { realm, name };
    [CountKey::All, CountKey::Realm(realm), user]
}

impl Upgrade {
    /// The counts of the other process.
    fn held(&self, key: CountKey<'_>) -> u32 {
        self.other.as_ref().map_or(0, |other| other.get(key))
    }

    fn add(&self, key: CountKey<'_>) {
        if let Some(own) = &self.own {
            own.add(key, 1);
        }
    }

    fn subtract(&self, key: CountKey<'_>) {
        if let Some(own) = &self.own {
            own.subtract(key);
        }
    }
}

/// One count with a limit.
#[derive(Debug)]
pub(crate) struct Counter {
    held: AtomicU32,
    limit: AtomicU32,
}

impl Counter {
    fn new(limit: u32) -> Counter {
        Counter {
            held: AtomicU32::new(0),
            limit: AtomicU32::new(limit),
        }
    }

    fn held(&self) -> u32 {
        self.held.load(Ordering::Relaxed)
    }

    fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// `elsewhere` are the counts of another process.
    fn acquire(&self, elsewhere: u32) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let limit = limit.saturating_sub(elsewhere);
        self.held
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |held| {
                (held < limit).then(|| held + 1)
            })
            .is_ok()
    }

    fn release(&self) {
        let before = self.held.fetch_sub(1, Ordering::AcqRel);
        debug_assert_ne!(before, 0, "a unit was released that nobody held");
    }
}

impl Quotas {
    /// Counts that start at zero. The prefix lengths stay for the server's life.
    #[must_use]
    pub fn new(limits: QuotaLimits, prefix: SourcePrefix) -> Quotas {
        let quotas = Quotas {
            prefix,
            per_source: AtomicU32::new(0),
            sources: Counts::new(),
            all: Counter::new(0),
            default: RealmCounts::new(RealmLimits {
                per_user: 0,
                total: QuotaLimits::UNLIMITED,
            }),
            realms: RwLock::default(),
            upgrade: RwLock::default(),
        };
        quotas.set_limits(limits);
        quotas
    }

    /// Changes the limits. Who holds more than a new limit keeps it, and gets nothing further.
    pub fn set_limits(&self, limits: QuotaLimits) {
        self.default.set_limits(RealmLimits {
            per_user: limits.per_user,
            total: QuotaLimits::UNLIMITED,
        });
        self.per_source.store(limits.per_source, Ordering::Relaxed);
        self.all.set_limit(limits.total);
    }

    /// Changes the limits of the realms beside the default one, or adds realms.
    pub(crate) fn set_realms<'a>(&self, realms: impl Iterator<Item = (&'a str, RealmLimits)>) {
        let mut known = self.realms.write().unwrap_or_else(PoisonError::into_inner);
        for (name, limits) in realms {
            match known.get(name) {
                Some(counts) => counts.set_limits(limits),
                None => {
                    known.insert(name.into(), Arc::new(RealmCounts::new(limits)));
                }
            }
        }
    }

    /// How many units are held now.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.all.held()
    }

    /// How many units may be held in all.
    #[must_use]
    pub fn total_limit(&self) -> u32 {
        self.all.limit.load(Ordering::Relaxed)
    }
}

impl Quotas {
    /// Writes the counts to memory that another process may read, from now on. Returns its descriptor.
    ///
    /// # Errors
    /// When the system has no memory or no descriptor.
    pub(crate) fn share(&self) -> std::io::Result<OwnedFd> {
        // Each unit may be the only one of its user and of its source.
        let total = usize::try_from(self.total_limit()).unwrap_or(usize::MAX);
        let own = SharedCounts::new(total.saturating_mul(2))?;
        let descriptor = own.descriptor()?;
        let mut upgrade = self.upgrade.write().unwrap_or_else(PoisonError::into_inner);
        own.add(CountKey::All, self.held());
        self.sources
            .for_each(|source, units| own.add(CountKey::Source(*source), units));
        self.default.write_to(&own, "");
        let realms = self.realms.read().unwrap_or_else(PoisonError::into_inner);
        for (name, counts) in &*realms {
            counts.write_to(&own, name);
        }
        upgrade.own = Some(own);
        Ok(descriptor)
    }

    /// From now on, the counts of this other process are included.
    pub(crate) fn count_other(&self, other: OtherCounts) {
        let mut upgrade = self.upgrade.write().unwrap_or_else(PoisonError::into_inner);
        upgrade.other = Some(other);
    }

    /// The other process has ended.
    pub(crate) fn count_alone(&self) {
        let mut upgrade = self.upgrade.write().unwrap_or_else(PoisonError::into_inner);
        *upgrade = Upgrade::default();
    }

    fn upgrade(&self) -> RwLockReadGuard<'_, Upgrade> {
        self.upgrade.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counts of the client's realm, and the name of the realm in another process.
    fn with_realm<R>(&self, realm: &str, with: impl FnOnce(&RealmCounts, &str) -> R) -> R {
        let realms = self.realms.read().unwrap_or_else(PoisonError::into_inner);
        let found = realms.get(realm).map(Arc::clone);
        drop(realms);
        match found {
            Some(counts) => with(&counts, realm),
            None => with(&self.default, ""),
        }
    }

    fn acquire(&self, realm: &str, user: &str, source: IpAddr) -> Result<(), QuotaExceeded> {
        let upgrade = self.upgrade();
        if !self.all.acquire(upgrade.held(CountKey::All)) {
            return Err(QuotaExceeded::Total);
        }
        let acquired = self.with_realm(realm, |counts, realm| {
            let [_, of_realm, of_user] = keys(realm, user).map(|key| upgrade.held(key));
            counts.acquire(user, of_realm, of_user)?;
            self.acquire_source(&upgrade, source)
                .inspect_err(|_| counts.release(user))?;
            keys(realm, user)
                .into_iter()
                .for_each(|key| upgrade.add(key));
            Ok(())
        });
        acquired.inspect_err(|_| self.all.release())
    }

    fn acquire_source(&self, upgrade: &Upgrade, source: IpAddr) -> Result<(), QuotaExceeded> {
        let source = self.prefix.of(source);
        let key = CountKey::Source(source);
        let limit = self.per_source.load(Ordering::Relaxed);
        let limit = limit.saturating_sub(upgrade.held(key));
        if !self.sources.acquire(&source, limit) {
            return Err(QuotaExceeded::Source);
        }
        upgrade.add(key);
        Ok(())
    }

    fn release_source(&self, upgrade: &Upgrade, source: IpAddr) {
        let source = self.prefix.of(source);
        self.sources.release(&source);
        upgrade.subtract(CountKey::Source(source));
    }

    fn release_unit(&self, realm: &str, user: &str, source: IpAddr) {
        let upgrade = self.upgrade();
        self.release_source(&upgrade, source);
        self.with_realm(realm, |counts, realm| {
            counts.release(user);
            for key in keys(realm, user) {
                upgrade.subtract(key);
            }
        });
        self.all.release();
    }

    /// Moves one unit to another source.
    fn change_source(
        &self,
        upgrade: &Upgrade,
        from: IpAddr,
        to: IpAddr,
    ) -> Result<(), QuotaExceeded> {
        if self.prefix.of(from) != self.prefix.of(to) {
            self.acquire_source(upgrade, to)?;
            self.release_source(upgrade, from);
        }
        Ok(())
    }
}

impl Quota for Quotas {
    fn try_acquire(&self, client: &ClientIdentity<'_>) -> Result<(), QuotaExceeded> {
        self.acquire(client.realm, client.user, client.five_tuple.remote.ip())
    }

    fn release(&self, client: &ClientIdentity<'_>) {
        self.release_unit(client.realm, client.user, client.five_tuple.remote.ip());
    }

    fn transfer(
        &self,
        from: &ClientIdentity<'_>,
        to: &ClientIdentity<'_>,
    ) -> Result<(), QuotaExceeded> {
        let address = |client: &ClientIdentity<'_>| client.five_tuple.remote.ip();
        let upgrade = self.upgrade();
        // Only a user of the same realm can claim a reservation.
        self.with_realm(from.realm, |counts, realm| {
            let [from_key, to_key] =
                [from.user, to.user].map(|name| CountKey::User { realm, name });
            counts.change_user(from.user, to.user, upgrade.held(to_key))?;
            self.change_source(&upgrade, address(from), address(to))
                .inspect_err(|_| counts.return_to(from.user, to.user))?;
            upgrade.subtract(from_key);
            upgrade.add(to_key);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
