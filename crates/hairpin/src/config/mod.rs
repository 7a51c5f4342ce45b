//! The configuration: one schema, four layers, and every mistake reported at once with its place.
//!
//! ```text
//! defaults.toml ─┐
//! hairpin.toml ──┤ layers: text -> nodes -> values with their places (Settings)
//! HAIRPIN_A__B ──┤             `walk` for documents, plain text for the other two
//! --flags ───────┘                 │
//!                                  ├─ semantics: checks between values
//!                                  └─ Config: plain values, only if there was no error
//! ```
//! `serve`, `check` and a reload run exactly this code.

mod acme;
mod admin;
mod alternate;
mod cluster;
mod control_socket;
mod credentials;
mod deny_files;
mod diagnostics;
mod effective;
mod events;
mod expand;
mod includes;
mod key;
mod layers;
mod logging;
mod mask;
mod microseconds;
mod nat_discovery;
mod network;
mod node;
mod offload;
mod ranges;
mod realms;
mod remote;
mod schema;
mod semantics;
mod setting;
mod sip;
mod sip_advertise;
mod sip_binding_database;
mod sip_calls;
mod sip_domains;
mod sip_forwards;
mod sip_ice;
mod sip_media;
mod sip_push;
mod sip_routes;
mod sip_store_routes;
mod sip_tls;
mod sip_trace;
mod sip_trunks;
mod sip_users;
mod size;
mod software;
mod source;
mod state_dir;
mod stores;
mod suggest;
mod table;
mod telemetry;
mod tls;
mod tokens;
mod unclosed;
mod walk;

#[cfg(test)]
mod docs_test;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use server::access_tokens::TokenKey;
use server::certificates::CertificateFiles;
use tracing::level_filters::LevelFilter;

use crate::events::SinkSettings;
use crate::telemetry::TelemetrySettings;

pub(crate) use acme::{Acme, Challenge};
pub(crate) use admin::{AdminListen, AdminTokens};
pub(crate) use cluster::SipTransport;
pub(crate) use control_socket::ControlSocket;
pub(crate) use credentials::User;
pub(crate) use deny_files::read as read_deny_files;
pub(crate) use diagnostics::plural;
pub(crate) use layers::{Flag, Inputs};
pub(crate) use logging::{LogFormat, LogLevel};
use network::ExternalAddress;
pub(crate) use network::{DEFAULT_PORT, ExternalIp, ExternalSources, PeerRule, StunServer};
pub(crate) use offload::{BindingExcess, OffloadMode};
pub(crate) use realms::Realm;
pub(crate) use schema::KEYS;
pub(crate) use semantics::is_private;
pub(crate) use setting::{FromText, PinWorkers, Steering, parse_seconds, write_seconds};
pub(crate) use sip::Sip;
pub(crate) use sip_push::PushConfig;
pub(crate) use sip_store_routes::route_of_store;
pub(crate) use sip_tls::ClientCertificates;
pub(crate) use size::{parse_bytes, write_bytes};
pub(crate) use state_dir::StateDir;
pub(crate) use stores::{default_store, of_url};
pub(crate) use tokens::token_key;

use diagnostics::Report;
use schema::Settings;
use setting::{Amplification, List, RateDirections, Workers};
use source::Sources;
use tls::{ListenerPair, MinVersion};

/// A configuration that was read without errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Number of workers; `None`: one per core.
    pub(crate) workers: Option<u32>,
    /// Which processor each worker stays on.
    pub(crate) pin_workers: PinWorkers,
    /// How new allocations find their worker.
    pub(crate) steering: Steering,
    /// Whether UDP GRO and GSO are used where the kernel has them.
    pub(crate) offloads: bool,
    /// How long a server waits for allocations to end after a command to stop.
    pub(crate) drain: Duration,
    /// Bytes that the receive buffer of each listener's socket should hold.
    pub(crate) receive_buffer: u32,
    /// Bytes that the send buffer of each listener's socket should hold.
    pub(crate) send_buffer: u32,
    /// Microseconds that workers poll the network device before they sleep; 0: not at all.
    pub(crate) busy_poll_us: u32,
    /// Where the control socket is, if there is one.
    pub(crate) control_socket: ControlSocket,
    /// The directory of what survives a restart.
    pub(crate) state_dir: StateDir,
    /// SOFTWARE in responses to authenticated requests, if any.
    pub(crate) software: Option<String>,
    /// Where to listen; `None`: decided at start.
    pub(crate) listen_udp: Option<Vec<SocketAddr>>,
    /// Where to listen for TCP connections; `None`: where UDP is listened on.
    pub(crate) listen_tcp: Option<Vec<SocketAddr>>,
    /// Where to listen for TLS connections; `None`: decided at start.
    pub(crate) listen_tls: Option<Vec<SocketAddr>>,
    /// Where to listen for DTLS; `None`: decided at start.
    pub(crate) listen_dtls: Option<Vec<SocketAddr>>,
    /// Certificates and keys.
    pub(crate) certificates: Vec<CertificateFiles>,
    /// Whether a certificate that clients do not trust is made if there is none.
    pub(crate) self_signed: bool,
    /// Whether only TLS 1.3 is spoken.
    pub(crate) only_tls13: bool,
    /// Certificates from an ACME server.
    pub(crate) acme: Acme,
    /// Sources whose connections begin with a PROXY header.
    pub(crate) proxy_protocol_from: Vec<ipnet::IpNet>,
    /// Where relays are bound; `None`: decided at start.
    pub(crate) relay_addresses: Option<Vec<IpAddr>>,
    /// The address that clients get instead.
    pub(crate) external_ip: Vec<ExternalIp>,
    /// Where to ask for those that are not known.
    pub(crate) external_sources: ExternalSources,
    /// Ports of relays.
    pub(crate) relay_ports: RangeInclusive<u16>,
    /// All UDP allocations share these ports.
    pub(crate) relay_shared_ports: bool,
    /// Clients can get TCP relayed addresses.
    pub(crate) relay_tcp: bool,
    /// Clients can keep an allocation when their address changes.
    pub(crate) relay_mobility: bool,
    /// By which method the kernel relays.
    pub(crate) offload_mode: OffloadMode,
    /// Channels relayed by the kernel at once.
    pub(crate) offload_channels: u32,
    /// Binding requests per second and source prefix that the kernel answers.
    pub(crate) binding_rate: u32,
    /// What happens to those above.
    pub(crate) binding_excess: BindingExcess,
    /// Realm of the long-term credentials.
    pub(crate) realm: String,
    /// Shared secrets; all are valid, the first one makes new credentials.
    pub(crate) secrets: Vec<String>,
    /// Users whose passwords do not expire.
    pub(crate) users: Vec<User>,
    /// Keys of access tokens; all are valid.
    pub(crate) token_keys: Vec<TokenKey>,
    /// The realms beside `realm`.
    pub(crate) realms: Vec<realms::Realm>,
    /// Databases with users and realms.
    pub(crate) stores: Vec<::stores::StoreSettings>,
    /// The name by which authorization servers know this server.
    pub(crate) token_server_name: String,
    /// How long a nonce is good for.
    pub(crate) nonce_lifetime: Duration,
    /// Whether a Refresh needs a credential that has not expired.
    pub(crate) strict_expiry: bool,
    /// Whether Binding requests require credentials.
    pub(crate) authenticate_binding: bool,
    /// Re-admitted peers.
    pub(crate) peers_allow: Vec<PeerRule>,
    /// Denied peers.
    pub(crate) peers_deny: Vec<PeerRule>,
    /// Files with more denied peers, which are read again when they change.
    pub(crate) peers_deny_files: Vec<PathBuf>,
    /// Admit loopback and private peers.
    pub(crate) peers_allow_local: bool,
    /// Limits on what clients can hold.
    pub(crate) limits: Limits,
    /// Other servers to which clients are sent.
    pub(crate) alternate: alternate::Alternate,
    /// Nodes that this one works with.
    pub(crate) cluster: cluster::Cluster,
    /// Whether old clients may bind channel numbers that RFC 8656 took back.
    pub(crate) rfc5766_channels: bool,
    /// Whether a permission that a ChannelBind request installed lasts as long as the channel.
    pub(crate) channel_keeps_permission: bool,
    /// Whether Binding requests of classic STUN are answered.
    pub(crate) classic_stun: bool,
    /// Whether a dual allocation may be asked for by the number of the draft.
    pub(crate) draft_dual_allocation: bool,
    /// Whether 16 of the 20 bytes of an access token's key may sign.
    pub(crate) short_token_keys: bool,
    /// The other addresses of NAT behaviour discovery, if it is served.
    pub(crate) nat_discovery: server::NatDiscovery,
    /// SIP, where it is served.
    pub(crate) sip: Sip,
    /// Where metrics and health checks are served, if at all.
    pub(crate) admin: AdminListen,
    /// The tokens of the API of the admin listener.
    pub(crate) admin_tokens: AdminTokens,
    /// Where events go.
    pub(crate) events: Vec<SinkSettings>,
    /// Where logs and traces are exported to, if they are.
    pub(crate) telemetry: Option<TelemetrySettings>,
    /// Least severe events that are logged.
    pub(crate) log_level: LevelFilter,
    /// How log lines look.
    pub(crate) log_format: LogFormat,
}

impl Config {
    /// Whether listeners that no certificate names have one.
    pub(crate) fn has_certificate_for_all(&self) -> bool {
        let is_for_all = |files: &CertificateFiles| files.listeners.is_empty();
        self.certificates.iter().any(is_for_all)
            || (self.self_signed && self.certificates.is_empty())
    }
}

/// Limits on what clients can hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Allocations in all.
    pub(crate) allocations: u32,
    /// Allocations of one user.
    pub(crate) allocations_per_user: u32,
    /// Allocations of one source prefix.
    pub(crate) allocations_per_source: u32,
    /// Permissions of one allocation.
    pub(crate) permissions: u32,
    /// Channels of one allocation.
    pub(crate) channels: u32,
    /// Connections with peers of one TCP allocation.
    pub(crate) peer_connections: u32,
    /// Bytes per second that one allocation relays, 0 for any number.
    pub(crate) allocation_rate: u64,
    /// The same of one user of the default realm.
    pub(crate) rate_per_user: u64,
    /// The same of one source prefix.
    pub(crate) rate_per_source: u64,
    /// The same of all allocations.
    pub(crate) rate_total: u64,
    /// Whether each direction has these rates by itself.
    pub(crate) rate_directions_apart: bool,
    /// Connections in all.
    pub(crate) connections: u32,
    /// Connections of one source prefix.
    pub(crate) connections_per_source: u32,
    /// Time for the first message of a connection, and for each to be complete.
    pub(crate) stream_message_deadline: Duration,
    /// Silence after which a connection without an allocation is closed.
    pub(crate) stream_idle: Duration,
    /// How long relayed data may wait to be written.
    pub(crate) stream_queue_age: Duration,
    /// Bytes that may wait on one connection.
    pub(crate) stream_queue: u32,
    /// Bytes that may wait on all connections.
    pub(crate) stream_queue_total: u32,
    /// Error responses per second to a source that is not verified.
    pub(crate) unverified_responses: u32,
    /// Whether unproven addresses never get more bytes than they sent.
    pub(crate) strict_amplification: bool,
    /// Lifetime of an allocation that asks for none.
    pub(crate) lifetime_default: Duration,
    /// Longest lifetime that is granted.
    pub(crate) lifetime_max: Duration,
}

/// What came of reading all layers.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The usable configuration, if there was no error.
    pub(crate) config: Option<Config>,
    settings: Settings,
    sources: Sources,
    report: Report,
}

impl Loaded {
    /// All complaints as text for a person; empty if there are none.
    pub(crate) fn diagnostics(&self, colour: bool) -> String {
        self.report.render(&self.sources, colour)
    }

    /// All complaints, one line each and without source text: for a log.
    pub(crate) fn one_line_each(&self) -> Vec<String> {
        self.report
            .sorted()
            .iter()
            .map(|diagnostic| diagnostic.one_line(&self.sources))
            .collect()
    }

    /// `2 errors, 1 warning`, or nothing.
    pub(crate) fn count(&self) -> String {
        self.report.count()
    }

    /// The merged configuration as TOML, with the origin of each value.
    pub(crate) fn effective(&self, reveal_secrets: bool) -> String {
        effective::render(&self.settings, &self.sources, reveal_secrets)
    }
}

/// A key of the current configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CurrentKey {
    /// The path of the key, such as `relay.ports`.
    pub(crate) key: String,
    /// The value as TOML, with secrets masked; `None` if the server chooses the value at startup.
    pub(crate) value: Option<String>,
    /// The place where the value is set.
    pub(crate) origin: Option<String>,
    /// Whether a reload applies a new value.
    pub(crate) is_live: bool,
    /// A value that a reload has read, and that applies only after a restart.
    pub(crate) after_restart: Option<String>,
}

/// All keys of a server, from the configuration of its start and the configuration of its last reload.
pub(crate) fn in_force(started: &Loaded, now: &Loaded) -> Vec<CurrentKey> {
    // `slot` requires `&mut`, because the parser writes through it. So this works on copies.
    let (mut first, mut last) = (started.settings.clone(), now.settings.clone());
    let keys = KEYS.iter().map(|key| {
        let (before, after) = ((key.slot)(&mut first), (key.slot)(&mut last));
        let (old, new) = (before.written(false), after.written(false));
        let differs = before.written(true).map(|it| it.0) != after.written(true).map(|it| it.0);
        let (value, sources) = match key.live {
            true => (&new, &now.sources),
            false => (&old, &started.sources),
        };
        let written = new.as_ref().map(|(value, _)| value.clone());
        CurrentKey {
            key: key.path(),
            value: value.as_ref().map(|(value, _)| value.clone()),
            origin: value.as_ref().map(|(_, at)| sources.describe(at)),
            is_live: key.live,
            after_restart: written.filter(|_| differs && !key.live),
        }
    });
    keys.collect()
}

/// Reads and checks all layers. Never fails: what is wrong is in the result.
pub(crate) fn load(inputs: &Inputs) -> Loaded {
    let (mut sources, mut report) = (Sources::default(), Report::default());
    let settings = layers::read(inputs, &mut sources, &mut report);
    if !report.is_incomplete() {
        semantics::check(&settings, &sources, &mut report);
    }
    let config = if report.errors() == 0 {
        resolve(&settings)
    } else {
        None
    };
    Loaded {
        config,
        settings,
        sources,
        report,
    }
}

/// The plain values; `None` only if `defaults.toml` lacks one, which a test rules out.
fn resolve(settings: &Settings) -> Option<Config> {
    let s = settings.clone();
    Some(Config {
        workers: match s.workers?.value {
            Workers::Auto => None,
            Workers::Count(count) => Some(count),
        },
        pin_workers: s.pin_workers?.value,
        steering: s.steering?.value,
        offloads: s.offloads?.value,
        drain: s.drain?.value.0,
        receive_buffer: s.receive_buffer?.value.0,
        send_buffer: s.send_buffer?.value.0,
        busy_poll_us: s.busy_poll?.value.0.as_micros() as u32,
        control_socket: s.control_socket?.value,
        state_dir: s.state_dir?.value,
        software: Some(s.software?.value.0).filter(|software| !software.is_empty()),
        listen_udp: s.listen_udp.map(|list| values(list.value.0)),
        listen_tcp: s.listen_tcp.map(|list| values(list.value)),
        listen_tls: s.listen_tls.map(|list| values(list.value)),
        listen_dtls: s.listen_dtls.map(|list| values(list.value)),
        certificates: bare(s.tls_certificates?.value, ListenerPair::files),
        self_signed: s.tls_self_signed?.value,
        only_tls13: s.tls_min_version?.value == MinVersion::Tls13,
        acme: acme::resolve(settings)?,
        proxy_protocol_from: bare(s.proxy_protocol_from?.value, |network| network.0),
        relay_addresses: s.relay_addresses.map(|list| values(list.value.0)),
        external_sources: ExternalSources::of(
            s.external_ip.as_ref().map_or(&[], |list| &list.value),
            values(s.external_ip_servers?.value),
        ),
        external_ip: fixed_external(values(s.external_ip?.value)),
        relay_ports: s.relay_ports?.value.0,
        relay_shared_ports: s.relay_shared_ports?.value,
        relay_tcp: s.relay_tcp?.value,
        relay_mobility: s.relay_mobility?.value,
        offload_mode: s.offload_mode?.value,
        offload_channels: s.offload_channels?.value.0,
        binding_rate: s.binding_rate?.value.0,
        binding_excess: s.binding_excess?.value,
        token_server_name: token_server_name(settings)?,
        realm: s.realm?.value.0,
        secrets: bare(s.secrets?.value, |secret| secret.0),
        users: values(s.users?.value),
        token_keys: bare(s.token_keys?.value, |key| key.0),
        realms: realms::resolve(settings)?,
        stores: stores::resolve(settings)?,
        nonce_lifetime: s.nonce_lifetime?.value.0,
        strict_expiry: s.strict_expiry?.value,
        authenticate_binding: s.authenticate_binding?.value,
        peers_allow: values(s.peers_allow?.value),
        peers_deny: values(s.peers_deny?.value),
        peers_deny_files: bare(s.peers_deny_files?.value, |file| file.0),
        peers_allow_local: s.peers_allow_local?.value,
        limits: limits(settings)?,
        alternate: alternate::resolve(settings)?,
        cluster: cluster::resolve(settings)?,
        rfc5766_channels: s.rfc5766_channels?.value,
        channel_keeps_permission: s.channel_keeps_permission?.value,
        classic_stun: s.classic_stun?.value,
        draft_dual_allocation: s.draft_dual_allocation?.value,
        short_token_keys: s.short_token_keys?.value,
        nat_discovery: nat_discovery::resolve(settings)?,
        sip: sip::resolve(settings)?,
        admin: s.admin_listen?.value,
        admin_tokens: admin_tokens(settings)?,
        events: events::resolve(settings)?,
        telemetry: telemetry::resolve(settings)?,
        log_level: s.log_level?.value.0,
        log_format: s.log_format?.value,
    })
}

/// The external addresses that the configuration says as addresses.
fn fixed_external(all: Vec<ExternalAddress>) -> Vec<ExternalIp> {
    all.iter().filter_map(ExternalAddress::fixed).collect()
}

/// The tokens of the API.
fn admin_tokens(settings: &Settings) -> Option<AdminTokens> {
    let s = settings.clone();
    Some(AdminTokens {
        all: bare(s.admin_tokens?.value, |token| token.0),
        credentials: bare(s.admin_credential_tokens?.value, |token| token.0),
    })
}

/// The name in THIRD-PARTY-AUTHORIZATION: the realm unless another one is set.
fn token_server_name(settings: &Settings) -> Option<String> {
    let name = settings.token_server_name.as_ref()?.value.0.clone();
    let realm = settings.realm.as_ref()?.value.0.clone();
    Some(if name.is_empty() { realm } else { name })
}

/// The plain values of `[limits]`.
fn limits(settings: &Settings) -> Option<Limits> {
    let s = settings.clone();
    Some(Limits {
        strict_amplification: s.amplification?.value == Amplification::Strict,
        unverified_responses: s.unverified_responses?.value.0,
        allocations: s.allocations?.value.0,
        allocations_per_user: s.allocations_per_user?.value.0,
        allocations_per_source: s.allocations_per_source?.value.0,
        permissions: s.permissions?.value.0,
        channels: s.channels?.value.0,
        peer_connections: s.peer_connections?.value.0,
        allocation_rate: s.allocation_rate?.value.0,
        rate_per_user: s.rate_per_user?.value.0,
        rate_per_source: s.rate_per_source?.value.0,
        rate_total: s.rate_total?.value.0,
        rate_directions_apart: s.rate_directions?.value == RateDirections::Apart,
        connections: s.connections?.value.0,
        connections_per_source: s.connections_per_source?.value.0,
        stream_message_deadline: s.stream_message_deadline?.value.0,
        stream_idle: s.stream_idle?.value.0,
        stream_queue_age: s.stream_queue_age?.value.0,
        stream_queue: s.stream_queue?.value.0,
        stream_queue_total: s.stream_queue_total?.value.0,
        lifetime_default: s.lifetime_default?.value.0,
        lifetime_max: s.lifetime_max?.value.0,
    })
}

/// The values of a list, each without the type it was read as.
fn bare<T, U>(list: List<T>, value: impl Fn(T) -> U) -> Vec<U> {
    values(list).into_iter().map(value).collect()
}

fn values<T>(list: List<T>) -> Vec<T> {
    list.into_iter().map(|item| item.value).collect()
}

/// The names of the keys that differ between two configurations and that only a restart applies.
pub(crate) fn needs_restart(old: &Loaded, new: &Loaded) -> Vec<String> {
    let (mut old, mut new) = (old.settings.clone(), new.settings.clone());
    let value = |key: &key::Key, settings: &mut Settings| {
        (key.slot)(settings).written(true).map(|(text, _)| text)
    };
    KEYS.iter()
        .filter(|key| !key.live && value(key, &mut old) != value(key, &mut new))
        .map(key::Key::path)
        .collect()
}
