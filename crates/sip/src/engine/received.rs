//! What a received message turned out to be.

use std::net::SocketAddr;

use super::error::DropReason;
use super::key::{ClientKey, Fingerprint, RelatedKey, ServerKey, TransactionId};
use super::output::Mark;
use crate::Host;
use crate::build::{Answerable, Stamp};
use crate::flow::Flow;
use crate::header::{Rport, Via};
use crate::message::Message;
use crate::routing::{SentBy, response_address};
use crate::verdict::request::CommonHeaders;

/// A request that belongs to no transaction yet. The TU accepts it, answers it, or lets it go, before it hands in the
/// next message. Accepting and answering consume it, so that it is answered once; its parts can be copied before.
///
/// ```compile_fail,E0382
/// # use hairpin_sip::{Mono, engine::{Engine, NewRequest, Reply}};
/// fn twice(engine: &mut Engine, now: Mono, request: NewRequest<'_>) {
///     let _ = engine.answer(now, request, &Reply::new(200));
///     let _ = engine.answer(now, request, &Reply::new(500));
/// }
/// ```
#[derive(Debug)]
pub struct NewRequest<'m> {
    /// The request.
    pub message: Message<'m>,
    /// Its topmost Via.
    pub via: Via<'m>,
    /// The way it came by.
    pub flow: Flow,
    pub(super) essentials: CommonHeaders<'m>,
    pub(super) fingerprint: Fingerprint,
    /// By what its double was looked for, if it was.
    pub(super) origin: Option<RelatedKey>,
    /// `maddr` and `rport` of the topmost Via as they were received, if `maddr` does not count for this sender.
    pub(super) withheld: Option<(Host<'m>, Rport)>,
    /// The source address is not forged.
    pub(super) is_proven: bool,
}

impl<'m> NewRequest<'m> {
    /// The tag of From.
    #[must_use]
    pub const fn from_tag(&self) -> Option<&'m [u8]> {
        self.essentials.from_tag
    }

    /// The tag of To: a request with one belongs to a dialog.
    #[must_use]
    pub const fn to_tag(&self) -> Option<&'m [u8]> {
        self.essentials.to_tag
    }

    /// Call-ID.
    #[must_use]
    pub const fn call_id(&self) -> &'m [u8] {
        self.essentials.call_id
    }

    /// What a response copies from it.
    pub(super) fn answerable(&self) -> Answerable<'m> {
        let is_tagged = Some(self.to_tag().is_some());
        self.message.answerable_to((self.via, true), is_tagged)
    }

    /// The `received` and `rport` parameters for its topmost Via, in a forwarded request and in a response
    /// (RFC 3261 §18.2.1, RFC 3581 §4).
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        Stamp::of(&self.via, self.flow.remote)
    }

    /// The identifier that it shares with its retransmissions, and with the CANCEL and the ACK of its transaction.
    #[must_use]
    pub const fn transaction(&self) -> TransactionId {
        self.fingerprint.id()
    }

    /// The sender has proved who it is. So `maddr` of the topmost Via says where the response goes, and responses have
    /// any length. See [`Config::trusts_peers_only`](super::Config::trusts_peers_only).
    pub const fn trust(&mut self) {
        self.is_proven = true;
        if let Some((maddr, rport)) = self.withheld.take() {
            self.via.maddr = Some(maddr);
            self.via.rport = rport;
        }
    }

    /// The source address is not forged, because the request has what only its owner has received. Responses have any
    /// length.
    pub const fn trust_source(&mut self) {
        self.is_proven = true;
    }

    /// Where a response goes, as far as the request says (RFC 3261 §18.2.2).
    #[must_use]
    pub fn reply_address(&self) -> SocketAddr {
        reply_address(&self.flow, &self.via)
    }
}

pub(super) fn reply_address(flow: &Flow, via: &Via<'_>) -> SocketAddr {
    let sent_by = SentBy {
        port: via.port,
        rport: via.rport != Rport::Absent,
        maddr: via.maddr.and_then(|maddr| maddr.ip()),
    };
    response_address(flow.transport, flow.remote, sent_by)
}

/// An ACK for a 2xx, which is the TU's: a UAS takes note of it, a proxy forwards it without a transaction.
#[derive(Debug)]
pub struct Ack<'m> {
    /// The ACK.
    pub message: Message<'m>,
    /// Its topmost Via.
    pub via: Via<'m>,
    /// The way it came by.
    pub flow: Flow,
    /// The INVITE's transaction, if its 2xx had a To tag of ours or shares the branch.
    pub invite: Option<(ServerKey, Option<Mark>)>,
}

/// What a received message turned out to be. The hot path returns; what is to be sent is queued.
#[derive(Debug)]
#[must_use]
pub enum Received<'m> {
    /// A request for the TU.
    Request(NewRequest<'m>),
    /// The ACK for a 2xx.
    Ack(Ack<'m>),
    /// A CANCEL for an INVITE that is not answered yet. It was answered with 200; the TU ends the INVITE with 487.
    Cancel {
        /// The INVITE's transaction.
        invite: ServerKey,
        /// Its mark.
        mark: Option<Mark>,
        /// The CANCEL.
        message: Message<'m>,
    },
    /// A response to a request of the TU.
    Response {
        /// The request's transaction; it may have ended with this response.
        client: ClientKey,
        /// Its mark.
        mark: Option<Mark>,
        /// The response.
        message: Message<'m>,
    },
    /// The message belongs to a transaction of this worker: hand it over.
    Elsewhere {
        /// The worker.
        worker: u16,
    },
    /// A transaction took it; nothing for the TU.
    Absorbed,
    /// In an overload: the ACK for a response that the engine itself has sent without a transaction, mostly a 503 of
    /// admission control. Nothing for the TU. Its cost is part of the cost of the 503.
    AckOfRefusal,
    /// It was refused with a response of this code.
    Refused(u16),
    /// A keep-alive: nothing but line ends (RFC 5626 §3.5.1). Over a stream the framing answers it.
    KeepAlive,
    /// It was dropped.
    Dropped(DropReason),
}
