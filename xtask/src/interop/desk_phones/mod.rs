//! Desk phones of three projects. They register at one server, and each calls the others through its proxy.
//!
//! | phone | how it is driven |
//! |---|---|
//! | PJSIP | `interop/pjsua2/phone.py`, by commands and events, one per line |
//! | Linphone | Debian's `linphone-daemon`, the same |
//! | baresip | its module `ctrl_tcp` |
//!
//! SIPp calls each phone, and each phone calls SIPp. SIPp sends no media.
//!
//! During a transfer, a phone has two calls, whose events arrive in any order. So a step waits for its own event.
//! Events of other steps stay until these steps wait for them.

mod baresip;
pub(super) mod linphone;
pub(super) mod pjsip;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::domain::Domain;
use super::packages;
use super::sip::free_port;
use super::sip_proxy::{CallTransports, SippCall, SippRunner};
use crate::tally::Tally;
use crate::workspace;
use pjsip::Pjsip;

/// How long a phone waits for the BYE after a transfer. Then it hangs up.
const BYE_TIMEOUT: Duration = Duration::from_secs(5);

/// A phone with one call at a time. During a transfer, the latest call counts.
trait DeskPhone {
    /// The name of its project.
    fn name(&self) -> &'static str;
    fn user(&self) -> &'static str;
    /// Drops the events that it has got.
    fn forget_events(&mut self) -> Result<()>;
    fn dial(&mut self, uri: &str) -> Result<()>;
    /// Waits until it rings.
    fn wait_for_call(&mut self) -> Result<()>;
    fn answer(&mut self) -> Result<()>;
    /// Refuses a call.
    fn refuse(&mut self) -> Result<()>;
    /// Waits until its call is established.
    fn wait_established(&mut self) -> Result<()>;
    /// Begins to send audio, if it does not send by itself.
    fn send_audio(&mut self) -> Result<()> {
        Ok(())
    }
    /// Waits until audio arrives, if it can report that.
    fn check_audio(&mut self) -> Result<AudioCheck>;
    /// The same, later in the call.
    fn check_audio_again(&mut self) -> Result<AudioCheck> {
        Ok(AudioCheck::Unknown)
    }
    fn hold(&mut self) -> Result<()>;
    fn resume(&mut self) -> Result<()>;
    /// Waits until the other side has put it on hold.
    fn wait_held(&mut self) -> Result<()>;
    /// Waits until the other side has resumed the call.
    fn wait_resumed(&mut self) -> Result<()>;
    /// Transfers the other side of its call to this URI (REFER).
    fn transfer(&mut self, uri: &str) -> Result<()>;
    /// Ends its call after a transfer. `is_told`: waits before for the report that the transfer has succeeded.
    fn leave_after_transfer(&mut self, is_told: bool) -> Result<()>;
    /// Whether it reports the success of a transfer to the phone that has sent the REFER.
    fn reports_transfers(&self) -> bool {
        true
    }
    fn hang_up(&mut self) -> Result<()>;
    /// Ends all calls that a failed case has left, and waits for their end.
    fn end_all(&mut self) -> Result<()>;
    /// Waits for the end of a call. Returns the code of a refusal, if it has one.
    fn wait_ended(&mut self) -> Result<Option<u16>>;
    /// Waits for the end of its call with the phone that has transferred it.
    fn wait_left(&mut self) -> Result<()> {
        self.wait_ended().map(drop)
    }
}

/// Whether a phone has received audio.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AudioCheck {
    Heard,
    Unknown,
}

/// Runs all cases.
pub(crate) fn run(binary: &Path, root: &Path, logs: &Path) -> Result<Tally> {
    let tools = workspace::target_dir(root).join("tools");
    let pjsua2 = &packages::python("pjsua2", &root.join("interop"), &tools)?;
    let users = ["alice", "bob", "carol", SIPP].map(str::to_owned);
    // baresip 1.0 knows MD5 alone, and refuses to read further than the first challenge.
    let more = "digest_algorithms = [\"MD5\"]\n";
    let mut domain = Domain::start(binary, logs, "desk-phones", &users, ["", more])?;
    let mut tally = Tally::default();
    let mut phones = Vec::new();
    for (name, phone) in [
        (
            "PJSIP",
            pjsip::start((root, logs), pjsua2, "alice", domain.port)
                .map(|console| Box::new(Pjsip(console)) as Box<dyn DeskPhone>),
        ),
        ("Linphone", linphone::start(logs, domain.port)),
        ("baresip", baresip::start(logs, domain.port)),
    ] {
        let outcome = phone.map(|phone| {
            let detail = format!("as {}", phone.user());
            phones.push(phone);
            detail
        });
        tally.record(&format!("{name} registers beside other phones"), &outcome);
    }
    // Each phone calls each other one. The third one is for transfers.
    for (caller, called, third) in [
        (0, 1, 2),
        (1, 0, 2),
        (0, 2, 1),
        (2, 0, 1),
        (1, 2, 0),
        (2, 1, 0),
    ] {
        let Ok([caller, called, third]) = phones.get_disjoint_mut([caller, called, third]) else {
            continue;
        };
        let names = format!("{} calls {}", caller.name(), called.name());
        let mut trio = Trio {
            caller: &mut **caller,
            called: &mut **called,
            third: &mut **third,
        };
        type Step = for<'a, 'b> fn(&'a mut Trio<'b>) -> Result<String>;
        let steps: [(&str, Step); 3] = [
            ("hold and end", |trio| trio.held()),
            ("busy", |trio| trio.busy()),
            ("transfer", |trio| trio.transferred()),
        ];
        for (step, run) in steps {
            let outcome = run(&mut trio);
            tally.record(&format!("{names}: {step}"), &outcome);
            if outcome.is_err() {
                trio.give_up();
            }
        }
    }
    let sipp_runner = SippRunner {
        registrar: domain.address(),
        sources: root.join("interop/sip-proxy"),
        logs,
    };
    for phone in &mut phones {
        beside_sipp(&sipp_runner, &mut **phone, &mut tally);
    }
    drop(phones);
    tally.record(
        "the server of the desk phones stops when asked",
        &domain.finish(),
    );
    Ok(tally)
}

/// The user of SIPp.
const SIPP: &str = "sipp";

const SIPP_TRANSPORTS: CallTransports = CallTransports {
    name: "UDP",
    caller: "udp",
    callee: "udp",
    loses: false,
    calls: 1,
    cases: 1,
};

/// Calls between SIPp and a phone.
fn beside_sipp(sipp_runner: &SippRunner<'_>, phone: &mut dyn DeskPhone, tally: &mut Tally) {
    let name = phone.name();
    for (what, outcome) in [
        (
            format!("SIPp calls {name}, with a second INVITE"),
            called_by_sipp(sipp_runner, phone),
        ),
        (
            format!("{name} calls SIPp, which hangs up"),
            calls_sipp(sipp_runner, phone),
        ),
    ] {
        if outcome.is_err() {
            // There may be no call.
            let _ = phone.end_all();
        }
        tally.record(&what, &outcome);
    }
}

fn called_by_sipp(sipp_runner: &SippRunner<'_>, phone: &mut dyn DeskPhone) -> Result<String> {
    phone.forget_events()?;
    let name = format!("sipp-calls-{}", phone.user());
    let call = SippCall {
        name: &name,
        target: &uri(phone.user()),
        to: sipp_runner.registrar,
    };
    std::thread::scope(|scope| {
        let caller = scope
            .spawn(|| sipp_runner.caller(&call, ("caller-hangs-up", 0), vec![], &SIPP_TRANSPORTS));
        let answered = phone
            .wait_for_call()
            .and_then(|()| phone.answer())
            .and_then(|()| phone.wait_established())
            .and_then(|()| phone.wait_ended());
        let outcome = caller.join();
        let outcome = outcome.unwrap_or_else(|_| Err(anyhow::anyhow!("it panicked")))?;
        answered?;
        Ok(outcome)
    })
}

fn calls_sipp(sipp_runner: &SippRunner<'_>, phone: &mut dyn DeskPhone) -> Result<String> {
    phone.forget_events()?;
    let name = format!("sipp-called-by-{}", phone.user());
    let call = SippCall {
        name: &name,
        target: &uri(SIPP),
        to: sipp_runner.registrar,
    };
    let port = free_port()?;
    let role = ("callee-hangs-up", 0);
    let sipp = sipp_runner.callee(&call, role, &name, &SIPP_TRANSPORTS, port)?;
    sipp_runner.register(SIPP, &name, &SIPP_TRANSPORTS, port)?;
    phone.dial(call.target)?;
    phone.wait_established()?;
    phone.wait_ended()?;
    super::sip_proxy::ended_well("SIPp", &mut { sipp })?;
    Ok("established and ended".to_owned())
}

/// The caller, the called phone, and the target of a transfer.
struct Trio<'a> {
    caller: &'a mut dyn DeskPhone,
    called: &'a mut dyn DeskPhone,
    third: &'a mut dyn DeskPhone,
}

impl Trio<'_> {
    /// Ends the calls of a failed case, so that the next case does not fail, too.
    fn give_up(&mut self) {
        for phone in [&mut *self.caller, &mut *self.called, &mut *self.third] {
            // There may be no call.
            let _ = phone.end_all();
        }
    }

    fn dial(&mut self) -> Result<()> {
        self.caller.forget_events()?;
        self.called.forget_events()?;
        self.third.forget_events()?;
        self.caller.dial(&uri(self.called.user()))?;
        self.called.wait_for_call()
    }

    fn establish(&mut self) -> Result<()> {
        self.dial()?;
        self.called.answer()?;
        self.caller.wait_established()?;
        self.called.wait_established()
    }

    fn held(&mut self) -> Result<String> {
        self.establish()?;
        let first = check_both([self.caller, self.called])?;
        // Earlier events about media do not concern the hold.
        self.caller.forget_events()?;
        self.called.forget_events()?;
        self.caller.hold()?;
        self.called.wait_held()?;
        self.caller.resume()?;
        self.called.wait_resumed()?;
        self.caller.send_audio()?;
        self.called.send_audio()?;
        self.caller.check_audio_again()?;
        self.called.check_audio_again()?;
        self.called.hang_up()?;
        self.caller.wait_ended()?;
        self.called.wait_ended()?;
        Ok(first)
    }

    fn busy(&mut self) -> Result<String> {
        self.dial()?;
        self.called.refuse()?;
        let code = self.caller.wait_ended()?;
        ensure!(
            matches!(code, None | Some(486 | 603)),
            "the caller sees {code:?}"
        );
        self.called.wait_ended()?;
        Ok(code.map_or_else(|| "ended".to_owned(), |code| code.to_string()))
    }

    fn transferred(&mut self) -> Result<String> {
        self.establish()?;
        self.caller.transfer(&uri(self.third.user()))?;
        self.third.wait_for_call()?;
        self.third.answer()?;
        self.third.wait_established()?;
        self.called.wait_established()?;
        self.caller
            .leave_after_transfer(self.called.reports_transfers())?;
        self.called.wait_left()?;
        let heard = check_both([self.called, self.third])?;
        self.third.hang_up()?;
        self.third.wait_ended()?;
        self.called.wait_ended()?;
        Ok(format!("to {}; {heard}", self.third.name()))
    }
}

fn uri(user: &str) -> String {
    format!("sip:{user}@example.org")
}

/// Waits until both phones hear each other. Returns the names of those that can report it.
fn check_both(phones: [&mut dyn DeskPhone; 2]) -> Result<String> {
    let mut names = Vec::new();
    let [one, other] = phones;
    one.send_audio()?;
    other.send_audio()?;
    for phone in [one, other] {
        if phone
            .check_audio()
            .with_context(|| format!("{} hears nothing", phone.name()))?
            == AudioCheck::Heard
        {
            names.push(phone.name());
        }
    }
    Ok(format!("audio at {}", names.join(" and ")))
}
