//! When there are as many transactions as may be: finished ones give way, and one source does not get all.

use hairpin_sip::engine::{AcceptError, Engine, Received, Reply, RespondError};
use hairpin_sip::flow::{Flow, ListenerKey, Transport};
use hairpin_sip::{Mono, Now, Spans};

use crate::world::{address, config, request};

const MAX_TRANSACTIONS: usize = 10;

struct Full {
    engine: Engine,
    now: Mono,
    /// The next requests have valid credentials.
    is_trusted: bool,
}

impl Full {
    fn new() -> Full {
        let mut config = config(1);
        config.most_servers = MAX_TRANSACTIONS;
        Full {
            engine: Engine::new(config, 1),
            now: Mono(1_000_000_000),
            is_trusted: false,
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now.0 += ms * 1_000_000;
        let now = self.time();
        while self.engine.poll_timeout().is_some_and(|at| at <= now.mono) {
            self.engine.handle_timeout(now);
        }
        while self.engine.poll_output().is_some() {}
    }

    fn time(&self) -> Now {
        Now {
            mono: self.now,
            unix_s: 1_700_000_000,
        }
    }

    /// A request of the client `from`, answered with `code`: whether it was new, or the error.
    fn ask(&mut self, method: &str, number: u32, from: usize, code: u16) -> Result<bool, bool> {
        self.ask_at_length(method, number, from, code, 0)
    }

    /// The same, with so many bytes more in the Via, which stand in the answer as well.
    fn ask_at_length(
        &mut self,
        method: &str,
        number: u32,
        from: usize,
        code: u16,
        more: usize,
    ) -> Result<bool, bool> {
        let more = "x".repeat(more);
        let via = format!("Via: SIP/2.0/UDP c.example;branch=z9hG4bK{number};more={more}\r\n");
        let flow = Flow {
            transport: Transport::Udp,
            listener: ListenerKey(0),
            connection: None,
            local: address(1),
            remote: ([198, 51, 100, from as u8], 5060).into(),
        };
        let mut spans = Spans::new();
        let bytes = request(method, number, &via);
        let time = self.time();
        let answer = match self.engine.handle_message(time, &flow, &bytes, &mut spans) {
            Received::Request(mut request) => {
                if self.is_trusted {
                    request.trust();
                }
                let reply = Reply::new(code);
                let answered = self.engine.answer(self.now, request, &reply);
                answered
                    .map(|_| true)
                    .map_err(|error| matches!(error, RespondError::Accept(AcceptError::Full)))
            }
            _ => Ok(false),
        };
        while self.engine.poll_output().is_some() {}
        answer
    }
}

#[test]
fn the_oldest_finished_transaction_gives_way_when_no_repetition_of_it_is_likely() {
    let mut full = Full::new();
    for number in 0..MAX_TRANSACTIONS as u32 {
        assert_eq!(full.ask("REGISTER", number, 1, 200), Ok(true));
        full.pass(50);
    }
    // The first was answered half a second ago.
    assert_eq!(full.ask("REGISTER", 100, 1, 200), Err(true));
    full.pass(500);
    assert_eq!(full.ask("REGISTER", 100, 1, 200), Ok(true));
    assert_eq!(full.engine.stats().servers, MAX_TRANSACTIONS);
    assert_eq!(full.engine.stats().cut_short, 1);
    assert_eq!(
        full.ask("REGISTER", 1, 1, 200),
        Ok(false),
        "the second is known"
    );
    assert_eq!(
        full.ask("REGISTER", 100, 1, 200),
        Ok(false),
        "the new one too"
    );
    full.pass(50);
    assert_eq!(
        full.ask("REGISTER", 0, 1, 200),
        Ok(true),
        "the first was forgotten"
    );
    full.pass(40_000);
    assert_eq!(full.engine.stats().servers, 0);
    assert_eq!(full.engine.stats().timers, 0);
}

#[test]
fn transactions_that_wait_for_an_ack_stay_and_leave_a_share_to_other_sources() {
    let mut full = Full::new();
    for number in 0..8 {
        assert_eq!(full.ask("INVITE", number, 1, 486), Ok(true));
    }
    full.pass(20_000);
    assert_eq!(full.ask("INVITE", 8, 1, 486), Err(true), "it has its share");
    assert_eq!(full.ask("REGISTER", 9, 2, 200), Ok(true));
    assert_eq!(full.ask("REGISTER", 10, 2, 200), Ok(true));
    full.pass(1_500);
    assert_eq!(
        full.ask("REGISTER", 11, 2, 200),
        Ok(true),
        "in place of the other source's own"
    );
    full.pass(40_000);
    assert_eq!(full.ask("INVITE", 12, 1, 486), Ok(true));
}

#[test]
fn long_messages_leave_room_for_fewer() {
    let mut full = Full::new();
    // Each counts as seven. The second one takes the last room.
    for number in 0..2 {
        let from = number as usize;
        assert_eq!(
            full.ask_at_length("INVITE", number, from, 486, 7_000),
            Ok(true)
        );
    }
    assert_eq!(full.ask("INVITE", 8, 8, 486), Err(true));
    full.pass(40_000);
    for number in 10..13 {
        assert_eq!(
            full.ask_at_length("REGISTER", number, 1, 200, 7_000),
            Ok(true)
        );
        full.pass(2_000);
    }
    assert_eq!(
        full.ask("INVITE", 20, 8, 486),
        Ok(true),
        "a finished one gives way"
    );
    assert_eq!(full.engine.stats().cut_short, 1);
}

#[test]
fn a_quarter_is_for_requests_that_prove_their_source() {
    let mut full = Full::new();
    full.engine.configure_trust(true);
    let mut number = 0;
    let mut fill = |full: &mut Full| {
        let before = number;
        while full.ask("INVITE", number, 1 + number as usize, 486) == Ok(true) {
            number += 1;
        }
        number - before
    };
    assert_eq!(fill(&mut full), 8);
    full.is_trusted = true;
    assert_eq!(fill(&mut full), 2);
}
