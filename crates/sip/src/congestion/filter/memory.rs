//! The set of dropped requests, without storing them: one generation of a Bloom filter.

/// Bits of one generation, as a power of two: 2 MiB for a million requests.
const BITS: u32 = 24;
const WORDS: usize = 1 << (BITS - 6);
/// Hashes of each member: with four, a full generation mistakes one new request in 400 for one of its members.
const HASHES: u32 = 4;
/// Members of a full generation: a sixteenth of its bits.
pub(super) const ROOM: u64 = 1 << (BITS - 4);

/// One generation.
#[derive(Debug)]
pub(super) struct Memory {
    words: Box<[u64]>,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory {
            words: vec![0; WORDS].into(),
        }
    }
}

impl Memory {
    fn bits(hash: u64) -> impl Iterator<Item = (usize, u64)> {
        let (first, step) = (hash as u32, (hash >> 32) as u32 | 1);
        (0..HASHES).map(move |i| {
            let bit = first.wrapping_add(i.wrapping_mul(step)) % (1 << BITS);
            // A word is below WORDS, because a bit is below 2^BITS.
            ((bit >> 6) as usize, 1 << (bit & 63))
        })
    }

    pub(super) fn has(&self, hash: u64) -> bool {
        Memory::bits(hash).all(|(word, bit)| self.words[word] & bit != 0)
    }

    pub(super) fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Returns whether it was not there.
    pub(super) fn add(&mut self, hash: u64) -> bool {
        let mut is_new = false;
        for (word, bit) in Memory::bits(hash) {
            is_new |= self.words[word] & bit == 0;
            self.words[word] |= bit;
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u64) -> u64 {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    #[test]
    fn a_full_generation_knows_its_own_and_mistakes_few_others() {
        let mut memory = Memory::default();
        let added = (0..ROOM).filter(|number| memory.add(hash(*number))).count() as u64;
        assert!(added > ROOM * 99 / 100, "{added}");
        assert!(
            (0..ROOM)
                .step_by(1000)
                .all(|number| memory.has(hash(number)))
        );
        let mistaken = (0..100_000).filter(|number| memory.has(hash(ROOM + number)));
        let mistaken = mistaken.count();
        assert!(mistaken < 400, "{mistaken} of 100,000");
    }
}
