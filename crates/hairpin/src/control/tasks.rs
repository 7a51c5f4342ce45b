//! Changes that run to their end. A change continues and gets its audit line, even if the client ends the connection or
//! the connection reaches a limit.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinError;
use tokio::time::timeout;

/// Changes at once. Listeners have far fewer connections.
const MAX_TASKS: u32 = 1_024;

/// The changes that run now.
#[derive(Clone, Debug)]
pub(crate) struct Tasks(Arc<Semaphore>);

impl Default for Tasks {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_TASKS as usize)))
    }
}

impl Tasks {
    /// Makes a change, and waits for its outcome. If this future is dropped, the change continues.
    ///
    /// # Errors
    /// If the change panics, or the server ends.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        change: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, JoinError> {
        let permit = Arc::clone(&self.0).acquire_owned().await;
        let task = tokio::spawn(async move {
            let outcome = change.await;
            drop(permit);
            outcome
        });
        task.await
    }

    /// Waits until all changes have ended, at most for this time. Later ones do not begin.
    pub(crate) async fn finish(&self, limit: Duration) {
        let all = timeout(limit, self.0.acquire_many(MAX_TASKS)).await;
        // Dropping the permits would admit others.
        if let Ok(Ok(all)) = all {
            all.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn block_on(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.expect("a runtime").block_on(test);
    }

    #[test]
    fn a_change_goes_on_when_nobody_waits_for_it() {
        block_on(async {
            let (tasks, made) = (Tasks::default(), Arc::new(AtomicU32::new(0)));
            assert_eq!(tasks.run(async { 7 }).await.expect("it ends"), 7);
            let count = Arc::clone(&made);
            let change = async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                count.fetch_add(1, Ordering::Relaxed);
            };
            // The caller has ended.
            let waited = timeout(Duration::from_millis(1), tasks.run(change)).await;
            assert!(waited.is_err());
            tasks.finish(LONG).await;
            assert_eq!(made.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn the_end_waits_for_a_limited_time() {
        block_on(async {
            let tasks = Tasks::default();
            let endless = timeout(Duration::from_millis(1), tasks.run(pending::<()>()));
            assert!(endless.await.is_err());
            tasks.finish(Duration::from_millis(20)).await;
        });
    }
}
