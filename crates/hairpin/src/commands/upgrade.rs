//! `hairpin upgrade`: starts a new process, which takes over from the running server.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use server::privileges::effective_user;

use super::control::{ask, refused};
use super::output;
use crate::api_client::Client;
use crate::cli::control::{Target, Upgrade};
use crate::control::protocol::Command;
use crate::control::upgrade::OURS;

/// How often the command asks whether the new process serves.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The same over the API, where each request is a connection.
const LOOK_OVER_API: Duration = Duration::from_millis(500);
/// How much longer than the server this command waits over the API.
const API_MARGIN: Duration = Duration::from_secs(10);

/// What a server needs to open its sockets and load its programs, for a user that is not root.
const CAPABILITIES: &str = "+bpf,+net_admin,+perfmon,+net_bind_service";

/// Runs the command.
pub(crate) fn run(args: &Upgrade) -> Result<ExitCode> {
    if let Some(client) = args.target.remote.client()? {
        return over_api(client, args);
    }
    let described = match ask(&args.target, Command::Describe)? {
        Ok(described) => described,
        Err(refusal) => return Ok(refused(&refusal)),
    };
    let program = match &args.program {
        Some(program) => program.clone(),
        None => {
            std::env::current_exe().context("this program has no path: name it with --program")?
        }
    };
    let mut child = command(program, &described)?
        .spawn()
        .context("the new process does not start")?;
    let before = described["pid"].as_u64().unwrap_or(0);
    let deadline = Instant::now() + args.timeout;
    while !serves(args, &mut child, before)? {
        if Instant::now() >= deadline {
            let _ = child.kill();
            let _ = child.wait();
            bail!(
                "the new process does not serve within the time: it was ended, and the old one serves as before"
            );
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let pid = child.id();
    output::print(&format!(
        "process {pid} serves; process {before} ends when its last client has gone\n"
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Has a server on another machine start the program that is installed there.
fn over_api(client: &Client, args: &Upgrade) -> Result<ExitCode> {
    if args.program.is_some() {
        bail!(
            "--program names a file of this machine: a server elsewhere starts the program that is installed there"
        );
    }
    let before = match ask(&args.target, Command::Status)? {
        Ok(status) => status["pid"].clone(),
        Err(refusal) => return Ok(refused(&refusal)),
    };
    let body = json!({ "timeout_s": args.timeout.as_secs() });
    let pid = match client.call("POST", "/upgrade", &[], Some(&body))? {
        Ok(started) => started["pid"].clone(),
        Err(refusal) => return Ok(refused(&refusal)),
    };
    // The server itself ends a process that does not serve in time.
    let deadline = Instant::now() + args.timeout + API_MARGIN;
    loop {
        // During the handover of the listener, both processes may fail to respond. So report an error only at the
        // timeout.
        let (status, error) = match ask(&args.target, Command::Status) {
            Ok(Ok(status)) => (status, None),
            Ok(Err(refusal)) => (Value::Null, Some(output::printable(&refusal.error))),
            Err(error) => (Value::Null, Some(format!("{error:#}"))),
        };
        if status["pid"] == pid {
            output::print(&format!(
                "process {pid} serves; process {before} ends when its last client has gone\n"
            ))?;
            return Ok(ExitCode::SUCCESS);
        }
        let upgrade = &status["upgrade"];
        if upgrade["pid"] == pid && upgrade["state"] == "failed" {
            let why = output::printable(upgrade["error"].as_str().unwrap_or_default());
            bail!("{why}; process {before} serves as before");
        }
        if Instant::now() >= deadline {
            match error {
                Some(error) => {
                    bail!("process {pid} was started, but its state is not known: {error}")
                }
                None => bail!(
                    "the new process does not serve within the time: hairpin status --api shows the state"
                ),
            }
        }
        std::thread::sleep(LOOK_OVER_API);
    }
}

/// Whether the server runs another program file than this process, so a reload would not be enough.
pub(crate) fn is_other_program(target: &Target) -> Result<bool> {
    // The reload reports a server that does not answer.
    let Ok(described) = ask(target, Command::Describe)? else {
        return Ok(false);
    };
    let own = std::fs::metadata("/proc/self/exe").context("the program of this process")?;
    let running = described["program"].as_array();
    let is_own = |running: &Vec<Value>| *running == [Value::from(own.dev()), own.ino().into()];
    Ok(running.is_some_and(|running| !is_own(running)))
}

/// Whether the new process has the control socket.
fn serves(args: &Upgrade, child: &mut Child, before: u64) -> Result<bool> {
    if let Some(status) = child.try_wait()? {
        bail!("the new process has ended ({status}): process {before} serves as before");
    }
    // Neither process may answer while the control socket changes hands.
    let Ok(Ok(status)) = ask(&args.target, Command::Status) else {
        return Ok(false);
    };
    Ok(status["pid"].as_u64() == Some(child.id().into()))
}

/// The command line of the running server, with the flags of a process that takes over.
fn command(program: PathBuf, described: &Value) -> Result<std::process::Command> {
    let user = described["user"]
        .as_u64()
        .context("the server does not say whose it is")?;
    let mut command = match user == u64::from(effective_user()) {
        true => std::process::Command::new(program),
        false => {
            let group = std::fs::metadata(format!("/proc/{}", described["pid"]))
                .context("the server is not on this machine")?
                .gid();
            let mut command = std::process::Command::new("setpriv");
            command
                .arg(format!("--reuid={user}"))
                .arg(format!("--regid={group}"))
                .arg("--init-groups")
                .arg(format!("--inh-caps={CAPABILITIES}"))
                .arg(format!("--ambient-caps={CAPABILITIES}"))
                .arg(program);
            command
        }
    };
    let arguments = described["arguments"].as_array().into_iter().flatten();
    let arguments = arguments.filter_map(Value::as_str);
    command.args(arguments.filter(|argument| !OURS.contains(argument)));
    command.args(OURS);
    let environment = described["environment"].as_object().into_iter().flatten();
    command.envs(environment.filter_map(|(name, value)| Some((name, value.as_str()?))));
    // Sockets of systemd belong to the process that systemd started; the new one gets copies.
    command.env_remove("LISTEN_PID");
    if let Some(directory) = described["directory"].as_str() {
        command.current_dir(directory);
    }
    command.stdin(std::process::Stdio::null());
    Ok(command)
}
