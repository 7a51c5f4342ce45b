//! Which counts of nonces were used, so that a response to a challenge counts once.

use sip::digest::{NonceUse, Replay};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Nonces whose counts are remembered: one for each client that registers within a nonce's life. 34 bytes each.
const NONCES: usize = 1 << 18;

/// Shards with a lock each, so that two workers seldom wait for the same lock.
const PARTS: usize = 64;

/// The counts of nonces that were used, for all workers. Only a right digest reaches them, so other clients cannot
/// contend for the locks.
#[derive(Debug, Clone, Default)]
pub(crate) struct UsedCounts(Arc<OnceLock<Box<[Mutex<Replay>]>>>);

impl UsedCounts {
    pub(super) fn note(&self, id: u64, issued_unix_s: u64, count: u32) -> NonceUse {
        // The memory is allocated at the first use, because many servers have no SIP users.
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
