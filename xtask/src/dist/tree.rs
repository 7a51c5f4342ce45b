//! The files of a package, as they will be installed, and the tarball of them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Package, output};

/// Files of the source tree: where from, where to, and the mode.
const FILES: [(&str, &str, u32); 12] = [
    (
        "deploy/debian/lintian-overrides",
        "usr/share/lintian/overrides/hairpin",
        0o644,
    ),
    (
        "deploy/hairpin.service",
        "usr/lib/systemd/system/hairpin.service",
        0o644,
    ),
    ("deploy/hairpin.toml", "etc/hairpin/hairpin.toml", 0o640),
    ("deploy/hairpin.default", "etc/default/hairpin", 0o640),
    (
        "deploy/hairpin.example.toml",
        "usr/share/doc/hairpin/hairpin.example.toml",
        0o644,
    ),
    (
        "deploy/prometheus/alerts.yml",
        "usr/share/doc/hairpin/alerts.yml",
        0o644,
    ),
    // The alert rules refer to it.
    ("docs/runbook.md", "usr/share/doc/hairpin/runbook.md", 0o644),
    // systemd-sysusers makes the user, for those who unpack the tarball.
    (
        "deploy/hairpin.sysusers",
        "usr/lib/sysusers.d/hairpin.conf",
        0o644,
    ),
    (
        "deploy/grafana/hairpin.json",
        "usr/share/doc/hairpin/grafana.json",
        0o644,
    ),
    (
        "docs/configuration.md",
        "usr/share/doc/hairpin/configuration.md",
        0o644,
    ),
    (
        "deploy/debian/copyright",
        "usr/share/doc/hairpin/copyright",
        0o644,
    ),
    ("SECURITY.md", "usr/share/doc/hairpin/SECURITY.md", 0o644),
];

/// Completions: the shell, and where they are installed.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/hairpin"),
    ("zsh", "usr/share/zsh/vendor-completions/_hairpin"),
    ("fish", "usr/share/fish/vendor_completions.d/hairpin.fish"),
];

/// Makes the tree anew. The program writes its own manual pages and completions if it runs on this machine's processor.
/// Otherwise the program for this machine must have been packaged before.
pub(super) fn make(root: &Path, package: &Package, program: &Path) -> Result<()> {
    let tree = &package.tree;
    if tree.exists() {
        fs::remove_dir_all(tree)?;
    }
    let installed = tree.join("usr/bin/hairpin");
    put(program, &installed, 0o755)?;
    if package.architecture == std::env::consts::ARCH {
        output(Command::new("strip").arg(&installed))?;
    }
    for (from, to, mode) in FILES {
        put(&root.join(from), &tree.join(to), mode)?;
    }
    let described = match package.architecture == std::env::consts::ARCH {
        true => program.to_owned(),
        false => host_program(root)?,
    };
    for (shell, to) in COMPLETIONS {
        let text = output(Command::new(&described).args(["completions", shell]))?;
        write(&tree.join(to), text.as_bytes())?;
    }
    let pages = tree.join("usr/share/man/man1");
    fs::create_dir_all(&pages)?;
    output(Command::new(&described).arg("man").arg(&pages))?;
    for page in fs::read_dir(&pages)? {
        // Without name and time, so that two builds have the same bytes.
        output(Command::new("gzip").args(["-9", "-n"]).arg(page?.path()))?;
    }
    changelog(root, package)
}

/// A program that runs here: pages and completions are the same for each processor.
fn host_program(root: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    output(
        cargo
            .args(["build", "--package", "hairpin"])
            .current_dir(root),
    )?;
    let folder =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(folder.join("debug/hairpin"))
}

/// The changes, and the changelog that Debian's policy demands, which refers to them.
fn changelog(root: &Path, package: &Package) -> Result<()> {
    let folder = package.tree.join("usr/share/doc/hairpin");
    put(
        &root.join("CHANGELOG.md"),
        &folder.join("CHANGELOG.md"),
        0o644,
    )?;
    let mut date = Command::new("date");
    let date = output(
        date.args(["-u", "-R", "-d"])
            .arg(format!("@{}", package.time)),
    )?;
    let text = format!(
        "hairpin ({}) unstable; urgency=medium\n\n  * /usr/share/doc/hairpin/CHANGELOG.md.gz has the changes.\n\n -- The hairpin authors <hairpin@localhost>  {}\n",
        package.version,
        date.trim()
    );
    write(&folder.join("changelog"), text.as_bytes())?;
    for name in ["changelog", "CHANGELOG.md"] {
        output(
            Command::new("gzip")
                .args(["-9", "-n"])
                .arg(folder.join(name)),
        )?;
    }
    Ok(())
}

fn put(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    write(to, &bytes)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

pub(super) fn write(to: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(to, bytes).with_context(|| format!("cannot write {}", to.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o644))?;
    Ok(())
}

/// The tarball. It is unpacked at the root of a system.
pub(super) fn archive(package: &Package) -> Result<PathBuf> {
    let name = format!("hairpin-{}-linux-{}", package.version, package.architecture);
    let path = package.out.join(format!("{name}.tar.gz"));
    tar(package, &package.tree, &path)?;
    Ok(path)
}

/// Packs a folder: sorted, owned by root, with the time of the commit.
pub(super) fn tar(package: &Package, folder: &Path, path: &Path) -> Result<()> {
    let uncompressed = path.with_extension("");
    output(
        Command::new("tar")
            .args([
                "--create",
                "--format=gnu",
                "--sort=name",
                "--owner=root:0",
                "--group=root:0",
            ])
            .arg(format!("--mtime=@{}", package.time))
            .arg("--file")
            .arg(&uncompressed)
            .arg("--directory")
            .arg(folder)
            .arg("."),
    )?;
    output(
        Command::new("gzip")
            .args(["-9", "-n", "--force"])
            .arg(&uncompressed),
    )?;
    Ok(())
}
