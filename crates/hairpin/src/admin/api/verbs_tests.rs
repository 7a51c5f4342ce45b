//! One set of verbs: what a command does at the control socket or in a store, the API does as well.

use clap::CommandFactory as _;

use super::routes::{RouteSearch, find};
use crate::api_client::verbs;
use crate::cli::Cli;
use crate::control::protocol::Command;

/// Commands of the control socket that the API does not have: `verbs::of` has the reasons.
const AT_THE_SOCKET_ONLY: [Command; 2] = [Command::Describe, Command::TakeOver];

/// The operations of each command line that has `--api`.
const OPERATIONS: [(&str, &[(&str, &str)]); 24] = [
    ("status", &[("GET", "/status")]),
    ("reload", &[("POST", "/reload")]),
    (
        "drain",
        &[("POST", "/drain"), ("DELETE", "/drain"), ("GET", "/status")],
    ),
    ("upgrade", &[("POST", "/upgrade"), ("GET", "/status")]),
    ("sessions", &[("GET", "/sessions")]),
    (
        "sessions kill",
        &[("DELETE", "/sessions/0-1-2"), ("DELETE", "/sessions")],
    ),
    ("nodes", &[("GET", "/nodes")]),
    ("user add", &[("PUT", "/users/alice")]),
    ("user passwd", &[("PUT", "/users/alice")]),
    ("user del", &[("DELETE", "/users/alice")]),
    ("user list", &[("GET", "/users")]),
    ("user import", &[("POST", "/users")]),
    ("secret add", &[("POST", "/secrets")]),
    ("secret del", &[("DELETE", "/secrets")]),
    ("secret list", &[("GET", "/secrets")]),
    ("realm set", &[("PATCH", "/realms/a.example")]),
    ("realm del", &[("DELETE", "/realms/a.example")]),
    ("realm list", &[("GET", "/realms")]),
    ("sip route", &[("POST", "/sip/route")]),
    ("sip bindings", &[("GET", "/sip/bindings")]),
    ("sip remove", &[("DELETE", "/sip/bindings")]),
    ("sip calls", &[("GET", "/sip/calls")]),
    ("sip trunks", &[("GET", "/sip/trunks")]),
    ("sip trace", &[("GET", "/sip/trace")]),
];

/// It converts a configuration, and can write users into a store: `user import` does that over the API.
const IN_A_STORE_ONLY: [&str; 1] = ["import"];

#[test]
fn the_api_has_each_command_of_the_control_socket_with_its_arguments() {
    for command in Command::ALL {
        let verb = match verbs::of(command) {
            Ok(verb) => verb,
            Err(why) => {
                assert!(AT_THE_SOCKET_ONLY.contains(&command), "{command:?}: {why}");
                assert!(!why.is_empty(), "{command:?}");
                continue;
            }
        };
        assert!(!AT_THE_SOCKET_ONLY.contains(&command), "{command:?}");
        let path = verb.path.replace("{id}", "0-1-2");
        let RouteSearch::Route(found) = find(verb.method, &path) else {
            panic!("the API has no {} {path} for {command:?}", verb.method);
        };
        for name in verb.parameters {
            let mut known = found.route.parameters.iter();
            assert!(
                known.any(|known| known.name == *name),
                "{command:?}: {name}"
            );
        }
    }
}

/// The command lines without subcommands, and those that also do something by themselves.
fn command_lines(command: &clap::Command, path: &str, found: &mut Vec<(String, clap::Command)>) {
    let is_hidden = |sub: &&clap::Command| sub.is_hide_set() || sub.get_name() == "help";
    let subcommands: Vec<_> = command
        .get_subcommands()
        .filter(|sub| !is_hidden(sub))
        .collect();
    if subcommands.is_empty()
        || !command.is_subcommand_required_set() && command.get_arguments().count() > 0
    {
        found.push((path.to_owned(), command.clone()));
    }
    for sub in subcommands {
        let path = format!("{path} {}", sub.get_name());
        command_lines(sub, path.trim(), found);
    }
}

#[test]
fn each_command_line_about_a_server_works_over_the_api() {
    let mut all = Vec::new();
    command_lines(&Cli::command(), "", &mut all);
    let has = |command: &clap::Command, name: &str| {
        command
            .get_arguments()
            .any(|argument| argument.get_long() == Some(name))
    };
    let mut count = 0;
    for (path, command) in &all {
        let is_exception = IN_A_STORE_ONLY.contains(&&**path);
        let is_about_a_server = has(command, "socket") || has(command, "store") && !is_exception;
        assert!(
            !is_about_a_server || has(command, "api"),
            "{path} has no --api"
        );
        if !has(command, "api") {
            continue;
        }
        let operations = OPERATIONS.iter().find(|(known, _)| known == path);
        let (_, operations) = operations.unwrap_or_else(|| panic!("{path} is not in the table"));
        for (method, path) in *operations {
            let is_there = matches!(find(method, path), RouteSearch::Route(_));
            assert!(is_there, "the API has no {method} {path}");
        }
        count += 1;
    }
    assert_eq!(
        count,
        OPERATIONS.len(),
        "a line of the table is of no command"
    );
}
