//! Asks one server what it does, and says what went wrong in words that help.
//!
//! [`stun()`] learns the mapped address. [`turn()`] obtains two allocations, finds out what the server offers, sends
//! data from one through both to the other and back, and releases them. [`nat()`] finds out how the NAT on the way
//! behaves. All block the calling thread; every step has a timeout.

mod dtls;
mod error;
mod link;
mod nat;
mod relay;
mod socket;

use std::net::SocketAddr;
use std::time::Duration;

use stun::{IntegrityAlgorithm, PasswordAlgorithm};
use turn::client::{
    Advice, AllocateOptions, Allocated, Client, ClientConfig, Event, RequestedRelays,
};

pub use client::Handshake;
pub use error::{ProbeError, ProbeErrorKind};
use link::ProbeClient;
pub use nat::{Behaviour, Hairpinning, Lifetime, NatOptions, NatReport, nat};
pub use relay::RelayedRoundTrip;
pub use turn::client::Credentials;

use crate::ServerAddress;

/// How long to wait for a released allocation to be confirmed: not knowing is no failure.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// What a STUN server said.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StunReport {
    /// The server asked.
    pub server: SocketAddr,
    /// The connection; `None` over UDP.
    pub connected: Option<Connected>,
    /// Where the question left this machine.
    pub local: SocketAddr,
    /// Where it came from, as the server saw it.
    pub mapped: SocketAddr,
    /// From the first request to the response; a round trip if `transmissions` is 1.
    pub round_trip: Duration,
    /// Requests sent until a response came.
    pub transmissions: u8,
    /// What the server says it is.
    pub software: Option<String>,
}

/// How a TCP, TLS or DTLS connection came about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Connected {
    /// How long the TCP connection took: a round trip; `None` over DTLS.
    pub tcp: Option<Duration>,
    /// How long the TLS or DTLS handshake took after that, and what it agreed on; `None` over TCP.
    pub tls: Option<(Duration, Handshake)>,
}

/// How a server wants requests to be authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offer {
    /// The realm of its credentials.
    pub realm: String,
    /// The password algorithms it lists, in its order; empty for a server that supports RFC 5389.
    pub algorithms: Vec<String>,
    /// The algorithm that was used.
    pub algorithm: String,
    /// How messages are signed.
    pub integrity: String,
    /// Whether the user name travelled hashed.
    pub anonymous: bool,
}

/// What a TURN server did.
#[derive(Debug)]
#[non_exhaustive]
pub struct TurnReport {
    /// The server asked.
    pub server: SocketAddr,
    /// The connection; `None` over UDP.
    pub connected: Option<Connected>,
    /// Where the requests left this machine.
    pub local: SocketAddr,
    /// Where they came from, as the server saw it.
    pub mapped: SocketAddr,
    /// The relayed transport address.
    pub relayed: SocketAddr,
    /// How long the allocation would have lasted.
    pub lifetime: Duration,
    /// From the Allocate request that was granted to its response.
    pub allocate: Duration,
    /// How often that request was sent.
    pub transmissions: u8,
    /// What the server says it is.
    pub software: Option<String>,
    /// What it wants for authentication; `None` if it wants none.
    pub offer: Option<Offer>,
    /// The second relayed transport address, of the other family, of one allocation (RFC 8656's
    /// ADDITIONAL-ADDRESS-FAMILY).
    pub dual: Result<SocketAddr, ProbeError>,
    /// Whether it can set DF towards peers (DONT-FRAGMENT).
    pub dont_fragment: bool,
    /// Data through the relay and back.
    pub relayed_round_trip: Result<RelayedRoundTrip, ProbeError>,
}

/// Asks `server` for this machine's mapped address, and waits at most `timeout`: over TCP, TLS and DTLS twice, for
/// connection and answer.
///
/// # Errors
/// [`ProbeError`].
pub fn stun(server: impl Into<ServerAddress>, timeout: Duration) -> Result<StunReport, ProbeError> {
    let mut link = ProbeClient::open(&server.into(), &ClientConfig::default(), timeout)?;
    link.call(|client, now| client.binding(now));
    let mapped = link.wait("Binding", timeout, |event| match event {
        Event::Mapped(mapped) => Some(Ok(mapped)),
        Event::BindingFailed(error) => Some(Err(error)),
        _ => None,
    })?;
    Ok(StunReport {
        server: link.server(),
        connected: link.connected(),
        local: link.local(),
        mapped: mapped.address,
        round_trip: mapped.timing.elapsed,
        transmissions: mapped.timing.transmissions,
        software: mapped.software.map(String::from),
    })
}

/// Obtains allocations from `server`, tries them out and releases them. `timeout` is for each of about ten steps.
///
/// # Errors
/// [`ProbeError`] if there is no allocation at all. What fails beyond that is in the report.
pub fn turn(
    server: impl Into<ServerAddress>,
    credentials: Option<&Credentials>,
    timeout: Duration,
) -> Result<TurnReport, ProbeError> {
    let server = server.into();
    let config = ClientConfig {
        credentials: credentials.cloned(),
        ..ClientConfig::default()
    };
    let mut link = ProbeClient::open(&server, &config, timeout)?;
    let allocated = allocate(&mut link, AllocateOptions::default(), timeout)
        .map_err(|refusal| refusal.error)?;
    let second = ProbeClient::open(&server, &config, timeout)
        .and_then(|link| Second::allocate(link, timeout));
    let (dual, dont_fragment, relayed_round_trip) = match second {
        Ok(mut second) => {
            let round_trip = relay::round_trip(&mut link, &mut second.link, timeout);
            release(&mut second.link);
            (second.dual, second.dont_fragment, round_trip)
        }
        Err(error) => (Err(error.clone()), false, Err(error)),
    };
    let report = TurnReport {
        server: server.address,
        connected: link.connected(),
        local: link.local(),
        mapped: allocated.mapped,
        relayed: allocated.relayed,
        lifetime: Duration::from_secs(allocated.lifetime_s.into()),
        allocate: allocated.timing.elapsed,
        transmissions: allocated.timing.transmissions,
        software: allocated.software.map(String::from),
        offer: offer(link.client()),
        dual,
        dont_fragment,
        relayed_round_trip,
    };
    release(&mut link);
    Ok(report)
}

/// Why there is no allocation.
struct Refusal {
    error: ProbeError,
    advice: Option<Advice>,
}

fn allocate(
    link: &mut ProbeClient,
    options: AllocateOptions,
    timeout: Duration,
) -> Result<Box<Allocated>, Box<Refusal>> {
    // A link allocates only when it has no allocation.
    link.call(|client, now| _ = client.allocate(now, options));
    let mut advised = None;
    let outcome = link.wait("Allocate", timeout, |event| match event {
        Event::Allocated(allocated) => Some(Ok(allocated)),
        Event::AllocateFailed { error, advice } => {
            advised = Some(advice);
            Some(Err(error))
        }
        _ => None,
    });
    outcome.map_err(|error| {
        Box::new(Refusal {
            error,
            advice: advised,
        })
    })
}

fn release(link: &mut ProbeClient) {
    link.call(|client, now| _ = client.release(now, None));
    // Whether it worked changes nothing: the allocation expires by itself.
    let _ = link.wait("Refresh", RELEASE_TIMEOUT, |event| match event {
        Event::Released { .. } | Event::Lost(_) => Some(Ok(())),
        Event::RefreshFailed(error) => Some(Err(error)),
        _ => None,
    });
}

/// The second allocation. It finds out which optional parts the server supports.
struct Second {
    link: ProbeClient,
    dual: Result<SocketAddr, ProbeError>,
    dont_fragment: bool,
}

impl Second {
    /// Asks for everything at once, then for less and less until the server agrees.
    fn allocate(mut link: ProbeClient, timeout: Duration) -> Result<Second, ProbeError> {
        let mut options = AllocateOptions {
            mobility: false,
            relay: RequestedRelays::Both { even_port: false },
            dont_fragment: true,
            lifetime_s: None,
        };
        let mut dual_refused = None;
        loop {
            let refusal = match allocate(&mut link, options, timeout) {
                Ok(allocated) => {
                    let dual = dual_outcome(link.server(), dual_refused, &allocated);
                    let dont_fragment = options.dont_fragment;
                    return Ok(Second {
                        link,
                        dual,
                        dont_fragment,
                    });
                }
                Err(refusal) => refusal,
            };
            let refused = matches!(refusal.error.kind(), ProbeErrorKind::Refused(_));
            if options.dont_fragment && refusal.advice == Some(Advice::OmitDontFragment) {
                options.dont_fragment = false;
            } else if refused && dual_refused.is_none() {
                options.relay = RequestedRelays::default();
                dual_refused = Some(refusal.error);
            } else {
                return Err(refusal.error);
            }
        }
    }
}

fn dual_outcome(
    server: SocketAddr,
    refused: Option<ProbeError>,
    allocated: &Allocated,
) -> Result<SocketAddr, ProbeError> {
    if let Some(error) = refused {
        return Err(error);
    }
    // RFC 8656 §7.2: a partly successful dual allocation says by ADDRESS-ERROR-CODE what is missing.
    let code = allocated.refused_family.map(|(_, code)| code);
    allocated.additional.ok_or_else(|| match code {
        Some(code) => ProbeError::refused(server, "Allocate", code, ""),
        // RFC 8489 §14: a server that does not support an attribute from 0x8000 on ignores it.
        None => ProbeError::DualIgnored { server },
    })
}

fn offer(client: &Client) -> Option<Offer> {
    let offer = client.offer()?;
    let (algorithms, algorithm) = match offer.algorithms {
        Some((list, chosen)) => {
            let names =
                list.entries()
                    .map(|entry| match PasswordAlgorithm::from_number(entry.number) {
                        Some(known) => algorithm_name(known).to_owned(),
                        None => format!("unknown ({})", entry.number),
                    });
            (names.collect(), chosen)
        }
        None => (Vec::new(), PasswordAlgorithm::Md5),
    };
    Some(Offer {
        realm: offer.realm.to_owned(),
        algorithms,
        algorithm: algorithm_name(algorithm).to_owned(),
        integrity: match offer.integrity {
            IntegrityAlgorithm::Sha1 => "HMAC-SHA1",
            IntegrityAlgorithm::Sha256 => "HMAC-SHA256",
        }
        .to_owned(),
        anonymous: offer.anonymous,
    })
}

const fn algorithm_name(algorithm: PasswordAlgorithm) -> &'static str {
    match algorithm {
        PasswordAlgorithm::Md5 => "MD5",
        PasswordAlgorithm::Sha256 => "SHA-256",
    }
}
