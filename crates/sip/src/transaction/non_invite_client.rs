//! The non-INVITE client transaction (RFC 3261 §17.1.2).
//!
//! ```text
//!          1xx               200-699             K
//! Trying ───────▶ Proceeding ───────▶ Completed ───▶ (end)
//!   │ E: request, T1 to T2   │ E: request, T2
//!   │ F: timeout             │ F: timeout
//! ```

use super::{Clocks, Sending, Step, TuEvent};
use crate::Mono;
use crate::timer::Timers;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Trying,
    Proceeding,
    Completed,
}

/// The machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NonInviteClient {
    state: State,
    reliable: bool,
    sent: u8,
    clocks: Clocks,
}

impl NonInviteClient {
    /// The TU sends a request; the caller puts it on the wire.
    pub(crate) fn start(now: Mono, timers: &Timers, reliable: bool) -> NonInviteClient {
        NonInviteClient {
            state: State::Trying,
            reliable,
            sent: 1,
            clocks: Clocks::requesting(now, timers, reliable),
        }
    }

    /// When to call [`NonInviteClient::fire`] next.
    pub(crate) fn deadline(&self) -> Mono {
        self.clocks.next()
    }

    /// A response that matches came in.
    pub(crate) fn response(&mut self, now: Mono, timers: &Timers, status: u16) -> Step {
        match (self.state, status / 100) {
            (State::Completed, _) => Step::NOTHING,
            (State::Trying | State::Proceeding, 1) => {
                self.state = State::Proceeding;
                Step::tu_event(TuEvent::Response)
            }
            (State::Trying | State::Proceeding, 2..=6) => {
                self.state = State::Completed;
                let step = Step::tu_event(TuEvent::Response).and_discard();
                // RFC 3261 §17.1.2.2: timer K is zero over reliable transports.
                if self.reliable {
                    return step.and_end();
                }
                self.clocks = Clocks::ending(now.plus(timers.t4));
                step
            }
            _ => Step::NOTHING,
        }
    }

    /// The request could not be sent.
    pub(crate) fn transport_failed(&mut self) -> Step {
        match self.state {
            State::Trying | State::Proceeding => Step::tu_event(TuEvent::TransportFailed).and_end(),
            State::Completed => Step::NOTHING,
        }
    }

    /// Time reached [`NonInviteClient::deadline`].
    pub(crate) fn fire(&mut self, now: Mono, timers: &Timers) -> Step {
        if self.clocks.end <= now {
            return match self.state {
                State::Trying | State::Proceeding => Step::tu_event(TuEvent::Timeout).and_end(),
                State::Completed => Step::end(),
            };
        }
        if self.clocks.again > now {
            return Step::NOTHING;
        }
        self.sent = self.sent.saturating_add(1);
        let interval = match self.state {
            State::Trying => timers.doubling_to_t2(self.sent),
            // RFC 3261 §17.1.2.2: in "Proceeding" timer E is reset with T2.
            State::Proceeding | State::Completed => timers.t2,
        };
        self.clocks.again = now.plus(interval);
        Step::send(Sending::Request)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::super::tests::{at, run};
    use super::*;

    fn start(reliable: bool) -> (NonInviteClient, Timers) {
        let timers = Timers::default();
        (NonInviteClient::start(at(0), &timers, reliable), timers)
    }

    fn pass(machine: NonInviteClient) -> Vec<(u64, Step)> {
        let timers = Timers::default();
        let machine = RefCell::new(machine);
        run(
            1_000_000,
            || machine.borrow().deadline(),
            |now| machine.borrow_mut().fire(now, &timers),
        )
    }

    const TIMEOUT: Step = Step::tu_event(TuEvent::Timeout).and_end();

    #[test]
    fn eleven_requests_are_sent_over_udp_before_timer_f() {
        let (machine, _) = start(false);
        let times = [
            500, 1500, 3500, 7500, 11_500, 15_500, 19_500, 23_500, 27_500, 31_500,
        ];
        let again = times.map(|ms| (ms, Step::send(Sending::Request)));
        let mut expected = again.to_vec();
        expected.push((32_000, TIMEOUT));
        assert_eq!(pass(machine), expected);
    }

    #[test]
    fn in_proceeding_timer_e_runs_t2_and_timer_f_goes_on() {
        let (mut machine, timers) = start(false);
        let step = machine.response(at(100), &timers, 100);
        assert_eq!(step, Step::tu_event(TuEvent::Response));
        let times = [500, 4500, 8500, 12_500, 16_500, 20_500, 24_500, 28_500];
        let again = times.map(|ms| (ms, Step::send(Sending::Request)));
        let mut expected = again.to_vec();
        expected.push((32_000, TIMEOUT));
        assert_eq!(pass(machine), expected);
    }

    #[test]
    fn over_tcp_only_timer_f_runs_and_a_final_response_ends_it() {
        let (mut machine, timers) = start(true);
        assert_eq!(pass(machine), [(32_000, TIMEOUT)]);
        let step = machine.response(at(5), &timers, 200);
        let expected = Step::tu_event(TuEvent::Response).and_discard().and_end();
        assert_eq!(step, expected);
    }

    #[test]
    fn a_final_response_reaches_the_tu_once_and_later_ones_are_absorbed_until_timer_k() {
        let (mut machine, timers) = start(false);
        let step = machine.response(at(50), &timers, 404);
        assert_eq!(step, Step::tu_event(TuEvent::Response).and_discard());
        for status in [404, 200, 100, 503] {
            assert_eq!(machine.response(at(60), &timers, status), Step::NOTHING);
        }
        assert_eq!(machine.transport_failed(), Step::NOTHING);
        assert_eq!(pass(machine), [(5_050, Step::end())]);
    }

    #[test]
    fn a_transport_error_ends_it_before_the_final_response() {
        let failed = Step::tu_event(TuEvent::TransportFailed).and_end();
        let (mut machine, timers) = start(false);
        assert_eq!(machine.transport_failed(), failed);
        let (mut machine, _) = start(true);
        let _ = machine.response(at(1), &timers, 100);
        assert_eq!(machine.transport_failed(), failed);
    }
}
