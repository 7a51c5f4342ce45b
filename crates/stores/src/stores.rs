//! All stores of a server, on a thread of their own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use stun::PasswordAlgorithm;
use tokio::sync::{mpsc, oneshot};

use crate::cache::Cache;
use crate::error::StoreError;
use crate::kinds::{self, Kind, Options, open};
use crate::lookups::{Notify, Queries, Times};
use crate::source::Source;
use crate::store::Store;

/// Look-ups that may wait for the control thread. This also bounds the requests that workers keep.
const ASKS: usize = 8_192;
/// Unknown names in the cache: 40 bytes each.
const UNKNOWN: usize = 16_384;

/// The settings of one store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    /// Where it is.
    pub options: Options,
    /// The algorithms for which every user of the store has a key.
    pub algorithms: Vec<PasswordAlgorithm>,
    /// How long a query may take.
    pub timeout: Duration,
    /// How long a user in the cache is valid, unless the store says otherwise.
    pub ttl: Duration,
    /// How long an unknown name in the cache is valid.
    pub ttl_unknown: Duration,
    /// Users in the cache.
    pub cache: usize,
}

/// An event that the rest of the program must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A user has changed.
    User(String),
    /// Any user may have changed.
    Everything,
    /// Small tables of a store have changed.
    Shared,
    /// A store is down, or is up again.
    Health,
}

/// All stores of a server.
#[derive(Debug)]
pub struct Stores {
    sources: Vec<Arc<Source>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Stores {
    /// Starts the thread. `prepare` runs on it first, and `notify` is called on it later: `notify` must not block.
    ///
    /// # Errors
    /// If a store cannot be opened: its number from 0, and the error. A database that does not respond is no error.
    pub fn start(
        settings: Vec<StoreSettings>,
        prepare: impl FnOnce() + Send + 'static,
        notify: impl Fn(Notice) + Send + Sync + 'static,
    ) -> Result<Stores, (usize, StoreError)> {
        let (opened, outcome) = sync_channel(1);
        let (stop, stopped) = oneshot::channel::<()>();
        let failed = |error: std::io::Error| (0, StoreError::Connect(error.to_string()));
        let thread = std::thread::Builder::new().name("stores".to_owned());
        let body = move || {
            prepare();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return drop(opened.send(Err(failed(error)))),
            };
            runtime.block_on(async move {
                match open_all(&settings) {
                    Ok(stores) => {
                        let sources = run_all(&settings, stores, &(Arc::new(notify) as Notify));
                        drop(opened.send(Ok(sources)));
                        // Also if the other end is gone.
                        let _ = stopped.await;
                    }
                    Err(error) => drop(opened.send(Err(error))),
                }
            });
            // A look-up of a host name may still wait for its name server.
            runtime.shutdown_background();
        };
        let thread = thread.spawn(body).map_err(failed)?;
        let ended = || (0, StoreError::Connect("the thread has ended".to_owned()));
        let sources = outcome.recv().map_err(|_| ended())??;
        Ok(Stores {
            sources,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The stores in their order.
    #[must_use]
    pub fn sources(&self) -> &[Arc<Source>] {
        &self.sources
    }

    /// Waits until each store has responded or is down, at most until `deadline`.
    pub fn wait(&self, deadline: Instant) {
        let was_tried = |source: &Arc<Source>| source.was_tried.load(Ordering::Relaxed);
        while !self.sources.iter().all(was_tried) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Stores {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been logged.
            let _ = thread.join();
        }
    }
}

fn open_all(settings: &[StoreSettings]) -> Result<Vec<Arc<dyn Store>>, (usize, StoreError)> {
    let all = settings.iter().enumerate();
    all.map(|(number, one)| open(&one.options).map_err(|error| (number, error)))
        .collect()
}

fn run_all(
    settings: &[StoreSettings],
    stores: Vec<Arc<dyn Store>>,
    notify: &Notify,
) -> Vec<Arc<Source>> {
    let run = |(one, store): (&StoreSettings, Arc<dyn Store>)| {
        let (sender, asks) = mpsc::channel(ASKS);
        let kind = Kind::of(&one.options.url).unwrap_or(Kind::File);
        let cache = Cache::new(one.cache, UNKNOWN);
        let source = Arc::new(Source::new(kind, one.algorithms.clone(), cache, sender));
        let times = Times {
            timeout: one.timeout,
            known: one.ttl,
            unknown: one.ttl_unknown,
        };
        let queries = Queries::new(Arc::clone(&source), store, times, Arc::clone(notify));
        tokio::spawn(queries.run(asks));
        source
    };
    settings.iter().zip(stores).map(run).collect()
}

/// Checks the URL of a store, without opening the store.
///
/// # Errors
/// If the URL is wrong.
pub fn check(options: &Options) -> Result<Kind, StoreError> {
    kinds::check(options)
}
