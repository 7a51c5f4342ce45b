//! Limits of application data per second: of allocations, users, sources, realms and the server. All are token buckets
//! in one table, which the workers share and, if the kernel relays, the BPF programs, too.
//!
//! ```text
//! allocations (numbers handed out in chunks) | groups: users, sources, realms, the server
//! ```
//!
//! Each number has one bucket, or two if the directions have limits of their own.

mod allocations;
mod chunks;
mod groups;
mod limits;

pub(crate) use allocations::{Numbers, Rates};
pub(crate) use chunks::Chunks;
pub(crate) use limits::GroupRates;
pub use limits::RateLimits;

use crate::quota::{OtherCounts, SharedCounts, SourcePrefix};
use bpf::relay::{BUCKET_GROUPS, Bucket, Buckets};
use groups::{Groups, Membership, SetScales};
use std::sync::Arc;
use turn::server::{RATE_BURST_NS, RelayDirection};

/// The burst of a bucket in microseconds.
const BURST_US: u32 = (RATE_BURST_NS / 1000) as u32;

/// The size of a table.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TableSize {
    /// Allocations that can have a bucket: a multiple of [`Chunks::SIZE`].
    pub(crate) allocations: u32,
    /// Whether there are groups.
    pub(crate) has_groups: bool,
    /// Whether each direction has a bucket of its own.
    pub(crate) directions_apart: bool,
}

impl TableSize {
    /// Room for this number of allocations, rounded up.
    pub(crate) fn new(allocations: u32, limits: &RateLimits, groups: &GroupRates) -> TableSize {
        TableSize {
            allocations: allocations.next_multiple_of(Chunks::SIZE),
            has_groups: groups.limits_any(),
            directions_apart: limits.directions_apart,
        }
    }

    /// How many buckets the table has.
    pub(crate) fn buckets(self) -> u32 {
        (self.allocations + self.groups()) * self.stride()
    }

    /// Each allocation may be the only one of its user and of its source.
    fn groups(self) -> u32 {
        match self.has_groups {
            true => self.allocations * 2 + Groups::EXTRA_NUMBERS,
            false => 0,
        }
    }

    fn stride(self) -> u32 {
        if self.directions_apart { 2 } else { 1 }
    }

    /// Memory for [`RateTable::share`]; `None` without groups.
    ///
    /// # Errors
    /// When the system has no memory or no descriptor.
    pub(crate) fn shared_counts(self) -> std::io::Result<Option<SharedCounts>> {
        let groups = self.groups() as usize;
        (groups > 0).then(|| SharedCounts::new(groups)).transpose()
    }

    /// Whether user space alone requires a table. Otherwise each engine keeps the limits of its allocations.
    pub(crate) fn needs_table(self) -> bool {
        self.has_groups || self.directions_apart
    }
}

/// All rate limits.
#[derive(Debug)]
pub(crate) struct RateTable {
    size: TableSize,
    buckets: Buckets,
    /// The numbers of allocations' buckets.
    allocations: Arc<Chunks>,
    groups: Option<Groups>,
}

impl RateTable {
    /// Over these buckets, of which there are [`TableSize::buckets`].
    pub(crate) fn new(size: TableSize, buckets: Buckets) -> RateTable {
        RateTable {
            size,
            buckets,
            allocations: Arc::new(Chunks::new(size.allocations)),
            groups: size.has_groups.then(|| Groups::new(size.groups())),
        }
    }

    /// In memory that no BPF program charges.
    ///
    /// # Errors
    /// If there is no address space.
    pub(crate) fn in_memory(size: TableSize) -> std::io::Result<RateTable> {
        Ok(RateTable::new(size, Buckets::in_memory(size.buckets())?))
    }

    /// Whether users, sources, realms or the server can have limits.
    pub(crate) fn has_groups(&self) -> bool {
        self.groups.is_some()
    }

    /// Numbers for the allocations of one worker.
    pub(crate) fn numbers(&self) -> Arc<Numbers> {
        Arc::new(Numbers::new(
            Arc::clone(&self.allocations),
            self.size.stride(),
        ))
    }

    /// Changes the rates of groups.
    pub(crate) fn set_rates(&self, rates: GroupRates, prefix: SourcePrefix) {
        if let Some(groups) = &self.groups {
            groups.set_rates(rates, prefix, &|number, scale| {
                self.set_scale(number, scale)
            });
        }
    }

    fn set_scale(&self, group: u32, scale: u32) {
        self.each_bucket_of(group, |bucket| bucket.set_scale(scale));
    }

    /// Writes how many allocations each group has to this memory, which another process reads, from now on.
    pub(crate) fn share(&self, own: SharedCounts) {
        if let Some(groups) = &self.groups {
            groups.share(own);
        }
    }

    /// As it was made.
    pub(crate) fn size(&self) -> TableSize {
        self.size
    }

    /// Leaves a part of the rate of each group to this other process from now on.
    pub(crate) fn share_with(&self, other: OtherCounts) {
        if let Some(groups) = &self.groups {
            groups.share_with(other, &|number, scale| self.set_scale(number, scale));
        }
    }

    /// There is no other process any more.
    pub(crate) fn stop_sharing(&self) {
        if let Some(groups) = &self.groups {
            groups.stop_sharing(&|number, scale| self.set_scale(number, scale));
        }
    }

    /// Adapts the parts of the two processes to the allocations that they have now.
    pub(crate) fn set_shares(&self) {
        if let Some(groups) = &self.groups {
            groups.set_shares(&|number, scale| self.set_scale(number, scale));
        }
    }

    fn join(&self, client: &turn::server::ClientIdentity<'_>) -> Membership {
        let begin = |number: u32, scale: u32| {
            self.each_bucket_of(number, |bucket| bucket.set(scale, BURST_US));
        };
        let set = SetScales {
            begin: &begin,
            change: &|number, scale| self.set_scale(number, scale),
        };
        let groups = self.groups.as_ref();
        groups.map_or(Membership::default(), |groups| groups.join(client, &set))
    }

    fn leave(&self, membership: Membership) {
        if let Some(groups) = &self.groups {
            groups.leave(membership, &|number, scale| self.set_scale(number, scale));
        }
    }

    /// The indexes of the groups' buckets for this direction, as a bucket has them.
    fn indexes(&self, membership: Membership, direction: RelayDirection) -> [u32; BUCKET_GROUPS] {
        let base = self.size.allocations * self.size.stride();
        let mut indexes = [0; BUCKET_GROUPS];
        let numbers = membership.numbers();
        for (index, number) in indexes.iter_mut().zip(numbers) {
            *index = base + offset(number, self.size.stride(), direction);
        }
        indexes
    }

    fn each_bucket_of(&self, group: u32, change: impl Fn(&Bucket)) {
        let stride = self.size.stride();
        let first = (self.size.allocations + group) * stride;
        (first..first + stride)
            .filter_map(|index| self.buckets.get(index))
            .for_each(change);
    }
}

/// Where the bucket of a number and a direction is.
const fn offset(number: u32, stride: u32, direction: RelayDirection) -> u32 {
    match direction {
        RelayDirection::ToClient if stride == 2 => number * stride + 1,
        _ => number * stride,
    }
}

#[cfg(test)]
mod tests;
