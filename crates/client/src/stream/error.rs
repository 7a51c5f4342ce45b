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
    #[error("the server ended TLS with the alert {0}")]
    Alert(String),
    /// Anything else about TLS.
    #[cfg(feature = "tls")]
    #[error("TLS failed: {0}")]
    Tls(String),
}

#[cfg(feature = "tls")]
impl From<rustls::Error> for StreamError {
    fn from(error: rustls::Error) -> StreamError {
        use rustls::{Error, InvalidMessage};
        match error {
            Error::InvalidCertificate(error) => StreamError::Certificate(certificate(&error)),
            Error::AlertReceived(alert) => StreamError::Alert(format!("{alert:?}")),
            Error::InvalidMessage(
                InvalidMessage::InvalidContentType
                | InvalidMessage::UnknownProtocolVersion
                | InvalidMessage::MessageTooLarge
                | InvalidMessage::InvalidEmptyPayload,
            ) => StreamError::NotTls,
            error => StreamError::Tls(error.to_string()),
        }
    }
}

/// What is wrong with a certificate and what to do about it.
#[cfg(feature = "tls")]
fn certificate(error: &rustls::CertificateError) -> String {
    use rustls::CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidForName, NotValidForNameContext,
        NotValidYet, NotValidYetContext, UnknownIssuer,
    };
    let hint = match error {
        // BadSignature: a root certificate has the issuer's name, and another key.
        UnknownIssuer | BadSignature => {
            "none of the root certificates in use has signed it, nor an intermediate one that the server sent"
        }
        NotValidForName | NotValidForNameContext { .. } => "it is for another name",
        Expired | ExpiredContext { .. } => "it has expired",
        NotValidYet | NotValidYetContext { .. } => {
            "it is not valid yet, or this machine's clock is wrong"
        }
        _ => return error.to_string(),
    };
    format!("{hint} ({error})")
}
