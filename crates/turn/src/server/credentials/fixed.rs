//! Users with a fixed password or key.

use std::collections::BTreeMap;

use stun::{LongTermKey, PasswordAlgorithm, long_term_key, opaque_string, userhash};

use super::{Claim, Credentials, KeyLookup, KeyQuery, KnownUser};

/// Why a user could not be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UserError {
    /// RFC 8265 does not allow this user name or password.
    #[error("user name or password is empty or has a character that RFC 8265 does not allow")]
    NotOpaqueString,
    /// USERNAME holds fewer than 509 bytes (RFC 8489 §14.3).
    #[error("the user name is longer than 508 bytes")]
    TooLong,
}

#[derive(Debug, Default)]
struct Keys {
    md5: Option<LongTermKey>,
    sha256: Option<LongTermKey>,
}

/// A fixed set of users, held as keys: passwords are forgotten at once (RFC 8656 §6).
#[derive(Debug)]
pub struct StaticCredentials {
    realm: String,
    users: BTreeMap<String, Keys>,
    by_userhash: BTreeMap<[u8; 32], String>,
}

impl StaticCredentials {
    /// No users yet. Keys depend on the realm, so it must be the one in [`Config`](crate::server::Config).
    #[must_use]
    pub fn new(realm: &str) -> StaticCredentials {
        StaticCredentials {
            realm: realm.to_owned(),
            users: BTreeMap::new(),
            by_userhash: BTreeMap::new(),
        }
    }

    /// Adds a user with a password, or replaces it.
    ///
    /// # Errors
    /// If the name or the password cannot be used.
    pub fn add_password(&mut self, username: &str, password: &str) -> Result<(), UserError> {
        let key = |algorithm| {
            long_term_key(algorithm, username, &self.realm, password)
                .map_err(|_| UserError::NotOpaqueString)
        };
        let keys = Keys {
            md5: Some(key(PasswordAlgorithm::Md5)?),
            sha256: Some(key(PasswordAlgorithm::Sha256)?),
        };
        self.insert(username, keys)
    }

    /// Adds a user whose password is not known, only a key made from it, or adds a key to a user.
    ///
    /// # Errors
    /// If the name cannot be used.
    pub fn add_key(
        &mut self,
        username: &str,
        algorithm: PasswordAlgorithm,
        key: LongTermKey,
    ) -> Result<(), UserError> {
        let prepared = opaque_string(username).ok_or(UserError::NotOpaqueString)?;
        let mut keys = self.users.remove(&*prepared).unwrap_or_default();
        match algorithm {
            PasswordAlgorithm::Md5 => keys.md5 = Some(key),
            PasswordAlgorithm::Sha256 => keys.sha256 = Some(key),
        }
        self.insert(username, keys)
    }

    /// Names are kept as USERNAME carries them: prepared (RFC 8489 §14.3).
    fn insert(&mut self, username: &str, keys: Keys) -> Result<(), UserError> {
        let username = opaque_string(username).ok_or(UserError::NotOpaqueString)?;
        if username.len() > 508 {
            return Err(UserError::TooLong);
        }
        let hash = userhash(&username, &self.realm).map_err(|_| UserError::NotOpaqueString)?;
        self.by_userhash.insert(hash, username.clone().into_owned());
        self.users.insert(username.into_owned(), keys);
        Ok(())
    }
}

impl Credentials for StaticCredentials {
    fn find(&self, query: &KeyQuery<'_>) -> KeyLookup {
        let name = match query.claim {
            Claim::Username(name) => Some(name),
            Claim::Userhash(hash) => self.by_userhash.get(hash).map(String::as_str),
        };
        let Some((username, keys)) = name.and_then(|name| self.users.get_key_value(name)) else {
            return KeyLookup::Unknown;
        };
        let key = match query.algorithm {
            PasswordAlgorithm::Md5 => &keys.md5,
            PasswordAlgorithm::Sha256 => &keys.sha256,
        };
        match key.clone() {
            Some(key) => KeyLookup::Known(KnownUser::with_key(username, key)),
            None => KeyLookup::Unknown,
        }
    }

    fn knows_userhash(&self) -> bool {
        true
    }

    fn supports(&self, algorithm: PasswordAlgorithm) -> bool {
        self.users.values().all(|keys| match algorithm {
            PasswordAlgorithm::Md5 => keys.md5.is_some(),
            PasswordAlgorithm::Sha256 => keys.sha256.is_some(),
        })
    }
}
