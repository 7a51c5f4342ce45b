//! The values of all keys, each with its place in the configuration.

use std::net::{IpAddr, SocketAddr};

use ::stores::sinks::OtlpSignal;

use crate::config::acme::{Challenge, Directory, Domain, Email, Folder};
use crate::config::admin::{AdminListen, Token};
use crate::config::alternate;
use crate::config::cluster;
use crate::config::control_socket::ControlSocket;
use crate::config::credentials::{Realm, Secret, User};
use crate::config::deny_files::DenyFile;
use crate::config::events;
use crate::config::key::Entry;
use crate::config::logging::{LogFormat, LogLevel};
use crate::config::network::{
    ExternalAddress, ExternalIp, NameServer, Network, PeerRule, PortRange, StunServer,
};
use crate::config::offload::{BindingExcess, OffloadMode};
use crate::config::ranges::{
    AllocationLifetime, AllocationRate, Allocations, BindingRate, BusyPoll, Channels,
    CheckInterval, ConnectionIdle, Connections, Drain, GroupRate, MessageDeadline, NonceLifetime,
    OffloadChannels, OverloadPercent, PeerConnections, Permissions, QueueAge, QueueSize,
    QueueTotal, ReceiveBuffer, SendBuffer, ServiceTime, SipBan, SipBindings, SipBody,
    SipCallDuration, SipCalls, SipConnections, SipFlowTimer, SipHead, SipHeaders, SipIdle,
    SipMessageDeadline, SipPushCalls, SipPushRefresh, SipPushTimeout, SipRegistration, SipRequests,
    SipSession, SipShortest, SipShortestSession, SipT1, SipTraceId, SipTraceMemory,
    SipTransactions, SipUserBindings, Tolerance, UnverifiedResponses,
};
use crate::config::realms;
use crate::config::setting::{
    Amplification, AtLeastOne, List, PinWorkers, RateDirections, Steering, Workers,
};
use crate::config::sip::{Algorithms, ForkingOrder, Origin, WebSocketPath};
use crate::config::sip_advertise::Advertise;
use crate::config::sip_binding_database::BindingDatabaseUrl;
use crate::config::sip_calls;
use crate::config::sip_domains;
use crate::config::sip_forwards;
use crate::config::sip_ice;
use crate::config::sip_media;
use crate::config::sip_push;
use crate::config::sip_routes;
use crate::config::sip_tls::{ClientCertificates, RootFile};
use crate::config::sip_trace;
use crate::config::sip_trunks;
use crate::config::software::Software;
use crate::config::source::Location;
use crate::config::state_dir::StateDir;
use crate::config::stores;
use crate::config::telemetry;
use crate::config::tls::{ListenerPair, MinVersion, Pair};
use crate::config::tokens::{self, ServerName};

/// The values of all layers. For each key, the last layer wins.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// The places of values under the old names of their keys.
    pub(in crate::config) by_old_name: Vec<Location>,
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
    pub(crate) realms: Entry<List<realms::RawRealm>>,
    /// `auth.stores`
    pub(crate) stores: Entry<List<stores::RawStore>>,
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
    pub(crate) sip_domain: Entry<List<sip_domains::RawDomain>>,
    /// `sip.trunk`
    pub(crate) sip_trunk: Entry<List<sip_trunks::RawTrunk>>,
    /// `sip.route`
    pub(crate) sip_route: Entry<List<sip_routes::RawRoute>>,
    /// `sip.forward`
    pub(crate) sip_forward: Entry<List<sip_forwards::RawForward>>,
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
    /// `sip.binding_database`
    pub(crate) sip_binding_database: Entry<BindingDatabaseUrl>,
    /// `sip.binding_database_ca`
    pub(crate) sip_binding_database_ca: Entry<List<RootFile>>,
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
    pub(crate) events_sinks: Entry<List<events::RawSink>>,
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
