//! aioice's TURN client, driven by the Python program in `interop/aioice`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::{DriverContext, packages, program};
use crate::process::{self, Process};
use crate::tally::Tally;

/// How many cases the program has.
const CASE_COUNT: usize = 9;
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs it with the packages of [`install`].
pub(crate) fn run(context: &DriverContext, packages: &Path) -> Result<Tally> {
    let credentials = context.server.static_credentials()?;
    let mut command = process::command("python3");
    command
        .env("PYTHONPATH", packages)
        .arg(context.sources.join("aioice/main.py"))
        .args(["--port", &context.server.port.to_string()])
        .args(["--user", &credentials.user])
        .args(["--password", &credentials.password])
        .arg("--ca")
        .arg(&context.certificate.authority);
    let process = Process::start(
        "the aioice client",
        command,
        context.logs.join("aioice.log"),
    )?;
    program::record("aioice", process, CASE_COUNT, RUN_TIMEOUT)
}

/// Installs the packages.
pub(crate) fn install(sources: &Path, tools: &Path) -> Result<PathBuf> {
    packages::python("aioice", sources, tools)
}
