//! The maps' keys and values as the programs see them (`relay_maps.h`), and the sums in them that save the programs work.

use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};

use super::{FlowEntry, FlowKey};

/// Bytes of a flow's key over IPv4.
pub(super) const KEY_V4: usize = 16;
/// Bytes of a flow's key over IPv6.
pub(super) const KEY_V6: usize = 40;
/// Bytes of a flow's value.
pub(super) const ENTRY: usize = 64;
/// Bytes of a next hop.
pub(super) const NEXT_HOP: usize = 32;
/// Bytes of the settings that can change while the programs run.
pub(super) const SETTINGS: usize = 16;
/// Bytes of an interface's slot.
pub(super) const INTERFACE: usize = 24;
/// Bytes of the key of a listener's address.
pub(super) const LISTENER: usize = 20;

/// Bits of the highest byte of a value's label word.
const OUT_V6: u32 = 1 << 24;
const OWN_RELAY: u32 = 1 << 25;
const SETTLED: u32 = 1 << 26;

/// The number of UDP in IP headers.
const UDP: u16 = 17;

/// The bytes of a key, of either family.
pub(super) enum Key {
    V4([u8; KEY_V4]),
    V6([u8; KEY_V6]),
}

impl Key {
    /// `None` when the addresses are of two families.
    pub(super) fn new(key: &FlowKey) -> Option<Key> {
        let remote_port = key.remote.port().to_be_bytes();
        let local_port = key.local.port().to_be_bytes();
        let channel = key.channel.unwrap_or(0).to_be_bytes();
        match (key.remote.ip(), key.local.ip()) {
            (IpAddr::V4(remote), IpAddr::V4(local)) => {
                let mut bytes = [0; KEY_V4];
                bytes[0..4].copy_from_slice(&remote.octets());
                bytes[4..8].copy_from_slice(&local.octets());
                put_pairs(&mut bytes[8..14], [remote_port, local_port, channel]);
                Some(Key::V4(bytes))
            }
            (IpAddr::V6(remote), IpAddr::V6(local)) => {
                let mut bytes = [0; KEY_V6];
                bytes[0..16].copy_from_slice(&remote.octets());
                bytes[16..32].copy_from_slice(&local.octets());
                put_pairs(&mut bytes[32..38], [remote_port, local_port, channel]);
                Some(Key::V6(bytes))
            }
            _ => None,
        }
    }
}

/// `struct entry`. `None` when the two addresses going out are of two families.
pub(super) fn entry(
    key: &FlowKey,
    entry: &FlowEntry,
    settled: bool,
    labels: &impl BuildHasher,
) -> Option<[u8; ENTRY]> {
    if entry.source.is_ipv4() != entry.destination.is_ipv4() {
        return None;
    }
    let mut bytes = [0; ENTRY];
    bytes[0..8].copy_from_slice(&entry.deadline_ns.to_ne_bytes());
    let channel = entry.channel.unwrap_or(0);
    put_pairs(
        &mut bytes[8..14],
        [
            entry.source.port().to_be_bytes(),
            entry.destination.port().to_be_bytes(),
            channel.to_be_bytes(),
        ],
    );
    bytes[14..16].copy_from_slice(&difference(key, entry).to_ne_bytes());
    // An index that does not fit names no next hop.
    let next_hop = u16::try_from(entry.next_hop).unwrap_or(0);
    bytes[16..18].copy_from_slice(&next_hop.to_ne_bytes());
    bytes[18..20].copy_from_slice(&pseudo_header(key).to_ne_bytes());
    bytes[20..24].copy_from_slice(&entry.counter.to_ne_bytes());
    bytes[24..28].copy_from_slice(&entry.bucket.unwrap_or(u32::MAX).to_ne_bytes());
    let word = label_word(entry, labels) | if settled { SETTLED } else { 0 };
    bytes[28..32].copy_from_slice(&word.to_ne_bytes());
    put_ip(&mut bytes[32..48], entry.source.ip());
    put_ip(&mut bytes[48..64], entry.destination.ip());
    Some(bytes)
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

/// By how much the checksum's sum changes with what is constant in a flow: addresses, ports and channel number (RFC
/// 1624). What depends on the length is left to the program.
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

/// The part of the pseudo header that is constant in a flow: all but the length. With the length it is what a sender
/// leaves in the checksum field when hardware is to compute the rest.
fn pseudo_header(key: &FlowKey) -> u16 {
    let mut sum = Sum::default();
    sum.add_ip(key.remote.ip());
    sum.add_ip(key.local.ip());
    sum.add(&UDP.to_be_bytes());
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
pub(super) fn listener(address: SocketAddr) -> [u8; LISTENER] {
    let mut bytes = [0; LISTENER];
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

fn put_pairs(to: &mut [u8], pairs: [[u8; 2]; 3]) {
    to.copy_from_slice(pairs.as_flattened());
}
