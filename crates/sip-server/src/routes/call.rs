//! A request to find a route for.

use std::net::SocketAddr;

use sip::Message;
use sip::flow::Transport;
use sip::header::HeaderKind;
use sip::uri::{Uri, unescape};

/// Bytes of the longest user part that routes look at.
const MAX_USER: usize = 255;

/// Who has sent the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallSender<'a> {
    /// The trunk of this number.
    Trunk(u16),
    /// A user here: the user part and the domain of the address of record.
    User(&'a [u8], &'a [u8]),
    /// Any other sender: its requests may go to local users only.
    Anyone,
}

/// A request to find a route for.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The request.
    pub message: &'a Message<'a>,
    /// Its Request-URI, after the Route values of this server have been removed.
    pub uri: &'a [u8],
    /// Who has sent it.
    pub sender: CallSender<'a>,
    /// The address that it came from.
    pub source: SocketAddr,
    /// The transport by which it came.
    pub transport: Transport,
    /// A random number for routes that hunt by weight.
    pub draw: u64,
}

/// The called user part without escapes; of a telephone number without visual separators (RFC 3966 §5.1.1).
pub(super) struct Called<'a> {
    bytes: [u8; MAX_USER],
    len: u8,
    pub(super) is_sips: bool,
    /// The host of a SIP URI.
    pub(super) host: &'a [u8],
}

impl<'a> Called<'a> {
    /// `None` if the URI has no user part, or one that is too long.
    pub(super) fn of(uri: &'a [u8]) -> Option<Called<'a>> {
        let mut bytes = [0; MAX_USER];
        let mut host = &b""[..];
        let (len, is_sips) = match Uri::parse(uri) {
            Ok(Uri::Sip(uri)) => {
                host = uri.host.as_bytes();
                (unescape(uri.user?, &mut bytes)?.len(), uri.is_sips)
            }
            Ok(Uri::Tel(tel)) => {
                let digits = tel.number.iter().filter(|byte| !b"-.()".contains(byte));
                let mut len = 0;
                for (place, digit) in bytes.iter_mut().zip(digits) {
                    *place = *digit;
                    len += 1;
                }
                let too_long = tel.number.len() > MAX_USER;
                (if too_long { return None } else { len }, false)
            }
            _ => return None,
        };
        Some(Called {
            bytes,
            len: len as u8,
            is_sips,
            host,
        })
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or_default()
    }
}

impl<'a> Call<'a> {
    /// The called user part, as routes see it: without escapes, and of a telephone number without visual separators
    /// (RFC 3966 §5.1.1). `None` if the Request-URI has no user part, or one of more than 255 bytes: no route applies.
    #[must_use]
    pub fn called_user(&self) -> Option<Box<[u8]>> {
        Called::of(self.uri).map(|called| called.as_bytes().into())
    }

    /// The values of all header fields of this name, in their order. A value may be a list with commas.
    #[must_use]
    pub fn headers(&self, name: &str) -> Vec<&'a [u8]> {
        let all = self.message.all_headers();
        let named = all.filter(|header| match HeaderKind::of(name.as_bytes()) {
            HeaderKind::Other => header.name.eq_ignore_ascii_case(name.as_bytes()),
            kind => HeaderKind::of(header.name) == kind,
        });
        named.map(|header| header.value.trim_ascii()).collect()
    }

    pub(super) fn call_id(&self) -> &[u8] {
        self.message.call_id().unwrap_or_default()
    }

    /// Whether a header field of this name has a value that fits.
    pub(super) fn has_header(&self, name: &str, fits: impl FnMut(&[u8]) -> bool) -> bool {
        has_header(self.message, name, fits)
    }
}

/// Whether a header field of this name has a value that fits. Values are shown in their order, until one fits.
pub(super) fn has_header(
    message: &Message<'_>,
    name: &str,
    mut fits: impl FnMut(&[u8]) -> bool,
) -> bool {
    let kind = HeaderKind::of(name.as_bytes());
    match kind {
        HeaderKind::Other => {
            let mut all = message.all_headers();
            all.any(|it| {
                it.name.eq_ignore_ascii_case(name.as_bytes()) && fits(it.value.trim_ascii())
            })
        }
        kind => {
            let mut all = message.headers(kind);
            all.any(|header| fits(header.value.trim_ascii()))
        }
    }
}
