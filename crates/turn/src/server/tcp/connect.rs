//! Connections to peers: Connect requests (RFC 6062 §5.2), and peers that connect (§5.3).

use std::net::SocketAddr;

use stun::{Builder, Class, ConnectionId, ErrorCode, Message, Method, XorPeerAddress};

use super::super::Server;
use super::super::answer::Refusal;
use super::super::data::live;
use super::super::outputs::{ConnectionStep, Queued};
use super::super::policy::{PeerClass, class_of_address, class_of_connection};
use super::super::request_context::RequestContext;
use super::{BIND_S, CONNECT_S, Stage, plain};
use crate::{ConnectionKey, Now, RelayKey};

/// Bytes of a ConnectionAttempt indication: its header, CONNECTION-ID and XOR-PEER-ADDRESS of an IPv6 peer.
const INDICATION_MAX: usize = stun::HEADER_LEN + 8 + 24;

/// Why the embedder could not connect to a peer: 447 (RFC 6062 §5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection to the peer could not be made")]
pub struct ConnectError;

impl Server {
    /// Has the embedder dial. The response waits for [`connected`](Self::connected).
    pub(in super::super) fn connect(
        &mut self,
        now: Now,
        context: &RequestContext,
        message: &Message<'_>,
        place: u32,
    ) -> Result<(), Refusal> {
        let allocation = self
            .clients
            .allocation(place)
            .ok_or(ErrorCode::ALLOCATION_MISMATCH)?;
        let (v4, v6) = (allocation.v4, allocation.v6);
        // RFC 6062 §5.2: 437 without an allocation. One of UDP has no connections.
        if !allocation.relays().any(|relay| self.tcp.has_relay(relay)) {
            return Err(ErrorCode::ALLOCATION_MISMATCH.into());
        }
        let peer = peer(message)?;
        let relay = if peer.is_ipv4() { v4 } else { v6 };
        let relay = relay.ok_or(ErrorCode::PEER_ADDRESS_FAMILY_MISMATCH)?.get();
        if self.tcp.by_peer.contains_key(&(relay, peer)) {
            return Err(ErrorCode::CONNECTION_ALREADY_EXISTS.into());
        }
        let client = self
            .clients
            .get(place)
            .ok_or(ErrorCode::ALLOCATION_MISMATCH)?;
        let class = class_of_connection(&*self.config.policy, &client.identity().over_tcp(), peer);
        if class == PeerClass::Denied {
            return Err(ErrorCode::FORBIDDEN.into());
        }
        if !self.may_have_connection(relay) {
            return Err(ErrorCode::INSUFFICIENT_CAPACITY.into());
        }
        let stage = Stage::Dialling(Box::new(context.clone()));
        let deadline = now.mono.plus_secs(CONNECT_S);
        let (connection, _) = self
            .tcp
            .insert(relay, peer, stage, deadline, &mut self.random);
        self.stats.peer_connections += 1;
        let relay = self.relay_key(relay);
        let step = ConnectionStep::Connect { relay, peer };
        self.outputs.push(Queued::Connection(connection, step));
        Ok(())
    }

    fn may_have_connection(&self, relay: u32) -> bool {
        let most = self.config.max_peer_connections;
        self.tcp.count(relay).is_some_and(|count| count < most)
    }

    /// The response to [`Output::Connect`](super::super::Output::Connect). Returns `false` if the connection is not
    /// known (any more). Then the embedder closes it.
    pub fn connected(
        &mut self,
        now: Now,
        connection: ConnectionKey,
        result: Result<(), ConnectError>,
    ) -> bool {
        let Some(found) = self.tcp.get(connection) else {
            return false;
        };
        let id = found.id;
        if !matches!(found.stage, Stage::Dialling(_)) {
            return true;
        }
        let Stage::Dialling(context) = std::mem::replace(&mut found.stage, Stage::Unbound) else {
            return true;
        };
        if result.is_err() {
            self.forget_connection(connection.index);
            self.refuse(&context, &ErrorCode::CONNECTION_TIMEOUT_OR_FAILURE.into());
            return true;
        }
        self.stats.peer_connections_opened += 1;
        let deadline = now.mono.plus_secs(BIND_S);
        self.tcp.deadlines.set(connection.index, deadline);
        self.succeed(&context, |message| {
            message.push(&ConnectionId(id)).map(drop)
        });
        true
    }

    /// A peer has connected to a relay. `None` if the embedder is to close the connection at once; otherwise it reads
    /// nothing from it before [`Output::BindConnection`](super::super::Output::BindConnection).
    pub fn peer_connected(
        &mut self,
        now: Now,
        relay: RelayKey,
        peer: SocketAddr,
    ) -> Option<ConnectionKey> {
        let peer = plain(peer);
        let is_admitted = self.admits_connection(now, relay, peer)
            && self.may_have_connection(relay.index)
            && !self.tcp.by_peer.contains_key(&(relay.index, peer));
        if !is_admitted {
            self.stats.peer_connections_refused += 1;
            return None;
        }
        let place = live(&mut self.relays, now, relay).ok()?.client;
        let path = self.clients.get(place)?.path.path();
        let deadline = now.mono.plus_secs(BIND_S);
        let (connection, id) = self.tcp.insert(
            relay.index,
            peer,
            Stage::Unbound,
            deadline,
            &mut self.random,
        );
        self.stats.peer_connections += 1;
        self.stats.peer_connections_opened += 1;
        let transaction = self.random.transaction_id();
        let mut buffer = [0; INDICATION_MAX];
        let indication = Builder::new(
            &mut buffer,
            Class::Indication,
            Method::CONNECTION_ATTEMPT,
            &transaction,
        )
        .and_then(|mut indication| {
            indication
                .push(&ConnectionId(id))?
                .push(&XorPeerAddress(peer))?;
            Ok(indication.finish())
        });
        // It fits: the buffer has room for both attributes.
        if let Ok(indication) = indication {
            self.outputs.send(path, indication);
        }
        Some(connection)
    }

    /// RFC 6062 §5.3: a peer without a permission is refused.
    fn admits_connection(&mut self, now: Now, relay: RelayKey, peer: SocketAddr) -> bool {
        let Ok(live) = live(&mut self.relays, now, relay) else {
            return false;
        };
        let client = live.client;
        let Some(permission) = live.permissions.get(&peer.ip(), now.mono) else {
            return false;
        };
        if permission.policy_epoch == self.policy_epoch {
            return true;
        }
        let is_denied = self.clients.get(client).is_none_or(|client| {
            let policy = &*self.config.policy;
            class_of_address(policy, &client.identity().over_tcp(), peer.ip()) == PeerClass::Denied
        });
        if !is_denied {
            permission.policy_epoch = self.policy_epoch;
        }
        !is_denied
    }
}

/// RFC 6062 §5.2: 400 without a valid XOR-PEER-ADDRESS.
fn peer(message: &Message<'_>) -> Result<SocketAddr, ErrorCode<'static>> {
    let peer = message.get::<XorPeerAddress>();
    let peer = peer.ok().flatten().ok_or(ErrorCode::BAD_REQUEST)?;
    Ok(plain(peer.0))
}
