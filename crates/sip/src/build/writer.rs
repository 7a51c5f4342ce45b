//! A message, line by line.

use super::BuildError;
use crate::Method;
use crate::chars::{self, TOKEN};
use crate::header::{HeaderKind, Param};

/// Writes a message into a buffer. The first error is kept, what follows it does nothing, and [`Builder::finish`]
/// returns it.
///
/// ```
/// use hairpin_sip::build::Builder;
/// use hairpin_sip::{HeaderKind, Method};
///
/// let mut buffer = [0; 512];
/// let mut request = Builder::request(&mut buffer, Method::Options, b"sip:example.com");
/// request
///     .header(HeaderKind::Via, b"SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK7")
///     .number(HeaderKind::MaxForwards, 70);
/// let bytes = request.finish()?;
/// assert!(bytes.ends_with(b"Max-Forwards: 70\r\nContent-Length: 0\r\n\r\n"));
/// # Ok::<(), hairpin_sip::build::BuildError>(())
/// ```
#[derive(Debug)]
pub struct Builder<'b> {
    buffer: &'b mut [u8],
    len: usize,
    error: Option<BuildError>,
}

/// A piece of a value.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// Bytes as they are.
    Bytes(&'a [u8]),
    /// A decimal number.
    Number(u32),
    /// An address, in brackets if it is IPv6.
    Ip(core::net::IpAddr),
}

impl<'b> Builder<'b> {
    /// Begins a request.
    #[must_use]
    pub fn request(buffer: &'b mut [u8], method: Method<'_>, uri: &[u8]) -> Builder<'b> {
        let mut builder = Builder::new(buffer);
        let is_uri = !uri.is_empty() && !uri.iter().any(|&byte| chars::is(byte, chars::LWS));
        if !chars::all(method.as_bytes(), TOKEN) || !is_uri {
            builder.error = Some(BuildError::Token);
        }
        for text in [method.as_bytes(), b" ", uri, b" SIP/2.0\r\n"] {
            builder.raw(text);
        }
        builder
    }

    /// Begins a response with nothing of a request: see [`Builder::response`].
    #[must_use]
    pub fn status(buffer: &'b mut [u8], code: u16, reason: &[u8]) -> Builder<'b> {
        let mut builder = Builder::new(buffer);
        if !(100..700).contains(&code) {
            builder.error = Some(BuildError::Token);
        }
        builder
            .raw(b"SIP/2.0 ")
            .part(Part::Number(code.into()))
            .raw(b" ")
            .part(Part::Bytes(reason))
            .raw(b"\r\n");
        builder
    }

    /// Bytes written so far.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Writes from the start of `buffer`.
    fn new(buffer: &'b mut [u8]) -> Builder<'b> {
        Builder {
            buffer,
            len: 0,
            error: None,
        }
    }

    /// Begins with header fields instead of a start line: for [`super::Edits::on_top`].
    #[must_use]
    pub fn fields(buffer: &'b mut [u8]) -> Builder<'b> {
        Builder::new(buffer)
    }

    /// Adds a field with a value in one piece.
    pub fn header(&mut self, kind: HeaderKind, value: &[u8]) -> &mut Self {
        self.header_of(kind, &[Part::Bytes(value)])
    }

    /// Adds a header field whose value is a number.
    pub fn number(&mut self, kind: HeaderKind, number: u32) -> &mut Self {
        self.header_of(kind, &[Part::Number(number)])
    }

    /// Adds a field whose value is these pieces in a row.
    pub fn header_of(&mut self, kind: HeaderKind, value: &[Part<'_>]) -> &mut Self {
        self.field(kind.name().as_bytes(), value)
    }

    /// Adds a field with a comma list; nothing if the list is empty.
    pub fn list<'v>(
        &mut self,
        kind: HeaderKind,
        values: impl Iterator<Item = &'v [u8]>,
    ) -> &mut Self {
        let mut is_first = true;
        for value in values {
            match is_first {
                true => self.raw(kind.name().as_bytes()).raw(b": "),
                false => self.raw(b", "),
            };
            self.part(Part::Bytes(value));
            is_first = false;
        }
        if !is_first {
            self.raw(b"\r\n");
        }
        self
    }

    /// Adds a field with a value of another message, without its folds.
    pub(crate) fn header_unfolded(&mut self, kind: HeaderKind, value: &[u8]) -> &mut Self {
        self.raw(kind.name().as_bytes()).raw(b": ");
        for (place, piece) in fold_free_pieces(value).enumerate() {
            self.raw(if place == 0 { b"" } else { b" " }).raw(piece);
        }
        self.raw(b"\r\n")
    }

    /// Adds a field with any name.
    pub fn named(&mut self, name: &[u8], value: &[Part<'_>]) -> &mut Self {
        if !chars::all(name, TOKEN) {
            self.fail(BuildError::Token);
        }
        self.field(name, value)
    }

    /// Adds a field whose name is known to be one.
    #[inline]
    fn field(&mut self, name: &[u8], value: &[Part<'_>]) -> &mut Self {
        self.raw(name).raw(b": ");
        for &part in value {
            self.part(part);
        }
        self.raw(b"\r\n")
    }

    /// Adds a parameter, with a semicolon in front, as it is in a message.
    pub(crate) fn param(&mut self, param: &Param<'_>) -> &mut Self {
        self.raw(b";").raw(param.name);
        match param.value {
            Some(value) => self.raw(b"=").raw(value),
            None => self,
        }
    }

    /// Adds a field as it is in a message: [`crate::message::Header::line`].
    pub fn copy(&mut self, header: &crate::message::Header<'_>) -> &mut Self {
        self.raw(header.line)
    }

    /// Adds Content-Length 0 and the blank line; returns the whole message.
    ///
    /// # Errors
    /// The first [`BuildError`] there was.
    pub fn finish(self) -> Result<&'b [u8], BuildError> {
        self.finish_with(&[])
    }

    /// Adds Content-Length, the blank line and the body; returns the whole message. Content-Type is up to the caller.
    ///
    /// # Errors
    /// The first [`BuildError`] there was.
    pub fn finish_with(mut self, body: &[u8]) -> Result<&'b [u8], BuildError> {
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        self.number(HeaderKind::ContentLength, length)
            .raw(b"\r\n")
            .raw(body);
        self.finish_fields()
    }

    /// Returns what has been written, without adding anything.
    ///
    /// # Errors
    /// The first [`BuildError`] there was.
    pub fn finish_fields(self) -> Result<&'b [u8], BuildError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self.buffer.get(..self.len).unwrap_or_default()),
        }
    }

    /// Adds a piece of a value. Inlined, as it is known where it is called what kind of piece it is.
    #[inline(always)]
    pub(crate) fn part(&mut self, part: Part<'_>) -> &mut Self {
        match part {
            Part::Bytes(bytes) => {
                if memchr::memchr2(b'\r', b'\n', bytes).is_some() {
                    self.fail(BuildError::LineEnd);
                }
                self.raw(bytes)
            }
            Part::Number(number) => self.raw(decimal(number, &mut [0; 10])),
            Part::Ip(ip) => self.ip(ip),
        }
    }

    fn ip(&mut self, ip: core::net::IpAddr) -> &mut Self {
        match ip.is_ipv6() {
            true => self.raw(b"[").bare_ip(ip).raw(b"]"),
            false => self.bare_ip(ip),
        }
    }

    /// Adds an address without brackets.
    pub(super) fn bare_ip(&mut self, ip: core::net::IpAddr) -> &mut Self {
        use std::io::Write as _;
        if let core::net::IpAddr::V4(v4) = ip {
            // Nearly every address, and cheaper so than by the formatting machinery.
            for (place, octet) in v4.octets().into_iter().enumerate() {
                if place > 0 {
                    self.raw(b".");
                }
                self.part(Part::Number(octet.into()));
            }
            return self;
        }
        let mut room = self.buffer.get_mut(self.len..).unwrap_or_default();
        let before = room.len();
        let written = write!(room, "{ip}");
        self.len += before - room.len();
        if written.is_err() {
            self.fail(BuildError::NoRoom);
        }
        self
    }

    /// Adds bytes that are known to be harmless. Inlined, so that constants are stored and not copied by a call.
    #[inline(always)]
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        let end = self.len + bytes.len();
        match self.buffer.get_mut(self.len..end) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.len = end;
            }
            None => self.fail(BuildError::NoRoom),
        }
        self
    }

    pub(super) fn fail(&mut self, error: BuildError) {
        self.error = self.error.or(Some(error));
    }
}

/// The pieces of a value between its folds, each of which is equal to one space (RFC 3261 §7.3.1).
pub(crate) fn fold_free_pieces(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let pieces = value.split(|byte| matches!(byte, b'\r' | b'\n'));
    let pieces = pieces.map(<[u8]>::trim_ascii);
    pieces.filter(|piece| !piece.is_empty())
}

/// A number in decimal, at the end of `digits`.
#[must_use]
pub fn decimal(number: u32, digits: &mut [u8; 10]) -> &[u8] {
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        // Ten digits hold any 32 bits.
        if let Some(digit) = digits.get_mut(at) {
            *digit = b'0' + (rest % 10) as u8;
        }
        rest /= 10;
        if rest == 0 {
            return digits.get(at..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal() {
        for number in [0, 7, 10, 70, 65_535, u32::MAX] {
            assert_eq!(decimal(number, &mut [0; 10]), number.to_string().as_bytes());
        }
    }

    #[test]
    fn a_value_cannot_smuggle_a_field_in() {
        for wrong in ["a\r\nVia: x", "a\nb", "a\rb"] {
            let mut buffer = [0; 256];
            let mut builder = Builder::request(&mut buffer, Method::Bye, b"sip:a");
            builder.header(HeaderKind::Subject, wrong.as_bytes());
            assert_eq!(builder.finish(), Err(BuildError::LineEnd));
        }
        for (method, uri) in [
            (&b"A B"[..], &b"sip:a"[..]),
            (b"A", b"sip:a b"),
            (b"A", b""),
            (b"", b"sip:a"),
        ] {
            let mut buffer = [0; 256];
            let builder = Builder::request(&mut buffer, Method::Other(method), uri);
            assert_eq!(builder.finish(), Err(BuildError::Token));
        }
    }

    #[test]
    fn a_buffer_of_any_length_is_enough_or_not() {
        let write = |buffer: &mut [u8]| {
            let mut builder = Builder::status(buffer, 200, b"OK");
            let ip = "2001:db8::1".parse().expect("an address");
            builder.named(b"X", &[Part::Ip(ip), Part::Number(5)]);
            builder.finish_with(b"body").map(<[u8]>::to_vec)
        };
        let whole = write(&mut [0; 256]).expect("room");
        assert_eq!(
            whole,
            b"SIP/2.0 200 OK\r\nX: [2001:db8::1]5\r\nContent-Length: 4\r\n\r\nbody"
        );
        for len in 0..whole.len() {
            assert_eq!(write(&mut vec![0; len]), Err(BuildError::NoRoom), "{len}");
        }
        assert_eq!(write(&mut vec![0; whole.len()]), Ok(whole));
    }
}
