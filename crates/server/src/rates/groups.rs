//! Which group of allocations has which number. Only authenticated clients are in groups, so there are no more users
//! and sources than allocations. The lock is taken when an allocation begins or ends, never for a datagram.
//!
//! During an upgrade, the two processes of this server share the rate of a group, in proportion to their allocations.

use super::limits::GroupRates;
use crate::quota::{CountKey, OtherCounts, SharedCounts, SourcePrefix};
use bpf::relay::BUCKET_GROUPS;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use turn::server::{ClientIdentity, rate_scale};

/// Allocations that share a limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Group {
    Source(IpAddr),
    User {
        realm: Box<str>,
        name: Box<str>,
    },
    Realm(Box<str>),
    /// All allocations of the server.
    All,
    /// The sources, users and realms for which there is no number left. They share a limit.
    OtherSources,
    OtherUsers,
    OtherRealms,
}

impl Group {
    /// The key of the group in the other process. `None` for the groups of what has no number left: in the other
    /// process they have other members.
    fn key(&self) -> Option<CountKey<'_>> {
        match self {
            Group::Source(source) => Some(CountKey::Source(*source)),
            Group::User { realm, name } => Some(CountKey::User { realm, name }),
            Group::Realm(realm) => Some(CountKey::Realm(realm)),
            Group::All => Some(CountKey::All),
            Group::OtherSources | Group::OtherUsers | Group::OtherRealms => None,
        }
    }
}

/// The groups of one allocation, by their numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Membership(Option<[u32; BUCKET_GROUPS]>);

impl Membership {
    pub(super) fn numbers(self) -> impl Iterator<Item = u32> {
        self.0.into_iter().flatten()
    }
}

#[derive(Debug)]
pub(super) struct Groups {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rates: GroupRates,
    prefix: SourcePrefix,
    numbers: HashMap<Group, u32>,
    /// By number: the group, and how many allocations it has.
    members: Vec<Option<(Group, u32)>>,
    free: Vec<u32>,
    capacity: u32,
    /// How many allocations each group has here, for another process.
    own: Option<SharedCounts>,
    /// How many each group has in the other process.
    other: Option<OtherCounts>,
}

/// The least that a process gets of a group's rate, in bytes per second: the lowest rate that can be set.
const MIN_SHARE: u64 = 1000;

/// Groups that get their shares while the lock is held: about 0.1 ms.
const SHARED_AT_ONCE: usize = 512;

/// Sets the [`rate_scale`] of a number.
type SetScale<'a> = &'a dyn Fn(u32, u32);

/// The effect of a new allocation on the buckets of its groups.
pub(super) struct SetScales<'a> {
    /// Starts the bucket of a group that is new.
    pub(super) begin: SetScale<'a>,
    /// Changes the rate of one that exists.
    pub(super) change: SetScale<'a>,
}

impl Groups {
    /// Numbers beyond two for each allocation: realms, and the groups that always exist.
    pub(super) const EXTRA_NUMBERS: u32 = 1024;

    pub(super) fn new(capacity: u32) -> Groups {
        Groups {
            state: Mutex::new(State {
                rates: GroupRates::default(),
                prefix: SourcePrefix::default(),
                numbers: HashMap::new(),
                members: Vec::new(),
                free: Vec::new(),
                // One for each kind that other groups share.
                capacity: capacity.saturating_sub(BUCKET_GROUPS as u32),
                own: None,
                other: None,
            }),
        }
    }

    /// Writes how many allocations each group has to memory that another process reads, from now on.
    pub(super) fn share(&self, own: SharedCounts) {
        let mut state = self.state();
        for (group, members) in state.members.iter().flatten() {
            if let Some(key) = group.key() {
                own.add(key, *members);
            }
        }
        state.own = Some(own);
    }

    /// Shares each rate with this other process from now on.
    pub(super) fn share_with(&self, other: OtherCounts, set: SetScale<'_>) {
        self.state().other = Some(other);
        self.set_shares(set);
    }

    /// The other process has ended.
    pub(super) fn stop_sharing(&self, set: SetScale<'_>) {
        let mut state = self.state();
        state.own = None;
        let was_shared = state.other.take().is_some();
        drop(state);
        if was_shared {
            self.set_all(set);
        }
    }

    /// Computes the shares of the two processes from the allocations that they have now.
    pub(super) fn set_shares(&self, set: SetScale<'_>) {
        if self.state().other.is_some() {
            self.set_all(set);
        }
    }

    fn set_all(&self, set: SetScale<'_>) {
        let mut first = 0;
        loop {
            let state = self.state();
            if first >= state.members.len() {
                return;
            }
            let last = state.members.len().min(first + SHARED_AT_ONCE);
            for number in first..last {
                state.set(number as u32, set);
            }
            first = last;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes all rates.
    pub(super) fn set_rates(&self, rates: GroupRates, prefix: SourcePrefix, set: SetScale<'_>) {
        let mut state = self.state();
        state.rates = rates;
        state.prefix = prefix;
        for &number in state.numbers.values() {
            state.set(number, set);
        }
    }

    /// An allocation of this client begins.
    pub(super) fn join(&self, client: &ClientIdentity<'_>, set: &SetScales<'_>) -> Membership {
        let mut state = self.state();
        let source = state.prefix.of(client.five_tuple.remote.ip());
        let user = Group::User {
            realm: client.realm.into(),
            name: client.user.into(),
        };
        let groups = [
            (Group::Source(source), Group::OtherSources),
            (user, Group::OtherUsers),
            (Group::Realm(client.realm.into()), Group::OtherRealms),
            (Group::All, Group::All),
        ];
        Membership(Some(
            groups.map(|(group, other)| state.join(group, other, set)),
        ))
    }

    /// The allocation with these groups ends.
    pub(super) fn leave(&self, membership: Membership, set: SetScale<'_>) {
        let mut state = self.state();
        for number in membership.numbers() {
            state.leave(number, set);
        }
    }
}

impl State {
    fn join(&mut self, group: Group, other: Group, set: &SetScales<'_>) -> u32 {
        let is_known = self.numbers.contains_key(&group);
        let is_full = self.free.is_empty() && self.members.len() >= self.capacity as usize;
        let group = if is_full && !is_known { other } else { group };
        if let (Some(own), Some(key)) = (&self.own, group.key()) {
            own.add(key, 1);
        }
        if let Some(&number) = self.numbers.get(&group) {
            if let Some(Some((_, members))) = self.members.get_mut(number as usize) {
                *members += 1;
            }
            if self.other.is_some() {
                self.set(number, set.change);
            }
            return number;
        }
        let number = self.free.pop().unwrap_or(self.members.len() as u32);
        if number as usize >= self.members.len() {
            self.members.push(None);
        }
        (set.begin)(number, self.scale_of(&group, 1));
        self.members[number as usize] = Some((group.clone(), 1));
        self.numbers.insert(group, number);
        number
    }

    fn leave(&mut self, number: u32, set: SetScale<'_>) {
        let Some(Some((group, members))) = self.members.get_mut(number as usize) else {
            return;
        };
        if let (Some(own), Some(key)) = (&self.own, group.key()) {
            own.subtract(key);
        }
        *members -= 1;
        if *members == 0 {
            self.numbers.remove(group);
            self.members[number as usize] = None;
            self.free.push(number);
        } else if self.other.is_some() {
            self.set(number, set);
        }
    }

    /// Sets the rate of a group that exists.
    fn set(&self, number: u32, set: SetScale<'_>) {
        if let Some(Some((group, members))) = self.members.get(number as usize) {
            set(number, self.scale_of(group, *members));
        }
    }

    /// For a group that has this many allocations here.
    fn scale_of(&self, group: &Group, members: u32) -> u32 {
        let limits = &self.rates.limits;
        let rate = match group {
            Group::Source(_) | Group::OtherSources => limits.per_source,
            Group::User { realm, .. } => self.rates.of_user(realm),
            Group::OtherUsers => limits.per_user,
            Group::Realm(realm) => self.rates.of_realm(realm),
            Group::OtherRealms => 0,
            Group::All => limits.total,
        };
        let elsewhere = match (&self.other, group.key()) {
            (Some(other), Some(key)) if rate > 0 => other.get(key),
            _ => 0,
        };
        rate_scale(share(rate, members, elsewhere))
    }
}

/// The part of a rate for this many allocations here, if there are others elsewhere.
fn share(rate: u64, members: u32, elsewhere: u32) -> u64 {
    if rate == 0 || elsewhere == 0 {
        return rate;
    }
    let (members, elsewhere) = (u128::from(members), u128::from(elsewhere));
    let part = u128::from(rate) * members / (members + elsewhere);
    // Not more than the rate.
    u64::try_from(part).unwrap_or(rate).max(MIN_SHARE)
}

#[cfg(test)]
impl Groups {
    /// How many groups there are.
    pub(super) fn count(&self) -> usize {
        self.state().numbers.len()
    }
}
