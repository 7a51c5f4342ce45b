//! A DTLS session with a server, without a socket.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dtls::{ClientEvent, CloseReason, HandshakeError};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};
use turn::Mono;

use crate::stream::{ALPN, Handshake, StreamError, Tls, certificate};

/// A DTLS 1.2 session with a server. Each message is one record and one datagram.
///
/// The owner has the socket and the clock. It sends what [`poll_transmit`](DtlsSession::poll_transmit) returns after
/// each call, and calls [`handle_timeout`](DtlsSession::handle_timeout) at the time of
/// [`poll_timeout`](DtlsSession::poll_timeout).
#[derive(Debug)]
pub struct DtlsSession {
    client: dtls::Client,
    verifier: Arc<Recorder>,
    handshake: Option<Handshake>,
}

impl DtlsSession {
    /// Begins a handshake. `unix_s` is the time at which the certificate must be valid.
    ///
    /// # Errors
    /// [`StreamError::Dtls`] if `tls` has no verifier for DTLS.
    pub fn new(tls: &Tls, now: Mono, unix_s: u64) -> Result<DtlsSession, StreamError> {
        let no_verifier = "this configuration has no verifier for DTLS: see Tls::dtls_verifier";
        let (name, verifier) = tls
            .for_dtls()
            .ok_or_else(|| StreamError::Dtls(no_verifier.to_owned()))?;
        let verifier = Arc::new(Recorder {
            inner: verifier,
            rejection: Mutex::default(),
        });
        let mut config = dtls::ClientConfig::new(Arc::clone(&verifier) as _);
        config.protocols = ALPN.map(<[u8]>::to_vec).into();
        let time = UnixTime::since_unix_epoch(Duration::from_secs(unix_s));
        Ok(DtlsSession {
            client: dtls::Client::new(Arc::new(config), name, now, time),
            verifier,
            handshake: None,
        })
    }

    /// Decrypts the records of a received datagram in place, from `at` on, up to the first message. Returns the range
    /// of the message, and where to go on; `None` if there is no further message.
    ///
    /// # Errors
    /// The session has ended. The error says why.
    pub fn open(
        &mut self,
        now: Mono,
        datagram: &mut [u8],
        at: usize,
    ) -> Result<Option<(Range<usize>, usize)>, StreamError> {
        let opened = self.client.open(now, datagram, at);
        if opened.is_none() {
            self.events()?;
        }
        Ok(opened)
    }

    fn events(&mut self) -> Result<(), StreamError> {
        while let Some(event) = self.client.poll_event() {
            match event {
                ClientEvent::Connected {
                    cipher_suite,
                    protocol,
                } => {
                    self.handshake = Some(Handshake {
                        version: "DTLS 1.2",
                        cipher: cipher_suite.to_owned(),
                        alpn: protocol.map(|name| String::from_utf8_lossy(&name).into_owned()),
                        resumed: false,
                    });
                }
                ClientEvent::Closed(reason) => return Err(self.explain(reason)),
            }
        }
        Ok(())
    }

    fn explain(&self, reason: CloseReason) -> StreamError {
        match reason {
            CloseReason::Local | CloseReason::Peer => StreamError::Closed,
            CloseReason::Alert(description) => {
                StreamError::Alert(dtls::alert_name(description).to_owned())
            }
            CloseReason::HandshakeTimeout => {
                let text =
                    "the server did not complete the handshake: this port may not serve DTLS";
                StreamError::Dtls(text.to_owned())
            }
            CloseReason::Handshake(HandshakeError::Certificate) => {
                let rejection = self.verifier.rejection();
                let detail =
                    rejection.map_or_else(|| reason.to_string(), |error| error.to_string());
                StreamError::Certificate(certificate(detail))
            }
            other => StreamError::Dtls(other.to_string()),
        }
    }

    /// Encrypts one message, given in parts, into `datagram`, whose content it replaces.
    ///
    /// # Errors
    /// The handshake is not complete, the session has ended, or the message is longer than [`dtls::MAX_MESSAGE`].
    pub fn seal(&mut self, parts: &[&[u8]], datagram: &mut Vec<u8>) -> Result<(), dtls::SendError> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        datagram.resize(length + dtls::OVERHEAD, 0);
        let sealed = self.client.seal(parts, datagram)?;
        datagram.truncate(sealed);
        Ok(())
    }

    /// The next datagram of the handshake, or an alert, to send.
    pub fn poll_transmit(&mut self) -> Option<&[u8]> {
        self.client.poll_transmit()
    }

    /// The time at which the owner must call [`handle_timeout`](DtlsSession::handle_timeout): only handshakes have
    /// timers.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        self.client.poll_timeout()
    }

    /// Retransmits a flight of the handshake that is due, or ends the handshake.
    ///
    /// # Errors
    /// The session has ended. The error says why.
    pub fn handle_timeout(&mut self, now: Mono) -> Result<(), StreamError> {
        self.client.handle_timeout(now);
        self.events()
    }

    /// Whether the handshake is complete, so that messages can be sent.
    #[must_use]
    pub const fn is_established(&self) -> bool {
        self.client.is_established()
    }

    /// The parameters that the handshake has negotiated; `None` until it is complete.
    #[must_use]
    pub fn handshake(&self) -> Option<Handshake> {
        self.handshake.clone()
    }

    /// Ends the session: [`poll_transmit`](DtlsSession::poll_transmit) returns a close_notify alert.
    pub fn close(&mut self) {
        self.client.close();
    }
}

/// A verifier that stores the reason of a rejection, because the DTLS handshake only says that there was one.
#[derive(Debug)]
struct Recorder {
    inner: Arc<dyn ServerCertVerifier>,
    rejection: Mutex<Option<Error>>,
}

impl Recorder {
    fn rejection(&self) -> Option<Error> {
        let rejection = self.rejection.lock();
        rejection.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ServerCertVerifier for Recorder {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self
            .inner
            .verify_server_cert(end_entity, intermediates, name, ocsp, now);
        if let Err(error) = &verified {
            let mut rejection = self
                .rejection
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *rejection = Some(error.clone());
        }
        verified
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner
            .verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner
            .verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
