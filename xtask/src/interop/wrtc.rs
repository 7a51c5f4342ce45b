//! @roamhq/wrtc, libwebrtc for node, driven by the program in `interop/wrtc`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::{DriverContext, packages, program};
use crate::process::{self, Process};
use crate::tally::Tally;

/// How many cases the program has.
const CASE_COUNT: usize = 3;
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs it with the packages of [`install`].
pub(crate) fn run(context: &DriverContext, packages: &Path) -> Result<Tally> {
    let credentials = context.server.static_credentials()?;
    let mut command = process::command("node");
    command
        .env("NODE_PATH", packages)
        .arg(context.sources.join("wrtc/main.js"))
        .arg(context.server.port.to_string())
        .args([&credentials.user, &credentials.password]);
    let process = Process::start("the wrtc client", command, context.logs.join("wrtc.log"))?;
    program::record("wrtc", process, CASE_COUNT, RUN_TIMEOUT)
}

/// Installs the packages. Returns the folder of modules.
pub(crate) fn install(sources: &Path, tools: &Path) -> Result<PathBuf> {
    Ok(packages::npm("wrtc", sources, tools)?.join("node_modules"))
}
