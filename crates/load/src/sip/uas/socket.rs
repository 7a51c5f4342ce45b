//! A UDP socket of the answering side.

use std::io;
use std::net::SocketAddr;

use ::io::{RecvBatch, SendOptions, SendQueue, SendTo, UdpOptions, UdpSocket};

use super::answer::Ends;
use super::answerer::Answerer;
use super::counts::Count;
use crate::bench::floor::LISTENER_BUFFER;
use crate::sip::Transport;
use crate::sip::out::Out;

/// Datagrams received before their answers leave.
const BATCH_DATAGRAMS: usize = 64;
/// Bytes of the receive buffer and of the send buffer: as many as hairpin asks for, because this is its floor in a
/// benchmark.
const BUFFER_BYTES: u32 = LISTENER_BUFFER;

/// A socket with its batch and its queue.
#[derive(Debug)]
pub(super) struct Socket {
    socket: UdpSocket,
    batch: RecvBatch,
    queue: SendQueue,
    out: Out,
}

impl Socket {
    pub(super) fn bind(address: SocketAddr) -> io::Result<Socket> {
        let options = UdpOptions {
            reuse_port: true,
            overflow: true,
            tos: false,
            recv_buffer: Some(BUFFER_BYTES),
            send_buffer: Some(BUFFER_BYTES),
            ..UdpOptions::default()
        };
        let send = SendOptions {
            gso: false,
            capacity: 4 * BATCH_DATAGRAMS,
            ..SendOptions::default()
        };
        Ok(Socket {
            socket: UdpSocket::bind(address, &options)?,
            batch: RecvBatch::new(BATCH_DATAGRAMS, RecvBatch::SMALL * 4),
            queue: SendQueue::new(&send),
            out: Out::default(),
        })
    }

    pub(super) fn source(&self) -> &UdpSocket {
        &self.socket
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    /// Reads a batch and answers it.
    pub(super) fn serve(&mut self, link: u32, answerer: &mut Answerer) {
        self.batch.clear();
        if self.socket.recv(0, &mut self.batch).is_err() {
            return;
        }
        let local = self.socket.local_addr();
        for datagram in self.batch.iter().filter(|datagram| !datagram.truncated) {
            let ends = Ends {
                from: datagram.from,
                local,
                transport: Transport::Udp,
            };
            answerer.take(link, datagram.bytes, ends, &mut self.out);
        }
        answerer.counts.add(Count::Overflow, self.batch.overflow());
        let mut outbox = self.queue.start();
        for entry in &self.out.entries {
            let to = SendTo::new(&self.socket, entry.to);
            outbox.push(&to, &self.out.bytes[entry.range.clone()]);
        }
        outbox.flush();
        drop(outbox);
        self.out.clear();
    }

    /// Sends one datagram.
    pub(super) fn send(&mut self, to: SocketAddr, message: &[u8]) {
        // What does not leave is lost like any other datagram: it is repeated.
        let _ = self.socket.send_to(message, to, None);
    }
}
