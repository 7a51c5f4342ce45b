//! One TLS connection as bytes in and bytes out (RFC 8446, RFC 5246), by rustls.
//!
//! The owner of the socket reads ciphertext into a buffer and calls [`Tls::received`]. It writes what that call and
//! [`Tls::encrypt`] append to its buffer of ciphertext.
//!
//! This is rustls's buffered interface. The unbuffered one saves a copy, but it panics when it is called again after some errors.

use std::fmt;
use std::io::{BufRead, Write};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, Connection, Error, HandshakeKind, ProtocolVersion,
    ServerConfig, ServerConnection,
};

/// Why a TLS connection failed. Its [`name`](Failure::name) goes to metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// The bytes are no TLS records.
    NotTls,
    /// The sides have no version, cipher suite, group or signature scheme in common.
    Incompatible,
    /// No application protocol of ALPN is known to both.
    Alpn,
    /// A certificate is missing, or was not accepted.
    Certificate,
    /// The other side sent a fatal alert.
    Alert,
    /// A record could not be decrypted.
    Decrypt,
    /// The other side broke the protocol.
    Misbehaved,
    /// A number of records has been encrypted after which the keys may not be used.
    Exhausted,
    /// Anything else.
    Other,
}

impl Failure {
    /// All of them, in the order of their numbers.
    pub const ALL: &'static [Failure] = &[
        Failure::NotTls,
        Failure::Incompatible,
        Failure::Alpn,
        Failure::Certificate,
        Failure::Alert,
        Failure::Decrypt,
        Failure::Misbehaved,
        Failure::Exhausted,
        Failure::Other,
    ];

    /// The name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Failure::NotTls => "not_tls",
            Failure::Incompatible => "incompatible",
            Failure::Alpn => "alpn",
            Failure::Certificate => "certificate",
            Failure::Alert => "alert",
            Failure::Decrypt => "decrypt",
            Failure::Misbehaved => "misbehaved",
            Failure::Exhausted => "exhausted",
            Failure::Other => "other",
        }
    }

    fn of(error: &Error) -> Failure {
        match error {
            Error::InvalidMessage(_) | Error::PeerSentOversizedRecord => Failure::NotTls,
            Error::PeerIncompatible(_) | Error::UnsupportedNameType => Failure::Incompatible,
            Error::NoApplicationProtocol => Failure::Alpn,
            Error::NoCertificatesPresented | Error::InvalidCertificate(_) => Failure::Certificate,
            Error::AlertReceived(_) => Failure::Alert,
            Error::DecryptError => Failure::Decrypt,
            Error::PeerMisbehaved(_)
            | Error::InappropriateMessage { .. }
            | Error::InappropriateHandshakeMessage { .. } => Failure::Misbehaved,
            Error::EncryptError => Failure::Exhausted,
            _ => Failure::Other,
        }
    }
}

/// A TLS connection failed. What was appended to the buffer of ciphertext, an alert, is to be written before the connection is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct TlsError {
    /// Which failure it is.
    pub failure: Failure,
    /// The words of rustls.
    pub detail: String,
}

impl TlsError {
    fn of(error: &Error) -> TlsError {
        TlsError {
            failure: Failure::of(error),
            detail: error.to_string(),
        }
    }
}

/// One connection, of a server or a client.
pub struct Tls {
    connection: Connection,
    has_failed: bool,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field(
                "is_server",
                &matches!(self.connection, Connection::Server(_)),
            )
            .field("version", &self.version())
            .field("has_failed", &self.has_failed)
            .finish()
    }
}

impl Tls {
    /// The server's side of a connection that was accepted.
    ///
    /// # Errors
    /// If the configuration cannot be used.
    pub fn server(config: Arc<ServerConfig>) -> Result<Tls, TlsError> {
        let connection = ServerConnection::new(config).map_err(|error| TlsError::of(&error))?;
        Ok(Tls::of(connection.into()))
    }

    /// The client's side. `name` is what the server's certificate must be for. Call [`Tls::received`] without bytes for the first
    /// message.
    ///
    /// # Errors
    /// If the configuration cannot be used.
    pub fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Tls, TlsError> {
        let connection =
            ClientConnection::new(config, name).map_err(|error| TlsError::of(&error))?;
        Ok(Tls::of(connection.into()))
    }

    fn of(mut connection: Connection) -> Tls {
        // The owner bounds what waits; here nothing waits longer than a call.
        connection.set_buffer_limit(None);
        Tls {
            connection,
            has_failed: false,
        }
    }

    /// Whether the handshake goes on: nothing can be encrypted yet.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// The version, once it is agreed.
    #[must_use]
    pub fn version(&self) -> Option<ProtocolVersion> {
        self.connection.protocol_version()
    }

    /// The cipher suite's name, once it is agreed.
    #[must_use]
    pub fn cipher_suite(&self) -> Option<&'static str> {
        self.connection
            .negotiated_cipher_suite()
            .and_then(|suite| suite.suite().as_str())
    }

    /// Whether an earlier session was resumed; false until that is known.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.connection.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// The application protocol (ALPN, RFC 7301), if one was agreed.
    #[must_use]
    pub fn application_protocol(&self) -> Option<&[u8]> {
        self.connection.alpn_protocol()
    }

    /// The name that the client asked for (SNI, RFC 6066 §3); `None` on a client.
    #[must_use]
    pub fn server_name(&self) -> Option<&str> {
        match &self.connection {
            Connection::Server(connection) => connection.server_name(),
            Connection::Client(_) => None,
        }
    }

    /// The other side's certificates, the leaf first.
    #[must_use]
    pub fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        self.connection.peer_certificates().unwrap_or_default()
    }

    /// Takes ciphertext as it came. Appends plaintext to `plain`, and what is to be written in response to `ciphertext`. Returns whether
    /// the other side has said that nothing more comes (close_notify).
    ///
    /// # Errors
    /// If the connection failed: write what was appended, an alert, then close. Plaintext that came before was appended.
    pub fn received(
        &mut self,
        mut bytes: &[u8],
        plain: &mut Vec<u8>,
        ciphertext: &mut Vec<u8>,
    ) -> Result<bool, TlsError> {
        if self.has_failed {
            return Err(ended());
        }
        loop {
            // It reads a part: what it has room for.
            let read = self.connection.read_tls(&mut bytes);
            let result = self.connection.process_new_packets();
            let is_end = self.take_plain(plain);
            self.take_ciphertext(ciphertext);
            if let Err(error) = result {
                self.has_failed = true;
                return Err(TlsError::of(&error));
            }
            // It reads no more after the end, and an error says that its buffers are full: they have just been emptied.
            if is_end || bytes.is_empty() || read.is_ok_and(|read| read == 0) {
                return Ok(is_end);
            }
        }
    }

    /// Returns whether it is the end.
    fn take_plain(&mut self, plain: &mut Vec<u8>) -> bool {
        let mut reader = self.connection.reader();
        loop {
            match reader.fill_buf() {
                Ok([]) => return true,
                Ok(chunk) => {
                    plain.extend_from_slice(chunk);
                    let length = chunk.len();
                    reader.consume(length);
                }
                // Nothing more for now.
                Err(_) => return false,
            }
        }
    }

    fn take_ciphertext(&mut self, ciphertext: &mut Vec<u8>) {
        while self.connection.wants_write() {
            // A Vec takes all it is given.
            if self.connection.write_tls(ciphertext).is_err() {
                return;
            }
        }
    }

    /// Encrypts `plain`, one record for each 16 KiB, and appends them to `ciphertext`.
    ///
    /// # Errors
    /// If the connection is not open: the handshake goes on, or it has failed ([`Failure::Other`]).
    pub fn encrypt(&mut self, plain: &[u8], ciphertext: &mut Vec<u8>) -> Result<(), TlsError> {
        if self.has_failed || self.is_handshaking() {
            return Err(ended());
        }
        self.connection
            .writer()
            .write_all(plain)
            .map_err(|_| ended())?;
        self.take_ciphertext(ciphertext);
        Ok(())
    }

    /// Tells the other side that nothing more comes (close_notify).
    pub fn close(&mut self, ciphertext: &mut Vec<u8>) {
        if !self.has_failed {
            self.connection.send_close_notify();
            self.take_ciphertext(ciphertext);
        }
    }
}

/// Nothing can be encrypted before the handshake is over, and nothing happens after a failure.
fn ended() -> TlsError {
    TlsError {
        failure: Failure::Other,
        detail: "the TLS connection is not open".to_owned(),
    }
}

#[cfg(test)]
mod tests;
