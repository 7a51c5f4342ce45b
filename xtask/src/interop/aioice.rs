//! aioice's TURN client, driven by the Python program in `interop/aioice`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::{Bench, packages, program};
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

/// Installs the packages.
pub(crate) fn install(sources: &Path, tools: &Path) -> Result<PathBuf> {
    packages::python("aioice", sources, tools)
}
