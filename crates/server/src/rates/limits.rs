//! What an operator limits.

use crate::realms::RealmSettings;
use std::collections::HashMap;

/// Bytes of application data per second that groups of allocations may have relayed: 1,000 to 10,000,000,000, or 0 for
/// any number. A burst of one second's worth passes. What comes too fast is dropped; a TCP allocation's streams wait.
///
/// Whether any group has a limit is decided at the start, with those of [`RealmSettings`]: without one, the server
/// makes no room for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateLimits {
    /// Of all allocations of one user of the default realm. Default 0.
    pub per_user: u64,
    /// Of all allocations of one source prefix. Default 0.
    pub per_source: u64,
    /// Of all allocations. Default 0.
    pub total: u64,
    /// Whether all rates, those of single allocations included, hold for each direction by itself; if not, for both
    /// together. It cannot change while the server runs. Default: no.
    pub directions_apart: bool,
}

/// The rates of all groups.
#[derive(Debug, Clone, Default)]
pub(crate) struct GroupRates {
    pub(super) limits: RateLimits,
    realms: HashMap<Box<str>, RealmRates>,
}

#[derive(Debug, Clone, Copy)]
struct RealmRates {
    all: u64,
    per_user: u64,
}

impl GroupRates {
    pub(crate) fn new(limits: &RateLimits, realms: &[RealmSettings]) -> GroupRates {
        let realms = realms.iter().map(|realm| {
            let rates = RealmRates {
                all: realm.rate,
                per_user: realm.rate_per_user,
            };
            (realm.name.as_str().into(), rates)
        });
        GroupRates {
            limits: *limits,
            realms: realms.collect(),
        }
    }

    /// Whether any group has a limit.
    pub(crate) fn limits_any(&self) -> bool {
        let RateLimits {
            per_user,
            per_source,
            total,
            ..
        } = self.limits;
        let realms = self.realms.values();
        let of_realms = realms.map(|realm| realm.all | realm.per_user);
        of_realms.fold(per_user | per_source | total, |all, rate| all | rate) != 0
    }

    pub(super) fn of_realm(&self, realm: &str) -> u64 {
        self.realms.get(realm).map_or(0, |rates| rates.all)
    }

    pub(super) fn of_user(&self, realm: &str) -> u64 {
        let rates = self.realms.get(realm);
        rates.map_or(self.limits.per_user, |rates| rates.per_user)
    }

    /// All rates, to be checked.
    pub(crate) fn all(&self) -> impl Iterator<Item = u64> + '_ {
        let limits = &self.limits;
        let own = [limits.per_user, limits.per_source, limits.total];
        let realms = self.realms.values();
        own.into_iter()
            .chain(realms.flat_map(|rates| [rates.all, rates.per_user]))
    }
}
