//! The queries to one store, on the control thread.
//!
//! Look-ups of a user that arrive while a query for this user runs wait for this query. At most [`RUNNING`] queries run
//! at once; others wait in order. A store is down after several failures in a row. Then look-ups get the stale cache
//! entry, or [`Lookup::Unavailable`], at once, until a probe succeeds.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::{self, JoinSet};
use tokio::time::{Sleep, sleep_until};

use crate::budget::Budget;
use crate::cache::{Cached, Id};
use crate::error::StoreError;
use crate::source::{Ask, Lookup, Source, Waiter};
use crate::store::{Change, Found, Shared, SipTables, Store};
use crate::stores::Notice;

mod sip_tables;

use sip_tables::SipReading;

/// Queries that run at once.
pub const RUNNING: usize = 64;
/// Users whose query runs or waits to run.
const MAX_USERS: usize = 4_096;
/// Look-ups of one user that wait for one query.
const MAX_WAITERS: usize = 256;
/// Failures in a row after which a store is down.
const MAX_FAILURES: u32 = 3;
/// How often the small tables are read, for stores that do not report changes.
const REFRESH_INTERVAL: Duration = Duration::from_secs(30);
/// How long reading the small tables may take: Redis lists all its keys for it.
const REFRESH_TIME: Duration = Duration::from_secs(10);
/// Time until the first probe of a store that is down. It doubles with each probe that fails, up to the last value.
const PROBES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// The longest time that a store may set for a cache entry.
const MAX_TTL: Duration = Duration::from_secs(86_400);
/// Time until a lost connection for change notifications is opened again.
const WATCH_AGAIN: Duration = Duration::from_secs(2);
/// Time until the next try if the store does not permit notifications. An administrator may permit them meanwhile.
const WATCH_DENIED: Duration = Duration::from_secs(60);
/// Change notifications that may wait. If there are more, everything counts as changed.
const MAX_CHANGES: usize = 1_024;

/// Time limits of queries and of cache entries.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The time limit of one query.
    pub timeout: Duration,
    /// How long a user stays in the cache.
    pub known: Duration,
    /// How long an unknown name stays in the cache.
    pub unknown: Duration,
}

/// Receives the events for the rest of the program.
pub(crate) type Notify = Arc<dyn Fn(Notice) + Send + Sync>;

/// A user that is looked up.
struct InFlight {
    realm: Box<str>,
    name: Box<str>,
    source: IpAddr,
    waiters: Vec<Waiter>,
    /// The query, once it has begun.
    task: Option<task::Id>,
    /// The user has changed since the query began: the result goes to the waiters, but not into the cache.
    has_changed: bool,
}

enum Event {
    Done(Done),
    Changed(Change),
    Asked(Ask),
    /// It is time to read the small tables.
    Refresh,
    /// All senders of look-ups are dropped.
    Ended,
}

/// The result of a task.
enum Done {
    /// The result of a query for a user, and its duration.
    User(Id, Result<Found, StoreError>, Duration),
    /// The small tables.
    Shared(Result<Shared, StoreError>),
    Sip(Result<SipTables, StoreError>),
    /// The task has panicked: a library has a fault. The panic has been logged.
    Panicked(task::Id),
}

/// The queries to one store.
pub(crate) struct Queries {
    source: Arc<Source>,
    store: Arc<dyn Store>,
    times: Times,
    notify: Notify,
    budget: Budget,
    running: JoinSet<Done>,
    in_flight: HashMap<Id, InFlight>,
    /// Look-ups whose query has not begun.
    waiting: VecDeque<Id>,
    /// Failures in a row.
    failures: u32,
    /// Queries that have failed so far. Those with [`StoreError::Query`] do not count: they concern one user.
    failed: u64,
    /// The value of `failed` when the last reading of the small tables began.
    failed_before_refresh: u64,
    /// Time until the next probe while the store is down.
    backoff: Duration,
    refresh_at: Instant,
    is_refreshing: bool,
    /// The small tables have changed while they were read, so they must be read again.
    refresh_again: bool,
    sip: SipReading,
}

impl Queries {
    pub(crate) fn new(
        source: Arc<Source>,
        store: Arc<dyn Store>,
        times: Times,
        notify: Notify,
    ) -> Queries {
        let now = Instant::now();
        Queries {
            source,
            store,
            times,
            notify,
            budget: Budget::new(now),
            running: JoinSet::new(),
            in_flight: HashMap::new(),
            waiting: VecDeque::new(),
            failures: 0,
            failed: 0,
            failed_before_refresh: 0,
            backoff: PROBES[0],
            refresh_at: now,
            is_refreshing: false,
            refresh_again: false,
            sip: SipReading::default(),
        }
    }

    /// Serves look-ups until `end` is ready. Look-ups without a result at that time count as failed.
    pub(crate) async fn run(self, asks: mpsc::Receiver<Ask>, end: impl Future<Output = ()>) {
        let (sender, changes) = mpsc::channel(MAX_CHANGES);
        let watch = tokio::spawn(watch(Arc::clone(&self.store), sender));
        let (serving, end) = (pin!(self.serve(asks, changes)), pin!(end));
        let mut both = (serving, end);
        poll_fn(|context| {
            let (serving, end) = &mut both;
            match end.as_mut().poll(context) {
                Poll::Pending => serving.as_mut().poll(context),
                ended => ended,
            }
        })
        .await;
        watch.abort();
    }

    /// Serves until all senders of look-ups are dropped.
    async fn serve(mut self, mut asks: mpsc::Receiver<Ask>, mut changes: mpsc::Receiver<Change>) {
        let mut timer = Box::pin(sleep_until(self.refresh_at.into()));
        loop {
            timer.as_mut().reset(self.refresh_at.into());
            let next =
                poll_fn(|context| self.poll_event(context, &mut changes, &mut asks, &mut timer));
            match next.await {
                Event::Done(done) => self.done(done),
                Event::Changed(change) => self.changed(change),
                Event::Asked(ask) => self.asked(ask),
                Event::Refresh => self.refresh(),
                Event::Ended => break,
            }
        }
    }

    /// Returns the next event. If several are ready, ended tasks have priority, then changes, then the refresh.
    fn poll_event(
        &mut self,
        context: &mut Context<'_>,
        changes: &mut mpsc::Receiver<Change>,
        asks: &mut mpsc::Receiver<Ask>,
        timer: &mut Pin<Box<Sleep>>,
    ) -> Poll<Event> {
        if let Poll::Ready(Some(done)) = self.running.poll_join_next(context) {
            let done = done.unwrap_or_else(|error| Done::Panicked(error.id()));
            return Poll::Ready(Event::Done(done));
        }
        if let Poll::Ready(Some(change)) = changes.poll_recv(context) {
            return Poll::Ready(Event::Changed(change));
        }
        if !self.is_refreshing && timer.as_mut().poll(context).is_ready() {
            return Poll::Ready(Event::Refresh);
        }
        let asked = asks.poll_recv(context);
        asked.map(|ask| ask.map_or(Event::Ended, Event::Asked))
    }

    fn is_down(&self) -> bool {
        self.failures >= MAX_FAILURES
    }

    /// Handles a look-up of a worker: the cache, a query in progress, or a new query.
    fn asked(&mut self, ask: Ask) {
        // A query may have ended since the worker looked.
        match self.source.cache.get(ask.id, Instant::now()) {
            Cached::Known(keys, ttl) => return (ask.waiter)(Lookup::Known(keys, ttl)),
            Cached::Unknown => return (ask.waiter)(Lookup::Unknown),
            Cached::Stale(_) | Cached::Missing => {}
        }
        if let Some(in_flight) = self.in_flight.get_mut(&ask.id) {
            match in_flight.waiters.len() < MAX_WAITERS {
                true => in_flight.waiters.push(ask.waiter),
                false => self.refuse(ask.waiter),
            }
            return;
        }
        if self.is_down() {
            return self.without_store(ask.id, vec![ask.waiter]);
        }
        let is_full = self.in_flight.len() >= MAX_USERS;
        if is_full || !self.budget.spend(ask.source, Instant::now()) {
            return self.refuse(ask.waiter);
        }
        let in_flight = InFlight {
            realm: ask.realm,
            name: ask.name,
            source: ask.source,
            waiters: vec![ask.waiter],
            task: None,
            has_changed: false,
        };
        self.in_flight.insert(ask.id, in_flight);
        self.waiting.push_back(ask.id);
        self.begin();
    }

    /// Replies with [`Lookup::Unavailable`], because a limit is reached.
    fn refuse(&self, waiter: Waiter) {
        self.source.counters.refused.fetch_add(1, Relaxed);
        waiter(Lookup::Unavailable);
    }

    /// Starts waiting queries, up to [`RUNNING`].
    fn begin(&mut self) {
        while self.running.len() < RUNNING
            && let Some(id) = self.waiting.pop_front()
        {
            let Some(user) = self.in_flight.get_mut(&id) else {
                continue;
            };
            let (realm, name) = (user.realm.clone(), user.name.clone());
            let (store, timeout) = (Arc::clone(&self.store), self.times.timeout);
            self.source.counters.queries.fetch_add(1, Relaxed);
            let task = self.running.spawn(async move {
                let begun = Instant::now();
                let found = find(&*store, &realm, &name, timeout).await;
                Done::User(id, found, begun.elapsed())
            });
            user.task = Some(task.id());
        }
    }

    /// Handles the result of a task, then starts waiting queries.
    fn done(&mut self, done: Done) {
        match done {
            Done::User(id, found, time) => {
                let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
                self.source.counters.micros.fetch_add(micros, Relaxed);
                self.found(id, found);
            }
            Done::Shared(shared) => self.refreshed(shared),
            Done::Sip(tables) => self.sip_tables_read(tables),
            Done::Panicked(task) => {
                let mut users = self.in_flight.iter();
                let user = users.find(|(_, user)| user.task == Some(task));
                let error = StoreError::Query("the query has panicked".to_owned());
                match user.map(|(id, _)| *id) {
                    Some(id) => self.found(id, Err(error)),
                    None if self.sip.is_task(task) => self.sip_tables_read(Err(error)),
                    None => self.refreshed(Err(error)),
                }
            }
        }
        self.begin();
    }

    /// Handles the result of a query for a user: stores it in the cache, and responds to all who wait.
    fn found(&mut self, id: Id, found: Result<Found, StoreError>) {
        let Some(user) = self.in_flight.remove(&id) else {
            return;
        };
        match found {
            Ok(Found { keys, ttl }) => {
                self.failures = 0;
                self.source.responds.store(true, Relaxed);
                let default = match keys {
                    Some(_) => self.times.known,
                    None => self.times.unknown,
                };
                let ttl = ttl.unwrap_or(default).min(MAX_TTL);
                if keys.is_some() {
                    self.budget.refund(user.source);
                }
                let until = Instant::now() + ttl;
                let cache = &self.source.cache;
                match keys {
                    _ if user.has_changed || ttl.is_zero() => cache.forget(id),
                    Some(keys) => cache.put(id, keys, until),
                    None => cache.put_unknown(id, until),
                }
                let counters = &self.source.counters;
                let (lookup, counter) = match keys {
                    Some(keys) => (Lookup::Known(keys, ttl), &counters.known),
                    None => (Lookup::Unknown, &counters.unknown),
                };
                counter.fetch_add(user.waiters.len() as u64, Relaxed);
                user.waiters.into_iter().for_each(|waiter| waiter(lookup));
            }
            Err(error) => {
                self.budget.refund(user.source);
                self.source.counters.failures.fetch_add(1, Relaxed);
                self.failed(&error);
                self.without_store(id, user.waiters);
            }
        }
    }

    /// Replies with the stale cache entry, or with [`Lookup::Unavailable`].
    fn without_store(&self, id: Id, waiters: Vec<Waiter>) {
        let counters = &self.source.counters;
        let (lookup, counter) = match self.source.cache.get(id, Instant::now()) {
            // A short lifetime, so that the store is queried soon after it is up again.
            Cached::Known(keys, _) | Cached::Stale(keys) => {
                (Lookup::Known(keys, PROBES[0]), &counters.stale)
            }
            Cached::Unknown | Cached::Missing => (Lookup::Unavailable, &counters.failed),
        };
        counter.fetch_add(waiters.len() as u64, Relaxed);
        waiters.into_iter().for_each(|waiter| waiter(lookup));
    }

    /// Counts a failed query. After [`MAX_FAILURES`] in a row, the store is down.
    fn failed(&mut self, error: &StoreError) {
        // A malformed row concerns one user, not the whole store.
        if matches!(error, StoreError::Query(_)) {
            tracing::warn!(store = self.source.kind.name(), %error, "a query failed");
            return;
        }
        self.failed += 1;
        self.source.responds.store(false, Relaxed);
        // A query that began before the store was down does not shorten the time until the next probe.
        let was_down = self.is_down();
        self.failures = self.failures.saturating_add(1);
        match (was_down, self.is_down()) {
            (true, _) => {}
            (false, true) => self.mark_down(error),
            // The reading of the small tables is a probe: without another query, nothing else would show that the store
            // responds again.
            (false, false) => {
                self.refresh_at = self.refresh_at.min(Instant::now() + PROBES[0]);
            }
        }
    }

    /// Marks the store as down, and replies to the look-ups whose query has not begun.
    fn mark_down(&mut self, error: &StoreError) {
        let kind = self.source.kind.name();
        tracing::error!(store = kind, %error, "store down: users in the cache can authenticate, others get 500");
        self.source.is_up.store(false, Relaxed);
        self.backoff = PROBES[0];
        self.refresh_at = Instant::now() + self.backoff;
        for id in std::mem::take(&mut self.waiting) {
            if let Some(user) = self.in_flight.remove(&id) {
                self.budget.refund(user.source);
                self.without_store(id, user.waiters);
            }
        }
        (self.notify)(Notice::Health);
    }

    /// Reads the small tables. For a store that is down, this is the probe.
    fn refresh(&mut self) {
        self.is_refreshing = true;
        self.refresh_again = false;
        self.failed_before_refresh = self.failed;
        let store = Arc::clone(&self.store);
        self.running.spawn(async move {
            let reading = tokio::time::timeout(REFRESH_TIME, store.shared());
            let shared = reading.await;
            Done::Shared(shared.unwrap_or(Err(StoreError::Timeout(REFRESH_TIME))))
        });
    }

    /// Handles the end of a reading of the small tables. If the store has responded, reads the SIP tables next.
    fn refreshed(&mut self, shared: Result<Shared, StoreError>) {
        self.is_refreshing = false;
        let responds = shared.is_ok();
        self.take_shared(shared);
        match responds {
            true => self.read_sip_tables(),
            false => self.source.was_tried.store(true, Relaxed),
        }
    }

    /// Handles the small tables of a store, or the failure to read them.
    fn take_shared(&mut self, shared: Result<Shared, StoreError>) {
        match shared {
            Ok(shared) => {
                // If a query has failed since the reading began, the next reading decides.
                let responds = self.failed == self.failed_before_refresh;
                if responds {
                    self.source.responds.store(true, Relaxed);
                }
                // If the store is not down, the failures still count: a query may fail although the small tables can be
                // read.
                if self.is_down() {
                    self.failures = 0;
                }
                self.backoff = PROBES[0];
                let wait = match (self.refresh_again, responds) {
                    (true, _) => Duration::ZERO,
                    (false, true) => REFRESH_INTERVAL,
                    (false, false) => PROBES[0],
                };
                self.refresh_at = Instant::now() + wait;
                // A thread that sees the store up must also see its tables.
                let differ = self.source.set_shared(shared);
                if !self.source.is_up.swap(true, Release) {
                    tracing::info!(store = self.source.kind.name(), "store up");
                    (self.notify)(Notice::Health);
                }
                if differ {
                    (self.notify)(Notice::Shared);
                }
            }
            Err(error) => {
                self.source.set_last_error(&error);
                self.source.responds.store(false, Relaxed);
                let was_down = self.is_down();
                // Without the small tables nothing works, so one failure is enough.
                self.failures = self.failures.max(MAX_FAILURES);
                if was_down {
                    self.backoff = (self.backoff * 2).min(PROBES[1]);
                    self.refresh_at = Instant::now() + self.backoff;
                } else {
                    self.mark_down(&error);
                }
            }
        }
    }

    /// Handles a change that the store reports: updates the cache, and notifies the rest of the program.
    fn changed(&mut self, change: Change) {
        match change {
            Change::User { realm, name } => {
                let id = self.source.cache.id(&realm, &name);
                self.source.cache.forget(id);
                if let Some(user) = self.in_flight.get_mut(&id) {
                    user.has_changed = true;
                }
                (self.notify)(Notice::User(name));
                // This may be the first user of the store. Then `has_users` of the small tables changes, too.
                if self.source.shared().is_some_and(|it| !it.has_users) {
                    self.refresh_soon();
                }
            }
            Change::Shared => self.refresh_soon(),
            Change::Everything => {
                self.source.cache.expire_all();
                let all = self.in_flight.values_mut();
                all.for_each(|user| user.has_changed = true);
                (self.notify)(Notice::Everything);
                self.refresh_soon();
            }
        }
    }

    /// Has the small tables read now, or once more after the reading that is in progress.
    fn refresh_soon(&mut self) {
        match self.is_refreshing {
            true => self.refresh_again = true,
            // A store that is down has its own schedule of probes.
            false if !self.is_down() => self.refresh_at = Instant::now(),
            false => {}
        }
    }
}

/// Queries a user, and retries once if the connection was lost: the database may have restarted since the last query.
async fn find(
    store: &dyn Store,
    realm: &str,
    name: &str,
    timeout: Duration,
) -> Result<Found, StoreError> {
    let asking = async {
        match store.find_user(realm, name).await {
            Err(StoreError::Connect(_)) => store.find_user(realm, name).await,
            result => result,
        }
    };
    let found = tokio::time::timeout(timeout, asking).await;
    found.unwrap_or(Err(StoreError::Timeout(timeout)))
}

/// Forwards the change notifications of a store to `changes`. Connects again if the connection is lost. Never returns.
async fn watch(store: Arc<dyn Store>, changes: mpsc::Sender<Change>) {
    let on_change = |change| {
        // If the queue is full, `Everything` replaces each change that does not fit.
        if changes.try_send(change).is_err() {
            let changes = changes.clone();
            tokio::spawn(async move { drop(changes.send(Change::Everything).await) });
        }
    };
    loop {
        let outcome = store.watch(&on_change).await;
        if let Err(error) = &outcome {
            tracing::debug!(%error, "cannot watch a store for changes, retrying");
        }
        let wait = match outcome {
            Err(StoreError::Denied(_)) => WATCH_DENIED,
            _ => WATCH_AGAIN,
        };
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests;
