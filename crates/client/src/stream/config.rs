//! The TLS and DTLS configuration of a client.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature,
    verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::StreamError;

/// RFC 7443 §4: what the connection is used for.
pub(crate) const ALPN: [&[u8]; 2] = [b"stun.turn", b"stun.nat-discovery"];

/// The TLS and DTLS configuration of a client: the server name to verify, and the trusted root certificates.
///
/// The constructors read files and parse certificates, so make one and clone it. Clones share the session cache, so
/// that later connections resume earlier sessions.
#[derive(Clone, Debug)]
pub struct Tls {
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
    /// For DTLS, whose handshake is not that of rustls. `None` if the program has made the configuration.
    verifier: Option<Arc<dyn ServerCertVerifier>>,
    resumes: bool,
}

/// Why a TLS configuration cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsConfigError {
    /// The server's name is neither a DNS name nor an IP address.
    #[error("`{0}` is neither a DNS name nor an IP address, so no certificate can be valid for it")]
    Name(String),
    /// The root certificates cannot be read.
    #[error("cannot read root certificates from {path}: {reason}")]
    Roots {
        /// The file, or `the system`.
        path: String,
        /// Why.
        reason: String,
    },
}

impl Tls {
    /// Trusts the root certificates of this system. The environment variables SSL_CERT_FILE and SSL_CERT_DIR replace
    /// them.
    ///
    /// # Errors
    /// [`TlsConfigError`]; also if the system has no root certificate.
    pub fn new(server_name: &str) -> Result<Tls, TlsConfigError> {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        // Some systems have root certificates that rustls cannot parse. They are skipped.
        let (added, _) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            let reason = found.errors.first().map(ToString::to_string);
            return Err(TlsConfigError::Roots {
                path: "the system".to_owned(),
                reason: reason.unwrap_or_else(|| "there are none".to_owned()),
            });
        }
        Tls::with_roots(server_name, roots)
    }

    /// Trusts the certificates of this PEM file and no others.
    ///
    /// # Errors
    /// [`TlsConfigError`].
    pub fn with_root_file(server_name: &str, path: &Path) -> Result<Tls, TlsConfigError> {
        let unreadable = |reason: String| TlsConfigError::Roots {
            path: path.display().to_string(),
            reason,
        };
        let certificates =
            CertificateDer::pem_file_iter(path).map_err(|error| unreadable(error.to_string()))?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates {
            let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
            let added = roots.add(certificate);
            added.map_err(|error| unreadable(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(unreadable("there is no certificate in it".to_owned()));
        }
        Tls::with_roots(server_name, roots)
    }

    /// Trusts these certificates and no others.
    ///
    /// # Errors
    /// [`TlsConfigError`]; also if there is no certificate.
    pub fn with_roots(server_name: &str, roots: RootCertStore) -> Result<Tls, TlsConfigError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = verifier.build().map_err(|error| TlsConfigError::Roots {
            path: "the program".to_owned(),
            reason: error.to_string(),
        })?;
        Tls::verified_by(server_name, verifier)
    }

    /// Accepts any certificate, without a check of issuer, name or validity. The connection is encrypted, but the
    /// server is not authenticated. For tests and measurements.
    ///
    /// # Errors
    /// [`TlsConfigError::Name`].
    pub fn insecure(server_name: &str) -> Result<Tls, TlsConfigError> {
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
        Tls::verified_by(server_name, Arc::new(AcceptAnyCertificate(algorithms)))
    }

    fn verified_by(
        server_name: &str,
        verifier: Arc<dyn ServerCertVerifier>,
    ) -> Result<Tls, TlsConfigError> {
        let config = builder()
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&verifier))
            .with_no_client_auth();
        Ok(Tls::with_config(server_name, with_alpn(config))?.dtls_verifier(verifier))
    }

    /// Verifies certificates over DTLS with `verifier`. Only a configuration from [`with_config`](Tls::with_config)
    /// requires this.
    #[must_use]
    pub fn dtls_verifier(mut self, verifier: Arc<dyn ServerCertVerifier>) -> Tls {
        self.verifier = Some(verifier);
        self
    }

    /// Uses `config` as it is: roots, client certificates, versions, ALPN. DTLS uses nothing of it: see
    /// [`dtls_verifier`](Tls::dtls_verifier).
    ///
    /// # Errors
    /// [`TlsConfigError::Name`].
    pub fn with_config(
        server_name: &str,
        config: impl Into<Arc<ClientConfig>>,
    ) -> Result<Tls, TlsConfigError> {
        let name = ServerName::try_from(server_name.to_owned())
            .map_err(|_| TlsConfigError::Name(server_name.to_owned()))?;
        Ok(Tls {
            name,
            config: config.into(),
            verifier: None,
            resumes: true,
        })
    }

    /// Disables session resumption: every handshake is a full one.
    #[must_use]
    pub fn without_resumption(mut self) -> Tls {
        let mut config = (*self.config).clone();
        config.resumption = rustls::client::Resumption::disabled();
        self.config = Arc::new(config);
        self.resumes = false;
        self
    }

    /// Whether connections resume earlier sessions if the server supports it. Always true after
    /// [`with_config`](Tls::with_config), regardless of the configuration.
    #[must_use]
    pub fn resumes(&self) -> bool {
        self.resumes
    }

    /// The name that the server's certificate must be valid for.
    #[must_use]
    pub fn server_name(&self) -> String {
        self.name.to_str().into_owned()
    }

    pub(super) fn session(&self) -> Result<streams::Tls, StreamError> {
        Ok(streams::Tls::client(
            Arc::clone(&self.config),
            self.name.clone(),
        )?)
    }

    /// The name and the verifier, for a DTLS handshake.
    pub(crate) fn for_dtls(&self) -> Option<(ServerName<'static>, Arc<dyn ServerCertVerifier>)> {
        let verifier = self.verifier.as_ref()?;
        Some((self.name.clone(), Arc::clone(verifier)))
    }

    /// The configuration. Clone and change it to make another with [`with_config`](Tls::with_config).
    #[must_use]
    pub fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }
}

impl PartialEq for Tls {
    /// Whether both have the same name and share one configuration in memory.
    fn eq(&self, other: &Tls) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.config, &other.config)
    }
}

impl Eq for Tls {}

fn builder() -> rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier> {
    let provider: Arc<CryptoProvider> = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    // This fails only if the provider has no cipher suite for a version. It has some for both.
    builder
        .with_safe_default_protocol_versions()
        .expect("aws-lc-rs speaks TLS 1.2 and 1.3")
}

fn with_alpn(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = ALPN.map(<[u8]>::to_vec).into();
    config
}

/// Accepts every certificate. It verifies the handshake signature with the certificate's key.
#[derive(Debug)]
struct AcceptAnyCertificate(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::Stream;
    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustls::pki_types::PrivateKeyDer;
    use rustls::{ServerConfig, ServerConnection, SupportedProtocolVersion};

    const NAME: &str = "turn.example.org";
    const BINDING: [u8; 20] = [
        0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
    ];

    /// A server's configuration and a client's that trusts it.
    fn pair(version: &'static SupportedProtocolVersion) -> (Arc<ServerConfig>, Tls) {
        let names = vec![NAME.to_owned()];
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(names).expect("a certificate");
        let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .expect("a version")
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .expect("a key");
        server.alpn_protocols = vec![b"stun.turn".to_vec()];
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).expect("a root");
        let tls = Tls::with_roots(NAME, roots).expect("a configuration");
        (Arc::new(server), tls)
    }

    /// Carries bytes both ways, `step` at a time, until both are silent. The server sends back what it decrypts.
    fn carry(
        client: &mut Stream,
        server: &mut ServerConnection,
        step: usize,
    ) -> Result<(), StreamError> {
        loop {
            let (mut there, mut back) = (Vec::new(), Vec::new());
            client.flush(&mut there).expect("memory");
            for mut bytes in there.chunks(step) {
                while !bytes.is_empty() {
                    server.read_tls(&mut bytes).expect("memory");
                    server.process_new_packets().expect("TLS");
                }
                let mut plain = Vec::new();
                let _ = server.reader().read_to_end(&mut plain);
                server.writer().write_all(&plain).expect("memory");
            }
            while server.wants_write() {
                server.write_tls(&mut back).expect("memory");
            }
            for bytes in back.chunks(step) {
                client.receive(bytes)?;
            }
            if there.is_empty() && back.is_empty() {
                return Ok(());
            }
        }
    }

    fn connection(config: &Arc<ServerConfig>) -> ServerConnection {
        ServerConnection::new(Arc::clone(config)).expect("a connection")
    }

    #[test]
    fn messages_pass_byte_by_byte_and_sessions_are_resumed() {
        for (version, name) in [
            (&rustls::version::TLS12, "TLS 1.2"),
            (&rustls::version::TLS13, "TLS 1.3"),
        ] {
            let (config, tls) = pair(version);
            for (round, step) in [1, 7, 5000].into_iter().enumerate() {
                let (mut client, mut server) =
                    (Stream::tls(&tls).expect("a stream"), connection(&config));
                // Queued before the handshake: it waits.
                client.queue(&[&BINDING]);
                carry(&mut client, &mut server, step).expect("TLS");
                let handshake = client.wire().handshake().expect("a handshake");
                assert_eq!((handshake.version, handshake.resumed), (name, round > 0));
                assert_eq!(handshake.alpn.as_deref(), Some("stun.turn"));
                assert!(handshake.cipher.starts_with("TLS_"), "{}", handshake.cipher);
                assert_eq!(client.next_message(), Ok(Some(&BINDING[..])));
                for _ in 0..2000 {
                    client.queue(&[&BINDING]);
                }
                carry(&mut client, &mut server, step).expect("TLS");
                let mut count = 0;
                while let Some(message) = client.next_message().expect("in step") {
                    assert_eq!(message, BINDING);
                    count += 1;
                }
                assert_eq!((count, client.backlog()), (2000, 0));
            }
        }
    }

    #[test]
    fn without_resumption_every_handshake_is_complete() {
        let (config, tls) = pair(&rustls::version::TLS13);
        let tls = tls.without_resumption();
        assert!(!tls.resumes());
        for _ in 0..3 {
            let (mut client, mut server) =
                (Stream::tls(&tls).expect("a stream"), connection(&config));
            carry(&mut client, &mut server, 5000).expect("TLS");
            assert!(!client.wire().handshake().expect("a handshake").resumed);
        }
    }

    #[test]
    fn data_queued_together_is_one_record() {
        let (config, tls) = pair(&rustls::version::TLS13);
        let (mut client, mut server) = (Stream::tls(&tls).expect("a stream"), connection(&config));
        carry(&mut client, &mut server, 5000).expect("TLS");
        for _ in 0..50 {
            client.queue(&[&BINDING]);
        }
        let mut bytes = Vec::new();
        assert!(client.flush(&mut bytes).expect("memory"));
        // RFC 8446 §5.2: 5 bytes of header, the content, its type, a tag of 16 bytes.
        assert_eq!(bytes.len(), 5 + 50 * BINDING.len() + 1 + 16);
    }

    #[test]
    fn a_damaged_record_is_an_error_and_leaves_an_alert() {
        let (config, tls) = pair(&rustls::version::TLS13);
        let (mut client, mut server) = (Stream::tls(&tls).expect("a stream"), connection(&config));
        carry(&mut client, &mut server, 5000).expect("TLS");
        server.writer().write_all(&BINDING).expect("memory");
        let mut bytes = Vec::new();
        server.write_tls(&mut bytes).expect("memory");
        *bytes.last_mut().expect("a record") ^= 1;
        assert!(matches!(client.receive(&bytes), Err(StreamError::Tls(_))));
        assert!(client.wire().wants_write());
    }

    #[test]
    fn mistakes_in_the_configuration_are_named() {
        let error = Tls::insecure("not a name").expect_err("blanks").to_string();
        assert!(
            error.contains("neither a DNS name nor an IP address"),
            "{error}"
        );
        assert_eq!(
            Tls::insecure("192.0.2.1")
                .expect("an address")
                .server_name(),
            "192.0.2.1"
        );
        let missing = Tls::with_root_file(NAME, Path::new("/nowhere/roots.pem"));
        assert!(
            missing
                .expect_err("no file")
                .to_string()
                .contains("/nowhere/roots.pem")
        );
        let empty = Tls::with_root_file(NAME, Path::new("/dev/null"));
        assert!(
            empty
                .expect_err("no certificate")
                .to_string()
                .contains("no certificate in it")
        );
    }
}
