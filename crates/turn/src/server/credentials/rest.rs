//! Time-limited credentials that a web service makes with a secret it shares with this server ("TURN REST
//! API", draft-uberti-behave-turn-rest-00 §2.2): nothing about a user is stored anywhere.
//!
//! ```text
//! username = "1735689600:alice"          expiry in seconds since 1970, separator, any text; or the bare expiry
//! password = base64(HMAC-SHA1(secret, username))
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use stun::{HmacKey, long_term_key};

use super::{Candidate, Claim, Credentials, KeyQuery, KeySearch};

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

    /// With another separator between the expiry and the rest of the user name.
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
    fn find(
        &self,
        query: &KeyQuery<'_>,
        accept: &mut dyn FnMut(&Candidate<'_>) -> bool,
    ) -> KeySearch {
        // A hash does not lead back to a name that was never stored.
        let Claim::Username(username) = query.claim else {
            return KeySearch::UnknownUser;
        };
        let Some(expiry) = self.expiry(username) else {
            return KeySearch::UnknownUser;
        };
        if expiry <= query.unix_s {
            return KeySearch::Expired;
        }
        for secret in &self.secrets {
            let password = password(secret, username);
            let Ok(key) = long_term_key(query.algorithm, username, query.realm, &password) else {
                continue;
            };
            if accept(&Candidate {
                username,
                key,
                expires_unix_s: Some(expiry),
            }) {
                return KeySearch::Accepted;
            }
        }
        KeySearch::WrongKey
    }
}
