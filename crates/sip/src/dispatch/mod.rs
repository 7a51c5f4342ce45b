//! "Send this request to this URI". The dispatcher finds the servers of the URI by the DNS (RFC 3263). It begins a
//! client transaction with each until one responds. The TU only gets the responses. For UACs and proxies alike.
//!
//! ```text
//!  TU ── send(URI, request) ──> Dispatcher ── poll_query ────> whoever asks the DNS ── answered ──┐
//!                                   │  ^                                                           │
//!                 Engine::request <─┘  └── response, event: what the engine says of these ◀────────┘
//!                                   └──> the TU: responses with its mark; poll_failure: what failed
//! ```
//!
//! **The rules for its embedder.** All requests of the TU that have a mark go through here: the marks that the engine
//! knows are the dispatcher's. The embedder passes every [`Received::Response`](crate::engine::Received) and every
//! [`Event`] of a client transaction, and drains the engine's outputs after each call. The embedder answers every DNS
//! query, at least with a failure. A query without an answer fails after a while.
//!
//! What failed over is a transaction of its own, with a branch of its own (RFC 3263 §4.3). A server that was silent, or
//! asked for a pause with Retry-After, comes last for as long ([`Penalties`]).
//!
//! ```
//! use hairpin_sip::congestion::Class;
//! use hairpin_sip::dispatch::{AllowedDestination, Config, Dispatcher, OutgoingRequest, Source};
//! use hairpin_sip::engine::{self, Engine, Mark, Output};
//! use hairpin_sip::flow::{Transport, ListenerKey};
//! use hairpin_sip::routing::{DnsRecords, Query};
//! use hairpin_sip::{HashKey, Mono};
//! use std::time::Duration;
//!
//! let key = HashKey::new([7; 16]);
//! let mut config = engine::Config::new(0, key);
//! config.sent_by = vec![engine::SentBy::new(ListenerKey(0), Transport::Udp, "192.0.2.1", 5060)];
//! let mut engine = Engine::new(config, 1);
//! let udp = Source { listener: ListenerKey(0), transport: Transport::Udp, is_v4: true };
//! let mut dispatcher = Dispatcher::new(Config::new(vec![udp]), key, 1);
//!
//! let options = b"OPTIONS sip:example.org:5070 SIP/2.0\r\nFrom: <sip:a@192.0.2.1>;tag=1\r\nTo: <sip:example.org>\r\n\
//!     Call-ID: 1@192.0.2.1\r\nCSeq: 1 OPTIONS\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n";
//! let request = OutgoingRequest {
//!     target: b"sip:example.org:5070",
//!     pieces: &[options],
//!     class: Class::New,
//!     mark: Mark(1),
//!     reach: AllowedDestination::Anywhere,
//!     flow: None,
//!     from: None,
//!     loop_check: None,
//! };
//! dispatcher.send(Mono(0), &mut engine, &request)?;
//! let Some(query @ Query::Addresses(_)) = dispatcher.poll_query() else {
//!     return Err("a name with a port has addresses".into());
//! };
//! let answer = DnsRecords::Addresses(vec![[192, 0, 2, 9].into()]);
//! dispatcher.answered(Mono(0), &mut engine, query, Ok((answer, Duration::from_secs(60))));
//! assert!(matches!(engine.poll_output(), Some(Output::Send { .. })));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod forwarding;
mod outgoing;
mod queries;
mod requests;
mod responses;

pub use forwarding::{Forwarding, RecordRoute, write_route};
pub use outgoing::{
    Allowed, AllowedDestination, ClusterNodes, Config, DispatchError, DispatchFailure, Failure,
    OutgoingRequest, PeerGroups, SendFrom, Source, Stats,
};

use std::collections::VecDeque;
use std::time::Duration;

use crate::engine::slab::Slab;
use crate::engine::{ClientFailure, ClientKey, Engine, Event, Mark};
use crate::flow::Flow;
use crate::message::Message;
use crate::routing::{DnsCache, DnsFailed, DnsRecords, Locator, Outcome, Penalties, Query};
use crate::{HashKey, Mono};
use queries::{PendingQueries, Waiter};
use requests::Request;
use responses::Response;

/// Names a request that was sent to a URI; stale when that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestKey {
    slot: u32,
    generation: u32,
}

impl RequestKey {
    fn mark(self) -> Mark {
        Mark(u64::from(self.slot) << 32 | u64::from(self.generation))
    }

    fn of(mark: Mark) -> RequestKey {
        RequestKey {
            slot: (mark.0 >> 32) as u32,
            generation: mark.0 as u32,
        }
    }
}

/// Sends requests to URIs, for the TU of one engine.
#[derive(Debug)]
pub struct Dispatcher {
    config: Config,
    locator: Locator,
    cache: DnsCache,
    penalties: Penalties,
    requests: Slab<Request>,
    responses: Slab<Response>,
    queries: PendingQueries,
    failures: VecDeque<DispatchFailure>,
    stats: Stats,
}

impl Dispatcher {
    /// With nothing in progress. The seed decides among SRV records of equal priority.
    #[must_use]
    pub fn new(config: Config, key: HashKey, seed: u64) -> Dispatcher {
        let key = key.derive(u64::from_le_bytes(*b"dispatch"));
        Dispatcher {
            locator: Locator::new(&config.transports(), seed)
                .with_addresses(&config.transports_of_nodes()),
            cache: DnsCache::new(key),
            penalties: Penalties::new(key),
            requests: Slab::new(),
            responses: Slab::new(),
            queries: PendingQueries::new(key, config.max_queries),
            failures: VecDeque::new(),
            stats: Stats::default(),
            config,
        }
    }

    /// Changes [`Config::allowed`].
    pub fn allow(&mut self, allowed: Allowed) {
        self.config.allowed = allowed;
    }

    /// Sends a request to whom its target names. The responses, or that there are none, come with the order's mark.
    ///
    /// # Errors
    /// [`DispatchError`]; nothing will be told of it then.
    pub fn send(
        &mut self,
        now: Mono,
        engine: &mut Engine,
        order: &OutgoingRequest<'_>,
    ) -> Result<RequestKey, DispatchError> {
        if self.requests.len() >= self.config.most {
            return Err(DispatchError::Full);
        }
        Ok(self.start(now, engine, Request::new(order)?, order.flow))
    }

    fn start(
        &mut self,
        now: Mono,
        engine: &mut Engine,
        request: Request,
        flow: Option<Flow>,
    ) -> RequestKey {
        let (slot, generation) = self.requests.insert(request);
        let key = RequestKey { slot, generation };
        self.stats.requests += 1;
        let is_sent = flow.is_some_and(|flow| self.send_by(now, engine, key, &flow));
        if !is_sent {
            self.locate(now, engine, key);
        }
        key
    }

    /// An INVITE is not wanted any more: the server that it is with gets a CANCEL as soon as it may (RFC 3261 §9.1).
    /// One that has not been sent fails.
    pub fn cancel(&mut self, now: Mono, engine: &mut Engine, key: RequestKey) {
        self.cancel_with_reason(now, engine, key, b"");
    }

    /// As [`Dispatcher::cancel`]. The CANCEL has these Reason header lines: see [`Engine::cancel_with_reason`].
    pub fn cancel_with_reason(
        &mut self,
        now: Mono,
        engine: &mut Engine,
        key: RequestKey,
        reason: &[u8],
    ) {
        let Some(request) = self.requests.get(key.slot, key.generation) else {
            return;
        };
        match request.client {
            Some(client) => {
                // Nobody else is to be asked.
                request.stop_failover();
                request.is_cancelled = true;
                engine.cancel_with_reason(now, client, reason);
            }
            None => self.fail(key, Failure::Cancelled),
        }
    }

    /// The next question to the DNS.
    pub fn poll_query(&mut self) -> Option<Query> {
        self.queries.poll()
    }

    /// What the DNS says, and for how long that holds.
    pub fn answered(
        &mut self,
        now: Mono,
        engine: &mut Engine,
        query: Query,
        result: Result<(DnsRecords, Duration), DnsFailed>,
    ) {
        let waiting = self.queries.close(&query);
        match result {
            Ok((answer, ttl)) => self.cache.insert(now, query, answer, ttl),
            Err(DnsFailed) => self.cache.insert_failure(now, query),
        }
        for who in waiting {
            match who {
                Waiter::Request(key) => self.locate(now, engine, key),
                Waiter::Response(key) => self.locate_response(now, engine, key),
            }
        }
    }

    /// A response that the engine has for the TU, to be called with what is in
    /// [`Received::Response`](crate::engine::Received). Returns the mark of the TU if the response is for it, and
    /// `None` if another server is tried instead.
    pub fn response(
        &mut self,
        now: Mono,
        engine: &mut Engine,
        client: ClientKey,
        mark: Mark,
        message: &Message<'_>,
    ) -> Option<Mark> {
        let key = RequestKey::of(mark);
        let request = self.requests.get(key.slot, key.generation)?;
        if request.client != Some(client) {
            // The response is of a server that the dispatcher has given up.
            return None;
        }
        let code = message.status_code().unwrap_or(0);
        let tu = request.mark;
        if code < 200 {
            request.heard = true;
            return Some(tu);
        }
        let outcome = match code {
            503 => Outcome::Unavailable {
                retry_after_s: message
                    .retry_after()
                    .ok()
                    .flatten()
                    .map(|after| after.seconds),
            },
            _ => Outcome::Answered,
        };
        if self.ended(now, engine, key, outcome) {
            return None;
        }
        self.done(key, code);
        Some(tu)
    }

    /// What the engine says of a client transaction, or of a response that was sent elsewhere.
    pub fn event(&mut self, now: Mono, engine: &mut Engine, event: &Event) {
        match *event {
            Event::ClientFailed { key, mark, failure } => {
                self.transaction_failed(now, engine, (key, mark), failure);
            }
            Event::ClientEnded { key, mark } => {
                let of = RequestKey::of(mark);
                let request = self.requests.get(of.slot, of.generation);
                if request.is_some_and(|request| request.client == Some(key)) {
                    self.requests.remove(of.slot);
                }
            }
            Event::Redirected { mark, sent } => self.redirected(now, engine, mark, sent),
            Event::ServerFailed { .. } | Event::ServerEnded { .. } => {}
        }
    }

    /// A client transaction has failed: the request goes to the next server, or fails.
    fn transaction_failed(
        &mut self,
        now: Mono,
        engine: &mut Engine,
        (client, mark): (ClientKey, Mark),
        failure: ClientFailure,
    ) {
        let key = RequestKey::of(mark);
        let Some(request) = self.requests.get(key.slot, key.generation) else {
            return;
        };
        if request.client != Some(client) {
            return;
        }
        let (outcome, why) = match failure {
            // Nothing else is tried, so the outcome is what was asked for.
            ClientFailure::TransportFailed if request.is_cancelled => {
                return self.fail(key, Failure::Cancelled);
            }
            ClientFailure::TimedOut => (Outcome::TimedOut, Failure::TimedOut),
            ClientFailure::TransportFailed => (Outcome::TransportFailed, Failure::TransportFailed),
            ClientFailure::Cancelled => return self.fail(key, Failure::Cancelled),
        };
        // RFC 3263 §4.3: a server has failed only if it sent no response at all. A server that sent a provisional
        // response has not.
        let outcome = if request.heard && failure == ClientFailure::TimedOut {
            Outcome::Answered
        } else {
            outcome
        };
        if why == Failure::TransportFailed && self.locate_instead(now, engine, key) {
            return;
        }
        if !self.ended(now, engine, key, outcome) {
            self.fail(key, why);
        }
    }

    /// The next event for the TU.
    pub fn poll_failure(&mut self) -> Option<DispatchFailure> {
        self.failures.pop_front()
    }

    /// When to call [`Dispatcher::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        self.queries.deadline()
    }

    /// Time has passed: questions that nobody has answered have failed.
    pub fn handle_timeout(&mut self, now: Mono, engine: &mut Engine) {
        while let Some(query) = self.queries.overdue(now) {
            self.answered(now, engine, query, Err(DnsFailed));
        }
    }

    /// Whether requests are in progress.
    #[must_use]
    pub fn has_requests(&self) -> bool {
        self.requests.len() > 0
    }

    /// What was done, and what there is now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            alive: self.requests.len(),
            queries: self.queries.len(),
            cached: self.cache.len(),
            ..self.stats
        }
    }
}
