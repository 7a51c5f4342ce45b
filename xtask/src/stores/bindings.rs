//! Tests that SIP registration bindings in a database survive the end of the server (`sip.binding_database`).

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use super::checks;
use super::databases::{Database, DatabaseKind, finish};
use crate::interop::free_ports;
use crate::process::{self, Process};

/// How long the server may take for each step on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);
/// Users, each with one binding.
const USERS: usize = 10;

/// Ten users register. The server is killed, and has their bindings when it starts again.
pub(super) fn survive_kill(
    binary: &Path,
    logs: &Path,
    database: &Database,
    ports: &str,
) -> Result<String> {
    let name = database.kind.name();
    let folder = logs.join(format!("{name}-bindings"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)?;
    let sip = free_ports(2)?;
    // With SQLite, bindings and users are in different files.
    let url = match database.kind {
        DatabaseKind::Sqlite => format!("sqlite:{}", folder.join("bindings.db").display()),
        _ => database.url.clone(),
    };
    let mut text = format!(
        "[server]\nstate_dir = {:?}\n[cluster]\nnode = \"one\"\n[sip]\nlisten = [\"127.0.0.1:{sip}\"]\n\
         binding_database = \"{url}\"\n[[sip.domain]]\nname = \"example.org\"\nusers = [\n",
        folder.join("state")
    );
    for user in 0..USERS {
        let _ = writeln!(text, "{{ name = \"u{user}\", password = \"pw{user}\" }},");
    }
    text.push_str("]\n");
    let config = folder.join("hairpin.toml");
    std::fs::write(&config, text)?;
    let start = |run: &str| {
        let mut command = process::command(binary);
        command.args(["serve", "--dev", "--listen=127.0.0.1:0"]);
        command.args(["--relay-address=127.0.0.1", "--offload=off", "--workers=2"]);
        command.args(["--set=server.control_socket=off", "--config"]);
        command.arg(&config).arg(format!("--port-range={ports}"));
        let log = folder.join(format!("{run}.log"));
        let mut server = Process::start("hairpin", command, log)?;
        server.wait_for(STEP_TIMEOUT, |output| {
            output.contains("Stop with Ctrl-C").then_some(())
        })?;
        Ok::<_, anyhow::Error>(server)
    };
    let first = start("first")?;
    let target = format!("sip:127.0.0.1:{sip}");
    let mut load = Command::new(binary);
    load.args(["load", "sip", &target, "--workload", "register"]);
    load.args(["--user", "u{n}:pw{n}", "--domain", "example.org"]);
    load.args(["--closed", "1", "--aors", &USERS.to_string()]);
    load.args(["--runs", &USERS.to_string(), "--fail-if", "loss>0%"]);
    finish(&mut load).context("the users register")?;
    let begun = Instant::now();
    let count = "SELECT count(*) FROM hairpin_sip_binding WHERE node = 'one'";
    loop {
        let counted = checks::query(database.kind, &url, count)?;
        if counted
            .split_whitespace()
            .any(|word| word == USERS.to_string())
        {
            break;
        }
        ensure!(
            begun.elapsed() < STEP_TIMEOUT,
            "not all are saved: {counted}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let saved = begun.elapsed();
    first.signal(Signal::SIGKILL)?;
    drop(first);
    let second = start("second")?;
    let log = second.output();
    // The load may register a user from two of its sockets. Then the user has two bindings.
    let loaded = log.lines().find_map(loaded_bindings).unwrap_or_default();
    ensure!(loaded >= USERS as u64, "{loaded} bindings loaded: {log}");
    Ok(format!(
        "{loaded} bindings survive SIGKILL; saved within {:.1} s",
        saved.as_secs_f32()
    ))
}

/// The number of bindings in the log line of the start.
fn loaded_bindings(line: &str) -> Option<u64> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    (line["message"] == "bindings loaded").then(|| line["bindings"].as_u64())?
}
