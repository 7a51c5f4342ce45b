//! The state of SIP for an operator: registration bindings, which can be removed, calls, and trunks.
//!
//! ```text
//!  SipInspector ── SipQuery ──▶ mailbox of a worker ──▶ Sip::answer_query
//!       ▲                                                     │
//!       └────────────────── bounded part of the answer ◀──────┘
//! ```
//!
//! A worker examines a bounded number of table places and bytes per query. So a table of a million bindings does not
//! delay SIP messages. The caller sends another query for the next part.

use super::Sip;
use super::nodes::MovedBinding;
use super::trace::TracedMessage;
use crate::mailbox::Mailbox;
use crate::observer::Observer;
use crate::worker::{WorkerMessage, now};
use sip::Mono;
use sip::flow::Transport;
use sip_server::Aor;
use sip_server::calls::{CallRecord, DialogsCursor, Leg};
use sip_server::location::{Binding, Found, Location as _};
use sip_server::routes::{AddressStatus, TrunkCounts};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// How many places of the binding table a worker examines per query, and how many bytes of text it copies. Both
/// together last less than 1 ms.
const PLACES_PER_QUERY: usize = 512;
const BYTES_PER_QUERY: usize = 64 << 10;

/// How many answered calls, or places of the table of contexts of the proxy, a worker examines per query.
const CALLS_PER_QUERY: usize = 256;

/// The maximum of replaced bindings per message to a worker.
const BINDINGS_PER_MESSAGE: usize = 256;

/// The maximum length of a text in a list. A registrar accepts longer texts. The list has their beginning.
const MAX_TEXT_BYTES: usize = 1024;

/// How long a worker may take to respond to a query.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time between two attempts to post to a full mailbox.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// Why a query about the state of SIP failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// A worker did not respond in time.
    #[error(
        "worker {0} did not respond to a query about SIP within 2 s: it has ended or is overloaded; try again"
    )]
    Busy(usize),
    /// No messages are kept.
    #[error("the server keeps no SIP messages: set sip.trace_memory, such as \"8MiB\", and reload")]
    NoTrace,
    /// A text is not an address of record.
    #[error("`{0}` is not an address of record: write USER@DOMAIN")]
    NotAnAddress(String),
}

/// Where the next part of a list of bindings begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BindingsCursor {
    /// The number of the worker, from 0.
    pub worker: usize,
    /// The place in its table.
    pub place: usize,
}

/// A part of the list of bindings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BindingsPage {
    /// Bindings. Those of one address of record follow each other.
    pub bindings: Vec<BindingInfo>,
    /// Where the next part begins; `None` at the end of the list.
    pub next: Option<BindingsCursor>,
}

/// A registration binding. Texts are cut after 1024 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindingInfo {
    /// The address of record.
    pub aor: String,
    /// The URI of the contact.
    pub contact: String,
    /// The instance of the user agent (RFC 5626); empty if there is none.
    pub instance: String,
    /// `reg-id` (RFC 5626), if there is one.
    pub reg_id: Option<u32>,
    /// The priority of the contact in thousandths, if it has one.
    pub q: Option<u16>,
    /// The values of Path (RFC 3327); empty if there is none.
    pub path: String,
    /// The flow of the REGISTER, if it came directly from the user agent.
    pub flow: Option<BindingFlow>,
    /// Time until the binding ends.
    pub expires: Duration,
    /// Time since the last REGISTER.
    pub age: Duration,
    /// The Call-ID of the last REGISTER.
    pub call_id: String,
    /// The beginning of User-Agent of the last REGISTER; empty if it had none.
    pub agent: String,
    /// The number of the worker that has the binding.
    pub worker: usize,
}

/// The flow of a binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BindingFlow {
    /// The transport.
    pub transport: Transport,
    /// The address of the user agent, or of its NAT.
    pub remote: SocketAddr,
    /// The address of this server.
    pub local: SocketAddr,
}

/// Where the next part of a list of calls begins. Calls that are not answered come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallsCursor {
    /// Calls that are not answered: the worker, from 0, and the place in its table.
    Ringing(usize, usize),
    /// Answered calls, whose table all workers share: the part of the table, and the first dialog of that part that is
    /// not listed yet.
    Answered(usize, u64),
}

impl Default for CallsCursor {
    fn default() -> CallsCursor {
        CallsCursor::Ringing(0, 0)
    }
}

/// A part of the list of calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallsPage {
    /// Calls.
    pub calls: Vec<CallInfo>,
    /// Where the next part begins; `None` at the end of the list.
    pub next: Option<CallsCursor>,
}

/// A call in progress. Only recorded calls are listed ([`CallSettings::log`](super::CallSettings::log)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallInfo {
    /// The Call-ID.
    pub call_id: String,
    /// The URI in From.
    pub from: String,
    /// The Request-URI of the caller.
    pub to: String,
    /// The trunk or the user that has sent the INVITE; empty for other senders.
    pub source: String,
    /// Where the INVITE came from.
    pub source_leg: Leg,
    /// The trunk or the user that has answered; empty before the answer.
    pub target: String,
    /// Where the answer came from.
    pub target_leg: Option<Leg>,
    /// How many copies of the INVITE the proxy has sent.
    pub tried: u8,
    /// The copies that have failed, see [`CallLine::failed`](sip_server::calls::CallLine::failed).
    pub failed: String,
    /// When the INVITE came, in seconds since 1970.
    pub began_unix_s: u64,
    /// Time since then.
    pub lasted: Duration,
    /// Time from the INVITE to the first provisional response above 100.
    pub rang: Option<Duration>,
    /// Time from the INVITE to the first 2xx.
    pub answered: Option<Duration>,
    /// Time until the call ends without a refresh or a BYE; `None` before the answer.
    pub left: Option<Duration>,
}

/// A trunk at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrunkInfo {
    /// Its name; empty if it has none.
    pub name: String,
    /// Its addresses in the order of the configuration.
    pub addresses: Vec<TrunkAddress>,
    /// Whether it accepts the registration of this server; `None` if the server does not register there.
    pub is_registered: Option<bool>,
    /// Its counters.
    pub counts: TrunkCounts,
}

/// An address of a trunk at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrunkAddress {
    /// The URI in the configuration.
    pub uri: String,
    /// Its status.
    pub status: AddressStatus,
}

/// Where the next part of a trace begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TraceCursor {
    /// The number of the worker, from 0.
    pub worker: usize,
    /// The number of the first message at this worker.
    pub number: u64,
}

/// A part of the messages of a call. Those of one worker are in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TracePage {
    /// The messages.
    pub messages: Vec<TracedMessage>,
    /// Where the next part begins; `None` at the end.
    pub next: Option<TraceCursor>,
}

/// Messages of a call at one worker, and the next number; `None` if the worker keeps no messages.
type TraceResult = Option<(Vec<TracedMessage>, Option<u64>)>;

/// A query to a worker.
#[derive(Debug)]
pub(crate) enum SipQuery {
    /// Bindings from a place on, or those of one address of record.
    Bindings {
        first: usize,
        aor: Option<Box<Aor>>,
        /// The bindings, and the next place.
        reply: SyncSender<(Vec<BindingInfo>, Option<usize>)>,
    },
    /// Removes the bindings of an address of record with this contact, or all of them.
    RemoveBindings {
        aor: Box<Aor>,
        contact: Option<String>,
        /// How many were removed.
        reply: SyncSender<usize>,
    },
    /// Removes bindings whose phones have registered at other nodes, each with its address of record.
    RemoveMoved(Arc<[(Aor, MovedBinding)]>),
    /// Calls from a place on. A query for calls that are not answered goes to the worker in the place; any worker can
    /// list answered calls.
    Calls {
        place: CallsCursor,
        reply: SyncSender<CallsPage>,
    },
    /// Messages with a Call-ID from a number on.
    Trace {
        call_id: Box<[u8]>,
        first: u64,
        reply: SyncSender<TraceResult>,
    },
}

/// Queries the state of SIP of a running server. Clones refer to the same server. Its methods block until workers
/// respond: do not call them on a worker's thread.
#[derive(Debug, Clone)]
pub struct SipInspector {
    boxes: Arc<[Mailbox<WorkerMessage>]>,
    observer: Observer,
}

impl SipInspector {
    pub(crate) fn new(boxes: Arc<[Mailbox<WorkerMessage>]>, observer: Observer) -> SipInspector {
        SipInspector { boxes, observer }
    }

    /// A part of the list of all bindings. If a binding exists from the first part to the last one, the parts list it
    /// exactly once.
    ///
    /// # Errors
    /// [`InspectError::Busy`].
    pub fn bindings(&self, place: BindingsCursor) -> Result<BindingsPage, InspectError> {
        let BindingsCursor { worker, place } = place;
        if worker >= self.boxes.len() {
            return Ok(BindingsPage::default());
        }
        let (bindings, next) = self.ask_bindings(worker, place, None)?;
        let next = match next {
            Some(place) => Some(BindingsCursor { worker, place }),
            None => Some(worker + 1)
                .filter(|next| *next < self.boxes.len())
                .map(|worker| BindingsCursor { worker, place: 0 }),
        };
        Ok(BindingsPage { bindings, next })
    }

    /// The bindings of one address of record, such as `alice@example.org`.
    ///
    /// # Errors
    /// [`InspectError`].
    pub fn bindings_of(&self, aor: &str) -> Result<Vec<BindingInfo>, InspectError> {
        let not_one = || InspectError::NotAnAddress(aor.to_owned());
        let canonical = canonical(aor).ok_or_else(not_one)?;
        let mut all = Vec::new();
        for worker in 0..self.boxes.len() {
            let (bindings, _) = self.ask_bindings(worker, 0, Some(canonical))?;
            all.extend(bindings);
        }
        Ok(all)
    }

    /// Removes the bindings of one address of record: those whose contact has this URI, or all of them. Returns how
    /// many were removed. Subscribers get a NOTIFY; the user agents do not, and register again when they refresh.
    ///
    /// # Errors
    /// [`InspectError`].
    pub fn remove_bindings(&self, aor: &str, contact: Option<&str>) -> Result<usize, InspectError> {
        let not_one = || InspectError::NotAnAddress(aor.to_owned());
        let canonical = canonical(aor).ok_or_else(not_one)?;
        let mut removed = 0;
        for worker in 0..self.boxes.len() {
            let (reply, answer) = sync_channel(1);
            self.post(
                worker,
                SipQuery::RemoveBindings {
                    aor: Box::new(canonical),
                    contact: contact.map(str::to_owned),
                    reply,
                },
            )?;
            let answer = answer.recv_timeout(RESPONSE_TIMEOUT);
            removed += answer.map_err(|_| InspectError::Busy(worker))?;
        }
        Ok(removed)
    }

    /// Removes bindings whose phones have registered at other nodes, each with its address of record. Waits for the
    /// mailboxes of the workers, and for no response.
    ///
    /// # Errors
    /// [`InspectError::Busy`], if a worker does not get all of them. The other workers do.
    pub fn remove_moved(&self, all: &[(&[u8], MovedBinding)]) -> Result<(), InspectError> {
        let all = all.iter().filter_map(|(aor, moved)| {
            let aor = Aor::from_canonical(aor)?;
            Some((aor, *moved))
        });
        let all: Vec<_> = all.collect();
        let mut outcome = Ok(());
        for part in all.chunks(BINDINGS_PER_MESSAGE) {
            let part: Arc<[_]> = part.into();
            for worker in 0..self.boxes.len() {
                let sent = self.post(worker, SipQuery::RemoveMoved(Arc::clone(&part)));
                outcome = outcome.and(sent);
            }
        }
        outcome
    }

    fn ask_bindings(
        &self,
        worker: usize,
        first: usize,
        aor: Option<Aor>,
    ) -> Result<(Vec<BindingInfo>, Option<usize>), InspectError> {
        let (reply, answer) = sync_channel(1);
        self.post(
            worker,
            SipQuery::Bindings {
                first,
                aor: aor.map(Box::new),
                reply,
            },
        )?;
        let answer = answer.recv_timeout(RESPONSE_TIMEOUT);
        let (mut bindings, next) = answer.map_err(|_| InspectError::Busy(worker))?;
        for binding in &mut bindings {
            binding.worker = worker;
        }
        Ok((bindings, next))
    }

    /// A part of the list of calls in progress that are recorded.
    ///
    /// # Errors
    /// [`InspectError::Busy`].
    pub fn calls(&self, place: CallsCursor) -> Result<CallsPage, InspectError> {
        let worker = match place {
            CallsCursor::Ringing(worker, _) => worker,
            CallsCursor::Answered(..) => 0,
        };
        if worker >= self.boxes.len() {
            return Ok(CallsPage::default());
        }
        let (reply, answer) = sync_channel(1);
        self.post(worker, SipQuery::Calls { place, reply })?;
        let answer = answer.recv_timeout(RESPONSE_TIMEOUT);
        let mut page = answer.map_err(|_| InspectError::Busy(worker))?;
        if let (CallsCursor::Ringing(..), None) = (place, page.next) {
            page.next = Some(match worker + 1 < self.boxes.len() {
                true => CallsCursor::Ringing(worker + 1, 0),
                false => CallsCursor::Answered(0, 0),
            });
        }
        Ok(page)
    }

    /// A part of the messages with this Call-ID that the workers still have.
    ///
    /// # Errors
    /// [`InspectError::Busy`], [`InspectError::NoTrace`].
    pub fn trace(&self, call_id: &str, place: TraceCursor) -> Result<TracePage, InspectError> {
        let TraceCursor { worker, number } = place;
        if worker >= self.boxes.len() {
            return Ok(TracePage::default());
        }
        let (reply, answer) = sync_channel(1);
        self.post(
            worker,
            SipQuery::Trace {
                call_id: call_id.as_bytes().into(),
                first: number,
                reply,
            },
        )?;
        let answer = answer.recv_timeout(RESPONSE_TIMEOUT);
        let traced = answer.map_err(|_| InspectError::Busy(worker))?;
        let (mut messages, next) = traced.ok_or(InspectError::NoTrace)?;
        for message in &mut messages {
            message.worker = worker;
        }
        let place = |(worker, number)| TraceCursor { worker, number };
        let after = Some((worker + 1, 0)).filter(|(worker, _)| *worker < self.boxes.len());
        let next = next.map(|number| (worker, number)).or(after).map(place);
        Ok(TracePage { messages, next })
    }

    fn post(&self, worker: usize, query: SipQuery) -> Result<(), InspectError> {
        let mailbox = self.boxes.get(worker).ok_or(InspectError::Busy(worker))?;
        let mut message = WorkerMessage::SipQuery(Box::new(query));
        let until = Instant::now() + RESPONSE_TIMEOUT;
        loop {
            match mailbox.post(message) {
                Ok(()) => return Ok(()),
                Err(_) if Instant::now() >= until => return Err(InspectError::Busy(worker)),
                Err(back) => message = back,
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }

    /// The trunks of the current settings. Sends no query to a worker.
    #[must_use]
    pub fn trunks(&self) -> Vec<TrunkInfo> {
        let now = now().mono;
        let routes = self.observer.sip_routes();
        let trunks = routes.trunks().map(|(trunk, health)| {
            let uris = trunk.to.iter().map(|to| to.as_str().to_owned());
            let addresses = uris.zip(health.addresses(now));
            TrunkInfo {
                name: trunk.name.clone(),
                addresses: addresses
                    .map(|(uri, status)| TrunkAddress { uri, status })
                    .collect(),
                is_registered: trunk.register.as_ref().map(|_| health.is_registered()),
                counts: health.counts(now),
            }
        });
        trunks.collect()
    }
}

/// `alice@example.org` or `sip:alice@example.org` as an address of record.
fn canonical(text: &str) -> Option<Aor> {
    let uri = match text.get(..4) {
        Some(scheme) if scheme.eq_ignore_ascii_case("sip:") => text.to_owned(),
        _ => format!("sip:{text}"),
    };
    let (_, domain) = uri.rsplit_once('@')?;
    let domain = domain.to_ascii_lowercase();
    match sip::uri::Uri::parse(uri.as_bytes()) {
        Ok(sip::uri::Uri::Sip(parsed)) => Aor::of(&parsed, domain.as_bytes()),
        _ => None,
    }
}

impl Sip {
    /// Runs a query of another thread, and sends the result.
    pub(crate) fn answer_query(&mut self, query: SipQuery) {
        match query {
            SipQuery::Bindings { first, aor, reply } => {
                let answer = self.bindings(first, aor.as_deref());
                // The thread that sent the query may not wait any more.
                let _ = reply.try_send(answer);
            }
            SipQuery::RemoveBindings {
                aor,
                contact,
                reply,
            } => {
                let removed = self.endpoint.remove_bindings(&aor, contact.as_deref());
                let _ = reply.try_send(removed);
            }
            SipQuery::RemoveMoved(all) => {
                for (aor, moved) in all.iter() {
                    self.endpoint.remove_moved(aor, moved);
                }
            }
            SipQuery::Calls { place, reply } => drop(reply.try_send(self.calls(place))),
            SipQuery::Trace {
                call_id,
                first,
                reply,
            } => {
                let endpoint = &self.endpoint;
                let trace = endpoint.trace.as_ref().filter(|trace| trace.keeps());
                let limits = &endpoint.limits;
                drop(reply.try_send(trace.map(|trace| trace.of_call(&call_id, first, limits))));
            }
        }
    }

    fn calls(&self, place: CallsCursor) -> CallsPage {
        let now = self.endpoint.now.mono;
        let mut page = CallsPage::default();
        let Some(forwarder) = self.endpoint.forwarder() else {
            return page;
        };
        let calls = &mut page.calls;
        page.next = match place {
            CallsCursor::Ringing(worker, first) => {
                let mut list = |record: &CallRecord| calls.push(call(record, now, None));
                let next = forwarder
                    .proxy
                    .list_calls(first, CALLS_PER_QUERY, &mut list);
                next.map(|next| CallsCursor::Ringing(worker, next))
            }
            CallsCursor::Answered(part, from) => {
                let mut list =
                    |record: &CallRecord, left| calls.push(call(record, now, Some(left)));
                let place = DialogsCursor { part, from };
                let next = forwarder.calls.list(now, place, CALLS_PER_QUERY, &mut list);
                next.map(|next| CallsCursor::Answered(next.part, next.from))
            }
        };
        page
    }

    fn bindings(&mut self, first: usize, aor: Option<&Aor>) -> (Vec<BindingInfo>, Option<usize>) {
        let now = self.endpoint.now.mono;
        let mut infos = Vec::new();
        let Some(kept) = self.endpoint.kept() else {
            return (infos, None);
        };
        if let Some(aor) = aor {
            if let Found::Bindings(_, bindings) = kept.find(aor) {
                let live = bindings.iter().filter(|binding| !binding.is_expired(now));
                infos.extend(live.map(|it| info(aor.as_bytes(), it, now)));
            }
            return (infos, None);
        }
        let (mut next, mut bytes) = (first, 0);
        let end = first.saturating_add(PLACES_PER_QUERY);
        while next < end && bytes < BYTES_PER_QUERY {
            let Some(part) = kept.part(next, 1) else {
                return (infos, None);
            };
            for (aor, bindings) in part {
                let live = bindings.iter().filter(|binding| !binding.is_expired(now));
                for binding in live {
                    bytes += aor.len() + binding.text_len();
                    infos.push(info(aor, binding, now));
                }
            }
            next += 1;
        }
        (infos, Some(next))
    }
}

fn call(record: &CallRecord, now: Mono, left: Option<Duration>) -> CallInfo {
    let line = record.line(now);
    CallInfo {
        call_id: text(line.call_id),
        from: text(line.from),
        to: text(line.to),
        source: text(line.source),
        source_leg: line.source_leg,
        // Before the answer, the record has the target of the best failure so far.
        target: line.answered.map(|_| text(line.target)).unwrap_or_default(),
        target_leg: line.answered.and(line.target_leg),
        tried: line.tried,
        failed: text(line.failed),
        began_unix_s: line.began_unix_s,
        lasted: line.lasted,
        rang: line.rang,
        answered: line.answered,
        left,
    }
}

fn info(aor: &[u8], binding: &Binding, now: Mono) -> BindingInfo {
    let flow = binding.flow().map(|id| BindingFlow {
        transport: id.flow.transport,
        remote: id.flow.remote,
        local: id.flow.local,
    });
    BindingInfo {
        aor: text(aor),
        contact: text(binding.uri()),
        instance: text(binding.instance()),
        reg_id: Some(binding.reg_id()).filter(|id| *id != 0),
        q: binding.q(),
        path: text(binding.path()),
        flow,
        expires: binding.expires().since(now),
        age: now.since(binding.updated()),
        call_id: text(binding.call_id()),
        agent: text(binding.agent()),
        worker: 0,
    }
}

fn text(bytes: &[u8]) -> String {
    let cut = bytes.get(..MAX_TEXT_BYTES).unwrap_or(bytes);
    String::from_utf8_lossy(cut).into_owned()
}
