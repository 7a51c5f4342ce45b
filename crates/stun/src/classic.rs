//! Binding requests of RFC 3489, "classic STUN", and the responses to them (RFC 5389 §12.2).
//!
//! A classic client has no magic cookie: all 16 bytes behind the length are its transaction ID. The response carries
//! the same 16 bytes, and MAPPED-ADDRESS in place of XOR-MAPPED-ADDRESS. It is never longer than the response to a
//! modern request.
//!
//! ```text
//! | 0x0001, length | transaction ID, 16 bytes | attributes |
//! | 0x0101, length | transaction ID, 16 bytes | MAPPED-ADDRESS, 12 or 24 bytes |
//! ```

use core::net::{IpAddr, SocketAddr};

use crate::attribute::AttributeType;
use crate::header::{HEADER_LEN, MAGIC_COOKIE, field};

/// Bytes of the longest response.
pub const CLASSIC_RESPONSE_MAX: usize = 128;

const REQUEST: [u8; 2] = [0x00, 0x01];
const SUCCESS: [u8; 2] = [0x01, 0x01];
const ERROR: [u8; 2] = [0x01, 0x11];

/// A 420 names at most this many attributes, so that every response fits [`CLASSIC_RESPONSE_MAX`].
const MAX_UNKNOWN: usize = 16;

/// The ERROR-CODE of a 420. RFC 3489 §11.2.9: the phrase is a multiple of 4 bytes long.
const UNKNOWN_ATTRIBUTE: [u8; 28] = *b"\x00\x09\x00\x18\x00\x00\x04\x14Unknown Attribute   ";

/// The ERROR-CODE of a 500; the phrase is a multiple of 4 bytes long.
const SERVER_ERROR: [u8; 20] = *b"\x00\x09\x00\x10\x00\x00\x05\x00Server Error";

/// The bits of a message type that say its class (RFC 8489 §5); the first two bits are zero in every message.
const CLASS_BITS: u16 = 0xC110;
const ERROR_BITS: u16 = 0x0110;

/// A Binding request of a classic client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassicBinding<'a> {
    transaction_id: &'a [u8; 16],
    attributes: &'a [u8],
}

impl<'a> ClassicBinding<'a> {
    /// The request in a datagram. `None` if it is anything else: another type, the magic cookie, a length that is not
    /// the datagram's, or an attribute that overruns it.
    #[must_use]
    pub fn parse(datagram: &'a [u8]) -> Option<ClassicBinding<'a>> {
        let (header, attributes) = datagram.split_first_chunk::<HEADER_LEN>()?;
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if header[..2] != REQUEST
            || header[field::COOKIE] == MAGIC_COOKIE.to_be_bytes()
            || length != attributes.len()
        {
            return None;
        }
        let mut rest = attributes;
        while !rest.is_empty() {
            (_, rest) = next_attribute(rest)?;
        }
        Some(ClassicBinding {
            transaction_id: datagram.get(4..HEADER_LEN)?.first_chunk()?,
            attributes,
        })
    }

    /// The comprehension-required attributes (types up to 0x7FFF) that are not known.
    pub fn unknown_required(
        &self,
        is_known: impl Fn(AttributeType) -> bool,
    ) -> impl Iterator<Item = AttributeType> {
        let mut rest = self.attributes;
        core::iter::from_fn(move || {
            let (attribute, after) = next_attribute(rest)?;
            rest = after;
            Some(attribute)
        })
        .filter(move |attribute| attribute.0 <= 0x7FFF && !is_known(*attribute))
    }

    /// Writes the success response, and returns its length: 32 bytes for IPv4, 44 for IPv6.
    #[must_use]
    pub fn success(&self, out: &mut [u8; CLASSIC_RESPONSE_MAX], mapped: &SocketAddr) -> usize {
        let mut response = Response::new(out, SUCCESS, self.transaction_id);
        let port = mapped.port().to_be_bytes();
        match mapped.ip() {
            IpAddr::V4(ip) => {
                response.push(&[0, 1, 0, 8, 0, 1]);
                response.push(&port);
                response.push(&ip.octets());
            }
            IpAddr::V6(ip) => {
                response.push(&[0, 1, 0, 20, 0, 2]);
                response.push(&port);
                response.push(&ip.octets());
            }
        }
        response.finish()
    }

    /// Writes the response 420 (Unknown Attribute), and returns its length.
    #[must_use]
    pub fn unknown_attributes(
        &self,
        out: &mut [u8; CLASSIC_RESPONSE_MAX],
        unknown: impl Iterator<Item = AttributeType>,
    ) -> usize {
        let mut response = Response::new(out, ERROR, self.transaction_id);
        response.push(&UNKNOWN_ATTRIBUTE);
        let start = response.length;
        response.push(&[0x00, 0x0A, 0, 0]);
        let mut last = None;
        let mut count: u8 = 0;
        for attribute in unknown.take(MAX_UNKNOWN) {
            response.push(&attribute.0.to_be_bytes());
            last = Some(attribute);
            count += 1;
        }
        // RFC 3489 §11.2.10: "if the number of unknown attributes is an odd number, one of the attributes MUST be
        // repeated".
        if let (Some(attribute), 1) = (last, count % 2) {
            response.push(&attribute.0.to_be_bytes());
            count += 1;
        }
        response.out[start + 3] = 2 * count;
        response.finish()
    }
}

/// Writes the response 500 (Server Error) to a request of any method that has no magic cookie, and returns its length:
/// 40 bytes.
///
/// RFC 8489 §11 and RFC 7350 §3: over DTLS there is no classic STUN, and such requests get a 500. `None` if `datagram`
/// is anything else.
#[must_use]
pub fn classic_server_error(
    datagram: &[u8],
    out: &mut [u8; CLASSIC_RESPONSE_MAX],
) -> Option<usize> {
    let (header, attributes) = datagram.split_first_chunk::<HEADER_LEN>()?;
    let kind = u16::from_be_bytes([header[0], header[1]]);
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let is_request = kind & CLASS_BITS == 0
        && header[field::COOKIE] != MAGIC_COOKIE.to_be_bytes()
        && length == attributes.len()
        && length.is_multiple_of(4);
    if !is_request {
        return None;
    }
    let transaction_id = header.get(4..)?.first_chunk()?;
    let mut response = Response::new(out, (kind | ERROR_BITS).to_be_bytes(), transaction_id);
    response.push(&SERVER_ERROR);
    Some(response.finish())
}

/// The first attribute's type, and what comes after it. `None` at the end, and if it overruns.
fn next_attribute(attributes: &[u8]) -> Option<(AttributeType, &[u8])> {
    let (head, rest) = attributes.split_first_chunk::<4>()?;
    let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let after = rest.get(length.next_multiple_of(4)..)?;
    Some((AttributeType(u16::from_be_bytes([head[0], head[1]])), after))
}

/// A response in the making. Everything that is pushed fits: see [`CLASSIC_RESPONSE_MAX`].
struct Response<'o> {
    out: &'o mut [u8; CLASSIC_RESPONSE_MAX],
    length: usize,
}

impl<'o> Response<'o> {
    fn new(
        out: &'o mut [u8; CLASSIC_RESPONSE_MAX],
        kind: [u8; 2],
        transaction_id: &[u8; 16],
    ) -> Response<'o> {
        out[..2].copy_from_slice(&kind);
        out[4..HEADER_LEN].copy_from_slice(transaction_id);
        Response {
            out,
            length: HEADER_LEN,
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        // The longest response has at most CLASSIC_RESPONSE_MAX bytes; see MAX_UNKNOWN.
        self.out[self.length..end].copy_from_slice(bytes);
        self.length = end;
    }

    fn finish(self) -> usize {
        let length = (self.length - HEADER_LEN) as u16;
        self.out[2..4].copy_from_slice(&length.to_be_bytes());
        self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: [u8; 16] = *b"sixteen bytes ID";

    fn request(attributes: &[u8]) -> Vec<u8> {
        let length = (attributes.len() as u16).to_be_bytes();
        [&[0, 1][..], &length, &ID, attributes].concat()
    }

    #[test]
    fn requests_of_any_method_without_a_cookie_get_500_and_nothing_else_does() {
        let mut out = [0xEE; CLASSIC_RESPONSE_MAX];
        let bytes = request(&[0x80, 0x22, 0, 0]);
        let length = classic_server_error(&bytes, &mut out).expect("a request");
        let expected = [&[1, 0x11, 0, 20][..], &ID, &SERVER_ERROR].concat();
        assert_eq!(out[..length], expected);
        // A Shared Secret request (RFC 3489 §11.1).
        let secret = [&[0, 2, 0, 0][..], &ID].concat();
        assert_eq!(classic_server_error(&secret, &mut out), Some(40));
        assert_eq!(out[..2], [1, 0x12]);
        let cookie = [&[0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42][..], &ID[4..]].concat();
        let indication = [&[0, 0x11, 0, 0][..], &ID].concat();
        let response = [&[1, 1, 0, 0][..], &ID].concat();
        let channel = [&[0x40, 0, 0, 16][..], &ID].concat();
        let odd = [&[0, 1, 0, 2][..], &ID, &[0, 0]].concat();
        for other in [
            &cookie,
            &indication,
            &response,
            &channel,
            &odd,
            &bytes[..19],
        ] {
            assert_eq!(classic_server_error(other, &mut out), None, "{other:?}");
        }
    }

    #[test]
    fn the_mapped_address_comes_back_with_the_16_bytes_of_the_request() {
        let bytes = request(&[]);
        let classic = ClassicBinding::parse(&bytes).expect("a classic request");
        let mut out = [0xEE; CLASSIC_RESPONSE_MAX];
        let length = classic.success(&mut out, &"198.51.100.7:700".parse().expect("an address"));
        let expected = [
            &[1, 1, 0, 12][..],
            &ID,
            &[0, 1, 0, 8, 0, 1, 0x02, 0xBC, 198, 51, 100, 7],
        ];
        assert_eq!(out[..length], expected.concat());
        let length = classic.success(&mut out, &"[2001:db8::9]:9".parse().expect("an address"));
        assert_eq!(
            (length, out[3], &out[20..28]),
            (44, 24, &[0, 1, 0, 20, 0, 2, 0, 9][..])
        );
    }

    #[test]
    fn unknown_attributes_are_named_in_pairs() {
        // CHANGE-REQUEST, then an optional attribute with padding.
        let bytes = request(&[0, 3, 0, 4, 0, 0, 0, 6, 0x80, 0x22, 0, 1, b'x', 0, 0, 0]);
        let classic = ClassicBinding::parse(&bytes).expect("a classic request");
        let unknown = || classic.unknown_required(|attribute| attribute.0 == 6);
        assert_eq!(unknown().collect::<Vec<_>>(), [AttributeType(3)]);
        let mut out = [0xEE; CLASSIC_RESPONSE_MAX];
        let length = classic.unknown_attributes(&mut out, unknown());
        assert_eq!(out[..4], [1, 0x11, 0, (length - 20) as u8]);
        assert_eq!(out[20..48], UNKNOWN_ATTRIBUTE);
        assert_eq!(out[48..length], [0, 10, 0, 4, 0, 3, 0, 3]);
    }

    #[test]
    fn the_longest_error_fits() {
        let attributes = [0x7F, 0xF0, 0, 0].repeat(300);
        let bytes = request(&attributes);
        let classic = ClassicBinding::parse(&bytes).expect("a classic request");
        let mut out = [0; CLASSIC_RESPONSE_MAX];
        let length = classic.unknown_attributes(&mut out, classic.unknown_required(|_| false));
        assert_eq!(length, 20 + 28 + 4 + 2 * MAX_UNKNOWN);
    }

    #[test]
    fn anything_else_is_no_classic_request() {
        let with_cookie = {
            let mut bytes = request(&[]);
            bytes[4..8].copy_from_slice(&MAGIC_COOKIE.to_be_bytes());
            bytes
        };
        let mut response = request(&[]);
        response[0] = 1;
        let mut longer = request(&[]);
        longer.push(0);
        let overrun = request(&[0, 3, 0, 8, 0, 0, 0, 0]);
        let fragment = request(&[0, 3]);
        for bytes in [
            with_cookie,
            response,
            longer,
            overrun,
            fragment,
            vec![0, 1],
            vec![],
        ] {
            assert_eq!(ClassicBinding::parse(&bytes), None, "{bytes:02x?}");
        }
    }
}
