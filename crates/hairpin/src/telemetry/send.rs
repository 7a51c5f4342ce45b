//! Batches for the collector: which records become which request.

use std::time::Duration;

use hyper::body::Bytes;
use serde_json::{Map, Value};
use stores::sinks::{Otlp, Rejected, SendError};

use super::IS_EXPORTER;
use super::encode::{Ids, LogRecord, Origin};
use crate::events::Record;
use crate::events::run::Destination;

/// A collector handles few large requests better than many small ones. An alert can wait for a second.
const LINGER: Duration = Duration::from_secs(1);

/// The collector, for log records.
pub(super) struct Logs {
    otlp: Otlp,
    origin: Origin,
}

impl Logs {
    pub(super) const fn new(otlp: Otlp, origin: Origin) -> Logs {
        Logs { otlp, origin }
    }
}

impl Destination for Logs {
    type Record = LogRecord;
    type Batch = Bytes;
    const LINGER: Duration = LINGER;

    fn batch(&mut self, records: &[LogRecord]) -> Bytes {
        IS_EXPORTER.set(true);
        self.origin.logs(records).into()
    }

    async fn send(&mut self, batch: &Bytes) -> Result<u64, SendError> {
        post(&self.otlp, batch, "logs").await
    }
}

/// The collector, for spans.
pub(super) struct Traces {
    otlp: Otlp,
    origin: Origin,
    run: String,
    ids: Ids,
}

impl Traces {
    pub(super) fn new(otlp: Otlp, origin: Origin, run: String) -> Traces {
        Traces {
            otlp,
            origin,
            run,
            ids: Ids::default(),
        }
    }
}

impl Destination for Traces {
    type Record = Record;
    type Batch = Bytes;
    const LINGER: Duration = LINGER;

    fn batch(&mut self, records: &[Record]) -> Bytes {
        IS_EXPORTER.set(true);
        let objects = records.iter().map(|record| record.line(&self.run).json);
        let objects = objects.filter_map(|json| serde_json::from_str(&json).ok());
        let objects: Vec<Map<String, Value>> = objects.collect();
        self.origin.traces(&mut self.ids, &objects).into()
    }

    async fn send(&mut self, batch: &Bytes) -> Result<u64, SendError> {
        post(&self.otlp, batch, "traces").await
    }
}

async fn post(otlp: &Otlp, batch: &Bytes, signal: &'static str) -> Result<u64, SendError> {
    let Rejected { count, why } = otlp.post(batch.clone()).await?;
    if count > 0 {
        tracing::warn!(
            signal,
            count,
            why,
            "the collector rejects a part of a batch"
        );
    }
    Ok(count)
}
