//! Connections over TLS and WebSocket: converts received bytes to messages.

use super::connections::DisconnectReason;
use super::layers::{Layers, NodeFailure, NodeSide, WebSocketState, accept_rules, message_limits};
use super::outgoing::slot_of;
use super::reading::{flow_of, now};
use super::token::Slot;
use super::{BATCH_MESSAGES, Sip};
use io::Poller;
use sip::flow::{Flow, PeerName, Transport};
use sip::frame::{PONG, Packet};
use streams::tls::TlsError;
use streams::websocket::{CloseCode, End, Event, WebSocket};

/// The time for TLS handshakes per wake-up, so that many of them do not delay other messages for long. The last one may
/// exceed it.
const MAX_HANDSHAKES_NS: u64 = 1_000_000;

/// The maximum of memory that the buffer for decrypted bytes keeps.
const MAX_PLAINTEXT_BYTES: usize = 128 << 10;

/// RFC 8446 §5.1: the type of the record that TLS begins with.
const HANDSHAKE_RECORD: u8 = 22;

/// A ping of RFC 5626 §3.5.1, as a WebSocket's message.
const PING: &[u8] = b"\r\n\r\n";

impl Sip {
    /// Whether handshakes have used their time of this wake-up. Then the poller reports the connection again.
    pub(super) fn defers(&mut self, slot: Slot) -> bool {
        let defers = self.handshakes_ns > MAX_HANDSHAKES_NS
            && (self.is_handshaking(slot) || self.may_begin_node_tls(slot));
        self.endpoint.counters.tls_deferred += u64::from(defers);
        defers
    }

    fn is_handshaking(&mut self, slot: Slot) -> bool {
        self.connections
            .get(slot)
            .is_some_and(|connection| connection.layers.is_handshaking())
    }

    /// Whether the first bytes of a connection may be those of a handshake between nodes.
    fn may_begin_node_tls(&mut self, slot: Slot) -> bool {
        let has_node_tls = self.node_tls.is_some();
        self.connections.get(slot).is_some_and(|connection| {
            has_node_tls
                && connection.transport == Transport::Tcp
                && !connection.proven
                && connection.inbound.is_empty()
        })
    }

    /// Handles bytes of a connection that is not plain TCP.
    pub(super) fn take_layered(
        &mut self,
        bytes: &mut [u8],
        unread: usize,
        flow: &Flow,
        poller: &Poller,
    ) {
        let Some(slot) = flow.connection.map(slot_of) else {
            return;
        };
        if flow.transport == Transport::Ws {
            self.take_websocket(bytes, unread, flow, poller);
        } else {
            let mut plain = std::mem::take(&mut self.plain);
            let was_handshaking = self.is_handshaking(slot);
            let result = self.decrypt(slot, bytes, &mut plain);
            if was_handshaking && !self.is_handshaking(slot) {
                self.handshaken(slot, poller);
            }
            if plain.is_empty() {
                self.restart_message_timer(slot, false);
            } else if flow.transport == Transport::Wss {
                self.take_websocket(&mut plain, unread, flow, poller);
            } else {
                self.take_messages(&plain, unread, flow, poller);
            }
            plain.clear();
            if plain.capacity() <= MAX_PLAINTEXT_BYTES {
                self.plain = plain;
            }
            let counters = &mut self.endpoint.counters;
            match result {
                Some(false) => {}
                // RFC 8446 §6.1: it ends one direction.
                Some(true) => self.end_of_stream(slot, poller),
                None => {
                    // The response of TLS, such as an alert.
                    self.connections.write(slot, poller, counters);
                    self.close(slot, DisconnectReason::Peer);
                }
            }
        }
        self.connections.flush(poller, &mut self.endpoint.counters);
    }

    /// Appends the plaintext. Returns whether the other side has ended the connection; `None` if TLS has failed.
    fn decrypt(&mut self, slot: Slot, bytes: &[u8], plain: &mut Vec<u8>) -> Option<bool> {
        let connection = self.connections.get(slot)?;
        let was_handshaking = connection.layers.is_handshaking();
        let before = was_handshaking.then(io::clock::monotonic_ns);
        let result = connection.decrypt(bytes, plain);
        let is_node_accepted = connection.layers.node_accepted(!plain.is_empty());
        let is_done = was_handshaking && !connection.layers.is_handshaking();
        if let Some(before) = before {
            let ended = io::clock::monotonic_ns();
            self.handshakes_ns += ended - before;
            self.endpoint.congestion.note_other(before, ended);
        }
        self.connections.mark_for_flush(slot);
        let counters = &mut self.endpoint.counters;
        counters.tls_handshakes += u64::from(is_done);
        counters.node_tls_handshakes += u64::from(is_node_accepted);
        counters.tls_failed += u64::from(result.is_err());
        if let Err(error) = &result {
            self.tls_failed(slot, error);
        }
        result.ok()
    }

    /// Logs why TLS has failed. If this server connects to a server that it cannot verify, an administrator must know
    /// it. So this is a warning, at most one per second, because a user may call any domain.
    fn tls_failed(&mut self, slot: Slot, error: &TlsError) {
        let now = self.endpoint.now.mono;
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        if let Some(side) = connection.layers.node {
            return self.node_tls_failed(slot, side, error);
        }
        if connection.connecting.is_none() {
            tracing::debug!(%error, "a TLS connection of SIP failed");
            return;
        }
        self.endpoint.counters.next_hop_tls_failed += 1;
        if now < self.next_hop_line {
            return;
        }
        self.next_hop_line = now.plus_secs(1);
        let name = connection.verifies.as_ref().map_or("", PeerName::as_str);
        tracing::warn!(name, address = %connection.remote, %error, "TLS with a SIP server failed: no request was sent to it");
    }

    /// The same of a connection between two nodes. Each side logs at most one line per second: anybody may connect, and
    /// many calls may fail.
    fn node_tls_failed(&mut self, slot: Slot, side: NodeSide, error: &TlsError) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let address = connection.remote;
        let counters = &mut self.endpoint.counters;
        let line = match side {
            NodeSide::Accepted => &mut self.node_line,
            NodeSide::Connected => &mut self.next_hop_line,
        };
        let failure = NodeFailure::of(side, error, connection.layers.is_node_accepted);
        match failure {
            NodeFailure::Refused => counters.node_tls_refused += 1,
            NodeFailure::RefusedByOther => counters.node_tls_refused_by_other += 1,
            NodeFailure::Other => counters.node_tls_failed += 1,
        }
        let now = self.endpoint.now.mono;
        if now < *line {
            return;
        }
        *line = now.plus_secs(1);
        match (side, failure) {
            (NodeSide::Accepted, NodeFailure::Refused) => {
                tracing::warn!(%address, %error, "refused a TLS connection of a SIP client: no node of the cluster publishes its certificate");
            }
            (NodeSide::Accepted, _) => {
                tracing::debug!(%address, %error, "a TLS connection of another node failed");
            }
            (NodeSide::Connected, NodeFailure::Refused) => {
                tracing::warn!(%address, %error, "refused another node: its certificate differs from the published one; no request was sent to it");
            }
            (NodeSide::Connected, NodeFailure::RefusedByOther) => {
                tracing::warn!(%address, %error, "another node has refused the certificate of this node; no request was sent to it");
            }
            (NodeSide::Connected, _) => {
                tracing::warn!(%address, %error, "TLS with another node failed; no request was sent to it");
            }
        }
    }

    /// Handles bytes of a connection to a plain listener. TLS begins with a handshake record (RFC 8446 §5.1),
    /// which no SIP message does. It is for other nodes only.
    pub(super) fn take_plain(
        &mut self,
        bytes: &mut [u8],
        unread: usize,
        flow: &Flow,
        poller: &Poller,
    ) {
        match self.begin_node_tls(bytes, flow, poller) {
            Some(flow) => self.take_layered(bytes, unread, &flow, poller),
            None => self.take_messages(bytes, unread, flow, poller),
        }
    }

    /// Begins TLS as the server. Returns the flow over TLS; `None` if the connection is not over TLS.
    fn begin_node_tls(&mut self, bytes: &[u8], flow: &Flow, poller: &Poller) -> Option<Flow> {
        if bytes.first() != Some(&HANDSHAKE_RECORD) {
            return None;
        }
        let slot = slot_of(flow.connection?);
        let tls = self.node_tls.as_ref()?;
        let connection = self.connections.get(slot)?;
        // This connection has sent nothing yet.
        if connection.proven || !connection.inbound.is_empty() {
            return None;
        }
        connection.layers = Layers::with_node(NodeSide::Accepted, tls.accepted()?);
        connection.transport = Transport::Tls;
        let (key, flow) = (connection.key, flow_of(connection));
        // For the SIP engine, this connection is TCP. So it must end there before it begins as TLS.
        self.with_outgoing(poller, |endpoint, outgoing| {
            endpoint.engine.disconnected(endpoint.now.mono, key);
            endpoint.drain(outgoing);
        });
        self.announce(slot);
        Some(flow)
    }

    /// Handles bytes of a WebSocket: its handshake, then its frames. `unread` bytes still wait in the socket.
    fn take_websocket(&mut self, bytes: &mut [u8], unread: usize, flow: &Flow, poller: &Poller) {
        let Some(slot) = flow.connection.map(slot_of) else {
            return;
        };
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let Some(mut web) = connection.layers.web.take() else {
            return;
        };
        let used = match &mut web {
            WebSocketState::Open(_) => 0,
            WebSocketState::Accepting(_) => match self.accept_websocket(slot, &mut web, bytes) {
                Some(used) => used,
                None => {
                    let counters = &mut self.endpoint.counters;
                    self.connections.write(slot, poller, counters);
                    return self.close(slot, DisconnectReason::Malformed);
                }
            },
        };
        let mut handled = 0;
        let ended = match &mut web {
            WebSocketState::Accepting(_) => None,
            WebSocketState::Open(socket) => {
                let bytes = &mut bytes[used..];
                self.take_frames(socket, bytes, unread, flow, (&mut handled, poller))
            }
        };
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        connection.layers.web = Some(web);
        match ended {
            None => self.restart_message_timer(slot, handled > 0),
            Some(end) => {
                let is_failed = matches!(end, End::Failed(_));
                self.endpoint.counters.websockets_failed += u64::from(is_failed);
                self.connections
                    .write(slot, poller, &mut self.endpoint.counters);
                let reason = match end {
                    End::Closed(_) => DisconnectReason::Peer,
                    End::Failed(_) => DisconnectReason::Malformed,
                };
                self.close(slot, reason);
            }
        }
    }

    /// Continues a handshake. Returns how many bytes it has used; `None` if it is refused.
    fn accept_websocket(
        &mut self,
        slot: Slot,
        web: &mut WebSocketState,
        bytes: &[u8],
    ) -> Option<usize> {
        let WebSocketState::Accepting(accept) = web else {
            return Some(0);
        };
        let sip_config = &self.endpoint.sip_config;
        let mut response = Vec::new();
        let rules = accept_rules(&sip_config.settings);
        let limits = message_limits(sip_config);
        let (used, result) = accept.receive(bytes, &rules, &mut response);
        let counters = &mut self.endpoint.counters;
        self.connections.queue_raw(slot, &response, counters);
        match result {
            Ok(None) => {}
            Ok(Some(_)) => {
                counters.websockets += 1;
                *web = WebSocketState::Open(Box::new(WebSocket::server(limits)));
            }
            Err(refusal) => {
                counters.websockets_refused += 1;
                tracing::debug!(reason = refusal.name(), "a WebSocket handshake was refused");
                return None;
            }
        }
        Some(used)
    }

    /// Handles the messages in these bytes. Returns how the WebSocket has ended, if it has.
    fn take_frames(
        &mut self,
        socket: &mut WebSocket,
        bytes: &mut [u8],
        unread: usize,
        flow: &Flow,
        (handled, poller): (&mut usize, &Poller),
    ) -> Option<End> {
        let slot = slot_of(flow.connection?);
        let (mut used, mut batch) = (0, 0);
        let mut out = Vec::new();
        let mut ended = None;
        while ended.is_none() && self.connections.get(slot).is_some() {
            if batch == 0 {
                let waits = bytes.len() - used + unread;
                self.endpoint
                    .congestion
                    .note_stream(waits, self.unread_sockets);
                self.endpoint.begin_batch();
            }
            let (length, event) = socket.receive(&mut bytes[used..], &mut out);
            used += length;
            let mut is_refused = false;
            match event {
                Event::Need => break,
                Event::Alive => self.endpoint.counters.pings += 1,
                Event::Ended(end) => ended = Some(end),
                Event::Message { payload, .. } => {
                    is_refused = !self.websocket_message(slot, payload, flow, poller);
                    *handled += 1;
                    batch += 1;
                }
            }
            if is_refused {
                socket.close(CloseCode::Unsupported, "", &mut out);
            }
            if !out.is_empty() {
                let counters = &mut self.endpoint.counters;
                self.connections.queue_raw(slot, &out, counters);
                out.clear();
            }
            if is_refused {
                self.connections
                    .write(slot, poller, &mut self.endpoint.counters);
                self.close(slot, DisconnectReason::Malformed);
            }
            if batch == BATCH_MESSAGES {
                self.end_stream_batch(batch, poller);
                self.endpoint.now = now();
                self.run_due_timers(poller);
                batch = 0;
            }
        }
        self.end_stream_batch(batch, poller);
        if *handled > 0 {
            self.run_due_timers(poller);
        }
        ended
    }

    /// One message of a WebSocket is one message of SIP (RFC 7118 §5), or a ping. `false` if it is neither.
    fn websocket_message(
        &mut self,
        slot: Slot,
        bytes: &[u8],
        flow: &Flow,
        poller: &Poller,
    ) -> bool {
        match Packet::of(bytes) {
            Packet::Sip => {
                self.connections.set_proven(slot);
                self.with_stream(poller, |endpoint, outgoing| {
                    endpoint.stream_message(bytes, flow, outgoing);
                });
                true
            }
            Packet::KeepAlive => {
                let counters = &mut self.endpoint.counters;
                counters.pings += 1;
                if bytes == PING {
                    self.connections.queue(slot, PONG, counters);
                }
                true
            }
            Packet::Stun | Packet::Other => {
                self.endpoint.counters.malformed += 1;
                false
            }
        }
    }
}
