//! Recursion on 3xx responses (RFC 3261 §16.7 step 4).

use sip::Message;
use sip::build::Edits;
use sip::dispatch::{AllowedDestination, Failure, PeerGroups};
use sip::header::Contact;
use sip::uri::starts_with_sips;

use super::context::ContextKey;
use super::copy::{write_list, written};
use super::target::Target;
use super::uris::{are_equal, request_uri};
use super::{Proxy, Stack};

/// URIs of 3xx responses that are tried for one request.
const MAX_REDIRECTED: usize = 16;

impl Proxy {
    /// Adds the contacts of a 3xx to the targets, and keeps the response with the contacts that are left to the caller.
    /// Also stores the first such response without Contact. [`Proxy::leave_to_caller`] adds contacts to it that the
    /// proxy could not try.
    pub(super) fn follow(
        &mut self,
        stack: &Stack<'_>,
        key: ContextKey,
        message: &Message<'_>,
        drops_identity: bool,
    ) {
        let (left, tried) = match self.redirected(stack, key, message) {
            (RemainingContacts::All, _) => return self.keep(key, message, (drops_identity, None)),
            (RemainingContacts::Some(left), tried) => {
                self.keep(key, message, (drops_identity, Some(&left)));
                (left, tried)
            }
            (RemainingContacts::None, tried) => (Vec::new(), tried),
        };
        let context = self.contexts.get(key);
        if let Some(redirect) = context.and_then(|context| context.redirect.as_mut()) {
            redirect.tried.extend(tried);
            return;
        }
        let bytes = self.final_response(message, (drops_identity, Some(b"")));
        if let (Some(context), Some(bytes)) = (self.contexts.get(key), bytes) {
            context.redirect = Some(Box::new(Redirect {
                code: message.status_code().unwrap_or(0),
                bytes: bytes.into(),
                left,
                tried,
            }));
        }
    }

    /// A contact of a 3xx cannot be tried: adds it to those that are left to the caller. Returns `false` if the branch
    /// is for no contact of a 3xx, or if the context is ending.
    pub(super) fn leave_to_caller(&mut self, key: ContextKey, number: usize) -> bool {
        let Some(context) = self.contexts.get(key) else {
            return false;
        };
        let contact = context.branches.get_mut(number);
        let contact = contact.and_then(|branch| branch.contact.take());
        let (Some(contact), Some(redirect)) = (contact, &mut context.redirect) else {
            return false;
        };
        let Some(contact) = redirect.tried.get(usize::from(contact)) else {
            return false;
        };
        if context.is_ending {
            return false;
        }
        if redirect.left.is_empty() {
            write_list(&mut redirect.left, b"Contact: ", [&contact[..]].into_iter());
        } else {
            redirect.left.truncate(redirect.left.len() - b"\r\n".len());
            write_list(&mut redirect.left, b", ", [&contact[..]].into_iter());
        }
        let is_best = context.best.is_beaten_by(redirect.code);
        if !is_best && (context.best.is_own || context.best.code != redirect.code) {
            return true;
        }
        let (Some(mut spans), Some(mut scratch)) = (self.spans.take(), self.scratch.take()) else {
            return true;
        };
        let edits = Edits {
            at_end: &redirect.left,
            ..Edits::default()
        };
        if let Ok(message) = Message::parse(&redirect.bytes, &mut spans)
            && let Ok(bytes) = written(&message, &edits, &mut scratch)
        {
            context.best.code = redirect.code;
            context.best.is_own = false;
            context.best.bytes = bytes.into();
        }
        (self.spans, self.scratch) = (Some(spans), Some(scratch));
        true
    }

    /// Adds the contacts of a 3xx to the targets (§16.7 step 4). Some contacts are left to the caller. Returns these,
    /// and those that are tried. The following are left to the caller.
    ///
    /// - Contacts in a domain of this server. Another worker may have their bindings.
    /// - Contacts with a forbidden number.
    /// - Contacts that were tried.
    /// - Contacts with another scheme than the Request-URI of the caller (RFC 5630 §5.3).
    /// - Contacts above [`MAX_REDIRECTED`].
    fn redirected(
        &mut self,
        stack: &Stack<'_>,
        key: ContextKey,
        message: &Message<'_>,
    ) -> (RemainingContacts, Vec<Box<[u8]>>) {
        let Some(context) = self.contexts.get(key).filter(|it| !it.is_ending) else {
            return (RemainingContacts::All, Vec::new());
        };
        let Some(base) = &context.base else {
            return (RemainingContacts::All, Vec::new());
        };
        // A node, or this server itself, has passed the request on: the address of the caller is known there.
        if base.is_node {
            return (RemainingContacts::All, Vec::new());
        }
        // A trunk must not send requests through this server to itself or to others.
        let near = (!base.is_trunk).then(|| base.from.flow.remote.ip());
        // Only an authenticated user may reach a trunk: its owner pays for the call, and the callee chooses the number.
        let trunks = match base.is_of_user {
            true => PeerGroups::All,
            false => PeerGroups::None,
        };
        let reach = AllowedDestination::NearOrGroups(near, trunks);
        let is_sips = is_for_sips(&base.bytes);
        let before = context.redirect.as_ref();
        let before = before.map_or(0, |redirect| redirect.tried.len());
        let mut new: Vec<Box<[u8]>> = Vec::new();
        let mut left = Vec::new();
        for contact in message.contacts().filter_map(Result::ok) {
            let Contact::Addr(contact) = contact else {
                continue;
            };
            let uri = request_uri(contact.uri);
            let parsed = contact.parse_uri().ok();
            let sip = parsed.as_ref().and_then(|uri| uri.as_sip());
            let may_be_tried = sip.is_some_and(|sip| {
                let is_foreign = stack.policy.domain(sip.host).is_none();
                sip.is_sips == is_sips && is_foreign && !stack.policy.is_forbidden_number(&uri)
            });
            let was_tried = || context.tried.iter().any(|tried| are_equal(tried, &uri));
            if !may_be_tried || before + new.len() >= MAX_REDIRECTED || was_tried() {
                left.push(contact.bytes);
                continue;
            }
            context.tried.push(uri.clone().into());
            let mut target = Target::uri(&uri, reach);
            target.contact = u8::try_from(before + new.len()).ok();
            new.push(contact.bytes.into());
            context.targets.push_back(target);
        }
        let left = match (new.is_empty(), left.is_empty()) {
            (true, _) => RemainingContacts::All,
            (false, true) => RemainingContacts::None,
            (false, false) => {
                let mut line = Vec::new();
                write_list(&mut line, b"Contact: ", left.into_iter());
                RemainingContacts::Some(line)
            }
        };
        (left, new)
    }
}

/// The first 3xx whose contacts the proxy tries.
#[derive(Debug)]
pub(super) struct Redirect {
    code: u16,
    /// The response without Contact, as it is to be forwarded.
    bytes: Box<[u8]>,
    /// The Contact line of the contacts that are left to the caller; empty if there are none.
    left: Vec<u8>,
    /// The contacts that the proxy tries, of this response and of later ones.
    tried: Vec<Box<[u8]>>,
}

/// Whether the proxy could not try a contact of a 3xx: nothing was sent.
pub(super) const fn is_untried(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::Forbidden | Failure::Nowhere | Failure::NoDns | Failure::TooManyQueries
    )
}

/// The contacts of a 3xx that are left to the caller.
enum RemainingContacts {
    All,
    /// Some. This is their Contact line.
    Some(Vec<u8>),
    /// RFC 3261 §16.7 step 4: "the proxy SHOULD NOT add the resulting contactless response to the response context".
    None,
}

/// Whether the Request-URI of a received request is a SIPS URI.
fn is_for_sips(request: &[u8]) -> bool {
    let space = request.iter().position(|byte| *byte == b' ');
    space.is_some_and(|at| starts_with_sips(&request[at + 1..]))
}
