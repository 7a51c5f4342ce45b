//! What goes over the control socket: a request of one line, a reply of one line, both JSON objects with the version of
//! the protocol.

use serde_json::{Map, Value, json};

/// The version of the protocol.
pub(crate) const VERSION: u64 = 1;
/// Bytes of a request. The longest has a tenth.
pub(super) const MAX_REQUEST: usize = 4 << 10;
/// Bytes of a reply: the status of a server with many listeners, or a long list of mistakes.
pub(crate) const MAX_REPLY: usize = 1 << 20;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// What the server does.
    Status,
    /// Read the configuration again.
    Reload,
    /// Admit no new work.
    Drain,
    /// Admit new work again.
    EndDrain,
    /// Say how to start this server once more.
    Describe,
    /// Hand over to the process that asks. If the reply is good, messages of the hand-over follow.
    TakeOver,
    /// One part of the list of SIP registration bindings.
    SipBindings,
    /// All SIP trunks.
    SipTrunks,
    /// One part of the list of SIP calls.
    SipCalls,
    /// One part of the SIP messages of a call.
    SipTrace,
    /// Remove SIP registration bindings.
    SipRemove,
    /// One page of the list of allocations.
    Sessions,
    /// End an allocation.
    EndSession,
    /// End all allocations of a user, on all nodes.
    EndUser,
    /// The nodes of the cluster.
    Nodes,
}

impl Command {
    /// All of them.
    pub(crate) const ALL: [Command; 15] = [
        Command::Status,
        Command::Reload,
        Command::Drain,
        Command::EndDrain,
        Command::Describe,
        Command::TakeOver,
        Command::SipBindings,
        Command::SipTrunks,
        Command::SipCalls,
        Command::SipTrace,
        Command::SipRemove,
        Command::Sessions,
        Command::EndSession,
        Command::EndUser,
        Command::Nodes,
    ];

    /// Its name in requests.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Command::Status => "status",
            Command::Reload => "reload",
            Command::Drain => "drain",
            Command::EndDrain => "end_drain",
            Command::Describe => "describe",
            Command::TakeOver => "take_over",
            Command::SipBindings => "sip_bindings",
            Command::SipTrunks => "sip_trunks",
            Command::SipCalls => "sip_calls",
            Command::SipTrace => "sip_trace",
            Command::SipRemove => "sip_remove",
            Command::Sessions => "sessions",
            Command::EndSession => "end_session",
            Command::EndUser => "end_user",
            Command::Nodes => "nodes",
        }
    }
}

/// The response: what was asked for, or why not.
pub(crate) type Reply = Result<Value, Refusal>;

/// Why a request was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// What failed, and why.
    pub(crate) error: String,
    /// Mistakes in the configuration, each with its file and line.
    pub(crate) mistakes: Vec<String>,
}

impl Refusal {
    /// One without mistakes.
    pub(crate) fn new(error: impl Into<String>) -> Self {
        Self {
            error: error.into(),
            mistakes: Vec::new(),
        }
    }
}

/// A request line without arguments.
pub(crate) fn request(command: Command) -> String {
    request_with(command, &Value::Null)
}

/// A request line. `arguments` is an object or null.
pub(crate) fn request_with(command: Command, arguments: &Value) -> String {
    let mut request = json!({ "protocol": VERSION, "command": command.name() });
    if !arguments.is_null() {
        request["arguments"] = arguments.clone();
    }
    line(&request)
}

/// Reads a request line: the command and its arguments, or null without arguments.
pub(super) fn read_request(line: &[u8]) -> Result<(Command, Value), Refusal> {
    let mut request: Map<String, Value> = serde_json::from_slice(line)
        .map_err(|_| Refusal::new("a request is a line with one JSON object"))?;
    check_version(&request).map_err(Refusal::new)?;
    let name = request.get("command").and_then(Value::as_str);
    let known = Command::ALL
        .into_iter()
        .find(|command| Some(command.name()) == name);
    let known = known.ok_or_else(|| {
        let names = Command::ALL.map(Command::name).join(", ");
        Refusal::new(format!("unknown command; there are {names}"))
    })?;
    Ok((known, request.remove("arguments").unwrap_or_default()))
}

/// The line of a reply.
pub(crate) fn reply(reply: &Reply) -> String {
    line(&match reply {
        Ok(result) => json!({ "protocol": VERSION, "ok": true, "result": result }),
        Err(Refusal { error, mistakes }) => {
            json!({ "protocol": VERSION, "ok": false, "error": error, "mistakes": mistakes })
        }
    })
}

/// Reads the line of a reply; the outer error says why it is none.
pub(crate) fn read_reply(line: &[u8]) -> Result<Reply, String> {
    let mut reply: Map<String, Value> = serde_json::from_slice(line)
        .map_err(|error| format!("its reply is not a line with one JSON object: {error}"))?;
    check_version(&reply)?;
    if reply.get("ok") == Some(&Value::Bool(true)) {
        return Ok(Ok(reply.remove("result").unwrap_or_default()));
    }
    let texts = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mistakes = reply.get("mistakes").and_then(Value::as_array);
    Ok(Err(Refusal {
        error: reply.get("error").map(texts).unwrap_or_default(),
        mistakes: mistakes.map_or_else(Vec::new, |list| list.iter().map(texts).collect()),
    }))
}

fn check_version(message: &Map<String, Value>) -> Result<(), String> {
    let version = message.get("protocol").and_then(Value::as_u64);
    if version == Some(VERSION) {
        return Ok(());
    }
    let version = version.map_or_else(
        || "no version".to_owned(),
        |other| format!("version {other}"),
    );
    Err(format!(
        "the message has {version} of the control protocol, expected version {VERSION}: use the hairpin command of the same release as the server"
    ))
}

fn line(value: &Value) -> String {
    // JSON escapes line feeds within texts.
    format!("{value}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_are_read() {
        for command in Command::ALL {
            let read = read_request(request(command).as_bytes());
            assert_eq!(read, Ok((command, Value::Null)));
            let arguments = json!({ "limit": 3 });
            let read = read_request(request_with(command, &arguments).as_bytes());
            assert_eq!(read, Ok((command, arguments)));
        }
        let refusal = Refusal {
            error: "no\nline".to_owned(),
            mistakes: vec!["hairpin.toml:3: what".to_owned()],
        };
        for sent in [Ok(json!({ "workers": 2 })), Err(refusal)] {
            let text = reply(&sent);
            assert_eq!(text.matches('\n').count(), 1, "{text}");
            assert_eq!(read_reply(text.as_bytes()), Ok(sent));
        }
    }

    #[test]
    fn malformed_requests_are_refused_with_the_reason() {
        let cases = [
            ("", "one JSON object"),
            ("[]", "one JSON object"),
            ("{\"protocol\":1", "one JSON object"),
            ("{}", "has no version"),
            ("{\"protocol\":2,\"command\":\"status\"}", "version 2"),
            (
                "{\"protocol\":1}",
                "there are status, reload, drain, end_drain, describe, take_over",
            ),
            ("{\"protocol\":1,\"command\":7}", "there are status"),
        ];
        for (text, reason) in cases {
            let refusal = read_request(text.as_bytes()).unwrap_err();
            assert!(refusal.error.contains(reason), "{text}: {refusal:?}");
        }
        assert!(read_reply(b"{\"protocol\":2,\"ok\":true}").is_err());
        assert!(read_reply(b"HTTP/1.1 200 OK").is_err());
    }
}
