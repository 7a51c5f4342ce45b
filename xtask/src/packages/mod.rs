//! The packages, tried where they are meant for: a Debian that systemd has booted in a container.

mod archives;
mod containers;
mod helm;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::dist;
use crate::process::{self, Ended, Process};
use crate::tally::Tally;
use crate::{tools, workspace};

/// Two versions of the package: an upgrade goes from one to the other.
const VERSIONS: [(&str, &str); 2] = [("first.deb", "0.0.1"), ("second.deb", "0.0.2")];

/// Debian's release; the oldest systemd that the unit is tried with.
const RELEASE: &str = "bookworm";

/// What the checks require beside a minimal system.
const INCLUDED: &str = "systemd,systemd-sysv,dbus,adduser,iproute2,libgcc-s1,procps";

/// The checks take a minute on a machine that does nothing else.
const CONTAINER_TIMEOUT: Duration = Duration::from_secs(400);

/// What `cargo xtask packages` is told.
#[derive(Default, clap::Args)]
pub(crate) struct Options {
    /// Package this program instead of a release build
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
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
    for line in booted(root, &folder, &packages)? {
        match line.split_once(' ') {
            Some(("ok", name)) => tally.record(name, &Ok("booted with systemd".to_owned())),
            Some(("FAIL", rest)) => {
                let (name, seen) = rest.split_once(": ").unwrap_or((rest, ""));
                tally.record(name, &Err(anyhow::anyhow!("{seen}")));
            }
            _ => println!("        {line}"),
        }
    }
    Ok(tally)
}

/// Packs the same program once more.
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

/// Boots a system, and returns what its checks printed.
fn booted(root: &Path, folder: &Path, packages: &[PathBuf]) -> Result<Vec<String>> {
    let pristine = folder.join("pristine");
    if !pristine.join("done").exists() {
        let _ = fs::remove_dir_all(&pristine);
        let mut command = Command::new("debootstrap");
        command
            .arg("--variant=minbase")
            .arg(format!("--include={INCLUDED}"));
        finish(command.arg(RELEASE).arg(&pristine))?;
        fs::write(pristine.join("done"), "")?;
    }
    let system = folder.join("system");
    let _ = fs::remove_dir_all(&system);
    finish(Command::new("cp").arg("-a").arg(&pristine).arg(&system))?;
    let test = folder.join("test");
    fs::create_dir_all(&test)?;
    for ((name, _), package) in VERSIONS.iter().zip(packages) {
        fs::copy(package, test.join(name))?;
    }
    fs::copy(root.join("interop/packages/run.sh"), test.join("run.sh"))?;
    fs::copy(
        root.join("interop/packages/test.service"),
        system.join("etc/systemd/system/test.service"),
    )?;
    let wants = system.join("etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants)?;
    let link = wants.join("test.service");
    if !link.exists() {
        std::os::unix::fs::symlink("/etc/systemd/system/test.service", &link)?;
    }
    let said = test.join("said");
    let _ = fs::remove_file(&said);
    let mut command = process::command("systemd-nspawn");
    command
        .args([
            "--register=no",
            "--keep-unit",
            "--boot",
            "--private-network",
        ])
        .arg("--capability=CAP_BPF,CAP_NET_ADMIN,CAP_PERFMON,CAP_NET_BIND_SERVICE")
        .arg("--system-call-filter=bpf perf_event_open")
        .arg(format!("--bind={}:/test", test.display()))
        .arg("--directory")
        .arg(&system);
    let mut container = Process::start("systemd-nspawn", command, folder.join("console.log"))?;
    let ended = container.wait(CONTAINER_TIMEOUT)?;
    let text = fs::read_to_string(&said).unwrap_or_default();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    if ended == Ended::Killed || lines.pop_if(|line| line == "end").is_none() {
        lines.push(format!(
            "FAIL the checks end: they did not; see {}",
            folder.join("console.log").display()
        ));
    }
    Ok(lines)
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
