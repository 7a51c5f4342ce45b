//! Parameters: `;name[=value]`, as most headers have them.

use crate::chars::{TOKEN, VALUE};
use crate::cursor::Cursor;

/// One parameter as it is in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param<'a> {
    /// Its name, which compares without regard to case.
    pub name: &'a [u8],
    /// Its value, with quotes if it has any; `None` without `=`.
    pub value: Option<&'a [u8]>,
}

/// The parameters of a header's value, checked once and read again when asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params<'a>(&'a [u8]);

impl<'a> Params<'a> {
    /// The parameters as they are in the message, from the first `;`.
    #[inline]
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// The parameters in their order.
    #[inline]
    #[must_use]
    pub fn iter(&self) -> ParamIter<'a> {
        ParamIter(Cursor::new(self.0))
    }

    /// The first parameter with this name, in any case.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<Param<'a>> {
        self.iter()
            .find(|param| param.name.eq_ignore_ascii_case(name))
    }
}

impl<'a> IntoIterator for Params<'a> {
    type Item = Param<'a>;
    type IntoIter = ParamIter<'a>;

    fn into_iter(self) -> ParamIter<'a> {
        self.iter()
    }
}

/// See [`Params::iter`].
#[derive(Clone, Debug)]
pub struct ParamIter<'a>(Cursor<'a>);

impl<'a> Iterator for ParamIter<'a> {
    type Item = Param<'a>;

    #[inline]
    fn next(&mut self) -> Option<Param<'a>> {
        match self.0.skip_separator(b';') {
            true => one(&mut self.0),
            false => None,
        }
    }
}

/// Reads parameters up to a comma or the end, showing each to `see`; also says where the last one ends. `None` if they
/// are malformed.
#[inline(always)]
pub(crate) fn read<'a>(
    cursor: &mut Cursor<'a>,
    mut see: impl FnMut(&Param<'a>) -> Option<()>,
) -> Option<(Params<'a>, usize)> {
    let mut end = cursor.at();
    cursor.skip_lws();
    let from = cursor.at();
    while cursor.skip_separator(b';') {
        see(&one(cursor)?)?;
        end = cursor.at();
    }
    let params = cursor
        .since(from)
        .get(..end.saturating_sub(from))
        .unwrap_or_default();
    cursor.skip_lws();
    match cursor.peek() {
        None | Some(b',') => Some((Params(params), end)),
        Some(_) => None,
    }
}

/// Reads `name[=value]`.
#[inline(always)]
fn one<'a>(cursor: &mut Cursor<'a>) -> Option<Param<'a>> {
    let name = cursor.take(TOKEN);
    if name.is_empty() {
        return None;
    }
    let value = match cursor.skip_separator(b'=') {
        false => None,
        true if cursor.peek() == Some(b'"') => Some(cursor.quoted()?),
        true => Some(cursor.take(VALUE)).filter(|value| !value.is_empty()),
    };
    // `name=` without a value is seen in the wild (`rport=`), and nothing is gained by refusing it.
    Some(Param { name, value })
}

/// Writes the text that a quoted string means, without quotes and backslashes, into `buffer`; other text as it is.
///
/// `None` if `buffer` is too short.
#[must_use]
pub fn unquote<'b>(text: &[u8], buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    let inner = match text {
        [b'"', inner @ .., b'"'] => inner,
        plain => {
            let room = buffer.get_mut(..plain.len())?;
            room.copy_from_slice(plain);
            return Some(room);
        }
    };
    let mut length = 0;
    let mut bytes = inner.iter();
    while let Some(&byte) = bytes.next() {
        let meant = match byte {
            b'\\' => bytes.next().copied().unwrap_or(b'\\'),
            other => other,
        };
        *buffer.get_mut(length)? = meant;
        length += 1;
    }
    buffer.get(..length)
}

#[cfg(test)]
mod tests {
    use super::*;

    type All<'a> = Vec<(&'a [u8], Option<&'a [u8]>)>;

    fn all(text: &[u8]) -> Option<All<'_>> {
        let (params, _) = read(&mut Cursor::new(text), |_| Some(()))?;
        assert_eq!(params.as_bytes(), crate::chars::trim(params.as_bytes()));
        Some(
            params
                .iter()
                .map(|param| (param.name, param.value))
                .collect(),
        )
    }

    #[test]
    fn white_space_and_folds_go_around_separators() {
        let read = all(b" ;\r\n a = 1 ; lr;c=\"x;,\\\"\"  ").expect("well-formed");
        assert_eq!(
            read,
            [
                (&b"a"[..], Some(&b"1"[..])),
                (b"lr", None),
                (b"c", Some(b"\"x;,\\\"\""))
            ]
        );
    }

    #[test]
    fn a_comma_ends_them_and_anything_else_is_malformed() {
        assert_eq!(all(b";a=[2001:db8::1],next").map(|all| all.len()), Some(1));
        assert_eq!(all(b";a=b c"), None);
        assert_eq!(all(b";;a"), None);
        assert_eq!(all(b";a=\"open"), None);
        assert_eq!(all(b";"), None);
        assert_eq!(all(b""), Some(Vec::new()));
        assert_eq!(all(b";rport="), Some(vec![(&b"rport"[..], None)]));
    }

    #[test]
    fn unquoting_removes_quotes_and_backslashes() {
        let mut buffer = [0; 8];
        assert_eq!(
            unquote(b"\"a\\\"b\\\\\"", &mut buffer),
            Some(&b"a\"b\\"[..])
        );
        assert_eq!(unquote(b"plain", &mut buffer), Some(&b"plain"[..]));
        assert_eq!(unquote(b"\"much too long\"", &mut buffer), None);
    }
}
