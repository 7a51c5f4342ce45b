//! The container image, built without a registry, and run by podman with and without capabilities. A second container
//! takes over from the first one.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::finish;
use crate::process::{self, Ended, Process};
use crate::tally::Tally;

const IMAGE: &str = "localhost/hairpin:test";

/// How long a server may take to start on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a server may take to end after its last client: SIP transactions last for 32 s.
const END_TIMEOUT: Duration = Duration::from_secs(180);

/// The health check of the image. podman ignores it in an OCI image, so it is an option; without an interval, only
/// `podman healthcheck run` starts it.
const HEALTH_OPTIONS: [&str; 2] = [
    r#"--health-cmd=["/usr/bin/hairpin", "status"]"#,
    "--health-interval=disable",
];

/// Capabilities that a container may have, and what relays then on its loopback interface.
const CAPABILITY_CASES: [(&str, &[&str], &str); 3] = [
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

/// The configuration of the servers, in addition to `--dev`.
const SERVER_CONFIG: &str = r#"
[listen]
udp = ["127.0.0.1:3478"]
[auth]
users = [{ name = "alice", password = "password" }]
[sip]
listen = ["127.0.0.1:5060"]
[[sip.domain]]
name = "example.org"
users = [{ name = "u0", password = "pw0" }, { name = "u1", password = "pw1" }]
[server]
workers = 2
"#;

const PROBE_ARGUMENTS: [&str; 4] = ["probe", "turn", "127.0.0.1:3478", "--user=alice:password"];

/// Arguments of two phones that call each other through the server. No call may fail.
const CALL_ARGUMENTS: [&str; 15] = [
    "load",
    "sip",
    "127.0.0.1:5060",
    "--workload=proxy",
    "--aors=2",
    "--clients=2",
    "--user=u{n}:pw{n}",
    "--domain=example.org",
    "--rate=10/s",
    "--duration=2s",
    "--warm-up=0s",
    "--linger=30s",
    "--fail-if=loss>0",
    "--no-tui",
    "--json=-",
];

/// Arguments of clients that relay until they are stopped. No datagram may be lost.
const RELAY_ARGUMENTS: [&str; 9] = [
    "load",
    "turn",
    "127.0.0.1:3478",
    "--user=alice:password",
    "--clients=5",
    "--rate=200/s",
    "--duration=10m",
    "--fail-if=loss>0",
    "--no-tui",
];

/// podman, with its files in the folder of the test.
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
    let podman = Podman(&folder);
    for (name, options, method) in CAPABILITY_CASES {
        let outcome = relays(&podman, options, method);
        tally.record(&format!("container {name}"), &outcome);
    }
    let outcome = takes_over(&podman, program);
    tally.record("container of another image takes over", &outcome);
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

/// A server in a container whose root file system is read-only.
struct ContainerServer<'a> {
    podman: &'a Podman<'a>,
    name: &'static str,
    process: Process,
}

impl<'a> ContainerServer<'a> {
    fn start(
        podman: &'a Podman<'a>,
        name: &'static str,
        options: &[&str],
        arguments: &[&str],
    ) -> Result<Self> {
        let config = podman.0.join("test.toml");
        fs::write(&config, SERVER_CONFIG)?;
        let mut command = podman.command();
        command
            .args(["run", "--rm", "--read-only", "--name", name])
            .arg(format!(
                "--volume={}:/etc/hairpin/test.toml:ro",
                config.display()
            ))
            // podman would raise limits, which a confined root may not do.
            .args(["--ulimit=nofile=20000:20000", "--ulimit=nproc=10000:10000"])
            .args(options)
            .args(HEALTH_OPTIONS)
            .args([IMAGE, "serve", "--dev", "--config=/etc/hairpin/test.toml"])
            .args(arguments);
        let process = Process::start(name, command, podman.0.join(format!("{name}.log")))?;
        Ok(ContainerServer {
            podman,
            name,
            process,
        })
    }

    /// Runs the program in the container.
    fn exec(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.podman.command();
        command.args(["exec", self.name, "/usr/bin/hairpin"]);
        finish(command.args(arguments))
    }

    fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.exec(&["status", "--json"])?)?)
    }

    fn is_healthy(&self) -> Result<String> {
        let mut command = self.podman.command();
        finish(command.args(["healthcheck", "run", self.name])).context("the health check")
    }

    /// Stops the server, and adds its log to an error.
    fn end(self, outcome: Result<String>) -> Result<String> {
        let mut command = self.podman.command();
        let stopped = finish(command.args(["stop", "--ignore", "--time=5", self.name]));
        let log = self.process.output();
        let detail = outcome.with_context(|| format!("{} says: {log}", self.name))?;
        stopped?;
        Ok(detail)
    }
}

/// A server that relays, is healthy, and has phones that call each other.
fn relays(podman: &Podman<'_>, options: &[&str], method: &str) -> Result<String> {
    let options = [&["--network=none"][..], options].concat();
    let server = ContainerServer::start(podman, "hairpin-test", &options, &[])?;
    let outcome = eventually(|| server.exec(&PROBE_ARGUMENTS))
        .and_then(|_| server.is_healthy())
        .and_then(|_| calls(&server.exec(&CALL_ARGUMENTS)?))
        .and_then(|calls| {
            let wanted = format!("\"method\":\"{method}\"");
            ensure!(server.process.output().contains(&wanted), "no {wanted}");
            Ok(format!("relays ({method}), is healthy, {calls} calls"))
        });
    server.end(outcome)
}

/// How many calls a report has.
fn calls(report: &str) -> Result<u64> {
    let report: Value = serde_json::from_str(report).context("the report of calls")?;
    let ended = report["sip"]["callees"]["answered"]["bye"].as_u64();
    let ended = ended.context("the report has no calls")?;
    ensure!(ended > 0, "no call was answered: {report}");
    Ok(ended)
}

/// The network that two containers share, as containers share that of their host.
struct ContainerNetwork(String);

impl ContainerNetwork {
    fn new() -> Result<Self> {
        let name = format!("hairpin-packages-{}", std::process::id());
        let ip = |arguments: &[&str]| finish(Command::new("ip").args(arguments));
        ip(&["netns", "add", &name])?;
        let network = ContainerNetwork(name);
        ip(&["-n", &network.0, "link", "set", "lo", "up"])?;
        Ok(network)
    }

    /// A command of this machine in that network.
    fn command(&self, program: &Path) -> Command {
        let mut command = process::command("ip");
        command.args(["netns", "exec", &self.0]).arg(program);
        command
    }
}

impl Drop for ContainerNetwork {
    fn drop(&mut self) {
        let mut command = Command::new("ip");
        let _ = command.args(["netns", "delete", &self.0]).status();
    }
}

/// An upgrade: a second container takes over from the first one, by the control socket in a volume that both have.
fn takes_over(podman: &Podman<'_>, program: &Path) -> Result<String> {
    let [.., (_, capabilities, _)] = CAPABILITY_CASES;
    let network = ContainerNetwork::new()?;
    let place = format!("--network=ns:/run/netns/{}", network.0);
    let shared = [&place[..], "--volume=hairpin-run:/run/hairpin"];
    let options = [&shared[..], capabilities].concat();
    let mut first = ContainerServer::start(podman, "hairpin-first", &options, &[])?;
    let outcome = relays_over_both(&network, program, &mut first, &options);
    let outcome = first.end(outcome);
    let mut volume = podman.command();
    let removed = finish(volume.args(["volume", "rm", "--force", "hairpin-run"]));
    let detail = outcome?;
    removed?;
    Ok(detail)
}

/// Starts clients at the first server, and then the second server. No datagram of the clients is lost, and the first
/// server ends by itself.
fn relays_over_both(
    network: &ContainerNetwork,
    program: &Path,
    first: &mut ContainerServer<'_>,
    options: &[&str],
) -> Result<String> {
    eventually(|| first.status())?;
    let mut command = network.command(program);
    command.args(RELAY_ARGUMENTS);
    let log = first.podman.0.join("relaying.log");
    let mut relaying = Process::start("hairpin load", command, log)?;
    eventually(|| {
        let allocations = first.status()?["allocations"].as_u64();
        ensure!(allocations >= Some(5), "the clients have no allocations");
        Ok(())
    })?;
    let second = ContainerServer::start(first.podman, "hairpin-second", options, &["--take-over"])?;
    let outcome = eventually(|| {
        let status = second.status()?;
        ensure!(
            status["predecessor"].is_object(),
            "it has not taken over: {status}"
        );
        Ok(())
    })
    .and_then(|()| {
        let mut phones = network.command(program);
        let calls = calls(&finish(phones.args(CALL_ARGUMENTS))?)?;
        // It stops, and reports.
        relaying.signal(Signal::SIGINT)?;
        let ended = relaying.wait(START_TIMEOUT)?;
        let is_whole = matches!(ended, Ended::Exited(status) if status.success());
        ensure!(is_whole, "{ended:?}: {}", relaying.tail());
        let ended = first.process.wait(END_TIMEOUT)?;
        ensure!(ended != Ended::Killed, "the first server does not end");
        second.is_healthy()?;
        Ok(format!(
            "no datagram is lost, {calls} calls, and the first one ends"
        ))
    });
    second.end(outcome)
}

fn eventually<T>(mut work: impl FnMut() -> Result<T>) -> Result<T> {
    let end = Instant::now() + START_TIMEOUT;
    loop {
        match work() {
            Err(error) if Instant::now() >= end => bail!("{error:#}"),
            Err(_) => std::thread::sleep(Duration::from_millis(300)),
            done => return done,
        }
    }
}
