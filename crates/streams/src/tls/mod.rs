//! One TLS connection without a socket (RFC 8446, RFC 5246). It uses rustls.
//!
//! The owner of the socket reads ciphertext into a buffer and calls [`Tls::received`]. That call and [`Tls::encrypt`]
//! append ciphertext to a buffer, which the owner writes to the socket.
//!
//! This uses rustls's buffered interface. The unbuffered one saves a copy, but it panics if it is called again after
//! some errors.

use std::fmt;
use std::io::{BufRead, Write};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, Connection, Error, HandshakeKind,
    ProtocolVersion, ServerConfig, ServerConnection,
};

/// Why a TLS connection failed. Its [`name`](Failure::name) goes to metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// The bytes are not TLS records.
    NotTls,
    /// Client and server have no version, cipher suite, group or signature scheme in common.
    Incompatible,
    /// Client and server have no application protocol in common (ALPN, RFC 7301).
    Alpn,
    /// A certificate is missing, or was rejected.
    Certificate,
    /// The peer sent a fatal alert.
    Alert,
    /// A record could not be decrypted.
    Decrypt,
    /// The peer violated the protocol.
    Misbehaved,
    /// The number of encrypted records has reached the limit for one key.
    Exhausted,
    /// Any other failure.
    Other,
}

impl Failure {
    /// All failures, in the order of their numbers.
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

/// A TLS connection failed. The buffer of ciphertext holds an alert: write it, then close the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct TlsError {
    /// The kind of failure.
    pub failure: Failure,
    /// The error text of rustls.
    pub detail: String,
    /// The alert of the peer, if it sent one.
    alert: Option<AlertDescription>,
}

impl TlsError {
    fn of(error: &Error) -> TlsError {
        TlsError {
            failure: Failure::of(error),
            detail: error.to_string(),
            alert: match error {
                Error::AlertReceived(alert) => Some(*alert),
                _ => None,
            },
        }
    }

    /// Whether the peer has refused the certificate of this side, or requires one, by its alert (RFC 8446 §6.2).
    #[must_use]
    pub const fn refuses_certificate(&self) -> bool {
        matches!(
            self.alert,
            Some(
                AlertDescription::BadCertificate
                    | AlertDescription::UnsupportedCertificate
                    | AlertDescription::CertificateRevoked
                    | AlertDescription::CertificateExpired
                    | AlertDescription::CertificateUnknown
                    | AlertDescription::UnknownCA
                    | AlertDescription::AccessDenied
                    | AlertDescription::CertificateRequired
            )
        )
    }
}

/// One TLS connection of a server or a client.
pub struct Tls {
    connection: Connection,
    /// The connection has failed, or this side has closed it. rustls must not be called again then: it would send a
    /// second alert.
    is_over: bool,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field(
                "is_server",
                &matches!(self.connection, Connection::Server(_)),
            )
            .field("version", &self.version())
            .field("is_over", &self.is_over)
            .finish()
    }
}

impl Tls {
    /// The server side of an accepted connection.
    ///
    /// # Errors
    /// If the configuration cannot be used.
    pub fn server(config: Arc<ServerConfig>) -> Result<Tls, TlsError> {
        let connection = ServerConnection::new(config).map_err(|error| TlsError::of(&error))?;
        Ok(Tls::of(connection.into()))
    }

    /// The client side. The server's certificate must be valid for `name`. To get the first handshake message, call
    /// [`Tls::received`] without bytes.
    ///
    /// # Errors
    /// If the configuration cannot be used.
    pub fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Tls, TlsError> {
        let connection =
            ClientConnection::new(config, name).map_err(|error| TlsError::of(&error))?;
        Ok(Tls::of(connection.into()))
    }

    fn of(mut connection: Connection) -> Tls {
        // The owner limits its queue. The buffers of rustls are empty after each call.
        connection.set_buffer_limit(None);
        Tls {
            connection,
            is_over: false,
        }
    }

    /// Whether the handshake is not complete. Application data cannot be encrypted before.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// The negotiated version; `None` before the negotiation.
    #[must_use]
    pub fn version(&self) -> Option<ProtocolVersion> {
        self.connection.protocol_version()
    }

    /// The name of the negotiated cipher suite; `None` before the negotiation.
    #[must_use]
    pub fn cipher_suite(&self) -> Option<&'static str> {
        self.connection
            .negotiated_cipher_suite()
            .and_then(|suite| suite.suite().as_str())
    }

    /// Whether the handshake resumed an earlier session; false until that is known.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.connection.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// The negotiated application protocol (ALPN, RFC 7301), if any.
    #[must_use]
    pub fn application_protocol(&self) -> Option<&[u8]> {
        self.connection.alpn_protocol()
    }

    /// The server name that the client sent (SNI, RFC 6066 §3); `None` on a client.
    #[must_use]
    pub fn server_name(&self) -> Option<&str> {
        match &self.connection {
            Connection::Server(connection) => connection.server_name(),
            Connection::Client(_) => None,
        }
    }

    /// The peer's certificate chain, the end-entity certificate first.
    #[must_use]
    pub fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        self.connection.peer_certificates().unwrap_or_default()
    }

    /// Decrypts received bytes. Appends plaintext to `plain`, and records that must be written to the socket to
    /// `ciphertext`. Returns whether the peer has sent close_notify.
    ///
    /// # Errors
    /// If the connection failed. `ciphertext` then holds an alert: write it, then close the connection. `plain` holds
    /// the data that was received before the failure.
    pub fn received(
        &mut self,
        mut bytes: &[u8],
        plain: &mut Vec<u8>,
        ciphertext: &mut Vec<u8>,
    ) -> Result<bool, TlsError> {
        if self.is_over {
            return Err(ended());
        }
        loop {
            // rustls reads no more than its buffer has room for.
            let read = self.connection.read_tls(&mut bytes);
            let result = self.connection.process_new_packets();
            let is_end = self.take_plain(plain);
            self.take_ciphertext(ciphertext);
            if let Err(error) = result {
                self.is_over = true;
                return Err(TlsError::of(&error));
            }
            // After close_notify rustls reads nothing. Its error "buffer full" is harmless: the calls above emptied the
            // buffers.
            if is_end || bytes.is_empty() || read.is_ok_and(|read| read == 0) {
                return Ok(is_end);
            }
        }
    }

    /// Returns whether the peer has sent close_notify.
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
            // A write to a Vec does not fail.
            if self.connection.write_tls(ciphertext).is_err() {
                return;
            }
        }
    }

    /// Encrypts `plain` and appends the records to `ciphertext`. A record holds up to 16 KiB.
    ///
    /// # Errors
    /// [`Failure::Other`] if the handshake is not complete, or the connection has failed.
    pub fn encrypt(&mut self, plain: &[u8], ciphertext: &mut Vec<u8>) -> Result<(), TlsError> {
        if self.is_over || self.is_handshaking() {
            return Err(ended());
        }
        self.connection
            .writer()
            .write_all(plain)
            .map_err(|_| ended())?;
        self.take_ciphertext(ciphertext);
        Ok(())
    }

    /// Appends the close_notify alert to `ciphertext`. Nothing can be encrypted afterwards, but the peer may still
    /// send.
    pub fn finish(&mut self, ciphertext: &mut Vec<u8>) {
        if !self.is_over {
            self.connection.send_close_notify();
            self.take_ciphertext(ciphertext);
        }
    }

    /// Appends the close_notify alert to `ciphertext`. [`Tls::received`] and [`Tls::encrypt`] fail afterwards.
    pub fn close(&mut self, ciphertext: &mut Vec<u8>) {
        if !self.is_over {
            self.is_over = true;
            self.connection.send_close_notify();
            self.take_ciphertext(ciphertext);
        }
    }
}

/// The error of a call before the end of the handshake or after a failure.
fn ended() -> TlsError {
    TlsError {
        failure: Failure::Other,
        detail: "the TLS connection is not open".to_owned(),
        alert: None,
    }
}

#[cfg(test)]
mod tests;
