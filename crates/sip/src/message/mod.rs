//! The view of a received message: the buffer it came in and a table of where its header fields are.
//!
//! [`Message::parse`] passes over the bytes once and notes name, kind and place of each field. A field's value is read
//! when it is asked for, by the types of [`crate::header`], which borrow from the buffer. Nothing is allocated or
//! copied, and what is not asked for costs nothing but being passed over.
//!
//! ```text
//!  INVITE sip:bob@example.com SIP/2.0 CRLF          start line
//!  Via: SIP/2.0/UDP a.example;branch=z9hG4bK1 CRLF  span 0: Via      [name][value][end], next Via: span 2
//!  t: Bob CRLF SP <sip:bob@example.com> CRLF        span 1: To       a fold is part of the value
//!  Via: SIP/2.0/TCP b.example CRLF                  span 2: Via
//!  CRLF                                             head_len
//!  v=0 ...                                          body, as long as Content-Length says
//! ```

mod access;
mod lines;
mod scan;
mod spans;
mod start_line;

use crate::Method;
use crate::chars;
use crate::header::HeaderKind;
pub use access::{Header, Headers};
pub(crate) use lines::Lines;
pub use scan::Scan;
pub(crate) use scan::ScannedVias;
use spans::Span;
pub use spans::{MAX_HEADERS, Spans};
pub use start_line::StartLine;

/// How large a message may be. What is larger is refused before it is looked at any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the start line and the header fields together. Above 65,535 counts as that.
    pub head_bytes: usize,
    /// Header fields. Above [`MAX_HEADERS`] counts as that.
    pub headers: usize,
    /// Bytes of the Request-URI.
    pub uri_bytes: usize,
    /// Bytes of the body.
    pub body_bytes: usize,
}

impl Limits {
    /// RFC 3261 §18.1.1 requires every element to accept a message of the size of a UDP datagram, so this is the size.
    /// The other two limits are far above real messages.
    pub const DEFAULT: Limits = Limits {
        head_bytes: 65_535,
        headers: MAX_HEADERS,
        uri_bytes: 4096,
        body_bytes: 65_535,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Limits::DEFAULT
    }
}

/// How the end of the body is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// By the end of the datagram or WebSocket message, unless Content-Length ends it earlier (RFC 3261 §18.3). What
    /// follows is ignored.
    #[default]
    Datagram,
    /// By Content-Length alone, which must be there (§20.14).
    Stream,
}

/// Why bytes are not a message.
///
/// What to do about it depends on what else is known of the bytes: see [`Scan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ParseError {
    /// Empty, or only line ends: a keep-alive.
    #[error("the message has only line ends")]
    Empty,
    /// The first line is neither a request's nor a response's.
    #[error("malformed request line")]
    RequestLine,
    /// The first line is a response's, and malformed.
    #[error("malformed status line")]
    StatusLine,
    /// A request of another version of SIP.
    #[error("version is not SIP/2.0")]
    Version,
    /// The Request-URI is longer than [`Limits::uri_bytes`].
    #[error("request URI too long")]
    UriTooLong,
    /// The bytes end before the blank line.
    #[error("no blank line ends the header")]
    Unfinished,
    /// A header line begins with something that is no name and a colon.
    #[error("malformed header field name")]
    HeaderName,
    /// A CR or LF that is not CRLF.
    #[error("a carriage return or line feed stands alone")]
    LineEnd,
    /// More than [`Limits::headers`].
    #[error("too many header fields")]
    TooManyHeaders,
    /// Start line and header fields are longer than [`Limits::head_bytes`].
    #[error("header too long")]
    HeadTooLong,
    /// Content-Length is no number, or there are several.
    #[error("malformed Content-Length")]
    ContentLength,
    /// A stream's message without Content-Length.
    #[error("Content-Length is missing")]
    ContentLengthMissing,
    /// The body is longer than [`Limits::body_bytes`].
    #[error("body too long")]
    BodyTooLong,
    /// The bytes end before Content-Length says so.
    #[error("body shorter than Content-Length")]
    BodyUnfinished,
}

/// A message over the bytes it came in.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    /// From the start line to the end of the body.
    bytes: &'a [u8],
    spans: &'a Spans,
    start: StartLine<'a>,
    head_len: usize,
}

impl<'a> Message<'a> {
    /// Reads a whole datagram within [`Limits::DEFAULT`].
    ///
    /// Line ends in front of the start line are skipped (RFC 3261 §7.5). Values are not looked into: a message may be
    /// accepted here that has no Via.
    ///
    /// # Errors
    /// [`ParseError`] if the bytes have not the form of a message.
    #[inline]
    pub fn parse(bytes: &'a [u8], spans: &'a mut Spans) -> Result<Message<'a>, ParseError> {
        Message::parse_with(bytes, spans, Framing::Datagram, &Limits::DEFAULT)
    }

    /// Reads a message at the start of `bytes`, with this framing and these limits.
    ///
    /// # Errors
    /// As [`Message::parse`].
    pub fn parse_with(
        bytes: &'a [u8],
        spans: &'a mut Spans,
        framing: Framing,
        limits: &Limits,
    ) -> Result<Message<'a>, ParseError> {
        let bytes = skip_line_ends(bytes)?;
        let head = Head::of(bytes, limits);
        let line_end = head.line_end(0)?;
        let start = start_line::parse(bytes.get(..line_end).unwrap_or_default(), limits)?;
        let head_len = read_fields(&head, line_end + 2, limits, spans)?;
        let spans: &'a Spans = spans;
        let rest = bytes.len() - head_len;
        let length = match (content_length(bytes, spans)?, framing) {
            (Some(length), _) => length,
            (None, Framing::Datagram) => rest,
            (None, Framing::Stream) => return Err(ParseError::ContentLengthMissing),
        };
        if length > limits.body_bytes {
            return Err(ParseError::BodyTooLong);
        }
        let bytes = bytes
            .get(..head_len + length)
            .ok_or(ParseError::BodyUnfinished)?;
        Ok(Message {
            bytes,
            spans,
            start,
            head_len,
        })
    }
}

/// Behind the line ends that may stand in front of a start line.
#[inline]
fn skip_line_ends(bytes: &[u8]) -> Result<&[u8], ParseError> {
    let skipped = bytes
        .iter()
        .position(|byte| !matches!(byte, b'\r' | b'\n'))
        .ok_or(ParseError::Empty)?;
    Ok(bytes.get(skipped..).unwrap_or_default())
}

/// The bytes in which the header must end.
#[derive(Clone, Copy)]
struct Head<'a> {
    bytes: &'a [u8],
    is_cut: bool,
}

impl<'a> Head<'a> {
    #[inline]
    fn of(bytes: &'a [u8], limits: &Limits) -> Head<'a> {
        let limit = limits.head_bytes.min(usize::from(u16::MAX));
        Head {
            bytes: bytes.get(..limit).unwrap_or(bytes),
            is_cut: bytes.len() > limit,
        }
    }

    /// If the header was cut at the limit, the error is `HeadTooLong`.
    #[inline]
    fn with_limit(&self, error: ParseError) -> ParseError {
        match error {
            ParseError::Unfinished if self.is_cut => ParseError::HeadTooLong,
            other => other,
        }
    }

    #[inline]
    fn line_end(&self, from: usize) -> Result<usize, ParseError> {
        lines::line_end(self.bytes, from).map_err(|error| self.with_limit(error))
    }
}

/// Fills `spans` with the header fields from `from` on. Returns the offset of the body.
#[inline]
fn read_fields(
    head: &Head<'_>,
    from: usize,
    limits: &Limits,
    spans: &mut Spans,
) -> Result<usize, ParseError> {
    spans.clear();
    let mut lines = Lines::new(head.bytes, from);
    let mut left = limits.headers;
    while let Some(line) = lines.next().map_err(|error| head.with_limit(error))? {
        // Offsets fit: the header was cut at 65,535 bytes.
        let span = Span::new(
            line.kind,
            (line.start as u16, (line.name_end - line.start) as u16),
            (line.value_start as u16, line.value_end as u16),
            line.end as u16,
        );
        if left == 0 || !spans.push(span) {
            return Err(ParseError::TooManyHeaders);
        }
        left -= 1;
    }
    Ok(lines.at())
}

/// Content-Length, if there is one. RFC 3261 §20.14 allows one; two that agree are no better (§7.3.1).
#[inline]
fn content_length(bytes: &[u8], spans: &Spans) -> Result<Option<usize>, ParseError> {
    let Some(index) = spans.first(HeaderKind::ContentLength) else {
        return Ok(None);
    };
    let span = spans.get(index).ok_or(ParseError::ContentLength)?;
    if span.next().is_some() {
        return Err(ParseError::ContentLength);
    }
    let value = bytes
        .get(usize::from(span.value_start)..usize::from(span.value_end))
        .unwrap_or_default();
    length_of(value).map(Some)
}

/// The number that a Content-Length says.
pub(crate) fn length_of(value: &[u8]) -> Result<usize, ParseError> {
    match chars::decimal(value) {
        Some(length) => Ok(length as usize),
        None if chars::all(value, chars::DIGIT) => Err(ParseError::BodyTooLong),
        None => Err(ParseError::ContentLength),
    }
}

/// What a message is, as far as its first line says.
impl<'a> StartLine<'a> {
    /// The method of a request.
    #[inline]
    #[must_use]
    pub const fn method(&self) -> Option<Method<'a>> {
        match self {
            StartLine::Request { method, .. } => Some(*method),
            StartLine::Response { .. } => None,
        }
    }

    /// The status code of a response.
    #[inline]
    #[must_use]
    pub const fn status_code(&self) -> Option<u16> {
        match self {
            StartLine::Response { code, .. } => Some(*code),
            StartLine::Request { .. } => None,
        }
    }
}
