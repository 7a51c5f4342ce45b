//! The server side: requests come in, the TU answers.

use std::net::SocketAddr;

use super::compose::{self, Layout};
use super::error::{AcceptError, RespondError};
use super::key::{RelatedKey, ServerKey, answered_at_once};
use super::output::{Event, Mark, Origin, Output, SendTo, ServerFailure};
use super::received::{Ack, NewRequest, Received, reply_address};
use super::reply::{Content, Reply};
use super::servers::{Machine, Server};
use super::store::Cell;
use super::{Engine, connections::Waiting};
use crate::branch::{Branch, TAG_LEN};
use crate::flow::{ConnectionKey, Destination, Flow};
use crate::header::Via;
use crate::message::{Limits, Message};
use crate::transaction::{Sending, Step, TuEvent};
use crate::{Method, Mono, Scan};

impl Engine {
    /// A request that belongs to a transaction: it came again, or is the ACK.
    pub(super) fn known_request<'m>(
        &mut self,
        now: Mono,
        slot: u32,
        (message, via): (Message<'m>, &Via<'m>),
        flow: &Flow,
    ) -> Received<'m> {
        let is_ack = message.method() == Some(Method::Ack);
        let timers = self.config.timers;
        let Some((generation, server)) = self.servers.slab.at(slot) else {
            return Received::Absorbed;
        };
        let key = ServerKey { slot, generation };
        let mark = server.mark;
        if !is_ack {
            server.allowance.add(flow, message.as_bytes().len());
        }
        let step = match (&mut server.machine, is_ack) {
            (Machine::Invite(machine), true) => machine.ack(now, &timers),
            (Machine::Invite(machine), false) => machine.request(),
            (Machine::Other(machine), false) => machine.request(),
            (Machine::Other(_), true) => Step::NOTHING,
        };
        if is_ack {
            self.stats.acks += 1;
        } else {
            self.stats.retransmissions_received += 1;
        }
        let for_tu = step.tu_event == Some(TuEvent::Ack);
        self.carry_out_server(now, key, step, false);
        if for_tu {
            self.stop_repeating(key);
            return Received::Ack(Ack {
                message,
                via: *via,
                flow: *flow,
                invite: Some((key, mark)),
            });
        }
        Received::Absorbed
    }

    /// The client has the 2xx: its ACK has arrived, or another message of the client shows it. The 2xx is not repeated
    /// any more.
    pub fn stop_repeating(&mut self, key: ServerKey) {
        let Some(server) = self.servers.slab.get(key.slot, key.generation) else {
            return;
        };
        if let Machine::Invite(machine) = &mut server.machine
            && machine.acknowledged()
            && let Some(cell) = server.response.take()
        {
            self.store.release(cell);
        }
        self.servers.moved(key.slot);
    }

    /// Handles a CANCEL for an INVITE of this engine (RFC 3261 §9.2). The response is 200. The TU gets the CANCEL if
    /// the INVITE has no final response yet.
    pub(super) fn cancel_request<'m>(
        &mut self,
        now: Mono,
        request: NewRequest<'m>,
        invite: u32,
    ) -> Received<'m> {
        let Some((generation, server)) = self.servers.slab.at(invite) else {
            return Received::Absorbed;
        };
        let key = ServerKey {
            slot: invite,
            generation,
        };
        let mark = server.mark;
        let in_time =
            matches!(&server.machine, Machine::Invite(machine) if machine.is_proceeding());
        // RFC 3261 §9.2: the To tag of both answers should be the same.
        let tag = self.tag_of_server(key);
        // A full table leaves the CANCEL without an answer; it will come again.
        let _ = self.respond_and_forget(now, &request, &Reply::new(200).to_tag(&tag));
        if in_time {
            Received::Cancel {
                invite: key,
                mark,
                message: request.message,
            }
        } else {
            Received::Absorbed
        }
    }

    /// The To tag of the responses to an accepted request, unless [`Reply::to_tag`] names another one. It is the local
    /// tag of the dialog that they begin (RFC 3261 §12.1.1). It is told while the transaction lives.
    #[must_use]
    pub fn to_tag(&self, key: ServerKey) -> [u8; TAG_LEN] {
        self.tag_of_server(key)
    }

    /// The To tag of this transaction's responses.
    fn tag_of_server(&self, key: ServerKey) -> [u8; TAG_LEN] {
        let branch = Branch {
            worker: self.config.worker,
            slot: key.slot,
            generation: key.generation,
        };
        let server = self.servers.slab.peek(key.slot);
        let dialog = server.map_or(0, |server| server.dialog);
        self.codec.write_tag(branch, dialog)
    }

    /// Whether an INVITE has no final response yet.
    #[must_use]
    pub fn is_proceeding(&mut self, key: ServerKey) -> bool {
        let server = self.servers.slab.get(key.slot, key.generation);
        let machine = server.map(|server| &server.machine);
        matches!(machine, Some(Machine::Invite(machine)) if machine.is_proceeding())
    }

    /// Makes a server transaction for a request that is answered later. With a mark, the TU gets an event when the
    /// transaction ends.
    ///
    /// # Errors
    /// [`AcceptError`]. The request has its answer then: 503 if there is no room, 513 if it is too long.
    pub fn accept(
        &mut self,
        now: Mono,
        request: NewRequest<'_>,
        mark: Option<Mark>,
    ) -> Result<ServerKey, AcceptError> {
        let accepted = self.keep_request(now, &request, mark);
        match accepted {
            Err(AcceptError::Full) => self.refuse_for_room(&request),
            Err(AcceptError::TooLong) => {
                // RFC 3261 §21.5.7. If even this response cannot be built, the client sends its request again.
                let _ = self.answer_without_state(&request, &Reply::new(513));
            }
            Ok(_) | Err(AcceptError::Ack) => {}
        }
        accepted
    }

    fn keep_request(
        &mut self,
        now: Mono,
        request: &NewRequest<'_>,
        mark: Option<Mark>,
    ) -> Result<ServerKey, AcceptError> {
        let kept = compose::keep(&mut self.scratch, request);
        let (kept, layout) = kept.map_err(|_| AcceptError::TooLong)?;
        let kept = self.store.keep(kept).ok_or(AcceptError::TooLong)?;
        match self.insert_server(now, request, mark, ByOthers::Yes) {
            Ok(key) => {
                if let Some(server) = self.servers.slab.get(key.slot, key.generation) {
                    server.request = Some(kept);
                    server.layout = layout;
                }
                if let Some(connection) = request.flow.connection {
                    self.connections.add_unanswered(connection);
                }
                Ok(key)
            }
            Err(error) => {
                self.store.release(kept);
                Err(error)
            }
        }
    }

    /// Refuses a request because there are as many transactions as there may be.
    fn refuse_for_room(&mut self, request: &NewRequest<'_>) {
        self.stats.without_room += 1;
        let reply = Reply::new(503).headers(b"Retry-After: 1\r\n");
        // If even this response cannot be built, the client sends its request again.
        let _ = self.answer_without_state(request, &reply);
    }

    fn insert_server(
        &mut self,
        now: Mono,
        request: &NewRequest<'_>,
        mark: Option<Mark>,
        found: ByOthers,
    ) -> Result<ServerKey, AcceptError> {
        let counter = self.servers.quota.counter(request.flow.remote.ip());
        let allowance = self.allowance_for(request);
        if !self.ensure_room(now, counter, allowance.is_unlimited()) {
            return Err(AcceptError::Full);
        }
        let method = request.message.method().unwrap_or(Method::Ack);
        if method == Method::Ack {
            return Err(AcceptError::Ack);
        }
        let reliable = request.flow.transport.is_reliable();
        let related = match found {
            ByOthers::Yes => self.related_key_of(request, method),
            ByOthers::Lately => self.related_key_of(request, method).map(answered_at_once),
            ByOthers::No => None,
        };
        let dialog = match compose::begins_dialog(method) {
            true => self.tag_bound_to(&request.essentials),
            false => 0,
        };
        let length = request.message.as_bytes().len();
        let quota_state = self.servers.quota.begin(counter, length);
        Ok(self.servers.insert(Server {
            fingerprint: request.fingerprint,
            machine: Machine::start(now, &self.config.timers, method, reliable),
            flow: request.flow,
            reply_to: request.reply_address(),
            mark,
            request: None,
            layout: Layout::default(),
            response: None,
            target_len: 0,
            dialog,
            related,
            reports_load: self.reports_load(&request.via),
            allowance,
            quota_state,
        }))
    }

    fn related_key_of(&self, request: &NewRequest<'_>, method: Method<'_>) -> Option<RelatedKey> {
        let message = &request.essentials;
        let origin = request.origin;
        let origin = origin.or_else(|| self.matcher.by_origin(message, method));
        match method {
            Method::Invite => origin.or_else(|| self.matcher.by_dialog(message)),
            _ => origin,
        }
    }

    /// Answers a request at once and keeps no more than its retransmissions need: the key and the response's bytes over
    /// UDP, nothing over a stream. An INVITE may only be answered so with a final response; the key is `None` if the
    /// transaction has ended with the answer.
    ///
    /// # Errors
    /// [`RespondError`]. In these cases the response differs: 503 if there is no room for a transaction, 500 if the
    /// response cannot be built. There is no response if it is not allowed, such as a 408 (RFC 4320 §4.2).
    pub fn answer(
        &mut self,
        now: Mono,
        request: NewRequest<'_>,
        reply: &Reply<'_>,
    ) -> Result<Option<ServerKey>, RespondError> {
        let answered = self.respond_and_forget(now, &request, reply);
        match answered {
            Err(RespondError::Accept(AcceptError::Full)) => self.refuse_for_room(&request),
            Err(RespondError::Build(_)) => {
                // If even this response cannot be built, the client sends its request again.
                let _ = self.answer_without_state(&request, &Reply::new(500));
            }
            Err(_) | Ok(_) => {}
        }
        answered
    }

    /// Responds at once, and keeps a transaction only if the client may repeat the request.
    pub(super) fn respond_and_forget(
        &mut self,
        now: Mono,
        request: &NewRequest<'_>,
        reply: &Reply<'_>,
    ) -> Result<Option<ServerKey>, RespondError> {
        if reply.code < 200 {
            return Err(RespondError::OutOfPlace);
        }
        let method = request.message.method().unwrap_or(Method::Ack);
        if method == Method::Ack {
            return Err(RespondError::Unanswerable);
        }
        let reliable = request.flow.transport.is_reliable();
        if reliable && method != Method::Invite && reply.code != 408 {
            self.answer_without_state(request, reply)?;
            return Ok(None);
        }
        let found = match method {
            // A 482 is no transaction that anything could be merged with.
            _ if reply.code == 482 => ByOthers::No,
            Method::Invite => ByOthers::Yes,
            _ => ByOthers::Lately,
        };
        let key = self.insert_server(now, request, None, found)?;
        let tag = self.tag_of_server(key);
        let copied = compose::copies(method, reply.code);
        let fields = copied
            .into_iter()
            .flat_map(|kind| request.message.headers(kind));
        let stamp = request.stamp();
        let answerable = request.answerable();
        let built = compose::response(&mut self.scratch, &answerable, reply, &tag, stamp, fields);
        let length = match built {
            Ok(bytes) => bytes.len(),
            Err(error) => {
                self.end_server(key);
                return Err(error.into());
            }
        };
        if let Err(error) = self.finish_response(now, key, reply, length) {
            self.end_server(key);
            return Err(error);
        }
        let lives = self.servers.slab.get(key.slot, key.generation).is_some();
        Ok(lives.then_some(key))
    }

    /// Responds to an accepted request.
    ///
    /// # Errors
    /// [`RespondError`]; nothing has changed then.
    pub fn respond(
        &mut self,
        now: Mono,
        key: ServerKey,
        reply: &Reply<'_>,
    ) -> Result<(), RespondError> {
        let length = match reply.content {
            Content::Pieces(pieces) => {
                let length = compose::concat(&mut self.scratch, pieces)?.len();
                let is_whole = self.has_allowance(key, reply.code / 100, length)
                    || super::allowance::has_rseq(self.scratch.get(..length).unwrap_or_default());
                match is_whole {
                    true => length,
                    // The shortest response with this code.
                    false => self.build_reply(key, &Reply::new(reply.code))?,
                }
            }
            Content::Made { .. } => self.build_reply(key, reply)?,
        };
        self.finish_response(now, key, reply, length)
    }

    /// A response made from the kept request, in the scratch buffer; its length.
    fn build_reply(&mut self, key: ServerKey, reply: &Reply<'_>) -> Result<usize, RespondError> {
        let tag = self.tag_of_server(key);
        let server = self.servers.slab.get(key.slot, key.generation);
        let server = server.ok_or(RespondError::Gone)?;
        let cell = server.request.as_ref().ok_or(RespondError::OutOfPlace)?;
        let kept = (self.store.get(cell), server.layout);
        Ok(compose::later(&mut self.scratch, kept, reply, &tag)?.len())
    }

    /// The response is in the scratch buffer. The state machine decides whether it is sent.
    fn finish_response(
        &mut self,
        now: Mono,
        key: ServerKey,
        reply: &Reply<'_>,
        length: usize,
    ) -> Result<(), RespondError> {
        let timers = self.config.timers;
        let server = self.servers.slab.get(key.slot, key.generation);
        let server = server.ok_or(RespondError::Gone)?;
        let step = server.machine.respond(now, &timers, reply.code);
        let step = step.ok_or(RespondError::OutOfPlace)?;
        let mut keeps = reply.code > 100 && !step.discards && !step.end;
        if let (Machine::Invite(machine), true) =
            (&mut server.machine, reply.repeat && step.discards)
        {
            machine.repeat_2xx(now, &timers);
            keeps = true;
        }
        let is_last = reply.code >= 200 && server.request.is_some();
        let answered = server.flow.connection.filter(|_| is_last);
        if reply.code >= 200 {
            release(&mut self.store, &mut server.request);
        }
        release(&mut self.store, &mut server.response);
        if keeps {
            let target_len = add_target(&mut self.scratch, length, reply);
            let kept = length + usize::from(target_len);
            let bytes = self.scratch.get(..kept).unwrap_or_default();
            server.target_len = target_len;
            server.response = self.store.keep(bytes);
        }
        self.stats.count_sent(reply.code);
        let back = ResponsePath::of(server);
        self.send_back(now, key, &back, length);
        self.answered_over(answered);
        if step.end {
            self.end_server(key);
        } else {
            self.servers.moved(key.slot);
        }
        Ok(())
    }

    /// Sends the contents of the scratch buffer back over the path of the request. If that connection has ended, sends
    /// it over a new one (RFC 3261 §18.2.2).
    fn send_back(&mut self, now: Mono, key: ServerKey, back: &ResponsePath, length: usize) {
        let ResponsePath {
            flow,
            remote,
            reports_load,
        } = back;
        let gone = flow
            .connection
            .is_some_and(|connection| !self.connections.is_writable(connection));
        if !gone {
            if flow.connection.is_none() && !self.may_send(key, length) {
                return;
            }
            let to = SendTo::back(flow, *remote);
            self.send_response(to, Origin::Server(key), length, *reports_load);
            return;
        }
        // RFC 7118 §7: nobody can connect to a WebSocket client.
        if flow.transport.is_websocket() {
            return self.server_transport_failed(now, key);
        }
        let bytes = self.scratch.get(..length).unwrap_or_default();
        // Whom sent-by names must be asked for anew: over TLS nobody can be connected to without a name.
        let mut to = Destination::new(flow.transport, *remote, flow.listener);
        to.local = Some(flow.local);
        if to.transport.is_secure() && self.config.redirects_responses {
            return self.outputs.undelivered(key, to, bytes);
        }
        let Some(cell) = self.store.keep(bytes) else {
            return;
        };
        self.send_over_stream(now, to, Waiting::Response(Some(key), cell));
    }

    /// Queues the response in the scratch buffer. Adds the overload report (RFC 7339) if the sender supports that.
    pub(super) fn send_response(
        &mut self,
        to: SendTo,
        origin: Origin,
        length: usize,
        reports_load: bool,
    ) {
        let bytes = self.scratch.get(..length).unwrap_or_default();
        if reports_load
            && let Some(with) = compose::with_overload(&mut self.spare, bytes, &self.oc_reply)
        {
            self.outputs.send(to, origin, with);
            return;
        }
        self.outputs.send(to, origin, bytes);
    }

    /// A server timer has fired.
    pub(super) fn server_timer(&mut self, now: Mono, slot: u32) {
        let timers = self.config.timers;
        let Some((generation, server)) = self.servers.slab.at(slot) else {
            return;
        };
        let key = ServerKey { slot, generation };
        let step = server.machine.fire(now, &timers);
        self.carry_out_server(now, key, step, true);
    }

    fn carry_out_server(&mut self, now: Mono, key: ServerKey, step: Step, by_timer: bool) {
        match step.send {
            Some(Sending::Trying) => self.send_trying(now, key),
            Some(Sending::Response) => {
                let defers = by_timer && self.controller.defers_retransmission();
                if !defers {
                    self.send_again(now, key);
                }
            }
            _ => {}
        }
        if let Some(telling) = step.tu_event {
            self.queue_server_event(key, telling);
        }
        if step.end {
            self.end_server(key);
            return;
        }
        if step.discards
            && let Some(server) = self.servers.slab.get(key.slot, key.generation)
        {
            release(&mut self.store, &mut server.request);
            release(&mut self.store, &mut server.response);
        }
        self.servers.moved(key.slot);
    }

    /// The last response again, or a 100 if there was none yet.
    fn send_again(&mut self, now: Mono, key: ServerKey) {
        let Some(server) = self.servers.slab.get(key.slot, key.generation) else {
            return;
        };
        let Some(cell) = &server.response else {
            self.send_trying(now, key);
            return;
        };
        let bytes = self.store.get(cell);
        let length = bytes.len() - usize::from(server.target_len);
        let bytes = bytes.get(..length).unwrap_or_default();
        if let Some(room) = self.scratch.get_mut(..length) {
            room.copy_from_slice(bytes);
        }
        let back = ResponsePath::of(server);
        self.stats.retransmissions_sent += 1;
        self.send_back(now, key, &back, length);
    }

    fn send_trying(&mut self, now: Mono, key: ServerKey) {
        let Ok(length) = self.build_reply(key, &Reply::new(100)) else {
            return;
        };
        let Some(server) = self.servers.slab.get(key.slot, key.generation) else {
            return;
        };
        let back = ResponsePath::of(server);
        self.stats.count_sent(100);
        self.send_back(now, key, &back, length);
    }

    pub(super) fn queue_server_event(&mut self, key: ServerKey, telling: TuEvent) {
        let server = self.servers.slab.get(key.slot, key.generation);
        if let (TuEvent::NoAck, Some(server)) = (telling, &server)
            && let (1.., Some(cell)) = (server.target_len, &server.response)
        {
            let target_len = usize::from(server.target_len);
            let kept = self.store.get(cell);
            self.outputs.unacknowledged(server.flow, kept, target_len);
        }
        let Some(mark) = server.and_then(|server| server.mark) else {
            return;
        };
        let failure = match telling {
            TuEvent::NoAck => ServerFailure::NoAck,
            TuEvent::TransportFailed => ServerFailure::TransportFailed,
            TuEvent::Abandoned => ServerFailure::Abandoned,
            TuEvent::Response | TuEvent::Timeout | TuEvent::Ack => return,
        };
        self.outputs
            .event(Event::ServerFailed { key, mark, failure });
    }

    /// A response could not be sent. If its connection has just gone, a new one is tried (RFC 3261 §18.2.2): over a
    /// stream nothing else would send it again.
    pub(super) fn response_failed(&mut self, now: Mono, key: ServerKey) {
        let server = self.servers.slab.get(key.slot, key.generation);
        let connection = server.and_then(|server| {
            let connection = server.flow.connection?;
            server.response.is_some().then_some(connection)
        });
        match connection.filter(|connection| self.connections.is_writable(*connection)) {
            Some(connection) => {
                self.disconnected(now, connection);
                self.send_again(now, key);
            }
            None => self.server_transport_failed(now, key),
        }
    }

    /// The transport says that something of this transaction could not be sent.
    pub(super) fn server_transport_failed(&mut self, now: Mono, key: ServerKey) {
        let Some(server) = self.servers.slab.get(key.slot, key.generation) else {
            return;
        };
        let step = match &mut server.machine {
            Machine::Invite(machine) => machine.transport_failed(),
            Machine::Other(machine) => machine.transport_failed(),
        };
        self.carry_out_server(now, key, step, false);
    }

    /// A request that came by a connection has its final response, or will have none.
    fn answered_over(&mut self, connection: Option<ConnectionKey>) {
        let Some(connection) = connection else { return };
        if self.connections.remove_unanswered(connection) {
            self.outputs.push(Output::Close(connection));
        }
    }

    pub(super) fn end_server(&mut self, key: ServerKey) {
        let Some(mut server) = self.servers.remove(key.slot) else {
            return;
        };
        let unanswered = server.request.is_some();
        self.answered_over(server.flow.connection.filter(|_| unanswered));
        release(&mut self.store, &mut server.request);
        release(&mut self.store, &mut server.response);
        if let Some(mark) = server.mark {
            self.outputs.event(Event::ServerEnded { key, mark });
        }
    }

    /// The tag of To in the last response: RFC 3261 §17.2.3 compares it with that of an ACK of RFC 2543.
    pub(super) fn responded_tag(&self, slot: u32) -> Option<&[u8]> {
        let cell = self.servers.slab.peek(slot)?.response.as_ref()?;
        Scan::of(self.store.get(cell), &Limits::DEFAULT)
            .ok()?
            .to_tag()
    }

    /// The reply address of a request that was only scanned.
    pub(super) fn scanned_reply(flow: &Flow, via: &Via<'_>) -> SendTo {
        SendTo::back(flow, reply_address(flow, via))
    }
}

/// Writes the remote target behind the response of this length, if the reply has one and there is room; how long it is.
fn add_target(buffer: &mut [u8], length: usize, reply: &Reply<'_>) -> u16 {
    let target = reply.remote_target;
    let Ok(target_len) = u16::try_from(target.len()) else {
        return 0;
    };
    match buffer.get_mut(length..length + target.len()) {
        Some(room) => {
            room.copy_from_slice(target);
            target_len
        }
        None => 0,
    }
}

/// How responses of a transaction go back.
struct ResponsePath {
    flow: Flow,
    remote: SocketAddr,
    reports_load: bool,
}

impl ResponsePath {
    fn of(server: &Server) -> ResponsePath {
        ResponsePath {
            flow: server.flow,
            remote: server.reply_to,
            reports_load: server.reports_load,
        }
    }
}

/// Whether messages with other branches may look up a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByOthers {
    Yes,
    /// As long as it is one of the latest: it was answered at once.
    Lately,
    No,
}

pub(super) fn release(store: &mut super::store::Store, cell: &mut Option<Cell>) {
    if let Some(cell) = cell.take() {
        store.release(cell);
    }
}
