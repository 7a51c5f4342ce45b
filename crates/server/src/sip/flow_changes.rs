//! When phones have got other flows, for the workers that have requests for them.
//!
//! The worker of an address of record knows its bindings. If a worker asked it about each request within a dialog, most
//! of these requests would pass through two workers. So the worker of the address notes when a REGISTER comes by a new
//! flow. Other workers hand over only requests of dialogs that began before that.

use sip_server::AorKey;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Places for addresses of record: 256 KiB. If several share a place, some requests are handed over without need.
const PLACE_COUNT: usize = 1 << 16;

/// When phones have got other flows. All workers share it.
#[derive(Debug, Clone)]
pub(crate) struct FlowChanges(Arc<[AtomicU32]>);

impl FlowChanges {
    /// Begins at this time (Unix time in seconds). Earlier changes are not known. So every phone may have another flow
    /// than in a dialog that began earlier.
    pub(crate) fn new(unix_s: u64) -> FlowChanges {
        let start = seconds(unix_s);
        FlowChanges((0..PLACE_COUNT).map(|_| AtomicU32::new(start)).collect())
    }

    fn place(&self, key: AorKey) -> &AtomicU32 {
        &self.0[(key.0 >> 32) as usize % PLACE_COUNT]
    }

    /// Notes that a phone of the address with this key has another flow.
    pub(crate) fn note(&self, key: AorKey, unix_s: u64) {
        self.place(key).store(seconds(unix_s), Ordering::Relaxed);
    }

    /// Whether a phone of the address with this key may have got another flow since this time. It may also be one of
    /// another address.
    pub(crate) fn any_since(&self, key: AorKey, unix_s: u64) -> bool {
        self.place(key).load(Ordering::Relaxed) >= seconds(unix_s)
    }
}

fn seconds(unix_s: u64) -> u32 {
    u32::try_from(unix_s).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dialogs_of_before_a_change_are_asked_about_and_later_ones_are_not() {
        let changes = FlowChanges::new(1_000);
        let (one, other) = (AorKey(7 << 32), AorKey(8 << 32));
        assert!(changes.any_since(one, 999), "of an earlier run");
        assert!(changes.any_since(one, 1_000), "within the same second");
        assert!(!changes.any_since(one, 1_001));
        changes.clone().note(one, 1_100);
        assert!(changes.any_since(one, 1_100));
        assert!(!changes.any_since(one, 1_101));
        assert!(!changes.any_since(other, 1_001));
    }
}
