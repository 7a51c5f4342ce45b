//! Which counts of nonces were used, so that a response to a challenge counts once.

use sip::digest::{Replay, Use};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Nonces whose counts are remembered: one for each client that registers within a nonce's life. 34 bytes each.
const NONCES: usize = 1 << 18;

/// Parts of that memory that are locked for themselves: two workers hardly ever meet in one.
const PARTS: usize = 64;

/// The counts of nonces that were used, for all workers. Whoever comes here has shown to know a password, which costs more than a lock
/// that is free.
#[derive(Debug, Clone, Default)]
pub(crate) struct UsedCounts(Arc<OnceLock<Box<[Mutex<Replay>]>>>);

impl UsedCounts {
    pub(super) fn note(&self, id: u64, issued_unix_s: u64, count: u32) -> Use {
        // There is none before somebody needs it.
        let parts = self.0.get_or_init(|| {
            let part = || Mutex::new(Replay::new(NONCES / PARTS));
            (0..PARTS).map(|_| part()).collect()
        });
        // Within a part a nonce's place is by the whole of its identity, which is as good as random.
        let part = &parts[(id >> 58) as usize % PARTS];
        let mut replay = part.lock().unwrap_or_else(PoisonError::into_inner);
        replay.note(id, issued_unix_s, count)
    }
}
