//! The keyed hash of tables whose keys strangers choose.

use std::hash::{BuildHasher, Hasher};

use crate::HashKey;
use crate::siphash;

/// Makes hashers with a key, for a [`hashbrown::HashMap`].
#[derive(Clone, Debug)]
pub(crate) struct Seeded(HashKey);

impl Seeded {
    pub(crate) const fn new(key: HashKey) -> Seeded {
        Seeded(key)
    }
}

/// SipHash-1-3 as a [`Hasher`].
#[derive(Debug)]
pub(crate) struct SipHasher(siphash::Hasher<1, 3>);

impl BuildHasher for Seeded {
    type Hasher = SipHasher;

    fn build_hasher(&self) -> SipHasher {
        SipHasher(siphash::Hasher::new(self.0))
    }
}

impl Hasher for SipHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    fn finish(&self) -> u64 {
        self.0.clone().finish()
    }
}
