//! Handles a message from its bytes to its response. The engine finds its transaction, the rules check it, and the
//! transaction user responds.

mod counting;
mod exchange;

use super::admission_filter::AdmissionFilter;
use super::advertise::{signatures, source_address};
use super::balance::Balance;
use super::congestion::{Congestion, MessageOutcome};
use super::connections::ClosedConnection;
use super::counters::{SipCounters, method_index};
use super::forwarding::{Forwarder, Sockets};
use super::handed_over::HandedOverTransactions;
use super::layers::StreamListener;
use super::lookups::LateResult;
use super::memory_release::FreedMemory;
use super::nodes::MovedBinding;
use super::outgoing::{Outgoing, worker_of};
use super::proof::DialogProof;
use super::requests::Requests;
use super::screen::SourceFilter;
use super::settings::SipConfig;
use super::store::WorkerBindings;
use super::trace::Trace;
use super::user::WorkerTu;
use super::{Secrets, stun};
use crate::worker::now;
use exchange::expects_no_response;
use sip::build::{Stamp, Tag};
use sip::engine::{Ack, Config, Engine, NewRequest, Output, Received, SendTo};
use sip::flow::{ConnectionKey, Flow, ListenerKey, Transport};
use sip::frame::Packet;
use sip::header::{Rport, Via};
use sip::routing;
use sip::tu::{RequestOwner, TransactionUser as _, Transactions, deliver_failure, dispatch_event};
use sip::verdict::{Refusal, Verdict, judge_bytes};
use sip::{Limits, Method, Mono, Now, ParseError, Spans};
use sip_server::Aor;
use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// How often the timers are checked per turn. Each check handles a limited number.
const MAX_TIMER_ROUNDS: usize = 4;

/// The SIP engine of one worker, with its transaction user.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(super) now: Now,
    pub(super) sip_config: Arc<SipConfig>,
    /// The limits of the engine, and of the framing of streams.
    pub(super) limits: Limits,
    /// The counters that the engine does not have.
    pub(super) counters: SipCounters,
    pub(super) engine: Box<Engine>,
    pub(super) congestion: Congestion,
    pub(super) filter: AdmissionFilter,
    tu: WorkerTu,
    screen: SourceFilter,
    /// Copies of messages for administrators, if the settings request them.
    pub(super) trace: Option<Box<Trace>>,
    /// Requests that this server itself sends.
    pub(super) requests: Requests,
    /// Results of sources of credentials and of the media relay that are not handled yet.
    pub(super) late_answers: VecDeque<LateResult>,
    /// The current message waited for keys, and was counted before that.
    is_resumed: bool,
    balance: Balance,
    /// Transactions that other workers have got.
    handed: HandedOverTransactions,
    slack: FreedMemory,
    /// The other workers are notified that this one waits for ICMP errors.
    has_wanted: bool,
    number: u16,
    /// This is the first worker of the process. It reports counters that all workers share.
    is_first: bool,
    /// Taken out while a message refers to it.
    spans: Option<Box<Spans>>,
    /// Recognizes requests of dialogs.
    proof: DialogProof,
    /// The buffer for refusals.
    buffer: Vec<u8>,
    /// The hash for their tags.
    hash: RandomState,
}

/// An engine that counts sources together with other workers, and recognizes the dialogs of this server.
fn new_engine(config: Config, seed: u64, secrets: &Secrets, proof: DialogProof) -> Box<Engine> {
    let mut engine = Box::new(Engine::new(config, seed));
    engine.share_counts(secrets.source_counts.clone());
    engine.set_proof(Box::new(proof));
    engine
}

/// The maximum of bytes in a refusal that it does not copy from its request.
const REFUSAL_EXTRA_BYTES: usize = 8 << 10;

impl Endpoint {
    /// The endpoint of worker `number`, which listens on these addresses.
    pub(crate) fn new(
        number: u16,
        (listeners, streams): (&[SocketAddr], &[StreamListener]),
        filter: AdmissionFilter,
        sip_config: Arc<SipConfig>,
        secrets: &Secrets,
        seed: u64,
        now: Now,
    ) -> Endpoint {
        let settings = &sip_config.settings;
        let proof = DialogProof::new(secrets, sip_config.tokens);
        let limits = Limits {
            head_bytes: settings.head_bytes as usize,
            headers: settings.headers as usize,
            body_bytes: settings.body_bytes as usize,
            ..Limits::DEFAULT
        };
        let mut config = Config::new(number, secrets.key);
        config.limits = limits;
        config.congestion = sip_config.congestion();
        config.rules = WorkerTu::rules(settings);
        config.timers.t1 = settings.t1;
        config.most_servers = sip_config.share(settings.transactions);
        config.most_clients = config.most_servers;
        config.redirects_responses = true;
        config.trusts_peers_only = !settings.domains.is_empty();
        // Kamailio may be the next hop.
        config.offers_rate_control = false;
        config.source_address = Some(source_address);
        // Other nodes reach plain listeners over TLS, too.
        let has_node_tls = settings.nodes.as_ref().is_some_and(|it| it.tls.is_some());
        let plain = [Transport::Udp, Transport::Tcp, Transport::Tls];
        let plain = &plain[..if has_node_tls { 3 } else { 2 }];
        for (listener, address) in (0..).map(ListenerKey).zip(listeners) {
            for &transport in plain {
                let signatures = signatures(settings, listener, transport, *address);
                config.sent_by.extend(signatures);
            }
        }
        let sockets = Sockets::new(listeners, streams);
        let streams = (listeners.len() as u16..).map(ListenerKey).zip(streams);
        for (listener, stream) in streams.clone() {
            let signatures = signatures(settings, listener, stream.transport, stream.local);
            config.sent_by.extend(signatures);
        }
        let tls: Vec<_> = streams
            .filter(|(_, stream)| stream.transport == Transport::Tls && stream.connect.is_some())
            .map(|(listener, stream)| (listener, stream.local))
            .collect();
        let names = secrets.names.clone();
        Endpoint {
            now,
            requests: Requests::new(listeners, &tls, &sip_config, names, secrets.key, seed),
            limits,
            late_answers: VecDeque::new(),
            is_resumed: false,
            counters: SipCounters::default(),
            engine: new_engine(config, seed, secrets, proof),
            proof,
            congestion: Congestion::new(listeners.len()),
            filter,
            balance: Balance::new(number, secrets.commons.clone()),
            handed: HandedOverTransactions::default(),
            slack: FreedMemory::default(),
            has_wanted: false,
            number,
            is_first: secrets.is_first(number),
            tu: WorkerTu::new(number, sockets, secrets, &sip_config, seed),
            screen: SourceFilter::new(&sip_config, secrets.bans.clone()),
            trace: Trace::new(&sip_config),
            spans: Some(Box::default()),
            buffer: vec![0; sip_config.message_bytes() + REFUSAL_EXTRA_BYTES],
            hash: RandomState::new(),
            sip_config,
        }
    }

    /// New settings. Limits of messages and transactions stay as they were at the start.
    pub(super) fn apply_settings(&mut self, sip_config: Arc<SipConfig>) {
        self.engine.configure_congestion(sip_config.congestion());
        self.engine
            .configure_rules(WorkerTu::rules(&sip_config.settings));
        self.engine
            .configure_trust(!sip_config.settings.domains.is_empty());
        self.proof = self.proof.with_token_keys(sip_config.tokens);
        self.engine.set_proof(Box::new(self.proof));
        self.tu.apply_settings(&sip_config);
        self.screen.apply_settings(&sip_config);
        Trace::apply_settings(&mut self.trace, &sip_config);
        self.requests.apply_settings(&sip_config, &self.sip_config);
        self.sip_config = sip_config;
    }

    pub(super) const fn number(&self) -> u16 {
        self.number
    }

    /// The bindings, for an upgrade.
    pub(super) fn kept(&mut self) -> Option<&mut WorkerBindings> {
        self.tu.kept()
    }

    /// Removes bindings for an operator. Returns their number.
    pub(super) fn remove_bindings(&mut self, aor: &Aor, contact: Option<&str>) -> usize {
        self.tu.remove_bindings(self.now, aor, contact)
    }

    /// Removes a binding whose phone has registered at another node.
    pub(super) fn remove_moved(&mut self, aor: &Aor, moved: &MovedBinding) {
        let removed = self.tu.remove_moved(self.now, aor, moved);
        self.counters.bindings_moved += removed as u64;
    }

    /// The proxy of the domains, if there are any.
    pub(super) fn forwarder(&self) -> Option<&Forwarder> {
        self.tu.forwarder()
    }

    pub(super) fn forwarder_mut(&mut self) -> Option<&mut Forwarder> {
        self.tu.forwarder_mut()
    }

    /// Takes bindings of an earlier run, which are saved from now on.
    pub(super) fn restore(&mut self, kept: WorkerBindings) {
        self.tu.restore(kept);
    }

    pub(super) fn config_and_counters(&mut self) -> (&SipConfig, &mut SipCounters) {
        (&self.sip_config, &mut self.counters)
    }

    /// The next deadline.
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        let deadlines = [
            self.engine.poll_timeout(),
            self.tu.poll_timeout(),
            self.requests.dispatcher.poll_timeout(),
            self.slack.deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Handles the timers that are due.
    pub(super) fn expire(&mut self, outgoing: &mut Outgoing<'_, '_, '_>) {
        let now = self.now.mono;
        for _ in 0..MAX_TIMER_ROUNDS {
            if self.engine.poll_timeout().is_none_or(|at| at > now) {
                break;
            }
            self.congestion.report_idle_time(&mut self.engine);
            self.filter.report(self.now, &mut self.engine);
            self.engine.handle_timeout(self.now);
            self.drain(outgoing);
            self.filter.write_rules(self.now, &self.engine);
        }
        self.slack.add(now, self.engine.take_released_bytes());
        self.slack.expire(now);
        if self.tu.poll_timeout().is_some_and(|at| at <= now) {
            self.with_tu(|tu, transactions| tu.handle_timeout(transactions));
            self.drain(outgoing);
            let expired = self.tu.take_expired();
            self.late_answers.extend(expired.map(LateResult::Lookup));
        }
        let dispatcher = &mut self.requests.dispatcher;
        if dispatcher.poll_timeout().is_some_and(|at| at <= now) {
            dispatcher.handle_timeout(now, &mut self.engine);
            self.drain(outgoing);
        }
    }

    /// Resumes the requests that have waited for the DNS.
    pub(super) fn take_answers(&mut self, outgoing: &mut Outgoing<'_, '_, '_>) {
        let now = self.now.mono;
        while self
            .requests
            .take_answer(now, &mut self.engine, &mut self.counters)
        {
            self.drain(outgoing);
        }
    }

    /// Resumes the requests that have waited for a source of credentials or for the media relay.
    pub(super) fn take_late_answers(&mut self, outgoing: &mut Outgoing<'_, '_, '_>) {
        while let Some(answer) = self.late_answers.pop_front() {
            self.with_tu(|tu, transactions| tu.answered(transactions, answer));
            self.drain(outgoing);
            if let Some((bytes, flow)) = self.tu.take_resumed() {
                self.is_resumed = true;
                self.message(&bytes, &flow, (0, None), outgoing);
                self.is_resumed = false;
            }
            self.tu.clear_lookup_result();
        }
    }

    /// Handles a datagram that a listener has received.
    pub(super) fn datagram(
        &mut self,
        bytes: &[u8],
        flow: &Flow,
        outgoing: &mut Outgoing<'_, '_, '_>,
    ) {
        if self.drops(flow.remote.ip()) {
            return;
        }
        match Packet::of(bytes) {
            Packet::Stun => self.stun(bytes, flow, outgoing),
            // A line end keeps the binding of a NAT alive, and gets no response.
            Packet::KeepAlive => self.counters.pings += 1,
            Packet::Sip => {
                self.counters.udp_messages += 1;
                self.counters.bytes_received += bytes.len() as u64;
                if self.filter.is_here() && self.is_filtered_out(bytes, flow) {
                    // Counted by the engine.
                    return;
                }
                self.trace_received(bytes, flow);
                if !(self.balance.is_on() && self.hand_over(bytes, flow)) {
                    self.message(bytes, flow, (0, None), outgoing);
                }
            }
            Packet::Other => self.counters.malformed += 1,
        }
    }

    /// Whether everything from this source is dropped, because it is denied or banned.
    pub(super) fn drops(&mut self, source: IpAddr) -> bool {
        self.screen.drops(self.now.unix_s, source)
    }

    /// Whether the admission filter of this worker drops a datagram.
    fn is_filtered_out(&mut self, bytes: &[u8], flow: &Flow) -> bool {
        if !self.engine.filter().is_active() {
            return false;
        }
        let started = now().mono;
        let drops = self.engine.filters_out(flow.remote.ip(), bytes);
        if drops {
            let took = now().mono.since(started);
            self.congestion.add_message(MessageOutcome::Dropped, took);
        }
        drops
    }

    /// Handles a complete message of a connection.
    pub(super) fn stream_message(
        &mut self,
        bytes: &[u8],
        flow: &Flow,
        outgoing: &mut Outgoing<'_, '_, '_>,
    ) {
        if self.drops(flow.remote.ip()) {
            if let Some(key) = flow.connection {
                outgoing.deny(key, &mut self.counters);
            }
            return;
        }
        self.counters.tcp_messages += 1;
        self.counters.bytes_received += bytes.len() as u64;
        self.trace_received(bytes, flow);
        if self.balance.is_on() && self.hand_over(bytes, flow) {
            flow.connection
                .into_iter()
                .for_each(|key| outgoing.share(key));
        } else {
            self.message(bytes, flow, (0, None), outgoing);
        }
    }

    /// Refuses bytes of a connection that are no message. If possible, they get a response before the connection
    /// closes.
    pub(super) fn refuse_stream(
        &mut self,
        bytes: &[u8],
        error: ParseError,
        flow: &Flow,
        outgoing: &mut Outgoing<'_, '_, '_>,
    ) {
        self.counters.tcp_messages += 1;
        self.counters.malformed += 1;
        self.trace_received(bytes, flow);
        if let Verdict::Answer(to, refusal) = judge_bytes(bytes, &self.limits, error) {
            self.refuse(&to, &refusal, flow, outgoing);
        }
    }

    /// Notes that a connection is closed, or that an attempt to open one has failed.
    pub(super) fn disconnected(&mut self, gone: &ClosedConnection) {
        let now = self.now.mono;
        match gone.attempt {
            Some(key) => self.engine.connect_failed(now, key),
            None => {
                self.engine.disconnected(now, gone.key);
                self.with_tu(|tu, transactions| tu.connection_gone(transactions, gone.key));
            }
        }
        if gone.is_shared {
            self.balance.broadcast_closed(gone.key, &mut self.counters);
        }
    }

    /// Notes that the other side of a connection sends nothing more. Returns whether responses for it are missing.
    pub(super) fn half_closed(&mut self, key: ConnectionKey, is_shared: bool) -> bool {
        if is_shared {
            self.balance.broadcast_half_closed(key, &mut self.counters);
        }
        self.engine.half_closed(self.now.mono, key)
    }

    /// Begins a batch of messages.
    pub(super) fn begin_batch(&mut self) {
        self.congestion
            .note_tu_load(self.tu.backlog(), self.tu.begun());
        self.filter.report(self.now, &mut self.engine);
        self.congestion.begin(self.now, &mut self.engine);
        self.filter.write_rules(self.now, &self.engine);
    }

    /// Notes that a batch is handled. What it has queued is sent next.
    pub(super) fn begin_sending(&mut self) {
        if self.engine.is_overloaded() {
            self.congestion.begin_sending();
        }
    }

    /// Ends a batch whose responses are sent.
    pub(super) fn end_batch(&mut self, handled: usize) {
        self.congestion.end(handled, &mut self.engine);
    }

    fn stun(&mut self, bytes: &[u8], flow: &Flow, outgoing: &mut Outgoing<'_, '_, '_>) {
        let mut buffer = [0; stun::MAX_RESPONSE_BYTES];
        match stun::answer(bytes, flow.remote, &mut buffer) {
            Some(answer) => {
                self.counters.stun_answers += 1;
                self.congestion.count_sent();
                outgoing.send_back(flow, answer, &mut self.counters);
            }
            None => self.counters.stun_dropped += 1,
        }
    }

    /// Handles a message from the network or from another worker. For a CANCEL, `asked` workers have found no
    /// transaction.
    pub(super) fn message(
        &mut self,
        bytes: &[u8],
        flow: &Flow,
        (asked, from): (u16, Option<u16>),
        outgoing: &mut Outgoing<'_, '_, '_>,
    ) {
        let Some(mut spans) = self.spans.take() else {
            return;
        };
        // Messages that are shed must not count as work.
        let started = self.engine.is_overloaded().then(|| now().mono);
        let received = self
            .engine
            .handle_message(self.now, flow, bytes, &mut spans);
        let outcome = MessageOutcome::of(&received, bytes);
        let followed = self.followed(&received, from);
        let elsewhere = match &received {
            Received::Elsewhere { worker } => Some((*worker, asked)),
            _ if followed.is_some() => followed.map(|worker| (worker, asked)),
            Received::Request(request) if request.message.method() == Some(Method::Cancel) => {
                let next = self.balance.next_worker_to_ask(asked);
                self.counters.cancels_passed_on += u64::from(next.is_some());
                next.map(|worker| (worker, asked + 1))
            }
            _ => None,
        };
        let is_request = matches!(received, Received::Request(_));
        let elsewhere = match elsewhere {
            None => self.take(received, flow).map(|worker| (worker, 0)),
            elsewhere => elsewhere,
        };
        if is_request && elsewhere.is_some() {
            self.engine.pass_on(self.now.mono, flow.remote.ip());
        }
        if let Some((worker, asked)) = elsewhere {
            self.pack(worker, flow, asked, bytes);
            if let Some(key) = flow.connection
                && worker_of(key) == self.number
                && !expects_no_response(bytes)
            {
                outgoing.share(key);
            }
        }
        self.spans = Some(spans);
        self.drain(outgoing);
        if let Some(started) = started {
            let took = now().mono.since(started);
            self.congestion.add_message(outcome, took);
        }
    }

    /// Handles a message that may be for this worker. Returns the number of the worker that it is for, if that is
    /// another one.
    fn take(&mut self, received: Received<'_>, flow: &Flow) -> Option<u16> {
        match received {
            Received::Request(request) => return self.request(request),
            Received::Ack(ack) => return self.ack(&ack),
            Received::Cancel {
                invite,
                mark,
                message,
            } => {
                self.count_request(b"CANCEL");
                self.with_tu(|tu, transactions| {
                    tu.cancel(transactions, (invite, mark), &message);
                });
            }
            Received::Response {
                client,
                mark: Some(mark),
                message,
            } => {
                let now = self.now.mono;
                let dispatcher = &mut self.requests.dispatcher;
                let told = dispatcher.response(now, &mut self.engine, client, mark, &message);
                if let Some(mark) = told {
                    self.with_tu(|tu, transactions| {
                        tu.response(transactions, mark, (&message, flow));
                    });
                }
            }
            Received::KeepAlive => self.counters.pings += 1,
            // Overload control counts its own.
            Received::Refused(503) => {}
            Received::Refused(_) => self.counters.refused += 1,
            // Counted by the engine.
            _ => {}
        }
        None
    }

    fn count_request(&mut self, method: &[u8]) {
        self.counters.requests[method_index(method)] += 1;
    }

    /// Handles a request without a transaction. Returns the number of the worker that it is for, if that is another
    /// one.
    fn request(&mut self, request: NewRequest<'_>) -> Option<u16> {
        let source = request.flow.remote.ip();
        let is_proven = request.flow.connection.is_some();
        let from = (self.now.unix_s, source, is_proven);
        if self.screen.is_scanner(&request.message, from) {
            return None;
        }
        let method = request.message.method();
        let transaction = request.transaction();
        // The process that has taken over serves new requests. If it does not keep up, this process refuses them.
        if let Some(worker) = self.balance.successor(request.call_id()) {
            self.handed.note(transaction, worker);
            return Some(worker);
        }
        let taken = self.with_tu(|tu, transactions| tu.request(transactions, request));
        if let RequestOwner::Elsewhere(worker) = taken {
            self.handed.note(transaction, worker);
            return Some(worker);
        }
        if !self.is_resumed {
            self.count_request(method.map_or(&b""[..], |method| method.as_bytes()));
        }
        None
    }

    /// Handles an ACK for a 2xx. Returns the number of the worker that it is for, if that is another one.
    fn ack(&mut self, ack: &Ack<'_>) -> Option<u16> {
        self.counters.stray_acks += u64::from(ack.invite.is_none());
        match self.with_tu(|tu, transactions| tu.ack(transactions, ack)) {
            RequestOwner::Here => None,
            RequestOwner::Elsewhere(worker) => Some(worker),
        }
    }

    fn with_tu<T>(&mut self, run: impl FnOnce(&mut WorkerTu, &mut Transactions<'_>) -> T) -> T {
        let mut transactions = Transactions {
            now: self.now,
            engine: &mut self.engine,
            dispatcher: &mut self.requests.dispatcher,
            owner_of: worker_of,
        };
        run(&mut self.tu, &mut transactions)
    }

    /// Responds to a refused request without a transaction (RFC 3261 §8.2.7). A retransmission gets the same response.
    fn refuse(
        &mut self,
        to: &sip::build::Answerable<'_>,
        refusal: &Refusal<'_>,
        flow: &Flow,
        outgoing: &mut Outgoing<'_, '_, '_>,
    ) {
        let rules = WorkerTu::rules(&self.sip_config.settings);
        let via = to.top_via();
        let tag = Tag::new(self.hash.hash_one(via.branch).to_be_bytes());
        let stamp = Stamp::of(via, flow.remote);
        let written = refusal.write(&mut self.buffer, to, &rules, tag.as_bytes(), stamp);
        let Ok(bytes) = written else {
            return;
        };
        let remote = reply_address(flow, via);
        self.counters.refused += 1;
        let class = usize::from(refusal.code / 100).clamp(1, 6) - 1;
        self.counters.responses_sent[class] += 1;
        self.counters.bytes_sent += bytes.len() as u64;
        let back = Flow { remote, ..*flow };
        self.congestion.count_sent();
        if !outgoing.send_back(&back, bytes, &mut self.counters) {
            self.counters.unsent += 1;
        } else if let Some(trace) = &mut self.trace {
            trace.copy_sent_back(&back, bytes, &mut self.counters);
        }
    }

    fn trace_received(&mut self, bytes: &[u8], flow: &Flow) {
        if let Some(trace) = &mut self.trace {
            trace.copy_received(flow, bytes, &mut self.counters);
        }
    }

    /// Carries out everything that the engine has queued. It must run after each call of the engine.
    pub(super) fn drain(&mut self, outgoing: &mut Outgoing<'_, '_, '_>) {
        self.drain_engine(outgoing);
        while self.with_tu(deliver_failure) {
            self.drain_engine(outgoing);
        }
    }

    /// Carries out all outputs of the engine.
    fn drain_engine(&mut self, outgoing: &mut Outgoing<'_, '_, '_>) {
        let now = self.now.mono;
        while let Some(output) = self.engine.poll_output() {
            match output {
                Output::Send { to, origin, bytes } => {
                    self.counters.bytes_sent += bytes.len() as u64;
                    self.congestion.count_sent();
                    if let SendTo::Stream(key) = to
                        && worker_of(key) != self.number
                    {
                        let worker = worker_of(key);
                        self.balance
                            .queue_for_owner(worker, key, bytes, &mut self.counters);
                    } else if !outgoing.send(&to, bytes, &mut self.counters) {
                        self.counters.unsent += 1;
                        self.engine.send_failed(now, origin);
                    } else if let Some(trace) = &mut self.trace {
                        trace.copy_sent(&to, bytes, outgoing, &mut self.counters);
                    }
                }
                Output::Connect { key, to } => {
                    if outgoing.connect(key, to, &self.sip_config, now) {
                        self.counters.connections_made += 1;
                    } else {
                        self.engine.connect_failed(now, key);
                    }
                }
                // The worker that has the connection closes it.
                Output::Close(connection) if worker_of(connection) != self.number => {}
                Output::Close(connection) => outgoing.close(connection, &mut self.counters),
                Output::Event(event) => {
                    self.with_tu(|tu, transactions| {
                        dispatch_event(tu, transactions, &event);
                    });
                }
                Output::Undelivered { server, to, bytes } => {
                    let (to, bytes) = (to.clone(), bytes.to_vec());
                    let dispatcher = &mut self.requests.dispatcher;
                    dispatcher.undelivered(now, &mut self.engine, server, to, &bytes);
                }
                Output::Unacknowledged {
                    flow,
                    response,
                    remote_target,
                } => {
                    let (response, target) = (response.to_vec(), remote_target.to_vec());
                    self.with_tu(|tu, transactions| {
                        tu.unacknowledged(transactions, &flow, &response, &target);
                    });
                }
                _ => {}
            }
        }
    }
}

/// The address of a response, from the topmost Via of the request (RFC 3261 §18.2.2).
fn reply_address(flow: &Flow, via: &Via<'_>) -> SocketAddr {
    let sent_by = routing::SentBy {
        port: via.port,
        rport: via.rport != Rport::Absent,
        maddr: via.maddr.and_then(|maddr| maddr.ip()),
    };
    routing::response_address(flow.transport, flow.remote, sent_by)
}
