//! Responses of the TU.

/// A response of the TU.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    pub(super) code: u16,
    pub(super) content: Content<'a>,
    pub(super) repeat: bool,
    pub(super) remote_target: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Content<'a> {
    /// Made from the request.
    Made {
        reason: &'a [u8],
        to_tag: Option<&'a [u8]>,
        headers: &'a [u8],
        body: &'a [u8],
    },
    /// A whole message, in pieces: a proxy's.
    Pieces(&'a [&'a [u8]]),
}

impl<'a> Reply<'a> {
    /// A response made from the request: Via with `received` and `rport`, From, To with a tag, Call-ID and CSeq. If the
    /// response may begin a dialog, it also has Record-Route. `code` is 100 to 699.
    #[must_use]
    pub const fn new(code: u16) -> Reply<'a> {
        Reply {
            code,
            content: Content::Made {
                reason: &[],
                to_tag: None,
                headers: &[],
                body: &[],
            },
            repeat: false,
            remote_target: &[],
        }
    }

    /// A whole response in pieces, as it is to be sent: the topmost Via is the client's. For proxies.
    #[must_use]
    pub const fn forwarded(code: u16, pieces: &'a [&'a [u8]]) -> Reply<'a> {
        Reply {
            code,
            content: Content::Pieces(pieces),
            repeat: false,
            remote_target: &[],
        }
    }

    /// With this reason phrase instead of the usual one.
    #[must_use]
    pub fn reason(mut self, text: &'a [u8]) -> Reply<'a> {
        if let Content::Made { reason, .. } = &mut self.content {
            *reason = text;
        }
        self
    }

    /// With this To tag instead of one of the engine's. The engine's names the transaction, so that the ACK for a 2xx
    /// finds it.
    #[must_use]
    pub fn to_tag(mut self, tag: &'a [u8]) -> Reply<'a> {
        if let Content::Made { to_tag, .. } = &mut self.content {
            *to_tag = Some(tag);
        }
        self
    }

    /// With these header lines, each with its line end; Content-Length is not among them.
    #[must_use]
    pub fn headers(mut self, lines: &'a [u8]) -> Reply<'a> {
        if let Content::Made { headers, .. } = &mut self.content {
            *headers = lines;
        }
        self
    }

    /// With this body; Content-Type is among the headers.
    #[must_use]
    pub fn body(mut self, bytes: &'a [u8]) -> Reply<'a> {
        if let Content::Made { body, .. } = &mut self.content {
            *body = bytes;
        }
        self
    }

    /// A 2xx to an INVITE that is to be repeated until its ACK comes, as a UAS core must (RFC 3261 §13.3.1.4).
    #[must_use]
    pub fn until_ack(mut self) -> Reply<'a> {
        self.repeat = true;
        self
    }

    /// Like the function above, and keeps the URI of the INVITE's Contact. If no ACK arrives,
    /// [`Output::Unacknowledged`](super::Output::Unacknowledged) asks the TU to end the dialog with a BYE to this URI.
    #[must_use]
    pub fn until_ack_from(mut self, remote_target: &'a [u8]) -> Reply<'a> {
        self.remote_target = remote_target;
        self.until_ack()
    }

    /// This reply without its last header line. `None` if it has none to leave out: a challenge keeps one (RFC 3261
    /// §22.2).
    pub(super) fn shorter(mut self) -> Option<Reply<'a>> {
        let Content::Made { headers, .. } = &mut self.content else {
            return None;
        };
        let (_, before) = headers.split_last()?;
        let end = memchr::memrchr(b'\n', before).map_or(0, |at| at + 1);
        *headers = headers.get(..end)?;
        let is_challenge = matches!(self.code, 401 | 407);
        (end > 0 || !is_challenge).then_some(self)
    }

    /// The status code.
    #[must_use]
    pub const fn code(&self) -> u16 {
        self.code
    }
}
