//! Interoperability: clients that others wrote, against a release build of hairpin.
//!
//! | module | client | what it shows |
//! |---|---|---|
//! | [`coturn`] | coturn's `turnutils_*` from Debian | the whole option matrix, IPv4 and IPv6, zero loss; abuse is survived |
//! | [`pion`] | a Go program on pion's client (`interop/pion`) | allocate, permissions, channels, relay to relay |
//! | [`browser`] | a page in headless Chromium (`interop/chromium`) | two RTCPeerConnections that may only use relays |
//!
//! A missing client is a failure, not a skip. `--against coturn` runs the same drivers against coturn's own server: when a
//! case fails, it tells whether the driver or hairpin is at fault.

mod browser;
mod coturn;
mod pion;
mod server;
mod stun;
mod webdriver;

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use crate::tally::Tally;
use crate::workspace;
use server::Server;

/// What to drive, and against which server.
#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Run only these clients.
    #[arg(long, value_name = "CLIENT")]
    only: Vec<Client>,
    /// The server under test.
    #[arg(long, value_enum, default_value_t, value_name = "SERVER")]
    against: server::Kind,
    /// Use this binary instead of building hairpin.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// Whose client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Client {
    Coturn,
    Pion,
    Browser,
}

/// What a driver needs: the server it talks to, and where its files are and go.
struct Bench<'a> {
    server: &'a mut Server,
    /// `interop/` of the workspace.
    sources: PathBuf,
    /// Where logs go.
    logs: PathBuf,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<Tally> {
    let logs = crate::scratch(root, "interop")?;
    let binary = match (&options.binary, options.against) {
        (Some(binary), _) => binary.clone(),
        (None, server::Kind::Hairpin) => build(root)?,
        (None, server::Kind::Coturn) => PathBuf::from("turnserver"),
    };
    let mut server = Server::start(options.against, &binary, &logs)?;
    let mut bench = Bench {
        server: &mut server,
        sources: root.join("interop"),
        logs,
    };
    let mut tally = Tally::default();
    for client in Client::value_variants() {
        if options.only.is_empty() || options.only.contains(client) {
            tally.add(match client {
                Client::Coturn => coturn::run(&mut bench)?,
                Client::Pion => pion::run(&mut bench)?,
                Client::Browser => browser::run(&mut bench),
            });
        }
    }
    tally.record(
        "the server lived through it and stops when asked",
        &server.finish(),
    );
    Ok(tally)
}

fn build(root: &Path) -> Result<PathBuf> {
    let arguments = ["build", "--locked", "--release", "--package", "hairpin"];
    let status = workspace::cargo()
        .args(arguments)
        .current_dir(root)
        .status()?;
    ensure!(status.success(), "`cargo {}` failed", arguments.join(" "));
    Ok(workspace::target_dir(root).join("release/hairpin"))
}
