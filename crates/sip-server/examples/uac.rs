//! Calls somebody: registers with Digest if it is told so, waits for the answer, talks for a while, and hangs up. A
//! call that rings for too long is cancelled.
//!
//! ```text
//! cargo run -p hairpin-sip-server --example uac -- --listen 127.0.0.1:0 --identity sip:alice@example.com
//!     [--proxy 'sip:127.0.0.1:5060;lr'] [--user alice --password secret [--realm example.com]] [--register yes] [--ring SECONDS]
//!     [--talk SECONDS] [--hold yes] sip:bob@example.com
//! ```
//!
//! It says what happens. Its exit code is 0 if the call was answered. Without media: see the example `uas`.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program has sockets, threads and a clock"
)]

mod sockets;

use std::time::Duration;

use sip::Mono;
use sip::agent::{CallKey, Config, Content, EndCause, Event, Invite, RULES, UserAgent};
use sip::endpoint::Endpoint;
use sockets::{Arguments, Failed, Sockets};

const USAGE: &str = "uac --listen ADDRESS --identity URI [--proxy URI] [--user NAME --password TEXT [--realm TEXT]] \
                     [--register yes] [--ring SECONDS] [--talk SECONDS] [--hold yes] CALLEE";
const NAMES: [&str; 10] = [
    "listen", "identity", "proxy", "user", "password", "realm", "register", "ring", "talk", "hold",
];

struct Phone {
    sockets: Sockets,
    endpoint: Endpoint<UserAgent>,
}

impl Phone {
    fn new(arguments: &Arguments) -> Result<Phone, Failed> {
        let sockets = Sockets::bind(arguments.get("listen").ok_or(USAGE)?)?;
        let identity = arguments.get("identity").ok_or(USAGE)?;
        let mut config = Config::new(identity, &format!("sip:uac@{}", sockets.local));
        config.outbound_proxy = arguments.get("proxy").map(str::to_owned);
        config.credentials = arguments.credentials(identity);
        let key = sockets::random_key()?;
        let endpoint = sockets.endpoint(RULES, key, UserAgent::new(config, key)?);
        println!("listening on {}", sockets.local);
        Ok(Phone { sockets, endpoint })
    }

    /// The next event; `None` at this time.
    fn next(&mut self, until: Option<Mono>) -> Option<Event> {
        loop {
            if let Some(event) = self.endpoint.user_mut().poll_event() {
                return Some(event);
            }
            if until.is_some_and(|at| at <= self.sockets.now().mono) {
                return None;
            }
            self.sockets.turn(&mut self.endpoint, until);
        }
    }

    fn after(&self, time: Duration) -> Option<Mono> {
        Some(self.sockets.now().mono.plus(time))
    }

    fn register(&mut self) -> Result<(), Failed> {
        self.endpoint.act(self.sockets.now(), UserAgent::register)?;
        match self.next(None) {
            Some(Event::Registered { expires }) => {
                println!("registered for {} s", expires.as_secs())
            }
            Some(Event::RegisterFailed { failure, .. }) => {
                return Err(format!("not registered: {failure}").into());
            }
            other => return Err(format!("not expected: {other:?}").into()),
        }
        Ok(())
    }

    fn hang_up(&mut self, call: CallKey) -> Result<(), Failed> {
        let now = self.sockets.now();
        Ok(self
            .endpoint
            .act(now, |agent, it| agent.hang_up(it, call))?)
    }

    /// Waits until the call has ended; its cause.
    fn ended(&mut self) -> EndCause {
        loop {
            match self.next(None) {
                Some(Event::Ended { cause, .. }) => return cause,
                Some(other) => println!("{other:?}"),
                None => {}
            }
        }
    }

    /// Calls, and waits for the answer as long as it may ring. It rings when a provisional response has come.
    fn call(&mut self, callee: &str, offer: Content, ring: Duration) -> Result<CallKey, Failed> {
        let now = self.sockets.now();
        let invite = Invite::new(callee, offer);
        let call = self
            .endpoint
            .act(now, |agent, it| agent.invite(it, invite))?;
        println!("calling {callee}");
        let (mut until, mut rings) = (None, false);
        loop {
            match self.next(until) {
                Some(Event::Progress { code, .. }) => {
                    println!("{code}: not answered yet");
                    if !std::mem::replace(&mut rings, true) {
                        until = self.after(ring);
                    }
                }
                Some(Event::Answered { content, .. }) => {
                    println!(
                        "answered, with {} bytes of session description",
                        content.bytes.len()
                    );
                    return Ok(call);
                }
                Some(Event::Ended { cause, .. }) => {
                    return Err(format!("not answered: {cause}").into());
                }
                Some(other) => println!("{other:?}"),
                None => {
                    println!("it rings for too long: CANCEL");
                    self.hang_up(call)?;
                    until = None;
                }
            }
        }
    }
}

fn run() -> Result<(), Failed> {
    let arguments = Arguments::read(&NAMES, USAGE)?;
    let [callee] = &arguments.words[..] else {
        return Err(format!("usage: {USAGE}").into());
    };
    let (ring, talk) = (
        arguments.seconds("ring", 30)?,
        arguments.seconds("talk", 1)?,
    );
    let mut phone = Phone::new(&arguments)?;
    if arguments.get("register").is_some() {
        phone.register()?;
    }
    let ip = phone.sockets.local.ip();
    let family = if ip.is_ipv4() { "IP4" } else { "IP6" };
    let description = |direction: &str| {
        let head =
            format!("v=0\r\no=- 1 1 IN {family} {ip}\r\ns=-\r\nc=IN {family} {ip}\r\nt=0 0\r\n");
        Content::sdp(format!("{head}m=audio 9 RTP/AVP 0\r\na={direction}\r\n"))
    };
    let call = phone.call(callee, description("sendrecv"), ring)?;
    if arguments.get("hold").is_some() {
        let now = phone.sockets.now();
        phone.endpoint.act(now, |agent, it| {
            agent.reinvite(it, call, description("sendonly"))
        })?;
    }
    let until = phone.after(talk);
    while let Some(event) = phone.next(until) {
        match event {
            Event::Ended { cause, .. } => {
                println!("call ended: {cause}");
                return Ok(());
            }
            Event::OfferAnswered { .. } => println!("on hold"),
            Event::OfferRefused { code, .. } => println!("not on hold: {code}"),
            other => println!("{other:?}"),
        }
    }
    phone.hang_up(call)?;
    println!("call ended: {}", phone.ended());
    Ok(())
}

fn main() -> std::process::ExitCode {
    sockets::report(run())
}
