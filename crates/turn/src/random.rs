//! Transaction IDs from a seed.
//!
//! RFC 8489 §5: a transaction ID must be cryptographically random. Only the transaction ID keeps an attacker off the
//! path from forging a response or a challenge. So the IDs come from a ChaCha20 keystream (RFC 8439 §2.3) whose key is
//! the seed.

use stun::TransactionId;

/// "expand 32-byte k", the constant of RFC 8439 §2.3.
const SIGMA: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];
/// Five transaction IDs of three words fit into a block of sixteen.
const IDS_PER_BLOCK: u8 = 5;

/// A stream of transaction IDs. The same seed gives the same stream.
pub(crate) struct Random {
    key: [u32; 8],
    counter: u64,
    block: [u32; 16],
    used: u8,
}

/// The seed stays out of logs.
impl std::fmt::Debug for Random {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Random")
    }
}

impl Random {
    pub(crate) fn new(seed: [u8; 32]) -> Random {
        let mut key = [0; 8];
        for (word, bytes) in key.iter_mut().zip(seed.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        Random {
            key,
            counter: 0,
            block: [0; 16],
            used: IDS_PER_BLOCK,
        }
    }

    /// A key that reveals nothing about the IDs, nor they about it.
    pub(crate) fn key(&mut self) -> [u8; 32] {
        let mut key = [0; 32];
        for bytes in key.chunks_mut(8) {
            bytes.copy_from_slice(&self.word().to_le_bytes());
        }
        key
    }

    /// A random number, for seeds of hash functions.
    pub(crate) fn word(&mut self) -> u64 {
        let TransactionId([b0, b1, b2, b3, b4, b5, b6, b7, ..]) = self.transaction_id();
        u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7])
    }

    /// The next ID; never the same one twice from one seed, as far as chance allows.
    pub(crate) fn transaction_id(&mut self) -> TransactionId {
        if self.used == IDS_PER_BLOCK {
            self.block = chacha20_block(&self.key, self.counter, 0);
            self.counter = self.counter.wrapping_add(1);
            self.used = 0;
        }
        let first = usize::from(self.used) * 3;
        self.used += 1;
        let mut id = [0; 12];
        for (bytes, word) in id
            .as_chunks_mut::<4>()
            .0
            .iter_mut()
            .zip(&self.block[first..])
        {
            *bytes = word.to_le_bytes();
        }
        TransactionId(id)
    }
}

fn chacha20_block(key: &[u32; 8], counter: u64, nonce: u64) -> [u32; 16] {
    let mut initial = [0; 16];
    initial[..4].copy_from_slice(&SIGMA);
    initial[4..12].copy_from_slice(key);
    initial[12] = counter as u32;
    initial[13] = (counter >> 32) as u32;
    initial[14] = nonce as u32;
    initial[15] = (nonce >> 32) as u32;
    let mut state = initial;
    for _ in 0..10 {
        quarter(&mut state, 0, 4, 8, 12);
        quarter(&mut state, 1, 5, 9, 13);
        quarter(&mut state, 2, 6, 10, 14);
        quarter(&mut state, 3, 7, 11, 15);
        quarter(&mut state, 0, 5, 10, 15);
        quarter(&mut state, 1, 6, 11, 12);
        quarter(&mut state, 2, 7, 8, 13);
        quarter(&mut state, 3, 4, 9, 14);
    }
    for (word, start) in state.iter_mut().zip(initial) {
        *word = word.wrapping_add(start);
    }
    state
}

fn quarter(state: &mut [u32; 16], a: usize, b: usize, c: usize, d: usize) {
    for (into, with, turned, by) in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)] {
        state[into] = state[into].wrapping_add(state[with]);
        state[turned] = (state[turned] ^ state[into]).rotate_left(by);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_block_function_is_that_of_rfc_8439() {
        // RFC 8439 §2.3.2: key 00 01 .. 1f, block counter 1, nonce 00000009 0000004a 00000000.
        let mut key = [0; 8];
        for (index, word) in key.iter_mut().enumerate() {
            let first = index as u32 * 4;
            *word = first | (first + 1) << 8 | (first + 2) << 16 | (first + 3) << 24;
        }
        let block = chacha20_block(&key, 0x0900_0000_0000_0001, 0x4a00_0000);
        assert_eq!(
            block,
            [
                0xe4e7_f110,
                0x1559_3bd1,
                0x1fdd_0f50,
                0xc471_20a3,
                0xc7f4_d1c7,
                0x0368_c033,
                0x9aaa_2204,
                0x4e6c_d4c3,
                0x4664_82d2,
                0x09aa_9f07,
                0x05d7_c214,
                0xa202_8bd9,
                0xd19c_12b5,
                0xb94e_16de,
                0xe883_d0cb,
                0x4e3c_50a2,
            ]
        );
    }

    #[test]
    fn no_transaction_id_comes_twice() {
        let mut random = Random::new([7; 32]);
        let mut seen = HashSet::new();
        for _ in 0..10_000 {
            assert!(seen.insert(random.transaction_id().0));
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_ids() {
        let mut one = Random::new([3; 32]);
        let mut two = Random::new([3; 32]);
        assert!((0..20).all(|_| one.transaction_id() == two.transaction_id()));
        assert_ne!(
            Random::new([4; 32]).transaction_id(),
            Random::new([3; 32]).transaction_id()
        );
    }
}
