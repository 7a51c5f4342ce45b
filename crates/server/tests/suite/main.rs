//! The tests of this crate that can share a process, a module per subject.
//!
//! They are one binary, because each binary links the whole server. The test command runs each module in a process of
//! its own.

#![allow(clippy::unwrap_used)] // helpers of tests

mod advisories;
mod all_workers;
mod alternates;
mod async_credentials;
mod certificate_files;
mod churn;
mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod counters;
#[path = "../dns_server/mod.rs"]
mod dns_server;
mod dtls;
mod fairness;
mod handover;
mod handshakes;
mod hooks;
mod host_addresses;
mod icmp;
mod ip_header;
mod lifecycle;
mod limits;
mod mobility;
mod nat_discovery;
mod open_sockets;
mod realms;
mod relay;
mod relay_cases;
mod reservation;
mod silent_neighbour;
mod sip;
mod sip_advertise;
mod sip_amplification;
mod sip_bans;
mod sip_calls;
#[path = "../sip_client/mod.rs"]
mod sip_client;
mod sip_coalescing;
mod sip_connects;
mod sip_dialogs;
mod sip_digest;
mod sip_domain_users;
mod sip_flow_failure;
mod sip_flow_timer;
mod sip_forwards;
mod sip_half_closed;
mod sip_keep_alives;
mod sip_moved;
mod sip_names;
mod sip_network_errors;
mod sip_overload;
mod sip_probe_pause;
mod sip_proxy;
mod sip_push;
mod sip_reg_event;
mod sip_registrar;
mod sip_requests;
mod sip_restart;
mod sip_return;
mod sip_route_hook;
mod sip_routes;
mod sip_sources;
mod sip_streams;
mod sip_torture;
mod sip_transports;
mod sip_trunk_access;
mod sip_trunk_overload;
mod sip_trunk_tls;
mod sip_workers;
mod stream_abuse;
mod stream_inputs;
mod streams;
mod tcp_relay;
#[path = "../tls_peer/mod.rs"]
mod tls_peer;
mod tos;
mod trains;
mod workers;
