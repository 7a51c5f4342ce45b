//! Reliable provisional responses (RFC 3262), if the rules of the user agent have the extension `100rel`
//! ([`RULES_WITH_100REL`](super::RULES_WITH_100REL)).
//!
//! A caller acknowledges each of them with PRACK, in its early dialog. A callee repeats one until its PRACK comes, and
//! sends no other one before that.

use std::time::Duration;

use super::call::{Call, State};
use super::dialog::Dialog;
use super::draft::Content;
use super::event::{CallError, CallKey, EndCause, Event};
use super::{Purpose, UserAgent};
use crate::congestion::Class;
use crate::engine::{NewRequest, Reply, ServerKey};
use crate::header::{HeaderKind, Tokens};
use crate::message::Message;
use crate::tu::Transactions;
use crate::{Method, Mono};

/// The option tag.
pub(super) const OPTION: &str = "100rel";

/// RFC 3262 §3: the first number is at most 2**31 - 1.
const MOST_FIRST: u64 = (1 << 31) - 1;

/// Whether the caller of an incoming call supports reliable provisional responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reliability {
    #[default]
    Unsupported,
    Supported,
    /// All provisional responses must be reliable.
    Required,
}

/// A provisional response of this side that has no PRACK.
#[derive(Debug)]
pub(super) struct Waiting {
    /// What RAck of its PRACK has: its number, and the CSeq number of the INVITE.
    rack: (u32, u32),
    code: u16,
    lines: Vec<u8>,
    content: Content,
    interval: Duration,
    /// When to send it again; `None` after the final response.
    again: Option<Mono>,
    until: Mono,
}

/// A provisional response without a PRACK, of a call that has ended with a final response other than a 2xx.
#[derive(Debug)]
pub(super) struct Outstanding {
    dialog: Dialog,
    rack: (u32, u32),
    pub(super) until: Mono,
}

/// The reliable provisional responses of an incoming call.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) reliability: Reliability,
    /// The INVITE had no offer, and no PRACK has had an answer to one of this side.
    has_no_offer: bool,
    /// The number of the last response; 0 if there was none.
    last: u32,
    waiting: Option<Waiting>,
}

impl Progress {
    /// For a call that begins with this INVITE.
    pub(super) fn of(invite: &Message<'_>, is_reliable: bool) -> Progress {
        let has = |mut tags: Tokens<'_>| {
            tags.any(|tag| tag.is_ok_and(|tag| tag.eq_ignore_ascii_case(OPTION.as_bytes())))
        };
        let reliability = match is_reliable {
            true if has(invite.require()) => Reliability::Required,
            true if has(invite.supported()) => Reliability::Supported,
            _ => Reliability::Unsupported,
        };
        Progress {
            reliability,
            has_no_offer: invite.body().is_empty(),
            ..Progress::default()
        }
    }

    /// RFC 3262 §3: no 2xx may follow before the PRACK, if the response has a session description.
    pub(super) fn forbids_success(&self) -> bool {
        let waiting = self.waiting.as_ref();
        waiting.is_some_and(|it| it.again.is_some() && !it.content.is_empty())
    }

    /// A final response was sent: the provisional one is not repeated any more. Its PRACK may still come.
    pub(super) fn concluded(&mut self, transactions: &Transactions<'_>) {
        if let Some(waiting) = &mut self.waiting {
            waiting.again = None;
            waiting.until = give_up_at(transactions);
        }
    }

    pub(super) fn next_at(&self) -> Option<Mono> {
        let waiting = self.waiting.as_ref()?;
        Some(waiting.again?.min(waiting.until))
    }
}

/// 64*T1 from now.
fn give_up_at(transactions: &Transactions<'_>) -> Mono {
    let timers = transactions.engine.timers();
    transactions.now.mono.plus(timers.give_up())
}

/// The number of a reliable provisional response.
pub(super) fn rseq_of(response: &Message<'_>) -> Option<u32> {
    let mut required = response.require().filter_map(Result::ok);
    let is_reliable = required.any(|tag| tag.eq_ignore_ascii_case(OPTION.as_bytes()));
    let rseq = response.header(HeaderKind::RSeq)?.value;
    number(rseq.trim_ascii()).filter(|_| is_reliable)
}

/// RAck: the number of the response, and the CSeq number of its INVITE.
fn rack_of(prack: &Message<'_>) -> Option<(u32, u32)> {
    let value = prack.header(HeaderKind::RAck)?.value;
    let mut words = value
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let (rseq, cseq, method) = (words.next()?, words.next()?, words.next()?);
    let is_invite = method == b"INVITE" && words.next().is_none();
    number(rseq).zip(number(cseq)).filter(|_| is_invite)
}

fn number(digits: &[u8]) -> Option<u32> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits)
        .ok()
        .filter(|_| is_number)?
        .parse()
        .ok()
}

impl UserAgent {
    /// A reliable provisional response with this number has come in the early dialog of this branch. Returns whether it
    /// is the next one. A repetition, or one behind a gap, is not acknowledged and not passed on (RFC 3262 §4).
    pub(super) fn takes_reliable(&mut self, call: u64, branch: &[u8], rseq: u32) -> bool {
        let it = self.calls.get_mut(&call);
        let mut all = it.into_iter().flat_map(|it| &mut it.early);
        let Some(dialog) = all.find(|dialog| dialog.remote_tag == branch) else {
            return false;
        };
        let is_next = dialog
            .rseq
            .is_none_or(|last| last.checked_add(1) == Some(rseq));
        if is_next {
            dialog.rseq = Some(rseq);
        }
        is_next
    }

    /// Acknowledges the last reliable provisional response of a branch.
    pub(super) fn send_prack(
        &mut self,
        transactions: &mut Transactions<'_>,
        (call, branch): (u64, &[u8]),
        content: Content,
    ) -> Result<(), CallError> {
        let it = self.calls.get_mut(&call).ok_or(CallError::Gone)?;
        let invite = it.invite.ok_or(CallError::OutOfPlace)?;
        let invite = self.pending.get(&invite).ok_or(CallError::OutOfPlace)?;
        let invite_cseq = invite.draft.cseq;
        let cseq = it.next_cseq();
        let mut all = it.early.iter();
        let dialog = all.find(|dialog| dialog.remote_tag == branch);
        let dialog = dialog.ok_or(CallError::OutOfPlace)?;
        let rseq = dialog.rseq.ok_or(CallError::OutOfPlace)?;
        let mut lines = format!("RAck: {rseq} {invite_cseq} INVITE\r\n").into_bytes();
        self.config.add_user_agent(&mut lines);
        let mut draft = dialog.draft(b"PRACK", cseq, lines, content);
        draft.realms.clone_from(&it.realms);
        let purpose = Purpose::Prack(call);
        self.send(transactions, draft, Class::Continuing, purpose)?;
        Ok(())
    }

    /// Sends the answer to the offer in a reliable provisional response (RFC 3262 §5): [`Event::Progress`] of this
    /// branch had it, because the INVITE had none. Until then, the callee repeats its response.
    ///
    /// # Errors
    /// [`CallError::OutOfPlace`] if there is no such offer, or the call is answered already. Or another [`CallError`].
    pub fn answer_progress(
        &mut self,
        transactions: &mut Transactions<'_>,
        call: CallKey,
        branch: &[u8],
        content: Content,
    ) -> Result<(), CallError> {
        content.check()?;
        let it = self.calls.get_mut(&call.0).ok_or(CallError::Gone)?;
        let mut all = it.early.iter_mut();
        let dialog = all.find(|dialog| dialog.remote_tag == branch && dialog.has_offered);
        if dialog.is_none() {
            return Err(CallError::OutOfPlace);
        }
        self.send_prack(transactions, (call.0, branch), content)?;
        let it = self.calls.get_mut(&call.0);
        let mut all = it.into_iter().flat_map(|it| &mut it.early);
        if let Some(dialog) = all.find(|dialog| dialog.remote_tag == branch) {
            dialog.has_offered = false;
            dialog.is_settled = true;
        }
        Ok(())
    }

    /// The same as [`UserAgent::ring`], and repeats the response until the caller acknowledges it with PRACK (RFC 3262
    /// §3). [`Event::ProgressAcknowledged`] follows. If no PRACK comes for 32 s, the call is refused with 500 and ends.
    ///
    /// # Errors
    /// [`CallError::OutOfPlace`] if the caller does not support this, if another reliable response has no PRACK yet, or
    /// if the call is not an incoming one that waits. Also if neither the INVITE nor its first reliable response has an
    /// offer (RFC 3262 §5). Or another [`CallError`].
    pub fn ring_reliably(
        &mut self,
        transactions: &mut Transactions<'_>,
        call: CallKey,
        code: u16,
        content: &Content,
    ) -> Result<(), CallError> {
        content.check()?;
        let random = self.random.number();
        let it = self.calls.get(&call.0).ok_or(CallError::Gone)?;
        let (State::Incoming, Some(key), 101..200) = (&it.state, it.offer, code) else {
            return Err(CallError::OutOfPlace);
        };
        let Progress {
            reliability,
            has_no_offer,
            last,
            ref waiting,
        } = it.progress;
        let lacks_offer = has_no_offer && last == 0 && content.is_empty();
        if reliability == Reliability::Unsupported || waiting.is_some() || lacks_offer {
            return Err(CallError::OutOfPlace);
        }
        let rseq = match last {
            0 => u32::try_from(1 + random % MOST_FIRST).unwrap_or(1),
            last => last.wrapping_add(1).max(1),
        };
        let mut lines = Vec::new();
        self.config.add_contact(&mut lines);
        lines.extend_from_slice(format!("Require: {OPTION}\r\nRSeq: {rseq}\r\n").as_bytes());
        content.add_type(&mut lines);
        let reply = Reply::new(code).headers(&lines).body(&content.bytes);
        transactions.respond(key, &reply)?;
        let t1 = transactions.engine.timers().t1;
        if let Some(it) = self.calls.get_mut(&call.0) {
            it.progress.last = rseq;
            it.progress.waiting = Some(Waiting {
                rack: (rseq, it.offer_cseq),
                code,
                lines,
                content: content.clone(),
                interval: t1,
                again: Some(transactions.now.mono.plus(t1)),
                until: give_up_at(transactions),
            });
        }
        Ok(())
    }

    /// The peer acknowledges a provisional response of ours. A PRACK for another one gets 481 (RFC 3262 §3).
    pub(super) fn pracked(
        &mut self,
        transactions: &mut Transactions<'_>,
        call: u64,
        request: NewRequest<'_>,
    ) {
        let message = { request.message };
        let rack = rack_of(&message);
        let Some(it) = self.calls.get_mut(&call) else {
            return;
        };
        let is_it = |waiting: &mut Waiting| rack == Some(waiting.rack);
        let Some(response) = it.progress.waiting.take_if(is_it) else {
            let _ = transactions.answer(request, &Reply::new(481));
            return;
        };
        let content = Content::of(&message);
        let has_offered = it.progress.has_no_offer && !response.content.is_empty();
        let is_answer = has_offered || content.is_empty();
        if has_offered && !content.is_empty() {
            it.progress.has_no_offer = false;
        }
        let event = |content| Event::ProgressAcknowledged {
            call: CallKey(call),
            content,
        };
        if is_answer {
            let _ = transactions.answer(request, &Reply::new(200));
            self.events.push_back(event(content));
            return;
        }
        // RFC 3262 §5: the 2xx for a PRACK with an offer has the answer, which the program makes.
        self.events.push_back(event(Content::none()));
        self.ask_program(transactions, request, Some(call));
    }

    /// An incoming call has ended. The PRACK for its last response may still come (RFC 3262 §3).
    pub(super) fn keep_outstanding(&mut self, call: Call) {
        let is_refused = matches!(call.state, State::Incoming);
        if let (Some(waiting), Some(dialog)) = (call.progress.waiting, call.dialog)
            && is_refused
            && self.outstanding.len() < self.config.most_calls
        {
            let outstanding = Outstanding {
                dialog,
                rack: waiting.rack,
                until: waiting.until,
            };
            self.outstanding.insert(call.local_tag, outstanding);
        }
    }

    /// Whether a request acknowledges a provisional response of a call that has ended.
    pub(super) fn is_late_prack(&mut self, tag: &[u8], request: &NewRequest<'_>) -> bool {
        let rack = rack_of(&request.message);
        let (call_id, from_tag) = (request.call_id(), request.from_tag());
        let is_prack = matches!(request.message.method(), Some(Method::Prack));
        let is_late = self.outstanding.get(tag).is_some_and(|it| {
            is_prack && rack == Some(it.rack) && it.dialog.is_of(call_id, from_tag)
        });
        if is_late {
            self.outstanding.remove(tag);
        }
        is_late
    }

    /// When the next response is to be repeated, or given up.
    pub(super) fn next_progress_at(&self) -> Option<Mono> {
        let all = self.calls.values();
        all.filter_map(|it| it.progress.next_at()).min()
    }

    /// Repeats responses that have no PRACK, and refuses calls that have waited for too long.
    pub(super) fn repeat_progress(&mut self, transactions: &mut Transactions<'_>) {
        let now = transactions.now.mono;
        let mut over: Vec<(u64, ServerKey)> = Vec::new();
        for (number, it) in &mut self.calls {
            let is_due = it.progress.next_at().is_some_and(|at| at <= now);
            let (Some(waiting), Some(key)) = (&mut it.progress.waiting, it.offer) else {
                continue;
            };
            if !is_due {
                continue;
            }
            if waiting.until <= now {
                over.push((*number, key));
                continue;
            }
            waiting.interval *= 2;
            waiting.again = Some(now.plus(waiting.interval));
            let reply = Reply::new(waiting.code).headers(&waiting.lines);
            // If it cannot be sent, the next repetition may succeed.
            let _ = transactions.respond(key, &reply.body(&waiting.content.bytes));
        }
        for (call, key) in over {
            let _ = transactions.respond(key, &Reply::new(500).reason(b"No PRACK"));
            if let Some(it) = self.calls.get_mut(&call) {
                it.progress.concluded(transactions);
            }
            self.remove(call, EndCause::NotAcknowledged);
        }
    }
}
