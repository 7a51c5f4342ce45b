//! Push services of phones (RFC 8599 §5.6.1).

use super::requested_change::RequestedChange;
use super::{Config, Refusal, RegistrarResponse};
use crate::push::{PushParams, REFRESHES_ITSELF};

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

/// What the 200 says of push services.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Features<'p> {
    /// The services that it names.
    pub(super) providers: &'p [String],
    /// The seconds before the end of the binding by which the phone refreshes by itself.
    pub(super) refresh: Option<u32>,
}

/// Which services the 200 names: the one of the phone, all if the phone asks for them, otherwise none.
///
/// # Errors
/// 555 if a contact has another service.
pub(super) fn asked<'p>(
    requested: &RequestedChange<'_>,
    config: &'p Config,
) -> Result<Features<'p>, Refusal> {
    let providers = &config.push_providers[..];
    let mut features = Features::default();
    let RequestedChange::Contacts(requested) = requested else {
        return Ok(features);
    };
    if providers.is_empty() {
        return Ok(features);
    }
    let lasting = requested
        .iter()
        .filter(|binding_request| binding_request.expires > 0);
    for binding_request in lasting {
        let contact = &binding_request.contact;
        let Some(params) = PushParams::of(contact.uri) else {
            continue;
        };
        let Some(provider) = params.provider else {
            features.providers = providers;
            continue;
        };
        let place = providers
            .iter()
            .position(|it| it.eq_ignore_ascii_case(&provider));
        let place = place.ok_or(NOT_SUPPORTED)?;
        // §5.6.1.1: the binding would end before the phone is notified to refresh it, so nothing is promised. Who has
        // no token only asks.
        if params.prid.is_some() && binding_request.expires <= config.push_refresh {
            continue;
        }
        if features.providers.is_empty() {
            features.providers = &providers[place..=place];
        }
        if params.prid.is_some() && contact.params.get(REFRESHES_ITSELF).is_some() {
            features.refresh = Some(config.push_refresh);
        }
    }
    Ok(features)
}

/// Appends a Feature-Caps (RFC 6809) for each service to the header lines, which have this many bytes. Says how many
/// they have then. What does not fit is left out: the phone is registered all the same.
pub(super) fn add_features(buffer: &mut [u8], mut len: usize, features: Features<'_>) -> usize {
    let refresh = features.refresh;
    let refresh = refresh.map(|seconds| format!(";+sip.pnsreg=\"{seconds}\""));
    let refresh = refresh.unwrap_or_default();
    for provider in features.providers {
        let line = format!("Feature-Caps: *;+sip.pns=\"{provider}\"{refresh}\r\n");
        let Some(room) = buffer.get_mut(len..len + line.len()) else {
            break;
        };
        room.copy_from_slice(line.as_bytes());
        len += line.len();
    }
    len
}
