//! The interface of a store.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::error::StoreError;
use crate::keys::Keys;

/// The result of a query, later.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The result of a query for a user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The keys; `None` if there is no such user.
    pub keys: Option<Keys>,
    /// The lifetime of this result, if the store sets one.
    pub ttl: Option<Duration>,
}

/// A limit of a realm, as coturn names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RealmOption {
    /// Bytes per second of one allocation.
    MaxBps,
    /// Allocations of the realm.
    TotalQuota,
    /// Allocations of each user.
    UserQuota,
}

impl RealmOption {
    /// All options.
    pub const ALL: [RealmOption; 3] = [
        RealmOption::MaxBps,
        RealmOption::TotalQuota,
        RealmOption::UserQuota,
    ];

    /// Its name in the database.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            RealmOption::MaxBps => "max-bps",
            RealmOption::TotalQuota => "total-quota",
            RealmOption::UserQuota => "user-quota",
        }
    }

    /// The option of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<RealmOption> {
        Self::ALL.into_iter().find(|option| option.name() == name)
    }
}

/// A key of access tokens (RFC 7635), as the store has it.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenKeyRow {
    /// Its key ID.
    pub kid: String,
    /// The key in base64.
    pub key: String,
    /// The algorithm, `A256GCM` if it is empty.
    pub algorithm: String,
    /// When it becomes valid, in seconds since 1970; 0: at once.
    pub since_unix_s: u64,
    /// Its lifetime in seconds; 0: it does not expire.
    pub lifetime_s: u64,
    /// The realm; empty: the default one.
    pub realm: String,
}

/// Keys stay out of logs.
impl fmt::Debug for TokenKeyRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenKeyRow")
            .field("kid", &self.kid)
            .finish_non_exhaustive()
    }
}

/// A route of SIP requests, as the store has it: the keys of a `[[sip.route]]` with their values as text. A list is
/// separated by commas, or is a JSON array.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SipRouteRow {
    /// Its name.
    pub name: String,
    /// Keys and their values as text. Keys with an empty value are absent.
    pub keys: Vec<(String, String)>,
}

/// The type of the value of a key of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SipRouteValue {
    /// A text.
    Text,
    /// A whole number.
    Number,
    /// Texts, separated by commas or as a JSON array.
    List,
}

use SipRouteValue::{List, Number, Text};

impl SipRouteRow {
    /// The keys of a route without its name, and the types of their values.
    pub const KEYS: [(&str, SipRouteValue); 18] = [
        ("priority", Number),
        ("prefixes", List),
        ("domains", List),
        ("from_trunks", List),
        ("from_users", List),
        ("from_networks", List),
        ("headers", List),
        ("strip", Number),
        ("replace", Text),
        ("add", Text),
        ("trunks", List),
        ("to_domain", Text),
        ("reject", Text),
        ("hunt", Text),
        ("on_busy", Text),
        ("on_no_answer", Text),
        ("on_unreachable", Text),
        ("ring_time", Text),
    ];

    /// The type of the value of this key; `None` if a route has no such key.
    #[must_use]
    pub fn value_of(key: &str) -> Option<SipRouteValue> {
        let known = Self::KEYS.iter().find(|(name, _)| *name == key);
        known.map(|(_, value)| *value)
    }
}

/// The SIP tables of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SipTables {
    /// Aliases: the alias and its address of record.
    pub aliases: Vec<(String, String)>,
    /// Routes of requests.
    pub routes: Vec<SipRouteRow>,
    /// Number of rows that were omitted, because a table has more than [`SipTables::MAX_ROWS`].
    pub omitted: usize,
}

impl SipTables {
    /// Maximum number of rows per table. It bounds the memory.
    pub const MAX_ROWS: usize = 65_536;
}

/// The small tables of a store, which are read as a whole. In pairs with a realm, the realm comes first (in `origins`,
/// second); an empty realm is the default one.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Shared {
    /// Whether the store has any user.
    pub has_users: bool,
    /// Secrets of time-limited credentials.
    pub secrets: Vec<(String, String)>,
    /// Web origins, and the realm that each chooses.
    pub origins: Vec<(String, String)>,
    /// Limits of realms.
    pub options: Vec<(String, RealmOption, u64)>,
    /// Peers that are allowed, as ranges of addresses.
    pub allowed: Vec<(String, String)>,
    /// Peers that are denied.
    pub denied: Vec<(String, String)>,
    /// Keys of access tokens.
    pub token_keys: Vec<TokenKeyRow>,
    /// The SIP tables. [`Store::shared`] leaves them empty, and [`Store::sip_tables`] reads them.
    pub sip: Arc<SipTables>,
}

/// Secrets stay out of logs.
impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("has_users", &self.has_users)
            .field("secrets", &self.secrets.len())
            .field("origins", &self.origins)
            .field("options", &self.options)
            .field("allowed", &self.allowed)
            .field("denied", &self.denied)
            .field("token_keys", &self.token_keys)
            .field("sip_aliases", &self.sip.aliases.len())
            .field("sip_routes", &self.sip.routes)
            .finish()
    }
}

/// A change that a store reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A user has changed.
    User {
        /// Its realm.
        realm: String,
        /// Its name.
        name: String,
    },
    /// The small tables.
    Shared,
    /// Anything may have changed.
    Everything,
}

/// Receives changes.
pub type OnChange<'a> = &'a (dyn Fn(Change) + Send + Sync);

/// A database, a file or a service. Each call may be made while others wait.
pub trait Store: fmt::Debug + Send + Sync {
    /// The user of this name in this realm.
    fn find_user<'a>(&'a self, realm: &'a str, name: &'a str) -> StoreFuture<'a, Found>;

    /// The small tables, without the SIP tables. An error means that the store is down.
    fn shared(&self) -> StoreFuture<'_, Shared>;

    /// The SIP tables. They can be large, so the server reads them separately. An error here does not mean that the
    /// store is down.
    fn sip_tables(&self) -> StoreFuture<'_, SipTables> {
        Box::pin(std::future::ready(Ok(SipTables::default())))
    }

    /// Reports changes until their connection breaks, which is an error. The future of a store that reports no changes
    /// never ends.
    fn watch<'a>(&'a self, _told: OnChange<'a>) -> StoreFuture<'a, ()> {
        Box::pin(std::future::pending())
    }

    /// The write access to it, if this program can change it.
    fn directory(&self) -> Option<&dyn Directory> {
        None
    }
}

/// Changes a store, and lists its users.
pub trait Directory: Send + Sync {
    /// Adds a user, or replaces its keys.
    fn put_user<'a>(&'a self, realm: &'a str, name: &'a str, keys: Keys) -> StoreFuture<'a, ()>;

    /// Returns whether there was one.
    fn delete_user<'a>(&'a self, realm: &'a str, name: &'a str) -> StoreFuture<'a, bool>;

    /// At most `limit` users as realm and name, in order, after this one; of one realm if it is given.
    fn list_users<'a>(
        &'a self,
        realm: Option<&'a str>,
        after: Option<(&'a str, &'a str)>,
        limit: usize,
    ) -> StoreFuture<'a, Vec<(String, String)>>;

    /// Adds a secret of time-limited credentials.
    fn put_secret<'a>(&'a self, realm: &'a str, secret: &'a str) -> StoreFuture<'a, ()>;

    /// Returns whether there was one.
    fn delete_secret<'a>(&'a self, realm: &'a str, secret: &'a str) -> StoreFuture<'a, bool>;

    /// Sets a limit of a realm; `None` removes it.
    fn set_option<'a>(
        &'a self,
        realm: &'a str,
        option: RealmOption,
        value: Option<u64>,
    ) -> StoreFuture<'a, ()>;

    /// Makes an origin choose this realm; `None` removes the origin. Returns whether something has changed.
    fn set_origin<'a>(&'a self, origin: &'a str, realm: Option<&'a str>) -> StoreFuture<'a, bool>;
}
