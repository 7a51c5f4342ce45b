//! Time-limited credentials ("TURN REST API", draft-uberti-behave-turn-rest-00 §2.2). A web service makes them with a
//! secret that it shares with this server. The server stores nothing about a user.
//!
//! ```text
//! username = "1735689600:alice"          expiry in seconds since 1970, separator, any text; or the bare expiry
//! password = base64(HMAC-SHA1(secret, username))
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use stun::{HmacKey, long_term_key};

use super::{Claim, Credentials, KeyLookup, KeyQuery, KnownUser, UserKey};

/// The password that belongs to a time-limited user name: base64(HMAC-SHA1(secret, username)).
#[must_use]
pub fn rest_password(secret: &[u8], username: &str) -> String {
    password(&HmacKey::sha1(secret), username)
}

fn password(secret: &HmacKey, username: &str) -> String {
    STANDARD.encode(secret.tag(username.as_bytes()).as_bytes())
}

/// Time-limited credentials. All secrets are valid at once, so that they can be changed without a gap.
#[derive(Clone, Debug)]
pub struct RestCredentials {
    secrets: Vec<HmacKey>,
    separator: char,
}

impl RestCredentials {
    /// With these secrets and `:` as the separator.
    #[must_use]
    pub fn new<S: AsRef<[u8]>>(secrets: impl IntoIterator<Item = S>) -> RestCredentials {
        let secrets = secrets
            .into_iter()
            .map(|secret| HmacKey::sha1(secret.as_ref()))
            .collect();
        RestCredentials {
            secrets,
            separator: ':',
        }
    }

    /// Sets the character between the expiry and the rest of the user name. The default is a colon.
    #[must_use]
    pub fn with_separator(mut self, separator: char) -> RestCredentials {
        self.separator = separator;
        self
    }

    /// The expiry that a user name states; `None` if it is not of the time-limited form.
    fn expiry(&self, username: &str) -> Option<u64> {
        let digits = username
            .split_once(self.separator)
            .map_or(username, |(expiry, _)| expiry);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { digits.parse().ok() } else { None }
    }
}

impl Credentials for RestCredentials {
    fn find(&self, query: &KeyQuery<'_>) -> KeyLookup {
        // A hash does not lead back to a name that was never stored.
        let Claim::Username(username) = query.claim else {
            return KeyLookup::Unknown;
        };
        let Some(expiry) = self.expiry(username) else {
            return KeyLookup::Unknown;
        };
        if expiry <= query.unix_s {
            return KeyLookup::Expired;
        }
        let key = |secret| {
            let password = password(secret, username);
            let key = long_term_key(query.algorithm, username, query.realm, &password).ok()?;
            Some(UserKey {
                key,
                expires_unix_s: Some(expiry),
                ttl_s: None,
            })
        };
        KeyLookup::Known(KnownUser {
            username: username.to_owned(),
            keys: self.secrets.iter().filter_map(key).collect(),
        })
    }
}
