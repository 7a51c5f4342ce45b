//! Answers calls and OPTIONS; registers first if it is told a proxy.
//!
//! ```text
//! cargo run -p hairpin-sip-server --example uas -- --listen 127.0.0.1:5080 [--identity sip:bob@example.com]
//!     [--proxy 'sip:127.0.0.1:5060;lr' --user bob --password hidden [--realm example.com]] [--ring SECONDS] [--busy yes]
//! ```
//!
//! Without media: the answer names a port that nobody listens on. A phone puts its own session description there.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program has sockets, threads and a clock"
)]

mod sockets;

use std::collections::HashMap;

use sip::Mono;
use sip::agent::{CallError, CallKey, Config, Content, Event, RULES, UserAgent};
use sip::endpoint::Endpoint;
use sockets::{Arguments, Failed, Sockets};

const USAGE: &str = "uas --listen ADDRESS [--identity URI] [--proxy URI --user NAME --password TEXT [--realm TEXT]] \
                     [--ring SECONDS] [--busy yes]";
const NAMES: [&str; 8] = [
    "listen", "identity", "proxy", "user", "password", "realm", "ring", "busy",
];

fn description(sockets: &Sockets) -> Content {
    let ip = sockets.local.ip();
    let family = if ip.is_ipv4() { "IP4" } else { "IP6" };
    Content::sdp(format!(
        "v=0\r\no=- 1 1 IN {family} {ip}\r\ns=-\r\nc=IN {family} {ip}\r\nt=0 0\r\nm=audio 9 RTP/AVP 0\r\n"
    ))
}

fn run() -> Result<(), Failed> {
    let arguments = Arguments::read(&NAMES, USAGE)?;
    let mut sockets = Sockets::bind(arguments.get("listen").ok_or(USAGE)?)?;
    let local = sockets.local;
    let identity = arguments.get("identity").unwrap_or("sip:uas@localhost");
    let mut config = Config::new(identity, &format!("sip:uas@{local}"));
    config.outbound_proxy = arguments.get("proxy").map(str::to_owned);
    config.credentials = arguments.credentials(identity);
    let key = sockets::random_key()?;
    let agent = UserAgent::new(config, key)?;
    let mut endpoint = sockets.endpoint(RULES, key, agent);
    println!("listening on {local}");
    if arguments.get("proxy").is_some() {
        endpoint.act(sockets.now(), UserAgent::register)?;
    }
    let ring = arguments.seconds("ring", 0)?;
    let is_busy = arguments.get("busy").is_some();
    // Calls that ring, and when they are answered.
    let mut ringing: HashMap<CallKey, Mono> = HashMap::new();
    loop {
        let now = sockets.now();
        let answer = description(&sockets);
        for (call, _) in ringing.extract_if(|_, at| *at <= now.mono) {
            print_error(endpoint.act(now, |agent, it| agent.answer(it, call, &answer)));
        }
        let next = ringing.values().min().copied();
        sockets.turn(&mut endpoint, next);
        while let Some(event) = endpoint.user_mut().poll_event() {
            if let Event::Incoming { call, .. } = event
                && !is_busy
            {
                ringing.insert(call, sockets.now().mono.plus(ring));
            } else if let Event::Ended { call, .. } = event {
                ringing.remove(&call);
            }
            handle(&mut endpoint, &sockets, event, is_busy)?;
        }
    }
}

/// An error of one call does not end the others. The caller may have cancelled it in the same moment, for example.
fn print_error(done: Result<(), CallError>) {
    if let Err(error) = done {
        println!("not done: {error}");
    }
}

/// Says what has happened, and does what does not wait.
fn handle(
    endpoint: &mut Endpoint<UserAgent>,
    sockets: &Sockets,
    event: Event,
    is_busy: bool,
) -> Result<(), Failed> {
    let now = sockets.now();
    match event {
        Event::Registered { expires } => println!("registered for {} s", expires.as_secs()),
        Event::RegisterFailed {
            failure,
            retry_after: Some(wait),
        } => println!(
            "not registered: {failure}; next try in {} s",
            wait.as_secs()
        ),
        Event::RegisterFailed { failure, .. } => {
            return Err(format!("not registered: {failure}").into());
        }
        Event::Incoming { call, from, .. } if is_busy => {
            println!("call from {from}: busy");
            print_error(endpoint.act(now, |agent, it| agent.reject(it, call, 486)));
        }
        Event::Incoming { call, from, .. } => {
            println!("call from {from}: rings");
            let none = Content::none();
            print_error(endpoint.act(now, |agent, it| agent.ring(it, call, 180, &none)));
        }
        Event::Offer { call, .. } => {
            println!("re-INVITE: accepted");
            let answer = description(sockets);
            print_error(endpoint.act(now, |agent, it| agent.answer(it, call, &answer)));
        }
        Event::Acknowledged { .. } => println!("acknowledged"),
        Event::Ended { cause, .. } => println!("call ended: {cause}"),
        other => println!("{other:?}"),
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    sockets::report(run())
}
