//! SIP libraries of other languages: user agents that register with their digest, call each other through the proxy,
//! and hang up on either side, over UDP and TCP.
//!
//! - sipgo, for Go (`interop/sipgo`), with the algorithms that the server offers by default.
//! - The npm package `sip`, for node (`interop/npm-sip`). It supports only MD5.
//! - pyVoIP, for Python (`interop/pyvoip`), called by PJSIP. It supports only RFC 2069, and can neither call nor hang
//!   up through a proxy: see `interop/README.md`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::console::Console;
use super::domain::{Domain, PASSWORD};
use super::sip::free_port;
use super::{packages, pion, program};
use crate::process::{self, Process};
use crate::tally::Tally;
use crate::workspace;

/// How many cases each program has.
const CASE_COUNT: usize = 7;
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

/// The users that register.
const USERS: [&str; 5] = ["alice", "bob", "busy", "ringing", "short"];

/// A program, and the configuration for it.
struct Library<'a> {
    name: &'static str,
    /// Lines at the end of `[sip]`.
    settings: &'static str,
    /// Makes the command that runs it: the server's port, the transport.
    command: &'a dyn Fn(u16, &str) -> Command,
}

/// Runs all cases.
pub(crate) fn run(binary: &Path, root: &Path, logs: &Path) -> Result<Tally> {
    let sources = root.join("interop");
    let tools = workspace::target_dir(root).join("tools");
    let sipgo = pion::build("sipgo-client", &sources.join("sipgo"), logs)?;
    let modules = npm(&sources, &tools)?;
    let mut tally = Tally::default();
    for library in [
        Library {
            name: "sipgo",
            settings: "",
            command: &|port, transport| {
                let mut command = process::command(&sipgo);
                command
                    .args(["-server", &format!("127.0.0.1:{port}")])
                    .args(["-transport", transport, "-password", PASSWORD]);
                command
            },
        },
        Library {
            name: "npm-sip",
            settings: "digest_algorithms = [\"MD5\"]\n",
            command: &|port, transport| {
                let mut command = process::command("node");
                command
                    .env("NODE_PATH", &modules)
                    .arg(sources.join("npm-sip/main.js"))
                    .args([&port.to_string(), transport, PASSWORD]);
                command
            },
        },
    ] {
        for transport in ["udp", "tcp"] {
            tally.add(library.run(binary, logs, transport)?);
        }
    }
    tally.add(pyvoip(binary, root, logs, &tools)?);
    Ok(tally)
}

impl Library<'_> {
    fn run(&self, binary: &Path, logs: &Path, transport: &str) -> Result<Tally> {
        let name = format!("{}-{transport}", self.name);
        let users = USERS.map(str::to_owned);
        let mut domain = Domain::start(binary, logs, &name, &users, ["", self.settings])?;
        let command = (self.command)(domain.port, transport);
        let log = logs.join(format!("{name}-client.log"));
        let process = Process::start(self.name, command, log)?;
        let mut tally = program::record(self.name, process, CASE_COUNT, RUN_TIMEOUT)?;
        let name = format!(
            "the server of {} over {transport} stops when asked",
            self.name
        );
        tally.record(&name, &domain.finish());
        Ok(tally)
    }
}

/// Installs the npm package. Returns the folder of modules.
fn npm(sources: &Path, tools: &Path) -> Result<PathBuf> {
    Ok(packages::npm("npm-sip", sources, tools)?.join("node_modules"))
}

/// Runs the cases of pyVoIP.
fn pyvoip(binary: &Path, root: &Path, logs: &Path, tools: &Path) -> Result<Tally> {
    let sources = root.join("interop");
    let [pyvoip, pjsua2] = [
        packages::python("pyvoip", &sources, tools)?,
        packages::python("pjsua2", &sources, tools)?,
    ];
    let users = ["alice", "bob"].map(str::to_owned);
    let more = "digest_algorithms = [\"MD5\"]\ndigest_without_qop = true\n";
    let mut domain = Domain::start(binary, logs, "pyvoip", &users, ["", more])?;
    let mut tally = Tally::default();
    let name = "pyVoIP registers with credentials of RFC 2069";
    match bob(&sources, logs, &pyvoip, domain.port) {
        Err(error) => tally.record(name, &Err(error)),
        Ok(mut bob) => {
            tally.record(name, &Ok("200".to_owned()));
            let outcome = alice(&sources, logs, &pjsua2, domain.port)
                .and_then(|mut alice| is_called(&mut alice, &mut bob));
            tally.record("pyVoIP is called by PJSIP, and PJSIP hangs up", &outcome);
            tally.record("pyVoIP unregisters", &leaves(&mut bob));
        }
    }
    let name = "the server of pyVoIP stops when asked";
    tally.record(name, &domain.finish());
    Ok(tally)
}

/// Starts the phone made of pyVoIP, which answers each call.
fn bob(sources: &Path, logs: &Path, pyvoip: &Path, port: u16) -> Result<Console> {
    let mut command = process::command("python3");
    command
        .env("PYTHONPATH", pyvoip)
        .arg(sources.join("pyvoip/main.py"))
        .args(["--user", "bob", "--password", PASSWORD])
        .args(["--port", &port.to_string()])
        .args(["--own-port", &free_port()?.to_string()]);
    let mut bob = Console::start("pyVoIP", command, logs.join("pyvoip-client.log"))?;
    bob.wait("registered")?;
    Ok(bob)
}

fn alice(sources: &Path, logs: &Path, pjsua2: &Path, port: u16) -> Result<Console> {
    let mut command = process::command("python3");
    command
        .env("PYTHONPATH", pjsua2)
        .arg(sources.join("pjsua2/phone.py"))
        .args(["--user", "alice", "--password", PASSWORD])
        .args(["--transport", "udp"])
        .args(["--server", &format!("127.0.0.1:{port}")])
        .arg("--log")
        .arg(logs.join("pyvoip-caller-log.log"));
    let mut alice = Console::start("PJSIP", command, logs.join("pyvoip-caller.log"))?;
    let code = alice.wait("registered ")?;
    ensure!(code == "200", "its REGISTER is answered {code}");
    Ok(alice)
}

fn is_called(alice: &mut Console, bob: &mut Console) -> Result<String> {
    alice.command("dial sip:bob@example.org")?;
    bob.wait("incoming")?;
    alice.wait("ringing")?;
    bob.wait("answered")?;
    alice.wait("established")?;
    alice.command("hangup")?;
    let code = alice.wait("ended ")?;
    ensure!(code == "200", "the BYE of PJSIP is answered {code}");
    bob.wait("ended").context("the BYE of PJSIP")?;
    Ok("answered and ended".to_owned())
}

fn leaves(bob: &mut Console) -> Result<String> {
    bob.command("stop")?;
    bob.wait("stopped")?;
    Ok("200".to_owned())
}
