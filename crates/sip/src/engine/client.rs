//! The client side: the TU sends requests, responses come in.

use super::clients::{Client, Machine};
use super::compose;
use super::connections::{Path, Waiting};
use super::error::RequestError;
use super::key::ClientKey;
use super::output::{ClientFailure, Event, Mark, Origin, SendTo};
use super::server::release;
use super::{Engine, store};
use crate::branch::{Branch, LoopCheck};
use crate::build::BuildError;
use crate::congestion::Class;
use crate::flow::{ConnectionKey, Destination, Transport};
use crate::message::Message;
use crate::routing::wants_stream;
use crate::transaction::{Sending, Step, TuEvent};
use crate::{Method, Mono};

/// A request of the TU.
#[derive(Clone, Debug)]
pub struct Outgoing<'a> {
    /// Where to.
    pub to: Destination,
    /// Over this connection, regardless of the destination: for flows (RFC 5626). The request fails if it is closed.
    pub connection: Option<ConnectionKey>,
    /// The request without a Via of ours, in pieces; the first begins with the start line.
    pub pieces: &'a [&'a [u8]],
    /// Which requests the next hop's overload report throttles first (RFC 7339 §5.10.1). In an overload of this server
    /// it also decides whether the request is refused, unless it has a `loop_check`.
    pub class: Class,
    /// With a mark, the TU gets an event when the transaction ends.
    pub mark: Option<Mark>,
    /// What [`Engine::loop_check`] said of the request that a proxy forks: it stands in the branch. A request with it is
    /// the copy of one that was accepted, so admission control does not judge it again.
    pub loop_check: Option<LoopCheck>,
}

impl Engine {
    /// Sends a request in a client transaction of its own, with our Via on top of it.
    ///
    /// A request too large for UDP goes over TCP (RFC 3261 §18.1.1), and over UDP after all if no connection can be
    /// had. Failing over to another server is another call: it has a branch of its own.
    ///
    /// # Errors
    /// [`RequestError`]; nothing was sent then.
    pub fn request(&mut self, now: Mono, out: &Outgoing<'_>) -> Result<ClientKey, RequestError> {
        let transport = self.choose_transport(out);
        self.request_to(now, out, transport)
    }

    /// Like the function above, but by a flow that the other end has opened, for any size. A phone behind a NAT has a
    /// path back over UDP and accepts no TCP connection (RFC 5626 §5.3).
    ///
    /// # Errors
    /// [`RequestError`]; nothing was sent then.
    pub fn request_by_flow(
        &mut self,
        now: Mono,
        out: &Outgoing<'_>,
    ) -> Result<ClientKey, RequestError> {
        self.request_to(now, out, (out.to.clone(), false))
    }

    fn request_to(
        &mut self,
        now: Mono,
        out: &Outgoing<'_>,
        (to, may_be_udp): (Destination, bool),
    ) -> Result<ClientKey, RequestError> {
        let method = method_of(out.pieces).ok_or(RequestError::Malformed)?;
        if method == Method::Ack {
            return Err(RequestError::Malformed);
        }
        self.admit_request(now, out)?;
        let connection = self.named_connection(out)?;
        let (slot, generation) = self.clients.slab.vacant();
        let key = ClientKey { slot, generation };
        let length = self.compose_request(out, &to, key)?;
        let bytes = self.scratch.get(..length).unwrap_or_default();
        let message = self.store.keep(bytes).ok_or(RequestError::TooLong)?;
        let timers = self.config.timers;
        let reliable = to.transport.is_reliable();
        self.clients.slab.insert(Client {
            machine: Machine::start(now, &timers, method, reliable),
            method: self.matcher.method(method),
            to,
            connection,
            is_named: connection.is_some(),
            ends_with_connection: false,
            is_counted: false,
            older: None,
            newer: None,
            mark: out.mark,
            message: Some(message),
            partner: None,
            is_cancel: false,
            // Only a proxy has a loop check.
            is_forwarded: out.loop_check.is_some(),
            may_be_udp,
        });
        self.stats.requests_sent += 1;
        self.transmit(now, key);
        self.set_client_timer(key.slot);
        Ok(key)
    }

    fn admit_request(&mut self, now: Mono, out: &Outgoing<'_>) -> Result<(), RequestError> {
        if self.clients.slab.len() >= self.config.most_clients {
            return Err(RequestError::Full);
        }
        // Admission control has accepted a proxy's request when it came in, by its source and class. A copy has neither
        // source nor credentials, so judging it again would refuse accepted calls.
        let is_forwarded = out.loop_check.is_some();
        if !is_forwarded && !self.controller.admit_from_tu(out.class) {
            return Err(RequestError::Congested);
        }
        if self.config.overload_control && !self.downstream.admit(now, out.to.remote, out.class) {
            return Err(RequestError::HeldBack);
        }
        Ok(())
    }

    /// The destination, with TCP for what is too large for UDP; and whether UDP would do if there is no TCP.
    pub(super) fn choose_transport(&self, out: &Outgoing<'_>) -> (Destination, bool) {
        let mut to = out.to.clone();
        let size: usize = out.pieces.iter().map(|piece| piece.len()).sum();
        let has_tcp = self.config.has_transport(to.listener, Transport::Tcp);
        let has_tcp = has_tcp && self.config.large_over_tcp;
        // Our Via is part of the message.
        let is_large = wants_stream(to.transport, size + VIA_LEN, self.config.path_mtu);
        if is_large && has_tcp && out.connection.is_none() {
            to.transport = Transport::Tcp;
            return (to, true);
        }
        (to, false)
    }

    pub(super) fn named_connection(
        &self,
        out: &Outgoing<'_>,
    ) -> Result<Option<ConnectionKey>, RequestError> {
        match out.connection {
            Some(key) if !self.connections.is_open(key) => Err(RequestError::NoConnection),
            named => Ok(named),
        }
    }

    /// Writes the request with its Via into the scratch buffer; its length.
    fn compose_request(
        &mut self,
        out: &Outgoing<'_>,
        to: &Destination,
        key: ClientKey,
    ) -> Result<usize, RequestError> {
        let signature = self.config.signature(&to.into());
        let signature = signature.ok_or(RequestError::NoSentBy)?;
        let branch = self.codec.write(Branch {
            worker: self.config.worker,
            slot: key.slot,
            generation: key.generation,
        });
        let oc = self.config.overload_offer();
        let branch = (&branch, out.loop_check);
        let built = compose::request(&mut self.scratch, out.pieces, &signature, branch, oc);
        let length = match built {
            Ok(built) => built.len(),
            Err(BuildError::NoRoom) => return Err(RequestError::TooLong),
            Err(_) => return Err(RequestError::Malformed),
        };
        if length > store::MAX_MESSAGE_BYTES {
            return Err(RequestError::TooLong);
        }
        Ok(length)
    }

    /// The TU cancels an INVITE (RFC 3261 §9.1). The engine sends the CANCEL after a provisional response, and absorbs
    /// its responses. Without effect once there is a final response.
    pub fn cancel(&mut self, now: Mono, key: ClientKey) {
        self.cancel_with_reason(now, key, b"");
    }

    /// As [`Engine::cancel`]. `reason` is complete Reason header lines, each with its CRLF (RFC 3326 §2). The CANCEL has
    /// none of them if they exceed [`MAX_REASON_BYTES`]. The same holds if 1,024 CANCELs with a Reason already wait for
    /// a provisional response.
    pub fn cancel_with_reason(&mut self, now: Mono, key: ClientKey, reason: &[u8]) {
        let timers = self.config.timers;
        let Some(client) = self.clients.slab.get(key.slot, key.generation) else {
            return;
        };
        // It is cancelled before a connection exists, so it is never sent.
        let is_unsent = client.to.transport.is_reliable() && client.connection.is_none();
        if is_unsent && matches!(client.machine, Machine::Invite(_)) {
            return self.abandon_unsent(now, key);
        }
        if let Machine::Invite(machine) = &mut client.machine {
            let waited = machine.waits_to_cancel();
            let step = machine.cancel(now, &timers);
            let begins_to_wait = !waited && machine.waits_to_cancel();
            let is_kept = begins_to_wait && self.reasons.len() < MAX_REASONS;
            if (is_kept || step.send == Some(Sending::Cancel))
                && (1..=MAX_REASON_BYTES).contains(&reason.len())
            {
                self.reasons.insert(key.slot, reason.into());
            }
            self.carry_out_client(now, key, step, None, false);
        }
    }

    /// Ends a transaction whose request was never sent.
    fn abandon_unsent(&mut self, now: Mono, key: ClientKey) {
        let client = self.clients.slab.get(key.slot, key.generation);
        if let Some(mark) = client.and_then(|client| client.mark.take()) {
            let failure = ClientFailure::Cancelled;
            self.outputs
                .event(Event::ClientFailed { key, mark, failure });
        }
        self.end_client(now, key);
    }

    /// Sends the transaction's message, or waits for a connection to send it over.
    pub(super) fn transmit(&mut self, now: Mono, key: ClientKey) {
        let Some(client) = self.clients.slab.get(key.slot, key.generation) else {
            return;
        };
        let Some(cell) = &client.message else { return };
        if !client.to.transport.is_reliable() {
            let to = datagram(&client.to);
            self.outputs
                .send(to, Origin::Client(key), self.store.get(cell));
            return;
        }
        let to = client.to.clone();
        match client.connection {
            Some(connection) if self.connections.is_open(connection) => {
                self.transmit_over(now, key, connection);
            }
            _ if client.is_named => self.client_transport_failed(now, key),
            _ => self.send_over_stream(now, to, Waiting::Client(key)),
        }
    }

    /// Sends the transaction's message over a connection, and keeps it no longer than it is of use: over a stream
    /// nothing is sent again.
    pub(super) fn transmit_over(&mut self, now: Mono, key: ClientKey, connection: ConnectionKey) {
        let Some(client) = self.clients.slab.get(key.slot, key.generation) else {
            return;
        };
        let Some(cell) = &client.message else { return };
        let bytes = self.store.get(cell);
        let to = SendTo::Stream(connection);
        self.outputs.send(to, Origin::Client(key), bytes);
        client.may_be_udp = false;
        if matches!(client.machine, Machine::Other(_)) {
            release(&mut self.store, &mut client.message);
        }
        let before = client.connection.replace(connection);
        let before = before.filter(|_| client.is_counted);
        if before != Some(connection) {
            client.is_counted = true;
            let neighbours = (client.older.take(), client.newer.take());
            if let Some(before) = before {
                self.leave_connection(now, neighbours, before);
            }
            self.join_connection(now, key.slot, connection);
        }
    }

    /// Sends a message that belongs to no client transaction over a stream, opening it if need be.
    pub(super) fn send_over_stream(&mut self, now: Mono, to: Destination, waiting: Waiting) {
        match self.connections.reach(&to, waiting) {
            Path::Open(connection, waiting) => self.send_waiting(now, connection, waiting),
            Path::Waits => {}
            Path::Opens(key) => self.outputs.connect(key, to),
            Path::Refused(waiting) => self.fail_waiting(now, waiting),
        }
    }

    pub(super) fn send_waiting(&mut self, now: Mono, connection: ConnectionKey, waiting: Waiting) {
        match waiting {
            Waiting::Client(key) => self.transmit_over(now, key, connection),
            Waiting::Response(server, cell) => {
                let origin = server.map_or(Origin::Nobody, Origin::Server);
                let bytes = self.store.get(&cell);
                self.outputs.send(SendTo::Stream(connection), origin, bytes);
                self.store.release(cell);
            }
            Waiting::LargeRequest(_, cell) => {
                let (to, bytes) = (SendTo::Stream(connection), self.store.get(&cell));
                self.outputs.send(to, Origin::Nobody, bytes);
                self.store.release(cell);
            }
            Waiting::Redirected(mark, cell) => {
                let bytes = self.store.get(&cell);
                let to = SendTo::Stream(connection);
                self.outputs.send(to, Origin::Nobody, bytes);
                self.store.release(cell);
                self.redirected(mark, true);
            }
        }
    }

    /// No connection can be opened: retries the request over UDP, or reports a transport failure.
    pub(super) fn fail_waiting(&mut self, now: Mono, waiting: Waiting) {
        match waiting {
            Waiting::Client(key) => self.connect_failed_for(now, key),
            Waiting::Response(server, cell) => {
                self.store.release(cell);
                if let Some(key) = server {
                    self.server_transport_failed(now, key);
                }
            }
            Waiting::LargeRequest(to, cell) => {
                compose::make_udp(self.store.get_mut(&cell));
                let bytes = self.store.get(&cell);
                self.outputs.send(datagram(&to), Origin::Nobody, bytes);
                self.store.release(cell);
            }
            Waiting::Redirected(mark, cell) => {
                self.store.release(cell);
                self.redirected(mark, false);
            }
        }
    }

    /// RFC 3261 §18.1.1: a request that went over TCP for its size alone goes over UDP if there is no TCP.
    fn connect_failed_for(&mut self, now: Mono, key: ClientKey) {
        let timers = self.config.timers;
        let Some(client) = self.clients.slab.get(key.slot, key.generation) else {
            return;
        };
        let method = match client.machine {
            Machine::Invite(_) => Method::Invite,
            Machine::Other(_) => Method::Options,
        };
        let (true, Some(cell)) = (client.may_be_udp, &client.message) else {
            self.client_transport_failed(now, key);
            return;
        };
        compose::make_udp(self.store.get_mut(cell));
        client.may_be_udp = false;
        client.to.transport = Transport::Udp;
        client.machine = Machine::start(now, &timers, method, false);
        self.transmit(now, key);
        self.set_client_timer(key.slot);
    }

    /// A client timer has fired.
    pub(super) fn client_timer(&mut self, now: Mono, slot: u32) {
        let timers = self.config.timers;
        let Some((generation, client)) = self.clients.slab.at(slot) else {
            return;
        };
        let key = ClientKey { slot, generation };
        let step = client.machine.fire(now, &timers);
        self.carry_out_client(now, key, step, None, true);
    }

    /// The transport says that the request could not be sent.
    pub(super) fn client_transport_failed(&mut self, now: Mono, key: ClientKey) {
        let Some(client) = self.clients.slab.get(key.slot, key.generation) else {
            return;
        };
        let step = client.machine.transport_failed();
        self.carry_out_client(now, key, step, None, false);
    }

    /// The connection of the request is lost.
    pub(super) fn client_connection_lost(&mut self, now: Mono, key: ClientKey) {
        let Some(client) = self.clients.slab.get(key.slot, key.generation) else {
            return;
        };
        let step = match client.ends_with_connection {
            true => client.machine.flow_failed(),
            false => client.machine.transport_failed(),
        };
        self.carry_out_client(now, key, step, None, false);
    }

    /// A request that used a connection fails with it, also after a provisional response. It is for a phone behind a
    /// NAT, which cannot be reached in another way (RFC 5626 §5.3). Without this call, the engine waits, because a
    /// server may respond by another connection (RFC 3261 §18.2.2).
    pub fn end_with_connection(&mut self, key: ClientKey) {
        if let Some(client) = self.clients.slab.get(key.slot, key.generation) {
            client.ends_with_connection = client.is_named;
        }
    }

    /// Carries out a transition of a client transaction. `by_timer`: a timer has caused it, not a response.
    pub(super) fn carry_out_client(
        &mut self,
        now: Mono,
        key: ClientKey,
        step: Step,
        response: Option<&Message<'_>>,
        by_timer: bool,
    ) {
        match step.send {
            Some(Sending::Request) if by_timer && self.controller.defers_retransmission() => {}
            Some(Sending::Request) => {
                self.stats.retransmissions_sent += 1;
                self.transmit(now, key);
            }
            Some(Sending::NewAck) => self.send_ack(now, key, response),
            Some(Sending::Ack) => self.transmit(now, key),
            Some(Sending::Cancel) => self.send_cancel(now, key),
            _ => {}
        }
        if step.discards
            && let Some(client) = self.clients.slab.get(key.slot, key.generation)
        {
            release(&mut self.store, &mut client.message);
        }
        self.apply_client_step(key, step);
        if step.end {
            self.end_client(now, key);
        } else {
            self.set_client_timer(key.slot);
        }
    }

    fn apply_client_step(&mut self, key: ClientKey, step: Step) {
        let failure = match step.tu_event {
            Some(TuEvent::Timeout) => ClientFailure::TimedOut,
            Some(TuEvent::TransportFailed) => ClientFailure::TransportFailed,
            _ => return,
        };
        let client = self.clients.slab.get(key.slot, key.generation);
        let Some(client) = client else { return };
        if failure == ClientFailure::TimedOut && !client.is_cancel {
            self.stats.timeouts += 1;
        }
        // The TU gets this event only, and no `ClientEnded`.
        if let Some(mark) = client.mark.take() {
            self.outputs
                .event(Event::ClientFailed { key, mark, failure });
        }
    }

    /// Adds a transaction to the list of those whose request went over this connection.
    fn join_connection(&mut self, now: Mono, slot: u32, connection: ConnectionKey) {
        let older = self.connections.join(now, connection, slot);
        if let Some((_, client)) = self.clients.slab.at(slot) {
            client.older = older;
        }
        if let Some((_, older)) = older.and_then(|older| self.clients.slab.at(older)) {
            older.newer = Some(slot);
        }
    }

    /// Takes a transaction with these neighbours out of that list.
    fn leave_connection(
        &mut self,
        now: Mono,
        (older, newer): (Option<u32>, Option<u32>),
        connection: ConnectionKey,
    ) {
        if let Some((_, client)) = older.and_then(|older| self.clients.slab.at(older)) {
            client.newer = newer;
        }
        if let Some((_, client)) = newer.and_then(|newer| self.clients.slab.at(newer)) {
            client.older = older;
        }
        let newest = newer.is_none().then_some(older);
        self.connections.leave(now, connection, newest);
    }

    /// The transactions whose request went over a connection, of which this is the newest.
    pub(super) fn clients_from(&mut self, newest: Option<u32>) -> Vec<ClientKey> {
        let mut keys = Vec::new();
        let mut next = newest;
        while let Some((generation, client)) = next.and_then(|slot| self.clients.slab.at(slot)) {
            let slot = next.unwrap_or_default();
            keys.push(ClientKey { slot, generation });
            next = client.older;
        }
        keys
    }

    pub(super) fn set_client_timer(&mut self, slot: u32) {
        if let Some(client) = self.clients.slab.peek(slot) {
            self.clients.wheel.set(slot, client.machine.deadline());
        }
    }

    /// Ends a transaction. If it is an INVITE's, the transaction of its CANCEL ends, too.
    fn end_client(&mut self, now: Mono, key: ClientKey) {
        if self.clients.slab.get(key.slot, key.generation).is_none() {
            return;
        }
        let Some(mut client) = self.clients.slab.remove(key.slot) else {
            return;
        };
        self.clients.wheel.remove(key.slot);
        if !self.reasons.is_empty() {
            self.reasons.remove(&key.slot);
        }
        release(&mut self.store, &mut client.message);
        if let Some(connection) = client.connection.filter(|_| client.is_counted) {
            self.leave_connection(now, (client.older, client.newer), connection);
        }
        if let Some(mark) = client.mark {
            self.outputs.event(Event::ClientEnded { key, mark });
        }
        match client.partner {
            Some(cancel) if !client.is_cancel => self.end_client(now, cancel),
            Some(invite) => {
                if let Some(invite) = self.clients.slab.get(invite.slot, invite.generation) {
                    invite.partner = None;
                }
            }
            None => {}
        }
    }
}

/// The maximum length of all Reason header lines of a CANCEL together, in bytes, with CRLF.
pub const MAX_REASON_BYTES: usize = 256;
/// How many CANCELs may wait for a provisional response with their Reason: 256 KiB in all.
const MAX_REASONS: usize = 1024;

/// About what our Via takes.
const VIA_LEN: usize = 110;

pub(super) fn datagram(to: &Destination) -> SendTo {
    SendTo::Datagram {
        listener: to.listener,
        local: to.local,
        remote: to.remote,
    }
}

fn method_of<'a>(pieces: &[&'a [u8]]) -> Option<Method<'a>> {
    let first = pieces.first()?;
    let end = memchr::memchr(b' ', first)?;
    Some(Method::of(first.get(..end)?))
}
