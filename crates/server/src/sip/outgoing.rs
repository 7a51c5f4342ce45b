//! What leaves: over UDP by the worker's send queue, over TCP by the write buffer of a connection. Both go at the end of a batch.

use super::connections::Connections;
use super::listeners::SipListener;
use super::token::Slot;
use io::{Outbox, SendTo};
use sip::flow::{Carrier, ConnectionKey, Flow, ListenerKey};
use std::net::{IpAddr, SocketAddr};

use super::counters::SipCounters;

/// Everything that a message can leave by, while a batch is handled.
#[derive(Debug)]
pub(super) struct Outgoing<'a, 'q, 'buf> {
    pub(super) out: Outbox<'q, 'buf>,
    pub(super) listeners: &'buf [SipListener],
    pub(super) connections: &'a mut Connections,
}

impl Outgoing<'_, '_, '_> {
    /// Queues bytes for where a message came from. `false` if there is no way back any more.
    pub(super) fn send(&mut self, to: &Flow, bytes: &[u8], counters: &mut SipCounters) -> bool {
        let Some(key) = to.connection else {
            return self.datagram(to, bytes);
        };
        self.connections.queue(slot_of(key), bytes, counters)
    }

    fn datagram(&mut self, to: &Flow, bytes: &[u8]) -> bool {
        let Some(listener) = self.listeners.get(usize::from(to.listener.0)) else {
            return false;
        };
        let wildcard = listener.local.ip().is_unspecified();
        let send_to = SendTo {
            from_ip: wildcard
                .then_some(to.local.ip())
                .filter(|ip| !ip.is_unspecified()),
            ..SendTo::new(&listener.udp, to.remote)
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
        carrier: Carrier::Udp,
        listener: ListenerKey(number),
        connection: None,
        local: SocketAddr::new(local_ip.unwrap_or(listener.ip()), listener.port()),
        remote,
    }
}

/// The flow of a connection.
pub(super) fn tcp_flow(slot: Slot, listener: u16, local: SocketAddr, remote: SocketAddr) -> Flow {
    Flow {
        carrier: Carrier::Tcp,
        listener: ListenerKey(listener),
        connection: Some(key_of(slot)),
        local,
        remote,
    }
}

/// The engine's name of a connection.
pub(super) fn key_of(slot: Slot) -> ConnectionKey {
    ConnectionKey(u64::from(slot.generation) << 32 | u64::from(slot.index))
}

/// The connection of a name.
pub(super) fn slot_of(key: ConnectionKey) -> Slot {
    Slot {
        index: key.0 as u32,
        generation: (key.0 >> 32) as u32,
    }
}
