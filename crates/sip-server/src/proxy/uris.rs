//! Changes of SIP URIs: removes what a Request-URI must not contain, and a `maddr` that names this server.

use std::borrow::Cow;

use sip::uri::{SipUri, Uri};

/// A URI without what a Request-URI must not contain (RFC 3261 §16.6 step 2, §19.1.1): headers and `method`.
pub(super) fn request_uri(uri: &[u8]) -> Cow<'_, [u8]> {
    let Ok(Uri::Sip(sip)) = Uri::parse(uri) else {
        return Cow::Borrowed(uri);
    };
    if sip.params.get(b"method").is_some() {
        return without(&sip, sip.port, |name| name.eq_ignore_ascii_case(b"method")).into();
    }
    let headers = sip.headers.as_bytes().len();
    let end = match headers {
        0 => uri.strip_suffix(b"?").unwrap_or(uri).len(),
        _ => uri.len() - headers - 1,
    };
    Cow::Borrowed(uri.get(..end).unwrap_or(uri))
}

/// Removes `maddr`, `transport`, and a port other than the default one from a Request-URI whose `maddr` names this
/// server (RFC 3261 §16.4).
pub(super) fn without_maddr(sip: &SipUri<'_>) -> Vec<u8> {
    let default = if sip.is_sips { 5061 } else { 5060 };
    let port = sip.port.filter(|port| *port == default);
    without(sip, port, |name| {
        [&b"maddr"[..], b"transport"]
            .iter()
            .any(|it| name.eq_ignore_ascii_case(it))
    })
}

/// The URI with this port, without headers and without some parameters.
fn without(sip: &SipUri<'_>, port: Option<u16>, is_left_out: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut text = match sip.is_sips {
        true => b"sips:".to_vec(),
        false => b"sip:".to_vec(),
    };
    if let Some(user) = sip.user {
        text.extend_from_slice(user);
        if let Some(password) = sip.password {
            text.push(b':');
            text.extend_from_slice(password);
        }
        text.push(b'@');
    }
    text.extend_from_slice(sip.host.as_bytes());
    if let Some(port) = port {
        text.push(b':');
        text.extend_from_slice(port.to_string().as_bytes());
    }
    for (name, value) in sip.params.iter().filter(|(name, _)| !is_left_out(name)) {
        text.push(b';');
        text.extend_from_slice(name);
        if let Some(value) = value {
            text.push(b'=');
            text.extend_from_slice(value);
        }
    }
    text
}

/// Whether two URIs are equal by the rules of their scheme (RFC 3261 §19.1.4).
pub(super) fn are_equal(one: &[u8], other: &[u8]) -> bool {
    one == other
        || match (Uri::parse(one), Uri::parse(other)) {
            (Ok(one), Ok(other)) => one == other,
            _ => false,
        }
}

/// Replaces the scheme `sips` with `sip`. Does not change other URIs.
pub(super) fn as_sip(uri: &[u8]) -> Vec<u8> {
    match uri.get(..5) {
        Some(scheme) if scheme.eq_ignore_ascii_case(b"sips:") => {
            [b"sip:", uri.get(5..).unwrap_or_default()].concat()
        }
        _ => uri.to_vec(),
    }
}

/// Replaces the scheme `sip` with `sips`. Does not change other URIs.
pub(super) fn as_sips(uri: &[u8]) -> Vec<u8> {
    match uri.get(..4) {
        Some(scheme) if scheme.eq_ignore_ascii_case(b"sip:") => {
            [b"sips:", uri.get(4..).unwrap_or_default()].concat()
        }
        _ => uri.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(uri: &[u8]) -> &str {
        std::str::from_utf8(uri).unwrap()
    }

    #[test]
    fn a_request_uri_has_neither_headers_nor_a_method_rfc3261_16_6_2() {
        for (uri, wanted) in [
            ("sip:bob@h", "sip:bob@h"),
            ("sip:bob@h;ob", "sip:bob@h;ob"),
            ("sip:bob@h?Subject=x", "sip:bob@h"),
            ("sip:b?ob@h;a=b?Subject=x&y=z", "sip:b?ob@h;a=b"),
            (
                "SIPS:bob:word@h:5070;a=b;Method=INVITE;lr?x=y",
                "sips:bob:word@h:5070;a=b;lr",
            ),
            (
                "sip:[2001:db8::1]:5060;method=BYE",
                "sip:[2001:db8::1]:5060",
            ),
            ("tel:+49;method=x", "tel:+49;method=x"),
        ] {
            assert_eq!(text(&request_uri(uri.as_bytes())), wanted, "{uri}");
        }
    }

    #[test]
    fn maddr_of_this_server_is_removed_rfc3261_16_4() {
        for (uri, wanted) in [
            (
                "sip:bob@h:5070;maddr=192.0.2.2;transport=tcp;x=y",
                "sip:bob@h;x=y",
            ),
            ("sip:bob@h:5060;maddr=192.0.2.2", "sip:bob@h:5060"),
            ("sips:h:5061;maddr=192.0.2.2?x=y", "sips:h:5061"),
        ] {
            let Ok(Uri::Sip(sip)) = Uri::parse(uri.as_bytes()) else {
                panic!("{uri}");
            };
            assert_eq!(text(&without_maddr(&sip)), wanted);
        }
    }

    #[test]
    fn a_sips_uri_has_the_host_of_the_sip_uri() {
        assert_eq!(text(&as_sips(b"sip:h;lr")), "sips:h;lr");
        assert_eq!(text(&as_sips(b"sips:h;lr")), "sips:h;lr");
        assert_eq!(text(&as_sips(b"tel:1")), "tel:1");
        assert_eq!(text(&as_sip(b"SIPS:h;lr")), "sip:h;lr");
        assert_eq!(text(&as_sip(b"sip:h;lr")), "sip:h;lr");
        assert!(are_equal(b"sip:bob@H.example", b"sip:bob@h.example"));
        assert!(!are_equal(b"sip:bob@h.example", b"sip:Bob@h.example"));
        assert!(!are_equal(b"<", b">"));
    }
}
