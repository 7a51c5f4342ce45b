//! What a relay must make of a case, computed from scratch: whole frames with whole checksums. Shares no code with what
//! is tested.

use std::net::{IpAddr, SocketAddr};

use super::{CHANNEL, Case, Checksum, OTHER_CHANNEL, Way};

/// Link-layer addresses of a frame: destination and source.
pub(crate) type Macs = [[u8; 6]; 2];

/// What arrives comes from here, to loopback's address of zeroes.
pub(crate) const ARRIVING: Macs = [[0; 6], [2, 0, 0, 0, 1, 1]];
/// What leaves goes to the next hop.
pub(crate) const LEAVING: Macs = [[2, 0, 0, 0, 2, 2], [2, 0, 0, 0, 2, 1]];

/// An IP packet with a UDP datagram.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    /// IPv4: identification, with DF if `dont_fragment`. IPv6: flow label.
    pub(crate) label: u32,
    pub(crate) dont_fragment: bool,
    pub(crate) without_checksum: bool,
    pub(crate) payload: Vec<u8>,
}

impl Packet {
    pub(crate) fn frame(&self, macs: Macs) -> Vec<u8> {
        let mut frame = macs.concat();
        let udp = self.udp();
        match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                frame.extend([8, 0]);
                let total = (20 + udp.len()) as u16;
                let mut header = vec![0x45, self.tos];
                header.extend(total.to_be_bytes());
                header.extend((self.label as u16).to_be_bytes());
                header.extend([
                    if self.dont_fragment { 0x40 } else { 0 },
                    0,
                    self.ttl,
                    17,
                    0,
                    0,
                ]);
                header.extend(source.octets());
                header.extend(destination.octets());
                let checksum = !sum(&header);
                header[10..12].copy_from_slice(&checksum.to_be_bytes());
                frame.extend(header);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                frame.extend([0x86, 0xdd]);
                let first = 6 << 28 | u32::from(self.tos) << 20 | self.label;
                frame.extend(first.to_be_bytes());
                frame.extend((udp.len() as u16).to_be_bytes());
                frame.extend([17, self.ttl]);
                frame.extend(source.octets());
                frame.extend(destination.octets());
            }
            _ => panic!("one family"),
        }
        frame.extend(udp);
        frame
    }

    fn udp(&self) -> Vec<u8> {
        let length = (8 + self.payload.len()) as u16;
        let mut udp = self.source.port().to_be_bytes().to_vec();
        udp.extend(self.destination.port().to_be_bytes());
        udp.extend(length.to_be_bytes());
        udp.extend([0, 0]);
        udp.extend(&self.payload);
        if !self.without_checksum {
            let whole = [self.pseudo_header(), udp.clone()].concat();
            let checksum = match !sum(&whole) {
                0 => 0xffff,
                other => other,
            };
            udp[6..8].copy_from_slice(&checksum.to_be_bytes());
        }
        udp
    }

    pub(crate) fn pseudo_header(&self) -> Vec<u8> {
        let mut header = Vec::new();
        for address in [self.source, self.destination] {
            match address.ip() {
                IpAddr::V4(ip) => header.extend(ip.octets()),
                IpAddr::V6(ip) => header.extend(ip.octets()),
            }
        }
        header.extend([0, 17]);
        header.extend((8 + self.payload.len() as u16).to_be_bytes());
        header
    }

    /// Chooses the last two bytes of an even payload so that the checksum is the sum over the pseudo header.
    pub(crate) fn look_partial(&mut self) {
        let end = self.payload.len();
        assert!(end >= 2 && end.is_multiple_of(2));
        self.payload[end - 2..].fill(0);
        let pseudo = sum(&self.pseudo_header());
        self.without_checksum = true;
        let rest = sum(&[self.pseudo_header(), self.udp()].concat());
        self.without_checksum = false;
        // One's complement: ~(rest + filler) is to be `pseudo`.
        let filler = sum(&[(!pseudo).to_be_bytes(), (!rest).to_be_bytes()].concat());
        self.payload[end - 2..].copy_from_slice(&filler.to_be_bytes());
    }
}

/// RFC 1071, the slow way.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

pub(crate) fn channel_data(channel: u16, payload: &[u8], padding: &[u8]) -> Vec<u8> {
    let mut message = channel.to_be_bytes().to_vec();
    message.extend((payload.len() as u16).to_be_bytes());
    message.extend(payload);
    message.extend(padding);
    message
}

impl Case {
    /// The packet that arrives, before it is damaged.
    pub(crate) fn arriving(&self) -> Packet {
        let addresses = self.addresses();
        let (source, destination, payload) = match self.way {
            Way::ToPeer | Way::Between => {
                let message = channel_data(CHANNEL, &self.data(), self.padding);
                (addresses.client, addresses.listener, message)
            }
            Way::ToClient => (addresses.peer, addresses.relay, self.data()),
        };
        let mut packet = Packet {
            source,
            destination,
            tos: self.tos,
            ttl: self.ttl,
            label: 0xbeef,
            dont_fragment: true,
            without_checksum: self.checksum == Checksum::Absent,
            payload,
        };
        if self.checksum == Checksum::LooksPartial {
            packet.look_partial();
        }
        packet
    }

    /// The frame that arrives.
    pub(crate) fn arriving_frame(&self) -> Vec<u8> {
        let mut frame = self.arriving().frame(ARRIVING);
        frame.extend(self.trailer);
        (self.damage)(&mut frame);
        frame
    }

    /// The packet that leaves, with this IPv4 identification or flow label.
    pub(crate) fn leaving(&self, label: u32) -> Packet {
        let arriving = self.arriving();
        let data = match self.way {
            Way::ToClient => &arriving.payload[..],
            Way::ToPeer | Way::Between => &arriving.payload[4..4 + self.payload],
        };
        self.leaving_with(data, label)
    }

    /// The same with other data.
    pub(crate) fn leaving_with(&self, data: &[u8], label: u32) -> Packet {
        let addresses = self.addresses();
        let (source, destination, payload) = match self.way {
            Way::ToPeer => (addresses.relay, addresses.peer, data.to_vec()),
            Way::ToClient => (
                addresses.listener,
                addresses.client,
                channel_data(CHANNEL, data, &[]),
            ),
            Way::Between => (
                addresses.listener,
                addresses.other_client,
                channel_data(OTHER_CHANNEL, data, &[]),
            ),
        };
        Packet {
            source,
            destination,
            tos: self.tos,
            ttl: self.ttl - 1,
            label,
            dont_fragment: false,
            without_checksum: self.checksum == Checksum::Absent,
            payload,
        }
    }
}
