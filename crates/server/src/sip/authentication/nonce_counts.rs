//! Which counts of nonces were used, so that a response to a challenge counts once.

use super::NONCE_LIFETIME_S;
use sip::digest::{NonceUse, Replay};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Nonces whose counts are kept: one per client that registers within the lifetime of a nonce. A full table uses 34
/// bytes for each.
const MAX_NONCES: usize = 1 << 18;

/// Shards with a lock each, so that two workers seldom wait for the same lock.
const SHARDS: usize = 64;

/// The counts of nonces that were used, for all workers. Only a right digest reaches them, so other clients cannot
/// contend for the locks.
#[derive(Debug, Clone, Default)]
pub(crate) struct UsedCounts(Arc<OnceLock<Box<[Mutex<Replay>]>>>);

impl UsedCounts {
    pub(super) fn note(&self, id: u64, issued_unix_s: u64, count: u32) -> NonceUse {
        // The memory is allocated at the first use, because many servers have no SIP users.
        let parts = self.0.get_or_init(|| {
            let part = || Mutex::new(Replay::new(MAX_NONCES / SHARDS, NONCE_LIFETIME_S));
            (0..SHARDS).map(|_| part()).collect()
        });
        // Within a part a nonce's place is by the whole of its identity, which is as good as random.
        let part = &parts[(id >> 58) as usize % SHARDS];
        let mut replay = part.lock().unwrap_or_else(PoisonError::into_inner);
        replay.note(id, issued_unix_s, count)
    }
}
