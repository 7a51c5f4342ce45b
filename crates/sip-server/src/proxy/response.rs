//! Responses (RFC 3261 §16.7), and failures without a response (§16.8, §16.9).

use sip::build::{Edits, forward};
use sip::dispatch::Failure;
use sip::engine::{Mark, Reply, RequestError};
use sip::flow::Flow;
use sip::header::HeaderKind;
use sip::{Message, Mono, Now, Spans};

use super::best::Best;
use super::calls::note_attempt;
use super::context::ContextKey;
use super::copy::written;
use super::fork::reason_for;
use super::identity;
use super::media::ResponseMedia;
use super::redirect::is_untried;
use super::{Proxy, Stack};
use crate::calls::AttemptFailure;

/// Why a copy without a final response counts as failed; `None` if this server has cancelled it.
fn attempt_failure(failure: &Failure, is_heard: bool) -> Option<AttemptFailure> {
    match (failure, is_heard) {
        (Failure::Cancelled, _) => None,
        (Failure::TimedOut, true) => Some(AttemptFailure::NoAnswer),
        (Failure::TimedOut, false) => Some(AttemptFailure::NoResponse),
        (Failure::Refused(_) | Failure::AskedToWait, _) => Some(AttemptFailure::Limited),
        _ => Some(AttemptFailure::NotSent),
    }
}

/// Whether another flow of the phone is tried after this failure (RFC 5626 §7). This is so only if the phone itself has
/// not responded. `is_node`: the request was for another node, not for a phone's flow at this node.
fn is_of_flow(failure: &Failure, is_node: bool) -> bool {
    match failure {
        // A flow that is silent has failed as well; its binding stays, for it may be a phone that sleeps.
        Failure::TimedOut | Failure::TransportFailed => true,
        // This server did not send the request, for example to a node that is overloaded. Then another node is tried.
        Failure::Refused(RequestError::HeldBack) | Failure::AskedToWait | Failure::Forbidden => {
            is_node
        }
        _ => false,
    }
}

impl Proxy {
    /// A response to a branch with this mark, that came by this flow.
    pub fn response(
        &mut self,
        now: Now,
        stack: &mut Stack<'_>,
        mark: Mark,
        message: &Message<'_>,
        flow: &Flow,
    ) {
        match self.media_of_response(now, stack, mark, message, flow) {
            ResponseMedia::Unchanged => self.take_response(now, stack, mark, message, flow),
            ResponseMedia::Waits => {}
            ResponseMedia::Rewritten(bytes) => {
                let mut spans = Box::<Spans>::default();
                if let Ok(message) = Message::parse(&bytes, &mut spans) {
                    self.take_response(now, stack, mark, &message, flow);
                }
            }
        }
    }

    /// A response that does not wait for the media relay, or has waited.
    pub(super) fn take_response(
        &mut self,
        now: Now,
        stack: &mut Stack<'_>,
        mark: Mark,
        message: &Message<'_>,
        flow: &Flow,
    ) {
        let Some((key, number)) = ContextKey::of(mark) else {
            return;
        };
        let code = message.status_code().unwrap_or(0);
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        let drops_identity = Proxy::drops_identity(context.is_trunk, message, stack, flow);
        if code < 200 {
            return self.provisional(now.mono, stack, (key, number), message, drops_identity);
        }
        if matches!(code, 401 | 407) && self.answer_challenge(now.mono, stack, key, number, message)
        {
            return;
        }
        self.note_bye_response(stack, key, (code, flow));
        let is_late = self.has_moved_on(key, number);
        if code < 300 || !is_late {
            self.note_final(now.mono, stack, (key, number), (code, flow));
        }
        self.trunk_answered(now.mono, stack, key, number, message);
        let is_for_us = self.is_own_challenge(stack, (key, number), message);
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        let mut is_node = false;
        if let Some(branch) = context.branches.get_mut(number) {
            is_node = branch.is_node;
            branch.is_done = true;
            if code >= 300 {
                branch.call = None;
            }
        }
        if code >= 300 {
            self.branch_media_ended(key, number);
        }
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        match code {
            // The request went on long ago.
            300.. if is_late => {}
            // The trunk does not take this server's credentials: the caller has no others.
            _ if is_for_us && !context.is_answered => {
                context.best.add_own(500);
                self.branch_ended(now.mono, stack, key);
            }
            200..=299 => {
                let received = (message, flow);
                self.success(now.mono, stack, (key, number), received, drops_identity);
            }
            _ if context.is_answered => context.drop_unused_aor(),
            430 => self.flow_failed(now, stack, key, number, Some(message)),
            300..=399 if self.config.recurses => {
                self.follow(stack, key, message, drops_identity);
                self.branch_ended(now.mono, stack, key);
            }
            // RFC 5626 §7, RFC 5627 §6.1: after a 408, the proxy tries the next contact of the same instance. A node
            // forwards no 503 of a phone (RFC 3261 §16.7 step 6), so no phone has responded behind a 503 of a node.
            408 | 503 if code == 408 || is_node => {
                self.keep(key, message, (drops_identity, None));
                if !self.try_other_flow(now.mono, stack, key, number) {
                    self.branch_ended(now.mono, stack, key);
                }
            }
            _ => {
                self.keep(key, message, (drops_identity, None));
                if code >= 600 {
                    self.give_up_others(now.mono, stack, key, code);
                }
                self.branch_ended(now.mono, stack, key);
            }
        }
    }

    fn provisional(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        (key, number): (ContextKey, usize),
        message: &Message<'_>,
        drops_identity: bool,
    ) {
        // The branch was given up, or its final response has come while this response waited for the media relay.
        let context = self.contexts.get(key);
        let branch = context.and_then(|context| context.branches.get(number));
        if branch.is_some_and(|branch| branch.is_done) {
            return;
        }
        let code = message.status_code().unwrap_or(0);
        self.first_heard(now, key, number, code);
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        // §16.7 step 5: a 100 is between neighbours.
        if code > 100 && !context.is_answered {
            if let Some(record) = context.admitted.record() {
                record.rang(now);
            }
            self.forward_response(now, stack, key, message, (drops_identity, b""));
        }
    }

    /// RFC 3325 §5, §7: a sender that is not trusted asserts no identity, and a private identity goes to trusted
    /// receivers only.
    fn drops_identity(
        to_trunk: bool,
        message: &Message<'_>,
        stack: &Stack<'_>,
        flow: &Flow,
    ) -> bool {
        let is_private = || !to_trunk && identity::is_private(message);
        message.has(HeaderKind::PAssertedIdentity) && (!stack.policy.is_trunk(flow) || is_private())
    }

    /// §16.7 step 5: every 2xx is forwarded at once, and the other branches are cancelled (step 10).
    fn success(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        (key, branch): (ContextKey, usize),
        (message, flow): (&Message<'_>, &Flow),
        drops_identity: bool,
    ) {
        self.note_media_success(key, branch, message);
        let lines = self.count_success(now, stack, (key, branch), (message, flow));
        self.count_bye(now, stack, key, message.status_code().unwrap_or(0));
        self.forward_response(now, stack, key, message, (drops_identity, &lines));
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        if !context.is_invite {
            return self.remove(key);
        }
        if !std::mem::replace(&mut context.is_answered, true) {
            context.best = Best::default();
            self.give_up_others(now, stack, key, 200);
            if let Some(context) = self.contexts.get(key) {
                context.drop_unused_aor();
            }
        }
    }

    /// Nothing more is tried, and what rings is cancelled, because of a response with this code.
    pub(super) fn give_up_others(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        key: ContextKey,
        code: u16,
    ) {
        if let Some(context) = self.contexts.get(key) {
            context.is_ending = true;
            context.targets.clear();
            context.drop_base();
            for branch in &mut context.branches {
                branch.others = Vec::new();
                branch.again = None;
            }
            context.waking = None;
        }
        self.clear_timer(key);
        self.cancel_branches(now, stack, key, reason_for(code).as_bytes());
    }

    fn forward_response(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        key: ContextKey,
        message: &Message<'_>,
        (drops_identity, lines): (bool, &[u8]),
    ) {
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        let Some(mut scratch) = self.scratch.take() else {
            return;
        };
        let edits = Edits {
            at_end: lines,
            ..edits_of(drops_identity)
        };
        if let Ok(gathered) = forward(message, &edits, &mut scratch) {
            let code = message.status_code().unwrap_or(0);
            let reply = Reply::forwarded(code, gathered.slices());
            // What is out of place is not forwarded: a provisional response behind a final one, for one.
            let _ = stack.engine.respond(now, context.server, &reply);
        }
        self.scratch = Some(scratch);
    }

    /// Keeps a final response, if it is better than those so far. If there are `contacts`, this line replaces its
    /// Contact header fields.
    pub(super) fn keep(
        &mut self,
        key: ContextKey,
        message: &Message<'_>,
        (drops_identity, contacts): (bool, Option<&[u8]>),
    ) {
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        let code = message.status_code().unwrap_or(0);
        if matches!(code, 401 | 407) {
            context.best.add_challenges(message);
        }
        if !context.best.is_beaten_by(code) {
            return;
        }
        let bytes = self.final_response(message, (drops_identity, contacts));
        if let (Some(context), Some(bytes)) = (self.contexts.get(key), bytes) {
            context.best.code = code;
            context.best.is_own = false;
            context.best.bytes = bytes.into();
        }
    }

    /// A final response as it is to be forwarded. If there are `contacts`, this line replaces its Contact header
    /// fields.
    pub(super) fn final_response(
        &mut self,
        message: &Message<'_>,
        (drops_identity, contacts): (bool, Option<&[u8]>),
    ) -> Option<Vec<u8>> {
        let mut scratch = self.scratch.take()?;
        let mut drops = edits_of(drops_identity).drop_kinds.to_vec();
        drops.extend(contacts.map(|_| HeaderKind::Contact));
        let edits = Edits {
            at_end: contacts.unwrap_or_default(),
            drop_kinds: &drops,
            ..edits_of(drops_identity)
        };
        let bytes = written(message, &edits, &mut scratch);
        self.scratch = Some(scratch);
        bytes.ok()
    }

    /// A branch has its final response: the next group is tried, or the best response is sent.
    pub(super) fn branch_ended(&mut self, now: Mono, stack: &mut Stack<'_>, key: ContextKey) {
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        if context.is_answered || !context.is_quiet() {
            return;
        }
        self.clear_timer(key);
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        if context.waits_for_push() {
            return;
        }
        match context.targets.is_empty() || context.is_ending {
            true => self.finish(now, stack, key),
            false => self.launch(now, stack, key),
        }
    }

    /// A branch will have no response, says the dispatcher (§16.9: as if there had been one).
    pub fn failed(&mut self, now: Now, stack: &mut Stack<'_>, mark: Mark, failure: &Failure) {
        let Some((key, number)) = ContextKey::of(mark) else {
            return;
        };
        if self.has_media_success(key, number) {
            return;
        }
        self.branch_media_ended(key, number);
        self.note_bye_failure(key, failure);
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        let Some(branch) = context.branches.get_mut(number) else {
            return;
        };
        branch.call = None;
        if branch.hop.is_some() {
            let was_done = branch.is_done;
            self.trunk_failed(now.mono, stack, key, number, failure);
            if was_done {
                return;
            }
        }
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        let Some(branch) = context.branches.get_mut(number) else {
            return;
        };
        let was_done = std::mem::replace(&mut branch.is_done, true);
        if context.is_answered || (branch.is_node && was_done) {
            return;
        }
        let failure_kind = attempt_failure(failure, branch.is_heard);
        if let Some(kind) = failure_kind {
            note_attempt((now.mono, stack), context, number, kind);
        }
        let Some(branch) = context.branches.get_mut(number) else {
            return;
        };
        let (is_flow, is_token) = (branch.binding_flow.is_some(), branch.is_token);
        let (is_node, is_binding) = (branch.is_node, branch.is_binding);
        let is_ending = context.is_ending;
        match failure {
            // The flow has failed, and the server can't or may not connect to the Contact, such as a private address
            // behind a NAT.
            Failure::TransportFailed | Failure::Forbidden | Failure::Nowhere if is_flow => {
                return self.flow_failed(now, stack, key, number, None);
            }
            _ if is_of_flow(failure, is_node)
                && self.try_other_flow(now.mono, stack, key, number) =>
            {
                return;
            }
            _ => {}
        }
        let code = match failure {
            // RFC 5626 §5.3.1.
            Failure::TransportFailed if is_token => 430,
            // The flow has failed, and the DNS says nothing about the Contact. The binding stays, for the next call may
            // reach it.
            Failure::NoDns | Failure::TooManyQueries if is_flow => 480,
            // Nothing may be sent to the Contact or the Path of the callee. The caller has not written these.
            Failure::Forbidden if is_binding => 480,
            // The node has failed, and no other node has its phones.
            Failure::TransportFailed | Failure::TimedOut if is_node && !is_ending => 480,
            // RFC 3261 §9.1: without a final response 64*T1 after the CANCEL, the INVITE counts as cancelled.
            Failure::TimedOut if is_ending => 487,
            failure => code_of(failure),
        };
        let is_left = is_untried(failure) && self.leave_to_caller(key, number);
        if let Some(context) = self.contexts.get(key).filter(|_| !is_left) {
            match failure {
                Failure::Refused(RequestError::HeldBack) => context.best.add_throttled(),
                _ => context.best.add_own(code),
            }
        }
        self.branch_ended(now.mono, stack, key);
    }

    /// The flow of a branch has failed (RFC 5626 §5.3.1, §7). Removes the bindings with this flow, and tries another
    /// flow of the instance.
    fn flow_failed(
        &mut self,
        now: Now,
        stack: &mut Stack<'_>,
        key: ContextKey,
        number: usize,
        response: Option<&Message<'_>>,
    ) {
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        let branch = context.branches.get_mut(number);
        let flow = branch.and_then(|branch| branch.binding_flow.take());
        if let (Some(flow), Some(aor)) = (flow, &context.aor) {
            stack.policy.flow_failed(now, aor, &flow);
        }
        if self.try_other_flow(now.mono, stack, key, number) {
            return;
        }
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        match response {
            // The binding is at another server, which needs the 430.
            Some(response) if context.aor.is_none() => self.keep(key, response, (false, None)),
            // The other node may know another flow of the phone (RFC 5626 §7).
            _ if context.is_from_node => context.best.add_own(430),
            // "Endpoints should never receive a 430 response" (RFC 5626 §11.5).
            _ => context.best.add_own(480),
        }
        self.branch_ended(now.mono, stack, key);
    }

    /// Sends the best response (§16.7 steps 6 to 9); the context ends with it.
    pub(super) fn finish(&mut self, now: Mono, stack: &mut Stack<'_>, key: ContextKey) {
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        if context.is_answered || context.waits_for_push() {
            return;
        }
        if self.divert(now, stack, key) {
            return self.launch(now, stack, key);
        }
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        let server = context.server;
        let best = std::mem::take(&mut context.best);
        let own = match (best.code, best.is_own) {
            // §16.7 step 6: "If there are no final responses in the context, the proxy MUST send a 408".
            (0, _) => Some(408),
            // RFC 3261 §16.7 step 6: the next hop's overload is not this server's.
            (503, false) => Some(500),
            (code, true) => Some(code),
            (_, false) => None,
        };
        let code = own.unwrap_or(best.code);
        self.count_bye(now, stack, key, code);
        // If the proxy sends a 500 in place of a 503 of the next hop, the called side has ended the call.
        let is_own = best.is_own || best.code == 0;
        self.note_failure(now, stack, key, (code, is_own));
        match own {
            Some(code) => {
                let mut reply = super::Refusal::of(code, "").reply();
                if code == 503 && !best.is_throttled {
                    reply = reply.headers(b"Retry-After: 1\r\n");
                }
                // RFC 4320 §4.1: a 408 to anything but an INVITE is not sent.
                let _ = stack.engine.respond(now, server, &reply);
            }
            None => self.respond_with(now, stack, server, best.code, &best),
        }
        self.remove(key);
    }

    fn respond_with(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        server: sip::engine::ServerKey,
        code: u16,
        best: &Best,
    ) {
        let merges = matches!(code, 401 | 407) && best.challengers > 1;
        if !merges {
            let reply = [&best.bytes[..]];
            // RFC 4320 §4.3: one that comes too late is not forwarded.
            let _ = stack
                .engine
                .respond(now, server, &Reply::forwarded(code, &reply));
            return;
        }
        let (Some(mut spans), Some(mut scratch)) = (self.spans.take(), self.scratch.take()) else {
            return;
        };
        // §16.7 step 7: the challenges of all branches.
        let edits = Edits {
            at_end: &best.challenges,
            drop_kinds: &[HeaderKind::WwwAuthenticate, HeaderKind::ProxyAuthenticate],
            ..Edits::default()
        };
        if let Ok(message) = Message::parse(&best.bytes, &mut spans)
            && let Ok(gathered) = forward(&message, &edits, &mut scratch)
        {
            let reply = Reply::forwarded(code, gathered.slices());
            let _ = stack.engine.respond(now, server, &reply);
        }
        (self.spans, self.scratch) = (Some(spans), Some(scratch));
    }
}

/// What is changed of a response on its way back: without the topmost Via, which is this server's.
fn edits_of(drops_identity: bool) -> Edits<'static> {
    Edits {
        drop_top_via: true,
        drop_overload: true,
        drop_kinds: match drops_identity {
            true => &[HeaderKind::PAssertedIdentity],
            false => &[],
        },
        ..Edits::default()
    }
}

/// The code that takes the place of a response.
fn code_of(failure: &Failure) -> u16 {
    match failure {
        Failure::Nowhere => 404,
        Failure::Forbidden => 403,
        Failure::TimedOut => 408,
        Failure::Cancelled => 487,
        Failure::Refused(RequestError::Malformed) => 400,
        // With the fields of this server, it is longer than the engine can send.
        Failure::Refused(RequestError::TooLong) => 513,
        Failure::Refused(RequestError::Full | RequestError::Congested | RequestError::HeldBack) => {
            503
        }
        // RFC 3261 §8.1.3.1 has a 503 for what cannot be reached, which §16.7 step 6 has forwarded as 500.
        _ => 500,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn if_a_node_was_not_asked_another_one_with_a_flow_of_the_phone_is_rfc5626_7() {
        for failure in [
            Failure::Refused(RequestError::HeldBack),
            Failure::AskedToWait,
            Failure::Forbidden,
        ] {
            let tried = [true, false].map(|is_node| is_of_flow(&failure, is_node));
            assert_eq!(tried, [true, false], "{failure:?}");
        }
        for is_node in [true, false] {
            assert!(is_of_flow(&Failure::TimedOut, is_node));
            assert!(!is_of_flow(&Failure::Cancelled, is_node));
        }
    }
}
