//! SipHash (Aumasson and Bernstein, 2012): a keyed function of bytes whose values nobody without the key can foresee.
//!
//! It serves twice. With 2 and 4 rounds and 64 bits, it is the MAC in a branch. With 1 and 3 rounds and 128 bits, it is
//! the fingerprint of a server transaction. So the engine need not store the bytes of the key, and a client cannot
//! choose branches that collide.

/// The key of both uses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey {
    k0: u64,
    k1: u64,
}

/// Keys stay out of logs.
impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey")
    }
}

impl HashKey {
    /// A key from 16 random bytes.
    #[must_use]
    pub fn new(bytes: [u8; 16]) -> HashKey {
        let [low, high] = halves(bytes);
        HashKey { k0: low, k1: high }
    }

    /// A key for another purpose, which reveals nothing about this one.
    #[must_use]
    pub fn derive(self, purpose: u64) -> HashKey {
        let mut hasher = Hasher::<2, 4>::new_128(self);
        hasher.write(&purpose.to_le_bytes());
        let wide = hasher.finish_128();
        HashKey {
            k0: wide as u64,
            k1: (wide >> 64) as u64,
        }
    }

    /// The MAC of `bytes`: SipHash-2-4, 64 bits.
    #[must_use]
    pub fn mac(self, bytes: &[u8]) -> u64 {
        let mut hasher = Hasher::<2, 4>::new(self);
        hasher.write(bytes);
        hasher.finish()
    }

    /// A hasher for a fingerprint of 128 bits: SipHash-1-3.
    #[must_use]
    pub(crate) fn fingerprint(self) -> Hasher<1, 3> {
        Hasher::new_128(self)
    }
}

fn halves(bytes: [u8; 16]) -> [u64; 2] {
    let wide = u128::from_le_bytes(bytes);
    [wide as u64, (wide >> 64) as u64]
}

/// SipHash with `C` rounds per word and `D` at the end, fed piece by piece.
#[derive(Clone, Debug)]
pub(crate) struct Hasher<const C: usize, const D: usize> {
    v: [u64; 4],
    /// Bytes of a word that is not full yet, the first in the lowest place.
    pending: u64,
    filled: u32,
    length: u8,
}

impl<const C: usize, const D: usize> Hasher<C, D> {
    pub(crate) const fn new(key: HashKey) -> Self {
        Hasher {
            v: [
                key.k0 ^ 0x736f_6d65_7073_6575,
                key.k1 ^ 0x646f_7261_6e64_6f6d,
                key.k0 ^ 0x6c79_6765_6e65_7261,
                key.k1 ^ 0x7465_6462_7974_6573,
            ],
            pending: 0,
            filled: 0,
            length: 0,
        }
    }

    /// For a result of 128 bits.
    pub(crate) const fn new_128(key: HashKey) -> Self {
        let mut hasher = Self::new(key);
        hasher.v[1] ^= 0xee;
        hasher
    }

    /// Feeds bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.feed(bytes, |word| word);
    }

    /// Adds a field to the hash: its length, and its bytes as whole words without shifts. The length makes "ab", "c"
    /// differ from "a", "bc". What was fed before must be whole words as well.
    pub(crate) fn field(&mut self, bytes: &[u8]) {
        self.words(bytes, |word| word);
    }

    /// The same of a token or host, whose letters mean the same in either case: every byte has bit 0x20 set. That makes
    /// a few odd pairs equal as well (`@` and a backquote), which no token and no host contains both of.
    pub(crate) fn folded_field(&mut self, bytes: &[u8]) {
        self.words(bytes, |word| word | 0x2020_2020_2020_2020);
    }

    /// Feeds a number, as a whole word.
    pub(crate) fn number(&mut self, number: u64) {
        debug_assert_eq!(self.filled, 0, "whole words alone");
        self.length = self.length.wrapping_add(8);
        self.compress(number);
    }

    #[inline(always)]
    fn words(&mut self, bytes: &[u8], map: impl Fn(u64) -> u64) {
        self.number(bytes.len() as u64);
        let (words, tail) = bytes.as_chunks::<8>();
        for word in words {
            self.number(map(u64::from_le_bytes(*word)));
        }
        if tail.is_empty() {
            return;
        }
        self.number(match bytes.last_chunk::<8>() {
            Some(last) => {
                let above = 64 - 8 * tail.len() as u32;
                map(u64::from_le_bytes(*last)) >> above
            }
            None => mapped(tail, &map),
        });
    }

    fn feed(&mut self, bytes: &[u8], map: impl Fn(u64) -> u64) {
        self.length = self.length.wrapping_add(bytes.len() as u8);
        let mut rest = bytes;
        if self.filled != 0 {
            let room = 8 - self.filled as usize;
            let (head, tail) = rest.split_at(rest.len().min(room));
            self.pending |= mapped(head, &map) << (8 * self.filled);
            self.filled += head.len() as u32;
            if self.filled < 8 {
                return;
            }
            let word = self.pending;
            self.compress(word);
            rest = tail;
        }
        let (words, tail) = rest.as_chunks::<8>();
        for word in words {
            self.compress(map(u64::from_le_bytes(*word)));
        }
        self.pending = mapped(tail, &map);
        self.filled = tail.len() as u32;
    }

    #[inline]
    fn compress(&mut self, word: u64) {
        self.v[3] ^= word;
        for _ in 0..C {
            self.round();
        }
        self.v[0] ^= word;
    }

    #[inline]
    fn round(&mut self) {
        let [mut v0, mut v1, mut v2, mut v3] = self.v;
        v0 = v0.wrapping_add(v1);
        v1 = v1.rotate_left(13) ^ v0;
        v0 = v0.rotate_left(32);
        v2 = v2.wrapping_add(v3);
        v3 = v3.rotate_left(16) ^ v2;
        v0 = v0.wrapping_add(v3);
        v3 = v3.rotate_left(21) ^ v0;
        v2 = v2.wrapping_add(v1);
        v1 = v1.rotate_left(17) ^ v2;
        v2 = v2.rotate_left(32);
        self.v = [v0, v1, v2, v3];
    }

    fn absorb_last_word(&mut self) {
        let word = self.pending | u64::from(self.length) << 56;
        self.compress(word);
    }

    fn squeeze(&mut self) -> u64 {
        for _ in 0..D {
            self.round();
        }
        self.v[0] ^ self.v[1] ^ self.v[2] ^ self.v[3]
    }

    /// The 64-bit result.
    pub(crate) fn finish(mut self) -> u64 {
        self.absorb_last_word();
        self.v[2] ^= 0xff;
        self.squeeze()
    }

    /// The 128-bit result, for a hasher made with [`Hasher::new_128`].
    pub(crate) fn finish_128(mut self) -> u128 {
        self.absorb_last_word();
        self.v[2] ^= 0xee;
        let low = self.squeeze();
        self.v[1] ^= 0xdd;
        let high = self.squeeze();
        u128::from(high) << 64 | u128::from(low)
    }
}

/// Fewer than eight bytes as the low part of a word, mapped; the bytes above are zero.
fn mapped(bytes: &[u8], map: &impl Fn(u64) -> u64) -> u64 {
    let mut word = [0; 8];
    for (place, byte) in word.iter_mut().zip(bytes) {
        *place = *byte;
    }
    let mask = if bytes.len() >= 8 {
        u64::MAX
    } else {
        (1 << (8 * bytes.len())) - 1
    };
    map(u64::from_le_bytes(word)) & mask
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> HashKey {
        HashKey::new(std::array::from_fn(|index| index as u8))
    }

    #[test]
    fn the_64_bit_value_is_that_of_the_paper() {
        // Appendix A of the paper: key 00 01 .. 0f, message 00 01 .. 0e.
        let message: Vec<u8> = (0..15).collect();
        assert_eq!(key().mac(&message), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn the_128_bit_value_is_that_of_the_reference_code() {
        let bytes = Hasher::<2, 4>::new_128(key()).finish_128().to_le_bytes();
        let expected = [
            0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55,
            0x02, 0x93,
        ];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn pieces_give_what_the_whole_gives() {
        let message: Vec<u8> = (0..100).collect();
        for cut in 0..100 {
            let (one, two) = message.split_at(cut);
            let mut whole = key().fingerprint();
            whole.write(&message);
            let mut pieces = key().fingerprint();
            pieces.write(one);
            pieces.write(two);
            assert_eq!(whole.finish_128(), pieces.finish_128());
        }
    }

    #[test]
    fn folded_letters_are_equal_in_either_case_whatever_their_number() {
        let of = |token: &[u8]| {
            let mut hasher = key().fingerprint();
            hasher.folded_field(token);
            hasher.finish_128()
        };
        let (one, other) = (b"z9hG4bKAbCdEfGhIjK", b"Z9HG4BKaBcDeFgHiJk");
        for length in 1..=one.len() {
            assert_eq!(of(&one[..length]), of(&other[..length]), "{length}");
            let mut third = one[..length].to_vec();
            third[length - 1] ^= 1;
            assert_ne!(of(&one[..length]), of(&third), "{length}");
        }
    }

    #[test]
    fn fields_differ_wherever_they_are_parted_and_padded() {
        let of = |fields: &[&[u8]]| {
            let mut hasher = key().fingerprint();
            fields.iter().for_each(|field| hasher.field(field));
            hasher.finish_128()
        };
        let bytes = [0; 24];
        let mut seen = std::collections::HashSet::new();
        for whole in 0..=bytes.len() {
            for cut in 0..=whole {
                let (one, two) = bytes[..whole].split_at(cut);
                assert!(seen.insert(of(&[one, two])), "{cut} of {whole}");
            }
        }
    }

    #[test]
    fn derived_keys_differ_from_one_another() {
        assert_ne!(key().derive(1), key().derive(2));
        assert_ne!(key().derive(1), key());
    }
}
