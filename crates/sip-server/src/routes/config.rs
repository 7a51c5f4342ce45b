//! The configuration of routes and trunks.

use std::net::IpAddr;
use std::time::Duration;

use sip::Message;
use sip::digest::{Challenge, choose_in};
use sip::header::HeaderKind;
use sip::uri::Uri;

/// Whether and how the addresses of a trunk are probed with OPTIONS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeConfig {
    /// Time between two probes of an address; zero: it is not probed.
    pub interval: Duration,
    /// Failures in a row (of probes, or of calls without a response) that make an address unavailable. At least 1.
    pub failures: u32,
    /// Successful probes in a row that make it available again. At least 1.
    pub successes: u32,
    /// The time in which the share of calls of an address grows from none to all, after it has become available again.
    pub slow_start: Duration,
}

impl Default for ProbeConfig {
    fn default() -> ProbeConfig {
        ProbeConfig {
            interval: Duration::from_secs(30),
            failures: 3,
            successes: 2,
            slow_start: Duration::from_secs(30),
        }
    }
}

/// A SIP URI without a user: an address of a trunk, such as `sip:192.0.2.7:5060;transport=tcp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop(String);

/// Why a text is not a [`NextHop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NextHopError {
    /// It is not a SIP URI.
    #[error("not a sip or sips URI")]
    NotSip,
    /// It has a user, headers or `maddr`.
    #[error("a URI of a trunk has no user, no headers and no maddr")]
    HasMore,
    /// It names a transport that requests cannot leave by.
    #[error("the transport must be udp, tcp or tls")]
    Transport,
}

impl NextHop {
    /// Reads it.
    ///
    /// # Errors
    /// [`NextHopError`].
    pub fn new(text: &str) -> Result<NextHop, NextHopError> {
        use sip::header::ViaTransport;
        let Ok(Uri::Sip(uri)) = Uri::parse(text.as_bytes()) else {
            return Err(NextHopError::NotSip);
        };
        let has_more = uri.user.is_some() || uri.maddr().is_some();
        if has_more || !uri.headers.as_bytes().is_empty() {
            return Err(NextHopError::HasMore);
        }
        match uri.transport() {
            None | Some(ViaTransport::Udp | ViaTransport::Tcp | ViaTransport::Tls) => {
                Ok(NextHop(text.to_owned()))
            }
            Some(_) => Err(NextHopError::Transport),
        }
    }

    /// The URI.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its address, if the host is one.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        match Uri::parse(self.0.as_bytes()) {
            Ok(Uri::Sip(uri)) => uri.host.ip().map(|ip| ip.to_canonical()),
            _ => None,
        }
    }
}

/// The credentials of this server at a trunk.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The name.
    pub user: String,
    /// The password.
    pub password: String,
    /// The realms that they are for (RFC 3261 §22.1). A digest response lets its recipient guess the password offline.
    /// If the trunk forwards challenges of called parties, the recipient may be the called party. So no challenge of
    /// another realm gets a response. An empty list means every realm.
    pub realms: Vec<String>,
}

impl Credentials {
    /// The challenge in a 401 or 407 that these credentials answer, and the header field of the answer.
    pub(crate) fn challenge_in<'m>(
        &self,
        response: &Message<'m>,
    ) -> Option<(Challenge<'m>, HeaderKind)> {
        let (challenges, answers) = match response.status_code()? {
            401 => (HeaderKind::WwwAuthenticate, HeaderKind::Authorization),
            407 => (
                HeaderKind::ProxyAuthenticate,
                HeaderKind::ProxyAuthorization,
            ),
            _ => return None,
        };
        let challenge = choose_in(response, challenges, |realm| {
            let mut ours = self.realms.iter();
            self.realms.is_empty() || ours.any(|it| it.as_bytes().eq_ignore_ascii_case(realm))
        })?;
        Some((challenge, answers))
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the password.
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// A registration of this server at a trunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterConfig {
    /// The address of record there, such as `sip:+4930@carrier.example`.
    pub aor: String,
    /// The URI by which the trunk reaches this server.
    pub contact: String,
    /// The lifetime that the server asks for.
    pub expires: Duration,
}

/// Whether a text is a SIP URI with a user, such as `sip:+4930@carrier.example`, and can stand between angle brackets.
#[must_use]
pub fn is_sip_user(text: &str) -> bool {
    matches!(Uri::parse(text.as_bytes()), Ok(Uri::Sip(uri)) if uri.user.is_some())
}

/// A trunk as routes see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trunk {
    /// Its name in routes. Names are unique.
    pub name: String,
    /// The addresses that calls are sent to: the first one that is available, then the next one if it does not respond.
    /// Empty: no route can lead to it.
    pub to: Vec<NextHop>,
    /// The host of the Request-URI of its requests; by default that of the address.
    pub domain: Option<String>,
    /// Its share of calls in routes that hunt by weight or by hash; 0 counts as 1.
    pub weight: u16,
    /// Trunks of the lowest number are tried first.
    pub priority: u16,
    /// New calls per second to it; zero: no limit.
    pub calls_per_second: u32,
    /// Calls that routes have sent to it and that are in progress, those that ring included; zero: no limit.
    pub max_calls: u32,
    /// New calls per second from it; zero: no limit.
    pub calls_per_second_from: u32,
    /// Calls that it has sent and that are in progress, those that ring included; zero: no limit.
    pub max_calls_from: u32,
    /// How long an INVITE waits for any response, also a 100, if another address follows.
    pub answer_timeout: Duration,
    /// OPTIONS.
    pub probe: ProbeConfig,
    /// The credentials that answer its challenges. Without them, the caller gets the challenges.
    pub credentials: Option<Credentials>,
    /// The registration at its first address, if it requires one.
    pub register: Option<RegisterConfig>,
    /// Whether the media of its calls go through a relay.
    pub relays_media: bool,
}

impl Default for Trunk {
    fn default() -> Trunk {
        Trunk {
            name: String::new(),
            to: Vec::new(),
            domain: None,
            weight: 1,
            priority: 0,
            calls_per_second: 0,
            max_calls: 0,
            calls_per_second_from: 0,
            max_calls_from: 0,
            answer_timeout: Duration::from_secs(2),
            probe: ProbeConfig::default(),
            credentials: None,
            register: None,
            relays_media: false,
        }
    }
}

/// In which order a route tries trunks of equal priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Hunt {
    /// As they are listed.
    #[default]
    Order,
    /// At random: each comes first in proportion to its weight.
    Weight,
    /// By a hash of the Call-ID and the trunk's name (rendezvous hashing): a call has the same order on every server.
    /// If a trunk is added or removed, only its own calls move.
    Hash,
}

/// What follows when a trunk has not accepted a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Next {
    /// The caller gets the response.
    #[default]
    Stop,
    /// The next trunk of the route; after the last one, the next route that matches.
    NextTrunk,
    /// The next route that matches.
    NextRoute,
}

/// What follows each kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Failures {
    /// After 486.
    pub busy: Next,
    /// After 408 and 480, and when an INVITE has rung for too long.
    pub no_answer: Next,
    /// After 500, 502, 503 and 504, without a response in time, without a connection, or when `calls_per_second` or
    /// `max_calls` is reached.
    pub unreachable: Next,
}

impl Default for Failures {
    fn default() -> Failures {
        Failures {
            busy: Next::Stop,
            no_answer: Next::Stop,
            unreachable: Next::NextTrunk,
        }
    }
}

/// The addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    /// Any of them.
    pub address: IpAddr,
    /// How many bits they share.
    pub prefix: u8,
}

impl Network {
    /// Whether an address is one of them.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        let shared = |own: u128, other: u128, width: u32| {
            let left = width.saturating_sub(self.prefix.into());
            (own ^ other).checked_shr(left).unwrap_or(0) == 0
        };
        match (self.address, ip.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                shared(u32::from(own).into(), u32::from(ip).into(), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(ip)) => shared(own.into(), ip.into(), 128),
            _ => false,
        }
    }
}

/// A condition for a header field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderRule {
    /// Its name, in any case.
    pub name: String,
    /// Its value, byte by byte.
    pub value: String,
    /// The value only begins with that.
    pub is_prefix: bool,
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// To these trunks, by their names.
    Trunks(Vec<String>),
    /// To the user of this name in this domain.
    Domain(String),
    /// Nowhere.
    Reject {
        /// 400 to 699.
        code: u16,
        /// The reason phrase; empty for that of the RFC.
        reason: String,
    },
}

/// A route. It matches if each list is empty or has an element that matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// For logs and explanations.
    pub name: String,
    /// Routes of the greatest number are tried first.
    pub priority: u16,
    /// Beginnings of the called user part. Among routes of equal priority the longest one that matches comes first.
    pub prefixes: Vec<String>,
    /// Hosts of the Request-URI.
    pub domains: Vec<String>,
    /// Trunks that the request comes from.
    pub from_trunks: Vec<String>,
    /// Users here that the request comes from: `alice`, or `alice@example.org`.
    pub from_users: Vec<String>,
    /// Networks that the request comes from.
    pub from_networks: Vec<Network>,
    /// Header fields, all of which must be there.
    pub headers: Vec<HeaderRule>,
    /// The number of bytes that are removed from the beginning of the user part.
    pub strip: u16,
    /// A new user part, instead of `strip`.
    pub replace: Option<String>,
    /// The text that is then put in front of it.
    pub add: String,
    /// Where it leads.
    pub action: Action,
    /// In which order trunks of equal priority are tried.
    pub hunt: Hunt,
    /// What follows a failure.
    pub failures: Failures,
    /// How long a call may ring at a trunk before [`Failures::no_answer`] applies, if another trunk follows.
    pub ring_time: Duration,
}

impl Default for Route {
    fn default() -> Route {
        Route {
            name: String::new(),
            priority: 0,
            prefixes: Vec::new(),
            domains: Vec::new(),
            from_trunks: Vec::new(),
            from_users: Vec::new(),
            from_networks: Vec::new(),
            headers: Vec::new(),
            strip: 0,
            replace: None,
            add: String::new(),
            action: Action::Trunks(Vec::new()),
            hunt: Hunt::Order,
            failures: Failures::default(),
            ring_time: Duration::from_secs(30),
        }
    }
}
