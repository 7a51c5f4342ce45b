//! The tasks of the control thread.

use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::{join3, select};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::directory::{INTERVAL_MS, TTL_MS};
use super::engine::{Engine, Exchanged, Publication};
use super::messages::{Inbox, Message, Order};
use super::{Event, Hear, Report, Seal, Settings, Shared};
use crate::error::StoreError;

/// Within this time the engine responds, connection and look-up of its name included.
const TIMEOUT: Duration = Duration::from_millis(1_500);
/// Pauses after failures: the first one, and the longest. After an outage, all nodes are back within the longest one and a half.
const FIRST_PAUSE_MS: u64 = 250;
const LONGEST_PAUSE_MS: u64 = 4_000;
/// Leases that are asked for at once.
const BATCH: usize = 256;
/// Between two batches: attempts that come together are one request.
const GATHER: Duration = Duration::from_millis(1);
/// Renewals, and releases, wait for this long at most.
const LOOK: Duration = Duration::from_millis(200);
/// How long an order is repeated until the engine has it.
const ORDER: Duration = Duration::from_secs(60);

/// A number between 0 and 1 that differs between nodes.
fn random() -> f64 {
    // Each has other keys.
    let bits = RandomState::new().hash_one(0u8);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Waits for about this time: between half of it and one and a half of it.
fn with_jitter(ms: u64) -> Duration {
    Duration::from_millis(ms / 2 + (ms as f64 * random()) as u64)
}

/// Pauses that grow from failure to failure.
struct Backoff(u64);

impl Backoff {
    fn next(&mut self) -> Duration {
        let pause = with_jitter(self.0);
        self.0 = (self.0 * 2).min(LONGEST_PAUSE_MS);
        pause
    }

    fn reset(&mut self) {
        self.0 = FIRST_PAUSE_MS;
    }
}

fn unix_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

async fn within<T>(answer: crate::store::Answer<'_, T>) -> Result<T, StoreError> {
    let outcome = timeout(TIMEOUT, answer).await;
    outcome.unwrap_or(Err(StoreError::Timeout(TIMEOUT)))
}

/// Runs until `stopped`.
pub(super) async fn all(
    settings: Settings,
    shared: Arc<Shared>,
    orders: mpsc::Receiver<Order>,
    stopped: oneshot::Receiver<()>,
) {
    let engine = settings.engine;
    let own = settings.own.name.clone();
    let seal = Seal::new(&settings.key);
    let inbox = Inbox::new(own.clone(), seal.clone());
    let exchanges = Exchanges {
        engine: Arc::clone(&engine),
        shared: Arc::clone(&shared),
        report: settings.report,
        hear: settings.hear,
        inbox,
        after: None,
        identity: None,
    };
    let leases = lease(Arc::clone(&engine), Arc::clone(&shared), settings.holder);
    let orders = send(
        Arc::clone(&engine),
        Inbox::new(own.clone(), seal),
        own.clone(),
        orders,
    );
    let work = join3(exchanges.run(own.clone()), leases, orders);
    // The work has no end.
    drop(select(pin!(work), stopped).await);
    if !shared.is_retired.load(Ordering::Relaxed) {
        // Others then know at once; they notice it in any case.
        let _ = timeout(Duration::from_millis(300), engine.leave(&own)).await;
    }
}

/// Publishes this node, and hears of the others.
struct Exchanges {
    engine: Arc<dyn Engine>,
    shared: Arc<Shared>,
    report: Report,
    hear: Hear,
    inbox: Inbox,
    after: Option<u64>,
    identity: Option<String>,
}

impl Exchanges {
    async fn run(mut self, name: String) {
        let mut backoff = Backoff(FIRST_PAUSE_MS);
        loop {
            if self.shared.is_retired.load(Ordering::Relaxed) {
                sleep(Duration::from_millis(INTERVAL_MS)).await;
                continue;
            }
            let text = self
                .shared
                .directory()
                .publish(unix_s(), |own| (self.report)(own));
            let own = Publication {
                name: name.clone(),
                text,
                ttl_ms: TTL_MS,
                after: self.after,
            };
            let outcome = within(self.engine.exchange(&own)).await;
            self.shared.note(outcome.as_ref().err());
            let pause = match outcome {
                Ok(exchanged) => {
                    self.learn(exchanged);
                    backoff.reset();
                    // Nodes that were started together do not ask together.
                    Duration::from_millis(INTERVAL_MS * 9 / 10).mul_f64(0.9 + random() / 5.0)
                }
                Err(_) => backoff.next(),
            };
            let now = self.shared.now_ms();
            let live = self.shared.directory().live(now).cloned().collect();
            (self.hear)(Event::Nodes(live));
            sleep(pause).await;
        }
    }

    fn learn(&mut self, exchanged: Exchanged) {
        let now = self.shared.now_ms();
        self.shared.directory().learn(&exchanged.nodes, now);
        let before = self.identity.replace(exchanged.identity);
        if before.is_some() && before != self.identity {
            tracing::warn!(
                "the engine of the cluster has lost its data: this node enters its leases again"
            );
            self.shared.restarts.fetch_add(1, Ordering::Relaxed);
            self.shared.quota.renew_all();
        }
        self.after = Some(exchanged.sequence);
        for text in &exchanged.messages {
            if let Some(message) = self.inbox.read(text, unix_s()) {
                self.shared.orders.fetch_add(1, Ordering::Relaxed);
                (self.hear)(Event::Order(message));
            }
        }
    }
}

/// Leases what workers want.
async fn lease(engine: Arc<dyn Engine>, shared: Arc<Shared>, holder: String) {
    let mut backoff = Backoff(FIRST_PAUSE_MS);
    let quota = &shared.quota;
    loop {
        let requests = quota.collect(BATCH);
        if requests.is_empty() {
            // A timeout is as good as a sign.
            let _ = timeout(LOOK, quota.wanted()).await;
            sleep(GATHER).await;
            continue;
        }
        let outcome = within(engine.lease(&holder, &requests)).await;
        shared.note(outcome.as_ref().err());
        match outcome {
            Ok(granted) => {
                backoff.reset();
                for (request, granted) in requests.iter().zip(granted) {
                    quota.granted(request, granted);
                }
            }
            Err(_) => {
                let pause = backoff.next();
                let retry = quota.now_ms() + u64::try_from(pause.as_millis()).unwrap_or(0);
                for request in &requests {
                    quota.failed(request, retry);
                }
                sleep(pause).await;
            }
        }
    }
}

/// Sends orders, each until the engine has it.
async fn send(
    engine: Arc<dyn Engine>,
    seal: Inbox,
    from: String,
    mut orders: mpsc::Receiver<Order>,
) {
    while let Some(order) = orders.recv().await {
        let message = Message {
            from: from.clone(),
            id: RandomState::new().hash_one(unix_s()),
            unix_s: unix_s(),
            order,
        };
        let text = seal.write(&message);
        let mut backoff = Backoff(FIRST_PAUSE_MS);
        let started = tokio::time::Instant::now();
        while let Err(error) = within(engine.send(&text)).await {
            if started.elapsed() > ORDER {
                tracing::error!(%error, order = ?message.order, "other nodes have not got this order");
                break;
            }
            sleep(backoff.next()).await;
        }
    }
    // Nobody can order anything any more.
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_differ() {
        let mut backoff = Backoff(FIRST_PAUSE_MS);
        let pauses: Vec<u128> = (0..50).map(|_| backoff.next().as_millis()).collect();
        assert!((125..=375).contains(&pauses[0]));
        let long = &pauses[10..];
        assert!(long.iter().all(|pause| (2_000..=6_000).contains(pause)));
        assert!(long.iter().any(|pause| *pause != long[0]));
        backoff.reset();
        assert!(backoff.next().as_millis() <= 375);
    }
}
