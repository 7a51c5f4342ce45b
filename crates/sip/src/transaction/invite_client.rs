//! The INVITE client transaction (RFC 3261 §17.1.1, RFC 6026 §7.2).
//!
//! ```text
//!            1xx               2xx                M
//! Calling ────────▶ Proceeding ───▶ Accepted ───────────▶ (end)
//!   │ A: INVITE       │ C: CANCEL      every 2xx to TU
//!   │ B: timeout      │ 300-699                D
//!   └─────────────────┴──────────▶ Completed ───────────▶ (end)
//!      300-699: ACK                  300-699: ACK again
//! ```

use super::{Clocks, Sending, Step, TuEvent};
use crate::Mono;
use crate::timer::Timers;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Calling,
    Proceeding,
    /// RFC 6026 §7.2: a 2xx came; others may, from other branches of a fork.
    Accepted,
    Completed,
}

/// How far a cancellation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cancel {
    No,
    /// RFC 3261 §9.1: a CANCEL waits for the first provisional response.
    Wanted,
    Sent,
}

/// The machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InviteClient {
    state: State,
    reliable: bool,
    cancel: Cancel,
    /// How often the request was sent.
    sent: u8,
    clocks: Clocks,
}

impl InviteClient {
    /// The TU sends an INVITE; the caller puts it on the wire.
    pub(crate) fn start(now: Mono, timers: &Timers, reliable: bool) -> InviteClient {
        InviteClient {
            state: State::Calling,
            reliable,
            cancel: Cancel::No,
            sent: 1,
            clocks: Clocks::requesting(now, timers, reliable),
        }
    }

    /// When to call [`InviteClient::fire`] next.
    pub(crate) fn deadline(&self) -> Mono {
        self.clocks.next()
    }

    /// A response that matches came in.
    pub(crate) fn response(&mut self, now: Mono, timers: &Timers, status: u16) -> Step {
        match (self.state, status / 100) {
            (State::Calling | State::Proceeding, 1) => self.provisional(now, timers, status),
            // RFC 6026 §8.4: the first 2xx, and every later one, goes to the TU, which acknowledges it.
            (State::Calling | State::Proceeding, 2) => {
                self.state = State::Accepted;
                self.clocks = Clocks::ending(now.plus(timers.give_up()));
                Step::tu_event(TuEvent::Response).and_discard()
            }
            (State::Calling | State::Proceeding, 3..=6) => {
                let step = Step::tu_event(TuEvent::Response).and_send(Sending::NewAck);
                self.state = State::Completed;
                // RFC 3261 §17.1.1.2: timer D is zero over reliable transports.
                if self.reliable {
                    return step.and_end();
                }
                self.clocks = Clocks::ending(now.plus(timers.d()));
                step
            }
            (State::Accepted, 2) => Step::tu_event(TuEvent::Response),
            // RFC 3261 §17.1.1.2: acknowledged again, without an event for the TU.
            (State::Completed, 3..=6) => Step::send(Sending::Ack),
            _ => Step::NOTHING,
        }
    }

    fn provisional(&mut self, now: Mono, timers: &Timers, status: u16) -> Step {
        let first = self.state == State::Calling;
        self.state = State::Proceeding;
        // RFC 3261 §17.1.1.2: no retransmissions in "Proceeding".
        self.clocks.again = Mono::NEVER;
        let step = Step::tu_event(TuEvent::Response);
        if self.cancel == Cancel::Wanted {
            self.cancelled(now, timers);
            return step.and_send(Sending::Cancel);
        }
        // RFC 3261 §16.7 step 2: 101 to 199 reset timer C.
        if self.cancel == Cancel::No && (first || status > 100) {
            self.clocks.end = now.plus(timers.c);
        }
        step
    }

    /// The TU cancels the INVITE.
    pub(crate) fn cancel(&mut self, now: Mono, timers: &Timers) -> Step {
        match (self.state, self.cancel) {
            (State::Calling, Cancel::No) => {
                self.cancel = Cancel::Wanted;
                Step::NOTHING
            }
            (State::Proceeding, Cancel::No) => {
                self.cancelled(now, timers);
                Step::send(Sending::Cancel)
            }
            // RFC 3261 §9.1: after a final response it has no effect.
            _ => Step::NOTHING,
        }
    }

    /// Whether its CANCEL waits for a provisional response.
    pub(crate) fn waits_to_cancel(&self) -> bool {
        self.cancel == Cancel::Wanted
    }

    /// RFC 3261 §9.1: without a final response in 64*T1 the transaction is given up.
    fn cancelled(&mut self, now: Mono, timers: &Timers) {
        self.cancel = Cancel::Sent;
        self.clocks.end = now.plus(timers.give_up());
    }

    /// The request, or the ACK, could not be sent.
    pub(crate) fn transport_failed(&mut self) -> Step {
        match self.state {
            State::Calling | State::Completed => Step::tu_event(TuEvent::TransportFailed).and_end(),
            // The request had arrived: the response may come by another connection.
            State::Proceeding | State::Accepted => Step::NOTHING,
        }
    }

    /// The only connection to the other side is lost, so no response can arrive.
    pub(crate) fn flow_failed(&mut self) -> Step {
        match self.state {
            State::Calling | State::Proceeding | State::Completed => {
                Step::tu_event(TuEvent::TransportFailed).and_end()
            }
            State::Accepted => Step::NOTHING,
        }
    }

    /// Time reached [`InviteClient::deadline`].
    pub(crate) fn fire(&mut self, now: Mono, timers: &Timers) -> Step {
        if self.clocks.end <= now {
            return self.state_ends(now, timers);
        }
        if self.clocks.again > now {
            return Step::NOTHING;
        }
        self.sent = self.sent.saturating_add(1);
        self.clocks.again = now.plus(timers.doubling(self.sent));
        Step::send(Sending::Request)
    }

    fn state_ends(&mut self, now: Mono, timers: &Timers) -> Step {
        match self.state {
            // RFC 3261 §16.8: timer C cancels an INVITE that had a provisional response.
            State::Proceeding if self.cancel == Cancel::No => {
                self.cancelled(now, timers);
                Step::send(Sending::Cancel)
            }
            State::Calling | State::Proceeding => Step::tu_event(TuEvent::Timeout).and_end(),
            State::Accepted | State::Completed => Step::end(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::super::tests::{at, run};
    use super::*;

    fn start(reliable: bool) -> (InviteClient, Timers) {
        let timers = Timers::default();
        (InviteClient::start(at(0), &timers, reliable), timers)
    }

    fn pass(machine: InviteClient, until: u64) -> Vec<(u64, Step)> {
        let timers = Timers::default();
        let machine = RefCell::new(machine);
        run(
            until,
            || machine.borrow().deadline(),
            |now| machine.borrow_mut().fire(now, &timers),
        )
    }

    const TIMEOUT: Step = Step::tu_event(TuEvent::Timeout).and_end();
    const AGAIN: Step = Step::send(Sending::Request);

    #[test]
    fn seven_invites_are_sent_over_udp_before_timer_b() {
        let (machine, _) = start(false);
        let again = [500, 1500, 3500, 7500, 15_500, 31_500].map(|ms| (ms, AGAIN));
        let mut expected = again.to_vec();
        expected.push((32_000, TIMEOUT));
        assert_eq!(pass(machine, u64::MAX / 2_000_000), expected);
    }

    #[test]
    fn over_tcp_only_timer_b_runs() {
        let (machine, _) = start(true);
        assert_eq!(pass(machine, 1_000_000), [(32_000, TIMEOUT)]);
    }

    #[test]
    fn a_provisional_response_stops_timer_a_and_starts_timer_c() {
        let (mut machine, timers) = start(false);
        assert_eq!(
            machine.response(at(100), &timers, 100),
            Step::tu_event(TuEvent::Response)
        );
        assert_eq!(machine.deadline(), at(200_100));
        // RFC 3261 §16.7: 100 does not reset timer C, 180 does.
        let _ = machine.response(at(5_000), &timers, 100);
        assert_eq!(machine.deadline(), at(200_100));
        let _ = machine.response(at(6_000), &timers, 180);
        assert_eq!(
            pass(machine, 1_000_000),
            [(206_000, Step::send(Sending::Cancel)), (238_000, TIMEOUT)]
        );
    }

    #[test]
    fn a_2xx_is_accepted_and_every_further_one_goes_to_the_tu_until_timer_m() {
        let (mut machine, timers) = start(false);
        let step = machine.response(at(300), &timers, 200);
        assert_eq!(step, Step::tu_event(TuEvent::Response).and_discard());
        let again = machine.response(at(900), &timers, 200);
        assert_eq!(again, Step::tu_event(TuEvent::Response));
        assert_eq!(machine.response(at(901), &timers, 180), Step::NOTHING);
        assert_eq!(machine.response(at(902), &timers, 486), Step::NOTHING);
        assert_eq!(machine.transport_failed(), Step::NOTHING);
        assert_eq!(pass(machine, 1_000_000), [(32_300, Step::end())]);
    }

    #[test]
    fn a_refusal_is_acknowledged_each_time_and_reaches_the_tu_once_until_timer_d() {
        for from_proceeding in [false, true] {
            let (mut machine, timers) = start(false);
            if from_proceeding {
                let _ = machine.response(at(10), &timers, 180);
            }
            let step = machine.response(at(300), &timers, 486);
            let expected = Step::tu_event(TuEvent::Response).and_send(Sending::NewAck);
            assert_eq!(step, expected);
            for status in [486, 486, 300, 699] {
                let step = machine.response(at(800), &timers, status);
                assert_eq!(step, Step::send(Sending::Ack));
            }
            assert_eq!(machine.response(at(801), &timers, 200), Step::NOTHING);
            assert_eq!(machine.response(at(802), &timers, 180), Step::NOTHING);
            assert_eq!(pass(machine, 1_000_000), [(32_300, Step::end())]);
        }
    }

    #[test]
    fn over_tcp_a_refusal_ends_the_transaction_at_once() {
        let (mut machine, timers) = start(true);
        let step = machine.response(at(300), &timers, 404);
        let ack = Step::tu_event(TuEvent::Response).and_send(Sending::NewAck);
        assert_eq!(step, ack.and_end());
    }

    #[test]
    fn a_cancel_waits_for_the_first_provisional_response() {
        let (mut machine, timers) = start(false);
        assert_eq!(machine.cancel(at(100), &timers), Step::NOTHING);
        assert_eq!(machine.cancel(at(110), &timers), Step::NOTHING);
        assert_eq!(pass(machine, 600), [(500, AGAIN)]);
        let step = machine.response(at(700), &timers, 180);
        let expected = Step::tu_event(TuEvent::Response).and_send(Sending::Cancel);
        assert_eq!(step, expected);
        assert_eq!(machine.cancel(at(720), &timers), Step::NOTHING);
        // A later provisional response prolongs nothing.
        let _ = machine.response(at(900), &timers, 183);
        assert_eq!(pass(machine, 1_000_000), [(32_700, TIMEOUT)]);
    }

    #[test]
    fn a_cancel_is_sent_at_once_when_the_call_rings_and_not_after_its_answer() {
        let (mut machine, timers) = start(false);
        let _ = machine.response(at(100), &timers, 180);
        let step = machine.cancel(at(200), &timers);
        assert_eq!(step, Step::send(Sending::Cancel));
        let _ = machine.response(at(300), &timers, 200);
        assert_eq!(machine.cancel(at(400), &timers), Step::NOTHING);
    }

    #[test]
    fn a_transport_error_ends_it_while_calling_and_when_the_ack_cannot_be_sent() {
        let failed = Step::tu_event(TuEvent::TransportFailed).and_end();
        let (mut machine, timers) = start(false);
        assert_eq!(machine.transport_failed(), failed);
        let (mut machine, _) = start(false);
        let _ = machine.response(at(1), &timers, 180);
        assert_eq!(machine.transport_failed(), Step::NOTHING);
        let _ = machine.response(at(2), &timers, 500);
        assert_eq!(machine.transport_failed(), failed);
    }

    #[test]
    fn the_end_of_the_only_way_to_the_other_side_ends_it_also_after_a_provisional_response() {
        let failed = Step::tu_event(TuEvent::TransportFailed).and_end();
        let (mut machine, timers) = start(true);
        let _ = machine.response(at(1), &timers, 180);
        assert_eq!(machine.flow_failed(), failed);
        let (mut machine, _) = start(true);
        let _ = machine.response(at(1), &timers, 200);
        assert_eq!(machine.flow_failed(), Step::NOTHING, "it was answered");
    }
}
