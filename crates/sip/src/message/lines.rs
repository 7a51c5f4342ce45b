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
        if matches!(self.bytes.get(start), None | Some(b'\r' | b'\n')) {
            return self.blank().map(|()| None);
        }
        let colon = start + self.colon(start)?;
        let mut name = self.bytes.get(start..colon).unwrap_or_default();
        // RFC 3261 §25.1: HCOLON has spaces and tabs before the colon, and any LWS behind it.
        while let [rest @ .., b' ' | b'\t'] = name {
            name = rest;
        }
        let kind = HeaderKind::of(name);
        // Names with a kind are known to be tokens.
        if kind == HeaderKind::Other && !chars::all(name, TOKEN) {
            return Err(ParseError::HeaderName);
        }
        let name_end = start + name.len();
        let mut at = colon + 1;
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
        Ok(Some(Line {
            kind,
            start,
            name_end,
            value_start,
            value_end,
            end,
        }))
    }

    /// How far the next colon is. Nearly all names are shorter than 16 bytes: eight at a time is faster than a call.
    #[inline(always)]
    fn colon(&self, start: usize) -> Result<usize, ParseError> {
        let rest = self.bytes.get(start..).unwrap_or_default();
        let mut at = 0;
        while let Some(eight) = rest.get(at..).and_then(<[u8]>::first_chunk::<8>) {
            // A byte of `word` is 0 where a colon is. The expression below always finds the lowest such byte.
            let word = u64::from_le_bytes(*eight) ^ 0x3A3A_3A3A_3A3A_3A3A;
            let zeros = word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080;
            if zeros != 0 {
                return Ok(at + (zeros.trailing_zeros() / 8) as usize);
            }
            at += 8;
            if at >= 32 {
                break;
            }
        }
        let rest = rest.get(at..).unwrap_or_default();
        match memchr::memchr2(b':', b'\n', rest) {
            Some(hit) if rest.get(hit) == Some(&b':') => Ok(at + hit),
            Some(_) => Err(ParseError::HeaderName),
            None => Err(ParseError::Unfinished),
        }
    }

    /// Passes the blank line.
    fn blank(&mut self) -> Result<(), ParseError> {
        match self.bytes.get(self.at..) {
            Some([b'\r', b'\n', ..]) => {
                self.at += 2;
                Ok(())
            }
            None | Some([] | [b'\r']) => Err(ParseError::Unfinished),
            Some(_) => Err(ParseError::LineEnd),
        }
    }
}

/// The offset of the CRLF at or behind `from`. A CR or LF alone is an error. The grammar of SIP does not have it, and
/// two parsers that treat it differently would see different header fields.
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
