//! How many connections each source has. Sources have proven their address by a cookie, so nobody can fill the table
//! with others' addresses.

use std::hash::Hasher;
use std::net::IpAddr;

use foldhash::SharedSeed;
use foldhash::fast::FoldHasher;
use hashbrown::HashTable;

/// A table with at most this capacity keeps its memory.
const KEPT_ENTRIES: usize = 64;

/// An IPv4 address or an IPv6 /64, the usual network of one customer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Source {
    is_ipv4: bool,
    number: u64,
}

impl Source {
    fn of(address: IpAddr) -> Source {
        match address.to_canonical() {
            IpAddr::V4(v4) => Source {
                is_ipv4: true,
                number: v4.to_bits().into(),
            },
            IpAddr::V6(v6) => Source {
                is_ipv4: false,
                number: (v6.to_bits() >> 64) as u64,
            },
        }
    }
}

/// Connections by source.
pub(super) struct Sources {
    counts: HashTable<(Source, usize)>,
    seed: u64,
    shared: SharedSeed,
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sources")
            .field("len", &self.counts.len())
            .finish_non_exhaustive()
    }
}

impl Sources {
    pub(super) fn new(seed: [u64; 2]) -> Sources {
        Sources {
            counts: HashTable::new(),
            seed: seed[0],
            shared: SharedSeed::from_u64(seed[1]),
        }
    }

    /// Number of connections from this IPv4 address, or from the /64 of this IPv6 address.
    pub(super) fn count(&self, address: IpAddr) -> usize {
        let source = Source::of(address);
        let hash = hash(self.seed, &self.shared, source);
        let found = self.counts.find(hash, |(other, _)| *other == source);
        found.map_or(0, |(_, count)| *count)
    }

    pub(super) fn add(&mut self, address: IpAddr) {
        let Sources {
            counts,
            seed,
            shared,
        } = self;
        let source = Source::of(address);
        counts
            .entry(
                hash(*seed, shared, source),
                |(other, _)| *other == source,
                |(other, _)| hash(*seed, shared, *other),
            )
            .or_insert((source, 0))
            .get_mut()
            .1 += 1;
    }

    pub(super) fn remove(&mut self, address: IpAddr) {
        let Sources {
            counts,
            seed,
            shared,
        } = self;
        let source = Source::of(address);
        let found = counts.find_entry(hash(*seed, shared, source), |(other, _)| *other == source);
        let Ok(mut found) = found else {
            return;
        };
        found.get_mut().1 -= 1;
        if found.get().1 == 0 {
            found.remove();
            if counts.capacity() > KEPT_ENTRIES.max(4 * counts.len()) {
                counts.shrink_to(2 * counts.len(), |(other, _)| hash(*seed, shared, *other));
            }
        }
    }
}

fn hash(seed: u64, shared: &SharedSeed, source: Source) -> u64 {
    let mut hasher = FoldHasher::with_seed(seed, shared);
    hasher.write_u64(source.number);
    hasher.write_u8(source.is_ipv4.into());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_source_is_an_ipv4_address_or_a_64() {
        let mut sources = Sources::new([1, 2]);
        for text in ["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"] {
            sources.add(address(text));
        }
        for text in ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"] {
            sources.add(address(text));
        }
        for (text, count) in [
            ("192.0.2.1", 2),
            ("192.0.2.2", 1),
            ("192.0.2.3", 0),
            ("2001:db8::3", 2),
            ("2001:db8:0:1::7", 1),
            ("2001:db8:0:2::7", 0),
        ] {
            assert_eq!(sources.count(address(text)), count, "{text}");
        }
    }

    #[test]
    fn sources_without_connections_leave_nothing_behind() {
        let mut sources = Sources::new([1, 2]);
        let all: Vec<IpAddr> = (0..10_000u32).map(|n| IpAddr::V4(n.into())).collect();
        for &address in &all {
            sources.add(address);
            sources.add(address);
        }
        for &address in &all {
            sources.remove(address);
            assert_eq!(sources.count(address), 1);
        }
        for &address in &all {
            sources.remove(address);
            // The removal of an unknown source changes nothing.
            sources.remove(address);
        }
        assert_eq!(sources.counts.len(), 0);
        assert!(sources.counts.capacity() <= KEPT_ENTRIES);
    }
}
