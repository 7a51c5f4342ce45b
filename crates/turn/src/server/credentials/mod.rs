//! Who may use the server: from a user name to a key (RFC 8489 §9.2).

mod any;
mod fixed;
mod rest;

use std::fmt::Debug;

use stun::{LongTermKey, PasswordAlgorithm};

pub use any::AnyOf;
pub use fixed::{StaticCredentials, UserError};
pub use rest::{RestCredentials, rest_password};

/// Who a request says it is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim<'a> {
    /// USERNAME.
    Username(&'a str),
    /// USERHASH (RFC 8489 §14.4), where [`Credentials::knows_userhash`] said that it is understood.
    Userhash(&'a [u8; 32]),
}

/// What key is wanted.
#[derive(Clone, Copy, Debug)]
pub struct KeyQuery<'a> {
    /// Who the request says it is from. Not believed yet.
    pub claim: Claim<'a>,
    /// The server's realm.
    pub realm: &'a str,
    /// How the key is made from the password.
    pub algorithm: PasswordAlgorithm,
    /// The present time, in seconds since 1970-01-01 UTC.
    pub unix_s: u64,
}

/// A key that the request may have been made with.
#[derive(Debug)]
pub struct Candidate<'a> {
    /// The user's full name, as USERNAME carries it.
    pub username: &'a str,
    /// The key.
    pub key: LongTermKey,
    /// When the credential expires, if ever, in seconds since 1970-01-01 UTC.
    pub expires_unix_s: Option<u64>,
}

/// How a search for a key ended. To the client all but `Accepted` are the same 401.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySearch {
    /// `accept` said yes to a candidate.
    Accepted,
    /// `accept` said no to every candidate: the password is wrong.
    WrongKey,
    /// There is no such user, or no key of the wanted algorithm.
    UnknownUser,
    /// The credential is past its time.
    Expired,
}

/// Maps user names to keys.
pub trait Credentials: Debug + Send + Sync {
    /// Offers each key that `query` may mean to `accept`, until it says yes. There can be several: one for
    /// each secret that is valid at this time.
    fn find(
        &self,
        query: &KeyQuery<'_>,
        accept: &mut dyn FnMut(&Candidate<'_>) -> bool,
    ) -> KeySearch;

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
}
