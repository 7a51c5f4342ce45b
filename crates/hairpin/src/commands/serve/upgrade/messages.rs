//! The messages of an upgrade, after the line that asks for it and the line that grants it.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use server::handover::ForeignMessage;
use server::passing::Message;

/// What the server offers: [`server::handover::Offer`].
pub(super) const OFFER: u8 = 1;
/// The process's own data, besides the server's: [`Process`].
pub(super) const PROCESS: u8 = 2;
/// Give each client an entry in the steering table: [`server::handover::Joining`].
pub(super) const HOLD: u8 = 3;
/// It is done, or a text that says why not.
pub(super) const HELD: u8 = 4;
/// The new process serves; its process ID.
pub(super) const SERVING: u8 = 5;
/// A request for a worker of the old process: [`foreign`].
pub(super) const FOREIGN: u8 = 6;
/// What the old process waits for: [`OldProcessLoad`].
pub(super) const LEFT: u8 = 7;
/// The new process stops because it got a signal or a command; the old one stops, too.
pub(super) const STOP: u8 = 8;

/// A process's own data, besides the server's.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// The path of its control socket.
    pub(super) control_socket: String,
    /// The secret that it has generated.
    pub(super) made_up_secret: Option<String>,
}

/// What the old process still has.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OldProcessLoad {
    pub(super) pid: u32,
    pub(super) allocations: u64,
    pub(super) sip_transactions: u64,
    pub(super) sip_connections: u64,
}

impl OldProcessLoad {
    pub(super) const fn is_nothing(&self) -> bool {
        self.allocations + self.sip_transactions + self.sip_connections == 0
    }
}

/// The head of a request for a worker of the old process. The bytes of the request follow it.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    worker: u16,
    local: SocketAddr,
    remote: SocketAddr,
}

/// The body of a [`FOREIGN`] message: a line of JSON, then the bytes.
pub(super) fn foreign(message: &ForeignMessage) -> Vec<u8> {
    let head = Head {
        worker: message.worker,
        local: message.local,
        remote: message.remote,
    };
    let mut body = serde_json::to_vec(&head).unwrap_or_default();
    body.push(b'\n');
    body.extend_from_slice(&message.bytes);
    body
}

/// Reads a [`FOREIGN`] message.
pub(super) fn read_foreign(message: Message) -> Result<ForeignMessage> {
    let Message { body, fds, .. } = message;
    let end = body
        .iter()
        .position(|&byte| byte == b'\n')
        .context("no head")?;
    let head: Head = serde_json::from_slice(&body[..end]).context("no head")?;
    let mut fds: Vec<OwnedFd> = fds;
    if fds.len() > 1 {
        bail!("{} descriptors", fds.len());
    }
    Ok(ForeignMessage {
        worker: head.worker,
        local: head.local,
        remote: head.remote,
        bytes: body[end + 1..].to_vec(),
        connection: fds.pop(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_the_old_process_arrives_as_it_was() {
        let sent = ForeignMessage {
            worker: 3,
            local: "[2001:db8::1]:3478".parse().unwrap(),
            remote: "[2001:db8::2]:40000".parse().unwrap(),
            bytes: b"\0\x01\n\0\nx".to_vec(),
            connection: None,
        };
        let message = Message {
            kind: FOREIGN,
            body: foreign(&sent),
            fds: Vec::new(),
        };
        let read = read_foreign(message).unwrap();
        assert_eq!(
            (read.worker, read.local, read.remote),
            (3, sent.local, sent.remote)
        );
        assert_eq!(read.bytes, sent.bytes);
        let broken = Message {
            kind: FOREIGN,
            body: b"{}\n".to_vec(),
            fds: Vec::new(),
        };
        assert!(read_foreign(broken).is_err());
    }
}
