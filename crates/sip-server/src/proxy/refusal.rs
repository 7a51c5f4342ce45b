//! The responses of the proxy itself.

use sip::engine::{AcceptError, Reply};

use super::Handled;

/// A code, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: u16,
    pub(super) reason: &'static str,
    /// Header lines of the response.
    pub(super) lines: &'static [u8],
    /// They are in the proxy's `lines`.
    pub(super) has_lines: bool,
    /// The request is a copy that a node has sent. That node has the record of the call.
    pub(super) is_for_node: bool,
}

impl Refusal {
    pub(super) const fn of(code: u16, reason: &'static str) -> Refusal {
        Refusal {
            code,
            reason,
            lines: b"",
            has_lines: false,
            is_for_node: false,
        }
    }

    pub(super) fn reply(&self) -> Reply<'static> {
        let reason = match (self.code, self.reason) {
            (430, "") => "Flow Failed",
            (440, "") => "Max-Breadth Exceeded",
            (_, reason) => reason,
        };
        Reply::new(self.code)
            .reason(reason.as_bytes())
            .headers(self.lines)
    }

    /// The response, if some of its header lines are the proxy's.
    pub(super) fn reply_with<'l>(&self, lines: &'l [u8]) -> Reply<'l> {
        match self.has_lines {
            true => self.reply().headers(lines),
            false => self.reply(),
        }
    }
}

/// The response for `Decision::Reject`: the route rejects the request, or no trunk of it is available. A 503 has
/// `Retry-After: 1`.
pub(super) fn rejection(code: u16, reason: &str) -> Reply<'_> {
    let reply = Reply::new(code).reason(reason.as_bytes());
    match code {
        503 => reply.headers(b"Retry-After: 1\r\n"),
        _ => reply,
    }
}

/// The outcome for a request without a transaction: it has been answered.
pub(super) fn without_room(error: AcceptError) -> Handled<'static> {
    match error {
        AcceptError::Full => Handled::NoRoom,
        AcceptError::TooLong | AcceptError::Ack => Handled::Yes,
    }
}
