//! Calls that this side begins (RFC 3261 §13.2).

use super::authenticator::AuthProblem;
use super::call::{Call, State, code_of, contacts_of};
use super::config::name_addr;
use super::dialog::Dialog;
use super::draft::{Content, Draft, Path, check_lines};
use super::event::{CallError, CallKey, EndCause, Event};
use super::registration::reason_of;
use super::reliable::rseq_of;
use super::{Ended, Purpose, UserAgent};
use crate::congestion::Class;
use crate::dispatch::{AllowedDestination, OutgoingRequest};
use crate::message::Message;
use crate::tu::Transactions;
use crate::uri::Uri;

/// Early dialogs of one call, and branches that are ended after another has answered: 32, the default limit of this
/// project's proxy.
const MAX_BRANCHES: usize = 32;

/// A call to be begun.
#[derive(Clone, Debug)]
pub struct Invite<'a> {
    /// The URI that is called: Request-URI and To.
    pub uri: &'a str,
    /// The URI of From; by default the address of record. A B2BUA names its caller.
    pub from: Option<&'a str>,
    /// The offer. Without one, the answer of the callee has it (RFC 3264).
    pub content: Content,
    /// Further header lines, each with its line end.
    pub lines: &'a [u8],
}

impl<'a> Invite<'a> {
    /// A call to this URI with this offer.
    #[must_use]
    pub const fn new(uri: &'a str, content: Content) -> Invite<'a> {
        Invite {
            uri,
            from: None,
            content,
            lines: b"",
        }
    }
}

/// What a 2xx says.
struct SuccessResponse {
    dialog: Dialog,
    /// It was acknowledged, or waits for the program.
    is_repeated: bool,
    /// The route set of the dialog is complete.
    is_whole: bool,
}

impl UserAgent {
    /// Calls somebody. [`Event::Progress`], [`Event::Answered`] and [`Event::Ended`] follow.
    ///
    /// # Errors
    /// [`CallError`]; there is no call then.
    pub fn invite(
        &mut self,
        transactions: &mut Transactions<'_>,
        invite: Invite<'_>,
    ) -> Result<CallKey, CallError> {
        if self.calls.len() >= self.config.most_calls {
            return Err(CallError::Full);
        }
        invite.content.check()?;
        check_lines(invite.lines)?;
        let from = match invite.from {
            None => self.config.sender_address(),
            Some(uri) => name_addr("", checked_uri(uri)?),
        };
        let mut lines = Vec::new();
        self.config.add_contact(&mut lines);
        self.config.add_abilities(&mut lines);
        lines.extend_from_slice(invite.lines);
        let (call_id, tag) = (self.random.token(), self.random.token());
        let ends = (from, tag.clone(), call_id);
        let mut draft = self.draft_to(invite.uri, b"INVITE", ends, lines, invite.content)?;
        let number = self.new_number();
        let mut call = Call::new(State::Calling, tag.clone(), None);
        if !self.config.is_contact_for(&draft) {
            return Err(CallError::Uri);
        }
        draft.cseq = call.next_cseq();
        let sent = self.send(transactions, draft, Class::New, Purpose::Invite(number))?;
        call.invite = Some(sent);
        self.calls.insert(number, call);
        self.by_tag.insert(tag, number);
        Ok(CallKey(number))
    }

    /// A request outside of dialogs: From, its tag and the Call-ID are given.
    pub(super) fn draft_to(
        &self,
        to: &str,
        method: &[u8],
        (from, tag, call_id): (Vec<u8>, Vec<u8>, Vec<u8>),
        lines: Vec<u8>,
        content: Content,
    ) -> Result<Draft, CallError> {
        let to = checked_uri(to)?;
        let proxy = self.config.outbound_proxy.as_ref();
        let routes = match (&self.registration.service_route[..], proxy) {
            ([], Some(proxy)) => vec![format!("<{proxy}>").into_bytes()],
            (routes, _) => routes.to_vec(),
        };
        let Path {
            uri,
            routes,
            next_hop,
        } = Path::new(to.as_bytes(), &routes);
        Ok(Draft {
            method: method.to_vec(),
            uri,
            routes,
            next_hop,
            route_set: None,
            from: [&from[..], b";tag=", &tag].concat(),
            to: name_addr("", to),
            call_id,
            cseq: 1,
            lines,
            content,
            credentials: Vec::new(),
            realms: Vec::new(),
            challenged: Vec::new(),
        })
    }

    /// A provisional response: a branch that names itself with a To tag is an early dialog (RFC 3261 §13.2.2.1).
    pub(super) fn progressed(
        &mut self,
        transactions: &mut Transactions<'_>,
        (number, call): (u64, u64),
        code: u16,
        response: &Message<'_>,
    ) {
        let pending = self.pending.get(&number);
        let (Some(it), Some(pending)) = (self.calls.get_mut(&call), pending) else {
            return;
        };
        if code == 100 || it.is_ending() || pending.forget_at.is_some() {
            return;
        }
        let branch = response.to().ok().and_then(|to| to.tag).unwrap_or_default();
        let is_new = it.early.iter().all(|dialog| dialog.remote_tag != branch);
        if !branch.is_empty()
            && is_new
            && it.early.len() < MAX_BRANCHES
            && let Some((dialog, true)) = Dialog::of_response(&pending.draft, response)
        {
            it.early.push(dialog);
        }
        let rseq = rseq_of(response).filter(|_| self.config.has_100rel());
        if let Some(rseq) = rseq
            && !self.takes_reliable(call, branch, rseq)
        {
            return;
        }
        let content = Content::of(response);
        let is_offer = self.has_no_offer(number) && !content.is_empty();
        self.events.push_back(Event::Progress {
            call: CallKey(call),
            code,
            branch: branch.to_vec(),
            content,
        });
        if rseq.is_none() {
            return;
        }
        if is_offer && self.await_answer(call, branch) {
            return;
        }
        // If the PRACK cannot be sent, the callee repeats its response in vain, and refuses the INVITE.
        let _ = self.send_prack(transactions, (call, branch), Content::none());
    }

    /// The program must answer the offer of a branch. Returns `false` if it has answered one there before.
    fn await_answer(&mut self, call: u64, branch: &[u8]) -> bool {
        let it = self.calls.get_mut(&call);
        let mut all = it.into_iter().flat_map(|it| &mut it.early);
        let dialog = all.find(|dialog| dialog.remote_tag == branch);
        let dialog = dialog.filter(|dialog| !dialog.is_settled);
        dialog.is_some_and(|dialog| {
            dialog.has_offered = true;
            true
        })
    }

    /// A 2xx for the INVITE that begins a call: of the first branch that answers, or of another one.
    pub(super) fn invite_answered(
        &mut self,
        transactions: &mut Transactions<'_>,
        number: u64,
        call: u64,
        response: &Message<'_>,
    ) {
        let known = self.calls.get(&call).and_then(|it| it.dialog.as_ref());
        let (has_dialog, known) = (known.is_some(), known.map(|it| it.remote_tag.clone()));
        let Some(answer) = self.answer_of(transactions, number, response) else {
            // There is no dialog to acknowledge.
            if !has_dialog {
                self.remove(call, EndCause::Malformed);
            }
            return;
        };
        let dialog = answer.dialog;
        if answer.is_repeated {
            return;
        }
        if known.as_ref() == Some(&dialog.remote_tag) {
            // The ACK was not sent when the 2xx came first.
            return self.acknowledge_now(transactions, number);
        }
        if has_dialog || !answer.is_whole || !self.calls.contains_key(&call) {
            // RFC 3261 §13.2.2.4: send BYE if another branch has answered, or if the call has ended.
            self.end_stray(transactions, number, &dialog);
            if !has_dialog {
                self.remove(call, EndCause::Malformed);
            }
            return;
        }
        self.call_answered(transactions, (number, call), dialog, Content::of(response));
    }

    /// The first 2xx for the INVITE that begins a call.
    fn call_answered(
        &mut self,
        transactions: &mut Transactions<'_>,
        (number, call): (u64, u64),
        dialog: Dialog,
        content: Content,
    ) {
        let Some(it) = self.calls.get_mut(&call) else {
            return;
        };
        let branch = dialog.remote_tag.clone();
        let mut early = it.early.iter();
        let is_settled = early.any(|early| early.remote_tag == branch && early.is_settled);
        it.dialog = Some(dialog);
        it.early.clear();
        it.invite = None;
        let is_cancelled = it.is_ending();
        it.state = State::Confirmed;
        let has_offer = self.has_no_offer(number) && !content.is_empty() && !is_settled;
        if has_offer && !is_cancelled {
            self.await_program(call, number);
        } else {
            self.acknowledge_now(transactions, number);
        }
        if is_cancelled {
            return self.end(transactions, call, EndCause::Cancelled);
        }
        self.events.push_back(Event::Answered {
            call: CallKey(call),
            branch,
            content,
        });
    }

    /// A 2xx for a re-INVITE.
    pub(super) fn reinvite_answered(
        &mut self,
        transactions: &mut Transactions<'_>,
        number: u64,
        call: u64,
        response: &Message<'_>,
    ) {
        let Some(answer) = self.answer_of(transactions, number, response) else {
            // Without an ACK, the peer ends the call.
            if let Some(it) = self.calls.get_mut(&call) {
                it.invite = None;
            }
            return;
        };
        if answer.is_repeated {
            return;
        }
        let content = Content::of(response);
        let has_offer = self.has_no_offer(number) && !content.is_empty();
        let it = self.calls.get_mut(&call);
        let is_awaited =
            |it: &&mut Call| matches!(it.state, State::Confirmed) && it.invite == Some(number);
        let Some(it) = it.filter(is_awaited) else {
            // RFC 3261 §13.2.2.4: also if the call has ended. If the ACK cannot be sent, the peer retransmits its 2xx.
            let _ = self.send_ack_in(transactions, number, &answer.dialog, Content::none());
            return;
        };
        it.invite = None;
        if let Some(dialog) = &mut it.dialog {
            dialog.refresh_target(response);
        }
        if has_offer {
            self.await_program(call, number);
        } else {
            self.acknowledge_now(transactions, number);
        }
        let call = CallKey(call);
        self.events
            .push_back(Event::OfferAnswered { call, content });
    }

    /// What a 2xx says. If it was seen before, its ACK is sent again (RFC 3261 §13.2.2.4). `None` if its To is
    /// malformed.
    fn answer_of(
        &mut self,
        transactions: &mut Transactions<'_>,
        number: u64,
        response: &Message<'_>,
    ) -> Option<SuccessResponse> {
        let pending = self.pending.get_mut(&number)?;
        let is_first = pending.forget_at.is_none();
        // The transaction passes further 2xx to the TU until 64*T1 after the first one (RFC 6026 §7.2, timer M). The
        // request is kept for twice that time, because timer M may fire late.
        let lifetime = transactions.engine.timers().give_up().saturating_mul(2);
        let until = transactions.now.mono.plus(lifetime);
        pending.forget_at.get_or_insert(until);
        let (dialog, is_whole) = Dialog::of_response(&pending.draft, response)?;
        let mut acks = pending.acks.iter();
        let acked = acks.find(|(tag, ..)| *tag == dialog.remote_tag);
        if let Some((_, next_hop, bytes)) = acked {
            // If the ACK cannot be sent, the peer retransmits its 2xx.
            let _ = deliver_ack(transactions, next_hop, bytes);
            return Some(SuccessResponse {
                dialog,
                is_repeated: true,
                is_whole,
            });
        }
        // The program has not acknowledged it yet.
        let mut calls = self.calls.values();
        let waits = calls.any(|call| {
            let known = call.dialog.as_ref();
            let is_same = known.is_some_and(|it| it.remote_tag == dialog.remote_tag);
            is_same && call.unacknowledged == Some(number)
        });
        Some(SuccessResponse {
            dialog,
            is_repeated: waits && !is_first,
            is_whole,
        })
    }

    fn has_no_offer(&self, number: u64) -> bool {
        let pending = self.pending.get(&number);
        pending.is_some_and(|pending| pending.draft.content.is_empty())
    }

    fn await_program(&mut self, call: u64, number: u64) {
        if let Some(it) = self.calls.get_mut(&call) {
            it.unacknowledged = Some(number);
        }
    }

    fn acknowledge_now(&mut self, transactions: &mut Transactions<'_>, number: u64) {
        // If the ACK cannot be sent, the peer retransmits its 2xx.
        let _ = self.send_ack(transactions, number, Content::none());
    }

    /// Sends the ACK for a 2xx that had the offer, with the answer.
    ///
    /// # Errors
    /// [`CallError::OutOfPlace`] if there is no such 2xx. Or another [`CallError`].
    pub fn acknowledge(
        &mut self,
        transactions: &mut Transactions<'_>,
        call: CallKey,
        content: Content,
    ) -> Result<(), CallError> {
        content.check()?;
        let it = self.calls.get_mut(&call.0).ok_or(CallError::Gone)?;
        let number = it.unacknowledged.ok_or(CallError::OutOfPlace)?;
        self.send_ack(transactions, number, content)?;
        if let Some(it) = self.calls.get_mut(&call.0) {
            it.unacknowledged = None;
        }
        Ok(())
    }

    /// Sends the ACK for the 2xx of this INVITE, in the dialog of its call.
    pub(super) fn send_ack(
        &mut self,
        transactions: &mut Transactions<'_>,
        number: u64,
        content: Content,
    ) -> Result<(), CallError> {
        let pending = self.pending.get(&number).ok_or(CallError::Gone)?;
        let (Purpose::Invite(call) | Purpose::Reinvite(call)) = pending.purpose else {
            return Err(CallError::OutOfPlace);
        };
        let call = self.calls.get(&call).ok_or(CallError::Gone)?;
        let dialog = call.dialog.clone().ok_or(CallError::OutOfPlace)?;
        self.send_ack_in(transactions, number, &dialog, content)
    }

    fn send_ack_in(
        &mut self,
        transactions: &mut Transactions<'_>,
        number: u64,
        dialog: &Dialog,
        content: Content,
    ) -> Result<(), CallError> {
        let pending = self.pending.get_mut(&number).ok_or(CallError::Gone)?;
        if pending.acks.len() > MAX_BRANCHES {
            return Err(CallError::Full);
        }
        let mut draft = dialog.draft(b"ACK", pending.draft.cseq, Vec::new(), content);
        // RFC 3261 §13.2.2.4: the credentials of the INVITE.
        draft.credentials.clone_from(&pending.draft.credentials);
        let bytes = draft.write()?;
        deliver_ack(transactions, &draft.next_hop, &bytes)?;
        let tag = dialog.remote_tag.clone();
        pending.acks.push((tag, draft.next_hop, bytes));
        Ok(())
    }

    /// Acknowledges a 2xx of a branch that has no call, and ends its dialog. Above [`MAX_BRANCHES`], branches get
    /// no ACK and no BYE. Otherwise, forged 2xx could cause any number of requests to any address.
    fn end_stray(&mut self, transactions: &mut Transactions<'_>, number: u64, dialog: &Dialog) {
        let pending = self.pending.get(&number);
        // The branch that has the call may not have its ACK yet: one place is left for it.
        if pending.is_none_or(|pending| pending.acks.len() >= MAX_BRANCHES) {
            return;
        }
        if self
            .send_ack_in(transactions, number, dialog, Content::none())
            .is_err()
        {
            return;
        }
        let Some(pending) = self.pending.get(&number) else {
            return;
        };
        // A PRACK may have had a higher number than the INVITE.
        let last = match pending.purpose {
            Purpose::Invite(call) => {
                let call = self.calls.get(&call);
                call.map_or(pending.last_cseq, Call::cseq)
            }
            _ => 0,
        };
        let cseq = last.max(pending.draft.cseq) + 1;
        let mut draft = dialog.draft(b"BYE", cseq, Vec::new(), Content::none());
        draft.realms.clone_from(&pending.draft.realms);
        // If the BYE cannot be sent, the peer must end this dialog itself.
        let _ = self.send(transactions, draft, Class::Finishing, Purpose::Stray);
    }

    /// The INVITE that begins a call has failed.
    pub(super) fn invite_failed(
        &mut self,
        call: u64,
        problem: Option<AuthProblem>,
        ended: Ended<'_, '_>,
    ) {
        let Some(it) = self.calls.get(&call) else {
            return;
        };
        let cause = match (ended, problem) {
            _ if it.is_ending() => EndCause::Cancelled,
            (_, Some(problem)) => EndCause::Authentication(problem),
            (Ended::Response(code, response), None) => EndCause::Refused {
                code,
                reason: reason_of(response),
                contacts: contacts_of(response),
            },
            (Ended::Failure(failure), None) => EndCause::NoResponse(failure),
        };
        self.remove(call, cause);
    }

    /// A re-INVITE has failed.
    pub(super) fn reinvite_failed(
        &mut self,
        transactions: &mut Transactions<'_>,
        call: u64,
        ended: Ended<'_, '_>,
    ) {
        let Some(it) = self.calls.get_mut(&call) else {
            return;
        };
        it.invite = None;
        if it.is_ending() {
            return;
        }
        let (code, reason) = match ended {
            Ended::Response(code, response) => (code, reason_of(response)),
            Ended::Failure(failure) => (code_of(failure), failure.to_string()),
        };
        self.events.push_back(Event::OfferRefused {
            call: CallKey(call),
            code,
        });
        self.end_if_lost(transactions, call, (code, reason));
    }
}

/// Sends an ACK, which has no transaction.
fn deliver_ack(
    transactions: &mut Transactions<'_>,
    next_hop: &[u8],
    bytes: &[u8],
) -> Result<(), CallError> {
    transactions.send(&OutgoingRequest {
        target: next_hop,
        pieces: &[bytes],
        class: Class::Finishing,
        // Nobody gets a result of an ACK.
        mark: crate::engine::Mark(0),
        reach: AllowedDestination::Anywhere,
        loop_check: None,
        flow: None,
        from: None,
    })?;
    Ok(())
}

/// A SIP URI that can stand in angle brackets.
fn checked_uri(uri: &str) -> Result<&str, CallError> {
    let is_sip = matches!(Uri::parse(uri.as_bytes()), Ok(Uri::Sip(_)));
    match is_sip && !uri.contains(['<', '>', '"', ' ', '\r', '\n']) {
        true => Ok(uri),
        false => Err(CallError::Uri),
    }
}
