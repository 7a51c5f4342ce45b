//! Header lines: the one pass over the bytes that parsing and the admission scan share.

use super::ParseError;
use crate::chars::{self, TOKEN};
use crate::header::HeaderKind;

/// One header field with its folds, as offsets from the start of the message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) kind: HeaderKind,
    pub(crate) start: usize,
    pub(crate) name_end: usize,
    pub(crate) value_start: usize,
    pub(crate) value_end: usize,
    /// Behind the line end.
    pub(crate) end: usize,
}

/// Walks from line to line. Each byte is looked at once or twice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Lines<'a> {
    /// From `at`, the first byte behind the start line. `bytes` may be cut at a limit.
    #[inline]
    pub(crate) const fn new(bytes: &'a [u8], at: usize) -> Lines<'a> {
        Lines { bytes, at }
    }

    /// Where the next line begins; behind the blank line after the last.
    #[inline]
    pub(crate) const fn at(&self) -> usize {
        self.at
    }

    /// The next field; `None` behind the blank line.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Result<Option<Line>, ParseError> {
        let start = self.at;
        let mut at = start;
        while self
            .bytes
            .get(at)
            .is_some_and(|&byte| chars::is(byte, TOKEN))
        {
            at += 1;
        }
        let name_end = at;
        if name_end == start {
            return self.blank().map(|()| None);
        }
        // RFC 3261 §25.1: HCOLON has spaces and tabs before the colon, and any LWS behind it.
        while let Some(b' ' | b'\t') = self.bytes.get(at) {
            at += 1;
        }
        match self.bytes.get(at) {
            Some(b':') => at += 1,
            Some(_) => return Err(ParseError::HeaderName),
            None => return Err(ParseError::Unfinished),
        }
        while let Some(b' ' | b'\t') = self.bytes.get(at) {
            at += 1;
        }
        let mut value_end = line_end(self.bytes, at)?;
        let mut end = value_end + 2;
        let mut value_start = at;
        // A line that begins with white space goes on with the value (§7.3.1).
        while let Some(b' ' | b'\t') = self.bytes.get(end) {
            value_end = line_end(self.bytes, end)?;
            end = value_end + 2;
        }
        let is_lws = |at: usize| {
            self.bytes
                .get(at)
                .is_some_and(|&byte| chars::is(byte, chars::LWS))
        };
        while value_end > value_start && is_lws(value_end - 1) {
            value_end -= 1;
        }
        while value_start < value_end && is_lws(value_start) {
            value_start += 1;
        }
        self.at = end;
        let kind = HeaderKind::of(self.bytes.get(start..name_end).unwrap_or_default());
        Ok(Some(Line {
            kind,
            start,
            name_end,
            value_start,
            value_end,
            end,
        }))
    }

    /// Passes the blank line.
    fn blank(&mut self) -> Result<(), ParseError> {
        match self.bytes.get(self.at..) {
            Some([b'\r', b'\n', ..]) => {
                self.at += 2;
                Ok(())
            }
            None | Some([] | [b'\r']) => Err(ParseError::Unfinished),
            Some([b'\r' | b'\n', ..]) => Err(ParseError::LineEnd),
            Some(_) => Err(ParseError::HeaderName),
        }
    }
}

/// The offset of the CRLF at or behind `from`. A CR or LF alone is an error: no grammar of SIP has one, and who reads it as
/// a line end sees other headers than who does not.
#[inline(always)]
pub(crate) fn line_end(bytes: &[u8], from: usize) -> Result<usize, ParseError> {
    let rest = bytes.get(from..).unwrap_or_default();
    let hit = memchr::memchr2(b'\r', b'\n', rest).ok_or(ParseError::Unfinished)?;
    match (rest.get(hit), rest.get(hit + 1)) {
        (Some(b'\r'), Some(b'\n')) => Ok(from + hit),
        (Some(b'\r'), None) => Err(ParseError::Unfinished),
        _ => Err(ParseError::LineEnd),
    }
}
