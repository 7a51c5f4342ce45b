//! The thread of a sink: it takes events from a queue and sends them in batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use stores::sinks::{Line, SendError, Sink};
use tokio::sync::{mpsc, watch};

use super::record::Record;
use super::{Counters, Delivery};

/// Events of a batch.
const BATCH: usize = 256;
/// The time after a first failure; it doubles with each further one.
const BACKOFF: Duration = Duration::from_millis(250);
const BACKOFF_MOST: Duration = Duration::from_secs(30);

pub(super) struct Task {
    /// Its number and kind, for the log.
    pub(super) name: String,
    /// The run of the process, for identities.
    pub(super) run: String,
    pub(super) delivery: Delivery,
    pub(super) sink: Sink,
    pub(super) queue: mpsc::Receiver<Record>,
    pub(super) counters: Arc<Counters>,
    pub(super) stop: watch::Receiver<Option<Instant>>,
}

impl Task {
    /// Runs until the server stops.
    pub(super) fn block(mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        match runtime {
            Ok(runtime) => {
                runtime.block_on(self.run());
                runtime.shutdown_background();
            }
            Err(error) => tracing::error!(sink = self.name, "events are lost: {error}"),
        }
    }

    async fn run(&mut self) {
        let mut records = Vec::with_capacity(BATCH);
        let mut is_stopping = false;
        loop {
            let count = tokio::select! {
                count = self.queue.recv_many(&mut records, BATCH) => count,
                // Also if the other end is gone.
                _ = self.stop.changed(), if !is_stopping => {
                    is_stopping = true;
                    // Events that wait are still received.
                    self.queue.close();
                    continue;
                }
            };
            if count == 0 {
                return;
            }
            let lines: Vec<Line> = records.iter().map(|it| it.line(&self.run)).collect();
            records.clear();
            let stop = self.stop.clone();
            tokio::select! {
                () = self.deliver(&lines) => {}
                () = passed(stop) => {
                    self.count_stopped(lines.len() as u64);
                    return;
                }
            }
            self.counters
                .waiting
                .fetch_sub(count as u64, Ordering::Relaxed);
        }
    }

    /// Sends a batch, or gives it up.
    async fn deliver(&mut self, lines: &[Line]) {
        let count = lines.len() as u64;
        let mut backoff = BACKOFF;
        let mut failures = 0u32;
        loop {
            let (why, lost) = match self.sink.send(lines).await {
                Ok(()) => {
                    if failures > 0 {
                        tracing::info!(sink = self.name, failures, "events are sent again");
                    }
                    add(&self.counters.sent, count);
                    return;
                }
                Err(SendError::Refused(why)) => (why, Some(&self.counters.refused)),
                Err(SendError::Later(why)) if self.delivery == Delivery::AtMostOnce => {
                    (why, Some(&self.counters.failed))
                }
                Err(SendError::Later(why)) => (why, None),
            };
            add(&self.counters.failures, 1);
            if let Some(lost) = lost {
                tracing::warn!(sink = self.name, events = count, "events lost: {why}");
                add(lost, count);
                // A sink that is down costs one attempt per pause; the queue drops and counts the rest.
                tokio::time::sleep(BACKOFF).await;
                return;
            }
            if failures == 0 {
                tracing::warn!(sink = self.name, events = count, "events wait: {why}");
            }
            failures += 1;
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MOST);
        }
    }

    /// Counts this batch and what is in the queue.
    fn count_stopped(&mut self, batch: u64) {
        let mut lost = batch;
        while self.queue.try_recv().is_ok() {
            lost += 1;
        }
        add(&self.counters.stopped, lost);
        tracing::warn!(
            sink = self.name,
            events = lost,
            "events lost: the server has ended before the sink received them"
        );
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Waits until the deadline of a server that stops.
async fn passed(mut stop: watch::Receiver<Option<Instant>>) {
    // An error says that the server has ended without a deadline.
    let deadline = stop.wait_for(Option::is_some).await;
    let deadline = deadline.ok().and_then(|it| *it);
    if let Some(deadline) = deadline {
        tokio::time::sleep_until(deadline.into()).await;
    }
}
