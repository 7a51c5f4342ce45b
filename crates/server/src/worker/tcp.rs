//! TCP relays (RFC 6062): events of peers, connections that become data connections, and the bytes that these relay.

use super::Worker;
use super::forwarding::Forwarding;
use super::messages::{MovedConnection, WorkerMessage};
use super::sockets::Token;
use crate::handover::ForeignMessage;
use crate::tcp_relays::{MAX_ACCEPTS, Meter, MovingRequest, RelayResult, Step, is_exhausted};
use io::{Event, Events};
use std::io::ErrorKind;
use turn::server::ConnectError;
use turn::{ClientPath, ConnectionKey, RelayKey};

impl Worker {
    /// Accepts connections of peers, and looks what has become of those that exist.
    pub(super) fn receive_from_peers(&mut self, events: &Events) {
        for event in events.iter() {
            match Token::from_u64(event.token) {
                Token::TcpRelay(relay) => self.accept_peers(relay),
                Token::Peer(key) if Forwarding::has(key) => {
                    let core = &mut self.core;
                    core.forwarding.peer_ready(key, event, &core.poller);
                }
                Token::Data(key) if Forwarding::has(key) => {
                    self.core.forwarding.client_ready(key, event);
                }
                Token::Peer(connection) => self.peer_ready(connection, event),
                Token::Data(connection) => self.core.tcp.data_ready(connection, event),
                _ => {}
            }
        }
        self.core
            .tcp
            .accept_again(&self.core.poller, self.core.now.mono);
    }

    /// Accepts waiting connections of peers to the relayed address of `relay` (RFC 6062 §5.3), at most [`MAX_ACCEPTS`].
    fn accept_peers(&mut self, relay: RelayKey) {
        for _ in 0..MAX_ACCEPTS {
            let core = &mut self.core;
            match core.tcp.accept(relay, &core.opener.relays) {
                Ok((stream, from)) => {
                    // Otherwise the connection is closed here (RFC 6062 §5.3).
                    if let Some(connection) = core.engine.peer_connected(core.now, relay, from)
                        && !core.tcp.keep(connection, stream, &core.poller)
                    {
                        core.engine.connection_closed(connection);
                    }
                    self.drain_and_update_sockets();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if is_exhausted(&error) => {
                    return core.tcp.pause_accepting(relay, &core.poller, core.now.mono);
                }
                // The connection failed before it was accepted.
                Err(_) => {}
            }
        }
    }

    fn peer_ready(&mut self, connection: ConnectionKey, event: Event) {
        let core = &mut self.core;
        let result = match core.tcp.peer_ready(connection, event, &core.poller) {
            Step::Nothing => return,
            Step::Connected => Ok(()),
            Step::Failed => Err(ConnectError),
            Step::Closed => {
                core.engine.connection_closed(connection);
                return;
            }
        };
        if !core.engine.connected(core.now, connection, result) {
            core.tcp.close(connection, &mut core.connections);
        }
        self.drain_and_update_sockets();
    }

    /// Turns connections into data connections, sends others to their workers, and relays a bounded amount for all that
    /// are ready.
    pub(super) fn relay_streams(&mut self) {
        while let Some(leaving) = self.core.tcp.next_leaving() {
            self.send_connection(leaving);
        }
        let core = &mut self.core;
        while let Some((connection, path)) = core.tcp.next_binding() {
            let data = core
                .connections
                .take_data(&path, &core.poller, core.now.mono);
            let begun = match data {
                Some((data, kept)) => core.tcp.begin(connection, data, kept, &core.poller),
                None => {
                    core.engine.connection_closed(connection);
                    core.tcp.close(connection, &mut core.connections);
                    continue;
                }
            };
            if let Err(data) = begun {
                core.engine.connection_closed(connection);
                core.connections.end_data(data);
            }
        }
        let ready = core.tcp.take_ready(core.now.mono);
        for connection in &ready {
            let mut meter = Meter {
                engine: &mut core.engine,
                counters: &mut core.counters,
                now: core.now,
                connection: Some(*connection),
            };
            if core.tcp.pump(*connection, core.now.mono, &mut meter) == RelayResult::Over {
                core.tcp.close(*connection, &mut core.connections);
                core.engine.connection_closed(*connection);
            }
        }
        core.tcp.put_back(ready);
        self.relay_forwarded();
    }

    /// Sends a client's connection to the worker that its request names. If there is none, or it cannot take it, the
    /// request is refused here.
    fn send_connection(&mut self, leaving: MovingRequest) {
        let MovingRequest {
            to,
            mut path,
            bytes,
        } = leaving;
        if self.core.mailboxes.predecessor_of(to).is_some()
            && self.take_for_handover(to, &path, &bytes)
        {
            return;
        }
        let core = &mut self.core;
        if core.mailboxes.keeps_up(to) {
            let Some(connection) = core.connections.give(&path, &core.poller) else {
                return;
            };
            let moved = MovedConnection {
                connection,
                bytes: bytes.clone(),
            };
            let message = WorkerMessage::Connection(Box::new(moved));
            let Err(WorkerMessage::Connection(moved)) = core.mailboxes.post(to, message) else {
                return;
            };
            core.counters.mailbox_full += 1;
            match core.connections.receive(moved.connection, &core.poller) {
                Some(here) => path = here,
                None => return,
            }
        }
        if core.mailboxes.has(to) {
            core.engine.connection_not_moved(core.now, &path, &bytes);
        } else {
            core.engine.connection_moved(core.now, &path, &bytes);
        }
        core.connections.release(&path, &core.poller);
        self.drain_and_update_sockets();
    }

    /// Sends a client's connection to the process before this one. Returns `false` if that is impossible.
    fn take_for_handover(&mut self, worker: u16, path: &ClientPath, message: &[u8]) -> bool {
        let core = &mut self.core;
        let Some((connection, rest)) = core.connections.take_for_handover(path, &core.poller)
        else {
            return self.forward(worker, path, message);
        };
        let message = ForeignMessage {
            worker,
            local: path.five_tuple.local,
            remote: path.five_tuple.remote,
            bytes: [message, &rest].concat(),
            connection: Some(connection),
        };
        let predecessor = core.mailboxes.predecessor_of(worker);
        let is_sent = predecessor.is_some_and(|predecessor| predecessor.send(message));
        core.counters.mailbox_full += u64::from(!is_sent);
        true
    }

    /// Another worker's client asks for a connection of this worker.
    pub(super) fn receive_connection(&mut self, moved: MovedConnection) {
        let MovedConnection { connection, bytes } = moved;
        let core = &mut self.core;
        if let Some(path) = core.connections.receive(connection, &core.poller) {
            core.engine.connection_moved(core.now, &path, &bytes);
        }
    }
}
