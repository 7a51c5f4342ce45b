//! A message from its bytes to its answer: what is shed, what is parsed, who answers.

use super::connection::Connection;
use super::counters::{SipCounters, method_index};
use super::listeners::SipListener;
use super::outgoing::Outgoing;
use super::reply::{self, Reply, Served, Writing};
use super::responder::Responder;
use super::settings::Orders;
use super::{Secrets, stun};
use sip::build::{Answerable, Stamp};
use sip::flow::Flow;
use sip::frame::Packet;
use sip::header::{Rport, Via};
use sip::routing::{SentBy, response_address};
use sip::verdict::{Refusal, Verdict, judge, judge_bytes};
use sip::{Framing, Limits, Message, Mono, Now, ParseError, Spans};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;

/// What an answer has beyond what it copies from its request, at most.
const BEYOND: usize = 8 << 10;

/// One worker's end of all SIP flows.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(super) now: Now,
    pub(super) orders: Arc<Orders>,
    pub(super) limits: Limits,
    pub(super) counters: SipCounters,
    responder: Responder,
    /// Taken out while a message refers to it.
    spans: Option<Box<Spans>>,
    /// Where answers are written.
    buffer: Vec<u8>,
}

impl Endpoint {
    pub(crate) fn new(orders: Arc<Orders>, secrets: Secrets, now: Now) -> Endpoint {
        let mut endpoint = Endpoint {
            now,
            limits: Limits::DEFAULT,
            counters: SipCounters::default(),
            responder: Responder::new(secrets.hash),
            spans: Some(Box::default()),
            buffer: Vec::new(),
            orders: Arc::clone(&orders),
        };
        endpoint.obey(orders);
        endpoint
    }

    /// New settings.
    pub(super) fn obey(&mut self, orders: Arc<Orders>) {
        let settings = &orders.settings;
        self.limits = Limits {
            head_bytes: settings.head_bytes as usize,
            headers: settings.headers as usize,
            body_bytes: settings.body_bytes as usize,
            ..Limits::DEFAULT
        };
        // Body lines come back in an answer to an offer.
        self.buffer = vec![0; orders.message_bytes() + BEYOND];
        self.orders = orders;
    }

    pub(super) fn orders_and_counters(&mut self) -> (&Orders, &mut SipCounters) {
        (&self.orders, &mut self.counters)
    }

    pub(super) fn next_deadline(&self) -> Option<Mono> {
        None
    }

    pub(super) fn expire(&mut self, _outgoing: &mut Outgoing<'_, '_, '_>) {}

    pub(super) fn observe_datagrams(&mut self, _listener: &SipListener, _full: bool, _lost: u64) {}

    pub(super) fn observe_stream(&mut self, _connection: &Connection, _read: usize) {}

    pub(super) fn begin_batch(&mut self) {}

    pub(super) fn end_batch(&mut self, _handled: usize) {}

    /// A datagram that a listener received.
    pub(super) fn datagram(
        &mut self,
        bytes: &[u8],
        flow: &Flow,
        outgoing: &mut Outgoing<'_, '_, '_>,
    ) {
        match Packet::of(bytes) {
            Packet::Stun => self.stun(bytes, flow, outgoing),
            // A newline keeps a NAT's binding alive and wants no answer.
            Packet::KeepAlive => self.counters.pings += 1,
            Packet::Sip => {
                self.counters.udp_messages += 1;
                self.message(bytes, flow, Framing::Datagram, outgoing);
            }
            Packet::Other => self.counters.malformed += 1,
        }
    }

    /// A message that came whole over a connection.
    pub(super) fn stream_message(
        &mut self,
        bytes: &[u8],
        flow: &Flow,
        outgoing: &mut Outgoing<'_, '_, '_>,
    ) {
        self.counters.tcp_messages += 1;
        self.message(bytes, flow, Framing::Stream, outgoing);
    }

    /// What a connection sent is no message; it is told so, if that is possible, before the connection is closed.
    pub(super) fn refuse_stream(
        &mut self,
        bytes: &[u8],
        error: ParseError,
        flow: &Flow,
        outgoing: &mut Outgoing<'_, '_, '_>,
    ) {
        self.counters.tcp_messages += 1;
        let verdict = judge_bytes(bytes, &self.limits, error);
        self.obey_verdict(verdict, flow, outgoing);
    }

    fn stun(&mut self, bytes: &[u8], flow: &Flow, outgoing: &mut Outgoing<'_, '_, '_>) {
        let mut buffer = [0; ::stun::BINDING_SUCCESS_MAX];
        match stun::answer(bytes, flow.remote, &mut buffer) {
            Some(answer) => {
                self.counters.stun_answers += 1;
                outgoing.send(flow, answer, &mut self.counters);
            }
            None => self.counters.stun_dropped += 1,
        }
    }

    fn message(
        &mut self,
        bytes: &[u8],
        flow: &Flow,
        framing: Framing,
        outgoing: &mut Outgoing<'_, '_, '_>,
    ) {
        self.counters.bytes_received += bytes.len() as u64;
        let Some(mut spans) = self.spans.take() else {
            return;
        };
        let rules = self.served().rules();
        let verdict = judge(bytes, &mut spans, framing, &self.limits, &rules);
        self.obey_verdict(verdict, flow, outgoing);
        self.spans = Some(spans);
    }

    fn obey_verdict(
        &mut self,
        verdict: Verdict<'_>,
        flow: &Flow,
        outgoing: &mut Outgoing<'_, '_, '_>,
    ) {
        match verdict {
            Verdict::Accept(message) => self.accepted(&message, flow, outgoing),
            Verdict::Answer(answerable, refusal) => {
                self.counters.malformed += 1;
                self.refuse(&answerable, &refusal, flow, outgoing);
            }
            Verdict::Drop(_) => self.counters.malformed += 1,
        }
    }

    fn accepted(
        &mut self,
        message: &Message<'_>,
        flow: &Flow,
        outgoing: &mut Outgoing<'_, '_, '_>,
    ) {
        if let Some(code) = message.status_code() {
            let class = usize::from(code / 100).clamp(1, 6) - 1;
            self.counters.responses_received[class] += 1;
            self.counters.stray_responses += 1;
            return;
        }
        let Some(method) = message.method() else {
            return;
        };
        self.counters.requests[method_index(method.as_bytes())] += 1;
        let Some(answerable) = message.answerable() else {
            self.counters.stray_acks += 1;
            return;
        };
        let reply = self.responder.answer(message);
        self.reply(&reply, &answerable, message, flow, outgoing);
    }

    pub(super) fn served(&self) -> Served {
        match self.orders.settings.test_uas {
            true => Served::TestUas,
            false => Served::Options,
        }
    }

    /// What was refused is answered and forgotten (RFC 3261 §8.2.7).
    fn refuse(
        &mut self,
        to: &Answerable<'_>,
        refusal: &Refusal<'_>,
        flow: &Flow,
        outgoing: &mut Outgoing<'_, '_, '_>,
    ) {
        let Some(via) = to.top_via() else {
            return;
        };
        let (rules, stamp) = (self.served().rules(), Stamp::of(&via, flow.remote));
        let tag = self.responder.tag(b"", via.branch.unwrap_or_default());
        let mut buffer = std::mem::take(&mut self.buffer);
        if let Ok(bytes) = refusal.write(&mut buffer, to, &rules, tag.as_bytes(), stamp) {
            self.send_back(refusal.code, bytes, &via, flow, outgoing);
        }
        self.buffer = buffer;
    }

    /// Writes an answer and sends it without keeping anything.
    fn reply(
        &mut self,
        reply: &Reply,
        to: &Answerable<'_>,
        message: &Message<'_>,
        flow: &Flow,
        outgoing: &mut Outgoing<'_, '_, '_>,
    ) {
        let Some(via) = to.top_via() else {
            return;
        };
        let mut contact = Contact::default();
        let from_tag = message.from().ok().and_then(|from| from.tag);
        let writing = Writing {
            served: self.served(),
            stamp: Stamp::of(&via, flow.remote),
            tag: self.responder.tag(
                message.call_id().unwrap_or_default(),
                from_tag.unwrap_or_default(),
            ),
            contact: contact.write(flow.local),
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        if let Ok(bytes) = reply::write(&mut buffer, reply, to, message, &writing) {
            self.send_back(reply.code, bytes, &via, flow, outgoing);
        }
        self.buffer = buffer;
    }

    /// Sends a response to where the request's topmost Via says (RFC 3261 §18.2.2).
    fn send_back(
        &mut self,
        code: u16,
        bytes: &[u8],
        via: &Via<'_>,
        flow: &Flow,
        outgoing: &mut Outgoing<'_, '_, '_>,
    ) {
        let sent_by = SentBy {
            port: via.port,
            rport: via.rport != Rport::Absent,
            maddr: via.maddr.and_then(|maddr| maddr.ip()),
        };
        let to = Flow {
            remote: response_address(flow.carrier, flow.remote, sent_by),
            ..*flow
        };
        let class = usize::from(code / 100).clamp(1, 6) - 1;
        self.counters.responses_sent[class] += 1;
        self.counters.bytes_sent += bytes.len() as u64;
        if !outgoing.send(&to, bytes, &mut self.counters) {
            self.counters.unsent += 1;
        }
    }
}

/// The longest is `<sip:[39 digits]:65535;transport=tcp>`.
const CONTACT: usize = 72;

/// The Contact of this server on a flow, written where it is used.
#[derive(Debug)]
pub(super) struct Contact {
    text: [u8; CONTACT],
}

impl Default for Contact {
    fn default() -> Contact {
        Contact { text: [0; CONTACT] }
    }
}

impl Contact {
    /// The address that the client used leads back to here.
    pub(super) fn write(&mut self, local: SocketAddr) -> &[u8] {
        let mut room = &mut self.text[..];
        // An address is never that long.
        let _ = write!(room, "<sip:{local}>");
        let left = room.len();
        &self.text[..CONTACT - left]
    }
}
