//! The copies of a request (RFC 3261 §16.6): the changes that all copies share, and those of each copy.

use std::borrow::Cow;

use sip::branch::LoopCheck;
use sip::build::{BuildError, Edits, SCRATCH, decimal, forward};
use sip::congestion::{Class, is_emergency};
use sip::dispatch::{
    DispatchError, Forwarding, OutgoingRequest, RecordRoute, RequestKey, SendFrom,
};
use sip::engine::Mark;
use sip::header::{HeaderKind, NameAddr};
use sip::uri::{Uri, starts_with_sips};
use sip::{Message, Method, Mono, Now};

use super::context::{Arrival, Base, Recorded};
use super::identity;
use super::media::{RelayedCopy, Relaying, relaying};
use super::moved::{KnownPhone, calling_phone};
use super::party::{callee_token, caller_token};
use super::policy::Policy;
use super::request::Plan;
use super::route::may_begin_dialog;
use super::sender::Sender;
use super::session::SessionChanges;
use super::target::Target;
use super::token::{MAX_USER, NO_TRUNK, Phone, Token, TokenContent, trunk_group};
use super::uris::{as_sips, request_uri};
use super::{Proxy, Stack};
use crate::flow::{FlowAvailability, FlowId, MAX_TOKEN};

/// RFC 3261 §16.6 step 3: Max-Forwards of a request that has none.
const MAX_FORWARDS: u8 = 70;

impl Proxy {
    /// The base of all copies of a request: the request with the changes that all copies share.
    pub(super) fn base_of(
        &mut self,
        stack: &Stack<'_>,
        (message, arrival, now): (&Message<'_>, Arrival, Now),
        plan: &Plan<'_>,
        session: &SessionChanges,
        from: &FlowId,
    ) -> Result<Base, BuildError> {
        let method = message.method().unwrap_or(Method::Ack);
        let mut changes = identity::changes(message, &plan.sender, &*stack.policy);
        changes.drops.push(HeaderKind::MaxBreadth);
        changes.drops.extend_from_slice(&session.drops);
        changes.lines.extend_from_slice(&session.lines);
        let routed = &plan.routed;
        let mut on_top = Vec::new();
        if routed.was_strict {
            changes.drops.push(HeaderKind::Route);
            write_routes(&mut on_top, routed.routes.iter().map(|route| route.bytes));
        }
        let left = message.max_forwards().ok().flatten();
        let edits = Edits {
            on_top: &on_top,
            at_end: &changes.lines,
            max_forwards: Some(left.map_or(MAX_FORWARDS, |left| left.saturating_sub(1))),
            stamp: arrival.stamp,
            drop_overload: true,
            drop_routes: if routed.was_strict { 0 } else { routed.removed },
            drop_kinds: &changes.drops,
            ..Edits::default()
        };
        let mut scratch = self.scratch.take().unwrap_or_default();
        let bytes = written(message, &edits, &mut scratch);
        self.scratch = Some(scratch);
        let in_dialog = message.to().is_ok_and(|to| to.tag.is_some());
        let is_path = method == Method::Register && supports_path(message);
        let recorded = match !in_dialog && may_begin_dialog(method) {
            false => Recorded::None,
            true if self.config.record_route => Recorded::All,
            true if must_record(message, plan, stack.policy) => Recorded::All,
            true => Recorded::Required,
        };
        let (mut caller, mut callee) = (None, None);
        if recorded != Recorded::None {
            caller = calling_phone(message, &plan.sender, &*stack.policy);
            let aor = plan.aor.as_ref();
            callee = aor.and_then(|aor| stack.policy.phone_key(aor));
        }
        let is_node = plan.sender == Sender::Node;
        let is_trunk = plan.sender == Sender::Trunk || stack.policy.is_trunk(&from.flow);
        Ok(Base {
            bytes: bytes?.into(),
            begun: now,
            from: *from,
            loop_check: arrival.loop_check,
            class: class_of(
                method,
                in_dialog && routed.is_known_dialog,
                message.request_uri().unwrap_or_default(),
            ),
            recorded,
            caller,
            callee,
            is_path,
            has_ob: is_path && is_first_hop(message),
            is_node,
            is_trunk,
            trunk_group: match stack.policy.source_name(&from.flow) {
                b"" => NO_TRUNK,
                name => trunk_group(name),
            },
            is_of_anyone: plan.sender == Sender::Anyone,
            is_of_user: matches!(plan.sender, Sender::User(_)),
            is_private: identity::is_private(message)
                || identity::is_anonymous(message, &plan.sender, &*stack.policy),
            breadth: plan.breadth,
            relaying: relaying(message, routed, &*stack.policy, &from.flow),
        })
    }

    /// A hash of everything that decides where a request goes, to detect loops (RFC 5393 §4.2.1).
    pub(super) fn loop_check(
        &mut self,
        stack: &Stack<'_>,
        message: &Message<'_>,
        from: &FlowId,
    ) -> LoopCheck {
        self.inputs.clear();
        stack
            .policy
            .route_inputs(message, &from.flow, &mut self.inputs);
        stack.engine.loop_check(message, &self.inputs)
    }

    /// Sends one copy.
    pub(super) fn send_copy(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        (base, relayed): (&Base, Option<&RelayedCopy>),
        target: &Target,
        (mark, breadth): (Mark, u32),
    ) -> Result<RequestKey, CopyError> {
        let (Some(mut spans), Some(mut scratch)) = (self.spans.take(), self.scratch.take()) else {
            return Err(CopyError::Malformed);
        };
        let bytes = relayed.and_then(|relayed| relayed.bytes.as_deref());
        let sent = match Message::parse(bytes.unwrap_or(&base.bytes), &mut spans) {
            Ok(message) => {
                let copy = Copy {
                    base,
                    relayed,
                    target,
                    mark,
                    breadth,
                };
                self.send_copy_of(now, stack, &message, &copy, &mut scratch)
            }
            Err(_) => Err(CopyError::Malformed),
        };
        (self.spans, self.scratch) = (Some(spans), Some(scratch));
        sent
    }

    fn send_copy_of(
        &self,
        now: Mono,
        stack: &mut Stack<'_>,
        message: &Message<'_>,
        copy: &Copy<'_>,
        scratch: &mut [u8],
    ) -> Result<RequestKey, CopyError> {
        let Copy { base, target, .. } = *copy;
        let flow = match target.flow {
            Some(flow) => Some(self.live_flow(now, stack, flow)?),
            None => None,
        };
        // If the connection of the flow is closed, the request goes to the contact by a new connection. Then so do the
        // requests of the dialog: see `without_flow` in `outgoing_route`.
        let is_usable = |flow: &FlowId| {
            let mut connection = flow.flow.connection.into_iter();
            target.only_by_flow || connection.all(|key| stack.engine.is_open(key))
        };
        let mut way = CopyRoute::of(message, target);
        if target.is_node {
            let route = self.node_route(now, base, message, (&target.uri, &target.path));
            way.new_routes = vec![route.into()];
        }
        // RFC 3261 §16.6 step 7, RFC 7118 §9.2: a SIPS request goes by TLS only. A flow without TLS counts as
        // no flow.
        let is_sips = starts_with_sips(&way.uri) || starts_with_sips(&way.destination());
        let is_insecure = |flow: &FlowId| is_sips && !flow.flow.transport.is_secure();
        if target.only_by_flow && flow.as_ref().is_some_and(is_insecure) {
            return Err(CopyError::FlowWithoutTls);
        }
        let flow = flow.filter(|flow| is_usable(flow) && !is_insecure(flow));
        let call_id = message.call_id().unwrap_or_default();
        let mut lines = Vec::new();
        let scheme = RouteScheme::of(copy, || way.names_sips(message));
        if let Some(scheme) = scheme {
            self.record_incoming(stack, copy, call_id, scheme, &mut lines);
        }
        write_routes(&mut lines, way.new_routes.iter().map(|route| &route[..]));
        let mut drops = Vec::new();
        if way.is_rewritten {
            drops.push(HeaderKind::Route);
        }
        // RFC 3325 §7.
        if base.is_private && !is_trusted(target, stack) {
            drops.push(HeaderKind::PAssertedIdentity);
        }
        let breadth = breadth_line(copy.breadth);
        let at_end = [&breadth[..], &target.credentials, &target.diversion].concat();
        let edits = Edits {
            request_uri: Some(&way.uri),
            on_top: &lines,
            at_end: &at_end,
            drop_kinds: &drops,
            ..Edits::default()
        };
        let gathered = forward(message, &edits, scratch).map_err(|_| CopyError::Malformed)?;
        let mut users = Users::default();
        let destination = way.destination();
        let hop = (&*stack.policy, &destination[..]);
        let record_route = self.outgoing_route(hop, (copy, flow), scheme, call_id, &mut users);
        let order = OutgoingRequest {
            target: &destination,
            pieces: gathered.slices(),
            class: base.class,
            mark: copy.mark,
            reach: target.reach,
            loop_check: Some(base.loop_check),
            flow: flow.map(|flow| flow.flow),
            from: target.from.or(Some(SendFrom {
                listener: base.from.flow.listener,
                local: None,
            })),
        };
        let forwarding = Forwarding {
            record_route,
            only_by_flow: target.only_by_flow,
            ends_with_flow: target.only_by_flow || target.is_binding,
        };
        let (engine, dispatcher) = (&mut *stack.engine, &mut *stack.dispatcher);
        let sent = dispatcher.forward(now, engine, &order, &forwarding);
        sent.map_err(CopyError::Dispatch)
    }

    /// The Record-Route value of the side that the request leaves by (RFC 5658 §4.2), or the Path value. `destination`:
    /// the URI that the request is sent to.
    fn outgoing_route<'u>(
        &self,
        (policy, destination): (&dyn Policy, &[u8]),
        (copy, flow): (&Copy<'_>, Option<FlowId>),
        scheme: Option<RouteScheme>,
        call_id: &[u8],
        users: &'u mut Users,
    ) -> Option<RecordRoute<'u>> {
        let Copy { base, target, .. } = *copy;
        let side = copy.relayed.map(|relayed| relayed.to);
        let from = &base.from.flow;
        if let Some(scheme) = scheme {
            let without_flow = callee_token(policy, (base, target), destination);
            let token = flow.map_or(without_flow, Token::Flow);
            let phone = base.callee.filter(|_| target.is_phone());
            let phone = phone.map(|aor| self.phone_of((aor, target.phone), base, call_id));
            let said = |token| TokenContent { token, side, phone };
            // One value is enough if both have the same token, or if the outgoing one permits less than that of a trunk.
            let adds_nothing = token == caller_token(base) || token == Token::Trunk(NO_TRUNK);
            let needs_one_value = base.is_trunk && adds_nothing && side.is_none();
            return Some(RecordRoute {
                kind: HeaderKind::RecordRoute,
                params: b"",
                user: self.tokens.write(&said(token), call_id, &mut users.dialog),
                user_without_flow: self.tokens.write(
                    &said(without_flow),
                    call_id,
                    &mut users.without_flow,
                ),
                is_sips: scheme.is_outgoing_sips,
                unless: needs_one_value.then_some((from.listener, from.transport)),
            });
        }
        base.is_path.then(|| {
            let user = self.tokens.write_path(&base.from, &mut users.path);
            RecordRoute {
                kind: HeaderKind::Path,
                // RFC 5626 §5.1: only the first hop may say so.
                params: if base.has_ob { b";ob" } else { b"" },
                user,
                user_without_flow: user,
                is_sips: starts_with_sips(&target.uri),
                unless: None,
            }
        })
    }

    /// What the token in Record-Route says about a phone.
    fn phone_of(&self, (aor, hash): KnownPhone, base: &Base, call_id: &[u8]) -> Phone {
        Phone {
            aor,
            identity: match hash {
                0 => 0,
                hash => self.tokens.identity(hash, call_id),
            },
            since: Phone::time_of(base.begun.unix_s),
        }
    }

    /// Translates a flow to this run of the server, and makes it known to the engine. Fails if the flow is gone.
    fn live_flow(
        &self,
        now: Mono,
        stack: &mut Stack<'_>,
        mut id: FlowId,
    ) -> Result<FlowId, CopyError> {
        match id.state(self.runs) {
            FlowAvailability::Current => {
                // The other process may number its listeners otherwise. A connection that it has made has no listener's
                // address.
                let listener = stack.policy.listener_at(id.flow.local);
                if id.run != self.runs.own
                    && let Some(listener) = listener
                {
                    id.flow.listener = listener;
                }
            }
            FlowAvailability::Datagrams => {
                let listener = stack.policy.listener_at(id.flow.local);
                id.flow.listener = listener.ok_or(CopyError::FlowGone)?;
                id.run = self.runs.own;
            }
            FlowAvailability::Gone => return Err(CopyError::FlowGone),
        }
        // The connection of another worker may be closed. Then that worker reports it later.
        if id.flow.connection.is_some() && id.worker != self.worker {
            stack.engine.adopt(now, &id.flow);
        }
        Ok(id)
    }

    /// The Record-Route value of the side that the request has come by (RFC 5658 §4.2). A phone is reached by its flow,
    /// a trunk by its Contact.
    fn record_incoming(
        &self,
        stack: &Stack<'_>,
        copy: &Copy<'_>,
        call_id: &[u8],
        scheme: RouteScheme,
        lines: &mut Vec<u8>,
    ) {
        let base = copy.base;
        let side = copy.relayed.map(|relayed| relayed.from);
        let from = &base.from.flow;
        let Some(signature) = stack.engine.signature(&from.into()) else {
            return;
        };
        let token = caller_token(base);
        let phone = base.caller.filter(|_| matches!(token, Token::Flow(_)));
        let phone = phone.map(|phone| self.phone_of(phone, base, call_id));
        let said = TokenContent { token, side, phone };
        let mut user = [0; MAX_USER];
        let user = self.tokens.write(&said, call_id, &mut user);
        let mut buffer = [0; 640];
        let mut line = sip::build::Builder::fields(&mut buffer);
        let (kind, is_sips) = (HeaderKind::RecordRoute, scheme.is_incoming_sips);
        sip::dispatch::write_route(&mut line, kind, user, is_sips, &signature, b"");
        // The buffer holds the longest host.
        lines.extend_from_slice(line.finish_fields().unwrap_or_default());
    }
}

/// The schemes of the Record-Route values of a copy.
#[derive(Clone, Copy, Debug)]
struct RouteScheme {
    /// Of the side that the request leaves by.
    is_outgoing_sips: bool,
    /// Of the side that it came by.
    is_incoming_sips: bool,
}

impl RouteScheme {
    /// `None` if the copy has no Record-Route. These targets require one:
    ///
    /// - The callee is reached by a Path (RFC 5627 §6.2), or by another node.
    /// - The media of the call go through a relay.
    /// - The request came by TLS and does not go to a SIPS URI, or the other way round (RFC 3261 §16.6 step 4).
    /// - The contact is a SIPS URI, and the request has a SIP URI: only this server knows that the requests of the
    ///   dialog must go by TLS, too.
    ///
    /// `names_sips` returns whether the Request-URI or the topmost Route value of the copy is a SIPS URI.
    fn of(copy: &Copy<'_>, names_sips: impl FnOnce() -> bool) -> Option<RouteScheme> {
        let Copy { base, target, .. } = *copy;
        if base.recorded == Recorded::None {
            return None;
        }
        let (names_sips, is_secure) = (names_sips(), base.from.flow.transport.is_secure());
        let is_recorded = base.recorded == Recorded::All
            || !target.path.is_empty()
            || names_sips != is_secure
            || target.only_by_tls
            || copy.relayed.is_some_and(|relayed| relayed.begins_dialog);
        is_recorded.then_some(RouteScheme {
            is_outgoing_sips: names_sips,
            // RFC 5658 §6.2: the two sides may have different schemes. If only a Route value leads to TLS, a caller
            // without TLS must be able to use the value of its side.
            is_incoming_sips: names_sips && (is_secure || starts_with_sips(&target.uri)),
        })
    }
}

/// Buffers for the user parts of the URIs in Record-Route and Path.
struct Users {
    dialog: [u8; MAX_USER],
    without_flow: [u8; MAX_USER],
    path: [u8; MAX_TOKEN],
}

impl Default for Users {
    fn default() -> Users {
        Users {
            dialog: [0; MAX_USER],
            without_flow: [0; MAX_USER],
            path: [0; MAX_TOKEN],
        }
    }
}

/// One copy.
#[derive(Clone, Copy)]
struct Copy<'c> {
    base: &'c Base,
    /// If its media go through a relay.
    relayed: Option<&'c RelayedCopy>,
    target: &'c Target,
    mark: Mark,
    /// Its part of Max-Breadth.
    breadth: u32,
}

/// Why a copy was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyError {
    /// The request cannot be parsed, or the copy cannot be written.
    Malformed,
    /// The flow has failed.
    FlowGone,
    /// The request must use TLS (RFC 3261 §26.2.2), and its flow does not.
    FlowWithoutTls,
    /// The media relay has not rewritten the offer.
    NoMedia,
    /// The target leads nowhere, or too many requests are in progress.
    Dispatch(DispatchError),
}

/// Where a copy goes (RFC 3261 §16.6 steps 2, 6 and 7).
struct CopyRoute {
    /// The Request-URI.
    uri: Box<[u8]>,
    /// The URI that the copy is sent to; the Request-URI if there is none.
    next_hop: Option<Box<[u8]>>,
    /// Route values to insert before those of the message.
    new_routes: Vec<Box<[u8]>>,
    /// `new_routes` replaces the Route values of the message.
    is_rewritten: bool,
    /// The copy goes by TLS, although its Request-URI is a SIP URI.
    only_by_tls: bool,
}

impl CopyRoute {
    /// The URI of the next hop. RFC 3261 §16.6 step 7: if the Request-URI is a SIPS URI, the URI of the next hop counts
    /// as a SIPS URI. RFC 5630 §5.3: so it does if the contact is a SIPS URI.
    fn destination(&self) -> Cow<'_, [u8]> {
        let next_hop = self.next_hop.as_ref().unwrap_or(&self.uri);
        match self.only_by_tls || starts_with_sips(&self.uri) {
            true if !starts_with_sips(next_hop) => as_sips(next_hop).into(),
            _ => Cow::Borrowed(next_hop),
        }
    }

    /// Whether the Request-URI or the topmost Route value of the copy is a SIPS URI (RFC 3261 §16.6 step 4).
    fn names_sips(&self, message: &Message<'_>) -> bool {
        if starts_with_sips(&self.uri) {
            return true;
        }
        let new = self.new_routes.first();
        let new = new.map(|route| NameAddr::list(route));
        let top = match &new {
            Some(new) => new.first().copied(),
            None => message.routes().next().and_then(Result::ok),
        };
        top.is_some_and(|route| starts_with_sips(route.uri))
    }

    /// The route to this target. Prepares the copy for a strict router if the next hop is one.
    fn of(message: &Message<'_>, target: &Target) -> CopyRoute {
        let mut way = CopyRoute {
            uri: target.uri.clone(),
            next_hop: None,
            new_routes: Vec::new(),
            is_rewritten: false,
            only_by_tls: target.only_by_tls,
        };
        if let Some(next_hop) = &target.next_hop {
            way.next_hop = Some(next_hop.clone());
            return way;
        }
        let path = NameAddr::list(&target.path);
        way.new_routes = path.iter().map(|route| route.bytes.into()).collect();
        let first = path.first().copied();
        let Some(first) = first.or_else(|| message.routes().next()?.ok()) else {
            return way;
        };
        way.next_hop = Some(first.uri.into());
        let is_loose =
            matches!(first.parse_uri(), Ok(uri) if uri.as_sip().is_none_or(|uri| uri.is_loose()));
        if is_loose {
            return way;
        }
        // A strict router: it expects its own URI as the Request-URI, and the target at the end of Route.
        let there = message.routes().filter_map(Result::ok);
        way.new_routes.extend(there.map(|route| route.bytes.into()));
        way.new_routes.remove(0);
        let last = [b"<", &target.uri[..], b">"].concat();
        way.new_routes.push(last.into());
        way.uri = request_uri(first.uri).into();
        way.is_rewritten = true;
        way
    }
}

/// Writes a Route field, if there are values.
pub(super) fn write_routes<'r>(lines: &mut Vec<u8>, routes: impl Iterator<Item = &'r [u8]>) {
    write_list(lines, b"Route: ", routes);
}

/// Writes a field with these values, if there are any.
pub(super) fn write_list<'r>(
    lines: &mut Vec<u8>,
    name: &[u8],
    values: impl Iterator<Item = &'r [u8]>,
) {
    let mut separator = name;
    for value in values {
        lines.extend_from_slice(separator);
        // Quoted display names may be folded.
        lines.extend(value.iter().map(|byte| match byte {
            b'\r' | b'\n' => b' ',
            byte => *byte,
        }));
        separator = b", ";
    }
    if separator == b", " {
        lines.extend_from_slice(b"\r\n");
    }
}

/// The header line Max-Breadth. Every forwarded request has one, also an ACK (RFC 5393 §5.3.3).
fn breadth_line(breadth: u32) -> Vec<u8> {
    let mut digits = [0; 10];
    [b"Max-Breadth: ", decimal(breadth, &mut digits), b"\r\n"].concat()
}

/// Whether P-Asserted-Identity may be sent to a target (RFC 3325 §5): it is a trunk or another node of the cluster.
fn is_trusted(target: &Target, stack: &Stack<'_>) -> bool {
    if target.hop.is_some() || target.is_node {
        return true;
    }
    if let Some(flow) = target.flow {
        return stack.policy.is_trunk(&flow.flow);
    }
    let path = NameAddr::list(&target.path);
    let next_hop = path.first().map_or(&target.uri[..], |route| route.uri);
    match Uri::parse(next_hop) {
        Ok(Uri::Sip(uri)) => stack.policy.is_trunk_host(uri.maddr().unwrap_or(uri.host)),
        _ => false,
    }
}

/// The priority class of the copies at an overloaded next hop (RFC 7339 §5.10.1). Credentials do not count: nearly all
/// calls of users have them, and requests within dialogs come before calls. `in_dialog`: the token in Route proves the
/// dialog. A To tag is not enough, because anybody can make one up.
fn class_of(method: Method<'_>, in_dialog: bool, uri: &[u8]) -> Class {
    match method {
        Method::Ack | Method::Cancel => Class::Finishing,
        Method::Bye | Method::Prack if in_dialog => Class::Finishing,
        _ if in_dialog => Class::Continuing,
        _ if is_emergency(uri) => Class::Priority,
        _ => Class::New,
    }
}

/// RFC 5626 §5.1: whether the request comes from its user agent, as it has one Via.
fn is_first_hop(message: &Message<'_>) -> bool {
    message.vias().take(2).count() == 1
}

/// RFC 3327 §5.1: a proxy adds itself to Path only if the user agent supports Path.
fn supports_path(message: &Message<'_>) -> bool {
    let mut supported = message.supported().filter_map(Result::ok);
    supported.any(|tag| tag.eq_ignore_ascii_case(b"path") || tag.eq_ignore_ascii_case(b"outbound"))
}

/// The message with these changes.
pub(super) fn written(
    message: &Message<'_>,
    edits: &Edits<'_>,
    scratch: &mut [u8],
) -> Result<Vec<u8>, BuildError> {
    const { assert!(SCRATCH < super::SCRATCH_BYTES) };
    let gathered = forward(message, edits, scratch)?;
    Ok(gathered.slices().concat())
}

/// Whether the requests within the dialog must come by this server, whatever the configuration says:
///
/// - The caller wants them by its flow (RFC 5626 §5.3.2: `ob` in Contact), or the request goes by a flow of a Path of
///   this server (§5.3.1).
/// - The caller's Contact is a GRUU of this server, and a proxy between wants them, too (RFC 5627 §6.2).
/// - The request comes from another node.
///
/// [`RouteScheme::of`] has the reasons of single targets.
fn must_record(message: &Message<'_>, plan: &Plan<'_>, policy: &dyn Policy) -> bool {
    let contact = message.contact().ok().flatten();
    let uri = contact.and_then(|contact| contact.parse_uri().ok());
    let uri = uri.as_ref().and_then(|uri| uri.as_sip());
    let has = |name: &[u8]| uri.is_some_and(|uri| uri.params.get(name).is_some());
    let is_gruu = || has(b"gr") && uri.is_some_and(|uri| policy.domain(uri.host).is_some());
    plan.routed.is_path
        || plan.sender == Sender::Node
        || has(b"ob")
        || message.has(HeaderKind::RecordRoute) && is_gruu()
}

/// The base for the copies of an ACK, which has no context.
pub(super) fn ack_base(bytes: Vec<u8>, from: &FlowId, loop_check: LoopCheck) -> Base {
    Base {
        bytes: bytes.into(),
        // An ACK goes where its Route leads, so it gets no token for another node.
        begun: Now {
            mono: Mono(0),
            unix_s: 0,
        },
        from: *from,
        loop_check,
        class: Class::Finishing,
        recorded: Recorded::None,
        caller: None,
        callee: None,
        is_path: false,
        has_ob: false,
        is_node: false,
        is_trunk: false,
        trunk_group: NO_TRUNK,
        is_of_anyone: false,
        is_of_user: false,
        is_private: false,
        breadth: 0,
        relaying: Relaying::No,
    }
}
