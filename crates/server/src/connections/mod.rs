//! The TCP and TLS connections of one worker that carry STUN and TURN (RFC 8656 §3.1).
//!
//! ```text
//!  accept ──> first bytes ──> TLS? ──> messages into the arena ──> the worker's session ──> engine
//!                                                                                     │
//!  socket <── one write per connection and wake-up <── chunks (TLS: records) <── queue <┘
//! ```
//!
//! A connection stays with the worker that accepted it. It requires no thread and no task. It holds buffers only for data that waits.

mod arena;
mod connection;
mod counters;
mod data;
mod listener;
mod settings;

pub(crate) use arena::Arena;
pub use counters::{EndReason, StreamCounters};
pub(crate) use data::{DataConnection, MovingConnection};
pub(crate) use listener::{Protocols, StreamListener};
pub use settings::StreamSettings;
pub(crate) use settings::WorkerLimits;
/// Why a TLS connection failed.
pub use streams::tls::Failure as TlsFailure;

use crate::descriptors::ForClients;
use crate::sources::Sources;
use crate::worker::Token;
pub(crate) use connection::Kept;
use connection::{Connection, Outcome, Watching, Written};
use io::{Event, Interest, Poller, TcpConnection};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;
use streams::rustls::ProtocolVersion;
use streams::tls::Failure;
use streams::{Content, Spare};
use timers::Wheel;
use turn::{ClientPath, FiveTuple, ListenerKey, Mono, Transport};

/// The resolution of the timers. Deadlines are seconds, so a coarse one suffices.
const TICK_NS: u64 = 100_000_000;

/// The maximum number of connections accepted per listener and wake-up.
const ACCEPTS: usize = 64;

/// Time for which a listener is not polled after file descriptors or memory have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The maximum number of bytes read per wake-up from a connection that has not had an allocation.
const READ_UNPROVEN: usize = 4 << 10;

/// Time for connections without an allocation per wake-up: to accept them, to make handshakes, to answer. They must not delay datagrams for long. A
/// step that begins within it is completed, and what it uses beyond is missing in the next wake-up.
const UNPROVEN_NS: u64 = 1_000_000;

/// The number of table entries that the search for a connection to evict examines. A full search of many thousands takes too long.
const EVICTION_SAMPLE: usize = 256;

/// The limit on bytes that the kernel holds unsent (TCP_NOTSENT_LOWAT). Further bytes wait in the queue here, which knows their age. Bytes that
/// were sent but not acknowledged do not count.
const UNSENT: u32 = 128 << 10;

/// This bit marks the `ListenerKey` of a connection. The other bits are the index of the connection.
const CONNECTION: u32 = 1 << 31;

/// An index in the table of connections, and the generation that tells successive connections at this index apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Slot {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// [`Connections::give_back`] acts only after a peak of this number of connections: with TLS, about 4 MB.
const MIN_PEAK: usize = 512;

/// The maximum number of timers that one call of [`Connections::expire`] handles.
const EXPIRIES: usize = 64;

/// All connections of a worker.
#[derive(Debug)]
pub(crate) struct Connections {
    listeners: Vec<StreamListener>,
    limits: WorkerLimits,
    table: Vec<Option<Box<Connection>>>,
    free: Vec<u32>,
    /// Counts connections, so that two connections do not have the same token.
    generation: u32,
    open: usize,
    /// The maximum of `open` since the last release of memory.
    peak: usize,
    unproven: usize,
    /// Bytes that wait to be written on all connections.
    queued: usize,
    sources: Sources,
    unproven_sources: Sources,
    descriptors: ForClients,
    timers: Wheel<TICK_NS>,
    /// Connections that have something to write.
    dirty: Vec<Slot>,
    /// Connections whose kept bytes may be handled, and that may be read again.
    resumed: Vec<Slot>,
    /// Connections that end once the bytes in the arena have been handled.
    ending: Vec<(Slot, EndReason, Option<Failure>)>,
    /// Connections whose client asked for a server by its name, for the engine.
    named: Vec<(FiveTuple, Box<str>)>,
    /// 5-tuples of connections that ended, for the engine.
    gone: Vec<FiveTuple>,
    spare: Spare,
    /// A buffer for ciphertext, empty between calls.
    scratch: Vec<u8>,
    /// Index at which the next search for a connection to evict begins.
    cursor: usize,
    /// Time that connections without an allocation have used in this wake-up.
    unproven_ns: u64,
    /// Time at which paused listeners are polled again.
    accept_again: Option<Mono>,
    counters: StreamCounters,
}

impl Connections {
    pub(crate) fn new(listeners: Vec<StreamListener>, limits: WorkerLimits) -> Connections {
        Connections {
            listeners,
            limits,
            table: Vec::new(),
            free: Vec::new(),
            generation: 0,
            open: 0,
            peak: 0,
            unproven: 0,
            queued: 0,
            sources: Sources::new(),
            unproven_sources: Sources::new(),
            descriptors: ForClients::new(),
            timers: Wheel::new(),
            dirty: Vec::new(),
            resumed: Vec::new(),
            ending: Vec::new(),
            named: Vec::new(),
            gone: Vec::new(),
            spare: Spare::default(),
            scratch: Vec::new(),
            cursor: 0,
            unproven_ns: 0,
            accept_again: None,
            counters: StreamCounters::default(),
        }
    }

    /// Whether there is no listener.
    pub(crate) fn is_unused(&self) -> bool {
        self.listeners.is_empty()
    }

    pub(crate) fn set_limits(&mut self, limits: WorkerLimits) {
        self.limits = limits;
    }

    pub(crate) fn counters(&self) -> StreamCounters {
        StreamCounters {
            unproven_now: self.unproven as u64,
            queued_bytes_now: self.queued as u64,
            ..self.counters
        }
    }

    pub(crate) fn watch(&self, poller: &Poller) -> std::io::Result<()> {
        for (number, listener) in (0..).zip(&self.listeners) {
            poller.add(
                &listener.socket,
                Token::Accept(number).as_u64(),
                Interest::Read,
            )?;
        }
        Ok(())
    }

    /// Accepts connections, or leaves them to another process that has the same listeners.
    pub(crate) fn set_listening(&mut self, listens: bool, poller: &Poller) -> std::io::Result<()> {
        self.accept_again = None;
        for listener in &self.listeners {
            // It may have been removed already: when descriptors ran out.
            let _ = poller.remove(&listener.socket);
        }
        if listens {
            self.watch(poller)?;
        }
        Ok(())
    }

    fn get(&mut self, slot: Slot) -> Option<&mut Connection> {
        let connection = self.table.get_mut(slot.index as usize)?.as_deref_mut()?;
        (connection.slot == slot).then_some(connection)
    }

    /// The open connection of a client.
    fn find(&self, path: &ClientPath) -> Option<Slot> {
        let index = path.listener.0.checked_sub(CONNECTION)?;
        let connection = self.table.get(index as usize)?.as_deref()?;
        (connection.path.five_tuple == path.five_tuple).then_some(connection.slot)
    }

    /// Accepts a bounded number of connections, as long as there is time for them.
    pub(crate) fn accept(&mut self, number: u16, poller: &Poller, now: Mono) {
        for _ in 0..ACCEPTS {
            if self.unproven_ns > UNPROVEN_NS {
                return;
            }
            let begun = io::clock::monotonic_ns();
            let more = self.accept_one(number, poller, now);
            self.unproven_ns += io::clock::monotonic_ns() - begun;
            if !more {
                return;
            }
        }
    }

    /// Accepts a connection, if one waits. Returns whether another one may wait.
    fn accept_one(&mut self, number: u16, poller: &Poller, now: Mono) -> bool {
        let Some(listener) = self.listeners.get(usize::from(number)) else {
            return false;
        };
        match listener.socket.accept() {
            Ok((stream, remote)) => self.admit(stream, remote, number, poller, now),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) if is_exhausted(&error) => {
                if !self.evict(None, poller) {
                    self.pause_accepting(number, poller, now);
                    return false;
                }
            }
            // The connection failed before it was accepted.
            Err(_) => {}
        }
        true
    }

    /// Stops polling a listener. A connection still waits, so the poller would report the listener again and again.
    fn pause_accepting(&mut self, number: u16, poller: &Poller, now: Mono) {
        if let Some(listener) = self.listeners.get(usize::from(number))
            && poller.remove(&listener.socket).is_ok()
        {
            self.accept_again = Some(now.plus(ACCEPT_PAUSE));
        }
    }

    fn accept_again(&mut self, poller: &Poller, now: Mono) {
        if self.accept_again.is_some_and(|at| at <= now) {
            self.accept_again = None;
            // The poller rejects listeners that it has already; this is harmless.
            self.listeners
                .iter()
                .enumerate()
                .for_each(|(number, listener)| {
                    let token = Token::Accept(number as u16).as_u64();
                    let _ = poller.add(&listener.socket, token, Interest::Read);
                });
        }
    }

    fn admit(
        &mut self,
        stream: TcpConnection,
        remote: SocketAddr,
        number: u16,
        poller: &Poller,
        now: Mono,
    ) {
        let is_full = |connections: &Connections| {
            connections.open >= connections.limits.connections
                || connections.unproven >= connections.limits.unproven
        };
        let has_descriptor = self.descriptors.may_have(&stream);
        if (is_full(self) || !has_descriptor) && !self.evict(Some(remote), poller) {
            self.counters.refused_limit += 1;
            return;
        }
        let Some(listener) = self.listeners.get(usize::from(number)) else {
            return;
        };
        let is_proxied = listener.is_proxy(remote);
        // A load balancer forwards connections of many sources. `follow_source` applies the limit once the client's address is known.
        let most = if is_proxied {
            usize::MAX
        } else {
            self.limits.per_source
        };
        if !self.sources.enter(remote, most) {
            self.counters.refused_source += 1;
            return;
        }
        self.unproven_sources.enter(remote, usize::MAX);
        if self
            .enter(stream, remote, number, is_proxied, poller, now)
            .is_none()
        {
            self.sources.leave(remote);
            self.unproven_sources.leave(remote);
            self.counters.refused_limit += 1;
        }
    }

    fn enter(
        &mut self,
        stream: TcpConnection,
        remote: SocketAddr,
        number: u16,
        is_proxied: bool,
        poller: &Poller,
        now: Mono,
    ) -> Option<Slot> {
        let local = stream.local_addr().ok()?;
        self.generation = self.generation.wrapping_add(1);
        let index = self.free.pop();
        let index = index.unwrap_or(u32::try_from(self.table.len()).ok()?);
        let slot = Slot {
            index,
            generation: self.generation,
        };
        let token = Token::Connection(slot).as_u64();
        if index >= Token::MOST_CONNECTIONS || poller.add(&stream, token, Interest::Read).is_err() {
            self.free.push(index);
            return None;
        }
        // Errors are harmless: the first call bounds the kernel's queue, the second detects dead clients sooner.
        let _ = stream.set_unsent_limit(UNSENT);
        let _ = stream.set_user_timeout(self.limits.idle);
        let path = ClientPath {
            five_tuple: FiveTuple {
                transport: Transport::Tcp,
                local,
                remote,
            },
            listener: ListenerKey(CONNECTION | index),
        };
        let mut connection = Connection::new(stream, slot, path, number, is_proxied, now);
        let (deadline, _) = connection.deadline(&self.limits);
        connection.armed = deadline;
        self.timers.set(index, deadline);
        let place = index as usize;
        if place >= self.table.len() {
            self.table.resize_with(place + 1, || None);
        }
        self.table[place] = Some(Box::new(connection));
        self.open += 1;
        self.peak = self.peak.max(self.open);
        self.unproven += 1;
        self.counters.accepted += 1;
        self.counters.tcp_now += 1;
        Some(slot)
    }

    /// Makes room: closes an unproven connection of a source that has more of them than `for_source` has. `None` counts as a source
    /// without connections. Returns whether it has closed one.
    fn evict(&mut self, for_source: Option<SocketAddr>, poller: &Poller) -> bool {
        let Connections {
            table,
            unproven_sources,
            cursor,
            ..
        } = self;
        let mut found: Option<(u32, Slot)> = None;
        for _ in 0..table.len().min(EVICTION_SAMPLE) {
            *cursor = (*cursor + 1) % table.len();
            if let Some(connection) = &table[*cursor]
                && !connection.is_proven
            {
                let count = unproven_sources.count(connection.source);
                if found.is_none_or(|(most, _)| count > most) {
                    found = Some((count, connection.slot));
                }
            }
        }
        let own = for_source.map_or(0, |source| unproven_sources.count(source));
        match found {
            // Never evict for a new connection of a source that has as many itself.
            Some((most, slot)) if most > own => {
                self.close(slot, EndReason::Evicted, None, poller);
                true
            }
            _ => false,
        }
    }

    /// Handles an event of a connection. Adds received data to the arena.
    pub(crate) fn ready(
        &mut self,
        slot: Slot,
        event: Event,
        arena: &mut Arena,
        poller: &Poller,
        now: Mono,
    ) {
        if event.writable {
            self.write(slot, poller, now);
        }
        let Some(connection) = self.get(slot) else {
            return;
        };
        if connection.must_not_read() {
            if event.closed {
                self.close(slot, EndReason::Client, None, poller);
            }
        } else if event.readable || event.closed {
            self.read(slot, arena, poller, now);
        }
    }

    /// Time that connections without an allocation have used in this wake-up.
    pub(crate) fn unproven_ns(&self) -> u64 {
        self.unproven_ns
    }

    /// Reads from the socket once.
    fn read(&mut self, slot: Slot, arena: &mut Arena, poller: &Poller, now: Mono) {
        let defers = self.unproven_ns > UNPROVEN_NS;
        let Some(connection) = self.get(slot) else {
            return;
        };
        let is_unproven = !connection.is_proven;
        if defers && is_unproven {
            // The poller is level-triggered and reports the connection again.
            self.counters.handshakes_deferred += 1;
            return;
        }
        let begun = is_unproven.then(io::clock::monotonic_ns);
        let mut buffer = std::mem::take(&mut arena.received);
        let room = if connection.is_proven {
            buffer.len()
        } else {
            buffer.len().min(READ_UNPROVEN)
        };
        let result = connection.stream.read(&mut buffer[..room]);
        match result {
            Ok(0) => self.close(slot, EndReason::Client, None, poller),
            Ok(bytes) => self.take(slot, &buffer[..bytes], arena, poller, now),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.close(slot, EndReason::Client, None, poller),
        }
        arena.received = buffer;
        if let Some(begun) = begun {
            self.unproven_ns += io::clock::monotonic_ns() - begun;
        }
    }

    fn take(&mut self, slot: Slot, bytes: &[u8], arena: &mut Arena, poller: &Poller, now: Mono) {
        self.counters.received_bytes += bytes.len() as u64;
        let Connections {
            table, listeners, ..
        } = self;
        let Some(Some(connection)) = table.get_mut(slot.index as usize) else {
            return;
        };
        let Some(listener) = listeners.get(usize::from(connection.listener)) else {
            return;
        };
        let was_open = connection.is_open();
        let was_handshaking = !was_open || connection.is_handshaking();
        let waited = connection.waiting();
        let outcome = connection.take(bytes, &listener.protocols, arena, now);
        let waits = connection.waiting();
        self.queued = self.queued + waits - waited;
        if was_handshaking {
            self.note_beginning(slot, was_open);
        }
        match outcome {
            Outcome::Open if self.follow_source(slot) => {
                self.close(slot, EndReason::SourceLimit, None, poller);
            }
            Outcome::Open if waits > 0 => self.mark_dirty(slot),
            Outcome::Open => {}
            // What arrived before the end is handled first.
            Outcome::Ended(reason, failure) => self.ending.push((slot, reason, failure)),
        }
        self.arm(slot);
    }

    /// Closes the connections whose last bytes have been handled.
    pub(crate) fn end(&mut self, poller: &Poller, now: Mono) {
        if self.ending.is_empty() {
            return;
        }
        let begun = io::clock::monotonic_ns();
        while let Some((slot, reason, failure)) = self.ending.pop() {
            if failure.is_none() {
                self.write(slot, poller, now);
            }
            self.close(slot, reason, failure, poller);
        }
        self.unproven_ns += io::clock::monotonic_ns() - begun;
    }

    /// Once the PROXY header has named the client, counts the connection for the client's address and no longer for the load balancer's.
    /// Returns whether the client has too many connections.
    fn follow_source(&mut self, slot: Slot) -> bool {
        let Some(Some(connection)) = self.table.get_mut(slot.index as usize) else {
            return false;
        };
        let client = connection.path.five_tuple.remote;
        if connection.source == client {
            return false;
        }
        let balancer = std::mem::replace(&mut connection.source, client);
        self.sources.leave(balancer);
        let is_full = self.sources.count(client) as usize >= self.limits.per_source;
        self.sources.enter(client, usize::MAX);
        if !connection.is_proven {
            self.unproven_sources.leave(balancer);
            self.unproven_sources.enter(client, usize::MAX);
        }
        is_full
    }

    /// Counts a connection that has turned out to use TLS, and a completed handshake.
    fn note_beginning(&mut self, slot: Slot, was_open: bool) {
        let Some(connection) = self.get(slot) else {
            return;
        };
        let Some(tls) = connection.tls.as_deref() else {
            return;
        };
        let done = (!tls.is_handshaking()).then(|| (tls.version(), tls.is_resumed()));
        let name = tls.server_name().filter(|_| done.is_some());
        let named = name.map(|name| (connection.path.five_tuple, name.into()));
        self.named.extend(named);
        if !was_open {
            self.counters.tcp_now -= 1;
            self.counters.tls_now += 1;
        }
        if let Some((version, is_resumed)) = done {
            match version {
                Some(ProtocolVersion::TLSv1_2) => self.counters.handshakes_tls12 += 1,
                _ => self.counters.handshakes_tls13 += 1,
            }
            self.counters.handshakes_resumed += u64::from(is_resumed);
        }
    }

    /// The client's 5-tuple and listener; `None` if the connection has ended.
    pub(crate) fn path(&mut self, slot: Slot) -> Option<ClientPath> {
        self.get(slot).map(|connection| connection.path)
    }

    /// Checks the first application data of a connection. Returns why the connection must end, if it must.
    pub(crate) fn check_first_bytes(&mut self, slot: Slot, bytes: &[u8]) -> Option<EndReason> {
        self.get(slot)?.check_first_bytes(bytes)
    }

    /// Whether the next message of a connection may be handled now.
    pub(crate) fn may_go_on(&mut self, slot: Slot) -> bool {
        self.get(slot)
            .is_some_and(|connection| !connection.must_not_read())
    }

    /// Keeps the bytes that were not handled.
    pub(crate) fn keep(&mut self, slot: Slot, rest: &[u8], kept: Kept, now: Mono) {
        if let Some(connection) = self.get(slot) {
            connection.keep(rest, kept, now);
            if !rest.is_empty() {
                self.arm(slot);
            }
        }
    }

    pub(crate) fn count_messages(&mut self, messages: usize) {
        self.counters.messages += messages as u64;
    }

    /// Queues one message for a client. `flush` writes the messages of a wake-up together.
    pub(crate) fn queue(
        &mut self,
        path: &ClientPath,
        parts: &[&[u8]],
        content: Content,
        poller: &Poller,
        now: Mono,
    ) {
        let Some(slot) = self.find(path) else {
            self.counters.dropped_gone += 1;
            return;
        };
        let Some(Some(connection)) = self.table.get_mut(slot.index as usize) else {
            return;
        };
        let mut limits = self.limits.write;
        if self.queued > self.limits.queue_bytes_total {
            // Connections that queue more than an equal share lose data first.
            limits.bytes = (self.limits.queue_bytes_total / self.open.max(1)).max(UNSENT as usize);
        }
        let before = connection.unwritten.len();
        let pushed = connection
            .unwritten
            .push(parts, content, now, &limits, &mut self.spare);
        self.queued = self.queued + connection.unwritten.len() - before;
        match pushed {
            Ok(dropped) => {
                self.counters.dropped_bytes += dropped;
                self.mark_dirty(slot);
            }
            Err(streams::Unread) => self.close(slot, EndReason::Unread, None, poller),
        }
    }

    fn mark_dirty(&mut self, slot: Slot) {
        if let Some(connection) = self.get(slot)
            && !std::mem::replace(&mut connection.is_dirty, true)
        {
            self.dirty.push(slot);
        }
    }

    /// Writes to all connections that have something to write.
    pub(crate) fn flush(&mut self, poller: &Poller, now: Mono) {
        if !self.dirty.is_empty() {
            self.write_dirty(poller, now);
        }
        self.unproven_ns = self
            .unproven_ns
            .saturating_sub(UNPROVEN_NS)
            .min(UNPROVEN_NS);
    }

    fn write_dirty(&mut self, poller: &Poller, now: Mono) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for slot in dirty.drain(..) {
            let Some(connection) = self.get(slot) else {
                continue;
            };
            connection.is_dirty = false;
            let begun = (!connection.is_proven).then(io::clock::monotonic_ns);
            // The poller will report when a full socket has room.
            if matches!(connection.watching, Watching::Write | Watching::Both) {
                self.drop_old(slot, now);
            } else {
                self.write(slot, poller, now);
            }
            if let Some(begun) = begun {
                self.unproven_ns += io::clock::monotonic_ns() - begun;
            }
        }
        self.dirty = dirty;
    }

    /// Drops relayed data that waits for longer than the limit.
    fn drop_old(&mut self, slot: Slot, now: Mono) {
        let Some(Some(connection)) = self.table.get_mut(slot.index as usize) else {
            return;
        };
        let before = connection.unwritten.len();
        let age = self.limits.write.age;
        self.counters.dropped_age += connection.unwritten.expire(now, age, &mut self.spare);
        self.queued -= before - connection.unwritten.len();
    }

    fn write(&mut self, slot: Slot, poller: &Poller, now: Mono) {
        if self.get(slot).is_none() {
            return;
        }
        self.drop_old(slot, now);
        let Some(Some(connection)) = self.table.get_mut(slot.index as usize) else {
            return;
        };
        let mut written = Written::default();
        let before = connection.waiting();
        let was_deaf = connection.must_not_read();
        let outcome = connection.write(&mut self.scratch, &mut self.spare, &mut written);
        self.queued = self.queued + connection.waiting() - before;
        self.counters.writes += written.calls;
        self.counters.written_bytes += written.bytes;
        if was_deaf && !connection.must_not_read() {
            self.resumed.push(slot);
        }
        match outcome {
            Outcome::Open => self.update_interest(slot, poller),
            Outcome::Ended(reason, failure) => self.close(slot, reason, failure, poller),
        }
    }

    /// Makes the poller report the readiness that the connection requires now.
    fn update_interest(&mut self, slot: Slot, poller: &Poller) {
        let Some(connection) = self.get(slot) else {
            return;
        };
        let wants = connection.wants();
        if wants == connection.watching {
            return;
        }
        let interest = match wants {
            Watching::Nothing => Interest::Nothing,
            Watching::Read => Interest::Read,
            Watching::Write => Interest::Write,
            Watching::Both => Interest::ReadWrite,
        };
        let token = Token::Connection(slot).as_u64();
        if poller.modify(&connection.stream, token, interest).is_ok() {
            connection.watching = wants;
        }
    }

    /// A request of this client waits for its credentials. The worker reads no more from the connection.
    pub(crate) fn pause(&mut self, path: &ClientPath, poller: &Poller) {
        self.set_paused(path, true, poller);
    }

    /// The request that waited has been handled. The worker reads from the connection again.
    pub(crate) fn resume(&mut self, path: &ClientPath, poller: &Poller) {
        self.set_paused(path, false, poller);
    }

    fn set_paused(&mut self, path: &ClientPath, paused: bool, poller: &Poller) {
        let Some(slot) = self.find(path) else {
            return;
        };
        if let Some(connection) = self.get(slot) {
            connection.is_paused = paused;
            if !paused {
                self.resumed.push(slot);
            }
        }
        self.update_interest(slot, poller);
    }

    /// Moves the kept bytes of connections that may be read again to the arena.
    pub(crate) fn take_resumed(&mut self, arena: &mut Arena, poller: &Poller) {
        while let Some(slot) = self.resumed.pop() {
            if let Some(connection) = self
                .get(slot)
                .filter(|connection| !connection.must_not_read())
            {
                connection.resume(arena);
                self.update_interest(slot, poller);
            }
        }
    }

    /// Records that this client has had an allocation.
    pub(crate) fn prove(&mut self, path: &ClientPath) {
        let Some(slot) = self.find(path) else {
            return;
        };
        if let Some(connection) = self.get(slot)
            && !std::mem::replace(&mut connection.is_proven, true)
        {
            let source = connection.source;
            self.unproven -= 1;
            self.unproven_sources.leave(source);
        }
    }

    /// Closes a connection and counts the reason. `next_ended` reports it to the engine.
    pub(crate) fn close(
        &mut self,
        slot: Slot,
        reason: EndReason,
        failure: Option<Failure>,
        poller: &Poller,
    ) {
        if self.get(slot).is_none() {
            return;
        }
        let Some(mut connection) = self.table[slot.index as usize].take() else {
            return;
        };
        let mut written = Written::default();
        self.queued -= connection.waiting();
        connection.send_close_notify(&mut written);
        connection.unwritten.clear(&mut self.spare);
        self.counters.writes += written.calls;
        self.counters.written_bytes += written.bytes;
        self.free.push(slot.index);
        self.timers.remove(slot.index);
        self.open -= 1;
        self.sources.leave(connection.source);
        if !connection.is_proven {
            self.unproven -= 1;
            self.unproven_sources.leave(connection.source);
        }
        match connection.tls {
            Some(_) => self.counters.tls_now -= 1,
            None => self.counters.tcp_now -= 1,
        }
        self.counters.count_end(reason);
        if let Some(failure) = failure {
            self.counters.count_tls_failure(failure);
        }
        if connection.is_open() {
            self.gone.push(connection.path.five_tuple);
        }
        // Closing the descriptor is not enough if another process holds a copy of it.
        let _ = poller.remove(&connection.stream);
        tracing::debug!(
            client = %connection.path.five_tuple.remote,
            transport = ?connection.path.five_tuple.transport,
            reason = reason.name(),
            failure = failure.map(Failure::name),
            "connection closed"
        );
    }

    /// Closes a connection because of the bytes that it has sent. Responses to the messages before these bytes are written first, because
    /// a client must not lose them only if all came in one segment.
    pub(crate) fn reject(&mut self, slot: Slot, reason: EndReason, poller: &Poller, now: Mono) {
        self.write(slot, poller, now);
        self.close(slot, reason, None, poller);
    }

    /// Tells the engine which clients asked for a server by its name (SNI).
    pub(crate) fn tell_names(&mut self, engine: &mut turn::server::Server) {
        for (five_tuple, name) in self.named.drain(..) {
            engine.set_server_name(&five_tuple, Some(&name));
        }
    }

    /// The next connection that has ended.
    pub(crate) fn next_ended(&mut self) -> Option<FiveTuple> {
        self.gone.pop()
    }

    /// Sets the timer again if the deadline is now earlier.
    fn arm(&mut self, slot: Slot) {
        let Some(Some(connection)) = self.table.get_mut(slot.index as usize) else {
            return;
        };
        let (deadline, _) = connection.deadline(&self.limits);
        // If the deadline is now later, `expire` sets the timer again when it fires.
        if deadline < connection.armed {
            connection.armed = deadline;
            self.timers.set(slot.index, deadline);
        }
    }

    /// Time until the next timer.
    #[inline(never)]
    pub(crate) fn poll_timeout(&self, now: Mono) -> Duration {
        if !self.resumed.is_empty() {
            return Duration::ZERO;
        }
        let deadlines = [self.timers.next_deadline(), self.accept_again];
        let next = deadlines.into_iter().flatten().min();
        next.map_or(Duration::MAX, |deadline| deadline.since(now))
    }

    /// Closes a bounded number of connections whose deadline has passed. A connection with an allocation is not idle.
    pub(crate) fn expire(
        &mut self,
        has_allocation: impl Fn(&FiveTuple) -> bool,
        poller: &Poller,
        now: Mono,
    ) {
        self.accept_again(poller, now);
        for _ in 0..EXPIRIES {
            let Some(index) = self.timers.pop_due(now) else {
                return;
            };
            let Some(Some(connection)) = self.table.get_mut(index as usize) else {
                continue;
            };
            let (mut deadline, reason) = connection.deadline(&self.limits);
            if deadline <= now
                && reason == EndReason::Idle
                && has_allocation(&connection.path.five_tuple)
            {
                deadline = now.plus(self.limits.idle);
            }
            if deadline > now {
                connection.armed = deadline;
                self.timers.set(index, deadline);
            } else {
                let slot = connection.slot;
                self.close(slot, reason, None, poller);
            }
        }
    }

    /// Returns free memory to the system after most of many connections have ended. The allocator kept 39 MB after 5,000 TLS connections.
    pub(crate) fn give_back(&mut self) {
        if self.peak >= MIN_PEAK && self.open * 4 <= self.peak {
            self.peak = self.open;
            io::memory::release_free();
        }
    }

    /// Closes all connections when the worker ends.
    pub(crate) fn close_all(&mut self, poller: &Poller, now: Mono) {
        self.flush(poller, now);
        for index in 0..self.table.len() {
            if let Some(connection) = &self.table[index] {
                let slot = connection.slot;
                self.close(slot, EndReason::Shutdown, None, poller);
            }
        }
    }
}

/// Whether file descriptors or memory have run out.
fn is_exhausted(error: &std::io::Error) -> bool {
    // EMFILE, ENFILE, ENOBUFS, ENOMEM. Not all of them have an `ErrorKind`.
    matches!(error.raw_os_error(), Some(24 | 23 | 105 | 12))
}
