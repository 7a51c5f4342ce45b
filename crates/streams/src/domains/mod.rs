//! Domains in the certificates of SIP (RFC 5922): which ones a certificate proves, and a verifier of servers that goes
//! by them.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ResolvesClientCert, verify_server_cert_signed_by_trust_anchor, verify_server_name,
};
use rustls::crypto::{
    WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

/// Names of one certificate that are looked at.
const MAX_NAMES: usize = 64;

/// The SIP domains of a certificate (RFC 5922 §7.1), in lower case. They are the hosts of its `sip:` URIs without a
/// user. Without such a URI, they are its DNS names. The subject's common name does not count. Empty if the certificate
/// is malformed.
#[must_use]
pub fn sip_domains(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else {
        return Vec::new();
    };
    let uris = certificate.valid_uri_names().take(MAX_NAMES);
    let domains: Vec<String> = uris.filter_map(domain_of).collect();
    if !domains.is_empty() {
        return domains;
    }
    let names = certificate.valid_dns_names().take(MAX_NAMES);
    // RFC 5922 §7.2: a wildcard matches itself alone, so no host.
    let names = names.filter(|name| !name.contains('*'));
    names.map(str::to_ascii_lowercase).collect()
}

/// The host of a `sip:` URI that names a domain and no user.
fn domain_of(uri: &str) -> Option<String> {
    let (scheme, rest) = uri.split_once(':')?;
    if !scheme.eq_ignore_ascii_case("sip") || rest.contains('@') {
        return None;
    }
    let host = rest.split([';', '?']).next()?;
    // An IPv6 address is no domain.
    let host = host.split(':').next().filter(|_| !host.starts_with('['))?;
    let is_domain = !host.is_empty()
        && host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    is_domain.then(|| host.to_ascii_lowercase())
}

/// Verifies servers of SIP: their chain as usual, and their name by RFC 5922, so without wildcards. An address, of
/// which RFC 5922 says nothing, must be among the IP addresses of the certificate.
struct DomainVerifier {
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl fmt::Debug for DomainVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DomainVerifier")
            .field("roots", &self.roots.len())
            .finish_non_exhaustive()
    }
}

impl ServerCertVerifier for DomainVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            intermediates,
            now,
            self.algorithms.all,
        )?;
        match server_name {
            ServerName::DnsName(name) => {
                let name = name.as_ref().trim_end_matches('.');
                let mut domains = sip_domains(end_entity).into_iter();
                if !domains.any(|domain| domain.eq_ignore_ascii_case(name)) {
                    return Err(CertificateError::NotValidForName.into());
                }
            }
            other => verify_server_name(&parsed, other)?,
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The configuration of TLS connections to SIP servers whose certificates these roots have issued. `own` proves who we
/// are, to servers that ask.
#[must_use]
pub fn client_config(
    roots: Arc<RootCertStore>,
    own: Option<Arc<dyn ResolvesClientCert>>,
) -> ClientConfig {
    let provider = aws_lc_rs::default_provider();
    let verifier = DomainVerifier {
        roots,
        algorithms: provider.signature_verification_algorithms,
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        // This does not fail: the provider has cipher suites of both versions.
        .unwrap_or_else(|_| ClientConfig::builder())
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    match own {
        Some(own) => builder.with_client_cert_resolver(own),
        None => builder.with_no_client_auth(),
    }
}

/// A verifier of clients whose certificates these roots have issued. Unless `is_required`, one without a certificate is
/// accepted, too.
///
/// # Errors
/// If there are no roots.
pub fn client_verifier(
    roots: Arc<RootCertStore>,
    is_required: bool,
) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = WebPkiClientVerifier::builder_with_provider(roots, provider);
    match is_required {
        true => builder.build(),
        false => builder.allow_unauthenticated().build(),
    }
}

#[cfg(test)]
mod tests;
