//! Why a server does not start, and what to change.

use std::net::SocketAddr;

use anyhow::anyhow;
use server::{InheritedError, StartError};

use super::plan;
use crate::config::Config;

/// `server`'s own words, and which flag or key to change.
pub(super) fn explain(error: &StartError, config: &Config) -> anyhow::Error {
    let change = match error {
        StartError::Bind { address, .. } if config.sip.listen.contains(address) => {
            "; set it with sip.listen"
        }
        StartError::Bind { address, .. } if config.sip.listen_tls.contains(address) => {
            "; set it with sip.listen_tls"
        }
        StartError::Bind { address, .. } if config.sip.listen_ws.contains(address) => {
            "; set it with sip.listen_ws"
        }
        StartError::Bind { address, .. } if config.sip.listen_wss.contains(address) => {
            "; set it with sip.listen_wss"
        }
        StartError::Bind { address, .. } if is_tls_only(*address, config) => {
            "; set it with listen.tls and listen.dtls"
        }
        StartError::Bind { address, .. } if is_tcp_only(*address, config) => {
            "; set it with listen.tcp"
        }
        StartError::Bind { .. } => "; set it with --listen ADDRESS:PORT or listen.udp",
        StartError::RelayAddress { .. } => "; set it with --relay-address IP or relay.addresses",
        StartError::ExternalAddress { .. } => "; set it with --relay-address IP or relay.addresses",
        StartError::Offload { .. } => "; set it with --offload MODE or offload.mode",
        StartError::Inherited(InheritedError::Unused { .. }) => {
            "; listeners are in listen.*, sip.listen*, admin.listen and acme.listen"
        }
        StartError::Inherited(_) => "; see docs/operation.md",
        StartError::Steering(_) => "; set it with server.steering",
        StartError::Worker(_) | StartError::Thread(_) => {
            "; set it with --workers N or server.workers"
        }
        _ => "",
    };
    anyhow!("{error}{change}")
}

fn is_tcp_only(address: SocketAddr, config: &Config) -> bool {
    let has =
        |list: &Option<Vec<SocketAddr>>| list.as_ref().is_some_and(|list| list.contains(&address));
    has(&config.listen_tcp) && !has(&config.listen_udp)
}

fn is_tls_only(address: SocketAddr, config: &Config) -> bool {
    let has =
        |list: &Option<Vec<SocketAddr>>| list.as_ref().is_some_and(|list| list.contains(&address));
    address.port() == plan::TLS_PORT
        || has(&config.listen_tls) && !has(&config.listen_tcp)
        || has(&config.listen_dtls) && !has(&config.listen_udp)
}
