//! What the target of the SIP engine does with an input, shared with the test in crates/sip that replays the corpus.
//!
//! The input is a list of steps, separated by zero bytes; the first byte of a step says what it is: `m` a message
//! received as a datagram, `s` one received over a stream, `q` a request to send, `r` and a digit a response of that
//! class to the last request accepted, `c` a cancellation, `u` an undeliverable datagram, `t` and a byte so many times
//! 250 ms, `b` and a byte a backlog of so many times 100 messages, `a` that it is a user agent from now on, and no
//! proxy.

use hairpin_sip as sip;
use sip::congestion::{Backlog, Class};
use sip::engine::{
    ClientKey, Config, Engine, Mark, Outgoing, Output, Received, Reply, SentBy, ServerKey,
};
use sip::flow::{ConnectionKey, Destination, Flow, ListenerKey, Transport};
use sip::verdict::Rules;
use sip::{HashKey, Mono, Now, Spans};
use std::time::Duration;

struct Target {
    engine: Engine,
    now: Mono,
    server: Option<ServerKey>,
    client: Option<ClientKey>,
}

/// Takes the steps; whatever they are, the timers alive are the transactions alive, and in the end nothing is left.
pub fn engine(input: &[u8]) {
    let mut config = Config::new(0, HashKey::new([7; 16]));
    config.sent_by.push(SentBy::new(
        ListenerKey(0),
        Transport::Udp,
        "192.0.2.1",
        5060,
    ));
    let mut target = Target {
        engine: Engine::new(config, 1),
        now: Mono(1_000_000_000),
        server: None,
        client: None,
    };
    target.engine.accepted(target.now, &flow(true));
    for step in input.split(|byte| *byte == 0) {
        if let Some((kind, rest)) = step.split_first() {
            target.step(*kind, rest);
        }
        let stats = target.engine.stats();
        assert_eq!(stats.timers, stats.servers + stats.clients);
    }
    target.pass(u64::MAX / 4);
    let stats = target.engine.stats();
    let left = (
        stats.servers,
        stats.clients,
        stats.timers,
        stats.message_bytes,
    );
    assert_eq!(left, (0, 0, 0, 0));
}

fn flow(stream: bool) -> Flow {
    Flow {
        transport: if stream {
            Transport::Tcp
        } else {
            Transport::Udp
        },
        listener: ListenerKey(0),
        connection: stream.then_some(ConnectionKey(1)),
        local: ([192, 0, 2, 1], 5060).into(),
        remote: ([192, 0, 2, 2], 5060).into(),
    }
}

impl Target {
    fn step(&mut self, kind: u8, rest: &[u8]) {
        match kind {
            b'm' => self.receive(&flow(false), rest),
            b's' => self.receive(&flow(true), rest),
            b'q' => self.request(rest),
            b'r' => {
                let class = rest.first().map_or(2, |digit| u16::from(digit % 6) + 1);
                if let Some(key) = self.server {
                    let reply = Reply::new(class * 100 + 80 * u16::from(class == 1));
                    // Refused where it is out of place.
                    let _ = self
                        .engine
                        .respond(self.now, key, &reply.until_ack_from(rest));
                }
            }
            b'c' => {
                if let Some(key) = self.client {
                    self.engine.cancel(self.now, key);
                }
            }
            b'a' => self.engine.configure_rules(Rules::USER_AGENT),
            b'b' => {
                let messages = rest.first().map_or(0, |byte| u64::from(*byte) * 100);
                let backlog = Backlog {
                    messages,
                    ..Backlog::default()
                };
                let now = Now {
                    mono: self.now,
                    unix_s: self.now.0 / 1_000_000_000,
                };
                // In batches, as workers report it.
                for _ in 0..125 {
                    self.engine
                        .observe_service(16, Duration::from_micros(16 * 50));
                }
                self.engine.observe_backlog(now, backlog);
            }
            b'u' => {
                let _ = self.engine.unreachable(self.now, rest);
            }
            b't' => {
                let times = rest.first().map_or(1, |byte| u64::from(*byte));
                self.pass(self.now.0 + times * 250_000_000);
            }
            _ => {}
        }
        self.drain();
    }

    fn receive(&mut self, flow: &Flow, bytes: &[u8]) {
        let mut spans = Spans::new();
        let now = Now {
            mono: self.now,
            unix_s: 0,
        };
        let received = self.engine.handle_message(now, flow, bytes, &mut spans);
        if let Received::Request(request) = received
            && let Ok(key) = self.engine.accept(self.now, request, Some(Mark(1)))
        {
            self.server = Some(key);
        }
    }

    fn request(&mut self, bytes: &[u8]) {
        let out = Outgoing {
            to: Destination::new(
                Transport::Udp,
                ([192, 0, 2, 2], 5060).into(),
                ListenerKey(0),
            ),
            connection: None,
            pieces: &[bytes],
            class: Class::New,
            mark: Some(Mark(2)),
            loop_check: None,
        };
        if let Ok(key) = self.engine.request(self.now, &out) {
            self.client = Some(key);
        }
    }

    /// What is sent comes to nothing, but is looked at.
    fn drain(&mut self) {
        while let Some(output) = self.engine.poll_output() {
            if let Output::Send { bytes, .. } = output {
                assert!(!bytes.is_empty());
            }
        }
    }

    fn pass(&mut self, until: u64) {
        while let Some(at) = self.engine.poll_timeout().filter(|at| at.0 <= until) {
            self.now = self.now.max(at);
            let now = Now {
                mono: self.now,
                unix_s: 0,
            };
            self.engine.handle_timeout(now);
            self.drain();
        }
        self.now = self.now.max(Mono(until));
    }
}
