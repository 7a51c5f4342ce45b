//! Whether the entries of new flows are used yet: memory that the programs and user space share.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::BpfError;
use crate::sys::Mapping;

/// What a slot holds of a flow that is settled.
const SETTLED: u64 = 0;
/// And of one that no packet has been seen of; all other values are the programs' business.
const FRESH: u64 = 1;

/// One slot for each counter.
#[derive(Clone, Debug)]
pub(super) struct Settling {
    memory: Arc<Mapping>,
    length: u32,
}

impl Settling {
    /// Over the map SETTLING, of so many entries.
    pub(super) fn new(map: &OwnedFd, length: u32) -> Result<Settling, BpfError> {
        let bytes = size_of::<AtomicU64>() * length as usize;
        let memory = Mapping::new(map.as_fd(), bytes).map_err(|source| BpfError::Element {
            map: "SETTLING",
            source,
        })?;
        Ok(Settling {
            memory: Arc::new(memory),
            length,
        })
    }

    /// The flow of this counter starts.
    pub(super) fn begin(&self, counter: u32) {
        if let Some(slot) = self.slot(counter) {
            slot.store(FRESH, Relaxed);
        }
    }

    /// Whether the flow's entry is used.
    pub(super) fn is_over(&self, counter: u32) -> bool {
        self.slot(counter)
            .is_none_or(|slot| slot.load(Relaxed) == SETTLED)
    }

    fn slot(&self, counter: u32) -> Option<&AtomicU64> {
        if counter >= self.length {
            return None;
        }
        let slots = self.memory.start().cast::<AtomicU64>();
        // SAFETY: the mapping holds `length` slots from its start, a page boundary; every bit pattern is a value of an atomic,
        // and the programs touch them with single loads and stores. The reference borrows from this handle, which keeps the
        // mapping.
        Some(unsafe { &*slots.add(counter as usize) })
    }
}
