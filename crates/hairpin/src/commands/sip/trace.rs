//! `hairpin sip trace`: the messages of a call that a running server still has.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{ladder, pcap};
use crate::cli::sip::Trace;
use crate::commands::control::{ask_with, refused};
use crate::commands::output;
use crate::control::protocol::Command;

/// A copy of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) unix_us: u64,
    pub(super) is_sent: bool,
    pub(super) transport: String,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) bytes: Vec<u8>,
    /// The worker, and the number of the message there: the order of messages with the same time.
    place: (u64, u64),
}

/// Runs `hairpin sip trace`.
pub(super) fn trace(args: &Trace) -> Result<ExitCode> {
    let mut messages = Vec::new();
    let mut arguments = json!({ "call_id": args.call_id, "after": null });
    loop {
        let reply = match ask_with(&args.target, Command::SipTrace, &arguments)? {
            Ok(reply) => reply,
            Err(refusal) => return Ok(refused(&refusal)),
        };
        for message in reply["messages"].as_array().into_iter().flatten() {
            let read = Message::of(message);
            messages.push(read.context("the server has sent a message that cannot be read")?);
        }
        if reply["next"].is_null() {
            break;
        }
        arguments["after"] = reply["next"].clone();
    }
    if messages.is_empty() {
        bail!(
            "the server has no message with the Call-ID `{}`: newer messages may have replaced those of this call; a greater sip.trace_memory keeps more",
            output::printable(&args.call_id)
        );
    }
    messages.sort_by_key(|message| (message.unix_us, message.place));
    if let Some(path) = &args.pcap {
        std::fs::write(path, pcap::file(&messages))
            .with_context(|| format!("cannot write {}", path.display()))?;
        output::print(&format!(
            "{} messages in {}\n",
            messages.len(),
            path.display()
        ))?;
    } else if args.json {
        let lines: String = messages
            .iter()
            .map(|it| format!("{}\n", it.json()))
            .collect();
        output::print(&lines)?;
    } else {
        output::print(&ladder::draw(&messages))?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Message {
    fn of(value: &Value) -> Option<Message> {
        Some(Message {
            unix_us: value["unix_us"].as_u64()?,
            is_sent: value["direction"].as_str()? == "sent",
            transport: value["transport"].as_str()?.to_owned(),
            local: value["local"].as_str()?.parse().ok()?,
            remote: value["remote"].as_str()?.parse().ok()?,
            bytes: STANDARD.decode(value["bytes"].as_str()?).ok()?,
            place: (value["worker"].as_u64()?, value["number"].as_u64()?),
        })
    }

    fn json(&self) -> Value {
        json!({
            "unix_us": self.unix_us,
            "direction": if self.is_sent { "sent" } else { "received" },
            "transport": self.transport,
            "local": self.local,
            "remote": self.remote,
            "message": String::from_utf8_lossy(&self.bytes),
        })
    }

    /// The method of a request, or the code and the reason of a response with the method of its request.
    pub(super) fn summary(&self) -> String {
        let text = String::from_utf8_lossy(&self.bytes);
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        let Some(status) = first.strip_prefix("SIP/2.0 ") else {
            return first.split(' ').next().unwrap_or_default().to_owned();
        };
        let is_cseq = |line: &&str| {
            line.get(..5)
                .is_some_and(|it| it.eq_ignore_ascii_case("cseq:"))
        };
        let cseq = lines.find(is_cseq).unwrap_or_default();
        let method = cseq.split_whitespace().next_back().unwrap_or_default();
        format!("{status} ({method})")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A message at a time in microseconds, with the port of the other side.
    pub(crate) fn message(unix_us: u64, is_sent: bool, port: u16, text: &str) -> Message {
        Message {
            unix_us,
            is_sent,
            transport: "UDP".to_owned(),
            local: ([192, 0, 2, 1], 5060).into(),
            remote: ([192, 0, 2, 9], port).into(),
            bytes: text.as_bytes().to_vec(),
            place: (0, 0),
        }
    }

    #[test]
    fn a_response_has_the_method_of_its_request() {
        let request = message(
            0,
            false,
            1,
            "INVITE sip:a@b SIP/2.0\r\nCSeq: 1 INVITE\r\n\r\n",
        );
        assert_eq!(request.summary(), "INVITE");
        let response = message(
            0,
            true,
            1,
            "SIP/2.0 180 Ringing\r\nCSEQ:  1  INVITE\r\n\r\n",
        );
        assert_eq!(response.summary(), "180 Ringing (INVITE)");
    }
}
