//! The transaction user of a worker: gives each request to the application that it is for.
//!
//! With domains, the registrar answers REGISTER for one of them, and the proxy forwards all other requests, except
//! those for the server itself. Without domains, OPTIONS is answered, and REGISTER, INVITE and BYE go to the user agent
//! server for tests if it is on. Each application has marks of its own ([`MarkOwner`]).

mod bindings;
mod events;
mod probes;
mod proxy;
mod register;
mod registrations;
mod ringing;
mod suspended;
mod uas;

use super::Secrets;
use super::authentication::DigestAuthenticator;
use super::counters::SipCounters;
use super::forwarding::{Forwarder, Sockets, listener_at};
use super::ice::IceServers;
use super::lines::CapabilityLines;
use super::lookups::{LateResult, LookupReply, MAX_STORE_QUERIES, Waiter};
use super::nodes::Publisher;
use super::registrar::Registrations;
use super::settings::{SipConfig, SipSettings};
use super::store::WorkerBindings;
use probes::Probes;
use registrations::TrunkRegistrations;
use sip::dispatch::Failure;
use sip::engine::{Ack, Mark, NewRequest, Reply, RespondError, ServerKey};
use sip::flow::{ConnectionKey, Flow, ListenerKey};
use sip::tu::{RequestOwner, TransactionUser, Transactions};
use sip::verdict::Rules;
use sip::{Message, Method, Mono, Now};
use sip_server::Aor;
use sip_server::location::Binding;
use sip_server::proxy::Proxy;
use sip_server::reg_event::{Cause, Config, RegEvents};
use std::net::SocketAddr;
use std::sync::Arc;
use uas::TestUas;

/// The rules for a server without domains.
const OPTIONS_RULES: Rules<'static> = Rules {
    methods: &[Method::Options],
    ..Rules::USER_AGENT
};

/// The rules for a server with domains.
const REGISTRAR_RULES: Rules<'static> = Rules {
    methods: &[Method::Options, Method::Register, Method::Subscribe],
    extensions: &sip_server::registrar::EXTENSIONS,
    ..Rules::USER_AGENT
};

/// RFC 3261 §21.5.4: the sender uses another server for this time. It is short, because a sender may also hold back
/// requests within its dialogs, which this server still serves.
const DRAINING_LINE: &[u8] = b"Retry-After: 5\r\n";

/// RFC 5630 §5.1.2: a caller that requires TLS does not reach this server without it.
const SIPS_NOT_ALLOWED_LINE: &[u8] = b"Warning: 380 hairpin \"SIPS Not Allowed\"\r\n";

/// The maximum of addresses of record whose bindings end per call, and of calls that end per call.
const MAX_EXPIRED: usize = 256;

/// The size of the buffer for header lines of a response: that of the Contacts in a request.
const MAX_LINES_BYTES: usize = 72 << 10;

/// The application that a mark belongs to: the first byte of the mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum MarkOwner {
    /// The user agent server for tests.
    TestUas = 0,
    /// Probes of trunks.
    Probes = 1,
    /// Registrations at trunks.
    TrunkRegistrations = 2,
    /// The subscriptions to registrations.
    RegEvents = 3,
}

/// The counters of the applications.
#[derive(Debug, Default)]
struct TuCounts {
    /// 2xx for INVITEs that were not acknowledged in time.
    unacknowledged: u64,
    /// Requests of this server that were not begun.
    refused: u64,
}

/// The transaction user of a worker.
#[derive(Debug)]
pub(super) struct WorkerTu {
    sip_config: Arc<SipConfig>,
    uas: TestUas,
    /// The registrar of the domains, if there are any.
    registrations: Option<Box<Registrations>>,
    /// Publishes the bindings for other nodes.
    publisher: Publisher,
    /// Bindings of an earlier run, which a registrar takes when a reload adds a domain.
    spare: Option<WorkerBindings>,
    /// The proxy of the domains, if there are any.
    forwarder: Option<Box<Forwarder>>,
    /// The first worker probes the trunks for all.
    probes: Probes,
    trunk_registrations: TrunkRegistrations,
    /// The sockets of requests.
    listeners: Sockets,
    /// The subscriptions to the registrations of this worker.
    events: Option<Box<RegEvents>>,
    authenticator: DigestAuthenticator,
    /// A request that resumes, because the result of its query is there.
    resumed: Option<(Box<[u8]>, Flow)>,
    /// Results for requests that have waited too long for a source of credentials.
    expired: Vec<LookupReply>,
    /// The header lines that list what this server supports, such as Allow and Supported.
    abilities: CapabilityLines,
    /// The header field `Ice-Servers` of the 200 to a REGISTER.
    ice: Option<IceServers>,
    /// The buffer for header lines of a response.
    lines: Vec<u8>,
    counts: TuCounts,
    /// The number of the worker.
    number: u16,
    secrets: Secrets,
    /// The seed of this worker. Each new registrar gets another one.
    seed: u64,
}

impl WorkerTu {
    /// The transaction user of the worker `number`. It has a registrar and a proxy if there are domains. `secrets` are
    /// the same for all workers; `seed` is this worker's own, and makes its GRUUs unique.
    pub(super) fn new(
        number: u16,
        listeners: Sockets,
        secrets: &Secrets,
        sip_config: &Arc<SipConfig>,
        seed: u64,
    ) -> WorkerTu {
        let registrations = Registrations::new(number, sip_config, secrets, seed);
        let forwarder = registrations.as_ref().map(|_| {
            let origin = secrets.origin(number);
            Box::new(Forwarder::new(
                origin,
                listeners.clone(),
                sip_config,
                secrets,
            ))
        });
        let events = registrations.is_some();
        let events = events.then(|| Box::new(WorkerTu::reg_events(secrets, number)));
        let is_first = secrets.is_first(number);
        let mut uas = TestUas::new(secrets);
        uas.service_time = sip_config.settings.service_time;
        WorkerTu {
            uas,
            registrations: registrations.map(Box::new),
            events,
            publisher: Publisher::new(sip_config.settings.nodes.clone(), secrets.lasting),
            spare: None,
            forwarder,
            probes: Probes::new(is_first, sip_config, seed),
            trunk_registrations: TrunkRegistrations::new(is_first, sip_config, secrets.key, seed),
            listeners,
            authenticator: DigestAuthenticator::new(sip_config, secrets, seed),
            resumed: None,
            expired: Vec::new(),
            abilities: CapabilityLines::new(&WorkerTu::abilities(&sip_config.settings)),
            ice: IceServers::new(sip_config),
            lines: vec![0; MAX_LINES_BYTES],
            counts: TuCounts::default(),
            number,
            secrets: secrets.clone(),
            seed,
            sip_config: sip_config.clone(),
        }
    }

    /// Applies new settings. Adds a registrar and a proxy when the first domain appears.
    pub(super) fn apply_settings(&mut self, sip_config: &Arc<SipConfig>) {
        self.sip_config = sip_config.clone();
        self.authenticator.apply_settings(sip_config);
        self.publisher
            .apply_settings(sip_config.settings.nodes.clone());
        self.uas.service_time = sip_config.settings.service_time;
        self.abilities = CapabilityLines::new(&WorkerTu::abilities(&sip_config.settings));
        self.ice = IceServers::new(sip_config);
        match &mut self.registrations {
            Some(registrations) => registrations.apply_settings(sip_config),
            None => {
                // Each registrar has another seed, because the values made from it must be unique.
                self.seed = self.seed.wrapping_add(1 << 48);
                let new = Registrations::new(self.number, sip_config, &self.secrets, self.seed);
                self.registrations = new.map(Box::new);
                if self.registrations.is_some() {
                    let events = WorkerTu::reg_events(&self.secrets, self.number);
                    self.events = Some(Box::new(events));
                }
                if let Some(kept) = self.spare.take() {
                    self.restore(kept);
                }
            }
        }
        self.probes.apply_settings(sip_config);
        self.trunk_registrations.apply_settings(sip_config);
        match (&mut self.forwarder, &self.registrations) {
            (Some(forwarder), _) => forwarder.apply_settings(sip_config),
            (None, Some(_)) => {
                let origin = self.secrets.origin(self.number);
                let new = Forwarder::new(origin, self.listeners.clone(), sip_config, &self.secrets);
                self.forwarder = Some(Box::new(new));
            }
            (None, None) => {}
        }
    }

    fn reg_events(secrets: &Secrets, number: u16) -> RegEvents {
        let (config, part) = (Config::default(), MarkOwner::RegEvents as u8);
        RegEvents::new(config, secrets.key, number, part)
    }

    /// Takes the bindings of an earlier run. From now on, their changes are saved too.
    pub(super) fn restore(&mut self, kept: WorkerBindings) {
        match &mut self.registrations {
            Some(registrations) => {
                registrations.restore(kept, &self.sip_config);
                self.publisher.restart();
            }
            None => self.spare = Some(kept),
        }
    }

    /// The bindings of this worker, also those that wait until there is a domain.
    pub(super) fn kept(&mut self) -> Option<&mut WorkerBindings> {
        match &mut self.registrations {
            Some(registrations) => Some(registrations.kept()),
            None => self.spare.as_mut(),
        }
    }

    /// Removes the bindings of an address with this contact, or all of them. Returns their number.
    pub(super) fn remove_bindings(&mut self, now: Now, aor: &Aor, contact: Option<&str>) -> usize {
        let is_meant = |binding: &Binding| {
            !binding.is_expired(now.mono)
                && contact.is_none_or(|contact| binding.uri() == contact.as_bytes())
        };
        let registrations = self.registrations.as_mut();
        registrations.map_or(0, |it| it.remove_if(now, aor, Cause::Server, is_meant))
    }

    /// Notes that a connection is closed.
    pub(super) fn connection_gone(
        &mut self,
        transactions: &mut Transactions<'_>,
        key: ConnectionKey,
    ) {
        if let Some(forwarder) = &mut self.forwarder {
            forwarder.connection_gone(key);
        }
        if let Some(registrations) = &mut self.registrations {
            registrations.connection_gone(transactions.now, key);
            self.report_changes(transactions);
        }
    }

    /// The proxy of the domains, if there are any.
    pub(super) fn forwarder(&self) -> Option<&Forwarder> {
        self.forwarder.as_deref()
    }

    pub(super) fn forwarder_mut(&mut self) -> Option<&mut Forwarder> {
        self.forwarder.as_deref_mut()
    }

    /// During an upgrade, the run of the other process.
    pub(super) fn set_other_run(&mut self, other: Option<u32>) {
        self.secrets.runs.other = other;
        if let Some(registrations) = &mut self.registrations {
            registrations.set_other_run(other);
        }
        if let Some(forwarder) = &mut self.forwarder {
            forwarder.set_other_run(other);
        }
    }

    /// The listener of this process that is bound to `local`, the local address of a flow of another process.
    pub(super) fn listener_at(&self, local: SocketAddr) -> Option<ListenerKey> {
        listener_at(&self.listeners.all, local)
    }

    /// The rules that check a request.
    pub(super) fn rules(settings: &SipSettings) -> Rules<'static> {
        match (settings.test_uas, settings.domains.is_empty()) {
            (false, false) => Rules::PROXY,
            _ => WorkerTu::abilities(settings),
        }
    }

    /// The rules for requests to this server itself.
    fn abilities(settings: &SipSettings) -> Rules<'static> {
        match (settings.test_uas, settings.domains.is_empty()) {
            (true, _) => Rules::USER_AGENT,
            (false, false) => REGISTRAR_RULES,
            (false, true) => OPTIONS_RULES,
        }
    }

    /// Writes the counters and gauges of the applications into `counters`.
    pub(super) fn count(&self, counters: &mut SipCounters) {
        counters.digest = self.authenticator.outcomes;
        counters.unacknowledged += self.counts.unacknowledged;
        counters.own_refused += self.counts.refused;
        if let Some(registrations) = &self.registrations {
            counters.bindings = registrations.len() as u64;
            // The store is shared, so only the first worker reports its counters.
            if self.secrets.is_first(self.number) {
                let store = registrations.store_counts();
                counters.store_failures = store.failures;
                counters.store_lost = store.lost;
                counters.store_bytes = store.log_bytes;
            }
        }
        if let Some(forwarder) = &self.forwarder {
            let stats = forwarder.proxy.stats();
            counters.forwarded = stats.forwarded;
            counters.forwarded_branches = stats.branches;
            counters.forwarding_refused = stats.refused;
            counters.forwarding_challenged = stats.challenged;
            counters.forwarding = stats.contexts as u64;
            counters.media_requests = forwarder.media.outcomes(&stats);
            counters.pushes = forwarder.pusher.sent;
            counters.pushes_dropped = forwarder.pusher.dropped;
            counters.calls_refused = forwarder.calls.refused;
            // The dialogs are shared, so only the first worker reports them.
            if self.secrets.is_first(self.number) {
                (counters.calls, counters.calls_expired) = forwarder.calls.counts();
            }
        }
    }

    /// Handles a request: responds, forwards it, or returns the other worker that it belongs to.
    fn answer(
        &mut self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
    ) -> Result<RequestOwner, RespondError> {
        match request.message.method() {
            // A CANCEL begins nothing, so it is not refused while the server drains.
            method if method != Some(Method::Cancel) && self.is_refused(&request) => {
                transactions
                    .answer_statelessly(request, &Reply::new(503).headers(DRAINING_LINE))?;
            }
            Some(Method::Subscribe) if self.is_subscription(&request) => {
                return self.subscribed(transactions, request);
            }
            _ if self.forwarder.is_some() && !self.is_registration(&request.message) => {
                return self.forward(transactions, request);
            }
            Some(Method::Invite) => {
                let (lines, abilities) = (&mut self.lines, &self.abilities);
                self.uas.invite(transactions, request, lines, abilities)?;
            }
            Some(Method::Register) if self.registrations.is_some() => {
                return self.registered(transactions, request);
            }
            Some(Method::Register) if self.sip_config.settings.challenge => {
                self.challenged(transactions, request)?;
            }
            Some(Method::Register) => {
                self.uas
                    .register(transactions, request, &mut self.lines, 0)?;
            }
            Some(Method::Bye) => self.uas.bye(transactions, request)?,
            // RFC 3261 §9.2: a CANCEL that comes here matches no INVITE. The response is stateless, because anybody can
            // send such a CANCEL.
            Some(Method::Cancel) => transactions.answer_statelessly(request, &Reply::new(481))?,
            // RFC 3261 §11.2: OPTIONS. The response is stateless.
            _ => {
                let reply = Reply::new(200).headers(&self.abilities.options);
                transactions.answer_statelessly(request, &reply)?;
            }
        }
        Ok(RequestOwner::Here)
    }

    /// Whether the server drains, and the request would begin a dialog or a registration.
    fn is_refused(&self, request: &NewRequest<'_>) -> bool {
        let begins = match self.forwarder {
            Some(_) => request.to_tag().is_none(),
            None => self.uas.dialog_of(request).is_none(),
        };
        self.sip_config.draining && begins
    }
}

impl TransactionUser for WorkerTu {
    /// The result of a source of credentials, or of the media relay.
    type QueryResult = LateResult;

    fn request(
        &mut self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
    ) -> RequestOwner {
        // If no response can be sent, the client sends its request again.
        self.answer(transactions, request)
            .unwrap_or(RequestOwner::Here)
    }

    fn ack(&mut self, transactions: &mut Transactions<'_>, ack: &Ack<'_>) -> RequestOwner {
        // The engine has already handled ACKs for the user agent server.
        let Some(from) = self.forwarder.as_ref().map(|it| it.flow_id(&ack.flow)) else {
            return RequestOwner::Here;
        };
        let now = transactions.now;
        let handled = self.with_proxy(transactions, Some(&ack.flow), |proxy, stack| {
            proxy.ack(now, stack, &ack.message, &from)
        });
        // An ACK does not wait.
        self.authenticator.lookups.clear_wanted_query();
        handled.unwrap_or(RequestOwner::Here)
    }

    fn cancel(
        &mut self,
        transactions: &mut Transactions<'_>,
        (invite, mark): (ServerKey, Option<Mark>),
        cancel: &Message<'_>,
    ) {
        let now = transactions.now.mono;
        match mark.filter(|mark| Proxy::owns(*mark)) {
            Some(mark) => drop(self.with_proxy(transactions, None, |proxy, stack| {
                proxy.cancel(now, stack, mark, cancel);
            })),
            None => self.uas.cancel(transactions, invite),
        }
    }

    fn response(
        &mut self,
        transactions: &mut Transactions<'_>,
        mark: Mark,
        (response, flow): (&Message<'_>, &Flow),
    ) {
        // Responses to a BYE of the user agent server are ignored.
        if Proxy::owns(mark) {
            let now = transactions.now;
            self.with_proxy(transactions, Some(flow), |proxy, stack| {
                proxy.response(now, stack, mark, response, flow);
            });
            self.report_changes(transactions);
        } else if mark.user() == MarkOwner::Probes as u8 {
            self.probes.response(transactions.now.mono, mark, response);
        } else if mark.user() == MarkOwner::TrunkRegistrations as u8 {
            let now = transactions.now.mono;
            self.trunk_registrations.response(now, mark, response);
        } else if let Some(events) = self.events.as_mut().filter(|_| events::is_of_events(mark)) {
            let code = response.status_code().unwrap_or(0);
            events.response(transactions, mark, code);
        }
    }

    fn failed(&mut self, transactions: &mut Transactions<'_>, mark: Mark, failure: Failure) {
        if Proxy::owns(mark) {
            let now = transactions.now;
            self.with_proxy(transactions, None, |proxy, stack| {
                proxy.failed(now, stack, mark, &failure);
            });
            self.report_changes(transactions);
        } else if mark.user() == MarkOwner::Probes as u8 {
            self.probes.failed(transactions.now.mono, mark, failure);
        } else if mark.user() == MarkOwner::TrunkRegistrations as u8 {
            self.trunk_registrations.failed(transactions.now.mono, mark);
        } else if let Some(events) = self.events.as_mut().filter(|_| events::is_of_events(mark)) {
            events.failed(mark);
        } else {
            tracing::debug!(%failure, "a BYE came to nothing");
        }
    }

    fn server_ended(&mut self, _transactions: &mut Transactions<'_>, (_, mark): (ServerKey, Mark)) {
        if let Some(forwarder) = &mut self.forwarder {
            forwarder.proxy.server_ended(mark);
        }
    }

    fn unacknowledged(
        &mut self,
        transactions: &mut Transactions<'_>,
        flow: &Flow,
        response: &[u8],
        remote_target: &[u8],
    ) {
        let dialog = (flow, response, remote_target);
        // The user agent server keeps no transaction that it would have to find again.
        let mark = Mark::of(MarkOwner::TestUas as u8, 0);
        let with = (mark, &mut self.lines[..]);
        self.uas
            .end_dialog(transactions, dialog, with, &mut self.counts);
    }

    fn answered(&mut self, transactions: &mut Transactions<'_>, answer: LateResult) {
        self.resume_with(transactions, answer);
    }

    fn backlog(&self) -> u64 {
        // The stores run the queries of all workers, so each worker has a share.
        let at_once = self.sip_config.share(MAX_STORE_QUERIES) as u64;
        self.authenticator
            .lookups
            .counts()
            .0
            .saturating_sub(at_once)
    }

    fn begun(&self) -> u64 {
        // Above the limit of running queries, one begins for each that ends. So the count of ended queries is a good
        // estimate.
        self.authenticator.lookups.counts().1
    }

    fn poll_timeout(&self) -> Option<Mono> {
        let registrations = self.registrations.as_ref();
        let binding = registrations.and_then(|registrations| registrations.next_deadline());
        let forwarder = self.forwarder.as_ref();
        let proxy = forwarder.and_then(|forwarder| forwarder.proxy.poll_timeout());
        let call = forwarder.and_then(|forwarder| forwarder.calls.next_deadline());
        let events = self.events.as_ref().and_then(|it| it.poll_timeout());
        let trunks = [
            self.probes.poll_timeout(),
            self.trunk_registrations.poll_timeout(),
        ];
        let lookup = self.authenticator.lookups.next_deadline();
        let publisher = registrations.and_then(|_| self.publisher.poll_timeout());
        let all = [self.uas.next_end(), binding, proxy, call, events]
            .into_iter()
            .chain(trunks)
            .chain([lookup, publisher]);
        all.flatten().min()
    }

    fn handle_timeout(&mut self, transactions: &mut Transactions<'_>) {
        let _ = (0..MAX_EXPIRED)
            .take_while(|_| self.uas.expire(transactions))
            .count();
        let now = transactions.now.mono;
        self.with_proxy(transactions, None, |proxy, stack| {
            proxy.handle_timeout(now, stack);
        });
        if let Some(forwarder) = &self.forwarder {
            forwarder.calls.expire(now);
        }
        self.expire_lookups(now);
        self.probes.handle_timeout(transactions);
        self.trunk_registrations.handle_timeout(transactions);
        self.expire_bindings(now);
        self.report_changes(transactions);
        if let Some(events) = &mut self.events {
            let _ = (0..MAX_EXPIRED)
                .take_while(|_| events.handle_timeout(transactions))
                .count();
        }
    }
}
