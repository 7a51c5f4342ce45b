//! Where things are: the root folder, the tracked files, cargo's own view of the packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// The folder that holds the workspace's `Cargo.toml`.
pub(crate) fn root() -> PathBuf {
    // xtask is built from <root>/xtask, and only ever run from the tree it was built in.
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |folder| root.join(folder))
}

/// The `cargo` that runs us, so that all builds share one toolchain and its artifacts.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs a command to its end and returns what it printed.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let output = command
        .output()
        .with_context(|| format!("cannot run {shown}"))?;
    ensure!(
        output.status.success(),
        "{shown} failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// Every file that git tracks or would track, relative to the root.
pub(crate) fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let listed = output_of(
        Command::new("git")
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .current_dir(root),
    )?;
    let mut files: Vec<PathBuf> = listed
        .split('\0')
        .filter(|name| !name.is_empty() && root.join(name).is_file())
        .map(PathBuf::from)
        .collect();
    files.sort();
    files.dedup();
    Ok(files)
}

/// Every Rust file of the workspace with its text, relative to the root.
pub(crate) fn rust_files(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    files(root)?
        .into_iter()
        .filter(|path| path.extension().is_some_and(|e| e == "rs"))
        .map(|path| {
            let text = std::fs::read_to_string(root.join(&path))
                .with_context(|| format!("cannot read {}", path.display()))?;
            Ok((path, text))
        })
        .collect()
}

/// One package of the workspace.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Whether it has a library.
    pub(crate) has_library: bool,
    /// Where its `Cargo.toml` is.
    pub(crate) folder: PathBuf,
    /// The names of the packages it depends on, of every kind: normal, build and dev.
    pub(crate) dependencies: Vec<String>,
}

/// Every package of the workspace, from `cargo metadata`. Needs no download.
pub(crate) fn packages(root: &Path) -> Result<Vec<Package>> {
    let mut command = cargo();
    command.args([
        "metadata",
        "--format-version",
        "1",
        "--no-deps",
        "--offline",
    ]);
    let metadata: Value = serde_json::from_str(&output_of(command.current_dir(root))?)?;
    metadata["packages"]
        .as_array()
        .context("cargo metadata has no packages")?
        .iter()
        .map(package)
        .collect()
}

fn package(value: &Value) -> Result<Package> {
    let list = |key: &str| value[key].as_array().map_or(&[][..], Vec::as_slice);
    let manifest = value["manifest_path"].as_str().map(Path::new);
    let is_library = |target: &Value| {
        target["kind"]
            .as_array()
            .is_some_and(|kinds| kinds.contains(&"lib".into()))
    };
    Ok(Package {
        name: value["name"]
            .as_str()
            .context("a package without a name")?
            .to_owned(),
        has_library: list("targets").iter().any(is_library),
        folder: manifest
            .and_then(Path::parent)
            .context("a package without a folder")?
            .to_path_buf(),
        dependencies: list("dependencies")
            .iter()
            .filter_map(|d| d["name"].as_str().map(str::to_owned))
            .collect(),
    })
}
