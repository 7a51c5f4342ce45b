//! What can go wrong between here and a server, and what to do about it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use turn::client::{RequestError, Timing};

use crate::Via;

/// Why a probe, or one step of it, failed. The text says what happened and what to look at.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// This machine has no socket, no address or no route for it.
    #[error("cannot reach {server} from this machine: {source}")]
    LocalSocket {
        /// The server.
        server: SocketAddr,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// An ICMP error of the server's machine says that nothing listens on that port.
    #[error(
        "nothing listens on UDP {server}: its machine answered with ICMP \"port unreachable\". Is the server running, and is \
         this its UDP port?"
    )]
    NothingListens {
        /// The server.
        server: SocketAddr,
    },
    /// There was no response.
    #[error(
        "no answer from UDP {server}: {transmissions} {request} requests in {:.1} s. The server may be down, a firewall on the \
         way may drop UDP, or address or port may be wrong", .waited.as_secs_f64()
    )]
    NoAnswer {
        /// The server.
        server: SocketAddr,
        /// The method of the request.
        request: &'static str,
        /// How often it was sent.
        transmissions: u8,
        /// How long the client waited for a response.
        waited: Duration,
    },
    /// The connection stands, and no response came by it.
    #[error(
        "no answer from {server}: it accepted the connection, and did not answer the {request} request in {:.1} s", .waited.as_secs_f64()
    )]
    NoAnswerByStream {
        /// The server.
        server: SocketAddr,
        /// The method of the request.
        request: &'static str,
        /// How long the client waited for a response.
        waited: Duration,
    },
    /// There is no TCP connection, no TLS over it, or no DTLS, or it ended.
    #[error("{}", connection(*.server, .via, .source))]
    Connection {
        /// The server.
        server: SocketAddr,
        /// `TCP`, `TLS` or `DTLS`.
        via: &'static str,
        /// What happened.
        source: Arc<io::Error>,
    },
    /// Datagrams came back that are not STUN.
    #[error("{server} answers, but not with STUN: another service seems to use this port")]
    NotStun {
        /// The server.
        server: SocketAddr,
    },
    /// The server wants credentials.
    #[error(
        "{server} asks for a user name and a password of realm \"{realm}\" (401), but none are configured"
    )]
    CredentialsNeeded {
        /// The server.
        server: SocketAddr,
        /// The realm of the credentials that it requires.
        realm: String,
    },
    /// The server does not accept the credentials.
    #[error(
        "{server} does not accept this user name and password for realm \"{realm}\" (401). Time-limited ones may have expired, or \
         were made with another secret"
    )]
    WrongCredentials {
        /// The server.
        server: SocketAddr,
        /// The server's realm.
        realm: String,
    },
    /// The server refused.
    #[error("{server} refused the {request} request: {code}{reason}. {hint}")]
    Refused {
        /// The server.
        server: SocketAddr,
        /// The method of the request.
        request: &'static str,
        /// The error code, 300 to 699.
        code: u16,
        /// The server's words in brackets, or nothing.
        reason: String,
        /// What it means and what to do.
        hint: String,
    },
    /// Answers came that are not signed with the password.
    #[error(
        "the answers of {server} to {request} requests cannot be trusted: {error}. Somebody on the way may forge them, or the \
         server derives its keys in another way"
    )]
    Untrusted {
        /// The server.
        server: SocketAddr,
        /// The method of the request.
        request: &'static str,
        /// What is wrong with them.
        error: RequestError,
    },
    /// The server granted one address of the two that were asked for, and did not say why.
    #[error(
        "{server} ignores ADDITIONAL-ADDRESS-FAMILY: it may not support dual allocations, or only under another attribute number \
         (coturn 4.6 has that of a draft, 0x8032)"
    )]
    DualIgnored {
        /// The server.
        server: SocketAddr,
    },
    /// The server has one address only.
    #[error(
        "{server} answers, but has no other address for the test (no OTHER-ADDRESS): it does not serve NAT behaviour discovery (RFC 5780)"
    )]
    NoOtherAddress {
        /// The server.
        server: SocketAddr,
    },
    /// What the server calls its other address cannot be that.
    #[error(
        "{server} calls {other} its other address: both the address and the port must differ; so this server cannot test a NAT"
    )]
    WrongOtherAddress {
        /// The server.
        server: SocketAddr,
        /// What OTHER-ADDRESS says.
        other: SocketAddr,
    },
    /// No response came from the server's other address, although this machine has sent a request there.
    #[error(
        "{server} answers, but {other}, another address that it names, does not. A firewall in front of the server may drop it, or the          server is behind a NAT and names an address of its own network"
    )]
    OtherAddressSilent {
        /// The server.
        server: SocketAddr,
        /// The address and port that stay silent.
        other: SocketAddr,
    },
    /// The response came from where the request went.
    #[error(
        "{server} was asked to respond from {expected}, and responded from the same address: it ignores CHANGE-REQUEST"
    )]
    SameOrigin {
        /// The server.
        server: SocketAddr,
        /// Where the response should have come from.
        expected: SocketAddr,
    },
    /// Any other failure of a request.
    #[error("the {request} request to {server} failed: {error}")]
    Request {
        /// The server.
        server: SocketAddr,
        /// The method of the request.
        request: &'static str,
        /// Why.
        error: RequestError,
    },
    /// Requests work, data does not.
    #[error(
        "no data came through the relay: {sent} datagrams from one allocation ({from}) to another ({to}) in {:.1} s. The server \
         may not relay between its own addresses, or a firewall in front of it may drop its relay ports", .waited.as_secs_f64()
    )]
    DataLost {
        /// The relayed address data was sent from.
        from: SocketAddr,
        /// The relayed address it was sent to.
        to: SocketAddr,
        /// How many datagrams were sent.
        sent: u32,
        /// How long data was waited for.
        waited: Duration,
    },
    /// Two allocations of one server have no address family in common.
    #[error("{server} gave two allocations that cannot reach each other: {from} and {to}")]
    NoCommonFamily {
        /// The server.
        server: SocketAddr,
        /// The first relayed address.
        from: SocketAddr,
        /// The second one.
        to: SocketAddr,
    },
}

/// What sort of failure a [`ProbeError`] is, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProbeErrorKind {
    /// No socket, address or route here.
    LocalSocket,
    /// An ICMP error says that nothing listens.
    NothingListens,
    /// There was no response.
    NoAnswer,
    /// No TCP or TLS connection, or it ended.
    Connection,
    /// Something came back that is not STUN.
    NotStun,
    /// Credentials are needed.
    CredentialsNeeded,
    /// Credentials are wrong.
    WrongCredentials,
    /// Refused with this error code.
    Refused(u16),
    /// Answers that cannot be trusted.
    Untrusted,
    /// Data does not come through.
    DataLost,
    /// A part of the request was ignored.
    Ignored,
    /// The server does not serve what is to be tested.
    Unsupported,
    /// Any other failure.
    Other,
}

impl ProbeError {
    /// What sort of failure it is.
    #[must_use]
    pub fn kind(&self) -> ProbeErrorKind {
        match self {
            ProbeError::LocalSocket { .. } => ProbeErrorKind::LocalSocket,
            ProbeError::NothingListens { .. } => ProbeErrorKind::NothingListens,
            ProbeError::NoAnswer { .. } | ProbeError::NoAnswerByStream { .. } => {
                ProbeErrorKind::NoAnswer
            }
            ProbeError::Connection { source, .. }
                if source.kind() == io::ErrorKind::ConnectionRefused =>
            {
                ProbeErrorKind::NothingListens
            }
            ProbeError::Connection { source, .. } if source.kind() == io::ErrorKind::TimedOut => {
                ProbeErrorKind::NoAnswer
            }
            ProbeError::Connection { .. } => ProbeErrorKind::Connection,
            ProbeError::NotStun { .. } => ProbeErrorKind::NotStun,
            ProbeError::CredentialsNeeded { .. } => ProbeErrorKind::CredentialsNeeded,
            ProbeError::WrongCredentials { .. } => ProbeErrorKind::WrongCredentials,
            ProbeError::Refused { code, .. } => ProbeErrorKind::Refused(*code),
            ProbeError::Untrusted { .. } => ProbeErrorKind::Untrusted,
            ProbeError::DataLost { .. } => ProbeErrorKind::DataLost,
            ProbeError::DualIgnored { .. } | ProbeError::SameOrigin { .. } => {
                ProbeErrorKind::Ignored
            }
            ProbeError::NoOtherAddress { .. } => ProbeErrorKind::Unsupported,
            ProbeError::Request { .. }
            | ProbeError::NoCommonFamily { .. }
            | ProbeError::WrongOtherAddress { .. }
            | ProbeError::OtherAddressSilent { .. } => ProbeErrorKind::Other,
        }
    }

    pub(super) fn local(server: SocketAddr, source: io::Error) -> ProbeError {
        ProbeError::LocalSocket {
            server,
            source: Arc::new(source),
        }
    }

    pub(crate) fn connection(server: SocketAddr, via: &Via, source: io::Error) -> ProbeError {
        ProbeError::Connection {
            server,
            via: match via {
                Via::Tls(_) => "TLS",
                Via::Dtls(_) => "DTLS",
                _ => "TCP",
            },
            source: Arc::new(source),
        }
    }

    /// The same of a request over `via`.
    pub(crate) fn over(self, via: &Via) -> ProbeError {
        match self {
            ProbeError::NoAnswer {
                server,
                request,
                waited,
                ..
            } if via.has_connections() => ProbeError::NoAnswerByStream {
                server,
                request,
                waited,
            },
            error => error,
        }
    }

    pub(super) fn no_answer(
        server: SocketAddr,
        request: &'static str,
        timing: Timing,
    ) -> ProbeError {
        ProbeError::NoAnswer {
            server,
            request,
            transmissions: timing.transmissions,
            waited: timing.elapsed,
        }
    }

    pub(super) fn refused(
        server: SocketAddr,
        request: &'static str,
        code: u16,
        reason: &str,
    ) -> ProbeError {
        let reason = if reason.is_empty() {
            String::new()
        } else {
            format!(" ({reason})")
        };
        ProbeError::Refused {
            server,
            request,
            code,
            reason,
            hint: hint(code).to_owned(),
        }
    }

    /// The failure of a request, in the words of a probe.
    pub(crate) fn request(
        server: SocketAddr,
        request: &'static str,
        error: RequestError,
    ) -> ProbeError {
        match error {
            RequestError::TimedOut(timing) => ProbeError::no_answer(server, request, timing),
            RequestError::Unreachable => ProbeError::NothingListens { server },
            RequestError::NoCredentials { realm } => ProbeError::CredentialsNeeded {
                server,
                realm: realm.into(),
            },
            RequestError::WrongCredentials { realm } => ProbeError::WrongCredentials {
                server,
                realm: realm.into(),
            },
            RequestError::IntegrityViolated(_) | RequestError::BidDown => ProbeError::Untrusted {
                server,
                request,
                error,
            },
            RequestError::Refused(refusal) => {
                let refused = ProbeError::refused(server, request, refusal.code, &refusal.reason);
                match (refused, &refusal.alternate) {
                    (
                        ProbeError::Refused {
                            server,
                            request,
                            code,
                            reason,
                            ..
                        },
                        Some(alternate),
                    ) => {
                        let servers: Vec<_> =
                            alternate.servers.iter().map(ToString::to_string).collect();
                        let hint = format!("Ask {} instead", servers.join(" or "));
                        ProbeError::Refused {
                            server,
                            request,
                            code,
                            reason,
                            hint,
                        }
                    }
                    (refused, _) => refused,
                }
            }
            error => ProbeError::Request {
                server,
                request,
                error,
            },
        }
    }
}

/// What is the matter with a connection, and what to do.
fn connection(server: SocketAddr, via: &str, source: &io::Error) -> String {
    let below = if via == "DTLS" { "UDP" } else { "TCP" };
    match source.kind() {
        io::ErrorKind::ConnectionRefused => format!(
            "nothing listens on {below} {server}: its machine refused the connection. Is the server running, and is this its port for {via}?"
        ),
        io::ErrorKind::TimedOut => format!(
            "no answer from {below} {server}: {source}. The server may be down, a firewall on the way may drop {below}, or address or port may be wrong"
        ),
        io::ErrorKind::UnexpectedEof => {
            format!("no STUN over {via} with {server}: {source}. Is this its port for {via}?")
        }
        io::ErrorKind::InvalidData if via != "TCP" => format!("no {via} with {server}: {source}"),
        _ => format!("no {via} connection to {server}: {source}"),
    }
}

/// What an error code means here, and what to do.
const fn hint(code: u16) -> &'static str {
    match code {
        300 => "It wants clients to use another server, and does not say which",
        400 => "It takes the request for malformed, or it does not know an attribute of it",
        401 => "It wants other credentials",
        403 => {
            "Its rules forbid this: peers in private, loopback or the server's own networks are often not allowed"
        }
        420 => "It does not know an attribute of the request",
        437 => {
            "It believes that this client's address has an allocation already, or has none any more: try again in a minute"
        }
        438 => {
            "It calls every nonce stale: its clock may jump, or several servers share the address without sharing a key"
        }
        440 => "It has no relay addresses of that family",
        441 => "It takes the allocation for another user's",
        442 => "It does not relay UDP",
        443 => "The peer's address family is not that of the allocation",
        486 => {
            "This user has as many allocations as allowed: release others, or wait for them to expire"
        }
        500 => "It has an internal problem: its log will say more",
        508 => "It has no relay ports or other resources left",
        _ => "This code is unknown to STUN and TURN",
    }
}
