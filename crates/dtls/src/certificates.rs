//! Certificates: rustls's types, and which of them DTLS 1.2 can use.

use rustls::sign::CertifiedKey;

use crate::crypto::Authentication;

/// Chains of more bytes than this are refused: a client's reassembly has a bound, too.
const MAX_CHAIN: usize = 16 * 1024;

/// A source of certificates. It is asked once per handshake, and must answer at once.
pub trait Certificates: std::fmt::Debug + Send + Sync {
    /// The certificate for a client that asked for this name (RFC 6066 §3), or for none.
    fn find(&self, server_name: Option<&str>) -> Option<std::sync::Arc<CertifiedKey>>;
}

/// One certificate for every name.
impl Certificates for std::sync::Arc<CertifiedKey> {
    fn find(&self, _: Option<&str>) -> Option<std::sync::Arc<CertifiedKey>> {
        Some(self.clone())
    }
}

/// Why a certificate cannot be used for DTLS 1.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnusableCertificate {
    /// There is none.
    #[error("the certificate chain is empty")]
    Empty,
    /// Neither RSA, ECDSA nor Ed25519.
    #[error("DTLS 1.2 needs an RSA, ECDSA or Ed25519 key")]
    Algorithm,
    /// The chain is too long.
    #[error("the certificate chain is longer than 16 KiB, which DTLS clients do not accept")]
    TooLong,
    /// The key is another certificate's.
    #[error("the private key does not belong to the certificate")]
    KeyMismatch,
}

/// Whether a certificate can be used for DTLS 1.2.
///
/// # Errors
/// Says why not.
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
