//! Request-Line and Status-Line (RFC 3261 §7.1, §7.2).

use super::{Limits, ParseError};
use crate::Method;
use crate::chars::{self, TOKEN};

/// The first line of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartLine<'a> {
    /// A request.
    Request {
        /// Its method.
        method: Method<'a>,
        /// Its Request-URI, not yet looked into.
        uri: &'a [u8],
    },
    /// A response.
    Response {
        /// Its code, 100 to 699.
        code: u16,
        /// Its reason phrase, perhaps empty; UTF-8 by the RFC, any bytes by experience.
        reason: &'a [u8],
    },
}

const VERSION: &[u8] = b"SIP/2.0";

/// Reads the line, which is without its line end.
#[inline]
pub(crate) fn parse<'a>(line: &'a [u8], limits: &Limits) -> Result<StartLine<'a>, ParseError> {
    if is_response(line) {
        return parse_status(line);
    }
    let space = memchr::memchr(b' ', line).ok_or(ParseError::RequestLine)?;
    let (method, rest) = line.split_at(space);
    let rest = rest.get(1..).unwrap_or_default();
    // RFC 3261 §7.1: one space between the elements and none elsewhere, nor any other white space.
    let space = memchr::memchr2(b' ', b'\t', rest).ok_or(ParseError::RequestLine)?;
    let (uri, version) = rest.split_at(space);
    if version.first() != Some(&b' ') {
        return Err(ParseError::RequestLine);
    }
    let version = version.get(1..).unwrap_or_default();
    if !chars::all(method, TOKEN) || uri.is_empty() {
        return Err(ParseError::RequestLine);
    }
    if version != VERSION && !version.eq_ignore_ascii_case(VERSION) {
        return Err(match is_version(version) {
            true => ParseError::Version,
            false => ParseError::RequestLine,
        });
    }
    if uri.len() > limits.uri_bytes {
        return Err(ParseError::UriTooLong);
    }
    let method = Method::of(method);
    Ok(StartLine::Request { method, uri })
}

/// Whether the line is a response's: it begins with a version, which no method can, having a slash.
#[inline]
pub(crate) fn is_response(line: &[u8]) -> bool {
    line.get(..4)
        .is_some_and(|start| start.eq_ignore_ascii_case(b"SIP/"))
}

/// `SIP/x.y`.
fn is_version(text: &[u8]) -> bool {
    let Some(numbers) = text.get(4..).filter(|_| is_response(text)) else {
        return false;
    };
    let mut parts = numbers.split(|&byte| byte == b'.');
    let mut number = || {
        parts
            .next()
            .is_some_and(|part| chars::all(part, chars::DIGIT))
    };
    number() && number() && parts.next().is_none()
}

/// RFC 3261 §7.2. A response cannot be answered, so that any fault is the same.
fn parse_status(line: &[u8]) -> Result<StartLine<'_>, ParseError> {
    let status = |line: &[u8]| {
        let (version, rest) = line.split_at_checked(VERSION.len())?;
        // Some leave out the space in front of an empty phrase; nothing is to be gained by being deaf to them.
        let (b' ', [a, b, c], [] | [b' ', ..]) = rest.split_first().and_then(|(space, rest)| {
            let (code, rest) = rest.split_first_chunk::<3>()?;
            Some((*space, code, rest))
        })?
        else {
            return None;
        };
        let code = chars::decimal(&[*a, *b, *c])? as u16;
        let is_code = (100..700).contains(&code);
        (version.eq_ignore_ascii_case(VERSION) && is_code).then_some(code)
    };
    let code = status(line).ok_or(ParseError::StatusLine)?;
    let reason = line.get(VERSION.len() + 5..).unwrap_or_default();
    Ok(StartLine::Response { code, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Result<StartLine<'_>, ParseError> {
        parse(text.as_bytes(), &Limits::DEFAULT)
    }

    #[test]
    fn one_space_between_the_elements() {
        let invite = StartLine::Request {
            method: Method::Invite,
            uri: b"sip:a@b",
        };
        assert_eq!(line("INVITE sip:a@b SIP/2.0"), Ok(invite));
        assert_eq!(line("INVITE sip:a@b sip/2.0"), Ok(invite));
        for wrong in [
            "INVITE  sip:a@b SIP/2.0",
            "INVITE sip:a@b  SIP/2.0",
            "INVITE sip:a@b SIP/2.0 ",
            " INVITE sip:a@b SIP/2.0",
            "INVITE sip:a b SIP/2.0",
            "INVITE SIP/2.0",
            "INVITE",
            "",
            "INV{TE sip:a SIP/2.0",
            "INVITE sip:a\tb SIP/2.0",
            "GET / HTTP/1.1",
        ] {
            assert_eq!(line(wrong), Err(ParseError::RequestLine), "{wrong}");
        }
    }

    #[test]
    fn another_version_is_recognized() {
        for version in ["SIP/7.0", "SIP/2.1", "sip/10.23"] {
            assert_eq!(
                line(&format!("OPTIONS sip:a {version}")),
                Err(ParseError::Version),
                "{version}"
            );
        }
        assert_eq!(line("OPTIONS sip:a SIP/2"), Err(ParseError::RequestLine));
    }

    #[test]
    fn a_status_line_has_a_code_of_three_digits_and_any_phrase() {
        let is = |code, reason: &'static str| {
            Ok(StartLine::Response {
                code,
                reason: reason.as_bytes(),
            })
        };
        assert_eq!(
            line("SIP/2.0 200 = 2**3 * 5**2 но сто"),
            is(200, "= 2**3 * 5**2 но сто")
        );
        assert_eq!(line("SIP/2.0 100 "), is(100, ""));
        assert_eq!(line("SIP/2.0 100"), is(100, ""));
        for wrong in [
            "SIP/2.0 100x",
            "SIP/2.0 4294967301 better",
            "SIP/2.0 700 x",
            "SIP/2.0 099 x",
            "SIP/3.0 200 OK",
            "SIP/2.0  200 OK",
        ] {
            assert_eq!(line(wrong), Err(ParseError::StatusLine), "{wrong}");
        }
    }

    #[test]
    fn a_long_uri_is_its_own_error() {
        let limits = Limits {
            uri_bytes: 7,
            ..Limits::DEFAULT
        };
        assert!(parse(b"OPTIONS sip:a@b SIP/2.0", &limits).is_ok());
        assert_eq!(
            parse(b"OPTIONS sip:a@bc SIP/2.0", &limits),
            Err(ParseError::UriTooLong)
        );
    }
}
