//! Every key of the configuration, once.
//!
//! [`KEYS`] is the table for the file walker, the environment, `--set` and `check --effective`. A test compares it with
//! docs/configuration.md. [`Settings`] holds the values, each with its place in the configuration. Defaults are in
//! `defaults.toml`, the types with a range of values in [`ranges`](super::ranges).

use std::net::{IpAddr, SocketAddr};

use ::stores::sinks::OtlpSignal;

use super::acme::{Challenge, Directory, Domain, Email, Folder};
use super::admin::{AdminListen, Token};
use super::alternate;
use super::cluster;
use super::control_socket::ControlSocket;
use super::credentials::{Realm, Secret, User};
use super::deny_files::DenyFile;
use super::events;
use super::key::{Entry, Key};
use super::logging::{LogFormat, LogLevel};
use super::network::{
    ExternalAddress, ExternalIp, NameServer, Network, PeerRule, PortRange, StunServer,
};
use super::offload::{BindingExcess, OffloadMode};
use super::ranges::{
    AllocationLifetime, AllocationRate, Allocations, BindingRate, BusyPoll, Channels,
    CheckInterval, ConnectionIdle, Connections, Drain, GroupRate, MessageDeadline, NonceLifetime,
    OffloadChannels, OverloadPercent, PeerConnections, Permissions, QueueAge, QueueSize,
    QueueTotal, ReceiveBuffer, SendBuffer, ServiceTime, SipBan, SipBindings, SipBody,
    SipCallDuration, SipCalls, SipConnections, SipFlowTimer, SipHead, SipHeaders, SipIdle,
    SipMessageDeadline, SipPushCalls, SipPushRefresh, SipPushTimeout, SipRegistration, SipRequests,
    SipSession, SipShortest, SipShortestSession, SipT1, SipTraceId, SipTraceMemory,
    SipTransactions, SipUserBindings, Tolerance, UnverifiedResponses,
};
use super::realms;
use super::setting::{
    Amplification, AtLeastOne, List, PinWorkers, RateDirections, Steering, Workers,
};
use super::sip::{Algorithms, ForkingOrder, Origin, WebSocketPath};
use super::sip_advertise::Advertise;
use super::sip_calls;
use super::sip_domains;
use super::sip_forwards;
use super::sip_ice;
use super::sip_media;
use super::sip_push;
use super::sip_routes;
use super::sip_tls::{ClientCertificates, RootFile};
use super::sip_trace;
use super::sip_trunks;
use super::software::Software;
use super::source::Location;
use super::state_dir::StateDir;
use super::stores;
use super::telemetry;
use super::tls::{ListenerPair, MinVersion, Pair};
use super::tokens::{self, ServerName};

/// The values of all layers. For each key, the last layer wins.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// The places of values under the old names of their keys.
    pub(super) by_old_name: Vec<Location>,
    /// `server.workers`
    pub(crate) workers: Entry<Workers>,
    /// `server.pin_workers`
    pub(crate) pin_workers: Entry<PinWorkers>,
    /// `server.steering`
    pub(crate) steering: Entry<Steering>,
    /// `server.offloads`
    pub(crate) offloads: Entry<bool>,
    /// `server.drain`
    pub(crate) drain: Entry<Drain>,
    /// `server.receive_buffer`
    pub(crate) receive_buffer: Entry<ReceiveBuffer>,
    /// `server.send_buffer`
    pub(crate) send_buffer: Entry<SendBuffer>,
    /// `server.busy_poll`
    pub(crate) busy_poll: Entry<BusyPoll>,
    /// `server.software`
    pub(crate) software: Entry<Software>,
    /// `server.control_socket`
    pub(crate) control_socket: Entry<ControlSocket>,
    /// `server.state_dir`
    pub(crate) state_dir: Entry<StateDir>,
    /// `listen.udp`
    pub(crate) listen_udp: Entry<AtLeastOne<SocketAddr>>,
    /// `listen.tcp`
    pub(crate) listen_tcp: Entry<List<SocketAddr>>,
    /// `listen.tls`
    pub(crate) listen_tls: Entry<List<SocketAddr>>,
    /// `listen.dtls`
    pub(crate) listen_dtls: Entry<List<SocketAddr>>,
    /// `listen.proxy_protocol_from`
    pub(crate) proxy_protocol_from: Entry<List<Network>>,
    /// `tls.certificates`
    pub(crate) tls_certificates: Entry<List<ListenerPair>>,
    /// `tls.self_signed`
    pub(crate) tls_self_signed: Entry<bool>,
    /// `tls.min_version`
    pub(crate) tls_min_version: Entry<MinVersion>,
    /// `acme.domains`
    pub(crate) acme_domains: Entry<List<Domain>>,
    /// `acme.email`
    pub(crate) acme_email: Entry<List<Email>>,
    /// `acme.terms_agreed`
    pub(crate) acme_terms_agreed: Entry<bool>,
    /// `acme.directory`
    pub(crate) acme_directory: Entry<Directory>,
    /// `acme.challenge`
    pub(crate) acme_challenge: Entry<Challenge>,
    /// `acme.listen`
    pub(crate) acme_listen: Entry<List<SocketAddr>>,
    /// `acme.state`
    pub(crate) acme_state: Entry<Folder>,
    /// `acme.ca`
    pub(crate) acme_ca: Entry<List<RootFile>>,
    /// `relay.addresses`
    pub(crate) relay_addresses: Entry<AtLeastOne<IpAddr>>,
    /// `relay.external_ip`
    pub(crate) external_ip: Entry<List<ExternalAddress>>,
    /// `relay.external_ip_servers`
    pub(crate) external_ip_servers: Entry<List<StunServer>>,
    /// `relay.ports`
    pub(crate) relay_ports: Entry<PortRange>,
    /// `relay.shared_ports`
    pub(crate) relay_shared_ports: Entry<bool>,
    /// `relay.tcp`
    pub(crate) relay_tcp: Entry<bool>,
    /// `relay.mobility`
    pub(crate) relay_mobility: Entry<bool>,
    /// `offload.mode`
    pub(crate) offload_mode: Entry<OffloadMode>,
    /// `offload.channels`
    pub(crate) offload_channels: Entry<OffloadChannels>,
    /// `offload.binding_rate`
    pub(crate) binding_rate: Entry<BindingRate>,
    /// `offload.binding_excess`
    pub(crate) binding_excess: Entry<BindingExcess>,
    /// `auth.realm`
    pub(crate) realm: Entry<Realm>,
    /// `auth.secrets`
    pub(crate) secrets: Entry<List<Secret>>,
    /// `auth.users`
    pub(crate) users: Entry<List<User>>,
    /// `auth.token_keys`
    pub(crate) token_keys: Entry<List<tokens::Key>>,
    /// `auth.token_server_name`
    pub(crate) token_server_name: Entry<ServerName>,
    /// `auth.realms`
    pub(crate) realms: Entry<List<realms::Written>>,
    /// `auth.stores`
    pub(crate) stores: Entry<List<stores::Written>>,
    /// `auth.nonce_lifetime`
    pub(crate) nonce_lifetime: Entry<NonceLifetime>,
    /// `auth.strict_expiry`
    pub(crate) strict_expiry: Entry<bool>,
    /// `auth.binding_requests`
    pub(crate) authenticate_binding: Entry<bool>,
    /// `peers.allow`
    pub(crate) peers_allow: Entry<List<PeerRule>>,
    /// `peers.deny`
    pub(crate) peers_deny: Entry<List<PeerRule>>,
    /// `peers.deny_files`
    pub(crate) peers_deny_files: Entry<List<DenyFile>>,
    /// `peers.allow_local`
    pub(crate) peers_allow_local: Entry<bool>,
    /// `limits.allocations`
    pub(crate) allocations: Entry<Allocations>,
    /// `limits.allocations_per_user`
    pub(crate) allocations_per_user: Entry<Allocations>,
    /// `limits.allocations_per_source`
    pub(crate) allocations_per_source: Entry<Allocations>,
    /// `limits.permissions_per_allocation`
    pub(crate) permissions: Entry<Permissions>,
    /// `limits.channels_per_allocation`
    pub(crate) channels: Entry<Channels>,
    /// `limits.peer_connections_per_allocation`
    pub(crate) peer_connections: Entry<PeerConnections>,
    /// `limits.rate_per_allocation`
    pub(crate) allocation_rate: Entry<AllocationRate>,
    /// `limits.rate_per_user`
    pub(crate) rate_per_user: Entry<GroupRate>,
    /// `limits.rate_per_source`
    pub(crate) rate_per_source: Entry<GroupRate>,
    /// `limits.rate_total`
    pub(crate) rate_total: Entry<GroupRate>,
    /// `limits.rate_directions`
    pub(crate) rate_directions: Entry<RateDirections>,
    /// `limits.lifetime_default`
    pub(crate) lifetime_default: Entry<AllocationLifetime>,
    /// `limits.lifetime_max`
    pub(crate) lifetime_max: Entry<AllocationLifetime>,
    /// `limits.connections`
    pub(crate) connections: Entry<Connections>,
    /// `limits.connections_per_source`
    pub(crate) connections_per_source: Entry<Connections>,
    /// `limits.stream_message_deadline`
    pub(crate) stream_message_deadline: Entry<MessageDeadline>,
    /// `limits.stream_idle`
    pub(crate) stream_idle: Entry<ConnectionIdle>,
    /// `limits.stream_queue_age`
    pub(crate) stream_queue_age: Entry<QueueAge>,
    /// `limits.stream_queue`
    pub(crate) stream_queue: Entry<QueueSize>,
    /// `limits.stream_queue_total`
    pub(crate) stream_queue_total: Entry<QueueTotal>,
    /// `limits.unverified_responses_per_source`
    pub(crate) unverified_responses: Entry<UnverifiedResponses>,
    /// `limits.amplification`
    pub(crate) amplification: Entry<Amplification>,
    /// `alternate.servers`
    pub(crate) alternate_servers: Entry<List<alternate::Server>>,
    /// `alternate.when`
    pub(crate) alternate_when: Entry<List<alternate::Reason>>,
    /// `alternate.overload_percent`
    pub(crate) alternate_overload_percent: Entry<OverloadPercent>,
    /// `alternate.check_interval`
    pub(crate) alternate_check_interval: Entry<CheckInterval>,
    /// `cluster.secret`
    pub(crate) cluster_secret: Entry<cluster::Secret>,
    /// `cluster.node`
    pub(crate) cluster_node: Entry<cluster::Name>,
    /// `cluster.engine`
    pub(crate) cluster_engine: Entry<cluster::Engine>,
    /// `cluster.engine_ca`
    pub(crate) cluster_engine_ca: Entry<List<RootFile>>,
    /// `cluster.sentinel_password`
    pub(crate) cluster_sentinel_password: Entry<cluster::SentinelPassword>,
    /// `cluster.prefix`
    pub(crate) cluster_prefix: Entry<cluster::Prefix>,
    /// `cluster.sip_transport`
    pub(crate) cluster_sip_transport: Entry<cluster::SipTransport>,
    /// `compat.rfc5766_channels`
    pub(crate) rfc5766_channels: Entry<bool>,
    /// `compat.channel_keeps_permission`
    pub(crate) channel_keeps_permission: Entry<bool>,
    /// `compat.classic_stun`
    pub(crate) classic_stun: Entry<bool>,
    /// `compat.draft_dual_allocation`
    pub(crate) draft_dual_allocation: Entry<bool>,
    /// `compat.short_token_keys`
    pub(crate) short_token_keys: Entry<bool>,
    /// `nat_discovery.udp`
    pub(crate) nat_discovery_udp: Entry<List<SocketAddr>>,
    /// `nat_discovery.tcp`
    pub(crate) nat_discovery_tcp: Entry<List<SocketAddr>>,
    /// `nat_discovery.tls`
    pub(crate) nat_discovery_tls: Entry<List<SocketAddr>>,
    /// `nat_discovery.external_ip`
    pub(crate) nat_discovery_external_ip: Entry<List<ExternalIp>>,
    /// `nat_discovery.padding`
    pub(crate) nat_discovery_padding: Entry<bool>,
    /// `sip.listen`
    pub(crate) sip_listen: Entry<List<SocketAddr>>,
    /// `sip.listen_tls`
    pub(crate) sip_listen_tls: Entry<List<SocketAddr>>,
    /// `sip.listen_ws`
    pub(crate) sip_listen_ws: Entry<List<SocketAddr>>,
    /// `sip.listen_wss`
    pub(crate) sip_listen_wss: Entry<List<SocketAddr>>,
    /// `sip.advertise`
    pub(crate) sip_advertise: Entry<List<Advertise>>,
    /// `sip.local_networks`
    pub(crate) sip_local_networks: Entry<List<Network>>,
    /// `sip.ws_paths`
    pub(crate) sip_ws_paths: Entry<List<WebSocketPath>>,
    /// `sip.ws_origins`
    pub(crate) sip_ws_origins: Entry<List<Origin>>,
    /// `sip.client_certificates`
    pub(crate) sip_client_certificates: Entry<ClientCertificates>,
    /// `sip.client_ca`
    pub(crate) sip_client_ca: Entry<List<RootFile>>,
    /// `sip.next_hop_ca`
    pub(crate) sip_next_hop_ca: Entry<List<RootFile>>,
    /// `sip.next_hop_certificate`
    pub(crate) sip_next_hop_certificate: Entry<List<Pair>>,
    /// `sip.test_uas`
    pub(crate) sip_test_uas: Entry<bool>,
    /// `sip.challenge`
    pub(crate) sip_challenge: Entry<bool>,
    /// `sip.domain`
    pub(crate) sip_domain: Entry<List<sip_domains::Written>>,
    /// `sip.trunk`
    pub(crate) sip_trunk: Entry<List<sip_trunks::Written>>,
    /// `sip.route`
    pub(crate) sip_route: Entry<List<sip_routes::Written>>,
    /// `sip.forward`
    pub(crate) sip_forward: Entry<List<sip_forwards::Written>>,
    /// `sip.record_route`
    pub(crate) sip_record_route: Entry<bool>,
    /// `sip.forking`
    pub(crate) sip_forking: Entry<ForkingOrder>,
    /// `sip.recurse`
    pub(crate) sip_recurse: Entry<bool>,
    /// `sip.deny`
    pub(crate) sip_deny: Entry<List<Network>>,
    /// `sip.allow`
    pub(crate) sip_allow: Entry<List<Network>>,
    /// `sip.ban`
    pub(crate) sip_ban: Entry<SipBan>,
    /// `sip.scanners`
    pub(crate) sip_scanners: Entry<List<sip_calls::Agent>>,
    /// `sip.user_calls`
    pub(crate) sip_user_calls: Entry<SipCalls>,
    /// `sip.user_call_rate`
    pub(crate) sip_user_call_rate: Entry<SipCalls>,
    /// `sip.domain_calls`
    pub(crate) sip_domain_calls: Entry<SipCalls>,
    /// `sip.domain_call_rate`
    pub(crate) sip_domain_call_rate: Entry<SipCalls>,
    /// `sip.call_log`
    pub(crate) sip_call_log: Entry<bool>,
    /// `sip.trace_memory`
    pub(crate) sip_trace_memory: Entry<SipTraceMemory>,
    /// `sip.trace_hep`
    pub(crate) sip_trace_hep: Entry<List<SocketAddr>>,
    /// `sip.trace_hep_id`
    pub(crate) sip_trace_hep_id: Entry<SipTraceId>,
    /// `sip.trace_hep_password`
    pub(crate) sip_trace_hep_password: Entry<sip_trace::Password>,
    /// `sip.max_call_duration`
    pub(crate) sip_max_call_duration: Entry<SipCallDuration>,
    /// `sip.session_expires`
    pub(crate) sip_session_expires: Entry<SipSession>,
    /// `sip.session_min`
    pub(crate) sip_session_min: Entry<SipShortestSession>,
    /// `sip.forbidden_prefixes`
    pub(crate) sip_forbidden_prefixes: Entry<List<sip_calls::Prefix>>,
    /// `sip.allowed_prefixes`
    pub(crate) sip_allowed_prefixes: Entry<List<sip_calls::Prefix>>,
    /// `sip.ice_servers`
    pub(crate) sip_ice_servers: Entry<List<sip_ice::TurnUri>>,
    /// `sip.rtpengine`
    pub(crate) sip_rtpengine: Entry<sip_media::RtpEngine>,
    /// `sip.push_gateway`
    pub(crate) sip_push_gateway: Entry<sip_push::Gateway>,
    /// `sip.push_token`
    pub(crate) sip_push_token: Entry<sip_push::Token>,
    /// `sip.push_providers`
    pub(crate) sip_push_providers: Entry<List<sip_push::Provider>>,
    /// `sip.push_timeout`
    pub(crate) sip_push_timeout: Entry<SipPushTimeout>,
    /// `sip.push_calls`
    pub(crate) sip_push_calls: Entry<SipPushCalls>,
    /// `sip.push_refresh`
    pub(crate) sip_push_refresh: Entry<SipPushRefresh>,
    /// `sip.register_expires`
    pub(crate) sip_register_expires: Entry<SipRegistration>,
    /// `sip.register_min`
    pub(crate) sip_register_min: Entry<SipShortest>,
    /// `sip.register_max`
    pub(crate) sip_register_max: Entry<SipRegistration>,
    /// `sip.flow_timer`
    pub(crate) sip_flow_timer: Entry<SipFlowTimer>,
    /// `sip.bindings`
    pub(crate) sip_bindings: Entry<SipBindings>,
    /// `sip.bindings_per_user`
    pub(crate) sip_bindings_per_user: Entry<SipUserBindings>,
    /// `sip.digest_algorithms`
    pub(crate) sip_digest_algorithms: Entry<Algorithms>,
    /// `sip.auth_int`
    pub(crate) sip_auth_int: Entry<bool>,
    /// `sip.digest_any_uri`
    pub(crate) sip_digest_any_uri: Entry<bool>,
    /// `sip.digest_without_qop`
    pub(crate) sip_digest_without_qop: Entry<bool>,
    /// `sip.userhash`
    pub(crate) sip_userhash: Entry<bool>,
    /// `sip.tolerance`
    pub(crate) sip_tolerance: Entry<Tolerance>,
    /// `sip.service_time`
    pub(crate) sip_service_time: Entry<ServiceTime>,
    /// `sip.t1`
    pub(crate) sip_t1: Entry<SipT1>,
    /// `sip.resolvers`
    pub(crate) sip_resolvers: Entry<List<NameServer>>,
    /// `sip.targets`
    pub(crate) sip_targets: Entry<List<PeerRule>>,
    /// `sip.transactions`
    pub(crate) sip_transactions: Entry<SipTransactions>,
    /// `sip.connections`
    pub(crate) sip_connections: Entry<SipConnections>,
    /// `sip.requests_per_source`
    pub(crate) sip_requests_per_source: Entry<SipRequests>,
    /// `sip.connections_per_source`
    pub(crate) sip_connections_per_source: Entry<SipConnections>,
    /// `sip.headers`
    pub(crate) sip_headers: Entry<SipHeaders>,
    /// `sip.head_size`
    pub(crate) sip_head_size: Entry<SipHead>,
    /// `sip.body_size`
    pub(crate) sip_body_size: Entry<SipBody>,
    /// `sip.message_deadline`
    pub(crate) sip_message_deadline: Entry<SipMessageDeadline>,
    /// `sip.idle`
    pub(crate) sip_idle: Entry<SipIdle>,
    /// `admin.listen`
    pub(crate) admin_listen: Entry<AdminListen>,
    /// `admin.allow_remote`
    pub(crate) admin_allow_remote: Entry<bool>,
    /// `admin.tokens`
    pub(crate) admin_tokens: Entry<List<Token>>,
    /// `admin.credential_tokens`
    pub(crate) admin_credential_tokens: Entry<List<Token>>,
    /// `events.sinks`
    pub(crate) events_sinks: Entry<List<events::Written>>,
    /// `telemetry.otlp`
    pub(crate) telemetry_otlp: Entry<telemetry::Otlp>,
    /// `telemetry.signals`
    pub(crate) telemetry_signals: Entry<List<OtlpSignal>>,
    /// `telemetry.headers_file`
    pub(crate) telemetry_headers_file: Entry<telemetry::OptionalFile>,
    /// `telemetry.ca`
    pub(crate) telemetry_ca: Entry<telemetry::OptionalFile>,
    /// `telemetry.queue`
    pub(crate) telemetry_queue: Entry<telemetry::Queue>,
    /// `log.level`
    pub(crate) log_level: Entry<LogLevel>,
    /// `log.format`
    pub(crate) log_format: Entry<LogFormat>,
}

/// All keys, in the order of the documentation.
pub(crate) const KEYS: &[Key] = &[
    Key::new("server", "workers", |s| &mut s.workers).at_start(),
    Key::new("server", "pin_workers", |s| &mut s.pin_workers).at_start(),
    Key::new("server", "steering", |s| &mut s.steering).at_start(),
    Key::new("server", "offloads", |s| &mut s.offloads).at_start(),
    Key::new("server", "drain", |s| &mut s.drain),
    Key::new("server", "receive_buffer", |s| &mut s.receive_buffer).at_start(),
    Key::new("server", "send_buffer", |s| &mut s.send_buffer).at_start(),
    Key::new("server", "busy_poll", |s| &mut s.busy_poll).at_start(),
    Key::new("server", "software", |s| &mut s.software),
    Key::new("server", "control_socket", |s| &mut s.control_socket).at_start(),
    Key::new("server", "state_dir", |s| &mut s.state_dir).at_start(),
    Key::new("listen", "udp", |s| &mut s.listen_udp).at_start(),
    Key::new("listen", "tcp", |s| &mut s.listen_tcp).at_start(),
    Key::new("listen", "tls", |s| &mut s.listen_tls).at_start(),
    Key::new("listen", "dtls", |s| &mut s.listen_dtls).at_start(),
    Key::new("listen", "proxy_protocol_from", |s| {
        &mut s.proxy_protocol_from
    })
    .at_start(),
    Key::new("tls", "certificates", |s| &mut s.tls_certificates).at_start(),
    Key::new("tls", "self_signed", |s| &mut s.tls_self_signed).at_start(),
    Key::new("tls", "min_version", |s| &mut s.tls_min_version).at_start(),
    Key::new("acme", "domains", |s| &mut s.acme_domains).at_start(),
    Key::new("acme", "email", |s| &mut s.acme_email).at_start(),
    Key::new("acme", "terms_agreed", |s| &mut s.acme_terms_agreed).at_start(),
    Key::new("acme", "directory", |s| &mut s.acme_directory).at_start(),
    Key::new("acme", "challenge", |s| &mut s.acme_challenge).at_start(),
    Key::new("acme", "listen", |s| &mut s.acme_listen).at_start(),
    Key::new("acme", "state", |s| &mut s.acme_state).at_start(),
    Key::new("acme", "ca", |s| &mut s.acme_ca).at_start(),
    Key::new("relay", "addresses", |s| &mut s.relay_addresses).at_start(),
    Key::new("relay", "external_ip", |s| &mut s.external_ip).at_start(),
    Key::new("relay", "external_ip_servers", |s| {
        &mut s.external_ip_servers
    })
    .at_start(),
    Key::new("relay", "ports", |s| &mut s.relay_ports).at_start(),
    Key::new("relay", "shared_ports", |s| &mut s.relay_shared_ports).at_start(),
    Key::new("relay", "tcp", |s| &mut s.relay_tcp),
    Key::new("relay", "mobility", |s| &mut s.relay_mobility),
    Key::new("offload", "mode", |s| &mut s.offload_mode).at_start(),
    Key::new("offload", "channels", |s| &mut s.offload_channels).at_start(),
    Key::new("offload", "binding_rate", |s| &mut s.binding_rate),
    Key::new("offload", "binding_excess", |s| &mut s.binding_excess),
    Key::new("auth", "realm", |s| &mut s.realm).at_start(),
    Key::new("auth", "secrets", |s| &mut s.secrets).secret(),
    Key::new("auth", "users", |s| &mut s.users).secret(),
    Key::new("auth", "token_keys", |s| &mut s.token_keys).secret(),
    Key::new("auth", "token_server_name", |s| &mut s.token_server_name),
    Key::new("auth", "realms", |s| &mut s.realms).secret(),
    Key::new("auth", "stores", |s| &mut s.stores).secret(),
    Key::new("auth", "nonce_lifetime", |s| &mut s.nonce_lifetime),
    Key::new("auth", "strict_expiry", |s| &mut s.strict_expiry),
    Key::new("auth", "binding_requests", |s| &mut s.authenticate_binding),
    Key::new("peers", "allow", |s| &mut s.peers_allow),
    Key::new("peers", "deny", |s| &mut s.peers_deny),
    Key::new("peers", "deny_files", |s| &mut s.peers_deny_files),
    Key::new("peers", "allow_local", |s| &mut s.peers_allow_local),
    Key::new("limits", "allocations", |s| &mut s.allocations),
    Key::new("limits", "allocations_per_user", |s| {
        &mut s.allocations_per_user
    }),
    Key::new("limits", "allocations_per_source", |s| {
        &mut s.allocations_per_source
    }),
    Key::new("limits", "permissions_per_allocation", |s| {
        &mut s.permissions
    }),
    Key::new("limits", "channels_per_allocation", |s| &mut s.channels),
    Key::new("limits", "peer_connections_per_allocation", |s| {
        &mut s.peer_connections
    }),
    Key::new("limits", "rate_per_allocation", |s| &mut s.allocation_rate),
    Key::new("limits", "rate_per_user", |s| &mut s.rate_per_user),
    Key::new("limits", "rate_per_source", |s| &mut s.rate_per_source),
    Key::new("limits", "rate_total", |s| &mut s.rate_total),
    Key::new("limits", "rate_directions", |s| &mut s.rate_directions).at_start(),
    Key::new("limits", "lifetime_default", |s| &mut s.lifetime_default),
    Key::new("limits", "lifetime_max", |s| &mut s.lifetime_max),
    Key::new("limits", "connections", |s| &mut s.connections),
    Key::new("limits", "connections_per_source", |s| {
        &mut s.connections_per_source
    }),
    Key::new("limits", "stream_message_deadline", |s| {
        &mut s.stream_message_deadline
    }),
    Key::new("limits", "stream_idle", |s| &mut s.stream_idle),
    Key::new("limits", "stream_queue_age", |s| &mut s.stream_queue_age),
    Key::new("limits", "stream_queue", |s| &mut s.stream_queue),
    Key::new("limits", "stream_queue_total", |s| {
        &mut s.stream_queue_total
    }),
    Key::new("limits", "unverified_responses_per_source", |s| {
        &mut s.unverified_responses
    }),
    Key::new("limits", "amplification", |s| &mut s.amplification),
    Key::new("alternate", "servers", |s| &mut s.alternate_servers),
    Key::new("alternate", "when", |s| &mut s.alternate_when),
    Key::new("alternate", "overload_percent", |s| {
        &mut s.alternate_overload_percent
    }),
    Key::new("alternate", "check_interval", |s| {
        &mut s.alternate_check_interval
    }),
    Key::new("cluster", "secret", |s| &mut s.cluster_secret)
        .secret()
        .at_start(),
    Key::new("cluster", "node", |s| &mut s.cluster_node).at_start(),
    Key::new("cluster", "engine", |s| &mut s.cluster_engine)
        .secret()
        .at_start(),
    Key::new("cluster", "engine_ca", |s| &mut s.cluster_engine_ca).at_start(),
    Key::new("cluster", "sentinel_password", |s| {
        &mut s.cluster_sentinel_password
    })
    .secret()
    .at_start(),
    Key::new("cluster", "prefix", |s| &mut s.cluster_prefix).at_start(),
    Key::new("cluster", "sip_transport", |s| &mut s.cluster_sip_transport).at_start(),
    Key::new("compat", "rfc5766_channels", |s| &mut s.rfc5766_channels),
    Key::new("compat", "channel_keeps_permission", |s| {
        &mut s.channel_keeps_permission
    }),
    Key::new("compat", "classic_stun", |s| &mut s.classic_stun),
    Key::new("compat", "draft_dual_allocation", |s| {
        &mut s.draft_dual_allocation
    }),
    Key::new("compat", "short_token_keys", |s| &mut s.short_token_keys),
    Key::new("nat_discovery", "udp", |s| &mut s.nat_discovery_udp).at_start(),
    Key::new("nat_discovery", "tcp", |s| &mut s.nat_discovery_tcp).at_start(),
    Key::new("nat_discovery", "tls", |s| &mut s.nat_discovery_tls).at_start(),
    Key::new("nat_discovery", "external_ip", |s| {
        &mut s.nat_discovery_external_ip
    })
    .at_start(),
    Key::new("nat_discovery", "padding", |s| &mut s.nat_discovery_padding).at_start(),
    Key::new("sip", "listen", |s| &mut s.sip_listen).at_start(),
    Key::new("sip", "listen_tls", |s| &mut s.sip_listen_tls).at_start(),
    Key::new("sip", "listen_ws", |s| &mut s.sip_listen_ws).at_start(),
    Key::new("sip", "listen_wss", |s| &mut s.sip_listen_wss).at_start(),
    Key::new("sip", "advertise", |s| &mut s.sip_advertise).at_start(),
    Key::new("sip", "local_networks", |s| &mut s.sip_local_networks).at_start(),
    Key::new("sip", "ws_paths", |s| &mut s.sip_ws_paths),
    Key::new("sip", "ws_origins", |s| &mut s.sip_ws_origins),
    Key::new("sip", "client_certificates", |s| {
        &mut s.sip_client_certificates
    })
    .at_start(),
    Key::new("sip", "client_ca", |s| &mut s.sip_client_ca).at_start(),
    Key::new("sip", "next_hop_ca", |s| &mut s.sip_next_hop_ca).at_start(),
    Key::new("sip", "next_hop_certificate", |s| {
        &mut s.sip_next_hop_certificate
    })
    .at_start(),
    Key::new("sip", "test_uas", |s| &mut s.sip_test_uas),
    Key::new("sip", "challenge", |s| &mut s.sip_challenge),
    Key::new("sip", "domain", |s| &mut s.sip_domain).secret(),
    Key::new("sip", "trunk", |s| &mut s.sip_trunk).secret(),
    Key::new("sip", "route", |s| &mut s.sip_route),
    Key::new("sip", "forward", |s| &mut s.sip_forward),
    Key::new("sip", "record_route", |s| &mut s.sip_record_route),
    Key::new("sip", "forking", |s| &mut s.sip_forking),
    Key::new("sip", "recurse", |s| &mut s.sip_recurse),
    Key::new("sip", "deny", |s| &mut s.sip_deny),
    Key::new("sip", "allow", |s| &mut s.sip_allow),
    Key::new("sip", "ban", |s| &mut s.sip_ban),
    Key::new("sip", "scanners", |s| &mut s.sip_scanners),
    Key::new("sip", "user_calls", |s| &mut s.sip_user_calls),
    Key::new("sip", "user_call_rate", |s| &mut s.sip_user_call_rate),
    Key::new("sip", "domain_calls", |s| &mut s.sip_domain_calls),
    Key::new("sip", "domain_call_rate", |s| &mut s.sip_domain_call_rate),
    Key::new("sip", "call_log", |s| &mut s.sip_call_log),
    Key::new("sip", "trace_memory", |s| &mut s.sip_trace_memory),
    Key::new("sip", "trace_hep", |s| &mut s.sip_trace_hep),
    Key::new("sip", "trace_hep_id", |s| &mut s.sip_trace_hep_id),
    Key::new("sip", "trace_hep_password", |s| {
        &mut s.sip_trace_hep_password
    })
    .secret(),
    Key::new("sip", "max_call_duration", |s| &mut s.sip_max_call_duration),
    Key::new("sip", "session_expires", |s| &mut s.sip_session_expires),
    Key::new("sip", "session_min", |s| &mut s.sip_session_min),
    Key::new("sip", "forbidden_prefixes", |s| {
        &mut s.sip_forbidden_prefixes
    }),
    Key::new("sip", "allowed_prefixes", |s| &mut s.sip_allowed_prefixes),
    Key::new("sip", "ice_servers", |s| &mut s.sip_ice_servers),
    Key::new("sip", "rtpengine", |s| &mut s.sip_rtpengine),
    Key::new("sip", "push_gateway", |s| &mut s.sip_push_gateway),
    Key::new("sip", "push_token", |s| &mut s.sip_push_token).secret(),
    Key::new("sip", "push_providers", |s| &mut s.sip_push_providers),
    Key::new("sip", "push_timeout", |s| &mut s.sip_push_timeout),
    Key::new("sip", "push_calls", |s| &mut s.sip_push_calls),
    Key::new("sip", "push_refresh", |s| &mut s.sip_push_refresh),
    Key::new("sip", "register_expires", |s| &mut s.sip_register_expires),
    Key::new("sip", "register_min", |s| &mut s.sip_register_min),
    Key::new("sip", "register_max", |s| &mut s.sip_register_max),
    Key::new("sip", "flow_timer", |s| &mut s.sip_flow_timer),
    Key::new("sip", "bindings", |s| &mut s.sip_bindings),
    Key::new("sip", "bindings_per_user", |s| &mut s.sip_bindings_per_user),
    Key::new("sip", "digest_algorithms", |s| &mut s.sip_digest_algorithms),
    Key::new("sip", "auth_int", |s| &mut s.sip_auth_int),
    Key::new("sip", "digest_any_uri", |s| &mut s.sip_digest_any_uri),
    Key::new("sip", "digest_without_qop", |s| {
        &mut s.sip_digest_without_qop
    }),
    Key::new("sip", "userhash", |s| &mut s.sip_userhash),
    Key::new("sip", "tolerance", |s| &mut s.sip_tolerance),
    Key::new("sip", "service_time", |s| &mut s.sip_service_time),
    Key::new("sip", "t1", |s| &mut s.sip_t1).at_start(),
    Key::new("sip", "resolvers", |s| &mut s.sip_resolvers).at_start(),
    Key::new("sip", "targets", |s| &mut s.sip_targets),
    Key::new("sip", "transactions", |s| &mut s.sip_transactions).at_start(),
    Key::new("sip", "connections", |s| &mut s.sip_connections),
    Key::new("sip", "requests_per_source", |s| {
        &mut s.sip_requests_per_source
    }),
    Key::new("sip", "connections_per_source", |s| {
        &mut s.sip_connections_per_source
    }),
    Key::new("sip", "headers", |s| &mut s.sip_headers).at_start(),
    Key::new("sip", "head_size", |s| &mut s.sip_head_size).at_start(),
    Key::new("sip", "body_size", |s| &mut s.sip_body_size).at_start(),
    Key::new("sip", "message_deadline", |s| &mut s.sip_message_deadline),
    Key::new("sip", "idle", |s| &mut s.sip_idle),
    Key::new("admin", "listen", |s| &mut s.admin_listen).at_start(),
    Key::new("admin", "allow_remote", |s| &mut s.admin_allow_remote).at_start(),
    Key::new("admin", "tokens", |s| &mut s.admin_tokens).secret(),
    Key::new("admin", "credential_tokens", |s| {
        &mut s.admin_credential_tokens
    })
    .secret(),
    Key::new("events", "sinks", |s| &mut s.events_sinks)
        .secret()
        .at_start(),
    Key::new("telemetry", "otlp", |s| &mut s.telemetry_otlp).at_start(),
    Key::new("telemetry", "signals", |s| &mut s.telemetry_signals).at_start(),
    Key::new("telemetry", "headers_file", |s| {
        &mut s.telemetry_headers_file
    })
    .at_start(),
    Key::new("telemetry", "ca", |s| &mut s.telemetry_ca).at_start(),
    Key::new("telemetry", "queue", |s| &mut s.telemetry_queue).at_start(),
    Key::new("log", "level", |s| &mut s.log_level),
    Key::new("log", "format", |s| &mut s.log_format).at_start(),
];

/// The key called `section.name`.
pub(crate) fn key(section: &str, name: &str) -> Option<&'static Key> {
    KEYS.iter()
        .find(|key| key.section == section && key.name == name)
}

/// The names of the sections, each once.
pub(crate) fn sections() -> Vec<&'static str> {
    let mut sections: Vec<_> = KEYS.iter().map(|key| key.section).collect();
    sections.dedup();
    sections
}

/// The names of the keys of one section.
pub(crate) fn names(section: &str) -> Vec<&'static str> {
    KEYS.iter()
        .filter(|key| key.section == section)
        .map(|key| key.name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_section_stand_together_and_are_unique() {
        let mut sections = sections();
        let count = sections.len();
        sections.sort_unstable();
        sections.dedup();
        assert_eq!(sections.len(), count, "a section is split in two");
        let mut paths: Vec<_> = KEYS.iter().map(Key::path).collect();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), KEYS.len());
    }
}
