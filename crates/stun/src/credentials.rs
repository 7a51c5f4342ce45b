//! From names and passwords to keys (RFC 8489 §9.1.1, §9.2.2, §14.4, §18.5.1).

use std::borrow::Cow;

use md5::Md5;
#[cfg(feature = "precis")]
use precis_profiles::OpaqueString;
#[cfg(feature = "precis")]
use precis_profiles::precis_core::{self, profile::PrecisFastInvocation, profile::stabilize};
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, Zeroizing};

use crate::{HmacKey, PasswordAlgorithm};

/// Which text the OpaqueString profile refuses (RFC 8265 §4.2): it is empty or holds code points such as controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialError {
    /// The user name.
    #[error("user name is empty or holds characters that RFC 8265 does not allow")]
    Username,
    /// The realm.
    #[error("realm is empty or holds characters that RFC 8265 does not allow")]
    Realm,
    /// The password.
    #[error("password is empty or holds characters that RFC 8265 does not allow")]
    Password,
}

/// The key of a long-term credential: 16 bytes by MD5, 32 by SHA-256 (RFC 8489 §9.2.2, §18.5.1).
///
/// The password algorithm decides these bytes; which HMAC they serve is another question, decided by the integrity
/// attribute. It erases the bytes when it is dropped, and never prints them.
#[derive(Clone)]
pub struct LongTermKey {
    bytes: [u8; 32],
    algorithm: PasswordAlgorithm,
}

impl LongTermKey {
    /// A key from a database, such as SIP's H(A1).
    #[must_use]
    pub fn from_md5(hash: &[u8; 16]) -> LongTermKey {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(hash);
        LongTermKey {
            bytes,
            algorithm: PasswordAlgorithm::Md5,
        }
    }

    /// A key from a database, of the SHA-256 kind.
    #[must_use]
    pub const fn from_sha256(hash: &[u8; 32]) -> LongTermKey {
        LongTermKey {
            bytes: *hash,
            algorithm: PasswordAlgorithm::Sha256,
        }
    }

    /// The bytes of the key: 16 or 32.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self.algorithm {
            PasswordAlgorithm::Md5 => &self.bytes[..16],
            PasswordAlgorithm::Sha256 => &self.bytes,
        }
    }

    /// How the key was made.
    #[must_use]
    pub const fn algorithm(&self) -> PasswordAlgorithm {
        self.algorithm
    }

    /// The key for MESSAGE-INTEGRITY.
    #[must_use]
    pub fn hmac_sha1(&self) -> HmacKey {
        HmacKey::sha1(self.as_bytes())
    }

    /// The key for MESSAGE-INTEGRITY-SHA256.
    #[must_use]
    pub fn hmac_sha256(&self) -> HmacKey {
        HmacKey::sha256(self.as_bytes())
    }
}

impl Drop for LongTermKey {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

impl core::fmt::Debug for LongTermKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "LongTermKey({:?})", self.algorithm)
    }
}

/// Prepares a text with the OpaqueString profile (RFC 8265 §4.2); `None` if the profile refuses it.
///
/// Printable ASCII is left as it is, and nothing is allocated for it. Without the feature `precis` all else is refused.
#[must_use]
pub fn opaque_string(text: &str) -> Option<Cow<'_, str>> {
    let is_plain = text.bytes().all(|byte| matches!(byte, 0x20..=0x7E));
    if is_plain && !text.is_empty() {
        return Some(Cow::Borrowed(text));
    }
    prepared(text)
}

/// A text that is not printable ASCII.
#[cfg(feature = "precis")]
fn prepared(text: &str) -> Option<Cow<'_, str>> {
    // RFC 8264 §7: the rules are applied until nothing changes. U+0387 for one becomes U+00B7, which is then refused
    // where it stands.
    stabilize(text, enforce).ok()
}

#[cfg(not(feature = "precis"))]
fn prepared(_: &str) -> Option<Cow<'_, str>> {
    None
}

/// The profile, applied once.
#[cfg(feature = "precis")]
fn enforce(text: &str) -> Result<Cow<'_, str>, precis_core::Error> {
    <OpaqueString as PrecisFastInvocation>::enforce(text)
}

/// The text without trailing NULs and without surrounding quotes (RFC 8489 §9.2.2).
fn unquoted(text: &str) -> &str {
    let text = text.trim_end_matches('\0');
    text.strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .unwrap_or(text)
}

/// The key of a long-term credential (RFC 8489 §9.2.2): the hash of `username:realm:password`.
///
/// All three are prepared with the OpaqueString profile. A name that was prepared before, as that of a USERNAME
/// attribute is, stays the same.
///
/// # Errors
/// [`CredentialError`] if the profile refuses one of them.
pub fn long_term_key(
    algorithm: PasswordAlgorithm,
    username: &str,
    realm: &str,
    password: &str,
) -> Result<LongTermKey, CredentialError> {
    let username = opaque_string(unquoted(username)).ok_or(CredentialError::Username)?;
    let realm = opaque_string(unquoted(realm)).ok_or(CredentialError::Realm)?;
    let password =
        opaque_string(password.trim_end_matches('\0')).ok_or(CredentialError::Password)?;
    let password = match password {
        Cow::Borrowed(text) => PreparedPassword::Borrowed(text),
        Cow::Owned(text) => PreparedPassword::Owned(Zeroizing::new(text)),
    };
    let parts = [&*username, ":", &realm, ":", password.as_str()];
    Ok(match algorithm {
        PasswordAlgorithm::Md5 => LongTermKey::from_md5(&hash::<Md5>(&parts).into()),
        PasswordAlgorithm::Sha256 => LongTermKey::from_sha256(&hash::<Sha256>(&parts).into()),
    })
}

/// A password that is wiped if it had to be copied.
enum PreparedPassword<'a> {
    Borrowed(&'a str),
    Owned(Zeroizing<String>),
}

impl PreparedPassword<'_> {
    fn as_str(&self) -> &str {
        match self {
            PreparedPassword::Borrowed(text) => text,
            PreparedPassword::Owned(text) => text,
        }
    }
}

/// The hash of texts in a row.
fn hash<H: Digest>(parts: &[&str]) -> sha2::digest::Output<H> {
    let mut hash = H::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize()
}

/// The value of [`Userhash`](crate::Userhash): SHA-256 of the prepared `username:realm` (RFC 8489 §14.4).
///
/// # Errors
/// [`CredentialError`] if the OpaqueString profile refuses one of them.
pub fn userhash(username: &str, realm: &str) -> Result<[u8; 32], CredentialError> {
    let username = opaque_string(unquoted(username)).ok_or(CredentialError::Username)?;
    let realm = opaque_string(unquoted(realm)).ok_or(CredentialError::Realm)?;
    Ok(hash::<Sha256>(&[&username, ":", &realm]).into())
}

/// The key of a short-term credential for MESSAGE-INTEGRITY (RFC 8489 §9.1.1).
///
/// # Errors
/// [`CredentialError::Password`] if the OpaqueString profile refuses the password.
pub fn short_term_key_sha1(password: &str) -> Result<HmacKey, CredentialError> {
    let password = opaque_string(password).ok_or(CredentialError::Password)?;
    Ok(HmacKey::sha1(password.as_bytes()))
}

/// The key of a short-term credential for MESSAGE-INTEGRITY-SHA256 (RFC 8489 §9.1.1).
///
/// # Errors
/// [`CredentialError::Password`] if the OpaqueString profile refuses the password.
pub fn short_term_key_sha256(password: &str) -> Result<HmacKey, CredentialError> {
    let password = opaque_string(password).ok_or(CredentialError::Password)?;
    Ok(HmacKey::sha256(password.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_key_the_rfc_prints() {
        // RFC 8489 §9.2.2.
        let key =
            long_term_key(PasswordAlgorithm::Md5, "user", "realm", "pass").expect("plain ASCII");
        assert_eq!(hex(key.as_bytes()), "8493fbc53ba582fb4c044c456bdc40eb");
        let same = long_term_key(
            PasswordAlgorithm::Md5,
            "\"user\"\0",
            "\"realm\"",
            "pass\0\0",
        )
        .expect("plain ASCII");
        assert_eq!(same.as_bytes(), key.as_bytes());
    }

    #[cfg(not(feature = "precis"))]
    #[test]
    fn texts_outside_ascii_are_refused_without_the_feature() {
        assert_eq!(
            opaque_string("correct horse").as_deref(),
            Some("correct horse")
        );
        assert_eq!(opaque_string("\u{e9}"), None);
        assert_eq!(opaque_string("tab\there"), None);
        assert_eq!(opaque_string(""), None);
        let key = long_term_key(PasswordAlgorithm::Md5, "u", "r", "\u{e9}").map(|_| ());
        assert_eq!(key, Err(CredentialError::Password));
    }

    #[cfg(feature = "precis")]
    #[test]
    fn texts_are_prepared_before_hashing() {
        // RFC 8265 §4.2.2: other spaces become U+0020, the rest is composed (NFC).
        assert_eq!(opaque_string("a\u{A0}b").as_deref(), Some("a b"));
        assert_eq!(opaque_string("e\u{301}").as_deref(), Some("é"));
        assert_eq!(
            opaque_string("correct horse"),
            Some(Cow::Borrowed("correct horse"))
        );
        assert_eq!(opaque_string(""), None);
        assert_eq!(opaque_string("tab\there"), None);
        assert_eq!(opaque_string("\u{387}"), None);
        let composed = long_term_key(PasswordAlgorithm::Sha256, "u", "r", "é").expect("allowed");
        let decomposed =
            long_term_key(PasswordAlgorithm::Sha256, "u", "r", "e\u{301}").expect("allowed");
        assert_eq!(composed.as_bytes(), decomposed.as_bytes());
        let of_user = |user| {
            let key = long_term_key(PasswordAlgorithm::Md5, user, "r", "p").expect("allowed");
            hex(key.as_bytes())
        };
        assert_eq!(of_user("andr\u{e9}"), of_user("andre\u{301}"));
        assert_eq!(of_user("a\u{A0}b"), of_user("a b"));
    }

    #[test]
    fn each_refused_text_is_named() {
        let key = |realm, password| {
            long_term_key(PasswordAlgorithm::Md5, "u", realm, password).map(|_| ())
        };
        assert_eq!(key("\u{7}", "p"), Err(CredentialError::Realm));
        assert_eq!(key("r", ""), Err(CredentialError::Password));
        let nameless = long_term_key(PasswordAlgorithm::Md5, "\u{7}", "r", "p").map(|_| ());
        assert_eq!(nameless, Err(CredentialError::Username));
        assert_eq!(userhash("", "r"), Err(CredentialError::Username));
    }

    #[test]
    fn keys_do_not_print() {
        let key =
            long_term_key(PasswordAlgorithm::Md5, "user", "realm", "pass").expect("plain ASCII");
        assert_eq!(
            format!("{key:?} {:?}", key.hmac_sha1()),
            "LongTermKey(Md5) HmacKey(Sha1)"
        );
    }
}
