//! Bare relays that damage or repeat datagrams. They show what the benchmark reports about such a server.
//!
//! They do not change or repeat datagrams with low sequence numbers. These belong to the payload check: if it fails,
//! the benchmark does not measure the server.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};

use super::plain::send;

/// The sequence numbers of a load: lower ones, and the highest, belong to the payload check.
const LOAD: std::ops::Range<u32> = 1_000..u32::MAX;
/// Of this many datagrams, `damage` damages the last 64. The counter compares the whole payload of one in 64 datagrams,
/// so it finds one of them.
const DATAGRAMS_PER_PERIOD: u32 = 256;

/// The sequence number of a datagram of the load. The head of a payload is 16 bytes; ChannelData has four bytes before
/// it. In a STUN message, the sequence number is in the transaction ID.
fn sequence(datagram: &[u8]) -> Option<u32> {
    let is_payload = datagram.starts_with(&bpf::payload::MAGIC.to_le_bytes());
    let at = if is_payload { 8 } else { 12 };
    let word: [u8; 4] = datagram.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_le_bytes(word)).filter(|sequence| LOAD.contains(sequence))
}

/// Changes one bit of some datagrams.
pub(super) fn damage(socket: &UdpSocket, datagram: &[u8], to: SocketAddr) {
    let is_damaged = |sequence| sequence % DATAGRAMS_PER_PERIOD >= DATAGRAMS_PER_PERIOD - 64;
    let mut sent = datagram.to_vec();
    if sequence(datagram).is_some_and(is_damaged) {
        let middle = sent.len() / 2;
        sent[middle] ^= 1;
    }
    send(socket, &sent, to);
}

/// Sends each datagram again, when the next one of its flow has been sent.
pub(super) fn repeat() -> impl FnMut(&UdpSocket, &[u8], SocketAddr) {
    let mut previous: HashMap<SocketAddr, Vec<u8>> = HashMap::new();
    move |socket, datagram, to| {
        send(socket, datagram, to);
        if sequence(datagram).is_none() {
            return;
        }
        let before = previous.entry(to).or_default();
        if !before.is_empty() {
            send(socket, before, to);
        }
        before.clear();
        before.extend_from_slice(datagram);
    }
}
