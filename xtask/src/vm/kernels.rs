//! Debian's kernels: which ones, and fetching them with apt.
//!
//! The image for clouds has a third of the size of the generic one and boots in 5 s instead of 15 s without KVM. It
//! has every module that the checks load: virtio, veth, bonding, team, dummy, 8021q, sch_ingress, cls_bpf.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::workspace::output_of;

/// A kernel's version, as far as features depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Linux(pub(crate) u32, pub(crate) u32);

impl fmt::Display for Linux {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// A Debian suite whose kernel can be booted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) linux: Linux,
}

/// Those that the test command boots. Debian has no package of 5.15.
pub(crate) const SUITES: [Suite; 3] = [
    Suite {
        name: "bullseye",
        linux: Linux(5, 10),
    },
    Suite {
        name: "bookworm",
        linux: Linux(6, 1),
    },
    Suite {
        name: "trixie",
        linux: Linux(6, 12),
    },
];

const META_PACKAGE: &str = "linux-image-cloud-amd64";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// An unpacked kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) suite: Suite,
    /// Its folder under `target/vm`.
    pub(crate) folder: PathBuf,
    pub(crate) image: PathBuf,
    /// `lib/modules/RELEASE`.
    pub(crate) modules: PathBuf,
    /// What `uname -r` says.
    pub(crate) release: String,
}

impl Suite {
    /// The suite of a name or version such as `bookworm` or `6.1`.
    pub(crate) fn named(text: &str) -> Option<Suite> {
        SUITES
            .into_iter()
            .find(|suite| suite.name == text || suite.linux.to_string() == text)
    }

    /// Downloads and unpacks the kernel, unless an earlier run has.
    pub(crate) fn kernel(self, folder: &Path) -> Result<Kernel> {
        let folder = folder.join(self.name);
        let unpacked = folder.join("kernel");
        if !unpacked.is_dir() {
            self.download(&folder, &unpacked)
                .with_context(|| format!("cannot get the kernel of {}", self.name))?;
        }
        let image = only_entry(&unpacked.join("boot"), "vmlinuz-")?;
        let modules = match only_entry(&unpacked.join("lib/modules"), "") {
            Ok(modules) => modules,
            // Debian 13 has merged /lib into /usr/lib.
            Err(_) => only_entry(&unpacked.join("usr/lib/modules"), "")?,
        };
        let release = modules.file_name().unwrap_or_default().to_string_lossy();
        let expected = format!("{}.", self.linux);
        ensure!(
            release.starts_with(&expected),
            "the kernel of {} is {release}, not {expected}x: delete {} or correct the list of suites",
            self.name,
            folder.display()
        );
        Ok(Kernel {
            suite: self,
            image,
            release: release.into_owned(),
            modules,
            folder,
        })
    }

    fn download(self, folder: &Path, unpacked: &Path) -> Result<()> {
        let lists = folder.join("lists");
        std::fs::create_dir_all(lists.join("partial"))?;
        let sources = folder.join("sources.list");
        let mirror = mirror()?;
        let source = format!("deb [signed-by={KEYRING}] {mirror} {} main\n", self.name);
        std::fs::write(&sources, source)?;
        let apt = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            command
                .args(["-qq", "-o"])
                .arg(format!("Dir::Etc::sourcelist={}", sources.display()))
                .args(["-o", "Dir::Etc::sourceparts=-", "-o"])
                .arg(format!("Dir::State::lists={}", lists.display()))
                // The caches of this machine's own packages stay as they are; no other user can read our folder.
                .args(["-o", "Dir::Cache::pkgcache=", "-o"])
                .args(["Dir::Cache::srcpkgcache=", "-o", "APT::Sandbox::User=root"])
                .args(arguments)
                .current_dir(folder);
            output_of(&mut command)
        };
        apt("apt-get", &["update"])?;
        let depends = apt("apt-cache", &["depends", META_PACKAGE])?;
        let package = depends
            .split_whitespace()
            .find(|word| word.starts_with("linux-image-") && *word != META_PACKAGE)
            .with_context(|| format!("{META_PACKAGE} depends on no kernel: {depends}"))?;
        println!("  downloading {package} of Debian {}", self.name);
        apt("apt-get", &["download", package])?;
        let file = only_entry(folder, "linux-image-")?;
        // Under another name first: an interrupted run must not pass for a finished one.
        let partial = folder.join("partial");
        let mut unpack = Command::new("dpkg-deb");
        output_of(unpack.arg("-x").arg(&file).arg(&partial))?;
        std::fs::rename(&partial, unpacked)?;
        Ok(std::fs::remove_file(file)?)
    }
}

/// The mirror that this machine's apt has Debian from.
fn mirror() -> Result<String> {
    let targets = output_of(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(ORIGIN) $(REPO_URI) $(COMPONENT) $(CODENAME)",
        "Created-By: Packages",
    ]))?;
    // The codename of updates and of security has a dash.
    targets
        .lines()
        .find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["Debian", uri, "main", codename] if !codename.contains('-') => {
                    Some(uri.to_owned())
                }
                _ => None,
            }
        })
        .context("apt knows no mirror of Debian: run apt-get update")
}

/// The one entry of a folder whose name begins so.
fn only_entry(folder: &Path, prefix: &str) -> Result<PathBuf> {
    let found: Vec<PathBuf> = std::fs::read_dir(folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    ensure!(
        found.len() == 1,
        "{} entries named {prefix}* in {}, and not one",
        found.len(),
        folder.display()
    );
    Ok(found[0].clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_is_found_by_name_and_by_version() {
        assert_eq!(Suite::named("6.1").unwrap().name, "bookworm");
        assert_eq!(Suite::named("trixie").unwrap().linux, Linux(6, 12));
        assert!(Suite::named("5.15").is_none());
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert!(
            Linux(5, 10) < Linux(5, 12) && Linux(5, 18) < Linux(6, 1) && Linux(6, 6) < Linux(6, 12)
        );
    }
}
