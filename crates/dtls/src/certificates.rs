//! The source of certificates, and the check whether DTLS 1.2 can use one.

use rustls::sign::CertifiedKey;

use crate::crypto::Authentication;

/// The longest accepted chain in bytes. Clients limit the messages that they reassemble.
const MAX_CHAIN: usize = 16 * 1024;

/// A source of certificates. An endpoint calls it once per handshake. It must not block.
pub trait Certificates: std::fmt::Debug + Send + Sync {
    /// The certificate for the server name that the client sent (RFC 6066 §3), or for a client that sent none.
    /// `listener` is the number of the listener: [`Path::listener`](crate::Path::listener).
    fn find(
        &self,
        listener: u32,
        server_name: Option<&str>,
    ) -> Option<std::sync::Arc<CertifiedKey>>;
}

/// One certificate for every name.
impl Certificates for std::sync::Arc<CertifiedKey> {
    fn find(&self, _: u32, _: Option<&str>) -> Option<std::sync::Arc<CertifiedKey>> {
        Some(self.clone())
    }
}

/// Why a certificate cannot be used for DTLS 1.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnusableCertificate {
    /// The chain has no certificate.
    #[error("the certificate chain is empty")]
    Empty,
    /// The key is neither RSA, ECDSA nor Ed25519.
    #[error("DTLS 1.2 requires an RSA, ECDSA or Ed25519 key")]
    Algorithm,
    /// The chain is too long.
    #[error("the certificate chain is longer than 16 KiB, which DTLS clients do not accept")]
    TooLong,
    /// The private key does not belong to the certificate.
    #[error("the private key does not belong to the certificate")]
    KeyMismatch,
}

/// Whether a certificate can be used for DTLS 1.2.
///
/// # Errors
/// Why it cannot be used.
pub fn check_certificate(certificate: &CertifiedKey) -> Result<(), UnusableCertificate> {
    if certificate.cert.is_empty() {
        return Err(UnusableCertificate::Empty);
    }
    if Authentication::of_key(certificate.key.algorithm()).is_none() {
        return Err(UnusableCertificate::Algorithm);
    }
    if certificate
        .cert
        .iter()
        .map(|certificate| certificate.len())
        .sum::<usize>()
        > MAX_CHAIN
    {
        return Err(UnusableCertificate::TooLong);
    }
    match certificate.keys_match() {
        Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
            Err(UnusableCertificate::KeyMismatch)
        }
        _ => Ok(()),
    }
}
