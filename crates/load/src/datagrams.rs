//! A DTLS session, and its datagrams that wait for the socket.

use std::collections::VecDeque;
use std::io as stdio;
use std::net::UdpSocket;
use std::ops::Range;

use client::{DtlsSession, StreamError, Tls};
use io::clock;
use turn::Mono;

/// A DTLS session, and its datagrams that wait for the socket.
pub(crate) struct Datagrams {
    session: DtlsSession,
    /// Messages that wait for the end of the handshake. A client repeats its requests meanwhile: each is kept once.
    early: Vec<Vec<u8>>,
    /// Encrypted datagrams, one after the other, and their lengths. Those before `sent` have left.
    bytes: Vec<u8>,
    lengths: VecDeque<usize>,
    sent: usize,
    /// The datagram that is being encrypted.
    sealed: Vec<u8>,
}

impl Datagrams {
    pub(crate) fn new(tls: &Tls) -> Result<Datagrams, StreamError> {
        Ok(Datagrams {
            session: DtlsSession::new(tls, now(), clock::unix_s())?,
            early: Vec::new(),
            bytes: Vec::new(),
            lengths: VecDeque::new(),
            sent: 0,
            sealed: Vec::new(),
        })
    }

    pub(crate) fn is_established(&self) -> bool {
        self.session.is_established()
    }

    /// The number of queued bytes. They wait for the socket or for the end of the handshake.
    pub(crate) fn backlog(&self) -> usize {
        let early: usize = self.early.iter().map(Vec::len).sum();
        self.bytes.len() - self.sent + early
    }

    /// Encrypts a message, given in parts, and queues it. False if the session has ended.
    pub(crate) fn queue(&mut self, parts: &[&[u8]]) -> bool {
        if self.session.is_established() {
            let sealed = self.session.seal(parts, &mut self.sealed);
            if sealed.is_ok() {
                self.bytes.extend_from_slice(&self.sealed);
                self.lengths.push_back(self.sealed.len());
            }
            return sealed.is_ok();
        }
        let message = parts.concat();
        if !self.early.contains(&message) {
            self.early.push(message);
        }
        true
    }

    /// Sends what waits, the handshake's datagrams too; true if nothing is left. Adds the system calls to `calls`.
    pub(crate) fn flush(
        &mut self,
        socket: &UdpSocket,
        calls: &mut u64,
    ) -> Result<bool, StreamError> {
        let due = self.session.poll_timeout();
        let ended = match due {
            Some(due) if due <= now() => self.session.handle_timeout(now()),
            _ => Ok(()),
        };
        while let Some(datagram) = self.session.poll_transmit() {
            *calls += 1;
            // What does not leave is retransmitted by the handshake's own timer.
            let _ = socket.send(datagram);
        }
        ended?;
        if self.session.is_established() {
            for message in std::mem::take(&mut self.early) {
                self.queue(&[&message]);
            }
        }
        while let Some(&length) = self.lengths.front() {
            *calls += 1;
            match socket.send(&self.bytes[self.sent..self.sent + length]) {
                Err(error) if error.kind() == stdio::ErrorKind::WouldBlock => return Ok(false),
                // Over UDP an error is that of an earlier datagram; this one counts as lost.
                _ => {}
            }
            self.lengths.pop_front();
            self.sent += length;
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Decrypts a received datagram from `at` on, up to the first message; see [`DtlsSession::open`].
    pub(crate) fn open(
        &mut self,
        datagram: &mut [u8],
        at: usize,
    ) -> Result<Option<(Range<usize>, usize)>, StreamError> {
        self.session.open(now(), datagram, at)
    }

    pub(crate) fn close(&mut self) {
        self.session.close();
    }
}

fn now() -> Mono {
    Mono(clock::monotonic_ns())
}
