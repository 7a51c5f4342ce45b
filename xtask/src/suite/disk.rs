//! Whether the disk has room for a run. On a full disk the linker fails with a bus error, which does not name the
//! cause.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::workspace::{self, output_of};

/// What a run in a fresh clone leaves in the target directory (measured: 8 GiB), and some room for temporary files.
const NEEDED_GIB: u64 = 12;
const GIB: u64 = 1 << 30;

/// An error if the disk of the target directory is too small for what a run adds to it.
pub(super) fn check(root: &Path) -> Result<()> {
    let target = workspace::target_dir(root);
    std::fs::create_dir_all(&target)?;
    let there = number(
        Command::new("du")
            .args(["-s", "--block-size=1"])
            .arg(&target),
    )?;
    let free = number(
        Command::new("df")
            .args(["--output=avail", "--block-size=1"])
            .arg(&target),
    )?;
    ensure!(
        there + free >= NEEDED_GIB * GIB,
        "the target directory {} would need {NEEDED_GIB} GiB; it has {} GiB, and the disk has {} GiB left: remove files, \
         or set CARGO_TARGET_DIR",
        target.display(),
        there / GIB,
        free / GIB
    );
    Ok(())
}

/// The only number of bytes in the output of a program.
fn number(command: &mut Command) -> Result<u64> {
    let output = output_of(command)?;
    output
        .split_whitespace()
        .find_map(|word| word.parse().ok())
        .with_context(|| format!("no size in {output:?}"))
}
