//! `hairpin status`, `hairpin reload` and `hairpin drain`: they send a command to a running server, and print its
//! response.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::output::{self, Lines, printable};
use super::upgrade;
use crate::api_client::verbs;
use crate::cli::control::{Drain, Reload, Status, Target, Upgrade};
use crate::config::{plural, write_seconds};
use crate::control::client;
use crate::control::protocol::{Command, Refusal, Reply};

/// How often `drain --wait` asks what is left.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Runs `hairpin status`.
pub(crate) fn status(args: &Status) -> Result<ExitCode> {
    let status = match ask(&args.target, Command::Status)? {
        Ok(status) => status,
        Err(refusal) => return Ok(refused(&refusal)),
    };
    let text = if args.json {
        format!("{status}\n")
    } else {
        describe(&status)
    };
    output::print(&text)?;
    let healthy = status["healthy"] == Value::Bool(true);
    Ok(ExitCode::from(u8::from(!healthy)))
}

/// Runs `hairpin reload`.
pub(crate) fn reload(args: Reload) -> Result<ExitCode> {
    if args.or_upgrade && args.target.remote.api.is_some() {
        bail!(
            "--or-upgrade compares the program of the server with this one: run it on the machine of the server, or use hairpin upgrade --api"
        );
    }
    if args.or_upgrade && upgrade::is_other_program(&args.target)? {
        return upgrade::run(&Upgrade::to_this_program(args.target));
    }
    let result = match ask(&args.target, Command::Reload)? {
        Ok(result) => result,
        Err(refusal) => return Ok(refused(&refusal)),
    };
    for warning in texts(&result["warnings"]) {
        eprintln!("{warning}");
    }
    let waiting = texts(&result["needs_restart"]);
    if !waiting.is_empty() {
        eprintln!("needs a restart to take effect: {}", waiting.join(", "));
    }
    output::print("configuration reloaded\n")?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `hairpin drain`.
pub(crate) fn drain(args: &Drain) -> Result<ExitCode> {
    if args.cancel {
        return end_drain(&args.target);
    }
    if let Err(refusal) = ask(&args.target, Command::Drain)? {
        return Ok(refused(&refusal));
    }
    let started = Instant::now();
    loop {
        let status = match ask(&args.target, Command::Status) {
            Ok(Ok(status)) => status,
            Ok(Err(refusal)) => return Ok(refused(&refusal)),
            Err(error) => return Err(error.context("the server has ended while it drained")),
        };
        let left = RemainingWork::of(&status);
        if left.is_empty() {
            output::print("drained: nothing is left\n")?;
            return Ok(ExitCode::SUCCESS);
        }
        if !args.wait {
            output::print(&format!("draining: {left}\n"))?;
            return Ok(ExitCode::SUCCESS);
        }
        if args.timeout.is_some_and(|limit| started.elapsed() >= limit) {
            let limit = write_seconds(started.elapsed().as_secs());
            eprintln!("error: not drained within {limit}: {left}");
            return Ok(ExitCode::FAILURE);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Runs `hairpin drain --cancel`.
fn end_drain(target: &Target) -> Result<ExitCode> {
    if let Err(refusal) = ask(target, Command::EndDrain)? {
        return Ok(refused(&refusal));
    }
    output::print("serving: new clients are admitted\n")?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn ask(target: &Target, command: Command) -> Result<Reply> {
    ask_with(target, command, &Value::Null)
}

pub(super) fn ask_with(target: &Target, command: Command, arguments: &Value) -> Result<Reply> {
    if let Some(client) = target.remote.client()? {
        return verbs::ask(client, command, arguments);
    }
    let path = target
        .path()
        .context("the control socket is off: the server cannot be reached")?;
    client::ask(&path, command, arguments)
}

/// Says what the server refused.
pub(super) fn refused(refusal: &Refusal) -> ExitCode {
    eprintln!("error: {}", printable(&refusal.error));
    for mistake in &refusal.mistakes {
        eprintln!("  {}", printable(mistake));
    }
    ExitCode::FAILURE
}

/// The texts of a list.
fn texts(list: &Value) -> Vec<String> {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter()
        .filter_map(Value::as_str)
        .map(printable)
        .collect()
}

/// A status for a person.
fn describe(status: &Value) -> String {
    let mut lines = Lines::default();
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let uptime = write_seconds(number(&status["uptime_s"]));
    let (pid, version) = (&status["pid"], text(&status["version"]));
    lines.line(
        "state",
        format!(
            "{}, process {pid}, up {uptime}, version {version}",
            text(&status["state"])
        ),
    );
    lines.line("health", text(&status["health"]));
    if let Some(file) = status["config_file"].as_str() {
        let outcome = match status["last_reload_successful"] {
            Value::Bool(false) => {
                " (the last reload was refused: the configuration before it applies)"
            }
            _ => "",
        };
        lines.line("config", format!("{file}{outcome}"));
    }
    lines.line(
        "workers",
        format!(
            "{}, steering {}",
            status["workers"],
            text(&status["steering"])
        ),
    );
    lines.line(
        "allocations",
        format!(
            "{}, with {} of {} relayed addresses",
            status["allocations"], status["relayed_addresses"], status["relayed_addresses_limit"]
        ),
    );
    let connections = &status["connections"];
    lines.line(
        "connections",
        format!(
            "tcp {}, tls {}, dtls {}",
            connections["tcp"], connections["tls"], connections["dtls"]
        ),
    );
    let sip = &status["sip"];
    lines.line(
        "sip",
        format!(
            "{} transactions, {} connections",
            sip["transactions"], sip["connections"]
        ),
    );
    if let Some(listeners) = status["listeners"].as_object() {
        for (kind, addresses) in listeners {
            for address in texts(addresses) {
                lines.line("listening", format!("{} {address}", kind.replace('_', " ")));
            }
        }
    }
    for interface in texts(&status["offload"]) {
        lines.line("offload", interface);
    }
    lines.finish()
}

/// What a drain waits for.
struct RemainingWork {
    allocations: u64,
    transactions: u64,
    connections: u64,
}

impl RemainingWork {
    fn of(status: &Value) -> Self {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        Self {
            allocations: number(&status["allocations"]),
            transactions: number(&status["sip"]["transactions"]),
            connections: number(&status["sip"]["connections"]),
        }
    }

    fn is_empty(&self) -> bool {
        self.allocations + self.transactions + self.connections == 0
    }
}

impl std::fmt::Display for RemainingWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counts = [
            (self.allocations, "allocation"),
            (self.transactions, "SIP transaction"),
            (self.connections, "SIP connection"),
        ];
        let said = counts.iter().filter(|(count, _)| *count > 0);
        let said: Vec<_> = said.map(|(count, what)| count_of(*count, what)).collect();
        write!(f, "{} left", said.join(", "))
    }
}

fn count_of(count: u64, what: &str) -> String {
    plural(usize::try_from(count).unwrap_or(usize::MAX), what)
}
