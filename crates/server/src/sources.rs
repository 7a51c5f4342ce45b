//! How many connections each source has, in a table of fixed size: no map is keyed by unproven addresses.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};

/// Places. With this many, ten thousand honest sources share one with a few others.
const PLACE_COUNT: usize = 4096;

/// Counts per IPv4 address or IPv6 /64. Sources that share a place share a count.
#[derive(Debug)]
pub(crate) struct Sources {
    counts: Box<[u32]>,
    /// Keyed, so that nobody can choose whose place to share.
    hash: RandomState,
}

impl Sources {
    pub(crate) fn new() -> Sources {
        Sources {
            counts: vec![0; PLACE_COUNT].into(),
            hash: RandomState::new(),
        }
    }

    fn place(&mut self, source: SocketAddr) -> &mut u32 {
        let prefix = match source.ip() {
            IpAddr::V4(v4) => u64::from(v4.to_bits()),
            IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64,
        };
        let hash = self.hash.hash_one((source.is_ipv4(), prefix));
        &mut self.counts[hash as usize % PLACE_COUNT]
    }

    /// Counts one more, unless there are `most` already.
    pub(crate) fn enter(&mut self, source: SocketAddr, most: usize) -> bool {
        let count = self.place(source);
        if *count as usize >= most {
            return false;
        }
        *count += 1;
        true
    }

    /// How many are counted of a source.
    pub(crate) fn count(&mut self, source: SocketAddr) -> u32 {
        *self.place(source)
    }

    /// A counted client of this source has ended.
    pub(crate) fn leave(&mut self, source: SocketAddr) {
        let count = self.place(source);
        *count = count.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_its_share_and_a_network_counts_as_one() {
        let mut sources = Sources::new();
        let of = |text: &str| text.parse::<SocketAddr>().expect("an address");
        assert!(sources.enter(of("192.0.2.1:1"), 2));
        assert!(sources.enter(of("192.0.2.1:2"), 2));
        assert!(!sources.enter(of("192.0.2.1:3"), 2));
        sources.leave(of("192.0.2.1:1"));
        assert!(sources.enter(of("192.0.2.1:4"), 2));
        assert!(sources.enter(of("[2001:db8::1]:1"), 1));
        assert!(!sources.enter(of("[2001:db8::2]:1"), 1), "the same /64");
    }
}
