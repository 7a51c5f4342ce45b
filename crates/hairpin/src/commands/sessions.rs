//! `hairpin sessions`: the allocations of a running server.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use super::control::{ask_with, refused};
use super::output::{self, printable};
use crate::cli::sessions::{Command, Kill, List, Sessions};
use crate::config::{plural, write_seconds};
use crate::control::protocol::Command as Request;

/// Runs the command.
pub(crate) fn run(args: &Sessions) -> Result<ExitCode> {
    match &args.command {
        Some(Command::Kill(args)) => kill(args),
        None => list(&args.list),
    }
}

fn list(args: &List) -> Result<ExitCode> {
    let mut left = args.limit.unwrap_or(usize::MAX);
    let mut arguments = json!({ "user": args.user, "peer": args.peer, "after": null });
    while left > 0 {
        let page = match ask_with(&args.target, Request::Sessions, &arguments)? {
            Ok(page) => page,
            Err(refusal) => return Ok(refused(&refusal)),
        };
        let sessions = entries(&page);
        let shown = sessions.iter().take(left).map(|session| match args.json {
            true => format!("{session}\n"),
            false => line(session),
        });
        output::print(&shown.collect::<String>())?;
        left = left.saturating_sub(sessions.len());
        if page["next"].is_null() {
            break;
        }
        arguments["after"] = page["next"].clone();
    }
    Ok(ExitCode::SUCCESS)
}

fn line(session: &Value) -> String {
    let text = |name: &str| printable(session[name].as_str().unwrap_or_default());
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let relayed = session["relayed"].as_array().map(Vec::as_slice);
    let relayed = relayed.unwrap_or_default().iter();
    let relayed: Vec<_> = relayed.filter_map(Value::as_str).map(printable).collect();
    format!(
        "{}  {}  {} {} -> {}  {} B to peers, {} B to client  for {}, expires in {}\n",
        text("id"),
        text("user"),
        text("transport"),
        text("client"),
        relayed.join(","),
        number(&session["to_peers"]["bytes"]),
        number(&session["to_client"]["bytes"]),
        write_seconds(number(&session["age_s"])),
        write_seconds(number(&session["expires_in_s"])),
    )
}

fn kill(args: &Kill) -> Result<ExitCode> {
    if let Some(user) = &args.user {
        return kill_user(args, user);
    }
    let mut ended = 0;
    for id in &args.ids {
        let id = json!({ "id": id.to_string() });
        match ask_with(&args.target, Request::EndSession, &id)? {
            Ok(_) => ended += 1,
            Err(refusal) => drop(refused(&refusal)),
        }
    }
    output::print(&format!("{} ended\n", plural(ended, "session")))?;
    let is_all = ended > 0 && ended == args.ids.len();
    Ok(ExitCode::from(u8::from(!is_all)))
}

/// Ends the sessions of a user on all nodes.
fn kill_user(args: &Kill, user: &str) -> Result<ExitCode> {
    let asked = ask_with(&args.target, Request::EndUser, &json!({ "user": user }))?;
    let result = match asked {
        Ok(result) => result,
        Err(refusal) => return Ok(refused(&refusal)),
    };
    let count = |name: &str| usize::try_from(result[name].as_u64().unwrap_or(0)).unwrap_or(0);
    let (ended, others) = (count("ended"), count("other_nodes"));
    let mut text = format!("{} ended", plural(ended, "session"));
    if others > 0 {
        text = format!(
            "{text}; {} ordered to do the same",
            plural(others, "other node")
        );
    }
    output::print(&format!("{text}\n"))?;
    Ok(ExitCode::from(u8::from(ended + others == 0)))
}

fn entries(page: &Value) -> &[Value] {
    let sessions = page["sessions"].as_array();
    sessions.map(Vec::as_slice).unwrap_or_default()
}
