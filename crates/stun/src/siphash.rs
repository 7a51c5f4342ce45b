//! SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, 2012): a MAC for short texts.

/// Returns the MAC of `text` with `key`. The result has 128 bits.
pub(crate) fn tag(key: [u64; 2], text: &[u8]) -> [u8; 16] {
    let mut state = State([
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d ^ 0xee,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ]);
    let (words, rest) = text.as_chunks::<8>();
    for word in words {
        state.absorb(u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    last[7] = text.len() as u8;
    state.absorb(u64::from_le_bytes(last));
    let mut tag = [0; 16];
    state.0[2] ^= 0xee;
    tag[..8].copy_from_slice(&state.squeeze());
    state.0[1] ^= 0xdd;
    tag[8..].copy_from_slice(&state.squeeze());
    tag
}

/// v0 to v3 of the paper.
struct State([u64; 4]);

impl State {
    /// Mixes a word of the text into the state, with two rounds.
    #[inline]
    fn absorb(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.round();
        self.0[0] ^= word;
    }

    /// Does four rounds. Returns half of the tag.
    #[inline]
    fn squeeze(&mut self) -> [u8; 8] {
        (0..4).for_each(|_| self.round());
        let [a, b, c, d] = self.0;
        (a ^ b ^ c ^ d).to_le_bytes()
    }

    /// SipRound of the paper: `a` to `d` are v0 to v3.
    #[inline]
    fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.0;
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        self.0 = [a, b, c, d];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_the_reference_implementation() {
        // vectors_sip128 of github.com/veorq/SipHash: key 00 to 0f, texts of 0 and 1 bytes.
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let hex = |tag: [u8; 16]| tag.map(|byte| format!("{byte:02x}")).concat();
        assert_eq!(hex(tag(key, &[])), "a3817f04ba25a8e66df67214c7550293");
        assert_eq!(hex(tag(key, &[0])), "da87c1d86b99af44347659119b22fc45");
    }
}
