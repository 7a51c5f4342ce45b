//! Errors of stores.

use std::time::Duration;

/// Why a store has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store cannot be reached, or reports that it is unavailable.
    #[error("the store cannot be reached: {0}")]
    Connect(String),
    /// The store has rejected a query, or its response is malformed.
    #[error("{0}")]
    Query(String),
    /// A table is missing. Old databases of coturn lack some.
    #[error("{0}")]
    NoTable(String),
    /// The database user of the server has no permission to subscribe to changes.
    #[error("the store does not permit it: {0}")]
    Denied(String),
    /// No response in time.
    #[error("no response within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The deadline of a request with several queries or changes has passed.
    #[error("the time for this request is over")]
    Deadline,
    /// The store is down.
    #[error("the store is down; the server probes it at most 30 s apart")]
    Down,
    /// The URL is wrong.
    #[error("{0}")]
    Url(String),
    /// This kind of store cannot do that.
    #[error("a store of kind `{kind}` cannot {what}")]
    Unsupported {
        /// The kind of the store.
        kind: &'static str,
        /// What it cannot do.
        what: &'static str,
    },
}

impl StoreError {
    /// The error of a library with its sources: most libraries have the reason only there.
    pub(crate) fn query(error: &(dyn std::error::Error + 'static)) -> StoreError {
        StoreError::Query(with_causes(error))
    }

    /// The same for an error of a connection.
    pub(crate) fn connect(error: &(dyn std::error::Error + 'static)) -> StoreError {
        StoreError::Connect(with_causes(error))
    }
}

fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = inner.source();
    }
    text
}
