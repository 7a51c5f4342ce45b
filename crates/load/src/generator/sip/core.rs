//! The client transactions of a worker (RFC 3261 §17.1), without sockets: messages, times and room to write in;
//! requests out.
//!
//! ```text
//!                       timer A/E, over UDP           B/F: 64 x T1
//!              ┌──── again ────┐                          │
//!   begin ─▶ First ──────── 2xx ─▶ over        OPTIONS, REGISTER
//!              │  └─ 401 ─▶ First, with credentials ─ 2xx ─▶ over
//!              │                 └─ 401 with stale=true, once ─▶ First, with new credentials ─ 2xx ─▶ over
//!              └─ 2xx ─▶ ACK, Talking ─ hold ─▶ Bye ─ 2xx ─▶ over
//! ```
//! The branch of a response names slot and generation of its request. A retransmission is written again from its
//! template, so requests are not stored. `responses` and `requests` handle received messages, `enrol` registers
//! callees.

use std::net::SocketAddr;
use std::sync::Arc;
use timers::{Mono, Wheel};

use super::answer::Dialog;
use super::authorize::{Authorizer, CurrentRequest};
use super::enrol::Enrolment;
use super::options::SipOptions;
use super::slots::{Slot, Slots, Stage};
use super::tally::Tally;
use super::template::{FIRST_CSEQ, Fields, Template};
use super::texts::{DialogRequest, FIRST_SERVER, InDialog, SALT, Words, role};
use crate::generator::end::ReceiveStats;
use crate::generator::live::LatencyFeed;
use crate::generator::shared::Shared;
use crate::measure::{Counter, Counters};
use crate::sip::Transport;
use crate::sip::out::Out;
use crate::sip::timers::{GIVE_UP_NS, T1_NS, T2_NS};
use crate::sip::uas::Answerer;

/// Resolution of the timers.
const TICK_NS: u64 = 1_000_000;
pub(super) const MS: u64 = 1_000_000;
/// The place among the parts of a call of the time since its last INVITE; likewise of other units of work.
pub(super) const LAST_TRY_OF_CALL: usize = 3;
pub(super) const LAST_TRY_OF_REQUEST: usize = 1;
/// Length of what a branch begins with: the cookie and the salt.
pub(super) const PREFIX: usize = 7 + SALT;
/// The most CSeq numbers of a REGISTER at one server: the first, and one for each challenge that is answered.
pub(super) const CSEQ_NUMBERS: u32 = 1 + role::CHALLENGES_MAX as u32;
/// RFC 3261 §8.1.1.5: CSeq numbers are below 2^31.
const CSEQ_END: u32 = 1 << 31;

/// The requests that leave by one link.
#[derive(Debug)]
pub(super) struct LinkTexts {
    /// The socket or connection.
    wire: u32,
    pub(super) local: SocketAddr,
    target: SocketAddr,
    first: Template,
    enrol: Option<Template>,
    in_dialog: InDialog,
    /// Until when this link sends nothing to its server (Retry-After).
    pub(super) retry_at_ns: u64,
}

/// What a unit of work has to remember; used again by the next in its place.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The lines that answer a challenge.
    pub(super) authorization: Vec<u8>,
    pub(super) dialog: Dialog,
}

/// The settings of a worker that do not change.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) options: Arc<SipOptions>,
    pub(super) words: Words,
    /// This worker is number `index` of `count`.
    pub(super) index: u32,
    pub(super) count: u32,
    /// Units of work in flight at once.
    pub(super) limit: u32,
}

impl Setting {
    /// AORs of this worker.
    pub(super) fn own_aors(&self) -> u32 {
        let all = self.options.aors;
        (all / self.count + u32::from(self.index < all % self.count)).max(1)
    }
}

/// The client transactions of a worker.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) setting: Setting,
    /// All links to the first server, then all to the second and so on.
    pub(super) links: Vec<LinkTexts>,
    /// Links to one server.
    pub(super) per_server: usize,
    pub(super) slots: Slots,
    pub(super) memories: Vec<Memory>,
    pub(super) wheel: Wheel<TICK_NS>,
    pub(super) out: Out,
    pub(super) tally: Tally,
    pub(super) came: ReceiveStats,
    pub(super) live: LatencyFeed,
    pub(super) authorizer: Option<Authorizer>,
    pub(super) enrolment: Enrolment,
    /// The callee's side of calls.
    pub(super) answerer: Option<Box<Answerer>>,
    /// What our branches begin with, and where it was found last; the same of CSeq.
    pub(super) needle: [u8; PREFIX],
    pub(super) hint: usize,
    pub(super) cseq_hint: usize,
    /// CSeq numbers of a unit of work, if all servers are asked.
    cseq_step: u32,
    /// Room to write texts in.
    pub(super) text: String,
    /// Counts units of work, for links and AORs to take turns.
    begun: u64,
    /// Units of work of the measured part that are over.
    pub(super) over: u64,
    /// Units of work that have failed since this value was last taken. They begin again.
    pub(super) anew: u64,
}

/// What surrounds a worker while it works.
#[derive(Clone, Copy)]
pub(super) struct WorkContext<'a> {
    pub(super) shared: &'a Shared,
    pub(super) counters: &'a Counters,
    pub(super) now_ns: u64,
}

/// What became of a unit of work that was to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BeginOutcome {
    /// It has begun.
    Yes,
    /// As many as may be are in flight.
    Full,
    /// Every server of its link has asked for a pause (Retry-After).
    Withheld,
}

/// A link before it has texts.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkEnds {
    pub(super) wire: u32,
    pub(super) local: SocketAddr,
    pub(super) target: SocketAddr,
}

impl Core {
    /// Of a worker with these links, of which `per_server` lead to each server.
    pub(super) fn new(
        setting: Setting,
        links: &[LinkEnds],
        per_server: usize,
        tally: Tally,
    ) -> Core {
        let options = &setting.options;
        let words = &setting.words;
        let authorizer = options.credentials.as_ref();
        let authorizer =
            authorizer.map(|one| Authorizer::new(one, words.width, options.reuse_nonces));
        let enrols = options.workload == super::SipWorkload::Proxy;
        let texts = links.iter().enumerate().map(|(index, ends)| {
            let server = FIRST_SERVER + (index / per_server.max(1)) as u8;
            LinkTexts {
                wire: ends.wire,
                local: ends.local,
                target: ends.target,
                first: words.template(ends.local, server),
                enrol: enrols.then(|| words.enrol_template(ends.local, server)),
                in_dialog: words.in_dialog(ends.local, server),
                retry_at_ns: 0,
            }
        });
        let mut needle = *b"z9hG4bK________";
        needle[7..].copy_from_slice(words.salt.as_bytes());
        let parts = super::Sip::part_names_of(options.workload).len();
        Core {
            links: texts.collect(),
            per_server,
            slots: Slots::new(setting.limit),
            memories: Vec::new(),
            wheel: Wheel::new(),
            out: Out::default(),
            tally,
            came: ReceiveStats::of_parts(parts),
            live: LatencyFeed::default(),
            authorizer,
            enrolment: Enrolment::default(),
            answerer: enrols.then(|| Box::new(Answerer::new(options.ring))),
            needle,
            hint: 0,
            cseq_hint: 0,
            cseq_step: CSEQ_NUMBERS * (links.len() / per_server.max(1)).max(1) as u32,
            text: String::new(),
            begun: 0,
            over: 0,
            anew: 0,
            setting,
        }
    }

    fn is_udp(&self) -> bool {
        self.setting.options.transport == Transport::Udp
    }

    /// Begins a unit of work, if there is room for it and a server that may be asked.
    pub(super) fn begin(&mut self, intended_ns: u64, around: WorkContext<'_>) -> BeginOutcome {
        let (turn, setting) = (self.begun, &self.setting);
        // Each worker has AORs of its own, and each AOR a link of its own: a binding keeps its address.
        let own = u64::from(setting.own_aors());
        let (round, number) = (turn / own, (turn % own) as u32);
        let by_aor =
            setting.words.named || setting.options.workload == super::SipWorkload::Register;
        let aor = number * setting.count + setting.index;
        let of = if by_aor { u64::from(number) } else { turn };
        let Some((link, refused)) = self.open_link((of % self.per_server as u64) as usize, around)
        else {
            self.begun += 1;
            self.tally.report.withheld += u64::from(around.shared.measured(intended_ns));
            return BeginOutcome::Withheld;
        };
        let Some(place) = self.slots.take() else {
            return BeginOutcome::Full;
        };
        self.begun += 1;
        let slot = self.slots.get_mut(place);
        slot.intended_ns = intended_ns;
        slot.link = link;
        slot.refused = refused;
        slot.aor = aor;
        // RFC 3261 §10.2: CSeq rises with every REGISTER of one Call-ID, until the numbers start again.
        let rounds = u64::from((CSEQ_END - FIRST_CSEQ) / self.cseq_step);
        slot.cseq = FIRST_CSEQ + (round % rounds) as u32 * self.cseq_step;
        slot.measured = around.shared.measured(intended_ns);
        slot.hung_up = false;
        self.slots.measured += usize::from(slot.measured);
        around.counters.add(Counter::Sent, 1);
        self.tally.began(intended_ns);
        self.authorize_ahead(place);
        self.start(place, Stage::First, around);
        BeginOutcome::Yes
    }

    /// The link to the first server that may be asked, and how many before it may not.
    fn open_link(&self, first: usize, around: WorkContext<'_>) -> Option<(u16, u8)> {
        let mut links = self.links[first..].iter().step_by(self.per_server);
        let index = match self.setting.options.obey {
            true => links.position(|link| link.retry_at_ns <= around.now_ns)?,
            false => 0,
        };
        Some(((first + index * self.per_server) as u16, index as u8))
    }

    /// Sends the first request to the next server that may be asked (RFC 3263 §4.3); false if there is none.
    pub(super) fn fail_over(&mut self, place: u32, around: WorkContext<'_>) -> bool {
        let slot = self.slots.get(place);
        let next = usize::from(slot.link) + self.per_server;
        if !self.setting.options.obey || slot.stage != Stage::First || next >= self.links.len() {
            return false;
        }
        let Some((link, _)) = self.open_link(next, around) else {
            return false;
        };
        let slot = self.slots.get_mut(place);
        slot.link = link;
        slot.refused += 1;
        self.tally.report.failovers += u64::from(slot.measured);
        self.authorize_ahead(place);
        self.start(place, Stage::First, around);
        true
    }

    /// Has the first request answer the challenge of before, if there was one and it is to be used again.
    fn authorize_ahead(&mut self, place: u32) {
        self.slots.get_mut(place).challenges = 0;
        if !self.setting.options.reuse_nonces {
            return;
        }
        let aor = self.slots.get(place).aor;
        let mut line = std::mem::take(&mut self.memory(place).authorization);
        line.clear();
        if let Some(authorizer) = &mut self.authorizer {
            let method = super::method(self.setting.options.workload);
            let uri = self
                .setting
                .words
                .uri(&mut self.text, self.setting.peer(aor));
            let asked = CurrentRequest {
                method,
                uri,
                aor,
                only_if_stale: false,
            };
            authorizer.answer_again(&mut line, asked);
        }
        self.memories[place as usize].authorization = line;
    }

    /// Sends a request for the first time and sets its timer.
    pub(super) fn start(&mut self, place: u32, stage: Stage, around: WorkContext<'_>) {
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

    pub(super) fn set_timer(&mut self, place: u32, at_ns: u64) {
        self.wheel.set(place, Mono(at_ns));
    }

    /// Writes the outstanding request.
    pub(super) fn write(&mut self, place: u32) {
        let slot = *self.slots.get(place);
        let texts = &self.links[usize::from(slot.link)];
        let fields = Fields {
            slot: place,
            generation: slot.generation,
            cseq: slot.cseq,
            aor: slot.aor,
            peer: self.setting.peer(slot.aor),
            role: expected_role(&slot),
        };
        let (template, with_lines) = match slot.stage {
            Stage::First => {
                let with_lines = slot.challenges > 0 || self.setting.options.reuse_nonces;
                (Some(&texts.first), with_lines)
            }
            Stage::Enrol => (texts.enrol.as_ref(), true),
            Stage::Bye => return self.write_in_dialog(place, "BYE", fields.role),
            Stage::Cancelling => return self.write_in_dialog(place, "CANCEL", fields.role),
            Stage::Free | Stage::Talking => return,
        };
        let Some(template) = template else {
            return;
        };
        let memory = self.memories.get(place as usize).filter(|_| with_lines);
        let lines = memory.map_or(&b""[..], |memory| &memory.authorization);
        let write = |into: &mut Vec<u8>| template.write_with(into, &fields, lines);
        self.out.write(texts.wire, texts.target, write);
    }

    /// Writes a request of the call's dialog, or its CANCEL.
    pub(super) fn write_in_dialog(&mut self, place: u32, method: &str, role: u8) {
        let slot = self.slots.get(place);
        let texts = &self.links[usize::from(slot.link)];
        let memory = &self.memories[place as usize];
        let dialog = &memory.dialog;
        let request = DialogRequest {
            method,
            slot: place,
            generation: slot.generation,
            role,
            cseq: cseq_of(slot, role),
            aor: slot.aor,
            target: dialog.target(),
            to: dialog.to(),
            routes: dialog.routes(),
            // A BYE that answers a challenge has credentials.
            lines: if role > role::BYE && role::is_of(role, role::BYE) {
                &memory.authorization
            } else {
                b""
            },
        };
        let text = &mut self.text;
        let write = |into: &mut Vec<u8>| texts.in_dialog.write(into, &request, text);
        self.out.write(texts.wire, texts.target, write);
    }

    pub(super) fn memory(&mut self, place: u32) -> &mut Memory {
        let place = place as usize;
        if self.memories.len() <= place {
            self.memories.resize_with(place + 1, Memory::default);
        }
        &mut self.memories[place]
    }

    pub(super) fn release(&mut self, place: u32) {
        self.wheel.remove(place);
        self.slots.release(place);
    }

    /// Fires at most `limit` timers.
    pub(super) fn fire(&mut self, limit: usize, around: WorkContext<'_>) {
        for _ in 0..limit {
            let Some(place) = self.wheel.pop_due(Mono(around.now_ns)) else {
                break;
            };
            self.fired(place, around);
        }
        self.repeat_answers(around);
    }

    fn fired(&mut self, place: u32, around: WorkContext<'_>) {
        let is_call = self.setting.options.workload.is_call();
        let slot = self.slots.get_mut(place);
        if slot.stage == Stage::Talking {
            return self.hang_up(place, around);
        }
        let given_up = around.now_ns.saturating_sub(slot.sent_ns) >= GIVE_UP_NS;
        let invite = is_call && slot.stage == Stage::First;
        if invite && slot.proceeding {
            // RFC 3261 has no such timer for a UAC; the generator must not wait forever.
            return self.cancel(place, around);
        }
        if given_up || slot.interval_ms == 0 {
            self.tally.report.timed_out += u64::from(slot.measured);
            return self.unanswered(place, around);
        }
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

    /// No response came: tries the next server, or ends the unit of work.
    fn unanswered(&mut self, place: u32, around: WorkContext<'_>) {
        if !self.fail_over(place, around) {
            self.failed(place, 0, around);
        }
    }

    /// A connection is lost. Each request that waits on it goes to the next server, or fails.
    pub(super) fn link_lost(&mut self, link: u16, around: WorkContext<'_>) {
        let is_measured = around.now_ns >= around.shared.measure_ns;
        self.tally.report.connections_lost += u64::from(is_measured);
        for place in self.slots.over(link) {
            self.unanswered(place, around);
        }
    }

    /// The first time at which a link with a Retry-After may be used again; 0 if there is none.
    pub(super) fn earliest_retry(&self) -> u64 {
        let all = self.links.iter().map(|link| link.retry_at_ns);
        all.min().unwrap_or(0)
    }

    /// When [`Core::fire`] has something to do.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        let own = self.wheel.next_deadline().map(|at| at.0);
        let answers = self.answerer.as_ref();
        let answers = answers.and_then(|one| one.next_deadline());
        own.into_iter().chain(answers).min()
    }
}

impl Setting {
    /// Number of the AOR that this one calls: another one, if there are two.
    pub(super) fn peer(&self, aor: u32) -> u32 {
        let all = self.options.aors.max(1);
        (aor + all.div_ceil(2)) % all
    }
}

/// The CSeq number of a request with this role.
pub(super) fn cseq_of(slot: &Slot, role: u8) -> u32 {
    match role::is_of(role, role::BYE) {
        true => slot.cseq + 1 + u32::from(role - role::BYE),
        false => slot.cseq,
    }
}

/// The role of the outstanding request.
pub(super) fn expected_role(slot: &Slot) -> u8 {
    let request = match slot.stage {
        Stage::First | Stage::Cancelling => role::FIRST,
        Stage::Bye => role::BYE,
        Stage::Enrol => role::ENROL,
        Stage::Free | Stage::Talking => return 0,
    };
    request + slot.challenges
}
