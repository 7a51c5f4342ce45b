//! What follows when an address of a trunk does not take a request: another address, trunk or route (RFC 3261 §16.7,
//! RFC 3263 §4.3).
//!
//! A call that has rung moves on by its final response, as its route says, but not because the connection to its trunk
//! is lost.

use std::time::Duration;

use sip::build::Builder;
use sip::digest::DigestResponse;
use sip::dispatch::Failure;
use sip::{HashKey, Message, Mono, Spans};

use super::calls::{TrunkCall, note_attempt};
use super::context::{Context, ContextKey};
use super::target::{Target, any_follows, follow};
use super::{HopFull, Proxy, Stack};
use crate::calls::AttemptFailure;
use crate::routes::{Hop, Next, Outcome};

/// Why a request moves on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailureReason {
    Busy,
    NoAnswer,
    Unreachable,
    /// The response is final: nothing follows.
    Final,
}

impl FailureReason {
    fn of(code: u16, is_unanswered: bool) -> FailureReason {
        match code {
            _ if is_unanswered => FailureReason::NoAnswer,
            486 => FailureReason::Busy,
            408 | 480 => FailureReason::NoAnswer,
            500 | 502..=504 => FailureReason::Unreachable,
            _ => FailureReason::Final,
        }
    }

    fn next(self, hop: &Hop) -> Next {
        match self {
            FailureReason::Busy => hop.failures.busy,
            FailureReason::NoAnswer => hop.failures.no_answer,
            FailureReason::Unreachable => hop.failures.unreachable,
            FailureReason::Final => Next::Stop,
        }
    }
}

/// Bytes of the longest credentials.
const MAX_CREDENTIALS_BYTES: usize = 4096;

/// Answers challenges of trunks.
#[derive(Debug)]
pub(super) struct ChallengeResponder {
    /// Makes values of `cnonce` that nobody can predict.
    key: HashKey,
    count: u64,
}

impl ChallengeResponder {
    pub(super) fn new(key: HashKey, run: u32) -> ChallengeResponder {
        ChallengeResponder {
            key: key.derive(u64::from_le_bytes(*b"cnonces ")),
            count: u64::from(run) << 32,
        }
    }

    /// The header line with the credentials, if the challenge can be answered.
    fn answer(
        &mut self,
        stack: &Stack<'_>,
        target: &Target,
        bytes: &[u8],
        response: &Message<'_>,
    ) -> Option<Box<[u8]>> {
        let credentials = stack.policy.credentials(&target.hop?)?;
        let (challenge, answers) = credentials.challenge_in(response)?;
        let (user, password) = (credentials.user.as_bytes(), credentials.password.as_bytes());
        let mut spans = Box::<Spans>::default();
        let request = Message::parse(bytes, &mut spans).ok()?;
        self.count += 1;
        let cnonce = format!("{:016x}", self.key.mac(&self.count.to_be_bytes()));
        let ha1 = challenge.ha1(user, password);
        let answer = DigestResponse {
            challenge: &challenge,
            username: user,
            ha1: &ha1,
            method: request.method()?,
            uri: &target.uri,
            body: request.body(),
            count: 1,
            cnonce: cnonce.as_bytes(),
        };
        let mut buffer = [0; MAX_CREDENTIALS_BYTES];
        let mut line = Builder::fields(&mut buffer);
        answer.write(&mut line, answers);
        Some(line.finish_fields().ok()?.into())
    }
}

/// Removes the targets that do not follow. Returns whether any is left.
fn keep_following_targets(
    stack: &mut Stack<'_>,
    context: &mut Context,
    hop: &Hop,
    why: FailureReason,
) -> bool {
    let any = !context.targets.is_empty();
    follow(&mut context.targets, hop, why.next(hop));
    let goes_on = any && !context.targets.is_empty() && !context.is_ending;
    if goes_on {
        stack.policy.moved_on(hop);
    }
    goes_on
}

/// The target of the copy with credentials, if this server has credentials at the trunk and has not sent them yet.
pub(super) fn again(stack: &Stack<'_>, target: &Target) -> Option<Box<Target>> {
    let hop = target.hop?;
    stack.policy.credentials(&hop)?;
    target
        .credentials
        .is_empty()
        .then(|| Box::new(target.clone()))
}

/// The copy for an address of a trunk could not be sent, for example because the transaction table is full. That says
/// nothing about the address. Removes the targets that `on_unreachable` of the route excludes.
pub(super) fn not_sent(stack: &mut Stack<'_>, context: &mut Context, hop: &Hop) {
    keep_following_targets(stack, context, hop, FailureReason::Unreachable);
}

/// Whether this server has not tried to send a request. The address has asked for fewer requests (RFC 7339) or for a
/// pause (Retry-After), or this server limits what it sends.
const fn is_not_tried(failure: &Failure) -> bool {
    matches!(failure, Failure::Refused(_) | Failure::AskedToWait)
}

impl Proxy {
    /// Whether a trunk may get the request. If not, it has reached `calls_per_second` or `max_calls`, and the branch
    /// has ended. A call counts until its INVITE fails or its dialogs end.
    pub(super) fn admit_at_trunk(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        (key, number): (ContextKey, usize),
        hop: &Hop,
    ) -> bool {
        let Some(context) = self.contexts.get(key) else {
            return false;
        };
        let Some(branch) = context.branches.get_mut(number) else {
            return false;
        };
        match stack.policy.admit_hop(now, hop, context.is_invite) {
            Ok(ticket) => {
                branch.call = ticket.map(TrunkCall::new);
                true
            }
            Err(HopFull) => {
                branch.is_done = true;
                context.best.add_own(503);
                note_attempt((now, stack), context, number, AttemptFailure::Limited);
                keep_following_targets(stack, context, hop, FailureReason::Unreachable);
                false
            }
        }
    }

    /// An address of a trunk, or another node, has sent a provisional response: `answer_timeout` ends, and `ring_time`
    /// begins.
    pub(super) fn first_heard(&mut self, now: Mono, key: ContextKey, branch: usize, code: u16) {
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        let Some(branch) = context.branches.get_mut(branch) else {
            return;
        };
        branch.is_heard |= branch.is_node;
        let Some(hop) = branch.hop.filter(|_| !branch.is_done) else {
            return;
        };
        branch.has_rung |= code > 100;
        if std::mem::replace(&mut branch.is_heard, true) {
            return;
        }
        let rings = any_follows(&context.targets, &hop, hop.failures.no_answer);
        if rings && context.is_invite {
            self.set_timer(key, now.plus(hop.ring_time));
        } else {
            self.clear_timer(key);
        }
    }

    /// Whether a branch went to an address of a trunk or to another node, and was given up or has ended. A response of
    /// such a branch is late.
    pub(super) fn has_moved_on(&mut self, key: ContextKey, branch: usize) -> bool {
        let context = self.contexts.get(key);
        let branch = context.and_then(|it| it.branches.get(branch));
        branch.is_some_and(|it| it.is_done && (it.hop.is_some() || it.is_node))
    }

    /// How long an address of a trunk has for its first response; `None` if nothing follows.
    pub(super) fn answer_time(&mut self, key: ContextKey) -> Option<Duration> {
        let context = self.contexts.get(key)?;
        let hop = context.branches.last()?.hop?;
        let follows = any_follows(&context.targets, &hop, hop.failures.unreachable);
        follows.then_some(hop.answer_timeout)
    }

    /// A branch to an address of a trunk has its final response.
    pub(super) fn trunk_answered(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        key: ContextKey,
        branch: usize,
        message: &Message<'_>,
    ) {
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        let Some(branch) = context.branches.get_mut(branch) else {
            return;
        };
        // The outcome of an address that was given up is already recorded, but its 2xx still counts.
        let code = message.status_code().unwrap_or(0);
        let Some(hop) = branch.hop.filter(|_| !branch.is_done || code / 100 == 2) else {
            return;
        };
        branch.is_heard = true;
        let is_unanswered = branch.is_unanswered;
        let has_rung = branch.has_rung;
        let retry_after = message.retry_after().ok().flatten();
        let seconds = retry_after.map(|after| after.seconds);
        stack
            .policy
            .concluded(now, &hop, Outcome::Response(code, seconds));
        if let Ok(cseq) = message.cseq() {
            stack.policy.responded(&hop, cseq.method, code);
        }
        if code < 300 {
            return;
        }
        let credentials = stack.policy.credentials(&hop);
        let is_for_us = credentials.is_some_and(|it| it.challenge_in(message).is_some());
        let why = match code {
            401 | 407 if is_for_us => FailureReason::Unreachable,
            code => FailureReason::of(code, is_unanswered),
        };
        let goes_on = keep_following_targets(stack, context, &hop, why);
        if has_rung && !goes_on && why == FailureReason::Unreachable {
            stack.policy.rung_and_failed(&hop);
        }
    }

    /// Whether a response to a branch asks for the credentials of this server at the trunk. A challenge of another realm
    /// is for the caller.
    pub(super) fn is_own_challenge(
        &mut self,
        stack: &Stack<'_>,
        (key, branch): (ContextKey, usize),
        response: &Message<'_>,
    ) -> bool {
        let context = self.contexts.get(key);
        let hop = context.and_then(|it| it.branches.get(branch)?.hop);
        let credentials = hop.and_then(|hop| stack.policy.credentials(&hop));
        credentials.is_some_and(|it| it.challenge_in(response).is_some())
    }

    /// A trunk asks for credentials, and this server has some: sends the request again, in a transaction of its own.
    /// Returns `false` if the response is final.
    ///
    /// RFC 3261 §22.2 requires a UAC to increase CSeq. A proxy that increases it must map it in all later requests of
    /// the dialog, in both directions, so it must store the dialog. The copy has the CSeq of the caller instead.
    pub(super) fn answer_challenge(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        key: ContextKey,
        number: usize,
        response: &Message<'_>,
    ) -> bool {
        let Some(context) = self.contexts.get(key).filter(|it| !it.is_ending) else {
            return false;
        };
        let Some(branch) = context.branches.get_mut(number).filter(|it| !it.is_done) else {
            return false;
        };
        let (Some(mut target), Some(base)) = (branch.again.take(), &context.base) else {
            return false;
        };
        let breadth = branch.breadth;
        let call = branch.call.take();
        let relayed = branch.media.as_ref().and_then(|media| media.request());
        let bytes = relayed.as_deref().unwrap_or(&base.bytes);
        let Some(line) = self.answer_with.answer(stack, &target, bytes, response) else {
            return false;
        };
        target.credentials = line;
        branch.is_done = true;
        let media = branch.media.as_mut();
        let media = media.map(|media| Box::new(media.take_over()));
        let Some(base) = context.base.take() else {
            return false;
        };
        self.launch_branch(now, stack, key, &base, (*target, breadth), media);
        if let Some(context) = self.contexts.get(key) {
            context.base = Some(base);
            // The copy with credentials is the same call.
            if let Some(copy) = context.branches.last_mut().filter(|it| !it.is_done) {
                copy.call = call;
            }
            let is_invite = context.is_invite;
            if let Some(time) = self.answer_time(key).filter(|_| is_invite) {
                self.set_timer(key, now.plus(time));
            }
        }
        self.branch_ended(now, stack, key);
        true
    }

    /// A branch to an address of a trunk will have no response.
    pub(super) fn trunk_failed(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        key: ContextKey,
        branch: usize,
        failure: &Failure,
    ) {
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        let Some(branch) = context.branches.get_mut(branch) else {
            return;
        };
        let Some(hop) = branch.hop.filter(|_| !branch.is_done) else {
            return;
        };
        let has_rung = branch.has_rung;
        let why = match (failure, branch.is_heard) {
            (Failure::Cancelled, _) => return,
            // The address has responded before, so it is the called party that does not answer.
            (Failure::TimedOut, true) => FailureReason::NoAnswer,
            _ => FailureReason::Unreachable,
        };
        match why {
            // A phone that rings for minutes says nothing about the trunk.
            FailureReason::NoAnswer => {}
            // Nor does a request that this server has not sent.
            _ if is_not_tried(failure) => {}
            _ if *failure == Failure::TimedOut => {
                stack.policy.concluded(now, &hop, Outcome::Silent)
            }
            _ => stack.policy.concluded(now, &hop, Outcome::NotSent),
        }
        // If the connection to the trunk is lost after the call has rung, the call ends.
        let why = match (why, has_rung) {
            (FailureReason::Unreachable, true) => FailureReason::Final,
            (why, _) => why,
        };
        if !keep_following_targets(stack, context, &hop, why) && has_rung {
            stack.policy.rung_and_failed(&hop);
        }
    }

    /// The time of an address of a trunk is over. Without any response the request goes on to the next address, in a
    /// transaction of its own; a call that rings is cancelled first. Returns `false` if no branch is at a trunk.
    pub(super) fn trunk_timeout(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        key: ContextKey,
    ) -> bool {
        let Some(context) = self.contexts.get(key) else {
            return false;
        };
        let mut branches = (0..).zip(&mut context.branches);
        let waits = branches.find(|(_, branch)| !branch.is_done && branch.hop.is_some());
        let Some((number, branch)) = waits else {
            return false;
        };
        let Some(hop) = branch.hop else {
            return false;
        };
        if branch.is_heard {
            branch.is_unanswered = true;
            self.cancel_branches(now, stack, key, b"");
            return true;
        }
        branch.is_done = true;
        let request = branch.request;
        stack.policy.concluded(now, &hop, Outcome::Silent);
        keep_following_targets(stack, context, &hop, FailureReason::Unreachable);
        context.best.add_own(408);
        note_attempt((now, stack), context, number, AttemptFailure::NoResponse);
        // If a response comes after all, the CANCEL goes out (RFC 3261 §9.1).
        if let Some(request) = request {
            stack.dispatcher.cancel(now, stack.engine, request);
        }
        self.branch_ended(now, stack, key);
        true
    }
}
