//! Where a source that responds later sends its result.

use super::KeyLookup;

/// Takes the result of a look-up, on any thread, once. Dropped without a result, it says [`KeyLookup::Unavailable`].
pub struct KeyReply(Option<Box<dyn FnOnce(KeyLookup) + Send>>);

impl KeyReply {
    /// `deliver` brings the result to the engine that asked: to
    /// [`Server::keys_found`](crate::server::Server::keys_found) on its thread.
    #[must_use]
    pub fn new(deliver: impl FnOnce(KeyLookup) + Send + 'static) -> KeyReply {
        KeyReply(Some(Box::new(deliver)))
    }

    /// Answers. [`KeyLookup::Pending`] is no result, and counts as [`KeyLookup::Unavailable`].
    pub fn send(mut self, lookup: KeyLookup) {
        self.deliver(lookup);
    }

    fn deliver(&mut self, lookup: KeyLookup) {
        if let Some(deliver) = self.0.take() {
            deliver(match lookup {
                KeyLookup::Pending => KeyLookup::Unavailable,
                told => told,
            });
        }
    }
}

impl Drop for KeyReply {
    fn drop(&mut self) {
        self.deliver(KeyLookup::Unavailable);
    }
}

impl std::fmt::Debug for KeyReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyReply")
    }
}
