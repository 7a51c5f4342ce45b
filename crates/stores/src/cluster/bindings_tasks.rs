//! The tasks of the control thread that write and look up registrations.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::join;
use tokio::time::{sleep, timeout};

use super::bindings::{ClusterBindings, Owner};
use super::engine::{BindRequest, Bound, Engine, Texts};
use super::moved::MovedBinding;
use super::run::{Backoff, BatchSize, FIRST_PAUSE_MS, Warned, unix_s, within};
use super::{Seal, Shared};
use crate::error::StoreError;

/// Addresses that are asked for at once.
const BATCH: usize = 256;
/// Between two writes: changes of one address that come together are one write.
const GATHER: Duration = Duration::from_millis(50);
/// Within this time the engine answers a look-up. A call waits for it.
const TIME: Duration = Duration::from_secs(1);

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
    join(tasks.write(), tasks.find()).await;
}

/// Writes registrations to the engine, without I/O.
#[derive(Debug)]
pub struct Writer {
    node: String,
    seal: Seal,
    bindings: Arc<ClusterBindings>,
    batch: BatchSize,
    backoff: Backoff,
    warned: Warned,
    /// Bindings that other nodes have no more: their names in hexadecimal digits.
    moved: Vec<(String, MovedBinding)>,
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
            warned: Warned::default(),
            moved: Vec::new(),
        }
    }

    /// The changes that have waited longest; nothing if there is none.
    #[must_use]
    pub fn begin(&self, unix_s: u64) -> Vec<BindRequest> {
        let owner = Owner {
            node: &self.node,
            seal: &self.seal,
            unix_s,
        };
        self.bindings.take_changes(self.batch.get(), &owner)
    }

    /// The engine has responded after this time, or has not. Returns the pause before the next request.
    pub fn end(
        &mut self,
        requests: Vec<BindRequest>,
        outcome: Result<Vec<Bound>, StoreError>,
        took: Duration,
    ) -> Duration {
        self.batch.note(took, outcome.is_ok());
        match outcome {
            Ok(bound) if bound.iter().any(Result::is_ok) => {
                self.backoff.reset();
                self.note_results(requests, bound);
                GATHER
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
    fn note_results(&mut self, requests: Vec<BindRequest>, bound: Vec<Bound>) {
        let (mut written, mut older, mut rejected) = (0, 0, 0);
        let (mut waiting, mut failed) = (Vec::new(), None);
        for (request, outcome) in requests.into_iter().zip(bound) {
            match outcome {
                Ok(one) => {
                    written += 1;
                    older += one.older;
                    let all = one.moved.into_iter();
                    let all = all.filter_map(|it| {
                        let binding = MovedBinding::of(&request.aor, &it)?;
                        Some((it.node, binding))
                    });
                    self.moved.extend(all);
                }
                Err(StoreError::Connect(_)) => waiting.push(request),
                Err(error) => {
                    rejected += 1;
                    failed = Some(error);
                }
            }
        }
        let own = crate::keys::hex(self.node.as_bytes());
        let is_own = |(node, _): &mut (String, MovedBinding)| *node == own;
        let own = self.moved.extract_if(.., is_own).map(|(_, it)| it);
        self.bindings.note_moved(own);
        self.bindings.written(written, rejected, older);
        self.bindings.put_back(waiting);
        if let Some(error) = failed.filter(|_| self.warned.may()) {
            tracing::warn!(
                %error,
                "the engine of the cluster rejects a registration: other nodes do not know it"
            );
        }
    }
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
            unix_s: unix_s(),
        }
    }

    async fn write(&self) {
        let bindings = Arc::clone(&self.bindings);
        let mut writer = Writer::new(self.node.clone(), self.seal.clone(), bindings);
        loop {
            let requests = writer.begin(unix_s());
            if requests.is_empty() {
                self.bindings.changed.notified().await;
                sleep(GATHER).await;
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
            self.tell(std::mem::take(&mut writer.moved)).await;
            sleep(pause).await;
        }
    }

    /// Notifies live nodes of bindings that were replaced. If a notification is lost, the binding stays until it
    /// expires.
    async fn tell(&self, moved: Vec<(String, MovedBinding)>) {
        if moved.is_empty() {
            return;
        }
        for node in self.live() {
            let of_node = moved.iter().filter(|(of, _)| *of == node);
            let texts = of_node.map(|(_, it)| it.close(&node, &self.seal, unix_s()));
            let texts: Vec<_> = texts.collect();
            if !texts.is_empty() {
                let outcome = within(self.engine.tell(&node, &texts)).await;
                self.shared.count(outcome.is_ok());
                // Registrations wait meanwhile.
                if outcome.is_err() {
                    return;
                }
            }
        }
    }

    /// The names of other nodes that are alive, in hexadecimal digits.
    fn live(&self) -> Vec<String> {
        let now_ms = self.shared.now_ms();
        let directory = self.shared.directory();
        let live = directory.live(now_ms);
        live.map(|info| crate::keys::hex(info.name.as_bytes()))
            .collect()
    }

    async fn find(&self) {
        let mut backoff = Backoff(FIRST_PAUSE_MS);
        loop {
            let aors = self.bindings.take_asked(BATCH);
            if aors.is_empty() {
                self.bindings.wanted.notified().await;
                continue;
            }
            let outcome = timeout(TIME, self.engine.find_bindings(&aors)).await;
            let outcome = outcome.unwrap_or(Err(StoreError::Timeout(TIME)));
            let has_answered = matches!(&outcome, Ok(all) if all.iter().any(Result::is_ok));
            self.shared.count(has_answered);
            match outcome {
                Ok(all) => aors
                    .iter()
                    .zip(all)
                    .for_each(|(aor, texts)| self.answer(aor, texts)),
                Err(_) => aors.iter().for_each(|aor| self.bindings.answer(aor, &None)),
            }
            if has_answered {
                backoff.reset();
                continue;
            }
            // Until the next attempt, nobody waits.
            self.bindings.set_paused(true);
            for aor in self.bindings.take_asked(usize::MAX) {
                self.bindings.answer(&aor, &None);
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
        self.bindings.answer(aor, &nodes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::SharedBinding;
    use crate::cluster::engine::{Moved, Written};

    #[test]
    fn addresses_of_a_server_that_is_away_wait_and_rejected_ones_do_not() {
        let bindings = Arc::new(ClusterBindings::default());
        let binding = SharedBinding {
            id: 1,
            call: 2,
            cseq: 3,
            q: 1_000,
            age_ms: 0,
            ttl_ms: 600_000,
        };
        for aor in [&b"written@d"[..], b"away@d", b"rejected@d"] {
            bindings.publish(aor, vec![binding]);
        }
        let seal = Seal::new(&[1; 32]);
        let mut writer = Writer::new("a".to_owned(), seal, Arc::clone(&bindings));
        let requests = writer.begin(1_000);
        let away = || Err(StoreError::Connect("away".to_owned()));
        let rejected = Err(StoreError::Query("WRONGTYPE".to_owned()));
        let moved = |node: &[u8], field: &str| Moved {
            node: crate::keys::hex(node),
            field: field.to_owned(),
            call: "2".to_owned(),
            cseq: 3,
        };
        let written = Written {
            older: 1,
            moved: vec![moved(b"a", "1"), moved(b"b", "5"), moved(b"b", "x")],
        };
        let bound = vec![Ok(written), away(), rejected];
        assert_eq!(writer.end(requests, Ok(bound), Duration::ZERO), GATHER);
        let counts = bindings.counts();
        assert_eq!((counts.written, counts.failed, counts.waiting), (1, 2, 1));
        assert_eq!((counts.older, counts.moved), (1, 1));
        // The own binding is removed here; the other node is told of its own.
        let own = bindings.take_moved();
        assert_eq!((own.len(), own[0].id), (1, 1));
        assert!(bindings.take_moved().is_empty());
        let others: Vec<_> = writer
            .moved
            .iter()
            .map(|(node, it)| (&**node, it.id))
            .collect();
        assert_eq!(others, [("62", 5)]);
        let requests = writer.begin(1_000);
        assert_eq!(requests.len(), 1);
        assert_eq!(&*requests[0].aor, b"away@d");
        // Nothing is written: all wait, for longer and longer.
        let pause = writer.end(requests, Ok(vec![away()]), Duration::ZERO);
        assert!(pause >= Duration::from_millis(FIRST_PAUSE_MS / 2));
        assert_eq!(bindings.counts().waiting, 1);
        assert!(writer.batch.get() == BatchSize::MOST);
    }
}
