//! The tasks of the control thread that write and look up registrations.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join;
use tokio::time::{sleep, timeout};

use super::bindings::{ClusterBindings, Owner};
use super::engine::{Engine, Texts};
use super::run::{Backoff, FIRST_PAUSE_MS, Warned, unix_s, within};
use super::{Seal, Shared};
use crate::error::StoreError;

/// Addresses that are written, or asked for, at once.
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
        let mut backoff = Backoff(FIRST_PAUSE_MS);
        let mut warned = Warned::default();
        loop {
            let requests = self.bindings.take_changes(BATCH, &self.owner());
            if requests.is_empty() {
                self.bindings.changed.notified().await;
                sleep(GATHER).await;
                continue;
            }
            if self.shared.is_retired.load(Ordering::Relaxed) {
                // The process that has taken over publishes the bindings.
                continue;
            }
            let outcome = within(self.engine.bind(&self.node, &requests)).await;
            match outcome {
                Ok(bound) if bound.iter().any(Result::is_ok) => {
                    self.shared.count(true);
                    backoff.reset();
                    let written = bound.iter().flatten().count() as u64;
                    let rejected = bound.len() as u64 - written;
                    let older = bound.iter().flatten().sum();
                    self.bindings.written(written, rejected, older);
                    let failed = bound.into_iter().filter_map(Result::err).next();
                    if let Some(error) = failed.filter(|_| warned.may()) {
                        tracing::warn!(
                            %error,
                            "the engine of the cluster rejects a registration: other nodes do not know it"
                        );
                    }
                    sleep(GATHER).await;
                }
                outcome => {
                    self.shared.count(false);
                    let error = match outcome {
                        Err(error) => Some(error),
                        Ok(bound) => bound.into_iter().find_map(Result::err),
                    };
                    if let Some(error) = error.filter(|_| warned.may()) {
                        tracing::warn!(
                            %error,
                            "the engine of the cluster does not take registrations: other nodes do not know them until it does"
                        );
                    }
                    self.bindings.put_back(requests);
                    sleep(backoff.next()).await;
                }
            }
        }
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
