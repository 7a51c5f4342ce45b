//! The file system that a machine boots into: busybox, iproute2, modules, the guest's scripts, and the binaries to
//! check.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::kernels::Kernel;
use crate::tools;
use crate::workspace::output_of;

/// Folders of modules under `kernel/`. The kernel loads a module on demand.
const MODULE_FOLDERS: [&str; 3] = ["net", "drivers/net", "drivers/virtio"];

/// The modules of a machine with a disk: those of the disk, of its file system, and their dependencies.
const DISK_MODULES: [&str; 6] = [
    "arch",
    "crypto",
    "drivers/block",
    "drivers/virtio",
    "fs",
    "lib",
];
/// Process 1 of a machine with a disk, until systemd takes its place.
const DISK_INIT: &str = include_str!("disk-init");

/// Programs of this machine that the checks run.
const HOST_PROGRAMS: [&str; 3] = ["ip", "setpriv", "tc"];

/// A binary and its name in the machine.
#[derive(Debug, Clone)]
pub(crate) struct GuestBinary {
    pub(crate) name: String,
    pub(crate) file: PathBuf,
}

/// Builds the archive. `plan` is the list of checks that the guest reads.
pub(crate) fn build(
    root: &Path,
    kernel: &Kernel,
    binaries: &[GuestBinary],
    plan: &str,
) -> Result<PathBuf> {
    let tree = kernel.folder.join("root");
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    for folder in ["bin", "dev", "lib", "proc", "run", "sys", "tmp", "tools"] {
        fs::create_dir_all(tree.join(folder))?;
    }
    copy_folder(&root.join("xtask/src/vm/guest"), &tree)?;
    fs::write(tree.join("plan"), plan)?;
    let busybox = add_busybox(&tree)?;
    let mut libraries = BTreeSet::new();
    for name in HOST_PROGRAMS {
        let program = found(name)?;
        libraries.extend(libraries_of(&program)?);
        fs::copy(&program, tree.join("tools").join(name))?;
    }
    for binary in binaries {
        libraries.extend(libraries_of(&binary.file)?);
        let mut strip = Command::new("strip");
        strip.arg("-o").arg(tree.join("tools").join(&binary.name));
        output_of(strip.arg(&binary.file))?;
    }
    for library in &libraries {
        let place = tree.join(library.strip_prefix("/").unwrap_or(library));
        fs::create_dir_all(place.parent().context("a library without a folder")?)?;
        fs::copy(library, place)?;
    }
    copy_modules(kernel, &tree, &busybox, &MODULE_FOLDERS)?;
    pack(&tree, &kernel.folder.join("initrd"))
}

/// Builds the archive of a machine whose root file system is on a disk.
pub(crate) fn for_disk(kernel: &Kernel) -> Result<PathBuf> {
    let tree = kernel.folder.join("disk-root");
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    for folder in ["bin", "dev", "lib", "proc", "sys", "system"] {
        fs::create_dir_all(tree.join(folder))?;
    }
    let init = tree.join("init");
    fs::write(&init, DISK_INIT)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    let busybox = add_busybox(&tree)?;
    copy_modules(kernel, &tree, &busybox, &DISK_MODULES)?;
    pack(&tree, &kernel.folder.join("disk-initrd"))
}

fn add_busybox(tree: &Path) -> Result<PathBuf> {
    let busybox = found("busybox")?;
    fs::copy(&busybox, tree.join("bin/busybox"))?;
    Ok(busybox)
}

fn found(program: &str) -> Result<PathBuf> {
    tools::find(program).with_context(|| format!("{program} is not in PATH"))
}

/// The shared libraries of a program, by the paths that it looks for them at.
fn libraries_of(program: &Path) -> Result<Vec<PathBuf>> {
    let listed = output_of(Command::new("ldd").arg(program))?;
    Ok(listed
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect())
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let (from, to) = {
            let entry = entry?;
            (entry.path(), to.join(entry.file_name()))
        };
        if from.is_dir() {
            copy_folder(&from, &to)?;
        } else {
            fs::copy(&from, &to)?;
        }
    }
    Ok(())
}

/// Decompresses what Debian 13 compresses: that takes a guest without KVM longer than reading it.
fn copy_modules(kernel: &Kernel, tree: &Path, busybox: &Path, folders: &[&str]) -> Result<()> {
    let modules = tree.join("lib/modules").join(&kernel.release);
    for folder in folders {
        let to = modules.join("kernel").join(folder);
        copy_folder(&kernel.modules.join("kernel").join(folder), &to)?;
    }
    let mut compressed = Command::new("find");
    compressed.arg(&modules).args(["-name", "*.xz"]);
    compressed.args(["-exec", "xz", "-d", "{}", "+"]);
    output_of(&mut compressed)?;
    let mut index = Command::new(busybox);
    output_of(index.arg("depmod").arg("-b").arg(tree).arg(&kernel.release)).map(drop)
}

fn pack(tree: &Path, archive: &Path) -> Result<PathBuf> {
    // Not compressed: QEMU copies the file into the guest at once, where decompressing it would take seconds.
    let script = "cd \"$1\" && find . | cpio --quiet -o -H newc > \"$2\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(tree).arg(archive);
    let status = command.status().context("cannot run sh")?;
    ensure!(status.success(), "cpio failed: {status}");
    Ok(archive.to_owned())
}
