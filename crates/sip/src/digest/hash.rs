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
    /// All algorithms, the best first.
    pub const ALL: [Algorithm; 3] = [Algorithm::Sha256, Algorithm::Sha512_256, Algorithm::Md5];

    /// The name, as it is in a message.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Md5 => "MD5",
            Algorithm::Sha256 => "SHA-256",
            Algorithm::Sha512_256 => "SHA-512-256",
        }
    }

    /// The algorithm with this name, in any case. A name with `-sess` is none: see [`Algorithm::of_variant`].
    #[must_use]
    pub fn of(name: &[u8]) -> Option<Algorithm> {
        Algorithm::ALL
            .into_iter()
            .find(|algorithm| algorithm.name().as_bytes().eq_ignore_ascii_case(name))
    }

    /// The algorithm with this name, and whether it is its session variant, `SHA-256-sess` (RFC 7616 §3.4.2).
    #[must_use]
    pub fn of_variant(name: &[u8]) -> Option<(Algorithm, bool)> {
        let cut = name.len().saturating_sub(SESSION.len());
        match name.split_at_checked(cut) {
            Some((base, end)) if end.eq_ignore_ascii_case(SESSION) => {
                Some((Algorithm::of(base)?, true))
            }
            _ => Some((Algorithm::of(name)?, false)),
        }
    }

    /// Bytes of the hash.
    #[must_use]
    pub const fn hash_len(self) -> usize {
        match self {
            Algorithm::Md5 => 16,
            Algorithm::Sha256 | Algorithm::Sha512_256 => 32,
        }
    }

    /// A user's name as it is sent where names are hashed (RFC 7616 §3.4.4).
    #[must_use]
    pub fn hash_username(self, username: &[u8], realm: &[u8]) -> Hex {
        self.hash(&[Plain(username), Plain(realm)])
    }

    /// The hash of `parts` with colons between them, in hexadecimal digits.
    pub(super) fn hash(self, parts: &[Text<'_>]) -> Hex {
        #[cfg(test)]
        work::note(parts);
        match self {
            Algorithm::Md5 => Hex::of(&joined::<Md5>(parts)),
            Algorithm::Sha256 => Hex::of(&joined::<Sha256>(parts)),
            Algorithm::Sha512_256 => Hex::of(&joined::<Sha512_256>(parts)),
        }
    }
}

/// What the hash function is used for, in tests of how long something takes.
#[cfg(test)]
pub(super) mod work {
    use super::Text;
    use std::cell::Cell;

    thread_local! {
        static DONE: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    }

    pub(super) fn note(parts: &[Text<'_>]) {
        let length = |part: &Text<'_>| match part {
            Text::Plain(text) | Text::Quoted(text) => text.len() as u64,
        };
        let bytes: u64 = parts.iter().map(length).sum();
        let (calls, before) = DONE.get();
        DONE.set((calls + 1, before + bytes));
    }

    /// Calls and bytes of this thread since the last time.
    pub(in crate::digest) fn take() -> (u64, u64) {
        DONE.take()
    }
}

/// What follows the name of a session variant.
pub(super) const SESSION: &[u8] = b"-sess";

/// A text that is hashed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Text<'a> {
    /// As it is.
    Plain(&'a [u8]),
    /// What stood between the quotes of a quoted string: "with quoting slashes removed" (RFC 7616 §3.3, `unq`).
    Quoted(&'a [u8]),
}

use Text::{Plain, Quoted};

fn joined<D: md5::Digest>(parts: &[Text<'_>]) -> md5::digest::Output<D> {
    let mut hasher = D::new();
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            hasher.update(b":");
        }
        match part {
            Plain(text) => hasher.update(text),
            Quoted(text) => super::unescaped(text, |piece| hasher.update(piece)),
        }
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

    /// As it is written in a message.
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
            hex: algorithm.hash(&[Plain(username), Plain(realm), Plain(password)]),
        }
    }

    /// From the password, for a realm as it stands between its quotes in a challenge.
    pub(super) fn of_quoted(
        algorithm: Algorithm,
        username: &[u8],
        realm: &[u8],
        password: &[u8],
    ) -> Ha1 {
        Ha1 {
            algorithm,
            hex: algorithm.hash(&[Plain(username), Quoted(realm), Plain(password)]),
        }
    }

    /// From the hash itself. The long-term key of TURN (RFC 8489 §9.2.2) is such a hash, of MD5 or SHA-256, if user,
    /// realm and password are the same. `None` if the length is not that of the algorithm.
    #[must_use]
    pub fn from_hash(algorithm: Algorithm, hash: &[u8]) -> Option<Ha1> {
        (hash.len() == algorithm.hash_len()).then(|| Ha1 {
            algorithm,
            hex: Hex::of(hash),
        })
    }

    /// From the hash in hexadecimal digits, in any case.
    #[must_use]
    pub fn from_hex(algorithm: Algorithm, digits: &[u8]) -> Option<Ha1> {
        let mut hash = [0; 32];
        let hash = hash.get_mut(..algorithm.hash_len())?;
        if digits.len() != 2 * hash.len() {
            return None;
        }
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).ok();
            let pair = pair.filter(|pair| !pair.starts_with('+'));
            *byte = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok())?;
        }
        Ha1::from_hash(algorithm, hash)
    }

    /// For a user that is not there: so that the answer takes as long as for one that is.
    pub(super) fn of_unknown_user(algorithm: Algorithm) -> Ha1 {
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
        let algorithm = self.algorithm;
        let (method, uri) = (Plain(proof.method), Quoted(proof.uri));
        let ha2 = match proof.body {
            None => algorithm.hash(&[method, uri]),
            Some(body) => {
                let body = algorithm.hash(&[Plain(body)]);
                algorithm.hash(&[method, uri, Plain(body.as_bytes())])
            }
        };
        let (nonce, ha2) = (Quoted(proof.nonce), Plain(ha2.as_bytes()));
        let session = self.of_session(proof);
        let ha1 = Plain(session.as_ref().map_or(self.hex.as_bytes(), Hex::as_bytes));
        match proof.nc_cnonce {
            Some((nc, cnonce)) => {
                let qop = if proof.body.is_some() {
                    Qop::AuthInt
                } else {
                    Qop::Auth
                };
                let qop = Plain(qop.name());
                algorithm.hash(&[ha1, nonce, Plain(nc), Quoted(cnonce), qop, ha2])
            }
            None => algorithm.hash(&[ha1, nonce, ha2]),
        }
    }

    /// The key of a session variant (RFC 7616 §3.4.2): of the nonce and the cnonce that it began with. Whoever keeps
    /// its cnonce for as long as it uses a nonce need not remember the first.
    fn of_session(&self, proof: &Proof<'_>) -> Option<Hex> {
        let (_, cnonce) = proof.nc_cnonce.filter(|_| proof.is_session)?;
        let ha1 = Plain(self.hex.as_bytes());
        Some(
            self.algorithm
                .hash(&[ha1, Quoted(proof.nonce), Quoted(cnonce)]),
        )
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

/// What a response protects: `qop`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Qop {
    /// `auth`: start line and password.
    Auth,
    /// `auth-int`: the body, too.
    AuthInt,
}

impl Qop {
    /// As it is written in a message.
    #[must_use]
    pub const fn name(self) -> &'static [u8] {
        match self {
            Qop::Auth => b"auth",
            Qop::AuthInt => b"auth-int",
        }
    }

    /// The value with this name, in any case.
    #[must_use]
    pub fn of(name: &[u8]) -> Option<Qop> {
        let mut all = [Qop::Auth, Qop::AuthInt].into_iter();
        all.find(|qop| qop.name().eq_ignore_ascii_case(name))
    }
}

/// What is proven, besides the password. Texts that stand in quotes in a message are as between the quotes, with the
/// backslashes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Proof<'a> {
    /// The nonce of the challenge.
    pub nonce: &'a [u8],
    /// Eight hexadecimal digits of the nonce count and the client's own nonce, with `qop`; `None` without.
    pub nc_cnonce: Option<(&'a [u8], &'a [u8])>,
    /// The body, with `qop=auth-int`; an empty one counts as well (RFC 8760 §2.6 item 7).
    pub body: Option<&'a [u8]>,
    /// The algorithm's session variant; only with a cnonce.
    pub is_session: bool,
    /// The method of the request; empty where a server proves itself (RFC 7616 §3.5).
    pub method: &'a [u8],
    /// The URI of the credentials.
    pub uri: &'a [u8],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_compares_whole_and_in_either_case() {
        let hash = Algorithm::Md5.hash(&[Plain(b"a")]);
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
        let variant = Algorithm::of_variant(b"md5-SESS");
        assert_eq!(variant, Some((Algorithm::Md5, true)));
        let plain = Algorithm::of_variant(b"SHA-256");
        assert_eq!(plain, Some((Algorithm::Sha256, false)));
        for unknown in ["", "-sess", "SHA-1", "SHA-1-sess", "MD5-sess-sess"] {
            assert_eq!(Algorithm::of_variant(unknown.as_bytes()), None, "{unknown}");
        }
        assert!(Ha1::from_hash(Algorithm::Sha256, &[0; 16]).is_none());
    }

    /// The example of a name in Unicode of RFC 7616 §3.9.2.
    #[test]
    fn a_username_is_hashed_with_its_realm_rfc7616_3_4_4() {
        let name = "J\u{e4}s\u{f8}n Doe".as_bytes();
        let hash = Algorithm::Sha512_256.hash_username(name, b"api@example.org");
        assert_eq!(hash.as_bytes().len(), 64);
        let direct = Algorithm::Sha512_256.hash(&[Plain(&[name, b":api@example.org"].concat())]);
        assert_eq!(hash.as_bytes(), direct.as_bytes());
    }

    #[test]
    fn quoting_slashes_are_not_hashed_rfc7616_3_3() {
        let algorithm = Algorithm::Sha256;
        let quoted = algorithm.hash(&[Quoted(br#"a\"b\\c"#)]);
        assert_eq!(
            quoted.as_bytes(),
            algorithm.hash(&[Plain(br#"a"b\c"#)]).as_bytes()
        );
        let plain = algorithm.hash(&[Plain(br#"a\"b"#)]);
        assert_ne!(
            plain.as_bytes(),
            algorithm.hash(&[Quoted(br#"a\"b"#)]).as_bytes()
        );
    }

    #[test]
    fn a_secret_is_not_printed() {
        let ha1 = Ha1::of(Algorithm::Md5, b"a", b"b", b"c");
        assert_eq!(format!("{ha1:?}"), "Ha1 { algorithm: Md5, .. }");
    }
}
