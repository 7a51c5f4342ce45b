//! DNS names: a worker begins a look-up here, and gets the result later. Only callers of [`NameResolver::locate`] wait.
//!
//! ```text
//!  worker ── query ─────> bounded queue ──> one thread: hickory-resolver over UDP and TCP
//!    ^                                              │
//!    └────────── a message in its mailbox <── result ┘   one for all who have sent the same query meanwhile
//! ```
//!
//! The thread begins with the first query, so a server that resolves no names has no thread. It ends with the last
//! [`NameResolver`]. The workers cache results (`sip::routing::DnsCache`); this module does not.

mod blocking;
mod lookup;
mod thread;

pub use blocking::LocateError;

use sip::routing::{DnsRecords, Query};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use thread::DnsQuery;
use tokio::sync::mpsc;

/// Queries that may wait for the thread. The queries that it has sent have their own limit.
const MAX_QUEUED_QUERIES: usize = 256;

/// Sends DNS queries on a separate thread. Clones share the thread.
#[derive(Debug, Clone)]
pub struct NameResolver {
    shared: Arc<SharedResolver>,
}

#[derive(Debug)]
struct SharedResolver {
    /// The name servers; empty: those of `/etc/resolv.conf`.
    servers: Vec<SocketAddr>,
    /// The processors that the thread may use. The worker that begins it may be pinned to one.
    processors: Vec<usize>,
    queries: OnceLock<Option<mpsc::Sender<DnsQuery>>>,
}

/// The result of a DNS query.
#[derive(Debug, Clone)]
pub(crate) struct DnsQueryResult {
    pub(crate) query: Query,
    pub(crate) result: Result<RecordsWithTtl, DnsFailure>,
    pub(crate) took: Duration,
}

/// DNS records, maybe none, and how long they may be cached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordsWithTtl {
    pub(crate) answer: DnsRecords,
    pub(crate) ttl: Duration,
}

/// Why a DNS query has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DnsFailure {
    /// Name servers refuse, fail or cannot be reached.
    Failed,
    /// No name server has responded in time.
    TimedOut,
    /// Too many queries are open.
    TooMany,
}

/// The address families that this server can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct AddressFamilies {
    pub(crate) v4: bool,
    pub(crate) v6: bool,
}

impl NameResolver {
    /// A resolver with these name servers; without any, with those of `/etc/resolv.conf`. It uses UDP, and TCP for long
    /// responses. It reads `/etc/hosts` before it sends a query.
    #[must_use]
    pub fn new(servers: &[SocketAddr]) -> NameResolver {
        NameResolver {
            shared: Arc::new(SharedResolver {
                servers: servers.to_vec(),
                processors: io::affinity::available().unwrap_or_default(),
                queries: OnceLock::new(),
            }),
        }
    }

    /// Sends a query. `reply` is called on the resolver's thread, within a few seconds, unless the thread ends before.
    /// It must not block.
    ///
    /// # Errors
    /// If too many queries wait, or there is no thread. Then `reply` is not called.
    pub(crate) fn ask(
        &self,
        query: Query,
        families: AddressFamilies,
        reply: impl FnOnce(DnsQueryResult) + Send + 'static,
    ) -> Result<(), DnsFailure> {
        let shared = &self.shared;
        let queries = shared.queries.get_or_init(|| {
            let (sender, receiver) = mpsc::channel(MAX_QUEUED_QUERIES);
            thread::spawn(shared.servers.clone(), shared.processors.clone(), receiver)
                .inspect_err(
                    |error| tracing::error!(%error, "cannot start the thread that looks up names"),
                )
                .ok()
                .map(|()| sender)
        });
        let queries = queries.as_ref().ok_or(DnsFailure::Failed)?;
        let question = DnsQuery {
            query,
            families,
            reply: Box::new(reply),
        };
        queries.try_send(question).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => DnsFailure::TooMany,
            mpsc::error::TrySendError::Closed(_) => DnsFailure::Failed,
        })
    }
}
