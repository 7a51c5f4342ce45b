//! Connections: which there are, which to use, which to open and to close (RFC 3261 §18).

use std::net::SocketAddr;
use std::time::Duration;

use hashbrown::HashMap;

use super::key::{ClientKey, ConnectKey, ServerKey};
use super::output::Mark;
use super::slab::Slab;
use super::store::Cell;
use crate::flow::{Carrier, ConnectionKey, Destination, Flow, ListenerKey};
use crate::hash::Seeded;
use crate::{HashKey, Mono};

/// Connections being opened at a time.
const MOST_CONNECTING: usize = 1024;
/// Messages that wait for one.
const MOST_WAITING: usize = 1024;
/// How often idle connections are looked for.
pub(super) const SWEEP: Duration = Duration::from_secs(10);

/// What waits for a connection.
#[derive(Debug)]
pub(super) enum Waiting {
    /// A request, which its transaction keeps.
    Client(ClientKey),
    /// A message that no client transaction keeps: a response, or an ACK.
    Response(Option<ServerKey>, Cell),
    /// A response on its way to where another one has failed to go.
    Redirected(Mark, Cell),
}

#[derive(Debug)]
struct Connecting {
    to: Destination,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Connection {
    carrier: Carrier,
    remote: SocketAddr,
    /// We opened it, so we close it.
    ours: bool,
    /// Client transactions whose request went over it.
    clients: u32,
    used_at: Mono,
}

/// The connections of an engine.
#[derive(Debug)]
pub(super) struct Connections {
    open: HashMap<ConnectionKey, Connection, Seeded>,
    /// RFC 3261 §18: indexed by address, port and transport at the far end.
    by_remote: HashMap<(Carrier, SocketAddr), ConnectionKey, Seeded>,
    connecting: Slab<Connecting>,
    connecting_to: HashMap<(Carrier, SocketAddr, ListenerKey), ConnectKey, Seeded>,
    ours: usize,
    swept_at: Mono,
}

/// How a message can go to a destination over a stream.
#[derive(Debug)]
pub(super) enum Path {
    /// Over this connection; what would have waited comes back.
    Open(ConnectionKey, Waiting),
    /// A connection is being opened already.
    Waits,
    /// This one must be opened first.
    Opens(ConnectKey),
    /// Too many are being opened, or too much waits for this one; what would have waited comes back.
    Refused(Waiting),
}

impl Connections {
    pub(super) fn new(key: HashKey) -> Connections {
        let seeded = || Seeded::new(key.derive(u64::from_le_bytes(*b"connects")));
        Connections {
            open: HashMap::with_hasher(seeded()),
            by_remote: HashMap::with_hasher(seeded()),
            connecting: Slab::new(),
            connecting_to: HashMap::with_hasher(seeded()),
            ours: 0,
            swept_at: Mono::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn is_open(&self, key: ConnectionKey) -> bool {
        self.open.contains_key(&key)
    }

    /// A connection came to be; `ours` says who opened it.
    pub(super) fn add(&mut self, now: Mono, flow: &Flow, ours: bool) {
        let Some(key) = flow.connection else { return };
        let connection = Connection {
            carrier: flow.carrier,
            remote: flow.remote,
            ours,
            clients: 0,
            used_at: now,
        };
        if self.open.insert(key, connection).is_none() {
            self.ours += usize::from(ours);
        }
        if ours || flow.carrier.is_reused() {
            self.by_remote.insert((flow.carrier, flow.remote), key);
        }
    }

    /// Forgets a connection; says whether requests were sent over it.
    pub(super) fn remove(&mut self, key: ConnectionKey) -> bool {
        let Some(connection) = self.open.remove(&key) else {
            return false;
        };
        self.ours -= usize::from(connection.ours);
        let index = (connection.carrier, connection.remote);
        if self.by_remote.get(&index) == Some(&key) {
            self.by_remote.remove(&index);
        }
        connection.clients > 0
    }

    /// A client transaction uses the connection, or does not any more.
    pub(super) fn count_client(&mut self, now: Mono, key: ConnectionKey, begins: bool) {
        if let Some(connection) = self.open.get_mut(&key) {
            connection.used_at = now;
            connection.clients = if begins {
                connection.clients + 1
            } else {
                connection.clients.saturating_sub(1)
            };
        }
    }

    /// Something was received over the connection or sent over it.
    pub(super) fn touch(&mut self, now: Mono, key: ConnectionKey) {
        if let Some(connection) = self.open.get_mut(&key) {
            connection.used_at = now;
        }
    }

    /// How to reach a destination; whatever is to be sent waits if there is no connection yet.
    pub(super) fn reach(&mut self, to: Destination, waiting: Waiting) -> Path {
        if let Some(key) = self.by_remote.get(&(to.carrier, to.remote)) {
            return Path::Open(*key, waiting);
        }
        let index = (to.carrier, to.remote, to.listener);
        if let Some(key) = self.connecting_to.get(&index).copied()
            && let Some(connecting) = self.connecting.get(key.slot, key.generation)
        {
            if connecting.waiting.len() >= MOST_WAITING {
                return Path::Refused(waiting);
            }
            connecting.waiting.push(waiting);
            return Path::Waits;
        }
        if self.connecting.len() >= MOST_CONNECTING {
            return Path::Refused(waiting);
        }
        let (slot, generation) = self.connecting.insert(Connecting {
            to,
            waiting: vec![waiting],
        });
        let key = ConnectKey { slot, generation };
        self.connecting_to.insert(index, key);
        Path::Opens(key)
    }

    /// The attempt is over: where to, and what waited for it.
    pub(super) fn take_waiting(&mut self, key: ConnectKey) -> Option<(Destination, Vec<Waiting>)> {
        self.connecting.get(key.slot, key.generation)?;
        let Connecting { to, waiting } = self.connecting.remove(key.slot)?;
        self.connecting_to
            .remove(&(to.carrier, to.remote, to.listener));
        Some((to, waiting))
    }

    /// When idle connections are to be looked for.
    pub(super) fn next_sweep(&self) -> Option<Mono> {
        (self.ours > 0).then(|| self.swept_at.plus(SWEEP))
    }

    /// Our connections that nothing has used for so long.
    pub(super) fn sweep(&mut self, now: Mono, idle: Duration) -> Vec<ConnectionKey> {
        if self.next_sweep().is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.swept_at = now;
        let is_idle = |connection: &Connection| {
            connection.ours && connection.clients == 0 && now.since(connection.used_at) >= idle
        };
        let idle: Vec<ConnectionKey> = self
            .open
            .iter()
            .filter(|(_, connection)| is_idle(connection))
            .map(|(key, _)| *key)
            .collect();
        for key in &idle {
            self.remove(*key);
        }
        idle
    }
}
