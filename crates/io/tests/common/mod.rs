//! What the loopback tests share.

// Each test binary uses its part of it.
#![allow(dead_code, unreachable_pub)]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use hairpin_io::{Flushed, Outbox, RecvBatch, SendOptions, SendQueue, UdpOptions, UdpSocket};

pub const LOOPBACKS: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];

pub fn bind(address: &str, options: &UdpOptions) -> UdpSocket {
    UdpSocket::bind(address.parse().unwrap(), options).unwrap()
}

pub fn plain(address: &str) -> UdpSocket {
    bind(address, &UdpOptions::default())
}

/// A datagram as a test wants to see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub bytes: Vec<u8>,
    pub from: SocketAddr,
    pub local_ip: Option<IpAddr>,
    pub tos: u8,
    pub tag: u64,
}

/// Receives until `count` datagrams have come, or two seconds are over.
pub fn receive(socket: &UdpSocket, count: usize) -> Vec<Seen> {
    let mut batch = RecvBatch::new(16, RecvBatch::LARGE);
    let mut seen = Vec::new();
    let end = Instant::now() + Duration::from_secs(2);
    while seen.len() < count && Instant::now() < end {
        batch.clear();
        match socket.recv(7, &mut batch) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1))
            }
            Err(error) => panic!("{error}"),
        }
        for datagrams in batch.iter() {
            assert!(!datagrams.truncated);
            seen.extend(datagrams.segments().map(|bytes| Seen {
                bytes: bytes.to_vec(),
                from: datagrams.from,
                local_ip: datagrams.local_ip,
                tos: datagrams.tos,
                tag: datagrams.tag,
            }));
        }
    }
    seen
}

pub fn lengths(seen: &[Seen]) -> Vec<usize> {
    seen.iter().map(|seen| seen.bytes.len()).collect()
}

pub fn send<'buf>(options: &SendOptions, push: impl FnOnce(&mut Outbox<'_, 'buf>)) -> Flushed {
    let mut queue = SendQueue::new(options);
    let mut out = queue.start();
    push(&mut out);
    out.flush()
}

pub fn without_gso() -> SendOptions {
    SendOptions {
        gso: false,
        ..SendOptions::default()
    }
}

/// Bytes that differ from datagram to datagram.
pub fn payload(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i + number * 31) as u8).collect()
}
