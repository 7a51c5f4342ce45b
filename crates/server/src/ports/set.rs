//! On which relay ports this server listens for TCP connections.

use super::PortRange;
use std::sync::atomic::{AtomicU64, Ordering};

/// One bit per port of a relay address.
#[derive(Debug)]
pub struct PortSet {
    range: PortRange,
    words: Box<[AtomicU64]>,
}

impl PortSet {
    /// An empty set of ports of `range`.
    #[must_use]
    pub fn new(range: PortRange) -> PortSet {
        PortSet {
            range,
            words: (0..range.len().div_ceil(64))
                .map(|_| AtomicU64::new(0))
                .collect(),
        }
    }

    /// Adds a port. Ports outside the range are ignored.
    pub fn insert(&self, port: u16) {
        if let Some((word, bit)) = self.place(port) {
            word.fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// Removes a port.
    pub fn remove(&self, port: u16) {
        if let Some((word, bit)) = self.place(port) {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// Whether the port is in the set.
    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        self.place(port)
            .is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }

    fn place(&self, port: u16) -> Option<(&AtomicU64, u64)> {
        let at = usize::from(port.checked_sub(self.range.first())?);
        let is_inside = at < self.range.len();
        let word = self.words.get(at / 64).filter(|_| is_inside)?;
        Some((word, 1 << (at % 64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_come_and_go_and_others_are_ignored() {
        let set = PortSet::new(PortRange::new(50_000, 50_069).expect("a valid range"));
        for port in [50_000, 50_069, 49_999, 50_070, 50_127] {
            set.insert(port);
        }
        let found: Vec<u16> = (49_900..50_200)
            .filter(|port| set.contains(*port))
            .collect();
        assert_eq!(found, [50_000, 50_069]);
        set.remove(50_000);
        assert!(!set.contains(50_000) && set.contains(50_069));
    }
}
