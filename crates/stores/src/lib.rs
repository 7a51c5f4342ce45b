//! Users, secrets, realms, peer rules and token keys of a TURN server, in databases.
//!
//! ```text
//!  worker ── find ──> Cache ── hit ──> keys, at once
//!    │                  └ miss ──> Pending
//!    └─ begin_find ──> bounded queue ──> control thread ──> Store (SQLite, PostgreSQL, MySQL, Redis, HTTP, file)
//!       keys_found <── inter-worker message <── KeyReply ──┘
//! ```
//!
//! **No worker waits for a store.** A worker locks a part of the cache for a moment. If the user is not there, it sends
//! the look-up to the control thread. This thread joins the look-ups of one user to one query. Each query has a
//! deadline. A store that fails several times in a row is down: it gets one query per interval. Until it responds, the
//! entries of the cache stay valid.
//!
//! **An unknown name costs little.** Only a request with a nonce of this server causes a look-up. The cache has a
//! separate table of fixed size for unknown names, so they evict no user. [`budget`] limits the unknown names of each
//! source address, and of all sources together.
//!
//! Tables and keys are those of coturn. An additional table, `hairpin_key`, has the SHA-256 keys of users ([`sql`]).
//!
//! ```
//! use hairpin_stores::{Keys, Options, open};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("users.txt");
//! // MD5(alice:example.com:secret), as the program htdigest writes it.
//! std::fs::write(&path, "alice:example.com:b1726872c344b6dc8365b774f8fd6412\n")?;
//! let url = format!("file:{}", path.display());
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let store = open(&Options { url, ..Options::default() })?;
//! let found = store.find_user("example.com", "alice").await?;
//! let alice = Keys::of("alice", "example.com", "secret").ok_or("not allowed by RFC 8265")?;
//! assert_eq!(found.keys.and_then(|keys| keys.md5), alice.md5);
//! assert_eq!(store.find_user("example.com", "bob").await?.keys, None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # When not to use it
//!
//! - For a few users, write them into the configuration of the program, or pass them to `Server::builder()` of
//!   `hairpin-server`.
//! - For a general interface to databases, use `sqlx` or the driver of the database. This crate reads the tables of
//!   coturn only.

#![forbid(unsafe_code)]

pub mod budget;
pub mod cache;
pub mod cluster;
pub mod error;
pub mod keys;
pub mod kinds;
pub mod lookups;
pub mod ranges;
pub mod realm_changes;
pub mod saved_bindings;
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
pub use saved_bindings::{BindingRow, SavedBindings};
pub use source::{Source, Status};
pub use store::{
    Change, Directory, Found, RealmOption, Shared, SipRouteRow, SipRouteValue, SipTables, Store,
    StoreFuture, TokenKeyRow,
};
pub use stores::{Notice, OpenError, StoreList, StoreSettings, Stores};
