//! The hashes of RFC 7616 §3.4.

use md5::Md5;
use sha2::{Sha256, Sha512_256};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroize;

use crate::hex;

/// A hash algorithm, as RFC 8760 §2.1 names them; the better is the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// `MD5`, what a challenge without a name means.
    Md5,
    /// `SHA-512-256`
    Sha512_256,
    /// `SHA-256`
    Sha256,
}

impl Algorithm {
    /// All of them, the best first.
    pub const ALL: [Algorithm; 3] = [Algorithm::Sha256, Algorithm::Sha512_256, Algorithm::Md5];

    /// The name, as it stands in a message.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Md5 => "MD5",
            Algorithm::Sha256 => "SHA-256",
            Algorithm::Sha512_256 => "SHA-512-256",
        }
    }

    /// The algorithm with this name, in any case. Those with `-sess` are not supported.
    #[must_use]
    pub fn of(name: &[u8]) -> Option<Algorithm> {
        Algorithm::ALL
            .into_iter()
            .find(|algorithm| algorithm.name().as_bytes().eq_ignore_ascii_case(name))
    }

    /// Bytes of the hash.
    #[must_use]
    pub const fn hash_len(self) -> usize {
        match self {
            Algorithm::Md5 => 16,
            Algorithm::Sha256 | Algorithm::Sha512_256 => 32,
        }
    }

    /// The hash of `parts` with colons between them, in hexadecimal digits.
    fn hash(self, parts: &[&[u8]]) -> Hex {
        match self {
            Algorithm::Md5 => Hex::of(&joined::<Md5>(parts)),
            Algorithm::Sha256 => Hex::of(&joined::<Sha256>(parts)),
            Algorithm::Sha512_256 => Hex::of(&joined::<Sha512_256>(parts)),
        }
    }
}

fn joined<D: md5::Digest>(parts: &[&[u8]]) -> md5::digest::Output<D> {
    let mut hasher = D::new();
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            hasher.update(b":");
        }
        hasher.update(part);
    }
    hasher.finalize()
}

/// A hash in lower-case hexadecimal digits.
#[derive(Clone)]
pub struct Hex {
    digits: [u8; 64],
    len: usize,
}

impl Hex {
    /// The digits of at most 32 bytes.
    fn of(hash: &[u8]) -> Hex {
        let mut digits = [0; 64];
        hex::write(hash, &mut digits);
        let len = (hash.len() * 2).min(digits.len());
        Hex { digits, len }
    }

    /// As it stands in a message.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.digits.get(..self.len).unwrap_or_default()
    }

    /// Whether `text` is this hash, in either case of its digits, in a time that depends on its length alone.
    #[must_use]
    pub fn matches(&self, text: &[u8]) -> bool {
        let mut lower = [0; 64];
        let Some(room) = lower.get_mut(..text.len()) else {
            return false;
        };
        for (to, from) in room.iter_mut().zip(text) {
            *to = from.to_ascii_lowercase();
        }
        self.as_bytes().ct_eq(room).into()
    }
}

/// What a server keeps of a password: the hash of user, realm and password (`H(A1)` of RFC 7616 §3.4.2).
///
/// It is as good as the password for this realm: it is never printed, and wiped when it is dropped.
#[derive(Clone)]
pub struct Ha1 {
    algorithm: Algorithm,
    hex: Hex,
}

impl Ha1 {
    /// From the password.
    #[must_use]
    pub fn of(algorithm: Algorithm, username: &[u8], realm: &[u8], password: &[u8]) -> Ha1 {
        Ha1 {
            algorithm,
            hex: algorithm.hash(&[username, realm, password]),
        }
    }

    /// From the hash itself: the long-term key of TURN (RFC 8489 §9.2.2) is one, of MD5 or SHA-256, where user, realm and
    /// password are the same. `None` if the length is not that of the algorithm.
    #[must_use]
    pub fn from_hash(algorithm: Algorithm, hash: &[u8]) -> Option<Ha1> {
        (hash.len() == algorithm.hash_len()).then(|| Ha1 {
            algorithm,
            hex: Hex::of(hash),
        })
    }

    /// For a user that is not there: so that the answer takes as long as for one that is.
    pub(super) fn of_nobody(algorithm: Algorithm) -> Ha1 {
        Ha1 {
            algorithm,
            hex: Hex::of(&[0; 32][..algorithm.hash_len()]),
        }
    }

    /// The algorithm it was made with.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The response that proves knowledge of the password (RFC 7616 §3.4.1; without `qop` that of RFC 2617 §3.2.2.1).
    #[must_use]
    pub fn response(&self, proof: &Proof<'_>) -> Hex {
        let ha2 = self.algorithm.hash(&[proof.method, proof.uri]);
        let ha1 = self.hex.as_bytes();
        match proof.nc_cnonce {
            Some((nc, cnonce)) => {
                self.algorithm
                    .hash(&[ha1, proof.nonce, nc, cnonce, b"auth", ha2.as_bytes()])
            }
            None => self.algorithm.hash(&[ha1, proof.nonce, ha2.as_bytes()]),
        }
    }
}

impl Drop for Ha1 {
    fn drop(&mut self) {
        self.hex.digits.zeroize();
    }
}

impl core::fmt::Debug for Ha1 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Ha1")
            .field("algorithm", &self.algorithm)
            .finish_non_exhaustive()
    }
}

impl core::fmt::Debug for Hex {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Hex")
    }
}

/// What is proven, besides the password.
#[derive(Clone, Copy, Debug)]
pub struct Proof<'a> {
    /// The nonce of the challenge.
    pub nonce: &'a [u8],
    /// Eight hexadecimal digits of the nonce count and the client's own nonce, with `qop=auth`; `None` without.
    pub nc_cnonce: Option<(&'a [u8], &'a [u8])>,
    /// The method of the request.
    pub method: &'a [u8],
    /// The URI of the credentials.
    pub uri: &'a [u8],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_compares_whole_and_in_either_case() {
        let hash = Algorithm::Md5.hash(&[b"a"]);
        assert_eq!(hash.as_bytes(), b"0cc175b9c0f1b6a831c399e269772661");
        assert!(hash.matches(b"0CC175B9c0f1b6a831c399e269772661"));
        assert!(!hash.matches(b"0cc175b9c0f1b6a831c399e26977266"));
        assert!(!hash.matches(b"1cc175b9c0f1b6a831c399e269772661"));
        assert!(!hash.matches(b""));
        assert!(!hash.matches(&[b'0'; 100]));
    }

    #[test]
    fn the_better_algorithm_is_the_greater_and_names_have_any_case() {
        assert!(Algorithm::Sha256 > Algorithm::Md5);
        assert_eq!(Algorithm::of(b"sha-512-256"), Some(Algorithm::Sha512_256));
        assert_eq!(Algorithm::of(b"MD5-sess"), None);
        assert!(Ha1::from_hash(Algorithm::Sha256, &[0; 16]).is_none());
    }

    #[test]
    fn a_secret_is_not_printed() {
        let ha1 = Ha1::of(Algorithm::Md5, b"a", b"b", b"c");
        assert_eq!(format!("{ha1:?}"), "Ha1 { algorithm: Md5, .. }");
    }
}
