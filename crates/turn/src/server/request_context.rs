//! The parts of a request that its response requires after its datagram.

use std::sync::Arc;

use stun::{AttributeType, FingerprintState, Message, Method, TransactionId};

use super::realms::RealmNumber;
use super::user::User;
use crate::ClientPath;

/// The parts of a request that its response requires.
#[derive(Clone, Debug)]
pub(super) struct RequestContext {
    /// Where it came from, and where the response goes (RFC 8489 §6.3.1.2).
    pub(super) path: ClientPath,
    pub(super) method: Method,
    pub(super) transaction_id: TransactionId,
    /// Its bytes.
    pub(super) length: usize,
    /// The realm that it belongs to.
    pub(super) realm: RealmNumber,
    /// Whether it carried a FINGERPRINT; then the response does, too.
    pub(super) fingerprint: bool,
    /// Who asked, once that is proven.
    pub(super) user: Option<Arc<User>>,
    /// Whether it is an Allocate request that asks for a ticket (RFC 8016 §3.1.2).
    pub(super) wants_ticket: bool,
    /// Whether another engine may handle it. `false` for a request that came from one.
    pub(super) may_move: bool,
}

impl RequestContext {
    /// A request that nobody has proven yet to have made.
    pub(super) fn unauthenticated(path: &ClientPath, message: &Message<'_>) -> RequestContext {
        RequestContext {
            path: *path,
            method: message.method(),
            transaction_id: message.transaction_id(),
            realm: RealmNumber::default(),
            length: message.as_bytes().len(),
            fingerprint: message.fingerprint() == FingerprintState::Valid,
            user: None,
            wants_ticket: message.method() == Method::ALLOCATE
                && message.contains(AttributeType::MOBILITY_TICKET),
            may_move: true,
        }
    }
}
