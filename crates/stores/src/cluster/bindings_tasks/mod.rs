//! The tasks of the control thread that write and look up registrations.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::join3;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::binding_texts::{Forged, Owner};
use super::bindings::ClusterBindings;
use super::engine::{BindRequest, BindResult, Engine, Texts};
use super::moved::MovedBinding;
use super::run::{Backoff, BatchSize, FIRST_PAUSE_MS, WarningLimiter, unix_ms, unix_s, within};
use super::{Seal, Shared};
use crate::error::StoreError;

/// Addresses that are asked for at once.
const BATCH_ADDRESSES: usize = 256;
/// Between two writes: changes of one address that come together are one write.
const GATHER_TIME: Duration = Duration::from_millis(50);
/// Notices that wait for the engine. Without one, a binding stays until it expires.
const NOTICE_QUEUE_SIZE: usize = 1 << 14;
/// How long a notice is repeated until the engine has it.
const NOTICE_LIFETIME: Duration = Duration::from_secs(60);
/// Within this time the engine answers a look-up. A call waits for it.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs for ever.
pub(super) async fn all(
    engine: Arc<dyn Engine>,
    shared: Arc<Shared>,
    (node, seal): (String, Seal),
) {
    let Some(bindings) = shared.bindings.clone() else {
        return std::future::pending().await;
    };
    let tasks = Tasks {
        engine,
        shared,
        bindings,
        node,
        seal,
    };
    let (notices, waiting) = mpsc::channel(NOTICE_QUEUE_SIZE);
    join3(tasks.write(notices), tasks.tell(waiting), tasks.find()).await;
}

/// Writes registrations to the engine, without I/O.
#[derive(Debug)]
pub struct Writer {
    node: String,
    seal: Seal,
    bindings: Arc<ClusterBindings>,
    batch: BatchSize,
    backoff: Backoff,
    warned: WarningLimiter,
    /// Bindings that other nodes must remove, with the names of these nodes.
    moved: Vec<(String, MovedBinding)>,
    /// Texts of the engine that no node has written.
    forged: u64,
}

impl Writer {
    /// For the bindings of this node.
    #[must_use]
    pub fn new(node: String, seal: Seal, bindings: Arc<ClusterBindings>) -> Writer {
        Writer {
            node,
            seal,
            bindings,
            batch: BatchSize::default(),
            backoff: Backoff(FIRST_PAUSE_MS),
            warned: WarningLimiter::default(),
            moved: Vec::new(),
            forged: 0,
        }
    }

    fn owner(&self, unix_ms: u64) -> Owner<'_> {
        Owner {
            node: &self.node,
            seal: &self.seal,
            unix_ms,
        }
    }

    /// The changes that have waited longest; nothing if there is none.
    #[must_use]
    pub fn begin(&self, unix_ms: u64) -> Vec<BindRequest> {
        let owner = self.owner(unix_ms);
        self.bindings.take_changes(self.batch.get(), &owner)
    }

    /// The engine has responded after this time, or has not. Returns the pause before the next request.
    pub fn end(
        &mut self,
        requests: Vec<BindRequest>,
        outcome: Result<Vec<BindResult>, StoreError>,
        took: Duration,
    ) -> Duration {
        self.batch.note(took, outcome.is_ok());
        match outcome {
            Ok(bound) if bound.iter().any(Result::is_ok) => {
                self.backoff.reset();
                self.note_results(requests, bound);
                GATHER_TIME
            }
            outcome => {
                let error = match outcome {
                    Err(error) => Some(error),
                    Ok(bound) => bound.into_iter().find_map(Result::err),
                };
                if let Some(error) = error.filter(|_| self.warned.may()) {
                    tracing::warn!(
                        %error,
                        "the engine of the cluster does not take registrations: other nodes do not know them until it does"
                    );
                }
                self.bindings.put_back(requests);
                self.backoff.next()
            }
        }
    }

    /// Counts the results of a batch of which the engine has written at least one.
    ///
    /// If one of several Redis servers did not respond, its addresses of record go back into the queue. Rejected ones
    /// are dropped.
    fn note_results(&mut self, requests: Vec<BindRequest>, bound: Vec<BindResult>) {
        let (mut written, mut older, mut rejected) = (0, 0, 0);
        let (mut waiting, mut failed, mut own) = (Vec::new(), None, Vec::new());
        let (mut others, mut unproven) = (Vec::new(), 0);
        for (request, outcome) in requests.into_iter().zip(bound) {
            match outcome {
                Ok(one) => {
                    written += 1;
                    older += one.older;
                    for conflict in &one.conflicts {
                        let owner = self.owner(request.taken_unix_ms);
                        match owner.moved(&request, conflict) {
                            Ok(Some((node, moved))) if node == self.node => own.push(moved),
                            Ok(Some(of_other)) => others.push(of_other),
                            Ok(None) => unproven += 1,
                            Err(Forged) => {
                                unproven += 1;
                                self.forged += 1;
                            }
                        }
                    }
                }
                Err(StoreError::Connect(_)) => waiting.push(request),
                Err(error) => {
                    rejected += 1;
                    failed = Some(error);
                }
            }
        }
        self.bindings.note_conflicts(own, others.len(), unproven);
        self.moved.extend(others);
        self.bindings.note_written(written, rejected, older);
        self.bindings.put_back(waiting);
        if let Some(error) = failed.filter(|_| self.warned.may()) {
            tracing::warn!(
                %error,
                "the engine of the cluster rejects a registration: other nodes do not know it"
            );
        }
    }
}

/// Another node must remove this binding.
struct Notice {
    node: String,
    moved: MovedBinding,
    since: Instant,
}

/// Removes notices that were tried for too long, and returns how many. The time since the last attempt does not count
/// if this node has heard nothing of the engine: it may have been paused or cut off itself.
fn expire(notices: &mut Vec<Notice>, is_current: bool, since_last: Duration) -> usize {
    if !is_current {
        for notice in notices.iter_mut() {
            notice.since = (notice.since + since_last).min(Instant::now());
        }
    }
    let before = notices.len();
    notices.retain(|notice| notice.since.elapsed() < NOTICE_LIFETIME);
    before - notices.len()
}

struct Tasks {
    engine: Arc<dyn Engine>,
    shared: Arc<Shared>,
    bindings: Arc<ClusterBindings>,
    node: String,
    seal: Seal,
}

impl Tasks {
    fn owner(&self) -> Owner<'_> {
        Owner {
            node: &self.node,
            seal: &self.seal,
            unix_ms: unix_ms(),
        }
    }

    async fn write(&self, notices: mpsc::Sender<Notice>) {
        let bindings = Arc::clone(&self.bindings);
        let mut writer = Writer::new(self.node.clone(), self.seal.clone(), bindings);
        loop {
            let requests = writer.begin(unix_ms());
            if requests.is_empty() {
                self.bindings.changed.notified().await;
                sleep(GATHER_TIME).await;
                continue;
            }
            if self.shared.is_retired.load(Ordering::Relaxed) {
                // The process that has taken over publishes the bindings.
                continue;
            }
            let started = Instant::now();
            let outcome = within(self.engine.bind(&self.node, &requests)).await;
            let has_written = matches!(&outcome, Ok(all) if all.iter().any(Result::is_ok));
            self.shared.count(has_written);
            let pause = writer.end(requests, outcome, started.elapsed());
            let forged = std::mem::take(&mut writer.forged);
            self.shared.forged.fetch_add(forged, Ordering::Relaxed);
            self.queue(std::mem::take(&mut writer.moved), &notices);
            sleep(pause).await;
        }
    }

    /// Gives notices to [`Tasks::tell`]. Those for which there is no room are lost.
    fn queue(&self, moved: Vec<(String, MovedBinding)>, to: &mpsc::Sender<Notice>) {
        let mut dropped = 0;
        for (node, moved) in moved {
            let since = Instant::now();
            let notice = Notice { node, moved, since };
            dropped += usize::from(to.try_send(notice).is_err());
        }
        self.bindings
            .count_notices(|it| &mut it.notices_dropped, dropped);
    }

    /// Tells other nodes to remove bindings. Registrations do not wait for this.
    async fn tell(&self, mut waiting: mpsc::Receiver<Notice>) {
        let mut backoff = Backoff(FIRST_PAUSE_MS);
        let mut notices = Vec::new();
        let mut last = None;
        loop {
            if notices.is_empty() && waiting.recv_many(&mut notices, BATCH_ADDRESSES).await == 0 {
                return std::future::pending().await;
            }
            // The time without notices is no time of an attempt.
            let started = *last.get_or_insert_with(Instant::now);
            let is_current = self.send_notices(&mut notices).await;
            if notices.is_empty() {
                backoff.reset();
                last = None;
                continue;
            }
            last = Some(Instant::now());
            let failed = expire(&mut notices, is_current, started.elapsed());
            self.bindings
                .count_notices(|it| &mut it.notices_failed, failed);
            sleep(backoff.next()).await;
        }
    }

    /// Sends notices, and removes those that the engine has. Those for a node that is not alive wait. Returns whether
    /// this node knows which ones are.
    async fn send_notices(&self, notices: &mut Vec<Notice>) -> bool {
        let Some(live) = self.live() else {
            return false;
        };
        for node in &live {
            let of_node = notices.iter().filter(|notice| notice.node == *node);
            let texts = of_node.map(|notice| notice.moved.sign(node, &self.seal, unix_s()));
            let texts: Vec<_> = texts.collect();
            if texts.is_empty() {
                continue;
            }
            let outcome = within(self.engine.tell(node, &texts)).await;
            self.shared.count(outcome.is_ok());
            if outcome.is_ok() {
                notices.retain(|notice| notice.node != *node);
                self.bindings
                    .count_notices(|it| &mut it.notices_sent, texts.len());
            }
        }
        true
    }

    /// The names of other nodes that are alive; `None` while the engine does not say it.
    fn live(&self) -> Option<Vec<String>> {
        let now_ms = self.shared.now_ms();
        let directory = self.shared.directory();
        directory.is_current(now_ms).then(|| {
            let live = directory.live(now_ms);
            live.map(|info| info.name.clone()).collect()
        })
    }

    async fn find(&self) {
        let mut backoff = Backoff(FIRST_PAUSE_MS);
        loop {
            let aors = self.bindings.take_asked(BATCH_ADDRESSES);
            if aors.is_empty() {
                self.bindings.wanted.notified().await;
                continue;
            }
            let outcome = timeout(LOOKUP_TIMEOUT, self.engine.find_bindings(&aors)).await;
            let outcome = outcome.unwrap_or(Err(StoreError::Timeout(LOOKUP_TIMEOUT)));
            let has_answered = matches!(&outcome, Ok(all) if all.iter().any(Result::is_ok));
            self.shared.count(has_answered);
            match outcome {
                Ok(all) => aors
                    .iter()
                    .zip(all)
                    .for_each(|(aor, texts)| self.answer(aor, texts)),
                Err(_) => aors
                    .iter()
                    .for_each(|aor| self.bindings.finish_find(aor, &None)),
            }
            if has_answered {
                backoff.reset();
                continue;
            }
            // Until the next attempt, nobody waits.
            self.bindings.set_paused(true);
            for aor in self.bindings.take_asked(usize::MAX) {
                self.bindings.finish_find(&aor, &None);
            }
            sleep(backoff.next()).await;
            self.bindings.set_paused(false);
        }
    }

    fn answer(&self, aor: &[u8], texts: Texts) {
        let nodes = texts.ok().map(|texts| {
            let (nodes, forged) = self.owner().read(aor, &texts);
            self.shared.forged.fetch_add(forged, Ordering::Relaxed);
            nodes
        });
        self.bindings.finish_find(aor, &nodes);
    }
}

#[cfg(test)]
mod tests;
