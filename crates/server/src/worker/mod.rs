//! One worker: a thread around epoll that owns its listeners, its engine, its relay sockets and its buffers.
//!
//! ```text
//!  epoll ──> receive, a bounded amount per ready socket ──> Session: engine, verdicts, queued sends ──> flush
//!    ^                                                                                                   │
//!    └── timers <── mailbox: datagrams and reservations from other workers, orders from outside <── sockets opened, closed
//! ```
//!
//! Workers share the port tables (atomics), the quotas (touched when an allocation opens or closes), immutable configuration, and
//! each other's mailboxes.

mod batch_limit;
mod batches;
mod dtls;
mod flows;
mod forwarding;
mod handover;
mod icmp;
mod log;
mod mailboxes;
mod messages;
mod open;
mod outputs;
mod read_ahead;
mod session;
mod sockets;
mod streams;
mod tcp;

pub(crate) use batch_limit::BatchLimit;
pub(crate) use batches::{BatchStore, WorkerBatch};
pub(crate) use flows::Flows;
pub(crate) use forwarding::Forwarding;
pub(crate) use handover::{Holding, Job};
pub(crate) use mailboxes::Mailboxes;
pub(crate) use messages::WorkerMessage;
pub(crate) use open::Opener;
pub(crate) use session::Core;
pub(crate) use sockets::{Listener, PortSocket, RelayTable, SharedPort, Sockets, Token};

use crate::board::Publisher;
use crate::connections::{Arena, Connections};
use crate::live::{Configuration, Subscription};
use crate::mailbox::Mailbox;
use crate::sip::Sip;
use crate::stats::WorkerStats;
use batch_limit::Handled;
use io::{Event, Events, RecvBatch, SendQueue};
use messages::{MovedRelay, PlacedRequest};
use session::{Change, Session};
use sockets::RelaySocket;
use std::time::Duration;
use turn::server::{ClaimError, ClientIdentity, CloseReason, Forget};
use turn::{Mono, Now, RelayKey, RequestKey};

/// Ready sockets reported per wake-up.
pub(crate) const EVENTS: usize = 256;

/// With this many messages at once from one relay, UDP_GRO saves time for the next ones.
const TRAIN: usize = 4;

/// Messages read per wake-up, so that other workers cannot keep this one from its own sockets.
const MESSAGES: usize = 256;

/// Relays whose channels are looked at again per wake-up when routes have changed: less than a millisecond's work.
const RECHECKED: u32 = 64;

/// Calls of `handle_timeout` per wake-up, each of which does a bounded amount of work.
const EXPIRIES: usize = 64;

/// How soon to try again when another worker does not read its mailbox.
const HELD: Duration = Duration::from_millis(1);

/// Everything that is one worker's. Made by the starting thread, then moved to its own.
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
    pub(crate) holding: Option<Box<Holding>>,
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
    /// Serves until it is told to stop.
    ///
    /// # Errors
    /// If epoll itself fails; nothing can be served then.
    pub(crate) fn run(mut self) -> std::io::Result<WorkerStats> {
        let mut events = Events::with_capacity(EVENTS);
        self.watch_listeners()?;
        while !self.stopping {
            self.turn(&mut events, None)?;
            self.show();
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

    /// How long to sleep when nothing comes.
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
            timeout = timeout.min(HELD);
        }
        let sip = self.sip.as_ref().map(|sip| sip.poll_timeout(now));
        sip.map_or(timeout, |sip| timeout.min(sip))
    }

    /// Reads every ready socket once. Returns whether the mailbox is ready, too.
    fn receive(&mut self, events: &Events) -> bool {
        let mut has_mail = false;
        let each = self.batch_limit.per_relay(events.len());
        let (mut relays, mut messages, mut listeners_read) = (0, 0, 0);
        for event in events.iter() {
            if self.batch.len() >= self.batch_limit.limit() {
                self.handle_batch();
            }
            match Token::from_u64(event.token) {
                Token::Mailbox => has_mail = true,
                Token::Listener(number) => {
                    self.make_room();
                    self.read_listener(number, event);
                    listeners_read += 1;
                }
                Token::Shared(number) => {
                    self.make_room();
                    // As for a relay's own socket.
                    if event.error {
                        self.read_icmp_of_shared(number);
                    }
                    self.read_shared_port(number, event);
                }
                // Read after the datagrams.
                Token::Accept(_)
                | Token::Connection(_)
                | Token::TcpRelay(_)
                | Token::Peer(_)
                | Token::Data(_) => {}
                Token::Sip(token) => {
                    if let Some(sip) = &mut self.sip {
                        sip.ready(token, event);
                    }
                }
                Token::Relay(key) => {
                    if each >= self.batch_limit.limit() {
                        self.make_room();
                    }
                    // First, as an error that waits makes the next call fail, and is reported until it is fetched.
                    if event.error {
                        self.read_icmp(key);
                    }
                    relays += 1;
                    messages += self.read_relay(key, event, each);
                }
            }
        }
        if events.is_full() && listeners_read < self.sockets.listeners.len() {
            self.read_all_listeners();
        }
        self.handle_batch();
        if each > 1 {
            self.batch_limit.relays_read(relays, messages);
        }
        has_mail
    }

    /// More sockets are ready than epoll reports in one wake-up, so listeners may be among the others. A flood of new connections must not
    /// delay datagrams.
    #[cold]
    fn read_all_listeners(&mut self) {
        for number in 0..self.sockets.listeners.len() as u32 {
            self.make_room();
            self.read_listener(number, Event::readable(Token::Listener(number).as_u64()));
        }
    }

    /// A socket that may fill a batch gets at least half of one. Otherwise the last of several busy sockets would get only
    /// the room that the others leave, at every wake-up, because their order does not change.
    fn make_room(&mut self) {
        if self.batch.len() * 2 > self.batch_limit.limit() {
            self.handle_batch();
        }
    }

    fn read_listener(&mut self, number: u32, event: Event) {
        let Some(listener) = self.sockets.listeners.get_mut(number as usize) else {
            return;
        };
        let overflow = self.batch.overflow();
        let room = self.batch_limit.limit() - self.batch.len();
        let result = listener.receive(room, event.token, &mut self.batch);
        self.core.counters.listener_overflow += self.batch.overflow() - overflow;
        self.core.counters.receive_errors += u64::from(failed(&result));
    }

    fn read_shared_port(&mut self, number: u16, event: Event) {
        let Some(port) = self.sockets.shared.get_mut(usize::from(number)) else {
            return;
        };
        let overflow = self.batch.overflow();
        let room = self.batch_limit.limit() - self.batch.len();
        let result = port.listener.receive(room, event.token, &mut self.batch);
        self.core.counters.relay_overflow += self.batch.overflow() - overflow;
        self.core.counters.receive_errors += u64::from(failed(&result));
    }

    /// Returns how many messages came.
    fn read_relay(&mut self, key: RelayKey, event: Event, each: usize) -> usize {
        let relay = self.sockets.relays.get(key);
        let Some(PortSocket::Own(socket)) = relay.map(|relay| &relay.socket) else {
            self.core.counters.stale_events += 1;
            return 0;
        };
        let overflow = self.batch.overflow();
        let result = if each == 1 {
            socket.recv_one(event.token, &mut self.batch)
        } else {
            let room = self.batch_limit.limit() - self.batch.len();
            socket.recv_up_to(room.min(each), event.token, &mut self.batch)
        };
        let messages = *result.as_ref().unwrap_or(&0);
        if messages >= TRAIN && self.core.opener.gro && !socket.gro() {
            // Without it the next train merely comes as single datagrams, too.
            let _ = socket.set_gro(true);
        } else if !self.core.opener.gro && socket.gro() {
            // After a fallback to tc. While a datagram waits it stays on, and the next receive tries again.
            let _ = io::stop_joining(socket);
        }
        self.core.counters.relay_overflow += self.batch.overflow() - overflow;
        self.core.counters.receive_errors += u64::from(failed(&result));
        messages
    }

    /// Handles what the batch holds, and empties it.
    fn handle_batch(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let mut session = Session::new(&mut self.core, &self.sockets, &mut self.queue);
        let mut relayed = 0;
        let mut handled = 0;
        while handled < self.batch.len() {
            let next = session.read_ahead(&self.batch, handled);
            for received in self.batch.range(handled..next) {
                if received.truncated {
                    session.core.counters.truncated += 1;
                    continue;
                }
                match Token::from_u64(received.tag) {
                    Token::Listener(number) if session.is_dtls(number, received.bytes) => {
                        session.client_sent_dtls(number, &received);
                    }
                    Token::Listener(number) => session.client_sent(number, &received),
                    Token::Relay(relay) => session.peer_sent(relay, &received),
                    Token::Shared(number) => session.peer_sent_to_shared(number, &received),
                    _ => {}
                }
                relayed += usize::from(std::mem::take(&mut session.relayed));
            }
            handled = next;
        }
        let flushed = session.out.flush();
        let handled = Handled {
            held: self.batch.len(),
            relayed,
            sent: flushed.sent,
            sends: flushed.sends(),
        };
        drop(session);
        self.batch.clear();
        if self.batch_limit.judge(&handled) {
            self.batch.shrink(BatchLimit::LEAST);
        }
        self.apply_changes();
        self.handle_dtls_messages();
    }

    /// Takes messages, a bounded number of them.
    fn read_mailbox(&mut self) {
        self.mailbox.begin();
        self.messages_left = true;
        for _ in 0..MESSAGES {
            match self.mailbox.take() {
                Some(WorkerMessage::Datagrams(batch)) => self.batches.push(batch),
                Some(message) => self.handle_message(message),
                None => {
                    self.messages_left = false;
                    break;
                }
            }
        }
        self.deliver_batches();
    }

    /// Delivers the datagrams of all batches.
    fn deliver_batches(&mut self) {
        if self.batches.is_empty() {
            return;
        }
        let mut session = Session::new(&mut self.core, &self.sockets, &mut self.queue);
        for batch in &self.batches {
            for item in &batch.items {
                session.worker_sent(item, &batch.bytes[item.bytes.clone()]);
            }
        }
        drop(session);
        self.batches
            .drain(..)
            .for_each(|batch| self.core.mailboxes.put_back(batch));
        self.apply_changes();
    }

    /// Sends a relay, or the reason why there is none, to the worker that has requested it.
    fn send_claimed(
        &mut self,
        to: u16,
        request: RequestKey,
        relay: Result<Box<MovedRelay>, ClaimError>,
    ) {
        let answer = self
            .core
            .mailboxes
            .post(to, WorkerMessage::Claimed { request, relay });
        if let Err(WorkerMessage::Claimed {
            relay: Ok(moved), ..
        }) = answer
        {
            self.core.counters.mailbox_full += 1;
            self.core.close(moved.split().0);
        }
    }

    fn handle_message(&mut self, message: WorkerMessage) {
        let Some(message) = self.handle_upgrade(message) else {
            return self.settle();
        };
        match message {
            WorkerMessage::Datagrams(batch) => self.batches.push(batch),
            WorkerMessage::Claim {
                from,
                request,
                token,
                client,
                key,
            } => {
                let relay = self.give_relay(token, &client.identity(), key);
                self.send_claimed(from, request, relay);
            }
            WorkerMessage::Claimed { request, relay } => self.receive_relay(request, relay),
            WorkerMessage::Request(placed) => self.serve_placed(&placed),
            WorkerMessage::Connection(moved) => self.receive_connection(*moved),
            WorkerMessage::SipMessages(batch) => {
                if let Some(sip) = &mut self.sip {
                    sip.receive(batch);
                }
            }
            WorkerMessage::SipQuery(query) => {
                if let Some(sip) = &mut self.sip {
                    sip.answer_query(*query);
                }
            }
            WorkerMessage::Name(answered) => {
                if let Some(sip) = &mut self.sip {
                    sip.receive_answer(*answered);
                }
            }
            WorkerMessage::SipKeys(keys) => {
                if let Some(sip) = &mut self.sip {
                    sip.receive_keys(*keys);
                }
            }
            WorkerMessage::KeysFound(lookup, found) => {
                // The request may have been given up by now.
                self.core.engine.keys_found(self.core.now, lookup, *found);
            }
            WorkerMessage::ForgetUsers(user) => {
                let which = user.as_deref().map_or(Forget::All, Forget::User);
                self.core.engine.forget_users(which);
            }
            WorkerMessage::Publish(reply) => {
                self.publish();
                // The caller may have stopped waiting.
                let _ = reply.send(());
            }
            WorkerMessage::Sessions(query) => query.answer(&mut self.core.engine, self.core.now),
            // It is awake, and looks at the number of changes.
            WorkerMessage::RoutesChanged => {}
            // Handled before.
            WorkerMessage::HoldClients(..)
            | WorkerMessage::HoldNoMore
            | WorkerMessage::Listen(..)
            | WorkerMessage::Job(_)
            | WorkerMessage::Sip(_)
            | WorkerMessage::Foreign(_)
            | WorkerMessage::PredecessorEnded => {}
            WorkerMessage::Separate => {
                self.core.opener.gro = false;
                let listeners = &mut self.sockets.listeners;
                listeners.iter_mut().for_each(Listener::separate);
            }
            WorkerMessage::Shutdown => self.stopping = true,
        }
        self.settle();
    }

    /// Works by another configuration from now on.
    fn configure(&mut self, configuration: Configuration) {
        let Configuration {
            engine,
            sip,
            hooks,
            streams,
        } = configuration;
        if let Some(dtls) = &mut self.core.dtls {
            dtls.set_limits(&streams);
        }
        self.core.connections.set_limits(streams);
        self.core.hooks = hooks;
        if let Some(flows) = &mut self.core.flows {
            flows.set_limited(engine.limits_rate());
        }
        self.core.engine.set_config(self.core.now, engine);
        if let Some(of_sip) = &mut self.sip {
            of_sip.apply_settings(sip);
        }
        self.settle();
    }

    fn serve_placed(&mut self, placed: &PlacedRequest) {
        let mut session = Session::new(&mut self.core, &self.sockets, &mut self.queue);
        session.request_placed(placed);
    }

    /// Another worker's client has the token of a relay that is reserved here.
    fn give_relay(
        &mut self,
        token: [u8; 8],
        client: &ClientIdentity<'_>,
        key: RelayKey,
    ) -> Result<Box<MovedRelay>, ClaimError> {
        let claimed = self
            .core
            .engine
            .claim_reservation(self.core.now, token, client)?;
        let RelaySocket {
            socket,
            address,
            port,
            ..
        } = self
            .sockets
            .relays
            .remove(claimed.relay)
            .ok_or(ClaimError::Unknown)?;
        // Shared ports are never reserved.
        let PortSocket::Own(socket) = socket else {
            return Err(ClaimError::Unknown);
        };
        self.core.opener.withdraw(address, port);
        // It could only fail for a socket that is not watched; then nothing is left to undo.
        let _ = self.core.poller.remove(&socket);
        self.core.counters.relays_given += 1;
        Ok(Box::new(MovedRelay {
            key,
            socket,
            address,
            port,
            claimed,
        }))
    }

    /// The answer to a claim of ours.
    fn receive_relay(&mut self, request: RequestKey, relay: Result<Box<MovedRelay>, ClaimError>) {
        let mut adopted = None;
        let claimed = relay.and_then(|moved| {
            let (key, (socket, claimed)) = (moved.key, moved.split());
            let relay = self
                .core
                .opener
                .adopt(socket, &self.core.poller)
                .ok_or(ClaimError::Unknown)?;
            self.core.counters.relays_received += 1;
            self.core.changes.push(Change::Open(relay));
            adopted = Some(key);
            Ok(claimed)
        });
        let known = self
            .core
            .engine
            .reservation_claimed(self.core.now, request, claimed);
        if let (false, Some(key)) = (known, adopted) {
            self.core.changes.push(Change::Close(key));
        }
    }

    /// Finds out whether offloaded channels have other next hops, a bounded number of them.
    fn recheck_next_hops(&mut self) {
        let flows = self.core.flows.as_mut();
        let Some(first) = flows.and_then(|flows| flows.recheck_from()) else {
            return;
        };
        let next = self.core.engine.repeat_offloads(first, RECHECKED);
        self.settle();
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
        while rounds < EXPIRIES
            && self
                .core
                .engine
                .poll_timeout()
                .is_some_and(|deadline| deadline <= self.core.now.mono)
        {
            self.core.engine.handle_timeout(self.core.now);
            self.settle();
            rounds += 1;
        }
    }

    /// Does what the engine has queued, and then what that means for the sockets.
    fn settle(&mut self) {
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
            self.settle();
        }
        while let Some(relay) = self.sockets.relays.remove_any() {
            self.core.close(relay);
        }
    }

    /// Shows other threads that the loop turns, and now and then the counts.
    fn show(&mut self) {
        self.publisher.turn(self.core.now.mono);
        if self.publisher.is_due(self.core.now.mono) {
            self.publish();
        }
    }

    /// Shows the counts to the other threads.
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

/// A receive failed, other than for want of datagrams.
fn failed(result: &std::io::Result<usize>) -> bool {
    result
        .as_ref()
        .is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock)
}

impl Core {
    fn close(&mut self, relay: RelaySocket) {
        self.counters.relays_closed += 1;
        self.opener.close(relay);
    }
}
