//! The .deb, by `dpkg-deb`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Package, output, tree};

/// The maintainer scripts (Debian Policy, chapter 6).
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Files that an administrator changes.
const CONFFILES: &str = "/etc/default/hairpin\n/etc/hairpin/hairpin.toml\n";

/// Makes the package.
pub(super) fn make(root: &Path, package: &Package) -> Result<PathBuf> {
    let architecture = match package.architecture.as_str() {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => anyhow::bail!("Debian has no name for {other}"),
    };
    let folder = package.out.join("deb");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    output(Command::new("cp").arg("-a").arg(&package.tree).arg(&folder))?;
    let control = folder.join("DEBIAN");
    let template = fs::read_to_string(root.join("deploy/debian/control"))?;
    let text = template
        .replace("@VERSION@", &package.version)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@GLIBC@", &package.glibc)
        .replace("@SIZE@", &kibibytes(&package.tree)?.to_string());
    tree::write(&control.join("control"), text.as_bytes())?;
    tree::write(&control.join("conffiles"), CONFFILES.as_bytes())?;
    for script in SCRIPTS {
        let to = control.join(script);
        fs::copy(root.join("deploy/debian").join(script), &to)?;
    }
    tree::write(&control.join("md5sums"), sums(&package.tree)?.as_bytes())?;
    let path = package
        .out
        .join(format!("hairpin_{}_{architecture}.deb", package.version));
    output(
        Command::new("dpkg-deb")
            .args(["--root-owner-group", "-Zxz", "--build"])
            .arg(&folder)
            .arg(&path)
            .env("SOURCE_DATE_EPOCH", &package.time),
    )?;
    Ok(path)
}

/// What the files occupy.
fn kibibytes(folder: &Path) -> Result<u64> {
    let mut command = Command::new("du");
    let text = output(
        command
            .args(["--summarize", "--apparent-size", "--block-size=1024"])
            .arg(folder),
    )?;
    let number = text
        .split_whitespace()
        .next()
        .context("du prints nothing")?;
    Ok(number.parse()?)
}

/// `DEBIAN/md5sums`, which `dpkg --verify` compares: all files except those below `etc`, which dpkg itself tracks.
fn sums(folder: &Path) -> Result<String> {
    let mut command = Command::new("sh");
    command.current_dir(folder).args([
        "-c",
        "find . -type f ! -path './etc/*' -printf '%P\\n' | LC_ALL=C sort | xargs -d '\\n' md5sum",
    ]);
    output(&mut command)
}
