//! Reads sockets: batches of datagrams, connections, and the timers between them.

use super::balance::SipBatch;
use super::coalescing::{Change, SocketRead};
use super::connection::Connection;
use super::connections::DisconnectReason;
use super::layers::Layers;
use super::outgoing::{Outgoing, slot_of, udp_flow};
use super::token::{SipToken, Slot};
use super::{ACCEPT_PAUSE, BATCH_MESSAGES, MAX_ACCEPTS, MAX_READ_ROUNDS, Sip};
use crate::worker::Token;
use io::{Event, Interest, Poller, TcpConnection, TcpListener};
use sip::Now;
use sip::flow::{Flow, ListenerKey, Transport};
use sip::frame::{Frame, PONG};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

/// ICMP errors that are read from one socket per wake-up. Epoll reports the rest again.
const MAX_ERRORS: usize = 16;

/// Bytes of an undelivered request that are read from an ICMP error. The topmost Via is at the start, and no router
/// quotes more.
const QUOTED_BYTES: usize = 576;

/// How often a drain checks the connections, and when it closes also those that are never quiet.
const DRAIN_INTERVAL: Duration = Duration::from_millis(100);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections whose deadline is checked per call of [`Sip::run_due_timers`].
const MAX_EXPIRIES: usize = 64;

impl Sip {
    /// Handles all due timers. Called after every [`BATCH_MESSAGES`] messages.
    pub(super) fn run_due_timers(&mut self, poller: &Poller) {
        let now = self.endpoint.now;
        for _ in 0..MAX_EXPIRIES {
            let (sip_config, counters) = self.endpoint.config_and_counters();
            if !self.connections.expire(now.mono, sip_config, counters) {
                break;
            }
        }
        self.with_outgoing(poller, |endpoint, outgoing| endpoint.expire(outgoing));
        self.report_closed(poller);
        if self.accept_again.is_some_and(|at| at <= now.mono) {
            self.accept_again = None;
            for (number, listener) in (0..).zip(&self.listeners) {
                let token = Token::Sip(SipToken::Accept(number)).as_u64();
                // The poller watches it already if only another listener has paused.
                let _ = poller.add(&listener.tcp, token, Interest::Read);
            }
            for (number, listener) in (self.first_stream()..).zip(&self.streams) {
                let token = Token::Sip(SipToken::Accept(number)).as_u64();
                let _ = poller.add(&listener.socket, token, Interest::Read);
            }
        }
    }

    /// While the server is about to end, closes the connections without a transaction. If they are WebSockets, it sends
    /// a Close frame with 1001 (RFC 6455 §7.4.1).
    pub(super) fn drain_connections(&mut self) {
        let now = self.endpoint.now.mono;
        let draining = self.endpoint.sip_config.draining && !self.stage.keeps_connections;
        if !draining {
            self.draining_since = None;
        }
        if !draining || self.connections.len() == 0 {
            self.drain_again = None;
            return;
        }
        if self.drain_again.is_some_and(|at| at > now) {
            return;
        }
        self.drain_again = Some(now.plus(DRAIN_INTERVAL));
        let since = *self.draining_since.get_or_insert(now);
        let used = self.endpoint.engine.connections_in_use();
        let is_calm = self.endpoint.is_calm();
        let is_idle = |connection: &Connection| {
            // Another worker may handle a request of a shared connection.
            !used.contains(&connection.key) && (is_calm || !connection.is_shared)
        };
        let all = now.since(since) >= DRAIN_TIMEOUT;
        let counters = &mut self.endpoint.counters;
        self.connections.close_idle((now, all), is_idle, counters);
    }

    /// Resumes requests that waited for the DNS or for a source of credentials.
    pub(super) fn take_answers(&mut self, poller: &Poller) {
        if self.endpoint.requests.has_answers() {
            self.with_outgoing(poller, |endpoint, outgoing| endpoint.take_answers(outgoing));
        }
        if !self.endpoint.late_answers.is_empty() {
            self.with_outgoing(poller, |endpoint, outgoing| {
                endpoint.take_late_answers(outgoing)
            });
        }
    }

    /// Notifies the engine of closed connections. It may then send over other ones.
    pub(super) fn report_closed(&mut self, poller: &Poller) {
        while let Some(gone) = self.connections.next_ended() {
            self.with_outgoing(poller, |endpoint, outgoing| {
                endpoint.disconnected(&gone);
                endpoint.drain(outgoing);
            });
        }
    }

    /// Runs code that may queue messages, then sends them.
    pub(super) fn with_outgoing<T>(
        &mut self,
        poller: &Poller,
        run: impl FnOnce(&mut super::Endpoint, &mut Outgoing<'_, '_, '_>) -> T,
    ) -> T {
        let mut outgoing = Outgoing {
            out: self.queue.start(),
            listeners: &self.listeners,
            streams: &self.streams,
            connections: &mut self.connections,
            poller,
            nodes: self.node_tls.as_deref(),
        };
        let result = run(&mut self.endpoint, &mut outgoing);
        self.endpoint.begin_sending();
        drop(outgoing);
        self.connections.flush(poller, &mut self.endpoint.counters);
        result
    }

    /// Makes the sockets queue ICMP errors while a transaction waits for them. At other times, they would use memory,
    /// and each would wake up the worker.
    pub(super) fn keep_errors(&mut self) {
        let wanted = self.endpoint.wants_errors();
        if wanted == self.keeps_errors {
            return;
        }
        self.keeps_errors = wanted;
        for listener in &self.listeners {
            // Without ICMP errors, a request waits for its timeout.
            let _ = listener.udp.keep_icmp_errors(wanted);
        }
    }

    /// Reads a limited number of errors from the error queue of a socket.
    pub(super) fn read_errors(&mut self, number: u16, poller: &Poller) {
        let mut quoted = [0; QUOTED_BYTES];
        for _ in 0..MAX_ERRORS {
            let Some(listener) = self.listeners.get(usize::from(number)) else {
                return;
            };
            match listener.udp.next_icmp_error_about(&mut quoted) {
                Ok(Some((report, length))) if report.is_final() => {
                    let quoted = &quoted[..length];
                    self.with_outgoing(poller, |endpoint, outgoing| {
                        endpoint.unreachable(quoted, outgoing);
                    });
                }
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(_) => {
                    self.endpoint.counters.receive_errors += 1;
                    return;
                }
            }
        }
    }

    /// Adds the coalesced sockets that are due to those that the poller has reported.
    pub(super) fn add_due_sockets(&mut self) {
        let now = self.endpoint.now.mono;
        for (number, coalescing) in (0..).zip(&self.coalescing) {
            if coalescing.deadline().is_some_and(|due| due <= now) {
                let token = SipToken::Datagrams(number);
                let event = Event::readable(Token::Sip(token).as_u64());
                self.ready.push((token, event));
            }
        }
    }

    /// Reads the UDP socket of a listener in batches, and handles each message. `number` is the index of the listener.
    pub(super) fn read_datagrams(&mut self, number: u16, poller: &Poller) {
        let started = self.endpoint.now.mono;
        let (datagrams, has_read_all) = self.read_batches(number, poller);
        let index = usize::from(number);
        let (Some(listener), Some(coalescing)) =
            (self.listeners.get(index), self.coalescing.get_mut(index))
        else {
            return;
        };
        let read = SocketRead {
            started,
            datagrams,
            has_read_all,
            // `is_overloaded` of the engine stays true while the filter is active, which is longer.
            is_overloaded: self.endpoint.engine.overload_state() > 0,
        };
        let interest = match coalescing.note_read(&read) {
            Some(Change::Begin) => Interest::Nothing,
            Some(Change::End) => Interest::Read,
            None => return,
        };
        let token = Token::Sip(SipToken::Datagrams(number)).as_u64();
        // It fails if the socket was removed from the poller, because another process reads it now.
        if poller.modify(&listener.udp, token, interest).is_err() {
            coalescing.reset();
        }
    }

    /// Returns how many datagrams it has read, and whether the last batch was not full.
    fn read_batches(&mut self, number: u16, poller: &Poller) -> (u64, bool) {
        let mut total = 0;
        for round in 0..MAX_READ_ROUNDS {
            let Some(listener) = self.listeners.get(usize::from(number)) else {
                return (total, true);
            };
            let lost = self.batch.overflow();
            let started = self.endpoint.engine.is_overloaded().then(now);
            let result = listener.udp.recv_up_to(BATCH_MESSAGES, 0, &mut self.batch);
            let took = started.map(|started| now().mono.since(started.mono));
            let lost = self.batch.overflow() - lost;
            let lost = if self.endpoint.filter.lost(lost) {
                lost
            } else {
                0
            };
            match result {
                Ok(0) => return (total, true),
                Ok(_) => {}
                Err(error) => {
                    let idle = error.kind() == ErrorKind::WouldBlock;
                    self.endpoint.counters.receive_errors += u64::from(!idle);
                    return (total, true);
                }
            }
            let is_full = self.batch.len() == BATCH_MESSAGES;
            if round > 0 || is_full || took.is_some() {
                self.endpoint.now = now();
                // Otherwise the time since the beginning of the turn includes that of the receive call.
                self.endpoint
                    .congestion
                    .note_receive_time(took.unwrap_or_default());
            }
            // A batch that is not full has emptied the socket.
            let memory = is_full.then(|| listener.udp.memory().ok()).flatten();
            let datagrams = self.batch.iter();
            let datagrams =
                datagrams.map(|received| (received.segments().count(), received.bytes.len()));
            let batch = datagrams.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            total += batch.0 as u64;
            let congestion = &mut self.endpoint.congestion;
            congestion.note_datagrams(number, batch, lost, memory);
            self.handle_datagrams(number, poller);
            self.run_due_timers(poller);
            if !is_full {
                return (total, true);
            }
        }
        (total, false)
    }

    fn handle_datagrams(&mut self, number: u16, poller: &Poller) {
        let Some(listener) = self.listeners.get(usize::from(number)) else {
            return;
        };
        let local = listener.local;
        let mut outgoing = Outgoing {
            out: self.queue.start(),
            listeners: &self.listeners,
            streams: &self.streams,
            connections: &mut self.connections,
            poller,
            nodes: self.node_tls.as_deref(),
        };
        self.endpoint.begin_batch();
        let mut handled = 0;
        for received in self.batch.iter() {
            let flow = udp_flow(number, local, received.local_ip, received.from);
            for datagram in received.segments() {
                self.endpoint.datagram(datagram, &flow, &mut outgoing);
                handled += 1;
            }
        }
        self.endpoint.begin_sending();
        drop(outgoing);
        self.batch.clear();
        self.connections.flush(poller, &mut self.endpoint.counters);
        self.endpoint.end_batch(handled);
    }

    /// Handles messages that another worker has received for this one.
    pub(super) fn unpack(&mut self, batch: SipBatch, poller: &Poller) {
        let mut first = 0;
        while first < batch.items.len() {
            self.endpoint.now = now();
            let left = batch.items.len() - first;
            let waiting = self.inbox.iter().map(|batch| batch.messages);
            let waiting = waiting.sum::<usize>() + left.min(batch.messages);
            self.endpoint.congestion.note_batches(waiting);
            self.endpoint.begin_batch();
            let handled = self.with_outgoing(poller, |endpoint, outgoing| {
                endpoint.unpack(&batch, first, outgoing)
            });
            self.endpoint.end_batch(handled);
            self.run_due_timers(poller);
            first += BATCH_MESSAGES;
        }
        self.endpoint.congestion.note_batches(0);
        self.endpoint.put_back(batch);
    }

    /// Accepts the connections that wait at a listener.
    pub(super) fn accept(&mut self, number: u16, poller: &Poller) {
        let started_ns = io::clock::monotonic_ns();
        self.accept_waiting(number, poller);
        let ended_ns = io::clock::monotonic_ns();
        self.endpoint.congestion.note_other(started_ns, ended_ns);
    }

    fn accept_waiting(&mut self, number: u16, poller: &Poller) {
        for _ in 0..MAX_ACCEPTS {
            let Some(socket) = self.listening_socket(number) else {
                return;
            };
            match socket.accept() {
                Ok((stream, remote)) => self.admit(stream, number, remote, poller),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if is_exhausted(&error) => {
                    if self.connections.evict(None, &mut self.endpoint.counters) {
                        continue;
                    }
                    // The connection still waits, so the poller would report the listener at each wake-up.
                    let socket = self.listening_socket(number);
                    if socket.is_some_and(|socket| poller.remove(socket).is_ok()) {
                        self.accept_again = Some(self.endpoint.now.mono.plus(ACCEPT_PAUSE));
                    }
                    return;
                }
                // The connection was closed while it waited.
                Err(_) => {}
            }
        }
    }

    fn listening_socket(&self, number: u16) -> Option<&TcpListener> {
        let at = usize::from(number);
        match self.listeners.get(at) {
            Some(listener) => Some(&listener.tcp),
            None => Some(&self.streams.get(at - self.listeners.len())?.socket),
        }
    }

    /// Takes an accepted connection, or closes it because there are too many.
    fn admit(&mut self, stream: TcpConnection, number: u16, remote: SocketAddr, poller: &Poller) {
        let is_proxied = self.is_proxy(remote);
        if !is_proxied && self.endpoint.drops(remote.ip()) {
            self.endpoint.counters.connections_refused += 1;
            return;
        }
        let now = self.endpoint.now.mono;
        let (sip_config, counters) = self.endpoint.config_and_counters();
        let parts = (stream, number, remote, is_proxied);
        let with = (now, &mut *counters);
        let admitted = self.connections.admit(parts, sip_config, poller, with);
        counters.connections_accepted += u64::from(admitted.is_some());
        counters.connections_refused += u64::from(admitted.is_none());
        let Some(slot) = admitted else {
            return;
        };
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        connection.awaits_proxy_header = is_proxied;
        let layered = usize::from(number).checked_sub(self.listeners.len());
        if let Some(listener) = layered.and_then(|at| self.streams.get(at)) {
            let tls = listener.tls.as_ref();
            let Some(layers) = Layers::accepted(listener.transport, tls) else {
                self.connections
                    .close(slot, DisconnectReason::Malformed, counters);
                return;
            };
            connection.transport = listener.transport;
            connection.layers = layers;
        }
        // The engine must not have the address of a load balancer as that of a client.
        if !is_proxied {
            self.announce(slot);
        }
    }

    /// Handles an event of a connection: it was opened, it can be written, or it has bytes to read.
    pub(super) fn serve_connection(&mut self, slot: Slot, event: Event, poller: &Poller) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        if !connection.is_established {
            if let Err(error) = connection.stream.take_error() {
                self.close(slot, DisconnectReason::of(&error));
                return;
            }
            connection.is_established = true;
            match connection.layers.tls {
                Some(_) => connection.begin_handshake(),
                None => self.connected(slot, poller),
            }
            self.connections
                .write(slot, poller, &mut self.endpoint.counters);
        }
        if event.writable {
            let counters = &mut self.endpoint.counters;
            self.connections.write(slot, poller, counters);
        }
        let connection = self.connections.get(slot);
        if let Some(connection) = connection.filter(|connection| connection.ended.is_some()) {
            // Neither side reads any more.
            if event.error || event.closed {
                let error = connection.stream.take_error().err();
                let reason =
                    error.map_or(DisconnectReason::Peer, |error| DisconnectReason::of(&error));
                self.close(slot, reason);
            }
        } else if event.readable {
            self.read_connection(slot, poller);
        }
    }

    /// Handles the end of a TLS handshake.
    pub(super) fn handshaken(&mut self, slot: Slot, poller: &Poller) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let (key, names) = (connection.key, connection.client_names());
        if connection.connecting.is_some() {
            self.connected(slot, poller);
        } else if let Some(names) = names {
            tracing::debug!(names = ?names, "a client of SIP has a certificate");
            self.endpoint.engine.authenticated(key, &names);
        }
    }

    /// Sends the messages that waited for a connection, because it is open now.
    fn connected(&mut self, slot: Slot, poller: &Poller) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let (key, flow) = (connection.connecting.take(), flow_of(connection));
        // This server has connected, so no message is due from the other side.
        (connection.begun, connection.verifies) = (None, None);
        self.connections.set_proven(slot);
        if let Some(key) = key {
            self.with_outgoing(poller, |endpoint, outgoing| {
                let now = endpoint.now.mono;
                endpoint.engine.connected(now, key, &flow);
                endpoint.drain(outgoing);
            });
        }
        self.connections
            .write(slot, poller, &mut self.endpoint.counters);
    }

    pub(super) fn close(&mut self, slot: Slot, reason: DisconnectReason) {
        let counters = &mut self.endpoint.counters;
        self.connections.close(slot, reason, counters);
    }

    /// Reads once, and handles all complete messages.
    fn read_connection(&mut self, slot: Slot, poller: &Poller) {
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        if connection.is_write_queue_full() || self.defers(slot) {
            return;
        }
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        let limit = self.read_limit.min(self.scratch.len());
        let read = match connection.stream.read(&mut self.scratch[..limit]) {
            Ok(0) => return self.end_of_stream(slot, poller),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => return self.close(slot, DisconnectReason::of(&error)),
        };
        connection.heard = self.endpoint.now.mono;
        let flow = flow_of(connection);
        let full = read == limit;
        let unread = full.then(|| connection.stream.unread().unwrap_or(0));
        let unread = unread.unwrap_or(0);
        let mut scratch = std::mem::take(&mut self.scratch);
        if self.awaits_proxy_header(slot) {
            self.take_proxy_header(slot, &scratch[..read], poller);
        } else if flow.transport == Transport::Tcp {
            self.take_plain(&mut scratch[..read], unread, &flow, poller);
        } else {
            self.take_layered(&mut scratch[..read], unread, &flow, poller);
        }
        self.scratch = scratch;
    }

    /// Handles the messages that these bytes complete, and keeps the rest.
    pub(super) fn take_messages(
        &mut self,
        bytes: &[u8],
        unread: usize,
        flow: &Flow,
        poller: &Poller,
    ) {
        let Some(slot) = flow.connection.map(slot_of) else {
            return;
        };
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        // Without an incomplete message, the worker handles messages in the read buffer, and copies nothing.
        let mut inbound = std::mem::take(&mut connection.inbound);
        let used = if inbound.is_empty() {
            let used = self.handle_stream(bytes, unread, flow, poller);
            if let Some(used) = used.filter(|used| *used < bytes.len()) {
                inbound = self.connections.buffer();
                inbound.extend_from_slice(&bytes[used..]);
            }
            used
        } else {
            inbound.extend_from_slice(bytes);
            let used = self.handle_stream(&inbound, unread, flow, poller);
            inbound.drain(..used.unwrap_or(0));
            used
        };
        match used {
            Some(used) => self.keep_rest(slot, inbound, used > 0),
            None => self.close(slot, DisconnectReason::Malformed),
        }
    }

    /// Keeps the rest of a read, which is an incomplete message.
    fn keep_rest(&mut self, slot: Slot, inbound: Vec<u8>, moved_on: bool) {
        if inbound.is_empty() {
            // The buffer is freed, too.
            self.connections.put_back(inbound);
        } else if let Some(connection) = self.connections.get(slot) {
            connection.inbound = inbound;
        }
        self.restart_message_timer(slot, moved_on);
    }

    /// Starts the deadline of an incomplete message. More bytes do not extend it.
    pub(super) fn restart_message_timer(&mut self, slot: Slot, moved_on: bool) {
        let now = self.endpoint.now.mono;
        let Some(connection) = self.connections.get(slot) else {
            return;
        };
        if connection.inbound.is_empty() && !connection.layers.is_begun() {
            if connection.proven {
                connection.begun = None;
            }
        } else if moved_on || connection.begun.is_none() {
            connection.begun = Some(now);
        }
        let (sip_config, _) = self.endpoint.config_and_counters();
        self.connections.set_timer(slot, sip_config);
    }

    /// Handles the complete messages at the start of `bytes`. Returns their length, or `None` if the stream is
    /// malformed.
    fn handle_stream(
        &mut self,
        bytes: &[u8],
        unread: usize,
        flow: &Flow,
        poller: &Poller,
    ) -> Option<usize> {
        let slot = slot_of(flow.connection?);
        let mut used = 0;
        let mut handled = 0;
        let mut batch = 0;
        loop {
            let rest = bytes.get(used..).unwrap_or_default();
            let limits = self.endpoint.limits;
            let connection = self.connections.get(slot)?;
            let framed = connection.framer.next(rest, &limits);
            if batch == 0 {
                let waits = rest.len() + unread;
                self.endpoint
                    .congestion
                    .note_stream(waits, self.unread_sockets);
                self.endpoint.begin_batch();
            }
            match framed {
                Ok(Frame::Message { len }) => {
                    let message = rest.get(..len)?;
                    self.connections.set_proven(slot);
                    self.with_stream(poller, |endpoint, outgoing| {
                        endpoint.stream_message(message, flow, outgoing);
                    });
                    used += len;
                    handled += 1;
                    batch += 1;
                }
                Ok(Frame::Ping { len }) => {
                    self.endpoint.counters.pings += 1;
                    let counters = &mut self.endpoint.counters;
                    self.connections.queue(slot, PONG, counters);
                    used += len;
                }
                Ok(Frame::LineEnd { len }) => used += len,
                Ok(Frame::Need(_)) => break,
                Err(broken) => {
                    let head = rest.get(..broken.head_len).unwrap_or_default();
                    self.with_stream(poller, |endpoint, outgoing| {
                        endpoint.refuse_stream(head, broken.error, flow, outgoing);
                    });
                    self.end_stream_batch(batch, poller);
                    return None;
                }
            }
            if batch == BATCH_MESSAGES {
                self.end_stream_batch(batch, poller);
                self.endpoint.now = now();
                self.run_due_timers(poller);
                batch = 0;
            }
        }
        self.end_stream_batch(batch, poller);
        if handled > 0 {
            self.run_due_timers(poller);
        }
        // It may have been closed while its responses were queued.
        self.connections.get(slot).map(|_| used)
    }

    pub(super) fn end_stream_batch(&mut self, handled: usize, poller: &Poller) {
        self.endpoint.begin_sending();
        self.connections.flush(poller, &mut self.endpoint.counters);
        self.endpoint.end_batch(handled);
    }

    /// The same as `with_outgoing`, but messages are written at the end of the batch.
    pub(super) fn with_stream(
        &mut self,
        poller: &Poller,
        run: impl FnOnce(&mut super::Endpoint, &mut Outgoing<'_, '_, '_>),
    ) {
        let mut outgoing = Outgoing {
            out: self.queue.start(),
            listeners: &self.listeners,
            streams: &self.streams,
            connections: &mut self.connections,
            poller,
            nodes: self.node_tls.as_deref(),
        };
        run(&mut self.endpoint, &mut outgoing);
    }
}

pub(super) fn flow_of(connection: &Connection) -> Flow {
    Flow {
        transport: connection.transport,
        listener: ListenerKey(connection.listener),
        connection: Some(connection.key),
        local: connection.local,
        remote: connection.remote,
    }
}

/// The current time.
pub(crate) fn now() -> Now {
    let now = crate::worker::now();
    Now {
        mono: sip::Mono(now.mono.0),
        unix_s: now.unix_s,
    }
}

/// Whether no descriptors or no memory are left.
fn is_exhausted(error: &std::io::Error) -> bool {
    // EMFILE, ENFILE, ENOBUFS, ENOMEM: std has no kinds for them.
    matches!(error.raw_os_error(), Some(24 | 23 | 105 | 12))
}
