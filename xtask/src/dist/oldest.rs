//! Installs the .deb in the oldest system that it promises, and starts the program there.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::output;
use crate::tally::Tally;
use crate::{scratch, tools};

/// Debian 11 has glibc 2.31.
const RELEASE: &str = "bullseye";
/// What the .deb depends on.
const INCLUDED: &str = "adduser,libgcc-s1";
/// What the program must do there.
const COMMANDS: [(&str, &str); 3] = [
    ("--version", "hairpin --version"),
    ("check", "hairpin check /etc/hairpin/hairpin.toml"),
    (
        "serve and relay",
        "hairpin serve --dev --listen 127.0.0.1:3478 --user alice:pw > /tmp/said 2>&1 & \
         for _ in $(seq 100); do \
         hairpin probe turn 127.0.0.1:3478 --user alice:pw 2> /dev/null && exit; sleep 0.2; done; \
         cat /tmp/said >&2; exit 1",
    ),
];

/// Installs and starts.
pub(super) fn run(root: &Path, deb: &Path, tally: &mut Tally) -> Result<()> {
    if !tools::is_root() {
        tally.skip("Debian 11", "only root can make a system");
        return Ok(());
    }
    tools::ensure(&[tools::PACKAGES])?;
    let folder = scratch(root, "oldest")?;
    let pristine = folder.join("pristine");
    if !pristine.join("done").exists() {
        let _ = fs::remove_dir_all(&pristine);
        let mut command = Command::new("debootstrap");
        command
            .arg("--variant=minbase")
            .arg(format!("--include={INCLUDED}"));
        output(command.arg(RELEASE).arg(&pristine))?;
        fs::write(pristine.join("done"), "")?;
    }
    let system = folder.join("system");
    let _ = fs::remove_dir_all(&system);
    output(Command::new("cp").arg("-a").arg(&pristine).arg(&system))?;
    fs::copy(deb, system.join("hairpin.deb"))?;
    let inside = |script: &str| {
        // A network of its own, with a loopback interface, and no process that outlives the command.
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--pid", "--fork", "--kill-child"]);
        let enter = "ip link set lo up && mount -t proc proc \"$1/proc\" && exec chroot \"$1\" sh -c \"$2\"";
        command.args(["sh", "-c", enter]);
        output(command.arg("sh").arg(&system).arg(script))
    };
    tally.record("Debian 11: dpkg --install", &inside("dpkg -i /hairpin.deb"));
    for (name, script) in COMMANDS {
        let outcome = inside(script).and_then(|said| {
            let first = said.lines().next().unwrap_or_default().to_owned();
            ensure!(!first.is_empty(), "it prints nothing");
            Ok(first)
        });
        tally.record(&format!("Debian 11: {name}"), &outcome);
    }
    Ok(())
}
