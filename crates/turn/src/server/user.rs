//! Users that have proven themselves, with their keys ready for use.

use std::sync::Arc;

use hashbrown::HashTable;
use stun::{AccessToken, HmacKey, IntegrityAlgorithm, LongTermKey, PasswordAlgorithm};

use super::Server;
use super::credentials::{Claim, UserKey};
use super::hash::KeyedHash;
use super::policy::ClientIdentity;
use crate::{FiveTuple, Mono, Now};

/// How a request was protected. Its response has the same protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Protection {
    /// How the key was made from the password.
    pub(super) password: PasswordAlgorithm,
    /// The integrity attribute that was checked.
    pub(super) integrity: IntegrityAlgorithm,
    /// Whether the request named no password algorithm, as those of RFC 5389 do.
    pub(super) is_legacy: bool,
}

impl Protection {
    /// The integrity attributes of the response, the one that the request had first if it is among them.
    ///
    /// RFC 8489 §9.2.4: the response "MUST include the MESSAGE-INTEGRITY-SHA256 attribute", regardless of the
    /// attributes of the request. The exception is a request that "was processed as though PASSWORD-ALGORITHM was MD5
    /// [..]. In that case, the MESSAGE-INTEGRITY attribute MUST be used instead". A client that names an algorithm and
    /// checks MESSAGE-INTEGRITY only gets both.
    const fn of_answer(self) -> (IntegrityAlgorithm, Option<IntegrityAlgorithm>) {
        match (self.is_legacy, self.integrity) {
            (true, _) => (IntegrityAlgorithm::Sha1, None),
            (false, IntegrityAlgorithm::Sha256) => (IntegrityAlgorithm::Sha256, None),
            (false, IntegrityAlgorithm::Sha1) => {
                (IntegrityAlgorithm::Sha1, Some(IntegrityAlgorithm::Sha256))
            }
        }
    }
}

/// A user, and the key of one kind of [`Protection`]. Shared by the allocations of that user and the cache.
#[derive(Debug)]
pub(super) struct User {
    realm: Arc<str>,
    name: Box<str>,
    /// Set if the user was found by it.
    userhash: Option<Box<[u8; 32]>>,
    protection: Protection,
    /// The kid of the access token that the user has proven (RFC 7635); requests have it in USERNAME.
    kid: Option<Box<str>>,
    /// Verifies requests.
    key: HmacKey,
    /// For the response, if it carries another integrity than the request.
    other: Option<Box<HmacKey>>,
    /// Seconds since 1970 at which the credential ends; `u64::MAX` for never.
    expires_unix_s: u64,
    /// When the source is to be asked again.
    fresh_until: Mono,
    /// The state of the credentials when the user was found.
    epoch: u32,
}

/// The users whose keys to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UsersToForget<'a> {
    /// The user of this name, prepared with OpaqueString.
    User(&'a str),
    /// All users of this realm.
    Realm(&'a str),
    /// All users.
    All,
}

/// A user who has proven the key of a request, for another engine of the same configuration to which the request is
/// moved.
#[derive(Clone, Debug)]
pub struct VerifiedUser(pub(super) Arc<User>);

impl VerifiedUser {
    /// The user name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// The user at this 5-tuple, as policy and quota see it.
    #[must_use]
    pub fn identity(&self, five_tuple: FiveTuple) -> ClientIdentity<'_> {
        self.0.identity(five_tuple)
    }
}

impl User {
    pub(super) fn new(
        realm: &Arc<str>,
        claim: Claim<'_>,
        name: &str,
        candidate: &UserKey,
        key: HmacKey,
        protection: Protection,
    ) -> User {
        let (first, second) = protection.of_answer();
        let other = [Some(first), second].into_iter().flatten();
        let other = other.filter(|integrity| *integrity != protection.integrity);
        User {
            realm: Arc::clone(realm),
            name: name.into(),
            userhash: match claim {
                Claim::Userhash(hash) => Some(Box::new(*hash)),
                Claim::Username(_) => None,
            },
            protection,
            kid: None,
            key,
            other: other
                .map(|integrity| Box::new(hmac_key(&candidate.key, integrity)))
                .next(),
            expires_unix_s: candidate.expires_unix_s.unwrap_or(u64::MAX),
            fresh_until: Mono::NEVER,
            epoch: 0,
        }
    }

    /// A user who has proven the key in an access token.
    pub(super) fn by_token(
        realm: &Arc<str>,
        kid: &str,
        token: &AccessToken<'_>,
        (mac_key, integrity): (&[u8], IntegrityAlgorithm),
        expires_unix_s: u64,
    ) -> User {
        let key = match integrity {
            IntegrityAlgorithm::Sha1 => HmacKey::sha1(mac_key),
            IntegrityAlgorithm::Sha256 => HmacKey::sha256(mac_key),
        };
        // RFC 7635 §7: responses "MUST include the MESSAGE-INTEGRITY attribute", as those to RFC 5389's requests do.
        let protection = Protection {
            password: PasswordAlgorithm::Md5,
            integrity,
            is_legacy: true,
        };
        let has_other = integrity != IntegrityAlgorithm::Sha1;
        User {
            realm: Arc::clone(realm),
            name: token_name(kid, token),
            userhash: None,
            protection,
            kid: Some(kid.into()),
            key,
            other: has_other.then(|| Box::new(HmacKey::sha1(mac_key))),
            expires_unix_s,
            fresh_until: Mono::NEVER,
            epoch: 0,
        }
    }

    /// The same user with the key of a newer token.
    pub(super) fn renewed(&self, newer: &User) -> User {
        User {
            realm: Arc::clone(&self.realm),
            name: self.name.clone(),
            userhash: None,
            protection: newer.protection,
            kid: newer.kid.clone(),
            key: newer.key.clone(),
            other: newer.other.clone(),
            expires_unix_s: newer.expires_unix_s,
            fresh_until: newer.fresh_until,
            epoch: newer.epoch,
        }
    }

    /// The same, found at this time and good for this long.
    pub(super) fn found_at(mut self, now: Now, ttl_s: Option<u32>, epoch: u32) -> User {
        if let Some(ttl_s) = ttl_s {
            self.fresh_until = now.mono.plus_secs(u64::from(ttl_s));
        }
        self.epoch = epoch;
        self
    }

    /// The user name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The realm.
    pub(super) fn realm(&self) -> &str {
        &self.realm
    }

    /// The user at this 5-tuple, as policy and quota see it.
    #[inline]
    pub(super) fn identity(&self, five_tuple: FiveTuple) -> ClientIdentity<'_> {
        ClientIdentity {
            by_token: self.is_by_token(),
            ..ClientIdentity::new(five_tuple, &self.realm, &self.name)
        }
    }

    /// The key that requests are verified with.
    pub(super) const fn key(&self) -> &HmacKey {
        &self.key
    }

    /// The keys that a response is to carry, in the order of their attributes.
    pub(super) fn answer_keys(&self) -> impl Iterator<Item = &HmacKey> {
        let (first, _) = self.protection.of_answer();
        let own = (first == self.protection.integrity).then_some(&self.key);
        own.into_iter().chain(self.other.as_deref())
    }

    /// Whether this is who the request says it is from, with a key of the kind it was made with.
    pub(super) fn is(&self, realm: &str, claim: Claim<'_>, protection: Protection) -> bool {
        if let Some(kid) = &self.kid {
            // The key was not made from a password and a realm.
            return claim == Claim::Username(kid)
                && self.protection.integrity == protection.integrity;
        }
        if *self.realm != *realm {
            return false;
        }
        let same = match claim {
            Claim::Username(name) => self.userhash.is_none() && *self.name == *name,
            Claim::Userhash(hash) => self.userhash.as_deref() == Some(hash),
        };
        same && self.protection == protection
    }

    /// Whether both may manage the same allocations of a realm: the same name, or tokens. A client refreshes an allocation with a
    /// newer token (RFC 7635 §9), which another key may have encrypted, and tokens name nobody.
    pub(super) fn is_same_as(&self, other: &User) -> bool {
        let is_same = match (&self.kid, &other.kid) {
            (None, None) => self.name == other.name,
            (one, other) => one.is_some() && other.is_some(),
        };
        is_same && self.realm == other.realm
    }

    /// Whether the user has proven an access token.
    pub(super) const fn is_by_token(&self) -> bool {
        self.kid.is_some()
    }

    /// Whether the user has proven an access token, and this is its kid.
    pub(super) fn has_kid(&self, claim: Claim<'_>) -> bool {
        let kid = self.kid.as_deref();
        kid.is_some_and(|kid| claim == Claim::Username(kid))
    }

    /// Whether the credential is past its time.
    pub(super) const fn is_expired(&self, unix_s: u64) -> bool {
        self.expires_unix_s <= unix_s
    }

    /// For how many seconds from now the credential is good.
    pub(super) const fn remaining_s(&self, unix_s: u64) -> u64 {
        self.expires_unix_s.saturating_sub(unix_s)
    }

    /// Whether the key may be used without asking its source again.
    pub(super) fn is_fresh(&self, now: Now) -> bool {
        !self.is_expired(now.unix_s) && now.mono < self.fresh_until
    }

    /// Whether the user was found in this state of the credentials.
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

/// What policy, quota and log call the holder of a token: its kid and the end of its tag, which the client cannot
/// choose.
fn token_name(kid: &str, token: &AccessToken<'_>) -> Box<str> {
    let tag = token.encrypted_block.last_chunk::<4>();
    let tag = tag.map_or(0, |tag| u32::from_be_bytes(*tag));
    format!("{kid}/{tag:08x}").into()
}

/// The key as the integrity attribute uses it.
pub(super) fn hmac_key(key: &LongTermKey, integrity: IntegrityAlgorithm) -> HmacKey {
    match integrity {
        IntegrityAlgorithm::Sha1 => key.hmac_sha1(),
        IntegrityAlgorithm::Sha256 => key.hmac_sha256(),
    }
}

impl Server {
    /// Forgets keys, so that their source is asked again before anybody gets an allocation with them. Existing
    /// allocations stay, and can be refreshed, unless [`Config::strict_expiry`](super::Config::strict_expiry) is set.
    /// Look-ups that are in progress are made again.
    pub fn forget_users(&mut self, which: UsersToForget<'_>) {
        match which {
            UsersToForget::User(name) => self.known_users.forget(name),
            UsersToForget::Realm(realm) if !self.realms.has_name(realm) => return,
            UsersToForget::Realm(_) | UsersToForget::All => self.known_users.clear(),
        }
        self.credentials_epoch = self.credentials_epoch.wrapping_add(1);
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
    pub(super) fn find(
        &self,
        realm: &str,
        claim: Claim<'_>,
        protection: Protection,
    ) -> Option<&Arc<User>> {
        let place = self.index.find(hash_claim(&self.hash, claim), |place| {
            self.users
                .get(*place as usize)
                .is_some_and(|user| user.is(realm, claim, protection))
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
                .is_some_and(|known| known.is(&user.realm, user.claim(), user.protection))
        };
        // The index has places of `users` only.
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

    /// Forgets all users of this name, from all sources and with all kinds of keys.
    pub(super) fn forget(&mut self, name: &str) {
        let mut place = 0;
        while place < self.users.len() {
            if *self.users[place].name == *name {
                self.remove(place);
            } else {
                place += 1;
            }
        }
    }

    /// Removes the user at a place; the last one moves there.
    fn remove(&mut self, place: usize) {
        let last = self.users.len() - 1;
        for (from, to) in [(place, None), (last, Some(place as u32))] {
            let hash = hash_claim(&self.hash, self.users[from].claim());
            if let Ok(mut entry) = self.index.find_entry(hash, |at| *at as usize == from) {
                match to {
                    Some(to) => *entry.get_mut() = to,
                    None => drop(entry.remove()),
                }
            }
        }
        self.users.swap_remove(place);
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
        is_legacy: true,
    };

    fn user(name: &str, epoch: u32) -> Arc<User> {
        let key = LongTermKey::from_md5(&[0; 16]);
        let candidate = UserKey {
            key,
            expires_unix_s: None,
            ttl_s: None,
        };
        let hmac = candidate.key.hmac_sha1();
        let user = User::new(
            &"r".into(),
            Claim::Username(name),
            name,
            &candidate,
            hmac,
            PROTECTION,
        );
        Arc::new(user.found_at(Now::default(), None, epoch))
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
                .find("r", Claim::Username(&number.to_string()), PROTECTION)
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
                .find("r", claim, PROTECTION)
                .is_some_and(|user| user.is_of(1))
        );
        assert_eq!(known.users.len(), 1);
        let other = Protection {
            password: PasswordAlgorithm::Sha256,
            ..PROTECTION
        };
        assert!(known.find("r", claim, other).is_none());
        known.clear();
        assert!(known.find("r", claim, PROTECTION).is_none());
    }

    #[test]
    fn a_forgotten_user_is_gone_and_all_others_are_found() {
        let mut known = KnownUsers::new(KeyedHash::new(1, 2));
        for number in 0..50 {
            known.insert(&user(&number.to_string(), 0), 50);
        }
        for gone in [49, 0, 25, 7] {
            known.forget(&gone.to_string());
        }
        assert_eq!((known.users.len(), known.index.len()), (46, 46));
        for number in 0..50 {
            let name = number.to_string();
            let found = known.find("r", Claim::Username(&name), PROTECTION);
            let is_there = ![49, 0, 25, 7].contains(&number);
            assert_eq!(
                found.map(|user| user.name() == name),
                is_there.then_some(true)
            );
        }
        for number in 50..200 {
            known.insert(&user(&number.to_string(), 0), 50);
        }
        assert_eq!((known.users.len(), known.index.len()), (50, 50));
    }

    #[test]
    fn answers_carry_what_rfc_8489_asks_for() {
        use IntegrityAlgorithm::{Sha1, Sha256};
        for (is_legacy, integrity, answer) in [
            (true, Sha1, &[Sha1][..]),
            (true, Sha256, &[Sha1]),
            (false, Sha256, &[Sha256]),
            (false, Sha1, &[Sha1, Sha256]),
        ] {
            let protection = Protection {
                password: PasswordAlgorithm::Md5,
                integrity,
                is_legacy,
            };
            let candidate = UserKey {
                key: LongTermKey::from_md5(&[0; 16]),
                expires_unix_s: None,
                ttl_s: None,
            };
            let key = hmac_key(&candidate.key, integrity);
            let user = User::new(
                &"r".into(),
                Claim::Username("a"),
                "a",
                &candidate,
                key,
                protection,
            );
            let keys: Vec<_> = user.answer_keys().map(HmacKey::algorithm).collect();
            assert_eq!(keys, answer);
        }
    }
}
