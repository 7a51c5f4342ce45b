//! What answers have besides what they copy: header lines, and an SDP body.

use sip::build::{BuildError, Builder, Part};
use sip::flow::{Carrier, Flow};
use sip::header::Contact;
use sip::{HeaderKind, Message, Method};
use std::io::Write;

/// The one type of body that is understood.
const TYPES: &[u8] = b"application/sdp";

/// Longer than `<sip:[39 digits]:65535;transport=tcp>`.
const CONTACT: usize = 80;

/// RFC 3261 §20.19: one hour, where nothing is said.
const EXPIRES: u32 = 3600;

/// What a REGISTER is answered with.
pub(super) enum Bindings<'b> {
    Lines(&'b [u8]),
    /// §10.2.2: "*" stands alone, and only to remove everything.
    Wrong,
}

/// What OPTIONS asks for (RFC 3261 §11.2).
pub(super) fn capabilities<'b>(
    buffer: &'b mut [u8],
    methods: &[Method<'_>],
) -> Result<&'b [u8], BuildError> {
    let mut builder = Builder::fields(buffer);
    builder
        .list(
            HeaderKind::Allow,
            methods.iter().map(|method| method.as_bytes()),
        )
        .header(HeaderKind::Accept, TYPES)
        .header(HeaderKind::AcceptEncoding, b"identity")
        .header(HeaderKind::AcceptLanguage, b"en")
        .header(HeaderKind::Supported, b"");
    builder.finish_fields()
}

/// Contact: this server, as the client reached it.
pub(super) fn contact<'b>(buffer: &'b mut [u8], flow: &Flow) -> Result<&'b [u8], BuildError> {
    let mut builder = Builder::fields(buffer);
    add_contact(&mut builder, flow);
    builder.finish_fields()
}

/// What a 2xx to an INVITE has (§13.3.1.4).
pub(super) fn dialog<'b>(
    buffer: &'b mut [u8],
    flow: &Flow,
    methods: &[Method<'_>],
) -> Result<&'b [u8], BuildError> {
    let mut builder = Builder::fields(buffer);
    add_contact(&mut builder, flow);
    builder
        .list(
            HeaderKind::Allow,
            methods.iter().map(|method| method.as_bytes()),
        )
        .header(HeaderKind::Supported, b"")
        .header(HeaderKind::ContentType, TYPES);
    builder.finish_fields()
}

/// Without a transport it would be UDP for an address (RFC 3263 §4.1), and the ACK would leave the connection.
fn add_contact(builder: &mut Builder<'_>, flow: &Flow) {
    let mut text = [0; CONTACT];
    let mut room = &mut text[..];
    let transport = match flow.carrier {
        Carrier::Tcp => ";transport=tcp",
        _ => "",
    };
    // An address is never that long.
    let _ = write!(room, "<sip:{}{transport}>", flow.local);
    let left = room.len();
    builder.header(HeaderKind::Contact, &text[..CONTACT - left]);
}

/// The bindings of the request that have not ended, as if they were kept.
pub(super) fn bindings<'b>(
    buffer: &'b mut [u8],
    message: &Message<'_>,
) -> Result<Bindings<'b>, BuildError> {
    let expires = message.expires().ok().flatten();
    let (mut stars, mut count) = (0, 0);
    let mut builder = Builder::fields(buffer);
    for contact in message.contacts() {
        count += 1;
        match contact {
            Ok(Contact::Addr(address)) => {
                // §10.2.1.1: a malformed Expires counts as an hour.
                let left = address.expires().or(expires).unwrap_or(EXPIRES);
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
    builder.finish_fields().map(Bindings::Lines)
}

/// The answer to an offer that accepts none of its media (RFC 3264 §6), or an offer of none (§5).
pub(super) fn without_media(sdp: &mut Vec<u8>, message: &Message<'_>) {
    sdp.clear();
    sdp.extend_from_slice(
        b"v=0\r\no=- 0 0 IN IP4 192.0.2.0\r\ns=-\r\nc=IN IP4 192.0.2.0\r\nt=0 0\r\n",
    );
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
