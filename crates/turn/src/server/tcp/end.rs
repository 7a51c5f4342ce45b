//! The ends of connections to peers: by a timer, with their relay, by either side, and by a change of the policy.

use stun::ErrorCode;

use super::super::Server;
use super::super::outputs::{ConnectionStep, Queued};
use super::super::policy::{PeerClass, class_of_address, class_of_connection};
use super::super::relay::Relay;
use super::{PeerConnection, Stage};
use crate::{ConnectionKey, Mono, Now};

/// Connections that one call of `handle_timeout` ends or judges, so that a wave does not hold up the worker's
/// datagrams.
const PER_CALL: u32 = 64;

/// The connections from `next` on are to be judged by the policy again.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecheckConnections {
    next: u32,
    since: Mono,
}

impl Server {
    /// Either connection of a pair has ended, or a connection that no data connection is bound to. Returns `false` if
    /// it is not known (any more). No [`Output::CloseConnection`](super::super::Output::CloseConnection) follows.
    pub fn connection_closed(&mut self, connection: ConnectionKey) -> bool {
        let is_known = self.tcp.get(connection).is_some();
        if is_known {
            self.forget_connection(connection.index);
        }
        is_known
    }

    /// When the next timer of a connection fires.
    pub(in super::super) fn next_connection_deadline(&self) -> Option<Mono> {
        let deadline = self.tcp.deadlines.first().map(|(at, _)| at);
        let recheck = self.tcp.recheck.map(|walk| walk.since);
        deadline.into_iter().chain(recheck).min()
    }

    /// Handles the timers that are due, a bounded number of them.
    pub(in super::super) fn expire_connections(&mut self, now: Now) {
        self.recheck_connections();
        for _ in 0..PER_CALL {
            match self.tcp.deadlines.first() {
                Some((at, index)) if at <= now.mono => self.expire_connection(index),
                _ => break,
            }
        }
    }

    /// RFC 6062 §5.2, §5.3: after 30 seconds, a dial has failed, and a connection without a ConnectionBind is closed.
    fn expire_connection(&mut self, index: u32) {
        let Some(connection) = self.close_connection(index) else {
            return;
        };
        if let Stage::Dialling(context) = connection.stage {
            self.refuse(&context, &ErrorCode::CONNECTION_TIMEOUT_OR_FAILURE.into());
        }
    }

    /// Ends all connections of a relay that is about to end.
    pub(in super::super) fn close_connections_of(&mut self, relay: u32) {
        if !self.tcp.has_relay(relay) {
            return;
        }
        let connections: Vec<u32> = self.tcp.of_relay(relay).collect();
        for index in connections {
            self.close_connection(index);
        }
        self.tcp.relays.remove(&relay);
    }

    /// The policy has changed.
    pub(in super::super) fn start_rechecking(&mut self, now: Now) {
        if !self.tcp.by_id.is_empty() {
            self.tcp.recheck = Some(RecheckConnections {
                next: 0,
                since: now.mono,
            });
        }
    }

    fn recheck_connections(&mut self) {
        let Some(walk) = self.tcp.recheck else {
            return;
        };
        let end = walk.next + PER_CALL;
        for index in walk.next..end {
            if self.is_denied(index) {
                self.expire_connection(index);
            }
        }
        let is_over = end as usize >= self.tcp.slab.slots_end();
        self.tcp.recheck = (!is_over).then_some(RecheckConnections { next: end, ..walk });
    }

    /// Whether the policy denies the peer of a connection now. A peer that has connected may have any port.
    fn is_denied(&self, index: u32) -> bool {
        let Some(connection) = self.tcp.slab.get(index) else {
            return false;
        };
        let live = self.relays.get(connection.relay).and_then(Relay::live);
        let Some(client) = live.and_then(|live| self.clients.get(live.client)) else {
            return false;
        };
        let (policy, identity) = (&*self.config.policy, client.identity().over_tcp());
        let peer = connection.peer;
        let class = if connection.is_dialled {
            class_of_connection(policy, &identity, peer)
        } else {
            class_of_address(policy, &identity, peer.ip())
        };
        class == PeerClass::Denied
    }

    /// Ends a connection, and has the embedder close it.
    fn close_connection(&mut self, index: u32) -> Option<PeerConnection> {
        let key = self.tcp.key(index);
        let connection = self.forget_connection(index)?;
        self.outputs
            .push(Queued::Connection(key, ConnectionStep::Close));
        Some(connection)
    }

    pub(super) fn forget_connection(&mut self, index: u32) -> Option<PeerConnection> {
        let connection = self.tcp.remove(index)?;
        self.stats.peer_connections -= 1;
        if matches!(connection.stage, Stage::Bound(_)) {
            self.stats.data_connections -= 1;
        }
        Some(connection)
    }
}
