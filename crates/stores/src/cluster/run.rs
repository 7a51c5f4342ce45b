//! The tasks of the control thread.

use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::{join4, select};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::bindings_tasks;
use super::directory::{INTERVAL_MS, OwnEntry, TTL_MS};
use super::engine::{Engine, Exchanged, Leased, Publication};
use super::leases::Request;
use super::messages::{Inbox, Message, Order, Read};
use super::moved::MovedBinding;
use super::{ClusterQuota, Event, EventHandler, Report, Seal, Settings, Shared};
use crate::error::StoreError;

/// Within this time the engine responds, connection and look-up of its name included.
pub(super) const TIMEOUT: Duration = Duration::from_millis(1_500);
/// Pauses after failures: the first one, and the longest. After an outage, all nodes are back within one and a half
/// times the longest pause.
pub(super) const FIRST_PAUSE_MS: u64 = 250;
const LONGEST_PAUSE_MS: u64 = 4_000;
/// Between two batches: attempts that come together are one request.
const GATHER_TIME: Duration = Duration::from_millis(1);
/// Renewals, and releases, wait for this long at most.
const MAX_RENEWAL_DELAY: Duration = Duration::from_millis(200);
/// How long an order is repeated until the engine has it.
const ORDER_TIMEOUT: Duration = Duration::from_secs(60);
/// Other nodes repeat a notice for `NOTICE_LIFETIME`, with pauses of up to 6 s. They begin when they know that this
/// node is alive. So a node that was away for less has missed nothing.
const AWAY_MS: u64 = 45_000;
/// The shortest time between two warnings of one kind.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// A number between 0 and 1 that differs between nodes.
fn random() -> f64 {
    // Each process has other keys.
    let bits = RandomState::new().hash_one(0u8);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Waits for about this time: between half of it and one and a half of it.
fn with_jitter(ms: u64) -> Duration {
    Duration::from_millis(ms / 2 + (ms as f64 * random()) as u64)
}

/// Pauses that grow from failure to failure.
#[derive(Debug)]
pub(super) struct Backoff(pub(super) u64);

impl Backoff {
    pub(super) fn next(&mut self) -> Duration {
        let pause = with_jitter(self.0);
        self.0 = (self.0 * 2).min(LONGEST_PAUSE_MS);
        pause
    }

    pub(super) fn reset(&mut self) {
        self.0 = FIRST_PAUSE_MS;
    }
}

/// Requests per batch to the engine. If many nodes send at the same time, each sends smaller batches. Otherwise a batch
/// would exceed [`TIMEOUT`], and its node would repeat commands that the engine carries out all the same.
#[derive(Debug)]
pub(super) struct BatchSize(usize);

impl BatchSize {
    pub(super) const MAX: usize = 256;
    const MIN: usize = 16;
    const SLOW_TIME: Duration = Duration::from_millis(250);
    const FAST_TIME: Duration = Duration::from_millis(100);

    pub(super) fn get(&self) -> usize {
        self.0
    }

    /// The engine has responded after this time, or not at all.
    pub(super) fn note(&mut self, took: Duration, has_responded: bool) {
        if !has_responded || took > Self::SLOW_TIME {
            self.0 = (self.0 / 2).max(Self::MIN);
        } else if took < Self::FAST_TIME {
            self.0 = (self.0 + Self::MIN).min(Self::MAX);
        }
    }
}

impl Default for BatchSize {
    fn default() -> BatchSize {
        BatchSize(BatchSize::MAX)
    }
}

/// Lets one warning per minute through.
#[derive(Debug, Default)]
pub(super) struct WarningLimiter(Option<Instant>);

impl WarningLimiter {
    pub(super) fn may(&mut self) -> bool {
        let may = self.0.is_none_or(|last| last.elapsed() >= WARNING_INTERVAL);
        if may {
            self.0 = Some(Instant::now());
        }
        may
    }
}

pub(super) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

pub(super) fn unix_s() -> u64 {
    unix_ms() / 1_000
}

pub(super) async fn within<T>(answer: crate::store::StoreFuture<'_, T>) -> Result<T, StoreError> {
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
    let run = settings.own.run;
    let inbox = Inbox::new(run, seal.clone());
    let bindings = bindings_tasks::all(
        Arc::clone(&engine),
        Arc::clone(&shared),
        (own.clone(), seal.clone()),
    );
    let exchanges = Exchanges {
        engine: Arc::clone(&engine),
        shared: Arc::clone(&shared),
        report: settings.report,
        hear: settings.hear,
        inbox,
        after: None,
        identity: None,
        name: own.clone(),
        seal: seal.clone(),
        present_ms: None,
        warned: <[WarningLimiter; 4]>::default(),
    };
    let leases = lease(Arc::clone(&engine), Arc::clone(&shared), settings.holder);
    let outbox = Outbox {
        seal: Inbox::new(run, seal),
        from: own.clone(),
        run,
    };
    let orders = outbox.send(Arc::clone(&engine), orders);
    let work = join4(exchanges.run(own.clone()), leases, orders, bindings);
    // The work has no end.
    drop(select(pin!(work), stopped).await);
    if !shared.is_retired.load(Ordering::Relaxed) {
        // Then other nodes know at once that this one has ended. Otherwise they notice it later.
        let _ = timeout(Duration::from_millis(300), engine.leave(&own)).await;
    }
}

/// Publishes this node, and hears of the others.
struct Exchanges {
    engine: Arc<dyn Engine>,
    shared: Arc<Shared>,
    report: Report,
    hear: EventHandler,
    inbox: Inbox,
    after: Option<u64>,
    identity: Option<String>,
    name: String,
    seal: Seal,
    /// When the last exchange that had a response was sent.
    present_ms: Option<u64>,
    /// One limiter each for warnings: another process with this name, and wrong times of nodes, orders and notices.
    warned: [WarningLimiter; 4],
}

impl Exchanges {
    async fn run(mut self, name: String) {
        let mut backoff = Backoff(FIRST_PAUSE_MS);
        loop {
            if let Some(bindings) = &self.shared.bindings {
                bindings.note_clock(unix_ms());
            }
            let own = self.publication(&name);
            let sent_ms = self.shared.now_ms();
            let outcome = within(self.engine.exchange(&own)).await;
            self.shared.note_exchange(outcome.as_ref().err());
            let pause = match outcome {
                Ok(exchanged) => {
                    let own = own.text.is_some().then_some(sent_ms);
                    self.learn(exchanged, own);
                    self.note_presence(sent_ms);
                    backoff.reset();
                    // Nodes that were started together do not ask together.
                    Duration::from_millis(INTERVAL_MS * 9 / 10).mul_f64(0.9 + random() / 5.0)
                }
                Err(_) => backoff.next(),
            };
            let now = self.shared.now_ms();
            let live = self.shared.directory().live(now).cloned().collect();
            (self.hear)(Event::Nodes(live));
            let bindings = self.shared.bindings.as_ref();
            let moved = bindings.map(|bindings| bindings.take_moved());
            if let Some(moved) = moved.filter(|moved| !moved.is_empty()) {
                (self.hear)(Event::Moved(moved));
            }
            sleep(pause).await;
        }
    }

    /// What to send. A retired process publishes nothing, but its clients still end by orders, and other nodes check
    /// its certificate.
    fn publication(&self, name: &str) -> Publication {
        let mut directory = self.shared.directory();
        let text = match self.shared.is_retired.load(Ordering::Relaxed) {
            true => {
                directory.retire(|own| (self.report)(own));
                None
            }
            false => Some(directory.publish(unix_s(), |own| (self.report)(own))),
        };
        Publication {
            name: name.to_owned(),
            text,
            ttl_ms: TTL_MS,
            after: self.after,
        }
    }

    /// `sent_ms`: when this node was published.
    fn learn(&mut self, exchanged: Exchanged, sent_ms: Option<u64>) {
        let now = self.shared.now_ms();
        let mut directory = self.shared.directory();
        let untimely = directory.untimely();
        directory.learn(&exchanged.nodes, now, unix_s());
        let has_untimely = directory.untimely() > untimely;
        let own = sent_ms.map_or(OwnEntry::Kept, |sent_ms| {
            directory.published(exchanged.before.as_deref(), sent_ms, now)
        });
        drop(directory);
        let [twin, nodes, ..] = &mut self.warned;
        if own == OwnEntry::Twin && twin.may() {
            tracing::warn!(
                "another process has the name of this node: give each node another cluster.node"
            );
        }
        if has_untimely && nodes.may() {
            tracing::warn!(
                "a node is ignored: its clock and the one of this node differ by more than 180 s"
            );
        }
        let forged = &self.shared.forged;
        forged.fetch_add(exchanged.removed, Ordering::Relaxed);
        self.after = Some(exchanged.sequence);
        let before = self.identity.replace(exchanged.identity);
        let is_another = before.is_some() && before != self.identity;
        if is_another || own == OwnEntry::Lost {
            tracing::warn!(
                "the engine of the cluster has lost its data: this node enters its leases again"
            );
            self.shared.restarts.fetch_add(1, Ordering::Relaxed);
            self.shared.quota.renew_all();
            if let Some(bindings) = &self.shared.bindings {
                bindings.publish_all();
            }
            // It counts orders again. The inbox knows those that were handled.
            self.after = Some(0);
        }
        for text in &exchanged.messages {
            self.read(text);
        }
        self.learn_moved(&exchanged.notices);
    }

    /// Other nodes say that phones have registered there.
    fn learn_moved(&mut self, notices: &[String]) {
        let Some(bindings) = self
            .shared
            .bindings
            .as_ref()
            .filter(|_| !notices.is_empty())
        else {
            return;
        };
        let read = |text: &String| MovedBinding::read(text, &self.name, &self.seal, unix_s());
        let (forged, untimely) = bindings.note_received(notices.iter().map(read));
        self.shared.forged.fetch_add(forged, Ordering::Relaxed);
        if untimely > 0 && self.warned[3].may() {
            tracing::warn!(
                "a notice of another node is ignored: its clock and the one of this node differ by more than 180 s, or somebody has repeated it"
            );
        }
    }

    /// The engine has responded to the exchange of this time. Other nodes repeat a notice for a limited time. If this
    /// node was away for longer, it has missed notices. So it publishes all bindings: the engine compares them with
    /// those of other nodes.
    fn note_presence(&mut self, sent_ms: u64) {
        let last_ms = self.present_ms.replace(sent_ms);
        let away_ms = last_ms.map_or(0, |last_ms| sent_ms.saturating_sub(last_ms));
        let bindings = self.shared.bindings.as_ref();
        let Some(bindings) = bindings.filter(|_| away_ms > AWAY_MS) else {
            return;
        };
        tracing::info!(
            seconds = away_ms / 1_000,
            "this node was away from the engine of the cluster: it compares its registrations with those of other nodes"
        );
        bindings.publish_all();
    }

    fn read(&mut self, text: &str) {
        match self.inbox.read(text, unix_s()) {
            Read::New(message) => {
                self.shared.orders.fetch_add(1, Ordering::Relaxed);
                (self.hear)(Event::Order(message));
            }
            Read::Known => {}
            Read::Unknown => {
                self.shared.unknown.fetch_add(1, Ordering::Relaxed);
            }
            Read::Forged => {
                self.shared.forged.fetch_add(1, Ordering::Relaxed);
            }
            Read::Untimely(message) if self.warned[2].may() => tracing::warn!(
                from = message.from,
                unix_s = message.unix_s,
                "an order of another node is ignored: its clock and the one of this node differ by more than 180 s"
            ),
            Read::Untimely(_) => {}
        }
    }
}

/// Leases what workers want.
async fn lease(engine: Arc<dyn Engine>, shared: Arc<Shared>, holder: String) {
    let mut backoff = Backoff(FIRST_PAUSE_MS);
    let mut warned = WarningLimiter::default();
    let mut batch = BatchSize::default();
    let quota = &shared.quota;
    loop {
        let requests = quota.collect(batch.get());
        if requests.is_empty() {
            // The batch is due after the timeout as well as after a notification.
            let _ = timeout(MAX_RENEWAL_DELAY, quota.wanted()).await;
            sleep(GATHER_TIME).await;
            continue;
        }
        let started = Instant::now();
        let outcome = within(engine.lease(&holder, &requests)).await;
        batch.note(started.elapsed(), outcome.is_ok());
        shared.note_leases(&outcome);
        match outcome {
            Ok(leased) => {
                backoff.reset();
                keep(quota, &requests, leased, &mut warned);
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

/// Keeps what the engine has leased. A key that it rejects is asked for again later.
fn keep(
    quota: &ClusterQuota,
    requests: &[Request],
    leased: Vec<Leased>,
    warned: &mut WarningLimiter,
) {
    let retry_ms = quota.now_ms() + LONGEST_PAUSE_MS;
    for (request, leased) in requests.iter().zip(leased) {
        match leased {
            Ok(granted) => quota.granted(request, granted),
            Err(error) => {
                quota.failed(request, retry_ms);
                if warned.may() {
                    tracing::warn!(
                        %error,
                        key = ?request.key,
                        "the engine of the cluster rejects a lease: this node does not limit the user or the realm"
                    );
                }
            }
        }
    }
}

/// What signs orders.
struct Outbox {
    seal: Inbox,
    from: String,
    run: u64,
}

impl Outbox {
    /// Sends orders, each until the engine has it.
    async fn send(self, engine: Arc<dyn Engine>, mut orders: mpsc::Receiver<Order>) {
        while let Some(order) = orders.recv().await {
            let message = Message {
                from: self.from.clone(),
                run: self.run,
                id: RandomState::new().hash_one(unix_s()),
                unix_s: unix_s(),
                order,
            };
            let text = self.seal.write(&message);
            let mut backoff = Backoff(FIRST_PAUSE_MS);
            let started = tokio::time::Instant::now();
            while let Err(error) = within(engine.send(&text)).await {
                if started.elapsed() > ORDER_TIMEOUT {
                    tracing::error!(%error, order = ?message.order, "cannot send this order to other nodes");
                    break;
                }
                sleep(backoff.next()).await;
            }
        }
        // No sender of orders exists any more.
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::super::bindings::ReceivedNotices;
    use super::super::{Directory, NodeInfo, open};
    use super::*;
    use crate::kinds::Options;
    use std::sync::Mutex;

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

    #[test]
    fn a_slow_engine_is_asked_for_less_at_once_and_a_fast_one_for_more() {
        let mut batch = BatchSize::default();
        assert_eq!(batch.get(), 256);
        batch.note(Duration::from_millis(251), true);
        assert_eq!(batch.get(), 128);
        batch.note(Duration::from_millis(200), true);
        assert_eq!(batch.get(), 128);
        batch.note(Duration::ZERO, false);
        assert_eq!(batch.get(), 64);
        (0..10).for_each(|_| batch.note(Duration::ZERO, false));
        assert_eq!(batch.get(), 16);
        batch.note(Duration::from_millis(99), true);
        assert_eq!(batch.get(), 32);
        (0..99).for_each(|_| batch.note(Duration::ZERO, true));
        assert_eq!(batch.get(), 256);
    }

    /// The first of two processes of the node `a`, and the orders that it hears.
    fn exchanges() -> (Exchanges, Arc<Mutex<Vec<u64>>>) {
        let seal = Seal::new(&[1; 32]);
        let own = NodeInfo {
            name: "a".to_owned(),
            run: 1,
            ..NodeInfo::default()
        };
        let options = Options {
            url: "redis://127.0.0.1:1".to_owned(),
            ..Options::default()
        };
        let heard = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&heard);
        let directory = Directory::new(own, seal.clone());
        let exchanges = Exchanges {
            engine: open(&options, "test").unwrap(),
            shared: Arc::new(Shared::new(directory, Arc::default(), Some(Arc::default()))),
            report: Box::new(|_| {}),
            hear: Box::new(move |event| {
                if let Event::Order(message) = event {
                    to.lock().unwrap().push(message.id);
                }
            }),
            inbox: Inbox::new(1, seal.clone()),
            after: None,
            identity: None,
            name: "a".to_owned(),
            seal,
            present_ms: None,
            warned: <[WarningLimiter; 4]>::default(),
        };
        (exchanges, heard)
    }

    /// An order of the second process of the same node.
    fn order(id: u64) -> String {
        let user = "alice".to_owned();
        Inbox::new(2, Seal::new(&[1; 32])).write(&Message {
            from: "a".to_owned(),
            run: 2,
            id,
            unix_s: unix_s(),
            order: Order::EndSessions { user },
        })
    }

    fn exchanged(before: Option<String>, messages: &[String]) -> Exchanged {
        Exchanged {
            before,
            messages: messages.to_vec(),
            sequence: 7,
            identity: "i".to_owned(),
            ..Exchanged::default()
        }
    }

    #[test]
    fn a_retired_process_still_makes_its_report_which_renews_its_certificate() {
        let (mut exchanges, _) = exchanges();
        let reports = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&reports);
        exchanges.report = Box::new(move |own| {
            let mut reports = counted.lock().unwrap();
            *reports += 1;
            own.fingerprints = vec![format!("certificate {reports}")];
        });
        exchanges.shared.is_retired.store(true, Ordering::Relaxed);
        for number in 1..=2 {
            assert_eq!(exchanges.publication("a").text, None);
            assert_eq!(*reports.lock().unwrap(), number);
        }
        let list = exchanges.shared.directory().list(0);
        assert_eq!(list[0].info.fingerprints, ["certificate 2"]);
    }

    #[test]
    fn notices_that_are_forged_untimely_or_for_another_node_are_told_apart() {
        let (mut exchanges, _) = exchanges();
        let moved = |id| MovedBinding {
            aor: b"bob@d".as_slice().into(),
            id,
            call: 7,
            cseq: 5,
        };
        let sign = |id, node, key, unix_s| {
            let seal = Seal::new(&[key; 32]);
            moved(id).sign(node, &seal, unix_s).1
        };
        let now = unix_s();
        let notices = vec![
            sign(1, "a", 1, now),
            sign(2, "a", 1, now - 600),
            sign(3, "a", 1, now + 600),
            sign(4, "b", 1, now),
            sign(5, "a", 2, now),
            "nonsense".to_owned(),
        ];
        let told = Exchanged {
            notices,
            ..exchanged(None, &[])
        };
        exchanges.learn(told, None);
        let bindings = exchanges.shared.bindings.as_ref().unwrap();
        let expected = ReceivedNotices {
            accepted: 1,
            untimely: 2,
            other_node: 1,
            forged: 2,
            dropped: 0,
        };
        assert_eq!(bindings.counters().received, expected);
        assert_eq!(bindings.take_moved(), [moved(1)]);
        assert_eq!(exchanges.shared.forged.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_node_that_was_away_for_longer_than_notices_wait_publishes_all_bindings() {
        let (mut exchanges, _) = exchanges();
        let bindings = Arc::clone(exchanges.shared.bindings.as_ref().unwrap());
        let first = bindings.generation();
        let mut sent_ms = 500_000;
        exchanges.note_presence(sent_ms);
        for (pause_ms, is_published) in [
            (1_000, false),
            (AWAY_MS, false),
            (AWAY_MS + 1, true),
            (1_000, false),
            (600_000, true),
        ] {
            let before = bindings.generation();
            sent_ms += pause_ms;
            exchanges.note_presence(sent_ms);
            assert_eq!(bindings.generation() > before, is_published, "{pause_ms}");
        }
        assert_eq!(bindings.generation(), first + 2);
    }

    #[test]
    fn a_retired_process_publishes_nothing_and_obeys_the_other_one_of_its_node() {
        let (mut exchanges, heard) = exchanges();
        assert!(exchanges.publication("a").text.is_some());
        exchanges.shared.is_retired.store(true, Ordering::Relaxed);
        assert_eq!(exchanges.publication("a").text, None);
        exchanges.learn(exchanged(None, &[order(1)]), None);
        assert_eq!(*heard.lock().unwrap(), [1]);
        assert_eq!(exchanges.publication("a").after, Some(7));
    }

    #[test]
    fn orders_are_read_again_when_the_engine_has_lost_data_and_forged_ones_count() {
        let (mut exchanges, heard) = exchanges();
        let text = exchanges.publication("a").text;
        exchanges.learn(exchanged(None, &[order(1)]), Some(0));
        let _ = exchanges.publication("a");
        let unknown = Seal::new(&[1; 32]).sign("message", &["of another version"]);
        exchanges.learn(exchanged(text, &["nonsense".to_owned(), unknown]), Some(0));
        assert_eq!(exchanges.after, Some(7));
        let _ = exchanges.publication("a");
        exchanges.learn(exchanged(None, &[]), Some(0));
        assert_eq!(exchanges.after, Some(0));
        let _ = exchanges.publication("a");
        let text = Some(exchanges.publication("a").text.unwrap());
        exchanges.learn(exchanged(text, &[order(1), order(2)]), Some(0));
        assert_eq!(*heard.lock().unwrap(), [1, 2], "each once");
        let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        let shared = &exchanges.shared;
        assert_eq!((load(&shared.forged), load(&shared.restarts)), (1, 1));
        assert_eq!(load(&shared.unknown), 1);
    }
}
