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
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::cargo;
use crate::tally::Tally;
use server::{Server, Setup};

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
struct Bench {
    server: Server,
    /// `interop/` of the workspace.
    sources: PathBuf,
    /// Where logs go.
    logs: PathBuf,
}

/// For clients that release what they have allocated. RFC 8656 §3.2: an allocation lives ten minutes by default.
const ORDERLY: Setup = Setup {
    name: "server",
    lifetime: Duration::from_secs(600),
    relay_ports: 63000..=65535,
};
/// For coturn's client, which never releases the allocations it probes with, breaks the rules and vanishes when told to:
/// what it leaves behind must be seen to go, so allocations live as short as hairpin admits.
const DISORDERLY: Setup = Setup {
    name: "coturn-server",
    lifetime: Duration::from_secs(120),
    relay_ports: 61000..=62999,
};

pub(crate) fn run(root: &Path, options: &Options) -> Result<Tally> {
    let logs = crate::scratch(root, "interop")?;
    let binary = match (&options.binary, options.against) {
        (Some(binary), _) => binary.clone(),
        (None, server::Kind::Hairpin) => cargo::release(root)?,
        (None, server::Kind::Coturn) => PathBuf::from("turnserver"),
    };
    let bench = |setup: &Setup| -> Result<Bench> {
        let server = Server::start(options.against, &binary, &logs, setup)?;
        Ok(Bench {
            server,
            sources: root.join("interop"),
            logs: logs.clone(),
        })
    };
    let wanted = |client| options.only.is_empty() || options.only.contains(&client);
    let mut tally = Tally::default();
    let mut disorderly = bench(&DISORDERLY)?;
    if wanted(Client::Coturn) {
        tally.add(coturn::run(&mut disorderly)?);
    }
    let mut orderly = bench(&ORDERLY)?;
    if wanted(Client::Pion) {
        tally.add(pion::run(&orderly)?);
    }
    if wanted(Client::Browser) {
        tally.add(browser::run(&orderly));
    }
    if wanted(Client::Pion) || wanted(Client::Browser) {
        finish(
            &mut orderly.server,
            ORDERLY.name,
            Duration::from_secs(5),
            &mut tally,
        );
    }
    if wanted(Client::Coturn) {
        finish(
            &mut disorderly.server,
            DISORDERLY.name,
            DISORDERLY.lifetime + Duration::from_secs(10),
            &mut tally,
        );
    }
    Ok(tally)
}

/// Nothing may be left of the clients, and the server must stop when it is asked.
fn finish(server: &mut Server, name: &str, patience: Duration, tally: &mut Tally) {
    if server.is_hairpin() {
        tally.record(
            &format!("{name} returns to its baseline"),
            &server.settle(patience),
        );
    }
    tally.record(&format!("{name} stops when asked"), &server.finish());
}
