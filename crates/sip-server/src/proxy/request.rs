//! The decision about a request: RFC 3261 §16.3 (validation), §16.4 (routes) and §16.5 (targets), in this order.

use std::borrow::Cow;

use sip::dispatch::AllowedDestination;
use sip::flow::Flow;
use sip::header::HeaderKind;
use sip::uri::{SipUri, Uri};
use sip::{Message, Method, Now};

use super::identity;
use super::moved::MovedTarget;
use super::nodes::{AskedPhones, AtNodes};
use super::policy::{Authenticated, BindingsLocation, Inbound, IsUser, LookedUp, Policy};
use super::route::{Reader, Routed, is_within};
use super::sender::Sender;
use super::target::{Selection, Target};
use super::token::Phone;
use super::{Proxy, Refusal, alias, divert, push};
use crate::Aor;
use crate::flow::FlowId;
use crate::location::Binding;
use crate::routes::{self, Call, CallSender};

/// A request that may be forwarded.
#[derive(Debug)]
pub(super) struct Plan<'m> {
    pub(super) sender: Sender,
    pub(super) routed: Routed<'m>,
    pub(super) targets: Vec<Target>,
    /// The contacts of phones that must be woken first.
    pub(super) asleep: Vec<Box<[u8]>>,
    /// Which contacts of these phones get the request.
    pub(super) selection: Selection,
    /// The address of record whose bindings the targets are.
    pub(super) aor: Option<Aor>,
    pub(super) breadth: u32,
}

/// Where a request goes.
pub(super) struct Contacts {
    targets: Vec<Target>,
    /// The contacts of phones that must be woken first.
    asleep: Vec<Box<[u8]>>,
    /// Which contacts of these phones get the request.
    selection: Selection,
}

impl From<Vec<Target>> for Contacts {
    fn from(targets: Vec<Target>) -> Contacts {
        Contacts {
            targets,
            asleep: Vec::new(),
            selection: Selection::default(),
        }
    }
}

impl From<Target> for Contacts {
    fn from(target: Target) -> Contacts {
        vec![target].into()
    }
}

impl Contacts {
    pub(super) fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.asleep.is_empty()
    }
}

/// How phones are woken for a request. `None` unless it is an INVITE.
pub(super) fn push_for(
    asked: &ReceivedRequest<'_, '_>,
    policy: &dyn Policy,
) -> Option<push::PushConfig> {
    match asked.message.method() {
        Some(Method::Invite) => policy.push_config(),
        _ => None,
    }
}

/// What becomes of a request that is not refused.
#[derive(Debug)]
pub(super) enum Decision<'m> {
    /// It is for this server itself.
    Own,
    /// Another worker has the bindings.
    Elsewhere(u16),
    /// A lookup or an authentication is not complete. The sender is there if it is known already.
    Pending(Option<Sender>),
    /// Its sender must authenticate: the challenge is in the proxy's `lines`.
    Challenge,
    /// A route leads nowhere: the code, and the reason phrase.
    Reject(u16, Box<str>),
    Forward(Box<Plan<'m>>),
}

/// What a Request-URI names.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack for one request"
)]
pub(super) enum Named {
    /// This server, or a domain without a user.
    Server,
    /// An address of record here.
    Address {
        aor: Aor,
        number: Option<u64>,
        inbound: Inbound,
    },
    /// An address of record of another worker.
    Elsewhere(u16),
    /// No address of record: a user at a domain's host that names none, or at this server's address.
    Nobody(Option<Inbound>),
    /// Somebody elsewhere.
    Foreign,
    /// Nothing that can be sent to: a telephone number, say.
    Nothing,
}

/// Where the bindings of the instance of a GRUU are.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack for one request"
)]
pub(super) enum Instance {
    /// This worker has them. These are the contacts of the instance, which belong to this address of record.
    Here(Aor, Vec<Target>),
    /// Another worker has the bindings.
    Elsewhere(u16),
    /// The lookup is not complete.
    Pending,
}

/// A request that is looked at.
pub(super) struct ReceivedRequest<'a, 'm> {
    pub(super) now: Now,
    pub(super) message: &'a Message<'m>,
    pub(super) from: &'a FlowId,
    /// Who has sent it, if that was found out before.
    pub(super) sender: Option<Sender>,
}

impl Proxy {
    pub(super) fn decide<'m>(
        &mut self,
        asked: ReceivedRequest<'_, 'm>,
        policy: &mut dyn Policy,
    ) -> Result<Decision<'m>, Refusal> {
        let ReceivedRequest { message, from, .. } = asked;
        let breadth = self.breadth_of(message)?;
        let reader = Reader {
            tokens: &self.tokens,
            routing: &*policy,
            runs: self.runs,
            unix_s: asked.now.unix_s,
        };
        let routed = reader.read(message, &from.flow)?;
        let is_trunk = policy.is_trunk(&from.flow);
        let within = is_within(message, routed.is_known_dialog);
        let sender = || match is_trunk {
            true => Sender::Trunk,
            false => routed.sender_in_dialog(&from.flow),
        };
        if routed.is_from_node && !within {
            let decision = self.decide_for_node(&asked, policy, (routed, breadth));
            return decision.map_err(|refusal| Refusal {
                is_for_node: true,
                ..refusal
            });
        }
        if within && routed.is_gruu(&*policy) && !routed.is_to_node {
            let sender = sender();
            let by = (&from.flow, &sender);
            return Ok(
                match self.instance_targets(asked.now, policy, &routed, by)? {
                    Instance::Here(aor, targets) => {
                        forward(sender, routed, (targets.into(), Some(aor)), breadth)
                    }
                    Instance::Elsewhere(worker) => Decision::Elsewhere(worker),
                    Instance::Pending => Decision::Pending(Some(sender)),
                },
            );
        }
        let has_to_tag = message.to().is_ok_and(|to| to.tag.is_some());
        if within && has_to_tag {
            match self.moved(asked.now, policy, (message, &routed)) {
                MovedTarget::Here(aor, target) => {
                    let contacts = (target.into(), Some(aor));
                    return Ok(forward(sender(), routed, contacts, breadth));
                }
                MovedTarget::Elsewhere(worker) => return Ok(Decision::Elsewhere(worker)),
                MovedTarget::Pending => return Ok(Decision::Pending(Some(sender()))),
                MovedTarget::No => {}
            }
        }
        routed.check_flow()?;
        let by_flow = routed.flow.filter(|_| within || routed.is_path);
        if within || by_flow.is_some() {
            let sender = sender();
            let target = match by_flow {
                Some(flow) => Target::by_flow(&routed.uri, flow),
                None => {
                    let address = sender.proven_address(&from.flow);
                    Target::uri(&routed.uri, routed.allowed_destination(address))
                }
            };
            return Ok(forward(
                sender,
                routed,
                (vec![target].into(), None),
                breadth,
            ));
        }
        self.decide_anew(asked, policy, (routed, breadth, is_trunk))
    }

    /// The contacts for a request within a dialog whose Request-URI is a GRUU: those of its instance (RFC 5627 §6.1).
    ///
    /// # Errors
    /// 404 if the GRUU is not valid, 480 if the instance has no contact.
    pub(super) fn instance_targets(
        &self,
        now: Now,
        policy: &mut dyn Policy,
        routed: &Routed<'_>,
        (flow, sender): (&Flow, &Sender),
    ) -> Result<Instance, Refusal> {
        let reach = routed.allowed_destination(sender.proven_address(flow));
        let (aor, number) = match named(&routed.uri, policy) {
            Named::Address { aor, number, .. } => (aor, number),
            Named::Elsewhere(worker) => return Ok(Instance::Elsewhere(worker)),
            _ => return Err(Refusal::of(404, "")),
        };
        // The tokens of a dialog are good for its own phones only.
        let is_anothers = |phone: Phone| policy.phone_key(&aor).is_some_and(|key| key != phone.aor);
        if routed.phone.is_some_and(|(phone, _)| is_anothers(phone)) {
            return Err(Refusal::of(403, ""));
        }
        let wanted = BindingFilter {
            uri: &routed.uri,
            number,
            reach,
            is_known: true,
            flow,
            push: None,
            elsewhere: None,
            asked: &AskedPhones::All,
        };
        let Some(Contacts { mut targets, .. }) = self.bindings_of(now, &aor, &wanted, policy)?
        else {
            return Ok(Instance::Pending);
        };
        if targets.is_empty() {
            return Err(Refusal::of(480, ""));
        }
        // RFC 5627 §6.1: "the Path URI MUST be discarded", because the Route of the dialog already leads to the
        // instance.
        if !routed.routes.is_empty() {
            let all = targets.into_iter();
            targets = all.map(|target| target.by_routes(reach)).collect();
        }
        Ok(Instance::Here(aor, targets))
    }

    /// The decision about a request that belongs to no dialog of this proxy.
    fn decide_anew<'m>(
        &mut self,
        asked: ReceivedRequest<'_, 'm>,
        policy: &mut dyn Policy,
        (routed, breadth, is_trunk): (Routed<'m>, u32, bool),
    ) -> Result<Decision<'m>, Refusal> {
        let reach = AllowedDestination::Near(asked.from.flow.remote.ip());
        let alias = alias::of(&routed, policy);
        let local;
        let mut called = alias.as_deref().unwrap_or(&routed.uri);
        let mut named = named_by(called, &routed, policy);
        let is_open = inbound_of(&named, called, policy) == Some(Inbound::Anyone);
        let may_route = may_route((&named, called), &asked, &routed, policy);
        // The worker that has the bindings looks up the user.
        if let (MayRoute::Pending, Named::Elsewhere(worker)) = (may_route, &named) {
            return Ok(Decision::Elsewhere(*worker));
        }
        let routes = match may_route {
            MayRoute::Yes => route(&asked, called, is_open, policy),
            _ => routes::Decision::NoRoute,
        };
        if let routes::Decision::Local(uri) = &routes {
            local = alias::resolve(uri, policy).unwrap_or_else(|| uri.clone());
            called = &local;
            named = self::named(called, policy);
        }
        if let Some(decision) = decide_without_sender(&named, &routes)? {
            return Ok(decision);
        }
        let sender = match self.sender_of(&asked, is_trunk, is_open, policy)? {
            Ok(sender) => sender,
            Err(decision) => return Ok(decision),
        };
        match may_route {
            MayRoute::Pending => return Ok(Decision::Pending(Some(sender))),
            MayRoute::Unavailable => return Err(unavailable(&sender)),
            MayRoute::Yes | MayRoute::No => {}
        }
        match routes {
            routes::Decision::Trunks(steps) => {
                let targets: Vec<_> = steps.into_iter().map(Target::step).collect();
                return Ok(forward(sender, routed, (targets.into(), None), breadth));
            }
            routes::Decision::Reject(code, reason) => return Ok(Decision::Reject(code, reason)),
            routes::Decision::Unavailable => {
                return Ok(Decision::Reject(503, "No Trunk Is Available".into()));
            }
            routes::Decision::NoRoute | routes::Decision::Local(_) => {}
        }
        let (contacts, aor) = match named {
            Named::Address { aor, number, .. } => {
                let wanted = BindingFilter {
                    uri: called,
                    number,
                    reach,
                    is_known: sender != Sender::Anyone,
                    flow: &asked.from.flow,
                    push: push_for(&asked, policy),
                    elsewhere: Some(&asked),
                    asked: &AskedPhones::All,
                };
                match self.bindings_of(asked.now, &aor, &wanted, policy)? {
                    Some(contacts) if contacts.is_empty() => {
                        let targets = divert::not_registered(&asked, &aor, &wanted, policy)?;
                        (targets.into(), Some(aor))
                    }
                    Some(contacts) => (contacts, Some(aor)),
                    None => return Ok(Decision::Pending(Some(sender))),
                }
            }
            Named::Foreign if matches!(sender, Sender::Trunk | Sender::Anyone) => {
                // A trunk proves nothing but its address, so it must not send through this server to others.
                return Err(Refusal::of(403, "Relaying Is Not Allowed"));
            }
            Named::Foreign => (Target::of_user(&routed.uri, asked.from).into(), None),
            _ => return Err(Refusal::of(not_found(&sender), "")),
        };
        Ok(forward(sender, routed, (contacts, aor), breadth))
    }

    /// Who has sent a request, or what becomes of the request instead.
    fn sender_of<'m>(
        &mut self,
        asked: &ReceivedRequest<'_, 'm>,
        is_trunk: bool,
        is_open: bool,
        policy: &mut dyn Policy,
    ) -> Result<Result<Sender, Decision<'m>>, Refusal> {
        if let Some(sender) = asked.sender.clone() {
            if let Sender::User(user) = &sender {
                self.caller.clear();
                self.caller.extend_from_slice(user);
            }
            return Ok(Ok(sender));
        }
        if is_trunk {
            return Ok(Ok(Sender::Trunk));
        }
        if is_open && !identity::is_from_local(asked.message, policy) {
            return Ok(Ok(Sender::Anyone));
        }
        Ok(self.authenticate(asked, policy)?.map(Sender::User))
    }

    /// The name of the user, or what becomes of the request instead.
    fn authenticate<'m>(
        &mut self,
        asked: &ReceivedRequest<'_, 'm>,
        policy: &mut dyn Policy,
    ) -> Result<Result<Box<[u8]>, Decision<'m>>, Refusal> {
        let from = &asked.from.flow;
        // RFC 3261 §22.1: neither is challenged.
        if matches!(
            asked.message.method(),
            Some(Method::Ack | Method::Cancel) | None
        ) {
            return Err(Refusal::of(403, ""));
        }
        let user: Box<[u8]> = match policy.authenticate(asked.now, asked.message, from) {
            Authenticated::User(user) => user.into(),
            Authenticated::Challenge(lines) => {
                self.lines.clear();
                self.lines.extend_from_slice(lines);
                return Ok(Err(Decision::Challenge));
            }
            Authenticated::Bad(reason) => return Err(Refusal::of(400, reason)),
            Authenticated::Slowed => {
                return Err(Refusal {
                    lines: b"Retry-After: 20\r\n",
                    ..Refusal::of(503, "")
                });
            }
            Authenticated::Unavailable => return Err(UNAVAILABLE),
            Authenticated::Pending => return Ok(Err(Decision::Pending(None))),
        };
        self.caller.clear();
        self.caller.extend_from_slice(&user);
        identity::check_from(asked.message, &user, policy)?;
        identity::check_contact(asked.message, &user, policy)?;
        Ok(Ok(user))
    }

    /// The bindings of an address as targets, and the phones that need a push notification first. Both may be empty.
    /// `None` while a look-up is pending.
    pub(super) fn bindings_of(
        &self,
        now: Now,
        aor: &Aor,
        wanted: &BindingFilter<'_>,
        policy: &mut dyn Policy,
    ) -> Result<Option<Contacts>, Refusal> {
        let bindings = match policy.find(now, aor) {
            LookedUp::Known(bindings) => bindings,
            LookedUp::Unknown if wanted.is_known => return Err(Refusal::of(404, "")),
            // A sender that is not authenticated must not learn which addresses exist, so all get one code.
            LookedUp::Unknown => return Err(Refusal::of(480, "")),
            LookedUp::Pending => return Ok(None),
        };
        let chosen: Cow<'_, [Binding]> = match wanted.asked {
            AskedPhones::All => bindings.into(),
            some => {
                let phone = |binding: &Binding| self.phone_names.of(binding);
                let bindings = bindings.iter().cloned();
                bindings.filter(|it| some.has(phone(it))).collect()
            }
        };
        let bindings = &*chosen;
        let uri = Uri::parse(wanted.uri);
        let sip = match &uri {
            Ok(Uri::Sip(sip)) => Some(sip),
            _ => None,
        };
        let selection = Selection {
            instance: sip.and_then(|sip| sip.params.value(b"gr")).map(Box::from),
            number: wanted.number,
            only_sips: sip.is_some_and(|sip| sip.is_sips),
        };
        let bounds = (self.runs, wanted.reach, self.config.max_branches);
        let needs_push = |binding: &Binding| {
            let config = wanted.push.as_ref();
            config.is_some_and(|config| push::needs_push((now.mono, self.runs), binding, config))
        };
        let mut contacts = match (bindings.iter().any(needs_push), &wanted.push) {
            (true, Some(config)) => {
                let all = bindings.iter().cloned();
                let (asleep, awake): (Vec<_>, Vec<_>) = all.partition(needs_push);
                let targets = selection.targets(now.mono, &awake, bounds);
                let parts = (&asleep[..], &awake[..]);
                Contacts {
                    targets,
                    asleep: selection.targets_to_push(now.mono, parts, &config.providers),
                    selection,
                }
            }
            _ => selection.targets(now.mono, bindings, bounds).into(),
        };
        if let Some(asked) = wanted.elsewhere {
            match policy.nodes(now, aor) {
                AtNodes::Pending => return Ok(None),
                // What is registered here goes on.
                AtNodes::Unavailable => {}
                AtNodes::Known(nodes) => {
                    self.add_nodes(&mut contacts.targets, asked.from, wanted.uri, nodes);
                }
            }
        }
        if contacts.is_empty() && wanted.is_known {
            match policy.exists(now, aor, wanted.flow) {
                IsUser::No => return Err(Refusal::of(404, "")),
                IsUser::Pending => return Ok(None),
                // If the database is down, the user cannot be reached: that is 480 as well.
                IsUser::Yes | IsUser::Unavailable => {}
            }
        }
        Ok(Some(contacts))
    }

    /// Incoming Max-Breadth (RFC 5393 §5.3.3): what the request says, at most what is configured.
    pub(super) fn breadth_of(&self, message: &Message<'_>) -> Result<u32, Refusal> {
        let mut headers = message.headers(HeaderKind::MaxBreadth);
        let most = self.config.max_breadth;
        let Some(first) = headers.next() else {
            return Ok(most);
        };
        let number = std::str::from_utf8(first.value).ok();
        let number = number.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        // A number above 32 bits is above what is configured, too.
        let number = number.map(|text| text.parse().unwrap_or(u32::MAX));
        match (number, headers.next()) {
            (Some(1..), Some(_)) => Err(Refusal::of(400, "Repeated Max-Breadth")),
            (Some(number @ 1..), None) => Ok(number.min(most)),
            _ => Err(Refusal::of(400, "Malformed Max-Breadth")),
        }
    }
}

/// What the URI of a request names that has these Route values left.
pub(super) fn named_by(called: &[u8], routed: &Routed<'_>, policy: &mut dyn Policy) -> Named {
    match routed.routes.is_empty() {
        true => named(called, policy),
        // The next element on the route knows what the Request-URI means.
        false => Named::Foreign,
    }
}

pub(super) fn forward(
    sender: Sender,
    routed: Routed<'_>,
    (contacts, aor): (Contacts, Option<Aor>),
    breadth: u32,
) -> Decision<'_> {
    Decision::Forward(Box::new(Plan {
        sender,
        routed,
        targets: contacts.targets,
        asleep: contacts.asleep,
        selection: contacts.selection,
        aor,
        breadth,
    }))
}

/// Who may send to the domain of a Request-URI, if it is one of a domain here.
fn inbound_of(named: &Named, uri: &[u8], policy: &dyn Policy) -> Option<Inbound> {
    match named {
        Named::Address { inbound, .. } => Some(*inbound),
        Named::Nobody(inbound) => *inbound,
        Named::Elsewhere(_) => match Uri::parse(uri) {
            Ok(Uri::Sip(uri)) => policy.domain(uri.host),
            _ => None,
        },
        Named::Server | Named::Foreign | Named::Nothing => None,
    }
}

/// Decides requests whose result does not depend on the sender; `None` for other requests.
///
/// # Errors
/// 404 for a user at an address of this server that is not the name of a domain in the policy.
fn decide_without_sender<'m>(
    named: &Named,
    routes: &routes::Decision,
) -> Result<Option<Decision<'m>>, Refusal> {
    match (named, routes) {
        (_, routes::Decision::Trunks(_) | routes::Decision::Reject(..)) => Ok(None),
        (_, routes::Decision::Unavailable) => Ok(None),
        (Named::Server, _) => Ok(Some(Decision::Own)),
        (Named::Elsewhere(worker), _) => Ok(Some(Decision::Elsewhere(*worker))),
        (Named::Nobody(None), _) => Err(Refusal::of(404, "")),
        _ => Ok(None),
    }
}

/// Whether routes apply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MayRoute {
    Yes,
    No,
    /// The lookup of the user is not complete.
    Pending,
    /// The lookup of the user has failed.
    Unavailable,
}

/// A database is down: the sender may retry.
const UNAVAILABLE: Refusal = Refusal {
    lines: b"Retry-After: 5\r\n",
    ..Refusal::of(503, "")
};

/// The refusal if the lookup of the user has failed. A sender that is not known gets the code of all addresses that it
/// does not reach.
const fn unavailable(sender: &Sender) -> Refusal {
    match sender {
        Sender::Anyone => Refusal::of(480, ""),
        _ => UNAVAILABLE,
    }
}

/// Whether routes apply to a request. They do not if it is for the server itself or for a user here, or if Route values
/// are left.
fn may_route(
    (named, called): (&Named, &[u8]),
    asked: &ReceivedRequest<'_, '_>,
    routed: &Routed<'_>,
    policy: &mut dyn Policy,
) -> MayRoute {
    if !routed.routes.is_empty() || !policy.has_routes() {
        return MayRoute::No;
    }
    match (named, Uri::parse(called)) {
        (Named::Server, _) => MayRoute::No,
        (Named::Address { .. } | Named::Elsewhere(_), Ok(Uri::Sip(uri))) => {
            match policy.is_user(asked.now, &uri, &asked.from.flow) {
                IsUser::Yes => MayRoute::No,
                IsUser::No => MayRoute::Yes,
                IsUser::Pending => MayRoute::Pending,
                IsUser::Unavailable => MayRoute::Unavailable,
            }
        }
        _ => MayRoute::Yes,
    }
}

/// What the routes say of a request. Its sender is whom From names, who must prove it before anything is forwarded.
fn route(
    asked: &ReceivedRequest<'_, '_>,
    uri: &[u8],
    is_open: bool,
    policy: &mut dyn Policy,
) -> routes::Decision {
    let flow = &asked.from.flow;
    let from = identity::from_aor(asked.message, policy);
    let sender = match (policy.trunk_of(flow), &from) {
        (Some(trunk), _) => CallSender::Trunk(trunk),
        (None, Some(aor)) => CallSender::User(aor.user().unwrap_or_default(), aor.domain()),
        (None, None) if is_open => CallSender::Anyone,
        // An anonymous user, who must authenticate.
        (None, None) => CallSender::User(b"", b""),
    };
    let call = Call {
        message: asked.message,
        uri,
        sender,
        source: flow.remote,
        transport: flow.transport,
        draw: policy.draw(),
    };
    policy.route(asked.now, &call)
}

/// Which bindings are looked for.
pub(super) struct BindingFilter<'a> {
    pub(super) uri: &'a [u8],
    pub(super) number: Option<u64>,
    pub(super) reach: AllowedDestination,
    /// The sender is known.
    pub(super) is_known: bool,
    /// The flow by which the request came.
    pub(super) flow: &'a Flow,
    /// How phones are woken. `None` if this request wakes none.
    pub(super) push: Option<push::PushConfig>,
    /// The request, if it may go to phones at other nodes, too.
    pub(super) elsewhere: Option<&'a ReceivedRequest<'a, 'a>>,
    /// Whose bindings are asked for.
    pub(super) asked: &'a AskedPhones,
}

/// The code for an address that is none.
fn not_found(sender: &Sender) -> u16 {
    match sender {
        Sender::Anyone => 480,
        _ => 404,
    }
}

fn named(uri: &[u8], policy: &mut dyn Policy) -> Named {
    let Ok(Uri::Sip(uri)) = Uri::parse(uri) else {
        return Named::Nothing;
    };
    // RFC 3261 §16.5: if there is a `maddr`, it is the only target. `Reader::read` has removed a `maddr` that names
    // this server.
    if uri.maddr().is_some() {
        return Named::Foreign;
    }
    let is_own = policy.is_own(uri.host, uri.port);
    let inbound = policy.domain(uri.host);
    let inbound = inbound.filter(|_| uri.port.is_none() || is_own);
    match (inbound, is_own, uri.user) {
        (None, false, _) => Named::Foreign,
        (_, _, None) => Named::Server,
        (None, true, Some(_)) => Named::Nobody(None),
        (Some(inbound), _, Some(_)) => named_in_domain(&uri, inbound, policy),
    }
}

fn named_in_domain(uri: &SipUri<'_>, inbound: Inbound, policy: &mut dyn Policy) -> Named {
    match policy.place(uri) {
        BindingsLocation::Here(aor, number) => Named::Address {
            aor,
            number,
            inbound,
        },
        BindingsLocation::Elsewhere(worker) => Named::Elsewhere(worker),
        BindingsLocation::Nowhere => Named::Nobody(Some(inbound)),
    }
}
