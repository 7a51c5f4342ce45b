//! What an operator chooses about SIP, beyond where it listens.

use super::advertise::Advertised;
use super::nodes::NodesHook;
use super::push::PushSettings;
use super::report::Reporter;
use super::route_hook::RouteHook;
use super::trace::TraceSettings;
use crate::policy::PeerRule;
use ipnet::IpNet;
use sip::Host;
use sip::digest::{Algorithm, Ha1};
use sip_server::calls::Limit;
use sip_server::flow::TokenKeys;
use sip_server::proxy::Forking;
use sip_server::registrar::{Config as RegistrarConfig, Domain, Domains};
use sip_server::routes::{
    Alias, Aliases, Credentials, Forward, Forwards, NextHop, ProbeConfig, RegisterConfig, Route,
    Table, TableError, Trunk as RouteTrunk,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use turn::server::credentials::Credentials as KeySource;

/// How SIP is served. A part of [`Settings`](crate::Settings): it can change while the server runs, but for the limits
/// of messages and transactions.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SipSettings {
    /// Whether the server accepts every REGISTER and INVITE, and stores nothing of them: a user agent server for tests.
    /// Default: no.
    pub test_uas: bool,
    /// Whether that REGISTER takes a digest by one of the users, in the realm of all credentials. Default: no.
    pub challenge: bool,
    /// The domains whose addresses of record are registered here. If there are any, REGISTER takes the digest of the
    /// user of the address, and is answered by a registrar; [`SipSettings::test_uas`] must be off. Default: none.
    pub domains: Vec<Domain>,
    /// Domains with their own users, realm or digest algorithms. All other domains share the users, the realm and the
    /// algorithms of the server. Default: none.
    pub credentials: Vec<DomainCredentials>,
    /// Peers that the server knows by their source addresses: they may send to the users of [`SipSettings::domains`],
    /// and these to them. Default: none.
    pub trunks: Vec<Trunk>,
    /// The addresses that listeners write into Via, Record-Route, Path and Contact; the first entry that matches
    /// applies. Without one, a listener writes its own address; a listener on all addresses writes the one that a
    /// message came to or leaves from. They cannot change while the server runs.
    pub advertise: Vec<Advertised>,
    /// Internal networks: for peers there, listeners write their own addresses, even if [`SipSettings::advertise`] has
    /// an entry. They cannot change while the server runs.
    pub local_networks: Vec<IpNet>,
    /// The routes of requests that name no user of a domain. Default: none.
    pub routes: Vec<Route>,
    /// A function of the embedding program that decides about a request before the routes. Default: none.
    pub route_hook: Option<RouteHook>,
    /// Where calls go that users of the domains do not take. Default: nowhere.
    pub forwards: Vec<Forward>,
    /// Other addresses of users of the domains. Entries that cannot be used have no effect: [`Aliases::new`] names
    /// them. Default: none.
    pub aliases: Vec<Alias>,
    /// Whether the proxy adds Record-Route to requests that begin a dialog (RFC 3261 §16.6). Without it, requests
    /// within the dialog do not reach phones behind a NAT. Default: yes.
    pub record_route: bool,
    /// In which order the proxy tries the contacts of a user. Default: those of the greatest `q` at the same time, then
    /// those of the next.
    pub forking: Forking,
    /// Whether the proxy itself tries the contacts of a 3xx (RFC 3261 §16.7 step 4); those of domains here are left to
    /// the caller. Default: no.
    pub recurse: bool,
    /// Limits of calls. Default: none.
    pub calls: CallSettings,
    /// Copies of messages for administrators. Default: none.
    pub trace: TraceSettings,
    /// Sources whose messages the server drops. Default: none.
    pub deny: Vec<IpNet>,
    /// Exceptions from [`SipSettings::deny`] and from bans. Trunks are always exceptions. Default: none.
    pub allow: Vec<IpNet>,
    /// How long a source that guesses passwords is banned, at most a day; zero: no source is banned. Default 5 min.
    pub ban: Duration,
    /// The server drops requests whose User-Agent begins with one of these texts (upper or lower case): tools that scan
    /// for open servers. Default: [`SipSettings::SCANNERS`].
    pub scanners: Vec<String>,
    /// `turn:` and `turns:` URIs of this server. If there are any, and the server has a shared secret, the 200 to a
    /// REGISTER has the header field `Ice-Servers`. It is a JSON array with these URIs and credentials. The credentials
    /// expire after `max_expires` of [`SipSettings::registrar`]. Default: none.
    pub ice_servers: Vec<String>,
    /// Where rtpengine takes requests of the ng protocol: the media of calls through trunks with
    /// [`Trunk::relays_media`] go through it. Default: there is none.
    pub rtpengine: Option<SocketAddr>,
    /// Push notifications for phones whose app is suspended (RFC 8599). Default: none.
    pub push: Option<PushSettings>,
    /// The other nodes of a cluster, for calls to phones that are registered there. Default: none.
    pub nodes: Option<NodesHook>,
    /// How long registrations last.
    pub registrar: RegistrarConfig,
    /// Registration bindings of all workers together. Default 1,000,000.
    pub bindings: u32,
    /// Registration bindings of one address of record. Default 10.
    pub bindings_per_user: u32,
    /// The digest algorithms, the preferred one first; each at most once. Default: SHA-256, MD5.
    pub digest_algorithms: Vec<Algorithm>,
    /// Whether `auth-int` is offered beside `auth`. Default: no.
    pub auth_int: bool,
    /// Whether the `uri` of credentials may be another one than the Request-URI, for a server behind an edge that
    /// rewrites that. Default: no.
    pub digest_any_uri: bool,
    /// Whether credentials without `qop` (RFC 2069) are accepted; each nonce is then valid once. Default: no.
    pub digest_without_qop: bool,
    /// Whether clients are asked to hash the names of their users. Default: no, because From and To have them anyway.
    pub userhash: bool,
    /// The longest expected wait of a message. From a quarter of it, the server refuses some new requests. Zero turns
    /// admission control off. Default 120 ms: a proxied call waits twice, and its caller retransmits after 500 ms.
    pub tolerance: Duration,
    /// Requests per second of one IPv4 address or IPv6 /64, of all workers together: in each 250 ms a quarter of it.
    /// Further requests get a 503. If 503s have used up their time, further requests over UDP are dropped, and those
    /// over other transports are accepted. The addresses of trunks and of [`SipSettings::peers`], other nodes and
    /// emergency calls have no limit. BYE and PRACK of calls that this server has accepted as user agent server have
    /// none either. 0, or a [`SipSettings::tolerance`] of zero: no limit. Default 0.
    pub requests_per_source: u32,
    /// Carriers, trunks and other proxies, each with a share of the capacity by weight in an overload; all other
    /// sources together have the weight 1. At most 256 count. Default: none.
    pub peers: Vec<sip::congestion::WeightedSource>,
    /// How long the test user agent server works on each request that it accepts. Default: zero.
    pub service_time: Duration,
    /// T1 of RFC 3261 §17.1.1.1, an estimate of the round-trip time, from which all other timers follow; it cannot
    /// change while the server runs. Default 500 ms.
    pub t1: Duration,
    /// Name servers that are asked for names; those of `/etc/resolv.conf` if there are none. They cannot change while
    /// the server runs.
    pub resolvers: Vec<SocketAddr>,
    /// Where requests of this server may go whose target a caller has chosen, besides to the address that the caller
    /// sent from. Default: nowhere.
    pub targets: Vec<PeerRule>,
    /// Transactions of all workers together. Default 200,000.
    pub transactions: u32,
    /// Connections of all workers together. Default 10,000.
    pub connections: u32,
    /// Connections of one IPv4 address or IPv6 /64. Default 1,000.
    pub connections_per_source: u32,
    /// The paths that a WebSocket is served at, such as `/ws`. Default: any.
    pub websocket_paths: Vec<String>,
    /// The origins of web pages whose scripts may open a WebSocket, such as `https://phone.example.org`. Default: all.
    /// Clients that are no browsers name none and are served.
    pub websocket_origins: Vec<String>,
    /// Header fields of a message, at most 254. Default 128.
    pub headers: u32,
    /// Bytes of a message's start line and header fields, at most 65,535. Default 16 KiB.
    pub head_bytes: u32,
    /// Bytes of a message's body. Default 64 KiB.
    pub body_bytes: u32,
    /// The message deadline: the time until the first message of a connection, or a message that has begun, is
    /// complete.
    /// Default 10 s.
    pub message_deadline: Duration,
    /// The idle timeout: the server closes a connection that receives nothing for this time. Default 10 minutes.
    pub idle: Duration,
}

impl SipSettings {
    /// The beginnings of User-Agent of tools that scan for open servers.
    pub const SCANNERS: [&str; 7] = [
        "friendly-scanner",
        "sipvicious",
        "sundayddr",
        "VaxSIPUserAgent",
        "pplsip",
        "sipcli",
        "sip-scan",
    ];
}

impl Default for SipSettings {
    fn default() -> SipSettings {
        SipSettings {
            test_uas: false,
            challenge: false,
            domains: Vec::new(),
            credentials: Vec::new(),
            trunks: Vec::new(),
            advertise: Vec::new(),
            local_networks: Vec::new(),
            routes: Vec::new(),
            route_hook: None,
            forwards: Vec::new(),
            aliases: Vec::new(),
            record_route: true,
            forking: Forking::default(),
            recurse: false,
            calls: CallSettings::default(),
            trace: TraceSettings::default(),
            deny: Vec::new(),
            allow: Vec::new(),
            ban: Duration::from_secs(300),
            scanners: SipSettings::SCANNERS.map(str::to_owned).into(),
            ice_servers: Vec::new(),
            rtpengine: None,
            push: None,
            nodes: None,
            registrar: RegistrarConfig {
                flow_timer: Some(120),
                ..RegistrarConfig::default()
            },
            bindings: 1_000_000,
            bindings_per_user: 10,
            digest_algorithms: vec![Algorithm::Sha256, Algorithm::Md5],
            auth_int: false,
            digest_any_uri: false,
            digest_without_qop: false,
            userhash: false,
            tolerance: Duration::from_millis(120),
            requests_per_source: 0,
            peers: Vec::new(),
            service_time: Duration::ZERO,
            t1: Duration::from_millis(500),
            resolvers: Vec::new(),
            targets: Vec::new(),
            transactions: 200_000,
            connections: 10_000,
            connections_per_source: 1_000,
            websocket_paths: Vec::new(),
            websocket_origins: Vec::new(),
            headers: 128,
            head_bytes: 16 << 10,
            body_bytes: 64 << 10,
            message_deadline: Duration::from_secs(10),
            idle: Duration::from_secs(600),
        }
    }
}

/// Limits of the calls that users of [`SipSettings::domains`] make. If a limit is set, the proxy stores up to 512 bytes
/// per dialog, and asks for session timers (RFC 4028).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallSettings {
    /// Calls of each user. Default: no limit.
    pub per_user: Limit,
    /// Calls of all users of a domain together. Default: no limit.
    pub per_domain: Limit,
    /// The longest time that a call without a BYE counts. Default 12 h.
    pub most: Duration,
    /// The greatest session interval, and that of requests without one; zero: the proxy asks for no session timer.
    /// Default 30 min.
    pub session_expires: Duration,
    /// A smaller session interval gets 422: 90 s at least, which is the default.
    pub session_min: Duration,
    /// Numbers with these prefixes are refused with 403, if they are no local addresses: `+49900`, `0900`. The longest
    /// prefix decides. Default: none.
    pub forbidden_prefixes: Vec<String>,
    /// Exceptions. Default: none.
    pub allowed_prefixes: Vec<String>,
    /// Whether the server logs one line per call, at the end of the call. If so, it stores at most 512 bytes per
    /// dialog, and asks for session timers as with limits. Default: no.
    pub log: bool,
}

impl Default for CallSettings {
    fn default() -> CallSettings {
        CallSettings {
            per_user: Limit::default(),
            per_domain: Limit::default(),
            log: false,
            most: Duration::from_secs(12 * 3600),
            session_expires: Duration::from_secs(1800),
            session_min: Duration::from_secs(90),
            forbidden_prefixes: Vec::new(),
            allowed_prefixes: Vec::new(),
        }
    }
}

/// A peer that is known by its source addresses or by its client certificate: a carrier, a PBX. Its requests need no
/// credentials, and the proxy forwards its P-Asserted-Identity (RFC 3325). Over UDP a source address can be forged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trunk {
    /// Its name in routes; empty if no route names it.
    pub name: String,
    /// The networks that it sends from, and that requests within its dialogs may go to.
    pub addresses: Vec<IpNet>,
    /// The domains of its client certificate (RFC 5922 §7.1). If there are any, a request comes from this trunk only if
    /// its TLS connection has proved one of them, and the source address does not matter.
    pub certificates: Vec<String>,
    /// The addresses that routes send calls to; the first one that is available is tried first.
    pub to: Vec<NextHop>,
    /// The host of the Request-URI of these calls; by default that of the address.
    pub domain: Option<String>,
    /// The share of each of its addresses in an overload. It is also its share of calls if a route hunts by weight or
    /// by hash. 0 counts as 1. All sources that are not trunks have 1 together.
    pub weight: u16,
    /// Trunks of the lowest number are tried first.
    pub priority: u16,
    /// New calls per second to it; 0: no limit.
    pub calls_per_second: u32,
    /// Calls that routes have sent to it and that are in progress; 0: no limit.
    pub max_calls: u32,
    /// New calls per second from it; 0: no limit.
    pub calls_per_second_from: u32,
    /// Calls that it has sent and that are in progress; 0: no limit.
    pub max_calls_from: u32,
    /// How long an INVITE waits for any response of one of its addresses, if another one follows. Default 2 s.
    pub answer_timeout: Duration,
    /// Whether and how its addresses are probed with OPTIONS.
    pub probe: ProbeConfig,
    /// The credentials that answer its challenges. Without them, callers get the challenges.
    pub credentials: Option<Credentials>,
    /// The registration at its first address, if it requires one.
    pub register: Option<RegisterConfig>,
    /// Whether the media of its calls go through [`SipSettings::rtpengine`]. Default: no.
    pub relays_media: bool,
}

impl Default for Trunk {
    fn default() -> Trunk {
        let route = RouteTrunk::default();
        Trunk {
            name: route.name,
            addresses: Vec::new(),
            certificates: Vec::new(),
            to: route.to,
            domain: route.domain,
            weight: route.weight,
            priority: route.priority,
            calls_per_second: route.calls_per_second,
            max_calls: route.max_calls,
            calls_per_second_from: route.calls_per_second_from,
            max_calls_from: route.max_calls_from,
            answer_timeout: route.answer_timeout,
            probe: route.probe,
            credentials: route.credentials,
            register: route.register,
            relays_media: route.relays_media,
        }
    }
}

impl Trunk {
    fn of_routes(&self) -> RouteTrunk {
        RouteTrunk {
            name: self.name.clone(),
            to: self.to.clone(),
            domain: self.domain.clone(),
            weight: self.weight,
            priority: self.priority,
            calls_per_second: self.calls_per_second,
            max_calls: self.max_calls,
            calls_per_second_from: self.calls_per_second_from,
            max_calls_from: self.max_calls_from,
            answer_timeout: self.answer_timeout,
            probe: self.probe,
            credentials: self.credentials.clone(),
            register: self.register.clone(),
            relays_media: self.relays_media,
        }
    }
}

impl SipSettings {
    /// The aliases that can be used.
    pub(crate) fn usable_aliases(&self, domains: &Domains) -> Aliases {
        Aliases::new(&self.aliases, domains).0
    }

    /// The table of routes and trunks. A trunk keeps its health if `earlier` has it with the same name, addresses and
    /// probes.
    ///
    /// # Errors
    /// [`TableError`] if they contradict each other.
    pub fn table(&self, earlier: Option<&Table>) -> Result<Table, TableError> {
        let trunks = self.trunks.iter().map(Trunk::of_routes).collect();
        Table::new(self.routes.clone(), trunks, earlier)
    }
}

/// How the users of one domain authenticate, if it differs from other domains.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DomainCredentials {
    /// One of the names of the domain.
    pub domain: String,
    /// The realm of its challenges. `None`: the name of the domain if it has its own users, else the realm of the
    /// server.
    pub realm: Option<String>,
    /// Its users. `None`: those of all domains that have none of their own. A user has the address of record of this
    /// name in this domain alone.
    pub users: Option<Vec<DomainUser>>,
    /// The digest algorithms, the preferred one first; each at most once. `None`: [`SipSettings::digest_algorithms`].
    pub algorithms: Option<Vec<Algorithm>>,
}

impl DomainCredentials {
    /// Whether they can be used with these domains.
    pub(crate) fn check(&self, domains: &Domains) -> Result<(), CredentialsError> {
        let domain = &self.domain;
        let host = Host::new(domain.as_bytes());
        if host.and_then(|host| domains.of(host)).is_none() {
            return Err(CredentialsError::NoDomain(domain.clone()));
        }
        for user in self.users.iter().flatten() {
            let UserSecret::Ha1s(ha1s) = &user.secret else {
                continue;
            };
            let is_hash = |(algorithm, hex): &(Algorithm, String)| {
                Ha1::from_hex(*algorithm, hex.as_bytes()).is_some()
            };
            if !ha1s.iter().all(is_hash) {
                return Err(CredentialsError::NoHash(user.name.clone()));
            }
        }
        Ok(())
    }
}

/// Why the credentials of a domain cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// There is no such domain.
    #[error("there are SIP credentials for `{0}`, which is no domain")]
    NoDomain(String),
    /// A hash has another length than its algorithm's.
    #[error("a hash of the SIP user `{0}` has not the length of its algorithm's")]
    NoHash(String),
}

/// A user of one domain.
#[derive(Clone, PartialEq, Eq)]
pub struct DomainUser {
    /// The user part of the address of record, and the name in credentials.
    pub name: String,
    /// The secret that the user proves.
    pub secret: UserSecret,
}

/// A password, or hashes that contain it.
#[derive(Clone, PartialEq, Eq)]
pub enum UserSecret {
    /// The password.
    Password(String),
    /// The hashes of name, realm and password (RFC 7616 §3.4.2) in hexadecimal digits. A user is not let in by an
    /// algorithm without one.
    Ha1s(Vec<(Algorithm, String)>),
}

impl std::fmt::Debug for DomainUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the secret.
        write!(f, "DomainUser({})", self.name)
    }
}

impl std::fmt::Debug for UserSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UserSecret(***)")
    }
}

/// The SIP settings of a worker, with what the workers share.
#[derive(Clone)]
pub(crate) struct SipConfig {
    pub(crate) settings: SipSettings,
    /// The routes and trunks of the settings. All workers share it.
    pub(crate) routes: Arc<Table>,
    /// Where calls go that users do not take. All workers share it.
    pub(crate) forwards: Arc<Forwards>,
    /// Other addresses of users. All workers share it.
    pub(crate) aliases: Arc<Aliases>,
    /// The realm of all credentials.
    pub(crate) realm: String,
    /// Names and passwords of those who may answer a challenge.
    pub(crate) users: Vec<(String, String)>,
    /// Sources of credentials for users that are not in `users`, such as stores.
    pub(crate) sources: Option<Arc<dyn KeySource>>,
    /// The shared secret from which the server makes the passwords in `Ice-Servers`.
    pub(crate) ice_secret: Option<Vec<u8>>,
    /// What the embedding program learns of calls.
    pub(crate) reporter: Reporter,
    /// How many workers share the limits.
    pub(crate) workers: u32,
    /// The server is about to end: what begins anew is refused.
    pub(crate) draining: bool,
    /// The keys of the tokens in Path and Record-Route; `None`: those of this server alone.
    pub(crate) tokens: Option<TokenKeys>,
}

impl std::fmt::Debug for SipConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the passwords.
        f.debug_struct("Orders")
            .field("settings", &self.settings)
            .field("users", &self.users.len())
            .finish_non_exhaustive()
    }
}

impl SipConfig {
    /// Whether any request gets a digest challenge.
    pub(crate) fn asks_users(&self) -> bool {
        self.settings.challenge || !self.settings.domains.is_empty()
    }

    /// One worker's part of a limit that holds for all of them: at least one.
    pub(crate) fn share(&self, of_all: u32) -> usize {
        of_all.div_ceil(self.workers.max(1)).max(1) as usize
    }

    /// When the engine refuses work.
    pub(crate) fn congestion(&self) -> sip::congestion::Config {
        sip::congestion::Config {
            enabled: !self.settings.tolerance.is_zero(),
            tolerance: self.settings.tolerance,
            peers: self.peers(),
            per_source: self.settings.requests_per_source,
            ..Default::default()
        }
    }

    /// The networks that have a share of their own: those of the trunks, then others.
    fn peers(&self) -> Vec<sip::congestion::WeightedSource> {
        let trunks = self.settings.trunks.iter();
        let trunks = trunks.flat_map(|trunk| {
            let of = |network: &IpNet| sip::congestion::WeightedSource {
                address: network.addr(),
                prefix: network.prefix_len(),
                weight: trunk.weight,
            };
            trunk.addresses.iter().map(of)
        });
        trunks.chain(self.settings.peers.iter().copied()).collect()
    }

    /// The most bytes that one message can have.
    pub(crate) fn message_bytes(&self) -> usize {
        (self.settings.head_bytes + self.settings.body_bytes) as usize
    }
}
