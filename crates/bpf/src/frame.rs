//! Ethernet frames with one UDP datagram and valid checksums, as a sending host would have put them
//! on the wire.

use std::net::{IpAddr, SocketAddr};

/// Bytes of an Ethernet header without VLAN tag.
pub const ETHERNET_LEN: usize = 14;
const UDP_LEN: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const PROTOCOL_UDP: u8 = 17;
const DONT_FRAGMENT: [u8; 2] = [0x40, 0];
const TTL: u8 = 64;

/// A link-layer address.
pub type Mac = [u8; 6];

/// The two ends of a flow on one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Link-layer address of the sender.
    pub source_mac: Mac,
    /// Link-layer address of the next hop.
    pub destination_mac: Mac,
    /// Where the datagram comes from.
    pub source: SocketAddr,
    /// Where it goes to.
    pub destination: SocketAddr,
}

/// Source and destination of a [`Path`] are of different address families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("source and destination of a datagram must be of one address family")]
pub struct MixedFamilies;

impl Path {
    /// Offset of the UDP payload in a frame on this path.
    pub fn payload_offset(&self) -> usize {
        ETHERNET_LEN
            + UDP_LEN
            + if self.source.is_ipv4() {
                IPV4_LEN
            } else {
                IPV6_LEN
            }
    }

    /// The whole frame around `payload`. TTL 64, DF set (IPv4), identification 0, TOS 0.
    ///
    /// # Errors
    /// [`MixedFamilies`].
    pub fn frame(&self, payload: &[u8]) -> Result<Vec<u8>, MixedFamilies> {
        let mut frame = Vec::with_capacity(self.payload_offset() + payload.len());
        frame.extend(self.destination_mac);
        frame.extend(self.source_mac);
        let udp_len = UDP_LEN + payload.len();
        let pseudo = match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let addresses = [source.octets(), destination.octets()].concat();
                push_ipv4(&mut frame, &addresses, udp_len);
                addresses
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let addresses = [source.octets(), destination.octets()].concat();
                push_ipv6(&mut frame, &addresses, udp_len);
                addresses
            }
            _ => return Err(MixedFamilies),
        };
        self.push_udp(&mut frame, &pseudo, payload);
        Ok(frame)
    }

    fn push_udp(&self, frame: &mut Vec<u8>, addresses: &[u8], payload: &[u8]) {
        let at = frame.len();
        let length = length_field(UDP_LEN + payload.len());
        frame.extend(self.source.port().to_be_bytes());
        frame.extend(self.destination.port().to_be_bytes());
        frame.extend(length);
        frame.extend([0, 0]);
        frame.extend(payload);
        let mut sum = Checksum::default();
        sum.add(addresses);
        sum.add(&[0, PROTOCOL_UDP]);
        sum.add(&length);
        sum.add(&frame[at..]);
        // RFC 768: a computed checksum of zero is sent as all ones; zero means "none".
        let checksum = match sum.finish() {
            0 => 0xffff,
            other => other,
        };
        frame[at + 6..at + 8].copy_from_slice(&checksum.to_be_bytes());
    }
}

fn push_ipv4(frame: &mut Vec<u8>, addresses: &[u8], udp_len: usize) {
    frame.extend([0x08, 0x00]);
    let at = frame.len();
    frame.extend([0x45, 0]);
    frame.extend(length_field(IPV4_LEN + udp_len));
    frame.extend([0, 0]);
    frame.extend(DONT_FRAGMENT);
    frame.extend([TTL, PROTOCOL_UDP, 0, 0]);
    frame.extend(addresses);
    let mut sum = Checksum::default();
    sum.add(&frame[at..]);
    let checksum = sum.finish();
    frame[at + 10..at + 12].copy_from_slice(&checksum.to_be_bytes());
}

fn push_ipv6(frame: &mut Vec<u8>, addresses: &[u8], udp_len: usize) {
    frame.extend([0x86, 0xdd]);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(length_field(udp_len));
    frame.extend([PROTOCOL_UDP, TTL]);
    frame.extend(addresses);
}

/// The length as 16 bits. No datagram has a greater length: it becomes 65,535.
fn length_field(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes()
}

/// The Internet checksum (RFC 1071).
#[derive(Default)]
struct Checksum {
    sum: u64,
}

impl Checksum {
    /// Adds bytes; every call but the last must add an even number.
    fn add(&mut self, bytes: &[u8]) {
        for pair in bytes.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            self.sum += u64::from(u16::from_be_bytes([pair[0], low]));
        }
    }

    fn finish(mut self) -> u16 {
        while self.sum > 0xffff {
            self.sum = (self.sum & 0xffff) + (self.sum >> 16);
        }
        // Folded above: it fits.
        !(self.sum as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: Path = Path {
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 2],
        source: SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)), 40000),
        destination: SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2)), 3478),
    };

    #[test]
    fn an_ipv4_frame_is_what_a_host_would_send() {
        let frame = PATH.frame(b"hairpin").expect("one family");
        let wanted = [
            &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0][..],
            &[
                0x45, 0, 0, 35, 0, 0, 0x40, 0, 64, 17, 0xb6, 0xc6, 192, 0, 2, 1, 192, 0, 2, 2,
            ],
            &[0x9c, 0x40, 0x0d, 0x96, 0, 15, 0x21, 0xb8],
            b"hairpin",
        ]
        .concat();
        assert_eq!(frame, wanted);
        assert_eq!(PATH.payload_offset(), 42);
    }

    #[test]
    fn an_ipv6_frame_sums_to_all_ones() {
        let path = Path {
            source: "[2001:db8::1]:40000".parse().expect("address"),
            destination: "[2001:db8::2]:3478".parse().expect("address"),
            ..PATH
        };
        let frame = path.frame(&[1, 2, 3, 4]).expect("one family");
        assert_eq!(frame.len(), path.payload_offset() + 4);
        let mut sum = Checksum::default();
        sum.add(&frame[22..54]);
        sum.add(&[0, 17, 0, 12]);
        sum.add(&frame[54..]);
        assert_eq!(sum.finish(), 0);
    }

    #[test]
    fn families_are_not_mixed() {
        let path = Path {
            destination: "[2001:db8::2]:3478".parse().expect("address"),
            ..PATH
        };
        assert_eq!(path.frame(&[]), Err(MixedFamilies));
    }
}
