//! The SIP tables. The server reads them after the small tables, and separately. A store whose SIP tables are too
//! large, too slow or malformed still has its users.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task;

use super::{Done, Queries};
use crate::error::StoreError;
use crate::store::SipTables;
use crate::stores::Notice;

/// How long the reading may take. Look-ups of users continue in that time.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// The reading of the SIP tables.
#[derive(Debug, Default)]
pub(super) struct SipReading {
    /// The reading that runs.
    task: Option<task::Id>,
    /// The tables must be read again after it.
    again: bool,
    /// Why the last reading failed. The log has each reason once.
    error: Option<String>,
}

impl SipReading {
    pub(super) fn is_task(&self, task: task::Id) -> bool {
        self.task == Some(task)
    }
}

impl Queries {
    /// Begins to read the SIP tables, or notes that they must be read again.
    pub(super) fn read_sip_tables(&mut self) {
        if self.sip.task.is_some() {
            self.sip.again = true;
            return;
        }
        let store = Arc::clone(&self.store);
        let task = self.running.spawn(async move {
            let reading = tokio::time::timeout(READ_TIMEOUT, store.sip_tables()).await;
            Done::Sip(reading.unwrap_or(Err(StoreError::Timeout(READ_TIMEOUT))))
        });
        self.sip.task = Some(task.id());
    }

    /// Handles the SIP tables, or the failure to read them. After a failure, the earlier rows stay in use, and the
    /// store does not count as down.
    pub(super) fn sip_tables_read(&mut self, outcome: Result<SipTables, StoreError>) {
        self.sip.task = None;
        self.source.is_sip_current.store(outcome.is_ok(), Relaxed);
        match outcome {
            Ok(tables) => self.use_sip_tables(tables),
            Err(error) => self.keep_sip_tables(&error),
        }
        self.source.was_tried.store(true, Relaxed);
        if std::mem::take(&mut self.sip.again) {
            self.read_sip_tables();
        }
    }

    fn use_sip_tables(&mut self, tables: SipTables) {
        self.sip.error = None;
        let omitted = tables.omitted;
        let before = &self.source.counters.sip_omitted;
        if before.swap(omitted, Relaxed) != omitted && omitted > 0 {
            tracing::warn!(
                store = self.source.kind.name(),
                omitted,
                "a SIP table of a store has more than {} rows: the others have no effect",
                SipTables::MAX_ROWS
            );
        }
        if self.source.set_sip(tables) {
            (self.notify)(Notice::Shared);
        }
    }

    fn keep_sip_tables(&mut self, error: &StoreError) {
        self.source.counters.sip_failures.fetch_add(1, Relaxed);
        let reason = error.to_string();
        if self.sip.error.as_ref() == Some(&reason) {
            return;
        }
        let store = self.source.kind.name();
        tracing::warn!(
            store,
            reason,
            "the SIP tables of a store cannot be read, the rows that were read last stay"
        );
        self.sip.error = Some(reason);
    }
}
