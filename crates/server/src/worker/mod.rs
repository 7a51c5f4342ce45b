//! One worker: a thread around epoll that owns its listeners, its engine, its relay sockets and its buffers.
//!
//! ```text
//!  epoll ──> receive, a bounded amount per ready socket ──> Session: engine, verdicts, queued sends ──> flush
//!    ^                                                                                                   │
//!    └── timers <── mailbox: datagrams and reservations from other workers, orders from outside <── sockets opened, closed
//! ```
//!
//! Workers share the port tables (atomics), the quotas (touched when an allocation opens or closes), immutable
//! configuration, and each other's mailboxes.

mod batch_limit;
mod batches;
mod dtls;
mod flows;
mod forwarding;
mod handle_messages;
mod handover;
mod icmp;
mod log;
mod mailboxes;
mod messages;
mod open;
mod outputs;
mod read_ahead;
mod receive;
mod session;
mod sockets;
mod streams;
mod tcp;

pub(crate) use batch_limit::BatchLimit;
pub(crate) use batches::{BatchStore, WorkerBatch};
pub(crate) use flows::Flows;
pub(crate) use forwarding::Forwarding;
pub(crate) use handover::{ClientsWithoutEntry, Job};
pub(crate) use mailboxes::Mailboxes;
pub(crate) use messages::WorkerMessage;
pub(crate) use open::Opener;
pub(crate) use session::Core;
pub(crate) use sockets::{Listener, PortSocket, RelayTable, SharedPort, Sockets, Token};

use crate::connections::{Arena, Connections};
use crate::live::Subscription;
use crate::mailbox::Mailbox;
use crate::published::Publisher;
use crate::sip::Sip;
use crate::stats::WorkerStats;
use io::{Events, RecvBatch, SendQueue};
use session::{Change, Session};
use sockets::RelaySocket;
use std::time::Duration;
use turn::server::CloseReason;
use turn::{Mono, Now};

/// Ready sockets reported per wake-up.
pub(crate) const EVENTS: usize = 256;

/// Relays whose channels are looked at again per wake-up when routes have changed: less than a millisecond's work.
const MAX_RECHECKED: u32 = 64;

/// Calls of `handle_timeout` per wake-up, each of which does a bounded amount of work.
const MAX_EXPIRIES: usize = 64;

/// How soon to try again when another worker does not read its mailbox.
const HELD_RETRY_TIME: Duration = Duration::from_millis(1);

/// The state of one worker. Made by the starting thread, then moved to its own.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) core: Core,
    pub(crate) mailbox: Mailbox<WorkerMessage>,
    pub(crate) sockets: Sockets,
    pub(crate) queue: SendQueue,
    pub(crate) batch: RecvBatch,
    pub(crate) batch_limit: BatchLimit,
    pub(crate) publisher: Publisher,
    pub(crate) configuration: Subscription,
    /// TCP or TLS is listened on.
    pub(crate) has_connections: bool,
    /// What connections have sent in this wake-up.
    pub(crate) arena: Arena,
    /// SIP, where it is served.
    pub(crate) sip: Option<Box<Sip>>,
    /// Inter-worker batches of this wake-up; empty between wake-ups.
    pub(crate) batches: Vec<WorkerBatch>,
    /// The last wake-up left messages unread.
    pub(crate) messages_left: bool,
    /// Batches wait for another worker to read its mailbox.
    pub(crate) batches_held: bool,
    /// Clients that still have to get an entry, because another process takes over.
    pub(crate) holding: Option<Box<ClientsWithoutEntry>>,
    /// The last wake-up left next hops to be looked at.
    pub(crate) rechecks_left: bool,
    pub(crate) stopping: bool,
}

/// The present moment by the system's clocks.
pub(crate) fn now() -> Now {
    Now {
        mono: Mono(io::clock::monotonic_ns()),
        unix_s: io::clock::unix_s(),
    }
}

impl Worker {
    /// Serves until it gets the command to stop.
    ///
    /// # Errors
    /// If epoll itself fails; nothing can be served then.
    pub(crate) fn run(mut self) -> std::io::Result<WorkerStats> {
        let mut events = Events::with_capacity(EVENTS);
        self.watch_listeners()?;
        while !self.stopping {
            self.turn(&mut events, None)?;
            self.publish_counters();
        }
        self.finish();
        self.publish();
        Ok(self.stats())
    }

    /// One wake-up: waits for something to do, at most `limit` if there is one, and does a bounded amount of it.
    pub(crate) fn turn(
        &mut self,
        events: &mut Events,
        limit: Option<Duration>,
    ) -> std::io::Result<()> {
        let timeout = self.poll_timeout();
        let timeout = limit.map_or(timeout, |limit| timeout.min(limit));
        let before = self.sip.is_some().then(io::clock::monotonic_ns);
        self.core.poller.wait(events, Some(timeout))?;
        self.core.now = now();
        if let (Some(sip), Some(before)) = (&mut self.sip, before) {
            sip.slept(self.core.now.mono.0 - before);
        }
        if let Some(configuration) = self.configuration.take() {
            self.configure(configuration);
        }
        self.core.counters.wake_ups += 1;
        let before = self.batch.totals().datagrams;
        let has_mail = self.receive(events) || self.messages_left;
        if self.has_connections {
            self.receive_from_connections(events);
        }
        let received = self.batch.totals().datagrams - before;
        self.core.counters.batches.count(received);
        if has_mail {
            self.read_mailbox();
        }
        if let Some(sip) = &mut self.sip {
            sip.turn(&self.core.poller, &self.core.mailboxes, self.core.now);
        }
        self.hold_some();
        self.recheck_next_hops();
        self.expire();
        self.serve_dtls();
        if self.has_connections {
            self.finish_connections();
        }
        let (lost, held) = self.core.mailboxes.send_all();
        self.core.counters.mailbox_full += lost;
        self.batches_held = held;
        let counters = &self.core.counters;
        let datagrams = counters.client_datagrams + counters.peer_datagrams;
        self.core.placement.measure(self.core.now.mono, datagrams);
        Ok(())
    }

    /// Serves these connections from now on.
    pub(crate) fn serve_connections(&mut self, connections: Connections) {
        self.has_connections = !connections.is_unused();
        self.arena = Arena::new(self.has_connections);
        self.core.connections = connections;
    }

    pub(crate) fn watch_listeners(&self) -> std::io::Result<()> {
        for (number, listener) in (0..).zip(&self.sockets.listeners) {
            self.core.poller.add(
                &listener.socket,
                Token::Listener(number).as_u64(),
                io::Interest::Read,
            )?;
        }
        for (number, port) in (0..).zip(&self.sockets.shared) {
            self.core.poller.add(
                &port.listener.socket,
                Token::Shared(number).as_u64(),
                io::Interest::Read,
            )?;
        }
        self.core.connections.watch(&self.core.poller)?;
        if let Some(sip) = &self.sip {
            sip.watch(&self.core.poller)?;
        }
        Ok(())
    }

    /// The poll timeout: how long the worker sleeps at most without an event.
    fn poll_timeout(&self) -> Duration {
        let dtls = self.core.dtls.as_ref();
        let has_work = dtls.is_some_and(|dtls| dtls.has_work());
        if self.messages_left || self.rechecks_left || has_work || self.holding.is_some() {
            return Duration::ZERO;
        }
        let now = self.core.now.mono;
        let mut timeout = self.publisher.poll_timeout(now);
        if let Some(deadline) = self.core.engine.poll_timeout() {
            timeout = timeout.min(deadline.since(now));
        }
        if let Some(deadline) = dtls.and_then(|dtls| dtls.next_deadline()) {
            timeout = timeout.min(deadline.since(now));
        }
        if self.has_connections {
            timeout = timeout.min(self.core.connections.poll_timeout(now));
            timeout = timeout.min(self.core.tcp.poll_timeout(now));
            timeout = timeout.min(self.core.forwarding.relays().poll_timeout(now));
        }
        if self.batches_held {
            timeout = timeout.min(HELD_RETRY_TIME);
        }
        let sip = self.sip.as_ref().map(|sip| sip.poll_timeout(now));
        sip.map_or(timeout, |sip| timeout.min(sip))
    }

    /// Finds out whether offloaded channels have other next hops, a bounded number of them.
    fn recheck_next_hops(&mut self) {
        let flows = self.core.flows.as_mut();
        let Some(first) = flows.and_then(|flows| flows.recheck_from()) else {
            return;
        };
        let next = self.core.engine.repeat_offloads(first, MAX_RECHECKED);
        self.drain_and_update_sockets();
        self.rechecks_left = next.is_some();
        if let Some(flows) = &mut self.core.flows {
            flows.rechecked_until(next);
        }
    }

    /// Ends what has expired.
    fn expire(&mut self) {
        let mut rounds = 0;
        if let Some(deadline) = self.core.engine.poll_timeout()
            && deadline <= self.core.now.mono
        {
            self.core.counters.expiries += 1;
            self.core.counters.expiry_lateness_ns += self.core.now.mono.0 - deadline.0;
        }
        while rounds < MAX_EXPIRIES
            && self
                .core
                .engine
                .poll_timeout()
                .is_some_and(|deadline| deadline <= self.core.now.mono)
        {
            self.core.engine.handle_timeout(self.core.now);
            self.drain_and_update_sockets();
            rounds += 1;
        }
    }

    /// Does what the engine has queued, and then what that means for the sockets.
    fn drain_and_update_sockets(&mut self) {
        let mut session = Session::new(&mut self.core, &self.sockets, &mut self.queue);
        session.drain_outputs();
        drop(session);
        self.apply_changes();
    }

    /// Opens and closes relays, now that nothing borrows them.
    fn apply_changes(&mut self) {
        let mut changes = std::mem::take(&mut self.core.changes);
        for change in changes.drain(..) {
            let leaving = match change {
                Change::Open(relay) => self.sockets.relays.insert(relay),
                Change::Close(key) => self.sockets.relays.remove(key),
            };
            if let Some(relay) = leaving {
                self.core.close(relay);
            }
        }
        // Keeps the space for the next time.
        self.core.changes = changes;
    }

    /// Ends all allocations, with a log line each, and closes what is open.
    pub(crate) fn finish(&mut self) {
        self.close_dtls();
        if let Some(sip) = &mut self.sip {
            sip.finish();
        }
        self.core
            .connections
            .close_all(&self.core.poller, self.core.now.mono);
        self.core
            .engine
            .close_all(self.core.now, CloseReason::ServerShutdown);
        while self.core.engine.is_closing() {
            self.core.engine.handle_timeout(self.core.now);
            self.drain_and_update_sockets();
        }
        while let Some(relay) = self.sockets.relays.remove_any() {
            self.core.close(relay);
        }
    }

    /// Publishes that the loop turns and, if they are due, the counters.
    fn publish_counters(&mut self) {
        self.publisher.turn(self.core.now.mono);
        if self.publisher.is_due(self.core.now.mono) {
            self.publish();
        }
    }

    /// Publishes the counters.
    fn publish(&mut self) {
        let stats = self.stats();
        self.publisher.publish(self.core.now.mono, &stats);
    }

    pub(crate) fn stats(&self) -> WorkerStats {
        WorkerStats {
            counters: self.core.counters,
            engine: self.core.engine.stats().clone(),
            streams: self.core.connections.counters(),
            dtls: self
                .core
                .dtls
                .as_ref()
                .map(|dtls| dtls.counters())
                .unwrap_or_default(),
            sends: *self.queue.totals(),
            received: *self.batch.totals(),
            relays_open: (self.sockets.relays.len() + self.core.tcp.len()) as u64,
            flows_steered: self.core.placement.steered(),
            channels_offloaded: self.core.flows.as_ref().map_or(0, |flows| flows.len()) as u64,
            sip: self
                .sip
                .as_ref()
                .map(|sip| sip.counters())
                .unwrap_or_default(),
        }
    }
}

impl Core {
    fn close(&mut self, relay: RelaySocket) {
        self.counters.relays_closed += 1;
        self.opener.close(relay);
    }
}
