//! A connection to a server over TCP or TLS, as messages: without a socket.
//!
//! ```text
//!  socket ─ receive ─▶ TLS ─▶ incoming ─▶ next: one whole message
//!  socket ◀─ flush ─── TLS ◀─ outgoing ◀─ queue: a message and its padding
//! ```
//!
//! Its owner reads and writes the socket. What is queued between two flushes leaves in one write, and in one TLS record if it
//! fits into 16 KiB. Buffers grow with what waits in them and are kept; nothing is allocated per message.

mod error;
#[cfg(feature = "tls")]
mod tls;

use std::io::{self, Write};

use stun::stream::Frame;

pub use error::StreamError;
#[cfg(feature = "tls")]
pub use tls::{Tls, TlsConfigError};

/// An empty buffer keeps so much memory: a few full-size messages.
const KEEP: usize = 16 * 1024;

/// A connection to a server as messages. Every driver of TCP or TLS has one beside its socket.
pub struct Stream {
    #[cfg(feature = "tls")]
    session: Option<Box<tls::Session>>,
    incoming: Vec<u8>,
    /// Where in `incoming` the next message begins.
    next: usize,
    outgoing: Vec<u8>,
    /// How much of `outgoing` the socket has accepted.
    written: usize,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("is_tls", &self.is_tls())
            .field("incoming", &(self.incoming.len() - self.next))
            .field("backlog", &self.backlog())
            .finish()
    }
}

impl Stream {
    /// A connection over TCP.
    #[must_use]
    pub fn tcp() -> Stream {
        Stream {
            #[cfg(feature = "tls")]
            session: None,
            incoming: Vec::new(),
            next: 0,
            outgoing: Vec::new(),
            written: 0,
        }
    }

    /// A connection over TLS. [`flush`](Stream::flush) sends the first message of the handshake.
    ///
    /// # Errors
    /// [`StreamError::Tls`] if the configuration does not work.
    #[cfg(feature = "tls")]
    pub fn tls(tls: &Tls) -> Result<Stream, StreamError> {
        Ok(Stream {
            session: Some(Box::new(tls::Session::new(tls)?)),
            ..Stream::tcp()
        })
    }

    /// Whether it is TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.session.is_some();
        #[cfg(not(feature = "tls"))]
        return false;
    }

    /// Whether messages can leave: over TLS, once the handshake is complete. What is queued earlier waits for that.
    #[must_use]
    pub fn is_established(&self) -> bool {
        #[cfg(feature = "tls")]
        if let Some(session) = &self.session {
            return session.is_established();
        }
        true
    }

    /// What the handshake agreed on; `None` over TCP and before it is complete.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn handshake(&self) -> Option<Handshake> {
        self.session
            .as_ref()
            .and_then(|session| session.handshake())
    }

    /// Takes what was read from the socket. Afterwards the owner calls [`next`](Stream::next_message) until it returns `None`.
    ///
    /// # Errors
    /// [`StreamError::Tls`]: the connection is of no more use. [`flush`](Stream::flush) still sends the alert that says why.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        self.compact();
        #[cfg(feature = "tls")]
        if let Some(session) = &mut self.session {
            return session.receive(bytes, &mut self.incoming);
        }
        self.incoming.extend_from_slice(bytes);
        Ok(())
    }

    /// The next whole message, without its padding.
    ///
    /// # Errors
    /// [`StreamError::NotStun`]: no further message can be found.
    pub fn next_message(&mut self) -> Result<Option<&[u8]>, StreamError> {
        let rest = &self.incoming[self.next..];
        if rest.is_empty() {
            return Ok(None);
        }
        match stun::stream::frame(rest) {
            Frame::Need(_) => Ok(None),
            Frame::Message { len, padded_len } => {
                let start = self.next;
                self.next += padded_len;
                Ok(Some(&self.incoming[start..start + len]))
            }
            Frame::Invalid => Err(StreamError::NotStun),
        }
    }

    /// Queues the parts of one message. ChannelData must include its padding (RFC 8656 §12.5).
    pub fn queue(&mut self, parts: &[&[u8]]) {
        for part in parts {
            self.outgoing.extend_from_slice(part);
        }
    }

    /// Bytes that are queued and that the socket has not accepted.
    #[must_use]
    pub fn backlog(&self) -> usize {
        let queued = self.outgoing.len() - self.written;
        #[cfg(feature = "tls")]
        if let Some(session) = &self.session {
            return queued + session.backlog();
        }
        queued
    }

    /// Whether [`flush`](Stream::flush) has something to write.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        #[cfg(feature = "tls")]
        if let Some(session) = &self.session {
            return session.wants_write()
                || (session.is_established() && !self.outgoing.is_empty());
        }
        self.written < self.outgoing.len()
    }

    /// Writes what waits. True if nothing is left that could be written now.
    ///
    /// # Errors
    /// What the socket returns, except `WouldBlock`, which is no error: call again when the socket is writable.
    pub fn flush(&mut self, socket: &mut dyn Write) -> io::Result<bool> {
        #[cfg(feature = "tls")]
        if let Some(session) = &mut self.session {
            return session.flush(&mut self.outgoing, socket);
        }
        while self.written < self.outgoing.len() {
            match socket.write(&self.outgoing[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.outgoing.drain(..self.written);
                    self.written = 0;
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        self.written = 0;
        empty(&mut self.outgoing);
        Ok(true)
    }

    /// Ends the connection: over TLS it queues the close_notify alert. [`flush`](Stream::flush) sends it.
    pub fn close(&mut self) {
        #[cfg(feature = "tls")]
        if let Some(session) = &mut self.session {
            session.close();
        }
    }

    /// Drops the messages that were handed out.
    fn compact(&mut self) {
        if self.next == self.incoming.len() {
            empty(&mut self.incoming);
        } else {
            self.incoming.drain(..self.next);
        }
        self.next = 0;
    }
}

/// What a TLS handshake agreed on.
#[cfg(feature = "tls")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Handshake {
    /// `TLS 1.3` or `TLS 1.2`.
    pub version: &'static str,
    /// The cipher suite, by its IANA name.
    pub cipher: String,
    /// The protocol that the server chose by ALPN, if it did.
    pub alpn: Option<String>,
    /// An earlier session was resumed, so the server showed no certificate.
    pub resumed: bool,
}

fn empty(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > KEEP {
        buffer.shrink_to(KEEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANNEL: [u8; 8] = [0x40, 0, 0, 3, 1, 2, 3, 0];
    const STUN: [u8; 20] = [
        0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
    ];

    /// Accepts so many bytes and then would block.
    struct Narrow(Vec<u8>, usize);

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.1 == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let count = bytes.len().min(self.1);
            self.1 -= count;
            self.0.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn messages_are_found_at_every_split() {
        let bytes = [&CHANNEL[..], &STUN, &CHANNEL].concat();
        for at in 0..bytes.len() {
            let mut stream = Stream::tcp();
            let mut found = Vec::new();
            for part in [&bytes[..at], &bytes[at..]] {
                stream.receive(part).expect("plain bytes");
                while let Some(message) = stream.next_message().expect("in step") {
                    found.push(message.to_vec());
                }
            }
            assert_eq!(found, [&CHANNEL[..7], &STUN, &CHANNEL[..7]], "{at}");
        }
    }

    #[test]
    fn other_protocols_are_noticed() {
        let mut stream = Stream::tcp();
        stream
            .receive(b"HTTP/1.1 400 Bad Request\r\n")
            .expect("plain bytes");
        // "HT" could be a channel number; its length leads behind the end of the answer.
        assert!(matches!(stream.next_message(), Ok(None)));
        stream = Stream::tcp();
        stream
            .receive(b"SIP/2.0 400 Bad Request\r\n")
            .expect("plain bytes");
        assert!(matches!(stream.next_message(), Err(StreamError::NotStun)));
    }

    #[test]
    fn what_the_socket_does_not_accept_waits() {
        let mut stream = Stream::tcp();
        let mut socket = Narrow(Vec::new(), 10);
        stream.queue(&[&CHANNEL[..4], &CHANNEL[4..]]);
        stream.queue(&[&STUN]);
        assert!(!stream.flush(&mut socket).expect("no error"));
        assert_eq!((stream.backlog(), stream.wants_write()), (18, true));
        stream.queue(&[&CHANNEL]);
        socket.1 = 100;
        assert!(stream.flush(&mut socket).expect("no error"));
        assert_eq!(socket.0, [&CHANNEL[..], &STUN, &CHANNEL].concat());
        assert!(!stream.wants_write());
    }
}
