//! The packages, tried where they are meant for: a Debian that systemd has booted in a container, or in a virtual
//! machine.

mod archives;
mod containers;
mod helm;
mod system;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::dist;
use crate::tally::Tally;
use crate::{tools, workspace};

/// Two versions of the package: an upgrade goes from one to the other.
const VERSIONS: [(&str, &str); 2] = [("first.deb", "0.0.1"), ("second.deb", "0.0.2")];

/// The options of `cargo xtask packages`.
#[derive(Default, clap::Args)]
pub(crate) struct Options {
    /// Package this program instead of a release build
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Only try the .deb, in a virtual machine with a kernel of Debian. Without KVM, about six minutes
    #[arg(long)]
    machine: bool,
}

/// Makes packages of a release build, and tries them.
pub(crate) fn run(root: &Path, options: &Options) -> Result<Tally> {
    let mut tally = Tally::default();
    if !tools::is_root() {
        tally.skip("packages", "only root can boot a system");
        return Ok(tally);
    }
    let folder = workspace::target_dir(root).join("packages");
    fs::create_dir_all(&folder)?;
    let program = match &options.program {
        Some(program) => program.clone(),
        None => crate::cargo::release(root)?,
    };
    let mut packages = Vec::new();
    for (_, version) in VERSIONS {
        let out = folder.join(version);
        packages.push(dist::debian(root, &program, &out, version)?);
    }
    if options.machine {
        tools::ensure(&[tools::VM, tools::PACKAGES])?;
        let said = system::in_machine(root, &folder, &packages)?;
        system::judge(&said, "in a virtual machine", &mut tally);
        return Ok(tally);
    }
    tally.record(
        "two builds have the same bytes",
        &reproducible(root, &program, &folder),
    );
    tally.record("lintian", &lintian(&packages[0]));
    tally.record(
        "promtool: rules",
        &promtool(root, &["check", "rules", "alerts.yml"]),
    );
    tally.record(
        "promtool: each alert fires",
        &promtool(root, &["test", "rules", "alerts_test.yml"]),
    );
    archives::run(root, &folder, &program, &mut tally);
    helm::run(root, &folder, &mut tally);
    containers::run(root, &folder, &program, &mut tally);
    let said = system::in_container(root, &folder, &packages)?;
    system::judge(&said, "booted with systemd", &mut tally);
    Ok(tally)
}

/// Packs the same program once more, and compares the packages.
fn reproducible(root: &Path, program: &Path, folder: &Path) -> Result<String> {
    let version = VERSIONS[0].1;
    let again = dist::debian(root, program, &folder.join("again"), version)?;
    let name = again.file_name().context("a package without a name")?;
    let (one, two) = (
        fs::read(folder.join(version).join(name))?,
        fs::read(&again)?,
    );
    ensure!(one == two, "the two .deb files differ");
    Ok(format!("{} bytes", one.len()))
}

fn lintian(package: &Path) -> Result<String> {
    let mut command = Command::new("lintian");
    command.args(["--allow-root", "--fail-on", "error,warning"]);
    let said = finish(command.arg(package))?;
    Ok(said
        .lines()
        .next()
        .unwrap_or("no errors and no warnings")
        .to_owned())
}

fn promtool(root: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("promtool");
    let said = finish(
        command
            .args(arguments)
            .current_dir(root.join("deploy/prometheus")),
    )?;
    Ok(said.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// What a command prints, if it succeeds; else its output is the error.
fn finish(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot start {name}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{name}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text)
}
