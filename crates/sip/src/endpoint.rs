//! An engine, a dispatcher and one transaction user (TU) for one thread. The embedder adds sockets, a DNS resolver and
//! a clock.
//!
//! ```text
//!  messages ── handle_message ──┐            ┌── Task::Send, Connect, Close: sockets
//!  time ────── handle_timeout ──┤  Endpoint  ├── Task::Resolve: a query to the DNS ──> resolved
//!  program ─── act ─────────────┘            └── poll_timeout: when to call handle_timeout next
//! ```
//!
//! **The rule for the embedder:** after each call that changes something it calls [`Endpoint::drain`]. The closure of
//! `drain` carries out each [`Task`]. The program reports immediate results (a datagram that was not sent, a
//! connection) after `drain` has returned.
//!
//! Use it for a user agent, a registrar or a proxy on one thread. A server with several workers has its own loop around
//! [`crate::tu`], because a message may belong to another worker: here, such a message is dropped.
//!
//! ```
//! use hairpin_sip::agent::{self, UserAgent};
//! use hairpin_sip::dispatch::{self, Dispatcher, Source};
//! use hairpin_sip::endpoint::{Endpoint, Task};
//! use hairpin_sip::engine::{self, Engine, SentBy};
//! use hairpin_sip::flow::{Transport, Flow, ListenerKey};
//! use hairpin_sip::{HashKey, Mono, Now};
//!
//! let key = HashKey::new([7; 16]); // random, in a program
//! let mut config = engine::Config::new(0, key);
//! config.rules = agent::RULES;
//! config.sent_by = vec![SentBy::new(ListenerKey(0), Transport::Udp, "192.0.2.1", 5060)];
//! let udp = Source { listener: ListenerKey(0), transport: Transport::Udp, is_v4: true };
//! let phone = agent::Config::new("sip:alice@example.com", "sip:alice@192.0.2.1:5060");
//! let mut endpoint = Endpoint::new(
//!     Engine::new(config, 1),
//!     Dispatcher::new(dispatch::Config::new(vec![udp]), key, 1),
//!     UserAgent::new(phone, key)?,
//! );
//!
//! let now = Now { mono: Mono(1), unix_s: 1_800_000_000 };
//! let flow = Flow {
//!     transport: Transport::Udp,
//!     listener: ListenerKey(0),
//!     connection: None,
//!     local: "192.0.2.1:5060".parse()?,
//!     remote: "192.0.2.9:5060".parse()?,
//! };
//! let options = b"OPTIONS sip:alice@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.9;branch=z9hG4bK7;rport\r\n\
//!     From: <sip:b@example.com>;tag=1\r\nTo: <sip:alice@example.com>\r\nCall-ID: 5@192.0.2.9\r\n\
//!     CSeq: 1 OPTIONS\r\nMax-Forwards: 70\r\n\r\n";
//! endpoint.handle_message(now, &flow, options);
//! let mut sent = Vec::new();
//! endpoint.drain(now, |task| {
//!     if let Task::Send { bytes, .. } = task {
//!         sent.extend_from_slice(bytes);
//!     }
//! });
//! assert!(sent.starts_with(b"SIP/2.0 200 OK\r\n"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::time::Duration;

use crate::dispatch::Dispatcher;
use crate::engine::{ConnectKey, Engine, Origin, Output, Received, SendTo};
use crate::flow::{ConnectionKey, Destination, Flow};
use crate::message::Spans;
use crate::routing::{DnsFailed, DnsRecords, Query};
use crate::tu::{RequestOwner, TransactionUser, Transactions, deliver_failure, dispatch_event};
use crate::{Mono, Now};

/// What the embedder does for an endpoint.
#[derive(Debug)]
pub enum Task<'a> {
    /// Send these bytes. If the socket reports an error: [`Endpoint::send_failed`].
    Send {
        /// Where to.
        to: SendTo,
        /// On whose behalf.
        origin: Origin,
        /// A whole message.
        bytes: &'a [u8],
    },
    /// Open a connection, then call [`Endpoint::connected`] or [`Endpoint::connect_failed`].
    Connect {
        /// To be named there.
        key: ConnectKey,
        /// Where to.
        to: &'a Destination,
    },
    /// Close a connection when everything is written.
    Close(ConnectionKey),
    /// Send this query to the DNS, then call [`Endpoint::resolved`].
    Resolve(Query),
}

/// An engine, a dispatcher and a TU, of one thread.
#[derive(Debug)]
pub struct Endpoint<U> {
    engine: Engine,
    dispatcher: Dispatcher,
    user: U,
    spans: Box<Spans>,
}

impl<U: TransactionUser> Endpoint<U> {
    /// An endpoint of these parts. The engine must be the engine of worker 0.
    #[must_use]
    pub fn new(engine: Engine, dispatcher: Dispatcher, user: U) -> Endpoint<U> {
        Endpoint {
            engine,
            dispatcher,
            user,
            spans: Box::default(),
        }
    }

    /// The TU.
    #[must_use]
    pub const fn user(&self) -> &U {
        &self.user
    }

    /// The TU, for what needs no transactions.
    pub const fn user_mut(&mut self) -> &mut U {
        &mut self.user
    }

    /// The engine, for its counters and its settings.
    pub const fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Lets the program act through the TU: register, call, answer.
    pub fn act<R>(&mut self, now: Now, act: impl FnOnce(&mut U, &mut Transactions<'_>) -> R) -> R {
        let mut transactions = Transactions {
            now,
            engine: &mut self.engine,
            dispatcher: &mut self.dispatcher,
            owner_of: |_| 0,
        };
        act(&mut self.user, &mut transactions)
    }

    /// A whole message has come: a datagram, or a message of a connection.
    pub fn handle_message(&mut self, now: Now, flow: &Flow, bytes: &[u8]) {
        let Endpoint {
            engine,
            dispatcher,
            user,
            spans,
        } = self;
        let received = engine.handle_message(now, flow, bytes, spans);
        let for_user = match &received {
            Received::Response {
                client,
                mark: Some(mark),
                message,
            } => dispatcher.response(now.mono, engine, *client, *mark, message),
            _ => None,
        };
        let transactions = &mut Transactions {
            now,
            engine,
            dispatcher,
            owner_of: |_| 0,
        };
        // There is one worker, so that no message belongs to another one.
        let _ = match received {
            Received::Request(request) => user.request(transactions, request),
            Received::Ack(ack) => user.ack(transactions, &ack),
            Received::Cancel {
                invite,
                mark,
                message,
            } => {
                user.cancel(transactions, (invite, mark), &message);
                RequestOwner::Here
            }
            Received::Response { message, .. } => {
                if let Some(mark) = for_user {
                    user.response(transactions, mark, (&message, flow));
                }
                RequestOwner::Here
            }
            _ => RequestOwner::Here,
        };
    }

    /// The result that a request waited for, from another thread.
    pub fn answered(&mut self, now: Now, answer: U::QueryResult) {
        self.act(now, |user, transactions| {
            user.answered(transactions, answer)
        });
    }

    /// The DNS has responded to a [`Task::Resolve`]: records, and for how long they hold.
    pub fn resolved(
        &mut self,
        now: Now,
        query: Query,
        result: Result<(DnsRecords, Duration), DnsFailed>,
    ) {
        let dispatcher = &mut self.dispatcher;
        dispatcher.answered(now.mono, &mut self.engine, query, result);
    }

    /// A peer has opened a connection.
    pub fn accepted(&mut self, now: Now, flow: &Flow) {
        self.engine.accepted(now.mono, flow);
    }

    /// The connection of a [`Task::Connect`] is open.
    pub fn connected(&mut self, now: Now, key: ConnectKey, flow: &Flow) {
        self.engine.connected(now.mono, key, flow);
    }

    /// The connection of a [`Task::Connect`] cannot be opened.
    pub fn connect_failed(&mut self, now: Now, key: ConnectKey) {
        self.engine.connect_failed(now.mono, key);
    }

    /// A connection is closed.
    pub fn disconnected(&mut self, now: Now, connection: ConnectionKey) {
        self.engine.disconnected(now.mono, connection);
    }

    /// The bytes of a [`Task::Send`] were not sent.
    pub fn send_failed(&mut self, now: Now, origin: Origin) {
        self.engine.send_failed(now.mono, origin);
    }

    /// When to call [`Endpoint::handle_timeout`] next; `None` if nothing waits.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        [
            self.engine.poll_timeout(),
            self.dispatcher.poll_timeout(),
            self.user.poll_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Time has passed. It fires a bounded number of timers: if more are due, [`Endpoint::poll_timeout`] is not in the
    /// future.
    pub fn handle_timeout(&mut self, now: Now) {
        self.engine.handle_timeout(now);
        self.dispatcher.handle_timeout(now.mono, &mut self.engine);
        self.act(now, |user, transactions| user.handle_timeout(transactions));
    }

    /// Hands each task to `carry_out`, until nothing is left to do.
    pub fn drain(&mut self, now: Now, mut carry_out: impl FnMut(Task<'_>)) {
        loop {
            while self.drain_output(now, &mut carry_out) {}
            if self.act(now, |user, transactions| {
                deliver_failure(user, transactions)
            }) {
                continue;
            }
            match self.dispatcher.poll_query() {
                Some(query) => carry_out(Task::Resolve(query)),
                None => return,
            }
        }
    }

    /// Handles one output of the engine. Returns whether there was one.
    fn drain_output(&mut self, now: Now, carry_out: &mut impl FnMut(Task<'_>)) -> bool {
        let Some(output) = self.engine.poll_output() else {
            return false;
        };
        match output {
            Output::Send { to, origin, bytes } => carry_out(Task::Send { to, origin, bytes }),
            Output::Connect { key, to } => carry_out(Task::Connect { key, to }),
            Output::Close(connection) => carry_out(Task::Close(connection)),
            Output::Event(event) => {
                self.act(now, |user, transactions| {
                    dispatch_event(user, transactions, &event);
                });
            }
            Output::Unacknowledged {
                flow,
                response,
                remote_target,
            } => {
                let (response, target) = (response.to_vec(), remote_target.to_vec());
                self.act(now, |user, transactions| {
                    user.unacknowledged(transactions, &flow, &response, &target);
                });
            }
            // The connection of the request has ended. The endpoint does not look up the host of its Via (RFC 3263 §5).
            Output::Undelivered { server, .. } => self.engine.undeliverable(now.mono, server),
        }
        true
    }
}
