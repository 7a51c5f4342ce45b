//! The Homer Encapsulation Protocol, version 3: one UDP packet per message.
//!
//! ```text
//!  0                   4         6
//! +-------------------+---------+------------------------------------------+
//! | "HEP3"            | length  | chunks                                   |
//! +-------------------+---------+------------------------------------------+
//!   chunk: vendor (2, 0), type (2), length (2, these 6 bytes included), value
//! ```

use super::{MessagePath, TraceSettings, mapped};
use crate::sip::counters::SipCounters;
use io::{SendOptions, SendQueue, SendTo, UdpOptions, UdpSocket};
use sip::flow::Transport;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The maximum of packets that wait for the end of a turn. With more, the worker sends them at once.
const MAX_WAITING_PACKETS: usize = 64;

/// RFC 768 and RFC 791: the largest payload of UDP over IPv4.
const MAX_PAYLOAD_BYTES: usize = 65_507;

/// The maximum length of a packet without message and password: that with IPv6 addresses.
const MAX_OVERHEAD_BYTES: usize = 129;

/// Bytes of packets that the kernel queues for a slow collector; it drops further packets.
const SEND_BUFFER_BYTES: u32 = 1 << 20;

/// Types of chunks.
mod chunk {
    pub(super) const FAMILY: u16 = 1;
    pub(super) const PROTOCOL: u16 = 2;
    pub(super) const SOURCE_V4: u16 = 3;
    pub(super) const DESTINATION_V4: u16 = 4;
    pub(super) const SOURCE_V6: u16 = 5;
    pub(super) const DESTINATION_V6: u16 = 6;
    pub(super) const SOURCE_PORT: u16 = 7;
    pub(super) const DESTINATION_PORT: u16 = 8;
    pub(super) const SECONDS: u16 = 9;
    pub(super) const MICROSECONDS: u16 = 10;
    pub(super) const PAYLOAD_TYPE: u16 = 11;
    pub(super) const CAPTURE_ID: u16 = 12;
    pub(super) const PASSWORD: u16 = 14;
    pub(super) const PAYLOAD: u16 = 15;
}

const FAMILY_V4: u8 = 2;
const FAMILY_V6: u8 = 10;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const PAYLOAD_SIP: u8 = 1;

/// The collectors, and packets that wait for the end of a turn.
#[derive(Debug)]
pub(super) struct Collectors {
    addresses: Vec<SocketAddr>,
    capture_id: u32,
    password: Vec<u8>,
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
    queue: SendQueue,
    packets: Vec<u8>,
    /// The end of each packet in the buffer.
    ends: Vec<usize>,
}

impl Collectors {
    /// `None` if there is none.
    pub(super) fn new(settings: &TraceSettings) -> Option<Collectors> {
        if settings.collectors.is_empty() {
            return None;
        }
        let has = |v6| settings.collectors.iter().any(|it| it.is_ipv6() == v6);
        let options = SendOptions {
            gso: false,
            max_segments: 1,
            capacity: MAX_WAITING_PACKETS,
        };
        Some(Collectors {
            addresses: settings.collectors.clone(),
            capture_id: settings.capture_id,
            password: settings.password.clone().into_bytes(),
            v4: has(false)
                .then(|| open(Ipv4Addr::UNSPECIFIED.into()))
                .flatten(),
            v6: has(true)
                .then(|| open(Ipv6Addr::UNSPECIFIED.into()))
                .flatten(),
            queue: SendQueue::new(&options),
            packets: Vec::new(),
            ends: Vec::with_capacity(MAX_WAITING_PACKETS),
        })
    }

    /// Queues a packet.
    pub(super) fn push(&mut self, path: &MessagePath, message: &[u8], counters: &mut SipCounters) {
        write(
            &mut self.packets,
            path,
            (self.capture_id, &self.password),
            message,
        );
        self.ends.push(self.packets.len());
        if self.ends.len() >= MAX_WAITING_PACKETS {
            self.flush(counters);
        }
    }

    /// Sends the packets that wait. It does not wait for the socket: the kernel drops packets without room.
    pub(super) fn flush(&mut self, counters: &mut SipCounters) {
        if self.ends.is_empty() {
            return;
        }
        let before = (self.queue.totals().sent, self.queue.totals().dropped());
        let mut without_socket = 0;
        let mut out = self.queue.start();
        for address in &self.addresses {
            let socket = if address.is_ipv6() {
                &self.v6
            } else {
                &self.v4
            };
            let Some(socket) = socket else {
                without_socket += self.ends.len() as u64;
                continue;
            };
            let to = SendTo::new(socket, *address);
            let mut start = 0;
            for end in &self.ends {
                out.push_copied(&to, self.packets.get(start..*end).unwrap_or_default());
                start = *end;
            }
        }
        drop(out);
        let totals = self.queue.totals();
        counters.hep_sent += totals.sent - before.0;
        counters.hep_dropped += totals.dropped() - before.1 + without_socket;
        self.packets.clear();
        self.ends.clear();
    }
}

fn open(address: IpAddr) -> Option<UdpSocket> {
    let options = UdpOptions {
        send_buffer: Some(SEND_BUFFER_BYTES),
        ..UdpOptions::default()
    };
    UdpSocket::bind(SocketAddr::new(address, 0), &options)
        .inspect_err(|error| {
            tracing::warn!(%error, "no socket for HEP packets: a worker drops them until the next reload");
        })
        .ok()
}

/// Appends a packet. A message too long for a UDP packet is cut.
fn write(
    out: &mut Vec<u8>,
    path: &MessagePath,
    (capture_id, password): (u32, &[u8]),
    message: &[u8],
) {
    let most = MAX_PAYLOAD_BYTES - MAX_OVERHEAD_BYTES - password.len();
    let message = message.get(..most).unwrap_or(message);
    let (source, destination) = match path.is_sent {
        true => (path.local, path.remote),
        false => (path.remote, path.local),
    };
    let start = out.len();
    out.extend(b"HEP3\0\0");
    match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            put(out, chunk::FAMILY, &[FAMILY_V4]);
            put(out, chunk::SOURCE_V4, &source.octets());
            put(out, chunk::DESTINATION_V4, &destination.octets());
        }
        (source, destination) => {
            put(out, chunk::FAMILY, &[FAMILY_V6]);
            put(out, chunk::SOURCE_V6, &mapped(source).octets());
            put(out, chunk::DESTINATION_V6, &mapped(destination).octets());
        }
    }
    let protocol = match path.transport {
        Transport::Udp => PROTOCOL_UDP,
        _ => PROTOCOL_TCP,
    };
    put(out, chunk::PROTOCOL, &[protocol]);
    put(out, chunk::SOURCE_PORT, &source.port().to_be_bytes());
    put(
        out,
        chunk::DESTINATION_PORT,
        &destination.port().to_be_bytes(),
    );
    // The field has 32 bits: it ends in 2106.
    let seconds = (path.unix_ns / 1_000_000_000) as u32;
    let microseconds = (path.unix_ns % 1_000_000_000 / 1000) as u32;
    put(out, chunk::SECONDS, &seconds.to_be_bytes());
    put(out, chunk::MICROSECONDS, &microseconds.to_be_bytes());
    put(out, chunk::PAYLOAD_TYPE, &[PAYLOAD_SIP]);
    put(out, chunk::CAPTURE_ID, &capture_id.to_be_bytes());
    if !password.is_empty() {
        put(out, chunk::PASSWORD, password);
    }
    put(out, chunk::PAYLOAD, message);
    let length = (out.len() - start) as u16;
    if let Some(field) = out.get_mut(start + 4..start + 6) {
        field.copy_from_slice(&length.to_be_bytes());
    }
}

fn put(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    // The vendor.
    out.extend([0, 0]);
    out.extend(kind.to_be_bytes());
    out.extend((value.len() as u16 + 6).to_be_bytes());
    out.extend(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_never_longer_than_udp_allows() {
        let path = MessagePath {
            unix_ns: 1_795_000_000_123_456_789,
            is_sent: true,
            transport: Transport::Tls,
            local: "[2001:db8::1]:5061".parse().unwrap(),
            remote: "[2001:db8::2]:40000".parse().unwrap(),
        };
        let mut out = Vec::new();
        write(&mut out, &path, (7, &[b'p'; 255]), &[b'x'; 100_000]);
        assert_eq!(out.len(), MAX_PAYLOAD_BYTES);
        assert_eq!(out[4..6], (MAX_PAYLOAD_BYTES as u16).to_be_bytes());
        out.clear();
        write(&mut out, &path, (7, b""), b"");
        assert_eq!(out.len(), MAX_OVERHEAD_BYTES - 6);
    }
}
