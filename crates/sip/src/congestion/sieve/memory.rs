//! What was held back, remembered without being kept: two generations of a Bloom filter, of which the older one is forgotten.

/// Bits of one generation, as a power of two: 2 MiB.
const BITS: u32 = 24;
const WORDS: usize = 1 << (BITS - 6);
/// Hashes of each member.
const HASHES: u32 = 4;
/// A generation is full when so many of its bits are set, in percent: then it mistakes one new request in 400 for one that was held
/// back before. That is after a million of them.
pub(super) const FULL: u64 = 22;

/// One generation.
#[derive(Debug)]
pub(super) struct Memory {
    words: Box<[u64]>,
    set: u64,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory {
            words: vec![0; WORDS].into(),
            set: 0,
        }
    }
}

impl Memory {
    fn places(hash: u64) -> impl Iterator<Item = (usize, u64)> {
        let (first, step) = (hash as u32, (hash >> 32) as u32 | 1);
        (0..HASHES).map(move |i| {
            let bit = first.wrapping_add(i.wrapping_mul(step)) % (1 << BITS);
            ((bit >> 6) as usize, 1 << (bit & 63))
        })
    }

    pub(super) fn has(&self, hash: u64) -> bool {
        Memory::places(hash).all(|(word, bit)| self.words[word] & bit != 0)
    }

    pub(super) fn add(&mut self, hash: u64) {
        for (word, bit) in Memory::places(hash) {
            let word = &mut self.words[word];
            self.set += u64::from(*word & bit == 0);
            *word |= bit;
        }
    }

    /// How many of its bits are set, in percent.
    pub(super) fn fill_percent(&self) -> u64 {
        (self.set * 100) >> BITS
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
        let mut added = 0;
        while memory.fill_percent() < FULL {
            memory.add(hash(added));
            added += 1;
        }
        assert!(added > 1_000_000, "{added}");
        assert!(
            (0..added)
                .step_by(1000)
                .all(|number| memory.has(hash(number)))
        );
        let mistaken = (0..100_000).filter(|number| memory.has(hash(added + number)));
        let mistaken = mistaken.count();
        assert!(mistaken < 400, "{mistaken} of 100,000");
    }
}
