//! Why a verb of the TU was refused, why a message was dropped.

use crate::build::BuildError;
use crate::verdict;

/// Why a server transaction could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcceptError {
    /// There are as many as there may be.
    #[error("too many server transactions")]
    Full,
    /// An ACK has no transaction and no answer.
    #[error("an ACK is not answered")]
    Ack,
    /// The request is longer than can be kept.
    #[error("the request is too long to be kept")]
    TooLong,
}

/// Why a response was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RespondError {
    /// The transaction has ended.
    #[error("the server transaction has ended")]
    Gone,
    /// RFC 3261 §17.2 or RFC 4320 forbids it in this state. Examples: a second final response, a 408 for a non-INVITE
    /// request, a provisional response that is not allowed.
    #[error("no such response may be sent in this state")]
    OutOfPlace,
    /// It could not be written.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// No transaction could be made.
    #[error(transparent)]
    Accept(#[from] AcceptError),
    /// The request lacks what a response copies.
    #[error("the request lacks a header field that responses copy")]
    Unanswerable,
}

/// Why a request was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// There are as many client transactions as there may be.
    #[error("too many client transactions")]
    Full,
    /// This worker is congested: answer with 503.
    #[error("congested: requests like this one are not sent now")]
    Congested,
    /// The next hop asked to throttle requests (RFC 7339): answer with 503.
    #[error("the next hop asked to throttle requests (RFC 7339)")]
    HeldBack,
    /// The listener has no sent-by for the transport.
    #[error("no sent-by is configured for this listener and transport")]
    NoSentBy,
    /// The pieces do not form a request, or an ACK was passed to [`Engine::request`](super::Engine::request).
    #[error("the message is no request")]
    Malformed,
    /// With the Via of this server, the request has more than 65,536 bytes. A proxy responds with 513 (RFC 3261
    /// §21.5.7).
    #[error("the message is too long")]
    TooLong,
    /// The connection named is not open.
    #[error("the connection is not open")]
    NoConnection,
}

/// Why a received message was dropped. Each reason is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DropReason {
    /// It does not begin as a message of SIP.
    NotSip,
    /// A request that is wrong, and has no Via to answer to.
    NoReturnPath,
    /// An ACK that is wrong: ACK is never answered.
    BadAck,
    /// A response whose form is wrong.
    BadResponse,
    /// A response for somebody else: a user agent's has one Via.
    NotOurs,
    /// A response to a request that this server has forwarded, whose only Via is this server's. There is no element to
    /// forward it to (RFC 3261 §16.7 step 3).
    NoNextHop,
    /// A response whose next hop would be a broadcast or multicast address.
    Broadcast,
    /// A response to a branch that is not ours.
    ForeignBranch,
    /// A response to a branch that looks like one of ours and is not.
    ForgedBranch,
    /// A response to a transaction that has ended.
    Stray,
    /// A response whose CSeq method is not the request's (RFC 3261 §17.1.3).
    WrongMethod,
    /// A response whose topmost Via names somebody else (RFC 3261 §18.1.2).
    WrongSentBy,
    /// Shed in silence by congestion control.
    Shed,
    /// A datagram so short that any response would be more than 2.5 times as large: its source may be forged.
    Amplification,
}

impl DropReason {
    /// All reasons, in the order of their counters.
    pub const ALL: [DropReason; 14] = [
        DropReason::NotSip,
        DropReason::NoReturnPath,
        DropReason::BadAck,
        DropReason::BadResponse,
        DropReason::NotOurs,
        DropReason::NoNextHop,
        DropReason::Broadcast,
        DropReason::ForeignBranch,
        DropReason::ForgedBranch,
        DropReason::Stray,
        DropReason::WrongMethod,
        DropReason::WrongSentBy,
        DropReason::Shed,
        DropReason::Amplification,
    ];

    /// For the label of a metric.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::NotSip => "not_sip",
            DropReason::NoReturnPath => "no_return_path",
            DropReason::BadAck => "bad_ack",
            DropReason::BadResponse => "bad_response",
            DropReason::NotOurs => "not_ours",
            DropReason::NoNextHop => "no_next_hop",
            DropReason::Broadcast => "broadcast",
            DropReason::ForeignBranch => "foreign_branch",
            DropReason::ForgedBranch => "forged_branch",
            DropReason::Stray => "stray",
            DropReason::WrongMethod => "wrong_method",
            DropReason::WrongSentBy => "wrong_sent_by",
            DropReason::Shed => "shed",
            DropReason::Amplification => "amplification",
        }
    }
}

impl From<verdict::DropReason> for DropReason {
    fn from(reason: verdict::DropReason) -> DropReason {
        match reason {
            // A keep-alive is no drop; the engine says so before it comes here.
            verdict::DropReason::KeepAlive | verdict::DropReason::NotSip => DropReason::NotSip,
            verdict::DropReason::NoReturnPath => DropReason::NoReturnPath,
            verdict::DropReason::BadAck => DropReason::BadAck,
            verdict::DropReason::BadResponse => DropReason::BadResponse,
            verdict::DropReason::NotOurs => DropReason::NotOurs,
            verdict::DropReason::Broadcast => DropReason::Broadcast,
        }
    }
}
