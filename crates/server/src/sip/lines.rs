//! The parts of responses that are not copied from requests: header lines, and an SDP body.

use sip::build::{BuildError, Builder, Part};
use sip::engine::Signature;
use sip::flow::Transport;
use sip::header::Contact;
use sip::uri::starts_with_sips;
use sip::verdict::Rules;
use sip::{HeaderKind, Message, Method};
use sip_server::reg_event::PACKAGE;
use std::io::Write as _;
use std::net::IpAddr;

/// The only type of body that the server supports.
const ACCEPTED_BODY_TYPE: &[u8] = b"application/sdp";

/// RFC 3261 §20.19: without an expiry, one hour.
const DEFAULT_EXPIRES_S: u32 = 3600;

/// The bindings in the response to a REGISTER.
pub(super) enum Bindings<'b> {
    Lines(&'b [u8]),
    /// §10.2.2: "*" stands alone, and only to remove everything.
    Wrong,
    /// RFC 5630 §5.2: a SIPS Contact requires SIPS URIs everywhere.
    NotSips,
}

/// The maximum length of the lines with the capabilities of this server.
const MAX_CAPABILITY_LINES_BYTES: usize = 1024;

/// Header lines with the capabilities of this server. They are the same in every response.
#[derive(Debug, Default)]
pub(super) struct CapabilityLines {
    /// The lines of a response to OPTIONS (RFC 3261 §11.2).
    pub(super) options: Vec<u8>,
    /// The lines of a 2xx to an INVITE (§13.3.1.4), without its Contact.
    invite: Vec<u8>,
}

impl CapabilityLines {
    /// The lines of a server with these rules.
    pub(super) fn new(rules: &Rules<'_>) -> CapabilityLines {
        let supported = rules.extensions.join(", ");
        let written = |add: &dyn Fn(&mut Builder<'_>)| {
            let mut buffer = [0; MAX_CAPABILITY_LINES_BYTES];
            let mut builder = Builder::fields(&mut buffer);
            let methods = rules.methods.iter().map(|method| method.as_bytes());
            builder.list(HeaderKind::Allow, methods);
            add(&mut builder);
            builder.finish_fields().map(<[u8]>::to_vec)
        };
        CapabilityLines {
            // All methods there are fit.
            options: written(&|lines| {
                lines
                    .header(HeaderKind::Accept, ACCEPTED_BODY_TYPE)
                    .header(HeaderKind::AcceptEncoding, b"identity")
                    .header(HeaderKind::AcceptLanguage, b"en")
                    .header(HeaderKind::Supported, supported.as_bytes());
                if rules.methods.contains(&Method::Subscribe) {
                    lines.header(HeaderKind::AllowEvents, PACKAGE);
                }
            })
            .unwrap_or_default(),
            invite: written(&|lines| {
                lines
                    .header(HeaderKind::Supported, b"")
                    .header(HeaderKind::ContentType, ACCEPTED_BODY_TYPE);
            })
            .unwrap_or_default(),
        }
    }
}

/// Writes a Contact with the name of this server for the client; a SIPS URI if the request requires it (RFC 3261
/// §12.1.1).
pub(super) fn contact<'b>(
    buffer: &'b mut [u8],
    own: &Signature<'_>,
    is_sips: bool,
) -> Result<&'b [u8], BuildError> {
    let mut builder = Builder::fields(buffer);
    // An address without a transport means UDP (RFC 3263 §4.1). Then the ACK would not use the connection.
    let end = match own.transport {
        Transport::Udp => &b">"[..],
        // RFC 5630 §3.1.2: SIPS over TCP is TLS.
        Transport::Tls if is_sips => b";transport=tcp>",
        Transport::Tcp => b";transport=tcp>",
        Transport::Tls => b";transport=tls>",
        // RFC 7118 §5.2: one parameter for both.
        Transport::Ws | Transport::Wss => b";transport=ws>",
    };
    let scheme = if is_sips { &b"<sips:"[..] } else { b"<sip:" };
    let parts = [
        Part::Bytes(scheme),
        own.host_part(),
        Part::Bytes(b":"),
        Part::Number(own.port.into()),
        Part::Bytes(end),
    ];
    builder.header_of(HeaderKind::Contact, &parts);
    builder.finish_fields()
}

/// Writes the header lines of a 2xx to an INVITE.
pub(super) fn dialog<'b>(
    buffer: &'b mut [u8],
    own: &Signature<'_>,
    is_sips: bool,
    abilities: &CapabilityLines,
) -> Result<&'b [u8], BuildError> {
    let length = contact(buffer, own, is_sips)?.len();
    let end = length + abilities.invite.len();
    let room = buffer.get_mut(length..end).ok_or(BuildError::NoRoom)?;
    room.copy_from_slice(&abilities.invite);
    Ok(&buffer[..end])
}

/// Writes the bindings of the request that have not ended, although the server stores none.
pub(super) fn bindings<'b>(
    buffer: &'b mut [u8],
    message: &Message<'_>,
) -> Result<Bindings<'b>, BuildError> {
    let expires = message.expires().ok().flatten();
    let (mut stars, mut count) = (0, 0);
    let (mut sips, mut others) = (0, 0);
    let mut builder = Builder::fields(buffer);
    for contact in message.contacts() {
        count += 1;
        match contact {
            Ok(Contact::Addr(address)) => {
                match starts_with_sips(address.uri) {
                    true => sips += 1,
                    false => others += 1,
                }
                // §10.2.1.1: a malformed Expires counts as an hour.
                let left = address.expires().or(expires).unwrap_or(DEFAULT_EXPIRES_S);
                if left > 0 {
                    let parts = [
                        Part::Bytes(b"<"),
                        Part::Bytes(address.uri),
                        Part::Bytes(b">;expires="),
                        Part::Number(left),
                    ];
                    builder.header_of(HeaderKind::Contact, &parts);
                }
            }
            Ok(Contact::Star) => stars += 1,
            Err(_) => {}
        }
    }
    if stars > 0 && (count > 1 || expires != Some(0)) {
        return Ok(Bindings::Wrong);
    }
    if sips > 0 && (others > 0 || !message.request_uri().is_some_and(starts_with_sips)) {
        return Ok(Bindings::NotSips);
    }
    builder.finish_fields().map(Bindings::Lines)
}

/// How the URIs of a request that begins a dialog demand TLS (RFC 5630 §5.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SipsDemand {
    /// They do not demand TLS.
    No,
    /// They demand TLS. So the Contact of the response is a SIPS URI, too (RFC 3261 §12.1.1).
    Yes,
    /// They demand TLS, but this connection has none. So no SIPS URI would lead here.
    NotHere,
    /// The Request-URI demands TLS, and the Contact does not.
    Inconsistent,
}

impl SipsDemand {
    pub(super) fn of(
        message: &Message<'_>,
        contact: Option<&[u8]>,
        transport: Transport,
    ) -> SipsDemand {
        let is_asked = message.request_uri().is_some_and(starts_with_sips);
        let contact = contact.map(starts_with_sips);
        let route = message.record_routes().next().and_then(Result::ok);
        let is_route = route.map_or(contact, |route| Some(starts_with_sips(route.uri)));
        match () {
            () if !is_asked && is_route != Some(true) => SipsDemand::No,
            () if is_asked && contact == Some(false) => SipsDemand::Inconsistent,
            () if !transport.is_secure() => SipsDemand::NotHere,
            () => SipsDemand::Yes,
        }
    }
}

/// The answer to an offer that accepts none of its media (RFC 3264 §6), or an offer of none (§5).
///
/// `local` is this server's address, `session` a number that no other answer has (RFC 4566 §5.2).
pub(super) fn without_media(sdp: &mut Vec<u8>, message: &Message<'_>, local: IpAddr, session: u64) {
    sdp.clear();
    let family: &[u8] = if local.is_ipv4() {
        b" 1 IN IP4 "
    } else {
        b" 1 IN IP6 "
    };
    sdp.extend_from_slice(b"v=0\r\no=- ");
    // Writing to a vector cannot fail.
    let _ = write!(sdp, "{session}");
    let origin = sdp.len();
    sdp.extend_from_slice(family);
    let _ = write!(sdp, "{local}");
    // " 1 IN ..", behind the version.
    let place = origin + b" 1 ".len()..sdp.len();
    sdp.extend_from_slice(b"\r\ns=-\r\nc=");
    sdp.extend_from_within(place);
    sdp.extend_from_slice(b"\r\nt=0 0\r\n");
    for line in message.body().split(|byte| *byte == b'\n') {
        let Some(media) = line.trim_ascii_end().strip_prefix(b"m=") else {
            continue;
        };
        let mut words = media.split(|byte| *byte == b' ');
        let (Some(kind), Some(_port)) = (words.next(), words.next()) else {
            continue;
        };
        sdp.extend_from_slice(b"m=");
        sdp.extend_from_slice(kind);
        sdp.extend_from_slice(b" 0");
        for word in words {
            sdp.push(b' ');
            sdp.extend_from_slice(word);
        }
        sdp.extend_from_slice(b"\r\n");
    }
}
