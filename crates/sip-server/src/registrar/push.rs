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

/// A push service that a response names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Feature<'p> {
    provider: &'p str,
    /// The seconds before the end of its binding by which a phone of this service refreshes by itself.
    refresh: Option<u32>,
}

impl<'p> Feature<'p> {
    pub(super) const fn of(provider: &'p str) -> Feature<'p> {
        Feature {
            provider,
            refresh: None,
        }
    }
}

/// Which services the 200 names: those of the contacts, all if a contact asks for them, otherwise none. One request may
/// register contacts of several services, and what is promised for one service is not promised for the others.
///
/// # Errors
/// 555 if a contact has another service.
pub(super) fn features_of<'p>(
    requested: &RequestedChange<'_>,
    config: &'p Config,
) -> Result<Vec<Feature<'p>>, Refusal> {
    let providers = &config.push_providers[..];
    let mut features = Vec::new();
    let RequestedChange::Contacts(requested) = requested else {
        return Ok(features);
    };
    if providers.is_empty() {
        return Ok(features);
    }
    let mut asks_for_all = false;
    let lasting = requested
        .iter()
        .filter(|binding_request| binding_request.expires > 0);
    for binding_request in lasting {
        let contact = &binding_request.contact;
        let Some(params) = PushParams::of(contact.uri) else {
            continue;
        };
        let Some(provider) = params.provider else {
            asks_for_all = true;
            continue;
        };
        let mut known = providers.iter();
        let provider = known.find(|it| it.eq_ignore_ascii_case(&provider));
        let provider = provider.ok_or(NOT_SUPPORTED)?;
        // §5.6.1.1: the binding would end before the phone is notified to refresh it, so nothing is promised. Who has
        // no token only asks.
        if params.prid.is_some() && binding_request.expires <= config.push_refresh {
            continue;
        }
        let feature = add(&mut features, provider);
        if params.prid.is_some() && contact.params.get(REFRESHES_ITSELF).is_some() {
            feature.refresh = Some(config.push_refresh);
        }
    }
    if asks_for_all {
        for provider in providers {
            add(&mut features, provider);
        }
    }
    Ok(features)
}

/// The feature of a service, which is added if it is not there.
fn add<'f, 'p>(features: &'f mut Vec<Feature<'p>>, provider: &'p str) -> &'f mut Feature<'p> {
    let place = features.iter().position(|it| it.provider == provider);
    let place = place.unwrap_or_else(|| {
        features.push(Feature::of(provider));
        features.len() - 1
    });
    &mut features[place]
}

/// Appends a Feature-Caps (RFC 6809) for each service to the header lines, which have this many bytes. Says how many
/// they have then. What does not fit is left out: the phone is registered all the same.
pub(super) fn add_features(buffer: &mut [u8], mut len: usize, features: &[Feature<'_>]) -> usize {
    for Feature { provider, refresh } in features {
        let refresh = refresh.map(|seconds| format!(";+sip.pnsreg=\"{seconds}\""));
        let refresh = refresh.unwrap_or_default();
        let line = format!("Feature-Caps: *;+sip.pns=\"{provider}\"{refresh}\r\n");
        let Some(room) = buffer.get_mut(len..len + line.len()) else {
            break;
        };
        room.copy_from_slice(line.as_bytes());
        len += line.len();
    }
    len
}
