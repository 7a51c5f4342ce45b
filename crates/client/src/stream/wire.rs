//! The bytes of a connection: TLS, and what waits for the socket.

use std::io::{self, Write};

#[cfg(feature = "tls")]
use super::Tls;
use super::{Incoming, StreamError, empty};

/// A connection over TCP or TLS between messages and socket.
pub struct Wire {
    #[cfg(feature = "tls")]
    tls: Option<Session>,
    /// For the socket as it is.
    outgoing: Vec<u8>,
    /// How much of it the socket has accepted.
    written: usize,
}

/// TLS, and what is to be encrypted with the next flush.
#[cfg(feature = "tls")]
struct Session {
    tls: Box<streams::Tls>,
    plain: Vec<u8>,
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

    /// Whether it is TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        return false;
    }

    /// Whether messages can leave: over TLS, once the handshake is complete. What is queued earlier waits for that.
    #[must_use]
    pub fn is_established(&self) -> bool {
        #[cfg(feature = "tls")]
        if let Some(session) = &self.tls {
            return !session.tls.is_handshaking();
        }
        true
    }

    /// What the handshake agreed on; `None` over TCP and before it is complete.
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
            // rustls names TLS 1.3's suites TLS13_*, IANA TLS_*.
            cipher: session.tls.cipher_suite()?.replacen("TLS13_", "TLS_", 1),
            alpn: alpn.map(|name| String::from_utf8_lossy(name).into_owned()),
            resumed: session.tls.is_resumed(),
        })
    }

    /// Takes what was read from the socket and adds what it says to `incoming`.
    ///
    /// # Errors
    /// TLS has failed: the connection is of no more use. [`flush`](Wire::flush) still sends the alert that says why.
    #[inline]
    pub fn receive(&mut self, bytes: &[u8], incoming: &mut Incoming) -> Result<(), StreamError> {
        #[cfg(feature = "tls")]
        if let Some(session) = &mut self.tls {
            // After close_notify the server closes the connection, which the owner of the socket sees.
            session
                .tls
                .received(bytes, incoming.tail(), &mut self.outgoing)?;
            return Ok(());
        }
        incoming.tail().extend_from_slice(bytes);
        Ok(())
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

    /// Bytes that are queued and that the socket has not accepted.
    #[must_use]
    pub fn backlog(&self) -> usize {
        let encrypted = self.outgoing.len() - self.written;
        #[cfg(feature = "tls")]
        if let Some(session) = &self.tls {
            return encrypted + session.plain.len();
        }
        encrypted
    }

    /// Whether [`flush`](Wire::flush) has something to write.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        self.written < self.outgoing.len() || (self.is_established() && self.backlog() > 0)
    }

    /// Writes what waits. True if nothing is left that could be written now.
    ///
    /// # Errors
    /// What the socket returns, except `WouldBlock`, which is no error: call again when the socket is writable.
    pub fn flush(&mut self, socket: &mut dyn Write) -> io::Result<bool> {
        loop {
            // What a full socket would leave encrypted stays plain, so that it is one record later.
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

    /// Moves what waits to the bytes for the socket.
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

    /// Ends the connection: over TLS it queues the close_notify alert. [`flush`](Wire::flush) sends it.
    pub fn close(&mut self) {
        #[cfg(feature = "tls")]
        if let Some(session) = &mut self.tls {
            session.tls.close(&mut self.outgoing);
        }
    }
}
