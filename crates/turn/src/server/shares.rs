//! How many entries of a bounded table one prefix of addresses has, so that no prefix can fill the table.

use std::net::IpAddr;

use hashbrown::HashTable;

use super::hash::KeyedHash;

/// A /24 of IPv4 or a /48 of IPv6: what one network usually has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix(u64);

impl Prefix {
    pub(super) const fn of(address: IpAddr) -> Prefix {
        Prefix(match address {
            IpAddr::V4(v4) => 1 << 63 | (v4.to_bits() >> 8) as u64,
            IpAddr::V6(v6) => (v6.to_bits() >> 80) as u64,
        })
    }

    pub(super) const fn as_u64(self) -> u64 {
        self.0
    }
}

/// The counts of all prefixes that have any.
#[derive(Debug)]
pub(super) struct PrefixCounts {
    counts: HashTable<(Prefix, u32)>,
    hash: KeyedHash,
}

impl PrefixCounts {
    pub(super) fn new(hash: KeyedHash) -> PrefixCounts {
        PrefixCounts {
            counts: HashTable::new(),
            hash,
        }
    }

    /// How many entries this prefix has.
    pub(super) fn count(&self, prefix: Prefix) -> usize {
        let found = self
            .counts
            .find(self.hash.prefix(prefix), |(other, _)| *other == prefix);
        found.map_or(0, |(_, count)| *count as usize)
    }

    /// Counts one more entry of `prefix`.
    pub(super) fn add(&mut self, prefix: Prefix) {
        let hash = |prefix: Prefix| self.hash.prefix(prefix);
        self.counts
            .entry(
                hash(prefix),
                |(other, _)| *other == prefix,
                |(other, _)| hash(*other),
            )
            .and_modify(|(_, count)| *count += 1)
            .or_insert((prefix, 1));
    }

    /// One less.
    pub(super) fn remove(&mut self, prefix: Prefix) {
        let hash = self.hash.prefix(prefix);
        let Ok(mut entry) = self.counts.find_entry(hash, |(other, _)| *other == prefix) else {
            return;
        };
        if entry.get().1 > 1 {
            entry.get_mut().1 -= 1;
        } else {
            entry.remove();
        }
        if self.counts.is_empty() {
            self.counts = HashTable::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_24_or_a_48() {
        let of = |text: &str| Prefix::of(text.parse().unwrap());
        assert_eq!(of("192.0.2.1"), of("192.0.2.255"));
        assert_ne!(of("192.0.2.1"), of("192.0.3.1"));
        assert_eq!(of("2001:db8:1:2::3"), of("2001:db8:1:ffff::1"));
        assert_ne!(of("2001:db8:1::"), of("2001:db8:2::"));
        assert_ne!(of("0.0.0.0"), of("::"));
    }

    #[test]
    fn a_removed_share_leaves_no_entry() {
        let mut shares = PrefixCounts::new(KeyedHash::new(1, 2));
        let [one, two] = ["192.0.2.1", "192.0.3.1"].map(|text| Prefix::of(text.parse().unwrap()));
        for prefix in [one, one, two] {
            shares.add(prefix);
        }
        assert_eq!((shares.count(one), shares.count(two)), (2, 1));
        for prefix in [one, two, one] {
            shares.remove(prefix);
        }
        assert_eq!((shares.count(one), shares.count(two)), (0, 0));
        assert_eq!(shares.counts.capacity(), 0);
    }
}
