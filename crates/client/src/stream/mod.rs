//! The messages of a connection to a server over TCP or TLS, without a socket.
//!
//! ```text
//!  socket ─ receive ─▶ Wire (TLS) ─▶ Incoming ─▶ next_message: one complete message
//!  socket ◀─ flush ─── Wire (TLS) ◀─ queue: a message and its padding
//! ```
//!
//! The owner reads and writes the socket. Messages that are queued between two flushes share one write, and one TLS
//! record if they fit into 16 KiB. Buffers are reused, so that no memory is allocated per message.

#[cfg(feature = "tls")]
mod config;
mod error;
mod incoming;
mod wire;

use std::io::{self, Write};

#[cfg(feature = "tls")]
pub use config::{Tls, TlsConfigError};
pub use error::StreamError;
pub use incoming::Incoming;
#[cfg(feature = "tls")]
pub use wire::Handshake;
pub use wire::Wire;
#[cfg(feature = "tls")]
pub(crate) use {config::ALPN, error::certificate};

/// The memory that an empty buffer keeps, in bytes: a few full-size messages.
const KEPT_BYTES: usize = 16 * 1024;

/// A connection to a server: a [`Wire`] and its received messages.
#[derive(Debug)]
pub struct Stream {
    wire: Wire,
    incoming: Incoming,
}

impl Stream {
    /// A connection over TCP.
    #[must_use]
    pub fn tcp() -> Stream {
        Stream::over(Wire::tcp())
    }

    /// A connection over TLS. [`flush`](Stream::flush) sends the first message of the handshake.
    ///
    /// # Errors
    /// [`StreamError::Tls`] if the configuration does not work.
    #[cfg(feature = "tls")]
    pub fn tls(tls: &Tls) -> Result<Stream, StreamError> {
        Ok(Stream::over(Wire::tls(tls)?))
    }

    fn over(wire: Wire) -> Stream {
        let incoming = Incoming::default();
        Stream { wire, incoming }
    }

    /// Splits the stream into its two halves. Then different threads can read and write.
    #[must_use]
    pub fn into_parts(self) -> (Wire, Incoming) {
        (self.wire, self.incoming)
    }

    /// The connection without its received messages.
    #[must_use]
    pub fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Handles bytes that the owner has read from the socket. Then call [`next_message`](Stream::next_message) until it
    /// returns `None`.
    ///
    /// # Errors
    /// The connection has failed. [`flush`](Stream::flush) still sends the TLS alert.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        self.wire.receive(bytes, &mut self.incoming)
    }

    /// The next complete message, without its padding.
    ///
    /// # Errors
    /// [`StreamError::NotStun`]: the bytes are not a message, so no further message can be found.
    pub fn next_message(&mut self) -> Result<Option<&[u8]>, StreamError> {
        self.incoming.next_message()
    }

    /// Queues the parts of one message. ChannelData must include its padding (RFC 8656 §12.5).
    pub fn queue(&mut self, parts: &[&[u8]]) {
        self.wire.queue(parts);
    }

    /// The number of queued bytes that the socket has not accepted.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.wire.backlog()
    }

    /// Writes queued messages: see [`Wire::flush`].
    ///
    /// # Errors
    /// What the socket returns, except `WouldBlock`.
    pub fn flush(&mut self, socket: &mut dyn Write) -> io::Result<bool> {
        self.wire.flush(socket)
    }

    /// Ends the connection: over TLS it queues the close_notify alert. [`flush`](Stream::flush) sends it.
    pub fn close(&mut self) {
        self.wire.close();
    }
}

fn empty(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > KEPT_BYTES {
        buffer.shrink_to(KEPT_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANNEL: [u8; 8] = [0x40, 0, 0, 3, 1, 2, 3, 0];
    const STUN: [u8; 20] = [
        0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
    ];

    /// A socket that accepts this number of bytes and then returns `WouldBlock`.
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
        // "HT" could be a channel number; its length leads behind the end of the response.
        assert!(matches!(stream.next_message(), Ok(None)));
        stream = Stream::tcp();
        stream
            .receive(b"SIP/2.0 400 Bad Request\r\n")
            .expect("plain bytes");
        assert!(matches!(stream.next_message(), Err(StreamError::NotStun)));
    }

    #[test]
    fn data_that_the_socket_does_not_accept_waits() {
        let mut stream = Stream::tcp();
        let mut socket = Narrow(Vec::new(), 10);
        stream.queue(&[&CHANNEL[..4], &CHANNEL[4..]]);
        stream.queue(&[&STUN]);
        assert!(!stream.flush(&mut socket).expect("no error"));
        assert_eq!((stream.backlog(), stream.wire().wants_write()), (18, true));
        stream.queue(&[&CHANNEL]);
        socket.1 = 100;
        assert!(stream.flush(&mut socket).expect("no error"));
        assert_eq!(socket.0, [&CHANNEL[..], &STUN, &CHANNEL].concat());
        assert!(!stream.wire().wants_write());
    }
}
