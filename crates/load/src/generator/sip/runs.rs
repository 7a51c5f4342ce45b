//! A number of runs that threads share.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// How many units of work a run has, if that is what ends it.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs {
    pub(super) limit: Option<u64>,
    pub(super) begun: Arc<AtomicU64>,
    pub(super) over: Arc<AtomicU64>,
    /// Over in this thread when it was last looked at.
    pub(super) seen: u64,
}

impl Runs {
    pub(super) fn new(limit: Option<u64>) -> Runs {
        Runs {
            limit,
            ..Runs::default()
        }
    }
}
