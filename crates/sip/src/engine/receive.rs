//! What a received message is, and which transaction it belongs to.

use std::net::SocketAddr;

use super::Engine;
use super::compose;
use super::error::DropReason;
use super::key::{Fingerprint, RelatedKey, ServerKey, TransactionId};
use super::output::{Mark, Origin};
use super::received::{Ack, NewRequest, Received};
use super::reply::Reply;
use crate::build::{Stamp, Tag};
use crate::congestion::{Admission, Class, Dialog, Filter, ProofFields, Traits, offers_loss};
use crate::flow::{Flow, Transport};
use crate::header::{HeaderKind, Rport, Via};
use crate::message::{Framing, Message, Spans};
use crate::verdict::request::{CommonHeaders, check_behind_via};
use crate::verdict::{self, Element, Verdict, judge_bytes, judge_message};
use crate::{Method, Mono, Now, ParseError, Scan};

/// `Retry-After: 4294967295` and its line end fit.
const RETRY_AFTER_LEN: usize = 32;

impl Engine {
    /// A whole message came in: a datagram, or a frame of a stream. `spans` is the caller's table, used again and
    /// again; the result borrows from it and from the bytes.
    ///
    /// In an overload, requests without a transaction are refused or dropped after one bounded pass, before any other
    /// work.
    pub fn handle_message<'m>(
        &mut self,
        now: Now,
        flow: &Flow,
        bytes: &'m [u8],
        spans: &'m mut Spans,
    ) -> Received<'m> {
        if let Some(connection) = flow.connection {
            self.connections.touch(now.mono, connection);
        }
        let mut admitted = false;
        if self.controller.is_overloaded() {
            match self.shed(now, flow, bytes) {
                Shed::Unknown => {}
                Shed::Admitted => admitted = true,
                Shed::AckOfRefusal => {
                    self.stats.acks += 1;
                    return Received::AckOfRefusal;
                }
                Shed::Refused => return Received::Refused(503),
                Shed::Dropped => return self.drop_message(DropReason::Shed),
            }
        }
        // RFC 7118 §5: a WebSocket has messages of its own.
        let framing = if flow.connection.is_some() && !flow.transport.is_websocket() {
            Framing::Stream
        } else {
            Framing::Datagram
        };
        match Message::parse_with(bytes, spans, framing, &self.config.limits) {
            Ok(message) if message.is_request() => self.request_in(now, flow, message, admitted),
            Ok(message) => match verdict::response::check(&message, self.config.rules.element) {
                Ok((via, is_next)) => self.response(now.mono, message, (&via, is_next), flow),
                Err(reason) => self.drop_message(reason.into()),
            },
            Err(ParseError::Empty) => Received::KeepAlive,
            Err(error) => self.judged(flow, bytes, judge_bytes(bytes, &self.config.limits, error)),
        }
    }

    /// Handles a received request: finds its transaction, or returns a new one for the TU. `admitted`: admission
    /// control has accepted it already.
    fn request_in<'m>(
        &mut self,
        now: Now,
        flow: &Flow,
        message: Message<'m>,
        admitted: bool,
    ) -> Received<'m> {
        let method = message.method().unwrap_or(Method::Ack);
        let via = message.via();
        let known = via
            .as_ref()
            .ok()
            .and_then(|via| self.fingerprint(&message, via, method));
        let (Ok(via), Some(fingerprint)) = (via, known) else {
            // What nothing can be matched by is refused for what it lacks.
            let bytes = message.as_bytes();
            return self.judged(flow, bytes, judge_message(message, &self.config.rules));
        };
        if let Some(slot) = self.servers.find(fingerprint)
            && self.is_its_ack(slot, &message, &via, method)
        {
            return self.known_request(now.mono, slot, (message, &via), flow);
        }
        if method != Method::Ack {
            self.stats.requests += 1;
        }
        let essentials = match check_behind_via(&message, method, &via, &self.config.rules) {
            Ok(essentials) => essentials,
            Err(refused) => {
                let bytes = message.as_bytes();
                return self.judged(flow, bytes, verdict::refuse(message, refused));
            }
        };
        if method == Method::Ack {
            if self.is_for_stateless(&essentials, &via, fingerprint) {
                self.stats.acks += 1;
                return Received::Absorbed;
            }
            return self.ack_in(message, &via, &essentials, flow);
        }
        self.note_alias(flow, &via);
        let steering = self.steering(flow, &via);
        let mut request = NewRequest {
            message,
            withheld: via
                .maddr
                .filter(|_| steering.maddr.is_none())
                .map(|maddr| (maddr, via.rport)),
            via: steering,
            flow: *flow,
            essentials,
            fingerprint,
            origin: None,
            is_proven: false,
        };
        if method == Method::Cancel
            && let Some(slot) = self.cancelled_by(&request)
        {
            return self.cancel_request(now.mono, request, slot);
        }
        request.origin = self.origin_of(&request.essentials, method);
        if request
            .origin
            .is_some_and(|origin| self.servers.find_related(origin).is_some())
        {
            // A full table leaves it without an answer; it will come again.
            let _ = self.respond_and_forget(now.mono, &request, &Reply::new(482));
            return Received::Refused(482);
        }
        if !admitted && self.shed_after_parsing(now, &request) {
            return Received::Refused(503);
        }
        Received::Request(request)
    }

    /// A Via as far as it says where responses go: without `maddr`, if that counts for peers alone and its sender is
    /// none. Then the response goes to the source address and port, because the port of sent-by is that of `maddr`. The
    /// text of the Via stays.
    fn steering<'m>(&self, flow: &Flow, via: &Via<'m>) -> Via<'m> {
        let mut via = *via;
        if via.maddr.is_some() && self.config.trusts_peers_only {
            let source = flow.remote.ip();
            let mut peers = self.controller.peers().iter();
            if !peers.any(|peer| peer.has(source)) {
                via.maddr = None;
                via.rport = Rport::Port(flow.remote.port());
            }
        }
        via
    }

    /// RFC 5923 §8.2: requests may come back by the connection that brings this one, if its Via asks for it. The
    /// address is where it came from, with the port of sent-by.
    fn note_alias(&mut self, flow: &Flow, via: &Via<'_>) {
        if let Some(connection) = flow.connection
            && flow.transport == Transport::Tls
            && via.params.get(b"alias").is_some()
        {
            let port = via.port.unwrap_or(Transport::Tls.default_port());
            let remote = SocketAddr::new(flow.remote.ip(), port);
            self.connections.alias(connection, remote);
        }
    }

    /// By what a UAS finds a request that it has already, by another way, and is at (RFC 3261 §8.2.2.2). `None` if
    /// there is none to be found. A proxy forwards them all.
    fn origin_of(&self, request: &CommonHeaders<'_>, method: Method<'_>) -> Option<RelatedKey> {
        let asks = self.config.rules.element == Element::UserAgent
            && self.servers.has_related()
            && method != Method::Cancel;
        asks.then(|| self.matcher.by_origin(request, method))
            .flatten()
    }

    /// What the scan could not decide: clients of RFC 2543. Without an overload it is only counted.
    fn shed_after_parsing(&mut self, now: Now, request: &NewRequest<'_>) -> bool {
        let source = request.flow.remote.ip();
        if self.controller.accepts_all(now.mono, source) {
            return false;
        }
        let essentials = &request.essentials;
        let first = |kind| request.message.header(kind).map(|header| header.value);
        let fields = ProofFields {
            uri: request.message.request_uri().unwrap_or_default(),
            call_id: essentials.call_id,
            from_tag: essentials.from_tag.unwrap_or_default(),
            to_tag: essentials.to_tag.unwrap_or_default(),
            source: Some(source),
            route: first(HeaderKind::Route).unwrap_or_default(),
            credentials: [HeaderKind::Authorization, HeaderKind::ProxyAuthorization].map(first),
            unix_s: now.unix_s,
        };
        let class = self.class_of(traits(&request.message), &fields);
        let bytes = request.message.as_bytes();
        let admission = self.admit(now.mono, class, &request.flow, (bytes, &fields));
        match admission {
            Admission::Accept => false,
            Admission::Drop => {
                self.stats.count_drop(DropReason::Shed);
                true
            }
            Admission::Refuse { retry_after_s } => {
                let mut line = [0; RETRY_AFTER_LEN];
                let reply = Reply::new(503).headers(retry_after(&mut line, retry_after_s));
                // What cannot be answered is dropped.
                let _ = self.answer_without_state(request, &reply);
                true
            }
        }
    }

    /// Whether a request belongs to a server transaction of this engine, by the fields of its scan.
    #[must_use]
    pub fn knows(&self, scan: &Scan<'_>) -> bool {
        let (Some(method), Some(via)) = (scan.method, scan.top_via()) else {
            return false;
        };
        let Some(branch) = via.branch.filter(|_| via.has_magic_cookie()) else {
            return false;
        };
        let is_known = |method| {
            let fingerprint = self.matcher.by_branch(branch, &via, method);
            self.servers.find(fingerprint).is_some()
        };
        // A CANCEL belongs where its INVITE is.
        is_known(method) || (method == Method::Cancel && is_known(Method::Invite))
    }

    /// The identifier of the transaction of a request, from its scan. For a CANCEL, that of its INVITE. `None` for
    /// responses and for clients of RFC 2543.
    #[must_use]
    pub fn transaction_of(&self, scan: &Scan<'_>) -> Option<TransactionId> {
        let method = match scan.method? {
            Method::Cancel => Method::Invite,
            method => method,
        };
        let via = scan.top_via()?;
        let branch = via.branch.filter(|_| via.has_magic_cookie())?;
        Some(self.matcher.by_branch(branch, &via, method).id())
    }

    /// The server transactions that are here, also those that have ended and absorb retransmissions. It looks at all of
    /// them: for an upgrade.
    pub fn server_transactions(&self) -> impl Iterator<Item = TransactionId> {
        let servers = self.servers.slab.iter();
        servers.map(|(_, server)| server.fingerprint.id())
    }

    /// The same of a message that was parsed, by its topmost Via.
    #[must_use]
    pub fn transaction_by(&self, via: &Via<'_>, method: Method<'_>) -> Option<TransactionId> {
        let method = match method {
            Method::Cancel => Method::Invite,
            method => method,
        };
        let branch = via.branch.filter(|_| via.has_magic_cookie())?;
        Some(self.matcher.by_branch(branch, via, method).id())
    }

    /// RFC 3261 §9.2: the transaction that a CANCEL is for, matched as if its method were any but CANCEL and ACK. A
    /// CANCEL ends only an INVITE. For another method it has no effect, and gets a 200.
    fn cancelled_by(&self, cancel: &NewRequest<'_>) -> Option<u32> {
        let invite = [Method::Invite];
        let others = Method::KNOWN.iter().copied();
        let others = others
            .filter(|method| !matches!(method, Method::Invite | Method::Ack | Method::Cancel));
        invite.into_iter().chain(others).find_map(|method| {
            let fingerprint = self.fingerprint(&cancel.message, &cancel.via, method)?;
            self.servers.find(fingerprint)
        })
    }

    /// Whether the response tells the sender of this Via which share of its requests to drop (RFC 7339 §5.1).
    pub(super) fn reports_load(&self, via: &Via<'_>) -> bool {
        self.config.overload_control && via.has_oc && offers_loss(via)
    }

    fn fingerprint(
        &self,
        message: &Message<'_>,
        via: &Via<'_>,
        method: Method<'_>,
    ) -> Option<Fingerprint> {
        match via.branch {
            Some(branch) if via.has_magic_cookie() => {
                Some(self.matcher.by_branch(branch, via, method))
            }
            _ => self.matcher.by_headers(message, via, method),
        }
    }

    /// RFC 3261 §17.2.3: an ACK of RFC 2543 must have the To tag of the response as well.
    fn is_its_ack(
        &self,
        slot: u32,
        message: &Message<'_>,
        via: &Via<'_>,
        method: Method<'_>,
    ) -> bool {
        if method != Method::Ack || via.has_magic_cookie() {
            return true;
        }
        let tag = message.to().ok().and_then(|to| to.tag);
        self.responded_tag(slot)
            .is_none_or(|ours| tag == Some(ours))
    }

    /// Whether an ACK is for a final response that this engine, or one with the same key, has sent without state. The
    /// To tag of such a response is derived from the request, and the ACK has the branch of the request
    /// (RFC 3261 §17.1.1.3).
    fn is_for_stateless(
        &self,
        ack: &CommonHeaders<'_>,
        via: &Via<'_>,
        fingerprint: Fingerprint,
    ) -> bool {
        ack.to_tag.is_some_and(|tag| {
            tag.len() == Tag::LEN
                && (Tag::new(self.matcher.stateless_tag(fingerprint)).as_bytes() == tag
                    || self.tag_of(via).as_bytes() == tag)
        })
    }

    /// An ACK without a transaction is the ACK for a 2xx. It belongs to an INVITE within the dialog, or to the INVITE
    /// that a To tag of this server names.
    fn ack_in<'m>(
        &mut self,
        message: Message<'m>,
        via: &Via<'m>,
        essentials: &CommonHeaders<'_>,
        flow: &Flow,
    ) -> Received<'m> {
        let within = self.invite_within(essentials);
        let named = match (within, essentials.to_tag) {
            (None, Some(tag)) => self.codec.read_tag(tag, self.tag_bound_to(essentials)),
            _ => None,
        };
        if let Some(named) = named
            && named.worker != self.config.worker
        {
            return Received::Elsewhere {
                worker: named.worker,
            };
        }
        self.stats.acks += 1;
        let key = within.or(named.map(|named| ServerKey {
            slot: named.slot,
            generation: named.generation,
        }));
        let mut invite: Option<(ServerKey, Option<Mark>)> = None;
        if let Some(key) = key
            && let Some(server) = self.servers.slab.get(key.slot, key.generation)
        {
            invite = Some((key, server.mark));
            self.stop_repeating(key);
        }
        Received::Ack(Ack {
            message,
            via: *via,
            flow: *flow,
            invite,
        })
    }

    /// What a To tag of ours in a message like this is bound to.
    pub(super) fn tag_bound_to(&self, message: &CommonHeaders<'_>) -> u64 {
        let from_tag = message.from_tag.unwrap_or_default();
        self.codec.dialog(message.call_id, from_tag)
    }

    fn invite_within(&mut self, ack: &CommonHeaders<'_>) -> Option<ServerKey> {
        if !self.servers.has_invites_within_dialogs() {
            return None;
        }
        let slot = self.servers.find_related(self.matcher.by_dialog(ack)?)?;
        let (generation, _) = self.servers.slab.at(slot)?;
        Some(ServerKey { slot, generation })
    }

    pub(super) fn drop_message<'m>(&mut self, reason: DropReason) -> Received<'m> {
        self.stats.count_drop(reason);
        Received::Dropped(reason)
    }

    /// Refuses what the rules refuse (RFC 3261 §8.2, §16.3), keeping nothing: its repetition is refused again.
    fn judged<'m>(&mut self, flow: &Flow, bytes: &[u8], verdict: Verdict<'_>) -> Received<'m> {
        let (answerable, refusal) = match verdict {
            Verdict::Answer(answerable, refusal) => (answerable, refusal),
            Verdict::Drop(reason) => return self.drop_message(reason.into()),
            Verdict::Accept(_) => return Received::Absorbed,
        };
        let via = answerable.top_via();
        let tag = self.tag_of(via);
        let stamp = Stamp::of(via, flow.remote);
        let tag = tag.as_bytes();
        let rules = &self.config.rules;
        let written = refusal.write(&mut self.scratch, &answerable, rules, tag, stamp);
        let Ok(length) = written.map(<[u8]>::len) else {
            return self.drop_message(DropReason::NoReturnPath);
        };
        let reports_load = self.reports_load(via);
        if length > self.room_for(flow, bytes, reports_load) {
            return self.drop_message(DropReason::Amplification);
        }
        self.stats.count_sent(refusal.code);
        let to = Engine::scanned_reply(flow, &self.steering(flow, via));
        self.send_response(to, Origin::Nobody, length, reports_load);
        Received::Refused(refusal.code)
    }

    /// The To tag of an answer that is not kept: by the Via alone, which a repetition shares.
    fn tag_of(&self, via: &Via<'_>) -> Tag {
        let branch = via.branch.unwrap_or_default();
        let fingerprint = self.matcher.by_branch(branch, via, Method::Other(b""));
        Tag::new(self.matcher.stateless_tag(fingerprint))
    }

    /// Answers a request that was only scanned, but for its Via, without keeping anything; false if no answer can be
    /// made.
    fn refuse<'m>(
        &mut self,
        flow: &Flow,
        scan: &Scan<'m>,
        via: &Via<'m>,
        reply: &Reply<'_>,
    ) -> bool {
        let answerable = scan.answerable_to((*via, true));
        let tag = self.tag_of(via);
        let stamp = Stamp::of(via, flow.remote);
        let none = std::iter::empty();
        let tag = tag.as_bytes();
        let built = compose::response(&mut self.scratch, &answerable, reply, tag, stamp, none);
        let Ok(length) = built.map(<[u8]>::len) else {
            return false;
        };
        let reports_load = self.reports_load(via);
        if length > self.room_for(flow, scan.head(), reports_load) {
            return false;
        }
        self.stats.count_sent(reply.code());
        let to = Engine::scanned_reply(flow, &self.steering(flow, via));
        self.send_response(to, Origin::Nobody, length, reports_load);
        true
    }

    fn admit(
        &mut self,
        now: Mono,
        class: Class,
        flow: &Flow,
        (bytes, fields): (&[u8], &ProofFields<'_>),
    ) -> Admission {
        let source = flow.remote.ip();
        let proof = &self.proof;
        let is_of_cluster = || proof.as_ref().is_some_and(|it| it.is_of_cluster(fields));
        let controller = &mut self.controller;
        let is_stream = flow.connection.is_some();
        if controller.exceeds_limit(now, class, source, is_of_cluster) {
            match controller.shed_over_limit(is_stream) {
                Some(admission) => return admission,
                None => controller.count_accepted(now, source),
            }
            return Admission::Accept;
        }
        if is_stream {
            return controller.admit_from_stream(now, class, source);
        }
        // The filter lets each To tag and all credentials pass, because it cannot check them.
        let can_filter = fields.to_tag.is_empty() && fields.credentials == [None; 2];
        if class == Class::New && can_filter && Filter::concerns(bytes) {
            return controller.admit_filterable(now, source, bytes);
        }
        controller.admit(now, class, source)
    }

    /// What the To tag of a request proves: nothing, if this server has not written it and the TU does not recognize
    /// the dialog.
    fn dialog_of(&self, fields: &ProofFields<'_>) -> Dialog {
        if fields.to_tag.is_empty() {
            return Dialog::None;
        }
        let bound_to = self.codec.dialog(fields.call_id, fields.from_tag);
        if self.codec.read_tag(fields.to_tag, bound_to).is_some() {
            return Dialog::Ours;
        }
        match &self.proof {
            Some(proof) if proof.is_of_dialog(fields) => Dialog::Proven,
            _ => Dialog::None,
        }
    }

    /// The class of a request with these traits, and what these fields prove.
    fn class_of(&self, mut traits: Traits<'_>, fields: &ProofFields<'_>) -> Class {
        traits.dialog = self.dialog_of(fields);
        traits.has_fresh_nonce = fields.credentials != [None; 2]
            && self
                .proof
                .as_ref()
                .is_some_and(|it| it.has_fresh_nonce(fields));
        traits.class()
    }

    /// Decides by the scan alone whether a message is shed, after known transactions have been matched.
    fn shed(&mut self, now: Now, flow: &Flow, bytes: &[u8]) -> Shed {
        let Ok(scan) = Scan::of(bytes, &self.config.limits) else {
            return Shed::Unknown;
        };
        let (Some(method), Some(via)) = (scan.method, scan.top_via()) else {
            return Shed::Unknown;
        };
        // Transactions of RFC 2543 are known by more than the scan has read.
        let Some(branch) = via.branch.filter(|_| via.has_magic_cookie()) else {
            return Shed::Unknown;
        };
        let is_known = |method| {
            let fingerprint = self.matcher.by_branch(branch, &via, method);
            self.servers.find(fingerprint).is_some()
        };
        if method == Method::Ack {
            // An INVITE may have been refused first, and accepted when it was sent again.
            let is_of_refusal = scan.to_tag() == Some(self.tag_of(&via).as_bytes());
            return match is_of_refusal && !is_known(Method::Invite) {
                true => Shed::AckOfRefusal,
                false => Shed::Unknown,
            };
        }
        // A CANCEL belongs where its INVITE is; without one it is new work.
        if is_known(method) || (method == Method::Cancel && is_known(Method::Invite)) {
            return Shed::Unknown;
        }
        let traits = scanned_traits(&scan);
        let fields = ProofFields {
            uri: traits.uri,
            call_id: scan.valid_call_id().unwrap_or_default(),
            from_tag: scan.from_tag().unwrap_or_default(),
            to_tag: scan.to_tag().unwrap_or_default(),
            source: Some(flow.remote.ip()),
            route: scan.route.unwrap_or_default(),
            credentials: scan.credentials,
            unix_s: now.unix_s,
        };
        let class = self.class_of(traits, &fields);
        match self.admit(now.mono, class, flow, (bytes, &fields)) {
            Admission::Accept => Shed::Admitted,
            Admission::Drop => Shed::Dropped,
            Admission::Refuse { retry_after_s } => {
                self.stats.requests += 1;
                self.refuse_congested(flow, &scan, &via, retry_after_s)
            }
        }
    }

    /// A 503, made in the buffer that is kept: nothing is allocated.
    fn refuse_congested<'m>(
        &mut self,
        flow: &Flow,
        scan: &Scan<'m>,
        via: &Via<'m>,
        retry_after_s: u32,
    ) -> Shed {
        // A sender that supports RFC 7339 gets the share to throttle; a Retry-After would stop it altogether. RFC 7339
        // §5.10.2 allows no Retry-After for other senders either; they get it by RFC 3261 §21.5.4.
        let mut line = [0; RETRY_AFTER_LEN];
        let headers = if self.reports_load(via) {
            &[][..]
        } else {
            retry_after(&mut line, retry_after_s)
        };
        let reply = Reply::new(503).headers(headers);
        if self.refuse(flow, scan, via, &reply) {
            Shed::Refused
        } else {
            Shed::Dropped
        }
    }
}

/// What the scan decided.
enum Shed {
    /// The filter cannot decide, so the engine does.
    Unknown,
    Admitted,
    /// The ACK for a 503 that was sent without a transaction.
    AckOfRefusal,
    Refused,
    Dropped,
}

fn retry_after(line: &mut [u8; RETRY_AFTER_LEN], seconds: u32) -> &[u8] {
    let mut digits = [0; 10];
    let digits = crate::build::decimal(seconds, &mut digits);
    let mut length = 0;
    for part in [&b"Retry-After: "[..], digits, b"\r\n"] {
        if let Some(room) = line.get_mut(length..length + part.len()) {
            room.copy_from_slice(part);
            length += part.len();
        }
    }
    line.get(..length).unwrap_or_default()
}

/// What the request line says.
fn traits<'m>(message: &Message<'m>) -> Traits<'m> {
    Traits {
        method: message.method().map(Method::as_bytes).unwrap_or_default(),
        uri: message.request_uri().unwrap_or_default(),
        ..Traits::default()
    }
}

/// The same of a scan.
fn scanned_traits<'m>(scan: &Scan<'m>) -> Traits<'m> {
    let method = scan.method.map(Method::as_bytes).unwrap_or_default();
    let behind = scan.head().get(method.len() + 1..).unwrap_or_default();
    let uri_len = memchr::memchr(b' ', behind).unwrap_or(0);
    Traits {
        method,
        uri: behind.get(..uri_len).unwrap_or_default(),
        ..Traits::default()
    }
}
