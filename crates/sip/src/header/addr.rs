//! From, To, Contact, Route, Record-Route, Path and other header fields with an address and parameters (RFC 3261
//! §20.10).

use super::params::{self, Params};
use crate::chars::{self, LWS, TOKEN};
use crate::cursor::Cursor;
use crate::uri::{Uri, UriError};

/// `"Display" <uri>;params`, or `uri;params`, whose parameters then are the header's (RFC 3261 §20.10).
#[derive(Clone, Copy, Debug)]
pub struct NameAddr<'a> {
    /// The value as it is in the message, without white space around it.
    pub bytes: &'a [u8],
    /// The display name as it is in the message, with its quotes; empty if there is none.
    pub display: &'a [u8],
    /// The URI, not yet looked into: see [`NameAddr::parse_uri`].
    pub uri: &'a [u8],
    /// `tag`, not empty.
    pub tag: Option<&'a [u8]>,
    /// All parameters of the header, the tag included.
    pub params: Params<'a>,
}

/// One value of Contact.
#[derive(Clone, Copy, Debug)]
pub enum Contact<'a> {
    /// `*`: all bindings, in a REGISTER (RFC 3261 §10.2.2).
    Star,
    /// An address.
    Addr(NameAddr<'a>),
}

impl<'a> NameAddr<'a> {
    /// Reads the URI.
    ///
    /// # Errors
    /// [`UriError`] if it is malformed.
    pub fn parse_uri(&self) -> Result<Uri<'a>, UriError> {
        Uri::parse(self.uri)
    }

    /// The values of a list with commas between, as it is stored (RFC 3327 §5.3); those in front of a malformed one.
    #[must_use]
    pub fn list(text: &'a [u8]) -> Vec<NameAddr<'a>> {
        NameAddr::values(text).collect()
    }

    /// Like [`NameAddr::list`], as an iterator that allocates nothing.
    pub fn values(text: &'a [u8]) -> impl Iterator<Item = NameAddr<'a>> {
        let mut cursor = Cursor::new(text);
        let mut is_over = false;
        std::iter::from_fn(move || {
            if is_over || cursor.is_at_end() {
                return None;
            }
            let value = NameAddr::read(&mut cursor)?;
            cursor.skip_lws();
            is_over = !cursor.skip_if(b',');
            Some(value)
        })
    }

    /// The parameter `expires` of a Contact, in seconds; `None` if it is absent or malformed, which mean the same
    /// (RFC 3261 §10.2.1.1). A number above 2^32 - 1 is as good as that.
    #[must_use]
    pub fn expires(&self) -> Option<u32> {
        super::small::delta_seconds(self.params.get(b"expires")?.value?)
    }

    /// The parameter `q` of a Contact, in thousandths; `None` if it is absent or malformed.
    #[must_use]
    pub fn q(&self) -> Option<u16> {
        super::small::qvalue(self.params.get(b"q")?.value?)
    }

    /// Reads one value up to a comma or the end; `None` if it is malformed.
    #[inline]
    pub(crate) fn read(cursor: &mut Cursor<'a>) -> Option<NameAddr<'a>> {
        cursor.skip_lws();
        let from = cursor.at();
        let display = read_display(cursor)?;
        let uri = match cursor.skip_if(b'<') {
            true => cursor.until(b'>')?,
            // A URI with a comma, a question mark or a semicolon must be in brackets: here they end it.
            false if display.is_empty() => read_bare_uri(cursor)?,
            false => return None,
        };
        let mut tag = None;
        let (params, end) = params::read(cursor, |param| {
            if param.name.len() == 3 && param.name.eq_ignore_ascii_case(b"tag") {
                tag = tag.or(Some(param.value?));
            }
            Some(())
        })?;
        let bytes = cursor.since(from).get(..end - from)?;
        (!uri.is_empty()).then_some(NameAddr {
            bytes,
            display,
            uri,
            tag,
            params,
        })
    }
}

impl<'a> Contact<'a> {
    /// Reads one value up to a comma or the end; `None` if it is malformed.
    #[inline]
    pub(crate) fn read(cursor: &mut Cursor<'a>) -> Option<Contact<'a>> {
        cursor.skip_lws();
        let before = *cursor;
        if cursor.skip_if(b'*') {
            cursor.skip_lws();
            if matches!(cursor.peek(), None | Some(b',')) {
                return Some(Contact::Star);
            }
            *cursor = before;
        }
        NameAddr::read(cursor).map(Contact::Addr)
    }
}

/// Passes a display name and the white space behind it; empty if a URI comes first.
#[inline]
fn read_display<'a>(cursor: &mut Cursor<'a>) -> Option<&'a [u8]> {
    match cursor.peek()? {
        b'<' => Some(&[]),
        b'"' => {
            let display = cursor.quoted()?;
            cursor.skip_lws();
            Some(display)
        }
        _ => {
            let before = *cursor;
            // Tokens with white space between. Bytes above 127 are not in the grammar without quotes, and often sent.
            while cursor
                .peek()
                .is_some_and(|byte| chars::is(byte, TOKEN | LWS) || byte >= 0x80)
            {
                cursor.skip(1);
            }
            let display = chars::trim(cursor.since(before.at()));
            if cursor.peek() == Some(b'<') {
                return Some(display);
            }
            *cursor = before;
            Some(&[])
        }
    }
}

/// Passes an `addr-spec` without brackets.
#[inline]
fn read_bare_uri<'a>(cursor: &mut Cursor<'a>) -> Option<&'a [u8]> {
    let from = cursor.at();
    while let Some(byte) = cursor.peek() {
        match byte {
            b';' | b',' => break,
            b'?' | b'<' | b'>' | b'"' => return None,
            byte if chars::is(byte, LWS) => break,
            _ => cursor.skip(1),
        }
    }
    let uri = cursor.since(from);
    memchr::memchr(b':', uri).map(|_| uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &[u8]) -> Option<NameAddr<'_>> {
        NameAddr::read(&mut Cursor::new(text))
    }

    #[test]
    fn display_names_come_quoted_or_as_tokens() {
        let quoted =
            addr(b"\"Bell, \\\"A\\\"\" <sip:a@example.com;x>;tag=1;y").expect("well-formed");
        assert_eq!(quoted.display, b"\"Bell, \\\"A\\\"\"");
        assert_eq!(quoted.uri, b"sip:a@example.com;x");
        assert_eq!(quoted.tag, Some(&b"1"[..]));
        let tokens =
            addr("A.  G.\r\n Béll <sip:a@example.com> ; tag = 2 ".as_bytes()).expect("well-formed");
        assert_eq!(tokens.display, "A.  G.\r\n Béll".as_bytes());
        assert_eq!(tokens.tag, Some(&b"2"[..]));
        assert_eq!(tokens.bytes.last(), Some(&b'2'));
        assert_eq!(addr(b"<sip:x>").expect("well-formed").display, b"");
    }

    #[test]
    fn without_brackets_parameters_are_the_headers() {
        let bare = addr(b"sip:a@example.com;tag=x").expect("well-formed");
        assert_eq!(
            (bare.uri, bare.tag),
            (&b"sip:a@example.com"[..], Some(&b"x"[..]))
        );
        assert!(addr(b"sip:a@example.com?Route=%3C").is_none());
    }

    #[test]
    fn malformed_ones_are_refused() {
        for wrong in [
            "",
            "<sip:x",
            "\"open <sip:x>",
            "name sip:x",
            "Bell, A <sip:x>",
            "<sip:x> tag=1",
            "nocolon",
            "<>",
            "<sip:x>;tag",
            "<sip:x>;tag=1 x",
        ] {
            let mut cursor = Cursor::new(wrong.as_bytes());
            let whole = NameAddr::read(&mut cursor).filter(|_| cursor.is_at_end());
            assert!(whole.is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_star_is_a_contact_of_its_own() {
        assert!(matches!(
            Contact::read(&mut Cursor::new(b" * ")),
            Some(Contact::Star)
        ));
        let named = Contact::read(&mut Cursor::new(b"* <sip:x>;q=0.5;expires=7"));
        let Some(Contact::Addr(named)) = named else {
            panic!("a display name of one asterisk")
        };
        assert_eq!(
            (named.display, named.q(), named.expires()),
            (&b"*"[..], Some(500), Some(7))
        );
    }
}
