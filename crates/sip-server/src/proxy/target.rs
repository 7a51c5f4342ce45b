//! The targets of a request (RFC 3261 §16.5), and the order in which they are tried (§16.6).

use std::cmp::Reverse;
use std::collections::{VecDeque, vec_deque};

use sip::Mono;
use sip::dispatch::{AllowedDestination, PeerGroups, SendFrom};
use sip::flow::{Flow, Transport};
use sip::uri::{Uri, starts_with_sips};

use super::config::Forking;
use super::moved;
use super::nodes::{AskedPhones, NodeHop, transport_of};
use super::uris::{as_sip, request_uri};
use crate::AorKey;
use crate::flow::{FlowAvailability, FlowId, Runs};
use crate::location::Binding;
use crate::push::prid_of;
use crate::registrar::is_same_instance;
use crate::routes::{Hop, Next, Step};

/// RFC 3261 §20.10: a contact without `q` is as good as any.
const FULL_Q: u16 = 1000;

/// Where a call goes that a user has not taken.
#[derive(Clone, Debug)]
pub(super) struct Forwarded {
    /// The address of record of another user here, or the user and the host of a URI elsewhere. The record of the call
    /// has it.
    pub(super) name: Box<[u8]>,
    /// The key of the address of record, if it is that of another user here.
    pub(super) user: Option<AorKey>,
}

impl Forwarded {
    /// To a URI elsewhere. A password in the URI is left out.
    pub(super) fn elsewhere(uri: &[u8]) -> Forwarded {
        let uri = uri.splitn(2, |byte| *byte == b':').last();
        let uri = uri.unwrap_or_default();
        let until = |bytes: &[u8], ends: &[u8]| {
            let end = bytes.iter().position(|byte| ends.contains(byte));
            bytes[..end.unwrap_or(bytes.len())].to_vec()
        };
        let name = match uri.iter().position(|byte| *byte == b'@') {
            Some(at) => [until(&uri[..at], b":"), until(&uri[at..], b";?")].concat(),
            None => until(uri, b";?"),
        };
        Forwarded {
            name: name.into(),
            user: None,
        }
    }
}

/// One target.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// The Request-URI of its request.
    pub(super) uri: Box<[u8]>,
    /// Route values in front of all others, with commas between (RFC 3327 §5.4); empty if there are none.
    pub(super) path: Box<[u8]>,
    /// The flow that it is reached by.
    pub(super) flow: Option<FlowId>,
    /// It is reached by that flow or not at all (RFC 5626 §5.3).
    pub(super) only_by_flow: bool,
    /// The socket and the address of this server that its phone knows, if it is not reached by a flow.
    pub(super) from: Option<SendFrom>,
    /// The flow that the REGISTER came by. Requests of the dialog may also go to its remote address.
    pub(super) near: Option<FlowId>,
    /// The hash of what identifies its phone, if it is a binding ([`moved::hash_of`]).
    pub(super) phone: u64,
    /// How far its request may go.
    pub(super) reach: AllowedDestination,
    q: u16,
    /// It is a binding of the address of record.
    pub(super) is_binding: bool,
    /// It is another node of the cluster, which has bindings of the address of record.
    pub(super) is_node: bool,
    /// Other contacts of the same instance: the next one is tried if this one fails (RFC 5626 §7, RFC 5627 §6.1).
    pub(super) others: Vec<Target>,
    /// The URI that says where its request goes, if that is not the Request-URI or a Route.
    pub(super) next_hop: Option<Box<[u8]>>,
    /// Its request goes by TLS, although the Request-URI is a SIP URI.
    pub(super) only_by_tls: bool,
    /// It is an address of a trunk, by a route.
    pub(super) hop: Option<Hop>,
    /// The credentials that answer a challenge of the trunk: a header line; empty if there was none.
    pub(super) credentials: Box<[u8]>,
    /// A call is forwarded there.
    pub(super) forwarded: Option<Box<Forwarded>>,
    /// The number of the contact of a 3xx, if it is one.
    pub(super) contact: Option<u8>,
    /// The header line Diversion, if a call goes on from another user; else empty.
    pub(super) diversion: Box<[u8]>,
}

impl Target {
    /// A URI that is no binding.
    pub(super) fn uri(uri: &[u8], reach: AllowedDestination) -> Target {
        Target {
            uri: uri.into(),
            path: Box::default(),
            flow: None,
            only_by_flow: false,
            from: None,
            near: None,
            phone: 0,
            reach,
            q: FULL_Q,
            is_binding: false,
            is_node: false,
            others: Vec::new(),
            next_hop: None,
            only_by_tls: false,
            hop: None,
            credentials: Box::default(),
            forwarded: None,
            contact: None,
            diversion: Box::default(),
        }
    }

    /// A URI outside of this server that an authenticated user has chosen. It may be at a trunk: [`Calls::admit`] checks
    /// the number later.
    ///
    /// [`Calls::admit`]: super::Calls::admit
    pub(super) fn of_user(uri: &[u8], user: &FlowId) -> Target {
        let near = Some(user.flow.remote.ip());
        let reach = AllowedDestination::NearOrGroups(near, PeerGroups::All);
        Target::uri(&request_uri(uri), reach)
    }

    /// An address of a trunk. The operator has chosen where it leads.
    pub(super) fn step(step: Step) -> Target {
        Target {
            next_hop: step.next_hop,
            hop: Some(step.hop),
            ..Target::uri(&step.uri, AllowedDestination::Anywhere)
        }
    }

    /// Another node. Its Route value gets a token when the request is sent.
    pub(super) fn node(uri: &[u8], hop: &NodeHop, asked: &AskedPhones, own: &FlowId) -> Target {
        let flow = Flow {
            transport: match hop.is_tls {
                true => Transport::Tls,
                false => Transport::Udp,
            },
            connection: None,
            remote: hop.address,
            ..own.flow
        };
        let params = [transport_of(&flow), &asked.param()].concat();
        let path = format!("<sip:{}{params};lr>", hop.address);
        Target {
            path: path.into_bytes().into(),
            near: Some(FlowId { flow, ..*own }),
            q: hop.q.min(FULL_Q),
            is_binding: true,
            is_node: true,
            ..Target::uri(uri, AllowedDestination::Near(hop.address.ip()))
        }
    }

    /// Whether it is a binding of a phone that has registered by a flow.
    pub(super) const fn is_phone(&self) -> bool {
        self.is_binding && !self.is_node && self.path.is_empty() && self.near.is_some()
    }

    /// The same contact, reached by the Route of the request instead of the Path and the flow of the binding.
    pub(super) fn by_routes(self, reach: AllowedDestination) -> Target {
        let others = self.others.into_iter();
        let others = others.map(|other| other.by_routes(reach));
        Target {
            others: others.collect(),
            is_binding: true,
            only_by_tls: self.only_by_tls,
            ..Target::uri(&self.uri, reach)
        }
    }

    /// The same by a flow that a token of ours names.
    pub(super) fn by_flow(uri: &[u8], flow: FlowId) -> Target {
        Target {
            flow: Some(flow),
            only_by_flow: true,
            ..Target::uri(uri, AllowedDestination::Near(flow.flow.remote.ip()))
        }
    }

    /// A binding of a phone that was reached otherwise when the dialog began. The Request-URI is that of the dialog.
    pub(super) fn moved(uri: &[u8], binding: &Binding, runs: Runs) -> Option<Target> {
        let flow = binding.flow()?;
        let reach = AllowedDestination::Near(flow.flow.remote.ip());
        let target = Target::binding(binding, runs, reach)?;
        Some(Target {
            uri: request_uri(uri).into(),
            next_hop: Some(target.uri),
            ..target
        })
    }

    /// A binding for a request with a SIP URI. RFC 5630 §5.3: if the contact is a SIPS URI, the Request-URI is the SIP
    /// URI, and the request goes by TLS.
    fn for_sip_uri(mut self) -> Target {
        if starts_with_sips(&self.uri) {
            self.uri = as_sip(&self.uri).into();
            self.only_by_tls = true;
        }
        self
    }

    /// A binding; `None` if nothing can be sent to its contact any more.
    fn binding(binding: &Binding, runs: Runs, reach: AllowedDestination) -> Option<Target> {
        let flow = binding.flow();
        let is_outbound = binding.reg_id() != 0;
        let mut target = Target {
            path: binding.path().into(),
            q: binding.q().unwrap_or(FULL_Q),
            is_binding: true,
            ..Target::uri(&request_uri(binding.uri()), reach)
        };
        let Some(flow) = flow else {
            // The first hop of the Path may be where the REGISTER came from.
            if let Some(source) = binding.source() {
                target.reach = AllowedDestination::Near(source.flow.remote.ip());
                target.near = Some(source);
            }
            return Some(target);
        };
        target.reach = AllowedDestination::Near(flow.flow.remote.ip());
        target.near = Some(flow);
        target.phone = moved::hash_of(binding);
        match flow.state(runs) {
            FlowAvailability::Gone if is_outbound || flow.flow.transport.is_websocket() => {
                return None;
            }
            // Its contact may take a new connection.
            FlowAvailability::Gone => return Some(target),
            FlowAvailability::Current | FlowAvailability::Datagrams => {}
        }
        // If the Contact has the address that the REGISTER came from, there is no NAT, and the Contact is used.
        let is_datagram = flow.flow.connection.is_none();
        if is_outbound || !is_datagram || !is_at(&target.uri, &flow) {
            target.flow = Some(flow);
            target.only_by_flow = is_outbound || is_datagram;
        } else if flow.state(runs) == FlowAvailability::Current {
            target.from = Some(SendFrom {
                listener: flow.flow.listener,
                local: Some(flow.flow.local),
            });
        }
        Some(target)
    }
}

/// Whether the host of a URI is where a flow comes from.
fn is_at(uri: &[u8], flow: &FlowId) -> bool {
    let Ok(Uri::Sip(uri)) = Uri::parse(uri) else {
        return false;
    };
    uri.host.ip() == Some(flow.flow.remote.ip().to_canonical()) && uri.transport().is_none()
}

/// Which bindings of an address a URI means.
#[derive(Clone, Copy, Debug)]
pub(super) enum BindingSelector<'a> {
    All,
    /// A public GRUU: those of this instance, with escapes (RFC 5627 §5.1).
    Instance(&'a [u8]),
    /// A temporary GRUU: those with this number.
    Number(u64),
}

/// Which bindings the Request-URI of a call means, as long as the call waits for phones.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    /// Of a public GRUU, with escapes.
    pub(super) instance: Option<Box<[u8]>>,
    /// Of a temporary GRUU.
    pub(super) number: Option<u64>,
    /// RFC 5630 §5.2: a SIPS URI leads to SIPS contacts alone.
    pub(super) only_sips: bool,
}

impl Selection {
    pub(super) fn wanted(&self) -> BindingSelector<'_> {
        match (self.number, &self.instance) {
            (Some(number), _) => BindingSelector::Number(number),
            (None, Some(instance)) => BindingSelector::Instance(instance),
            (None, None) => BindingSelector::All,
        }
    }

    /// The targets among these bindings.
    pub(super) fn targets(
        &self,
        now: Mono,
        bindings: &[Binding],
        bounds: (Runs, AllowedDestination, usize),
    ) -> Vec<Target> {
        of_bindings(now, bindings, self, bounds)
    }

    /// The contacts among these bindings whose phones are to be woken: one for each token, the one that was refreshed
    /// last. `awake`: the bindings that need no push; their phones are not woken for another contact.
    pub(super) fn targets_to_push(
        &self,
        now: Mono,
        (asleep, awake): (&[Binding], &[Binding]),
        providers: &[String],
    ) -> Vec<Box<[u8]>> {
        let is_alive = |binding: &&Binding| !binding.is_expired(now);
        let prid = |binding: &Binding| prid_of(binding.uri(), providers);
        let awake: Vec<&Binding> = awake.iter().filter(is_alive).collect();
        let mut prids: Vec<_> = awake.iter().map(|it| prid(it)).collect();
        let is_awake = |binding: &Binding| {
            let mut awake = awake.iter();
            awake.any(|it| have_same_instance(it, binding))
        };
        let is_wanted = is_wanted(self.wanted());
        let mut found: Vec<&Binding> = asleep.iter().filter(is_alive).collect();
        found.retain(|it| is_wanted(it) && !is_awake(it));
        found.retain(|it| !self.only_sips || starts_with_sips(it.uri()));
        found.sort_by_key(|binding| Reverse(binding.updated()));
        found.retain(|it| {
            let prid = prid(it);
            let is_new = !prids.contains(&prid);
            prids.push(prid);
            is_new
        });
        let contacts = found.into_iter();
        contacts
            .map(|it| request_uri(it.uri()).into_owned().into())
            .collect()
    }
}

/// Removes each binding that has the token of a later one, unless both are flows of one instance: a phone gets one
/// copy.
pub(super) fn remove_repeated(bindings: &mut Vec<Binding>, providers: &[String]) {
    bindings.sort_by_key(|binding| Reverse((binding.updated(), binding.q().unwrap_or(FULL_Q))));
    let mut kept: Vec<Binding> = Vec::new();
    for binding in bindings.drain(..) {
        let prid = prid_of(binding.uri(), providers);
        let is_repeated = kept.iter().any(|it| {
            prid.is_some()
                && prid_of(it.uri(), providers) == prid
                && !have_same_instance(it, &binding)
        });
        if !is_repeated {
            kept.push(binding);
        }
    }
    *bindings = kept;
}

fn have_same_instance(one: &Binding, other: &Binding) -> bool {
    !one.instance().is_empty() && is_same_instance(one.instance(), other.instance())
}

/// Whether a binding is one of those.
fn is_wanted(wanted: BindingSelector<'_>) -> impl Fn(&Binding) -> bool {
    let mut buffer = [0; 256];
    let instance = match wanted {
        BindingSelector::Instance(escaped) => {
            sip::uri::unescape(escaped, &mut buffer).map(<[u8]>::to_vec)
        }
        _ => None,
    };
    let number = match wanted {
        BindingSelector::Number(number) => Some(number),
        _ => None,
    };
    let is_all = matches!(wanted, BindingSelector::All);
    move |binding| {
        let instance = instance.as_deref();
        is_all
            || number.is_some_and(|number| binding.gruu() == number)
            || instance.is_some_and(|it| is_same_instance(binding.instance(), it))
    }
}

/// Makes at most `most` targets of bindings. All contacts of one instance are one target and its `others`. They are
/// tried one after the other; the contact that was refreshed last is the first (RFC 5626 §7, RFC 5627 §6.1).
fn of_bindings(
    now: Mono,
    bindings: &[Binding],
    selection: &Selection,
    (runs, reach, most): (Runs, AllowedDestination, usize),
) -> Vec<Target> {
    let is_wanted = is_wanted(selection.wanted());
    let has_scheme = |it: &Binding| !selection.only_sips || starts_with_sips(it.uri());
    let mut alive: Vec<&Binding> = bindings
        .iter()
        .filter(|it| !it.is_expired(now) && is_wanted(it) && has_scheme(it))
        .collect();
    // If one REGISTER has refreshed several contacts, the one with the highest q comes first.
    let q_of = |binding: &Binding| binding.q().unwrap_or(FULL_Q);
    alive.sort_by_key(|binding| Reverse((binding.updated(), q_of(binding))));
    let mut targets: Vec<Target> = Vec::with_capacity(alive.len().min(most));
    // The binding of each target, at the same index. With both in one list, the targets would have to be copied.
    let mut chosen: Vec<&Binding> = Vec::with_capacity(targets.capacity());
    for binding in alive {
        let Some(target) = Target::binding(binding, runs, reach) else {
            continue;
        };
        let target = match selection.only_sips {
            true => target,
            false => target.for_sip_uri(),
        };
        let mut others = chosen.iter();
        let same = others.position(|other| have_same_instance(binding, other));
        let has_room = targets.len() < most;
        match same.and_then(|place| targets.get_mut(place)) {
            Some(first) => first.others.push(target),
            None if has_room => {
                targets.push(target);
                chosen.push(binding);
            }
            None => {}
        }
    }
    targets
}

/// The targets in the order that they are tried in.
pub(super) fn in_order(mut targets: Vec<Target>, forking: Forking) -> VecDeque<Target> {
    if forking != Forking::Parallel {
        targets.sort_by_key(|target| Reverse(target.q));
    }
    targets.into()
}

/// How many of the first targets are tried at the same time.
pub(super) fn group_len(targets: vec_deque::Iter<'_, Target>, forking: Forking) -> usize {
    let Some(first) = targets.clone().next() else {
        return 0;
    };
    if first.hop.is_some() {
        return 1;
    }
    match forking {
        Forking::Parallel => targets.len(),
        Forking::Sequential => 1,
        Forking::ByQ => targets.take_while(|target| target.q == first.q).count(),
    }
}

/// Whether a target follows a failure at this address of a trunk.
fn does_follow(target: &Target, after: &Hop, next: Next) -> bool {
    match next {
        Next::Stop => false,
        Next::NextTrunk => true,
        Next::NextRoute => target.hop.is_none_or(|it| it.route != after.route),
    }
}

/// Whether anything follows a failure at this address of a trunk.
pub(super) fn any_follows(targets: &VecDeque<Target>, after: &Hop, next: Next) -> bool {
    targets
        .iter()
        .any(|target| does_follow(target, after, next))
}

/// Removes the targets that do not follow a failure at this address of a trunk.
pub(super) fn follow(targets: &mut VecDeque<Target>, after: &Hop, next: Next) {
    targets.retain(|target| does_follow(target, after, next));
}
