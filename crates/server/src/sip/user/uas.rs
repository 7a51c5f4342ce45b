//! The user agent server for tests: it accepts REGISTER and INVITE of everybody, and keeps nothing of a REGISTER.

use super::ringing::Ringing;
use super::{SIPS_NOT_ALLOWED_LINE, TuCounts};
use crate::sip::Secrets;
use crate::sip::lines::{self, Bindings, CapabilityLines, SipsDemand};
use io::clock::monotonic_ns;
use sip::build::request_of_uas;
use sip::congestion::Class;
use sip::dispatch::{AllowedDestination, OutgoingRequest, PeerGroups, SendFrom};
use sip::engine::{Engine, Mark, NewRequest, Reply, RespondError, ServerKey, Signature};
use sip::flow::Flow;
use sip::tu::Transactions;
use sip::ua::{Dialog, Dialogs};
use sip::{Message, Method, Mono, Spans, Uri};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The number of the first request that this end sends in a dialog: any will do (RFC 3261 §12.2.1.1).
const FIRST_CSEQ: u32 = 1;

/// The user agent server of a worker.
#[derive(Debug)]
pub(super) struct TestUas {
    dialogs: Dialogs,
    ringing: Ringing,
    hash: RandomState,
    body: Vec<u8>,
    spans: Box<Spans>,
    /// How long it works on each request that it accepts.
    pub(super) service_time: Duration,
}

impl TestUas {
    /// The user agent server of a worker, with the keys of tags of all workers.
    pub(super) fn new(secrets: &Secrets) -> TestUas {
        TestUas {
            dialogs: Dialogs::new(secrets.key),
            ringing: Ringing::default(),
            hash: RandomState::new(),
            body: Vec::new(),
            spans: Box::default(),
            service_time: Duration::ZERO,
        }
    }

    /// The next timeout of a call that rings.
    pub(super) fn next_end(&self) -> Option<Mono> {
        self.ringing.next_end()
    }

    /// Ends one call after its timeout. Returns whether there was one.
    pub(super) fn expire(&mut self, transactions: &mut Transactions<'_>) -> bool {
        let due = self.ringing.expired(transactions.now.mono);
        if let Some((key, code)) = due {
            // Its transaction may have ended in the same moment.
            let _ = transactions.respond(key, &Reply::new(code));
        }
        due.is_some()
    }

    /// Cancels a call before its final response (RFC 3261 §9.2).
    pub(super) fn cancel(&mut self, transactions: &mut Transactions<'_>, invite: ServerKey) {
        self.ringing.end(invite);
        // Its final response may have been sent before.
        let _ = transactions.respond(invite, &Reply::new(487));
    }

    /// The dialog of ours that a request is in.
    pub(super) fn dialog_of(&self, request: &NewRequest<'_>) -> Option<Dialog> {
        self.dialogs.of(request)
    }

    /// §10.3, for a registrar that forgets: what it would refuse is refused. The first `written` bytes of the lines
    /// stand already.
    pub(super) fn register(
        &self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
        buffer: &mut [u8],
        written: usize,
    ) -> Result<(), RespondError> {
        self.work();
        let room = &mut buffer[written..];
        let reply = match lines::bindings(room, &request.message)? {
            Bindings::Lines(lines) => {
                let end = written + lines.len();
                Reply::new(200).headers(&buffer[..end])
            }
            Bindings::NotSips => Reply::new(400).reason(b"SIPS Contact Without SIPS Request-URI"),
            Bindings::Wrong => Reply::new(400).reason(b"Contact * Goes Alone and With Expires 0"),
        };
        transactions.answer(request, &reply).map(drop)
    }

    /// §15.1.2.
    pub(super) fn bye(
        &mut self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
    ) -> Result<(), RespondError> {
        let Some(dialog) = self.dialog_of(&request) else {
            // As with a CANCEL of nothing.
            return transactions.answer_statelessly(request, &Reply::new(481));
        };
        self.work();
        transactions.answer(request, &Reply::new(200))?;
        dialog.ended(transactions.engine);
        // "The UAS MUST still respond to any pending requests received for that dialog", with 487.
        if let Some(invite) = dialog.unanswered(transactions.engine) {
            self.cancel(transactions, invite);
        }
        Ok(())
    }

    /// Handles an INVITE: refuses it, or responds 180, and 200 unless the callee is to ring.
    pub(super) fn invite(
        &mut self,
        transactions: &mut Transactions<'_>,
        request: NewRequest<'_>,
        buffer: &mut [u8],
        abilities: &CapabilityLines,
    ) -> Result<(), RespondError> {
        let (message, flow) = (request.message, request.flow);
        let callee = callee(&message);
        let contact = message.contact().ok().flatten();
        let uri = contact.map(|contact| contact.uri);
        let sips = SipsDemand::of(&message, uri, flow.transport);
        let is_sips = sips == SipsDemand::Yes;
        let mut later = *b"Retry-After: 0\r\n";
        let refusal = self.refusal_of_invite(&request, transactions.engine, sips, &mut later);
        if let Some(reply) = refusal {
            return transactions.answer(request, &reply).map(drop);
        }
        let key = transactions.accept(request, None)?;
        self.work();
        let ours = lines::contact(buffer, &signature(transactions.engine, &flow)?, is_sips)?;
        transactions.respond(key, &Reply::new(180).headers(ours))?;
        let now = transactions.now.mono;
        if callee == Some(b"ring") {
            self.ringing.begin(now, key, &message);
            return Ok(());
        }
        lines::without_media(&mut self.body, &message, flow.local.ip(), now.0);
        let own = signature(transactions.engine, &flow)?;
        let lines = lines::dialog(buffer, &own, is_sips, abilities)?;
        // Whom a BYE would go to if no ACK comes.
        let target = contact.map_or(&b""[..], |contact| contact.uri);
        let reply = Reply::new(200).headers(lines).body(&self.body);
        transactions.respond(key, &reply.until_ack_from(target))
    }

    /// The refusal of an INVITE, if it is refused. `later` is the buffer for a header field.
    fn refusal_of_invite<'r>(
        &self,
        request: &NewRequest<'_>,
        engine: &mut Engine,
        sips: SipsDemand,
        later: &'r mut [u8; 16],
    ) -> Option<Reply<'r>> {
        let message = &request.message;
        let dialog = self.dialog_of(request);
        if request.to_tag().is_some() && dialog.is_none() {
            Some(Reply::new(481))
        } else if dialog
            .and_then(|dialog| dialog.unanswered(engine))
            .is_some()
        {
            // §14.2: while the one before is not answered, "a randomly chosen value of between 0 and 10 seconds".
            later[13] += (self.hash.hash_one(request.via.branch) % 10) as u8;
            Some(Reply::new(500).headers(later))
        } else if request.via.has_magic_cookie() && message.contact().ok().flatten().is_none() {
            // §8.1.1.8: without a Contact, no request can be sent within the dialog. RFC 2543 had calls without.
            Some(Reply::new(400).reason(b"Missing Contact"))
        } else if sips == SipsDemand::Inconsistent {
            // RFC 5630 §5.1.2.
            Some(Reply::new(400).reason(b"Contact Must Be a SIPS URI"))
        } else if sips == SipsDemand::NotHere {
            Some(Reply::new(480).headers(SIPS_NOT_ALLOWED_LINE))
        } else if callee(message) == Some(b"busy") {
            Some(Reply::new(486))
        } else {
            None
        }
    }

    /// RFC 3261 §13.3.1.4: no ACK has come, so the dialog is ended with a BYE. The caller has chosen the target of the
    /// BYE. So it goes only to the caller's address, or where `sip.targets` lets requests go: otherwise anybody could
    /// make this server send to anybody.
    pub(super) fn end_dialog(
        &mut self,
        transactions: &mut Transactions<'_>,
        (flow, response, target): (&Flow, &[u8], &[u8]),
        (mark, buffer): (Mark, &mut [u8]),
        counts: &mut TuCounts,
    ) {
        counts.unacknowledged += 1;
        let Ok(response) = Message::parse(response, &mut self.spans) else {
            return;
        };
        let Ok(bye) = request_of_uas(buffer, Method::Bye, &response, target, FIRST_CSEQ) else {
            return;
        };
        let order = OutgoingRequest {
            target: bye.next_hop,
            pieces: &[bye.bytes],
            class: Class::Finishing,
            mark,
            reach: AllowedDestination::NearOrGroups(Some(flow.remote.ip()), PeerGroups::All),
            // Who came by TCP has a Contact that can be connected to; of the others that is not known.
            flow: (!flow.transport.is_reused() && flow.transport.is_reliable()).then_some(*flow),
            from: Some(SendFrom {
                listener: flow.listener,
                local: Some(flow.local),
            }),
            loop_check: None,
        };
        if let Err(error) = transactions.send(&order) {
            counts.refused += 1;
            tracing::debug!(%error, "no BYE for a call that was not acknowledged");
        }
    }

    /// Uses the processor as an application would.
    fn work(&self) {
        if self.service_time.is_zero() {
            return;
        }
        let time = u64::try_from(self.service_time.as_nanos()).unwrap_or(u64::MAX);
        let until = monotonic_ns() + time;
        while monotonic_ns() < until {
            std::hint::spin_loop();
        }
    }
}

/// The names of this server for the source of a request.
fn signature<'e>(engine: &'e Engine, flow: &Flow) -> Result<Signature<'e>, RespondError> {
    let own = engine.signature(&flow.into());
    own.ok_or(RespondError::Unanswerable)
}

/// The user of the Request-URI.
fn callee<'m>(message: &Message<'m>) -> Option<&'m [u8]> {
    match Uri::parse(message.request_uri()?) {
        Ok(Uri::Sip(uri)) => uri.user,
        _ => None,
    }
}
