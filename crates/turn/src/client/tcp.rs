//! TCP allocations (RFC 6062): connections with peers, and the data connections that carry their bytes.
//!
//! ```text
//!  control connection: Client ── connect_peer ──▶ Event::Connected { id }, or a peer connects: Event::PeerConnected { id }
//!  another connection: data_client ── bind_connection(id) ──▶ Event::ConnectionBound, and from then on bytes as they are
//! ```

use std::net::SocketAddr;

use stun::{ConnectionId, Message, XorPeerAddress};

use super::allocation::RequestedRelays;
use super::data::{Ignored, Received};
use super::error::{RequestError, Timing};
use super::event::Event;
use super::transaction::Operation;
use super::{CallError, Client};
use crate::Now;
use crate::types::attribute::is_known;

impl Client {
    /// Has the server connect to a peer: [`Event::Connected`] or [`Event::ConnectFailed`], after up to 30 seconds. Then
    /// bind a data connection of [`data_client`](Self::data_client) within 30 seconds.
    ///
    /// # Errors
    /// [`CallError::NoAllocation`], [`CallError::NotTcp`], [`CallError::PeerFamily`], and [`CallError::Connecting`], as
    /// RFC 6062 §4.3 allows one request per peer at a time.
    pub fn connect_peer(&mut self, now: Now, peer: SocketAddr) -> Result<(), CallError> {
        self.check_peer(&peer.ip())?;
        if !self.has_tcp_allocation() {
            return Err(CallError::NotTcp);
        }
        let is_it = |operation: &Operation| matches!(operation, Operation::Connect { peer: other } if *other == peer);
        if self.operations().any(is_it) {
            return Err(CallError::Connecting);
        }
        self.waiting.push_back(Operation::Connect { peer });
        self.proceed(now);
        Ok(())
    }

    /// A client for another connection to the same server, which is to become a data connection. It goes on with the
    /// credentials and the nonce of this one. `seed` is as in [`Client::new`].
    #[must_use]
    pub fn data_client(&self, seed: [u8; 32]) -> Client {
        let mut client = Client::new(self.config.clone(), seed);
        client.challenge.clone_from(&self.challenge);
        client
    }

    /// Makes this client's connection the data connection of a connection with a peer: [`Event::ConnectionBound`] or
    /// [`Event::ConnectionBindFailed`]. After the former, nothing is a message any more: what follows the response is
    /// the peer's.
    pub fn bind_connection(&mut self, now: Now, id: ConnectionId) {
        self.waiting.push_back(Operation::ConnectionBind { id });
        self.proceed(now);
    }

    fn has_tcp_allocation(&self) -> bool {
        let allocation = self.allocation.as_ref();
        allocation.is_some_and(|allocation| {
            matches!(allocation.options.relay, RequestedRelays::Tcp { .. })
        })
    }

    /// RFC 6062 §4.4: a peer has connected.
    pub(super) fn receive_connection_attempt(
        &mut self,
        now: Now,
        message: &Message<'_>,
    ) -> Received {
        let peer = message.get::<XorPeerAddress>().ok().flatten();
        let id = message.get::<ConnectionId>().ok().flatten();
        let is_known = message.unknown_required(is_known).next().is_none();
        let (Some(XorPeerAddress(peer)), Some(id), true) = (peer, id, is_known) else {
            return Received::Ignored(Ignored::Malformed);
        };
        if !self.has_tcp_allocation() || !self.permissions.accepts_data_from(&peer.ip(), now.mono) {
            return Received::Ignored(Ignored::NotPermitted);
        }
        self.events.push_back(Event::PeerConnected { peer, id });
        Received::Handled
    }

    /// The server has connected to a peer.
    pub(super) fn connected(
        &mut self,
        now: Now,
        peer: SocketAddr,
        response: &Message<'_>,
        timing: Timing,
    ) {
        match response.get::<ConnectionId>() {
            Ok(Some(id)) => self.events.push_back(Event::Connected { peer, id, timing }),
            _ => self.failed(now, Operation::Connect { peer }, RequestError::Malformed),
        }
    }
}
