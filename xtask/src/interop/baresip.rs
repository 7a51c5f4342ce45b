//! baresip, driven by its module `ctrl_tcp`: JSON in netstrings, over one TCP connection.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::domain::PASSWORD;
use super::server::free_ports;
use super::sip::START_TIMEOUT;
use crate::process::{self, Process};

/// How long a call waits for an event.
const EVENT_TIMEOUT: Duration = Duration::from_secs(12);

/// A running baresip, which is a phone of one user.
pub(super) struct Phone {
    process: Process,
    control: TcpStream,
    unread: Vec<u8>,
    events: VecDeque<Value>,
    /// The connection for commands.
    responses: VecDeque<Value>,
    /// How many bytes of its output were read.
    printed: usize,
}

/// The configuration of a phone.
pub(super) struct PhoneSetup<'a> {
    /// The line of its account.
    pub(super) account: &'a str,
    /// Its address for SIP over UDP and TCP.
    pub(super) listen: &'a str,
    /// The source of its audio: a module and its device.
    pub(super) source: &'a str,
    /// Further modules.
    pub(super) modules: &'a [&'a str],
    /// Further lines of its configuration.
    pub(super) more: &'a str,
}

impl Phone {
    /// Starts a phone of `user`, which registers at the server on this port. `name` names its files.
    pub(super) fn start(
        logs: &Path,
        name: &str,
        user: &str,
        port: u16,
        transport: &str,
    ) -> Result<Phone> {
        Phone::start_with(logs, name, user, port, transport, ["", ""])
    }

    /// The same, with more lines of its configuration and more parameters of its account.
    pub(super) fn start_with(
        logs: &Path,
        name: &str,
        user: &str,
        port: u16,
        transport: &str,
        [config, parameters]: [&str; 2],
    ) -> Result<Phone> {
        // The registration lasts longer than the test.
        let account = format!(
            "<sip:{user}@example.org;transport={transport}>;auth_pass={PASSWORD};regint=3600;answermode=manual;\
             outbound=\"sip:127.0.0.1:{port};transport={transport}\"{parameters}\n"
        );
        let setup = PhoneSetup {
            account: &account,
            listen: "127.0.0.1:0",
            source: "aubridge,loop",
            modules: &[],
            more: config,
        };
        Phone::start_like(logs, name, &setup)
    }

    /// Starts a phone with this configuration.
    pub(super) fn start_like(logs: &Path, name: &str, setup: &PhoneSetup<'_>) -> Result<Phone> {
        let folder = logs.join(format!("baresip-{name}"));
        std::fs::create_dir_all(&folder)?;
        let control = free_ports(1)?;
        let modules = module_folder()?;
        let extra = setup.modules.iter();
        let extra: String = extra.map(|it| format!("module {it}.so\n")).collect();
        let PhoneSetup {
            listen,
            source,
            more,
            ..
        } = setup;
        let config = format!(
            "module_path {modules}\nmodule g711.so\nmodule aubridge.so\n{extra}module_tmp account.so\nmodule_app menu.so\n\
             module_app ctrl_tcp.so\nctrl_tcp_listen 127.0.0.1:{control}\nsip_listen {listen}\n\
             audio_player aubridge,loop\naudio_source {source}\naudio_alert aubridge,alert\n{more}"
        );
        for (file, text) in [
            ("config", &config[..]),
            ("accounts", setup.account),
            ("contacts", ""),
        ] {
            std::fs::write(folder.join(file), text)?;
        }
        let mut command = process::command("baresip");
        command.arg("-f").arg(&folder).arg("-s");
        let log = logs.join(format!("baresip-{name}.log"));
        let mut process = Process::start("baresip", command, log)?;
        let deadline = Instant::now() + START_TIMEOUT;
        let control = loop {
            if let Ok(stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, control)) {
                break stream;
            }
            process.assert_running()?;
            ensure!(Instant::now() < deadline, "it is deaf: {}", process.tail());
            sleep(Duration::from_millis(20));
        };
        control.set_read_timeout(Some(Duration::from_millis(20)))?;
        Ok(Phone {
            process,
            control,
            unread: Vec::new(),
            events: VecDeque::new(),
            responses: VecDeque::new(),
            printed: 0,
        })
    }

    /// Waits until it is registered. That may be before its events can be read.
    pub(super) fn wait_registered(&mut self) -> Result<()> {
        let ready = |output: &str| output.contains("200 OK").then_some(());
        self.process.wait_for(EVENT_TIMEOUT, ready)
    }

    /// Runs a command.
    pub(super) fn command(&mut self, command: &str, params: &str) -> Result<()> {
        let text = json!({ "command": command, "params": params }).to_string();
        let netstring = format!("{}:{text},", text.len());
        self.control.write_all(netstring.as_bytes())?;
        Ok(())
    }

    /// Runs a command, and returns its response.
    pub(super) fn ask(&mut self, command: &str) -> Result<String> {
        self.read()?;
        self.responses.clear();
        self.command(command, "")?;
        let deadline = Instant::now() + EVENT_TIMEOUT;
        loop {
            if let Some(response) = self.responses.pop_front() {
                return Ok(response["data"].as_str().unwrap_or_default().to_owned());
            }
            self.process.assert_running()?;
            ensure!(Instant::now() < deadline, "no response to {command}");
            self.read()?;
        }
    }

    /// Waits for an event of this type.
    pub(super) fn wait(&mut self, kind: &str) -> Result<Value> {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        loop {
            while let Some(event) = self.events.pop_front() {
                if event["type"] == kind {
                    return Ok(event);
                }
            }
            self.process.assert_running()?;
            ensure!(
                Instant::now() < deadline,
                "no {kind}: {}",
                self.process.tail()
            );
            self.read()?;
        }
    }

    /// Waits for an event of this type, and removes it. Other events stay for later calls.
    pub(super) fn take(&mut self, kind: &str) -> Result<Value> {
        let event = self.take_within(kind, EVENT_TIMEOUT)?;
        event.with_context(|| format!("no {kind}: {}", self.process.tail()))
    }

    /// The same, for at most this time. `None` if there is no such event.
    pub(super) fn take_within(&mut self, kind: &str, limit: Duration) -> Result<Option<Value>> {
        let deadline = Instant::now() + limit;
        loop {
            let place = self.events.iter().position(|event| event["type"] == kind);
            if let Some(event) = place.and_then(|place| self.events.remove(place)) {
                return Ok(Some(event));
            }
            self.process.assert_running()?;
            if Instant::now() >= deadline {
                return Ok(None);
            }
            self.read()?;
        }
    }

    /// Waits until it has printed one of these texts. Then drops the output up to it.
    pub(super) fn wait_printed(&mut self, texts: &[&str]) -> Result<()> {
        let from = self.printed;
        let end = |output: &str| {
            let new = output.get(from..)?;
            let end = |text: &&str| new.find(*text).map(|at| from + at + text.len());
            texts.iter().find_map(end)
        };
        self.printed = self.process.wait_for(EVENT_TIMEOUT, end)?;
        Ok(())
    }

    /// Drops all events up to now.
    pub(super) fn forget(&mut self) -> Result<()> {
        self.read()?;
        self.events.clear();
        self.printed = self.process.output().len();
        Ok(())
    }

    /// Stops it with SIGSTOP. It neither reads nor sends, and its connections stay open.
    pub(super) fn freeze(&self) -> Result<()> {
        self.process.signal(nix::sys::signal::Signal::SIGSTOP)
    }

    fn read(&mut self) -> Result<()> {
        let mut buffer = [0; 4096];
        match self.control.read(&mut buffer) {
            Ok(0) => anyhow::bail!("it has closed its control connection"),
            Ok(n) => self.unread.extend(&buffer[..n]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
        while let Some((text, len)) = netstring(&self.unread) {
            let value: Value = serde_json::from_slice(text).context("no JSON")?;
            self.unread.drain(..len);
            if value["event"] == true {
                self.events.push_back(value);
            } else if value["response"] == true {
                self.responses.push_back(value);
            }
        }
        Ok(())
    }
}

/// The first netstring (`5:hello,`), and its length with the frame.
fn netstring(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let colon = bytes.iter().position(|byte| *byte == b':')?;
    let len: usize = std::str::from_utf8(&bytes[..colon]).ok()?.parse().ok()?;
    let start = colon + 1;
    let text = bytes.get(start..start + len)?;
    (bytes.get(start + len) == Some(&b',')).then_some((text, start + len + 1))
}

/// Where Debian has the modules: a folder by architecture, or one for all.
pub(super) fn module_folder() -> Result<String> {
    let folders = ["/usr/lib/baresip/modules".to_owned()];
    let by_architecture =
        ["x86_64", "aarch64"].map(|one| format!("/usr/lib/{one}-linux-gnu/baresip/modules"));
    let mut all = folders.into_iter().chain(by_architecture);
    all.find(|folder| Path::new(folder).join("menu.so").is_file())
        .context("baresip has no modules")
}

#[cfg(test)]
mod tests {
    use super::netstring;

    #[test]
    fn a_netstring_is_read_when_it_is_whole() {
        assert_eq!(netstring(b"5:hello,3:abc,"), Some((&b"hello"[..], 8)));
        assert_eq!(netstring(b"5:hell"), None);
        assert_eq!(netstring(b"5"), None);
        assert_eq!(netstring(b""), None);
    }
}
