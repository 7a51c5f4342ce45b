//! Forking (RFC 3261 §16.6): copies of a request go to the targets of a group at the same time. When all of them have
//! ended, copies go to the next group.

use std::collections::VecDeque;

use sip::dispatch::{DispatchError, Failure};
use sip::engine::MAX_REASON_BYTES;
use sip::header::HeaderKind;
use sip::routing::TargetError;
use sip::{Message, Mono};

use super::calls::note_attempt;
use super::config::Forking;
use super::context::{Base, Branch, ContextKey};
use super::copy::CopyError;
use super::media::{BranchMedia, NoOffer, RelayedCopy};
use super::target::{Target, group_len};
use super::{Proxy, Stack, trunk};
use crate::calls::AttemptFailure;

/// The maximum number of branches: a mark has 8 bits for the number of a branch.
const MAX_BRANCHES: usize = 255;

/// How many targets the largest group has.
pub(super) fn largest_group(targets: &VecDeque<Target>, forking: Forking) -> usize {
    let mut counted = 0;
    let mut largest_group = 0;
    while counted < targets.len() {
        let len = group_len(targets.range(counted..), forking).max(1);
        counted += len;
        largest_group = largest_group.max(len);
    }
    largest_group
}

/// The status code that counts as the response to a copy that was not sent. `is_binding`: the target is a binding, and
/// no other node has sent the request. A failed flow then gives 480: user agents should not get 430 (RFC 5626 §11.5).
const fn code_of(error: &CopyError, is_binding: bool) -> u16 {
    match error {
        CopyError::Malformed => 400,
        CopyError::FlowGone if is_binding => 480,
        CopyError::FlowGone => 430,
        // The flow works. After a 430, the server that has sent the request would remove its bindings.
        CopyError::FlowWithoutTls => 480,
        CopyError::NoMedia | CopyError::Dispatch(DispatchError::Full) => 503,
        // RFC 3261 §21.4.14.
        CopyError::Dispatch(DispatchError::Target(TargetError::Scheme)) => 416,
        CopyError::Dispatch(DispatchError::Target(_)) => 400,
    }
}

impl Proxy {
    /// Sends copies to the next group of targets; ends the context if no target is left.
    pub(super) fn launch(&mut self, now: Mono, stack: &mut Stack<'_>, key: ContextKey) {
        loop {
            let Some(context) = self.contexts.get(key) else {
                return;
            };
            if context.targets.is_empty() {
                return self.finish(now, stack, key);
            }
            let Some(base) = context.base.take() else {
                return self.finish(now, stack, key);
            };
            let len = group_len(context.targets.iter(), self.config.forking);
            // A 3xx may have more contacts than Max-Breadth allows at a time: the others are tried afterwards
            // (RFC 5393 §5.3.3).
            let len = len.min(base.breadth as usize);
            // A call that rings keeps no room for targets and branches that it does not have: the group takes the
            // memory, and `left` has only what it needs.
            let left = context.targets.split_off(len);
            let group = Vec::from(std::mem::replace(&mut context.targets, left));
            context.branches.reserve_exact(group.len());
            self.launch_group(now, stack, key, &base, group);
            let Some(context) = self.contexts.get(key) else {
                return;
            };
            context.base = Some(base);
            if context.is_quiet() {
                // None of them could be sent.
                continue;
            }
            return self.group_launched(now, stack, key);
        }
    }

    /// Starts the timer of a group of INVITEs after all of them were sent. Does nothing while a copy waits for the
    /// media relay. Drops `base`, from which the proxy makes copies, if no further copy can follow.
    pub(super) fn group_launched(&mut self, now: Mono, stack: &mut Stack<'_>, key: ContextKey) {
        let (recurses, ring_time) = (self.config.recurses, self.config.ring_time);
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        if context.waits_for_media() || context.is_quiet() {
            return;
        }
        let is_last = context.targets.is_empty();
        let has_others = |it: &Branch| !it.others.is_empty() || it.again.is_some();
        let needs_base = !is_last
            || recurses
            || context.may_divert
            || context.waking.is_some()
            || context.branches.iter().any(has_others);
        if !needs_base {
            context.drop_base();
        }
        let is_trunk = context.branches.last().is_some_and(|it| it.hop.is_some());
        // A later copy of a group that rings, such as one for another flow, does not begin the time anew.
        if context.is_invite && context.group_until.is_none() {
            let time = match (is_trunk, is_last) {
                (true, false) => self.answer_time(key),
                (false, false) => Some(ring_time),
                (_, true) => self.forward_time(stack, key),
            };
            if let Some(time) = time {
                self.set_timer(key, now.plus(time));
            }
        }
    }

    /// Sends a copy to each target of a group. These copies share Max-Breadth with the phones that may still register
    /// after a push notification.
    fn launch_group(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        key: ContextKey,
        base: &Base,
        group: Vec<Target>,
    ) {
        let context = self.contexts.get(key);
        let asleep = context.and_then(|context| context.waking.as_ref());
        let asleep = asleep.map_or(0, |waking| waking.phones());
        let len = (group.len() + asleep).max(1) as u32;
        let (each, more) = (base.breadth / len, base.breadth % len);
        for (place, target) in (0..).zip(group) {
            let breadth = each + u32::from(place < more);
            self.launch_one(now, stack, key, base, (target, breadth));
        }
    }

    /// Sends one copy, to another flow of the same instance if its flow has failed.
    pub(super) fn launch_one(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        key: ContextKey,
        base: &Base,
        (target, breadth): (Target, u32),
    ) {
        self.launch_branch(now, stack, key, base, (target, breadth), None);
    }

    /// Like [`Proxy::launch_one`]. `media` is the session at the media relay, if there is one already.
    pub(super) fn launch_branch(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        key: ContextKey,
        base: &Base,
        (target, breadth): (Target, u32),
        mut media: Option<Box<BranchMedia>>,
    ) {
        let mut next = Some(target);
        while let Some(target) = next {
            let copy = (&target, breadth);
            let Some(number) = self.new_branch(now, stack, key, copy, media.take()) else {
                return;
            };
            next = match self.offer_for(now, stack, (key, number), base, copy) {
                // The branch goes on when the media relay has responded.
                Err(NoOffer::Waits) => return,
                relayed => {
                    let copy = (number, target, breadth);
                    self.send_branch(now, stack, key, base, copy, relayed)
                }
            };
        }
    }

    /// Adds a branch for a target, whose trunk must have room for it. Returns its number.
    fn new_branch(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        key: ContextKey,
        (target, breadth): (&Target, u32),
        media: Option<Box<BranchMedia>>,
    ) -> Option<usize> {
        let context = self.contexts.get(key)?;
        let number = context.branches.len();
        if number >= MAX_BRANCHES {
            return None;
        }
        let again = trunk::again(stack, target);
        let mut branch = Branch::new(target, again);
        branch.breadth = breadth;
        branch.media = media;
        context.branches.push(branch);
        match target.hop {
            Some(hop) if target.credentials.is_empty() => self
                .admit_at_trunk(now, stack, (key, number), &hop)
                .then_some(number),
            _ => Some(number),
        }
    }

    /// Sends the copy of a branch, unless the media relay has failed. If its flow has failed, returns another flow of
    /// the same instance.
    pub(super) fn send_branch(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        key: ContextKey,
        base: &Base,
        (number, mut target, breadth): (usize, Target, u32),
        relayed: Result<Option<RelayedCopy>, NoOffer>,
    ) -> Option<Target> {
        let mut others = std::mem::take(&mut target.others);
        let mark = (key.mark_of(number), breadth);
        self.note_bye_sent(stack, key, base, &target);
        let sent = match &relayed {
            Ok(relayed) => self.send_copy(now, stack, (base, relayed.as_ref()), &target, mark),
            Err(_) => Err(CopyError::NoMedia),
        };
        let context = self.contexts.get(key)?;
        let branch = context.branches.get_mut(number)?;
        match sent {
            Ok(request) => {
                self.stats.branches += 1;
                branch.request = Some(request);
                branch.others = others;
                if let Some(record) = context.admitted.record() {
                    record.tried();
                }
                if target.is_node {
                    self.await_node(now, key, number);
                }
                None
            }
            Err(error) => {
                branch.is_done = true;
                branch.call = None;
                if error == CopyError::FlowGone {
                    self.note_bye_failure(key, &Failure::TransportFailed);
                }
                let context = self.contexts.get(key)?;
                let branch = context.branches.get_mut(number)?;
                if let Some(hop) = branch.hop {
                    trunk::not_sent(stack, context, &hop);
                }
                let is_binding = target.is_binding && !context.is_from_node;
                let is_untried = matches!(error, CopyError::Dispatch(DispatchError::Target(_)));
                if !is_untried || !self.leave_to_caller(key, number) {
                    let context = self.contexts.get(key)?;
                    // The Contact is from the REGISTER, so the request of the caller is not malformed.
                    let code = match is_untried && target.is_binding {
                        true => 480,
                        false => code_of(&error, is_binding),
                    };
                    context.best.add_own(code);
                }
                let context = self.contexts.get(key)?;
                note_attempt((now, stack), context, number, AttemptFailure::NotSent);
                self.branch_media_ended(key, number);
                let is_of_flow = matches!(error, CopyError::FlowGone | CopyError::FlowWithoutTls);
                if !is_of_flow || others.is_empty() {
                    return None;
                }
                let mut next = others.remove(0);
                next.others = others;
                Some(next)
            }
        }
    }

    /// The flow of a branch has failed: tries another flow of the same instance (RFC 5626 §7). Returns whether there is
    /// one. If nothing could be sent, and this was the last branch, the group ends.
    pub(super) fn try_other_flow(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        key: ContextKey,
        branch: usize,
    ) -> bool {
        let has_other = self.send_by_other_flow(now, stack, key, branch);
        if has_other {
            self.branch_ended(now, stack, key);
        }
        has_other
    }

    /// Like [`Proxy::try_other_flow`], but never ends the group. The caller calls [`Proxy::branch_ended`] after it has
    /// done this for all failed branches.
    pub(super) fn send_by_other_flow(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        key: ContextKey,
        branch: usize,
    ) -> bool {
        let Some(context) = self.contexts.get(key) else {
            return false;
        };
        let may = !context.is_ending && !context.is_answered;
        let Some(branch) = context.branches.get_mut(branch).filter(|_| may) else {
            return false;
        };
        if branch.others.is_empty() {
            return false;
        }
        let mut others = std::mem::take(&mut branch.others);
        let mut target = others.remove(0);
        target.others = others;
        branch.is_done = true;
        let breadth = branch.breadth;
        let Some(base) = context.base.take() else {
            return false;
        };
        self.launch_one(now, stack, key, &base, (target, breadth));
        if let Some(context) = self.contexts.get(key) {
            context.base = Some(base);
        }
        true
    }

    /// Ends the group if its time is over: the phones have rung long enough, or the address of a trunk has not
    /// responded.
    pub(super) fn group_timeout(&mut self, now: Mono, stack: &mut Stack<'_>, key: ContextKey) {
        let context = self.contexts.get(key);
        let until = context.and_then(|it| it.group_until.take_if(|until| *until <= now));
        if until.is_some() && !self.trunk_timeout(now, stack, key) {
            self.ring_time_expired(key);
            self.cancel_branches(now, stack, key, b"");
            // If only copies that wait for the media relay were left, no response ends the group.
            self.branch_ended(now, stack, key);
        }
    }

    /// Cancels all branches that wait for a final response (RFC 3261 §16.10). The CANCELs have these Reason header
    /// lines.
    pub(super) fn cancel_branches(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        key: ContextKey,
        reason: &[u8],
    ) {
        self.give_up_offers(key);
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        if !context.is_invite {
            return;
        }
        let pending = context.branches.iter().filter(|branch| !branch.is_done);
        for request in pending.filter_map(|branch| branch.request) {
            let dispatcher = &mut stack.dispatcher;
            dispatcher.cancel_with_reason(now, stack.engine, request, reason);
        }
    }
}

/// The Reason header lines of a received CANCEL, for those that the proxy sends (RFC 3326 §2). Leaves out each line that
/// does not fit into `MAX_REASON_BYTES` with those before it.
pub(super) fn reason_of(cancel: &Message<'_>) -> Vec<u8> {
    let mut lines = Vec::new();
    for header in cancel.headers(HeaderKind::Reason) {
        if lines.len() + header.line.len() <= MAX_REASON_BYTES {
            lines.extend_from_slice(header.line);
        }
    }
    lines
}

/// The Reason header line of the CANCELs that follow a final response with this code (RFC 3326 §3.1).
pub(super) fn reason_for(code: u16) -> String {
    match code {
        200..=299 => "Reason: SIP ;cause=200 ;text=\"Call completed elsewhere\"\r\n".to_owned(),
        code => format!("Reason: SIP ;cause={code}\r\n"),
    }
}
