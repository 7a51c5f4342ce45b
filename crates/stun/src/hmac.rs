//! HMAC over the compression functions themselves (RFC 2104).
//!
//! The first block of both hashes depends on the key only, so a key is kept as the two states after it. Per message,
//! only the message's own blocks and one block for the outer hash remain. A Refresh of 130 bytes requires four
//! compressions and copies only its first and its last block.

/// Bytes of a block, of SHA-1 and SHA-256 alike.
pub(crate) const BLOCK: usize = 64;
/// Bytes of the bit count at the end of the last block.
const COUNT: usize = 8;

/// One compression function with its state of `N` words.
pub(crate) trait Hash<const N: usize> {
    /// The state before any input.
    const INITIAL: [u32; N];

    /// Hashes whole blocks.
    fn compress(state: &mut [u32; N], blocks: &[[u8; BLOCK]]);
}

/// SHA-1.
pub(crate) struct Sha1;

impl Hash<5> for Sha1 {
    const INITIAL: [u32; 5] = [
        0x6745_2301,
        0xEFCD_AB89,
        0x98BA_DCFE,
        0x1032_5476,
        0xC3D2_E1F0,
    ];

    #[inline]
    fn compress(state: &mut [u32; 5], blocks: &[[u8; BLOCK]]) {
        sha1::block_api::compress(state, blocks);
    }
}

/// SHA-256.
pub(crate) struct Sha256;

impl Hash<8> for Sha256 {
    const INITIAL: [u32; 8] = [
        0x6A09_E667,
        0xBB67_AE85,
        0x3C6E_F372,
        0xA54F_F53A,
        0x510E_527F,
        0x9B05_688C,
        0x1F83_D9AB,
        0x5BE0_CD19,
    ];

    #[inline]
    fn compress(state: &mut [u32; 8], blocks: &[[u8; BLOCK]]) {
        sha2::block_api::compress256(state, blocks);
    }
}

/// A prepared key: the hash states after the inner and the outer padding.
#[derive(Clone)]
pub(crate) struct Keyed<const N: usize> {
    inner: [u32; N],
    outer: [u32; N],
}

impl<const N: usize> Keyed<N> {
    /// Prepares HMAC (RFC 2104) for a key of any length.
    pub(crate) fn new<H: Hash<N>>(key: &[u8]) -> Self {
        let mut block = [0; BLOCK];
        match block.get_mut(..key.len()) {
            Some(start) => start.copy_from_slice(key),
            // RFC 2104 §2: a key longer than a block is hashed first.
            None => write_words(&mut block, &digest::<H, N>(key)),
        }
        let mut keyed = Keyed {
            inner: H::INITIAL,
            outer: H::INITIAL,
        };
        H::compress(&mut keyed.inner, &[block.map(|byte| byte ^ 0x36)]);
        H::compress(&mut keyed.outer, &[block.map(|byte| byte ^ 0x5C)]);
        keyed
    }

    /// The HMAC of `text`.
    #[inline]
    pub(crate) fn tag<H: Hash<N>>(&self, text: &[u8]) -> [u32; N] {
        let mut state = self.inner;
        absorb::<H, N>(&mut state, text, BLOCK + text.len());
        self.close::<H>(&state)
    }

    /// The chaining value after one more block: a pseudorandom function of blocks, as long as nothing else is made with
    /// this key.
    #[inline]
    pub(crate) fn block_tag<H: Hash<N>>(&self, block: &[u8; BLOCK]) -> [u32; N] {
        let mut state = self.inner;
        H::compress(&mut state, &[*block]);
        state
    }

    /// The HMAC of a STUN message with another value in its length field.
    #[inline]
    pub(crate) fn message_tag<H: Hash<N>>(&self, message: &[u8], length: u16) -> [u32; N] {
        let mut state = self.inner;
        let (first, rest) = message.split_at(message.len().min(BLOCK));
        let mut block = [0; BLOCK];
        // `first` has at most BLOCK bytes.
        block[..first.len()].copy_from_slice(first);
        block[crate::header::field::LENGTH].copy_from_slice(&length.to_be_bytes());
        if first.len() == BLOCK {
            H::compress(&mut state, &[block]);
            absorb::<H, N>(&mut state, rest, BLOCK + message.len());
        } else {
            absorb::<H, N>(&mut state, &block[..first.len()], BLOCK + message.len());
        }
        self.close::<H>(&state)
    }

    /// The outer hash, over the inner one.
    #[inline]
    fn close<H: Hash<N>>(&self, inner: &[u32; N]) -> [u32; N] {
        let mut block = [0; BLOCK];
        write_words(&mut block, inner);
        block[4 * N] = 0x80;
        block[BLOCK - COUNT..].copy_from_slice(&bit_count(BLOCK + 4 * N));
        let mut state = self.outer;
        H::compress(&mut state, &[block]);
        state
    }

    /// Forgets the key.
    pub(crate) fn zeroize(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.inner);
        zeroize::Zeroize::zeroize(&mut self.outer);
    }
}

/// The hash of `text` without a key.
fn digest<H: Hash<N>, const N: usize>(text: &[u8]) -> [u32; N] {
    let mut state = H::INITIAL;
    absorb::<H, N>(&mut state, text, text.len());
    state
}

/// Hashes the rest of the input and the padding; `total` counts all input from the start, in bytes.
#[inline]
fn absorb<H: Hash<N>, const N: usize>(state: &mut [u32; N], text: &[u8], total: usize) {
    let (blocks, tail) = text.as_chunks::<BLOCK>();
    if !blocks.is_empty() {
        H::compress(state, blocks);
    }
    let mut last = [[0; BLOCK]; 2];
    let flat = last.as_flattened_mut();
    // `tail` is shorter than a block, and there are two blocks.
    flat[..tail.len()].copy_from_slice(tail);
    flat[tail.len()] = 0x80;
    // The end marker and the bit count may need a block of their own.
    let used = if tail.len() < BLOCK - COUNT { 1 } else { 2 };
    flat[used * BLOCK - COUNT..used * BLOCK].copy_from_slice(&bit_count(total));
    H::compress(state, &last[..used]);
}

/// The count at the end of the last block.
#[inline]
fn bit_count(bytes: usize) -> [u8; COUNT] {
    (bytes as u64 * 8).to_be_bytes()
}

/// Writes words in network order at the start of a block.
#[inline]
pub(crate) fn write_words(block: &mut [u8], words: &[u32]) {
    for (bytes, word) in block.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *bytes = word.to_be_bytes();
    }
}
