//! URIs (RFC 3261 §19.1, RFC 3966): sip, sips, tel, and any other as it stands.

mod compare;
mod escape;

use crate::chars::{self, DIGIT, PASSWORD, SCHEME, URI_HEADER, URI_PARAM, URIC, USER};
use crate::cursor::Cursor;
use crate::header::ViaTransport;
use crate::host::Host;
pub use escape::{escape_user, unescape};

/// The most parameters, and the most headers, that a sip URI may have: they are compared each with each.
pub const MAX_URI_PARAMS: usize = 64;

/// Why text is not a URI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum UriError {
    /// It does not begin with a scheme and a colon.
    #[error("URI has no scheme")]
    Scheme,
    /// The user or the password is empty or has a byte that must be escaped.
    #[error("malformed user in a URI")]
    User,
    /// The host is missing or malformed.
    #[error("malformed host in a URI")]
    Host,
    /// The port is no number from 1 to 65535.
    #[error("malformed port in a URI")]
    Port,
    /// A parameter is malformed, or there are too many.
    #[error("malformed parameter in a URI")]
    Params,
    /// A header is malformed, or there are too many.
    #[error("malformed header in a URI")]
    Headers,
    /// A telephone number without digits, or a byte that no URI has.
    #[error("a byte that does not belong in a URI")]
    Byte,
}

/// A URI over the bytes it was read from.
#[derive(Clone, Copy, Debug)]
pub enum Uri<'a> {
    /// `sip:` or `sips:`
    Sip(SipUri<'a>),
    /// `tel:`
    Tel(TelUri<'a>),
    /// Any other scheme.
    Other {
        /// The scheme, in any case.
        scheme: &'a [u8],
        /// What follows the colon.
        rest: &'a [u8],
    },
}

/// A `sip:` or `sips:` URI.
#[derive(Clone, Copy, Debug)]
pub struct SipUri<'a> {
    /// Whether the scheme is `sips`.
    pub is_sips: bool,
    /// The user, escapes and all. Compares with regard to case.
    pub user: Option<&'a [u8]>,
    /// The password, escapes and all.
    pub password: Option<&'a [u8]>,
    /// The host.
    pub host: Host<'a>,
    /// The port, if it is named; not 0.
    pub port: Option<u16>,
    /// The parameters.
    pub params: UriParams<'a>,
    /// The headers: what follows the question mark.
    pub headers: UriHeaders<'a>,
}

/// A `tel:` URI (RFC 3966).
#[derive(Clone, Copy, Debug)]
pub struct TelUri<'a> {
    /// The number with its visual separators; with `+` in front if it is global.
    pub number: &'a [u8],
    /// The parameters.
    pub params: UriParams<'a>,
}

/// The parameters of a URI: `;name[=value]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct UriParams<'a>(&'a [u8]);

/// The headers of a URI: `name=value&name=value`.
#[derive(Clone, Copy, Debug, Default)]
pub struct UriHeaders<'a>(&'a [u8]);

/// Whether the scheme of a URI is `sips`. Does not check the rest of the URI.
#[must_use]
pub fn starts_with_sips(uri: &[u8]) -> bool {
    strip_scheme(uri, b"sips:").is_some()
}

impl<'a> Uri<'a> {
    /// Reads the whole of `text`.
    ///
    /// # Errors
    /// [`UriError`] if it breaks the grammar of RFC 3261 §25.1; of other schemes only the bytes are checked.
    pub fn parse(text: &'a [u8]) -> Result<Uri<'a>, UriError> {
        if let Some(rest) = strip_scheme(text, b"sip:") {
            return SipUri::read(rest, false).map(Uri::Sip);
        }
        if let Some(rest) = strip_scheme(text, b"sips:") {
            return SipUri::read(rest, true).map(Uri::Sip);
        }
        let (scheme, rest) = split_at_byte(text, b':').ok_or(UriError::Scheme)?;
        if !scheme.first().is_some_and(u8::is_ascii_alphabetic) || !chars::all(scheme, SCHEME) {
            return Err(UriError::Scheme);
        }
        if scheme.eq_ignore_ascii_case(b"tel") {
            return TelUri::read(rest).map(Uri::Tel);
        }
        // RFC 3261 has no `#` in a URI. URIs of other schemes may have one, before a fragment.
        match rest
            .iter()
            .all(|&byte| chars::is(byte, URIC) || byte == b'#')
            && !rest.is_empty()
        {
            true => Ok(Uri::Other { scheme, rest }),
            false => Err(UriError::Byte),
        }
    }

    /// The scheme as it would be written in lower case; of other schemes as it stands.
    #[must_use]
    pub const fn scheme(&self) -> &'a [u8] {
        match self {
            Uri::Sip(SipUri { is_sips: false, .. }) => b"sip",
            Uri::Sip(SipUri { is_sips: true, .. }) => b"sips",
            Uri::Tel(_) => b"tel",
            Uri::Other { scheme, .. } => scheme,
        }
    }

    /// The `sip:` or `sips:` URI, if it is one.
    #[must_use]
    pub const fn as_sip(&self) -> Option<&SipUri<'a>> {
        match self {
            Uri::Sip(sip) => Some(sip),
            _ => None,
        }
    }
}

impl<'a> SipUri<'a> {
    /// What follows the scheme.
    fn read(text: &'a [u8], is_sips: bool) -> Result<SipUri<'a>, UriError> {
        let (user, password, rest) = read_userinfo(text)?;
        let mut cursor = Cursor::new(rest);
        let host = Host::read(&mut cursor).ok_or(UriError::Host)?;
        let port = read_port(&mut cursor)?;
        let tail = cursor.rest();
        if tail.is_empty() {
            return Ok(SipUri {
                is_sips,
                user,
                password,
                host,
                port,
                params: UriParams::default(),
                headers: UriHeaders::default(),
            });
        }
        let (params, headers) = match memchr::memchr(b'?', tail) {
            Some(at) => (tail.get(..at), tail.get(at + 1..)),
            None => (Some(tail), None),
        };
        let params = params.unwrap_or_default();
        check_params(params)?;
        if let Some(headers) = headers {
            check_headers(headers)?;
        } else if !params.is_empty() && params.first() != Some(&b';') {
            return Err(UriError::Host);
        }
        Ok(SipUri {
            is_sips,
            user,
            password,
            host,
            port,
            params: UriParams(params),
            headers: UriHeaders(headers.unwrap_or_default()),
        })
    }

    /// The port, or the default of the scheme and the transport.
    #[must_use]
    pub fn port_or_default(&self) -> u16 {
        self.port.unwrap_or(match (self.is_sips, self.transport()) {
            (true, Some(ViaTransport::Wss)) => 443,
            (true, _) => 5061,
            (false, Some(transport)) => transport.default_port(),
            (false, None) => 5060,
        })
    }

    /// `transport`.
    #[must_use]
    pub fn transport(&self) -> Option<ViaTransport<'a>> {
        self.params.value(b"transport").map(ViaTransport::of)
    }

    /// `maddr`, if it is a host.
    #[must_use]
    pub fn maddr(&self) -> Option<Host<'a>> {
        self.params.value(b"maddr").and_then(Host::new)
    }

    /// Whether `lr` is there: the element routes loosely (RFC 3261 §16.12).
    #[must_use]
    pub fn is_loose(&self) -> bool {
        self.params.get(b"lr").is_some()
    }
}

impl<'a> TelUri<'a> {
    fn read(text: &'a [u8]) -> Result<TelUri<'a>, UriError> {
        let end = memchr::memchr(b';', text).unwrap_or(text.len());
        let (number, params) = text.split_at(end);
        check_params(params)?;
        // RFC 3966 §3: a global number has decimal digits, a local one hexadecimal digits, `*` and `#` too.
        let digits = number.strip_prefix(b"+");
        let is_digit = |byte: &u8| match digits {
            Some(_) => byte.is_ascii_digit(),
            None => byte.is_ascii_hexdigit() || matches!(byte, b'*' | b'#'),
        };
        let digits = digits.unwrap_or(number);
        let all = |byte: &u8| is_digit(byte) || is_visual_separator(*byte);
        match digits.iter().all(all) && digits.iter().any(is_digit) {
            true => Ok(TelUri {
                number,
                params: UriParams(params),
            }),
            false => Err(UriError::Byte),
        }
    }
}

/// `visual-separator` of RFC 3966 §3.
const fn is_visual_separator(byte: u8) -> bool {
    matches!(byte, b'-' | b'.' | b'(' | b')')
}

impl<'a> UriParams<'a> {
    /// As they are written in the URI, from the first `;`.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Names and values in their order, escapes and all.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + use<'a> {
        self.0
            .strip_prefix(b";")
            .into_iter()
            .flat_map(|params| params.split(|&byte| byte == b';'))
            .map(|param| match split_at_byte(param, b'=') {
                Some((name, value)) => (name, Some(value)),
                None => (param, None),
            })
    }

    /// The first parameter with this name: with its value or without.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<Option<&'a [u8]>> {
        self.iter()
            .find(|(found, _)| compare::eq_ignore_case(found, name))
            .map(|(_, value)| value)
    }

    /// The value of the first parameter with this name.
    #[must_use]
    pub fn value(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.get(name).flatten()
    }
}

impl<'a> UriHeaders<'a> {
    /// As they are written in the URI, behind the question mark.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Names and values in their order, escapes and all.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        self.0
            .split(|&byte| byte == b'&')
            .filter_map(|header| split_at_byte(header, b'='))
    }
}

/// What follows `scheme`, which is in lower case and has its colon.
#[inline]
fn strip_scheme<'a>(text: &'a [u8], scheme: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = text.split_at_checked(scheme.len())?;
    start.eq_ignore_ascii_case(scheme).then_some(rest)
}

/// What is in front of the first `byte` and what is behind it.
#[inline]
fn split_at_byte(text: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    let (before, from) = text.split_at_checked(memchr::memchr(byte, text)?)?;
    Some((before, from.get(1..)?))
}

/// User, password and what follows the `@`.
type UserInfo<'a> = (Option<&'a [u8]>, Option<&'a [u8]>, &'a [u8]);

fn read_userinfo(text: &[u8]) -> Result<UserInfo<'_>, UriError> {
    // `@` must be escaped everywhere else, a question mark need not be in a user: so it is looked for first.
    let Some((info, rest)) = split_at_byte(text, b'@') else {
        return Ok((None, None, text));
    };
    let (user, password) = match split_at_byte(info, b':') {
        Some((user, password)) => (user, Some(password)),
        None => (info, None),
    };
    let is_valid = !user.is_empty()
        && is_escaped(user, USER)
        && password.is_none_or(|password| is_escaped(password, PASSWORD));
    match is_valid {
        true => Ok((Some(user), password, rest)),
        false => Err(UriError::User),
    }
}

/// `:port`; unlike in a Via no white space is allowed.
fn read_port(cursor: &mut Cursor<'_>) -> Result<Option<u16>, UriError> {
    if !cursor.skip_if(b':') {
        return Ok(None);
    }
    let number = chars::decimal(cursor.take(DIGIT)).and_then(|number| u16::try_from(number).ok());
    match number {
        Some(0) | None => Err(UriError::Port),
        port => Ok(port),
    }
}

/// Whether every byte is of `class` or a whole escape.
fn is_escaped(text: &[u8], class: u16) -> bool {
    // Nearly nobody escapes anything.
    if text.iter().all(|&byte| chars::is(byte, class)) {
        return true;
    }
    let mut bytes = text.iter();
    while let Some(&byte) = bytes.next() {
        let is_escape = byte == b'%'
            && bytes.next().is_some_and(u8::is_ascii_hexdigit)
            && bytes.next().is_some_and(u8::is_ascii_hexdigit);
        if !is_escape && !chars::is(byte, class) {
            return false;
        }
    }
    true
}

/// `*( ";" pname [ "=" pvalue ] )`; an empty value is let pass, as many write `;lr=`.
fn check_params(params: &[u8]) -> Result<(), UriError> {
    if params.is_empty() {
        return Ok(());
    }
    let list = params.strip_prefix(b";").ok_or(UriError::Params)?;
    for (i, param) in list.split(|&byte| byte == b';').enumerate() {
        let (name, value) = split_at_byte(param, b'=').unwrap_or((param, &[]));
        let is_valid =
            !name.is_empty() && is_escaped(name, URI_PARAM) && is_escaped(value, URI_PARAM);
        if !is_valid || i >= MAX_URI_PARAMS {
            return Err(UriError::Params);
        }
    }
    Ok(())
}

/// `hname "=" hvalue *( "&" hname "=" hvalue )`.
fn check_headers(headers: &[u8]) -> Result<(), UriError> {
    for (i, header) in headers.split(|&byte| byte == b'&').enumerate() {
        let (name, value) = split_at_byte(header, b'=').ok_or(UriError::Headers)?;
        let is_valid =
            !name.is_empty() && is_escaped(name, URI_HEADER) && is_escaped(value, URI_HEADER);
        if !is_valid || i >= MAX_URI_PARAMS {
            return Err(UriError::Headers);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_sip_uri() {
        let text = b"SIP:j%40s0n;x=1:pa$$@[2001:db8::1]:5070;transport=tcp;lr?subject=a%20b&priority=urgent";
        let Ok(Uri::Sip(uri)) = Uri::parse(text) else {
            panic!("well-formed")
        };
        assert!(!uri.is_sips);
        assert_eq!(uri.user, Some(&b"j%40s0n;x=1"[..]));
        assert_eq!(uri.password, Some(&b"pa$$"[..]));
        assert_eq!(uri.host.as_bytes(), b"[2001:db8::1]");
        assert_eq!((uri.port, uri.port_or_default()), (Some(5070), 5070));
        assert_eq!(uri.transport(), Some(ViaTransport::Tcp));
        assert!(uri.is_loose());
        assert_eq!(uri.headers.iter().count(), 2);
    }

    #[test]
    fn the_scheme_of_a_uri_is_sips_in_either_case() {
        for (uri, is_sips) in [
            ("sips:a@x", true),
            ("SIPS:a@x", true),
            ("sip:sips:a@x", false),
            ("sips", false),
            ("sip:a@x", false),
            ("", false),
        ] {
            assert_eq!(starts_with_sips(uri.as_bytes()), is_sips, "{uri}");
        }
    }

    #[test]
    fn each_malformed_part_has_its_name() {
        for (text, error) in [
            ("", UriError::Scheme),
            ("example.com", UriError::Scheme),
            ("1a:x", UriError::Scheme),
            ("sip:@example.com", UriError::User),
            ("sip:a b@example.com", UriError::User),
            ("sip:a%4@example.com", UriError::User),
            ("sip:", UriError::Host),
            ("sip:a@", UriError::Host),
            ("sip:a@[::1", UriError::Host),
            ("sip:a@b@c", UriError::Params),
            ("sip:a@b:", UriError::Port),
            ("sip:a@b:99999", UriError::Port),
            ("sip:b;", UriError::Params),
            ("sip:b;a=%", UriError::Params),
            ("sip:b?a", UriError::Headers),
            ("sip:b?a=b&", UriError::Headers),
            ("tel:", UriError::Byte),
            ("tel:+49x", UriError::Byte),
            ("http://a b", UriError::Byte),
        ] {
            assert_eq!(Uri::parse(text.as_bytes()).err(), Some(error), "{text}");
        }
        let many = format!("sip:b{}", ";a".repeat(MAX_URI_PARAMS + 1));
        assert_eq!(Uri::parse(many.as_bytes()).err(), Some(UriError::Params));
    }

    #[test]
    fn other_schemes_are_kept_as_they_are() {
        let uri = Uri::parse(b"soap.beep://192.0.2.103:3002").expect("any scheme");
        assert!(matches!(
            uri,
            Uri::Other {
                scheme: b"soap.beep",
                ..
            }
        ));
        let uri = Uri::parse(b"tel:+1-972-555-2222;ext=3").expect("a number");
        assert!(matches!(
            uri,
            Uri::Tel(TelUri {
                number: b"+1-972-555-2222",
                ..
            })
        ));
    }
}
