//! A thread that takes records from a queue and sends them in batches: of a sink of events, or of telemetry.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc as std_mpsc;
use std::thread;
use std::time::{Duration, Instant};

use stores::sinks::SendError;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, sleep_until};

use super::{Counters, Delivery};

/// Records of a batch.
const BATCH: usize = 256;
/// The time after a first failure; it doubles with each further one.
const BACKOFF: Duration = Duration::from_millis(250);
const BACKOFF_MOST: Duration = Duration::from_secs(30);

/// Where a task sends its batches.
pub(crate) trait Destination {
    /// What waits in the queue.
    type Record;
    /// What is sent. A batch that is sent again is the same.
    type Batch;
    /// The longest time that the first record of a batch waits for further records.
    const LINGER: Duration;

    /// The batch of these records.
    fn batch(&mut self, records: &[Self::Record]) -> Self::Batch;

    /// One attempt. Returns how many records of the batch the receiver has rejected for good.
    async fn send(&mut self, batch: &Self::Batch) -> Result<u64, SendError>;
}

/// How a destination gets its records.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The name of the thread.
    pub(crate) thread: String,
    /// The name of the destination in the log.
    pub(crate) name: String,
    pub(crate) delivery: Delivery,
    /// Records that may wait.
    pub(crate) queue: usize,
}

/// The thread of a destination, seen from outside.
#[derive(Debug)]
pub(crate) struct Spawned<R> {
    pub(crate) sender: mpsc::Sender<R>,
    pub(crate) counters: Arc<Counters>,
    /// Ends when the thread does.
    pub(crate) ended: ThreadEnd,
}

/// Ends when a thread does.
#[derive(Debug)]
pub(crate) struct ThreadEnd(std_mpsc::Receiver<()>);

impl ThreadEnd {
    /// Waits until the thread has ended, at most until shortly after `deadline`.
    pub(crate) fn wait_until(&self, deadline: Instant) {
        // Nothing is sent: the other end is dropped when the thread ends. A file on a server that is away may block it.
        let left = deadline.saturating_duration_since(Instant::now());
        let _ = self.0.recv_timeout(left + Duration::from_millis(500));
    }
}

/// Starts the thread of a destination. When `stop` gets a deadline, the thread sends the records that wait. It ends
/// when it has sent them, or at the deadline.
///
/// # Errors
/// If the system has no resources for a thread.
pub(crate) fn spawn<D>(
    plan: Plan,
    destination: D,
    stop: watch::Receiver<Option<Instant>>,
) -> std::io::Result<Spawned<D::Record>>
where
    D: Destination + Send + 'static,
    D::Record: Send,
{
    let counters = Arc::new(Counters::default());
    let (sender, queue) = mpsc::channel(plan.queue);
    let (alive, ended) = std_mpsc::channel();
    let mut task = Task {
        name: plan.name,
        delivery: plan.delivery,
        destination,
        queue,
        counters: Arc::clone(&counters),
        stop,
    };
    thread::Builder::new().name(plan.thread).spawn(move || {
        // The thread opens no port and loads nothing.
        drop(server::privileges::drop_all());
        task.block();
        drop(alive);
    })?;
    Ok(Spawned {
        sender,
        counters,
        ended: ThreadEnd(ended),
    })
}

struct Task<D: Destination> {
    name: String,
    delivery: Delivery,
    destination: D,
    queue: mpsc::Receiver<D::Record>,
    counters: Arc<Counters>,
    stop: watch::Receiver<Option<Instant>>,
}

impl<D: Destination> Task<D> {
    /// Runs until the server stops.
    fn block(&mut self) {
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
                // `changed` also returns if the sender was dropped. The thread stops then, too.
                _ = self.stop.changed(), if !is_stopping => {
                    is_stopping = true;
                    // Records that wait are still received.
                    self.queue.close();
                    continue;
                }
            };
            if count == 0 {
                return;
            }
            if !is_stopping {
                self.linger(&mut records).await;
            }
            let batch = self.destination.batch(&records);
            let count = records.len() as u64;
            records.clear();
            let stop = self.stop.clone();
            tokio::select! {
                () = self.deliver(&batch, count) => {}
                () = passed(stop) => {
                    self.count_stopped(count);
                    return;
                }
            }
            self.counters.waiting.fetch_sub(count, Ordering::Relaxed);
        }
    }

    /// Waits for further records of a batch.
    async fn linger(&mut self, records: &mut Vec<D::Record>) {
        let end = tokio::time::Instant::now() + D::LINGER;
        let mut stop = self.stop.clone();
        while records.len() < BATCH && !D::LINGER.is_zero() {
            let room = BATCH - records.len();
            tokio::select! {
                count = self.queue.recv_many(records, room) => if count == 0 {
                    return;
                },
                () = sleep_until(end) => return,
                // An error says that the other end was dropped.
                _ = stop.wait_for(Option::is_some) => return,
            }
        }
    }

    /// Sends a batch of so many records, or gives it up.
    async fn deliver(&mut self, batch: &D::Batch, count: u64) {
        let mut backoff = BACKOFF;
        let mut failures = 0u32;
        loop {
            let (why, pause, is_later) = match self.destination.send(batch).await {
                Ok(rejected) => {
                    if failures > 0 {
                        tracing::info!(sink = self.name, failures, "events are sent again");
                    }
                    let rejected = rejected.min(count);
                    add(&self.counters.refused, rejected);
                    add(&self.counters.sent, count - rejected);
                    return;
                }
                Err(SendError::Refused(why)) => (why, Duration::ZERO, false),
                Err(SendError::Later(why)) => (why, Duration::ZERO, true),
                Err(SendError::After(why, pause)) => (why, pause, true),
            };
            add(&self.counters.failures, 1);
            if !is_later || self.delivery == Delivery::AtMostOnce {
                tracing::warn!(sink = self.name, events = count, "events lost: {why}");
                let lost = match is_later {
                    true => &self.counters.failed,
                    false => &self.counters.refused,
                };
                add(lost, count);
                // A sink that is down costs one attempt per pause; the queue drops and counts the rest.
                sleep(BACKOFF.max(pause)).await;
                return;
            }
            if failures == 0 {
                tracing::warn!(sink = self.name, events = count, "events wait: {why}");
            }
            failures += 1;
            sleep(backoff.max(pause)).await;
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
        sleep_until(deadline.into()).await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Receives batches, and has these results, each with the time of the attempt.
    struct Scripted {
        results: VecDeque<Result<u64, SendError>>,
        attempts: mpsc::UnboundedSender<(Vec<u32>, tokio::time::Instant)>,
    }

    impl Destination for Scripted {
        type Record = u32;
        type Batch = Vec<u32>;
        const LINGER: Duration = Duration::from_secs(1);

        fn batch(&mut self, records: &[u32]) -> Vec<u32> {
            records.to_vec()
        }

        async fn send(&mut self, batch: &Vec<u32>) -> Result<u64, SendError> {
            let _ = self
                .attempts
                .send((batch.clone(), tokio::time::Instant::now()));
            self.results.pop_front().unwrap_or(Ok(0))
        }
    }

    fn later() -> Result<u64, SendError> {
        Err(SendError::Later("later".to_owned()))
    }

    fn after(seconds: u64) -> Result<u64, SendError> {
        let pause = Duration::from_secs(seconds);
        Err(SendError::After("later".to_owned(), pause))
    }

    /// Sends these records, each so many milliseconds after the one before, in virtual time. Returns the batch and the
    /// millisecond of each attempt, and the counters.
    fn run(
        delivery: Delivery,
        results: impl IntoIterator<Item = Result<u64, SendError>>,
        gaps_ms: &[u64],
    ) -> (Vec<(Vec<u32>, u64)>, Arc<Counters>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let counters = Arc::new(Counters::default());
        let (attempts, mut seen) = mpsc::unbounded_channel();
        let (sender, queue) = mpsc::channel(16);
        let (_stop, stopped) = watch::channel(None);
        let mut task = Task {
            name: "test".to_owned(),
            delivery,
            destination: Scripted {
                results: results.into_iter().collect(),
                attempts,
            },
            queue,
            counters: Arc::clone(&counters),
            stop: stopped,
        };
        let begun = runtime.block_on(async {
            let begun = tokio::time::Instant::now();
            let records = async {
                for (record, gap) in (0..).zip(gaps_ms) {
                    sleep(Duration::from_millis(*gap)).await;
                    sender.send(record).await.expect("there is room");
                    counters.waiting.fetch_add(1, Ordering::Relaxed);
                }
                // The task ends when the queue does.
                drop(sender);
            };
            tokio::join!(task.run(), records);
            begun
        });
        drop(task);
        let mut all = Vec::new();
        while let Ok((batch, at)) = seen.try_recv() {
            all.push((batch, at.duration_since(begun).as_millis() as u64));
        }
        assert_eq!(counters.waiting.load(Ordering::Relaxed), 0);
        (all, counters)
    }

    #[test]
    fn records_within_the_linger_are_one_batch() {
        let (attempts, counters) = run(Delivery::AtLeastOnce, [], &[0, 600, 600]);
        // The third comes after the second that the first has waited.
        assert_eq!(attempts, [(vec![0, 1], 1_000), (vec![2], 1_200)]);
        assert_eq!(counters.sent.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_receiver_that_says_when_is_not_asked_before() {
        let results = [later(), after(7), later(), after(0), Ok(0)];
        let (attempts, counters) = run(Delivery::AtLeastOnce, results, &[0]);
        let times: Vec<u64> = attempts.iter().map(|(_, at)| *at).collect();
        // The record waits for others until the queue ends at once. The pauses are 0.25, 7, 1 and 2 s.
        assert_eq!(times, [0, 250, 7_250, 8_250, 10_250]);
        assert!(attempts.iter().all(|(batch, _)| *batch == [0]));
        assert_eq!(counters.failures.load(Ordering::Relaxed), 4);
        assert_eq!(counters.sent.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_a_receiver_rejects_is_counted_and_not_sent_again() {
        let refused = Err(SendError::Refused("no".to_owned()));
        let (attempts, counters) = run(Delivery::AtLeastOnce, [refused], &[0]);
        assert_eq!(attempts.len(), 1);
        assert_eq!(counters.refused.load(Ordering::Relaxed), 1);
        let (attempts, counters) = run(Delivery::AtLeastOnce, [Ok(2)], &[0, 0, 0]);
        assert_eq!(attempts.len(), 1);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!((read(&counters.refused), read(&counters.sent)), (2, 1));
        let (attempts, counters) = run(Delivery::AtMostOnce, [after(60)], &[0]);
        assert_eq!(attempts.len(), 1);
        assert_eq!(read(&counters.failed), 1);
    }
}
