//! What the contacts of a REGISTER change (RFC 3261 §10.3 steps 6 and 7).

use sip::{Mono, Uri};

use super::gruu::{TempGruus, is_same_instance};
use super::requested_change::{RequestedBinding, RequestedChange};
use super::{MAX_CONTACT, Refusal};
use crate::flow::FlowId;
use crate::location::{Binding, Change, NewBinding};

/// RFC 3261 §10.3 step 7: a request that is older than the binding fails.
const OUT_OF_ORDER: Refusal = Refusal::of(500, "Out of Order");

/// Parameters of a contact that a registrar sets itself.
const OURS: [&[u8]; 4] = [b"expires", b"q", b"pub-gruu", b"temp-gruu"];

/// The changes of one request, step by step.
pub(super) struct Changes<'c> {
    pub(super) now: Mono,
    pub(super) call_id: &'c [u8],
    pub(super) cseq: u32,
    pub(super) flow: Option<FlowId>,
    pub(super) path: &'c [u8],
    /// User-Agent of the request; empty if it has none.
    pub(super) agent: &'c [u8],
    /// The bindings as they were before the request.
    pub(super) bindings: &'c [Binding],
    pub(super) gruus: &'c mut TempGruus,
    pub(super) steps: &'c mut Vec<Change>,
}

impl<'c> Changes<'c> {
    /// Decides what these contacts change.
    pub(super) fn of(&mut self, requested: &RequestedChange<'_>) -> Result<(), Refusal> {
        match requested {
            RequestedChange::Query => return Ok(()),
            RequestedChange::RemoveAll => {
                for (place, binding) in self.current() {
                    self.check_order(binding)?;
                    self.steps.push(Change::Remove(place));
                }
            }
            RequestedChange::Contacts(requested) => {
                for binding_request in requested {
                    self.make(binding_request)?;
                }
            }
        }
        // Expired bindings are removed, too. That makes room for others of the user.
        let (bindings, now) = (self.bindings, self.now);
        let ended = bindings.iter().enumerate();
        let ended = ended.filter(|(_, binding)| binding.is_expired(now));
        self.steps
            .extend(ended.map(|(place, _)| Change::Remove(place)));
        Ok(())
    }

    /// The bindings that have not ended, with their places.
    fn current(&self) -> impl Iterator<Item = (usize, &'c Binding)> + use<'c> {
        let (bindings, now) = (self.bindings, self.now);
        let all = bindings.iter().enumerate();
        all.filter(move |(_, binding)| !binding.is_expired(now))
    }

    /// A request of another Call-ID is always newer.
    fn check_order(&self, binding: &Binding) -> Result<(), Refusal> {
        match binding.call_id() == self.call_id && binding.cseq() >= self.cseq {
            true => Err(OUT_OF_ORDER),
            false => Ok(()),
        }
    }

    /// Adds, refreshes or removes one binding.
    fn make(&mut self, binding_request: &RequestedBinding<'_>) -> Result<(), Refusal> {
        let place = self
            .current()
            .find(|(_, binding)| is_binding_of(binding, binding_request));
        if let Some((_, binding)) = place {
            self.check_order(binding)?;
        }
        let place = place.map(|(place, _)| place);
        // A contact that the request has twice: the later one counts.
        self.steps.retain(|step| match step {
            Change::Add(binding) => !is_binding_of(binding, binding_request),
            Change::Remove(other) | Change::Replace(other, _) => Some(*other) != place,
            Change::SetGruu(..) => true,
        });
        if binding_request.expires == 0 {
            self.steps.extend(place.map(Change::Remove));
            return Ok(());
        }
        let gruu = self.gruu_of(binding_request);
        let binding = self.binding(binding_request, gruu)?;
        self.steps.push(match place {
            Some(place) => Change::Replace(place, binding),
            None => Change::Add(binding),
        });
        Ok(())
    }

    fn binding(
        &self,
        binding_request: &RequestedBinding<'_>,
        gruu: u64,
    ) -> Result<Binding, Refusal> {
        let mut params = Vec::with_capacity(binding_request.contact.params.as_bytes().len());
        for param in binding_request.contact.params {
            let is_ours = OURS
                .iter()
                .any(|ours| ours.eq_ignore_ascii_case(param.name));
            // A change that does not count is not reported.
            let is_void = binding_request.reg_id == 0 && param.name.eq_ignore_ascii_case(b"reg-id");
            if is_ours || is_void {
                continue;
            }
            params.push(b';');
            params.extend_from_slice(param.name);
            if let Some(value) = param.value {
                params.push(b'=');
                push_unfolded(&mut params, value);
            }
        }
        let uri = binding_request.contact.uri;
        if uri.len() + params.len() > MAX_CONTACT {
            return Err(Refusal::bad("Contact Too Long"));
        }
        let new = NewBinding {
            uri,
            params: &params,
            instance: binding_request.instance,
            call_id: self.call_id,
            cseq: self.cseq,
            path: self.path,
            agent: self.agent,
            flow: self.flow,
            q: binding_request.q,
            reg_id: binding_request.reg_id,
            gruu,
            expires: self.now.plus_secs(binding_request.expires.into()),
            updated: self.now,
        };
        Binding::new(&new).map_err(|_| Refusal::bad("Contact Too Long"))
    }

    /// The number of the instance's temporary GRUUs after this request (RFC 5627 §5.1).
    fn gruu_of(&mut self, binding_request: &RequestedBinding<'_>) -> u64 {
        if binding_request.instance.is_empty() {
            return 0;
        }
        let of_instance = |(_, binding): &(usize, &Binding)| {
            is_same_instance(binding.instance(), binding_request.instance)
        };
        let is_flow = |binding: &Binding| {
            binding_request.reg_id == 0 || binding.reg_id() == binding_request.reg_id
        };
        let latest = self
            .current()
            .filter(of_instance)
            .filter(|(_, binding)| is_flow(binding))
            .max_by_key(|(_, binding)| binding.updated());
        let any = self.current().find(of_instance);
        let is_new_call = latest.is_some_and(|(_, binding)| binding.call_id() != self.call_id);
        // Another contact of this request may have the instance, too.
        let mut others = self.steps.iter().filter_map(|step| match step {
            Change::Add(binding) | Change::Replace(_, binding) => Some(binding),
            Change::Remove(_) | Change::SetGruu(..) => None,
        });
        let other =
            others.find(|binding| is_same_instance(binding.instance(), binding_request.instance));
        match (other, any.map(|(_, binding)| binding.gruu())) {
            (Some(other), _) => other.gruu(),
            (None, Some(gruu)) if gruu != 0 && !is_new_call => gruu,
            (None, Some(_)) => self.renew_gruus(binding_request.instance),
            (None, None) => self.gruus.unique(),
        }
    }

    /// From now on, all earlier temporary GRUUs of the instance are invalid.
    fn renew_gruus(&mut self, instance: &[u8]) -> u64 {
        let gruu = self.gruus.unique();
        let places = self.current();
        let places: Vec<usize> = places
            .filter(|(_, binding)| is_same_instance(binding.instance(), instance))
            .map(|(place, _)| place)
            .collect();
        for place in places {
            self.steps.insert(0, Change::SetGruu(place, gruu));
        }
        gruu
    }
}

/// Whether a contact is that of a binding: by instance and `reg-id` (RFC 5626 §6), otherwise by URI (RFC 3261 §10.3
/// step 7).
fn is_binding_of(binding: &Binding, binding_request: &RequestedBinding<'_>) -> bool {
    if binding.reg_id() != binding_request.reg_id {
        return false;
    }
    match binding_request.reg_id {
        0 => {
            binding.uri() == binding_request.contact.uri
                || Uri::parse(binding.uri()).is_ok_and(|uri| uri == binding_request.uri)
        }
        _ => is_same_instance(binding.instance(), binding_request.instance),
    }
}

/// Adds a text, with a space for each byte of a line end: only quoted strings have folds within.
pub(super) fn push_unfolded(to: &mut Vec<u8>, text: &[u8]) {
    to.extend(text.iter().map(|&byte| match byte {
        b'\r' | b'\n' => b' ',
        byte => byte,
    }));
}
