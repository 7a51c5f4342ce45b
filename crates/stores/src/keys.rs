//! The keys of a user: hashes of name, realm and password (RFC 8489 §9.2.2, RFC 7616 §3.4.2). No password is stored.

use std::fmt;

use stun::{LongTermKey, PasswordAlgorithm, long_term_key};

/// The keys of a user.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Keys {
    /// MD5(name ":" realm ":" password).
    pub md5: Option<[u8; 16]>,
    /// SHA-256 of the same.
    pub sha256: Option<[u8; 32]>,
}

/// Keys stay out of logs.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys")
            .field("md5", &self.md5.is_some())
            .field("sha256", &self.sha256.is_some())
            .finish()
    }
}

impl Keys {
    /// Both keys of a password; `None` if RFC 8265 does not allow the name, the realm or the password.
    #[must_use]
    pub fn of(name: &str, realm: &str, password: &str) -> Option<Keys> {
        let key = |algorithm| long_term_key(algorithm, name, realm, password).ok();
        let (md5, sha256) = (
            key(PasswordAlgorithm::Md5)?,
            key(PasswordAlgorithm::Sha256)?,
        );
        Some(Keys {
            md5: md5.as_bytes().try_into().ok(),
            sha256: sha256.as_bytes().try_into().ok(),
        })
    }

    /// Reads a key in hexadecimal: 32 digits are an MD5 key, 64 digits an SHA-256 key. Spaces at the end do not count,
    /// as columns of type CHAR have some.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Keys> {
        let digits = text.trim();
        let mut keys = Keys::default();
        match digits.len() {
            32 => keys.md5 = Some(unhex(digits)?.try_into().ok()?),
            64 => keys.sha256 = Some(unhex(digits)?.try_into().ok()?),
            _ => return None,
        }
        Some(keys)
    }

    /// These keys, and where they lack one, that of `other`.
    #[must_use]
    pub fn or(self, other: Keys) -> Keys {
        Keys {
            md5: self.md5.or(other.md5),
            sha256: self.sha256.or(other.sha256),
        }
    }

    /// The key of this algorithm.
    #[must_use]
    pub fn get(&self, algorithm: PasswordAlgorithm) -> Option<LongTermKey> {
        match algorithm {
            PasswordAlgorithm::Md5 => self.md5.as_ref().map(LongTermKey::from_md5),
            PasswordAlgorithm::Sha256 => self.sha256.as_ref().map(LongTermKey::from_sha256),
        }
    }
}

/// Reads bytes in hexadecimal, two digits each; `None` if the text is anything else.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|it| it as u8);
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| match *pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    };
    pairs.map(byte).collect()
}

/// Bytes in hexadecimal, in lower case as coturn writes them.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits =
        |byte: &u8| [byte >> 4, byte & 15].map(|digit| char::from(DIGITS[usize::from(digit)]));
    bytes.iter().flat_map(digits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From coturn's page on its Redis database.
    #[test]
    fn the_key_of_a_password_is_the_one_that_coturn_stores() {
        let keys = Keys::of("gorst", "north.gov", "hero").unwrap();
        let md5 = keys.md5.unwrap();
        assert_eq!(hex(&md5), "7da2270ccfa49786e0115366d3a3d14d");
        let read = Keys::from_hex("7da2270ccfa49786e0115366d3a3d14d      ").unwrap();
        assert_eq!(read.md5, Some(md5));
        let sha256 = hex(&keys.sha256.unwrap());
        assert_eq!(Keys::from_hex(&sha256).unwrap().or(read), keys);
    }

    #[test]
    fn malformed_keys_are_refused() {
        let wrong = [
            "",
            "7da2",
            "zda2270ccfa49786e0115366d3a3d14d",
            "+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1",
        ];
        assert_eq!(wrong.map(Keys::from_hex), [None; 4]);
        assert_eq!(
            format!("{:?}", Keys::default()),
            "Keys { md5: false, sha256: false }"
        );
    }
}
