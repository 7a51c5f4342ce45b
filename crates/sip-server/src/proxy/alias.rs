//! Aliases of addresses of record: which URI takes the place of the Request-URI.

use sip::uri::Uri;

use super::policy::Policy;
use super::route::Routed;

/// The URI that a request for an alias is for; `None` if it is for no alias.
pub(super) fn of(routed: &Routed<'_>, policy: &mut dyn Policy) -> Option<Box<[u8]>> {
    match routed.routes.is_empty() {
        true => resolve(&routed.uri, policy),
        // The next element on the route knows what the Request-URI means.
        false => None,
    }
}

/// The URI of the address that this URI is an alias of; `None` if it is no alias. The scheme stays: a SIPS URI leads to
/// contacts with TLS only (RFC 5630 §5.3).
pub(super) fn resolve(uri: &[u8], policy: &mut dyn Policy) -> Option<Box<[u8]>> {
    if !policy.has_aliases() {
        return None;
    }
    let Ok(Uri::Sip(uri)) = Uri::parse(uri) else {
        return None;
    };
    // A GRUU names an instance, and a `maddr` another server. With a port of another server, the address is not here.
    let is_elsewhere = uri.port.is_some() && !policy.is_own(uri.host, uri.port);
    if uri.params.get(b"gr").is_some() || uri.maddr().is_some() || is_elsewhere {
        return None;
    }
    let aor = policy.aor(&uri)?;
    let address = policy.alias(&aor)?;
    let scheme: &[u8] = if uri.is_sips { b"sips:" } else { b"sip:" };
    Some([scheme, &address].concat().into())
}
