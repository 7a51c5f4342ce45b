//! Response contexts (RFC 3261 §16): the state of a request until it has its final response.

use std::collections::VecDeque;

use sip::branch::LoopCheck;
use sip::build::Stamp;
use sip::congestion::Class;
use sip::dispatch::RequestKey;
use sip::engine::{Mark, ServerKey};
use sip::{Mono, Now};

use super::best::Best;
use super::calls::{Admitted, TrunkCall};
use super::media::{BranchMedia, CallMedia, Relaying};
use super::moved::KnownPhone;
use super::push::PushWait;
use super::redirect::Redirect;
use super::sender::Sender;
use super::target::{Forwarded, Target};
use crate::flow::FlowId;
use crate::routes::Hop;
use crate::{Aor, AorKey};

/// Set in all marks of a proxy, so that others may have marks as well.
const PROXY: u64 = 1 << 63;
const SLOT_BITS: u32 = 24;
const GENERATION_BITS: u32 = 31;
/// Contexts that marks can name.
pub(super) const MAX_CONTEXTS: usize = 1 << SLOT_BITS;
/// The branch in the mark of a server transaction, which is none.
const NO_BRANCH: u8 = u8::MAX;

/// Names a context; stale when that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextKey {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl ContextKey {
    /// The mark of one of its branches.
    pub(super) fn mark_of(self, branch: usize) -> Mark {
        let branch = u8::try_from(branch).unwrap_or(NO_BRANCH);
        let generation = u64::from(self.generation) & ((1 << GENERATION_BITS) - 1);
        let slot = u64::from(self.slot) << (GENERATION_BITS + 8);
        Mark(PROXY | slot | generation << 8 | u64::from(branch))
    }

    /// The mark of its server transaction.
    pub(super) fn mark(self) -> Mark {
        self.mark_of(NO_BRANCH.into())
    }

    /// The context and the branch of a mark; `None` if it is not a proxy's.
    pub(super) fn of(mark: Mark) -> Option<(ContextKey, usize)> {
        if mark.0 & PROXY == 0 {
            return None;
        }
        let key = ContextKey {
            slot: (mark.0 >> (GENERATION_BITS + 8)) as u32 & ((1 << SLOT_BITS) - 1),
            generation: (mark.0 >> 8) as u32 & ((1 << GENERATION_BITS) - 1),
        };
        Some((key, usize::from(mark.0 as u8)))
    }
}

/// One copy of a request that was forwarded.
#[derive(Debug)]
pub(super) struct Branch {
    pub(super) request: Option<RequestKey>,
    /// It has its final response, or will have none.
    pub(super) is_done: bool,
    /// It goes by a flow of a token, which is nobody's binding here.
    pub(super) is_token: bool,
    /// The flow that it went by, if it is that of a binding.
    pub(super) binding_flow: Option<Box<FlowId>>,
    /// Other flows to the same instance.
    pub(super) others: Vec<Target>,
    /// Its part of Max-Breadth.
    pub(super) breadth: u32,
    /// The address of a trunk that it went to.
    pub(super) hop: Option<Hop>,
    /// It went to a binding of the address of record, at this node.
    pub(super) is_binding: bool,
    /// It went to another node of the cluster.
    pub(super) is_node: bool,
    /// It is for another user or for a URI elsewhere, because the called user has not taken the call.
    pub(super) forwarded: Option<Box<Forwarded>>,
    /// It went to a binding with a flow: to a phone.
    pub(super) is_phone: bool,
    /// If it is an INVITE to another node: when that must have responded.
    pub(super) node_until: Option<Mono>,
    /// If its media go through a relay.
    pub(super) media: Option<Box<BranchMedia>>,
    /// It has had a response.
    pub(super) is_heard: bool,
    /// It has had a provisional response above 100.
    pub(super) has_rung: bool,
    /// It has rung too long, and was cancelled.
    pub(super) is_unanswered: bool,
    /// The call at the trunk, if it counts.
    pub(super) call: Option<TrunkCall>,
    /// Where the copy with credentials goes if the trunk asks for some.
    pub(super) again: Option<Box<Target>>,
    /// Index in `Redirect::tried`, if it went to a contact of a 3xx.
    pub(super) contact: Option<u8>,
}

impl Branch {
    /// To this target, not sent yet.
    pub(super) fn new(target: &Target, again: Option<Box<Target>>) -> Branch {
        let binding_flow = target.flow.filter(|_| target.is_binding);
        Branch {
            request: None,
            is_done: false,
            is_token: target.only_by_flow && !target.is_binding,
            binding_flow: binding_flow.map(Box::new),
            others: Vec::new(),
            breadth: 0,
            hop: target.hop,
            media: None,
            is_binding: target.is_binding && !target.is_node,
            is_node: target.is_node,
            forwarded: target.forwarded.clone(),
            is_phone: target.is_phone(),
            node_until: None,
            is_heard: false,
            has_rung: false,
            is_unanswered: false,
            call: None,
            again,
            contact: target.contact,
        }
    }

    /// When the other node that it went to must have responded; `None` if it has.
    pub(super) fn node_deadline(&self) -> Option<Mono> {
        self.node_until.filter(|_| !self.is_done && !self.is_heard)
    }
}

/// Which copies of a request have Record-Route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    /// None: the request begins no dialog.
    None,
    /// Those whose target requires it.
    Required,
    All,
}

/// What copies of a request are made from.
#[derive(Debug)]
pub(super) struct Base {
    /// The request with all changes that every copy has.
    pub(super) bytes: Box<[u8]>,
    /// When its targets were decided.
    pub(super) begun: Now,
    pub(super) from: FlowId,
    pub(super) loop_check: LoopCheck,
    pub(super) class: Class,
    /// Which copies have Record-Route.
    pub(super) recorded: Recorded,
    /// The phone that has sent it, for Record-Route.
    pub(super) caller: Option<KnownPhone>,
    /// The address of record of its targets that are bindings, for Record-Route.
    pub(super) callee: Option<AorKey>,
    /// Path is added (RFC 3327 §5.2).
    pub(super) is_path: bool,
    /// Its Path has `ob`: it came from its user agent without another proxy between (RFC 5626 §5.1).
    pub(super) has_ob: bool,
    /// It came from another node of the cluster.
    pub(super) is_node: bool,
    /// It came from a trunk.
    pub(super) is_trunk: bool,
    /// The group of this trunk's addresses; [`NO_TRUNK`](super::token::NO_TRUNK) if it came from no trunk.
    pub(super) trunk_group: [u8; 4],
    /// Its sender is not authenticated and no trunk. For a callee that is no phone, trunk or node, Record-Route permits
    /// no trunk then.
    pub(super) is_of_anyone: bool,
    /// An authenticated user has sent it outside of a dialog.
    pub(super) is_of_user: bool,
    /// P-Asserted-Identity is for trusted elements alone (RFC 3325 §7).
    pub(super) is_private: bool,
    /// Max-Breadth of all copies together (RFC 5393 §5.3.3).
    pub(super) breadth: u32,
    /// Whether its media may go through a relay.
    pub(super) relaying: Relaying,
}

/// What is computed of a request when it comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) stamp: Stamp,
    /// What decides where it goes (RFC 5393 §4.2.1).
    pub(super) loop_check: LoopCheck,
}

/// A request whose targets are not known yet.
#[derive(Debug)]
pub(super) struct WaitingRequest {
    /// As it was received.
    pub(super) bytes: Box<[u8]>,
    pub(super) from: FlowId,
    pub(super) arrival: Arrival,
    /// When it came.
    pub(super) since: Now,
    /// Who has sent it, if that is known already.
    pub(super) sender: Option<Sender>,
}

/// What is remembered of one request.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) server: ServerKey,
    pub(super) is_invite: bool,
    pub(super) is_bye: bool,
    /// A CANCEL has come, or a 6xx: nothing new is tried.
    pub(super) is_ending: bool,
    /// A 2xx was forwarded.
    pub(super) is_answered: bool,
    /// The request came from a trunk.
    pub(super) is_trunk: bool,
    /// It came from another node of the cluster, for phones of this one.
    pub(super) is_from_node: bool,
    /// The wheel has a timer for it.
    pub(super) is_timed: bool,
    /// When the time of the group that rings, of the address of a trunk, or of a lookup is over.
    pub(super) group_until: Option<Mono>,
    /// If nobody takes the call, it may go on to another URI.
    pub(super) may_divert: bool,
    /// The phones have rung for too long, and were cancelled.
    pub(super) is_unanswered: bool,
    pub(super) branches: Vec<Branch>,
    /// Targets that are not tried yet, in order.
    pub(super) targets: VecDeque<Target>,
    /// If the proxy follows 3xx responses: the URIs of all targets so far. RFC 3261 §16.5: no target is tried twice.
    pub(super) tried: Vec<Box<[u8]>>,
    /// The first followed 3xx, and the contacts of all followed 3xx responses.
    pub(super) redirect: Option<Box<Redirect>>,
    /// What copies are made from, as long as further copies are possible.
    pub(super) base: Option<Box<Base>>,
    pub(super) waiting: Option<Box<WaitingRequest>>,
    /// Phones that may register and then get a copy.
    pub(super) waking: Option<Box<PushWait>>,
    pub(super) best: Best,
    pub(super) aor: Option<Box<Aor>>,
    pub(super) admitted: Admitted,
    /// If the media of some copy go through a relay.
    pub(super) media: Option<Box<CallMedia>>,
}

impl Context {
    pub(super) fn new(server: ServerKey, is_invite: bool) -> Context {
        Context {
            server,
            is_invite,
            is_bye: false,
            is_ending: false,
            is_answered: false,
            is_trunk: false,
            is_from_node: false,
            is_timed: false,
            group_until: None,
            may_divert: false,
            is_unanswered: false,
            branches: Vec::new(),
            targets: VecDeque::new(),
            tried: Vec::new(),
            redirect: None,
            base: None,
            waiting: None,
            waking: None,
            best: Best::default(),
            aor: None,
            admitted: Admitted::default(),
            media: None,
        }
    }

    /// The earliest one of its deadlines: of the group, of the phones that it waits for, and of other nodes.
    pub(super) fn deadline(&self) -> Option<Mono> {
        let waking = self.waking.as_ref().map(|waking| waking.until);
        let nodes = self.branches.iter().filter_map(Branch::node_deadline);
        let group = self.group_until.into_iter();
        group.chain(waking).chain(nodes).min()
    }

    /// Whether nothing is left to try but phones that may register.
    pub(super) fn waits_for_push(&self) -> bool {
        self.waking.is_some() && !self.is_ending && self.targets.is_empty()
    }

    /// Whether a copy waits for the media relay to rewrite its offer.
    pub(super) fn waits_for_media(&self) -> bool {
        let waits = |branch: &Branch| branch.media.as_ref().is_some_and(|media| media.waits());
        self.media.is_some() && self.branches.iter().any(waits)
    }

    /// No more copies are made.
    pub(super) fn drop_base(&mut self) {
        self.base = None;
        if self.media.is_some() {
            let all = self.branches.iter_mut();
            for media in all.filter_map(|branch| branch.media.as_deref_mut()) {
                media.drop_request();
            }
        }
    }

    /// Drops the address of record of an answered call, whose context stays for 32 s. It stays while a branch without a
    /// final response needs it, or a call that the limits of calls count.
    pub(super) fn drop_unused_aor(&mut self) {
        if self.is_quiet() && self.admitted.call.is_none() {
            self.aor = None;
        }
    }

    /// Whether no branch waits for a final response.
    pub(super) fn is_quiet(&self) -> bool {
        self.branches.iter().all(|branch| branch.is_done)
    }
}

/// All contexts. When a context ends, another one can use its place.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    places: Vec<(u32, Option<Box<Context>>)>,
    free: Vec<u32>,
}

impl Contexts {
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The key that the next context gets.
    pub(super) fn next_key(&self) -> ContextKey {
        let slot = self.free.last().copied();
        let slot = slot.unwrap_or(self.places.len() as u32);
        let place = self.places.get(slot as usize);
        ContextKey {
            slot,
            generation: place.map_or(0, |(generation, _)| *generation),
        }
    }

    /// The contexts at the next `places` places from `first` on; `None` after the last place.
    pub(super) fn part(
        &self,
        first: usize,
        places: usize,
    ) -> Option<impl Iterator<Item = &Context>> {
        let rest = self.places.get(first..).filter(|rest| !rest.is_empty())?;
        let part = rest.iter().take(places);
        Some(part.filter_map(|(_, context)| context.as_deref()))
    }

    /// All contexts.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Context> {
        let places = self.places.iter_mut();
        places.filter_map(|(_, context)| context.as_deref_mut())
    }

    pub(super) fn insert(&mut self, context: Context) -> ContextKey {
        let key = self.next_key();
        if self.free.pop().is_none() {
            self.places.push((0, None));
        }
        if let Some((_, place)) = self.places.get_mut(key.slot as usize) {
            *place = Some(Box::new(context));
        }
        key
    }

    pub(super) fn get(&mut self, key: ContextKey) -> Option<&mut Context> {
        match self.places.get_mut(key.slot as usize) {
            Some((generation, Some(context))) if *generation == key.generation => Some(context),
            _ => None,
        }
    }

    /// The key of the context that has this place now.
    pub(super) fn at(&self, slot: u32) -> Option<ContextKey> {
        let (generation, context) = self.places.get(slot as usize)?;
        context.is_some().then_some(ContextKey {
            slot,
            generation: *generation,
        })
    }

    /// The keys of those that wait for targets.
    pub(super) fn waiting(&self) -> Vec<ContextKey> {
        let places = (0..).zip(&self.places);
        let waiting = places.filter_map(|(slot, (generation, context))| {
            context.as_ref()?.waiting.as_ref()?;
            Some(ContextKey {
                slot,
                generation: *generation,
            })
        });
        waiting.collect()
    }

    pub(super) fn remove(&mut self, key: ContextKey) -> Option<Box<Context>> {
        self.get(key)?;
        let (generation, place) = self.places.get_mut(key.slot as usize)?;
        *generation = (*generation + 1) & ((1 << GENERATION_BITS) - 1);
        let context = place.take();
        self.free.push(key.slot);
        // A wave of calls leaves no memory behind.
        if self.free.len() == self.places.len() && self.places.len() > 4096 {
            self.free.shrink_to(4096);
        }
        context
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_names_context_and_branch() {
        let key = ContextKey {
            slot: (1 << SLOT_BITS) - 1,
            generation: (1 << GENERATION_BITS) - 2,
        };
        assert_eq!(ContextKey::of(key.mark_of(7)), Some((key, 7)));
        assert_eq!(ContextKey::of(key.mark()), Some((key, 255)));
        assert_eq!(ContextKey::of(Mark(0)), None);
        assert_eq!(ContextKey::of(Mark(7)), None);
    }
}
