//! The rate limits of one worker's allocations.

use super::chunks::Chunks;
use super::groups::Membership;
use super::{BURST_US, RateTable, offset};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use turn::Mono;
use turn::server::{ClientIdentity, RelayDirection, SharedBuckets};

const DIRECTIONS: [RelayDirection; 2] = [RelayDirection::ToPeer, RelayDirection::ToClient];

/// A chunk of allocations that has no buckets yet.
const NO_BUCKETS: u32 = u32::MAX;

/// Which buckets an allocation has, by its index in the worker's engine. A chunk of allocations gets a chunk of numbers
/// when one of them begins, as long as there are any.
#[derive(Debug)]
pub(crate) struct Numbers {
    pool: Arc<Chunks>,
    stride: u32,
    /// The first number of each chunk of allocations.
    firsts: Box<[AtomicU32]>,
}

impl Numbers {
    /// For one worker; each number has this many buckets.
    pub(crate) fn new(pool: Arc<Chunks>, stride: u32) -> Numbers {
        let firsts = (0..pool.count())
            .map(|_| AtomicU32::new(NO_BUCKETS))
            .collect();
        Numbers {
            pool,
            stride,
            firsts,
        }
    }

    /// The index of an allocation's bucket for a direction, if it has one.
    pub(crate) fn bucket(&self, allocation: u32, direction: RelayDirection) -> Option<u32> {
        let first = self.firsts.get((allocation / Chunks::SIZE) as usize)?;
        let first = first.load(Ordering::Relaxed);
        let number = (first != NO_BUCKETS).then(|| first + allocation % Chunks::SIZE)?;
        Some(offset(number, self.stride, direction))
    }

    /// Takes a chunk if need be. For the worker's own thread.
    fn take(&self, allocation: u32) {
        let Some(first) = self.firsts.get((allocation / Chunks::SIZE) as usize) else {
            return;
        };
        if first.load(Ordering::Relaxed) == NO_BUCKETS
            && let Some(taken) = self.pool.take()
        {
            first.store(taken, Ordering::Relaxed);
        }
    }
}

/// The limits of one worker's allocations, as its engine uses them.
#[derive(Debug)]
pub(crate) struct Rates {
    table: Arc<RateTable>,
    numbers: Arc<Numbers>,
    /// By the allocation's index; empty without groups.
    memberships: Vec<Membership>,
}

impl Rates {
    pub(crate) fn new(table: Arc<RateTable>, numbers: Arc<Numbers>) -> Rates {
        Rates {
            table,
            numbers,
            memberships: Vec::new(),
        }
    }

    fn membership(&self, allocation: u32) -> Membership {
        let membership = self.memberships.get(allocation as usize);
        membership.copied().unwrap_or_default()
    }

    fn join(&mut self, allocation: u32, client: &ClientIdentity<'_>) -> Membership {
        let membership = self.table.join(client);
        let at = allocation as usize;
        if at >= self.memberships.len() && membership != Membership::default() {
            self.memberships.resize(at + 1, Membership::default());
        }
        if let Some(own) = self.memberships.get_mut(at) {
            *own = membership;
        }
        membership
    }
}

impl SharedBuckets for Rates {
    fn begin(&mut self, allocation: u32, scale: u32, client: &ClientIdentity<'_>) -> bool {
        self.end(allocation);
        let membership = self.join(allocation, client);
        self.numbers.take(allocation);
        let mut has_bucket = false;
        for direction in DIRECTIONS {
            let index = self.numbers.bucket(allocation, direction);
            if let Some(bucket) = index.and_then(|index| self.table.buckets.get(index)) {
                bucket.set_groups(self.table.indexes(membership, direction));
                bucket.set(scale, BURST_US);
                has_bucket = true;
            }
        }
        has_bucket
    }

    fn end(&mut self, allocation: u32) {
        if let Some(membership) = self.memberships.get_mut(allocation as usize) {
            self.table.leave(std::mem::take(membership));
        }
    }

    fn charge(
        &self,
        allocation: u32,
        direction: RelayDirection,
        now: Mono,
        bytes: u64,
    ) -> Option<bool> {
        let buckets = &self.table.buckets;
        if let Some(index) = self.numbers.bucket(allocation, direction) {
            return Some(buckets.charge(index, now.0, bytes));
        }
        let groups = self.table.indexes(self.membership(allocation), direction);
        (!buckets.charge_groups(groups, now.0, bytes)).then_some(false)
    }

    fn group_scale(&self, allocation: u32, direction: RelayDirection) -> u32 {
        let indexes = self.table.indexes(self.membership(allocation), direction);
        let groups = indexes.into_iter().filter(|index| *index != 0);
        let buckets = groups.filter_map(|index| self.table.buckets.get(index));
        buckets.map(|bucket| bucket.get_scale()).max().unwrap_or(0)
    }
}
