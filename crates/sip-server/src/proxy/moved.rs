//! Phones that have another flow than at the beginning of a dialog: their network has changed, or their connection
//! broke, and they have registered again.
//!
//! ```text
//! INVITE  Record-Route: flow 1, phone          later: phone ── REGISTER by flow 2 ──▶ registrar
//! BYE     Route: flow 1, phone  ──▶ bindings of the address of record of the phone ──▶ flow 2
//! ```
//!
//! RFC 5626 §5.3.1 has a 430 for a flow that has failed. This server is the registrar, too, so it knows the flow that
//! has replaced it. Only bindings of the address of record in the token count. These are bindings of the same phone:
//!
//! 1. They have its instance (RFC 5626 §4.1), or the Call-ID of its REGISTER (RFC 3261 §10.2: one for all requests of
//!    a user agent to a registrar).
//! 2. Without such a binding, if none has the flow of the token either: their Contact is the Request-URI. The phone has
//!    sent this Contact in the dialog.
//! 3. Without a binding of 1 and 2: the only one whose Contact has the user of the Request-URI. The phone must have
//!    refreshed it since the dialog began. If the token has a UDP flow, this binding must not have an instance.

use std::cmp::Reverse;

use sip::{HashKey, Message, Now, Uri};

use super::policy::{BindingsLocation, LookedUp, Policy};
use super::route::{Routed, is_same};
use super::sender::Sender;
use super::target::Target;
use super::token::{Phone, RouteTokens};
use super::uris::are_equal;
use super::{Proxy, identity};
use crate::flow::FlowId;
use crate::location::Binding;
use crate::registrar::{instance, is_same_instance};
use crate::{Aor, AorKey};

/// Bytes of an instance or a Call-ID that identify a phone.
const MAX_ID_BYTES: usize = 255;

/// Where a request for a phone goes.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack for one request"
)]
pub(super) enum MovedTarget {
    /// Where its Route leads: no other flow of the phone is known.
    No,
    /// To a binding of this address of record.
    Here(Aor, Target),
    /// Another worker has the bindings.
    Elsewhere(u16),
    /// The lookup is not complete.
    Pending,
}

/// A phone that may be at the end of a flow, for tokens: its address of record, and its hash or 0.
pub(super) type KnownPhone = (AorKey, u64);

impl Proxy {
    /// Where a request within a dialog goes, if the phone has another flow than the one in the token.
    pub(super) fn moved(
        &self,
        now: Now,
        policy: &mut dyn Policy,
        (message, routed): (&Message<'_>, &Routed<'_>),
    ) -> MovedTarget {
        let Some((phone, flow)) = routed.phone else {
            return MovedTarget::No;
        };
        let since = phone.since(now.unix_s);
        let aor = match policy.moved_phone(phone.aor, since) {
            BindingsLocation::Here(aor, _) => aor,
            BindingsLocation::Elsewhere(worker) => return MovedTarget::Elsewhere(worker),
            BindingsLocation::Nowhere => return MovedTarget::No,
        };
        let bindings = match policy.find(now, &aor) {
            LookedUp::Known(bindings) => bindings,
            LookedUp::Pending => return MovedTarget::Pending,
            LookedUp::Unknown => return MovedTarget::No,
        };
        let alive = bindings.iter().filter(|it| !it.is_expired(now.mono));
        // A binding without a flow is reached by a Path, or its phone is asleep.
        let alive = alive.filter(|it| it.flow().is_some());
        let wanted = WantedPhone {
            tokens: &self.tokens,
            call_id: message.call_id().unwrap_or_default(),
            uri: &routed.uri,
            phone,
            flow,
            alive: alive.collect(),
        };
        let found = wanted.bindings().into_iter();
        let mut found = found.filter_map(|it| Target::moved(&routed.uri, it, self.runs));
        if let Some(mut first) = found.next() {
            first.others = found.collect();
            // The flow of the token is the last one to try, if it shows a failure or has a binding.
            if flow.flow.connection.is_some() || wanted.at_flow().is_some() {
                first.others.push(Target::by_flow(&routed.uri, flow));
            }
            return MovedTarget::Here(aor, first);
        }
        let only = wanted.only_one(now);
        let only = only.and_then(|it| Target::moved(&routed.uri, it, self.runs));
        match (only, flow.flow.connection) {
            (None, _) => MovedTarget::No,
            (Some(target), None) => MovedTarget::Here(aor, target),
            // If the connection still exists, the request uses it.
            (Some(target), Some(_)) => {
                let mut first = Target::by_flow(&routed.uri, flow);
                first.others.push(target);
                MovedTarget::Here(aor, first)
            }
        }
    }
}

/// The phone of a token, and the bindings of its address of record.
struct WantedPhone<'w> {
    tokens: &'w RouteTokens,
    call_id: &'w [u8],
    /// The Request-URI.
    uri: &'w [u8],
    phone: Phone,
    /// The flow of the token.
    flow: FlowId,
    /// Bindings with flows.
    alive: Vec<&'w Binding>,
}

impl<'w> WantedPhone<'w> {
    /// The binding with the flow of the token.
    fn at_flow(&self) -> Option<&'w Binding> {
        let mut all = self.alive.iter();
        let is_it = |at: FlowId| is_same(&at.flow, &self.flow.flow);
        all.find(|it| it.flow().is_some_and(is_it)).copied()
    }

    /// The bindings of the phone that are better than the flow of the token, the one that was refreshed last first.
    fn bindings(&self) -> Vec<&'w Binding> {
        let mut found: Vec<&Binding> = match self.at_flow() {
            // RFC 5626 §7: the binding goes with its flow. If it is there, the flow is, too.
            Some(here) if here.reg_id() != 0 => Vec::new(),
            Some(here) => {
                let is_later = |it: &Binding| it.updated() > here.updated();
                let is_it = |it: &Binding| self.is_phone(it) || is_same_phone(it, here);
                self.all(|it| is_later(it) && is_it(it))
            }
            None => match self.all(|it| self.is_phone(it)) {
                known if known.is_empty() => self.with_uri(),
                known => known,
            },
        };
        found.sort_by_key(|binding| Reverse(binding.updated()));
        found
    }

    fn all(&self, is_meant: impl Fn(&Binding) -> bool) -> Vec<&'w Binding> {
        let all = self.alive.iter().copied();
        all.filter(|it| is_meant(it)).collect()
    }

    fn is_phone(&self, binding: &Binding) -> bool {
        let identity = self.phone.identity;
        identity != 0 && self.tokens.identity(hash_of(binding), self.call_id) == identity
    }

    /// Whether a binding may be one of this phone, although it does not say so.
    fn may_be_phone(&self, binding: &Binding) -> bool {
        self.phone.identity == 0 || binding.instance().is_empty()
    }

    /// The bindings with the Request-URI, if all are of one phone.
    fn with_uri(&self) -> Vec<&'w Binding> {
        let found = self.all(|it| self.may_be_phone(it) && are_equal(it.uri(), self.uri));
        let is_one = |it: &&Binding| is_same_phone(it, found[0]);
        match found.iter().all(is_one) {
            true => found,
            false => Vec::new(),
        }
    }

    /// The only binding with the user of the Request-URI, if it was refreshed since the dialog began, and none has the
    /// flow of the token.
    fn only_one(&self, now: Now) -> Option<&'w Binding> {
        let [only] = self.all(|it| has_user(it, self.uri))[..] else {
            return None;
        };
        let age = now.mono.since(only.updated()).as_secs();
        let is_new = now.unix_s.saturating_sub(age) >= self.phone.since(now.unix_s);
        // Datagrams to the old flow would show no error. So the binding must not name another phone.
        let is_likely = self.flow.flow.connection.is_some() || only.instance().is_empty();
        let is_it = is_new && is_likely && self.may_be_phone(only) && self.at_flow().is_none();
        is_it.then_some(only)
    }
}

fn is_same_phone(one: &Binding, other: &Binding) -> bool {
    match (one.instance(), other.instance()) {
        ([], []) => one.call_id() == other.call_id(),
        (one, other) => is_same_instance(one, other),
    }
}

/// Whether the Contact of a binding has the user of a URI.
fn has_user(binding: &Binding, uri: &[u8]) -> bool {
    match (Uri::parse(binding.uri()), Uri::parse(uri)) {
        (Ok(Uri::Sip(one)), Ok(Uri::Sip(other))) => one.user.is_some() && one.user == other.user,
        _ => false,
    }
}

/// The hash of what identifies the phone of a binding.
pub(super) fn hash_of(binding: &Binding) -> u64 {
    match binding.instance() {
        [] => hash(b'c', binding.call_id()),
        instance => hash(b'i', instance),
    }
}

/// The same for all runs; tokens have a keyed hash of it.
fn hash(kind: u8, text: &[u8]) -> u64 {
    let mut bytes = [0; 1 + MAX_ID_BYTES];
    let len = text.len().min(MAX_ID_BYTES);
    bytes[0] = kind;
    bytes[1..=len].copy_from_slice(&text[..len]);
    if kind == b'i' {
        // Most instances compare without regard to case.
        bytes[1..=len].make_ascii_lowercase();
    }
    HashKey::new(*b"phones of tokens")
        .mac(&bytes[..=len])
        .max(1)
}

/// The phone that has sent a request outside of dialogs, if a user has sent it without another proxy between.
pub(super) fn calling_phone(
    message: &Message<'_>,
    sender: &Sender,
    policy: &dyn Policy,
) -> Option<KnownPhone> {
    let Sender::User(user) = sender else {
        return None;
    };
    if message.vias().take(2).count() != 1 {
        return None;
    }
    let aor = identity::asserted(message, user, policy)?.0;
    let contact = message.contact().ok().flatten();
    let instance = contact.as_ref().map(instance);
    let hash = match instance.unwrap_or_default() {
        [] => 0,
        instance => hash(b'i', instance),
    };
    Some((policy.phone_key(&aor)?, hash))
}
