//! A user agent, the clock, and the other end as text.

use std::time::Duration;

use hairpin_sip::agent::{CallKey, Config, Content, Credentials, Event, Invite, UserAgent};
use hairpin_sip::dispatch::{self, Dispatcher, Source};
use hairpin_sip::endpoint::{Endpoint, Task};
use hairpin_sip::engine::{self, Engine, SentBy};
use hairpin_sip::flow::{Flow, ListenerKey, Transport};
use hairpin_sip::timer::Timers;
use hairpin_sip::tu::Transactions;
use hairpin_sip::{HashKey, Mono, Now};

pub(crate) const OFFER: &str = "v=0\r\n";
pub(crate) const CONTACT: &str = "Contact: <sip:bob@192.0.2.9>\r\n";

pub(crate) struct TestBed {
    pub(crate) endpoint: Endpoint<UserAgent>,
    pub(crate) now: Now,
    /// All messages that were sent and not taken.
    sent: Vec<String>,
}

pub(crate) fn config() -> Config {
    let mut config = Config::new("sip:alice@192.0.2.9", "sip:alice@192.0.2.1:5060");
    config.credentials = vec![credentials(None)];
    config
}

/// Those of alice, for this realm or for any.
pub(crate) fn credentials(realm: Option<&str>) -> Credentials {
    Credentials {
        realm: realm.map(str::to_owned),
        username: "alice".to_owned(),
        password: "secret".to_owned(),
    }
}

/// The value of a header field.
pub(crate) fn value<'t>(message: &'t str, name: &str) -> &'t str {
    let head = message.split("\r\n\r\n").next().expect("there is one");
    let mut lines = head.split("\r\n").filter_map(|line| line.split_once(": "));
    lines
        .find(|(found, _)| *found == name)
        .unwrap_or_else(|| panic!("{name} in {message}"))
        .1
}

/// The response to a request of ours, with this To tag.
pub(crate) fn response(request: &str, status: &str, tag: &str, lines: &str, body: &str) -> String {
    let to = value(request, "To");
    let tag = if tag.is_empty() || to.contains(";tag=") {
        String::new()
    } else {
        format!(";tag={tag}")
    };
    let (length, media) = (
        body.len(),
        if body.is_empty() {
            ""
        } else {
            "Content-Type: application/sdp\r\n"
        },
    );
    format!(
        "SIP/2.0 {status}\r\nVia: {}\r\nFrom: {}\r\nTo: {to}{tag}\r\nCall-ID: {}\r\nCSeq: {}\r\n{lines}{media}\
         Content-Length: {length}\r\n\r\n{body}",
        value(request, "Via"),
        value(request, "From"),
        value(request, "Call-ID"),
        value(request, "CSeq"),
    )
}

/// A request of the other end, with this branch. `to_tag` has its semicolon.
pub(crate) fn request(method: &str, branch: &str, cseq: u32, to_tag: &str, body: &str) -> String {
    let (length, media) = (
        body.len(),
        if body.is_empty() {
            ""
        } else {
            "Content-Type: application/sdp\r\n"
        },
    );
    format!(
        "{method} sip:alice@192.0.2.1:5060 SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.9:5060;branch=z9hG4bK{branch}\r\n\
         From: <sip:bob@192.0.2.9>;tag=b\r\nTo: <sip:alice@192.0.2.9>{to_tag}\r\nCall-ID: in@192.0.2.9\r\n\
         CSeq: {cseq} {method}\r\nMax-Forwards: 70\r\n{CONTACT}{media}Content-Length: {length}\r\n\r\n{body}"
    )
}

/// `;tag=..` of To.
pub(crate) fn tag_of(message: &str) -> String {
    let to = value(message, "To");
    to[to.find(";tag=").expect("a tag")..].to_owned()
}

impl TestBed {
    pub(crate) fn new(config: Config) -> TestBed {
        TestBed::with_timers(config, Timers::default())
    }

    pub(crate) fn with_timers(config: Config, timers: Timers) -> TestBed {
        let key = HashKey::new([7; 16]);
        let mut engine = engine::Config::new(0, key);
        engine.rules = config.rules;
        engine.timers = timers;
        engine.overload_control = false;
        engine.sent_by = vec![SentBy::new(
            ListenerKey(0),
            Transport::Udp,
            "192.0.2.1",
            5060,
        )];
        let udp = Source {
            listener: ListenerKey(0),
            transport: Transport::Udp,
            is_v4: true,
        };
        let dispatcher = Dispatcher::new(dispatch::Config::new(vec![udp]), key, 1);
        let agent = UserAgent::new(config, key).expect("well-formed");
        TestBed {
            endpoint: Endpoint::new(Engine::new(engine, 1), dispatcher, agent),
            now: Now {
                mono: Mono(1_000_000_000),
                unix_s: 1_800_000_000,
            },
            sent: Vec::new(),
        }
    }

    fn drain(&mut self) {
        let sent = &mut self.sent;
        self.endpoint.drain(self.now, |task| {
            if let Task::Send { bytes, .. } = task {
                sent.push(String::from_utf8_lossy(bytes).into_owned());
            }
        });
    }

    pub(crate) fn act<R>(
        &mut self,
        act: impl FnOnce(&mut UserAgent, &mut Transactions<'_>) -> R,
    ) -> R {
        let result = self.endpoint.act(self.now, act);
        self.drain();
        result
    }

    pub(crate) fn receive(&mut self, message: &str) {
        let flow = Flow {
            transport: Transport::Udp,
            listener: ListenerKey(0),
            connection: None,
            local: ([192, 0, 2, 1], 5060).into(),
            remote: ([192, 0, 2, 9], 5060).into(),
        };
        self.endpoint
            .handle_message(self.now, &flow, message.as_bytes());
        self.drain();
    }

    /// Time passes, and timers fire when they are due.
    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.now.mono.plus(time);
        while let Some(at) = self.endpoint.poll_timeout().filter(|at| *at <= until) {
            self.now.mono = self.now.mono.max(at);
            self.endpoint.handle_timeout(self.now);
            self.drain();
        }
        self.now.mono = until;
    }

    /// What was sent since the last time.
    pub(crate) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.sent)
    }

    /// The one message that was sent.
    pub(crate) fn take_one(&mut self) -> String {
        let mut sent = self.take();
        assert_eq!(sent.len(), 1, "{sent:#?}");
        sent.remove(0)
    }

    pub(crate) fn event(&mut self) -> Option<Event> {
        self.endpoint.user_mut().poll_event()
    }

    /// Calls bob; the INVITE.
    pub(crate) fn invite(&mut self, content: Content) -> (CallKey, String) {
        let invite = Invite::new("sip:bob@192.0.2.9", content);
        let call = self
            .act(|agent, it| agent.invite(it, invite))
            .expect("well-formed");
        (call, self.take_one())
    }

    /// A call of ours that is answered; the INVITE and the ACK.
    pub(crate) fn answered(&mut self) -> (CallKey, String, String) {
        let (call, invite) = self.invite(Content::sdp(OFFER));
        self.receive(&response(&invite, "200 OK", "b1", CONTACT, OFFER));
        assert!(matches!(self.event(), Some(Event::Answered { .. })));
        let ack = self.take_one();
        (call, invite, ack)
    }
}
