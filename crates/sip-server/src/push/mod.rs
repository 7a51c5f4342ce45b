//! Push notifications (RFC 8599): the parameters by which a phone that sleeps is woken.

mod refresh;

pub(crate) use refresh::REFRESHES_ITSELF;
pub use refresh::{DueRefresh, RECOMMENDED_LEAD, RefreshConfig, RefreshPush, RefreshSchedule};

use sip::uri::Uri;

/// Bytes of a parameter that are read. Tokens of push services have up to some hundreds of bytes.
const MAX_VALUE: usize = 1024;

/// The parameters `pn-provider`, `pn-prid` and `pn-param` of a contact (RFC 8599 §4.1), without escapes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PushParams {
    /// The push service; `None` if the parameter has no value: the phone asks which services there are.
    pub provider: Option<String>,
    /// The token of the phone at the push service.
    pub prid: Option<String>,
    /// What the push service needs besides.
    pub param: Option<String>,
}

impl PushParams {
    /// Those of a contact's URI; `None` if it has no `pn-provider`.
    #[must_use]
    pub fn of(uri: &[u8]) -> Option<PushParams> {
        let Ok(Uri::Sip(uri)) = Uri::parse(uri) else {
            return None;
        };
        let provider = uri.params.get(b"pn-provider")?;
        Some(PushParams {
            provider: provider.and_then(text),
            prid: uri.params.value(b"pn-prid").and_then(text),
            param: uri.params.value(b"pn-param").and_then(text),
        })
    }

    /// Whether the phone can be woken by them, with these push services.
    #[must_use]
    pub fn can_wake(&self, providers: &[String]) -> bool {
        let provider = self.provider.as_ref();
        let is_known = |it: &String| providers.iter().any(|known| known.eq_ignore_ascii_case(it));
        provider.is_some_and(is_known) && self.prid.is_some()
    }
}

/// The token of the phone with this contact, if it can be woken by one of these push services.
#[must_use]
pub fn prid_of(uri: &[u8], providers: &[String]) -> Option<String> {
    if providers.is_empty() {
        return None;
    }
    // Most contacts have no such parameter, so they are not parsed.
    let name = b"pn-prid";
    uri.windows(name.len())
        .any(|part| part.eq_ignore_ascii_case(name))
        .then(|| PushParams::of(uri))
        .flatten()
        .filter(|params| params.can_wake(providers))?
        .prid
}

/// A value without escapes; `None` if it is empty, too long, or no text.
fn text(value: &[u8]) -> Option<String> {
    let mut buffer = [0; MAX_VALUE];
    let value = sip::uri::unescape(value, &mut buffer)?;
    let text = std::str::from_utf8(value).ok()?;
    let is_fit = !text.is_empty() && !text.contains(char::is_control);
    is_fit.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameters_are_those_of_the_uri_rfc8599_4_1() {
        let uri = b"sip:a@h;pn-provider=fcm;pn-param=project%3b1;PN-PRID=abc:d_e";
        let params = PushParams::of(uri).expect("parameters");
        assert_eq!(params.provider.as_deref(), Some("fcm"));
        assert_eq!(params.prid.as_deref(), Some("abc:d_e"));
        assert_eq!(params.param.as_deref(), Some("project;1"));
        let fcm = ["apns".to_owned(), "FCM".to_owned()];
        assert_eq!(prid_of(uri, &fcm).as_deref(), Some("abc:d_e"));
        for others in [&[][..], &fcm[..1]] {
            assert_eq!(prid_of(uri, others), None, "{others:?}");
        }
        let asks = PushParams::of(b"sip:a@h;pn-provider").expect("a parameter");
        assert_eq!(asks, PushParams::default());
        for uri in [
            &b"sip:a@h"[..],
            b"sip:a@h;pn-prid=x",
            b"sip:a@h;pn-provider=fcm",
            b"sip:a@h;pn-provider=fcm;pn-prid=",
            b"sip:a@h;pn-provider=fcm;pn-prid=%0d%0a",
            b"sip:a@h;pn-provider=fcm;pn-prid=%ff",
            b"tel:1;pn-provider=fcm;pn-prid=x",
            b"",
        ] {
            assert_eq!(prid_of(uri, &fcm), None, "{}", uri.escape_ascii());
        }
        let long = format!(
            "sip:a@h;pn-provider=fcm;pn-prid={}",
            "x".repeat(MAX_VALUE + 1)
        );
        assert_eq!(prid_of(long.as_bytes(), &fcm), None);
    }
}
