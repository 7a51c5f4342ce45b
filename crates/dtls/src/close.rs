//! Why connections and handshakes end.

use crate::crypto::Refused;
use crate::wire::alert::{alert_name, description};

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// This side closed it.
    Local,
    /// The peer sent close_notify.
    Peer,
    /// The peer sent a fatal alert with this description (RFC 5246 §7.2).
    Alert(u8),
    /// No authenticated record arrived within the idle timeout.
    Idle,
    /// The handshake was not complete within the handshake timeout.
    HandshakeTimeout,
    /// There were too many handshakes, and this was the oldest.
    TooManyHandshakes,
    /// The client began another handshake from the same address and port (RFC 6347 §4.2.8).
    Replaced,
    /// The handshake failed.
    Handshake(HandshakeError),
}

impl CloseReason {
    /// The names of all reasons, in the order of [`CloseReason::number`].
    pub const NAMES: [&'static str; OWN + HandshakeError::ALL.len()] = {
        let mut names = ["local"; OWN + HandshakeError::ALL.len()];
        names[1] = "peer";
        names[2] = "alert";
        names[3] = "idle";
        names[4] = "handshake_timeout";
        names[5] = "too_many_handshakes";
        names[6] = "replaced";
        let mut at = 0;
        while at < HandshakeError::ALL.len() {
            names[OWN + at] = HandshakeError::ALL[at].name();
            at += 1;
        }
        names
    };

    /// The reason's number, for counters. All alerts share one number. Each handshake error has its own.
    #[must_use]
    pub const fn number(self) -> usize {
        match self {
            CloseReason::Local => 0,
            CloseReason::Peer => 1,
            CloseReason::Alert(_) => 2,
            CloseReason::Idle => 3,
            CloseReason::HandshakeTimeout => 4,
            CloseReason::TooManyHandshakes => 5,
            CloseReason::Replaced => 6,
            CloseReason::Handshake(error) => OWN + error as usize,
        }
    }

    /// The reason's name in metrics and logs, in snake case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        CloseReason::NAMES[self.number()]
    }
}

/// The number of reasons that are not handshake errors.
const OWN: usize = 7;

impl std::fmt::Display for CloseReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CloseReason::Alert(description) => write!(
                f,
                "the peer sent the alert {} ({description})",
                alert_name(*description)
            ),
            CloseReason::Handshake(error) => error.fmt(f),
            other => f.write_str(other.name()),
        }
    }
}

macro_rules! handshake_errors {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal, $alert:ident, $text:literal;)+) => {
        /// Why this side ended a handshake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
        #[non_exhaustive]
        pub enum HandshakeError { $($(#[doc = $doc])+ #[error($text)] $variant,)+ }

        impl HandshakeError {
            /// All errors, in the order of their numbers.
            pub const ALL: &'static [HandshakeError] = &[$(HandshakeError::$variant,)+];

            /// The error's name in metrics and logs, in snake case.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(HandshakeError::$variant => $name,)+ }
            }

            /// The description of the alert that is sent to the peer.
            pub(crate) const fn alert(self) -> u8 {
                match self { $(HandshakeError::$variant => description::$alert,)+ }
            }
        }
    };
}

handshake_errors! {
    /// The peer does not support DTLS 1.2.
    Version = "version", PROTOCOL_VERSION, "the peer does not offer DTLS 1.2";
    /// No cipher suite, group or signature scheme in common.
    NothingInCommon = "nothing_in_common", HANDSHAKE_FAILURE, "no cipher suite, group and signature scheme in common with the peer";
    /// No certificate for the name that the client sent.
    NoCertificate = "no_certificate", UNRECOGNIZED_NAME, "no certificate for the server name that the client sent";
    /// No application protocol in common (RFC 7301 §3.2).
    NoProtocol = "no_protocol", NO_APPLICATION_PROTOCOL, "no application protocol in common with the client";
    /// A message could not be parsed, or has a value that it must not have.
    Malformed = "malformed", DECODE_ERROR, "the peer sent a malformed handshake message";
    /// The server selected a parameter that was not offered.
    NotOffered = "not_offered", ILLEGAL_PARAMETER, "the server chose a parameter that was not offered";
    /// The server sent an extension that was not offered.
    Extension = "extension", UNSUPPORTED_EXTENSION, "the server sent an extension that was not offered";
    /// The peer's key is not a point of the group.
    KeyShare = "key_share", ILLEGAL_PARAMETER, "the peer's key is not valid in its group";
    /// The server's certificate is not trusted.
    Certificate = "certificate", BAD_CERTIFICATE, "the server's certificate is not valid for its name";
    /// The server's signature is wrong.
    Signature = "signature", DECRYPT_ERROR, "the signature over the server's key is wrong";
    /// The peer's Finished message is wrong: an attacker may have changed the handshake.
    Finished = "finished", DECRYPT_ERROR, "the peer's Finished message does not match the handshake";
    /// The cryptographic library failed.
    Internal = "internal", INTERNAL_ERROR, "the cryptographic library failed";
}

impl From<Refused> for HandshakeError {
    fn from(_: Refused) -> HandshakeError {
        HandshakeError::Internal
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_reason_has_a_number_and_a_name_of_its_own() {
        let own = [
            CloseReason::Local,
            CloseReason::Peer,
            CloseReason::Alert(40),
            CloseReason::Idle,
            CloseReason::HandshakeTimeout,
            CloseReason::TooManyHandshakes,
            CloseReason::Replaced,
        ];
        let errors = HandshakeError::ALL.iter().copied();
        let all: Vec<CloseReason> = own
            .into_iter()
            .chain(errors.map(CloseReason::Handshake))
            .collect();
        for (number, reason) in all.iter().enumerate() {
            assert_eq!(reason.number(), number);
        }
        let names: BTreeSet<&str> = all.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), CloseReason::NAMES.len());
    }
}
