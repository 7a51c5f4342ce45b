//! What one worker gets to have its channels relayed in the kernel.

use super::NextHopTable;
use super::chunks::Chunks;
use bpf::relay::{Buckets, Counts, FlowEntry, FlowKey, InsertError, Table};
use std::fmt::Debug;
use std::sync::Arc;

/// A worker's hands on what the kernel's programs look into.
#[derive(Debug)]
pub(crate) struct Part {
    /// The flows; one handle per worker.
    pub(crate) table: Table,
    /// The rate limits.
    pub(crate) buckets: Buckets,
    /// Shared by all workers, as is everything below.
    pub(crate) next_hops: Arc<NextHopTable>,
    /// Numbers of channels: each has two counters.
    pub(crate) channels: Arc<Chunks>,
    /// Numbers of rate limits.
    pub(crate) rates: Arc<Chunks>,
}

/// The table of flows, or what a test takes for it.
pub(crate) trait Flowing: Debug + Send {
    /// As [`Table::begin`].
    fn begin(&mut self, counter: u32);
    /// As [`Table::insert`].
    fn insert(&mut self, key: &FlowKey, entry: &FlowEntry) -> Result<(), InsertError>;
    /// As [`Table::remove`].
    fn remove(&mut self, key: &FlowKey) -> bool;
    /// As [`Table::counts`].
    fn counts(&mut self, counter: u32) -> Counts;
}

impl Flowing for Table {
    fn begin(&mut self, counter: u32) {
        Table::begin(self, counter);
    }

    fn insert(&mut self, key: &FlowKey, entry: &FlowEntry) -> Result<(), InsertError> {
        Table::insert(self, key, entry)
    }

    fn remove(&mut self, key: &FlowKey) -> bool {
        Table::remove(self, key)
    }

    fn counts(&mut self, counter: u32) -> Counts {
        Table::counts(self, counter)
    }
}
