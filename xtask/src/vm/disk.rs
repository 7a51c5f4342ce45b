//! A whole Debian in a machine, with its root file system on a disk and systemd as process 1.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::kernels::{Kernel, Suite};
use super::{initrd, machine};
use crate::process::{self, Ended, Process};
use crate::scratch;
use crate::workspace::output_of;

/// The size of the disk. The file is sparse.
const DISK_SIZE: &str = "3G";

/// The output of a system.
#[derive(Debug)]
pub(crate) struct SystemOutput {
    /// The output of its second serial port.
    pub(crate) text: String,
    pub(crate) ended: Ended,
    /// What its kernel wrote, for a person.
    pub(crate) console: PathBuf,
}

/// Boots the system in this folder with the kernel of a suite of Debian, until it switches itself off. The folder needs
/// systemd and kmod. It gets the modules of the kernel.
pub(crate) fn boot(
    root: &Path,
    suite: &str,
    system: &Path,
    limit: Duration,
) -> Result<SystemOutput> {
    let suite = Suite::named(suite).with_context(|| format!("there is no suite {suite}"))?;
    let kernel = suite.kernel(&scratch(root, "vm")?)?;
    add_modules(&kernel, system)?;
    let disk = kernel.folder.join("disk");
    let _ = fs::remove_file(&disk);
    let mut format = Command::new("mkfs.ext4");
    format.args(["-q", "-F", "-d"]).arg(system);
    output_of(format.arg(&disk).arg(DISK_SIZE))?;
    let archive = initrd::for_disk(&kernel)?;
    let (console, results) = (
        kernel.folder.join("disk-console.txt"),
        kernel.folder.join("disk-results.txt"),
    );
    let _ = fs::remove_file(&results);
    let mut command = process::command("qemu-system-x86_64");
    // Without udev, nobody announces the terminal that a getty would wait for.
    machine::add_processors(&mut command, &kernel, &archive, "systemd.getty_auto=no");
    command.arg("-drive").arg(format!(
        // The file is of no use after the machine.
        "file={},format=raw,if=none,id=root,cache=unsafe",
        disk.display()
    ));
    command.args(["-device", "virtio-blk-pci,drive=root"]);
    for file in [&console, &results] {
        command
            .arg("-serial")
            .arg(format!("file:{}", file.display()));
    }
    command.args(["-display", "none", "-monitor", "none"]);
    let log = kernel.folder.join("disk-qemu.txt");
    let mut machine = Process::start("qemu-system-x86_64", command, log)?;
    let ended = machine.wait(limit)?;
    let text = fs::read(&results).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).replace('\r', "");
    let _ = fs::remove_file(&disk);
    Ok(SystemOutput {
        text,
        ended,
        console,
    })
}

fn add_modules(kernel: &Kernel, system: &Path) -> Result<()> {
    let to = system.join("usr/lib/modules");
    fs::create_dir_all(&to)?;
    let mut copy = Command::new("cp");
    output_of(copy.arg("-a").arg(&kernel.modules).arg(&to))?;
    let mut index = Command::new("chroot");
    output_of(index.arg(system).args(["depmod", &kernel.release])).map(drop)
}
