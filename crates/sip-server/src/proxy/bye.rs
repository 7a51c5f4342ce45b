//! The sender and the destination of a BYE. They show whether the called party takes part, and so whether the BYE ends
//! the call ([`crate::calls::Bye`]).

use std::net::{IpAddr, SocketAddr};

use sip::dispatch::Failure;
use sip::flow::Flow;
use sip::header::NameAddr;
use sip::uri::Uri;
use sip::{Message, Method, Now, Spans};

use super::context::{Base, Context, ContextKey};
use super::policy::{BindingsLocation, LookedUp, Policy};
use super::request::Plan;
use super::route::is_same;
use super::target::Target;
use super::token::{Signed, Token};
use super::{Proxy, Stack};
use crate::AorKey;
use crate::calls::{Bye, ElementHashes, Sides, tag_hash};
use crate::flow::FlowId;
use crate::location::Binding;

/// Whether this final response to a BYE ends the dialog: a 2xx (RFC 3261 §15.1.2), a 408 or a 481 (§12.2.1.2). Others,
/// such as 420 or 500, reject the BYE.
const fn ends_dialog(code: u16) -> bool {
    matches!(code, 200..=299 | 408 | 481)
}

impl Proxy {
    /// What is known of the element at the other end of a flow.
    fn seen_at(&self, policy: &dyn Policy, flow: &Flow) -> ElementHashes {
        let seen = ElementHashes::at(self.calls_key, flow.remote);
        seen.of_trunk(self.calls_key, policy.source_name(flow))
    }

    /// A BYE within a dialog that counts: who may have sent it.
    pub(super) fn new_bye(
        &self,
        now: Now,
        (message, flow): (&Message<'_>, &Flow),
        plan: &Plan<'_>,
        policy: &mut dyn Policy,
    ) -> Option<Box<Bye>> {
        if message.method() != Some(Method::Bye) {
            return None;
        }
        let tag = message.from().ok().and_then(|from| from.tag);
        let mut from = self.seen_at(&*policy, flow);
        // The sender may be a phone that has another flow than the one of its token.
        let first = plan.routed.first_token();
        if let Some(phone) = first.and_then(|it| it.phone) {
            let has_moved = match policy.moved_phone(phone.aor, phone.since(now.unix_s)) {
                BindingsLocation::Here(aor, _) => match policy.find(now, &aor) {
                    LookedUp::Known(bindings) => bindings
                        .iter()
                        .filter_map(Binding::flow)
                        .any(|at| is_same(&at.flow, flow)),
                    LookedUp::Unknown | LookedUp::Pending => false,
                },
                BindingsLocation::Elsewhere(_) => true,
                BindingsLocation::Nowhere => false,
            };
            from = from.of_phone(self.calls_key, has_moved.then_some(phone.aor));
        }
        Some(Box::new(Bye {
            tag: tag_hash(self.calls_key, tag.unwrap_or_default()),
            from,
            ..Bye::default()
        }))
    }

    /// A branch of a BYE was sent. Stores its destination, as far as it is known before a response arrives.
    pub(super) fn note_bye_sent(
        &mut self,
        stack: &Stack<'_>,
        key: ContextKey,
        base: &Base,
        target: &Target,
    ) {
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        if context.admitted.bye.is_none() {
            return;
        }
        let aor = context.aor.as_deref().filter(|_| target.is_phone());
        let aor = aor.and_then(|aor| stack.policy.phone_key(aor));
        let flow = match target.flow {
            Some(flow) => Some(flow.flow),
            // The connection of the sender is not that of the receiver.
            None => address_of(&base.bytes, target).map(|remote| Flow {
                remote,
                connection: None,
                ..base.from.flow
            }),
        };
        let seen = flow.map(|flow| {
            let seen = self.seen_at(&*stack.policy, &flow);
            seen.of_phone(self.calls_key, aor)
        });
        let context = self.contexts.get(key);
        if let Some(bye) = context.and_then(|context| context.admitted.bye.as_mut()) {
            bye.sent_to = seen;
            bye.is_by_flow = target.flow.is_some();
        }
    }

    /// A branch of a BYE has this final response, which arrived by this flow.
    pub(super) fn note_bye_response(
        &mut self,
        stack: &Stack<'_>,
        key: ContextKey,
        (code, flow): (u16, &Flow),
    ) {
        if !ends_dialog(code) || !self.is_bye(key) {
            return;
        }
        let responded = self.seen_at(&*stack.policy, flow);
        self.note_bye_reached(key, code / 100 == 2, |bye| match bye.is_by_flow {
            true => bye.sent_to.unwrap_or(responded),
            false => responded,
        });
    }

    /// A branch of a BYE has no response.
    pub(super) fn note_bye_failure(&mut self, key: ContextKey, failure: &Failure) {
        if matches!(failure, Failure::TimedOut | Failure::TransportFailed) && self.is_bye(key) {
            self.note_bye_reached(key, false, |bye| bye.sent_to.unwrap_or_default());
            let context = self.contexts.get(key);
            if let Some(bye) = context.and_then(|context| context.admitted.bye.as_mut()) {
                bye.has_no_response = true;
            }
        }
    }

    fn is_bye(&mut self, key: ContextKey) -> bool {
        let context = self.contexts.get(key);
        context.is_some_and(|context| context.admitted.bye.is_some())
    }

    fn note_bye_reached(
        &mut self,
        key: ContextKey,
        is_accepted: bool,
        reached: impl FnOnce(&Bye) -> ElementHashes,
    ) {
        let context = self.contexts.get(key);
        if let Some(bye) = context.and_then(|context| context.admitted.bye.as_mut()) {
            bye.reached = Some(reached(bye));
            bye.is_accepted = is_accepted;
            bye.has_no_response = false;
        }
    }

    /// The sides of the dialog that this 2xx to an INVITE begins. The 2xx arrived by this flow.
    pub(super) fn sides_of(
        &mut self,
        stack: &Stack<'_>,
        (key, branch): (ContextKey, usize),
        (message, flow): (&Message<'_>, &Flow),
    ) -> Sides {
        let tag = message.from().ok().and_then(|from| from.tag);
        let tag = tag_hash(self.calls_key, tag.unwrap_or_default());
        let mut called = self.seen_at(&*stack.policy, flow);
        let calls_key = self.calls_key;
        let next_hop = self.next_hop_behind(message);
        let next_hop = next_hop.map(|remote| ElementHashes::at(calls_key, remote));
        let to_server = |caller: &ElementHashes, called: &ElementHashes| {
            Sides::to_server(tag, caller, called).with_next_hop(next_hop.as_ref())
        };
        let Some(context) = self.contexts.get(key) else {
            return Sides::default();
        };
        let caller = context.base.as_ref().map(|base| base.from.flow.remote);
        let caller = caller.map_or_else(ElementHashes::default, |remote| {
            ElementHashes::at(calls_key, remote)
        });
        let forwarded = context
            .branches
            .get(branch)
            .and_then(|it| it.forwarded.as_ref());
        let other_user = forwarded.and_then(|it| it.user);
        if let Some(phone) = other_user.and_then(|user| self.phone_behind(message, user)) {
            return match phone {
                (phone, true) => Sides::to_phone(tag, &phone),
                (phone, false) => to_server(&caller, &phone),
            };
        }
        let Some(context) = self.contexts.get(key) else {
            return Sides::default();
        };
        let Context { branches, aor, .. } = context;
        let Some(branch) = branches.get(branch) else {
            return to_server(&caller, &called);
        };
        if let Some(hop) = &branch.hop {
            called = called.or_trunk(calls_key, stack.policy.trunk_name(hop));
        }
        let aor = aor.as_deref().filter(|_| branch.is_phone);
        let aor = aor.and_then(|aor| stack.policy.phone_key(aor));
        called = called.of_phone(calls_key, aor);
        match branch.binding_flow.as_deref().filter(|_| branch.is_phone) {
            Some(at) => {
                let called = ElementHashes::at(calls_key, at.flow.remote).of_phone(calls_key, aor);
                Sides::to_phone(tag, &called)
            }
            None => to_server(&caller, &called),
        }
    }

    /// The address of the next hop of a later request to the sender of this 2xx: the Record-Route value that follows
    /// those of this server on the way there, or else the Contact.
    fn next_hop_behind(&self, response: &Message<'_>) -> Option<SocketAddr> {
        let call_id = response.call_id().ok()?;
        let routes = response.record_routes().filter_map(Result::ok);
        let is_foreign = |route: &NameAddr<'_>| match route.parse_uri() {
            Ok(Uri::Sip(uri)) => uri
                .user
                .is_none_or(|user| self.tokens.read(user, call_id).is_none()),
            _ => true,
        };
        match routes.take_while(is_foreign).last() {
            Some(route) => address_in(route.uri),
            None => address_in(response.contact().ok().flatten()?.uri),
        }
    }

    /// The phone of `user` that has sent this 2xx, and whether requests reach the phone by its flow. The 2xx has passed
    /// this server twice. A Record-Route value of the second pass names the phone. Later requests of the dialog pass
    /// this server once.
    fn phone_behind(&self, response: &Message<'_>, user: AorKey) -> Option<(ElementHashes, bool)> {
        let call_id = response.call_id().ok()?;
        let routes = response.record_routes().filter_map(Result::ok);
        let mut signed = routes.filter_map(|route| match route.parse_uri().ok()? {
            Uri::Sip(uri) => self.tokens.read(uri.user?, call_id),
            _ => None,
        });
        let is_its = |signed: &Signed| signed.phone.is_some_and(|phone| phone.aor == user);
        let signed = signed.find(is_its)?;
        let seen = |id: FlowId| {
            let phone = ElementHashes::at(self.calls_key, id.flow.remote);
            phone.of_phone(self.calls_key, Some(user))
        };
        match signed.token {
            Token::Flow(id) => Some((seen(id), true)),
            Token::Near(id) => Some((seen(id), false)),
            _ => None,
        }
    }
}

/// The address that a branch of this request goes to, if its next URI has one.
fn address_of(request: &[u8], target: &Target) -> Option<SocketAddr> {
    if let Some(next_hop) = &target.next_hop {
        return address_in(next_hop);
    }
    if let Some(first) = NameAddr::list(&target.path).first() {
        return address_in(first.uri);
    }
    let mut spans = Box::<Spans>::default();
    let message = Message::parse(request, &mut spans).ok()?;
    match message.routes().next() {
        Some(route) => address_in(route.ok()?.uri),
        None => address_in(&target.uri),
    }
}

/// The address in a URI that has no host name.
fn address_in(uri: &[u8]) -> Option<SocketAddr> {
    match Uri::parse(uri) {
        Ok(Uri::Sip(sip)) => {
            let ip: Option<IpAddr> = sip.maddr().unwrap_or(sip.host).ip();
            Some(SocketAddr::new(ip?, sip.port.unwrap_or(5060)))
        }
        _ => None,
    }
}
