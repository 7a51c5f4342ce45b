//! Which group of allocations has which number. Only authenticated clients are in groups, so there are no more users and sources than
//! allocations. The lock is taken when an allocation begins or ends, never for a datagram.

use super::limits::GroupRates;
use crate::quota::SourcePrefix;
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
}

/// Sets the [`rate_scale`] of a number.
type SetScale<'a> = &'a dyn Fn(u32, u32);

impl Groups {
    /// Numbers beyond two for each allocation: realms, and the groups that always exist.
    pub(super) const FURTHER: u32 = 1024;

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
            }),
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
        for (group, &number) in &state.numbers {
            set(number, state.scale_of(group));
        }
    }

    /// An allocation of this client begins. `begin` starts the bucket of a group that is new.
    pub(super) fn join(&self, client: &ClientIdentity<'_>, begin: SetScale<'_>) -> Membership {
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
            groups.map(|(group, other)| state.join(group, other, begin)),
        ))
    }

    /// The allocation with these groups ends.
    pub(super) fn leave(&self, membership: Membership) {
        let mut state = self.state();
        for number in membership.numbers() {
            state.leave(number);
        }
    }
}

impl State {
    fn join(&mut self, group: Group, other: Group, begin: SetScale<'_>) -> u32 {
        let is_known = self.numbers.contains_key(&group);
        let is_full = self.free.is_empty() && self.members.len() >= self.capacity as usize;
        let group = if is_full && !is_known { other } else { group };
        if let Some(&number) = self.numbers.get(&group) {
            if let Some(Some((_, members))) = self.members.get_mut(number as usize) {
                *members += 1;
            }
            return number;
        }
        let number = self.free.pop().unwrap_or(self.members.len() as u32);
        if number as usize >= self.members.len() {
            self.members.push(None);
        }
        begin(number, self.scale_of(&group));
        self.members[number as usize] = Some((group.clone(), 1));
        self.numbers.insert(group, number);
        number
    }

    fn leave(&mut self, number: u32) {
        let Some(Some((group, members))) = self.members.get_mut(number as usize) else {
            return;
        };
        *members -= 1;
        if *members == 0 {
            self.numbers.remove(group);
            self.members[number as usize] = None;
            self.free.push(number);
        }
    }

    fn scale_of(&self, group: &Group) -> u32 {
        let limits = &self.rates.limits;
        rate_scale(match group {
            Group::Source(_) | Group::OtherSources => limits.per_source,
            Group::User { realm, .. } => self.rates.of_user(realm),
            Group::OtherUsers => limits.per_user,
            Group::Realm(realm) => self.rates.of_realm(realm),
            Group::OtherRealms => 0,
            Group::All => limits.total,
        })
    }
}

#[cfg(test)]
impl Groups {
    /// How many groups there are.
    pub(super) fn count(&self) -> usize {
        self.state().numbers.len()
    }
}
