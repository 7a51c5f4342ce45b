//! Handshakes in the order of their start, with limits in total and per address prefix.

use std::collections::VecDeque;
use std::net::IpAddr;

use super::table::ConnectionKey;

/// A /24 of IPv4 or a /48 of IPv6, the usual prefixes of one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefix(u64);

impl Prefix {
    fn of(address: IpAddr) -> Prefix {
        Prefix(match address.to_canonical() {
            IpAddr::V4(v4) => 1 << 63 | u64::from(v4.to_bits() >> 8),
            IpAddr::V6(v6) => (v6.to_bits() >> 80) as u64,
        })
    }
}

/// Handshakes, the oldest first. A linear search is fast enough: 1,000 entries take 1 µs, and a handshake takes 100 µs.
#[derive(Debug, Default)]
pub(super) struct HalfOpen {
    entries: VecDeque<(ConnectionKey, Prefix)>,
}

impl HalfOpen {
    /// The handshake that must end before one from this address may begin.
    pub(super) fn excess(
        &self,
        address: IpAddr,
        all: usize,
        per_prefix: usize,
    ) -> Option<ConnectionKey> {
        let prefix = Prefix::of(address);
        let mut same = self.entries.iter().filter(|(_, other)| *other == prefix);
        let oldest = same.next();
        let count = same.count() + usize::from(oldest.is_some());
        if count >= per_prefix.max(1) {
            return oldest.map(|(key, _)| *key);
        }
        (self.entries.len() >= all.max(1)).then(|| self.entries[0].0)
    }

    pub(super) fn add(&mut self, key: ConnectionKey, address: IpAddr) {
        self.entries.push_back((key, Prefix::of(address)));
    }

    pub(super) fn remove(&mut self, key: ConnectionKey) {
        if let Some(at) = self.entries.iter().position(|(other, _)| *other == key) {
            self.entries.remove(at);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(index: u32) -> ConnectionKey {
        ConnectionKey {
            index,
            generation: 0,
        }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_oldest_of_the_prefix_goes_first_then_the_oldest_of_all() {
        let mut half_open = HalfOpen::default();
        for (index, text) in ["192.0.2.1", "198.51.100.1", "198.51.100.200"]
            .into_iter()
            .enumerate()
        {
            assert_eq!(half_open.excess(address(text), 3, 2), None);
            half_open.add(key(index as u32), address(text));
        }
        assert_eq!(
            half_open.excess(address("198.51.100.9"), 3, 2),
            Some(key(1))
        );
        assert_eq!(half_open.excess(address("203.0.113.9"), 3, 2), Some(key(0)));
        half_open.remove(key(1));
        assert_eq!(half_open.excess(address("198.51.100.9"), 3, 2), None);
        assert_eq!(half_open.len(), 2);
    }

    #[test]
    fn a_prefix_is_a_24_or_a_48() {
        let of = |text: &str| Prefix::of(address(text));
        assert_eq!(of("192.0.2.1"), of("192.0.2.255"));
        assert_eq!(of("192.0.2.1"), of("::ffff:192.0.2.7"));
        assert_ne!(of("192.0.2.1"), of("192.0.3.1"));
        assert_eq!(of("2001:db8:1:2::3"), of("2001:db8:1:ffff::1"));
        assert_ne!(of("2001:db8:1::"), of("2001:db8:2::"));
    }
}
