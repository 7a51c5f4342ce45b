//! The TCP and TLS connections of one worker that carry STUN and TURN (RFC 8656 §3.1).
//!
//! ```text
//!  accept ──> first bytes ──> TLS? ──> messages into the arena ──> the worker's session ──> engine
//!                                                                                     │
//!  socket <── one write per connection and wake-up <── chunks (TLS: records) <── queue <┘
//! ```
//!
//! A connection stays with the worker that accepted it. It requires no thread and no task. It holds buffers only for
//! data that waits.

mod accepting;
mod arena;
mod connection;
mod counters;
mod data;
mod listener;
mod reading;
mod settings;
mod writing;

pub(crate) use arena::Arena;
pub use counters::{EndReason, StreamCounters};
pub(crate) use data::{DataConnection, MovingConnection};
pub(crate) use listener::{Protocols, StreamListener, TlsConfigs};
pub use settings::StreamSettings;
pub(crate) use settings::WorkerLimits;
/// Why a TLS connection failed.
pub use streams::tls::Failure as TlsFailure;

use crate::descriptors::ForClients;
use crate::sources::Sources;
pub(crate) use connection::KeptBytes;
use connection::{Connection, WriteTotals};
use io::Poller;
use std::time::Duration;
use streams::ChunkPool;
use streams::tls::Failure;
use timers::Wheel;
use turn::{ClientPath, FiveTuple, Mono};

/// The resolution of the timers. Deadlines are seconds, so a coarse one suffices.
const TICK_NS: u64 = 100_000_000;

/// Time for connections without an allocation per wake-up: to accept them, to make handshakes, to answer. They must not
/// delay datagrams for long. A step that begins within it is completed, and what it uses beyond is missing in the next
/// wake-up.
const UNPROVEN_NS: u64 = 1_000_000;

/// The limit on bytes that the kernel holds unsent (TCP_NOTSENT_LOWAT). Further bytes wait in the queue here, which has
/// their age. Bytes that were sent but not acknowledged do not count.
const MAX_UNSENT_BYTES: u32 = 128 << 10;

/// This bit marks the `ListenerKey` of a connection. The other bits are the index of the connection.
const CONNECTION_BIT: u32 = 1 << 31;

/// An index in the table of connections, and the generation that distinguishes successive connections at this index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Slot {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// [`Connections::release_memory`] acts only after a peak of this number of connections: with TLS, about 4 MB.
const MIN_PEAK: usize = 512;

/// The maximum number of timers that one call of [`Connections::expire`] handles.
const MAX_EXPIRIES: usize = 64;

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
    spare: ChunkPool,
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
            spare: ChunkPool::default(),
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

    fn get(&mut self, slot: Slot) -> Option<&mut Connection> {
        let connection = self.table.get_mut(slot.index as usize)?.as_deref_mut()?;
        (connection.slot == slot).then_some(connection)
    }

    /// The open connection of a client.
    fn find(&self, path: &ClientPath) -> Option<Slot> {
        let index = path.listener.0.checked_sub(CONNECTION_BIT)?;
        let connection = self.table.get(index as usize)?.as_deref()?;
        (connection.path.five_tuple == path.five_tuple).then_some(connection.slot)
    }

    /// The client's 5-tuple and listener; `None` if the connection has ended.
    pub(crate) fn path(&mut self, slot: Slot) -> Option<ClientPath> {
        self.get(slot).map(|connection| connection.path)
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
        let mut written = WriteTotals::default();
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

    /// Closes a connection because of wrong bytes that its client has sent. Writes the responses to earlier messages
    /// first: the client gets them also if these messages and the wrong bytes came in one segment.
    pub(crate) fn reject(&mut self, slot: Slot, reason: EndReason, poller: &Poller, now: Mono) {
        self.write(slot, poller, now);
        self.close(slot, reason, None, poller);
    }

    /// Tells the engine which clients asked for a server by its name (SNI).
    pub(crate) fn report_server_names(&mut self, engine: &mut turn::server::Server) {
        for (five_tuple, name) in self.named.drain(..) {
            engine.set_server_name(&five_tuple, Some(&name));
        }
    }

    /// Removes and returns the 5-tuple of a connection that has ended.
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
        for _ in 0..MAX_EXPIRIES {
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

    /// Returns free memory to the system after most of many connections have ended. The allocator kept 39 MB after
    /// 5,000 TLS connections.
    pub(crate) fn release_memory(&mut self) {
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
