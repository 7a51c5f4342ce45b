//! Verifies the server's certificate, and the signature over the server's key.

use rustls::SignatureScheme;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

use crate::HandshakeError;
use crate::crypto::Authentication;
use crate::crypto::schedule::Randoms;
use crate::wire::key_exchange::ServerKeyExchange;

/// The supported signature schemes of DTLS 1.2, the preferred first.
pub(super) fn schemes(
    algorithms: WebPkiSupportedAlgorithms,
) -> impl Iterator<Item = SignatureScheme> {
    let schemes = algorithms.mapping.iter().map(|(scheme, _)| *scheme);
    schemes.filter(|scheme| Authentication::of_scheme(*scheme).is_some())
}

/// Checks the chain for the server's name, at this time.
pub(super) fn chain(
    verifier: &dyn ServerCertVerifier,
    chain: &[CertificateDer<'_>],
    name: &ServerName<'_>,
    unix: UnixTime,
) -> Result<(), HandshakeError> {
    let (end_entity, intermediates) = chain.split_first().ok_or(HandshakeError::Malformed)?;
    verifier
        .verify_server_cert(end_entity, intermediates, name, &[], unix)
        .map(|_| ())
        .map_err(|_| HandshakeError::Certificate)
}

/// Checks that the certificate's key signed the server's ephemeral key for this handshake (RFC 8422 §5.4).
pub(super) fn signature(
    algorithms: WebPkiSupportedAlgorithms,
    end_entity: &CertificateDer<'_>,
    exchange: &ServerKeyExchange<'_>,
    randoms: Randoms<'_>,
    authentication: Authentication,
) -> Result<(), HandshakeError> {
    let scheme = SignatureScheme::from(exchange.scheme);
    if Authentication::of_scheme(scheme) != Some(authentication) {
        return Err(HandshakeError::NotOffered);
    }
    let algorithms = algorithms
        .mapping
        .iter()
        .find(|(other, _)| *other == scheme);
    let (_, algorithms) = algorithms.ok_or(HandshakeError::NotOffered)?;
    let certificate =
        webpki::EndEntityCert::try_from(end_entity).map_err(|_| HandshakeError::Certificate)?;
    let signed = [&randoms.client[..], randoms.server, exchange.params].concat();
    // RFC 5246 §7.4.1.4.1: in TLS 1.2 the hash of an ECDSA scheme does not name the curve, so that several are tried.
    let verified = algorithms.iter().any(|algorithm| {
        certificate
            .verify_signature(*algorithm, &signed, exchange.signature)
            .is_ok()
    });
    verified.then_some(()).ok_or(HandshakeError::Signature)
}
