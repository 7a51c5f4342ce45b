//! The connections of one worker: their table, limits, timers and writes. It writes once per batch to each connection.

use super::connection::{Connection, WatchedEvents, WriteResult, keep_spare};
use super::counters::SipCounters;
use super::layers::Layers;
use super::outgoing::key_of;
use super::settings::SipConfig;
use super::token::{SipToken, Slot};
use crate::descriptors::ForClients;
use crate::sources::Sources;
use crate::worker::Token;
use io::{Interest, Poller, TcpConnection};
use sip::Mono;
use sip::engine::ConnectKey;
use sip::flow::{ConnectionKey, Destination};
use sip::frame::{Framer, Opened};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;
use streams::ChunkPool;
use streams::websocket::CloseCode;
use timers::Wheel;

/// A tick of the timers of connections. Their deadlines are seconds away.
const TICK_NS: u64 = 100_000_000;

/// At most one in this many connections may not have sent a complete message yet. So clients that only connect leave
/// room for others.
const UNPROVEN_DIVISOR: usize = 4;

/// Places of the table that one search for a connection to evict examines. A search in many thousands takes too long.
const EVICTION_SAMPLE: usize = 1024;

/// If a connection is quiet for this time, no message is in transit between client and server.
const QUIET_TIME: Duration = Duration::from_secs(1);

/// Why a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DisconnectReason {
    Peer,
    Idle,
    Slow,
    Malformed,
    Unread,
    /// The network reports that the other side is unreachable.
    Unreachable,
    /// The kernel of this machine has ended it.
    Aborted,
    /// It made room for a connection of another source.
    Evicted,
    /// The server is about to end.
    Drained,
    /// Its load balancer named a client that has too many connections.
    SourceLimit,
    /// Its source is denied or banned.
    Denied,
}

impl DisconnectReason {
    /// Why a system call on a connection has failed.
    pub(crate) fn of(error: &std::io::Error) -> DisconnectReason {
        match error.kind() {
            // TCP_USER_TIMEOUT: the other side acknowledges no written bytes.
            ErrorKind::TimedOut => DisconnectReason::Unread,
            // An ICMP error, no response to ARP or neighbour discovery, or no route. TCP reports it in the end, instead
            // of ETIMEDOUT (RFC 1122 §4.2.3.9).
            // A firewall with IPv6 says "administratively prohibited", which is EACCES.
            ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::PermissionDenied => DisconnectReason::Unreachable,
            // Somebody has ended it on this machine, for example with `ss --kill`.
            ErrorKind::ConnectionAborted => DisconnectReason::Aborted,
            _ => DisconnectReason::Peer,
        }
    }
}

/// All connections of a worker.
#[derive(Debug)]
pub(crate) struct Connections {
    /// The worker that they belong to.
    worker: u16,
    table: Vec<Option<Box<Connection>>>,
    free: Vec<u32>,
    /// The number of the next connection, so that no two connections have the same key.
    generation: u32,
    open: usize,
    half_open: usize,
    sources: Sources,
    /// For each source, the number of its connections that have not sent a complete message.
    half_open_sources: Sources,
    /// Where the next search for a connection to evict begins.
    cursor: usize,
    descriptors: ForClients,
    timers: Wheel<TICK_NS>,
    /// Connections with bytes to write.
    dirty: Vec<Slot>,
    /// Spare buffers for incomplete messages.
    spare: Vec<Vec<u8>>,
    /// Spare buffers for bytes that wait to be written.
    chunks: ChunkPool,
    /// Encrypted bytes until they are written.
    scratch: Vec<u8>,
    /// When this turn of the worker began.
    now: Mono,
    /// Closed connections that the engine is not notified of.
    gone: Vec<ClosedConnection>,
    /// The worker does not read from connections.
    is_paused: bool,
}

/// A connection that was closed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClosedConnection {
    pub(crate) key: ConnectionKey,
    /// The key of the attempt, if the connection was never open.
    pub(crate) attempt: Option<ConnectKey>,
    /// Other workers have its key.
    pub(crate) is_shared: bool,
}

impl Connections {
    pub(crate) fn new(worker: u16) -> Connections {
        Connections {
            worker,
            table: Vec::new(),
            free: Vec::new(),
            generation: 0,
            open: 0,
            half_open: 0,
            sources: Sources::new(),
            half_open_sources: Sources::new(),
            cursor: 0,
            descriptors: ForClients::new(),
            timers: Wheel::new(),
            dirty: Vec::new(),
            spare: Vec::new(),
            chunks: ChunkPool::default(),
            scratch: Vec::new(),
            now: Mono::default(),
            gone: Vec::new(),
            is_paused: false,
        }
    }

    /// Notes the time of a turn of the worker that begins.
    pub(crate) fn begin_turn(&mut self, now: Mono) {
        self.now = now;
    }

    /// The number of open connections.
    pub(crate) fn len(&self) -> usize {
        self.open
    }

    pub(crate) fn get(&mut self, slot: Slot) -> Option<&mut Connection> {
        let connection = self.table.get_mut(slot.index as usize)?.as_deref_mut()?;
        (connection.slot == slot).then_some(connection)
    }

    /// Adds an accepted connection. If there are too many, drops it and returns nothing.
    pub(crate) fn admit(
        &mut self,
        (stream, listener, remote, is_proxied): (TcpConnection, u16, SocketAddr, bool),
        sip_config: &SipConfig,
        poller: &Poller,
        (now, counters): (Mono, &mut SipCounters),
    ) -> Option<Slot> {
        let most = sip_config.share(sip_config.settings.connections);
        // `follow_source` applies the limit to the clients of a load balancer.
        let per_source = match is_proxied {
            true => usize::MAX,
            false => sip_config.share(sip_config.settings.connections_per_source),
        };
        let is_full = self.open >= most.min(SipToken::MAX_CONNECTIONS)
            || self.half_open >= (most / UNPROVEN_DIVISOR).max(1)
            || !self.descriptors.may_have(&stream);
        if is_full && !self.evict(Some(remote), counters) {
            return None;
        }
        if !self.sources.enter(remote, per_source) {
            return None;
        }
        let entered = self.add(stream, listener, remote, sip_config, poller, now);
        if entered.is_none() {
            self.sources.leave(remote);
        }
        entered
    }

    /// Replaces the address of a load balancer by the client's. Returns false if the client has too many connections
    /// already.
    pub(crate) fn follow_source(
        &mut self,
        slot: Slot,
        client: SocketAddr,
        sip_config: &SipConfig,
    ) -> bool {
        let Some(connection) = self.get(slot) else {
            return false;
        };
        let (balancer, is_proven) = (connection.remote, connection.proven);
        let per_source = sip_config.share(sip_config.settings.connections_per_source);
        if !self.sources.enter(client, per_source) {
            return false;
        }
        self.sources.leave(balancer);
        if !is_proven {
            self.half_open_sources.enter(client, usize::MAX);
            self.half_open_sources.leave(balancer);
        }
        if let Some(connection) = self.get(slot) {
            connection.remote = client;
        }
        true
    }

    /// Closes a connection that has not sent a complete message. Its source has more of them than `for_source`; without
    /// `for_source`, any source. Returns whether there was one.
    pub(crate) fn evict(
        &mut self,
        for_source: Option<SocketAddr>,
        counters: &mut SipCounters,
    ) -> bool {
        let mut found: Option<(u32, Slot)> = None;
        for _ in 0..self.table.len().min(EVICTION_SAMPLE) {
            self.cursor = (self.cursor + 1) % self.table.len();
            if let Some(connection) = &self.table[self.cursor]
                && !connection.proven
                && connection.connecting.is_none()
            {
                let count = self.half_open_sources.count(connection.remote);
                if found.is_none_or(|(most, _)| count > most) {
                    found = Some((count, connection.slot));
                }
            }
        }
        let own = for_source.map_or(0, |source| self.half_open_sources.count(source));
        match found {
            // A source does not evict its own connections.
            Some((most, slot)) if most > own => {
                self.close(slot, DisconnectReason::Evicted, counters);
                true
            }
            _ => false,
        }
    }

    /// Begins a connection to another element, because no open one can carry a message.
    pub(crate) fn connect(
        &mut self,
        (key, layers): (ConnectKey, Layers),
        to: &Destination,
        local: SocketAddr,
        sip_config: &SipConfig,
        poller: &Poller,
        now: Mono,
    ) -> bool {
        if self.open >= sip_config.share(sip_config.settings.connections) {
            return false;
        }
        // The bind of a link-local address requires its scope.
        let mut from = local;
        from.set_port(0);
        let from = (!local.ip().is_unspecified()).then_some(from);
        let (listener, remote) = (to.listener.0, to.remote);
        let Ok(stream) = TcpConnection::connect(remote, from) else {
            return false;
        };
        if !self.descriptors.may_have(&stream) {
            return false;
        }
        if !self.sources.enter(remote, usize::MAX) {
            return false;
        }
        let Some(slot) = self.add(stream, listener, remote, sip_config, poller, now) else {
            self.sources.leave(remote);
            return false;
        };
        if let Some(connection) = self.get(slot) {
            connection.transport = to.transport;
            connection.layers = layers;
            connection.connecting = Some(key);
            connection.verifies.clone_from(&to.name);
            connection.is_established = false;
            connection.framer = Framer::new(Opened::ByUs);
        }
        self.watch(slot, poller);
        true
    }

    /// Stops reading from the existing connections.
    pub(crate) fn pause(&mut self, poller: &Poller) {
        self.is_paused = true;
        for connection in self.table.iter().flatten() {
            // It fails only for a connection that the poller does not watch.
            let _ = poller.remove(&connection.stream);
        }
    }

    /// Reads from all connections again.
    pub(crate) fn resume(&mut self, poller: &Poller) {
        if !std::mem::replace(&mut self.is_paused, false) {
            return;
        }
        for connection in self.table.iter_mut().flatten() {
            let token = Token::Sip(SipToken::Connection(connection.slot)).as_u64();
            let wants = connection.wants();
            // The poller watches a connection that was opened meanwhile.
            let watched = poller.add(&connection.stream, token, interest_of(wants));
            if watched
                .or_else(|_| poller.modify(&connection.stream, token, interest_of(wants)))
                .is_ok()
            {
                connection.watching = wants;
            }
        }
    }

    /// The next closed connection of which the engine is not notified.
    pub(crate) fn next_ended(&mut self) -> Option<ClosedConnection> {
        self.gone.pop()
    }

    /// Enters a connection into the table and into the poller. `listener` is the index of its listener. `None`: there
    /// is no free index, or the kernel refuses.
    fn add(
        &mut self,
        stream: TcpConnection,
        listener: u16,
        remote: SocketAddr,
        sip_config: &SipConfig,
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
        let token = Token::Sip(SipToken::Connection(slot)).as_u64();
        if poller.add(&stream, token, Interest::Read).is_err() {
            self.free.push(index);
            return None;
        }
        // Without it, the worker notices a dead peer later.
        let _ = stream.set_user_timeout(sip_config.settings.idle);
        let key = key_of(self.worker, slot);
        let mut connection = Connection::new(stream, (slot, key), (listener, local, remote), now);
        let deadline = connection.deadline(&sip_config.settings);
        connection.armed = deadline;
        self.timers.set(index, deadline);
        let place = index as usize;
        if place >= self.table.len() {
            self.table.resize_with(place + 1, || None);
        }
        self.table[place] = Some(Box::new(connection));
        self.open += 1;
        self.half_open += 1;
        self.half_open_sources.enter(remote, usize::MAX);
        Some(slot)
    }

    /// Notes that a connection has sent a complete message.
    pub(crate) fn set_proven(&mut self, slot: Slot) {
        let Some(connection) = self.get(slot) else {
            return;
        };
        let remote = connection.remote;
        if !std::mem::replace(&mut connection.proven, true) {
            self.half_open -= 1;
            self.half_open_sources.leave(remote);
        }
    }

    /// Closes a connection, and counts the reason.
    pub(crate) fn close(
        &mut self,
        slot: Slot,
        reason: DisconnectReason,
        counters: &mut SipCounters,
    ) {
        if self.get(slot).is_none() {
            return;
        }
        let Some(mut connection) = self.table[slot.index as usize].take() else {
            return;
        };
        let code = match reason {
            // The other side still reads.
            DisconnectReason::Peer if connection.ended.is_some() => Some(CloseCode::GoingAway),
            DisconnectReason::Peer
            | DisconnectReason::Unread
            | DisconnectReason::Unreachable
            | DisconnectReason::Aborted
            | DisconnectReason::Denied => None,
            DisconnectReason::Idle
            | DisconnectReason::Evicted
            | DisconnectReason::Drained
            | DisconnectReason::SourceLimit => Some(CloseCode::GoingAway),
            DisconnectReason::Slow | DisconnectReason::Malformed => Some(CloseCode::Protocol),
        };
        if let Some(code) = code {
            connection.send_close_notify(code, self.now, &mut self.scratch, &mut self.chunks);
        }
        connection.unwritten.clear(&mut self.chunks);
        self.free.push(slot.index);
        self.gone.push(ClosedConnection {
            key: connection.key,
            attempt: connection.connecting,
            is_shared: connection.is_shared,
        });
        self.open -= 1;
        if !connection.proven {
            self.half_open -= 1;
            self.half_open_sources.leave(connection.remote);
        }
        self.sources.leave(connection.remote);
        self.timers.remove(slot.index);
        let count = match reason {
            DisconnectReason::Peer => &mut counters.closed_by_peer,
            DisconnectReason::Idle => &mut counters.closed_idle,
            DisconnectReason::Slow => &mut counters.closed_slow,
            DisconnectReason::Malformed => &mut counters.closed_malformed,
            DisconnectReason::Unread => &mut counters.closed_unread,
            DisconnectReason::Unreachable => &mut counters.closed_unreachable,
            DisconnectReason::Aborted => &mut counters.closed_aborted,
            DisconnectReason::Evicted => &mut counters.closed_evicted,
            DisconnectReason::Drained => &mut counters.closed_drained,
            DisconnectReason::SourceLimit => &mut counters.closed_source_limit,
            DisconnectReason::Denied => &mut counters.closed_denied,
        };
        *count += 1;
    }

    /// Closes a connection. If its other side sends nothing more, it closes as soon as everything is written. Otherwise
    /// it closes at once, because it has been unused for long.
    pub(crate) fn finish(&mut self, slot: Slot, counters: &mut SipCounters) {
        let Some(connection) = self.get(slot) else {
            return;
        };
        let is_shared = connection.is_shared;
        match &mut connection.ended {
            None => self.close(slot, DisconnectReason::Idle, counters),
            // Other workers may have responses for it.
            Some(_) if is_shared => {}
            Some(ended) => {
                ended.has_all = true;
                self.mark_for_flush(slot);
            }
        }
    }

    /// A buffer for an incomplete message.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes a buffer back.
    pub(crate) fn put_back(&mut self, buffer: Vec<u8>) {
        keep_spare(buffer, &mut self.spare);
    }

    /// Queues a message to be written at the next [`Connections::flush`]. Returns `false` if the connection is closed
    /// or was given up.
    pub(crate) fn queue(&mut self, slot: Slot, bytes: &[u8], counters: &mut SipCounters) -> bool {
        let now = self.now;
        let mut deadline = None;
        let queued = self.queue_with(slot, counters, |connection, spare| {
            deadline = connection.follow_flow_timer(bytes);
            connection.queue(bytes, now, spare)
        });
        if let (true, Some(deadline)) = (queued, deadline)
            && let Some(connection) = self.get(slot)
            && deadline < connection.armed
        {
            connection.armed = deadline;
            self.timers.set(slot.index, deadline);
        }
        queued
    }

    /// Queues bytes that are no SIP message. Unlike `queue`, it reads no Flow-Timer from them.
    pub(crate) fn queue_raw(
        &mut self,
        slot: Slot,
        bytes: &[u8],
        counters: &mut SipCounters,
    ) -> bool {
        let now = self.now;
        self.queue_with(slot, counters, |connection, spare| {
            bytes.is_empty() || connection.queue_parts(&[bytes], now, spare)
        })
    }

    fn queue_with(
        &mut self,
        slot: Slot,
        counters: &mut SipCounters,
        queue: impl FnOnce(&mut Connection, &mut ChunkPool) -> bool,
    ) -> bool {
        let mut spare = std::mem::take(&mut self.chunks);
        let queued = self
            .get(slot)
            .map(|connection| queue(connection, &mut spare));
        self.chunks = spare;
        match queued {
            None => false,
            Some(false) => {
                self.close(slot, DisconnectReason::Unread, counters);
                false
            }
            Some(true) => {
                self.mark_for_flush(slot);
                true
            }
        }
    }

    /// Marks a connection, so that the next [`Connections::flush`] writes its bytes.
    pub(crate) fn mark_for_flush(&mut self, slot: Slot) {
        if let Some(connection) = self.get(slot)
            && !std::mem::replace(&mut connection.dirty, true)
        {
            self.dirty.push(slot);
        }
    }

    /// Writes to all marked connections.
    pub(crate) fn flush(&mut self, poller: &Poller, counters: &mut SipCounters) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for slot in dirty.drain(..) {
            if let Some(connection) = self.get(slot) {
                connection.dirty = false;
            }
            self.write(slot, poller, counters);
        }
        self.dirty = dirty;
    }

    /// Writes the bytes that wait on one connection. Then selects the events that the poller reports.
    pub(crate) fn write(&mut self, slot: Slot, poller: &Poller, counters: &mut SipCounters) {
        let mut spare = std::mem::take(&mut self.chunks);
        let mut scratch = std::mem::take(&mut self.scratch);
        let written = self
            .get(slot)
            .map(|connection| connection.write(&mut scratch, &mut spare));
        (self.chunks, self.scratch) = (spare, scratch);
        let is_done = |connection: &Connection| {
            connection.ended.is_some_and(|ended| ended.has_all) && connection.waiting() == 0
        };
        let is_over = self.get(slot).is_some_and(|connection| is_done(connection));
        match written {
            Some(WriteResult::Broken(reason)) => self.close(slot, reason, counters),
            Some(WriteResult::All) if is_over => self.close(slot, DisconnectReason::Peer, counters),
            Some(WriteResult::All | WriteResult::Some) => self.watch(slot, poller),
            None => {}
        }
    }

    fn watch(&mut self, slot: Slot, poller: &Poller) {
        let Some(connection) = self.get(slot) else {
            return;
        };
        let wants = connection.wants();
        if wants == connection.watching {
            return;
        }
        let token = Token::Sip(SipToken::Connection(slot)).as_u64();
        let interest = interest_of(wants);
        if poller.modify(&connection.stream, token, interest).is_ok() {
            connection.watching = wants;
        }
    }

    /// Sets the timer of a connection, whose deadline may be earlier now.
    pub(crate) fn set_timer(&mut self, slot: Slot, sip_config: &SipConfig) {
        let Some(connection) = self.get(slot) else {
            return;
        };
        let deadline = connection.next_timer(&sip_config.settings);
        // If the deadline is later now, the timer is set again when it fires.
        if deadline >= connection.armed {
            return;
        }
        connection.armed = deadline;
        self.timers.set(slot.index, deadline);
    }

    /// The time of the next timer.
    pub(crate) fn next_deadline(&self) -> Option<Mono> {
        self.timers.next_deadline()
    }

    /// Closes idle connections before the server ends. `is_idle`: whether the engine has no transaction on the
    /// connection. A connection that received bytes within the last second stays, unless `all` close.
    pub(crate) fn close_idle(
        &mut self,
        (now, all): (Mono, bool),
        is_idle: impl Fn(&Connection) -> bool,
        counters: &mut SipCounters,
    ) {
        let connections = self.table.iter().flatten();
        let quiet: Vec<Slot> = connections
            .filter(|connection| all || now.since(connection.heard) >= QUIET_TIME)
            .filter(|connection| connection.waiting() == 0 && is_idle(connection))
            .map(|connection| connection.slot)
            .collect();
        for slot in quiet {
            self.close(slot, DisconnectReason::Drained, counters);
        }
    }

    /// Closes one connection after its deadline, if there is one. Returns whether more timers may be due.
    pub(crate) fn expire(
        &mut self,
        now: Mono,
        sip_config: &SipConfig,
        counters: &mut SipCounters,
    ) -> bool {
        let Some(index) = self.timers.pop_due(now) else {
            return false;
        };
        let Some(Some(connection)) = self.table.get_mut(index as usize) else {
            return true;
        };
        let slot = connection.slot;
        if connection.deadline(&sip_config.settings) > now {
            let mut ping = Vec::new();
            connection.ping(now, &mut ping);
            let next = connection.next_timer(&sip_config.settings);
            connection.armed = next;
            self.timers.set(index, next);
            if !ping.is_empty() {
                self.queue_raw(slot, &ping, counters);
            }
            return true;
        }
        let reason = match (connection.begun, connection.waiting()) {
            (_, 1..) => DisconnectReason::Unread,
            _ if connection.ended.is_some() => DisconnectReason::Peer,
            (Some(_), _) => DisconnectReason::Slow,
            (None, _) => DisconnectReason::Idle,
        };
        self.close(slot, reason, counters);
        true
    }
}

const fn interest_of(watching: WatchedEvents) -> Interest {
    match watching {
        WatchedEvents::Nothing => Interest::Nothing,
        WatchedEvents::Read => Interest::Read,
        WatchedEvents::Write => Interest::Write,
        WatchedEvents::Both => Interest::ReadWrite,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_system_call_says_who_has_ended_a_connection() {
        // Numbers of Linux.
        for (name, number, reason) in [
            ("ETIMEDOUT", 110, DisconnectReason::Unread),
            ("EHOSTUNREACH", 113, DisconnectReason::Unreachable),
            ("ENETUNREACH", 101, DisconnectReason::Unreachable),
            ("ENETDOWN", 100, DisconnectReason::Unreachable),
            ("EACCES", 13, DisconnectReason::Unreachable),
            ("ECONNABORTED", 103, DisconnectReason::Aborted),
            ("ECONNRESET", 104, DisconnectReason::Peer),
            ("ECONNREFUSED", 111, DisconnectReason::Peer),
            ("EPIPE", 32, DisconnectReason::Peer),
        ] {
            let error = std::io::Error::from_raw_os_error(number);
            assert_eq!(DisconnectReason::of(&error), reason, "{name}");
        }
    }
}
