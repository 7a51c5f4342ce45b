//! A sketch of a B2BUA. Each incoming call begins a second call, to the target. The program copies each step of one
//! call to the other: ringing, answer, re-INVITE, refusal, CANCEL, BYE. It does not change session descriptions, so
//! media go from end to end.
//!
//! ```text
//! cargo run -p hairpin-sip-server --example b2bua -- --listen 127.0.0.1:5070 [--proxy 'sip:127.0.0.1:5060;lr'] sip:bob@127.0.0.1:5080
//! ```
//!
//! Unlike a proxy it has two dialogs, each with its own Call-ID, tags and CSeq, so that it may end or change a call by
//! itself.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program has sockets, threads and a clock"
)]

mod sockets;

use std::collections::HashMap;

use sip::agent::{CallError, CallKey, Config, EndCause, Event, Invite, RULES, UserAgent};
use sip::tu::Transactions;
use sockets::{Arguments, Failed, Sockets};

const USAGE: &str = "b2bua --listen ADDRESS [--proxy URI] TARGET";

/// Both calls of each pair, each by the other.
#[derive(Default)]
struct Pairs(HashMap<CallKey, CallKey>);

/// The code that rejects the incoming call if the second call ends before an answer.
fn code_of(cause: &EndCause) -> u16 {
    match cause {
        EndCause::Refused { code, .. } => *code,
        EndCause::Cancelled | EndCause::HungUp | EndCause::PeerHungUp => 487,
        EndCause::Rejected(code) => *code,
        EndCause::Authentication(_) => 403,
        _ => 503,
    }
}

impl Pairs {
    /// Copies an event of one call to the other call of the pair.
    fn handle(
        &mut self,
        agent: &mut UserAgent,
        it: &mut Transactions<'_>,
        event: Event,
        target: &str,
    ) -> Result<(), CallError> {
        let other = |call: &CallKey| self.0.get(call).copied().ok_or(CallError::Gone);
        match event {
            Event::Incoming {
                call,
                from,
                content,
                ..
            } => {
                println!("call from {from}");
                let mut invite = Invite::new(target, content);
                invite.from = Some(&from);
                let second = match agent.invite(it, invite) {
                    Ok(second) => second,
                    Err(error) => {
                        println!("no second call: {error}");
                        return agent.reject(it, call, 503);
                    }
                };
                self.0.extend([(call, second), (second, call)]);
            }
            Event::Progress {
                call,
                code,
                content,
                ..
            } => agent.ring(it, other(&call)?, code, &content)?,
            Event::Answered { call, content, .. } => {
                println!("answered");
                agent.answer(it, other(&call)?, &content)?;
            }
            // If the 2xx had the offer, the ACK has the answer. The other side waits for it.
            Event::Acknowledged { call, content } if !content.is_empty() => {
                agent.acknowledge(it, other(&call)?, content)?;
            }
            Event::Offer { call, content } => {
                println!("re-INVITE");
                if agent.reinvite(it, other(&call)?, content).is_err() {
                    // RFC 3261 §14.2: the other side has begun one in the same moment.
                    agent.reject(it, call, 491)?;
                }
            }
            Event::OfferAnswered { call, content } => agent.answer(it, other(&call)?, &content)?,
            Event::OfferRefused { call, code } => agent.reject(it, other(&call)?, code)?,
            Event::Ended { call, cause } => {
                println!("call ended: {cause}");
                let other = self.0.remove(&call).ok_or(CallError::Gone)?;
                self.0.remove(&other);
                // An incoming call that waits is refused with the same code; any other is ended.
                if agent.reject(it, other, code_of(&cause)).is_err() {
                    agent.hang_up(it, other)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn run() -> Result<(), Failed> {
    let arguments = Arguments::read(&["listen", "proxy"], USAGE)?;
    let [target] = &arguments.words[..] else {
        return Err(format!("usage: {USAGE}").into());
    };
    let mut sockets = Sockets::bind(arguments.get("listen").ok_or(USAGE)?)?;
    let contact = format!("sip:b2bua@{}", sockets.local);
    let mut config = Config::new(&contact, &contact);
    config.outbound_proxy = arguments.get("proxy").map(str::to_owned);
    let key = sockets::random_key()?;
    let mut endpoint = sockets.endpoint(RULES, key, UserAgent::new(config, key)?);
    println!("listening on {}", sockets.local);
    let mut pairs = Pairs::default();
    loop {
        sockets.turn(&mut endpoint, None);
        while let Some(event) = endpoint.user_mut().poll_event() {
            let done = endpoint.act(sockets.now(), |agent, it| {
                pairs.handle(agent, it, event, target)
            });
            // The other call may have ended in the same moment.
            if let Err(error) = done.or_else(|it| {
                if it == CallError::Gone {
                    Ok(())
                } else {
                    Err(it)
                }
            }) {
                println!("not done: {error}");
            }
        }
    }
}

fn main() -> std::process::ExitCode {
    sockets::report(run())
}
