//! Requests that wait for a source of credentials, such as a database, or for the bindings of other nodes of a cluster.
//!
//! ```text
//!  DigestAuthenticator::check ── note_query ──> WaitingRequests ── begin_find ──> source, on its own thread
//!       ^                                           │                                │
//!       └── lookup_result <──────── resume ─────────┴─ WorkerMessage::LateSipResult <┘
//! ```
//!
//! The authenticator queries a source for the sender of a request with a valid nonce, or for the callee of a sender who
//! may send. A request that waits is either a context of the proxy, or a copy of the message. The worker handles the
//! copy again when the result is there. Both kinds share one limit. A request above the limit gets 503. Requests of
//! senders that are not known have a lower limit of their own, so that they leave places for trunks and for
//! authenticated users.

use super::nodes::NodesQuery;
use crate::worker::{Mailboxes, WorkerMessage};
use sip::Mono;
use sip::engine::TransactionId;
use sip::flow::Flow;
use sip_server::Aor;
use sip_server::proxy::{AtNodes, ContextKey};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use stun::PasswordAlgorithm;
use turn::server::credentials::{Claim, Credentials, KeyLookup, KeyQuery, KeyReply};
use turn::{ClientPath, FiveTuple, ListenerKey, Transport};

/// The maximum of requests of one worker that wait. The stores limit the queries per source address (`stores::budget`).
const MAX_WAITING_REQUESTS: usize = 2_048;

/// The maximum of waiting requests of unknown senders: those that wait for the keys of their sender. Anybody can invent
/// names of users.
const MAX_UNKNOWN_REQUESTS: usize = 512;

/// The maximum of bytes in the copies of messages that wait. The last copy may exceed this limit.
const MAX_WAITING_BYTES: usize = 8 << 20;

/// The maximum of bytes in the copies of messages of unknown senders. The last copy may exceed this limit.
const MAX_UNKNOWN_BYTES: usize = MAX_WAITING_BYTES / 4;

/// How long a request waits for one query. Then it gets 503, as if the source were unavailable.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Queries that a store runs at once (`stores::lookups::RUNNING`). Requests above this number count as backlog, because
/// their queries have not begun.
pub(super) const MAX_STORE_QUERIES: u32 = 64;

/// The user of a query to a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QueriedUser {
    pub(super) realm: Box<str>,
    pub(super) name: Box<str>,
    pub(super) algorithm: PasswordAlgorithm,
}

impl QueriedUser {
    /// The query for the keys of this user, for the client of `flow`. WS counts as TCP, and WSS as TLS.
    pub(super) fn query<'q>(&'q self, flow: &Flow, unix_s: u64) -> KeyQuery<'q> {
        let transport = match flow.transport {
            sip::flow::Transport::Udp => Transport::Udp,
            sip::flow::Transport::Tcp | sip::flow::Transport::Ws => Transport::Tcp,
            sip::flow::Transport::Tls | sip::flow::Transport::Wss => Transport::Tls,
        };
        KeyQuery {
            claim: Claim::Username(&self.name),
            realm: &self.realm,
            algorithm: self.algorithm,
            client: ClientPath {
                five_tuple: FiveTuple {
                    transport,
                    local: flow.local,
                    remote: flow.remote,
                },
                listener: ListenerKey(flow.listener.0.into()),
            },
            unix_s,
        }
    }
}

/// A query that has not begun.
#[derive(Debug)]
pub(super) enum QueuedQuery {
    /// For the keys of a user.
    Keys(KeysQuery),
    /// For the nodes with bindings of an address.
    Nodes(NodesQuery),
}

impl QueuedQuery {
    /// The subject of the query.
    fn subject(&self) -> Subject {
        match self {
            QueuedQuery::Keys(query) => Subject::User(query.wanted.clone()),
            QueuedQuery::Nodes(query) => Subject::Address(Box::new(query.aor)),
        }
    }

    fn begin(&self, reply: impl FnOnce(SourceResponse) + Send + 'static) {
        match self {
            QueuedQuery::Keys(query) => {
                let of_user = query.wanted.query(&query.flow, query.unix_s);
                let reply = KeyReply::new(move |found| reply(SourceResponse::Keys(found)));
                query.source.begin_find(&of_user, reply);
            }
            QueuedQuery::Nodes(query) => {
                let reply = Box::new(move |found| reply(SourceResponse::Nodes(found)));
                query.nodes.nodes.begin_find(query.aor.as_bytes(), reply);
            }
        }
    }
}

/// The subject of a query: what a request waits for.
#[derive(Debug, PartialEq, Eq)]
enum Subject {
    User(QueriedUser),
    Address(Box<Aor>),
}

/// The response of a source, or of the other nodes.
#[derive(Debug)]
enum SourceResponse {
    Keys(KeyLookup),
    Nodes(AtNodes),
    /// There was no response in time, or the request was not permitted to wait.
    TimedOut,
}

/// The result of a query, with its subject.
#[derive(Debug)]
pub(super) enum LookupResult {
    Keys(QueriedUser, KeyLookup),
    Nodes(Box<Aor>, AtNodes),
}

impl LookupResult {
    fn of(subject: Subject, found: SourceResponse) -> LookupResult {
        match (subject, found) {
            (Subject::User(wanted), SourceResponse::Keys(found)) => {
                LookupResult::Keys(wanted, found)
            }
            (Subject::User(wanted), _) => LookupResult::Keys(wanted, KeyLookup::Unavailable),
            (Subject::Address(aor), SourceResponse::Nodes(found)) => {
                LookupResult::Nodes(aor, found)
            }
            (Subject::Address(aor), _) => LookupResult::Nodes(aor, AtNodes::Unavailable),
        }
    }
}

/// A query for the keys of a user.
#[derive(Debug)]
pub(super) struct KeysQuery {
    pub(super) wanted: QueriedUser,
    pub(super) source: Arc<dyn Credentials>,
    pub(super) flow: Flow,
    pub(super) unix_s: u64,
}

/// What resumes when the result of its query is there.
#[derive(Debug)]
pub(super) enum Waiter {
    /// A context of the proxy.
    Proxy(ContextKey),
    /// A copy of a request of this transaction. The worker handles it again, as if it had just arrived.
    Message(TransactionId, Box<[u8]>, Flow),
}

/// A result that arrives later, for the worker that has sent the query.
#[derive(Debug)]
pub(crate) enum LateResult {
    /// The result of a source of credentials, or of the other nodes.
    Lookup(LookupReply),
    /// The result of the media relay.
    Media(super::MediaResponse),
}

/// The response to a query, with the number of the request that waits for it.
#[derive(Debug)]
pub(crate) struct LookupReply {
    number: u64,
    found: SourceResponse,
}

#[derive(Debug)]
struct WaitingRequest {
    subject: Subject,
    waiter: Waiter,
    until: Mono,
    /// Its sender is a trunk, or has valid credentials.
    is_known: bool,
}

impl WaitingRequest {
    /// The length of the copy.
    fn bytes(&self) -> usize {
        match &self.waiter {
            Waiter::Message(_, bytes, _) => bytes.len(),
            Waiter::Proxy(_) => 0,
        }
    }
}

/// The number of requests that wait, and of their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WaitingCount {
    requests: usize,
    bytes: usize,
}

impl WaitingCount {
    fn add(&mut self, bytes: usize) {
        self.requests += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: usize) {
        self.requests -= 1;
        self.bytes -= bytes;
    }
}

/// The requests of one worker that wait.
#[derive(Debug, Default)]
pub(super) struct WaitingRequests {
    /// By their numbers, so the oldest one is first.
    entries: BTreeMap<u64, WaitingRequest>,
    /// The transactions of messages that wait. The worker drops their retransmissions.
    transactions: HashSet<u64>,
    all: WaitingCount,
    /// Requests of unknown senders.
    unknown: WaitingCount,
    next: u64,
    /// The query that the current request needs.
    wanted: Option<QueuedQuery>,
    /// Queries that have not begun, with the numbers of their entries.
    asks: Vec<(u64, QueuedQuery)>,
    /// Requests that have resumed, with a result or after [`QUERY_TIMEOUT`].
    ended: u64,
}

impl WaitingRequests {
    /// Notes the query that the current request needs. Returns `false` if no further request may wait.
    pub(super) fn note_query(&mut self, query: QueuedQuery) -> bool {
        let has_room =
            self.all.requests < MAX_WAITING_REQUESTS && self.all.bytes < MAX_WAITING_BYTES;
        if has_room {
            self.wanted = Some(query);
        }
        has_room
    }

    /// Removes the noted query, because the current request does not wait.
    pub(super) fn clear_wanted_query(&mut self) {
        self.wanted = None;
    }

    /// Lets a request wait for the noted query. Drops a retransmission of a request that waits already. `is_known`: its
    /// sender is a trunk, or has valid credentials.
    ///
    /// # Errors
    /// The source counts as unavailable, if no further request of an unknown sender may wait.
    pub(super) fn wait(
        &mut self,
        now: Mono,
        waiter: Waiter,
        is_known: bool,
    ) -> Result<(), LookupResult> {
        let Some(query) = self.wanted.take() else {
            return Ok(());
        };
        if let Waiter::Message(id, ..) = &waiter
            && self.transactions.contains(&id.0)
        {
            return Ok(());
        }
        let WaitingCount { requests, bytes } = self.unknown;
        if !is_known && (requests >= MAX_UNKNOWN_REQUESTS || bytes >= MAX_UNKNOWN_BYTES) {
            return Err(LookupResult::of(query.subject(), SourceResponse::TimedOut));
        }
        if let Waiter::Message(id, ..) = &waiter {
            self.transactions.insert(id.0);
        }
        let number = self.next;
        self.next += 1;
        let entry = WaitingRequest {
            subject: query.subject(),
            waiter,
            until: now.plus(QUERY_TIMEOUT),
            is_known,
        };
        self.all.add(entry.bytes());
        if !is_known {
            self.unknown.add(entry.bytes());
        }
        self.entries.insert(number, entry);
        self.asks.push((number, query));
        Ok(())
    }

    /// Begins the queries. Their results are inter-worker messages to this worker.
    pub(super) fn begin_queries(&mut self, worker: u16, mailboxes: &Mailboxes) {
        for (number, query) in self.asks.drain(..) {
            // Without a mailbox no result can arrive. The request waits until its timeout.
            let Some(mailbox) = mailboxes.mailbox(worker) else {
                continue;
            };
            query.begin(move |found| {
                let result = LateResult::Lookup(LookupReply { number, found });
                drop(mailbox.post(WorkerMessage::LateSipResult(Box::new(result))));
            });
        }
    }

    /// Removes the request that waits for this response, and returns it; `None` after its timeout.
    pub(super) fn take(&mut self, keys: LookupReply) -> Option<(Waiter, LookupResult)> {
        let entry = self.entries.remove(&keys.number)?;
        self.ended += 1;
        self.all.remove(entry.bytes());
        if !entry.is_known {
            self.unknown.remove(entry.bytes());
        }
        if let Waiter::Message(id, ..) = &entry.waiter {
            self.transactions.remove(&id.0);
        }
        Some((entry.waiter, LookupResult::of(entry.subject, keys.found)))
    }

    /// The requests that have waited too long, the oldest first. Their sources count as unavailable.
    pub(super) fn expired(&self, now: Mono) -> impl Iterator<Item = LookupReply> {
        let all = self.entries.iter();
        let expired = all.take_while(move |(_, entry)| entry.until <= now);
        expired.map(|(number, _)| LookupReply {
            number: *number,
            found: SourceResponse::TimedOut,
        })
    }

    /// The timeout of the oldest request.
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        let (_, entry) = self.entries.first_key_value()?;
        Some(entry.until)
    }

    /// The number of requests that wait, and of those that have resumed.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.entries.len() as u64, self.ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turn::server::credentials::AnyOf;

    fn flow() -> Flow {
        let at = |port| std::net::SocketAddr::from(([127, 0, 0, 1], port));
        Flow {
            transport: sip::flow::Transport::Udp,
            listener: sip::flow::ListenerKey(0),
            connection: None,
            local: at(5060),
            remote: at(5062),
        }
    }

    fn asked() -> QueuedQuery {
        QueuedQuery::Keys(KeysQuery {
            wanted: QueriedUser {
                realm: "r".into(),
                name: "n".into(),
                algorithm: PasswordAlgorithm::Md5,
            },
            source: Arc::new(AnyOf::default()),
            flow: flow(),
            unix_s: 0,
        })
    }

    fn message(id: u64, len: usize) -> Waiter {
        Waiter::Message(TransactionId(id), vec![0; len].into(), flow())
    }

    fn keys(number: u64) -> LookupReply {
        LookupReply {
            number,
            found: SourceResponse::Keys(KeyLookup::Unknown),
        }
    }

    #[test]
    fn retransmissions_wait_only_once_and_the_number_and_the_bytes_are_bounded() {
        let mut lookups = WaitingRequests::default();
        for id in [1, 1, 2] {
            assert!(lookups.note_query(asked()));
            assert!(lookups.wait(Mono(0), message(id, 10), true).is_ok());
        }
        assert_eq!((lookups.counts(), lookups.all.bytes), ((2, 0), 20));
        let most = u64::try_from(MAX_WAITING_REQUESTS).unwrap();
        for id in 3..=most {
            assert!(lookups.note_query(asked()));
            assert!(lookups.wait(Mono(0), message(id, 10), true).is_ok());
        }
        assert!(!lookups.note_query(asked()));
        assert!(lookups.wanted.is_none());
        assert!(lookups.take(keys(0)).is_some());
        assert!(lookups.note_query(asked()));
        let long = message(1, MAX_WAITING_BYTES);
        assert!(lookups.wait(Mono(0), long, true).is_ok());
        assert!(lookups.take(keys(1)).is_some());
        assert!(!lookups.note_query(asked()), "too many bytes");
    }

    #[test]
    fn unknown_senders_leave_room_for_trunks_and_authenticated_users() {
        let mut lookups = WaitingRequests::default();
        let most = u64::try_from(MAX_UNKNOWN_REQUESTS).unwrap();
        let mut wait = |id, len, is_known| {
            assert!(lookups.note_query(asked()), "{id}");
            let waits = lookups.wait(Mono(0), message(id, len), is_known).is_ok();
            (waits, lookups.wanted.is_some())
        };
        for id in 0..most {
            assert_eq!(wait(id, 10, false), (true, false));
        }
        assert_eq!(wait(most, 10, false), (false, false));
        assert_eq!(wait(0, 10, false), (true, false), "a retransmission");
        let all = u64::try_from(MAX_WAITING_REQUESTS).unwrap();
        for id in most..all {
            assert_eq!(wait(id, 10, true), (true, false));
        }
        assert!(!lookups.note_query(asked()));
        // Each place that gets free is one for the same kind.
        assert!(lookups.take(keys(most)).is_some());
        assert!(lookups.note_query(asked()));
        assert!(lookups.wait(Mono(0), message(all, 10), false).is_err());
        assert!(lookups.take(keys(0)).is_some());
        assert!(lookups.note_query(asked()));
        let long = message(all, MAX_UNKNOWN_BYTES);
        assert!(lookups.wait(Mono(0), long, false).is_ok());
        assert!(lookups.take(keys(1)).is_some());
        assert!(
            lookups.note_query(asked()),
            "there are bytes left for others"
        );
        let waits = lookups.wait(Mono(0), message(all + 1, 10), false);
        assert!(waits.is_err(), "too many bytes");
        for number in 0..all + 10 {
            lookups.take(keys(number));
        }
        assert_eq!((lookups.all, lookups.unknown), Default::default());
        assert!(lookups.transactions.is_empty());
    }

    #[test]
    fn a_request_gives_up_after_its_time() {
        let mut lookups = WaitingRequests::default();
        assert!(lookups.note_query(asked()));
        assert!(lookups.wait(Mono(0), message(1, 10), false).is_ok());
        let end = Mono(0).plus(QUERY_TIMEOUT);
        assert_eq!(lookups.next_deadline(), Some(end));
        assert_eq!(lookups.expired(Mono(end.0 - 1)).count(), 0);
        let keys = lookups.expired(end).next().expect("its time is over");
        let (_, result) = lookups.take(keys).expect("it waits");
        let LookupResult::Keys(wanted, found) = result else {
            panic!("{result:?}");
        };
        assert_eq!(&*wanted.name, "n");
        assert!(matches!(found, KeyLookup::Unavailable));
        assert_eq!((lookups.counts(), lookups.all.bytes), ((0, 1), 0));
    }
}
