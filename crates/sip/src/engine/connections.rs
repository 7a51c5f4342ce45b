//! The connections of an engine: which to use, to open and to close (RFC 3261 §18).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;

use super::key::{ClientKey, ConnectKey, ServerKey};
use super::output::Mark;
use super::slab::Slab;
use super::store::Cell;
use crate::flow::{ConnectionKey, Destination, Flow, ListenerKey, PeerName, Transport};
use crate::hash::Seeded;
use crate::{HashKey, Mono};

/// Connections being opened at a time.
const MAX_CONNECTING: usize = 1024;
/// Messages that wait for one connection.
const MAX_WAITING: usize = 1024;
/// How often idle connections are looked for.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Addresses that one connection may be an alias for, of each of its names.
const MAX_ALIASES: usize = 4;
/// Names of a certificate that count.
const MAX_NAMES: usize = 16;

/// RFC 3261 §18: a connection is found by the remote address, port and transport. Over TLS the verified name counts,
/// too, so that no request for one domain goes to another domain at the same address (RFC 5923 §9.3).
type Remote = (Transport, SocketAddr, Option<PeerName>);

fn remote_of(to: &Destination) -> Remote {
    let name = to.name.as_ref().filter(|_| to.transport.is_secure());
    (to.transport, to.remote, name.cloned())
}

/// What waits for a connection.
#[derive(Debug)]
pub(super) enum Waiting {
    /// A request, which its transaction keeps.
    Client(ClientKey),
    /// A message that no client transaction keeps: a response, or an ACK.
    Response(Option<ServerKey>, Cell),
    /// A request without a transaction that goes over TCP only because it is large. If no connection can be opened, it
    /// goes over UDP to this destination.
    LargeRequest(Box<Destination>, Cell),
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
    transport: Transport,
    remote: SocketAddr,
    /// The name that it was opened for and that its server has proved.
    name: Option<PeerName>,
    /// The client of an accepted connection, if its certificate was verified.
    client: Option<Box<Client>>,
    /// We opened it, so we close it.
    ours: bool,
    /// The slot of the newest client transaction whose request went over it; the others are a list behind it.
    newest: Option<u32>,
    /// Requests that came by it and have no final response yet.
    unanswered: u32,
    /// The other end sends nothing more: the connection is used for responses only.
    is_half_closed: bool,
    used_at: Mono,
}

/// The other end of an accepted connection, by its certificate.
#[derive(Debug)]
struct Client {
    names: Arc<[PeerName]>,
    /// Further addresses: requests to them go over this connection (RFC 5923).
    aliases: Vec<Remote>,
}

/// The connections of an engine.
#[derive(Debug)]
pub(super) struct Connections {
    open: HashMap<ConnectionKey, Connection, Seeded>,
    by_remote: HashMap<Remote, ConnectionKey, Seeded>,
    connecting: Slab<Connecting>,
    connecting_to: HashMap<(Remote, ListenerKey), ConnectKey, Seeded>,
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
    /// This connection must be opened first.
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

    pub(super) fn all(&self) -> impl Iterator<Item = ConnectionKey> {
        self.open.keys().copied()
    }

    /// Whether a request can go by it and get a response.
    pub(super) fn is_open(&self, key: ConnectionKey) -> bool {
        let connection = self.open.get(&key);
        connection.is_some_and(|connection| !connection.is_half_closed)
    }

    /// Whether a response can go by it.
    pub(super) fn is_writable(&self, key: ConnectionKey) -> bool {
        self.open.contains_key(&key)
    }

    /// Counts a request from this connection that gets its response later.
    pub(super) fn add_unanswered(&mut self, key: ConnectionKey) {
        if let Some(connection) = self.open.get_mut(&key) {
            connection.unanswered += 1;
        }
    }

    /// A request that came by it has its final response, or will have none. Returns whether nothing more is to be done
    /// on the connection: its other end sends nothing more, and this was the last.
    pub(super) fn remove_unanswered(&mut self, key: ConnectionKey) -> bool {
        let Some(connection) = self.open.get_mut(&key) else {
            return false;
        };
        // The connection may have become known, from another worker, when the request was here already.
        connection.unanswered = connection.unanswered.saturating_sub(1);
        connection.is_half_closed && connection.unanswered == 0
    }

    /// The other end sends nothing more. Returns how many responses it still waits for, and the slot of the newest
    /// client transaction whose request went over it.
    pub(super) fn half_close(&mut self, key: ConnectionKey) -> (u32, Option<u32>) {
        let Some(connection) = self.open.get_mut(&key) else {
            return (0, None);
        };
        connection.is_half_closed = true;
        let unanswered = connection.unanswered;
        let newest = connection.newest;
        self.forget_addresses(key);
        (unanswered, newest)
    }

    /// A connection is established. `opened_for`: this side has opened it.
    pub(super) fn add(&mut self, now: Mono, flow: &Flow, opened_for: Option<&Destination>) {
        let Some(key) = flow.connection else { return };
        let ours = opened_for.is_some();
        let name = opened_for.and_then(|to| remote_of(to).2);
        let connection = Connection {
            transport: flow.transport,
            remote: flow.remote,
            name: name.clone(),
            client: None,
            ours,
            newest: None,
            unanswered: 0,
            is_half_closed: false,
            used_at: now,
        };
        if self.open.insert(key, connection).is_none() {
            self.ours += usize::from(ours);
        }
        if ours || flow.transport.is_reused() {
            self.by_remote
                .insert((flow.transport, flow.remote, name), key);
        }
    }

    /// The client of a connection has proved that it has these names.
    pub(super) fn prove(&mut self, key: ConnectionKey, names: &Arc<[PeerName]>) {
        if let Some(connection) = self.open.get_mut(&key).filter(|known| !known.ours) {
            connection.client.get_or_insert_with(|| {
                Box::new(Client {
                    names: Arc::clone(names),
                    aliases: Vec::new(),
                })
            });
        }
    }

    /// What the client of a connection has proved.
    pub(super) fn names(&self, key: ConnectionKey) -> Option<&Arc<[PeerName]>> {
        let client = self.open.get(&key)?.client.as_ref()?;
        Some(&client.names)
    }

    /// What the other end has proved, client or server.
    pub(super) fn proven_names(&self, key: ConnectionKey) -> &[PeerName] {
        let Some(connection) = self.open.get(&key) else {
            return &[];
        };
        match (&connection.client, &connection.name) {
            (Some(client), _) => &client.names,
            (None, Some(name)) => std::slice::from_ref(name),
            (None, None) => &[],
        }
    }

    /// RFC 5923 §8.2: a client asks that requests for this address come over its connection. That holds for the names
    /// that it has proved, so for none without a certificate (§9.2).
    pub(super) fn alias(&mut self, key: ConnectionKey, remote: SocketAddr) {
        let Some(connection) = self.open.get_mut(&key) else {
            return;
        };
        let transport = connection.transport;
        let Some(client) = &mut connection.client else {
            return;
        };
        let names = Arc::clone(&client.names);
        let most = MAX_ALIASES * names.len().min(MAX_NAMES);
        for name in names.iter().take(MAX_NAMES) {
            let alias = (transport, remote, Some(name.clone()));
            if !client.aliases.contains(&alias) {
                if client.aliases.len() >= most {
                    return;
                }
                client.aliases.push(alias.clone());
            }
            // The latest counts: the one before may be broken without our knowledge.
            self.by_remote.insert(alias, key);
        }
    }

    /// Forgets a connection. Returns the slot of the newest client transaction whose request went over it.
    pub(super) fn remove(&mut self, key: ConnectionKey) -> Option<u32> {
        self.forget_addresses(key);
        let connection = self.open.remove(&key)?;
        self.ours -= usize::from(connection.ours);
        connection.newest
    }

    /// Requests do not find the connection by an address any more.
    fn forget_addresses(&mut self, key: ConnectionKey) {
        let Some(connection) = self.open.get_mut(&key) else {
            return;
        };
        let client = connection.client.as_mut();
        let aliases = client.map(|client| std::mem::take(&mut client.aliases));
        let (transport, remote) = (connection.transport, connection.remote);
        let own = (transport, remote, connection.name.clone());
        for remote in aliases.into_iter().flatten().chain([own]) {
            if self.by_remote.get(&remote) == Some(&key) {
                self.by_remote.remove(&remote);
            }
        }
    }

    /// The client transaction in this slot uses the connection. Returns the slot of the one before it.
    pub(super) fn join(&mut self, now: Mono, key: ConnectionKey, slot: u32) -> Option<u32> {
        let connection = self.open.get_mut(&key)?;
        connection.used_at = now;
        connection.newest.replace(slot)
    }

    /// A client transaction uses the connection no more. If it was the newest, `newest` is the one that now is.
    pub(super) fn leave(&mut self, now: Mono, key: ConnectionKey, newest: Option<Option<u32>>) {
        if let Some(connection) = self.open.get_mut(&key) {
            connection.used_at = now;
            connection.newest = newest.unwrap_or(connection.newest);
        }
    }

    /// Something was received over the connection or sent over it.
    pub(super) fn touch(&mut self, now: Mono, key: ConnectionKey) {
        if let Some(connection) = self.open.get_mut(&key) {
            connection.used_at = now;
        }
    }

    /// How to reach a destination. If there is no connection yet, messages wait.
    pub(super) fn reach(&mut self, to: &Destination, waiting: Waiting) -> Path {
        let remote = remote_of(to);
        if let Some(key) = self.by_remote.get(&remote) {
            return Path::Open(*key, waiting);
        }
        // RFC 5922 §7.3: the server's certificate cannot be checked without a name.
        if to.transport.is_secure() && to.name.is_none() {
            return Path::Refused(waiting);
        }
        let index = (remote, to.listener);
        if let Some(key) = self.connecting_to.get(&index).copied()
            && let Some(connecting) = self.connecting.get(key.slot, key.generation)
        {
            if connecting.waiting.len() >= MAX_WAITING {
                return Path::Refused(waiting);
            }
            connecting.waiting.push(waiting);
            return Path::Waits;
        }
        if self.connecting.len() >= MAX_CONNECTING {
            return Path::Refused(waiting);
        }
        let (slot, generation) = self.connecting.insert(Connecting {
            to: to.clone(),
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
        self.connecting_to.remove(&(remote_of(&to), to.listener));
        Some((to, waiting))
    }

    /// When idle connections are to be looked for.
    pub(super) fn next_sweep(&self) -> Option<Mono> {
        (self.ours > 0).then(|| self.swept_at.plus(SWEEP_INTERVAL))
    }

    /// Our connections that nothing has used for this long.
    pub(super) fn sweep(&mut self, now: Mono, idle: Duration) -> Vec<ConnectionKey> {
        if self.next_sweep().is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.swept_at = now;
        let is_idle = |connection: &Connection| {
            connection.ours && connection.newest.is_none() && now.since(connection.used_at) >= idle
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
