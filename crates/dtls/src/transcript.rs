//! The hash over the handshake's messages (RFC 5246 §7.4.9, RFC 6347 §4.2.6).

use aws_lc_rs::digest::{Context, Digest};

use crate::crypto::Suite;

/// It excludes the first ClientHello and the HelloVerifyRequest. Each message is hashed as one fragment.
#[derive(Clone)]
pub(crate) struct Transcript(Context);

impl std::fmt::Debug for Transcript {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Transcript")
    }
}

impl Transcript {
    pub(crate) fn new(suite: &Suite) -> Transcript {
        Transcript(Context::new(suite.hash))
    }

    pub(crate) fn add(&mut self, messages: &[u8]) {
        self.0.update(messages);
    }

    /// The hash of the messages so far.
    pub(crate) fn hash(&self) -> Digest {
        self.0.clone().finish()
    }
}
