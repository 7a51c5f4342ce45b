//! Desk phones of three projects that register at one server and call each other through its proxy, each the others.
//!
//! | phone | how it is driven |
//! |---|---|
//! | PJSIP | `interop/pjsua2/phone.py`, by commands and events a line each |
//! | Linphone | Debian's `linphone-daemon`, the same |
//! | baresip | its module `ctrl_tcp` |
//!
//! SIPp calls each of them, and is called by each. It sends no media.
//!
//! Events of two calls of a phone, as in a transfer, come in any order. So a step waits for its own event, and events
//! of other steps stay until these steps look for them.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::baresip::{self, PhoneSetup};
use super::console::Console;
use super::domain::{Domain, PASSWORD};
use super::packages;
use super::server::free_ports;
use super::sip::free_port;
use super::sip_media::wave;
use super::sip_proxy::{Bench, Call, Way};
use crate::process;
use crate::tally::Tally;
use crate::workspace;

/// How long an event may take to come.
const LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);
/// After this time, no BYE comes by itself after a transfer.
const LEAVES: Duration = Duration::from_secs(5);

/// One call of a phone at a time, except for a transfer: then the latest call is meant.
trait Phone {
    /// Of which project it is.
    fn name(&self) -> &'static str;
    fn user(&self) -> &'static str;
    fn forget(&mut self) -> Result<()>;
    fn dial(&mut self, uri: &str) -> Result<()>;
    /// Waits for a call to it.
    fn rings(&mut self) -> Result<()>;
    fn answer(&mut self) -> Result<()>;
    /// Refuses a call.
    fn refuse(&mut self) -> Result<()>;
    fn is_established(&mut self) -> Result<()>;
    /// Begins to send audio if it does not do so by itself.
    fn speaks(&mut self) -> Result<()> {
        Ok(())
    }
    /// Waits until audio comes, if it can tell.
    fn hears(&mut self) -> Result<Hears>;
    /// The same, later in the call.
    fn hears_again(&mut self) -> Result<Hears> {
        Ok(Hears::Unknown)
    }
    fn hold(&mut self) -> Result<()>;
    fn resume(&mut self) -> Result<()>;
    /// Waits until the other side has put it on hold.
    fn is_held(&mut self) -> Result<()>;
    fn is_resumed(&mut self) -> Result<()>;
    /// Sends the other side of its call to this URI (REFER).
    fn transfer(&mut self, uri: &str) -> Result<()>;
    /// Waits until it knows that the transfer has succeeded, if the other side tells it, and leaves the call.
    fn leaves(&mut self, is_told: bool) -> Result<()>;
    /// Whether it reports the success of a transfer to the phone that has asked for it.
    fn reports(&self) -> bool {
        true
    }
    fn hang_up(&mut self) -> Result<()>;
    /// Ends all calls that a failed case has left, and waits until there is none.
    fn end_all(&mut self) -> Result<()>;
    /// Waits for the end of a call. Returns the code of a refusal, if it can tell.
    fn ended(&mut self) -> Result<Option<u16>>;
    /// Waits for the end of its call with the phone that has sent it elsewhere.
    fn is_left(&mut self) -> Result<()> {
        self.ended().map(drop)
    }
}

/// Whether a phone can tell that audio has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hears {
    Audio,
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
            pjsip((root, logs), pjsua2, "alice", domain.port)
                .map(|console| Box::new(Pjsip(console)) as Box<dyn Phone>),
        ),
        ("Linphone", linphone(logs, domain.port)),
        ("baresip", bare(logs, domain.port)),
    ] {
        let outcome = phone.map(|phone| {
            let detail = format!("as {}", phone.user());
            phones.push(phone);
            detail
        });
        tally.record(&format!("{name} registers beside other phones"), &outcome);
    }
    // Each calls each; the third one is for transfers.
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
    let bench = Bench {
        registrar: domain.address(),
        sources: root.join("interop/sip-proxy"),
        logs,
    };
    for phone in &mut phones {
        beside_sipp(&bench, &mut **phone, &mut tally);
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

const SIPP_WAY: Way = Way {
    name: "UDP",
    caller: "udp",
    callee: "udp",
    loses: false,
    calls: 1,
    cases: 1,
};

/// Calls between SIPp and a phone.
fn beside_sipp(bench: &Bench<'_>, phone: &mut dyn Phone, tally: &mut Tally) {
    let name = phone.name();
    for (what, outcome) in [
        (
            format!("SIPp calls {name}, with a second INVITE"),
            called_by_sipp(bench, phone),
        ),
        (
            format!("{name} calls SIPp, which hangs up"),
            calls_sipp(bench, phone),
        ),
    ] {
        if outcome.is_err() {
            // There may be no call.
            let _ = phone.end_all();
        }
        tally.record(&what, &outcome);
    }
}

fn called_by_sipp(bench: &Bench<'_>, phone: &mut dyn Phone) -> Result<String> {
    phone.forget()?;
    let name = format!("sipp-calls-{}", phone.user());
    let call = Call {
        name: &name,
        target: &uri(phone.user()),
        to: bench.registrar,
    };
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| bench.caller(&call, ("caller-hangs-up", 0), vec![], &SIPP_WAY));
        let answered = phone
            .rings()
            .and_then(|()| phone.answer())
            .and_then(|()| phone.is_established())
            .and_then(|()| phone.ended());
        let outcome = caller.join();
        let outcome = outcome.unwrap_or_else(|_| Err(anyhow::anyhow!("it panicked")))?;
        answered?;
        Ok(outcome)
    })
}

fn calls_sipp(bench: &Bench<'_>, phone: &mut dyn Phone) -> Result<String> {
    phone.forget()?;
    let name = format!("sipp-called-by-{}", phone.user());
    let call = Call {
        name: &name,
        target: &uri(SIPP),
        to: bench.registrar,
    };
    let port = free_port()?;
    let role = ("callee-hangs-up", 0);
    let sipp = bench.callee(&call, role, &name, &SIPP_WAY, port)?;
    bench.register(SIPP, &name, &SIPP_WAY, port)?;
    phone.dial(call.target)?;
    phone.is_established()?;
    phone.ended()?;
    super::sip_proxy::ended_well("SIPp", &mut { sipp })?;
    Ok("established and ended".to_owned())
}

/// Who calls, who is called, and whom a call is transferred to.
struct Trio<'a> {
    caller: &'a mut dyn Phone,
    called: &'a mut dyn Phone,
    third: &'a mut dyn Phone,
}

impl Trio<'_> {
    /// Ends what a failed case has left, so that it does not fail those after it.
    fn give_up(&mut self) {
        for phone in [&mut *self.caller, &mut *self.called, &mut *self.third] {
            // There may be no call.
            let _ = phone.end_all();
        }
    }

    fn dial(&mut self) -> Result<()> {
        self.caller.forget()?;
        self.called.forget()?;
        self.third.forget()?;
        self.caller.dial(&uri(self.called.user()))?;
        self.called.rings()
    }

    fn establish(&mut self) -> Result<()> {
        self.dial()?;
        self.called.answer()?;
        self.caller.is_established()?;
        self.called.is_established()
    }

    fn held(&mut self) -> Result<String> {
        self.establish()?;
        let first = hear([self.caller, self.called])?;
        // What a phone has said of its media so far is not about the hold.
        self.caller.forget()?;
        self.called.forget()?;
        self.caller.hold()?;
        self.called.is_held()?;
        self.caller.resume()?;
        self.called.is_resumed()?;
        self.caller.speaks()?;
        self.called.speaks()?;
        self.caller.hears_again()?;
        self.called.hears_again()?;
        self.called.hang_up()?;
        self.caller.ended()?;
        self.called.ended()?;
        Ok(first)
    }

    fn busy(&mut self) -> Result<String> {
        self.dial()?;
        self.called.refuse()?;
        let code = self.caller.ended()?;
        ensure!(
            matches!(code, None | Some(486 | 603)),
            "the caller sees {code:?}"
        );
        self.called.ended()?;
        Ok(code.map_or_else(|| "ended".to_owned(), |code| code.to_string()))
    }

    fn transferred(&mut self) -> Result<String> {
        self.establish()?;
        self.caller.transfer(&uri(self.third.user()))?;
        self.third.rings()?;
        self.third.answer()?;
        self.third.is_established()?;
        self.called.is_established()?;
        self.caller.leaves(self.called.reports())?;
        self.called.is_left()?;
        let heard = hear([self.called, self.third])?;
        self.third.hang_up()?;
        self.third.ended()?;
        self.called.ended()?;
        Ok(format!("to {}; {heard}", self.third.name()))
    }
}

fn uri(user: &str) -> String {
    format!("sip:{user}@example.org")
}

/// Waits until those that can tell hear each other. Returns their names.
fn hear(phones: [&mut dyn Phone; 2]) -> Result<String> {
    let mut names = Vec::new();
    let [one, other] = phones;
    one.speaks()?;
    other.speaks()?;
    for phone in [one, other] {
        if phone
            .hears()
            .with_context(|| format!("{} hears nothing", phone.name()))?
            == Hears::Audio
        {
            names.push(phone.name());
        }
    }
    Ok(format!("audio at {}", names.join(" and ")))
}

struct Pjsip(Console);

/// Starts a phone of this user, which registers over TCP.
pub(super) fn pjsip(
    (root, logs): (&Path, &Path),
    pjsua2: &Path,
    user: &str,
    port: u16,
) -> Result<Console> {
    let mut command = process::command("python3");
    command
        .env("PYTHONPATH", pjsua2)
        .arg(root.join("interop/pjsua2/phone.py"))
        .args(["--user", user, "--password", PASSWORD])
        .args(["--server", &format!("127.0.0.1:{port}")])
        .args(["--transport", "tcp", "--log"])
        .arg(logs.join(format!("desk-pjsip-{user}-log.log")));
    let log = logs.join(format!("desk-pjsip-{user}.log"));
    let mut console = Console::start("PJSIP", command, log)?;
    let code = console.wait("registered ")?;
    ensure!(code == "200", "its REGISTER is answered {code}");
    Ok(console)
}

impl Phone for Pjsip {
    fn name(&self) -> &'static str {
        "PJSIP"
    }

    fn user(&self) -> &'static str {
        "alice"
    }

    fn forget(&mut self) -> Result<()> {
        self.0.forget();
        Ok(())
    }

    fn dial(&mut self, uri: &str) -> Result<()> {
        self.0.command(&format!("dial {uri}"))
    }

    fn rings(&mut self) -> Result<()> {
        self.0.take("incoming").map(drop)
    }

    fn answer(&mut self) -> Result<()> {
        self.0.command("answer")
    }

    fn refuse(&mut self) -> Result<()> {
        self.0.command("refuse 486")
    }

    fn is_established(&mut self) -> Result<()> {
        self.0.take("established").map(drop)
    }

    fn hears(&mut self) -> Result<Hears> {
        self.0.command("listen")?;
        self.0.take("heard").map(|_| Hears::Audio)
    }

    fn hears_again(&mut self) -> Result<Hears> {
        self.hears()
    }

    fn hold(&mut self) -> Result<()> {
        self.0.command("hold")
    }

    fn resume(&mut self) -> Result<()> {
        self.0.command("resume")
    }

    fn is_held(&mut self) -> Result<()> {
        self.0.take("held").map(drop)
    }

    fn is_resumed(&mut self) -> Result<()> {
        self.0.take("active").map(drop)
    }

    fn transfer(&mut self, uri: &str) -> Result<()> {
        self.0.command(&format!("transfer {uri}"))
    }

    fn leaves(&mut self, is_told: bool) -> Result<()> {
        if is_told {
            let code = self.0.take("transferred ")?;
            ensure!(code == "200", "the transfer ends with {code}");
        }
        self.0.command("hangup")?;
        self.0.take("ended").map(drop)
    }

    fn hang_up(&mut self) -> Result<()> {
        self.0.command("hangup")
    }

    fn end_all(&mut self) -> Result<()> {
        self.0.command("end")?;
        self.0.take("idle").map(drop)
    }

    fn ended(&mut self) -> Result<Option<u16>> {
        Ok(self.0.take("ended ")?.parse().ok())
    }
}

struct Linphone {
    console: Console,
    /// Events of calls that no step has looked for: the state, and how it calls the call.
    events: VecDeque<(String, String)>,
    /// The calls that are not released.
    calls: BTreeSet<String>,
    /// The state of an event whose call is on a later line.
    state: Option<String>,
    /// The call of the commands.
    call: String,
    /// The sound that it sends.
    voice: PathBuf,
}

/// Starts a phone of this user, which registers. `more` is the end of its configuration. The second result is its home.
pub(super) fn start_linphone(
    logs: &Path,
    (name, user): (&str, &str),
    port: u16,
    more: &str,
) -> Result<(Console, PathBuf)> {
    let home = logs.join(name);
    // It listens nowhere if it cannot create its database.
    std::fs::create_dir_all(home.join(".local/share/linphone"))?;
    let (sip, rtp) = (free_ports(1)?, free_ports(2)?);
    let server = format!("sip:127.0.0.1:{port};transport=udp");
    let text = format!(
        "[sip]\nsip_port={sip}\nsip_tcp_port=0\nsip_tls_port=0\nuse_ipv6=0\nipv6_migration_done=1\n\
         register_only_when_network_is_up=0\ndefault_proxy=0\n\
         [rtp]\naudio_rtp_port={rtp}\n\
         [proxy_0]\nreg_proxy=<{server}>\nreg_route=<{server};lr>\nreg_identity=sip:{user}@example.org\nreg_expires=3600\n\
         reg_sendregister=1\n\
         [auth_info_0]\nusername={user}\npasswd={PASSWORD}\nrealm=example.org\n{more}"
    );
    let config = home.join("linphonerc");
    std::fs::write(&config, text)?;
    let mut command = process::command("linphone-daemon");
    command.env("HOME", &home).arg("--config").arg(&config);
    command.arg("--log").arg(logs.join(format!("{name}-log.log")));
    let log = logs.join(format!("{name}.log"));
    let mut console = Console::start("Linphone", command, log)?;
    // It prints no event when it is registered.
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        console.command("register-status ALL")?;
        let state = console.wait("State: ")?;
        if state == "LinphoneRegistrationOk" {
            break;
        }
        ensure!(Instant::now() < deadline, "{state}");
        sleep(Duration::from_millis(100));
    }
    Ok((console, home))
}

/// Starts a phone of bob, which registers.
fn linphone(logs: &Path, port: u16) -> Result<Box<dyn Phone>> {
    let (console, home) = start_linphone(logs, ("desk-linphone", "bob"), port, "")?;
    let voice = home.join("voice.wav");
    std::fs::write(&voice, wave())?;
    Ok(Box::new(Linphone {
        console,
        events: VecDeque::new(),
        calls: BTreeSet::new(),
        state: None,
        call: String::new(),
        voice,
    }))
}

impl Linphone {
    fn read(&mut self) -> Result<()> {
        for line in self.console.new_lines()? {
            if let Some(state) = line.strip_prefix("Event: LinphoneCall") {
                self.state = Some(state.trim().to_owned());
            } else if let Some(call) = line.strip_prefix("Id: ")
                && let Some(state) = self.state.take()
            {
                let call = call.trim().to_owned();
                match &state[..] {
                    "Released" => self.calls.remove(&call),
                    _ => self.calls.insert(call.clone()),
                };
                self.events.push_back((state, call));
            }
        }
        Ok(())
    }

    /// Waits for a state of a call that this accepts. Returns the call.
    fn wait_for(&mut self, state: &str, is_meant: impl Fn(&str) -> bool) -> Result<String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            self.read()?;
            let is_it = |(its, call): &(String, String)| its == state && is_meant(call);
            let place = self.events.iter().position(is_it);
            if let Some((_, call)) = place.and_then(|place| self.events.remove(place)) {
                return Ok(call);
            }
            ensure!(
                Instant::now() < deadline,
                "no {state}, but {:?}",
                self.events
            );
            sleep(POLL);
        }
    }

    /// Waits for a state of the call of the commands.
    fn wait(&mut self, state: &str) -> Result<()> {
        let call = self.call.clone();
        self.wait_for(state, |it| it == call).map(drop)
    }
}

impl Phone for Linphone {
    fn name(&self) -> &'static str {
        "Linphone"
    }

    fn user(&self) -> &'static str {
        "bob"
    }

    fn forget(&mut self) -> Result<()> {
        self.read()?;
        self.events.clear();
        Ok(())
    }

    fn dial(&mut self, uri: &str) -> Result<()> {
        self.console.command(&format!("call {uri}"))
    }

    fn rings(&mut self) -> Result<()> {
        self.call = self.wait_for("IncomingReceived", |_| true)?;
        Ok(())
    }

    fn answer(&mut self) -> Result<()> {
        self.console.command(&format!("answer {}", self.call))
    }

    fn refuse(&mut self) -> Result<()> {
        self.hang_up()
    }

    fn is_established(&mut self) -> Result<()> {
        // It is another call if it is the result of a transfer, or if this phone has called.
        self.call = self.wait_for("Connected", |_| true)?;
        self.wait("StreamsRunning")
    }

    /// Without a sound card it sends nothing else. The file lasts longer than a case.
    fn speaks(&mut self) -> Result<()> {
        let file = self.voice.display().to_string();
        self.console.command(&format!("incall-player-start {file}"))
    }

    /// Its command for statistics crashes it (5.1).
    fn hears(&mut self) -> Result<Hears> {
        Ok(Hears::Unknown)
    }

    fn hold(&mut self) -> Result<()> {
        self.console.command(&format!("call-pause {}", self.call))?;
        self.wait("Paused")
    }

    fn resume(&mut self) -> Result<()> {
        self.console
            .command(&format!("call-resume {}", self.call))?;
        self.wait("StreamsRunning")
    }

    fn is_held(&mut self) -> Result<()> {
        self.wait("PausedByRemote")
    }

    fn is_resumed(&mut self) -> Result<()> {
        self.wait("StreamsRunning")
    }

    fn transfer(&mut self, uri: &str) -> Result<()> {
        self.console
            .command(&format!("call-transfer {} {uri}", self.call))
    }

    fn leaves(&mut self, _is_told: bool) -> Result<()> {
        // It hangs up by itself when the last NOTIFY has come, but not each time. A person would press the button.
        let deadline = Instant::now() + LEAVES;
        while Instant::now() < deadline {
            self.read()?;
            let is_it =
                |(state, call): &(String, String)| state == "Released" && *call == self.call;
            if self.events.iter().any(is_it) {
                return self.wait("Released");
            }
            sleep(POLL);
        }
        self.hang_up()?;
        self.wait("Released")
    }

    /// The Subscription-State of its last NOTIFY is malformed, and PJSIP ignores it.
    fn reports(&self) -> bool {
        false
    }

    fn hang_up(&mut self) -> Result<()> {
        self.console.command(&format!("terminate {}", self.call))
    }

    fn end_all(&mut self) -> Result<()> {
        self.read()?;
        for call in &self.calls {
            self.console.command(&format!("terminate {call}"))?;
        }
        let deadline = Instant::now() + LIMIT;
        while !self.calls.is_empty() {
            ensure!(Instant::now() < deadline, "{:?} do not end", self.calls);
            sleep(POLL);
            self.read()?;
        }
        Ok(())
    }

    fn ended(&mut self) -> Result<Option<u16>> {
        self.wait_for("Released", |_| true)?;
        Ok(None)
    }
}

/// Starts a phone of carol, which registers.
fn bare(logs: &Path, port: u16) -> Result<Box<dyn Phone>> {
    // Its bridge of microphone and loudspeaker is silent after some calls.
    let voice = logs.join("desk-baresip.wav");
    std::fs::write(&voice, wave())?;
    let account = format!(
        "<sip:carol@example.org;transport=udp>;auth_pass={PASSWORD};regint=3600;answermode=manual;\
         outbound=\"sip:127.0.0.1:{port};transport=udp\"\n"
    );
    let setup = PhoneSetup {
        account: &account,
        listen: "127.0.0.1:0",
        source: &format!("aufile,{}", voice.display()),
        modules: &["aufile"],
        more: "",
    };
    let mut phone = baresip::Phone::start_like(logs, "desk", &setup)?;
    phone.wait_registered()?;
    Ok(Box::new(phone))
}

impl Phone for baresip::Phone {
    fn name(&self) -> &'static str {
        "baresip"
    }

    fn user(&self) -> &'static str {
        "carol"
    }

    fn forget(&mut self) -> Result<()> {
        baresip::Phone::forget(self)
    }

    fn dial(&mut self, uri: &str) -> Result<()> {
        self.command("dial", uri)
    }

    fn rings(&mut self) -> Result<()> {
        self.take("CALL_INCOMING").map(drop)
    }

    fn answer(&mut self) -> Result<()> {
        self.command("accept", "")
    }

    fn refuse(&mut self) -> Result<()> {
        // A call that is not answered yet is refused with 486.
        self.command("hangup", "")
    }

    fn is_established(&mut self) -> Result<()> {
        self.take("CALL_ESTABLISHED").map(drop)
    }

    fn hears(&mut self) -> Result<Hears> {
        self.wait_printed(&["incoming rtp for 'audio' established"])?;
        Ok(Hears::Audio)
    }

    fn hold(&mut self) -> Result<()> {
        self.command("hold", "")
    }

    fn resume(&mut self) -> Result<()> {
        self.command("resume", "")
    }

    /// It has no event for this, but prints what it receives.
    fn is_held(&mut self) -> Result<()> {
        self.wait_printed(&["\na=sendonly", "\na=inactive"])
    }

    fn is_resumed(&mut self) -> Result<()> {
        self.wait_printed(&["\na=sendrecv"])
    }

    fn transfer(&mut self, uri: &str) -> Result<()> {
        self.command("transfer", uri)
    }

    fn leaves(&mut self, _is_told: bool) -> Result<()> {
        // It hangs up by itself.
        self.take("CALL_CLOSED").map(drop)
    }

    fn hang_up(&mut self) -> Result<()> {
        self.command("hangup", "")
    }

    fn end_all(&mut self) -> Result<()> {
        self.command("hangupall", "")
    }

    /// It hangs up by itself if no BYE has come, and then it has no event.
    fn is_left(&mut self) -> Result<()> {
        self.take_within("CALL_CLOSED", LEAVES).map(drop)
    }

    fn ended(&mut self) -> Result<Option<u16>> {
        let closed = self.take("CALL_CLOSED")?;
        let reason = closed["param"].as_str().unwrap_or_default();
        Ok(reason.split(' ').next().and_then(|code| code.parse().ok()))
    }
}
