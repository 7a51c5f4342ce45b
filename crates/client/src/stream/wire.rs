//! The bytes of a connection: TLS and the write queue.

use std::io::{self, Write};

#[cfg(feature = "tls")]
use super::Tls;
use super::{Incoming, StreamError, empty};

/// The layer of a TCP or TLS connection between messages and socket.
pub struct Wire {
    #[cfg(feature = "tls")]
    tls: Option<Session>,
    /// Bytes for the socket; over TLS they are encrypted.
    outgoing: Vec<u8>,
    /// The number of bytes of `outgoing` that the socket has accepted.
    written: usize,
    /// Whether the other side has sent close_notify.
    has_ended: bool,
}

/// TLS, and the plaintext that the next flush encrypts.
#[cfg(feature = "tls")]
struct Session {
    tls: Box<streams::Tls>,
    plain: Vec<u8>,
}

/// The parameters that a TLS handshake has negotiated.
#[cfg(feature = "tls")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Handshake {
    /// `TLS 1.3`, `TLS 1.2` or `DTLS 1.2`.
    pub version: &'static str,
    /// The cipher suite, by its IANA name.
    pub cipher: String,
    /// The application protocol that the server selected (ALPN), if any.
    pub alpn: Option<String>,
    /// Whether an earlier session was resumed. The server then sends no certificate.
    pub resumed: bool,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire")
            .field("is_tls", &self.is_tls())
            .field("backlog", &self.backlog())
            .finish()
    }
}

impl Wire {
    /// A connection over TCP.
    #[must_use]
    pub fn tcp() -> Wire {
        Wire {
            #[cfg(feature = "tls")]
            tls: None,
            outgoing: Vec::new(),
            written: 0,
            has_ended: false,
        }
    }

    /// A connection over TLS. [`flush`](Wire::flush) sends the first message of the handshake.
    ///
    /// # Errors
    /// [`StreamError::Tls`] if the configuration does not work.
    #[cfg(feature = "tls")]
    pub fn tls(tls: &Tls) -> Result<Wire, StreamError> {
        let mut wire = Wire::tcp();
        let mut session = Session {
            tls: Box::new(tls.session()?),
            plain: Vec::new(),
        };
        let (plain, outgoing) = (&mut session.plain, &mut wire.outgoing);
        session.tls.received(&[], plain, outgoing)?;
        wire.tls = Some(session);
        Ok(wire)
    }

    /// Whether the connection uses TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        return false;
    }

    /// Whether messages can be sent. Over TLS, messages wait in the queue until the handshake is complete.
    #[must_use]
    pub fn is_established(&self) -> bool {
        #[cfg(feature = "tls")]
        if let Some(session) = &self.tls {
            return !session.tls.is_handshaking();
        }
        true
    }

    /// The parameters that the handshake has negotiated; `None` over TCP and before it is complete.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn handshake(&self) -> Option<Handshake> {
        let session = self.tls.as_ref().filter(|_| self.is_established())?;
        let version = match session.tls.version()? {
            rustls::ProtocolVersion::TLSv1_3 => "TLS 1.3",
            _ => "TLS 1.2",
        };
        let alpn = session.tls.application_protocol();
        Some(Handshake {
            version,
            // rustls calls the cipher suites of TLS 1.3 TLS13_*, IANA calls them TLS_*.
            cipher: session.tls.cipher_suite()?.replacen("TLS13_", "TLS_", 1),
            alpn: alpn.map(|name| String::from_utf8_lossy(name).into_owned()),
            resumed: session.tls.is_resumed(),
        })
    }

    /// Handles bytes that the owner has read from the socket. Adds the decrypted bytes to `incoming`.
    ///
    /// # Errors
    /// TLS has failed, and with it the connection. [`flush`](Wire::flush) still sends the TLS alert.
    #[inline]
    pub fn receive(&mut self, bytes: &[u8], incoming: &mut Incoming) -> Result<(), StreamError> {
        #[cfg(feature = "tls")]
        if let Some(session) = &mut self.tls {
            self.has_ended |= session
                .tls
                .received(bytes, incoming.tail(), &mut self.outgoing)?;
            return Ok(());
        }
        incoming.tail().extend_from_slice(bytes);
        Ok(())
    }

    /// Whether the other side has closed its direction with close_notify. Always false over TCP, where the end is found
    /// by reading from the socket.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Queues the parts of one message. ChannelData must include its padding (RFC 8656 §12.5).
    #[inline]
    pub fn queue(&mut self, parts: &[&[u8]]) {
        let queue = &mut self.outgoing;
        #[cfg(feature = "tls")]
        let queue = self
            .tls
            .as_mut()
            .map_or(queue, |session| &mut session.plain);
        for part in parts {
            queue.extend_from_slice(part);
        }
    }

    /// The number of queued bytes that the socket has not accepted.
    #[must_use]
    pub fn backlog(&self) -> usize {
        let encrypted = self.outgoing.len() - self.written;
        #[cfg(feature = "tls")]
        if let Some(session) = &self.tls {
            return encrypted + session.plain.len();
        }
        encrypted
    }

    /// Whether [`flush`](Wire::flush) has bytes to write.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        self.written < self.outgoing.len() || (self.is_established() && self.backlog() > 0)
    }

    /// Writes queued bytes. Returns false if the socket has no room for the rest.
    ///
    /// # Errors
    /// The errors of the socket, except `WouldBlock`: then call it again when the socket is writable. Also if
    /// encryption fails.
    pub fn flush(&mut self, socket: &mut dyn Write) -> io::Result<bool> {
        loop {
            // Encrypt only when all earlier bytes are written. While the socket is full, messages gather for one larger
            // record.
            if self.written == self.outgoing.len() {
                self.written = 0;
                empty(&mut self.outgoing);
                self.encrypt()?;
                if self.outgoing.is_empty() {
                    return Ok(true);
                }
            }
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
    }

    /// Encrypts the queued plaintext into the bytes for the socket.
    #[cfg_attr(
        not(feature = "tls"),
        allow(clippy::unused_self, clippy::unnecessary_wraps)
    )]
    fn encrypt(&mut self) -> io::Result<()> {
        #[cfg(feature = "tls")]
        if let Some(session) = &mut self.tls
            && !session.plain.is_empty()
            && !session.tls.is_handshaking()
        {
            let encrypted = session.tls.encrypt(&session.plain, &mut self.outgoing);
            empty(&mut session.plain);
            encrypted.map_err(|error| {
                io::Error::new(io::ErrorKind::InvalidData, StreamError::from(error))
            })?;
        }
        Ok(())
    }

    /// Over TLS, closes the sending direction with close_notify; receiving goes on. Call it once
    /// [`backlog`](Wire::backlog) is 0.
    pub fn finish(&mut self) {
        #[cfg(feature = "tls")]
        if let Some(session) = &mut self.tls {
            session.tls.finish(&mut self.outgoing);
        }
    }

    /// Ends the connection: over TLS it queues the close_notify alert. [`flush`](Wire::flush) sends it.
    pub fn close(&mut self) {
        #[cfg(feature = "tls")]
        if let Some(session) = &mut self.tls {
            session.tls.close(&mut self.outgoing);
        }
    }
}
