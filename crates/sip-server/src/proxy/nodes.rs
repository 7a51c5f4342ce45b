//! Phones at other nodes of a cluster.
//!
//! ```text
//! caller ── INVITE ──▶ node of the caller ── INVITE, Route: token ──▶ node of the phone ──▶ phone
//! ```
//!
//! The node of the caller knows the sender, and applies limits and routes. The token says so to the node of the phone,
//! which looks among its own bindings only: no request goes in circles. Flows stay with their node. Later requests of
//! the dialog pass through both nodes.

use std::net::SocketAddr;
use std::time::Duration;

use sip::dispatch::AllowedDestination;
use sip::flow::{Flow, Transport};
use sip::uri::starts_with_sips;
use sip::{Message, Mono};

use super::calls::note_attempt;
use super::context::{Base, Branch, ContextKey};
use super::policy::Policy;
use super::request::{
    BindingFilter, Decision, Named, ReceivedRequest, forward, named_by, push_for,
};
use super::route::Routed;
use super::sender::Sender;
use super::target::Target;
use super::token::{FromNode, MAX_USER, Token};
use super::uris::request_uri;
use super::{Proxy, Refusal, Stack};
use crate::calls::AttemptFailure;

/// Within this time, a node responds to an INVITE: with a 100 at least. A node that is gone stays in the directory for
/// some seconds, and without this limit, the caller would wait for Timer B (RFC 3261 §17.1.1.2).
const NODE_TIME: Duration = Duration::from_secs(3);

/// Another node, with bindings of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHop {
    /// Where it takes SIP: over UDP and TCP, or over TLS.
    pub address: SocketAddr,
    /// Requests go to it over TLS, with certificates that both nodes know.
    pub is_tls: bool,
    /// The greatest priority of its contacts, in thousandths.
    pub q: u16,
}

/// What [`super::Lookup::nodes`] knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AtNodes {
    /// These other nodes have bindings of the address.
    Known(Vec<NodeHop>),
    /// The lookup is not complete. The embedder calls [`super::Proxy::resume`] when it is.
    Pending,
    /// That cannot be found out now.
    Unavailable,
}

/// The parameter of the URI of a node that is reached by this flow.
pub(super) fn transport_of(flow: &Flow) -> &'static str {
    match flow.transport {
        Transport::Tls => ";transport=tls",
        // UDP, or TCP for a long request (RFC 3261 §18.1.1).
        _ => "",
    }
}

impl Proxy {
    /// The decision about a request of another node, for the phones that are registered here. The other node has
    /// authenticated the sender, applied limits and routes, and asks further nodes itself.
    pub(super) fn decide_for_node<'m>(
        &self,
        asked: &ReceivedRequest<'_, 'm>,
        policy: &mut dyn Policy,
        (routed, breadth): (Routed<'m>, u32),
    ) -> Result<Decision<'m>, Refusal> {
        let flow = &asked.from.flow;
        let (aor, number) = match named_by(&routed.uri, &routed, policy) {
            Named::Address { aor, number, .. } => (aor, number),
            Named::Elsewhere(worker) => return Ok(Decision::Elsewhere(worker)),
            _ => return Err(Refusal::of(404, "")),
        };
        let wanted = BindingFilter {
            uri: &routed.uri,
            number,
            reach: AllowedDestination::Near(flow.remote.ip()),
            // The other node has looked up whether there is such a user.
            is_known: false,
            flow,
            push: push_for(asked, policy),
            elsewhere: None,
        };
        match self.bindings_of(asked.now, &aor, &wanted, policy)? {
            Some(contacts) if contacts.is_empty() => Err(Refusal::of(480, "")),
            Some(contacts) => {
                let contacts = (contacts, Some(aor));
                Ok(forward(Sender::Node, routed, contacts, breadth))
            }
            None => Ok(Decision::Pending(Some(Sender::Node))),
        }
    }

    /// The targets of a request for this URI at other nodes.
    pub(super) fn node_targets(
        &self,
        asked: &ReceivedRequest<'_, '_>,
        uri: &[u8],
        nodes: &[NodeHop],
    ) -> Vec<Target> {
        let uri = request_uri(uri);
        // RFC 5630 §3.1.2: SIPS requires TLS on each hop. The Route of a node is no SIPS URI.
        if starts_with_sips(&uri) {
            return Vec::new();
        }
        let all = nodes.iter();
        all.map(|hop| Target::node(&uri, hop, asked.from)).collect()
    }

    /// The Route value of a request for another node. Its token has the time of now: phones with a greater `q` may have
    /// rung since the decision.
    pub(super) fn node_route(
        &self,
        now: Mono,
        base: &Base,
        message: &Message<'_>,
        (uri, node): (&[u8], &Flow),
    ) -> Vec<u8> {
        let since = now.since(base.begun.mono).as_secs();
        let token = Token::FromNode(FromNode {
            unix_s: base.begun.unix_s + since,
            request: self.tokens.hash(message, uri),
        });
        let mut buffer = [0; MAX_USER];
        let call_id = message.call_id().unwrap_or_default();
        let user = self.tokens.write(&token.into(), call_id, &mut buffer);
        let (node, transport) = (node.remote.to_string(), transport_of(node));
        let end = [transport.as_bytes(), b";lr>"].concat();
        [b"<sip:", user, b"@", node.as_bytes(), &end].concat()
    }

    /// An INVITE went to another node by this branch.
    pub(super) fn await_node(&mut self, now: Mono, key: ContextKey, branch: usize) {
        let context = self.contexts.get(key).filter(|it| it.is_invite);
        let branch = context.and_then(|it| it.branches.get_mut(branch));
        if let Some(branch) = branch {
            branch.node_until = Some(now.plus(NODE_TIME));
            self.arm(key);
        }
    }

    /// Gives up nodes that have not responded in time: their phones cannot be reached.
    pub(super) fn nodes_timeout(&mut self, now: Mono, stack: &mut Stack<'_>, key: ContextKey) {
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        // RFC 3261 §9.1: after a CANCEL, an INVITE without a response counts as cancelled.
        let code = if context.is_ending { 487 } else { 480 };
        let mut over = Vec::new();
        let is_over = |it: &Branch| it.node_deadline().is_some_and(|until| until <= now);
        let all = (0..).zip(&mut context.branches);
        for (number, branch) in all.filter(|(_, branch)| is_over(branch)) {
            branch.is_done = true;
            over.push(number);
            context.best.add_own(code);
            // If a response comes after all, the CANCEL goes out (RFC 3261 §9.1).
            if let Some(request) = branch.request {
                stack.dispatcher.cancel(now, stack.engine, request);
            }
        }
        for number in &over {
            note_attempt(stack, context, *number, AttemptFailure::NoResponse);
        }
        if !over.is_empty() {
            self.branch_ended(now, stack, key);
        }
    }
}
