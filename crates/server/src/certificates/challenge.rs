//! Certificates that prove the control of a domain to an ACME server (RFC 8737, TLS-ALPN-01).

use super::{CertificateError, Certificates, self_sign};
use arc_swap::ArcSwap;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use std::sync::Arc;
use streams::rustls::server::ClientHello;
use streams::rustls::sign::CertifiedKey;

/// RFC 8737 §6.2: the application protocol of a validation.
pub(super) const PROTOCOL: &[u8] = b"acme-tls/1";

/// The certificates of validations that are in progress, by domain.
#[derive(Debug, Default)]
pub(super) struct Challenges(ArcSwap<Vec<(String, Arc<CertifiedKey>)>>);

impl Challenges {
    /// Whether the client is an ACME server that validates a domain. RFC 8737 §3: it offers this protocol and no other.
    pub(super) fn is_validation(hello: &ClientHello<'_>) -> bool {
        hello
            .alpn()
            .is_some_and(|mut offered| offered.next() == Some(PROTOCOL) && offered.next().is_none())
    }

    /// The certificate for the domain that is validated; `None` fails the handshake.
    pub(super) fn find(&self, domain: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let all = self.0.load();
        let found = all
            .iter()
            .find(|(name, _)| domain.is_some_and(|domain| domain.eq_ignore_ascii_case(name)));
        found.map(|(_, key)| Arc::clone(key))
    }

    fn change(&self, change: impl Fn(&mut Vec<(String, Arc<CertifiedKey>)>)) {
        self.0.rcu(|all| {
            let mut all = Vec::clone(all);
            change(&mut all);
            all
        });
    }
}

/// A validation that the TLS listeners answer. Dropping it ends that.
#[derive(Debug)]
pub struct AcmeValidation {
    certificates: Certificates,
    domain: String,
}

impl Drop for AcmeValidation {
    fn drop(&mut self) {
        let challenges = &self.certificates.shared.challenges;
        challenges.change(|all| all.retain(|(name, _)| *name != self.domain));
    }
}

impl Certificates {
    /// Answers the TLS-ALPN-01 validations of a domain (RFC 8737) on all TLS listeners, as long as the result lives.
    /// `digest` is the SHA-256 of the key authorization. Other clients notice nothing.
    ///
    /// # Errors
    /// [`CertificateError::Generate`] if the domain is not valid in a certificate.
    pub fn answer_acme(
        &self,
        domain: &str,
        digest: [u8; 32],
    ) -> Result<AcmeValidation, CertificateError> {
        let key = Arc::new(certificate(domain, &digest).map_err(CertificateError::Generate)?);
        self.shared.challenges.change(|all| {
            all.retain(|(name, _)| name != domain);
            all.push((domain.to_owned(), Arc::clone(&key)));
        });
        Ok(AcmeValidation {
            certificates: self.clone(),
            domain: domain.to_owned(),
        })
    }
}

/// RFC 8737 §3: self-signed, with the domain and the digest in the critical extension acmeIdentifier.
fn certificate(domain: &str, digest: &[u8; 32]) -> Result<CertifiedKey, String> {
    let text = |error: rcgen::Error| error.to_string();
    let mut params = CertificateParams::new(vec![domain.to_owned()]).map_err(text)?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate().map_err(text)?;
    self_sign(&params, &key)
}
