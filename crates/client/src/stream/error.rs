//! Why a connection is of no more use.

/// Why a connection to a server is of no more use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// What came is neither STUN nor ChannelData.
    #[error("the server does not speak STUN here: another service uses this port")]
    NotStun,
    /// What came is no TLS record.
    #[cfg(feature = "tls")]
    #[error("the server does not speak TLS here: this port may be the one for plain TCP")]
    NotTls,
    /// The server's certificate is not one to trust.
    #[cfg(feature = "tls")]
    #[error("the server's certificate is rejected: {0}")]
    Certificate(String),
    /// The server ended the handshake or the session with an alert.
    #[cfg(feature = "tls")]
    #[error("the server ended TLS: {0}")]
    Alert(String),
    /// Anything else about TLS.
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

/// What is wrong with a certificate, with a hint where rustls has but one word.
#[cfg(feature = "tls")]
fn certificate(detail: String) -> String {
    // BadSignature: a root certificate has the issuer's name, and another key.
    if detail.ends_with("UnknownIssuer") || detail.ends_with("BadSignature") {
        return format!(
            "{detail}: none of the root certificates in use has signed it, nor an intermediate one that the server sent"
        );
    }
    if detail.ends_with("CaUsedAsEndEntity))") {
        return format!(
            "{detail}: it is one that may sign others (CA:TRUE), and not one for a server"
        );
    }
    detail
}
