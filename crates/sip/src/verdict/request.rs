//! The checks of a request.

use super::{Cause, Element, Rules};
use crate::Method;
use crate::header::HeaderKind as Kind;
use crate::header::{Contact, HeaderError, NameAddr, Via};
use crate::message::Message;
use crate::uri::Uri;

/// A code and its cause.
type Refused = (u16, Cause);

impl From<HeaderError> for Cause {
    fn from(error: HeaderError) -> Cause {
        Cause::Header(error)
    }
}

/// A malformed or missing header field is a 400.
fn bad<T>(result: Result<T, HeaderError>) -> Result<T, Refused> {
    result.map_err(|error| (400, error.into()))
}

/// What every well-formed request has besides its Via, read once for all who need it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommonHeaders<'a> {
    /// The tag of From.
    pub(crate) from_tag: Option<&'a [u8]>,
    /// The tag of To.
    pub(crate) to_tag: Option<&'a [u8]>,
    /// Call-ID.
    pub(crate) call_id: &'a [u8],
    /// The number of CSeq.
    pub(crate) cseq: u32,
}

/// The URIs that are looked at more than once.
struct Uris<'a> {
    of_request: Uri<'a>,
    of_to: Uri<'a>,
}

/// Checks a request of this method in the order of RFC 3261 §8.2 or §16.3.
#[inline]
pub(super) fn check(
    request: &Message<'_>,
    method: Method<'_>,
    rules: &Rules<'_>,
) -> Result<(), Refused> {
    check_behind_via(request, method, &bad(request.via())?, rules).map(drop)
}

/// The same, where the topmost Via has been read.
#[inline]
pub(crate) fn check_behind_via<'a>(
    request: &Message<'a>,
    method: Method<'_>,
    via: &Via<'_>,
    rules: &Rules<'_>,
) -> Result<CommonHeaders<'a>, Refused> {
    let (uris, essentials) = check_form(request, method, via)?;
    match rules.element {
        Element::UserAgent => check_for_user_agent(request, method, &uris, rules)?,
        Element::Proxy => check_for_proxy(request, method, &uris.of_request, rules)?,
    }
    Ok(essentials)
}

/// What every element needs (RFC 3261 §8.1.1, §16.3 step 1). Max-Forwards may be missing (RFC 2543), and so may the tag
/// of From.
#[inline]
fn check_form<'a>(
    request: &Message<'a>,
    method: Method<'_>,
    via: &Via<'_>,
) -> Result<(Uris<'a>, CommonHeaders<'a>), Refused> {
    if !via.is_sip_2_0 {
        return Err((400, HeaderError::Malformed(Kind::Via).into()));
    }
    let from = bad(request.from())?;
    check_address(from, Kind::From)?;
    let to = bad(request.to())?;
    let of_to = check_address(to, Kind::To)?;
    let call_id = bad(request.call_id())?;
    let cseq = bad(request.cseq())?;
    bad(request.max_forwards())?;
    if cseq.method != method {
        return Err(match method {
            // RFC 4475 §3.1.2.18: for an unknown method, 501 is the better response.
            Method::Other(_) => (501, Cause::Code),
            _ => (400, Cause::CSeqMethod),
        });
    }
    let uri = Uri::parse(request.request_uri().unwrap_or_default());
    let uri = uri.map_err(|_| (400, Cause::RequestUri))?;
    // RFC 3261 §19.1.1, table 1: a Request-URI has no headers.
    match uri.as_sip() {
        Some(sip) if !sip.headers.as_bytes().is_empty() => return Err((400, Cause::RequestUri)),
        _ => {}
    }
    let essentials = CommonHeaders {
        from_tag: from.tag,
        to_tag: to.tag,
        call_id,
        cseq: cseq.number,
    };
    let uris = Uris {
        of_request: uri,
        of_to,
    };
    Ok((uris, essentials))
}

/// From and To must have a valid URI, of any scheme.
#[inline]
fn check_address<'a>(address: NameAddr<'a>, kind: Kind) -> Result<Uri<'a>, Refused> {
    address.parse_uri().map_err(|_| (400, Cause::Uri(kind)))
}

/// RFC 5031 §4.1: the namespace of services, such as `urn:service:sos`.
const SERVICE: &[u8] = b"service:";

/// RFC 3261 §8.2.2.1, §16.3 step 2.
fn check_scheme(uri: &Uri<'_>, rules: &Rules<'_>) -> Result<(), Refused> {
    let scheme = uri.scheme();
    let is_service = match uri {
        Uri::Other { rest, .. } => rest
            .get(..SERVICE.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(SERVICE)),
        _ => false,
    };
    let is_known = |known: &&str| match *known {
        "urn:service" => is_service && scheme.eq_ignore_ascii_case(b"urn"),
        known => known.as_bytes().eq_ignore_ascii_case(scheme),
    };
    match rules.schemes.iter().any(is_known) {
        true => Ok(()),
        false => Err((416, Cause::Code)),
    }
}

/// RFC 3261 §8.2.1 to §8.2.3.
fn check_for_user_agent(
    request: &Message<'_>,
    method: Method<'_>,
    uris: &Uris<'_>,
    rules: &Rules<'_>,
) -> Result<(), Refused> {
    // §9.2: a CANCEL without a transaction gets a 481, also from elements that accept no INVITE.
    if !rules.methods.contains(&method) && method != Method::Cancel {
        let is_unknown = matches!(method, Method::Other(_));
        return Err((if is_unknown { 501 } else { 405 }, Cause::Code));
    }
    check_scheme(&uris.of_request, rules)?;
    for contact in request.contacts() {
        if let Contact::Addr(contact) = bad(contact)? {
            check_address(contact, Kind::Contact)?;
        }
    }
    // §10.3 step 3: what is registered is a SIP or SIPS URI.
    if method == Method::Register && uris.of_to.as_sip().is_none() {
        return Err((400, Cause::Uri(Kind::To)));
    }
    check_extensions(request, method, rules)?;
    check_body(request, method, rules)
}

/// RFC 3261 §16.3 steps 2, 3 and 5; loops (step 4) are detected by who makes the branches.
fn check_for_proxy(
    request: &Message<'_>,
    method: Method<'_>,
    uri: &Uri<'_>,
    rules: &Rules<'_>,
) -> Result<(), Refused> {
    check_scheme(uri, rules)?;
    if bad(request.max_forwards())? == Some(0) {
        return Err((483, Cause::Code));
    }
    check_extensions(request, method, rules)
}

/// Which header lists the extensions that this element must support.
const fn required_by(element: Element) -> Kind {
    match element {
        Element::UserAgent => Kind::Require,
        Element::Proxy => Kind::ProxyRequire,
    }
}

/// RFC 3261 §8.2.2.3, §16.3 step 5. Neither header counts in ACK and CANCEL.
fn check_extensions(
    request: &Message<'_>,
    method: Method<'_>,
    rules: &Rules<'_>,
) -> Result<(), Refused> {
    let kind = required_by(rules.element);
    if !request.has(kind) || matches!(method, Method::Ack | Method::Cancel) {
        return Ok(());
    }
    for tag in request.tokens(kind) {
        bad(tag)?;
    }
    match unsupported(request, rules).next() {
        Some(_) => Err((420, Cause::Code)),
        None => Ok(()),
    }
}

/// The required extensions that this element does not support.
pub(super) fn unsupported<'m>(
    request: &Message<'m>,
    rules: &Rules<'_>,
) -> impl Iterator<Item = &'m [u8]> {
    let is_known = |tag: &[u8]| {
        let mut known = rules.extensions.iter();
        known.any(|known| known.as_bytes().eq_ignore_ascii_case(tag))
    };
    request
        .tokens(required_by(rules.element))
        .filter_map(Result::ok)
        .filter(move |tag| !is_known(tag))
}

/// RFC 3261 §8.2.3: 415 for a body that it cannot read or decode, unless the body is optional; 406 if no acceptable
/// response type exists.
fn check_body(request: &Message<'_>, method: Method<'_>, rules: &Rules<'_>) -> Result<(), Refused> {
    let matters = !request.body().is_empty() && !is_optional(request);
    if matters && is_encoded(request) {
        return Err((415, Cause::Code));
    }
    if let Some(media) = bad(request.content_type())? {
        let is_known = |known: &&str| {
            let (main, sub) = known.split_once('/').unwrap_or((known, ""));
            media.main.eq_ignore_ascii_case(main.as_bytes())
                && media.sub.eq_ignore_ascii_case(sub.as_bytes())
        };
        if matters && !rules.bodies.iter().any(is_known) {
            return Err((415, Cause::Code));
        }
    }
    match method == Method::Invite && !accepts_any(request, rules) {
        true => Err((406, Cause::Code)),
        false => Ok(()),
    }
}

/// Content-Encoding other than `identity` (RFC 3261 §20.12): nothing is unpacked.
fn is_encoded(request: &Message<'_>) -> bool {
    request.headers(Kind::ContentEncoding).any(|header| {
        let mut encodings = header.value.split(|&byte| byte == b',');
        encodings.any(|encoding| {
            let encoding = crate::chars::trim(encoding);
            !encoding.is_empty() && !encoding.eq_ignore_ascii_case(b"identity")
        })
    })
}

/// Content-Disposition with `handling=optional` (RFC 3261 §20.11).
fn is_optional(request: &Message<'_>) -> bool {
    let Some(disposition) = request.header(Kind::ContentDisposition) else {
        return false;
    };
    let mut params = disposition.value.split(|&byte| byte == b';').skip(1);
    params.any(|param| {
        let mut pair = param.splitn(2, |&byte| byte == b'=');
        let mut next = || crate::chars::trim(pair.next().unwrap_or_default());
        next().eq_ignore_ascii_case(b"handling") && next().eq_ignore_ascii_case(b"optional")
    })
}

/// Whether Accept names a body that we could respond with. True without the header, which means SDP (RFC 3261 §20.1).
fn accepts_any(request: &Message<'_>, rules: &Rules<'_>) -> bool {
    if !request.has(Kind::Accept) {
        return true;
    }
    let mut ranges = request
        .headers(Kind::Accept)
        .flat_map(|header| header.value.split(|&byte| byte == b','));
    ranges.any(|range| {
        let end = memchr::memchr(b';', range).unwrap_or(range.len());
        let range = crate::chars::trim(range.get(..end).unwrap_or_default());
        let mut bodies = rules.bodies.iter();
        bodies.any(|body| is_in_range(body, range))
    })
}

/// Whether a media type is the one of Accept, or of its kind: `application/*`, `*/*`.
fn is_in_range(body: &str, range: &[u8]) -> bool {
    match range.strip_suffix(b"/*") {
        Some(b"*") => true,
        Some(main) => body
            .split_once('/')
            .is_some_and(|(ours, _)| ours.as_bytes().eq_ignore_ascii_case(main)),
        None => body.as_bytes().eq_ignore_ascii_case(range),
    }
}
