//! Nonces that the server need not remember.
//!
//! A nonce proves its own origin: it carries the time it was issued and a MAC over that time, the client's address and
//! port, and the advertised features. So a flood of unauthenticated requests costs no memory, any worker can check
//! what another has issued, and a nonce stolen on the wire is worth nothing from another address. RFC 8489 §9.2.4 asks
//! for the last: no nonce may serve two addresses or ports.
//!
//! ```text
//! obMatJos2   wAAA           xxxxxxxxxxxxxxxxxxxxxxx
//! '--------' '--'            '---------------------'
//!  RFC 8489   24 feature bits, base64     base64url( 5 bytes unix seconds, 12 bytes of HMAC-SHA256 )
//! ```
//!
//! 36 bytes in all, a multiple of four, and short on purpose: with it a 401 stays below three times the size of the
//! request that provoked it. Two keys are good at a time, so that a rotation sends nobody away; the second rotation
//! makes everything from before the first one worthless.

use core::net::{IpAddr, SocketAddr};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

use crate::HmacKey;

/// RFC 8489 §9.2: what every nonce of this RFC starts with.
const COOKIE: &[u8; 9] = b"obMatJos2";
/// Base64 characters of the feature bits.
const FEATURES_LEN: usize = 4;
/// Bytes of the time stamp: seconds since 1970, enough for 34 thousand years.
const TIME_LEN: usize = 5;
/// Bytes of the MAC: 96 bits cannot be guessed online, and offline there is nothing to guess against.
const MAC_LEN: usize = 12;
/// Base64 characters of time and MAC.
const BODY_LEN: usize = ((TIME_LEN + MAC_LEN) * 8).div_ceil(6);
/// Where the body starts.
const BODY: usize = COOKIE.len() + FEATURES_LEN;

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
        Some(SecurityFeatures {
            password_algorithms: bits[0] & Self::PASSWORD_ALGORITHMS != 0,
            username_anonymity: bits[0] & Self::USERNAME_ANONYMITY != 0,
        })
    }
}

/// What a nonce is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NonceCheck {
    /// Issued by us, to this client, not too long ago.
    Valid,
    /// Issued by us to this client, but too long ago: answer 438 (RFC 8489 §9.2.4).
    Stale,
    /// Not issued by us, or to another address, or under a key that is gone: answer 438 too, and count it.
    Forged,
}

/// The keys under which nonces are issued and checked.
#[derive(Debug, Clone)]
pub struct NonceKeys {
    current: HmacKey,
    previous: Option<HmacKey>,
}

impl NonceKeys {
    /// Starts with one key of 32 random bytes. Workers and nodes that share it honour each other's nonces.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> NonceKeys {
        NonceKeys {
            current: HmacKey::sha256(key),
            previous: None,
        }
    }

    /// Issues under a new key from now on; the key so far is still honoured, the one before no more.
    pub fn rotate(&mut self, key: &[u8; 32]) {
        self.previous = Some(core::mem::replace(&mut self.current, HmacKey::sha256(key)));
    }

    /// Writes a nonce for this client. Times are in seconds since 1970.
    pub fn issue(
        &self,
        features: SecurityFeatures,
        client: SocketAddr,
        now_unix_s: u64,
        out: &mut [u8; LEN],
    ) {
        let bits = features.to_bits();
        let time = time_bytes(now_unix_s);
        let tag = self.current.tag(&mac_input(&bits, &client, &time));
        let mut body = [0; TIME_LEN + MAC_LEN];
        body[..TIME_LEN].copy_from_slice(&time);
        body[TIME_LEN..].copy_from_slice(&tag.as_bytes()[..MAC_LEN]);
        out[..COOKIE.len()].copy_from_slice(COOKIE);
        // Neither can fail: the slices are as long as the encodings.
        let _ = STANDARD.encode_slice(bits, &mut out[COOKIE.len()..BODY]);
        let _ = URL_SAFE_NO_PAD.encode_slice(body, &mut out[BODY..]);
    }

    /// Checks what a client sent back. `max_age_s` is how long a nonce is good, in seconds.
    #[must_use]
    pub fn check(
        &self,
        nonce: &[u8],
        client: SocketAddr,
        now_unix_s: u64,
        max_age_s: u64,
    ) -> NonceCheck {
        let Some((bits, body)) = split(nonce) else {
            return NonceCheck::Forged;
        };
        let (time, mac) = body.split_at(TIME_LEN);
        let mut wide = [0; 8];
        wide[8 - TIME_LEN..].copy_from_slice(time);
        let issued = u64::from_be_bytes(wide);
        let input = mac_input(&bits, &client, &time_bytes(issued));
        let is_ours = self.current.tag(&input).starts_with(mac)
            || self
                .previous
                .as_ref()
                .is_some_and(|key| key.tag(&input).starts_with(mac));
        match is_ours {
            false => NonceCheck::Forged,
            // A clock that was set back makes a nonce of the future: it is ours, and not too old.
            true if now_unix_s.saturating_sub(issued) > max_age_s => NonceCheck::Stale,
            true => NonceCheck::Valid,
        }
    }
}

/// The feature bits and the decoded body of a nonce that looks like ours.
fn split(nonce: &[u8]) -> Option<([u8; 3], [u8; TIME_LEN + MAC_LEN])> {
    let nonce: &[u8; LEN] = nonce.try_into().ok()?;
    if !nonce.starts_with(COOKIE) {
        return None;
    }
    let mut bits = [0; 3];
    let mut body = [0; TIME_LEN + MAC_LEN];
    STANDARD
        .decode_slice(&nonce[COOKIE.len()..BODY], &mut bits)
        .ok()
        .filter(|&len| len == bits.len())?;
    URL_SAFE_NO_PAD
        .decode_slice(&nonce[BODY..], &mut body)
        .ok()?;
    Some((bits, body))
}

/// The low bytes of the time.
fn time_bytes(unix_s: u64) -> [u8; TIME_LEN] {
    let mut time = [0; TIME_LEN];
    time.copy_from_slice(&unix_s.to_be_bytes()[8 - TIME_LEN..]);
    time
}

/// Bytes of the MAC's input: features, family, address, port, time. Less than a block, so a MAC is two compressions.
const MAC_INPUT_LEN: usize = 3 + 1 + 16 + 2 + TIME_LEN;

/// What the MAC covers.
fn mac_input(bits: &[u8; 3], client: &SocketAddr, time: &[u8; TIME_LEN]) -> [u8; MAC_INPUT_LEN] {
    let mut input = [0; MAC_INPUT_LEN];
    input[..3].copy_from_slice(bits);
    match client.ip() {
        IpAddr::V4(ip) => {
            input[3] = 4;
            input[4..8].copy_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            input[3] = 6;
            input[4..20].copy_from_slice(&ip.octets());
        }
    }
    input[20..22].copy_from_slice(&client.port().to_be_bytes());
    input[22..].copy_from_slice(time);
    input
}
