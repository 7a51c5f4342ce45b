//! The UDP sockets of a worker.

use std::io as stdio;
use std::net::{IpAddr, SocketAddr};

use ::io::{
    Event, Flushed, Interest, Poller, RecvBatch, SendOptions, SendQueue, SendTo, UdpOptions,
    UdpSocket,
};

use crate::sip::out::{Origin, Out};

/// Datagrams received from one socket before others have their turn.
const BATCH_DATAGRAMS: usize = 64;
/// Receive buffer asked for, bytes, of all sockets of a worker together: answers of a stall of the generator must not
/// be lost. The kernel accounts 2,304 bytes for one of a kilobyte, so these are the 180 and the 200 of 28,000 calls.
const BUFFER_BYTES: u32 = 64 << 20;
/// What each has at least.
const MIN_BUFFER_BYTES: u32 = 256 << 10;
/// Most messages that wait to be sent.
pub(super) const MAX_QUEUED_MESSAGES: usize = 512;
/// ICMP errors fetched at a time.
const ICMP_ERRORS: usize = 64;

/// Sockets with their batch and queue.
#[derive(Debug)]
pub(super) struct Datagrams {
    sockets: Vec<UdpSocket>,
    batch: RecvBatch,
    queue: SendQueue,
    behind: bool,
    overflow: u64,
}

impl Datagrams {
    /// Opens `count` sockets on `local`. `poller` has them by their index.
    pub(super) fn open(
        count: usize,
        local: IpAddr,
        gso: Option<usize>,
        poller: &Poller,
    ) -> stdio::Result<Datagrams> {
        let options = UdpOptions {
            overflow: true,
            icmp_errors: true,
            tos: false,
            recv_buffer: Some((BUFFER_BYTES / count.max(1) as u32).max(MIN_BUFFER_BYTES)),
            send_buffer: Some(1 << 20),
            ..UdpOptions::default()
        };
        let mut sockets = Vec::with_capacity(count);
        for index in 0..count {
            let socket = UdpSocket::bind(SocketAddr::new(local, 0), &options)?;
            poller.add(&socket, index as u64, Interest::Read)?;
            sockets.push(socket);
        }
        let queue = SendQueue::new(&SendOptions {
            gso: gso.is_some(),
            max_segments: gso.unwrap_or(1),
            capacity: 2 * MAX_QUEUED_MESSAGES,
        });
        Ok(Datagrams {
            sockets,
            batch: RecvBatch::new(BATCH_DATAGRAMS, 4 * RecvBatch::SMALL),
            queue,
            behind: false,
            overflow: 0,
        })
    }

    pub(super) fn local_addrs(&self) -> Vec<SocketAddr> {
        self.sockets.iter().map(UdpSocket::local_addr).collect()
    }

    /// Reads a batch of a socket; returns how many ICMP errors there were.
    pub(super) fn receive(&mut self, event: Event, on: &mut impl FnMut(Origin, &[u8])) -> u64 {
        let socket = &self.sockets[event.token as usize];
        let mut refused = 0;
        if event.error {
            for _ in 0..ICMP_ERRORS {
                match socket.next_icmp_error() {
                    Ok(Some(_)) => refused += 1,
                    _ => break,
                }
            }
        }
        self.batch.clear();
        if socket.recv(0, &mut self.batch).is_ok() {
            for datagram in self.batch.iter() {
                let origin = Origin {
                    link: event.token as u32,
                    from: datagram.from,
                };
                on(origin, datagram.bytes);
            }
        }
        self.overflow += self.batch.overflow();
        self.behind |= self.batch.len() == BATCH_DATAGRAMS;
        refused
    }

    /// Whether a socket had more to read than it was its turn to, since it was last asked.
    pub(super) fn take_has_more(&mut self) -> bool {
        std::mem::take(&mut self.behind)
    }

    /// Datagrams that found a receive buffer full, since the start.
    pub(super) fn overflow(&self) -> u64 {
        self.overflow
    }

    /// Sends what waits.
    pub(super) fn send(&mut self, out: &Out) -> Flushed {
        let mut outbox = self.queue.start();
        for entry in &out.entries {
            let to = SendTo::new(&self.sockets[entry.link as usize], entry.to);
            outbox.push(&to, &out.bytes[entry.range.clone()]);
        }
        outbox.flush()
    }
}
