//! Connections whose other side has shut down its sending side, as SIPp and `nc -q` do after their last request. They
//! get their responses within a time limit. Then the worker closes them.

use super::Sip;
use super::connection::Ended;
use super::connections::Reason;
use super::outgoing::slot_of;
use super::token::Slot;
use io::Poller;
use std::time::Duration;

/// RFC 3261 §17.1.2.2: within 64*T1, a request has its response or its sender gives up. This worker does not have the
/// responses that other workers still have.
const BY_OTHERS: u32 = 64;

/// A keep-alive, which shows whether the other side still reads.
const PROBE: &[u8] = b"\r\n";

impl Sip {
    /// The other side of a connection sends nothing more. Without responses to wait for, the connection is closed.
    pub(super) fn end_of_stream(&mut self, slot: Slot, poller: &Poller) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        // A WebSocket ends with Close frames (RFC 6455 §7). A client that has sent no message gets no response.
        let is_stream = !connection.transport.is_websocket() && !connection.layers.is_handshaking();
        if !is_stream || !connection.proven || connection.ended.is_some() {
            return self.close(slot, Reason::Peer);
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
            (false, true, _) => settings.t1.saturating_mul(BY_OTHERS).min(settings.idle),
            (false, false, 1..) => settings.message_deadline,
            (false, false, 0) => return self.close(slot, Reason::Peer),
        };
        connection.begun = None;
        connection.ended = Some(Ended {
            until: now.plus(time),
            has_all: !is_missing && !is_shared,
        });
        self.connections.arm(slot, sip_config);
        let counters = &mut self.endpoint.counters;
        // RFC 3261 §7.5: line ends in front of a message are ignored. Whoever does not read any more resets the
        // connection, so that responses find another one in time (§18.2.2).
        if is_missing || is_shared {
            self.connections.queue(slot, PROBE, counters);
        }
        self.connections.write(slot, poller, counters);
    }
}
