//! Calls that count towards limits, and the ends of their sessions.
//!
//! If a policy counts calls, a request is admitted before it is forwarded. From the INVITE on, the context has the
//! tickets of its call. With the first 2xx they go to the policy, which keeps them until the dialog ends.

use std::time::Duration;

use sip::flow::Flow;
use sip::{HashKey, Message, Method, Mono, Now, Spans};

use super::context::{Context, ContextKey, WaitingRequest};
use super::policy::{Denied, NewCall, Policy};
use super::request::Plan;
use super::route::is_within;
use super::sender::Sender;
use super::session::{self, RefreshRequest, SessionChanges};
use super::{Proxy, Refusal, Stack};
use crate::calls::{
    AttemptFailure, Bye, CallAccount, CallEnd, CallRecord, Counted, DialogId, Sides, Ticket,
};

/// The most dialogs of one INVITE that count. Further phones of one user that answer at the same time do not count.
const MAX_DIALOGS: usize = 32;

/// What is known of a request that was admitted, until its transaction ends.
#[derive(Debug, Default)]
pub(super) struct Admitted {
    /// Its call, if it counts.
    pub(super) call: Option<Box<Call>>,
    /// The dialog that it belongs to, if dialogs count.
    pub(super) dialog: Option<DialogId>,
    /// It refreshes a session.
    pub(super) session: Option<RefreshRequest>,
    /// If it is a BYE: its sender and its destination.
    pub(super) bye: Option<Box<Bye>>,
}

impl Admitted {
    /// The record of its call, until the call is answered or has failed.
    pub(super) fn record(&mut self) -> Option<&mut CallRecord> {
        self.call.as_mut()?.record.as_deref_mut()
    }

    /// Removes the record, and returns it.
    pub(super) fn take_record(&mut self) -> Option<Box<CallRecord>> {
        self.call.as_mut()?.record.take()
    }
}

/// A call that counts.
#[derive(Debug)]
pub(super) struct Call {
    /// While it rings.
    tickets: Vec<Ticket>,
    accounts: Vec<CallAccount>,
    /// Those that a 2xx has begun.
    dialogs: Vec<DialogId>,
    record: Option<Box<CallRecord>>,
}

impl Call {
    fn new(tickets: Vec<Ticket>, record: Option<Box<CallRecord>>) -> Call {
        Call {
            record,
            accounts: tickets.iter().map(Ticket::account).collect(),
            tickets,
            dialogs: Vec::new(),
        }
    }

    /// The tickets and the record of a dialog, if this is its first 2xx. All dialogs of a forked request count. Only
    /// the first one has the record.
    fn begin(&mut self, dialog: DialogId, sides: Sides) -> Option<Counted> {
        if self.dialogs.contains(&dialog) || self.dialogs.len() >= MAX_DIALOGS {
            return None;
        }
        self.dialogs.push(dialog);
        Some(Counted {
            tickets: match self.tickets.is_empty() {
                false => std::mem::take(&mut self.tickets),
                true => self.accounts.iter().map(CallAccount::ticket).collect(),
            },
            record: self.record.take(),
            sides,
        })
    }
}

/// A call at a trunk. The call ends with this, unless it was answered: then it ends with its dialogs.
#[derive(Debug)]
pub(super) struct TrunkCall {
    /// While it rings.
    ticket: Option<Ticket>,
    account: CallAccount,
}

impl TrunkCall {
    pub(super) fn new(ticket: Ticket) -> TrunkCall {
        TrunkCall {
            account: ticket.account(),
            ticket: Some(ticket),
        }
    }

    /// The ticket of a dialog. Each dialog of a call that the trunk has forked counts.
    fn answered(&mut self) -> Ticket {
        self.ticket.take().unwrap_or_else(|| self.account.ticket())
    }
}

impl Denied {
    fn refusal(self) -> Refusal {
        match self {
            Denied::Number => Refusal::of(403, "Number Is Not Allowed"),
            // RFC 3261 §21.4.24 fits best: busy now, try later. With 503 a caller would try another server.
            Denied::Concurrent => Refusal::of(486, "Too Many Calls"),
            Denied::Rate => Refusal {
                lines: b"Retry-After: 1\r\n",
                ..Refusal::of(480, "Too Many Calls per Second")
            },
        }
    }
}

/// The dialog of a message. RFC 3261 §12.1.2, §12.2.1.1: a user agent of RFC 2543 has no tag, which counts as an empty
/// one.
fn dialog_of(key: HashKey, message: &Message<'_>) -> Option<DialogId> {
    let (from, to) = (message.from().ok()?.tag, message.to().ok()?.tag);
    let tags = [from, to].map(Option::unwrap_or_default);
    Some(DialogId::new(key, message.call_id().ok()?, tags))
}

impl Proxy {
    /// Whether a request may be forwarded, as far as calls are limited.
    ///
    /// # Errors
    /// 403, 480 or 486 for limits, 422 for a session interval that is too small.
    pub(super) fn admit(
        &mut self,
        now: Now,
        (message, flow): (&Message<'_>, &Flow),
        plan: &Plan<'_>,
        policy: &mut dyn Policy,
    ) -> Result<(Admitted, SessionChanges), Refusal> {
        let (mut admitted, mut changes) = (Admitted::default(), SessionChanges::default());
        let method = message.method();
        let in_dialog = is_within(message, plan.routed.is_known_dialog);
        if let Some(timer) = policy.session_timer()
            && session::is_refresh(method)
        {
            match session::of_request(message, timer) {
                Ok((asked, changed)) => (admitted.session, changes) = (Some(asked), changed),
                Err(session::TooSmall) => {
                    self.lines = session::min_se(timer);
                    return Err(Refusal {
                        has_lines: true,
                        ..Refusal::of(422, "Session Interval Too Small")
                    });
                }
            }
        }
        if in_dialog {
            if policy.counts_calls() && (session::is_refresh(method) || method == Some(Method::Bye))
            {
                admitted.dialog = dialog_of(self.calls_key, message);
                admitted.bye = self.new_bye(now, (message, flow), plan, policy);
            }
            return Ok((admitted, changes));
        }
        if plan.sender == Sender::Node {
            // The node that has the caller counts the call.
            return Ok((admitted, changes));
        }
        let by_routes = plan.targets.iter().filter(|target| target.hop.is_some());
        let rewritten: Vec<&[u8]> = by_routes.map(|target| &target.uri[..]).collect();
        let call = NewCall {
            message,
            rewritten: &rewritten,
            routes: &plan.routed.routes,
            user: match &plan.sender {
                Sender::User(user) => Some(user),
                _ => None,
            },
            trunk: match plan.sender {
                Sender::Trunk => policy.trunk_of(flow),
                _ => None,
            },
            uri: &plan.routed.uri,
            is_local: plan.aor.is_some(),
        };
        let tickets = policy.admit(now.mono, &call).map_err(Denied::refusal)?;
        let record = self.new_record(now, (message, flow), policy);
        let counts = !tickets.is_empty() || record.is_some();
        admitted.call = counts.then(|| Box::new(Call::new(tickets, record)));
        Ok((admitted, changes))
    }

    /// The record of an INVITE outside of dialogs, if calls are recorded.
    fn new_record(
        &self,
        now: Now,
        (message, flow): (&Message<'_>, &Flow),
        policy: &dyn Policy,
    ) -> Option<Box<CallRecord>> {
        let is_call = message.method() == Some(Method::Invite)
            && !message.to().is_ok_and(|to| to.tag.is_some());
        if !is_call || !policy.records_calls() {
            return None;
        }
        let source = match &self.caller[..] {
            [] => policy.source_name(flow),
            user => user,
        };
        let from = (source, flow);
        Some(Box::new(CallRecord::new(
            self.calls_key,
            now,
            message,
            from,
        )))
    }

    /// The proxy refuses a request before it has tried a target: reports the record of the call, if the request is one.
    pub(super) fn record_refusal(
        &self,
        now: Now,
        policy: &mut dyn Policy,
        received: (&Message<'_>, &Flow),
        (code, reason): (u16, &str),
    ) {
        let record = self.new_record(now, received, policy);
        end_record(now.mono, policy, record, (code, true, reason));
    }

    /// A request that waited for a lookup gets this code: reports its record.
    pub(super) fn record_waiting(
        &mut self,
        now: Mono,
        policy: &mut dyn Policy,
        waiting: &WaitingRequest,
        (code, is_cancelled): (u16, bool),
    ) {
        let mut spans = Box::<Spans>::default();
        let Ok(message) = Message::parse(&waiting.bytes, &mut spans) else {
            return;
        };
        self.caller.clear();
        if let Some(Sender::User(user)) = &waiting.sender {
            self.caller.extend_from_slice(user);
        }
        let mut record = self.new_record(waiting.since, (&message, &waiting.from.flow), policy);
        if let Some(record) = record.as_mut().filter(|_| is_cancelled) {
            record.cancelled();
        }
        end_record(now, policy, record, (code, true, ""));
    }

    /// The server ends: the records of all calls that are not answered yet.
    pub fn take_calls(&mut self) -> Vec<CallRecord> {
        let contexts = self.contexts.all();
        contexts
            .filter_map(|context| Some(*context.admitted.take_record()?))
            .collect()
    }

    /// A branch of a recorded call has got a final response. The record stores it if it is the best one so far.
    pub(super) fn note_final(
        &mut self,
        now: Mono,
        stack: &Stack<'_>,
        (key, branch): (ContextKey, usize),
        (code, flow): (u16, &Flow),
    ) {
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        if code >= 300 {
            let is_unanswered = context
                .branches
                .get(branch)
                .is_some_and(|it| it.is_unanswered);
            let failure = match is_unanswered || context.is_unanswered {
                true => AttemptFailure::NoAnswer,
                false => AttemptFailure::Code(code),
            };
            note_attempt((now, stack), context, branch, failure);
        }
        let branch = context.branches.get(branch);
        let hop = branch.and_then(|it| it.hop);
        let forwarded = branch.and_then(|it| it.forwarded.as_ref());
        let target = match (&hop, forwarded, &context.aor) {
            (Some(hop), ..) => stack.policy.trunk_name(hop),
            (None, Some(forwarded), _) => &forwarded.name,
            (None, None, Some(aor)) => aor.as_bytes(),
            (None, None, None) => b"",
        };
        let is_best = code < 300 || context.best.is_beaten_by(code);
        if let Some(record) = context.admitted.record().filter(|_| is_best) {
            record.concluded(now, code, target, Some(flow.into()));
        }
    }

    /// The caller is about to get this final response to the INVITE, which is not a 2xx. `is_own`: the proxy itself has
    /// made the response.
    pub(super) fn note_failure(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        key: ContextKey,
        (code, is_own): (u16, bool),
    ) {
        let context = self.contexts.get(key);
        let record = context.and_then(|context| context.admitted.take_record());
        end_record(now, stack.policy, record, (code, is_own, ""));
    }

    /// Examines the next `places` places of the table from `first` on, and calls `list` with each record of a call that
    /// is not answered. Returns the next place; `None` after the last one.
    pub fn list_calls(
        &self,
        first: usize,
        places: usize,
        list: &mut dyn FnMut(&CallRecord),
    ) -> Option<usize> {
        let part = self.contexts.part(first, places)?;
        for context in part {
            let call = context.admitted.call.as_ref();
            if let Some(record) = call.and_then(|call| call.record.as_deref()) {
                list(record);
            }
        }
        Some(first + places)
    }

    /// A 2xx that arrived by this flow is about to be forwarded. Returns the lines that are added to it (RFC 4028
    /// §8.2).
    pub(super) fn count_success(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        (key, branch): (ContextKey, usize),
        (message, flow): (&Message<'_>, &Flow),
    ) -> Vec<u8> {
        let calls_key = self.calls_key;
        let begins = self.contexts.get(key).is_some_and(|context| {
            let branch = context.branches.get(branch);
            context.admitted.call.is_some() || branch.is_some_and(|it| it.call.is_some())
        });
        let sides = begins.then(|| self.sides_of(stack, (key, branch), (message, flow)));
        let Some(context) = self.contexts.get(key) else {
            return Vec::new();
        };
        let admitted = &mut context.admitted;
        let (session, lines) = match admitted.session {
            Some(asked) => session::of_success(message, asked),
            None => (None, Vec::new()),
        };
        let session = session.map(|seconds| Duration::from_secs(seconds.into()));
        let of_trunk = context.branches.get_mut(branch);
        let of_trunk = of_trunk.and_then(|branch| branch.call.as_mut());
        if of_trunk.is_some() && admitted.call.is_none() {
            admitted.call = Some(Box::new(Call::new(Vec::new(), None)));
        }
        if let Some(call) = &mut admitted.call
            && let Some(dialog) = dialog_of(calls_key, message)
            && let Some(mut counted) = call.begin(dialog, sides.unwrap_or_default())
        {
            counted.tickets.extend(of_trunk.map(TrunkCall::answered));
            stack.policy.answered(now, dialog, session, counted);
        } else if let Some(dialog) = admitted.dialog
            && admitted.session.is_some()
        {
            stack.policy.refreshed(now, dialog, session);
        }
        lines
    }

    /// A BYE has a final response. A 401 or 407 does not end the call, because the BYE is sent again with credentials.
    /// After another one, the policy decides whether the BYE proves that the call has ended.
    pub(super) fn count_bye(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        key: ContextKey,
        code: u16,
    ) {
        self.bye_answered(key, code);
        if let Some(context) = self.contexts.get(key)
            && context.is_bye
            && !matches!(code, 401 | 407)
            && let Some(dialog) = context.admitted.dialog.take()
            && let Some(bye) = context.admitted.bye.take()
            && let Some(record) = stack.policy.ended(dialog, &bye)
        {
            let by = record.sender_of_bye(bye.tag);
            stack.policy.call_ended(now, &record, by.into());
        }
    }
}

/// A branch of a recorded call has failed. A response to a CANCEL of the caller, or after a 6xx, is no failure.
pub(super) fn note_attempt(
    (now, stack): (Mono, &Stack<'_>),
    context: &mut Context,
    branch: usize,
    failure: AttemptFailure,
) {
    if context.is_ending && failure == AttemptFailure::Code(487) {
        return;
    }
    let hop = context.branches.get(branch).and_then(|it| it.hop);
    let trunk = hop
        .as_ref()
        .map_or(&b""[..], |hop| stack.policy.trunk_name(hop));
    if let Some(record) = context.admitted.record() {
        record.attempt_failed(now, trunk, failure);
    }
}

/// The INVITE of a call has failed: reports its record, if it has one.
pub(super) fn end_record(
    now: Mono,
    policy: &mut dyn Policy,
    record: Option<Box<CallRecord>>,
    (code, is_own, reason): (u16, bool, &str),
) {
    if let Some(mut record) = record {
        let by = record.refused(code, is_own);
        policy.call_ended(now, &record, CallEnd { by, reason });
    }
}
