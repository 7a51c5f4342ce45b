//! Callees register before they are called, again before that lapses, and end their registrations when the run is over.

use std::collections::BTreeMap;
use std::io::Write;

use super::core::{CSEQ_NUMBERS, Core, WorkContext};
use super::slots::Stage;
use super::template::FIRST_CSEQ;
use super::texts::EXPIRES;

/// Registrations in flight at once.
const AT_ONCE: usize = 128;
/// Half the life of a registration.
const RENEW_NS: u64 = EXPIRES as u64 / 2 * 1_000_000_000;

/// How far a worker has come with its callees.
#[derive(Debug, Default)]
pub(super) struct Enrolment {
    /// The next AOR of this worker, and how often all AORs were registered before.
    next: u32,
    round: u32,
    /// When the first was registered.
    began_ns: u64,
    /// Registrations end instead of beginning.
    ends: bool,
    in_flight: usize,
    /// Registrations that succeeded since the last call of [`Core::enrol_all`], and those that failed, by code; 1 is no
    /// answer.
    pub(super) succeeded: u64,
    pub(super) failed: BTreeMap<u16, u64>,
}

impl Enrolment {
    /// How long the registration is to last.
    pub(super) fn write_expires(&self, into: &mut Vec<u8>) {
        let seconds = if self.ends { 0 } else { EXPIRES };
        // Writing to a vector cannot fail.
        let _ = write!(into, "Expires: {seconds}\r\n");
    }
}

impl Core {
    /// Begins to register all callees of this worker, or to end their registrations.
    pub(super) fn enrol_all(&mut self, ends: bool, now_ns: u64) {
        self.enrolment.next = 0;
        self.enrolment.round += 1;
        self.enrolment.ends = ends;
        self.enrolment.began_ns = now_ns;
        (self.enrolment.succeeded, self.enrolment.failed) = (0, BTreeMap::new());
    }

    /// Sends the registrations that there is room for; false if all are over.
    pub(super) fn enrol_some(&mut self, around: WorkContext<'_>) -> bool {
        let own = self.setting.own_aors();
        while self.enrolment.next < own && self.enrolment.in_flight < AT_ONCE {
            if !self.enrol_next(around) {
                break;
            }
        }
        self.enrolment.next < own || self.enrolment.in_flight > 0
    }

    /// Renews registrations before they lapse.
    pub(super) fn renew_enrolment(&mut self, around: WorkContext<'_>) {
        let enrolment = &mut self.enrolment;
        if around.now_ns.saturating_sub(enrolment.began_ns) < RENEW_NS {
            return;
        }
        if enrolment.next >= self.setting.own_aors() {
            (enrolment.next, enrolment.round) = (0, enrolment.round + 1);
        }
        if !self.enrol_some(around) || self.enrolment.next >= self.setting.own_aors() {
            self.enrolment.began_ns = around.now_ns;
        }
    }

    fn enrol_next(&mut self, around: WorkContext<'_>) -> bool {
        let Some(place) = self.slots.take() else {
            return false;
        };
        let (number, round) = (self.enrolment.next, self.enrolment.round);
        let link = number as usize % self.per_server;
        let slot = self.slots.get_mut(place);
        slot.intended_ns = around.now_ns;
        slot.link = link as u16;
        slot.refused = 0;
        slot.aor = number * self.setting.count + self.setting.index;
        slot.cseq = FIRST_CSEQ + round * CSEQ_NUMBERS;
        (slot.measured, slot.challenges, slot.hung_up) = (false, 0, false);
        let mut line = std::mem::take(&mut self.memory(place).authorization);
        line.clear();
        self.enrolment.write_expires(&mut line);
        self.memory(place).authorization = line;
        self.enrolment.next += 1;
        self.enrolment.in_flight += 1;
        self.start(place, Stage::Enrol, around);
        true
    }

    /// A registration is over: 0 is success.
    pub(super) fn enrolled(&mut self, place: u32, code: u16) {
        let enrolment = &mut self.enrolment;
        enrolment.in_flight = enrolment.in_flight.saturating_sub(1);
        match code {
            0 => enrolment.succeeded += 1,
            code => *enrolment.failed.entry(code).or_default() += 1,
        }
        self.release(place);
    }
}
