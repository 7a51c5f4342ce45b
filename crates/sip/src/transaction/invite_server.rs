//! The INVITE server transaction (RFC 3261 §17.2.1, RFC 6026 §7.1).
//!
//! ```text
//!             2xx               L
//! Proceeding ─────▶ Accepted ──────────────────────▶ (end)
//!   │ 200 ms: 100     2xx again, ACK to TU
//!   │ 300-699              ACK                 I
//!   └─────────▶ Completed ─────▶ Confirmed ────────▶ (end)
//!                 G: response
//!                 H: no ACK ───────────────────────▶ (end)
//! ```

use super::{Clocks, Sending, Step, TuEvent};
use crate::Mono;
use crate::timer::Timers;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Proceeding,
    /// RFC 6026 §7.1: a 2xx was sent; retransmissions of the INVITE are absorbed, those of the 2xx are the TU's.
    Accepted,
    Completed,
    Confirmed,
}

/// The machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InviteServer {
    state: State,
    reliable: bool,
    /// The 2xx is repeated until its ACK comes.
    repeats: bool,
    sent: u8,
    clocks: Clocks,
}

impl InviteServer {
    /// An INVITE came in and goes to the TU.
    pub(crate) fn start(now: Mono, timers: &Timers, reliable: bool) -> InviteServer {
        InviteServer {
            state: State::Proceeding,
            reliable,
            repeats: false,
            sent: 0,
            clocks: Clocks {
                // RFC 3261 §17.2.1: a 100 unless the TU answers within 200 ms.
                again: now.plus(timers.trying),
                end: now.plus(timers.answer_limit),
            },
        }
    }

    /// When to call [`InviteServer::fire`] next.
    pub(crate) fn deadline(&self) -> Mono {
        self.clocks.next()
    }

    /// The INVITE came again.
    pub(crate) fn request(&mut self) -> Step {
        match self.state {
            State::Proceeding => {
                // If nothing was sent yet, the 100 is due now: its sender is waiting.
                self.clocks.again = Mono::NEVER;
                Step::send(Sending::Response)
            }
            State::Completed => Step::send(Sending::Response),
            State::Accepted | State::Confirmed => Step::NOTHING,
        }
    }

    /// The TU responds; `None` if the response is out of place and must not be sent.
    pub(crate) fn respond(&mut self, now: Mono, timers: &Timers, status: u16) -> Option<Step> {
        let step = Step::send(Sending::Response);
        match (self.state, status / 100) {
            (State::Proceeding, 1) => {
                self.clocks = Clocks::ending(now.plus(timers.answer_limit));
                Some(step)
            }
            (State::Proceeding, 2) => {
                self.state = State::Accepted;
                self.clocks = Clocks::ending(now.plus(timers.give_up()));
                Some(step.and_discard())
            }
            (State::Proceeding, 3..=6) => {
                self.state = State::Completed;
                self.sent = 1;
                // RFC 3261 §17.2.1: timer G over unreliable transports, timer H over all.
                self.clocks = Clocks::ending(now.plus(timers.give_up()));
                if !self.reliable {
                    self.clocks.again = now.plus(timers.t1);
                }
                Some(step)
            }
            // RFC 6026 §7.1: the TU's retransmissions, and 2xx of other branches.
            (State::Accepted, 2) => Some(step.and_discard()),
            _ => None,
        }
    }

    /// A UAS core has sent a 2xx and wants it repeated until its ACK comes. RFC 3261 §13.3.1.4: from T1, doubling to
    /// T2, over any transport, for 64*T1. This is a task of the core, which this machine does for it.
    pub(crate) fn repeat_2xx(&mut self, now: Mono, timers: &Timers) {
        if self.state == State::Accepted && !self.repeats {
            self.repeats = true;
            self.sent = 1;
            self.clocks.again = now.plus(timers.t1);
        }
    }

    /// The ACK for the 2xx came, with a branch of its own; says whether the 2xx was being repeated.
    pub(crate) fn acknowledged(&mut self) -> bool {
        let repeated = self.repeats;
        if self.state == State::Accepted {
            self.repeats = false;
            self.clocks.again = Mono::NEVER;
        }
        repeated
    }

    /// An ACK that matches came in.
    pub(crate) fn ack(&mut self, now: Mono, timers: &Timers) -> Step {
        match self.state {
            State::Completed => {
                self.state = State::Confirmed;
                // RFC 3261 §17.2.1: timer I is zero over reliable transports.
                if self.reliable {
                    return Step::end();
                }
                self.clocks = Clocks::ending(now.plus(timers.t4));
                Step::NOTHING.and_discard()
            }
            // RFC 6026 §7.1: passed up, and no change of state.
            State::Accepted => Step::tu_event(TuEvent::Ack),
            State::Proceeding | State::Confirmed => Step::NOTHING,
        }
    }

    /// A response could not be sent. RFC 6026 §8.8: the TU gets an event, and the state stays.
    pub(crate) fn transport_failed(&mut self) -> Step {
        match self.state {
            State::Proceeding | State::Accepted | State::Completed => {
                Step::tu_event(TuEvent::TransportFailed)
            }
            State::Confirmed => Step::NOTHING,
        }
    }

    /// Time reached [`InviteServer::deadline`].
    pub(crate) fn fire(&mut self, now: Mono, timers: &Timers) -> Step {
        if self.clocks.end <= now {
            return match self.state {
                State::Proceeding => Step::tu_event(TuEvent::Abandoned).and_end(),
                State::Completed => Step::tu_event(TuEvent::NoAck).and_end(),
                State::Accepted if self.repeats => Step::tu_event(TuEvent::NoAck).and_end(),
                State::Accepted | State::Confirmed => Step::end(),
            };
        }
        if self.clocks.again > now {
            return Step::NOTHING;
        }
        if self.state == State::Proceeding {
            self.clocks.again = Mono::NEVER;
            return Step::send(Sending::Trying);
        }
        self.sent = self.sent.saturating_add(1);
        self.clocks.again = now.plus(timers.doubling_to_t2(self.sent));
        Step::send(Sending::Response)
    }

    /// No final response was sent: a CANCEL still has an effect (RFC 3261 §9.2).
    pub(crate) fn is_proceeding(&self) -> bool {
        self.state == State::Proceeding
    }

    /// Whether repetitions of the INVITE and of its ACK are all that it waits for, until timer L.
    pub(crate) fn is_finished(&self) -> bool {
        self.state == State::Accepted && !self.repeats
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::super::tests::{at, run};
    use super::*;

    fn start(reliable: bool) -> (InviteServer, Timers) {
        let timers = Timers::default();
        (InviteServer::start(at(0), &timers, reliable), timers)
    }

    fn pass(machine: InviteServer) -> Vec<(u64, Step)> {
        let timers = Timers::default();
        let machine = RefCell::new(machine);
        run(
            2_000_000,
            || machine.borrow().deadline(),
            |now| machine.borrow_mut().fire(now, &timers),
        )
    }

    const RESPONSE: Step = Step::send(Sending::Response);

    #[test]
    fn a_100_is_sent_after_200_ms_unless_the_tu_was_faster() {
        let (machine, timers) = start(false);
        assert_eq!(pass(machine)[0], (200, Step::send(Sending::Trying)));
        let (mut machine, _) = start(false);
        assert_eq!(machine.respond(at(150), &timers, 180), Some(RESPONSE));
        assert!(machine.is_proceeding());
        assert_eq!(machine.deadline(), at(900_150));
    }

    #[test]
    fn a_repeated_invite_gets_the_last_provisional_response() {
        let (mut machine, timers) = start(false);
        assert_eq!(machine.request(), RESPONSE);
        let _ = machine.respond(at(600), &timers, 183);
        assert_eq!(machine.request(), RESPONSE);
    }

    #[test]
    fn a_tu_that_forgets_the_call_is_notified() {
        let (machine, _) = start(true);
        let abandoned = Step::tu_event(TuEvent::Abandoned).and_end();
        assert_eq!(pass(machine).last(), Some(&(900_000, abandoned)));
    }

    #[test]
    fn a_2xx_is_accepted_and_absorbs_the_invite_until_timer_l() {
        let (mut machine, timers) = start(false);
        let sent = Some(RESPONSE.and_discard());
        assert_eq!(machine.respond(at(1_000), &timers, 200), sent);
        assert!(!machine.is_proceeding());
        assert_eq!(machine.request(), Step::NOTHING);
        assert_eq!(machine.respond(at(1_500), &timers, 200), sent);
        assert_eq!(machine.respond(at(1_500), &timers, 486), None);
        assert_eq!(machine.respond(at(1_500), &timers, 180), None);
        assert_eq!(
            machine.ack(at(1_600), &timers),
            Step::tu_event(TuEvent::Ack)
        );
        let failed = Step::tu_event(TuEvent::TransportFailed);
        assert_eq!(machine.transport_failed(), failed);
        assert_eq!(pass(machine), [(33_000, Step::end())]);
    }

    #[test]
    fn a_2xx_of_a_uas_is_repeated_over_any_transport_until_its_ack() {
        for reliable in [false, true] {
            let (mut machine, timers) = start(reliable);
            let _ = machine.respond(at(0), &timers, 200);
            machine.repeat_2xx(at(0), &timers);
            let log = pass(machine);
            assert_eq!(log[..3], [500, 1500, 3500].map(|ms| (ms, RESPONSE)));
            let no_ack = Step::tu_event(TuEvent::NoAck).and_end();
            assert_eq!(log.last(), Some(&(32_000, no_ack)));
            assert!(machine.acknowledged());
            assert!(!machine.acknowledged());
            assert_eq!(pass(machine), [(32_000, Step::end())]);
        }
    }

    #[test]
    fn a_refusal_is_repeated_by_timer_g_until_timer_h_over_udp() {
        let (mut machine, timers) = start(false);
        let _ = machine.respond(at(0), &timers, 486);
        let times = [
            500, 1500, 3500, 7500, 11_500, 15_500, 19_500, 23_500, 27_500, 31_500,
        ];
        let mut expected = times.map(|ms| (ms, RESPONSE)).to_vec();
        expected.push((32_000, Step::tu_event(TuEvent::NoAck).and_end()));
        assert_eq!(pass(machine), expected);
        assert_eq!(machine.request(), RESPONSE);
        assert_eq!(machine.respond(at(1), &timers, 200), None);
    }

    #[test]
    fn over_tcp_a_refusal_waits_for_its_ack_and_is_not_repeated() {
        let (mut machine, timers) = start(true);
        let _ = machine.respond(at(0), &timers, 486);
        let no_ack = Step::tu_event(TuEvent::NoAck).and_end();
        assert_eq!(pass(machine), [(32_000, no_ack)]);
        assert_eq!(machine.ack(at(10), &timers), Step::end());
    }

    #[test]
    fn an_ack_confirms_and_later_ones_are_absorbed_until_timer_i() {
        let (mut machine, timers) = start(false);
        assert_eq!(machine.ack(at(0), &timers), Step::NOTHING);
        let _ = machine.respond(at(0), &timers, 603);
        assert_eq!(machine.ack(at(100), &timers), Step::NOTHING.and_discard());
        assert_eq!(machine.ack(at(200), &timers), Step::NOTHING);
        assert_eq!(machine.request(), Step::NOTHING);
        assert_eq!(machine.respond(at(200), &timers, 200), None);
        assert_eq!(machine.transport_failed(), Step::NOTHING);
        assert_eq!(pass(machine), [(5_100, Step::end())]);
    }

    #[test]
    fn a_transport_error_is_reported_and_ends_nothing() {
        let failed = Step::tu_event(TuEvent::TransportFailed);
        let (mut machine, timers) = start(false);
        assert_eq!(machine.transport_failed(), failed);
        assert!(machine.is_proceeding());
        let _ = machine.respond(at(0), &timers, 603);
        assert_eq!(machine.transport_failed(), failed);
    }
}
