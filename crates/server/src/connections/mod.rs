//! The TCP and TLS connections of one worker that carry STUN and TURN (RFC 8656 §3.1).
//!
//! ```text
//!  accept ──> first bytes ──> TLS? ──> messages into the arena ──> the worker's session ──> engine
//!                                                                                     │
//!  socket <── one write per connection and wake-up <── chunks (TLS: records) <── queue <┘
//! ```
//!
//! A connection stays with the worker that accepted it. It costs no thread and no task; while nothing waits, it has no buffers.

mod arena;
mod connection;
mod counters;
mod listener;
mod settings;

pub(crate) use arena::Arena;
pub use counters::{EndReason, StreamCounters};
pub(crate) use listener::{Speaks, StreamListener};
pub use settings::StreamSettings;
pub(crate) use settings::WorkerLimits;
/// Why a TLS connection failed.
pub use streams::tls::Failure as TlsFailure;

use crate::descriptors::ForClients;
use crate::sources::Sources;
use crate::worker::Token;
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

/// A tick of the timers, which are about seconds.
const TICK_NS: u64 = 100_000_000;

/// Connections accepted per listener and wake-up.
const ACCEPTS: usize = 64;

/// How long a listener is left alone when descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bytes read per wake-up from a connection that has had no allocation yet.
const READ_UNPROVEN: usize = 4 << 10;

/// TLS handshakes get so much time per wake-up, so that many of them do not delay datagrams for long. One more may begin before that.
const HANDSHAKES_NS: u64 = 1_000_000;

/// Connections looked at for one to evict. All of them would take too long where there are many thousands.
const EVICTION_SAMPLE: usize = 256;

/// The kernel holds so many bytes that it has not sent yet; what is beyond waits here, where its age is known. A round trip's worth of a fast
/// path is held besides, as sent.
const UNSENT: u32 = 128 << 10;

/// Set in the `ListenerKey` of connections; the rest is the index of the connection.
const CONNECTION: u32 = 1 << 31;

/// A place in the table of connections, and which tenant of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Slot {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// So many connections are a wave: with TLS, some 4 MB.
const WAVE: usize = 512;

/// Timers looked at per call of [`Connections::expire`].
const EXPIRIES: usize = 64;

/// All connections of a worker.
#[derive(Debug)]
pub(crate) struct Connections {
    listeners: Vec<StreamListener>,
    limits: WorkerLimits,
    table: Vec<Option<Box<Connection>>>,
    free: Vec<u32>,
    /// Counts connections, so that no token is ever used twice.
    generation: u32,
    open: usize,
    /// The most that have been open since memory was given back.
    peak: usize,
    unproven: usize,
    /// Bytes that wait on all connections.
    queued: usize,
    sources: Sources,
    unproven_sources: Sources,
    descriptors: ForClients,
    timers: Wheel<TICK_NS>,
    /// Those with something to write.
    dirty: Vec<Slot>,
    /// Those that may be read again, with what was kept.
    resumed: Vec<Slot>,
    /// 5-tuples of connections that ended, for the engine.
    gone: Vec<FiveTuple>,
    spare: Spare,
    /// For ciphertext, empty between calls.
    scratch: Vec<u8>,
    /// Where the next search for a connection to evict begins.
    cursor: usize,
    /// Time that handshakes have taken in this wake-up.
    handshakes_ns: u64,
    /// When listeners are watched again that have been left alone.
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
            gone: Vec::new(),
            spare: Spare::default(),
            scratch: Vec::new(),
            cursor: 0,
            handshakes_ns: 0,
            accept_again: None,
            counters: StreamCounters::default(),
        }
    }

    /// Whether nothing is listened on.
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

    fn get(&mut self, slot: Slot) -> Option<&mut Connection> {
        let connection = self.table.get_mut(slot.index as usize)?.as_deref_mut()?;
        (connection.slot == slot).then_some(connection)
    }

    /// The connection of a client.
    fn find(&self, path: &ClientPath) -> Option<Slot> {
        let index = path.listener.0.checked_sub(CONNECTION)?;
        let connection = self.table.get(index as usize)?.as_deref()?;
        (connection.path.five_tuple == path.five_tuple).then_some(connection.slot)
    }

    /// Accepts what waits, a bounded number.
    pub(crate) fn accept(&mut self, number: u16, poller: &Poller, now: Mono) {
        for _ in 0..ACCEPTS {
            let Some(listener) = self.listeners.get(usize::from(number)) else {
                return;
            };
            match listener.socket.accept() {
                Ok((stream, remote)) => self.admit(stream, remote, number, poller, now),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if is_exhausted(&error) => {
                    if !self.evict(None, poller) {
                        self.pause_accepting(number, poller, now);
                        return;
                    }
                }
                // A connection that broke while it waited.
                Err(_) => {}
            }
        }
    }

    /// The connection still waits: watched any longer, the listener would be reported without end.
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
            // Those that are watched already refuse.
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
        // A load balancer has the connections of many sources.
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
    ) -> Option<()> {
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
        // Both only make the queue shorter and a dead client known sooner.
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
        Some(())
    }

    /// Ends an unproven connection of a source that has many of them, to make room. `None`: for nobody in particular. Returns whether
    /// there is room now.
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
            // The newcomer is of the source that would lose one.
            Some((most, slot)) if most > own => {
                self.close(slot, EndReason::Evicted, None, poller);
                true
            }
            _ => false,
        }
    }

    /// Handles what the poller reports of a connection. Messages that are whole go to the arena.
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
        if connection.is_deaf() {
            if event.closed {
                self.close(slot, EndReason::Client, None, poller);
            }
        } else if event.readable || event.closed {
            self.read(slot, arena, poller, now);
        }
    }

    /// How long TLS handshakes have taken in the wake-up at hand.
    pub(crate) fn handshakes_ns(&self) -> u64 {
        self.handshakes_ns
    }

    /// Reads once.
    fn read(&mut self, slot: Slot, arena: &mut Arena, poller: &Poller, now: Mono) {
        let defers = self.handshakes_ns > HANDSHAKES_NS;
        let Some(connection) = self.get(slot) else {
            return;
        };
        if defers && (!connection.is_open() || connection.is_handshaking()) {
            // The poller reports it again.
            self.counters.handshakes_deferred += 1;
            return;
        }
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
    }

    fn take(&mut self, slot: Slot, bytes: &[u8], arena: &mut Arena, poller: &Poller, now: Mono) {
        self.counters.received_bytes += bytes.len() as u64;
        let Connections {
            table,
            listeners,
            handshakes_ns,
            ..
        } = self;
        let Some(Some(connection)) = table.get_mut(slot.index as usize) else {
            return;
        };
        let Some(listener) = listeners.get(usize::from(connection.listener)) else {
            return;
        };
        let was_open = connection.is_open();
        let was_handshaking = !was_open || connection.is_handshaking();
        let before = was_handshaking.then(io::clock::monotonic_ns);
        let waited = connection.waiting();
        let outcome = connection.take(bytes, &listener.speaks, arena, now);
        if let Some(before) = before {
            *handshakes_ns += io::clock::monotonic_ns() - before;
        }
        let waits = connection.waiting();
        self.queued = self.queued + waits - waited;
        if was_handshaking {
            self.note_beginning(slot, was_open);
        }
        match outcome {
            Outcome::Open if waits > 0 => self.mark_dirty(slot),
            Outcome::Open => {}
            Outcome::Ended(reason, failure) => self.close(slot, reason, failure, poller),
        }
        self.arm(slot);
    }

    /// A connection may have become one of TLS, and its handshake may be over.
    fn note_beginning(&mut self, slot: Slot, was_open: bool) {
        let Some(connection) = self.get(slot) else {
            return;
        };
        let Some(tls) = connection.tls.as_deref() else {
            return;
        };
        let done = (!tls.is_handshaking()).then(|| (tls.version(), tls.is_resumed()));
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

    /// Where the client of received messages is; `None` if the connection has ended since they came.
    pub(crate) fn path(&mut self, slot: Slot) -> Option<ClientPath> {
        self.get(slot).map(|connection| connection.path)
    }

    /// Why the first bytes of a connection end it, if they do.
    pub(crate) fn judge_first(&mut self, slot: Slot, bytes: &[u8]) -> Option<EndReason> {
        self.get(slot)?.judge_first(bytes)
    }

    /// Whether the next message of a connection may be handled now.
    pub(crate) fn may_go_on(&mut self, slot: Slot) -> bool {
        self.get(slot)
            .is_some_and(|connection| !connection.is_deaf())
    }

    /// Keeps the beginning of a message of `need` bytes, or messages that may not be handled now.
    pub(crate) fn keep(&mut self, slot: Slot, rest: &[u8], need: usize, now: Mono) {
        if let Some(connection) = self.get(slot) {
            connection.keep(rest, need, now);
        }
    }

    pub(crate) fn count_messages(&mut self, messages: usize) {
        self.counters.messages += messages as u64;
    }

    /// Queues one message to a client, which is written with the others of this wake-up.
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
            // Whoever has more than a fair share gives way first.
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
        self.handshakes_ns = 0;
        if self.dirty.is_empty() {
            return;
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        for slot in dirty.drain(..) {
            let Some(connection) = self.get(slot) else {
                continue;
            };
            connection.is_dirty = false;
            // One that waits for room is written to when there is.
            if matches!(connection.watching, Watching::Write | Watching::Both) {
                self.drop_old(slot, now);
            } else {
                self.write(slot, poller, now);
            }
        }
        self.dirty = dirty;
    }

    /// Drops relayed data that has waited for too long.
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
        let was_deaf = connection.is_deaf();
        let outcome = connection.write(&mut self.scratch, &mut self.spare, &mut written);
        self.queued = self.queued + connection.waiting() - before;
        self.counters.writes += written.calls;
        self.counters.written_bytes += written.bytes;
        if was_deaf && !connection.is_deaf() {
            self.resumed.push(slot);
        }
        match outcome {
            Outcome::Open => self.update_interest(slot, poller),
            Outcome::Ended(reason, failure) => self.close(slot, reason, failure, poller),
        }
    }

    /// Has the poller report what matters from now on.
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

    /// A request of this client waits for its key: nothing more is read.
    pub(crate) fn pause(&mut self, path: &ClientPath, poller: &Poller) {
        self.set_paused(path, true, poller);
    }

    /// The request that waited has been handled.
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

    /// Hands out what connections have kept that may go on.
    pub(crate) fn take_resumed(&mut self, arena: &mut Arena, poller: &Poller) {
        while let Some(slot) = self.resumed.pop() {
            if let Some(connection) = self.get(slot).filter(|connection| !connection.is_deaf()) {
                connection.resume(arena);
                self.update_interest(slot, poller);
            }
        }
    }

    /// This client has an allocation now.
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

    /// Closes a connection, counts why, and remembers it for the engine.
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
        connection.say_goodbye(&mut written);
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
        // Dropping it would do the same, if nobody else had the descriptor.
        let _ = poller.remove(&connection.stream);
        tracing::debug!(
            client = %connection.path.five_tuple.remote,
            transport = ?connection.path.five_tuple.transport,
            reason = reason.name(),
            failure = failure.map(Failure::name),
            "connection closed"
        );
    }

    /// Closes the connection that these bytes came by.
    pub(crate) fn reject(&mut self, slot: Slot, reason: EndReason, poller: &Poller) {
        self.close(slot, reason, None, poller);
    }

    /// The next connection that has ended.
    pub(crate) fn next_gone(&mut self) -> Option<FiveTuple> {
        self.gone.pop()
    }

    /// Has its timer fire in time for its deadline, which may have come nearer.
    fn arm(&mut self, slot: Slot) {
        let Some(Some(connection)) = self.table.get_mut(slot.index as usize) else {
            return;
        };
        let (deadline, _) = connection.deadline(&self.limits);
        // A deadline that has moved away is looked at when the timer fires.
        if deadline < connection.armed {
            connection.armed = deadline;
            self.timers.set(slot.index, deadline);
        }
    }

    /// Time until something is to be done although nothing comes.
    #[inline(never)]
    pub(crate) fn poll_timeout(&self, now: Mono) -> Duration {
        if !self.resumed.is_empty() {
            return Duration::ZERO;
        }
        let deadlines = [self.timers.next_deadline(), self.accept_again];
        let next = deadlines.into_iter().flatten().min();
        next.map_or(Duration::MAX, |deadline| deadline.since(now))
    }

    /// Closes connections whose time is over, a bounded number. `has_allocation` says which are not idle.
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

    /// Has the allocator return memory to the system after a wave of connections. 5,000 TLS connections left 39 MB with it.
    pub(crate) fn give_back(&mut self) {
        if self.peak >= WAVE && self.open * 4 <= self.peak {
            self.peak = self.open;
            io::memory::release_free();
        }
    }

    /// Closes all of them, at the end of the worker.
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

/// Descriptors or memory have run out.
fn is_exhausted(error: &std::io::Error) -> bool {
    // EMFILE, ENFILE, ENOBUFS, ENOMEM: kinds that std does not name.
    matches!(error.raw_os_error(), Some(24 | 23 | 105 | 12))
}
