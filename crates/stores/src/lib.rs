//! Users, secrets, realms, peer rules and token keys of a TURN server, in databases.
//!
//! ```text
//!  worker ── find ──> Cache ── hit ──> keys, at once
//!    │                  └ miss ──> Pending
//!    └─ begin_find ──> bounded queue ──> control thread ──> Store (SQLite, PostgreSQL, MySQL, Redis, HTTP, file)
//!       keys_found <── inter-worker message <── KeyReply ──┘
//! ```
//!
//! **No worker waits for a store.** A worker takes a lock of the cache for a moment, and sends what it does not find
//! there to the control thread. There, look-ups of one user become one query. A query has a deadline. A store that
//! fails several times in a row is down: it is asked once per interval, and what the cache has stays valid meanwhile.
//!
//! **A name that is unknown costs little.** Only a request with a nonce of this server gets here. The cache notes
//! unknown names in a table of its own with a fixed size, so they evict no user. A source address has a budget of
//! unknown names ([`budget`]), and all sources together have one.
//!
//! Tables and keys are those of coturn. One table more, `hairpin_key`, has the SHA-256 keys of users ([`sql`]).

#![forbid(unsafe_code)]

pub mod budget;
pub mod cache;
pub mod cluster;
pub mod error;
pub mod keys;
pub mod kinds;
pub mod lookups;
pub mod ranges;
pub mod sinks;
pub mod source;
pub mod sql;
pub mod store;
pub mod stores;
#[cfg(test)]
mod test_engines;
#[cfg(test)]
mod test_redis;

pub use error::StoreError;
pub use keys::Keys;
pub use kinds::{Kind, Options, open};
pub use source::{Source, Status};
pub use store::{Change, Directory, Found, RealmOption, Shared, Store, StoreFuture, TokenKeyRow};
pub use stores::{Notice, OpenError, StoreList, StoreSettings, Stores};
