//! A user agent (RFC 3261 §8, §10 to §15) as a transaction user without I/O. It has the signalling of a phone, or of
//! each side of a B2BUA.
//!
//! ```text
//!  program ── register, invite, ring, answer, reinvite, hang_up ──> UserAgent ──> Transactions
//!  program <── poll_event: Registered, Incoming, Progress, Ended ─┘    ^
//!                            responses, requests, ACK, CANCEL, time ───┘
//! ```
//!
//! - **Registration.** [`UserAgent::register`] registers the contact and refreshes it before the expiry that the
//!   registrar granted. After a failure that may pass it tries again, later each time (RFC 5626 §4.5).
//! - **Authentication.** A 401 or 407 is answered with the configured password: MD5, SHA-256 and SHA-512-256, of
//!   several realms if a call passes several. Other realms than those of the configuration get no answer. Wrong
//!   credentials are reported, not tried again.
//! - **Calls.** [`UserAgent::invite`] begins one. Each branch of a forked call is a separate early dialog. The first
//!   2xx wins, and the user agent ends the others with BYE (RFC 3261 §13.2.2.4). Either side may send a re-INVITE.
//! - **Bodies** are opaque: the program makes offers and answers (RFC 3264), as [`Content`].
//! - **Reliable provisional responses** (RFC 3262) with [`RULES_WITH_100REL`]: those of the callee get a PRACK, and
//!   [`UserAgent::ring_reliably`] sends one.
//! - **Keep-alives** of a flow (RFC 5626 §4.4): [`KeepAlive`] says when to send one, and whether the flow has failed.
//!
//! Not included: session timers (RFC 4028), Outbound with several flows (RFC 5626). If a request requires an extension
//! that is not in the rules, the engine refuses it with 420.
//!
//! The engine must have [`Config::rules`] as its rules. [`crate::endpoint`] drives a user agent. The methods that send
//! return a [`CallError`] if nothing was sent. Everything that happens later is an [`Event`].
//!
//! Two phones, and a network that is two lines of code:
//!
//! ```
//! use hairpin_sip::agent::{self, Config, Content, Event, Invite, UserAgent};
//! use hairpin_sip::dispatch::{self, Dispatcher, Source};
//! use hairpin_sip::endpoint::{Endpoint, Task};
//! use hairpin_sip::engine::{self, Engine, SentBy};
//! use hairpin_sip::flow::{Flow, ListenerKey, Transport};
//! use hairpin_sip::{HashKey, Mono, Now};
//!
//! type Phone = Endpoint<UserAgent>;
//!
//! fn phone(ip: &str, key: [u8; 16]) -> Result<Phone, agent::ConfigError> {
//!     let key = HashKey::new(key); // random, in a program
//!     let mut config = engine::Config::new(0, key);
//!     config.rules = agent::RULES;
//!     config.sent_by = vec![SentBy::new(ListenerKey(0), Transport::Udp, ip, 5060)];
//!     let udp = Source { listener: ListenerKey(0), transport: Transport::Udp, is_v4: true };
//!     let dispatcher = Dispatcher::new(dispatch::Config::new(vec![udp]), key, 1);
//!     let uri = format!("sip:{ip}");
//!     let agent = UserAgent::new(Config::new(&uri, &uri), key)?;
//!     Ok(Endpoint::new(Engine::new(config, 1), dispatcher, agent))
//! }
//!
//! /// What one phone has queued is received by the other one.
//! fn deliver(now: Now, (from, at): (&mut Phone, &str), (to, to_ip): (&mut Phone, &str)) {
//!     let mut datagrams = Vec::new();
//!     from.drain(now, |task| {
//!         if let Task::Send { bytes, .. } = task {
//!             datagrams.push(bytes.to_vec());
//!         }
//!     });
//!     let address = |ip: &str| format!("{ip}:5060").parse().expect("an address");
//!     let (local, remote) = (address(to_ip), address(at));
//!     let flow = Flow { transport: Transport::Udp, listener: ListenerKey(0), connection: None, local, remote };
//!     for bytes in datagrams {
//!         to.handle_message(now, &flow, &bytes);
//!     }
//! }
//!
//! let now = Now { mono: Mono(1), unix_s: 1_800_000_000 };
//! let (a, b) = ("192.0.2.1", "192.0.2.2");
//! let (mut alice, mut bob) = (phone(a, [1; 16])?, phone(b, [2; 16])?);
//!
//! let invite = Invite::new("sip:192.0.2.2", Content::sdp("v=0.."));
//! alice.act(now, |agent, it| agent.invite(it, invite))?;
//! deliver(now, (&mut alice, a), (&mut bob, b));
//!
//! let Some(Event::Incoming { call, .. }) = bob.user_mut().poll_event() else {
//!     return Err("bob is called".into());
//! };
//! bob.act(now, |agent, it| agent.answer(it, call, &Content::sdp("v=0..")))?;
//! deliver(now, (&mut bob, b), (&mut alice, a));
//! assert!(matches!(alice.user_mut().poll_event(), Some(Event::Answered { .. })));
//!
//! deliver(now, (&mut alice, a), (&mut bob, b));
//! assert!(matches!(bob.user_mut().poll_event(), Some(Event::Acknowledged { .. })));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod authenticator;
mod call;
mod config;
mod dialog;
mod draft;
mod event;
mod keep_alive;
mod registration;
mod reliable;
mod uac;
mod uas;

pub use authenticator::{AuthProblem, Credentials};
pub use call::RequestTarget;
pub use config::{Config, ConfigError, RULES, RULES_WITH_100REL};
pub use draft::Content;
pub use event::{CallError, CallKey, EndCause, Event, RegisterFailure, RequestId};
pub use keep_alive::{FlowFailure, KeepAlive, KeepAliveStep};
pub use uac::Invite;

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;

use crate::congestion::Class;
use crate::dispatch::{AllowedDestination, Failure, OutgoingRequest, RequestKey};
use crate::engine::{Ack, Mark, NewRequest, ServerFailure, ServerKey};
use crate::flow::Flow;
use crate::message::{Message, Spans};
use crate::tu::{RequestOwner, TransactionUser, Transactions};
use crate::{HashKey, Mono};
use authenticator::{Authenticator, Learned};
use call::Call;
use draft::{Draft, RealmName};
use registration::Registration;
use reliable::Outstanding;

/// Requests of one draft: the first, one for each of two realms, and one for a nonce that was stale.
const MAX_ATTEMPTS: u32 = 4;

/// Random text and numbers, made of a secret key.
#[derive(Debug)]
struct Random {
    key: HashKey,
    count: u64,
}

impl Random {
    fn number(&mut self) -> u64 {
        self.count += 1;
        self.key.mac(&self.count.to_be_bytes())
    }

    /// 128 bits in hexadecimal: for Call-ID, tags and cnonce (RFC 3261 §19.3).
    fn token(&mut self) -> Vec<u8> {
        format!("{:016x}{:016x}", self.number(), self.number()).into_bytes()
    }
}

/// What a request of ours is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Register,
    Invite(u64),
    Reinvite(u64),
    /// The acknowledgement of a provisional response.
    Prack(u64),
    /// The end of a call.
    Bye(u64),
    /// The BYE to a further branch that answered. No call has its dialog.
    Stray,
    /// A request of the program, in a call if there is one.
    Request(u64, Option<u64>),
}

/// A request of ours that waits for responses.
#[derive(Debug)]
struct Pending {
    draft: Draft,
    class: Class,
    purpose: Purpose,
    key: RequestKey,
    attempts: u32,
    /// Why a 401 or 407 was not answered.
    problem: Option<AuthProblem>,
    /// Set at the first 2xx of an INVITE. Until this time, other branches may send a 2xx (RFC 3261 §13.2.2.4).
    forget_at: Option<Mono>,
    /// The ACKs of its 2xx: the To tag, where it goes, and its bytes.
    acks: Vec<(Vec<u8>, Vec<u8>, Vec<u8>)>,
    /// The CSeq number of the last request of its call, if that call has ended.
    last_cseq: u32,
}

/// How a request of ours ended.
#[derive(Clone, Copy)]
enum Ended<'r, 'm> {
    Response(u16, &'r Message<'m>),
    Failure(Failure),
}

/// A user agent.
#[derive(Debug)]
pub struct UserAgent {
    config: Config,
    random: Random,
    authenticator: Authenticator,
    registration: Registration,
    calls: BTreeMap<u64, Call>,
    /// The calls by the local tag of their dialogs, which nobody can guess.
    by_tag: BTreeMap<Vec<u8>, u64>,
    pending: BTreeMap<u64, Pending>,
    /// Requests that wait for a response of the program.
    asked: BTreeMap<u64, ServerKey>,
    /// Provisional responses that may still get a PRACK after a refusal, by the local tag.
    outstanding: BTreeMap<Vec<u8>, Outstanding>,
    next: u64,
    events: VecDeque<Event>,
}

impl UserAgent {
    /// A user agent that is not registered and has no calls. `key` is random and secret: tags, Call-IDs and cnonces are
    /// made of it.
    ///
    /// # Errors
    /// [`ConfigError`] if a URI of the configuration is not a SIP URI.
    pub fn new(config: Config, key: HashKey) -> Result<UserAgent, ConfigError> {
        config.validate()?;
        let mut random = Random {
            key: key.derive(u64::from_le_bytes(*b"agent   ")),
            count: 0,
        };
        Ok(UserAgent {
            authenticator: Authenticator::new(config.credentials.clone()),
            registration: Registration::new(&config, &mut random),
            random,
            calls: BTreeMap::new(),
            by_tag: BTreeMap::new(),
            pending: BTreeMap::new(),
            asked: BTreeMap::new(),
            outstanding: BTreeMap::new(),
            next: 0,
            events: VecDeque::new(),
            config,
        })
    }

    /// The next thing that has happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Calls that have not ended.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    fn new_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn mark(&self, number: u64) -> Mark {
        Mark::of(self.config.mark_user, number)
    }

    /// Sends a request, with credentials for the realms that have challenged its call before.
    fn send(
        &mut self,
        transactions: &mut Transactions<'_>,
        draft: Draft,
        class: Class,
        purpose: Purpose,
    ) -> Result<u64, CallError> {
        self.send_again(transactions, draft, class, purpose, 1)
    }

    /// Signs a request with the stored challenges and sends it. `attempts` is how often it was challenged. Returns the
    /// number of the request.
    fn send_again(
        &mut self,
        transactions: &mut Transactions<'_>,
        mut draft: Draft,
        class: Class,
        purpose: Purpose,
        attempts: u32,
    ) -> Result<u64, CallError> {
        self.authenticator.sign(&mut draft, &mut self.random)?;
        let bytes = draft.write()?;
        let number = self.new_number();
        let key = transactions.send(&OutgoingRequest {
            target: &draft.next_hop,
            pieces: &[&bytes],
            class,
            mark: self.mark(number),
            reach: AllowedDestination::Anywhere,
            loop_check: None,
            flow: None,
            from: None,
        })?;
        let pending = Pending {
            draft,
            class,
            purpose,
            key,
            attempts,
            problem: None,
            forget_at: None,
            acks: Vec::new(),
            last_cseq: 0,
        };
        self.pending.insert(number, pending);
        Ok(number)
    }

    /// Answers a 401 or 407. Returns whether the request was sent again.
    fn retry(
        &mut self,
        transactions: &mut Transactions<'_>,
        number: u64,
        response: &Message<'_>,
    ) -> bool {
        let Some(pending) = self.pending.get_mut(&number) else {
            return false;
        };
        let purpose = pending.purpose;
        if let Purpose::Invite(call) | Purpose::Reinvite(call) = purpose
            && self.calls.get(&call).is_none_or(|call| call.is_ending())
        {
            return false;
        }
        match self.authenticator.learn(&mut pending.draft, response) {
            Learned::Retry if pending.attempts < MAX_ATTEMPTS => {}
            Learned::Retry => {
                pending.problem = Some(AuthProblem::Rejected);
                return false;
            }
            Learned::Problem(problem) => {
                pending.problem = Some(problem);
                return false;
            }
        }
        let (mut draft, class, attempts) = (pending.draft.clone(), pending.class, pending.attempts);
        draft.cseq = self.next_cseq(purpose, draft.cseq);
        let Ok(again) = self.send_again(transactions, draft, class, purpose, attempts + 1) else {
            return false;
        };
        let realms = self.pending.remove(&number).map(|it| it.draft.realms);
        self.keep_realms(purpose, realms.unwrap_or_default());
        if let Purpose::Invite(call) | Purpose::Reinvite(call) = purpose
            && let Some(call) = self.calls.get_mut(&call)
        {
            call.invite = Some(again);
            // The early dialogs of the refused INVITE have ended. The next one may have their tags and other numbers.
            call.early.clear();
        }
        true
    }

    /// Stores the realms, so that later requests of the same call or registration have credentials in the first
    /// attempt.
    fn keep_realms(&mut self, purpose: Purpose, realms: Vec<RealmName>) {
        match purpose {
            Purpose::Register => self.registration.realms = realms,
            Purpose::Invite(call)
            | Purpose::Reinvite(call)
            | Purpose::Prack(call)
            | Purpose::Bye(call)
            | Purpose::Request(_, Some(call)) => {
                if let Some(call) = self.calls.get_mut(&call) {
                    call.realms = realms;
                }
            }
            Purpose::Request(_, None) | Purpose::Stray => {}
        }
    }

    /// The CSeq number of the next request of this kind (RFC 3261 §22.2: one more than before).
    fn next_cseq(&mut self, purpose: Purpose, before: u32) -> u32 {
        let call = match purpose {
            Purpose::Register => return self.registration.next_cseq(),
            Purpose::Invite(call)
            | Purpose::Reinvite(call)
            | Purpose::Prack(call)
            | Purpose::Bye(call) => Some(call),
            Purpose::Request(_, call) => call,
            Purpose::Stray => None,
        };
        match call.and_then(|call| self.calls.get_mut(&call)) {
            Some(call) => call.next_cseq(),
            None => before + 1,
        }
    }

    /// A request of ours has its final response, or gets none.
    fn concluded(
        &mut self,
        transactions: &mut Transactions<'_>,
        number: u64,
        ended: Ended<'_, '_>,
    ) {
        let Some(pending) = self.pending.remove(&number) else {
            return;
        };
        match pending.purpose {
            Purpose::Register => self.register_concluded(transactions, pending.problem, ended),
            Purpose::Invite(call) => self.invite_failed(call, pending.problem, ended),
            Purpose::Reinvite(call) => self.reinvite_failed(transactions, call, ended),
            Purpose::Bye(call) => self.bye_concluded(call),
            Purpose::Request(id, call) => self.request_concluded(transactions, (id, call), ended),
            // If the PRACK has failed, the callee refuses the INVITE.
            Purpose::Prack(_) | Purpose::Stray => {}
        }
    }
}

impl TransactionUser for UserAgent {
    /// A user agent sends no queries to other threads, so no answer comes.
    type QueryResult = Infallible;

    fn request(
        &mut self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
    ) -> RequestOwner {
        match request.to_tag() {
            None => self.new_request(transactions, request),
            Some(tag) => self.request_in_dialog(transactions, tag, request),
        }
        RequestOwner::Here
    }

    fn ack(&mut self, transactions: &mut Transactions<'_>, ack: &Ack<'_>) -> RequestOwner {
        self.acknowledged(transactions, &ack.message);
        RequestOwner::Here
    }

    fn cancel(
        &mut self,
        transactions: &mut Transactions<'_>,
        (invite, mark): (ServerKey, Option<Mark>),
        _cancel: &Message<'_>,
    ) {
        if let Some(mark) = mark {
            self.cancelled(transactions, invite, mark.number());
        }
    }

    fn response(
        &mut self,
        transactions: &mut Transactions<'_>,
        mark: Mark,
        (message, _flow): (&Message<'_>, &Flow),
    ) {
        let number = mark.number();
        let code = message.status_code().unwrap_or_default();
        let Some(purpose) = self.pending.get(&number).map(|it| it.purpose) else {
            return;
        };
        match (code, purpose) {
            (..200, Purpose::Invite(call)) => {
                self.progressed(transactions, (number, call), code, message);
            }
            (..200, _) => {}
            (200..300, Purpose::Invite(call)) => {
                self.invite_answered(transactions, number, call, message);
            }
            (200..300, Purpose::Reinvite(call)) => {
                self.reinvite_answered(transactions, number, call, message);
            }
            (401 | 407, _) if self.retry(transactions, number, message) => {}
            _ => self.concluded(transactions, number, Ended::Response(code, message)),
        }
    }

    fn failed(&mut self, transactions: &mut Transactions<'_>, mark: Mark, failure: Failure) {
        let number = mark.number();
        let is_answered = |pending: &Pending| pending.forget_at.is_some();
        if !self.pending.get(&number).is_some_and(is_answered) {
            self.concluded(transactions, number, Ended::Failure(failure));
        }
    }

    fn server_failed(
        &mut self,
        _transactions: &mut Transactions<'_>,
        (key, mark): (ServerKey, Mark),
        failure: ServerFailure,
    ) {
        if failure == ServerFailure::Abandoned {
            self.abandoned(key, mark.number());
        }
    }

    fn unacknowledged(
        &mut self,
        transactions: &mut Transactions<'_>,
        _flow: &Flow,
        response: &[u8],
        _remote_target: &[u8],
    ) {
        let mut spans = Box::<Spans>::default();
        if let Ok(response) = Message::parse(response, &mut spans)
            && let Some(tag) = response.to().ok().and_then(|to| to.tag)
        {
            self.ack_timed_out(transactions, tag);
        }
    }

    fn answered(&mut self, _transactions: &mut Transactions<'_>, answer: Infallible) {
        match answer {}
    }

    fn poll_timeout(&self) -> Option<Mono> {
        let forgotten = self.pending.values().filter_map(|it| it.forget_at);
        let repeated = self.next_progress_at();
        let others = self.registration.next_at().into_iter().chain(repeated);
        let outstanding = self.outstanding.values().map(|it| it.until);
        forgotten.chain(others).chain(outstanding).min()
    }

    fn handle_timeout(&mut self, transactions: &mut Transactions<'_>) {
        let now = transactions.now.mono;
        self.pending
            .retain(|_, pending| pending.forget_at.is_none_or(|at| at > now));
        self.outstanding.retain(|_, it| it.until > now);
        self.repeat_progress(transactions);
        if self.registration.next_at().is_some_and(|at| at <= now) {
            self.refresh(transactions);
        }
    }
}
