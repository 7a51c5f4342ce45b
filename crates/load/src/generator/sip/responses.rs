//! Responses, and their effect on their unit of work.

use memchr::memmem;

use super::authorize::CurrentRequest;
use super::core::{
    Core, LAST_TRY_OF_CALL, LAST_TRY_OF_REQUEST, MS, PREFIX, WorkContext, cseq_of, expected_role,
};
use super::slots::{Slot, Stage};
use super::template::{ID_LENGTH, read_id};
use super::texts::{FIRST_SERVER, role};
use crate::measure::{Arrival, Counter};
use crate::sip::lines::{Lines, leading_number};
use crate::sip::out::Origin;
use crate::sip::timers::{GIVE_UP_NS, T2_NS};

/// How long a call may ring.
const RING_NS: u64 = 180_000_000_000;

/// What a branch of ours says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Branch {
    place: u32,
    generation: u32,
    role: u8,
    server: u8,
}

impl Core {
    /// Takes a message that came.
    pub(super) fn take(&mut self, origin: Origin, message: &[u8], around: WorkContext<'_>) {
        let Some(status) = status(message) else {
            return self.take_request(origin, message, around);
        };
        let measuring = u64::from(around.shared.measured(around.now_ns));
        let Some(branch) = self.branch(message) else {
            self.tally.report.stray += measuring;
            return;
        };
        let class = usize::from(status / 100).clamp(1, 6) - 1;
        self.tally.report.responses[class] += measuring;
        let Branch {
            place, generation, ..
        } = branch;
        let Some(slot) = self.slots.find(place, generation) else {
            match self.slots.was(place, generation) {
                true => self.tally.report.second += measuring,
                false => self.tally.report.stray += measuring,
            }
            return;
        };
        let slot = *slot;
        let server = FIRST_SERVER + self.server_of(slot.link);
        let is_expected = (branch.role, branch.server) == (expected_role(&slot), server);
        let Some(is_cancel) = self.matches_request(message, place, branch.role, is_expected) else {
            self.tally.report.wrong_cseq += measuring;
            return;
        };
        if is_cancel {
            self.cancel_answered(place, around);
        } else if !is_expected {
            self.late(place, branch.role, status, measuring);
        } else if status < 200 {
            self.provisional(place, around);
        } else {
            self.handle_final_response(place, status, message, around);
        }
    }

    /// Where our branch is in a response: it is in the topmost Via, which a server repeats as it was.
    fn branch(&mut self, message: &[u8]) -> Option<Branch> {
        let hinted = message.get(self.hint..self.hint + PREFIX);
        if hinted != Some(&self.needle[..]) {
            self.hint = memmem::find(message, &self.needle)?;
        }
        let id = message.get(self.hint + PREFIX..)?;
        let (place, generation) = read_id(id)?;
        Some(Branch {
            place,
            generation,
            role: id.get(ID_LENGTH)?.to_ascii_lowercase(),
            server: id.get(ID_LENGTH + 1)?.to_ascii_lowercase(),
        })
    }

    /// RFC 3261 §17.1.3: the method in the CSeq of a response must be that of the request; its number is the request's
    /// as well (§8.2.6.2). `None` if it is another one, else whether the response is to a CANCEL.
    fn matches_request(
        &mut self,
        message: &[u8],
        place: u32,
        role: u8,
        is_expected: bool,
    ) -> Option<bool> {
        let value = self.cseq_value(message)?.trim_ascii_start();
        let digits = value.iter().take_while(|byte| byte.is_ascii_digit());
        let method = value[digits.count()..].trim_ascii_start();
        let end = method.iter().position(|byte| !byte.is_ascii_alphabetic());
        let method = &method[..end.unwrap_or(method.len())];
        let slot = self.slots.get(place);
        let number = u64::from(cseq_of(slot, role));
        let found = leading_number(value);
        // What was out before had the number that it has, or a smaller one.
        let is_number = found == number || (!is_expected && found < number);
        let ours: &[u8] = if role::is_of(role, role::BYE) {
            b"BYE"
        } else if role::is_of(role, role::ENROL) {
            b"REGISTER"
        } else {
            self.setting.options.workload.method().as_bytes()
        };
        let is_cancel = slot.stage == Stage::Cancelling && method == b"CANCEL";
        (is_number && (method == ours || is_cancel)).then_some(is_cancel)
    }

    fn cseq_value<'a>(&mut self, message: &'a [u8]) -> Option<&'a [u8]> {
        const NAME: &[u8] = b"\nCSeq:";
        let hinted = message.get(self.cseq_hint..self.cseq_hint + NAME.len());
        if hinted != Some(NAME) {
            let Some(at) = memmem::find(message, NAME) else {
                return Lines::of(message).find(b"CSeq", b"CSeq");
            };
            self.cseq_hint = at;
        }
        Some(&message[self.cseq_hint + NAME.len()..])
    }

    /// Which server a link leads to.
    fn server_of(&self, link: u16) -> u8 {
        (usize::from(link) / self.per_server.max(1)) as u8
    }

    /// A response to a request that is over while its unit of work is not.
    fn late(&mut self, place: u32, role: u8, status: u16, measuring: u64) {
        let stage = self.slots.get(place).stage;
        let in_call = matches!(stage, Stage::Talking | Stage::Bye);
        let is_first = role::is_of(role, role::FIRST);
        if in_call && is_first && (200..300).contains(&status) {
            // RFC 3261 §13.2.2.4: every 2xx that comes again gets its ACK again.
            self.write_in_dialog(place, "ACK", role::ACK);
        } else {
            self.tally.report.second += measuring;
        }
    }

    fn provisional(&mut self, place: u32, around: WorkContext<'_>) {
        let invite = self.setting.options.workload.is_call();
        let slot = self.slots.get_mut(place);
        // A provisional response shows that the server is there, however long the call rings.
        around.counters.add(Counter::Heard, 1);
        if std::mem::replace(&mut slot.proceeding, true) {
            return;
        }
        let intended_ns = slot.intended_ns;
        if invite && slot.stage == Stage::First {
            if slot.measured {
                let latency_ns = around.now_ns.saturating_sub(intended_ns);
                self.came.record_part(0, latency_ns);
            }
            // RFC 3261 §17.1.1.2: no retransmissions of an INVITE after a provisional response.
            self.set_timer(place, around.now_ns + RING_NS);
        } else if slot.interval_ms > 0 {
            slot.interval_ms = (T2_NS / MS) as u32;
        }
    }

    /// The CANCEL arrived; the INVITE's own final response follows, and is waited for as long as RFC 3261 §9.1 says.
    fn cancel_answered(&mut self, place: u32, around: WorkContext<'_>) {
        around.counters.add(Counter::Heard, 1);
        self.slots.get_mut(place).interval_ms = 0;
        self.set_timer(place, around.now_ns + GIVE_UP_NS);
    }

    /// Handles a final response to the outstanding request.
    fn handle_final_response(
        &mut self,
        place: u32,
        status: u16,
        message: &[u8],
        around: WorkContext<'_>,
    ) {
        let success = (200..300).contains(&status);
        let slot = *self.slots.get(place);
        let is_invite = self.setting.options.workload.is_call()
            && matches!(slot.stage, Stage::First | Stage::Cancelling);
        if is_invite {
            self.memory(place).dialog.read(message, success);
            if success {
                return self.answered(place, around);
            }
            // RFC 3261 §17.1.1.3: the ACK of a refusal has the INVITE's branch, and its request URI.
            self.set_dialog_target(place);
            self.write_in_dialog(place, "ACK", expected_role(&slot));
        }
        let challenge = matches!(status, 401 | 407) && slot.challenges < role::CHALLENGES_MAX;
        if slot.stage == Stage::Cancelling {
            self.cancelled(place, status, around);
        } else if challenge && self.authorizer.is_some() {
            self.authorize(place, status, message, around);
        } else if success {
            self.renew_nonce(place, message);
            self.succeed(place, around);
        } else if slot.stage == Stage::Bye && slot.hung_up && matches!(status, 408 | 481) {
            // RFC 3261 §15.1.1: the two BYEs crossed, and the dialog is over on both sides.
            self.succeed(place, around);
        } else {
            self.fail(place, status, message, around);
        }
    }

    /// Makes the dialog of a call one whose requests go where the INVITE went.
    fn set_dialog_target(&mut self, place: u32) {
        let peer = self.setting.peer(self.slots.get(place).aor);
        let uri = self.setting.words.uri(&mut self.text, peer).to_vec();
        self.memory(place).dialog.set_target(&uri);
    }

    /// The method and URI of the outstanding request, and whose it is.
    fn asked(&mut self, place: u32) -> (::sip::Method<'static>, Vec<u8>, u32) {
        let slot = *self.slots.get(place);
        let words = &self.setting.words;
        match slot.stage {
            Stage::Bye => {
                let target = self.memories[place as usize].dialog.target();
                (::sip::Method::Bye, target.to_vec(), slot.aor)
            }
            Stage::Enrol => {
                let uri = words.registrar_uri.with_mark("").into_bytes();
                (::sip::Method::Register, uri, slot.aor)
            }
            _ => {
                let peer = self.setting.peer(slot.aor);
                let uri = words.uri(&mut self.text, peer).to_vec();
                let method = super::method(self.setting.options.workload);
                (method, uri, slot.aor)
            }
        }
    }

    fn answered(&mut self, place: u32, around: WorkContext<'_>) {
        self.write_in_dialog(place, "ACK", role::ACK);
        let hold_ns = self.setting.options.hold.as_nanos() as u64;
        let slot = self.slots.get_mut(place);
        let too_late = slot.stage == Stage::Cancelling;
        slot.stage = Stage::Talking;
        let latency_ns = around.now_ns.saturating_sub(slot.intended_ns);
        if slot.measured {
            self.came.record_part(1, latency_ns);
            self.came
                .record_part(LAST_TRY_OF_CALL, slot.since_try(around.now_ns));
        }
        // From now on the unit's time is that of its answer, and `succeed` takes note of it.
        slot.sent_ns = around.now_ns;
        around.counters.add(Counter::Heard, 1);
        self.memories[place as usize].dialog.answered_after_ns = latency_ns;
        if hold_ns > 0 && !too_late {
            self.set_timer(place, around.now_ns + hold_ns);
        } else {
            self.hang_up(place, around);
        }
    }

    fn authorize(&mut self, place: u32, status: u16, message: &[u8], around: WorkContext<'_>) {
        let (method, uri, aor) = self.asked(place);
        let Slot {
            stage,
            measured,
            challenges,
            ..
        } = *self.slots.get(place);
        let asked = CurrentRequest {
            method,
            uri: &uri,
            aor,
            only_if_stale: challenges > 0,
        };
        let mut line = std::mem::take(&mut self.memory(place).authorization);
        line.clear();
        if stage == Stage::Enrol {
            self.enrolment.write_expires(&mut line);
        }
        let authorizer = self.authorizer.as_mut();
        let made = authorizer.and_then(|one| one.answer(&mut line, status, message, asked));
        self.memories[place as usize].authorization = line;
        if let Some(made) = made {
            self.tally.report.challenges += u64::from(measured);
            self.tally.report.stale += u64::from(measured && made.stale);
            let slot = self.slots.get_mut(place);
            slot.challenges += 1;
            // The INVITE of a BYE keeps its number: a 2xx that comes again gets an ACK with it.
            slot.cseq += u32::from(stage != Stage::Bye);
            self.start(place, stage, around);
        } else {
            self.fail(place, status, message, around);
        }
    }

    fn renew_nonce(&mut self, place: u32, message: &[u8]) {
        let reuse = self.setting.options.reuse_nonces;
        let Some(authorizer) = self.authorizer.as_mut().filter(|_| reuse) else {
            return;
        };
        let name = b"Authentication-Info";
        if let Some(info) = Lines::of(message).find(name, name) {
            authorizer.renew(info, self.slots.get(place).aor);
        }
    }

    pub(super) fn succeed(&mut self, place: u32, around: WorkContext<'_>) {
        let slot = *self.slots.get(place);
        if slot.stage == Stage::Enrol {
            return self.enrolled(place, 0);
        }
        let mut latency_ns = around.now_ns.saturating_sub(slot.intended_ns);
        if self.setting.options.workload.is_call() {
            if slot.measured && slot.stage == Stage::Bye {
                let bye_ns = around.now_ns.saturating_sub(slot.sent_ns);
                self.came.record_part(2, bye_ns);
            }
            latency_ns = self.memories[place as usize].dialog.answered_after_ns;
        } else if slot.measured {
            self.came
                .record_part(LAST_TRY_OF_REQUEST, slot.since_try(around.now_ns));
        }
        let counters = around.counters;
        counters.add(Counter::Received, 1);
        counters.add(Counter::Succeeded, 1);
        self.live.record_ns(latency_ns);
        let within = around.shared.measured(around.now_ns);
        self.tally.succeeded(slot.intended_ns, latency_ns, within);
        if slot.measured {
            self.came.succeeded += 1;
            // The parts were recorded when they were over; this is the whole.
            self.came
                .note(Arrival::InOrder, 0, around.now_ns, latency_ns, usize::MAX);
        }
        self.release(place);
        self.over += u64::from(slot.measured);
    }

    fn fail(&mut self, place: u32, status: u16, message: &[u8], around: WorkContext<'_>) {
        let retry_after = Lines::of(message).find(b"Retry-After", b"Retry-After");
        let within = around.shared.measured(around.now_ns);
        let retry_after = retry_after.map(leading_number);
        self.tally.refused(status, retry_after, within);
        if status == 503 && self.setting.options.obey {
            let seconds = retry_after.unwrap_or(0).min(MAX_PEACE_S);
            let link = usize::from(self.slots.get(place).link);
            // RFC 3261 §21.5.4: nothing goes there for this long.
            self.links[link].retry_at_ns = around.now_ns + seconds * 1000 * MS;
            around.counters.add(Counter::Heard, 1);
            if self.fail_over(place, around) {
                return;
            }
        }
        self.failed(place, status, around);
    }

    /// A unit of work is over without success; 0 means no answer.
    pub(super) fn failed(&mut self, place: u32, code: u16, around: WorkContext<'_>) {
        let slot = *self.slots.get(place);
        if slot.stage == Stage::Enrol {
            return self.enrolled(place, code.max(1));
        }
        // Without a response the server may not be there.
        around.counters.add(Counter::Failed, u64::from(code != 0));
        let measured = u64::from(slot.measured);
        if slot.measured {
            self.came.failed += 1;
            *self.came.errors.entry(code).or_default() += 1;
        }
        self.release(place);
        let anew = measured * u64::from(self.setting.options.anew);
        self.anew += anew;
        self.over += measured - anew;
    }

    /// A call that rang is over because we ended it.
    fn cancelled(&mut self, place: u32, status: u16, around: WorkContext<'_>) {
        if status != 487 {
            // It was refused before the CANCEL came.
            return self.failed(place, status, around);
        }
        around.counters.add(Counter::Heard, 1);
        let measured = u64::from(self.slots.get(place).measured);
        self.tally.report.cancelled += measured;
        self.over += measured;
        self.release(place);
    }
}

/// A Retry-After above an hour counts as an hour: the sum of times must not overflow.
const MAX_PEACE_S: u64 = 3600;

/// The status of a response; `None` if it is none.
fn status(message: &[u8]) -> Option<u16> {
    let rest = message.strip_prefix(b"SIP/2.0 ")?;
    let digits = rest.first_chunk::<3>()?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits
        .iter()
        .fold(0, |number, digit| number * 10 + u16::from(digit - b'0'));
    (100..700).contains(&number).then_some(number)
}
