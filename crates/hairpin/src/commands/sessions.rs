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
        "{}  {}  {} {} -> {}  {} B to peers, {} B to client  for {}, expires in {}{}\n",
        text("id"),
        text("user"),
        text("transport"),
        text("client"),
        relayed.join(","),
        number(&session["to_peers"]["bytes"]),
        number(&session["to_client"]["bytes"]),
        write_seconds(number(&session["age_s"])),
        write_seconds(number(&session["expires_in_s"])),
        data_connections(session),
    )
}

/// How many data connections a TCP allocation has, and for how long no byte has passed; nothing for other allocations.
fn data_connections(session: &Value) -> String {
    let connections = session["data_connections"].as_array();
    let connections = connections.map(Vec::as_slice).unwrap_or_default();
    let idle = connections
        .iter()
        .map(|it| it["idle_s"].as_u64().unwrap_or(0));
    let (Some(least), Some(most)) = (idle.clone().min(), idle.max()) else {
        return String::new();
    };
    // A server of an earlier release does not send it.
    let omitted = session["data_connections_omitted"].as_u64().unwrap_or(0);
    let omitted = usize::try_from(omitted).unwrap_or(usize::MAX);
    let count = plural(connections.len().saturating_add(omitted), "data connection");
    let least = write_seconds(least);
    let idle = match write_seconds(most) {
        most if most == least => least,
        most => format!("{least} to {most}"),
    };
    match omitted {
        0 => format!("  {count}, idle for {idle}"),
        _ => format!("  {count} ({omitted} omitted), idle for {idle}"),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_idle_times_of_data_connections() {
        let idle = |idle: &[u64]| {
            let all: Vec<_> = idle.iter().map(|idle| json!({ "idle_s": idle })).collect();
            line(&json!({ "id": "0-17-3", "expires_in_s": 600, "data_connections": all }))
        };
        let text = idle(&[]);
        assert!(text.ends_with("expires in 10m\n"), "{text}");
        let text = idle(&[5]);
        assert!(
            text.ends_with("expires in 10m  1 data connection, idle for 5s\n"),
            "{text}"
        );
        let text = idle(&[70, 0, 3]);
        assert!(
            text.ends_with("  3 data connections, idle for 0s to 1m10s\n"),
            "{text}"
        );
        let connections = [json!({ "idle_s": 5 }), json!({ "idle_s": 5 })];
        let text = line(&json!({ "data_connections": connections, "data_connections_omitted": 7 }));
        assert!(
            text.ends_with("  9 data connections (7 omitted), idle for 5s\n"),
            "{text}"
        );
        // A server of an earlier release sends no such list.
        let text = line(&json!({ "id": "0-17-3" }));
        assert!(text.ends_with("expires in 0s\n"), "{text}");
    }
}
