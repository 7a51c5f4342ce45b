//! Connections whose other side has shut down its sending side, as SIPp and `nc -q` do after their last request. They
//! get their responses within a time limit. Then the worker closes them.

use super::Sip;
use super::connection::HalfClosed;
use super::connections::DisconnectReason;
use super::outgoing::slot_of;
use super::token::Slot;
use io::Poller;
use std::time::Duration;

/// How long other workers may take for their responses, in multiples of T1. RFC 3261 §17.1.2.2: after 64*T1, the sender
/// of a request does not wait any more.
const RESPONSE_TIMEOUT_T1: u32 = 64;

/// A keep-alive that shows whether the other side still reads.
const KEEP_ALIVE: &[u8] = b"\r\n";

impl Sip {
    /// Handles the end of the bytes from the other side. Closes the connection, unless a response for it is missing.
    pub(super) fn end_of_stream(&mut self, slot: Slot, poller: &Poller) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        // A WebSocket ends with Close frames (RFC 6455 §7). A client that has sent no message gets no response.
        let is_stream = !connection.transport.is_websocket() && !connection.layers.is_handshaking();
        if !is_stream || !connection.proven || connection.ended.is_some() {
            return self.close(slot, DisconnectReason::Peer);
        }
        let (key, is_shared) = (connection.key, connection.is_shared);
        let is_missing = self.with_outgoing(poller, |endpoint, outgoing| {
            let is_missing = endpoint.half_closed(key, is_shared);
            endpoint.drain(outgoing);
            is_missing
        });
        let now = self.endpoint.now.mono;
        let sip_config = &self.endpoint.sip_config;
        let settings = &sip_config.settings;
        let Some(connection) = self.connections.get(slot_of(key)) else {
            return;
        };
        let time: Duration = match (is_missing, is_shared, connection.waiting()) {
            (true, _, _) => settings.idle,
            (false, true, _) => settings
                .t1
                .saturating_mul(RESPONSE_TIMEOUT_T1)
                .min(settings.idle),
            (false, false, 1..) => settings.message_deadline,
            (false, false, 0) => return self.close(slot, DisconnectReason::Peer),
        };
        connection.begun = None;
        connection.ended = Some(HalfClosed {
            until: now.plus(time),
            has_all: !is_missing && !is_shared,
        });
        self.connections.set_timer(slot, sip_config);
        let counters = &mut self.endpoint.counters;
        // RFC 3261 §7.5: line ends in front of a message are ignored. Whoever does not read any more resets the
        // connection, so that responses find another one in time (§18.2.2).
        if is_missing || is_shared {
            self.connections.queue(slot, KEEP_ALIVE, counters);
        }
        self.connections.write(slot, poller, counters);
    }
}
