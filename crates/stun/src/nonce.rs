//! Nonces that the server need not remember.
//!
//! A nonce proves its origin. It has the time of issue and a MAC. The MAC is over this time, the client's address and
//! port, the offered features and a note of the issuer. So a flood of unauthenticated requests uses no memory, and any
//! worker can verify a nonce of another one. A stolen nonce is useless from another address: RFC 8489 §9.2.4 allows no
//! nonce for two addresses or ports.
//!
//! ```text
//! obMatJos2   wAAA           xxxxxxxxxxxxxxxxxxxxxxx
//! '--------' '--'            '---------------------'
//!  RFC 8489   24 feature bits, base64     base64url( 4 bits note, 4 bits key number, 5 bytes unix seconds, 11 bytes MAC )
//! ```
//!
//! It has 36 bytes, a multiple of four. It is short, because a 401 must stay below three times the size of its request.
//! Two keys are valid at a time, so a rotation rejects no client. The second rotation invalidates all nonces from
//! before the first one. Servers whose keys follow from the time accept the next key as well, because their clocks
//! differ. The key number says which key to check with.
//!
//! The MAC is made in two steps. One call of the SHA-256 compression function makes a key for the client from its
//! address and port. The chaining value depends on the key. The input is one block of fixed length, so this is the
//! pseudorandom function that the proof of HMAC assumes (Bellare 2006). SipHash-2-4 with 128 bits of output then covers
//! the rest under that key. So checking a forged nonce and issuing another one for the same client take one compression
//! together.

use core::net::{IpAddr, SocketAddr};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

use subtle::ConstantTimeEq;

use crate::hmac::{BLOCK, Keyed, Sha256};
use crate::siphash;

/// RFC 8489 §9.2: what every nonce of this RFC starts with.
const COOKIE: &[u8; 9] = b"obMatJos2";
/// Base64 characters of the feature bits.
const FEATURES_LEN: usize = 4;
/// Bytes of the time stamp: seconds since 1970, enough for 34 thousand years.
const TIME_LEN: usize = 5;
/// Bytes of the MAC: 88 bits cannot be guessed online, and offline there is nothing to guess against.
const MAC_LEN: usize = 11;
/// Bytes of note and key number, time and MAC.
const BYTES: usize = 1 + TIME_LEN + MAC_LEN;
/// Base64 characters of these.
const BODY_LEN: usize = (BYTES * 8).div_ceil(6);
/// Where the body starts.
const BODY: usize = COOKIE.len() + FEATURES_LEN;

/// Bytes that the MAC covers under the client's key: features, note and key number, time.
const MAC_TEXT: usize = 3 + 1 + TIME_LEN;

/// Bytes of a nonce of ours.
pub const LEN: usize = BODY + BODY_LEN;

const _: () = assert!(LEN == 36, "the nonce has outgrown its place in a 401");

/// What a server can do beyond RFC 5389, protected from a bid-down by the nonce (RFC 8489 §9.2.1, §18.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SecurityFeatures {
    /// Bit 0: PASSWORD-ALGORITHMS is offered.
    pub password_algorithms: bool,
    /// Bit 1: USERHASH is understood.
    pub username_anonymity: bool,
}

impl SecurityFeatures {
    /// RFC 8489 §18.1: bit 0 is the leftmost.
    const PASSWORD_ALGORITHMS: u8 = 0x80;
    const USERNAME_ANONYMITY: u8 = 0x40;

    /// The 24 bits.
    const fn to_bits(self) -> [u8; 3] {
        let algorithms = if self.password_algorithms {
            Self::PASSWORD_ALGORITHMS
        } else {
            0
        };
        let anonymity = if self.username_anonymity {
            Self::USERNAME_ANONYMITY
        } else {
            0
        };
        [algorithms | anonymity, 0, 0]
    }

    /// The features a nonce advertises; `None` if it lacks the cookie of RFC 8489 §9.2, as an older server's does.
    ///
    /// For both sides: bits without a meaning yet are ignored.
    #[must_use]
    pub fn of_nonce(nonce: &[u8]) -> Option<SecurityFeatures> {
        let features = nonce.strip_prefix(COOKIE)?.first_chunk::<FEATURES_LEN>()?;
        let mut bits = [0; 3];
        STANDARD
            .decode_slice(features, &mut bits)
            .ok()
            .filter(|&len| len == bits.len())?;
        Some(SecurityFeatures::of_bits(bits))
    }

    /// The features that these 24 bits mean.
    const fn of_bits(bits: [u8; 3]) -> SecurityFeatures {
        SecurityFeatures {
            password_algorithms: bits[0] & Self::PASSWORD_ALGORITHMS != 0,
            username_anonymity: bits[0] & Self::USERNAME_ANONYMITY != 0,
        }
    }
}

/// What a nonce of ours says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Issued {
    /// The features that it advertises.
    pub features: SecurityFeatures,
    /// What the issuer noted: 0 to 15.
    pub note: u8,
    /// When it was issued, in seconds since 1970.
    pub unix_s: u64,
}

impl Issued {
    /// How old the nonce is. A clock that was set back makes a nonce of the future: it is ours, and not too old.
    #[must_use]
    pub const fn age_s(&self, now_unix_s: u64) -> u64 {
        now_unix_s.saturating_sub(self.unix_s)
    }
}

/// The keys under which nonces are issued and checked.
#[derive(Debug, Clone)]
pub struct NonceKeys {
    current: NonceKey,
    /// Nonces are checked with these as well.
    others: [Option<NonceKey>; 2],
}

#[derive(Clone)]
struct NonceKey {
    keyed: Keyed<8>,
    /// 4 bits that depend on the key: nodes with the same key number it alike, whenever they started.
    number: u8,
}

impl NonceKeys {
    /// Starts with one key of 32 random bytes. Workers and nodes that share it accept each other's nonces.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> NonceKeys {
        NonceKeys {
            current: NonceKey::new(key),
            others: [None, None],
        }
    }

    /// Issues nonces with the key of this epoch, and accepts those of the epochs before and after it. It is for servers
    /// that derive the same keys from the time and whose clocks differ.
    #[must_use]
    pub fn of_epochs(previous: &[u8; 32], current: &[u8; 32], next: &[u8; 32]) -> NonceKeys {
        NonceKeys {
            current: NonceKey::new(current),
            others: [Some(NonceKey::new(previous)), Some(NonceKey::new(next))],
        }
    }

    /// Issues nonces with a new key from now on. Nonces of the last key stay valid. Nonces of earlier keys do not.
    pub fn rotate(&mut self, key: &[u8; 32]) {
        let before = core::mem::replace(&mut self.current, NonceKey::new(key));
        self.others = [Some(before), None];
    }

    /// Writes a nonce for this client. `note` is 0 to 15, for the issuer's own use. Times are in seconds since 1970.
    pub fn issue(
        &self,
        features: SecurityFeatures,
        note: u8,
        client: SocketAddr,
        now_unix_s: u64,
        out: &mut [u8; LEN],
    ) {
        self.of_client(client)
            .issue(features, note, now_unix_s, out);
    }

    /// The contents of a nonce that a client has sent back. `None` if this server did not issue it, or issued it to
    /// another address, or with a key that is no longer valid. The caller decides whether it is too old.
    #[must_use]
    pub fn check(&self, nonce: &[u8], client: SocketAddr) -> Option<Issued> {
        self.check_or_issue(nonce, client).ok()
    }

    /// As [`check`](Self::check). If the nonce is not ours, returns an issuer for this client, which issues another
    /// nonce at little cost.
    ///
    /// # Errors
    /// The nonce is forged.
    pub fn check_or_issue(&self, nonce: &[u8], client: SocketAddr) -> Result<Issued, Issuer> {
        let Some((bits, body)) = split(nonce) else {
            return Err(self.of_client(client));
        };
        let number = body[0] & 0xF;
        let current = (self.current.number == number).then(|| self.of_client(client));
        if let Some(issued) = current.as_ref().and_then(|of| of.check(&bits, &body)) {
            return Ok(issued);
        }
        let others = self.others.iter().flatten();
        let mut others = others.filter(|key| key.number == number);
        if let Some(issued) = others.find_map(|key| key.of_client(&client).check(&bits, &body)) {
            return Ok(issued);
        }
        Err(current.unwrap_or_else(|| self.of_client(client)))
    }

    /// Issues nonces for this client.
    #[must_use]
    pub fn of_client(&self, client: SocketAddr) -> Issuer {
        self.current.of_client(&client)
    }
}

/// Issues nonces for one client.
pub struct Issuer {
    key: [u64; 2],
    number: u8,
}

impl Issuer {
    /// Writes a nonce: see [`NonceKeys::issue`].
    pub fn issue(
        &self,
        features: SecurityFeatures,
        note: u8,
        now_unix_s: u64,
        out: &mut [u8; LEN],
    ) {
        let bits = features.to_bits();
        let mut body = [0; BYTES];
        body[0] = note << 4 | self.number;
        body[1..=TIME_LEN].copy_from_slice(&now_unix_s.to_be_bytes()[8 - TIME_LEN..]);
        let mac = self.mac(&bits, &body);
        body[1 + TIME_LEN..].copy_from_slice(&mac);
        out[..COOKIE.len()].copy_from_slice(COOKIE);
        // Neither can fail: the slices are as long as the encodings.
        let _ = STANDARD.encode_slice(bits, &mut out[COOKIE.len()..BODY]);
        let _ = URL_SAFE_NO_PAD.encode_slice(body, &mut out[BODY..]);
    }

    fn check(&self, bits: &[u8; 3], body: &[u8; BYTES]) -> Option<Issued> {
        let is_ours: bool = self.mac(bits, body).ct_eq(&body[1 + TIME_LEN..]).into();
        let mut unix_s = [0; 8];
        unix_s[8 - TIME_LEN..].copy_from_slice(&body[1..=TIME_LEN]);
        is_ours.then(|| Issued {
            features: SecurityFeatures::of_bits(*bits),
            note: body[0] >> 4,
            unix_s: u64::from_be_bytes(unix_s),
        })
    }

    /// The MAC over features, note, key number and time.
    fn mac(&self, bits: &[u8; 3], body: &[u8; BYTES]) -> [u8; MAC_LEN] {
        let mut text = [0; MAC_TEXT];
        text[..3].copy_from_slice(bits);
        text[3..].copy_from_slice(&body[..=TIME_LEN]);
        let tag = siphash::tag(self.key, &text);
        let mut mac = [0; MAC_LEN];
        mac.copy_from_slice(&tag[..MAC_LEN]);
        mac
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.key);
    }
}

impl core::fmt::Debug for Issuer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Issuer")
    }
}

impl NonceKey {
    fn new(key: &[u8; 32]) -> NonceKey {
        let keyed = Keyed::new::<Sha256>(key);
        // No nonce's MAC has a block like this: its family is 4 or 6.
        let [first, ..] = keyed.block_tag::<Sha256>(&[0xFF; BLOCK]);
        NonceKey {
            keyed,
            number: first as u8 & 0xF,
        }
    }

    /// Issues and checks the nonces of one client.
    fn of_client(&self, client: &SocketAddr) -> Issuer {
        let mut block = [0; BLOCK];
        match client.ip() {
            IpAddr::V4(ip) => {
                block[0] = 4;
                block[1..5].copy_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                block[0] = 6;
                block[1..17].copy_from_slice(&ip.octets());
            }
        }
        block[17..19].copy_from_slice(&client.port().to_be_bytes());
        let [a, b, c, d, ..] = self.keyed.block_tag::<Sha256>(&block);
        let word = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        Issuer {
            key: [word(a, b), word(c, d)],
            number: self.number,
        }
    }
}

impl Drop for NonceKey {
    fn drop(&mut self) {
        self.keyed.zeroize();
    }
}

impl core::fmt::Debug for NonceKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "NonceKey({})", self.number)
    }
}

/// The feature bits and the decoded body of a nonce that looks like ours.
fn split(nonce: &[u8]) -> Option<([u8; 3], [u8; BYTES])> {
    let nonce: &[u8; LEN] = nonce.try_into().ok()?;
    if !nonce.starts_with(COOKIE) {
        return None;
    }
    let mut bits = [0; 3];
    let mut body = [0; BYTES];
    STANDARD
        .decode_slice(&nonce[COOKIE.len()..BODY], &mut bits)
        .ok()
        .filter(|&len| len == bits.len())?;
    URL_SAFE_NO_PAD
        .decode_slice(&nonce[BODY..], &mut body)
        .ok()?;
    Some((bits, body))
}
