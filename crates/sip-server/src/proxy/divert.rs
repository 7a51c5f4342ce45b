//! What follows when a user here does not take a call: the call goes on to the URI that the configuration has for this.
//!
//! A call is forwarded once. The proxy looks for a route for the URI, as for a call of the user, so the URI can lead to
//! a trunk. Otherwise the URI names another host, or a second user of this server. Another worker may have the bindings
//! of the second user. So the server sends the request to itself, with the token of a node of a cluster
//! ([`super::nodes`]). The second pass looks for bindings only: it applies no routes, no limits and no further forward.

use std::time::Duration;

use sip::dispatch::{AllowedDestination, SendFrom};
use sip::uri::{SipUri, Uri, starts_with_sips};
use sip::{Message, Method, Mono, Now};

use super::best::Best;
use super::context::{Context, ContextKey};
use super::identity::write_aor;
use super::nodes::AskedPhones;
use super::policy::{LookedUp, Policy};
use super::request::{BindingFilter, ReceivedRequest};
use super::target::{Forwarded, Target};
use super::uris::request_uri;
use super::{Proxy, Refusal, Stack, alias};
use crate::Aor;
use crate::flow::FlowId;
use crate::routes::{Call, CallSender, Decision, DivertReason};

/// Why a context has no better response than its best one; `None` if the user has decided.
fn missed(context: &Context) -> Option<DivertReason> {
    match context.best.code {
        _ if context.is_unanswered => Some(DivertReason::NoAnswer),
        // No phone has responded.
        0 => Some(DivertReason::Unreachable),
        408 | 480 | 500 | 503 if context.best.is_own => Some(DivertReason::Unreachable),
        486 => Some(DivertReason::Busy),
        408 | 480 => Some(DivertReason::NoAnswer),
        500 | 502..=504 => Some(DivertReason::Unreachable),
        _ => None,
    }
}

/// The targets to which a call for this address goes on. Empty if it does not.
pub(super) fn targets(
    now: Now,
    policy: &mut dyn Policy,
    (message, from): (&Message<'_>, &FlowId),
    aor: &Aor,
    missed: DivertReason,
) -> Vec<Target> {
    let Some(uri) = policy.forward(aor, missed).map(<[u8]>::to_vec) else {
        return Vec::new();
    };
    let routes = match policy.has_routes() {
        true => {
            let call = Call {
                message,
                uri: &uri,
                sender: CallSender::User(aor.user().unwrap_or_default(), aor.domain()),
                source: from.flow.remote,
                transport: from.flow.transport,
                draw: policy.draw(),
            };
            policy.route(now, &call)
        }
        false => Decision::NoRoute,
    };
    let mut targets: Vec<Target> = match routes {
        Decision::Trunks(steps) => steps.into_iter().map(Target::step).collect(),
        Decision::Local(uri) => user_here(&uri, (from, aor), policy).into_iter().collect(),
        Decision::NoRoute if is_elsewhere(&uri, policy) => {
            let mut target = Target::uri(&request_uri(&uri), AllowedDestination::Anywhere);
            target.forwarded = Some(Box::new(Forwarded::elsewhere(&uri)));
            vec![target]
        }
        Decision::NoRoute => user_here(&uri, (from, aor), policy).into_iter().collect(),
        _ => Vec::new(),
    };
    for target in &mut targets {
        target.diversion = diversion(aor, missed);
    }
    targets
}

/// The target for a URI that names a user of this server, but not `missed`, the user who has not answered.
fn user_here(
    uri: &[u8],
    (from, missed): (&FlowId, &Aor),
    policy: &mut dyn Policy,
) -> Option<Target> {
    let resolved = alias::resolve(uri, policy);
    let uri = resolved.as_deref().unwrap_or(uri);
    let Ok(Uri::Sip(sip)) = Uri::parse(uri) else {
        return None;
    };
    let named = policy.aor(&sip)?;
    // RFC 5630 §3.1.2: SIPS requires TLS on each hop, and the server sends to itself without it.
    if sip.is_sips || named.as_bytes() == missed.as_bytes() {
        return None;
    }
    let hop = policy.own_hop()?;
    let listener = policy.listener_at(hop.address);
    let mut target = Target::node(&request_uri(uri), &hop, &AskedPhones::All, from);
    target.forwarded = Some(Box::new(Forwarded {
        name: named.as_bytes().into(),
        user: policy.phone_key(&named),
    }));
    target.from = listener.map(|listener| SendFrom {
        listener,
        local: None,
    });
    Some(target)
}

/// The targets of a call for a user without a registered phone.
///
/// # Errors
/// 480 if there are none. It has a Warning if the caller is known, and a `sips:` request has found `sip:` contacts.
pub(super) fn not_registered(
    asked: &ReceivedRequest<'_, '_>,
    aor: &Aor,
    wanted: &BindingFilter<'_>,
    policy: &mut dyn Policy,
) -> Result<Vec<Target>, Refusal> {
    let is_gruu =
        matches!(Uri::parse(wanted.uri), Ok(Uri::Sip(uri)) if uri.params.get(b"gr").is_some());
    let is_call = asked.message.method() == Some(Method::Invite) && !is_gruu;
    let call = (asked.message, asked.from);
    let targets = match is_call {
        true => targets(asked.now, policy, call, aor, DivertReason::NotRegistered),
        false => Vec::new(),
    };
    match targets.is_empty() {
        // Others must not learn which addresses have phones.
        true if wanted.is_known && lacks_sips(asked.now, aor, wanted.uri, policy) => Err(NO_SIPS),
        true => Err(Refusal::of(480, "")),
        false => Ok(targets),
    }
}

/// RFC 5630 §5.3: the request is for a SIPS URI, and the phones of the user have no SIPS contact.
const NO_SIPS: Refusal = Refusal {
    lines: b"Warning: 380 hairpin \"SIPS Not Allowed\"\r\n",
    ..Refusal::of(480, "")
};

/// Whether phones are registered, all without a SIPS contact, and the request is for a SIPS URI.
fn lacks_sips(now: Now, aor: &Aor, called: &[u8], policy: &mut dyn Policy) -> bool {
    let bindings = match policy.find(now, aor) {
        LookedUp::Known(bindings) if starts_with_sips(called) => bindings,
        _ => return false,
    };
    let mut alive = bindings.iter().filter(|it| !it.is_expired(now.mono));
    alive.clone().next().is_some() && alive.all(|it| !starts_with_sips(it.uri()))
}

/// RFC 5806 §4: a gateway or a voicemail server sees whom the caller has called, and why the call goes on.
fn diversion(aor: &Aor, missed: DivertReason) -> Box<[u8]> {
    let mut line = b"Diversion: <".to_vec();
    write_aor(&mut line, aor, false);
    let end = format!(">;reason={};counter=1\r\n", missed.reason());
    line.extend_from_slice(end.as_bytes());
    line.into()
}

fn is_elsewhere(uri: &[u8], policy: &dyn Policy) -> bool {
    let is_here =
        |uri: &SipUri<'_>| policy.domain(uri.host).is_some() || policy.is_own(uri.host, uri.port);
    matches!(Uri::parse(uri), Ok(Uri::Sip(uri)) if !is_here(&uri))
}

impl Proxy {
    /// How long the phones of the last group ring before the call goes on; `None` if it does not go on then.
    pub(super) fn forward_time(&mut self, stack: &Stack<'_>, key: ContextKey) -> Option<Duration> {
        let context = self.contexts.get(key)?;
        let aor = context.aor.as_ref().filter(|_| context.may_divert)?;
        stack.policy.forward_after(aor)
    }

    /// The phones have rung for too long.
    pub(super) fn ring_time_expired(&mut self, key: ContextKey) {
        if let Some(context) = self.contexts.get(key) {
            context.is_unanswered = context.may_divert && context.targets.is_empty();
        }
    }

    /// Nobody has taken the call, and no target is left: adds the targets to which it goes on. Returns whether there
    /// are any.
    pub(super) fn divert(&mut self, now: Mono, stack: &mut Stack<'_>, key: ContextKey) -> bool {
        let Some(context) = self.contexts.get(key) else {
            return false;
        };
        if !std::mem::take(&mut context.may_divert) || context.is_ending || context.is_answered {
            return false;
        }
        let (Some(missed), Some(base), Some(aor)) = (missed(context), &context.base, &context.aor)
        else {
            return false;
        };
        let Some(mut spans) = self.spans.take() else {
            return false;
        };
        let targets = match Message::parse(&base.bytes, &mut spans) {
            Ok(message) => {
                let now = Now {
                    mono: now,
                    ..Now::default()
                };
                targets(now, stack.policy, (&message, &base.from), aor, missed)
            }
            Err(_) => Vec::new(),
        };
        self.spans = Some(spans);
        // The 487s that followed this server's CANCEL are not for the caller, who has not cancelled.
        if std::mem::take(&mut context.is_unanswered) {
            context.best = Best::default();
            context.best.add_own(480);
        }
        context.targets.extend(targets);
        !context.targets.is_empty()
    }
}
