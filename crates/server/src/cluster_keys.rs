//! Keys that the nodes of a cluster derive from one secret and the time. Nodes exchange nothing for this.
//!
//! | key | label | epoch | why |
//! |---|---|---|---|
//! | TURN nonces | `TURN nonce` | yes | A nonce lives for an hour at most. |
//! | mobility tickets | `mobility ticket` | yes, of a year | An allocation lives as long as its process. |
//! | tokens in Path and Record-Route | `SIP tokens` | yes, of a year | A dialog or a subscription may last for months. |
//! | hashes of addresses of record and phones, GRUUs | `SIP identities` | no | Stored ones are compared with later ones. |
//! | certificates for TLS between nodes | `node certificate` | yes, of 30 days | Fingerprints are published before the epoch begins. |
//! | what nodes tell each other | `cluster messages` | no | Receivers compare time stamps. |
//!
//! SIP nonces have a random key per process: nonce counts are kept per process, so a nonce of another node gets
//! `stale=true`.

use crate::handover::Key;
use sip::HashKey;
use sip_server::flow::TokenKeys;
use stun::HmacKey;
use stun::nonce::NonceKeys;
use turn::server::TicketKeys;

/// Seconds of an epoch: longer than the longest lifetime of a nonce (an hour), and than any difference of clocks that
/// can be tolerated.
const EPOCH_S: u64 = 86_400;

/// Seconds of an epoch of certificates: much longer than an engine may be away.
const NODE_EPOCH_S: u64 = 30 * 86_400;

/// Seconds of an epoch of mobility tickets and SIP tokens. RFC 8656 and RFC 3261 have no longest duration of
/// allocations and dialogs, so this is longer than any that is known. It ends together with an epoch of nonces.
const TOKEN_EPOCH_S: u64 = 365 * EPOCH_S;

/// RFC 5869 §3.1: a salt need not be secret. It keeps these keys apart from those of other programs with the same
/// secret.
const SALT: &[u8] = b"hairpin cluster 1";

const NONCES: &str = "TURN nonce";
const TICKETS: &str = "mobility ticket";
const SIP_TOKENS: &str = "SIP tokens";
const SIP_IDENTITIES: &str = "SIP identities";
const MESSAGES: &str = "cluster messages";
const NODE: &str = "node certificate";

/// The secret of the cluster is too short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the secret of the cluster has fewer than {} bytes: make one with: openssl rand -base64 32",
    ClusterKeys::MIN_SECRET
)]
pub struct ShortSecret;

/// Derives keys by HKDF-SHA256 (RFC 5869).
#[derive(Clone)]
pub struct ClusterKeys {
    extracted: HmacKey,
}

impl ClusterKeys {
    /// Bytes of the shortest secret: 24 random bytes in base64, or 16 in hexadecimal.
    pub const MIN_SECRET: usize = 32;

    /// For the nodes that have this secret.
    ///
    /// # Errors
    /// The secret is too short.
    pub fn new(secret: &[u8]) -> Result<ClusterKeys, ShortSecret> {
        match secret.len() < Self::MIN_SECRET {
            true => Err(ShortSecret),
            false => Ok(ClusterKeys::extract(SALT, secret)),
        }
    }

    /// RFC 5869 §2.2.
    fn extract(salt: &[u8], secret: &[u8]) -> ClusterKeys {
        let pseudorandom = HmacKey::sha256(salt).tag(secret);
        ClusterKeys {
            extracted: HmacKey::sha256(pseudorandom.as_bytes()),
        }
    }

    /// RFC 5869 §2.3, for 32 bytes: one block.
    fn expand(&self, info: &[u8]) -> Key {
        let mut text = info.to_vec();
        text.push(1);
        let mut key = [0; 32];
        key.copy_from_slice(self.extracted.tag(&text).as_bytes());
        key
    }

    fn lasting(&self, label: &str) -> Key {
        self.expand(label.as_bytes())
    }

    /// A label has no byte of zero, so no two of them and no two epochs make the same text.
    fn of_epoch(&self, label: &str, epoch: u64) -> Key {
        self.expand(&[label.as_bytes(), &[0], &epoch.to_be_bytes()].concat())
    }

    /// The epoch at this time.
    pub(crate) const fn epoch(unix_s: u64) -> u64 {
        unix_s / EPOCH_S
    }

    /// The keys of TURN nonces in this epoch.
    pub(crate) fn nonce_keys(&self, epoch: u64) -> NonceKeys {
        let [previous, current, next] = self.around(NONCES, epoch);
        NonceKeys::of_epochs(&previous, &current, &next)
    }

    /// The keys of the epoch before this one, of this one, and of the next one.
    fn around(&self, label: &str, epoch: u64) -> [Key; 3] {
        [epoch.wrapping_sub(1), epoch, epoch.wrapping_add(1)]
            .map(|epoch| self.of_epoch(label, epoch))
    }

    /// What the keys of nonces in this epoch and the one before are made of.
    pub(crate) fn nonce_seeds(&self, epoch: u64) -> Vec<Key> {
        let epochs = [epoch, epoch.wrapping_sub(1)];
        epochs.map(|epoch| self.of_epoch(NONCES, epoch)).to_vec()
    }

    /// The keys of mobility tickets at this time, for the allocations of the process that has these random bytes.
    pub(crate) fn ticket_keys(&self, unix_s: u64, process: &Key) -> TicketKeys {
        let keys = self.around(TICKETS, unix_s / TOKEN_EPOCH_S);
        TicketKeys::of_epochs(&keys, process)
    }

    /// The keys of the tokens in Path and Record-Route at this time.
    pub(crate) fn sip_tokens(&self, unix_s: u64) -> TokenKeys {
        let keys = self.around(SIP_TOKENS, unix_s / TOKEN_EPOCH_S);
        TokenKeys::of_epochs(keys.map(|key| HashKey::new(first_half(&key))))
    }

    /// The key of GRUUs, and of hashes of addresses of record and phones.
    pub(crate) fn sip_identities(&self) -> [u8; 16] {
        first_half(&self.lasting(SIP_IDENTITIES))
    }

    /// The epoch of certificates for TLS between nodes at this time.
    pub(crate) const fn node_epoch(unix_s: u64) -> u64 {
        unix_s / NODE_EPOCH_S
    }

    /// The private key of the certificate that a node has in this epoch.
    pub(crate) fn node_key(&self, node: &str, epoch: u64) -> Key {
        // The name is last, and what is in front of it has a fixed length, so no two nodes make the same text.
        let info = [NODE.as_bytes(), &[0], &epoch.to_be_bytes(), node.as_bytes()];
        self.expand(&info.concat())
    }

    /// The key of the MACs of what nodes publish and send each other.
    #[must_use]
    pub fn messages(&self) -> Key {
        self.lasting(MESSAGES)
    }
}

fn first_half(key: &Key) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&key[..16]);
    half
}

impl std::fmt::Debug for ClusterKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterKeys(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stun::nonce::{LEN, SecurityFeatures};

    const SECRET: &[u8] = b"a secret of 32 bytes for a test.";

    fn hex(text: &str) -> Vec<u8> {
        let pairs = text.as_bytes().chunks(2);
        let pairs = pairs.map(|pair| std::str::from_utf8(pair).expect("ASCII"));
        pairs
            .map(|pair| u8::from_str_radix(pair, 16).expect("hexadecimal"))
            .collect()
    }

    #[test]
    fn keys_are_derived_as_in_rfc5869_appendix_a_1() {
        let keys = ClusterKeys::extract(&hex("000102030405060708090a0b0c"), &[0x0b; 22]);
        let key = keys.expand(&hex("f0f1f2f3f4f5f6f7f8f9"));
        // The vector has 42 octets; these are the first 32.
        let expected = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf";
        assert_eq!(key.to_vec(), hex(expected));
    }

    #[test]
    fn a_short_secret_is_refused_and_no_key_is_that_of_another_purpose() {
        assert_eq!(ClusterKeys::new(&SECRET[1..]).err(), Some(ShortSecret));
        let keys = ClusterKeys::new(SECRET).expect("it is long enough");
        let other = ClusterKeys::new(b"another secret of 32 bytes......").expect("likewise");
        let mut all = vec![keys.messages(), keys.lasting(SIP_IDENTITIES)];
        all.extend([other.lasting(SIP_IDENTITIES), other.messages()]);
        for label in [TICKETS, SIP_TOKENS] {
            all.extend(keys.around(label, 7));
            all.extend(other.around(label, 7));
        }
        all.extend([keys.node_key("a", 7), keys.node_key("b", 7)]);
        all.extend([keys.node_key("a", 8), keys.node_key("", 7)]);
        all.extend(keys.nonce_seeds(7));
        all.extend(keys.nonce_seeds(9));
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert!(!format!("{keys:?}").contains("secret"));
    }

    /// Whether a node accepts a nonce, if both read the time from their own clocks.
    fn accepts(issued_unix_s: u64, checked_unix_s: u64) -> bool {
        let node = |secret, unix_s| {
            let keys = ClusterKeys::new(secret).expect("it is long enough");
            keys.nonce_keys(ClusterKeys::epoch(unix_s))
        };
        let client = "192.0.2.1:4000".parse().expect("an address");
        let mut nonce = [0; LEN];
        let features = SecurityFeatures::default();
        node(SECRET, issued_unix_s).issue(features, 3, client, issued_unix_s, &mut nonce);
        let stranger: &[u8] = b"another secret of 32 bytes......";
        assert_eq!(node(stranger, checked_unix_s).check(&nonce, client), None);
        let issued = node(SECRET, checked_unix_s).check(&nonce, client);
        issued.is_some_and(|issued| issued.unix_s == issued_unix_s && issued.note == 3)
    }

    #[test]
    fn a_nonce_is_valid_on_every_node_also_around_the_end_of_an_epoch() {
        let end = 20_000 * EPOCH_S;
        let hour = 3_600;
        for (issued, checked) in [
            (end + 100, end + 100 + hour),
            (end - 1, end),
            (end - 1, end - 1 + hour),
            // The clock of the issuer is a minute ahead, or behind.
            (end + 30, end - 30),
            (end - 30, end + 30),
            // The last nonce of an epoch, for an epoch.
            (end - 1, end + EPOCH_S - 1),
        ] {
            assert!(accepts(issued, checked), "{issued} {checked}");
        }
        assert!(!accepts(end - 1, end + EPOCH_S));
        assert!(!accepts(end + EPOCH_S, end - 1));
    }
}
