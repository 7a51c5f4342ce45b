//! `hairpin sessions`: the allocations of a running server.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use super::control::{ask_with, refused};
use super::output::{self, printable};
use crate::cli::sessions::{Command, Kill, List, Sessions};
use crate::config::{plural, write_seconds};
use crate::control::protocol::{Command as Request, Refusal};

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
    let given: Vec<String> = args.ids.iter().map(ToString::to_string).collect();
    let ids = match &args.user {
        Some(user) => match of_user(args, user)? {
            Ok(ids) => ids,
            Err(refusal) => return Ok(refused(&refusal)),
        },
        None => given,
    };
    let mut ended = 0;
    for id in ids {
        match ask_with(&args.target, Request::EndSession, &json!({ "id": id }))? {
            Ok(_) => ended += 1,
            Err(refusal) => drop(refused(&refusal)),
        }
    }
    output::print(&format!("{} ended\n", plural(ended, "session")))?;
    let is_all = ended > 0 && (args.user.is_some() || ended == args.ids.len());
    Ok(ExitCode::from(u8::from(!is_all)))
}

/// The IDs of all sessions of a user.
fn of_user(args: &Kill, user: &str) -> Result<Result<Vec<String>, Refusal>> {
    let mut ids = Vec::new();
    let mut arguments = json!({ "user": user, "after": null });
    loop {
        let page = match ask_with(&args.target, Request::Sessions, &arguments)? {
            Ok(page) => page,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let sessions = entries(&page).iter();
        let own = sessions.filter(|session| is_of(session["user"].as_str(), user));
        ids.extend(own.filter_map(|session| session["id"].as_str().map(str::to_owned)));
        if page["next"].is_null() {
            return Ok(Ok(ids));
        }
        arguments["after"] = page["next"].clone();
    }
}

/// Whether a name is that of the user, or one of its time-limited names: `EXPIRY:NAME`.
fn is_of(name: Option<&str>, user: &str) -> bool {
    let Some(name) = name else { return false };
    let of_time = name.split_once(':').filter(|(expiry, _)| {
        !expiry.is_empty() && expiry.bytes().all(|byte| byte.is_ascii_digit())
    });
    name == user || of_time.is_some_and(|(_, name)| name == user)
}

fn entries(page: &Value) -> &[Value] {
    let sessions = page["sessions"].as_array();
    sessions.map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_not_another_one_whose_name_contains_it() {
        assert!(is_of(Some("alice"), "alice"));
        assert!(is_of(Some("1735689600:alice"), "alice"));
        for other in ["malice", "alice2", "1735689600:malice", "x:alice", ":alice"] {
            assert!(!is_of(Some(other), "alice"), "{other}");
        }
        assert!(!is_of(None, "alice"));
    }
}
