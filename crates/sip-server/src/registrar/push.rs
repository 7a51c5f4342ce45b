//! Push services of phones (RFC 8599 §5.6.1).

use super::requested_change::RequestedChange;
use super::{Refusal, RegistrarResponse};
use crate::push::PushParams;

/// RFC 8599 §8.1: no phone is woken by this service here.
pub(super) const NOT_SUPPORTED: Refusal =
    Refusal::of(555, "Push Notification Service Not Supported");

/// The 555 with these header lines.
pub(super) fn not_supported(lines: &[u8]) -> RegistrarResponse<'_> {
    RegistrarResponse {
        code: NOT_SUPPORTED.code,
        reason: NOT_SUPPORTED.reason,
        headers: lines,
    }
}

/// Which of these services the 200 names: the one of the phone, all if the phone asks for them, otherwise none.
///
/// # Errors
/// 555 if a contact has another service.
pub(super) fn asked<'p>(
    requested: &RequestedChange<'_>,
    providers: &'p [String],
) -> Result<&'p [String], Refusal> {
    let RequestedChange::Contacts(requested) = requested else {
        return Ok(&[]);
    };
    let mut named: &[String] = &[];
    if providers.is_empty() {
        return Ok(named);
    }
    let lasting = requested
        .iter()
        .filter(|binding_request| binding_request.expires > 0);
    for params in lasting.filter_map(|binding_request| PushParams::of(binding_request.contact.uri))
    {
        let Some(provider) = params.provider else {
            named = providers;
            continue;
        };
        let place = providers
            .iter()
            .position(|it| it.eq_ignore_ascii_case(&provider));
        let place = place.ok_or(NOT_SUPPORTED)?;
        if named.is_empty() {
            named = &providers[place..=place];
        }
    }
    Ok(named)
}

/// Appends a Feature-Caps (RFC 6809) for each of these services to the header lines, which have this many bytes. Says
/// how many they have then. What does not fit is left out: the phone is registered all the same.
pub(super) fn add_features(buffer: &mut [u8], mut len: usize, providers: &[String]) -> usize {
    for provider in providers {
        let line = format!("Feature-Caps: *;+sip.pns=\"{provider}\"\r\n");
        let Some(room) = buffer.get_mut(len..len + line.len()) else {
            break;
        };
        room.copy_from_slice(line.as_bytes());
        len += line.len();
    }
    len
}
