//! The .rpm, by `rpmbuild`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use super::{Package, output};

/// Makes the package; nothing where `rpmbuild` is not installed.
pub(super) fn make(root: &Path, package: &Package) -> Result<Option<PathBuf>> {
    if Command::new("rpmbuild").arg("--version").output().is_err() {
        return Ok(None);
    }
    let top = package.out.join("rpm");
    let mut command = Command::new("rpmbuild");
    let defined = [
        ("_topdir", top.display().to_string()),
        ("_rpmdir", package.out.display().to_string()),
        (
            "_rpmfilename",
            "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm".to_owned(),
        ),
        ("_buildhost", "localhost".to_owned()),
        ("use_source_date_epoch_as_buildtime", "1".to_owned()),
        ("clamp_mtime_to_source_date_epoch", "1".to_owned()),
        ("hairpin_version", package.version.clone()),
        ("hairpin_glibc", package.glibc.clone()),
        ("hairpin_tree", package.tree.display().to_string()),
    ];
    for (name, value) in defined {
        command.arg("--define").arg(format!("{name} {value}"));
    }
    command
        .arg("--target")
        .arg(format!("{}-linux", package.architecture))
        .arg("-bb")
        .arg(root.join("deploy/rpm/hairpin.spec"))
        .env("SOURCE_DATE_EPOCH", &package.time);
    output(&mut command)?;
    let path = package.out.join(format!(
        "hairpin-{}-1.{}.rpm",
        package.version, package.architecture
    ));
    ensure!(path.exists(), "rpmbuild wrote no {}", path.display());
    Ok(Some(path))
}
