//! Connections over TLS whose request belongs to the process before this one.
//!
//! ```text
//!  client ══ TLS ══ this worker ── a connection over loopback ── a worker of the old process
//! ```
//! The TLS session stays here, because its keys cannot leave the TLS library. The worker relays its data to the old
//! process over a loopback connection. The old process serves this connection as if the client had opened it.

use super::Worker;
use crate::connections::Connections;
use crate::handover::ForeignMessage;
use crate::tcp_relays::{Meter, RelayResult, TcpRelays};
use io::{Event, Poller, TcpConnection};
use turn::{ClientPath, ConnectionKey};

/// The generations of these connections. Those of the engine's connections stay below.
const OWN: u32 = 1 << 31;

/// The forwarded connections of one worker.
#[derive(Debug)]
pub(crate) struct Forwarding {
    relays: TcpRelays,
    /// Indices that are not in use, below `end`.
    free: Vec<u32>,
    end: u32,
    generation: u32,
}

impl Forwarding {
    pub(crate) fn new() -> Forwarding {
        Forwarding {
            relays: TcpRelays::new(),
            free: Vec::new(),
            end: 0,
            generation: 0,
        }
    }

    /// Whether a key is of a connection here, not of the engine's.
    pub(super) const fn has(key: ConnectionKey) -> bool {
        key.generation & OWN != 0
    }

    fn next_key(&mut self) -> ConnectionKey {
        self.generation = self.generation.wrapping_add(1);
        let index = self.free.pop().unwrap_or_else(|| {
            self.end += 1;
            self.end - 1
        });
        ConnectionKey {
            index,
            generation: self.generation | OWN,
        }
    }

    pub(super) fn peer_ready(&mut self, key: ConnectionKey, event: Event, poller: &Poller) {
        // It relays from the beginning, so there is no other step.
        let _ = self.relays.peer_ready(key, event, poller);
    }

    pub(super) fn client_ready(&mut self, key: ConnectionKey, event: Event) {
        self.relays.data_ready(key, event);
    }

    pub(super) const fn relays(&self) -> &TcpRelays {
        &self.relays
    }

    fn close(&mut self, key: ConnectionKey, connections: &mut Connections) {
        self.relays.close(key, connections);
        self.free.push(key.index);
    }
}

impl Worker {
    /// Forwards a TLS connection, beginning with this message, to a worker of the process before this one. Returns
    /// `false` if that is impossible: then the connection is as before.
    pub(super) fn forward(&mut self, worker: u16, path: &ClientPath, message: &[u8]) -> bool {
        let core = &mut self.core;
        let Some(predecessor) = core.mailboxes.predecessor_of(worker) else {
            return false;
        };
        let Ok((near, far)) = TcpConnection::pair() else {
            return false;
        };
        let key = core.forwarding.next_key();
        if !core.forwarding.relays.keep(key, near, &core.poller) {
            core.forwarding.close(key, &mut core.connections);
            return false;
        }
        let taken = core
            .connections
            .take_forwarded(path, &core.poller, core.now.mono);
        let Some((data, rest)) = taken else {
            core.forwarding.close(key, &mut core.connections);
            return false;
        };
        let message = ForeignMessage {
            worker,
            local: path.five_tuple.local,
            remote: path.five_tuple.remote,
            bytes: [message, &rest].concat(),
            connection: Some(far.into()),
        };
        // If it does not get there, the other end is closed, and so is the client's connection.
        let is_sent = predecessor.send(message);
        core.counters.mailbox_full += u64::from(!is_sent);
        let begun = core
            .forwarding
            .relays
            .begin(key, data, Vec::new(), &core.poller);
        if let Err(data) = begun {
            core.connections.end_data(data);
            core.forwarding.close(key, &mut core.connections);
        }
        true
    }

    /// Relays a bounded amount for each forwarded connection that is ready.
    pub(super) fn relay_forwarded(&mut self) {
        let core = &mut self.core;
        let ready = core.forwarding.relays.take_ready(core.now.mono);
        for key in &ready {
            let mut meter = Meter {
                engine: &mut core.engine,
                counters: &mut core.counters,
                now: core.now,
                // The old process limits and counts what its client relays.
                connection: None,
            };
            let pumped = core.forwarding.relays.pump(*key, core.now.mono, &mut meter);
            if pumped == RelayResult::Over {
                core.forwarding.close(*key, &mut core.connections);
            }
        }
        core.forwarding.relays.put_back(ready);
    }
}
