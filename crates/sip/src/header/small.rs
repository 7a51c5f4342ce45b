//! Headers of one number or a few tokens.

use super::params::{self, Params};
use crate::Method;
use crate::chars::{self, DIGIT, LWS, TOKEN};
use crate::cursor::Cursor;

/// CSeq (RFC 3261 §20.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CSeq<'a> {
    /// The sequence number. RFC 3261 §8.1.1.5 keeps it below 2^31 where it is chosen; any 32 bits are read.
    pub number: u32,
    /// The method.
    pub method: Method<'a>,
}

impl<'a> CSeq<'a> {
    /// The whole of `value`; `None` if it is malformed.
    #[inline]
    pub(crate) fn parse(value: &'a [u8]) -> Option<CSeq<'a>> {
        let mut cursor = Cursor::new(value);
        cursor.skip_lws();
        let number = chars::decimal(cursor.take(DIGIT))?;
        if !cursor.peek().is_some_and(|byte| chars::is(byte, LWS)) {
            return None;
        }
        cursor.skip_lws();
        let method = cursor.take(TOKEN);
        cursor.skip_lws();
        (!method.is_empty() && cursor.is_at_end()).then(|| CSeq {
            number,
            method: Method::of(method),
        })
    }
}

/// Retry-After (RFC 3261 §20.33).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryAfter {
    /// Seconds from now on; more than 32 bits hold is read as the greatest number they hold.
    pub seconds: u32,
    /// `duration`: for how long the callee is reachable then, in seconds.
    pub duration: Option<u32>,
}

impl RetryAfter {
    /// The whole of `value`; `None` if it is malformed.
    pub(crate) fn parse(value: &[u8]) -> Option<RetryAfter> {
        let mut cursor = Cursor::new(value);
        cursor.skip_lws();
        let seconds = delta_seconds(cursor.take(DIGIT))?;
        cursor.skip_lws();
        if cursor.peek() == Some(b'(') {
            skip_comment(&mut cursor)?;
        }
        let (params, _) = params::read(&mut cursor, |_| Some(()))?;
        let duration = match params.get(b"duration") {
            Some(param) => Some(delta_seconds(param.value?)?),
            None => None,
        };
        cursor
            .is_at_end()
            .then_some(RetryAfter { seconds, duration })
    }
}

/// A number of seconds; more than 32 bits hold is the greatest number they hold (RFC 3261 §20.19 has that limit).
pub(crate) fn delta_seconds(digits: &[u8]) -> Option<u32> {
    chars::all(digits, DIGIT).then(|| chars::decimal(digits).unwrap_or(u32::MAX))
}

/// Content-Type (RFC 3261 §20.15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaType<'a> {
    /// `application`, in any case.
    pub main: &'a [u8],
    /// `sdp`, in any case.
    pub sub: &'a [u8],
    /// Its parameters.
    pub params: Params<'a>,
}

impl<'a> MediaType<'a> {
    /// The whole of `value`; `None` if it is malformed.
    pub(crate) fn parse(value: &'a [u8]) -> Option<MediaType<'a>> {
        let mut cursor = Cursor::new(value);
        let main = cursor.take(TOKEN);
        if main.is_empty() || !cursor.skip_separator(b'/') {
            return None;
        }
        let sub = cursor.take(TOKEN);
        let (params, _) = params::read(&mut cursor, |_| Some(()))?;
        (!sub.is_empty() && cursor.is_at_end()).then_some(MediaType { main, sub, params })
    }
}

/// A `qvalue` (RFC 3261 §25.1) in thousandths. Some write it without the zero: `.5`.
pub(crate) fn qvalue(text: &[u8]) -> Option<u16> {
    let (whole, fraction) = match text {
        [b'.', fraction @ ..] if matches!(fraction.len(), 1..=3) => (&b'0', fraction),
        [whole @ (b'0' | b'1')] => (whole, &[][..]),
        [whole @ (b'0' | b'1'), b'.', fraction @ ..] if fraction.len() <= 3 => (whole, fraction),
        _ => return None,
    };
    let mut thousandths = u16::from(whole - b'0') * 1000;
    for (digit, weight) in fraction.iter().zip([100, 10, 1]) {
        if !digit.is_ascii_digit() {
            return None;
        }
        thousandths += u16::from(digit - b'0') * weight;
    }
    (thousandths <= 1000).then_some(thousandths)
}

/// Passes a `comment`, which may hold others, without recursion.
fn skip_comment(cursor: &mut Cursor<'_>) -> Option<()> {
    let mut depth = 0_u32;
    loop {
        match cursor.peek()? {
            b'(' => depth += 1,
            b')' => depth -= 1,
            b'\\' => cursor.skip(1),
            _ => {}
        }
        cursor.skip(1);
        if depth == 0 {
            cursor.skip_lws();
            return Some(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cseq_is_a_number_of_32_bits_and_a_method() {
        let read = |text: &'static str| CSeq::parse(text.as_bytes());
        assert_eq!(
            read("0009 \r\n INVITE"),
            Some(CSeq {
                number: 9,
                method: Method::Invite
            })
        );
        assert_eq!(read("4294967295 X").map(|cseq| cseq.number), Some(u32::MAX));
        for wrong in [
            "4294967296 INVITE",
            "INVITE",
            "1INVITE",
            "1",
            "1 ",
            "-1 INVITE",
            "1 INVITE x",
            "36893488147419103232 REGISTER",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn retry_after_has_a_comment_and_a_duration() {
        let read = |text: &'static str| RetryAfter::parse(text.as_bytes());
        let full = read("120 (I'm (in) a \\) meeting) ; duration=3600").expect("well-formed");
        assert_eq!((full.seconds, full.duration), (120, Some(3600)));
        assert_eq!(
            read("99999999999999").map(|after| after.seconds),
            Some(u32::MAX)
        );
        for wrong in ["", "x", "1 (open", "1 x", "1;duration=x"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_qvalue_has_at_most_three_decimals() {
        for (text, thousandths) in [
            ("1", 1000),
            ("1.", 1000),
            ("1.000", 1000),
            ("0", 0),
            ("0.5", 500),
            (".5", 500),
            ("0.001", 1),
        ] {
            assert_eq!(qvalue(text.as_bytes()), Some(thousandths), "{text}");
        }
        for wrong in ["", "2", "1.1", "0.0001", "0,5", ".", ".0001", "0.x"] {
            assert_eq!(qvalue(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
