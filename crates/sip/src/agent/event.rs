//! The events of a user agent for its program.

use std::time::Duration;

use super::authenticator::AuthProblem;
use super::draft::Content;
use crate::build::BuildError;
use crate::dispatch::{DispatchError, Failure};
use crate::engine::RespondError;

/// Names a call of one user agent; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallKey(pub(super) u64);

/// Names a request: one of [`UserAgent::request`](super::UserAgent::request), or one that the program responds to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(super) u64);

/// Why nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// There is no such call or request, or it has ended.
    #[error("there is no such call or request any more")]
    Gone,
    /// The state of the call, the method or the response code does not allow it. For example, an INVITE has no final
    /// response (RFC 3261 §14.1).
    #[error("the state of the call, the method or the response code does not allow this")]
    OutOfPlace,
    /// There are as many calls as there may be.
    #[error("the limit of calls is reached")]
    Full,
    /// A URI is malformed, or not one of SIP. Or it is a SIPS URI, and the contact is not (RFC 3261 §8.1.1.8).
    #[error("not a SIP URI such as `sip:alice@example.com`, or a SIPS URI without a SIPS contact")]
    Uri,
    /// Header lines or a media type are malformed: a line without a name or a line end, or an empty line.
    #[error("a header line or a media type is malformed")]
    Lines,
    /// The message cannot be written.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The URI leads nowhere, or too many requests are in progress.
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    /// The response was not sent.
    #[error(transparent)]
    Respond(#[from] RespondError),
}

/// Why a registration failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterFailure {
    /// The registrar wants credentials that cannot be given, or rejects them.
    #[error("{0}")]
    Authentication(AuthProblem),
    /// The registrar refused: a code and its reason phrase.
    #[error("the registrar responded {0} {1}")]
    Refused(u16, String),
    /// There was no response.
    #[error(transparent)]
    NoResponse(Failure),
    /// The request could not be sent.
    #[error(transparent)]
    NotSent(CallError),
}

/// Why a call has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndCause {
    /// This side has ended it.
    #[error("this side has ended the call")]
    HungUp,
    /// The peer has sent BYE.
    #[error("the other side has ended the call")]
    PeerHungUp,
    /// The caller has cancelled the call before it was answered: this side, or the peer.
    #[error("the call was cancelled before it was answered")]
    Cancelled,
    /// This side has rejected the call with this code.
    #[error("this side has rejected the call with {0}")]
    Rejected(u16),
    /// The call was refused.
    #[error("the call was refused: {code} {reason}")]
    Refused {
        /// The code, 300 to 699.
        code: u16,
        /// The reason phrase.
        reason: String,
        /// The URIs of Contact: where a 3xx has the call go instead (RFC 3261 §8.1.3.4).
        contacts: Vec<String>,
    },
    /// A server wants credentials that cannot be given, or rejects them.
    #[error("{0}")]
    Authentication(AuthProblem),
    /// There was no response.
    #[error(transparent)]
    NoResponse(Failure),
    /// No ACK has come for the 2xx of this side (RFC 3261 §13.3.1.4), or no PRACK for its reliable provisional response
    /// (RFC 3262 §3).
    #[error("the peer has not acknowledged a response of this side")]
    NotAcknowledged,
    /// The peer has answered with a message that cannot be read.
    #[error("the answer of the other side is malformed")]
    Malformed,
    /// The program has not answered the call for too long
    /// ([`Timers::answer_limit`](crate::timer::Timers::answer_limit)).
    #[error("the call was not answered for too long")]
    Abandoned,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The contact is registered, or the registration was refreshed.
    Registered {
        /// For so long. The user agent refreshes it before that.
        expires: Duration,
    },
    /// The registrar has removed the contact, as [`unregister`](super::UserAgent::unregister) requested.
    Unregistered,
    /// The contact is not registered.
    RegisterFailed {
        /// Why.
        failure: RegisterFailure,
        /// The user agent tries again after this time; `None` if the program must change something first.
        retry_after: Option<Duration>,
    },
    /// Somebody calls. The program calls [`ring`](super::UserAgent::ring), [`answer`](super::UserAgent::answer) or
    /// [`reject`](super::UserAgent::reject).
    Incoming {
        /// The call.
        call: CallKey,
        /// The URI of From: who calls, as far as the sender is to be believed.
        from: String,
        /// The Request-URI: who is called.
        to: String,
        /// The offer. If it is empty, the program makes the offer in [`answer`](super::UserAgent::answer), and
        /// [`Event::Acknowledged`] has the peer's answer.
        content: Content,
        /// The whole INVITE.
        message: Vec<u8>,
    },
    /// A provisional response to an INVITE of ours: 101 to 199.
    Progress {
        /// The call.
        call: CallKey,
        /// The code; 180: it rings.
        code: u16,
        /// The To tag, which distinguishes the branches of a forked call; empty if the response begins no dialog.
        branch: Vec<u8>,
        /// An early answer, or nothing. If the INVITE had no offer and the response is reliable (RFC 3262), it is an
        /// offer: the program calls [`answer_progress`](super::UserAgent::answer_progress).
        content: Content,
    },
    /// The PRACK for our reliable provisional response has come (RFC 3262).
    ProgressAcknowledged {
        /// The call.
        call: CallKey,
        /// The answer, if the INVITE had no offer and the response had one.
        content: Content,
    },
    /// The call is answered. If the INVITE had no offer, the program calls
    /// [`acknowledge`](super::UserAgent::acknowledge).
    Answered {
        /// The call.
        call: CallKey,
        /// The To tag: which of the branches has answered.
        branch: Vec<u8>,
        /// The answer, or the offer.
        content: Content,
    },
    /// The ACK for our 2xx has come.
    Acknowledged {
        /// The call.
        call: CallKey,
        /// The answer, if the 2xx had the offer.
        content: Content,
    },
    /// The peer wants to change the session (re-INVITE). The program calls [`answer`](super::UserAgent::answer) or
    /// [`reject`](super::UserAgent::reject), after which the session stays as it was.
    Offer {
        /// The call.
        call: CallKey,
        /// The offer; without one, the answer has it.
        content: Content,
    },
    /// The peer has cancelled its re-INVITE. The session stays as it was.
    OfferCancelled {
        /// The call.
        call: CallKey,
    },
    /// The peer has accepted our re-INVITE. If it had no offer, the program calls
    /// [`acknowledge`](super::UserAgent::acknowledge).
    OfferAnswered {
        /// The call.
        call: CallKey,
        /// The answer, or the offer.
        content: Content,
    },
    /// The peer has not accepted our re-INVITE. The session stays as it was. After a 491, the program retries (RFC 3261
    /// §14.1). If it has begun the call, it waits 2.1 to 4 s, otherwise 0 to 2 s. After a 408 or 481 the user agent
    /// ends the call.
    OfferRefused {
        /// The call.
        call: CallKey,
        /// The code; 408 or 503 if there was no response.
        code: u16,
    },
    /// A request with a method that the user agent does not handle itself. The program calls
    /// [`respond`](super::UserAgent::respond).
    Request {
        /// To be named there.
        id: RequestId,
        /// The call that it belongs to, if there is one.
        call: Option<CallKey>,
        /// The method.
        method: String,
        /// The body.
        content: Content,
        /// The whole request.
        message: Vec<u8>,
    },
    /// The final response to a request of the program.
    Response {
        /// The request.
        id: RequestId,
        /// The code; 408 or 503 if there was no response.
        code: u16,
        /// The reason phrase.
        reason: String,
        /// The body.
        content: Content,
    },
    /// The call has ended. Nothing more comes of it.
    Ended {
        /// The call.
        call: CallKey,
        /// Why.
        cause: EndCause,
    },
}
