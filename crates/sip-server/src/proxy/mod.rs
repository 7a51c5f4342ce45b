//! A stateful proxy (RFC 3261 §16), without a socket or a clock.
//!
//! ```text
//!  NewRequest ── request ──> validation ─> routes ─> sender ─> targets ──┐
//!                 ACK ─────> ack                                         │ copies
//!           CANCEL ────────> cancel        ┌─────────────────────────────┘
//!                                          └──> Dispatcher ──> Engine ──> servers
//!  Engine <── responses <── best response <── response, failed ◀────────────┘
//! ```
//!
//! [`Proxy::request`] handles a request that is for no user agent here. It asks a [`Policy`] who may send, where the
//! bindings are, and who the sender is. A lookup or an authentication may complete later; then the embedder calls
//! [`Proxy::resume`]. The proxy keeps a *response context* per request until it has sent the best response. For an
//! INVITE with a 2xx it keeps the context until the server transaction ends.
//!
//! **The invariant:** the proxy keeps nothing per dialog, unless its policy counts or records calls ([`Calls`]). The
//! user part of each Record-Route URI names the flow of the dialog's requests, and has a MAC that binds it to the
//! Call-ID. So the Route of an ACK, a BYE or a second INVITE is enough to forward it. A request within a dialog that
//! did not begin here is treated like a new request.
//!
//! **The rules for its embedder.** [`Proxy::owns`] recognizes the marks of a proxy's transactions. For these, the
//! embedder gives responses to [`Proxy::response`], failures of the [`Dispatcher`] to [`Proxy::failed`], CANCELs to
//! [`Proxy::cancel`], and ends of server transactions to [`Proxy::server_ended`]. It calls [`Proxy::handle_timeout`] at
//! [`Proxy::poll_timeout`]. If the media of a trunk go through a relay, it sends the requests of [`Proxy::poll_media`]
//! there, and gives the results to [`Proxy::media_answered`].

mod ack;
mod alias;
mod best;
mod bye;
mod calls;
mod config;
mod context;
mod copy;
mod divert;
mod fork;
mod identity;
mod media;
mod moved;
mod nodes;
mod party;
mod policy;
mod preview;
mod proof;
mod push;
mod redirect;
mod refusal;
mod request;
mod response;
mod route;
mod sender;
mod session;
mod target;
mod token;
mod trunk;
mod uris;

pub use config::{Config, Forking};
pub use context::ContextKey;
pub use media::{MediaCommand, MediaProfile, MediaRequest, MediaResult};
pub use nodes::{AtNodes, NodeHop, PhoneNames};
pub use policy::{
    Authenticated, Authentication, BindingsLocation, Calls, Denied, HopFull, Inbound, IsUser,
    LookedUp, Lookup, NewCall, Policy, Routing, Trunks,
};
pub use proof::RouteProof;
pub use push::{PushConfig, PushRequest, Pushes};
pub use session::{LOWEST_MIN_SE, SessionTimer};
pub use token::trunk_group;

pub use preview::{Preview, PreviewTarget};

use sip::dispatch::Dispatcher;
use sip::engine::{AcceptError, Engine, Mark, NewRequest, Reply};
use sip::{HashKey, Message, Method, Mono, Now, Spans};
use timers::Wheel;

use crate::flow::{FlowId, Runs, TokenKeys};
use best::Best;
use calls::Admitted;
use context::{Arrival, Base, Context, Contexts, WaitingRequest};
use refusal::{Refusal, rejection, without_room};
use request::{Decision, Plan, ReceivedRequest};
use route::is_within;
use sender::{Sender, trust};
use session::SessionChanges;
use token::RouteTokens;

/// Contexts are timed to the tenth of a second.
const TICK_NS: u64 = 100_000_000;

/// Header lines and Via fields of one message.
const SCRATCH_BYTES: usize = 66 << 10;

/// What a proxy works with.
pub struct Stack<'s> {
    /// The transactions.
    pub engine: &'s mut Engine,
    /// What sends requests.
    pub dispatcher: &'s mut Dispatcher,
    /// Who may send, where bindings are, and who the sender is.
    pub policy: &'s mut dyn Policy,
}

impl std::fmt::Debug for Stack<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stack").finish_non_exhaustive()
    }
}

/// What became of a request.
#[derive(Debug)]
#[must_use]
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack for one request"
)]
pub enum Handled<'m> {
    /// It is forwarded or answered.
    Yes,
    /// A lookup or an authentication is not complete. The embedder calls [`Proxy::resume`] when it is.
    Waits(ContextKey),
    /// It is for this server itself: nothing was done with it.
    Own(NewRequest<'m>),
    /// Nothing was kept of it: another worker has the bindings.
    Elsewhere(u16),
    /// There was no room for it: it got a 503.
    NoRoom,
}

/// Counts, and what there is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that were forwarded, ACKs not among them.
    pub forwarded: u64,
    /// Copies of them.
    pub branches: u64,
    /// ACKs for 2xx that were forwarded.
    pub acks: u64,
    /// ACKs that belong to no dialog which began here.
    pub stray_acks: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests whose sender was asked for credentials.
    pub challenged: u64,
    /// Response contexts now.
    pub contexts: usize,
    /// Requests to a media relay that were not sent, because too much waits or the session description is too long.
    pub media_full: u64,
    /// Requests to a media relay whose result has not come in time.
    pub media_silent: u64,
}

/// A proxy. One worker's; all have the same key.
#[derive(Debug)]
pub struct Proxy {
    config: Config,
    tokens: RouteTokens,
    phone_names: PhoneNames,
    /// The key for the identities of dialogs that count.
    calls_key: HashKey,
    worker: u16,
    runs: Runs,
    contexts: Contexts,
    /// One timer for each context that has one.
    wheel: Wheel<TICK_NS>,
    stats: Stats,
    /// Header lines of an answer.
    lines: Vec<u8>,
    /// What routes look at in a request.
    inputs: Vec<u8>,
    /// The user who has sent the request that is decided; empty if it is not a user.
    caller: Vec<u8>,
    /// Taken out while a message refers to it.
    spans: Option<Box<Spans>>,
    scratch: Option<Box<[u8]>>,
    answer_with: trunk::ChallengeResponder,
    /// Calls that wait for phones, and some that waited.
    waking: Vec<ContextKey>,
    /// What waits for a media relay.
    media: media::Media,
}

impl Proxy {
    /// A worker's proxy in this run of the server, with the key of all workers and runs.
    #[must_use]
    pub fn new(config: Config, key: HashKey, worker: u16, run: u32) -> Proxy {
        Proxy {
            config,
            tokens: RouteTokens::new(key),
            phone_names: PhoneNames::new(key),
            calls_key: key.derive(u64::from_le_bytes(*b"counted.")),
            worker,
            runs: Runs::of(run),
            contexts: Contexts::default(),
            wheel: Wheel::new(),
            stats: Stats::default(),
            lines: Vec::new(),
            inputs: Vec::new(),
            caller: Vec::new(),
            spans: Some(Box::default()),
            scratch: Some(vec![0; SCRATCH_BYTES].into()),
            answer_with: trunk::ChallengeResponder::new(key, run),
            waking: Vec::new(),
            media: media::Media::default(),
        }
    }

    /// Uses another configuration from now on.
    pub fn configure(&mut self, config: Config) {
        self.config = config;
    }

    /// During an upgrade, the run of the other process, whose connections can be used as well.
    pub fn set_other_run(&mut self, other: Option<u32>) {
        self.runs.other = other;
    }

    /// Signs the tokens in Path and Record-Route with these keys from now on, instead of the key of [`Proxy::new`].
    /// Then only tokens of these keys are valid.
    pub fn set_token_keys(&mut self, keys: TokenKeys) {
        self.tokens.set_keys(keys);
    }

    /// Whether a mark is that of a proxy's transaction.
    #[must_use]
    pub fn owns(mark: Mark) -> bool {
        ContextKey::of(mark).is_some()
    }

    /// What was done, and what there is now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            contexts: self.contexts.len(),
            media_full: self.media.full,
            media_silent: self.media.silent,
            ..self.stats
        }
    }

    /// When to call [`Proxy::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        let media = self.media.next_deadline();
        self.wheel.next_deadline().into_iter().chain(media).min()
    }

    /// A request that belongs to no transaction, and came by this flow. The proxy forwards or answers it, unless it is
    /// for this server itself or for another worker.
    pub fn request<'m>(
        &mut self,
        now: Now,
        stack: &mut Stack<'_>,
        mut request: NewRequest<'m>,
        from: &FlowId,
    ) -> Handled<'m> {
        let message = &{ request.message };
        self.caller.clear();
        // RFC 3261 §16.10 has stateless elements forward it; every INVITE forwarded here has a context.
        if message.method() == Some(Method::Cancel) {
            return self.refuse(now, stack, (request, from), Refusal::of(481, ""));
        }
        let loop_check = self.loop_check(stack, message, from);
        if stack.engine.has_looped(message, loop_check) {
            return self.refuse(now, stack, (request, from), Refusal::of(482, ""));
        }
        let stamp = request.stamp();
        let arrival = Arrival { stamp, loop_check };
        let asked = ReceivedRequest {
            now,
            message,
            from,
            sender: None,
        };
        match self.decide(asked, stack.policy) {
            Err(refusal) => self.refuse(now, stack, (request, from), refusal),
            Ok(Decision::Own) => Handled::Own(request),
            Ok(Decision::Elsewhere(worker)) => Handled::Elsewhere(worker),
            Ok(Decision::Reject(code, reason)) => {
                self.stats.refused += 1;
                let received = (message, &from.flow);
                self.record_refusal(now, stack.policy, received, (code, &reason));
                // If no response can be sent, the client retransmits its request.
                let _ = stack
                    .engine
                    .answer_statelessly(request, &rejection(code, &reason));
                Handled::Yes
            }
            Ok(Decision::Challenge) => {
                self.stats.challenged += 1;
                let reply = Reply::new(407).headers(&self.lines);
                // If no response can be sent, the client retransmits its request.
                let _ = stack.engine.answer_statelessly(request, &reply);
                Handled::Yes
            }
            Ok(Decision::Pending(sender)) => {
                trust(&mut request, sender.as_ref());
                let waiting = WaitingRequest {
                    bytes: message.as_bytes().into(),
                    from: *from,
                    arrival,
                    since: now,
                    sender,
                };
                self.wait(now, stack, request, waiting)
            }
            Ok(Decision::Forward(plan)) => {
                trust(&mut request, Some(&plan.sender));
                let received = (message, &from.flow);
                let mut admitted = match self.admit(now, received, &plan, stack.policy) {
                    Ok(admitted) => admitted,
                    Err(refusal) => return self.refuse(now, stack, (request, from), refusal),
                };
                match self.accept(now.mono, stack.engine, request) {
                    Ok(key) => {
                        let planned = (*plan, admitted);
                        self.begin(now, stack, key, (message, arrival), planned, from);
                        Handled::Yes
                    }
                    Err(error) => {
                        self.bye_refused(now, stack.policy, (message, &from.flow));
                        let record = admitted.0.take_record();
                        calls::end_record(now.mono, stack.policy, record, (503, true, ""));
                        without_room(error)
                    }
                }
            }
        }
    }

    /// Keeps a request until a lookup or an authentication is complete.
    fn wait<'m>(
        &mut self,
        now: Now,
        stack: &mut Stack<'_>,
        request: NewRequest<'m>,
        waiting: WaitingRequest,
    ) -> Handled<'m> {
        let message = &{ request.message };
        match self.accept(now.mono, stack.engine, request) {
            Ok(key) => {
                if let Some(context) = self.contexts.get(key) {
                    context.waiting = Some(Box::new(waiting));
                }
                self.set_timer(key, now.mono.plus(self.config.lookup_time));
                Handled::Waits(key)
            }
            Err(error) => {
                let received = (message, &waiting.from.flow);
                self.bye_refused(now, stack.policy, received);
                self.record_refusal(now, stack.policy, received, (503, ""));
                without_room(error)
            }
        }
    }

    /// The lookup or authentication that a request waited for is complete. Returns whether the request waits for
    /// another one.
    pub fn resume(&mut self, now: Now, stack: &mut Stack<'_>, key: ContextKey) -> bool {
        let Some(context) = self.contexts.get(key) else {
            return false;
        };
        let Some(waiting) = context.waiting.take() else {
            return false;
        };
        // `Proxy::spans` is for the copies, so this needs its own.
        let mut spans = Box::<Spans>::default();
        if let Ok(message) = Message::parse(&waiting.bytes, &mut spans) {
            self.go_on(now, stack, key, &message, &waiting);
        }
        let context = self.contexts.get(key);
        context.is_some_and(|context| context.waiting.is_some())
    }

    fn go_on(
        &mut self,
        now: Now,
        stack: &mut Stack<'_>,
        key: ContextKey,
        message: &Message<'_>,
        waiting: &WaitingRequest,
    ) {
        let asked = ReceivedRequest {
            now,
            message,
            from: &waiting.from,
            sender: waiting.sender.clone(),
        };
        let received = (message, &waiting.from.flow);
        let refusal = match self.decide(asked, stack.policy) {
            Ok(Decision::Forward(plan)) => match self.admit(now, received, &plan, stack.policy) {
                Ok(admitted) => {
                    if plan.sender.has_proven_source()
                        && let Some(context) = self.contexts.get(key)
                    {
                        stack.engine.trust_source(context.server);
                    }
                    self.clear_timer(key);
                    let (arrived, planned) = ((message, waiting.arrival), (*plan, admitted));
                    return self.begin(now, stack, key, arrived, planned, &waiting.from);
                }
                Err(refusal) => refusal,
            },
            Ok(Decision::Pending(sender)) => {
                if let Some(context) = self.contexts.get(key) {
                    context.waiting = Some(Box::new(WaitingRequest {
                        bytes: waiting.bytes.clone(),
                        sender,
                        ..*waiting
                    }));
                }
                return;
            }
            Ok(Decision::Challenge) => {
                self.stats.challenged += 1;
                let lines = std::mem::take(&mut self.lines);
                self.answer(now.mono, stack, key, &Reply::new(407).headers(&lines));
                self.lines = lines;
                return;
            }
            Ok(Decision::Reject(code, reason)) => {
                self.stats.refused += 1;
                self.record_refusal(now, stack.policy, received, (code, &reason));
                self.answer(now.mono, stack, key, &rejection(code, &reason));
                return;
            }
            // The first decision was another one, so the configuration has changed meanwhile.
            Ok(Decision::Own | Decision::Elsewhere(_)) => Refusal::of(500, ""),
            Err(refusal) => refusal,
        };
        self.stats.refused += 1;
        if !refusal.is_for_node {
            let why = (refusal.code, refusal.reason);
            self.record_refusal(now, stack.policy, received, why);
        }
        self.bye_refused(now, stack.policy, received);
        let lines = std::mem::take(&mut self.lines);
        self.answer(now.mono, stack, key, &refusal.reply_with(&lines));
        self.lines = lines;
    }

    /// Whether the sender of a request that waits is known: a trunk, a user with valid credentials, or one side of a
    /// dialog.
    pub fn has_known_sender(&mut self, key: ContextKey) -> bool {
        let context = self.contexts.get(key);
        let waiting = context.and_then(|context| context.waiting.as_ref());
        let sender = waiting.and_then(|waiting| waiting.sender.as_ref());
        sender.is_some_and(|sender| *sender != Sender::Anyone)
    }

    /// The keys of requests that wait, for an embedder that cannot tell which of them can go on.
    pub fn waiting(&mut self) -> Vec<ContextKey> {
        self.contexts.waiting()
    }

    /// Time has passed: cancels a group of contacts that has rung long enough, and tries the next one. Requests that
    /// have waited too long for a look-up get 504. Messages that have waited too long for a media relay go on without
    /// it.
    pub fn handle_timeout(&mut self, now: Mono, stack: &mut Stack<'_>) {
        self.media_timeout(now, stack);
        while let Some(slot) = self.wheel.pop_due(now) {
            let Some(key) = self.contexts.at(slot) else {
                continue;
            };
            let Some(context) = self.contexts.get(key) else {
                continue;
            };
            if let Some(waiting) = context.waiting.take() {
                self.record_waiting(now, stack.policy, &waiting, (504, false));
                self.answer(now, stack, key, &Reply::new(504));
            } else {
                context.is_timed = false;
                self.group_timeout(now, stack, key);
                self.nodes_timeout(now, stack, key);
                self.waking_timeout(now, stack, key);
                self.arm(key);
            }
        }
    }

    /// A CANCEL has come for the INVITE with this mark, and was answered (RFC 3261 §16.10).
    pub fn cancel(&mut self, now: Mono, stack: &mut Stack<'_>, mark: Mark, cancel: &Message<'_>) {
        let Some((key, _)) = ContextKey::of(mark) else {
            return;
        };
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        if let Some(waiting) = context.waiting.take() {
            self.record_waiting(now, stack.policy, &waiting, (487, true));
            return self.answer(now, stack, key, &Reply::new(487));
        }
        context.is_ending = true;
        context.targets.clear();
        if let Some(record) = context.admitted.record() {
            record.cancelled();
        }
        let waited = context.waking.take().is_some() | context.waits_for_media();
        // A 480 of this server is no better than the 487 that the caller expects.
        let best = &context.best;
        if (waited && (best.is_own || best.code == 0)) || (best.is_own && best.code == 480) {
            context.best = Best::default();
            context.best.add_own(487);
        }
        self.cancel_branches(now, stack, key, &fork::reason_of(cancel));
        if waited {
            // If it waited for phones or for a media relay only, no branch ends.
            self.branch_ended(now, stack, key);
        }
    }

    /// The server transaction with this mark has ended: removes its context.
    pub fn server_ended(&mut self, mark: Mark) {
        if let Some((key, _)) = ContextKey::of(mark) {
            self.remove(key);
        }
    }

    fn remove(&mut self, key: ContextKey) {
        let Some(context) = self.contexts.remove(key) else {
            return;
        };
        if context.is_timed {
            self.wheel.remove(key.slot);
        }
        self.media.context_ended(*context);
    }

    /// Sets the deadline of the group.
    fn set_timer(&mut self, key: ContextKey, at: Mono) {
        if let Some(context) = self.contexts.get(key) {
            context.group_until = Some(at);
        }
        self.arm(key);
    }

    /// Removes the deadline of the group.
    fn clear_timer(&mut self, key: ContextKey) {
        if let Some(context) = self.contexts.get(key) {
            context.group_until = None;
        }
        self.arm(key);
    }

    /// Sets the timer to the earlier deadline of a context.
    fn arm(&mut self, key: ContextKey) {
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        match context.deadline() {
            Some(at) => {
                context.is_timed = true;
                self.wheel.set(key.slot, at);
            }
            None if std::mem::take(&mut context.is_timed) => self.wheel.remove(key.slot),
            None => {}
        }
    }

    /// Answers a request without keeping anything: its repetition gets the same answer.
    fn refuse<'m>(
        &mut self,
        now: Now,
        stack: &mut Stack<'_>,
        (request, from): (NewRequest<'m>, &FlowId),
        refusal: Refusal,
    ) -> Handled<'m> {
        self.stats.refused += 1;
        let received = (&{ request.message }, &from.flow);
        if !refusal.is_for_node {
            let why = (refusal.code, refusal.reason);
            self.record_refusal(now, stack.policy, received, why);
        }
        self.bye_refused(now, stack.policy, received);
        // If no response can be sent, the client retransmits its request.
        let _ = stack
            .engine
            .answer_statelessly(request, &refusal.reply_with(&self.lines));
        Handled::Yes
    }

    /// Makes a server transaction and a context. On an error, the request has been answered.
    fn accept(
        &mut self,
        now: Mono,
        engine: &mut Engine,
        request: NewRequest<'_>,
    ) -> Result<ContextKey, AcceptError> {
        let method = request.message.method();
        let (is_invite, is_bye) = (method == Some(Method::Invite), method == Some(Method::Bye));
        let most = self.config.most.min(context::MAX_CONTEXTS);
        if self.contexts.len() >= most {
            let reply = Reply::new(503).headers(b"Retry-After: 1\r\n");
            let _ = engine.answer_statelessly(request, &reply);
            return Err(AcceptError::Full);
        }
        let mark = self.contexts.next_key().mark();
        match engine.accept(now, request, Some(mark)) {
            Ok(server) => {
                let mut context = Context::new(server, is_invite);
                context.is_bye = is_bye;
                Ok(self.contexts.insert(context))
            }
            Err(error) => {
                self.stats.refused += u64::from(error == AcceptError::TooLong);
                Err(error)
            }
        }
    }

    /// Answers a request that has a context, which ends with that.
    fn answer(&mut self, now: Mono, stack: &mut Stack<'_>, key: ContextKey, reply: &Reply<'_>) {
        if let Some(context) = self.contexts.get(key) {
            // It may have ended in the same moment.
            let _ = stack.engine.respond(now, context.server, reply);
        }
        self.remove(key);
    }

    /// Forwards a request to its targets, the first group of them at once.
    fn begin(
        &mut self,
        now: Now,
        stack: &mut Stack<'_>,
        key: ContextKey,
        (message, arrival): (&Message<'_>, Arrival),
        (mut plan, (mut admitted, changes)): (Plan<'_>, (Admitted, SessionChanges)),
        from: &FlowId,
    ) {
        // From here on, the context has the targets.
        let targets = target::in_order(std::mem::take(&mut plan.targets), self.config.forking);
        // RFC 5393 §5.3.3: all contacts of a group ring together or not at all.
        let largest_group = fork::largest_group(&targets, self.config.forking) + plan.asleep.len();
        if largest_group > plan.breadth as usize {
            self.stats.refused += 1;
            calls::end_record(
                now.mono,
                stack.policy,
                admitted.take_record(),
                (440, true, ""),
            );
            return self.answer(now.mono, stack, key, &Refusal::of(440, "").reply());
        }
        let arrived = (message, arrival, now);
        let base: Result<Base, _> = self.base_of(stack, arrived, &plan, &changes, from);
        let Ok(base) = base else {
            self.stats.refused += 1;
            calls::end_record(
                now.mono,
                stack.policy,
                admitted.take_record(),
                (400, true, ""),
            );
            return self.answer(now.mono, stack, key, &Refusal::of(400, "").reply());
        };
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        context.is_trunk = base.is_trunk;
        context.is_from_node = base.is_node;
        context.admitted = admitted;
        context.base = Some(Box::new(base));
        context.targets = targets;
        if self.config.recurses {
            let first = context.targets.iter();
            let all = first.flat_map(|it| std::iter::once(it).chain(&it.others));
            context.tried = all.map(|target| target.uri.clone()).collect();
        }
        // RFC 5627 §6.1: a call for one instance, or within a dialog, does not go on to another user.
        // The node that has asked for these phones sees what the others do.
        let is_for_user = !matches!(plan.sender, Sender::Dialog { .. } | Sender::Node)
            && !is_within(message, plan.routed.is_known_dialog)
            && !plan.routed.is_gruu(stack.policy);
        let is_call =
            context.is_invite && is_for_user && context.targets.iter().all(|it| it.is_binding);
        context.may_divert = is_call
            && plan
                .aor
                .as_ref()
                .is_some_and(|aor| stack.policy.has_forward(aor));
        context.aor = plan.aor.map(Box::new);
        self.stats.forwarded += 1;
        // It counts the targets, and `launch` removes them.
        self.wake(now.mono, stack, key, message, &plan);
        self.launch(now.mono, stack, key);
    }
}
