//! Why a request failed, and what the RFC advises to do about it.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use stun::AttributeType;

/// How long a request took and how often it was sent.
///
/// The elapsed time is a round trip only if there was one transmission (Karn's algorithm). An operation that was
/// challenged (401, 438) counts from its last request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// From the first transmission to the response, or to the failure.
    pub elapsed: Duration,
    /// How often the request was sent; at least 1.
    pub transmissions: u8,
}

/// A response that was discarded as if it had never come (RFC 8489 §9.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discarded {
    /// Its error code; `None` for a success response.
    pub code: Option<u16>,
    /// Why it did not count.
    pub reason: DiscardReason,
}

/// Why a response was discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiscardReason {
    /// The request was authenticated, the response was not.
    NotAuthenticated,
    /// Its message integrity does not fit the password.
    BadIntegrity,
    /// Its nonce promises PASSWORD-ALGORITHMS, which it lacks: somebody removed them.
    AlgorithmsRemoved,
}

impl fmt::Display for Discarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Some(code) => write!(f, "a {code} response ")?,
            None => f.write_str("a success response ")?,
        }
        f.write_str(match self.reason {
            DiscardReason::NotAuthenticated => "without message integrity",
            DiscardReason::BadIntegrity => "whose message integrity does not fit the password",
            DiscardReason::AlgorithmsRemoved => "from which the password algorithms were removed",
        })
    }
}

/// Another server to try (RFC 8489 §10).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Alternate {
    /// Its addresses, at least one; the first is of the family this client uses.
    pub servers: Box<[SocketAddr]>,
    /// The name in its certificate, if it differs (TLS and DTLS only).
    pub domain: Option<Box<str>>,
}

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The error code, 300 to 699.
    pub code: u16,
    /// The server's own words, possibly none.
    pub reason: Box<str>,
    /// With 420: the attributes that the server does not support.
    pub unknown: Box<[AttributeType]>,
    /// With 300: where to go instead.
    pub alternate: Option<Alternate>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code)?;
        if !self.reason.is_empty() {
            write!(f, " ({})", self.reason)?;
        }
        for (index, attribute) in self.unknown.iter().enumerate() {
            let lead = if index == 0 {
                ", unknown attributes"
            } else {
                ","
            };
            write!(f, "{lead} 0x{:04x}", attribute.0)?;
        }
        Ok(())
    }
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// There was no response.
    #[error("no response to {} requests in {:.1?}", .0.transmissions, .0.elapsed)]
    TimedOut(Timing),
    /// Responses came, and none could be trusted (RFC 8489 §9.2.5).
    #[error("only responses that cannot be trusted came back; the last was {0}")]
    IntegrityViolated(Discarded),
    /// The network reported that the server cannot be reached (a hard ICMP error).
    #[error("the network says that nothing listens there")]
    Unreachable,
    /// The server refused.
    #[error("the server answered {0}")]
    Refused(Box<Refusal>),
    /// The server asks for credentials and there are none.
    #[error("the server asks for credentials of realm \"{realm}\"")]
    NoCredentials {
        /// The realm of the credentials that it requires.
        realm: Box<str>,
    },
    /// The server does not accept the credentials.
    #[error("the server does not accept this user name and password for realm \"{realm}\"")]
    WrongCredentials {
        /// The server's realm.
        realm: Box<str>,
    },
    /// The user name, the password or the realm cannot be prepared for use (RFC 8265).
    #[error("user name, password or realm contains characters that STUN does not allow")]
    UnusableCredentials,
    /// A challenge is inconsistent: its nonce announces password algorithms that are missing, or it withdraws what
    /// an earlier one announced. Somebody on the path weakens the authentication (RFC 8489 §9.2.1).
    #[error("somebody on the path removes the server's password algorithms")]
    BidDown,
    /// None of the server's password algorithms is known here.
    #[error("the server offers no password algorithm that is known here")]
    NoCommonAlgorithm,
    /// One challenge followed another.
    #[error("the server sent one challenge after another and accepted no response")]
    TooManyChallenges,
    /// The response lacks what it must contain, or contains what cannot be understood.
    #[error("the server's response is malformed or incomplete")]
    Malformed,
    /// The server allocated an address of a family that was not asked for; the allocation is being deleted.
    #[error("the server allocated an address of the wrong family")]
    WrongFamily,
    /// User name, realm, nonce and software do not fit into a message.
    #[error("the request would be longer than 2,048 bytes")]
    TooLong,
}

impl RequestError {
    /// The error code, if the server refused with one.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        match self {
            RequestError::Refused(refusal) => Some(refusal.code),
            RequestError::NoCredentials { .. } | RequestError::WrongCredentials { .. } => Some(401),
            _ => None,
        }
    }

    /// Whether the same request may well succeed a little later: nothing came back, or the server had an internal
    /// error.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            RequestError::TimedOut(_)
            | RequestError::IntegrityViolated(_)
            | RequestError::Unreachable => true,
            RequestError::Refused(refusal) => matches!(refusal.code, 500..=599),
            _ => false,
        }
    }
}

/// What RFC 8656 §7.4 advises after a failed Allocate request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// Ask this other server (300).
    TryAlternate(Alternate),
    /// Bind another local port and ask again with [`Client::restart`](super::Client::restart) (437: the server believes
    /// that this 5-tuple is in use).
    ChangePort,
    /// Ask again without [`AllocateOptions::mobility`](super::AllocateOptions::mobility) (405).
    OmitMobility,
    /// Ask again without DONT-FRAGMENT (420).
    OmitDontFragment,
    /// Ask again without EVEN-PORT or RESERVATION-TOKEN, or wait a minute (508).
    OmitPortRequest,
    /// Ask again, but not before this much time has passed (486, 508; 437 on three ports in a row).
    Wait(Duration),
    /// Try another transport (408, no response).
    ChangeTransport,
    /// Do not ask again until somebody has corrected the cause.
    GiveUp,
}
