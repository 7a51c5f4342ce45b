//! The maps' keys and values as the programs see them (`relay_maps.h`), and the sums in them that save the programs
//! work.

use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};

use super::{FlowEntry, FlowKey};

/// Bytes of a next hop.
pub(super) const NEXT_HOP: usize = 32;
/// Bytes of the settings that can change while the programs run.
pub(super) const SETTINGS_BYTES: usize = 16;
/// Bytes of an interface's slot.
pub(super) const INTERFACE_BYTES: usize = 24;
/// Bytes of the key of a listener's address.
pub(super) const LISTENER_BYTES: usize = 20;

/// Flags above the flow label: `enum flow_flag`.
const OUT_V6: u32 = 1 << 24;
const OWN_RELAY: u32 = 1 << 25;
pub(super) const SETTLED: u32 = 1 << 26;
pub(super) const IN_V6: u32 = 1 << 27;
pub(super) const IN_USE: u32 = 1 << 28;
pub(super) const REMOVED: u32 = 1 << 29;

/// A deadline's units are 2^28 ns.
const DEADLINE_SHIFT: u32 = 28;

/// The first 12 words of `struct flow`. Its counters follow.
pub(super) mod word {
    pub(in crate::relay) const VERSION: usize = 0;
    pub(in crate::relay) const FLAGS: usize = 1;
    pub(in crate::relay) const DEADLINE: usize = 2;
    pub(in crate::relay) const BUCKET: usize = 3;
    pub(in crate::relay) const PORTS_IN: usize = 4;
    pub(in crate::relay) const CHANNEL_IN_AND_HOP: usize = 5;
    pub(in crate::relay) const PORTS_OUT: usize = 6;
    pub(in crate::relay) const CHANNEL_OUT_AND_DIFFERENCE: usize = 7;
    pub(in crate::relay) const REMOTE: usize = 8;
    pub(in crate::relay) const LOCAL: usize = 9;
    pub(in crate::relay) const SOURCE: usize = 10;
    pub(in crate::relay) const DESTINATION: usize = 11;
    pub(in crate::relay) const COUNT: usize = 12;
}

/// A flow's key, as the programs compare it and hash it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) v6: bool,
    pub(super) remote: [u32; 4],
    pub(super) local: [u32; 4],
    pub(super) ports: u32,
    pub(super) channel: u16,
}

impl Key {
    /// `None` when the addresses are of two families.
    pub(super) fn new(key: &FlowKey) -> Option<Key> {
        (key.remote.is_ipv4() == key.local.is_ipv4()).then(|| Key {
            v6: key.remote.is_ipv6(),
            remote: ip_words(key.remote.ip()),
            local: ip_words(key.local.ip()),
            ports: pair(key.remote.port().to_be(), key.local.port().to_be()),
            channel: key.channel.unwrap_or(0).to_be(),
        })
    }

    /// Where the search for the flow begins, before the table's size is applied. `relay_flows.h` has the same hash.
    pub(super) fn place(&self, seed: [u64; 2]) -> u32 {
        let last = u64::from(self.ports) | u64::from(self.channel) << 32;
        let hash = match self.v6 {
            false => mix(seed[0], join(self.remote[0], self.local[0])),
            true => [self.remote, self.local]
                .iter()
                .flat_map(|ip| [join(ip[0], ip[1]), join(ip[2], ip[3])])
                .fold(seed[0], mix),
        };
        // The product's upper half.
        (mix(hash, last).wrapping_mul(seed[1] | 1) >> 32) as u32
    }
}

fn mix(hash: u64, word: u64) -> u64 {
    let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 32
}

fn join(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Two 16-bit fields as they lie in memory.
fn pair(first: u16, second: u16) -> u32 {
    u32::from(first) | u32::from(second) << 16
}

fn ip_words(ip: IpAddr) -> [u32; 4] {
    match ip {
        IpAddr::V4(ip) => [u32::from_ne_bytes(ip.octets()), 0, 0, 0],
        IpAddr::V6(ip) => {
            let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = ip.octets();
            let words = [[a, b, c, d], [e, f, g, h], [i, j, k, l], [m, n, o, p]];
            words.map(u32::from_ne_bytes)
        }
    }
}

/// A flow as the programs see it: the words of `struct flow` without its counters, and of the addresses in
/// `struct flow_tail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowWords {
    pub(super) words: [u32; word::COUNT],
    pub(super) tail: [u32; 12],
}

/// `None` when the two addresses going out are of two families.
pub(super) fn image(
    flow: &FlowKey,
    key: &Key,
    entry: &FlowEntry,
    labels: &impl BuildHasher,
) -> Option<FlowWords> {
    if entry.source.is_ipv4() != entry.destination.is_ipv4() {
        return None;
    }
    let deadline = u32::try_from(entry.deadline_ns >> DEADLINE_SHIFT).unwrap_or(u32::MAX);
    // An index that does not fit names no next hop.
    let next_hop = u16::try_from(entry.next_hop).unwrap_or(0);
    let channel = entry.channel.unwrap_or(0).to_be();
    let source = ip_words(entry.source.ip());
    let destination = ip_words(entry.destination.ip());
    let mut words = [0; word::COUNT];
    words[word::FLAGS] = IN_USE | label_word(entry, labels) | if key.v6 { IN_V6 } else { 0 };
    words[word::DEADLINE] = deadline;
    words[word::BUCKET] = entry.bucket.unwrap_or(u32::MAX);
    words[word::PORTS_IN] = key.ports;
    words[word::CHANNEL_IN_AND_HOP] = pair(key.channel, next_hop);
    words[word::PORTS_OUT] = pair(
        entry.source.port().to_be(),
        entry.destination.port().to_be(),
    );
    words[word::CHANNEL_OUT_AND_DIFFERENCE] = pair(channel, difference(flow, entry));
    words[word::REMOTE] = key.remote[0];
    words[word::LOCAL] = key.local[0];
    words[word::SOURCE] = source[0];
    words[word::DESTINATION] = destination[0];
    let mut tail = [0; 12];
    for (to, ip) in tail
        .chunks_exact_mut(3)
        .zip([key.remote, key.local, source, destination])
    {
        to.copy_from_slice(&ip[1..]);
    }
    Some(FlowWords { words, tail })
}

/// The flow label (20 bits) and the flags above it. RFC 8656 §13.1 prefers a label made from the 5-tuple, for which RFC
/// 6437 §3 wants a hash that nobody can foretell.
fn label_word(entry: &FlowEntry, labels: &impl BuildHasher) -> u32 {
    let mut word = 0;
    if entry.source.is_ipv6() {
        let hash = labels.hash_one((entry.source, entry.destination)) as u32;
        word |= OUT_V6 | (hash & 0xf_ffff);
    }
    if entry.own_relay {
        word |= OWN_RELAY;
    }
    word
}

/// The constant part of the checksum update (RFC 1624) for a flow: addresses, ports and channel number. The program
/// adds the part that depends on the length.
fn difference(key: &FlowKey, entry: &FlowEntry) -> u16 {
    let mut sum = Sum::default();
    for address in [entry.source, entry.destination] {
        sum.add_address(address);
    }
    sum.add(&entry.channel.unwrap_or(0).to_be_bytes());
    let mut old = Sum::default();
    for address in [key.remote, key.local] {
        old.add_address(address);
    }
    old.add(&key.channel.unwrap_or(0).to_be_bytes());
    sum.0 += u64::from(!old.fold());
    sum.fold()
}

/// A one's complement sum of 16-bit words as they lie in memory: byte order does not matter to it (RFC 1071 §2).
#[derive(Default)]
struct Sum(u64);

impl Sum {
    /// Adds an even number of bytes.
    fn add(&mut self, bytes: &[u8]) {
        for pair in bytes.chunks_exact(2) {
            self.0 += u64::from(u16::from_ne_bytes([pair[0], pair[1]]));
        }
    }

    fn add_ip(&mut self, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => self.add(&ip.octets()),
            IpAddr::V6(ip) => self.add(&ip.octets()),
        }
    }

    fn add_address(&mut self, address: SocketAddr) {
        self.add_ip(address.ip());
        self.add(&address.port().to_be_bytes());
    }

    fn fold(&self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        // Folded: it fits.
        sum as u16
    }
}

/// `struct listener`: the address of a listener.
pub(super) fn listener(address: SocketAddr) -> [u8; LISTENER_BYTES] {
    let mut bytes = [0; LISTENER_BYTES];
    put_ip(&mut bytes[0..16], address.ip());
    bytes[16..18].copy_from_slice(&address.port().to_be_bytes());
    bytes[18] = address.is_ipv6().into();
    bytes
}

fn put_ip(to: &mut [u8], ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => to[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => to.copy_from_slice(&ip.octets()),
    }
}
