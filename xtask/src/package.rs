//! Whether each crate can be published: `cargo package` accepts it, and its package has what a registry shows.
//!
//! It does not build the packages: that takes minutes, and what it would find more is a file outside of its crate.
//! `cargo xtask package --build` does.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::cargo;
use crate::tally::Tally;
use crate::workspace::{self, Package};

/// Files that every package must have.
const FILES: [&str; 4] = ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE"];
/// Keys of a manifest that registries and docs.rs read.
const KEYS: [&str; 4] = [
    "\nreadme",
    "\nkeywords",
    "\ncategories",
    "\n[package.metadata.docs.rs]",
];

/// Packages all crates, and with `build` compiles what is in the packages.
pub(crate) fn run(root: &Path, build: bool) -> Result<Tally> {
    let mut tally = Tally::default();
    let packages = workspace::packages(root)?;
    for package in packages.iter().filter(|package| package.name != "xtask") {
        let outcome = complete(root, package).map(|()| "complete".to_owned());
        tally.record(&package.name, &outcome);
    }
    // Changes that are not committed are packaged, too, so the check can run before a commit.
    let mut arguments = vec![
        "package",
        "--workspace",
        "--exclude",
        "xtask",
        "--allow-dirty",
        "--quiet",
    ];
    arguments.extend(["--offline", "--locked"]);
    if !build {
        arguments.push("--no-verify");
    }
    let outcome = cargo::check(root, &arguments, &[]).map(|_| "cargo accepts all".to_owned());
    tally.record("cargo package", &outcome);
    Ok(tally)
}

/// Whether the package has the files and the keys.
fn complete(root: &Path, package: &Package) -> Result<()> {
    let list = workspace::cargo()
        .args([
            "package",
            "--list",
            "--allow-dirty",
            "--offline",
            "--package",
            &package.name,
        ])
        .current_dir(root)
        .output()
        .context("cannot run cargo")?;
    ensure!(
        list.status.success(),
        "{}",
        String::from_utf8_lossy(&list.stderr)
    );
    let list = String::from_utf8(list.stdout)?;
    for file in FILES {
        ensure!(
            list.lines().any(|line| line == file),
            "its package has no {file}"
        );
        let path = package.folder.join(file);
        ensure!(
            path.metadata().is_ok_and(|file| file.len() > 0),
            "{} is empty",
            path.display()
        );
    }
    let manifest = std::fs::read_to_string(package.folder.join("Cargo.toml"))?;
    for key in KEYS {
        ensure!(
            manifest.contains(key),
            "its Cargo.toml has no {}",
            key.trim()
        );
    }
    Ok(())
}
