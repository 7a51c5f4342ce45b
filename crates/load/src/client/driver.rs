//! The event loop of many clients.

use std::collections::VecDeque;
use std::io as stdio;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use client::{Endpoint, Input};
use io::{
    Datagrams, Events, Flushed, Interest, Poller, RecvBatch, SendOptions, SendQueue, UdpOptions,
    UdpSocket,
};
use turn::client::{Client, ClientConfig, Event, Ignored};
use turn::{Mono, Now};

use super::sender::Sender;
use super::slot::{ClientId, ClientParts, Wheel};
use super::{AddError, Data, DriverStats, Handler};
use crate::ServerAddress;
use crate::gather::Gather;
use crate::socket::{Connection, MAX_READ_BYTES, Socket};

/// Readiness events taken from the kernel at once.
const MAX_EVENTS: usize = 256;

/// How a [`Driver`] works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverOptions {
    /// How the sockets are opened.
    pub socket: UdpOptions,
    /// Messages received before they are handled, 1 to 1,024.
    pub slots: usize,
    /// Bytes for each: [`RecvBatch::SMALL`], or [`RecvBatch::LARGE`] for trains (GRO) and jumbo datagrams.
    pub slot_size: usize,
    /// Datagrams of data that may wait for a flush, and whether equal ones leave as trains (GSO).
    pub send: SendOptions,
}

impl Default for DriverOptions {
    /// Plain sockets, 64 datagrams of up to 2 KiB at once, no trains: what many real clients look like.
    fn default() -> DriverOptions {
        DriverOptions {
            socket: UdpOptions {
                overflow: true,
                ..UdpOptions::default()
            },
            slots: 64,
            slot_size: RecvBatch::SMALL,
            send: SendOptions {
                gso: false,
                ..SendOptions::default()
            },
        }
    }
}

/// Many clients on one thread; see the [module](super).
#[derive(Debug)]
pub struct Driver {
    socket: UdpOptions,
    poller: Poller,
    ready: Events,
    /// Clients and, apart from them so that sending can borrow both, their sockets.
    clients: Vec<Option<Endpoint>>,
    sockets: Vec<Option<Socket>>,
    wheel: Wheel,
    received: RecvBatch,
    queue: SendQueue,
    gather: Gather,
    /// What is read from connections.
    chunk: Box<[u8]>,
    events: VecDeque<(ClientId, Event)>,
    /// Clients that a batch has changed; empty between batches.
    touched: Vec<ClientId>,
    stats: DriverStats,
}

impl Driver {
    /// A driver without clients.
    ///
    /// # Errors
    /// What `epoll_create1` returns.
    pub fn new(options: &DriverOptions) -> stdio::Result<Driver> {
        Ok(Driver {
            socket: options.socket.clone(),
            poller: Poller::new()?,
            ready: Events::with_capacity(MAX_EVENTS),
            clients: Vec::new(),
            sockets: Vec::new(),
            wheel: Wheel::new(),
            received: RecvBatch::new(options.slots, options.slot_size),
            queue: SendQueue::new(&options.send),
            gather: Gather::default(),
            chunk: Box::default(),
            events: VecDeque::new(),
            touched: Vec::new(),
            stats: DriverStats::default(),
        })
    }

    /// Opens a socket on `local` (port 0: any) for a client of `server`. Over TCP and TLS the client's requests wait
    /// for the connection.
    ///
    /// # Errors
    /// [`AddError`].
    pub fn add(
        &mut self,
        local: SocketAddr,
        server: impl Into<ServerAddress>,
        config: Arc<ClientConfig>,
    ) -> Result<ClientId, AddError> {
        let ServerAddress { address, via } = server.into();
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| AddError::Randomness(error.to_string()))?;
        let socket = if via.has_connections() {
            let connection = Connection::open(address, local, &via);
            Socket::Connection(Arc::new(connection.map_err(|source| {
                AddError::Connection {
                    server: address,
                    via: via.clone(),
                    source,
                }
            })?))
        } else {
            let socket = UdpSocket::bind(local, &self.socket);
            Socket::Udp(Arc::new(
                socket.map_err(|source| AddError::Socket { local, source })?,
            ))
        };
        // One configuration serves clients of any transport, so most have the right one already.
        let config = if config.transport == via.transport() {
            config
        } else {
            Arc::new(ClientConfig {
                transport: via.transport(),
                ..(*config).clone()
            })
        };
        self.adopt(ClientParts {
            client: Box::new(Client::new(config, seed)),
            socket,
            server: address,
        })
    }

    /// Takes over a client from elsewhere.
    ///
    /// # Errors
    /// [`AddError::Poll`]; the client is lost then.
    pub fn adopt(&mut self, parts: ClientParts) -> Result<ClientId, AddError> {
        // Each client needs a file descriptor, of which there are fewer than 2^32.
        let id = ClientId(self.clients.len() as u32);
        if let Some(connection) = parts.socket.connection() {
            connection.clear_watched();
            if self.chunk.is_empty() {
                self.chunk = vec![0; MAX_READ_BYTES].into();
            }
        }
        self.poller
            .add(&parts.socket, id.0.into(), Interest::Read)
            .map_err(AddError::Poll)?;
        self.clients
            .push(Some(Endpoint::adopt(parts.server, parts.client)));
        self.sockets.push(Some(parts.socket));
        self.service(id);
        Ok(id)
    }

    /// Passes a client to another owner; events that no handler has seen are lost. `None` if it has left already.
    pub fn release(&mut self, id: ClientId) -> Option<ClientParts> {
        let endpoint = self.clients.get_mut(id.index())?.take()?;
        let socket = self.sockets.get_mut(id.index())?.take()?;
        self.wheel.remove(id.0);
        // It is watched, so this can only fail for lack of memory; its events then find an empty place.
        let _ = self.poller.remove(&socket);
        self.events.retain(|(owner, _)| *owner != id);
        Some(ClientParts {
            server: endpoint.server(),
            client: endpoint.into_client(),
            socket,
        })
    }

    /// How many clients it has had; the next gets this number.
    #[must_use]
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Whether it has never had a client.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// The clients of this driver.
    pub fn ids(&self) -> impl Iterator<Item = ClientId> + '_ {
        let here = self
            .clients
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.is_some());
        here.map(|(index, _)| ClientId(index as u32))
    }

    /// A client, to look at.
    #[must_use]
    pub fn client(&self, id: ClientId) -> Option<&Client> {
        self.clients.get(id.index())?.as_ref().map(Endpoint::client)
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self, id: ClientId) -> Option<&Socket> {
        self.sockets.get(id.index())?.as_ref()
    }

    /// The address its socket is bound to.
    #[must_use]
    pub fn local_addr(&self, id: ClientId) -> Option<SocketAddr> {
        self.sockets
            .get(id.index())?
            .as_ref()
            .map(|socket| socket.local_addr())
    }

    /// Calls a function on a client, and then sends the output of the client. `None` if the client has left.
    pub fn with<R>(&mut self, id: ClientId, call: impl FnOnce(&mut Client, Now) -> R) -> Option<R> {
        let endpoint = self.clients.get_mut(id.index())?.as_mut()?;
        let result = endpoint.with(now(), call);
        self.service(id);
        Some(result)
    }

    /// Begins to send data. Queued data is sent at the latest when the sender is dropped.
    pub fn sender<'a>(&'a mut self) -> Sender<'a> {
        Sender {
            clients: &mut self.clients,
            sockets: &self.sockets,
            outbox: self.queue.start(),
            gather: &mut self.gather,
            now: now(),
        }
    }

    /// What has been seen so far.
    #[must_use]
    pub fn stats(&self) -> &DriverStats {
        &self.stats
    }

    /// What became of the data that was sent so far.
    #[must_use]
    pub fn sent(&self) -> &Flushed {
        self.queue.totals()
    }

    /// Works for `duration`.
    ///
    /// # Errors
    /// What `epoll_wait` returns.
    pub fn run(&mut self, duration: Duration, handler: &mut impl Handler) -> stdio::Result<()> {
        self.run_until(duration, handler, |_, _| false).map(|_| ())
    }

    /// Works until `done` says so, at most for `limit`; returns whether it said so.
    ///
    /// # Errors
    /// What `epoll_wait` returns.
    pub fn run_until<H: Handler>(
        &mut self,
        limit: Duration,
        handler: &mut H,
        mut done: impl FnMut(&Driver, &H) -> bool,
    ) -> stdio::Result<bool> {
        let end = now().mono.plus(limit);
        loop {
            self.dispatch(handler);
            if done(self, handler) {
                return Ok(true);
            }
            if now().mono >= end {
                return Ok(false);
            }
            self.wait(end)?;
            self.receive(handler);
            self.expire();
        }
    }

    /// Waits for datagrams, timers or `end`.
    fn wait(&mut self, end: Mono) -> stdio::Result<()> {
        let until = self
            .wheel
            .next_deadline()
            .map_or(end, |deadline| end.min(deadline));
        self.poller
            .wait(&mut self.ready, Some(until.since(now().mono)))?;
        Ok(())
    }

    fn dispatch(&mut self, handler: &mut impl Handler) {
        while let Some((id, event)) = self.events.pop_front() {
            handler.event(self, id, event);
        }
    }

    /// Reads every ready socket once; what is left in one makes it ready again.
    fn receive(&mut self, handler: &mut impl Handler) {
        for index in 0..self.ready.len() {
            if self.received.is_full() {
                self.digest(handler);
            }
            let Some(token) = self.ready.iter().nth(index).map(|event| event.token) else {
                break;
            };
            match self.sockets.get(token as usize) {
                // Would-block is a false alarm, and any other error concerns a single datagram.
                Some(Some(Socket::Udp(socket))) => _ = socket.recv(token, &mut self.received),
                Some(Some(Socket::Connection(connection))) => {
                    let connection = Arc::clone(connection);
                    self.receive_stream(ClientId(token as u32), &connection, handler);
                }
                _ => {}
            }
        }
        self.digest(handler);
    }

    /// Reads a connection once and hands its messages to the client.
    fn receive_stream(
        &mut self,
        id: ClientId,
        connection: &Connection,
        handler: &mut impl Handler,
    ) {
        let Some(Some(endpoint)) = self.clients.get_mut(id.index()) else {
            return;
        };
        let (now, server, stats) = (now(), endpoint.server(), &mut self.stats);
        let read = connection.read(&mut self.chunk, |message| {
            deliver_one(endpoint, id, server, message, now, handler, stats);
        });
        let done = read.and_then(|()| connection.advance(&self.poller, id.0.into()));
        if let Err(error) = done {
            self.disconnected(id, connection, &error, handler);
        }
        self.service(id);
    }

    /// A client's connection has ended, so what the client waits for fails.
    fn disconnected(
        &mut self,
        id: ClientId,
        connection: &Connection,
        error: &stdio::Error,
        handler: &mut impl Handler,
    ) {
        // It is watched, so this can only fail for lack of memory; its next event then says the same.
        let _ = self.poller.remove(connection);
        handler.disconnected(self, id, error);
        if let Some(Some(endpoint)) = self.clients.get_mut(id.index()) {
            endpoint.with(now(), |client, now| client.handle_unreachable(now));
        }
    }

    /// Hands what was received to its clients.
    fn digest(&mut self, handler: &mut impl Handler) {
        let Driver {
            clients,
            received,
            touched,
            stats,
            ..
        } = self;
        let now = now();
        for datagrams in received.iter() {
            let id = ClientId(datagrams.tag as u32);
            let Some(Some(endpoint)) = clients.get_mut(id.index()) else {
                continue;
            };
            if deliver(endpoint, id, datagrams, now, handler, stats) {
                touched.push(id);
            }
        }
        stats.overflow += received.overflow();
        received.clear();
        while let Some(id) = self.touched.pop() {
            self.service(id);
        }
    }

    fn expire(&mut self) {
        let now = now();
        while let Some(id) = self.wheel.pop_due(now.mono).map(ClientId) {
            if let Some(Some(endpoint)) = self.clients.get_mut(id.index()) {
                endpoint.timeout(now);
            }
            self.service(id);
        }
    }

    /// Restores the invariant after a client has been touched.
    fn service(&mut self, id: ClientId) {
        let (Some(Some(endpoint)), Some(Some(socket))) = (
            self.clients.get_mut(id.index()),
            self.sockets.get(id.index()),
        ) else {
            return;
        };
        let server = endpoint.server();
        let (unsent, events) = (&mut self.stats.unsent, &mut self.events);
        endpoint.drain(
            |request| *unsent += u64::from(socket.send(request, server).is_err()),
            |event| events.push_back((id, event)),
        );
        if let Some(connection) = socket.connection() {
            // If it fails, the next event of the connection says why.
            let _ = connection.advance(&self.poller, id.0.into());
        }
        let deadline = endpoint.deadline().unwrap_or(Mono::NEVER);
        self.wheel.set(id.0, deadline);
    }
}

/// Hands one message (of one or more datagrams) to its client; says whether that may have changed the client.
fn deliver(
    endpoint: &mut Endpoint,
    id: ClientId,
    datagrams: Datagrams<'_>,
    now: Now,
    handler: &mut impl Handler,
    stats: &mut DriverStats,
) -> bool {
    if datagrams.truncated {
        stats.truncated += 1;
        return false;
    }
    let mut touched = false;
    for datagram in datagrams.segments() {
        touched |= deliver_one(endpoint, id, datagrams.from, datagram, now, handler, stats);
    }
    touched
}

/// The same of one datagram, or of one message of a connection.
fn deliver_one(
    endpoint: &mut Endpoint,
    id: ClientId,
    from: SocketAddr,
    datagram: &[u8],
    now: Now,
    handler: &mut impl Handler,
    stats: &mut DriverStats,
) -> bool {
    match endpoint.input(now, from, datagram) {
        Input::Data {
            peer,
            channel,
            payload,
        } => {
            stats.data += 1;
            let payload = &datagram[payload];
            let data = Data {
                peer,
                channel,
                payload,
            };
            handler.data(id, data);
        }
        Input::Handled => {
            stats.handled += 1;
            return true;
        }
        // A response that cannot be trusted ends the request over a stream; over UDP it changes nothing.
        Input::Ignored(Ignored::Malformed | Ignored::Untrusted) => stats.malformed += 1,
        Input::Ignored(_) => stats.ignored += 1,
        Input::NotMine => stats.foreign += 1,
        Input::UnknownSource => stats.strangers += 1,
    }
    false
}

fn now() -> Now {
    Now {
        mono: Mono(io::clock::monotonic_ns()),
        unix_s: io::clock::unix_s(),
    }
}
