//! One call, and what the program does with a call of either side.

use super::dialog::Dialog;
use super::draft::{Content, RealmName, check_lines};
use super::event::{CallError, CallKey, EndCause, Event, RequestId};
use super::registration::reason_of;
use super::reliable::Progress;
use super::{Ended, Purpose, UserAgent};
use crate::congestion::Class;
use crate::dispatch::Failure;
use crate::engine::{Reply, ServerKey};
use crate::message::Message;
use crate::tu::Transactions;

/// How far a call is.
#[derive(Debug)]
pub(super) enum State {
    /// Our INVITE has no final response.
    Calling,
    /// The same, and it is cancelled.
    Cancelling,
    /// The INVITE of the peer waits for the program.
    Incoming,
    /// A 2xx has been sent or received.
    Confirmed,
    /// Our BYE is in progress, or waits for the ACK of our 2xx (RFC 3261 §15). The cause is reported when it is done.
    Ending(EndCause),
}

/// A call.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) state: State,
    pub(super) local_tag: Vec<u8>,
    /// The CSeq number of our last request.
    cseq: u32,
    /// Early while the call is incoming, then confirmed.
    pub(super) dialog: Option<Dialog>,
    /// The early dialogs of an INVITE of ours, one for each branch that rings.
    pub(super) early: Vec<Dialog>,
    /// Our INVITE that has no final response, as a number of a pending request.
    pub(super) invite: Option<u64>,
    /// The INVITE of the peer that has no final response.
    pub(super) offer: Option<ServerKey>,
    /// The CSeq number of that INVITE, which the ACK for the 2xx has, too.
    pub(super) offer_cseq: u32,
    /// Our 2xx whose ACK has not come.
    pub(super) answered: Option<ServerKey>,
    /// The INVITE of ours whose 2xx the program acknowledges, because it has the offer: a number of a pending request.
    pub(super) unacknowledged: Option<u64>,
    pub(super) realms: Vec<RealmName>,
    /// Its reliable provisional responses, if it is incoming.
    pub(super) progress: Progress,
}

impl Call {
    pub(super) fn new(state: State, local_tag: Vec<u8>, dialog: Option<Dialog>) -> Call {
        Call {
            state,
            local_tag,
            cseq: 0,
            dialog,
            early: Vec::new(),
            invite: None,
            offer: None,
            offer_cseq: 0,
            answered: None,
            unacknowledged: None,
            realms: Vec::new(),
            progress: Progress::default(),
        }
    }

    /// Of our last request.
    pub(super) const fn cseq(&self) -> u32 {
        self.cseq
    }

    pub(super) const fn next_cseq(&mut self) -> u32 {
        self.cseq += 1;
        self.cseq
    }

    pub(super) const fn is_ending(&self) -> bool {
        matches!(self.state, State::Cancelling | State::Ending(_))
    }

    /// The dialog of a request with this Call-ID and From tag.
    pub(super) fn dialog_of(
        &mut self,
        call_id: &[u8],
        from_tag: Option<&[u8]>,
    ) -> Option<&mut Dialog> {
        let all = self.dialog.iter_mut().chain(&mut self.early);
        let mut all = all.filter(|dialog| dialog.is_of(call_id, from_tag));
        all.next()
    }
}

impl UserAgent {
    fn call(&mut self, call: CallKey) -> Result<&mut Call, CallError> {
        self.calls.get_mut(&call.0).ok_or(CallError::Gone)
    }

    /// Ends a call: with CANCEL before the answer, with BYE after it, and with 480 for an incoming call that is not
    /// answered. [`Event::Ended`] follows. A call of ours that is answered at the same moment is ended with BYE.
    ///
    /// # Errors
    /// [`CallError`]; nothing was sent then.
    pub fn hang_up(
        &mut self,
        transactions: &mut Transactions<'_>,
        call: CallKey,
    ) -> Result<(), CallError> {
        match self.call(call)?.state {
            State::Calling => {
                let call = self.call(call)?;
                call.state = State::Cancelling;
                if let Some(key) = call.invite.and_then(|it| Some(self.pending.get(&it)?.key)) {
                    transactions.cancel(key);
                }
                Ok(())
            }
            State::Incoming => self.reject(transactions, call, 480),
            State::Confirmed => {
                self.end(transactions, call.0, EndCause::HungUp);
                Ok(())
            }
            State::Cancelling | State::Ending(_) => Ok(()),
        }
    }

    /// Sends BYE for a confirmed call, at once or after the ACK for the 2xx of this side. The callee must not send it
    /// before the ACK (RFC 3261 §15).
    pub(super) fn end(&mut self, transactions: &mut Transactions<'_>, call: u64, cause: EndCause) {
        let Some(it) = self.calls.get_mut(&call) else {
            return;
        };
        it.state = State::Ending(cause);
        if let Some(offer) = it.offer.take() {
            // It may have been cancelled in the same moment.
            let _ = transactions.respond(offer, &Reply::new(480));
        }
        if let Some(number) = it.unacknowledged.take() {
            let _ = self.send_ack(transactions, number, Content::none());
        }
        if self
            .calls
            .get(&call)
            .is_some_and(|it| it.answered.is_none())
        {
            self.send_bye(transactions, call);
        }
    }

    pub(super) fn send_bye(&mut self, transactions: &mut Transactions<'_>, call: u64) {
        let Some(it) = self.calls.get_mut(&call) else {
            return;
        };
        let cseq = it.next_cseq();
        let Some(dialog) = &it.dialog else {
            return self.bye_concluded(call);
        };
        let mut lines = Vec::new();
        self.config.add_user_agent(&mut lines);
        let mut draft = dialog.draft(b"BYE", cseq, lines, Content::none());
        draft.realms.clone_from(&it.realms);
        let sent = self.send(transactions, draft, Class::Finishing, Purpose::Bye(call));
        if sent.is_err() {
            // The peer gets no message, so the call ends here alone.
            self.bye_concluded(call);
        }
    }

    /// RFC 3261 §15.1.1: the session ends, regardless of the response to the BYE.
    pub(super) fn bye_concluded(&mut self, call: u64) {
        let cause = self.calls.get(&call).map(|it| &it.state);
        let cause = match cause {
            Some(State::Ending(cause)) => cause.clone(),
            _ => EndCause::HungUp,
        };
        self.remove(call, cause);
    }

    /// A call has ended.
    pub(super) fn remove(&mut self, call: u64, cause: EndCause) {
        if let Some(it) = self.calls.remove(&call) {
            self.by_tag.remove(&it.local_tag);
            let mut pending = self.pending.values_mut();
            if let Some(invite) = pending.find(|its| its.purpose == Purpose::Invite(call)) {
                invite.last_cseq = it.cseq();
            }
            self.keep_outstanding(it);
            let call = CallKey(call);
            self.events.push_back(Event::Ended { call, cause });
        }
    }

    /// Sends a re-INVITE (RFC 3261 §14.1). [`Event::OfferAnswered`] or [`Event::OfferRefused`] follows.
    ///
    /// # Errors
    /// [`CallError::OutOfPlace`] if the call is not answered, or an INVITE of either side waits for its response. Or
    /// another [`CallError`].
    pub fn reinvite(
        &mut self,
        transactions: &mut Transactions<'_>,
        call: CallKey,
        content: Content,
    ) -> Result<(), CallError> {
        content.check()?;
        let it = self.call(call)?;
        let is_confirmed = matches!(it.state, State::Confirmed);
        let is_busy = it.invite.is_some() || it.offer.is_some() || it.unacknowledged.is_some();
        if !is_confirmed || is_busy {
            return Err(CallError::OutOfPlace);
        }
        let cseq = it.next_cseq();
        let realms = it.realms.clone();
        let mut lines = Vec::new();
        self.config.add_contact(&mut lines);
        self.config.add_abilities_for_reinvite(&mut lines);
        let dialog = self.call(call)?.dialog.as_ref();
        let dialog = dialog.ok_or(CallError::OutOfPlace)?;
        let mut draft = dialog.draft(b"INVITE", cseq, lines, content);
        draft.realms = realms;
        let purpose = Purpose::Reinvite(call.0);
        let number = self.send(transactions, draft, Class::Continuing, purpose)?;
        self.call(call)?.invite = Some(number);
        Ok(())
    }

    /// Sends any other request, such as INFO, MESSAGE or REFER: in a call, or to a URI. `lines` are header lines, each
    /// with its line end. [`Event::Response`] follows. A 408 or 481 within a call ends the call (RFC 3261 §12.2.1.2).
    ///
    /// # Errors
    /// [`CallError`]; nothing was sent then. ACK, BYE, CANCEL, INVITE, PRACK and REGISTER are
    /// [`CallError::OutOfPlace`].
    pub fn request(
        &mut self,
        transactions: &mut Transactions<'_>,
        to: RequestTarget<'_>,
        method: &str,
        lines: &[u8],
        content: Content,
    ) -> Result<RequestId, CallError> {
        if matches!(
            method,
            "ACK" | "BYE" | "CANCEL" | "INVITE" | "PRACK" | "REGISTER"
        ) {
            return Err(CallError::OutOfPlace);
        }
        content.check()?;
        check_lines(lines)?;
        let mut lines = lines.to_vec();
        self.config.add_user_agent(&mut lines);
        let (draft, call) = match to {
            RequestTarget::Call(key) => {
                let it = self.call(key)?;
                let cseq = it.next_cseq();
                let dialog = it.dialog.as_ref().ok_or(CallError::OutOfPlace)?;
                let mut draft = dialog.draft(method.as_bytes(), cseq, lines, content);
                draft.realms.clone_from(&it.realms);
                (draft, Some(key.0))
            }
            RequestTarget::Uri(uri) => {
                let from = self.config.sender_address();
                let (call_id, tag) = (self.random.token(), self.random.token());
                let ends = (from, tag, call_id);
                (
                    self.draft_to(uri, method.as_bytes(), ends, lines, content)?,
                    None,
                )
            }
        };
        let class = match call {
            Some(_) => Class::Continuing,
            None => Class::New,
        };
        let id = self.new_number();
        self.send(transactions, draft, class, Purpose::Request(id, call))?;
        Ok(RequestId(id))
    }

    pub(super) fn request_concluded(
        &mut self,
        transactions: &mut Transactions<'_>,
        (id, call): (u64, Option<u64>),
        ended: Ended<'_, '_>,
    ) {
        let (code, reason, content) = match ended {
            Ended::Response(code, response) => (code, reason_of(response), Content::of(response)),
            Ended::Failure(failure) => (code_of(failure), failure.to_string(), Content::none()),
        };
        self.events.push_back(Event::Response {
            id: RequestId(id),
            code,
            reason: reason.clone(),
            content,
        });
        if let Some(call) = call {
            self.end_if_lost(transactions, call, (code, reason));
        }
    }

    /// RFC 3261 §12.2.1.2: after a 408 or 481 there is no dialog any more at the other end.
    pub(super) fn end_if_lost(
        &mut self,
        transactions: &mut Transactions<'_>,
        call: u64,
        (code, reason): (u16, String),
    ) {
        let it = self.calls.get(&call);
        let is_confirmed = it.is_some_and(|it| matches!(it.state, State::Confirmed));
        if is_confirmed && matches!(code, 408 | 481) {
            let contacts = Vec::new();
            let cause = EndCause::Refused {
                code,
                reason,
                contacts,
            };
            self.end(transactions, call, cause);
        }
    }

    /// Responds to a request of [`Event::Request`], with a code of 200 to 699.
    ///
    /// # Errors
    /// [`CallError`]; nothing was sent then.
    pub fn respond(
        &mut self,
        transactions: &mut Transactions<'_>,
        id: RequestId,
        code: u16,
        lines: &[u8],
        content: &Content,
    ) -> Result<(), CallError> {
        content.check()?;
        check_lines(lines)?;
        if !(200..700).contains(&code) {
            return Err(CallError::OutOfPlace);
        }
        let key = self.asked.remove(&id.0).ok_or(CallError::Gone)?;
        let mut lines = lines.to_vec();
        content.add_type(&mut lines);
        let reply = Reply::new(code).headers(&lines).body(&content.bytes);
        Ok(transactions.respond(key, &reply)?)
    }
}

/// What a request of the program is sent to.
#[derive(Clone, Copy, Debug)]
pub enum RequestTarget<'a> {
    /// The peer of a call.
    Call(CallKey),
    /// A URI, outside of calls.
    Uri(&'a str),
}

/// The status code that the program gets if there was no response (RFC 3261 §8.1.3.1).
pub(super) const fn code_of(failure: Failure) -> u16 {
    match failure {
        Failure::TimedOut => 408,
        Failure::Cancelled => 487,
        _ => 503,
    }
}

/// The URIs of Contact.
pub(super) fn contacts_of(response: &Message<'_>) -> Vec<String> {
    let contacts = response.contacts().filter_map(Result::ok);
    contacts
        .filter_map(|contact| match contact {
            crate::header::Contact::Addr(addr) => {
                Some(String::from_utf8_lossy(addr.uri).into_owned())
            }
            crate::header::Contact::Star => None,
        })
        .collect()
}
