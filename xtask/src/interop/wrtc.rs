//! @roamhq/wrtc, libwebrtc for node, driven by the program in `interop/wrtc`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{Bench, program};
use crate::process::{self, Process};
use crate::tally::Tally;

/// How many cases the program has.
const CASES: usize = 3;
const LIMIT: Duration = Duration::from_secs(120);

/// Runs it with the packages of [`install`].
pub(crate) fn run(bench: &Bench, packages: &Path) -> Result<Tally> {
    let credentials = bench.server.static_credentials()?;
    let mut command = process::command("node");
    command
        .env("NODE_PATH", packages)
        .arg(bench.sources.join("wrtc/main.js"))
        .arg(bench.server.port.to_string())
        .args([&credentials.user, &credentials.password]);
    let process = Process::start("the wrtc client", command, bench.logs.join("wrtc.log"))?;
    program::record("wrtc", process, CASES, LIMIT)
}

/// Installs the packages, once for each lock file, which has their hashes. Returns the folder of modules.
pub(crate) fn install(sources: &Path, tools: &Path) -> Result<PathBuf> {
    let lock = std::fs::read_to_string(sources.join("wrtc/package-lock.json"))?;
    let folder = tools.join("wrtc");
    let (modules, stamp) = (folder.join("node_modules"), folder.join("installed.json"));
    if std::fs::read_to_string(&stamp).is_ok_and(|have| have == lock) {
        return Ok(modules);
    }
    std::fs::create_dir_all(&folder)?;
    for name in ["package.json", "package-lock.json"] {
        std::fs::copy(sources.join("wrtc").join(name), folder.join(name))?;
    }
    let mut command = Command::new("timeout");
    command
        .args(["300", "npm", "ci", "--no-audit", "--no-fund", "--silent"])
        .current_dir(&folder);
    let status = command.status().context("cannot run timeout")?;
    ensure!(status.success(), "{command:?} failed: {status}");
    std::fs::write(&stamp, lock)?;
    Ok(modules)
}
