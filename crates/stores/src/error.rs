//! What goes wrong with a store.

use std::time::Duration;

/// Why a store has not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No connection.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The store has refused a query, or its answer makes no sense.
    #[error("{0}")]
    Query(String),
    /// A table is missing. Old databases of coturn lack some.
    #[error("{0}")]
    NoTable(String),
    /// No answer in time.
    #[error("no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The store has failed before, and is not asked for a while.
    #[error("the store is down, and is asked again in a moment")]
    Down,
    /// The URL is wrong.
    #[error("{0}")]
    Url(String),
    /// This kind of store cannot do that.
    #[error("a store of kind `{kind}` cannot {what}")]
    Unsupported {
        /// The kind of the store.
        kind: &'static str,
        /// What was wanted.
        what: &'static str,
    },
}

impl StoreError {
    /// What a library says, with its causes: most libraries hide the reason there.
    pub(crate) fn query(error: &(dyn std::error::Error + 'static)) -> StoreError {
        StoreError::Query(with_causes(error))
    }

    /// The same of a connection.
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
