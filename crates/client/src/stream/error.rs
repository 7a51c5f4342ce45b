//! Errors of connections to a server.

/// Why a connection to a server has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The received bytes are neither STUN nor ChannelData.
    #[error("the server does not support STUN on this port: another service uses it")]
    NotStun,
    /// The received bytes are not a TLS record.
    #[cfg(feature = "tls")]
    #[error("the server does not support TLS on this port: it may be the port for TCP without TLS")]
    NotTls,
    /// The server's certificate was rejected.
    #[cfg(feature = "tls")]
    #[error("the server's certificate is rejected: {0}")]
    Certificate(String),
    /// The server sent a fatal alert.
    #[cfg(feature = "tls")]
    #[error("the server closed the TLS connection with an alert: {0}")]
    Alert(String),
    /// The server closed the DTLS session.
    #[cfg(feature = "tls")]
    #[error("the server closed the DTLS session")]
    Closed,
    /// DTLS failed for another reason.
    #[cfg(feature = "tls")]
    #[error("DTLS failed: {0}")]
    Dtls(String),
    /// TLS failed for another reason.
    #[cfg(feature = "tls")]
    #[error("TLS failed: {0}")]
    Tls(String),
}

#[cfg(feature = "tls")]
impl From<streams::tls::TlsError> for StreamError {
    fn from(error: streams::tls::TlsError) -> StreamError {
        use streams::tls::Failure;
        let detail = error.detail;
        match error.failure {
            Failure::NotTls => StreamError::NotTls,
            Failure::Certificate => StreamError::Certificate(certificate(detail)),
            Failure::Alert => StreamError::Alert(detail),
            _ => StreamError::Tls(detail),
        }
    }
}

/// Why a certificate was rejected, with a hint if the text of rustls is too short.
#[cfg(feature = "tls")]
pub(crate) fn certificate(detail: String) -> String {
    // rustls returns BadSignature if a root certificate has the issuer's name but another key.
    if detail.ends_with("UnknownIssuer") || detail.ends_with("BadSignature") {
        return format!(
            "{detail}: none of the root certificates in use and no intermediate certificate from the server has signed it"
        );
    }
    if detail.ends_with("CaUsedAsEndEntity))") {
        return format!("{detail}: it is a CA certificate (CA:TRUE), not a server certificate");
    }
    detail
}
