//! pion's TURN client, driven by the Go program in `interop/pion`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{DriverContext, program};
use crate::process::{self, Process};
use crate::tally::Tally;

/// How many cases the program has.
const CASE_COUNT: usize = 19;
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) fn run(context: &DriverContext) -> Result<Tally> {
    let program = build("pion-client", &context.sources.join("pion"), &context.logs)?;
    let credentials = context.server.static_credentials()?;
    let mut command = process::command(&program);
    let [v4, v6] = [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ]
    .map(|ip| context.server.address(ip).to_string());
    command.args([
        "-v4",
        &v4,
        "-v6",
        &v6,
        "-user",
        &credentials.user,
        "-password",
        &credentials.password,
    ]);
    command.arg("-ca").arg(&context.certificate.authority);
    let process = Process::start("the pion client", command, context.logs.join("pion.log"))?;
    program::record("pion", process, CASE_COUNT, RUN_TIMEOUT)
}

/// Builds a Go program of this name; `go.sum` pins every module.
pub(super) fn build(name: &str, source: &Path, logs: &Path) -> Result<PathBuf> {
    let program = logs.join(name);
    let status = Command::new("timeout")
        .args(["--signal=KILL", "300", "go", "build", "-mod=readonly", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(source)
        .status()
        .context("cannot run go")?;
    ensure!(
        status.success(),
        "`go build` failed in {}",
        source.display()
    );
    Ok(program)
}
