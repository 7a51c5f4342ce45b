//! The tests of this crate that can share a process, a module per subject.
//!
//! They are one binary, because each binary links the whole server. The test command runs each module in a process of
//! its own.

#![allow(clippy::unwrap_used)] // helpers of tests

// The name by which the helpers know the server.
extern crate server as hairpin_server;

mod abuse;
mod admin;
mod advisories;
mod amplification;
mod api;
mod api_remote;
mod bench_cli;
mod binding_credentials;
mod check;
mod cli_api;
mod cli_api_errors;
mod cluster;
mod cluster_calls;
mod cluster_cost;
mod cluster_engines;
mod cluster_faults;
mod cluster_proof;
mod cluster_robust;
mod cluster_sip;
mod cluster_tls;
mod common;
mod control;
mod creds;
mod deny_files;
#[path = "../../../server/tests/dns_server/mod.rs"]
mod dns_server;
mod doctor;
#[allow(dead_code, reason = "the tests of the stores use the rest")]
#[path = "../../../stores/src/test_engines.rs"]
mod engines;
mod events;
mod forged_sources;
mod howto;
mod import;
mod inherited;
mod killed;
mod load_cli;
mod load_common;
mod load_relay;
mod load_sip;
mod load_streams;
mod load_workloads;
mod log_events;
mod nat;
mod nat_srv;
mod peer_cli;
mod probe;
mod serve;
mod sip_binding_database;
mod sip_carrier_soak;
#[path = "../../../server/tests/sip_client/mod.rs"]
mod sip_client;
mod sip_insight;
mod sip_media;
mod sip_memory;
mod sip_metric_names;
mod sip_push;
mod sip_route;
mod sip_soak;
mod sip_tables;
mod stores;
mod stores_reload;
mod stores_slow;
mod systemd;
mod tcp_sessions;
mod telemetry;
mod tls_files;
#[path = "../../../server/tests/tls_peer/mod.rs"]
mod tls_peer;
mod token_rotation;
mod tutorials;
mod upgrade;
mod upgrade_sip;
mod upgrade_unprivileged;
