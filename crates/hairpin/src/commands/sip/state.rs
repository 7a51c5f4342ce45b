//! `hairpin sip bindings`, `hairpin sip remove`, `hairpin sip calls` and `hairpin sip trunks`: the SIP state of a
//! running server.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use crate::cli::sip::{Bindings, Calls, Remove, Trunks};
use crate::commands::control::{ask_with, refused};
use crate::commands::output::{self, printable};
use crate::config::{plural, write_seconds};
use crate::control::protocol::Command;

/// Runs `hairpin sip bindings`.
pub(super) fn bindings(args: &Bindings) -> Result<ExitCode> {
    let mut left = args.limit.unwrap_or(usize::MAX);
    let mut arguments = json!({ "aor": args.aor, "search": args.search, "after": null });
    while left > 0 {
        let reply = match ask_with(&args.target, Command::SipBindings, &arguments)? {
            Ok(reply) => reply,
            Err(refusal) => return Ok(refused(&refusal)),
        };
        let list = list(&reply["bindings"]);
        let shown: String = list.iter().take(left).map(|it| line(it, args)).collect();
        left = left.saturating_sub(list.len());
        output::print(&shown)?;
        if reply["next"].is_null() {
            break;
        }
        arguments["after"] = reply["next"].clone();
    }
    Ok(ExitCode::SUCCESS)
}

fn line(binding: &Value, args: &Bindings) -> String {
    if args.json {
        return format!("{binding}\n");
    }
    let mut parts = vec![
        text(&binding["aor"]),
        format!("<{}>", text(&binding["contact"])),
    ];
    if let (Some(transport), Some(remote)) =
        (binding["transport"].as_str(), binding["remote"].as_str())
    {
        parts.push(format!("{transport} {remote}"));
    }
    let path = text(&binding["path"]);
    if !path.is_empty() {
        parts.push(format!("path {path}"));
    }
    parts.push(format!("expires in {}", seconds(&binding["expires_s"])));
    if let Some(q) = binding["q"].as_f64() {
        parts.push(format!("q {q}"));
    }
    let instance = text(&binding["instance"]);
    if !instance.is_empty() {
        parts.push(format!("instance {instance}"));
    }
    if let Some(reg_id) = binding["reg_id"].as_u64() {
        parts.push(format!("reg-id {reg_id}"));
    }
    let agent = text(&binding["user_agent"]);
    if !agent.is_empty() {
        parts.push(format!("user agent {agent}"));
    }
    parts.join("  ") + "\n"
}

/// Runs `hairpin sip remove`.
pub(super) fn remove(args: &Remove) -> Result<ExitCode> {
    let arguments = json!({ "aor": args.aor, "contact": args.contact });
    let reply = match ask_with(&args.target, Command::SipRemove, &arguments)? {
        Ok(reply) => reply,
        Err(refusal) => return Ok(refused(&refusal)),
    };
    let removed = usize::try_from(reply["removed"].as_u64().unwrap_or(0))?;
    output::print(&format!("{} removed\n", plural(removed, "binding")))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `hairpin sip calls`.
pub(super) fn calls(args: &Calls) -> Result<ExitCode> {
    let (mut left, mut total) = (args.limit.unwrap_or(usize::MAX), 0);
    let mut arguments = json!({ "after": null });
    while left > 0 {
        let reply = match ask_with(&args.target, Command::SipCalls, &arguments)? {
            Ok(reply) => reply,
            Err(refusal) => return Ok(refused(&refusal)),
        };
        let list = list(&reply["calls"]);
        let shown = list.iter().take(left).map(|call| match args.json {
            true => format!("{call}\n"),
            false => self::call(call),
        });
        output::print(&shown.collect::<String>())?;
        left = left.saturating_sub(list.len());
        total += list.len();
        if reply["next"].is_null() {
            let (dialogs, requests) = (&reply["dialogs"], &reply["requests"]);
            if total == 0 {
                eprintln!(
                    "no recorded call; {dialogs} dialogs count, {requests} requests in progress (calls are recorded with sip.call_log)"
                );
            }
            break;
        }
        arguments["after"] = reply["next"].clone();
    }
    Ok(ExitCode::SUCCESS)
}

fn call(call: &Value) -> String {
    let side = |name: &str| {
        let at = |part: &str| text(&call[format!("{name}{part}")]);
        let (address, transport) = (at("_address"), at("_transport"));
        format!("{} ({transport} {address})", at(""))
    };
    let seconds = call["lasted_ms"].as_u64().unwrap_or(0) / 1000;
    let target = match call["target_address"].is_null() {
        true => format!("{} tried", call["tried"]),
        false => side("target"),
    };
    format!(
        "{}  {} for {}  {} to {}  {} -> {target}\n",
        text(&call["call_id"]),
        text(&call["state"]),
        write_seconds(seconds),
        text(&call["from"]),
        text(&call["to"]),
        side("source"),
    )
}

/// Runs `hairpin sip trunks`.
pub(super) fn trunks(args: &Trunks) -> Result<ExitCode> {
    let reply = match ask_with(&args.target, Command::SipTrunks, &Value::Null)? {
        Ok(reply) => reply,
        Err(refusal) => return Ok(refused(&refusal)),
    };
    let list = list(&reply["trunks"]);
    let shown: String = match args.json {
        true => list.iter().map(|trunk| format!("{trunk}\n")).collect(),
        false => list.iter().map(trunk).collect(),
    };
    output::print(&shown)?;
    Ok(ExitCode::from(u8::from(!list.iter().all(is_usable))))
}

/// Whether a trunk has an address that gets calls, or no addresses at all.
fn is_usable(trunk: &Value) -> bool {
    let addresses = list(&trunk["addresses"]);
    let is_up = |address: &Value| matches!(address["state"].as_str(), Some("up" | "slow_start"));
    addresses.is_empty() || addresses.iter().any(is_up)
}

fn trunk(trunk: &Value) -> String {
    let name = trunk["name"]
        .as_str()
        .map_or("(unnamed)".to_owned(), printable);
    let registered = match trunk["registered"].as_bool() {
        Some(true) => ", registered",
        Some(false) => ", not registered",
        None => "",
    };
    let number = |name: &str| trunk[name].as_u64().unwrap_or(0);
    let mut lines = format!(
        "{name}{registered}: {} requests, {} without response, {} moved on, {} limited, {} calls to it, {} from it\n",
        number("requests"),
        number("silent"),
        number("moved_on"),
        number("limited"),
        number("calls"),
        number("calls_from"),
    );
    for address in list(&trunk["addresses"]) {
        lines += &format!(
            "  {}  {}{}{}\n",
            text(&address["uri"]),
            text(&address["state"]),
            details(address),
            last_error(address),
        );
    }
    lines
}

fn details(address: &Value) -> String {
    match (address["state"].as_str(), address["retry_after_s"].as_f64()) {
        (Some("paused"), Some(left)) => format!(", {left} s left"),
        (Some("slow_start"), _) => {
            let share = address["share"].as_f64().unwrap_or(0.0) * 100.0;
            format!(", {share:.0} % of its calls")
        }
        (Some("down"), _) => format!(", {} failures in a row", address["failures"]),
        _ => String::new(),
    }
}

fn last_error(address: &Value) -> String {
    match address["last_error"].as_str() {
        Some(error) => format!(
            ", last error {} {} ago",
            printable(error),
            seconds(&address["last_error_age_s"])
        ),
        None => String::new(),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> String {
    printable(value.as_str().unwrap_or_default())
}

fn seconds(value: &Value) -> String {
    write_seconds(value.as_u64().unwrap_or(0))
}
