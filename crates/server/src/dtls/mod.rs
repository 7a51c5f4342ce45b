//! The DTLS connections of one worker that carry STUN and TURN (RFC 7350).
//!
//! ```text
//!  UDP listener ──> first byte ──> copy into the arena, decrypt there ──> the worker's session ──> engine
//!                                                                                                   │
//!  UDP listener <── one record per message, encrypted into a buffer of the worker <────────────────┘
//! ```
//!
//! A listener carries DTLS only, or DTLS beside STUN and ChannelData: then the first byte of a datagram selects the
//! protocol (RFC 7983 §7). A connection stays with the worker that received its ClientHello.

mod counters;

pub use ::dtls::{CloseReason, DropReason};
pub use counters::DtlsCounters;

use crate::connections::WorkerLimits;
use ::dtls::{Certificates, Config, CookieKey, Endpoint, Event, Limits, Path, is_dtls};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use turn::{ClientPath, FiveTuple, ListenerKey, Mono, Transport};

/// Application protocols (RFC 7443 §3).
const PROTOCOLS: [&[u8]; 2] = [b"stun.turn", b"stun.nat-discovery"];

/// Length of the buffer for the longest datagram.
const DATAGRAM_BYTES: usize = 1 << 16;

/// Marks the listener key of a DTLS client. No UDP listener has such a number, so a datagram for this client cannot be
/// sent unencrypted by mistake.
const MARK: u32 = 1 << 31;

/// The listener key of a DTLS client.
pub(crate) const fn marked(listener: u32) -> ListenerKey {
    ListenerKey(listener | MARK)
}

/// The path with the key of the UDP listener, for encrypted datagrams.
pub(crate) const fn unmarked(path: &ClientPath) -> ClientPath {
    ClientPath {
        listener: ListenerKey(path.listener.0 & !MARK),
        five_tuple: path.five_tuple,
    }
}

/// The protocols that a UDP listener carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListenerProtocols {
    /// STUN and ChannelData.
    Plain,
    /// DTLS.
    Dtls,
    /// Both.
    Both,
}

/// The data that the endpoints of all workers share.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub(crate) certificates: Arc<dyn Certificates>,
    pub(crate) cookies: CookieKey,
    /// The protocols of each listener.
    pub(crate) carries: Arc<[ListenerProtocols]>,
}

/// Decrypted datagrams whose messages were not handled yet.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    pub(crate) bytes: Vec<u8>,
    pub(crate) messages: Vec<(ClientPath, Range<usize>)>,
}

impl Arena {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.messages.clear();
    }
}

/// The DTLS endpoint of a worker.
#[derive(Debug)]
pub(crate) struct Dtls {
    endpoint: Endpoint,
    shared: Shared,
    pub(crate) arena: Arena,
    sealed: Vec<u8>,
    /// Connections whose client asked for a server by its name.
    named: Vec<(FiveTuple, Box<str>)>,
    /// Connections that have ended.
    ended: Vec<ClientPath>,
    counters: DtlsCounters,
}

fn config(shared: &Shared, limits: &WorkerLimits) -> Arc<Config> {
    let defaults = Limits::default();
    Arc::new(Config {
        certificates: Arc::clone(&shared.certificates),
        protocols: PROTOCOLS.map(<[u8]>::to_vec).to_vec(),
        limits: Limits {
            connections: limits.connections,
            connections_per_source: limits.per_source,
            half_open: defaults.half_open.min(limits.unproven),
            half_open_per_prefix: defaults.half_open_per_prefix.min(limits.unproven),
            handshake_timeout: limits.message_deadline,
            idle_timeout: limits.idle,
            ..defaults
        },
    })
}

impl Dtls {
    pub(crate) fn new(shared: Shared, limits: &WorkerLimits, seed: [u64; 2]) -> Dtls {
        Dtls {
            endpoint: Endpoint::new(config(&shared, limits), shared.cookies.clone(), seed),
            shared,
            arena: Arena::default(),
            sealed: vec![0; DATAGRAM_BYTES],
            named: Vec::new(),
            ended: Vec::new(),
            counters: DtlsCounters::default(),
        }
    }

    pub(crate) fn set_limits(&mut self, limits: &WorkerLimits) {
        self.endpoint.set_config(config(&self.shared, limits));
    }

    /// Whether bytes that a listener received are DTLS.
    pub(crate) fn takes(&self, listener: u32, bytes: &[u8]) -> bool {
        match self.shared.carries.get(listener as usize) {
            Some(ListenerProtocols::Dtls) => true,
            Some(ListenerProtocols::Both) => bytes.first().is_some_and(|&byte| is_dtls(byte)),
            _ => false,
        }
    }

    /// Decrypts a datagram. Adds its messages to the arena.
    pub(crate) fn receive(&mut self, now: Mono, client: &ClientPath, datagram: &[u8]) {
        let start = self.arena.bytes.len();
        self.arena.bytes.extend_from_slice(datagram);
        let path = path_of(client);
        let bytes = &mut self.arena.bytes[start..];
        let mut at = 0;
        while let Some(opened) = self.endpoint.open(now, &path, bytes, at) {
            let message = start + opened.message.start..start + opened.message.end;
            self.counters.messages += 1;
            self.arena.messages.push((*client, message));
            at = opened.end;
        }
    }

    /// Encrypts one message for a client. `None` if the connection has ended or the message is too long.
    pub(crate) fn seal(&mut self, client: &ClientPath, parts: &[&[u8]]) -> Option<&[u8]> {
        let connection = self.endpoint.find(&path_of(client));
        let length = connection
            .and_then(|connection| self.endpoint.seal(connection, parts, &mut self.sealed).ok());
        self.counters.dropped_gone += u64::from(length.is_none());
        Some(&self.sealed[..length?])
    }

    /// Handles timers that are due. A connection with an allocation is not idle.
    pub(crate) fn expire(&mut self, now: Mono, has_allocation: impl Fn(&FiveTuple) -> bool) {
        if self.endpoint.poll_timeout().is_some_and(|due| due <= now) {
            self.endpoint
                .handle_timeout_unless(now, |path| has_allocation(&client_of(path).five_tuple));
        }
    }

    /// Continues handshakes until `is_over` returns true. It does at least one step if one is due.
    pub(crate) fn step(&mut self, now: Mono, is_over: impl Fn() -> bool) {
        while self.endpoint.step(now) && self.endpoint.has_work() {
            if is_over() {
                self.counters.handshakes_deferred += 1;
                return;
            }
        }
    }

    /// The paths of all connections.
    pub(crate) fn paths(&self) -> impl Iterator<Item = ClientPath> {
        self.endpoint.paths().map(|path| client_of(&path))
    }

    /// Whether there is a connection on this path.
    pub(crate) fn has(&self, path: &ClientPath) -> bool {
        path.five_tuple.transport == Transport::Dtls && self.endpoint.find(&path_of(path)).is_some()
    }

    pub(crate) fn has_work(&self) -> bool {
        self.endpoint.has_work()
    }

    pub(crate) fn next_deadline(&self) -> Option<Mono> {
        self.endpoint.poll_timeout()
    }

    /// The next datagram of a handshake, and its destination.
    pub(crate) fn poll_transmit(&mut self) -> Option<(ClientPath, &[u8])> {
        let (path, bytes) = self.endpoint.poll_transmit()?;
        Some((client_of(&path), bytes))
    }

    /// Handles the events of the endpoint about connections.
    fn take_events(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Connected {
                    path,
                    cipher_suite,
                    server_name,
                    ..
                } => {
                    tracing::debug!(client = %path.remote, cipher_suite, "DTLS connected");
                    let named = server_name.map(|name| (client_of(&path).five_tuple, name));
                    self.named.extend(named);
                }
                Event::Closed {
                    path,
                    reason,
                    established,
                    ..
                } => {
                    tracing::debug!(client = %path.remote, %reason, established, "DTLS closed");
                    self.counters.count_end(reason);
                    if established {
                        self.ended.push(client_of(&path));
                    }
                }
            }
        }
    }

    /// Tells the engine which clients asked for a server by its name.
    pub(crate) fn report_server_names(&mut self, engine: &mut turn::server::Server) {
        self.take_events();
        for (five_tuple, name) in self.named.drain(..) {
            engine.set_server_name(&five_tuple, Some(&name));
        }
    }

    /// The next client whose connection has ended.
    pub(crate) fn next_ended(&mut self) -> Option<ClientPath> {
        self.take_events();
        self.ended.pop()
    }

    /// Closes all connections when the server shuts down.
    pub(crate) fn close_all(&mut self, now: Mono) {
        self.endpoint.close_all(now);
    }

    pub(crate) fn counters(&self) -> DtlsCounters {
        let mut counters = self.counters;
        counters.take(&self.endpoint);
        counters
    }
}

fn path_of(client: &ClientPath) -> Path {
    Path {
        listener: unmarked(client).listener.0,
        local: client.five_tuple.local,
        remote: client.five_tuple.remote,
    }
}

fn client_of(path: &Path) -> ClientPath {
    ClientPath {
        five_tuple: five_tuple(path.local, path.remote),
        listener: marked(path.listener),
    }
}

/// The 5-tuple of a DTLS client.
pub(crate) fn five_tuple(local: SocketAddr, remote: SocketAddr) -> FiveTuple {
    FiveTuple {
        transport: Transport::Dtls,
        local,
        remote,
    }
}
