//! `cargo xtask dist`: packages of one program, as files in a folder. Two runs for the same commit write the same
//! bytes; `--compare` shows it.

mod build;
mod compare;
mod deb;
mod elf;
mod oldest;
mod rpm;
mod sbom;
mod tree;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::tally::Tally;
use crate::workspace;

/// What `cargo xtask dist` is told.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The folder that the packages are written to
    #[arg(long, value_name = "FOLDER", default_value = "target/dist")]
    out: PathBuf,
    /// Package this program instead of building one
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// The processor to build for
    #[arg(long, value_name = "ARCHITECTURE", default_value = std::env::consts::ARCH, value_parser = ["x86_64", "aarch64"])]
    architecture: String,
    /// Build for this machine's own C library instead of glibc 2.31
    #[arg(long, conflicts_with = "program")]
    native: bool,
    /// The profile of cargo to build with
    #[arg(
        long,
        value_name = "NAME",
        default_value = "release",
        conflicts_with = "program"
    )]
    profile: String,
    /// Build the commit in two folders, and compare the programs and packages. Only committed files count
    #[arg(long, conflicts_with_all = ["program", "oldest"])]
    compare: bool,
    /// With --compare: build the program of this crate instead, and no packages
    #[arg(long, value_name = "NAME", requires = "compare")]
    binary: Option<String>,
    /// Install the .deb in Debian 11, the system with glibc 2.31, and start the program there. As root
    #[arg(long)]
    oldest: bool,
}

/// A tree to build, with what its commit says.
struct Source {
    root: PathBuf,
    /// Where cargo puts what it builds.
    target: PathBuf,
    commit: String,
    /// The time of the commit: what is packed has this time.
    time: String,
}

impl Source {
    fn of(root: &Path) -> Result<Self> {
        Ok(Self {
            root: root.to_owned(),
            target: workspace::target_dir(root),
            commit: git(root, &["rev-parse", "--short=12", "HEAD"])?,
            time: git(root, &["log", "-1", "--format=%ct"])?,
        })
    }
}

/// The packages of one build.
struct BuiltPackages {
    deb: PathBuf,
    tarball: PathBuf,
    bill: PathBuf,
    /// `None` if `rpmbuild` is not installed.
    rpm: Option<PathBuf>,
}

/// What every package is made from.
struct Package {
    /// The files as they will be installed.
    tree: PathBuf,
    out: PathBuf,
    version: String,
    architecture: String,
    /// The newest symbol version of the C library that the program uses.
    glibc: String,
    /// The time of the commit: what is packed has this time.
    time: String,
}

/// Builds the program and makes the packages.
pub(crate) fn run(root: &Path, options: &Options) -> Result<Tally> {
    if options.compare {
        return compare::run(root, options);
    }
    let mut tally = Tally::default();
    let source = Source::of(root)?;
    let program = match &options.program {
        Some(program) => program.clone(),
        None => build::program(&source, options, "hairpin")?,
    };
    if options.program.is_none() && options.architecture == std::env::consts::ARCH {
        let version = output(Command::new(&program).arg("--version"))?;
        ensure!(
            version.contains(&source.commit),
            "--version has no commit {}: {version}",
            source.commit
        );
    }
    let out = root.join(&options.out);
    let made = make(&source, &program, &out, &options.architecture)?;
    for file in [&made.deb, &made.tarball, &made.bill]
        .into_iter()
        .chain(&made.rpm)
    {
        println!("{}", file.display());
        tally.passed += 1;
    }
    if made.rpm.is_none() {
        tally.skip(".rpm", "rpmbuild is not installed (Debian: rpm)");
    }
    if options.oldest {
        oldest::run(root, &made.deb, &mut tally)?;
    }
    Ok(tally)
}

/// Makes the packages of a program.
fn make(source: &Source, program: &Path, out: &Path, architecture: &str) -> Result<BuiltPackages> {
    let root = &source.root;
    let package = Package {
        architecture: architecture.to_owned(),
        ..Package::new(source, program, out, &version(root)?)?
    };
    tree::make(root, &package, program)?;
    Ok(BuiltPackages {
        deb: deb::make(root, &package)?,
        tarball: tree::archive(&package)?,
        bill: sbom::make(root, &package)?,
        rpm: rpm::make(root, &package)?,
    })
}

/// Makes a .deb of a program of this machine, for tests.
pub(crate) fn debian(root: &Path, program: &Path, out: &Path, version: &str) -> Result<PathBuf> {
    let package = Package::new(&Source::of(root)?, program, out, version)?;
    tree::make(root, &package, program)?;
    deb::make(root, &package)
}

/// The tarball, the bill of materials, and the .rpm if `rpmbuild` is installed.
pub(crate) struct OtherPackages {
    pub(crate) tarball: PathBuf,
    pub(crate) bill: PathBuf,
    pub(crate) rpm: Option<PathBuf>,
}

/// Makes the other packages of a program of this machine, for tests.
pub(crate) fn others(
    root: &Path,
    program: &Path,
    out: &Path,
    version: &str,
) -> Result<OtherPackages> {
    let package = Package::new(&Source::of(root)?, program, out, version)?;
    tree::make(root, &package, program)?;
    Ok(OtherPackages {
        tarball: tree::archive(&package)?,
        bill: sbom::make(root, &package)?,
        rpm: rpm::make(root, &package)?,
    })
}

impl Package {
    fn new(source: &Source, program: &Path, out: &Path, version: &str) -> Result<Self> {
        std::fs::create_dir_all(out)?;
        Ok(Self {
            tree: out.join("tree"),
            out: out.to_owned(),
            version: version.to_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            glibc: build::glibc(program)?.to_string(),
            time: source.time.clone(),
        })
    }
}

fn version(root: &Path) -> Result<String> {
    let manifest = std::fs::read_to_string(root.join("Cargo.toml"))?;
    let line = manifest
        .lines()
        .find_map(|line| line.strip_prefix("version = \""));
    let version = line.and_then(|rest| rest.strip_suffix('"'));
    Ok(version.context("Cargo.toml has no version")?.to_owned())
}

fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("git");
    let text = output(command.args(arguments).current_dir(root))?;
    Ok(text.trim().to_owned())
}

/// What a command prints, if it succeeds.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot start {name}"))?;
    ensure!(
        output.status.success(),
        "{name} failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
