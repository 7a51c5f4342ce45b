//! Masking (RFC 6455 §5.3, §10.3). It prevents attacks on intermediaries that misinterpret a client's bytes as another
//! protocol.

use sha1::{Digest as _, Sha1};

/// XORs `bytes` with the key. `phase` is the number of payload bytes of the frame before `bytes`.
pub(super) fn apply(bytes: &mut [u8], key: [u8; 4], phase: usize) {
    let mut turned = key;
    turned.rotate_left(phase % 4);
    let [a, b, c, d] = turned;
    let word = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for bytes in words {
        *bytes = (u64::from_ne_bytes(*bytes) ^ word).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(turned.iter().cycle()) {
        *byte ^= key;
    }
}

/// The masking keys of a client. The author of the payload must not be able to predict them, so they are hashes of a
/// secret seed and a counter.
#[derive(Clone)]
pub(super) struct Keys {
    seed: [u8; 16],
    next: u64,
}

impl Keys {
    pub(super) const fn new(seed: [u8; 16]) -> Keys {
        Keys { seed, next: 0 }
    }

    pub(super) fn next(&mut self) -> [u8; 4] {
        let hash = Sha1::new()
            .chain_update(self.seed)
            .chain_update(self.next.to_be_bytes())
            .finalize();
        self.next += 1;
        [hash[0], hash[1], hash[2], hash[3]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_mask_in_words_is_a_mask_byte_by_byte(
            bytes in prop::collection::vec(any::<u8>(), 0..100), key in any::<[u8; 4]>(), phase in 0..9_usize
        ) {
            let expected: Vec<u8> = bytes.iter().enumerate().map(|(at, byte)| byte ^ key[(at + phase) % 4]).collect();
            let mut masked = bytes.clone();
            apply(&mut masked, key, phase);
            prop_assert_eq!(masked, expected);
        }
    }

    #[test]
    fn keys_differ_from_frame_to_frame_and_from_seed_to_seed() {
        let (mut one, mut other) = (Keys::new([1; 16]), Keys::new([2; 16]));
        let keys = [one.next(), one.next(), other.next(), other.next()];
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(key));
        }
    }
}
