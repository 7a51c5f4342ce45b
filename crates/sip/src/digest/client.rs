//! The side that is asked for credentials.

use super::{Algorithm, Ha1, Proof, inside_quotes};
use crate::build::{Builder, Part};
use crate::header::{Authorization, HeaderKind};
use crate::message::Message;
use crate::{Method, hex};

/// A challenge of the Digest scheme, without its quotes.
#[derive(Clone, Copy, Debug)]
pub struct Challenge<'a> {
    /// `realm`.
    pub realm: &'a [u8],
    /// `nonce`.
    pub nonce: &'a [u8],
    /// `opaque`, to be sent back as it is.
    pub opaque: Option<&'a [u8]>,
    /// `algorithm`; MD5 if there is none.
    pub algorithm: Algorithm,
    /// Whether `qop` has `auth`; without `qop` the answer is that of RFC 2617.
    pub has_qop: bool,
    /// `stale`: the password was right, the nonce too old.
    pub is_stale: bool,
}

impl<'a> Challenge<'a> {
    /// Reads WWW-Authenticate or Proxy-Authenticate; `None` if it is malformed or asks for something that is not supported:
    /// another scheme, another algorithm, only `auth-int`.
    #[must_use]
    pub fn of(authorization: &Authorization<'a>) -> Option<Challenge<'a>> {
        if !authorization.is_digest() {
            return None;
        }
        let params = authorization.params;
        params.read(|_, _| {})?;
        let get = |name: &[u8]| params.get(name).map(inside_quotes);
        let qop = get(b"qop");
        let mut offered = qop.unwrap_or_default().split(|&byte| byte == b',');
        let has_qop = offered.any(|qop| crate::chars::trim(qop).eq_ignore_ascii_case(b"auth"));
        if qop.is_some() && !has_qop {
            return None;
        }
        Some(Challenge {
            realm: get(b"realm")?,
            nonce: get(b"nonce")?,
            opaque: get(b"opaque"),
            algorithm: get(b"algorithm").map_or(Some(Algorithm::Md5), Algorithm::of)?,
            has_qop,
            is_stale: get(b"stale").is_some_and(|stale| stale.eq_ignore_ascii_case(b"true")),
        })
    }
}

/// The challenge to answer: the topmost for a realm that is supported (RFC 8760 §2.4).
#[must_use]
pub fn choose<'a>(response: &Message<'a>, kind: HeaderKind) -> Option<Challenge<'a>> {
    response
        .authorizations(kind)
        .filter_map(Result::ok)
        .find_map(|challenge| Challenge::of(&challenge))
}

/// Adds the credentials that answer a challenge: `Authorization` for a 401, `ProxyAuthorization` for a 407.
///
/// `count` is 1 for the first request with this nonce, and one more for each that follows. `cnonce` is random, of hexadecimal
/// digits. `uri` is the Request-URI.
pub fn answer(
    request: &mut Builder<'_>,
    kind: HeaderKind,
    challenge: &Challenge<'_>,
    username: &[u8],
    ha1: &Ha1,
    proof: (Method<'_>, &[u8]),
    (count, cnonce): (u32, &[u8]),
) {
    let (method, uri) = proof;
    let mut nc = [0; 8];
    hex::write(&count.to_be_bytes(), &mut nc);
    let response = ha1.response(&Proof {
        nonce: challenge.nonce,
        nc_cnonce: challenge.has_qop.then_some((&nc[..], cnonce)),
        method: method.as_bytes(),
        uri,
    });
    let qop: &[Part<'_>] = &[
        Part::Bytes(b", qop=auth, nc="),
        Part::Bytes(&nc),
        Part::Bytes(b", cnonce=\""),
        Part::Bytes(cnonce),
        Part::Bytes(b"\""),
    ];
    let opaque = challenge.opaque.unwrap_or_default();
    let opaque: &[Part<'_>] = &[
        Part::Bytes(b", opaque=\""),
        Part::Bytes(opaque),
        Part::Bytes(b"\""),
    ];
    let fixed = [
        Part::Bytes(b"Digest username=\""),
        Part::Bytes(username),
        Part::Bytes(b"\", realm=\""),
        Part::Bytes(challenge.realm),
        Part::Bytes(b"\", nonce=\""),
        Part::Bytes(challenge.nonce),
        Part::Bytes(b"\", uri=\""),
        Part::Bytes(uri),
        Part::Bytes(b"\", response=\""),
        Part::Bytes(response.as_bytes()),
        Part::Bytes(b"\", algorithm="),
        Part::Bytes(challenge.algorithm.name().as_bytes()),
    ];
    let mut value = [Part::Bytes(b""); 20];
    let qop = if challenge.has_qop { qop } else { &[] };
    let opaque = if challenge.opaque.is_some() {
        opaque
    } else {
        &[]
    };
    let all = fixed.iter().chain(qop).chain(opaque);
    for (place, part) in value.iter_mut().zip(all) {
        *place = *part;
    }
    request.header_of(kind, &value);
}
