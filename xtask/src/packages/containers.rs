//! The container image, built without a registry, and run by podman with and without capabilities.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::finish;
use crate::process::{self, Process};
use crate::tally::Tally;

const IMAGE: &str = "localhost/hairpin:test";

/// How long a server may take to start on a busy machine.
const START: Duration = Duration::from_secs(60);

/// The health check of the image. podman ignores it in an OCI image, so it is an option; without an interval, only
/// `podman healthcheck run` starts it.
const HEALTH: [&str; 2] = [
    r#"--health-cmd=["/usr/bin/hairpin", "status"]"#,
    "--health-interval=disable",
];

/// Capabilities that a container may have, and what relays then on its loopback interface.
const CASES: [(&str, &[&str], &str); 3] = [
    ("without capabilities", &["--cap-drop=all"], "user"),
    (
        "without capabilities and without new privileges",
        &["--cap-drop=all", "--security-opt=no-new-privileges"],
        "user",
    ),
    (
        "with capabilities",
        &[
            "--cap-drop=all",
            "--cap-add=bpf,net_admin,perfmon,net_bind_service",
            "--security-opt=seccomp=unconfined",
        ],
        "tc",
    ),
];

/// podman with its files in the test's folder.
struct Podman<'a>(&'a Path);

impl Podman<'_> {
    fn command(&self) -> Command {
        self.with_options(process::command("podman"))
    }

    fn with_options(&self, mut command: Command) -> Command {
        command
            .args([
                "--cgroup-manager=cgroupfs",
                "--storage-driver=vfs",
                "--runtime=runc",
            ])
            .arg("--root")
            .arg(self.0.join("store"))
            .arg("--runroot")
            .arg(self.0.join("run"));
        command
    }
}

/// Builds the image twice and runs it.
pub(super) fn run(root: &Path, folder: &Path, program: &Path, tally: &mut Tally) {
    let folder = folder.join("container");
    let loaded = build(root, &folder, program);
    tally.record("container image: two builds have the same bytes", &loaded);
    if loaded.is_err() {
        return;
    }
    for (name, options, means) in CASES {
        let outcome = relays(&Podman(&folder), &folder, options, means);
        tally.record(&format!("container {name}"), &outcome);
    }
}

fn build(root: &Path, folder: &Path, program: &Path) -> Result<String> {
    fs::create_dir_all(folder)?;
    let stripped = folder.join("hairpin");
    finish(Command::new("strip").arg("-o").arg(&stripped).arg(program))?;
    let mut images = Vec::new();
    for name in ["one.tar", "two.tar"] {
        let image = folder.join(name);
        let mut command = Command::new(root.join("deploy/container/build-image.sh"));
        finish(command.arg(&stripped).arg(&image).arg("test"))?;
        images.push(image);
    }
    let (one, two) = (fs::read(&images[0])?, fs::read(&images[1])?);
    ensure!(one == two, "the two images differ");
    finish(
        Podman(folder)
            .command()
            .arg("load")
            .arg("--input")
            .arg(&images[0]),
    )?;
    Ok(format!("{} bytes", one.len()))
}

/// A server in a container whose root file system is read-only, and a probe inside it.
fn relays(podman: &Podman<'_>, folder: &Path, options: &[&str], means: &str) -> Result<String> {
    const NAME: &str = "hairpin-test";
    let mut command = podman.command();
    command
        .args([
            "run",
            "--rm",
            "--read-only",
            "--network=none",
            "--name",
            NAME,
        ])
        // podman would raise limits, which a confined root may not do.
        .args(["--ulimit=nofile=20000:20000", "--ulimit=nproc=10000:10000"])
        .args(options)
        .args(HEALTH)
        .args([
            IMAGE,
            "serve",
            "--dev",
            "--listen=127.0.0.1:3478",
            "--user=alice:password",
        ]);
    let server = Process::start("container", command, folder.join("container.log"))?;
    let probe = || {
        let mut probe = podman.command();
        probe.args([
            "exec",
            NAME,
            "/usr/bin/hairpin",
            "probe",
            "turn",
            "127.0.0.1:3478",
            "--user=alice:password",
        ]);
        finish(&mut probe)
    };
    let healthy =
        |_| finish(podman.command().args(["healthcheck", "run", NAME])).context("the health check");
    let outcome = eventually(probe).and_then(healthy);
    let log = fs::read_to_string(folder.join("container.log")).unwrap_or_default();
    let stopped = finish(podman.command().args(["stop", "--time=5", NAME]));
    drop(server);
    outcome.with_context(|| format!("the log says: {log}"))?;
    stopped?;
    let wanted = format!("\"means\":\"{means}\"");
    ensure!(log.contains(&wanted), "no {wanted} in the log: {log}");
    Ok(format!("relays ({means}) and is healthy"))
}

fn eventually(mut work: impl FnMut() -> Result<String>) -> Result<String> {
    let end = Instant::now() + START;
    loop {
        match work() {
            Err(error) if Instant::now() >= end => bail!("{error:#}"),
            Err(_) => std::thread::sleep(Duration::from_millis(300)),
            done => return done,
        }
    }
}
