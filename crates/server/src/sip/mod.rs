//! SIP at a worker: its sockets and connections, and what happens to each message.
//!
//! ```text
//!  UDP, at most 16 ──┐                       ┌── not SIP: dropped and counted
//!  datagrams a batch ├─> frame ─> Endpoint ──┼── STUN, keep-alives: answered here
//!  connections ──────┘                       └── messages: refused, or parsed, answered
//!          ^                                          │
//!          └──────── SendQueue, write buffers <───────┘   flushed before the next 16
//! ```
//!
//! After every 16 messages, and before the next one, the worker handles all timers that are due. So timers never wait
//! behind messages. Buffers belong to the worker. A connection has its own memory only while a message is incomplete,
//! or while the other side does not read.

mod admission_filter;
mod advertise;
mod authentication;
mod balance;
mod bans;
mod calls;
mod coalescing;
mod congestion;
mod connection;
mod connections;
mod counters;
mod endpoint;
mod flow_changes;
mod forwarding;
mod half_closed;
mod handed_over;
mod ice;
mod inspect;
mod layered;
mod layers;
mod lines;
mod link;
mod listeners;
mod lookups;
mod memory_release;
mod names;
mod node_tls;
mod nodes;
mod other_process;
mod outgoing;
mod preview;
mod proof;
mod proxied;
mod push;
mod reading;
mod refreshes;
mod registrar;
mod report;
mod requests;
mod route_hook;
mod rtpengine;
mod screen;
mod settings;
mod store;
mod stun;
mod takeover;
mod token;
mod trace;
mod trunk_sources;
mod upgrade;
mod user;

pub use crate::certificates::{Fingerprint, NoFingerprint};
pub use advertise::Advertised;
pub(crate) use balance::{SharedBalance, SipBatch};
pub use calls::CALL_REFUSALS;
pub use counters::{DIGEST_OUTCOMES, DNS_OUTCOMES, SIP_CLASSES, SIP_METHODS, SipCounters};
pub(crate) use inspect::SipQuery;
pub use inspect::{
    BindingFlow, BindingInfo, BindingsCursor, BindingsPage, CallInfo, CallsCursor, CallsPage,
    InspectError, SipInspector, TraceCursor, TracePage, TrunkAddress, TrunkInfo,
};
pub(crate) use link::{Frame, ProcessLink};
pub(crate) use listeners::{SipAddresses, SipEnvironment, SipTls, set_up};
pub(crate) use lookups::LateResult;
pub(crate) use names::DnsQueryResult;
pub use names::{LocateError, NameResolver};
pub use node_tls::{NodeFingerprints, NodeTls, NodeTlsError};
pub use nodes::{MovedBinding, NodesHook, NodesReply, OtherNodes, SharedBinding};
pub(crate) use other_process::OtherProcess;
pub use preview::{Preview, PreviewError, PreviewRequest, PreviewTarget, Previewed, Previewer};
pub use push::{Push, PushHook, PushReason, PushSettings};
pub(crate) use reading::now;
pub(crate) use report::Reporter;
pub use report::{OnSipEvent, SipEvent};
pub use route_hook::{ChooseRoute, RouteChoice, RouteHook, RouteRequest, RouteSender};
pub use rtpengine::MEDIA_OUTCOMES;
pub(crate) use rtpengine::{MediaResponse, RtpEngine};
pub use screen::SCREENED;
pub(crate) use settings::SipConfig;
pub use settings::{
    CallSettings, CredentialsError, DomainCredentials, DomainUser, SipSettings, Trunk, UserSecret,
};
pub use sip::Host;
pub use sip::congestion::WeightedSource;
pub use sip::digest::Algorithm as DigestAlgorithm;
pub use sip::flow::Transport;
pub use sip::routing::{Candidate, Locate, Locator};
pub use sip_server::calls::{AttemptTimes, CallLine, EndedBy, Leg, Limit as CallLimit};
pub use sip_server::log::AddressState;
pub use sip_server::proxy::{AtNodes, Forking, Inbound, NodeHop};
pub use sip_server::registrar::{
    Config as RegistrarConfig, ConfigError as RegistrarError, Domain, DomainError, Domains,
};
pub use sip_server::routes;
pub use store::{BindingDatabase, SaveError};
pub(crate) use store::{SavePlace, place_id};
pub use streams::domains::client_verifier;
pub(crate) use takeover::{SipTakeover, SipUpgrade};
pub(crate) use token::SipToken;
pub use trace::{TraceSettings, TracedMessage, mapped};
pub(crate) use upgrade::SipUpgradeStep;

use crate::steering::Numbering;
use crate::worker::{Mailboxes, Token};
use admission_filter::AdmissionFilter;
use authentication::UsedCounts;
use bans::Bans;
use calls::SharedCalls;
use coalescing::Coalescing;
use connections::Connections;
use endpoint::Endpoint;
use flow_changes::FlowChanges;
use io::{Event, Interest, Poller, RecvBatch, SendOptions, SendQueue};
use ipnet::IpNet;
use layers::StreamListener;
use listeners::SipListener;
use other_process::WorkerIdentity;
use sip::congestion::SourceCounts;
use sip::{HashKey, Mono, Now};
use sip_server::flow::Runs;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use store::WorkerBindings;
use upgrade::UpgradeStage;

/// Messages that the worker handles before it checks the timers.
const BATCH_MESSAGES: usize = 16;

/// How many full batches of a socket the worker reads per wake-up.
const MAX_READ_ROUNDS: usize = 4;

/// The maximum of batches from other workers that one call of [`Sip::turn`] handles, and the maximum that may wait.
const BATCHES_PER_TURN: usize = 4;
const MAX_INBOX_BATCHES: usize = 64;

/// The maximum and the minimum of bytes that one read of a connection takes.
const MAX_READ_BYTES: usize = 64 << 10;
const MIN_READ_BYTES: usize = 4 << 10;

/// Bytes that are read from all connections per wake-up. Each gets at least [`MIN_READ_BYTES`]. So messages in other
/// sockets wait for a few milliseconds only, however much arrives over connections.
const MAX_TOTAL_READ_BYTES: usize = 4 * MAX_READ_BYTES;

/// Connections that one listener accepts per wake-up.
const MAX_ACCEPTS: usize = 64;

/// How long a listener accepts nothing when no descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Time until the worker checks again whether another one has read its mailbox.
const HELD_RETRY_TIME: Duration = Duration::from_millis(1);

/// The maximum of bytes that one read of a connection takes, if `ready` sockets are ready.
fn read_limit_of(ready: usize) -> usize {
    (MAX_TOTAL_READ_BYTES / ready.max(1)).clamp(MIN_READ_BYTES, MAX_READ_BYTES)
}

/// SIP at one worker.
#[derive(Debug)]
pub(crate) struct Sip {
    listeners: Vec<SipListener>,
    /// The state of the UDP socket of each of `listeners`, in their order.
    coalescing: Vec<Coalescing>,
    /// Listeners over TLS and WebSocket. Their numbers follow those of `listeners`.
    streams: Vec<StreamListener>,
    batch: RecvBatch,
    queue: SendQueue,
    connections: Connections,
    /// For connections to other nodes over TLS.
    node_tls: Option<Arc<NodeTls>>,
    /// Networks of load balancers, whose connections begin with a header of the PROXY protocol.
    proxies: Arc<[IpNet]>,
    endpoint: Endpoint,
    /// Messages from other workers.
    inbox: VecDeque<SipBatch>,
    /// Sockets that the poller has reported, or that are due.
    ready: Vec<(SipToken, Event)>,
    /// The buffer for bytes that are read from a connection.
    scratch: Box<[u8]>,
    /// The buffer for decrypted bytes.
    plain: Vec<u8>,
    /// Time that TLS handshakes have taken in this turn.
    handshakes_ns: u64,
    /// Until then, no further log line about a next hop that is not verified.
    next_hop_line: Mono,
    /// Until then, no further log line about a client that is no node of the cluster.
    node_line: Mono,
    /// The maximum of bytes that one read of a connection takes in this turn.
    read_limit: usize,
    /// How many of the ready sockets have not been read yet in this turn.
    unread_sockets: usize,
    /// When listeners accept again after a lack of descriptors.
    accept_again: Option<Mono>,
    /// When the server began to drain.
    draining_since: Option<Mono>,
    /// When the worker checks the connections again during a drain.
    drain_again: Option<Mono>,
    /// The sockets keep ICMP errors.
    keeps_errors: bool,
    /// A batch for another worker waits here until that worker has read its mailbox.
    has_held_batch: bool,
    /// The stage of an upgrade.
    stage: UpgradeStage,
}

impl Sip {
    /// SIP at worker `number`, which has these sockets of the listeners' groups.
    ///
    /// # Errors
    /// If there is no address space for buffers.
    pub(crate) fn new(
        number: u16,
        (listeners, streams): (Vec<SipListener>, Vec<StreamListener>),
        proxies: Arc<[IpNet]>,
        sip_config: Arc<SipConfig>,
        secrets: &Secrets,
        now: Now,
    ) -> std::io::Result<Sip> {
        let addresses: Vec<SocketAddr> = listeners.iter().map(|listener| listener.local).collect();
        // A GRUU must be unique also among those of other runs, so the seed has many bits.
        let mut entropy = crate::random::Entropy::new();
        let seed = u64::from(entropy.next_u32()) << 32 | u64::from(entropy.next_u32());
        let seed = seed & !u64::from(u16::MAX) | u64::from(number);
        let filter = AdmissionFilter::new(listeners.iter().map(|listener| &listener.udp));
        let addresses = (&addresses[..], &streams[..]);
        let node_tls = sip_config
            .settings
            .nodes
            .as_ref()
            .and_then(|nodes| nodes.tls.clone());
        let endpoint = Endpoint::new(number, addresses, filter, sip_config, secrets, seed, now);
        Ok(Sip {
            coalescing: vec![Coalescing::default(); listeners.len()],
            listeners,
            streams,
            batch: RecvBatch::try_new(BATCH_MESSAGES, RecvBatch::LARGE)?,
            queue: SendQueue::new(&SendOptions {
                gso: false,
                max_segments: 1,
                capacity: 8 * BATCH_MESSAGES,
            }),
            connections: Connections::new(number),
            node_tls,
            proxies,
            endpoint,
            inbox: VecDeque::new(),
            ready: Vec::new(),
            scratch: vec![0; MAX_READ_BYTES].into(),
            plain: Vec::new(),
            handshakes_ns: 0,
            next_hop_line: Mono(0),
            node_line: Mono(0),
            read_limit: MAX_READ_BYTES,
            unread_sockets: 0,
            accept_again: None,
            draining_since: None,
            drain_again: None,
            keeps_errors: false,
            has_held_batch: false,
            stage: UpgradeStage::default(),
        })
    }

    /// The routes and trunks that the worker has.
    pub(crate) fn routes(&self) -> Arc<routes::Table> {
        Arc::clone(&self.endpoint.sip_config.routes)
    }

    /// Takes the bindings of an earlier run. From now on, their changes are saved too.
    fn restore(&mut self, kept: WorkerBindings) {
        self.endpoint.restore(kept);
    }

    /// During an upgrade, shares its work with the workers of the process that this one takes over from.
    fn join(&mut self, other: &OtherProcess) {
        self.endpoint.set_other_process(Some(other));
    }

    /// Whether everything that SIP writes to the kernel's tables can be written without any capability.
    pub(crate) fn can_write_unprivileged(&mut self) -> bool {
        self.endpoint.filter.can_write_unprivileged()
    }

    /// The listening sockets of this worker.
    pub(crate) fn listening(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let plain = self.listeners.iter();
        let plain = plain.flat_map(|listener| [listener.udp.as_fd(), listener.tcp.as_fd()]);
        plain.chain(self.streams.iter().map(|listener| listener.socket.as_fd()))
    }

    /// Registers all listeners with the poller.
    pub(crate) fn watch(&self, poller: &Poller) -> std::io::Result<()> {
        for (number, listener) in (0..).zip(&self.listeners) {
            let token = Token::Sip(SipToken::Datagrams(number)).as_u64();
            poller.add(&listener.udp, token, Interest::Read)?;
            let token = Token::Sip(SipToken::Accept(number)).as_u64();
            poller.add(&listener.tcp, token, Interest::Read)?;
        }
        for (number, listener) in (self.first_stream()..).zip(&self.streams) {
            let token = Token::Sip(SipToken::Accept(number)).as_u64();
            poller.add(&listener.socket, token, Interest::Read)?;
        }
        Ok(())
    }

    /// Starts or stops reading datagrams and accepting connections; another process with the same sockets does both
    /// meanwhile. Existing connections stay.
    pub(crate) fn set_listening(&mut self, listens: bool, poller: &Poller) -> std::io::Result<()> {
        self.accept_again = None;
        self.coalescing.iter_mut().for_each(Coalescing::reset);
        for listener in &self.listeners {
            // A TCP socket may have been removed already: when descriptors ran out.
            let _ = poller.remove(&listener.udp);
            let _ = poller.remove(&listener.tcp);
        }
        for listener in &self.streams {
            let _ = poller.remove(&listener.socket);
        }
        if listens {
            self.watch(poller)?;
        }
        Ok(())
    }

    /// The number of the first of `streams`.
    fn first_stream(&self) -> u16 {
        self.listeners.len() as u16
    }

    /// Adds `ns` nanoseconds in which the worker has slept.
    pub(crate) fn slept(&mut self, ns: u64) {
        self.endpoint
            .congestion
            .add_idle_time(Duration::from_nanos(ns));
    }

    /// The poller has reported a socket; [`Sip::turn`] will read it.
    pub(crate) fn ready(&mut self, token: SipToken, event: Event) {
        self.ready.push((token, event));
    }

    /// Another worker has received messages that belong here; [`Sip::turn`] will handle them.
    pub(crate) fn receive(&mut self, mut batch: SipBatch) {
        if self.inbox.len() >= MAX_INBOX_BATCHES {
            self.endpoint.counters.mailbox_full += batch.drop_datagrams();
        }
        if batch.items.is_empty() {
            self.endpoint.put_back(batch);
        } else {
            self.inbox.push_back(batch);
        }
    }

    /// Takes the result of a DNS query. [`Sip::turn`] resumes the requests that wait for it.
    pub(crate) fn receive_answer(&mut self, answered: DnsQueryResult) {
        self.endpoint.requests.receive(answered);
    }

    /// Takes the result of a source of credentials or of the media relay. [`Sip::turn`] resumes the request.
    pub(crate) fn receive_late_answer(&mut self, answer: LateResult) {
        self.endpoint.late_answers.push_back(answer);
    }

    /// Applies new settings.
    pub(crate) fn apply_settings(&mut self, sip_config: Arc<SipConfig>) {
        self.stage.keeps_connections &= sip_config.draining || self.endpoint.follows();
        self.endpoint.apply_settings(sip_config);
    }

    /// Does the SIP work of one wake-up of the worker; a turn has nothing to do with the protocol TURN. It handles due
    /// timers, reads a limited number of bytes from each ready socket, and handles messages from other workers. It also
    /// resumes requests that have waited for another thread, and posts the batches for other workers.
    pub(crate) fn turn(&mut self, poller: &Poller, mailboxes: &Mailboxes, now: turn::Now) {
        self.endpoint.now = Now {
            mono: Mono(now.mono.0),
            unix_s: now.unix_s,
        };
        self.connections.begin_turn(self.endpoint.now.mono);
        self.handshakes_ns = 0;
        self.run_due_timers(poller);
        self.add_due_sockets();
        let mut ready = std::mem::take(&mut self.ready);
        self.unread_sockets = ready.len();
        self.read_limit = read_limit_of(ready.len());
        for (token, event) in ready.drain(..) {
            self.unread_sockets -= 1;
            match token {
                SipToken::Datagrams(number) => {
                    // Errors come first. A waiting error makes the next call fail, and epoll reports it until it is
                    // read.
                    if event.error {
                        self.read_errors(number, poller);
                    }
                    self.read_datagrams(number, poller);
                }
                SipToken::Accept(number) => self.accept(number, poller),
                SipToken::Connection(slot) => self.serve_connection(slot, event, poller),
            }
        }
        // Keeps the memory for the next turn.
        self.ready = ready;
        for _ in 0..BATCHES_PER_TURN {
            let Some(batch) = self.inbox.pop_front() else {
                break;
            };
            self.unpack(batch, poller);
        }
        self.take_answers(poller);
        self.drain_connections();
        self.keep_errors();
        self.has_held_batch = self.endpoint.post(mailboxes, self.inbox.len());
        self.endpoint.congestion.clear_streams();
        self.close_lost(poller);
        self.report_closed(poller);
        if self.stage.is_waiting() {
            self.continue_step();
        }
    }

    /// Writes the log lines of the calls in progress, because the worker ends.
    pub(crate) fn finish(&mut self) {
        let now = self.endpoint.now.mono;
        if let Some(forwarder) = self.endpoint.forwarder_mut() {
            let ringing = forwarder.proxy.take_calls();
            forwarder.calls.finish(now, &ringing);
        }
    }

    /// How long the worker may sleep.
    pub(crate) fn poll_timeout(&self, now: turn::Mono) -> Duration {
        let has_answers =
            self.endpoint.requests.has_answers() || !self.endpoint.late_answers.is_empty();
        if !self.inbox.is_empty() || has_answers {
            return Duration::ZERO;
        }
        let now = Mono(now.0);
        let deadlines = [
            self.connections.next_deadline(),
            self.accept_again,
            self.drain_again,
            self.endpoint.next_deadline(),
        ];
        let sockets = self.coalescing.iter().map(Coalescing::deadline);
        let first = deadlines.into_iter().chain(sockets).flatten().min();
        let timeout = first.map_or(Duration::MAX, |deadline| deadline.since(now));
        if self.has_held_batch || self.stage.is_waiting() {
            timeout.min(HELD_RETRY_TIME)
        } else {
            timeout
        }
    }

    /// The counters and gauges.
    pub(crate) fn counters(&self) -> SipCounters {
        SipCounters {
            connections: self.connections.len() as u64,
            ..self.endpoint.counters()
        }
    }
}

/// The state that all workers share. With it, each can read tokens of another, and handle its messages.
#[derive(Debug, Clone)]
pub(crate) struct Secrets {
    /// The key of branches, tags, transactions and nonces. It is new in each run, so that those of an earlier run are
    /// not valid.
    pub(crate) key: HashKey,
    /// The key of addresses of record, GRUUs and, without a cluster, the tokens in routes. It is the same in all runs
    /// that share a state directory, and on all nodes of a cluster.
    pub(crate) lasting: HashKey,
    /// The numbers of this run and of the other process, for flow tokens. Flows of earlier runs have other numbers.
    pub(crate) runs: Runs,
    /// The state of the balance between workers.
    pub(crate) commons: SharedBalance,
    /// Sends DNS queries.
    pub(crate) names: NameResolver,
    /// Sends requests to the media relay.
    pub(crate) rtpengine: RtpEngine,
    /// The counts of nonces that were used.
    pub(crate) used_counts: UsedCounts,
    /// Calls that count towards limits.
    pub(crate) calls: Arc<SharedCalls>,
    /// Failures and bans of sources that guess passwords.
    pub(crate) bans: Bans,
    /// Requests of each source, for `requests_per_source`.
    pub(crate) source_counts: SourceCounts,
    /// When phones have got other flows.
    pub(crate) flow_changes: FlowChanges,
}

impl Secrets {
    /// The state of workers with these numbers. `key` is new in each run; `lasting` is not, if there is one.
    pub(crate) fn new(
        numbering: Numbering,
        names: NameResolver,
        key: [u8; 16],
        lasting: Option<[u8; 16]>,
        runs: Runs,
    ) -> Secrets {
        let key = HashKey::new(key);
        Secrets {
            key,
            lasting: lasting.map_or(key, HashKey::new),
            runs,
            commons: SharedBalance::new(numbering),
            names,
            rtpengine: RtpEngine::default(),
            used_counts: UsedCounts::default(),
            calls: Arc::default(),
            bans: Bans::new(key),
            source_counts: SourceCounts::new(key),
            flow_changes: FlowChanges::new(reading::now().unix_s),
        }
    }

    /// Whether `worker` is the first worker of this process. After an upgrade, its number is not 0.
    fn is_first(&self, worker: u16) -> bool {
        worker == self.commons.numbering.first_worker
    }

    /// The identity of the worker with this number.
    fn origin(&self, number: u16) -> WorkerIdentity {
        WorkerIdentity {
            number,
            numbering: self.commons.numbering,
            runs: self.runs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_connections_pour_requests_in_a_turn_is_bounded() {
        let in_all = |ready| ready * read_limit_of(ready);
        assert_eq!(read_limit_of(0), MAX_READ_BYTES);
        assert_eq!(
            (read_limit_of(1), in_all(4)),
            (MAX_READ_BYTES, MAX_TOTAL_READ_BYTES)
        );
        assert!((4..=64).all(|ready| in_all(ready) <= MAX_TOTAL_READ_BYTES));
        assert_eq!(in_all(crate::worker::EVENTS), 4 * MAX_TOTAL_READ_BYTES);
    }
}
