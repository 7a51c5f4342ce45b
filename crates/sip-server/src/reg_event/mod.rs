//! The registration event package (RFC 3680): subscribers of an address of record are notified when a contact is added
//! or removed.
//!
//! ```text
//!  SUBSCRIBE ── subscribe, refresh ──> RegEvents ── 200, NOTIFY (all contacts) ──> subscriber
//!  bindings ─── changed ─────────────>    │  ────── NOTIFY (what has changed) ───> subscriber
//!  time ─────── handle_timeout ──────>    └─ ────── NOTIFY (terminated) ─────────> subscriber
//! ```
//!
//! The worker that has the bindings of an address also has its subscriptions, so it gets all changes. Its NOTIFY
//! requests use the flow of the SUBSCRIBE, also if another worker has this flow. Subscriptions are in memory: after a
//! restart a refresh gets 481, and the subscriber subscribes again (RFC 6665 §4.1.2.2).
//!
//! **The invariant:** while a NOTIFY waits for its final response, the subscriber gets no other one, except the last
//! (terminated). If something changes meanwhile, the next NOTIFY has the full state.

mod contacts;
mod dialog;
mod document;

pub use contacts::Cause;

use std::collections::HashMap;

use sip::build::{Builder, decimal};
use sip::congestion::{Class, ProofFields, RequestProof};
use sip::dispatch::{AllowedDestination, OutgoingRequest, SendFrom};
use sip::engine::{Mark, NewRequest, Reply, RespondError};
use sip::flow::Flow;
use sip::header::HeaderKind;
use sip::tu::Transactions;
use sip::{HashKey, Message, Mono};
use timers::Wheel;

use crate::Aor;
use crate::location::Binding;
use contacts::{Contact, Contacts, Event};
use dialog::{Head, SubscriptionId, Tags, record_routes};

/// Recognizes requests within subscriptions by their To tag, in an overload.
#[derive(Clone, Copy, Debug)]
pub struct SubscriptionProof {
    tags: Tags,
}

impl SubscriptionProof {
    /// With the key of [`RegEvents::new`].
    #[must_use]
    pub fn new(key: HashKey) -> SubscriptionProof {
        SubscriptionProof {
            tags: Tags::new(key),
        }
    }
}

impl RequestProof for SubscriptionProof {
    fn is_of_dialog(&self, request: &ProofFields<'_>) -> bool {
        let (tag, from_tag) = (request.to_tag, request.from_tag);
        self.tags.read_tag(tag, request.call_id, from_tag).is_some()
    }
}

/// The resolution of the end of a subscription.
const TICK_NS: u64 = 1_000_000_000;

/// RFC 6665 §4.2.1.1: no interval of an hour or more is refused.
const HOUR: u32 = 3600;

/// The name of the package.
pub const PACKAGE: &[u8] = b"reg";

/// The header line with which a notifier of registrations announces the package.
pub const ALLOW_EVENTS: &[u8] = b"Allow-Events: reg\r\n";

/// The bounds of subscriptions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The shortest subscription in seconds, at most an hour; shorter ones get 423. Default 60.
    pub min_expires: u32,
    /// The length of a subscription whose SUBSCRIBE has no Expires, in seconds. Default 3761 (RFC 3680 §4.4).
    pub default_expires: u32,
    /// The longest subscription in seconds. Default a day.
    pub max_expires: u32,
    /// Subscriptions to one address of record. Default 16.
    pub per_address: usize,
    /// Subscriptions in all. Default 65,536.
    pub most: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            min_expires: 60,
            default_expires: 3761,
            max_expires: 86_400,
            per_address: 16,
            most: 65_536,
        }
    }
}

/// One subscription.
#[derive(Debug)]
struct Subscription {
    aor: Aor,
    head: Head,
    /// The Record-Route fields of the SUBSCRIBE that began it.
    record_routes: Box<[u8]>,
    flow: Flow,
    /// CSeq of the last NOTIFY, and of the last SUBSCRIBE.
    cseq: u32,
    remote_cseq: u32,
    /// The version of the next document.
    version: u32,
    expires: Mono,
    /// A NOTIFY has no final response yet.
    is_waiting: bool,
    /// Something has changed since that NOTIFY.
    is_behind: bool,
}

/// An address of record with subscriptions.
#[derive(Debug, Default)]
struct WatchedAor {
    contacts: Contacts,
    /// The slots of its subscriptions.
    slots: Vec<u32>,
}

/// The state that a NOTIFY says a subscription is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Active,
    TimedOut,
}

/// The subscriptions of one worker.
#[derive(Debug)]
pub struct RegEvents {
    config: Config,
    tags: Tags,
    /// The number of the worker.
    number: u16,
    /// The first byte of the marks of its transactions.
    user: u8,
    /// By address of record.
    watched: HashMap<Box<[u8]>, WatchedAor>,
    /// The generation of each slot, and its subscription.
    slots: Vec<(u32, Option<Box<Subscription>>)>,
    /// The empty slots.
    free: Vec<u32>,
    /// Times at which subscriptions end, by slot.
    wheel: Wheel<TICK_NS>,
    /// Buffers for the body and the header of a NOTIFY.
    body: Vec<u8>,
    lines: Vec<u8>,
}

impl RegEvents {
    /// The subscriptions of worker `number`. All workers of this run have the same `key`. The marks of its transactions
    /// begin with `user`.
    #[must_use]
    pub fn new(config: Config, key: HashKey, number: u16, user: u8) -> RegEvents {
        RegEvents {
            config,
            tags: Tags::new(key),
            number,
            user,
            watched: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            wheel: Wheel::new(),
            body: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Subscriptions that there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a request is about this package. A SUBSCRIBE has one Event (RFC 6665 §8.2.1).
    #[must_use]
    pub fn is_asked(message: &Message<'_>) -> bool {
        let event = message.header(HeaderKind::Event);
        let package = event.and_then(|event| event.value.split(|byte| *byte == b';').next());
        package.is_some_and(|package| package.trim_ascii() == PACKAGE)
    }

    /// The worker that has the subscription whose dialog a request is in; `None` if it is in none.
    #[must_use]
    pub fn worker_of(&self, request: &NewRequest<'_>) -> Option<u16> {
        self.tags.read(request).map(|id| id.worker)
    }

    /// The address of record of the subscription that this request belongs to, by its To tag. `None` if this worker has
    /// no such subscription.
    #[must_use]
    pub fn address_of(&self, request: &NewRequest<'_>) -> Option<Aor> {
        let id = self.tags.read(request)?;
        let subscription = self.get(id).filter(|_| id.worker == self.number)?;
        Some(subscription.aor)
    }

    /// Begins a subscription to this address of record: responds, and sends the first NOTIFY. The caller has checked
    /// that the sender may subscribe. `contact` is the header line Contact with the URI of this server.
    ///
    /// # Errors
    /// [`RespondError`].
    pub fn subscribe(
        &mut self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
        aor: &Aor,
        bindings: &[Binding],
        contact: &[u8],
    ) -> Result<(), RespondError> {
        let expires = match self.length_of(&request.message) {
            Ok(expires) => expires,
            Err(refusal) => return refusal.answer(transactions, request),
        };
        let watched = self.watched.get(aor.as_bytes());
        let others = watched.map_or(0, |watched| watched.slots.len());
        if self.len() >= self.config.most || others >= self.config.per_address {
            return Refusal::of(503, b"Retry-After: 60\r\n").answer(transactions, request);
        }
        let slot = self.free.last().copied();
        let slot = slot.unwrap_or(self.slots.len() as u32);
        let generation = self.slots.get(slot as usize).map_or(0, |(it, _)| *it);
        let id = SubscriptionId {
            worker: self.number,
            slot,
            generation,
        };
        let tag = self.tags.write(id, &request);
        let record_routes = record_routes(&request.message);
        let Some(head) = Head::of(&request, &tag, contact, &record_routes) else {
            return Refusal::of(400, b"").answer(transactions, request);
        };
        // Reports bindings that have expired since the last change to the existing subscribers.
        self.changed(transactions, aor, bindings, Cause::Register);
        let now = transactions.now.mono;
        let subscription = Subscription {
            aor: *aor,
            head,
            record_routes: record_routes.into(),
            flow: request.flow,
            cseq: 0,
            remote_cseq: request.message.cseq().map_or(0, |cseq| cseq.number),
            version: 0,
            expires: now.plus(std::time::Duration::from_secs(expires.into())),
            is_waiting: false,
            is_behind: false,
        };
        self.insert(slot, subscription);
        let watched = self.watched.entry(aor.as_bytes().into()).or_default();
        watched.slots.push(slot);
        watched.contacts.update(bindings, Cause::Register, now);
        self.accept(transactions, request, (&tag, contact), expires)?;
        self.notify_after_subscribe(transactions, slot, expires);
        Ok(())
    }

    /// Handles a SUBSCRIBE in the dialog of a subscription of this worker: responds, and sends a NOTIFY. Zero in
    /// Expires ends the subscription. The caller must first authenticate the sender as the user of
    /// [`RegEvents::address_of`] (RFC 6665 §6.3).
    ///
    /// # Errors
    /// [`RespondError`].
    pub fn refresh(
        &mut self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
        contact: &[u8],
    ) -> Result<(), RespondError> {
        let id = self.tags.read(&request);
        let id = id.filter(|id| id.worker == self.number && self.get(*id).is_some());
        let Some(SubscriptionId { slot, .. }) = id else {
            return Refusal::of(481, b"").answer(transactions, request);
        };
        if !RegEvents::is_asked(&request.message) {
            return Refusal::of(489, ALLOW_EVENTS).answer(transactions, request);
        }
        let expires = match self.length_of(&request.message) {
            Ok(expires) => expires,
            Err(refusal) => return refusal.answer(transactions, request),
        };
        let tag = request.to_tag().unwrap_or_default().to_vec();
        let cseq = request.message.cseq().map_or(0, |cseq| cseq.number);
        let routes = self.at(slot).map(|it| &*it.record_routes);
        let head = Head::of(&request, &tag, contact, routes.unwrap_or_default());
        let (flow, now) = (request.flow, transactions.now.mono);
        let Some(subscription) = self.at(slot) else {
            return Ok(());
        };
        // RFC 3261 §12.2.2.
        if cseq <= subscription.remote_cseq {
            return Refusal::of(500, b"").answer(transactions, request);
        }
        let Some(head) = head else {
            return Refusal::of(400, b"").answer(transactions, request);
        };
        subscription.remote_cseq = cseq;
        // The target may be another one, and so may the flow (RFC 6665 §4.1.2.2).
        subscription.head = head;
        subscription.flow = flow;
        let length = std::time::Duration::from_secs(expires.into());
        subscription.expires = now.plus(length);
        let expires_at = subscription.expires;
        self.wheel.set(slot, expires_at);
        self.accept(transactions, request, (&tag, contact), expires)?;
        self.notify_after_subscribe(transactions, slot, expires);
        Ok(())
    }

    /// Notifies the subscribers of an address of record that it has these bindings now. `cause` says why bindings were
    /// removed.
    pub fn changed(
        &mut self,
        transactions: &mut Transactions<'_>,
        aor: &Aor,
        bindings: &[Binding],
        cause: Cause,
    ) {
        let now = transactions.now.mono;
        let Some(watched) = self.watched.get_mut(aor.as_bytes()) else {
            return;
        };
        let changes = watched.contacts.update(bindings, cause, now);
        if changes.is_empty() {
            return;
        }
        for slot in watched.slots.clone() {
            let Some(subscription) = self.at(slot) else {
                continue;
            };
            if std::mem::replace(&mut subscription.is_behind, true) || subscription.is_waiting {
                continue;
            }
            let listed: Vec<(&Contact, Event)> =
                changes.iter().map(|(it, event)| (it, *event)).collect();
            self.notify(transactions, slot, State::Active, Some(&listed));
        }
    }

    /// Whether anybody has subscribed to an address of record.
    #[must_use]
    pub fn has_subscribers(&self, aor: &Aor) -> bool {
        self.watched.contains_key(aor.as_bytes())
    }

    /// Handles a response to the NOTIFY with this mark. If something has changed meanwhile, sends the next NOTIFY.
    pub fn response(&mut self, transactions: &mut Transactions<'_>, mark: Mark, code: u16) {
        let Some(slot) = self.slot_of(mark).filter(|_| code >= 200) else {
            return;
        };
        if ends_subscription(code) {
            return self.remove(slot);
        }
        let Some(subscription) = self.at(slot) else {
            return;
        };
        subscription.is_waiting = false;
        if subscription.is_behind {
            self.notify(transactions, slot, State::Active, None);
        }
    }

    /// Ends the subscription whose NOTIFY with this mark got no response.
    pub fn failed(&mut self, mark: Mark) {
        if let Some(slot) = self.slot_of(mark) {
            self.remove(slot);
        }
    }

    /// When to call [`RegEvents::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        self.wheel.next_deadline()
    }

    /// Ends one subscription whose time is over. Returns whether there may be more.
    pub fn handle_timeout(&mut self, transactions: &mut Transactions<'_>) -> bool {
        let now = transactions.now.mono;
        let Some(slot) = self.wheel.pop_due(now) else {
            return false;
        };
        match self.at(slot).map(|subscription| subscription.expires) {
            Some(expires) if expires > now => self.wheel.set(slot, expires),
            Some(_) => {
                self.notify(transactions, slot, State::TimedOut, None);
                self.remove(slot);
            }
            None => {}
        }
        true
    }

    /// How long the subscription of a SUBSCRIBE lasts, in seconds; or the response that refuses it.
    fn length_of(&self, message: &Message<'_>) -> Result<u32, Refusal> {
        let mut unknown = message.require().filter_map(Result::ok).peekable();
        if unknown.peek().is_some() {
            // Unsupported has at most as many bytes as Require.
            let requires = message.headers(HeaderKind::Require);
            let length: usize = requires.map(|it| it.value.len() + 2).sum();
            let mut buffer = vec![0; length + 64];
            let mut lines = Builder::fields(&mut buffer);
            lines.list(HeaderKind::Unsupported, unknown);
            return Err(Refusal::of(420, lines.finish_fields().unwrap_or_default()));
        }
        if message.contact().ok().flatten().is_none() {
            return Err(Refusal::of(400, b""));
        }
        if !is_accepted(message) {
            return Err(Refusal::of(406, b""));
        }
        let Config {
            min_expires,
            default_expires,
            max_expires,
            ..
        } = self.config;
        match message.expires() {
            Err(_) => Err(Refusal::of(400, b"")),
            Ok(None) => Ok(default_expires.min(max_expires)),
            Ok(Some(seconds)) if (1..min_expires.min(HOUR)).contains(&seconds) => {
                let mut digits = [0; 10];
                let least = decimal(min_expires, &mut digits);
                let line = [b"Min-Expires: ", least, b"\r\n"].concat();
                Err(Refusal::of(423, &line))
            }
            Ok(Some(seconds)) => Ok(seconds.min(max_expires)),
        }
    }

    /// Responds with 200. `tag` is the To tag if this SUBSCRIBE begins the dialog. `contact` is the header line
    /// Contact.
    fn accept(
        &mut self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
        (tag, contact): (&[u8], &[u8]),
        expires: u32,
    ) -> Result<(), RespondError> {
        let mut digits = [0; 10];
        let seconds = decimal(expires, &mut digits);
        let lines = [b"Expires: ", seconds, b"\r\n", contact, ALLOW_EVENTS].concat();
        let reply = Reply::new(200).headers(&lines);
        let reply = match request.to_tag() {
            Some(_) => reply,
            None => reply.to_tag(tag),
        };
        transactions.answer(request, &reply).map(drop)
    }

    /// Sends the NOTIFY that follows each accepted SUBSCRIBE at once, with the full state (RFC 6665 §4.2.1.2). If
    /// another NOTIFY has no final response yet, this one waits for it. If `expires` is 0, this NOTIFY does not wait,
    /// and it ends the subscription.
    fn notify_after_subscribe(
        &mut self,
        transactions: &mut Transactions<'_>,
        slot: u32,
        expires: u32,
    ) {
        if expires == 0 {
            self.notify(transactions, slot, State::TimedOut, None);
            return self.remove(slot);
        }
        let Some(subscription) = self.at(slot) else {
            return;
        };
        if subscription.is_waiting {
            subscription.is_behind = true;
        } else {
            self.notify(transactions, slot, State::Active, None);
        }
    }

    /// Sends a NOTIFY with these changes; `None`: with the full state.
    fn notify(
        &mut self,
        transactions: &mut Transactions<'_>,
        slot: u32,
        state: State,
        changes: Option<&[(&Contact, Event)]>,
    ) {
        let now = transactions.now.mono;
        let mark = self.mark_of(slot);
        let (mut body, mut lines) = (
            std::mem::take(&mut self.body),
            std::mem::take(&mut self.lines),
        );
        body.clear();
        lines.clear();
        if let Some((_, Some(subscription))) = self.slots.get_mut(slot as usize)
            && let Some(watched) = self.watched.get(subscription.aor.as_bytes())
        {
            let all = watched.contacts.list();
            let document = (subscription.version, changes.is_none());
            let is_active = !watched.contacts.all.is_empty();
            let listed = changes.unwrap_or(&all);
            document::write(
                &mut body,
                document,
                &subscription.aor,
                is_active,
                listed,
                now,
            );
            subscription.version += 1;
            subscription.cseq += 1;
            subscription.is_waiting = true;
            subscription.is_behind = false;
            let left = subscription.expires.since(now).as_secs();
            write_lines(&mut lines, subscription, (state, left), body.len());
            let flow = subscription.flow;
            let order = OutgoingRequest {
                target: &subscription.head.next_hop,
                pieces: &[&lines, &body],
                class: Class::Continuing,
                mark,
                reach: AllowedDestination::Near(flow.remote.ip()),
                loop_check: None,
                flow: Some(flow),
                from: Some(SendFrom {
                    listener: flow.listener,
                    local: Some(flow.local),
                }),
            };
            if transactions.send(&order).is_err() {
                // This NOTIFY is lost. The next refresh sends the full state; without one, the subscription expires.
                subscription.is_waiting = false;
            }
        }
        (self.body, self.lines) = (body, lines);
    }

    fn insert(&mut self, slot: u32, subscription: Subscription) {
        let expires = subscription.expires;
        let boxed = Some(Box::new(subscription));
        match self.slots.get_mut(slot as usize) {
            Some((_, place)) => {
                self.free.pop();
                *place = boxed;
            }
            None => self.slots.push((0, boxed)),
        }
        self.wheel.set(slot, expires);
    }

    fn remove(&mut self, slot: u32) {
        let Some((generation, place)) = self.slots.get_mut(slot as usize) else {
            return;
        };
        let Some(subscription) = place.take() else {
            return;
        };
        *generation = generation.wrapping_add(1);
        self.free.push(slot);
        self.wheel.remove(slot);
        let aor = subscription.aor.as_bytes();
        if let Some(watched) = self.watched.get_mut(aor) {
            watched.slots.retain(|other| *other != slot);
            if watched.slots.is_empty() {
                self.watched.remove(aor);
            }
        }
    }

    /// The subscription in a slot, of any generation; `get` compares the generation.
    fn at(&mut self, slot: u32) -> Option<&mut Subscription> {
        let (_, place) = self.slots.get_mut(slot as usize)?;
        place.as_deref_mut()
    }

    fn get(&self, id: SubscriptionId) -> Option<&Subscription> {
        let (generation, place) = self.slots.get(id.slot as usize)?;
        place.as_deref().filter(|_| *generation == id.generation)
    }

    fn mark_of(&self, slot: u32) -> Mark {
        let generation = self.slots.get(slot as usize).map_or(0, |(it, _)| *it);
        // 24 bits of each: there are fewer subscriptions, and no response is so late that a generation repeats.
        let number = u64::from(slot) << 24 | u64::from(generation & 0xff_ffff);
        Mark::of(self.user, number)
    }

    fn slot_of(&self, mark: Mark) -> Option<u32> {
        let slot = (mark.number() >> 24) as u32;
        (mark == self.mark_of(slot) && self.slots.get(slot as usize)?.1.is_some()).then_some(slot)
    }
}

/// Writes the header of a NOTIFY. `left` is the rest of the subscription in seconds, `body` the length of the body.
fn write_lines(
    lines: &mut Vec<u8>,
    subscription: &Subscription,
    (state, left): (State, u64),
    body: usize,
) {
    let mut digits = [0; 10];
    lines.extend_from_slice(&subscription.head.lines);
    lines.extend_from_slice(b"CSeq: ");
    lines.extend_from_slice(decimal(subscription.cseq, &mut digits));
    lines.extend_from_slice(b" NOTIFY\r\nSubscription-State: ");
    match state {
        State::Active => {
            lines.extend_from_slice(b"active;expires=");
            let left = u32::try_from(left).unwrap_or(u32::MAX);
            lines.extend_from_slice(decimal(left, &mut digits));
        }
        State::TimedOut => lines.extend_from_slice(b"terminated;reason=timeout"),
    }
    lines.extend_from_slice(b"\r\n");
    lines.extend_from_slice(ALLOW_EVENTS);
    lines.extend_from_slice(b"Content-Type: ");
    lines.extend_from_slice(document::MEDIA_TYPE);
    lines.extend_from_slice(b"\r\nContent-Length: ");
    let body = u32::try_from(body).unwrap_or(u32::MAX);
    lines.extend_from_slice(decimal(body, &mut digits));
    lines.extend_from_slice(b"\r\n\r\n");
}

/// Whether this response to a NOTIFY ends the subscription: the codes of RFC 6665 §4.2.2, and 408, which counts as a
/// timeout. After another code, the version of the next document shows the subscriber that one is missing (RFC 3680
/// §5.2).
const fn ends_subscription(code: u16) -> bool {
    matches!(
        code,
        404 | 405 | 408 | 410 | 416 | 480..=485 | 489 | 501 | 604
    )
}

/// Whether the subscriber accepts registration documents: without Accept, it does (RFC 3680 §4.5).
fn is_accepted(message: &Message<'_>) -> bool {
    let mut accepts = message.headers(HeaderKind::Accept).peekable();
    if accepts.peek().is_none() {
        return true;
    }
    accepts.any(|header| {
        header.value.split(|byte| *byte == b',').any(|range| {
            let range = range.split(|byte| *byte == b';').next();
            let range = range.unwrap_or_default().trim_ascii();
            let known = [document::MEDIA_TYPE, b"application/*", b"*/*"];
            known.iter().any(|known| known.eq_ignore_ascii_case(range))
        })
    })
}

/// The response that refuses a SUBSCRIBE: its code, and its further header lines.
#[derive(Debug)]
struct Refusal {
    code: u16,
    lines: Box<[u8]>,
}

impl Refusal {
    fn of(code: u16, lines: &[u8]) -> Refusal {
        Refusal {
            code,
            lines: lines.into(),
        }
    }

    /// Sends the response statelessly: the server stores nothing of a refused request.
    fn answer(
        &self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
    ) -> Result<(), RespondError> {
        let reply = Reply::new(self.code).headers(&self.lines);
        transactions.answer_statelessly(request, &reply)
    }
}
