//! `cargo xtask dist`: packages of one program, as files in a folder. Two runs for the same commit write the same
//! bytes.

mod deb;
mod rpm;
mod sbom;
mod tree;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::tally::Tally;

/// The oldest C library that the packages require, without a program of the caller.
const GLIBC: &str = "2.31";

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
    let mut tally = Tally::default();
    let program = match &options.program {
        Some(program) => program.clone(),
        None => build(root, options)?,
    };
    let package = Package::new(root, &program, &root.join(&options.out), &version(root)?)?;
    let package = Package {
        architecture: options.architecture.clone(),
        ..package
    };
    tree::make(root, &package, &program)?;
    for made in [
        deb::make(root, &package)?,
        tree::archive(&package)?,
        sbom::make(root, &package)?,
    ] {
        println!("{}", made.display());
        tally.passed += 1;
    }
    match rpm::make(root, &package)? {
        Some(made) => {
            println!("{}", made.display());
            tally.passed += 1;
        }
        None => tally.skip(".rpm", "rpmbuild is not installed (Debian: rpm)"),
    }
    Ok(tally)
}

/// Makes a .deb of a program of this machine, for tests.
pub(crate) fn debian(root: &Path, program: &Path, out: &Path, version: &str) -> Result<PathBuf> {
    let package = Package::new(root, program, out, version)?;
    tree::make(root, &package, program)?;
    deb::make(root, &package)
}

/// The tarball, the bill of materials, and the .rpm if `rpmbuild` is installed.
pub(crate) struct Others {
    pub(crate) tarball: PathBuf,
    pub(crate) bill: PathBuf,
    pub(crate) rpm: Option<PathBuf>,
}

/// Makes the other packages of a program of this machine, for tests.
pub(crate) fn others(root: &Path, program: &Path, out: &Path, version: &str) -> Result<Others> {
    let package = Package::new(root, program, out, version)?;
    tree::make(root, &package, program)?;
    Ok(Others {
        tarball: tree::archive(&package)?,
        bill: sbom::make(root, &package)?,
        rpm: rpm::make(root, &package)?,
    })
}

impl Package {
    fn new(root: &Path, program: &Path, out: &Path, version: &str) -> Result<Self> {
        std::fs::create_dir_all(out)?;
        Ok(Self {
            tree: out.join("tree"),
            out: out.to_owned(),
            version: version.to_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            glibc: glibc(program)?,
            time: git(root, &["log", "-1", "--format=%ct"])?,
        })
    }
}

/// Builds the release program without debug information.
fn build(root: &Path, options: &Options) -> Result<PathBuf> {
    let commit = git(root, &["rev-parse", "--short=12", "HEAD"])?;
    let time = git(root, &["log", "-1", "--format=%ct"])?;
    let target = format!("{}-unknown-linux-gnu", options.architecture);
    let mut command = Command::new("cargo");
    let (verb, built_for) = match options.native {
        true => ("build", target.clone()),
        false => ("zigbuild", format!("{target}.{GLIBC}")),
    };
    command
        .args([
            verb,
            "--release",
            "--locked",
            "--package",
            "hairpin",
            "--target",
            &built_for,
        ])
        .current_dir(root)
        .env("HAIRPIN_COMMIT", commit)
        .env("SOURCE_DATE_EPOCH", time)
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        // Paths of this machine would make two machines' programs differ.
        .env(
            "RUSTFLAGS",
            format!("--remap-path-prefix={}=/hairpin", root.display()),
        );
    let status = command.status().context("cargo does not start")?;
    ensure!(
        status.success(),
        "cargo {verb} failed. It requires cargo-zigbuild and zig (pip install cargo-zigbuild ziglang), or use --native"
    );
    let folder =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(folder.join(target).join("release/hairpin"))
}

/// The newest GLIBC_x.y that the program requires.
fn glibc(program: &Path) -> Result<String> {
    let mut command = Command::new("objdump");
    let text = output(command.arg("-T").arg(program))?;
    let number = |version: &str| -> Option<(u32, u32)> {
        let (major, minor) = version.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    };
    let newest = text
        .split("GLIBC_")
        .skip(1)
        .filter_map(|rest| {
            number(
                rest.split(|c: char| c != '.' && !c.is_ascii_digit())
                    .next()?,
            )
        })
        .max()
        .with_context(|| format!("{} uses no symbol of glibc", program.display()))?;
    Ok(format!("{}.{}", newest.0, newest.1))
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
