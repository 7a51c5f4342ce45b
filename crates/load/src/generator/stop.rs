//! How a run is ended before its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends everything that has a clone of it: setting up, a run, a search. From any thread, or a signal's.
#[derive(Clone, Debug, Default)]
pub struct Stopper(Arc<AtomicBool>);

impl Stopper {
    /// A stopper without a run.
    #[must_use]
    pub fn new() -> Stopper {
        Stopper::default()
    }

    /// No datagram leaves after this; what is on its way is still counted, and allocations are released.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`stop`](Stopper::stop) was called.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
