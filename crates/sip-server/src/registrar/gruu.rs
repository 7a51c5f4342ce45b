//! GRUUs (RFC 5627): URIs that lead to one instance of a user agent.
//!
//! A public GRUU is the address of record with the instance in `gr` (RFC 5627 §A.1). A temporary one hides both:
//!
//! ```text
//! tgruu.  distinguisher  encrypted: key of the address, number of the instance  MAC
//!             80                    64                  64                      64 bits, in base64
//! ```
//!
//! The number is new whenever the temporary GRUUs of an instance become invalid. It is stored in the bindings. So
//! nothing is stored for each GRUU, and a GRUU whose last binding has ended leads nowhere.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sip::HashKey;
use sip::uri::unescape;

use crate::AorKey;

/// What the user of a temporary GRUU begins with.
const PREFIX: &[u8] = b"tgruu.";
const DISTINGUISHER: usize = 10;
const LEN: usize = DISTINGUISHER + 8 + 8 + 8;
const DIGITS: usize = (LEN * 4).div_ceil(3);
/// Bytes of the user of a temporary GRUU.
pub(super) const TEMP_USER: usize = PREFIX.len() + DIGITS;

/// Makes and reads temporary GRUUs.
#[derive(Clone, Debug)]
pub(super) struct TempGruus {
    /// The same in all workers and runs.
    cipher: HashKey,
    mac: HashKey,
    /// The key of this worker in this run: its results are never the same twice.
    unique: HashKey,
    count: u64,
}

impl TempGruus {
    /// `key` is that of all workers and runs, `seed` random.
    pub(super) fn new(key: HashKey, seed: u64) -> TempGruus {
        let key = key.derive(5627);
        TempGruus {
            cipher: key.derive(1),
            mac: key.derive(2),
            unique: key.derive(3).derive(seed),
            count: 0,
        }
    }

    /// A number that was never given before, and is not 0.
    pub(super) fn unique(&mut self) -> u64 {
        self.count += 1;
        self.unique.mac(&self.count.to_le_bytes()).max(1)
    }

    /// Writes the user of the temporary GRUU with this number, for the address with this key. `distinguisher` is one of
    /// [`TempGruus::unique`]; with the same one the same GRUU comes out.
    pub(super) fn write(&self, distinguisher: u64, key: AorKey, gruu: u64) -> [u8; TEMP_USER] {
        let mut bytes = [0; LEN];
        let (first, rest) = bytes.split_at_mut(DISTINGUISHER);
        let parts = [distinguisher.to_be_bytes(), gruu.to_be_bytes()].concat();
        // Another one for each address and instance of an answer, or equal ciphertexts would show what they have in
        // common.
        let wide = self.unique.derive(5).mac(&parts).to_be_bytes();
        first[..8].copy_from_slice(&wide);
        first[8..].copy_from_slice(&self.unique.derive(6).mac(&parts).to_be_bytes()[..2]);
        let encrypted = self.crypt(first, [key.0, gruu]);
        rest[..8].copy_from_slice(&encrypted[0].to_be_bytes());
        rest[8..16].copy_from_slice(&encrypted[1].to_be_bytes());
        let (signed, mac) = bytes.split_at_mut(LEN - 8);
        mac.copy_from_slice(&self.mac.mac(signed).to_be_bytes());
        let mut user = [0; TEMP_USER];
        let (prefix, digits) = user.split_at_mut(PREFIX.len());
        prefix.copy_from_slice(PREFIX);
        // The room is exactly that of the digits.
        let _ = URL_SAFE_NO_PAD.encode_slice(bytes, digits);
        user
    }

    /// The key of the address and the number of a temporary GRUU with this user; `None` if it is not one of ours.
    pub(super) fn read(&self, user: &[u8]) -> Option<(AorKey, u64)> {
        // RFC 3261 §19.1.4: a user part with an escape is the same user part.
        let mut plain = [0; TEMP_USER];
        let digits = unescape(user, &mut plain)?.strip_prefix(PREFIX)?;
        // The decoder asks for room for whole groups of digits.
        let mut bytes = [0; DIGITS];
        let len = URL_SAFE_NO_PAD.decode_slice(digits, &mut bytes).ok()?;
        let (signed, mac) = bytes.get(..len)?.split_last_chunk::<8>()?;
        if len != LEN || self.mac.mac(signed).to_be_bytes() != *mac {
            return None;
        }
        let (first, rest) = signed.split_at(DISTINGUISHER);
        let (key, gruu) = rest.split_first_chunk::<8>()?;
        let encrypted = [*key, gruu.try_into().ok()?].map(u64::from_be_bytes);
        let [key, gruu] = self.crypt(first, encrypted);
        Some((AorKey(key), gruu))
    }

    /// A stream cipher of two words: the keyed function of the distinguisher and a count.
    fn crypt(&self, distinguisher: &[u8], words: [u64; 2]) -> [u64; 2] {
        let mut input = [0; DISTINGUISHER + 1];
        input[..DISTINGUISHER].copy_from_slice(distinguisher);
        let mut count = 0;
        words.map(|word| {
            input[DISTINGUISHER] = count;
            count += 1;
            word ^ self.cipher.mac(&input)
        })
    }
}

/// Writes an instance as the value of `gr`, with escapes for characters that `gr` does not allow; `None` if `buffer` is
/// too short.
pub(crate) fn escape_instance<'b>(instance: &[u8], buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    let mut len = 0;
    for &byte in instance {
        let is_plain = byte.is_ascii_alphanumeric() || b"-_.!~*'()[]/:&+$".contains(&byte);
        if is_plain {
            *buffer.get_mut(len)? = byte;
            len += 1;
        } else {
            const HEX: &[u8; 16] = b"0123456789ABCDEF";
            let digit = |nibble: u8| HEX[usize::from(nibble & 0xF)];
            let escape = [b'%', digit(byte >> 4), digit(byte)];
            buffer.get_mut(len..len + 3)?.copy_from_slice(&escape);
            len += 3;
        }
    }
    buffer.get(..len)
}

/// Whether two instances are equal (RFC 5626 §4.1). URNs compare without regard to case, except where the namespace
/// decides (RFC 2141 §5). Those of `uuid` always compare without regard to case (RFC 4122 §3).
pub(crate) fn is_same_instance(one: &[u8], other: &[u8]) -> bool {
    let namespace = |urn: &[u8]| {
        let scheme = urn.get(..4)?.eq_ignore_ascii_case(b"urn:").then_some(4)?;
        let colon = urn.get(scheme..)?.iter().position(|&byte| byte == b':')?;
        Some(scheme + colon + 1)
    };
    if one == other || one.len() != other.len() {
        return one == other;
    }
    match namespace(one) {
        None => false,
        Some(end) => {
            let (name, specific) = one.split_at(end);
            let (other_name, other_specific) = other.split_at(end);
            name.eq_ignore_ascii_case(other_name)
                && (specific == other_specific
                    || name.eq_ignore_ascii_case(b"urn:uuid:")
                        && specific.eq_ignore_ascii_case(other_specific))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_temporary_gruus_are_equal_or_show_what_they_share_rfc5627_5_1() {
        let mut gruus = TempGruus::new(HashKey::new([1; 16]), 7);
        let mut other_run = TempGruus::new(HashKey::new([1; 16]), 8);
        let mut seen = HashSet::new();
        for _ in 0..1000 {
            for gruus in [&mut gruus, &mut other_run] {
                let distinguisher = gruus.unique();
                let user = gruus.write(distinguisher, AorKey(5), 6);
                assert!(seen.insert(user));
                // Nothing of two GRUUs for one instance is equal but what they begin with.
                let digits = &user[PREFIX.len()..];
                for piece in digits.chunks(8).take(5) {
                    assert!(
                        seen.iter()
                            .filter(|user| contains(&user[..], piece))
                            .count()
                            == 1
                    );
                }
            }
        }
    }

    fn contains(text: &[u8], piece: &[u8]) -> bool {
        text.windows(piece.len()).any(|window| window == piece)
    }

    #[test]
    fn a_temporary_gruu_is_read_by_another_run_and_not_if_it_was_changed() {
        let mut gruus = TempGruus::new(HashKey::new([1; 16]), 7);
        let distinguisher = gruus.unique();
        let user = gruus.write(distinguisher, AorKey(5), 6);
        let later = TempGruus::new(HashKey::new([1; 16]), 8);
        assert_eq!(later.read(&user), Some((AorKey(5), 6)));
        for at in 0..user.len() {
            let mut changed = user;
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(later.read(&changed), None, "{at}");
        }
        assert_eq!(later.read(&user[..user.len() - 1]), None);
        let other_key = TempGruus::new(HashKey::new([2; 16]), 7);
        assert_eq!(other_key.read(&user), None);
    }

    #[test]
    fn instances_compare_as_urns_rfc5626_4_1() {
        let same = |one: &str, other: &str| is_same_instance(one.as_bytes(), other.as_bytes());
        assert!(same("urn:uuid:00AA", "URN:UUID:00aa"));
        assert!(same("urn:x:Aa", "URN:X:Aa"));
        assert!(!same("urn:x:Aa", "urn:x:aa"));
        assert!(!same("urn:uuid:00AA", "urn:uuid:00AB"));
        assert!(!same("x", "X"));
        assert!(!same("urn:uuid:1", "urn:uuid:12"));
    }

    #[test]
    fn an_instance_is_escaped_where_it_must_be() {
        let mut buffer = [0; 32];
        let text = escape_instance(b"urn:x:a b;\"", &mut buffer);
        assert_eq!(text, Some(&b"urn:x:a%20b%3B%22"[..]));
        assert_eq!(escape_instance(b"a b", &mut [0; 4]), None);
    }
}
