//! `hairpin status`, `hairpin reload`, `hairpin drain` and `hairpin upgrade`.

use std::path::PathBuf;
use std::time::Duration;

use super::remote::Remote;
use crate::config::{ControlSocket, FromText, parse_seconds};

const STATUS: &str = "\
Examples:
  hairpin status
        what the server does: state, allocations, listeners
  hairpin status --json | jq .allocations
        the same for programs
  hairpin status --api https://turn.example.org:9641 --token-file token.txt
        the server on another machine: docs/api.md

Status 0 if the server is there and healthy, else 1.";

const RELOAD: &str = "\
Examples:
  hairpin reload
        the server reads its configuration again; prints the result
  hairpin check /etc/hairpin/hairpin.toml && hairpin reload
        first prints each mistake with its place; reloads only if there is none
  hairpin reload --or-upgrade
        upgrade instead, if another version of the program was installed

Status 0 if the new configuration applies. Else 1, with every mistake, and the server
keeps the configuration that it has.";

const DRAIN: &str = "\
Examples:
  hairpin drain
        no new allocations and SIP transactions from now on; existing clients stay
  hairpin drain --wait --timeout 30m && systemctl stop hairpin
        stop as soon as the last client has gone, or after half an hour
  hairpin drain --cancel
        admit new clients again

A server that drains runs until it is stopped or restarted. With --wait: status 0 if
nothing is left, 1 if the time is over.";

const UPGRADE: &str = "\
Examples:
  hairpin upgrade
        this program takes over from the server that runs: no allocation is lost
  hairpin upgrade --program /opt/hairpin/new/hairpin
        the same with another program
  hairpin upgrade --api https://turn.example.org:9641 --token-file token.txt
        a server on another machine starts the program that is installed there

A new process starts in the background, with the arguments and the HAIRPIN_* variables
of the running server, and reads the configuration. New clients come to the new process.
The old one keeps its clients, and ends when they have gone. Status 0 if the new process
serves. Else 1, with the reason, and the old one serves as before. Requires CAP_BPF and
CAP_NET_ADMIN for the new process. Refused with relay.shared_ports.";

/// Which server is meant.
#[derive(Debug, clap::Args)]
pub(crate) struct Target {
    /// Control socket of the server [default: control.sock in $RUNTIME_DIRECTORY or /run/hairpin]
    #[arg(long, value_name = "PATH", env = "HAIRPIN_SERVER__CONTROL_SOCKET", value_parser = socket)]
    pub(crate) socket: Option<ControlSocket>,
    #[command(flatten)]
    pub(crate) remote: Remote,
}

/// Arguments of `hairpin status`.
#[derive(Debug, clap::Args)]
#[command(after_help = STATUS)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `hairpin reload`.
#[derive(Debug, clap::Args)]
#[command(after_help = RELOAD)]
pub(crate) struct Reload {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Upgrade instead, as `hairpin upgrade` does, if the server runs another program file than this one
    #[arg(long)]
    pub(crate) or_upgrade: bool,
}

/// Arguments of `hairpin drain`.
#[derive(Debug, clap::Args)]
#[command(after_help = DRAIN)]
pub(crate) struct Drain {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Admit new clients again
    #[arg(long, conflicts_with = "wait")]
    pub(crate) cancel: bool,
    /// Wait until nothing is left
    #[arg(long)]
    pub(crate) wait: bool,
    /// Wait at most this long
    #[arg(long, value_name = "TIME", requires = "wait", value_parser = time)]
    pub(crate) timeout: Option<Duration>,
}

/// Arguments of `hairpin upgrade`.
#[derive(Debug, clap::Args)]
#[command(after_help = UPGRADE)]
pub(crate) struct Upgrade {
    #[command(flatten)]
    pub(crate) target: Target,
    /// The program to run [default: this one]
    #[arg(long, value_name = "PATH")]
    pub(crate) program: Option<PathBuf>,
    /// Wait at most this time for the new process to serve
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    pub(crate) timeout: Duration,
}

impl Upgrade {
    /// `hairpin upgrade` without options: the new process runs the program file of this command.
    pub(crate) const fn to_this_program(target: Target) -> Self {
        const UPGRADE_TIMEOUT: Duration = Duration::from_secs(60);
        Self {
            target,
            program: None,
            timeout: UPGRADE_TIMEOUT,
        }
    }
}

fn socket(text: &str) -> Result<ControlSocket, String> {
    ControlSocket::from_text(text).map_err(|mistake| mistake.to_string())
}

fn time(text: &str) -> Result<Duration, String> {
    let seconds = parse_seconds(text).map_err(|mistake| mistake.to_string())?;
    Ok(Duration::from_secs(seconds))
}

impl Target {
    /// Where the socket is.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        match &self.socket {
            None | Some(ControlSocket::Auto) => Some(ControlSocket::default_path()),
            Some(ControlSocket::At(path)) => Some(path.clone()),
            Some(ControlSocket::Off) => None,
        }
    }
}
