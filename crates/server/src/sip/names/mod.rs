//! DNS names: a worker begins a look-up here, and gets the result later. Only callers of [`NameResolver::locate`] wait.
//!
//! ```text
//!  worker ── question ──> bounded queue ──> one thread: hickory-resolver over UDP and TCP
//!    ^                                              │
//!    └────────── a message in its mailbox <── answer ┘   one for everybody who has asked the same meanwhile
//! ```
//!
//! The thread begins with the first question: a server that sends nothing to names has none. It ends with the last
//! [`NameResolver`]. What was answered is cached by those who asked (`sip::routing::DnsCache`), not here.

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

/// Questions that may wait for the thread to look at them; those that it asks are bounded besides.
const QUEUE: usize = 256;

/// Asks the DNS, on a separate thread. Clones share it.
#[derive(Debug, Clone)]
pub struct NameResolver {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The name servers; empty: those of `/etc/resolv.conf`.
    servers: Vec<SocketAddr>,
    /// Where the thread may run: not only where the worker does that begins it.
    processors: Vec<usize>,
    questions: OnceLock<Option<mpsc::Sender<DnsQuery>>>,
}

/// What came of a question.
#[derive(Debug, Clone)]
pub(crate) struct Answered {
    pub(crate) query: Query,
    pub(crate) result: Result<RecordsWithTtl, NoAnswer>,
    pub(crate) took: Duration,
}

/// What the DNS says, which may be that there is nothing, and for how long that may be believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordsWithTtl {
    pub(crate) answer: DnsRecords,
    pub(crate) ttl: Duration,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// Name servers refuse, fail or cannot be reached.
    Failed,
    /// None answered in time.
    TimedOut,
    /// Too many questions are open.
    TooMany,
}

/// Which addresses are of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Families {
    pub(crate) v4: bool,
    pub(crate) v6: bool,
}

impl NameResolver {
    /// One that asks these name servers, over UDP and where answers are too long for it over TCP; without any, those of
    /// `/etc/resolv.conf`. `/etc/hosts` is looked at first in any case.
    #[must_use]
    pub fn new(servers: &[SocketAddr]) -> NameResolver {
        NameResolver {
            shared: Arc::new(Shared {
                servers: servers.to_vec(),
                processors: io::affinity::available().unwrap_or_default(),
                questions: OnceLock::new(),
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
        families: Families,
        reply: impl FnOnce(Answered) + Send + 'static,
    ) -> Result<(), NoAnswer> {
        let shared = &self.shared;
        let questions = shared.questions.get_or_init(|| {
            let (sender, receiver) = mpsc::channel(QUEUE);
            thread::spawn(shared.servers.clone(), shared.processors.clone(), receiver)
                .inspect_err(
                    |error| tracing::error!(%error, "cannot start the thread that looks up names"),
                )
                .ok()
                .map(|()| sender)
        });
        let questions = questions.as_ref().ok_or(NoAnswer::Failed)?;
        let question = DnsQuery {
            query,
            families,
            reply: Box::new(reply),
        };
        questions.try_send(question).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => NoAnswer::TooMany,
            mpsc::error::TrySendError::Closed(_) => NoAnswer::Failed,
        })
    }
}
