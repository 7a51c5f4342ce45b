//! Bare relays that damage or repeat datagrams. They show what the benchmark reports about such a server.
//!
//! Both relay the first datagrams as they are. These belong to the payload check, which would end the measurement.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};

use super::plain::send;

/// Datagrams that are relayed as they are.
const FIRST: u64 = 1_000;
/// Of this many datagrams, `damage` damages the last 64. The payload check of the counter compares one of 64 whole
/// payloads, so it finds one of them.
const PERIOD: u64 = 256;
/// How many datagrams later `repeat` sends a datagram again.
const DISTANCE: usize = 100;

/// Changes one bit of some datagrams.
pub(super) fn damage() -> impl FnMut(&UdpSocket, &[u8], SocketAddr) {
    let mut number = 0u64;
    move |socket, datagram, to| {
        number += 1;
        let mut sent = datagram.to_vec();
        if number > FIRST && number % PERIOD >= PERIOD - 64 {
            let middle = sent.len() / 2;
            sent[middle] ^= 1;
        }
        send(socket, &sent, to);
    }
}

/// Sends each datagram again.
pub(super) fn repeat() -> impl FnMut(&UdpSocket, &[u8], SocketAddr) {
    let mut number = 0u64;
    let mut kept: VecDeque<(Vec<u8>, SocketAddr)> = VecDeque::new();
    move |socket, datagram, to| {
        number += 1;
        send(socket, datagram, to);
        if number <= FIRST {
            return;
        }
        kept.push_back((datagram.to_vec(), to));
        if kept.len() > DISTANCE
            && let Some((again, to)) = kept.pop_front()
        {
            send(socket, &again, to);
        }
    }
}
