//! STUN on the port of SIP: Binding requests as keep-alives (RFC 5626 §8). The first byte identifies them (RFC 7983
//! §7).
//!
//! The rules are those of the STUN server, but without credentials, because RFC 5626 §8 has none.

use std::net::SocketAddr;
use stun::{
    BINDING_SUCCESS_MAX, BuildError, Builder, Class, ErrorCode, FingerprintState, Message, Method,
    UnknownAttributes, binding_success,
};

/// The length of the longest response. A list of unknown attributes is longer than an address.
pub(super) const MAX_RESPONSE_BYTES: usize = 256;
const _: () = assert!(MAX_RESPONSE_BYTES >= BINDING_SUCCESS_MAX + 2 * UnknownAttributes::MAX);

/// The response to a Binding request from `remote`. Other messages have none, and are dropped.
pub(super) fn answer<'b>(
    datagram: &[u8],
    remote: SocketAddr,
    buffer: &'b mut [u8; MAX_RESPONSE_BYTES],
) -> Option<&'b [u8]> {
    let message = Message::parse(datagram).ok()?;
    if message.class() != Class::Request || message.method() != Method::BINDING {
        return None;
    }
    let fingerprint = match message.fingerprint() {
        FingerprintState::Absent => false,
        FingerprintState::Valid => true,
        // RFC 8489 §6.3: dropped without a response.
        FingerprintState::Invalid => return None,
    };
    let unknown = message.unknown_required(turn::is_known_attribute);
    let unknown: UnknownAttributes = unknown.collect();
    if !unknown.is_empty() {
        return refusal(&message, &unknown, fingerprint, buffer).ok();
    }
    let room = buffer.first_chunk_mut()?;
    let written = binding_success(room, &message.transaction_id(), &remote, fingerprint);
    Some(&buffer[..written])
}

/// RFC 8489 §6.3.1: 420 with the list of unknown attributes.
fn refusal<'b>(
    request: &Message<'_>,
    unknown: &UnknownAttributes,
    fingerprint: bool,
    buffer: &'b mut [u8],
) -> Result<&'b [u8], BuildError> {
    let id = request.transaction_id();
    let mut answer = Builder::new(buffer, Class::Error, Method::BINDING, &id)?;
    answer.push(&ErrorCode::UNKNOWN_ATTRIBUTE)?.push(unknown)?;
    if fingerprint {
        answer.fingerprint()?;
    }
    Ok(answer.finish())
}
