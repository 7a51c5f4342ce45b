//! Memory that is not needed any more goes back.
//!
//! Transactions come in waves, and the memory of one is of no use to anybody until the next comes. Memory is released
//! in small steps, so that no message waits long. Some more than necessary is kept, so that a busy engine allocates and
//! releases nothing.

use std::time::Duration;

use super::Engine;
use crate::Mono;

/// How often.
const RELEASE_INTERVAL: Duration = Duration::from_millis(250);
/// Bytes at a time, about.
const MAX_BYTES: usize = 16 << 20;

impl Engine {
    /// When there is something to give back.
    pub(super) fn next_memory_release(&self) -> Option<Mono> {
        let has_slack =
            self.servers.has_slack() || self.clients.slab.has_slack() || self.store.has_slack();
        has_slack.then(|| self.memory_released_at.plus(RELEASE_INTERVAL))
    }

    pub(super) fn release_unused_memory(&mut self, now: Mono) {
        if self.next_memory_release().is_none_or(|at| at > now) {
            return;
        }
        self.memory_released_at = now;
        let mut bytes = self.servers.release_memory(MAX_BYTES);
        bytes += self.clients.release_memory(MAX_BYTES);
        bytes += self.store.release_memory(MAX_BYTES.saturating_sub(bytes));
        self.released_bytes += bytes;
    }

    /// How many bytes were returned to the allocator since the last call. It may well keep them.
    pub fn take_released_bytes(&mut self) -> usize {
        std::mem::take(&mut self.released_bytes)
    }
}
