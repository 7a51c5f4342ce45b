//! Offers that wait for the media relay.

use sip::build::Edits;
use sip::header::HeaderKind;
use sip::{Message, Mono, Now, Spans};

use super::super::context::{Base, ContextKey};
use super::super::copy::written;
use super::super::target::Target;
use super::super::{Proxy, Stack};
use super::{
    Body, BranchMedia, CallMedia, DialogSide, MediaCommand, MediaProfile, MediaRequest,
    MediaResult, NoOffer, Offer, RelayedCopy, Relaying, RequestParams, WaitingMessage, profile_of,
};

impl Proxy {
    /// The next request for the relay.
    pub fn poll_media(&mut self) -> Option<MediaRequest> {
        self.media.requests.pop_front()
    }

    /// The relay has rewritten the session description of the request with this number; `None`: it has not, and will
    /// not. Then an offer has failed, which counts as a 503 of the target, and an answer is forwarded as it is.
    pub fn media_answered(
        &mut self,
        now: Now,
        stack: &mut Stack<'_>,
        number: u64,
        sdp: Option<&[u8]>,
    ) -> MediaResult {
        match self.media.take(number) {
            Some(WaitingMessage::Offer(key, branch)) => {
                self.offer_answered(now, stack, (key, branch), sdp)
            }
            Some(WaitingMessage::Response(mark, bytes, flow)) => {
                self.response_answered(now, stack, (number, mark, &bytes, &flow), sdp)
            }
            Some(WaitingMessage::Ack(bytes, from)) => {
                self.ack_answered(now, stack, (&bytes, &from), sdp)
            }
            None => MediaResult::Late,
        }
    }

    /// Handles each message that has waited too long as a failure of the relay: an offer fails, other messages go on.
    pub(in crate::proxy) fn media_timeout(&mut self, now: Mono, stack: &mut Stack<'_>) {
        while let Some((number, entry)) = self.media.waiting.first_key_value()
            && entry.until <= now
        {
            let waited = now.since(entry.since.mono).as_secs();
            let now = Now {
                mono: now,
                unix_s: entry.since.unix_s + waited,
            };
            let number = *number;
            self.media.silent += 1;
            let _ = self.media_answered(now, stack, number, None);
        }
    }

    /// The message with what the relay has made of its session description, if it has made something.
    pub(super) fn with_result(
        &mut self,
        bytes: &[u8],
        sdp: Option<&[u8]>,
    ) -> (Option<Box<[u8]>>, MediaResult) {
        let whole = sdp.and_then(|sdp| self.with_sdp(bytes, sdp));
        let result = match sdp.is_some() && whole.is_none() {
            true => MediaResult::Malformed,
            false => MediaResult::Taken,
        };
        (whole, result)
    }

    /// The message with another session description; `None` if that is no valid message, because it is too long.
    pub(super) fn with_sdp(&mut self, bytes: &[u8], sdp: &[u8]) -> Option<Box<[u8]>> {
        let mut spans = Box::<Spans>::default();
        let message = Message::parse(bytes, &mut spans).ok()?;
        let length = format!("Content-Length: {}\r\n", sdp.len());
        let edits = Edits {
            drop_kinds: &[HeaderKind::ContentLength],
            at_end: length.as_bytes(),
            ..Edits::default()
        };
        let mut scratch = self.scratch.take()?;
        let whole = written(&message, &edits, &mut scratch);
        self.scratch = Some(scratch);
        let mut whole = whole.ok()?;
        whole.truncate(whole.len().saturating_sub(message.body().len()));
        whole.extend_from_slice(sdp);
        let is_valid = Message::parse(&whole, &mut spans).is_ok();
        is_valid.then(|| whole.into())
    }

    /// What a copy for a target needs; `None` if its media go through no relay. If the copy must wait for the relay,
    /// the branch keeps a clone of the target.
    ///
    /// # Errors
    /// [`NoOffer`].
    pub(in crate::proxy) fn offer_for(
        &mut self,
        now: Mono,
        stack: &Stack<'_>,
        (key, number): (ContextKey, usize),
        base: &Base,
        (target, breadth): (&Target, u32),
    ) -> Result<Option<RelayedCopy>, NoOffer> {
        let Some(to) = profile_of(stack.policy, base, target) else {
            return Ok(None);
        };
        let context = self.contexts.get(key).ok_or(NoOffer::Failed)?;
        if context.media.is_none() {
            context.media = CallMedia::of(base).map(Box::new);
            self.media.contexts += usize::from(context.media.is_some());
        }
        let Some(call) = context.media.as_ref() else {
            // Its names are too long. A request of a call that goes on is forwarded as it is: a BYE must arrive.
            return match base.relaying {
                Relaying::InDialog(_) => Ok(None),
                _ => Err(NoOffer::Failed),
            };
        };
        if call.has_failed {
            return Err(NoOffer::Failed);
        }
        let branch = context.branches.get_mut(number).ok_or(NoOffer::Failed)?;
        let session = match base.relaying {
            Relaying::InDialog(dialog) => dialog.to.session,
            _ => self
                .tokens
                .session((self.worker, self.runs.own), key.mark_of(number)),
        };
        let has_offer = call.has_offer;
        let media = branch.media.get_or_insert_with(|| {
            Box::new(BranchMedia {
                profile: to,
                session,
                is_at_relay: false,
                offer: Offer::None,
                waiting: Vec::new(),
                success: None,
                last: None,
            })
        });
        if has_offer && media.request().is_none() {
            media.offer = Offer::Asked(Box::new((target.clone(), breadth)));
            return match self.request_for_offer(now, (key, number), base) {
                true => Err(NoOffer::Waits),
                false => self.rewritten_offer((key, number), None),
            };
        }
        Ok(Some(relayed(call, media)))
    }

    /// Sends the offer of a copy to the relay.
    fn request_for_offer(
        &mut self,
        now: Mono,
        (key, number): (ContextKey, usize),
        base: &Base,
    ) -> bool {
        let until = now.plus(self.config.media_time);
        let mut spans = Box::<Spans>::default();
        let sdp = Message::parse(&base.bytes, &mut spans).ok();
        let sdp = sdp.and_then(|message| Body::of(&message).sdp());
        let Some(context) = self.contexts.get(key) else {
            return false;
        };
        let media = context.branches.get_mut(number);
        let media = media.and_then(|branch| branch.media.as_deref_mut());
        let (Some(call), Some(media), Some(sdp)) = (&mut context.media, media, sdp) else {
            return false;
        };
        let params = RequestParams {
            command: MediaCommand::Offer,
            session: call.session(media.session),
            from_tag: call.from_tag.clone(),
            to_tag: call.to_tag.clone(),
            begins_dialog: !call.is_in_dialog,
            receiver: media.profile,
            sender: call.from,
        };
        let since = Now {
            mono: now,
            ..base.begun
        };
        let asked = self.media.request_for(
            (since, until),
            WaitingMessage::Offer(key, number),
            (params, sdp),
        );
        media.is_at_relay = asked.is_some();
        if asked.is_none() {
            media.offer = Offer::None;
        }
        asked.is_some()
    }

    /// The relay has answered an offer: its copy is sent, if the request has not ended meanwhile.
    fn offer_answered(
        &mut self,
        now: Now,
        stack: &mut Stack<'_>,
        (key, number): (ContextKey, usize),
        sdp: Option<&[u8]>,
    ) -> MediaResult {
        let Some(context) = self.contexts.get(key) else {
            return MediaResult::Taken;
        };
        let branch = context.branches.get_mut(number);
        let media = branch.and_then(|branch| branch.media.as_deref_mut());
        let Some(media) = media.filter(|media| media.waits()) else {
            return MediaResult::Taken;
        };
        let Offer::Asked(asked) = std::mem::replace(&mut media.offer, Offer::None) else {
            return MediaResult::Taken;
        };
        let Some(base) = context.base.take() else {
            return MediaResult::Taken;
        };
        let (bytes, result) = self.with_result(&base.bytes, sdp);
        let relayed = self.rewritten_offer((key, number), bytes);
        let (target, breadth) = *asked;
        let copy = (number, target, breadth);
        let next = self.send_branch(now.mono, stack, key, &base, copy, relayed);
        if let Some(next) = next {
            self.launch_one(now.mono, stack, key, &base, (next, breadth));
        }
        if let Some(context) = self.contexts.get(key) {
            context.base = Some(base);
        }
        self.group_launched(now.mono, stack, key);
        // If nothing could be sent, this was perhaps the last copy.
        self.branch_ended(now.mono, stack, key);
        result
    }

    fn rewritten_offer(
        &mut self,
        (key, number): (ContextKey, usize),
        bytes: Option<Box<[u8]>>,
    ) -> Result<Option<RelayedCopy>, NoOffer> {
        let context = self.contexts.get(key).ok_or(NoOffer::Failed)?;
        let call = context.media.as_mut().ok_or(NoOffer::Failed)?;
        let branch = context.branches.get_mut(number).ok_or(NoOffer::Failed)?;
        let media = branch.media.as_deref_mut().ok_or(NoOffer::Failed)?;
        match bytes {
            Some(bytes) => {
                media.offer = Offer::Ready(bytes.into());
                let relayed = relayed(call, media);
                // The copy with credentials has the same offer.
                if branch.again.is_none() {
                    media.drop_request();
                }
                Ok(Some(relayed))
            }
            None if call.is_prack => Ok(Some(relayed(call, media))),
            None => {
                call.has_failed = true;
                Err(NoOffer::Failed)
            }
        }
    }

    /// Nothing more is sent: copies that wait for the relay have ended.
    pub(in crate::proxy) fn give_up_offers(&mut self, key: ContextKey) {
        let Some(context) = self.contexts.get(key).filter(|it| it.media.is_some()) else {
            return;
        };
        for branch in &mut context.branches {
            let media = branch.media.as_deref_mut();
            if media.is_some_and(BranchMedia::give_up) {
                branch.is_done = true;
                branch.call = None;
            }
        }
    }

    /// A copy has ended without a 2xx: its session is deleted.
    pub(in crate::proxy) fn branch_media_ended(&mut self, key: ContextKey, number: usize) {
        if self.media.contexts == 0 {
            return;
        }
        let Some(context) = self.contexts.get(key) else {
            return;
        };
        let branch = context.branches.get_mut(number);
        let media = branch.and_then(|branch| branch.media.take_if(|it| it.success.is_none()));
        if let (Some(call), Some(media)) = (&context.media, media) {
            self.media.branch_ended(call, *media);
        }
    }
}

fn relayed(call: &CallMedia, media: &BranchMedia) -> RelayedCopy {
    let of = |profile: MediaProfile, is_caller: bool| DialogSide {
        profile,
        is_caller,
        session: media.session,
    };
    RelayedCopy {
        bytes: media.request(),
        to: of(media.profile, call.is_to_caller),
        from: of(call.from, !call.is_to_caller),
        begins_dialog: !call.is_in_dialog,
    }
}
