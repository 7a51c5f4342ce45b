//! Requests and responses without a transaction, and what a proxy asks of the engine: loops, and its sent-by.

use super::client::{Outgoing, datagram};
use super::connections::Waiting;
use super::error::{DropReason, RequestError, RespondError};
use super::output::{Origin, SendTo};
use super::received::NewRequest;
use super::reply::Reply;
use super::sent_by::{Hop, Signature};
use super::{Engine, compose};
use crate::branch::LoopCheck;
use crate::build::Tag;
use crate::flow::Destination;
use crate::header::HeaderKind;
use crate::message::Message;
use crate::{Method, Mono};

impl Engine {
    /// The routing input of a proxy that forks (RFC 5393 §4.2.1). `others` is the input of its location service besides
    /// the Request-URI and Route.
    #[must_use]
    pub fn loop_check(&self, request: &Message<'_>, others: &[u8]) -> LoopCheck {
        self.codec.loop_check(request, others)
    }

    /// Whether a request was here already, and the decision was made of the same (RFC 5393 §4.2.2): it gets 482.
    /// Whoever comes back with something changed spirals, and goes on.
    #[must_use]
    pub fn has_looped(&self, request: &Message<'_>, check: LoopCheck) -> bool {
        let mut fields = request.headers(HeaderKind::Via);
        if !fields.any(|field| check.may_be_in(field.value)) {
            return false;
        }
        // What cannot be read is not ours.
        request.vias().filter_map(Result::ok).any(|via| {
            via.branch.and_then(LoopCheck::of) == Some(check)
                && self.config.is_ours(via.host, via.port_or_default())
        })
    }

    /// A number for [`Engine::send_stateless`]: the same for a message that comes again byte by byte.
    #[must_use]
    pub fn number_of(&self, message: &[u8]) -> u128 {
        self.codec.number_of(message)
    }

    /// The name of this server on a hop, in Via, Record-Route and Contact. `None` if its socket has no such transport,
    /// or its address is unknown.
    #[must_use]
    pub fn signature(&self, hop: &Hop) -> Option<Signature<'_>> {
        self.config.signature(hop)
    }

    /// Sends a request that has no transaction: the ACK for a 2xx, or one forwarded statelessly. Its branch is made
    /// from `number`: the same for a retransmission, another for anything else. A request that is too large for UDP
    /// goes over TCP. If no connection opens, it goes over UDP (RFC 3261 §18.1.1).
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn send_stateless(
        &mut self,
        now: Mono,
        out: &Outgoing<'_>,
        number: u128,
    ) -> Result<(), RequestError> {
        let to = self.choose_transport(out);
        self.send_stateless_to(now, out, to, number)
    }

    /// The same by a flow that the other end has opened, regardless of the size: see [`Engine::request_by_flow`].
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn send_stateless_by_flow(
        &mut self,
        now: Mono,
        out: &Outgoing<'_>,
        number: u128,
    ) -> Result<(), RequestError> {
        self.send_stateless_to(now, out, (out.to.clone(), false), number)
    }

    fn send_stateless_to(
        &mut self,
        now: Mono,
        out: &Outgoing<'_>,
        (to, may_be_udp): (Destination, bool),
        number: u128,
    ) -> Result<(), RequestError> {
        let connection = self.named_connection(out)?;
        let signature = self.config.signature(&Hop::from(&to));
        let signature = signature.ok_or(RequestError::NoSentBy)?;
        let branch = self.codec.write_stateless(number);
        let oc = self.config.overload_offer();
        let branch = (&branch, out.loop_check);
        let built = compose::request(&mut self.scratch, out.pieces, &signature, branch, oc);
        let length = built.map_err(|_| RequestError::Malformed)?.len();
        let bytes = self.scratch.get(..length).unwrap_or_default();
        if let Some(connection) = connection {
            self.connections.touch(now, connection);
            let to = SendTo::Stream(connection);
            self.outputs.send(to, Origin::Nobody, bytes);
        } else if to.transport.is_reliable() {
            let cell = self.store.keep(bytes).ok_or(RequestError::TooLong)?;
            let waiting = match may_be_udp {
                true => Waiting::LargeRequest(Box::new(out.to.clone()), cell),
                false => Waiting::Response(None, cell),
            };
            self.send_over_stream(now, to, waiting);
        } else {
            self.outputs.send(datagram(&to), Origin::Nobody, bytes);
        }
        Ok(())
    }

    /// Sends a response and stores no transaction. The TU sees each retransmission as a new request, and responds
    /// again. The engine absorbs the ACK.
    ///
    /// Over UDP the response is at most 2.5 times as large as the request, IP and UDP headers included. Otherwise it
    /// has fewer header lines: those at the end are left out, the best challenge stays. What is still too large is not
    /// sent ([`DropReason::Amplification`]).
    ///
    /// # Errors
    /// [`RespondError::Unanswerable`] or [`RespondError::Build`]; a response that cannot be built is replaced by a 500.
    pub fn answer_statelessly(
        &mut self,
        request: NewRequest<'_>,
        reply: &Reply<'_>,
    ) -> Result<(), RespondError> {
        let answered = self.answer_without_state(&request, reply);
        if let Err(RespondError::Build(_)) = answered {
            // If even this response cannot be built, the client sends its request again.
            let _ = self.answer_without_state(&request, &Reply::new(500));
        }
        answered
    }

    /// As [`Engine::answer_statelessly`], but a response that cannot be built is not replaced by a 500.
    pub(super) fn answer_without_state(
        &mut self,
        request: &NewRequest<'_>,
        reply: &Reply<'_>,
    ) -> Result<(), RespondError> {
        if request.message.method() == Some(Method::Ack) {
            return Err(RespondError::Unanswerable);
        }
        let answerable = request.answerable();
        let tag = Tag::new(self.matcher.stateless_tag(request.fingerprint));
        let stamp = request.stamp();
        let tag = tag.as_bytes();
        let reports_load = self.reports_load(&request.via);
        let room = self.room_for(&request.flow, request.message.as_bytes(), reports_load);
        let mut reply = *reply;
        let length = loop {
            let none = std::iter::empty();
            let built =
                compose::response(&mut self.scratch, &answerable, &reply, tag, stamp, none)?;
            if built.len() <= room {
                break built.len();
            }
            let Some(shorter) = reply.shorter() else {
                self.stats.count_drop(DropReason::Amplification);
                return Ok(());
            };
            reply = shorter;
        };
        self.stats.count_sent(reply.code);
        let to = SendTo::back(&request.flow, request.reply_address());
        self.send_response(to, Origin::Nobody, length, reports_load);
        Ok(())
    }
}
