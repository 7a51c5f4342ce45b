//! The thread of DNS queries: takes queries from the queue, sends equal ones once, and gives the result to all who
//! wait.

use super::lookup::DnsLookups;
use super::{AddressFamilies, DnsFailure, DnsQueryResult};
use sip::routing::Query;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::task::LocalSet;

/// Queries in progress. Each has one or two sockets.
const MAX_OPEN_QUERIES: usize = 256;

/// How many requests may wait for one query.
const MAX_WAITERS_PER_QUERY: usize = 1024;

/// One query, and where its result goes.
pub(super) struct DnsQuery {
    pub(super) query: Query,
    pub(super) families: AddressFamilies,
    pub(super) reply: DnsReply,
}

/// Gives a result to its caller.
pub(super) type DnsReply = Box<dyn FnOnce(DnsQueryResult) + Send>;

impl fmt::Debug for DnsQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DnsQuery").field(&self.query).finish()
    }
}

/// The queries in progress, and where their results go.
type OpenQueries = Rc<RefCell<HashMap<(Query, AddressFamilies), Vec<DnsReply>>>>;

/// Begins the thread. It ends when its last handle is dropped.
pub(super) fn spawn(
    servers: Vec<SocketAddr>,
    processors: Vec<usize>,
    queries: mpsc::Receiver<DnsQuery>,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::Builder::new()
        .name("hairpin-names".to_owned())
        .spawn(move || {
            // A thread inherits the affinity of the worker that begins it.
            if let Err(error) = io::affinity::spread_current_thread(&processors) {
                tracing::debug!(%error, "names are looked up where a worker runs");
            }
            LocalSet::new().block_on(&runtime, serve(DnsLookups::new(&servers), queries));
        })
        .map(drop)
}

async fn serve(lookups: DnsLookups, mut queries: mpsc::Receiver<DnsQuery>) {
    let lookups = Rc::new(lookups);
    let open = OpenQueries::default();
    while let Some(question) = queries.recv().await {
        let DnsQuery {
            query,
            families,
            reply,
        } = question;
        let key = (query, families);
        let mut asked = open.borrow_mut();
        let is_full = asked.len() >= MAX_OPEN_QUERIES;
        match asked.get_mut(&key) {
            Some(replies) if replies.len() < MAX_WAITERS_PER_QUERY => replies.push(reply),
            None if !is_full => {
                asked.insert(key.clone(), vec![reply]);
                let (lookups, open) = (Rc::clone(&lookups), Rc::clone(&open));
                tokio::task::spawn_local(async move { ask(&lookups, key, &open).await });
            }
            _ => reply(DnsQueryResult {
                query: key.0,
                result: Err(DnsFailure::TooMany),
                took: std::time::Duration::ZERO,
            }),
        }
    }
}

async fn ask(lookups: &DnsLookups, key: (Query, AddressFamilies), open: &OpenQueries) {
    let begun = Instant::now();
    let result = lookups.ask(&key.0, key.1).await;
    let replies = open.borrow_mut().remove(&key).unwrap_or_default();
    let answered = DnsQueryResult {
        query: key.0,
        result,
        took: begun.elapsed(),
    };
    for reply in replies {
        reply(answered.clone());
    }
}
