//! TCP allocations (RFC 6062): the connections between relays and peers, and which data connection each is bound to.
//!
//! ```text
//!  Connect ──▶ Dialling ──▶ Unbound ──▶ Bound
//!  a peer connects ───────────▲  30 s    until the allocation or either connection ends
//! ```
//!
//! The engine names connections and decides about them. Their sockets and bytes are the embedder's.

mod bind;
mod connect;
mod end;
mod flow;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::deadlines::Deadlines;
use super::request_context::RequestContext;
use super::slab::Slab;
use crate::random::Random;
use crate::{ConnectionKey, Mono};

pub use connect::ConnectError;
use end::RecheckConnections;

/// How long a Connect request waits for the peer, in seconds. RFC 6062 §5.2: "The timeout value MUST be at least 30
/// seconds".
const CONNECT_S: u64 = 30;

/// How long a connection waits for its ConnectionBind, in seconds (RFC 6062 §5.2, §5.3).
const BIND_S: u64 = 30;

/// How far a connection is.
#[derive(Debug)]
enum Stage {
    /// The embedder dials for this request.
    Dialling(Box<RequestContext>),
    /// It waits for a ConnectionBind.
    Unbound,
    /// It has a data connection.
    Bound(BoundTraffic),
}

/// What a connection and its data connection have relayed.
#[derive(Clone, Copy, Debug)]
pub(super) struct BoundTraffic {
    pub(super) to_peer: u64,
    pub(super) to_client: u64,
    /// Time of the last bytes; until there are any, of the ConnectionBind.
    pub(super) last: Mono,
}

impl BoundTraffic {
    const fn new(now: Mono) -> BoundTraffic {
        BoundTraffic {
            to_peer: 0,
            to_client: 0,
            last: now,
        }
    }
}

/// A connection between a relay and a peer.
#[derive(Debug)]
struct PeerConnection {
    /// The relay's index.
    relay: u32,
    peer: SocketAddr,
    /// CONNECTION-ID; the first byte is the number of this server's worker.
    id: u32,
    /// The client has asked for it; if not, the peer has connected.
    is_dialled: bool,
    stage: Stage,
}

/// All connections to peers.
#[derive(Debug)]
pub(super) struct PeerConnections {
    worker: u8,
    /// Whether the configuration has ever allowed TCP relays.
    was_allowed: bool,
    slab: Slab<PeerConnection>,
    /// RFC 6062 §5.2: a relayed transport address has at most one connection with a peer.
    by_peer: BTreeMap<(u32, SocketAddr), u32>,
    by_id: BTreeMap<u32, u32>,
    /// The relays that are TCP, and how many connections each has.
    relays: BTreeMap<u32, usize>,
    deadlines: Deadlines,
    recheck: Option<RecheckConnections>,
}

impl PeerConnections {
    pub(super) fn new(worker: u8, is_allowed: bool) -> PeerConnections {
        PeerConnections {
            worker,
            was_allowed: is_allowed,
            slab: Slab::new(),
            by_peer: BTreeMap::new(),
            by_id: BTreeMap::new(),
            relays: BTreeMap::new(),
            deadlines: Deadlines::default(),
            recheck: None,
        }
    }

    /// Adds a TCP relay, without connections.
    pub(super) fn add_relay(&mut self, relay: u32) {
        self.relays.insert(relay, 0);
    }

    /// Whether a relay is TCP.
    pub(super) fn has_relay(&self, relay: u32) -> bool {
        self.relays.contains_key(&relay)
    }

    /// The configuration that is valid from now on allows TCP relays, or does not.
    pub(super) fn configure(&mut self, allows: bool) {
        self.was_allowed |= allows;
    }

    /// Whether clients may use the methods of RFC 6062. All engines with the same configuration must agree on it, also
    /// those without TCP allocations. A ConnectionBind request for another engine's connection must not be dropped.
    pub(super) fn is_rfc6062_enabled(&self) -> bool {
        self.was_allowed
    }

    /// How many connections a relay has; `None` if it is not TCP.
    fn count(&self, relay: u32) -> Option<usize> {
        self.relays.get(&relay).copied()
    }

    fn get(&mut self, key: ConnectionKey) -> Option<&mut PeerConnection> {
        self.slab.get_of_generation(key.index, key.generation)
    }

    fn key(&self, index: u32) -> ConnectionKey {
        ConnectionKey {
            index,
            generation: self.slab.generation(index),
        }
    }

    fn insert(
        &mut self,
        relay: u32,
        peer: SocketAddr,
        stage: Stage,
        deadline: Mono,
        random: &mut Random,
    ) -> (ConnectionKey, u32) {
        let id = self.unused_id(random);
        let connection = PeerConnection {
            relay,
            peer,
            id,
            is_dialled: matches!(stage, Stage::Dialling(_)),
            stage,
        };
        let (index, generation) = self.slab.insert(connection);
        self.by_peer.insert((relay, peer), index);
        self.by_id.insert(id, index);
        *self.relays.entry(relay).or_default() += 1;
        self.deadlines.set(index, deadline);
        (ConnectionKey { index, generation }, id)
    }

    /// A CONNECTION-ID that no connection has. There are 2^24, far more than descriptors.
    fn unused_id(&self, random: &mut Random) -> u32 {
        loop {
            let [_, r0, r1, r2, ..] = random.word().to_le_bytes();
            let id = u32::from_be_bytes([self.worker, r0, r1, r2]);
            if !self.by_id.contains_key(&id) {
                return id;
            }
        }
    }

    fn remove(&mut self, index: u32) -> Option<PeerConnection> {
        let connection = self.slab.remove(index)?;
        self.by_peer.remove(&(connection.relay, connection.peer));
        self.by_id.remove(&connection.id);
        self.deadlines.remove(index);
        if let Some(count) = self.relays.get_mut(&connection.relay) {
            *count -= 1;
        }
        Some(connection)
    }

    /// The connections of a relay.
    fn of_relay(&self, relay: u32) -> impl Iterator<Item = u32> {
        let first = (relay, SocketAddr::from(([0, 0, 0, 0], 0)));
        let of_it = self.by_peer.range(first..);
        of_it
            .take_while(move |((of, _), _)| *of == relay)
            .map(|(_, index)| *index)
    }

    /// The peers of a relay's bound connections, and what these have relayed.
    pub(super) fn bound_of_relay(
        &self,
        relay: u32,
    ) -> impl Iterator<Item = (SocketAddr, BoundTraffic)> {
        self.of_relay(relay).filter_map(|index| {
            let connection = self.slab.get(index)?;
            match connection.stage {
                Stage::Bound(traffic) => Some((connection.peer, traffic)),
                Stage::Dialling(_) | Stage::Unbound => None,
            }
        })
    }
}

/// A transport address without flow label and scope, as attributes have it.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}
