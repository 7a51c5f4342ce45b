//! Dialogs of a user agent server, on top of transactions: without a table of them.
//!
//! The To tag of a response names its server transaction. It has a MAC that binds it to Call-ID and From tag
//! (RFC 3261 §12). So this server recognizes a request within one of its dialogs long after the transaction has ended.
//! A sender cannot make up a valid tag.

use crate::HashKey;
use crate::branch::{Branch, BranchCodec};
use crate::engine::{Engine, NewRequest, ServerKey};

/// A dialog that a response of one of the workers has established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialog {
    begun_by: Branch,
}

impl Dialog {
    /// The worker that has begun it.
    #[must_use]
    pub const fn worker(self) -> u16 {
        self.begun_by.worker
    }

    /// The INVITE that has begun it, if this engine has it and it has no final response: the dialog is early.
    #[must_use]
    pub fn unanswered(self, engine: &mut Engine) -> Option<ServerKey> {
        let key = self.key(engine)?;
        engine.is_proceeding(key).then_some(key)
    }

    /// The peer has ended the dialog with a BYE. A 2xx without an ACK is not repeated any more: a peer that sends a BYE
    /// has received it (RFC 3261 §15).
    pub fn ended(self, engine: &mut Engine) {
        if let Some(key) = self.key(engine) {
            engine.stop_repeating(key);
        }
    }

    fn key(self, engine: &Engine) -> Option<ServerKey> {
        (self.begun_by.worker == engine.worker()).then(|| ServerKey::of(self.begun_by))
    }
}

/// Knows the dialogs of all workers with one key.
#[derive(Clone, Copy, Debug)]
pub struct Dialogs {
    codec: BranchCodec,
}

impl Dialogs {
    /// With the key of the engines.
    #[must_use]
    pub fn new(key: HashKey) -> Dialogs {
        Dialogs {
            codec: BranchCodec::new(key),
        }
    }

    /// The dialog that a request names with its To tag, Call-ID and From tag; `None` if it is none of ours.
    #[must_use]
    pub fn of(&self, request: &NewRequest<'_>) -> Option<Dialog> {
        let tag = request.to_tag()?;
        let from_tag = request.from_tag().unwrap_or_default();
        let dialog = self.codec.dialog(request.call_id(), from_tag);
        let begun_by = self.codec.read_tag(tag, dialog)?;
        Some(Dialog { begun_by })
    }
}
