//! Authorization, Proxy-Authorization, WWW-Authenticate, Proxy-Authenticate (RFC 3261 §20.7, §20.27, §20.28, §20.44).

use crate::chars::{self, LWS, TOKEN};
use crate::cursor::Cursor;

/// Credentials or a challenge: a scheme and its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authorization<'a> {
    /// `Digest`, in any case, or another scheme.
    pub scheme: &'a [u8],
    /// What follows the scheme.
    pub params: AuthParams<'a>,
}

impl<'a> Authorization<'a> {
    /// The whole of `value`; `None` if it has no scheme and something behind it. The parameters are not looked into:
    /// other schemes than Digest may have other grammars.
    #[must_use]
    pub fn parse(value: &'a [u8]) -> Option<Authorization<'a>> {
        let mut cursor = Cursor::new(value);
        cursor.skip_lws();
        let scheme = cursor.take(TOKEN);
        if scheme.is_empty() || !cursor.peek().is_some_and(|byte| chars::is(byte, LWS)) {
            return None;
        }
        cursor.skip_lws();
        Some(Authorization {
            scheme,
            params: AuthParams(cursor.rest()),
        })
    }

    /// Whether the scheme is Digest.
    #[must_use]
    pub fn is_digest(&self) -> bool {
        self.scheme.eq_ignore_ascii_case(b"Digest")
    }
}

/// `name=value, name="value"`, in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuthParams<'a>(&'a [u8]);

impl<'a> AuthParams<'a> {
    /// The parameters of a value without a scheme: Authentication-Info (RFC 3261 §20.6).
    #[must_use]
    pub const fn new(value: &'a [u8]) -> AuthParams<'a> {
        AuthParams(value)
    }

    /// Names and values, quotes included, in their order.
    #[must_use]
    pub fn iter(&self) -> AuthParamIter<'a> {
        AuthParamIter(Cursor::new(self.0))
    }

    /// The value of the first parameter with this name, in any case, quotes included.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// Calls `see` with each parameter, in order. `None` if a parameter violates the grammar, or if there is none.
    pub(crate) fn read(&self, mut see: impl FnMut(&'a [u8], &'a [u8])) -> Option<()> {
        let mut cursor = Cursor::new(self.0);
        loop {
            let (name, value) = one(&mut cursor)?;
            see(name, value);
            if !cursor.skip_separator(b',') {
                cursor.skip_lws();
                return cursor.is_at_end().then_some(());
            }
        }
    }
}

/// See [`AuthParams::iter`].
#[derive(Clone, Debug)]
pub struct AuthParamIter<'a>(Cursor<'a>);

impl<'a> Iterator for AuthParamIter<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let param = one(&mut self.0)?;
        self.0.skip_separator(b',');
        Some(param)
    }
}

/// Reads `name=value`.
#[inline]
fn one<'a>(cursor: &mut Cursor<'a>) -> Option<(&'a [u8], &'a [u8])> {
    let name = cursor.take(TOKEN);
    if name.is_empty() || !cursor.skip_separator(b'=') {
        return None;
    }
    let value = match cursor.peek()? {
        b'"' => cursor.quoted()?,
        _ => cursor.take(TOKEN),
    };
    (!value.is_empty()).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_quotes_are_not_separators() {
        let text = b"Digest  username=\"a, b\" ,\r\n realm=\"x\",nc=00000001 , qop = auth";
        let credentials = Authorization::parse(text).expect("well-formed");
        assert!(credentials.is_digest());
        assert_eq!(credentials.params.get(b"USERNAME"), Some(&b"\"a, b\""[..]));
        assert_eq!(credentials.params.get(b"nc"), Some(&b"00000001"[..]));
        assert_eq!(credentials.params.iter().count(), 4);
    }

    #[test]
    fn the_grammar_is_obeyed_to_the_end_or_not() {
        for wrong in ["a", "a=", "a=\"b", "a=b c=d", "a=b,", ",a=b", ""] {
            assert_eq!(
                AuthParams(wrong.as_bytes()).read(|_, _| {}),
                None,
                "{wrong}"
            );
        }
        assert_eq!(AuthParams(b"a=b , c = \"d, e\" ").read(|_, _| {}), Some(()));
    }

    #[test]
    fn other_schemes_may_have_any_grammar() {
        let other =
            Authorization::parse(b"NoOneKnowsThisScheme opaque-data=here").expect("any scheme");
        assert!(!other.is_digest());
        assert!(Authorization::parse(b"Bearer abc==").is_some());
        assert!(Authorization::parse(b"Digest").is_none());
    }
}
