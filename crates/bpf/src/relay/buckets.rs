//! One rate limit for each allocation, and for each group of allocations: a user, a source, a realm, the server. The
//! programs on all processors and user space charge them alike: the memory is shared, so it does not matter who relays.
//!
//! The generic cell rate algorithm keeps one time. At this time, all earlier datagrams would have been sent at the
//! allowed rate. A datagram passes if this time is at most one burst after now. The size of the datagram itself does
//! not count, so large datagrams pass, too.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::BpfError;
use crate::sys::Mapping;

/// A rate limit. All zero means no limit.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Bucket {
    tat_ns: AtomicU64,
    scale: AtomicU32,
    burst_us: AtomicU32,
    dropped_packets: AtomicU64,
    dropped_bytes: AtomicU64,
    groups: [AtomicU32; BUCKET_GROUPS],
}

/// Groups that an allocation can be in.
pub const BUCKET_GROUPS: usize = 4;

const _: () = assert!(size_of::<Bucket>() == 48);

/// How often an update of a bucket is tried. If another thread is faster each time, the datagram passes uncharged.
const MAX_ATTEMPTS: u32 = 4;

impl Bucket {
    /// Nanoseconds that a byte may take at a rate, in units of 1/1024: the `scale` of a bucket. No limit is 0. The
    /// slowest rate is 239 bytes per second.
    #[must_use]
    pub fn scale(bytes_per_second: u64) -> u32 {
        match (1_000_000_000_u64 << 10).checked_div(bytes_per_second) {
            None => 0,
            // The highest limit is 1 TB/s.
            Some(scale) => u32::try_from(scale.max(1)).unwrap_or(u32::MAX),
        }
    }

    /// Resets the bucket to this rate (see [`Bucket::scale`]), and to a burst of this many microseconds at the rate.
    pub fn set(&self, scale: u32, burst_us: u32) {
        self.scale.store(0, Relaxed);
        self.tat_ns.store(0, Relaxed);
        self.dropped_packets.store(0, Relaxed);
        self.dropped_bytes.store(0, Relaxed);
        self.burst_us.store(burst_us, Relaxed);
        self.scale.store(scale, Relaxed);
    }

    /// Changes the rate. The debt stays.
    pub fn set_scale(&self, scale: u32) {
        self.scale.store(scale, Relaxed);
    }

    /// The rate, as for [`Bucket::scale`].
    #[must_use]
    pub fn get_scale(&self) -> u32 {
        self.scale.load(Relaxed)
    }

    /// The indexes of further buckets that limit the same traffic. The first 0 ends the list.
    pub fn set_groups(&self, groups: [u32; BUCKET_GROUPS]) {
        for (mine, group) in self.groups.iter().zip(groups) {
            mine.store(group, Relaxed);
        }
    }

    fn groups(&self) -> [u32; BUCKET_GROUPS] {
        self.groups.each_ref().map(|group| group.load(Relaxed))
    }

    /// Charges a datagram's payload bytes at a time (CLOCK_MONOTONIC, nanoseconds), as the programs do. Returns whether
    /// it may pass; if not, that has been counted. The groups are not charged: see [`Buckets::charge`].
    pub fn charge(&self, now_ns: u64, bytes: u64) -> bool {
        let passes = self.passes(now_ns, bytes);
        if !passes {
            self.count_dropped(bytes);
        }
        passes
    }

    fn count_dropped(&self, bytes: u64) {
        self.dropped_packets.fetch_add(1, Relaxed);
        self.dropped_bytes.fetch_add(bytes, Relaxed);
    }

    fn passes(&self, now_ns: u64, bytes: u64) -> bool {
        let scale = u64::from(self.scale.load(Relaxed));
        if scale == 0 {
            return true;
        }
        let limit = now_ns + u64::from(self.burst_us.load(Relaxed)) * 1000;
        let mut tat = self.tat_ns.load(Relaxed);
        for _ in 0..MAX_ATTEMPTS {
            if tat > limit {
                return false;
            }
            let next = tat.max(now_ns) + ((bytes * scale) >> 10);
            match self.tat_ns.compare_exchange(tat, next, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(seen) => tat = seen,
            }
        }
        true
    }

    /// Datagrams dropped since [`Bucket::set`], by the programs and by [`Bucket::charge`].
    #[must_use]
    pub fn dropped_packets(&self) -> u64 {
        self.dropped_packets.load(Relaxed)
    }

    /// The payload of these.
    #[must_use]
    pub fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes.load(Relaxed)
    }
}

/// The rate limits of all allocations and groups.
#[derive(Clone, Debug)]
pub struct Buckets {
    memory: Arc<Mapping>,
    length: u32,
}

impl Buckets {
    /// Over the map BUCKETS, of this many entries.
    pub(super) fn new(map: &OwnedFd, length: u32) -> Result<Buckets, BpfError> {
        let bytes = size_of::<Bucket>() * length as usize;
        let memory = Mapping::new(map.as_fd(), bytes).map_err(|source| BpfError::Element {
            map: "BUCKETS",
            source,
        })?;
        Ok(Buckets {
            memory: Arc::new(memory),
            length,
        })
    }

    /// Makes buckets in memory that no BPF program charges, for a server that relays in user space only.
    ///
    /// # Errors
    /// If there is no address space.
    pub fn in_memory(length: u32) -> io::Result<Buckets> {
        let memory = Mapping::anonymous(size_of::<Bucket>() * length.max(1) as usize)?;
        Ok(Buckets {
            memory: Arc::new(memory),
            length,
        })
    }

    /// Charges the bucket of this index and those of its groups, in this order, until one refuses. Returns whether the
    /// bytes may pass; if not, the first bucket has counted them as dropped.
    #[must_use]
    pub fn charge(&self, index: u32, now_ns: u64, bytes: u64) -> bool {
        let Some(bucket) = self.get(index) else {
            return true;
        };
        let passes =
            bucket.passes(now_ns, bytes) && self.charge_groups(bucket.groups(), now_ns, bytes);
        if !passes {
            bucket.count_dropped(bytes);
        }
        passes
    }

    /// The same for the groups alone, of an allocation that has no bucket of its own.
    #[must_use]
    pub fn charge_groups(&self, groups: [u32; BUCKET_GROUPS], now_ns: u64, bytes: u64) -> bool {
        let groups = groups.into_iter().take_while(|group| *group != 0);
        let mut buckets = groups.filter_map(|group| self.get(group));
        buckets.all(|bucket| bucket.passes(now_ns, bytes))
    }

    /// The number of token buckets.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.length
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The bucket with this index.
    #[must_use]
    pub fn get(&self, index: u32) -> Option<&Bucket> {
        if index >= self.length {
            return None;
        }
        let buckets = self.memory.start().cast::<Bucket>();
        // SAFETY: the mapping holds `length` buckets from its start, a page boundary. They are made of atomics, for
        // which every bit pattern is a value. The programs access them with atomic operations or single stores. The
        // reference borrows from this handle, which keeps the mapping.
        Some(unsafe { &*buckets.add(index as usize) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_rate_holds_after_its_burst() {
        let bucket = Bucket::default();
        bucket.set(Bucket::scale(100_000), 1_000_000);
        let burst = (0..).take_while(|_| bucket.charge(SECOND, 1000)).count();
        assert_eq!(burst, 101, "100 are a second's worth, and one more passes");
        let passed = (1..=1000)
            .filter(|step| bucket.charge(SECOND + step * 100_000_000, 20_000))
            .count();
        assert!(
            (498..=502).contains(&passed),
            "{passed} in 100 s: twice the rate came"
        );
        assert_eq!(bucket.dropped_packets(), 1 + 1000 - passed as u64);
    }

    #[test]
    fn no_size_is_starved_and_zero_is_no_limit() {
        let bucket = Bucket::default();
        assert!((0..1000).all(|_| bucket.charge(0, 65_535)));
        bucket.set(Bucket::scale(1000), 1000);
        assert!(bucket.charge(SECOND, 65_535), "however large");
        assert!(!bucket.charge(SECOND, 1), "but then the debt is to be paid");
        assert_eq!(bucket.dropped_bytes(), 1);
    }

    #[test]
    fn every_group_limits_and_the_allocation_counts() {
        let buckets = Buckets::in_memory(8).expect("memory");
        let get = |index| buckets.get(index).expect("there are eight");
        for allocation in [0, 1] {
            get(allocation).set_groups([5, 6, 0, 7]);
        }
        get(5).set(0, 1_000_000);
        get(6).set(Bucket::scale(1000), 1_000_000);
        get(7).set(Bucket::scale(1), 1);
        assert!(buckets.charge(0, SECOND, 1500));
        assert!(!buckets.charge(0, SECOND, 10) && !buckets.charge(1, SECOND, 20));
        assert_eq!((get(0).dropped_bytes(), get(1).dropped_bytes()), (10, 20));
        assert_eq!(get(6).dropped_packets(), 0);
        assert!(!buckets.charge_groups([6, 0, 0, 0], SECOND, 1));
        get(6).set_scale(0);
        assert!(buckets.charge(0, SECOND, 1500), "no limit any more");
        assert!(buckets.charge(8, SECOND, 1500), "no such bucket");
    }

    #[test]
    fn scales_are_bounded() {
        assert_eq!(Bucket::scale(0), 0);
        assert_eq!(Bucket::scale(1_000_000_000), 1024);
        assert_eq!(Bucket::scale(1), u32::MAX);
        assert_eq!(Bucket::scale(u64::MAX), 1);
    }
}
