//! IPv4 addresses hidden inside IPv6 addresses.
//!
//! Each notation below reaches an IPv4 host through a translator, a tunnel or the kernel itself. So a rule that denies
//! `10.0.0.0/8` must deny `::ffff:10.0.0.1`, `64:ff9b::10.0.0.1` and `2002:a00:1::` as well. Missing one of them has
//! been an advisory for TURN servers again and again.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The most IPv4 addresses that one IPv6 address can spell (the local-use NAT64 prefix has four possible positions).
const MAX_EMBEDDED: usize = 5;

/// The IPv4 addresses that one IPv6 address may stand for; usually none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Embedded {
    found: [Ipv4Addr; MAX_EMBEDDED],
    count: usize,
}

impl Embedded {
    /// Every IPv4 address that `address` spells in a known way.
    #[must_use]
    pub fn of(address: Ipv6Addr) -> Embedded {
        let mut list = Embedded {
            found: [Ipv4Addr::UNSPECIFIED; MAX_EMBEDDED],
            count: 0,
        };
        list.collect(address);
        list
    }

    /// The addresses found.
    #[must_use]
    pub fn as_slice(&self) -> &[Ipv4Addr] {
        &self.found[..self.count]
    }

    fn push(&mut self, octets: [u8; 4]) {
        if self.count < MAX_EMBEDDED {
            self.found[self.count] = Ipv4Addr::from(octets);
            self.count += 1;
        }
    }

    /// Collects the IPv4 addresses that this IPv6 address contains, by the prefixes of the RFCs.
    fn collect(&mut self, address: Ipv6Addr) {
        let o = address.octets();
        let s = address.segments();
        let last = [o[12], o[13], o[14], o[15]];
        match s {
            // `::` and `::1` are addresses of their own, not "compatible" spellings of 0.0.0.0 and 0.0.0.1.
            [0, 0, 0, 0, 0, 0, 0, 0 | 1] => {}
            // RFC 4291 §2.5.5.1 compatible, §2.5.5.2 mapped; RFC 2765 §2.1 translated (::ffff:0:a.b.c.d).
            [0, 0, 0, 0, 0, 0, ..] | [0, 0, 0, 0, 0, 0xffff, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => {
                self.push(last)
            }
            // RFC 6052 §2.1: the well-known NAT64 prefix is always a /96.
            [0x64, 0xff9b, 0, 0, 0, 0, ..] => self.push(last),
            // RFC 8215: the local-use NAT64 prefix; the operator chose the length.
            [0x64, 0xff9b, 1, ..] => self.collect_local_nat64(o, last),
            // RFC 3056 §2: 6to4.
            [0x2002, ..] => self.push([o[2], o[3], o[4], o[5]]),
            // RFC 4380 §4: Teredo has the server in clear and the client with every bit inverted.
            [0x2001, 0, ..] => {
                self.push([o[4], o[5], o[6], o[7]]);
                self.push(last.map(|byte| !byte));
            }
            _ => {}
        }
        // RFC 5214 §6.1: ISATAP interface identifiers, under any prefix, with the universal bit either way.
        if matches!(s[4], 0 | 0x200) && s[5] == 0x5efe {
            self.push(last);
        }
    }

    /// RFC 6052 §2.2: in a /48, /56, /64 or /96 the IPv4 address sits in different octets (octet 8 is skipped). The
    /// length in use is unknown here, so every position counts, except those that hold only zero filler and a tail.
    fn collect_local_nat64(&mut self, o: [u8; 16], last: [u8; 4]) {
        let positions = [
            [o[6], o[7], o[9], o[10]],
            [o[7], o[9], o[10], o[11]],
            [o[9], o[10], o[11], o[12]],
        ];
        for position in positions {
            if position[0] != 0 {
                self.push(position);
            }
        }
        // A shorter prefix leaves zeros behind the address: then the last four octets are not an address.
        if last != [0; 4] || self.count == 0 {
            self.push(last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn embedded(text: &str) -> Vec<String> {
        let address: Ipv6Addr = text.parse().expect("test addresses are well formed");
        Embedded::of(address)
            .as_slice()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn every_spelling_is_found() {
        for spelling in [
            "::ffff:10.1.2.3",
            "::10.1.2.3",
            "::ffff:0:10.1.2.3",
            "64:ff9b::10.1.2.3",
            "64:ff9b:1::10.1.2.3",
            "64:ff9b:1:a01:0002:0300::",
            "64:ff9b:1:000a:0001:0203::",
            "64:ff9b:1:0:000a:0102:0300::",
            "2002:a01:203::1",
            "2001:db8::5efe:10.1.2.3",
            "2001:db8::200:5efe:10.1.2.3",
        ] {
            assert!(
                embedded(spelling).contains(&"10.1.2.3".to_owned()),
                "{spelling}: {:?}",
                embedded(spelling)
            );
        }
    }

    #[test]
    fn teredo_spells_its_server_and_its_client() {
        assert_eq!(
            embedded("2001:0:4136:e378:8000:63bf:3fff:fdd2"),
            ["65.54.227.120", "192.0.2.45"]
        );
    }

    #[test]
    fn ordinary_addresses_spell_nothing() {
        for address in [
            "::",
            "::1",
            "2001:db8::10.1.2.3",
            "2606:4700::1111",
            "fe80::1",
            "2001:1::10.0.0.1",
            "64:ff9b:2::10.0.0.1",
        ] {
            assert!(embedded(address).is_empty(), "{address}");
        }
    }
}
