//! Connections from load balancers: each begins with a header of the PROXY protocol, version 2, that has the client's
//! address.

use super::Sip;
use super::connections::DisconnectReason;
use super::reading::flow_of;
use super::token::Slot;
use io::Poller;
use sip::flow::Transport;
use std::net::SocketAddr;
use streams::proxy::{self, Carried, Proxy};

impl Sip {
    /// Whether connections from this address must begin with a header.
    pub(super) fn is_proxy(&self, from: SocketAddr) -> bool {
        let contains = |network: &ipnet::IpNet| network.contains(&from.ip());
        self.proxies.iter().any(contains)
    }

    /// Whether the header of this connection has not come yet.
    pub(super) fn awaits_proxy_header(&mut self, slot: Slot) -> bool {
        let connection = self.connections.get(slot);
        connection.is_some_and(|connection| connection.awaits_proxy_header)
    }

    /// Takes bytes of a connection that must begin with a header. When it is complete, handles the bytes behind it.
    pub(super) fn take_proxy_header(&mut self, slot: Slot, bytes: &[u8], poller: &Poller) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        connection.inbound.extend_from_slice(bytes);
        let (len, client) = match proxy::parse(&connection.inbound, Carried::Stream) {
            Proxy::Need(_) => return,
            Proxy::Invalid => return self.close(slot, DisconnectReason::Malformed),
            Proxy::Header { len, addresses } => (len, addresses.map(|ends| ends.client)),
        };
        connection.awaits_proxy_header = false;
        if client.is_some_and(|client| self.endpoint.drops(client.ip())) {
            return self.close(slot, DisconnectReason::Denied);
        }
        let mut rest = std::mem::take(&mut connection.inbound);
        rest.drain(..len);
        let (sip_config, _) = self.endpoint.config_and_counters();
        let moved =
            client.is_none_or(|client| self.connections.follow_source(slot, client, sip_config));
        if !moved {
            return self.close(slot, DisconnectReason::SourceLimit);
        }
        self.announce(slot);
        self.take_rest(slot, &mut rest, poller);
    }

    /// Handles what came in the same read as the end of the header.
    fn take_rest(&mut self, slot: Slot, rest: &mut [u8], poller: &Poller) {
        let Some(flow) = self
            .connections
            .get(slot)
            .map(|connection| flow_of(connection))
        else {
            return;
        };
        if rest.is_empty() {
            return;
        }
        if flow.transport == Transport::Tcp {
            self.take_plain(rest, 0, &flow, poller);
        } else {
            self.take_layered(rest, 0, &flow, poller);
        }
    }

    /// Tells the engine of an accepted connection.
    pub(super) fn announce(&mut self, slot: Slot) {
        let now = self.endpoint.now.mono;
        if let Some(connection) = self.connections.get(slot) {
            let flow = flow_of(connection);
            self.endpoint.engine.accepted(now, &flow);
        }
    }
}
