//! A server that is the registrar and the proxy of the domain `example.org`, for peers that call each other through it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::sip::{START_TIMEOUT, free_port};
use crate::process::{self, Ended, Process};

/// The password of every user.
pub(super) const PASSWORD: &str = "wonderland";

/// A running server, and the configuration for its restart.
pub(super) struct Domain {
    binary: PathBuf,
    config: PathBuf,
    log: PathBuf,
    arguments: Vec<String>,
    process: Process,
    /// The port of the server, over UDP and TCP.
    pub(super) port: u16,
}

impl Domain {
    /// Starts the server with these users. The texts are the first lines of its configuration file and the end of
    /// `[sip]`. `OWN_PORT` in them stands for the port of the server.
    pub(super) fn start(
        binary: &Path,
        logs: &Path,
        name: &str,
        users: &[String],
        texts: [&str; 2],
    ) -> Result<Domain> {
        // No relay is asked for, and SIP's port must be below the range.
        let arguments = ["--listen=127.0.0.1:0", "--port-range=65000-65099"].map(str::to_owned);
        Domain::start_with(binary, logs, name, users, texts, arguments.into())
    }

    /// The same, for a server that has this address for SIP.
    pub(super) fn start_at(
        address: impl Into<Ipv4Addr>,
        binary: &Path,
        logs: &Path,
        name: &str,
        users: &[String],
        texts: [&str; 2],
    ) -> Result<Domain> {
        let arguments = ["--listen=127.0.0.1:0", "--port-range=65000-65099"].map(str::to_owned);
        Domain::start_all(
            (address.into(), binary),
            logs,
            name,
            users,
            texts,
            arguments.into(),
        )
    }

    /// The same, for a server that also relays as these arguments of the command line say.
    pub(super) fn start_with(
        binary: &Path,
        logs: &Path,
        name: &str,
        users: &[String],
        texts: [&str; 2],
        arguments: Vec<String>,
    ) -> Result<Domain> {
        let at = (Ipv4Addr::LOCALHOST, binary);
        Domain::start_all(at, logs, name, users, texts, arguments)
    }

    fn start_all(
        (address, binary): (Ipv4Addr, &Path),
        logs: &Path,
        name: &str,
        users: &[String],
        [first, more]: [&str; 2],
        arguments: Vec<String>,
    ) -> Result<Domain> {
        let binary = binary.canonicalize().context("no such binary")?;
        let port = free_port()?;
        let users: Vec<String> = users
            .iter()
            .map(|user| format!("{{ name = \"{user}\", password = \"{PASSWORD}\" }}"))
            .collect();
        let text = format!(
            "{first}\n[auth]\nrealm = \"example.org\"\nusers = [{}]\n\n[sip]\nlisten = [\"{address}:{port}\"]\n{more}\n\
             [[sip.domain]]\nname = \"example.org\"\naliases = [\"{address}\"]\n",
            users.join(", ")
        )
        .replace("OWN_PORT", &port.to_string());
        let config = logs.join(format!("{name}.toml"));
        std::fs::write(&config, text).with_context(|| config.display().to_string())?;
        let log = logs.join(format!("{name}.log"));
        let process = run(&binary, &config, &log, &arguments)?;
        Ok(Domain {
            binary,
            config,
            log,
            arguments,
            process,
            port,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Stops the server and starts it with the same configuration.
    pub(super) fn restart(&mut self) -> Result<()> {
        self.finish()?;
        self.log.set_extension("restarted.log");
        self.process = run(&self.binary, &self.config, &self.log, &self.arguments)?;
        Ok(())
    }

    /// Everything that the server has printed.
    pub(super) fn output(&self) -> String {
        self.process.output()
    }

    /// Stops the server, and checks how it ended.
    pub(super) fn finish(&mut self) -> Result<String> {
        self.process.assert_running()?;
        let ended = self.process.stop(Duration::from_secs(10))?;
        let Ended::Exited(status) = ended else {
            anyhow::bail!("it did not stop within 10 s of SIGTERM")
        };
        ensure!(status.success(), "{status}: {}", self.process.tail());
        ensure!(
            !self.process.output().contains("panicked at"),
            "a thread panicked: {}",
            self.process.log().display()
        );
        Ok(status.to_string())
    }
}

fn run(binary: &Path, config: &Path, log: &Path, arguments: &[String]) -> Result<Process> {
    let mut command = process::command(binary);
    command.args(["serve", "--dev"]).args(arguments);
    command.arg(format!("--config={}", config.display()));
    for setting in [
        "relay.addresses=127.0.0.1",
        "server.workers=2",
        "offload.mode=off",
    ] {
        command.args(["--set", setting]);
    }
    let mut process = Process::start("the SIP server", command, log.to_owned())?;
    process.wait_for(START_TIMEOUT, |output| {
        output.contains("udp and tcp ").then_some(())
    })?;
    Ok(process)
}
