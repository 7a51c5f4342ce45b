//! All stores of a server, on a separate thread.
//!
//! The list of stores can change while the server runs: [`Stores::open`] opens those of a new list, and shares those
//! that both lists have. The caller gives the new list to the workers, and drops the old one. A store that no list has
//! is closed after five seconds.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use stun::PasswordAlgorithm;
use tokio::sync::{mpsc, oneshot};

use crate::cache::Cache;
use crate::error::StoreError;
use crate::kinds::{self, Kind, Options, open};
use crate::lookups::{Notify, Queries, Times};
use crate::source::Source;
use crate::store::{SipTables, Store};

/// Look-ups that may wait for the control thread. This also bounds the requests that workers keep.
const MAX_LOOKUPS: usize = 8_192;
/// Unknown names in the cache: 40 bytes each.
const MAX_UNKNOWN_NAMES: usize = 16_384;

/// Time from the drop of the last list with a store until the store is closed. No look-up waits longer, so each gets
/// its result.
const CLOSE_DELAY: Duration = Duration::from_secs(5);
/// The poll interval of [`StoreList::wait`] and [`StoreList::respond`].
const POLL_INTERVAL: Duration = Duration::from_millis(10);

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

/// An event for the rest of the program.
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

/// Why a store of a list cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("store {} ({kind}): {reason}", .place + 1)]
pub struct OpenError {
    /// Its place in the list, from 0.
    pub place: usize,
    /// Its kind.
    pub kind: &'static str,
    /// What went wrong.
    pub reason: String,
}

/// A store that is open, as long as a list has it.
#[derive(Debug)]
struct OpenStore {
    settings: StoreSettings,
    source: Arc<Source>,
    /// Ends the queries some time after it is dropped.
    _closing: oneshot::Sender<()>,
}

/// Some stores in their order.
#[derive(Clone, Debug, Default)]
pub struct StoreList(Vec<Arc<OpenStore>>);

impl StoreList {
    /// The stores as the workers see them.
    pub fn sources(&self) -> impl Iterator<Item = &Arc<Source>> {
        self.0.iter().map(|store| &store.source)
    }

    /// How many stores of this list the other one does not have.
    #[must_use]
    pub fn count_without(&self, other: &StoreList) -> usize {
        let is_new = |store: &&Arc<OpenStore>| !other.has(store);
        self.0.iter().filter(is_new).count()
    }

    fn has(&self, store: &Arc<OpenStore>) -> bool {
        self.0.iter().any(|own| Arc::ptr_eq(own, store))
    }

    /// Waits until each store has responded and its SIP tables were read, or could not be; at most until `deadline`.
    pub fn wait(&self, deadline: Instant) {
        let was_tried = |source: &Arc<Source>| source.was_tried.load(Ordering::Relaxed);
        wait_until(deadline, || self.sources().all(was_tried));
    }

    /// Waits until each store that `before` does not have has responded or is down; at most until `deadline`. Does not
    /// wait for SIP tables, which can be large.
    ///
    /// # Errors
    /// The first of them that has not responded.
    pub fn respond(&self, before: &StoreList, deadline: Instant) -> Result<(), OpenError> {
        let begun = Instant::now();
        let is_up = |store: &Arc<OpenStore>| store.source.is_up.load(Ordering::Acquire);
        let is_known = |store: &Arc<OpenStore>| {
            is_up(store) || store.source.was_tried.load(Ordering::Relaxed) || before.has(store)
        };
        wait_until(deadline, || self.0.iter().all(is_known));
        let is_down = |store: &Arc<OpenStore>| !before.has(store) && !is_up(store);
        let Some(place) = self.0.iter().position(is_down) else {
            return Ok(());
        };
        let source = &self.0[place].source;
        let reason = source.last_error().unwrap_or_else(|| {
            let waited = deadline.saturating_duration_since(begun);
            format!("no response within {} ms", waited.as_millis())
        });
        Err(OpenError {
            place,
            kind: source.kind().name(),
            reason,
        })
    }
}

fn wait_until(deadline: Instant, condition: impl Fn() -> bool) {
    while !condition() && Instant::now() < deadline {
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// A list of stores to open.
struct OpenJob {
    settings: Vec<StoreSettings>,
    opened: SyncSender<Result<StoreList, OpenError>>,
}

/// The thread of the stores.
pub struct Stores {
    jobs: Option<mpsc::UnboundedSender<OpenJob>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stores").finish_non_exhaustive()
    }
}

impl Stores {
    /// Starts the thread. `prepare` runs on it first, and `notify` is called on it later: `notify` must not block.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        prepare: impl FnOnce() + Send + 'static,
        notify: impl Fn(Notice) + Send + Sync + 'static,
    ) -> std::io::Result<Stores> {
        let (jobs, mut queue) = mpsc::unbounded_channel::<OpenJob>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::Builder::new().name("stores".to_owned());
        let thread = thread.spawn(move || {
            prepare();
            let notify: Notify = Arc::new(notify);
            runtime.block_on(async move {
                // The stores of all lists that still exist.
                let mut known: Vec<Weak<OpenStore>> = Vec::new();
                while let Some(job) = queue.recv().await {
                    known.retain(|store| store.strong_count() > 0);
                    let opened = open_all(job.settings, &mut known, &notify).await;
                    // This fails only if the caller no longer waits.
                    let _ = job.opened.send(opened);
                }
            });
            // A look-up of a host name may still wait for its name server.
            runtime.shutdown_background();
        })?;
        Ok(Stores {
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Opens the stores of a list. A store that is open with the same settings is shared, with its cache.
    ///
    /// # Errors
    /// The first store that cannot be opened. A database that does not respond is no error: see [`StoreList::respond`].
    pub fn open(&self, settings: Vec<StoreSettings>) -> Result<StoreList, OpenError> {
        let ended = || OpenError {
            place: 0,
            kind: "not opened",
            reason: "the thread of the stores has ended".to_owned(),
        };
        let (opened, outcome) = sync_channel(1);
        let jobs = self.jobs.as_ref().ok_or_else(ended)?;
        let sent = jobs.send(OpenJob { settings, opened });
        sent.map_err(|_| ended())?;
        outcome.recv().map_err(|_| ended())?
    }
}

impl Drop for Stores {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been logged.
            let _ = thread.join();
        }
    }
}

async fn open_all(
    all: Vec<StoreSettings>,
    known: &mut Vec<Weak<OpenStore>>,
    notify: &Notify,
) -> Result<StoreList, OpenError> {
    let mut list = StoreList::default();
    for (place, settings) in all.into_iter().enumerate() {
        let mut open_ones = known.iter().filter_map(Weak::upgrade);
        if let Some(same) = open_ones.find(|store| store.settings == settings) {
            list.0.push(same);
            continue;
        }
        let options = settings.options.clone();
        // SQLite waits for the disk. Look-ups of other stores go on meanwhile.
        let opening = tokio::task::spawn_blocking(move || open(&options)).await;
        let opening = opening.unwrap_or_else(|error| Err(StoreError::Query(error.to_string())));
        let store = opening.map_err(|error| OpenError {
            place,
            kind: Kind::of(&settings.options.url).map_or("", Kind::name),
            reason: error.to_string(),
        })?;
        let earlier = earlier_sip(known, &settings);
        let store = Arc::new(run(settings, store, notify));
        store.source.set_earlier_sip(earlier);
        known.push(Arc::downgrade(&store));
        list.0.push(store);
    }
    Ok(list)
}

/// The SIP tables of an open store with the same URL. Without them, its routes would be absent from a reload until the
/// tables are read.
fn earlier_sip(known: &[Weak<OpenStore>], settings: &StoreSettings) -> Arc<SipTables> {
    let mut open_ones = known.iter().rev().filter_map(Weak::upgrade);
    let place = kinds::place(&settings.options);
    let same =
        open_ones.find(|store| place.is_some() && kinds::place(&store.settings.options) == place);
    same.map(|store| store.source.sip()).unwrap_or_default()
}

fn run(settings: StoreSettings, store: Arc<dyn Store>, notify: &Notify) -> OpenStore {
    let (sender, asks) = mpsc::channel(MAX_LOOKUPS);
    let kind = Kind::of(&settings.options.url).unwrap_or(Kind::File);
    let cache = Cache::new(settings.cache, MAX_UNKNOWN_NAMES);
    let algorithms = settings.algorithms.clone();
    let source = Arc::new(Source::new(kind, algorithms, cache, sender));
    let times = Times {
        timeout: settings.timeout,
        known: settings.ttl,
        unknown: settings.ttl_unknown,
    };
    let queries = Queries::new(Arc::clone(&source), store, times, Arc::clone(notify));
    let (closing, closed) = oneshot::channel();
    let end = async move {
        let _ = closed.await;
        tokio::time::sleep(CLOSE_DELAY).await;
    };
    tokio::spawn(queries.run(asks, end));
    OpenStore {
        settings,
        source,
        _closing: closing,
    }
}

/// Checks the URL of a store, without opening the store.
///
/// # Errors
/// If the URL is wrong.
pub fn check(options: &Options) -> Result<Kind, StoreError> {
    kinds::check(options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Lookup;
    use crate::store::{Found, Shared, StoreFuture};

    fn settings(url: String) -> StoreSettings {
        StoreSettings {
            options: Options {
                url,
                ..Options::default()
            },
            algorithms: vec![PasswordAlgorithm::Md5],
            timeout: Duration::from_secs(1),
            ttl: Duration::from_secs(60),
            ttl_unknown: Duration::from_secs(60),
            cache: 100,
        }
    }

    fn stores() -> Stores {
        Stores::start(|| {}, |_| {}).expect("a thread")
    }

    /// The result of a look-up of `ann`.
    fn look_up(source: &Source) -> Lookup {
        let (sender, receiver) = sync_channel(1);
        let waiter = move |lookup| sender.send(lookup).expect("somebody waits");
        source.ask("r", "ann", [192, 0, 2, 1].into(), Box::new(waiter));
        receiver.recv().expect("each look-up has a result")
    }

    #[test]
    fn another_list_shares_what_is_the_same_and_the_rest_is_closed() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
        let (one, two) = (settings(path("one")), settings(path("two")));
        let stores = stores();
        let first = stores.open(vec![one.clone()]).expect("it is opened");
        first.wait(Instant::now() + Duration::from_secs(20));
        let of_one = Arc::clone(first.sources().next().expect("a store"));
        assert_eq!(look_up(&of_one), Lookup::Unknown);
        let other = StoreSettings {
            cache: 10,
            ..one.clone()
        };
        let second = stores.open(vec![two, one, other]).expect("they are opened");
        let limit = Instant::now() + Duration::from_secs(20);
        second.respond(&first, limit).expect("they respond");
        assert_eq!(
            (second.count_without(&first), first.count_without(&second)),
            (2, 0)
        );
        let places: Vec<bool> = second
            .sources()
            .map(|it| Arc::ptr_eq(it, &of_one))
            .collect();
        assert_eq!(places, [false, true, false]);
        drop(first);
        assert_eq!(look_up(&of_one), Lookup::Unknown, "the second list has it");
        drop(second);
        // Look-ups that have begun get their result; later ones none.
        assert_eq!(look_up(&of_one), Lookup::Unknown);
        let source = Arc::downgrade(&of_one);
        let limit = Instant::now() + CLOSE_DELAY * 4;
        while of_one.status().failed == 0 {
            assert!(Instant::now() < limit, "it is not closed");
            // The cache has `ann`, so another name is looked up.
            of_one.ask("r", "bob", [192, 0, 2, 1].into(), Box::new(drop));
            std::thread::sleep(POLL_INTERVAL);
        }
        drop(of_one);
        let limit = Instant::now() + Duration::from_secs(20);
        while source.strong_count() > 0 {
            assert!(Instant::now() < limit, "somebody has its cache");
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Small tables at once, and SIP tables never.
    #[derive(Debug)]
    struct SlowTables;

    impl Store for SlowTables {
        fn find_user<'a>(&'a self, _: &'a str, _: &'a str) -> StoreFuture<'a, Found> {
            Box::pin(async { Ok(Found::default()) })
        }

        fn shared(&self) -> StoreFuture<'_, Shared> {
            Box::pin(async { Ok(Shared::default()) })
        }

        fn sip_tables(&self) -> StoreFuture<'_, SipTables> {
            Box::pin(std::future::pending())
        }
    }

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().expect("a runtime")
    }

    #[test]
    fn a_new_store_that_responds_does_not_wait_for_its_sip_tables() {
        let (sender, lists) = sync_channel(1);
        let (end, ended) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            runtime().block_on(async {
                let notify: Notify = Arc::new(|_| {});
                let settings = settings("file:/unused".to_owned());
                let open = Arc::new(run(settings, Arc::new(SlowTables), &notify));
                let list = StoreList(vec![open]);
                sender.send(list).expect("the test waits for it");
                let _ = ended.await;
            });
        });
        let list = lists.recv().expect("a list");
        let deadline = Instant::now() + Duration::from_secs(60);
        let outcome = list.respond(&StoreList::default(), deadline);
        outcome.expect("the store is up");
        assert!(Instant::now() < deadline, "it has waited for SIP tables");
        drop(end);
        thread.join().expect("no panic");
    }

    #[test]
    fn a_store_with_other_settings_keeps_the_sip_tables_until_it_has_read_them() {
        let aliases = vec![("info@a.org".to_owned(), "ann@a.org".to_owned())];
        let tables = || SipTables {
            aliases: aliases.clone(),
            ..SipTables::default()
        };
        let notify: Notify = Arc::new(|_| {});
        runtime().block_on(async {
            let url = |name: &str| settings(format!("file:/nonexistent/{name}"));
            let first = Arc::new(run(url("one"), Arc::new(SlowTables), &notify));
            first.source.set_shared(Shared::default());
            first.source.set_sip(tables());
            let mut known = vec![Arc::downgrade(&first)];
            let changed = StoreSettings {
                cache: 10,
                ..url("one")
            };
            let list = open_all(vec![changed, url("two")], &mut known, &notify).await;
            // The task of a new store has not run yet, because nothing has waited since.
            let list = list.expect("a file is not opened yet");
            let sources: Vec<_> = list.sources().collect();
            assert_eq!(sources[0].sip().aliases, aliases);
            assert_eq!(sources[1].sip().aliases, []);
            sources[0].set_shared(Shared::default());
            let shared = sources[0].shared().expect("they are set");
            assert_eq!(shared.sip.aliases, aliases, "the first reading keeps them");
        });
    }

    #[test]
    fn a_list_with_a_store_that_cannot_be_used_says_which_and_why() {
        let stores = stores();
        let none = StoreList::default();
        let missing = || settings("sqlite:/nonexistent/users".to_owned());
        let file = || settings("file:/nonexistent/users".to_owned());
        let error = stores
            .open(vec![file(), missing()])
            .expect_err("no such file");
        assert!(
            error.to_string().starts_with("store 2 (sqlite): "),
            "{error}"
        );
        let list = stores.open(vec![file()]).expect("it is not read yet");
        let limit = Instant::now() + Duration::from_secs(20);
        let error = list.respond(&none, limit).expect_err("it cannot be read");
        let text = error.to_string();
        assert!(
            text.starts_with("store 1 (file): ") && text.contains("No such file"),
            "{text}"
        );
        // A store of the list before is not judged: the server uses it already.
        list.respond(&list, limit).expect("it is not new");
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = silent.local_addr().expect("it is bound");
        let silent = settings(format!("http://{address}/"));
        let list = stores.open(vec![silent]).expect("it is not asked yet");
        let limit = Instant::now() + Duration::from_millis(200);
        let error = list.respond(&none, limit).expect_err("it is silent");
        assert!(error.to_string().contains("no response within "), "{error}");
    }
}
