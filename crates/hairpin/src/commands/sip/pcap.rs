//! Messages of a call as a pcap file.
//!
//! Each message is one UDP datagram, also if it came over a connection. A worker has no packets of connections, and
//! over TLS they would be encrypted.

use std::net::{IpAddr, SocketAddr};

use server::sip::mapped;

use super::trace::Message;

/// The format with microseconds; version 2.4.
const MAGIC: u32 = 0xa1b2_c3d4;
/// LINKTYPE_RAW: packets begin with an IPv4 or IPv6 header.
const LINK_TYPE: u32 = 101;
/// Packets are never longer.
const SNAP_LENGTH: u32 = 65_575;

const IPV4_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const UDP: u8 = 17;
const HOP_LIMIT: u8 = 64;

/// The longest message: the length field of IPv4 has 16 bits.
const MAX_MESSAGE_BYTES: usize = 65_535 - IPV4_HEADER - UDP_HEADER;

/// The file with these messages.
pub(super) fn file(messages: &[Message]) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend(MAGIC.to_le_bytes());
    file.extend([2, 0, 4, 0]);
    // Times are UTC, with an unknown accuracy.
    file.extend([0; 8]);
    file.extend(SNAP_LENGTH.to_le_bytes());
    file.extend(LINK_TYPE.to_le_bytes());
    for message in messages {
        let packet = packet(message);
        let length = (packet.len() as u32).to_le_bytes();
        // The format has 32 bits for the time: it ends in 2106.
        file.extend(((message.unix_us / 1_000_000) as u32).to_le_bytes());
        file.extend(((message.unix_us % 1_000_000) as u32).to_le_bytes());
        file.extend([length, length].concat());
        file.extend(packet);
    }
    file
}

fn packet(message: &Message) -> Vec<u8> {
    let (source, destination) = match message.is_sent {
        true => (message.local, message.remote),
        false => (message.remote, message.local),
    };
    let payload = message
        .bytes
        .get(..MAX_MESSAGE_BYTES)
        .unwrap_or(&message.bytes);
    let length = (UDP_HEADER + payload.len()) as u16;
    let mut packet = Vec::new();
    let pseudo = match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let total = length + IPV4_HEADER as u16;
            packet.extend([0x45, 0]);
            packet.extend(total.to_be_bytes());
            // No identification, not fragmented; the checksum follows.
            packet.extend([0, 0, 0x40, 0, HOP_LIMIT, UDP, 0, 0]);
            packet.extend([source.octets(), destination.octets()].concat());
            let sum = checksum(&packet);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            [source.octets(), destination.octets()].concat()
        }
        (source, destination) => {
            let addresses = [mapped(source).octets(), mapped(destination).octets()].concat();
            packet.extend([0x60, 0, 0, 0]);
            packet.extend(length.to_be_bytes());
            packet.extend([UDP, HOP_LIMIT]);
            packet.extend(&addresses);
            addresses
        }
    };
    packet.extend(datagram((source, destination), length, &pseudo, payload));
    packet
}

/// The UDP header and its payload. RFC 768: the checksum covers the addresses as well.
fn datagram(
    (source, destination): (SocketAddr, SocketAddr),
    length: u16,
    addresses: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let mut datagram = Vec::new();
    datagram.extend(source.port().to_be_bytes());
    datagram.extend(destination.port().to_be_bytes());
    datagram.extend(length.to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    let protocol = [0, UDP];
    let covered = [addresses, &protocol, &length.to_be_bytes(), &datagram].concat();
    // RFC 768: 0 means that there is none.
    let sum = Some(checksum(&covered))
        .filter(|sum| *sum != 0)
        .unwrap_or(u16::MAX);
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    datagram
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| {
        let low = word.get(1).copied().unwrap_or(0);
        u32::from(word[0]) << 8 | u32::from(low)
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::super::trace::tests::message;
    use super::*;

    #[test]
    fn packets_have_valid_lengths_and_checksums() {
        let mut v6 = message(1_500_000, false, 5062, "OPTIONS sip:a@b SIP/2.0\r\n\r\nodd");
        v6.local = "[2001:db8::1]:5060".parse().unwrap();
        v6.remote = "[2001:db8::9]:5062".parse().unwrap();
        let v4 = message(2_000_001, true, 5062, "SIP/2.0 200 OK\r\n\r\n");
        let long = message(3_000_000, true, 5062, &"x".repeat(70_000));
        let file = file(&[v6, v4, long]);
        let le = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
        let be = |at: usize| usize::from(u16::from_be_bytes(file[at..at + 2].try_into().unwrap()));
        // The global header has 24 bytes, the header of a packet 16.
        assert_eq!((le(24), le(28)), (1, 500_000));
        let first = 24 + 16;
        assert_eq!((file[first], be(first + 4) + 40), (0x60, le(32)));
        let second = first + le(32) + 16;
        assert_eq!((file[second], be(second + 2)), (0x45, le(second - 8)));
        assert_eq!(checksum(&file[second..second + IPV4_HEADER]), 0);
        let udp = &file[second + IPV4_HEADER..second + le(second - 8)];
        let pseudo = [&file[second + 12..second + 20], &[0, UDP], &udp[4..6], udp].concat();
        assert_eq!(checksum(&pseudo), 0);
        assert!(udp.ends_with(b"SIP/2.0 200 OK\r\n\r\n"));
        let third = second + le(second - 8) + 16;
        assert_eq!(be(third + 2), 65_535);
        assert_eq!(file.len(), third + 65_535);
    }
}
