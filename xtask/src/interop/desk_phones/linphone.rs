//! Linphone, by Debian's `linphone-daemon`.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{AudioCheck, BYE_TIMEOUT, DeskPhone};
use crate::interop::console::Console;
use crate::interop::domain::PASSWORD;
use crate::interop::server::free_ports;
use crate::interop::sip_media::wave;
use crate::process;

/// How long a step waits for an event.
const EVENT_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A phone that runs as a daemon.
pub(super) struct Linphone {
    console: Console,
    /// Events of calls for which no step has waited: the state, and the number of the call.
    events: VecDeque<(String, String)>,
    /// The calls that are not released.
    calls: BTreeSet<String>,
    /// The state of an event whose call is on a later line.
    state: Option<String>,
    /// The call to which commands apply.
    call: String,
    /// The sound that it sends.
    voice: PathBuf,
}

/// Starts a phone of this user, which registers. `more` is the end of its configuration. The second result is its home.
pub(in crate::interop) fn start_daemon(
    logs: &Path,
    (name, user): (&str, &str),
    port: u16,
    more: &str,
) -> Result<(Console, PathBuf)> {
    let home = logs.join(name);
    // Without its database, it opens no socket.
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
    command
        .arg("--log")
        .arg(logs.join(format!("{name}-log.log")));
    let log = logs.join(format!("{name}.log"));
    let mut console = Console::start("Linphone", command, log)?;
    // It has no event for a registration.
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
pub(super) fn start(logs: &Path, port: u16) -> Result<Box<dyn DeskPhone>> {
    let (console, home) = start_daemon(logs, ("desk-linphone", "bob"), port, "")?;
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

    /// Waits for this state of a call that `is_meant` accepts. Returns the call.
    fn wait_for(&mut self, state: &str, is_meant: impl Fn(&str) -> bool) -> Result<String> {
        let deadline = Instant::now() + EVENT_TIMEOUT;
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
            sleep(POLL_INTERVAL);
        }
    }

    /// Waits for this state of the current call.
    fn wait(&mut self, state: &str) -> Result<()> {
        let call = self.call.clone();
        self.wait_for(state, |it| it == call).map(drop)
    }
}

impl DeskPhone for Linphone {
    fn name(&self) -> &'static str {
        "Linphone"
    }

    fn user(&self) -> &'static str {
        "bob"
    }

    fn forget_events(&mut self) -> Result<()> {
        self.read()?;
        self.events.clear();
        Ok(())
    }

    fn dial(&mut self, uri: &str) -> Result<()> {
        self.console.command(&format!("call {uri}"))
    }

    fn wait_for_call(&mut self) -> Result<()> {
        self.call = self.wait_for("IncomingReceived", |_| true)?;
        Ok(())
    }

    fn answer(&mut self) -> Result<()> {
        self.console.command(&format!("answer {}", self.call))
    }

    fn refuse(&mut self) -> Result<()> {
        self.hang_up()
    }

    fn wait_established(&mut self) -> Result<()> {
        // It is another call after a transfer, or if this phone has called.
        self.call = self.wait_for("Connected", |_| true)?;
        self.wait("StreamsRunning")
    }

    /// Without a sound card, it sends only a file. The file lasts longer than a case.
    fn send_audio(&mut self) -> Result<()> {
        let file = self.voice.display().to_string();
        self.console.command(&format!("incall-player-start {file}"))
    }

    /// Its command for statistics crashes it (5.1).
    fn check_audio(&mut self) -> Result<AudioCheck> {
        Ok(AudioCheck::Unknown)
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

    fn wait_held(&mut self) -> Result<()> {
        self.wait("PausedByRemote")
    }

    fn wait_resumed(&mut self) -> Result<()> {
        self.wait("StreamsRunning")
    }

    fn transfer(&mut self, uri: &str) -> Result<()> {
        self.console
            .command(&format!("call-transfer {} {uri}", self.call))
    }

    fn leave_after_transfer(&mut self, _is_told: bool) -> Result<()> {
        // It hangs up by itself after the last NOTIFY, but not each time. Otherwise a user would hang up.
        let deadline = Instant::now() + BYE_TIMEOUT;
        while Instant::now() < deadline {
            self.read()?;
            let is_it =
                |(state, call): &(String, String)| state == "Released" && *call == self.call;
            if self.events.iter().any(is_it) {
                return self.wait("Released");
            }
            sleep(POLL_INTERVAL);
        }
        self.hang_up()?;
        self.wait("Released")
    }

    /// PJSIP ignores its last NOTIFY, because the Subscription-State is malformed.
    fn reports_transfers(&self) -> bool {
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
        let deadline = Instant::now() + EVENT_TIMEOUT;
        while !self.calls.is_empty() {
            ensure!(Instant::now() < deadline, "{:?} do not end", self.calls);
            sleep(POLL_INTERVAL);
            self.read()?;
        }
        Ok(())
    }

    fn wait_ended(&mut self) -> Result<Option<u16>> {
        self.wait_for("Released", |_| true)?;
        Ok(None)
    }
}
