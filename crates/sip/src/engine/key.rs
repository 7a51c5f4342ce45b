//! The keys of transactions, and how a request finds its server transaction.

use std::num::NonZeroU64;

use crate::branch::Branch;
use crate::header::Via;
use crate::message::Message;
use crate::verdict::request::CommonHeaders;
use crate::{HashKey, Method};

/// Names a server transaction of one engine; stale when it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerKey {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl ServerKey {
    pub(crate) const fn of(branch: Branch) -> ServerKey {
        ServerKey {
            slot: branch.slot,
            generation: branch.generation,
        }
    }
}

/// Names a client transaction of one engine; stale when it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientKey {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// Names a connection that the engine has asked the embedder to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectKey {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// Identifies a server transaction: 128 bits of a keyed hash of what RFC 3261 §17.2.3 compares. Two different requests
/// have the same one with probability 2^-128. Nobody can raise that without the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fingerprint(pub(super) u128);

/// What the messages of one transaction have in common: 64 bits of a keyed hash, the same in all engines with one key.
/// An ACK counts as its INVITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransactionId(pub u64);

impl Fingerprint {
    pub(super) const fn id(self) -> TransactionId {
        TransactionId((self.0 >> 64) as u64)
    }
}

/// Identifies what messages with different branches have in common: a keyed hash. Unrelated messages have the same one
/// with probability 2^-62. Its lowest bits say which kind of messages it is for.
pub(super) type RelatedKey = NonZeroU64;

/// Set in what an INVITE within a dialog and its ACK have in common.
const WITHIN_DIALOG: u64 = 1;
/// Set in that of a request that was answered at once.
const ANSWERED_AT_ONCE: u64 = 2;

/// Whether this is what an INVITE within a dialog and its ACK have in common.
pub(super) fn is_within_dialog(related: RelatedKey) -> bool {
    related.get() & WITHIN_DIALOG != 0
}

/// Whether this is that of a request which was answered at once.
pub(super) fn is_answered_at_once(related: RelatedKey) -> bool {
    related.get() & ANSWERED_AT_ONCE != 0
}

/// The same, of a request that was answered at once.
pub(super) fn answered_at_once(related: RelatedKey) -> RelatedKey {
    related | ANSWERED_AT_ONCE
}

/// Makes fingerprints.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matcher {
    key: HashKey,
    /// For clients of RFC 2543.
    old_key: HashKey,
    tag_key: HashKey,
    ack_key: HashKey,
}

impl Matcher {
    pub(super) fn new(key: HashKey) -> Matcher {
        let key = key.derive(u64::from_le_bytes(*b"matching"));
        Matcher {
            key,
            old_key: key.derive(2543),
            tag_key: key.derive(3261),
            ack_key: key.derive(6026),
        }
    }

    /// RFC 3261 §17.2.3: branch, sent-by and method, an ACK counting as INVITE. Branches and hosts in any case.
    pub(super) fn by_branch(
        &self,
        branch: &[u8],
        via: &Via<'_>,
        method: Method<'_>,
    ) -> Fingerprint {
        let mut hasher = self.key.fingerprint();
        hasher.folded_field(branch);
        hasher.folded_field(via.host.as_bytes());
        hasher.number(via.port.unwrap_or(0).into());
        hasher.field(counting_as(method).as_bytes());
        Fingerprint(hasher.finish_128())
    }

    /// RFC 3261 §17.2.3 for clients of RFC 2543: Request-URI, tags, Call-ID, CSeq and the topmost Via. An ACK has the
    /// To tag of the response and an INVITE mostly none, so To counts for neither.
    pub(super) fn by_headers(
        &self,
        message: &Message<'_>,
        via: &Via<'_>,
        method: Method<'_>,
    ) -> Option<Fingerprint> {
        let method = counting_as(method);
        let to_tag = match method {
            Method::Invite => None,
            _ => message.to().ok()?.tag,
        };
        let from_tag = message.from().ok()?.tag;
        let mut hasher = self.old_key.fingerprint();
        for field in [
            message.request_uri()?,
            to_tag.unwrap_or_default(),
            from_tag.unwrap_or_default(),
            message.call_id().ok()?,
            via.bytes,
            method.as_bytes(),
        ] {
            hasher.field(field);
        }
        hasher.number(message.cseq().ok()?.number.into());
        Some(Fingerprint(hasher.finish_128()))
    }

    /// An INVITE within a dialog and the ACK for its 2xx have this in common: both tags, Call-ID and the number of
    /// CSeq. That ACK has a branch of its own, and its To tag names the transaction which began the dialog
    /// (RFC 3261 §13.2.2.4). `None` outside of a dialog.
    pub(super) fn by_dialog(&self, message: &CommonHeaders<'_>) -> Option<RelatedKey> {
        let to_tag = message.to_tag?;
        let related = self.related_key(message, to_tag, Method::Invite);
        RelatedKey::new(related & !ANSWERED_AT_ONCE | WITHIN_DIALOG)
    }

    /// A request outside of dialogs that came by two ways has this in common with itself: From tag, Call-ID and CSeq
    /// (RFC 3261 §8.2.2.2). `None` within a dialog.
    pub(super) fn by_origin(
        &self,
        message: &CommonHeaders<'_>,
        method: Method<'_>,
    ) -> Option<RelatedKey> {
        match message.to_tag {
            Some(_) => None,
            None => {
                let related = self.related_key(message, b"", method);
                RelatedKey::new(related & !(WITHIN_DIALOG | ANSWERED_AT_ONCE))
            }
        }
    }

    fn related_key(&self, message: &CommonHeaders<'_>, to_tag: &[u8], method: Method<'_>) -> u64 {
        let from_tag = message.from_tag.unwrap_or_default();
        let mut hasher = self.ack_key.fingerprint();
        let method = method.as_bytes();
        for field in [to_tag, from_tag, message.call_id, method] {
            hasher.field(field);
        }
        hasher.number(message.cseq.into());
        hasher.finish_128() as u64
    }

    /// The To tag of a response without a transaction. It is the same for the same request, so that a
    /// retransmission gets the same response (RFC 3261 §8.2.7).
    pub(super) fn stateless_tag(&self, fingerprint: Fingerprint) -> [u8; 8] {
        let number = self.tag_key.mac(&fingerprint.0.to_le_bytes());
        number.to_le_bytes()
    }

    /// By what the method of a response's CSeq is compared with the request's.
    pub(super) fn method(&self, method: Method<'_>) -> u32 {
        self.key.mac(method.as_bytes()) as u32
    }
}

fn counting_as(method: Method<'_>) -> Method<'_> {
    match method {
        Method::Ack => Method::Invite,
        method => method,
    }
}
