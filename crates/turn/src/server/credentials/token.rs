//! Access tokens of an authorization server (RFC 7635).
//!
//! ```text
//! ACCESS-TOKEN:     | nonce length, 2 | nonce | encrypted block ..                  |
//! encrypted block:  | key length, 2 | mac_key | timestamp, 8 | lifetime, 4 |           (RFC 7635 §6.2)
//! ```

use std::fmt::{self, Debug};

use stun::AccessToken;

/// RFC 7635 §7: the clocks of the two servers may differ by this number of seconds.
const DELTA_S: u64 = 5;
/// Bytes of the shortest key: RFC 7635 §6.2 requires 160 bits.
const MIN_MAC_KEY: usize = 20;
/// Bytes of the longest key: HMAC hashes longer ones first.
const MAX_MAC_KEY: usize = 64;

/// What opens the tokens of an authorization server.
pub trait AccessTokens: Debug + Send + Sync {
    /// The name by which the authorization server knows this server (RFC 7635 §6.1): the value of
    /// THIRD-PARTY-AUTHORIZATION, and the associated data of each token.
    fn server_name(&self) -> &str;

    /// The decrypted content of a token, if its tag is right. `kid` comes from USERNAME and names the key.
    ///
    /// It is called on a worker, between two datagrams, so it must not wait.
    ///
    /// # Errors
    /// If the key is unknown, or if the token was not made with it for this server.
    fn open(&self, kid: &str, token: &AccessToken<'_>) -> Result<TokenContent, TokenError>;

    /// The realm of the holders of tokens that this key has encrypted; `None` for the default realm.
    fn realm_of(&self, kid: &str) -> Option<&str> {
        let _ = kid;
        None
    }

    /// Whether [`realm_of`](Self::realm_of) has this realm for some key.
    fn has_realm(&self, realm: &str) -> bool {
        let _ = realm;
        false
    }
}

/// Why a token cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// There is no key of this kid.
    #[error("there is no key with this kid")]
    UnknownKey,
    /// The tag or the format is wrong.
    #[error("the access token was not made with this key for this server")]
    Forged,
}

/// The decrypted content of a token (RFC 7635 §6.2).
#[derive(Clone, PartialEq, Eq)]
pub struct TokenContent {
    /// The key of the client's HMACs, 20 to 64 bytes.
    pub mac_key: Vec<u8>,
    /// When the token was made, in seconds since 1970-01-01 UTC.
    pub made_unix_s: u64,
    /// For how many seconds it is valid.
    pub lifetime_s: u32,
}

/// Keys stay out of logs.
impl Debug for TokenContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenContent")
            .field("made_unix_s", &self.made_unix_s)
            .field("lifetime_s", &self.lifetime_s)
            .finish_non_exhaustive()
    }
}

impl TokenContent {
    /// Parses a decrypted block. `None` if it has another format, or a key of an unusual length.
    #[must_use]
    pub fn parse(block: &[u8]) -> Option<TokenContent> {
        let (length, rest) = block.split_first_chunk()?;
        let (mac_key, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        let (timestamp, rest) = rest.split_first_chunk()?;
        let lifetime: [u8; 4] = rest.try_into().ok()?;
        let is_usual = (MIN_MAC_KEY..=MAX_MAC_KEY).contains(&mac_key.len());
        is_usual.then(|| TokenContent {
            mac_key: mac_key.to_vec(),
            // The last 16 bits are fractions of 1/64,000 s.
            made_unix_s: u64::from_be_bytes(*timestamp) >> 16,
            lifetime_s: u32::from_be_bytes(lifetime),
        })
    }

    /// The block that is to be encrypted.
    #[must_use]
    pub fn to_block(&self) -> Vec<u8> {
        let length = self.mac_key.len() as u16;
        let mut block = length.to_be_bytes().to_vec();
        block.extend(&self.mac_key);
        block.extend((self.made_unix_s << 16).to_be_bytes());
        block.extend(self.lifetime_s.to_be_bytes());
        block
    }

    /// When the server stops to accept the token, in seconds since 1970-01-01 UTC; `None` if it does not accept it now.
    ///
    /// RFC 7635 §7: "lifetime + Delta > abs(RDnew - TS)". RFC 7635 §9: what is left of it bounds the allocation's
    /// lifetime, and so does the token's own lifetime.
    pub(crate) fn expires_unix_s(&self, now_unix_s: u64) -> Option<u64> {
        let lifetime_s = u64::from(self.lifetime_s);
        let apart = now_unix_s.abs_diff(self.made_unix_s);
        let left = (lifetime_s + DELTA_S).checked_sub(apart)?;
        (left > 0).then(|| now_unix_s + left.min(lifetime_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(made_unix_s: u64, lifetime_s: u32) -> TokenContent {
        TokenContent {
            mac_key: vec![7; 20],
            made_unix_s,
            lifetime_s,
        }
    }

    #[test]
    fn a_block_is_parsed_as_it_was_written_and_cut_blocks_are_refused() {
        let block = content(1_700_000_000, 3600).to_block();
        assert_eq!(block.len(), 2 + 20 + 8 + 4);
        assert_eq!(
            TokenContent::parse(&block),
            Some(content(1_700_000_000, 3600))
        );
        for length in 0..block.len() {
            assert_eq!(TokenContent::parse(&block[..length]), None);
        }
        assert_eq!(TokenContent::parse(&[&block[..], &[0]].concat()), None);
        for (length, is_usual) in [(19, false), (20, true), (64, true), (65, false)] {
            let content = TokenContent {
                mac_key: vec![1; length],
                ..content(0, 1)
            };
            let parsed = TokenContent::parse(&content.to_block());
            assert_eq!(parsed.is_some(), is_usual, "{length}");
        }
    }

    #[test]
    fn a_token_is_valid_for_its_lifetime_and_a_difference_of_clocks() {
        let token = content(1_000_000, 600);
        for (now, expires) in [
            (1_000_000, Some(1_000_600)),
            (1_000_100, Some(1_000_605)),
            (1_000_604, Some(1_000_605)),
            (1_000_605, None),
            // Made by a clock that is ahead.
            (999_996, Some(1_000_596)),
            (999_396, Some(999_397)),
            (999_395, None),
            (0, None),
        ] {
            assert_eq!(token.expires_unix_s(now), expires, "{now}");
        }
        assert_eq!(content(u64::MAX >> 16, u32::MAX).expires_unix_s(0), None);
        assert_eq!(content(0, 0).expires_unix_s(0), Some(0));
    }
}
