//! A DTLS session that blocks for a while.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use client::{DtlsSession, Handshake, StreamError, Tls};
use turn::Mono;

use super::Connected;
use super::link::is_timeout;
use super::socket::{MIN_WAIT, udp};

/// A DTLS session with one server.
pub(super) struct Session {
    socket: UdpSocket,
    session: DtlsSession,
    start: Instant,
    handshake: Option<(Duration, Handshake)>,
    /// The datagram that was received last, decrypted up to `at`.
    datagram: Box<[u8]>,
    length: usize,
    at: usize,
    /// The datagram that is being sent.
    sealed: Vec<u8>,
}

impl Session {
    pub(super) fn open(server: SocketAddr, tls: &Tls, timeout: Duration) -> io::Result<Session> {
        let session = DtlsSession::new(tls, Mono(0), ::io::clock::unix_s());
        let mut session = Session {
            socket: udp(server)?,
            session: session.map_err(ended)?,
            start: Instant::now(),
            handshake: None,
            datagram: vec![0; 65_536].into(),
            length: 0,
            at: 0,
            sealed: Vec::new(),
        };
        session.shake_hands(timeout)?;
        Ok(session)
    }

    fn shake_hands(&mut self, timeout: Duration) -> io::Result<()> {
        loop {
            self.flush();
            let elapsed = self.start.elapsed();
            if let Some(handshake) = self.session.handshake() {
                self.handshake = Some((elapsed, handshake));
                return Ok(());
            }
            if elapsed >= timeout {
                let text = "the DTLS handshake did not end in time";
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            let due = self.session.poll_timeout();
            let due = due.map_or(timeout, |at| Duration::from_nanos(at.0).min(timeout));
            match self.read(due.saturating_sub(elapsed)) {
                Err(error) if is_timeout(error.kind()) => {
                    let timed = self.session.handle_timeout(self.now());
                    timed.map_err(ended)?;
                }
                Err(error) => return Err(error),
                // The handshake has no message for us.
                Ok(()) => _ = self.next()?,
            }
        }
    }

    fn now(&self) -> Mono {
        Mono(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Sends what the handshake wants sent. It retransmits what does not leave.
    fn flush(&mut self) {
        while let Some(datagram) = self.session.poll_transmit() {
            let _ = self.socket.send(datagram);
        }
    }

    fn read(&mut self, wait: Duration) -> io::Result<()> {
        self.socket.set_read_timeout(Some(wait.max(MIN_WAIT)))?;
        (self.length, self.at) = (self.socket.recv(&mut self.datagram)?, 0);
        Ok(())
    }

    /// The next message of the datagram.
    fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let now = self.now();
        let datagram = &mut self.datagram[..self.length];
        let opened = self.session.open(now, datagram, self.at);
        self.flush();
        Ok(opened.map_err(ended)?.map(|(message, next)| {
            self.at = next;
            &self.datagram[message]
        }))
    }

    pub(super) fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let sealed = self.session.seal(&[message], &mut self.sealed);
        sealed.map_err(|error| io::Error::new(io::ErrorKind::NotConnected, error))?;
        self.socket.send(&self.sealed).map(|_| ())
    }

    /// Waits for a message, at most for `wait`, and returns its length.
    pub(super) fn receive(&mut self, wait: Duration, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(message) = self.next()? {
                // The buffer is longer than any message.
                buffer[..message.len()].copy_from_slice(message);
                return Ok(message.len());
            }
            self.read(wait)?;
        }
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub(super) fn connected(&self) -> Connected {
        Connected {
            tcp: None,
            tls: self.handshake.clone(),
        }
    }
}

impl Drop for Session {
    /// Says that this is the end.
    fn drop(&mut self) {
        self.session.close();
        self.flush();
    }
}

fn ended(error: StreamError) -> io::Error {
    let kind = match error {
        StreamError::Closed => io::ErrorKind::UnexpectedEof,
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, error)
}
