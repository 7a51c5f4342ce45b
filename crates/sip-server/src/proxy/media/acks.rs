//! ACKs with the answer to the offer of a 2xx. A UAC repeats its ACK for each copy of the 2xx that it gets (RFC 3261
//! §13.2.2.4). All copies must have the same session description.

use std::collections::VecDeque;

use sip::{Message, Mono, Now, Spans};

use super::super::{Proxy, Stack};
use super::sides::hash_of;
use super::{
    Body, KeptDescription, MediaCommand, MediaResult, RelayedDialog, RequestParams, WaitingMessage,
    session, tag_of,
};
use crate::flow::FlowId;

/// ACKs whose results are kept.
const MAX_ACKS: usize = 256;

/// RFC 3261 §13.3.1.4: a UAS repeats its 2xx for 64*T1.
const KEEP_NS: u64 = 32_000_000_000;

/// One ACK.
#[derive(Debug)]
struct KnownAck {
    until: Mono,
    hash: u64,
    /// `None` as long as it waits.
    result: Option<KeptDescription>,
}

/// The latest ACKs, the oldest one first.
#[derive(Debug, Default)]
pub(super) struct Acks(VecDeque<KnownAck>);

/// What becomes of an ACK.
#[derive(Debug)]
pub(in crate::proxy) enum AckMedia {
    /// It is forwarded as it is.
    Unchanged,
    /// It waits for the relay, or a copy of it does.
    Waits,
    /// This is forwarded instead.
    Rewritten(Box<[u8]>),
}

impl Proxy {
    /// What becomes of an ACK: whether it has the answer to the offer of a 2xx, for the relay.
    pub(in crate::proxy) fn media_of_ack(
        &mut self,
        now: Now,
        dialog: Option<RelayedDialog>,
        message: &Message<'_>,
        from: &FlowId,
    ) -> AckMedia {
        let Some(dialog) = dialog else {
            return AckMedia::Unchanged;
        };
        let Some(sdp) = Body::of(message).sdp() else {
            return AckMedia::Unchanged;
        };
        let (Ok(offerer), Ok(answerer)) = (message.to(), message.from()) else {
            return AckMedia::Unchanged;
        };
        let hash = hash_of_ack(message, sdp);
        self.expire_acks(now.mono);
        if let Some(known) = self.media.acks.0.iter().find(|ack| ack.hash == hash) {
            return match &known.result {
                None => AckMedia::Waits,
                Some(KeptDescription(None)) => AckMedia::Unchanged,
                Some(KeptDescription(Some(sdp))) => {
                    let sdp = sdp.clone();
                    let bytes = self.with_sdp(message.as_bytes(), &sdp);
                    bytes.map_or(AckMedia::Unchanged, AckMedia::Rewritten)
                }
            };
        }
        let params = RequestParams {
            command: MediaCommand::Answer,
            session: session(message.call_id().unwrap_or_default(), dialog.to.session),
            from_tag: tag_of(offerer.tag),
            to_tag: Some(tag_of(answerer.tag)),
            begins_dialog: false,
            receiver: dialog.to.profile,
            sender: dialog.from,
        };
        let until = now.mono.plus(self.config.media_time);
        let waiting = WaitingMessage::Ack(message.as_bytes().into(), *from);
        if self
            .media
            .request_for((now, until), waiting, (params, sdp))
            .is_none()
        {
            return AckMedia::Unchanged;
        }
        self.media.acks.0.push_back(KnownAck {
            until: Mono(now.mono.0 + KEEP_NS),
            hash,
            result: None,
        });
        AckMedia::Waits
    }

    /// The relay has answered for an ACK, or has not.
    pub(super) fn ack_answered(
        &mut self,
        now: Now,
        stack: &mut Stack<'_>,
        (bytes, from): (&[u8], &FlowId),
        sdp: Option<&[u8]>,
    ) -> MediaResult {
        let (rewritten, outcome) = self.with_result(bytes, sdp);
        let mut spans = Box::<Spans>::default();
        let Ok(message) = Message::parse(bytes, &mut spans) else {
            return outcome;
        };
        let hash = Body::of(&message)
            .sdp()
            .map(|sdp| hash_of_ack(&message, sdp));
        let kept = self.media.keep(sdp.filter(|_| rewritten.is_some()));
        let mut acks = self.media.acks.0.iter_mut();
        match (acks.position(|ack| Some(ack.hash) == hash), kept) {
            (Some(place), Some(kept)) => self.media.acks.0[place].result = Some(kept),
            // There is no room: the next copy goes to the relay again.
            (Some(place), None) => drop(self.media.acks.0.remove(place)),
            (None, kept) => self.media.forget(kept),
        }
        let mut spans = Box::<Spans>::default();
        let message = Message::parse(rewritten.as_deref().unwrap_or(bytes), &mut spans);
        if let Ok(message) = message {
            self.resume_ack(now, stack, &message, from);
        }
        outcome
    }

    /// Removes ACKs that are not repeated any more, and the oldest ones if there are too many.
    fn expire_acks(&mut self, now: Mono) {
        while let Some(oldest) = self.media.acks.0.front()
            && (oldest.until <= now || self.media.acks.0.len() >= MAX_ACKS)
        {
            let oldest = self.media.acks.0.pop_front();
            self.media.forget(oldest.and_then(|ack| ack.result));
        }
    }
}

fn hash_of_ack(message: &Message<'_>, sdp: &[u8]) -> u64 {
    let call_id = message.call_id().unwrap_or_default();
    let from = message.from().ok().and_then(|from| from.tag);
    let to = message.to().ok().and_then(|to| to.tag);
    let number = message.cseq().map_or(0, |cseq| cseq.number).to_be_bytes();
    let tags = [from, to].map(Option::unwrap_or_default);
    hash_of(&[call_id, tags[0], tags[1], &number, sdp])
}
