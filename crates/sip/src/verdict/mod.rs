//! What to do with what was received: take it in, answer it at once, or drop it.
//!
//! [`judge`] parses and checks in the order of RFC 3261 §8.2 for a user agent, and of RFC 3261 §16.3 for a proxy.
//! RFC 4475 has examples. Every element refuses a request whose form is wrong; what is well-formed and not supported
//! depends on the element's [`Rules`]. Only what an element needs is looked at: a proxy forwards a malformed Contact or
//! Date as it is.

pub(crate) mod request;
pub(crate) mod response;

use crate::build::{Answerable, BuildError, Builder, Stamp};
use crate::header::{HeaderError, HeaderKind};
use crate::message::{Framing, Limits, Message, ParseError, Scan, Spans};
use crate::{Method, reason_phrase};

/// What kind of element the receiver is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// It answers requests itself: a user agent or a registrar.
    UserAgent,
    /// It forwards them.
    Proxy,
}

/// What an element supports.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'r> {
    /// Its kind.
    pub element: Element,
    /// The methods it answers; of no meaning to a proxy.
    pub methods: &'r [Method<'r>],
    /// The URI schemes that it supports, in lower case; `urn:service` is for the URNs of services (RFC 5031).
    pub schemes: &'r [&'r str],
    /// The option tags it understands in Require (user agent) or Proxy-Require (proxy), in lower case.
    pub extensions: &'r [&'r str],
    /// The media types of bodies it understands, `application/sdp`, in lower case; of no meaning to a proxy.
    pub bodies: &'r [&'r str],
}

impl Rules<'static> {
    /// A proxy without extensions.
    pub const PROXY: Rules<'static> = Rules {
        element: Element::Proxy,
        methods: &[],
        schemes: &["sip", "sips", "tel", "urn:service"],
        extensions: &[],
        bodies: &[],
    };

    /// A user agent that takes calls and registrations, without extensions.
    pub const USER_AGENT: Rules<'static> = Rules {
        element: Element::UserAgent,
        methods: &[
            Method::Invite,
            Method::Ack,
            Method::Bye,
            Method::Cancel,
            Method::Options,
            Method::Register,
        ],
        schemes: &["sip", "sips"],
        extensions: &[],
        bodies: &["application/sdp"],
    };
}

/// What to do.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack for one message"
)]
pub enum Verdict<'a> {
    /// It is well-formed and supported.
    Accept(Message<'a>),
    /// A request that is refused, statelessly if it is new: see [`Refusal::write`].
    Answer(Answerable<'a>, Refusal<'a>),
    /// No response is possible, or none is allowed.
    Drop(DropReason),
}

/// Why something is dropped without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// Line ends only.
    KeepAlive,
    /// It does not begin as a message of SIP.
    NotSip,
    /// A request that is wrong, and has no Via to answer to.
    NoReturnPath,
    /// An ACK that is wrong: ACK is never answered.
    BadAck,
    /// A response whose form is wrong (RFC 3261 §18.1.2 requires no reply).
    BadResponse,
    /// A response for another element: a user agent's response has one Via (§8.1.3.3).
    NotOurs,
    /// A response whose next hop would be a broadcast or multicast address (RFC 4475 §3.3.10).
    Broadcast,
}

impl DropReason {
    /// The reason as a word for a counter's label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            DropReason::KeepAlive => "keep_alive",
            DropReason::NotSip => "not_sip",
            DropReason::NoReturnPath => "no_return_path",
            DropReason::BadAck => "bad_ack",
            DropReason::BadResponse => "bad_response",
            DropReason::NotOurs => "not_ours",
            DropReason::Broadcast => "broadcast",
        }
    }
}

/// A refusal: a code, and why.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    /// The status code.
    pub code: u16,
    /// Why.
    pub cause: Cause,
    /// The request, if it was parsed: its unsupported extensions are listed in the answer.
    request: Option<Message<'a>>,
}

/// Why a request is refused: the reason phrase, and for some codes a header field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The code says it.
    Code,
    /// Its form is wrong.
    Form(ParseError),
    /// A header field is wrong.
    Header(HeaderError),
    /// CSeq has another method than the request line.
    CSeqMethod,
    /// The Request-URI is malformed.
    RequestUri,
    /// A URI in this header field is malformed, or of a scheme that may not be there.
    Uri(HeaderKind),
}

impl Cause {
    /// The reason phrase (RFC 3261 §21.4.1: it should say what is wrong), in pieces.
    const fn phrase(self, code: u16) -> [&'static str; 2] {
        match self {
            Cause::Form(ParseError::Version | ParseError::UriTooLong) | Cause::Code => {
                [reason_phrase(code), ""]
            }
            Cause::Form(error) => [form_phrase(error), ""],
            Cause::Header(HeaderError::Missing(kind)) => ["Missing ", kind.name()],
            Cause::Header(HeaderError::Malformed(kind)) => ["Malformed ", kind.name()],
            Cause::Header(HeaderError::Repeated(kind)) => ["Repeated ", kind.name()],
            Cause::CSeqMethod => ["Method of CSeq Differs", ""],
            Cause::RequestUri => ["Malformed Request-URI", ""],
            Cause::Uri(kind) => ["Bad URI in ", kind.name()],
        }
    }
}

const fn form_phrase(error: ParseError) -> &'static str {
    match error {
        ParseError::RequestLine => "Malformed Request-Line",
        ParseError::Unfinished => "Unfinished Header",
        ParseError::HeaderName => "Malformed Header Field Name",
        ParseError::LineEnd => "CR or LF Alone",
        ParseError::TooManyHeaders => "Too Many Header Fields",
        ParseError::HeadTooLong => "Header Too Long",
        ParseError::ContentLength => "Malformed Content-Length",
        ParseError::ContentLengthMissing => "Missing Content-Length",
        ParseError::BodyTooLong => "Body Too Long",
        ParseError::BodyUnfinished => "Body Shorter Than Content-Length",
        ParseError::Empty
        | ParseError::StatusLine
        | ParseError::Version
        | ParseError::UriTooLong => "Bad Request",
    }
}

impl Refusal<'_> {
    /// The reason phrase.
    #[must_use]
    pub fn phrase(&self) -> String {
        self.cause.phrase(self.code).concat()
    }

    /// Writes the response: with Allow for 405 and 501, Unsupported for 420, Accept for 406 and 415, Accept-Encoding
    /// for 415.
    ///
    /// # Errors
    /// [`BuildError::NoRoom`] if `buffer` is too short.
    pub fn write<'b>(
        &self,
        buffer: &'b mut [u8],
        request: &Answerable<'_>,
        rules: &Rules<'_>,
        to_tag: &[u8],
        stamp: Stamp,
    ) -> Result<&'b [u8], BuildError> {
        let mut phrase = [0; 64];
        let mut length = 0;
        for text in self.cause.phrase(self.code) {
            let end = length + text.len();
            let room = phrase.get_mut(length..end).ok_or(BuildError::NoRoom)?;
            room.copy_from_slice(text.as_bytes());
            length = end;
        }
        let reason = phrase.get(..length).unwrap_or_default();
        let mut response =
            Builder::response(buffer, request, self.code, reason, Some(to_tag), stamp);
        match self.code {
            405 | 501 if rules.element == Element::UserAgent => {
                let methods = rules.methods.iter().map(|method| method.as_bytes());
                response.list(HeaderKind::Allow, methods);
            }
            406 | 415 => {
                response.list(
                    HeaderKind::Accept,
                    rules.bodies.iter().map(|body| body.as_bytes()),
                );
                if self.code == 415 {
                    response.header(HeaderKind::AcceptEncoding, b"identity");
                }
            }
            420 => {
                let asked = self.request.iter();
                let unknown = asked.flat_map(|request| request::unsupported(request, rules));
                response.list(HeaderKind::Unsupported, unknown);
            }
            _ => {}
        }
        response.finish()
    }
}

/// Parses what was received and says what to do with it.
pub fn judge<'a>(
    bytes: &'a [u8],
    spans: &'a mut Spans,
    framing: Framing,
    limits: &Limits,
    rules: &Rules<'_>,
) -> Verdict<'a> {
    match Message::parse_with(bytes, spans, framing, limits) {
        Ok(message) => judge_message(message, rules),
        Err(error) => judge_bytes(bytes, limits, error),
    }
}

/// Says what to do with a message that has been parsed.
#[must_use]
pub fn judge_message<'a>(message: Message<'a>, rules: &Rules<'_>) -> Verdict<'a> {
    let Some(method) = message.method() else {
        return match response::check(&message, rules.element) {
            Ok(_) => Verdict::Accept(message),
            Err(reason) => Verdict::Drop(reason),
        };
    };
    match request::check(&message, method, rules) {
        Ok(()) => Verdict::Accept(message),
        Err(refused) => refuse(message, refused),
    }
}

/// What becomes of a request that is refused with this code for this cause.
pub(crate) fn refuse<'a>(message: Message<'a>, (code, cause): (u16, Cause)) -> Verdict<'a> {
    let refusal = Refusal {
        code,
        cause,
        request: Some(message),
    };
    match (message.answerable(), message.method()) {
        (Some(answerable), _) => Verdict::Answer(answerable, refusal),
        (None, Some(Method::Ack)) => Verdict::Drop(DropReason::BadAck),
        (None, _) => Verdict::Drop(DropReason::NoReturnPath),
    }
}

/// Says what to do with bytes that are not a message.
#[must_use]
pub fn judge_bytes<'a>(bytes: &'a [u8], limits: &Limits, error: ParseError) -> Verdict<'a> {
    let code = match error {
        ParseError::Empty => return Verdict::Drop(DropReason::KeepAlive),
        ParseError::StatusLine => return Verdict::Drop(DropReason::BadResponse),
        ParseError::Version => 505,
        ParseError::UriTooLong => 414,
        ParseError::BodyTooLong => 413,
        ParseError::HeadTooLong | ParseError::TooManyHeaders => 513,
        _ => 400,
    };
    let Ok(scan) = Scan::of(bytes, limits) else {
        return Verdict::Drop(DropReason::NotSip);
    };
    let refusal = Refusal {
        code,
        cause: Cause::Form(error),
        request: None,
    };
    match (scan.answerable(), scan.method) {
        (Some(answerable), _) => Verdict::Answer(answerable, refusal),
        (None, Some(Method::Ack)) => Verdict::Drop(DropReason::BadAck),
        (None, Some(_)) => Verdict::Drop(DropReason::NoReturnPath),
        (None, None) => Verdict::Drop(DropReason::BadResponse),
    }
}
