//! Users that have proven themselves, with their keys ready for use.

use std::sync::Arc;

use hashbrown::HashTable;
use stun::{HmacKey, IntegrityAlgorithm, LongTermKey, PasswordAlgorithm};

use super::credentials::{Candidate, Claim};
use super::hash::KeyedHash;

/// How a request was protected, and therefore its answer will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Protection {
    /// How the key was made from the password.
    pub(super) password: PasswordAlgorithm,
    /// The integrity attribute that was checked.
    pub(super) integrity: IntegrityAlgorithm,
    /// Whether the answer carries MESSAGE-INTEGRITY-SHA256 besides the one that was checked.
    pub(super) add_sha256: bool,
}

/// A user, and the key of one kind of [`Protection`]. Shared by the allocations of that user and the cache.
#[derive(Debug)]
pub(super) struct User {
    name: Box<str>,
    /// Set if the user was found by it.
    userhash: Option<Box<[u8; 32]>>,
    protection: Protection,
    key: HmacKey,
    sha256: Option<Box<HmacKey>>,
    /// Seconds since 1970 after which no new allocation is made; `u64::MAX` for never.
    expires_unix_s: u64,
    /// The credentials under which the user was found.
    epoch: u32,
}

impl User {
    pub(super) fn new(
        claim: Claim<'_>,
        candidate: &Candidate<'_>,
        key: HmacKey,
        protection: Protection,
        epoch: u32,
    ) -> User {
        User {
            name: candidate.username.into(),
            userhash: match claim {
                Claim::Userhash(hash) => Some(Box::new(*hash)),
                Claim::Username(_) => None,
            },
            protection,
            key,
            sha256: protection
                .add_sha256
                .then(|| Box::new(candidate.key.hmac_sha256())),
            expires_unix_s: candidate.expires_unix_s.unwrap_or(u64::MAX),
            epoch,
        }
    }

    /// The user name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The key that requests are verified with.
    pub(super) const fn key(&self) -> &HmacKey {
        &self.key
    }

    /// The keys that an answer is to carry, in the order of their attributes.
    pub(super) fn answer_keys(&self) -> impl Iterator<Item = &HmacKey> {
        std::iter::once(&self.key).chain(self.sha256.as_deref())
    }

    /// Whether this is who the request says it is from, with a key of the kind it was made with.
    pub(super) fn is(&self, claim: Claim<'_>, protection: Protection) -> bool {
        let same = match claim {
            Claim::Username(name) => self.userhash.is_none() && *self.name == *name,
            Claim::Userhash(hash) => self.userhash.as_deref() == Some(hash),
        };
        same && self.protection == protection
    }

    /// Whether the credential is past its time.
    pub(super) const fn is_expired(&self, unix_s: u64) -> bool {
        self.expires_unix_s <= unix_s
    }

    /// Whether the user was found under these credentials.
    pub(super) const fn is_of(&self, epoch: u32) -> bool {
        self.epoch == epoch
    }

    fn claim(&self) -> Claim<'_> {
        match self.userhash.as_deref() {
            Some(hash) => Claim::Userhash(hash),
            None => Claim::Username(&self.name),
        }
    }
}

/// The key as the integrity attribute uses it.
pub(super) fn hmac_key(key: &LongTermKey, integrity: IntegrityAlgorithm) -> HmacKey {
    match integrity {
        IntegrityAlgorithm::Sha1 => key.hmac_sha1(),
        IntegrityAlgorithm::Sha256 => key.hmac_sha256(),
    }
}

/// Users seen of late, so that one who comes back is not looked up and derived again. Only users that have
/// proven themselves get in. Bounded: each new user takes the place of the one that has been there longest.
#[derive(Debug)]
pub(super) struct KnownUsers {
    users: Vec<Arc<User>>,
    /// The place to be taken next, once all are taken.
    oldest: usize,
    index: HashTable<u32>,
    hash: KeyedHash,
}

impl KnownUsers {
    pub(super) fn new(hash: KeyedHash) -> KnownUsers {
        KnownUsers {
            users: Vec::new(),
            oldest: 0,
            index: HashTable::new(),
            hash,
        }
    }

    /// The user that this claim means.
    pub(super) fn find(&self, claim: Claim<'_>, protection: Protection) -> Option<&Arc<User>> {
        let place = self.index.find(hash_claim(&self.hash, claim), |place| {
            self.users
                .get(*place as usize)
                .is_some_and(|user| user.is(claim, protection))
        })?;
        self.users.get(*place as usize)
    }

    /// Remembers a user, in place of an older version of it or of the oldest.
    pub(super) fn insert(&mut self, user: &Arc<User>, limit: usize) {
        if limit == 0 {
            return;
        }
        let (users, hash) = (&mut self.users, &self.hash);
        let hash_of = |user: &User| hash_claim(hash, user.claim());
        let is_same = |place: &u32| {
            users
                .get(*place as usize)
                .is_some_and(|known| known.is(user.claim(), user.protection))
        };
        if let Some(place) = self.index.find(hash_of(user), is_same) {
            users[*place as usize] = Arc::clone(user);
            return;
        }
        let place = if users.len() < limit {
            users.push(Arc::clone(user));
            users.len() - 1
        } else {
            let place = self.oldest % users.len();
            if let Ok(entry) = self
                .index
                .find_entry(hash_of(&users[place]), |other| *other as usize == place)
            {
                entry.remove();
            }
            users[place] = Arc::clone(user);
            place
        };
        self.oldest = place + 1;
        self.index
            .insert_unique(hash_of(user), place as u32, |place| {
                hash_of(&users[*place as usize])
            });
    }

    /// Forgets all: the credentials have changed.
    pub(super) fn clear(&mut self) {
        self.users.clear();
        self.index.clear();
        self.oldest = 0;
    }
}

fn hash_claim(hash: &KeyedHash, claim: Claim<'_>) -> u64 {
    match claim {
        Claim::Username(name) => hash.bytes(name.as_bytes()),
        Claim::Userhash(userhash) => hash.bytes(userhash),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROTECTION: Protection = Protection {
        password: PasswordAlgorithm::Md5,
        integrity: IntegrityAlgorithm::Sha1,
        add_sha256: false,
    };

    fn user(name: &str, epoch: u32) -> Arc<User> {
        let key = LongTermKey::from_md5(&[0; 16]);
        let candidate = Candidate {
            username: name,
            key,
            expires_unix_s: None,
        };
        let hmac = candidate.key.hmac_sha1();
        Arc::new(User::new(
            Claim::Username(name),
            &candidate,
            hmac,
            PROTECTION,
            epoch,
        ))
    }

    #[test]
    fn the_cache_keeps_the_latest_users_up_to_its_limit() {
        let mut known = KnownUsers::new(KeyedHash::new(1, 2));
        for number in 0..100 {
            known.insert(&user(&number.to_string(), 0), 10);
        }
        assert_eq!((known.users.len(), known.index.len()), (10, 10));
        for number in 0..100 {
            let found = known
                .find(Claim::Username(&number.to_string()), PROTECTION)
                .is_some();
            assert_eq!(found, number >= 90, "{number}");
        }
    }

    #[test]
    fn a_user_is_found_with_the_same_protection_only_and_replaced_by_a_newer_one() {
        let mut known = KnownUsers::new(KeyedHash::new(1, 2));
        known.insert(&user("alice", 0), 10);
        known.insert(&user("alice", 1), 10);
        let claim = Claim::Username("alice");
        assert!(
            known
                .find(claim, PROTECTION)
                .is_some_and(|user| user.is_of(1))
        );
        assert_eq!(known.users.len(), 1);
        let other = Protection {
            password: PasswordAlgorithm::Sha256,
            ..PROTECTION
        };
        assert!(known.find(claim, other).is_none());
        known.clear();
        assert!(known.find(claim, PROTECTION).is_none());
    }
}
