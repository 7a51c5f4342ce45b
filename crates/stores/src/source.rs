//! One store as the workers see it: a cache, and a queue to the control thread.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stun::PasswordAlgorithm;
use tokio::sync::mpsc;
use turn::server::credentials::{
    Claim, Credentials, KeyLookup, KeyQuery, KeyReply, KnownUser, UserKey,
};

use crate::cache::{Cache, Cached, Id};
use crate::error::StoreError;
use crate::keys::Keys;
use crate::kinds::Kind;
use crate::store::{Shared, SipTables};

/// The result of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// These keys are valid for so long.
    Known(Keys, Duration),
    /// There is no such user.
    Unknown,
    /// The store is down, the query failed, or a limit of unknown names or waiting look-ups is reached.
    Unavailable,
}

/// Receives the result of a look-up, on the control thread.
pub type Waiter = Box<dyn FnOnce(Lookup) + Send>;

/// A user to look up.
pub(crate) struct Ask {
    pub(crate) id: Id,
    pub(crate) realm: Box<str>,
    pub(crate) name: Box<str>,
    pub(crate) source: IpAddr,
    pub(crate) waiter: Waiter,
}

/// The counters of one store.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) cached: AtomicU64,
    pub(crate) known: AtomicU64,
    pub(crate) unknown: AtomicU64,
    pub(crate) stale: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) queries: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) micros: AtomicU64,
    pub(crate) sip_failures: AtomicU64,
    pub(crate) sip_omitted: AtomicUsize,
}

/// The state and the counters of a store.
#[derive(Clone, Copy, Debug)]
pub struct Status {
    /// The store has responded once, and is not down.
    pub is_up: bool,
    /// Look-ups with a valid cache entry.
    pub cached: u64,
    /// Look-ups of users that the store has.
    pub known: u64,
    /// Look-ups of names that it does not have.
    pub unknown: u64,
    /// Look-ups that got an outdated cache entry, because the query failed or the store is down.
    pub stale: u64,
    /// Look-ups without a result, because the query failed, the store is down, or the queue to the control thread is
    /// full.
    pub failed: u64,
    /// Look-ups without a result, because there were too many unknown names (of one source or of all) or too many
    /// waiting look-ups.
    pub refused: u64,
    /// Queries to the store.
    pub queries: u64,
    /// Queries that have failed.
    pub failures: u64,
    /// Time that all queries took together.
    pub time: Duration,
    /// Users in the cache.
    pub cached_users: usize,
    /// The last reading of the SIP tables has succeeded. If not, the rows of an earlier reading are in use.
    pub is_sip_current: bool,
    /// Readings of the SIP tables that have failed.
    pub sip_failures: u64,
    /// Rows of the SIP tables that the last reading has omitted, because a table has too many.
    pub sip_omitted: usize,
    /// Rows of the small tables that have no effect because of their realm.
    pub ignored_rows: usize,
}

/// The tables of a store as they were last read.
#[derive(Debug, Default)]
struct Tables {
    /// The small tables; `None` before the store has responded for the first time.
    shared: Option<Arc<Shared>>,
    /// The SIP tables to use until the first reading: those of the same store with other settings.
    earlier_sip: Arc<SipTables>,
}

/// One store as the workers see it.
pub struct Source {
    pub(crate) kind: Kind,
    algorithms: Vec<PasswordAlgorithm>,
    pub(crate) cache: Cache,
    asks: mpsc::Sender<Ask>,
    pub(crate) counters: Counters,
    pub(crate) is_up: AtomicBool,
    /// Whether the store responds, by the last result. It is `false` from the first query without a response until a
    /// query or a probe has a response. A store counts as down only after several failures. A query that the store has
    /// rejected concerns one user, and changes nothing here.
    pub(crate) responds: AtomicBool,
    /// Whether the small tables and the SIP tables have been read, or could not be.
    pub(crate) was_tried: AtomicBool,
    /// Whether the last reading of the SIP tables has succeeded.
    pub(crate) is_sip_current: AtomicBool,
    tables: Mutex<Tables>,
    /// Why the small tables could not be read the last time that this failed.
    last_error: Mutex<Option<String>>,
    /// Rows of the small tables that have no effect because of their realm, by realm.
    ignored_rows: Mutex<BTreeMap<String, usize>>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Source {
    pub(crate) fn new(
        kind: Kind,
        algorithms: Vec<PasswordAlgorithm>,
        cache: Cache,
        asks: mpsc::Sender<Ask>,
    ) -> Source {
        Source {
            kind,
            algorithms,
            cache,
            asks,
            counters: Counters::default(),
            is_up: AtomicBool::new(false),
            responds: AtomicBool::new(true),
            was_tried: AtomicBool::new(false),
            is_sip_current: AtomicBool::new(false),
            tables: Mutex::default(),
            last_error: Mutex::new(None),
            ignored_rows: Mutex::default(),
        }
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The small tables as they were last read; `None` before the store has responded.
    #[must_use]
    pub fn shared(&self) -> Option<Arc<Shared>> {
        self.tables().shared.clone()
    }

    /// The SIP tables as they were last read.
    pub(crate) fn sip(&self) -> Arc<SipTables> {
        let tables = self.tables();
        let sip = tables.shared.as_ref().map(|shared| &shared.sip);
        Arc::clone(sip.unwrap_or(&tables.earlier_sip))
    }

    /// Sets the SIP tables to use until the first reading.
    pub(crate) fn set_earlier_sip(&self, sip: Arc<SipTables>) {
        self.tables().earlier_sip = sip;
    }

    /// Replaces the small tables, without those of SIP. Returns whether they differ.
    pub(crate) fn set_shared(&self, mut new: Shared) -> bool {
        let mut tables = self.tables();
        match &tables.shared {
            Some(old) => {
                new.sip = Arc::clone(&old.sip);
                if **old == new {
                    return false;
                }
            }
            None => new.sip = std::mem::take(&mut tables.earlier_sip),
        }
        tables.shared = Some(Arc::new(new));
        true
    }

    /// Replaces the SIP tables. Returns whether they differ. The small tables must have been read before.
    pub(crate) fn set_sip(&self, new: SipTables) -> bool {
        let shared = &mut self.tables().shared;
        match shared {
            Some(old) if *old.sip != new => {
                let mut all = Shared::clone(old);
                all.sip = Arc::new(new);
                *shared = Some(Arc::new(all));
                true
            }
            _ => false,
        }
    }

    pub(crate) fn set_last_error(&self, error: &StoreError) {
        let last = self.last_error.lock();
        *last.unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
    }

    /// Why the small tables could not be read the last time that this failed.
    pub(crate) fn last_error(&self) -> Option<String> {
        let last = self.last_error.lock();
        last.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn ignored_rows(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        let rows = self.ignored_rows.lock();
        rows.unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how many rows of the small tables have no effect because of their realm, for each realm. Returns the realms
    /// that had no such rows before, in order.
    pub fn set_ignored_rows(&self, rows: BTreeMap<String, usize>) -> Vec<String> {
        let mut noted = self.ignored_rows();
        let new = rows.keys().filter(|realm| !noted.contains_key(*realm));
        let new = new.cloned().collect();
        *noted = rows;
        new
    }

    /// Whether it may have users. A store that has not responded yet may have some.
    #[must_use]
    pub fn may_have_users(&self) -> bool {
        self.shared().is_none_or(|shared| shared.has_users)
    }

    /// The cache entry of a user; `None` if a query is necessary.
    #[must_use]
    pub fn find(&self, realm: &str, name: &str) -> Option<Lookup> {
        let id = self.cache.id(realm, name);
        let found = match self.cache.get(id, Instant::now()) {
            Cached::Known(keys, ttl) => Lookup::Known(keys, ttl),
            Cached::Unknown => Lookup::Unknown,
            Cached::Stale(_) | Cached::Missing => return None,
        };
        add(&self.counters.cached);
        Some(found)
    }

    /// Queues a look-up. `source` is the address of the client, which a nonce has verified.
    pub fn ask(&self, realm: &str, name: &str, source: IpAddr, waiter: Waiter) {
        let ask = Ask {
            id: self.cache.id(realm, name),
            realm: realm.into(),
            name: name.into(),
            source,
            waiter,
        };
        if let Err(error) = self.asks.try_send(ask) {
            add(&self.counters.failed);
            let ask = match error {
                mpsc::error::TrySendError::Full(ask) | mpsc::error::TrySendError::Closed(ask) => {
                    ask
                }
            };
            (ask.waiter)(Lookup::Unavailable);
        }
    }

    /// Its state and counters.
    #[must_use]
    pub fn status(&self) -> Status {
        let counters = &self.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Status {
            is_up: self.is_up.load(Ordering::Relaxed),
            cached: count(&counters.cached),
            known: count(&counters.known),
            unknown: count(&counters.unknown),
            stale: count(&counters.stale),
            failed: count(&counters.failed),
            refused: count(&counters.refused),
            queries: count(&counters.queries),
            failures: count(&counters.failures),
            time: Duration::from_micros(count(&counters.micros)),
            cached_users: self.cache.len(),
            is_sip_current: self.is_sip_current.load(Ordering::Relaxed),
            sip_failures: count(&counters.sip_failures),
            sip_omitted: counters.sip_omitted.load(Ordering::Relaxed),
            ignored_rows: self.ignored_rows().values().sum(),
        }
    }
}

fn answer(lookup: Lookup, name: &str, algorithm: PasswordAlgorithm) -> KeyLookup {
    match lookup {
        Lookup::Known(keys, ttl) => match keys.get(algorithm) {
            Some(key) => KeyLookup::Known(KnownUser {
                username: name.to_owned(),
                keys: vec![UserKey {
                    key,
                    expires_unix_s: None,
                    ttl_s: Some(u32::try_from(ttl.as_secs()).unwrap_or(u32::MAX)),
                }],
            }),
            None => KeyLookup::Unknown,
        },
        Lookup::Unknown => KeyLookup::Unknown,
        Lookup::Unavailable => KeyLookup::Unavailable,
    }
}

impl Credentials for Source {
    fn find(&self, query: &KeyQuery<'_>) -> KeyLookup {
        // The tables have no hashes of names.
        let Claim::Username(name) = query.claim else {
            return KeyLookup::Unknown;
        };
        if !self.supports(query.algorithm) {
            return KeyLookup::Unknown;
        }
        match self.find(query.realm, name) {
            Some(lookup) => answer(lookup, name, query.algorithm),
            None => KeyLookup::Pending,
        }
    }

    fn begin_find(&self, query: &KeyQuery<'_>, reply: KeyReply) {
        let Claim::Username(name) = query.claim else {
            return reply.send(KeyLookup::Unknown);
        };
        let (owned, algorithm) = (name.to_owned(), query.algorithm);
        let source = query.client.five_tuple.remote.ip();
        let waiter = move |lookup| reply.send(answer(lookup, &owned, algorithm));
        self.ask(query.realm, name, source, Box::new(waiter));
    }

    fn supports(&self, algorithm: PasswordAlgorithm) -> bool {
        self.algorithms.contains(&algorithm)
    }

    fn is_available(&self) -> bool {
        self.responds.load(Ordering::Relaxed)
    }
}
