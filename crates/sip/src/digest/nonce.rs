//! Nonces that a server need not remember.
//!
//! ```text
//! 0068f2a1c3   7f3a9b20c411   91b7de03aa5f6c28      hexadecimal digits
//! '--------'   '----------'   '--------------'
//!  unix time    salt           SipHash-2-4 over time, salt and what it is bound to
//! ```
//!
//! The salt makes every nonce another one: nonce counts belong to a nonce, and two clients must not share one.

use subtle::ConstantTimeEq as _;

use super::{inside_quotes, start_of_meaning};
use crate::header::Authorization;
use crate::siphash::Hasher;
use crate::{HashKey, hex};

const TIME_LEN: usize = 5;
const SALT_LEN: usize = 6;
const MAC_LEN: usize = 8;

/// Bytes of a nonce of ours.
pub const NONCE_LEN: usize = (TIME_LEN + SALT_LEN + MAC_LEN) * 2;

/// The MAC depends on at most this many bytes of a realm.
const REALM_MAX: usize = 255;

/// What a nonce is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NonceCheck {
    /// Issued by us and not too long ago. With that it has an identity and an age, for [`super::Replay`].
    Valid {
        /// Its MAC: no two nonces have the same but by chance.
        id: u64,
        /// Seconds since 1970.
        issued_unix_s: u64,
    },
    /// Issued by us, too long ago: challenge again with `stale=true`.
    Stale,
    /// Not issued by us, or for something else.
    Forged,
}

/// The keys under which nonces are issued and checked.
///
/// Workers and nodes that share them accept each other's nonces. Two are good at a time, so that a rotation sends
/// nobody away; the second one makes everything from before the first worthless.
#[derive(Clone, Copy, Debug)]
pub struct NonceKeys {
    current: HashKey,
    previous: Option<HashKey>,
}

impl NonceKeys {
    /// Starts with one random key.
    #[must_use]
    pub const fn new(key: HashKey) -> NonceKeys {
        NonceKeys {
            current: key,
            previous: None,
        }
    }

    /// Replaces the key. New nonces use `key`. Nonces of the previous key stay valid, those of the key before it do
    /// not.
    pub fn rotate(&mut self, key: HashKey) {
        self.previous = Some(core::mem::replace(&mut self.current, key));
    }

    /// Writes a nonce that is valid for `realm`, and for `source` unless it is empty. `source` is an address in any
    /// form, without the port, because a client may return from another port. `salt` is random or a counter.
    pub fn issue(
        &self,
        realm: &[u8],
        source: &[u8],
        salt: [u8; SALT_LEN],
        now_unix_s: u64,
        out: &mut [u8; NONCE_LEN],
    ) {
        let mut body = [0; TIME_LEN + SALT_LEN + MAC_LEN];
        let [_, _, _, time @ ..] = now_unix_s.to_be_bytes();
        let (signed, tag) = body.split_at_mut(TIME_LEN + SALT_LEN);
        signed[..TIME_LEN].copy_from_slice(&time);
        signed[TIME_LEN..].copy_from_slice(&salt);
        tag.copy_from_slice(&mac(self.current, signed, realm, source).to_be_bytes());
        hex::write(&body, out);
    }

    /// Whether a value of Authorization or Proxy-Authorization has a valid nonce of this server. The nonce must be for
    /// the realm of the value, and for this source. The other parameters do not count: in an overload, this decides
    /// before the request is parsed.
    #[must_use]
    pub fn has_valid(
        &self,
        authorization: &[u8],
        source: &[u8],
        now_unix_s: u64,
        lifetime_s: u64,
    ) -> bool {
        let header = Authorization::parse(authorization).filter(Authorization::is_digest);
        let text = |name: &[u8]| header?.params.get(name).map(inside_quotes);
        let (Some(nonce), Some(realm)) = (text(b"nonce"), text(b"realm")) else {
            return false;
        };
        // Only the start of a longer realm counts.
        let mut unquoted = [0; REALM_MAX];
        let realm = start_of_meaning(realm, &mut unquoted);
        let checked = self.check(nonce, realm, source, now_unix_s, lifetime_s);
        matches!(checked, NonceCheck::Valid { .. })
    }

    /// Checks a nonce. It is stale after `lifetime_s` seconds; the clock may be set back by as much.
    #[must_use]
    pub fn check(
        &self,
        nonce: &[u8],
        realm: &[u8],
        source: &[u8],
        now_unix_s: u64,
        lifetime_s: u64,
    ) -> NonceCheck {
        let Some(body) = hex::read::<{ NONCE_LEN / 2 }>(nonce) else {
            return NonceCheck::Forged;
        };
        let (signed, sent) = body.split_at(TIME_LEN + SALT_LEN);
        let keys = [Some(self.current), self.previous];
        let is_ours = keys.into_iter().flatten().any(|key| {
            let expected = mac(key, signed, realm, source).to_be_bytes();
            bool::from(expected.ct_eq(sent))
        });
        if !is_ours {
            return NonceCheck::Forged;
        }
        let number = |bytes: &[u8]| bytes.iter().fold(0, |n, &byte| n << 8 | u64::from(byte));
        let issued_unix_s = number(signed.get(..TIME_LEN).unwrap_or_default());
        match issued_unix_s.abs_diff(now_unix_s) <= lifetime_s {
            true => NonceCheck::Valid {
                id: number(sent),
                issued_unix_s,
            },
            false => NonceCheck::Stale,
        }
    }
}

fn mac(key: HashKey, signed: &[u8], realm: &[u8], source: &[u8]) -> u64 {
    let realm = realm.get(..REALM_MAX).unwrap_or(realm);
    // The lengths keep realm and source apart.
    let lengths = [realm.len() as u8, source.len().min(255) as u8];
    let mut hasher = Hasher::<2, 4>::new(key);
    for part in [signed, &lengths, source, realm] {
        hasher.write(part);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_790_000_000;

    fn issue(keys: &NonceKeys, salt: u8) -> [u8; NONCE_LEN] {
        let mut nonce = [0; NONCE_LEN];
        keys.issue(b"example.com", b"192.0.2.1", [salt; 6], NOW, &mut nonce);
        nonce
    }

    fn check(keys: &NonceKeys, nonce: &[u8], now: u64) -> NonceCheck {
        keys.check(nonce, b"example.com", b"192.0.2.1", now, 300)
    }

    #[test]
    fn a_nonce_ages_and_no_two_are_the_same() {
        let keys = NonceKeys::new(HashKey::new([1; 16]));
        let nonce = issue(&keys, 1);
        let NonceCheck::Valid { id, issued_unix_s } = check(&keys, &nonce, NOW + 300) else {
            panic!("valid")
        };
        assert_eq!(issued_unix_s, NOW);
        assert_eq!(check(&keys, &nonce, NOW + 301), NonceCheck::Stale);
        let other = check(&keys, &issue(&keys, 2), NOW);
        assert!(matches!(other, NonceCheck::Valid { id: other, .. } if other != id));
    }

    #[test]
    fn a_changed_nonce_another_realm_or_source_is_a_forgery() {
        let keys = NonceKeys::new(HashKey::new([1; 16]));
        let nonce = issue(&keys, 1);
        for at in 0..NONCE_LEN {
            let mut changed = nonce;
            changed[at] ^= 1;
            assert_eq!(check(&keys, &changed, NOW), NonceCheck::Forged, "{at}");
        }
        for (realm, source) in [
            (&b"example.org"[..], &b"192.0.2.1"[..]),
            (b"example.com", b"192.0.2.2"),
            (b"example.com1", b"92.0.2.1"),
        ] {
            assert_eq!(
                keys.check(&nonce, realm, source, NOW, 300),
                NonceCheck::Forged
            );
        }
        assert_eq!(check(&keys, b"", NOW), NonceCheck::Forged);
        assert_eq!(
            check(&keys, &nonce.to_ascii_uppercase(), NOW),
            NonceCheck::Forged
        );
    }

    #[test]
    fn credentials_have_a_valid_nonce_only_at_its_source_in_its_time_and_realm() {
        let keys = NonceKeys::new(HashKey::new([1; 16]));
        let source = &[192, 0, 2, 1][..];
        let mut nonce = [0; NONCE_LEN];
        keys.issue(b"example \"1\"", source, [1; 6], NOW, &mut nonce);
        let nonce = str::from_utf8(&nonce).unwrap();
        let realm = "realm=\"example \\\"1\\\"\"";
        let valid = format!("Digest username=\"x\", {realm},nonce=\"{nonce}\", response=\"0\"");
        let has = |keys: &NonceKeys, text: &str, source: &[u8], age| {
            keys.has_valid(text.as_bytes(), source, NOW + age, 300)
        };
        assert!(has(&keys, &valid, source, 300));
        assert!(!has(&keys, &valid, source, 301));
        assert!(!has(&keys, &valid, &[192, 0, 2, 2], 0));
        let others = NonceKeys::new(HashKey::new([2; 16]));
        assert!(!has(&others, &valid, source, 0));
        for changed in [
            valid.replace("Digest", "Basic"),
            valid.replace("example", "other"),
            valid.replace("nonce=", "cnonce="),
            valid.replace("realm=", "opaque="),
            valid.replace(nonce, "00"),
            "Digest x".to_owned(),
            String::new(),
        ] {
            assert!(!has(&keys, &changed, source, 0), "{changed}");
        }
    }

    #[test]
    fn one_rotation_keeps_it_and_the_second_does_not() {
        let mut keys = NonceKeys::new(HashKey::new([1; 16]));
        let nonce = issue(&keys, 1);
        keys.rotate(HashKey::new([2; 16]));
        assert!(matches!(
            check(&keys, &nonce, NOW),
            NonceCheck::Valid { .. }
        ));
        keys.rotate(HashKey::new([3; 16]));
        assert_eq!(check(&keys, &nonce, NOW), NonceCheck::Forged);
    }
}
