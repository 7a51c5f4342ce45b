//! The counts of one realm.

use std::sync::atomic::{AtomicU32, Ordering};
use turn::server::QuotaExceeded;

use super::counts::Counts;
use super::{CountKey, Counter, RealmLimits, SharedCounts};

#[derive(Debug)]
pub(super) struct RealmCounts {
    all: Counter,
    per_user: AtomicU32,
    pub(super) users: Counts<str>,
}

impl RealmCounts {
    pub(super) fn new(limits: RealmLimits) -> RealmCounts {
        RealmCounts {
            all: Counter::new(limits.total),
            per_user: AtomicU32::new(limits.per_user),
            users: Counts::new(),
        }
    }

    pub(super) fn set_limits(&self, limits: RealmLimits) {
        self.all.set_limit(limits.total);
        self.per_user.store(limits.per_user, Ordering::Relaxed);
    }

    /// Another process holds this many units of the realm and of the user.
    pub(super) fn acquire(
        &self,
        user: &str,
        elsewhere: u32,
        of_user: u32,
    ) -> Result<(), QuotaExceeded> {
        if !self.all.acquire(elsewhere) {
            return Err(QuotaExceeded::Realm);
        }
        let limit = self.per_user.load(Ordering::Relaxed);
        let limit = limit.saturating_sub(of_user);
        if !self.users.acquire(user, limit) {
            self.all.release();
            return Err(QuotaExceeded::User);
        }
        Ok(())
    }

    pub(super) fn release(&self, user: &str) {
        self.users.release(user);
        self.all.release();
    }

    /// Moves one unit to another user: each access token counts as one. Another process holds this many of that user.
    pub(super) fn change_user(
        &self,
        from: &str,
        to: &str,
        elsewhere: u32,
    ) -> Result<(), QuotaExceeded> {
        if from != to {
            let limit = self.per_user.load(Ordering::Relaxed);
            let limit = limit.saturating_sub(elsewhere);
            if !self.users.acquire(to, limit) {
                return Err(QuotaExceeded::User);
            }
            self.users.release(from);
        }
        Ok(())
    }

    /// Takes [`change_user`](Self::change_user) back. No limit applies to a unit that returns.
    pub(super) fn return_to(&self, from: &str, to: &str) {
        if from != to {
            self.users.acquire(from, u32::MAX);
            self.users.release(to);
        }
    }

    /// Adds all that is held to what another process reads, under this name of the realm.
    pub(super) fn write_to(&self, to: &SharedCounts, realm: &str) {
        to.add(CountKey::Realm(realm), self.all.held());
        self.users
            .for_each(|name, units| to.add(CountKey::User { realm, name }, units));
    }
}
