//! Nodes that work together: a directory of nodes, orders to all of them, and quotas over all of them.
//!
//! ```text
//!  worker ── try_acquire ──> ClusterQuota (leases, a lock for a moment) ──> yes or no, at once
//!                                │ collect                  ▲ granted
//!  main thread <── Event ── control thread ── Engine (Redis) ┘
//! ```
//!
//! Packets, allocations and registrations never wait for the engine. Without it, each node goes on with what it knew
//! last, and with its own limits. `leases`, `directory` and `messages` do no I/O and have the time as an argument;
//! `model` is an engine in memory.

mod binding_texts;
pub mod bindings;
mod bindings_tasks;
mod clock_steps;
pub mod directory;
pub mod engine;
pub mod leases;
pub mod messages;
pub mod model;
mod moved;
pub mod quota;
mod redis;
mod redis_bindings;
mod redis_call;
#[cfg(test)]
mod redis_cluster_tests;
mod redis_servers;
mod redis_url;
mod run;
mod seal;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use crate::error::StoreError;
use crate::kinds::Options;
pub use bindings::{AtNode, ClusterBindings, SharedBinding};
pub use bindings_tasks::Writer;
pub use directory::{Directory, KnownNode, NodeInfo};
pub use engine::{Engine, Leased};
pub use messages::{Message, Order};
pub use moved::MovedBinding;
pub use quota::{ClusterQuota, Limits, RealmLimits};
pub use redis::RedisEngine;
pub use seal::Seal;

/// Orders that wait for the engine.
const MAX_ORDERS: usize = 256;

/// What the cluster tells the rest of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// These other nodes are there.
    Nodes(Vec<NodeInfo>),
    /// Another node orders this.
    Order(Message),
    /// This node must remove these bindings: their phones have registered at other nodes.
    Moved(Vec<MovedBinding>),
}

/// Fills in what a node says of itself.
pub type Report = Box<dyn Fn(&mut NodeInfo) + Send>;
/// Hears of events. It must not wait.
pub type EventHandler = Box<dyn Fn(Event) + Send>;

/// This node, and how it reaches the others.
pub struct Settings {
    /// The name of the node, which no other node has, and what never changes.
    pub own: NodeInfo,
    /// Whose leases these are: the name of the node, or another one for a process that runs beside the one before it.
    pub holder: String,
    /// The key of all MACs.
    pub key: [u8; 32],
    /// What the nodes share.
    pub engine: Arc<dyn Engine>,
    /// Fills in what changes.
    pub report: Report,
    /// Hears of events.
    pub hear: EventHandler,
    /// The registrations of all nodes, if nodes share them.
    pub bindings: Option<Arc<ClusterBindings>>,
}

/// The state of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// It has responded to the last exchange.
    pub is_up: bool,
    /// For how long `is_up` has had this value.
    pub since: Duration,
    /// It has granted a lease in the last response to a request for leases. Also true if there was no request since it
    /// is up.
    pub grants_leases: bool,
    /// Requests that it has responded to.
    pub answered: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Other nodes.
    pub nodes: usize,
    /// Texts in the engine that no node has written.
    pub forged: u64,
    /// Orders that this version does not know, from nodes with a newer version.
    pub unknown: u64,
    /// How often another process had the name of this node.
    pub twins: u64,
    /// Orders of other nodes.
    pub orders: u64,
    /// How often the engine had lost what it knew.
    pub restarts: u64,
}

/// What the threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) directory: Mutex<Directory>,
    pub(crate) quota: Arc<ClusterQuota>,
    /// The registrations of all nodes, if there are some.
    pub(crate) bindings: Option<Arc<ClusterBindings>>,
    started: Instant,
    is_up: AtomicBool,
    /// When `is_up` changed, in milliseconds after the start.
    changed_ms: AtomicU64,
    /// The last request for leases had no success. An engine can respond to exchanges and reject leases.
    has_no_leases: AtomicBool,
    answered: AtomicU64,
    failed: AtomicU64,
    orders: AtomicU64,
    /// Orders, and entries that cannot be read, that no node has written.
    forged: AtomicU64,
    unknown: AtomicU64,
    restarts: AtomicU64,
    /// The node is not published any more: another process has its place.
    is_retired: AtomicBool,
}

impl Shared {
    fn new(
        directory: Directory,
        quota: Arc<ClusterQuota>,
        bindings: Option<Arc<ClusterBindings>>,
    ) -> Shared {
        Shared {
            directory: Mutex::new(directory),
            quota,
            bindings,
            started: Instant::now(),
            is_up: AtomicBool::new(true),
            changed_ms: AtomicU64::new(0),
            has_no_leases: AtomicBool::new(false),
            answered: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            orders: AtomicU64::new(0),
            forged: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
            is_retired: AtomicBool::new(false),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn directory(&self) -> MutexGuard<'_, Directory> {
        let directory = self.directory.lock();
        directory.unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, has_responded: bool) {
        let count = match has_responded {
            true => &self.answered,
            false => &self.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// The engine has responded to a request for leases, or not. Only this shows that leases can be had: an exchange
    /// uses other keys.
    fn note_leases(&self, outcome: &Result<Vec<Leased>, StoreError>) {
        let has_leased = match outcome {
            Ok(leased) => leased.iter().any(Result::is_ok),
            Err(_) => false,
        };
        self.count(has_leased);
        let had_none = self.has_no_leases.swap(!has_leased, Ordering::Relaxed);
        if let (Err(error), false, true) = (outcome, had_none, self.is_up.load(Ordering::Relaxed)) {
            tracing::warn!(
                %error,
                "the engine of the cluster grants no leases: this node applies its own limits"
            );
        }
        if has_leased {
            self.quota.set_engine_up(true);
        } else if outcome.is_err() {
            self.quota.set_engine_up(false);
        }
    }

    /// The engine has responded to an exchange, or not.
    fn note_exchange(&self, error: Option<&StoreError>) {
        self.count(error.is_none());
        if let Some(bindings) = &self.bindings {
            bindings.set_engine_up(error.is_none());
        }
        if error.is_some() {
            self.quota.set_engine_up(false);
        }
        if self.is_up.swap(error.is_none(), Ordering::Relaxed) == error.is_none() {
            return;
        }
        self.changed_ms.store(self.now_ms(), Ordering::Relaxed);
        if error.is_none() {
            // Requests failed because it was away. The next one shows whether there are leases.
            self.has_no_leases.store(false, Ordering::Relaxed);
        }
        match error {
            Some(error) => tracing::warn!(
                %error,
                "the engine of the cluster does not respond: this node continues with the last known limits and nodes"
            ),
            None => tracing::info!("the engine of the cluster responds"),
        }
    }
}

/// This node of the cluster. A thread of its own speaks with the engine.
#[derive(Debug)]
pub struct Cluster {
    shared: Arc<Shared>,
    orders: mpsc::Sender<Order>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Cluster {
    /// Starts the thread. `prepare` runs on it first. An engine that does not respond is no error.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn start(
        settings: Settings,
        quota: Arc<ClusterQuota>,
        prepare: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<Cluster> {
        let directory = Directory::new(settings.own.clone(), Seal::new(&settings.key));
        let bindings = settings.bindings.clone();
        let shared = Arc::new(Shared::new(directory, quota, bindings));
        let (orders, taken) = mpsc::channel(MAX_ORDERS);
        let (stop, stopped) = oneshot::channel();
        let with = Arc::clone(&shared);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::Builder::new().name("cluster".to_owned());
        let thread = thread.spawn(move || {
            prepare();
            runtime.block_on(run::all(settings, with, taken, stopped));
            runtime.shutdown_background();
        })?;
        Ok(Cluster {
            shared,
            orders,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// A handle for other threads.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle {
            shared: Arc::clone(&self.shared),
            orders: self.orders.clone(),
        }
    }

    /// Another process publishes this node from now on, or no longer.
    pub fn set_retired(&self, is_retired: bool) {
        self.shared.is_retired.store(is_retired, Ordering::Relaxed);
        if let Some(bindings) = self.shared.bindings.as_ref().filter(|_| !is_retired) {
            // Changes were not published meanwhile.
            bindings.publish_all();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been logged.
            let _ = thread.join();
        }
    }
}

/// Asks for the state of the cluster, and sends orders to other nodes.
#[derive(Clone, Debug)]
pub struct Handle {
    shared: Arc<Shared>,
    orders: mpsc::Sender<Order>,
}

impl Handle {
    /// All nodes by name, this one included.
    #[must_use]
    pub fn nodes(&self) -> Vec<KnownNode> {
        let now = self.shared.now_ms();
        self.shared.directory().list(now)
    }

    /// Sends an order to all other nodes. Returns whether there was room for it.
    #[must_use]
    pub fn order(&self, order: Order) -> bool {
        self.orders.try_send(order).is_ok()
    }

    /// The state of the engine.
    #[must_use]
    pub fn status(&self) -> Status {
        let shared = &self.shared;
        let now = shared.now_ms();
        let directory = shared.directory();
        let (forged, twins) = directory.strange();
        let nodes = directory.live(now).count();
        drop(directory);
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Status {
            is_up: shared.is_up.load(Ordering::Relaxed),
            since: Duration::from_millis(now.saturating_sub(load(&shared.changed_ms))),
            grants_leases: !shared.has_no_leases.load(Ordering::Relaxed),
            answered: load(&shared.answered),
            failed: load(&shared.failed),
            nodes,
            forged: forged + load(&shared.forged),
            unknown: load(&shared.unknown),
            twins,
            orders: load(&shared.orders),
            restarts: load(&shared.restarts),
        }
    }

    /// The registrations of all nodes, if nodes share them.
    #[must_use]
    pub fn bindings(&self) -> Option<&ClusterBindings> {
        self.shared.bindings.as_deref()
    }

    /// The quota of all nodes.
    #[must_use]
    pub fn quota(&self) -> &ClusterQuota {
        &self.shared.quota
    }
}

/// Opens an engine by its URL, without a connection.
///
/// # Errors
/// The URL is wrong, or a file cannot be read.
pub fn open(options: &Options, prefix: &str) -> Result<Arc<dyn Engine>, StoreError> {
    Ok(Arc::new(RedisEngine::new(options, prefix)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lease_shows_that_leases_can_be_had() {
        let directory = Directory::new(NodeInfo::default(), Seal::new(&[1; 32]));
        let shared = Shared::new(directory, Arc::default(), None);
        let refused = || StoreError::Query("NOPERM".to_owned());
        assert!(shared.quota.is_engine_up());
        let has_leases = || !shared.has_no_leases.load(Ordering::Relaxed);
        assert!(has_leases());
        shared.note_leases(&Err(refused()));
        assert!(!has_leases());
        assert!(!shared.quota.is_engine_up());
        shared.note_exchange(None);
        assert!(!shared.quota.is_engine_up(), "an exchange is no lease");
        assert!(!has_leases(), "an exchange is no lease");
        // One key of many is of another type.
        shared.note_leases(&Ok(vec![Err(refused()), Ok(1)]));
        assert!(shared.quota.is_engine_up() && has_leases());
        shared.note_leases(&Ok(vec![Err(refused())]));
        assert!(!has_leases());
        assert!(shared.quota.is_engine_up(), "other keys keep their limit");
        shared.note_exchange(Some(&refused()));
        assert!(!shared.quota.is_engine_up());
        shared.note_exchange(None);
        assert!(has_leases(), "it was away, so the next request shows it");
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        assert_eq!((load(&shared.answered), load(&shared.failed)), (3, 3));
    }
}
