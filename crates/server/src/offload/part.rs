//! What one worker gets to have its channels relayed in the kernel.

use super::NextHopTable;
use bpf::relay::{Counts, FlowEntry, FlowKey, InsertError, Table};
use std::fmt::Debug;
use std::sync::Arc;

/// A worker's handles to the tables that it shares with the BPF programs.
#[derive(Debug)]
pub(crate) struct WorkerTables {
    /// The flows; one handle per worker.
    pub(crate) table: Table,
    /// Shared by all workers.
    pub(crate) next_hops: Arc<NextHopTable>,
}

/// The table of flows, or what a test takes for it.
pub(crate) trait Flowing: Debug + Send {
    /// As [`Table::insert`].
    fn insert(&mut self, key: &FlowKey, entry: &FlowEntry) -> Result<(), InsertError>;
    /// As [`Table::remove`].
    fn remove(&mut self, key: &FlowKey) -> Option<Counts>;
    /// As [`Table::counts`].
    fn counts(&mut self, key: &FlowKey) -> Option<Counts>;
}

impl Flowing for Table {
    fn insert(&mut self, key: &FlowKey, entry: &FlowEntry) -> Result<(), InsertError> {
        Table::insert(self, key, entry)
    }

    fn remove(&mut self, key: &FlowKey) -> Option<Counts> {
        Table::remove(self, key)
    }

    fn counts(&mut self, key: &FlowKey) -> Option<Counts> {
        Table::counts(self, key)
    }
}
