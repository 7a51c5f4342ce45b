//! Calls that the peer begins (RFC 3261 §13.3), and requests of the peer within any call.

use super::UserAgent;
use super::call::{Call, State};
use super::dialog::Dialog;
use super::draft::Content;
use super::event::{CallError, CallKey, EndCause, Event, RequestId};
use super::reliable::{Progress, Reliability};
use crate::Method;
use crate::engine::{NewRequest, Reply, ServerKey};
use crate::message::Message;
use crate::tu::Transactions;

/// Responds to a request. If that fails, the client retransmits the request.
fn answer(transactions: &mut Transactions<'_>, request: NewRequest<'_>, reply: &Reply<'_>) {
    let _ = transactions.answer(request, reply);
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl UserAgent {
    /// A request outside of dialogs.
    pub(super) fn new_request(
        &mut self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
    ) {
        match request.message.method() {
            Some(Method::Invite) => self.incoming(transactions, request),
            Some(Method::Options) => {
                let has_room = self.calls.len() < self.config.most_calls;
                self.answer_options(transactions, request, has_room);
            }
            Some(Method::Bye | Method::Cancel) => answer(transactions, request, &Reply::new(481)),
            _ => self.ask_program(transactions, request, None),
        }
    }

    /// RFC 3261 §11.2: what this user agent can do, and whether it would take a call. Within a dialog it takes none.
    fn answer_options(
        &self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
        has_room: bool,
    ) {
        let mut lines = Vec::new();
        self.config.add_abilities(&mut lines);
        self.config.add_accept(&mut lines);
        self.config.add_contact(&mut lines);
        let code = match has_room {
            true => 200,
            false => 486,
        };
        answer(transactions, request, &Reply::new(code).headers(&lines));
    }

    /// Handles an INVITE outside of dialogs: a new call.
    fn incoming(&mut self, transactions: &mut Transactions<'_>, request: NewRequest<'_>) {
        if self.calls.len() >= self.config.most_calls {
            return answer(transactions, request, &Reply::new(486));
        }
        let message = { request.message };
        if !matches!(message.contact(), Ok(Some(_))) {
            // RFC 3261 §8.1.1.8: an INVITE has one.
            let reply = Reply::new(400).reason(b"Missing Contact");
            return answer(transactions, request, &reply);
        }
        let number = self.new_number();
        let Ok(key) = transactions.accept(request, Some(self.mark(number))) else {
            return;
        };
        let tag = transactions.engine.to_tag(key).to_vec();
        let Some(dialog) = Dialog::of_request(&message, &tag) else {
            let reply = Reply::new(400).reason(b"Malformed Record-Route");
            let _ = transactions.respond(key, &reply);
            return;
        };
        let mut call = Call::new(State::Incoming, tag.clone(), Some(dialog));
        call.offer = Some(key);
        call.offer_cseq = message.cseq().map_or(0, |cseq| cseq.number);
        call.progress = Progress::of(&message, self.config.has_100rel());
        self.calls.insert(number, call);
        self.by_tag.insert(tag, number);
        self.events.push_back(Event::Incoming {
            call: CallKey(number),
            from: message
                .from()
                .map(|from| text(from.uri))
                .unwrap_or_default(),
            to: text(message.request_uri().unwrap_or_default()),
            content: Content::of(&message),
            message: message.as_bytes().to_vec(),
        });
    }

    /// A request with a To tag.
    pub(super) fn request_in_dialog(
        &mut self,
        transactions: &mut Transactions<'_>,
        tag: &[u8],
        request: NewRequest<'_>,
    ) {
        let number = self.by_tag.get(tag).copied();
        let it = number.and_then(|number| self.calls.get_mut(&number));
        let (call_id, from_tag) = (request.call_id(), request.from_tag());
        let dialog = it.and_then(|it| it.dialog_of(call_id, from_tag));
        let (Some(number), Some(dialog)) = (number, dialog) else {
            let code = match self.is_late_prack(tag, &request) {
                true => 200,
                false => 481,
            };
            return answer(transactions, request, &Reply::new(code));
        };
        let cseq = request.message.cseq().map_or(0, |cseq| cseq.number);
        let method = request.message.method();
        if !dialog.advance(cseq) {
            // RFC 3261 §12.2.2.
            let reply = Reply::new(500).reason(b"CSeq Out of Order");
            return answer(transactions, request, &reply);
        }
        match method {
            Some(Method::Bye) => self.peer_hung_up(transactions, number, request),
            Some(Method::Invite) => self.offered(transactions, number, request),
            Some(Method::Options) => self.answer_options(transactions, request, true),
            Some(Method::Prack) if self.config.has_100rel() => {
                self.pracked(transactions, number, request);
            }
            _ => self.ask_program(transactions, request, Some(number)),
        }
    }

    /// Handles a BYE of the peer: responds 200, and ends the call.
    fn peer_hung_up(
        &mut self,
        transactions: &mut Transactions<'_>,
        call: u64,
        request: NewRequest<'_>,
    ) {
        let from_tag = request.from_tag().unwrap_or_default().to_vec();
        answer(transactions, request, &Reply::new(200));
        let Some(it) = self.calls.get_mut(&call) else {
            return;
        };
        if it.dialog.is_none() {
            // RFC 3261 §15: a callee does not send BYE on an early dialog. One that does has ended that branch alone.
            it.early.retain(|dialog| dialog.remote_tag != from_tag);
            return;
        }
        if let Some(answered) = it.answered.take() {
            transactions.engine.stop_repeating(answered);
        }
        if let Some(offer) = it.offer.take() {
            // RFC 3261 §15.1.2. It may have been cancelled in the same moment.
            let _ = transactions.respond(offer, &Reply::new(487));
            it.progress.concluded(transactions);
        }
        let cause = match &it.state {
            // Both sides have ended the call. The event has the cause of this side.
            State::Ending(cause) => cause.clone(),
            _ => EndCause::PeerHungUp,
        };
        self.remove(call, cause);
    }

    /// A re-INVITE (RFC 3261 §14.2).
    fn offered(&mut self, transactions: &mut Transactions<'_>, call: u64, request: NewRequest<'_>) {
        let message = { request.message };
        let random = self.random.number();
        let Some(it) = self.calls.get_mut(&call) else {
            return;
        };
        if it.is_ending() {
            return answer(transactions, request, &Reply::new(481));
        }
        if it.invite.is_some() {
            return answer(transactions, request, &Reply::new(491));
        }
        if it.offer.is_some() || it.answered.is_some() {
            let lines = format!("Retry-After: {}\r\n", random % 10);
            return answer(
                transactions,
                request,
                &Reply::new(500).headers(lines.as_bytes()),
            );
        }
        let mark = self.mark(call);
        let Ok(key) = transactions.accept(request, Some(mark)) else {
            return;
        };
        if let Some(it) = self.calls.get_mut(&call) {
            it.offer = Some(key);
            it.offer_cseq = message.cseq().map_or(0, |cseq| cseq.number);
            if let Some(dialog) = &mut it.dialog {
                dialog.refresh_target(&message);
            }
        }
        self.events.push_back(Event::Offer {
            call: CallKey(call),
            content: Content::of(&message),
        });
    }

    /// A request that the program responds to.
    pub(super) fn ask_program(
        &mut self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
        call: Option<u64>,
    ) {
        let message = { request.message };
        let id = self.new_number();
        let mark = self.mark(id);
        let Ok(key) = transactions.accept(request, Some(mark)) else {
            return;
        };
        self.asked.insert(id, key);
        let method = message.method().map_or(&b""[..], Method::as_bytes);
        self.events.push_back(Event::Request {
            id: RequestId(id),
            call: call.map(CallKey),
            method: text(method),
            content: Content::of(&message),
            message: message.as_bytes().to_vec(),
        });
    }

    /// Sends a provisional response to an incoming call: 180 while it rings, 183 with an early answer. The code is 101
    /// to 199. If the caller requires it, the response is reliable ([`UserAgent::ring_reliably`]).
    ///
    /// # Errors
    /// [`CallError::OutOfPlace`] if the call is not an incoming one that waits. If the caller requires it, also as
    /// [`UserAgent::ring_reliably`]. Or another [`CallError`].
    pub fn ring(
        &mut self,
        transactions: &mut Transactions<'_>,
        call: CallKey,
        code: u16,
        content: &Content,
    ) -> Result<(), CallError> {
        content.check()?;
        let it = self.calls.get(&call.0).ok_or(CallError::Gone)?;
        let (State::Incoming, Some(key), 101..200) = (&it.state, it.offer, code) else {
            return Err(CallError::OutOfPlace);
        };
        if it.progress.reliability == Reliability::Required {
            return self.ring_reliably(transactions, call, code, content);
        }
        let mut lines = Vec::new();
        self.config.add_contact(&mut lines);
        content.add_type(&mut lines);
        let reply = Reply::new(code).headers(&lines).body(&content.bytes);
        Ok(transactions.respond(key, &reply)?)
    }

    /// Answers an incoming call or a re-INVITE with 200. The 200 is repeated until its ACK comes; if none comes for 32
    /// s, the user agent ends the call with BYE (RFC 3261 §13.3.1.4).
    ///
    /// # Errors
    /// [`CallError::OutOfPlace`] if no INVITE of the peer waits, or if a reliable provisional response with a body has
    /// no PRACK. RFC 3262 §3 forbids a 2xx before that. Or another [`CallError`].
    pub fn answer(
        &mut self,
        transactions: &mut Transactions<'_>,
        call: CallKey,
        content: &Content,
    ) -> Result<(), CallError> {
        content.check()?;
        let mut lines = Vec::new();
        self.config.add_contact(&mut lines);
        self.config.add_abilities(&mut lines);
        content.add_type(&mut lines);
        let it = self.calls.get_mut(&call.0).ok_or(CallError::Gone)?;
        let (Some(key), Some(dialog)) = (it.offer, &it.dialog) else {
            return Err(CallError::OutOfPlace);
        };
        if it.progress.forbids_success() {
            return Err(CallError::OutOfPlace);
        }
        let reply = Reply::new(200).headers(&lines).body(&content.bytes);
        transactions.respond(key, &reply.until_ack_from(dialog.target()))?;
        it.progress.concluded(transactions);
        it.offer = None;
        it.answered = Some(key);
        it.state = State::Confirmed;
        Ok(())
    }

    /// Rejects an incoming call, which ends it, or a re-INVITE, which leaves the session as it was. The code is 300 to 699.
    /// 486 is for busy, 603 ends all branches of the call (RFC 3261 §21.6.2), 488 is for an offer that is not
    /// acceptable.
    ///
    /// # Errors
    /// [`CallError::OutOfPlace`] if no INVITE of the peer waits. Or another [`CallError`].
    pub fn reject(
        &mut self,
        transactions: &mut Transactions<'_>,
        call: CallKey,
        code: u16,
    ) -> Result<(), CallError> {
        let it = self.calls.get_mut(&call.0).ok_or(CallError::Gone)?;
        let (Some(key), 300..700) = (it.offer, code) else {
            return Err(CallError::OutOfPlace);
        };
        transactions.respond(key, &Reply::new(code))?;
        it.progress.concluded(transactions);
        it.offer = None;
        if matches!(it.state, State::Incoming) {
            self.remove(call.0, EndCause::Rejected(code));
        }
        Ok(())
    }

    /// The peer has cancelled its INVITE.
    pub(super) fn cancelled(
        &mut self,
        transactions: &mut Transactions<'_>,
        invite: ServerKey,
        call: u64,
    ) {
        let it = self.calls.get_mut(&call);
        let Some(it) = it.filter(|it| it.offer == Some(invite)) else {
            return;
        };
        it.offer = None;
        let _ = transactions.respond(invite, &Reply::new(487));
        it.progress.concluded(transactions);
        if matches!(it.state, State::Incoming) {
            self.remove(call, EndCause::Cancelled);
        } else {
            let call = CallKey(call);
            self.events.push_back(Event::OfferCancelled { call });
        }
    }

    /// The ACK for a 2xx of ours.
    pub(super) fn acknowledged(&mut self, transactions: &mut Transactions<'_>, ack: &Message<'_>) {
        let (Ok(to), Ok(from), Ok(call_id)) = (ack.to(), ack.from(), ack.call_id()) else {
            return;
        };
        let number = to.tag.and_then(|tag| self.by_tag.get(tag)).copied();
        let it = number.and_then(|number| self.calls.get_mut(&number));
        let (Some(number), Some(it)) = (number, it) else {
            return;
        };
        if it.dialog_of(call_id, from.tag).is_none() || it.answered.is_none() {
            return;
        }
        // RFC 3261 §13.2.2.4: the ACK has the number of its INVITE. That of an earlier INVITE may come late, or again.
        if ack.cseq().map_or(0, |cseq| cseq.number) != it.offer_cseq {
            return;
        }
        if let Some(answered) = it.answered.take() {
            transactions.engine.stop_repeating(answered);
        }
        if matches!(it.state, State::Ending(_)) {
            return self.send_bye(transactions, number);
        }
        self.events.push_back(Event::Acknowledged {
            call: CallKey(number),
            content: Content::of(ack),
        });
    }

    /// No ACK has come for a 2xx with this To tag.
    pub(super) fn ack_timed_out(&mut self, transactions: &mut Transactions<'_>, tag: &[u8]) {
        let Some(number) = self.by_tag.get(tag).copied() else {
            return;
        };
        let Some(it) = self.calls.get_mut(&number) else {
            return;
        };
        it.answered = None;
        let cause = match &it.state {
            State::Ending(cause) => cause.clone(),
            _ => EndCause::NotAcknowledged,
        };
        self.end(transactions, number, cause);
    }

    /// The program has not answered a request for too long, so that its transaction has ended.
    pub(super) fn abandoned(&mut self, key: ServerKey, number: u64) {
        if self.asked.remove(&number).is_some() {
            return;
        }
        let it = self.calls.get_mut(&number);
        let Some(it) = it.filter(|it| it.offer == Some(key)) else {
            return;
        };
        it.offer = None;
        if matches!(it.state, State::Incoming) {
            self.remove(number, EndCause::Abandoned);
        }
    }
}
