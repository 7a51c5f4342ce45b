//! Calls that count towards limits, and the ends of their sessions.
//!
//! If a policy counts calls, a request is admitted before it is forwarded. From the INVITE on, the context has the tickets of its call; with
//! the first 2xx they go to the policy, which keeps them until the dialog ends.

use std::time::Duration;

use sip::{HashKey, Message, Method, Mono};

use super::context::ContextKey;
use super::policy::{Calls, Denied, NewCall};
use super::request::{Plan, Sender};
use super::session::{self, Asked, SessionChanges};
use super::{Proxy, Refusal, Stack};
use crate::calls::{DialogId, Payer, Ticket};

/// The most dialogs of one INVITE that count. Further phones of one user that answer at the same time do not count.
const MOST_DIALOGS: usize = 32;

/// What is known of a request that was admitted, until its transaction ends.
#[derive(Debug, Default)]
pub(super) struct Admitted {
    /// Its call, if it counts.
    pub(super) call: Option<Box<Call>>,
    /// The dialog that it belongs to, if dialogs count.
    pub(super) dialog: Option<DialogId>,
    /// It refreshes a session.
    pub(super) session: Option<Asked>,
}

/// A call that counts.
#[derive(Debug)]
pub(super) struct Call {
    /// While it rings.
    tickets: Vec<Ticket>,
    payers: Vec<Payer>,
    /// Those that a 2xx has begun.
    dialogs: Vec<DialogId>,
}

impl Call {
    fn new(tickets: Vec<Ticket>) -> Call {
        Call {
            payers: tickets.iter().map(Ticket::payer).collect(),
            tickets,
            dialogs: Vec::new(),
        }
    }

    /// The tickets of a dialog, if its 2xx is the first one. All dialogs of a forked request count.
    fn begin(&mut self, dialog: DialogId) -> Option<Vec<Ticket>> {
        if self.dialogs.contains(&dialog) || self.dialogs.len() >= MOST_DIALOGS {
            return None;
        }
        self.dialogs.push(dialog);
        Some(match self.tickets.is_empty() {
            false => std::mem::take(&mut self.tickets),
            true => self.payers.iter().map(Payer::ticket).collect(),
        })
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

/// The dialog of a message with both tags.
fn dialog_of(key: HashKey, message: &Message<'_>) -> Option<DialogId> {
    let (from, to) = (message.from().ok()?.tag?, message.to().ok()?.tag?);
    Some(DialogId::new(key, message.call_id().ok()?, [from, to]))
}

impl Proxy {
    /// Whether a request may be forwarded, as far as calls are limited.
    ///
    /// # Errors
    /// 403, 480 or 486 for limits, 422 for a session interval that is too small.
    pub(super) fn admit(
        &mut self,
        now: Mono,
        message: &Message<'_>,
        plan: &Plan<'_>,
        policy: &mut dyn Calls,
    ) -> Result<(Admitted, SessionChanges), Refusal> {
        let (mut admitted, mut changes) = (Admitted::default(), SessionChanges::default());
        let method = message.method();
        let in_dialog = message.to().is_ok_and(|to| to.tag.is_some());
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
            }
            return Ok((admitted, changes));
        }
        let by_routes = plan.targets.iter().filter(|target| target.hop.is_some());
        let rewritten: Vec<&[u8]> = by_routes.map(|target| &target.uri[..]).collect();
        let call = NewCall {
            message,
            rewritten: &rewritten,
            user: match &plan.sender {
                Sender::User(user) => Some(user),
                _ => None,
            },
            uri: plan.routed.uri,
            is_local: plan.aor.is_some(),
        };
        let tickets = policy.admit(now, &call).map_err(Denied::refusal)?;
        admitted.call = (!tickets.is_empty()).then(|| Box::new(Call::new(tickets)));
        Ok((admitted, changes))
    }

    /// A 2xx is about to be forwarded. Returns the lines that are added to it (RFC 4028 §8.2).
    pub(super) fn count_success(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        key: ContextKey,
        message: &Message<'_>,
    ) -> Vec<u8> {
        let calls_key = self.calls_key;
        let Some(context) = self.contexts.get(key) else {
            return Vec::new();
        };
        let admitted = &mut context.admitted;
        let (session, lines) = match admitted.session {
            Some(asked) => session::of_success(message, asked),
            None => (None, Vec::new()),
        };
        let session = session.map(|seconds| Duration::from_secs(seconds.into()));
        if let Some(call) = &mut admitted.call
            && let Some(dialog) = dialog_of(calls_key, message)
            && let Some(tickets) = call.begin(dialog)
        {
            stack.policy.answered(now, dialog, session, tickets);
        } else if let Some(dialog) = admitted.dialog
            && admitted.session.is_some()
        {
            stack.policy.refreshed(now, dialog, session);
        }
        lines
    }

    /// A BYE has a final response. A 401 or 407 does not end the call, because the BYE is sent again with credentials.
    pub(super) fn count_bye(&mut self, stack: &mut Stack<'_>, key: ContextKey, code: u16) {
        if let Some(context) = self.contexts.get(key)
            && context.is_bye
            && !matches!(code, 401 | 407)
            && let Some(dialog) = context.admitted.dialog.take()
        {
            stack.policy.ended(dialog);
        }
    }
}
