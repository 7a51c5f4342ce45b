//! Programs that no Debian package brings: each is built once, from its registry, into a folder of `target/tools` that
//! its version names.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::workspace;

/// A program, its version, and who builds it.
#[derive(Debug)]
pub(crate) struct Built {
    program: &'static str,
    version: &'static str,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// A crate of the program's name.
    Cargo { flags: &'static [&'static str] },
    /// A Go package.
    Go(&'static str),
}

pub(crate) const CARGO_DENY: Built = Built {
    program: "cargo-deny",
    version: "0.20.2",
    source: Source::Cargo { flags: &[] },
};

/// Without its web server and its search, which need half of its crates. Its library alone builds no faster.
pub(crate) const MDBOOK: Built = Built {
    program: "mdbook",
    version: "0.5.4",
    source: Source::Cargo {
        flags: &["--no-default-features"],
    },
};

/// The newest version that builds with Go 1.19, which Debian 12 has.
pub(crate) const ACTIONLINT: Built = Built {
    program: "actionlint",
    version: "1.7.7",
    source: Source::Go("github.com/rhysd/actionlint/cmd/actionlint"),
};

impl Built {
    /// Where the program is. Builds it if that has not been done yet.
    pub(crate) fn ensure(&self, root: &Path) -> Result<PathBuf> {
        let folder = self.folder(root);
        let program = folder.join("bin").join(self.program);
        if !program.is_file() {
            println!("  building {self}");
            let status = self.build(&folder).status();
            let status = status.with_context(|| format!("cannot build {self}"))?;
            ensure!(status.success(), "{self} could not be built: {status}");
        }
        Ok(program)
    }

    pub(crate) fn is_missing(&self, root: &Path) -> bool {
        !self.folder(root).join("bin").join(self.program).is_file()
    }

    fn folder(&self, root: &Path) -> PathBuf {
        workspace::target_dir(root)
            .join("tools")
            .join(format!("{}-{}", self.program, self.version))
    }

    fn build(&self, folder: &Path) -> Command {
        match self.source {
            Source::Cargo { flags } => {
                let mut cargo = workspace::cargo();
                cargo
                    // Unoptimised and without debug information: that builds in half the time, and these programs run
                    // for seconds.
                    .env("CARGO_PROFILE_DEV_DEBUG", "0")
                    .args([
                        "install",
                        "--quiet",
                        "--locked",
                        "--debug",
                        "--version",
                        self.version,
                    ])
                    .arg("--root")
                    .arg(folder)
                    .args(flags)
                    .arg(self.program);
                cargo
            }
            Source::Go(package) => {
                let mut go = Command::new("go");
                go.arg("install")
                    .arg(format!("{package}@v{}", self.version))
                    .env("GOBIN", folder.join("bin"));
                go
            }
        }
    }
}

impl std::fmt::Display for Built {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let by = match self.source {
            Source::Cargo { .. } => "cargo",
            Source::Go(_) => "go",
        };
        write!(f, "{} {} ({by} install)", self.program, self.version)
    }
}
