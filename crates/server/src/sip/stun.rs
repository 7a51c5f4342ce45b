//! STUN on the port of SIP: Binding requests as keep-alives (RFC 5626 §4.4.2), told apart by the first byte (RFC 7983 §7).

use std::net::SocketAddr;
use stun::{BINDING_SUCCESS_MAX, Class, FingerprintState, Message, Method, binding_success};

/// The answer to a Binding request from `remote`; `None` for anything else.
pub(super) fn answer<'b>(
    datagram: &[u8],
    remote: SocketAddr,
    buffer: &'b mut [u8; BINDING_SUCCESS_MAX],
) -> Option<&'b [u8]> {
    let message = Message::parse(datagram).ok()?;
    if message.class() != Class::Request || message.method() != Method::BINDING {
        return None;
    }
    let fingerprint = match message.fingerprint() {
        FingerprintState::Absent => false,
        FingerprintState::Valid => true,
        FingerprintState::Invalid => return None,
    };
    let written = binding_success(buffer, &message.transaction_id(), &remote, fingerprint);
    Some(&buffer[..written])
}
