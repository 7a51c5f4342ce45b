//! The .rpm, the tarball and the bill of materials: what is in them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{finish, system};
use crate::dist;
use crate::tally::Tally;

const TEST_VERSION: &str = "0.0.3";

/// Files that both archives must have, each with its mode, and its group in the .rpm.
const EXPECTED_FILES: [(&str, &str, &str); 12] = [
    ("/usr/bin/hairpin", "-rwxr-xr-x", "root"),
    ("/etc/hairpin/hairpin.toml", "-rw-r-----", "hairpin"),
    ("/etc/default/hairpin", "-rw-r-----", "hairpin"),
    (
        "/usr/lib/systemd/system/hairpin.service",
        "-rw-r--r--",
        "root",
    ),
    ("/usr/lib/sysusers.d/hairpin.conf", "-rw-r--r--", "root"),
    ("/usr/share/man/man1/hairpin.1.gz", "-rw-r--r--", "root"),
    (
        "/usr/share/bash-completion/completions/hairpin",
        "-rw-r--r--",
        "root",
    ),
    (
        "/usr/share/zsh/vendor-completions/_hairpin",
        "-rw-r--r--",
        "root",
    ),
    (
        "/usr/share/fish/vendor_completions.d/hairpin.fish",
        "-rw-r--r--",
        "root",
    ),
    ("/usr/share/doc/hairpin/alerts.yml", "-rw-r--r--", "root"),
    ("/usr/share/doc/hairpin/runbook.md", "-rw-r--r--", "root"),
    (
        "/usr/share/doc/hairpin/configuration.md",
        "-rw-r--r--",
        "root",
    ),
];

/// Makes the packages, and checks their contents.
pub(super) fn run(root: &Path, folder: &Path, program: &Path, tally: &mut Tally) {
    let made = match dist::others(root, program, &folder.join(TEST_VERSION), TEST_VERSION) {
        Ok(made) => made,
        Err(error) => return tally.record("tarball, SBOM and .rpm", &Err(error)),
    };
    tally.record("tarball", &tarball(&made.tarball));
    tally.record("SBOM", &bill(root, &made.bill));
    match &made.rpm {
        Some(package) => {
            tally.record(".rpm", &rpm(package));
            let installed = system::new(root, folder, "rpm-system")
                .and_then(|system| RpmSystem(&system).try_all(package));
            tally.record(".rpm: installed, again, and removed", &installed);
        }
        None => tally.skip(".rpm", "rpmbuild is not installed (Debian: rpm)"),
    }
}

/// The mode and the group of each file, by name.
type FoundFiles = BTreeMap<String, (String, String)>;

fn compare(found: &FoundFiles, group: impl Fn(&'static str) -> &'static str) -> Result<String> {
    for (name, mode, of_rpm) in EXPECTED_FILES {
        let wanted = (mode.to_owned(), group(of_rpm).to_owned());
        let seen = found.get(name).with_context(|| format!("no {name}"))?;
        ensure!(*seen == wanted, "{name} has {seen:?} instead of {wanted:?}");
    }
    Ok(format!("{} files", found.len()))
}

fn tarball(path: &Path) -> Result<String> {
    let mut command = Command::new("tar");
    let list = finish(command.args(["--list", "--verbose", "--file"]).arg(path))?;
    let mut found = FoundFiles::new();
    for line in list.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [mode, owner, .., name] = words[..] else {
            continue;
        };
        let (user, group) = owner.split_once('/').context("no group")?;
        ensure!(user == "root", "{name} belongs to {user}");
        let name = name.trim_start_matches('.').to_owned();
        found.insert(name, (mode.to_owned(), group.to_owned()));
    }
    compare(&found, |_| "root")
}

fn rpm(path: &Path) -> Result<String> {
    let ask = |arguments: &[&str]| finish(Command::new("rpm").arg("-qp").args(arguments).arg(path));
    let format = "[%{FILENAMES} %{FILEMODES:perms} %{FILEUSERNAME} %{FILEGROUPNAME} %{FILEFLAGS:fflags}.\\n]";
    let mut found = FoundFiles::new();
    for line in ask(&["--queryformat", format])?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, mode, user, group, flags] = words[..] else {
            anyhow::bail!("rpm says {line}");
        };
        ensure!(user == "root", "{name} belongs to {user}");
        let is_kept = name.starts_with("/etc/") && mode.starts_with('-');
        ensure!(
            flags.contains('c') == is_kept,
            "{name} has the flags {flags}"
        );
        found.insert(name.to_owned(), (mode.to_owned(), group.to_owned()));
    }
    let scripts = ask(&["--scripts"])?;
    for part in [
        "useradd --system",
        "systemctl reload hairpin.service",
        "systemctl disable --now hairpin.service",
    ] {
        ensure!(scripts.contains(part), "no `{part}` in {scripts}");
    }
    // docs/packages.md says so.
    for part in ["systemctl enable", "systemctl start"] {
        ensure!(!scripts.contains(part), "`{part}` in {scripts}");
    }
    let version = ask(&["--queryformat", "%{NAME} %{VERSION}"])?;
    ensure!(
        version == format!("hairpin {TEST_VERSION}"),
        "it is {version}"
    );
    compare(&found, |group| group)
}

/// A system that the .rpm is installed in. Its dependencies have other names in Debian, so `rpm` does not check them.
struct RpmSystem<'a>(&'a Path);

impl RpmSystem<'_> {
    fn rpm(&self, arguments: &[&str], package: &str) -> Result<String> {
        let mut command = Command::new("rpm");
        command.arg("--root").arg(self.0).args(arguments);
        finish(command.arg(package))
    }

    fn inside(&self, script: &str) -> Result<String> {
        finish(
            Command::new("chroot")
                .arg(self.0)
                .args(["sh", "-ec", script]),
        )
    }

    fn try_all(&self, package: &Path) -> Result<String> {
        let package = package.to_str().context("a path that is not UTF-8")?;
        self.rpm(&["--install", "--nodeps"], package)?;
        let said = self.inside(
            "hairpin --version; hairpin check /etc/hairpin/hairpin.toml >&2; getent passwd hairpin >&2; \
             test $(stat -c %a:%U:%G /etc/hairpin/hairpin.toml) = 640:root:hairpin; \
             echo '# changed' >> /etc/hairpin/hairpin.toml",
        )?;
        self.rpm(&["--upgrade", "--replacepkgs", "--nodeps"], package)?;
        self.inside("grep -q '# changed' /etc/hairpin/hairpin.toml")?;
        self.rpm(&["--erase"], "hairpin")?;
        self.inside(
            "! test -e /usr/bin/hairpin && grep -q '# changed' /etc/hairpin/hairpin.toml.rpmsave",
        )?;
        Ok(said.trim().to_owned())
    }
}

fn bill(root: &Path, path: &Path) -> Result<String> {
    let bill: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    ensure!(bill["bomFormat"] == "CycloneDX", "{}", bill["bomFormat"]);
    ensure!(bill["specVersion"] == "1.5", "{}", bill["specVersion"]);
    let program = &bill["metadata"]["component"];
    ensure!(
        program["name"] == "hairpin" && program["version"] == TEST_VERSION,
        "{program}"
    );
    let lock = std::fs::read_to_string(root.join("Cargo.lock"))?;
    let components = bill["components"].as_array().context("no components")?;
    let mut names = Vec::new();
    for component in components {
        let [name, version, purl] =
            ["name", "version", "purl"].map(|key| component[key].as_str().unwrap_or_default());
        let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
        ensure!(lock.contains(&entry), "Cargo.lock has no {name} {version}");
        ensure!(purl == format!("pkg:cargo/{name}@{version}"), "{purl}");
        let license = component["licenses"][0]["expression"].as_str();
        ensure!(
            license.is_some_and(|text| !text.is_empty()),
            "{name} has no license"
        );
        names.push(name);
    }
    for name in ["hairpin", "hairpin-server", "rustls", "tokio", "libc"] {
        ensure!(names.contains(&name), "no {name}");
    }
    // Only tests use it.
    ensure!(!names.contains(&"proptest"), "it has crates of tests");
    Ok(format!("{} crates", names.len()))
}
