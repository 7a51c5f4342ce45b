//! Who may use the server: from a user name to keys (RFC 8489 §9.2).

mod any;
mod fixed;
mod reply;
mod rest;
mod token;

use std::fmt::Debug;

use stun::{LongTermKey, PasswordAlgorithm};

pub use any::AnyOf;
pub use fixed::{StaticCredentials, UserError};
pub use reply::KeyReply;
pub use rest::{RestCredentials, rest_password};
pub use token::{AccessTokens, TokenContent, TokenError};

use crate::ClientPath;

/// Who a request says it is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim<'a> {
    /// USERNAME, prepared with OpaqueString (RFC 8265).
    Username(&'a str),
    /// USERHASH (RFC 8489 §14.4), where [`Credentials::knows_userhash`] said that it is understood.
    Userhash(&'a [u8; 32]),
}

/// What key is wanted, and who asks. Nothing of it is proven but the client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyQuery<'a> {
    /// Who the request says it is from.
    pub claim: Claim<'a>,
    /// The server's realm.
    pub realm: &'a str,
    /// How the key is made from the password.
    pub algorithm: PasswordAlgorithm,
    /// The client's address, the address it sent to, the listener and the transport. The nonce has proven the client's
    /// address.
    pub client: ClientPath,
    /// The present time, in seconds since 1970-01-01 UTC.
    pub unix_s: u64,
}

/// A [`KeyQuery`] that owns what it asks for, for a look-up that outlives the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedKeyQuery {
    claim: OwnedClaim,
    realm: Box<str>,
    algorithm: PasswordAlgorithm,
    client: ClientPath,
    unix_s: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum OwnedClaim {
    Username(Box<str>),
    Userhash(Box<[u8; 32]>),
}

impl KeyQuery<'_> {
    /// The same query, owned.
    #[must_use]
    pub fn to_owned(&self) -> OwnedKeyQuery {
        OwnedKeyQuery {
            claim: match self.claim {
                Claim::Username(name) => OwnedClaim::Username(name.into()),
                Claim::Userhash(hash) => OwnedClaim::Userhash(Box::new(*hash)),
            },
            realm: self.realm.into(),
            algorithm: self.algorithm,
            client: self.client,
            unix_s: self.unix_s,
        }
    }
}

impl OwnedKeyQuery {
    /// The query.
    #[must_use]
    pub fn query(&self) -> KeyQuery<'_> {
        KeyQuery {
            claim: match &self.claim {
                OwnedClaim::Username(name) => Claim::Username(name),
                OwnedClaim::Userhash(hash) => Claim::Userhash(hash),
            },
            realm: &self.realm,
            algorithm: self.algorithm,
            client: self.client,
            unix_s: self.unix_s,
        }
    }
}

/// What a source says to a [`KeyQuery`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum KeyLookup {
    /// The keys of the user.
    Known(KnownUser),
    /// There is no such user, or no key of this algorithm.
    Unknown,
    /// The user name states a time that is over.
    Expired,
    /// The source cannot say: its database does not respond, for example. The request gets 500.
    Unavailable,
    /// The source responds later. The engine keeps the request and asks the embedder with
    /// [`Output::FindKeys`](super::Output::FindKeys) to call [`Credentials::begin_find`].
    Pending,
}

/// A user and its keys.
#[derive(Clone, Debug)]
pub struct KnownUser {
    /// The full name, as USERNAME carries it.
    pub username: String,
    /// The keys that the request may have been made with, of the queried algorithm; one for each secret that is valid
    /// at this time. The first that fits counts. Keys of another algorithm are passed over.
    pub keys: Vec<UserKey>,
}

/// A key, and how long it is good for.
#[derive(Clone, Debug)]
pub struct UserKey {
    /// The key.
    pub key: LongTermKey,
    /// When the credential ends, if ever, in seconds since 1970-01-01 UTC.
    pub expires_unix_s: Option<u64>,
    /// How many seconds the server may use the key before the next query. `None`: until
    /// [`Server::forget_users`](super::Server::forget_users) names the user, or the credentials are replaced.
    pub ttl_s: Option<u32>,
}

impl KnownUser {
    /// A user with one key that stays as it is.
    #[must_use]
    pub fn with_key(username: &str, key: LongTermKey) -> KnownUser {
        let key = UserKey {
            key,
            expires_unix_s: None,
            ttl_s: None,
        };
        KnownUser {
            username: username.to_owned(),
            keys: vec![key],
        }
    }
}

/// Maps user names to keys. While users can be looked up ([`is_available`](Self::is_available)), every result but
/// `Known` with the right key is the same 401 to the client.
pub trait Credentials: Debug + Send + Sync {
    /// Finds the keys for `query`. A worker calls it between two datagrams, so it must not block. A source that must
    /// wait returns [`KeyLookup::Pending`].
    fn find(&self, query: &KeyQuery<'_>) -> KeyLookup;

    /// Begins a look-up that [`find`](Self::find) has left pending. It must not wait: `reply` may be used at any time
    /// on any thread. A reply that is dropped says [`KeyLookup::Unavailable`].
    fn begin_find(&self, query: &KeyQuery<'_>, reply: KeyReply) {
        reply.send(self.find(query));
    }

    /// Whether users can be found by USERHASH. Only then does the server announce username anonymity (RFC
    /// 8489 §9.2.4), upon which clients must not send their names any more.
    fn knows_userhash(&self) -> bool {
        false
    }

    /// Whether keys made with this algorithm can be had for every user. The server announces those.
    fn supports(&self, algorithm: PasswordAlgorithm) -> bool {
        let _ = algorithm;
        true
    }

    /// Whether users can be looked up now. A source with a cache returns `false` while its database does not respond.
    /// Then the server responds 500 to wrong credentials (SIP: 503), whether or not the cache has the user. So the code
    /// does not reveal which users exist.
    fn is_available(&self) -> bool {
        true
    }
}
