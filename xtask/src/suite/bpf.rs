//! The stage that holds the committed BPF objects against their sources.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::tally::Tally;

/// `build-objects.sh --check`: the objects are what the sources compile to, or (2) another clang compiled the sources
/// and nothing was compared.
pub(super) fn compare(root: &Path) -> Result<Tally> {
    let status = Command::new("sh")
        .arg(root.join("crates/bpf/build-objects.sh"))
        .arg("--check")
        .status()
        .context("cannot run sh")?;
    match status.code() {
        Some(0) => Ok(Tally::ONE),
        Some(2) => Ok(Tally {
            skipped: 1,
            ..Tally::ONE
        }),
        _ => bail!("build-objects.sh --check: {status}"),
    }
}
