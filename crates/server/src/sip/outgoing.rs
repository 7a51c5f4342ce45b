//! What leaves: over UDP by the worker's send queue, over TCP by the write buffer of a connection. Both go at the end
//! of a batch.

use super::connections::{Connections, DisconnectReason};
use super::layers::{Layers, NodeSide, StreamListener};
use super::listeners::SipListener;
use super::node_tls::NodeTls;
use super::settings::SipConfig;
use super::token::{SipToken, Slot};
use io::{Outbox, Poller, SendTo};
use sip::Mono;
use sip::engine::{self, ConnectKey};
use sip::flow::{ConnectionKey, Destination, Flow, ListenerKey, Transport};
use std::net::{IpAddr, SocketAddr};

use super::counters::SipCounters;

/// Everything that a message can leave by, while a batch is handled.
#[derive(Debug)]
pub(super) struct Outgoing<'a, 'q, 'buf> {
    pub(super) out: Outbox<'q, 'buf>,
    pub(super) listeners: &'buf [SipListener],
    pub(super) streams: &'buf [StreamListener],
    pub(super) connections: &'a mut Connections,
    pub(super) poller: &'a Poller,
    /// For connections to other nodes over TLS.
    pub(super) nodes: Option<&'a NodeTls>,
}

impl Outgoing<'_, '_, '_> {
    /// Queues bytes for where a message came from. `false` if there is no way back any more.
    pub(super) fn send_back(
        &mut self,
        to: &Flow,
        bytes: &[u8],
        counters: &mut SipCounters,
    ) -> bool {
        match to.connection {
            Some(key) => self.connections.queue(slot_of(key), bytes, counters),
            None => self.datagram(to.listener, Some(to.local), to.remote, bytes),
        }
    }

    /// Queues bytes for where the engine says. `false` if there is no way.
    pub(super) fn send(
        &mut self,
        to: &engine::SendTo,
        bytes: &[u8],
        counters: &mut SipCounters,
    ) -> bool {
        match *to {
            engine::SendTo::Stream(key) => self.connections.queue(slot_of(key), bytes, counters),
            engine::SendTo::Datagram {
                listener,
                local,
                remote,
            } => self.datagram(listener, local, remote, bytes),
        }
    }

    /// The transport, the address of this server and that of the other side. `None` if the connection is closed.
    pub(super) fn ends_of(
        &mut self,
        to: &engine::SendTo,
    ) -> Option<(Transport, SocketAddr, SocketAddr)> {
        match *to {
            engine::SendTo::Stream(key) => {
                let connection = self.connections.get(slot_of(key))?;
                Some((connection.transport, connection.local, connection.remote))
            }
            engine::SendTo::Datagram {
                listener,
                local,
                remote,
            } => {
                let listener = self.listeners.get(usize::from(listener.0))?;
                Some((Transport::Udp, local.unwrap_or(listener.local), remote))
            }
        }
    }

    /// Begins a connection. The engine gets an event when it is open.
    pub(super) fn connect(
        &mut self,
        key: ConnectKey,
        to: &Destination,
        sip_config: &SipConfig,
        now: Mono,
    ) -> bool {
        let Some((listened, layers)) = self.layers_for(to) else {
            return false;
        };
        let local = to.local.unwrap_or(listened);
        self.connections
            .connect((key, layers), to, local, sip_config, self.poller, now)
    }

    /// What a connection to `to` requires, and the address that its listener is bound to. `None` if this server cannot
    /// open one. Only the client opens a WebSocket (RFC 7118 §7), and TLS requires a name to verify (RFC 5922 §7.3). A
    /// plain listener has TLS with other nodes only.
    fn layers_for(&self, to: &Destination) -> Option<(SocketAddr, Layers)> {
        let number = usize::from(to.listener.0);
        match to.transport {
            Transport::Tcp => Some((self.listeners.get(number)?.local, Layers::default())),
            Transport::Tls if number < self.listeners.len() => {
                let layers =
                    Layers::with_node(NodeSide::Connected, self.nodes?.connecting(to.remote)?);
                Some((self.listeners.get(number)?.local, layers))
            }
            Transport::Tls => {
                let listener = self
                    .streams
                    .get(number.checked_sub(self.listeners.len())?)?;
                let layers = Layers::connecting(listener.connect.as_ref()?, to.name.as_ref()?)?;
                Some((listener.local, layers))
            }
            Transport::Udp | Transport::Ws | Transport::Wss => None,
        }
    }

    /// Another worker's bytes for a connection of this one. `false` if it is closed.
    pub(super) fn give(
        &mut self,
        key: ConnectionKey,
        bytes: &[u8],
        counters: &mut SipCounters,
    ) -> bool {
        // This worker must be notified when the connection ends.
        self.share(key);
        self.connections.queue(slot_of(key), bytes, counters)
    }

    /// Other workers answer what a connection brings, too.
    pub(super) fn share(&mut self, key: ConnectionKey) {
        if let Some(connection) = self.connections.get(slot_of(key)) {
            connection.is_shared = true;
        }
    }

    /// Closes a connection that the engine does not need any more.
    pub(super) fn close(&mut self, key: ConnectionKey, counters: &mut SipCounters) {
        self.connections.finish(slot_of(key), counters);
    }

    /// Closes a connection whose source is denied or banned.
    pub(super) fn deny(&mut self, key: ConnectionKey, counters: &mut SipCounters) {
        self.connections
            .close(slot_of(key), DisconnectReason::Denied, counters);
    }

    fn datagram(
        &mut self,
        listener: ListenerKey,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        bytes: &[u8],
    ) -> bool {
        let Some(listener) = self.listeners.get(usize::from(listener.0)) else {
            return false;
        };
        let wildcard = listener.local.ip().is_unspecified();
        let local = local.map(|local| local.ip());
        let send_to = SendTo {
            from_ip: local.filter(|ip| wildcard && !ip.is_unspecified()),
            ..SendTo::new(&listener.udp, remote)
        };
        self.out.push_copied(&send_to, bytes);
        true
    }
}

/// The flow of datagrams from `remote`.
pub(super) fn udp_flow(
    number: u16,
    listener: SocketAddr,
    local_ip: Option<IpAddr>,
    remote: SocketAddr,
) -> Flow {
    Flow {
        transport: Transport::Udp,
        listener: ListenerKey(number),
        connection: None,
        local: SocketAddr::new(local_ip.unwrap_or(listener.ip()), listener.port()),
        remote,
    }
}

/// The name of a connection, in all engines of the process: generation (32 bits), worker (8), place in its table (24).
pub(super) fn key_of(worker: u16, slot: Slot) -> ConnectionKey {
    let low = u64::from(worker) << INDEX_BITS | u64::from(slot.index);
    ConnectionKey(u64::from(slot.generation) << 32 | low)
}

const INDEX_BITS: u32 = 24;
const _: () = assert!(SipToken::MAX_CONNECTIONS <= 1 << INDEX_BITS);
const _: () = assert!(crate::builder::MAX_WORKERS <= 1 << (32 - INDEX_BITS));

/// The connection of a name, at its worker.
pub(super) fn slot_of(key: ConnectionKey) -> Slot {
    Slot {
        index: key.0 as u32 & ((1 << INDEX_BITS) - 1),
        generation: (key.0 >> 32) as u32,
    }
}

/// The worker that has a connection.
pub(super) fn worker_of(key: ConnectionKey) -> u16 {
    u16::from((key.0 >> INDEX_BITS) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_one_name_and_that_says_whose_it_is() {
        for (worker, index, generation) in [(0, 0, 0), (254, (1 << 24) - 1, u32::MAX), (3, 7, 1)] {
            let slot = Slot { index, generation };
            let key = key_of(worker, slot);
            assert_eq!((worker_of(key), slot_of(key)), (worker, slot));
        }
    }
}
