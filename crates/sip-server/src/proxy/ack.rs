//! The ACK for a 2xx (RFC 3261 §16.11): it has no transaction, so its own Route says where it goes.

use sip::build::{Edits, Stamp};
use sip::engine::Mark;
use sip::flow::Flow;
use sip::tu::RequestOwner;
use sip::uri::Uri;
use sip::{Message, Mono, Now, Spans};

use super::copy::{ack_base, written};
use super::media::{AckMedia, RelayedDialog};
use super::moved::MovedTarget;
use super::policy::{BindingsLocation, Policy};
use super::request::Instance;
use super::route::{Reader, Routed};
use super::sender::Sender;
use super::target::Target;
use super::{Proxy, Stack};
use crate::flow::FlowId;

/// Where an ACK goes.
struct AckTarget {
    target: Target,
    /// How many Route values are this server's.
    removed: usize,
    /// The Route line of an ACK that a strict router has sent.
    strict_routes: Option<Vec<u8>>,
    /// If the media of its dialog go through a relay.
    relayed: Option<RelayedDialog>,
}

impl Proxy {
    /// An ACK that belongs to no server transaction here, or to one whose 2xx came from another server. It is forwarded
    /// if its dialog began here, and dropped otherwise. The ACK for another final response goes to the worker that had
    /// its INVITE.
    pub fn ack(
        &mut self,
        now: Now,
        stack: &mut Stack<'_>,
        message: &Message<'_>,
        from: &FlowId,
    ) -> RequestOwner {
        let target = self.ack_target(now, stack, message, from);
        match target {
            Ok(target) => {
                match self.media_of_ack(now, target.relayed, message, from) {
                    AckMedia::Unchanged => self.send_ack(now.mono, stack, message, from, &target),
                    AckMedia::Waits => {}
                    AckMedia::Rewritten(bytes) => {
                        let mut spans = Box::<Spans>::default();
                        if let Ok(message) = Message::parse(&bytes, &mut spans) {
                            self.send_ack(now.mono, stack, &message, from, &target);
                        }
                    }
                }
                RequestOwner::Here
            }
            Err(RequestOwner::Elsewhere(worker)) => RequestOwner::Elsewhere(worker),
            Err(_) => {
                self.stats.stray_acks += 1;
                RequestOwner::Here
            }
        }
    }

    /// An ACK that has waited for the media relay goes on.
    pub(super) fn resume_ack(
        &mut self,
        now: Now,
        stack: &mut Stack<'_>,
        message: &Message<'_>,
        from: &FlowId,
    ) {
        match self.ack_target(now, stack, message, from) {
            Ok(target) => self.send_ack(now.mono, stack, message, from, &target),
            Err(_) => self.stats.stray_acks += 1,
        }
    }

    fn ack_target(
        &mut self,
        now: Now,
        stack: &mut Stack<'_>,
        message: &Message<'_>,
        from: &FlowId,
    ) -> Result<AckTarget, RequestOwner> {
        let reader = Reader {
            tokens: &self.tokens,
            routing: &*stack.policy,
            runs: self.runs,
            unix_s: now.unix_s,
        };
        let routed = reader
            .read(message, &from.flow)
            .map_err(|_| RequestOwner::Here)?;
        if !routed.is_known_dialog {
            // The ACK for a final response that is none of 2xx: its INVITE was another worker's.
            let uri = Uri::parse(&routed.uri);
            return match &uri {
                Ok(Uri::Sip(uri)) if routed.routes.is_empty() => match stack.policy.place(uri) {
                    BindingsLocation::Elsewhere(worker) => Err(RequestOwner::Elsewhere(worker)),
                    _ => Err(RequestOwner::Here),
                },
                _ => Err(RequestOwner::Here),
            };
        }
        let sender = match stack.policy.is_trunk(&from.flow) {
            true => Sender::Trunk,
            false => routed.sender_in_dialog(&from.flow),
        };
        let target = match routed.flow {
            _ if routed.is_gruu(&*stack.policy) && !routed.is_to_node => {
                self.instance_of(now, &mut *stack.policy, &routed, (&from.flow, &sender))?
            }
            by_flow => match self.moved(now, &mut *stack.policy, (message, &routed)) {
                MovedTarget::Here(_, target) => target,
                MovedTarget::Elsewhere(worker) => return Err(RequestOwner::Elsewhere(worker)),
                // As with the lookup of a GRUU, see below.
                MovedTarget::Pending => return Err(RequestOwner::Here),
                MovedTarget::No if routed.is_flow_gone => return Err(RequestOwner::Here),
                MovedTarget::No => match by_flow {
                    Some(flow) => Target::by_flow(&routed.uri, flow),
                    None => {
                        let address = sender.proven_address(&from.flow);
                        Target::uri(&routed.uri, routed.allowed_destination(address))
                    }
                },
            },
        };
        let strict = routed.was_strict.then(|| {
            let mut line = Vec::new();
            super::copy::write_routes(&mut line, routed.routes.iter().map(|route| route.bytes));
            line
        });
        Ok(AckTarget {
            target,
            removed: routed.removed,
            strict_routes: strict,
            relayed: routed.relayed,
        })
    }

    /// The target of an ACK whose Request-URI is a GRUU: the contact of the instance that was refreshed last
    /// (RFC 5627 §6.1).
    fn instance_of(
        &mut self,
        now: Now,
        policy: &mut dyn Policy,
        routed: &Routed<'_>,
        from: (&Flow, &Sender),
    ) -> Result<Target, RequestOwner> {
        let targets = match self.instance_targets(now, policy, routed, from) {
            Ok(Instance::Here(_, targets)) => targets,
            Ok(Instance::Elsewhere(worker)) => return Err(RequestOwner::Elsewhere(worker)),
            // An ACK has no transaction, so it cannot wait for a lookup. The UAS repeats its 2xx, and the UAC its ACK
            // (RFC 3261 §13.3.1.4).
            Ok(Instance::Pending) | Err(_) => return Err(RequestOwner::Here),
        };
        targets.into_iter().next().ok_or(RequestOwner::Here)
    }

    fn send_ack(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        message: &Message<'_>,
        from: &FlowId,
        target: &AckTarget,
    ) {
        match self.try_ack(now, stack, message, from, target) {
            Some(()) => self.stats.acks += 1,
            None => self.stats.stray_acks += 1,
        }
    }

    fn try_ack(
        &mut self,
        now: Mono,
        stack: &mut Stack<'_>,
        message: &Message<'_>,
        from: &FlowId,
        target: &AckTarget,
    ) -> Option<()> {
        let AckTarget {
            target,
            removed,
            strict_routes,
            ..
        } = target;
        let left = message.max_forwards().ok().flatten();
        let left = left.map_or(70, |left| left.saturating_sub(1));
        let via = message.via().ok()?;
        let edits = Edits {
            on_top: strict_routes.as_deref().unwrap_or_default(),
            max_forwards: Some(left),
            stamp: Stamp::of(&via, from.flow.remote),
            drop_overload: true,
            drop_routes: if strict_routes.is_some() { 0 } else { *removed },
            drop_kinds: match strict_routes {
                Some(_) => &[sip::HeaderKind::MaxBreadth, sip::HeaderKind::Route],
                None => &[sip::HeaderKind::MaxBreadth],
            },
            ..Edits::default()
        };
        let mut scratch = self.scratch.take()?;
        let bytes = written(message, &edits, &mut scratch);
        self.scratch = Some(scratch);
        let base = ack_base(bytes.ok()?, from, stack.engine.loop_check(message, b""));
        // RFC 5393 §5.3.3: all requests that a proxy forwards have Max-Breadth. Nobody gets a 400 to an ACK.
        let breadth = self.breadth_of(message).unwrap_or(self.config.max_breadth);
        // If the flow of the first target has failed, the ACK goes to the next one.
        let mut targets = std::iter::once(target).chain(&target.others);
        targets.find_map(|target| {
            let copy = (Mark(0), breadth);
            self.send_copy(now, stack, (&base, None), target, copy).ok()
        })?;
        Some(())
    }
}
