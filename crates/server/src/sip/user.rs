//! The transaction user: OPTIONS is answered to anybody; REGISTER by the registrar of the domains, if there are any; REGISTER, INVITE and BYE by
//! the user agent server for tests.
//!
//! It keeps no dialogs. The To-tag of an answer names its transaction and has a MAC in it, so that a BYE of a dialog that an answer of
//! ours has made is told from one that anybody made up, long after the transaction is gone.

use super::Secrets;
use super::challenge::{Gate, Stop};
use super::counters::DIGEST_OUTCOMES;
use super::lines::{self, Abilities, Bindings, Sips};
use super::registrar::{Place, Registrations};
use super::ringing::Ringing;
use super::settings::{Orders, SipSettings};
use io::clock::monotonic_ns;
use sip::branch::{Branch, BranchCodec};
use sip::build::{Answerable, Stamp, Tag};
use sip::engine::{AcceptError, Engine, NewRequest, Reply, RespondError, ServerKey};
use sip::flow::Flow;
use sip::header::{Rport, Via};
use sip::routing::{SentBy, response_address};
use sip::verdict::{Refusal, Rules};
use sip::{HashKey, Message, Method, Mono, Now, Uri};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::time::Duration;

/// What is served to everybody.
const OPTIONS_ONLY: Rules<'static> = Rules {
    methods: &[Method::Options],
    ..Rules::USER_AGENT
};

/// What is served where domains have their registrar.
const REGISTRAR: Rules<'static> = Rules {
    methods: &[Method::Options, Method::Register],
    extensions: &sip_server::registrar::EXTENSIONS,
    ..Rules::USER_AGENT
};

/// RFC 3261 §21.5.4: a sender goes to another server, and comes back after so many seconds. Few, as a sender may hold back the requests
/// of its dialogs for as long, which this server still takes.
const DRAINING: &[u8] = b"Retry-After: 5\r\n";

/// RFC 5630 §5.1.2: whoever insists on TLS does not reach this server without it.
const SIPS_NOT_ALLOWED: &[u8] = b"Warning: 380 hairpin \"SIPS Not Allowed\"\r\n";

/// Addresses of record whose bindings are removed at once.
const EXPIRED: usize = 256;

/// Where header lines of an answer are written: as long as a request's Contacts may be.
const LINES: usize = 72 << 10;

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answered {
    /// It is answered, or will be.
    Yes,
    /// There was no room for a transaction: it got a 503.
    NoRoom,
    /// Nothing was kept of it: it is another worker's.
    Elsewhere(u16),
}

/// The transaction user of a worker.
#[derive(Debug)]
pub(super) struct User {
    codec: BranchCodec,
    gate: Gate,
    hash: RandomState,
    ringing: Ringing,
    /// Of the domains, if there are any.
    registrations: Option<Box<Registrations>>,
    abilities: Abilities,
    lines: Vec<u8>,
    body: Vec<u8>,
    number: u16,
    key: HashKey,
    seed: u64,
}

impl User {
    /// One that knows the tags and nonces of all workers with these secrets.
    pub(super) fn new(number: u16, secrets: &Secrets, orders: &Orders, seed: u64) -> User {
        let registrations = Registrations::new(number, orders, secrets.key, seed);
        User {
            codec: BranchCodec::new(secrets.key),
            gate: Gate::new(orders, secrets, seed),
            hash: RandomState::new(),
            ringing: Ringing::default(),
            registrations: registrations.map(Box::new),
            abilities: Abilities::new(&User::rules(&orders.settings)),
            lines: vec![0; LINES],
            body: Vec::new(),
            number,
            key: secrets.key,
            seed,
        }
    }

    /// Registration bindings that are there.
    pub(super) fn bindings(&self) -> u64 {
        self.registrations
            .as_ref()
            .map_or(0, |registrations| registrations.len() as u64)
    }

    /// What became of credentials, by [`DIGEST_OUTCOMES`](super::DIGEST_OUTCOMES).
    pub(super) fn digest_outcomes(&self) -> [u64; DIGEST_OUTCOMES.len()] {
        self.gate.outcomes
    }

    /// New settings.
    pub(super) fn obey(&mut self, orders: &Orders) {
        self.gate.obey(orders);
        self.abilities = Abilities::new(&User::rules(&orders.settings));
        match &mut self.registrations {
            Some(registrations) => registrations.obey(orders),
            None => {
                // Another seed for each registrar: what comes of it must be unique.
                self.seed = self.seed.wrapping_add(1 << 48);
                let new = Registrations::new(self.number, orders, self.key, self.seed);
                self.registrations = new.map(Box::new);
            }
        }
    }

    /// By what a request is judged.
    pub(super) fn rules(settings: &SipSettings) -> Rules<'static> {
        match (settings.test_uas, settings.domains.is_empty()) {
            (true, _) => Rules::USER_AGENT,
            (false, false) => REGISTRAR,
            (false, true) => OPTIONS_ONLY,
        }
    }

    /// When a call has rung long enough, or a binding ends.
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        let registrations = self.registrations.as_ref();
        let binding = registrations.and_then(|registrations| registrations.next_deadline());
        [self.ringing.next_end(), binding]
            .into_iter()
            .flatten()
            .min()
    }

    /// Removes bindings that have ended, a bounded number.
    pub(super) fn expire_bindings(&mut self, now: Mono) {
        if let Some(registrations) = &mut self.registrations {
            let _ = (0..EXPIRED)
                .take_while(|_| registrations.expire(now))
                .count();
        }
    }

    /// Ends one call that has rung long enough.
    pub(super) fn expire(&mut self, now: Mono, engine: &mut Engine) -> bool {
        let due = self.ringing.expired(now);
        if let Some((key, code)) = due {
            // Its transaction may have ended in the same moment.
            let _ = engine.respond(now, key, &Reply::new(code));
        }
        due.is_some()
    }

    /// A call was cancelled before it was answered (RFC 3261 §9.2).
    pub(super) fn cancel(&mut self, now: Mono, invite: ServerKey, engine: &mut Engine) {
        self.ringing.end(invite);
        // It may have got its answer in the same moment.
        let _ = engine.respond(now, invite, &Reply::new(487));
    }

    /// Answers a request that is well-formed and served.
    pub(super) fn answer(
        &mut self,
        now: Now,
        request: &NewRequest<'_>,
        engine: &mut Engine,
        orders: &Orders,
    ) -> Answered {
        let at = now;
        let unix_s = now.unix_s;
        let now = now.mono;
        let message = &request.message;
        let outcome = match message.method() {
            // There is nothing to cancel, whoever asks.
            method if method != Some(Method::Cancel) && self.is_refused(request, orders) => {
                engine.answer_statelessly(request, &Reply::new(503).headers(DRAINING))
            }
            Some(Method::Invite) => self.invite(now, request, engine, orders),
            Some(Method::Register) if self.registrations.is_some() => {
                match self.registered(at, request, engine) {
                    Ok(Some(worker)) => return Answered::Elsewhere(worker),
                    Ok(None) => Ok(()),
                    Err(error) => Err(error),
                }
            }
            Some(Method::Register) if orders.settings.challenge => {
                self.challenged(now, unix_s, request, engine, orders)
            }
            Some(Method::Register) => self.register(now, request, engine, orders, 0),
            Some(Method::Bye) => self.bye(now, request, engine, orders),
            // §9.2: there is nothing to cancel. Nothing is kept of it: anybody can send that.
            Some(Method::Cancel) => engine.answer_statelessly(request, &Reply::new(481)),
            // §11.2, without keeping anything.
            _ => {
                let reply = Reply::new(200).headers(&self.abilities.options);
                engine.answer_statelessly(request, &reply)
            }
        };
        match outcome {
            Err(RespondError::Accept(AcceptError::Full)) => {
                let reply = Reply::new(503).headers(b"Retry-After: 1\r\n");
                // What cannot even be told so sends its request again.
                let _ = engine.answer_statelessly(request, &reply);
                Answered::NoRoom
            }
            // What cannot be answered otherwise was no fault of the client's: it sends its request again.
            _ => Answered::Yes,
        }
    }

    /// The server is about to end, and the request would begin something.
    fn is_refused(&self, request: &NewRequest<'_>, orders: &Orders) -> bool {
        orders.draining && self.dialog_of(request).is_none()
    }

    /// A REGISTER for the registrar (§10.3). Returns the worker that it is to be handed to, if it is another one's.
    fn registered(
        &mut self,
        now: Now,
        request: &NewRequest<'_>,
        engine: &mut Engine,
    ) -> Result<Option<u16>, RespondError> {
        let Some(registrations) = &mut self.registrations else {
            return Ok(None);
        };
        let message = &request.message;
        let aor = match registrations.place_of(message, &mut self.lines) {
            Place::Refused(answer) => {
                let reply = Reply::new(answer.code).reason(answer.reason.as_bytes());
                engine.answer_statelessly(request, &reply.headers(answer.headers))?;
                return Ok(None);
            }
            Place::Elsewhere(worker) => return Ok(Some(worker)),
            Place::Here(aor) => aor,
        };
        let source = request.flow.remote.ip();
        match self.gate.check(message, source, now.unix_s) {
            Ok(()) => {}
            Err(stop) => return self.stop(now.unix_s, request, engine, stop).map(|()| None),
        }
        let confirmation = self.gate.confirmation();
        let (first, room) = self.lines.split_at_mut(confirmation.len());
        first.copy_from_slice(confirmation);
        let answer = registrations.answer(now, request, aor, self.gate.user(), room);
        let (code, reason, len) = (answer.code, answer.reason, answer.headers.len());
        let begin = confirmation.len();
        let headers = match code {
            200 => &self.lines[..begin + len],
            _ => &self.lines[begin..begin + len],
        };
        let reply = Reply::new(code).reason(reason.as_bytes()).headers(headers);
        engine.answer(now.mono, request, &reply)?;
        Ok(None)
    }

    /// Answers a request whose sender is not known.
    fn stop(
        &mut self,
        unix_s: u64,
        request: &NewRequest<'_>,
        engine: &mut Engine,
        stop: Stop,
    ) -> Result<(), RespondError> {
        let source = request.flow.remote.ip();
        match stop {
            Stop::Bad(reason) => {
                let reply = Reply::new(400).reason(reason.as_bytes());
                engine.answer_statelessly(request, &reply)
            }
            Stop::Challenge(why) => {
                let lines = self.gate.challenge(&mut self.lines, source, why, unix_s)?;
                engine.answer_statelessly(request, &Reply::new(401).headers(lines))
            }
        }
    }

    /// A REGISTER that takes the digest of a user (§22.2).
    fn challenged(
        &mut self,
        now: Mono,
        unix_s: u64,
        request: &NewRequest<'_>,
        engine: &mut Engine,
        orders: &Orders,
    ) -> Result<(), RespondError> {
        let source = request.flow.remote.ip();
        match self.gate.check(&request.message, source, unix_s) {
            Ok(()) => {
                let confirmation = self.gate.confirmation();
                self.lines[..confirmation.len()].copy_from_slice(confirmation);
                let first = confirmation.len();
                self.register(now, request, engine, orders, first)
            }
            Err(stop) => self.stop(unix_s, request, engine, stop),
        }
    }

    /// §10.3, for a registrar that forgets: what it would refuse is refused. The first `written` bytes of the lines stand already.
    fn register(
        &mut self,
        now: Mono,
        request: &NewRequest<'_>,
        engine: &mut Engine,
        orders: &Orders,
        written: usize,
    ) -> Result<(), RespondError> {
        work(orders.settings.service_time);
        let room = &mut self.lines[written..];
        let reply = match lines::bindings(room, &request.message)? {
            Bindings::Lines(lines) => {
                let end = written + lines.len();
                Reply::new(200).headers(&self.lines[..end])
            }
            Bindings::NotSips => Reply::new(400).reason(b"SIPS Contact Without SIPS Request-URI"),
            Bindings::Wrong => Reply::new(400).reason(b"Contact * Goes Alone and With Expires 0"),
        };
        engine.answer(now, request, &reply).map(drop)
    }

    /// §15.1.2.
    fn bye(
        &mut self,
        now: Mono,
        request: &NewRequest<'_>,
        engine: &mut Engine,
        orders: &Orders,
    ) -> Result<(), RespondError> {
        let Some(dialog) = self.dialog_of(request) else {
            // As with a CANCEL of nothing.
            return engine.answer_statelessly(request, &Reply::new(481));
        };
        work(orders.settings.service_time);
        engine.answer(now, request, &Reply::new(200))?;
        engine.dialog_ended(dialog);
        // "The UAS MUST still respond to any pending requests received for that dialog", with 487.
        if let Some(invite) = engine.unanswered(dialog) {
            self.cancel(now, invite, engine);
        }
        Ok(())
    }

    fn invite(
        &mut self,
        now: Mono,
        request: &NewRequest<'_>,
        engine: &mut Engine,
        orders: &Orders,
    ) -> Result<(), RespondError> {
        let message = &request.message;
        let callee = callee(message);
        let contact = message.contact().ok().flatten();
        let uri = contact.map(|contact| contact.uri);
        let sips = Sips::of(message, uri, request.flow.carrier);
        let is_sips = sips == Sips::Yes;
        let mut later = *b"Retry-After: 0\r\n";
        let refusal = self.refusal_of_invite(request, engine, sips, &mut later);
        if let Some(reply) = refusal {
            return engine.answer(now, request, &reply).map(drop);
        }
        let key = engine.accept(now, request, None)?;
        work(orders.settings.service_time);
        let ours = lines::contact(&mut self.lines, &request.flow, is_sips)?;
        engine.respond(now, key, &Reply::new(180).headers(ours))?;
        if callee == Some(b"ring") {
            self.ringing.begin(now, key, message);
            return Ok(());
        }
        lines::without_media(&mut self.body, message, request.flow.local.ip(), now.0);
        let lines = lines::dialog(&mut self.lines, &request.flow, is_sips, &self.abilities)?;
        // Whom a BYE would go to if no ACK comes.
        let target = contact.map_or(&b""[..], |contact| contact.uri);
        let reply = Reply::new(200).headers(lines).body(&self.body);
        let reply = reply.until_ack_from(target);
        engine.respond(now, key, &reply)
    }

    /// What an INVITE is refused with, if it is. `later` is where a header field is written.
    fn refusal_of_invite<'r>(
        &self,
        request: &NewRequest<'_>,
        engine: &mut Engine,
        sips: Sips,
        later: &'r mut [u8; 16],
    ) -> Option<Reply<'r>> {
        let message = &request.message;
        let dialog = self.dialog_of(request);
        if request.to_tag().is_some() && dialog.is_none() {
            Some(Reply::new(481))
        } else if dialog
            .and_then(|dialog| engine.unanswered(dialog))
            .is_some()
        {
            // §14.2: while the one before is not answered, "a randomly chosen value of between 0 and 10 seconds".
            later[13] += (self.hash.hash_one(request.via.branch) % 10) as u8;
            Some(Reply::new(500).headers(later))
        } else if request.via.has_magic_cookie() && message.contact().ok().flatten().is_none() {
            // §8.1.1.8: without a Contact nobody could send anything within the dialog. RFC 2543 had calls without.
            Some(Reply::new(400).reason(b"Missing Contact"))
        } else if sips == Sips::Inconsistent {
            // RFC 5630 §5.1.2.
            Some(Reply::new(400).reason(b"Contact Must Be a SIPS URI"))
        } else if sips == Sips::NotHere {
            Some(Reply::new(480).headers(SIPS_NOT_ALLOWED))
        } else if callee(message) == Some(b"busy") {
            Some(Reply::new(486))
        } else {
            None
        }
    }

    /// The INVITE that its To-tag names, which an answer of ours had in a dialog with this Call-ID and From tag (RFC 3261 §12).
    fn dialog_of(&self, request: &NewRequest<'_>) -> Option<Branch> {
        let tag = request.to_tag()?;
        let from_tag = request.from_tag().unwrap_or_default();
        let dialog = self.codec.dialog(request.call_id(), from_tag);
        self.codec.read_tag(tag, dialog)
    }

    /// Writes a refusal that nothing is kept of; returns it and where it goes.
    pub(super) fn write_refusal<'b>(
        &self,
        buffer: &'b mut [u8],
        to: &Answerable<'_>,
        refusal: &Refusal<'_>,
        rules: &Rules<'_>,
        flow: &Flow,
    ) -> Option<(&'b [u8], SocketAddr)> {
        let via = to.top_via();
        let tag = Tag::new(self.hash.hash_one(via.branch).to_be_bytes());
        let stamp = Stamp::of(via, flow.remote);
        let bytes = refusal.write(buffer, to, rules, tag.as_bytes(), stamp);
        Some((bytes.ok()?, reply_address(via, flow)))
    }
}

/// Where a response goes, by the request's topmost Via (RFC 3261 §18.2.2).
fn reply_address(via: &Via<'_>, flow: &Flow) -> SocketAddr {
    let sent_by = SentBy {
        port: via.port,
        rport: via.rport != Rport::Absent,
        maddr: via.maddr.and_then(|maddr| maddr.ip()),
    };
    response_address(flow.carrier, flow.remote, sent_by)
}

/// The user of the Request-URI.
fn callee<'m>(message: &Message<'m>) -> Option<&'m [u8]> {
    match Uri::parse(message.request_uri()?) {
        Ok(Uri::Sip(uri)) => uri.user,
        _ => None,
    }
}

/// Is busy for so long, as an application would be.
fn work(time: Duration) {
    if time.is_zero() {
        return;
    }
    let until = monotonic_ns() + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    while monotonic_ns() < until {
        std::hint::spin_loop();
    }
}
