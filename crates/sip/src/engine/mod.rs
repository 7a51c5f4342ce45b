//! The engine: transactions, the transports they need and the TU (transaction user), tied together without a socket or
//! a clock.
//!
//! ```text
//!  messages ────── handle_message ──┐          ┌── Received: what it is, for the TU (the hot path)
//!  connections ─── connected, .. ───┤  Engine  ├── poll_output: bytes to send, connections, ends of transactions
//!  time ────────── handle_timeout ──┤          └── poll_timeout: when to call handle_timeout next
//!  TU ── answer, respond, request, ─┘
//!        cancel, send_stateless
//! ```
//!
//! **The invariant:** after every call, the embedder drains [`Engine::poll_output`] before it passes the next message.
//! Before that, the TU accepts a [`NewRequest`] or drops it. Every transaction has exactly one timer, so that the
//! timers alive are the transactions alive, and when the last has fired nothing is left.
//!
//! A UAS answers with [`Engine::answer`] at once, or with [`Engine::accept`] and [`Engine::respond`] later; a proxy
//! accepts, sends requests, and responds with what comes back. A UAC sends requests with [`Engine::request`] and the
//! ACK for a 2xx with [`Engine::send_stateless`]. [`crate::tu`] has the seam between all that and applications; dialogs
//! are above it ([`crate::ua`]).
//!
//! ```
//! use hairpin_sip::engine::{Config, Engine, Output, Received, Reply};
//! use hairpin_sip::flow::{Transport, Flow, ListenerKey};
//! use hairpin_sip::{HashKey, Now, Spans};
//!
//! let mut engine = Engine::new(Config::new(0, HashKey::new([7; 16])), 1);
//! let mut spans = Spans::new();
//! let flow = Flow {
//!     transport: Transport::Udp,
//!     listener: ListenerKey(0),
//!     connection: None,
//!     local: "192.0.2.1:5060".parse()?,
//!     remote: "192.0.2.2:5060".parse()?,
//! };
//! let datagram = b"OPTIONS sip:192.0.2.1 SIP/2.0\r\n\
//!     Via: SIP/2.0/UDP 192.0.2.2;branch=z9hG4bK7;rport\r\n\
//!     From: <sip:alice@example.com>;tag=1\r\nTo: <sip:192.0.2.1>\r\n\
//!     Call-ID: 5@192.0.2.2\r\nCSeq: 1 OPTIONS\r\nMax-Forwards: 70\r\n\r\n";
//! let now = Now::default();
//! if let Received::Request(request) = engine.handle_message(now, &flow, datagram, &mut spans) {
//!     engine.answer(now.mono, request, &Reply::new(200))?;
//! }
//! let Some(Output::Send { bytes, .. }) = engine.poll_output() else {
//!     return Err("nothing to send".into());
//! };
//! assert!(bytes.starts_with(b"SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP 192.0.2.2;branch=z9hG4bK7;rport=5060;received="));
//! // What a repetition needs is kept for 64*T1.
//! assert_eq!(engine.stats().servers, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod allowance;
mod client;
mod clients;
mod compose;
mod config;
mod connections;
mod error;
mod index_set;
mod key;
mod memory_release;
mod output;
mod receive;
mod received;
mod related;
mod reply;
mod response;
mod sent_by;
mod server;
mod servers;
pub(crate) mod slab;
mod stateless;
mod stats;
mod store;
mod transaction_quota;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::branch::BranchCodec;
use crate::congestion::{
    self, Backlog, Controller, Downstream, Filter, OcReply, RequestProof, SourceCounts,
    WeightedSource,
};
use crate::flow::{ConnectionKey, Destination, Flow, PeerName};
use crate::message::Spans;
use crate::timer::Timers;
use crate::verdict::Rules;
use crate::{Mono, Now};
use clients::Clients;
use connections::{Connections, Waiting};
use key::Matcher;
use output::Outputs;
use servers::Servers;
use store::Store;

pub use client::{MAX_REASON_BYTES, Outgoing};
pub use config::Config;
pub use error::{AcceptError, DropReason, RequestError, RespondError};
pub use key::{ClientKey, ConnectKey, ServerKey, TransactionId};
pub use output::{ClientFailure, Event, Mark, Origin, Output, SendTo, ServerFailure};
pub use received::{Ack, NewRequest, Received};
pub use reply::Reply;
pub use sent_by::{Hop, SentBy, SentByHost, Signature, SignatureHost, SourceAddress};
pub use stats::Stats;

/// Timers fired per [`Engine::handle_timeout`]: the worker looks at its sockets in between.
const TIMERS_PER_CALL: usize = 1024;

/// The engine of one worker.
pub struct Engine {
    config: Config,
    codec: BranchCodec,
    matcher: Matcher,
    servers: Servers,
    clients: Clients,
    /// The Reason lines of CANCELs that wait for a provisional response, by the slot of their INVITE.
    reasons: BTreeMap<u32, Box<[u8]>>,
    connections: Connections,
    store: Store,
    outputs: Outputs,
    controller: Controller,
    /// Recognizes dialogs of the TU.
    proof: Option<Box<dyn RequestProof>>,
    oc_reply: OcReply,
    downstream: Downstream,
    /// Messages are written here before they are queued.
    scratch: Box<[u8]>,
    /// A second buffer, for messages that are written twice.
    spare: Box<[u8]>,
    /// For messages read back from the store.
    spans: Box<Spans>,
    stats: Stats,
    memory_released_at: Mono,
    /// Bytes returned since somebody asked.
    released_bytes: usize,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("worker", &self.config.worker)
            .field("servers", &self.servers.slab.len())
            .field("clients", &self.clients.slab.len())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine with nothing in it. `seed` differs from worker to worker: it decides jitter and chance, not secrets.
    #[must_use]
    pub fn new(config: Config, seed: u64) -> Engine {
        let key = config.key;
        let own = key.derive(seed);
        Engine {
            codec: BranchCodec::new(key),
            matcher: Matcher::new(key),
            servers: Servers::new(own),
            clients: Clients::new(),
            reasons: BTreeMap::new(),
            connections: Connections::new(own),
            store: Store::new(),
            outputs: Outputs::default(),
            controller: Controller::new(config.congestion.clone(), own),
            proof: None,
            oc_reply: OcReply::new(),
            downstream: Downstream::new(own.mac(b"downstream")),
            scratch: vec![0; store::MAX_MESSAGE_BYTES].into(),
            spare: vec![0; store::MAX_MESSAGE_BYTES].into(),
            spans: Box::default(),
            stats: Stats::default(),
            memory_released_at: Mono::default(),
            released_bytes: 0,
            config,
        }
    }

    /// The next output; `None` if no output is queued.
    pub fn poll_output(&mut self) -> Option<Output<'_>> {
        self.outputs.poll()
    }

    /// When to call [`Engine::handle_timeout`] next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        [
            self.servers.wheel.next_deadline(),
            self.clients.wheel.next_deadline(),
            self.connections.next_sweep(),
            self.controller.poll_timeout(),
            self.next_memory_release(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Time has passed: fires timers that are due, a bounded number of them. If more are due, [`Engine::poll_timeout`]
    /// says so.
    pub fn handle_timeout(&mut self, now: Now) {
        let now = now.mono;
        self.controller.pass_time(now);
        for _ in 0..TIMERS_PER_CALL {
            let client = self.clients.wheel.pop_due(now);
            let server = self.servers.wheel.pop_due(now);
            if client.is_none() && server.is_none() {
                break;
            }
            if let Some(slot) = client {
                self.client_timer(now, slot);
            }
            if let Some(slot) = server {
                self.server_timer(now, slot);
            }
        }
        self.release_unused_memory(now);
        for connection in self.connections.sweep(now, self.config.connection_idle) {
            self.outputs.push(Output::Close(connection));
        }
    }

    /// A connection was accepted.
    pub fn accepted(&mut self, now: Mono, flow: &Flow) {
        self.connections.add(now, flow, None);
    }

    /// A connection of another worker has brought a message that was handed over: answers go by it, and requests to its
    /// other end, until [`Engine::disconnected`].
    pub fn adopt(&mut self, now: Mono, flow: &Flow) {
        let known = |connection| self.connections.is_writable(connection);
        if !flow.connection.is_some_and(known) {
            self.connections.add(now, flow, None);
        }
    }

    /// The client of an accepted connection has proved by its certificate that it serves these domains (RFC 5922 §7.4).
    /// With that, it may ask for requests by the same connection (RFC 5923).
    pub fn authenticated(&mut self, connection: ConnectionKey, names: &Arc<[PeerName]>) {
        self.connections.prove(connection, names);
    }

    /// The domains that the client of a connection has proved, if any.
    #[must_use]
    pub fn client_names(&self, connection: ConnectionKey) -> Option<&Arc<[PeerName]>> {
        self.connections.names(connection)
    }

    /// The domains that the other end of a connection has proved. A client proves those in its certificate. A server
    /// proves the one that this engine has required. Empty without TLS, and for a client without a certificate.
    #[must_use]
    pub fn proven_names(&self, connection: ConnectionKey) -> &[PeerName] {
        self.connections.proven_names(connection)
    }

    /// A connection that was asked for is open, over TLS to whom was asked for: what waited for it is sent.
    pub fn connected(&mut self, now: Mono, key: ConnectKey, flow: &Flow) {
        let Some((to, waiting)) = self.connections.take_waiting(key) else {
            // Nobody waits for it any more.
            return;
        };
        self.connections.add(now, flow, Some(&to));
        let Some(connection) = flow.connection else {
            return;
        };
        for waiting in waiting {
            self.send_waiting(now, connection, waiting);
        }
    }

    /// A connection that was asked for cannot be had.
    pub fn connect_failed(&mut self, now: Mono, key: ConnectKey) {
        let Some((to, all)) = self.connections.take_waiting(key) else {
            return;
        };
        for waiting in all {
            match waiting {
                Waiting::Response(Some(server), cell) if self.config.redirects_responses => {
                    let bytes = self.store.get(&cell);
                    self.outputs.undelivered(server, to.clone(), bytes);
                    self.store.release(cell);
                }
                waiting => self.fail_waiting(now, waiting),
            }
        }
    }

    /// Sends a response of [`Output::Undelivered`] to somebody else. [`Event::Redirected`] says whether that could be
    /// done.
    pub fn redirect(&mut self, now: Mono, to: Destination, response: &[u8], mark: Mark) {
        match self.store.keep(response) {
            Some(cell) => self.send_over_stream(now, to, Waiting::Redirected(mark, cell)),
            None => self.redirected(mark, false),
        }
    }

    fn redirected(&mut self, mark: Mark, sent: bool) {
        self.outputs.event(Event::Redirected { mark, sent });
    }

    /// A response of [`Output::Undelivered`] cannot be delivered at all: the TU of its transaction gets an event.
    pub fn undeliverable(&mut self, now: Mono, server: ServerKey) {
        self.server_transport_failed(now, server);
    }

    /// A connection is lost. Requests that went over it and were not answered at all have failed (RFC 3261 §17.1.4).
    pub fn disconnected(&mut self, now: Mono, connection: ConnectionKey) {
        let newest = self.connections.remove(connection);
        for key in self.clients_from(newest) {
            self.client_connection_lost(now, key);
        }
    }

    /// The other end of a connection has shut down its sending side, and still reads. Requests that went over it get no
    /// response any more, so they have failed. Requests that came by it get their responses: [`Output::Close`] says
    /// when the last one is sent. Returns whether there are any.
    pub fn half_closed(&mut self, now: Mono, connection: ConnectionKey) -> bool {
        let (unanswered, newest) = self.connections.half_close(connection);
        for key in self.clients_from(newest) {
            self.client_connection_lost(now, key);
        }
        unanswered > 0
    }

    /// Whether a request can go by a connection and get a response, as far as is known here.
    #[must_use]
    pub fn is_open(&self, connection: ConnectionKey) -> bool {
        self.connections.is_open(connection)
    }

    /// The connections that transactions depend on. It looks at all transactions: for the end of a server.
    #[must_use]
    pub fn connections_in_use(&self) -> HashSet<ConnectionKey> {
        let servers = self.servers.slab.iter();
        let servers = servers.filter_map(|(_, server)| server.flow.connection);
        let clients = self.clients.slab.iter();
        let clients = clients.filter_map(|(_, client)| client.connection);
        servers.chain(clients).collect()
    }

    /// The connections that are open as far as is known here, those of other workers among them.
    pub fn open_connections(&self) -> impl Iterator<Item = ConnectionKey> {
        self.connections.all()
    }

    /// The worker that this engine is of.
    #[must_use]
    pub const fn worker(&self) -> u16 {
        self.config.worker
    }

    /// The timers of its transactions.
    pub(crate) const fn timers(&self) -> Timers {
        self.config.timers
    }

    /// Something could not be sent, says the kernel.
    pub fn send_failed(&mut self, now: Mono, origin: Origin) {
        match origin {
            Origin::Client(key) => self.client_transport_failed(now, key),
            Origin::Server(key) => self.response_failed(now, key),
            Origin::Nobody => {}
        }
    }

    /// Reports the service time of messages, which congestion control uses. Messages refused or dropped are not among
    /// them.
    pub fn observe_service(&mut self, messages: u32, busy: Duration) {
        self.controller.observe_service(messages, busy);
    }

    /// Reports for how long the worker has slept, or has refused and dropped messages, since the last report. It could
    /// have accepted more in that time.
    pub fn observe_spare(&mut self, spare: Duration) {
        self.controller.observe_spare(spare);
    }

    /// Reports `refusals` 503s. `took` is their time, and that of ACKs for 503s since the last report.
    pub fn observe_refusals(&mut self, refusals: u32, took: Duration) {
        self.controller.observe_refusals(refusals, took);
    }

    /// So much waits: in the sockets, in the worker, and in the TU for a back end. To be called before each batch.
    pub fn observe_backlog(&mut self, now: Now, backlog: Backlog) {
        self.controller.observe_backlog(now.mono, backlog);
        if self.config.overload_control {
            self.oc_reply.update(now, &self.controller);
        }
    }

    /// Changes when work is refused, while running.
    pub fn configure_congestion(&mut self, config: congestion::Config) {
        self.controller.configure(config);
    }

    /// Counts the requests of each source together with the engines of other workers, from now on.
    pub fn share_counts(&mut self, counts: SourceCounts) {
        self.controller.share_counts(counts);
    }

    /// A request from this source that the engine has received goes to another worker, which counts it towards the
    /// limit of its source again.
    pub fn pass_on(&mut self, now: Mono, source: IpAddr) {
        self.controller.pass_on(now, source);
    }

    /// Asks `proof` about requests. In an overload: whether the dialog or the nonce is proven. At the limit of a
    /// source: whether a node has sent the request. Without a proof, only To tags of this engine count: a request with
    /// another To tag, or with credentials, is new work.
    pub fn set_proof(&mut self, proof: Box<dyn RequestProof>) {
        self.proof = Some(proof);
    }

    /// Changes [`Config::trusts_peers_only`], while running.
    pub fn configure_trust(&mut self, peers_only: bool) {
        self.config.trusts_peers_only = peers_only;
    }

    /// Changes what is refused for its form, while running.
    pub fn configure_rules(&mut self, rules: Rules<'static>) {
        self.config.rules = rules;
    }

    /// Whether requests may be refused now: then it is worth the time to measure what refusing takes.
    #[must_use]
    pub fn is_overloaded(&self) -> bool {
        self.controller.is_overloaded()
    }

    /// 0: all is accepted; 1: some new work is refused; 2: all of it, and some that was begun.
    #[must_use]
    pub fn overload_state(&self) -> u8 {
        self.controller.state()
    }

    /// The admission filter before the queue.
    #[must_use]
    pub fn filter(&self) -> &Filter {
        self.controller.filter()
    }

    /// The same, for an embedder that has it in the kernel and reports what that counts.
    pub fn filter_mut(&mut self) -> &mut Filter {
        self.controller.filter_mut()
    }

    /// When the filter's shares are set next, if it is active: what the kernel counts is to be reported by then.
    #[must_use]
    pub fn filter_timeout(&self) -> Option<Mono> {
        self.controller.poll_timeout()
    }

    /// The configured peers, by place behind the hashed ones.
    #[must_use]
    pub fn peers(&self) -> &[WeightedSource] {
        self.controller.peers()
    }

    /// Whether the admission filter drops this datagram. The caller must then not handle it. Only for servers whose
    /// kernel does not run the filter.
    #[must_use]
    pub fn filters_out(&mut self, source: IpAddr, datagram: &[u8]) -> bool {
        self.controller.filters_out(source, datagram)
    }

    /// How long a message that arrives now will wait.
    #[must_use]
    pub fn expected_wait(&self) -> Duration {
        self.controller.expected_wait()
    }

    /// How long a message takes, on average.
    #[must_use]
    pub fn service_time(&self) -> Duration {
        self.controller.service_time()
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            shed: self.controller.counts(),
            servers: self.servers.slab.len(),
            clients: self.clients.slab.len(),
            timers: self.servers.wheel.len() + self.clients.wheel.len(),
            message_bytes: self.store.bytes(),
            connections: self.connections.len(),
            ..self.stats
        }
    }
}
