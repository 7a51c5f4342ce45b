//! Rules by network and port range, found by longest prefix.
//!
//! One sorted list per prefix length, longest first. A look-up is one binary search per distinct length (about 12
//! with the built-in networks). It is fast enough for every datagram of a Send indication.

use std::ops::RangeInclusive;

/// What a rule says. The order is the strength at equal prefix length: an operator's `deny` beats his `allow`, and
/// either beats the built-in list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RuleVerdict {
    /// Refused because the network is special or belongs to this host.
    BuiltinDeny,
    /// Admitted by the operator.
    Allow,
    /// Refused by the operator.
    Deny,
}

#[derive(Debug, Clone)]
struct Entry {
    network: u128,
    ports: RangeInclusive<u16>,
    ruling: RuleVerdict,
}

#[derive(Debug, Clone)]
struct Level {
    length: u8,
    mask: u128,
    entries: Vec<Entry>,
}

/// The rules of one address family. Addresses are the low `width` bits of a `u128`.
#[derive(Debug, Clone)]
pub(super) struct RuleTable {
    width: u8,
    levels: Vec<Level>,
}

impl RuleTable {
    /// An empty table for addresses of `width` bits (32 or 128).
    pub(super) fn new(width: u8) -> RuleTable {
        RuleTable {
            width,
            levels: Vec::new(),
        }
    }

    /// Adds a rule; host bits of `network` are ignored.
    pub(super) fn insert(
        &mut self,
        network: u128,
        length: u8,
        ports: RangeInclusive<u16>,
        ruling: RuleVerdict,
    ) {
        let mask = prefix_mask(self.width, length);
        let entry = Entry {
            network: network & mask,
            ports,
            ruling,
        };
        let at = match self
            .levels
            .binary_search_by(|level| length.cmp(&level.length))
        {
            Ok(at) => at,
            Err(at) => {
                self.levels.insert(
                    at,
                    Level {
                        length,
                        mask,
                        entries: Vec::new(),
                    },
                );
                at
            }
        };
        let entries = &mut self.levels[at].entries;
        // Strongest first among equal networks, so that the first entry whose ports match decides.
        let place = entries.partition_point(|old| {
            (old.network, std::cmp::Reverse(old.ruling))
                <= (entry.network, std::cmp::Reverse(entry.ruling))
        });
        entries.insert(place, entry);
    }

    /// The ruling for `address` and `port`: the longest prefix decides, then the strength of the ruling.
    // Inlined into `Policy::permits`, it costs each Send indication 13 instructions more.
    #[inline(never)]
    pub(super) fn ruling(&self, address: u128, port: u16) -> Option<RuleVerdict> {
        self.matches(address)
            .find(|entry| entry.ports.contains(&port))
            .map(|entry| entry.ruling)
    }

    /// Calls `visit` with every port at which the ruling for `address` may change, until it returns true.
    ///
    /// Rulings are constant between two such ports, so testing these tests them all.
    pub(super) fn any_port(&self, address: u128, mut visit: impl FnMut(u16) -> bool) -> bool {
        visit(1)
            || self.matches(address).any(|entry| {
                let start = (*entry.ports.start()).max(1);
                visit(start) || entry.ports.end().checked_add(1).is_some_and(&mut visit)
            })
    }

    fn matches(&self, address: u128) -> impl Iterator<Item = &Entry> {
        self.levels.iter().flat_map(move |level| {
            let network = address & level.mask;
            let start = level
                .entries
                .partition_point(|entry| entry.network < network);
            level.entries[start..]
                .iter()
                .take_while(move |entry| entry.network == network)
        })
    }
}

fn prefix_mask(width: u8, length: u8) -> u128 {
    let host_bits = u32::from(width - length.min(width));
    let all = if width >= 128 {
        u128::MAX
    } else {
        (1 << width) - 1
    };
    all & u128::MAX.checked_shl(host_bits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: RangeInclusive<u16> = 0..=u16::MAX;

    #[test]
    fn masks_keep_the_prefix_only() {
        assert_eq!(prefix_mask(32, 0), 0);
        assert_eq!(prefix_mask(32, 8), 0xff00_0000);
        assert_eq!(prefix_mask(32, 32), 0xffff_ffff);
        assert_eq!(prefix_mask(128, 0), 0);
        assert_eq!(prefix_mask(128, 128), u128::MAX);
        assert_eq!(prefix_mask(128, 7), 0xfe << 120);
    }

    #[test]
    fn the_longest_prefix_decides() {
        let mut table = RuleTable::new(32);
        table.insert(0x0a00_0000, 8, ALL, RuleVerdict::BuiltinDeny);
        table.insert(0, 0, ALL, RuleVerdict::Allow);
        table.insert(0x0a01_0000, 16, ALL, RuleVerdict::Allow);
        table.insert(0x0a01_0200, 24, ALL, RuleVerdict::Deny);
        assert_eq!(table.ruling(0x0a00_0001, 9), Some(RuleVerdict::BuiltinDeny));
        assert_eq!(table.ruling(0x0a01_0001, 9), Some(RuleVerdict::Allow));
        assert_eq!(table.ruling(0x0a01_0201, 9), Some(RuleVerdict::Deny));
        assert_eq!(table.ruling(0x0808_0808, 9), Some(RuleVerdict::Allow));
    }

    #[test]
    fn at_equal_length_deny_beats_allow_beats_builtin() {
        let mut table = RuleTable::new(32);
        table.insert(0x0a00_0000, 8, ALL, RuleVerdict::Allow);
        table.insert(0x0a00_0000, 8, ALL, RuleVerdict::BuiltinDeny);
        table.insert(0x0a00_0000, 8, 5000..=6000, RuleVerdict::Deny);
        assert_eq!(table.ruling(0x0a00_0001, 4999), Some(RuleVerdict::Allow));
        assert_eq!(table.ruling(0x0a00_0001, 5000), Some(RuleVerdict::Deny));
        assert_eq!(table.ruling(0x0a00_0001, 6000), Some(RuleVerdict::Deny));
        assert_eq!(table.ruling(0x0a00_0001, 6001), Some(RuleVerdict::Allow));
        assert_eq!(table.ruling(0x0b00_0001, 6001), None);
    }

    #[test]
    fn any_port_visits_each_change_of_ruling() {
        let mut table = RuleTable::new(32);
        table.insert(0x0a00_0000, 8, ALL, RuleVerdict::BuiltinDeny);
        table.insert(0x0a00_0000, 8, 7000..=7000, RuleVerdict::Allow);
        assert!(
            table.any_port(0x0a00_0001, |port| table.ruling(0x0a00_0001, port)
                == Some(RuleVerdict::Allow))
        );
        table.insert(0x0a00_0000, 8, 7000..=7001, RuleVerdict::Deny);
        assert!(
            !table.any_port(0x0a00_0001, |port| table.ruling(0x0a00_0001, port)
                == Some(RuleVerdict::Allow))
        );
    }
}
