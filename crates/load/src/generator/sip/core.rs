//! The client transactions of a worker (RFC 3261 §17.1), without sockets: messages, times and room to write in; requests out.
//!
//! ```text
//!                       timer A/E, over UDP           B/F: 64 x T1
//!              ┌──── again ────┐                          │
//!   begin ─▶ First ──────── 2xx ─▶ over        OPTIONS, REGISTER
//!              │  └─ 401 ─▶ Authorized ─ 2xx ─▶ over
//!              └─ 2xx ─▶ ACK, Talking ─ hold ─▶ Bye ─ 2xx ─▶ over
//! ```
//! A response is told by its branch, which names slot and generation. Everything that is out is written anew from its template
//! when it leaves again, so nothing is kept of it.

use std::net::SocketAddr;
use std::sync::Arc;
use timers::{Mono, Wheel};

use memchr::memmem;

use super::answer::Dialog;
use super::authorize::Authorizer;
use super::options::{SipOptions, SipWorkload};
use super::slots::{Slots, Stage};
use super::tally::Tally;
use super::template::{FIRST_CSEQ, Fields, ID_LENGTH, Template, read_id};
use super::texts::{DialogRequest, InDialog, SALT, Words, leg};
use crate::generator::end::Came;
use crate::generator::live::Live;
use crate::generator::shared::Shared;
use crate::measure::{Arrival, Counter, Counters};
use crate::sip::Transport;
use crate::sip::lines::{Lines, leading_number};
use crate::sip::out::Out;
use crate::sip::timers::{GIVE_UP_NS, T1_NS, T2_NS};

/// Resolution of the timers.
const TICK_NS: u64 = 1_000_000;
const MS: u64 = 1_000_000;
/// How long a call may ring. A UAC has no such timer of its own; the generator must not wait for ever.
const RING_NS: u64 = 180_000_000_000;
/// The place among the parts of a call of the time since its last INVITE; likewise of other units of work.
const LAST_TRY_OF_CALL: usize = 3;
const LAST_TRY_OF_REQUEST: usize = 1;
/// Length of what a branch begins with: the cookie and the salt.
const PREFIX: usize = 7 + SALT;

/// The requests that leave by one link.
#[derive(Debug)]
struct LinkTexts {
    target: SocketAddr,
    first: Template,
    authorized: Option<Template>,
    in_dialog: InDialog,
}

/// What a unit of work has to remember; used again by the next in its place.
#[derive(Debug, Default)]
struct Memory {
    /// The Authorization line of a REGISTER.
    authorization: Vec<u8>,
    dialog: Dialog,
}

/// What a worker is told that does not change.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) options: Arc<SipOptions>,
    pub(super) words: Words,
    /// This worker is number `index` of `count`.
    pub(super) index: u32,
    pub(super) count: u32,
    /// Units of work under way at once.
    pub(super) limit: u32,
}

/// The client transactions of a worker.
#[derive(Debug)]
pub(super) struct Core {
    setting: Setting,
    links: Vec<LinkTexts>,
    pub(super) slots: Slots,
    memories: Vec<Memory>,
    wheel: Wheel<TICK_NS>,
    pub(super) out: Out,
    pub(super) tally: Tally,
    pub(super) came: Came,
    pub(super) live: Live,
    authorizer: Option<Authorizer>,
    /// What our branches begin with, and where it was found last.
    needle: [u8; PREFIX],
    hint: usize,
    /// Counts units of work, for links and AORs to take turns.
    begun: u64,
    /// Units of work that are over, measured or not.
    pub(super) over: u64,
    /// Those that have failed since this was last taken, and are to begin anew.
    pub(super) anew: u64,
}

/// What surrounds a worker while it works.
#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
    pub(super) shared: &'a Shared,
    pub(super) counters: &'a Counters,
    pub(super) now_ns: u64,
}

impl Core {
    /// Of a worker whose links have these local and remote addresses.
    pub(super) fn new(setting: Setting, links: &[(SocketAddr, SocketAddr)], tally: Tally) -> Core {
        let words = &setting.words;
        let authorizer = setting.options.credentials.as_ref();
        let again = setting.options.reuse_nonces;
        let authorizer = authorizer.map(|one| Authorizer::new(one, words, again));
        let texts = links.iter().map(|&(local, target)| LinkTexts {
            target,
            first: words.template(local, leg::FIRST),
            authorized: authorizer
                .is_some()
                .then(|| words.template(local, leg::AUTHORIZED)),
            in_dialog: words.in_dialog(local),
        });
        let mut needle = *b"z9hG4bK________";
        needle[7..].copy_from_slice(words.salt.as_bytes());
        let parts = super::Sip::part_names_of(setting.options.workload).len();
        Core {
            links: texts.collect(),
            slots: Slots::new(setting.limit),
            memories: Vec::new(),
            wheel: Wheel::new(),
            out: Out::default(),
            tally,
            came: Came::of_parts(parts),
            live: Live::default(),
            authorizer,
            needle,
            hint: 0,
            begun: 0,
            over: 0,
            anew: 0,
            setting,
        }
    }

    fn is_udp(&self) -> bool {
        self.setting.options.transport == Transport::Udp
    }

    /// Begins a unit of work; false if there is no room for it.
    pub(super) fn begin(&mut self, intended_ns: u64, around: Around<'_>) -> bool {
        let Some(place) = self.slots.take() else {
            return false;
        };
        let (turn, setting) = (self.begun, &self.setting);
        self.begun += 1;
        // Each worker has AORs of its own, and each AOR a link of its own: a binding keeps its address.
        let own = (setting.options.aors / setting.count).max(1);
        let (round, aor) = (turn / u64::from(own), (turn % u64::from(own)) as u32);
        let slot = self.slots.get_mut(place);
        slot.intended_ns = intended_ns;
        slot.link = (turn % u64::from(own) % self.links.len() as u64) as u16;
        if setting.options.workload != SipWorkload::Register {
            slot.link = (turn % self.links.len() as u64) as u16;
        }
        slot.aor = aor * setting.count + setting.index;
        // Two requests each time round; RFC 3261 §10.2: CSeq rises with every REGISTER of one Call-ID.
        slot.cseq = FIRST_CSEQ + (round % (1 << 29)) as u32 * 2;
        slot.measured = around.shared.measured(intended_ns);
        self.slots.measured += usize::from(slot.measured);
        around.counters.add(Counter::Sent, 1);
        self.tally.began(intended_ns);
        self.authorize_ahead(place);
        self.start(place, Stage::First, around);
        true
    }

    /// Has the first request answer the challenge of before, if there was one and it is to be used again.
    fn authorize_ahead(&mut self, place: u32) {
        if !self.setting.options.reuse_nonces {
            return;
        }
        let aor = self.slots.get(place).aor;
        let mut line = std::mem::take(&mut self.memory(place).authorization);
        line.clear();
        if let Some(authorizer) = &mut self.authorizer {
            authorizer.answer_again(&mut line, aor);
        }
        self.memories[place as usize].authorization = line;
    }

    /// Sends a request for the first time and sets its timer.
    fn start(&mut self, place: u32, stage: Stage, around: Around<'_>) {
        let udp = self.is_udp();
        let slot = self.slots.get_mut(place);
        slot.stage = stage;
        slot.sent_ns = around.now_ns;
        slot.tried_us = 0;
        slot.proceeding = false;
        slot.interval_ms = if udp { (T1_NS / MS) as u32 } else { 0 };
        let wait_ns = if udp { T1_NS } else { GIVE_UP_NS };
        self.tally.report.requests += u64::from(slot.measured);
        self.set_timer(place, around.now_ns + wait_ns);
        self.write(place);
    }

    fn set_timer(&mut self, place: u32, at_ns: u64) {
        self.wheel.set(place, Mono(at_ns));
    }

    /// Writes the request that is out.
    fn write(&mut self, place: u32) {
        let slot = self.slots.get(place);
        let texts = &self.links[usize::from(slot.link)];
        let fields = Fields {
            slot: place,
            generation: slot.generation,
            cseq: slot.cseq,
            aor: slot.aor,
        };
        let link = u32::from(slot.link);
        match slot.stage {
            Stage::First if self.setting.options.reuse_nonces => {
                let lines = &self.memories[place as usize].authorization;
                let write = |into: &mut Vec<u8>| texts.first.write_with(into, &fields, lines);
                self.out.write(link, texts.target, write);
            }
            Stage::First => {
                let write = |into: &mut Vec<u8>| texts.first.write(into, &fields);
                self.out.write(link, texts.target, write);
            }
            Stage::Authorized => {
                let Some(template) = &texts.authorized else {
                    return;
                };
                let lines = &self.memories[place as usize].authorization;
                let write = |into: &mut Vec<u8>| template.write_with(into, &fields, lines);
                self.out.write(link, texts.target, write);
            }
            Stage::Bye => self.write_in_dialog(place, "BYE", leg::BYE),
            Stage::Free | Stage::Talking => {}
        }
    }

    /// Writes a request of the call's dialog; the BYE has the next CSeq number.
    fn write_in_dialog(&mut self, place: u32, method: &str, leg: u8) {
        let slot = self.slots.get(place);
        let texts = &self.links[usize::from(slot.link)];
        let dialog = &self.memories[place as usize].dialog;
        let request = DialogRequest {
            method,
            slot: place,
            generation: slot.generation,
            leg,
            cseq: slot.cseq + u32::from(leg == leg::BYE),
            target: dialog.target(),
            to: dialog.to(),
            routes: dialog.routes(),
        };
        let write = |into: &mut Vec<u8>| texts.in_dialog.write(into, &request);
        self.out.write(u32::from(slot.link), texts.target, write);
    }

    /// Takes a message that came.
    pub(super) fn take(&mut self, message: &[u8], around: Around<'_>) {
        let Some(status) = status(message) else {
            match message.iter().all(u8::is_ascii_whitespace) {
                true => {}
                false if message.windows(7).any(|part| part == b"SIP/2.0") => {
                    self.tally.report.foreign_requests += 1;
                }
                false => self.tally.report.broken += 1,
            }
            return;
        };
        let Some((place, generation, leg)) = self.branch(message) else {
            self.tally.report.stray += 1;
            return;
        };
        let within = around.shared.measured(around.now_ns);
        let class = usize::from(status / 100).clamp(1, 6) - 1;
        self.tally.report.responses[class] += u64::from(within);
        let Some(slot) = self.slots.find(place, generation) else {
            self.tally.report.stray += 1;
            return;
        };
        let expected = match slot.stage {
            Stage::First => leg::FIRST,
            Stage::Authorized => leg::AUTHORIZED,
            Stage::Bye => leg::BYE,
            Stage::Free | Stage::Talking => 0,
        };
        if leg != expected {
            self.late(place, leg, status);
        } else if status < 200 {
            self.provisional(place, around);
        } else {
            self.settle(place, status, message, around);
        }
    }

    /// Where our branch is in a response: it is in the topmost Via, which a server repeats as it was.
    fn branch(&mut self, message: &[u8]) -> Option<(u32, u32, u8)> {
        let hinted = message.get(self.hint..self.hint + PREFIX);
        if hinted != Some(&self.needle[..]) {
            self.hint = memmem::find(message, &self.needle)?;
        }
        let id = message.get(self.hint + PREFIX..)?;
        let (place, generation) = read_id(id)?;
        Some((place, generation, id.get(ID_LENGTH)?.to_ascii_lowercase()))
    }

    /// A response to a request that is over while its unit of work is not.
    fn late(&mut self, place: u32, leg: u8, status: u16) {
        let stage = self.slots.get(place).stage;
        let in_call = matches!(stage, Stage::Talking | Stage::Bye);
        if in_call && leg == leg::FIRST && (200..300).contains(&status) {
            // RFC 3261 §13.2.2.4: every 2xx that comes again gets its ACK again.
            self.write_in_dialog(place, "ACK", leg::ACK);
        } else {
            self.tally.report.stray += 1;
        }
    }

    fn provisional(&mut self, place: u32, around: Around<'_>) {
        let invite = self.setting.options.workload == SipWorkload::Call;
        let slot = self.slots.get_mut(place);
        if std::mem::replace(&mut slot.proceeding, true) {
            return;
        }
        let intended_ns = slot.intended_ns;
        if invite && slot.stage == Stage::First {
            if slot.measured {
                let latency_ns = around.now_ns.saturating_sub(intended_ns);
                self.came.record_part(0, latency_ns);
            }
            // RFC 3261 §17.1.1.2: an INVITE that is being worked on is not sent again.
            self.set_timer(place, around.now_ns + RING_NS);
        } else if slot.interval_ms > 0 {
            slot.interval_ms = (T2_NS / MS) as u32;
        }
    }

    /// Takes a final response to what is out.
    fn settle(&mut self, place: u32, status: u16, message: &[u8], around: Around<'_>) {
        let success = (200..300).contains(&status);
        let workload = self.setting.options.workload;
        match self.slots.get(place).stage {
            Stage::First if workload == SipWorkload::Call => {
                self.memory(place).dialog.read(message, success);
                if success {
                    self.answered(place, around);
                } else {
                    // RFC 3261 §17.1.1.3: the ACK of a refusal has the INVITE's branch, and its request URI.
                    let uri = self.setting.words.request_uri.clone().into_bytes();
                    self.memory(place).dialog.set_target(&uri);
                    self.write_in_dialog(place, "ACK", leg::FIRST);
                    self.fail(place, status, message, around);
                }
            }
            Stage::First if matches!(status, 401 | 407) && self.authorizer.is_some() => {
                self.authorize(place, status, message, around);
            }
            Stage::First | Stage::Authorized | Stage::Bye if success => {
                self.renew_nonce(place, message);
                self.succeed(place, around);
            }
            _ => self.fail(place, status, message, around),
        }
    }

    fn memory(&mut self, place: u32) -> &mut Memory {
        let place = place as usize;
        if self.memories.len() <= place {
            self.memories.resize_with(place + 1, Memory::default);
        }
        &mut self.memories[place]
    }

    fn answered(&mut self, place: u32, around: Around<'_>) {
        self.write_in_dialog(place, "ACK", leg::ACK);
        let hold_ns = self.setting.options.hold.as_nanos() as u64;
        let slot = self.slots.get_mut(place);
        slot.stage = Stage::Talking;
        let latency_ns = around.now_ns.saturating_sub(slot.intended_ns);
        if slot.measured {
            self.came.record_part(1, latency_ns);
            self.came
                .record_part(LAST_TRY_OF_CALL, slot.since_try(around.now_ns));
        }
        // From now on the unit's time is that of its answer, and `succeed` takes note of it.
        slot.sent_ns = around.now_ns;
        self.memories[place as usize].dialog.answered_after_ns = latency_ns;
        if hold_ns > 0 {
            self.set_timer(place, around.now_ns + hold_ns);
        } else {
            self.start(place, Stage::Bye, around);
        }
    }

    fn authorize(&mut self, place: u32, status: u16, message: &[u8], around: Around<'_>) {
        let slot = self.slots.get_mut(place);
        slot.cseq += 1;
        let (aor, measured) = (slot.aor, slot.measured);
        let mut line = std::mem::take(&mut self.memory(place).authorization);
        line.clear();
        let authorizer = self.authorizer.as_mut();
        let made = authorizer.and_then(|one| one.answer(&mut line, status, message, aor));
        self.memories[place as usize].authorization = line;
        if let Some(made) = made {
            self.tally.report.challenges += u64::from(measured);
            self.tally.report.stale += u64::from(measured && made.stale);
            self.start(place, Stage::Authorized, around);
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

    fn succeed(&mut self, place: u32, around: Around<'_>) {
        let slot = *self.slots.get(place);
        let mut latency_ns = around.now_ns.saturating_sub(slot.intended_ns);
        if self.setting.options.workload == SipWorkload::Call {
            if slot.measured {
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
            self.came.note(Arrival::InOrder, 0, latency_ns, usize::MAX);
        }
        self.release(place);
        self.over += 1;
    }

    fn fail(&mut self, place: u32, status: u16, message: &[u8], around: Around<'_>) {
        let retry_after = Lines::of(message).find(b"Retry-After", b"Retry-After");
        let within = around.shared.measured(around.now_ns);
        let retry_after = retry_after.map(leading_number);
        self.tally.refused(status, retry_after, within);
        self.failed(place, status, around);
    }

    /// A unit of work is over without success; 0 stands for no answer.
    fn failed(&mut self, place: u32, code: u16, around: Around<'_>) {
        // No answer is no sign of life.
        around.counters.add(Counter::Failed, u64::from(code != 0));
        if self.slots.get(place).measured {
            self.came.failed += 1;
            *self.came.errors.entry(code).or_default() += 1;
        }
        self.release(place);
        let anew = u64::from(self.setting.options.anew);
        self.anew += anew;
        self.over += 1 - anew;
    }

    fn release(&mut self, place: u32) {
        self.wheel.remove(place);
        self.slots.release(place);
    }

    /// Fires at most `limit` timers.
    pub(super) fn fire(&mut self, limit: usize, around: Around<'_>) {
        for _ in 0..limit {
            let Some(place) = self.wheel.pop_due(Mono(around.now_ns)) else {
                return;
            };
            self.fired(place, around);
        }
    }

    fn fired(&mut self, place: u32, around: Around<'_>) {
        let ringing = self.setting.options.workload == SipWorkload::Call;
        let slot = self.slots.get_mut(place);
        if slot.stage == Stage::Talking {
            return self.start(place, Stage::Bye, around);
        }
        let given_up = around.now_ns.saturating_sub(slot.sent_ns) >= GIVE_UP_NS;
        let ringing = ringing && slot.stage == Stage::First && slot.proceeding;
        if given_up || ringing || slot.interval_ms == 0 {
            self.tally.report.timed_out += u64::from(slot.measured);
            return self.failed(place, 0, around);
        }
        let invite =
            slot.stage == Stage::First && self.setting.options.workload == SipWorkload::Call;
        // RFC 3261 §17.1.1.2 and §17.1.2.2: A doubles, E doubles up to T2.
        let doubled = slot.interval_ms * 2;
        let most = (T2_NS / MS) as u32;
        slot.tried_us = ((around.now_ns - slot.sent_ns) / 1000) as u32;
        slot.interval_ms = if invite { doubled } else { doubled.min(most) };
        let next = around.now_ns + u64::from(slot.interval_ms) * MS;
        let last = slot.sent_ns + GIVE_UP_NS;
        let within = around.shared.measured(around.now_ns);
        self.tally.report.retransmissions += u64::from(within);
        self.set_timer(place, next.min(last));
        self.write(place);
    }

    /// A link is gone, and with it all that was out on it.
    pub(super) fn link_lost(&mut self, link: u16, around: Around<'_>) {
        self.tally.report.connections_lost += 1;
        for place in self.slots.over(link) {
            self.failed(place, 0, around);
        }
    }

    /// When [`Core::fire`] has something to do.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.wheel.next_deadline().map(|at| at.0)
    }
}

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
