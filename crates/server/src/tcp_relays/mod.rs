//! TCP relays of one worker (RFC 6062): their listeners, their connections with peers, and the data connections bound
//! to these.
//!
//! ```text
//!  client ── control connection ──> engine ── Connect ──> dial ─┐
//!  peer ── connects ──> accept ──> engine ── ConnectionAttempt  ├─> waits, unread ── ConnectionBind ──> Relaying
//!  client ── data connection ──> ConnectionBind ──> engine ─────┘
//! ```
//!
//! Nothing is read from a peer before its connection is bound: what it sends waits in the kernel's receive buffer.
//! Sockets of bound connections are watched edge-triggered. A wake-up relays a bounded amount of each.

mod pipes;
mod relaying;

pub(crate) use relaying::{Meter, RelayResult};

use crate::addresses::{RelayAddresses, RelayIndex};
use crate::connections::{Connections, DataConnection};
use crate::descriptors::ForClients;
use crate::worker::Token;
use io::{Event, Interest, Poller, TcpConnection, TcpListener};
use pipes::Pipes;
use relaying::Relaying;
use std::collections::HashMap;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::time::Duration;
use timers::Wheel;
use turn::{ClientPath, ConnectionKey, Mono, RelayKey};

/// The resolution of the timers.
const TICK_NS: u64 = 100_000_000;

/// Connections accepted per relay and wake-up.
pub(crate) const MAX_ACCEPTS: usize = 16;

/// Connections that may wait to be accepted, per relay.
pub(crate) const BACKLOG: u16 = 16;

/// How long a relay accepts no connection after file descriptors or memory have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Timers handled per wake-up.
const MAX_EXPIRIES: usize = 64;

/// A peer that acknowledges nothing for this time counts as lost.
const PEER_TIMEOUT: Duration = Duration::from_secs(60);

/// The socket of one TCP relayed transport address.
#[derive(Debug)]
pub(crate) struct TcpRelay {
    pub(crate) key: RelayKey,
    pub(crate) listener: TcpListener,
    /// Which relay address it is bound to.
    pub(crate) address: RelayIndex,
    /// Its port there.
    pub(crate) port: u16,
}

/// A connection with a peer.
#[derive(Debug)]
struct PeerConnection {
    key: ConnectionKey,
    stream: TcpConnection,
    stage: RelayStage,
    /// It is in [`TcpRelays::ready`].
    is_queued: bool,
}

#[derive(Debug)]
enum RelayStage {
    Dialling,
    /// It waits for its data connection.
    Waiting,
    Relaying(Box<Relaying>),
}

/// What an event of a connection with a peer means, before the connection relays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is nothing to do.
    Nothing,
    /// The connection with the peer is established.
    Connected,
    /// The connection could not be established. It is removed from the table.
    Failed,
    /// The peer has closed the connection before a data connection came. It is removed from the table.
    Closed,
}

/// A request that goes to another worker, with the connection that it came by.
#[derive(Debug)]
pub(crate) struct MovingRequest {
    pub(crate) to: u16,
    pub(crate) path: ClientPath,
    pub(crate) bytes: Box<[u8]>,
}

impl MovingRequest {
    pub(crate) fn new(to: u16, path: ClientPath, bytes: &[u8]) -> MovingRequest {
        MovingRequest {
            to,
            path,
            bytes: bytes.into(),
        }
    }
}

/// The TCP relays of a worker.
#[derive(Debug)]
pub(crate) struct TcpRelays {
    relays: HashMap<RelayKey, TcpRelay>,
    /// By the index of the engine's key.
    table: Vec<Option<Box<PeerConnection>>>,
    timers: Wheel<TICK_NS>,
    /// Connections that may have bytes to relay.
    ready: Vec<ConnectionKey>,
    /// Clients' connections that become data connections after the current batch: see [`TcpRelays::bind_later`].
    binding: Vec<(ConnectionKey, ClientPath)>,
    /// Requests whose connections go to other workers after the current batch: see [`TcpRelays::queue_leaving`].
    leaving: Vec<MovingRequest>,
    pipes: Pipes,
    /// Connections that have a data connection.
    relaying: usize,
    descriptors: ForClients,
    /// When the relays that [`TcpRelays::pause_accepting`] has paused accept connections again.
    accept_again: Option<Mono>,
}

impl TcpRelays {
    pub(crate) fn new() -> TcpRelays {
        TcpRelays {
            relays: HashMap::new(),
            table: Vec::new(),
            timers: Wheel::new(),
            ready: Vec::new(),
            binding: Vec::new(),
            leaving: Vec::new(),
            pipes: Pipes::new(),
            relaying: 0,
            descriptors: ForClients::new(),
            accept_again: None,
        }
    }

    /// How many relays listen.
    pub(crate) fn len(&self) -> usize {
        self.relays.len()
    }

    /// Adds a relay, whose listener the poller reports from now on.
    ///
    /// # Errors
    /// Returns the relay if the poller rejects its listener.
    pub(crate) fn insert(
        &mut self,
        relay: TcpRelay,
        poller: &Poller,
    ) -> std::result::Result<(), TcpRelay> {
        let token = Token::TcpRelay(relay.key).as_u64();
        match poller.add(&relay.listener, token, Interest::Read) {
            Ok(()) => {
                self.relays.insert(relay.key, relay);
                Ok(())
            }
            Err(_) => Err(relay),
        }
    }

    pub(crate) fn remove(&mut self, key: RelayKey) -> Option<TcpRelay> {
        self.relays.remove(&key)
    }

    /// Opens a connection from the address of `relay` to `peer`. A later event has the result: see
    /// [`TcpRelays::peer_ready`].
    pub(crate) fn dial(
        &mut self,
        connection: ConnectionKey,
        (relay, peer): (RelayKey, SocketAddr),
        relays: &RelayAddresses,
        poller: &Poller,
    ) -> Result<()> {
        let from = self.relays.get(&relay).ok_or(ErrorKind::NotFound)?;
        let from = from.listener.local_addr();
        // A relayed address of this server is reached at the address that it is bound to.
        let to = relays
            .listens(peer)
            .map_or(peer, |own| SocketAddr::new(own.local, peer.port()));
        if to == from {
            return Err(ErrorKind::AddrInUse.into());
        }
        let stream = TcpConnection::connect_from(from, to)?;
        self.check_descriptor(&stream)?;
        let token = Token::Peer(connection).as_u64();
        poller.add(&stream, token, Interest::Write)?;
        self.put(connection, stream, RelayStage::Dialling);
        Ok(())
    }

    /// Accepts the next connection of a peer. Returns it with the address of the peer. For a relay of this server, that
    /// is the advertised address.
    pub(crate) fn accept(
        &mut self,
        relay: RelayKey,
        relays: &RelayAddresses,
    ) -> Result<(TcpConnection, SocketAddr)> {
        let relay = self.relays.get(&relay).ok_or(ErrorKind::WouldBlock)?;
        let (stream, from) = relay.listener.accept()?;
        let from = relays
            .listens(from)
            .map_or(from, |own| SocketAddr::new(own.advertised, from.port()));
        self.check_descriptor(&stream)?;
        Ok((stream, from))
    }

    /// Fails as if descriptors had run out, if `stream` has one of the last, which clients do not get.
    fn check_descriptor(&mut self, stream: &TcpConnection) -> Result<()> {
        const EMFILE: i32 = 24;
        match self.descriptors.may_have(stream) {
            true => Ok(()),
            false => Err(Error::from_raw_os_error(EMFILE)),
        }
    }

    /// Keeps a peer's connection until its data connection comes. Returns whether it can be watched.
    pub(crate) fn keep(
        &mut self,
        connection: ConnectionKey,
        stream: TcpConnection,
        poller: &Poller,
    ) -> bool {
        let token = Token::Peer(connection).as_u64();
        let is_watched = poller.add(&stream, token, Interest::Nothing).is_ok();
        if is_watched {
            self.put(connection, stream, RelayStage::Waiting);
        }
        is_watched
    }

    fn put(&mut self, key: ConnectionKey, stream: TcpConnection, stage: RelayStage) {
        // An error is harmless: dead peers are noticed later.
        let _ = stream.set_user_timeout(PEER_TIMEOUT);
        let index = key.index as usize;
        if index >= self.table.len() {
            self.table.resize_with(index + 1, || None);
        }
        self.table[index] = Some(Box::new(PeerConnection {
            key,
            stream,
            stage,
            is_queued: false,
        }));
    }

    fn get(&mut self, key: ConnectionKey) -> Option<&mut PeerConnection> {
        let connection = self.table.get_mut(key.index as usize)?.as_deref_mut()?;
        (connection.key == key).then_some(connection)
    }

    fn take(&mut self, key: ConnectionKey) -> Option<Box<PeerConnection>> {
        self.get(key)?;
        self.table.get_mut(key.index as usize)?.take()
    }

    /// Handles an event of a connection with a peer. Returns what the engine must be told.
    pub(crate) fn peer_ready(&mut self, key: ConnectionKey, event: Event, poller: &Poller) -> Step {
        let Some(connection) = self.get(key) else {
            return Step::Nothing;
        };
        match &mut connection.stage {
            RelayStage::Dialling => {
                let token = Token::Peer(key).as_u64();
                let result = connection.stream.take_error();
                let is_made = result.is_ok() && connection.stream.peer_addr().is_ok();
                if is_made
                    && poller
                        .modify(&connection.stream, token, Interest::Nothing)
                        .is_ok()
                {
                    connection.stage = RelayStage::Waiting;
                    Step::Connected
                } else {
                    self.take(key);
                    Step::Failed
                }
            }
            RelayStage::Waiting => {
                self.take(key);
                Step::Closed
            }
            RelayStage::Relaying(relaying) => {
                relaying.peer_ready(event);
                self.mark_ready(key);
                Step::Nothing
            }
        }
    }

    /// Handles an event of a data connection.
    pub(crate) fn data_ready(&mut self, key: ConnectionKey, event: Event) {
        if let Some(PeerConnection {
            stage: RelayStage::Relaying(relaying),
            ..
        }) = self.get(key)
        {
            relaying.client_ready(event);
            self.mark_ready(key);
        }
    }

    fn mark_ready(&mut self, key: ConnectionKey) {
        if let Some(connection) = self.get(key)
            && !std::mem::replace(&mut connection.is_queued, true)
        {
            self.ready.push(key);
        }
    }

    /// The client's connection becomes the data connection once the current batch is over.
    pub(crate) fn bind_later(&mut self, connection: ConnectionKey, path: ClientPath) {
        self.binding.push((connection, path));
    }

    pub(crate) fn next_binding(&mut self) -> Option<(ConnectionKey, ClientPath)> {
        self.binding.pop()
    }

    /// The client's connection goes to another worker once the current batch is over.
    pub(crate) fn queue_leaving(&mut self, leaving: MovingRequest) {
        self.leaving.push(leaving);
    }

    pub(crate) fn next_leaving(&mut self) -> Option<MovingRequest> {
        self.leaving.pop()
    }

    /// Begins to relay. `kept` has the bytes that the client has sent after its ConnectionBind request.
    ///
    /// # Errors
    /// Returns the data connection if there is no connection with a peer, or the poller rejects one of the two.
    pub(crate) fn begin(
        &mut self,
        key: ConnectionKey,
        data: DataConnection,
        kept: Vec<u8>,
        poller: &Poller,
    ) -> std::result::Result<(), DataConnection> {
        let Some(connection) = self.get(key) else {
            return Err(data);
        };
        let peer = (&connection.stream, Token::Peer(key));
        let client = (data.stream(), Token::Data(key));
        let is_watched = [peer, client].into_iter().all(|(stream, token)| {
            poller
                .modify(stream, token.as_u64(), Interest::Edge)
                .is_ok()
        });
        if !is_watched {
            self.take(key);
            return Err(data);
        }
        connection.stage = RelayStage::Relaying(Box::new(Relaying::new(data, kept)));
        self.relaying += 1;
        self.mark_ready(key);
        Ok(())
    }

    /// Takes the list of connections that may have bytes to relay. The caller calls [`TcpRelays::pump`] for each, and
    /// then returns the list with [`TcpRelays::put_back`].
    pub(crate) fn take_ready(&mut self, now: Mono) -> Vec<ConnectionKey> {
        for _ in 0..MAX_EXPIRIES {
            let Some(index) = self.timers.pop_due(now) else {
                break;
            };
            let connection = self.table.get(index as usize).and_then(Option::as_ref);
            if let Some(key) = connection.map(|connection| connection.key) {
                self.mark_ready(key);
            }
        }
        std::mem::take(&mut self.ready)
    }

    /// Takes the list of [`TcpRelays::take_ready`] back, to use its memory again.
    pub(crate) fn put_back(&mut self, mut list: Vec<ConnectionKey>) {
        list.clear();
        if self.ready.is_empty() {
            self.ready = list;
        }
    }

    /// Relays a bounded number of bytes in both directions, at most as many as `meter` allows. If more can be relayed
    /// at once, or later, the next [`TcpRelays::take_ready`] that is due returns the connection again. After
    /// [`RelayResult::Over`], the caller must call [`TcpRelays::close`].
    pub(crate) fn pump(
        &mut self,
        key: ConnectionKey,
        now: Mono,
        meter: &mut Meter<'_>,
    ) -> RelayResult {
        let Some(Some(connection)) = self.table.get_mut(key.index as usize) else {
            return RelayResult::Idle;
        };
        if connection.key != key {
            return RelayResult::Idle;
        }
        connection.is_queued = false;
        let RelayStage::Relaying(relaying) = &mut connection.stage else {
            return RelayResult::Idle;
        };
        let pumped = relaying.pump(&mut connection.stream, &mut self.pipes, now, meter);
        match pumped {
            RelayResult::More => self.mark_ready(key),
            RelayResult::Until(at) => self.timers.set(key.index, at),
            RelayResult::Idle | RelayResult::Over => {}
        }
        pumped
    }

    /// Closes a connection with a peer, and its data connection.
    pub(crate) fn close(&mut self, key: ConnectionKey, connections: &mut Connections) {
        let Some(connection) = self.take(key) else {
            return;
        };
        self.timers.remove(key.index);
        if let RelayStage::Relaying(relaying) = connection.stage {
            connections.end_data(relaying.close(&mut self.pipes));
            self.relaying -= 1;
            if self.relaying == 0 {
                self.pipes.release_memory();
            }
        }
    }

    /// Stops polling a relay for [`ACCEPT_PAUSE`], because descriptors or memory have run out. A connection still
    /// waits, so the poller would report the relay again and again.
    pub(crate) fn pause_accepting(&mut self, relay: RelayKey, poller: &Poller, now: Mono) {
        if let Some(relay) = self.relays.get(&relay)
            && poller.remove(&relay.listener).is_ok()
        {
            self.accept_again = Some(now.plus(ACCEPT_PAUSE));
        }
    }

    /// Polls all relays again when the pause of [`TcpRelays::pause_accepting`] is over.
    pub(crate) fn accept_again(&mut self, poller: &Poller, now: Mono) {
        if self.accept_again.is_some_and(|at| at <= now) {
            self.accept_again = None;
            for relay in self.relays.values() {
                // The poller rejects relays that it has already; this is harmless.
                let token = Token::TcpRelay(relay.key).as_u64();
                let _ = poller.add(&relay.listener, token, Interest::Read);
            }
        }
    }

    /// Time until the next timer.
    pub(crate) fn poll_timeout(&self, now: Mono) -> Duration {
        if !self.ready.is_empty() {
            return Duration::ZERO;
        }
        let deadlines = [self.timers.next_deadline(), self.accept_again];
        let next = deadlines.into_iter().flatten().min();
        next.map_or(Duration::MAX, |deadline| deadline.since(now))
    }
}

/// Whether file descriptors or memory have run out.
pub(crate) fn is_exhausted(error: &Error) -> bool {
    // EMFILE, ENFILE, ENOBUFS, ENOMEM. Not all of them have an `ErrorKind`.
    matches!(error.raw_os_error(), Some(24 | 23 | 105 | 12))
}
