//! Authentication-Info and Proxy-Authentication-Info (RFC 7616 §3.5, RFC 3261 §20.6): what a server says of credentials
//! that it took.

use super::{Qop, inside_quotes};
use crate::header::AuthParams;

/// What a server says. Texts are as between their quotes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confirmation<'a> {
    /// `nextnonce`: the nonce for the next request, whose count begins with 1 again.
    pub next_nonce: Option<&'a [u8]>,
    /// `qop`, if it is one that is known.
    pub qop: Option<Qop>,
    /// `rspauth`: the server's proof that it has the password. See [`super::DigestResponse::is_confirmed_by`].
    pub rspauth: Option<&'a [u8]>,
    /// `cnonce`, as it was sent.
    pub cnonce: Option<&'a [u8]>,
    /// `nc`, as it was sent.
    pub nc: Option<&'a [u8]>,
}

impl<'a> Confirmation<'a> {
    /// Reads the value of the header field; `None` if it is malformed.
    #[must_use]
    pub fn parse(value: &'a [u8]) -> Option<Confirmation<'a>> {
        let mut confirmation = Confirmation::default();
        AuthParams::new(value).read(|name, value| {
            let value = inside_quotes(value);
            let is = |known: &[u8]| known.eq_ignore_ascii_case(name);
            if is(b"qop") {
                confirmation.qop = Qop::of(value);
                return;
            }
            let place = if is(b"nextnonce") {
                &mut confirmation.next_nonce
            } else if is(b"rspauth") {
                &mut confirmation.rspauth
            } else if is(b"cnonce") {
                &mut confirmation.cnonce
            } else if is(b"nc") {
                &mut confirmation.nc
            } else {
                return;
            };
            *place = Some(value);
        })?;
        Some(confirmation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_parameters_are_read_and_others_ignored_rfc7616_3_5() {
        let text = b"nextnonce=\"47364c23432d2e131a5fb210812c\", QOP=auth-int, x=y, nc=00000001, cnonce=\"c\"";
        let read = Confirmation::parse(text).expect("well-formed");
        assert_eq!(read.next_nonce, Some(&b"47364c23432d2e131a5fb210812c"[..]));
        assert_eq!(read.qop, Some(Qop::AuthInt));
        assert_eq!(
            (read.nc, read.cnonce),
            (Some(&b"00000001"[..]), Some(&b"c"[..]))
        );
        assert_eq!(read.rspauth, None);
        assert_eq!(Confirmation::parse(b"nextnonce"), None);
    }
}
