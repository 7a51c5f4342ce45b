//! Two messages, and what their receiver reads of them. Timed by the example `parser`, and counted by the example
//! `cost` of the server.

use core::hint::black_box;

use sip::digest::Credentials;
use sip::header::HeaderKind;
use sip::{Message, Spans, Uri};

/// Any of what can go wrong here.
pub(crate) type Failed = Box<dyn std::error::Error>;

/// 533 bytes, with Authorization.
pub(crate) const REGISTER: &[u8] = include_bytes!("register.sip");
/// 1,625 bytes, with ten Vias and a body.
pub(crate) const INVITE: &[u8] = include_bytes!("invite.sip");

/// What a registrar reads. Not inlined: the tools find it by its name.
#[inline(never)]
pub(crate) fn read_register(bytes: &[u8], spans: &mut Spans) -> Result<(), Failed> {
    let message = Message::parse(bytes, spans)?;
    black_box(Uri::parse(message.request_uri().unwrap_or_default())?);
    black_box((message.via()?, message.from()?, message.call_id()?));
    black_box((message.to()?.parse_uri()?, message.cseq()?));
    black_box((message.max_forwards()?, message.expires()?));
    black_box(message.contact()?);
    for credentials in message.authorizations(HeaderKind::Authorization) {
        black_box(Credentials::of(&credentials?).ok_or("no credentials")?);
    }
    black_box((message.has(HeaderKind::Require), message.routes().next()));
    Ok(())
}

/// What a proxy reads. Neither is it.
#[inline(never)]
pub(crate) fn read_invite(bytes: &[u8], spans: &mut Spans) -> Result<(), Failed> {
    let message = Message::parse(bytes, spans)?;
    black_box(Uri::parse(message.request_uri().unwrap_or_default())?);
    black_box((message.via()?, message.from()?, message.to()?));
    black_box((message.call_id()?, message.cseq()?));
    black_box((message.max_forwards()?, message.routes().next()));
    black_box(message.has(HeaderKind::ProxyRequire));
    black_box(message.has(HeaderKind::ProxyAuthorization));
    Ok(())
}
