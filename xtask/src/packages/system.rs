//! A Debian that systemd has booted, with the package in it. `interop/packages/run.sh` runs in it and
//! prints what works.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{VERSIONS, finish};
use crate::process::{self, Ended, Process};
use crate::tally::Tally;
use crate::vm;

/// The Debian release with the oldest systemd on which the unit is tested.
const DEBIAN_RELEASE: &str = "bookworm";

/// Packages that the checks require in addition to a minimal system. The kernel of a machine loads modules with kmod.
const INCLUDED_PACKAGES: &str = "systemd,systemd-sysv,dbus,adduser,iproute2,kmod,libgcc-s1,procps";

/// How long the checks may take. On an idle machine, they take a minute.
const CHECKS_TIMEOUT: Duration = Duration::from_secs(400);

/// How many times slower the checks are in a machine without KVM.
const SLOW_FACTOR: u32 = 5;

/// The line that the checks print at their end.
const END_LINE: &str = "end";

/// Boots the system in a container, and returns what its checks printed.
pub(super) fn in_container(
    root: &Path,
    folder: &Path,
    packages: &[PathBuf],
) -> Result<Vec<String>> {
    let system = new(root, folder, "system")?;
    let test = folder.join("test");
    add_checks(root, &test, packages)?;
    let said = test.join("said");
    let _ = fs::remove_file(&said);
    let mut command = process::command("systemd-nspawn");
    command
        .args([
            "--register=no",
            "--keep-unit",
            "--boot",
            "--private-network",
        ])
        .arg("--capability=CAP_BPF,CAP_NET_ADMIN,CAP_PERFMON,CAP_NET_BIND_SERVICE")
        .arg("--system-call-filter=bpf perf_event_open")
        .arg(format!("--bind={}:/test", test.display()))
        .arg("--directory")
        .arg(&system);
    let console = folder.join("console.log");
    let mut container = Process::start("systemd-nspawn", command, console.clone())?;
    let ended = container.wait(CHECKS_TIMEOUT)?;
    let text = fs::read_to_string(&said).unwrap_or_default();
    Ok(lines(&text, ended, &console))
}

/// The same in a virtual machine, with a kernel of this release.
pub(super) fn in_machine(root: &Path, folder: &Path, packages: &[PathBuf]) -> Result<Vec<String>> {
    let system = new(root, folder, "machine")?;
    add_checks(root, &system.join("test"), packages)?;
    let changes = system.join("etc/systemd/system/test.service.d");
    fs::create_dir_all(&changes)?;
    // The second serial port of the machine is a file here.
    let text = format!(
        "[Service]\nExecStart=\nExecStart=/bin/sh -c 'exec /bin/sh /test/run.sh > /dev/ttyS1 2>&1'\n\
         StandardOutput=journal\nEnvironment=SLOW={SLOW_FACTOR}\nTimeoutStartSec={}s\n",
        (CHECKS_TIMEOUT * SLOW_FACTOR).as_secs()
    );
    fs::write(changes.join("machine.conf"), text)?;
    let outcome = vm::boot_system(root, DEBIAN_RELEASE, &system, CHECKS_TIMEOUT * SLOW_FACTOR)?;
    Ok(lines(&outcome.text, outcome.ended, &outcome.console))
}

/// What the checks printed, as results.
pub(super) fn judge(said: &[String], place: &str, tally: &mut Tally) {
    for line in said {
        match line.split_once(' ') {
            Some(("ok", name)) => tally.record(name, &Ok(place.to_owned())),
            Some(("FAIL", rest)) => {
                let (name, seen) = rest.split_once(": ").unwrap_or((rest, ""));
                tally.record(name, &Err(anyhow::anyhow!("{seen}")));
            }
            _ => println!("        {line}"),
        }
    }
}

/// A new copy of a minimal Debian, which runs the checks when it has booted.
pub(super) fn new(root: &Path, folder: &Path, name: &str) -> Result<PathBuf> {
    let pristine = folder.join("pristine");
    let done = pristine.join("done");
    let is_done = fs::read_to_string(&done).is_ok_and(|included| included == INCLUDED_PACKAGES);
    if !is_done {
        let _ = fs::remove_dir_all(&pristine);
        let mut command = Command::new("debootstrap");
        command
            .arg("--variant=minbase")
            .arg(format!("--include={INCLUDED_PACKAGES}"));
        finish(command.arg(DEBIAN_RELEASE).arg(&pristine))?;
        fs::write(done, INCLUDED_PACKAGES)?;
    }
    let system = folder.join(name);
    let _ = fs::remove_dir_all(&system);
    finish(Command::new("cp").arg("-a").arg(&pristine).arg(&system))?;
    let units = system.join("etc/systemd/system");
    fs::copy(
        root.join("interop/packages/test.service"),
        units.join("test.service"),
    )?;
    let wants = units.join("multi-user.target.wants");
    fs::create_dir_all(&wants)?;
    std::os::unix::fs::symlink(
        "/etc/systemd/system/test.service",
        wants.join("test.service"),
    )?;
    Ok(system)
}

/// Puts the script and the packages into a folder.
fn add_checks(root: &Path, to: &Path, packages: &[PathBuf]) -> Result<()> {
    fs::create_dir_all(to)?;
    for ((name, _), package) in VERSIONS.iter().zip(packages) {
        fs::copy(package, to.join(name))?;
    }
    let script = root.join("interop/packages/run.sh");
    fs::copy(script, to.join("run.sh")).context("cannot copy the script")?;
    Ok(())
}

fn lines(text: &str, ended: Ended, console: &Path) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    if ended == Ended::Killed || lines.pop_if(|line| line == END_LINE).is_none() {
        lines.push(format!(
            "FAIL the checks end: they did not; see {}",
            console.display()
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn checks_that_do_not_end_have_failed() {
        let console = Path::new("console.log");
        let exited = Ended::Exited(ExitStatus::from_raw(0));
        assert_eq!(lines("ok one\nend\n", exited, console), ["ok one"]);
        for (text, ended) in [("ok one\n", exited), ("ok one\nend\n", Ended::Killed)] {
            let mut tally = Tally::default();
            judge(&lines(text, ended, console), "here", &mut tally);
            assert_eq!(tally.failed, 1, "{text:?} {ended:?}");
        }
    }
}
