//! Header lines of a message, one after the other, without interpreting them.

use memchr::memchr;

/// One header line; a folded one is one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// With its line end.
    pub(crate) whole: &'a [u8],
    /// Up to the colon, without blanks.
    pub(crate) name: &'a [u8],
    /// After the colon, without blanks around it.
    pub(crate) value: &'a [u8],
}

impl Line<'_> {
    /// The header has this name, or its compact form.
    pub(crate) fn is(&self, long: &[u8], compact: &[u8]) -> bool {
        self.name.eq_ignore_ascii_case(long) || self.name.eq_ignore_ascii_case(compact)
    }
}

/// The lines between the start line and the empty line.
#[derive(Clone, Debug)]
pub(crate) struct Lines<'a> {
    rest: &'a [u8],
}

impl<'a> Lines<'a> {
    /// The lines of `message`; none if it has no line end.
    pub(crate) fn of(message: &'a [u8]) -> Lines<'a> {
        let rest = match memchr(b'\n', message) {
            Some(end) => &message[end + 1..],
            None => &[],
        };
        Lines { rest }
    }

    /// The value of the first header of this name.
    pub(crate) fn find(mut self, long: &[u8], compact: &[u8]) -> Option<&'a [u8]> {
        self.find_map(|line| line.is(long, compact).then_some(line.value))
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = Line<'a>;

    fn next(&mut self) -> Option<Line<'a>> {
        let mut end = memchr(b'\n', self.rest)? + 1;
        while matches!(self.rest.get(end), Some(b' ' | b'\t')) {
            end += memchr(b'\n', &self.rest[end..])? + 1;
        }
        let (whole, rest) = self.rest.split_at(end);
        if matches!(whole, b"\n" | b"\r\n") {
            self.rest = &[];
            return None;
        }
        self.rest = rest;
        let colon = memchr(b':', whole).unwrap_or(0);
        Some(Line {
            whole,
            name: whole[..colon].trim_ascii(),
            value: whole.get(colon + 1..).unwrap_or_default().trim_ascii(),
        })
    }
}

/// A number of decimal digits at the start of `text`; 0 if there is none, saturating.
pub(crate) fn leading_number(text: &[u8]) -> u64 {
    text.iter()
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0u64, |number, byte| {
            number
                .saturating_mul(10)
                .saturating_add(u64::from(byte - b'0'))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_names_and_values_and_folds_stay_together() {
        let text = b"SIP/2.0 200 OK\r\nVia: a\r\n b\r\nl : 5\r\nnonsense\r\n\r\nTo: body\r\n";
        let all: Vec<_> = Lines::of(text).collect();
        assert_eq!(all.len(), 3);
        assert_eq!(all[0].value, b"a\r\n b");
        assert!(all[1].is(b"Content-Length", b"l") && all[1].value == b"5");
        assert_eq!(Lines::of(text).find(b"to", b"t"), None);
        assert_eq!(Lines::of(b"no line end").count(), 0);
    }

    #[test]
    fn numbers_end_where_digits_end() {
        assert_eq!(leading_number(b"42 INVITE"), 42);
        assert_eq!(leading_number(b"x"), 0);
        assert_eq!(leading_number(&[b'9'; 40]), u64::MAX);
    }
}
