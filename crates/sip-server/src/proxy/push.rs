//! Calls for phones whose app is suspended (RFC 8599 §5.6.2).
//!
//! ```text
//! INVITE ──▶ policy: push ──▶ push service ──▶ phone
//!   │ waits                                      │
//!   ▼                                            ▼
//! copy to the phone ◀── Proxy::registered ◀── REGISTER
//! ```
//!
//! Other phones of the user ring at once. A phone that registers while the call rings gets its copy then.

use std::sync::Arc;
use std::time::Duration;

use sip::dispatch::AllowedDestination;
use sip::{Message, Mono, Now};

use super::context::ContextKey;
use super::policy::LookedUp;
use super::request::Plan;
use super::target::{self, Selection};
use super::{Proxy, Stack};
use crate::Aor;
use crate::flow::{FlowAvailability, Runs};
use crate::location::Binding;
use crate::push::{PushParams, prid_of};

/// How calls for phones whose app is suspended are handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushConfig {
    /// The push services. Phones that use another push service are not woken.
    pub providers: Arc<[String]>,
    /// How long a call waits for the REGISTER of the phone.
    pub wait: Duration,
    /// A phone that has registered within this time is awake.
    pub awake: Duration,
    /// Calls of this worker that wait at a time. Further calls wake no phone.
    pub most: usize,
}

/// A phone that is to be woken.
#[derive(Debug)]
pub struct PushRequest<'a> {
    /// How it is reached.
    pub params: &'a PushParams,
    /// The address of record that is called.
    pub aor: &'a Aor,
    /// The INVITE.
    pub message: &'a Message<'a>,
    /// How long the call waits.
    pub wait: Duration,
}

/// Push notifications. By default there are none.
pub trait Pushes {
    /// Whether phones are woken, and how.
    fn push_config(&self) -> Option<PushConfig> {
        None
    }

    /// Has a phone woken. Must not block. Returns whether that was begun.
    fn push(&mut self, _request: &PushRequest<'_>) -> bool {
        false
    }
}

/// The phones that a call waits for.
#[derive(Debug)]
pub(super) struct PushWait {
    /// When the call came: a REGISTER after that is the phone's answer.
    since: Mono,
    pub(super) until: Mono,
    /// The tokens of the phones that have not registered yet.
    prids: Vec<String>,
    /// The push services.
    providers: Arc<[String]>,
    /// Which of their contacts get a copy.
    selection: Selection,
    /// The Max-Breadth of each of their copies (RFC 5393 §5.3.3).
    breadth: u32,
}

impl PushWait {
    /// How many phones may still register.
    pub(super) const fn phones(&self) -> usize {
        self.prids.len()
    }
}

/// Whether the phone of a binding needs a push notification first. It has not registered within [`PushConfig::awake`],
/// or its connection is closed.
pub(super) fn needs_push(
    (now, runs): (Mono, Runs),
    binding: &Binding,
    config: &PushConfig,
) -> bool {
    let is_gone = match binding.flow() {
        Some(flow) => flow.state(runs) == FlowAvailability::Gone,
        // The flow was lost (`Binding::without_flow`).
        None => binding.path().is_empty(),
    };
    (is_gone || now.since(binding.updated()) >= config.awake)
        && prid_of(binding.uri(), &config.providers).is_some()
}

impl Proxy {
    /// Asks for pushes to the sleeping phones of a plan, and lets the call wait. If too many calls wait, it pushes to
    /// nobody.
    pub(super) fn wake(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        key: ContextKey,
        message: &Message<'_>,
        plan: &Plan<'_>,
    ) {
        let config = stack.policy.push_config();
        let (Some(config), Some(aor)) = (config, &plan.aor) else {
            return;
        };
        if plan.asleep.is_empty() {
            return;
        }
        if self.waking.len() >= config.most {
            let contexts = &mut self.contexts;
            self.waking.retain(|key| {
                let context = contexts.get(*key);
                context.is_some_and(|context| context.waking.is_some())
            });
        }
        let has_room = self.waking.len() < config.most;
        let mut prids = Vec::new();
        for uri in plan.asleep.iter().filter(|_| has_room) {
            let Some(params) = PushParams::of(uri) else {
                continue;
            };
            let request = PushRequest {
                params: &params,
                aor,
                message,
                wait: config.wait,
            };
            if stack.policy.push(&request) {
                prids.extend(params.prid);
            }
        }
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        if prids.is_empty() {
            // RFC 8599 §5.6.2: nobody was woken.
            context.best.add_own(480);
            return;
        }
        let copies = (context.targets.len() + prids.len()) as u32;
        let until = now.plus(config.wait);
        context.waking = Some(Box::new(PushWait {
            since: now,
            until,
            prids,
            providers: config.providers,
            selection: plan.selection.clone(),
            breadth: (plan.breadth / copies).max(1),
        }));
        self.waking.push(key);
        self.arm(key);
    }

    /// Bindings of this address have changed: calls that wait for its phones go on.
    pub fn registered(&mut self, now: Now, stack: &mut Stack<'_>, aor: &Aor) {
        if self.waking.is_empty() {
            return;
        }
        let mut left = std::mem::take(&mut self.waking);
        left.retain(|key| self.continue_push_wait(now, stack, *key, aor));
        self.waking.extend(left);
    }

    /// Sends copies to the phones of this address that have registered since the call came. Returns whether the call
    /// waits for others.
    fn continue_push_wait(
        &mut self,
        now: Now,
        stack: &mut Stack<'_>,
        key: ContextKey,
        aor: &Aor,
    ) -> bool {
        let Some(context) = self.contexts.get(key) else {
            return false;
        };
        if context.is_answered || context.is_ending {
            context.waking = None;
        }
        let (Some(waking), Some(base)) = (&mut context.waking, &context.base) else {
            return false;
        };
        if context.aor.as_deref() != Some(aor) {
            return true;
        }
        let LookedUp::Known(bindings) = stack.policy.find(now, aor) else {
            return true;
        };
        let prid = |binding: &Binding| prid_of(binding.uri(), &waking.providers);
        let is_woken = |binding: &&Binding| {
            let prid = prid(binding);
            binding.updated() >= waking.since && prid.is_some_and(|it| waking.prids.contains(&it))
        };
        let mut woken: Vec<Binding> = bindings.iter().filter(is_woken).cloned().collect();
        if woken.is_empty() {
            return true;
        }
        target::remove_repeated(&mut woken, &waking.providers);
        let prids: Vec<_> = woken.iter().filter_map(prid).collect();
        waking.prids.retain(|prid| !prids.contains(prid));
        let (breadth, waits) = (waking.breadth, !waking.prids.is_empty());
        let reach = AllowedDestination::Near(base.from.flow.remote.ip());
        let bounds = (self.runs, reach, self.config.max_branches);
        let targets = waking.selection.targets(now.mono, &woken, bounds);
        if !waits {
            context.waking = None;
        }
        if targets.is_empty() {
            // The Request-URI does not mean the contact that the phone has now.
            context.best.add_own(480);
        }
        let Some(base) = context.base.take() else {
            return false;
        };
        for target in targets {
            self.launch_one(now.mono, stack, key, &base, (target, breadth));
        }
        if let Some(context) = self.contexts.get(key) {
            context.base = Some(base);
        }
        self.restart_ring_timer(now.mono, stack, key);
        // If nothing could be sent, this was perhaps the last copy.
        self.branch_ended(now.mono, stack, key);
        waits
    }

    /// A woken phone has joined the group that rings: the time of the group begins anew.
    fn restart_ring_timer(&mut self, now: Mono, stack: &Stack<'_>, key: ContextKey) {
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        let time = match context.targets.is_empty() {
            true => self.forward_time(stack, key),
            false => Some(self.config.ring_time),
        };
        match time {
            Some(time) => self.set_timer(key, now.plus(time)),
            None => self.clear_timer(key),
        }
    }

    /// Ends the wait of a call for phones if its time is over, and adds 480.
    pub(super) fn waking_timeout(&mut self, now: Mono, stack: &mut Stack<'_>, key: ContextKey) {
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        if context.waking.as_ref().is_none_or(|it| now < it.until) {
            return;
        }
        context.waking = None;
        // RFC 8599 §5.6.2: that is what the caller gets if the phone does not register.
        context.best.add_own(480);
        self.branch_ended(now, stack, key);
    }
}
