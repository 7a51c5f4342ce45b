use std::future::Future;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use stun::PasswordAlgorithm;
use turn::server::credentials::Credentials as _;

use super::*;
use crate::budget::{PER_SOURCE, PER_SOURCE_BURST};
use crate::cache::Cache;
use crate::keys::Keys;
use crate::kinds::Kind;
use crate::store::{OnChange, StoreFuture};

/// Knows `ann`, and counts what it is asked.
#[derive(Debug, Default)]
struct Fake {
    queries: AtomicUsize,
    is_silent: AtomicBool,
    /// It rejects queries for `odd`.
    is_strict: bool,
    /// Its SIP tables can no longer be read.
    is_sip_broken: AtomicBool,
    /// It never returns SIP tables.
    is_sip_silent: bool,
    /// Queries that find their connection lost.
    lost: AtomicUsize,
    /// What it tells when it is watched.
    changes: Mutex<Option<mpsc::UnboundedReceiver<Change>>>,
    delay: Duration,
}

const KEYS: Keys = Keys {
    md5: Some([7; 16]),
    sha256: None,
};

impl Store for Fake {
    fn find_user<'a>(&'a self, _realm: &'a str, name: &'a str) -> StoreFuture<'a, Found> {
        Box::pin(async move {
            self.queries.fetch_add(1, Relaxed);
            if self.is_silent.load(Relaxed) {
                return std::future::pending().await;
            }
            tokio::time::sleep(self.delay).await;
            if self.lost.load(Relaxed) > 0 {
                self.lost.fetch_sub(1, Relaxed);
                return Err(StoreError::Connect("it has restarted".to_owned()));
            }
            if self.is_strict && name == "odd" {
                return Err(StoreError::Query("a malformed row".to_owned()));
            }
            let keys = (name == "ann").then_some(KEYS);
            Ok(Found { keys, ttl: None })
        })
    }

    fn shared(&self) -> StoreFuture<'_, Shared> {
        Box::pin(async move {
            match self.is_silent.load(Relaxed) {
                true => Err(StoreError::Down),
                false => Ok(Shared::default()),
            }
        })
    }

    fn sip_tables(&self) -> StoreFuture<'_, SipTables> {
        Box::pin(async move {
            if self.is_sip_silent {
                return std::future::pending().await;
            }
            match self.is_sip_broken.load(Relaxed) {
                true => Err(StoreError::Connect("it ended in the middle".to_owned())),
                false => Ok(SipTables {
                    aliases: vec![("info@a.org".to_owned(), "ann@a.org".to_owned())],
                    ..SipTables::default()
                }),
            }
        })
    }

    fn watch<'a>(&'a self, on_change: OnChange<'a>) -> StoreFuture<'a, ()> {
        let changes = self.changes.lock().unwrap().take();
        Box::pin(async move {
            if let Some(mut changes) = changes {
                while let Some(change) = changes.recv().await {
                    on_change(change);
                }
            }
            std::future::pending().await
        })
    }
}

struct World {
    source: Arc<Source>,
    store: Arc<Fake>,
}

impl World {
    async fn ask(&self, name: &str, from: [u8; 4]) -> Lookup {
        if let Some(lookup) = self.source.find("realm", name) {
            return lookup;
        }
        self.begin(name, from).await
    }

    /// Looks up a user, and ignores the cache.
    fn begin(&self, name: &str, from: [u8; 4]) -> impl Future<Output = Lookup> + use<> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let waiter = move |lookup| {
            let _ = sender.send(lookup);
        };
        self.source
            .ask("realm", name, from.into(), Box::new(waiter));
        async { receiver.await.expect("each ask is answered") }
    }

    fn queries(&self) -> usize {
        self.store.queries.load(Relaxed)
    }
}

fn run<F: Future<Output = ()>>(store: Fake, known: Duration, test: impl FnOnce(World) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (world, queries, asks) = world(store, known);
        tokio::spawn(queries.run(asks, std::future::pending()));
        test(world).await;
    });
}

fn world(store: Fake, known: Duration) -> (World, Queries, mpsc::Receiver<Ask>) {
    let (sender, asks) = mpsc::channel(100_000);
    let cache = Cache::new(1_000, 1_000);
    let algorithms = vec![PasswordAlgorithm::Md5];
    let source = Arc::new(Source::new(Kind::File, algorithms, cache, sender));
    let store = Arc::new(store);
    let times = Times {
        timeout: Duration::from_millis(100),
        known,
        unknown: Duration::from_secs(60),
    };
    let (of, to) = (Arc::clone(&source), Arc::clone(&store));
    let queries = Queries::new(of, to, times, Arc::new(|_| {}));
    (World { source, store }, queries, asks)
}

const MINUTE: Duration = Duration::from_secs(60);
const ANN: [u8; 4] = [192, 0, 2, 1];
const EVE: [u8; 4] = [192, 0, 2, 66];

#[test]
fn look_ups_of_one_user_are_one_query_and_then_none() {
    let store = Fake {
        delay: Duration::from_millis(20),
        ..Fake::default()
    };
    run(store, MINUTE, async |world| {
        let all: Vec<_> = (0..100).map(|_| world.begin("ann", ANN)).collect();
        for one in all {
            assert!(matches!(one.await, Lookup::Known(KEYS, _)));
        }
        assert_eq!(world.queries(), 1);
        assert!(matches!(
            world.ask("ann", ANN).await,
            Lookup::Known(KEYS, _)
        ));
        assert_eq!(world.ask("eve", ANN).await, Lookup::Unknown);
        assert_eq!(world.ask("eve", ANN).await, Lookup::Unknown);
        assert_eq!(world.queries(), 2);
    });
}

#[test]
fn ten_thousand_unknown_names_cost_the_budget_and_others_are_served() {
    run(Fake::default(), MINUTE, async |world| {
        let begun = Instant::now();
        let (mut refused, mut unknown) = (0, 0);
        let all: Vec<_> = (0..10_000)
            .map(|n| world.begin(&format!("eve{n}"), EVE))
            .collect();
        for one in all {
            match one.await {
                Lookup::Unavailable => refused += 1,
                Lookup::Unknown => unknown += 1,
                Lookup::Known(..) => panic!("nobody is known"),
            }
        }
        let seconds = begun.elapsed().as_secs() as usize + 1;
        let most = PER_SOURCE_BURST as usize + PER_SOURCE as usize * seconds;
        assert_eq!(refused + unknown, 10_000);
        assert!(world.queries() <= most, "{} queries", world.queries());
        assert!(matches!(
            world.ask("ann", ANN).await,
            Lookup::Known(KEYS, _)
        ));
    });
}

#[test]
fn a_store_that_is_silent_is_down_and_the_cache_goes_on() {
    run(Fake::default(), Duration::from_millis(1), async |world| {
        assert!(matches!(world.ask("ann", ANN).await, Lookup::Known(..)));
        world.store.is_silent.store(true, Relaxed);
        tokio::time::sleep(Duration::from_millis(5)).await;
        for name in ["bob", "cid", "dan"] {
            assert_eq!(world.begin(name, ANN).await, Lookup::Unavailable);
        }
        assert!(!world.source.status().is_up && !world.source.is_available());
        let (begun, before) = (Instant::now(), world.queries());
        assert!(matches!(
            world.begin("ann", ANN).await,
            Lookup::Known(KEYS, _)
        ));
        assert_eq!(world.begin("bob", ANN).await, Lookup::Unavailable);
        assert!(
            begun.elapsed() < Duration::from_millis(90),
            "somebody waited"
        );
        assert_eq!(world.queries(), before);

        world.store.is_silent.store(false, Relaxed);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !world.source.status().is_up {
            assert!(Instant::now() < deadline, "it is not asked again");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(world.source.is_available());
        assert_eq!(world.begin("bob", ANN).await, Lookup::Unknown);
        let status = world.source.status();
        assert!((status.stale, status.failures) >= (1, 3), "{status:?}");
    });
}

#[test]
fn one_failed_query_is_enough_for_users_to_count_as_not_available() {
    run(Fake::default(), MINUTE, async |world| {
        assert!(world.source.is_available());
        assert!(matches!(world.ask("ann", ANN).await, Lookup::Known(..)));
        world.store.is_silent.store(true, Relaxed);
        assert_eq!(world.begin("bob", EVE).await, Lookup::Unavailable);
        assert!(!world.source.is_available());
        world.store.is_silent.store(false, Relaxed);
        assert_eq!(world.begin("bob", EVE).await, Lookup::Unknown);
        assert!(world.source.is_available());
    });
}

#[test]
fn a_store_that_responds_again_is_available_without_another_query() {
    run(Fake::default(), MINUTE, async |world| {
        assert!(matches!(world.ask("ann", ANN).await, Lookup::Known(..)));
        world.store.is_silent.store(true, Relaxed);
        assert_eq!(world.begin("bob", EVE).await, Lookup::Unavailable);
        assert!(!world.source.is_available());
        world.store.is_silent.store(false, Relaxed);
        let queries = world.queries();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !world.source.is_available() {
            assert!(Instant::now() < deadline, "it is not probed");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(world.queries(), queries);
    });
}

#[test]
fn queries_from_before_do_not_shorten_the_time_until_the_next_probe() {
    let (_world, mut queries, _asks) = world(Fake::default(), MINUTE);
    queries.refresh_at = Instant::now() + MINUTE;
    let timeout = StoreError::Timeout(Duration::from_secs(2));
    queries.failed(&timeout);
    assert!(queries.refresh_at <= Instant::now() + PROBES[0], "a probe");
    for _ in 1..MAX_FAILURES {
        queries.failed(&timeout);
    }
    assert!(queries.is_down());
    for seconds in [2, 4, 8] {
        queries.take_shared(Err(StoreError::Timeout(REFRESH_TIME)));
        assert_eq!(queries.backoff, Duration::from_secs(seconds));
        let probe = queries.refresh_at;
        queries.failed(&timeout);
        assert_eq!(queries.refresh_at, probe);
    }
}

#[test]
fn a_query_that_the_store_rejects_concerns_one_user() {
    let store = Fake {
        is_strict: true,
        ..Fake::default()
    };
    run(store, MINUTE, async |world| {
        for _ in 0..10 {
            assert_eq!(world.begin("odd", EVE).await, Lookup::Unavailable);
        }
        assert!(world.source.is_available());
        assert_eq!(world.source.status().failures, 10);
        assert_eq!(world.begin("bob", EVE).await, Lookup::Unknown);
    });
}

#[test]
fn a_change_during_a_query_is_not_cached() {
    let (sender, receiver) = mpsc::unbounded_channel();
    let store = Fake {
        delay: Duration::from_millis(50),
        changes: Mutex::new(Some(receiver)),
        ..Fake::default()
    };
    run(store, MINUTE, async |world| {
        let asked = world.begin("ann", ANN);
        tokio::time::sleep(Duration::from_millis(10)).await;
        let user = Change::User {
            realm: "realm".to_owned(),
            name: "ann".to_owned(),
        };
        sender.send(user.clone()).unwrap();
        assert!(matches!(asked.await, Lookup::Known(..)));
        assert_eq!(world.source.find("realm", "ann"), None);
        assert!(matches!(world.ask("ann", ANN).await, Lookup::Known(..)));
        assert!(world.source.find("realm", "ann").is_some());
        // And what the cache has is forgotten.
        for change in [user, Change::Everything] {
            world.ask("ann", ANN).await;
            sender.send(change).unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
            assert_eq!(world.source.find("realm", "ann"), None);
        }
    });
}

/// Waits until a condition holds.
async fn until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "it does not happen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn tables_of_sip_that_cannot_be_read_leave_the_users_and_the_rows_of_before() {
    let (sender, receiver) = mpsc::unbounded_channel();
    let store = Fake {
        changes: Mutex::new(Some(receiver)),
        ..Fake::default()
    };
    run(store, MINUTE, async |world| {
        let source = &world.source;
        let aliases = || source.shared().map_or(0, |shared| shared.sip.aliases.len());
        until(|| source.status().is_sip_current).await;
        assert_eq!(aliases(), 1);
        world.store.is_sip_broken.store(true, Relaxed);
        for failures in 1..=4 {
            sender.send(Change::Shared).unwrap();
            until(|| source.status().sip_failures == failures).await;
            let status = source.status();
            assert!(status.is_up && !status.is_sip_current, "{status:?}");
            assert!(source.is_available());
            assert_eq!(aliases(), 1);
        }
        assert_eq!(world.begin("bob", EVE).await, Lookup::Unknown);
        world.store.is_sip_broken.store(false, Relaxed);
        sender.send(Change::Shared).unwrap();
        until(|| source.status().is_sip_current).await;
        assert_eq!(aliases(), 1);
    });
}

/// So the log names each realm once, however often the settings are made again.
#[test]
fn an_ignored_realm_is_new_once() {
    let (World { source, .. }, ..) = world(Fake::default(), MINUTE);
    let note = |rows: &[(&str, usize)]| {
        let rows = rows
            .iter()
            .map(|(realm, rows)| ((*realm).to_owned(), *rows));
        source.set_ignored_rows(rows.collect())
    };
    assert_eq!(note(&[("a", 2), ("b", 3)]), ["a", "b"]);
    assert_eq!(source.status().ignored_rows, 5);
    assert_eq!(note(&[("a", 7), ("c", 1)]), ["c"]);
    assert_eq!(source.status().ignored_rows, 8);
    // The realm of `a` was there, and has gone again.
    assert!(note(&[]).is_empty());
    assert_eq!(note(&[("a", 1)]), ["a"]);
}

/// A database may restart between two queries.
#[test]
fn a_query_whose_connection_was_lost_is_repeated_once() {
    let store = || Fake {
        lost: AtomicUsize::new(1),
        ..Fake::default()
    };
    run(store(), MINUTE, async |world| {
        assert!(matches!(world.ask("ann", ANN).await, Lookup::Known(..)));
        assert_eq!(world.queries(), 2);
        assert_eq!(world.source.status().failures, 0);
    });
    let twice = Fake {
        lost: AtomicUsize::new(2),
        ..store()
    };
    run(twice, MINUTE, async |world| {
        assert_eq!(world.ask("ann", ANN).await, Lookup::Unavailable);
        assert_eq!(world.queries(), 2);
        assert_eq!(world.source.status().failures, 1);
    });
}

#[test]
fn users_do_not_wait_for_tables_of_sip() {
    let store = Fake {
        is_sip_silent: true,
        ..Fake::default()
    };
    run(store, MINUTE, async |world| {
        assert!(matches!(world.ask("ann", ANN).await, Lookup::Known(..)));
        until(|| world.source.status().is_up).await;
        assert!(world.source.is_available());
        assert!(!world.source.status().is_sip_current);
    });
}
