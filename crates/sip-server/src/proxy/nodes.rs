//! Phones at other nodes of a cluster.
//!
//! ```text
//! caller ── INVITE ──▶ node of the caller ── INVITE, Route: token ──▶ node of the phone ──▶ phone
//! ```
//!
//! The node of the caller knows the sender, and applies limits and routes. The token says so to the node of the phone,
//! which looks among its own bindings only: no request goes in circles. Flows stay with their node. Later requests of
//! the dialog pass through both nodes.

use std::cmp::Reverse;
use std::net::SocketAddr;
use std::time::Duration;

use sip::dispatch::AllowedDestination;
use sip::flow::{Flow, Transport};
use sip::uri::starts_with_sips;
use sip::{HashKey, Message, Mono};

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
use super::{Proxy, Refusal, Stack, moved};
use crate::calls::AttemptFailure;
use crate::flow::FlowId;
use crate::location::Binding;

/// Within this time, a node responds to an INVITE: with a 100 at least. A node that is gone stays in the directory for
/// some seconds, and without this limit, the caller would wait for Timer B (RFC 3261 §17.1.1.2).
const NODE_TIME: Duration = Duration::from_secs(3);

/// Another node, with bindings of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeHop {
    /// Where it takes SIP: over UDP and TCP, or over TLS.
    pub address: SocketAddr,
    /// Requests go to it over TLS, with certificates that both nodes know.
    pub is_tls: bool,
    /// The greatest priority of its contacts, in thousandths.
    pub q: u16,
    /// Its load, in a unit that all nodes share.
    pub load: u64,
    /// The phone of each of its bindings, as [`PhoneNames::of`] names it.
    pub phones: Vec<u64>,
}

/// Names the phones that may have flows at several nodes (RFC 5626 §4.2). With one key, the names are the same at all
/// nodes.
#[derive(Clone, Copy, Debug)]
pub struct PhoneNames(HashKey);

impl PhoneNames {
    /// With the key that [`Proxy::new`] gets.
    #[must_use]
    pub fn new(key: HashKey) -> PhoneNames {
        PhoneNames(key.derive(u64::from_le_bytes(*b"phones n")))
    }

    /// The name of the phone of a binding. 0 without a `reg-id`: such a binding is the only one of its phone.
    #[must_use]
    pub fn of(self, binding: &Binding) -> u64 {
        match (binding.reg_id(), binding.instance()) {
            (0, _) | (_, []) => 0,
            _ => self.of_hash(moved::hash_of(binding)),
        }
    }

    fn of_hash(self, phone: u64) -> u64 {
        self.0.mac(&phone.to_be_bytes()).max(1)
    }
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

/// Which nodes get a request.
#[derive(Debug, PartialEq, Eq)]
struct Chosen {
    /// The nodes that get the request. If the proxy tries its targets one after the other, this is the order.
    first: Vec<NodeHop>,
    /// The nodes that get the request only if a flow fails. All of their phones also have a flow at this node or at one
    /// of `first`.
    others: Vec<NodeHop>,
}

/// Chooses among the nodes of an address. A phone with flows at several nodes gets the request by one flow only (RFC
/// 5626 §7). This is a flow of this node, if there is one. Otherwise it is the flow of the least loaded node. `here`:
/// the phones with flows at this node.
fn choose(mut nodes: Vec<NodeHop>, here: &[u64]) -> Chosen {
    // The loop begins with the node that would be tried last, so the least loaded nodes stay in `first`.
    nodes.sort_by_key(|node| (node.q, Reverse(node.load)));
    let mut others = Vec::new();
    let mut place = 0;
    while let Some(node) = nodes.get(place) {
        let is_elsewhere = |phone: &u64| {
            let mut all = nodes.iter().enumerate();
            *phone != 0
                && (here.contains(phone)
                    || all.any(|(of, it)| of != place && it.phones.contains(phone)))
        };
        let is_dispensable = !node.phones.is_empty() && node.phones.iter().all(is_elsewhere);
        match is_dispensable {
            true => others.push(nodes.remove(place)),
            false => place += 1,
        }
    }
    nodes.reverse();
    // The least loaded one is the first to be tried.
    others.reverse();
    Chosen {
        first: nodes,
        others,
    }
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
            // The other node may know another flow of the phone (RFC 5626 §7), and makes a 480 of the 430 if not.
            Some(contacts) if contacts.is_empty() => Err(Refusal::of(430, "")),
            Some(contacts) => {
                let contacts = (contacts, Some(aor));
                Ok(forward(Sender::Node, routed, contacts, breadth))
            }
            None => Ok(Decision::Pending(Some(Sender::Node))),
        }
    }

    /// Adds the targets of a request for this URI at other nodes to those at this node.
    pub(super) fn add_nodes(
        &self,
        targets: &mut Vec<Target>,
        from: &FlowId,
        uri: &[u8],
        nodes: Vec<NodeHop>,
    ) {
        let uri = request_uri(uri);
        // RFC 5630 §3.1.2: SIPS requires TLS on each hop. The Route of a node is no SIPS URI.
        if nodes.is_empty() || starts_with_sips(&uri) {
            return;
        }
        let name = |target: &Target| match target.phone {
            0 => 0,
            phone => self.phone_names.of_hash(phone),
        };
        let here: Vec<u64> = targets.iter().map(name).collect();
        let Chosen { first, others } = choose(nodes, &here);
        let mut phones: Vec<Vec<u64>> = here.iter().map(|name| vec![*name]).collect();
        for node in first {
            targets.push(Target::node(&uri, &node, from));
            phones.push(node.phones);
        }
        for node in others {
            for (target, phones) in targets.iter_mut().zip(&phones) {
                if phones.iter().any(|phone| node.phones.contains(phone)) {
                    target.others.push(Target::node(&uri, &node, from));
                }
            }
        }
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
            note_attempt((now, stack), context, *number, AttemptFailure::NoResponse);
        }
        for number in &over {
            let _ = self.try_other_flow(now, stack, key, *number);
        }
        if !over.is_empty() {
            self.branch_ended(now, stack, key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u8, load: u64, phones: &[u64]) -> NodeHop {
        NodeHop {
            address: SocketAddr::from(([192, 0, 2, number], 5060)),
            is_tls: false,
            q: 1_000,
            load,
            phones: phones.to_vec(),
        }
    }

    /// The numbers of the first nodes, and of the others.
    fn chosen(nodes: &[NodeHop], here: &[u64]) -> (Vec<u8>, Vec<u8>) {
        let Chosen { first, others } = choose(nodes.to_vec(), here);
        let number = |node: &NodeHop| match node.address {
            SocketAddr::V4(address) => address.ip().octets()[3],
            SocketAddr::V6(_) => 0,
        };
        (
            first.iter().map(number).collect(),
            others.iter().map(number).collect(),
        )
    }

    #[test]
    fn of_two_nodes_with_flows_of_a_phone_the_less_loaded_one_gets_the_request_rfc5626_7() {
        for (loads, expected) in [([5, 9], (vec![1], vec![2])), ([9, 5], (vec![2], vec![1]))] {
            let nodes = [node(1, loads[0], &[7]), node(2, loads[1], &[7])];
            assert_eq!(chosen(&nodes, &[]), expected, "{loads:?}");
        }
        let three = [node(1, 9, &[7]), node(2, 5, &[7]), node(3, 7, &[7])];
        assert_eq!(chosen(&three, &[]), (vec![2], vec![3, 1]));
        // A greater priority comes before a smaller load.
        let mut preferred = node(1, 9, &[7]);
        let mut other = node(2, 5, &[7]);
        (preferred.q, other.q) = (800, 700);
        assert_eq!(chosen(&[other, preferred], &[]), (vec![1], vec![2]));
    }

    #[test]
    fn a_flow_of_this_node_comes_before_those_of_others() {
        let nodes = [node(1, 0, &[7]), node(2, 0, &[7, 8])];
        assert_eq!(chosen(&nodes, &[7]), (vec![2], vec![1]));
        assert_eq!(chosen(&nodes, &[8, 7]), (vec![], vec![2, 1]));
    }

    #[test]
    fn a_node_with_a_phone_that_no_other_one_has_gets_the_request() {
        // Node 2 has all phones, so node 1 is not needed, although it is less loaded.
        let nodes = [node(1, 5, &[7]), node(2, 9, &[7, 8])];
        assert_eq!(chosen(&nodes, &[]), (vec![2], vec![1]));
        for phones in [&[7, 0][..], &[0], &[]] {
            let nodes = [node(1, 5, phones), node(2, 9, phones)];
            assert_eq!(chosen(&nodes, &[0]), (vec![1, 2], vec![]), "{phones:?}");
        }
        assert_eq!(chosen(&[], &[7]), (vec![], vec![]));
    }
}
