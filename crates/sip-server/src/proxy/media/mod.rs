//! Media relays: the session descriptions (RFC 3264) of a call through a trunk are rewritten, so that its media go
//! through a relay. The trunk then needs neither ICE nor SRTP.
//!
//! ```text
//! INVITE ── offer ──> relay      200 ── answer ──> relay      BYE ── delete ──> relay
//!  waits <── SDP ──────┘       waits <── SDP ───────┘
//! ```
//!
//! The proxy queues a request ([`Proxy::poll_media`]) and keeps the message. It sends the message when the embedder has
//! called [`Proxy::media_answered`]. Each copy of an INVITE has a session of its own at the relay, so copies that ring
//! at the same time are independent. The proxy stores nothing per dialog. The tokens in Record-Route say that the media
//! of a dialog go through a relay. They have the session and the profiles of both sides.
//!
//! The proxy deletes a session if the copy gets a final response other than 2xx, or if the INVITE ends without its 2xx.
//! It also deletes the session after a BYE. A call that ends without a BYE stays at the relay until the relay
//! itself removes it.
//!
//! [`Proxy::poll_media`]: super::Proxy::poll_media
//! [`Proxy::media_answered`]: super::Proxy::media_answered

mod acks;
mod offers;
mod responses;
mod sides;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use sip::engine::Mark;
use sip::flow::Flow;
use sip::header::ViaTransport;
use sip::uri::Uri;
use sip::{Message, Method, Mono, Now, Spans};

use super::context::{Base, Context, ContextKey};
use super::policy::Policy;
use super::route::Routed;
use super::route::is_within;
use super::target::Target;
use crate::flow::FlowId;
pub(super) use acks::AckMedia;
use acks::Acks;
pub(super) use responses::ResponseMedia;
pub use sides::MediaProfile;
use sides::{Body, has_ice};
pub(super) use sides::{DialogSide, RelayedDialog};

/// Messages of one worker that wait for the relay at a time.
const MAX_WAITING: usize = 4096;

/// Bytes of session descriptions and copies of messages that wait. The last one may exceed this limit.
const MAX_WAITING_BYTES: usize = 16 << 20;

/// Bytes of session descriptions that are kept for copies of responses and ACKs. Above this limit, copies are sent to
/// the relay again.
const MAX_KEPT_BYTES: usize = 64 << 20;

/// Bytes of a session description for the relay: with the rest of the request it must fit into a datagram.
const MAX_SDP: usize = 16 << 10;

/// Bytes of the Call-ID and the tags of a call with a relay.
const MAX_NAMES: usize = 1024;

/// Requests that the embedder has not fetched. All but deletions are limited by [`MAX_WAITING`], too.
const MAX_REQUESTS: usize = 2 * MAX_WAITING;

/// What a relay is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MediaCommand {
    /// Rewrite an offer.
    Offer,
    /// Rewrite an answer.
    Answer,
    /// Forget a session, or one dialog of it. There is no result.
    Delete,
}

/// A request to a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaRequest {
    /// For [`Proxy::media_answered`](super::Proxy::media_answered).
    pub number: u64,
    /// What the relay is to do.
    pub command: MediaCommand,
    /// The session: the Call-ID, a semicolon and eight hexadecimal digits. Each copy of an INVITE has a session of its
    /// own.
    pub session: Box<[u8]>,
    /// The tag of the side that has made the offer. To delete a dialog: the tag of the caller. If it is empty, the
    /// whole session is deleted.
    pub from_tag: Box<[u8]>,
    /// The tag of the other side, if it has one.
    pub to_tag: Option<Box<[u8]>>,
    /// The INVITE that begins the dialog has the offer. A proxy behind this one may fork it, so several tags may answer
    /// one offer, one after the other.
    pub begins_dialog: bool,
    /// The profile of the side that gets the session description.
    pub receiver: MediaProfile,
    /// The profile of the side that has sent it.
    pub sender: MediaProfile,
    /// The session description; empty for [`MediaCommand::Delete`].
    pub sdp: Box<[u8]>,
}

/// What has become of a result of the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum MediaResult {
    /// The message that waited for it goes on, or has ended.
    Taken,
    /// Nothing waits for it: the message has waited too long, and went on without it.
    Late,
    /// With this session description there is no valid message. That is handled as a failure of the relay.
    Malformed,
}

/// A message that waits for a result of the relay.
#[derive(Debug)]
enum WaitingMessage {
    /// The copy of a request with this number.
    Offer(ContextKey, usize),
    Response(Mark, Box<[u8]>, Flow),
    Ack(Box<[u8]>, FlowId),
}

impl WaitingMessage {
    /// The bytes of the copy.
    fn bytes(&self) -> usize {
        match self {
            WaitingMessage::Offer(..) => 0,
            WaitingMessage::Response(_, bytes, _) | WaitingMessage::Ack(bytes, _) => bytes.len(),
        }
    }
}

/// One message that waits.
#[derive(Debug)]
struct Entry {
    /// When it began to wait.
    since: Now,
    until: Mono,
    message: WaitingMessage,
    /// Bytes of the session description at the relay, and of the copy.
    bytes: usize,
}

/// What waits for the relay, and requests for it.
#[derive(Debug, Default)]
pub(super) struct Media {
    /// By its number, so the oldest one is first. All wait equally long.
    waiting: BTreeMap<u64, Entry>,
    /// Bytes of all messages in `waiting`.
    bytes: usize,
    next: u64,
    requests: VecDeque<MediaRequest>,
    /// Contexts with a relay.
    contexts: usize,
    /// Bytes that are kept for copies of responses and ACKs.
    kept: usize,
    acks: Acks,
    /// Requests that were not sent to the relay, because too much waits or the session description is too long.
    pub(super) full: u64,
    /// Requests whose result has not come in time.
    pub(super) silent: u64,
}

/// The tags of the caller and of the called side.
type Tags = (Box<[u8]>, Box<[u8]>);

/// What a request to the relay has besides the session description.
struct RequestParams {
    command: MediaCommand,
    session: Box<[u8]>,
    from_tag: Box<[u8]>,
    to_tag: Option<Box<[u8]>>,
    begins_dialog: bool,
    receiver: MediaProfile,
    sender: MediaProfile,
}

impl RequestParams {
    /// To delete a session, or one dialog of it.
    fn delete(session: Box<[u8]>, tags: Option<Tags>) -> RequestParams {
        let (from_tag, to_tag) = tags.unzip();
        RequestParams {
            command: MediaCommand::Delete,
            session,
            from_tag: from_tag.unwrap_or_default(),
            to_tag,
            begins_dialog: false,
            receiver: MediaProfile::Rtp,
            sender: MediaProfile::Rtp,
        }
    }
}

impl Media {
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        let (_, entry) = self.waiting.first_key_value()?;
        Some(entry.until)
    }

    /// Sends a request to the relay, and keeps the message. Returns its number; `None` if too much waits, or the
    /// session description is too long.
    fn request_for(
        &mut self,
        (since, until): (Now, Mono),
        message: WaitingMessage,
        (params, sdp): (RequestParams, &[u8]),
    ) -> Option<u64> {
        let is_full = self.waiting.len() >= MAX_WAITING || self.bytes >= MAX_WAITING_BYTES;
        if is_full || sdp.len() > MAX_SDP {
            self.full += 1;
            return None;
        }
        let bytes = message.bytes() + sdp.len();
        self.bytes += bytes;
        let entry = Entry {
            since,
            until,
            message,
            bytes,
        };
        let number = self.next;
        self.waiting.insert(number, entry);
        self.request(params, sdp);
        Some(number)
    }

    /// Removes what waits for this result.
    fn take(&mut self, number: u64) -> Option<WaitingMessage> {
        let entry = self.waiting.remove(&number)?;
        self.bytes -= entry.bytes;
        Some(entry.message)
    }

    fn request(&mut self, params: RequestParams, sdp: &[u8]) {
        self.requests.push_back(MediaRequest {
            number: self.next,
            command: params.command,
            session: params.session,
            from_tag: params.from_tag,
            to_tag: params.to_tag,
            begins_dialog: params.begins_dialog,
            receiver: params.receiver,
            sender: params.sender,
            sdp: sdp.into(),
        });
        self.next += 1;
    }

    fn delete(&mut self, session: Box<[u8]>, tags: Option<Tags>) {
        if self.requests.len() >= MAX_REQUESTS {
            // The relay forgets the session when no media come any more.
            self.full += 1;
            return;
        }
        self.request(RequestParams::delete(session, tags), b"");
    }

    /// Keeps a session description for copies of its message, as long as there is room.
    fn keep(&mut self, sdp: Option<&[u8]>) -> Option<KeptDescription> {
        let len = sdp.map_or(0, <[u8]>::len);
        if self.kept + len > MAX_KEPT_BYTES {
            return None;
        }
        self.kept += len;
        Some(KeptDescription(sdp.map(Box::from)))
    }

    fn forget(&mut self, kept: Option<KeptDescription>) {
        if let Some(KeptDescription(Some(sdp))) = kept {
            self.kept -= sdp.len();
        }
    }

    /// A context has ended. Deletes the sessions of an INVITE's copies without a 2xx, and the session of a dialog that
    /// a BYE has ended.
    pub(super) fn context_ended(&mut self, context: Context) {
        let Some(call) = context.media else {
            return;
        };
        self.contexts -= 1;
        if context.is_bye {
            self.delete(call.session(call.number), call.dialog_tags());
        }
        for branch in context.branches {
            if let Some(media) = branch.media {
                self.branch_ended(&call, *media);
            }
        }
    }

    fn branch_ended(&mut self, call: &CallMedia, media: BranchMedia) {
        if media.is_at_relay && !call.is_in_dialog && media.success.is_none() {
            self.delete(call.session(media.session), None);
        }
        self.forget(media.last.map(|last| last.result));
    }
}

/// What the relay has made of a session description: `None` if it has failed. Counts in [`Media::kept`].
#[derive(Debug)]
struct KeptDescription(Option<Box<[u8]>>);

/// The name of a session at the relay.
fn session(call_id: &[u8], number: u32) -> Box<[u8]> {
    let end = format!(";{number:08x}");
    [call_id, end.as_bytes()].concat().into()
}

/// Whether the media of a request may go through a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relaying {
    No,
    /// It begins a call: that depends on where it goes, or it comes from a trunk with a relay.
    New {
        is_from_relay: bool,
    },
    InDialog(RelayedDialog),
}

/// Whether the media of a request may go through a relay.
pub(super) fn relaying(
    message: &Message<'_>,
    routed: &Routed<'_>,
    policy: &dyn Policy,
    flow: &Flow,
) -> Relaying {
    use Method::{Bye, Invite, Prack, Update};
    let is_rewritten = || Body::of(message) != Body::Other;
    match (message.method(), routed.relayed) {
        (Some(Bye), Some(dialog)) => Relaying::InDialog(dialog),
        (Some(Invite | Update | Prack), Some(dialog))
            if is_within(message, routed.is_known_dialog) && is_rewritten() =>
        {
            Relaying::InDialog(dialog)
        }
        // A re-INVITE of a dialog that did not begin here has no session: nothing would delete one.
        (Some(Invite), _)
            if policy.has_relays()
                && message.to().is_ok_and(|to| to.tag.is_none())
                && is_rewritten() =>
        {
            Relaying::New {
                is_from_relay: policy.relays_from(flow),
            }
        }
        _ => Relaying::No,
    }
}

/// The profile of a target, if the media of the request go through a relay.
fn profile_of(policy: &dyn Policy, base: &Base, target: &Target) -> Option<MediaProfile> {
    let is_from_relay = match base.relaying {
        Relaying::No => return None,
        Relaying::InDialog(dialog) => return Some(dialog.to.profile),
        Relaying::New { is_from_relay } => is_from_relay,
    };
    match target.hop {
        Some(hop) => (is_from_relay || policy.relays_to(&hop)).then_some(MediaProfile::Rtp),
        None if !is_from_relay => None,
        None if is_web(target) => Some(MediaProfile::WebRtc),
        None => Some(MediaProfile::RtpWithIce),
    }
}

/// Whether a phone is reached by a WebSocket: a browser.
fn is_web(target: &Target) -> bool {
    // With a Path, the flow is that of the edge proxy.
    let flow = target
        .flow
        .or(target.near.filter(|_| target.path.is_empty()));
    let is_named = || match Uri::parse(&target.uri) {
        Ok(Uri::Sip(uri)) => matches!(uri.transport(), Some(ViaTransport::Ws | ViaTransport::Wss)),
        _ => false,
    };
    flow.map_or_else(is_named, |flow| flow.flow.transport.is_websocket())
}

fn tag_of(tag: Option<&[u8]>) -> Box<[u8]> {
    tag.unwrap_or_default().into()
}

/// A request whose media go through a relay.
#[derive(Debug)]
pub(super) struct CallMedia {
    call_id: Box<[u8]>,
    from_tag: Box<[u8]>,
    to_tag: Option<Box<[u8]>>,
    is_in_dialog: bool,
    /// In a dialog: it goes to the caller.
    is_to_caller: bool,
    /// In a dialog: the number of its session.
    number: u32,
    /// It has an offer.
    has_offer: bool,
    /// The profile of the side that it comes from.
    from: MediaProfile,
    /// The relay has failed for one of its copies.
    has_failed: bool,
    /// It goes on as it is if the relay fails. A PRACK that is refused ends the call before it is answered
    /// (RFC 3262 §4).
    is_prack: bool,
}

impl CallMedia {
    fn of(base: &Base) -> Option<CallMedia> {
        let mut spans = Box::<Spans>::default();
        let message = Message::parse(&base.bytes, &mut spans).ok()?;
        let sdp = Body::of(&message).sdp();
        let dialog = match base.relaying {
            Relaying::InDialog(dialog) => Some(dialog),
            _ => None,
        };
        let is_from_relay = base.relaying
            == Relaying::New {
                is_from_relay: true,
            };
        let from = match (dialog, sdp) {
            (Some(dialog), _) => dialog.from,
            _ if is_from_relay => MediaProfile::Rtp,
            (_, Some(sdp)) => match MediaProfile::of_sdp(sdp) {
                // A trunk that is not asked to use ICE does not use it.
                MediaProfile::RtpWithIce if base.is_trunk && !has_ice(sdp) => MediaProfile::Rtp,
                side => side,
            },
            (_, None) if base.is_trunk => MediaProfile::Rtp,
            (_, None) if base.from.flow.transport.is_websocket() => MediaProfile::WebRtc,
            (_, None) => MediaProfile::RtpWithIce,
        };
        let call_id = message.call_id().ok()?;
        let (from_tag, to_tag) = (message.from().ok()?.tag, message.to().ok()?.tag);
        let names = [Some(call_id), from_tag, to_tag];
        if names.into_iter().flatten().map(<[u8]>::len).sum::<usize>() > MAX_NAMES {
            return None;
        }
        Some(CallMedia {
            call_id: call_id.into(),
            from_tag: tag_of(from_tag),
            to_tag: to_tag.map(Box::from),
            is_in_dialog: dialog.is_some(),
            is_to_caller: dialog.is_some_and(|dialog| dialog.to.is_caller),
            number: dialog.map_or(0, |dialog| dialog.to.session),
            has_offer: sdp.is_some() && message.method() != Some(Method::Bye),
            from,
            has_failed: false,
            is_prack: message.method() == Some(Method::Prack),
        })
    }

    fn session(&self, number: u32) -> Box<[u8]> {
        session(&self.call_id, number)
    }

    /// The tags of the caller and of the called side. If a call was forked, the tag of the called side says which
    /// dialog ends.
    fn dialog_tags(&self) -> Option<Tags> {
        let (from, to) = (self.from_tag.clone(), self.to_tag.clone()?);
        Some(match self.is_to_caller {
            true => (to, from),
            false => (from, to),
        })
    }
}

/// One copy of such a request.
#[derive(Debug)]
pub(super) struct BranchMedia {
    /// The side that it goes to.
    profile: MediaProfile,
    /// The number of its session.
    session: u32,
    /// The relay has got an offer of it.
    is_at_relay: bool,
    offer: Offer,
    /// The numbers of responses that wait, with what identifies them.
    waiting: Vec<(u64, ResponseId)>,
    /// The tag of its 2xx. The session belongs to this dialog then.
    success: Option<Box<[u8]>>,
    /// The last result of the relay for a response.
    last: Option<LastResponse>,
}

/// Identifies a response with a session description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ResponseId {
    /// Of the tag and the session description.
    hash: u64,
    is_success: bool,
}

#[derive(Debug)]
struct LastResponse {
    id: ResponseId,
    result: KeptDescription,
}

/// The offer of a copy.
#[derive(Debug)]
enum Offer {
    /// The request has none, or it was sent.
    None,
    /// It is at the relay. The copy waits.
    Asked(Box<(Target, u32)>),
    /// The request with the offer for its side.
    Ready(Arc<[u8]>),
}

impl BranchMedia {
    pub(super) const fn waits(&self) -> bool {
        matches!(self.offer, Offer::Asked(_))
    }

    /// The request with the offer for its side, if the copy may have to be sent again.
    pub(super) fn request(&self) -> Option<Arc<[u8]>> {
        match &self.offer {
            Offer::Ready(bytes) => Some(Arc::clone(bytes)),
            Offer::None | Offer::Asked(_) => None,
        }
    }

    /// The copy will not be sent again.
    pub(super) fn drop_request(&mut self) {
        if matches!(self.offer, Offer::Ready(_)) {
            self.offer = Offer::None;
        }
    }

    /// The copy will not be sent. Returns whether it waited for its offer.
    fn give_up(&mut self) -> bool {
        let waits = self.waits();
        if waits {
            self.offer = Offer::None;
        }
        waits
    }

    /// Moves the session to the next branch: the same request with credentials, after a 401 or 407.
    pub(super) fn take_over(&mut self) -> BranchMedia {
        BranchMedia {
            profile: self.profile,
            session: self.session,
            is_at_relay: std::mem::take(&mut self.is_at_relay),
            offer: std::mem::replace(&mut self.offer, Offer::None),
            waiting: Vec::new(),
            success: None,
            last: None,
        }
    }
}

/// A copy whose media go through a relay.
#[derive(Debug)]
pub(super) struct RelayedCopy {
    /// The request with the offer for its side, if it has an offer.
    pub(super) bytes: Option<Arc<[u8]>>,
    /// The side that it leads to.
    pub(super) to: DialogSide,
    /// The side that the request comes from.
    pub(super) from: DialogSide,
    /// It begins a dialog, whose requests must come by this server.
    pub(super) begins_dialog: bool,
}

/// Why a copy with a relay cannot be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoOffer {
    /// It waits for the relay.
    Waits,
    /// The relay has not rewritten the offer.
    Failed,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(media: &mut Media, message: WaitingMessage, sdp: &[u8]) -> bool {
        let params = RequestParams {
            command: MediaCommand::Offer,
            ..RequestParams::delete(session(b"c", 1), None)
        };
        let times = (Now::default(), Mono(1));
        media.request_for(times, message, (params, sdp)).is_some()
    }

    #[test]
    fn what_waits_is_bounded_in_number_and_bytes() {
        let key = ContextKey {
            slot: 0,
            generation: 0,
        };
        let mut media = Media::default();
        let offer = || WaitingMessage::Offer(key, 0);
        assert!((0..MAX_WAITING).all(|_| ask(&mut media, offer(), b"v=0")));
        assert!(!ask(&mut media, offer(), b"v=0"));
        assert_eq!((media.full, media.bytes), (1, 3 * MAX_WAITING));
        assert!(media.take(0).is_some() && media.take(0).is_none());
        assert!(!ask(&mut media, offer(), &[0; MAX_SDP + 1]), "too long");
        let flow = Flow {
            transport: sip::flow::Transport::Udp,
            listener: sip::flow::ListenerKey(0),
            connection: None,
            local: ([127, 0, 0, 1], 1).into(),
            remote: ([127, 0, 0, 1], 2).into(),
        };
        let long = vec![0; MAX_WAITING_BYTES].into();
        assert!(ask(
            &mut media,
            WaitingMessage::Response(Mark(0), long, flow),
            b"v=0"
        ));
        assert!(media.take(1).is_some());
        assert!(!ask(&mut media, offer(), b"v=0"), "too many bytes");
        assert_eq!(media.full, 3);
        for number in 0..media.next {
            media.take(number);
        }
        assert_eq!(media.bytes, 0);
        assert!(ask(&mut media, offer(), b"v=0"));
    }

    #[test]
    fn offers_count_their_session_descriptions() {
        let key = ContextKey {
            slot: 0,
            generation: 0,
        };
        let mut media = Media::default();
        let long = [0; MAX_SDP];
        let asked =
            (0..MAX_WAITING).filter(|_| ask(&mut media, WaitingMessage::Offer(key, 0), &long));
        assert_eq!(asked.count(), MAX_WAITING_BYTES / MAX_SDP);
    }

    #[test]
    fn what_is_kept_for_copies_is_bounded() {
        let mut media = Media::default();
        let long = vec![0; MAX_KEPT_BYTES];
        let kept = media.keep(Some(&long));
        assert!(kept.is_some() && media.keep(Some(b"v")).is_none() && media.keep(None).is_some());
        media.forget(kept);
        assert_eq!(media.kept, 0);
        assert!(media.keep(Some(b"v")).is_some());
    }

    #[test]
    fn deletions_that_nobody_fetches_are_bounded() {
        let mut media = Media::default();
        for _ in 0..MAX_REQUESTS + 2 {
            media.delete(session(b"c", 1), None);
        }
        assert_eq!((media.requests.len(), media.full), (MAX_REQUESTS, 2));
    }
}
