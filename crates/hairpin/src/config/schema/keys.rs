//! The table of all keys.

use crate::config::key::Key;

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
    Key::new("auth", "users", |s| &mut s.users).secret_except(&["name"]),
    Key::new("auth", "token_keys", |s| &mut s.token_keys).secret_except(&[
        "kid",
        "algorithm",
        "realm",
    ]),
    Key::new("auth", "token_server_name", |s| &mut s.token_server_name),
    Key::new("auth", "realms", |s| &mut s.realms).secret_except(PUBLIC_REALM_FIELDS),
    Key::new("auth", "stores", |s| &mut s.stores).secret_except(PUBLIC_STORE_FIELDS),
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
    Key::new("sip", "domain", |s| &mut s.sip_domain).secret_except(PUBLIC_DOMAIN_FIELDS),
    Key::new("sip", "trunk", |s| &mut s.sip_trunk).secret_except(PUBLIC_TRUNK_FIELDS),
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
    Key::new("sip", "binding_database", |s| &mut s.sip_binding_database)
        .secret()
        .at_start(),
    Key::new("sip", "binding_database_ca", |s| {
        &mut s.sip_binding_database_ca
    })
    .at_start(),
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
        .secret_except(PUBLIC_SINK_FIELDS)
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

/// Fields of `auth.realms` that are not secret.
const PUBLIC_REALM_FIELDS: &[&str] = &[
    "name",
    "origins",
    "server_names",
    "listeners",
    "users.name",
    "peers_allow",
    "peers_deny",
    "allocations",
    "allocations_per_user",
    "rate_per_allocation",
    "rate",
    "rate_per_user",
];
/// Fields of `auth.stores` that are not secret. A URL can have a password in it.
const PUBLIC_STORE_FIELDS: &[&str] = &[
    "password_file",
    "ca",
    "algorithms",
    "ttl",
    "ttl_unknown",
    "timeout",
    "cache",
];
/// Fields of `events.sinks` that are not secret.
const PUBLIC_SINK_FIELDS: &[&str] = &["kinds", "delivery", "queue", "topic", "password_file", "ca"];
/// Fields of `sip.domain` that are not secret.
const PUBLIC_DOMAIN_FIELDS: &[&str] = &[
    "name",
    "aliases",
    "service_route",
    "inbound",
    "realm",
    "users.name",
    "digest_algorithms",
];
/// Fields of `sip.trunk` that are not secret.
const PUBLIC_TRUNK_FIELDS: &[&str] = &[
    "name",
    "addresses",
    "certificates",
    "to",
    "domain",
    "weight",
    "priority",
    "calls_per_second",
    "max_calls",
    "calls_per_second_from",
    "max_calls_from",
    "answer_timeout",
    "probe_interval",
    "probe_failures",
    "probe_successes",
    "slow_start",
    "user",
    "realm",
    "register",
    "register_contact",
    "register_expires",
    "media",
];
