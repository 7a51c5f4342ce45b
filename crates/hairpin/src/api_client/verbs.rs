//! The commands of the control socket as operations of the API. A command with `--api` has the output that it has at the
//! socket.

use anyhow::{Result, bail};
use serde_json::Value;

use super::Client;
use crate::control::protocol::{Command, Refusal, Reply};
use crate::control::sip::NO_LISTENER;

/// How the API does a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verb {
    pub(crate) method: &'static str,
    /// Below `/api/v1`. `{id}` is the argument of this name.
    pub(crate) path: &'static str,
    /// The arguments that are parameters of the URI.
    pub(crate) parameters: &'static [&'static str],
}

const fn verb(
    method: &'static str,
    path: &'static str,
    parameters: &'static [&'static str],
) -> Result<Verb, &'static str> {
    Ok(Verb {
        method,
        path,
        parameters,
    })
}

/// The operation of a command, or why the API has none.
pub(crate) const fn of(command: Command) -> Result<Verb, &'static str> {
    match command {
        Command::Status => verb("GET", "/status", &[]),
        Command::Reload => verb("POST", "/reload", &[]),
        Command::Drain => verb("POST", "/drain", &[]),
        Command::EndDrain => verb("DELETE", "/drain", &[]),
        Command::Nodes => verb("GET", "/nodes", &[]),
        Command::Sessions => verb("GET", "/sessions", &["user", "peer", "after"]),
        Command::EndSession => verb("DELETE", "/sessions/{id}", &[]),
        Command::EndUser => verb("DELETE", "/sessions", &["user"]),
        Command::SipBindings => verb("GET", "/sip/bindings", &["aor", "search", "after"]),
        Command::SipRemove => verb("DELETE", "/sip/bindings", &["aor", "contact"]),
        Command::SipCalls => verb("GET", "/sip/calls", &["after"]),
        Command::SipTrunks => verb("GET", "/sip/trunks", &[]),
        Command::SipTrace => verb("GET", "/sip/trace", &["call_id", "after"]),
        Command::Describe => Err(
            "it gives the arguments and the environment of the server, with its secrets, to the process that takes over",
        ),
        Command::TakeOver => Err(
            "the sockets go to the new process over the Unix socket, so both are on one machine",
        ),
    }
}

/// Sends a command, as [`crate::control::client::ask`] does at the socket.
///
/// # Errors
/// If the API does not have the command, and as [`Client::call`].
pub(crate) fn ask(client: &Client, command: Command, arguments: &Value) -> Result<Reply> {
    let verb = match of(command) {
        Ok(verb) => verb,
        Err(why) => bail!("{} works at the control socket only: {why}", command.name()),
    };
    let text = |name: &str| arguments[name].as_str();
    let path = verb
        .path
        .replace("{id}", &Client::segment(text("id").unwrap_or_default()));
    let parameters: Vec<_> = verb
        .parameters
        .iter()
        .map(|name| (*name, text(name)))
        .collect();
    let reply = client.call(verb.method, &path, &parameters, None)?;
    // The live page shows empty lists. A command says why they are empty.
    Ok(
        reply.and_then(|reply| match reply["has_listener"] == Value::Bool(false) {
            true => Err(Refusal::new(NO_LISTENER)),
            false => Ok(reply),
        }),
    )
}
