//! What a request is answered with, and how that is written.

use sip::Message;
use sip::build::{Answerable, BuildError, Builder, Part, Stamp, Tag};
use sip::header::HeaderKind;

/// An answer, decided and not yet written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reply {
    /// The status code.
    pub(super) code: u16,
    /// The reason phrase, where the usual one says too little.
    pub(super) reason: &'static str,
    pub(super) with: With,
}

/// What an answer has besides what it copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum With {
    Nothing,
    /// What OPTIONS asks for (§11.2).
    Capabilities,
    /// The bindings of a registrar that keeps none but the request's own (§10.3): Contact with `expires`.
    Bindings,
    /// Contact, and an SDP answer without media.
    Dialog,
}

impl Reply {
    pub(super) const fn new(code: u16) -> Reply {
        Reply {
            code,
            reason: "",
            with: With::Nothing,
        }
    }

    pub(super) const fn because(mut self, reason: &'static str) -> Reply {
        self.reason = reason;
        self
    }

    pub(super) const fn with(mut self, with: With) -> Reply {
        self.with = with;
        self
    }
}

/// The methods that are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Served {
    /// OPTIONS alone.
    Options,
    /// Those of a user agent server for tests as well.
    TestUas,
}

impl Served {
    /// The value of Allow.
    pub(super) const fn allow(self) -> &'static [u8] {
        match self {
            Served::Options => b"OPTIONS",
            Served::TestUas => b"INVITE, ACK, CANCEL, BYE, OPTIONS, REGISTER",
        }
    }
}

/// The one type of body that is understood.
const TYPES: &[u8] = b"application/sdp";

/// What a reply is written with.
#[derive(Debug)]
pub(super) struct Writing<'a> {
    pub(super) served: Served,
    pub(super) stamp: Stamp,
    pub(super) tag: Tag,
    /// `<sip:..>` of this server, as the client reaches it.
    pub(super) contact: &'a [u8],
}

/// Writes a reply into `buffer`; returns the message.
///
/// # Errors
/// If the buffer is too short: it holds all that a request of the longest kind asks for.
pub(super) fn write<'b>(
    buffer: &'b mut [u8],
    reply: &Reply,
    to: &Answerable<'_>,
    message: &Message<'_>,
    writing: &Writing<'_>,
) -> Result<&'b [u8], BuildError> {
    let tag = (reply.code != 100).then(|| writing.tag.as_bytes());
    let reason = reply.reason.as_bytes();
    let mut builder = Builder::response(buffer, to, reply.code, reason, tag, writing.stamp);
    let allow = writing.served.allow();
    match reply.with {
        With::Nothing => {}
        With::Capabilities => {
            builder
                .header(HeaderKind::Allow, allow)
                .header(HeaderKind::Accept, TYPES)
                .header(HeaderKind::AcceptEncoding, b"identity")
                .header(HeaderKind::AcceptLanguage, b"en")
                .header(HeaderKind::Supported, b"");
        }
        With::Bindings => bindings(&mut builder, message),
        With::Dialog => {
            dialog(&mut builder, message, writing);
            builder
                .header(HeaderKind::Allow, allow)
                .header(HeaderKind::ContentType, TYPES);
            return builder.finish_with(&super::responder::without_media(message));
        }
    }
    builder.finish()
}

/// Copies Record-Route (RFC 3261 §12.1.1) and adds Contact.
fn dialog(builder: &mut Builder<'_>, message: &Message<'_>, writing: &Writing<'_>) {
    for route in message.headers(HeaderKind::RecordRoute) {
        builder.copy(&route);
    }
    builder.header(HeaderKind::Contact, writing.contact);
}

/// RFC 3261 §20.10: one hour, where nothing is said.
const EXPIRES: u32 = 3600;

/// The bindings of the request that have not ended, as if they had been kept.
fn bindings(builder: &mut Builder<'_>, message: &Message<'_>) {
    // §10.2.1.1: a malformed Expires counts as an hour.
    let usual = message.expires().ok().flatten().unwrap_or(EXPIRES);
    for contact in message.contacts().flatten() {
        let sip::header::Contact::Addr(address) = contact else {
            continue;
        };
        let expires = address.expires().unwrap_or(usual);
        if expires > 0 {
            let parts = [
                Part::Bytes(b"<"),
                Part::Bytes(address.uri),
                Part::Bytes(b">;expires="),
                Part::Number(expires),
            ];
            builder.header_of(HeaderKind::Contact, &parts);
        }
    }
}
