//! aioice's TURN client, driven by the Python program in `interop/aioice`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{Bench, program};
use crate::process::{self, Process};
use crate::tally::Tally;

/// How many cases the program has.
const CASES: usize = 9;
const LIMIT: Duration = Duration::from_secs(120);

/// Runs it with the packages of [`install`].
pub(crate) fn run(bench: &Bench, packages: &Path) -> Result<Tally> {
    let credentials = bench.server.static_credentials()?;
    let mut command = process::command("python3");
    command
        .env("PYTHONPATH", packages)
        .arg(bench.sources.join("aioice/main.py"))
        .args(["--port", &bench.server.port.to_string()])
        .args(["--user", &credentials.user])
        .args(["--password", &credentials.password])
        .arg("--ca")
        .arg(&bench.certificate.authority);
    let process = Process::start("the aioice client", command, bench.logs.join("aioice.log"))?;
    program::record("aioice", process, CASES, LIMIT)
}

/// Installs the packages into a folder of their own, once for each list of them. `requirements.txt` has their hashes.
pub(crate) fn install(sources: &Path, tools: &Path) -> Result<PathBuf> {
    let requirements = sources.join("aioice/requirements.txt");
    let wanted = std::fs::read_to_string(&requirements)?;
    let folder = tools.join("aioice");
    let stamp = folder.join("installed.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(folder);
    }
    let mut command = Command::new("timeout");
    command
        .args(["300", "pip3", "install", "--quiet", "--no-input"])
        .args(["--disable-pip-version-check", "--require-hashes"])
        .args(["--upgrade", "--target"])
        .arg(&folder)
        .arg("-r")
        .arg(&requirements);
    let status = command.status().context("cannot run timeout")?;
    ensure!(status.success(), "{command:?} failed: {status}");
    std::fs::write(&stamp, wanted)?;
    Ok(folder)
}
