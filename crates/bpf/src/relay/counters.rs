//! What went over the flows: a counter for each, on every processor, read from the programs' own memory.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::table::Counts;
use crate::BpfError;
use crate::sys::Mapping;

/// `struct count` of the programs.
#[repr(C)]
struct Count {
    bytes: AtomicU64,
    packets: AtomicU32,
    last_seen: AtomicU32,
}

const _: () = assert!(size_of::<Count>() == 16);

/// The counters of all flows: those of the first processor, those of the second, and so on.
#[derive(Clone, Debug)]
pub(super) struct Counters {
    memory: Arc<Mapping>,
    each: u32,
    processors: u32,
}

impl Counters {
    /// Over the map COUNTS, which has `each` counters for each of so many processors.
    pub(super) fn new(map: &OwnedFd, each: u32, processors: u32) -> Result<Counters, BpfError> {
        let bytes = size_of::<Count>() * each as usize * processors as usize;
        let memory = Mapping::new(map.as_fd(), bytes).map_err(|source| BpfError::Element {
            map: "COUNTS",
            source,
        })?;
        Ok(Counters {
            memory: Arc::new(memory),
            each,
            processors,
        })
    }

    /// A counter's sum over the processors; zero if there is no such counter.
    pub(super) fn sum(&self, counter: u32) -> Counts {
        let mut sum = Counts::default();
        if counter >= self.each {
            return sum;
        }
        for processor in 0..self.processors as usize {
            let index = processor * self.each as usize + counter as usize;
            let counts = self.memory.start().cast::<Count>();
            // SAFETY: the mapping holds `each` counters for each processor from its start, a page boundary, and both parts
            // of the index are below these numbers; they are made of atomics, and the programs write them with single
            // stores. The reference does not outlive this handle, which keeps the mapping.
            let count = unsafe { &*counts.add(index) };
            sum.bytes = sum.bytes.wrapping_add(count.bytes.load(Relaxed));
            sum.packets = sum.packets.wrapping_add(count.packets.load(Relaxed));
            let seen = seconds(count.last_seen.load(Relaxed));
            sum.last_seen_s = sum.last_seen_s.max(seen);
        }
        sum
    }
}

/// From the programs' units of 2^30 ns, which save them a division: up to a second early.
fn seconds(units: u32) -> u32 {
    // Fits: 2^32 units are not much more than 2^32 seconds, and none has passed.
    ((u64::from(units) << 30) / 1_000_000_000) as u32
}
