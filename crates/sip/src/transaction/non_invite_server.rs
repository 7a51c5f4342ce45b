//! The non-INVITE server transaction (RFC 3261 §17.2.2, RFC 4320).
//!
//! ```text
//!          100               200-699             J
//! Trying ───────▶ Proceeding ───────▶ Completed ───▶ (end)
//!   │ 3.5 s: 100    repeated: 100       repeated: the final response
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
pub(crate) struct NonInviteServer {
    state: State,
    reliable: bool,
    /// When a 100 may be sent over an unreliable transport.
    trying_at: Mono,
    clocks: Clocks,
}

impl NonInviteServer {
    /// A request came in and goes to the TU.
    pub(crate) fn start(now: Mono, timers: &Timers, reliable: bool) -> NonInviteServer {
        // RFC 4320 §4.1: a 100 when the client's timer E has reached T2, over any transport.
        let trying_at = now.plus(timers.non_invite_trying());
        NonInviteServer {
            state: State::Trying,
            reliable,
            trying_at,
            clocks: Clocks {
                again: trying_at,
                // After 64*T1 the client has given up: no answer is of use.
                end: now.plus(timers.give_up()),
            },
        }
    }

    /// When to call [`NonInviteServer::fire`] next.
    pub(crate) fn deadline(&self) -> Mono {
        self.clocks.next()
    }

    /// The client retransmitted the request (RFC 3261 §17.2.2).
    pub(crate) fn request(&mut self) -> Step {
        match self.state {
            State::Trying => Step::NOTHING,
            State::Proceeding | State::Completed => Step::send(Sending::Response),
        }
    }

    /// The TU responds; `None` if the response must not be sent.
    pub(crate) fn respond(&mut self, now: Mono, timers: &Timers, status: u16) -> Option<Step> {
        match (self.state, status) {
            // RFC 4320 §4.1: not over an unreliable transport before its time; it is sent then.
            (State::Trying, 100) if !self.reliable && now < self.trying_at => None,
            (State::Trying | State::Proceeding, 100) => {
                self.state = State::Proceeding;
                self.clocks.again = Mono::NEVER;
                Some(Step::send(Sending::Response))
            }
            // RFC 4320 §4.2: never a 408, for the client has timed out as well. The transaction stays to absorb what is
            // still in progress, and is silent.
            (State::Trying | State::Proceeding, 408) => None,
            (State::Trying | State::Proceeding, 200..=699) => {
                self.state = State::Completed;
                let step = Step::send(Sending::Response);
                // RFC 3261 §17.2.2: timer J is zero over reliable transports.
                if self.reliable {
                    return Some(step.and_end());
                }
                self.clocks = Clocks::ending(now.plus(timers.give_up()));
                Some(step)
            }
            // RFC 4320 §4.1: no provisional response but 100. RFC 3261 §17.2.2: further final ones are discarded.
            _ => None,
        }
    }

    /// A response could not be sent.
    ///
    /// RFC 3261 §17.2.4 would end the transaction; RFC 6026 §8.8 keeps it, and so a repeated request tries again.
    pub(crate) fn transport_failed(&mut self) -> Step {
        Step::tu_event(TuEvent::TransportFailed)
    }

    /// Time reached [`NonInviteServer::deadline`].
    pub(crate) fn fire(&mut self, now: Mono) -> Step {
        if self.clocks.end <= now {
            return match self.state {
                State::Trying | State::Proceeding => Step::tu_event(TuEvent::Abandoned).and_end(),
                State::Completed => Step::end(),
            };
        }
        if self.clocks.again > now {
            return Step::NOTHING;
        }
        self.state = State::Proceeding;
        self.clocks.again = Mono::NEVER;
        Step::send(Sending::Trying)
    }

    /// Whether repetitions of the request are all that it waits for, until timer J.
    pub(crate) fn is_finished(&self) -> bool {
        self.state == State::Completed
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::super::tests::{at, run};
    use super::*;

    fn start(reliable: bool) -> (NonInviteServer, Timers) {
        let timers = Timers::default();
        (NonInviteServer::start(at(0), &timers, reliable), timers)
    }

    fn pass(machine: NonInviteServer) -> Vec<(u64, Step)> {
        let machine = RefCell::new(machine);
        run(
            1_000_000,
            || machine.borrow().deadline(),
            |now| machine.borrow_mut().fire(now),
        )
    }

    const RESPONSE: Step = Step::send(Sending::Response);

    #[test]
    fn a_silent_tu_gives_a_100_after_3500_ms_and_is_abandoned_with_the_clients_timer_f() {
        for reliable in [false, true] {
            let (machine, _) = start(reliable);
            let abandoned = Step::tu_event(TuEvent::Abandoned).and_end();
            let expected = [(3_500, Step::send(Sending::Trying)), (32_000, abandoned)];
            assert_eq!(pass(machine), expected);
        }
    }

    #[test]
    fn repeated_requests_are_discarded_in_trying_and_answered_later() {
        let (mut machine, timers) = start(false);
        assert_eq!(machine.request(), Step::NOTHING);
        let _ = machine.fire(at(3_500));
        assert_eq!(machine.request(), RESPONSE);
        assert_eq!(machine.respond(at(4_000), &timers, 200), Some(RESPONSE));
        assert_eq!(machine.request(), RESPONSE);
    }

    #[test]
    fn a_final_response_over_udp_stays_until_timer_j_and_is_the_only_one() {
        let (mut machine, timers) = start(false);
        assert_eq!(machine.respond(at(20), &timers, 200), Some(RESPONSE));
        assert_eq!(machine.respond(at(30), &timers, 500), None);
        assert_eq!(machine.respond(at(30), &timers, 100), None);
        assert_eq!(pass(machine), [(32_020, Step::end())]);
    }

    #[test]
    fn a_final_response_over_tcp_ends_it_at_once() {
        let (mut machine, timers) = start(true);
        let step = machine.respond(at(20), &timers, 200);
        assert_eq!(step, Some(RESPONSE.and_end()));
    }

    #[test]
    fn only_100_is_a_provisional_response_and_over_udp_only_after_3500_ms() {
        let (mut machine, timers) = start(false);
        assert_eq!(machine.respond(at(20), &timers, 180), None);
        assert_eq!(machine.respond(at(20), &timers, 100), None);
        assert_eq!(machine.respond(at(3_500), &timers, 100), Some(RESPONSE));
        let (mut machine, _) = start(true);
        assert_eq!(machine.respond(at(20), &timers, 100), Some(RESPONSE));
    }

    #[test]
    fn a_408_is_never_sent() {
        let (mut machine, timers) = start(false);
        assert_eq!(machine.respond(at(20), &timers, 408), None);
        assert_eq!(machine.request(), Step::NOTHING);
        let failed = Step::tu_event(TuEvent::TransportFailed);
        assert_eq!(machine.transport_failed(), failed);
    }
}
