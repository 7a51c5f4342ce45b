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
use sip::uri::{Uri, starts_with_sips};
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

/// Within this time, a node responds to an INVITE: with a 100 at least. A node that has failed stays in the directory
/// for some seconds. Without this limit, the caller would wait for Timer B (RFC 3261 §17.1.1.2).
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

/// Which phones of a node get a request. The Route of the request says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AskedPhones {
    All,
    /// The phone with this name.
    Only(u64),
    /// All but those with these names.
    Without(Vec<u64>),
}

impl AskedPhones {
    /// Whether the phone with this name is one of them.
    pub(super) fn has(&self, phone: u64) -> bool {
        match self {
            AskedPhones::All => true,
            AskedPhones::Only(asked) => phone == *asked,
            AskedPhones::Without(others) => !others.contains(&phone),
        }
    }

    /// The parameter of the Route value.
    pub(super) fn param(&self) -> String {
        match self {
            AskedPhones::All => String::new(),
            AskedPhones::Only(phone) => format!(";only={phone:x}"),
            AskedPhones::Without(phones) => {
                let names: Vec<_> = phones.iter().map(|phone| format!("{phone:x}")).collect();
                format!(";without={}", names.join("."))
            }
        }
    }

    /// What the Route value of another node says. `None` if that cannot be read.
    pub(super) fn of(route: &[u8]) -> Option<AskedPhones> {
        let uri = Uri::parse(route).ok()?;
        let params = uri.as_sip()?.params;
        let name = |text: &str| u64::from_str_radix(text, 16).ok();
        if let Some(only) = params.value(b"only") {
            return Some(AskedPhones::Only(name(std::str::from_utf8(only).ok()?)?));
        }
        let Some(others) = params.value(b"without") else {
            return Some(AskedPhones::All);
        };
        let names = std::str::from_utf8(others).ok()?.split('.').map(name);
        Some(AskedPhones::Without(names.collect::<Option<_>>()?))
    }
}

/// A request for some phones of a node.
#[derive(Debug, PartialEq, Eq)]
struct NodeRequest<'n> {
    node: &'n NodeHop,
    asked: AskedPhones,
    /// The other nodes with flows of the phone, if it is one phone. They get the request if the flow fails.
    others: Vec<&'n NodeHop>,
}

/// Sorts nodes into the order that they are tried in. A greater priority comes before a smaller load.
fn into_order(nodes: &mut [NodeHop]) {
    nodes.sort_by_key(|node| (Reverse(node.q), node.load));
}

/// The nodes with flows of this phone, in the order of `nodes`.
fn nodes_of(nodes: &[NodeHop], phone: u64) -> impl Iterator<Item = &NodeHop> {
    let nodes = nodes.iter();
    nodes.filter(move |node| phone != 0 && node.phones.contains(&phone))
}

/// Chooses among the nodes of an address, which are in the order that they are tried in. A phone with flows at several
/// nodes gets the request by one flow only (RFC 5626 §7). This is a flow of this node, if there is one. Otherwise it is
/// the flow of the first of its nodes. Its request is for this phone alone: so this node sees if the flow fails,
/// whatever other phones do. `here`: the phones with flows at this node.
fn choose<'n>(nodes: &'n [NodeHop], here: &[u64]) -> Vec<NodeRequest<'n>> {
    let is_here = |phone: &u64| *phone != 0 && here.contains(phone);
    let is_shared = |phone: &u64| is_here(phone) || nodes_of(nodes, *phone).nth(1).is_some();
    let mut choices = Vec::new();
    let mut seen = Vec::new();
    for node in nodes {
        // A phone may have several flows at one node, too.
        let mut phones = node.phones.clone();
        phones.sort_unstable();
        phones.dedup();
        let (shared, rest): (Vec<u64>, Vec<u64>) = phones.into_iter().partition(is_shared);
        if shared.is_empty() || !rest.is_empty() {
            choices.push(NodeRequest {
                node,
                asked: match shared.is_empty() {
                    true => AskedPhones::All,
                    false => AskedPhones::Without(shared.clone()),
                },
                others: Vec::new(),
            });
        }
        for phone in shared.into_iter().filter(|phone| !is_here(phone)) {
            if !seen.contains(&phone) {
                seen.push(phone);
                choices.push(NodeRequest {
                    node,
                    asked: AskedPhones::Only(phone),
                    others: nodes_of(nodes, phone).skip(1).collect(),
                });
            }
        }
    }
    choices
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
            asked: &routed.asked,
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
        mut nodes: Vec<NodeHop>,
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
        into_order(&mut nodes);
        let node_target =
            |node: &NodeHop, asked: &AskedPhones| Target::node(&uri, node, asked, from);
        let here: Vec<u64> = targets.iter().map(name).collect();
        for (target, phone) in targets.iter_mut().zip(&here) {
            let others = nodes_of(&nodes, *phone);
            let others = others.map(|node| node_target(node, &AskedPhones::Only(*phone)));
            target.others.extend(others);
        }
        for choice in choose(&nodes, &here) {
            let others = choice.others.into_iter();
            let others = others.map(|node| node_target(node, &choice.asked));
            let mut target = node_target(choice.node, &choice.asked);
            target.others = others.collect();
            targets.push(target);
        }
    }

    /// The Route value of a request for another node. Its token has the time of now: phones with a greater `q` may have
    /// rung since the decision. `way`: the Route value without the token.
    pub(super) fn node_route(
        &self,
        now: Mono,
        base: &Base,
        message: &Message<'_>,
        (uri, way): (&[u8], &[u8]),
    ) -> Vec<u8> {
        let since = now.since(base.begun.mono).as_secs();
        let token = Token::FromNode(FromNode {
            unix_s: base.begun.unix_s + since,
            request: self.tokens.hash(message, uri),
        });
        let mut buffer = [0; MAX_USER];
        let call_id = message.call_id().unwrap_or_default();
        let user = self.tokens.write(&token.into(), call_id, &mut buffer);
        let node = way.strip_prefix(b"<sip:").unwrap_or_default();
        [b"<sip:", user, b"@", node].concat()
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
            let _ = self.send_by_other_flow(now, stack, key, *number);
        }
        if !over.is_empty() {
            self.branch_ended(now, stack, key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u8, phones: &[u64]) -> NodeHop {
        NodeHop {
            address: SocketAddr::from(([192, 0, 2, number], 5060)),
            is_tls: false,
            q: 1_000,
            load: 0,
            phones: phones.to_vec(),
        }
    }

    fn number(node: &NodeHop) -> u8 {
        match node.address {
            SocketAddr::V4(address) => address.ip().octets()[3],
            SocketAddr::V6(_) => 0,
        }
    }

    /// For each request the number of its node, its phones, and the numbers of the other nodes.
    fn chosen(nodes: &[NodeHop], here: &[u64]) -> Vec<(u8, AskedPhones, Vec<u8>)> {
        let choices = choose(nodes, here).into_iter();
        let row = |it: NodeRequest<'_>| {
            let others = it.others.into_iter().map(number);
            (number(it.node), it.asked, others.collect())
        };
        choices.map(row).collect()
    }

    #[test]
    fn of_two_nodes_with_flows_of_a_phone_the_less_loaded_one_gets_the_request_rfc5626_7() {
        let mut nodes = [node(1, &[7]), node(2, &[7]), node(3, &[7])];
        for (node, load) in nodes.iter_mut().zip([9, 5, 7]) {
            node.load = load;
        }
        into_order(&mut nodes);
        assert_eq!(chosen(&nodes, &[]), [(2, AskedPhones::Only(7), vec![3, 1])]);
        nodes[1].q = 1_001;
        into_order(&mut nodes);
        assert_eq!(chosen(&nodes, &[]), [(3, AskedPhones::Only(7), vec![2, 1])]);
        assert_eq!(chosen(&nodes, &[8, 7]), []);
    }

    #[test]
    fn each_phone_with_several_flows_has_a_request_of_its_own() {
        let nodes = [node(1, &[7, 9]), node(2, &[7, 8])];
        let expected = [
            (1, AskedPhones::Without(vec![7]), vec![]),
            (1, AskedPhones::Only(7), vec![2]),
            (2, AskedPhones::Without(vec![7]), vec![]),
        ];
        assert_eq!(chosen(&nodes, &[]), expected);
        let expected = [
            (1, AskedPhones::Without(vec![7]), vec![]),
            (2, AskedPhones::Without(vec![7]), vec![]),
        ];
        assert_eq!(chosen(&nodes, &[7]), expected);
        let nodes = [node(1, &[7, 7]), node(2, &[8, 7, 7])];
        let expected = [
            (1, AskedPhones::Only(7), vec![2]),
            (2, AskedPhones::Without(vec![7]), vec![]),
        ];
        assert_eq!(chosen(&nodes, &[]), expected);
    }

    #[test]
    fn a_node_with_phones_that_no_other_one_has_is_asked_for_all() {
        for phones in [&[0][..], &[0, 0], &[]] {
            let nodes = [node(1, phones), node(2, &[8])];
            let expected = [(1, AskedPhones::All, vec![]), (2, AskedPhones::All, vec![])];
            assert_eq!(chosen(&nodes, &[0]), expected, "{phones:?}");
        }
        assert_eq!(chosen(&[], &[7]), []);
    }

    #[test]
    fn a_route_says_which_phones_are_asked_for() {
        for asked in [
            AskedPhones::All,
            AskedPhones::Only(u64::MAX),
            AskedPhones::Without(vec![7]),
            AskedPhones::Without(vec![7, 0xab, 1]),
        ] {
            let route = format!("sip:d@192.0.2.1:5060{};lr", asked.param());
            assert_eq!(AskedPhones::of(route.as_bytes()), Some(asked), "{route}");
        }
        for param in [
            "only",
            "only=",
            "only=x",
            "without=",
            "without=1.",
            "without=1.x",
        ] {
            let route = format!("sip:d@192.0.2.1:5060;{param};lr");
            let asked = AskedPhones::of(route.as_bytes());
            assert!(
                matches!(asked, None | Some(AskedPhones::All)),
                "{route}: {asked:?}"
            );
        }
        let (only, without) = (AskedPhones::Only(7), AskedPhones::Without(vec![7]));
        assert!(only.has(7) && !only.has(8) && !only.has(0));
        assert!(!without.has(7) && without.has(8) && without.has(0));
    }
}
