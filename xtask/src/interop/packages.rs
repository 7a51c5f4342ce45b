//! Installs the Python and npm packages that clients need, each set in a separate folder below `target`. The lists,
//! with hashes, are in the folders of the clients in `interop`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Installs the Python packages of `interop/NAME/requirements.txt` into a folder below `tools`, if that file has
/// changed since the last installation. Returns the folder. `sources` is the folder `interop`.
pub(super) fn python(name: &str, sources: &Path, tools: &Path) -> Result<PathBuf> {
    let requirements = sources.join(name).join("requirements.txt");
    let wanted = std::fs::read_to_string(&requirements)?;
    let folder = tools.join(name);
    // A copy of the list that is installed.
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
    run(&mut command)?;
    std::fs::write(&stamp, wanted)?;
    Ok(folder)
}

/// Installs the npm packages of `interop/NAME/package-lock.json` into a folder below `tools`, if that file has changed
/// since the last installation. Returns the folder that has `node_modules`. `sources` is the folder `interop`.
pub(super) fn npm(name: &str, sources: &Path, tools: &Path) -> Result<PathBuf> {
    let sources = sources.join(name);
    let lock = std::fs::read_to_string(sources.join("package-lock.json"))?;
    let folder = tools.join(name);
    // A copy of the lock file that is installed.
    let stamp = folder.join("installed.json");
    if std::fs::read_to_string(&stamp).is_ok_and(|have| have == lock) {
        return Ok(folder);
    }
    std::fs::create_dir_all(&folder)?;
    for name in ["package.json", "package-lock.json"] {
        std::fs::copy(sources.join(name), folder.join(name))?;
    }
    let mut command = Command::new("timeout");
    command
        .args(["300", "npm", "ci", "--no-audit", "--no-fund", "--silent"])
        .current_dir(&folder);
    run(&mut command)?;
    std::fs::write(&stamp, lock)?;
    Ok(folder)
}

/// Runs a command that begins with `timeout`, and checks its exit status.
fn run(command: &mut Command) -> Result<()> {
    let status = command.status().context("cannot run timeout")?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(())
}
