//! Responses that wait for the media relay.

use sip::engine::Mark;
use sip::flow::Flow;
use sip::{Message, Method, Now, Spans};

use super::super::context::ContextKey;
use super::super::policy::Policy;
use super::super::route::Reader;
use super::super::{Proxy, Stack};
use super::sides::hash_of;
use super::{
    Body, BranchMedia, CallMedia, LastResponse, MediaCommand, MediaResult, RequestParams,
    ResponseId, WaitingMessage, session, tag_of,
};

/// Responses of one branch that wait at a time.
const MAX_WAITING_RESPONSES: usize = 8;

/// What becomes of a response.
#[derive(Debug)]
pub(in crate::proxy) enum ResponseMedia {
    /// It goes on as it is.
    Unchanged,
    /// It waits for the relay, or it is dropped.
    Waits,
    /// This goes on instead.
    Rewritten(Box<[u8]>),
}

/// What the proxy does with a response.
enum ResponseAction {
    /// The proxy forwards it unchanged.
    Forward,
    /// The proxy drops it. The user agent sends it again if it is important.
    Drop,
    /// The proxy forwards it with this session description, which the relay has made for a copy of it. `None`: the
    /// relay has failed, and the proxy forwards the response unchanged.
    Reuse(Option<Box<[u8]>>),
    /// The relay rewrites its session description.
    Rewrite(ResponseId),
}

impl Proxy {
    /// What becomes of a response to the copy with this mark: whether it has a session description for the relay.
    pub(in crate::proxy) fn media_of_response(
        &mut self,
        now: Now,
        stack: &mut Stack<'_>,
        mark: Mark,
        message: &Message<'_>,
        flow: &Flow,
    ) -> ResponseMedia {
        let code = message.status_code().unwrap_or(0);
        if self.media.contexts == 0 || !(101..300).contains(&code) {
            return ResponseMedia::Unchanged;
        }
        let (Some((key, number)), Some(sdp)) = (ContextKey::of(mark), Body::of(message).sdp())
        else {
            return ResponseMedia::Unchanged;
        };
        match self.action_for((key, number), message, sdp) {
            ResponseAction::Forward => ResponseMedia::Unchanged,
            ResponseAction::Drop => ResponseMedia::Waits,
            ResponseAction::Reuse(sdp) => {
                let rewritten = sdp.and_then(|sdp| self.with_sdp(message.as_bytes(), &sdp));
                rewritten.map_or(ResponseMedia::Unchanged, ResponseMedia::Rewritten)
            }
            ResponseAction::Rewrite(id) => {
                let waiting = WaitingMessage::Response(mark, message.as_bytes().into(), *flow);
                if !self.request_rewrite(now, (key, number), (message, sdp), (id, waiting)) {
                    return ResponseMedia::Unchanged;
                }
                // The time for the first response of a trunk or of another node ends.
                self.first_heard(now.mono, key, number, code);
                if id.is_success {
                    self.success_waits(now, stack, (key, number));
                }
                ResponseMedia::Waits
            }
        }
    }

    fn action_for(
        &mut self,
        (key, number): (ContextKey, usize),
        message: &Message<'_>,
        sdp: &[u8],
    ) -> ResponseAction {
        let is_success = message.status_code().unwrap_or(0) >= 200;
        let is_late = !is_success && self.has_moved_on(key, number);
        let Some(context) = self.contexts.get(key).filter(|it| !is_late && !it.is_bye) else {
            return ResponseAction::Forward;
        };
        let branch = context.branches.get_mut(number);
        let Some(media) = branch.and_then(|branch| branch.media.as_deref_mut()) else {
            return ResponseAction::Forward;
        };
        // A late provisional response must not take the media of the call that is answered.
        if context.is_invite && !is_success && (context.is_answered || context.is_ending) {
            return ResponseAction::Drop;
        }
        let tag = tag_of(message.to().ok().and_then(|to| to.tag));
        let id = ResponseId {
            hash: hash_of(&[&tag, sdp]),
            is_success,
        };
        if media.waiting.iter().any(|(_, waiting)| *waiting == id) {
            return ResponseAction::Drop;
        }
        // A trunk has forked the call, and a second phone has answered. The session belongs to the first one.
        if context.is_invite && media.success.as_ref().is_some_and(|it| *it != tag) {
            return match media.waiting.is_empty() {
                true => ResponseAction::Forward,
                false => ResponseAction::Drop,
            };
        }
        // The UAS retransmits a 2xx and a reliable provisional response. Other provisional responses usually repeat an
        // earlier session description.
        if media.waiting.len() >= MAX_WAITING_RESPONSES {
            return ResponseAction::Drop;
        }
        if is_success {
            media.success = Some(tag);
        }
        if let Some(LastResponse { id: last, result }) = &media.last
            && last.hash == id.hash
            && (result.0.is_some() || last.is_success == is_success)
        {
            return ResponseAction::Reuse(result.0.clone());
        }
        ResponseAction::Rewrite(id)
    }

    fn request_rewrite(
        &mut self,
        now: Now,
        (key, number): (ContextKey, usize),
        (message, sdp): (&Message<'_>, &[u8]),
        (id, waiting): (ResponseId, WaitingMessage),
    ) -> bool {
        let until = now.mono.plus(self.config.media_time);
        let Some(context) = self.contexts.get(key) else {
            return false;
        };
        let media = context.branches.get_mut(number);
        let media = media.and_then(|branch| branch.media.as_deref_mut());
        let (Some(call), Some(media)) = (&context.media, media) else {
            return false;
        };
        let tag = tag_of(message.to().ok().and_then(|to| to.tag));
        let params = params_of(call, media, tag);
        match self.media.request_for((now, until), waiting, (params, sdp)) {
            Some(asked) => {
                media.waiting.push((asked, id));
                media.is_at_relay = true;
                true
            }
            None => false,
        }
    }

    /// A 2xx waits. The call is answered, so nothing else is tried, and the other phones stop ringing (RFC 3261 §16.7
    /// step 10).
    fn success_waits(
        &mut self,
        now: Now,
        stack: &mut Stack<'_>,
        (key, number): (ContextKey, usize),
    ) {
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        if let Some(branch) = context.branches.get_mut(number) {
            // The context must not end before the response is forwarded, also if its target was given up.
            branch.is_done = false;
        }
        if context.is_invite && !context.is_answered {
            self.give_up_others(now.mono, stack, key, 200);
        }
    }

    /// The relay has answered for a response, or has not.
    pub(super) fn response_answered(
        &mut self,
        now: Now,
        stack: &mut Stack<'_>,
        (asked, mark, bytes, flow): (u64, Mark, &[u8], &Flow),
        sdp: Option<&[u8]>,
    ) -> MediaResult {
        let (rewritten, result) = self.with_result(bytes, sdp);
        self.keep_result(mark, asked, sdp.filter(|_| rewritten.is_some()));
        let mut spans = Box::<Spans>::default();
        let message = Message::parse(rewritten.as_deref().unwrap_or(bytes), &mut spans);
        if let Ok(message) = message {
            self.take_response(now, stack, mark, &message, flow);
        }
        result
    }

    /// Keeps the result for copies of the response.
    fn keep_result(&mut self, mark: Mark, asked: u64, sdp: Option<&[u8]>) {
        let place = ContextKey::of(mark);
        let branch =
            place.and_then(|(key, number)| self.contexts.get(key)?.branches.get_mut(number));
        let Some(media) = branch.and_then(|branch| branch.media.as_deref_mut()) else {
            return;
        };
        let Some(place) = media
            .waiting
            .iter()
            .position(|(number, _)| *number == asked)
        else {
            return;
        };
        let (_, id) = media.waiting.remove(place);
        let earlier = media.last.take().map(|last| last.result);
        self.media.forget(earlier);
        media.last = self
            .media
            .keep(sdp)
            .map(|result| LastResponse { id, result });
    }

    /// A copy has a 2xx: the session at the relay belongs to its dialog, and ends with that.
    pub(in crate::proxy) fn note_media_success(
        &mut self,
        key: ContextKey,
        number: usize,
        message: &Message<'_>,
    ) {
        if self.media.contexts == 0 {
            return;
        }
        let context = self.contexts.get(key);
        let branch = context.and_then(|context| context.branches.get_mut(number));
        if let Some(media) = branch.and_then(|branch| branch.media.as_deref_mut())
            && media.success.is_none()
        {
            media.success = Some(tag_of(message.to().ok().and_then(|to| to.tag)));
        }
    }

    /// Whether a copy whose media go through a relay has a 2xx, which may wait.
    pub(in crate::proxy) fn has_media_success(&mut self, key: ContextKey, number: usize) -> bool {
        if self.media.contexts == 0 {
            return false;
        }
        let context = self.contexts.get(key);
        let branch = context.and_then(|context| context.branches.get(number));
        let media = branch.and_then(|branch| branch.media.as_ref());
        media.is_some_and(|media| media.success.is_some())
    }

    /// This server itself refuses a BYE. For its sender, the dialog has ended all the same (RFC 3261 §15.1.1), so the
    /// session at the relay is deleted.
    pub(in crate::proxy) fn bye_refused(
        &mut self,
        now: Now,
        policy: &dyn Policy,
        (message, flow): (&Message<'_>, &Flow),
    ) {
        if message.method() != Some(Method::Bye) || !policy.has_relays() {
            return;
        }
        let reader = Reader {
            tokens: &self.tokens,
            routing: policy,
            runs: self.runs,
            unix_s: now.unix_s,
        };
        let routed = reader.read(message, flow);
        let (Some(dialog), Ok(from), Ok(to)) = (
            routed.ok().and_then(|routed| routed.relayed),
            message.from(),
            message.to(),
        ) else {
            return;
        };
        let name = session(message.call_id().unwrap_or_default(), dialog.to.session);
        let tags = match dialog.to.is_caller {
            true => (to.tag, from.tag),
            false => (from.tag, to.tag),
        };
        self.media
            .delete(name, Some((tag_of(tags.0), tag_of(tags.1))));
    }

    /// A BYE has a final response. After a 401 or a 407 it is sent again, so its dialog has not ended yet.
    pub(in crate::proxy) fn bye_answered(&mut self, key: ContextKey, code: u16) {
        if let Some(context) = self.contexts.get(key)
            && context.is_bye
            && matches!(code, 401 | 407)
            && context.media.take().is_some()
        {
            self.media.contexts -= 1;
        }
    }
}

/// The request for the relay about a response of the user agent with this tag.
fn params_of(call: &CallMedia, media: &BranchMedia, tag: Box<[u8]>) -> RequestParams {
    let (command, from_tag, to_tag) = match call.has_offer {
        true => (MediaCommand::Answer, call.from_tag.clone(), tag),
        // The offer is in the response, and its answer will be in the ACK.
        false => (MediaCommand::Offer, tag, call.from_tag.clone()),
    };
    RequestParams {
        command,
        session: call.session(media.session),
        from_tag,
        to_tag: Some(to_tag),
        begins_dialog: call.has_offer && !call.is_in_dialog,
        receiver: call.from,
        sender: media.profile,
    }
}
