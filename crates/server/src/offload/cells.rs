//! Which destinations have the same route: those that the same prefixes of the routing tables contain.
//!
//! ```text
//!  0.0.0.0/0 by a gateway  ├──────────────┬──────────┬──────────────────────────┤
//!  192.0.2.0/24 on link                   ├──────────┤
//!  cells                    0.0.0.0/0      /32 each   0.0.0.0/0
//! ```
//! If all else is equal, the kernel chooses a route only by the prefixes, of rules and tables, that contain the
//! destination. So all destinations with the same longest prefix, over all tables and rules, are routed alike. They
//! form a *cell*, and share a next hop.
//!
//! Some routes separate destinations. In an on-link route each destination is its own neighbour; a multipath route
//! hashes the destination. Each destination inside such a route is a cell of its own. So is a destination with an
//! exception: a path MTU, or a gateway from an ICMP redirect.

use io::netlink::RoutePrefix;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A cell: the prefix that its destinations have in common. One of full length has one destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Cell {
    network: IpAddr,
    length: u8,
}

impl Cell {
    /// The cell of one destination alone.
    pub(crate) fn of_one(to: IpAddr) -> Cell {
        Cell {
            network: to,
            length: bits(to.is_ipv4()),
        }
    }

    /// Whether the cell may have many destinations.
    pub(crate) fn is_shared(&self) -> bool {
        self.length < bits(self.network.is_ipv4())
    }
}

/// All cells, as the routing tables are now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Cells {
    v4: Vec<AddressRange>,
    v6: Vec<AddressRange>,
}

/// From its first address to the next range's, all addresses have the same longest prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AddressRange {
    first: u128,
    prefix: Prefix,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Prefix {
    network: u128,
    length: u8,
    /// A route of this prefix, or of one around it, distinguishes destinations.
    separates: bool,
}

impl Cells {
    /// With more prefixes than this, each destination is a separate cell. A router with a full table has a million
    /// prefixes, and requires seconds to list them.
    pub(crate) const MAX_PREFIXES: usize = 1 << 16;

    /// The cells of these prefixes.
    pub(crate) fn new(prefixes: &[RoutePrefix]) -> Cells {
        let family = |v4: bool| {
            let of_family = prefixes.iter().filter(|one| one.network.is_ipv4() == v4);
            ranges(of_family.map(Prefix::of).collect(), bits(v4))
        };
        Cells {
            v4: family(true),
            v6: family(false),
        }
    }

    /// The cell of a destination.
    pub(crate) fn of(&self, to: IpAddr) -> Cell {
        let ranges = if to.is_ipv4() { &self.v4 } else { &self.v6 };
        let address = number(to);
        let after = ranges.partition_point(|range| range.first <= address);
        match after.checked_sub(1).and_then(|at| ranges.get(at)) {
            Some(AddressRange { prefix, .. }) if !prefix.separates => Cell {
                network: ip(prefix.network, to.is_ipv4()),
                length: prefix.length,
            },
            _ => Cell::of_one(to),
        }
    }
}

impl Prefix {
    fn of(route: &RoutePrefix) -> Prefix {
        let bits = bits(route.network.is_ipv4());
        let length = route.length.min(bits);
        Prefix {
            network: number(route.network) & !below(bits - length),
            length,
            separates: route.separates,
        }
    }

    fn last(&self, bits: u8) -> u128 {
        self.network | below(bits - self.length)
    }
}

/// The ranges of these prefixes, in order. Of two prefixes either one contains the other, or they have nothing in
/// common.
fn ranges(mut prefixes: Vec<Prefix>, bits: u8) -> Vec<AddressRange> {
    prefixes.sort_unstable();
    let mut ranges: Vec<AddressRange> = Vec::with_capacity(2 * prefixes.len());
    let mut around: Vec<Prefix> = Vec::new();
    for mut prefix in prefixes {
        leave(&mut around, Some(prefix.network), bits, &mut ranges);
        prefix.separates |= around.last().is_some_and(|outer| outer.separates);
        around.push(prefix);
        begin(&mut ranges, prefix.network, prefix);
    }
    leave(&mut around, None, bits, &mut ranges);
    ranges
}

/// Removes from `around` the prefixes that end before `next`, innermost first. Behind each, a range of the enclosing
/// prefix begins.
fn leave(around: &mut Vec<Prefix>, next: Option<u128>, bits: u8, ranges: &mut Vec<AddressRange>) {
    while let Some(inner) = around.last().copied()
        && next.is_none_or(|next| inner.last(bits) < next)
    {
        around.pop();
        let Some(first) = inner.last(bits).checked_add(1) else {
            continue;
        };
        // Outside of all prefixes nothing is routed: each destination is a cell of its own.
        let nowhere = Prefix {
            network: first,
            length: bits,
            separates: true,
        };
        begin(ranges, first, around.last().copied().unwrap_or(nowhere));
    }
}

fn begin(ranges: &mut Vec<AddressRange>, first: u128, prefix: Prefix) {
    match ranges.last_mut() {
        Some(last) if last.first == first => last.prefix = prefix,
        _ => ranges.push(AddressRange { first, prefix }),
    }
}

const fn bits(v4: bool) -> u8 {
    if v4 { 32 } else { 128 }
}

/// The number whose lowest `bits` bits are ones.
fn below(bits: u8) -> u128 {
    1u128
        .checked_shl(bits.into())
        .map_or(u128::MAX, |bit| bit - 1)
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The address of this number.
fn ip(number: u128, v4: bool) -> IpAddr {
    match v4 {
        // Made of an IPv4 address.
        true => Ipv4Addr::from_bits(number as u32).into(),
        false => Ipv6Addr::from_bits(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str, separates: bool) -> RoutePrefix {
        let (network, length) = text.split_once('/').expect("a prefix");
        RoutePrefix {
            network: network.parse().expect("an address"),
            length: length.parse().expect("a length"),
            separates,
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn destinations_behind_a_gateway_share_a_cell_and_those_on_link_do_not() {
        let cells = Cells::new(&[
            prefix("0.0.0.0/0", false),
            prefix("192.0.2.0/24", true),
            prefix("192.0.2.1/32", true),
            prefix("198.51.100.0/24", false),
        ]);
        let beyond = cells.of(ip("203.0.113.1"));
        assert!(beyond.is_shared());
        for (to, same) in [
            ("8.8.8.8", true),
            ("192.0.1.255", true),
            ("192.0.3.0", true),
            ("255.255.255.255", true),
            ("198.51.100.7", false),
            ("192.0.2.7", false),
        ] {
            assert_eq!(cells.of(ip(to)) == beyond, same, "{to}");
        }
        assert!(cells.of(ip("198.51.100.7")).is_shared());
        assert_eq!(cells.of(ip("192.0.2.7")), Cell::of_one(ip("192.0.2.7")));
        assert_eq!(cells.of(ip("192.0.2.1")), Cell::of_one(ip("192.0.2.1")));
    }

    #[test]
    fn destinations_within_a_separating_prefix_are_separate() {
        // A multipath default in one table, a gateway for a part of it in another: a rule decides which is used.
        let cells = Cells::new(&[prefix("0.0.0.0/0", true), prefix("10.0.0.0/8", false)]);
        assert!(!cells.of(ip("10.1.2.3")).is_shared());
    }

    #[test]
    fn two_routes_of_one_prefix_separate_if_one_does() {
        for order in [[false, true], [true, false]] {
            let cells = Cells::new(&order.map(|separates| prefix("0.0.0.0/0", separates)));
            assert!(!cells.of(ip("10.1.2.3")).is_shared());
        }
    }

    #[test]
    fn families_and_the_unrouted_are_apart() {
        let cells = Cells::new(&[prefix("2001:db8::/32", false), prefix("::/0", false)]);
        assert!(cells.of(ip("2001:db8::1")).is_shared());
        assert_ne!(cells.of(ip("2001:db8::1")), cells.of(ip("2001:db9::1")));
        assert!(cells.of(ip("ffff::")).is_shared());
        assert!(!cells.of(ip("10.1.2.3")).is_shared());
        assert!(!Cells::default().of(ip("10.1.2.3")).is_shared());
    }

    /// The longest prefix by the plain rule, beside the search.
    #[test]
    fn each_destination_has_the_cell_of_its_longest_prefix() {
        let mut state = 1u32;
        let mut random = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        for _ in 0..200 {
            let prefixes: Vec<RoutePrefix> = (0..12)
                .map(|_| {
                    let length = (24 + random() % 9) as u8;
                    let address = 0x0a00_0000 | (random() % 256);
                    let network = address & !(below(32 - length) as u32);
                    RoutePrefix {
                        network: Ipv4Addr::from_bits(network).into(),
                        length,
                        separates: random() % 4 == 0,
                    }
                })
                .collect();
            let cells = Cells::new(&prefixes);
            for last in 0..=255 {
                let to = Ipv4Addr::new(10, 0, 0, last);
                let contains = |one: &&RoutePrefix| {
                    number(one.network) == u128::from(to.to_bits()) & !below(32 - one.length)
                };
                let around: Vec<&RoutePrefix> = prefixes.iter().filter(contains).collect();
                let longest = around.iter().max_by_key(|one| one.length);
                let expected = match longest {
                    Some(longest) if around.iter().all(|one| !one.separates) => Cell {
                        network: longest.network,
                        length: longest.length,
                    },
                    _ => Cell::of_one(to.into()),
                };
                assert_eq!(cells.of(to.into()), expected, "{to} {prefixes:?}");
            }
        }
    }
}
